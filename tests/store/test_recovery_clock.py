"""Damage where the clock was set back, and remains of a former life: what counts, what does not, what is saved."""

from __future__ import annotations

from typing import Any

from rmq.runtime.disk.files import DiskError
from rmq.store import cut, layout, recovery
from rmq.store.messages import PutResult, StoreError
from rmq.store.scan import CHECK, Damage, LogScanner, Search, behind_damage
from rmq.wire import record
from tests.store.support import Box, log_events, message
from tests.store.test_recovery import RecoveryCase, served

SEGMENT_BYTES = 16384


class ClockCase(RecoveryCase):
    """Twenty messages, then the clock is set back by an hour."""

    def setUp(self) -> None:
        super().setUp()
        self.early = self.box.put_many(20)
        self.box.run(2)
        self.box.node.step_clock(-3600)

    def end_with(self, mark: bytes | None) -> None:
        """Kill the broker; the next start finds this mark, b"" being one of Apache's. None leaves ours."""
        self.box.kill()
        if mark is not None:
            self.box.disk.write_atomic(self.path("abort"), mark)

    def overwrite(self, phy_offset: int, data: bytes) -> None:
        start = phy_offset - phy_offset % SEGMENT_BYTES
        self.write(self.path("commitlog", layout.file_name(start)), phy_offset - start, data)

    def damage(self, one: PutResult) -> None:
        """Change one bit of the first byte of the body."""
        start = one.phy_offset - one.phy_offset % SEGMENT_BYTES
        path = self.path("commitlog", layout.file_name(start))
        self.box.disk.flip_bit(path, one.phy_offset - start + 90)

    def log_bytes(self) -> bytes:
        """Return all files of the log."""
        folder = self.path("commitlog")
        return b"".join(self.box.disk.read_whole(f"{folder}/{name}") for name in self.box.disk.list_dir(folder))

    def open(self) -> list[dict[str, Any]]:
        """Open the store; return what it logged."""
        events = log_events(self)
        self.store = self.box.open()
        return events

    def saved(self) -> list[str]:
        names: list[str] = self.box.disk.list_dir(self.path("cut"))
        return names

    def assert_kept(self, late: list[PutResult], damaged: PutResult) -> None:
        """Only the damaged message is missing, and nothing was cut."""
        self.assertEqual(self.store.end_offset, late[-1].next_offset)
        self.assertEqual(self.store.damage, [(damaged.phy_offset, damaged.next_offset)])
        there = {offset for offsets in served(self.store).values() for offset in offsets}
        put = {one.phy_offset for one in (*self.early, *late)}
        self.assertEqual(put - there, {damaged.phy_offset})
        self.assertEqual(self.saved(), [])

    def assert_cut(self, events: list[dict[str, Any]], end: int, before: bytes, *, records: int) -> None:
        """The log ends there; what was behind is in `cut`, and the log line tells how much that is."""
        self.assertEqual(self.store.end_offset, end)
        self.assertEqual(self.saved(), [layout.file_name(end)])
        path = self.path("cut", layout.file_name(end))
        saved = self.box.disk.read_whole(path)
        self.assertEqual(saved, before[end : end + len(saved)])
        self.assertFalse(any(before[end + len(saved) :]))
        (event,) = [event for event in events if "saved in" in event["log_format"]]
        self.assertEqual(
            (event["phy_offset"], event["size_bytes"], event["records"], event["path"]),
            (end, len(saved), records, path),
        )


class KillTests(ClockCase):
    """After a kill of our broker nothing behind damage is a remnant, however old it looks."""

    def test_damage_just_behind_the_step(self) -> None:
        """One bad bit costs one message, not the two hundred that were stored since the clock was set back."""
        late = self.box.put_many(200, 100)
        self.end_with(None)
        self.damage(late[0])
        self.open()
        self.assert_kept(late, late[0])
        (result,) = self.box.put(message(0))
        self.assertEqual(result.phy_offset, late[-1].next_offset)
        self.box.stop()

    def test_a_single_record(self) -> None:
        """Even the very last record counts."""
        late = self.box.put_many(2, 100)
        self.end_with(None)
        self.damage(late[0])
        self.open()
        self.assert_kept(late, late[0])

    def test_every_byte(self) -> None:
        """Whatever byte of the record behind the step is wrong, nothing is cut."""
        late = self.box.put_many(4, 100)
        whole = self.store.message_at(late[0].phy_offset)
        assert whole is not None
        self.box.kill()
        for at in range(late[0].size):
            self.overwrite(late[0].phy_offset, whole[:at] + bytes((whole[at] ^ 0x55,)) + whole[at + 1 :])
            for name in ("checkpoint", "checkpoint.rmq", "consumequeue"):
                self.box.disk.delete_tree(self.path(name))
            self.store = self.box.open()
            self.assertEqual((self.store.end_offset, self.saved()), (late[-1].next_offset, []), at)
            if self.store.damage:  # else it is in a field that no CRC covers
                there = {offset for offsets in served(self.store).values() for offset in offsets}
                self.assertEqual({one.phy_offset for one in late[1:]} - there, set(), at)
            self.box.kill()

    def test_junk_behind_a_blank(self) -> None:
        """What Apache has left between a BLANK and the end of its file stays there, if the BLANK is damaged too."""
        late = self.box.put_many(120, 100)
        following = next(n for n, one in enumerate(late) if one.phy_offset == SEGMENT_BYTES)
        blank_at = late[following - 1].next_offset
        self.assertGreaterEqual(SEGMENT_BYTES - blank_at, 8 + 100)
        before = served(self.store)
        self.end_with(None)
        blank = self.log_bytes()[blank_at : blank_at + 8]
        self.overwrite(blank_at + 8, stale(blank_at + 8, 1 << 42, 0, size_bytes=100))
        for bad in (b"????" + blank[4:], blank[:4] + b"????"):
            self.overwrite(blank_at, bad)
            for name in ("checkpoint", "checkpoint.rmq", "consumequeue"):
                self.box.disk.delete_tree(self.path(name))
            self.store = self.box.open()
            self.assertEqual(self.store.damage, [(blank_at, SEGMENT_BYTES)])
            self.assertEqual(served(self.store), before)
            self.box.kill()
        # Damage in front of an intact one.
        self.overwrite(blank_at, blank)
        self.damage(late[following - 1])
        self.store = self.box.open()
        self.assertEqual(self.store.damage, [(late[following - 1].phy_offset, SEGMENT_BYTES)])


def stale(phy_offset: int, store_timestamp: int, queue_offset: int, *, queue_id: int = 0, size_bytes: int = 0) -> bytes:
    """Return a record of a former life, with properties that make it as long as wanted."""

    def encode(properties: bytes) -> bytes:
        return record.encode_record(
            topic=b"Topic",
            queue_id=queue_id,
            body=b"s",
            properties=properties,
            born_timestamp=1,
            store_timestamp=store_timestamp,
            born_host=(bytes(4), 1),
            store_host=(bytes(4), 1),
            queue_offset=queue_offset,
            phy_offset=phy_offset,
        )

    shortest = len(encode(b""))
    return encode(b"a" * (size_bytes - shortest)) if size_bytes > shortest else encode(b"")


class UnknownPowerTests(ClockCase):
    """Where Apache's broker was last there may be remnants: older records count if the log goes on with them."""

    def test_a_continuation(self) -> None:
        """Three records in a row behind the damage are no remnant; two may be one, so they are cut, and saved."""
        for count, is_kept in ((4, True), (3, False)):
            self.box = Box()
            self.store = self.box.open()
            self.early = self.box.put_many(20)
            self.box.run(2)
            self.box.node.step_clock(-3600)
            late = self.box.put_many(count, 100)
            self.end_with(b"")
            self.damage(late[0])
            before = self.log_bytes()
            events = self.open()
            if is_kept:
                self.assert_kept(late, late[0])
            else:
                self.assert_cut(events, late[0].phy_offset, before, records=count - 1)

    def test_the_end_of_a_file(self) -> None:
        """A record that a BLANK follows is no remnant, and neither is the next file."""
        late = self.box.put_many(120, 100)
        following = next(n for n, one in enumerate(late) if one.phy_offset == SEGMENT_BYTES)
        first = late[0].phy_offset
        self.end_with(b"")
        # All but the last record of the file is gone.
        self.overwrite(first, b"\xa5" * (late[following - 1].phy_offset - first))
        for name in ("checkpoint", "checkpoint.rmq", "consumequeue"):
            self.box.disk.delete_tree(self.path(name))
        self.open()
        self.assertEqual(self.store.damage, [(first, late[following - 1].phy_offset)])
        self.assertEqual(self.store.end_offset, late[-1].next_offset)

    def test_remnants_whose_numbers_were_given_again(self) -> None:
        """A whole row of remnants does not come back when other messages have got their numbers; it is saved."""
        self.box.kill()
        end = self.early[-1].next_offset
        data = b"\0\0\1\0torn" + bytes(42)
        for number in range(5):
            data += stale(end + len(data), 1_700_000_000_000, number)
        self.overwrite(end, data)
        self.end_with(b"")
        before = self.log_bytes()
        self.assertEqual(next(Search(Memory(before), end, len(before)).records())[0], end + 50)
        events = self.open()
        self.assert_cut(events, end, before, records=5)
        self.assertEqual(sum(len(offsets) for offsets in served(self.store).values()), 20)
        self.box.stop()
        self.assertFalse(any(self.log_bytes()[end:]))
        self.assert_sound()

    def test_remnants_behind_a_clean_end(self) -> None:
        """After a clean stop of Apache's broker its checkpoint tells the last record: no row of remnants comes back."""
        self.box.stop()
        end = self.early[-1].next_offset
        data = b"\0\0\1\0torn" + bytes(42)
        for number in range(5):
            data += stale(end + len(data), 1_700_000_000_000, 7 + number)
        self.overwrite(end, data)
        self.box.disk.delete(self.path("checkpoint.rmq"))
        self.box.disk.delete(self.path("abort"))
        before = self.log_bytes()
        events = self.open()
        self.assert_cut(events, end, before, records=5)

    def test_synced_before(self) -> None:
        """In front of what `checkpoint.rmq` has seen synced there are no remnants: a single older record counts."""
        late = self.box.put_many(2, 100)
        self.box.stop()
        self.damage(late[0])
        self.box.disk.delete_tree(self.path("consumequeue"))
        self.open()
        self.assert_kept(late, late[0])


class SavingTests(ClockCase):
    """Before anything is cut that may be worth something, it is copied."""

    def test_power_failure(self) -> None:
        """Records that a power failure has parted from the rest are saved, those from before the step as well."""
        self.box.run(61)
        late = self.box.put_many(2, 100)
        self.box.run(11)
        self.box.crash()
        self.damage(late[0])
        before = self.log_bytes()
        events = self.open()
        self.assert_cut(events, late[0].phy_offset, before, records=1)

    def test_all_of_a_master(self) -> None:
        """What a master cuts nobody else may have: it is saved whole, over the ends of files."""
        self.patch(recovery, "MAX_SAVED_BYTES", 500)
        self.patch(cut, "COPY_BYTES", 3000)
        self.box.run(61)
        late = self.box.put_many(250, 100)
        self.box.run(11)
        self.box.crash()
        self.damage(late[0])
        before = self.log_bytes()
        events = self.open()
        self.assert_cut(events, late[0].phy_offset, before, records=249)
        (event,) = [event for event in events if "saved in" in event["log_format"]]
        self.assertEqual(event["limit"], "")

    def test_torn_ends(self) -> None:
        """A torn end leaves nothing in `cut`, unless it is longer than any write."""
        self.patch(recovery, "MAX_TORN_BYTES", 1000)
        end = self.early[-1].next_offset
        self.end_with(None)
        self.overwrite(end, b"\xa5" * 1000)
        self.store = self.box.open()
        self.assertEqual((self.store.end_offset, self.saved()), (end, []))
        self.end_with(None)
        self.overwrite(end, b"\xa5" * 1001)
        before = self.log_bytes()
        events = self.open()
        self.assert_cut(events, end, before, records=0)

    def test_earlier_copies_stay(self) -> None:
        """A start that was killed before it could cut copies nothing twice, and overwrites nothing."""
        late = self.box.put_many(3, 100)
        self.end_with(b"")
        self.damage(late[0])
        before = self.log_bytes()[late[0].phy_offset : late[-1].next_offset]
        name = layout.file_name(late[0].phy_offset)
        for round_, names in enumerate(([name], [name], [name, f"{name}.1"])):
            if round_:
                self.end_with(b"")
                self.overwrite(late[0].phy_offset, before[:-1] + (b"y" if round_ == 2 else before[-1:]))
            self.store = self.box.open()
            self.assertEqual(self.saved(), names)
        self.assertEqual(self.box.disk.read_whole(self.path("cut", name)), before)

    def test_no_room(self) -> None:
        """Where there is no room for the copy nothing is cut, and no part of a copy stays."""
        late = self.box.put_many(3, 100)
        self.end_with(b"")
        self.damage(late[0])
        before = self.log_bytes()
        self.box.node.start()
        self.box.disk.make_dirs(self.path("cut"))
        self.box.kill()
        self.box.disk.fill()
        with self.assertRaises((StoreError, DiskError)):
            self.box.open()
        self.box.kill()
        self.assertEqual((self.log_bytes(), self.saved()), (before, []))
        self.box.disk.recover()
        events = self.open()
        self.assert_cut(events, late[0].phy_offset, before, records=2)


class Memory:
    """A log of one file, in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.segment_bytes = max(len(data), SEGMENT_BYTES)

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes:
        return self.data[offset : min(offset + limit, len(self.data) if until is None else until)]

    def data_end(self, offset: int) -> int:
        return len(self.data)


class SearchTests(RecoveryCase):
    def damage(self, data: bytes) -> list[tuple[int, int]]:
        """Return where damage begins, and where the log goes on or is at its end."""
        found = LogScanner(Memory(data), CHECK).records(0, len(data))
        return [(one.start, one.end) for _, one in found if isinstance(one, Damage)]

    def test_a_row(self) -> None:
        """Older records count as a continuation from three in a row on, younger ones at once."""
        for count in (1, 2, 3, 4):
            for last_ms in (1000, 1001):
                data = stale(0, last_ms, 0) + bytes(7)
                damaged, following = len(data) - 7, len(data)
                for number in range(count):
                    data += stale(len(data), 1000, number)
                data += bytes(1000)
                is_found = count >= 3 or last_ms == 1000
                self.assertEqual(self.damage(data)[0], (damaged, following if is_found else len(data)), count)

    def test_a_broken_row(self) -> None:
        """Two records, a hole and two more are two remnants."""
        data = stale(0, 1001, 0) + bytes(7)
        damaged = len(data) - 7
        for number in range(4):
            data += stale(len(data), 1000, number) + bytes(number == 1)
        data += bytes(1000)
        self.assertEqual(self.damage(data), [(damaged, len(data))])

    def test_a_record_inside_another(self) -> None:
        """The body of an intact record is not searched; that of a damaged one is."""
        inner = stale(200, 1000, 0)
        head = record.HEADS[0].size
        outer = record.encode_record(
            topic=b"Topic",
            queue_id=0,
            body=bytes(100 - head) + inner + bytes(9),
            properties=b"",
            born_timestamp=1,
            store_timestamp=1000,
            born_host=(bytes(4), 1),
            store_host=(bytes(4), 1),
            phy_offset=100,
        )
        data = bytes(100) + outer
        following = stale(len(data), 2000, 1)
        log = Memory(data + following + bytes(100))
        search = Search(log, 1, len(log.data))
        self.assertEqual([offset for offset, _ in search.records()], [100, len(data)])
        # It ends with the two zeros that tell how long its properties are.
        self.assertEqual(search.written_to, len(data) + len(following))
        self.assertEqual(next(Search(log, 101, len(log.data)).records())[0], 200)

    def test_behind_damage(self) -> None:
        """Both fields of a BLANK tell it; anything else is searched from its next byte on."""
        blank = record.blank(SEGMENT_BYTES - 100)
        for head, expected in (
            (blank, SEGMENT_BYTES),
            (b"xxxx" + blank[4:], SEGMENT_BYTES),
            (blank[:4] + b"xxxx", SEGMENT_BYTES),
            (b"xxxxxxxx", 101),
            (b"", 101),
        ):
            self.assertEqual(behind_damage(Memory(bytes(100) + head), 100), expected)
