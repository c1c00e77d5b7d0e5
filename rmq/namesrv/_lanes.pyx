# cython: language_level=3, boundscheck=False, wraparound=False
"""
The fast path of rmq.namesrv.lanes.RouteLane for look-ups that it knows by their bytes.

A chunk with anything else in it is left to Python as a whole.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)

cdef enum:
    #: frames of one chunk; more are left to Python
    MAX_FRAMES = 64
    PREFIX_BYTES = 8
    OPAQUE_BYTES = 9

cdef struct Piece:
    #: the bytes before the opaque of an answer, the opaque, and the rest
    const char *before
    const char *digits
    const char *rest
    Py_ssize_t before_bytes
    Py_ssize_t digit_count
    Py_ssize_t rest_bytes


cdef class KnownQuestions:
    """
    The look-ups that a chunk lane knows, with their answers.

    ``questions`` and ``answers`` are the lane's own dictionaries. Limits: ``longest`` for the bytes of a request,
    ``largest_opaque`` in digits, ``most_bytes`` for the answers to one chunk, about.
    """

    cdef dict questions, answers
    cdef object routes, settings, version, config
    cdef bytes largest_opaque
    cdef Py_ssize_t longest, most_bytes

    def __init__(
        self,
        dict questions,
        dict answers,
        routes,
        settings,
        Py_ssize_t longest,
        bytes largest_opaque,
        Py_ssize_t most_bytes,
    ):
        self.questions = questions
        self.answers = answers
        self.routes = routes
        self.settings = settings
        self.longest = longest
        self.largest_opaque = largest_opaque
        self.most_bytes = most_bytes

    def fresh(self, version, config):
        """Note the version of the routes and the configuration for which the answers are valid."""
        self.version = version
        self.config = config

    cdef int find(self, bytes data, Py_ssize_t *position, Piece *piece) except -1:
        """Find the answer to the frame at ``position`` and move past it; 0 when it is not known."""
        cdef const char *start = PyBytes_AS_STRING(data) + position[0]
        cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - position[0]
        cdef const unsigned char *head = <const unsigned char *>start
        cdef const char *gap
        cdef const char *comma
        cdef const char *at
        cdef Py_ssize_t length, before, after, most_digits
        cdef bytes key
        cdef char *copy
        cdef PyObject *question
        cdef PyObject *answer
        if left <= PREFIX_BYTES:
            return 0
        length = 4 + (<Py_ssize_t>head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3])
        if length > left or length > self.longest or length <= PREFIX_BYTES:
            return 0
        gap = <const char *>memmem(start, length, b'"opaque":', OPAQUE_BYTES)
        if gap is NULL:
            return 0
        gap += OPAQUE_BYTES
        comma = <const char *>memchr(gap, c',', start + length - gap)
        most_digits = PyBytes_GET_SIZE(self.largest_opaque)
        if comma is NULL or comma == gap or comma - gap > most_digits:
            return 0
        if comma - gap == most_digits and memcmp(gap, PyBytes_AS_STRING(self.largest_opaque), most_digits) > 0:
            return 0
        if gap[0] == c'0' and comma - gap > 1:
            return 0
        at = gap
        while at < comma:
            if at[0] < c'0' or at[0] > c'9':
                return 0
            at += 1
        before = gap - start
        after = start + length - comma
        key = PyBytes_FromStringAndSize(NULL, before + after)
        copy = PyBytes_AS_STRING(key)
        memcpy(copy, start, before)
        memcpy(copy + before, comma, after)
        question = PyDict_GetItem(self.questions, key)
        if question is NULL:
            return 0
        answer = PyDict_GetItem(self.answers, <object>question)
        if answer is NULL:
            return 0
        piece.before = PyBytes_AS_STRING((<tuple>answer)[0])
        piece.before_bytes = PyBytes_GET_SIZE((<tuple>answer)[0])
        piece.digits = gap
        piece.digit_count = comma - gap
        piece.rest = PyBytes_AS_STRING((<tuple>answer)[1])
        piece.rest_bytes = PyBytes_GET_SIZE((<tuple>answer)[1])
        position[0] += length
        return 1

    def whole(self, bytes data):
        """Return the answers to all requests in ``data`` and their number; None when one of them is not known."""
        cdef Piece pieces[MAX_FRAMES]
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
        cdef int count = 0
        cdef int number
        cdef bytes answers
        cdef char *to
        if end == 0 or self.settings.namesrv is not self.config or self.routes.version != self.version:
            return None
        while position < end:
            if count == MAX_FRAMES or size > self.most_bytes or not self.find(data, &position, &pieces[count]):
                return None
            size += pieces[count].before_bytes + pieces[count].digit_count + pieces[count].rest_bytes
            count += 1
        answers = PyBytes_FromStringAndSize(NULL, size)
        to = PyBytes_AS_STRING(answers)
        for number in range(count):
            memcpy(to, pieces[number].before, pieces[number].before_bytes)
            to += pieces[number].before_bytes
            memcpy(to, pieces[number].digits, pieces[number].digit_count)
            to += pieces[number].digit_count
            memcpy(to, pieces[number].rest, pieces[number].rest_bytes)
            to += pieces[number].rest_bytes
        return answers, count
