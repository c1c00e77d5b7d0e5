"""The process of the servers, as the test that started it sees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

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
