"""The rarer commands of rmq-admin against a NameServer, a master and a slave, all simulated."""

from __future__ import annotations

import json
import re

from twisted.internet.defer import Deferred

from rmq.admin.command import HIDDEN
from rmq.admin.main import Result, parse, run
from rmq.sim.node import platform_for
from rmq.wire import fastjson
from rmq.wire.api.common import MessageQueue, SubscriptionData
from rmq.wire.api.forwarding import ConsumeStatus, QueueInfo, RunningInfo
from rmq.wire.command import RESPONSE, RemotingCommand, encode_command
from tests.admin.test_names import ended
from tests.admin.test_on_a_cluster import ClusterCase
from tests.broker.harness import RawClient


class TopicTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "3")
        self.send("orders", 3)

    def test_clusters(self) -> None:
        """The clusters that have it; status 2 without a route."""
        self.assertEqual(self.data("topic", "clusters", "orders"), [{"cluster": "sim"}])
        self.assertEqual(self.text("topicClusterList", "-t", "orders"), "sim")
        self.fails(2, "topic", "clusters", "nowhere")

    def test_stats(self) -> None:
        """A row for each topic and group, with the lag; one topic alone, under both names."""
        self.join("G", "orders")
        self.commit("G", "orders", 1)
        (row,) = self.data("topic", "stats", "orders")
        self.assertEqual((row["topic"], row["group"], row["lag"]), ("orders", "G", 2))
        (same,) = self.data("statsAll", "-t", "orders")
        self.assertEqual(same["topic"], "orders")
        self.assertIn("orders", {one["topic"] for one in self.data("topic", "stats")})

    def test_allocate(self) -> None:
        """Java's average: ranges of queues, the first members get one more."""
        rows = self.data("topic", "allocate", "orders", "--members", "b,a")
        self.assertEqual([(row["member"], row["queue"]) for row in rows], [("a", 0), ("a", 1), ("b", 2)])
        rows = self.data("allocateMQ", "-t", "orders", "-i", "a,b", "--circle")
        self.assertEqual([(row["member"], row["queue"]) for row in rows], [("a", 0), ("a", 2), ("b", 1)])

    def test_order(self) -> None:
        """Set, read, deleted; set needs a value."""
        self.fails(2, "topic", "order", "orders", "get")
        self.assertIn("--conf", self.fails(64, "topic", "order", "orders", "set", "--yes"))
        self.text("updateOrderConf", "-t", "orders", "-m", "put", "-v", "broker-a:3")
        self.assertEqual(self.text("topic", "order", "orders", "get"), "broker-a:3")
        self.assertEqual(self.text("topic", "order", "orders", "get", "--dry-run"), "broker-a:3")
        self.text("topic", "order", "orders", "delete", "--yes")
        self.fails(2, "topic", "order", "orders", "get")

    def test_created_with_an_order(self) -> None:
        """NameServers tell clients its queues; with a broker named, beside those of others; units have their flag."""
        topics = self.cluster.masters[0].broker.topics
        self.text("topic", "create", "T", "--queues", "2", "--order")
        self.assertEqual(self.text("topic", "order", "T", "get"), "broker-a:2")
        self.text("kv", "set", "ORDER_TOPIC_CONFIG", "T", "other:4;broker-a:2")
        self.text("updateTopic", "-t", "T", "-b", self.broker, "-w", "3", "-o", "true", "-u", "true", "-s", "true")
        self.assertEqual(self.text("topic", "order", "T", "get"), "other:4;broker-a:3")
        config = topics.get("T")
        assert config is not None
        self.assertEqual((config.order, config.topic_sys_flag), (True, 3))

    def test_ping(self) -> None:
        """Messages are sent, one after the other, and timed; where none is stored the status is 1."""
        (row,) = self.data("topic", "ping", "orders", "--count", "3")
        self.assertEqual((row["topic"], row["sent"], row["failed"]), ("orders", 3, 0))
        self.assertGreaterEqual(row["max_ms"], row["mean_ms"])
        (row,) = self.data("cluster", "ping", "--count", "2")
        self.assertEqual((row["topic"], row["sent"]), ("broker-a", 2))
        (row,) = self.data("sendMsgStatus", "-b", "broker-a", "-s", "64", "-c", "1")
        self.assertEqual(row["sent"], 1)


class GroupTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "2")
        self.send("orders", 5)
        self.member = self.join("G", "orders")
        self.commit("G", "orders", 1, 2)

    def test_config(self) -> None:
        """What each broker knows of a group."""
        self.text("group", "create", "G", "--retryMaxTimes", "3")
        rows = {row["key"]: row["value"] for row in self.data("group", "config", "G")}
        self.assertEqual((rows["groupName"], rows["retryMaxTimes"]), ("G", 3))
        self.assertIn("no broker knows group H", self.fails(2, "getConsumerConfig", "-g", "H"))

    def test_lag(self) -> None:
        """All groups that are behind, with one request for each broker; status 2 when there is one."""
        result = self.admin("group", "lag", "-o", "json")
        self.assertEqual(result.status, 2)
        rows = [row for row in json.loads(result.out) if row["topic"] == "orders"]
        self.assertEqual([(row["group"], row["queue"], row["lag"]) for row in rows], [("G", 0, 2)])
        self.assertEqual(self.text("group", "lag", "-b", self.broker, "--over", "2"), "no group is behind")
        named = json.loads(self.admin("group", "lag", "G", "-o", "json").out)
        self.assertEqual([row["group"] for row in named], ["G"])
        self.assertEqual(self.text("group", "lag", "G", "--over", "2"), "G is not behind")
        self.assertIn("group H has committed no offset", self.fails(2, "group", "lag", "H"))
        for level, queues in (("2", 1), ("3", 0)):
            shown = self.text("brokerConsumeStats", "-b", self.broker, "-l", level).splitlines()
            self.assertEqual((len(shown), shown[-1]), (3 + queues, "Diff Total: 2"))

    def test_lag_in_queues_that_are_not_written(self) -> None:
        """A topic that gets fewer queues to write leaves some to be read to their ends; a group may be behind there."""
        self.commit("G", "orders", 3, 1)
        self.assertEqual(
            self.text("updateTopic", "-b", self.broker, "-t", "orders", "-r", "2", "-w", "1")[:6], "create"
        )
        result = self.admin("group", "lag", "-o", "json")
        rows = [row for row in json.loads(result.out) if row["topic"] == "orders"]
        self.assertEqual([(row["group"], row["queue"], row["lag"]) for row in rows], [("G", 1, 1)])
        self.assertEqual(result.status, 2)

    def test_status(self) -> None:
        """Queues of a member with the rates of their topic; one that does not answer has a line that says so."""
        rates = {"orders": ConsumeStatus(consume_ok_tps=2.5, consume_failed_tps=0.126, consume_rt=7)}
        table = {self.queue(number): self.queue_info(number) for number in range(2)}
        info = RunningInfo(properties={}, subscription_set=[], mq_table=table, status_table=rates, jstack="main waits")
        asked, out = self.answered(info, "group", "status", "G", "--stacks", "-o", "json")
        self.assertEqual(asked.ext_fields["jstackEnable"], "true")
        rows = json.loads(out)
        self.assertEqual(
            [(row["queue"], row["consumer_offset"], row["in_hand"]) for row in rows], [(0, 0, 3), (1, 1, 3)]
        )
        self.assertEqual({(row["ok_per_s"], row["failed_per_s"], row["handler_ms"]) for row in rows}, {(2.5, 0.13, 7)})
        self.assertEqual({row["problem"] for row in rows}, {None})
        silent = self.admin("group", "status", "G", "-o", "json")
        (row,) = json.loads(silent.out)
        self.assertEqual((silent.status, row["topic"]), (1, None))
        self.assertIn("did not answer request 307", row["problem"])

    def queue(self, number: int) -> MessageQueue:
        return MessageQueue(topic="orders", broker_name="broker-a", queue_id=number)

    def queue_info(self, offset: int) -> QueueInfo:
        return QueueInfo(
            commit_offset=offset,
            cached_msg_min_offset=0,
            cached_msg_max_offset=0,
            cached_msg_count=3,
            cached_msg_size_in_mi_b=0,
            last_pull_timestamp=1_700_000_000_000,
        )

    def answered(self, info: RunningInfo, *arguments: str) -> tuple[RemotingCommand, str]:
        """Run a command that asks the member what it does; return the request and what the command prints."""
        before = len(self.member.requests(307))
        parsed = parse([*arguments, "-n", self.namesrv])
        done = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_until(lambda: self.member.requests(307)[before:], 5, "the request at the member")
        (asked,) = self.member.requests(307)[before:]
        assert self.member.transport is not None
        answer = RemotingCommand(0, flag=RESPONSE, opaque=asked.opaque, body=fastjson.encode(info))
        self.member.transport.write(encode_command(answer))
        return asked, self.world.settle(done).out

    def test_status_of_mqadmin(self) -> None:
        """Its members and what is wrong with them, or what one of them does; a queue that waits has a line."""
        properties = {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMER_START_TIMESTAMP": "0",
            "PROP_CLIENT_VERSION": "V4_9_7",
            "PROP_CONSUMEORDERLY": "false",
        }
        wanted = [SubscriptionData(topic="orders", sub_string="A")]
        table = {self.queue(0): self.queue_info(1)}
        info = RunningInfo(properties=properties, subscription_set=wanted, mq_table=table, jstack="main waits")
        _, out = self.answered(info, "consumerStatus", "-g", "G")
        lines = out.splitlines()
        self.assertEqual(lines[0], f"{'#Index':10} {'#ClientId':40} {'#Version':20} #ConsumerRunningInfoFile")
        self.assertEqual(lines[1], f"{'1':10} {'10.0.0.9@1':40} {'V4_9_7':20} -")
        self.assertEqual(lines[2:7], ["", "", "Same subscription in the same group of consumer", "", "Rebalance OK"])
        queue = "MessageQueue [topic=orders, brokerName=broker-a, queueId=0]"
        self.assertRegex(lines[7], rf"^10.0.0.9@1 {re.escape(queue)} can't consume for a while, maybe blocked, \d+ms$")
        _, out = self.answered(info, "consumerStatus", "-g", "G", "-i", "10.0.0.9@1", "-s")
        lines = out.splitlines()
        self.assertIn(f"{'PROP_CLIENT_VERSION':40}: V4_9_7", lines)
        self.assertIn(f"001 Topic: {'orders':40} ClassFilter: false    SubExpression: A", lines)
        self.assertIn(f"{'orders':32}  {'broker-a':32}  {'0':4}  {'1':20}", lines)
        (detail,) = [line for line in lines if "ProcessQueueInfo [" in line]
        self.assertIn("locked=false, tryUnlockTimes=0, lastLockTimestamp=", detail)
        self.assertEqual(lines[-2:], ["#Consumer jstack#", "main waits"])
        _, out = self.answered(
            RunningInfo(properties=properties, subscription_set=[], mq_table={}), "consumerStatus", "-g", "G"
        )
        self.assertIn("WARN: Different subscription", out)

    def test_status_needs_members(self) -> None:
        """A member that is not there: status 2."""
        self.assertIn("no member other", self.fails(2, "group", "status", "G", "--client", "other"))
        self.assertIn("no group H", self.fails(2, "consumerStatus", "-g", "H"))

    def test_monitor(self) -> None:
        """A line for each group that is behind; once for cron with a status; a program gets each line."""
        result = self.admin("monitor", "--once", "--lag", "1", "-o", "json")
        (found,) = json.loads(result.out)
        self.assertEqual((result.status, found["group"], found["lag"]), (2, "G", 2))
        self.assertIn("lag 2 messages, above 1", found["problem"])
        result = self.admin("monitor", "--once")
        self.assertEqual((result.status, result.out), (0, "no group is behind"))
        self.emitted.clear()
        self.admin("monitor", "--once", "--lag", "1", "--exec", "mail")
        ((line, data, variables),) = self.executed
        self.assertEqual((line, json.loads(data)["group"], variables["RMQ_GROUP"]), ("mail", "G", "G"))
        self.assertRegex(self.emitted[0], r"^\S+Z G: lag 2 messages, above 1$")

    def test_monitor_without_members(self) -> None:
        """Messages that wait while no member is online."""
        self.text("group", "create", "H")
        self.text("topic", "create", "%RETRY%H", "--queues", "1")
        self.text("group", "reset", "H", "orders", "--to", "begin", "--yes")
        self.world.run_for(1)
        (found,) = json.loads(self.admin("monitor", "--once", "-o", "json").out)
        self.assertEqual((found["group"], found["problem"]), ("H", "lag 5 messages, and no member online"))


class ConsumeTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "1")
        for text in ("one", "two"):
            self.admin("produce", "orders", "-m", text, "-k", f"key-{text}")
        self.emitted.clear()

    def consume(self, *arguments: str) -> None:
        result = self.admin("consume", "orders", "-g", "G", "--from", "begin", *arguments)
        self.assertEqual((result.status, result.out, result.err), (0, "", ""))

    def position(self) -> int:
        self.world.run_for(2)
        (row,) = [row for row in self.data("group", "show", "G") if row["topic"] == "orders"]
        return int(row["consumer_offset"])

    def test_prints_and_acknowledges(self) -> None:
        """Each message is printed and acknowledged; the next run goes on behind it."""
        self.consume("--count", "1")
        self.assertTrue(self.emitted[0].endswith("keys=key-one one"), self.emitted)
        self.assertEqual(self.position(), 1)
        self.emitted.clear()
        self.consume("-c", "1", "-o", "json")
        self.assertEqual(json.loads(self.emitted[0])["body"], "two")
        self.assertEqual(self.position(), 2)

    def test_to_the_dead_letters(self) -> None:
        """With --retries 0 a message that the program refuses is a dead letter at once, and can be sent again."""
        self.exec_statuses = [1]
        self.consume("--count", "1", "--retries", "0", "--exec", "false")
        self.assertIn("a dead letter now", self.emitted[0])
        self.world.run_for(2)
        (row,) = self.data("dlq", "list")
        self.assertEqual((row["group"], row["messages"]), ("G", 1))
        (again,) = self.data("dlq", "resend", "G", "--all", "--yes")
        self.assertEqual(again["status"], "OK")

    def test_program(self) -> None:
        """A program gets the body and says with its status what becomes of the message."""
        self.exec_statuses = [0, 1]
        self.consume("--count", "2", "--exec", "handle")
        self.assertEqual([(line, data) for line, data, _ in self.executed], [("handle", b"one"), ("handle", b"two")])
        self.assertEqual(self.executed[0][2]["RMQ_KEYS"], "key-one")
        self.assertIn("ended with 1, the message is delivered again", self.emitted[0])
        self.assertEqual(self.position(), 2)
        rows = {row["topic"]: row["lag"] for row in self.data("group", "show", "G")}
        self.emitted.clear()
        self.consume("--count", "1", "--exec", "handle")  # it comes back after 10 s
        self.assertEqual((rows["orders"], self.executed[-1][1]), (0, b"two"))
        self.assertEqual(self.executed[-1][2]["RMQ_RECONSUME_TIMES"], "1")


class MessageTests(ClusterCase):
    def test_at_an_offset(self) -> None:
        """The message at an offset, and the unit of the index that finds it."""
        self.text("topic", "create", "orders", "--queues", "1")
        self.admin("produce", "orders", "-m", "x", "-c", "A")
        (found,) = self.data("message", "at", "orders", "broker-a", "0", "0")
        self.assertEqual((found["body"], found["offset"]), ("x", 0))
        (same,) = self.data("queryMsgByOffset", "-t", "orders", "-b", "broker-a", "-i", "0", "-o", "0")
        self.assertEqual(same["message_id"], found["message_id"])
        self.assertIn("from 0 up to 1", self.fails(2, "message", "at", "orders", "broker-a", "0", "7"))
        self.assertIn("no queue broker-a:3", self.fails(2, "message", "at", "orders", "broker-a", "3", "0"))
        (unit,) = self.data("message", "index", "orders", "0", "0", "-b", self.broker)
        self.assertEqual(self.data("queryCq", "-t", "orders", "-q", "0", "-i", "0"), [unit])
        self.assertEqual((unit["offset"], unit["tags_code"]), (0, 65))


class TracksAndCopiesTests(ClusterCase):
    """What became of a message, and what an operator does with it."""

    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "1")
        self.admin("produce", "orders", "-m", "x", "-c", "A", "-k", "k", "-P", "colour=red", "-o", "json")
        self.stored = json.loads(self.emitted.pop())["offset_message_id"]

    def track(self) -> list[tuple[str, str, int | None]]:
        (found,) = self.data("message", "show", self.stored, "--track")
        return [(one["group"], one["track"], one["consumer_offset"]) for one in found["tracks"]]

    def test_track(self) -> None:
        """A group has consumed it, has not, or has no member."""
        self.assertEqual(self.track(), [])
        member = self.join("G", "orders")
        self.commit("G", "orders", 0)
        self.assertEqual(self.track(), [("G", "NOT_CONSUME_YET", 0)])
        self.commit("G", "orders", 1)
        self.assertEqual(self.track(), [("G", "CONSUMED", 1)])
        assert member.transport is not None
        member.transport.loseConnection()
        self.world.run_for(5)
        self.assertEqual(self.track(), [("G", "NOT_ONLINE", 1)])

    def test_resend(self) -> None:
        """A copy is sent to its topic: confirmed, listed with --dry-run, or under mqadmin's name at once."""
        self.assertIn("copy of message", self.fails(4, "message", "show", self.stored, "--resend"))
        self.admin("message", "show", self.stored, "--resend", "--dry-run")
        self.assertIn("would send SEND_MESSAGE_V2", self.emitted.pop())
        (row,) = self.data("message", "show", self.stored, "--resend", "--yes")
        self.assertEqual((row["topic"], row["status"]), ("orders", "OK"))
        self.text("queryMsgById", "-i", f"{self.stored},{self.stored}", "-s", "true")
        self.assertEqual(len(self.data("queryMsgById", "-i", self.stored, "-s", "false")), 1)
        self.admin("tail", "orders", "--from", "begin", "--exit", "-o", "json")
        seen = [json.loads(line) for line in self.emitted]
        self.assertEqual([(one["body"], one["tags"], one["keys"]) for one in seen], [("x", "A", ["k"])] * 4)
        self.assertEqual({one["properties"]["colour"] for one in seen}, {"red"})
        self.assertEqual(len({one["message_id"] for one in seen}), 4)

    def consumed(self, member: RawClient, result: str, *arguments: str) -> Result:
        """Run a command that asks the member to consume, which it does with this result."""
        member.received.clear()
        parsed = parse([*arguments, "-n", self.namesrv])
        done = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_until(lambda: member.requests(309), 5, "the request at the member")
        (asked,) = member.requests(309)
        body = {"order": False, "autoCommit": True, "consumeResult": result, "remark": "", "spentTimeMills": 3}
        answer = RemotingCommand(0, flag=RESPONSE, opaque=asked.opaque, body=json.dumps(body).encode())
        assert member.transport is not None
        member.transport.write(encode_command(answer))
        return self.world.settle(done)

    def test_consume_by(self) -> None:
        """A member consumes it now; how its handler did is the result."""
        self.assertIn("no member online", self.fails(2, "message", "show", self.stored, "--consume-by", "G", "--yes"))
        member = self.join("G", "orders")
        by_group = ("message", "show", self.stored, "--consume-by", "G", "--yes", "-o", "json")
        done = self.consumed(member, "CR_SUCCESS", *by_group)
        (row,) = json.loads(done.out)
        self.assertEqual((row["client_id"], row["result"], row["spent_ms"]), ("10.0.0.9@1", "CR_SUCCESS", 3))
        by_name = ("queryMsgById", "-i", self.stored, "-g", "G", "-d", "10.0.0.9@1", "--output", "json")
        done = self.consumed(member, "CR_THROW_EXCEPTION", *by_name)
        self.assertEqual((done.status, json.loads(done.out)[0]["result"]), (1, "CR_THROW_EXCEPTION"))
        self.fails(4, "message", "show", self.stored, "--consume-by", "G")

    def test_one_thing_at_a_time(self) -> None:
        """Contradicting options: wrong use."""
        self.fails(64, "message", "show", self.stored, "--track", "--resend")
        self.fails(64, "message", "show", self.stored, "--client", "c")


class TraceTests(ClusterCase):
    LINES = (
        ("Pub", 1000, "R", "P", "orders", "ID", "A", "k", "10.0.0.1:10911", 5, 3, 0, "OFFSET", "true"),
        ("SubBefore", 2000, "R", "G", "REQ", "ID", 1, "k"),
        ("SubAfter", "REQ", "ID", 7, "false", "k", 4, 2000, "G"),
        ("EndTransaction", 1500, "", "P", "orders", "ID", "null", "null", "b:1", 2, "TX", "COMMIT_MESSAGE", "false"),
        ("Pub", 1000, "R", "P", "orders", "OTHER", "A", "k2", "10.0.0.1:10911", 5, 3, 0, "OFFSET", "true"),
    )

    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "traces", "--queues", "1")
        body = "".join("\1".join(map(str, line)) + "\2" for line in self.LINES)
        self.assertEqual(self.admin("produce", "traces", "-m", body, "-k", "ID", "-k", "k", "-k", "OTHER").status, 0)
        self.world.run_for(2)

    def test_trace(self) -> None:
        """The life of a message in the order of time, found by its id or its key."""
        rows = self.data("message", "trace", "ID", "--trace-topic", "traces")
        shown = [(row["type"], row["group"], row["status"], row["cost_ms"], row["retries"]) for row in rows]
        expected = [
            ("Pub", "P", "success", 3, None),
            ("EndTransaction", "P", "COMMIT_MESSAGE", None, None),
            ("SubBefore", "G", None, None, 1),
            ("SubAfter", "G", "failed: FAILED", 7, None),
        ]
        self.assertEqual(shown, expected)
        self.assertEqual((rows[0]["time"], rows[0]["broker"]), ("1970-01-01T00:00:01.000Z", "10.0.0.1:10911"))
        by_key = self.data("message", "trace", "k", "--trace-topic", "traces")
        self.assertEqual([row["type"] for row in by_key], ["Pub", "SubBefore", "SubAfter"])

    def test_columns_of_mqadmin(self) -> None:
        """Under mqadmin's name: its columns."""
        lines = self.text("queryMsgTraceById", "-i", "ID", "-t", "traces").splitlines()
        begins = [" ".join(line.split()[:2]) for line in lines if line]
        self.assertEqual(begins, ["#Type #ProducerGroup", "Pub P", "#Type #ConsumerGroup", "Sub G"])
        self.assertRegex(lines[1], r"^Pub        P {20}10\.\S+ +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  3ms        success   $")

    def test_nothing(self) -> None:
        """No trace of it, no trace topic: status 2, and what brokers need."""
        self.assertIn("no trace of NONE", self.fails(2, "message", "trace", "NONE", "--trace-topic", "traces"))
        self.assertIn("traceTopicEnable=true", self.fails(2, "message", "trace", "ID"))

    def test_unreadable(self) -> None:
        """A message of that topic that holds no trace is a line, and hides no other."""
        self.admin("produce", "traces", "-m", "Pub\1soon", "-k", "ID")
        self.world.run_for(2)
        rows = self.data("message", "trace", "ID", "--trace-topic", "traces")
        self.assertEqual(
            [row["type"] for row in rows], ["unreadable", "Pub", "EndTransaction", "SubBefore", "SubAfter"]
        )
        self.assertIn("soon", rows[0]["status"])


class ExportTests(ClusterCase):
    def test_metadata(self) -> None:
        """Topics and groups of a cluster, without those of RocketMQ itself."""
        self.text("topic", "create", "orders", "--queues", "2")
        self.text("group", "create", "G")
        self.world.run_for(1)
        data = self.data("export", "metadata")
        self.assertEqual(list(data["topicConfigTable"]), ["orders"])
        self.assertEqual(data["topicConfigTable"]["orders"]["readQueueNums"], 2)
        self.assertIn("G", data["subscriptionGroupTable"])
        self.assertEqual(list(self.data("export", "metadata", "-t")), ["topicConfigTable", "exportTime"])

    def test_file(self) -> None:
        """With -f into a file; under mqadmin's name into its folder, under mqadmin's file name."""
        self.assertIn("success", self.text("export", "configs", "-f", "/out/c.json"))
        disk = self.machine.disk
        self.assertIn("broker-a", json.loads(disk.read_whole("/out/c.json"))["brokerConfigs"])
        self.text("exportMetrics", "-c", "sim", "-f", "/out")
        figures = json.loads(disk.read_whole("/out/metrics.json"))["runtimeFigures"]
        self.assertIn("putTps", figures[self.broker])


class ProducerTests(ClusterCase):
    def test_lists(self) -> None:
        """No producer: an empty list, and status 2 for the members of a group."""
        self.text("topic", "create", "orders", "--queues", "1")
        self.assertEqual(self.text("producer", "-b", self.broker), "")
        self.assertEqual(self.text("producer", "list"), "no producer is connected")
        self.assertIn("no member of producer group P", self.fails(2, "producer", "members", "P", "orders"))


class CleanTests(ClusterCase):
    def test_confirmed(self) -> None:
        """Asked for before anything is sent."""
        for what in ("topics", "queues", "log"):
            self.fails(4, "broker", f"clean-{what}")


class AclTests(ClusterCase):
    def test_brokers_without_access_control(self) -> None:
        """A broker that has none refuses: status 1. The secret is in no plan, and may come from a file."""
        shown = self.admin("acl", "show")
        self.assertEqual((shown.status, shown.err.count("access control is off")), (1, 2))
        self.machine.disk.make_dirs("/keys")
        self.machine.disk.write_atomic("/keys/s", b"very-secret\n")
        for secret in (("-s", "very-secret"), ("--secret-file", "/keys/s")):
            self.emitted.clear()
            self.admin("acl", "set", "alice", *secret, "-m", "true", "--dry-run")
            self.assertIn("UPDATE_AND_CREATE_ACL_CONFIG", self.emitted[0])
            self.assertIn(f"secretKey={HIDDEN}", self.emitted[0])
            self.assertNotIn("very-secret", self.emitted[0])
        self.fails(64, "acl", "set", "alice", "-s", "x", "--secret-file", "/keys/s", "--yes")
        self.fails(4, "acl", "delete", "alice")

    def test_slaves_have_accounts(self) -> None:
        """Accounts are changed on slaves too, which answer pulls and copy none from their masters; as mqadmin does."""
        for arguments in (
            ("acl", "set", "alice", "-s", "secret-of-alice", "-m", "false"),
            ("updateAclConfig", "-c", "sim", "-a", "alice", "-s", "secret-of-alice"),
            ("acl", "delete", "alice"),
            ("acl", "whitelist", "10.0.0.*"),
        ):
            self.emitted.clear()
            self.admin(*arguments, "--dry-run")
            asked = [line.split(" to ")[1].partition(": ")[0] for line in self.emitted]
            self.assertEqual(asked, [member.addr for member in self.cluster.members])


class MistakeTests(ClusterCase):
    """What a new user gets wrong has an answer that says how to get it right."""

    def test_unknown_key(self) -> None:
        """A broker would take a key that it does not have, and nothing would change."""
        err = self.fails(2, "broker", "set", "maxMesageSize", "1", "--yes")
        self.assertIn("has no key maxMesageSize", err)
        self.assertIn("maxMessageSize", err)

    def test_offset_in_place_of_a_time(self) -> None:
        """A small number is an offset for `tail`, and no time for `group reset`."""
        self.text("topic", "create", "orders", "--queues", "1")
        self.assertIn("offset only with --queue", self.fails(64, "group", "reset", "G", "orders", "--to", "3"))
        for text in "abc":
            self.admin("produce", "orders", "-m", text)
        self.emitted.clear()
        self.admin("tail", "orders", "--from", "1", "--exit")
        self.assertEqual([line[-1] for line in self.emitted], ["b", "c"])

    def test_names(self) -> None:
        """A group whose name no client accepts is not created; a key may be given as an option."""
        self.assertIn("letters", self.fails(64, "group", "create", "a b"))
        self.text("topic", "create", "orders", "--queues", "1")
        self.assertIn("no message with key k", self.fails(2, "message", "find", "orders", "--key", "k"))
        self.assertIn("a key is needed", self.fails(64, "message", "find", "orders"))

    def test_numbers(self) -> None:
        """No queue, no message: wrong use before anything is asked."""
        for arguments in (("topic", "create", "T", "--queues", "0"), ("tail", "T", "--count", "x")):
            status, text = ended(*arguments)
            self.assertEqual(status, 64)
            self.assertIn("no number above 0", text)
