# cython: language_level=3, boundscheck=False, wraparound=False
"""
The compiled form of the event loop of rmq.runtime.leanreactor; same order, same result, less time.

A connection may carry ``fast_path``, a callable that is given the bytes received and whether other connections have
events in this turn, too. It returns bytes to send in answer, or None to have the protocol get them in the ordinary way, or
an object whose ``finish`` must be called at the end of the turn: that returns (fast path, bytes received, answer) for each
connection that waits for it. A fast path has ``transport``, and ``write`` for what the socket does not take. An encrypted
connection has ``records``, see Records.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError as PyDict_GetItem
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject, PyObject_IsTrue
from libc.errno cimport EAGAIN, EINTR, ENOBUFS, EPIPE, errno
from libc.math cimport ceil
from libc.stdint cimport uint32_t, uintptr_t

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    enum:
        EPOLLIN

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)
    enum:
        MSG_NOSIGNAL

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    enum:
        CLOCK_MONOTONIC

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #define keep_freed_blocks() (mallopt(M_MMAP_THRESHOLD, 1 << 20) && mallopt(M_TRIM_THRESHOLD, 8 << 20))
    #define give_back_blocks() malloc_trim(8 << 20)
    #else
    #define keep_freed_blocks() 0
    #define give_back_blocks() 0
    #endif
    """
    int keep_freed_blocks()
    int give_back_blocks()

cdef enum:
    MAX_EVENTS = 1024
    #: what Twisted reads at a time, too
    READ_BYTES = 65536
    #: what is read at a time when a frame begins that is longer: a send of 64 KiB in two parts took 187 us of CPU, in one 120
    BUFFER_BYTES = 262144
    #: see Spinning
    FEWEST = 16
    MOST = 256
    RECENT = 4
    #: bytes of answers that wait for the end of a turn
    MAX_WAITING = 262144
    #: what decrypts from READ_BYTES and a record that began before, a record has 16 KiB
    PLAIN_BYTES = READ_BYTES + 32768
    RECORD_BYTES = 16384
    #: send_limit in records, and one more
    CIPHER_BYTES = 163840
    #: of openssl/ssl.h
    SSL_ERROR_NONE = 0
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_ZERO_RETURN = 6

cdef char _received[BUFFER_BYTES]
cdef char _decrypted[PLAIN_BYTES]
cdef char _encrypted[CIPHER_BYTES]


def keep_freed_memory():
    """
    Make the C library keep freed blocks below 1 MiB, at most 8 MiB, for reuse; False where it cannot.

    The registration of a broker with 5,000 topics is a frame of nearly 1 MiB, and each copy of it would be 200 pages that
    the kernel hands out, clears and takes back: 60 % of what an unchanged one costs.
    """
    return bool(keep_freed_blocks())


def give_back_memory():
    """
    Give the pages of freed blocks back to the system but for 8 MiB, also those between blocks in use.

    Takes some milliseconds for each hundred MiB; True when there were any.
    """
    return bool(give_back_blocks())


cdef inline bint _holds(dict state, str name) except -1:
    """Whether an attribute of an instance is true; the classes' defaults of all that are asked for are false."""
    cdef PyObject *value = PyDict_GetItem(state, name)
    if value is NULL or value is <PyObject *>None or value is <PyObject *>False:
        return False
    return PyObject_IsTrue(<object>value)


ctypedef int (*Transfer)(void *source_or_target, void *bytes, int size) noexcept nogil

cdef struct OpenSsl:
    Transfer ssl_read
    Transfer ssl_write
    Transfer bio_read
    Transfer bio_write
    int (*ssl_get_error)(void *ssl, int returned) noexcept nogil
    void (*err_clear_error)() noexcept nogil

cdef OpenSsl _openssl


def use_openssl(uintptr_t ssl_read, uintptr_t ssl_write, uintptr_t bio_read, uintptr_t bio_write,
                uintptr_t ssl_get_error, uintptr_t err_clear_error):
    """Tell where functions of the OpenSSL library are that pyOpenSSL uses, to be called before Records are made."""
    _openssl.ssl_read = <Transfer>ssl_read
    _openssl.ssl_write = <Transfer>ssl_write
    _openssl.bio_read = <Transfer>bio_read
    _openssl.bio_write = <Transfer>bio_write
    _openssl.ssl_get_error = <int (*)(void *, int) noexcept nogil>ssl_get_error
    _openssl.err_clear_error = <void (*)() noexcept nogil>err_clear_error


cdef class Records:
    """
    The records of an encrypted connection after its handshake.

    ``layer`` is Twisted's TLS protocol between transport and protocol; ``ssl``, ``into`` and ``out`` are the addresses of its
    OpenSSL ``connection``, which they keep alive, and of the buffers before and behind that. ``unsent`` is the list of what
    the layer will encrypt later. All that is special (errors, the end, bytes that OpenSSL or the socket does not take) is
    left to the layer. OpenSSL's queue of errors is one for all connections: nothing may be left in it.
    """

    cdef object layer, connection
    cdef dict state
    cdef list unsent
    cdef void *ssl
    cdef void *into
    cdef void *out
    #: why no more could be decrypted, of SSL_ERROR_...
    cdef int why

    def __init__(self, layer, connection, list unsent, uintptr_t ssl, uintptr_t into, uintptr_t out):
        self.layer = layer
        self.connection = connection
        self.state = layer.__dict__
        self.unsent = unsent
        self.ssl = <void *>ssl
        self.into = <void *>into
        self.out = <void *>out

    cdef bint is_open(self) except -1:
        """Whether the layer does nothing else than pass bytes on."""
        return (
            PyList_GET_SIZE(self.unsent) == 0
            and not _holds(self.state, "_appSendBuffer")
            and not _holds(self.state, "_lostTLSConnection")
            and not _holds(self.state, "_aborted")
            and not _holds(self.state, "disconnecting")
        )

    cdef bint reads(self) except -1:
        """Whether received bytes are to be decrypted, and the layer has nothing else to do with them."""
        return not _holds(self.state, "_appSendBuffer") and not _holds(self.state, "_lostTLSConnection")

    cdef bytes decrypt(self, ssize_t size):
        """
        Return what ``size`` received bytes, and those of a record that has begun, decrypt to; ``why`` is why it is no more.

        All is well with SSL_ERROR_WANT_READ. Otherwise :meth:`end` must follow.
        """
        cdef ssize_t filled = 0
        cdef int got = 0
        self.why = SSL_ERROR_NONE
        _openssl.err_clear_error()
        if _openssl.bio_write(self.into, _received, <int>size) == size:
            while filled < PLAIN_BYTES:
                got = _openssl.ssl_read(self.ssl, _decrypted + filled, <int>(PLAIN_BYTES - filled))
                if got <= 0:
                    self.why = _openssl.ssl_get_error(self.ssl, got)
                    break
                filled += got
        return PyBytes_FromStringAndSize(_decrypted, filled)

    cdef int encrypt(self, const char *data, ssize_t size) noexcept:
        """Encrypt one record; return how many bytes it has, 0 when OpenSSL does not take them: the layer meets that again."""
        cdef int got = _openssl.ssl_write(self.ssl, <void *>data, <int>min(size, RECORD_BYTES))
        if got <= 0:
            _openssl.err_clear_error()
            return 0
        return got

    cdef int take(self, char *room, int size) noexcept:
        """Take encrypted bytes, or what is to be said to the other OpenSSL; return how many."""
        return max(_openssl.bio_read(self.out, room, size), 0)

    cdef int end(self, bytes data) except -1:
        """Deliver ``data`` and let the layer find out why no more could be decrypted."""
        try:
            if self.why == SSL_ERROR_NONE or self.why == SSL_ERROR_ZERO_RETURN:
                self.deliver(data)
                self.layer._flushReceiveBIO()
            else:
                # before anything else that uses OpenSSL makes it forget the error
                self.layer._flushReceiveBIO()
                self.deliver(data)
        finally:
            _openssl.err_clear_error()
        return 0

    cdef int deliver(self, bytes data) except -1:
        """Give decrypted bytes to the protocol, as the layer does."""
        if data and not _holds(self.state, "_aborted"):
            self.layer.wrappedProtocol.dataReceived(data)
        return 0


cdef inline Records _records(dict state):
    """Return the records of a transport that is encrypted and past its handshake."""
    cdef PyObject *found = PyDict_GetItem(state, "records")
    return None if found is NULL else <Records>found


cdef inline bint _passes(dict state) except -1:
    """Whether bytes for the protocol's peer need no handshake first and do not wait behind others."""
    cdef Records records
    if not _holds(state, "TLS"):
        return True
    records = _records(state)
    return records is not None and records.is_open()


cdef inline bint _sends_now(dict state) except -1:
    """See the conditions of rmq.runtime.leanreactor.sends_now; ``state`` is the transport's ``__dict__``."""
    return (
        not _holds(state, "_tempDataLen")
        and not _holds(state, "dataBuffer")
        and _holds(state, "connected")
        and not _holds(state, "disconnecting")
        and not _holds(state, "_aborting")
        and (not _holds(state, "producer") or _holds(state, "streamingProducer"))
        and not _holds(state, "producerPaused")
        and not _holds(state, "_writeDisconnecting")
        and not _holds(state, "_writeDisconnected")
        and _passes(state)
    )


cdef class Spinning:
    """
    Decides whether a wait for events asks again and again at first, instead of sleeping at once.

    Falling asleep and being woken takes longer than a small request, and the peer waits for it. So where a few connections ask
    again as soon as they are answered, a wait does not sleep for the first ``limit_ns`` (0: never so). That begins after 16 waits
    in a row that took no longer and whose events were of connections that had one of the last 4 events before. It ends with the
    first wait that is not so; if that one took longer, the next beginning takes twice as many waits, up to 256, and 16
    successes halve that. So hardly any time is lost where events come by chance, where many connections keep the process
    busy, or where the peer needs this core.
    """

    cdef readonly long limit_ns
    #: whether the next wait asks again and again
    cdef readonly bint on
    #: so many short waits in a row begin it
    cdef readonly long needed
    cdef long short_waits
    #: descriptors of the last events
    cdef int recent[RECENT]
    cdef unsigned int next

    def __init__(self, long limit_ns):
        self.limit_ns = limit_ns
        self.needed = FEWEST

    def note(self, long waited_ns, int fd):
        """Note how long a wait took, in nanoseconds, asleep or not, and the descriptor that ended it."""
        self._note(waited_ns, self._is_recent(fd))

    cdef void _note(self, long waited_ns, bint recent) noexcept nogil:
        if waited_ns > self.limit_ns or not recent:
            if self.on and waited_ns > self.limit_ns:
                self.needed = min(2 * self.needed, MOST)
            self.on = False
            self.short_waits = 0
            return
        self.short_waits += 1
        if not self.on:
            if self.short_waits >= self.needed:
                self.on = True
                self.short_waits = 0
        elif self.short_waits == FEWEST:
            self.needed = max(self.needed // 2, FEWEST)
            self.short_waits = 0

    cdef bint _is_recent(self, int fd) noexcept nogil:
        """Whether one of the last events was of this descriptor; this one is the last from now on."""
        cdef int number
        cdef bint found = False
        for number in range(RECENT):
            found = found or self.recent[number] == fd
        self.recent[self.next % RECENT] = fd
        self.next += 1
        return found

    cdef int wait(self, int epoll_fd, epoll_event *events, int most, int wait_ms) noexcept nogil:
        """Wait as epoll_wait(2) does."""
        cdef int count = 0
        cdef long began, waited = 0
        cdef bint recent = True
        cdef int number
        if self.limit_ns == 0:
            return epoll_wait(epoll_fd, events, most, wait_ms)
        began = _now_ns()
        if self.on:
            while count == 0 and waited <= self.limit_ns:
                count = epoll_wait(epoll_fd, events, most, 0)
                if count == 0:
                    sched_yield()  # to the peer, if it is ready and waits for this core
                waited = _now_ns() - began
        if count == 0:
            count = epoll_wait(epoll_fd, events, most, wait_ms)
            waited = _now_ns() - began
        if count > RECENT:
            recent = False
        else:
            for number in range(count):
                recent = self._is_recent(events[number].data.fd) and recent
        self._note(waited, recent)
        return count


cdef inline long _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1000000000 + now.tv_nsec


cdef class Lean:
    """
    What the reactor and its transports call.

    ``broken(transport)`` is called for a socket that send(2) found broken; ``lost`` and ``done`` are Twisted's reasons of a
    connection's end; ``send_limit`` is the most that is sent at once, in bytes; ``spin_ns`` is for
    :class:`Spinning`. ``kinds`` are the two classes of lean transports.
    """

    cdef object broken, lost, done, server, client
    #: what is to be finished at the end of the turn
    cdef list unfinished
    #: (transport, fast path, answer) to send at the end of the turn, and how many bytes that is
    cdef list waiting
    cdef ssize_t waiting_bytes
    cdef ssize_t send_limit
    cdef readonly Spinning spinning

    def __init__(self, broken, lost, done, ssize_t send_limit, long spin_ns):
        self.spinning = Spinning(spin_ns)
        self.broken = broken
        self.lost = lost
        self.done = done
        self.send_limit = send_limit
        self.unfinished = []
        self.waiting = []

    def set_kinds(self, server, client):
        """Set the classes of lean transports, a server's and a client's."""
        self.server = server
        self.client = client

    def poll(self, reactor, int epoll_fd, dict selectables, timeout):
        """
        Wait ``timeout`` seconds at most (None: for ever) for events, and process them.

        Everything else than a read of what says ``lean = True`` is left to the methods work_on, end_of and fail of ``reactor``.
        """
        cdef epoll_event events[MAX_EVENTS]
        cdef int wait_ms = -1
        cdef int count, number, fd
        cdef int most = min(max(<int>len(selectables), 1), MAX_EVENTS)
        cdef double seconds
        cdef PyObject *found
        cdef object selectable
        if timeout is not None:
            seconds = timeout
            # never early; at most a week
            wait_ms = <int>ceil(min(seconds, 604800.0) * 1000.0) if seconds >= 0 else -1
        if wait_ms == 0:
            count = epoll_wait(epoll_fd, events, most, 0)
        else:
            with nogil:
                count = self.spinning.wait(epoll_fd, events, most, wait_ms)
        if count < 0:
            if errno == EINTR:
                PyErr_CheckSignals()
                return
            PyErr_SetFromErrno(OSError)
        for number in range(count):
            fd = events[number].data.fd
            found = PyDict_GetItem(selectables, fd)
            if found is NULL:
                continue
            selectable = <object>found
            if events[number].events == EPOLLIN and (self._is_kind(selectable) or getattr(selectable, "lean", False)):
                self._read(reactor, selectable, fd, count > 1)
            else:
                reactor.work_on(selectable, fd, events[number].events)
        while PyList_GET_SIZE(self.unfinished):
            self._finish(reactor, self.unfinished.pop())
        if PyList_GET_SIZE(self.waiting):
            self._send_waiting(reactor)

    cdef inline bint _is_kind(self, object selectable):
        return type(selectable) is self.server or type(selectable) is self.client

    cdef int _read(self, object reactor, object transport, int fd, bint more) except -1:
        cdef dict state
        cdef ssize_t size
        cdef bytes data
        cdef object why, answer
        cdef PyObject *found
        cdef object fast_path
        cdef Records records
        try:
            if transport.fileno() != fd:
                reactor.work_on(transport, fd, EPOLLIN)
                return 0
            state = transport.__dict__
            if (
                PyDict_GetItem(state, "doRead") is not NULL
                # it asks for longer pieces, as a slave's
                or PyDict_GetItem(state, "bufferSize") is not NULL
                or not self._is_kind(transport)
            ):
                why = transport.doRead()
            else:
                records = _records(state)
                with nogil:
                    size = recv(fd, _received, READ_BYTES, 0)
                if size == READ_BYTES and records is None:
                    size += self._read_on(transport, fd)
                if size > 0:
                    if records is None:
                        data = PyBytes_FromStringAndSize(_received, size)
                    elif not records.reads():
                        records.layer.dataReceived(_received[:size])
                        return 0
                    else:
                        data = records.decrypt(size)
                        if records.why != SSL_ERROR_WANT_READ:
                            records.end(data)
                            return 0
                        self._send_encrypted(transport, fd, records, 0)
                        if not data:
                            return 0
                    found = PyDict_GetItem(state, "fast_path")
                    # a reference of our own: the transport may give it up while it is asked
                    fast_path = None if found is NULL else <object>found
                    if fast_path is not None and _sends_now(state):
                        answer = fast_path(data, more)
                        if PyBytes_CheckExact(answer):
                            if more:
                                self._keep(reactor, transport, fast_path, answer)
                            else:
                                self._answer(transport, fd, fast_path, answer)
                            return 0
                        if answer is not None:
                            if answer not in self.unfinished:
                                self.unfinished.append(answer)
                            return 0
                    self._deliver(transport, data)
                    return 0
                if size == 0:
                    why = self.done
                elif errno == EAGAIN or errno == EINTR:
                    return 0
                else:
                    why = self.lost
            if why:
                reactor.end_of(transport, why)
        except BaseException as error:
            reactor.fail(transport, error)
        return 0

    cdef ssize_t _read_on(self, object transport, int fd) except -1:
        """Return how many bytes more were read, where a frame may have begun that is longer than what came."""
        cdef const unsigned char *at = <const unsigned char *>_received
        cdef ssize_t size
        if (<uint32_t>at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3]) + 4 <= READ_BYTES:
            return 0
        with nogil:
            size = recv(fd, _received + READ_BYTES, BUFFER_BYTES - READ_BYTES, 0)
        if size < 0 and errno != EAGAIN and errno != EINTR:
            self.broken(transport)
        return max(size, 0)

    cdef int _deliver(self, object transport, bytes data) except -1:
        cdef Records records = _records(transport.__dict__)
        if records is None:
            transport.protocol.dataReceived(data)
        else:
            records.deliver(data)
        return 0

    cdef int _finish(self, object reactor, object unfinished) except -1:
        cdef object fast_path, data, answer, transport
        for fast_path, data, answer in unfinished.finish():
            transport = fast_path.transport
            try:
                if answer is not None:
                    self._keep(reactor, transport, fast_path, answer)
                elif transport.connected:  # another event of the turn may have ended it
                    self._deliver(transport, data)
            except BaseException as error:
                reactor.fail(transport, error)
        return 0

    cdef int _keep(self, object reactor, object transport, object fast_path, bytes answer) except -1:
        """
        Send an answer at the end of the turn, with those of the other connections.

        One after the other they find a peer of several connections awake; to wake it for each took 8 % of the CPU time.
        """
        self.waiting.append((transport, fast_path, answer))
        self.waiting_bytes += PyBytes_GET_SIZE(answer)
        if self.waiting_bytes >= MAX_WAITING:
            self._send_waiting(reactor)
        return 0

    cdef int _send_waiting(self, object reactor) except -1:
        cdef list waiting = self.waiting
        cdef object transport, fast_path, answer
        self.waiting = []
        self.waiting_bytes = 0
        for transport, fast_path, answer in waiting:
            try:
                self._answer(transport, transport.fileno(), fast_path, answer)
            except BaseException as error:
                reactor.fail(transport, error)
        return 0

    cdef int _answer(self, object transport, int fd, object fast_path, bytes answer) except -1:
        cdef ssize_t length = PyBytes_GET_SIZE(answer)
        cdef ssize_t sent = 0
        if length == 0:
            return 0
        # not before what was written while the answer was made, and may be unsent
        if length <= self.send_limit and _sends_now(transport.__dict__):
            sent = self._send(transport, fd, answer)
        if sent < length:
            fast_path.write(answer[sent:] if sent else answer)
        return 0

    cdef ssize_t _send(self, object transport, int fd, bytes data) except -1:
        """Return how many bytes of ``data`` need not be written any more."""
        cdef Records records = _records(transport.__dict__)
        cdef ssize_t done = 0, length = PyBytes_GET_SIZE(data)
        cdef int got, filled = 0
        if records is None:
            return self._send_bytes(transport, fd, PyBytes_AS_STRING(data), length)
        _openssl.err_clear_error()
        while done < length:
            got = records.encrypt(PyBytes_AS_STRING(data) + done, length - done)
            if got == 0:
                break
            done += got
            # record by record, because the buffer of a connection keeps its greatest size
            filled += records.take(_encrypted + filled, CIPHER_BYTES - filled)
            if CIPHER_BYTES - filled < RECORD_BYTES + 2048:
                self._send_encrypted(transport, fd, records, filled)
                filled = 0
        if done == 0:
            return 0
        self._send_encrypted(transport, fd, records, filled)
        if done < length:
            records.layer.write(data[done:])
        return length

    cdef int _send_encrypted(self, object transport, int fd, Records records, int filled) except -1:
        """Send ``filled`` bytes taken from ``records``, and all others; what the socket does not take goes to the transport."""
        cdef ssize_t sent
        while True:
            filled += records.take(_encrypted + filled, CIPHER_BYTES - filled)
            if filled == 0:
                return 0
            sent = 0
            if not _holds(transport.__dict__, "_tempDataLen") and not _holds(transport.__dict__, "dataBuffer"):
                sent = self._send_bytes(transport, fd, _encrypted, filled)
            if sent < filled:
                records.layer.transport.write(_encrypted[sent:filled])
            filled = 0

    cdef ssize_t _send_bytes(self, object transport, int fd, const char *start, ssize_t length) except -1:
        cdef ssize_t sent
        with nogil:
            sent = send(fd, start, length, MSG_NOSIGNAL)
        if sent >= 0:
            return sent
        # errors after which reading reports the reason: buffer full, or closed by the peer before
        if errno != EAGAIN and errno != ENOBUFS and errno != EPIPE and errno != EINTR:
            self.broken(transport)
        return 0

    def send_now(self, transport, data):
        """Send ``data`` if the transport is in its usual state; return how many bytes the socket took."""
        cdef dict state = transport.__dict__
        if (
            PyBytes_CheckExact(data)
            and 0 < PyBytes_GET_SIZE(data) <= self.send_limit
            and _sends_now(state)
        ):
            return self._send(transport, transport.fileno(), data)
        return 0
