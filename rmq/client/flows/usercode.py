"""Calls of what users wrote: whatever it raises, the client goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

from rmq.client.host import Host
from rmq.client.observers import Observer

T = TypeVar("T")

_log = logging.getLogger("rmq.client")


async def outcome(host: Host, handler: Callable[[Any], Any], argument: object) -> tuple[object, Exception | None]:
    """
    Call a handler and return its result and what it raised; a cancellation of the coroutine that calls goes on.

    CANCELLED of something that the handler waited for is a failure like others.
    """
    before = host.cancellations()
    try:
        return await host.call(handler, argument), None
    except host.CANCELLED as error:
        if host.cancellations() > before:
            raise
        return None, failure(error)
    except Exception as error:  # noqa: BLE001 - any failure of a handler means that the message comes again
        return None, error


def failure(error: BaseException) -> Exception:
    """Return an error as an Exception, which that of a cancellation may not be."""
    if isinstance(error, Exception):
        return error
    found = CancelledError("something that the handler waited for was cancelled")
    found.__cause__ = error
    return found


def tell(observers: Iterable[Observer], say: Callable[[Observer], None]) -> None:
    """Call all observers; what one raises is logged."""
    for observer in observers:
        guarded(observer, partial(say, observer))


def guarded(observer: Observer, call: Callable[[], T]) -> T | None:
    """Call an observer, or a span of it, and return its result; what it raises is logged, and the result is None."""
    try:
        return call()
    except Exception:  # noqa: BLE001 - metrics and traces must not stop messages
        _log.exception("observer %r failed", observer)
        return None
