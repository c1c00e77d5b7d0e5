"""
The metrics of a broker.

Metrics that Apache's broker 5.3.3 has at its Prometheus port (metricsExporterType=PROM) have the same name, labels and
unit here; replication has names of rocketmq-rust. Our own follow their pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rmq.broker.groups import SYSTEM_GROUP_PREFIX
from rmq.broker.http.consumer_lag import lag_ms, lags
from rmq.broker.http.exporter import more_labels
from rmq.broker.offsets import TOPIC_GROUP_SEPARATOR
from rmq.broker.service import BrokerService
from rmq.broker.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK2DLQ_TIMES,
    TOPIC_COMMIT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    TOPIC_ROLLBACK_NUMS,
)
from rmq.broker.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmq.ha.master import MasterState
from rmq.ha.session import CloseKind
from rmq.ha.status import HAStatus
from rmq.remoting.stats import BUCKETS_S
from rmq.remoting.statsview import refusals_by_name, timed_by_name
from rmq.runtime.clock import now_ms
from rmq.runtime.http.metrics import APACHE, COUNTER, GAUGE, HISTOGRAM, RUST, Collector, Row, family, rows_of
from rmq.store.config import BrokerRole
from rmq.store.health import StoreHealth
from rmq.wire.codes import version_desc

MS = 1e3

_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_STORAGE = ["storage_type", "storage_medium"]
_LOCAL_DISK = ("local", "disk")
_OF_GROUP = ["consumer_group", "topic", "is_retry", "is_system"]
#: rows of a slice when each may cost a read from disk
_READING_SLICE = 8


def _truth(value: bool) -> str:
    return "true" if value else "false"


class BrokerCollector(Collector):
    """All metrics of a broker."""

    def __init__(self, broker: BrokerService) -> None:
        setup = broker.setup
        own = {"cluster": setup.broker.broker_cluster_name, "node_type": "broker", "node_id": setup.name}
        taken = {label for found in self.families() for label in found.labels}
        more = {name: value for name, value in more_labels(setup.extra).items() if name not in taken}
        super().__init__({**more, **own})
        self._broker = broker
        self._stats = broker.stats
        self._requests = broker.responders.stats

    @property
    def _health(self) -> StoreHealth:
        return self._broker.store.health()

    @property
    def _ha(self) -> HAStatus:
        return self._broker.ha.status()

    def _is_system(self, topic: str, group: str = "") -> str:
        is_system_group = group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())
        return _truth(is_system_group or is_system_topic(topic, self._broker.setup))

    def _of_group(self, group: str, topic: str) -> tuple[str, str, str, str]:
        is_retry = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        return group, topic, _truth(is_retry), self._is_system(topic, group)

    # the broker

    @family("rocketmq_broker_up", GAUGE, "1 while the broker serves.", origin=RUST)
    def up(self) -> Iterable[Row]:
        yield (), int(self._broker.running and self._health.failure is None)

    @family("rocketmq_broker_role", GAUGE, "1 for the role that the broker has.", labels=["role"])
    def role(self) -> Iterable[Row]:
        own = self._broker.setup.store.broker_role
        return [((role.name,), int(role is own)) for role in BrokerRole]

    @family(
        "rocketmq_broker_permission",
        GAUGE,
        "Permission of the broker (brokerPermission): 2 to write, 4 to read, 6 for both.",
        origin=APACHE,
    )
    def permission(self) -> Iterable[Row]:
        yield (), self._broker.settings.setup.broker.broker_permission

    @family(
        "rocketmq_broker_registered",
        GAUGE,
        "1 when a NameServer took the last registration, 0 when not.",
        labels=["namesrv"],
    )
    def registered(self) -> Iterable[Row]:
        return [((addr,), int(taken is True)) for addr, taken in self._broker.registration.name_servers.items()]

    @family("rocketmq_topic_number", GAUGE, "Topics of the broker.", origin=APACHE)
    def topic_number(self) -> Iterable[Row]:
        yield (), len(self._broker.topics)

    @family("rocketmq_consumer_group_number", GAUGE, "Subscription groups of the broker.", origin=APACHE)
    def group_number(self) -> Iterable[Row]:
        yield (), len(self._broker.groups)

    @family(
        "rocketmq_processor_watermark",
        GAUGE,
        "Pending requests: sends that wait for an fsync or for slaves, pulls whose messages are read from the disk.",
        labels=["processor"],
        origin=APACHE,
    )
    def watermark(self) -> Iterable[Row]:
        yield ("send",), self._health.puts_waiting_for_disk + self._ha.pending_puts
        yield ("pull",), self._broker.flow.cold_pulls.waiting

    @family(
        "rocketmq_reactor_lag_milliseconds",
        HISTOGRAM,
        "Milliseconds by which the reactor was late, ten times a second: how long a request waits for other work.",
    )
    def reactor_lag(self) -> Iterable[Row]:
        return rows_of(self._broker.flow.lags_ms)

    @family("rocketmq_long_polls_waiting", GAUGE, "Pulls that wait for a message.")
    def long_polls(self) -> Iterable[Row]:
        yield (), len(self._broker.polls)

    @family("rocketmq_active_connections", GAUGE, "Open connections.", labels=["listener"])
    def connections(self) -> Iterable[Row]:
        yield ("main",), len(self._broker.server.channels)
        yield ("vip",), len(self._broker.vip_server.channels)

    @family(
        "rocketmq_connection_events_total",
        COUNTER,
        "Connections that were admitted, rejected (too many, or no file left), or have ended.",
        labels=["listener", "event"],
    )
    def connection_events(self) -> Iterable[Row]:
        for name, server in (("main", self._broker.server), ("vip", self._broker.vip_server)):
            yield (name, "admitted"), server.accepted
            yield (name, "rejected"), server.refused
            yield (name, "closed"), server.accepted - len(server.channels)

    # messages

    @family(
        "rocketmq_messages_in_total",
        COUNTER,
        "Messages that were stored.",
        labels=["topic", "is_system"],
        origin=APACHE,
    )
    def messages_in(self) -> Iterable[Row]:
        return self._by_topic(TOPIC_PUT_NUMS)

    @family(
        "rocketmq_throughput_in_total",
        COUNTER,
        "Bytes that messages took in the commit log.",
        labels=["topic", "is_system"],
        origin=APACHE,
    )
    def throughput_in(self) -> Iterable[Row]:
        return self._by_topic(TOPIC_PUT_SIZE)

    def _by_topic(self, name: str) -> Iterator[Row]:
        for topic, value in self._stats.totals(name):
            if self._is_there(topic):
                yield (topic, self._is_system(topic)), value

    def _is_there(self, topic: str, group: str | None = None) -> bool:
        """Tell whether topic and group still exist; with them end their series, for counters are kept."""
        if self._broker.topics.get(topic) is None:
            return False
        # A slave serves groups that are not in its table yet.
        return group is None or self._broker.setup.is_slave or self._broker.groups.get(group) is not None

    @family("rocketmq_messages_out_total", COUNTER, "Messages that groups pulled.", labels=_OF_GROUP, origin=APACHE)
    def messages_out(self) -> Iterable[Row]:
        return self._by_group(GROUP_GET_NUMS)

    @family("rocketmq_throughput_out_total", COUNTER, "Bytes that groups pulled.", labels=_OF_GROUP, origin=APACHE)
    def throughput_out(self) -> Iterable[Row]:
        return self._by_group(GROUP_GET_SIZE)

    def _by_group(self, name: str) -> Iterator[Row]:
        for key, value in self._stats.totals(name):
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if self._is_there(topic, group):
                yield self._of_group(group, topic), value

    @family(
        "rocketmq_send_to_dlq_messages_total",
        COUNTER,
        "Messages that went to a group's dead letter topic, by the topic that they were sent to.",
        labels=["consumer_group", "topic", "is_system"],
        origin=APACHE,
    )
    def dead_letters(self) -> Iterable[Row]:
        # Zeros too, of all groups that ever consumed: Prometheus sees no increase in a series that starts at 1.
        found = {key: 0 for key in self._broker.offsets.snapshot() if not key.startswith((RETRY_PREFIX, DLQ_PREFIX))}
        for key, value in (found | dict(self._stats.totals(SNDBCK2DLQ_TIMES))).items():
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if self._is_there(topic, group):
                yield (group, topic, self._is_system(topic, group)), value

    @family("rocketmq_put_failures_total", COUNTER, "Messages that were refused or whose storing failed.")
    def put_failures(self) -> Iterable[Row]:
        yield (), self._stats.put_failures

    @family("rocketmq_pulls_total", COUNTER, "Pulls that found messages, or none.", labels=["result"])
    def pulls(self) -> Iterable[Row]:
        yield ("found",), self._stats.gets_found.total
        yield ("missed",), self._stats.gets_missed.total

    @family(
        "rocketmq_delay_messages_waiting",
        GAUGE,
        "Messages of a delay level that are not delivered yet.",
        labels=["level"],
    )
    def delays(self) -> Iterable[Row]:
        if self._broker.setup.is_slave:
            return
        for level, (offset, end) in self._broker.delays.progress().items():
            yield (str(level),), max(0, end - offset)

    @family(
        "rocketmq_delay_messages_passed_over_total",
        COUNTER,
        "Delayed messages that could not be delivered and were skipped; the log says why.",
    )
    def delays_skipped(self) -> Iterable[Row]:
        yield (), self._broker.delays.skipped

    @family(
        "rocketmq_commit_messages_total",
        COUNTER,
        "Transactions that were committed.",
        labels=["topic", "is_system"],
        origin=APACHE,
    )
    def commits(self) -> Iterable[Row]:
        return self._by_topic(TOPIC_COMMIT_NUMS)

    @family(
        "rocketmq_rollback_messages_total",
        COUNTER,
        "Transactions that were rolled back.",
        labels=["topic", "is_system"],
        origin=APACHE,
    )
    def rollbacks(self) -> Iterable[Row]:
        return self._by_topic(TOPIC_ROLLBACK_NUMS)

    @family(
        "rocketmq_half_messages_waiting",
        GAUGE,
        "Half messages that the last transaction check left open, and those that were stored since.",
    )
    def half_messages(self) -> Iterable[Row]:
        yield (), self._broker.checks.open_half_messages

    @family(
        "rocketmq_transaction_checks_total",
        COUNTER,
        "Half messages that were checked: a producer was asked, none was connected, or it was discarded.",
        labels=["result"],
    )
    def transaction_checks(self) -> Iterable[Row]:
        counts = self._broker.checks.counts
        yield ("asked",), counts.checked
        yield ("no_producer",), counts.unasked
        yield ("discarded",), counts.discarded

    # clients

    @family(
        "rocketmq_producer_connections",
        GAUGE,
        "Connections of producers.",
        labels=["language", "version", "protocol_type"],
        origin=APACHE,
    )
    def producers(self) -> Iterable[Row]:
        members = [member for group in self._broker.producers.table().values() for member in group]
        numbers = Counter((member.language.lower(), version_desc(member.version).lower()) for member in members)
        return [((*labels, "remoting"), number) for labels, number in numbers.items()]

    @family(
        "rocketmq_consumer_connections",
        GAUGE,
        "Connections of consumers.",
        labels=["consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"],
        origin=APACHE,
    )
    def consumers(self) -> Iterable[Row]:
        for name in self._broker.consumers.names():
            group = self._broker.consumers.find(name)
            if group is None:
                continue
            numbers = Counter(
                (member.language.lower(), version_desc(member.version).lower()) for member in group.members.values()
            )
            mode = _MODES.get(group.consume_type, "")
            for (language, version), number in numbers.items():
                yield (name, language, version, mode, "remoting", self._is_system("", name)), number

    @family(
        "rocketmq_consumer_lag_messages",
        GAUGE,
        "Consumer lag: messages after the committed offsets of a group.",
        labels=_OF_GROUP,
        origin=APACHE,
    )
    def lag_messages(self) -> Iterable[Row]:
        for lag in lags(self._broker):
            yield self._of_group(lag.group, lag.topic), lag.messages

    @family(
        "rocketmq_consumer_lag_latency_milliseconds",
        GAUGE,
        "Consumer lag in time: age of the oldest message after the committed offsets; 0 without lag.",
        labels=_OF_GROUP,
        origin=APACHE,
        slice_series=_READING_SLICE,
    )
    def lag_latency(self) -> Iterable[Row]:
        for lag in lags(self._broker):
            yield self._of_group(lag.group, lag.topic), lag_ms(self._broker.store, now_ms(self._broker.clock), lag)

    # requests

    @family(
        "rocketmq_rpc_latency_milliseconds",
        HISTOGRAM,
        "Milliseconds from a request's arrival to its answer; of a pull that waited, with the wait.",
        labels=["protocol_type", "request_code"],
        origin=APACHE,
    )
    def rpc_latency(self) -> Iterable[Row]:
        bounds = [bound * MS for bound in BUCKETS_S]
        for name, timed in timed_by_name(self._requests).items():
            yield ("remoting", name), (bounds, timed.buckets, timed.seconds * MS)

    @family(
        "rocketmq_refusals_total",
        COUNTER,
        "Requests that were answered with another code than success.",
        labels=["request_code", "response_code"],
    )
    def refusals(self) -> Iterable[Row]:
        return list(refusals_by_name(self._requests).items())

    # the store

    @family("rocketmq_storage_size_bytes", GAUGE, "Used bytes of the store's disk.", labels=_STORAGE, origin=APACHE)
    def storage_size(self) -> Iterable[Row]:
        disk = self._health.log_disk
        yield _LOCAL_DISK, disk.total_bytes - disk.free_bytes

    @family(
        "rocketmq_storage_flush_behind_bytes",
        GAUGE,
        "Bytes of the commit log that are not flushed yet.",
        labels=_STORAGE,
        origin=APACHE,
    )
    def flush_behind(self) -> Iterable[Row]:
        yield _LOCAL_DISK, self._broker.store.end_offset - self._broker.store.flushed_offset

    @family(
        "rocketmq_storage_dispatch_behind_bytes",
        GAUGE,
        "Bytes of the commit log that consumers cannot see yet.",
        labels=_STORAGE,
        origin=APACHE,
    )
    def dispatch_behind(self) -> Iterable[Row]:
        yield _LOCAL_DISK, self._broker.store.end_offset - self._broker.store.dispatched_offset

    @family(
        "rocketmq_storage_message_reserve_time_milliseconds",
        GAUGE,
        "Age of the oldest message.",
        labels=_STORAGE,
        origin=APACHE,
    )
    def reserve_time(self) -> Iterable[Row]:
        earliest_ms = self._broker.store.earliest_store_time()
        if earliest_ms > 0:
            yield _LOCAL_DISK, now_ms(self._broker.clock) - earliest_ms

    @family("rocketmq_store_offset", GAUGE, "Offsets in the commit log.", labels=["position"])
    def offsets(self) -> Iterable[Row]:
        store = self._broker.store
        yield ("min",), store.min_phy_offset
        yield ("max",), store.end_offset
        yield ("flushed",), store.flushed_offset
        yield ("dispatched",), store.dispatched_offset
        yield ("confirmed",), store.confirm_offset

    @family(
        "rocketmq_store_flush_latency", HISTOGRAM, "Milliseconds that an fsync of the commit log took.", origin=RUST
    )
    def flush_latency(self) -> Iterable[Row]:
        return rows_of(self._health.sync_seconds, MS)

    @family(
        "rocketmq_store_disk_used_ratio",
        GAUGE,
        "Used share of a disk from 0 to 1, as compared with the configured limits; -1 when unknown.",
        labels=["part"],
    )
    def disk_used(self) -> Iterable[Row]:
        health = self._health
        yield ("commitlog",), health.log_disk.used_ratio
        yield ("consumequeue",), health.queue_disk.used_ratio

    @family("rocketmq_store_writable", GAUGE, "1 while messages are taken; a slave never takes any.")
    def writable(self) -> Iterable[Row]:
        yield (), int(self._health.is_writable)

    @family("rocketmq_store_failed", GAUGE, "1 after an fsync has failed: the broker must be restarted.")
    def failed(self) -> Iterable[Row]:
        yield (), int(self._health.failure is not None)

    @family(
        "rocketmq_store_disk_full",
        GAUGE,
        "1 while messages are refused because a disk is above its limit, has no room for the next file, or is broken.",
    )
    def disk_full(self) -> Iterable[Row]:
        health = self._health
        yield (), int(health.failure is None and health.refuses_because is not None)

    @family(
        "rocketmq_store_early_deletions_total",
        COUNTER,
        "Files of the commit log that were deleted before fileReservedTime, consumed or not, to make room.",
    )
    def early_deletions(self) -> Iterable[Row]:
        yield (), self._health.early_deletions

    @family("rocketmq_store_segments", GAUGE, "Files of the commit log.")
    def segments(self) -> Iterable[Row]:
        yield (), self._health.segments

    @family("rocketmq_store_queues", GAUGE, "Consume queues.")
    def queues(self) -> Iterable[Row]:
        yield (), self._health.queues

    @family("rocketmq_store_damaged_parts", GAUGE, "Unreadable parts of the log that were skipped since the start.")
    def damaged(self) -> Iterable[Row]:
        yield (), self._health.damaged_parts

    @family(
        "rocketmq_store_dispatch_failures_total",
        COUNTER,
        "Messages that a bug cost their unit, their keys or a listener; the log has the offsets.",
    )
    def dispatch_failures(self) -> Iterable[Row]:
        yield (), self._health.dispatch_failures

    @family(
        "rocketmq_store_load_seconds",
        GAUGE,
        "How long the last start took to load the store, after a stop that was clean, killed or sync_failed.",
        labels=["stop_before"],
    )
    def load_seconds(self) -> Iterable[Row]:
        load = self._health.load
        if load is not None:
            yield (load.stop_before.value,), load.seconds

    @family("rocketmq_store_load_read_bytes", GAUGE, "Bytes of the log that the last start read again.")
    def load_read(self) -> Iterable[Row]:
        load = self._health.load
        if load is not None:
            yield (), load.read_bytes

    # replication, as a master

    @family(
        "rocketmq_store_ha_replication_lag_bytes",
        GAUGE,
        "Largest replication lag of a slave in bytes; 0 without slaves.",
        origin=RUST,
    )
    def max_lag(self) -> Iterable[Row]:
        yield (), self._ha.max_lag_bytes

    @family(
        "rocketmq_store_ha_ack_latency_millis",
        HISTOGRAM,
        "Milliseconds from the push of new bytes to a slave's acknowledgement.",
        origin=RUST,
    )
    def ack_latency(self) -> Iterable[Row]:
        return rows_of(self._ha.ack_latency_ms)

    @family("rocketmq_store_ha_connections", GAUGE, "Connections on the HA port by state.", labels=["state"])
    def ha_connections(self) -> Iterable[Row]:
        numbers = Counter(slave.state for slave in self._ha.slaves)
        return [((state.name.lower(),), numbers[state]) for state in MasterState]

    @family("rocketmq_store_ha_in_sync_slaves", GAUGE, "Slaves that a SYNC_MASTER would wait for.")
    def in_sync_slaves(self) -> Iterable[Row]:
        yield (), self._ha.in_sync_slaves

    @family(
        "rocketmq_store_ha_slave_lag_bytes",
        GAUGE,
        "Replication lag: bytes that a slave has not acknowledged.",
        labels=["slave"],
    )
    def slave_lag_bytes(self) -> Iterable[Row]:
        return [((slave.addr,), slave.lag_bytes) for slave in self._ha.slaves if slave.lag_bytes >= 0]

    @family(
        "rocketmq_store_ha_slave_lag_seconds",
        GAUGE,
        "Replication lag in time: age of the first byte that a slave has not acknowledged; 0 without lag.",
        labels=["slave"],
    )
    def slave_lag_seconds(self) -> Iterable[Row]:
        return [((slave.addr,), slave.lag_seconds) for slave in self._ha.slaves if slave.lag_seconds >= 0]

    @family(
        "rocketmq_store_ha_slave_sent_bytes_total",
        COUNTER,
        "Bytes of the log that were sent over a slave's present connection.",
        labels=["slave"],
    )
    def slave_sent(self) -> Iterable[Row]:
        return [((slave.addr,), slave.sent_bytes) for slave in self._ha.slaves]

    @family(
        "rocketmq_store_ha_refusals_total",
        COUNTER,
        "Connections on the HA port that were refused or dropped, by reason; the log has the offsets.",
        labels=["reason"],
    )
    def ha_refusals(self) -> Iterable[Row]:
        refusals = self._ha.refusals
        # Every reason from the start: Prometheus sees no increase in a series that begins with 1.
        return [((kind.name.lower(),), refusals.get(kind, 0)) for kind in CloseKind]

    @family("rocketmq_store_ha_pending_puts", GAUGE, "Sends that wait for slaves.")
    def pending_puts(self) -> Iterable[Row]:
        yield (), self._ha.pending_puts

    @family(
        "rocketmq_store_ha_put_timeouts_total", COUNTER, "Replica timeouts: sends that no slave acknowledged in time."
    )
    def put_timeouts(self) -> Iterable[Row]:
        yield (), self._ha.timeouts

    # replication, as a slave

    @family("rocketmq_store_ha_link_up", GAUGE, "1 while a slave is connected to its master.")
    def link_up(self) -> Iterable[Row]:
        link = self._ha.link
        if link is not None:
            yield (), int(link.connected)

    @family(
        "rocketmq_store_ha_link_silence_seconds",
        GAUGE,
        "Seconds since a connected slave last received data from its master.",
    )
    def link_silence(self) -> Iterable[Row]:
        link = self._ha.link
        if link is not None and link.connected:
            yield (), (now_ms(self._broker.clock) - (link.last_read_ms or link.connected_ms)) / 1000

    @family(
        "rocketmq_store_ha_link_refusals_total",
        COUNTER,
        "Connections that a slave ended because of what its master sent.",
    )
    def link_refusals(self) -> Iterable[Row]:
        link = self._ha.link
        if link is not None:
            yield (), link.refused

    @family(
        "rocketmq_metadata_sync_failing",
        GAUGE,
        "1 for each table that a slave could not copy from its master in the last round.",
        labels=["table"],
    )
    def metadata_failing(self) -> Iterable[Row]:
        return [((what,), 1) for what in self._broker.metadata_sync.failing]
