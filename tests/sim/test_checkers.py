"""Each rule of `rmq.sim.checkers`: a run in which exactly it is broken is found, in its words; a sound one is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.sim import checkers
from rmq.sim.checkers import Losses, PowerLoss, ReplicaWatch
from rmq.sim.cluster import ROOT, Cluster, Member
from rmq.sim.history import Committed, Copy, History, Sent, Transaction, same
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.scenario import Run
from rmq.sim.world import World
from rmq.store import layout
from rmq.wire.api.common import TopicConfig
from rmq.wire.api.routes import BrokerData, ClusterInfo, TopicRouteData
from rmq.wire.codes import ResponseCode
from rmq.wire.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tests.sim.support import (
    ASYNC_FLUSH,
    ASYNC_MASTER,
    SYNC_FLUSH,
    SYNC_MASTER,
    copy_of,
    failure,
    frame,
    history_of,
    image_of,
    losses,
    message,
    options,
    queues_of,
    record,
    seen,
    two_groups,
    write_log,
)

FLUSH_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE


class PromiseTests(SynchronousTestCase):
    """What an answer promised, which no fault excuses."""

    def test_is_durable(self) -> None:
        """A SYNC_FLUSH master's answer promises the disk, unless it says or may mean that the disk was late."""
        cases: list[tuple[bool, dict[str, Any]]] = [
            (True, {}),
            (True, {"took_s": 60.0}),
            (False, {"code": None}),
            (False, {"waits": False}),
            (False, {"code": FLUSH_TIMEOUT}),
            (True, {"code": SLAVE_TIMEOUT, "took_s": 3.9}),
            (False, {"code": SLAVE_TIMEOUT, "took_s": 4.1}),
            (True, {"code": NO_SLAVE}),
        ]
        for durable, changes in cases:
            sent = message("m", **changes)
            self.assertIs(losses(flush=SYNC_FLUSH).is_durable(sent), durable, changes)
            self.assertFalse(losses(flush=ASYNC_FLUSH).is_durable(sent), changes)

    def test_is_replicated(self) -> None:
        """Only a SYNC_MASTER's answer 0 to a producer that waited promises a slave."""
        cases: list[tuple[bool, dict[str, Any]]] = [
            (True, {}),
            (False, {"code": None}),
            (False, {"waits": False}),
            (False, {"code": SLAVE_TIMEOUT}),
            (False, {"code": NO_SLAVE}),
            (False, {"code": FLUSH_TIMEOUT}),
        ]
        for replicated, changes in cases:
            sent = message("m", **changes)
            self.assertIs(losses(role=SYNC_MASTER).is_replicated(sent), replicated, changes)
            self.assertFalse(losses(role=ASYNC_MASTER).is_replicated(sent), changes)


class ExcuseTests(SynchronousTestCase):
    """What faults excuse, and no more than that."""

    def test_of_master(self) -> None:
        """Only a failure of this group's master that put something at risk may have cost messages."""
        cases: list[tuple[bool, dict[str, Any]]] = [
            (True, {}),
            (False, {"group": "broker-b"}),
            (False, {"is_master": False}),
            (False, {"from_phy": 1000}),
            (True, {"from_phy": 999}),
        ]
        for counts, changes in cases:
            loss = failure(**changes)
            self.assertEqual(losses(loss).of_master("broker-a"), [loss] if counts else [], changes)

    def test_may_take(self) -> None:
        """A message may be gone when its master's power failed after the send, with its last byte not synced."""
        sent = message("m", phy=500)
        # The record ends at least so far behind its offset.
        end = 500 + len(sent.body) + 128
        cases: list[tuple[bool, dict[str, Any]]] = [
            (True, {}),
            (True, {"at_s": 1.0}),
            (False, {"at_s": 0.9}),
            (True, {"from_phy": end - 1}),
            (False, {"from_phy": end}),
            (False, {"group": "broker-b"}),
            (False, {"is_master": False}),
            (False, {"from_phy": 100, "end": 100}),
        ]
        for may, changes in cases:
            found = losses(failure(**changes))
            self.assertIs(found.may_take(sent), may, changes)
            # One failure among others is enough, and no number of others is.
            found.failures += [failure(at_s=0.1), failure(group="broker-b")]
            self.assertIs(found.may_take(sent), may, changes)
        self.assertFalse(losses().may_take(sent))

    def test_may_take_what_nobody_knows_of(self) -> None:
        """A message without an answer may lie anywhere in the log, so any loss may have taken it."""
        silent = message("m", code=None)
        self.assertTrue(losses(failure(from_phy=1 << 40, end=1 << 41)).may_take(silent))
        self.assertFalse(losses(failure(at_s=0.9)).may_take(silent))

    def test_never_what_was_durable(self) -> None:
        """What a SYNC_FLUSH master acknowledged, or showed to consumers, no failure excuses."""
        unsure = message("m", waits=False)
        sync, lazy = losses(failure(), flush=SYNC_FLUSH), losses(failure(), flush=ASYNC_FLUSH)
        self.assertFalse(sync.may_take(message("m")))
        self.assertTrue(sync.may_take(unsure))
        self.assertFalse(sync.may_take(unsure, was_seen=True))
        self.assertTrue(lazy.may_take(unsure, was_seen=True))

    def test_slave_failed_since(self) -> None:
        """A slave's acknowledgement counts until a slave of the same group loses its power or its disk."""
        cases: list[tuple[bool, dict[str, Any]]] = [
            (True, {}),
            (False, {"at_s": 4.9}),
            (False, {"group": "broker-b"}),
            (False, {"is_master": True}),
        ]
        for failed, changes in cases:
            loss = failure(**{"node": "broker-a-1", "is_master": False, **changes})
            self.assertIs(losses(loss).slave_failed_since("broker-a", 5.0), failed, changes)
            after_flush = losses(loss, haAckAfterFlush="true")
            self.assertFalse(after_flush.slave_failed_since("broker-a", 5.0), changes)
        self.assertFalse(losses().slave_failed_since("broker-a", 0.0))

    def test_may_diverge(self) -> None:
        """A slave may differ when it held what its master lost, or after a power failure of its own."""
        own = {"node": "broker-a-1", "is_master": False}
        cases: list[tuple[bool, dict[str, Any]]] = [
            (True, own),
            (False, {**own, "from_phy": 1000}),
            (False, {**own, "node": "broker-a-2"}),
            (True, {"ahead": ("broker-a-2", "broker-a-1")}),
            (False, {"ahead": ("broker-a-2",)}),
            (False, {"ahead": ("broker-a-1",), "from_phy": 1000}),
            (False, {"ahead": ("broker-a-1",), "group": "broker-b"}),
        ]
        cluster = Cluster(World(1), options(SYNC_MASTER, ASYNC_FLUSH, slaves=2))
        master, slave, _ = cluster.members
        for may, changes in cases:
            self.assertIs(losses(failure(**changes)).may_diverge(slave), may, changes)
        self.assertFalse(losses(failure()).may_diverge(master))

    def test_forget(self) -> None:
        """A slave that began with an empty store has no excuse any more; the others keep theirs."""
        cluster = Cluster(World(1), options(SYNC_MASTER, ASYNC_FLUSH, slaves=2))
        _, one, other = cluster.members
        found = losses(
            failure(ahead=("broker-a-1", "broker-a-2")),
            failure(node="broker-a-1", is_master=False),
            failure(node="broker-a-2", is_master=False),
        )
        found.forget(one)
        self.assertEqual([found.may_diverge(one), found.may_diverge(other)], [False, True])
        self.assertEqual(found.failures, [failure(ahead=("broker-a-2",)), failure(node="broker-a-2", is_master=False)])

    def test_skipped(self) -> None:
        """Consumers that saw a later, lost message may pass over the one that got its number after the loss."""
        late = message("late", at_s=6.0, offset=7)
        cases: list[tuple[bool, dict[str, Any], dict[str, Any]]] = [
            (True, {}, {}),
            (True, {}, {"queue_offset": 9}),
            (False, {}, {"queue_offset": 6}),
            (False, {}, {"group": "broker-b"}),
            (False, {}, {"topic": "events"}),
            (False, {}, {"queue_id": 1}),
            (True, {}, {"at_s": 15.0}),
            (False, {}, {"at_s": 15.1}),
            (False, {"at_s": 6.2}, {}),
            (False, {"group": "broker-b"}, {}),
            (False, {"is_master": False}, {}),
        ]
        for skipped, loss, shown in cases:
            history = history_of(late)
            history.seen.append(seen(late, **{"key": "lost", **shown}))
            self.assertIs(losses(failure(**loss)).skipped(history, late), skipped, (loss, shown))
            self.assertFalse(losses(failure(**loss), flush=SYNC_FLUSH).skipped(history, late))
        self.assertFalse(losses(failure()).skipped(history_of(late), late))


class WatchTests(SynchronousTestCase):
    """Power failures and new disks of a running cluster are noted, with what they put at risk."""

    def setUp(self) -> None:
        drawn = two_groups(SYNC_MASTER, ASYNC_FLUSH, slaves=2)
        self.cluster = Cluster(World(1), drawn)
        self.losses = Losses(drawn)
        self.losses.watch(self.cluster)
        self.cluster.world.run_for(3.0)
        lengths = {"broker-a-0": 200, "broker-a-1": 101, "broker-a-2": 100, "broker-b-0": 900, "broker-b-1": 900}
        for member in self.cluster.members:
            write_log(member.node.disk, b"x" * lengths.get(member.node.name, 1), start=65536)

    def fail_power(self, name: str) -> PowerLoss:
        self.cluster.world.nodes[name].crash()
        return self.losses.failures[-1]

    def test_what_was_at_risk(self) -> None:
        """Bytes behind the last sync are at risk, of a whole file when its name is; slaves that have them are named."""
        master = self.cluster.members[0].node.disk
        write_log(master, b"y" * 50, start=65536, at=100, synced=False)
        expected = PowerLoss(
            node="broker-a-0",
            group="broker-a",
            is_master=True,
            at_s=3.0,
            from_phy=65536 + 100,
            end=65536 + 200,
            ahead=("broker-a-1",),
        )
        self.assertEqual(self.fail_power("broker-a-0"), expected)
        master.create(layout.join(layout.commit_log_dir(ROOT), layout.file_name(131072)), 65536).close()
        self.assertEqual(self.fail_power("broker-a-0").from_phy, 131072)

    def test_nothing_at_risk(self) -> None:
        """A failure after a sync excuses nothing, and a slave's is not its master's."""
        loss = self.fail_power("broker-a-1")
        self.assertEqual((loss.node, loss.is_master, loss.ahead), ("broker-a-1", False, ()))
        self.assertGreater(loss.from_phy, loss.end)
        self.fail_power("broker-a-0")
        self.assertEqual(self.losses.of_master("broker-a"), [])

    def test_new_disk(self) -> None:
        """A slave with an empty disk has lost what it acknowledged before, also with haAckAfterFlush."""
        drawn = two_groups(SYNC_MASTER, ASYNC_FLUSH, haAckAfterFlush="true")
        found = Losses(drawn)
        cluster = Cluster(World(1), drawn)
        found.watch(cluster)
        cluster.world.run_for(3.0)
        cluster.world.nodes["broker-a-1"].disk.replace()
        self.assertTrue(found.slave_failed_since("broker-a", 3.0))
        self.assertFalse(found.slave_failed_since("broker-a", 3.1))
        self.assertFalse(found.slave_failed_since("broker-b", 3.0))


#: what a store may have in place of a message, by changes of its record
OTHERS: list[dict[str, Any]] = [
    {"topic": b"events"},
    {"queue_id": 1},
    {"body": b"other"},
    {"properties": b"KEYS\x01other"},
]


class AcknowledgedTests(SynchronousTestCase):
    """1: what was acknowledged stays."""

    def judge(self, sent: Sent, found: Losses, *copies: Copy, slaves: Any = ()) -> list[str]:
        history = history_of(sent, message("unanswered", code=None))
        return list(checkers.acked_stays(history, queues_of(*copies), {"broker-a": slaves}, found))

    def test_same(self) -> None:
        """A record is the message that was sent when key, topic, queue and body are the same."""
        sent = message("m")
        self.assertTrue(same(sent, record(sent)))
        for changes in OTHERS:
            self.assertFalse(same(sent, record(sent, **changes)), changes)

    def test_at(self) -> None:
        """A number is served when it lies from the minimum to the last record."""
        first, second = record(message("a", offset=5)), record(message("b", offset=6))
        copy = copy_of(first, second, min_offset=5)
        self.assertEqual([checkers.at(copy, number) for number in (4, 5, 6, 7)], [None, first, second, None])
        self.assertIsNone(checkers.at(None, 0))

    def test_holds(self) -> None:
        """A log holds a message when its place has its record, whole, and not just any."""
        sent = message("m", phy=300)
        self.assertTrue(checkers.holds(image_of([sent]), sent))
        self.assertFalse(checkers.holds(image_of(), sent))
        self.assertFalse(checkers.holds(image_of([message("m", phy=0)]), sent))
        for changes in (*OTHERS, {"phy_offset": 299}):
            self.assertFalse(checkers.holds(image_of([sent], **changes), sent), changes)
        self.assertFalse(checkers.holds(image_of([sent], hurt_at=300 + 90), sent))

    def test_long_message(self) -> None:
        """A slave's copy of a message with a long body is read whole."""
        sent = message("m", body=b"x" * 50_000)
        self.assertTrue(checkers.holds(image_of([sent]), sent))

    def test_served(self) -> None:
        """A message that its master serves at its number and place in the log is no violation."""
        sent = message("m", offset=5, phy=70)
        self.assertEqual(self.judge(sent, losses(), copy_of(record(sent), min_offset=5)), [])

    def test_nothing_there(self) -> None:
        """A message whose queue or number is not served is found."""
        sent = message("m", offset=1, phy=70)
        text = "m was acknowledged (0) at broker-a orders:0@1 (log 70), where there is nothing"
        for copies in ([], [copy_of(record(sent))], [copy_of(record(sent), record(sent), queue_id=1)]):
            self.assertEqual(self.judge(sent, losses(), *copies), [text])

    def test_something_else_there(self) -> None:
        """Another message, other contents, or the message at another place of the log are found."""
        sent = message("m", phy=70, code=NO_SLAVE)
        for changes in (*OTHERS, {"phy_offset": 71}):
            other = record(sent, **changes)
            key = "other" if "properties" in changes else "m"
            text = f"m was acknowledged (11) at broker-a orders:0@0 (log 70), where there is '{key}' at log "
            self.assertEqual(self.judge(sent, losses(), copy_of(other)), [text + str(other.phy_offset)], changes)

    def test_taken_by_a_power_failure(self) -> None:
        """What a failure may have taken from an ASYNC_MASTER is no violation."""
        self.assertEqual(self.judge(message("m"), losses(failure(), role=ASYNC_MASTER)), [])
        self.assertEqual(len(self.judge(message("m"), losses(failure(at_s=0.5), role=ASYNC_MASTER))), 1)

    def test_lost_though_replicated(self) -> None:
        """What a SYNC_MASTER lost one of its slaves must have, unless a slave failed as well."""
        sent = message("m", phy=70)
        found = losses(failure())
        text = "m, lost by its master, was acknowledged as replicated at broker-a orders:0@0 (log 70); no slave has it"
        self.assertEqual(self.judge(sent, found), [text])
        self.assertEqual(self.judge(sent, found, slaves=[image_of(), image_of([message("m", phy=0)])]), [text])
        self.assertEqual(self.judge(sent, found, slaves=[image_of(), image_of([sent])]), [])
        self.assertEqual(self.judge(message("m", phy=70, code=NO_SLAVE), found), [])
        found.failures.append(failure(node="broker-a-1", is_master=False))
        self.assertEqual(self.judge(sent, found), [])


class ReplicaWatchTests(SynchronousTestCase):
    """1, at the moment of the answer: so many slaves as a SYNC_MASTER waits for have the message in their files."""

    def watch(self, *failures: PowerLoss, role: Any = SYNC_MASTER, **store: Any) -> ReplicaWatch:
        drawn = two_groups(role, ASYNC_FLUSH, slaves=2, **store)
        self.cluster = Cluster(World(1), drawn)
        return ReplicaWatch(self.cluster, losses(*failures, role=role, **store))

    def give(self, sent: Sent, *names: str) -> None:
        """Let the named machines have a message."""
        for name in names:
            write_log(self.cluster.world.nodes[name].disk, frame(sent), synced=False)

    def check(self, watch: ReplicaWatch, sent: Sent, *has: str) -> list[str]:
        self.give(sent, *has)
        watch.acknowledged(sent)
        return watch.violations

    def test_any_slave(self) -> None:
        """One slave is enough, whichever it is; none, the master itself or one of another group are not."""
        sent = message("m")
        words = "m was acknowledged as replicated at broker-a orders:0@0 (log 0), but no slave has it"
        for has, violations in (
            (("broker-a-1",), []),
            (("broker-a-2",), []),
            ((), [words]),
            (("broker-a-0",), [words]),
            (("broker-b-1",), [words]),
        ):
            watch = self.watch()
            self.assertEqual((self.check(watch, sent, *has), watch.checked), (violations, 1), has)

    def test_in_sync_replicas(self) -> None:
        """inSyncReplicas counts the master and asks for one slave fewer, and at least for one."""
        sent = message("m")
        words = "m was acknowledged as replicated at broker-a orders:0@0 (log 0), but 1 of 2 slaves have it"
        self.assertEqual(self.check(self.watch(inSyncReplicas="3"), sent, "broker-a-1"), [words])
        self.assertEqual(self.check(self.watch(inSyncReplicas="3"), sent, "broker-a-1", "broker-a-2"), [])
        self.assertEqual(self.check(self.watch(inSyncReplicas="2"), sent, "broker-a-1"), [])
        self.assertEqual(len(self.check(self.watch(inSyncReplicas="1"), sent)), 1)

    def test_nothing_promised(self) -> None:
        """Answers that promise no slave, or a slave that has failed since, are not looked at."""
        slave_failed = failure(node="broker-a-1", is_master=False)
        for watch, sent in (
            (self.watch(), message("m", code=NO_SLAVE)),
            (self.watch(role=ASYNC_MASTER), message("m")),
            (self.watch(slave_failed), message("m")),
        ):
            self.assertEqual((self.check(watch, sent), watch.checked), ([], 0))


class CopyTests(SynchronousTestCase):
    """2: copies agree."""

    def setUp(self) -> None:
        self.cluster = Cluster(World(1), options(SYNC_MASTER, ASYNC_FLUSH, slaves=1))
        self.master, self.slave = self.cluster.members

    def judge(self) -> list[str]:
        return list(checkers.replicas_agree(self.master, self.slave))

    def test_equal(self) -> None:
        """A slave that is shorter, longer, or begins with a later file agrees where both have bytes."""
        data = bytes(range(1, 201)) * 100
        write_log(self.master.node.disk, data)
        self.assertEqual(self.judge(), [])
        write_log(self.slave.node.disk, data[:15_000])
        self.assertEqual(self.judge(), [])
        write_log(self.master.node.disk, data, start=65536)
        self.slave.node.disk.replace()
        write_log(self.slave.node.disk, data + b"more", start=65536)
        self.assertEqual(self.judge(), [])

    def test_different(self) -> None:
        """Each page that differs is found with its first byte and how many there are, the first three pages only."""
        data = b"x" * 30_000
        write_log(self.master.node.disk, data)
        write_log(self.slave.node.disk, data)
        for count, at in enumerate((5000, 9000, 9001, 16_383, 20_000, 29_999)):
            write_log(self.slave.node.disk, b"y", at=at)
            if count == 2:
                expected = [
                    "broker-a-1 differs from its master at 5000 (1 bytes of this page)",
                    "broker-a-1 differs from its master at 9000 (2 bytes of this page)",
                ]
                self.assertEqual(self.judge(), expected)
        third = "broker-a-1 differs from its master at 16383 (1 bytes of this page)"
        self.assertEqual(self.judge(), [*expected, third])

    def test_last_byte(self) -> None:
        """The last byte that both have is compared."""
        write_log(self.master.node.disk, b"x" * 4097)
        write_log(self.slave.node.disk, b"x" * 4096 + b"y")
        self.assertEqual(self.judge(), ["broker-a-1 differs from its master at 4096 (1 bytes of this page)"])


def broker(name: str, end: int, *, said: str | None = None, refused: int = 0) -> Any:
    """Return a broker whose log ends at ``end``, which was refused with ``said``, and refused others so often."""
    link = None if said is None else SimpleNamespace(last_error=said)
    status = SimpleNamespace(link=link, refused=refused)
    parts = SimpleNamespace(store=SimpleNamespace(end_offset=end), ha=SimpleNamespace(status=lambda: status))
    return SimpleNamespace(node=SimpleNamespace(name=name), broker=parts)


class HealedTests(SynchronousTestCase):
    """2, after healing."""

    def test_slave_is_complete(self) -> None:
        """A slave ends where its master ends, not before and not behind."""
        for end in (99, 100, 101):
            wrong = [] if end == 100 else [f"broker-a-1 ends at {end}, its master at 100"]
            found = checkers.slave_is_complete(broker("broker-a-0", 100), broker("broker-a-1", end))
            self.assertEqual(list(found), wrong)

    def test_is_parted(self) -> None:
        """Two logs of different length have parted when one side has said so."""
        cases: list[tuple[bool, Any, Any]] = [
            (True, broker("m", 100), broker("s", 90, said="the logs have diverged at 80")),
            (True, broker("m", 100), broker("s", 110, said="this slave is ahead of its master")),
            (True, broker("m", 100, refused=1), broker("s", 90, said="")),
            (True, broker("m", 100, refused=1), broker("s", 90)),
            (False, broker("m", 100), broker("s", 90, said="connection lost")),
            (False, broker("m", 100), broker("s", 90)),
            (False, broker("m", 100, refused=1), broker("s", 100, said="the logs have diverged at 80")),
        ]
        for parted, master, slave in cases:
            self.assertIs(checkers.is_parted(master, slave), parted)


class StoreTests(SynchronousTestCase):
    """3: queues and index are what the log dictates."""

    def test_store_is_sound(self) -> None:
        """A stopped broker's store is as its log says; damage is found with broker, kind, file and place."""
        run = Run(1, plan="quiet", chaos_s=1, options=options(ASYNC_MASTER, ASYNC_FLUSH))
        self.assertEqual(run.go().violations, [])
        (member,) = run.cluster.members
        self.assertEqual(list(checkers.store_is_sound(member, run.cluster)), [])
        folder = layout.consume_queue_dir(ROOT, "orders", 0)
        path = layout.join(folder, layout.file_name(0))
        member.node.disk.flip_bit(path, 20 + 11)  # the size in the second unit
        (found,) = checkers.store_is_sound(member, run.cluster)
        self.assertRegex(found, r"^broker-a-0: wrong-unit orders-0 at \d+: number 1 is for ")
        member.node.disk.flip_bit(path, 20 + 11)
        # What is legal and yet worth a note, as after a kill, is no violation.
        member.node.disk.create(layout.abort_path(ROOT), 0).close()
        self.assertEqual(list(checkers.store_is_sound(member, run.cluster)), [])


class NumberTests(SynchronousTestCase):
    """4: numbers."""

    def reused(self, history: History, found: Losses, *copies: Copy) -> list[str]:
        return list(checkers.nothing_reused(history, queues_of(*copies), found))

    def test_dense(self) -> None:
        """One record of the queue for each number from the minimum to the end, with that number."""
        records = [record(message(str(number), offset=number)) for number in (5, 6, 7)]
        self.assertEqual(list(checkers.queue_is_dense("broker-a", copy_of(*records, min_offset=5))), [])
        self.assertEqual(list(checkers.queue_is_dense("broker-a", copy_of(min_offset=5))), [])

    def test_missing(self) -> None:
        """Too few records and too many are found."""
        one = record(message("m", offset=5))
        for records, max_offset in (([one], 7), ([one], 5), ([], 6)):
            copy = copy_of(*records, min_offset=5, max_offset=max_offset)
            text = f"broker-a orders:0 has {len(records)} records for the numbers 5 to {max_offset - 1}"
            self.assertEqual(list(checkers.queue_is_dense("broker-a", copy)), [text])

    def test_of_another_queue(self) -> None:
        """A record of another topic or queue is found, whatever number it has."""
        for topic, queue_id in (("events", 0), ("orders", 1)):
            copy = copy_of(record(message("m", offset=5)), record(message("n", topic=topic, queue_id=queue_id)))
            copy = attrs.evolve(copy, min_offset=5, max_offset=7)
            text = f"broker-a orders:0 has a record of {topic}:{queue_id} as number 6"
            self.assertEqual(list(checkers.queue_is_dense("broker-a", copy)), [text])

    def test_another_number(self) -> None:
        """A record that carries another number than its place is found."""
        copy = copy_of(record(message("m", offset=5)), record(message("n", offset=5)), min_offset=5)
        text = "broker-a orders:0 has number 5 as number 6"
        self.assertEqual(list(checkers.queue_is_dense("broker-a", copy)), [text])

    def test_each_number_once(self) -> None:
        """Messages at different numbers, queues, topics or brokers, acknowledged, seen and stored, are sound."""
        messages = [
            message("a"),
            message("b", offset=1, phy=100),
            message("c", queue_id=1, phy=200),
            message("d", topic="events", phy=300),
            message("e", group="broker-b"),
        ]
        history = history_of(*messages)
        history.seen += [seen(sent) for sent in messages]
        stored = copy_of(*(record(sent) for sent in messages[:2]))
        self.assertEqual(self.reused(history, losses(), stored), [])

    def test_number_used_twice(self) -> None:
        """A number of two messages is found, however the second of them came to be known."""
        old, new = message("old"), message("new", at_s=6.0, phy=100)
        text = "number ('broker-a', 'orders', 0, 0) was that of old and is that of new"
        self.assertEqual(self.reused(history_of(new, old), losses()), [text])
        consumed = history_of(old, attrs.evolve(new, ack=None))
        consumed.seen.append(seen(new))
        self.assertEqual(self.reused(consumed, losses()), [text])
        stored = history_of(old, attrs.evolve(new, ack=None))
        self.assertEqual(self.reused(stored, losses(), copy_of(record(new))), [text])

    def test_number_free_again(self) -> None:
        """A number may be given again when a failure took its message, not when a SYNC_FLUSH master had shown that."""
        old, new = message("old", waits=False), message("new", at_s=6.0, phy=100)
        history = history_of(old, new)
        self.assertEqual(self.reused(history, losses(failure(), flush=SYNC_FLUSH)), [])
        # The later one is at its place and needs no excuse; the earlier one has none.
        self.assertEqual(len(self.reused(history, losses(failure(at_s=0.5)))), 1)
        history.seen.append(seen(old))
        self.assertEqual(self.reused(history, losses(failure(), flush=ASYNC_FLUSH)), [])
        self.assertEqual(len(self.reused(history, losses(failure(), flush=SYNC_FLUSH))), 1)

    def test_three_users(self) -> None:
        """Every earlier user of a number is named beside the last one."""
        messages = [message(key, at_s=at_s, phy=100 * at_s) for key, at_s in (("a", 1), ("b", 2), ("c", 3))]
        found = self.reused(history_of(*messages), losses())
        place = "number ('broker-a', 'orders', 0, 0)"
        self.assertEqual(found, [f"{place} was that of {key} and is that of c" for key in "ab"])

    def test_stored_twice(self) -> None:
        """A message that lies at two places of the log is found, in one queue or in two."""
        sent = message("m", phy=100)
        for queue_id in (0, 1):
            twin = record(sent, queue_id=queue_id, queue_offset=1, phy_offset=300)
            copies = [copy_of(record(sent)), copy_of(twin, queue_id=1)] if queue_id else [copy_of(record(sent), twin)]
            found = self.reused(history_of(sent), losses(), *copies)
            self.assertEqual(found, ["m is stored twice, at log 100 and 300 of broker-a"])


class DeliveryTests(SynchronousTestCase):
    """5: delivery."""

    def test_seen_is_true(self) -> None:
        """Consumers get messages as they were sent; anything else is found with consumer and place."""
        sent = message("m")
        history = history_of(sent)
        history.seen.append(seen(sent))
        self.assertEqual(list(checkers.seen_is_true(history)), [])
        history.seen = [seen(sent, key="n", consumer="c")]
        self.assertEqual(list(checkers.seen_is_true(history)), ["c got 'n' from broker-a, which nobody sent"])
        changes: list[dict[str, Any]] = [{"body": b"x"}, {"topic": "t"}, {"queue_id": 7}, {"group": "g"}]
        for each in changes:
            shown = seen(sent, **each)
            history.seen = [shown]
            place = f"{shown.group} {shown.topic}:{shown.queue_id}"
            text = f"consumer-0 got m from {place} with other contents"
            self.assertEqual(list(checkers.seen_is_true(history)), [text])

    def test_delivered(self) -> None:
        """Every acknowledged message is consumed in the end; nothing is asked of those without an answer."""
        sent, other = message("m", phy=70), message("n", offset=1)
        history = history_of(sent, other, message("unanswered", code=None))
        history.seen.append(seen(other))
        self.assertEqual(checkers.undelivered(history, losses()), [sent])
        text = "m was acknowledged at broker-a orders:0@0 (log 70) and never consumed"
        self.assertEqual(list(checkers.delivered(history, losses())), [text])
        history.seen.append(seen(sent, handled_s=None))
        self.assertEqual(checkers.undelivered(history, losses()), [sent], "an offset has passed a handler that died")
        history.seen.append(seen(sent))
        self.assertEqual(checkers.undelivered(history, losses()), [])
        self.assertEqual(list(checkers.delivered(history, losses())), [])

    def test_offsets_wait(self) -> None:
        """An offset may pass a message when a handler has ended with it; one that passes it before is found."""
        sent = message("m", at_s=1.0, offset=4)
        history = history_of(sent, message("unanswered", code=None))
        history.seen.append(seen(sent, at_s=2.0, handled_s=None))
        history.seen.append(seen(sent, at_s=2.0, handled_s=3.0, consumer="consumer-1"))
        assert sent.ack is not None
        plain = Committed(
            group=sent.group, topic=sent.topic, queue_id=sent.queue_id, offset=5, at_s=3.0, consumer="consumer-0"
        )
        for changes, is_early in (
            ({}, False),
            ({"at_s": 2.9}, True),
            ({"at_s": 2.9, "offset": 4}, False),
            ({"at_s": sent.ack.at_s - 0.01}, False),
            ({"at_s": 2.9, "queue_id": 7}, False),
            ({"at_s": 2.9, "topic": "other"}, False),
            ({"at_s": 2.9, "group": "other"}, False),
        ):
            history.committed = [plain, attrs.evolve(plain, **changes)]
            text = "consumer-0 wrote offset 5, and no handler had ended with m at broker-a orders:0@4 (log 0)"
            self.assertEqual(list(checkers.offsets_wait(history, losses())), [text] if is_early else [], changes)
        history.committed = [attrs.evolve(plain, at_s=2.9)]
        self.assertEqual(list(checkers.offsets_wait(history, losses(failure()))), [])
        history.seen.pop()
        self.assertEqual(len(list(checkers.offsets_wait(history, losses()))), 1)
        history.committed = [attrs.evolve(plain, at_s=99.0)]
        self.assertEqual(len(list(checkers.offsets_wait(history, losses()))), 1)
        late = message("late", at_s=6.0)
        history = history_of(late)
        history.seen.append(seen(late, key="lost"))
        history.committed = [attrs.evolve(plain, offset=1, at_s=7.0)]
        self.assertEqual(len(list(checkers.offsets_wait(history, losses()))), 1)
        self.assertEqual(list(checkers.offsets_wait(history, losses(failure()))), [], "it has a lost message's number")

    def test_excused(self) -> None:
        """A message that a failure may have taken, or made consumers skip, need not be consumed."""
        sent = message("m")
        self.assertEqual(checkers.undelivered(history_of(sent), losses(failure())), [])
        self.assertEqual(checkers.undelivered(history_of(sent), losses(failure(at_s=0.5))), [sent])
        late = message("late", at_s=6.0)
        history = history_of(late)
        history.seen.append(seen(late, key="lost"))
        self.assertEqual(checkers.undelivered(history, losses(failure())), [])
        self.assertEqual(checkers.undelivered(history, losses()), [late])


class TransactionTests(SynchronousTestCase):
    """6: committed once or more, never visible after a rollback, never visible before the commit."""

    def history(self, state: int = TRANSACTION_COMMIT, decided_s: float | None = 1.5, **changes: Any) -> History:
        """A transaction that was decided at 1.5 s; its message, when consumed, is consumed at 2 s."""
        history = history_of()
        self.half = message("t", **changes)
        history.transactions["t"] = Transaction(sent=self.half, state=state, decided_s=decided_s)
        return history

    def all_rules(self, history: History, *copies: Copy, found: Losses | None = None) -> list[str]:
        excuses = found or losses()
        return [
            *checkers.visible_only_after_commit(history, queues_of(*copies)),
            *checkers.commits_are_stored(history, queues_of(*copies), excuses),
            *checkers.commits_are_consumed(history, excuses),
        ]

    def test_sound(self) -> None:
        """Committed, stored and consumed, also twice; rolled back or open, and nowhere."""
        history = self.history()
        history.seen += [seen(self.half), seen(self.half, queue_offset=1)]
        copy = copy_of(record(self.half), record(self.half, queue_offset=1, phy_offset=900))
        self.assertEqual(self.all_rules(history, copy), [])
        self.assertEqual(list(checkers.nothing_reused(history, queues_of(copy), losses())), [])
        self.assertEqual(list(checkers.seen_is_true(history)), [])
        self.assertEqual(self.all_rules(self.history(TRANSACTION_ROLLBACK)), [])
        self.assertEqual(self.all_rules(self.history(0, None)), [])

    def test_visible_too_early(self) -> None:
        """What consumers got before the commit is found, to the moment."""
        history = self.history(decided_s=2.25)
        history.seen.append(seen(self.half))
        text = "consumer-0 got t from broker-a, which was committed 0.250 s later"
        self.assertEqual(self.all_rules(history, copy_of(record(self.half))), [text])
        history.transactions["t"].decided_s = 2.0
        self.assertEqual(self.all_rules(history, copy_of(record(self.half))), [])

    def test_visible_for_no_reason(self) -> None:
        """So is what was rolled back, or never committed, at consumers and in the queue."""
        for state, decided_s, why in ((TRANSACTION_ROLLBACK, 1.5, "was rolled back"), (0, None, "was never committed")):
            history = self.history(state, decided_s)
            history.seen.append(seen(self.half))
            self.assertEqual(self.all_rules(history), [f"consumer-0 got t from broker-a, which {why}"])
            history.seen.clear()
            served = f"broker-a serves t at log 0, which {why}"
            self.assertEqual(self.all_rules(history, copy_of(record(self.half))), [served])

    def test_other_contents(self) -> None:
        """A committed message with other contents is found as any other."""
        history = self.history()
        history.seen.append(seen(self.half, body=b"other"))
        self.assertEqual(len(list(checkers.seen_is_true(history))), 1)

    def test_lost(self) -> None:
        """A commit that is nowhere is found, and one that is in another queue or of another broker, too."""
        history = self.history()
        stored = "t was committed and is not in broker-a orders:0"
        self.assertEqual(self.all_rules(history), [stored, "t was committed and never consumed"])
        history.seen.append(seen(self.half))
        self.assertEqual(self.all_rules(history), [stored])
        self.assertEqual(self.all_rules(history, copy_of(record(self.half, queue_id=1), queue_id=1)), [stored])

    def test_never_consumed(self) -> None:
        """A commit that is stored and that nobody gets is found."""
        history = self.history()
        self.assertEqual(self.all_rules(history, copy_of(record(self.half))), ["t was committed and never consumed"])

    def test_excused(self) -> None:
        """What a power failure may have taken is excused; one after which only numbers were used again, less."""
        history = self.history(phy=500)
        self.assertEqual(self.all_rules(history, found=losses(failure())), [])
        later = losses(failure(from_phy=900))
        self.assertEqual(self.all_rules(history, found=later), ["t was committed and is not in broker-a orders:0"])
        self.assertEqual(len(self.all_rules(history, found=losses(failure(group="broker-b")))), 2)
        self.assertEqual([transaction.sent.key for transaction in checkers.committed(history, later)], ["t"])

    def test_invisible(self) -> None:
        """Nobody may see a message before the commit, and everybody from then on."""
        transaction = self.history().transactions["t"]
        self.assertEqual(checkers.invisible(transaction), "")
        self.assertEqual(checkers.invisible(transaction, 1.5), "")
        self.assertEqual(checkers.invisible(transaction, 1.4), "was committed 0.100 s later")

    def test_wrong_checks(self) -> None:
        """A question about what nobody sent is found."""
        history = self.history(TRANSACTION_ROLLBACK)
        history.wrong_checks.append("a producer was asked about 'x'")
        self.assertEqual(self.all_rules(history), ["a producer was asked about 'x'"])

    def test_half_messages_end(self) -> None:
        """A half message that stays open is found with its broker."""

        def master(count: int) -> Any:
            checks = SimpleNamespace(open_half_messages=count)
            return SimpleNamespace(node=SimpleNamespace(name="m"), broker=SimpleNamespace(checks=checks))

        self.assertEqual(list(checkers.half_messages_end(master(0))), [])
        self.assertEqual(list(checkers.half_messages_end(master(2))), ["m has 2 half messages without an end"])

    def test_decided_once(self) -> None:
        """A decision never changes, and an unknown state is none."""
        transaction = self.history(0, None).transactions["t"]
        transaction.decide(0, 1.0)
        self.assertIsNone(transaction.decided_s)
        transaction.decide(TRANSACTION_COMMIT, 2.0)
        transaction.decide(TRANSACTION_ROLLBACK, 3.0)
        self.assertEqual((transaction.state, transaction.decided_s), (TRANSACTION_COMMIT, 2.0))


class RouteTests(SynchronousTestCase):
    """6: routes."""

    def setUp(self) -> None:
        self.members: list[Member] = Cluster(World(1), two_groups(ASYNC_MASTER, ASYNC_FLUSH)).members

    def alive(self) -> dict[str, dict[int, str]]:
        found: dict[str, dict[int, str]] = {"broker-a": {}, "broker-b": {}}
        for member in self.members:
            found[member.group.name][member.broker_id] = member.addr
        return found

    def judge(self, listed: dict[str, dict[int, str]], routes: dict[str, Any]) -> list[str]:
        def data(name: str, addrs: dict[int, str]) -> BrokerData:
            return BrokerData(broker_addrs=addrs, broker_name=name, cluster="sim")

        table = {name: data(name, addrs) for name, addrs in listed.items()}
        found = ClusterInfo(broker_addr_table=table, cluster_addr_table={})
        topics = {
            topic: None
            if route is None
            else TopicRouteData(broker_datas=[data(name, addrs) for name, addrs in route.items()])
            for topic, route in routes.items()
        }
        return list(checkers.routes_are_right("n", found, topics, self.members))

    def test_right(self) -> None:
        """A NameServer may route a topic to one group and another to both."""
        alive = self.alive()
        self.assertEqual(self.judge(alive, {"a": alive, "b": {"broker-a": alive["broker-a"]}}), [])

    def test_cluster(self) -> None:
        """A broker that is missing, too many or at another address is found."""
        alive = self.alive()
        wrong = [
            {"broker-a": alive["broker-a"]},
            {**alive, "broker-b": {0: alive["broker-b"][0]}},
            {**alive, "broker-b": {**alive["broker-b"], 2: "10.0.0.9:1"}},
            {**alive, "broker-b": {**alive["broker-b"], 1: "10.0.0.9:1"}},
        ]
        for listed in wrong:
            self.assertEqual(self.judge(listed, {"a": alive}), [f"n lists {listed}, alive are {alive}"])

    def test_topics(self) -> None:
        """A topic without a route, or with a route to other brokers than those alive, is found."""
        alive = self.alive()
        wrong: list[Any] = [None, {}, {"broker-a": {}}, {**alive, "broker-c": {}}, {"broker-a": alive["broker-b"]}]
        for route in wrong:
            self.assertEqual(
                self.judge(alive, {"a": alive, "b": route}), [f"n routes b to {route or {}}, alive are {alive}"]
            )

    def test_tables_agree(self) -> None:
        """A slave has its master's topics with all their settings, and its consumer offsets."""

        def topics(*names: str, perm: int = 6) -> dict[str, TopicConfig]:
            return {name: TopicConfig(topic_name=name, perm=perm) for name in names}

        self.assertEqual(list(checkers.tables_agree("s", topics("a"), topics("a"), ({"g": 1}, {"g": 1}))), [])
        for mine in (topics(), topics("a", "b"), topics("a", perm=4)):
            text = f"s has topics {sorted(mine)}, its master ['a']"
            self.assertEqual(list(checkers.tables_agree("s", mine, topics("a"), (1, 1))), [text])
        found = list(checkers.tables_agree("s", topics("a"), topics("a"), ({"g": 1}, {"g": 2})))
        self.assertEqual(found, ["s has consumer offsets {'g': 1}, its master {'g': 2}"])


class LeakTests(SynchronousTestCase):
    """7: leaks."""

    def test_nothing_left(self) -> None:
        """A machine whose process still runs, or left something behind, is found; each thing is named."""
        world = World(1)
        net = SimNet(world)
        gone, alive, leaky = (Node(world, net, name) for name in ("gone", "alive", "leaky"))
        alive.start()
        leaky.leaks = ["timer in 3.000 s", "port 10911"]
        self.assertEqual(list(checkers.nothing_left([gone])), [])
        expected = ["alive still runs", "leaky left a timer in 3.000 s", "leaky left a port 10911"]
        self.assertEqual(list(checkers.nothing_left([gone, alive, leaky])), expected)
