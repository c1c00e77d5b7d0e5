"""The scripts as a unit of systemd starts them: what NOTIFY_SOCKET gets, and that SIGTERM ends them in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.peers import HOST, is_listening


@pytest.mark.real
@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_notifications(tmp_path: Path, role: str) -> None:
    """READY when the port answers, then WATCHDOG again and again, STOPPING at SIGTERM, and its end."""
    port = free_port()
    command = [sys.executable, "-c", f"from rmq.runtime.launch import {role}; {role}()", "--nodaemon", "--pidfile="]
    command += ["--listenPort", str(port), "--bindAddress", HOST]
    if role == "broker":
        command += ["--storePathRootDir", str(tmp_path / "store"), "--brokerIP1", HOST]
    else:
        command += ["--kvConfigPath", str(tmp_path / "kvConfig.json")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, (tmp_path / "log").open("wb") as log:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
        try:
            got = {systemd.recv(100)}
            while b"READY=1" not in got:
                got.add(systemd.recv(100))
            assert got <= {b"READY=1", b"WATCHDOG=1"}
            assert is_listening(port)
            assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            process.send_signal(signal.SIGTERM)
            while (last := systemd.recv(100)) == b"WATCHDOG=1":
                pass
            assert last == b"STOPPING=1"
            assert process.wait(60) == -signal.SIGTERM  # as twistd does; systemd counts it as a clean end
        finally:
            process.kill()
            process.wait()
