"""
Resource limits of one peer and of all peers: connections, held bytes, idle time.

Bytes are counted where they are held, and only above the usual size, so ordinary traffic has no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
from twisted.logger import Logger

if TYPE_CHECKING:
    from rmq.remoting.channel import Channel

MIB = 1024 * 1024

#: connections are closed until the held bytes are below this share of the limit, so that the next byte closes none
RELIEVED_RATIO = 0.75


def _key(default: int, doc: str, lowest: int) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, "range": (lowest, None), "local": True})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RemotingLimits:
    """
    Limits of a listening port; the keys are our own, Apache has none like them.

    ``serverChannelMaxIdleTimeSeconds`` limits time: an idle connection is closed after it, and one with an incomplete
    frame after twice that time.
    """

    server_max_connections: int = _key(100_000, "connections of one port; more are closed at once", 1)
    server_channel_max_unsent_bytes: int = _key(
        64 * MIB, "unsent bytes for a peer that does not read; beyond that it is disconnected", MIB
    )
    server_max_held_bytes: int = _key(
        512 * MIB,
        "bytes kept for all slow peers of a port together, unsent answers and unfinished requests; beyond that those "
        "with most of them are cut off",
        32 * MIB,
    )


#: the limits without configuration
DEFAULT_LIMITS = RemotingLimits()


class Seats:
    """Number of connections of all ports of a process; ``most`` None: without limit."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.taken = 0

    @property
    def full(self) -> bool:
        return self.most is not None and self.taken >= self.most


class HeldBytes:
    """
    The bytes that a port holds for its peers, with a limit of their sum.

    Connections report growth only; what they still hold is read when the sum of the growth reaches the limit.
    """

    _log = Logger()

    def __init__(self, limit_bytes: int, channels: Callable[[], Iterable[Channel]]) -> None:
        self._limit_bytes = limit_bytes
        self._channels = channels
        self._grown_bytes = 0

    def grew(self, size_bytes: int) -> None:
        """Add the growth of a connection; may close connections, also that one."""
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
                    "closing {peer}: it holds {held_bytes} bytes, more than any other peer, and all peers of this port "
                    "together exceed serverMaxHeldBytes={limit_bytes}",
                    peer=channel.peer,
                    held_bytes=held,
                    limit_bytes=self._limit_bytes,
                )
                channel.abort("holds too much memory")
        self._grown_bytes = total
