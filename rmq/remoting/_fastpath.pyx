# cython: language_level=3, boundscheck=False, wraparound=False
"""
The fast path through a connection of the reactor ``rmq-lean``: from received bytes to the answers of a chunk lane.

It does what `rmq.remoting.protocol.RemotingProtocol.dataReceived` does with what lanes answer at the front of a chunk, and
leaves the rest, and every other chunk, to the protocol. `read_signed` reads what access control checks.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy, memset

from rmq.remoting.responders import MAX_COLLECTED_BYTES
from rmq.remoting.stats import BUCKETS_S

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    enum:
        CLOCK_MONOTONIC

cdef enum:
    MAX_CLASSES = 32
    #: that are sent together where several lanes answer
    MAX_ANSWERS = 64
    #: extFields of a request that `read_signed` reads
    MAX_FIELDS = 64


cdef bint is_space(char c) noexcept nogil:
    return c == c' ' or c'\t' <= c <= c'\r'


cdef int64_t find_code(const char* data, Py_ssize_t size) noexcept nogil:
    cdef const unsigned char* head = <const unsigned char*>data
    cdef const char* at = data + 8
    cdef const char* end
    cdef const char* digits
    cdef int64_t code
    if size < 8 or head[4]:
        return -1
    end = at + (<Py_ssize_t>head[5] << 16 | <Py_ssize_t>head[6] << 8 | head[7])
    if end > data + size:
        return -1
    while True:
        at = <const char*>memmem(at, end - at, b'"code"', 6)
        if at == NULL:
            return -1
        at += 6
        digits = at
        while digits < end and is_space(digits[0]):
            digits += 1
        if digits == end or digits[0] != c':':
            continue
        digits += 1
        while digits < end and is_space(digits[0]):
            digits += 1
        at, code = digits, 0
        while at < end and c'0' <= at[0] <= c'9' and at - digits < 9:
            code = code * 10 + (at[0] - c'0')
            at += 1
        if digits < at < end and (at[0] == c',' or at[0] == c'}' or is_space(at[0])):
            return code


def likely_code(bytes data, Py_ssize_t position):
    """See `rmq.wire.command.likely_code`."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if not 0 <= position <= size:
        return -1
    return find_code(PyBytes_AS_STRING(data) + position, size - position)


cdef struct Span:
    const char* at
    Py_ssize_t size


cdef struct Field:
    Span name
    Span value
    #: the value is written with escapes, as are the separators of a message's properties
    # of ESCAPED and WIDE
    int kind


cdef inline bint is_text(Span* span, bytes text) noexcept:
    return span.size == PyBytes_GET_SIZE(text) and memcmp(span.at, PyBytes_AS_STRING(text), span.size) == 0


cdef enum:
    ESCAPED = 1
    WIDE = 2    # not all ASCII


cdef const char* read_string(const char* at, const char* end, Span* found, int* kind) noexcept nogil:
    """
    Read a string without control characters; return what follows it, NULL for anything else.

    NULL ``kind``: one of ASCII without escapes.
    """
    if at >= end or at[0] != c'"':
        return NULL
    at += 1
    found.at = at
    while at < end and <unsigned char>at[0] >= 0x20 and at[0] != 0x7F:
        if at[0] == c'"':
            found.size = at - found.at
            return at + 1
        if at[0] == c'\\' or <unsigned char>at[0] >= 0x80:
            if kind == NULL:
                return NULL
            if at[0] == c'\\':
                kind[0] |= ESCAPED
                at += 1
            else:
                kind[0] |= WIDE
        at += 1
    return NULL


cdef Py_ssize_t unescape(const char* at, Py_ssize_t size, char* out) noexcept nogil:
    """Write what a text with escapes means; return its length, -1 where one of them is not plain ASCII."""
    cdef const char* end = at + size
    cdef char* begin = out
    cdef int value, index
    while at < end:
        if at[0] != c'\\':
            out[0] = at[0]
            at += 1
        elif end - at >= 6 and at[1] == c'u':
            value = 0
            for index in range(2, 6):
                if c'0' <= at[index] <= c'9':
                    value = value * 16 + at[index] - c'0'
                elif c'a' <= at[index] <= c'f':
                    value = value * 16 + at[index] - c'a' + 10
                elif c'A' <= at[index] <= c'F':
                    value = value * 16 + at[index] - c'A' + 10
                else:
                    return -1
            if value >= 0x80:
                return -1
            out[0] = <char>value
            at += 6
        elif end - at >= 2 and (at[1] == c'"' or at[1] == c'\\' or at[1] == c'/'):
            out[0] = at[1]
            at += 2
        else:
            return -1
        out += 1
    return out - begin


cdef const char* read_value(const char* at, const char* end, Span* found, int* kind) noexcept nogil:
    """Read a string, or a whole number, true or false as its text; return what follows it, NULL for anything else."""
    kind[0] = 0
    if at < end and at[0] == c'"':
        return read_string(at, end, found, kind)
    found.at = at
    if at < end and at[0] == c'-':
        at += 1
    if at < end and c'1' <= at[0] <= c'9':
        while at < end and c'0' <= at[0] <= c'9':
            at += 1
        found.size = at - found.at
        return at if found.size <= 18 else NULL
    at = found.at
    if at < end and at[0] == c'0':
        found.size = 1
    elif end - at >= 4 and memcmp(at, b"true", 4) == 0:
        found.size = 4
    elif end - at >= 5 and memcmp(at, b"false", 5) == 0:
        found.size = 5
    else:
        return NULL
    return at + found.size


cdef const char* read_name(const char* at, const char* end, Span* found) noexcept nogil:
    at = read_string(at, end, found, NULL)
    return NULL if at == NULL or at >= end or at[0] != c':' else at + 1


cdef bint is_utf8(Span* span) except -1:
    try:
        span.at[:span.size].decode()
    except UnicodeDecodeError:
        return False
    return True


cdef inline Py_ssize_t compare(Span* left, Span* right) noexcept nogil:
    """Less than 0 where ``left`` comes first, 0 where both are the same."""
    cdef int order = memcmp(left.at, right.at, min(left.size, right.size))
    return order if order else left.size - right.size


cdef const char* read_fields(const char* at, const char* end, Field* fields, int* count) noexcept nogil:
    """Read an object of plain values into ``fields``, sorted by name; return what follows, NULL for anything else."""
    cdef Field field
    cdef Py_ssize_t order
    cdef int place
    if at >= end or at[0] != c'{':
        return NULL
    while True:
        at = read_name(at + 1, end, &field.name)
        if at == NULL:
            return NULL
        at = read_value(at, end, &field.value, &field.kind)
        if at == NULL or at >= end or count[0] == MAX_FIELDS:
            return NULL
        place = count[0]
        while place:
            order = compare(&fields[place - 1].name, &field.name)
            if order == 0:
                return NULL
            if order < 0:
                break
            fields[place] = fields[place - 1]
            place -= 1
        fields[place] = field
        count[0] += 1
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL


cdef const char* read_scalar(const char* at, const char* end) noexcept nogil:
    """Read a string, a whole number, null, true or false; return what follows, NULL for anything else."""
    cdef Span text
    cdef const char* word
    if at < end and at[0] == c'"':
        return read_string(at, end, &text, NULL)
    word = at
    while at < end and (c'a' <= at[0] <= c'z' or c'0' <= at[0] <= c'9' or at[0] == c'-'):
        at += 1
    return NULL if at == word else at


cdef inline char* put(char* out, Span* span) noexcept nogil:
    """Write a text and NUL; return what follows."""
    memcpy(out, span.at, span.size)
    out[span.size] = 0
    return out + span.size + 1


cdef bint read_digits(const char* at, const char* end, int64_t* value) noexcept nogil:
    """Read a number of one to nine digits as JSON has it; False for anything else."""
    if not 0 < end - at <= 9 or at[0] == c'0' and end - at > 1:
        return False
    value[0] = 0
    while at < end:
        if not c'0' <= at[0] <= c'9':
            return False
        value[0] = value[0] * 10 + (at[0] - c'0')
        at += 1
    return True


def read_answer(bytes data, Py_ssize_t position):
    """
    Read the answer that begins at ``position`` where it says nothing but that a request succeeded.

    Returns where it ends and its opaque. None for one that is not whole, and for all that has another code, extFields, a
    remark, a body, its code, flag or opaque twice, or a header with spaces or other members.
    """
    cdef const unsigned char* head = <const unsigned char*>PyBytes_AS_STRING(data) + position
    cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - position, header_bytes
    cdef const char* at
    cdef const char* end
    cdef const char* value
    cdef Span name
    cdef int64_t opaque = -1, version
    cdef bint has_code = False, has_flag = False
    if position < 0 or left < 8 or head[0] or head[4] or head[5]:
        return None
    header_bytes = <Py_ssize_t>head[6] << 8 | head[7]
    at = <const char*>head + 8
    end = at + header_bytes
    if (<Py_ssize_t>head[1] << 16 | <Py_ssize_t>head[2] << 8 | head[3]) != header_bytes + 4 or left < header_bytes + 8:
        return None
    if header_bytes == 0 or at[0] != c'{':
        return None
    while at[0] != c'}':
        value = at = read_name(at + 1, end, &name)
        if at == NULL:
            return None
        at = read_scalar(at, end)
        if at == NULL or at >= end or at[0] != c',' and at[0] != c'}':
            return None
        if is_text(&name, b"code"):
            if has_code or at - value != 1 or value[0] != c'0':
                return None
            has_code = True
        elif is_text(&name, b"flag"):
            if has_flag or at - value != 1 or value[0] != c'1':
                return None
            has_flag = True
        elif is_text(&name, b"opaque"):
            if opaque >= 0 or not read_digits(value, at, &opaque):
                return None
        elif is_text(&name, b"version"):
            if not read_digits(value, at, &version):
                return None
        elif is_text(&name, b"remark"):
            if at - value != 4 or memcmp(value, b"null", 4) != 0:
                return None
        elif value[0] != c'"' or not is_text(&name, b"language") and not is_text(&name, b"serializeTypeCurrentRPC"):
            return None
    return (position + header_bytes + 8, opaque) if at + 1 == end and has_code and has_flag and opaque >= 0 else None


def read_signed(bytes data, Py_ssize_t position, int64_t code, tuple resource_names):
    """
    Read what access control checks of the request that begins at ``position``, where it is written plainly.

    Returns where it ends, its AccessKey, its Signature, what is signed, and the fields of ``resource_names`` that it has
    (name, NUL, value, NUL of each, by name). None when it is no whole request with that code, and for all that is not a
    JSON header of numbers, words and printable ASCII without spaces and names that come twice. Other values of extFields
    may have any characters, and escapes of ASCII.
    """
    cdef const unsigned char* head = <const unsigned char*>PyBytes_AS_STRING(data) + position
    cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - position, total, body_bytes, size = 0, resource_bytes = 0
    cdef const char* at
    cdef const char* end
    cdef char* out
    cdef Span name
    cdef Span access_key = Span(NULL, 0)
    cdef Span signature = Span(NULL, 0)
    cdef Field fields[MAX_FIELDS + 1]
    cdef Field resources[8]
    cdef int count = 0, resource_count = 0, index
    cdef int64_t found
    cdef bint has_code = False
    cdef bytes content, named
    if position < 0 or left < 8 or head[4]:
        return None
    total = 4 + (<Py_ssize_t>head[0] << 24 | <Py_ssize_t>head[1] << 16 | <Py_ssize_t>head[2] << 8 | head[3])
    at = <const char*>head + 8
    end = at + (<Py_ssize_t>head[5] << 16 | <Py_ssize_t>head[6] << 8 | head[7])
    body_bytes = <const char*>head + total - end
    if total > left or body_bytes < 0 or at >= end or at[0] != c'{':
        return None
    while at[0] != c'}':
        at = read_name(at + 1, end, &name)
        if at == NULL:
            return None
        if is_text(&name, b"extFields"):
            if count:
                return None
            at = read_fields(at, end, fields, &count)
        elif is_text(&name, b"code"):
            has_code = True
            found = 0
            while at < end and c'0' <= at[0] <= c'9' and found < 100_000_000:
                found = found * 10 + (at[0] - c'0')
                at += 1
            if found != code:
                return None
        else:
            at = read_scalar(at, end)
        if at == NULL or at >= end or (at[0] != c',' and at[0] != c'}'):
            return None
    if at + 1 != end or not has_code:
        return None

    for index in range(count):
        if is_text(&fields[index].name, b"Signature"):
            signature = fields[index].value
            continue
        size += fields[index].value.size
        if is_text(&fields[index].name, b"AccessKey"):
            if fields[index].kind:
                return None
            access_key = fields[index].value
        for wanted in resource_names:
            if is_text(&fields[index].name, <bytes>wanted):
                if resource_count == 8 or fields[index].kind:
                    return None
                resources[resource_count] = fields[index]
                resource_count += 1
                resource_bytes += fields[index].name.size + fields[index].value.size + 2
    if access_key.at == NULL or signature.at == NULL:
        return None
    content = PyBytes_FromStringAndSize(NULL, size + body_bytes)
    out = PyBytes_AS_STRING(content)
    for index in range(count):
        if fields[index].value.at != signature.at:
            size = fields[index].value.size
            if fields[index].kind & WIDE and not is_utf8(&fields[index].value):
                return None
            if fields[index].kind & ESCAPED:
                size = unescape(fields[index].value.at, size, out)
                if size < 0:
                    return None
            else:
                memcpy(out, fields[index].value.at, size)
            out += size
    memcpy(out, end, body_bytes)
    size = out + body_bytes - PyBytes_AS_STRING(content)
    if size < PyBytes_GET_SIZE(content):
        content = content[:size]
    named = PyBytes_FromStringAndSize(NULL, resource_bytes)
    out = PyBytes_AS_STRING(named)
    for index in range(resource_count):
        out = put(put(out, &resources[index].name), &resources[index].value)
    return position + total, access_key.at[:access_key.size], signature.at[:signature.size], content, named


cdef class Lane:
    """A chunk lane of a responder table, and what it answered on fast paths since the statistics asked."""

    cdef object lane, whole, together, code
    #: (fast path, chunk) of connections that are answered together at the end of the turn
    cdef list waiting
    cdef long count
    cdef double seconds
    cdef long classes[MAX_CLASSES]
    cdef double bounds[MAX_CLASSES]
    cdef int class_count

    def __init__(self, lane):
        self.lane = lane
        self.code = lane.code
        self.whole = getattr(lane, "whole", None)
        self.together = getattr(lane, "together", None)
        self.waiting = []
        self.class_count = min(len(BUCKETS_S), MAX_CLASSES - 1)
        for index in range(self.class_count):
            self.bounds[index] = BUCKETS_S[index]
        self._clear()

    cdef _clear(self):
        self.count = 0
        self.seconds = 0.0
        memset(self.classes, 0, sizeof(self.classes))

    def take(self):
        """See `rmq.remoting.stats.Source`."""
        taken = self.code, self.count, self.seconds, [self.classes[i] for i in range(self.class_count + 1)]
        self._clear()
        return taken

    def finish(self):
        """
        Answer the chunks of this turn; return (fast path, chunk, answer) of each.

        The answer is None, with nothing done, where the protocol must take the chunk in the ordinary way.
        """
        cdef list waiting = self.waiting, chunks = [], found = []
        cdef FastPath path
        cdef timespec began
        cdef int64_t count
        self.waiting = []
        clock_gettime(CLOCK_MONOTONIC, &began)
        for path, data in waiting:
            # what other events of the turn did to the connection
            if path.protocol.at_frame_start is True and path.channel.is_open:
                chunks.append((path, data))
            else:
                found.append((path, data, None))
        try:
            answers, count = self.together([(data, (<FastPath>path).channel) for path, data in chunks])
        except Exception as error:
            for path, data in chunks:
                path.protocol.lane_failed([], error)
                found.append((path, data, b""))
            return found
        if count:
            self.observe(&began, count)
        for (path, data), answer in zip(chunks, answers):
            if answer is not None:
                path.channel.last_active_s = path.seconds()
            found.append((path, data, answer))
        return found

    cdef void observe(self, timespec* began, int64_t count) noexcept nogil:
        cdef timespec now
        cdef double seconds
        cdef int index = 0
        clock_gettime(CLOCK_MONOTONIC, &now)
        seconds = (now.tv_sec - began.tv_sec) + (now.tv_nsec - began.tv_nsec) * 1e-9
        while index < self.class_count and seconds > self.bounds[index] * count:
            index += 1
        self.count += count
        self.seconds += seconds
        self.classes[index] += count


cdef class Lanes:
    """The lanes of a responder table, for all its connections."""

    cdef object responders, lanes
    cdef dict by_code

    def __init__(self, responders):
        self.responders = responders
        self.lanes = None
        self.by_code = {}

    cdef Lane find(self, int64_t code):
        """Return the lane of a request code; None when there is none."""
        cdef PyObject* found
        lanes = self.responders.chunk_lanes
        if lanes is not self.lanes:
            self._learn(lanes)
        found = PyDict_GetItem(self.by_code, code)
        return None if found is NULL else <Lane>found

    def _learn(self, lanes):
        by_code = {}
        for code, lane in lanes.items():
            known = self.by_code.get(code)
            if known is None or (<Lane>known).lane is not lane:
                known = Lane(lane)
                self.responders.stats.add_source((<Lane>known).take)
            by_code[code] = known
        self.by_code = by_code
        self.lanes = lanes


cdef class FastPath:
    """
    Asked with each chunk that a connection received; returns what to send in answer, or None with nothing done.

    ``write`` takes what the socket did not. It is asked for nothing but requests that have a lane, and only where the
    protocol is ``at_frame_start``. Where ``more`` connections have sent something it may return its `Lane`, which must be
    asked to `Lane.finish` at the end of the turn. A lane that has ``whole`` is asked with that instead, see
    `rmq.remoting.responders.WholeLane`.
    """

    cdef object protocol, channel, seconds
    cdef Lanes lanes
    cdef readonly object transport, write

    def __init__(self, protocol, Lanes lanes, seconds):
        self.protocol = protocol
        self.channel = protocol.channel
        self.transport = protocol.transport
        self.lanes = lanes
        self.seconds = seconds
        self.write = protocol.channel.write

    def __call__(self, bytes data, bint more=False):
        cdef list answers
        cdef Py_ssize_t position = 0, stop, size = PyBytes_GET_SIZE(data)
        cdef int64_t code, count
        cdef Lane lane, following
        cdef timespec began
        if self.protocol.at_frame_start is not True:
            return None
        code = find_code(PyBytes_AS_STRING(data), size)
        if code < 0:
            return None
        lane = self.lanes.find(code)
        if lane is None:
            return None
        if more and lane.together is not None:
            lane.waiting.append((self, data))
            return lane
        clock_gettime(CLOCK_MONOTONIC, &began)
        if lane.whole is not None:
            known = lane.whole(data)
            if known is None:
                return None
            self.channel.last_active_s = self.seconds()
            lane.observe(&began, (<tuple>known)[1])
            return (<tuple>known)[0]
        self.channel.last_active_s = self.seconds()
        answers = []
        while True:
            try:
                stop, count = lane.lane(data, position, answers, self.channel)
            except Exception as error:
                self.protocol.lane_failed(answers, error)
                return b""
            if count:
                lane.observe(&began, count)
            if stop == size:
                return <bytes>answers[0] if len(answers) == 1 else b"".join(answers)
            code = find_code(PyBytes_AS_STRING(data) + stop, size - stop)
            following = self.lanes.find(code) if code >= 0 else None
            # The same lane would not go on: it declined, or its answers are long and must be written first.
            if following is None or following is lane or stop == position or not self.channel.is_open:
                break
            if len(answers) > MAX_ANSWERS or sum(map(len, answers)) > MAX_COLLECTED_BYTES:
                break
            lane = following
            position = stop
            clock_gettime(CLOCK_MONOTONIC, &began)
        if answers:
            self.write(b"".join(answers))
        self.protocol.receive(data[stop:] if stop else data, stop > 0)
        return b""
