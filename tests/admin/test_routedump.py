"""``routeDump``: what NameServers know, in the form that the audit reads."""

from __future__ import annotations

from rmq.errors import Unreachable
from tests.admin.test_commands import AdminCase, Answers


class RouteDumpTests(AdminCase):
    def test_everything_of_each(self) -> None:
        """Brokers and queues of every NameServer, with the names of RocketMQ's own JSON."""
        answers = Answers(a=self.namesrv("T", "U"), b=self.namesrv())
        outcome = self.run_command(answers, "routeDump", "-n", "a:1;b:1;a:1")
        full, empty = outcome.data
        self.assertEqual((outcome.status, empty), (0, {"nameserver": "b:1", "brokers": [], "queues": []}))
        self.assertEqual((full["nameserver"], [one["topic"] for one in full["queues"]]), ("a:1", ["T", "U"]))
        (broker,) = full["brokers"]
        self.assertEqual(set(broker), {"cluster", "brokerName", "brokerId", "addr"})
        self.assertEqual(broker["brokerId"], 0)
        self.assertEqual(
            set(full["queues"][0]),
            {"topic", "brokerName", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag"},
        )
        self.assertIn("a:1: 1 brokers, 2 topics", outcome.text)
        self.assertIn("read and", outcome.text)

    def test_cannot_be_asked(self) -> None:
        """One that does not answer fails the whole: half a dump would look like missing routes."""
        gone = Unreachable("b:1", "no connection")
        self.assertIs(self.fails(Answers(a=self.namesrv("T"), b=gone), "routeDump", "-n", "a:1;b:1"), gone)
