"""
Pull consumers: the program asks for messages and says when they are done.

Java: DefaultLitePullConsumerImpl
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping

from rmq.client.core.routes import check_topic
from rmq.client.core.subscription import subscription
from rmq.client.flows import spans
from rmq.client.flows.closing import Closing
from rmq.client.flows.instance import Instance
from rmq.client.flows.member import Held, Member, queue_header, search_header
from rmq.client.observers import How
from rmq.client.settings import PullSettings, check_kind, check_timeout
from rmq.client.types import CloseReport, ReceivedMessage, Sql
from rmq.errors import ConfigurationError, LostQueue
from rmq.wire.api.common import MessageQueue, SubscriptionData
from rmq.wire.api.offsets import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
)


class PullConsumer(Member):
    """
    A member of a group that takes messages when it wants to; or, with :meth:`assign`, a reader of chosen queues.

    Made by the client; it has a client id of its own, which ends in ``@STREAM``.
    """

    consume_type = "CONSUME_ACTIVELY"
    _is_lite = True

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, str | Sql] | None,
        settings: PullSettings,
    ) -> None:
        super().__init__(instance, group, subscriptions or {}, settings, with_retries=False)
        self._settings = settings
        self._assigned: dict[str, SubscriptionData] = {}
        self._ready: deque[tuple[Held, ReceivedMessage]] = deque()
        self._taken: list[tuple[Held, ReceivedMessage]] = []
        self._some = self._host.gate()
        self._closing = Closing(self._host, self, self._close, name=f"rmq close of {self._group}")

    # for users

    async def start(self) -> None:
        """
        Join the group and begin to pull.

        Refused when a broker cannot parse an expression of SQL92, or does not filter by such.
        """
        await self._start_once()

    async def getmany(self, *, max_messages: int = 32, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """
        Return up to ``max_messages`` messages, none after ``timeout_s``.

        With ``auto_commit`` those of the call before are acknowledged by it.
        """
        if not isinstance(max_messages, int) or max_messages < 1:
            raise ConfigurationError(f"max_messages is a whole number of at least 1, not {max_messages!r}")
        check_timeout(timeout_s, may_be_zero=True)
        await self.start()
        self._instance.check_usable()
        began_ms = self._host.wall_ms()
        if self._settings.auto_commit:
            self._settle()
        if not self._ready:
            self._some.shut()
            try:
                await self._host.within(self._arrival(), timeout_s)
            except TimeoutError:
                return []
        found: list[ReceivedMessage] = []
        while self._ready and len(found) < max_messages:
            held, message = self._ready.popleft()
            if not held.dropped and held.process.holds(message):
                self._taken.append((held, message))
                found.append(message)
        if self._instance.tracer is not None and found:
            # Java's client, too, takes them for consumed when it has given them away
            begun = self._instance.tracer.before(self._group, found)
            self._instance.tracer.after(self._group, found, begun, None)
        spans.pulled(self._instance, self._group, found, began_ms)
        return found

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while not self._closed:
            for message in await self.getmany(max_messages=1, timeout_s=self._settings.suspend_s):
                yield message

    async def assign(self, queues: Collection[MessageQueue], expression: str | Sql = "*") -> None:
        """Read these queues, and no others; not together with subscriptions."""
        if self._subscriptions:
            raise ConfigurationError("a consumer has either subscriptions or assigned queues")
        self._instance.check_process()
        named = {self._wrapped(queue) for queue in queues}
        for topic in {queue.topic for queue in named}:
            check_topic(topic)
            self._assigned[topic] = subscription(topic, expression, version=self._host.wall_ms())
            await self._instance.route(topic)
            await self._check(self._assigned[topic])
        await self.start()
        for topic in {queue.topic for queue in (*named, *self._held)}:
            await self._take(topic, {queue for queue in named if queue.topic == topic})

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset; LostQueue when the queue is not ours."""
        if not isinstance(offset, int) or offset < 0:
            raise ConfigurationError(f"an offset is a whole number of at least 0, not {offset!r}")
        self._go_on(self._mine(queue), offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go back to the first message that the broker has."""
        queue = self._mine(queue).queue
        header = queue_header(queue)
        addr = self._instance.master(queue.broker_name)
        await self.seek(queue, (await self._instance.ask(addr, GET_MIN_OFFSET, header, None)).header.offset)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip what is there."""
        queue = self._mine(queue).queue
        header = queue_header(queue)
        addr = self._instance.master(queue.broker_name)
        await self.seek(queue, (await self._instance.ask(addr, GET_MAX_OFFSET, header, None)).header.offset)

    async def seek_to_time(self, queue: MessageQueue, at_ms: int) -> None:
        """Go to the first message stored at a time (epoch milliseconds) or later."""
        queue = self._mine(queue).queue
        header = search_header(queue, at_ms)
        addr = self._instance.master(queue.broker_name)
        await self.seek(queue, (await self._instance.ask(addr, SEARCH_OFFSET_BY_TIMESTAMP, header, None)).header.offset)

    async def commit(self) -> CloseReport:
        """Acknowledge all that `getmany` returned, and write the offsets; the report counts them."""
        self._instance.check_process()
        self._settle()
        return await self._write_all()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker has of the group, None for none."""
        self._instance.check_process()
        return await self._stored_offset(self._wrapped(queue))

    def position(self, queue: MessageQueue) -> int:
        """
        Return the offset of the next message that is not acknowledged.

        LostQueue when the queue is not ours, or when the broker has not yet said where it begins.
        """
        held = self._mine(queue)
        if not held.is_ready:
            raise LostQueue(f"where queue {queue} begins is not known yet")
        return held.process.commit_offset

    async def close(self) -> CloseReport:
        """
        Pull no more; with ``auto_commit`` acknowledge what `getmany` returned and write the offsets; leave the group.
        """
        self._closed = True
        return await self._closing.report()

    async def _close(self) -> CloseReport:
        await self._stop_pulling()
        self._some.open()
        report = CloseReport()
        if self._settings.auto_commit:
            report = await self.commit()
        self._give_up_all()
        # first out of its client, whose close waits for all that are in it
        await self._instance.leave(self)
        if not self._instance.is_closing:
            await self._instance.close()
        return report

    # parts of a member

    async def _arrival(self) -> None:
        await self._some.wait()

    def _settle(self) -> None:
        for held, message in self._taken:
            self._done(held, [message], How.ACKNOWLEDGED)
        self._taken.clear()

    def _mine(self, queue: MessageQueue) -> Held:
        self._instance.check_process()
        held = self._held.get(self._wrapped(queue))
        if held is None:
            raise LostQueue(f"queue {queue} is not read by this consumer")
        return held

    def _deliver(self, held: Held, messages: list[ReceivedMessage]) -> None:
        self._ready.extend((held, message) for message in messages)
        self._some.open()

    def _commits_with_pulls(self) -> bool:
        return self._settings.auto_commit

    async def _persist(self) -> None:
        if self._settings.auto_commit:
            await super()._persist()

    async def _drop(self, held: Held) -> bool:
        if not self._settings.auto_commit:
            held.is_ready = False  # nothing is written that was not committed
        return await super()._drop(held)

    def _subscription(self, topic: str) -> SubscriptionData:
        return self._assigned.get(topic) or self._subscriptions[topic]

    def topics(self) -> list[str]:
        return [*self._subscriptions, *self._assigned]


async def pull_consumer(
    instance: Instance, group: str, subscriptions: Mapping[str, str | Sql] | None, settings: PullSettings
) -> PullConsumer:
    """
    Return a consumer as a part of the client, with connections and a client id of its own.

    Brokers know members by their connections, and versions of Java by the end of the id.
    """
    check_kind(settings, PullSettings)
    own = instance.sibling("@STREAM")
    await own.start()
    consumer = PullConsumer(own, group, subscriptions, settings)
    own.add_consumer(group, consumer)
    return consumer
