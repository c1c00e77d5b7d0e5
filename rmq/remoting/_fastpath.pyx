# cython: language_level=3, boundscheck=False, wraparound=False
"""
The fast path through a connection of the reactor ``rmq-lean``: from received bytes to the answers of a chunk lane.

It does what `rmq.remoting.protocol.RemotingProtocol.dataReceived` does when one lane answers all of a chunk, and leaves
every other chunk to the protocol.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memset

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


cdef int64_t likely_code(const char* data, Py_ssize_t size) noexcept nogil:
    """As rmq.wire.command.likely_code, of the first frame; -1 also for a header that is written in another way."""
    cdef const unsigned char* at = <const unsigned char*>data
    cdef Py_ssize_t header
    cdef const char* found
    cdef const char* digits
    cdef const char* end
    cdef int64_t code = 0
    if size < 8 or at[4]:
        return -1
    header = <Py_ssize_t>at[5] << 16 | <Py_ssize_t>at[6] << 8 | at[7]
    if header > size - 8:
        return -1
    found = <const char*>memmem(data + 8, header, b'"code":', 7)
    if found == NULL:
        return -1
    end = data + 8 + header
    found += 7
    digits = found
    while found < end and c'0' <= found[0] <= c'9' and code < 100000:
        code = code * 10 + (found[0] - c'0')
        found += 1
    if found == end or (found[0] != c',' and found[0] != c'}') or found == digits:
        return -1
    return code


cdef class Lane:
    """A chunk lane of a responder table, and what it answered on fast paths since the statistics asked."""

    cdef object lane, whole, code
    cdef long count
    cdef double seconds
    cdef long classes[MAX_CLASSES]
    cdef double bounds[MAX_CLASSES]
    cdef int class_count

    def __init__(self, lane):
        self.lane = lane
        self.code = lane.code
        self.whole = getattr(lane, "whole", None)
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
    protocol is ``at_frame_start``. A lane that has ``whole`` is asked with that first: it returns the answers to all of
    a chunk, which it counts itself, or None.
    """

    cdef object protocol, channel, seconds
    cdef Lanes lanes
    cdef readonly object write

    def __init__(self, protocol, Lanes lanes, seconds):
        self.protocol = protocol
        self.channel = protocol.channel
        self.lanes = lanes
        self.seconds = seconds
        self.write = protocol.channel.write

    def __call__(self, bytes data):
        cdef list answers
        cdef bytes written
        cdef Py_ssize_t stop, size = PyBytes_GET_SIZE(data)
        cdef int64_t code, count
        cdef Lane lane
        cdef timespec began
        if self.protocol.at_frame_start is not True:
            return None
        code = likely_code(PyBytes_AS_STRING(data), size)
        if code < 0:
            return None
        lane = self.lanes.find(code)
        if lane is None:
            return None
        if lane.whole is not None:
            written = lane.whole(data)
            if written is not None:
                self.channel.last_active_s = self.seconds()
            return written
        clock_gettime(CLOCK_MONOTONIC, &began)
        self.channel.last_active_s = self.seconds()
        answers = []
        try:
            stop, count = lane.lane(data, 0, answers, self.channel)
        except Exception as error:
            self.protocol.lane_failed(answers, error)
            return b""
        if count:
            lane.observe(&began, count)
        if stop == size:
            return <bytes>answers[0] if len(answers) == 1 else b"".join(answers)
        if answers:
            self.write(b"".join(answers))
        self.protocol.receive(data[stop:] if stop else data, stop > 0)
        return b""
