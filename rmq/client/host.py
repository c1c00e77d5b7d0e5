"""What the client needs of asyncio or Twisted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Protocol, TypeVar

from rmq.wire.command import RemotingCommand
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response

T = TypeVar("T")
H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")

#: answers a request of the server at an address: the frame to write, None for no answer
Answer = Callable[[str, RemotingCommand], Coroutine[Any, Any, bytes | None]]
#: completes a request of ours before it is sent, for example with a signature
Prepare = Callable[[RemotingCommand], None]


class Gate(Protocol):
    """The way to wait for another coroutine."""

    @property
    def is_open(self) -> bool: ...
    def open(self) -> None:
        """Let all pass who wait, and all who come until :meth:`shut`."""

    def shut(self) -> None: ...
    def wait(self) -> Awaitable[object]: ...


class Running(Protocol):
    """A coroutine that was started."""

    def cancel(self) -> None:
        """Raise the host's CANCELLED where it waits; without effect when it has ended."""

    def wait(self) -> Awaitable[object]:
        """Wait for its end; never fails."""


class Connections(Protocol):
    """Requests to servers by address, over one connection each, which is made when needed."""

    @property
    def local_ip(self) -> str | None:
        """Our address on a connection, None without one."""

    def ask(
        self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B, *, timeout_s: float
    ) -> Awaitable[Response[RH, RB]]:
        """Send a request and wait for its answer; fails with RequestFailed."""

    def tell(self, addr: str, contract: Contract[H, B, Any, Any], header: H, body: B) -> Awaitable[object]:
        """Send a one-way request; the wait is for the connection. Fails with Unreachable."""

    def close(self) -> Awaitable[object]: ...


class Host(Protocol):
    """Everything from outside, as one argument."""

    rng: Random
    #: what a cancelled coroutine gets
    CANCELLED: type[BaseException]

    def seconds(self) -> float:
        """Return the steady time."""

    def wall_ms(self) -> int:
        """Return epoch milliseconds."""

    def month_of(self, wall_ms: int) -> tuple[int, int]:
        """Return the epoch milliseconds at which the month of ``wall_ms`` begins, and the next one."""

    def pid(self) -> int: ...
    def sleep(self, seconds: float) -> Awaitable[object]: ...
    def gate(self) -> Gate: ...
    def spawn(self, run: Coroutine[Any, Any, None], *, name: str) -> Running:
        """Run a coroutine beside the others; its failure is logged."""

    def cancellations(self) -> int:
        """
        Count the cancellations of the running coroutine, which was spawned.

        CANCELLED without another one comes from something that the coroutine waited for.
        """

    async def absorb(self, before: int) -> bool:
        """
        Forget what of the running coroutine's cancellations over ``before`` came from the coroutine itself, or from
        code that it ran; False, with nothing forgotten, when its owner or the end of the loop cancelled it.
        """

    def within(self, waiting: Coroutine[Any, Any, T], seconds: float) -> Awaitable[T]:
        """Wait at most so long, then cancel and raise TimeoutError."""

    def call(self, handler: Callable[[Any], Any], argument: object) -> Awaitable[object]:
        """Call a handler of the user, in the way of the face, and return its result."""

    def read_file(self, path: str) -> bytes | None:
        """Return a file below the home directory, None when there is none; OSError, RuntimeError without a home."""

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file below the home directory, whole or not at all; OSError, RuntimeError without a home."""

    def connections(self, prepare: Prepare, answer: Answer) -> Connections: ...
    def stacks(self) -> str:
        """Say where the program's threads and coroutines are."""

    def close(self) -> None:
        """Give threads back."""
