"""A whole NameServer on a fake reactor: listening, connections, time."""

from __future__ import annotations

import os

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.live import LiveBroker
from rmq.namesrv.service import BOOT_LINE
from rmq.runtime.clock import Moment
from rmq.runtime.config import load
from rmq.runtime.disk.statefile import StateFileError
from rmq.wire.api.routes import (
    GET_ROUTEINFO_BY_TOPIC,
    REGISTER_BROKER,
    UPDATE_NAMESRV_CONFIG,
    GetRouteInfoHeader,
)
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.extfields import encode_ext
from tests.namesrv.talk import NOW_S, STEADY_S, Talk
from tests.namesrv.test_responders import HEADER, body


class Peer:
    """One end of a connection to the service."""

    def __init__(self, talk: Talk) -> None:
        port, factory, *_ = talk.reactor.tcpServers[0]
        assert port == 9876
        self._clock = talk.reactor
        self.transport = StringTransport()
        protocol = factory.buildProtocol(self.transport.getPeer())
        assert protocol is not None
        self.protocol: IProtocol = protocol
        self.protocol.makeConnection(self.transport)

    def send(self, command: RemotingCommand) -> None:
        self.protocol.dataReceived(encode_command(command))

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.transport.clear()
        self.send(command)
        if not self.transport.value():  # a large registration goes on in the next turn
            self._clock.advance(0)
        (answer,) = decode_commands(self.transport.value())
        return answer

    def register(self) -> RemotingCommand:
        ext = encode_ext(HEADER)
        return self.ask(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=ext, body=body("T")))

    def route_code(self) -> int:
        ext = encode_ext(GetRouteInfoHeader(topic="T"))
        return self.ask(RemotingCommand(GET_ROUTEINFO_BY_TOPIC.code, 2, ext_fields=ext)).code

    def close(self) -> None:
        self.protocol.connectionLost(Failure(ConnectionDone()))


class ServiceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk.started(self.mktemp())
        self.peer = Peer(self.talk)

    def test_boot_line(self) -> None:
        """Apache's line comes once, when the port listens."""
        self.assertEqual(self.talk.said, [BOOT_LINE])
        self.assertEqual(BOOT_LINE, "The Name Server boot success. serializeType=JSON")

    def test_connection_lost(self) -> None:
        """A broker's topics are gone as soon as its connection is."""
        client = Peer(self.talk)
        self.peer.register()
        self.assertEqual(client.route_code(), 0)
        self.peer.close()
        self.assertEqual(client.route_code(), 17)

    def test_when_the_connection_was_lost(self) -> None:
        """The journal tells by the wall clock when a broker's connection ended."""
        self.peer.register()
        self.talk.reactor.advance(3)
        self.peer.close()
        (event,) = self.talk.service.journal.recent(1)
        self.assertEqual((event.kind, event.at_ms), ("CLOSED", (NOW_S + 3) * 1000))

    def test_silence_of_one_of_two(self) -> None:
        """When one of two brokers that register over one connection falls silent, the other keeps the connection."""
        other = msgspec.structs.replace(HEADER, broker_name="b", broker_addr="10.0.0.9:1")
        self.peer.ask(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(other), body=body("T")))
        for _ in range(5):
            self.peer.register()
            self.talk.reactor.pump([1.0] * 30)
        (live,) = self.talk.service.routes.live_brokers()
        self.assertEqual((live.broker_name, self.peer.transport.disconnecting), (HEADER.broker_name, False))

    def test_clients_may_leave(self) -> None:
        """The end of a client's connection touches no route."""
        client = Peer(self.talk)
        self.peer.register()
        client.close()
        self.assertEqual(self.peer.route_code(), 0)

    def test_scan(self) -> None:
        """The scan comes after 5 s and then every 10 s; it closes the connection of a broker silent for over 120 s."""
        self.peer.register()  # at 0 s; silent for too long from 120.001 s on
        client = Peer(self.talk)
        for _ in range(124):
            self.talk.reactor.advance(1)
            self.assertEqual(client.route_code(), 0)
        self.talk.reactor.advance(1)
        self.assertEqual(client.route_code(), 17)
        self.assertTrue(self.peer.transport.disconnecting)

    def test_process_that_stood_still(self) -> None:
        """
        After a stop (a suspended virtual machine, a long swap) no live broker loses its routes.

        What brokers said meanwhile waits in the sockets. A scan that is up to a second late is an ordinary one.
        """
        for scans, then_s, code in ((2, 125, 0), (12, 126.1, 0), (12, 126, 17)):
            talk = self.talk = Talk(self.mktemp())
            talk.service.startService()
            peer, client = Peer(talk), Peer(talk)
            peer.register()
            talk.reactor.pump([5.0] + [10.0] * (scans - 1))
            began_s = talk.reactor.seconds()
            talk.reactor.advance(STEADY_S + then_s - began_s)
            with self.subTest(scans=scans, then_s=then_s):
                self.assertEqual(client.route_code(), code)
                talk.reactor.pump([10.0, 10.0])
                self.assertEqual(client.route_code(), 17)  # it is silent indeed

    def test_many_expire_together(self) -> None:
        """When hundreds of brokers fall silent together, others have their turn after every few of them."""
        service = self.talk.service
        for number in range(10):
            header = msgspec.structs.replace(HEADER, broker_name=f"b{number}", broker_addr=f"10.0.0.{number}:1")
            self.talk.ask(REGISTER_BROKER, header, body("T"))
        expire, at_once = service.routes.expire, []

        def counted(at: Moment, at_most: int) -> list[LiveBroker]:
            gone = expire(at, at_most)
            at_once.append(len(gone))
            return gone

        self.patch(service.routes, "expire", counted)
        for _ in range(125):
            self.talk.reactor.advance(1)
        self.assertEqual(at_once[-3:], [4, 4, 2])
        self.assertEqual(service.routes.live_brokers(), [])

    def test_memory_is_given_back(self) -> None:
        """Scans give memory back, after large registrations only."""
        reactor = self.talk.reactor
        self.peer.register()
        reactor.advance(5)
        large = body(*(f"{'topic' * 20}-{number}" for number in range(800)))
        self.peer.ask(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(HEADER), body=large))
        self.assertEqual(self.talk.given_back, [])
        reactor.pump([10, 10])
        self.assertEqual(self.talk.given_back, [15])

    def test_heartbeats_keep_it_alive(self) -> None:
        """A broker that registers every 30 s stays."""
        client = Peer(self.talk)
        for _ in range(10):
            self.peer.register()
            self.talk.reactor.advance(30)
            self.assertEqual(client.route_code(), 0)

    def test_wall_clock_set_forward(self) -> None:
        """When the wall clock is set by ten minutes nobody expires and no connection is closed."""
        client = Peer(self.talk)
        self.peer.register()
        reactor = self.talk.reactor
        self.talk.set_wall_clock(600)
        for _ in range(100):
            reactor.advance(1)
        self.assertEqual(client.route_code(), 0)
        self.assertFalse(self.peer.transport.disconnecting)
        self.peer.register()
        (live,) = self.talk.service.routes.live_brokers()
        self.assertEqual(live.last_update_ms, (NOW_S + 700) * 1000)

    def test_wall_clock_set_back(self) -> None:
        """When the wall clock is set back a silent broker goes after two minutes all the same."""
        client = Peer(self.talk)
        self.peer.register()
        self.talk.set_wall_clock(-600)
        for _ in range(125):
            self.assertEqual(client.route_code(), 0)
            self.talk.reactor.advance(1)
        self.assertEqual(client.route_code(), 17)

    def test_wait_for_service_is_no_matter_of_the_wall_clock(self) -> None:
        """waitSecondsForService are seconds, whatever is done to the wall clock."""
        talk = Talk(self.mktemp(), need_wait_for_service=True, wait_seconds_for_service=45)
        talk.set_wall_clock(600)
        self.assertFalse(talk.service.look_ups.ready)
        talk.reactor.advance(45)
        self.assertTrue(talk.service.look_ups.ready)

    def test_kv_table_is_logged(self) -> None:
        """The key-value table is in the log after a minute and then every ten."""
        self.talk.service.kv.put("N", "k", "v")
        with capturedLogs() as events:
            self.talk.reactor.pump([1.0] * 661)
        lines = [event["log_format"].format(**event) for event in events if "kv {namespace}" in event["log_format"]]
        self.assertEqual(lines, ["kv N k = v"] * 2)

    def test_stop_leaves_nothing(self) -> None:
        """After the stop nothing is listening, connected or planned."""
        self.peer.register()
        stopped: Deferred[object] = self.talk.service.stopService()
        self.peer.close()
        self.successResultOf(stopped)
        self.assertEqual(self.talk.reactor.getDelayedCalls(), [])

    def test_two_in_one_process(self) -> None:
        """Two NameServers of one process know nothing of each other."""
        other = Talk(self.mktemp())
        other.service.startService()
        self.peer.register()
        self.assertEqual(Peer(other).route_code(), 17)


class BrokenFileTests(SynchronousTestCase):
    def test_broken_kv_file(self) -> None:
        """A broken kvConfig.json stops the start with an error that names it; its .bak is used when it is whole."""
        talk = Talk(self.mktemp())
        talk.service.kv.put("N", "k", "old")
        talk.service.kv.put("N", "k", "new")
        with open(talk.path("kvConfig.json"), "wb") as file:
            file.write(b'{"configTable":{"N"')
        self.assertEqual(talk.restart().kv.get("N", "k"), "old")
        os.remove(talk.path("kvConfig.json.bak"))
        self.assertEqual(talk.restart().kv.get("N", "k"), "old")
        with open(talk.path("kvConfig.json"), "wb") as file:
            file.write(b'{"configTable":{"N"')
        service = talk.build()
        error = self.assertRaises(StateFileError, service.startService)
        self.assertIn(talk.path("kvConfig.json"), str(error))
        self.assertFalse(service.running)
        self.assertEqual((talk.reactor.tcpServers, talk.reactor.getDelayedCalls()), ([], []))

    def test_no_file(self) -> None:
        """Without a file the table is empty and nothing is written."""
        talk = Talk(self.mktemp())
        self.assertIsNone(talk.restart().kv.namespace("N"))
        self.assertFalse(os.path.exists(talk.folder))


class ConfigTests(SynchronousTestCase):
    def test_unsupported_switches_are_reported(self) -> None:
        """Whoever switches on what does not exist here finds a warning with the key in the log."""
        with capturedLogs() as events:
            Talk(self.mktemp(), cluster_test=True)
        warned = {event["key"] for event in events if event["log_level"] is LogLevel.warn}
        self.assertEqual(warned, {"clusterTest"})

    def test_keys_of_others_stay_in_the_file(self) -> None:
        """Keys that are not ours survive an updateNamesrvConfig, which cannot change them."""
        talk = Talk(self.mktemp())
        talk.setup = attrs.evolve(talk.setup, extra={"own.key": "1", "other.key": "2"})
        talk.restart()
        self.assertEqual(talk.ask(UPDATE_NAMESRV_CONFIG, None, b"own.key=3\nenableTopicList=false\n").code, 0)
        with open(talk.path("namesrv.properties"), "rb") as file:
            lines = file.read().splitlines()
        for line in (b"own.key=1", b"other.key=2", b"enableTopicList=false"):
            self.assertIn(line, lines)

    def test_defaults(self) -> None:
        """The scan interval is 10 s; files live in the home directory; the black list is shown as Apache has it."""
        config = load([NamesrvConfig], {}, "defaults").configs[0]
        self.assertEqual(config.config_black_list, "configBlackList;configStorePath;kvConfigPath")
        self.assertEqual(config.scan_not_active_broker_interval, 10_000)
        self.assertEqual(config.kv_config_path, os.path.expanduser("~/namesrv/kvConfig.json"))
