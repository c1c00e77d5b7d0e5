"""The short way beside the ordinary way: the same answers and the same bytes in the log."""

from __future__ import annotations

import random
from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.lanes import answers_at_once
from rmq.store.config import FlushDiskType
from rmq.wire.codes import RequestCode
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from tests.broker.harness import OneBroker, RawClient, send_ext, setup_of

TOPICS = ("T", "T", "T", "T", "Multi", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "a b", "", "New", "t" * 127, "t" * 128)
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "CLUSTER", "own", "ü", "")
VALUES = ("a", "true", "false", "1", "0", "x y", "ü€😀", "", "-1", "\x00", '"\\')


def random_properties(rng: random.Random) -> str:
    """Return properties that are mostly well-formed and sometimes anything but."""
    pairs = [f"{rng.choice(NAMES)}\x01{rng.choice(VALUES)}" for _ in range(rng.randrange(5))]
    text = "\x02".join(pairs) + rng.choice(["", "\x02", "\x02\x02"])
    if rng.random() < 0.1:
        text = "".join(rng.choice("ab\x01\x02") for _ in range(rng.randrange(12)))
    return text


def random_send(rng: random.Random) -> RemotingCommand:
    """Return a send that a lane may take, or one that it must leave alone."""
    if rng.random() < 0.3:
        return RemotingCommand(310, ext_fields=send_ext(queue_id=rng.randrange(4), props=random_properties(rng)))
    more = {
        "f": str(rng.choice([0, 0, 0, 1, 2, 4, 8, 12, 0x301])),
        "h": str(rng.randrange(-5, 5)),
        "g": str(rng.randrange(1 << 41)),
        "j": rng.choice(["0", "1", "16", "null", "x"]),
        "k": rng.choice(["true", "false", "1"]),
        "m": rng.choice(["false", "false", "false", "1", "TRUE", "true"]),
    }
    ext: dict[str, str] = send_ext(
        rng.choice(TOPICS), queue_id=rng.choice([0, 0, 1, 2, 3, 4, 99]), props=random_properties(rng), **more
    )
    for key in rng.sample(sorted(ext), k=rng.choice([0, 0, 0, 0, 1])):
        del ext[key]
    return RemotingCommand(
        rng.choice([310, 310, 310, 10, 320]),
        flag=rng.choice([0, 0, 0, ONEWAY]),
        version=rng.choice([100, 407, 479]),
        ext_fields=ext,
        body=bytes(rng.randrange(256) for _ in range(rng.randrange(30))) or None,
        serialize_type=rng.choice([0, 0, 0, 1]),
    )


class Side:
    """A broker with or without its lane, and what it answered."""

    def __init__(self, *, lane: bool, values: Mapping[str, str] | None = None) -> None:
        self.one = OneBroker(values, seed=5)
        table = self.one.service.responders
        self.taken = 0
        if lane:
            lane_of_sends = table._lanes[RequestCode.SEND_MESSAGE_V2]

            def counted(command: RemotingCommand, channel: object) -> bytes | None:
                answer = lane_of_sends(command, channel)  # type: ignore[arg-type]
                self.taken += answer is not None
                return answer

            table.add_lane(RequestCode.SEND_MESSAGE_V2, counted)
        else:
            table._lanes.clear()
        self.client: RawClient = self.one.connect()
        ext = {"topic": "Multi", "defaultTopic": "x", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        self.client.ask(17, ext | {"topicFilterType": "MULTI_TAG", "topicSysFlag": "0", "order": "false"})
        self.client.ask(310, send_ext("T"))

    def replay(self, commands: list[RemotingCommand]) -> list[bytes]:
        """Send all at once; return the answers as they were written."""
        before = len(self.client.received)
        for command in commands:
            self.client.send(command)
        self.one.world.run_for(5)
        return [encode_command(answer) for answer in self.client.received[before:]]

    def log(self) -> bytes:
        store = self.one.state.store
        return store.read(0, store.end_offset)


class SendLaneTests(SynchronousTestCase):
    def test_same_answers_and_same_bytes(self) -> None:
        """Whatever is sent, the lane leaves no trace: answers and log are those of the ordinary way."""
        seed = random.SystemRandom().randrange(2**32)
        short, ordinary = Side(lane=True), Side(lane=False)
        commands = [random_send(random.Random(f"{seed}/{number}")) for number in range(600)]
        # both sides draw queues from the same generator, at the same sends
        answers = [side.replay(commands) for side in (short, ordinary)]
        self.assertEqual(len(answers[0]), len(answers[1]), f"seed {seed}")
        for number, (left, right) in enumerate(zip(*answers, strict=True)):
            self.assertEqual(left, right, f"seed {seed}, answer {number}")
        self.assertEqual(short.log(), ordinary.log(), f"seed {seed}")
        self.assertGreater(short.taken, 20, f"seed {seed}: the lane took next to nothing")
        self.assertEqual(ordinary.taken, 0)
        self.assertEqual(short.one.state.stats.puts.total, ordinary.one.state.stats.puts.total)
        for side in (short, ordinary):
            side.one.end()
            self.flushLoggedErrors()

    def test_a_planted_difference_is_seen(self) -> None:
        """Two sides that were sent different things do not compare equal."""
        short, ordinary = Side(lane=True), Side(lane=False)
        left = short.replay([RemotingCommand(310, ext_fields=send_ext(h="1"))])
        right = ordinary.replay([RemotingCommand(310, ext_fields=send_ext(h="2"))])
        self.assertEqual(left, right)
        self.assertNotEqual(short.log(), ordinary.log())
        short.one.end()
        ordinary.one.end()

    def test_changes_of_the_topic_count_at_once(self) -> None:
        """A topic that is changed or deleted is looked at again."""
        side = Side(lane=True)
        self.assertEqual(side.client.ask(310, send_ext(queue_id=3)).code, 0)
        self.assertEqual(side.taken, 1)
        ext = {"topic": "T", "defaultTopic": "x", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        side.client.ask(17, ext | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})
        self.assertEqual(side.client.ask(310, send_ext(queue_id=3)).code, 1)
        side.client.ask(215, {"topic": "T"})
        self.assertEqual(side.client.ask(310, send_ext(c="none")).code, 17)
        side.client.ask(25, {}, b"brokerPermission=4")
        side.one.end()

    def test_only_where_nothing_waits(self) -> None:
        """A broker that syncs or replicates before it answers has no lane."""
        self.assertTrue(answers_at_once(setup_of({}).store))
        self.assertFalse(answers_at_once(setup_of({"flushDiskType": FlushDiskType.SYNC_FLUSH.name}).store))
        self.assertFalse(answers_at_once(setup_of({"brokerRole": "SYNC_MASTER"}).store))
        self.assertFalse(answers_at_once(setup_of({"brokerRole": "SLAVE"}).store))
