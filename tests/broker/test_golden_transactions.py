"""What Apache's brokers and clients write in transactions, and what ours writes in their place."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.transactions import committed_message, op_message, put_back
from rmq.broker.waitinglanes import EndLane
from rmq.store.messages import Message
from rmq.wire.command import RemotingCommand
from rmq.wire.record import (
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Flaw,
    Record,
    decode_offset_msg_id,
    decode_properties,
    decode_record,
    read_frame,
)
from tests.broker.harness import OneBroker
from tests.broker.test_golden_clients import command_of, is_request, rows
from tests.goldens import unpack_store

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
MAX_DELAY_LEVEL = 18


def fields(message: Message | Record) -> tuple[object, ...]:
    """What a message is, wherever it lies; properties without their order, which is that of Java's hashes."""
    text = message.properties if isinstance(message, Message) else message.properties.decode()
    return (
        message.topic,
        message.queue_id,
        message.body,
        message.sys_flag,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        decode_properties(text),
    )


class StoreTests(SynchronousTestCase):
    """The log of a 4.9.7 broker with transactions that were committed, rolled back, and checked."""

    def setUp(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            unpack_store("mixed-4.9.7", Path(folder))
            files = {int(path.name): path.read_bytes() for path in Path(folder, "store", "commitlog").iterdir()}
        self.by_offset: dict[int, Record] = {}
        for start, data in sorted(files.items()):
            at = 0
            # A file ends with a BLANK or with zeros.
            while read_frame(data, at, len(data), phy_offset=start + at, check_crc=True) not in (
                Flaw.BLANK,
                Flaw.EMPTY,
            ):
                record = self.by_offset[start + at] = decode_record(data, at)
                at += record.size
        self.halves = [record for record in self.by_offset.values() if record.topic == HALF]

    def test_commits(self) -> None:
        """A committed message has all that Apache gives it, and nothing else."""
        commits = [
            record for record in self.by_offset.values() if record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        ]
        self.assertGreaterEqual(len(commits), 3)
        for commit in commits:
            half = self.by_offset[commit.prepared_transaction_offset]
            made = committed_message(half, MAX_DELAY_LEVEL)
            assert made is not None
            self.assertEqual(fields(made), fields(commit))
            self.assertEqual(made.flag, commit.flag)

    def test_op_messages(self) -> None:
        """An op message is Apache's to the byte."""
        ops = [record for record in self.by_offset.values() if record.topic == OP]
        self.assertGreaterEqual(len(ops), 5)
        for op in ops:
            half = next(half for half in self.halves if half.queue_offset == int(op.body))
            made = op_message(half, op.store_host, op.born_timestamp)
            self.assertEqual((fields(made), made.properties.encode()), (fields(op), op.properties))

    def test_copies(self) -> None:
        """So is a half message that is stored again for a check."""
        copies = [half for half in self.halves if PROPERTY_TRANSACTION_CHECK_TIMES in half.property_map]
        self.assertGreaterEqual(len(copies), 2)
        for copy in copies:
            key = copy.property_map[PROPERTY_UNIQ_KEY]
            original = next(half for half in self.halves if half.property_map[PROPERTY_UNIQ_KEY] == key)
            self.assertNotEqual(original.queue_offset, copy.queue_offset)
            made = put_back(original, {**original.property_map, PROPERTY_TRANSACTION_CHECK_TIMES: "1"})
            self.assertEqual((fields(made), made.born_timestamp), (fields(copy), copy.born_timestamp))


class ConversationTests(SynchronousTestCase):
    """
    What Java's TransactionMQProducer said to a 4.9.7 broker, said to ours.

    Its messages 0 to 4: commit, rollback, unknown (then commit), unknown (then rollback), commit. The offsets of its
    END_TRANSACTION are those that its broker had given it, so ours are put in their place.
    """

    def converse(self, name: str) -> None:
        values = {"transactionTimeOut": "1500", "transactionCheckInterval": "2500", "listenPort": "18911"}
        one = OneBroker(values)
        taken: list[int] = []
        end = EndLane.__call__

        def counting(lane: EndLane, *args: Any) -> tuple[int, int]:
            stop, count = end(lane, *args)
            taken.append(count)
            return stop, count

        self.patch(EndLane, "__call__", counting)
        recorded = rows(name)
        theirs = {row["opaque"]: command_of(row) for row in recorded if row["dir"] == "s2c" and row.get("answers")}
        asked = {
            check.ext_fields["msgId"]: check
            for row in recorded
            if row["dir"] == "s2c" and row["code"] == 39
            for check in [command_of(row)]
        }
        client = one.connect(18911)
        places: dict[str, dict[str, str]] = {}
        for row in filter(is_request, recorded):
            command = command_of(row)
            key = command.ext_fields.get("msgId", "")
            if command.code == 37:
                if command.ext_fields["fromTransactionCheck"] == "true" and not client.requests(39):
                    one.world.run_until(lambda: len(client.requests(39)) == len(asked), 10, "the checks")
                    self.compare(client.requests(39), asked)
                    for check in client.requests(39):
                        keys = ("tranStateTableOffset", "commitLogOffset")
                        places[check.ext_fields["msgId"]] = {each: check.ext_fields[each] for each in keys}
                client.send(
                    RemotingCommand(
                        command.code,
                        flag=command.flag,
                        version=command.version,
                        language=command.language,
                        ext_fields={**command.ext_fields, **places[key]},
                    )
                )
                one.world.run_for(0.1)
                continue
            before = len(client.received)
            assert client.transport is not None
            client.transport.write(bytes.fromhex(row["hex"]))
            one.world.run_until(lambda seen=before: len(client.received) > seen, 10, row["name"])  # type: ignore[misc]
            answer = client.received[before]
            expected = theirs[row["opaque"]]
            self.assertEqual((answer.code, set(answer.ext_fields)), (expected.code, set(expected.ext_fields)))
            if command.code == 310:
                _, phy_offset = decode_offset_msg_id(answer.ext_fields["msgId"])
                places[decode_properties(command.ext_fields["i"])[PROPERTY_UNIQ_KEY]] = {
                    "tranStateTableOffset": answer.ext_fields["queueOffset"],
                    "commitLogOffset": str(phy_offset),
                }
        store = one.service.store
        topics = {topic for topic, _ in store.queues()} - {HALF, OP}
        (topic,) = topics
        bodies = sorted(
            decode_record(data).body
            for kind, queue_id in store.queues()
            if kind == topic
            for data in store.get(topic, queue_id, 0, 32).messages
        )
        self.assertEqual(bodies, [b"transaction 0", b"transaction 2", b"transaction 4"])
        # not those that are unknown, nor the first to a queue
        self.assertEqual(taken, [0, 1, 0, 0, 1, 1, 0] if EndLane.code in one.service.responders.chunk_lanes else [])
        one.end()

    def compare(self, ours: list[RemotingCommand], theirs: dict[str, RemotingCommand]) -> None:
        """The questions are Apache's: the same fields, in the body the same message."""
        self.assertEqual({check.ext_fields["msgId"] for check in ours}, set(theirs))
        for check in ours:
            expected = theirs[check.ext_fields["msgId"]]
            self.assertEqual((check.flag, set(check.ext_fields)), (expected.flag, set(expected.ext_fields)))
            mine, other = decode_record(check.body or b""), decode_record(expected.body or b"")
            self.assertEqual(str(mine.queue_offset), check.ext_fields["tranStateTableOffset"])
            self.assertEqual(
                (mine.topic, mine.queue_id, mine.body, mine.sys_flag, mine.born_timestamp, mine.property_map),
                (other.topic, other.queue_id, other.body, other.sys_flag, other.born_timestamp, other.property_map),
            )

    def test_4_9_7(self) -> None:
        """A 4.9.7 client gets what it expects."""
        self.converse("client-4.9.7_transactions.jsonl")

    def test_5_3_3(self) -> None:
        """So does a 5.3.3 client."""
        self.converse("client-5.3.3_transactions.jsonl")
