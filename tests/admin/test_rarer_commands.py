"""The rarer commands of rmq-admin against a NameServer, a master and a slave, all simulated."""

from __future__ import annotations

import json

from rmq.admin.command import HIDDEN
from tests.admin.test_names import ended
from tests.admin.test_on_a_cluster import ClusterCase


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
        self.text("topic", "order", "orders", "delete", "--yes")
        self.fails(2, "topic", "order", "orders", "get")

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
        self.join("G", "orders")
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
        self.assertEqual(self.text("brokerConsumeStats", "-b", self.broker, "-l", "2"), "no group is behind")

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
        self.assertIn("ended with 1", self.emitted[0])
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
        self.assertEqual((unit["offset"], unit["tags_code"]), (0, 65))


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
        self.assertEqual(self.text("producer", "-b", self.broker), "no producer is connected")
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
        self.fails(1, "acl", "show")
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
        self.assertIn("no offset", self.fails(64, "group", "reset", "G", "orders", "--to", "3"))
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
