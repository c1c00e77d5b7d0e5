"""What a benchmark was run on, in words that belong beside its figures."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.needs import COMPILED, all_missing
from tests.real.peers import APACHE_4, Java

#: file systems that keep files in memory only: fsync does nothing there
IN_MEMORY = ("tmpfs", "ramfs")
#: the used part of a disk above which a run of all rows may fill it too far
FULL = 0.70


def file_system(folder: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that ``folder`` lies in; ``mounts`` stands in for /proc/mounts."""
    place, found = folder.resolve(), ("", "unknown")
    for line in (Path("/proc/mounts").read_text() if mounts is None else mounts).splitlines():
        _, point, kind, *_ = line.split()
        if place.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def conditions(folder: Path, java: Java, *, syncs: bool = False) -> str:
    """Return the lines that name reactor, heaps and file system; with ``syncs`` warn where fsync does nothing."""
    code = "from rmq.runtime.platform import the_reactor; print(type(the_reactor()).__name__)"
    reactor = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip()
    without = [what for what in all_missing() if what.startswith("compiled")]
    modules = "without compiled modules" if os.environ.get("RMQ_PURE_PYTHON") else f"{len(COMPILED)} compiled modules"
    kind = file_system(folder)
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60).stderr.partition("\n")[0]
    lines = [
        f"ours: CPython {platform.python_version()} ({sys.executable}), {reactor}, {modules}",
        *(f"NOT AS INSTALLED: {what}" for what in without),
        f"Apache {APACHE_4}: {version}, {' '.join(java.flags)}, heap of a NameServer {java.namesrv_heap} MiB,"
        f" of a broker {java.broker_heap} MiB",
        f"{os.cpu_count()} cores, Linux {platform.release()}, stores on {kind} ({folder})",
    ]
    if syncs and kind in IN_MEMORY:
        lines.append(f"WARNING: fsync does nothing on {kind}: SYNC_FLUSH is not measured here; set TMPDIR to a disk")
    usage = shutil.disk_usage(folder)
    if (used := usage.used / (usage.used + usage.free)) > FULL:
        lines.append(f"WARNING: {folder} is on a disk that is {used:.0%} full; above 85 % brokers delete old messages")
    return "\n".join(f"- {line}" for line in lines) + "\n"
