"""The stricter ways to replicate: flushed bytes only, acknowledgements of what is on disk, quorums, TLS, figures."""

from __future__ import annotations

import random

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmq.ha.output import OUTPUT_BOUND_BYTES
from rmq.ha.service import Secured, secured_by
from rmq.ha.session import Action, Close, CloseKind, Send, SessionLimits
from rmq.ha.slave import SlaveSession
from rmq.ha.stream import encode_report, encode_transfer_header
from rmq.runtime.clock import now_ms
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.tls.config import TlsConfig, resolve_tls
from rmq.runtime.tls.context import ClientTls, ServerTls
from rmq.store.config import BrokerRole
from rmq.store.messages import PutStatus
from tests.ha.brokers import MASTER_PORT, OTHER_PORT, SEGMENT, ServiceCase

LIMITS = SessionLimits(segment_bytes=SEGMENT)


class FlushedOnlyTests(ServiceCase):
    def test_a_slave_never_has_more_than_the_masters_disk(self) -> None:
        """With haTransferFlushedOnly bytes leave the master when they are on its disk, and a sync is asked for."""
        master, slave = self.master(1000, ha_transfer_flushed_only=True), self.slave()
        self.net.deliver()
        self.assertEqual(slave.log.end_offset, 1000)
        master.log.grow(b"x" * 500)
        self.net.run(10)
        self.assertEqual(slave.log.end_offset, 1000)
        self.assertGreater(master.log.flushes_wanted, 0)
        master.log.sync(until=1200)
        self.net.deliver()
        self.assertEqual(slave.log.end_offset, 1200)
        master.log.sync()
        self.net.deliver()
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))
        self.assertEqual(len(self.net.ends), 1)

    def test_a_put_waits_for_both(self) -> None:
        """A SYNC_MASTER's put is acknowledged when its bytes went over the disk to the slave."""
        master = self.master(1000, ha_transfer_flushed_only=True)
        self.slave()
        self.net.deliver()
        put = master.put(b"safe on two disks")
        assert isinstance(put, Deferred)
        self.net.run(1)
        self.assertNoResult(put)
        master.log.sync()
        self.net.deliver()
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_an_empty_slave_waits_for_the_disk_too(self) -> None:
        """A slave that joins while nothing is on disk gets nothing, and then everything."""
        master = self.master(0, ha_transfer_flushed_only=True)
        master.log.grow(b"y" * 3000)
        slave = self.slave()
        self.net.run(30)
        self.assertEqual(slave.log.end_offset, 0)
        master.log.sync()
        self.net.deliver()
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))


class AckAfterFlushTests(ServiceCase):
    def test_the_master_hears_of_what_is_on_the_slaves_disk(self) -> None:
        """With haAckAfterFlush a put waits for the slave's sync, which is asked for at once."""
        master = self.master(1000)
        slave = self.slave(ha_ack_after_flush=True)
        self.net.deliver()
        slave.log.sync()
        self.net.deliver()
        put = master.put(b"durable")
        assert isinstance(put, Deferred)
        wanted = slave.log.flushes_wanted
        self.net.run(2)
        self.assertEqual(slave.log.end_offset, 1007)
        self.assertGreater(slave.log.flushes_wanted, wanted)
        self.assertNoResult(put)
        self.assertEqual(master.ha.status().slaves[0].ack_offset, 1000)
        slave.log.sync()
        self.net.deliver()
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_a_restarted_slave_syncs_before_it_asks(self) -> None:
        """The first report names where to go on, so it waits for the disk; until then the master has no slave."""
        master = self.master(1000)
        slave = self.broker(BrokerRole.SLAVE, OTHER_PORT, ha_ack_after_flush=True)
        slave.log.grow(master.log.bytes_from(0)[:600])
        slave.log.flushed_offset = 100
        slave.ha.set_master("10.0.0.9:10912")
        self.net.run(8)
        self.assertEqual((slave.log.end_offset, master.ha.status().waiting_connections), (600, 1))
        self.assertGreater(slave.log.flushes_wanted, 0)
        slave.log.sync()
        self.net.deliver()
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))

    def test_reports_go_up_and_repeat(self) -> None:
        """Any order of bytes, syncs and ticks: reports never go down, nor above disk or log (seed in the message)."""
        for seed in range(50):
            rng = random.Random(seed)
            session = SlaveSession(LIMITS, end_offset=500, log_end=500, now_ms=0, flushed=rng.choice((0, 300, 500)))
            flushed, now_ms = 0, 0
            reports: list[int] = []
            actions: list[Action] = session.connected(0)
            for _ in range(100):
                now_ms += rng.randrange(0, 3000)
                match rng.randrange(3):
                    case 0 if reports:
                        body = rng.randbytes(rng.randrange(1, 300))
                        frame = encode_transfer_header(session.end_offset, len(body)) + body
                        actions += session.receive(frame, now_ms)
                    case 1:
                        flushed = max(flushed, rng.randrange(0, session.end_offset + 1))
                        actions += session.synced(flushed, now_ms)
                    case _:
                        ticked = session.tick(now_ms)
                        if any(isinstance(action, Close) for action in ticked):
                            break
                        actions += ticked
                for action in actions:
                    if isinstance(action, Send):
                        reports.append(int.from_bytes(bytes(action.pieces[0]), "big"))
                        self.assertLessEqual(reports[-1], max(flushed, 500), f"seed {seed}")
                        self.assertLessEqual(reports[-1], session.end_offset, f"seed {seed}")
                actions.clear()
            self.assertEqual(reports, sorted(reports), f"seed {seed}")
            if reports:
                self.assertEqual(reports[0], 500, f"seed {seed}: the first report is where the log ends")


class QuorumTests(ServiceCase):
    def test_a_slave_that_came_back_is_one_slave(self) -> None:
        """Two connections of one host are one slave until the older one speaks again."""
        master = self.master(1000, in_sync_replicas=3)
        first, _ = self.peer(host="10.0.0.5")
        first.write(encode_report(1000))
        self.net.deliver()
        again, _ = self.peer(host="10.0.0.5")
        again.write(encode_report(1000))
        self.net.deliver()
        self.assertIs(master.put(b"x"), PutStatus.SLAVE_NOT_AVAILABLE)
        other, _ = self.peer(host="10.0.0.6")
        other.write(encode_report(1001))
        self.net.deliver()
        put = master.put(b"y")
        assert isinstance(put, Deferred)
        self.net.deliver()
        for end in (again, other):
            end.write(encode_report(1002))
        self.net.deliver()
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_a_slave_that_came_back_from_another_address(self) -> None:
        """A slave that comes back through another address before its old connection is lost is one replica, not two."""
        master = self.master(1000, in_sync_replicas=3)
        ends = [self.peer(host=host)[0] for host in ("10.0.0.5", "10.0.0.6")]
        for end in ends:
            end.write(encode_report(1000))
            self.net.deliver()
            master.log.grow(b"x")  # so that the older connection can show that it lives
        ends[0].write(encode_report(1002))
        self.net.deliver()
        put = master.put(b"y")
        assert isinstance(put, Deferred)
        ends[0].write(encode_report(1003))
        self.net.deliver()
        again, _ = self.peer(host="10.0.0.7")
        again.write(encode_report(1003))
        self.net.deliver()
        self.assertNoResult(put)
        self.net.run(3)
        self.assertIs(self.successResultOf(put), PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_a_quorum_that_is_lost(self) -> None:
        """When too few slaves are left a producer hears so at once, and not after its three seconds."""
        master = self.master(1000, in_sync_replicas=3)
        ends = [self.peer(host=host)[0] for host in ("10.0.0.5", "10.0.0.6", "10.0.0.7")]
        for end in ends:
            end.write(encode_report(1000))
            self.net.deliver()
        put = master.put(b"x")
        assert isinstance(put, Deferred)
        ends[0].end(ConnectionError("cable"))
        self.assertNoResult(put)
        ends[1].end(ConnectionError("cable"))
        self.assertIs(self.successResultOf(put), PutStatus.SLAVE_NOT_AVAILABLE)


class FiguresTests(ServiceCase):
    def test_lag_in_bytes_and_seconds(self) -> None:
        """A slave that stops reporting falls behind in bytes and in seconds, and is even again when it catches up."""
        master, _ = self.master(1000), self.slave()
        self.net.run(1)
        (status,) = master.ha.status().slaves
        self.assertEqual((status.lag_bytes, status.lag_seconds, status.in_sync), (0, 0.0, True))
        self.net.ends[0].stuck = True
        master.log.grow(b"x" * 100)
        self.net.run(7)
        (status,) = master.ha.status().slaves
        self.assertEqual(status.lag_bytes, 100)
        self.assertAlmostEqual(status.lag_seconds, 7.0, delta=0.6)
        self.assertEqual(master.ha.status().max_lag_bytes, 100)
        self.net.ends[0].stuck = False
        self.net.deliver()
        (status,) = master.ha.status().slaves
        self.assertEqual((status.lag_bytes, status.lag_seconds), (0, 0.0))
        self.assertAlmostEqual(status.ack_latency_ms, 7000, delta=600)
        latency = master.ha.status().ack_latency_ms
        self.assertEqual((latency.total, latency.counts[-1]), (1, 1))

    def test_before_the_first_report(self) -> None:
        """Of a peer that has not reported nothing is known: no lag, no rate, and no bytes that it was sent."""
        master = self.master(1000)
        self.peer()
        self.net.run(2)
        (status,) = master.ha.status().slaves
        self.assertEqual((status.lag_bytes, status.lag_seconds), (-1, -1.0))
        self.assertEqual((status.sent_bytes, status.bytes_per_second), (0, 0))

    def test_rate_of_the_first_second(self) -> None:
        """A slave that joins with a long log has no rate of gigabytes in its first second."""
        master = self.master(1000)
        self.slave()
        self.net.run(1)
        self.assertEqual(master.ha.status().slaves[0].bytes_per_second, 0)

    def test_catching_up_is_no_latency(self) -> None:
        """What was in the log before the slave came does not count as slowly acknowledged."""
        master = self.master(30_000)
        self.net.run(20)
        self.slave()
        self.net.deliver()
        self.assertEqual(master.ha.status().ack_latency_ms.total, 0)
        self.assertEqual(master.ha.status().slaves[0].ack_latency_ms, -1.0)

    def test_rates(self) -> None:
        """Both sides tell what the last second brought."""
        master, slave = self.master(0), self.slave()
        self.net.run(3)
        master.log.grow(b"x" * 20_000)
        self.net.run(1, step=1.0)
        self.assertEqual(master.ha.status().slaves[0].bytes_per_second, 20_000)
        link = slave.link
        self.assertEqual(link.bytes_per_second, 20_000)
        self.net.run(2)
        self.assertEqual(master.ha.status().slaves[0].bytes_per_second, 0)

    def test_what_a_slave_refuses_is_counted(self) -> None:
        """A slave tells how often it hung up because of what its master sent, and when it heard of it last."""
        master, slave = self.master(1000), self.slave(of=None)
        slave.log.grow(b"z" * 500)
        self.net.ends.clear()
        slave.ha.set_master("10.0.0.9:10912")
        self.net.deliver()
        link = slave.link
        self.assertEqual(link.refused, 0)
        self.assertEqual(link.last_read_ms, now_ms(self.net))
        self.net.ends[0].other.write(encode_transfer_header(5, 0))
        self.net.deliver()
        link = slave.link
        self.assertEqual(link.refused, 1)
        self.assertIn(CloseKind.MISMATCH.value, link.last_error)
        self.assertEqual(master.ha.status().refused, 0)

    def test_times_after_a_step_of_the_wall_clock(self) -> None:
        """When the clock is set by ten minutes, connections do not look ten minutes older, nor their peers silent."""
        master, slave = self.master(1000), self.slave()
        self.net.run(3)
        self.net.wall_ahead_s += 600
        link, (of_master,) = slave.ha.status().link, master.ha.status().slaves
        assert link is not None
        began_ms = now_ms(self.net) - 3000
        self.assertEqual((link.connected_ms, of_master.connected_ms), (began_ms, began_ms))
        self.assertEqual((link.last_read_ms, link.last_write_ms), (began_ms, began_ms))


class LogTests(ServiceCase):
    """What an operator reads when the state of a slave changes."""

    def setUp(self) -> None:
        super().setUp()
        self.lines: list[str] = []

        @implementer(ILogObserver)
        def observer(event: LogEvent) -> None:
            self.lines.append(formatEvent(event))

        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def said(self, *words: str) -> int:
        return sum(all(word in line for word in words) for line in self.lines)

    def test_joined_caught_up_behind_near_left(self) -> None:
        """Each change of a slave's state is one line with its address and offsets, and none is repeated."""
        master, _ = self.master(5000, ha_slave_fallbehind_max=1000), self.slave()
        self.net.run(3)
        self.assertEqual(self.said("slave 10.0.0.1:40000 joined, acked 0, log end 5000"), 1)
        self.assertEqual(self.said("slave 10.0.0.1:40000 caught up at offset 5000"), 1)
        self.net.ends[0].stuck = True
        master.log.grow(b"x" * 1500)
        self.net.run(5)
        self.assertEqual(
            self.said("is out of sync, replication lag 1500 bytes", "haSlaveFallbehindMax", "do not wait"), 1
        )
        self.net.ends[0].stuck = False
        self.net.run(5)
        self.assertEqual(self.said("is in sync, replication lag 0 bytes", "sends wait for it again"), 1)
        self.net.ends[0].end(ConnectionError("cable"))
        self.assertEqual(
            self.said("disconnected, acked 6500, replication lag 0 bytes", "cable", "; 0 slaves connected"), 0
        )
        self.assertEqual(self.said("disconnected, acked 6500, replication lag 0 bytes", "; 0 slaves connected"), 1)
        self.assertEqual(self.said("caught up"), 1)


class SessionFlagTests(SynchronousTestCase):
    def test_without_the_option_nothing_waits(self) -> None:
        """A session that was not told of a disk reports what it appended, as ever."""
        session = SlaveSession(LIMITS, end_offset=500, log_end=500, now_ms=0)
        self.assertEqual(session.connected(0), [Send((encode_report(500),))])


class TlsTests(ServiceCase):
    """haTlsEnable: TLS around both directions."""

    def secured(self) -> Secured:
        disk = RealDisk(None)
        self.addCleanup(disk.close)
        terms = resolve_tls(TlsConfig(test_mode=True), disk)
        return secured_by(ServerTls(disk, self.net, terms), ClientTls(disk, self.net, terms), self.net)

    def test_a_copy_over_tls(self) -> None:
        """Over TLS a slave follows, is waited for, and reads no byte of the log on the wire in plain text."""
        master = self.master(20_000, secured=self.secured())
        slave = self.slave(secured=self.secured())
        seen = bytearray()
        wrote = self.net.ends[0].other.write

        def write(data: bytes) -> None:
            seen.extend(data)
            wrote(data)

        self.net.ends[0].other.write = write  # type: ignore[method-assign]
        self.net.run(2)
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))
        put = master.put(b"secret" * 10)
        assert isinstance(put, Deferred)
        self.net.run(1)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)
        self.assertGreater(len(seen), 20_000)
        self.assertNotIn(b"secret", seen)

    def test_a_forbidden_peer_is_hung_up_on(self) -> None:
        """With TLS around the port, too, there is no protocol for who is not in haAllowedPeers: Twisted closes."""
        master = self.master(1000, secured=self.secured(), ha_allowed_peers="10.0.0.0/24")
        self.assertIsNone(self.net.listening[MASTER_PORT].buildProtocol(IPv4Address("TCP", "10.9.0.1", 5)))
        self.assertEqual(master.ha.status().refusals, {CloseKind.FORBIDDEN: 1})

    def test_plain_and_tls_do_not_meet(self) -> None:
        """A plain slave gets nothing from a master with TLS, and one with TLS nothing from a plain master."""
        self.master(1000, secured=self.secured())
        plain = self.slave()
        self.net.run(8)
        self.assertEqual(plain.log.end_offset, 0)
        link = plain.link
        self.assertIn("haTlsEnable", link.last_error)
        self.assertEqual(self.brokers[0].ha.status().slaves, ())

    def test_a_slow_slave_costs_bounded_memory(self) -> None:
        """Back-pressure holds through TLS."""
        master, slave = self.master(30 * SEGMENT, secured=self.secured()), self.slave(secured=self.secured())
        self.net.run(1)
        self.net.ends[0].other.stuck = True
        master.log.grow(b"z" * (60 * SEGMENT))
        for _ in range(20):
            self.net.advance(0.25)
        self.assertLess(len(self.net.ends[0].other.unsent), 2 * OUTPUT_BOUND_BYTES)
        self.net.ends[0].other.stuck = False
        self.net.run(5)
        self.assertEqual(slave.log.end_offset, master.log.end_offset)
