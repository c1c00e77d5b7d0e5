"""Every frame that real Apache processes sent is read, and what we would write in its place is the same bytes."""

from __future__ import annotations

import json
from functools import cache

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.codes import LanguageCode, RequestCode
from rmq.wire.command import RemotingCommand, decode_command, encode_command, encode_reply
from rmq.wire.frames import FrameDecoder
from tests.wire.golden import CONVERSATIONS, GoldenFrame, all_frames, frames

NOISE = b'"serializeTypeCurrentRPC":"JSON",'


@cache
def golden() -> list[tuple[GoldenFrame, RemotingCommand]]:
    return [(frame, decode_command(FrameDecoder().receive(frame.data)[0])) for frame in all_frames()]


def without_noise(data: bytes) -> bytes:
    """Return a JSON frame without the member that hand-made probes left out, lengths included."""
    return data[8:].replace(NOISE, b"", 1)


def of_version_409(data: bytes, command: RemotingCommand) -> bytes:
    """Return a frame with another version, of the same number of digits."""
    if command.serialize_type == 1:
        return data[:11] + (409).to_bytes(2, "big") + data[13:]
    return data.replace(b'"version":%d}' % command.version, b'"version":409}', 1)


class GoldenFrameTests(SynchronousTestCase):
    def test_enough(self) -> None:
        """There are many frames, of both header types and both directions."""
        kinds = {(frame.from_client, command.serialize_type) for frame, command in golden()}
        self.assertEqual(kinds, {(True, 0), (False, 0), (True, 1), (False, 1)})
        self.assertGreater(len(golden()), 450)

    def test_read(self) -> None:
        """Code, opaque and direction are what the recorder saw."""
        for frame, command in golden():
            self.assertEqual((command.code, command.opaque), (frame.code, frame.opaque), frame)
            self.assertEqual(command.is_response, frame.answers is not None, frame)
            expected = {"language as number": LanguageCode.PYTHON, "language unknown name": None}
            self.assertIs(command.language, expected.get(frame.note, LanguageCode.JAVA), frame)

    def test_written_back(self) -> None:
        """Written again, a frame of Apache's is the same byte for byte."""
        for frame, command in golden():
            if command.serialize_type == 1:
                expected = frame.data
                if b"\0\x0aattributes\0\0\0\0" in expected:
                    continue  # an empty string is null to us: see test_empty_strings_are_null
                self.assertEqual(encode_command(command), expected, frame)
            elif NOISE in frame.data:
                self.assertEqual(encode_command(command), frame.data, frame)
            elif b":null" not in frame.data and not frame.note.startswith("language"):
                self.assertEqual(without_noise(encode_command(command)), frame.data[8:], frame)

    def test_a_difference_is_seen(self) -> None:
        """One changed field changes the bytes."""
        frame, command = next((f, c) for f, c in golden() if c.has_ext_fields and NOISE in f.data)
        for name, value in (("code", 9), ("opaque", 77), ("flag", 3), ("version", 1), ("remark", "r"), ("body", b"b")):
            changed = decode_command(FrameDecoder().receive(frame.data)[0])
            setattr(changed, name, value)
            self.assertNotEqual(encode_command(changed), frame.data, name)
        self.assertEqual(encode_command(command), frame.data)

    def test_answers_as_apache_writes_them(self) -> None:
        """Our answer to a recorded request, with the recorded content, differs in the version at most."""
        count = 0
        requests: dict[tuple[str, bool, int], RemotingCommand] = {}
        for frame, command in golden():
            if frame.answers is None:
                requests[frame.conversation, frame.from_client, frame.opaque] = command
                continue
            request = requests.get((frame.conversation, not frame.from_client, frame.opaque))
            if request is None or request.code != frame.answers:
                continue
            if request.serialize_type != command.serialize_type:
                # Java's few answers outside the ordinary way (query, woken pull) are JSON whatever was asked
                continue
            ext = command.ext_fields if command.has_ext_fields else None
            ours = encode_reply(request, command.code, command.remark, ext, command.body or b"")
            self.assertEqual(ours, of_version_409(frame.data, command), frame)
            count += 1
        self.assertGreater(count, 200)

    def test_streams(self) -> None:
        """All frames of a conversation's direction as one stream, cut into odd pieces, come out the same."""
        for conversation in CONVERSATIONS:
            for from_client in (True, False):
                parts = [frame.data for frame in frames(conversation) if frame.from_client is from_client]
                stream, decoder, found = b"".join(parts), FrameDecoder(), 0
                for start in range(0, len(stream), 777):
                    found += len(decoder.receive(stream[start : start + 777]))
                self.assertEqual(found, len(parts), conversation)
                self.assertEqual(decoder.buffered_bytes, 0)

    def test_header_json_is_what_json_reads(self) -> None:
        """Our reading of a header agrees with an ordinary JSON reader."""
        for frame, command in golden():
            if command.serialize_type == 0:
                size = int.from_bytes(frame.data[5:8], "big")
                header = json.loads(frame.data[8 : 8 + size])
                ext = {key: value for key, value in (header.get("extFields") or {}).items() if value is not None}
                self.assertEqual(command.ext_fields, {k: v if isinstance(v, str) else str(v) for k, v in ext.items()})
                self.assertEqual(command.remark, header.get("remark"))

    def test_codes_have_names(self) -> None:
        """Every request code that was sent to learn something, and is no made-up one, is in the enum."""
        known = {int(code) for code in RequestCode}
        unnamed = {frame.code for frame, _ in golden() if frame.answers is None} - known
        self.assertEqual({code for code in unnamed if code < 9000}, set())
