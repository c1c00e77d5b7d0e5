# cython: language_level=3, boundscheck=False, wraparound=False
"""
The short way past rmq.remoting.protocol.RemotingProtocol, for the reactor ``rmq-lean``.

What it does with a chunk is what the protocol's dataReceived does when a chunk lane answers all of it, and in any but the
usual state of a connection it leaves the chunk to that.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)


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


cdef class Direct:
    """
    Asked with each chunk that a connection received; returns what to send in answer, or None with nothing done.

    ``write`` takes what the socket did not. A lane that has ``whole`` is asked with that: it returns the answers to all of
    a chunk, already counted, or None. Otherwise the lane of the first request's code is asked.
    """

    cdef dict protocol, decoder, channel
    cdef list unfinished
    cdef object connection, lanes, lane, whole, responders, seconds, observe
    cdef int64_t code
    cdef readonly object write

    def __init__(self, connection, lanes):
        self.connection = connection
        self.lanes = lanes
        self.lane = None
        self.code = -1
        self.whole = next((lane.whole for lane in lanes.values() if hasattr(lane, "whole")), None)
        self.protocol = connection.__dict__
        self.responders = connection._responders
        self.observe = connection._responders.stats.observe
        self.decoder = connection._decoder.__dict__
        self.unfinished = connection._decoder._pieces
        self.channel = connection.channel.__dict__
        self.seconds = connection._clock.seconds
        self.write = connection.channel.write

    def __call__(self, bytes data):
        cdef list answers
        cdef bytes written
        cdef Py_ssize_t stop, count
        cdef int64_t code
        if (
            PyList_GET_SIZE(self.unfinished)
            or self.decoder["_broken"] is not None
            or self.channel["_reason"] is not None
            or self.protocol["_sniffed"] is not True
            or self.protocol["_paused"] is not False
            or self.protocol["_collected"] is not None
            or self.protocol["_held"]
            or self.responders.chunk_lanes is not self.lanes
        ):
            return None
        if self.whole is not None:
            written = self.whole(data)
            if written is not None:
                self.channel["last_active_s"] = self.seconds()
            return written
        code = likely_code(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if code < 0:
            return None
        if code != self.code:
            self.lane = self.lanes.get(code)
            self.code = code
        if self.lane is None:
            return None
        answers = []
        started_s = self.channel["last_active_s"] = self.seconds()
        try:
            stop, count = self.lane(data, 0, answers, self.connection.channel)
        except Exception as error:
            self.connection.lane_failed(answers, error)
            return b""
        written = b"".join(answers)
        if count:
            now_s = self.channel["last_active_s"] = self.seconds()
            self.observe(self.lane.code, now_s - started_s, count)
        if stop == PyBytes_GET_SIZE(data):
            return written
        if stop == 0:
            self.connection.cut(data)
            return b""
        if written:
            self.write(written)
        self.connection.run_lanes(data[stop:])
        return b""
