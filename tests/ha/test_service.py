"""Master and slave together, as services, over connections in memory."""

from __future__ import annotations

import itertools
import random

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.logger import LogLevel, capturedLogs, formatEvent

from rmq.ha.hub import GATHER_S, MAX_SLAVES, MAX_WAITING
from rmq.ha.output import OUTPUT_BOUND_BYTES
from rmq.ha.session import CloseKind
from rmq.ha.stream import encode_heartbeat, encode_report, encode_transfer_header
from rmq.runtime.disk.files import DiskError
from rmq.store.config import BrokerRole
from rmq.store.messages import PutStatus
from tests.ha.brokers import MASTER_PORT, OTHER_PORT, SEGMENT, SLAVE_PORT, Broker, Recorder, ServiceCase
from tests.ha.net import End


class ReplicationTests(ServiceCase):
    def test_a_slave_becomes_a_copy(self) -> None:
        """Whatever was there and whatever comes arrives, cut in any way, across segments."""
        for seed in range(12):
            print(f"seed {seed}")
            self.seed = seed
            self.stop_all()
            self.setUp()
            rng = random.Random(seed)
            master = self.master(rng.randrange(0, SEGMENT), ha_transfer_batch_size=rng.choice((100, 5000, 32768)))
            slave = self.slave()
            for _ in range(10):
                master.log.grow(rng.randbytes(rng.randrange(1, 30_000)))
                if rng.random() < 0.3:
                    self.net.deliver()
            self.net.deliver()
            # The slave's first report may arrive when the master is in its second segment already.
            start = slave.log.min_phy_offset
            self.assertEqual(start % SEGMENT, 0)
            self.assertEqual(slave.log.bytes_from(start), master.log.bytes_from(start), f"seed {seed}")
            (status,) = master.ha.status().slaves
            self.assertEqual((status.ack_offset, status.lag_bytes), (master.log.end_offset, 0))

    def test_pushed_on_append(self) -> None:
        """A byte is on its way in the turn it was appended in: no clock moves between append and acknowledgement."""
        master, slave = self.master(1000), self.slave()
        self.net.deliver()
        before = self.net.seconds()
        put = master.put(b"news")
        assert isinstance(put, Deferred)
        self.net.deliver()
        self.assertEqual(self.net.seconds(), before)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)
        self.assertEqual(slave.log.end_offset, 1004)

    def test_appends_of_one_turn_share_a_frame(self) -> None:
        """A burst of small messages costs one frame, not one each."""
        master, slave = self.master(10), self.slave()
        self.net.deliver()
        (end,) = self.net.ends
        slave.log.appends.clear()
        for _ in range(100):
            master.log.grow(b"x" * 10)
        self.net.advance(0)
        self.assertEqual(len(end.other.unsent), 12 + 1000)

    def test_an_append_that_comes_alone_goes_at_once(self) -> None:
        """Where appends come one by one, and the slave has all before, none waits for the next turn of the reactor."""
        self.master(10)
        self.slave()
        self.net.deliver()
        master = self.brokers[0]
        (end,) = self.net.ends
        master.log.grow(b"one")
        self.net.deliver()
        master.log.grow(b"two")
        self.assertEqual(len(end.other.unsent), 12 + 3)
        master.log.grow(b"three")
        self.assertEqual(len(end.other.unsent), 12 + 3)
        self.net.deliver()
        self.assertEqual(self.brokers[1].log.end_offset, master.log.end_offset)

    def test_pushes_where_no_put_waits(self) -> None:
        """
        An ASYNC_MASTER pushes once in 5 ms what comes meanwhile, and at once what comes after a longer pause.

        Neither reports nor further appends bring a push forward.
        """
        master = self.broker(BrokerRole.ASYNC_MASTER, MASTER_PORT)
        slave = self.slave()
        self.net.deliver()
        self.net.advance(1)
        self.net.advance(GATHER_S)
        master.log.grow(b"at once")
        self.net.deliver()
        self.assertEqual(slave.log.end_offset, master.log.end_offset)
        link = slave.link
        before = link.frames
        for _ in range(10):
            master.log.grow(b"x" * 10)
            self.net.deliver()
        self.net.advance(GATHER_S * 0.9)
        self.net.deliver()
        self.assertEqual(slave.log.end_offset, 7)
        self.net.advance(GATHER_S * 0.2)
        self.net.deliver()
        link = slave.link
        self.assertEqual((slave.log.end_offset, link.frames), (107, before + 1))

    def test_a_stop_pushes_what_was_gathered(self) -> None:
        """A master that stops sends what waits for the next push."""
        master = self.broker(BrokerRole.ASYNC_MASTER, MASTER_PORT)
        self.slave()
        self.net.deliver()
        master.log.grow(b"at once")
        self.net.deliver()
        master.log.grow(b"gathered")
        (end,) = self.net.ends
        master.ha.stopService()
        self.assertIn(b"gathered", bytes(end.other.unsent))

    def test_a_latecomer_starts_at_the_last_segment(self) -> None:
        """An empty slave copies from the start of the last segment on, and is waited for although older ones lack."""
        master = self.master(3 * SEGMENT + 500, ha_slave_fallbehind_max=1000)
        slave = self.slave()
        self.net.deliver()
        self.assertEqual(slave.log.min_phy_offset, 3 * SEGMENT)
        self.assertEqual(slave.log.bytes_from(3 * SEGMENT), master.log.bytes_from(3 * SEGMENT))

    def test_a_slave_resumes(self) -> None:
        """After a lost connection a slave dials again within six seconds and goes on at its own end."""
        master, slave = self.master(1000), self.slave()
        self.net.deliver()
        self.net.ends[0].end(ConnectionError("cable"))
        master.log.grow(b"meanwhile")
        self.net.run(6)
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))
        self.assertEqual(len(self.net.ends), 2)

    def test_a_slave_resumes_where_it_was_sent_to(self) -> None:
        """A slave that got bytes since the master's start, and dials again, is not taken for one of another history."""
        master, slave = self.master(1000), self.slave()
        self.net.deliver()
        master.log.grow(b"x" * 500)
        self.net.deliver()
        self.net.ends[0].end(ConnectionError("cable"))
        self.net.run(6)
        self.assertEqual((master.ha.status().refused, len(master.ha.status().slaves)), (0, 1))
        self.assertEqual(slave.log.end_offset, 1500)

    def test_idle_connections_stay(self) -> None:
        """Heartbeats and reports keep an idle pair connected for minutes."""
        self.master(1000)
        slave = self.slave()
        self.net.run(180, step=0.5)
        self.assertEqual(len(self.net.ends), 1)
        self.assertTrue(self.net.ends[0].connected)
        link = slave.link
        self.assertGreater(link.frames, 30)

    def test_a_slave_serves_too(self) -> None:
        """A slave listens, and pushes on what it got."""
        master, middle = self.master(1000), self.slave()
        last = self.slave(OTHER_PORT, of=f"10.0.0.9:{SLAVE_PORT}")
        self.net.deliver()
        master.log.grow(b"down the chain")
        self.net.run(2 * GATHER_S, step=GATHER_S)
        self.assertEqual(middle.log.bytes_from(0), master.log.bytes_from(0))
        self.assertEqual(last.log.bytes_from(0), master.log.bytes_from(0))

    def test_a_slave_behind_a_slave_that_began_empty(self) -> None:
        """A slave may have more than the slave that it follows had at its start: both have it from the master."""
        master, middle = self.master(1000), self.slave()
        self.net.deliver()
        last = self.slave(OTHER_PORT, of=None)
        last.log.grow(master.log.bytes_from(0)[:500])
        last.ha.set_master(f"10.0.0.9:{SLAVE_PORT}")
        self.net.run(2)
        self.assertEqual(last.log.bytes_from(0), master.log.bytes_from(0))
        self.assertEqual(middle.ha.status().refused, 0)

    def test_two_slaves(self) -> None:
        """Each slave has its own position."""
        master = self.master(1000)
        slaves = [self.slave(), self.slave(OTHER_PORT)]
        self.net.deliver()
        master.log.grow(b"x" * SEGMENT)
        self.net.deliver()
        for slave in slaves:
            self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))
        self.assertEqual(len(master.ha.status().slaves), 2)


class BackPressureTests(ServiceCase):
    def test_a_slow_slave_costs_bounded_memory(self) -> None:
        """A slave that does not read holds at most 1 MiB of output, and gets everything when it reads again."""
        master = self.master()
        end, peer = self.peer()
        end.write(encode_report(0))
        self.net.deliver()
        end.other.stuck = True
        for _ in range(40):
            master.log.grow(bytes(SEGMENT))
            self.net.deliver()
        self.assertLessEqual(end.other.peak, OUTPUT_BOUND_BYTES)
        self.assertGreater(end.other.peak, SEGMENT)
        end.other.stuck = False
        self.net.deliver()
        frames = -(-40 * SEGMENT // 32768)
        self.assertEqual(len(peer.received), 40 * SEGMENT + 12 * frames)

    def test_catching_up_yields(self) -> None:
        """A slave with much to catch up gets it in slices; between two of them others have their turn."""
        master = self.master(40 * SEGMENT)
        end, _ = self.peer()
        end.write(encode_report(1))
        data = bytes(end.unsent)
        end.unsent.clear()
        end.other.protocol.dataReceived(data)
        self.assertLess(len(end.other.unsent), OUTPUT_BOUND_BYTES)
        self.assertLess(master.ha.status().slaves[0].next_offset, master.log.end_offset)
        self.net.deliver()
        self.assertEqual(master.ha.status().slaves[0].next_offset, master.log.end_offset)

    def test_a_slave_whose_master_does_not_read(self) -> None:
        """Reports that nobody takes do not pile up."""
        master, slave = self.master(100), self.slave()
        self.net.deliver()
        (end,) = self.net.ends
        end.stuck = True
        slave_end_peak = 65536 + 8
        for _ in range(20_000):
            end.protocol.dataReceived(encode_transfer_header(slave.log.end_offset, 1) + b"x")
        self.assertLessEqual(end.peak, slave_end_peak)
        self.assertEqual(slave.log.end_offset, 20_100)
        self.assertEqual(master.log.end_offset, 100)
        end.end(ConnectionError("enough"))

    def test_cold_bytes(self) -> None:
        """A slave that is behind waits while its bytes are read from the disk; they are asked for once."""
        master, slave = self.master(1000), self.slave()
        master.log.is_cold = True
        self.net.deliver()
        ((offset, loading),) = master.log.loads
        self.assertEqual((offset, slave.log.end_offset), (0, 0))
        master.log.grow(b"more")
        self.net.run(1)
        self.assertEqual(len(master.log.loads), 1)
        master.log.is_cold = False
        loading.callback(None)
        self.net.deliver()
        self.assertEqual(slave.log.end_offset, 1004)

    def test_a_load_that_changes_nothing(self) -> None:
        """What is not in memory after all is loaded again, in another turn of the reactor."""
        master, slave = self.master(1000), self.slave()
        loads: list[int] = []

        def preload(phy_offset: int) -> Deferred[None]:
            loads.append(phy_offset)
            master.log.is_cold = len(loads) < 5
            return succeed(None)

        self.patch(master.log, "preload", preload)
        master.log.is_cold = True
        self.net.deliver()
        self.net.run(1)
        self.assertEqual((loads, slave.log.end_offset), ([0] * 5, 1000))

    def test_cold_bytes_that_cannot_be_read(self) -> None:
        """A disk that cannot read ends the connection, and the slave tries again."""
        master, slave = self.master(1000), self.slave()
        master.log.is_cold = True
        self.net.deliver()
        (end,) = self.net.ends
        master.log.loads.pop()[1].errback(DiskError("/log", "Input/output error", 0))
        self.net.deliver()
        self.assertFalse(end.connected)
        master.log.is_cold = False
        self.net.run(7)
        self.assertEqual(slave.log.end_offset, 1000)

    def test_a_slave_that_left_while_its_bytes_were_read(self) -> None:
        """What was loaded for a connection that has ended is for nobody."""
        master = self.master(1000)

        def read_loaded(phy_offset: int, limit: int) -> bytes:
            raise AssertionError(f"read at {phy_offset} for nobody")

        for result in (None, DiskError("/log", "Input/output error", 0)):
            end, peer = self.peer()
            master.log.is_cold = True
            end.write(encode_report(1))
            self.net.deliver()
            end.end(ConnectionError("gone"))
            self.net.deliver()
            master.log.is_cold = False
            loading = master.log.loads.pop()[1]
            patched = self.patch(master.log, "read_loaded", read_loaded)
            with capturedLogs() as events:
                loading.callback(None) if result is None else loading.errback(result)
                self.net.run(1)
            self.assertEqual((peer.received, events), (b"", []))
            patched.restore()


class SyncMasterTests(ServiceCase):
    def test_without_a_slave(self) -> None:
        """SLAVE_NOT_AVAILABLE at once."""
        self.assertIs(self.master().put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_bare_connections_are_no_slaves(self) -> None:
        """A port scanner, or seven bytes, do not make a send wait three seconds."""
        master = self.master(100)
        self.peer()
        end, _ = self.peer(host="10.0.0.67")
        end.write(b"\0" * 7)
        self.net.deliver()
        self.assertIs(master.put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)
        self.assertEqual(master.ha.status().waiting_connections, 2)

    def test_a_lie_is_never_counted(self) -> None:
        """A first report beyond the end, however large, confirms no message, now or later."""
        for lie in (2**62, 100 + 100_000, 101):
            master = self.brokers[0] if self.brokers else self.master(100)
            end, peer = self.peer()
            end.write(encode_report(lie))
            self.net.deliver()
            self.assertTrue(peer.lost)
            self.assertIs(master.put(b""), PutStatus.SLAVE_NOT_AVAILABLE)
            self.assertIn(str(lie), master.ha.status().last_refusal)
            self.assertIn("100", master.ha.status().last_refusal)
        self.assertEqual(len(self.flushLoggedErrors()), 0)

    def test_suspended_slave(self) -> None:
        """A slave that stops answering costs each put its own three seconds, and no more; then it is well again."""
        master, _ = self.master(100), self.slave()
        self.net.deliver()
        (end,) = self.net.ends
        end.stuck = True
        first = master.put(b"a")
        self.net.run(1, step=0.01)
        second = master.put(b"b")
        assert isinstance(first, Deferred) and isinstance(second, Deferred)
        self.net.run(1.98, step=0.01)
        self.assertNoResult(first)
        self.net.run(0.03, step=0.01)
        self.assertIs(self.successResultOf(first), PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertNoResult(second)
        self.net.run(1, step=0.01)
        self.assertIs(self.successResultOf(second), PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertEqual(master.ha.status().timeouts, 2)
        end.stuck = False
        self.net.deliver()
        third = master.put(b"c")
        self.net.deliver()
        assert isinstance(third, Deferred)
        self.assertIs(self.successResultOf(third), PutStatus.PUT_OK)

    def test_each_put_has_its_own_deadline(self) -> None:
        """A producer is answered after its own timeout, also behind a put that was allowed to wait for longer."""
        master, _ = self.master(100), self.slave()
        self.net.deliver()
        patient = master.put(b"a", 10_000)
        self.net.deliver()
        assert isinstance(patient, Deferred)
        self.assertIs(self.successResultOf(patient), PutStatus.PUT_OK)
        self.net.ends[0].stuck = True
        hasty = master.put(b"b", 1000)
        assert isinstance(hasty, Deferred)
        self.net.run(0.98, step=0.01)
        self.assertNoResult(hasty)
        self.net.run(0.03, step=0.01)
        self.assertIs(self.successResultOf(hasty), PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_one_of_two_slaves_is_enough(self) -> None:
        """A stopped slave does not hold up a put that another one has confirmed."""
        master, _, _ = self.master(100), self.slave(), self.slave(OTHER_PORT)
        self.net.deliver()
        self.net.ends[0].stuck = True
        put = master.put(b"x")
        self.net.deliver()
        assert isinstance(put, Deferred)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_quorum(self) -> None:
        """With inSyncReplicas=3 two slaves must have it, and one slave is none."""
        master = self.master(100, in_sync_replicas=3)
        self.slave()
        self.net.run(6)
        self.assertIs(master.put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)
        self.slave(OTHER_PORT)
        self.net.run(6)
        self.net.ends[0].stuck = True
        put = master.put(b"y")
        assert isinstance(put, Deferred)
        self.net.deliver()
        self.assertNoResult(put)
        self.net.ends[0].stuck = False
        self.net.deliver()
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_last_slave_gone(self) -> None:
        """Puts that wait when the last slave leaves are answered at once, not at their deadlines."""
        master, _ = self.master(100), self.slave()
        self.net.deliver()
        self.net.ends[0].stuck = True
        puts = [master.put(b"x") for _ in range(3)]
        self.net.deliver()
        self.net.ends[0].end(ConnectionError("cable"))
        for put in puts:
            assert isinstance(put, Deferred)
            self.assertIs(self.successResultOf(put), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_lag(self) -> None:
        """A slave too far behind is not waited for."""
        master, _ = self.master(100, ha_slave_fallbehind_max=5000), self.slave()
        self.net.deliver()
        self.net.ends[0].stuck = True
        self.assertIsInstance(master.put(b"x" * 4999), Deferred)
        self.assertIs(master.put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_stop_answers_everybody(self) -> None:
        """A stopping master leaves no producer without an answer, and takes no new waiters."""
        master, _ = self.master(100), self.slave()
        self.net.deliver()
        self.net.ends[0].stuck = True
        puts = [master.put(b"x") for _ in range(3)]
        stopped = master.ha.stopService()
        for put in puts:
            assert isinstance(put, Deferred)
            self.assertIs(self.successResultOf(put), PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertIs(master.put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)
        self.net.deliver()
        self.successResultOf(stopped)


class HostilePeerTests(ServiceCase):
    def test_a_slave_ahead_is_refused_each_time(self) -> None:
        """A slave that holds more than its master never goes on behind the master's end, even when that has grown."""
        master, slave = self.master(1000), self.slave(of=None)
        slave.log.grow(random.Random(3).randbytes(1500))
        slave.ha.set_master("10.0.0.9:10912")
        self.net.run(60)
        self.assertEqual(slave.log.end_offset, 1500)
        self.assertEqual(master.ha.status().slaves, ())
        self.assertGreater(master.ha.status().refused, 2)
        for offset in ("1500", "1000"):
            self.assertIn(offset, master.ha.status().last_refusal)
        master.log.grow(b"x" * 5000)
        self.net.run(120)
        self.assertEqual(slave.log.end_offset, 1500)
        self.assertGreater(master.ha.status().refusals[CloseKind.DIVERGED], 0)
        for offset in ("1500", "1000", "6000", "500 bytes of another history"):
            self.assertIn(offset, master.ha.status().last_refusal)

    def test_a_dropped_connection_is_not_heard(self) -> None:
        """What still arrives from a connection that was dropped makes it no slave again."""
        master = self.master(100)
        end, _ = self.peer()
        end.other.protocol.drop("a test")
        end.other.protocol.dataReceived(encode_report(100))
        self.assertEqual(master.ha.status().slaves, ())
        self.assertIs(master.put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)
        self.net.deliver()

    def test_silent_connections_end(self) -> None:
        """Whoever says nothing is gone after 20 seconds and has cost nothing."""
        master = self.master(100)
        peers = [self.peer()[1] for _ in range(10)]
        self.net.run(19)
        self.assertFalse(any(peer.lost for peer in peers))
        self.net.run(3)
        self.assertTrue(all(peer.lost for peer in peers))
        self.assertEqual(b"".join(peer.received for peer in peers), b"")
        self.assertEqual((master.ha.status().slaves, master.ha.status().refused), ((), 0))

    def test_a_flood_of_connections_leaves_room_for_slaves(self) -> None:
        """Connections without a report are bounded; the flooding host loses its own, another host's slave gets in."""
        master = self.master(100)
        other = self.peer(host="10.0.0.5")[1]
        for _ in range(3 * MAX_WAITING):
            self.peer(host="10.0.0.66")
        slave = self.slave()
        self.net.deliver()
        self.assertFalse(other.lost)
        self.assertLessEqual(master.ha.status().waiting_connections, MAX_WAITING)
        self.assertEqual(slave.log.end_offset, 100)

    def test_slaves_are_bounded(self) -> None:
        """More slaves than anybody has are refused."""
        master = self.master(100)
        peers = []
        for number in range(MAX_SLAVES + 3):
            end, peer = self.peer(host=f"10.1.0.{number}")
            end.write(encode_report(100))
            self.net.deliver()
            peers.append(peer)
        self.assertEqual([peer.lost for peer in peers], [False] * MAX_SLAVES + [True] * 3)
        self.assertEqual(len(master.ha.status().slaves), MAX_SLAVES)

    def test_garbage_harms_nobody(self) -> None:
        """Random bytes, HTTP, a RocketMQ request: the slave beside them goes on (the seed is in the message)."""
        master, slave = self.master(1000), self.slave()
        self.net.deliver()
        rng = random.Random(5)
        for data in [b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("0000005e00000055"), *map(rng.randbytes, range(1, 60))]:
            end, _ = self.peer()
            end.write(data)
            master.log.grow(b"still here")
            self.net.deliver()
        self.net.run(21)
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))
        self.assertEqual(len(master.ha.status().slaves), 1)
        self.assertTrue(self.net.ends[0].connected)

    def test_flood_of_reports(self) -> None:
        """A slave that reports without end is only a busy slave."""
        master = self.master(1000)
        end, peer = self.peer()
        end.write(encode_report(1000) * 100_000)
        self.net.deliver()
        self.assertFalse(peer.lost)
        self.assertEqual(master.ha.status().slaves[0].ack_offset, 1000)

    def test_unreadable_log(self) -> None:
        """A log that cannot be read costs the connection, with an error, not the service."""
        master, slave = self.master(1000), self.slave()
        self.net.deliver()
        master.log.fail_read = True
        master.log.grow(b"x")
        self.net.deliver()
        self.assertFalse(self.net.ends[0].connected)
        master.log.fail_read = False
        self.net.run(7)
        self.assertEqual(slave.log.end_offset, 1001)


class BadMasterTests(ServiceCase):
    """A slave against masters that break the rules."""

    def listen(self) -> None:
        factory = Factory.forProtocol(Recorder)
        self.net.listenTCP(MASTER_PORT, factory)
        self.addCleanup(self.net.listening.pop, MASTER_PORT, None)

    def connected(self, size: int = 0) -> tuple[Broker, End]:
        self.listen()
        slave = self.slave(of=None)
        if size:
            slave.log.grow(bytes(size))
        slave.ha.set_master("10.0.0.9:10912")
        self.net.deliver()
        return slave, self.net.ends[-1].other

    def test_reports_at_once(self) -> None:
        """The first thing a slave does is to say where it stands."""
        _, master = self.connected(777)
        self.assertEqual(master.protocol.received, encode_report(777))

    def test_wrong_frames_leave_the_log_alone(self) -> None:
        """Wrong offsets and sizes end the connection with both offsets in the status, and nothing is appended."""
        slave, master = self.connected(100)
        cases = [
            (encode_heartbeat(99), ("99", "100")),
            (encode_transfer_header(4096, 3) + b"abc", ("4096", "100")),
            (encode_transfer_header(100, -5), ("-5", "100")),
            (encode_transfer_header(100, 2**31 - 1), (str(2**31 - 1), "100")),
        ]
        for data, names in cases:
            master.write(data)
            self.net.deliver()
            self.assertFalse(master.connected)
            link = slave.link
            for name in names:
                self.assertIn(name, link.last_error)
            connections = len(self.net.ends)
            for _ in range(61):
                if len(self.net.ends) == connections:
                    self.net.run(1)
            master = self.net.ends[-1].other
            self.assertTrue(master.connected)
        self.assertEqual(slave.log.end_offset, 100)

    def test_back_off(self) -> None:
        """Dials of a host that nobody is at come 1, 2, 4 and then up to 6 seconds apart."""
        self.slave(of="10.0.0.9:10912")
        self.net.run(60, step=0.25)
        times = [at for at, _ in self.net.dials]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        for gap, base in zip(gaps, (1, 2, 4, *[5] * 20), strict=False):
            self.assertTrue(base <= gap <= base * 1.2 + 0.25, gaps)
        self.assertGreaterEqual(len(gaps), 8)

    def test_a_good_frame_sets_the_pause_back(self) -> None:
        """After a connection that worked the next dial comes within two seconds."""
        slave, master = self.connected(100)
        for _ in range(4):
            master.write(encode_heartbeat(100))
            self.net.deliver()
            master.end(ConnectionError("cable"))
            self.net.run(1.75)
            master = self.net.ends[-1].other
            self.assertTrue(master.connected)
        self.assertEqual(slave.log.end_offset, 100)

    def test_half_a_frame_is_no_sign_of_health(self) -> None:
        """A master that hangs up in its first frame is dialled less and less often."""
        slave, master = self.connected(100)
        for pause_s in (1, 2, 4, 8, 16):
            master.write(encode_heartbeat(100)[:11])
            self.net.deliver()
            master.end(ConnectionError("cable"))
            self.net.run(pause_s - 0.25)
            self.assertFalse(self.net.ends[-1].connected)
            self.net.run(pause_s * 0.2 + 0.5)
            master = self.net.ends[-1].other
            self.assertTrue(master.connected)
        self.assertEqual(slave.log.end_offset, 100)

    def test_silent_master_is_left(self) -> None:
        """A half-open connection is noticed after 20 seconds."""
        _, master = self.connected(100)
        self.net.run(20)
        self.assertTrue(master.connected)
        self.net.run(2)
        self.assertFalse(master.connected)

    def test_failed_append(self) -> None:
        """When the log refuses bytes the connection goes, and the next one asks for the same offset again."""
        slave, master = self.connected(100)
        slave.log.fail_next = True
        master.write(encode_transfer_header(100, 3) + b"abc" + encode_transfer_header(103, 3) + b"def")
        self.net.deliver()
        self.assertFalse(master.connected)
        self.assertEqual(slave.log.end_offset, 100)
        link = slave.link
        self.assertIn("no room", link.last_error)
        self.net.run(6.5)
        self.assertEqual(self.net.ends[-1].other.protocol.received, encode_report(100))

    def test_nothing_is_appended_behind_a_failed_append(self) -> None:
        """What came in the same read behind bytes that the log refused is left; the first error is the one shown."""
        slave, master = self.connected(SEGMENT - 3)
        slave.log.fail_next = True
        master.other.protocol.dataReceived(
            encode_transfer_header(SEGMENT - 3, 3) + b"abc" + encode_transfer_header(SEGMENT, 3) + b"def"
        )
        self.assertEqual(slave.log.end_offset, SEGMENT - 3)
        self.assertIn("no room", slave.link.last_error)
        self.net.deliver()

    def test_why_the_last_connection_ended(self) -> None:
        """The reason of an attempt is forgotten when one succeeds, and that of its end takes its place."""
        slave = self.slave()
        self.net.run(1)
        self.assertIn("no connection", slave.link.last_error)
        self.master(1000)
        self.net.run(20)
        self.assertEqual((slave.log.end_offset, slave.link.last_error), (1000, ""))
        self.net.ends[-1].end(ConnectionLost("cable cut"))
        self.net.deliver()
        self.assertIn("cable cut", slave.link.last_error)

    def test_address_change(self) -> None:
        """A new address is dialled at once; the old connection is dropped and what it still says is not taken."""
        slave, old = self.connected(100)
        new = self.master(100, OTHER_PORT)
        slave.ha.set_master(f"10.0.0.9:{OTHER_PORT}")
        old.other.protocol.dataReceived(encode_transfer_header(100, 3) + b"old")
        self.assertEqual(slave.log.end_offset, 100)
        new.log.grow(b"new")
        self.net.deliver()
        self.assertFalse(old.connected)
        self.assertEqual(slave.log.bytes_from(100), b"new")
        slave.ha.set_master(f"10.0.0.9:{OTHER_PORT}")
        self.net.deliver()
        self.assertEqual(len(self.net.ends), 2)

    def test_the_end_of_the_old_connection_comes_late(self) -> None:
        """A slave whose address was changed keeps its new master when the old connection ends afterwards."""
        slave, old = self.connected(100)
        new = self.master(100, OTHER_PORT)
        slave.ha.set_master(f"10.0.0.9:{OTHER_PORT}")
        self.assertTrue(old.connected)
        self.net.run(60)
        self.assertFalse(old.connected)
        link = slave.link
        self.assertEqual((link.connected, link.last_error), (True, ""))
        self.assertEqual((len(self.net.dials), len(new.ha.status().slaves)), (2, 1))

    def test_agreement_begins_when_the_master_speaks(self) -> None:
        """Offsets are not given back to what only accepts connections on the HA port."""
        slave, master = self.connected(100)
        self.assertFalse(slave.ha.agrees_with_master)
        master.write(encode_heartbeat(100))
        self.net.deliver()
        self.assertTrue(slave.ha.agrees_with_master)

    def test_agreement_begins_when_all_is_compared(self) -> None:
        """Offsets are not given back to a master before its log is known to be that of this slave, up to the end."""
        self.listen()
        slave = self.slave(of=None)
        slave.log.grow(b"x" * 100)
        slave.log.resume_at = 40
        slave.ha.set_master("10.0.0.9:10912")
        self.net.deliver()
        master = self.net.ends[-1].other
        for data in (
            encode_heartbeat(40),
            encode_transfer_header(40, 1) + b"x",
            encode_transfer_header(41, 58) + b"x" * 58,
        ):
            master.write(data)
            self.net.deliver()
            self.assertFalse(slave.ha.agrees_with_master)
        master.write(encode_transfer_header(99, 1) + b"x")
        self.net.deliver()
        self.assertTrue(slave.ha.agrees_with_master)
        master.end(ConnectionError("cable"))
        self.assertFalse(slave.ha.agrees_with_master)

    def test_no_master_any_more(self) -> None:
        """Without an address nothing is dialled."""
        slave, old = self.connected(100)
        slave.ha.set_master(None)
        self.net.run(100, step=1)
        self.assertFalse(old.connected)
        self.assertEqual(len(self.net.dials), 1)

    def test_a_stop_waits_for_the_end_of_the_connection(self) -> None:
        """A stopped slave takes nothing more from its master: the store is closed only when the connection is gone."""
        slave, _ = self.connected(100)
        stopped = slave.ha.stopService()
        self.assertNoResult(stopped)
        self.net.deliver()
        self.successResultOf(stopped)

    def test_dial_that_hangs(self) -> None:
        """A stop does not wait for a dial without an answer."""
        self.net.silent.add(MASTER_PORT)
        slave = self.slave()
        self.net.run(30)
        self.successResultOf(slave.ha.stopService())

    def test_a_dial_that_was_given_up_is_no_error(self) -> None:
        """When the address changes during a dial, its end is not reported as the new master's."""
        self.net.silent |= {MASTER_PORT, OTHER_PORT}
        slave = self.slave()
        slave.ha.set_master(f"10.0.0.9:{OTHER_PORT}")
        self.net.deliver()
        self.assertEqual(slave.link.last_error, "")
        self.net.silent.clear()
        self.broker(BrokerRole.ASYNC_MASTER, 10914)
        slave.ha.set_master("10.0.0.9:10914")
        self.net.deliver()
        link = slave.link
        self.assertEqual((link.connected, link.last_error), (True, ""))

    def test_bad_address(self) -> None:
        """What is no address changes nothing when a NameServer says it, and ends the start when it is configured."""
        slave, master = self.connected(100)
        for text in ("nonsense", "host:", ":10912", "host:99999", "host:x"):
            slave.ha.set_master(text)
            error = self.assertRaises(ValueError, Broker, self.net, BrokerRole.SLAVE, 1, ha_master_address=text)
            self.assertIn(text, str(error))
        self.assertTrue(master.connected)


class ConfigurationTests(ServiceCase):
    def test_configured_master(self) -> None:
        """A slave with haMasterAddress follows that one, whatever the NameServer says."""
        master = self.master(100)
        slave = self.slave(of="10.0.0.9:1", ha_master_address=f"10.0.0.9:{MASTER_PORT}")
        self.net.deliver()
        self.assertEqual(slave.log.end_offset, master.log.end_offset)
        self.assertEqual([port for _, port in self.net.dials], [MASTER_PORT])

    def test_another_master_than_the_configured_one(self) -> None:
        """The NameServers know better after a promotion: said once for each; of a host's name nothing is known."""
        self.master(100)
        with capturedLogs() as events:
            slave = self.slave(of=None, ha_master_address=f"10.0.0.9:{MASTER_PORT}")
            for named in (f"10.0.0.9:{MASTER_PORT}", "10.0.0.8:10912", "10.0.0.8:10912", None):
                slave.ha.set_master(named)
            self.slave(port=SLAVE_PORT + 10, of="10.0.0.8:10912", ha_master_address=f"master:{MASTER_PORT}")
            self.net.deliver()
        lines = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
        self.assertEqual(len([line for line in lines if "but the NameServers name 10.0.0.8:10912" in line]), 1, lines)

    def test_nobody_to_follow(self) -> None:
        """A slave whose master nobody names says so once, in its log and in its state, until it has one."""
        with capturedLogs() as events:
            slave = self.slave(of=None)
            self.net.run(34)
            self.assertEqual(slave.link.last_error, "")
            self.net.run(60)
        errors = [formatEvent(event) for event in events if event["log_level"] is LogLevel.error]
        self.assertEqual([line.partition(":")[0] for line in errors], ["nothing is replicated"])
        self.assertIn("no NameServer names a master of this brokerName", slave.link.last_error)
        self.master(100)
        slave.ha.set_master(f"10.0.0.9:{MASTER_PORT}")
        self.net.deliver()
        self.assertEqual(slave.link.last_error, "")

    def test_a_slave_that_begins_later_than_its_master(self) -> None:
        """It says that it lacks what lies before, since it must not be promoted before one that has it."""
        master = self.master(2 * SEGMENT + 100)
        with capturedLogs() as events:
            slave = self.slave()
            self.net.deliver()
        lines = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
        begins = f"the log of this slave begins at offset {2 * SEGMENT}:"
        self.assertEqual(len([line for line in lines if begins in line]), 1, lines)
        self.assertEqual(slave.log.end_offset, master.log.end_offset)

    def test_a_master_follows_nobody(self) -> None:
        """set_master is for slaves."""
        self.master().ha.set_master("10.0.0.9:1")
        self.net.run(10)
        self.assertEqual(self.net.dials, [])

    def test_port_in_use(self) -> None:
        """A used HA port is an error at the start, and a later start works."""
        self.master()
        second = Broker(self.net, BrokerRole.ASYNC_MASTER, MASTER_PORT)
        self.assertRaises(CannotListenError, second.ha.startService)
        self.assertFalse(second.ha.running)

    def test_a_slave_that_dials_during_the_stop(self) -> None:
        """A connection that the system accepted just before the port closed is not served by a broker that stops."""
        master = self.master(100)
        factory = self.net.listening[MASTER_PORT]
        self.assertIsNotNone(factory.buildProtocol(IPv4Address("TCP", "10.0.0.5", 1)))
        stopped = master.ha.stopService()
        self.assertIsNone(factory.buildProtocol(IPv4Address("TCP", "10.0.0.5", 2)))
        self.net.deliver()
        self.successResultOf(stopped)

    def test_stop_and_start_again(self) -> None:
        """A stopped service serves again after its next start."""
        master, slave = self.master(100), self.slave()
        self.net.deliver()
        stopped = master.ha.stopService()
        self.net.deliver()
        self.successResultOf(stopped)
        master.ha.startService()
        master.log.grow(b"again")
        self.net.run(7)
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))
