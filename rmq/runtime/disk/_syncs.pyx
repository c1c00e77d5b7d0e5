# cython: language_level=3
"""
The compiled form of rmq.runtime.disk.flusher for files: a thread that calls fdatasync(2) and never needs Python's lock.

To hand a job to a thread of Python and its end back takes longer than a sync of a fast disk: both threads want the lock.
And a look at the page cache, mincore(2), which Python does not have.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

cdef extern from "pthread.h" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*start)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *condition, void *attributes)
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_destroy(pthread_cond_t *condition)

cdef extern from "signal.h" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t *signals)
    int pthread_sigmask(int how, const sigset_t *signals, sigset_t *before)
    enum:
        SIG_SETMASK

cdef extern from "unistd.h" nogil:
    int fdatasync(int fd)
    int close(int fd)
    ssize_t read(int fd, void *buffer, size_t size)
    ssize_t write(int fd, const void *buffer, size_t size)

cdef extern from "sys/mman.h" nogil:
    int mincore(void *address, size_t size, unsigned char *pages)

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int value, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK


cdef enum:
    PAGE = 4096
    PAGES = 1024                    # of one question


def in_memory(const unsigned char[::1] mapped):
    """Tell whether all bytes of a mapped file can be read without waiting for the disk; True where nobody can say."""
    cdef unsigned char pages[PAGES]
    cdef size_t size = mapped.shape[0], step, page
    if not size:
        return True
    cdef size_t at = <size_t>&mapped[0], end = at + size
    at -= at % PAGE
    while at < end:
        step = end - at
        if step > <size_t>PAGES * PAGE:
            step = <size_t>PAGES * PAGE
        if mincore(<void *>at, step, pages):
            return True
        for page in range((step + PAGE - 1) // PAGE):
            if not pages[page] & 1:
                return False
        at += step
    return True


cdef struct Sync:
    int fd
    #: errno, 0 for success
    int error
    #: what is to be called, a reference; the thread does not touch it
    void *done
    Sync *next


cdef struct Syncs:
    Sync *first
    Sync *last


cdef struct Shared:
    pthread_mutex_t lock
    pthread_cond_t more
    #: what the thread has not taken, and what it has done
    Syncs waiting
    Syncs finished
    bint ending
    int event_fd


cdef void _append(Syncs *syncs, Sync *one) noexcept nogil:
    one.next = NULL
    if syncs.first == NULL:
        syncs.first = one
    else:
        syncs.last.next = one
    syncs.last = one


cdef int _synced(int fd) noexcept nogil:
    """Return errno, 0 for success."""
    while fdatasync(fd) != 0:
        if errno != EINTR:
            return errno
    return 0


cdef void _run(Shared *shared, Sync *one) noexcept nogil:
    """Sync each file of the list that begins with ``one``, and notify after each: one sync serves all that waited for it."""
    cdef Syncs same, others
    cdef Sync *next
    cdef int fd, error
    cdef uint64_t count = 1
    while one != NULL:
        fd = one.fd
        error = _synced(fd)
        same.first = others.first = NULL
        while one != NULL:
            next = one.next
            one.error = error
            _append(&same if one.fd == fd else &others, one)
            one = next
        pthread_mutex_lock(&shared.lock)
        if shared.finished.first == NULL:
            shared.finished = same
        else:
            shared.finished.last.next = same.first
            shared.finished.last = same.last
        pthread_mutex_unlock(&shared.lock)
        write(shared.event_fd, &count, sizeof(count))
        one = others.first


cdef void *_work(void *argument) noexcept nogil:
    cdef Shared *shared = <Shared *>argument
    cdef Sync *one
    while True:
        pthread_mutex_lock(&shared.lock)
        while shared.waiting.first == NULL and not shared.ending:
            pthread_cond_wait(&shared.more, &shared.lock)
        one = shared.waiting.first
        shared.waiting.first = NULL
        pthread_mutex_unlock(&shared.lock)
        if one == NULL:
            return NULL
        _run(shared, one)


cdef class SyncThread:
    """The thread, which runs until `end`. ``event_fd`` is readable when `take` has something."""

    cdef Shared shared
    cdef pthread_t thread
    cdef bint running
    cdef readonly int event_fd

    def __cinit__(self):
        cdef sigset_t all_signals, before
        self.event_fd = self.shared.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.event_fd < 0:
            raise OSError(errno, "no eventfd for the thread that syncs files")
        pthread_mutex_init(&self.shared.lock, NULL)
        pthread_cond_init(&self.shared.more, NULL)
        # signals are for the thread that can process them
        sigfillset(&all_signals)
        pthread_sigmask(SIG_SETMASK, &all_signals, &before)
        cdef int error = pthread_create(&self.thread, NULL, _work, &self.shared)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if error:
            raise OSError(error, "no thread that syncs files")
        self.running = True

    def __dealloc__(self):
        if self.running:
            self._end()
        self._free(self.shared.finished.first)
        if self.event_fd >= 0:
            close(self.event_fd)

    cdef void _free(self, Sync *one):
        cdef Sync *next
        while one != NULL:
            next = one.next
            Py_DECREF(<object>one.done)
            free(one)
            one = next

    cdef void _end(self):
        pthread_mutex_lock(&self.shared.lock)
        self.shared.ending = True
        pthread_cond_signal(&self.shared.more)
        pthread_mutex_unlock(&self.shared.lock)
        with nogil:
            pthread_join(self.thread, NULL)
        self.running = False

    def add(self, int fd, done):
        """Sync the file ``fd``; `take` returns ``done`` when that has ended. Not after `end`."""
        if not self.running:
            raise ValueError("the thread that syncs files has ended")
        cdef Sync *one = <Sync *>malloc(sizeof(Sync))
        if one == NULL:
            raise MemoryError()
        one.fd = fd
        one.error = 0
        one.done = <void *>done
        Py_INCREF(done)
        pthread_mutex_lock(&self.shared.lock)
        _append(&self.shared.waiting, one)
        pthread_cond_signal(&self.shared.more)
        pthread_mutex_unlock(&self.shared.lock)

    def take(self):
        """Return (what `add` was given, errno or 0) of all syncs that have ended since the last call, in order."""
        cdef uint64_t count
        cdef Sync *one
        cdef Sync *first
        cdef list found = []
        read(self.event_fd, &count, sizeof(count))
        pthread_mutex_lock(&self.shared.lock)
        first = one = self.shared.finished.first
        self.shared.finished.first = NULL
        pthread_mutex_unlock(&self.shared.lock)
        while one != NULL:
            found.append((<object>one.done, one.error))
            one = one.next
        self._free(first)
        return found

    def end(self):
        """Finish what was added, then end the thread; blocks until that is done. Harmless when repeated."""
        if self.running:
            self._end()
