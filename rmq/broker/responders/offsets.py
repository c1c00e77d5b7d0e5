"""
Offsets of groups and queues.

Java: ConsumerManageProcessor, AdminBrokerProcessor
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.config import BrokerSetup
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import TopicTable
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms
from rmq.store.store import MessageStore
from rmq.wire.api.common import MessageQueue, TopicConfig
from rmq.wire.api.offsets import (
    CLONE_GROUP_OFFSET,
    GET_BROKER_CONSUME_STATS,
    GET_CONSUME_STATS,
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUME_TIME_SPAN,
    QUERY_CONSUMER_OFFSET,
    QUERY_CORRECTION_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    BrokerConsumeStats,
    BrokerConsumeStatsHeader,
    CloneGroupOffsetHeader,
    ConsumeStats,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    ConsumeTimeSpans,
    CorrectionOffsetHeader,
    CorrectionOffsets,
    OffsetReply,
    OffsetWrapper,
    QueryConsumerOffsetHeader,
    QueueHeader,
    QueueTimeSpan,
    SearchOffsetHeader,
    TimestampReply,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.codes import ResponseCode

#: of a group in a topic: its name, messages a second, and of each queue the group's offset and the end
_Positions = tuple[str, float, list[tuple[int, int]]]

#: what Java calls Long.MAX_VALUE
MAX_OFFSET = (1 << 63) - 1


@attrs.define(eq=False)
class OffsetResponder:
    """Requests about the range of queues and the offsets of groups."""

    _log = Logger()

    _setup: BrokerSetup
    _clock: IReactorTime
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _consumers: ConsumerGroups
    _offsets: ConsumerOffsetTable
    _stats: BrokerStats

    @responds_to(QUERY_CONSUMER_OFFSET)
    def query(self, request: Request[QueryConsumerOffsetHeader, None]) -> Reply:
        """
        A group without an offset starts at 0 while the first message of the queue is still in memory; otherwise the
        answer is code 22, and the client follows its own ``consumeFromWhere``.

        Java: ConsumerManageProcessor#queryConsumerOffset
        """
        header, store = request.header, self._store
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return Reply(OffsetReply(offset=offset))
        if (
            header.set_zero_if_not_found is not False
            and store.min_offset(header.topic, header.queue_id) <= 0
            and store.in_memory_by_queue_offset(header.topic, header.queue_id, 0)
        ):
            return Reply(OffsetReply(offset=0))
        raise Refuse(ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")

    @responds_to(UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request[UpdateConsumerOffsetHeader, None]) -> Reply:
        header = request.header
        # An offset beyond the queue's end belongs to messages that this slave never had: it must not be pushed later.
        at_slave = self._setup.is_slave and header.commit_offset <= self._store.max_offset(
            header.topic, header.queue_id
        )
        commit = self._offsets.commit_at_slave if at_slave else self._offsets.commit
        commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return Reply()

    @responds_to(CLONE_GROUP_OFFSET)
    def clone(self, request: Request[CloneGroupOffsetHeader, None]) -> None:
        """
        Java: AdminBrokerProcessor#cloneGroupOffset
        """
        header, offsets = request.header, self._offsets
        topics = [header.topic] if header.topic else sorted(offsets.topics_of(header.src_group))
        for topic in topics:
            if self._topics.get(topic) if header.offline else self._followed(header.src_group, topic):
                offsets.clone(header.src_group, header.dest_group, topic)

    @responds_to(SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, request: Request[SearchOffsetHeader, None]) -> Reply:
        header = request.header
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, header.boundary_type)
        return Reply(OffsetReply(offset=offset))

    @responds_to(GET_MAX_OFFSET)
    def newest(self, request: Request[QueueHeader, None]) -> Reply:
        header = request.header
        return Reply(OffsetReply(offset=self._store.max_offset(header.topic, header.queue_id)))

    @responds_to(GET_MIN_OFFSET)
    def oldest(self, request: Request[QueueHeader, None]) -> Reply:
        header = request.header
        return Reply(OffsetReply(offset=self._store.min_offset(header.topic, header.queue_id)))

    @responds_to(GET_EARLIEST_MSG_STORETIME)
    def earliest(self, request: Request[QueueHeader, None]) -> Reply:
        header, store = request.header, self._store
        time_ms = store.store_time_of(header.topic, header.queue_id, store.min_offset(header.topic, header.queue_id))
        return Reply(TimestampReply(timestamp=-1 if time_ms is None else time_ms))

    @responds_to(GET_CONSUME_STATS)
    def consume_stats(self, request: Request[ConsumeStatsHeader, None]) -> Reply:
        """
        Java: AdminBrokerProcessor#getConsumeStats
        """
        return Reply(body=self.stats_of(self.positions(request.header)))

    def positions(self, header: ConsumeStatsHeader) -> list[_Positions]:
        """Return where a group is in each readable queue of the topic asked for, or of all topics that it follows."""
        group = header.consumer_group
        topics = [header.topic] if header.topic else sorted(self._offsets.topics_of(group))
        followed = [self._followed(group, topic) for topic in topics]
        return [self._positions(group, each.topic_name, each.read_queue_nums) for each in followed if each is not None]

    def stats_of(self, positions: Iterable[_Positions]) -> ConsumeStats:
        """Return the answer about a group with these positions."""
        stats = ConsumeStats(consume_tps=0.0, offset_table={})
        for topic, tps, queues in positions:
            stats.consume_tps += tps
            for queue_id, (offset, end) in enumerate(queues):
                time_ms = self._store.store_time_of(topic, queue_id, offset - 1) if offset > 0 else None
                queue = MessageQueue(topic=topic, broker_name=self._setup.name, queue_id=queue_id)
                stats.offset_table[queue] = OffsetWrapper(
                    broker_offset=end, consumer_offset=offset, last_timestamp=time_ms or 0, pull_offset=offset
                )
        return stats

    @responds_to(GET_BROKER_CONSUME_STATS)
    def broker_consume_stats(self, request: Request[BrokerConsumeStatsHeader, None]) -> Reply:
        """
        ``isOrder`` restricts the answer to ordered topics. Queues are those that can be written, whereas
        `consume_stats` counts those that can be read.

        Java: AdminBrokerProcessor#fetchAllConsumeStatsInBroker
        """
        lists: list[dict[str, list[ConsumeStats]]] = []
        total = 0
        for group in self._groups.names():
            of_group: list[ConsumeStats] = []
            for topic in sorted(self._offsets.topics_of(group)):
                config = self._followed(group, topic)
                if config is None or (request.header.is_order and not config.order):
                    continue
                stats = self.stats_of([self._positions(group, topic, config.write_queue_nums)])
                total += sum(each.broker_offset - each.consumer_offset for each in stats.offset_table.values())
                of_group.append(stats)
            lists.append({group: of_group})
        return Reply(
            body=BrokerConsumeStats(broker_addr=self._setup.address, consume_stats_list=lists, total_diff=total)
        )

    @responds_to(QUERY_CONSUME_TIME_SPAN)
    def time_spans(self, request: Request[ConsumeTimeSpanHeader, None]) -> Reply:
        """
        Java: AdminBrokerProcessor#queryConsumeTimeSpan
        """
        header = request.header
        topic, store = header.topic, self._store
        config = self._topics.get(topic)
        if config is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        spans = []
        for queue_id, (first, end) in enumerate(store.ranges(topic, config.write_queue_nums)):

            def stored(offset: int, queue_id: int = queue_id) -> int:
                time_ms = store.store_time_of(topic, queue_id, offset)
                return -1 if time_ms is None else time_ms

            consumed = max(self._offsets.query(header.group, topic, queue_id) or 0, 0)
            first_ms, last_ms = stored(first), stored(end - 1)
            consumed_ms = stored(consumed - 1) if consumed > 0 else first_ms
            spans.append(
                QueueTimeSpan(
                    consume_time_stamp=consumed_ms,
                    consume_time_stamp_str=_day_and_time(consumed_ms),
                    delay_time=now_ms(self._clock) - stored(consumed) if consumed < end else 0,
                    max_time_stamp=last_ms,
                    max_time_stamp_str=_day_and_time(last_ms),
                    message_queue=MessageQueue(topic=topic, broker_name=self._setup.name, queue_id=queue_id),
                    min_time_stamp=first_ms,
                    min_time_stamp_str=_day_and_time(first_ms),
                )
            )
        return Reply(body=ConsumeTimeSpans(consume_time_span_set=spans))

    @responds_to(QUERY_CORRECTION_OFFSET)
    def correction(self, request: Request[CorrectionOffsetHeader, None]) -> Reply:
        """
        The lowest offset of all groups in each queue of a topic, except where ``compareGroup`` is behind it: there the
        largest possible number.

        ``filterGroups`` are left out; Apache's broker also forgets their offsets, in all topics.
        Java: AdminBrokerProcessor#queryCorrectionOffset
        """
        header = request.header
        topic = header.topic
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group in sorted(self._offsets.groups_of(topic) - left_out):
            for queue_id, offset in self._offsets.positions(group, topic).items():
                if offset >= self._store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in self._offsets.positions(header.compare_group, topic).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = MAX_OFFSET
        return Reply(body=CorrectionOffsets(correction_offsets=lowest))

    def _followed(self, group: str, topic: str) -> TopicConfig | None:
        """Return a topic; None if it does not exist or the online group does not subscribe to it."""
        config = self._topics.get(topic)
        if config is None:
            self._log.warn("group {group}: topic {topic} does not exist", group=group, topic=topic)
            return None
        online = self._consumers.find(group)
        if online is not None and online.subscriptions and topic not in online.subscriptions:
            self._log.warn("group {group} does not subscribe to {topic}", group=group, topic=topic)
            return None
        return config

    def _positions(self, group: str, topic: str, queues: int) -> _Positions:
        """Return where a group is in the first ``queues`` queues of a topic."""
        offsets = self._offsets.of_queues(group, topic, queues)
        places = [(offset, end) for offset, (_, end) in zip(offsets, self._store.ranges(topic, queues), strict=True)]
        return topic, self._stats.group_get_tps(group, topic), places


def _day_and_time(epoch_ms: int) -> str:
    """Return ``2026-11-21#08:00:00:000`` (UTC).  Java: UtilAll#YYYY_MM_DD_HH_MM_SS_SSS"""
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{epoch_ms % 1000:03d}"
