"""
Files with the semantics of fsync, so that the simulator can replace them by a disk that loses power.

Read in this order:

* `files`: the interfaces Disk and File, and the real disk
* `error`: DiskError, DiskFull, SyncFailed, DiskLocked
* `realfile`: one open file (pwrite, mmap); `syscalls`: complete system calls
* `flusher`: the thread that runs fsync, and the one that reads what is not in memory
* `filesystem`: one syncfs for many files
* `statefile`: small state files with a ``.bak``
* `openlimit`: the limit of open files

What always holds: written bytes survive a kill, and a power failure only after a completed fsync. A failed fsync is
final: the file refuses writes, because the kernel may have dropped its pages.
"""
