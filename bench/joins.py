"""
Members that join one group at about the same time, as they do when a service is deployed.

A broker notifies all members of each one that is new (NOTIFY_CONSUMER_IDS_CHANGED), and each of them then asks for all
members (GET_CONSUMER_LIST_BY_GROUP): with N members these are N * N answers of N names, unless a broker and its clients
put some of them together. As Java's clients do, a member has one such question outstanding and asks again after its
answer if it was notified meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time

from bench.brokers import heartbeat
from bench.servers import cpu_seconds
from tests.real.peers import HOST, Broker
from tests.real.probe import frame

GROUP, TOPIC = "ScaleJoins", "ScaleJoined"
HEARTBEAT, MEMBERS, RESPONSE = 34, 38, 1
_HEARTBEAT_OPAQUE, _MEMBERS_OPAQUE = 1, 2
#: members that connect at the same time
AT_ONCE = 32
#: nothing more comes after so long without anything
QUIET_S = 1.0


class Joins:
    """What all members have seen."""

    def __init__(self) -> None:
        self.notices = self.lists = self.list_bytes = 0
        self.last_s = time.monotonic()


class Member(asyncio.Protocol):
    """One consumer; ``known`` is how many members the last list had."""

    def __init__(self, joins: Joins, joined: asyncio.Future[None]) -> None:
        self._joins = joins
        self._joined = joined
        self._buffer = b""
        self._asks = self._asks_again = False
        self.known = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            length, header_bytes = struct.unpack_from(">II", self._buffer)
            if len(self._buffer) < 4 + length:
                break
            frame_bytes, self._buffer = self._buffer[: 4 + length], self._buffer[4 + length :]
            self._joins.last_s = time.monotonic()
            self._received(json.loads(frame_bytes[8 : 8 + header_bytes]), frame_bytes[8 + header_bytes :])

    def _received(self, header: dict[str, int], body: bytes) -> None:
        if not header["flag"] & RESPONSE:
            self._joins.notices += 1
            self._ask()
        elif header["opaque"] == _HEARTBEAT_OPAQUE:
            self._joined.set_result(None)
        else:
            self._joins.lists += 1
            self._joins.list_bytes += len(body)
            self.known = len(json.loads(body)["consumerIdList"])
            self._asks = False
            if self._asks_again:
                self._ask()

    def _ask(self) -> None:
        self._asks_again = self._asks
        if not self._asks:
            self._asks = True
            self.transport.write(frame(MEMBERS, {"consumerGroup": GROUP}, opaque=_MEMBERS_OPAQUE))


async def _join(port: int, members: int, joins: Joins) -> list[Member]:
    """Let all members join, and wait until nothing more comes."""
    loop, gate = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Member:
        async with gate:
            joined = loop.create_future()
            transport, member = await loop.create_connection(lambda: Member(joins, joined), HOST, port)
            body = heartbeat(GROUP, [(TOPIC, "TAG", "*")], f"client-{number}")
            transport.write(frame(HEARTBEAT, {}, body, opaque=_HEARTBEAT_OPAQUE))
            await joined
            return member

    found = await asyncio.gather(*map(one, range(members)))
    while time.monotonic() < joins.last_s + QUIET_S:
        await asyncio.sleep(QUIET_S / 10)
    for member in found:
        member.transport.abort()
    return found


def joined(broker: Broker, members: int) -> dict[str, str]:
    """Return how long ``members`` take to join a group until each knows all, and what that takes."""
    joins, cpu, began_s = Joins(), cpu_seconds(broker.pid), time.monotonic()
    found = asyncio.run(_join(broker.port, members, joins))
    knows_all = sum(member.known == members for member in found)
    return {
        f"{members} members join one group, s until the last knows all": f"{joins.last_s - began_s:.1f}",
        "CPU for it, s": f"{cpu_seconds(broker.pid) - cpu:.1f}",
        "notices to members, lists of members, MB of them": (
            f"{joins.notices:,} / {joins.lists:,} / {joins.list_bytes / 1e6:.0f}"
        ),
        "members that know all at the end": str(knows_all),
    }
