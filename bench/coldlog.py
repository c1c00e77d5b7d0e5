"""Takes a running broker's log out of the page cache, also what the broker has mapped (Linux 5.10, root)."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from tests.real.peers import Broker

#: process_madvise(2), and MADV_PAGEOUT
_PROCESS_MADVISE, _PAGEOUT = 440, 21
#: a hypervisor that takes the freed memory back stops the processors meanwhile
SETTLE_S = 6.0
MAX_CACHED = 0.3
_STEP_BYTES = 64 * 1024


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def evict(broker: Broker) -> None:
    """Leave the broker's log on the disk only, as far as the kernel does it; SystemExit when more than a part stays."""
    os.sync()  # pages that are not on the disk stay
    files = sorted(broker.commitlog.iterdir())
    _page_out(broker)
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(SETTLE_S)
    cached = _cached_share(files, broker.end_offset())
    if cached > MAX_CACHED:
        raise SystemExit(f"{cached:.0%} of the log of {broker.name} stayed in memory")


def _page_out(broker: Broker) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(broker.pid)
    try:
        for line in Path(f"/proc/{broker.pid}/maps").read_text().splitlines():
            if str(broker.commitlog) in line:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                part = _Range(start, end - start)
                if libc.syscall(_PROCESS_MADVISE, process, ctypes.byref(part), 1, _PAGEOUT, 0) < 0:
                    raise SystemExit(f"process_madvise of {broker.name}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(process)


def _cached_share(files: list[Path], end: int) -> float:
    """Return which share of the bytes before ``end`` can be read without waiting for the disk."""
    found: list[bool] = []
    byte = bytearray(1)
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # looking must not read ahead
            for at in range(0, min(path.stat().st_size, end - int(path.name)), _STEP_BYTES):
                try:
                    found.append(os.preadv(file.fileno(), [byte], at, os.RWF_NOWAIT) == 1)
                except BlockingIOError:
                    found.append(False)
    return sum(found) / max(1, len(found))
