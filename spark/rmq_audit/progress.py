"""How far a run has come, for whoever waits: one line on a terminal, or a line now and then in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

#: seconds between two looks on a terminal, and between two lines of a log
TERMINAL_S, LOG_S = 0.2, 10.0

_WIDTH = 78


class Printer:
    """
    An engine's progress as text; call it like :data:`rmq_audit.engines.Progress`.

    On a terminal one line is written over and over, and wiped by :meth:`close`; elsewhere (under spark-submit, say) a
    line follows the other. ``clock`` counts seconds.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float], *, terminal: bool) -> None:
        self._out = out
        self._clock = clock
        self._terminal = terminal
        self._job: tuple[str, int] | None = None
        self._began = 0.0
        self._told: float | None = None
        self._last = 0
        self._shown = False

    def __call__(self, name: str, done: int, total: int) -> None:
        now = self._clock()
        if self._job != (name, total) or done < self._last:
            self._job, self._began, self._told = (name, total), now, None
        self._last = done
        pause = TERMINAL_S if self._terminal else LOG_S
        if self._told is None:
            # a short job is over before anybody could read of it
            self._told = now if self._terminal else now - pause / 2
        elif now - self._told < pause:
            return
        if now > self._began and done:
            self._told = now
            self._write(line(name, done, total, now - self._began))

    def close(self) -> None:
        """Wipe the line of a terminal."""
        if self._shown and self._terminal:
            self._out.write("\r" + " " * _WIDTH + "\r")
            self._out.flush()

    def _write(self, text: str) -> None:
        self._shown = True
        self._out.write("\r" + text[:_WIDTH].ljust(_WIDTH) if self._terminal else f"rmq-audit: {text}\n")
        self._out.flush()


def line(name: str, done: int, total: int, seconds: float) -> str:
    """Return what is said of a job: bytes done of all, rate, and how long the rest will take at that rate."""
    rate = done / max(seconds, 1e-9)
    share = 100 * done // total if total else 100
    left = (total - done) / rate if rate else 0.0
    return f"{name}: {_size(done)} of {_size(total)} ({share} %), {_size(rate)}/s, {_duration(left)} left"


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit in ("B", "KB", "MB") else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
