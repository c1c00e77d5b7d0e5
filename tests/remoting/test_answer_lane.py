"""The lane of answers that say nothing but success: it completes the request, or leaves the answer to the decoder."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.answerlane import AnswerLane, add_answer_lane
from rmq.remoting.responders import ResponderTable
from rmq.wire.command import RESPONSE, RemotingCommand, decode_commands, encode_command
from rmq.wire.compiled import load
from rmq.wire.frames import PREFIX, ProtocolError
from tests.needs import need_compiled
from tests.remoting.peer import Peer
from tests.seeds import SEED

#: as Java, Go and C++ acknowledge
HEADERS = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":77,"serializeTypeCurrentRPC":"JSON","version":409}',
    b'{"code":0,"language":"GO","version":317,"opaque":77,"flag":1,"remark":null}',
    b'{"code":0,"flag":1,"opaque":77}',
    b'{"flag":1,"opaque":0,"code":0}',
)
ODD = (
    b'{"code":0,"flag":1,"opaque":77,"extFields":{}}',
    b'{"code":0,"flag":1,"opaque":77,"remark":"why"}',
    b'{"code":1,"flag":1,"opaque":77}',
    b'{"code":0,"flag":0,"opaque":77}',
    b'{"code":0,"flag":3,"opaque":77}',
    b'{"code":0,"flag":1}',
    b'{"flag":1,"opaque":77}',
    b'{"code":0,"opaque":77}',
    b'{"code":0,"flag":1,"opaque":077}',
    b'{"code":0,"flag":1,"opaque":-1}',
    b'{"code":0,"flag":1,"opaque":4294967296}',
    b'{"code":0,"flag":1,"opaque":77,"opaque":78}',
    b'{"code":0,"code":0,"flag":1,"opaque":77}',
    b'{"code":0,"flag":1,"flag":1,"opaque":77}',
    b'{"code":0,"flag":1,"opaque":77,"version":x}',
    b'{"code":0,"flag":1,"opaque":77,"language":nul}',
    b'{"code":0,"flag":1,"opaque":77,"other":"a"}',
    b'{"code":0, "flag":1,"opaque":77}',
    b'{"code":0,"flag":1,"opaque":77',
    b'{"code":0,"flag":1,"opaque":77}}',
    b"{}",
    b"",
)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


class AnswerLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.remoting._fastpath")
        module: Any = load("rmq.remoting._fastpath")
        self.read = module.read_answer

    def test_plain_answers(self) -> None:
        for header in HEADERS:
            frame = framed(header)
            (command,) = decode_commands(frame)
            self.assertEqual(self.read(frame, 0), (len(frame), command.opaque), header)
            self.assertEqual(self.read(b"x" * 9 + frame + b"more", 9), (len(frame) + 9, command.opaque))
            for size in range(len(frame)):
                self.assertIsNone(self.read(frame[:size], 0))
        self.assertIsNone(self.read(framed(HEADERS[0]), -1))

    def test_others(self) -> None:
        for header in ODD:
            self.assertIsNone(self.read(framed(header), 0), header)
        self.assertIsNone(self.read(framed(HEADERS[0], b"body"), 0))
        self.assertIsNone(self.read(framed(HEADERS[0])[:4] + b"\x01" + framed(HEADERS[0])[5:], 0))

    def test_never_more_than_the_decoder(self) -> None:
        """Whatever is read so is, to the decoder, an answer with that opaque and nothing else."""
        chance = random.Random(SEED)
        read = 0
        for _ in range(20_000):
            frame = bytearray(framed(chance.choice(HEADERS + ODD), chance.choice((b"", b"", b"", b"x"))))
            for _ in range(chance.choice((0, 1, 1, 2))):
                frame[chance.randrange(len(frame))] = chance.choice(b'\x00\x01"{}:,01979anx \\')
            found = self.read(bytes(frame), 0)
            if found is None:
                continue
            read += 1
            try:
                (command,) = decode_commands(bytes(frame[: found[0]]))
            except ProtocolError as error:
                self.fail(f"seed {SEED}: {bytes(frame)!r} was read, but {error}")
            self.assertEqual(
                (found[1], 0, None, None, False, RESPONSE),
                (
                    command.opaque,
                    command.code,
                    command.remark,
                    command.body,
                    command.has_ext_fields,
                    command.flag,
                ),
                f"seed {SEED}: {bytes(frame)!r}",
            )
        self.assertGreater(read, 500)

    def test_requests_are_completed(self) -> None:
        """Those that are pending; an unknown opaque changes nothing, and what follows in the chunk is read, too."""
        table = ResponderTable()
        add_answer_lane(table)
        peer = Peer(table)
        first, second = ([], [])  # type: tuple[list[Any], list[Any]]
        for found in first, second:
            peer.protocol.channel.request(RemotingCommand(40), timeout_ms=1000).addCallback(found.append)
        one, two = (each.opaque for each in peer.received())
        unknown, known, failed = (
            encode_command(RemotingCommand(code, opaque, RESPONSE)) for code, opaque in ((0, 99), (0, one), (1, two))
        )
        peer.send(unknown + known + failed)
        self.assertEqual([(each.code, each.opaque) for each in first + second], [(0, one), (1, two)])
        self.assertTrue(peer.protocol.channel.is_open)

    def test_answers_are_no_requests(self) -> None:
        """The lane takes all that are in front, and counts none of them."""
        channel = Peer(ResponderTable()).protocol.channel
        answer = framed(HEADERS[0])
        for frames, rest in (answer * 3, b""), (answer * 2, framed(ODD[0]) + answer):
            answers: list[bytes] = []
            self.assertEqual(AnswerLane()(frames + rest, 0, answers, channel), (len(frames), 0))
            self.assertEqual(answers, [])
