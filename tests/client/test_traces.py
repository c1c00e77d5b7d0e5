"""Message traces: their lines, and what a client writes in simulated time."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.client.core import traces
from rmq.client.flows import tracing
from rmq.client.flows.litepull import pull_consumer
from rmq.client.flows.tracing import Tracer
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.settings import From, ProducerSettings, PullSettings
from rmq.client.types import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from tests.client.cluster import Inbox, consumer, producer
from tests.client.test_flows import FlowCase
from tests.client.test_observers import Notes

REGION = {"MSG_REGION": "R", "TRACE_ON": "true"}
RESULT = SendResult(SendStatus.OK, "ID", "OFFSET", MessageQueue(topic="T", broker_name="b", queue_id=0), 7)


def fields(line: traces.Line | None) -> list[str]:
    assert line is not None
    assert line.text.endswith("\2")
    return line.text[:-1].split("\1")


class LineTests(SynchronousTestCase):
    def published(self, properties: dict[str, str], answer: dict[str, str]) -> traces.Line | None:
        return traces.published(
            "G", "T", RESULT, properties, answer, broker_addr="1.2.3.4:5", body_bytes=9, began_ms=100, ended_ms=103
        )

    def test_published(self) -> None:
        """A stored message has the fields that Java's TraceDataEncoder writes, in its order."""
        line = self.published({"TAGS": "A", "KEYS": "k1 k2"}, REGION)
        expected = ["Pub", "100", "R", "G", "T", "ID", "A", "k1 k2", "1.2.3.4:5", "9", "3", "0", "OFFSET", "true"]
        self.assertEqual(fields(line), expected)
        assert line is not None
        self.assertEqual(line.keys, {"ID", "k1", "k2"})

    def test_absent(self) -> None:
        """What a message does not have is written as Java does: its decoder does not read an empty last field."""
        self.assertEqual(fields(self.published({}, REGION))[6:8], ["null", "null"])

    def test_types(self) -> None:
        """Half messages and delayed ones have types of their own."""
        self.assertEqual(fields(self.published({"DELAY": "3"}, REGION))[11], "3")
        self.assertEqual(fields(self.published({"TRAN_MSG": "true"}, REGION))[11], "1")

    def test_read(self) -> None:
        """What is written is read; what a line lacks or has as null is absent; older and unknown lines do no harm."""
        line = self.published({"KEYS": "k1 k2"}, REGION)
        ended = traces.ended(
            "G", "T", "ID", "TX", 8, tags=None, keys=None, broker_addr="b:1", from_check=True, now_ms=5
        )
        assert line is not None
        (sent, end) = traces.read(line.text + ended.text + "Recall\x01whatever\x02")
        expected = {"kind": "Pub", "time_ms": 100, "region": "R", "group": "G", "topic": "T", "message_id": "ID"}
        more = {"keys": "k1 k2", "broker": "1.2.3.4:5", "bytes": 9, "cost_ms": 3, "type": 0}
        self.assertEqual(sent, {**expected, **more, "offset_message_id": "OFFSET", "success": "true"})
        self.assertEqual((end["state"], end["transaction_id"], end.get("region")), ("COMMIT_MESSAGE", "TX", None))
        (old,) = traces.read("\x01".join(["Pub", "1", "R", "G", "T", "ID", "A", "k", "b:1", "9", "3", "0", "false"]))
        self.assertEqual((old["success"], old.get("offset_message_id")), ("false", None))
        (old,) = traces.read("\x01".join(["SubAfter", "RID", "ID", "4", "true", "k"]))
        self.assertEqual((old["cost_ms"], old.get("time_ms")), (4, None))
        self.assertRaises(ValueError, traces.read, "Pub\x01soon")

    def test_unwanted(self) -> None:
        """A broker may want no traces."""
        self.assertIsNone(self.published({}, {"MSG_REGION": "R", "TRACE_ON": "false"}))
        self.assertIsNone(self.published({}, {}))

    def test_ended(self) -> None:
        """The end of a transaction names its state and whether a broker had asked."""
        line = traces.ended(
            "G", "T", "ID", "TX", 8, tags="A", keys="k1 k2", broker_addr="b:1", from_check=True, now_ms=5
        )
        self.assertEqual(line.keys, {"ID", "k1", "k2"})
        expected = ["EndTransaction", "5", "", "G", "T", "ID", "A", "k1 k2", "b:1", "2", "TX", "COMMIT_MESSAGE"]
        self.assertEqual(fields(line), [*expected, "true"])


class TraceTests(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_topic()
        self.make_topic("Traces", 1)
        self.notes = Notes()
        self.client = self.sim.client(self.notes, trace="Traces")
        self.found = Inbox()
        reader = self.sim.client()
        self.sim.run(consumer(reader, self.found, {"Traces": "*"}, group="Reader").start())

    def lines(self) -> list[list[str]]:
        return [line.split("\1") for m in self.found.got for line in m.body.decode().split("\2")[:-1]]

    def of(self, kind: str) -> list[list[str]]:
        return [line for line in self.lines() if line[0] == kind]

    def test_a_message(self) -> None:
        """A message is traced from its send to its handler, failures too, and found by its id and its keys."""

        def fail_once(message: ReceivedMessage) -> None:
            if not message.reconsume_times:
                raise ValueError("planted")

        inbox = Inbox(fail_once)
        self.sim.run(consumer(self.client, inbox).start())
        result = self.sim.run(producer(self.client).send(Message("T", b"hello", tags="A", keys=("k",))))
        self.until(lambda: len(self.of("SubAfter")) == 2, 120)
        (sent,) = (line for line in self.of("Pub") if line[3] == "PG")
        self.assertEqual(sent[4:8], ["T", result.message_id, "A", "k"])
        self.assertEqual((sent[9], sent[11:]), ("5", ["0", result.offset_message_id, "true"]))
        first, second = self.of("SubBefore")
        self.assertEqual((first[3], first[5:], second[5:]), ("CG", [result.message_id, "0", "k"], [first[5], "1", "k"]))
        failed, good = self.of("SubAfter")
        self.assertEqual((failed[1], failed[4], failed[6]), (first[4], "false", "2"))
        self.assertEqual((good[1], good[4], good[6], good[8]), (second[4], "true", "0", "CG"))
        for message in self.found.got:
            self.assertIn(result.message_id, message.keys)
            self.assertIn("k", message.keys)

    def test_observers_do_not_hear(self) -> None:
        """The sends of traces are no sends of the user."""
        self.sim.run(producer(self.client).send(Message("T", b"hello")))
        self.until(lambda: self.found.got)
        self.assertEqual([event.topic for event in self.notes.events], ["T"])
        self.sim.pass_s(5)
        self.assertEqual(len(self.lines()), 1)

    def test_transactions(self) -> None:
        """A half message and its end are traced."""
        made = transaction_producer(self.client, "TG", lambda message: Outcome.COMMIT, ProducerSettings())
        result = self.sim.run(made.begin(Message("T", b"x", tags="A", keys=("k", "l"))))
        self.sim.run(made.end(result, Outcome.ROLLBACK))
        self.until(lambda: self.of("EndTransaction"))
        self.assertEqual(self.of("Pub")[0][11], "1")
        (end,) = self.of("EndTransaction")
        self.assertEqual(
            (end[3:8], end[11:]), (["TG", "T", result.message_id, "A", "k l"], ["ROLLBACK_MESSAGE", "false"])
        )

    def test_check_of_a_transaction(self) -> None:
        """An end that a broker had to ask for has tags and keys of the message, too."""
        made = transaction_producer(self.client, "TG", lambda message: Outcome.COMMIT, ProducerSettings())
        self.sim.run(made.begin(Message("T", b"x", tags="A", keys=("k",))))
        self.until(lambda: self.of("EndTransaction"), 300)
        (end,) = self.of("EndTransaction")
        self.assertEqual((end[6:8], end[11:]), (["A", "k"], ["COMMIT_MESSAGE", "true"]))

    def test_pull_consumers(self) -> None:
        """Messages that a pull consumer gave away are traced as consumed."""
        result = self.sim.run(producer(self.client).send(Message("T", b"hello", keys=("k",))))
        settings = PullSettings(consume_from=From.FIRST)
        puller = self.sim.run(pull_consumer(self.client, "Pull", {"T": "*"}, settings))
        self.assertEqual(len(self.sim.run(puller.getmany(timeout_s=30))), 1)
        self.sim.run(self.client.close())
        self.until(lambda: self.of("SubAfter"))
        (before,), (after,) = self.of("SubBefore"), self.of("SubAfter")
        self.assertEqual((before[3], before[5], before[7]), ("Pull", result.message_id, "k"))
        self.assertEqual((after[1], after[2], after[4], after[8]), (before[4], result.message_id, "true", "Pull"))

    def test_readers_of_traces(self) -> None:
        """A traced client that reads the traces does not trace that: there would be no end."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox, {"Traces": "*"}, group="Own").start())
        self.sim.run(producer(self.client).send(Message("T", b"hello")))
        self.until(lambda: inbox.got)
        self.sim.pass_s(10)
        self.assertEqual((len(inbox.got), [line[0] for line in self.lines()]), (1, ["Pub"]))

    def test_close_sends_what_waits(self) -> None:
        """A close does not lose the traces of the last moment."""
        self.sim.run(producer(self.client).send(Message("T", b"hello")))
        self.sim.run(self.client.close())
        self.until(lambda: self.found.got)
        self.assertEqual(len(self.of("Pub")), 1)

    def test_bound(self) -> None:
        """More lines than may wait are dropped and counted; one message of traces has a bound, too."""
        tracer = self.client.tracer
        assert isinstance(tracer, Tracer)
        for number in range(tracing.MOST_WAITING + 5):
            tracer.ended("G", "T", f"{number:032X}", None, 8, broker_addr="b:1", from_check=False)
        self.assertEqual(tracer.dropped, 5)
        self.until(lambda: len(self.lines()) == tracing.MOST_WAITING)
        self.assertEqual(max(len(m.keys) for m in self.found.got), tracing.MOST_LINES)

    def test_many_lines_do_not_wait(self) -> None:
        """As soon as they fill a message they are sent, so a fast client loses none."""
        tracer = self.client.tracer
        assert isinstance(tracer, Tracer)
        for number in range(5 * tracing.MOST_WAITING):
            tracer.ended("G", "T", f"{number:032X}", None, 8, broker_addr="b:1", from_check=False)
            if number % tracing.MOST_LINES == 0:
                self.sim.pass_s(0.01)
        self.assertEqual(tracer.dropped, 0)
        self.until(lambda: len(self.lines()) == 5 * tracing.MOST_WAITING)

    def test_lost_traces(self) -> None:
        """Traces that no broker takes are lost, and nothing else."""
        self.assertEqual(self.sim.run(producer(self.client).send(Message("T", b"hello"))).status, SendStatus.OK)
        self.sim.brokers["broker-a"].kill()
        self.sim.pass_s(10)
