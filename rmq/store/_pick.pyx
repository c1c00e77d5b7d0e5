# cython: language_level=3, boundscheck=False, wraparound=False
"""
The compiled loop of a pull: which records of a queue an answer takes, and their bytes one behind the other.

One pure function beside its reference, `rmq.store.reader.Reader.scan`; whatever is unusual is left to that.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_UNIT_BYTES
from rmq.wire.record import MAGIC_V1, MAGIC_V2

cdef enum:
    MAX_RECORDS = 1024
    MAX_CODES = 64
    HEAD_BYTES = 8

cdef Py_ssize_t UNIT_BYTES = CQ_UNIT_BYTES
cdef int64_t LAST_ADDRESS = CQ_EXT_ADDRESS_MAX
cdef int32_t FIRST_MAGIC = MAGIC_V1
cdef int32_t SECOND_MAGIC = MAGIC_V2


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline int64_t get64(const uint8_t* at) noexcept nogil:
    return <int64_t>(<uint64_t>get32(at) << 32 | get32(at + 4))


def pick(
    const uint8_t[::1] units,
    const uint8_t[::1] window,
    int64_t first,
    int64_t log_end,
    int64_t recent_bytes,
    in_memory,
    on_disk,
    int64_t max_count,
    codes,
):
    """
    Choose among ``units``, of which the first lies at ``first``, where ``window``, a piece of the log, begins.

    ``in_memory`` and ``on_disk`` are (records, bytes) that an answer may have of records near the end of the log, which
    are those of the last ``recent_bytes``, and of others. ``codes`` are the tags codes that are wanted, None for all.

    Return (records, how many they are, units that were looked at, place of the last unit that was looked at or ended
    the answer); None for a unit that the reference must look at: an address of an extension, no record at its place.
    An answer ends in front of a record that lies behind the window; without any record in front of it, that is None.
    """
    cdef Py_ssize_t number, unit_count = units.shape[0] // UNIT_BYTES, window_bytes = window.shape[0]
    cdef Py_ssize_t scanned = 0, count = 0, at, i
    cdef int64_t phy = 0, code, size, total = 0, most, most_bytes
    cdef int64_t memory_count = in_memory[0], memory_bytes = in_memory[1]
    cdef int64_t disk_count = on_disk[0], disk_bytes = on_disk[1]
    cdef int64_t wanted[MAX_CODES]
    cdef Py_ssize_t wanted_count = -1
    cdef Py_ssize_t starts[MAX_RECORDS]
    cdef Py_ssize_t sizes[MAX_RECORDS]
    cdef const uint8_t* unit
    cdef const uint8_t* record
    cdef int32_t magic
    cdef bint is_wanted
    cdef bytes records
    cdef char* out
    if window_bytes == 0 or max_count > MAX_RECORDS:
        return None
    if codes is not None:
        if len(codes) > MAX_CODES:
            return None
        wanted_count = 0
        for value in codes:
            if -(1 << 63) <= value < 1 << 63:
                wanted[wanted_count] = value
                wanted_count += 1
    for number in range(unit_count):
        unit = &units[number * UNIT_BYTES]
        phy = get64(unit)
        size = <int32_t>get32(unit + 8)
        code = get64(unit + 12)
        if count:
            if log_end - phy > recent_bytes:
                most = disk_count
                most_bytes = disk_bytes
            else:
                most = memory_count
                most_bytes = memory_bytes
            if most > max_count:
                most = max_count
            if count >= most or total + size > most_bytes:
                break
        if wanted_count >= 0:
            if code <= LAST_ADDRESS:
                return None
            is_wanted = False
            for i in range(wanted_count):
                if wanted[i] == code:
                    is_wanted = True
                    break
            if not is_wanted:
                scanned += 1
                continue
        if size < HEAD_BYTES or phy < first:
            return None
        if phy - first > window_bytes - size:
            if count:
                break
            return None
        at = <Py_ssize_t>(phy - first)
        record = &window[at]
        magic = <int32_t>get32(record + 4)
        if <int32_t>get32(record) != size or (magic != FIRST_MAGIC and magic != SECOND_MAGIC):
            return None
        scanned += 1
        starts[count] = at
        sizes[count] = <Py_ssize_t>size
        count += 1
        total += size
    records = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    out = PyBytes_AS_STRING(records)
    for i in range(count):
        memcpy(out, &window[starts[i]], sizes[i])
        out += sizes[i]
    return records, count, scanned, phy
