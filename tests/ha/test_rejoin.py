"""An old master is made fit to follow the new one: what is compared, told, cut and kept."""

from __future__ import annotations

import contextlib
import io
import json
from argparse import Namespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.rejoin.__main__ import CannotRejoin, compare, main, rejoin
from rmq.ha.rejoin.divergence import StoredRecords, _last_true, find_divergence
from rmq.runtime.disk.files import DiskLocked
from rmq.store import layout
from rmq.store.check import check_store
from rmq.store.config import BrokerRole
from rmq.store.scan import LogFiles
from rmq.wire.record import decode_record
from tests.store.support import ROOT, Box, message

NEW = "/new"


def copy_tree(disk: Any, source: str, target: str) -> None:
    disk.make_dirs(target)
    for name in disk.list_dir(source):
        path, other = layout.join(source, name), layout.join(target, name)
        if disk.is_dir(path):
            copy_tree(disk, path, other)
        elif name != layout.LOCK_FILE:
            disk.copy(path, other)
    disk.sync_dir(target)


class Pair:
    """The stores of an old master and of its promoted slave, on one disk."""

    def __init__(self, common: int, old: int, new: int, *, end: str = "stop", seed: int = 1) -> None:
        self.box = Box(seed)
        self.box.open()
        self.box.put_many(common)
        self.box.stop()
        copy_tree(self.box.disk, ROOT, NEW)
        self.box.open()
        self.box.put_many(old, first=1000)
        self.old_end = self.store.end_offset
        getattr(self.box, end)()
        self.box.open(store_path_root_dir=NEW)
        self.box.put_many(new, first=5000)
        self.new_end = self.store.end_offset
        self.box.stop()
        self.box.node.start()

    @property
    def store(self) -> Any:
        assert self.box.store is not None
        return self.box.store

    def rejoin(self, **changes: Any) -> tuple[int, str]:
        """Run the command on this disk; return status and output."""
        values = {"store": ROOT, "master": NEW, "storePathCommitLog": None, "list": 20, "yes": False, "json": False}
        lines: list[str] = []
        return rejoin(self.box.disk, Namespace(**(values | changes)), lines.append), "\n".join(lines)

    def folder(self, root: str) -> str:
        return layout.commit_log_dir(root)


class DivergenceTests(SynchronousTestCase):
    def divergence(self, pair: Pair) -> Any:
        old, new = (LogFiles(pair.box.disk, pair.folder(root)) for root in (ROOT, NEW))
        self.addCleanup(old.close)
        self.addCleanup(new.close)
        return find_divergence(StoredRecords(old), StoredRecords(new))

    def test_the_place_is_found_wherever_it_is(self) -> None:
        """Any number of common, lost and new messages, over several files: what is told is exactly what was lost."""
        for common, old, new in ((1, 0, 0), (7, 1, 0), (7, 0, 9), (60, 3, 3), (90, 200, 5), (3, 250, 300)):
            pair = Pair(common, old, new)
            found = self.divergence(pair)
            self.assertEqual(found.count, old, (common, old, new))
            keys = [extra.keys for extra in found.extras()]
            self.assertEqual(keys, [f"k{number}" for number in range(1000, 1000 + old)])
            log = LogFiles(pair.box.disk, pair.folder(ROOT))
            raw = log.read_some(found.common_offset, found.common_size)
            log.close()
            self.assertIn(f"k{common - 1}\x02".encode(), bytes(decode_record(raw).properties))

    def test_no_common_record(self) -> None:
        """Stores that were never one have nothing in common."""
        found = self.divergence(Pair(0, 5, 5))
        self.assertEqual((found.common_offset, found.common_size, found.keep_offset, found.cut_bytes), (-1, 0, -1, 0))

    def test_an_empty_file_behind_the_end(self) -> None:
        """A store ends behind its last record, not where a file begins that was made ready and never used."""
        box = Box()
        box.open()
        end = box.put_many(20)[-1].next_offset
        box.stop()
        box.node.start()
        folder = layout.commit_log_dir(ROOT)
        box.disk.create_sparse(layout.join(folder, layout.file_name(16384)), 16384).close()
        self.assertEqual(StoredRecords(LogFiles(box.disk, folder)).end_offset, end)

    def test_few_records_are_asked_for(self) -> None:
        """Halving: of a hundred thousand records some dozens are compared, whatever the place."""
        for border in (0, 1, 17, 50_000, 99_999, 100_000):
            asked: list[int] = []

            def is_common(at: int, border: int = border, asked: list[int] = asked) -> bool:
                asked.append(at)
                return at < border

            self.assertEqual(_last_true(is_common, 0, 100_000), border - 1)
            # a running master sends each of them over the network, and usually one of the last records is common
            self.assertLess(len(asked), 40 if border < 99_999 else 4)
        self.assertEqual(_last_true(lambda at: True, 5, 5), 4)


class RejoinTests(SynchronousTestCase):
    def test_nothing_is_changed_without_yes(self) -> None:
        """Told are the common record, both ends and each message; every file stays as it was."""
        pair = Pair(20, 5, 8)
        before = self.files(pair)
        status, text = pair.rejoin()
        self.assertEqual(status, 1)
        for words in (
            f"ends at {pair.old_end}",
            f"new master's at {pair.new_end}",
            "5 messages",
            "keys k1003",
            "--yes",
        ):
            self.assertIn(words, text)
        self.assertEqual(self.files(pair), before)

    def files(self, pair: Pair) -> dict[str, bytes]:
        folder, disk = pair.folder(ROOT), pair.box.disk
        return {name: disk.read_whole(layout.join(folder, name)) for name in disk.list_dir(folder)}

    def test_what_is_cut_is_kept(self) -> None:
        """With --yes the log ends with the common record, the rest is in a file, and the store is sound as a slave."""
        for common, old, end in ((20, 5, "stop"), (20, 5, "kill"), (60, 300, "stop"), (3, 200, "crash")):
            pair = Pair(common, old, 40, end=end)
            before = self.files(pair)
            status, text = pair.rejoin(yes=True)
            self.assertEqual(status, 0, text)
            (kept,) = pair.box.disk.list_dir(layout.join(ROOT, layout.CUT_DIR))
            saved = pair.box.disk.read_whole(layout.join(ROOT, layout.CUT_DIR, kept))
            keep = int(kept)
            whole = b"".join(before[name] for name in sorted(before))
            self.assertEqual(saved, whole[keep:][: len(saved)])
            if end == "stop":
                self.assertEqual(keep + len(saved), pair.old_end)
            pair.box.kill()
            store = pair.box.open(store_path_root_dir=ROOT, broker_role=BrokerRole.SLAVE)
            self.assertEqual((store.end_offset, store.dispatched_offset), (keep, keep))
            self.assertEqual(sum(store.max_offset("Topic", queue) for queue in range(3)), common)
            pair.box.stop()
            errors = [f for f in check_store(pair.box.disk, ROOT, pair.box.config) if f.severity == "error"]
            self.assertEqual(errors, [])

    def test_power_failure_behind_the_cut(self) -> None:
        """After a power failure right behind the cut the start is a careful one, and the copy of the bytes exists."""
        for seed in range(1, 9):
            pair = Pair(20, 5, 8, seed=seed)
            self.assertEqual(pair.rejoin(yes=True)[0], 0)
            pair.box.crash()
            disk = pair.box.disk
            self.assertTrue(disk.exists(layout.abort_path(ROOT)), seed)
            self.assertFalse(disk.exists(layout.progress_path(ROOT)), seed)
            self.assertEqual(len(disk.list_dir(layout.join(ROOT, layout.CUT_DIR))), 1, seed)

    def test_a_dump_is_left_alone(self) -> None:
        """A full file may be linked in a dump: what is cut off it stays there."""
        pair = Pair(60, 300, 40)
        disk = pair.box.disk
        disk.make_dirs("/dump")
        names = disk.list_dir(pair.folder(ROOT))
        for name in names:
            disk.link(layout.join(pair.folder(ROOT), name), f"/dump/{name}")
        before = self.files(pair)
        self.assertEqual(pair.rejoin(yes=True)[0], 0)
        self.assertEqual({name: disk.read_whole(f"/dump/{name}") for name in names}, before)
        kept = self.files(pair)
        self.assertLess(len(kept), len(before))
        self.assertNotEqual(kept, {name: before[name] for name in kept})

    def test_a_time_that_no_calendar_has(self) -> None:
        """No CRC covers store times: nonsense there is told as it is, before and after the cut."""
        pair = Pair(20, 5, 8)
        path = layout.join(pair.folder(ROOT), layout.file_name(0))
        divergence = compare(pair.box.disk, pair.folder(ROOT), NEW)
        pair.box.disk.open(path).write_at(divergence.keep_offset + 56, (1 << 60).to_bytes(8, "big"))
        for yes in (False, True):
            self.assertIn(f"stored {1 << 60} ms", pair.rejoin(yes=yes)[1])

    def test_then_it_follows(self) -> None:
        """The new master's bytes from there on make both logs the same, queue for queue."""
        pair = Pair(40, 60, 90)
        pair.rejoin(yes=True)
        pair.box.kill()
        store = pair.box.open(store_path_root_dir=ROOT, broker_role=BrokerRole.SLAVE)
        new = LogFiles(pair.box.disk, pair.folder(NEW))
        offset = store.resume_offset
        while offset < pair.new_end:
            data = new.read_some(offset, 1000, pair.new_end)
            store.append_raw(offset, data)
            offset += len(data)
        new.close()
        self.assertEqual(store.end_offset, pair.new_end)
        self.assertEqual(sum(store.max_offset("Topic", queue) for queue in range(3)), 130)
        pair.box.stop()

    def test_twice(self) -> None:
        """A second run finds nothing to do; a second cut at the same place overwrites no file."""
        pair = Pair(20, 5, 8)
        self.assertEqual(pair.rejoin(yes=True)[0], 0)
        status, text = pair.rejoin()
        self.assertEqual(status, 0)
        self.assertIn("can follow the new master as it is", text)
        pair.box.kill()
        store = pair.box.open(store_path_root_dir=ROOT, broker_role=BrokerRole.ASYNC_MASTER)
        store.put(message(9999))
        pair.box.stop()
        pair.box.node.start()
        self.assertEqual(pair.rejoin(yes=True)[0], 0)
        first, second = pair.box.disk.list_dir(layout.join(ROOT, layout.CUT_DIR))
        self.assertEqual(second, f"{first}.1")

    def test_a_store_in_use_is_refused(self) -> None:
        """A broker that runs keeps its store to itself."""
        pair = Pair(20, 5, 8)
        pair.box.kill()
        pair.box.open(store_path_root_dir=ROOT)
        with self.assertRaises(DiskLocked):
            pair.rejoin(yes=True)

    def test_strangers_are_refused(self) -> None:
        """Without a common record nothing is cut, with or without --yes."""
        pair = Pair(0, 5, 5)
        before = self.files(pair)
        with self.assertRaisesRegex(CannotRejoin, "no record in common"):
            pair.rejoin(yes=True)
        self.assertEqual(self.files(pair), before)
        pair.box.disk.make_dirs("/empty/commitlog")
        pair.box.disk.create_sparse(f"/empty/commitlog/{0:020d}", 16384).close()
        with self.assertRaisesRegex(CannotRejoin, "the new master holds no records"):
            pair.rejoin(master="/empty", yes=True)
        with self.assertRaisesRegex(CannotRejoin, "neither a store"):
            pair.rejoin(master="/nowhere")
        with self.assertRaisesRegex(CannotRejoin, "no store"):
            pair.rejoin(store="/nowhere")
        # unmounted since it was looked at: "an empty slave needs nothing but its start" would be bad advice
        with self.assertRaisesRegex(CannotRejoin, "no store"):
            compare(pair.box.disk, "/nowhere", NEW)

    def test_json(self) -> None:
        """Programs get the same."""
        status, text = Pair(20, 5, 8).rejoin(json=True, list=2)
        found = json.loads(text)
        self.assertEqual((status, found["messages"], len(found["extra"])), (1, 5, 2))
        self.assertIsNone(found["saved"])

    def test_command_line(self) -> None:
        """What cannot be done is said in one line, with status 2."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(main(["/no/such/store", "--master", "/none/either", "--yes", "--json"]), 2)
        self.assertIn("/no/such/store", errors.getvalue())
        self.assertEqual(len(errors.getvalue().splitlines()), 1)
        for number in ("-1", "x"):
            with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
                main(["/no/such/store", "--master", "/none/either", "--list", number])
            self.assertIn(f"'{number}' is no number of messages", errors.getvalue())
