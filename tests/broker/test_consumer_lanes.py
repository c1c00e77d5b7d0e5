"""The lanes for what members of a group repeat: they answer what the ordinary way answers, or nothing."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import consumerlanes
from rmq.broker.consumerlanes import CommitLane, MembersLane, QueryLane
from rmq.remoting.channel import Channel
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from rmq.wire.frames import PREFIX
from tests.broker.harness import OneBroker, heartbeat, send_ext
from tests.needs import need_compiled
from tests.remoting.peer import Peer
from tests.seeds import SEED

LANES = (CommitLane, QueryLane, MembersLane)


def random_request(chance: random.Random) -> RemotingCommand:
    """Return a request of a member; most of them are plain."""

    def mostly(usual: str, *others: str) -> str:
        return usual if chance.random() < 0.95 else chance.choice(others)

    ext = {
        "consumerGroup": chance.choice(("g", "h", "absent", "ü")),
        "topic": mostly("T", "Other", ""),
        "queueId": mostly(chance.choice(("0", "1", "2")), "-1", "x", "99999999999"),
        "commitOffset": mostly(str(chance.randrange(100)), "-1", str(1 << 62), str(1 << 63), "x", "07"),
        "setZeroIfNotFound": mostly("false", "true"),
    }
    for name in chance.sample(sorted(ext), k=chance.choice((0, 0, 0, 1))):
        del ext[name]
    return RemotingCommand(
        chance.choice((14, 15, 15, 38)),
        flag=int(mostly(chance.choice(("0", "0", str(ONEWAY))), "4")),
        version=chance.choice((407, 479)),
        ext_fields=ext,
        body=b"?" if chance.random() < 0.05 else None,
        serialize_type=int(mostly("0", "1")),
    )


class ConsumerLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._pick")
        self.sides = [OneBroker(seed=3) for _ in range(2)]
        for one in self.sides:
            client = one.connect()
            client.ask(310, send_ext("T"))
            client.ask(34, body=heartbeat("me", "g", "T"))
        self.taken = {lane.contract.code: 0 for lane in LANES}
        lanes = self.sides[0].service.responders.chunk_lanes
        self.lanes: dict[int, Any] = {int(lane.contract.code): lanes[lane.contract.code] for lane in LANES}
        counted = {code: self._counted(code, lane) for code, lane in self.lanes.items()}
        self.sides[0].service.responders.chunk_lanes = {**lanes, **counted}
        self.sides[1].service.responders.chunk_lanes = {}

    def _counted(self, code: int, lane: Any) -> Any:
        def counting(data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
            stop, count = lane(data, position, answers, channel)
            self.taken[code] += count
            return stop, count

        counting.code = code  # type: ignore[attr-defined]
        return counting

    def tearDown(self) -> None:
        for one in self.sides:
            one.end()
        self.flushLoggedErrors()

    def test_same_answers(self) -> None:
        """Whatever is asked, in any pieces: answers, offsets and counters are those of the ordinary way."""
        chance = random.Random(SEED)
        peers = [Peer(one.service.responders) for one in self.sides]
        opaque = 0
        for number in range(200):
            stream = b""
            for _ in range(chance.randrange(1, 8)):
                opaque += 1
                command = random_request(chance)
                command.opaque = opaque
                stream += encode_command(command)
            cuts = sorted(chance.randrange(len(stream)) for _ in range(chance.choice((0, 0, 1, 3))))
            for peer in peers:
                for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                    if start < end:
                        peer.send(stream[start:end])
            left, right = (list(map(encode_command, peer.received())) for peer in peers)
            self.assertEqual(left, right, f"seed {SEED}, round {number}")
            snapshots = [one.service.offsets.snapshot() for one in self.sides]
            self.assertEqual(snapshots[0], snapshots[1], f"seed {SEED}, round {number}")
        for code, taken in self.taken.items():
            self.assertGreater(taken, 5, f"seed {SEED}: the lane of {code} took next to nothing")
        stats = [one.service.responders.stats for one in self.sides]
        self.assertEqual(stats[0].counts, stats[1].counts, f"seed {SEED}")

    def test_numbers_that_do_not_count(self) -> None:
        """A name that is there twice, in the header and in its fields: the number of the field is committed."""
        fields = b'"extFields":{"consumerGroup":"g","topic":"T","queueId":"0","commitOffset":5}'
        header = b'{"code":15,"flag":0,"language":"JAVA","opaque":1,"commitOffset":"9",%s,"version":409}' % fields
        for one in self.sides:
            peer = Peer(one.service.responders)
            peer.send(PREFIX.pack(4 + len(header), len(header)) + header)
            self.assertEqual([answer.code for answer in peer.received()], [0])
            self.assertEqual(one.service.offsets.query("g", "T", 0), 5)
        self.assertEqual(self.taken[15], 0)

    def test_members_that_come_and_go(self) -> None:
        """A known question is answered with the members of the moment, and by the responder when there is none."""
        one = self.sides[0]
        asking, first, second = one.connect(), one.connect(), one.connect()

        def members() -> tuple[int, bytes | None]:
            answer = asking.ask(38, {"consumerGroup": "new"})
            return answer.code, answer.body

        self.assertEqual(members()[0], 1)
        first.ask(34, body=heartbeat("a", "new", "T"))
        self.assertEqual(members(), (0, b'{"consumerIdList":["a"]}'))
        second.ask(34, body=heartbeat("b", "new", "T"))
        self.assertEqual(members(), (0, b'{"consumerIdList":["a","b"]}'))
        self.assertEqual(members(), (0, b'{"consumerIdList":["a","b"]}'))
        first.ask(35, {"clientID": "a", "consumerGroup": "new"})
        self.assertEqual(members(), (0, b'{"consumerIdList":["b"]}'))
        second.ask(35, {"clientID": "b", "consumerGroup": "new"})
        self.assertEqual(members()[0], 1)
        self.assertEqual(self.taken[38], 4)

    def test_known_requests_are_bounded(self) -> None:
        """Other headers without end do not fill the memory."""
        self.patch(consumerlanes, "MAX_KNOWN", 3)
        client = self.sides[0].connect()
        for number in range(8):
            ext = {"consumerGroup": f"g{number}", "topic": "T", "queueId": "0", "commitOffset": "5"}
            self.assertEqual(client.ask(15, ext).code, 0)
            self.assertLessEqual(len(self.lanes[15]._known), 3)
        self.assertEqual(self.taken[15], 8)

    def test_no_lane_for_commits_at_a_slave(self) -> None:
        """A slave keeps what consumers commit there: that is not for a lane."""
        one = OneBroker({"brokerRole": "SLAVE", "brokerId": "1"}, seed=3)
        lanes = one.service.responders.chunk_lanes
        self.assertEqual([code in lanes for code in (14, 15, 38)], [True, False, True])
        one.end()
        self.flushLoggedErrors()
