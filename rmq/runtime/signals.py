"""
What a server does with the signals that neither Twisted nor a role handles: none ends it without a clean stop.

A signal that has a handler already, or is ignored as SIGHUP is under nohup, stays as it is.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

from twisted.logger import Logger

#: what ends a process by default, and stops a server as SIGTERM does: a terminal that closes, limits, power, timers
STOPPING = ("SIGHUP", "SIGXCPU", "SIGPWR", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO")
#: what ends a process by default, and often means something to another server; the broker's SIGUSR1 has its own handler
MEANINGLESS = ("SIGUSR1", "SIGUSR2")

_log = Logger()


def handle_signals() -> None:
    """
    Stop at one signal as at SIGTERM, ignore another with a warning, and log stacks at SIGQUIT, as a JVM prints them.

    Who knows Apache's servers asks them for their threads with ``kill -3``; that must not end one.
    """
    _handle(STOPPING, _stop)
    _handle(MEANINGLESS, _ignore)
    _handle(("SIGQUIT",), _show_threads)


def _handle(names: tuple[str, ...], handler: Callable[[int, FrameType | None], None]) -> None:
    for name in names:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handler)


def _stop(signum: int, frame: FrameType | None) -> None:
    _log.warn("Received {name}, which stops this process as SIGTERM does", name=signal.Signals(signum).name)
    signal.raise_signal(signal.SIGTERM)


def _ignore(signum: int, frame: FrameType | None) -> None:
    _log.warn("Received {name}, which has no meaning here: ignored", name=signal.Signals(signum).name)


def _show_threads(signum: int, frame: FrameType | None) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.get_ident()  # Python runs handlers in the main thread
    frames = dict(sys._current_frames())
    if frame is not None:
        frames[main] = frame  # without this handler
    stacks = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(found))}"
        for ident, found in frames.items()
    ]
    _log.warn("Received SIGQUIT: this process goes on; its threads are\n{stacks}", stacks="".join(stacks).rstrip())
