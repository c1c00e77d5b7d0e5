"""Lanes under access control: what they answer is what the ordinary way answers, and nothing that it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.topics import topic
from rmq.remoting.acl import AclRules, parse_rules
from rmq.remoting.channel import Channel
from rmq.remoting.responders import Refuse
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RemotingCommand, decode_command, encode_command
from rmq.wire.frames import PREFIX, whole_frame
from rmq.wire.signing import ACCESS_KEY, SIGNATURE, signature
from tests.broker.harness import heartbeat, pull_ext
from tests.broker.test_lanes import Side, random_send
from tests.broker.test_waiting_lanes import back_ext, end_ext, half_ext
from tests.needs import need_compiled
from tests.otherclients import as_others_write, pieces
from tests.remoting.peer import LeanTransport, Peer, one_turn
from tests.seeds import SEED

ACCOUNTS = b"""
accounts:
- {accessKey: everything, secretKey: '12345678', admin: true}
- {accessKey: ordinary, secretKey: '12345678', defaultTopicPerm: PUB, defaultGroupPerm: SUB, topicPerms: [Secret=DENY]}
- {accessKey: nothing, secretKey: '12345678'}
"""
SECRETS = {"everything": "12345678", "ordinary": "12345678", "nothing": "12345678", "unknown": "12345678"}


class Guard:
    """Rules in front of a table, and how many requests they let pass for lanes."""

    def __init__(self, rules: AclRules) -> None:
        self._rules = rules
        self.admitted = self.refused = 0

    def check(self, command: RemotingCommand, channel: Channel) -> None:
        problem = self._rules.problem(command, "192.0.2.1", ())
        if problem is not None:
            self.refused += 1
            raise Refuse(ResponseCode.NO_PERMISSION, problem)

    def admits(self, data: bytes, position: int, code: int, channel: Channel) -> int:
        stop = self._rules.admitted(data, position, code, "192.0.2.1:5", ())
        self.admitted += stop != position
        return stop


def signed(rng: random.Random, command: RemotingCommand) -> RemotingCommand:
    """Sign a request, in one of ten not well."""
    account = rng.choice(["everything", "ordinary", "ordinary", "ordinary", "ordinary", "nothing", "unknown"])
    fields = {**command.ext_fields, ACCESS_KEY: account}
    fields[SIGNATURE] = signature(fields, command.body, SECRETS[account])
    what = rng.random()
    if what < 0.03:
        fields[SIGNATURE] = signature(fields, b"another body", SECRETS[account])
    elif what < 0.06:
        del fields[rng.choice([SIGNATURE, ACCESS_KEY])]
    elif what < 0.1:
        fields[rng.choice(["b", "topic", "more"])] = rng.choice(["Secret", "T"])  # after it was signed
    return RemotingCommand(
        command.code,
        flag=command.flag,
        version=command.version,
        ext_fields=fields,
        body=command.body,
        serialize_type=command.serialize_type,
    )


def written(rng: random.Random, command: RemotingCommand) -> bytes:
    """Return the frame of a request, now and then with a field twice."""
    frame = as_others_write(rng, command)
    total, size = PREFIX.unpack_from(frame)
    header = frame[8 : 8 + size]
    if rng.random() < 0.8 or b'"extFields":{"' not in header:
        return frame
    more = rng.choice([b'"b":"Secret"', b'"b":"T"', b'"topic":"Secret"', b'"AccessKey":"everything"', b'"e":"1"'])
    if rng.random() < 0.5:
        header = header.replace(b'"extFields":{', b'"extFields":{' + more + b",", 1)
    else:
        end = header.index(b"}", header.index(b'"extFields":{'))
        header = header[:end] + b"," + more + header[end:]
    return PREFIX.pack(total - size + len(header), len(header)) + header + frame[8 + size :]


class GuardedLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def sides(self, **values: str) -> tuple[list[Side], list[Guard]]:
        """Two guarded brokers, one without lanes."""
        rules = parse_rules({"accounts": ACCOUNTS})
        sides = [Side(with_lane=True, values=values), Side(with_lane=True, values=values)]
        guards = [Guard(rules) for _ in sides]
        for side, guard in zip(sides, guards, strict=True):
            side.client.ask(310, {**random_send(random.Random(0)).ext_fields, "b": "Secret", "i": ""})
            side.table.guard_with(guard.check, admitted=guard.admits)
        sides[1].table.chunk_lanes = {}
        return sides, guards

    def same(self, sides: list[Side]) -> None:
        self.assertEqual(sides[0].log(), sides[1].log(), f"seed {SEED}")
        self.assertEqual(sides[0].derived(), sides[1].derived(), f"seed {SEED}")
        for side in sides:
            side.one.end()

    def run_rounds(self, send: Callable[[list[list[Peer]], random.Random], None], sides: list[Side]) -> None:
        chance = random.Random(SEED)
        peers = [
            [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(3)] for side in sides
        ]
        for _ in range(150):
            send(peers, chance)
            answers = [[[encode_command(each) for each in peer.received()] for peer in some] for some in peers]
            self.assertEqual(answers[0], answers[1], f"seed {SEED}")

    def test_a_signature_is_checked_once(self) -> None:
        """The ends of transactions and retries in one read cost one check each, not one for each that follows."""
        side, guard = Side(with_lane=True), Guard(parse_rules({"accounts": ACCOUNTS}))
        side.one.service.topics.put(topic("T", 1))
        side.client.ask(34, body=heartbeat("me", "g", "T"))
        for _ in range(2):
            half = side.client.ask(310, half_ext())
            offset = int(half.ext_fields["msgId"][16:], 16)
            side.client.ask(37, end_ext(half))
            side.client.ask(36, back_ext(offset))
        side.table.guard_with(guard.check, admitted=guard.admits)
        for code, ext in (37, end_ext(half)), (36, back_ext(offset)):
            fields = {**ext, ACCESS_KEY: "everything"}
            fields[SIGNATURE] = signature(fields, None, SECRETS["everything"])
            peer = Peer(side.table, transport=LeanTransport())
            before = guard.admitted
            peer.tell(*(RemotingCommand(code, number, ext_fields=fields) for number in range(40)))
            self.assertEqual(len(peer.received()), 40)
            self.assertEqual(guard.admitted - before, 40)
        side.one.end()

    def test_same_as_the_ordinary_way(self) -> None:
        """Signed well, badly or not at all, named twice, in any pieces: answers, log, queues and index are the same."""
        sides, guards = self.sides()
        secret = [side.one.service.store.max_offset("Secret", 0) for side in sides]

        def send(peers: list[list[Peer]], chance: random.Random) -> None:
            stream = b"".join(
                written(chance, signed(chance, random_send(random.Random(chance.random()))))
                for _ in range(chance.randrange(1, 9))
            )
            parts = pieces(chance, stream)
            for some in peers:
                for part in parts:
                    some[0].send(part)

        self.run_rounds(send, sides)
        self.assertGreater(sides[0].taken, 100, f"seed {SEED}: lanes took next to nothing")
        self.assertGreater(guards[0].refused, 50)
        self.assertEqual(sides[1].taken, 0)
        self.assertEqual(guards[1].refused, guards[0].refused)
        self.assertGreaterEqual(sides[0].one.service.store.max_offset("Secret", 0), secret[0])
        self.same(sides)

    def test_same_in_one_turn(self) -> None:
        """That holds for what several connections send in one turn of the reactor, which is stored together."""
        sides, guards = self.sides()

        def send(peers: list[list[Peer]], chance: random.Random) -> None:
            streams = [
                b"".join(
                    written(chance, signed(chance, random_send(random.Random(chance.random()))))
                    for _ in range(chance.randrange(1, 4))
                )
                for _ in range(3)
            ]
            order = one_turn(list(zip(peers[0], streams, strict=True)))
            for at in order:
                peers[1][at].send(streams[at])

        self.run_rounds(send, sides)
        self.assertGreater(sides[0].taken, 50, f"seed {SEED}")
        self.assertLess(sides[0].calls, sides[0].taken)
        self.assertGreater(guards[0].refused, 50)
        self.same(sides)

    def test_who_may_not(self) -> None:
        """An account without the permission reaches a topic by no way of writing it."""
        sides, guards = self.sides()
        store = sides[0].one.service.store
        before = store.max_offset("Secret", 0)
        peer = Peer(sides[0].table, transport=LeanTransport(port=40_000))
        for code, more in ((310, b'"b":"Secret"'), (320, b'"b":"Secret"'), (10, b'"topic":"Secret"')):
            for place in (0, 1):
                plain = random_send(random.Random(1))
                fields = {**plain.ext_fields, "b": "T", "e": "0", "i": "", "f": "0", ACCESS_KEY: "ordinary"}
                for as_signed in (fields, {**fields, "b": "Secret"}):
                    both = {**fields, SIGNATURE: signature(as_signed, b"x", "12345678")}
                    frame = encode_command(RemotingCommand(code, ext_fields=both, body=b"x"))
                    total, size = PREFIX.unpack_from(frame)
                    header = frame[8 : 8 + size]
                    at = b'"extFields":{'
                    header = (
                        header.replace(at, at + more + b",")
                        if place
                        else header.replace(b'"b":"T"', b'"b":"T",' + more)
                    )
                    peer.send(PREFIX.pack(total - size + len(header), len(header)) + header + frame[8 + size :])
                    (answer,) = peer.received()
                    self.assertNotEqual(answer.code, 0)
        self.assertEqual(store.max_offset("Secret", 0), before)
        self.assertEqual(sides[0].taken, 0)
        self.assertGreater(guards[0].refused, 0)
        for side in sides:
            side.one.end()

    def test_what_consumers_repeat(self) -> None:
        """Signed pulls, offsets and members of groups take lanes, too; unsigned ones are refused."""
        sides, guards = self.sides()
        peer = Peer(sides[0].table, transport=LeanTransport(port=40_000))
        for code, fields in (
            (11, pull_ext("T", group="CG")),
            (15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"}),
            (14, {"consumerGroup": "CG", "topic": "T", "queueId": "0"}),
        ):
            own = {**fields, ACCESS_KEY: "everything"}
            good = RemotingCommand(code, ext_fields={**own, SIGNATURE: signature(own, None, "12345678")}, version=409)
            for number in range(3):
                before = guards[0].admitted
                peer.send(encode_command(good))
                (answer,) = peer.received()
                self.assertEqual(answer.code, 0, f"{code}, {number}: {answer.remark}")
                self.assertEqual(guards[0].admitted, before + 1)
            peer.send(encode_command(RemotingCommand(code, ext_fields=fields, version=409)))
            (answer,) = peer.received()
            self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)
        for side in sides:
            side.one.end()


class WholeFrameTests(SynchronousTestCase):
    def test_whole_frames_only(self) -> None:
        """A frame is cut where the decoder cuts it; of half a frame, or of none, there is nothing."""
        frame = encode_command(RemotingCommand(310, 7, ext_fields={"a": "b"}, body=b"body"))
        found = whole_frame(b"before" + frame + b"behind", 6)
        assert found is not None
        self.assertEqual((decode_command(found[0]).opaque, found[1]), (7, 6 + len(frame)))
        for size in range(len(frame)):
            self.assertIsNone(whole_frame(frame[:size], 0))
        for bad in (b"\0\0\0\4\0\0\0\1" + bytes(9), b"\xff\xff\xff\xff" + bytes(9), b"\0\0\0\0" + bytes(9)):
            self.assertIsNone(whole_frame(bad, 0))
