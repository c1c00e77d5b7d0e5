"""
Where threads and coroutines are, as text for an operator.

Java: UtilAll#jstack
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

#: a program may have very many coroutines
MAX_STACKS = 500

#: (name, what runs it, frames as file name, line and function with the innermost first)
Stack = tuple[str, str, list[tuple[str, int, str]]]


def thread_stacks() -> Iterator[Stack]:
    """Return those of all threads."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield thread.name, f"thread {thread.ident}", list(_outwards(frame))


def _outwards(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    while frame is not None:
        yield _place(frame)
        frame = frame.f_back


def coroutine_stack(name: str, coroutine: Any) -> Stack:
    """Return that of a coroutine that waits, down to what it waits for."""
    found = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        found.append(_place(frame))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return name, "coroutine", found[::-1]


def _place(frame: FrameType) -> tuple[str, int, str]:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname


def stacks_text(stacks: Iterable[Stack]) -> str:
    """Return them as text, one after the other, the first MAX_STACKS."""
    lines: list[str] = []
    for number, (name, runner, frames) in enumerate(stacks):
        if number == MAX_STACKS:
            lines.append("there are more")
            break
        lines.append(f"{name:<40} {runner}")
        lines += [f"{name:<40} {function} ({path}:{line})" for path, line, function in frames]
        lines.append("")
    return "\n".join(lines)
