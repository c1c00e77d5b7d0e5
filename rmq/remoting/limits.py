"""
How much one peer, and all of them together, may cost: numbers of connections, bytes kept for them, patience.

Bytes are counted where they are kept, and only when there are more than usual, so ordinary traffic pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
from twisted.logger import Logger

if TYPE_CHECKING:
    from rmq.remoting.channel import Channel

MIB = 1024 * 1024

#: room is made until so much of the limit is in use, that the next byte does not ask for the next victim
RELIEVED_RATIO = 0.75


def _key(default: int, doc: str, lowest: int) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, "range": (lowest, None)})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RemotingLimits:
    """
    Limits of a listening port; the keys are our own, Apache has none like them.

    What takes too long is limited by ``serverChannelMaxIdleTimeSeconds``: a connection on which nothing moves for so
    long is closed, and one whose frame has begun and is not complete after twice that time too.
    """

    server_max_connections: int = _key(100_000, "connections of one port; more are closed at once", 1)
    server_channel_max_unsent_bytes: int = _key(
        64 * MIB, "answers in bytes that wait for a peer that does not read them; beyond that it is cut off", MIB
    )
    server_max_held_bytes: int = _key(
        512 * MIB,
        "bytes kept for all slow peers of a port together, unsent answers and unfinished requests; beyond that those "
        "with most of them are cut off",
        32 * MIB,
    )


#: what a connection is subject to when nobody said anything
DEFAULT_LIMITS = RemotingLimits()


class Seats:
    """Connections of all ports of a process together; ``most`` None: as many as come."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.taken = 0

    @property
    def full(self) -> bool:
        return self.most is not None and self.taken >= self.most


class HeldBytes:
    """
    The bytes that a port keeps for its peers, bounded in sum.

    Connections report growth only; what they still keep is looked up when the sum of the growth reaches the limit.
    """

    _log = Logger()

    def __init__(self, limit_bytes: int, channels: Callable[[], Iterable[Channel]]) -> None:
        self._limit_bytes = limit_bytes
        self._channels = channels
        self._grown_bytes = 0

    def grew(self, size_bytes: int) -> None:
        """Count what a connection keeps now in addition; may cut connections off, that one too."""
        self._grown_bytes += size_bytes
        if self._grown_bytes > self._limit_bytes:
            self._relieve()

    def _relieve(self) -> None:
        holding = [(channel.held_bytes, channel) for channel in self._channels() if channel.is_open]
        holding.sort(key=lambda each: each[0], reverse=True)
        total = sum(held for held, _ in holding)
        if total > self._limit_bytes:
            for held, channel in holding:
                if total <= self._limit_bytes * RELIEVED_RATIO:
                    break
                total -= held
                self._log.warn(
                    "{peer} is cut off: {held_bytes} bytes are kept for it, the most of all, and the slow peers of "
                    "this port have used up the {limit_bytes} bytes of serverMaxHeldBytes",
                    peer=channel.peer,
                    held_bytes=held,
                    limit_bytes=self._limit_bytes,
                )
                channel.abort("keeps too much memory busy")
        self._grown_bytes = total
