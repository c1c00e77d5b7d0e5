# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, infer_types=False
"""
The compiled twin of the hot loops: ordinary sends from received bytes to stored records and answers, and records of the
log to units of queues and entries of the index.

Whatever is unusual in any way is left, untouched, to the Python code, which is complete and the reference:
`rmq.broker.lanes.SendChunkLane` with `rmq.store.appender.Appender` and `rmq.store.dispatch.Dispatcher`, and
`rmq.store.index.Index`. Tests compare both byte by byte.
"""

from cpython.array cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from posix.unistd cimport pwrite
from libc.string cimport memchr, memcmp, memcpy, memset

from zlib import crc32 as _zlib_crc32

cdef enum:
    HEAD = 88                       # what stands in front of the body when both hosts are IPv4
    MAX_PROPERTIES = 32767
    MAX_PIECES = 64                 # properties of one message
    MAX_HEADER = 60000              # longer headers are left to Python
    MAX_BATCH = 256                 # messages written together
    MAX_BATCH_BYTES = 1 << 20       # a batch ends when so many bytes of records are in it
    MAX_FRAME = 16 * 1024 * 1024 - 4
    UNIT = 20
    ENTRY = 20
    PENDING = 20                    # i32 hash, i64 phyOffset, i64 storeTimestamp, as this machine writes them
    MAX_KEYS = 16
    BLANK_BYTES = 8
    ANSWER_ROOM = 160               # numbers of an answer

cdef uint32_t MAGIC_V1 = 0xDAA320A7u

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


cdef uint32_t CRC[8][256]


cdef void _make_tables() noexcept:
    cdef uint32_t value
    cdef int number, bit, table
    for number in range(256):
        value = number
        for bit in range(8):
            value = value >> 1 ^ (0xEDB88320u if value & 1 else 0u)
        CRC[0][number] = value
    for number in range(256):
        value = CRC[0][number]
        for table in range(1, 8):
            value = CRC[0][value & 0xFF] ^ value >> 8
            CRC[table][number] = value


_make_tables()


cdef uint32_t crc_of(const uint8_t* at, Py_ssize_t size):
    """Return the CRC of a body as it is stored; short bodies here, long ones by zlib, which is faster then."""
    cdef uint32_t crc = 0xFFFFFFFFu, low, high
    if size > 512:
        crc = _zlib_crc32((<uint8_t[:size]><uint8_t*>at))
        return crc & 0x7FFFFFFF
    while size >= 8:
        low = crc ^ (<uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24)
        high = <uint32_t>at[4] | <uint32_t>at[5] << 8 | <uint32_t>at[6] << 16 | <uint32_t>at[7] << 24
        crc = (
            CRC[7][low & 0xFF] ^ CRC[6][low >> 8 & 0xFF] ^ CRC[5][low >> 16 & 0xFF] ^ CRC[4][low >> 24]
            ^ CRC[3][high & 0xFF] ^ CRC[2][high >> 8 & 0xFF] ^ CRC[1][high >> 16 & 0xFF] ^ CRC[0][high >> 24]
        )
        at += 8
        size -= 8
    while size > 0:
        crc = CRC[0][(crc ^ at[0]) & 0xFF] ^ crc >> 8
        at += 1
        size -= 1
    return (crc ^ 0xFFFFFFFFu) & 0x7FFFFFFF


cdef inline uint32_t hash_on(uint32_t value, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Go on with a Java hash over ASCII."""
    cdef Py_ssize_t i
    for i in range(size):
        value = value * 31 + at[i]
    return value


cdef inline int32_t index_hash(uint32_t value) noexcept nogil:
    """Java: IndexFile#indexKeyHashMethod"""
    if value < 0x80000000u:
        return <int32_t>value
    return <int32_t>(0u - value) if value > 0x80000000u else 0


# ---- the header of a send, as Java clients write it ----

cdef struct Send:
    int64_t opaque
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


cdef inline const uint8_t* skip(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\t' or p[0] == c'\r'):
        p += 1
    return p


cdef inline const uint8_t* text_end(const uint8_t* p, const uint8_t* end, bint* escaped) noexcept nogil:
    """Return where the quote is that ends a string of ASCII which begins at p; NULL when it is no such string."""
    escaped[0] = False
    while p < end:
        if p[0] == c'"':
            return p
        if p[0] < 0x20 or p[0] >= 0x7F:
            return NULL
        if p[0] == c'\\':
            escaped[0] = True
            p += 1
            if p >= end:
                return NULL
        p += 1
    return NULL


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


cdef const uint8_t* read_ext(const uint8_t* p, const uint8_t* end, Send* send) noexcept nogil:
    """Read the fields of a send behind their opening brace; return what follows the closing one, or NULL."""
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef Py_ssize_t key_size
    cdef bint escaped
    cdef uint32_t seen = 0, bit
    cdef int64_t number = 0
    cdef uint8_t letter
    send.raw = NULL
    send.raw_size = 0
    send.escaped = False
    send.reconsume = 0
    p = skip(p, end)
    while True:
        if p >= end or p[0] != c'"':
            return NULL
        key = p + 1
        p = text_end(key, end, &escaped)
        if p == NULL or escaped:
            return NULL
        key_size = p - key
        p = skip(p + 1, end)
        if p >= end or p[0] != c':':
            return NULL
        p = skip(p + 1, end)
        if p >= end or p[0] != c'"':
            return NULL
        value = p + 1
        p = text_end(value, end, &escaped)
        if p == NULL:
            return NULL
        letter = key[0] if key_size == 1 else 0
        if c'a' <= letter <= c'm':
            bit = <uint32_t>1 << (letter - c'a')
            if seen & bit or (escaped and letter != c'i'):
                return NULL
            seen |= bit
            if letter == c'b':
                send.topic = value
                send.topic_size = p - value
            elif letter == c'i':
                send.raw = value
                send.raw_size = p - value
                send.escaped = escaped
            elif letter == c'k' or letter == c'm':
                if p - value != 5 or memcmp(value, b"false", 5) != 0:
                    return NULL
            elif letter != c'a' and letter != c'c':
                if not number_in(value, p, &number) or (letter != c'g' and not is_int32(number)):
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
        elif escaped:
            return NULL
        p = skip(p + 1, end)
        if p >= end:
            return NULL
        if p[0] == c'}':
            # a to h must be there
            return p + 1 if seen & 0xFF == 0xFF else NULL
        if p[0] != c',':
            return NULL
        p = skip(p + 1, end)


cdef bint read_header(const uint8_t* p, const uint8_t* end, int64_t code, Send* send) noexcept nogil:
    """Read a JSON header; False when it is not a plain request of that code, or not written plainly."""
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef Py_ssize_t size
    cdef bint escaped
    cdef int64_t number = 0
    cdef int seen = 0, bit
    p = skip(p, end)
    if p >= end or p[0] != c'{':
        return False
    p = skip(p + 1, end)
    while True:
        if p >= end or p[0] != c'"':
            return False
        key = p + 1
        p = text_end(key, end, &escaped)
        if p == NULL or escaped:
            return False
        size = p - key
        p = skip(p + 1, end)
        if p >= end or p[0] != c':':
            return False
        p = skip(p + 1, end)
        if p >= end:
            return False
        bit = 0
        if size == 9 and memcmp(key, b"extFields", 9) == 0:
            bit = 1
        elif size == 4 and memcmp(key, b"code", 4) == 0:
            bit = 2
        elif size == 6 and memcmp(key, b"opaque", 6) == 0:
            bit = 4
        elif size == 4 and memcmp(key, b"flag", 4) == 0:
            bit = 8
        if seen & bit:
            return False
        seen |= bit
        if bit == 1:
            if p[0] != c'{':
                return False
            p = read_ext(p + 1, end, send)
            if p == NULL:
                return False
        elif p[0] == c'"':
            if bit:
                return False
            p = text_end(p + 1, end, &escaped)
            if p == NULL or escaped:
                return False
            p += 1
        else:
            value = p
            while p < end and (c'0' <= p[0] <= c'9' or p[0] == c'-'):
                p += 1
            if not number_in(value, p, &number):
                return False
            if bit and not is_int32(number):
                return False
            if bit == 2 and number != code:
                return False
            if bit == 4:
                send.opaque = number
            if bit == 8 and number != 0:
                return False
        p = skip(p, end)
        if p >= end:
            return False
        if p[0] == c'}':
            return skip(p + 1, end) == end and seen & 7 == 7
        if p[0] != c',':
            return False
        p = skip(p + 1, end)


cdef inline int hex_digit(uint8_t letter) noexcept nogil:
    if c'0' <= letter <= c'9':
        return letter - c'0'
    letter |= 0x20
    if c'a' <= letter <= c'f':
        return letter - c'a' + 10
    return -1


cdef Py_ssize_t unescape(const uint8_t* p, Py_ssize_t size, uint8_t* out) noexcept nogil:
    """Write what a JSON string means, of ASCII without NUL; return its length, -1 for anything else."""
    cdef const uint8_t* end = p + size
    cdef Py_ssize_t length = 0
    cdef int high, low
    cdef uint8_t letter
    while p < end:
        letter = p[0]
        p += 1
        if letter == c'\\':
            letter = p[0]
            p += 1
            if letter == c'u':
                if end - p < 4 or p[0] != c'0' or p[1] != c'0':
                    return -1
                high = hex_digit(p[2])
                low = hex_digit(p[3])
                p += 4
                if high < 0 or high > 7 or low < 0 or high + low == 0:
                    return -1
                letter = <uint8_t>(high << 4 | low)
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


cdef struct Piece:
    Py_ssize_t name
    Py_ssize_t name_size
    Py_ssize_t value
    Py_ssize_t value_size


cdef struct Properties:
    Py_ssize_t size
    # places in the stored string; sizes of -1: there is none
    Py_ssize_t unique
    Py_ssize_t unique_size
    Py_ssize_t keys
    Py_ssize_t keys_size
    Py_ssize_t tags
    Py_ssize_t tags_size


cdef inline bint is_name(const uint8_t* name, Py_ssize_t size, const char* other, Py_ssize_t other_size) noexcept nogil:
    return size == other_size and memcmp(name, other, size) == 0


cdef bint store_properties(
    const uint8_t* text, Py_ssize_t size, const uint8_t* cluster, Py_ssize_t cluster_size,
    bint waits, uint8_t* out, Properties* found
) noexcept nogil:
    """
    Write properties as they are stored: in their order, without WAIT, with CLUSTER at the end.

    False for those that are no plain list of different names with values, or that say how the message is to be put:
    with a delay, in a transaction, or (where ``waits``) without waiting.
    """
    cdef Piece pieces[MAX_PIECES]
    cdef int count = 0, i, j
    cdef Py_ssize_t at = 0, stop, middle, length = 0
    cdef const uint8_t* name
    cdef const uint8_t* mark
    cdef Py_ssize_t name_size, value_size
    found.unique_size = found.keys_size = found.tags_size = -1
    while at < size:
        mark = <const uint8_t*>memchr(text + at, 2, size - at)
        stop = size if mark == NULL else mark - text
        mark = <const uint8_t*>memchr(text + at, 1, stop - at)
        if mark == NULL:
            return False
        middle = mark - text
        name = text + at
        name_size = middle - at
        value_size = stop - middle - 1
        if name_size == 0 or value_size == 0 or memchr(mark + 1, 1, value_size) != NULL or count >= MAX_PIECES:
            return False
        for i in range(count):
            if pieces[i].name_size == name_size and memcmp(text + pieces[i].name, name, name_size) == 0:
                return False
        pieces[count].name = at
        pieces[count].name_size = name_size
        count += 1
        at = stop + 1
        if name_size == 4 and memcmp(name, b"WAIT", 4) == 0:
            if waits and not (value_size == 4 and memcmp(mark + 1, b"true", 4) == 0):
                return False
            continue
        if (
            is_name(name, name_size, b"CLUSTER", 7)
            or is_name(name, name_size, b"DELAY", 5)
            or is_name(name, name_size, b"TRAN_MSG", 8)
        ):
            return False
        # A name that ends so would be mistaken for the one that it ends with.
        if name_size > 5 and memcmp(name + name_size - 5, b"DELAY", 5) == 0:
            return False
        if name_size > 8 and memcmp(name + name_size - 8, b"TRAN_MSG", 8) == 0:
            return False
        if length + name_size + value_size + 2 > MAX_PROPERTIES:
            return False
        memcpy(out + length, name, name_size + 1 + value_size)
        middle = length + name_size + 1
        if is_name(name, name_size, b"UNIQ_KEY", 8):
            found.unique = middle
            found.unique_size = value_size
        elif is_name(name, name_size, b"KEYS", 4):
            found.keys = middle
            found.keys_size = value_size
        elif is_name(name, name_size, b"TAGS", 4):
            found.tags = middle
            found.tags_size = value_size
        length = middle + value_size
        out[length] = 2
        length += 1
    if length + 8 + cluster_size > MAX_PROPERTIES:
        return False
    memcpy(out + length, b"CLUSTER\x01", 8)
    memcpy(out + length + 8, cluster, cluster_size)
    found.size = length + 8 + cluster_size
    return True


# ---- sends ----

cdef struct Placed:
    int64_t phy
    int64_t size
    int64_t number
    int64_t queue_id
    int64_t opaque
    int64_t sys_flag
    int64_t code
    # in the buffer of records
    Py_ssize_t properties
    Py_ssize_t properties_size
    int first_hash
    int hashes


cdef class _Topic:
    """A topic that was looked at and found ordinary."""

    cdef object config
    cdef str name
    cdef bytes field
    cdef uint32_t prefix
    cdef int64_t queues
    # since the statistics were told: messages and their bytes
    cdef int64_t messages, size


cdef class SendLane:
    """
    Take ordinary single messages from the bytes as they were received; see `rmq.broker.lanes.SendChunkLane`, the twin,
    which is asked to take the first message that this one leaves.

    All messages that a chunk of input brings are written in one go.
    """

    cdef readonly int code
    #: how many messages were taken here
    cdef readonly int64_t taken
    cdef readonly object twin
    cdef object taker, state, store, appender, log, dispatcher, queue_table, completion, clock, index, later
    cdef object disk_error
    cdef dict queues
    cdef dict topics
    cdef list noted, appended
    cdef type real_file
    cdef _Topic last
    cdef bint waits, hides
    cdef bytes cluster, head, middle, offset, tail, tail_end
    cdef object store_host
    cdef uint8_t store_address[8]
    cdef uint8_t prefix[16]
    cdef uint8_t* records
    cdef Py_ssize_t room
    cdef uint8_t* text
    cdef uint8_t* out
    cdef Py_ssize_t out_room
    cdef Placed placed[MAX_BATCH]
    cdef int32_t hashes[MAX_BATCH * 2 + MAX_KEYS]
    cdef int64_t max_body

    def __cinit__(self):
        self.records = NULL
        self.text = NULL
        self.out = NULL

    def __init__(self, twin, taker, state, parts, later, code):
        """``later`` makes what answers a chunk once its messages are safe; None where nothing is waited for."""
        self.twin = twin
        self.taker = taker
        self.state = state
        self.later = later
        self.code = code
        self.store = parts.store
        self.disk_error = parts.disk_error
        self.appender = parts.appender
        self.log = parts.log
        self.dispatcher = parts.dispatcher
        self.queue_table = parts.queues
        self.queues = parts.queues._queues
        self.completion = parts.completion
        self.clock = parts.clock
        self.index = parts.index
        self.hides = parts.appender.hides
        self.waits = later is not None
        self.max_body = parts.max_message_size
        self.topics = {}
        self.noted = []
        self.appended = parts.store._appended
        self.real_file = parts.real_file
        self.cluster = taker.cluster.encode()
        self.head, self.middle, self.offset, self.tail, self.tail_end = (text.encode() for text in taker.template)
        self.store_host = None
        self.room = MAX_BATCH_BYTES
        self.records = <uint8_t*>malloc(self.room)
        self.text = <uint8_t*>malloc(MAX_HEADER + 16)
        self.out_room = MAX_BATCH * (
            len(self.head) + len(self.middle) + len(self.offset) + len(self.tail) + len(self.tail_end) + ANSWER_ROOM
        )
        self.out = <uint8_t*>malloc(self.out_room)
        if self.records == NULL or self.text == NULL or self.out == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.records)
        free(self.text)
        free(self.out)

    def __call__(self, bytes data, Py_ssize_t position, list answers, channel):
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        cdef Py_ssize_t stop = position
        cdef int count = 0
        if self._may_try():
            count = self._take(data, position, &stop, answers, channel)
        if stop == position:
            return self.twin(data, position, answers, channel)
        return stop, 0 if self.waits else count

    cdef bint _may_try(self) except -1:
        broker = self.state.setup.broker
        if not <int64_t>broker.broker_permission & 2 or broker.start_accept_send_request_time_stamp:
            return False
        if self.appender.refusal is not None or self.log._soiled or self.appender._in_trouble:
            return False
        if self.waits and (self.completion.is_full or self.later.is_full):
            return False
        if not self.hides and (
            self.dispatcher._is_busy or <int64_t>self.dispatcher.dispatched != <int64_t>self.log.end
        ):
            return False
        return True

    cdef bint _set_host(self, host) except -1:
        cdef bytes address = host[0]
        cdef int64_t port = host[1]
        if len(address) != 4:
            return False
        memcpy(self.store_address, PyBytes_AS_STRING(address), 4)
        put32(self.store_address + 4, <uint32_t>port)
        text = f"{address.hex().upper()}{port:08X}".encode()
        memcpy(self.prefix, PyBytes_AS_STRING(text), 16)
        self.store_host = host
        return True

    cdef _Topic _topic(self, const uint8_t* name, Py_ssize_t size, dict entries):
        """Return an ordinary topic; None for any other."""
        cdef _Topic topic = self.last
        cdef bytes key
        if topic is None or PyBytes_GET_SIZE(topic.field) != size + 1 or memcmp(
            PyBytes_AS_STRING(topic.field) + 1, name, size
        ):
            key = PyBytes_FromStringAndSize(<const char*>name, size)
            topic = self.topics.get(key)
            if topic is None:
                topic = self._learn(key)
                if topic is None:
                    return None
        if entries.get(topic.name) is not topic.config:
            self.topics.pop(topic.field[1:], None)
            self.last = None
            topic = self._learn(topic.field[1:])
            if topic is None:
                return None
        self.last = topic
        return topic

    cdef _Topic _learn(self, bytes key):
        cdef _Topic topic
        name = key.decode("ascii")
        config = self.taker.ordinary(name)
        if config is None or not 0 < len(key) < 128:
            return None
        topic = _Topic.__new__(_Topic)
        topic.name = name
        topic.config = config
        topic.field = bytes((len(key),)) + key
        topic.prefix = hash_on(0, <const uint8_t*>PyBytes_AS_STRING(key), len(key)) * 31 + 35
        topic.queues = max(config.read_queue_nums, config.write_queue_nums)
        if len(self.topics) >= 10_000:
            self.topics.clear()
        self.topics[key] = topic
        return topic

    cdef int _take(self, bytes data, Py_ssize_t position, Py_ssize_t* stop, list answers, channel) except -1:
        """Store what can be stored of a chunk; return how many messages that were, and where they end."""
        cdef const uint8_t* chunk = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = position, used = 0
        cdef int64_t log_end, tail_end, store_ms
        cdef int count = 0, i
        cdef uint8_t born[8]
        cdef bytes address
        host = self.state.store_host
        if host is not self.store_host and not self._set_host(host):
            return 0
        born_host = channel.peer_host
        address = born_host[0]
        if PyBytes_GET_SIZE(address) != 4:
            return 0
        memcpy(born, PyBytes_AS_STRING(address), 4)
        put32(born + 4, <uint32_t><int64_t>born_host[1])
        entries = self.state.topics._entries
        log = self.log
        log_end = log.end
        tail_end = log.tail_end
        wall = getattr(self.clock, "wall_seconds", None)
        store_ms = <int64_t>(<double>(self.clock.seconds() if wall is None else wall()) * 1000)
        queues = []
        topics = []
        try:
            count = self._build(chunk, end, &at, &used, &log_end, tail_end, store_ms, born, entries, queues, topics)
            if count:
                self._write(log, used, log_end)
        except BaseException as error:
            # Nothing of it is in the log. A full disk is the business of the ordinary way, which says so.
            for i in range(len(queues) - 1, -1, -1):
                queues[i].next = self.placed[i].number
            if isinstance(error, self.disk_error):
                return 0
            raise
        if count == 0:
            return 0
        stop[0] = at
        self.taken += count
        answer = self._answer(count)
        if self.waits:
            counts = self._counts(count, topics)
            if not self.hides:
                # Otherwise they are read back from the log once they are on disk.
                self._show(count, log_end, store_ms, queues)
            self.completion.wait(log_end, self.later(channel, answer, counts))
            for callback in self.appended:
                callback()
        else:
            self._note(count, topics)
            self._show(count, log_end, store_ms, queues)
            for callback in self.appended:
                callback()
            answers.append(answer)
        return count

    cdef int _write(self, log, Py_ssize_t size, int64_t log_end) except -1:
        """Append what was built, as `CommitLog.append` does; a file of the system is written without ceremony."""
        cdef int64_t at
        tail = log._tail
        if type(tail) is self.real_file and tail._refusal is None and not log._soiled:
            at = log_end - size - <int64_t>log._tail_start
            if at + size <= <int64_t>tail._size:
                if pwrite(tail._fd, self.records, size, at) == size:
                    log.end = log_end
                    return 0
        # Whatever is the matter, this writes the same bytes to the same place once more, and finds out.
        log.append(PyBytes_FromStringAndSize(<const char*>self.records, size))
        return 0

    cdef int _build(
        self, const uint8_t* chunk, Py_ssize_t end, Py_ssize_t* position, Py_ssize_t* bytes_used, int64_t* log_end_at,
        int64_t tail_end, int64_t store_ms, const uint8_t* born, entries, list queues, list topics
    ) except -1:
        """Make the records of the messages at the front of a chunk, and take their numbers; return how many."""
        cdef Py_ssize_t at = position[0], used = 0, frame_end, needed
        cdef const uint8_t* header
        cdef const uint8_t* body
        cdef const uint8_t* text
        cdef Py_ssize_t body_size, text_size
        cdef uint32_t word
        cdef int64_t length, log_end = log_end_at[0], size, number
        cdef Send send
        cdef Properties properties
        cdef int count = 0, hashes = 0
        cdef _Topic topic
        cdef uint8_t* record
        cdef Placed* placed
        while end - at > 8 and count < MAX_BATCH and used < MAX_BATCH_BYTES:
            memset(&send, 0, sizeof(send))
            length = <int32_t>get32(chunk + at)
            word = get32(chunk + at + 4)
            if word > MAX_HEADER or length < 4 + <int64_t>word or length > MAX_FRAME or length > end - at - 4:
                break
            frame_end = at + 4 + <Py_ssize_t>length
            header = chunk + at + 8
            body = header + word
            body_size = frame_end - (at + 8 + word)
            if not read_header(header, body, self.code, &send) or body_size > self.max_body:
                break
            if send.sys_flag & (0xC | 0x30) or send.queue_id < 0 or send.sys_flag < 0:
                break
            topic = self._topic(send.topic, send.topic_size, entries)
            if topic is None or send.queue_id >= topic.queues:
                break
            queue = self.queues.get((topic.name, send.queue_id))
            if queue is None or queue.ext is not None:
                break
            text = send.raw
            text_size = send.raw_size
            if send.escaped:
                text_size = unescape(send.raw, send.raw_size, self.text)
                if text_size < 0:
                    break
                text = self.text
            needed = HEAD + body_size + PyBytes_GET_SIZE(topic.field) + 2 + MAX_PROPERTIES + 16
            if used + needed > self.room:
                record = <uint8_t*>realloc(self.records, used + needed)
                if record == NULL:
                    raise MemoryError
                self.records = record
                self.room = used + needed
            record = self.records + used
            size = HEAD + body_size + PyBytes_GET_SIZE(topic.field)
            if not store_properties(
                text, text_size, <const uint8_t*>PyBytes_AS_STRING(self.cluster), PyBytes_GET_SIZE(self.cluster),
                self.waits, record + size + 2, &properties
            ):
                break
            record[size] = <uint8_t>(properties.size >> 8)
            record[size + 1] = <uint8_t>properties.size
            placed = &self.placed[count]
            placed.properties = used + <Py_ssize_t>size + 2
            placed.properties_size = properties.size
            size += 2 + properties.size
            if log_end + size + BLANK_BYTES > tail_end:
                break
            number = queue.next
            placed.first_hash = hashes
            placed.hashes = 0
            if not self._hash_keys(topic.prefix, self.records + placed.properties, &properties, placed):
                break
            hashes += placed.hashes
            put32(record, <uint32_t>size)
            put32(record + 4, MAGIC_V1)
            put32(record + 8, crc_of(body, body_size))
            put32(record + 12, <uint32_t>send.queue_id)
            put32(record + 16, <uint32_t>send.flag)
            put64(record + 20, <uint64_t>number)
            put64(record + 28, <uint64_t>log_end)
            put32(record + 36, <uint32_t>send.sys_flag)
            put64(record + 40, <uint64_t>send.born)
            memcpy(record + 48, born, 8)
            put64(record + 56, <uint64_t>store_ms)
            memcpy(record + 64, self.store_address, 8)
            put32(record + 72, <uint32_t>send.reconsume)
            put64(record + 76, 0)
            put32(record + 84, <uint32_t>body_size)
            memcpy(record + HEAD, body, body_size)
            memcpy(record + HEAD + body_size, PyBytes_AS_STRING(topic.field), PyBytes_GET_SIZE(topic.field))
            placed.phy = log_end
            placed.size = size
            placed.number = number
            placed.queue_id = send.queue_id
            placed.opaque = send.opaque
            placed.sys_flag = send.sys_flag
            placed.code = 0
            if properties.tags_size > 0:
                placed.code = <int32_t>hash_on(
                    0, self.records + placed.properties + properties.tags, properties.tags_size
                )
            # Given back below when the records cannot be written.
            queue.next = number + 1
            queues.append(queue)
            topics.append(topic)
            used += <Py_ssize_t>size
            log_end += size
            count += 1
            at = frame_end
        position[0] = at
        bytes_used[0] = used
        log_end_at[0] = log_end
        return count

    cdef bint _hash_keys(
        self, uint32_t prefix, const uint8_t* text, Properties* properties, Placed* placed
    ) noexcept:
        """Note the hashes of a message's keys; False when there are too many."""
        cdef int32_t* hashes = self.hashes + placed.first_hash
        cdef int count = 0
        cdef const uint8_t* key
        cdef const uint8_t* stop
        cdef const uint8_t* end
        if properties.unique_size > 0:
            hashes[0] = index_hash(hash_on(prefix, text + properties.unique, properties.unique_size))
            count = 1
        if properties.keys_size > 0:
            key = text + properties.keys
            end = key + properties.keys_size
            while key < end:
                stop = <const uint8_t*>memchr(key, c' ', end - key)
                if stop == NULL:
                    stop = end
                if stop > key:
                    # room for two of each message, and for MAX_KEYS of the last
                    if placed.first_hash + count >= MAX_BATCH * 2 + MAX_KEYS:
                        return False
                    hashes[count] = index_hash(hash_on(prefix, key, stop - key))
                    count += 1
                key = stop + 1
        placed.hashes = count
        return placed.first_hash + count <= MAX_BATCH * 2

    cdef int _show(self, int count, int64_t log_end, int64_t store_ms, list queues) except -1:
        """Let consumers see the messages: units, entries, and whoever waits for them."""
        cdef Placed* placed
        cdef bytearray buffer
        cdef Py_ssize_t size
        cdef uint8_t* unit
        cdef int i
        cdef bytearray pending = None if self.index is None else self.index._pending
        dispatcher = self.dispatcher
        for i in range(count):
            placed = &self.placed[i]
            queue = queues[i]
            if <int64_t>queue.end != placed.number:
                # A queue that has stopped for some reason; Python knows which.
                dispatcher.message(
                    placed.phy, placed.size, queue, placed.number, placed.sys_flag, store_ms, self._properties(i)
                )
                continue
            buffer = queue._buffer
            size = PyByteArray_GET_SIZE(buffer)
            PyByteArray_Resize(buffer, size + UNIT)
            unit = <uint8_t*>PyByteArray_AS_STRING(buffer) + size
            put64(unit, <uint64_t>placed.phy)
            put32(unit + 8, <uint32_t>placed.size)
            put64(unit + 12, <uint64_t>placed.code)
            queue.end = placed.number + 1
            queue.max_phy = placed.phy + placed.size
            if not queue.dirty:
                self.queue_table.touched(queue)
            if pending is not None and placed.hashes:
                add_pending(pending, self.hashes + placed.first_hash, placed.hashes, placed.phy, store_ms)
        if pending is not None and PyByteArray_GET_SIZE(pending) >= PENDING * 65536:
            self.index.settle()
        placed = &self.placed[count - 1]
        dispatcher.last_phy = placed.phy
        dispatcher.last_size = placed.size
        dispatcher.store_timestamp = store_ms
        dispatcher.dispatched = log_end
        if not dispatcher.watches:
            return 0
        told_queues = []
        told = []
        for i in range(count):
            queue = queues[i]
            for watch in dispatcher.watches:
                if (
                    queue.key in <dict>watch.queues
                    if type(watch.queues) is dict
                    else watch.topic is None or queue.topic == watch.topic
                ):
                    placed = &self.placed[i]
                    told_queues.append(queue)
                    told.append((placed.number + 1, placed.code))
                    break
        if told:
            dispatcher.tell(told_queues, told)
        return 0

    cdef bytes _answer(self, int count):
        cdef uint8_t* out = self.out
        cdef uint8_t* begin
        cdef int i
        cdef Placed* placed
        for i in range(count):
            placed = &self.placed[i]
            begin = out
            out += 8
            out = add_bytes(out, self.head)
            memcpy(out, self.prefix, 16)
            put_hex(out + 16, <uint64_t>placed.phy)
            out = add_bytes(out + 32, self.middle)
            out += put_decimal(out, placed.queue_id)
            out = add_bytes(out, self.offset)
            out += put_decimal(out, placed.number)
            out = add_bytes(out, self.tail)
            out += put_decimal(out, placed.opaque)
            out = add_bytes(out, self.tail_end)
            put32(begin, <uint32_t>(out - begin - 4))
            put32(begin + 4, <uint32_t>(out - begin - 8))
        return PyBytes_FromStringAndSize(<const char*>self.out, out - self.out)

    cdef void _note(self, int count, list topics) noexcept:
        """Count messages that are stored; :meth:`settle` tells the statistics."""
        cdef int i
        cdef _Topic topic
        for i in range(count):
            topic = <_Topic>topics[i]
            if topic.messages == 0:
                self.noted.append(topic)
            topic.messages += 1
            topic.size += self.placed[i].size

    def settle(self):
        """Tell the statistics what was stored since the last time."""
        cdef _Topic topic
        noted = self.noted
        self.noted = []
        for topic in noted:
            messages, size = topic.messages, topic.size
            topic.messages = topic.size = 0
            self.taker.count(topic.name, messages, size, messages)

    cdef list _counts(self, int count, list topics):
        """Return (topic, messages, bytes) of each run of messages of one topic."""
        cdef int i, messages = 0
        cdef int64_t size = 0
        cdef _Topic topic = topics[0]
        cdef list counts = []
        for i in range(count):
            if topics[i] is not topic:
                counts.append((topic.name, messages, size))
                topic = topics[i]
                messages = 0
                size = 0
            messages += 1
            size += self.placed[i].size
        counts.append((topic.name, messages, size))
        return counts

    cdef str _properties(self, int i):
        cdef Placed* placed = &self.placed[i]
        return (<char*>self.records)[placed.properties : placed.properties + placed.properties_size].decode("ascii")


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

cdef int add_pending(bytearray pending, const int32_t* hashes, int count, int64_t phy, int64_t store_ms) except -1:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(pending)
    cdef uint8_t* at
    cdef int i
    PyByteArray_Resize(pending, size + count * PENDING)
    at = <uint8_t*>PyByteArray_AS_STRING(pending) + size
    for i in range(count):
        memcpy(at, &hashes[i], 4)
        memcpy(at + 4, &phy, 8)
        memcpy(at + 12, &store_ms, 8)
        at += PENDING
    return 0


def add_entries(file, const uint8_t[::1] pending, Py_ssize_t first):
    """
    Add entries from number ``first`` of ``pending`` on to an index file until it is full; return behind which one.

    Those of messages before the end of the file are in it already.
    """
    cdef Py_ssize_t number = first, count = pending.shape[0] // PENDING
    cdef const uint8_t* data = &pending[0]
    cdef const uint8_t* entry
    header = file.header
    cdef array slots = file._slots
    cdef int32_t* table = <int32_t*>slots.data.as_ints
    cdef int64_t slot_count = file.slots, limit = file.entries, at = header.index_count
    cdef int64_t begin_phy = header.begin_phy_offset, begin_ms = header.begin_timestamp
    cdef int64_t end_phy = header.end_phy_offset, end_ms = header.end_timestamp
    cdef int64_t used = header.hash_slot_count, phy = 0, store_ms = 0, seconds, page, last_page = -1
    cdef int32_t key_hash = 0, before
    cdef bytearray entries = file._entries
    cdef set dirty = file._dirty_pages
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(entries), most = count - first
    cdef uint8_t* out
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
        if begin_ms > 0:
            seconds = store_ms - begin_ms
            # Python rounds down
            seconds = seconds // 1000 if seconds >= 0 else -1
        if seconds < 0:
            seconds = 0
        elif seconds > 2147483647:
            seconds = 2147483647
        put32(out, <uint32_t>key_hash)
        put64(out + 4, <uint64_t>phy)
        put32(out + 12, <uint32_t>seconds)
        put32(out + 16, <uint32_t>before)
        out += ENTRY
        table[slot] = <int32_t>at
        page = slot // 1024
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
    """A queue while records of one piece of the log are added to it."""

    cdef object queue
    cdef bytearray buffer
    cdef int64_t end, max_phy
    cdef uint32_t prefix
    cdef bint grew, wanted


cdef struct Span:
    Py_ssize_t at
    Py_ssize_t size


cdef void find_properties(const uint8_t* text, Py_ssize_t size, Span* unique, Span* keys, Span* tags) noexcept nogil:
    """
    Find the last property of each name; a size of -1 stands for none.

    A size of 0 means that only Python can tell.
    """
    cdef Py_ssize_t at = 0, stop, length
    cdef const uint8_t* mark
    cdef const uint8_t* piece
    cdef Span* found
    unique.size = keys.size = tags.size = -1
    while at < size:
        mark = <const uint8_t*>memchr(text + at, 2, size - at)
        stop = size if mark == NULL else mark - text
        piece = text + at
        length = stop - at
        found = NULL
        if length >= 5 and piece[4] == 1:
            if memcmp(piece, b"TAGS", 4) == 0:
                found = tags
            elif memcmp(piece, b"KEYS", 4) == 0:
                found = keys
            if found != NULL:
                found.at = at + 5
                found.size = length - 5
        elif length >= 9 and piece[8] == 1 and memcmp(piece, b"UNIQ_KEY", 8) == 0:
            unique.at = at + 9
            unique.size = length - 9
        at = stop + 1


cdef class Walker:
    """
    The way of ordinary records from the log into queues and index: what `rmq.store.dispatch.Dispatcher.frame` does.

    Python looks at each record that this one stops at, and comes back with the next.
    """

    cdef object dispatcher, table, index
    #: how many records were dispatched here
    cdef readonly int64_t taken

    def __init__(self, dispatcher, table, index):
        self.dispatcher = dispatcher
        self.table = table
        self.index = index

    cdef _Queue _find(self, dict known, bytes key, const uint8_t* name, Py_ssize_t size, int64_t queue_id):
        """Return a queue that can be added to here; None for any other."""
        cdef _Queue found
        topic = (<const char*>name)[:size].decode("ascii")
        queue = self.dispatcher.queue_for(topic, queue_id)
        if queue is None or queue.ext is not None:
            return None
        found = _Queue.__new__(_Queue)
        found.queue = queue
        found.buffer = queue._buffer
        found.end = queue.end
        found.max_phy = queue.max_phy
        found.prefix = hash_on(0, name, size) * 31 + 35
        found.wanted = any([watch.wants(queue) for watch in self.dispatcher.watches])
        known[key] = found
        return found

    def __call__(self, bytes data, Py_ssize_t position, int64_t base, bint check_crc):
        """Dispatch records from ``data[position]`` on, which lies at ``base`` of the log; return where it stops."""
        cdef const uint8_t* chunk = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = position, left
        cdef Span unique, keys, tags
        cdef const uint8_t* record
        cdef const uint8_t* topic
        cdef const uint8_t* text
        cdef const uint8_t* stop
        cdef int64_t size, head, body_size, queue_id, queue_offset, phy, store_ms = 0, last_ms = 0, code
        cdef int64_t last_phy = -1, last_size = 0
        cdef uint32_t sys_flag
        cdef Py_ssize_t topic_size, text_size
        cdef uint8_t key[132]
        cdef bytes name
        cdef dict known = {}
        cdef list told = []
        cdef _Queue queue
        cdef int32_t hashes[MAX_KEYS + 1]
        cdef int count
        cdef bint is_new
        cdef Py_ssize_t unit_at
        cdef uint8_t* unit
        cdef bytearray pending = None if self.index is None else self.index._pending
        cdef bytearray buffer
        dispatcher = self.dispatcher
        # A record where others wait to be added to the index must find it settled: it counts from its end.
        while end - at >= 92:
            record = chunk + at
            size = <int32_t>get32(record)
            if size < 92 or size > end - at or get32(record + 4) != MAGIC_V1:
                break
            sys_flag = get32(record + 36)
            phy = <int64_t>get64(record + 28)
            if phy != base + at or sys_flag & 0xC:
                break
            head = HEAD + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
            if head + 4 > size:
                break
            body_size = <int32_t>get32(record + head - 4)
            if body_size < 0 or head + body_size + 3 > size:
                break
            topic = record + head + body_size
            topic_size = topic[0]
            topic += 1
            if topic_size < 1 or topic_size > 127 or head + body_size + 1 + topic_size + 2 > size:
                break
            text = topic + topic_size + 2
            text_size = (<Py_ssize_t>topic[topic_size] << 8) | topic[topic_size + 1]
            if text_size > MAX_PROPERTIES or head + body_size + 1 + topic_size + 2 + text_size != size:
                break
            if not is_plain(topic, topic_size) or not is_plain(text, text_size):
                break
            queue_id = <int32_t>get32(record + 12)
            queue_offset = <int64_t>get64(record + 20)
            if queue_id < 0 or queue_offset < 0:
                break
            if check_crc and body_size and crc_of(record + head, <Py_ssize_t>body_size) != get32(record + 8):
                break
            memcpy(key, record + 12, 4)
            memcpy(key + 4, topic, topic_size)
            name = PyBytes_FromStringAndSize(<const char*>key, 4 + topic_size)
            queue = <_Queue>known.get(name)
            if queue is None:
                queue = self._find(known, name, topic, topic_size, queue_id)
                if queue is None:
                    break
            if phy + size <= queue.max_phy:
                # It has this one, whatever its number: those of a topic that was made again come twice.
                is_new = False
            elif queue_offset == queue.end:
                is_new = True
            else:
                break
            find_properties(text, text_size, &unique, &keys, &tags)
            if unique.size == 0 or keys.size == 0 or tags.size == 0:
                break
            count = 0
            if pending is not None:
                if unique.size > 0:
                    hashes[0] = index_hash(hash_on(queue.prefix, text + unique.at, unique.size))
                    count = 1
                while keys.size > 0 and count <= MAX_KEYS:
                    stop = <const uint8_t*>memchr(text + keys.at, c' ', keys.size)
                    left = keys.size if stop == NULL else stop - (text + keys.at)
                    if left > 0:
                        hashes[count] = index_hash(hash_on(queue.prefix, text + keys.at, left))
                        count += 1
                    keys.at += left + 1
                    keys.size -= left + 1
                if keys.size > 0:
                    break
            code = <int32_t>hash_on(0, text + tags.at, tags.size) if tags.size > 0 else 0
            store_ms = <int64_t>get64(record + head - 4 - 8 - 4 - 4 - (16 if sys_flag & 0x20 else 4) - 8)
            if is_new:
                buffer = queue.buffer
                unit_at = PyByteArray_GET_SIZE(buffer)
                PyByteArray_Resize(buffer, unit_at + UNIT)
                unit = <uint8_t*>PyByteArray_AS_STRING(buffer) + unit_at
                put64(unit, <uint64_t>phy)
                put32(unit + 8, <uint32_t>size)
                put64(unit + 12, <uint64_t>code)
                queue.end += 1
                queue.max_phy = phy + size
                queue.grew = True
                if queue.wanted:
                    told.append((queue.queue, queue.end, code))
            if count:
                add_pending(pending, hashes, count, phy, store_ms)
            last_phy = phy
            last_size = size
            last_ms = store_ms
            self.taken += 1
            at += <Py_ssize_t>size
        if last_phy < 0:
            return position
        for queue in known.values():
            if queue.grew:
                queue.queue.end = queue.end
                queue.queue.max_phy = queue.max_phy
                if <int64_t>queue.queue.next < queue.end:
                    queue.queue.next = queue.end
                if not queue.queue.dirty:
                    self.table.touched(queue.queue)
        dispatcher.last_phy = last_phy
        dispatcher.last_size = last_size
        dispatcher.store_timestamp = last_ms
        dispatcher.dispatched = last_phy + last_size
        if pending is not None and PyByteArray_GET_SIZE(pending) >= PENDING * 65536:
            self.index.settle()
        for where, number, tag in told:
            dispatcher._tell(where, number, tag)
        return at


cdef inline bint is_plain(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Tell whether bytes are ASCII without NUL."""
    cdef const uint8_t* end = at + size
    cdef uint8_t all_bits = 0
    while at < end:
        if at[0] == 0:
            return False
        all_bits |= at[0]
        at += 1
    return all_bits < 0x80
