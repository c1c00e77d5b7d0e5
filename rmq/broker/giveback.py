"""
Offsets that a slave tells its master: what consumers committed at the slave while the master was away.

The other direction, and when this one has its turn, is `rmq.broker.metadata_sync`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from twisted.logger import Logger

from rmq.broker.offsets import TOPIC_GROUP_SEPARATOR, ConsumerOffsetTable, OffsetMap, OwnOffset
from rmq.remoting.client import Refused, RemotingClient, Response
from rmq.remoting.errors import RequestFailed
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
#: offsets that a returning master is offered in one round; the next round goes on behind them
MAX_GIVEN_BACK = 1000
UNKNOWN_THERE = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

#: why the master is told nothing
NOT_FOLLOWING = "replication from it does not stand, or has not got past what this slave holds"
NOT_THE_SAME = "it does not hold the messages that were consumed here"

H = TypeVar("H")
RH = TypeVar("RH")
RB = TypeVar("RB")

_I64 = struct.Struct(">q")
#: topic, group, queue id
_Place = tuple[str, str, int]


class OwnMessages(Protocol):
    """What must be known of this slave's own messages; `MessageStore` is one."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the number that the next message of a queue would have; 0 for an unknown queue."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the number of the first message that is still there; 0 for an unknown queue."""

    def get(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> GetResult:
        """Return whole records of a queue, from a number on."""


class GiveBack:
    """
    Tell a master that was away what consumers committed at this slave meanwhile.

    A master that came back from a power failure may have lost messages that were consumed here, and writes others
    under the same numbers: an offset behind those would make a consumer skip them. Therefore nothing is said unless

    * replication from a master stands and has got past the end that this slave's log had (``agrees_with_master``);
    * this very master has the message before the offset, byte for byte, where this slave has it. Then it has all that
      lies before that in the log, too. A replication connection alone does not prove it: for some seconds it may be
      that of the process before the power failure, and haMasterAddress may lead elsewhere;
    * its queue reaches up to the offset.

    Nor is anything said over what somebody does at the master: a commit or a reset since the table was read counts.

    All questions of a round, the one for the table included, go over one connection (a lost one fails what waits, and
    with it the round), so they are answered by one process of the master. What somebody commits there between the
    answer about a position and the offset that follows it, one way over the network, cannot be seen.
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
        #: where the master stood in the last round, of what waits to be told
        self._stood: dict[_Place, int] = {}
        self._last_tried: _Place = ("", "", -1)
        #: the master has all of this slave's log up to the record here; of the present round
        self._same_until = -1
        self._held = ""

    def master_was_away(self) -> None:
        """Another master, or one that comes back with older offsets: that these go back is nobody's will."""
        self._stood = {}

    async def offer(
        self, master: str, newer: Sequence[OwnOffset], table: OffsetMap, is_current: Callable[[], bool]
    ) -> None:
        """
        Tell ``master``, whose ``table`` was just read, what is ``newer`` here, as long as ``is_current`` says True.

        What the master has or knows better is not told again, and neither is what it does not know any more, topic,
        group or message; what it refuses otherwise is named once and offered again, as is what is too much for a
        round. Raises RequestFailed, or OffsetsRefused for refusals.
        """
        self._is_current = is_current
        self._same_until = -1
        refused, held, told = "", "", 0
        try:
            for own, stood in self._turn(self._waiting(newer, table)):
                self._last_tried = _place(own)
                try:
                    told += await self._tell(master, own, stood)
                except _NotThis as reason:
                    held = str(reason)
                except Refused as error:
                    if error.code in UNKNOWN_THERE:
                        self._offsets.given_back(own)
                    else:
                        refused = refused or f"{own.topic}@{own.group} queue {own.queue_id} at {own.offset}: {error}"
        except _NotNow as reason:
            held = str(reason)
        except RequestFailed:
            self.master_was_away()
            raise
        finally:
            if told:
                self._log.info(
                    "master {addr} was told {count} consumer offsets that were committed here while it was away",
                    addr=master,
                    count=told,
                )
        if held and held != self._held:
            self._log.info(
                "master {addr} is not told consumer offsets that were committed here: {why}", addr=master, why=held
            )
        self._held = held
        if refused:
            raise OffsetsRefused(f"the master refuses offsets that were committed here: {refused}")

    def _waiting(self, newer: Sequence[OwnOffset], table: OffsetMap) -> list[tuple[OwnOffset, int]]:
        """
        Return what is to be told, with the master's own positions (-1 for none).

        An offset behind the end of this slave's own queue is of no message that the two can have in common. A position
        that has gone back while the master was there was set back by somebody, who is not to be overruled.
        """
        before, self._stood = self._stood, {}
        waiting: list[tuple[OwnOffset, int]] = []
        for own in newer:
            place = _place(own)
            stood = table.get(f"{own.topic}{TOPIC_GROUP_SEPARATOR}{own.group}", {}).get(own.queue_id, -1)
            if own.offset > self._messages.max_offset(own.topic, own.queue_id) or stood < before.get(place, -1):
                self._offsets.given_back(own)
            else:
                self._stood[place] = stood
                waiting.append((own, stood))
        return waiting

    def _turn(self, waiting: list[tuple[OwnOffset, int]]) -> list[tuple[OwnOffset, int]]:
        """Return those of this round: behind the last that was tried, so that none is kept out by others for ever."""
        waiting.sort(key=lambda each: _place(each[0]))
        start = bisect_right(waiting, self._last_tried, key=lambda each: _place(each[0]))
        return (waiting[start:] + waiting[:start])[:MAX_GIVEN_BACK]

    async def _tell(self, master: str, own: OwnOffset, stood: int) -> bool:
        """Tell one offset; False when the master's own counts from now on, or has just been moved."""
        await self._compare(master, own)
        queue = QueueHeader(topic=own.topic, queue_id=own.queue_id)
        end = (await self._ask(master, GET_MAX_OFFSET, queue)).header.offset
        now = await self._position(master, own)
        if stood < 0 and now == 0:
            # So a young queue is answered for, by 4.9 always, when the group has no offset in it.
            now = stood
        if own.offset > end or now < stood:
            self._offsets.given_back(own)
            return False
        if now != stood:
            # The next round's table says whether it is beyond the slave's by now.
            return False
        await self._ask(
            master,
            UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(
                consumer_group=own.group, topic=own.topic, queue_id=own.queue_id, commit_offset=own.offset
            ),
        )
        self._offsets.given_back(own)
        return True

    async def _compare(self, master: str, own: OwnOffset) -> None:
        """Raise _NotThis unless the master has the last message before an offset just as this slave has it."""
        if own.offset <= 0:
            return
        # What was deleted since is proved by what came after it.
        first = max(own.offset - 1, self._messages.min_offset(own.topic, own.queue_id))
        found = self._messages.get(own.topic, own.queue_id, first, 1).messages
        if not found:
            raise _NotThis(NOT_THE_SAME)
        record = found[0]
        (phy_offset,) = _I64.unpack_from(record, PHY_OFFSET_AT)
        if phy_offset <= self._same_until:
            return
        try:
            theirs = await self._ask(master, VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=phy_offset))
        except Refused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            raise _NotThis(NOT_THE_SAME) from error
        if theirs.body != record:
            raise _NotThis(NOT_THE_SAME)
        self._same_until = phy_offset

    async def _position(self, master: str, own: OwnOffset) -> int:
        """Return where the group stands at the master now, -1 for nowhere."""
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
        """Ask, if it is still right to; each request is another moment, in which replication may have ended."""
        if not self._is_current():
            raise _NotNow("")
        if not self._agrees_with_master():
            raise _NotNow(NOT_FOLLOWING)
        return await self._client.invoke(master, contract, header, None, timeout_ms=TIMEOUT_MS)


class OffsetsRefused(Exception):
    """The master does not take some of the offsets."""


class _NotThis(Exception):
    """This offset cannot be told; others may be."""


class _NotNow(Exception):
    """Nothing more is to be told in this round."""


def _place(own: OwnOffset) -> _Place:
    return own.topic, own.group, own.queue_id
