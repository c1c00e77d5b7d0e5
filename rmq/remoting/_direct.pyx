# cython: language_level=3, boundscheck=False, wraparound=False
"""
The short way past rmq.remoting.protocol.RemotingProtocol, for the reactor ``rmq-lean``.

What it does with a chunk is what the protocol's dataReceived does when a chunk lane answers all of it, and in any but the
usual state of a connection it leaves the chunk to that.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE


cdef class Direct:
    """
    Asked with each chunk that a connection received; returns what to send in answer, or None with nothing done.

    ``write`` takes what the socket did not. A lane that has ``whole`` is asked with that: it returns the answers to all of
    a chunk, already counted, or None.
    """

    cdef dict protocol, decoder, channel
    cdef list unfinished
    cdef object connection, lane, whole, responders, seconds, observe
    cdef readonly object write

    def __init__(self, connection, lane):
        self.connection = connection
        self.lane = lane
        self.whole = getattr(lane, "whole", None)
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
        if (
            PyList_GET_SIZE(self.unfinished)
            or self.decoder["_broken"] is not None
            or self.channel["_reason"] is not None
            or self.protocol["_sniffed"] is not True
            or self.protocol["_paused"] is not False
            or self.protocol["_collected"] is not None
            or self.protocol["_held"]
            or self.responders.chunk_lane is not self.lane
        ):
            return None
        if self.whole is not None:
            written = self.whole(data)
            if written is not None:
                self.channel["last_active_s"] = self.seconds()
            return written
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
        if written:
            self.write(written)
        self.connection.run_lane(self.lane, data[stop:])
        return b""
