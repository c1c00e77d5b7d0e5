"""Numbers that clients, operators and files count on, each named with where else it is fixed."""

from __future__ import annotations

from importlib import import_module

from twisted.trial.unittest import SynchronousTestCase

#: module, name, value, and who relies on it
NUMBERS: list[tuple[str, str, object, str]] = [
    ("namesrv.routes", "BROKER_EXPIRY_MS", 120_000, "Java: RouteInfoManager"),
    ("namesrv.journal.explain", "REGISTER_PERIOD_MS", 30_000, "Java: BrokerConfig#registerNameServerPeriod"),
    ("namesrv.responders", "STRICT_JSON_SINCE", 401, "Java: MQVersion V4_9_4"),
    ("namesrv.service", "FIRST_SCAN_S", 5.0, "Java: NamesrvController#initialize"),
    ("namesrv.service", "FIRST_KV_LOG_S", 60.0, "Java: NamesrvController#initialize"),
    ("namesrv.service", "KV_LOG_INTERVAL_S", 600.0, "Java: NamesrvController#initialize"),
    ("wire.api.common", "MASTER_ID", 0, "Java: MixAll#MASTER_ID"),
    ("namesrv.controller.live", "DEFAULT_TIMEOUT_MS", 10_000, "Java: DefaultBrokerHeartbeatManager"),
    ("namesrv.controller.live", "CLOSED_TIMEOUT_MS", 2_500, "docs/failover.md"),
    ("namesrv.controller.live", "FRESH_MS", 2_500, "docs/failover.md; longer than two heartbeats"),
    ("broker.elected.service", "STEP_S", 1.0, "docs/failover.md: heartbeats to the controller"),
    ("broker.sessions", "MEMBER_EXPIRY_MS", 120_000, "Java: ConsumerManager, ProducerManager"),
    ("broker.locks", "LOCK_LIFE_MS", 60_000, "Java: RebalanceLockManager; clients renew every 20 s"),
    ("broker.longpoll", "SWEEP_MS", 5_000, "Java: PullRequestHoldService#run"),
    ("broker.topics", "SCHEDULE_QUEUES", 18, "Java: one queue for each of 18 delay levels"),
    ("broker.topics", "BENCHMARK_QUEUES", 1024, "Java: TopicConfigManager"),
    ("broker.topics", "CLUSTER_QUEUES", 16, "Java: TopicConfigManager"),
    ("broker.topics", "MAX_TOPIC_CHARS", 127, "Java: the byte of a record that holds the length of its topic"),
    ("broker.groups", "MAX_GROUP_CHARS", 255, "Java: Validators#CHARACTER_MAX_LENGTH"),
    ("broker.offset_push", "TIMEOUT_MS", 3000, "Java: BrokerOuterAPI"),
    ("ha.stream", "MAX_BODY_BYTES", 4 << 20, "Java: HAClient's buffer"),
    ("ha.slave", "AHEAD_AFTER_HEARTBEATS", 2, "docs/replication.md"),
    ("ha.follower", "FIRST_S", 1.0, "docs/replication.md"),
    ("ha.follower", "LONGEST_ABSENT_S", 6.0, "Java: HAClient waits 5 s; docs/replication.md"),
    ("ha.follower", "LONGEST_S", 60.0, "docs/replication.md"),
    ("ha.master", "TLS_HANDSHAKE", 0x1603, "RFC 8446"),
    ("remoting.protocol", "TLS_HANDSHAKE", 0x16, "RFC 8446; Java: TlsHelper#HANDSHAKE_MAGIC_CODE"),
    ("remoting.client", "CONNECT_TIMEOUT_MS", 3_000, "Java: NettyClientConfig"),
    ("remoting.client", "IDLE_SECONDS", 120.0, "Java: NettyClientConfig"),
    ("remoting.server", "IDLE_SECONDS", 120.0, "Java: NettyServerConfig"),
    ("remoting.server", "BACKLOG", 1024, "Java: NettyServerConfig#serverSocketBacklog"),
    ("remoting.acl", "MIN_KEY_CHARS", 6, "Java: PlainPermissionManager"),
    ("store.layout", "NAME_DIGITS", 20, "file names; Java: UtilAll#offset2FileName"),
    ("store.layout", "INDEX_NAME_DIGITS", 17, "file names; Java: UtilAll#timeMillisToHumanString"),
    ("store.layout", "CQ_FILLER_SIZE", 2**31 - 1, "Java: ConsumeQueue#fillPreBlank"),
    ("store.layout", "CQ_EXT_ADDRESS_MAX", -(2**31) - 1, "Java: ConsumeQueueExt#MAX_ADDR"),
    ("store.layout", "CQ_EXT_BASE", -(2**63), "Java: ConsumeQueueExt#decorate"),
    ("store.layout", "CHECKPOINT_BYTES", 4096, "Java: StoreCheckpoint"),
    ("store.checkpoint", "SAFETY_MS", 3000, "Java: StoreCheckpoint#getMinTimestamp"),
    ("store.store", "MAX_COMPARED_BYTES", 8 << 20, "docs/replication.md"),
]


class NumberTests(SynchronousTestCase):
    def test_numbers(self) -> None:
        """None of them can change unnoticed: a client, an operator's alarm or a file of Apache's would notice it."""
        for module, name, value, relied_on_by in NUMBERS:
            found = getattr(import_module(f"rmq.{module}"), name)
            self.assertEqual((type(found), found), (type(value), value), f"{module}.{name}: {relied_on_by}")
