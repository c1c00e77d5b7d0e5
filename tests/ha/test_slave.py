"""The slave's session: what it takes, what it refuses, when it reports."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.session import Action, Append, Close, CloseKind, Send, SessionLimits
from rmq.ha.slave import REPORT_EVERY_BYTES, SlaveSession
from rmq.ha.stream import MAX_BODY_BYTES, encode_heartbeat, encode_report, encode_transfer_header
from tests.ha.golden import conversation
from tests.ha.memory_log import MemoryLog

SEGMENT = 65536
LIMITS = SessionLimits(segment_bytes=SEGMENT)


def session(end_offset: int = 0, limits: SessionLimits = LIMITS) -> SlaveSession:
    return SlaveSession(limits, end_offset=end_offset, log_end=end_offset, now_ms=0)


def frame(offset: int, body: bytes) -> bytes:
    return encode_transfer_header(offset, len(body)) + body


def report(offset: int) -> Send:
    return Send((encode_report(offset),))


def only_close(actions: list[Action]) -> Close:
    (action,) = actions
    assert isinstance(action, Close), action
    return action


class ReportTests(SynchronousTestCase):
    def test_first_report_is_immediate(self) -> None:
        """Apache's masters send nothing before it, so waiting would only cost time."""
        self.assertEqual(session(777).connected(0), [report(777)])

    def test_one_report_for_a_batch(self) -> None:
        """However many frames one read brings: one append of their bodies, and a report that says where they led."""
        slave = session(10)
        actions = slave.receive(frame(10, b"abc") + frame(13, b"defg") + encode_heartbeat(17), 5)
        self.assertEqual(actions, [Append(10, b"abcdefg"), report(17)])

    def test_appends_do_not_cross_files(self) -> None:
        """Bodies of one read that lie in two files are two appends."""
        end = LIMITS.segment_bytes
        actions = session(end - 3).receive(frame(end - 3, b"abc") + frame(end, b"defg"), 5)
        self.assertEqual(actions, [Append(end - 3, b"abc"), Append(end, b"defg"), report(end + 4)])

    def test_at_least_one_report_for_so_many_bytes(self) -> None:
        """A master that sends much in one go hears in between how far it got."""
        limits = SessionLimits(segment_bytes=2**30)
        body = bytes(REPORT_EVERY_BYTES)
        stream = frame(8, body) + frame(8 + len(body), body) + frame(8 + 2 * len(body), b"x")
        reports = [action for action in session(8, limits).receive(stream, 1) if isinstance(action, Send)]
        ends = (8 + len(body), 8 + 2 * len(body), 9 + 2 * len(body))
        self.assertEqual(reports, [report(end) for end in ends])

    def test_none_within_a_frame(self) -> None:
        """The rest of a frame is under way: a read that ends in its middle brings no report, its last byte does."""
        slave = session(10)
        first, second = frame(10, b"abc"), frame(13, b"defg")
        self.assertEqual(slave.receive(first + second[:-3], 1), [Append(10, b"abcd")])
        self.assertEqual(slave.receive(second[-3:-1], 2), [Append(14, b"ef")])
        self.assertEqual(slave.receive(second[-1:] + frame(17, b"h")[:5], 3), [Append(16, b"g"), report(17)])

    def test_many_bytes_within_frames(self) -> None:
        """Reads that always end within a frame bring a report for each so many bytes."""
        limits = SessionLimits(segment_bytes=2**30)
        size = REPORT_EVERY_BYTES // 4
        slave = session(8, limits)
        stream = b"".join(frame(8 + number * size, bytes(size)) for number in range(11))
        reports = []
        for at in range(0, 10 * size, size):
            reports += [action for action in slave.receive(stream[at : at + size], 1) if isinstance(action, Send)]
        self.assertEqual(reports, [report(8 + 4 * size), report(8 + 8 * size)])

    def test_a_frame_that_stops(self) -> None:
        """What came before it is reported after five seconds at the latest."""
        slave = session(10)
        slave.receive(frame(10, b"abc") + frame(13, b"defg")[:-1], 1)
        self.assertEqual(slave.tick(5000), [report(16)])

    def test_idle_report(self) -> None:
        """Five seconds without a report bring one, and heartbeats alone do not."""
        slave = session(50)
        slave.connected(0)
        self.assertEqual(slave.receive(encode_heartbeat(50), 3000), [])
        self.assertEqual(slave.tick(4999), [])
        self.assertEqual(slave.tick(5000), [report(50)])
        self.assertEqual(slave.tick(9999), [])
        self.assertEqual(slave.tick(10_000), [report(50)])

    def test_what_is_on_disk_but_not_compared(self) -> None:
        """With haAckAfterFlush, too, the first report names where the comparison begins, not what is on the disk."""
        slave = SlaveSession(LIMITS, end_offset=400, log_end=1000, now_ms=0, flushed=1000)
        self.assertEqual(slave.connected(0), [report(400)])

    def test_full_way_out(self) -> None:
        """While a master does not read, one report is owed, not a queue of them."""
        slave = session(10)
        slave.pause()
        self.assertEqual(slave.receive(frame(10, b"abc"), 1), [Append(10, b"abc")])
        self.assertEqual(slave.receive(frame(13, b"d"), 2), [Append(13, b"d")])
        self.assertEqual(slave.tick(9000), [])
        self.assertEqual(slave.resume(9001), [report(14)])
        self.assertEqual(slave.resume(9002), [])


class FrameCheckTests(SynchronousTestCase):
    def test_a_frame_must_begin_at_the_end(self) -> None:
        """Data or heartbeat elsewhere: dropped with both offsets, nothing appended."""
        for offset in (0, 99, 101, 4096):
            for data in (frame(offset, b"abc"), encode_heartbeat(offset)):
                close = only_close(session(100).receive(data, 1))
                self.assertIs(close.kind, CloseKind.MISMATCH)
                self.assertIn(f"offset {offset},", close.reason)
                self.assertIn("100", close.reason)

    def test_the_header_is_checked_before_its_body_is_here(self) -> None:
        """A wrong offset ends the connection with the twelfth byte."""
        self.assertIs(only_close(session(100).receive(frame(99, b"abc")[:12], 1)).kind, CloseKind.MISMATCH)

    def test_an_empty_log_joins_at_a_segment(self) -> None:
        """Any aligned start is taken, whether a heartbeat announces it or data comes at once; no other is."""
        slave = session()
        self.assertEqual(slave.receive(encode_heartbeat(3 * SEGMENT), 1), [])
        actions = slave.receive(frame(3 * SEGMENT, b"abc"), 2)
        self.assertEqual(actions, [Append(3 * SEGMENT, b"abc"), report(3 * SEGMENT + 3)])
        self.assertIs(only_close(session().receive(encode_heartbeat(5), 1)).kind, CloseKind.MISMATCH)
        self.assertIs(only_close(session().receive(frame(SEGMENT + 1, b"x"), 1)).kind, CloseKind.MISMATCH)

    def test_good_frames_before_a_bad_one_stay(self) -> None:
        """What fits is appended; then the connection ends."""
        actions = session(10).receive(frame(10, b"abc") + frame(10, b"abc"), 1)
        self.assertEqual(actions[0], Append(10, b"abc"))
        self.assertIs(only_close(actions[1:]).kind, CloseKind.MISMATCH)

    def test_segment_end(self) -> None:
        """A frame may fill a segment but not cross its end."""
        fits = frame(SEGMENT - 4, b"1234")
        self.assertEqual(session(SEGMENT - 4).receive(fits, 1)[0], Append(SEGMENT - 4, b"1234"))
        crosses = frame(SEGMENT - 4, b"12345")
        close = only_close(session(SEGMENT - 4).receive(crosses, 1))
        self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
        self.assertIn("mappedFileSizeCommitLog", close.reason)

    def test_a_master_that_has_less(self) -> None:
        """
        A slave that holds more than its master says so at the second heartbeat below its own end.

        The first one may come before the bytes that are compared; body bytes in between start the count again.
        """
        slave = SlaveSession(LIMITS, end_offset=400, log_end=1000, now_ms=0)
        self.assertEqual(slave.receive(encode_heartbeat(400), 1), [])
        self.assertEqual(slave.receive(frame(400, b"abc"), 2), [Append(400, b"abc"), report(403)])
        self.assertEqual(slave.receive(encode_heartbeat(403), 3), [])
        close = only_close(slave.receive(encode_heartbeat(403), 4))
        self.assertIs(close.kind, CloseKind.AHEAD)
        self.assertIn("holds 597 bytes that its master does not have", close.reason)

    def test_a_master_that_has_as_much(self) -> None:
        """A slave that has compared all up to its end stays with a master that has nothing more."""
        slave = SlaveSession(LIMITS, end_offset=400, log_end=403, now_ms=0)
        slave.receive(frame(400, b"abc"), 1)
        for now_ms in range(2, 6):
            self.assertEqual(slave.receive(encode_heartbeat(403), now_ms), [])

    def test_impossible_sizes(self) -> None:
        """Sizes that shift or destroy an Apache slave leave our log untouched."""
        for size in (-5, -(2**31), 2**31 - 1, MAX_BODY_BYTES + 1):
            slave = session(100)
            close = only_close(slave.receive(encode_transfer_header(100, size) + b"x" * 100, 1))
            self.assertIs(close.kind, CloseKind.PROTOCOL_ERROR)
            self.assertIn(str(size), close.reason)
            self.assertEqual(slave.receive(frame(100, b"abc"), 2), [])
            self.assertEqual(slave.end_offset, 100)

    def test_garbage_changes_nothing_but_by_rule(self) -> None:
        """Random bytes never give an Append that does not continue the log (the seed is in the message)."""
        for seed in range(300):
            print(f"seed {seed}")
            rng = random.Random(seed)
            end = 1000
            slave = session(end)
            for _ in range(20):
                for action in slave.receive(rng.randbytes(rng.randrange(1, 60)), 1):
                    if isinstance(action, Append):
                        self.assertEqual(action.phy_offset, end, f"seed {seed}")
                        end += len(action.data)


class LivenessTests(SynchronousTestCase):
    def test_silent_master_is_left(self) -> None:
        """Twenty seconds without a byte end a connection, although reports still go out."""
        slave = session(10)
        slave.receive(encode_heartbeat(10), 100)
        for now in range(5000, 20_001, 5000):
            self.assertEqual(slave.tick(now), [report(10)])
        self.assertEqual(slave.tick(20_100), [])
        self.assertIs(only_close(slave.tick(20_101)).kind, CloseKind.SILENT)
        self.assertEqual(slave.tick(30_000), [])
        self.assertEqual(slave.resume(30_000), [])


class CuttingTests(SynchronousTestCase):
    def test_any_cutting_gives_the_same_log(self) -> None:
        """The log and the last report do not depend on how the stream arrives (the seed is in the message)."""
        for seed in range(100):
            rng = random.Random(seed)
            stream, offset, expected = b"", 0, b""
            while offset < 3 * SEGMENT:
                room = SEGMENT - offset % SEGMENT
                body = rng.randbytes(min(room, rng.randrange(0, 40_000)))
                stream += frame(offset, body)
                expected += body
                offset += len(body)
            log = MemoryLog(SEGMENT)
            slave = session()
            last: Action | None = None
            position = 0
            while position < len(stream):
                size = rng.choice((1, 11, 13, 1000, 65536))
                for action in slave.receive(stream[position : position + size], 1):
                    if isinstance(action, Append):
                        log.append_raw(action.phy_offset, action.data)
                    last = action
                position += size
            self.assertEqual(log.bytes_from(0), expected, f"seed {seed}")
            self.assertEqual(last, report(offset), f"seed {seed}")


class GoldenSlaveTests(SynchronousTestCase):
    def test_apache_master_is_followed(self) -> None:
        """Our slave takes the recorded stream of a 4.9.7 master and reports what the recorded slave reported."""
        log = MemoryLog(SEGMENT)
        slave = session()
        ours: list[int] = []
        theirs: list[int] = []
        for event in conversation("slave-4.9.7_master-4.9.7_ha"):
            if event.name == "CONNECT":
                slave = SlaveSession(LIMITS, end_offset=log.end_offset, log_end=log.end_offset, now_ms=event.ms)
                actions = slave.connected(event.ms)
            elif event.name == "CLOSE":
                continue
            elif event.to_master:
                theirs.append(int.from_bytes(event.data, "big"))
                continue
            else:
                actions = slave.receive(event.data, event.ms)
            for action in actions:
                self.assertNotIsInstance(action, Close)
                if isinstance(action, Append):
                    log.append_raw(action.phy_offset, action.data)
                if isinstance(action, Send):
                    ours.append(int.from_bytes(action.pieces[0], "big"))
        self.assertEqual(log.end_offset, 174572)
        self.assertEqual(log.min_phy_offset, 131072)
        # The recorded slave repeats itself when idle, and answers the first heartbeat before it has data.
        self.assertEqual(list(dict.fromkeys(theirs)), [0, 131072, *dict.fromkeys(ours[1:])])
