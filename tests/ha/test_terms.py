"""Where a controller elects the master: the hello of a slave, who may follow, and for whom sends wait."""

from __future__ import annotations

import struct

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.acks import EVERYTHING, MemberAcks, ReplicaWaits
from rmq.ha.master import MasterSession, MasterState
from rmq.ha.session import Acknowledge, Close, CloseKind, Send, Term
from rmq.ha.slave import SlaveSession
from rmq.ha.stream import decode_hello, encode_hello, encode_report, encode_transfer_header
from rmq.store.messages import PutStatus
from tests.ha.brokers import OTHER_PORT, SEGMENT, Broker, ServiceCase
from tests.ha.memory_log import MemoryLog
from tests.ha.test_master import LIMITS, filled, only_close, sent

#: the master of these tests is broker 1 in epoch 7
TERM = Term(epoch=7, broker_id=1)
HELLO = encode_hello(7, 2)
SILENCE_MS = LIMITS.silence_ms


def master(log: MemoryLog, term: Term | None = TERM) -> MasterSession:
    return MasterSession(log, LIMITS, now_ms=0, term=term)


def slave(end: int = 0, *, flushed: int | None = None, term: Term | None = None) -> SlaveSession:
    term = term or Term(epoch=7, broker_id=2)
    return SlaveSession(LIMITS, end_offset=end, log_end=end, now_ms=0, flushed=flushed, term=term)


class HelloTests(SynchronousTestCase):
    def test_bytes(self) -> None:
        """Eight bytes: the epoch with the highest bit set, then the id."""
        self.assertEqual(encode_hello(7, 2), bytes.fromhex("80000007 00000002"))
        self.assertEqual(encode_hello(2**31 - 1, 2**32 - 1), b"\xff" * 8)

    def test_read_back(self) -> None:
        """A hello that was read as a report gives both numbers."""
        for epoch, broker_id in ((0, 0), (7, 2), (2**31 - 1, 2**32 - 1)):
            (report,) = struct.unpack(">q", encode_hello(epoch, broker_id))
            self.assertEqual(decode_hello(report), (epoch, broker_id))

    def test_reports_are_none(self) -> None:
        """No offset of a log passes for a hello."""
        for report in (0, 1, 2**63 - 1):
            self.assertIsNone(decode_hello(report))


class MasterTests(SynchronousTestCase):
    def refusal(self, data: bytes, *, term: Term | None = TERM) -> Close:
        """Check that a slave that sends this is refused for good; return how."""
        session = master(filled(1000), term)
        close = only_close(session.receive(data, 1))
        self.assertIs(session.state, MasterState.CLOSED)
        self.assertEqual(session.receive(HELLO + encode_report(5), 2), [])
        self.assertEqual(session.pump(2, 10_000), [])
        return close

    def test_a_slave_of_this_epoch(self) -> None:
        """It is known by its id, its report counts, and it gets the log from there on."""
        log = filled(1000)
        session = master(log)
        self.assertEqual(session.receive(HELLO + encode_report(333), 1), [Acknowledge(333)])
        self.assertEqual((session.broker_id, session.request_offset), (2, 333))
        self.assertEqual(sent(session.pump(1, 10_000)), [(333, log.bytes_from(333))])

    def test_in_pieces(self) -> None:
        """However it is cut: nothing counts and nothing is sent before the report behind the hello is whole."""
        session = master(filled(1000))
        data = HELLO + encode_report(333)
        for at in range(15):
            self.assertEqual(session.receive(data[at : at + 1], 1), [])
            self.assertEqual(session.pump(1, 10_000), [])
            self.assertIs(session.state, MasterState.WAIT_FIRST)
        self.assertEqual(session.receive(data[15:], 1), [Acknowledge(333)])

    def test_reports_after_it(self) -> None:
        """Later reports need no hello; several in one read count up to the last."""
        session = master(filled(1000))
        session.receive(HELLO + encode_report(100), 1)
        session.pump(1, 10_000)
        self.assertEqual(session.receive(encode_report(200) + encode_report(300), 2), [Acknowledge(300)])
        first = master(filled(1000))
        self.assertEqual(first.receive(HELLO + encode_report(100) + encode_report(100), 1), [Acknowledge(100)])

    def test_a_hello_is_a_sign_of_life(self) -> None:
        """A slave that has to flush before its first report is waited for from its hello on."""
        session = master(filled(1000))
        session.receive(HELLO, SILENCE_MS - 1)
        self.assertEqual(session.tick(2 * SILENCE_MS - 1), [])
        self.assertIs(only_close(session.tick(2 * SILENCE_MS)).kind, CloseKind.SILENT)

    def test_without_a_hello(self) -> None:
        """A slave without controller mode is refused, by the key that it lacks."""
        close = self.refusal(encode_report(0))
        self.assertIs(close.kind, CloseKind.OTHER_TERM)
        self.assertIn("it has no enableControllerMode=true", close.reason)

    def test_other_epochs(self) -> None:
        """A slave that follows an older or a newer master is refused, by both epochs."""
        for epoch in (6, 8, 0):
            close = self.refusal(encode_hello(epoch, 2) + encode_report(5))
            self.assertIs(close.kind, CloseKind.OTHER_TERM)
            self.assertIn(f"follows the master of epoch {epoch}, this is the master of epoch 7", close.reason)

    def test_its_own_id(self) -> None:
        """A slave with the master's own id is a copy of its store: it is refused."""
        close = self.refusal(encode_hello(7, 1) + encode_report(5))
        self.assertIs(close.kind, CloseKind.OTHER_TERM)
        self.assertIn("the id 1 of this master itself", close.reason)

    def test_two_hellos(self) -> None:
        """Only one hello comes; another one is no report."""
        close = self.refusal(HELLO + HELLO)
        self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
        self.assertIn("this is not a slave", close.reason)

    def test_a_master_without_a_controller(self) -> None:
        """It refuses a hello, and names the key."""
        close = self.refusal(HELLO + encode_report(5), term=None)
        self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
        self.assertIn("enableControllerMode", close.reason)

    def test_the_checks_of_reports_hold(self) -> None:
        """A slave that is ahead, or that wants what is deleted, is refused as without a controller."""
        self.assertIs(self.refusal(HELLO + encode_report(1001)).kind, CloseKind.AHEAD)
        log = filled(2 * SEGMENT + 100)
        log.delete_before(SEGMENT)
        close = only_close(master(log).receive(HELLO + encode_report(5), 1))
        self.assertIs(close.kind, CloseKind.TOO_FAR_BEHIND)

    def test_an_empty_slave_gets_the_whole_log(self) -> None:
        """It may become master: it needs all segments, from the first one that is still there."""
        for first in (0, SEGMENT):
            log = filled(2 * SEGMENT + 100)
            log.delete_before(first)
            session = master(log)
            self.assertEqual(session.receive(HELLO + encode_report(0), 1), [Acknowledge(0)])
            self.assertEqual((session.start_offset, session.next_offset), (first, first))
            got = b""
            while session.has_more:
                got += b"".join(data for _, data in sent(session.pump(1, 1_000_000)))
            self.assertEqual(got, log.bytes_from(first))

    def test_an_empty_slave_of_an_empty_master(self) -> None:
        """Both begin at 0."""
        log = MemoryLog(SEGMENT)
        session = master(log)
        self.assertEqual(session.receive(HELLO + encode_report(0), 1), [Acknowledge(0)])
        log.grow(b"first")
        self.assertEqual(sent(session.pump(1, 10_000)), [(0, b"first")])


class SlaveTests(SynchronousTestCase):
    def test_before_the_first_report(self) -> None:
        """The hello goes out with the first report, in one write, and never again."""
        session = slave(777)
        self.assertEqual(session.connected(0), [Send((HELLO + encode_report(777),))])
        (_, report) = session.receive(encode_transfer_header(777, 3) + b"abc", 1)
        self.assertEqual(report, Send((encode_report(780),)))
        self.assertEqual(session.tick(LIMITS.heartbeat_ms + 1), [Send((encode_report(780),))])

    def test_who_it_is(self) -> None:
        """It names the epoch that it follows and its own id."""
        session = slave(term=Term(epoch=9, broker_id=5))
        self.assertEqual(session.connected(0), [Send((encode_hello(9, 5) + encode_report(0),))])

    def test_before_what_is_on_disk(self) -> None:
        """With acknowledgements after fsyncs both wait until the log is on disk."""
        session = slave(777, flushed=700)
        self.assertEqual(session.connected(0), [])
        self.assertEqual(session.synced(777, 1), [Send((HELLO + encode_report(777),))])

    def test_when_the_way_out_is_full(self) -> None:
        """A first report that has to wait takes its hello along."""
        session = slave(0)
        session.pause()
        self.assertEqual(session.connected(0), [])
        session.receive(encode_transfer_header(0, 3) + b"abc", 1)
        self.assertEqual(session.resume(2), [Send((HELLO + encode_report(3),))])

    def test_a_pair(self) -> None:
        """What the slave sends is what the master takes."""
        log = filled(1000)
        one, other = slave(400), master(log)
        (hello,) = one.connected(0)
        assert isinstance(hello, Send)
        self.assertEqual(other.receive(b"".join(hello.pieces), 1), [Acknowledge(400)])
        self.assertEqual(other.broker_id, 2)


class MemberTests(SynchronousTestCase):
    """Broker 1 is the master; each test says which brokers sends wait for."""

    def setUp(self) -> None:
        self.acks = MemberAcks(max_lag_bytes=1000)

    def require(self, *ids: int) -> None:
        self.acks.required = frozenset(ids)

    def join(self, connection: int, broker_id: int, offset: int, *, host: str = "a", start: int | None = None) -> None:
        start_offset = offset if start is None else start
        self.acks.join(connection, host, offset, start_offset=start_offset, end=5000, broker_id=broker_id)

    def test_alone(self) -> None:
        """With the master alone in the SyncStateSet sends wait for nobody, whatever slaves are there."""
        for _ in range(2):
            self.assertEqual((self.acks.quorum_offset(), self.acks.is_short), (EVERYTHING, False))
            self.assertTrue(self.acks.is_quorum_in_sync(2**62))
            self.assertTrue(self.acks.holds(2**62))
            self.join(1, 2, 100)

    def test_each_counts(self) -> None:
        """What the slowest of the set holds is confirmed; with one missing nothing is."""
        self.require(2, 3)
        self.join(1, 2, 100)
        self.assertEqual((self.acks.quorum_offset(), self.acks.is_short), (-1, True))
        self.assertFalse(self.acks.is_quorum_in_sync(100))
        self.assertFalse(self.acks.holds(100))
        self.join(2, 3, 80)
        self.assertEqual((self.acks.quorum_offset(), self.acks.is_short), (80, False))
        self.assertEqual([self.acks.holds(offset) for offset in (80, 81)], [True, False])
        self.acks.report(2, 120)
        self.assertEqual(self.acks.quorum_offset(), 100)
        self.acks.leave(1)
        self.assertEqual((self.acks.quorum_offset(), self.acks.is_short), (-1, True))

    def test_others_do_not_count(self) -> None:
        """A slave outside of the set neither helps nor holds up."""
        self.require(2)
        self.join(1, 3, 5000)
        self.assertEqual(self.acks.quorum_offset(), -1)
        self.join(2, 2, 400)
        self.join(3, 4, 0)
        self.assertEqual(self.acks.quorum_offset(), 400)
        self.assertTrue(self.acks.is_quorum_in_sync(1399))

    def test_the_newer_connection_of_a_broker(self) -> None:
        """A broker that came back has what it says now, also when the master has not noticed the loss of the first."""
        self.require(2)
        self.join(1, 2, 400)
        self.join(2, 2, 300)
        self.assertEqual(self.acks.quorum_offset(), 300)
        self.acks.report(1, 900)
        self.assertEqual(self.acks.quorum_offset(), 300)
        self.acks.leave(1)
        self.assertEqual((self.acks.quorum_offset(), self.acks.is_short), (300, False))

    def test_brokers_of_one_machine(self) -> None:
        """Brokers have names here: a second one from the same address puts no doubt on the first."""
        self.require(2, 3)
        self.join(1, 2, 400)
        self.join(2, 3, 500)
        self.assertEqual(self.acks.quorum_offset(), 400)
        self.assertTrue(self.acks.is_quorum_in_sync(1000))

    def test_lag(self) -> None:
        """One of the set that lags haSlaveFallbehindMax or more is not waited for: sends are refused."""
        self.require(2, 3)
        self.join(1, 2, 5000)
        self.join(2, 3, 400)
        self.assertTrue(self.acks.is_quorum_in_sync(1399))
        self.assertFalse(self.acks.is_quorum_in_sync(1400))

    def test_an_empty_one(self) -> None:
        """A slave whose copy begins later does not hold what lies before."""
        self.require(2)
        self.join(1, 2, 0, start=2000)
        self.acks.report(1, 3000)
        self.assertEqual([self.acks.holds(offset) for offset in (1500, 2000, 2001, 3000)], [False, False, True, True])

    def test_who_is_there(self) -> None:
        """The brokers that follow, in or outside of the set, and those that hold everything below an offset."""
        self.require(9)
        self.join(1, 2, 400)
        self.join(2, 3, 300)
        self.assertEqual(set(self.acks.members), {2, 3})
        self.assertEqual(
            [set(self.acks.caught_up(offset)) for offset in (300, 301, 400, 401)], [{2, 3}, {2}, {2}, set()]
        )


class WaitTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.acks = MemberAcks(max_lag_bytes=1000)
        self.waits = ReplicaWaits(self.clock, self.acks)
        self.acks.required = frozenset({2, 3})
        self.acks.join(1, "a", 100, start_offset=100, end=100, broker_id=2)

    def test_one_is_missing(self) -> None:
        """A send is refused at once while a broker of the set is away."""
        self.assertIs(self.waits.wait(100, 3000), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_all_have_it(self) -> None:
        """It is answered when the last one has it."""
        self.acks.join(2, "b", 100, start_offset=100, end=100, broker_id=3)
        self.assertIs(self.waits.wait(100, 3000), PutStatus.PUT_OK)
        done = self.waits.wait(150, 3000)
        assert isinstance(done, Deferred)
        self.acks.report(1, 150)
        self.waits.advance()
        self.assertNoResult(done)
        self.acks.report(2, 150)
        self.waits.advance()
        self.assertIs(self.successResultOf(done), PutStatus.PUT_OK)

    def test_one_leaves_the_set(self) -> None:
        """What waits for it is answered when it is required no longer."""
        self.acks.join(2, "b", 100, start_offset=100, end=100, broker_id=3)
        self.acks.report(1, 150)
        done = self.waits.wait(150, 3000)
        assert isinstance(done, Deferred)
        self.acks.required = frozenset({2})
        self.waits.advance()
        self.assertIs(self.successResultOf(done), PutStatus.PUT_OK)


class ServiceTests(ServiceCase):
    """Brokers 1, the master, and 2 and 3 over connections in memory."""

    def pair(self, size: int = 1000, *, required: bool = True) -> None:
        self.one = self.master(size, term=TERM)
        self.two = self.slave(term=Term(epoch=7, broker_id=2))
        if required:
            self.one.ha.require({2})
        self.net.deliver()

    def test_a_pair(self) -> None:
        """The slave gets the whole log, and a send is answered when it has the message."""
        self.pair(2 * SEGMENT + 100)
        self.assertEqual(self.two.log.bytes_from(0), self.one.log.bytes_from(0))
        put = self.one.put(b"news")
        assert isinstance(put, Deferred)
        self.net.deliver()
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_who_follows(self) -> None:
        """The master knows who follows it, and how far everybody of the set is."""
        self.pair()
        ha = self.one.ha
        self.assertEqual((ha.connected_members(), ha.is_short, ha.confirmed_offset), ({2}, False, 1000))
        self.assertEqual((ha.members_at(1000), ha.members_at(1001)), ({2}, frozenset()))
        self.successResultOf(self.stop(self.two))
        self.assertEqual((ha.connected_members(), ha.is_short, ha.confirmed_offset), (frozenset(), True, -1))

    def stop(self, broker: Broker) -> Deferred[None]:
        done = broker.ha.stopService()
        self.net.deliver()
        return done

    def test_of_another_epoch(self) -> None:
        """A slave that follows the master of another epoch is refused: it is none of the members."""
        self.pair()
        self.slave(OTHER_PORT, term=Term(epoch=6, broker_id=3))
        self.net.deliver()
        self.assertEqual(self.one.ha.connected_members(), {2})

    def test_one_more_is_required(self) -> None:
        """When another broker joins the set, sends that wait are refused at once if it is not connected."""
        self.pair()
        put = self.one.put(b"news")
        assert isinstance(put, Deferred)
        self.one.ha.require({2, 3})
        self.assertIs(self.successResultOf(put), PutStatus.SLAVE_NOT_AVAILABLE)
        self.assertIs(self.one.put(b"more"), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_nobody_is_required(self) -> None:
        """When the last one leaves the set, what waits for it is answered."""
        self.pair()
        put = self.one.put(b"news")
        assert isinstance(put, Deferred)
        self.one.ha.require(())
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_one_leaves(self) -> None:
        """Sends that wait are refused when a broker of the set is lost, and not when another one is."""
        for lost, status in ((0, PutStatus.SLAVE_NOT_AVAILABLE), (1, None)):
            self.stop_all()
            self.setUp()
            self.pair()
            self.slave(OTHER_PORT, term=Term(epoch=7, broker_id=3))
            self.net.deliver()
            put = self.one.put(b"news")
            assert isinstance(put, Deferred)
            self.net.ends[lost].end(ConnectionLost())
            if status is None:
                self.assertNoResult(put)
            else:
                self.assertIs(self.successResultOf(put), status)

    def test_changes_are_noticed(self) -> None:
        """A callback is called when a slave comes, holds more, and goes."""
        seen: list[tuple[list[int], int]] = []
        self.pair()
        ha = self.one.ha
        ha.on_members(lambda: seen.append((sorted(ha.connected_members()), ha.confirmed_offset)))
        self.one.log.grow(b"news")
        self.net.deliver()
        self.assertEqual(seen[-1], ([2], 1004))
        self.successResultOf(self.stop(self.two))
        self.assertEqual(seen[-1], ([], -1))
        self.slave(OTHER_PORT, term=Term(epoch=7, broker_id=3))
        self.net.deliver()
        self.assertEqual(seen[-1], ([3], -1))
        ha.require({3})
        self.assertEqual(seen[-1], ([3], 1004))

    def test_members_are_dropped(self) -> None:
        """The connections of these brokers end; they come back by themselves."""
        self.pair()
        self.slave(OTHER_PORT, term=Term(epoch=7, broker_id=3))
        self.net.deliver()
        self.one.ha.drop_members({3})
        self.assertEqual(self.one.ha.connected_members(), {2})
        self.net.deliver()
        self.net.run(10)
        self.assertEqual(self.one.ha.connected_members(), {2, 3})
