"""
What `rmq.sim.scenario` judges: each rule is asked about the right things in the right phase, so that a run reports it.

The rules themselves have their tests in test_checkers.py and test_lookups.py. Here something goes wrong in the middle
of a small simulated run, and the run as a whole says so in the words of the rule that it breaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.metadata_sync import MetadataSync
from rmq.broker.transactions import TransactionChecks
from rmq.ha.acks import Acks
from rmq.remoting.client import RequestFailed
from rmq.runtime.disk.files import DiskError
from rmq.sim import checkers, scenario
from rmq.sim.cluster import ROOT, LogImage, Member
from rmq.sim.history import Copy, Sent, Transaction
from rmq.sim.readers import Observer
from rmq.sim.scenario import Failures, Run
from rmq.sim.world import SimError
from rmq.store import layout
from rmq.store.store import MessageStore
from rmq.wire.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Flaw, RecordError
from tests.sim.support import ASYNC_FLUSH, LOG_DIR, SYNC_MASTER, failure, image_of, message, options, seen

#: left to trial: half a minute of small runs
pytestmark = pytest.mark.campaign
#: a failure of broker-a's master that may have taken anything
ANYTHING = failure(at_s=1e9, end=1 << 40)


def first_acked(run: Run) -> Sent:
    """Return a message whose answer promised a slave."""
    return next(sent for sent in run.history.acked if run.losses.is_replicated(sent))


def misplace(run: Run, **changes: Any) -> Sent:
    """Let the master have acknowledged a message at a number where it does not serve it."""
    sent = first_acked(run)
    assert sent.ack is not None
    sent.ack = attrs.evolve(sent.ack, queue_offset=999, **changes)
    return sent


def break_queue(member: Member) -> None:
    """Change the size in the second unit of a broker's consume queue."""
    path = layout.join(layout.consume_queue_dir(ROOT, "orders", 0), layout.file_name(0))
    member.node.disk.flip_bit(path, 20 + 11)


class RunCase(SynchronousTestCase):
    def simulate(self, phase: str, plant: Callable[[Run], object], **changes: Any) -> Run:
        """Do a run of a SYNC_MASTER with a slave in which ``plant`` happens just before a phase."""
        run = Run(1, plan="quiet", chaos_s=3, options=options(SYNC_MASTER, ASYNC_FLUSH, slaves=1, **changes))
        judged = getattr(run, phase)

        def planted() -> None:
            plant(run)
            judged()

        self.patch(run, phase, planted)
        run.go()
        return run

    def violations(self, phase: str, plant: Callable[[Run], object], **changes: Any) -> list[str]:
        return self.simulate(phase, plant, **changes).outcome.violations

    def find(self, phase: str, plant: Callable[[Run], object], words: str, *, others: bool = False) -> None:
        """The run reports one violation, which matches ``words``; with ``others`` there may be more."""
        found = self.violations(phase, plant)
        if not others:
            self.assertEqual(len(found), 1, found)
        self.assertTrue(any(re.match(words, text) for text in found), found)


class WaitTests(RunCase):
    """Healing: what has to come right within a bounded time."""

    def setUp(self) -> None:
        self.patch(scenario, "CONVERGE_S", 5)

    def test_sound(self) -> None:
        """A run in which nothing goes wrong reports nothing, with answers that were checked on slaves."""
        outcome = self.simulate("chaos", lambda run: None).outcome
        self.assertEqual((outcome.violations, outcome.remarks), ([], []))
        self.assertGreater(outcome.counts["acknowledgements looked up on slaves"], 10)

    def test_producers(self) -> None:
        """A master that acknowledges nothing after healing is found, though it did before."""

        def plant(run: Run) -> None:
            run.history.producing = False

        self.find("converge", plant, r"producers, 5 s after healing: broker-a has acknowledged nothing$")

    def test_transactions(self) -> None:
        """A half message that stays open is found, and a commit that nobody gets."""

        def plant(run: Run) -> None:
            run.history.transactions["t"] = Transaction(sent=message("t"), state=TRANSACTION_COMMIT, decided_s=1.0)
            self.patch(TransactionChecks, "open_half_messages", 1)

        found = self.violations("converge", plant)
        self.assertEqual(found[0], "transactions, 5 s after healing: broker-a-0 has 1 half messages without an end")
        self.assertEqual(found[1], "consumers, 5 s after healing: t was committed and never consumed")
        self.assertEqual(found[2], "t was committed and is not in broker-a orders:0")

    def test_slaves(self) -> None:
        """A slave that does not catch up is found."""

        def plant(run: Run) -> None:
            master, slave = run.cluster.members
            run.cluster.net.partition(master.node, slave.node)

        self.find(
            "converge", plant, r"slaves, 5 s after healing: broker-a-1 ends at \d+, its master at \d+$", others=True
        )

    def test_parted_slaves(self) -> None:
        """A slave that differs begins with an empty disk only when a fault excuses it; else it is a violation."""

        def plant(run: Run) -> None:
            self.patch(checkers, "is_parted", lambda master, slave: True)
            master, slave = run.cluster.members
            run.cluster.net.partition(master.node, slave.node)

        run = self.simulate("converge", plant)
        self.assertEqual(run.outcome.remarks, [])
        self.assertRegex(run.outcome.violations[0], r"^slaves, 5 s after healing: broker-a-1 ends at ")

        def plant_excuse(run: Run) -> None:
            plant(run)
            run.losses.failures.append(failure(node="broker-a-1", is_master=False))

        run = self.simulate("converge", plant_excuse)
        self.assertEqual(
            run.outcome.remarks, ["broker-a-1 has diverged from its master and restarts with an empty store"]
        )
        (kept,) = run._old_images["broker-a"]
        self.assertTrue(checkers.holds(kept, first_acked(run)))
        self.assertEqual(run.losses.failures, [])
        self.assertEqual(LogImage(run.cluster.members[1].node).end, 0)

    def test_slaves_that_parted_for_a_reason(self) -> None:
        """A slave with an excuse that has not parted goes on as it is."""

        def plant(run: Run) -> None:
            run.losses.failures.append(failure(node="broker-a-1", is_master=False))

        run = self.simulate("converge", plant)
        self.assertEqual((run.outcome.violations, run.outcome.remarks), ([], []))

    def test_dispatch(self) -> None:
        """A broker whose queues do not get to the end of its log is found."""

        def plant(run: Run) -> None:
            self.patch(MessageStore, "dispatched_offset", 7)

        self.find("converge", plant, r"slaves, 5 s after healing: broker-a-0 has dispatched 7 of \d+$", others=True)

    def test_waiting_puts(self) -> None:
        """Puts that wait for slaves for ever are found."""

        def plant(run: Run) -> None:
            ha = run.cluster.masters[0].broker.ha
            status = ha.status
            self.patch(ha, "status", lambda: attrs.evolve(status(), pending_puts=1))

        self.find("converge", plant, r"slaves, 5 s after healing: broker-a-0 has puts that wait for slaves$")

    def test_consumers(self) -> None:
        """An acknowledged message that nobody gets is found, and is no violation when a failure took it."""

        def plant(run: Run) -> None:
            run.history.sent["lost"] = message("lost", offset=999, waits=False)

        words = r"consumers, 5 s after healing: lost was acknowledged at .* and never consumed$"
        self.find("converge", plant, words, others=True)

        def plant_excuse(run: Run) -> None:
            plant(run)
            run.losses.failures.append(ANYTHING)

        self.assertEqual(self.violations("converge", plant_excuse), [])

    def test_routes(self) -> None:
        """A NameServer that lists a broker which is gone is found, and so is one that does not answer."""

        def retire(run: Run) -> None:
            run._retired.append(run.cluster.members[1])

        self.find("converge", retire, r"routes, 5 s after healing: 10\.0\.0\.1:9876 lists .*, alive are ", others=True)
        words = r"routes, 5 s after healing: NameServer 10\.0\.0\.1:9876 does not answer: "
        self.find("converge", lambda run: run.cluster.name_servers[0].kill(), words, others=True)

    def test_routes_of_each_topic(self) -> None:
        """Every topic of an acknowledged message needs a route."""

        def plant(run: Run) -> None:
            sent = message("n", topic="events")
            run.history.sent["n"] = sent
            run.history.seen.append(seen(sent))

        self.find("converge", plant, r"routes, 5 s after healing: .* does not answer: .*events", others=True)

    def test_time_passes(self) -> None:
        """What is wrong only for a while after healing is no violation."""

        def plant(run: Run) -> None:
            master, slave = (member.node for member in run.cluster.members)
            run.cluster.net.partition(master, slave)
            run.world.schedule(1.0, run.cluster.net.heal)

        self.patch(scenario, "CONVERGE_S", 30)
        self.assertEqual(self.violations("converge", plant), [])


class JudgementTests(RunCase):
    """1 to 5: what the brokers serve in the end."""

    def tamper(self, *, slave: bool) -> Callable[[Run], None]:
        """Return what makes the master, or the slave, serve one record fewer than it says in queue 0."""

        def plant(run: Run) -> None:
            served = run._copies_of

            def copies_of(member: Member) -> Mapping[checkers.Queue, Copy]:
                copies = dict(served(member))
                if member.is_master != slave:
                    copy = copies["orders", 0]
                    copies["orders", 0] = attrs.evolve(copy, max_offset=copy.max_offset + 1)
                return copies

            self.patch(run, "_copies_of", copies_of)

        return plant

    def test_transactions(self) -> None:
        """Transactions go through a run, and what was rolled back is judged where it is served and consumed."""

        def plant(run: Run) -> None:
            key = next(key for key, one in run.history.transactions.items() if one.state == TRANSACTION_COMMIT)
            run.history.transactions[key].state = TRANSACTION_ROLLBACK

        run = self.simulate("check", plant, transactional=0.5)
        found = run.outcome.violations
        self.assertRegex(found[0], r"^consumer-0\S+ got producer-0\S+ from broker-a, which was rolled back$")
        self.assertRegex(found[1], r"^broker-a serves producer-0\S+ at log \d+, which was rolled back$")
        self.assertEqual(len(found), 2)
        counts = run.outcome.counts
        self.assertGreater(counts["transactions"], counts["committed"])
        self.assertGreater(counts["committed"], 0)

    def test_acknowledged(self) -> None:
        """1: a message that is not where it was acknowledged is found; it is not when a failure may have taken it."""
        words = r"producer-0\.1-\d+ was acknowledged \(0\) at broker-a orders:\d@999 .* where there is nothing$"
        self.find("check", misplace, words)

    def test_replicated(self) -> None:
        """1: what its master lost must be in a slave's log: a living one's, a retired one's or one begun again."""

        def lose(run: Run, **changes: Any) -> Sent:
            run.losses.failures.append(ANYTHING)
            return misplace(run, **changes)

        self.find(
            "check", lambda run: lose(run, phy_offset=65000), r".* was acknowledged as replicated .*; no slave has it$"
        )
        self.assertEqual(self.violations("check", lose), [])

        def keep(run: Run) -> None:
            run._old_images["broker-a"] = [image_of([lose(run, phy_offset=65000)])]

        self.assertEqual(self.violations("check", keep), [])

        def retire(run: Run) -> None:
            lose(run)
            slave = run.cluster.members[1]
            slave.node.crash()
            run._retired.append(slave)

        found = self.violations("check", retire)
        self.assertEqual([text for text in found if not text.startswith("routes, 25 s later: ")], [])

    def test_at_the_answer(self) -> None:
        """1: the moment a SYNC_MASTER answers, a slave has the message; an answer too early is found."""
        self.patch(Acks, "quorum_offset", lambda self: 1 << 60)
        found = self.violations("chaos", lambda run: None)
        self.assertRegex(found[0], r"was acknowledged as replicated at broker-a .*, but no slave has it$")

    def test_numbers(self) -> None:
        """4: a number that two messages had is found; it may be when a failure took the first of them."""

        def plant(run: Run) -> None:
            sent = first_acked(run)
            earlier = message("twin", queue_id=sent.queue_id, body=sent.body, code=None)
            run.history.sent["twin"] = earlier
            assert sent.ack is not None
            offset = sent.ack.queue_offset
            run.history.seen.append(seen(attrs.evolve(earlier, ack=sent.ack), queue_offset=offset))

        self.find(
            "check", plant, r"number \('broker-a', 'orders', \d, \d+\) was that of twin and is that of producer-0"
        )

        def excuse(run: Run) -> None:
            plant(run)
            run.losses.failures.append(ANYTHING)

        self.assertEqual(self.violations("check", excuse), [])

    def test_dense(self) -> None:
        """4: a queue with a gap is found, of a master or of a slave."""
        for slave, name in ((False, "broker-a"), (True, "broker-a-1")):
            self.find("check", self.tamper(slave=slave), rf"{name} orders:0 has \d+ records for the numbers 0 to \d+$")

    def test_look_ups(self) -> None:
        """3: a message that is not found by its key, or for its time, is found out, at a master or at a slave."""
        for number, name in enumerate(("broker-a-0", "broker-a-1")):

            def keys(run: Run, number: int = number) -> None:
                store = run.cluster.members[number].broker.store
                query = store.query
                self.patch(store, "query", lambda *given: query(given[0], "x", *given[2:]))

            found = self.violations("check", keys)
            self.assertEqual(len(found), scenario.MAX_REPORTED + 1)
            self.assertRegex(found[0], rf"^{name} finds \[\] by the key producer-0\.1-\d+, the newest are \[\d+\]$")

            def times(run: Run, number: int = number) -> None:
                self.patch(run.cluster.members[number].broker.store, "offset_by_time", lambda *given: 999)

            self.assertRegex(self.violations("check", times)[0], rf"^{name} has orders:\d at 999 for \d+, not at \d+$")

    def test_seen(self) -> None:
        """5: a message that a consumer got and nobody sent is found."""

        def plant(run: Run) -> None:
            run.history.seen.append(seen(message("m"), queue_offset=999, key="never"))

        self.find("check", plant, r"consumer-0 got 'never' from broker-a, which nobody sent$")

    def test_not_served(self) -> None:
        """A queue that a broker refuses to serve, or serves as bytes that are no records, is found."""
        read = Observer.read_queue
        said: Exception = RequestFailed("addr", "it refused")

        async def refuse(observer: Observer, addr: str, topic: str, queue_id: int) -> Copy:
            if addr == "10.0.0.3:10911" and queue_id == 1:
                raise said
            return await read(observer, addr, topic, queue_id)

        self.patch(Observer, "read_queue", refuse)
        self.find("check", lambda run: None, r"broker-a-1 does not serve orders:1: it refused$", others=True)
        said = RecordError(5, Flaw.MAGIC)
        words = r"broker-a-1 does not serve orders:1: it serves bytes that are no records: no record at byte 5: "
        self.find("check", lambda run: None, words, others=True)


class StoppedTests(RunCase):
    """2, 3, 6 and 7: tables before the stop, disks and processes after it."""

    def test_tables(self) -> None:
        """6: a slave without a topic or a consumer offset of its master is found."""

        for step, words in (("_sync_topics", "topics"), ("_sync_offsets", "consumer offsets")):

            async def nothing(sync: MetadataSync, master: str) -> None:
                """Leave the slave's table as it is."""

            patch = self.patch(MetadataSync, step, nothing)
            self.find("stop", lambda run: None, rf"broker-a-1 has {words} .*, its master .*orders")
            patch.restore()

    def test_routes_stay(self) -> None:
        """6: routes that go wrong again after they were right are found."""

        def plant(run: Run) -> None:
            run._retired.append(run.cluster.members[1])

        words = r"routes, 25 s later: 10\.0\.0\.1:9876 lists .*'10\.0\.0\.3:10911'.*, alive are "
        self.find("stop", plant, words, others=True)

    def test_copies(self) -> None:
        """2: a slave's log that differs from its master's is found."""

        def plant(run: Run) -> None:
            run.cluster.members[1].node.disk.flip_bit(layout.join(LOG_DIR, layout.file_name(0)), 10)

        words = r"broker-a-1 differs from its master at 10 \(1 bytes of this page\)$"
        self.find("check_stopped", plant, words, others=True)

    def test_stores(self) -> None:
        """3: a queue that is not what the log says is found, of a master or of a slave."""
        for number in (0, 1):

            def plant(run: Run, number: int = number) -> None:
                break_queue(run.cluster.members[number])

            self.find("check_stopped", plant, rf"broker-a-{number}: wrong-unit orders-0 at \d+: ")

    def test_leaks(self) -> None:
        """7: what any process left behind is found, a client's too, and one that still runs."""
        names = ["namesrv-0", "broker-a-0", "broker-a-1", "producer-0", "consumer-0", "observer"]

        def leak(run: Run) -> None:
            for name in names:
                run.world.nodes[name].leaks = ["timer in 1.000 s"]

        expected = [f"{name} left a timer in 1.000 s" for name in names]
        self.assertEqual(self.violations("check_stopped", leak), expected)
        self.find("check_stopped", lambda run: run.cluster.observer.start(), r"observer still runs$")

    def test_retired(self) -> None:
        """A machine that is switched off for good is not asked for what it has."""

        def plant(run: Run) -> None:
            slave = run.cluster.members[1]
            run._retired.append(slave)
            slave.node.leaks = ["port 1"]
            break_queue(slave)
            slave.node.disk.flip_bit(layout.join(LOG_DIR, layout.file_name(0)), 10)

        self.assertEqual(self.violations("check_stopped", plant), [])

    def test_everything_is_stopped(self) -> None:
        """Every process ends in order; one that does not is a violation."""

        def plant(run: Run) -> None:
            self.patch(run, "_end", lambda nodes: None)

        found = self.violations("stop", plant)
        self.assertEqual({text.rpartition(" ")[2] for text in found}, {"runs"})
        self.assertEqual(len(found), 6)


class RunTests(RunCase):
    """What a run reports beside the rules."""

    def test_a_phase_that_cannot_end(self) -> None:
        """It is the last violation of the run, which ends there."""

        def plant(run: Run) -> None:
            raise SimError("nothing goes on")

        self.assertEqual(self.violations("heal", plant), ["nothing goes on"])

    def test_nobody_starts_again(self) -> None:
        """A machine that does not come up after healing is found."""

        def plant(run: Run) -> None:
            def refuse(platform: object) -> Any:
                raise DiskError("/x", "broken")

            node = run.cluster.members[1].node
            node.kill()
            node._builder = refuse

        self.patch(scenario, "STOP_S", 20.0)
        self.find("heal", plant, r"that everyone runs after healing is not true after 20\.0 s")

    def test_power_failures_are_noted(self) -> None:
        """What faults do to brokers is known to those who judge."""

        def plant(run: Run) -> None:
            run.cluster.members[1].node.crash()
            run.cluster.members[1].node.disk.replace()

        run = self.simulate("heal", plant)
        self.assertEqual([each.node for each in run.losses.failures], ["broker-a-1"])
        self.assertTrue(run.losses.slave_failed_since("broker-a", run.losses.failures[0].at_s))

    def test_exceptions(self) -> None:
        """An exception that nobody caught, and one that was logged, are violations."""

        def fail() -> None:
            raise RuntimeError("broken")

        def log(run: Run) -> None:
            try:
                fail()
            except RuntimeError:
                Logger().failure("something failed")

        self.find("chaos", lambda run: run.world.schedule(1.0, fail), r"unexpected: broken$", others=True)
        self.find("chaos", log, r"logged: something failed: broken$")
        self.flushLoggedErrors(RuntimeError)

    def test_disk_errors(self) -> None:
        """Complaints of the disk are expected where the plan has bad disks, and only there."""
        for may_fail, texts in ((True, []), (False, ["x: /a: broken"])):
            with Failures(disk_may_fail=may_fail) as failures:
                try:
                    raise DiskError("/a", "broken")
                except DiskError:
                    Logger().failure("x")
            self.assertEqual(failures.texts, texts)
        self.flushLoggedErrors(DiskError)

    def test_few(self) -> None:
        """Of many violations of one kind the first five are told, and how many more there are."""
        self.assertEqual(scenario.few(iter("abcde")), list("abcde"))
        self.assertEqual(scenario.few(iter("abcdefg")), [*"abcde", "… and 2 more like that"])
