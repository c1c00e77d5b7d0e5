"""asyncio in simulated time, with connections in memory."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class _Jumping(selectors.SelectSelector):
    """Does not wait: the time of its loop jumps instead."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class MemoryLoop(asyncio.SelectorEventLoop):
    """
    A loop in real time; ``listen`` maps a port to what builds the other side of a connection.

    A dial of one of the ``silent`` ports has no end.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)
        self.listen: dict[int, Callable[[MemoryTransport], Any]] = {}
        self.silent: set[int] = set()

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[MemoryTransport, asyncio.Protocol]:
        if port in self.silent:
            await self.create_future()
        if port not in self.listen:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        protocol = factory()
        transport = MemoryTransport(self, protocol)
        transport.peer = self.listen[port](transport)
        protocol.connection_made(transport)  # type: ignore[arg-type]
        return transport, protocol


class SimLoop(MemoryLoop):
    """A loop whose time passes at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class MemoryTransport:
    """
    One end of a connection; ``peer`` has ``received(data)``.

    It is no asyncio.Transport, as those of uvloop are none.

    While the peer does not read, there is something unsent for ever, and only an abort closes the connection.
    """

    peer_reads = True

    def __init__(self, loop: MemoryLoop, protocol: asyncio.Protocol) -> None:
        self._loop = loop
        self._protocol = protocol
        self._closed = False
        self.peer: Any = None

    def get_extra_info(self, name: str) -> Any:
        return {"sockname": ("10.0.0.9", 5000)}[name]

    def write(self, data: Any) -> None:
        self._loop.call_soon(self.peer.received, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def deliver(self, data: bytes) -> None:
        """The other side sends ``data``."""
        if not self._closed:
            self._loop.call_soon(self._protocol.data_received, data)

    def close(self) -> None:
        if self.peer_reads:
            self.abort()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)


def left_timers(loop: asyncio.AbstractEventLoop) -> list[asyncio.TimerHandle]:
    """Return the timers of a loop that are not cancelled."""
    return [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


def run(main: Any) -> Any:
    """Run a coroutine function, with its loop as the argument, in simulated time."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
