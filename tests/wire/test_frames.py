"""Tests of framing: how a stream becomes frames."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.frames import (
    MAX_FRAME_BYTES,
    PREFIX,
    SMALL_BYTES,
    Frame,
    FrameDecoder,
    ProtocolError,
    encode_frame,
)

FRAMES = [
    Frame(0, b'{"code":0}', b""),
    Frame(1, b"\x01" * 21, b"body"),
    Frame(0, b"", b"only a body"),
    Frame(0, b"", b""),
    Frame(0, b"h" * 300, b"b" * 5000),
]
STREAM = b"".join(encode_frame(*frame) for frame in FRAMES)


class FrameDecoderTests(SynchronousTestCase):
    def test_whole(self) -> None:
        """A stream in one piece gives its frames in order, nothing kept."""
        decoder = FrameDecoder()
        self.assertEqual(decoder.receive(STREAM), FRAMES)
        self.assertEqual(decoder.buffered_bytes, 0)

    def test_byte_by_byte(self) -> None:
        """Pieces of one byte give the same frames, each as soon as its last byte is there."""
        decoder = FrameDecoder()
        ends, end = [], 0
        for frame in FRAMES:
            end += len(encode_frame(*frame))
            ends.append(end)
        found = []
        for position in range(len(STREAM)):
            frames = decoder.receive(STREAM[position : position + 1])
            self.assertEqual(len(frames), int(position + 1 in ends))
            found += frames
        self.assertEqual(found, FRAMES)

    def test_any_two_pieces(self) -> None:
        """A cut anywhere changes nothing."""
        short = STREAM[:200]
        whole = FrameDecoder().receive(short)
        for cut in range(len(short) + 1):
            decoder = FrameDecoder()
            self.assertEqual(decoder.receive(short[:cut]) + decoder.receive(short[cut:]), whole, cut)

    def test_random_pieces(self) -> None:
        """Pieces of any sizes change nothing."""
        for seed in range(50):
            rng = random.Random(seed)
            decoder, found, position = FrameDecoder(), [], 0
            while position < len(STREAM):
                size = rng.choice((1, 3, 8, 50, 3000))
                found += decoder.receive(STREAM[position : position + size])
                position += size
            self.assertEqual(found, FRAMES, f"seed {seed}")

    def test_rest_is_kept(self) -> None:
        """Bytes behind the last whole frame wait for the next piece."""
        decoder = FrameDecoder()
        self.assertEqual(decoder.receive(STREAM + STREAM[:13]), FRAMES)
        self.assertEqual(decoder.buffered_bytes, 13)
        self.assertEqual(decoder.receive(STREAM[13:]), FRAMES)

    def test_taken_back(self) -> None:
        """What is kept of a frame can be had back with what completes it, and not before; then nothing is kept."""
        for cut in range(1, len(STREAM[:60])):
            decoder = FrameDecoder()
            first = decoder.receive(STREAM[:cut])
            kept = decoder.buffered_bytes
            for size in range(len(STREAM) - cut):
                piece = STREAM[cut : cut + size]
                whole = decoder.take_back(piece)
                completes = len(FrameDecoder().receive(STREAM[: cut + size])) > len(first)
                if kept and whole is None:
                    self.assertFalse(completes and size >= 8, (cut, size))
                    self.assertEqual(decoder.buffered_bytes, kept)
                    continue
                assert whole is not None
                self.assertEqual(decoder.buffered_bytes, 0)
                self.assertEqual(first + decoder.receive(whole + STREAM[cut + size :]), FRAMES)
                break

    def test_nothing_to_take_back(self) -> None:
        """With nothing kept the new bytes come back; of a broken stream nothing does."""
        decoder = FrameDecoder()
        self.assertEqual(decoder.take_back(b"new"), b"new")
        self.assertEqual(len(decoder.receive(STREAM + b"\xff\xff\xff\xff")), len(FRAMES))
        self.assertIsNone(decoder.take_back(b"new"))

    def test_empty_piece(self) -> None:
        """Nothing in, nothing out."""
        self.assertEqual(FrameDecoder().receive(b""), [])

    def test_bad_lengths(self) -> None:
        """Negative, tiny and over-long frames raise at once, naming the length, also when it comes alone."""
        for length in (-1, -(2**31), 0, 3, MAX_FRAME_BYTES - 3, 2**31 - 1, 0x47455420):
            for tail in (b"", b"\0\0\0\0"):
                data = PREFIX.pack(length, 0)[:4] + tail
                error = self.assertRaises(ProtocolError, FrameDecoder().receive, data)
                self.assertIn(str(length), str(error))

    def test_bad_length_byte_by_byte(self) -> None:
        """A bad length is found with its fourth byte."""
        decoder = FrameDecoder()
        for byte in b"\xff\xff\xff":
            self.assertEqual(decoder.receive(bytes([byte])), [])
        self.assertRaises(ProtocolError, decoder.receive, b"\xff")

    def test_header_longer_than_frame(self) -> None:
        """A header that would reach beyond its frame is an error before the frame is complete."""
        error = self.assertRaises(ProtocolError, FrameDecoder().receive, PREFIX.pack(100, 97))
        self.assertIn("97", str(error))

    def test_sound_frames_before_a_bad_one(self) -> None:
        """Frames before a bad one are handed out first; the error comes from check() and from the next call."""
        decoder = FrameDecoder()
        self.assertEqual(decoder.receive(STREAM + b"\xff\xff\xff\xff"), FRAMES)
        self.assertRaises(ProtocolError, decoder.check)
        self.assertRaises(ProtocolError, decoder.receive, STREAM)

    def test_longest_frame(self) -> None:
        """A frame of exactly 16 MiB is read and written; one byte more is neither."""
        header = b"{}"
        body = bytes(MAX_FRAME_BYTES - 8 - len(header))
        data = encode_frame(0, header, body)
        self.assertEqual(len(data), MAX_FRAME_BYTES)
        (frame,) = FrameDecoder().receive(data)
        self.assertEqual(len(frame.body), len(body))
        self.assertRaises(ProtocolError, encode_frame, 0, header, body + b"x")

    def test_own_limit(self) -> None:
        """A decoder may be stricter; at most one unfinished frame of that size is kept."""
        decoder = FrameDecoder(max_frame_bytes=100)
        self.assertEqual(len(decoder.receive(encode_frame(0, b"h" * 92))), 1)
        self.assertRaises(ProtocolError, decoder.receive, encode_frame(0, b"h" * 93))

    def test_linear_in_size(self) -> None:
        """A long frame is put together once, at its end; until then small pieces are gathered and large ones kept."""
        body = random.Random(1).randbytes(1 << 18)
        data = encode_frame(0, b"{}", body)
        for size in (1, 1000, SMALL_BYTES - 1, SMALL_BYTES, 65536):
            decoder = FrameDecoder()
            for position in range(0, len(data) - size, size):
                self.assertEqual(decoder.receive(data[position : position + size]), [])
            kept = decoder._pieces
            self.assertEqual((decoder.buffered_bytes, len(b"".join(kept))), (position + size, position + size))
            self.assertEqual(len(kept), 1 if size < SMALL_BYTES else position // size + 1)
            (frame,) = decoder.receive(data[position + size :])
            self.assertEqual((frame.body, decoder.buffered_bytes, decoder._pieces), (body, 0, []))

    def test_pieces_of_all_sizes(self) -> None:
        """Small and large pieces of a frame may follow each other in any order."""
        for seed in range(50):
            rng = random.Random(seed)
            body = rng.randbytes(60_000)
            data = encode_frame(0, b"{}", body) + encode_frame(1, b"h", b"next")
            decoder, frames, position = FrameDecoder(), [], 0
            while position < len(data):
                size = rng.choice((1, 7, 100, SMALL_BYTES, 3 * SMALL_BYTES))
                piece = data[position : position + size]
                position += size
                whole = decoder.take_back(piece) if rng.random() < 0.5 else None
                frames += decoder.receive(piece if whole is None else whole)
            self.assertEqual([frame.body for frame in frames], [body, b"next"], f"seed {seed}")

    def test_garbage(self) -> None:
        """Garbage gives frames, an error or waits for more; nothing else, and never more than it was given."""
        for seed in range(300):
            rng = random.Random(seed)
            data = rng.randbytes(rng.randrange(200))
            if rng.random() < 0.5:
                data = STREAM[: rng.randrange(len(STREAM))] + data
            decoder = FrameDecoder()
            try:
                frames = decoder.receive(data)
            except ProtocolError:
                continue
            size = sum(8 + len(frame.header) + len(frame.body) for frame in frames)
            self.assertLessEqual(size + decoder.buffered_bytes, len(data), f"seed {seed}")


class EncodeFrameTests(SynchronousTestCase):
    def test_layout(self) -> None:
        """Length of the rest, serialize type, 24-bit header length, header, body."""
        self.assertEqual(encode_frame(1, b"hh", b"bbb"), bytes.fromhex("00000009 01000002") + b"hhbbb")
