"""Our answers beside those of an Apache NameServer 4.9.7, byte by byte."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.channel import Channel
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import REGISTER_BROKER, RegisterBrokerHeader
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand
from tests.namesrv.golden import Exchange, differences, exchanges
from tests.namesrv.talk import Talk

#: Topics of the broker that had registered before a recording began.
START_TOPICS = {
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "BenchmarkTest": (1024, 6),
    "OFFSET_MOVED_EVENT": (1, 6),
    "broker-a": (1, 7),
    "TBW102": (8, 7),
    "SELF_TEST_TOPIC": (1, 6),
    "DefaultCluster": (16, 7),
}


class GoldenCase(SynchronousTestCase):
    """Replays recordings; a difference shows the request and both answers."""

    def setUp(self) -> None:
        self.talk = Talk(self.mktemp())
        self.channels: dict[int, Channel] = {}
        self.counter = 0

    def register(self, topics: dict[str, tuple[int, int]], *, broker_id: int = 0, port: int = 28911) -> None:
        """Let broker-a say what it has: (queues, perm) by topic."""
        self.counter += 1
        table = {
            name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name, (queues, perm) in topics.items()
        }
        version = DataVersion(counter=self.counter, timestamp=1)
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigWrapper(data_version=version, topic_config_table=table)
        )
        header = RegisterBrokerHeader(
            broker_name="broker-a",
            broker_addr=f"127.0.0.1:{port}",
            cluster_name="DefaultCluster",
            ha_server_addr=f"127.0.0.1:{port + 1}",
            broker_id=broker_id,
        )
        answer = self.talk.ask(REGISTER_BROKER, header, fastjson.encode(body))
        self.assertEqual(answer.code, 0)

    def ours(self, exchange: Exchange) -> RemotingCommand | None:
        channel = self.channels.setdefault(exchange.connection, self.talk.connect())
        return self.talk.send(exchange.request, channel)

    def replay(self, name: str, *, without: Collection[int] = ()) -> int:
        """Compare all answers of a recording but those to the codes ``without``; return how many were compared."""
        compared = 0
        for exchange in exchanges(name):
            if exchange.request.code in without:
                continue
            self.compare(exchange)
            compared += 1
        return compared

    def compare(self, exchange: Exchange) -> None:
        found = differences(self.ours(exchange), exchange.answer)
        if found:
            self.fail("\n".join([f"{exchange.ms} ms {exchange.note} {exchange.request!r}", *found]))


class BrokerConversationTests(GoldenCase):
    def test_start_changes_and_stop(self) -> None:
        """A 4.9.7 broker registers, tells of new topics (also one-way) and unregisters."""
        self.assertEqual(self.replay("broker-4.9.7_namesrv-4.9.7_register"), 7)
        self.assertEqual(self.talk.service.routes.topology.topics(), [])

    def test_force_register_false(self) -> None:
        """A broker that only asks for its data version hears `changed` false and its own version back."""
        self.assertEqual(self.replay("broker-4.9.7_namesrv-4.9.7_forceRegister-false"), 5)

    def test_compressed(self) -> None:
        """Compressed bodies are read: the route of a topic in them is there."""
        recorded = exchanges("broker-4.9.7_namesrv-4.9.7_compressedRegister")
        for exchange in recorded[:-1]:
            self.compare(exchange)
        route = self.talk.service.routes.topology.pick_route("TBW102")
        assert route is not None
        self.assertEqual((route.queue_datas[0].perm, route.queue_datas[0].read_queue_nums), (7, 8))
        self.compare(recorded[-1])
        self.assertIsNone(self.talk.service.routes.topology.pick_route("TBW102"))

    def test_broker_5_3_3(self) -> None:
        """A 5.3.3 broker's longer headers and bodies are read, and its questions for the cluster answered."""
        self.assertEqual(self.replay("broker-5.3.3_namesrv-4.9.7"), 6)

    def test_slave(self) -> None:
        """A slave hears of its master at each registration, over two lives."""
        self.register(START_TOPICS)
        self.assertEqual(self.replay("slave-4.9.7_namesrv-4.9.7_register"), 7)


class ProbeTests(GoldenCase):
    """Hand-made requests for every code; `note` in the recording says what was asked."""

    #: What we do otherwise, by the note of the probe, and why.
    KNOWN = {
        "unknown code": "Apache 4.9 gives no answer at all; ours is code 3, as 5.x has it",
        "update namesrv config, path": "4.9.8 has other words for it",
        "update namesrv config, configStorePath": "4.9.8 has other words for it",
        "register, body is not JSON": "Java's exception and stack frame",
        "register without brokerName": "a broker without name is refused",
        "get namesrv config": "compared by keys below",
    }

    def test_all(self) -> None:
        """Each probe is answered as Apache answers it, apart from the known differences."""
        self.register(START_TOPICS)
        recorded = exchanges("probe_namesrv-4.9.7")
        self.assertEqual(len(recorded), 37)
        for exchange in recorded:
            if exchange.note not in self.KNOWN:
                self.compare(exchange)
            elif exchange.note == "register, body is not JSON":
                self.assertEqual(self.code_of(exchange), exchange.answer and exchange.answer.code)

    def code_of(self, exchange: Exchange) -> int | None:
        answer = self.ours(exchange)
        return None if answer is None else answer.code

    def test_known_differences(self) -> None:
        """What differs on purpose has the codes that were chosen for it."""
        codes = {exchange.note: self.code_of(exchange) for exchange in exchanges("probe_namesrv-4.9.7")}
        chosen = {note: codes[note] for note in self.KNOWN}
        self.assertEqual(
            chosen,
            {
                "unknown code": 3,
                "update namesrv config, path": 16,
                "update namesrv config, configStorePath": 16,
                "register, body is not JSON": 1,
                "register without brokerName": 1,
                "get namesrv config": 0,
            },
        )

    def test_configuration_keys(self) -> None:
        """Every key that Apache shows is shown by ours, with the same value where it is a default."""
        exchange = next(each for each in exchanges("probe_namesrv-4.9.7") if each.note == "get namesrv config")
        assert exchange.answer is not None
        answer = self.ours(exchange)
        assert answer is not None
        theirs, ours = (
            dict(line.split("=", 1) for line in (each.body or b"").decode().splitlines())
            for each in (exchange.answer, answer)
        )
        self.assertEqual(theirs.keys() - ours.keys(), set())
        own = {"kvConfigPath", "configStorePath", "rocketmqHome", "listenPort"}
        self.assertEqual({key: value for key, value in theirs.items() if ours[key] != value and key not in own}, {})


class MqadminTests(GoldenCase):
    """What mqadmin 4.9.7 asks a NameServer while it changes and looks at a cluster."""

    def test_changes(self) -> None:
        """Order topics, KV values, topic permissions, wipe and add of write permission."""
        self.talk.service.kv.put("NS0", "k", "v")
        self.register(START_TOPICS | {"RMQ_SYS_TRANS_HALF_TOPIC": (1, 6)})
        changes = {1331: {"Orders": (4, 6)}, 55331: {"Orders": (4, 4)}}
        count = 0
        for exchange in exchanges("mqadmin-4.9.7_namesrv_changes"):
            for ms in [ms for ms in changes if ms <= exchange.ms]:
                self.register(changes.pop(ms))
            self.compare(exchange)
            count += 1
        self.assertEqual(count, 19)

    def test_lists(self) -> None:
        """clusterList, topicList, topicRoute and the others that look."""
        self.register(START_TOPICS | {"RMQ_SYS_TRANS_HALF_TOPIC": (1, 6), "Orders": (4, 6), "%RETRY%CG_admin": (1, 6)})
        count = self.replay("mqadmin-4.9.7_namesrv_cluster", without={RequestCode.GET_NAMESRV_CONFIG})
        self.assertEqual(count, 32)

    def test_cleanup(self) -> None:
        """deleteTopic, deleteSubGroup, deleteKvConfig."""
        self.register(START_TOPICS | {"Orders": (4, 6)})
        self.talk.service.kv.put("NS1", "k1", "v")
        self.assertEqual(self.replay("mqadmin-4.9.7_namesrv_cleanup"), 18)
        self.assertIsNone(self.talk.service.kv.get("NS1", "k1"))


class DifferencesTests(GoldenCase):
    def test_planted_differences_are_seen(self) -> None:
        """The comparison sees one wrong byte, one wrong header field, a missing answer."""
        exchange = next(each for each in exchanges("probe_namesrv-4.9.7") if each.note == "route, version 317")
        self.register(START_TOPICS)
        answer = self.ours(exchange)
        assert answer is not None and answer.body is not None
        self.assertEqual(differences(answer, exchange.answer), [])
        answer.body = answer.body.replace(b"{0:", b'{"0":')
        answer.remark = "planted"
        self.assertEqual([line.split(":")[0] for line in differences(answer, exchange.answer)], ["remark", "body"])
        self.assertEqual(len(differences(None, exchange.answer)), 1)

    def test_lists_are_compared_as_sets(self) -> None:
        """Another order of topics is no difference, another topic is."""
        lists = [
            RemotingCommand(0, 1, 1, body=msgspec.json.encode({"topicList": names}))
            for names in (["A", "B"], ["B", "A"], ["A", "C"])
        ]
        self.assertEqual(differences(lists[0], lists[1]), [])
        self.assertEqual(len(differences(lists[0], lists[2])), 1)
