# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, infer_types=False
"""
The hot loops of the store, compiled: from the bytes of received sends to records, units, keys and answers (SendBatch),
from records of the log to units and keys (walk_records), and from keys to their hashes (key_hash) and entries of an
index file (add_entries); and messages that are made from stored ones (MoveBatch).

They compute and change nothing outside of themselves (add_entries: the index file that it is given); what they return
is written and shown by `rmq.store.appender.Appender` and `rmq.store.dispatch.Dispatcher`. Whatever is unusual in any way
is left to the Python code, which is complete and the reference: `rmq.broker.responders.sending.SendResponder`,
`Dispatcher.frame` and `rmq.store.index.Index`. Tests compare both byte by byte.
"""

from cpython.array cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)

include "crc32.pxi"
include "record_layout.pxi"

cdef enum:
    MAX_PROPERTIES = 32767
    MAX_PIECES = 64                 # properties of one message
    MAX_HEADER = 60000              # longer headers are left to Python
    MAX_BATCH = 1024                # messages written together
    MAX_QUEUES = 64                 # queues that they go to
    MAX_BATCH_BYTES = 1 << 20       # a batch ends when so many bytes of records are in it
    MAX_FRAME = 16 * 1024 * 1024 - 4
    UNIT = 20
    ENTRY = 20
    PENDING = 20                    # i32 hash, i64 phyOffset, i64 storeTimestamp, as this machine writes them
    MAX_KEYS = 16
    BATCH_HEAD = 20                 # of an entry: i32 totalSize, magic, bodyCRC, flag, bodyLength
    MAX_BATCH_OVERHEAD = 1 << 16    # what the records of a batch may have beyond the longest body
    DRAWN_BYTES = 16                # by so much the properties of a retry may become longer when its queue is drawn
    MAX_EDITS = 6
    MAX_DELAYS = 64                 # levels of delay
    MAX_MOVES = 128                 # made from stored ones and written together
    TRANSACTION = 0xC               # sysFlag
    COMMITTED = 8
    ROLLED_BACK = 12
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    ONE_WAY = 2                     # flag of a request
    SEND_MESSAGE = 10
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    END_TRANSACTION = 37
    CONSUMER_SEND_MSG_BACK = 36
    SCHEDULED_RETRY = 3             # the level of the first retry
    ANSWER_ROOM = 160               # numbers of an answer

# ---- numbers ----

cdef inline void put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16
    at[2] = value >> 8
    at[3] = value


cdef inline void put64(uint8_t* at, uint64_t value) noexcept nogil:
    put32(at, <uint32_t>(value >> 32))
    put32(at + 4, <uint32_t>value)


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t get64(const uint8_t* at) noexcept nogil:
    return <uint64_t>get32(at) << 32 | get32(at + 4)


cdef inline void put_unit(uint8_t* at, int64_t phy, int64_t size, int64_t tags_code) noexcept nogil:
    """Write a unit of a consume queue."""
    put64(at, <uint64_t>phy)
    put32(at + 8, <uint32_t>size)
    put64(at + 12, <uint64_t>tags_code)


cdef inline Py_ssize_t put_decimal(uint8_t* at, int64_t value) noexcept nogil:
    """Write a number; return its length."""
    cdef uint8_t digits[24]
    cdef Py_ssize_t count = 0, length = 0
    cdef uint64_t rest
    if value < 0:
        at[0] = c'-'
        length = 1
        rest = <uint64_t>0 - <uint64_t>value
    else:
        rest = <uint64_t>value
    while True:
        digits[count] = <uint8_t>(c'0' + rest % 10)
        rest //= 10
        count += 1
        if rest == 0:
            break
    while count:
        count -= 1
        at[length] = digits[count]
        length += 1
    return length


cdef inline uint32_t body_crc(const uint8_t* at, Py_ssize_t size) noexcept:
    """Return the CRC of a body as it is stored."""
    return crc_of(at, size) & 0x7FFFFFFF


cdef inline uint32_t hash_on(uint32_t value, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Go on with a Java hash over text in UTF-8, which must be valid: over its UTF-16 units."""
    cdef const uint8_t* end = at + size
    cdef uint32_t unit
    while at < end:
        unit = at[0]
        if unit < 0x80:
            at += 1
        elif unit < 0xE0:
            unit = (unit & 0x1F) << 6 | (at[1] & 0x3F)
            at += 2
        elif unit < 0xF0:
            unit = (unit & 0xF) << 12 | (at[1] & 0x3F) << 6 | (at[2] & 0x3F)
            at += 3
        else:
            unit = ((unit & 7) << 18 | (at[1] & 0x3F) << 12 | (at[2] & 0x3F) << 6 | (at[3] & 0x3F)) - 0x10000
            value = value * 31 + (0xD800 | unit >> 10)
            unit = 0xDC00 | unit & 0x3FF
            at += 4
        value = value * 31 + unit
    return value


cdef inline int32_t index_hash(uint32_t value) noexcept nogil:
    """Java: IndexFile#indexKeyHashMethod"""
    if value < 0x80000000u:
        return <int32_t>value
    return <int32_t>(0u - value) if value > 0x80000000u else 0


def key_hash(str topic not None, str key not None):
    """Do as `rmq.wire.record.index_key_hash`."""
    return index_hash(hash_text(hash_text(0, topic) * 31 + c"#", key))


cdef uint32_t hash_text(uint32_t value, str text):
    """Go on with a Java hash over a text: over its UTF-16 units."""
    cdef Py_UCS4 character
    cdef uint32_t unit
    for character in text:
        unit = <uint32_t>character
        if unit > 0xFFFF:
            value = value * 31 + (0xD800 | (unit - 0x10000) >> 10)
            unit = 0xDC00 | unit & 0x3FF
        value = value * 31 + unit
    return value


# ---- the header of a send, as clients write it ----

cdef struct Text:
    const uint8_t* at
    Py_ssize_t size


cdef struct Send:
    int64_t opaque
    # nobody waits for its answer
    bint one_way
    int64_t queue_id
    int64_t sys_flag
    int64_t born
    int64_t flag
    int64_t reconsume
    const uint8_t* topic
    Py_ssize_t topic_size
    # the properties as they came, escapes and all
    const uint8_t* raw
    Py_ssize_t raw_size
    bint escaped
    const uint8_t* body
    Py_ssize_t body_size
    # behind its frame in the received bytes
    Py_ssize_t stop
    # the first message of its request, and how many that has
    int first
    int members
    # of a batch: what is added to the properties of each message, and its length
    Py_ssize_t common_at
    Py_ssize_t common_size
    # whose it is, as a record has it
    const uint8_t* born_host
    # which of the batch's queues it goes to, its id, and its topic as a record has it
    Py_ssize_t queue
    int64_t stored_id
    const uint8_t* field
    Py_ssize_t field_size
    uint32_t prefix
    # it waits in a topic of the broker's; the delay is -1 there for a half message
    bint waits
    int64_t delay_ms
    # of its record, once it is encoded
    int64_t phy
    int64_t size
    int64_t number
    int64_t tags_code
    int first_hash
    int hashes


cdef inline bint is_name(const uint8_t* name, Py_ssize_t size, const char* other, Py_ssize_t other_size) noexcept nogil:
    return size == other_size and memcmp(name, other, other_size) == 0


cdef inline const uint8_t* skip(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\t' or p[0] == c'\r'):
        p += 1
    return p


cdef inline const uint8_t* text_end(const uint8_t* p, const uint8_t* end, bint* escaped, bint* wide) noexcept nogil:
    """
    Return where the quote is that ends a string which begins at p; NULL when it has control characters.

    ``wide``: it is not all ASCII; NULL refuses such a string.
    """
    cdef uint8_t all_bits = 0
    escaped[0] = False
    while p < end:
        if p[0] == c'"':
            if wide != NULL:
                wide[0] = all_bits >= 0x80
                return p
            return p if all_bits < 0x80 else NULL
        if p[0] < 0x20 or p[0] == 0x7F:
            return NULL
        all_bits |= p[0]
        if p[0] == c'\\':
            escaped[0] = True
            p += 1
            if p >= end:
                return NULL
        p += 1
    return NULL


cdef inline const uint8_t* read_key(const uint8_t* p, const uint8_t* end, Text* key) noexcept nogil:
    """Read the name of a member at p; return where its value begins, or NULL unless it is ASCII without escapes."""
    cdef bint escaped
    if p >= end or p[0] != c'"':
        return NULL
    key.at = p + 1
    p = text_end(key.at, end, &escaped, NULL)
    if p == NULL or escaped:
        return NULL
    key.size = p - key.at
    p = skip(p + 1, end)
    if p >= end or p[0] != c':':
        return NULL
    p = skip(p + 1, end)
    return p if p < end else NULL


cdef enum:
    #: what `read_members` stops at
    NOT_PLAIN = 0
    AT_FIELDS = 1
    AT_END = 2


cdef inline const uint8_t* find_next(const uint8_t* p, const uint8_t* end, bint* is_last) noexcept nogil:
    """Return where the next member begins behind a value, or what follows their closing brace; NULL for neither."""
    p = skip(p, end)
    if p >= end:
        return NULL
    is_last[0] = p[0] == c'}'
    return skip(p + 1, end) if is_last[0] or p[0] == c',' else NULL


cdef inline const uint8_t* bare_end(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return what follows the whole number or word of JSON at p; NULL where there is none."""
    cdef const uint8_t* begin = p
    if p < end and p[0] == c'-':
        p += 1
    if p < end and p[0] == c'0':
        return p + 1
    if p < end and c'1' <= p[0] <= c'9':
        while p < end and c'0' <= p[0] <= c'9':
            p += 1
        return p
    if p > begin:
        return NULL
    if end - p >= 4 and (memcmp(p, b"true", 4) == 0 or memcmp(p, b"null", 4) == 0):
        return p + 4
    return p + 5 if end - p >= 5 and memcmp(p, b"false", 5) == 0 else NULL


cdef inline const uint8_t* read_value(
    const uint8_t* p, const uint8_t* end, const uint8_t** value, Py_ssize_t* size, bint* is_text, bint* escaped, bint* wide
) noexcept nogil:
    """Read a string, see `text_end`, a number or a word at p; return what follows, or NULL."""
    escaped[0] = False
    if wide != NULL:
        wide[0] = False
    is_text[0] = p < end and p[0] == c'"'
    p += is_text[0]
    value[0] = p
    if is_text[0]:
        p = text_end(p, end, escaped, wide)
        if p == NULL:
            return NULL
    else:
        p = bare_end(p, end)
        if p == NULL:
            return NULL
    size[0] = p - value[0]
    return p + is_text[0]


cdef inline bint number_in(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """Read a whole number that has its plain form and up to 18 digits."""
    cdef bint negative = False
    cdef int64_t found = 0
    if p < end and p[0] == c'-':
        negative = True
        p += 1
    if p >= end or end - p > 18 or (p[0] == c'0' and (end - p > 1 or negative)):
        return False
    while p < end:
        if p[0] < c'0' or p[0] > c'9':
            return False
        found = found * 10 + (p[0] - c'0')
        p += 1
    value[0] = -found if negative else found
    return True


cdef inline bint is_int32(int64_t value) noexcept nogil:
    return -2147483648LL <= value <= 2147483647LL


cdef inline uint8_t letter_of(const uint8_t* name, Py_ssize_t size) noexcept nogil:
    """Return the name that a field of SEND_MESSAGE has in SEND_MESSAGE_V2; 0 for others."""
    if size == 4:
        return c'h' if memcmp(name, b"flag", 4) == 0 else 0
    if size == 5:
        return c'b' if memcmp(name, b"topic", 5) == 0 else c'm' if memcmp(name, b"batch", 5) == 0 else 0
    if size == 7:
        return c'e' if memcmp(name, b"queueId", 7) == 0 else c'f' if memcmp(name, b"sysFlag", 7) == 0 else 0
    if size == 8:
        return c'k' if memcmp(name, b"unitMode", 8) == 0 else 0
    if size == 10:
        return c'i' if memcmp(name, b"properties", 10) == 0 else 0
    if size == 12:
        return c'c' if memcmp(name, b"defaultTopic", 12) == 0 else 0
    if size == 13:
        return c'a' if memcmp(name, b"producerGroup", 13) == 0 else c'g' if memcmp(name, b"bornTimestamp", 13) == 0 else 0
    if size == 14:
        return c'j' if memcmp(name, b"reconsumeTimes", 14) == 0 else 0
    if size == 17:
        return c'l' if memcmp(name, b"maxReconsumeTimes", 17) == 0 else 0
    if size == 21:
        return c'd' if memcmp(name, b"defaultTopicQueueNums", 21) == 0 else 0
    return 0


cdef const uint8_t* read_ext(const uint8_t* p, const uint8_t* end, Send* send, bint is_long, bint is_batch) noexcept nogil:
    """
    Read the fields of a send behind their opening brace; return what follows the closing one, or NULL.

    ``is_long``: they have the names of SEND_MESSAGE, not the letters of SEND_MESSAGE_V2.
    """
    cdef Text key
    cdef const uint8_t* value
    cdef Py_ssize_t size
    cdef bint escaped, is_text, wide
    cdef bint is_last = False
    cdef uint32_t seen = 0, bit
    cdef int64_t number = 0
    cdef uint8_t letter
    send.raw = NULL
    send.raw_size = 0
    send.escaped = False
    send.reconsume = 0
    p = skip(p, end)
    while not is_last:
        p = read_key(p, end, &key)
        if p == NULL:
            return NULL
        p = read_value(p, end, &value, &size, &is_text, &escaped, &wide)
        if p == NULL:
            return NULL
        if is_long:
            letter = letter_of(key.at, key.size)
        else:
            letter = key.at[0] if key.size == 1 else 0
        if c'a' <= letter <= c'm':
            bit = <uint32_t>1 << (letter - c'a')
            if seen & bit or ((escaped or wide) and letter != c'i') or (not is_text and (letter <= c'c' or letter == c'i')):
                return NULL
            seen |= bit
            if letter == c'b':
                send.topic = value
                send.topic_size = size
            elif letter == c'i':
                if wide and not is_utf8(value, size):
                    return NULL
                send.raw = value
                send.raw_size = size
                send.escaped = escaped
            elif letter == c'm' and is_batch:
                if size != 4 or memcmp(value, b"true", 4) != 0:
                    return NULL
            elif letter == c'k' or letter == c'm':
                # C++ clients write 0
                if not (size == 5 and memcmp(value, b"false", 5) == 0 or size == 1 and value[0] == c'0'):
                    return NULL
            elif letter != c'a' and letter != c'c':
                if not number_in(value, value + size, &number) or (letter != c'g' and not is_int32(number)):
                    return NULL
                if letter == c'e':
                    send.queue_id = number
                elif letter == c'f':
                    send.sys_flag = number
                elif letter == c'g':
                    send.born = number
                elif letter == c'h':
                    send.flag = number
                elif letter == c'j':
                    send.reconsume = number
        elif escaped or wide:
            return NULL
        p = find_next(p, end, &is_last)
        if p == NULL:
            return NULL
    # a to h must be there
    return p if seen & 0xFF == 0xFF else NULL


cdef enum:
    #: members of a header
    EXT_FIELDS = 1
    CODE = 2
    OPAQUE = 4
    FLAG = 8
    VERSION_MEMBER = 16
    LANGUAGE = 32


cdef struct Header:
    #: members that were there
    int seen
    int64_t opaque, version
    bint one_way
    #: NULL without a language
    const uint8_t* language
    Py_ssize_t language_size


cdef int read_members(const uint8_t** at, const uint8_t* end, int64_t code, Header* header) noexcept nogil:
    """
    Read a JSON header from ``at`` on, its beginning or the end of its extFields.

    AT_FIELDS with ``at`` behind their brace; AT_END; NOT_PLAIN when it is no request of that code, has another flag than
    that of a one-way request, or is not written plainly. The caller sets ``seen`` to 0, and reads the extFields.
    """
    cdef const uint8_t* p = skip(at[0], end)
    cdef Text key
    cdef const uint8_t* value
    cdef bint escaped
    cdef int64_t number = 0
    cdef int bit
    cdef bint is_last = False
    if header.seen & EXT_FIELDS:
        p = find_next(p, end, &is_last)
        if p == NULL:
            return NOT_PLAIN
    else:
        if p >= end or p[0] != c'{':
            return NOT_PLAIN
        header.opaque = header.version = 0
        header.one_way = False
        header.language = NULL
        header.language_size = 0
        p = skip(p + 1, end)
    while not is_last:
        p = read_key(p, end, &key)
        if p == NULL:
            return NOT_PLAIN
        bit = 0
        if is_name(key.at, key.size, b"extFields", 9):
            bit = EXT_FIELDS
        elif is_name(key.at, key.size, b"code", 4):
            bit = CODE
        elif is_name(key.at, key.size, b"opaque", 6):
            bit = OPAQUE
        elif is_name(key.at, key.size, b"flag", 4):
            bit = FLAG
        elif is_name(key.at, key.size, b"version", 7):
            bit = VERSION_MEMBER
        elif is_name(key.at, key.size, b"language", 8):
            bit = LANGUAGE
        if header.seen & bit:
            return NOT_PLAIN
        header.seen |= bit
        if bit == EXT_FIELDS:
            if p[0] != c'{':
                return NOT_PLAIN
            at[0] = p + 1
            return AT_FIELDS
        if p[0] == c'"':
            if bit and bit != LANGUAGE:
                return NOT_PLAIN
            value = p + 1
            p = text_end(value, end, &escaped, NULL)
            if p == NULL or escaped:
                return NOT_PLAIN
            if bit:
                header.language = value
                header.language_size = p - value
            p += 1
        elif bit == 0 and end - p > 4 and memcmp(p, b"null", 4) == 0:
            p += 4
        else:
            value = p
            while p < end and (c'0' <= p[0] <= c'9' or p[0] == c'-'):
                p += 1
            if not number_in(value, p, &number) or (bit and not is_int32(number)):
                return NOT_PLAIN
            if bit == LANGUAGE or (bit == CODE and number != code) or (bit == FLAG and number & ~ONE_WAY):
                return NOT_PLAIN
            if bit == OPAQUE:
                header.opaque = number
            elif bit == VERSION_MEMBER:
                header.version = number
            elif bit == FLAG:
                header.one_way = number != 0
        p = find_next(p, end, &is_last)
        if p == NULL:
            return NOT_PLAIN
    return AT_END if p == end else NOT_PLAIN


cdef bint read_header(const uint8_t* p, const uint8_t* end, int64_t code, Send* send, bint is_batch) noexcept nogil:
    """Read the JSON header of a send; False when it is not a plain request of that code, or not written plainly."""
    cdef Header header
    header.seen = 0
    if read_members(&p, end, code, &header) != AT_FIELDS:
        return False
    p = read_ext(p, end, send, code == SEND_MESSAGE or code == SEND_REPLY_MESSAGE, is_batch)
    if p == NULL or read_members(&p, end, code, &header) != AT_END:
        return False
    send.opaque = header.opaque
    send.one_way = header.one_way
    return header.seen & (CODE | OPAQUE) == CODE | OPAQUE


cdef inline int hex_digit(uint8_t letter) noexcept nogil:
    if c'0' <= letter <= c'9':
        return letter - c'0'
    letter |= 0x20
    if c'a' <= letter <= c'f':
        return letter - c'a' + 10
    return -1


cdef inline int64_t unit_at(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Read the four digits of an escaped UTF-16 unit; -1 for anything else."""
    cdef int64_t unit = 0
    cdef int digit, i
    if end - p < 4:
        return -1
    for i in range(4):
        digit = hex_digit(p[i])
        if digit < 0:
            return -1
        unit = unit << 4 | digit
    return unit


cdef inline Py_ssize_t put_utf8(uint8_t* at, uint32_t code) noexcept nogil:
    """Write a character that is not ASCII; return its length."""
    cdef Py_ssize_t more = 1 if code < 0x800 else 2 if code < 0x10000 else 3, i
    at[0] = <uint8_t>((0xC0 if more == 1 else 0xE0 if more == 2 else 0xF0) | code >> 6 * more)
    for i in range(more):
        at[1 + i] = <uint8_t>(0x80 | (code >> 6 * (more - 1 - i) & 0x3F))
    return more + 1


cdef Py_ssize_t unescape(const uint8_t* p, Py_ssize_t size, uint8_t* out) noexcept nogil:
    """
    Write what a JSON string means in UTF-8, never longer than the string.

    Returns its length; -1 where an escape is none, or means NUL or half a character.
    """
    cdef const uint8_t* end = p + size
    cdef Py_ssize_t length = 0
    cdef int64_t unit, low
    cdef uint8_t letter
    while p < end:
        letter = p[0]
        p += 1
        if letter == c'\\':
            letter = p[0]
            p += 1
            if letter == c'u':
                unit = unit_at(p, end)
                if unit <= 0 or unit >> 10 == 0x37:
                    return -1
                p += 4
                if unit >= 0x80:
                    if unit >> 10 == 0x36:
                        if end - p < 6 or p[0] != c'\\' or p[1] != c'u':
                            return -1
                        low = unit_at(p + 2, end)
                        if low >> 10 != 0x37:
                            return -1
                        unit = 0x10000 + ((unit & 0x3FF) << 10 | (low & 0x3FF))
                        p += 6
                    length += put_utf8(out + length, <uint32_t>unit)
                    continue
                letter = <uint8_t>unit
            elif letter == c'n':
                letter = c'\n'
            elif letter == c't':
                letter = c'\t'
            elif letter == c'r':
                letter = c'\r'
            elif letter == c'b':
                letter = 8
            elif letter == c'f':
                letter = 12
            elif letter != c'"' and letter != c'\\' and letter != c'/':
                return -1
        out[length] = letter
        length += 1
    return length


cdef struct Span:
    Py_ssize_t at
    Py_ssize_t size


cdef struct Properties:
    Py_ssize_t size
    # places of values in the stored string; sizes of -1: there is none
    Span unique, keys, tags


cdef inline void note_property(
    Properties* found, const uint8_t* name, Py_ssize_t name_size, Py_ssize_t at, Py_ssize_t size
) noexcept nogil:
    """Remember where a value is that the store needs."""
    if is_name(name, name_size, b"UNIQ_KEY", 8):
        found.unique.at, found.unique.size = at, size
    elif is_name(name, name_size, b"KEYS", 4):
        found.keys.at, found.keys.size = at, size
    elif is_name(name, name_size, b"TAGS", 4):
        found.tags.at, found.tags.size = at, size


cdef inline bint next_property(
    const uint8_t* text, Py_ssize_t size, Py_ssize_t* at, Text* names, int* count, Text* value
) noexcept nogil:
    """
    Read the property at ``at`` and go on behind it; its name is added to ``names``.

    False unless it has a name that none before it has, and a value.
    """
    cdef const uint8_t* name = text + at[0]
    cdef const uint8_t* mark = <const uint8_t*>memchr(name, 2, size - at[0])
    cdef Py_ssize_t stop = size if mark == NULL else mark - text
    cdef Py_ssize_t name_size
    cdef int i
    mark = <const uint8_t*>memchr(name, 1, stop - at[0])
    if mark == NULL:
        return False
    name_size = mark - name
    value.at = mark + 1
    value.size = text + stop - value.at
    if name_size == 0 or value.size == 0 or memchr(value.at, 1, value.size) != NULL or count[0] >= MAX_PIECES:
        return False
    for i in range(count[0]):
        if names[i].size == name_size and memcmp(names[i].at, name, name_size) == 0:
            return False
    names[count[0]].at = name
    names[count[0]].size = name_size
    count[0] += 1
    at[0] = stop + 1
    return True


cdef bint store_properties(
    const uint8_t* text, Py_ssize_t size, const uint8_t* cluster, Py_ssize_t cluster_size,
    bint waits, bint keeps_wait, uint8_t* out, Properties* found
) noexcept nogil:
    """
    Write properties as they are stored: in their order, without WAIT unless it ``keeps_wait``, with CLUSTER at the end.

    False for those that are no plain list of different names with values, or that say how the message is to be put:
    with a delay, in a transaction, or (where ``waits``) without waiting.
    """
    cdef Text names[MAX_PIECES]
    cdef Text value
    cdef int count = 0
    cdef Py_ssize_t at = 0, length = 0, name_size
    cdef const uint8_t* name
    found.unique.size = found.keys.size = found.tags.size = -1
    while at < size:
        if not next_property(text, size, &at, names, &count, &value):
            return False
        name, name_size = names[count - 1].at, names[count - 1].size
        if is_name(name, name_size, b"WAIT", 4):
            if waits and not is_name(value.at, value.size, b"true", 4):
                return False
            if not keeps_wait:
                continue
        if (
            is_name(name, name_size, b"CLUSTER", 7)
            or is_name(name, name_size, b"DELAY", 5)
            or is_name(name, name_size, b"TRAN_MSG", 8)
            or (name_size > 9 and memcmp(name, b"TIMER_DEL", 9) == 0)
        ):
            return False
        # A name that ends so would be mistaken for the one that it ends with.
        if name_size > 5 and memcmp(name + name_size - 5, b"DELAY", 5) == 0:
            return False
        if name_size > 8 and memcmp(name + name_size - 8, b"TRAN_MSG", 8) == 0:
            return False
        if length + name_size + value.size + 2 > MAX_PROPERTIES:
            return False
        memcpy(out + length, name, name_size + 1 + value.size)
        length += name_size + 1
        note_property(found, name, name_size, length, value.size)
        length += value.size
        out[length] = 2
        length += 1
    if length + 8 + cluster_size > MAX_PROPERTIES:
        return False
    memcpy(out + length, b"CLUSTER\x01", 8)
    memcpy(out + length + 8, cluster, cluster_size)
    found.size = length + 8 + cluster_size
    return True


cdef struct Edit:
    const uint8_t* name
    Py_ssize_t name_size
    const uint8_t* value
    Py_ssize_t value_size
    # a value that is there stays
    bint keeps
    bint done


cdef inline void set_edit(Edit* edit, const char* name, const uint8_t* value, Py_ssize_t size, bint keeps) noexcept nogil:
    edit.name = <const uint8_t*>name
    edit.name_size = strlen(name)
    edit.value = value
    edit.value_size = size
    edit.keeps = keeps
    edit.done = False


cdef Py_ssize_t add_pair(
    uint8_t* out, Py_ssize_t length, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value,
    Py_ssize_t value_size, Properties* found
) noexcept nogil:
    """Write a property behind ``length`` bytes of others; return their length then, -1 where it is too large."""
    if length + name_size + value_size + 2 > MAX_PROPERTIES:
        return -1
    if length:
        out[length] = 2
        length += 1
    memcpy(out + length, name, name_size)
    length += name_size
    out[length] = 1
    length += 1
    memcpy(out + length, value, value_size)
    note_property(found, name, name_size, length, value_size)
    return length + value_size


cdef bint edit_properties(
    const uint8_t* text, Py_ssize_t size, Edit* edits, int edit_count, uint8_t* out, Properties* found
) noexcept nogil:
    """
    Write properties with other values in the place of those that they have, and new ones at their end.

    False for those that are no plain list of different names with values, or get too long.
    """
    cdef Text names[MAX_PIECES]
    cdef Text value
    cdef int count = 0, i
    cdef Py_ssize_t at = 0, length = 0, name_size
    cdef const uint8_t* name
    found.unique.size = found.keys.size = found.tags.size = -1
    while at < size:
        if not next_property(text, size, &at, names, &count, &value):
            return False
        name, name_size = names[count - 1].at, names[count - 1].size
        for i in range(edit_count):
            if edits[i].name_size == name_size and memcmp(edits[i].name, name, name_size) == 0:
                edits[i].done = True
                if not edits[i].keeps:
                    value.at, value.size = edits[i].value, edits[i].value_size
        length = add_pair(out, length, name, name_size, value.at, value.size, found)
        if length < 0:
            return False
    for i in range(edit_count):
        if not edits[i].done:
            length = add_pair(
                out, length, edits[i].name, edits[i].name_size, edits[i].value, edits[i].value_size, found
            )
            if length < 0:
                return False
    found.size = length
    return True


cdef const uint8_t* find_value(
    const uint8_t* text, Py_ssize_t size, const char* name, Py_ssize_t* value_size
) noexcept nogil:
    """Return where the value of a property begins; NULL where there is none."""
    cdef Py_ssize_t at = 0, stop, name_size = strlen(name)
    cdef const uint8_t* mark
    while at < size:
        mark = <const uint8_t*>memchr(text + at, 2, size - at)
        stop = size if mark == NULL else mark - text
        if stop - at > name_size and text[at + name_size] == 1 and memcmp(text + at, name, name_size) == 0:
            value_size[0] = stop - at - name_size - 1
            return text + at + name_size + 1
        at = stop + 1
    return NULL


cdef bint digits_in(const uint8_t* at, Py_ssize_t size, Py_ssize_t most, int64_t* value) noexcept nogil:
    """Read a number of 1 to ``most`` digits; False for anything else."""
    cdef Py_ssize_t i
    if at == NULL or not 0 < size <= most:
        return False
    value[0] = 0
    for i in range(size):
        if not c'0' <= at[i] <= c'9':
            return False
        value[0] = value[0] * 10 + (at[i] - c'0')
    return True


cdef bint add_properties(
    const uint8_t* text, Py_ssize_t size, const uint8_t* common, Py_ssize_t common_size, uint8_t* out,
    Properties* found
) noexcept nogil:
    """Write the properties of a message of a batch and those of the batch; False for unusual ones."""
    if size + 1 + common_size > MAX_PROPERTIES or memmem(text, size, b"DELAY\x01", 6) != NULL:
        return False
    memcpy(out, text, size)
    if size and out[size - 1] != 2:
        out[size] = 2
        size += 1
    memcpy(out + size, common, common_size)
    found.size = size + common_size
    return find_properties(out, found.size, found)


cdef bint keep_properties(const uint8_t* text, Py_ssize_t size, uint8_t* out, Properties* found) noexcept nogil:
    """Write properties as they are; False for unusual ones."""
    if size > MAX_PROPERTIES:
        return False
    memcpy(out, text, size)
    found.size = size
    return find_properties(out, size, found)


# ---- sends ----

cdef int grow(uint8_t** at, Py_ssize_t* room, Py_ssize_t size) except -1:
    """Have room for ``size`` bytes."""
    cdef uint8_t* grown = <uint8_t*>realloc(at[0], size)
    if grown == NULL:
        raise MemoryError
    at[0] = grown
    room[0] = size
    return 0


cdef inline Py_ssize_t enter_queue(list queues, int64_t* numbers, Py_ssize_t most, bint hides, queue) except -2:
    """
    Return which of the queues of a batch a queue is, from now on if it was not.

    -1 where it would be more than ``most``, or messages are not shown as it grows: see `SendBatch`.
    """
    cdef Py_ssize_t i, count = PyList_GET_SIZE(queues)
    for i in range(count):
        if <object>PyList_GET_ITEM(queues, i) is queue:
            return i
    if count == most:
        return -1
    numbers[count] = queue.next
    if not hides and <int64_t>queue.end != numbers[count]:
        return -1
    queues.append(queue)
    return count


cdef class SendTopic:
    """
    A topic whose messages need nothing but to be stored; made by a send lane, found by the bytes of its name.

    ``queues`` are its consume queues by queue id, None for one that does not exist yet.
    """

    cdef readonly str name
    cdef readonly list queues
    #: stored messages, bytes of their records, answered requests, and ends of transactions since :meth:`take_counts`
    cdef int64_t messages, size, requests, commits, rollbacks
    #: has counts, and is in the list of those that have
    cdef bint is_counted
    cdef bytes field
    cdef uint32_t prefix

    def __init__(self, str name, list queues):
        cdef bytes key = name.encode("ascii")
        self.name = name
        self.queues = queues
        self.field = bytes((len(key),)) + key
        self.prefix = hash_on(0, <const uint8_t*>PyBytes_AS_STRING(key), len(key)) * 31 + 35

    def take_counts(self):
        """Return stored messages, bytes of their records, answered requests, commits and rollbacks since the last call."""
        counts = self.messages, self.size, self.requests, self.commits, self.rollbacks
        self.messages = self.size = self.requests = self.commits = self.rollbacks = 0
        self.is_counted = False
        return counts

    cdef inline int count(self, list counted, int64_t messages, int64_t size) except -1:
        """Count messages of one request."""
        if not self.is_counted:
            self.is_counted = True
            counted.append(self)
        self.messages += messages
        self.size += size
        self.requests += messages > 0
        return 0


cdef class SendBatch:
    """
    The ordinary sends at the front of received bytes: read, made into records, units and keys, and answered.

    It is used again for each chunk: :meth:`parse`, then :meth:`encode`, then what else is wanted. The chunks of several
    connections are stored together with :meth:`begin`, :meth:`add` of each, :meth:`encode` and :meth:`answers_of_each`.
    It changes nothing but itself; of a queue it reads ``next`` and ``end``. With the code of SEND_BATCH_MESSAGE its sends are batches;
    of each all messages are encoded or none. ``around`` is what is before and behind offset message id, queue
    id, queue offset and opaque in the header of an answer; ``cluster`` goes into the properties of each message.
    With ``waits`` a message whose producer does not wait for disk and slaves is no ordinary one; half messages and delayed
    ones are after :meth:`park`. Unless the store ``hides``
    messages until they are on disk, a queue that does not end at its next number is not for the batch.

    Java: SendMessageProcessor#sendMessage, #sendBatchMessage, CommitLog#asyncPutMessage, #asyncPutMessages
    """

    #: messages
    cdef readonly int count
    #: where the frame behind the last send of the batch begins
    cdef readonly Py_ssize_t stop
    #: the topic at which parse() stopped, of which it does not know all; None when it stopped for another reason
    cdef readonly bytes unknown
    #: the topics of half messages and of delayed ones; None where they are not ordinary
    cdef SendTopic half, delayed
    cdef int64_t delays_ms[MAX_DELAYS]
    cdef Py_ssize_t levels
    #: bytes of all records
    cdef readonly Py_ssize_t size
    #: offset and bytes of the last record
    cdef readonly int64_t last_phy, last_size
    cdef int64_t code, max_body
    cdef bint waits, hides
    #: the requests are batches; they are replies, whose messages keep the properties that they came with
    cdef readonly bint is_batch, is_reply
    #: bytes in ``common``, which is added to the properties of the messages of each batch, and its room
    cdef Py_ssize_t common_used, common_room
    cdef bytes cluster, head, middle, offset, tail, tail_end
    #: the received bytes
    cdef list chunks
    #: of each chunk that was added: the number of sends up to its end
    cdef list ends
    cdef uint8_t born_hosts[MAX_BATCH][8]
    cdef Send sends[MAX_BATCH]
    #: (topic, queue) of the sends
    cdef list topics
    #: the queues of the batch, once each, and the number of the next message of each
    cdef list queues
    cdef int64_t numbers[MAX_QUEUES]
    cdef int32_t hashes[MAX_BATCH * 2 + MAX_KEYS]
    cdef int64_t store_ms
    cdef object store_host
    cdef uint8_t store_address[8]
    cdef uint8_t id_prefix[16]
    cdef uint8_t* records
    cdef Py_ssize_t room
    cdef uint8_t* text
    cdef uint8_t* common
    cdef uint8_t* out

    def __cinit__(self):
        self.records = NULL
        self.text = NULL
        self.common = NULL
        self.out = NULL

    def __init__(self, int code, int64_t max_body, str cluster, around, bint waits, bint hides):
        self.code = code
        self.is_batch = code == SEND_BATCH_MESSAGE
        self.is_reply = code == SEND_REPLY_MESSAGE or code == SEND_REPLY_MESSAGE_V2
        self.max_body = max_body
        self.waits = waits
        self.hides = hides
        self.cluster = cluster.encode()
        self.head, self.middle, self.offset, self.tail, self.tail_end = (text.encode() for text in around)
        self.room = MAX_BATCH_BYTES
        self.records = <uint8_t*>malloc(self.room)
        self.text = <uint8_t*>malloc(MAX_HEADER + 16)
        self.common_room = MAX_PROPERTIES + 16
        self.common = <uint8_t*>malloc(self.common_room)
        self.out = <uint8_t*>malloc(MAX_BATCH * (sum(len(text.encode()) for text in around) + ANSWER_ROOM))
        if self.records == NULL or self.text == NULL or self.common == NULL or self.out == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.records)
        free(self.text)
        free(self.common)
        free(self.out)

    def park(self, SendTopic half, SendTopic delayed, tuple delays_ms):
        """
        Have half messages go to queue 0 of ``half``, delayed ones to the queue of their level of ``delayed``.

        None for either leaves them to Python. The first MAX_DELAYS levels are used.
        """
        cdef Py_ssize_t i
        self.begin()  # sends that were read point into the topics
        self.half = half
        self.levels = min(len(delays_ms), MAX_DELAYS)
        self.delayed = delayed if 0 < len(delays_ms) <= MAX_DELAYS else None
        for i in range(self.levels):
            self.delays_ms[i] = delays_ms[i]

    def parse(self, bytes data, Py_ssize_t position, dict known, born_host):
        """
        Read the ordinary sends from ``data[position]`` on, of the topics in ``known`` (name -> SendTopic).

        Returns how many there are. It stops before the first frame that is not whole, is no plain send, is longer than
        a message may be, or goes to a queue that does not exist yet. ``born_host`` is the sender, (4 bytes, port).
        """
        self.begin()
        self.stop = self._take(data, position, known, born_host)
        return self.count

    def begin(self):
        """Forget all sends, for :meth:`add`."""
        self.count = 0
        self.size = 0
        self.common_used = 0
        self.chunks = []
        self.ends = []
        self.unknown = None
        self.topics = []
        self.queues = []

    def add(self, bytes data, dict known, born_host):
        """Read ``data`` as :meth:`parse` does, behind the sends that are there; False, and nothing added, unless it is all read."""
        cdef int count = self.count
        cdef Py_ssize_t size = self.size
        if self._take(data, 0, known, born_host) == PyBytes_GET_SIZE(data):
            self.ends.append(self.count)
            return True
        self.count = count
        self.size = size
        del self.topics[count:]
        return False

    cdef Py_ssize_t _take(self, bytes data, Py_ssize_t position, dict known, born_host) except -1:
        """Add the sends at the front of ``data[position:]``; return where the next frame begins."""
        cdef const uint8_t* chunk = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = position
        cdef Send* send
        cdef SendTopic topic = None
        cdef bytes name
        cdef Py_ssize_t size
        cdef int members = 1, i
        cdef uint8_t* born = self.born_hosts[PyList_GET_SIZE(self.chunks)]
        if PyList_GET_SIZE(self.chunks) == MAX_BATCH - 1 or position < 0 or not put_host(born, born_host):
            return position
        self.chunks.append(data)
        while end - at > 8 and self.count < MAX_BATCH and self.size < MAX_BATCH_BYTES:
            send = &self.sends[self.count]
            if not self._read(chunk + at, end - at, send):
                break
            if topic is None or PyBytes_GET_SIZE(topic.field) != send.topic_size + 1 or memcmp(
                PyBytes_AS_STRING(topic.field) + 1, send.topic, send.topic_size
            ):
                name = PyBytes_FromStringAndSize(<const char*>send.topic, send.topic_size)
                topic = <SendTopic>known.get(name)
                if topic is None:
                    self.unknown = name
                    break
            if not self._enter(send, topic):
                break
            send.stop = send.body + send.body_size - chunk
            send.born_host = born
            send.first = self.count
            send.members = 1
            size = HEAD_BYTES + send.body_size + send.raw_size
            if self.is_batch:
                members = self._read_entries(send)
                if members == 0:
                    break
                size += members * HEAD_BYTES
            at = send.stop
            for i in range(members):
                self.topics.append(topic)
            self.count += members
            self.size += size
        return at

    cdef int _read_entries(self, Send* send) except -1:
        """
        Put the messages of a batch in the place of ``send``, which is the last one; return how many there are.

        0 for a batch that is not plain in each of them, or has more than there is room for.
        """
        cdef Send header = send[0]
        cdef const uint8_t* at = header.body
        cdef const uint8_t* end = at + header.body_size
        cdef int64_t size
        cdef int count = 0
        if header.sys_flag & TRANSACTION or not self._read_common(&header):
            return 0
        header.escaped = False
        while at < end:
            if self.count + count == MAX_BATCH or end - at < BATCH_HEAD + 2:
                return 0
            send = &self.sends[self.count + count]
            send[0] = header
            send.flag = <int32_t>get32(at + 12)
            size = <int32_t>get32(at + 16)
            at += BATCH_HEAD
            if not 0 <= size <= end - at - 2:
                return 0
            send.body = at
            send.body_size = <Py_ssize_t>size
            at += size + 2
            send.raw = at
            send.raw_size = <Py_ssize_t>(at - 2)[0] << 8 | (at - 1)[0]
            if send.raw_size > end - at or not is_utf8(at, send.raw_size):
                return 0
            at += send.raw_size
            count += 1
        self.sends[self.count].members = count
        return count

    cdef bint _read(self, const uint8_t* frame, Py_ssize_t room, Send* send) noexcept nogil:
        """Read the frame of a send; False when it is not whole, not plain or too long."""
        cdef int64_t length
        cdef uint32_t word
        if room <= 8:
            return False
        length = <int32_t>get32(frame)
        word = get32(frame + 4)
        if word > MAX_HEADER or length < 4 + <int64_t>word or length > MAX_FRAME or length > room - 4:
            return False
        send.body = frame + 8 + word
        send.body_size = <Py_ssize_t>length - 4 - <Py_ssize_t>word
        if not read_header(frame + 8, send.body, self.code, send, self.is_batch) or send.body_size > self.max_body:
            return False
        if self.is_reply:
            send.sys_flag = 0
        return not (send.sys_flag & 0x30 or send.sys_flag < 0)

    cdef inline const uint8_t* _properties(self, Send* send, Py_ssize_t* size) noexcept nogil:
        """Return properties without the escapes that they came with; a size of -1 where an escape is not plain."""
        size[0] = unescape(send.raw, send.raw_size, self.text) if send.escaped else send.raw_size
        return <const uint8_t*>self.text if send.escaped else send.raw

    cdef bint _read_common(self, Send* header) except -1:
        """Make what is added to the properties of each message of a batch; False for unusual ones."""
        cdef Properties found
        cdef Py_ssize_t size
        cdef const uint8_t* text = self._properties(header, &size)
        if size < 0:
            return False
        if self.common_room - self.common_used < MAX_PROPERTIES + 16:
            grow(&self.common, &self.common_room, 2 * self.common_room)
        if not store_properties(
            text, size, <const uint8_t*>PyBytes_AS_STRING(self.cluster), PyBytes_GET_SIZE(self.cluster),
            self.waits, True, self.common + self.common_used, &found
        ):
            return False
        header.common_at = self.common_used
        header.common_size = found.size
        self.common_used += found.size
        return True

    cdef bint _enter(self, Send* send, SendTopic topic) except -1:
        """
        Note to which of the batch's queues a send goes.

        False for a queue that does not exist (:attr:`unknown` if that may have changed) or is not shown as it grows.
        """
        if not 0 <= send.queue_id < PyList_GET_SIZE(topic.queues):
            return False
        send.stored_id = send.queue_id
        send.waits = False
        if not self.is_batch and (send.sys_flag & TRANSACTION or self._says_delay(send)):
            topic = self._place_of(send, topic)
            if topic is None or send.stored_id >= PyList_GET_SIZE(topic.queues):
                return False
        send.field = <const uint8_t*>PyBytes_AS_STRING(topic.field)
        send.field_size = PyBytes_GET_SIZE(topic.field)
        send.prefix = topic.prefix
        queue = <object>PyList_GET_ITEM(topic.queues, <Py_ssize_t>send.stored_id)
        if queue is None:
            self.unknown = topic.field[1:]
            return False
        send.queue = enter_queue(self.queues, self.numbers, MAX_QUEUES, self.hides, queue)
        return send.queue >= 0

    cdef inline bint _says_delay(self, Send* send) noexcept:
        return self.delayed is not None and send.raw != NULL and memmem(send.raw, send.raw_size, b"DELAY", 5) != NULL

    cdef SendTopic _place_of(self, Send* send, SendTopic topic):
        """Return the topic that stores a message to ``topic``, where it may have to wait; None for an unusual one."""
        cdef const uint8_t* text
        cdef const uint8_t* delay
        cdef const uint8_t* half
        cdef Py_ssize_t size, delay_size = 0, half_size = 0
        cdef int64_t level = 0
        text = self._properties(send, &size)
        if size < 0:
            return None
        delay = find_value(text, size, b"DELAY", &delay_size)
        half = find_value(text, size, b"TRAN_MSG", &half_size)
        if half != NULL:
            if delay != NULL or half_size != 4 or memcmp(half, b"true", 4) != 0 or self.half is None:
                return None
            if memmem(text, size, b"TIMER_DEL", 9) != NULL:  # what only 5.x's timer keeps, Python refuses
                return None
            send.waits = True
            send.delay_ms = -1
            send.stored_id = 0
            send.sys_flag &= ~TRANSACTION
            return self.half
        if send.sys_flag & TRANSACTION or self.delayed is None:
            return None
        if delay == NULL:
            return topic
        if not digits_in(delay, delay_size, 9, &level) or level == 0:
            return None
        level -= 1
        if level >= self.levels:
            return None
        send.waits = True
        send.delay_ms = self.delays_ms[level]
        send.stored_id = level
        return self.delayed

    cdef bint _park_properties(self, Send* send, SendTopic topic, const uint8_t* text, Py_ssize_t size, uint8_t* out, Properties* found) noexcept:
        """Write the properties of a message that waits: with where it belongs; False for unusual ones."""
        cdef Edit edits[3]
        cdef uint8_t number[24]
        cdef Text wait
        wait.at = find_value(text, size, b"WAIT", &wait.size)
        if self.waits and wait.at != NULL and not is_text(&wait, b"true"):
            return False
        set_edit(&edits[0], b"CLUSTER", <const uint8_t*>PyBytes_AS_STRING(self.cluster), PyBytes_GET_SIZE(self.cluster), False)
        set_edit(&edits[1], b"REAL_TOPIC", <const uint8_t*>PyBytes_AS_STRING(topic.field) + 1, PyBytes_GET_SIZE(topic.field) - 1, False)
        set_edit(&edits[2], b"REAL_QID", number, put_decimal(number, send.queue_id), False)
        return edit_properties(text, size, edits, 3, out, found)

    def encode(self, int64_t phy_offset, int64_t room, int64_t store_ms, store_host):
        """
        Return what stores the batch at ``phy_offset`` of the log: its records, units and keys; None for nothing.

        Messages from the first one on that does not fit into ``room`` bytes, or whose properties are no plain list, are
        dropped, and the rest of their chunk if it was added; of a batch all are. Units are (queue, units, end of the last record) for each queue, keys the index entries of
        all messages, PENDING bytes each.
        """
        cdef uint8_t* record
        cdef const uint8_t* text
        cdef Py_ssize_t text_size, used = 0, size, needed, began = 0
        cdef Send* send
        cdef SendTopic topic
        cdef Properties found
        cdef int i, whole, hashes = 0
        if store_host is not self.store_host and not self._set_host(store_host):
            return None
        self.store_ms = store_ms
        for i in range(self.count):
            send = &self.sends[i]
            topic = <SendTopic>PyList_GET_ITEM(self.topics, i)
            text = self._properties(send, &text_size)
            if text_size < 0:
                break
            size = HEAD_BYTES + send.body_size + send.field_size
            needed = used + size + 2 + MAX_PROPERTIES + 16
            if needed > self.room:
                grow(&self.records, &self.room, needed)
            record = self.records + used
            if self.is_batch:
                if not add_properties(
                    text, text_size, self.common + send.common_at, send.common_size, record + size + 2, &found
                ):
                    break
            elif self.is_reply:
                if not keep_properties(text, text_size, record + size + 2, &found):
                    break
            elif send.waits:
                if not self._park_properties(send, topic, text, text_size, record + size + 2, &found):
                    break
            elif not store_properties(
                text, text_size, <const uint8_t*>PyBytes_AS_STRING(self.cluster), PyBytes_GET_SIZE(self.cluster),
                self.waits, False, record + size + 2, &found
            ):
                break
            text = record + size + 2
            if used + size + 2 + found.size > room:
                break
            if send.first == i:
                began = used
            if self.is_batch and used + size + 2 + found.size - began > self.max_body + MAX_BATCH_OVERHEAD:
                break
            record[size] = <uint8_t>(found.size >> 8)
            record[size + 1] = <uint8_t>found.size
            send.first_hash = hashes
            send.hashes = hash_keys(send.prefix, text, &found, self.hashes + hashes, MAX_BATCH * 2 + MAX_KEYS - hashes)
            if send.hashes < 0 or hashes + send.hashes > MAX_BATCH * 2:
                break
            hashes += send.hashes
            if send.waits and send.delay_ms >= 0:
                send.tags_code = store_ms + send.delay_ms
            else:
                send.tags_code = tags_code_of(text, &found)
            size += 2 + found.size
            send.phy = phy_offset + used
            send.size = size
            send.number = self.numbers[send.queue]
            self.numbers[send.queue] += 1
            put_head(record, send, send.born_host, self.store_address, store_ms)
            memcpy(record + HEAD_BYTES, send.body, send.body_size)
            memcpy(record + HEAD_BYTES + send.body_size, send.field, send.field_size)
            used += size
        else:
            i = self.count
        if i < self.count:
            whole = self.sends[i].first
            if PyList_GET_SIZE(self.ends):
                self.ends = [end for end in self.ends if end <= whole]
                whole = max(self.ends, default=0)
            if whole < i:
                i = whole
                used = <Py_ssize_t>(self.sends[i].phy - phy_offset)
                hashes = self.sends[i].first_hash
        self.size = used
        self.count = i
        if i == 0:
            return None
        self.stop = self.sends[i - 1].stop
        self.last_phy = self.sends[i - 1].phy
        self.last_size = self.sends[i - 1].size
        return PyBytes_FromStringAndSize(<const char*>self.records, used), self._units(), self._keys(hashes)

    cdef bint _set_host(self, host) except -1:
        if not put_host(self.store_address, host):
            return False
        text = f"{host[0].hex().upper()}{host[1]:08X}".encode()
        memcpy(self.id_prefix, PyBytes_AS_STRING(text), 16)
        self.store_host = host
        return True

    cdef list _units(self):
        cdef list found = []
        cdef bytes units
        cdef uint8_t* at
        cdef Send* send
        cdef Py_ssize_t i, j, count
        cdef int64_t end = 0
        for i in range(PyList_GET_SIZE(self.queues)):
            count = 0
            for j in range(self.count):
                count += self.sends[j].queue == i
            if count == 0:
                continue
            units = PyBytes_FromStringAndSize(NULL, count * UNIT)
            at = <uint8_t*>PyBytes_AS_STRING(units)
            for j in range(self.count):
                send = &self.sends[j]
                if send.queue == i:
                    put_unit(at, send.phy, send.size, send.tags_code)
                    at += UNIT
                    end = send.phy + send.size
            found.append((<object>PyList_GET_ITEM(self.queues, i), units, end))
        return found

    cdef bytes _keys(self, Py_ssize_t count):
        cdef int i, j
        cdef bytes entries
        cdef uint8_t* at
        cdef Send* send
        entries = PyBytes_FromStringAndSize(NULL, count * PENDING)
        at = <uint8_t*>PyBytes_AS_STRING(entries)
        for i in range(self.count):
            send = &self.sends[i]
            for j in range(send.hashes):
                at = add_pending(at, self.hashes[send.first_hash + j], send.phy, self.store_ms)
        return entries

    @property
    def requests(self):
        """How many requests the encoded messages answer."""
        return self._requests(0, self.count)

    @property
    def one_way(self):
        """How many of them are one-way."""
        cdef int i = 0, count = 0
        while i < self.count:
            count += self.sends[i].one_way
            i += self.sends[i].members
        return count

    cdef int _requests(self, int first, int end):
        cdef int count = 0
        while first < end:
            first += self.sends[first].members
            count += 1
        return count

    def answers(self, list counted=None):
        """
        Return the frames that answer the encoded messages with SUCCESS.

        With ``counted`` it adds them to the counts of their topics, and topics that had none to that list.
        """
        return self._answers(0, self.count, counted)

    def answers_of_each(self, list counted):
        """Return the frames for each chunk that was added and encoded: those in front of the first that was not."""
        cdef list answers = []
        cdef int begin = 0, end
        for end in self.ends:
            answers.append(self._answers(begin, end, counted))
            begin = end
        return answers

    cdef bytes _answers(self, int first, int end, list counted):
        cdef uint8_t* out = self.out
        cdef uint8_t* begin
        cdef int i, j, stop = first
        cdef int64_t size
        cdef Send* send
        cdef SendTopic topic
        while stop < end:
            i = stop
            send = &self.sends[i]
            stop = i + send.members
            if counted is not None:
                topic = self._stored_in(i)
                size = self.sends[stop - 1].phy + self.sends[stop - 1].size - send.phy
                topic.count(counted, send.members, size)
            if send.one_way:
                continue
            begin = out
            out = add_bytes(out + 8, self.head)
            for j in range(i, stop):
                if j > i:
                    out[0] = c','
                    out += 1
                memcpy(out, self.id_prefix, 16)
                put_hex(out + 16, <uint64_t>self.sends[j].phy)
                out += 32
            out = add_bytes(out, self.middle)
            out += put_decimal(out, send.queue_id)
            out = add_bytes(out, self.offset)
            out += put_decimal(out, send.number)
            out = add_bytes(out, self.tail)
            out += put_decimal(out, send.opaque)
            out = add_bytes(out, self.tail_end)
            put32(begin, <uint32_t>(out - begin - 4))
            put32(begin + 4, <uint32_t>(out - begin - 8))
        return PyBytes_FromStringAndSize(<const char*>self.out, out - self.out)

    cdef inline SendTopic _stored_in(self, int i):
        """Return the topic whose queue has the message: another one until it is due or committed."""
        if not self.sends[i].waits:
            return <SendTopic>PyList_GET_ITEM(self.topics, i)
        return self.half if self.sends[i].delay_ms < 0 else self.delayed

    def counts(self, bint one_way):
        """
        Return (topic, messages, bytes, requests) of each run of encoded messages that were stored in one topic.

        Those of the requests that are one-way, or those of the others.
        """
        cdef list counts = []
        cdef SendTopic topic, last = None
        cdef int i, messages = 0, requests = 0
        cdef int64_t size = 0
        for i in range(self.count):
            if self.sends[i].one_way != one_way:
                continue
            topic = self._stored_in(i)
            if topic is not last and last is not None:
                counts.append((last.name, messages, size, requests))
                messages = requests = 0
                size = 0
            last = topic
            messages += 1
            requests += self.sends[i].first == i
            size += self.sends[i].size
        if last is not None:
            counts.append((last.name, messages, size, requests))
        return counts


# ---- requests about stored messages ----

cdef bint read_texts(
    bytes data, Py_ssize_t position, int64_t code, tuple names, Text* found, Header* header, Text* body,
    bint* last_escaped = NULL
) except -1:
    """
    Read the frame of a request with that code at ``data[position]``, its header written plainly in JSON.

    Writes the value of each field of ``names``, NULL where one is absent, and the body. False when the frame is not whole,
    its values are not all numbers or strings of ASCII without escapes, or a name is there twice. The last of ``names`` may
    have escapes where the caller wants to know that.
    """
    cdef const uint8_t* chunk = <const uint8_t*>PyBytes_AS_STRING(data) + position
    cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - position
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int64_t length
    cdef uint32_t word
    cdef int reached
    cdef Py_ssize_t i
    for i in range(len(names)):
        found[i].at = NULL
    if left <= 8 or position < 0:
        return False
    length = <int32_t>get32(chunk)
    word = get32(chunk + 4)
    if word > MAX_HEADER or length < 4 + <int64_t>word or length > MAX_FRAME or length > left - 4:
        return False
    p = chunk + 8
    end = p + word
    header.seen = 0
    reached = read_members(&p, end, code, header)
    if reached == AT_FIELDS:
        p = _read_fields(p, end, names, found, last_escaped)
        if p == NULL:
            return False
        reached = read_members(&p, end, code, header)
    body.at = end
    body.size = <Py_ssize_t>length - 4 - word
    return reached == AT_END and header.seen & (CODE | OPAQUE) == CODE | OPAQUE


cdef const uint8_t* _read_fields(
    const uint8_t* p, const uint8_t* end, tuple names, Text* found, bint* last_escaped
) noexcept:
    """Read fields behind their opening brace; return what follows the closing one, or NULL."""
    cdef Text key
    cdef const uint8_t* value
    cdef Py_ssize_t size, i
    cdef bint escaped, quoted
    cdef bint is_last = False
    cdef bytes name
    p = skip(p, end)
    if p < end and p[0] == c'}':
        return p + 1
    while not is_last:
        p = read_key(p, end, &key)
        if p == NULL:
            return NULL
        p = read_value(p, end, &value, &size, &quoted, &escaped, NULL)
        if p == NULL:
            return NULL
        for i in range(len(names)):
            name = <bytes>names[i]
            if is_name(key.at, key.size, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
                if found[i].at != NULL:
                    return NULL
                found[i].at = value
                found[i].size = size
                if last_escaped != NULL and i == len(names) - 1:
                    last_escaped[0] = escaped
                    escaped = False
                break
        if escaped:
            return NULL
        p = find_next(p, end, &is_last)
        if p == NULL:
            return NULL
    return p


cdef inline bint is_text(Text* text, const char* other) noexcept nogil:
    return text.at != NULL and is_name(text.at, text.size, other, strlen(other))


cdef inline bint is_boolean(Text* text) noexcept nogil:
    return text.at == NULL or is_text(text, b"false") or is_text(text, b"true") or is_text(text, b"0")


cdef inline bytes bytes_of(const uint8_t* at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*>at, size)


def read_frame(bytes data, Py_ssize_t position, int64_t code):
    """
    Read the frame of a request with that code at ``data[position]``, its header written plainly in JSON.

    Returns (where the body begins, where the frame ends, opaque, version, language). None when the frame is not whole, or
    it is one-way, or its values are not all numbers or
    strings of ASCII.
    """
    cdef Header header
    cdef Text body
    cdef Py_ssize_t begin
    if not read_texts(data, position, code, (), NULL, &header, &body) or header.one_way:
        return None
    begin = body.at - <const uint8_t*>PyBytes_AS_STRING(data)
    language = None if header.language == NULL else bytes_of(header.language, header.language_size)
    return begin, begin + body.size, header.opaque, header.version, language


cdef tuple _BACK_NAMES = (b"group", b"unitMode", b"maxReconsumeTimes", b"delayLevel", b"offset")


def read_send_back(bytes data, Py_ssize_t position):
    """
    Read the request to send a message back at ``data[position]``.

    Returns (where its frame ends, opaque, version, group, maxReconsumeTimes or None, delayLevel, offset); None for one that
    is not plain.
    """
    cdef Header header
    cdef Text body
    cdef Text found[5]
    cdef int64_t most = 0, level = 0, offset = 0
    if not read_texts(data, position, CONSUMER_SEND_MSG_BACK, _BACK_NAMES, found, &header, &body) or header.one_way:
        return None
    if found[0].at == NULL or found[0].size == 0 or not is_boolean(&found[1]):
        return None
    if found[2].at != NULL and not digits_in(found[2].at, found[2].size, 9, &most):
        return None
    if not digits_in(found[3].at, found[3].size, 9, &level) or not digits_in(found[4].at, found[4].size, 18, &offset):
        return None
    return (
        body.at - <const uint8_t*>PyBytes_AS_STRING(data) + body.size,
        header.opaque,
        header.version,
        (<const char*>found[0].at)[:found[0].size].decode("ascii"),
        None if found[2].at == NULL else most,
        level,
        offset,
    )


# ---- replies ----

cdef tuple _REPLY_NAMES = (b"d", b"e", b"f", b"h", b"g", b"a", b"b", b"c", b"j", b"k", b"l", b"m", b"i")
cdef tuple _LONG_REPLY_NAMES = (
    b"defaultTopicQueueNums", b"queueId", b"sysFlag", b"flag", b"bornTimestamp", b"producerGroup", b"topic", b"defaultTopic",
    b"reconsumeTimes", b"unitMode", b"maxReconsumeTimes", b"batch", b"properties",
)


cdef bint read_pushed(const uint8_t* text, Py_ssize_t size, Text* client) noexcept nogil:
    """Find the client that waits for a reply; False unless properties are a plain list, with it, and can be pushed."""
    cdef Text names[MAX_PIECES]
    cdef Text value
    cdef int count = 0
    cdef Py_ssize_t at = 0
    client.at = NULL
    while at < size:
        if not next_property(text, size, &at, names, &count, &value):
            return False
        if is_name(names[count - 1].at, names[count - 1].size, b"REPLY_TO_CLIENT", 15):
            client[0] = value
        elif is_name(names[count - 1].at, names[count - 1].size, b"PUSH_REPLY_TIME", 15):
            return False
    return client.at != NULL and is_plain(client.at, client.size)


def read_reply(bytes data, Py_ssize_t position, int64_t code, int64_t now_ms):
    """
    Read the reply of that code to a client's request at ``data[position]``, which comes ``now_ms``.

    Returns (where its frame ends, where its body begins, the client, topic, queue id, the members of the extFields with which
    it is pushed, up to unitMode); None for one that is not plain.
    """
    cdef Header header
    cdef Text body
    cdef Text client
    cdef Text found[13]
    cdef int64_t most
    cdef int64_t numbers[6]
    cdef bint escaped = False
    cdef tuple names = _LONG_REPLY_NAMES if code == SEND_REPLY_MESSAGE else _REPLY_NAMES
    cdef bytes room
    cdef const uint8_t* text
    cdef Py_ssize_t size, raw_size
    cdef int i
    if not read_texts(data, position, code, names, found, &header, &body, &escaped) or header.one_way:
        return None
    for i in range(13):
        # reconsumeTimes to batch may be absent; the group, the topics and the properties must be strings
        if found[i].at == NULL:
            if not 8 <= i <= 11:
                return None
        elif found[i].at[-1] != c'"' and (i == 12 or 5 <= i <= 7):
            return None
    for i in range(5):
        if not digits_in(found[i].at, found[i].size, 18 if i == 4 else 9, &numbers[i]):
            return None
    if found[8].at != NULL and not digits_in(found[8].at, found[8].size, 9, &numbers[5]) or not is_boolean(&found[9]):
        return None
    # neither is pushed, and a reply with another value is refused
    if found[10].at != NULL and not digits_in(found[10].at, found[10].size, 9, &most) or not is_boolean(&found[11]):
        return None
    text = found[12].at
    size = raw_size = found[12].size
    if escaped:
        room = PyBytes_FromStringAndSize(NULL, raw_size + 1)
        size = unescape(text, raw_size, <uint8_t*>PyBytes_AS_STRING(room))
        text = <const uint8_t*>PyBytes_AS_STRING(room)
    if size < 1 or not read_pushed(text, size, &client):
        return None
    if text[size - 1] == 2:
        # a last separator, which is written as \u0002, is not pushed
        if not escaped or raw_size < 6 or memcmp(found[12].at + raw_size - 6, b"\\u0002", 6) != 0:
            return None
        raw_size -= 6
    return (
        body.at - <const uint8_t*>PyBytes_AS_STRING(data) + body.size,
        body.at - <const uint8_t*>PyBytes_AS_STRING(data),
        bytes_of(client.at, client.size).decode("ascii"),
        bytes_of(found[6].at, found[6].size),
        numbers[1],
        b'"producerGroup":"%b","topic":"%b","defaultTopic":"%b","defaultTopicQueueNums":"%d","queueId":"%d","sysFlag":"%d",'
        b'"bornTimestamp":"%d","flag":"%d","properties":"PUSH_REPLY_TIME\\u0001%d\\u0002%b",%b"unitMode":"%b"' % (
            bytes_of(found[5].at, found[5].size), bytes_of(found[6].at, found[6].size), bytes_of(found[7].at, found[7].size),
            numbers[0], numbers[1], numbers[2], numbers[4], numbers[3], now_ms, bytes_of(found[12].at, raw_size),
            b"" if found[8].at == NULL else b'"reconsumeTimes":"%d",' % numbers[5],
            b"true" if is_text(&found[9], b"true") else b"false",
        ),
    )


# ---- messages that are made from stored ones ----

cdef struct Stored:
    const uint8_t* record
    # up to the body
    Py_ssize_t head
    Py_ssize_t size, body_size, topic_size, text_size
    const uint8_t* topic
    const uint8_t* text


cdef inline bint find_parts(const uint8_t* record, Py_ssize_t left, Stored* found) noexcept nogil:
    """Find the parts of the record that begins there; False unless it is whole, its topic and properties plain text."""
    cdef int64_t size, head = HEAD_BYTES, body_size
    cdef uint32_t sys_flag
    if left < MIN_RECORD_BYTES:
        return False
    size = <int32_t>get32(record)
    if size < MIN_RECORD_BYTES or size > left or <int32_t>get32(record + MAGIC_CODE_AT) != MAGIC_V1:
        return False
    sys_flag = get32(record + SYS_FLAG_AT)
    if sys_flag & BORN_HOST_V6:
        head += IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_V6:
        head += IPV6_EXTRA_BYTES
    if head + 4 > size:
        return False
    body_size = <int32_t>get32(record + head - 4)
    if body_size < 0 or head + body_size + 3 > size:
        return False
    found.record = record
    found.size = <Py_ssize_t>size
    found.head = <Py_ssize_t>head
    found.body_size = <Py_ssize_t>body_size
    found.topic = record + head + body_size
    found.topic_size = found.topic[0]
    found.topic += 1
    if found.topic_size < 1 or found.topic_size > 127 or head + body_size + 1 + found.topic_size + 2 > size:
        return False
    found.text = found.topic + found.topic_size + 2
    found.text_size = (<Py_ssize_t>(found.text - 2)[0]) << 8 | (found.text - 1)[0]
    if found.text_size > MAX_PROPERTIES or found.text + found.text_size != record + size:
        return False
    return is_plain(found.topic, found.topic_size) and is_utf8(found.text, found.text_size)


cdef inline bint is_intact(Stored* found) noexcept:
    """Compare the body with its CRC."""
    return found.body_size == 0 or body_crc(found.record + found.head, found.body_size) == get32(found.record + BODY_CRC_AT)


cdef bint read_record(const uint8_t* record, Py_ssize_t left, int64_t phy_offset, Stored* found) noexcept:
    """Read the record that lies at ``phy_offset`` of the log; False unless it is whole, of plain text and of IPv4."""
    if not find_parts(record, left, found) or found.head != HEAD_BYTES:
        return False
    return <int64_t>get64(record + PHYSICAL_OFFSET_AT) == phy_offset and is_intact(found)


cdef enum:
    COMMIT = 1
    OP = 2
    RETRY = 3


cdef struct Move:
    int kind
    # the stored record, in ``stored``
    Py_ssize_t at, size
    # which of the batch's queues the new one goes to
    Py_ssize_t queue
    int64_t phy_offset, reconsume, level, delay_ms
    # of the new one
    int64_t phy, new_size, number, tags_code


cdef tuple _END_NAMES = (
    b"producerGroup", b"msgId", b"fromTransactionCheck", b"commitOrRollback", b"tranStateTableOffset", b"commitLogOffset"
)


cdef class MoveBatch:
    """
    New messages that requests make from stored ones: ends of transactions (37) and retries of consumers (36).

    It is used again and again: :meth:`begin`, then :meth:`end` or :meth:`back` for each request, :meth:`encode` by
    `rmq.store.store.MessageStore.append_many`, then :meth:`answers`. It changes nothing but itself; of a queue it reads
    ``next`` and ``end``. Those requests at the front are encoded that find room, of each all messages or none.
    ``around`` is what stands around the opaque in the header of an answer, ``store_host`` that of op messages;
    ``draw(queues)`` draws the queue of a retry. With ``waits`` the answer to an end waits for disk or slaves, and one whose
    answer would not wait is unusual. ``hides``: see `SendBatch`.

    Java: EndTransactionProcessor, TransactionalMessageBridge, AbstractSendMessageProcessor#consumerSendMsgBack
    """

    #: requests
    cdef readonly int count
    #: offset and bytes of the last record
    cdef readonly int64_t last_phy, last_size
    #: the topic that :meth:`end` does not know all of; None when it refused for another reason
    cdef readonly bytes unknown
    cdef bytes half_topic, op_text, head, tail
    cdef object store_host, draw
    cdef bint waits, hides
    cdef int moves_count
    cdef Move moves[MAX_MOVES]
    # of each request: its opaque, whether it is one-way and waits, and the number of moves up to its end
    cdef int64_t opaques[MAX_MOVES]
    cdef bint one_way[MAX_MOVES]
    cdef bint is_waiting[MAX_MOVES]
    cdef int ends[MAX_MOVES]
    # of a commit the SendTopic, of a rollback too; of a retry (topic of the group, its queues)
    cdef list targets
    cdef list queues
    cdef int64_t numbers[MAX_MOVES]
    cdef uint8_t* stored
    cdef Py_ssize_t stored_size, stored_room
    cdef uint8_t* records
    cdef Py_ssize_t room
    cdef uint8_t* keys
    cdef Py_ssize_t keys_size
    cdef uint8_t* text

    def __cinit__(self):
        self.stored = NULL
        self.text = NULL
        self.records = NULL
        self.keys = NULL

    def __init__(self, str half_topic, bytes op_text, around, store_host, draw, bint waits, bint hides):
        self.half_topic = half_topic.encode("ascii")
        self.op_text = op_text
        self.head, self.tail = around
        self.store_host = store_host
        self.draw = draw
        self.waits = waits
        self.hides = hides
        self.keys = <uint8_t*>malloc(MAX_MOVES * MAX_KEYS * PENDING)
        self.text = <uint8_t*>malloc(MAX_PROPERTIES + 16)
        if self.keys == NULL or self.text == NULL:
            raise MemoryError
        self.begin()

    def __dealloc__(self):
        free(self.stored)
        free(self.records)
        free(self.keys)
        free(self.text)

    def begin(self):
        """Forget all requests."""
        self.count = self.moves_count = 0
        self.stored_size = 0
        self.targets = []
        self.queues = []
        self.unknown = None

    def end(self, bytes data, Py_ssize_t position, read, dict known, op_queue):
        """
        Add what the request at ``data[position]`` makes of a half message; return where it ends, 0 for an unusual one.

        ``read(offset)`` returns the bytes at an offset of the log, at least the record there, or None; ``known`` has the
        SendTopic of each topic by name. A commit needs two queues, a rollback the queue of op messages.
        """
        cdef Header header
        cdef Text body
        cdef Text found[6]
        cdef Text group, name
        cdef Properties plain
        cdef Stored half
        cdef int64_t end = 0, table_offset = 0, phy_offset = 0, queue_id = 0
        cdef SendTopic topic
        cdef Py_ssize_t target = 0, op
        cdef bint waits = False
        cdef bytes key
        self.unknown = None
        if not read_texts(data, position, END_TRANSACTION, _END_NAMES, found, &header, &body):
            return 0
        if found[0].at == NULL or found[1].at == NULL or not is_boolean(&found[2]):
            return 0
        if not digits_in(found[3].at, found[3].size, 9, &end) or end not in (COMMITTED, ROLLED_BACK):
            return 0
        if not digits_in(found[4].at, found[4].size, 18, &table_offset):
            return 0
        if not digits_in(found[5].at, found[5].size, 18, &phy_offset) or not self._keep(read(phy_offset), phy_offset, &half):
            return 0
        if not is_name(half.topic, half.topic_size, PyBytes_AS_STRING(self.half_topic), PyBytes_GET_SIZE(self.half_topic)):
            return 0
        if get32(half.record + QUEUE_ID_AT) != 0 or <int64_t>get64(half.record + QUEUE_OFFSET_AT) != table_offset:
            return 0
        group.at = find_value(half.text, half.text_size, b"PGROUP", &group.size)
        name.at = find_value(half.text, half.text_size, b"REAL_TOPIC", &name.size)
        if group.at == NULL or name.at == NULL or group.size != found[0].size or not is_plain(name.at, name.size):
            return 0
        if not edit_properties(half.text, half.text_size, NULL, 0, self.text, &plain):
            return 0
        if memcmp(group.at, found[0].at, group.size) != 0:
            return 0
        key = bytes_of(name.at, name.size)
        topic = <SendTopic>known.get(key)
        if topic is None:
            self.unknown = key
            return 0
        op = self._enter(op_queue)
        if op < 0 or self.moves_count + 2 > MAX_MOVES:
            return 0
        if self.waits:
            name.at = find_value(half.text, half.text_size, b"WAIT", &name.size)
            waits = end == COMMITTED and (name.at == NULL or is_text(&name, b"true"))
            if not waits and not header.one_way:
                return 0
            if name.at != NULL and not is_text(&name, b"true") and not is_text(&name, b"false"):
                return 0
        if end == COMMITTED:
            name.at = find_value(half.text, half.text_size, b"REAL_QID", &name.size)
            if not digits_in(name.at, name.size, 9, &queue_id) or queue_id >= PyList_GET_SIZE(topic.queues):
                return 0
            # a separator at their end would be lost
            if find_value(half.text, half.text_size, b"DELAY", &name.size) != NULL or half.text[half.text_size - 1] == 2:
                return 0
            queue = <object>PyList_GET_ITEM(topic.queues, <Py_ssize_t>queue_id)
            if queue is None:
                self.unknown = key
                return 0
            target = self._enter(queue)
            if target < 0 or target == op:
                return 0
            self._add(COMMIT, &half, target, phy_offset)
        self._add(OP, &half, op, phy_offset)
        self._request(header.opaque, header.one_way, waits, topic)
        return body.at - <const uint8_t*>PyBytes_AS_STRING(data) + body.size

    def back(
        self, int64_t opaque, data, int64_t phy_offset, int64_t most, int64_t level, SendTopic schedule not None,
        tuple delays_ms not None, bytes retry_topic not None, Py_ssize_t queues
    ):
        """
        Add the retry of the message at ``phy_offset`` of the log, ``data`` from there on; None for an unusual one.

        Returns the topic that consumers know it by.

        It goes to the queue of its delay level of ``schedule``, and later to one of the ``queues`` of ``retry_topic``.
        """
        cdef Stored record
        cdef Text topic
        cdef Move* move
        cdef int64_t times, number
        cdef Py_ssize_t target
        self.unknown = None
        if self.moves_count == MAX_MOVES or not self._keep(data, phy_offset, &record):
            return None
        times = <int32_t>get32(record.record + RECONSUME_TIMES_AT)
        if not 0 <= times < most or get32(record.record + SYS_FLAG_AT) & TRANSACTION not in (0, COMMITTED):
            return None
        if level == 0:
            level = SCHEDULED_RETRY + times
        number = min(level, <int64_t>len(delays_ms)) - 1
        if not 0 <= number < PyList_GET_SIZE(schedule.queues):
            return None
        queue = <object>PyList_GET_ITEM(schedule.queues, <Py_ssize_t>number)
        if queue is None:
            self.unknown = schedule.field[1:]
            return None
        target = self._enter(queue)
        if target < 0:
            return None
        topic.at = find_value(record.text, record.text_size, b"RETRY_TOPIC", &topic.size)
        if topic.at == NULL:
            topic.at = record.topic
            topic.size = record.topic_size
        move = self._add(RETRY, &record, target, phy_offset)
        move.reconsume = times + 1
        move.level = number + 1
        move.delay_ms = delays_ms[number]
        self._request(opaque, False, False, (retry_topic, queues))
        return (<const char*>topic.at)[:topic.size].decode()

    def drop(self):
        """Forget the last request, if there is one."""
        if self.count == 0:
            return
        self.count -= 1
        self.moves_count = self.ends[self.count - 1] if self.count else 0
        self.targets.pop()

    cdef bint _keep(self, data, int64_t phy_offset, Stored* found) except -1:
        """Keep a copy of the record at the begin of ``data``; False for none, or one that is not plain."""
        cdef Py_buffer view
        cdef Py_ssize_t needed
        cdef uint8_t* grown
        if data is None:
            return False
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not read_record(<const uint8_t*>view.buf, view.len, phy_offset, found):
                return False
            needed = self.stored_size + found.size
            if needed > self.stored_room:
                grow(&self.stored, &self.stored_room, needed * 2)
            grown = self.stored + self.stored_size
            memcpy(grown, found.record, found.size)
            found.topic += grown - found.record
            found.text += grown - found.record
            found.record = grown
        finally:
            PyBuffer_Release(&view)
        return True

    cdef Py_ssize_t _enter(self, queue) except -2:
        """See `enter_queue`; -1 for none, too."""
        return -1 if queue is None else enter_queue(self.queues, self.numbers, MAX_MOVES, self.hides, queue)

    cdef Move* _add(self, int kind, Stored* record, Py_ssize_t queue, int64_t phy_offset) noexcept:
        cdef Move* move = &self.moves[self.moves_count]
        self.moves_count += 1
        self.stored_size = record.record + record.size - self.stored
        move.kind = kind
        move.at = record.record - self.stored
        move.size = record.size
        move.queue = queue
        move.phy_offset = phy_offset
        return move

    cdef int _request(self, int64_t opaque, bint one_way, bint waits, target) except -1:
        self.opaques[self.count] = opaque
        self.one_way[self.count] = one_way
        self.is_waiting[self.count] = waits
        self.ends[self.count] = self.moves_count
        self.targets.append(target)
        self.count += 1
        return 0

    def encode(self, int64_t phy_offset, int64_t room, int64_t store_ms, store_host):
        """See `SendBatch.encode`."""
        cdef Py_ssize_t used = 0, keys = 0
        cdef int request, i = 0, whole = 0
        cdef Py_ssize_t size
        self.keys_size = 0
        for request in range(self.count):
            for i in range(whole, self.ends[request]):
                size = self._make(&self.moves[i], <object>PyList_GET_ITEM(self.targets, request), phy_offset, used, room, store_ms)
                if size < 0:
                    break
                used += size
            else:
                whole = self.ends[request]
                keys = self.keys_size
                continue
            self.count = request
            break
        self.moves_count = whole
        self.keys_size = keys
        if whole == 0:
            return None
        self.last_phy = self.moves[whole - 1].phy
        self.last_size = self.moves[whole - 1].new_size
        used = <Py_ssize_t>(self.last_phy + self.last_size - phy_offset)
        return bytes_of(self.records, used), self._units(), bytes_of(self.keys, keys)

    cdef Py_ssize_t _make(
        self, Move* move, target, int64_t phy_offset, Py_ssize_t used, int64_t room, int64_t store_ms
    ) except -2:
        """Write one record, its unit and its keys; return its bytes, -1 for one that does not fit or is not plain."""
        cdef Stored stored
        cdef bytes field = (<object>PyList_GET_ITEM(self.queues, move.queue)).topic_field
        cdef uint8_t* out
        cdef uint8_t* text
        cdef Properties found
        cdef Edit edits[MAX_EDITS]
        cdef uint8_t level[24]
        cdef uint8_t drawn[24]
        cdef uint8_t origin[32]
        cdef int32_t hashes[MAX_KEYS]
        cdef int edit_count = 0, hash_count, i
        cdef Py_ssize_t size, body_size, needed, drawn_size = 1
        cdef uint32_t prefix
        cdef bytes name
        stored.record = self.stored + move.at
        stored.size = move.size
        stored.body_size = <Py_ssize_t>get32(stored.record + BODY_LENGTH_AT)
        stored.topic = stored.record + HEAD_BYTES + stored.body_size + 1
        stored.topic_size = (stored.topic - 1)[0]
        stored.text = stored.topic + stored.topic_size + 2
        stored.text_size = stored.record + stored.size - stored.text
        needed = used + HEAD_BYTES + stored.body_size + 24 + PyBytes_GET_SIZE(field) + 2 + MAX_PROPERTIES + 16
        if needed > self.room:
            grow(&self.records, &self.room, needed * 2)
        out = self.records + used
        if move.kind == OP:
            body_size = self._op_head(out, &stored, store_ms)
        else:
            body_size = stored.body_size
            memcpy(out, stored.record, HEAD_BYTES + body_size)
        memcpy(out + HEAD_BYTES + body_size, PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field))
        text = out + HEAD_BYTES + body_size + PyBytes_GET_SIZE(field) + 2
        if move.kind == OP:
            stored.text = <const uint8_t*>PyBytes_AS_STRING(self.op_text)
            stored.text_size = PyBytes_GET_SIZE(self.op_text)
        elif move.kind == RETRY:
            name = (<tuple>target)[0]
            drawn[0] = c'0'
            put_id(origin, stored.record + STORE_HOST_AT, <uint64_t>move.phy_offset)
            set_edit(&edits[0], b"RETRY_TOPIC", stored.topic, stored.topic_size, True)
            set_edit(&edits[1], b"ORIGIN_MESSAGE_ID", origin, 32, True)
            set_edit(&edits[2], b"WAIT", b"false", 5, False)
            set_edit(&edits[3], b"DELAY", level, put_decimal(level, move.level), False)
            set_edit(&edits[4], b"REAL_TOPIC", <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), False)
            set_edit(&edits[5], b"REAL_QID", drawn, 1, False)
            edit_count = 6
        if not edit_properties(stored.text, stored.text_size, edits, edit_count, text, &found):
            return -1
        size = text - out + found.size
        if used + size + DRAWN_BYTES > room or found.size > MAX_PROPERTIES - DRAWN_BYTES:
            return -1
        prefix = hash_on(0, <const uint8_t*>PyBytes_AS_STRING(field) + 1, PyBytes_GET_SIZE(field) - 1) * 31 + 35
        hash_count = hash_keys(prefix, text, &found, hashes, MAX_KEYS)
        if hash_count < 0:
            return -1
        if move.kind == RETRY:
            # nothing but the disk can refuse the message now
            drawn_size = put_decimal(drawn, self.draw((<tuple>target)[1]))
            if drawn_size > 1 or drawn[0] != c'0':
                edits[5].value_size = drawn_size
                for i in range(edit_count):
                    edits[i].done = False
                edit_properties(stored.text, stored.text_size, edits, edit_count, text, &found)
                size = text - out + found.size
            put32(out + RECONSUME_TIMES_AT, <uint32_t>move.reconsume)
            put64(out + PREPARED_TRANSACTION_OFFSET_AT, 0)
        elif move.kind == COMMIT:
            put32(out + SYS_FLAG_AT, get32(out + SYS_FLAG_AT) & ~<uint32_t>TRANSACTION | COMMITTED)
            put64(out + PREPARED_TRANSACTION_OFFSET_AT, <uint64_t>move.phy_offset)
        (text - 2)[0] = <uint8_t>(found.size >> 8)
        (text - 1)[0] = <uint8_t>found.size
        move.phy = phy_offset + used
        move.new_size = size
        move.number = self.numbers[move.queue]
        self.numbers[move.queue] += 1
        put32(out + TOTAL_SIZE_AT, <uint32_t>size)
        put32(out + QUEUE_ID_AT, <uint32_t><int64_t>(<object>PyList_GET_ITEM(self.queues, move.queue)).queue_id)
        put64(out + QUEUE_OFFSET_AT, <uint64_t>move.number)
        put64(out + PHYSICAL_OFFSET_AT, <uint64_t>move.phy)
        put64(out + STORE_TIMESTAMP_AT, <uint64_t>store_ms)
        move.tags_code = store_ms + move.delay_ms if move.kind == RETRY else tags_code_of(text, &found)
        for i in range(hash_count):
            add_pending(self.keys + self.keys_size, hashes[i], move.phy, store_ms)
            self.keys_size += PENDING
        return size

    cdef Py_ssize_t _op_head(self, uint8_t* out, Stored* half, int64_t now) except -1:
        """Write an op message up to its body, the queue offset of the half message; return the body's length."""
        cdef Py_ssize_t body_size = put_decimal(out + HEAD_BYTES, <int64_t>get64(half.record + QUEUE_OFFSET_AT))
        memset(out, 0, HEAD_BYTES)
        put_host(out + STORE_HOST_AT, self.store_host)
        memcpy(out + BORN_HOST_AT, out + STORE_HOST_AT, 8)
        put32(out + MAGIC_CODE_AT, <uint32_t>MAGIC_V1)
        put32(out + BODY_CRC_AT, body_crc(out + HEAD_BYTES, body_size))
        put64(out + BORN_TIMESTAMP_AT, <uint64_t>now)
        put32(out + BODY_LENGTH_AT, <uint32_t>body_size)
        return body_size

    @property
    def waiting(self):
        """How many encoded requests are done only when disk and slaves have what they made: commits, one-way ones too."""
        cdef int request, count = 0
        for request in range(self.count):
            count += self.is_waiting[request]
        return count

    cdef list _units(self):
        cdef list found = []
        cdef Py_ssize_t queue
        cdef bytearray units
        cdef uint8_t unit[UNIT]
        cdef int i
        cdef int64_t end
        for queue in range(PyList_GET_SIZE(self.queues)):
            units = bytearray()
            end = 0
            for i in range(self.moves_count):
                if self.moves[i].queue == queue:
                    put_unit(unit, self.moves[i].phy, self.moves[i].new_size, self.moves[i].tags_code)
                    units += bytes_of(unit, UNIT)
                    end = self.moves[i].phy + self.moves[i].new_size
            if units:
                found.append((<object>PyList_GET_ITEM(self.queues, queue), bytes(units), end))
        return found

    def answers(self, list counted):
        """
        Return the frame that answers each encoded request with SUCCESS, b"" for a one-way one; count ends of transactions.

        Topics that had no counts are added to ``counted``. Those that wait are left to :meth:`counts`.
        """
        cdef list answers = []
        cdef int request, first = 0
        cdef SendTopic topic
        for request in range(self.count):
            answers.append(b"" if self.one_way[request] else self._answer(self.opaques[request]))
            if self.is_waiting[request]:
                pass
            elif self.moves[first].kind == COMMIT:
                topic = <SendTopic>PyList_GET_ITEM(self.targets, request)
                topic.count(counted, 1, self.moves[first].new_size)
                topic.commits += 1
            elif self.moves[first].kind == OP:
                topic = <SendTopic>PyList_GET_ITEM(self.targets, request)
                topic.count(counted, 0, 0)
                topic.rollbacks += 1
            first = self.ends[request]
        return answers

    def counts(self):
        """Return (topic, messages, bytes, requests) of each encoded request that waits, see :attr:`waiting`."""
        cdef list counts = []
        cdef int request, first = 0
        for request in range(self.count):
            if self.is_waiting[request]:
                counts.append(((<SendTopic>PyList_GET_ITEM(self.targets, request)).name, 1, self.moves[first].new_size, 1))
            first = self.ends[request]
        return counts

    cdef bytes _answer(self, int64_t opaque):
        cdef uint8_t number[24]
        cdef Py_ssize_t digits = put_decimal(number, opaque)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.head) + digits + PyBytes_GET_SIZE(self.tail)
        cdef bytes answer = PyBytes_FromStringAndSize(NULL, 8 + size)
        cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(answer)
        put32(out, <uint32_t>(4 + size))
        put32(out + 4, <uint32_t>size)
        out = add_bytes(out + 8, self.head)
        memcpy(out, number, digits)
        add_bytes(out + digits, self.tail)
        return answer


cdef void put_id(uint8_t* at, const uint8_t* host, uint64_t phy_offset) noexcept nogil:
    """Write an offset message id, of 32 hex digits."""
    put_hex(at, get64(host))
    put_hex(at + 16, phy_offset)


cdef inline bint put_host(uint8_t* at, host) except -1:
    """Write a host as a record has it; False for one that is not IPv4."""
    cdef bytes address = host[0]
    if PyBytes_GET_SIZE(address) != 4:
        return False
    memcpy(at, PyBytes_AS_STRING(address), 4)
    put32(at + 4, <uint32_t><int64_t>host[1])
    return True


cdef inline void put_head(
    uint8_t* record, Send* send, const uint8_t* born, const uint8_t* stored, int64_t store_ms
) noexcept:
    """Write what stands in front of the body."""
    put32(record + TOTAL_SIZE_AT, <uint32_t>send.size)
    put32(record + MAGIC_CODE_AT, <uint32_t>MAGIC_V1)
    put32(record + BODY_CRC_AT, body_crc(send.body, send.body_size))
    put32(record + QUEUE_ID_AT, <uint32_t>send.stored_id)
    put32(record + FLAG_AT, <uint32_t>send.flag)
    put64(record + QUEUE_OFFSET_AT, <uint64_t>send.number)
    put64(record + PHYSICAL_OFFSET_AT, <uint64_t>send.phy)
    put32(record + SYS_FLAG_AT, <uint32_t>send.sys_flag)
    put64(record + BORN_TIMESTAMP_AT, <uint64_t>send.born)
    memcpy(record + BORN_HOST_AT, born, 8)
    put64(record + STORE_TIMESTAMP_AT, <uint64_t>store_ms)
    memcpy(record + STORE_HOST_AT, stored, 8)
    put32(record + RECONSUME_TIMES_AT, <uint32_t>send.reconsume)
    put64(record + PREPARED_TRANSACTION_OFFSET_AT, 0)
    put32(record + BODY_LENGTH_AT, <uint32_t>send.body_size)


cdef int hash_keys(
    uint32_t prefix, const uint8_t* text, Properties* found, int32_t* hashes, int room
) noexcept nogil:
    """Write the index hashes of a message's unique key and keys; return how many, -1 when there are too many."""
    cdef int count = 0
    cdef const uint8_t* key
    cdef const uint8_t* stop
    cdef const uint8_t* end
    if found.unique.size > 0:
        if room < 1:
            return -1
        hashes[0] = index_hash(hash_on(prefix, text + found.unique.at, found.unique.size))
        count = 1
    if found.keys.size > 0:
        key = text + found.keys.at
        end = key + found.keys.size
        while key < end:
            stop = <const uint8_t*>memchr(key, c' ', end - key)
            if stop == NULL:
                stop = end
            if stop > key:
                if count == room:
                    return -1
                hashes[count] = index_hash(hash_on(prefix, key, stop - key))
                count += 1
            key = stop + 1
    return count


cdef inline int64_t tags_code_of(const uint8_t* text, Properties* found) noexcept nogil:
    return <int32_t>hash_on(0, text + found.tags.at, found.tags.size) if found.tags.size > 0 else 0


cdef inline uint8_t* add_bytes(uint8_t* out, bytes data) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    memcpy(out, PyBytes_AS_STRING(data), size)
    return out + size


cdef inline void put_hex(uint8_t* at, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(15, -1, -1):
        at[i] = b"0123456789ABCDEF"[value & 15]
        value >>= 4


# ---- the index ----

cdef inline uint8_t* add_pending(uint8_t* at, int32_t key_hash, int64_t phy, int64_t store_ms) noexcept nogil:
    memcpy(at, &key_hash, 4)
    memcpy(at + 4, &phy, 8)
    memcpy(at + 12, &store_ms, 8)
    return at + PENDING


def add_entries(file, const uint8_t[::1] pending, Py_ssize_t first):
    """
    Add entries from number ``first`` of ``pending`` on to an index file until it is full; return behind which one.

    Those of messages before the end of the file are in it already.
    """
    cdef Py_ssize_t number = first, count = pending.shape[0] // PENDING
    cdef const uint8_t* data = &pending[0]
    cdef const uint8_t* entry
    header = file.header
    cdef array slots = file.table
    cdef int32_t* table
    cdef int64_t slot_count = file.slots, limit = file.entries, at = header.index_count
    cdef int64_t begin_phy = header.begin_phy_offset, begin_ms = header.begin_timestamp
    cdef int64_t end_phy = header.end_phy_offset, end_ms = header.end_timestamp
    cdef int64_t used = header.hash_slot_count, phy = 0, store_ms = 0, seconds, page, last_page = -1
    cdef int32_t key_hash = 0, before
    cdef bytearray entries = file.buffered
    cdef set dirty = file.dirty_pages
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(entries), most = count - first
    cdef uint8_t* out
    if slots is None or slot_count < 1 or slot_count != len(slots) or not 0 <= first <= count:
        raise ValueError("an index file that is not loaded, or no such entry")
    table = <int32_t*>slots.data.as_ints
    if most > limit - at:
        most = <Py_ssize_t>(limit - at) if limit > at else 0
    PyByteArray_Resize(entries, size + most * ENTRY)
    out = <uint8_t*>PyByteArray_AS_STRING(entries) + size
    while number < count and at < limit:
        entry = data + number * PENDING
        memcpy(&key_hash, entry, 4)
        memcpy(&phy, entry + 4, 8)
        memcpy(&store_ms, entry + 12, 8)
        number += 1
        if phy < end_phy:
            continue
        slot = key_hash % slot_count
        before = table[slot]
        if at <= 1:
            begin_phy = phy
            begin_ms = store_ms
        seconds = 0
        if 0 < begin_ms < store_ms:
            seconds = (store_ms - begin_ms) // 1000
        if seconds > 2147483647:
            seconds = 2147483647
        put32(out, <uint32_t>key_hash)
        put64(out + 4, <uint64_t>phy)
        put32(out + 12, <uint32_t>seconds)
        put32(out + 16, <uint32_t>before)
        out += ENTRY
        table[slot] = <int32_t>at
        page = (slot + 10) // 1024   # the header takes the room of 10 slots
        if page != last_page:
            dirty.add(page)
            last_page = page
        if before == 0:
            used += 1
        at += 1
        end_phy = phy
        end_ms = store_ms
    PyByteArray_Resize(entries, out - <uint8_t*>PyByteArray_AS_STRING(entries))
    header.begin_phy_offset = begin_phy
    header.begin_timestamp = begin_ms
    header.end_phy_offset = end_phy
    header.end_timestamp = end_ms
    header.hash_slot_count = used
    header.index_count = at
    return number


# ---- from the log to queues and index ----

cdef class _Queue:
    """A queue to which records of one piece of the log are added, and the units for it."""

    cdef object queue
    cdef bytearray units
    cdef int64_t end, max_phy
    cdef uint32_t prefix


cdef bint find_properties(const uint8_t* text, Py_ssize_t size, Properties* found) noexcept nogil:
    """Find the last property of each name; False where one has no value: only Python can tell."""
    cdef Py_ssize_t at = 0, stop, length
    cdef const uint8_t* mark
    cdef const uint8_t* piece
    found.unique.size = found.keys.size = found.tags.size = -1
    while at < size:
        mark = <const uint8_t*>memchr(text + at, 2, size - at)
        stop = size if mark == NULL else mark - text
        piece = text + at
        length = stop - at
        if length >= 5 and piece[4] == 1:
            note_property(found, piece, 4, at + 5, length - 5)
        elif length >= 9 and piece[8] == 1:
            note_property(found, piece, 8, at + 9, length - 9)
        at = stop + 1
    return found.unique.size != 0 and found.keys.size != 0 and found.tags.size != 0


cdef _Queue _find(dict known, const uint8_t* name, Py_ssize_t size, int64_t queue_id, queue_for):
    """Return the queue of a topic with that name if it can be added to; None for any other."""
    cdef uint8_t place[132]
    cdef bytes key
    cdef _Queue found
    put32(place, <uint32_t>queue_id)
    memcpy(place + 4, name, size)
    key = bytes_of(place, 4 + size)
    found = <_Queue>known.get(key)
    if found is not None:
        return found
    queue = queue_for((<const char*>name)[:size].decode("ascii"), queue_id)
    if queue is None or queue.ext is not None:
        return None
    found = _Queue.__new__(_Queue)
    found.queue = queue
    found.units = bytearray()
    found.end = queue.end
    found.max_phy = queue.max_phy
    found.prefix = hash_on(0, name, size) * 31 + 35
    known[key] = found
    return found


cdef inline int _add_unit(_Queue queue, int64_t phy, int64_t size, int64_t tags_code) except -1:
    """Add the unit of a record that continues a queue."""
    cdef Py_ssize_t at = PyByteArray_GET_SIZE(queue.units)
    PyByteArray_Resize(queue.units, at + UNIT)
    put_unit(<uint8_t*>PyByteArray_AS_STRING(queue.units) + at, phy, size, tags_code)
    queue.end += 1
    queue.max_phy = phy + size
    return 0


cdef inline int _add_keys(bytearray entries, int32_t* hashes, int count, int64_t phy, int64_t store_ms) except -1:
    """Add the index entries of a record."""
    cdef Py_ssize_t at = PyByteArray_GET_SIZE(entries)
    cdef uint8_t* out
    cdef int i
    if count:
        PyByteArray_Resize(entries, at + count * PENDING)
        out = <uint8_t*>PyByteArray_AS_STRING(entries) + at
        for i in range(count):
            out = add_pending(out, hashes[i], phy, store_ms)
    return 0


def walk_records(bytes data, Py_ssize_t position, int64_t base, bint check_crc, bint indexed, queue_for):
    """
    Read ordinary records from ``data[position]`` on, which lies at ``base`` of the log.

    Returns (position behind them, units by queue, keys, offset of the last record, its size, its store time), or None
    when the first record is not ordinary. Units are (queue, units that continue it, end of the last record); keys are
    index entries, PENDING bytes each, none unless ``indexed``. ``queue_for(topic, queue id)`` returns the queue of a record, None for a record
    that is not ordinary. It does what `rmq.store.dispatch.Dispatcher.frame` does, which takes the record that it stops at.
    """
    cdef const uint8_t* chunk = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = position
    cdef Properties found
    cdef Stored stored
    cdef const uint8_t* record
    cdef int64_t queue_id, queue_offset, phy, store_ms = 0, last_ms = 0
    cdef int64_t last_phy = -1, last_size = 0
    cdef dict known = {}
    cdef _Queue queue
    cdef int32_t hashes[MAX_KEYS + 1]
    cdef int count
    cdef bint is_new
    cdef bytearray entries = bytearray()
    while at >= 0 and find_parts(chunk + at, end - at, &stored):
        record = stored.record
        phy = <int64_t>get64(record + PHYSICAL_OFFSET_AT)
        if phy != base + at or get32(record + SYS_FLAG_AT) & TRANSACTION:
            break
        queue_id = <int32_t>get32(record + QUEUE_ID_AT)
        queue_offset = <int64_t>get64(record + QUEUE_OFFSET_AT)
        if queue_id < 0 or queue_offset < 0:
            break
        if check_crc and not is_intact(&stored):
            break
        queue = _find(known, stored.topic, stored.topic_size, queue_id, queue_for)
        if queue is None:
            break
        if phy + stored.size <= queue.max_phy:
            # It has this one, whatever its number: those of a topic that was made again come twice.
            is_new = False
        elif queue_offset == queue.end:
            is_new = True
        else:
            break
        if not find_properties(stored.text, stored.text_size, &found):
            break
        count = hash_keys(queue.prefix, stored.text, &found, hashes, MAX_KEYS + 1) if indexed else 0
        if count < 0:
            break
        store_ms = <int64_t>get64(record + STORE_TIMESTAMP_AT)
        if get32(record + SYS_FLAG_AT) & BORN_HOST_V6:
            store_ms = <int64_t>get64(record + STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES)
        if is_new:
            _add_unit(queue, phy, stored.size, tags_code_of(stored.text, &found))
        _add_keys(entries, hashes, count, phy, store_ms)
        last_phy = phy
        last_size = stored.size
        last_ms = store_ms
        at += stored.size
    if last_phy < 0:
        return None
    return at, _units_of(known), entries, last_phy, last_size, last_ms


# ---- from the queue of a delay level to the queues of topics ----

cdef bint find_target(const uint8_t* text, Py_ssize_t size, Span* topic, int64_t* queue_id) noexcept nogil:
    """Find REAL_TOPIC and REAL_QID, the last of each; False when one is missing or no plain value."""
    cdef Py_ssize_t at = 0, stop
    cdef const uint8_t* mark
    cdef Span number
    topic.size = topic.at = number.size = number.at = 0
    while at < size:
        mark = <const uint8_t*>memchr(text + at, 2, size - at)
        stop = size if mark == NULL else mark - text
        if stop - at > 11 and memcmp(text + at, b"REAL_TOPIC\x01", 11) == 0:
            topic.at = at + 11
            topic.size = stop - topic.at
        elif stop - at > 9 and memcmp(text + at, b"REAL_QID\x01", 9) == 0:
            number.at = at + 9
            number.size = stop - number.at
        at = stop + 1
    return 0 < topic.size <= 127 and digits_in(text + number.at, number.size, 9, queue_id)


def restore_records(
    bytes data, Py_ssize_t position, int64_t delay_ms, int64_t phy_offset, int64_t room, int64_t store_ms, queue_for
):
    """
    Make the records that deliver those from ``data[position]`` on, which were parked one behind the other.

    Returns (how many, position behind them, offset of the last one, its size, records, units, keys), or None when the
    first one is not ordinary or not due at ``store_ms``. The new records lie at ``phy_offset``, together in ``room``
    bytes. Units and keys are those of `SendBatch.encode`. ``queue_for(topic, queue id)`` returns the queue of a target;
    None for one that is not ordinary. It does what `rmq.broker.delays.restored` and
    `rmq.store.appender.Appender.put` do.
    """
    cdef const uint8_t* chunk = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = position, used = 0, last_size = 0
    cdef Py_ssize_t new_size
    cdef Span target
    cdef Properties found
    cdef Stored stored
    cdef const uint8_t* record
    cdef const uint8_t* text
    cdef uint8_t* out
    cdef int64_t queue_id, due_ms
    cdef int32_t hashes[MAX_KEYS]
    cdef dict known = {}
    cdef _Queue queue
    cdef bytearray records = bytearray(), entries = bytearray()
    cdef int count = 0, hash_count
    while at >= 0 and find_parts(chunk + at, end - at, &stored):
        record = stored.record
        text = stored.text
        if stored.head != HEAD_BYTES or get32(record + SYS_FLAG_AT) & TRANSACTION not in (0, COMMITTED):
            break
        due_ms = <int64_t>get64(record + STORE_TIMESTAMP_AT) + delay_ms
        if store_ms < due_ms <= store_ms + delay_ms:
            break
        if not find_target(text, stored.text_size, &target, &queue_id) or not is_plain(text + target.at, target.size):
            break
        new_size = stored.size - stored.topic_size + target.size
        if used + new_size > room or not is_intact(&stored) or not find_properties(text, stored.text_size, &found):
            break
        queue = _find(known, text + target.at, target.size, queue_id, queue_for)
        if queue is None:
            break
        if PyByteArray_GET_SIZE(queue.units) == 0:
            queue.end = queue.queue.next
        hash_count = hash_keys(queue.prefix, text, &found, hashes, MAX_KEYS)
        if hash_count < 0:
            break
        PyByteArray_Resize(records, used + new_size)
        out = <uint8_t*>PyByteArray_AS_STRING(records) + used
        memcpy(out, record, HEAD_BYTES + stored.body_size)
        put32(out + TOTAL_SIZE_AT, <uint32_t>new_size)
        put32(out + QUEUE_ID_AT, <uint32_t>queue_id)
        put64(out + QUEUE_OFFSET_AT, <uint64_t>queue.end)
        put64(out + PHYSICAL_OFFSET_AT, <uint64_t>(phy_offset + used))
        put64(out + STORE_TIMESTAMP_AT, <uint64_t>store_ms)
        put64(out + PREPARED_TRANSACTION_OFFSET_AT, 0)
        out += HEAD_BYTES + stored.body_size
        out[0] = <uint8_t>target.size
        memcpy(out + 1, text + target.at, target.size)
        memcpy(out + 1 + target.size, text - 2, 2 + stored.text_size)
        _add_unit(queue, phy_offset + used, new_size, tags_code_of(text, &found))
        _add_keys(entries, hashes, hash_count, phy_offset + used, store_ms)
        used += new_size
        count += 1
        at += stored.size
        last_size = new_size
    if count == 0:
        return None
    return count, at, phy_offset + used - last_size, last_size, bytes(records), _units_of(known), bytes(entries)


cdef list _units_of(dict known):
    """Return (queue, units that continue it, end of the last record) of each queue that got a record."""
    return [
        ((<_Queue>each).queue, (<_Queue>each).units, (<_Queue>each).max_phy)
        for each in known.values() if (<_Queue>each).units
    ]

cdef inline bint is_plain(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Tell whether bytes are ASCII without NUL."""
    cdef const uint8_t* end = at + size
    cdef uint64_t word
    while end - at >= 8:
        memcpy(&word, at, 8)
        # the top bit of a byte: it has it, or is 0 and borrows
        if (word | (word - 0x0101010101010101u)) & 0x8080808080808080u:
            return False
        at += 8
    while at < end:
        if not 0 < at[0] < 0x80:
            return False
        at += 1
    return True


cdef bint is_utf8(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Tell whether bytes are text in UTF-8 without NUL."""
    cdef const uint8_t* end = at + size
    cdef uint8_t first, second
    cdef Py_ssize_t more, i
    if is_plain(at, size):
        return True
    while at < end:
        first = at[0]
        at += 1
        if 0 < first < 0x80:
            continue
        more = 1 if 0xC2 <= first < 0xE0 else 2 if 0xE0 <= first < 0xF0 else 3 if 0xF0 <= first < 0xF5 else 0
        if more == 0 or end - at < more:
            return False
        second = at[0]
        # forms that are longer than they need be, halves of characters, and what lies behind the last character
        if (
            (first == 0xE0 and second < 0xA0) or (first == 0xED and second >= 0xA0)
            or (first == 0xF0 and second < 0x90) or (first == 0xF4 and second >= 0x90)
        ):
            return False
        for i in range(more):
            if at[i] & 0xC0 != 0x80:
                return False
        at += more
    return True
