"""A process that may not open many files."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest

from tests.real.peers import HOST, OURS, Process, Site, until

OPEN_FILES = 200
#: half of the open files are left for files
SEATS = OPEN_FILES // 2


def cpu_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def count_closed(sockets: list[socket.socket]) -> int:
    """Return how many connections the peer has closed."""
    closed = 0
    for one in sockets:
        with contextlib.suppress(BlockingIOError):
            closed += one.recv(1) == b""
    return closed


@pytest.mark.real
@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_few_open_files(site: Site, role: str) -> None:
    """Connections are refused before files run out, with one line in the log; who is connected notices nothing."""
    if role == "namesrv":
        process: Process = site.namesrv(start=False)
    else:
        process = site.broker(OURS, f"{HOST}:1", start=False)
    process.command = ["bash", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "-", *process.command]
    process.start()
    code, fields = (105, {"topic": "T"}) if role == "namesrv" else (30, {"topic": "TBW102", "queueId": "0"})
    with process.probe() as early, contextlib.ExitStack() as crowd:
        early.ask(code, fields)
        sockets = []
        for _ in range(OPEN_FILES + 50):
            sockets.append(crowd.enter_context(socket.create_connection((HOST, process.port), 30)))
        until("connections are refused", lambda: "ulimit -n" in process.text())
        for one in sockets:
            one.setblocking(False)
        # One more when the look whether the port listens still had a seat.
        least = len(sockets) - (SEATS - 1)
        until("all others are refused", lambda: count_closed(sockets) >= least)
        early.ask(code, fields)
        assert count_closed(sockets) - least in (0, 1)
        assert process.text().count("ulimit -n") == 1

        before = cpu_seconds(process)
        time.sleep(1)
        assert cpu_seconds(process) - before < 0.5, "it spins"
        early.ask(code, fields)
        if role == "broker":
            early.create_topic("Room", 1)
            early.send_message("Room", 0, b"x" * 1000)

    def again() -> bool:
        with process.probe() as late:
            late.ask(code, fields)
        return True

    until("there is room again", again)
    assert "Traceback" not in process.text()
