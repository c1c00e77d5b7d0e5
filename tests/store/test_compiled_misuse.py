"""What no caller does, yet a later one might: the compiled modules refuse it and read no memory that is not theirs."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.indexfile import IndexHeader
from rmq.wire.command import RemotingCommand, encode_command
from rmq.wire.compiled import load
from tests.broker.harness import send_ext
from tests.needs import need_compiled

AROUND = ("a", "b", "c", "d", "e")
HOST = (b"\x7f\0\0\1", 10911)
HALF = encode_command(RemotingCommand(310, ext_fields=send_ext(props="TRAN_MSG\x01true", f="4"), body=b"body"))


def queue() -> Any:
    return SimpleNamespace(next=0, end=0)


class MisuseTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record", "rmq.store._pick")
        module: Any = load("rmq.store._record")
        self.module = module
        self.batch = self.module.SendBatch(310, 4096, "C", AROUND, False, False)
        self.known = {b"T": self.module.SendTopic("T", [queue()])}

    def test_half_messages_without_a_queue(self) -> None:
        self.batch.park(self.module.SendTopic("H", []), None, ())
        self.assertEqual(self.batch.parse(HALF, 0, self.known, HOST), 0)
        self.batch.park(self.module.SendTopic("H", [queue()]), None, ())
        self.assertEqual(self.batch.parse(HALF, 0, self.known, HOST), 1)

    def test_other_topics_between_reading_and_writing(self) -> None:
        """What was read is forgotten with them."""
        self.batch.park(self.module.SendTopic("H", [queue()]), None, ())
        self.batch.parse(HALF, 0, self.known, HOST)
        self.batch.park(None, None, ())
        self.assertIsNone(self.batch.encode(0, 1 << 20, 1, HOST))

    def test_places_before_the_data(self) -> None:
        module = self.module
        self.assertEqual(self.batch.parse(HALF, -1000, self.known, HOST), 0)
        self.assertIsNone(module.read_frame(HALF, -1000, 310))
        self.assertIsNone(module.walk_records(bytes(200), -1000, 0, False, False, None))
        self.assertIsNone(module.restore_records(bytes(200), -1000, 1, 0, 1 << 20, 1, None))
        pick: Any = load("rmq.store._pick")
        self.assertIsNone(pick.split(HALF, -1000, ()))

    def test_moves(self) -> None:
        moves = self.module.MoveBatch("H", b"a\x01b", (b"a", b"b"), HOST, lambda queues: 0, False, False)
        moves.drop()  # there is none
        self.assertEqual(moves.count, 0)
        schedule = self.module.SendTopic("S", [queue()])
        with self.assertRaises(TypeError):
            moves.back(1, bytes(200), 0, 16, 1, None, (1,), b"r", 1)
        with self.assertRaises(TypeError):
            moves.back(1, bytes(200), 0, 16, 1, schedule, (1,), None, 1)

    def test_index_files_that_are_not_loaded(self) -> None:
        for table, first in ((None, 0), (array("i", bytes(60)), 0), (array("i", bytes(64)), 2)):
            file = SimpleNamespace(
                header=IndexHeader(index_count=1),
                table=table,
                buffered=bytearray(),
                dirty_pages=set(),
                slots=16,
                entries=100,
            )
            with self.assertRaises(ValueError):
                self.module.add_entries(file, bytes(20), first)
            self.assertEqual(file.buffered, b"")
