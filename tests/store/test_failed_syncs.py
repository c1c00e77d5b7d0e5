"""A sync that fails, of a file or of a folder's names, stops the store: what it says is safe is safe."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError, DiskFull, SyncFailed
from rmq.store.abortfile import SYNC_FAILED
from rmq.store.config import BrokerRole
from rmq.store.groupcommit import LogSync
from rmq.store.health import StopBefore
from rmq.store.messages import BatchEntry, PutResult, PutStatus, StoreError
from tests.store.support import ROOT, Box, all_records, append, log_events, message

ALL_DAY = ";".join(map(str, range(24)))
LOG = f"{ROOT}/commitlog"
ABORT = f"{ROOT}/abort"


class BugTests(SynchronousTestCase):
    def test_a_bug_is_shown_as_it_is(self) -> None:
        """What is no error of the disk is logged with its own traceback, and is not taken for a failed sync."""
        file = SimpleNamespace(sync=lambda: fail(ZeroDivisionError()))
        log: Any = SimpleNamespace(end=10, flushed=0, unsynced=lambda target: [file])
        failures: list[DiskError] = []
        LogSync(log, Clock(), on_synced=lambda flushed: None, on_failure=failures.append).request()
        self.assertEqual([each.type for each in self.flushLoggedErrors()], [ZeroDivisionError])
        self.assertEqual(failures, [])


class RequestTests(SynchronousTestCase):
    def test_no_fsync_without_a_request(self) -> None:
        """With ASYNC_FLUSH what is written during an fsync waits for the next interval: the disk gets its pauses."""
        syncs: list[Deferred[None]] = []

        def sync() -> Deferred[None]:
            syncs.append(Deferred())
            return syncs[-1]

        log: Any = SimpleNamespace(end=10, flushed=0, unsynced=lambda target: [SimpleNamespace(sync=sync)])
        log_sync = LogSync(log, Clock(), on_synced=lambda flushed: None, on_failure=lambda error: None)
        for requests in (1, 2):
            before = len(syncs)
            for _ in range(requests):
                log_sync.request()
            log.end += 10
            for number in range(before, before + requests):
                syncs[number].callback(None)
            self.assertEqual(len(syncs), before + requests)


class FailedFolderSyncTests(SynchronousTestCase):
    """
    The names of a folder may be lost after a sync that failed, and the kernel would call a second one a success. A
    broker that goes on would acknowledge messages in files that a power failure takes whole.
    """

    def setUp(self) -> None:
        self.heard: list[str] = []

    def begin(self, folder: str, **config: Any) -> None:
        """Open a store with some messages; from now on syncs of ``folder`` fail."""
        self.box = Box(**config)
        self.store = self.box.open()
        self.store.on_failure(lambda: self.heard.append(folder))
        self.events = log_events(self)
        if not self.store.config.is_slave:
            self.box.put_many(100)
        self.box.disk.sync_fails = lambda path: path == folder

    def assert_stopped(self) -> None:
        """The broker was told once, puts are refused with the reason, and the next start is a careful one."""
        self.assertEqual(len(self.heard), 1)
        self.assertFalse(self.store.is_writable)
        self.assertIn("a sync failed: ", str(self.store.refuses_because))
        self.assertIn(f"{self.heard[0]}: cannot fsync", str(self.store.refuses_because))
        self.assertIn("a sync failed", [event.get("what") for event in self.events])
        self.assertEqual(self.box.disk.read_whole(ABORT), SYNC_FAILED)
        self.box.put(message(0))
        self.box.run(30)
        self.assertEqual(len(self.heard), 1)
        end = self.store.end_offset
        self.box.kill()
        self.box.disk.recover()
        again = self.box.open()
        self.assertEqual(again.end_offset, end)
        load = again.health().load
        assert load is not None
        self.assertIs(load.stop_before, StopBefore.SYNC_FAILED)

    def test_a_disk_that_syncs_nothing(self) -> None:
        """The next start is a careful one also when the note of the failure could not be synced."""
        self.begin(LOG)
        self.box.disk.sync_fails = lambda path: True
        self.box.put(message(0))
        self.box.run(30)
        self.assertFalse(self.store.is_writable)
        self.box.kill()
        self.box.disk.sync_fails = lambda path: False
        load = self.box.open().health().load
        assert load is not None
        self.assertIs(load.stop_before, StopBefore.SYNC_FAILED)

    def test_new_log_file(self) -> None:
        """The put that needs another file is refused, and so are all that follow: none is in a file without a name."""
        self.begin(LOG)
        end = self.store.end_offset
        (result,) = self.box.put(message(0, body=b"x" * 10_000))
        self.assertIs(result.status, PutStatus.CREATE_MAPPED_FILE_FAILED)
        self.assertEqual((self.store.end_offset, self.box.disk.list_dir(LOG)), (end, [f"{0:020d}"]))
        self.assertIs(self.box.put(message(0))[0].status, PutStatus.SERVICE_NOT_AVAILABLE)
        self.assert_stopped()

    def test_new_log_file_of_a_slave(self) -> None:
        """A slave acknowledges no bytes in a file whose name may be lost."""
        self.begin(LOG, broker_role=BrokerRole.SLAVE)
        self.assertRaises(SyncFailed, self.store.append_raw, 0, b"x" * 10)
        self.assertRaises(StoreError, self.store.append_raw, 0, b"x" * 10)
        self.assert_stopped()

    def test_mark_of_a_slave(self) -> None:
        """A slave that has compared what a power failure may have changed cannot note that it is sound: it stops."""
        box = Box()
        store = box.open()
        box.put_many(10)
        whole = bytes(store.read(0, 1 << 20))
        self.begin("nothing", broker_role=BrokerRole.SLAVE)
        self.store.append_raw(0, whole[:1000])
        self.box.run(61)
        self.store.append_raw(1000, whole[1000:])
        self.box.run(11)
        self.box.crash()
        self.store = self.box.open()
        self.store.on_failure(lambda: self.heard.append(ROOT))
        self.box.disk.sync_fails = lambda path: path == ROOT
        resume = self.store.resume_offset
        self.assertRaises(SyncFailed, self.store.append_raw, resume, whole[resume:])
        self.assertEqual(self.heard, [ROOT])

    def test_deleted_log_file(self) -> None:
        """A file that expired may come back, and be the only one: nothing more is deleted or written."""
        self.begin(LOG, file_reserved_time=1, delete_when=ALL_DAY)
        self.box.disk.recover()
        self.box.put_many(200)
        self.box.disk.sync_fails = lambda path: path == LOG
        self.box.run(3720)
        self.assert_stopped()

    def test_folder_that_cannot_be_opened(self) -> None:
        """Without a free file descriptor no sync was tried: a put is refused, and a later one works."""
        self.begin("nothing")
        sync_dir = type(self.box.disk).sync_dir

        def refuse(disk: object, path: str) -> None:
            raise DiskError(path, "Too many open files")

        self.patch(type(self.box.disk), "sync_dir", refuse)
        big = message(0, body=b"x" * 10_000)
        self.assertIs(self.box.put(big)[0].status, PutStatus.CREATE_MAPPED_FILE_FAILED)
        self.patch(type(self.box.disk), "sync_dir", sync_dir)
        self.box.run(1)
        self.assertIs(self.box.put(big)[0].status, PutStatus.PUT_OK)
        self.assertEqual(self.heard, [])

    def test_queues_and_index(self) -> None:
        """So it is with the names of new queues, their files and the index."""
        for folder in ("consumequeue", "consumequeue/Topic", "consumequeue/Topic/0", "index"):
            self.heard.clear()
            self.begin(f"{ROOT}/{folder}")
            self.box.run(61)
            self.assert_stopped()

    def test_file_of_a_queue(self) -> None:
        """A unit that an fsync may have lost does not count as stored: a consumer would never get its message."""
        self.begin(f"{ROOT}/consumequeue/Topic/0/{0:020d}")
        self.box.run(61)
        self.assert_stopped()

    def test_written_for_a_dump(self) -> None:
        """A dump that makes the folder of the queues stops the store as its own round would."""
        self.begin(ROOT)
        self.assertRaises(SyncFailed, self.store.write_buffers)
        self.assert_stopped()

    def test_deleted_topic(self) -> None:
        """A deletion that may not last is an error for the operator, and the store stops: numbers would come twice."""
        self.begin(f"{ROOT}/consumequeue")
        self.box.disk.recover()
        self.box.run(2)
        self.box.disk.sync_fails = lambda path: path == f"{ROOT}/consumequeue"
        deleted = self.store.delete_topic("Topic")
        self.box.run(1)
        self.failureResultOf(deleted, SyncFailed)
        self.assert_stopped()

    def test_everybody_is_answered(self) -> None:
        """A producer whose slaves would have been asked in a moment is answered when the store stops, not never."""
        answered: list[PutStatus] = []
        asked, done = Deferred[PutStatus](), Deferred[PutStatus]()
        done.addCallback(answered.append)
        self.begin(ROOT, broker_role=BrokerRole.SYNC_MASTER)
        replication: Any = SimpleNamespace(wait_for_slaves=lambda _offset, _deadline_ms: asked)
        self.store.replication = replication
        for waiter in (Deferred[PutStatus](), done):
            self.store.wait_for(append(self.store, message(0)), waiter)
        self.assertRaises(SyncFailed, self.store.write_buffers)
        self.assertEqual(answered, [PutStatus.SERVICE_NOT_AVAILABLE])

    def test_at_the_stop(self) -> None:
        """A stop whose syncs fail is none in order: the next start is as careful as after a power failure."""
        cases: tuple[Callable[[str], bool], ...] = (
            lambda path: path == ROOT,
            lambda path: path.endswith("checkpoint.rmq"),
            lambda path: path.endswith("/consumequeue/Topic/0"),
        )
        for number, fails in enumerate(cases):
            self.begin("nothing")
            self.box.disk.sync_fails = fails
            self.box.stop()
            self.assertEqual(self.box.disk.read_whole(ABORT), SYNC_FAILED, f"case {number}")
            self.assertTrue([event for event in self.events if "stopped cleanly" in event["log_format"]])
            self.box.disk.recover()
            self.box.open()

    def test_at_the_start(self) -> None:
        """A start whose syncs fail is refused, and the next one is careful."""
        self.begin("nothing")
        self.box.kill()
        self.box.disk.sync_fails = lambda path: path.startswith(LOG)
        self.assertRaises(StoreError, self.box.open)
        self.assertEqual(self.box.disk.read_whole(ABORT), SYNC_FAILED)
        self.box.kill()
        self.box.disk.recover()
        self.assertEqual(sum(map(len, all_records(self.box.open()).values())), 100)


class FailedWriteTests(SynchronousTestCase):
    def test_part_of_a_put(self) -> None:
        """
        A put whose write fails half-way leaves nothing: the next message, be it shorter, is the last that a start, a
        slave or a consumer finds.
        """
        for seed in range(30):
            for how in ("kill", "crash"):
                box = Box(seed)
                store = box.open()
                box.put_many(5)
                box.run(12)
                box.disk.fail_writes = 1
                (refused,) = box.put(message(5, body=b"x" * 3000))
                self.assertIs(refused.status, PutStatus.SERVICE_NOT_AVAILABLE)
                (taken,) = box.put(message(6, body=b"y"))
                self.assertIs(taken.status, PutStatus.PUT_OK)
                written = box.disk.read_whole(f"{LOG}/{0:020d}")
                self.assertEqual(written[taken.next_offset :].count(0), 16384 - taken.next_offset, f"seed {seed}")
                box.run(12)
                before = all_records(store)
                store = box.reopen(how)
                self.assertEqual((store.end_offset, all_records(store)), (taken.next_offset, before), f"seed {seed}")

    def test_part_of_a_batch(self) -> None:
        """A batch that was refused because its write failed half-way is not there after a kill, not even its front."""
        for seed in range(30):
            box = Box(seed)
            store = box.open()
            box.put_many(5)
            before, end = all_records(store), store.end_offset
            box.disk.fail_writes = 1
            refused = store.put_batch(message(6), [BatchEntry(b"x" * 500, "") for _ in range(6)])
            assert isinstance(refused, PutResult)
            self.assertIs(refused.status, PutStatus.SERVICE_NOT_AVAILABLE)
            store = box.reopen("kill")
            self.assertEqual((store.end_offset, all_records(store)), (end, before), f"seed {seed}")

    def test_disk_that_takes_nothing_for_a_while(self) -> None:
        """What could not be cleared at once either is cleared before the next message."""
        for seed in range(10):
            box = Box(seed)
            box.open()
            box.put_many(5)
            box.disk.write_fails = lambda path: path.startswith(LOG)
            self.assertIs(box.put(message(5, body=b"x" * 3000))[0].status, PutStatus.SERVICE_NOT_AVAILABLE)
            box.disk.recover()
            (taken,) = box.put(message(6, body=b"y"))
            written = box.disk.read_whole(f"{LOG}/{0:020d}")
            self.assertEqual(written[taken.next_offset :].count(0), 16384 - taken.next_offset, f"seed {seed}")

    def test_queues_stop_the_store(self) -> None:
        """Queues that cannot be written, but for want of room, stop the store, and it says that it was the disk."""
        box = Box()
        store = box.open()
        box.disk.write_fails = lambda path: "/consumequeue/" in path
        box.put_many(3)
        box.run(2)
        self.assertFalse(store.is_writable)
        self.assertIn("the disk failed: ", str(store.refuses_because))
        self.assertIn("Input/output error", str(store.refuses_because))

    def test_sync_failed_is_no_full_disk(self) -> None:
        """Nobody who catches a full disk, which passes, catches a failed sync, which does not."""
        self.assertFalse(issubclass(SyncFailed, DiskFull))
