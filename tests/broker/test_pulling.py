"""Pulls: what comes, what is said when nothing comes, and how long it takes."""

from __future__ import annotations

import msgspec

from rmq.store import reader
from rmq.wire.api.common import SubscriptionGroupConfig
from rmq.wire.command import RemotingCommand
from rmq.wire.record import decode_properties, decode_records
from tests.broker.harness import OneBrokerCase, heartbeat, pull_ext, send_ext

SUSPEND = 4 | 2
#: Java's "A".hashCode() is 65: a tag of one letter is its character code
TAG_A = "TAGS\x01A"
TAG_B = "TAGS\x01B"


class PullCase(OneBrokerCase):
    def send(self, props: str = "", body: bytes = b"x", topic: str = "T") -> None:
        self.assertEqual(self.client.ask(310, send_ext(topic, props=props), body).code, 0)

    def pull(self, **options: object) -> RemotingCommand:
        return self.client.ask(11, pull_ext(**options))  # type: ignore[arg-type]

    def offsets(self, answer: RemotingCommand) -> tuple[int, int, int, int]:
        """Return code, next, min and max of an answer; all four headers must be there."""
        ext = answer.ext_fields
        self.assertEqual(ext["suggestWhichBrokerId"], "0")
        return answer.code, int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])


class FoundTests(PullCase):
    def test_messages_in_order(self) -> None:
        """A pull gets messages in their order, from the offset that it names."""
        for number in range(5):
            self.send(body=b"%d" % number)
        answer = self.pull(offset=2)
        self.assertEqual((self.offsets(answer), answer.remark), ((0, 5, 0, 5), "FOUND"))
        self.assertEqual([record.body for record in decode_records(answer.body or b"")], [b"2", b"3", b"4"])

    def test_lite_pull(self) -> None:
        """Code 361 of 5.x's lite consumers is an ordinary pull."""
        self.send()
        self.assertEqual(self.client.ask(361, pull_ext()).code, 0)

    def test_at_most_as_many_as_asked_for(self) -> None:
        """maxMsgNums limits the answer."""
        for _ in range(5):
            self.send()
        answer = self.pull(maxMsgNums="2")
        self.assertEqual(self.offsets(answer), (0, 2, 0, 5))

    def test_tags(self) -> None:
        """Only messages of the subscribed tags come; the offset passes the others."""
        for props in (TAG_A, TAG_B, TAG_A, TAG_B):
            self.send(props)
        answer = self.pull(subscription="A")
        self.assertEqual([r.queue_offset for r in decode_records(answer.body or b"")], [0, 2])
        self.assertEqual(self.offsets(answer), (0, 4, 0, 4))
        nothing = self.pull(subscription="C || D")
        self.assertEqual((self.offsets(nothing), nothing.remark), ((20, 4, 0, 4), "NO_MATCHED_MESSAGE"))

    def test_commit_offset(self) -> None:
        """Bit 0 commits an offset on the way, also when nothing is found."""
        self.send()
        self.pull(sys_flag=4 | 1, commitOffset="7", offset=1)
        self.assertEqual(self.one.service.offsets.query("CG", "T", 0), 7)
        self.pull(sys_flag=4, commitOffset="9")
        self.assertEqual(self.one.service.offsets.query("CG", "T", 0), 7)


class ColdTests(PullCase):
    """Messages that are not in the page cache."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(reader, "CACHED_BYTES", 0)
        for number in range(3):
            self.send(body=b"%d" % number)
        self.one.service.store.write_buffers()
        self.one.node.disk.is_cold = True
        self.one.node.disk.load_s = 5.0

    def test_the_answer_waits_and_the_broker_does_not(self) -> None:
        """A pull of cold messages is answered when they are loaded; sends are answered meanwhile."""
        asked = self.client.post(11, pull_ext())
        self.send(body=b"meanwhile")
        self.assertTrue(self.one.node.disk.is_cold, "the load has not ended")
        self.assertIsNone(self.client.answer(asked))
        answer = self.client.wait(asked)
        bodies = [record.body for record in decode_records(answer.body or b"")]
        self.assertEqual(bodies, [b"0", b"1", b"2", b"meanwhile"])
        self.assertEqual(self.pull(offset=1).code, 0)

    def test_too_many(self) -> None:
        """A limited number of pulls waits for the disk; others are refused as by Apache's full queue, warm ones not."""
        flow = self.one.service.flow
        flow.cold_pulls.limit = 3
        clients = [self.one.connect() for _ in range(4)]
        asked = [client.post(11, pull_ext(offset=number)) for number, client in enumerate(clients[:3])]
        self.one.world.run_for(1)
        self.assertEqual(flow.cold_pulls.waiting, 3)
        refused = clients[3].ask(11, pull_ext())
        self.assertEqual((refused.code, refused.remark), (2, "[OVERLOAD]system busy, start flow control for a while"))
        self.assertEqual(clients[3].ask(11, pull_ext(offset=3)).code, 19)
        answers = [client.wait(one) for client, one in zip(clients, asked, strict=False)]
        self.assertEqual(([answer.code for answer in answers], flow.cold_pulls.waiting), ([0, 0, 0], 0))
        self.one.node.disk.is_cold = True
        self.assertEqual(self.pull().code, 0)

    def test_it_is_checked_again(self) -> None:
        """A topic that was closed to readers while its messages were loaded is refused."""
        asked = self.client.post(11, pull_ext())
        topic = self.one.service.topics.get("T")
        assert topic is not None
        self.one.service.topics.put(msgspec.structs.replace(topic, perm=2))
        self.assertEqual(self.client.wait(asked).code, 16)


class NothingTests(PullCase):
    def test_empty_queue(self) -> None:
        """An empty queue has nothing at 0 and never had anything further on."""
        self.send()
        self.assertEqual(self.offsets(self.pull(queue_id=1)), (19, 0, 0, 0))
        self.assertEqual(self.offsets(self.pull(queue_id=1, offset=5)), (21, 0, 0, 0))

    def test_ends(self) -> None:
        """At the end: nothing yet. Beyond it, or before the beginning: where to go instead."""
        for _ in range(3):
            self.send()
        self.assertEqual(self.offsets(self.pull(offset=3)), (19, 3, 0, 3))
        self.assertEqual(self.offsets(self.pull(offset=1000)), (21, 3, 0, 3))
        self.assertEqual(self.offsets(self.pull(offset=-1)), (21, 0, 0, 3))

    def test_moved_offsets_are_told(self) -> None:
        """A pull that is sent to another offset leaves a message in OFFSET_MOVED_EVENT; one that is not, none."""
        self.send()
        self.pull(offset=1)
        self.pull(offset=1000)
        (event,) = decode_records(self.pull(topic="OFFSET_MOVED_EVENT").body or b"")
        self.assertEqual(
            event.body,
            b'{"consumerGroup":"CG","messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"T"},'
            b'"offsetNew":1,"offsetRequest":1000}',
        )
        self.assertEqual(decode_properties(event.properties.decode()), {"KEYS": "CG", "TAGS": "CG", "DELAY": "0"})
        self.assertEqual(event.sys_flag, 0)
        self.assertEqual(event.born_host, event.store_host)


class RefusalTests(PullCase):
    def refused(self, answer: RemotingCommand, code: int, text: str) -> None:
        self.assertEqual(answer.code, code, answer.remark)
        self.assertIn(text, answer.remark or "")

    def test_topics_and_queues(self) -> None:
        """Unknown topics and queues are named in the refusal."""
        self.send()
        self.refused(self.pull(topic="Nope"), 17, "topic[Nope] not exist, apply first please!")
        self.refused(self.pull(queue_id=4), 1, "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4]")
        self.refused(self.pull(queue_id=-1), 1, "queueId[-1] is illegal")

    def test_permissions(self) -> None:
        """A topic or a group that may not be read is refused with 16."""
        self.client.ask(
            17,
            {
                "topic": "W",
                "defaultTopic": "TBW102",
                "readQueueNums": "1",
                "writeQueueNums": "1",
                "perm": "2",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
        self.refused(self.pull(topic="W"), 16, "the topic[W] pulling message is forbidden")
        self.client.ask(200, {}, b'{"groupName":"Off","consumeEnable":false}')
        self.refused(self.pull(group="Off"), 16, "subscription group no permission, Off")
        self.client.ask(25, {}, b"brokerPermission=2")
        self.refused(self.pull(), 16, "pulling message is forbidden")

    def test_sql(self) -> None:
        """SQL92 is refused as Apache does with enablePropertyFilter=false; nothing is delivered unfiltered."""
        self.send()
        self.refused(
            self.pull(expressionType="SQL92", subscription="a > 3"),
            1,
            "The broker does not support consumer to filter message by SQL92",
        )

    def test_bad_expression(self) -> None:
        """An expression that selects nothing at all is refused."""
        self.send()
        self.refused(self.pull(subscription="||"), 23, "parse the consumer's subscription failed")

    def test_subscription_of_the_heartbeat(self) -> None:
        """Without a subscription in the request the group's heartbeat counts: present, of this topic, new enough."""
        self.send()
        self.send(topic="Other")
        self.refused(self.pull(sys_flag=0), 24, "the consumer's group info not exist")
        self.client.ask(34, {}, heartbeat("c1", "CG", "T"))
        self.assertEqual(self.pull(sys_flag=0, subVersion="1").code, 0)
        self.refused(self.pull(sys_flag=0, subVersion="2"), 25, "the consumer's subscription not latest")
        self.refused(self.pull(sys_flag=0, topic="Other"), 24, "the consumer's subscription not exist")

    def test_broadcast(self) -> None:
        """A group that may not broadcast is refused when its members do."""
        self.send()
        self.client.ask(200, {}, b'{"groupName":"CG","consumeBroadcastEnable":false}')
        self.client.ask(34, {}, heartbeat("c1", "CG", "T").replace(b"CLUSTERING", b"BROADCASTING"))
        self.refused(self.pull(sys_flag=0), 16, "can not consume by broadcast way")


class ClosedGroupTests(PullCase):
    values = {"autoCreateSubscriptionGroup": "false"}

    def test_unknown_group(self) -> None:
        """With autoCreateSubscriptionGroup=false an unknown group is refused."""
        self.send()
        answer = self.pull()
        self.assertEqual(answer.code, 26)
        self.assertIn("subscription group [CG] does not exist", answer.remark or "")


class LongPollTests(PullCase):
    def suspended(self, **options: object) -> int:
        return self.client.post(11, pull_ext(sys_flag=SUSPEND, **options))  # type: ignore[arg-type]

    def test_woken_by_a_message(self) -> None:
        """A consumer that waits gets a message within milliseconds of its arrival."""
        self.send()
        opaque = self.suspended(offset=1)
        self.one.world.run_for(3)
        self.assertIsNone(self.client.answer(opaque))
        self.send(body=b"new")
        before = self.one.world.now_s
        answer = self.client.wait(opaque)
        self.assertLess(self.one.world.now_s - before, 0.1)
        self.assertEqual([record.body for record in decode_records(answer.body or b"")], [b"new"])

    def test_waits_in_an_empty_queue(self) -> None:
        """The first message of a queue wakes who waits for it."""
        self.send(topic="T")
        opaque = self.suspended(queue_id=3)
        self.one.world.run_for(1)
        self.client.ask(310, send_ext(queue_id=3), b"first")
        self.assertEqual(self.client.wait(opaque).code, 0)

    def test_timeout(self) -> None:
        """After the time that the client asked for it hears that there is nothing."""
        self.send()
        before = self.one.world.now_s
        answer = self.client.wait(self.suspended(offset=1, suspendTimeoutMillis="5000"))
        self.assertEqual(self.offsets(answer), (19, 1, 0, 1))
        self.assertTrue(5 <= self.one.world.now_s - before < 6.2, self.one.world.now_s - before)

    def test_longest_wait(self) -> None:
        """A pull that would wait for a day is answered after ten minutes, on a connection that lives as long."""
        self.send()
        opaque = self.suspended(offset=1, suspendTimeoutMillis="86400000")
        for number in range(21):
            self.assertIsNone(self.client.answer(opaque), number)
            self.client.ask(34, {}, heartbeat("c1", "CG", "T"))
            self.one.world.run_for(29)
        answer = self.client.answer(opaque)
        assert answer is not None
        self.assertEqual(answer.code, 19)

    def test_other_tags_move_the_offset(self) -> None:
        """A consumer of TagA learns within a few seconds that it may pass the messages of TagB."""
        self.send(TAG_A)
        opaque = self.suspended(offset=1, subscription="A")
        self.send(TAG_B)
        self.one.world.run_for(0.5)
        answer = self.client.wait(opaque, 6)
        self.assertEqual(self.offsets(answer), (20, 2, 0, 2))

    def test_beyond_the_end_is_answered_at_once(self) -> None:
        """Only "nothing yet" is waited for."""
        self.send()
        self.assertEqual(self.client.ask(11, pull_ext(sys_flag=SUSPEND, offset=9)).code, 21)

    def test_lost_connection(self) -> None:
        """Nothing waits for a client that is gone, and nothing is read or counted for it."""
        self.send()
        other = self.one.connect()
        other.post(11, pull_ext(sys_flag=SUSPEND, offset=1))
        self.one.world.run_until(lambda: len(self.one.service.polls) == 1)
        assert other.transport is not None
        stats = self.one.service.stats
        counted = stats.gets_found.total, stats.gets_missed.total
        other.transport.loseConnection()
        self.one.world.run_until(lambda: len(self.one.service.polls) == 0, 5)
        self.assertEqual((stats.gets_found.total, stats.gets_missed.total), counted)

    def test_deleted_topic(self) -> None:
        """Who waits for a topic that is deleted is told so at once."""
        self.send()
        opaque = self.suspended(offset=1)
        self.one.world.run_for(1)
        self.client.ask(215, {"topic": "T"})
        self.assertEqual(self.client.wait(opaque, 1).code, 17)

    def test_stop_answers(self) -> None:
        """A broker that stops does not leave waiting clients to their timeouts."""
        self.send()
        opaque = self.suspended(offset=1)
        self.one.world.run_for(1)
        self.one.stop()
        self.one.world.run_for(1)
        answer = self.client.answer(opaque)
        assert answer is not None
        self.assertEqual(answer.code, 19)
        self.assertTrue(self.client.closed)


class ShortPollTests(PullCase):
    values = {"longPollingEnable": "false", "shortPollingTimeMills": "1000"}

    def test_short(self) -> None:
        """Without long polling a pull is held for a second, whatever the client asks for."""
        self.send()
        before = self.one.world.now_s
        self.client.ask(11, pull_ext(sys_flag=SUSPEND, offset=1))
        self.assertTrue(1 <= self.one.world.now_s - before < 2.2, self.one.world.now_s - before)


class MasterOnlyTests(PullCase):
    def test_groups_of_another_broker_stay(self) -> None:
        """Without slaveReadEnable a group is sent to the master, whatever broker id its configuration names."""
        self.one.service.groups.put(SubscriptionGroupConfig(group_name="CG", broker_id=1))
        self.send()
        self.assertEqual(self.pull().ext_fields["suggestWhichBrokerId"], "0")


class SlaveReadTests(PullCase):
    values = {"slaveReadEnable": "true"}

    def test_a_consumer_that_keeps_up_stays(self) -> None:
        """With slaveReadEnable a group that does not lag is sent to its own broker id, the master."""
        self.send()
        self.assertEqual(self.pull().ext_fields["suggestWhichBrokerId"], "0")

    def test_a_consumer_that_waits_stays(self) -> None:
        """A pull that finds nothing new is answered with the same broker id."""
        self.send()
        answer = self.pull(offset=1)
        self.assertEqual((answer.code, answer.ext_fields["suggestWhichBrokerId"]), (19, "0"))

    def test_a_group_of_another_broker_is_sent_there(self) -> None:
        """With slaveReadEnable the broker id of the group's configuration counts."""
        self.one.service.groups.put(SubscriptionGroupConfig(group_name="CG", broker_id=1))
        self.send()
        self.assertEqual(self.pull().ext_fields["suggestWhichBrokerId"], "1")


class SlaveTests(PullCase):
    values = {"brokerRole": "SLAVE", "brokerId": "1"}

    def test_a_slave_moves_no_offsets(self) -> None:
        """An empty or lagging slave never tells a consumer to start elsewhere, and commits nothing by a pull."""
        answer = self.client.ask(11, pull_ext("BenchmarkTest", offset=100, sys_flag=5, commitOffset="3"))
        self.assertEqual(self.offsets(answer)[:2], (20, 100))
        self.assertIsNone(self.one.service.offsets.query("CG", "BenchmarkTest", 0))
        self.assertEqual(self.one.service.store.end_offset, 0)
