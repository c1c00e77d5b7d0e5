"""Variants of the product with one bug each, made at run time: checkers that do not find them are worth nothing."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import offsets as offsets_module
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.responders import sending as sending_module
from rmq.broker.responders import transactions as transactions_module
from rmq.broker.transactions import Round, TransactionChecks, Verdict
from rmq.ha.acks import Acks
from rmq.ha.master import MasterSession, MasterState
from rmq.ha.session import Action, Close, Send
from rmq.ha.slave import SlaveSession
from rmq.ha.stream import TransferDecoder, encode_report
from rmq.namesrv.routes import RouteTable
from rmq.runtime.clock import Moment, Periodic
from rmq.runtime.disk.files import Disk, File
from rmq.sim.cluster import Options
from rmq.sim.scenario import Run
from rmq.store.config import StoreConfig
from rmq.store.groupcommit import GroupCommit, LogSync, Waiter
from rmq.store.indexfile import IndexFile
from rmq.store.messages import Message, PutStatus
from rmq.store.queues import QueueTable
from rmq.store.recovery import Recovery
from rmq.store.scan import RecoveryPolicy
from rmq.store.store import MessageStore
from rmq.wire.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Record, encode_properties
from tests.sim.support import ASYNC_FLUSH, ASYNC_MASTER, SYNC_FLUSH, SYNC_MASTER, options

#: a disk on which much is not synced at any moment
SLOW_S = (0.1, 0.4)
#: queues and index are written often, and synced now and then
BUSY_QUEUES = {"flushIntervalConsumeQueue": "200", "flushConsumeQueueThoroughInterval": "2000"}
#: a bug that so many seeds do not show is not found
MAX_SEEDS = 100


class MutationTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patches: list[Any] = []

    def plant(self, owner: Any, name: str, variant: Any) -> None:
        self.patches.append(self.patch(owner, name, variant))

    def find(self, plan: str, words: str, options: Options | None, *, chaos_s: float = 20, first: int = 0) -> None:
        """
        One of a hundred seeds shows the bug, as a violation that says ``words``; the sound product passes that seed.

        ``first`` is a seed near the first one that shows it, to save time. Without options each seed draws them.
        """
        found: list[str] = []
        for seed in range(first, first + MAX_SEEDS):
            found = self.violations(seed, plan, options, chaos_s)
            if any(words in text for text in found):
                for patch in self.patches:
                    patch.restore()
                self.assertEqual(self.violations(seed, plan, options, chaos_s), [], f"seed {seed}, not broken")
                return
        self.fail(f"no seed has shown the bug; the last one: {found}")

    def violations(self, seed: int, plan: str, options: Options | None, chaos_s: float) -> list[str]:
        outcome = Run(seed, plan=plan, chaos_s=chaos_s, options=options).go()
        self.flushLoggedErrors()
        return outcome.violations

    # ---- transactions ----

    def test_half_message_is_not_stored_again(self) -> None:
        """A check that only asks, and passes the half message, loses the transaction whose answer is late."""
        judge = Round.judge

        def hasty(self: Round, half: Record, now: int) -> tuple[Verdict, dict[str, str]]:
            verdict, pairs = judge(self, half, now)
            return Verdict.SETTLED if verdict is Verdict.CHECK else verdict, pairs

        self.plant(Round, "judge", hasty)
        busy = options(ASYNC_MASTER, ASYNC_FLUSH, transactional=0.5)
        self.find("kills", "was committed and ", busy)

    def test_offsets_before_the_log(self) -> None:
        """Offsets of the walk that are saved before the log is on disk lose transactions in a power failure."""

        async def hasty(self: TransactionChecks) -> bool:
            return True

        self.plant(TransactionChecks, "_is_safe", hasty)
        slow = {"flushIntervalCommitLog": "5000", "flushCommitLogThoroughInterval": "10000"}
        busy = options(ASYNC_MASTER, ASYNC_FLUSH, transactional=0.5, send_every_s=0.1, sync_s=SLOW_S, store=slow)
        self.find("power", "was committed and ", busy, first=4)

    def test_rollback_is_taken_for_a_commit(self) -> None:
        """A broker that commits whatever the end says shows what was rolled back."""
        self.plant(transactions_module, "TRANSACTION_ROLLBACK", TRANSACTION_COMMIT)
        self.plant(transactions_module, "TRANSACTION_COMMIT", TRANSACTION_ROLLBACK)
        busy = options(ASYNC_MASTER, ASYNC_FLUSH, transactional=0.5)
        self.find("quiet", "which was rolled back", busy)

    def test_half_message_is_visible(self) -> None:
        """A half message that is stored where it belongs at once is found."""

        def whole(message: Message, pairs: dict[str, str]) -> Message:
            return attrs.evolve(message, sys_flag=0, properties=encode_properties(pairs))

        self.plant(sending_module, "half_message", whole)
        busy = options(ASYNC_MASTER, ASYNC_FLUSH, transactional=0.5)
        self.find("quiet", "s later", busy)

    # ---- acknowledgements ----

    def test_acknowledged_before_the_sync(self) -> None:
        """A SYNC_FLUSH broker that does not wait for its disk loses acknowledged messages in a power failure."""

        def enter(self: GroupCommit, next_offset: int, done: Waiter) -> None:
            done.callback(PutStatus.PUT_OK)

        self.plant(GroupCommit, "_wait_for_disk", enter)
        self.find("power", "was acknowledged (0) at broker-a", options(ASYNC_MASTER, SYNC_FLUSH, sync_s=SLOW_S))

    def test_flushed_before_the_sync(self) -> None:
        """The flushed offset moves when a sync begins, not when it ends."""
        start = LogSync._start

        def hasty(self: LogSync) -> None:
            start(self)
            self._commit_log.flushed = self._commit_log.end
            self._on_synced(self._commit_log.flushed)

        self.plant(LogSync, "_start", hasty)
        self.find("power", "was acknowledged (0) at broker-a", options(ASYNC_MASTER, SYNC_FLUSH, sync_s=SLOW_S))

    def test_shown_before_it_is_durable(self) -> None:
        """Consumers of a SYNC_FLUSH broker that see messages too early see numbers used twice, or miss messages."""
        self.plant(StoreConfig, "hides_unconfirmed", property(lambda config: False))
        self.find("power", "number ('broker-a', 'orders'", options(ASYNC_MASTER, SYNC_FLUSH, sync_s=SLOW_S))

    def test_first_report_unbounded(self) -> None:
        """A master that believes a slave's first report, whatever it says, acknowledges what no slave has."""
        bounded = MasterSession._refusal

        def refusal(self: MasterSession, report: int, end: int) -> Close | None:
            return None if self.state is MasterState.WAIT_FIRST and report > end else bounded(self, report, end)

        self.plant(MasterSession, "_refusal", refusal)
        lazy = options(SYNC_MASTER, ASYNC_FLUSH, slaves=1, send_every_s=0.5)
        self.find("power", "as replicated", lazy, first=9)

    def test_slave_acknowledges_what_it_has_not(self) -> None:
        """A slave that reports the end of a frame when it has the head of it is found out at the first such message."""
        honest = SlaveSession._report

        def report(self: SlaveSession, now_ms: int) -> list[Action]:
            ahead = self.end_offset + self._frames._body_left
            return [Send((encode_report(ahead),)) for _ in honest(self, now_ms)]

        self.plant(SlaveSession, "_report", report)
        # an honest slave reports nothing within a frame
        self.plant(TransferDecoder, "is_within_body", False)
        long = options(SYNC_MASTER, ASYNC_FLUSH, slaves=1, body_bytes=4000, send_every_s=0.1)
        self.find("quiet", "as replicated", long)

    def test_one_slave_counts_for_two(self) -> None:
        """With inSyncReplicas=3 two slaves must have a message, not one of them twice."""

        def reached(self: Acks) -> int:
            return max((slave.offset for slave in self._counted()), default=-1) if len(self) >= self.need else -1

        self.plant(Acks, "quorum_offset", reached)
        two = options(SYNC_MASTER, ASYNC_FLUSH, slaves=2, send_every_s=0.1, store={"inSyncReplicas": "3"})
        self.find("network", "but 1 of 2 slaves have it", two)

    # ---- recovery ----

    def test_recovery_trusts_the_tail(self) -> None:
        """A recovery that looks at lengths only keeps records that the power failure has torn."""
        run = Recovery.run

        def trusting(self: Recovery) -> None:
            self.check_crc = False
            run(self)

        self.plant(Recovery, "run", trusting)
        self.plant(RecoveryPolicy, "is_torn", lambda self, at, frame, end_in_file: False)
        long = options(ASYNC_MASTER, ASYNC_FLUSH, sync_s=SLOW_S, body_bytes=4000, send_every_s=0.05)
        self.find("power", "broker-a-0: damaged-record /store/commitlog", long, first=102)

    def test_holes_are_kept(self) -> None:
        """A master that keeps what it finds behind unsynced damage has another history than its slave."""
        self.plant(RecoveryPolicy, "ends_log", lambda self, at: False)
        self.find(
            "power",
            "differs from its master",
            options(ASYNC_MASTER, ASYNC_FLUSH, slaves=1, send_every_s=0.05),
            first=15,
        )

    def test_queues_are_not_cut(self) -> None:
        """Queues that keep units of messages which a power failure took show nothing, or others, in their place."""
        self.plant(QueueTable, "cut", lambda self, phy_offset: None)
        often = options(ASYNC_MASTER, ASYNC_FLUSH, sync_s=SLOW_S, send_every_s=0.05, store=BUSY_QUEUES)
        self.find("power", " as number ", often)

    def test_numbers_given_twice(self) -> None:
        """A broker that goes back by one number after a start gives that number twice."""
        run = Recovery.run

        def one_less(self: Recovery) -> None:
            run(self)
            for queue in self.queues:
                queue.next = max(0, queue.next - 1)

        self.plant(Recovery, "run", one_less)
        self.find("kills", "number ('broker-a'", options(ASYNC_MASTER, ASYNC_FLUSH))

    def test_index_walks_over_lost_entries(self) -> None:
        """An index that walks back over entries which a power failure took loses older messages."""
        resume = IndexFile.resume

        def walking(self: IndexFile, file: File, *, in_order: bool) -> None:
            resume(self, file, in_order=True)

        self.plant(IndexFile, "resume", walking)
        store = {"maxHashSlotNum": "1", "maxIndexNum": "2000", **BUSY_QUEUES}
        self.find("power", "by the key", options(ASYNC_MASTER, ASYNC_FLUSH, send_every_s=0.05, store=store))

    def test_offsets_written_in_place(self) -> None:
        """Consumer offsets that are not replaced in one step are gone, or half there, after a power failure."""

        def write_state_soon(disk: Disk, path: str, data: bytes) -> Deferred[None]:
            disk.delete(path)
            file = disk.create(path, 0)
            file.write_at(0, data)
            file.close()
            return succeed(None)

        self.plant(offsets_module, "write_state_soon", write_state_soon)
        store = {"flushConsumerOffsetInterval": "500"}
        self.find("power", "that everyone runs", options(ASYNC_MASTER, ASYNC_FLUSH, store=store), first=5)

    # ---- replication ----

    def test_slave_ignores_gaps(self) -> None:
        """A slave that takes bytes for wherever its log ends differs from a master that begins with a later file."""

        def accept(self: SlaveSession, phy_offset: int, size: int) -> None:
            self.frames += 1

        self.plant(SlaveSession, "_refusal", lambda self, phy_offset, size: None)
        self.plant(SlaveSession, "_accept", accept)
        long = options(ASYNC_MASTER, ASYNC_FLUSH, slaves=1, body_bytes=8000, send_every_s=0.1)
        self.find("quiet", "differs from its master", long)

    def test_nobody_compares(self) -> None:
        """Sides that only look at offsets go on as one with two histories, once the master has grown again."""
        refusal = MasterSession._refusal

        def blind(self: MasterSession, report: int, end: int) -> Close | None:
            self._sent = None
            return refusal(self, report, end)

        self.plant(MasterSession, "_refusal", blind)
        self.plant(MessageStore, "resume_offset", MessageStore.end_offset)
        self.find(
            "power", "differs from its master", options(ASYNC_MASTER, ASYNC_FLUSH, slaves=1, send_every_s=0.05), first=6
        )

    # ---- the rest ----

    def test_offsets_ahead_of_consumers(self) -> None:
        """A broker that stores an offset beyond the committed one loses a message for the next consumer."""
        commit = ConsumerOffsetTable.commit

        def ahead(self: ConsumerOffsetTable, group: str, topic: str, queue_id: int, offset: int) -> None:
            commit(self, group, topic, queue_id, offset + 1)

        self.plant(ConsumerOffsetTable, "commit", ahead)
        self.find("kills", "never consumed", options(ASYNC_MASTER, ASYNC_FLUSH), first=18)

    def test_silent_brokers_stay_listed(self) -> None:
        """A NameServer that forgets nobody lists a broker that is gone."""

        def nobody(self: RouteTable, *_: object) -> list[Any]:
            return []

        self.plant(RouteTable, "expire", nobody)
        self.plant(RouteTable, "channel_closed", nobody)
        self.find("kills", "alive are", options(ASYNC_MASTER, ASYNC_FLUSH, slaves=1), chaos_s=10, first=9)

    def test_heartbeats_by_the_wall_clock(self) -> None:
        """A NameServer that stamps heartbeats with another clock than it expires by loses living brokers, or none."""
        heartbeat = RouteTable.heartbeat

        def stamped(self: RouteTable, name: str, addr: str, **values: Any) -> bool:
            at: Moment = values["at"]
            return heartbeat(self, name, addr, **{**values, "at": at._replace(steady_ms=at.now_ms)})

        self.plant(RouteTable, "heartbeat", stamped)
        self.find("power", "routes, 25 s later: ", None, first=8)

    def test_timers_left_behind(self) -> None:
        """A loop that goes on after the stop is a leak."""
        self.plant(Periodic, "stop", lambda self: succeed(None))
        self.find("quiet", "left a timer", options(ASYNC_MASTER, ASYNC_FLUSH), chaos_s=5)
