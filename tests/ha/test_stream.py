"""Frames of both directions: whole, byte by byte, with bytes left over, and broken."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.stream import (
    MAX_BODY_BYTES,
    VIEWED_BYTES,
    ReportDecoder,
    StreamError,
    TransferDecoder,
    encode_heartbeat,
    encode_report,
    encode_transfer_header,
)
from tests.ha.golden import conversation


def frames_of(decoder: TransferDecoder, *reads: bytes) -> list[tuple[int, bytes]]:
    """Feed ``reads`` and return (offset, body so far) of every frame."""
    found: list[tuple[int, bytes]] = []
    for data in reads:
        decoder.feed(data)
        while True:
            piece = decoder.next_piece()
            if piece:
                found[-1] = (found[-1][0], found[-1][1] + piece)
            header = decoder.next_header()
            if header is None:
                break
            found.append((header[0], b""))
    return found


class EncodingTests(SynchronousTestCase):
    def test_vectors_of_the_specification(self) -> None:
        """Reports, headers and heartbeats have the bytes that Apache's brokers exchange."""
        self.assertEqual(encode_report(1000).hex(), "00000000000003e8")
        self.assertEqual(encode_transfer_header(1000, 122).hex(), "00000000000003e80000007a")
        self.assertEqual(encode_heartbeat(1122).hex(), "000000000000046200000000")


class ReportDecoderTests(SynchronousTestCase):
    def test_all_reports_of_one_read_come_out_in_order(self) -> None:
        """A peer that goes back within one read can be recognised."""
        data = b"".join(map(encode_report, (5, 7, 6)))
        self.assertEqual(ReportDecoder().receive(data), [5, 7, 6])

    def test_byte_by_byte(self) -> None:
        """A report is complete with its eighth byte, wherever the cuts are."""
        decoder = ReportDecoder()
        found = [decoder.receive(bytes([byte])) for byte in encode_report(-2) + encode_report(2**40)]
        self.assertEqual([offset for part in found for offset in part], [-2, 2**40])
        self.assertEqual(found[7], [-2])
        self.assertEqual(found[15], [2**40])

    def test_left_over_bytes_wait_for_the_next_read(self) -> None:
        """Up to seven bytes behind the last report belong to the next one."""
        decoder = ReportDecoder()
        data = encode_report(3) + encode_report(4) + encode_report(5)
        self.assertEqual(decoder.receive(data[:23]), [3, 4])
        self.assertEqual(decoder.receive(data[23:]), [5])

    def test_random_cuts(self) -> None:
        """Any cutting of a report stream gives the same reports (the seed is in the message)."""
        for seed in range(50):
            rng = random.Random(seed)
            offsets = [rng.randrange(-(2**63), 2**63) for _ in range(30)]
            data = b"".join(map(encode_report, offsets))
            decoder, found, position = ReportDecoder(), [], 0
            while position < len(data):
                size = rng.randrange(1, 40)
                found += decoder.receive(data[position : position + size])
                position += size
            self.assertEqual(found, offsets, f"seed {seed}")


class TransferDecoderTests(SynchronousTestCase):
    STREAM = (
        encode_heartbeat(100)
        + encode_transfer_header(100, 5)
        + b"hello"
        + encode_transfer_header(105, 1)
        + b"!"
        + encode_heartbeat(106)
    )
    FRAMES = [(100, b""), (100, b"hello"), (105, b"!"), (106, b"")]

    def test_whole(self) -> None:
        """Several frames of one read come out in order, heartbeats with an empty body."""
        self.assertEqual(frames_of(TransferDecoder(), self.STREAM), self.FRAMES)

    def test_byte_by_byte(self) -> None:
        """A stream may be cut anywhere, also inside headers."""
        reads = [self.STREAM[i : i + 1] for i in range(len(self.STREAM))]
        self.assertEqual(frames_of(TransferDecoder(), *reads), self.FRAMES)

    def test_random_cuts(self) -> None:
        """Any cutting of a stream gives the same frames (the seed is in the message)."""
        for seed in range(50):
            rng = random.Random(seed)
            expected, stream, offset = [], b"", 0
            for _ in range(20):
                body = rng.randbytes(rng.choice((0, 1, 11, 300, 2 * VIEWED_BYTES)))
                expected.append((offset, body))
                stream += encode_transfer_header(offset, len(body)) + body
                offset += len(body)
            reads = []
            while stream:
                size = rng.choice((rng.randrange(1, 200), rng.randrange(1, 4 * VIEWED_BYTES)))
                reads.append(stream[:size])
                stream = stream[size:]
            self.assertEqual(frames_of(TransferDecoder(), *reads), expected, f"seed {seed}")

    def test_a_body_is_handed_out_as_it_arrives(self) -> None:
        """A piece that is the whole read is that very object: bodies are neither collected nor copied again."""
        decoder = TransferDecoder()
        decoder.feed(encode_transfer_header(0, 10))
        self.assertEqual(decoder.next_header(), (0, 10))
        part = b"12345"
        decoder.feed(part)
        self.assertIs(decoder.next_piece(), part)
        self.assertEqual(decoder._body_left, 5)
        self.assertIsNone(decoder.next_header())
        decoder.feed(b"67890" + encode_transfer_header(10, VIEWED_BYTES + 1))
        self.assertEqual(decoder.next_piece(), b"67890")
        self.assertEqual(decoder.next_header(), (10, VIEWED_BYTES + 1))
        part = bytes(VIEWED_BYTES)
        decoder.feed(part)
        self.assertIs(decoder.next_piece(), part)

    def test_long_pieces_among_others_are_views(self) -> None:
        """They are not copied out of what was read, which may have many frames."""
        decoder = TransferDecoder()
        decoder.feed(encode_transfer_header(0, VIEWED_BYTES) + bytes(VIEWED_BYTES))
        self.assertEqual(decoder.next_header(), (0, VIEWED_BYTES))
        piece = decoder.next_piece()
        self.assertIsInstance(piece, memoryview)
        self.assertEqual(piece, bytes(VIEWED_BYTES))

    def test_impossible_sizes_are_named(self) -> None:
        """A negative size, and one that no slave can hold, are errors that name offset and size."""
        for size in (-1, -5, -(2**31), MAX_BODY_BYTES + 1, 2**31 - 1):
            decoder = TransferDecoder()
            decoder.feed(encode_transfer_header(4711, size))
            error = self.assertRaises(StreamError, decoder.next_header)
            self.assertIn(str(size), str(error))
            self.assertIn("4711", str(error))
        decoder = TransferDecoder()
        decoder.feed(encode_transfer_header(0, MAX_BODY_BYTES))
        self.assertEqual(decoder.next_header(), (0, MAX_BODY_BYTES))

    def test_negative_offset_is_an_error(self) -> None:
        """No byte of a log has a negative offset."""
        decoder = TransferDecoder()
        decoder.feed(encode_heartbeat(-1))
        self.assertRaises(StreamError, decoder.next_header)

    def test_garbage_never_does_worse_than_an_error(self) -> None:
        """Random bytes end in a StreamError or wait for more (the seed is in the message)."""
        for seed in range(300):
            print(f"seed {seed}")
            rng = random.Random(seed)
            decoder = TransferDecoder()
            try:
                frames = frames_of(decoder, *(rng.randbytes(rng.randrange(1, 60)) for _ in range(20)))
            except StreamError:
                continue
            self.assertLess(len(frames), 200, f"seed {seed}")


class GoldenStreamTests(SynchronousTestCase):
    def test_recorded_slave_is_understood(self) -> None:
        """What an Apache 4.9.7 slave and its master said decodes to a gapless copy."""
        frames = TransferDecoder()
        reports = ReportDecoder()
        offset = None
        connection = 0
        for event in conversation("slave-4.9.7_master-4.9.7_ha"):
            if event.connection != connection:
                connection, frames, reports = event.connection, TransferDecoder(), ReportDecoder()
            if event.to_master:
                for report in reports.receive(event.data):
                    self.assertIn(report, (0, 131072, offset), f"at {event.ms} ms")
                continue
            for start, body in frames_of(frames, event.data):
                self.assertIn(offset, (None, start), f"at {event.ms} ms")
                offset = start + len(body)
        self.assertEqual(offset, 174572)
