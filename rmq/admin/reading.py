"""Reads queues for commands, without joining a group and without committing anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from twisted.internet.task import deferLater

from rmq.admin.command import Call, NotFound
from rmq.admin.lookups import addresses_by_name, ask_each, cluster_info, route_of
from rmq.client.core.subscription import subscription, wanted
from rmq.client.flows.admin import received
from rmq.client.types import ReceivedMessage
from rmq.errors import Refused, RequestFailed, RequestTimeout, Unreachable
from rmq.wire.api.common import MASTER_ID, MessageQueue, SubscriptionData
from rmq.wire.api.pulling import (
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    PullMessageReply,
)
from rmq.wire.api.topics import GET_TOPIC_STATS_INFO, TopicHeader, TopicOffset
from rmq.wire.codes import ResponseCode
from rmq.wire.exchange import Response
from rmq.wire.record import decode_records

#: the group of Apache's tools; brokers know it
GROUP = "TOOLS_CONSUMER"
BATCH = 32
#: a broker holds a pull for so long when there is nothing new
HOLD_MS = 1000
#: a broker that does not answer is asked again after so long
AGAIN_S = 1.0
#: refusals of a broker that starts, stops or has much to do
_PASSING = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


async def queues_of(call: Call, topic: str) -> dict[MessageQueue, tuple[str, TopicOffset]]:
    """Return the queues of a topic with the broker to ask and their offsets now; raises NotFound."""
    brokers = addresses_by_name((await route_of(call, topic)).broker_datas)
    answers = await ask_each(call, brokers.values(), GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
    return {queue: (addr, at) for addr, answer in answers for queue, at in sorted(answer.body.offset_table.items())}


class Source:
    """A broker by its name, wherever it is now: after a failure its address is looked up in the route of the topic."""

    def __init__(self, call: Call, topic: str, broker_name: str, addr: str) -> None:
        self.addr = addr
        self._call = call
        self._topic = topic
        self._broker_name = broker_name
        self._is_silent = False
        self._look_at_s = 0.0

    def answered(self) -> None:
        """Say that the broker answers again, if it did not."""
        if self._is_silent:
            self._is_silent = False
            self._call.terminal.warn(f"rmq-admin: broker {self._broker_name} answers again, at {self.addr}")

    async def refused(self, error: Refused) -> None:
        """
        Wait after a refusal that may be over soon; raises any other one, and NotFound for a topic that was deleted.

        That is what the master says. A slave in its place may not have a new topic yet.
        """
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            if not self._is_silent or await self._is_master():
                raise NotFound(
                    f"topic {self._topic} does not exist any more at broker {self._broker_name}, {self.addr}"
                )
        elif error.code not in _PASSING:
            raise error
        await self.failed(error)

    async def _is_master(self) -> bool:
        """Whether the address is that of the master, as far as a NameServer answers."""
        with suppress(RequestFailed):
            groups = (await cluster_info(self._call)).broker_addr_table
            if self._broker_name in groups:
                return groups[self._broker_name].broker_addrs.get(MASTER_ID) == self.addr
        return False

    async def failed(self, error: RequestFailed) -> None:
        """Say once that the broker does not answer; wait, and look where it is now."""
        if not self._is_silent:
            self._is_silent = True
            again = f"it is asked again every {AGAIN_S:g} s"
            self._call.terminal.warn(f"rmq-admin: broker {self._broker_name} does not answer, {again}: {error}")
        reactor = self._call.platform.reactor
        await deferLater(reactor, AGAIN_S)
        if reactor.seconds() < self._look_at_s:  # another queue of this broker has just looked
            return
        self._look_at_s = reactor.seconds() + AGAIN_S
        with suppress(NotFound, RequestFailed):
            brokers = addresses_by_name((await route_of(self._call, self._topic)).broker_datas)
            self.addr = brokers.get(self._broker_name, self.addr)


async def follow(
    call: Call, queue: MessageQueue, source: Source, begin: int, *, tags: str, until: Callable[[], bool]
) -> AsyncIterator[ReceivedMessage]:
    """Yield the messages from ``begin`` until ``until`` says so, also across failures of the broker."""
    subscribed = subscription(queue.topic, tags, version=0)
    offset = begin
    while not until():
        try:
            answer = await _pull(call, queue, source.addr, offset, subscribed)
        except Refused as error:
            await source.refused(error)
            continue
        except (RequestTimeout, Unreachable) as error:
            await source.failed(error)
            continue
        source.answered()
        for record in decode_records(answer.body):
            message = received(record, queue.broker_name)
            if wanted(subscribed, message):
                yield message
        offset = answer.header.next_begin_offset


async def read(
    call: Call,
    queue: MessageQueue,
    addr: str,
    begin: int,
    end: int,
    *,
    tags: str = "*",
    until: Callable[[], bool] = lambda: False,
) -> AsyncIterator[ReceivedMessage]:
    """Yield the messages from ``begin`` up to ``end``, or until ``until`` says so after a pull; RequestFailed."""
    subscribed = subscription(queue.topic, tags, version=0)
    offset = begin
    while offset < end and not until():
        answer = await _pull(call, queue, addr, offset, subscribed)
        for record in decode_records(answer.body):
            message = received(record, queue.broker_name)
            if record.queue_offset < end and wanted(subscribed, message):
                yield message
        offset = answer.header.next_begin_offset


async def _pull(
    call: Call, queue: MessageQueue, addr: str, offset: int, subscribed: SubscriptionData
) -> Response[PullMessageReply, bytes]:
    header = PullMessageHeader(
        consumer_group=GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=BATCH,
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        commit_offset=0,
        suspend_timeout_millis=HOLD_MS,
        subscription=subscribed.sub_string,
        sub_version=0,
        expression_type=subscribed.expression_type,
    )
    return await call.invoke(addr, PULL_MESSAGE, header, None)
