"""Topics of a broker: defaults, names, automatic creation, order."""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import BrokerConfig, BrokerSetup
from rmq.broker.topics import (
    FORBIDDEN_TOPICS,
    TopicTable,
    auto_create,
    default_topics,
    is_system_topic,
    retry_topic,
    sending_problem,
    system_topic_problem,
    topic,
    topic_name_problem,
)
from rmq.wire.api.common import TopicConfig
from tests.broker.test_tables import TableCase

DEFAULTS = BrokerSetup(broker=BrokerConfig(broker_name="broker-a"))


class DefaultTopicsTests(SynchronousTestCase):
    def shapes(self, setup: BrokerSetup) -> dict[str, tuple[int, int]]:
        found = {config.topic_name: config for config in default_topics(setup)}
        self.assertTrue(all(config.read_queue_nums == config.write_queue_nums for config in found.values()))
        return {name: (config.write_queue_nums, config.perm) for name, config in found.items()}

    def test_as_apache(self) -> None:
        """A new broker has the topics of an Apache broker, with the same queues and permissions."""
        self.assertEqual(
            self.shapes(DEFAULTS),
            {
                "SELF_TEST_TOPIC": (1, 6),
                "TBW102": (8, 7),
                "BenchmarkTest": (1024, 6),
                "DefaultCluster": (16, 7),
                "broker-a": (1, 7),
                "OFFSET_MOVED_EVENT": (1, 6),
                "SCHEDULE_TOPIC_XXXX": (18, 6),
                "DefaultCluster_REPLY_TOPIC": (1, 6),
            },
        )

    def test_switches(self) -> None:
        """The broker's switches take TBW102 away, add the trace topic, and close the cluster's and broker's topics."""
        shapes = self.shapes(
            BrokerSetup(
                broker=BrokerConfig(
                    broker_name="b",
                    broker_cluster_name="c",
                    auto_create_topic_enable=False,
                    cluster_topic_enable=False,
                    broker_topic_enable=False,
                    trace_topic_enable=True,
                    msg_trace_topic_name="traces",
                )
            )
        )
        self.assertNotIn("TBW102", shapes)
        self.assertEqual((shapes["c"], shapes["b"], shapes["traces"]), ((16, 1), (1, 1), (1, 6)))


class NameTests(SynchronousTestCase):
    def test_problems(self) -> None:
        """What is wrong with a name is said in Apache's words."""
        for name in ("T", "%RETRY%a-b_c|d", "x" * 127):
            self.assertIsNone(topic_name_problem(name))
        self.assertEqual(topic_name_problem(" "), "The specified topic is blank.")
        self.assertEqual(topic_name_problem(""), "The specified topic is blank.")
        for name in ("a b", "a@b", "тема", "T\n", "a.b", "٣"):
            self.assertEqual(
                topic_name_problem(name),
                "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            )
        self.assertEqual(topic_name_problem("x" * 128), "The specified topic is longer than topic max length.")

    def test_system_topics(self) -> None:
        """Admins cannot touch system topics, clients cannot send to those that the broker writes."""
        for name in (*FORBIDDEN_TOPICS, "TBW102", "DefaultCluster", "broker-a", "rmq_sys_x", "RMQ_SYS_TRACE_TOPIC"):
            self.assertEqual(system_topic_problem(name, DEFAULTS), f"The topic[{name}] is conflict with system topic.")
        self.assertIsNone(system_topic_problem("orders", DEFAULTS))
        traced = BrokerSetup(
            broker=BrokerConfig(broker_name="broker-a", trace_topic_enable=True, msg_trace_topic_name="traces")
        )
        self.assertEqual([is_system_topic(name, traced) for name in ("traces", "orders")], [True, False])
        self.assertTrue(is_system_topic("DefaultCluster_REPLY_TOPIC", DEFAULTS))
        self.assertEqual(
            sending_problem("SCHEDULE_TOPIC_XXXX"), "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."
        )
        self.assertIsNone(sending_problem("TBW102"))


class AutoCreateTests(SynchronousTestCase):
    TBW102 = topic("TBW102", 8, 7)

    def create(
        self, name: str = "T", default: TopicConfig | None = TBW102, queues: int = 4, **flags: bool
    ) -> TopicConfig | None:
        return auto_create(name, default, client_queue_nums=queues, **flags)

    def test_queues(self) -> None:
        """As many queues as the client wishes and the template has, and never less than none."""
        self.assertEqual(self.create(), topic("T", 4, 6))
        self.assertEqual(self.create(queues=100), topic("T", 8, 6))
        self.assertEqual(self.create(queues=-1), topic("T", 0, 6))

    def test_template_must_be_inheritable(self) -> None:
        """A template without INHERIT makes nothing; TBW102 loses it, alone, when automatic creation is off."""
        self.assertIsNone(self.create(default=topic("TBW102", 8, 6)))
        self.assertIsNone(self.create(default=None))
        self.assertIsNone(self.create(auto_create_topic_enable=False))
        other = topic("DefaultCluster", 16, 7)
        self.assertEqual(self.create(default=other, auto_create_topic_enable=False), topic("T", 4, 6))

    def test_retry_topics(self) -> None:
        """A retry topic comes into being even without a template, with one queue."""
        self.assertEqual(self.create("%RETRY%g", default=None), topic("%RETRY%g", 1))
        self.assertEqual(self.create("%RETRY%g"), topic("%RETRY%g", 4))

    def test_inherited(self) -> None:
        """Filter type and permission are the template's, without INHERIT; unit mode sets the flag."""
        default = TopicConfig(topic_name="X", write_queue_nums=8, perm=5, topic_filter_type="MULTI_TAG")
        found = self.create(default=default, unit_mode=True)
        assert found is not None
        self.assertEqual((found.perm, found.topic_filter_type, found.topic_sys_flag), (4, "MULTI_TAG", 1))
        retry = self.create("%RETRY%g", default=None, unit_mode=True)
        assert retry is not None
        self.assertEqual(retry, retry_topic("%RETRY%g", 1, 2))


class CreatedTests(TableCase):
    def test_a_created_topic_is_announced(self) -> None:
        """
        Who registers topics hears of each that a message or a consumer made, after it is in the table.

        It is announced when it is registered and durable.
        """
        table: TopicTable = self.table()
        heard: list[tuple[str, bool]] = []
        registered: Deferred[None] = Deferred()

        def register(config: TopicConfig) -> Deferred[None]:
            heard.append((config.topic_name, config.topic_name in table))
            return registered

        table.on_created(register)
        table.put(topic("B", 1))
        self.written()
        table.create(topic("A", 1))
        self.assertEqual((heard, [*table.announcing]), ([("A", True)], ["A"]))
        registered.callback(None)
        stored = table.when_announced("A", 1)
        assert isinstance(stored, Deferred)
        self.assertEqual((table.when_announced("B", 2), stored.called, [*table.announcing]), (2, False, ["A"]))
        self.written()
        self.assertEqual((self.successResultOf(stored), table.announcing), (1, {}))

    def test_deleted_and_made_again(self) -> None:
        """The end of the first announcement does not end the second one."""
        table: TopicTable = self.table()
        both: list[Deferred[None]] = [Deferred(), Deferred()]
        table.on_created(lambda _: both[0] if table.data_version.counter == 1 else both[1])
        table.create(topic("A", 1))
        table.delete("A")
        table.create(topic("A", 1))
        self.written()
        both[0].callback(None)
        self.assertEqual([*table.announcing], ["A"])
        both[1].callback(None)
        self.assertEqual(table.announcing, {})

    def test_a_disk_that_refuses(self) -> None:
        """A full disk does not keep a topic from being announced."""
        table: TopicTable = self.table()
        self.break_disk()
        table.create(topic("A", 1))
        self.written()
        self.assertEqual(table.announcing, {})
        os.rmdir(self.path("topics.json.tmp"))


class OrderTests(TableCase):
    def test_set_order_topics(self) -> None:
        """Exactly the topics of the order table are ordered; only a difference is a change."""
        table: TopicTable = self.table()
        table.add_missing([topic("A", 1), topic("B", 1), topic("C", 1)])
        self.assertEqual(table.set_order_topics({"A", "B"}), ["A", "B"])
        self.assertEqual(table.set_order_topics({"B", "C", "unknown"}), ["A", "C"])
        version = table.data_version
        self.assertEqual(table.set_order_topics({"B", "C"}), [])
        self.assertEqual(table.data_version, version)
        ordered = [name for name, config in table.snapshot().topic_config_table.items() if config.order]
        self.assertEqual(ordered, ["B", "C"])
