"""SQL92 filters of groups: at pulls, at heartbeats, while a pull waits, and in `config/consumerFilter.json`."""

from __future__ import annotations

import json
from typing import Any

from rmq.broker import service
from rmq.broker.consumerfilters import FILE_NAME, BloomFilter, compile_filter
from rmq.wire.command import RemotingCommand
from rmq.wire.record import decode_records
from tests.broker.harness import OneBroker, heartbeat, pull_ext, send_ext
from tests.broker.test_pulling import PullCase

DAY_S = 86_400


def sql_heartbeat(expression: str, *, version: int = 1, group: str = "CG", kind: str = "SQL92") -> bytes:
    body = heartbeat("c1", group, "T", producer="PG").decode()
    body = body.replace('"expressionType":"TAG","subString":"*","subVersion":1', '"expressionType":"%s",%s')
    return (body % (kind, f'"subString":{json.dumps(expression)},"subVersion":{version}')).encode()


class Sql92Case(PullCase):
    values = {"enablePropertyFilter": "true", "brokerIP1": "10.0.0.1"}

    def setUp(self) -> None:
        super().setUp()
        for number in range(6):
            self.send(f"a\x01{number}")

    def sql(self, expression: str, **options: Any) -> RemotingCommand:
        return self.pull(expressionType="SQL92", subscription=expression, **options)

    def bodies(self, answer: RemotingCommand) -> list[int]:
        return [record.queue_offset for record in decode_records(answer.body or b"")]

    def file(self) -> Any:
        return json.loads(self.one.node.disk.read_whole(f"{self.one.service.filters.path}"))


class PullTests(Sql92Case):
    def test_selected_messages(self) -> None:
        """A pull gets the messages that its expression selects, and passes the others."""
        answer = self.sql("a BETWEEN 2 AND 3 OR a = 5")
        self.assertEqual((self.bodies(answer), self.offsets(answer)), ([2, 3, 5], (0, 6, 0, 6)))
        nothing = self.sql("a > 100", offset=1)
        self.assertEqual((self.offsets(nothing), nothing.remark), ((20, 6, 0, 6), "NO_MATCHED_MESSAGE"))

    def test_refused(self) -> None:
        """What cannot be compiled, other types, and SQL92 where it is not enabled are refused."""
        bad = self.sql("a >")
        self.assertEqual(bad.code, 23)
        self.assertIn('Encountered "<EOF>" at line 1, column 3', bad.remark or "")
        other = self.pull(expressionType="JS", subscription="a > 3")
        self.assertEqual(
            (other.code, other.remark), (1, "The broker does not support consumer to filter message by JS")
        )
        self.client.ask(25, {}, b"enablePropertyFilter=false")
        self.assertEqual(self.sql("a > 3").code, 1)

    def test_subscription_of_the_heartbeat(self) -> None:
        """A pull without an expression gets what the group's heartbeat said, from its newest version on."""
        self.client.ask(34, {}, sql_heartbeat("a = 4"))
        self.assertEqual(self.bodies(self.pull(sys_flag=0, subVersion="1")), [4])
        self.assertEqual(self.bodies(self.pull(sys_flag=0, subVersion="1", offset=2)), [4])
        self.assertEqual(self.pull(sys_flag=0, subVersion="2").code, 25)
        self.client.ask(34, {}, sql_heartbeat("a = 5", version=2))
        self.assertEqual(self.bodies(self.pull(sys_flag=0, subVersion="2")), [5])

    def test_waiting_pull(self) -> None:
        """A waiting pull is answered by a message that it selects; others pass it by, and do not wake the client."""
        opaque = self.client.post(11, self.waiting("a > 10"))
        sender = self.one.connect()
        for value in ("1", "x", "11"):
            self.one.world.run_for(1)
            self.assertEqual([a.opaque for a in self.client.received if a.opaque == opaque], [])
            sender.ask(310, self.send_ext(value), b"new")
        answer = self.client.wait(opaque)
        self.assertEqual((self.bodies(answer), self.offsets(answer)), ([8], (0, 9, 0, 9)))

    def test_deadline_behind_passed_messages(self) -> None:
        """Five seconds after a message was passed the client learns where it goes on, and its group has no lag."""
        opaque = self.client.post(11, self.waiting("a > 10"))
        sender = self.one.connect()
        sender.ask(310, self.send_ext("1"), b"new")
        self.one.world.run_for(4.5)
        self.assertEqual([a.opaque for a in self.client.received if a.opaque == opaque], [])
        self.one.world.run_for(2)
        answer = self.client.wait(opaque)
        self.assertEqual((self.offsets(answer), answer.remark), ((19, 7, 0, 7), "OFFSET_OVERFLOW_ONE"))

    def waiting(self, expression: str) -> dict[str, str]:
        return pull_ext(offset=6, sys_flag=6, expressionType="SQL92", subscription=expression)

    def send_ext(self, value: str) -> dict[str, str]:
        return send_ext("T", props=f"a\x01{value}")


class HeartbeatTests(Sql92Case):
    def test_parser_is_loaded_by_the_start(self) -> None:
        """The first heartbeat with an expression does not wait until the parser has been loaded."""
        compiled: list[str | None] = []
        self.patch(service, "compile_filter", lambda kind, text: compiled.append(text))
        for values, expected in ((self.values, ["TRUE"]), ({}, [])):
            compiled.clear()
            OneBroker(values).end()
            self.assertEqual(compiled, expected)
        self.assertTrue(compile_filter("SQL92", "TRUE"))

    def test_bad_expression(self) -> None:
        """A heartbeat with a filter that cannot be compiled is answered 23; everything else in it counts."""
        answer = self.client.ask(34, {}, sql_heartbeat("a >"))
        self.assertEqual(answer.code, 23)
        self.assertIn("ParseException", answer.remark or "")
        self.assertEqual(self.client.ask(204, {"producerGroup": "PG"}).code, 0)
        self.assertEqual(self.client.ask(203, {"consumerGroup": "CG"}).code, 0)
        self.assertEqual(self.pull(sys_flag=0, subVersion="1").code, 23)
        self.assertIsNone(self.one.service.filters.get("T", "CG"))

    def test_check_client_config(self) -> None:
        """A Java consumer asks before it starts: 46 is answered with the compiler's text, or with success."""
        text = '{"clientId":"c","group":"g","subscriptionData":{"subString":"%s","topic":"T","expressionType":"%s"}}'
        self.assertEqual(self.client.ask(46, None, (text % ("a > 3", "SQL92")).encode()).code, 0)
        bad = self.client.ask(46, None, (text % ("a > ", "SQL92")).encode())
        self.assertEqual(bad.code, 23)
        self.assertTrue((bad.remark or "").startswith("org.apache.rocketmq.filter.parser.ParseException: Encountered"))
        self.assertEqual(self.client.ask(46, None, (text % ("", "SQL92")).encode()).code, 23)
        self.assertEqual(self.client.ask(46, None, (text % ("a > 3", "JS")).encode()).code, 1)

    def test_versions(self) -> None:
        """An older or equal version changes nothing; a newer one that cannot be used removes what was there."""
        for expression, version, expected in (
            ("a = 1", 5, "a = 1"),
            ("a = 2", 4, "a = 1"),
            ("a = 2", 5, "a = 1"),
            ("a = 1", 6, "a = 1"),
            ("a = 3", 6, "a = 1"),
            ("a = 3", 7, "a = 3"),
        ):
            self.client.ask(34, {}, sql_heartbeat(expression, version=version))
            kept = self.one.service.filters.get("T", "CG")
            assert kept is not None
            self.assertEqual(kept.expression, expected)
        self.client.ask(34, {}, sql_heartbeat("a >", version=8))
        self.assertIsNone(self.one.service.filters.get("T", "CG"))

    def test_units_of_a_queue(self) -> None:
        """Code 321 shows the filter of a group."""
        self.client.ask(34, {}, sql_heartbeat("a = 1"))
        answer = self.client.ask(321, {"topic": "T", "queueId": "0", "index": "0", "count": "2", "consumerGroup": "CG"})
        shown = json.loads(json.loads(answer.body or b"")["filterData"])
        self.assertEqual((shown["expression"], shown["consumerGroup"], shown["dead"]), ("a = 1", "CG", False))


class FileTests(Sql92Case):
    def test_content(self) -> None:
        """The file is the one that Apache's broker writes."""
        self.client.ask(34, {}, sql_heartbeat("a > 1", group="g", version=3))
        self.one.world.run_for(11)
        (born,) = (one.born_time for one in self.one.service.filters)
        expected = {
            "bloomFilterData": {"bitNum": 112, "bitPos": BloomFilter(112, 3).data("g#T").bit_pos},
            "bornTime": born,
            "clientVersion": 3,
            "consumerGroup": "g",
            "dead": False,
            "deadTime": 0,
            "expression": "a > 1",
            "expressionType": "SQL92",
            "topic": "T",
        }
        self.assertEqual(self.file(), {"filterDataByTopic": {"T": {"groupFilterData": {"g": expected}, "topic": "T"}}})

    def test_bits_of_apache(self) -> None:
        """The bits are those of Apache's BloomFilter (printed by 4.9.7 and 5.3.3); else it ignores the file."""
        bloom = BloomFilter.of(20, 32)
        self.assertEqual(bloom, BloomFilter(bits=112, hashes=3))
        self.assertEqual(bloom.data("g#TopicA").bit_pos, [20, 20, 20])
        self.assertEqual(bloom.data("group_1#Some-Topic").bit_pos, [36, 38, 40])
        self.assertEqual(bloom.data("日本#x").bit_pos, [64, 18, 27])

    def test_life_of_a_filter(self) -> None:
        """It is dead while its group is offline, lives again with it, survives a restart, and goes after a day."""
        self.client.ask(34, {}, sql_heartbeat("a > 1"))
        self.client.ask(35, {"clientID": "c1", "consumerGroup": "CG"})
        kept = self.one.service.filters.get("T", "CG")
        assert kept is not None
        self.assertTrue(kept.dead)
        self.client.ask(34, {}, sql_heartbeat("a > 1"))
        self.assertEqual((kept.dead, kept.dead_time), (False, 0))
        self.one.stop()
        self.one.start()
        read = self.one.service.filters.get("T", "CG")
        assert read is not None
        self.assertEqual((read.expression, read.dead, read.client_version), ("a > 1", True, 1))
        # nearly all of the day while the broker is stopped, when the simulation has nothing to do
        self.one.stop()
        self.one.world.run_for(DAY_S - 200)
        self.one.start()
        self.one.world.run_for(100)
        self.assertIsNotNone(self.one.service.filters.get("T", "CG"))
        self.one.world.run_for(200)
        self.assertIsNone(self.one.service.filters.get("T", "CG"))
        self.assertEqual(self.file(), {"filterDataByTopic": {}})

    def test_another_subscription(self) -> None:
        """A group that goes over to tags has no living filter, and gets by tags."""
        self.client.ask(34, {}, sql_heartbeat("a > 1"))
        self.client.ask(34, {}, sql_heartbeat("*", version=2, kind="TAG"))
        kept = self.one.service.filters.get("T", "CG")
        assert kept is not None
        self.assertTrue(kept.dead)
        self.assertEqual(self.bodies(self.pull(sys_flag=0, subVersion="2")), [0, 1, 2, 3, 4, 5])

    def test_a_file_of_apache(self) -> None:
        """A file as Apache's broker leaves it, with an expression that nobody can compile, is read."""
        text = (
            '{"filterDataByTopic":{"TopicA":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[93,69,23]},'
            '"bornTime":1,"clientVersion":1,"consumerGroup":"g","dead":true,"deadTime":0,"expression":"a >",'
            '"expressionType":"SQL92","topic":"TopicA"}},"topic":"TopicA"}}}'
        )
        path = self.one.service.filters.path
        self.one.stop()
        self.one.node.disk.write_atomic(path, text.encode())
        self.one.start()
        kept = self.one.service.filters.get("TopicA", "g")
        assert kept is not None
        self.assertEqual((kept.expression, kept.dead, FILE_NAME), ("a >", True, "consumerFilter.json"))
