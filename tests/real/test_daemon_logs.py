"""Where the log of a real `twistd` process goes, and what its terminal shows; each in a home directory of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.ports import free_port
from tests.real.peers import HOST, is_listening, until
from tests.real.probe import Probe

pytestmark = pytest.mark.real

RUN = "from twisted.scripts.twistd import run; run()"
BOOTED = "The Name Server boot success."


@attrs.define
class Home:
    """A home directory and the background processes started from it."""

    folder: Path
    pidfiles: list[Path] = attrs.field(factory=list)

    @property
    def default_log(self) -> Path:
        return self.folder / "logs" / "rocketmqlogs" / "namesrv.log"

    def twistd(
        self, *twistd: str, port: int, role: tuple[str, ...] = (), plugin: str = "rmq-namesrv"
    ) -> subprocess.CompletedProcess[str]:
        """Start a role in the background; return what the terminal showed."""
        pidfile = self.folder / f"{port}.pid"
        self.pidfiles.append(pidfile)
        command = [sys.executable, "-c", RUN, f"--pidfile={pidfile}", *twistd, plugin]
        command += [f"--listenPort={port}", f"--bindAddress={HOST}", *role]
        environment = {**os.environ, "HOME": str(self.folder)}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)

    def stop(self) -> None:
        """End what still runs, and wait until it has ended."""
        for pidfile in self.pidfiles:
            try:
                pid = int(pidfile.read_text())
                os.kill(pid, signal.SIGTERM)
            except (OSError, ValueError):
                continue
            until(f"process {pid} has ended", lambda pid=pid: not is_alive(pid), seconds=60)  # type: ignore[misc]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody waits for yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text("utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "home"
    folder.mkdir()
    home = Home(folder)
    yield home
    home.stop()


def test_background_log_is_where_apaches_users_look(home: Home) -> None:
    """A background process logs to ~/logs/rocketmqlogs, says so on its terminal, and ends its log when it stops."""
    port = free_port()
    done = home.twistd(port=port)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"the log goes to {home.default_log}\n", "")
    until("the NameServer has started", lambda: has(home.default_log, BOOTED), seconds=60)
    assert not (home.folder / "twistd.log").exists()
    with Probe(port) as probe:
        assert probe.cluster()["brokerAddrTable"] == {}
    home.stop()
    assert has(home.default_log, "Server Shut Down.")
    lines = home.default_log.read_text("utf-8").splitlines()
    assert any(" INFO rmq." in line for line in lines)


def test_background_log_of_a_broker(home: Home) -> None:
    """A broker has a file of its own beside the NameServer's, with Apache's boot line in it."""
    port, log = free_port(), home.default_log.with_name("broker.log")
    options = (f"--storePathRootDir={home.folder / 'store'}", f"--haListenPort={port + 1}", "--brokerIP1=127.0.0.1")
    done = home.twistd(port=port, role=options, plugin="rmq-broker")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"the log goes to {log}\n", "")
    until("the broker has started", lambda: has(log, f"127.0.0.1:{port}] boot success."), seconds=60)
    home.stop()
    assert has(log, "has stopped")
    assert not home.default_log.exists()


def test_what_the_operator_told_twistd_wins(home: Home) -> None:
    """twistd's own --logfile stands above the default, and --logJson then says what is written there."""
    plain, port = home.folder / "plain.log", free_port()
    done = home.twistd(f"--logfile={plain}", port=port)
    assert (done.returncode, done.stdout) == (0, "")
    until("the plain log has begun", lambda: has(plain, BOOTED), seconds=60)
    lines, other = home.folder / "lines.log", free_port()
    done = home.twistd(f"--logfile={lines}", port=other, role=("--logJson",))
    assert (done.returncode, done.stdout) == (0, "")
    until("the JSON log has begun", lambda: has(lines, BOOTED), seconds=60)
    events = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    assert any(event["level"] == "info" and event["namespace"].startswith("rmq.") for event in events)
    assert not (home.folder / "logs").exists()


def test_rotation_is_bounded(home: Home) -> None:
    """A log file in a folder of one's own is rotated at its size, and so many old files are kept."""
    port, folder = free_port(), home.folder / "my logs"
    options = (f"--logDir={folder}", "--logFileSize=10k", "--logFileCount=2", "--logLevel=debug")
    assert home.twistd(port=port, role=options).returncode == 0
    until("the NameServer listens", lambda: is_listening(port), seconds=60)

    def is_full() -> bool:
        for _ in range(50):
            with socket.create_connection((HOST, port), 5) as peer:
                peer.sendall(b"this is no frame at all, whoever reads it")
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1)
        return (folder / "namesrv.log.2").exists()

    until("two old files are there", is_full, seconds=60)
    for _ in range(3):
        is_full()
    assert sorted(path.name for path in folder.iterdir()) == ["namesrv.log", "namesrv.log.1", "namesrv.log.2"]
    assert all(path.stat().st_size < 15_000 for path in folder.iterdir())


def test_folder_that_cannot_be_used(home: Home) -> None:
    """A log that cannot be written stops the start with one line that names it."""
    (home.folder / "logs").write_text("a file, not a folder")
    done = home.twistd(port=free_port())
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("rmq-namesrv cannot start: ") and f"log file {home.default_log}: " in line
    assert "Traceback" not in done.stdout + done.stderr


def test_start_that_fails_in_the_background(home: Home) -> None:
    """A port that is taken is told on the terminal and in the log, and nothing is left running."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = home.twistd(port=port)
    assert done.returncode == 1
    assert "rmq-namesrv cannot start: Couldn't listen on" in done.stderr
    until("the log has the reason", lambda: has(home.default_log, f"Couldn't listen on {HOST}:{port}"), seconds=30)
    assert "Traceback" not in home.default_log.read_text("utf-8")
    until("its pid file is gone", lambda: not home.pidfiles[0].exists(), seconds=30)
