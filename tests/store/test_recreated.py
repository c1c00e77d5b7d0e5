"""A topic that was deleted and made again begins at number 0 again: everywhere only its new life is seen."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.sim.node import platform_for
from rmq.store import dispatch
from rmq.store.config import BrokerRole
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.messages import BatchEntry, PutResult, PutStatus, StoreError
from rmq.store.queues import QueueTable
from rmq.store.store import MessageStore
from rmq.wire.record import decode_record
from tests.seeds import SEED
from tests.store import test_walk
from tests.store.support import SYNC, Box, log_events, message, queue_records, unique_key

ANEW = " reset from its end "


def bodies(store: MessageStore, topic: str = "Topic", queue_id: int = 0) -> list[bytes]:
    """Return what a consumer would get of a queue."""
    return [record.body for record in queue_records(store, topic, queue_id)]


def body(*numbers: int) -> list[bytes]:
    return [f"body {number}".encode() for number in numbers]


class Case(SynchronousTestCase):
    def put(self, box: Box, *numbers: int, topic: str = "Topic") -> list[PutResult]:
        """Put messages into queue 0; all are acknowledged."""
        results = box.put(*(message(number, topic=topic, queue_id=0) for number in numbers))
        self.assertEqual({result.status for result in results}, {PutStatus.PUT_OK})
        return results

    def lose(self, box: Box, name: str) -> None:
        """Delete a folder of a store that is not open."""
        box.node.start()
        platform_for(box.node).disk.delete_tree(f"/store/{name}")
        box.kill()

    def both_ways(self) -> list[Any]:
        """Return what takes records from the log: the compiled way, if there is one, and Python's."""
        return [dispatch._compiled, None] if dispatch._compiled is not None else [None]


class WaitingTests(Case):
    """SYNC_FLUSH: the topic is deleted while messages of it wait for their sync."""

    def delete_while_one_waits(self, box: Box) -> MessageStore:
        store = box.open()
        self.put(box, *range(50))
        waiting = [store.put(message(number, queue_id=number % 2)) for number in range(50, 53)]
        batch = store.put_batch(message(0, queue_id=0), [BatchEntry(b"entry", "") for _ in range(3)])
        store.delete_topic("Topic")
        for answer in (*waiting, batch):
            assert isinstance(answer, Deferred)
            self.assertIs(box.world.settle(answer).status, PutStatus.PUT_OK)
        return store

    def test_what_is_acknowledged_later_can_be_read(self) -> None:
        """Messages of the new topic are numbered from 0, can be read, and stay readable."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            for how in ("stop", "kill", "crash"):
                for wait_s in (0, 70):
                    box = Box(**SYNC)
                    store = self.delete_while_one_waits(box)
                    self.assertEqual(store.dispatched_offset, store.end_offset)
                    self.assertEqual(store.queues(), [])
                    box.run(wait_s)
                    results = self.put(box, *range(100, 110))
                    self.assertEqual([result.queue_offset for result in results], list(range(10)))
                    box.run(wait_s)
                    self.assertEqual(bodies(store), body(*range(100, 110)))
                    store = box.reopen(how)
                    self.assertEqual(bodies(store), body(*range(100, 110)), how)
                    self.assertEqual(self.put(box, 5000)[0].queue_offset, 10)

    def test_made_again_while_the_old_ones_wait(self) -> None:
        """The sync that the old messages wait for may be that of the new ones."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            box = Box(**SYNC)
            store = box.open()
            self.put(box, *range(5))
            answers = [store.put(message(number, queue_id=0)) for number in range(5, 10)]
            store.delete_topic("Topic")
            answers += [store.put(message(number, queue_id=0)) for number in range(100, 105)]
            store.delete_topic("Topic")
            answers += [store.put(message(number, queue_id=0)) for number in range(200, 205)]
            box.run(1)
            self.assertTrue(all(isinstance(answer, Deferred) and answer.called for answer in answers))
            self.assertEqual(bodies(store), body(*range(200, 205)))
            self.assertFalse(store._dispatcher.passes_deleted)

    def test_keys_are_found(self) -> None:
        """As those that were there before, messages that waited are found by their keys until their file expires."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            box = Box(**SYNC)
            store = self.delete_while_one_waits(box)
            for number in (49, 50, 51, 52):
                found = store.query("Topic", unique_key(number), 10, 0, 1 << 60).messages
                self.assertEqual([decode_record(one).body for one in found], body(number))

    def test_recorded_once_they_are_passed(self) -> None:
        """Two rounds after the deletion nothing on disk leads back to it: a start reads no more than after any kill."""
        box = Box(**SYNC)
        store = box.open()
        self.put(box, *range(300), topic="Other")
        self.put(box, *range(300))
        box.run(70)
        box.disk.sync_s = (1.5, 1.6)
        store.put(message(1, queue_id=0))
        box.run(0.1)
        store.delete_topic("Topic")
        box.run(1.7)
        box.disk.sync_s = (0.001, 0.002)
        box.run(3)
        store = box.reopen("kill")
        self.assertEqual(store.queues(), [("Other", 0)])
        assert store._load_report is not None
        self.assertEqual(store._load_report.read_bytes, 0)

    def test_number_of_what_was_read_from_the_log(self) -> None:
        """A queue never gives out a number that a message in it has."""
        box = Box()
        queue = QueueTable(box.disk, "/other", 400).make("Topic", 0)
        self.assertTrue(queue.append(50, 1000, 100, 0))
        self.assertEqual((queue.end, queue.next), (51, 51))


class RestartTests(Case):
    def live_twice(self, **config: Any) -> Box:
        """Return a box whose store has 50 old and 5 new messages of a topic."""
        box = Box(**config)
        store = box.open()
        self.put(box, *range(50))
        self.put(box, *range(3), topic="Other")
        box.run(3)
        store.delete_topic("Topic")
        box.run(3)
        self.put(box, *range(1000, 1005))
        return box

    def test_killed_soon_after(self) -> None:
        """A kill right after messages of the new topic were acknowledged: they are there, and no others."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            for wait_s in (0.0, 0.3, 1.1, 5.0):
                box = Box(**SYNC)
                store = box.open()
                self.put(box, *range(50))
                box.run(70)
                store.delete_topic("Topic")
                box.run(wait_s / 2)
                self.put(box, *range(1000, 1005))
                box.run(wait_s)
                store = box.reopen("kill")
                self.assertEqual(bodies(store), body(*range(1000, 1005)), wait_s)
                self.assertEqual(self.put(box, 1005)[0].queue_offset, 5)
                self.assertEqual(bodies(box.reopen("crash")), body(*range(1000, 1006)))

    def test_lost_folders(self) -> None:
        """Queues or index made again from the whole log have the new messages alone, in the order of the log."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            for name in ("consumequeue", "index", "consumequeue_ext"):
                for config in ({}, {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 204}):
                    box = self.live_twice(**config)
                    box.stop()
                    self.lose(box, name)
                    store = box.open()
                    self.assertEqual(bodies(store), body(*range(1000, 1005)), (name, config))
                    self.assertEqual(bodies(store, "Other"), body(0, 1, 2))
                    self.assertEqual((store.min_offset("Topic", 0), store.max_offset("Topic", 0)), (0, 5))
                    found = queue_records(store, "Topic", 0)
                    self.assertEqual([one.phy_offset for one in found], sorted(one.phy_offset for one in found))
                    self.assertEqual(self.put(box, 1005)[0].queue_offset, 5)
                    for number in (3, 1003):
                        found_by_key = store.query("Topic", unique_key(number), 10, 0, 1 << 60).messages
                        self.assertEqual([decode_record(one).body for one in found_by_key], body(number))

    def test_says_so(self) -> None:
        """The log names queue, old end and place, once for each queue."""
        events = log_events(self)
        box = self.live_twice()
        box.stop()
        self.lose(box, "consumequeue")
        store = box.open()
        said = [event for event in events if ANEW in event.get("log_format", "")]
        where = queue_records(store, "Topic", 0)[0].phy_offset
        self.assertEqual(
            [(event["topic"], event["queue_id"], event["end"], event["phy_offset"]) for event in said],
            [("Topic", 0, 50, where)],
        )

    def test_first_messages_expired(self) -> None:
        """When the log begins within the new life, queues made again begin there; within the old one, at 0."""
        for first, count, low in ((30, 1, 0), (3, 30, 1)):
            box = Box(file_reserved_time=1, delete_when=";".join(map(str, range(24))))
            store = box.open()
            for number in range(first):
                self.put(box, number)
                box.put(message(0, topic="Other", body=bytes(2000)))
            store.delete_topic("Topic")
            for number in range(count):
                self.put(box, 1000 + number)
                box.put(message(0, topic="Other", body=bytes(2000)))
            box.run(2 * 3600)
            self.put(box, 1000 + count)
            box.run(3600)
            self.assertGreater(store.min_phy_offset, 0)
            readable = bodies(store)[-2:]
            box.stop()
            self.lose(box, "consumequeue")
            store = box.open()
            self.assertEqual(store.max_offset("Topic", 0), count + 1)
            self.assertGreaterEqual(store.min_offset("Topic", 0), low)
            self.assertEqual(bodies(store)[-2:], readable)
            self.assertEqual([one.queue_offset for one in queue_records(store, "Topic", 0)][-1], count)

    def test_only_number_0(self) -> None:
        """No checksum covers a number: one that a flipped bit has lowered takes no message from the queue."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            box = Box()
            store = box.open()
            results = self.put(box, *range(30))
            box.stop()
            bad = results[24].phy_offset  # 24 becomes 16
            box.disk.flip_bit(store._commit_log.path(0), bad + 20 + 7, 3)
            self.lose(box, "consumequeue")
            found = set(bodies(box.open()))
            self.assertEqual(found, set(body(*range(30))) - set(body(24)))

    def test_killed_while_record_is_on_its_way(self) -> None:
        """A deletion while the store records where it stands is recorded in the next round."""
        box = Box()
        store = box.open()
        self.put(box, *range(30))
        self.put(box, 0, topic="Other")
        box.run(65)
        sync = QueueTable.sync
        left = [1]

        async def sync_and_delete(table: QueueTable) -> None:
            await sync(table)
            if left[0]:
                left[0] = 0
                store.delete_topic("Topic")

        self.patch(QueueTable, "sync", sync_and_delete)
        self.put(box, 1, topic="Other")
        box.run(62)
        self.assertEqual(left, [0])
        progress = store._point_file.load()
        assert progress is not None
        self.assertEqual(progress.queue_units, store._queues.total_units)
        self.assertEqual(box.reopen("kill").queues(), [("Other", 0)])

    def test_no_room_to_record(self) -> None:
        """A deletion that could not be recorded for want of room is recorded once there is some."""
        box = Box()
        store = box.open()
        self.put(box, *range(30))
        self.put(box, 0, topic="Other")
        box.run(65)
        box.disk.fill()
        full = self.patch(type(store._point_file), "write", lambda file, progress: box.disk.create("/store/x", 1 << 40))
        store.delete_topic("Topic")
        box.run(3)
        self.assertTrue(store._checkpointer.is_full)
        full.restore()
        box.disk.recover()
        box.run(3)
        self.assertEqual(box.reopen("kill").queues(), [("Other", 0)])

    def test_deletion_survives_a_power_failure(self) -> None:
        """Of a topic whose deletion is recorded no power failure brings back a queue, or worse, the half of one."""
        for seed in range(20):
            box = Box(seed)
            store = box.open()
            self.put(box, *range(50))
            self.put(box, 0, topic="Other")
            box.run(seed % 2 * 70)
            store.delete_topic("Topic")
            box.run(3)
            self.assertEqual(box.reopen("crash").queues(), [("Other", 0)], seed)

    def test_deleted_before_anything_was_written(self) -> None:
        """A topic can be deleted while its queues and their extension are in memory only."""
        box = Box(enable_consume_queue_ext=True)
        store = box.open()
        self.put(box, *range(3))
        store.delete_topic("Topic")
        self.put(box, *range(10, 13))
        box.run(3)
        self.assertEqual(bodies(box.reopen()), body(10, 11, 12))


class Pair:
    """A master and a slave that gets the master's log."""

    def __init__(self, seed: int = 1, **config: Any) -> None:
        self.config = config
        self.master = Box(seed, **config)
        self.slave = Box(seed + 1, broker_role=BrokerRole.SLAVE, **config)
        self.master.open()
        self.slave.open()

    def ship(self, step: int = 4096) -> None:
        """Bring the slave up to date."""
        master, slave = self.master.store, self.slave.store
        assert master is not None and slave is not None
        while slave.end_offset < master.end_offset:
            slave.append_raw(slave.end_offset, bytes(master.read(slave.end_offset, step)))
        self.slave.run(1)


class SlaveTests(Case):
    def test_new_life(self) -> None:
        """A slave, which hears of no deletion, shows the new messages; a master made of it goes on behind them."""
        for way in self.both_ways():
            self.patch(dispatch, "_compiled", way)
            for config in ({}, {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 204}):
                for how in ("stop", "kill"):
                    pair = Pair(**config)
                    self.put(pair.master, *range(50))
                    pair.ship()
                    assert pair.master.store is not None and pair.slave.store is not None
                    pair.master.store.delete_topic("Topic")
                    self.put(pair.master, *range(1000, 1025))
                    arrivals: list[int] = []

                    def arrived(topic: str, queue_id: int, end: int, code: int, to: list[int] = arrivals) -> None:
                        to.append(end)

                    pair.slave.store.on_arrival(arrived)
                    pair.ship(1 + 97)
                    self.assertEqual(arrivals, list(range(1, 26)))
                    self.assertEqual(bodies(pair.slave.store), body(*range(1000, 1025)))
                    store = pair.slave.reopen(how, broker_role=BrokerRole.ASYNC_MASTER)
                    self.assertEqual(bodies(store), body(*range(1000, 1025)))
                    (result,) = self.put(pair.slave, 2000)
                    self.assertEqual(result.queue_offset, 25)

    def test_recorded_soon(self) -> None:
        """Soon after a queue began anew a start needs no more of the log than after any kill."""
        pair = Pair()
        self.put(pair.master, *range(50))
        pair.ship()
        pair.slave.run(70)
        assert pair.master.store is not None
        pair.master.store.delete_topic("Topic")
        self.put(pair.master, *range(1000, 1005))
        pair.ship()
        pair.slave.run(2)
        store = pair.slave.reopen("kill")
        assert store._load_report is not None
        self.assertEqual(store._load_report.read_bytes, 0)
        self.assertEqual(bodies(store), body(*range(1000, 1005)))

    def test_power_failure_at_any_time(self) -> None:
        """Whatever of the old and the new files a power failure leaves, the slave shows the new messages in the end."""
        seed = SEED
        for number in range(30):
            rng = random.Random(f"{seed}/{number}")
            pair = Pair(rng.randrange(1 << 20), **rng.choice(({}, {"enable_consume_queue_ext": True})))
            self.put(pair.master, *range(rng.randrange(1, 90)))
            pair.ship()
            pair.slave.run(rng.choice((0.5, 2, 70)))
            assert pair.master.store is not None
            pair.master.store.delete_topic("Topic")
            count = rng.randrange(1, 60)
            self.put(pair.master, *range(1000, 1000 + count))
            pair.ship()
            pair.slave.run(rng.random() * 3)
            pair.slave.reopen("crash")
            pair.ship()
            assert pair.slave.store is not None
            self.assertEqual(bodies(pair.slave.store), body(*range(1000, 1000 + count)), f"seed {seed}, round {number}")

    def test_files_that_cannot_be_deleted(self) -> None:
        """A disk on which the old files cannot be deleted stops the store; the next start makes the queue again."""
        pair = Pair()
        self.put(pair.master, *range(50))
        pair.ship()
        assert pair.master.store is not None and pair.slave.store is not None
        pair.master.store.delete_topic("Topic")
        self.put(pair.master, *range(1000, 1005))
        delete = type(pair.slave.disk).delete

        def refuse(disk: Any, path: str) -> None:
            if path.endswith("/00000000000000000400"):
                raise DiskError(path, "Input/output error")
            delete(disk, path)

        broken = self.patch(type(pair.slave.disk), "delete", refuse)
        events = log_events(self)
        pair.ship()
        self.assertEqual(pair.slave.store.max_offset("Topic", 0), 50)
        (event,) = [event for event in events if "restarted" in event["log_format"]]
        self.assertIn("a queue could not be reset, the store takes no more messages", str(formatEvent(event)))
        self.assertRaises(StoreError, pair.slave.store.append_raw, pair.slave.store.end_offset, b"x")
        self.assertIn("/00000000000000000400", str(pair.slave.store.refuses_because))
        broken.restore()
        self.put(pair.master, 1005)
        pair.slave.reopen("kill")
        pair.ship()
        self.assertEqual(bodies(pair.slave.store), body(*range(1000, 1006)))
        self.assertEqual(bodies(pair.slave.reopen()), body(*range(1000, 1006)))


class QueueTests(Case):
    def test_place_before_number(self) -> None:
        """What lies before the end of the last message is known, whatever number it has."""
        box = Box()
        box.node.start()
        queue: ConsumeQueue = QueueTable(box.disk, "/other", 400).make("Topic", 0)
        for number in range(5):
            self.assertTrue(queue.append(number, 1000 + number * 100, 100, 0))
        for number in (0, 3, 5, 6, 100):
            self.assertFalse(queue.append(number, 400, 100, 0))
            self.assertFalse(queue.append(number, 1400, 100, 0))
        self.assertEqual((queue.end, queue.max_phy), (5, 1500))


class RecreatedLog(test_walk.RandomLog):
    """A log of topics of which now and then one is deleted and made again."""

    def add(self) -> None:
        if self.numbers and self.rng.random() < 0.05:
            self.numbers[self.rng.choice(list(self.numbers))] = 0
        super().add()


class RecreatedWalkTests(test_walk.WalkTests):
    """The compiled way and Python's also agree about queues that begin anew."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(test_walk, "RandomLog", RecreatedLog)


class ModelTests(Case):
    def test_anything_in_any_order(self) -> None:
        """
        Puts, deletions, stops, kills and lost folders: a queue shows the messages since its topic's last deletion.

        But for a queue that has none: there a start may bring back those of an earlier life. The slave has the same.
        """
        seed = SEED
        log_events(self)
        for number in range(20):
            for way in self.both_ways():
                self.patch(dispatch, "_compiled", way)
                self.run_one(random.Random(f"{seed}/{number}"), f"seed {seed}, round {number}, compiled {bool(way)}")

    def run_one(self, rng: random.Random, where: str) -> None:
        pair = Pair(rng.randrange(1 << 20), **rng.choice((SYNC, {})))
        box = pair.master
        model: dict[tuple[str, int], list[bytes]] = {(topic, queue): [] for topic in "ab" for queue in (0, 1)}
        serial = 0
        for _ in range(25):
            store = box.store
            assert store is not None
            chance = rng.random()
            if chance < 0.5:
                answers = []
                for _ in range(rng.choice((1, 5, 30))):
                    key = rng.choice(list(model))
                    serial += 1
                    answers.append(store.put(message(serial, topic=key[0], queue_id=key[1])))
                    model[key] += body(serial)
                if rng.random() < 0.7:
                    for answer in answers:
                        if isinstance(answer, Deferred):
                            box.world.settle(answer)
            elif chance < 0.7:
                topic = rng.choice("ab")
                store.delete_topic(topic)
                model[topic, 0], model[topic, 1] = [], []
            elif chance < 0.85:
                box.run(rng.choice((0.1, 1, 3, 70)))
            else:
                box.run(1)
                pair.ship()
                if rng.random() < 0.3:
                    box.stop()
                    self.lose(box, rng.choice(("consumequeue", "index")))
                    store = box.open()
                else:
                    store = box.reopen(rng.choice(("stop", "kill")))
                for key, expected in model.items():
                    if not expected:
                        model[key] = bodies(store, *key)
            if rng.random() < 0.5:
                box.run(1)
                pair.ship()
                assert pair.slave.store is not None and box.store is not None
                for key, expected in model.items():
                    self.assertEqual(bodies(box.store, *key), expected, where)
                    if expected:
                        self.assertEqual(
                            queue_records(pair.slave.store, *key), queue_records(box.store, *key), f"slave, {where}"
                        )
            if rng.random() < 0.05:
                pair.slave.reopen(rng.choice(("stop", "kill", "crash")))
