"""The short way beside the ordinary way: the same answers and the same bytes in the log."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import lanes
from rmq.broker.lanes import SendChunkLane, answers_at_once
from rmq.remoting.channel import Channel
from rmq.store.config import FlushDiskType
from rmq.store.messages import PutResult
from rmq.wire.api.sending import SendMessageV2Header
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from tests.broker.harness import OneBroker, RawClient, send_ext, setup_of
from tests.remoting.peer import Peer
from tests.seeds import SEED

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


#: which of the short ways a broker has
BOTH, DECODED, NONE = "for received bytes and for decoded requests", "for decoded requests", "none"
#: as BOTH, without the compiled twin
PYTHON = "for received bytes and for decoded requests, in Python"


class Side:
    """A broker with its lanes or without, and what it answered."""

    def __init__(self, lanes: str, *, values: Mapping[str, str] | None = None) -> None:
        self.one = OneBroker(values, seed=5)
        self.table = table = self.one.service.responders
        self._taken = 0
        lane: Any = table.chunk_lanes[SendChunkLane.code]
        self.compiled = lane
        chunk_lane: Any = self.compiled if isinstance(self.compiled, SendChunkLane) else self.compiled.twin
        assert isinstance(chunk_lane, SendChunkLane)
        self.taker = chunk_lane.taker
        take = self.taker.take

        def counted(header: SendMessageV2Header, body: bytes, channel: Channel) -> PutResult | None:
            result = take(header, body, channel)
            self._taken += result is not None
            return result

        self.taker.take = counted  # type: ignore[method-assign]
        if lanes == PYTHON:
            table.chunk_lanes = {SendChunkLane.code: chunk_lane}
        elif lanes != BOTH:
            table.chunk_lanes = {}
        if lanes == NONE:
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

    @property
    def taken(self) -> int:
        """How many messages went a short way."""
        return self._taken + getattr(self.compiled, "taken", 0)

    def log(self) -> bytes:
        store = self.one.state.store
        return bytes(store.read(0, store.end_offset))

    def derived(self) -> list[object]:
        """Return the bytes of all queues and index files."""
        store = self.one.state.store
        store.write_buffers()
        index = store._index
        assert index is not None
        queues: list[object] = [(queue.topic, queue.queue_id, queue.read(0, queue.end)) for queue in store._queues]
        for file in map(index._file, index.files):
            queues.append(file.read_at(0, file.size))
        return queues


class SendLaneTests(SynchronousTestCase):
    def test_same_answers_and_same_bytes(self) -> None:
        """Whatever is sent, the lanes leave no trace: answers, log and counters are those of the ordinary way."""
        seed = SEED
        sides = [Side(BOTH), Side(DECODED), Side(NONE)]
        commands = [random_send(random.Random(f"{seed}/{number}")) for number in range(400)]
        # all sides draw queues from the same generator, at the same sends
        answers = [side.replay(commands) for side in sides]
        for short, found in zip(sides[:2], answers, strict=False):
            self.assert_same(short, sides[2], found, answers[2], seed)
            self.assertGreater(short.taken, 20, f"seed {seed}: the lane took next to nothing")
        self.assertEqual(sides[2].taken, 0)
        self.end(*sides)

    def test_same_in_any_pieces(self) -> None:
        """That holds for pipelined requests too, however the stream is cut and where damaged."""
        seed = SEED
        chance = random.Random(seed)
        sides = [Side(BOTH), Side(NONE)]
        peers = [Peer(side.table) for side in sides]
        for number in range(60):
            stream = b"".join(
                encode_command(random_send(random.Random(f"{seed}/{number}/{part}")))
                for part in range(chance.randrange(1, 12))
            )
            if chance.random() < 0.1:
                at = chance.randrange(len(stream))
                stream = stream[:at] + bytes([chance.randrange(256)]) + stream[at + 1 :]
            cuts = sorted(chance.randrange(len(stream)) for _ in range(chance.choice((0, 0, 1, 3))))
            pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
            for peer in peers:
                for piece in pieces:
                    peer.send(piece)
            answers = [peer.received() for peer in peers]
            left, right = (list(map(encode_command, found)) for found in answers)
            self.assertEqual(left, right, f"seed {seed}, round {number}")
            self.assertEqual(peers[0].is_cut, peers[1].is_cut)
            if peers[0].is_cut or peers[0].channel.held_bytes:
                peers = [Peer(side.table) for side in sides]
        self.assert_same(sides[0], sides[1], [], [], seed)
        self.assertGreater(sides[0].taken, 20)
        self.end(*sides)

    def assert_same(self, short: Side, ordinary: Side, left: list[bytes], right: list[bytes], seed: int) -> None:
        self.assertEqual(len(left), len(right), f"seed {seed}")
        for number, (mine, theirs) in enumerate(zip(left, right, strict=True)):
            self.assertEqual(mine, theirs, f"seed {seed}, answer {number}")
        self.assertEqual(short.log(), ordinary.log(), f"seed {seed}")
        self.assertEqual(short.derived(), ordinary.derived(), f"seed {seed}")
        stats = [side.one.state.stats for side in (short, ordinary)]
        for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "BROKER_PUT_NUMS"):
            self.assertEqual(stats[0].totals(name), stats[1].totals(name), f"seed {seed}")
        self.assertEqual(stats[0].puts.total, stats[1].puts.total)
        counts = [sum(side.table.stats.counts.values()) for side in (short, ordinary)]
        self.assertEqual(counts[0], counts[1], f"seed {seed}")

    def end(self, *sides: Side) -> None:
        for side in sides:
            side.one.end()
            self.flushLoggedErrors()

    def test_same_where_something_waits(self) -> None:
        """Brokers that answer later answer the same too: after the sync, and with code 11 when there is no slave."""
        seed = SEED
        for key, value in (("flushDiskType", "SYNC_FLUSH"), ("brokerRole", "SYNC_MASTER")):
            sides = [Side(lanes, values={key: value}) for lanes in (BOTH, PYTHON, NONE)]
            commands = [random_send(random.Random(f"{seed}/{number}")) for number in range(200)]
            answers = [sorted(side.replay(commands)) for side in sides]
            for side, found in zip(sides[:2], answers, strict=False):
                self.assert_same(side, sides[2], found, answers[2], seed)
                # 37 on average, give or take 6
                self.assertGreater(side.taken, 5, f"seed {seed}: the lane took next to nothing")
                self.assertEqual(side.table.stats.refusals, sides[2].table.stats.refusals)
            self.end(*sides)

    def test_the_compiled_lane_takes_what_clients_send(self) -> None:
        """Where it is compiled, the messages of Java clients are taken there: keys, tags, long bodies, many at once."""
        side, ordinary = Side(BOTH), Side(NONE)
        commands = []
        for number in range(600):
            text = f"UNIQ_KEY\x017F00000100002A9F0000{number:012X}\x02WAIT\x01true\x02TAGS\x01Tag{number % 3}"
            if number % 5 == 0:
                text += "\x02KEYS\x01" + " ".join(f"key-{number}-{n}" for n in range(number % 7))
            body = bytes([number % 251]) * (number * 7 % 3000)
            commands.append(
                RemotingCommand(310, ext_fields=send_ext(queue_id=number % 4, props=text, m="false"), body=body)
            )
        left, right = side.replay(commands), ordinary.replay(commands)
        self.assert_same(side, ordinary, left, right, 0)
        if (compiled := getattr(side.compiled, "taken", None)) is None:
            self.assertIsInstance(side.compiled, SendChunkLane)
        else:
            self.assertGreater(compiled, 550)
        self.end(side, ordinary)

    def test_properties_around_a_key(self) -> None:
        """What is kept of properties gives the same strings as taking them apart, whatever stands around the key."""
        seed = SEED
        chance = random.Random(seed)
        side = Side(BOTH)
        taker = side.taker
        kept = 0
        for _ in range(4000):
            text = random_properties(chance)
            if chance.random() < 0.7:
                text = text.replace("UNIQ_KEY\x01", f"UNIQ_KEY\x01{chance.choice(('', 'k', 'l' * 32, 'ü', '1'))}")
            self.assertEqual(taker._stored(text), taker._stored_slowly(text), f"seed {seed}, {text!r}")
            kept = max(kept, len(taker._around))
        self.assertGreater(kept, 100)
        self.end(side)

    def test_bounded(self) -> None:
        """No more than MAX_AROUND of them are kept."""
        side = Side(BOTH)
        self.patch(lanes, "MAX_AROUND", 10)
        for number in range(35):
            side.taker._stored(f"UNIQ_KEY\x01k\x02TAGS\x01{number}")
            self.assertLessEqual(len(side.taker._around), 10)
        self.end(side)

    def test_a_planted_difference_is_seen(self) -> None:
        """Two sides that were sent different things do not compare equal."""
        short, ordinary = Side(BOTH), Side(NONE)
        left = short.replay([RemotingCommand(310, ext_fields=send_ext(h="1"))])
        right = ordinary.replay([RemotingCommand(310, ext_fields=send_ext(h="2"))])
        self.assertEqual(left, right)
        self.assertNotEqual(short.log(), ordinary.log())
        short.one.end()
        ordinary.one.end()

    def test_changes_of_the_topic_count_at_once(self) -> None:
        """A topic that is changed or deleted is looked at again."""
        side = Side(BOTH)
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
        """A broker that syncs or replicates before it answers has no lane that answers at once; a slave has none."""
        self.assertTrue(answers_at_once(setup_of({}).store))
        self.assertFalse(answers_at_once(setup_of({"flushDiskType": FlushDiskType.SYNC_FLUSH.name}).store))
        self.assertFalse(answers_at_once(setup_of({"brokerRole": "SYNC_MASTER"}).store))
        self.assertFalse(answers_at_once(setup_of({"brokerRole": "SLAVE"}).store))
