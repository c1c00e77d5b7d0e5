"""What a store is after any kind of end: nothing acknowledged is missing, nothing comes twice, damage is told."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskLocked
from rmq.sim.inode import CrashOdds
from rmq.store import dispatch, layout
from rmq.store.abortfile import AbortFile
from rmq.store.check import check_store
from rmq.store.config import BrokerRole
from rmq.store.messages import StoreError
from rmq.store.store import MessageStore
from rmq.wire import record
from tests.store.support import ROOT, SYNC, Box, all_records, log_events, message, queue_records

Served = dict[tuple[str, int], list[int]]


def served(store: MessageStore) -> Served:
    """Return the physical offsets of all that consumers get, per queue."""
    return {key: [one.phy_offset for one in found] for key, found in all_records(store).items()}


class RecoveryCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()

    def assert_sound(self) -> None:
        """Nothing in the closed store is wrong."""
        findings = check_store(self.box.disk, ROOT, self.box.config)
        self.assertEqual([one for one in findings if one.severity == "error"], [])

    def path(self, *parts: str) -> str:
        return "/".join((ROOT, *parts))

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Change a file of the closed store."""
        self.box.node.start()
        file = self.box.disk.open(path)
        file.write_at(offset, data)
        file.sync_now()
        self.box.kill()

    def assert_same_after(self, how: str, before: Served, **changes: Any) -> None:
        """After another end everything is as before, and the next number is the right one."""
        end = self.store.end_offset
        self.store = self.box.reopen(how, **changes)
        self.assertEqual(served(self.store), before)
        self.assertEqual(self.store.end_offset, end)
        if self.store.is_writable:
            (result,) = self.box.put(message(0))
            self.assertEqual((result.phy_offset, result.queue_offset), (end, len(before["Topic", 0])))


class EndTests(RecoveryCase):
    def test_clean_stop(self) -> None:
        """After a clean stop the same messages are there, the marker is gone, and nothing is read again."""
        self.box.put_many(300)
        before = served(self.store)
        self.box.stop()
        self.assertFalse(self.box.disk.exists(self.path("abort")))
        self.assert_sound()
        events = log_events(self)
        self.store = self.box.open()
        (event,) = [event for event in events if "recovered" in event["log_format"]]
        self.assertEqual((event["read_from"], event["how"]), (event["end_offset"], "a clean stop"))
        self.assertEqual(served(self.store), before)
        self.assertTrue(self.box.disk.exists(self.path("abort")))

    def test_kill(self) -> None:
        """A killed process loses nothing that was answered, though queues and index were in memory."""
        for round_ in range(4):
            self.box.put_many(50 + round_, 1000 * round_)
            self.assert_same_after("kill", served(self.store))
        self.box.stop()
        self.assert_sound()

    def test_clean_stop_without_messages(self) -> None:
        """Stops and starts of an idle store change nothing."""
        self.box.put_many(40)
        before = served(self.store)
        for how in ("stop", "stop", "kill", "stop"):
            self.store = self.box.reopen(how)
            self.assertEqual(served(self.store), before)
        self.box.stop()
        self.assert_sound()

    def test_empty_store(self) -> None:
        """A store that never got a message starts again after anything."""
        for how in ("stop", "kill", "crash"):
            self.store = self.box.reopen(how)
            self.assertEqual((self.store.end_offset, self.store.queues()), (0, []))
        self.box.put_many(1)

    def test_power_failure(self) -> None:
        """With SYNC_FLUSH what was answered survives the loss of every unsynced byte."""
        self.box.stop()
        self.store = self.box.open(**SYNC)
        results = self.box.put_many(200)
        self.box.crash()
        self.store = self.box.open()
        there = {offset for offsets in served(self.store).values() for offset in offsets}
        self.assertEqual({result.phy_offset for result in results} - there, set())
        self.box.stop()
        self.assert_sound()

    def test_recovery_is_bounded(self) -> None:
        """After a crash the log is read from the last record of progress, not from the beginning."""
        self.box.put_many(300)
        self.box.run(61)
        recorded = self.store.dispatched_offset
        self.box.put_many(20, 300)
        before = served(self.store)
        events = log_events(self)
        self.assert_same_after("kill", before)
        (event,) = [event for event in events if "recovered" in event["log_format"]]
        self.assertEqual(event["read_from"], recorded)

    def test_progress_promises_only_what_is_on_disk(self) -> None:
        """Whatever `checkpoint.rmq` claims survives a power failure, even if nothing else ever synced the log."""
        self.box.stop()
        self.store = self.box.open(flush_interval_commit_log=10**9)
        self.box.put_many(200)
        before = served(self.store)
        self.box.run(61)
        self.assertEqual(self.store.flushed_offset, self.store.end_offset)
        self.assert_same_after("crash", before)

    def test_damage_among_messages_of_one_millisecond(self) -> None:
        """After a clean stop one damaged record costs no other, though all were stored at the same time."""
        results = self.box.put_many(50)
        self.assertEqual(len({result.store_timestamp for result in results}), 1)
        before = served(self.store)
        self.box.stop()
        self.box.disk.delete(self.path("checkpoint.rmq"))
        self.box.disk.delete_tree(self.path("consumequeue"))
        self.write(self.path("commitlog", layout.file_name(0)), results[20].phy_offset + 4, b"?")
        self.box.disk.delete(self.path("abort"))
        self.store = self.box.open()
        self.assertEqual(self.store.damage, [(results[20].phy_offset, results[20].next_offset)])
        self.assertEqual(self.store.end_offset, results[-1].next_offset)
        lost = {key: [at for at in found if at != results[20].phy_offset] for key, found in before.items()}
        found = {key: sorted(set(places)) for key, places in served(self.store).items()}
        self.assertEqual(found, lost)

    def test_kill_then_power_failure(self) -> None:
        """What a start after a kill found is on disk when it takes messages, in all files behind the last sync."""
        self.box.put_many(30)
        self.box.run(61)
        self.box.disk.odds = CrashOdds(kept=0, torn=0, garbage=0)
        self.box.disk.sync_s = (1000.0, 1000.0)
        self.box.put_many(150, 30)
        self.assertGreater(self.store.end_offset, 16384)
        before = served(self.store)
        self.box.kill()
        self.box.disk.recover()
        self.store = self.box.open()
        self.assertEqual(self.store.flushed_offset, self.store.end_offset)
        self.store = self.box.reopen("crash")
        self.assertEqual(served(self.store), before)

    def test_lock_comes_first(self) -> None:
        """A second store on the same folder is refused before it has touched anything."""
        self.box.put_many(10)
        assert self.box.node.process is not None
        with self.assertRaises(DiskLocked):
            MessageStore(self.box.disk, self.box.node.process, self.box.config).load()
        self.box.put_many(10, 10)
        self.box.stop()
        self.assert_sound()

    def test_failed_load_gives_the_lock_back(self) -> None:
        """A store that could not be loaded can be loaded once its trouble is gone."""
        self.box.put_many(10)
        self.box.stop()
        with self.assertRaises(StoreError):
            self.box.open(mapped_file_size_commit_log=8192)
        self.store = self.box.reopen("kill", mapped_file_size_commit_log=16384)
        self.assertEqual(self.store.max_offset("Topic", 0), 4)


class LostFileTests(RecoveryCase):
    def setUp(self) -> None:
        super().setUp()
        self.box.put_many(300)
        self.before = served(self.store)

    def lose(self, *parts: str) -> None:
        self.box.disk.delete_tree(self.path(*parts))

    def test_everything_that_can_be_made_again(self) -> None:
        """Consume queues, one queue, the index, checkpoint and progress are made again, after a stop and a kill."""
        for how in ("stop", "kill"):
            for parts in (
                ("consumequeue",),
                ("consumequeue", "Topic", "1"),
                ("index",),
                ("checkpoint",),
                ("checkpoint.rmq",),
            ):
                getattr(self.box, how)()
                self.lose(*parts)
                self.store = self.box.open()
                self.assertEqual(served(self.store), self.before, (how, parts))
                self.assertEqual(self.box.put()[:], [])
                for number in (0, 7, 299):
                    found = self.store.query("Topic", f"k{number}", 10, 0, 1 << 60).messages
                    self.assertEqual(len(found), 1, (how, parts, number))
        self.box.stop()
        self.assert_sound()

    def test_queues_lost_after_progress(self) -> None:
        """Queues that are gone after a crash are noticed although no record behind the last progress tells."""
        self.box.run(61)
        for how, parts in (("kill", ("consumequeue",)), ("kill", ("consumequeue", "Topic", "1"))):
            self.store = self.box.reopen("stop")
            self.box.put_many(3, 300)
            self.box.run(61)
            self.before = served(self.store)
            getattr(self.box, how)()
            self.lose(*parts)
            self.store = self.box.open()
            self.assertEqual(served(self.store), self.before, (how, parts))

    def test_queue_lost_before_new_messages(self) -> None:
        """A lost queue of which the log behind the last progress has messages is made again from the start."""
        self.box.run(61)
        self.box.put_many(9, 300)
        before = served(self.store)
        self.box.kill()
        self.lose("checkpoint.rmq")
        self.lose("consumequeue", "Topic", "1")
        self.store = self.box.open()
        self.assertEqual(served(self.store), before)

    def test_only_old_files_of_a_queue_are_left(self) -> None:
        """A queue that ends in front of the log begins with the first number that the log has: nothing comes twice."""
        for compiled in (dispatch._compiled, None):
            self.patch(dispatch, "_compiled", compiled)
            self.box = Box()
            self.box.open()
            results = self.box.put_many(300)
            self.box.stop()
            self.lose("commitlog", "0" * 20)
            there = [one for one in results if one.phy_offset >= 16384]
            first = min(one.queue_offset for one in there)
            self.assertGreater(first, 20)
            for name in self.box.disk.list_dir(self.path("consumequeue", "Topic", "0"))[1:]:
                self.lose("consumequeue", "Topic", "0", name)
            events = log_events(self)
            self.store = self.box.open()
            found = sorted(offset for offsets in served(self.store).values() for offset in offsets)
            self.assertEqual(found, [one.phy_offset for one in there])
            self.assertGreaterEqual(self.store.min_offset("Topic", 0), first)
            self.assertEqual(len([event for event in events if " reset from its end " in event["log_format"]]), 1)
            self.assertEqual(self.box.put(message(0))[0].queue_offset, 100)
            self.box.stop()
            self.assert_sound()

    def test_deleted_topic_stays_deleted(self) -> None:
        """A topic that was deleted before a crash does not come back with a rebuild of its queues."""
        self.box.put(message(0, topic="Other"))
        self.box.run(61)
        self.store.delete_topic("Topic")
        self.box.run(3)
        self.store = self.box.reopen("kill")
        self.assertEqual(self.store.queues(), [("Other", 0)])

    def test_all_at_once(self) -> None:
        """The commit log alone is enough."""
        self.box.kill()
        for name in ("consumequeue", "index", "checkpoint", "checkpoint.rmq", "abort", "lock"):
            self.lose(name)
        self.store = self.box.open()
        self.assert_same_after("stop", self.before)
        self.box.stop()
        self.assert_sound()

    def test_zeroed_checkpoints(self) -> None:
        """Checkpoints full of zeros only make the start slower."""
        self.box.kill()
        self.write(self.path("checkpoint"), 0, bytes(4096))
        self.write(self.path("checkpoint.rmq"), 0, bytes(1024))
        self.store = self.box.open()
        self.assertEqual(served(self.store), self.before)

    def test_half_a_record_of_progress(self) -> None:
        """When the newer half of the progress file is torn, the older one counts."""
        self.box.run(61)
        self.box.put_many(30, 300)
        self.box.run(61)
        before = served(self.store)
        self.box.kill()
        self.write(self.path("checkpoint.rmq"), 0, b"torn")
        self.store = self.box.open()
        self.assertEqual(served(self.store), before)

    def test_no_commit_log(self) -> None:
        """Without its commit log a store is empty, and says what that means."""
        self.box.stop()
        self.lose("commitlog")
        events = log_events(self)
        self.store = self.box.open()
        self.assertEqual((self.store.end_offset, self.store.max_offset("Topic", 0)), (0, 0))
        self.assertTrue([event for event in events if "no commit log in" in event["log_format"]])
        self.assertEqual(self.box.put(message(0))[0].queue_offset, 0)

    def test_no_commit_log_where_a_disk_belongs(self) -> None:
        """A log of its own path that is not there may lie on a disk that is not mounted: nothing is forgotten then."""
        self.box = Box(store_path_commit_log="/log/commitlog")
        self.box.open()
        results = self.box.put_many(30)
        self.box.stop()
        self.box.node.start()
        self.box.disk.rename("/log", "/elsewhere")
        self.box.kill()
        for _ in range(2):
            error = str(self.assertRaises(StoreError, self.box.open))
            for part in ("storePathCommitLog=/log/commitlog", f"up to offset {results[-1].next_offset}", "mounted"):
                self.assertIn(part, error)
            self.box.kill()
        self.box.node.start()
        self.box.disk.delete_tree("/log")
        self.box.disk.rename("/elsewhere", "/log")
        self.box.kill()
        self.store = self.box.open()
        self.assertEqual(sum(map(len, served(self.store).values())), 30)
        self.box.stop()
        self.box.node.start()
        self.box.disk.delete_tree("/log")
        self.box.disk.delete_tree(self.path("consumequeue"))
        self.box.kill()
        self.store = self.box.open()
        self.assertEqual(self.box.put(message(0))[0].queue_offset, 0)

    def test_torn_fillers(self) -> None:
        """
        Nonsense in front of where a queue begins, as a power failure can leave it in a log that begins late, is thrown
        away with the queue: it must not hide the messages that come.
        """
        # The compiled twin leaves such numbers to this way.
        self.patch(dispatch, "_compiled", None)
        self.box.put_many(500)
        expected = {key: [at for at in found if at >= 16384] for key, found in served(self.store).items()}
        end = self.store.end_offset
        log = {at: bytes(self.store.read(at, 4096)) for at in range(16384, end, 4096)}
        path = self.path("consumequeue", "Topic", "0", f"{400 * ((first := self.first(16384)) // 20):020d}")
        # As a size beyond the log, and as a small one where the first message should be.
        for unit, count in (((0, 0x00FF00FF, 0), first % 20), ((0, 57, 0), first % 20 + 1)):
            self.box = Box(broker_role=BrokerRole.SLAVE)
            self.store = self.box.open()
            for at, data in log.items():
                self.store.append_raw(at, data)
            self.box.run(2)
            self.assertEqual(served(self.store), expected)
            self.box.kill()
            self.write(path, 0, layout.CQ_UNIT.pack(*unit) * count + bytes(400 - 20 * count))
            for name in self.box.disk.list_dir(path.rpartition("/")[0])[1:]:
                self.box.disk.delete(path.rpartition("/")[0] + "/" + name)
            self.store = self.box.open()
            self.assertEqual(served(self.store), expected)

    def first(self, phy_offset: int) -> int:
        """Return the number of the first message of queue 0 at an offset or behind it."""
        return next(one.queue_offset for one in queue_records(self.store, "Topic", 0) if one.phy_offset >= phy_offset)

    def test_missing_file_in_the_middle(self) -> None:
        """A hole in the log is refused with the name of the missing file."""
        self.box.stop()
        self.lose("commitlog", layout.file_name(16384))
        with self.assertRaises(StoreError) as caught:
            self.box.open()
        self.assertIn(layout.file_name(16384), str(caught.exception))


class WrongSizeTests(RecoveryCase):
    def setUp(self) -> None:
        super().setUp()
        self.box.put_many(130)
        self.before = served(self.store)

    def test_short_last_file(self) -> None:
        """A last file that lost its unwritten end gets it back."""
        self.box.kill()
        self.box.node.start()
        file = self.box.disk.open(self.path("commitlog", layout.file_name(16384)))
        file.truncate(self.store.end_offset - 16384)
        self.box.kill()
        self.store = self.box.open()
        self.assertEqual(served(self.store), self.before)
        self.assert_same_after("stop", self.before)

    def test_empty_last_file(self) -> None:
        """An empty last file, left by an interrupted creation, is deleted."""
        self.box.run(2)
        self.box.kill()
        self.box.node.start()
        self.box.disk.create_sparse(self.path("commitlog", layout.file_name(32768)), 0).close()
        self.box.disk.create_sparse(self.path("consumequeue", "Topic", "1", layout.file_name(1200)), 0).close()
        self.box.kill()
        self.store = self.box.open()
        self.assertEqual(served(self.store), self.before)
        self.assertFalse(self.box.disk.exists(self.path("commitlog", layout.file_name(32768))))

    def test_unused_file(self) -> None:
        """A file that was made ahead and never written is no message."""
        self.box.kill()
        self.box.node.start()
        self.box.disk.create(self.path("commitlog", layout.file_name(32768)), 16384).close()
        self.box.kill()
        self.store = self.box.open()
        self.assert_same_after("kill", self.before)

    def test_another_configuration(self) -> None:
        """A store of other file sizes is refused by key and sizes, not cut up."""
        self.box.stop()
        changes: list[tuple[str, dict[str, Any]]] = [
            ("mappedFileSizeCommitLog", {"mapped_file_size_commit_log": 32768}),
            ("mappedFileSizeCommitLog", {"mapped_file_size_commit_log": 8192}),
            ("mappedFileSizeConsumeQueue", {"mapped_file_size_consume_queue": 4000}),
            ("mappedFileSizeConsumeQueue", {"mapped_file_size_consume_queue": 200}),
        ]
        for key, change in changes:
            config = self.box.config
            with self.assertRaises(StoreError) as caught:
                self.box.open(**change)
            self.assertIn(key, str(caught.exception))
            self.box.kill()
            self.box.config = config
        self.store = self.box.open()
        self.assertEqual(served(self.store), self.before)

    def test_complete_file_of_another_size(self) -> None:
        """Even without any record of progress a full file of another size is not taken for a short one."""
        self.box.kill()
        self.box.disk.delete(self.path("checkpoint.rmq"))
        self.box.disk.delete(self.path("commitlog", layout.file_name(16384)))
        with self.assertRaises(StoreError) as caught:
            self.box.open(mapped_file_size_commit_log=32768)
        self.assertIn("complete file of 16384 bytes", str(caught.exception))


class TailTests(RecoveryCase):
    def setUp(self) -> None:
        super().setUp()
        self.results = self.box.put_many(40)
        self.last = self.results[-1]
        self.log = self.path("commitlog", layout.file_name(0))

    def test_torn_anywhere(self) -> None:
        """A last record of which only a part was written is cut off, wherever it was cut."""
        whole = self.store.message_at(self.last.phy_offset)
        assert whole is not None
        self.box.kill()
        for cut in range(0, self.last.size, 3):
            self.write(self.log, self.last.phy_offset, whole[:cut] + bytes(self.last.size - cut))
            self.store = self.box.open()
            self.assertEqual(self.store.end_offset, self.last.phy_offset, cut)
            self.assertEqual(self.store.max_offset("Topic", 0), 13)
            (again,) = self.box.put(message(39))
            self.assertEqual((again.phy_offset, again.queue_offset), (self.last.phy_offset, 13))
            self.box.kill()
            self.write(self.log, self.last.phy_offset, whole)
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.last.next_offset)

    def test_stale_records_behind_the_end(self) -> None:
        """A record that Apache's broker has left behind the end is never taken for a new one, and is cleared away."""
        stale = record.encode_record(
            topic=b"Topic",
            queue_id=0,
            body=b"stale",
            properties=b"a\x01b",
            born_timestamp=1,
            store_timestamp=self.last.store_timestamp - 1000,
            born_host=(bytes(4), 1),
            store_host=(bytes(4), 1),
            queue_offset=99,
            phy_offset=self.last.next_offset + 50,
        )
        self.box.kill()
        self.write(self.log, self.last.next_offset + 50, stale)
        self.write(self.log, self.last.next_offset, b"\0\0\1\0" + b"torn")
        # After a kill of our own broker there is nothing of the kind.
        self.box.disk.write_atomic(self.path("abort"), b"")
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.last.next_offset)
        self.box.stop()
        data = self.box.disk.read_whole(self.log)
        self.assertFalse(any(data[self.last.next_offset :]))

    def test_record_of_another_place(self) -> None:
        """A record at the end that carries another physical offset is stale, even if it is intact."""
        first = self.store.message_at(0)
        assert first is not None
        self.box.kill()
        self.write(self.log, self.last.next_offset, first)
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.last.next_offset)

    def test_blank_that_fills_the_file(self) -> None:
        """When the BLANK was written and the next file was not, the log ends at the end of the file."""
        self.box.kill()
        self.write(self.log, self.last.next_offset, record.blank(16384 - self.last.next_offset))
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, 16384)
        (result,) = self.box.put(message(40))
        self.assertEqual((result.phy_offset, result.queue_offset), (16384, 13))
        self.store = self.box.reopen("kill")
        self.assertEqual(self.store.end_offset, result.next_offset)
        self.box.stop()
        self.assert_sound()

    def test_what_follows_a_blank(self) -> None:
        """A power failure leaves no garbage behind a BLANK that was not synced; after a kill nothing is changed."""
        at = self.last.next_offset
        for how, follows in (("kill", b"garbage"), ("crash", bytes(7))):
            self.box.kill()
            self.write(self.log, at, record.blank(16384 - at))
            self.write(self.log, at + record.BLANK_BYTES, b"garbage")
            self.box.node.start()
            getattr(self.box, how)()
            self.store = self.box.open()
            self.assertEqual(self.store.end_offset, 16384)
            self.assertEqual(bytes(self.store.read(at, 16))[:15], record.blank(16384 - at) + follows, how)

    def test_queues_ahead_of_the_log(self) -> None:
        """Units of messages that a power failure took are dropped."""
        self.box.run(2)
        self.box.kill()
        self.write(self.log, self.results[20].phy_offset, bytes(16384 - self.results[20].phy_offset))
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.results[20].phy_offset)
        self.assertEqual(sum(len(offsets) for offsets in served(self.store).values()), 20)
        self.box.put_many(20, 100)
        self.box.stop()
        self.assert_sound()


class DamageTests(RecoveryCase):
    """A bad byte in the middle: reported by offset, everything else stays."""

    def setUp(self) -> None:
        super().setUp()
        self.results = self.box.put_many(300)
        self.victim = self.results[100]
        self.before = served(self.store)

    def damage(self, at: int, data: bytes) -> None:
        offset = self.victim.phy_offset + at
        start = offset // 16384 * 16384
        self.write(self.path("commitlog", layout.file_name(start)), offset - start, data)

    def rebuild(self) -> list[dict[str, Any]]:
        """Open the store so that it reads everything; return the log events."""
        for name in ("checkpoint", "checkpoint.rmq", "consumequeue"):
            self.box.disk.delete_tree(self.path(name))
        events = log_events(self)
        self.store = self.box.open()
        return events

    def test_body_bit(self) -> None:
        """One wrong body bit costs that message, not the two hundred behind it."""
        self.box.kill()
        self.damage(90, b"?")
        events = self.rebuild()
        self.assertEqual(self.store.end_offset, self.results[-1].next_offset)
        self.assertEqual(self.store.damage, [(self.victim.phy_offset, self.victim.next_offset)])
        (event,) = [event for event in events if "skipped damaged bytes" in event["log_format"]]
        self.assertEqual((event["first"], event["next_phy_offset"]), self.store.damage[0])
        after = served(self.store)
        queue = ("Topic", 100 % 3)
        self.assertEqual(len(after[queue]), len(self.before[queue]))
        self.assertEqual(
            [a for a, b in zip(after[queue], self.before[queue], strict=True) if a != b],
            [self.results[103].phy_offset],
        )
        for other in (("Topic", 0), ("Topic", 2)):
            self.assertEqual(after[other], self.before[other])
        (result,) = self.box.put(message(300, queue_id=1))
        self.assertEqual(result.queue_offset, 100)

    def test_size_field(self) -> None:
        """A wrong size field hides one message only."""
        self.box.kill()
        self.damage(0, b"\0\1\1\1")
        self.rebuild()
        self.assertEqual(self.store.damage, [(self.victim.phy_offset, self.victim.next_offset)])
        self.assertEqual(self.store.end_offset, self.results[-1].next_offset)

    def test_a_page_of_garbage(self) -> None:
        """Several records in a row may be gone."""
        self.box.kill()
        self.damage(10, b"\xa5" * 1000)
        self.rebuild()
        ((first, following),) = self.store.damage
        self.assertEqual(first, self.victim.phy_offset)
        self.assertIn(following, [result.phy_offset for result in self.results])
        self.assertTrue(first + 1000 < following < first + 1400)
        self.assertEqual(self.store.end_offset, self.results[-1].next_offset)

    def test_damage_before_the_last_progress_is_served_around(self) -> None:
        """Damage that recovery has no need to read is met by consumers as a missing message, and told."""
        self.box.stop()
        self.damage(0, b"\0\1\1\1")
        self.store = self.box.open()
        events = log_events(self)
        found = queue_records(self.store, "Topic", 1)
        self.assertEqual(len(found), 99)
        self.assertTrue([event for event in events if "there is no such record" in event["log_format"]])

    def test_the_check_finds_it(self) -> None:
        """`rmq.store.check` names the place."""
        self.box.stop()
        self.assert_sound()
        self.damage(90, b"?")
        findings = [one for one in check_store(self.box.disk, ROOT, self.box.config) if one.severity == "error"]
        self.assertEqual([(one.kind, one.offset) for one in findings[:1]], [("damaged-record", self.victim.phy_offset)])

    def slave_of(self, recorded: int, **config: Any) -> bytes:
        """Let the store be a slave's with the same log, synced, whose progress is ``recorded``; return the log."""
        self.box.stop()
        whole = b"".join(
            self.box.disk.read_whole(self.path("commitlog", name))
            for name in self.box.disk.list_dir(self.path("commitlog"))
        )[: self.store.end_offset]
        self.box = Box(broker_role=BrokerRole.SLAVE, **config)
        self.store = self.box.open()
        self.feed(whole, recorded)
        self.box.run(61)
        self.feed(whole, len(whole))
        self.assertEqual(served(self.store), self.before)
        self.box.run(11)
        self.assertEqual(self.store.flushed_offset, len(whole))
        return whole

    def feed(self, whole: bytes, until: int) -> None:
        at = self.store.end_offset
        while at < until:
            cut = min(at + 4096 - at % 4096, until)
            self.store.append_raw(at, whole[at:cut])
            at = cut

    def test_slave_cuts_what_its_master_still_has(self) -> None:
        """After a power failure a slave with a damaged end goes back to its last sync, and saves what it cuts."""
        recorded = self.results[90].next_offset
        whole = self.slave_of(recorded)
        self.box.crash()
        self.damage(90, b"?")
        events = log_events(self)
        self.store = self.box.open()
        self.assertEqual((self.store.end_offset, self.store.damage), (recorded, []))
        (event,) = [event for event in events if "power failure has damaged" in event["log_format"]]
        self.assertEqual((event["damaged"], event["phy_offset"]), (self.victim.phy_offset, recorded))
        saved = self.box.disk.read_whole(self.path("cut", layout.file_name(recorded)))
        self.assertEqual(saved[-1000:], whole[recorded:].rstrip(b"\0")[-1000:])
        self.feed(whole, len(whole))
        self.assertEqual(served(self.store), self.before)

    def test_slave_that_cuts_a_lost_number(self) -> None:
        """A record that lost its number, and is cut then, leaves its queue as it was: no CRC covers the number."""
        recorded = self.results[90].next_offset
        whole = self.slave_of(recorded)
        self.box.crash()
        damaged = self.victim
        self.victim = self.results[95]
        self.damage(20, bytes(8))
        self.victim = damaged
        self.damage(90, b"?")
        events = log_events(self)
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, recorded)
        reasons = [event["reason"] for event in events if "rebuilding consume queues" in event["log_format"]]
        self.assertIn(f"was reset for the record at {self.results[95].phy_offset}", reasons[-1])
        kept = {key: [at for at in places if at < recorded] for key, places in self.before.items()}
        self.assertEqual(served(self.store), kept)
        self.feed(whole, len(whole))
        self.assertEqual(served(self.store), self.before)
        self.box.stop()
        self.assert_sound()

    def test_slave_that_acknowledged_its_syncs(self) -> None:
        """With haAckAfterFlush a slave keeps all in front of the damage, and compares what it cannot be sure of."""
        recorded = self.results[90].next_offset
        whole = self.slave_of(recorded, ha_ack_after_flush=True)
        self.box.crash()
        self.damage(90, b"?")
        self.store = self.box.open()
        self.assertEqual((self.store.end_offset, self.store.resume_offset), (self.victim.phy_offset, recorded))
        with self.assertRaises(StoreError) as caught:
            self.store.append_raw(recorded, whole[recorded : recorded + 20] + b"\xff" * 20)
        self.assertIn("diverged", str(caught.exception))
        self.assertEqual(self.store.resume_offset, recorded)
        until = self.victim.phy_offset
        self.store.append_raw(recorded, whole[recorded:until])
        self.assertEqual(self.store.resume_offset, self.results[99].phy_offset)
        self.feed(whole, len(whole))
        self.assertEqual(served(self.store), self.before)

    def test_undamaged_slave_compares(self) -> None:
        """A slave whose power failed asks from its last known sync on, though nothing is wrong with its log."""
        recorded = self.results[90].next_offset
        whole = self.slave_of(recorded)
        self.box.crash()
        self.store = self.box.open()
        self.assertEqual((self.store.end_offset, self.store.resume_offset), (len(whole), recorded))
        # A kill before that has happened makes it no less necessary.
        self.store = self.box.reopen("kill")
        self.assertEqual(self.store.resume_offset, recorded)
        at = recorded
        while at < len(whole):
            cut = min(at + 4096 - at % 4096, len(whole))
            self.store.append_raw(at, whole[at:cut])
            at = cut
        self.assertEqual(self.store.resume_offset, self.results[-1].phy_offset)
        self.store = self.box.reopen("kill")
        self.assertEqual(self.store.resume_offset, self.results[-1].phy_offset)

    def test_slave_that_was_killed_keeps_everything(self) -> None:
        """A kill takes nothing, so what is damaged in a slave then is rot: it is passed over, and told."""
        self.slave_of(self.results[90].next_offset)
        self.box.kill()
        self.damage(90, b"?")
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.results[-1].next_offset)
        self.assertEqual(self.store.damage, [(self.victim.phy_offset, self.victim.next_offset)])

    def test_master_after_a_power_failure(self) -> None:
        """
        A master whose unsynced end is damaged by a power failure ends in front of the damage: it keeps no hole that
        its slaves may have filled. What it cuts is saved; what was synced before is not touched.
        """
        self.box.stop()
        self.store = self.box.open()
        synced = self.store.end_offset
        late = self.box.put_many(20, 300)
        self.box.run(11)
        self.box.crash()
        self.victim = late[5]
        self.damage(90, b"?")
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.victim.phy_offset)
        self.assertTrue(self.box.disk.exists(self.path("cut", layout.file_name(self.victim.phy_offset))))
        (result,) = self.box.put(message(300, queue_id=late[5].queue_offset % 3))
        self.assertEqual(result.phy_offset, self.victim.phy_offset)
        self.assertGreater(result.phy_offset, synced)
        self.box.stop()
        self.assert_sound()

    def test_lost_number(self) -> None:
        """
        A master's record that lost its number in a power failure, on a disk that writes less than a sector whole, ends
        the log; it does not begin its queue again, which would hide every message that was acknowledged before.
        """
        self.box.run(61)
        before = served(self.store)
        late = self.box.put_many(6, 300)
        self.box.run(11)
        self.box.crash()
        start = layout.file_start(layout.file_name(late[2].phy_offset - late[2].phy_offset % 16384)) or 0
        self.write(self.path("commitlog", layout.file_name(start)), late[2].phy_offset - start + 20, bytes(8))
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, late[2].phy_offset)
        found = served(self.store)
        self.assertEqual({key: places[: len(before[key])] for key, places in found.items()}, before)
        self.assertEqual(sum(map(len, found.values())) - sum(map(len, before.values())), 2)

    def test_first_message_of_a_queue_without_units(self) -> None:
        """The first message of a queue is served although a power failure took its unit: its number 0 is right."""
        self.box.run(61)
        (first,) = self.box.put(message(300, topic="Young", queue_id=0))
        self.box.run(11)
        self.box.crash()
        folder = self.path("consumequeue", "Young", "0")
        self.box.node.start()
        self.box.disk.make_dirs(folder)
        self.box.disk.create(f"{folder}/{layout.file_name(0)}", 400).sync_now()
        self.box.disk.sync_dir(folder)
        self.box.kill()
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, first.next_offset)
        self.assertEqual(len(served(self.store)["Young", 0]), 1)

    def test_rot_of_synced_bytes_before_a_power_failure(self) -> None:
        """Behind the last sync a power failure is no excuse to cut: damage there is rot, and passed over."""
        self.box.run(61)
        self.box.crash()
        self.damage(90, b"?")
        for name in ("consumequeue",):
            self.box.disk.delete_tree(self.path(name))
        self.store = self.box.open()
        self.assertEqual(self.store.end_offset, self.results[-1].next_offset)
        self.assertEqual(self.store.damage, [(self.victim.phy_offset, self.victim.next_offset)])


class RunningMarkTests(RecoveryCase):
    """The file `abort` tells a kill from a power failure."""

    def mark(self) -> AbortFile:
        return AbortFile(self.box.disk, ROOT)

    def test_kill_and_power_failure(self) -> None:
        """The mark names the boot in which it was set; at the next boot the power is known to have failed."""
        self.box.kill()
        self.assertTrue(self.mark().exists())
        self.assertFalse(self.mark().lost_power())
        self.box.crash()
        self.assertTrue(self.mark().lost_power())
        self.store = self.box.open()
        self.assertFalse(self.mark().lost_power())
        self.box.stop()
        self.assertFalse(self.mark().exists())

    def test_a_mark_of_apache(self) -> None:
        """An empty mark, or one with a process id, says nothing of the power."""
        self.box.kill()
        for content in (b"", b"12345"):
            self.box.disk.write_atomic(self.path("abort"), content)
            self.assertIsNone(self.mark().lost_power())

    def test_failed_sync(self) -> None:
        """After a failed sync pages may be gone: the next start is as careful as after a power failure."""
        self.box.put_many(10)
        self.box.disk.fail_syncs = 1
        self.box.run(11)
        self.assertFalse(self.store.is_writable)
        self.box.kill()
        self.assertTrue(self.mark().lost_power())

    def test_failed_sync_of_a_folder(self) -> None:
        """The same holds for the names of new queues."""
        self.box.put_many(10)
        self.box.disk.sync_fails = lambda path: path.endswith("/consumequeue/Topic")
        self.box.run(61)
        self.assertIn("consumequeue/Topic: cannot fsync", str(self.store.refuses_because))
        self.assertFalse(self.store.is_writable)

    def test_full_disk(self) -> None:
        """A start finds no room for the mark's content, and goes on without it."""
        self.box.stop()
        self.box.disk.fill()
        self.store = self.box.open()
        self.assertTrue(self.mark().exists())
        self.box.disk.recover()
