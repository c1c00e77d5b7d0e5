"""The master's session: what it sends, what it counts, whom it refuses."""

from __future__ import annotations

import random
import struct

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.master import MasterSession, MasterState
from rmq.ha.session import Acknowledge, Action, Close, CloseKind, Load, Send, SessionLimits
from rmq.ha.stream import MAX_BATCH_BYTES, TransferDecoder, encode_heartbeat, encode_report
from rmq.wire.codes import SerializeType
from rmq.wire.command import RemotingCommand, encode_command
from tests.ha.golden import conversation
from tests.ha.memory_log import MemoryLog
from tests.ha.test_stream import frames_of

SEGMENT = 65536
LIMITS = SessionLimits(segment_bytes=SEGMENT)


def filled(size: int, seed: int = 1, *, start: int = 0) -> MemoryLog:
    log = MemoryLog(SEGMENT, start=start)
    log.grow(random.Random(seed).randbytes(size))
    return log


def session(log: MemoryLog, limits: SessionLimits = LIMITS) -> MasterSession:
    return MasterSession(log, limits, now_ms=0)


def sent(actions: list[Action]) -> list[tuple[int, bytes]]:
    """Return the frames of all Send actions."""
    data = b"".join(piece for action in actions if isinstance(action, Send) for piece in action.pieces)
    return frames_of(TransferDecoder(), data)


def only_close(actions: list[Action]) -> Close:
    (action,) = actions
    assert isinstance(action, Close), action
    return action


class FirstReportTests(SynchronousTestCase):
    def test_nothing_is_sent_before_it(self) -> None:
        """A peer that has not said what it holds gets no byte, not even a heartbeat."""
        master = session(filled(1000))
        self.assertEqual(master.pump(0, 10_000), [])
        self.assertEqual(master.tick(19_999), [])
        self.assertEqual(master.receive(b"\0" * 7, 19_999), [])
        self.assertIs(master.state, MasterState.WAIT_FIRST)

    def test_an_empty_slave_gets_the_last_segment(self) -> None:
        """A first report of 0 is served from the start of the last segment, as by Apache."""
        log = filled(2 * SEGMENT + 100)
        master = session(log)
        self.assertEqual(master.receive(encode_report(0), 1), [Acknowledge(0)])
        self.assertEqual(sent(master.pump(1, 1_000_000)), [(2 * SEGMENT, log.bytes_from(2 * SEGMENT))])

    def test_an_empty_slave_of_an_empty_master(self) -> None:
        """Both begin at 0."""
        log = MemoryLog(SEGMENT)
        master = session(log)
        self.assertEqual(master.receive(encode_report(0), 1), [Acknowledge(0)])
        self.assertEqual(master.pump(1, 1_000_000), [])
        log.grow(b"first")
        self.assertEqual(sent(master.pump(1, 1_000_000)), [(0, b"first")])

    def test_a_slave_goes_on_where_it_stands(self) -> None:
        """Any offset within the log, in the middle of a record too, is where the stream begins."""
        log = filled(1000)
        master = session(log)
        self.assertEqual(master.receive(encode_report(333), 1), [Acknowledge(333)])
        self.assertEqual(sent(master.pump(1, 1_000_000)), [(333, log.bytes_from(333))])
        self.assertEqual((master.request_offset, master.ack_offset, master.next_offset), (333, 333, 1000))

    def test_a_slave_ahead_is_refused(self) -> None:
        """A slave beyond the end is dropped with both offsets, and its report never counts, not even the first one."""
        master = session(filled(1000))
        close = only_close(master.receive(encode_report(1001), 1))
        self.assertIs(close.kind, CloseKind.AHEAD)
        self.assertIn("1001", close.reason)
        self.assertIn("1000", close.reason)
        self.assertEqual(master.ack_offset, -1)
        self.assertEqual(master.receive(encode_report(5), 2), [])
        self.assertEqual(master.pump(2, 1000), [])

    def test_a_slave_of_deleted_bytes_is_refused(self) -> None:
        """A slave below the first byte would get heartbeats for ever; it is told apart instead."""
        log = filled(3 * SEGMENT)
        log.delete_before(SEGMENT)
        close = only_close(session(log).receive(encode_report(SEGMENT - 1), 1))
        self.assertIs(close.kind, CloseKind.TOO_FAR_BEHIND)
        self.assertIn(str(SEGMENT - 1), close.reason)
        self.assertIn(str(SEGMENT), close.reason)
        self.assertEqual(session(log).receive(encode_report(SEGMENT), 1), [Acknowledge(SEGMENT)])

    def test_negative_report(self) -> None:
        """No slave holds less than nothing."""
        self.assertIs(only_close(session(filled(10)).receive(encode_report(-1), 1)).kind, CloseKind.PROTOCOL_ERROR)

    def test_controller_mode_handshake_is_recognised(self) -> None:
        """An AutoSwitch slave is refused by name, in a small log and in one beyond 4 GiB."""
        handshake = struct.pack(">ihhq", 1, 0, 1, 7)
        close = only_close(session(filled(100)).receive(handshake, 1))
        self.assertIs(close.kind, CloseKind.AHEAD)
        self.assertIn("AutoSwitch", close.reason)
        large = filled(100, start=5 * 2**30)
        large.delete_before(0)
        close = only_close(session(large).receive(handshake, 1))
        self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
        self.assertIn("AutoSwitch", close.reason)

    def test_a_remoting_client_is_no_slave_ahead(self) -> None:
        """A client or tool on the wrong port raises no alarm of two histories; it is told what it did."""
        for serialization in (0, 1):
            for body in (b"", b"x" * 1000):
                request = RemotingCommand(code=28, opaque=1, body=body, serialize_type=SerializeType(serialization))
                frame = encode_command(request)
                for cut in (8, len(frame)):
                    close = only_close(session(filled(1000)).receive(frame[:cut], 1))
                    self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
                    self.assertIn("remoting client on the HA port", close.reason)

    def test_other_strangers(self) -> None:
        """TLS where the master has none, a browser and a scraper are told apart too."""
        for first, text in ((b"\x16\x03\x01\x02\x00\x01\x00\x01", "haTlsEnable"), (b"GET / HT", "HTTP")):
            close = only_close(session(filled(1000)).receive(first, 1))
            self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
            self.assertIn(text, close.reason)

    def test_offsets_that_look_like_a_remoting_frame(self) -> None:
        """In a log that is long enough such an offset is one; and what no frame begins with is a slave ahead."""
        offset = (0x73 << 32) + 0x6F
        master = session(filled(1000, start=offset - 100))
        self.assertEqual(master.receive(encode_report(offset), 1), [Acknowledge(offset)])
        log = filled(1000)
        for report in (
            (0x73 << 32) + 0x70, 0x73 << 32, (0x73 << 32) + 0x0200_006F, (0x0100_0001 << 32) + 1, 4 << 32 | 1, 1 << 32,
        ):  # fmt: skip
            self.assertIs(only_close(session(log).receive(encode_report(report), 1)).kind, CloseKind.AHEAD, hex(report))

    def test_a_later_report_is_a_slave_s(self) -> None:
        """Only the first bytes of a connection can be those of a stranger."""
        master = session(filled(1000))
        master.receive(encode_report(1000), 1)
        self.assertIs(only_close(master.receive(encode_report((0x73 << 32) + 0x6F), 2)).kind, CloseKind.AHEAD)

    def test_garbage_is_harmless(self) -> None:
        """Random bytes never become an acknowledgement beyond the log, whatever else they do."""
        for seed in range(300):
            print(f"seed {seed}")
            rng = random.Random(seed)
            master = session(filled(1000))
            for _ in range(20):
                for action in master.receive(rng.randbytes(rng.randrange(1, 30)), 1):
                    if isinstance(action, Acknowledge):
                        self.assertTrue(0 <= action.offset <= 1000, f"seed {seed}")
            self.assertLessEqual(master.ack_offset, 1000, f"seed {seed}")


class LaterReportTests(SynchronousTestCase):
    def following(self, size: int = 1000, first: int = 500) -> tuple[MemoryLog, MasterSession]:
        log = filled(size)
        master = session(log)
        master.receive(encode_report(first), 0)
        master.pump(0, 10_000_000)
        return log, master

    def test_the_newest_of_several_counts(self) -> None:
        """Reports supersede each other."""
        _, master = self.following()
        data = b"".join(map(encode_report, (500, 700, 900)))
        self.assertEqual(master.receive(data, 1), [Acknowledge(900)])
        self.assertEqual(master.ack_offset, 900)

    def test_going_back_ends_the_connection(self) -> None:
        """A report below its predecessor, even between good ones, is no slave's; none of that read counts."""
        _, master = self.following()
        close = only_close(master.receive(b"".join(map(encode_report, (800, 799, 1000))), 1))
        self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
        self.assertIn("799", close.reason)

    def test_beyond_the_end_ends_the_connection(self) -> None:
        """A later report is bounded as the first one is."""
        _, master = self.following()
        self.assertIs(only_close(master.receive(encode_report(1001), 1)).kind, CloseKind.AHEAD)

    def test_bytes_that_were_never_sent_cannot_be_acknowledged(self) -> None:
        """A report within the log but beyond what this connection carried is a lie."""
        log, master = self.following()
        log.grow(b"x" * 50)
        close = only_close(master.receive(encode_report(1020), 1))
        self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
        self.assertIn("1000", close.reason)

    def test_an_empty_slave_repeats_zero_and_then_jumps(self) -> None:
        """Before its first byte an empty slave reports 0 (ours) or the stream's start (Apache's), nothing between."""
        for reports, fine in (((0, 0, SEGMENT + 10), True), ((SEGMENT, SEGMENT + 10), True), ((5,), False)):
            master = session(filled(SEGMENT + 10))
            master.receive(encode_report(0), 0)
            master.pump(0, 1000)
            actions = [action for report in reports for action in master.receive(encode_report(report), 1)]
            self.assertEqual(all(isinstance(action, Acknowledge) for action in actions), fine, reports)

    def test_deleted_under_way(self) -> None:
        """A slave that is so slow that retention overtakes it is dropped, not fed with a hole."""
        log = filled(3 * SEGMENT)
        master = session(log)
        master.receive(encode_report(10), 0)
        master.pump(0, 100)
        log.delete_before(SEGMENT)
        self.assertIs(only_close(master.pump(0, 100)).kind, CloseKind.TOO_FAR_BEHIND)


class TransferTests(SynchronousTestCase):
    def test_frames_are_bounded(self) -> None:
        """No frame is larger than a batch, none crosses the end of a segment, and together they are the log."""
        for batch in (1, 1000, 32768, 50_000, 10**9):
            size = 3000 if batch == 1 else 2 * SEGMENT + 777
            log = filled(size)
            master = session(log, SessionLimits(segment_bytes=SEGMENT, batch_bytes=batch))
            master.receive(encode_report(17), 0)
            frames = sent(master.pump(0, 10**9))
            self.assertEqual(b"".join(body for _, body in frames), log.bytes_from(17))
            for start, body in frames:
                self.assertLessEqual(len(body), min(batch, MAX_BATCH_BYTES))
                self.assertLessEqual(start % SEGMENT + len(body), SEGMENT)

    def test_segments_end_whatever_the_log_reads(self) -> None:
        """The session asks for no more than the rest of a segment."""
        log = MemoryLog(10 * SEGMENT)
        log.grow(bytes(SEGMENT + 100))
        master = session(log)
        master.receive(encode_report(SEGMENT - 50), 0)
        self.assertEqual([len(body) for _, body in sent(master.pump(0, 10**9))], [50, 100])

    def test_batch_is_capped(self) -> None:
        """A haTransferBatchSize that no slave could take is cut to 1 MiB."""
        log = MemoryLog(2**30)
        log.grow(bytes(MAX_BATCH_BYTES + 5))
        master = session(log, SessionLimits(segment_bytes=2**30, batch_bytes=2**30))
        master.receive(encode_report(0), 0)
        self.assertEqual([len(body) for _, body in sent(master.pump(0, 10**9))], [MAX_BATCH_BYTES, 5])

    def test_budget(self) -> None:
        """A pump stops with the frame that reaches its budget, and says that there is more."""
        log = filled(60_000)
        master = session(log, SessionLimits(segment_bytes=SEGMENT, batch_bytes=10_000))
        master.receive(encode_report(0), 0)
        self.assertEqual(len(sent(master.pump(0, 15_000))), 2)
        self.assertTrue(master.has_more)
        self.assertEqual(len(sent(master.pump(0, 10**9))), 4)
        self.assertFalse(master.has_more)

    def test_paused(self) -> None:
        """While the way out is full nothing is read from the log and no heartbeat is piled up."""
        log = filled(100)
        master = session(log)
        master.receive(encode_report(0), 0)
        master.pause()
        self.assertFalse(master.has_more)
        self.assertEqual(master.pump(0, 1000), [])
        self.assertEqual(master.tick(6000), [])
        master.resume()
        self.assertEqual(sent(master.pump(6000, 1000)), [(0, log.bytes_from(0))])

    def test_what_is_not_in_memory_is_loaded_first(self) -> None:
        """Cold bytes are asked for once; until they are there nothing is read or sent but heartbeats."""
        log = filled(100)
        master = session(log)
        master.receive(encode_report(0), 0)
        log.is_cold = True
        self.assertEqual(master.pump(0, 1000), [Load(0)])
        self.assertFalse(master.has_more)
        self.assertEqual(master.pump(1, 1000), [])
        self.assertEqual(sent(master.tick(6000)), [(0, b"")])
        log.is_cold = False
        master.loaded()
        self.assertEqual(sent(master.pump(6001, 1000)), [(0, log.bytes_from(0))])

    def test_a_part_is_in_memory(self) -> None:
        """What is in memory is sent before the rest is loaded."""
        log = filled(SEGMENT + 100)
        master = session(log, SessionLimits(segment_bytes=SEGMENT, batch_bytes=SEGMENT))
        master.receive(encode_report(1), 0)
        whole = log.read_loaded
        self.patch(log, "read_loaded", lambda offset, limit: whole(offset, limit) if offset < SEGMENT else None)
        actions = master.pump(0, 2 * SEGMENT)
        self.assertEqual(sent(actions), [(1, log.bytes_from(1)[: SEGMENT - 1])])
        self.assertEqual(actions[1:], [Load(SEGMENT)])


class LivenessTests(SynchronousTestCase):
    def test_heartbeat_after_five_seconds_without_a_write(self) -> None:
        """It carries the offset of the next byte; data sets its time back."""
        log = filled(100)
        master = session(log)
        master.receive(encode_report(40), 0)
        master.pump(1000, 1000)
        self.assertEqual(master.tick(5999), [])
        self.assertEqual(master.tick(6000), [Send((encode_heartbeat(100),))])
        self.assertEqual(master.tick(10_999), [])
        self.assertEqual(master.tick(11_000), [Send((encode_heartbeat(100),))])

    def test_silent_slave_is_dropped(self) -> None:
        """Twenty seconds without a report end a connection, heartbeats or not."""
        master = session(filled(100))
        master.receive(encode_report(100), 500)
        self.assertNotIsInstance(master.tick(20_500)[-1:], Close)
        self.assertIs(only_close(master.tick(20_501)).kind, CloseKind.SILENT)
        self.assertEqual(master.tick(30_000), [])

    def test_drips_are_no_sign_of_life(self) -> None:
        """Less than a report now and then does not keep a connection open."""
        master = session(filled(100))
        for second in range(7):
            self.assertEqual(master.receive(b"\0", second * 3000), [])
        self.assertIs(only_close(master.tick(20_001)).kind, CloseKind.SILENT)


class GoldenMasterTests(SynchronousTestCase):
    """Our session against what Apache's master answered the same reports with."""

    END = 161846

    def replay(self, name: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return (offset, size) of Apache's and of our frames; the log's bytes are made up, its end is not."""
        log = filled(self.END)
        master: MasterSession | None = None
        theirs: list[tuple[int, int]] = []
        ours: list[tuple[int, int]] = []
        for event in conversation(name):
            now = event.ms
            if event.name == "CONNECT":
                master = MasterSession(log, LIMITS, now_ms=now)
                continue
            assert master is not None
            if event.name == "CLOSE":
                continue
            if event.to_master:
                actions = master.receive(event.data, now)
                actions += master.pump(now, 10**9)
            else:
                start, size = struct.unpack_from(">qi", event.data)
                self.assertEqual(12 + size, event.size)
                theirs.append((start, size))
                actions = [] if size else master.tick(now)
            ours += [(start, len(body)) for start, body in sent(actions)]
        return theirs, ours

    def test_same_frames_as_apache(self) -> None:
        """Empty slave, middle, a segment early, at the end, silent: offsets and sizes of all frames are the same."""
        for name in ("0", "0-empty-slave-acks-0", "middle", "before-last-segment", "at-end"):
            theirs, ours = self.replay(f"ha-probe_report-{name}")
            self.assertEqual(ours, theirs, name)

    def test_silence_ends_it_on_time(self) -> None:
        """Apache lets a heartbeat slip out after its 20 s, at 20.4 s; up to there the heartbeats are the same."""
        theirs, ours = self.replay("ha-probe_report-once-then-silent")
        self.assertEqual((len(theirs), ours), (4, theirs[:3]))

    def test_stricter_than_apache_beyond_the_end(self) -> None:
        """Apache answers a first report beyond its end with a heartbeat; we refuse it."""
        theirs, ours = self.replay("ha-probe_report-beyond-end")
        self.assertEqual(theirs, [(162846, 0)])
        self.assertEqual(ours, [])

    def test_a_difference_is_seen(self) -> None:
        """The comparison above fails when one recorded frame is another."""
        theirs, ours = self.replay("ha-probe_report-middle")
        theirs[0] = (theirs[0][0] + 1, theirs[0][1])
        self.assertNotEqual(ours, theirs)
