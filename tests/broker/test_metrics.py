"""What a running broker tells Prometheus and shows on its pages."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import generate_latest
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.http import pages
from rmq.broker.http.face import broker_face
from rmq.broker.http.metrics import BrokerCollector
from rmq.broker.service import BrokerService, build_broker
from rmq.runtime.disk.files import DiskFull
from rmq.runtime.platform import Platform
from rmq.sim.node import Node
from tests.broker.harness import WALL_AHEAD_S, OneBroker, OneBrokerCase, heartbeat, pull_ext, send_ext, setup_of

OWN = 'cluster="DefaultCluster",node_id="broker-a",node_type="broker"'


def scraped(broker: BrokerService) -> dict[str, str]:
    """Return every series of a scrape with its value, without the labels that all have."""
    text = generate_latest(BrokerCollector(broker)).decode()
    series = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            for label in OWN.split(","):
                name = name.replace(f"{label},", "").replace(f",{label}", "").replace(f"{{{label}}}", "")
            series[name] = value
    return series


class MetricsCase(OneBrokerCase):
    def send(self, topic: str = "T", body: bytes = b"x") -> None:
        self.assertEqual(self.client.ask(310, send_ext(topic), body).code, 0)

    def expect(self, expected: Mapping[str, str]) -> None:
        found = scraped(self.one.service)
        self.assertEqual({name: found.get(name) for name in expected}, dict(expected))

    def page(self, path: str, **query: str) -> str:
        return broker_face(self.one.service).pages[path](query)


class MetricsTests(MetricsCase):
    def test_labels_of_apache(self) -> None:
        """Every series of the broker says cluster, name and node type, as with Apache's exporter."""
        text = generate_latest(BrokerCollector(self.one.service)).decode()
        self.assertIn(f"\nrocketmq_broker_permission{{{OWN}}} 6.0\n", text)
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.assertEqual([line for line in lines if 'node_id="broker-a"' not in line], [])

    def test_messages(self) -> None:
        """Messages and bytes are counted by topic on their way in, by group and topic on their way out."""
        for _ in range(3):
            self.send()
        self.client.ask(11, pull_ext(offset=1))
        self.client.ask(11, pull_ext(offset=3))
        self.expect(
            {
                'rocketmq_messages_in_total{is_system="false",topic="T"}': "3.0",
                'rocketmq_messages_out_total{consumer_group="CG",is_retry="false",is_system="false",topic="T"}': "2.0",
                'rocketmq_pulls_total{result="found"}': "1.0",
                'rocketmq_pulls_total{result="missed"}': "1.0",
                "rocketmq_put_failures_total": "0.0",
            }
        )
        found = scraped(self.one.service)
        size = float(found['rocketmq_throughput_in_total{is_system="false",topic="T"}'])
        self.assertEqual(size, self.one.service.store.end_offset)

    def test_system_topics(self) -> None:
        """Topics of the broker itself are marked, so that a sum can leave them out."""
        self.client.ask(310, send_ext("BenchmarkTest"), b"x")
        self.expect({'rocketmq_messages_in_total{is_system="true",topic="BenchmarkTest"}': "1.0"})

    def test_lag(self) -> None:
        """A group's lag is what was stored behind its committed offsets, and the age of the oldest such message."""
        for _ in range(5):
            self.send()
        self.client.ask(34, None, heartbeat("c1", "CG", "T"))
        commit = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "2"}
        self.assertEqual(self.client.ask(15, commit).code, 0)
        labels = '{consumer_group="CG",is_retry="false",is_system="false",topic="T"}'
        self.expect({f"rocketmq_consumer_lag_messages{labels}": "3.0"})
        age_ms = float(scraped(self.one.service)[f"rocketmq_consumer_lag_latency_milliseconds{labels}"])
        self.one.world.run_for(7)
        later_ms = float(scraped(self.one.service)[f"rocketmq_consumer_lag_latency_milliseconds{labels}"])
        self.assertEqual(later_ms - age_ms, 7000)
        self.client.ask(15, {**commit, "commitOffset": "5"})
        self.expect(
            {
                f"rocketmq_consumer_lag_messages{labels}": "0.0",
                f"rocketmq_consumer_lag_latency_milliseconds{labels}": "0.0",
            }
        )

    def test_what_was_deleted(self) -> None:
        """Series end with their topic or group: a deleted group has no lag, whether or not its offsets were kept."""
        for topic in ("T", "Kept"):
            self.send(topic)
            self.client.ask(11, {**pull_ext(offset=0), "topic": topic})
            commit = {"consumerGroup": "CG", "topic": topic, "queueId": "0", "commitOffset": "0"}
            self.assertEqual(self.client.ask(15, commit).code, 0)

        def names(label: str) -> set[str]:
            return {name.partition("{")[0] for name in scraped(self.one.service) if label in name}

        incoming = {"rocketmq_messages_in_total", "rocketmq_throughput_in_total"}
        of_group = {
            "rocketmq_messages_out_total",
            "rocketmq_throughput_out_total",
            "rocketmq_send_to_dlq_messages_total",
        }
        of_group |= {"rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency_milliseconds"}
        self.assertEqual(names('topic="T"'), incoming | of_group)
        self.assertEqual(self.client.ask(215, {"topic": "T"}).code, 0)
        self.assertEqual(names('topic="T"'), set())
        self.assertEqual(names('topic="Kept"'), incoming | of_group)
        self.assertEqual(self.client.ask(207, {"groupName": "CG"}).code, 0)
        self.assertEqual(names('topic="Kept"'), incoming)
        self.assertEqual(self.one.service.offsets.query("CG", "Kept", 0), 0)
        self.client.ask(34, None, heartbeat("c1", "CG", "Kept"))
        self.client.ask(207, {"groupName": "CG"})
        self.assertIn("rocketmq_consumer_lag_messages", names('topic="Kept"'), "its consumer is still there")

    def test_dead_letters(self) -> None:
        """
        Dead letters are counted by group and first topic, moved by the broker or by a client's own resend.

        A group that has consumed has a zero before its first one, for Prometheus sees no increase without it.
        """
        self.send()
        self.client.ask(34, None, heartbeat("c1", "CG", "T"))
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "0"})
        self.client.ask(15, {"consumerGroup": "CG", "topic": "%RETRY%CG", "queueId": "0", "commitOffset": "0"})
        series = 'rocketmq_send_to_dlq_messages_total{consumer_group="CG",is_system="false",topic="T"}'
        self.expect({series: "0.0"})
        back = {"offset": "0", "group": "CG", "originMsgId": "x", "originTopic": "T"}
        self.assertEqual(self.client.ask(36, {**back, "delayLevel": "1"}).code, 0)
        self.expect({series: "0.0"})
        self.assertEqual(self.client.ask(36, {**back, "delayLevel": "-1"}).code, 0)
        self.expect({series: "1.0"})
        resend = send_ext("%RETRY%CG", props="RETRY_TOPIC\x01T", j="16")
        self.assertEqual(self.client.ask(310, resend, b"x").code, 0)
        self.expect({series: "2.0"})
        dead = [name for name in scraped(self.one.service) if name.startswith("rocketmq_send_to_dlq")]
        self.assertEqual(dead, [series])

    def test_clients(self) -> None:
        """Connections are counted by group, language, version and way of consuming."""
        self.client.ask(34, {}, heartbeat("c1", "CG", "T", producer="PG"))
        kind = 'language="java",protocol_type="remoting",version="v4_9_8"'
        mode = 'consume_mode="push",consumer_group="CG",is_system="false"'
        self.expect(
            {
                f"rocketmq_consumer_connections{{{mode},{kind}}}": "1.0",
                f"rocketmq_producer_connections{{{kind}}}": "1.0",
                'rocketmq_active_connections{listener="main"}': "1.0",
                'rocketmq_active_connections{listener="vip"}': "0.0",
                'rocketmq_connection_events_total{event="admitted",listener="main"}': "1.0",
                'rocketmq_connection_events_total{event="closed",listener="main"}': "0.0",
            }
        )

    def test_requests(self) -> None:
        """Requests are counted and timed by the name of their code, refusals by request and answer."""
        self.send()
        self.send()
        self.client.ask(9999)
        self.client.ask(310, send_ext("bad topic!"), b"x")
        kind = 'protocol_type="remoting",request_code="send_message_v2"'
        self.expect(
            {
                f"rocketmq_rpc_latency_milliseconds_count{{{kind}}}": "3.0",
                f'rocketmq_rpc_latency_milliseconds_bucket{{le="+Inf",{kind}}}': "3.0",
                'rocketmq_refusals_total{request_code="unknown",response_code="request_code_not_supported"}': "1.0",
                'rocketmq_refusals_total{request_code="send_message_v2",response_code="system_error"}': "1.0",
            }
        )

    def test_store(self) -> None:
        """Offsets, what is not synced or dispatched, the disk, and how the last start went."""
        self.send()
        self.one.world.run_for(60)
        end = f"{float(self.one.service.store.end_offset)}"
        self.expect(
            {
                'rocketmq_store_offset{position="max"}': end,
                'rocketmq_store_offset{position="flushed"}': end,
                'rocketmq_store_offset{position="min"}': "0.0",
                'rocketmq_storage_dispatch_behind_bytes{storage_medium="disk",storage_type="local"}': "0.0",
                'rocketmq_storage_flush_behind_bytes{storage_medium="disk",storage_type="local"}': "0.0",
                "rocketmq_store_writable": "1.0",
                "rocketmq_store_failed": "0.0",
                "rocketmq_store_disk_full": "0.0",
                "rocketmq_store_damaged_parts": "0.0",
                "rocketmq_store_dispatch_failures_total": "0.0",
                "rocketmq_store_segments": "1.0",
                "rocketmq_store_queues": "1.0",
                "rocketmq_store_load_read_bytes": "0.0",
                'rocketmq_broker_role{role="ASYNC_MASTER"}': "1.0",
                'rocketmq_broker_role{role="SLAVE"}': "0.0",
                "rocketmq_broker_up": "1.0",
            }
        )
        found = scraped(self.one.service)
        self.assertIn('rocketmq_store_load_seconds{stop_before="clean"}', found)
        self.assertGreaterEqual(float(found["rocketmq_store_flush_latency_count"]), 1)

    def test_start_after_a_kill(self) -> None:
        """The start after a kill says so, and how much of the log it read again."""
        self.send()
        self.one.node.kill()
        self.one.start()
        self.client = self.one.connect()
        found = scraped(self.one.service)
        self.assertIn('rocketmq_store_load_seconds{stop_before="killed"}', found)
        self.assertGreater(float(found["rocketmq_store_load_read_bytes"]), 0)

    def test_long_polls(self) -> None:
        """Pulls that wait are counted."""
        self.send()
        self.client.post(11, pull_ext(sys_flag=6, offset=1))
        self.one.world.run_for(1)
        self.expect({"rocketmq_long_polls_waiting": "1.0", 'rocketmq_processor_watermark{processor="send"}': "0.0"})

    def test_reactor_lag(self) -> None:
        """How late the reactor was is sampled ten times a second; in simulated time it never is."""
        self.one.world.run_for(1)
        found = scraped(self.one.service)
        samples = found["rocketmq_reactor_lag_milliseconds_count"]
        self.assertGreaterEqual(float(samples), 9)
        self.assertEqual(found['rocketmq_reactor_lag_milliseconds_bucket{le="0.5"}'], samples)


class MoreLabelsTests(MetricsCase):
    values = {"metricsLabel": "zone:east,topic:no,wrong,a b:c,le:1,größe:1,rack:r 1,__x:1"}

    def test_labels_of_the_configuration(self) -> None:
        """metricsLabel adds labels to all metrics, but none that metrics have themselves and none that is no label."""
        text = generate_latest(BrokerCollector(self.one.service)).decode()
        self.assertIn('\nrocketmq_broker_permission{cluster="DefaultCluster",', text)
        (line,) = [line for line in text.splitlines() if line.startswith("rocketmq_broker_permission{")]
        self.assertIn('rack="r 1",zone="east"', line)
        self.assertNotIn("topic", line)
        self.assertNotIn("__x", line)


class FullDiskTests(MetricsCase):
    values = {"mappedFileSizeCommitLog": "65536"}

    def test_no_room(self) -> None:
        """Metrics and page say that a disk has no room for the next file of the log, although no limit is reached."""
        self.send()
        self.one.service.store._retention.early_deletions = 3

        def refuse(disk: object, path: str, inode: object, size: int) -> None:
            raise DiskFull(path, "No space left on device")

        self.patch(type(self.one.node.disk), "reserve", refuse)
        codes = [self.client.ask(310, send_ext(), b"x" * 30_000).code for _ in range(3)]
        self.assertEqual(codes[-1], 1)
        self.expect({"rocketmq_store_writable": "0.0", "rocketmq_store_disk_full": "1.0", "rocketmq_broker_up": "1.0"})
        self.expect({"rocketmq_store_early_deletions_total": "3.0"})
        self.assertIn("No space left on device", self.page("/"))


class FailedStoreTests(SynchronousTestCase):
    def test_health(self) -> None:
        """A broker is healthy while it serves, and not once its store has failed or it has stopped."""
        one = OneBroker({"flushDiskType": "SYNC_FLUSH"})
        service = one.service
        face = broker_face(service)
        self.assertIsNone(face.health())
        client = one.connect()
        self.assertEqual(client.ask(310, send_ext(), b"x").code, 0)
        one.node.disk.fail_syncs = 1
        self.assertEqual(client.ask(310, send_ext(), b"x").code, 14)
        self.assertIn("the store has failed: ", str(face.health()))
        found = scraped(service)
        self.assertEqual(
            [found[f"rocketmq_{name}"] for name in ("store_failed", "store_writable", "broker_up")],
            ["1.0", "0.0", "0.0"],
        )
        self.assertIn("stopped: ", face.pages["/"]({}))
        one.stop()
        self.assertEqual(face.health(), "the broker is not running")
        self.flushLoggedErrors()


class ReplicationTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker({"brokerRole": "SYNC_MASTER"})
        self.slave = Node(self.one.world, self.one.net, "slave")
        self.slave.step_clock(-WALL_AHEAD_S)
        self.slave.start(self.build)
        self.client = self.one.connect()

    def build(self, platform: Platform) -> BrokerService:
        values = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"{self.one.node.address}:10912"}
        return build_broker(platform, setup_of(values), host_address=self.slave.address, host_name="slave")

    def tearDown(self) -> None:
        self.one.world.settle(self.slave.stop())
        self.one.end()

    def test_master_and_slave(self) -> None:
        """A master tells of each slave's lag and of acknowledgements, a slave of its link."""
        self.one.world.run_for(10)
        self.assertEqual(self.client.ask(310, send_ext(), b"x").code, 0)
        master = scraped(self.one.service)
        (addr,) = [slave.addr for slave in self.one.service.ha.status().slaves]
        expected = {
            "rocketmq_store_ha_replication_lag_bytes": "0.0",
            "rocketmq_store_ha_ack_latency_millis_count": "1.0",
            'rocketmq_store_ha_connections{state="transfer"}': "1.0",
            'rocketmq_store_ha_connections{state="wait_first"}': "0.0",
            "rocketmq_store_ha_in_sync_slaves": "1.0",
            f'rocketmq_store_ha_slave_lag_bytes{{slave="{addr}"}}': "0.0",
            f'rocketmq_store_ha_slave_lag_seconds{{slave="{addr}"}}': "0.0",
            "rocketmq_store_ha_pending_puts": "0.0",
            "rocketmq_store_ha_put_timeouts_total": "0.0",
            'rocketmq_store_ha_refusals_total{reason="ahead"}': "0.0",
        }
        self.assertEqual({name: master.get(name) for name in expected}, expected)
        self.assertNotIn("rocketmq_store_ha_link_up", master)
        service = self.slave.service
        assert isinstance(service, BrokerService)
        slave = scraped(service)
        self.assertEqual(slave["rocketmq_store_ha_link_up"], "1.0")
        self.assertEqual(slave["rocketmq_store_writable"], "0.0")
        self.assertEqual(slave["rocketmq_store_ha_link_refusals_total"], "0.0")
        self.assertLess(float(slave["rocketmq_store_ha_link_silence_seconds"]), 6)
        self.assertIn(addr, broker_face(self.one.service).pages["/"]({}))
        page = broker_face(service).pages["/"]({})
        self.assertIn("Replication from the master", page)
        self.assertIn(f"{self.one.node.address}:10912", page)

    def test_lag_of_a_slave_that_is_cut_off(self) -> None:
        """While a slave hears nothing its lag grows, in bytes and in seconds."""
        self.one.world.run_for(10)
        self.one.net.partition(self.one.node, self.slave)
        self.client.post(310, send_ext(), b"x")
        self.one.world.run_for(4)
        found = scraped(self.one.service)
        self.assertGreater(float(found["rocketmq_store_ha_replication_lag_bytes"]), 90)
        (seconds,) = [float(value) for name, value in found.items() if "slave_lag_seconds" in name]
        self.assertGreater(seconds, 3)
        self.assertLess(seconds, 5)
        self.one.net.heal()
        self.one.world.run_for(30)


class PageTests(MetricsCase):
    def test_status(self) -> None:
        """The first page has role, offsets, replication and the groups that are behind most."""
        for _ in range(4):
            self.send()
        self.one.service.groups.find("CG")
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
        page = self.page("/")
        self.assertIn("Broker broker-a (ASYNC_MASTER, id 0)", page)
        self.assertIn('<th>Messages are</th><td><span class="good">taken</span></td>', page)
        self.assertIn(f"<th>Log ends at</th><td>{self.one.service.store.end_offset:,}</td>", page)
        self.assertIn("no slave is connected", page)
        self.assertIn("<td>CG</td><td>T</td><td>3</td><td>1</td><td>0</td>", page)

    def test_topics(self) -> None:
        """Topics have their queues and messages, and can be searched by a part of their names."""
        self.send()
        page = self.page("/topics", part="T")
        self.assertIn("<td>T</td><td>4 / 4</td><td>6</td><td>1</td><td>1</td>", page)
        self.assertNotIn("SELF_TEST", self.page("/topics", part="Bench"))

    def test_many_groups(self) -> None:
        """Pages look at so many groups and no more, and say so."""
        self.send()
        for number in range(30):
            self.one.service.groups.find(f"G{number:02}")
            self.one.service.offsets.commit(f"G{number:02}", "T", 0, 0)
        self.assertIn("30 pairs of group and topic<", self.page("/groups"))
        self.patch(pages, "MAX_PAIRS", 20)
        self.patch(pages, "MAX_ROWS", 10)
        page = self.page("/groups")
        self.assertIn("the first 10 of 20 pairs of group and topic; only 20 pairs were looked at", page)
        self.assertIn("<td>G09</td>", page)
        self.assertNotIn("<td>G10</td>", page)

    def test_clients(self) -> None:
        """Who is connected, with client id, peer, language and topics, whatever the names look like."""
        self.client.ask(34, {}, heartbeat("<b>c1</b>", "CG", "T", producer="PG"))
        page = self.page("/clients")
        self.assertIn("<td>CG</td><td>&lt;b&gt;c1&lt;/b&gt;</td>", page)
        self.assertIn("<td>JAVA</td><td>V4_9_8</td>", page)
        self.assertNotIn("<b>", page)

    def test_other_pages(self) -> None:
        """Requests, groups and configuration."""
        self.send()
        self.assertIn("<td>send_message_v2</td><td>1</td>", self.page("/requests"))
        self.assertIn("brokerName=broker-a", self.page("/config"))
        self.assertIn("no group has committed an offset", self.page("/groups"))
