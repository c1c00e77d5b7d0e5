"""What a power failure leaves of an old master's last moments: told, kept and cut by `rmq.ha.rejoin`, all of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.rejoin.__main__ import compare
from rmq.ha.rejoin.divergence import StoredRecords, find_divergence
from rmq.runtime.disk.files import DiskError
from rmq.store import layout
from rmq.store.config import BrokerRole
from rmq.store.cut import save_and_cut, written_end
from rmq.store.messages import StoreError
from rmq.store.scan import STRICT, LogFiles, LogScanner
from rmq.wire.record import Flaw, Frame
from tests.ha.test_rejoin import NEW, Pair
from tests.store.support import ROOT, SMALL, message

FILE_BYTES: int = SMALL["mapped_file_size_commit_log"]
COMMON = 20
OLD = 30

Place = tuple[int, Frame]


def all_frames(log: LogFiles, start: int) -> list[Place]:
    """Return the intact records of a log from an offset to its end."""
    records = LogScanner(log, STRICT).records(start, log.end)
    return [(offset, found) for offset, found in records if isinstance(found, Frame)]


class DamagedPair(Pair):
    """A pair of stores whose bytes can be changed, and of which all records are known from before."""

    def __init__(self, common: int, old: int, new: int) -> None:
        super().__init__(common, old, new)
        log = LogFiles(self.box.disk, self.folder(ROOT))
        found = all_frames(log, 0)
        log.close()
        self.common, self.old = found[:common], found[common:]
        self.keep = self.old[0][0] if old else self.old_end
        if common:
            self.keep = self.common[-1][0] + self.common[-1][1].size

    def write(self, offset: int, data: bytes, root: str = ROOT) -> None:
        """Change bytes of a log, which may go on in the next file, and sync them."""
        while data:
            start = offset - offset % FILE_BYTES
            piece, data = data[: start + FILE_BYTES - offset], data[start + FILE_BYTES - offset :]
            file = self.box.disk.open(layout.join(self.folder(root), layout.file_name(start)))
            file.write_at(offset - start, piece)
            file.sync_now()
            file.close()
            offset += len(piece)

    def content(self, root: str = ROOT) -> bytes:
        """All files of a log, one behind the other."""
        folder = self.folder(root)
        return b"".join(self.box.disk.read_whole(layout.join(folder, name)) for name in self.box.disk.list_dir(folder))

    def saved(self) -> list[bytes]:
        folder = layout.join(ROOT, layout.CUT_DIR)
        return [self.box.disk.read_whole(layout.join(folder, name)) for name in self.box.disk.list_dir(folder)]

    def told(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        """Run the command; return its status and what it tells programs."""
        status, text = self.rejoin(json=True, list=1000, **changes)
        return status, json.loads(text)

    def follow(self) -> bytes:
        """Start the old master as a slave and send it the new one's log; return its bytes up to the new one's end."""
        self.box.kill()
        store = self.box.open(store_path_root_dir=ROOT, broker_role=BrokerRole.SLAVE)
        new = LogFiles(self.box.disk, self.folder(NEW))
        offset = store.resume_offset
        while data := new.read_some(offset, 1000, self.new_end):
            store.append_raw(offset, data)
            offset += len(data)
        new.close()
        assert store.end_offset == self.new_end, (store.end_offset, self.new_end)
        self.box.stop()
        return self.content()[: self.new_end]


def wrong_body(pair: DamagedPair, at: Place) -> None:
    pair.write(at[0] + 8, b"\xff\xff")


def lost(pair: DamagedPair, at: Place) -> None:
    pair.write(at[0], bytes(at[1].size))


def lost_end(pair: DamagedPair, at: Place) -> None:
    pair.write(at[0] + at[1].size // 2, bytes(at[1].size - at[1].size // 2))


def lost_properties(pair: DamagedPair, at: Place) -> None:
    """The record parses and its CRC holds, for that covers the body alone."""
    pair.write(at[0] + at[1].size - len(at[1].properties), bytes(len(at[1].properties)))


def wrong_size(pair: DamagedPair, at: Place) -> None:
    pair.write(at[0], (0x7FFFFFFF).to_bytes(4, "big"))


def garbage(pair: DamagedPair, at: Place) -> None:
    pair.write(at[0], b"garbage " * (at[1].size // 8))


KINDS: dict[Callable[[DamagedPair, Place], None], Flaw] = {
    wrong_body: Flaw.BODY_CRC,
    lost: Flaw.EMPTY,
    lost_end: Flaw.LENGTHS,
    lost_properties: Flaw.TORN,
    wrong_size: Flaw.SIZE,
    garbage: Flaw.MAGIC,
}


class DamageTests(SynchronousTestCase):
    def check_cut(self, pair: DamagedPair, intact: list[Place]) -> dict[str, Any]:
        """Cut; told must be exactly the intact messages, saved all that was there, and the store must follow."""
        before = pair.content()
        status, found = pair.told()
        self.assertEqual(status, 1)
        self.assertEqual(pair.content(), before)
        status, found = pair.told(yes=True)
        self.assertEqual(status, 0)
        self.assertEqual(found["keepOffset"], pair.keep)
        self.assertEqual([extra["phy_offset"] for extra in found["extra"]], [offset for offset, _ in intact])
        self.assertEqual(found["messages"], len(intact))
        (saved,) = pair.saved()
        self.assertEqual(len(saved), found["bytes"])
        self.assertEqual(saved + bytes(len(before) - pair.keep - len(saved)), before[pair.keep :])
        after = pair.content()
        self.assertEqual(after, before[: pair.keep] + bytes(len(after) - pair.keep))
        self.assertEqual(pair.told()[0], 0)
        self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end])
        return found

    def test_damage_hides_nothing(self) -> None:
        """Behind a damaged message of whatever kind all others are told, and all bytes are kept before they go."""
        for hit, flaw in KINDS.items():
            for at in (0, 3, OLD - 1):
                pair = DamagedPair(COMMON, OLD, 8)
                hit(pair, pair.old[at])
                found = self.check_cut(pair, pair.old[:at] + pair.old[at + 1 :])
                if hit is lost and at == OLD - 1:
                    self.assertEqual(found["damaged"], [], "zeros behind the end are none")
                    continue
                (damage,) = found["damaged"]
                offset, frame = pair.old[at]
                self.assertEqual((damage["from"], damage["why"]), (offset, flaw.value))
                if at < OLD - 1:
                    self.assertEqual(damage["to"], offset + frame.size)
                    self.assertEqual(found["endOffset"], pair.old_end)

    def test_damage_over_files(self) -> None:
        """Nor do a lost end of a file with its BLANK, a whole lost file, or lost pages hide what is in later files."""
        for start, size in ((FILE_BYTES - 1000, 1000), (FILE_BYTES, FILE_BYTES), (FILE_BYTES - 8192, 4096)):
            pair = DamagedPair(COMMON, 300, 8)
            pair.write(start, bytes(size))
            intact = [
                (offset, frame) for offset, frame in pair.old if offset + frame.size <= start or offset >= start + size
            ]
            self.assertLess(len(intact), len(pair.old))
            found = self.check_cut(pair, intact)
            self.assertEqual(found["endOffset"], pair.old_end)
            self.assertTrue(found["damaged"])

    def test_any_damage(self) -> None:
        """Zeros and garbage at any places: what was not touched is told, and every byte is kept."""
        for seed in range(25):
            rng = random.Random(seed)
            pair = DamagedPair(rng.randrange(1, 120), rng.randrange(1, 250), rng.randrange(50))
            spans = []
            for _ in range(rng.randrange(1, 6)):
                start = rng.randrange(pair.keep, pair.old_end)
                size = min(rng.choice((1, 50, 512, 5000)), pair.old_end - start)
                pair.write(start, bytes(size) if rng.random() < 0.5 else rng.randbytes(size))
                spans.append((start, start + size))
            before = pair.content()
            status, found = pair.told(yes=True)
            self.assertEqual((status, found["keepOffset"]), (0, pair.keep), seed)
            untouched = {
                offset
                for offset, frame in pair.old
                if all(end <= offset or offset + frame.size <= start for start, end in spans)
            }
            told = {extra["phy_offset"] for extra in found["extra"]}
            self.assertEqual(untouched - told, set(), seed)
            # A byte in a message that nothing covers may be another now: the message is told all the same.
            self.assertEqual(told - {offset for offset, _ in pair.old}, set(), seed)
            (saved,) = pair.saved()
            self.assertEqual(saved, before[pair.keep :][: len(saved)], seed)
            self.assertFalse(any(before[pair.keep + len(saved) :]), seed)
            self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end], seed)

    def test_damage_is_said(self) -> None:
        """An operator reads where damage is, and whether intact messages lie behind it."""
        pair = DamagedPair(COMMON, OLD, 8)
        (first, frame), (last, _) = pair.old[3], pair.old[-1]
        wrong_body(pair, pair.old[3])
        wrong_body(pair, pair.old[-1])
        wrong_body(pair, pair.common[5])
        _, text = pair.rejoin()
        self.assertIn(f"{OLD - 2} messages ({pair.old_end - pair.keep} bytes) are in this store only", text)
        self.assertIn(f"damaged from {first} to {first + frame.size} ({Flaw.BODY_CRC.value})", text)
        self.assertRegex(text, f"damaged from {first} .* intact records follow it")
        self.assertRegex(text, f"damaged from {last} to {pair.old_end} .* no intact record follows it")
        self.assertRegex(text, f"damaged from {pair.common[5][0]} .* in the common part")
        self.assertIn("--list 2 shows all", pair.rejoin(list=1)[1])

    def test_damage_in_the_common_part(self) -> None:
        """Messages behind damage that the new master has are common, be the damage here or in its directory."""
        old = 40  # so many that the search for the place meets damaged records, the first one among them
        for root in (ROOT, NEW):
            for hit in KINDS:
                for at in (0, 5, 14, 18):
                    pair = DamagedPair(COMMON, old, 8)
                    before = pair.content()
                    hit(pair, pair.common[at])
                    damaged = pair.content()
                    if root == NEW:
                        pair.write(0, before)
                        pair.write(0, damaged[: pair.keep], NEW)
                        self.assertNotEqual(pair.content(NEW)[: pair.keep], before[: pair.keep])
                    status, found = pair.told()
                    self.assertEqual((status, found["keepOffset"], found["messages"]), (1, pair.keep, old))
                    self.assertEqual((found["endOffset"], found["masterEndOffset"]), (pair.old_end, pair.new_end))
                    self.assertEqual([d["from"] for d in found["damaged"]], [pair.common[at][0]] * (root == ROOT))

    def test_damage_in_the_common_part_heals(self) -> None:
        """With damage in what both have, too, the store then follows and ends with the master's bytes."""
        for hit in KINDS:
            pair = DamagedPair(COMMON, OLD, 8)
            hit(pair, pair.common[5])
            self.assertEqual(pair.told(yes=True)[0], 0)
            self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end])

    def test_a_last_file_that_was_cut_short(self) -> None:
        """A last file without its end is compared as far as it goes."""
        pair = DamagedPair(COMMON, OLD, 8)
        for size in (pair.old_end, pair.old_end - 10):
            path = layout.join(pair.folder(ROOT), layout.file_name(FILE_BYTES))
            if not pair.box.disk.exists(path):
                # A whole file in front of it tells how long files are.
                pair = DamagedPair(COMMON, 100, 8)
                size += pair.old_end - size
            file = pair.box.disk.open(path)
            file.truncate(size - FILE_BYTES)
            file.sync_now()
            file.close()
            self.check_short(pair, size)

    def check_short(self, pair: DamagedPair, size: int) -> None:
        status, found = pair.told(yes=True)
        intact = [offset for offset, frame in pair.old if offset + frame.size <= size]
        self.assertEqual((status, found["messages"]), (0, len(intact)))
        (saved,) = pair.saved()
        self.assertEqual(len(saved), size - pair.keep)

    def test_a_message_that_ends_with_zeros(self) -> None:
        """A last message whose own last bytes are zeros is kept with them."""
        pair = DamagedPair(COMMON, 1, 8)
        offset, frame = pair.old[0]
        record = pair.content()[offset : offset + frame.size]
        # Without properties a record ends with their length, 0.
        size = frame.size - len(frame.properties)
        pair.write(offset, size.to_bytes(4, "big") + record[4 : size - 2] + bytes(frame.size - size + 2))
        self.assertEqual(pair.told()[1]["messages"], 1)
        self.assertEqual(pair.told(yes=True)[0], 0)
        self.assertEqual(list(map(len, pair.saved())), [size])

    def test_what_an_older_life_left_is_kept(self) -> None:
        """Whole messages that lie behind zeros, older than those in front, are told and kept as well, for they go."""
        pair = DamagedPair(COMMON, OLD, 8)
        offset, frame = pair.old[20]
        record = bytearray(pair.content()[offset : offset + frame.size])
        record[56:64] = (1).to_bytes(8, "big")
        pair.write(pair.old[5][0], bytes(pair.old_end - pair.old[5][0]))
        pair.write(offset, bytes(record))
        found = self.check_cut(pair, [*pair.old[:5], pair.old[20]])
        self.assertEqual(found["endOffset"], pair.old[5][0])


class KeptFirstTests(SynchronousTestCase):
    """Whatever goes wrong while the bytes are saved, none of them is cleared."""

    def refused(self, pair: DamagedPair, error: type[Exception], words: str) -> None:
        before = pair.content()
        with self.assertRaisesRegex(error, words):
            pair.rejoin(yes=True)
        self.assertEqual(pair.content(), before)
        self.assertEqual(pair.saved(), [])
        pair.box.disk.recover()
        del pair.box.disk.create_sparse
        self.assertEqual(pair.rejoin(yes=True)[0], 0)
        self.assertEqual(len(pair.saved()[0]), pair.old_end - pair.keep)

    def losing(self, pair: DamagedPair, lose: Callable[[bytes], bytes]) -> None:
        """Let the disk write something else into new files than it was told."""
        create = pair.box.disk.create_sparse

        def create_sparse(path: str, size: int) -> Any:
            file = create(path, size)
            write = file.write_at
            if layout.CUT_DIR in path:
                file.write_at = lambda offset, data: write(offset, lose(data))
            return file

        pair.box.disk.create_sparse = create_sparse

    def test_a_copy_that_is_too_short(self) -> None:
        """A copy that lacks its last byte stops everything."""
        pair = DamagedPair(COMMON, OLD, 8)
        self.losing(pair, lambda data: data[:-1])
        self.refused(pair, StoreError, "differs from the log at offset .*; nothing was truncated")

    def test_a_copy_that_is_not_equal(self) -> None:
        """So does one with other bytes."""
        pair = DamagedPair(COMMON, OLD, 8)
        self.losing(pair, lambda data: data[:-1] + b"?")
        self.refused(pair, StoreError, "differs from the log at offset")

    def test_a_copy_that_cannot_be_synced(self) -> None:
        """So does one that may not be on disk."""
        pair = DamagedPair(COMMON, OLD, 8)
        self.losing(pair, lambda data: data)
        pair.box.disk.sync_fails = lambda path: f"/{layout.CUT_DIR}/" in path
        self.refused(pair, DiskError, "Input/output error")

    def test_what_was_not_understood_is_kept(self) -> None:
        """Saved is what will be cleared, even if the comparison had ended too early."""
        pair = DamagedPair(COMMON, 300, 8)
        before = pair.content()
        divergence = attrs.evolve(compare(pair.box.disk, pair.folder(ROOT), NEW), cut_end=pair.keep + 1)
        save_and_cut(pair.box.disk, ROOT, pair.folder(ROOT), divergence.keep_offset, divergence.cut_end)
        self.assertEqual(pair.saved(), [before[pair.keep : pair.old_end]])

    def test_a_file_is_missing(self) -> None:
        """A log with a hole cannot be saved whole, so nothing of it is cut."""
        pair = DamagedPair(COMMON, 300, 8)
        pair.box.disk.delete(layout.join(pair.folder(ROOT), layout.file_name(FILE_BYTES)))
        before = pair.content()
        with self.assertRaisesRegex(StoreError, f"at {FILE_BYTES} are missing"):
            pair.rejoin(yes=True)
        self.assertEqual((pair.content(), pair.saved()), (before, []))


class Broker:
    """The records of a store as a running broker gives them: one by one, and nothing but records."""

    def __init__(self, records: StoredRecords) -> None:
        self._records = records
        self.min_offset, self.end_offset = records.min_offset, records.end_offset

    def record_at(self, phy_offset: int, size: int) -> bytes | None:
        return self._records.record_at(phy_offset, size)


class RolledPair(DamagedPair):
    """The old master has closed a file and lost the record for which it did."""

    def __init__(self, *, new_body: int | None, new: int) -> None:
        super().__init__(60, 0, 0)
        box = self.box
        box.kill()
        room = FILE_BYTES - self.keep
        for root, size, first in ((ROOT, room, 1000), (NEW, new_body, 5000)):
            store = box.open(store_path_root_dir=root, broker_role=BrokerRole.ASYNC_MASTER)
            if size is not None:
                box.put(message(first, body=b"x" * size))
            box.put_many(new if root == NEW else 0, first + 1)
            self.new_end = store.end_offset
            box.stop()
        box.node.start()
        self.write(FILE_BYTES, bytes(FILE_BYTES))


class BlankTests(SynchronousTestCase):
    def asked(self, pair: DamagedPair) -> tuple[int, int]:
        """Return how many bytes are to be cut, by the new master's directory and by the running broker."""
        old, new = (LogFiles(pair.box.disk, pair.folder(root)) for root in (ROOT, NEW))
        stored = StoredRecords(new)
        found = [find_divergence(StoredRecords(old), other).cut_bytes for other in (stored, Broker(stored))]
        old.close()
        new.close()
        return found[0], found[1]

    def test_a_blank_is_cut(self) -> None:
        """A BLANK where the new master has a record, or nothing yet, is told, kept and cut; then the store follows."""
        for new in (8, 0):
            pair = RolledPair(new_body=None, new=new)
            self.assertEqual(self.asked(pair), (8, 8))
            before = pair.content()
            status, text = pair.rejoin()
            self.assertEqual(status, 1)
            self.assertRegex(text, "no whole message, but 8 bytes .* BLANK")
            self.assertNotIn("nothing has to be cut", text)
            self.assertEqual(pair.content(), before)
            status, found = pair.told(yes=True)
            self.assertEqual((status, found["messages"], found["bytes"]), (0, 0, 8))
            self.assertEqual(pair.saved(), [before[pair.keep : pair.keep + 8]])
            self.assertIn("nothing has to be cut", pair.rejoin()[1])
            self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end])

    def test_a_blank_that_both_have(self) -> None:
        """When the new master's directory has the same BLANK nothing has to be cut, and the store follows as it is."""
        pair = RolledPair(new_body=8000, new=3)
        # A broker does not give BLANKs; a slave whose BLANK was cut is sent it again.
        self.assertEqual(self.asked(pair), (0, 8))
        self.assertEqual(pair.rejoin()[0], 0)
        self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end])

    def test_half_a_record(self) -> None:
        """Half a record that the new master has whole needs no cut; half of another one does, and may be told to go."""
        pair = DamagedPair(COMMON, 0, 8)
        (offset, frame), *_ = self.records(pair)
        whole = pair.content(NEW)[offset : offset + frame.size]
        pair.write(offset, whole[:40] + bytes(20) + whole[60:100])
        self.assertEqual(self.asked(pair), (0, 0))
        self.assertIn("nothing has to be cut", pair.rejoin()[1])
        pair.write(offset + 90, b"other")
        self.assertEqual(self.asked(pair), (100, 100))
        status, text = pair.rejoin()
        self.assertEqual(status, 1)
        self.assertRegex(text, "no whole message, but 100 bytes .* damaged record")
        self.assertEqual(pair.told(yes=True)[0], 0)
        self.assertEqual(list(map(len, pair.saved())), [100])
        self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end])

    def test_an_intact_record_is_no_half(self) -> None:
        """A whole message that differs from the new master's in mere zeros is another one: recovery would keep it."""
        pair = DamagedPair(COMMON, 0, 8)
        offset, frame = self.records(pair)[0]
        record = pair.content(NEW)[offset : offset + frame.size]
        pair.write(offset, record[:40] + bytes(8) + record[48:])
        self.assertEqual(self.asked(pair), (frame.size, frame.size))
        self.assertEqual(pair.told(yes=True)[1]["messages"], 1)
        self.assertEqual(pair.follow(), pair.content(NEW)[: pair.new_end])

    def test_half_a_record_and_more_in_the_next_file(self) -> None:
        """That the new master has a record whole says nothing about other bytes in later files."""
        pair = DamagedPair(COMMON, 100, 8)
        offset = self.records(pair)[0][0]
        pair.write(offset, bytes(pair.old_end - offset))
        pair.write(offset, pair.content(NEW)[offset : offset + 100])
        self.assertEqual(self.asked(pair), (0, 0))
        pair.write(FILE_BYTES + 100, b"other")
        size = FILE_BYTES + 105 - pair.keep
        self.assertEqual(self.asked(pair), (size, size))

    def records(self, pair: DamagedPair) -> list[Place]:
        """Return what only the new master has."""
        log = LogFiles(pair.box.disk, pair.folder(NEW))
        self.addCleanup(log.close)
        self.assertEqual(written_end(log), pair.new_end)
        return all_frames(log, pair.keep)
