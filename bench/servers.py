"""The NameServers that are compared: how each is started, how fast, and what a connection costs it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from bench.frames import topic_name
from rmq.wire.compiled import PURE_PYTHON
from tests.ports import free_port
from tests.real.peers import APACHE_4, APACHE_5, CACHE, HOST, OURS, Java, Process, Site
from tests.real.probe import Closed, Probe
from tests.real.storm import anonymous_bytes

#: a small heap and not touched in advance, so that its memory shows what it needs; Apache's own script asks for 4 GiB
NAMESRV_JAVA = Java(("-XX:+UseG1GC",), namesrv_heap=512, broker_heap=1024)

RUST_VERSION = "1.0.0"
RUST_ROOT = CACHE / f"rust-{RUST_VERSION}"
RUST_INSTALL = f"nice cargo install rocketmq-namesrv --version {RUST_VERSION} --locked --root {RUST_ROOT}"

FIRST_ANSWER_DEADLINE_S = 60.0


@attrs.frozen
class Server:
    """One of the compared: ``start`` makes its process (not yet running); Java needs more warming up."""

    name: str
    label: str
    make: Callable[[Site, str], Process]
    is_java: bool = False
    why_absent: Callable[[], str | None] = lambda: None


def _python(site: Site, folder: str, *twistd: str, pure: bool = False) -> Process:
    process = site.namesrv(OURS, folder, start=False, twistd=twistd)
    if pure:
        process.command = ["env", f"{PURE_PYTHON}=1", *process.command]
    return process


def _ours(site: Site, folder: str) -> Process:
    return _python(site, folder)


def _epoll(site: Site, folder: str) -> Process:
    return _python(site, folder, "--reactor", "epoll")


def _pure(site: Site, folder: str) -> Process:
    return _python(site, folder, pure=True)


def _apache(version: str) -> Callable[[Site, str], Process]:
    return lambda site, folder: site.namesrv(version, folder, start=False)


def _rust_program() -> str | None:
    name = "rocketmq-namesrv-rust"
    installed = RUST_ROOT / "bin" / name
    return str(installed) if installed.exists() else shutil.which(name)


def _no_rust() -> str | None:
    return None if _rust_program() else f"rocketmq-rust's NameServer is not installed; {RUST_INSTALL}"


def _rust(site: Site, folder: str) -> Process:
    program, port, home = _rust_program(), free_port(), site.root / folder
    (home / "conf").mkdir(parents=True)
    assert program is not None
    command = [program, "--listenPort", str(port), "--bindAddress", HOST, "--rocketmqHome", str(home)]
    command += ["--kvConfigPath", str(home / "kvConfig.json"), "--log-filter", "warn"]
    process = Process(folder, "rust", command, home, port, [])
    site.processes.append(process)
    return process


SERVERS = {
    server.name: server
    for server in (
        Server("ours", "ours", _ours),
        Server("epoll", "ours, Twisted's epoll reactor", _epoll),
        Server("pure", "ours, pure Python", _pure),
        Server(APACHE_4, f"Apache {APACHE_4}", _apache(APACHE_4), is_java=True),
        Server(APACHE_5, f"Apache {APACHE_5}", _apache(APACHE_5), is_java=True),
        Server("rust", f"rocketmq-rust {RUST_VERSION}", _rust, why_absent=_no_rust),
    )
}


def start_to_first_answer(process: Process) -> float:
    """Start a process and return the seconds until it has answered a look-up, whatever the answer."""
    began = time.monotonic()
    process.start(wait=False)
    while True:
        try:
            with Probe(process.port, timeout=FIRST_ANSWER_DEADLINE_S) as probe:
                probe.ask(105, {"topic": topic_name(0)})
            return time.monotonic() - began
        except (Closed, OSError):
            assert process.alive, f"{process.name} ended:\n{process.tail()}"
            assert time.monotonic() < began + FIRST_ANSWER_DEADLINE_S, f"{process.name} does not answer"
            time.sleep(0.002)


@attrs.frozen
class Connections:
    """What idle connections cost: ``kept`` of them, each with so many bytes, accepted for so much CPU."""

    kept: int
    bytes_each: float
    cpu_ms_each: float


def cost_of_connections(process: Process, count: int) -> Connections:
    """Open idle connections and close them; a server may refuse to keep so many."""
    raise_file_limit(count + 1000)
    descriptors = Path(f"/proc/{process.pid}/fd")
    time.sleep(1.0)  # what was connected before is gone by then
    files, before, cpu = len(os.listdir(descriptors)), anonymous_bytes(process.pid), cpu_seconds(process.pid)
    crowd = [socket.create_connection((HOST, process.port), 60) for _ in range(count)]
    kept = _settled(descriptors) - files
    memory, taken = anonymous_bytes(process.pid) - before, cpu_seconds(process.pid) - cpu
    for sock in crowd:
        sock.close()
    return Connections(kept, memory / max(1, kept), taken * 1e3 / max(1, kept))


def _settled(folder: Path, *, quiet_s: float = 1.5, deadline_s: float = 60.0) -> int:
    """Return how many entries a folder has once their number has not changed for ``quiet_s``."""
    began = since = time.monotonic()
    found = len(os.listdir(folder))
    while time.monotonic() < min(since + quiet_s, began + deadline_s):
        time.sleep(0.05)
        now = len(os.listdir(folder))
        if now != found:
            found, since = now, time.monotonic()
    return found


def raise_file_limit(wanted: int) -> None:
    """Let this process and what it starts from now on open so many files; SystemExit when the machine forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"RLIMIT_NOFILE cannot be raised to {wanted}: its hard limit is {hard}; use --idle 0")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time so far of all threads that are there."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends just now, as Java's do
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
