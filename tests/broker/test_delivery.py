"""A backlog of delayed messages: written together as one by one, beside other work, and none is lost."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.delays import SLICE
from rmq.store.appender import Host
from rmq.store.messages import Message
from rmq.wire.record import decode_records, encode_properties
from tests.broker.harness import OneBroker, pull_ext, send_ext
from tests.broker.test_delays import SCHEDULE
from tests.needs import need_compiled
from tests.seeds import SEED

V4, V6 = (bytes((10, 0, 0, 9)), 10911), (bytes(15) + b"\1", 10911)
TOPICS = ("T", "%RETRY%g", "%DLQ%g", "New", "Gone")


def parked(chance: random.Random, level: int, number: int) -> Message:
    """Return a message that waits in a level's queue, mostly an ordinary one."""

    def mostly(usual: Any, *others: Any) -> Any:
        return usual if chance.random() < 0.95 else chance.choice(others)

    pairs = {
        "KEYS": mostly("k 1", " a  b ", "x " * 40),
        "TAGS": chance.choice(("a", "b")),
        "DELAY": str(level),
        "UNIQ_KEY": f"{number:032X}",
        "WAIT": "true",
        "own": mostly("value", "ü", "\x00", "x" * 20_000),
        "REAL_TOPIC": mostly(
            chance.choice(TOPICS), SCHEDULE, "RMQ_SYS_TRANS_HALF_TOPIC", "a/b", "é", "T" * 127, "T" * 128
        ),
        "REAL_QID": mostly(str(chance.randrange(4)), "-1", "x", "9", "007", "²", str(1 << 31), str(1 << 40)),
    }
    for name in chance.sample(sorted(pairs), k=mostly(0, 1, 2)):
        del pairs[name]
    names = list(pairs)
    chance.shuffle(names)
    text = encode_properties({name: pairs[name] for name in names})
    text += mostly("", "\x02", "\x02REAL_TOPIC\x01", "\x02REAL_TOPIC\x01T", "\x02REAL_QID\x012\x02", "\x02\x02TAGS\x01")
    return Message(
        topic=SCHEDULE,
        queue_id=level - 1,
        body=mostly(b"%d" % number, b"", b"b" * 3000),
        flag=mostly(0, 7, -7),
        properties=text,
        sys_flag=mostly(0, 1, 8, 9, 0x301),
        born_timestamp=1_700_000_000_000 + number,
        born_host=mostly(V4, V6),
        store_host=mostly(V4, V6),
        reconsume_times=chance.randrange(5),
        prepared_transaction_offset=mostly(0, 77),
        wait_store_msg_ok=False,
        was_stored=True,
    )


class Backlog:
    """A broker with parked messages, of which all are due at once after :meth:`let_come`."""

    def __init__(self, **values: str) -> None:
        self.one = OneBroker(values)
        #: how many messages were written together
        self.together: list[int] = []
        self.client = self.one.connect()
        for queue in range(4):
            self.client.ask(310, send_ext("T", queue_id=queue))
        self._watch()

    def _watch(self) -> None:
        store = self.one.service.store
        append_many = store.append_many

        def counted(sends: Any, store_host: Host) -> int:
            count = append_many(sends, store_host)
            self.together.append(count)
            return count

        store.append_many = counted  # type: ignore[method-assign]

    def park(self, count: int, *, level: int = 1, queues: int = 1) -> None:
        for number in range(count):
            pairs = {"REAL_TOPIC": "T", "REAL_QID": str(number % queues), "DELAY": str(level)}
            text = encode_properties(pairs)
            message = Message(SCHEDULE, level - 1, b"%d" % number, 0, text, 0, 1, V4, V4, wait_store_msg_ok=False)
            self.one.service.store.put(message)

    def let_come(self) -> None:
        """Let the wall clock go forward; what is due is seen when the levels are looked at again."""
        self.one.node.step_clock(7200)
        self.one.service.delays.start()

    def restart(self) -> None:
        self.one.start()
        self._watch()

    def bodies(self, queue: int = 0) -> list[bytes]:
        """Return the bodies of the delivered messages of a queue, in their order."""
        store = self.one.service.store
        found: list[bytes] = []
        offset = 1  # of the first one that was delivered
        while offset < store.max_offset("T", queue):
            messages = store.get("T", queue, offset, 32).messages
            found += [record.body for data in messages for record in decode_records(data)]
            offset += len(messages)
        return found


class TogetherTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def _compare(self, seed: int, *, at_once: bool = False, **values: str) -> None:
        """Deliver the same random messages together, and one by one; ``at_once``: all of them after the last."""
        sides = [Backlog(**values) for _ in range(2)]
        sides[1].one.service.delays._writes_many = False
        found = []
        for side in sides:
            chance = random.Random(seed)
            store, delays = side.one.service.store, side.one.service.delays
            for number in range(400):
                store.put(parked(chance, chance.choice((1, 2, 3, 18)), number))
                if not at_once and chance.random() < 0.05:
                    side.one.world.run_for(chance.choice((0.3, 1.0, 4.0)))
                if number == 300:
                    store.delete_topic("Gone")
            side.one.world.run_for(0.5)
            side.let_come()
            side.one.world.run_for(60)
            store.write_buffers()
            queues = {queue.key: queue.read(0, queue.end) for queue in store._queues}
            assert store._index is not None
            files = [file.read_at(0, file.size) for file in map(store._index._file, store._index.files)]
            log = b"".join(
                bytes(store.read(start, store.segment_bytes))
                for start in range(0, store.end_offset, store.segment_bytes)
            )
            found.append((delays.table().offset_table, delays.skipped, queues, files, log))
            side.one.end()
        for ours, reference in zip(*found, strict=True):
            self.assertEqual(ours, reference, f"seed {seed}")
        offsets, skipped = found[0][:2]
        self.assertEqual(sum(offsets.values()), 400)
        self.assertGreater(skipped, 0)
        self.assertGreater(sum(sides[0].together), 200, f"seed {seed}")
        self.assertEqual(sum(sides[1].together), 0)

    def test_same_bytes(self) -> None:
        """Log, queues, index, progress and what is skipped are those of messages that are delivered one by one."""
        self._compare(SEED)

    def test_small_files(self) -> None:
        """So they are where each log file has few messages."""
        self._compare(SEED, mappedFileSizeCommitLog="65536")

    def test_sync_flush(self) -> None:
        """So they are with SYNC_FLUSH, where messages are shown after the fsync."""
        self._compare(SEED, at_once=True, flushDiskType="SYNC_FLUSH")

    def test_sync_master(self) -> None:
        """A SYNC_MASTER without slaves delivers, as Apache's does: delivery does not wait for slaves."""
        self._compare(SEED, brokerRole="SYNC_MASTER")

    def test_further_queues(self) -> None:
        """Where messages can go to further queues each is written by itself."""
        backlog = Backlog(enableMultiDispatch="true")
        backlog.park(50)
        backlog.let_come()
        backlog.one.world.run_for(1)
        self.assertEqual(len(backlog.bodies()), 50)
        self.assertEqual(sum(backlog.together), 0)
        backlog.one.end()


class BacklogTests(SynchronousTestCase):
    def test_a_turn_is_bounded_and_idle_time_is_used(self) -> None:
        """No turn delivers more than a slice, whatever the number of due levels; the next one follows at once."""
        backlog = Backlog()
        for level in (1, 2, 3):
            backlog.park(1000, level=level, queues=4)
        backlog.let_come()
        world, store = backlog.one.world, backlog.one.service.store
        at_once = backlog.one.service.delays.at_once
        began_s, steps, done = world.now_s, 0, 0
        while done < 3000:
            world.step()
            steps += 1
            before, done = done, sum(store.max_offset("T", queue) - 1 for queue in range(4))
            self.assertLessEqual(done - before, at_once)
        self.assertLess(world.now_s - began_s, 0.001)
        # One turn for each slice and for each level without messages; some events belong to others.
        self.assertLess(steps, 3000 / at_once + 18 + 20)
        backlog.one.end()

    def test_a_stop_ends_the_slice(self) -> None:
        """What is stopped within a slice delivers no more than what it had read: one pull."""
        backlog = Backlog()
        backlog.park(1000, level=1, queues=4)
        service = backlog.one.service
        service.store.on_arrival(lambda *_: service.delays.stop(), topic="T")
        backlog.let_come()
        backlog.one.world.run_for(1)
        delivered = sum(service.store.max_offset("T", queue) - 1 for queue in range(4))
        self.assertIn(delivered, (1, 32), "32 are written together, without compiled modules one")
        backlog.one.end()

    def test_levels_take_turns(self) -> None:
        """A level with a large backlog does not hold up the others."""
        backlog = Backlog()
        backlog.park(2000, level=1)
        backlog.park(10, level=5)
        backlog.let_come()
        delays = backlog.one.service.delays
        while delays.table().offset_table.get(5, 0) < 10:
            backlog.one.world.step()
        self.assertLess(delays.table().offset_table[1], 4 * SLICE)
        backlog.one.end()

    def test_gathers_what_becomes_due(self) -> None:
        """Of a stream the first message comes at once, each other one at most 10 ms after it is due, some together."""
        backlog = Backlog()
        world, store = backlog.one.world, backlog.one.service.store
        due_s: list[float] = []
        came_s: list[float] = []
        for _ in range(50):
            backlog.park(1)
            due_s.append(world.now_s + 1)
            world.run_for(0.001)
        while len(came_s) < len(due_s):
            world.step()
            came_s += [world.now_s] * (store.max_offset("T", 0) - 1 - len(came_s))
        late_s = [came - due for came, due in zip(came_s, due_s, strict=True)]
        self.assertLess(late_s[0], 0.0015)
        self.assertLess(max(late_s), 0.0115)
        self.assertLessEqual(len(set(came_s)), 6)
        backlog.one.end()

    def test_a_send_beside_it(self) -> None:
        """A send is answered while most of a backlog still waits."""
        backlog = Backlog()
        backlog.park(3000)
        backlog.let_come()
        opaque = backlog.client.post(310, send_ext("T", queue_id=3))
        asked_s = backlog.one.world.now_s
        self.assertEqual(backlog.client.wait(opaque).code, 0)
        self.assertLess(backlog.one.world.now_s - asked_s, 0.01)
        backlog.one.world.run_for(1)
        self.assertEqual(len(backlog.bodies()), 3000)
        backlog.one.end()

    def test_kill_in_the_middle(self) -> None:
        """A kill at any moment of a delivery loses nothing, and the saved progress is not ahead of the queue."""
        chance = random.Random(SEED)
        for _ in range(5):
            backlog = Backlog(flushDelayOffsetInterval="1000")
            backlog.park(500)
            backlog.let_come()
            for _ in range(chance.randrange(40)):
                backlog.one.world.step()
            if chance.random() < 0.5:
                saving = Deferred.fromCoroutine(backlog.one.service.delays.persist())
                saving.addErrback(lambda failure: None)
                for _ in range(chance.randrange(20)):
                    backlog.one.world.step()
            backlog.one.node.kill()
            backlog.restart()
            saved = backlog.one.service.delays.table().offset_table.get(1, 0)
            delivered = backlog.one.service.store.max_offset("T", 0) - 1
            self.assertLessEqual(saved, delivered, f"seed {SEED}")
            backlog.one.world.run_for(2)
            found = backlog.bodies()
            self.assertEqual(set(found), {b"%d" % number for number in range(500)}, f"seed {SEED}")
            self.assertEqual(len(found), 500 + delivered - saved, f"seed {SEED}")
            backlog.one.end()

    def test_power_failure(self) -> None:
        """A power failure that takes delivered messages finds no saved progress behind them: they come again."""
        chance = random.Random(SEED)
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH") * 5:
            backlog = Backlog(flushDelayOffsetInterval="1000", flushDiskType=flush)
            backlog.one.world.run_for(9.5)  # the first write of progress comes after 10 s
            backlog.park(200)
            backlog.one.service.store.flush_soon()
            backlog.one.world.run_for(0.5)
            backlog.one.node.disk.sync_s = (1.5, 4.0)
            backlog.one.world.run_for(chance.uniform(0.5, 6))
            backlog.one.node.crash()
            backlog.restart()
            backlog.one.world.run_for(10)
            found = set(backlog.bodies())
            self.assertEqual(found, {b"%d" % number for number in range(200)}, f"seed {SEED}, {flush}")
            backlog.one.end()

    def test_synced_at_once(self) -> None:
        """With SYNC_FLUSH nobody sees a delivery before its sync, so that does not wait for the flush interval."""
        backlog = Backlog(flushDiskType="SYNC_FLUSH", flushIntervalCommitLog="600000")
        backlog.park(50)
        backlog.one.world.run_for(1.5)
        self.assertEqual(len(backlog.bodies()), 50)
        backlog.one.end()

    def test_stop_writes_what_was_delivered(self) -> None:
        """A clean stop saves the whole progress, though the log is synced after the file was asked for."""
        backlog = Backlog(flushCommitLogThoroughInterval="600000", flushIntervalCommitLog="600000")
        backlog.park(50)
        backlog.one.world.run_for(2)
        self.assertEqual(len(backlog.bodies()), 50)
        backlog.one.stop()
        backlog.restart()
        self.assertEqual(backlog.one.service.delays.table().offset_table, {1: 50})
        backlog.one.end()

    def test_full_disk(self) -> None:
        """While the disk is full nothing is skipped; afterwards each message comes, once and in order."""
        backlog = Backlog(mappedFileSizeCommitLog="65536")
        backlog.park(900)
        backlog.let_come()
        backlog.one.node.disk.fill()
        backlog.one.world.run_for(5)  # before the oldest files are deleted to make room
        self.assertLess(len(backlog.bodies()), 900)
        backlog.one.node.disk.recover()
        backlog.one.world.run_for(60)
        self.assertEqual(backlog.bodies(), [b"%d" % number for number in range(900)])
        self.assertEqual(backlog.one.service.delays.skipped, 0)
        backlog.one.end()

    def test_stop_between_slices(self) -> None:
        """A broker that stops within a backlog goes on with the rest after its start."""
        backlog = Backlog()
        backlog.park(500)
        backlog.let_come()
        for _ in range(30):
            backlog.one.world.step()
        backlog.one.stop()
        backlog.restart()
        backlog.one.world.run_for(2)
        self.assertEqual(backlog.bodies(), [b"%d" % number for number in range(500)])
        backlog.one.end()

    def test_waiting_consumer(self) -> None:
        """Messages that are written together wake the pull that waits for them."""
        backlog = Backlog()
        opaque = backlog.client.post(11, pull_ext(offset=1, sys_flag=6))
        backlog.one.world.run_for(0.1)
        backlog.park(40)
        backlog.let_come()
        answer = backlog.client.wait(opaque, 1.0)
        self.assertEqual(decode_records(answer.body or b"")[0].body, b"0")
        backlog.one.end()
