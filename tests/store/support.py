"""What the store's tests stand on: stores on simulated and on real disks, messages, and log events."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskUsage, RealDisk
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node, platform_for
from rmq.sim.world import World
from rmq.store.config import FlushDiskType, StoreConfig
from rmq.store.messages import GetStatus, Message, PutResult
from rmq.store.store import MessageStore
from rmq.wire.record import Record, decode_record

T = TypeVar("T")

ROOT = "/store"
HOST = (bytes((10, 0, 0, 1)), 10911)
BORN = (bytes((127, 0, 0, 1)), 40000)
#: small files, so that a few messages fill several
SMALL: dict[str, Any] = {
    "store_path_root_dir": ROOT,
    "mapped_file_size_commit_log": 16384,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 64,
    "max_index_num": 100,
}
SYNC: dict[str, Any] = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def append(store: MessageStore, message: Message) -> int:
    """Store a message without waiting, as :meth:`MessageStore.append_many` does; return where its record ends."""
    result = store._appender.put(message)
    assert result.ok, result
    for callback in store._appended:
        callback()
    return result.next_offset


def unique_key(number: int) -> str:
    """Return a key as Java clients make them."""
    return f"7F00000100002A9F0000{number:012X}"


def message(number: int = 0, **changes: Any) -> Message:
    """Return a message whose body, keys and tag tell its number."""
    values: dict[str, Any] = {
        "topic": "Topic",
        "queue_id": number % 3,
        "body": f"body {number}".encode(),
        "flag": 0,
        "properties": f"KEYS\x01k{number}\x02UNIQ_KEY\x01{unique_key(number)}\x02TAGS\x01tag{number % 2}",
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": BORN,
        "store_host": HOST,
    }
    return Message(**(values | changes))


class Box:
    """One simulated machine with a store on its disk, opened and closed at will."""

    def __init__(self, seed: int = 1, **config: Any) -> None:
        self.world = World(seed)
        self.node = Node(self.world, SimNet(self.world), "broker")
        self.config = StoreConfig(**(SMALL | config))
        self.store: MessageStore | None = None

    @property
    def disk(self) -> Any:
        return self.node.disk

    def open(self, *, start: bool = True, **changes: Any) -> MessageStore:
        """Begin a process and open the store in it."""
        if changes:
            self.config = attrs.evolve(self.config, **changes)
        self.node.start()
        assert self.node.process is not None
        platform: Platform = platform_for(self.node)
        self.store = MessageStore(platform.disk, platform.reactor, self.config, memory_bytes=1 << 30)
        self.store.load()
        if start:
            self.store.start()
        return self.store

    def stop(self) -> None:
        """Stop the store cleanly and end the process."""
        assert self.store is not None
        self.world.settle(self.store.stop())
        self.node.kill()

    def kill(self) -> None:
        """kill -9"""
        self.node.kill()

    def crash(self) -> None:
        """Power failure."""
        self.node.crash()

    def reopen(self, how: str = "stop", **changes: Any) -> MessageStore:
        """End the process by ``stop``, ``kill`` or ``crash`` and open the store again."""
        getattr(self, how)()
        return self.open(**changes)

    def put(self, *messages: Message) -> list[PutResult]:
        """Put messages and wait for all answers."""
        assert self.store is not None
        answers = [self.store.put(one) for one in messages]
        return [self.world.settle(one) if isinstance(one, Deferred) else one for one in answers]

    def put_many(self, count: int, first: int = 0) -> list[PutResult]:
        return self.put(*(message(number) for number in range(first, first + count)))

    def run(self, seconds: float) -> None:
        """Let time pass, with all that the store does meanwhile."""
        self.world.run_for(seconds)
        assert not self.world.failures, self.world.failures


def queue_records(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """Return all that a consumer would get of a queue, from its minimum on."""
    records: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.get(topic, queue_id, offset, 32)
        if result.status is not GetStatus.FOUND:
            assert result.status in (
                GetStatus.OFFSET_OVERFLOW_ONE,
                GetStatus.NO_MESSAGE_IN_QUEUE,
                GetStatus.NO_MATCHED_LOGIC_QUEUE,
                GetStatus.MESSAGE_WAS_REMOVING,
            ), result
            if result.status is not GetStatus.MESSAGE_WAS_REMOVING:
                return records
        records += [decode_record(data) for data in result.messages]
        offset = result.next_begin_offset


def all_records(store: MessageStore) -> dict[tuple[str, int], list[Record]]:
    """Return what consumers would get of every queue."""
    return {key: queue_records(store, *key) for key in sorted(store.queues())}


def log_events(case: SynchronousTestCase) -> list[dict[str, Any]]:
    """Return a list that fills with what is logged until the end of the test."""
    events: list[dict[str, Any]] = []
    observer = cast(ILogObserver, events.append)
    globalLogPublisher.addObserver(observer)
    case.addCleanup(globalLogPublisher.removeObserver, observer)
    return events


class RoomyDisk(RealDisk):
    """The disk of this machine, half of it free whatever lies there: a broker with a full one takes no message."""

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(total_bytes=1 << 40, free_bytes=1 << 39)


class ThreadClock(Clock):
    """A clock for RealDisk: time stands still, calls from its thread are run by :meth:`settle`."""

    def __init__(self, seconds: float = 1_767_225_600.0) -> None:
        super().__init__()
        self.rightNow = seconds
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def callFromThread(self, callable: Callable[..., object], *args: object) -> None:
        self._calls.put(lambda: callable(*args))

    def settle(self, deferred: Deferred[T]) -> T:
        """Wait for the thread until ``deferred`` has fired; return its result."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        while not results:
            self._calls.get(timeout=30)()
        if isinstance(results[0], Failure):
            results[0].raiseException()
        result: T = results[0]
        return result
