"""Tests of the shortest way through a connection: a lane that answers received bytes before they are cut."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting import responders
from rmq.remoting.channel import Channel
from rmq.remoting.responders import Reply, Request, ResponderTable, responds_to
from rmq.wire.command import RemotingCommand, decode_command, encode_command, likely_code
from rmq.wire.compiled import load
from rmq.wire.contract import contract
from rmq.wire.frames import PREFIX, encode_frame, whole_frame
from tests.needs import need_compiled
from tests.remoting.peer import LeanTransport, Peer
from tests.seeds import SEED

ECHO = contract(97_001, body=bytes, reply_body=bytes)
LATER = contract(97_002)


class Owner:
    @responds_to(ECHO)
    def echo(self, request: Request[None, bytes]) -> Reply:
        return Reply(body=request.body)

    @responds_to(LATER)
    def later(self, request: Request[None, None]) -> Deferred[Reply]:
        return Deferred()


class MarkedLane:
    """Answers frames that end in ``!``, with their own bytes; one that ends in ``?!`` is a fault."""

    code = 97_001

    def __init__(self) -> None:
        self.asked = self.taken = 0
        self.limit = 1_000_000

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        count = 0
        self.asked += 1
        while len(data) - position >= 8:
            stop = position + 4 + PREFIX.unpack_from(data, position)[0]
            if stop > len(data) or data[stop - 1] != ord("!"):
                break
            if data[stop - 2] == ord("?"):
                raise ValueError("lane")
            answers += (data[position : position + 4], data[position + 4 : stop])
            position = stop
            count += 1
            self.taken += 1
            if sum(map(len, answers)) >= self.limit:
                break
        return position, count


def echo(body: bytes, opaque: int) -> bytes:
    return encode_command(RemotingCommand(97_001, opaque, body=body))


class ChunkLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.table = ResponderTable(Owner())
        self.lane = MarkedLane()
        self.table.add_chunk_lane(self.lane)
        self.peer = self.connected()

    def connected(self) -> Peer:
        """Return a peer that has just connected."""
        return Peer(self.table)

    def test_one_write(self) -> None:
        """All that the lane answers of a chunk is one write, and counted in one go."""
        data = echo(b"a!", 1) + echo(b"b!", 2) + echo(b"c!", 3)
        self.peer.send(data)
        self.assertEqual(self.peer.transport.writes, [data])
        self.assertEqual(self.table.stats.counts, {97_001: 3})
        self.assertEqual(sum(self.table.stats.buckets[97_001]), 3)

    def test_the_rest(self) -> None:
        """What is not for the lane takes the ordinary way, in order, and what comes behind it too."""
        self.peer.send(echo(b"a!", 1) + echo(b"b", 2) + echo(b"c!", 3) + echo(b"d", 4))
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1, 2, 3, 4])
        self.assertEqual(self.lane.taken, 1)
        self.peer.send(echo(b"e!", 5))
        self.assertEqual([answer.opaque for answer in self.peer.received()], [5])
        self.assertEqual(self.lane.taken, 2)
        self.assertEqual(self.table.stats.counts, {97_001: 5})

    def test_any_pieces(self) -> None:
        """However the stream is cut, every frame is answered once and in order; whole ones by the lane."""
        stream = echo(b"a!", 1) + echo(b"b!", 2) + echo(b"c", 3) + echo(b"d!", 4)
        for size in range(1, len(stream) + 1):
            peer = self.connected()
            before = self.lane.taken
            for start in range(0, len(stream), size):
                peer.send(stream[start : start + size])
            self.assertEqual([answer.opaque for answer in peer.received()], [1, 2, 3, 4], f"pieces of {size}")
            self.assertGreaterEqual(self.lane.taken - before, 1, f"pieces of {size}")
            self.assertEqual(peer.channel.held_bytes, 0)

    def test_a_frame_inside_a_body(self) -> None:
        """A body that holds a whole frame is a body, also where a chunk begins with it: nobody's request is made up."""
        inner = echo(b"a!", 7)
        outer = echo(b"before" + inner + b"behind", 1)
        at = outer.index(inner)
        self.peer.send(outer[:at])
        self.peer.send(outer[at:])
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1])
        self.assertEqual(self.lane.taken, 0)

    def test_in_parts(self) -> None:
        """A lane that stops because its answers are long is asked again after they are written."""
        self.lane.limit = 150
        self.peer.send(b"".join(echo(b"a!", number) for number in range(1, 10)))
        self.assertEqual([answer.opaque for answer in self.peer.received()], list(range(1, 10)))
        self.assertGreater(len(self.peer.transport.writes), 2)
        self.assertEqual(self.lane.taken, 9)

    def test_slow_reader(self) -> None:
        """A peer that does not read its answers has the rest of its chunk answered when it does."""
        self.lane.limit = 150
        self.peer.transport.unread_limit = 200
        self.peer.send(b"".join(echo(b"a!", number) for number in range(1, 10)))
        first = self.peer.transport.writes[:]
        self.assertLess(self.lane.taken, 9)
        self.assertEqual(self.peer.transport.producerState, "paused")
        self.peer.send(echo(b"late", 10))
        self.assertEqual(self.peer.transport.writes, first)
        opaques: list[int] = []
        while len(opaques) < 10:
            got = self.peer.received()
            self.assertTrue(got)
            opaques += [answer.opaque for answer in got]
        self.assertEqual(opaques, list(range(1, 11)))
        self.assertEqual(self.peer.transport.producerState, "producing")

    def test_closed_by_an_answer(self) -> None:
        """Nothing more is answered once the channel is closed."""
        self.lane.limit = 1
        closing = self.peer.transport.write

        def write(data: bytes) -> None:
            closing(data)
            self.peer.channel.close("enough")

        self.peer.transport.write = write  # type: ignore[method-assign]
        self.peer.send(echo(b"a!", 1) + echo(b"b!", 2) + echo(b"c", 3))
        self.assertEqual(len(self.peer.transport.writes), 1)
        self.assertEqual(self.lane.taken, 1)

    def test_fault(self) -> None:
        """A fault of ours is logged and costs this connection only; what was answered before it is sent."""
        self.peer.send(echo(b"a!", 1) + echo(b"?!", 2) + echo(b"b!", 3))
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertTrue(self.peer.is_cut)
        self.assertIn("lane", self.peer.channel.close_reason or "")
        self.assertEqual(Peer(self.table).ask(97_001, b"x").code, 0)

    def test_bad_frame_behind(self) -> None:
        """What was asked before a bad frame is answered, then the connection is cut."""
        self.peer.send(echo(b"a!", 1) + b"\xff\xff\xff\xff" + echo(b"b!", 2))
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1])
        self.assertTrue(self.peer.is_cut)

    def test_guarded(self) -> None:
        """Requests that a guard looks at have no chunk lane, whichever of the two is set first."""

        def guard(command: RemotingCommand, channel: Channel) -> None:
            raise responders.Refuse(16, "no")

        for codes in (None, (97_001,)):
            for guard_first in (False, True):
                table = ResponderTable(Owner())
                if guard_first:
                    table.guard_with(guard, codes)
                table.add_chunk_lane(self.lane)
                table.guard_with(guard, codes)
                self.assertEqual(table.chunk_lanes, {})
                self.assertEqual(table.without().chunk_lanes, {})
        other = ResponderTable(Owner())
        other.add_chunk_lane(self.lane)
        other.guard_with(guard, (97_002,))
        self.assertEqual(other.chunk_lanes, {97_001: self.lane})

    def test_admitted(self) -> None:
        """A guard that says whom it admits lets the lane have those, and no other; it is the same lane all the time."""

        def guard(command: RemotingCommand, channel: Channel) -> None:
            if command.body is not None and command.body.startswith(b"no"):
                raise responders.Refuse(16, "no")

        asked: list[int] = []

        def admitted(data: bytes, position: int, code: int, channel: Channel) -> int:
            asked.append(code)
            frame = whole_frame(data, position)
            if frame is None or decode_command(frame[0]).code != code or frame[0].body.startswith(b"no"):
                return position
            return frame[1]

        for guard_first in (False, True):
            self.lane.taken = self.lane.asked = 0
            table = ResponderTable(Owner())
            if guard_first:
                table.guard_with(guard, admitted=admitted)
            table.add_chunk_lane(self.lane)
            if not guard_first:
                table.guard_with(guard, admitted=admitted)
            self.assertIs(table.added_lane(97_001), self.lane)
            before = table.chunk_lanes[97_001]
            table.refuse({97_002: "busy"})
            self.assertIs(table.chunk_lanes[97_001], before)
            table.refuse({97_001: "busy"})
            self.assertEqual(table.chunk_lanes, {})
            table.refuse({})
            peer = Peer(table.without(97_002))
            peer.send(echo(b"a!", 1) + echo(b"b!", 2) + echo(b"no!", 3) + echo(b"c!", 4))
            answers = [one.code for one in peer.received()]
            # the lane's answers have its code
            self.assertEqual(answers, [97_001, 97_001, 16, 0])
            peer.send(echo(b"no!", 5))
            self.assertEqual([one.code for one in peer.received()], [16])
            self.assertEqual(self.lane.taken, 2)
            # a check is not free: what is for others is not checked for this lane
            peer.send(echo(b"d!", 6) + encode_command(RemotingCommand(97_002, 7)))
            self.assertEqual(set(asked), {97_001})
            asked.clear()

    def test_asked_for_its_code_only(self) -> None:
        """Requests of other codes cost the lane nothing; the one behind them is answered all the same."""
        later = encode_command(RemotingCommand(97_002, 1))
        self.peer.send(later)
        self.peer.send(later + echo(b"a!", 2))
        self.assertEqual(self.lane.asked, 0)
        self.assertEqual([answer.opaque for answer in self.peer.received()], [2])
        self.peer.send(echo(b"b!", 3) + later)
        self.assertEqual((self.lane.asked, self.lane.taken), (1, 1))

    def test_declined_once(self) -> None:
        """A request that the lane leaves is not shown to it again."""
        self.peer.send(echo(b"no", 1))
        self.assertEqual((self.lane.asked, len(self.peer.received())), (1, 1))

    def test_headers_of_other_writers(self) -> None:
        """Spaces in a header, or the code behind a field of that name, change nothing."""
        for number, header in enumerate(
            (b'{"code" : 97001 , "opaque":1}', b'{"extFields":{"code":"5"},"opaque":1,"code":97001}'), 1
        ):
            self.peer.send(encode_frame(0, header, b"!"))
            self.assertEqual(self.lane.taken, number)

    def test_without(self) -> None:
        """A table without the lane's code has no such lane."""
        self.assertEqual(self.table.without(97_002).chunk_lanes, {97_001: self.lane})
        self.assertEqual(self.table.without(97_001).chunk_lanes, {})

    def test_waits_behind_what_is_held(self) -> None:
        """While frames wait for the peer to read, the lane does not overtake them."""
        seen: list[Any] = []
        self.peer.transport.unread_limit = 100
        self.patch(responders, "MAX_COLLECTED_BYTES", 1)
        self.lane.limit = 1
        self.peer.send(echo(b"a!", 1) + echo(b"b!", 2))
        self.peer.send(echo(b"c!", 3))
        while len(seen) < 3:
            got = self.peer.received()
            self.assertTrue(got)
            seen += [answer.opaque for answer in got]
        self.assertEqual(seen, [1, 2, 3])


class DirectTests(ChunkLaneTests):
    """The same past the protocol, as the reactor ``rmq-lean`` does with the compiled modules."""

    def setUp(self) -> None:
        need_compiled("rmq.remoting._fastpath")
        super().setUp()

    def connected(self) -> Peer:
        peer = Peer(self.table, transport=LeanTransport())
        # as if its first chunk, which may begin a TLS handshake, were behind it
        peer.protocol._sniffed = peer.protocol.at_frame_start = True
        return peer

    def test_likely_code(self) -> None:
        """Python and C read the same code from whole and broken frames, wherever they begin."""
        compiled = load("rmq.remoting._fastpath")
        assert compiled is not None
        chance = random.Random(SEED)
        headers = (
            b'{"code":%d,"opaque":1}',
            b'{"code":%d}',
            b'{"code" :\r\n %d ,',
            b'{"code":"5","x":"\\"code\\":7","code":%d,',
            b'"code":"code":%d"code"',
        )
        read = set()
        for _ in range(3000):
            number = chance.choice((0, 7, 105, 999_999_999, 10**9, -1))
            frame = bytearray(encode_frame(chance.choice((0, 0, 0, 1)), chance.choice(headers) % number))
            if chance.random() < 0.3:
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            data = bytes(frame[: chance.randrange(len(frame) + 1)]) if chance.random() < 0.1 else bytes(frame) * 2
            position = chance.choice((0, 0, len(frame), 5, len(data)))
            code = likely_code(data, position)
            self.assertEqual(compiled.likely_code(data, position), code, f"seed {SEED}: {data!r} at {position}")
            read.add(code)
        self.assertLessEqual({-1, 0, 7, 105, 999_999_999}, read)

    def test_is_direct(self) -> None:
        """All of the above did go past the protocol, the first chunk of a connection apart."""
        transport = self.peer.transport
        assert isinstance(transport, LeanTransport)
        self.peer.send(echo(b"a!", 1))
        self.assertEqual(transport.answered_fast, 1)
        fresh = LeanTransport()
        other = Peer(self.table, transport=fresh)
        other.send(echo(b"a!", 1))
        self.assertEqual(fresh.answered_fast, 0)
        other.send(echo(b"a!", 1))
        self.assertEqual(fresh.answered_fast, 1)
