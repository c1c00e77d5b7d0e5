"""asyncio below the client: one of the two places where it meets clocks, threads, files and sockets."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import ssl
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from rmq.aio.connections import AsyncioConnections
from rmq.client.core.msgid import local_month
from rmq.client.host import Answer, Prepare
from rmq.client.stacks import coroutine_stack, stacks_text, thread_stacks

T = TypeVar("T")

#: handlers that are plain functions and run at once, of all consumers of a client
MAX_THREADS = 64

_log = logging.getLogger("rmq.client")


class AsyncioHost:
    """The running loop, made inside of it. ``tls`` makes the context of each connection."""

    CANCELLED: type[BaseException] = asyncio.CancelledError

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.rng: random.Random = random.SystemRandom()
        self._loop = asyncio.get_running_loop()
        #: the steady time
        self.seconds = self._loop.time
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        #: those of them that their owner has cancelled
        self._cancelled: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None

    def check_loop(self) -> None:
        """
        Raise RuntimeError in another loop than the client's.

        There an answer would wake nobody, and the request would seem to time out.
        """
        if asyncio.get_running_loop() is not self._loop:
            text = (
                "the loop in which it was started is closed" if self._loop.is_closed() else "it was started in another"
            )
            raise RuntimeError(
                f"the client cannot be used in this event loop: {text}. Make a client in each loop (pytest-asyncio: one"
                " loop_scope for fixture and test); from a thread use asyncio.run_coroutine_threadsafe or rmq.blocking"
            )

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def month_of(self, wall_ms: int) -> tuple[int, int]:
        return local_month(wall_ms)

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(seconds)

    def gate(self) -> AsyncioGate:
        return AsyncioGate()

    def spawn(self, run: Coroutine[Any, Any, None], *, name: str) -> AsyncioRunning:
        task = asyncio.get_running_loop().create_task(run, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return AsyncioRunning(task, self._cancelled)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._cancelled.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)

    def cancellations(self) -> int:
        task = asyncio.current_task()
        return 0 if task is None else task.cancelling()

    async def absorb(self, before: int) -> bool:
        task = asyncio.current_task()
        # asyncio.run cancels all tasks once, at its end: this one must end then, or it would wait for ever
        if task in self._cancelled or not any(
            one is not task and not one.done() and not one.cancelling() for one in self._tasks
        ):
            return False
        assert task is not None
        try:
            await asyncio.sleep(0)  # raises what cancel() has asked for and nothing has raised yet
        except asyncio.CancelledError:
            if task in self._cancelled:
                raise
        while task.cancelling() > before:
            task.uncancel()
        return True

    async def within(self, waiting: Coroutine[Any, Any, T], seconds: float) -> T:
        # not wait_for: before Python 3.12 it forgets a cancellation that meets the end of the wait
        async with asyncio.timeout(seconds):
            return await waiting

    async def call(self, handler: Callable[[Any], Any], argument: object) -> object:
        """Await a coroutine function; run a plain function in a thread."""
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(argument)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="rmq-handler")
        run = copy_context().run  # with the current span, if there are spans
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, run, _guarded, handler, argument)
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            # Python runs no further threads, for the program ends: with no answer the message goes to another member.
            await self._cancel_current()
            raise
        result = await running
        return await result if inspect.isawaitable(result) else result

    async def _cancel_current(self) -> None:
        """End the task as if it had been cancelled by its owner."""
        task = asyncio.current_task()
        if task is not None:
            AsyncioRunning(task, self._cancelled).cancel()
            await asyncio.sleep(0)

    def read_file(self, path: str) -> bytes | None:
        return read_home_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        write_home_file(path, data)

    def connections(self, prepare: Prepare, answer: Answer) -> AsyncioConnections:
        return AsyncioConnections(self, prepare, answer, self._tls)

    def stacks(self) -> str:
        tasks = (coroutine_stack(task.get_name(), task.get_coro()) for task in asyncio.all_tasks())
        return stacks_text(chain(thread_stacks(), tasks))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)


def _guarded(handler: Callable[[Any], Any], argument: object) -> object:
    """Call a handler in its thread; RuntimeError for what would end the loop when it is raised there."""
    try:
        return handler(argument)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"a handler in a thread raised {error!r}, which does not end the program") from error


class AsyncioGate:
    """An event."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._event.is_set()

    def open(self) -> None:
        self._event.set()

    def shut(self) -> None:
        self._event.clear()

    def wait(self) -> Coroutine[Any, Any, object]:
        return self._event.wait()


class AsyncioRunning:
    """A task."""

    def __init__(self, task: asyncio.Task[None], cancelled: set[asyncio.Task[None]]) -> None:
        self._task = task
        self._cancelled = cancelled

    def cancel(self) -> None:
        if self._task.cancel():
            self._cancelled.add(self._task)

    async def wait(self) -> None:
        await asyncio.wait([self._task])


def read_home_file(path: str) -> bytes | None:
    """Return the content of a file below the home directory, None when there is none."""
    try:
        return (Path.home() / path).read_bytes()
    except FileNotFoundError:
        return None


def write_home_file(path: str, data: bytes) -> None:
    """Write a file below the home directory, whole or not at all."""
    target = Path.home() / path
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f"{target.name}.tmp")
    scratch.write_bytes(data)
    scratch.replace(target)
