"""The lane for pulls: it answers what the ordinary way answers, or nothing."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.pulllane import PullLane
from rmq.broker.responders import pulling
from rmq.remoting.channel import Channel
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from tests.broker.harness import OneBroker, heartbeat, pull_ext, send_ext
from tests.remoting.peer import Peer
from tests.seeds import SEED


def random_pull(chance: random.Random) -> RemotingCommand:
    """Return a pull; about half of them find messages."""

    def mostly(usual: str, *others: str) -> str:
        return usual if chance.random() < 0.95 else chance.choice(others)

    ext = pull_ext(
        mostly("T", "Other", "%RETRY%CG", "bad topic!"),
        group=chance.choice(("CG", "live")) if chance.random() < 0.95 else "absent",
        queue_id=int(mostly(str(chance.randrange(3)), "3", "9", "-1")),
        offset=int(mostly(chance.choice(("0", "1", "5", "30")), "40", "1000", "-1", str(1 << 62))),
        sys_flag=int(mostly(chance.choice(("4", "5")), "0", "1", "12", "16")),
        maxMsgNums=mostly(chance.choice(("32", "1")), "0", "-1", "5000"),
        commitOffset=mostly(str(chance.randrange(100)), str(1 << 63), "x"),
        subscription=mostly(chance.choice(("*", "A", "A || B")), "", "||", "C"),
        subVersion=mostly("1", "0", "2"),
        expressionType=mostly("TAG", "", "SQL92"),
    )
    if chance.random() < 0.05:
        del ext[chance.choice(list(ext))]
    return RemotingCommand(
        int(mostly("11", "361", "310")),
        flag=int(mostly("0", str(ONEWAY))),
        version=409,
        ext_fields=ext,
        body=b"?" if chance.random() < 0.05 else None,
        serialize_type=int(mostly("0", "1")),
    )


class PullLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.sides = [OneBroker(seed=3), OneBroker(seed=3)]
        self.taken = 0
        for one in self.sides:
            client = one.connect()
            for number in range(120):
                tag = "AB"[number % 2]
                client.ask(310, send_ext(queue_id=number % 3, props=f"TAGS\x01{tag}"), b"x" * (number % 50))
            client.ask(34, body=heartbeat("me", "live", "T"))
        lanes = self.sides[0].service.responders.chunk_lanes
        lane = lanes[PullLane.code]

        def counted(data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
            stop, count = lane(data, position, answers, channel)
            self.taken += count
            return stop, count

        counted.code = PullLane.code  # type: ignore[attr-defined]
        self.sides[0].service.responders.chunk_lanes = {**lanes, PullLane.code: counted}  # type: ignore[dict-item]
        self.sides[1].service.responders.chunk_lanes = {}

    def tearDown(self) -> None:
        for one in self.sides:
            one.end()
        self.flushLoggedErrors()

    def test_same_answers(self) -> None:
        """Whatever is pulled, in any pieces: answers, offsets and counters are those of the ordinary way."""
        seed = SEED
        chance = random.Random(seed)
        peers = [Peer(one.service.responders) for one in self.sides]
        opaque = 0
        for number in range(150):
            stream = b""
            for _ in range(chance.randrange(1, 8)):
                opaque += 1
                command = random_pull(chance)
                command.opaque = opaque
                stream += encode_command(command)
            cuts = sorted(chance.randrange(len(stream)) for _ in range(chance.choice((0, 0, 1, 3))))
            for peer in peers:
                for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                    if start < end:
                        peer.send(stream[start:end])
            left, right = (list(map(encode_command, peer.received())) for peer in peers)
            self.assertEqual(left, right, f"seed {seed}, round {number}")
        self.assertGreater(self.taken, 50, f"seed {seed}: the lane took next to nothing")
        taken = self.taken
        self.patch(pulling, "MAX_LANE_BYTES", 1)
        self.assertEqual([peer.ask(11, None, version=409, **pull_ext()).remark for peer in peers], ["FOUND", "FOUND"])
        self.assertEqual(self.taken, taken, "an answer that may be too long for a frame")
        states = [one.state for one in self.sides]
        self.assertEqual(states[0].offsets.snapshot(), states[1].offsets.snapshot(), f"seed {seed}")
        for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            self.assertEqual(states[0].stats.totals(name), states[1].stats.totals(name), f"seed {seed}")
        stats = [one.service.responders.stats for one in self.sides]
        self.assertEqual(stats[0].counts, stats[1].counts, f"seed {seed}")
