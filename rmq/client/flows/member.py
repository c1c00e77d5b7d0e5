"""
A member of a consumer group: its share of the queues, pulled with long polling, and their offsets.

Java: RebalanceImpl, PullMessageService, PullAPIWrapper, RemoteBrokerOffsetStore, LocalFileOffsetStore
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import attrs

from rmq.client.core.allocate import in_order, java_order
from rmq.client.core.processqueue import ProcessQueue
from rmq.client.core.routes import RETRY_PREFIX, broker_addrs, check_group, check_topic, subscribe_queues, wrap
from rmq.client.core.running import running_properties
from rmq.client.core.subscription import SQL92, differing, subscription, wanted
from rmq.client.core.tally import Tally
from rmq.client.flows.attempt import attempt
from rmq.client.flows.instance import AGAIN_S, Instance
from rmq.client.flows.usercode import tell
from rmq.client.host import Gate, Running
from rmq.client.observers import How, Rebalanced, Received, Settled
from rmq.client.settings import From, PullingSettings
from rmq.client.types import CloseReport, ReceivedMessage, Sql
from rmq.errors import ClosedClient, ConfigurationError, NoRoute, Refused, RequestFailed
from rmq.wire import fastjson
from rmq.wire.api.clients import (
    CHECK_CLIENT_CONFIG,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    NOTIFY_CONSUMER_IDS_CHANGED,
    CheckClientBody,
    ConsumerData,
    ConsumerGroupHeader,
    ProducerData,
)
from rmq.wire.api.common import MASTER_ID, MessageQueue, SubscriptionData
from rmq.wire.api.forwarding import (
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    RESET_CONSUMER_CLIENT_OFFSET,
    ConsumerStatus,
    ConsumerStatusHeader,
    OffsetList,
    OffsetsByQueue,
    QueueInfo,
    ResetOffsetHeader,
    RunningInfo,
    RunningInfoHeader,
)
from rmq.wire.api.offsets import (
    GET_MAX_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.pulling import (
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    PullMessageReply,
)
from rmq.wire.api.routes import TopicRouteData
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RemotingCommand, encode_reply
from rmq.wire.exchange import Response
from rmq.wire.record import decode_records

#: pauses of a pull: the queue is full or paused; the broker is busy; it cannot be reached, so that pulls go on soon
#: after its return; it refuses, doubling up to the last
FULL_PAUSE_S = 0.05
PAUSED_PAUSE_S = 0.2
BUSY_PAUSE_S = 0.02
UNREACHABLE_PAUSE_S = 2.0
MOST_PAUSE_S = 30.0
#: a queue whose loop has not moved for so long is dropped and taken again
WATCHDOG_S = 120.0
#: between two looks at what other members of the group subscribe to, and between two after changes of the group
COMPARE_S = 60.0
COMPARE_CHANGED_S = 20.0
#: a difference of subscriptions that was not seen for so long is a new one when it comes back
FORGET_DIFFERENCE_S = 600.0

_log = logging.getLogger("rmq.client.consumer")


@attrs.define(eq=False)
class Held:
    """A queue that is ours now."""

    queue: MessageQueue
    process: ProcessQueue = attrs.field(factory=lambda: ProcessQueue(0))
    #: the first offset is known
    is_ready: bool = False
    dropped: bool = False
    broker_id: int = MASTER_ID
    #: what the broker has of our offset
    committed: int = -1
    #: see :meth:`rmq.client.flows.instance.Instance.absences`; the offset was right when there were so many
    absences: int = 0
    moved_s: float = 0.0
    #: epoch ms, when messages were done last, or the queue became ours
    consumed_ms: int = 0
    max_offset: int = 0
    trouble: str = ""
    pulling: Running | None = None


@attrs.frozen
class QueueHealth:
    """
    One queue: messages between our offset and the end of the queue, messages in hand and when the oldest of them was
    stored (epoch ms), and why it is not read, if so.
    """

    queue: MessageQueue
    lag: int
    in_hand: int
    oldest_stored_ms: int | None
    trouble: str


class Member:
    """What push and pull consumers have in common."""

    consume_type = "CONSUME_PASSIVELY"
    #: each pull says what it wants; else the heartbeat does
    _is_lite = False

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        settings: PullingSettings,
        *,
        broadcast: bool = False,
        with_retries: bool = True,
    ) -> None:
        check_group(group)
        if settings.consume_from is From.TIMESTAMP and settings.consume_from_ms is None:
            raise ConfigurationError("consume_from TIMESTAMP needs consume_from_ms")
        self._instance = instance
        self._host = instance.host
        self._namespace = instance.settings.namespace
        self._group = wrap(self._namespace, group)
        self._pulling = settings
        self._broadcast = broadcast
        self._retry_topic = RETRY_PREFIX + self._group
        now = self._host.wall_ms()
        self._subscriptions: dict[str, SubscriptionData] = {}
        if not isinstance(subscriptions, Mapping):
            text = "subscriptions are topics with their tags, {'orders': '*'} for example, not"
            raise ConfigurationError(f"{text} {subscriptions!r}")
        for topic, expression in subscriptions.items():
            check_topic(topic)
            name = wrap(self._namespace, topic)
            self._subscriptions[name] = subscription(name, expression, version=now)
        if with_retries and not broadcast:
            self._subscriptions[self._retry_topic] = subscription(self._retry_topic, "*", version=now)
        self._held: dict[MessageQueue, Held] = {}
        #: what observers know of it, by topic
        self._told: dict[str, frozenset[MessageQueue]] = {}
        self._paused: set[MessageQueue] = set()
        self._rebalance_now: Gate = self._host.gate()
        #: the broker that last announced a change in the group. It is asked again and again, because just after our own
        #: heartbeat it has what we subscribe to
        self._changed_at: str | None = None
        self._compared_s = -COMPARE_S
        #: whether the group has changed since
        self._is_news = False
        #: what was logged of subscriptions that differ -> when it was seen last
        self._differed_s: dict[str, float] = {}
        #: what was logged last of pulls that brokers refuse, and when, by topic and broker
        self._refused: dict[tuple[str, str], tuple[str, float]] = {}
        #: what the last rebalance raised, by topic
        self._failed: dict[str, str] = {}
        self._loops: list[Running] = []
        #: whether the offsets of a broadcast could be written last
        self._has_file = True
        #: by topic
        self._tallies: dict[str, Tally] = {}
        self._started_ms = now
        self._started = False
        self._has_joined = False
        self._closed = False
        self._ended = self._host.gate()

    # for users

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that are ours now."""
        self._instance.check_process()
        return frozenset(self._held)

    def pause(self, *queues: MessageQueue) -> None:
        """Pull no more of these queues; messages in hand are delivered."""
        self._instance.check_process()
        self._paused.update([self._wrapped(queue) for queue in queues])

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues again."""
        self._instance.check_process()
        self._paused.difference_update([self._wrapped(queue) for queue in queues])

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as it is named here: with the namespace."""
        if not isinstance(queue, MessageQueue):
            raise ConfigurationError(f"a queue is a MessageQueue, not {queue!r}")
        topic = wrap(self._namespace, queue.topic)
        return MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue.queue_id)

    def health(self) -> list[QueueHealth]:
        """Return the state of each queue."""
        self._instance.check_process()
        return [
            QueueHealth(
                queue=held.queue,
                lag=max(0, held.max_offset - held.process.commit_offset),
                in_hand=len(held.process),
                oldest_stored_ms=None if held.process.oldest is None else held.process.oldest.stored_ms,
                trouble=held.trouble,
            )
            for held in self._held.values()
        ]

    # start and end

    async def _start_once(self) -> bool:
        """Return whether this call has started it; one that failed may be repeated. ClosedClient after the close."""
        self._instance.check_process()
        if self._closed:
            raise ClosedClient("the consumer is closed")
        if self._started:
            return False
        self._started = True
        joined = False
        try:
            await self._start()
            joined = True
        finally:
            self._started = joined
        return True

    async def _start(self) -> None:
        self._instance.check_usable()
        for topic, data in self._subscriptions.items():
            if topic != self._retry_topic:
                try:
                    await self._instance.fetch_route(topic)
                except NoRoute as error:
                    _log.warning(
                        "topic %s has no route yet, so group %s gets no messages of it; it is looked up every %g s: %s",
                        topic,
                        self._group,
                        AGAIN_S,
                        f"unknown at {', '.join(error.answers)}" if error.is_unknown else error,
                    )
                else:
                    await self._check(data)
        self._has_joined = True
        self._started_ms = self._host.wall_ms()
        await self._instance.heartbeat()
        if self._closed:
            raise ClosedClient("the consumer was closed while it started")
        self._loops.append(self._host.spawn(self._rebalances(), name=f"rmq rebalance of {self._group}"))
        self._loops.append(self._host.spawn(self._persists(), name=f"rmq offsets of {self._group}"))

    async def _check(self, data: SubscriptionData) -> None:
        """
        Have a broker judge an expression: one that cannot be parsed makes it refuse all heartbeats of the client.

        Raises Refused.  Java: MQClientInstance#checkClientInBroker
        """
        if data.expression_type != SQL92:
            return
        route = await self._instance.route(data.topic)
        body = CheckClientBody(client_id=self._instance.client_id, group=self._group, subscription_data=data)
        for broker in route.broker_datas:
            try:
                addr = self._instance.master(broker.broker_name)
                await self._instance.ask(addr, CHECK_CLIENT_CONFIG, None, fastjson.encode(body))
            except Refused:
                raise
            except RequestFailed as error:
                _log.info("whether an expression is right could not be asked: %s", error)
            else:
                return

    async def _stop_pulling(self) -> None:
        self._closed = True
        running = [*self._loops, *(held.pulling for held in self._held.values() if held.pulling is not None)]
        for each in running:
            each.cancel()
        for each in running:
            await each.wait()

    async def _write_all(self) -> CloseReport:
        """Write the offsets of all queues, each with an answer."""
        if self._broadcast:
            ready = sum(held.is_ready for held in self._held.values())
            return CloseReport(offsets_written=ready) if self._write_file() else CloseReport(offsets_not_written=ready)
        written = failed = 0
        for held in self._held.values():
            if held.is_ready:
                if not self._was_absent(held) and await self._write(held):
                    written += 1
                else:
                    failed += 1
        return CloseReport(offsets_written=written, offsets_not_written=failed)

    # rebalance

    async def _rebalances(self) -> None:
        wait_s = 0.0
        while True:
            try:
                await self._host.within(self._asked(), wait_s)
            except TimeoutError:
                pass
            self._rebalance_now.shut()
            complete = [await self._rebalance_or_log(topic) for topic in list(self._subscriptions)]
            wait_s = self._instance.settings.rebalance_s if all(complete) else AGAIN_S
            if self._changed_at is not None:
                due_s = self._compared_s + (COMPARE_CHANGED_S if self._is_news else COMPARE_S)
                if self._host.seconds() >= due_s:
                    self._compared_s = self._host.seconds()
                    self._is_news = False
                    await self._compare(self._changed_at)
                else:
                    wait_s = min(wait_s, due_s - self._host.seconds())

    async def _rebalance_or_log(self, topic: str) -> bool:
        """Rebalance a topic; False and logged, with its traceback once, when the strategy of the user fails."""
        complete, error = await attempt(self._host, self._rebalance(topic))
        if error is not None:
            is_new = self._failed.get(topic) != repr(error)
            self._failed[topic] = repr(error)
            text = "the queues of topic %s cannot be shared in group %s, which is tried again in %g s: %r"
            level = logging.ERROR if is_new else logging.DEBUG
            _log.log(level, text, topic, self._group, AGAIN_S, error, exc_info=error if is_new else None)
            return False
        self._failed.pop(topic, None)
        return bool(complete)

    async def _compare(self, addr: str) -> None:
        """Warn of the two causes of messages that never arrive: members with other subscriptions, and with our id."""
        header = ConsumerGroupHeader(consumer_group=self._group)
        try:
            group = (await self._instance.ask(addr, GET_CONSUMER_CONNECTION_LIST, header, None)).body
        except RequestFailed as error:
            _log.debug("%s does not say what group %s subscribes to: %s", addr, self._group, error)
            return
        same = sum(member.client_id == self._instance.client_id for member in group.connection_set)
        if same > 1:
            text = "group %s has %d members with our client id %s: only one of them gets messages"
            _log.warning(text, self._group, same, self._instance.client_id)
        differences = differing(self._subscriptions, group.subscription_table)
        now_s = self._host.seconds()
        seen_s = {text: at_s for text, at_s in self._differed_s.items() if now_s < at_s + FORGET_DIFFERENCE_S}
        self._differed_s = seen_s | dict.fromkeys(differences, now_s)
        if any(text not in seen_s for text in differences):
            text = "members of group %s subscribe to different things, so messages are lost: %s (broker %s)"
            _log.warning(text, self._group, "; ".join(differences), addr)

    async def _asked(self) -> None:
        await self._rebalance_now.wait()

    async def _rebalance(self, topic: str) -> bool:
        """Take and drop queues of a topic; False when a broker or NameServer did not answer."""
        try:
            route = await self._instance.route(topic)
        except NoRoute:
            return False
        queues = in_order(subscribe_queues(topic, route))
        if self._broadcast:
            mine = queues
        else:
            members = await self._members(route)
            if members is None:
                return False
            if self._instance.client_id not in members:
                await self._instance.heartbeat()
                members = await self._members(route) or []
            mine = self._pulling.strategy(
                self._group, self._instance.client_id, queues, sorted(members, key=java_order)
            )
        if await self._take(topic, set(mine)):
            self._subscriptions[topic].sub_version = self._host.wall_ms()
            self._instance.beat()
        return all(queue in self._held for queue in mine)

    async def _members(self, route: TopicRouteData) -> list[str] | None:
        """Ask a broker who is in the group; None when none answers."""
        addrs = [addr for _, _, addr in broker_addrs(route)]
        self._host.rng.shuffle(addrs)
        for addr in addrs:
            try:
                response = await self._instance.ask(
                    addr, GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(consumer_group=self._group), None
                )
            except RequestFailed as error:
                # A broker that does not know a new group yet refuses.
                level = logging.DEBUG if isinstance(error, Refused) else logging.INFO
                _log.log(level, "%s does not say who is in group %s: %s", addr, self._group, error)
                continue
            return response.body.consumer_id_list
        return None

    async def _take(self, topic: str, mine: set[MessageQueue]) -> bool:
        changed = False
        now = self._host.seconds()
        for held in [held for held in self._held.values() if held.queue.topic == topic]:
            stuck = now - held.moved_s > WATCHDOG_S
            if stuck:
                _log.error("queue %s was not pulled for %d s; it is taken again", held.queue, WATCHDOG_S)
            if held.queue not in mine or stuck or held.dropped:
                changed = await self._drop(held) or changed
        for queue in in_order(mine):
            if queue not in self._held and not self._closed and await self._may_take(queue):
                held = self._held[queue] = Held(queue, moved_s=now, consumed_ms=self._host.wall_ms())
                held.pulling = self._host.spawn(self._pull_queue(held), name=f"rmq pull of {queue}")
                changed = True
        self._tell_rebalanced(topic)
        return changed

    def _tell_rebalanced(self, topic: str) -> None:
        """Tell the observers which queues came and went since they heard of the topic."""
        before, now = self._told.get(topic, frozenset()), frozenset(q for q in self._held if q.topic == topic)
        if now != before:
            self._told[topic] = now
            gained, lost = now - before, before - now
            _log.info(
                "group %s has %d queues of topic %s here; gained: %s; lost: %s",
                self._group,
                len(now),
                topic,
                *(", ".join(map(str, sorted(queues))) or "none" for queues in (gained, lost)),
            )
            event = Rebalanced(topic=topic, group=self._group, queues=now, gained=gained, lost=lost)
            tell(self._instance.observers, lambda observer: observer.rebalanced(event))

    def _give_up_all(self) -> None:
        """Have no queue any more: the consumer is closed."""
        self._held.clear()
        for topic in self._told:
            self._tell_rebalanced(topic)

    def _go_on(self, held: Held, offset: int) -> None:
        """Forget what is in hand and pull from another offset now; the poll in flight may be held for long."""
        if held.pulling is not None:
            held.pulling.cancel()
        held.process.clear(offset)
        held.is_ready = True  # whatever the broker would have said
        held.pulling = self._host.spawn(self._pull_queue(held), name=f"rmq pull of {held.queue}")

    async def _may_take(self, queue: MessageQueue) -> bool:
        return True

    async def _drop(self, held: Held) -> bool:
        """Give a queue up: write its offset once, and never after that, for the new owner may be ahead."""
        held.dropped = True
        if held.pulling is not None:
            held.pulling.cancel()
        self._held.pop(held.queue, None)
        await self._hand_over(held)
        return True

    async def _hand_over(self, held: Held) -> None:
        """
        Write the offset of a queue that another member gets.

        That member reads it as soon as it has joined, so the offsets of all queues go out without a wait for answers.
        Java: RebalancePushImpl#removeUnnecessaryMessageQueue
        """
        if held.is_ready and not self._was_absent(held):
            await self._send_offset(held)

    # offsets

    async def _persists(self) -> None:
        while True:
            await self._host.sleep(self._instance.settings.persist_offsets_s)
            await self._persist()

    async def _persist(self) -> None:
        """Send all offsets that have changed, one-way."""
        if self._broadcast:
            self._write_file()
            return
        for held in list(self._held.values()):
            changed = held.process.commit_offset != held.committed
            if held.is_ready and not held.dropped and changed and not self._was_absent(held):
                await self._send_offset(held)

    async def _send_offset(self, held: Held) -> None:
        """Write the offset of a queue one-way."""
        if self._broadcast:
            self._write_file()
            return
        offset = held.process.commit_offset
        try:
            addr = self._instance.master(held.queue.broker_name)
            header = self._offset_header(held, offset)
            await self._instance.connections.tell(addr, UPDATE_CONSUMER_OFFSET, header, None)
            held.committed = offset
        except RequestFailed as error:
            _log.info("the offset of %s was not written: %s", held.queue, error)

    async def _write(self, held: Held) -> bool:
        """Write the offset of a queue and wait for the answer."""
        if self._broadcast:
            return self._write_file()
        offset = held.process.commit_offset
        try:
            addr = self._instance.master(held.queue.broker_name)
            await self._instance.ask_last(addr, UPDATE_CONSUMER_OFFSET, self._offset_header(held, offset), None)
        except RequestFailed as error:
            _log.warning("offset %d of %s was not written: %s", offset, held.queue, error)
            return False
        held.committed = offset
        return True

    def _offset_header(self, held: Held, offset: int) -> UpdateConsumerOffsetHeader:
        queue = held.queue
        return UpdateConsumerOffsetHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )

    async def _first_offset(self, queue: MessageQueue) -> int:
        """Return where to begin; fails with RequestFailed, and is then asked again."""
        stored = self._read_file().get(queue) if self._broadcast else await self._stored_offset(queue)
        if stored is not None:
            return stored
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        settings = self._pulling
        addr = self._instance.master(queue.broker_name)
        header = queue_header(queue)
        if settings.consume_from is From.FIRST or (is_retry and settings.consume_from is From.LAST):
            return 0
        if settings.consume_from is From.LAST or is_retry:
            return (await self._instance.ask(addr, GET_MAX_OFFSET, header, None)).header.offset
        search = search_header(queue, settings.consume_from_ms or 0)
        return (await self._instance.ask(addr, SEARCH_OFFSET_BY_TIMESTAMP, search, None)).header.offset

    async def _stored_offset(self, queue: MessageQueue) -> int | None:
        header = QueryConsumerOffsetHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        try:
            addr = self._instance.master(queue.broker_name)
            response = await self._instance.ask(addr, QUERY_CONSUMER_OFFSET, header, None)
        except Refused as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return response.header.offset

    @property
    def _path(self) -> str:
        return f".rocketmq_offsets/{self._instance.client_id}/{self._group}/offsets.json"

    def _read_file(self) -> dict[MessageQueue, int]:
        try:
            data = self._host.read_file(self._path)
        except (PermissionError, NotADirectoryError, RuntimeError) as error:
            # Java: file2String, for which such a file is not there
            self._file_failed("read", error)
            return {}
        except OSError as error:
            raise RequestFailed(self._path, f"the file of offsets {self._path} cannot be read: {error}") from error
        try:
            return {} if data is None else fastjson.decode(data, OffsetsByQueue).offset_table
        except fastjson.JsonError as error:
            raise RequestFailed(self._path, f"the file of offsets {self._path} cannot be read: {error}") from error

    def _write_file(self) -> bool:
        """Write the offsets of a broadcast and return whether it went well; a failure is logged."""
        table = {held.queue: held.process.commit_offset for held in self._held.values() if held.is_ready}
        if table:
            try:
                self._host.write_file(self._path, fastjson.encode(OffsetsByQueue(offset_table=table)))
            except (OSError, RuntimeError) as error:
                self._file_failed("written", error)
                return False
            self._has_file = True
        return True

    def _file_failed(self, how: str, error: Exception) -> None:
        """Log why the file of offsets cannot be used, once until it can be again. RuntimeError: there is no home."""
        level = logging.ERROR if self._has_file else logging.DEBUG
        self._has_file = False
        text = "the offsets of group %s cannot be %s, so a restart begins where consume_from says: file ~/%s: %s"
        _log.log(level, text, self._group, how, self._path, error)

    # pulls

    async def _pull_queue(self, held: Held) -> None:
        """Pull a queue for as long as it is ours."""
        pause = AGAIN_S
        while not held.dropped:
            held.moved_s = self._host.seconds()
            wait_s = self._why_wait(held)
            if wait_s:
                await self._host.sleep(wait_s)
                continue
            try:
                if not held.is_ready:
                    held.process = ProcessQueue(await self._first_offset(held.queue))
                    held.is_ready, held.absences = True, self._instance.absences(held.queue.broker_name)
                elif self._was_absent(held):
                    await self._follow(held)
                asked_s = self._host.seconds()
                response = await self._pull(held)
            except RequestFailed as error:
                held.trouble = str(error)
                pause = await self._rest(held, error, pause)
                continue
            self._instance.heard(held.queue.broker_name)
            if self._was_absent(held):
                continue
            held.trouble, pause = "", AGAIN_S
            self._pulled(held, response, self._host.seconds() - asked_s)

    def _was_absent(self, held: Held) -> bool:
        """Return whether others may have read the queue since its offset was right: no broker heard of us for long."""
        shares = not self._broadcast and bool(self._subscriptions)
        return shares and held.absences != self._instance.absences(held.queue.broker_name)

    async def _follow(self, held: Held) -> None:
        """Go on where those are who had the queue while no broker heard of us; fails with RequestFailed."""
        self._instance.beat()
        await self._host.sleep(AGAIN_S)  # they write their offsets when the broker tells them that we are back
        stored = await self._stored_offset(held.queue)
        self._instance.heard(held.queue.broker_name)
        held.absences = self._instance.absences(held.queue.broker_name)
        if stored is not None and stored > held.process.commit_offset:
            text = "the broker had not heard of us for long, others have read queue %s: it goes on at offset %d, not %d"
            _log.warning(text, held.queue, stored, held.process.commit_offset)
            held.process.clear(stored)

    def _why_wait(self, held: Held) -> float:
        """Return how long to wait before the next pull, 0 to pull now."""
        settings, process = self._pulling, held.process
        if held.queue in self._paused:
            held.trouble = "paused"
            return PAUSED_PAUSE_S
        if (
            len(process) >= settings.queue_messages
            or process.held_bytes >= settings.queue_bytes
            or (self._span_matters() and process.span > settings.queue_span)
            or sum(other.process.held_bytes for other in self._held.values()) >= settings.max_cached_bytes
        ):
            held.trouble = "messages in hand are at a limit"
            return FULL_PAUSE_S
        return 0.0

    def _span_matters(self) -> bool:
        return True

    def _commits_with_pulls(self) -> bool:
        return True

    def _subscription(self, topic: str) -> SubscriptionData:
        return self._subscriptions[topic]

    async def _pull(self, held: Held) -> Response[PullMessageReply, bytes]:
        queue, settings, process = held.queue, self._pulling, held.process
        data = self._subscription(queue.topic)
        offset = process.commit_offset
        commits = self._commits_with_pulls() and offset > 0 and held.broker_id == MASTER_ID and not self._broadcast
        sends_subscription = PULL_SUBSCRIPTION | PULL_LITE if self._is_lite else 0
        header = PullMessageHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=process.next_offset,
            max_msg_nums=settings.pull_batch,
            sys_flag=PULL_SUSPEND | (PULL_COMMIT_OFFSET if commits else 0) | sends_subscription,
            commit_offset=offset if commits else 0,
            suspend_timeout_millis=int(settings.suspend_s * 1000),
            subscription=data.sub_string if self._is_lite else None,
            sub_version=0 if self._is_lite else data.sub_version,
            expression_type=data.expression_type,
            bname=queue.broker_name,
        )
        addr = self._instance.broker_addr(queue.broker_name, held.broker_id, any_id=True)
        return await self._instance.ask(addr, PULL_MESSAGE, header, None, settings.answer_s)

    async def _rest(self, held: Held, error: RequestFailed, pause: float) -> float:
        """Wait after a failed pull and return the pause of the next failure."""
        if isinstance(error, Refused) and error.code in (
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ):
            # the broker has lost our heartbeat, with its connection for example
            self._instance.beat()
            await self._host.sleep(AGAIN_S)
            return AGAIN_S
        if isinstance(error, Refused) and error.code == ResponseCode.SYSTEM_BUSY:
            await self._host.sleep(BUSY_PAUSE_S)
            return AGAIN_S
        held.broker_id = MASTER_ID
        if isinstance(error, Refused):  # of a permission for example, which may last for ever
            self._log_refused(held.queue, error)
            most = MOST_PAUSE_S
        else:
            _log.log(
                logging.INFO if pause == AGAIN_S else logging.DEBUG, "queue %s cannot be pulled: %s", held.queue, error
            )
            most = UNREACHABLE_PAUSE_S
        pause = min(pause, most)
        await self._host.sleep(pause * self._host.rng.uniform(0.8, 1.2))
        return 2 * pause

    def _log_refused(self, queue: MessageQueue, error: Refused) -> None:
        """Log the refusal of a pull, once for all queues of the topic that the broker refuses for the same reason."""
        place, now_s = (queue.topic, queue.broker_name), self._host.seconds()
        text = " ".join(error.remark.split())
        logged, at_s = self._refused.get(place, ("", now_s))
        is_new = text != logged or now_s >= at_s + MOST_PAUSE_S
        if is_new:
            self._refused[place] = text, now_s
        said = f"{error.addr} refuses it with code {error.code}: {text}"
        _log.log(logging.WARNING if is_new else logging.DEBUG, "queue %s cannot be pulled: %s", queue, said)

    def _pulled(self, held: Held, response: Response[PullMessageReply, bytes], seconds: float) -> None:
        reply, process = response.header, held.process
        held.broker_id, held.max_offset = reply.suggest_which_broker_id, reply.max_offset
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            # the offset is not in the queue; or a broker of 5.x resets the offsets of a group
            _log.warning(
                "the broker lets queue %s go on at offset %d, instead of %d",
                held.queue,
                reply.next_begin_offset,
                process.next_offset,
            )
            process.clear(reply.next_begin_offset)
            return
        messages: list[ReceivedMessage] = []
        if response.code == ResponseCode.SUCCESS:
            data = self._subscription(held.queue.topic)
            messages = [
                message
                for record in decode_records(response.body)
                if wanted(data, message := ReceivedMessage(record, held.queue, self._namespace))
            ]
        process.put(messages, reply.next_begin_offset)
        if messages:
            self._tally(held).pulled(self._host.seconds(), len(messages), seconds)
            if self._instance.observers:
                event = Received(
                    topic=held.queue.topic,
                    group=self._group,
                    queue=held.queue,
                    messages=len(messages),
                    body_bytes=sum(len(message.record.body) for message in messages),
                    seconds=seconds,
                )
                tell(self._instance.observers, lambda observer: observer.received(event))
            self._deliver(held, messages)

    def _done(self, held: Held, messages: Iterable[ReceivedMessage], how: How) -> None:
        """Take messages out of hand, and tell the observers why."""
        held.consumed_ms = self._host.wall_ms()
        self._tell_settled(held, held.process.done(messages), how)

    def _tell_settled(self, held: Held, messages: int, how: How) -> None:
        if messages and self._instance.observers:
            event = Settled(topic=held.queue.topic, group=self._group, messages=messages, how=how)
            tell(self._instance.observers, lambda observer: observer.settled(event))

    def _tally(self, held: Held) -> Tally:
        topic = held.queue.topic
        found = self._tallies.get(topic)
        if found is None:
            found = self._tallies[topic] = Tally(self._host.seconds())
        return found

    def _deliver(self, held: Held, messages: list[ReceivedMessage]) -> None:
        """Do something with new messages."""
        raise NotImplementedError

    # for the client

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        if not self._has_joined:  # it would get queues, and not read them
            return None
        return ConsumerData(
            group_name=self._group,
            consume_type=self.consume_type,
            message_model="BROADCASTING" if self._broadcast else "CLUSTERING",
            consume_from_where=self._pulling.consume_from.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def routes_changed(self) -> None:
        self._rebalance_now.open()

    def answers(self, addr: str, command: RemotingCommand) -> Coroutine[Any, Any, bytes | None] | None:
        if command.code == NOTIFY_CONSUMER_IDS_CHANGED.code:
            if command.ext_fields.get("consumerGroup") == self._group:
                self._changed_at = addr
                self._is_news = True
                self._rebalance_now.open()
                return _nothing()
        elif command.code == RESET_CONSUMER_CLIENT_OFFSET.code:
            if command.decode_header(ResetOffsetHeader).group == self._group:
                return self._reset(command)
        elif command.code == GET_CONSUMER_STATUS_FROM_CLIENT.code:
            header = command.decode_header(ConsumerStatusHeader)
            if header.group == self._group:
                return self._status(command, header.topic)
        elif command.code == GET_CONSUMER_RUNNING_INFO.code:
            asked = command.decode_header(RunningInfoHeader)
            if asked.consumer_group == self._group:
                return self._running_info(command, with_stacks=asked.jstack_enable)
        return None

    async def _reset(self, command: RemotingCommand) -> bytes | None:
        """Go to the offsets that an operator has chosen.  Java: MQClientInstance#resetOffset"""
        topic = command.decode_header(ResetOffsetHeader).topic
        body = command.body or b"{}"
        try:
            table = fastjson.decode(body, OffsetsByQueue).offset_table
        except fastjson.JsonError:
            listed = fastjson.decode(body, OffsetList).offset_table
            table = {
                MessageQueue(topic=one.topic, broker_name=one.broker_name, queue_id=one.queue_id): one.offset
                for one in listed
            }
        for held in list(self._held.values()):
            offset = table.get(held.queue)
            if self._closed:
                break
            if held.queue.topic == topic and held.is_ready and not held.dropped and offset is not None:
                self._go_on(held, offset)
                held.absences = self._instance.absences(held.queue.broker_name)
                await self._write(held)
                _log.info("offset of %s was reset to %d", held.queue, offset)
        return encode_reply(command)

    async def _status(self, command: RemotingCommand, topic: str) -> bytes | None:
        table = {q: held.process.commit_offset for q, held in self._held.items() if q.topic == topic and held.is_ready}
        return encode_reply(command, body=fastjson.encode(ConsumerStatus(message_queue_table=table)))

    async def _running_info(self, command: RemotingCommand, *, with_stacks: bool) -> bytes | None:
        """Say what this member does.  Java: DefaultMQPushConsumerImpl#consumerRunningInfo"""
        now_s = self._host.seconds()
        info = RunningInfo(
            properties={
                **running_properties(self._pulling),
                "consumerGroup": self._group,
                "messageModel": "BROADCASTING" if self._broadcast else "CLUSTERING",
                "PROP_NAMESERVER_ADDR": ";".join(self._instance.namesrvs),
                "PROP_CONSUME_TYPE": self.consume_type,
                "PROP_CLIENT_VERSION": "V4_9_8",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=list(self._subscriptions.values()),
            mq_table={queue: self._queue_info(held) for queue, held in self._held.items()},
            status_table={
                topic: tally.status(now_s) for topic, tally in self._tallies.items() if topic in self._subscriptions
            },
            jstack=self._host.stacks() if with_stacks else None,
        )
        return encode_reply(command, body=fastjson.encode(info))

    def _queue_info(self, held: Held) -> QueueInfo:
        process = held.process
        locked_s = self._locked_since_s(held)
        return QueueInfo(
            commit_offset=process.commit_offset,
            cached_msg_min_offset=process.commit_offset if len(process) else 0,
            cached_msg_max_offset=process.next_offset - 1 if len(process) else 0,
            cached_msg_count=len(process),
            cached_msg_size_in_mi_b=process.held_bytes >> 20,
            locked=self._is_locked(held),
            last_lock_timestamp=0 if locked_s is None else self._wall_ms_of(locked_s),
            droped=held.dropped,
            last_pull_timestamp=self._wall_ms_of(held.moved_s),
            last_consume_timestamp=held.consumed_ms,
        )

    def _wall_ms_of(self, at_s: float) -> int:
        return self._host.wall_ms() - int((self._host.seconds() - at_s) * 1000)

    def _is_locked(self, held: Held) -> bool:
        return False

    def _locked_since_s(self, held: Held) -> float | None:
        """Return when the queue was locked last, None when it never was."""
        return None


async def _nothing() -> bytes | None:
    return None


def queue_header(queue: MessageQueue) -> QueueHeader:
    """Return what names a queue in a request about its ends."""
    return QueueHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)


def search_header(queue: MessageQueue, at_ms: int) -> SearchOffsetHeader:
    """Return the question which offset of a queue was stored at a time (epoch milliseconds)."""
    return SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms, bname=queue.broker_name)
