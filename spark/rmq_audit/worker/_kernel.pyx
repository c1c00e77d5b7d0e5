# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
The compiled twin of the loops in `kernel` and `properties`: the same columns, rows and numbers, record by record.

Nothing here trusts a length: whatever a record or a caller states is compared with the buffer before a byte is read.
The CRC is our own: see `crc32.pxi`.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline uint32_t rmq_u32(const uint8_t *p) {
        return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
    }
    static inline uint64_t rmq_u64(const uint8_t *p) {
        return (uint64_t) rmq_u32(p) << 32 | rmq_u32(p + 4);
    }
    static inline void rmq_put32(uint8_t *p, uint32_t v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    static inline void rmq_put64(uint8_t *p, uint64_t v) {
        rmq_put32(p, v >> 32); rmq_put32(p + 4, (uint32_t) v);
    }
    """
    uint32_t rmq_u32(const uint8_t *p) noexcept nogil
    uint64_t rmq_u64(const uint8_t *p) noexcept nogil
    void rmq_put32(uint8_t *p, uint32_t v) noexcept nogil
    void rmq_put64(uint8_t *p, uint64_t v) noexcept nogil

include "crc32.pxi"
include "record_layout.pxi"

cdef enum:
    FIELDS = 14
    CRC_BYTES = 20
    MARK_BYTES = 9
    TAGS_MARK_BYTES = 5
    NUMBERS_MARK_BYTES = 25
    # columns of a table at first; no power of two, since its rows would then compete for the same lines of the cache
    FIRST_ROOM = 4096 + 8

cdef const uint8_t *CRC_MARK = b"__CRC32#\x01"
cdef const uint8_t *TAGS_MARK = b"TAGS\x01"
cdef const uint8_t *NUMBERS_MARK = b"INNER_MULTI_QUEUE_OFFSET\x01"


def crc32(const uint8_t[::1] data):
    """Return both forms of the CRC, by tables and by folding (the same where the processor cannot), for tests."""
    cdef int64_t n = data.shape[0]
    if n == 0:
        return 0, 0
    return rmq_crc_plain(&data[0], n), (rmq_crc_folded(&data[0], n) if rmq_can_fold() else rmq_crc_plain(&data[0], n))


cdef inline bint frame(const uint8_t *data, int64_t pos, int64_t end, int64_t *row, int64_t width) noexcept nogil:
    """
    Write the fields of the record in ``data[pos:end]``, its totalSize's end, ``width`` apart from ``row`` on; False if
    its parts do not add up.
    """
    cdef const uint8_t *p = data + pos
    cdef int64_t born, shift, body_pos, body_length, topic_at, topic_length, wide, properties_at, properties_length
    cdef int32_t flag
    if end - pos < HEAD_BYTES:
        return False
    flag = <int32_t> rmq_u32(p + SYS_FLAG_AT)
    born = IPV6_EXTRA_BYTES if flag & 0x10 else 0
    shift = born + (IPV6_EXTRA_BYTES if flag & 0x20 else 0)
    body_pos = pos + HEAD_BYTES + shift
    if body_pos + 3 > end:
        return False
    body_length = <int32_t> rmq_u32(p + BODY_LENGTH_AT + shift)
    topic_at = body_pos + body_length
    if body_length < 0 or topic_at + 3 > end:
        return False
    wide = <int32_t> rmq_u32(p + MAGIC_CODE_AT) == MAGIC_V2
    topic_length = <signed char> data[topic_at]
    if wide:
        topic_length = topic_length << 8 | data[topic_at + 1]
    properties_at = topic_at + 1 + wide + topic_length
    if topic_length < 1 or properties_at + 2 > end:
        return False
    properties_length = <int64_t> (<signed char> data[properties_at]) << 8 | data[properties_at + 1]
    if properties_length < 0 or properties_at + 2 + properties_length != end:
        return False
    row[0] = pos
    row[width] = end - pos
    row[2 * width] = rmq_u32(p + BODY_CRC_AT)
    row[3 * width] = <int32_t> rmq_u32(p + QUEUE_ID_AT)
    row[4 * width] = <int64_t> rmq_u64(p + QUEUE_OFFSET_AT)
    row[5 * width] = <int64_t> rmq_u64(p + PHYSICAL_OFFSET_AT)
    row[6 * width] = flag
    row[7 * width] = <int64_t> rmq_u64(p + STORE_TIMESTAMP_AT + born)
    row[8 * width] = body_pos
    row[9 * width] = body_length
    row[10 * width] = topic_at + 1 + wide
    row[11 * width] = topic_length
    row[12 * width] = properties_at + 2
    row[13 * width] = properties_length
    return True


def extract(
    const uint8_t[::1] data,
    int64_t at,
    int64_t stop,
    int64_t end,
    int64_t least,
    int64_t most,
    bint crc,
    bint tags,
    bint further,
):
    """
    Follow the sound records from ``at`` that start before ``stop`` and lie before ``end``; sizes are from ``least`` to
    ``most``. Everything that is asked of a record is done while its bytes are in the cache.

    Return a table, one row a field and one column a record; the numbers of their queues, in the order of first
    appearance; their tagsCodes (None unless ``tags``); the columns whose body and those whose ``__CRC32#`` property
    does not hold (none unless ``crc``); those that have numbers in further queues (none unless ``further``); and those
    whose tags are not ASCII, with place and length, hashed wrongly.
    """
    cdef int64_t n = min(end, <int64_t> data.shape[0]), count = 0, size, room, most_room, place, length = 0
    cdef int32_t magic
    cdef int64_t[:, ::1] table
    cdef const uint8_t *bytes_ = NULL
    cdef int64_t *row
    cdef bint odd = False, numbered = False
    cdef Queues queues = Queues()
    if at < 0:
        raise IndexError("records before the begin of the data")
    most_room = max(min(stop - at, n - at) // least + 1, 0)
    room = min(most_room, FIRST_ROOM)
    made = np.empty((FIELDS + 2, room), dtype=np.int64)
    bodies, properties, spread, others = [], [], [], []
    if room:
        table, bytes_ = made, &data[0]
    while at < stop and n - at >= least:
        size = rmq_u32(bytes_ + at)
        magic = <int32_t> rmq_u32(bytes_ + at + MAGIC_CODE_AT)
        if size < least or size > most or size > n - at or (magic != MAGIC_V1 and magic != MAGIC_V2):
            break
        if count == room:
            wider = np.empty((FIELDS + 2, min(most_room, 4 * room // 512 * 512 + 8)), dtype=np.int64)
            wider[:, :room] = made
            room, made = wider.shape[1], wider
            table = made
        row = &table[0, count]
        if not frame(bytes_, at, at + size, row, room):
            break
        row[FIELDS * room] = queues.number(bytes_, row[10 * room], row[11 * room], row[3 * room])
        if crc:
            if row[9 * room] > 0 and crc_of(bytes_ + row[8 * room], row[9 * room]) & 0x7FFFFFFF != row[2 * room]:
                bodies.append(count)
            if row[13 * room] >= CRC_BYTES and not property_crc_holds(bytes_ + at, size):
                properties.append(count)
        if tags or further:
            place = tags_in(bytes_, row[12 * room], row[13 * room], &length, &numbered)
            if further and numbered:
                spread.append(count)
        if tags:
            row[(FIELDS + 1) * room] = 0 if place < 0 else java_hash(bytes_ + place, length, &odd)
            if place >= 0 and odd:
                others.append((count, place, length))
        count += 1
        at += size
    return (
        made[:FIELDS, :count], made[FIELDS, :count], made[FIELDS + 1, :count] if tags else None,
        np.array(bodies, dtype=np.int64), np.array(properties, dtype=np.int64),
        np.array(spread, dtype=np.int64), others,
    )


def gather(const uint8_t[::1] data, const int64_t[::1] starts):
    """Return the table of the records at ``starts``, up to the first one whose parts do not add up."""
    cdef int64_t n = data.shape[0], width = starts.shape[0], count, pos, size
    cdef int64_t[:, ::1] table
    made = np.empty((FIELDS, width), dtype=np.int64)
    if width == 0:
        return made
    table = made
    for count in range(width):
        pos = starts[count]
        if pos < 0 or n - pos < HEAD_BYTES:
            raise IndexError("a record outside the data")
        size = rmq_u32(&data[pos])
        if size > n - pos:
            raise IndexError("a record that reaches beyond the data")
        if not frame(&data[0], pos, pos + size, &table[0, count], width):
            return made[:, :count]
    return made


cdef inline bint outside(int64_t pos, int64_t length, int64_t n) noexcept nogil:
    return pos < 0 or length < 0 or pos > n or length > n - pos


cdef inline bint property_crc_holds(const uint8_t *record, int64_t size) noexcept nogil:
    """Whether the ``__CRC32#`` property at the end of a record holds, if there is one; its digits stand in reverse."""
    cdef const uint8_t *mark = record + size - CRC_BYTES
    cdef int64_t stated = 0
    cdef int digit
    if memcmp(mark, CRC_MARK, MARK_BYTES) != 0:
        return True
    for digit in range(CRC_BYTES - 2, MARK_BYTES - 1, -1):
        if not c"0" <= mark[digit] <= c"9":
            return False
        stated = 10 * stated + mark[digit] - c"0"
    return crc_of(record, size - CRC_BYTES) & 0x7FFFFFFF == stated


def queue_keys(
    const uint8_t[::1] data, const int64_t[::1] topic_pos, const int64_t[::1] topic_length, const int64_t[::1] queue_id
):
    """Return the number of each row's queue, in the order of first appearance."""
    cdef int64_t n = data.shape[0], row, rows = topic_pos.shape[0]
    cdef int64_t[::1] keys
    cdef Queues queues = Queues()
    if topic_length.shape[0] != rows or queue_id.shape[0] != rows:
        raise ValueError("columns of different lengths")
    made = np.empty(rows, dtype=np.int64)
    keys = made
    for row in range(rows):
        if outside(topic_pos[row], topic_length[row], n) or topic_length[row] == 0:
            raise IndexError("a topic outside the data")
        keys[row] = queues.number(&data[0], topic_pos[row], topic_length[row], queue_id[row])
    return made


cdef struct Queue:
    uint64_t hash
    int64_t topic_pos
    int64_t topic_length
    int64_t queue_id


cdef class Queues:
    """The queues seen so far, numbered as they came: a hash table with open addressing, at most half full."""

    cdef Queue *known
    cdef int64_t *slots
    cdef int64_t count, mask

    def __cinit__(self):
        self.mask = 255
        self.known = <Queue *> malloc((self.mask + 1) // 2 * sizeof(Queue))
        self.slots = <int64_t *> calloc(self.mask + 1, sizeof(int64_t))
        if self.known == NULL or self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.known)
        free(self.slots)

    cdef int64_t number(self, const uint8_t *data, int64_t pos, int64_t length, int64_t queue_id) except -1:
        cdef uint64_t mixed = mix(hash_of(data + pos, length) ^ <uint64_t> queue_id)
        cdef int64_t slot = mixed & <uint64_t> self.mask, found
        cdef Queue *one
        while self.slots[slot]:
            found = self.slots[slot] - 1
            one = &self.known[found]
            if one.hash == mixed and one.queue_id == queue_id and one.topic_length == length \
                    and memcmp(data + one.topic_pos, data + pos, length) == 0:
                return found
            slot = slot + 1 & self.mask
        found = self.count
        one = &self.known[found]
        one.hash, one.topic_pos, one.topic_length, one.queue_id = mixed, pos, length, queue_id
        self.count += 1
        self.slots[slot] = self.count
        if 2 * self.count > self.mask:
            self.widen()
        return found

    cdef int widen(self) except -1:
        cdef int64_t mask = 2 * self.mask + 1, slot, each
        cdef int64_t *slots = <int64_t *> calloc(mask + 1, sizeof(int64_t))
        cdef Queue *known = <Queue *> realloc(self.known, (mask + 1) // 2 * sizeof(Queue))
        if known != NULL:
            self.known = known
        if known == NULL or slots == NULL:
            free(slots)
            raise MemoryError
        free(self.slots)
        self.slots, self.mask = slots, mask
        for each in range(self.count):
            slot = self.known[each].hash & <uint64_t> mask
            while slots[slot]:
                slot = slot + 1 & mask
            slots[slot] = each + 1
        return 0


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value = (value ^ value >> 29) * <uint64_t> 0x9E3779B97F4A7C15
    return (value ^ value >> 32) * <uint64_t> 0xC2B2AE3D27D4EB4F


cdef inline uint64_t hash_of(const uint8_t *p, int64_t n) noexcept nogil:
    cdef uint64_t value = n
    while n >= 8:
        value = mix(value ^ rmq_u64(p))
        p += 8
        n -= 8
    while n > 0:
        value = value << 8 ^ value >> 56 ^ p[0]
        p += 1
        n -= 1
    return value


def sorted_units(
    const int64_t[::1] keys,
    const int64_t[::1] sys_flag,
    const int64_t[::1] queue_offset,
    const int64_t[::1] pos,
    const int64_t[::1] size,
    int64_t base,
    tags,
):
    """
    Return what `kernel.runs` is made of: the rows that own a unit, queue by queue; where in them runs begin and end;
    and the (phyOffset, size) pairs and tagsCodes of these rows as they stand in consume queues.
    """
    cdef int64_t count = keys.shape[0], known = 0, row, at, key, owners = 0, heads = 0
    cdef int64_t *place
    cdef const int64_t[::1] codes
    cdef int64_t[::1] rows, begins, ends
    cdef uint8_t[::1] units, packed
    cdef bint tagged = tags is not None
    if sys_flag.shape[0] != count or queue_offset.shape[0] != count or pos.shape[0] != count or size.shape[0] != count:
        raise ValueError("columns of different lengths")
    if tagged:
        codes = tags
        if codes.shape[0] != count:
            raise ValueError("columns of different lengths")
    for row in range(count):
        if keys[row] < 0 or keys[row] >= count:
            raise IndexError("a queue without a number")
        known = max(known, keys[row] + 1)
    place = <int64_t *> calloc(known + 1, sizeof(int64_t))
    if place == NULL:
        raise MemoryError
    try:
        for row in range(count):
            if owns(sys_flag[row]):
                place[keys[row] + 1] += 1
                owners += 1
        for key in range(known):
            place[key + 1] += place[key]
        made_rows = np.empty(owners, dtype=np.int64)
        made_begins, made_ends = np.empty(owners, dtype=np.int64), np.empty(owners, dtype=np.int64)
        made_units = np.empty(12 * owners, dtype=np.uint8)
        made_packed = np.empty(8 * owners if tagged else 0, dtype=np.uint8)
        rows, begins, ends, units, packed = made_rows, made_begins, made_ends, made_units, made_packed
        for row in range(count):
            if not owns(sys_flag[row]):
                continue
            at = place[keys[row]]
            place[keys[row]] += 1
            rows[at] = row
            rmq_put64(&units[12 * at], <uint64_t> (pos[row] + base))
            rmq_put32(&units[12 * at + 8], <uint32_t> size[row])
            if tagged:
                rmq_put64(&packed[8 * at], <uint64_t> codes[row])
    finally:
        free(place)
    for at in range(owners):
        row = rows[at]
        # unsigned, because signed numbers must not overflow in C
        if at == 0 or keys[row] != keys[rows[at - 1]] \
                or <uint64_t> queue_offset[row] != <uint64_t> queue_offset[rows[at - 1]] + 1:
            begins[heads] = at
            heads += 1
        ends[heads - 1] = at
    return made_rows, made_begins[:heads], made_ends[:heads], made_units, made_packed if tagged else None


cdef inline bint owns(int64_t flag) noexcept nogil:
    """Prepared (4) and rolled back (12) halves own no unit, inner batches (128) several."""
    return flag & 0x4 == 0 and flag & 0x80 == 0


cdef inline int64_t value_in(
    const uint8_t *data, int64_t pos, int64_t length, const uint8_t *mark, int64_t mark_bytes, int64_t *value_bytes
) noexcept nogil:
    """
    Return where, in properties, the last value lies of the property whose name and separator are ``mark``, and set its
    length; -1 if it has none.
    """
    cdef const uint8_t *p = data + pos
    cdef const uint8_t *end = p + length
    cdef const uint8_t *stop
    cdef int64_t found = -1
    while p < end:
        stop = <const uint8_t *> memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p > mark_bytes and p[0] == mark[0] and memcmp(p, mark, mark_bytes) == 0:
            found = p + mark_bytes - data
            value_bytes[0] = stop - p - mark_bytes
        p = stop + 1
    return found


cdef inline int64_t tags_in(
    const uint8_t *data, int64_t pos, int64_t length, int64_t *value_bytes, bint *numbered
) noexcept nogil:
    """As `value_in` for TAGS; ``numbered`` tells whether there is an INNER_MULTI_QUEUE_OFFSET with a value as well."""
    cdef const uint8_t *p = data + pos
    cdef const uint8_t *end = p + length
    cdef const uint8_t *stop
    cdef int64_t found = -1
    numbered[0] = False
    while p < end:
        stop = <const uint8_t *> memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p > TAGS_MARK_BYTES and p[0] == TAGS_MARK[0] and memcmp(p, TAGS_MARK, TAGS_MARK_BYTES) == 0:
            found = p + TAGS_MARK_BYTES - data
            value_bytes[0] = stop - p - TAGS_MARK_BYTES
        elif stop - p > NUMBERS_MARK_BYTES and p[0] == NUMBERS_MARK[0] \
                and memcmp(p, NUMBERS_MARK, NUMBERS_MARK_BYTES) == 0:
            numbered[0] = True
        p = stop + 1
    return found


def values_of(
    const uint8_t[::1] data, const int64_t[::1] pos, const int64_t[::1] length, const uint8_t[::1] mark
):
    """Return (rows, places, lengths) of the last values of a property in the properties of each row."""
    cdef int64_t n = data.shape[0], row, rows = pos.shape[0], count = 0, place, size
    cdef int64_t[:, ::1] table
    if length.shape[0] != rows or mark.shape[0] == 0:
        raise ValueError("columns of different lengths, or no name")
    made = np.empty((3, rows), dtype=np.int64)
    table = made
    for row in range(rows):
        if outside(pos[row], length[row], n):
            raise IndexError("properties outside the data")
        if length[row] == 0:
            continue
        place = value_in(&data[0], pos[row], length[row], &mark[0], mark.shape[0], &size)
        if place >= 0:
            table[0, count], table[1, count], table[2, count] = row, place, size
            count += 1
    return made[0, :count], made[1, :count], made[2, :count]


cdef inline int32_t java_hash(const uint8_t *text, int64_t length, bint *odd) noexcept nogil:
    """Return ``String.hashCode`` of ASCII text; ``odd`` tells that it is not ASCII."""
    cdef uint32_t value = 0
    cdef uint8_t seen = 0
    cdef int64_t at
    for at in range(length):
        value = 31 * value + text[at]
        seen |= text[at]
    odd[0] = seen & 0x80
    return <int32_t> value


def java_hashes(const uint8_t[::1] data, const int64_t[::1] pos, const int64_t[::1] length):
    """Return ``String.hashCode`` of the text at each place, and the rows whose text is not ASCII, hashed wrongly."""
    cdef int64_t n = data.shape[0], row, rows = pos.shape[0]
    cdef bint odd
    cdef int64_t[::1] hashes
    if length.shape[0] != rows:
        raise ValueError("columns of different lengths")
    made = np.zeros(rows, dtype=np.int64)
    hashes = made
    others = []
    for row in range(rows):
        if outside(pos[row], length[row], n):
            raise IndexError("text outside the data")
        if length[row] == 0:
            continue
        hashes[row] = java_hash(&data[pos[row]], length[row], &odd)
        if odd:
            others.append(row)
    return made, others
