"""A broker as a whole: start, stop, its place among NameServers and slaves, and what stops it for good."""

from __future__ import annotations

import json

from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import BrokerSetup
from rmq.broker.service import BrokerService, build_broker
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.files import DiskLocked
from rmq.runtime.disk.statefile import StateFileError
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store.health import StopBefore
from rmq.wire import fastjson
from rmq.wire.record import decode_records
from tests.broker.harness import PORT, WALL_AHEAD_S, OneBroker, RawClient, heartbeat, pull_ext, send_ext, setup_of


class StartTests(SynchronousTestCase):
    def test_boot_line(self) -> None:
        """The line that people and scripts wait for is Apache's, and comes once the broker answers."""
        one = OneBroker()
        one.world.run_for(1)
        self.assertEqual(one.lines, ["The broker[broker-a, 10.0.0.1:10911] boot success. serializeType=JSON"])
        one.end()

    def test_name_servers_that_are_not_there(self) -> None:
        """A broker whose NameServers are down runs all the same, and says so within seconds."""
        one = OneBroker({"namesrvAddr": "10.0.0.9:9876;10.0.0.8:9876"})
        one.world.run_for(7)
        self.assertEqual(
            one.lines,
            [
                "The broker[broker-a, 10.0.0.1:10911] boot success. serializeType=JSON "
                "and name server is 10.0.0.9:9876;10.0.0.8:9876"
            ],
        )
        self.assertEqual(one.connect().ask(310, send_ext()).code, 0)
        one.end()
        self.flushLoggedErrors()

    def test_first_topics_and_groups(self) -> None:
        """A new broker has Apache's topics and groups, and writes them down."""
        one = OneBroker()
        one.world.run_for(0.1)
        self.assertIn("TBW102", one.service.topics.names())
        self.assertIn("TOOLS_CONSUMER", one.service.groups.names())
        table = json.loads(one.node.disk.read_whole("/store/config/topics.json"))
        self.assertIn("DefaultCluster", table["topicConfigTable"])
        one.end()

    def test_offsets_survive_an_orderly_restart(self) -> None:
        """After a stop and a start a group goes on where it was, also when it committed in the last second."""
        one = OneBroker()
        client = one.connect()
        client.ask(310, send_ext())
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"}
        self.assertEqual(client.ask(15, fields).code, 0)
        one.stop()
        one.start()
        answer = one.connect().ask(14, fields)
        self.assertEqual((answer.code, answer.ext_fields["offset"]), (0, "1"))
        one.end()

    def test_timer_messages_of_5x(self) -> None:
        """A store of 5.x whose timer messages nobody delivers any more: the start says so; without any it does not."""
        one = OneBroker()
        for topic in ("T", "rmq_sys_wheel_timer"):
            with capturedLogs() as events:
                one.stop()
                one.start()
            self.assertEqual([text for text in map(formatEvent, events) if "timer messages" in text], [])
            client = one.connect()
            self.assertEqual(client.ask(310, send_ext(topic)).code, 0)
        one.stop()
        with capturedLogs() as events:
            one.start()
        (text,) = [text for text in map(formatEvent, events) if "timer messages" in text]
        self.assertIn("the store has 1 timer messages", text)
        one.end()

    def test_offsets_of_topics_that_are_nowhere(self) -> None:
        """They are removed within ten minutes; those of known topics, of stored queues and of subscribers stay."""
        one = OneBroker()
        client = one.connect()
        client.ask(310, send_ext("Stored"))
        one.service.topics.delete("Stored")
        client.ask(34, body=heartbeat("c", "CG", "Awaited"))
        for topic in ("TBW102", "Stored", "Awaited", "Gone"):
            fields = {"consumerGroup": "CG", "topic": topic, "queueId": "0", "commitOffset": "1"}
            self.assertEqual(client.ask(15, fields).code, 0)
        for _ in range(11):
            client.ask(34, body=heartbeat("c", "CG", "Awaited"))
            one.world.run_for(60)
        self.assertEqual(one.service.offsets.topics_of("CG"), {"TBW102", "Stored", "Awaited"})
        one.end()

    def test_port_in_use(self) -> None:
        """A port that is taken is an error of the start; nothing is left running or locked."""
        one = OneBroker()
        one.stop()
        taken: list[int] = []

        def build(platform: Platform) -> BrokerService:
            platform.reactor.listenTCP(taken[-1], Factory())
            return one.build(platform)

        for port in (10911, 10909, 10912):
            taken.append(port)
            error = self.assertRaises(CannotListenError, one.node.start, build)
            self.assertIn(str(port), str(error))
        one.start()
        one.end()
        self.flushLoggedErrors()

    def test_start_that_fails_after_a_clean_stop(self) -> None:
        """A start that ends at a taken port changes nothing: the next one does not recover as after a crash."""
        one = OneBroker()
        client = one.connect()
        for how, sends in ((StopBefore.CLEAN, 0), (StopBefore.CLEAN, 20), (StopBefore.KILLED, 20)):
            for number in range(sends):
                client.ask(310, send_ext("T"), b"%d" % number)
            if how is StopBefore.CLEAN:
                one.stop()
            else:
                one.node.kill()

            def build(platform: Platform) -> BrokerService:
                platform.reactor.listenTCP(PORT, Factory())
                return one.build(platform)

            self.assertRaises(CannotListenError, one.node.start, build)
            self.assertEqual(one.node.disk.exists("/store/abort"), how is StopBefore.KILLED)
            one.start()
            report = one.service.store.health().load
            assert report is not None
            self.assertIs(report.stop_before, how)
            client = one.connect()
            found = decode_records(client.ask(11, pull_ext()).body or b"") if sends else []
            self.assertGreaterEqual(len(found), sends)
        one.end()
        self.flushLoggedErrors()

    def test_store_that_is_locked(self) -> None:
        """A store that another broker holds is not touched."""
        one = OneBroker()
        second = build_broker(
            Platform(
                reactor=one.node.process,
                disk=one.node.disk,
                rng=one.world.rng,
                endpoint_factory=lambda *arguments: self.fail("no dial is expected"),
            ),
            setup_of({"listenPort": "20911"}),
        )
        self.assertRaises(DiskLocked, second.startService)
        self.assertEqual(one.connect().ask(310, send_ext()).code, 0)
        one.end()

    def test_broken_tables(self) -> None:
        """A table that cannot be read stops the start with its path; starting without it would lose it."""
        one = OneBroker()
        one.stop()
        for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"):
            path = f"/store/config/{name}"
            before = one.node.disk.read_whole(path) if one.node.disk.exists(path) else None
            one.node.disk.delete(f"{path}.bak")
            one.node.disk.write_atomic(path, b"{broken")
            error = self.assertRaises(StateFileError, one.start)
            self.assertIn(name, str(error))
            one.node.disk.delete(path)
            if before is not None:
                one.node.disk.write_atomic(path, before)
        one.start()
        one.end()

    def test_bad_settings(self) -> None:
        """What cannot work is refused before anything is opened."""
        one = OneBroker()
        one.stop()
        for values, text in (
            ({"brokerRole": "SLAVE"}, "brokerId"),
            ({"aclEnable": "true"}, "aclEnable"),
            ({"messageDelayLevel": "1s soon"}, "soon"),
        ):
            one.values = values
            self.assertIn(text, str(self.assertRaises(ConfigError, one.start)))
        self.assertEqual(BrokerSetup().broker.broker_cluster_name, "DefaultCluster")


class StopTests(SynchronousTestCase):
    def test_nothing_is_left(self) -> None:
        """A broker with clients, waiting pulls and timers stops without leaving a timer, port, file or connection."""
        one = OneBroker()
        client = one.connect()
        client.ask(310, send_ext(props="DELAY\x015"))
        client.post(11, pull_ext("BenchmarkTest", sys_flag=6))
        one.world.run_for(3)
        one.end()
        self.assertTrue(client.closed)

    def test_start_and_stop_again_and_again(self) -> None:
        """Restarts keep every message and every topic."""
        one = OneBroker()
        for number in range(5):
            client = one.connect()
            answer = client.ask(310, send_ext("T"), b"%d" % number)
            self.assertEqual(answer.ext_fields["queueOffset"], str(number))
            one.stop()
            self.assertEqual(one.node.leaks, [])
            one.start()
        records = decode_records(one.connect().ask(11, pull_ext()).body or b"")
        self.assertEqual([record.body for record in records], [b"0", b"1", b"2", b"3", b"4"])
        one.end()

    def test_stop_right_after_the_start(self) -> None:
        """A broker may be stopped before it has registered anywhere."""
        one = OneBroker({"namesrvAddr": "10.0.0.9:9876"})
        one.end()
        self.assertEqual(one.lines, [])
        self.flushLoggedErrors()

    def test_kill(self) -> None:
        """What was answered before a kill is there after it."""
        one = OneBroker()
        client = one.connect()
        for number in range(20):
            client.ask(310, send_ext("T"), b"%d" % number)
        one.node.kill()
        one.start()
        records = decode_records(one.connect().ask(11, pull_ext()).body or b"")
        self.assertEqual(len(records), 20)
        one.end()


class FatalTests(SynchronousTestCase):
    def test_failed_sync(self) -> None:
        """After a failed sync the broker takes nothing more and asks to be ended, once."""
        one = OneBroker({"flushDiskType": "SYNC_FLUSH"})
        client = one.connect()
        self.assertEqual(client.ask(310, send_ext()).code, 0)
        one.node.disk.fail_syncs = 1
        self.assertEqual(client.ask(310, send_ext()).code, 14)
        self.assertEqual(client.ask(310, send_ext()).code, 14)
        self.assertEqual(len(one.fatal), 1)
        self.assertIn("/store", one.fatal[0])
        one.end()
        self.assertTrue(one.node.disk.exists("/store/abort"))
        self.flushLoggedErrors()


class ProcessEndTests(SynchronousTestCase):
    def test_failed_sync_ends_the_process(self) -> None:
        """Without anybody to ask, a broker whose store has failed stops its reactor."""
        one = OneBroker()
        one.stop()
        one.node.start(lambda platform: build_broker(platform, setup_of({"flushDiskType": "SYNC_FLUSH"})))
        client = one.connect()
        client.ask(310, send_ext())
        one.node.disk.fail_syncs = 1
        client.post(310, send_ext())
        one.world.run_until(lambda: one.node.process is None, 20)
        self.assertEqual(one.node.leaks, [])
        self.flushLoggedErrors()


class PairTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker({"haMasterAddress": ""})
        self.slave = Node(self.one.world, self.one.net, "slave")
        self.slave.step_clock(-WALL_AHEAD_S)
        self.slave.start(self.build_slave)

    def build_slave(self, platform: Platform) -> BrokerService:
        values = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"{self.one.node.address}:10912"}
        return build_broker(platform, setup_of(values), host_address=self.slave.address)

    def test_log_and_tables_arrive(self) -> None:
        """A slave has its master's messages, topics, groups and offsets; it serves them and says so."""
        client = self.one.connect()
        client.ask(310, send_ext("T"), b"hello")
        client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
        client.ask(200, {}, b'{"groupName":"CG","retryMaxTimes":3}')
        service = self.slave.service
        assert isinstance(service, BrokerService)
        service.metadata_sync.set_master(f"{self.one.node.address}:10911")
        self.one.world.run_for(20)
        self.assertEqual(service.store.end_offset, self.one.service.store.end_offset)
        self.assertEqual(service.topics.snapshot(), self.one.service.topics.snapshot())
        self.assertEqual(service.groups.snapshot(), self.one.service.groups.snapshot())
        self.assertEqual(service.offsets.query("CG", "T", 0), 1)
        reader = RawClient(self.one.world)
        reactor = self.one.client_node.process
        assert reactor is not None
        TCP4ClientEndpoint(reactor, self.slave.address, 10911).connect(Factory.forProtocol(lambda: reader))
        self.one.world.run_until(lambda: reader.connected)
        answer = reader.ask(11, pull_ext("T"))
        self.assertEqual([record.body for record in decode_records(answer.body or b"")], [b"hello"])
        self.assertEqual(fastjson.parse((reader.ask(45).body or b"").decode())["offsetTable"], {})
        self.one.world.settle(self.slave.stop())
        self.assertEqual(self.slave.leaks, [])
        self.one.end()


class TwoWorldsTests(SynchronousTestCase):
    def test_same_seed_same_history(self) -> None:
        """Two runs from one seed do the same things at the same times: nothing comes from outside."""

        def run() -> str:
            one = OneBroker(seed=7)
            client = one.connect()
            for _ in range(10):
                client.ask(310, send_ext(queue_id=-1))
            client.ask(11, pull_ext())
            one.end()
            return one.world.trace.digest

        self.assertEqual(run(), run())

    def test_two_brokers_in_one_process(self) -> None:
        """Brokers share nothing but their disk and network."""
        world = World(1)
        net = SimNet(world)
        nodes = [Node(world, net, name) for name in ("a", "b")]
        nodes[1].step_clock(WALL_AHEAD_S)
        for node in nodes:
            node.start(lambda platform: build_broker(platform, setup_of({})))
        services = [node.service for node in nodes]
        first, second = services
        assert isinstance(first, BrokerService) and isinstance(second, BrokerService)
        first.topics.delete("BenchmarkTest")
        self.assertIsNotNone(second.topics.get("BenchmarkTest"))
        for node in nodes:
            world.settle(node.stop())
            self.assertEqual(node.leaks, [])
