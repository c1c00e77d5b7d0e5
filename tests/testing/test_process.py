"""The process of the servers, as the test that started it sees it."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq.testing import cluster
from rmq.testing.handle import ServerFailed, ServerProcess


class Interrupted(Exception):
    """What the signal handler of a timeout raises."""


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    """Servers with a topic."""
    running = ServerProcess([])
    running.ask("topic", name="t", queues=4)
    yield running
    running.close()


def between_questions(process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a question that a signal interrupts comes after that."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    monkeypatch.setattr("rmq.testing.handle.select.select", interrupt)
    process.ask("unconsumed", group="g", topic="t")


def after_half_an_answer(process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the answer has been read."""
    read, parts = os.read, iter((5, 0))

    def read_some(fd: int, count: int) -> bytes:
        if size := next(parts):
            return read(fd, size)
        raise Interrupted

    monkeypatch.setattr("rmq.testing.handle.os.read", read_some)
    process.ask("unconsumed", group="g", topic="t")


def with_half_an_answer_lost(process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal came after the first half was read, before it was kept."""
    read = os.read

    def read_and_lose(fd: int, count: int) -> bytes:
        read(fd, 5)
        raise Interrupted

    monkeypatch.setattr("rmq.testing.handle.os.read", read_and_lose)
    process.ask("unconsumed", group="g", topic="t")


def with_half_a_question(process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the question has been written."""
    stdin = process._process.stdin
    assert stdin is not None
    os.write(stdin.fileno(), b'{"do": "uncons')
    raise Interrupted


@pytest.mark.parametrize(
    "interrupted", [between_questions, after_half_an_answer, with_half_an_answer_lost, with_half_a_question]
)
def test_an_interrupted_question(
    process: ServerProcess,
    interrupted: Callable[[ServerProcess, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever place a timeout interrupts, the next questions get their own answers."""
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        interrupted(process, patched)
    for _ in range(2):
        assert process.ask("messages", topic="t") == []
        with pytest.raises(ServerFailed, match="there is no command 'nonsense'"):
            process.ask("nonsense")
        assert process.ask("undo_all") is None


def test_a_late_answer(process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a server that was too slow is not that to the next question."""
    process.signal(signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr("rmq.testing.handle.ANSWER_S", 0)
        with pytest.raises(ServerFailed, match="does not answer"):
            process.ask("unconsumed", group="g", topic="t")
    process.signal(signal.SIGCONT)
    assert process.ask("messages", topic="t") == []


def test_a_forked_child() -> None:
    """A child that the test forked, and that lives on, does not keep the servers alive; it cannot ask them."""
    done, says = os.pipe()
    with cluster() as mq:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            child = os.fork()
        if not child:
            try:
                mq.topic()
            except ServerFailed as error:
                os.write(says, str(error).encode())
            signal.pause()
            os._exit(0)
        assert b"forked" in os.read(done, 1000)
        assert mq.topic()
    try:
        assert not Path(mq.dir).exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(done)
        os.close(says)


def test_the_folder_of_servers_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that must be killed at the end leave no folder."""
    with cluster() as mq:
        (process,) = mq._links()
        assert isinstance(process, ServerProcess)
        process.signal(signal.SIGSTOP)
        monkeypatch.setattr("rmq.testing.handle.STOP_S", 0)
    assert not Path(mq.dir).exists()


def test_modules_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the folder where tests run have nothing to do with the servers, whatever their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise RuntimeError('a file of the user')\n")
    with cluster() as mq:
        assert mq.topic()


def test_a_server_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about a server that ended has what it wrote to standard error."""
    (tmp_path / "attrs.py").write_text("raise RuntimeError('a broken installation')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ServerFailed, match=r"(?s)the server has ended; .*a broken installation"), cluster():
        pass
