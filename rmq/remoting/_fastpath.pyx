# cython: language_level=3, boundscheck=False, wraparound=False
"""
The fast path through a connection of the reactor ``rmq-lean``: from received bytes to the answers of a chunk lane.

It does what `rmq.remoting.protocol.RemotingProtocol.dataReceived` does with what lanes answer at the front of a chunk, and
leaves the rest, and every other chunk, to the protocol.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memset

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
