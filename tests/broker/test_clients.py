"""Heartbeats and what follows from them, as clients see it."""

from __future__ import annotations

import json

from twisted.logger import capturedLogs, formatEvent

from rmq.broker.responders.clients import MAX_GROUPS_OF_A_CLIENT
from rmq.broker.sessions import MEMBER_EXPIRY_MS
from rmq.wire.codes import LanguageCode
from tests.broker.harness import OneBrokerCase, RawClient, heartbeat


class ClientCase(OneBrokerCase):
    def beat(self, client: RawClient, name: str, group: str = "CG", *topics: str, producer: str | None = None) -> None:
        self.assertEqual(client.ask(34, None, heartbeat(name, group, *topics, producer=producer)).code, 0)

    def ids(self, group: str = "CG") -> list[str]:
        answer = self.client.ask(38, {"consumerGroup": group})
        return list(json.loads(answer.body or b"{}").get("consumerIdList", []))


class HeartbeatTests(ClientCase):
    def test_the_newcomer_is_in_the_list(self) -> None:
        """As soon as its heartbeat is answered a member is in its group's list, and its retry topic is there."""
        self.beat(self.client, "c1", "CG", "T")
        self.assertEqual(self.ids(), ["c1"])
        retry = self.one.service.topics.get("%RETRY%CG")
        assert retry is not None
        self.assertEqual((retry.read_queue_nums, retry.write_queue_nums, retry.perm), (1, 1, 6))

    def test_everybody_hears_of_a_newcomer(self) -> None:
        """Old members and the newcomer itself are told (40), the latter before its heartbeat is answered."""
        other = self.one.connect()
        self.beat(self.client, "c1")
        self.assertEqual([each.code for each in self.client.received], [40, 0])
        notice = self.client.requests(40)[0]
        self.assertTrue(notice.is_oneway)
        self.assertEqual(dict(notice.ext_fields), {"consumerGroup": "CG"})
        self.beat(other, "c2")
        self.one.world.run_for(0.1)
        self.assertEqual((len(self.client.requests(40)), len(other.requests(40))), (2, 1))
        self.beat(other, "c2")
        self.one.world.run_for(0.1)
        self.assertEqual(len(self.client.requests(40)), 2)

    def test_members_that_subscribe_to_different_things(self) -> None:
        """The heartbeat of a member with another subscription is a line of the log, those that follow are not."""
        other = self.one.connect()
        self.beat(self.client, "c1", "CG", "T")
        with capturedLogs() as events:
            for _ in range(3):
                self.beat(other, "c2", "CG", "U")
                self.beat(self.client, "c1", "CG", "T")
        (line,) = [text for one in events if "different things" in (text := formatEvent(one))]
        self.assertIn(
            "members of group CG subscribe to different things, so messages are lost:"
            " topic T: c2 subscribes to nothing, the group to *; topic U: c2 subscribes to *, the group to nothing"
            " (heartbeat of c2 from ",
            line,
        )

    def test_a_group_that_wants_no_notices(self) -> None:
        """notifyConsumerIdsChangedEnable=false of the group is kept."""
        self.client.ask(200, {}, b'{"groupName":"CG","notifyConsumerIdsChangedEnable":false}')
        other = self.one.connect()
        self.beat(self.client, "c1")
        self.beat(other, "c2")
        self.assertEqual(other.ask(35, {"clientID": "c2", "consumerGroup": "CG"}).code, 0)
        self.one.world.run_for(1)
        self.assertEqual((self.ids(), self.client.requests(40)), (["c1"], []))

    def test_lost_producers(self) -> None:
        """A producer whose connection is lost is no longer listed."""
        other = self.one.connect()
        self.beat(other, "p1", producer="PG")
        self.assertIn(b"PG", self.client.ask(328).body or b"")
        assert other.transport is not None
        other.transport.loseConnection()
        self.one.world.run_for(0.5)
        self.assertNotIn(b"PG", self.client.ask(328).body or b"")

    def test_lost_connection(self) -> None:
        """When a member's connection is lost the others are told at once."""
        other = self.one.connect()
        self.beat(self.client, "c1")
        self.beat(other, "c2")
        told = len(self.client.requests(40))
        assert other.transport is not None
        other.transport.loseConnection()
        self.one.world.run_for(0.5)
        self.assertEqual((len(self.client.requests(40)), self.ids()), (told + 1, ["c1"]))

    def test_silence(self) -> None:
        """A client without a heartbeat for two minutes is dropped from its groups and its connection is closed."""
        silent = self.one.connect()
        self.beat(silent, "c2", producer="PG")
        for _ in range(14):
            self.one.world.run_for(10)
            if not silent.closed:
                silent.post(38, {"consumerGroup": "CG"})
            self.beat(self.client, "c1", "Other")
        self.assertTrue(silent.closed)
        self.assertEqual(self.client.ask(38, {"consumerGroup": "CG"}).code, 1)
        self.assertEqual(self.client.ask(204, {"producerGroup": "PG"}).code, 1)
        self.assertEqual(MEMBER_EXPIRY_MS, 120_000)

    def test_leaving(self) -> None:
        """Unregistering takes a client out of both kinds of groups; empty names mean none."""
        self.beat(self.client, "c1", producer="PG")
        self.assertEqual(self.client.ask(35, {"clientID": "c1", "producerGroup": "", "consumerGroup": ""}).code, 0)
        self.assertEqual(self.ids(), ["c1"])
        self.client.ask(35, {"clientID": "c1", "producerGroup": "PG", "consumerGroup": "CG"})
        answer = self.client.ask(38, {"consumerGroup": "CG"})
        self.assertEqual((answer.code, answer.remark), (1, "no consumer for this group, CG"))
        self.assertIsNone(self.one.service.groups.get(""))

    def test_cpp_and_python_heartbeats(self) -> None:
        """Ordinals for names, texts for numbers, sets left out, a newline behind the body: read all the same."""
        body = (
            b'{"clientID":"cpp","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"CG",'
            b'"messageModel":1,"subscriptionDataSet":[{"subString":"TagA","subVersion":"1700000000000","topic":"T"}]}]}\n'
        )
        self.assertEqual(self.client.ask(34, None, body).code, 0)
        answer = json.loads(self.client.ask(203, {"consumerGroup": "CG"}).body or b"")
        self.assertEqual(answer["messageModel"], "CLUSTERING")
        self.assertEqual(answer["consumeType"], "CONSUME_PASSIVELY")
        self.assertEqual(answer["consumeFromWhere"], "CONSUME_FROM_FIRST_OFFSET")
        self.assertEqual(answer["subscriptionTable"]["T"]["codeSet"], [2598919])
        self.assertEqual(answer["subscriptionTable"]["T"]["subVersion"], 1700000000000)

    def test_too_many_groups(self) -> None:
        """One heartbeat cannot make thousands of groups."""
        groups = ",".join(f'{{"groupName":"g{number}"}}' for number in range(MAX_GROUPS_OF_A_CLIENT + 1))
        answer = self.client.ask(34, None, f'{{"clientID":"c","consumerDataSet":[{groups}]}}'.encode())
        self.assertEqual(answer.code, 1)
        self.assertIn("1025 groups", answer.remark or "")
        self.assertIsNone(self.one.service.groups.get("g0"))

    def test_broken_heartbeats(self) -> None:
        """A body that is no heartbeat is refused with its fault; the connection lives on."""
        for body in (b"", b"{", b"[]", b"{}", b'{"clientID":"c","consumerDataSet":5}', b"\x00\xff"):
            answer = self.client.ask(34, None, body)
            self.assertEqual(answer.code, 1)
            self.assertTrue(answer.remark)
        self.beat(self.client, "c1")


class ConnectionTests(ClientCase):
    def test_consumer_and_producer_connections(self) -> None:
        """mqadmin sees each client with address, language and version."""
        opaque = self.client.post(
            34, None, heartbeat("c1", "CG", "T", producer="PG"), version=401, language=LanguageCode.GO
        )
        self.client.wait(opaque)
        consumer = json.loads(self.client.ask(203, {"consumerGroup": "CG"}).body or b"")
        producer = json.loads(self.client.ask(204, {"producerGroup": "PG"}).body or b"")
        (connection,) = consumer["connectionSet"]
        self.assertEqual((connection["clientId"], connection["language"], connection["version"]), ("c1", "GO", 401))
        self.assertTrue(connection["clientAddr"].startswith("10.0.0.2:"))
        self.assertEqual(producer["connectionSet"], consumer["connectionSet"])
        table = json.loads(self.client.ask(328).body or b"")
        self.assertEqual([each["clientId"] for each in table["data"]["PG"]], ["c1"])
        self.assertTrue(table["data"]["PG"][0]["remoteIP"].startswith("/10.0.0.2:"))

    def test_nobody(self) -> None:
        """Groups without members have codes of their own, which tools rely on."""
        self.assertEqual(self.client.ask(203, {"consumerGroup": "x"}).code, 206)
        self.assertEqual(self.client.ask(204, {"producerGroup": "x"}).code, 1)
        self.assertEqual(self.client.ask(328).body, b'{"data":{}}')

    def test_check_client_config(self) -> None:
        """Tags are fine, SQL92 is not; nothing to check is fine."""
        tag = b'{"clientId":"c","group":"g","subscriptionData":{"subString":"a","topic":"T","expressionType":"TAG"}}'
        self.assertEqual(self.client.ask(46, None, tag).code, 0)
        self.assertEqual(self.client.ask(46).code, 0)
        sql = self.client.ask(46, None, tag.replace(b'"TAG"', b'"SQL92"'))
        self.assertEqual((sql.code, sql.remark), (1, "The broker does not support consumer to filter message by SQL92"))


class LockTests(ClientCase):
    def test_lock_and_unlock(self) -> None:
        """Ordered consumers hold queues, one at a time."""
        queue = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
        first = f'{{"clientId":"c1","consumerGroup":"CG","mqSet":[{queue}]}}'.encode()
        second = first.replace(b"c1", b"c2")
        self.assertEqual(self.client.ask(41, None, first).body, f'{{"lockOKMQSet":[{queue}]}}'.encode())
        self.assertEqual(self.client.ask(41, None, second).body, b'{"lockOKMQSet":[]}')
        self.client.tell(42, None, first)
        self.assertEqual(self.client.ask(41, None, second).body, f'{{"lockOKMQSet":[{queue}]}}'.encode())


class SlaveTests(ClientCase):
    values = {"brokerRole": "SLAVE", "brokerId": "1"}

    def test_a_slave_makes_no_topics(self) -> None:
        """A consumer that reads at a slave joins its group there, and the topics stay those of the master."""
        before = self.one.service.topics.names()
        self.beat(self.client, "c1", "CG", "T")
        self.assertEqual((self.ids(), self.one.service.topics.names()), (["c1"], before))
