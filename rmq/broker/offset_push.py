"""
Push consumer offsets from a slave to its master: those that consumers committed while the master was away.

`rmq.broker.metadata_sync` has the other direction and calls this module.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from twisted.logger import Logger

from rmq.broker.offsets import TOPIC_GROUP_SEPARATOR, ConsumerOffsetTable, OffsetMap, OwnOffset
from rmq.errors import RequestFailed
from rmq.remoting.client import Refused, RemotingClient, Response
from rmq.store.messages import GetResult
from rmq.wire.api.offsets import (
    GET_MAX_OFFSET,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    QueryConsumerOffsetHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.pulling import VIEW_MESSAGE_BY_ID, ViewMessageHeader
from rmq.wire.codes import ResponseCode
from rmq.wire.contract import Contract
from rmq.wire.record import PHY_OFFSET_AT

TIMEOUT_MS = 3000
#: offsets that are pushed in one round; the next round continues after them
MAX_PUSHED = 1000
UNKNOWN_THERE = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

#: why nothing is pushed
NOT_FOLLOWING = "replication is not established or has not caught up with the local log end"
NOT_THE_SAME = "it does not hold the messages that were consumed here"

H = TypeVar("H")
RH = TypeVar("RH")
RB = TypeVar("RB")

_I64 = struct.Struct(">q")
#: topic, group, queue id
_Place = tuple[str, str, int]


class OwnMessages(Protocol):
    """What the push reads of this slave's store; `MessageStore` is one."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message would have; 0 for an unknown queue."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message that still exists; 0 for an unknown queue."""

    def get(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> GetResult:
        """Return whole records of a queue, from a queue offset on."""


class OffsetPush:
    """
    Push offsets to a master that is back after an absence.

    After a power failure a master may have lost messages that were consumed here. It then gives their queue offsets to
    other messages, and a pushed offset would make a consumer skip those. An offset is therefore pushed only if

    * replication is established and has caught up with the log end that this slave had (``agrees_with_master``);
    * this master has the same message before the offset, byte for byte, at the same physical offset. Then it also has
      everything before it in the log. A replication connection alone does not prove this: for some seconds it may be
      that of the master's previous process, and haMasterAddress may name another broker;
    * the master's queue reaches the offset.

    Commits and resets at the master since its table was read are never overwritten.

    All requests of a round, the one for the table included, use one connection. If it is lost, its requests fail and
    the round ends, so one process of the master answers all of them. A commit at the master in the short time between
    its answer about a position and the arrival of the pushed offset is not detected.
    """

    _log = Logger()

    def __init__(
        self,
        client: RemotingClient,
        offsets: ConsumerOffsetTable,
        messages: OwnMessages,
        agrees_with_master: Callable[[], bool],
    ) -> None:
        self._client = client
        self._offsets = offsets
        self._messages = messages
        self._agrees_with_master = agrees_with_master
        self._is_current: Callable[[], bool] = lambda: False
        #: the master's offsets in the last round, for each pending offset
        self._masters: dict[_Place, int] = {}
        self._last_tried: _Place = ("", "", -1)
        #: in this round: the master has this slave's log up to the record at this physical offset
        self._same_until = -1
        self._held = ""

    def master_was_away(self) -> None:
        """Note a new master, or a restarted one: after a failover a lower offset is not a deliberate reset."""
        self._masters = {}

    async def offer(
        self, master: str, newer: Sequence[OwnOffset], table: OffsetMap, is_current: Callable[[], bool]
    ) -> None:
        """
        Push offsets that are ``newer`` here than in ``table``, which was just read from ``master``.

        Stops when ``is_current`` returns False. An offset is dropped when the master has a newer one, or no longer
        knows the topic or group. Other refusals are logged once and retried in the next round, like offsets beyond
        MAX_PUSHED. Raises RequestFailed, or OffsetsRefused for refusals.
        """
        self._is_current = is_current
        self._same_until = -1
        refused, held, pushed = "", "", 0
        try:
            for own, masters in self._turn(self._pending(newer, table)):
                self._last_tried = _place(own)
                try:
                    pushed += await self._push(master, own, masters)
                except _OffsetHeld as reason:
                    held = str(reason)
                except Refused as error:
                    if error.code in UNKNOWN_THERE:
                        self._offsets.forget_own(own)
                    else:
                        refused = refused or f"{own.topic}@{own.group} queue {own.queue_id} at {own.offset}: {error}"
        except _RoundEnded as reason:
            held = str(reason)
        except RequestFailed:
            self.master_was_away()
            raise
        finally:
            if pushed:
                self._log.info(
                    "pushed {count} consumer offsets to master {addr}: they were committed here while it was away",
                    addr=master,
                    count=pushed,
                )
        if held and held != self._held:
            self._log.info("not pushing local consumer offsets to master {addr}: {why}", addr=master, why=held)
        self._held = held
        if refused:
            raise OffsetsRefused(f"the master refuses local consumer offsets: {refused}")

    def _pending(self, newer: Sequence[OwnOffset], table: OffsetMap) -> list[tuple[OwnOffset, int]]:
        """
        Return the offsets to push, each with the master's own offset (-1 for none).

        An offset beyond the end of this slave's own queue belongs to a message that the two cannot have in common. If
        the master's offset became lower while the master was present, an operator has reset it, and that counts.
        """
        before, self._masters = self._masters, {}
        pending: list[tuple[OwnOffset, int]] = []
        for own in newer:
            place = _place(own)
            masters = table.get(f"{own.topic}{TOPIC_GROUP_SEPARATOR}{own.group}", {}).get(own.queue_id, -1)
            if own.offset > self._messages.max_offset(own.topic, own.queue_id) or masters < before.get(place, -1):
                self._offsets.forget_own(own)
            else:
                self._masters[place] = masters
                pending.append((own, masters))
        return pending

    def _turn(self, pending: list[tuple[OwnOffset, int]]) -> list[tuple[OwnOffset, int]]:
        """Return those of this round: the ones after the last that was tried, so that each has its turn."""
        pending.sort(key=lambda each: _place(each[0]))
        start = bisect_right(pending, self._last_tried, key=lambda each: _place(each[0]))
        return (pending[start:] + pending[:start])[:MAX_PUSHED]

    async def _push(self, master: str, own: OwnOffset, masters: int) -> bool:
        """Push one offset; False when the master's own counts from now on, or has just changed."""
        await self._compare(master, own)
        queue = QueueHeader(topic=own.topic, queue_id=own.queue_id)
        end = (await self._ask(master, GET_MAX_OFFSET, queue)).header.offset
        now = await self._position(master, own)
        if masters < 0 and now == 0:
            # The answer for a new queue in which the group has no offset; 4.9 always answers so.
            now = masters
        if own.offset > end or now < masters:
            self._offsets.forget_own(own)
            return False
        if now != masters:
            # The next round's table shows whether it is higher than the slave's now.
            return False
        await self._ask(
            master,
            UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(
                consumer_group=own.group, topic=own.topic, queue_id=own.queue_id, commit_offset=own.offset
            ),
        )
        self._offsets.forget_own(own)
        return True

    async def _compare(self, master: str, own: OwnOffset) -> None:
        """Raise _OffsetHeld unless the master has the last message before the offset with the same bytes."""
        if own.offset <= 0:
            return
        # Messages deleted since then are proved by the first that is left.
        first = max(own.offset - 1, self._messages.min_offset(own.topic, own.queue_id))
        found = self._messages.get(own.topic, own.queue_id, first, 1).messages
        if not found:
            raise _OffsetHeld(NOT_THE_SAME)
        record = found[0]
        (phy_offset,) = _I64.unpack_from(record, PHY_OFFSET_AT)
        if phy_offset <= self._same_until:
            return
        try:
            theirs = await self._ask(master, VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=phy_offset))
        except Refused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            raise _OffsetHeld(NOT_THE_SAME) from error
        if theirs.body != record:
            raise _OffsetHeld(NOT_THE_SAME)
        self._same_until = phy_offset

    async def _position(self, master: str, own: OwnOffset) -> int:
        """Return the group's offset at the master now, -1 for none."""
        header = QueryConsumerOffsetHeader(
            consumer_group=own.group, topic=own.topic, queue_id=own.queue_id, set_zero_if_not_found=False
        )
        try:
            return (await self._ask(master, QUERY_CONSUMER_OFFSET, header)).header.offset
        except Refused as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return -1

    async def _ask(self, master: str, contract: Contract[H, None, RH, RB], header: H) -> Response[RH, RB]:
        """Send a request if the conditions still hold: replication may have ended since the last one."""
        if not self._is_current():
            raise _RoundEnded("")
        if not self._agrees_with_master():
            raise _RoundEnded(NOT_FOLLOWING)
        return await self._client.invoke(master, contract, header, None, timeout_ms=TIMEOUT_MS)


class OffsetsRefused(Exception):
    """The master refuses some of the offsets."""


class _OffsetHeld(Exception):
    """This offset cannot be pushed; others may be."""


class _RoundEnded(Exception):
    """Nothing more can be pushed in this round."""


def _place(own: OwnOffset) -> _Place:
    return own.topic, own.group, own.queue_id
