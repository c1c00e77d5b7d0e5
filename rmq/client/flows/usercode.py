"""Calls of what users wrote: whatever it raises, the client goes on."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, get_origin

from rmq.client.host import Host
from rmq.client.observers import Observer
from rmq.client.types import ReceivedMessage
from rmq.errors import ConfigurationError

T = TypeVar("T")

_log = logging.getLogger("rmq.client")


async def outcome(host: Host, handler: Callable[[Any], Any], argument: object) -> tuple[object, Exception | None]:
    """
    Call a handler and return its result and what it raised; a cancellation of the coroutine that calls goes on.

    CANCELLED of something that the handler waited for is a failure like others, and so is what pytest.fail raises, and
    a cancellation of the coroutine by the handler itself, or by a scope of it that leaks one.
    """
    before = host.cancellations()
    try:
        result = await host.call(handler, argument)
        if host.cancellations() > before:  # one that was not raised yet would end the caller in its next wait
            await host.absorb(before)
        return result, None
    except host.CANCELLED as error:
        if host.cancellations() > before and not await host.absorb(before):
            raise
        return None, failure(error)
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - any failure of a handler means that the message comes again
        if host.cancellations() > before:
            await host.absorb(before)
        return None, error if isinstance(error, Exception) else failure(error, f"the handler raised {error!r}")


def check_handler(handler: object, what: str) -> None:
    """
    Refuse what would fail for every message, or consume it without a look at it.

    One without arguments, or with two, would make a dead letter of each. A generator function runs only when it is
    iterated.
    """
    if not callable(handler):
        raise ConfigurationError(f"{what} is a function or coroutine function, not {handler!r}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # a function written in C may have none
        pass
    else:
        try:
            signature.bind(None)
        except TypeError as error:
            raise ConfigurationError(
                f"{what} is called with one argument, which {handler!r} does not take: {error}"
            ) from None
    while isinstance(handler, partial):
        handler = handler.func
    for function in (handler, type(handler).__call__):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{what} cannot be a generator, for it would never run: {handler!r} has a yield")


def check_argument(handler: Callable[..., object], batch_size: int) -> None:
    """
    Refuse a handler whose annotation says a list where it would get a message, or the reverse.

    Types cannot say it: ``batch_size`` is a value in the settings. Without an annotation nothing is refused.
    """
    try:
        parameter = next(iter(inspect.signature(handler, eval_str=True).parameters.values()))
        kind = get_origin(parameter.annotation) or parameter.annotation
        takes_lists = kind is not object and issubclass(list, kind)
        takes_one = issubclass(kind, ReceivedMessage)
    except Exception:  # noqa: BLE001 - no signature, no such name, no class
        return
    if takes_lists and batch_size == 1:
        raise ConfigurationError(f"with batch_size=1 a handler gets a message, but {handler!r} takes a list")
    if takes_one and batch_size > 1:
        raise ConfigurationError(f"with batch_size={batch_size} a handler gets lists, but {handler!r} takes a message")


def failure(error: BaseException, text: str = "something that the handler waited for was cancelled") -> Exception:
    """Return an error as an Exception, which that of a cancellation may not be."""
    if isinstance(error, Exception):
        return error
    found = CancelledError(text)
    found.__cause__ = error
    return found


def logged(call: Callable[[], object], what: str) -> None:
    """Call what may run code of users, a canceller of a Deferred for example; what it raises is logged."""
    try:
        call()
    except Exception:  # noqa: BLE001 - what comes next may go well
        _log.exception("%s failed", what)


class InHandler:
    """
    A handler of these owners runs in the block, for ``with``: also in its threads, and in what it starts.

    Without owners there is none.
    """

    __slots__ = ("_before", "has_ended", "owners")

    def __init__(self, *owners: object) -> None:
        self.owners = owners
        self.has_ended = False

    def __enter__(self) -> None:
        self._before = _CALL.get()
        _CALL.set(self)

    def __exit__(self, *_: object) -> None:
        self.has_ended = True
        _CALL.set(self._before)  # not reset: the block may end in another context, with the loop


_CALL: ContextVar[InHandler | None] = ContextVar("_CALL", default=None)


def is_in_handler(owner: object) -> bool:
    """Whether a handler of ``owner`` runs and is the caller."""
    call = _CALL.get()
    return call is not None and not call.has_ended and owner in call.owners


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
