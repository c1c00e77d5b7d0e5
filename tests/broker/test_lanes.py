"""The short way beside the ordinary way: the same answers and the same bytes in the log."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import lanes
from rmq.broker.lanes import answers_at_once
from rmq.broker.topics import topic
from rmq.runtime.clock import now_ms
from rmq.store import dispatch
from rmq.store.appender import Host
from rmq.store.config import FlushDiskType
from rmq.store.messages import Message
from rmq.wire.command import ONEWAY, RemotingCommand, decode_commands, encode_command
from rmq.wire.frames import PREFIX
from rmq.wire.record import SCHEDULE_TOPIC, BatchEntry, encode_batch
from tests.broker.harness import OneBroker, RawClient, send_ext, setup_of
from tests.needs import need_compiled
from tests.otherclients import LONG_NAMES, as_others_write, pieces
from tests.remoting.peer import LeanTransport, Peer, RecordingTransport, one_turn
from tests.seeds import SEED

HOST = (bytes((10, 0, 0, 1)), 10911)
TOPICS = ("T", "T", "T", "T", "Multi", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "a b", "", "New", "t" * 127, "t" * 128)
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "CLUSTER", "own", "ü", "")
PLAIN_NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "own")
PLAIN_VALUES = ("a", "true", "x y", " k  l ", "7F00000100002A9F")
VALUES = (
    "a",
    "true",
    "false",
    "1",
    "0",
    "x y",
    "ü€😀",
    "",
    "-1",
    "\x00",
    '"\\',
    "标签",
    "\u3000x\xa0",
    "\u2028 \x85",
    "\uffff",
)


def random_properties(rng: random.Random) -> str:
    """Return properties that are mostly well-formed and sometimes anything but."""
    if rng.random() < 0.5:
        pairs = [f"{name}\x01{rng.choice(PLAIN_VALUES)}" for name in rng.sample(PLAIN_NAMES, k=rng.randrange(1, 5))]
        return "\x02".join(pairs)
    pairs = [f"{rng.choice(NAMES)}\x01{rng.choice(VALUES)}" for _ in range(rng.randrange(5))]
    text = "\x02".join(pairs) + rng.choice(["", "\x02", "\x02\x02"])
    if rng.random() < 0.1:
        text = "".join(rng.choice("ab\x01\x02") for _ in range(rng.randrange(12)))
    return text


def random_batch(rng: random.Random, properties: Callable[[random.Random], str]) -> bytes:
    """Return the body of a batch, rarely a damaged one."""
    entries = [
        BatchEntry(rng.randbytes(rng.randrange(20)), properties(rng), rng.randrange(-5, 5))
        for _ in range(rng.randrange(12))
    ]
    body = encode_batch(entries)
    if rng.random() < 0.1:
        body = body[: rng.randrange(len(body) + 1)] + rng.randbytes(rng.randrange(2))
    return body


def plain_entry(rng: random.Random) -> str:
    """Return properties of an entry, as clients write them."""
    pairs = [f"{name}\x01{rng.choice(PLAIN_VALUES)}" for name in rng.sample(PLAIN_NAMES, k=rng.randrange(4))]
    return "\x02".join(pairs) + rng.choice(["", "", "\x02"])


def with_long_names(command: RemotingCommand) -> RemotingCommand:
    """Return the same send with the code and the names that Go's client uses."""
    fields = {LONG_NAMES.get(letter, letter): value for letter, value in command.ext_fields.items()}
    return RemotingCommand(
        10,
        flag=command.flag,
        version=command.version,
        ext_fields=dict(sorted(fields.items())),
        body=command.body,
        serialize_type=command.serialize_type,
    )


def random_send(rng: random.Random) -> RemotingCommand:
    """Return a send that a lane may take, or one that it must leave alone."""
    command = short_send(rng)
    return with_long_names(command) if command.code == 310 and rng.random() < 0.3 else command


def short_send(rng: random.Random) -> RemotingCommand:
    """Return a send whose fields have letters."""
    if rng.random() < 0.3:
        batch_ext = send_ext(queue_id=rng.randrange(4), props=rng.choice(["", "WAIT\x01true"]), m="true")
        return RemotingCommand(320, ext_fields=batch_ext, body=random_batch(rng, plain_entry))
    if rng.random() < 0.5:
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
        body=rng.choice([rng.randbytes(rng.randrange(30)), random_batch(rng, random_properties)]) or None,
        serialize_type=rng.choice([0, 0, 0, 1]),
    )


class Side:
    """A broker with its lane or without, and what it answered."""

    def __init__(self, *, with_lane: bool, values: Mapping[str, str] | None = None) -> None:
        self.one = OneBroker(values, seed=5)
        self.table = table = self.one.service.responders
        #: how many messages lanes stored, and how many of them in batches
        self.taken = self.in_batches = 0
        #: batches that lanes stored, and how often they asked for it
        self.batches = self.batch_calls = 0
        #: how often they asked the store
        self.calls = 0
        store = self.one.service.store
        append_many = store.append_many

        def counted(sends: Any, store_host: Host) -> int:
            count = append_many(sends, store_host)
            self.calls += 1
            self.taken += count
            if getattr(sends, "is_batch", False):
                self.in_batches += count
                self.batches += sends.requests
                self.batch_calls += 1
            return count

        store.append_many = counted  # type: ignore[method-assign]
        # only what lanes store is to be counted
        self.one.service.delays._writes_many = False
        if not with_lane:
            table.chunk_lanes = {}
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
        store, data = self.one.service.store, b""
        while len(data) < store.end_offset:  # a read ends where a file does
            data += store.read(len(data), store.end_offset - len(data))
        return data

    def derived(self) -> list[object]:
        """Return the bytes of all queues and index files."""
        store = self.one.service.store
        store.write_buffers()
        index = store._index
        assert index is not None
        queues: list[object] = [(queue.topic, queue.queue_id, queue.read(0, queue.end)) for queue in store._queues]
        for file in map(index._file, index.files):
            queues.append(file.read_at(0, file.size))
        return queues


class SendLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def test_max_message_size_counts_from_the_next_start(self) -> None:
        """A batch may be as long as a message, on every way: what maxMessageSize was when the broker started."""
        for with_lane in (True, False):
            side = Side(with_lane=with_lane)
            side.client.ask(25, body=b"maxMessageSize=10")
            body = encode_batch([BatchEntry(b"longer than that", "", 0)])
            self.assertEqual(side.client.ask(320, send_ext("T", m="true"), body).code, 0)
            self.assertEqual(side.client.ask(310, send_ext("T"), body).code, 0)
            side.one.end()

    def test_same_answers_and_same_bytes(self) -> None:
        """Whatever is sent, the lanes leave no trace: answers, log and counters are those of the ordinary way."""
        seed = SEED
        sides = [Side(with_lane=True), Side(with_lane=False)]
        commands = [random_send(random.Random(f"{seed}/{number}")) for number in range(400)]
        # both sides draw queues from the same generator, at the same sends
        left, right = (side.replay(commands) for side in sides)
        self.assert_same(sides[0], sides[1], left, right, seed)
        self.assertGreater(sides[0].taken - sides[0].in_batches, 20, f"seed {seed}: the lane took next to nothing")
        self.assertGreater(sides[0].in_batches, 20, f"seed {seed}: the lane took hardly a batch")
        self.assertEqual(sides[1].taken, 0)
        self.end(*sides)

    def test_long_names(self) -> None:
        """The lane takes sends with the long names of code 10, in one chunk with others too, delayed ones included."""
        side = Side(with_lane=True)
        peer = Peer(side.table)
        sends = [RemotingCommand(310, ext_fields=send_ext(queue_id=number % 4), body=b"x") for number in range(6)]
        sends[3] = RemotingCommand(310, ext_fields=send_ext(props="DELAY\x012"), body=b"x")
        sends[1::2] = map(with_long_names, sends[1::2])
        for taken in 0, 6:  # the first of a queue goes the ordinary way
            side.taken = 0
            peer.send(b"".join(map(encode_command, sends)))
            self.assertEqual([answer.code for answer in peer.received()], [0] * 6)
            self.assertGreaterEqual(side.taken, taken)

    def test_null_remark(self) -> None:
        """The lane takes sends whose header has a remark that is null, as Rust's client writes it."""
        side = Side(with_lane=True)
        peer = Peer(side.table)
        remark = b'"remark":null,'
        frame = encode_command(RemotingCommand(310, ext_fields=send_ext(queue_id=0), body=b"x"))
        total, size = PREFIX.unpack_from(frame)
        prefix = PREFIX.pack(total + len(remark), size + len(remark))
        for _ in range(2):  # the first of a connection goes the ordinary way
            side.taken = 0
            peer.send(prefix + b"{" + remark + frame[PREFIX.size + 1 :])
            self.assertEqual([answer.code for answer in peer.received()], [0])
        self.assertEqual(side.taken, 1)

    def test_same_in_any_pieces(self) -> None:
        """That holds for pipelined requests too, however the stream is cut and where damaged."""
        seed = SEED
        chance = random.Random(seed)
        sides = [Side(with_lane=True), Side(with_lane=False)]
        peers = [Peer(side.table) for side in sides]
        for number in range(150):
            stream = b"".join(
                as_others_write(chance, random_send(random.Random(f"{seed}/{number}/{part}")))
                for part in range(chance.randrange(1, 12))
            )
            if chance.random() < 0.1:
                at = chance.randrange(len(stream))
                stream = stream[:at] + bytes([chance.randrange(256)]) + stream[at + 1 :]
            parts = pieces(chance, stream)
            for peer in peers:
                for part in parts:
                    peer.send(part)
            answers = [peer.received() for peer in peers]
            left, right = (list(map(encode_command, found)) for found in answers)
            self.assertEqual(left, right, f"seed {seed}, round {number}")
            self.assertEqual(peers[0].is_cut, peers[1].is_cut)
            if peers[0].is_cut or peers[0].channel.held_bytes:
                peers = [Peer(side.table) for side in sides]
        self.assert_same(sides[0], sides[1], [], [], seed)
        self.assertGreater(sides[0].taken, 20)
        self.end(*sides)

    def test_same_when_many_send_in_one_turn(self) -> None:
        """That holds for what several connections send in one turn of the reactor, which is stored together."""
        self.many_in_one_turn({})

    def test_same_when_many_wait_together(self) -> None:
        """That holds where the answers come later, after the sync or with code 11 for want of a slave."""
        flush, master = {"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}
        for values in (flush, master, flush | master):
            self.many_in_one_turn(values)

    def test_more_wait_than_are_kept(self) -> None:
        """What is not kept in memory until its sync is read from the log, and queues and index are the same."""
        self.patch(dispatch, "MAX_PENDING", 2)
        self.many_in_one_turn({"flushDiskType": "SYNC_FLUSH"})

    def test_topic_deleted_while_many_wait(self) -> None:
        """Messages that were written together and wait for their sync do not come back with a topic made again."""
        sides = [Side(with_lane=way, values={"flushDiskType": "SYNC_FLUSH"}) for way in (True, False)]
        peers = [
            [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(2)] for side in sides
        ]
        for side in sides:
            side.client.ask(310, send_ext("U"))
        props = "UNIQ_KEY\x017F00000100002A9F0000000000000001"

        fields = [send_ext(name, queue_id=0, props=props, m="false") for name in "TUT"]
        streams = [
            b"".join(encode_command(RemotingCommand(310, ext_fields=ext, body=b"%d" % number)) for ext in fields)
            for number in range(3)
        ]
        for number, stream in enumerate(streams):
            if number == 2:
                for side in sides:
                    side.one.service.store.delete_topic("T")
            if number:
                order = one_turn([(peer, stream) for peer in peers[0]])
            else:  # the first bytes of a connection take the ordinary way
                order = [0, 1]
                for peer in peers[0]:
                    peer.send(stream)
            for at in order:
                peers[1][at].send(stream)
        for side in sides:
            side.one.service.store.delete_topic("U")
            side.one.world.run_for(3)
        for mine, theirs in zip(*peers, strict=True):
            left, right = (list(map(encode_command, peer.received())) for peer in (mine, theirs))
            self.assertEqual(left, right)
        self.assert_same(sides[0], sides[1], [], [], 0)
        store = sides[0].one.service.store
        self.assertEqual((store.max_offset("T", 0), store.max_offset("U", 0)), (4, 0))
        folders = sides[0].one.node.disk.list_dir(f"{store.config.store_path_root_dir}/consumequeue")
        self.assertEqual(("T" in folders, "U" in folders), (True, False))
        self.assertGreater(sides[0].taken, 2 * sides[0].calls)
        self.end(*sides)

    def many_in_one_turn(self, values: dict[str, str]) -> None:
        chance = random.Random(SEED)
        waits = bool(values)
        # small files: often one ends within what is stored together; deliveries would come at times of their own
        values = values | {"mappedFileSizeCommitLog": "8192", "messageDelayLevel": "2h"}
        sides = [Side(with_lane=with_lane, values=values) for with_lane in (True, False)]
        for side in sides:
            for queue in range(4):
                side.client.ask(310, send_ext("U", queue_id=queue))
            # both store in the same milliseconds: in the middle of one
            side.one.world.run_for(100.0005 - side.one.world.now_s)
        kinds: tuple[type[RecordingTransport], ...] = (LeanTransport, RecordingTransport)
        peers = [
            [Peer(side.table, transport=kind("192.0.2.7", 40_000 + number)) for number in range(8)]
            for side, kind in zip(sides, kinds, strict=True)
        ]
        for number in range(80):
            pieces = []
            for part in range(chance.randrange(2, 9)):
                source = random.Random(f"{SEED}/{number}/{part}")
                sends = [random_send(source) for _ in range(chance.choice((1, 1, 3, 5)))]
                if number % 2:  # nothing but ordinary ones
                    props = f"UNIQ_KEY\x01{number:016X}{part:016X}\x02KEYS\x01a b\x02TAGS\x01x"
                    name = "TU"[part % 2]
                    fields = [send_ext(name, queue_id=queue % 4, props=props, m="false") for queue in range(len(sends))]
                    sends = [RemotingCommand(310, ext_fields=ext, body=b"x" * part) for ext in fields]
                    if number % 4 == 3:
                        entries = [BatchEntry(b"x" * part, props, part)] * len(sends)
                        fields = [ext | {"m": "true", "i": source.choice(("", "A\x01b"))} for ext in fields]
                        sends = [RemotingCommand(320, ext_fields=ext, body=encode_batch(entries)) for ext in fields]
                stream = b"".join(map(encode_command, sends))
                pieces.append(
                    stream if number % 2 or chance.random() < 0.9 else stream[: chance.randrange(1, len(stream))]
                )
            order = one_turn(list(zip(peers[0], pieces, strict=False)))
            self.assertEqual(sorted(order), list(range(len(pieces))))
            for at in order:
                peers[1][at].send(pieces[at])
            if waits:
                for side in sides:
                    side.one.world.run_for(1)
            for at, (mine, theirs) in enumerate(zip(*peers, strict=True)):
                left, right = (list(map(encode_command, peer.received())) for peer in (mine, theirs))
                if waits:  # a refusal does not wait
                    left, right = sorted(left), sorted(right)
                self.assertEqual(left, right, f"seed {SEED}, round {number}, connection {at}, {values}")
                self.assertEqual(mine.is_cut, theirs.is_cut)
                if mine.is_cut or mine.channel.held_bytes:
                    for side, kind, all_of_side in zip(sides, kinds, peers, strict=True):
                        all_of_side[at] = Peer(side.table, transport=kind("192.0.2.7", 40_000 + at))
        self.assert_same(sides[0], sides[1], [], [], SEED)
        self.assertGreater(sides[0].taken, 1.6 * sides[0].calls, f"seed {SEED}: hardly anything was stored together")
        self.assertGreater(sides[0].in_batches, 100, f"seed {SEED}")
        self.assertGreater(
            sides[0].batches, 1.3 * sides[0].batch_calls, f"seed {SEED}: each batch was stored for itself"
        )
        self.end(*sides)

    def test_a_turn_that_closes_a_connection(self) -> None:
        """A connection that another event of the turn closed has nothing stored; the others have."""
        side = Side(with_lane=True)
        peers = [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(3)]
        frame = encode_command(RemotingCommand(310, ext_fields=send_ext(props="", m="false"), body=b"x"))
        for peer in peers:
            peer.send(frame)
            peer.received()
        before = side.one.service.store.max_offset("T", 0)
        paths = [getattr(peer.transport, "fast_path") for peer in peers]  # noqa: B009
        (unfinished,) = {path(frame, True) for path in paths}
        peers[1].channel.close("an administrator wants it")
        found = [(paths.index(path), answer) for path, _, answer in unfinished.finish()]
        self.assertEqual(sorted(number for number, answer in found if answer), [0, 2])
        self.assertIn((1, None), found)
        self.assertEqual(side.one.service.store.max_offset("T", 0), before + 2)
        self.assertEqual(unfinished.finish(), [])
        self.end(side)

    def test_a_turn_that_fails(self) -> None:
        """An error of the lane closes the connections of the turn: whether their messages are stored is unknown."""
        side = Side(with_lane=True)
        peers = [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(2)]
        frame = encode_command(RemotingCommand(310, ext_fields=send_ext(props="", m="false"), body=b"x"))
        for peer in peers:
            peer.send(frame)

        def fail(*_: object) -> int:
            raise ValueError("bug")

        side.one.service.store.append_many = fail  # type: ignore[assignment,method-assign]
        one_turn([(peer, frame) for peer in peers])
        self.assertEqual([peer.is_cut for peer in peers], [True, True])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        self.end(side)

    def test_a_turn_that_waits(self) -> None:
        """The write is part of the time that answers took; when enough of them wait, the lane takes no more."""
        self.patch(lanes, "MAX_WAITING_ANSWERS", 3)
        side = Side(with_lane=True, values={"flushDiskType": "SYNC_FLUSH"})
        peers = [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(3)]
        frame = encode_command(RemotingCommand(310, ext_fields=send_ext(props="", m="false"), body=b"x"))
        for peer in peers:  # the first bytes of a connection take the ordinary way
            peer.send(frame)
        side.one.world.run_for(1)
        self.assertEqual([len(peer.received()) for peer in peers], [1, 1, 1])
        store, clock = side.one.service.store, Clock()
        append_many = store.append_many

        def slow(sends: Any, store_host: Host) -> int:
            clock.advance(2)
            return append_many(sends, store_host)

        store.append_many = slow  # type: ignore[method-assign]
        side.table.chunk_lanes[310]._later.clock = clock  # type: ignore[attr-defined]
        taken, calls, before = side.taken, side.calls, side.table.stats.sums[310]
        for _ in range(2):
            one_turn([(peer, frame) for peer in peers])
        self.assertEqual((side.taken, side.calls), (taken + 3, calls + 1), "the second turn was for the responder")
        side.one.world.run_for(1)
        self.assertEqual([len(peer.received()) for peer in peers], [2, 2, 2])
        self.assertGreaterEqual(side.table.stats.sums[310] - before, 6.0)
        self.end(side)

    def test_a_failed_sync(self) -> None:
        """What waits for a sync that fails is refused by lanes as by the responder: without a place in the log."""
        found = []
        for with_lane in (True, False):
            side = Side(with_lane=with_lane, values={"flushDiskType": "SYNC_FLUSH"})
            side.client.ask(310, send_ext())
            side.one.node.disk.fail_syncs = 1
            peer = Peer(side.table)
            ext, batch = send_ext(m="false"), encode_batch([BatchEntry(b"x", "", 0)])
            peer.tell(
                RemotingCommand(310, 1, ext_fields=ext, body=b"x"), RemotingCommand(310, 2, ONEWAY, ext_fields=ext)
            )
            peer.tell(RemotingCommand(320, 3, ext_fields=ext | {"m": "true"}, body=batch))
            side.one.world.run_for(1)
            self.assertEqual(side.taken > 0, with_lane)
            stats = side.one.service.stats
            found.append(
                (peer.transport.read(), stats.put_failures, side.table.stats.refusals, side.table.stats.counts)
            )
            self.flushLoggedErrors()
        self.assertEqual(found[0], found[1])
        self.assertEqual([each.code for each in decode_commands(found[0][0])], [14, 14])

    def test_one_way_sends_wait_for_nothing(self) -> None:
        """However many come while disk and slaves are slow, they take no place of those who wait; all are stored."""
        self.patch(lanes, "MAX_WAITING_ANSWERS", 2)
        for values in ({"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}):
            for with_lane in (True, False):
                side = Side(with_lane=with_lane, values=values)
                store, stats = side.one.service.store, side.one.service.stats
                side.client.ask(310, send_ext())
                before = dict(stats.totals("TOPIC_PUT_NUMS"))["T"], dict(side.table.stats.refusals)
                self.patch(store, "wait_for", lambda *_: self.fail("a one-way send waits"))
                peers = [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(2)]
                frame = encode_command(RemotingCommand(310, 7, ONEWAY, ext_fields=send_ext(m="false"), body=b"x"))
                for _ in range(2):
                    for peer in peers:
                        peer.send(frame * 3)
                if with_lane:
                    one_turn([(peer, frame * 3) for peer in peers])
                total = before[0] + 6 * (2 + with_lane)
                self.assertEqual((len(store._completion), dict(stats.totals("TOPIC_PUT_NUMS"))), (0, {"T": total}))
                self.assertEqual(side.table.stats.refusals, before[1])
                side.one.world.run_for(1)
                self.assertEqual(store.max_offset("T", 0), total)
                self.assertEqual([peer.received() for peer in peers], [[], []])
                self.assertEqual(side.taken > 15, with_lane)
                self.end(side)

    def test_one_way_sends_are_counted_at_once(self) -> None:
        """Where others of the same write wait for the disk, one-way sends are in the statistics before these are."""
        entries = encode_batch([BatchEntry(b"x" * size, "", 0) for size in (3, 5, 7)])
        turn = [("T", ONEWAY), ("T", 0), ("U", ONEWAY), ("T", ONEWAY), ("U", 0), ("T", 0)]
        for code, body, few, all_of_them in ((310, b"x", (2, 4), (1, 2)), (320, entries, (6, 12), (3, 6))):
            found: list[list[tuple[int, ...]]] = []
            for with_lane in (True, False):
                side = Side(with_lane=with_lane, values={"flushDiskType": "SYNC_FLUSH"})
                side.one.service.topics.put(topic("U", 1))
                names = "TU"
                for name in names:
                    side.client.ask(310, send_ext(name))
                stats, taken = side.one.service.stats, side.taken
                numbers, sizes = (
                    [stats.counter(kind, name) for name in names] for kind in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
                )
                counters = numbers + sizes
                before = [counter.value for counter in counters] + [counter.times for counter in counters]
                peer = Peer(side.table)
                fields = [(send_ext(name, m=str(code == 320).lower()), flag) for name, flag in turn]
                peer.send(
                    b"".join(encode_command(RemotingCommand(code, 7, f, ext_fields=e, body=body)) for e, f in fields)
                )
                for seconds in (0, 1):
                    side.one.world.run_for(seconds)
                    now = [counter.value for counter in counters] + [counter.times for counter in counters]
                    found.append([tuple(after - first for after, first in zip(now, before, strict=True))])
                self.assertEqual(side.taken > taken, with_lane)
                self.end(side)
            self.assertEqual(found[:2], found[2:])
            self.assertEqual(
                [counts[0][:2] for counts in found[:2]], [(few[0], all_of_them[0]), (few[1], all_of_them[1])]
            )

    def assert_same(self, short: Side, ordinary: Side, left: list[bytes], right: list[bytes], seed: int) -> None:
        self.assertEqual(len(left), len(right), f"seed {seed}")
        for number, (mine, theirs) in enumerate(zip(left, right, strict=True)):
            self.assertEqual(mine, theirs, f"seed {seed}, answer {number}")
        self.assertEqual(short.log(), ordinary.log(), f"seed {seed}")
        self.assertEqual(short.derived(), ordinary.derived(), f"seed {seed}")
        stats = [side.one.service.stats for side in (short, ordinary)]
        for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "BROKER_PUT_NUMS"):
            totals = [dict(found.totals(name)) for found in stats]  # a lane may count a topic later
            self.assertEqual(totals[0], totals[1], f"seed {seed}")
            for key in totals[0]:
                times = [found.counter(name, key).times for found in stats]
                self.assertEqual(times[0], times[1], f"seed {seed}: {name} {key}")
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
        flush, master = {"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}
        for values in (flush, master, flush | master):
            sides = [Side(with_lane=with_lane, values=values) for with_lane in (True, False)]
            commands = [random_send(random.Random(f"{seed}/{number}")) for number in range(200)]
            left, right = (sorted(side.replay(commands)) for side in sides)
            self.assert_same(sides[0], sides[1], left, right, seed)
            self.assertGreater(sides[0].taken, 10, f"seed {seed}: the lane took next to nothing")
            self.assertEqual(*(side.table.stats.refusals for side in sides))
            self.end(*sides)

    def test_takes_what_clients_send(self) -> None:
        """The messages of Java clients are taken: keys, tags, long bodies, many at once."""
        side, ordinary = Side(with_lane=True), Side(with_lane=False)
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
        self.assertGreater(side.taken, 550)
        self.end(side, ordinary)

    def test_takes_any_language(self) -> None:
        """Tags, keys and own properties may be of any characters: they are hashed and stored as by the responder."""
        letters = "aä标\u0800\uffff😀\U0010ffff"
        chance = random.Random(SEED)
        side, ordinary = Side(with_lane=True), Side(with_lane=False)
        words = ["".join(chance.choices(letters, k=chance.randrange(1, 6))) for _ in range(100)]
        texts = [
            f"TAGS\x01{word}\x02KEYS\x01{words[7]} {word}\x02{word}\x01{word}\x02UNIQ_KEY\x01{word}" for word in words
        ]
        commands = [RemotingCommand(310, ext_fields=send_ext(props=text, m="false"), body=b"x") for text in texts]
        entries = [BatchEntry(b"x", text, 0) for text in texts[:32]]
        ext = send_ext(props=f"own\x01{words[0]}", m="true")
        commands.append(RemotingCommand(320, ext_fields=ext, body=encode_batch(entries)))
        left, right = side.replay(commands), ordinary.replay(commands)
        self.assert_same(side, ordinary, left, right, SEED)
        self.assertEqual(side.taken, 132)
        self.end(side, ordinary)

    def test_batches_of_clients(self) -> None:
        """
        A batch is stored in one piece, numbered in a row, answered with all ids and counted as one request.

        Properties of the batch follow those of each message; nothing is stored of a batch that is not whole.
        """
        side, ordinary = Side(with_lane=True), Side(with_lane=False)
        commands, sent = [], 0
        for number in range(60):
            entries = [
                BatchEntry(
                    bytes(n * number % 200), f"UNIQ_KEY\x01{number:08X}{n:08X}\x02WAIT\x01true\x02TAGS\x01T{n}", n
                )
                for n in range(1, number * 3)
            ]
            body = encode_batch(entries)
            if number % 7 == 1:
                body = body[:-1]
            elif number:
                sent += len(entries)
            ext = send_ext(queue_id=number % 4, props=("", "WAIT\x01true", "own\x01x y\x02")[number % 3], m="true")
            commands.append(RemotingCommand(320, ext_fields=ext, body=body))
        left, right = side.replay(commands), ordinary.replay(commands)
        self.assert_same(side, ordinary, left, right, 0)
        self.assertEqual(side.one.service.stats.puts.total, sent + 1)
        self.assertEqual(side.in_batches, side.taken)
        # the first batch of each queue makes it
        self.assertGreater(side.taken, sent - 4 * 180)
        self.end(side, ordinary)

    def test_batches_that_are_not_ordinary(self) -> None:
        """The lane takes no batch with a delay, of a topic that does not exist, that is too long, or of no message."""
        plain = encode_batch([BatchEntry(b"x", "")])
        for ext, body, code in (
            (send_ext(props="DELAY\x011"), plain, 13),
            (send_ext(), encode_batch([BatchEntry(b"x", "DELAY\x011")]), 13),
            (send_ext(f="4"), plain, 13),
            (send_ext("none", c="none"), plain, 17),
            (send_ext(queue_id=9), plain, 1),
            (send_ext(), b"", 13),
            (send_ext(), encode_batch([BatchEntry(bytes(12_000), "")] * 2), 13),
            # its records need 64 KiB more than the longest message
            (send_ext(), encode_batch([BatchEntry(b"", "")] * 1000), 13),
        ):
            side = Side(with_lane=True, values={"maxMessageSize": "23000"})
            side.one.service.topics.put(topic("T", 4))
            side.one.world.run_for(1)
            self.assertEqual(side.client.ask(320, send_ext(), plain).code, 0)
            self.assertEqual(side.taken, 1)
            end = side.one.service.store.end_offset
            self.assertEqual(side.client.ask(320, ext, body).code, code)
            self.assertEqual((side.taken, side.one.service.store.end_offset), (1, end))
            self.end(side)

    def test_queues_that_were_deleted(self) -> None:
        """A send after the queues of its topic were deleted goes to a new queue, not to the one that is gone."""
        side = Side(with_lane=True)
        store = side.one.service.store
        side.client.ask(310, send_ext())
        self.assertEqual((side.taken, store.max_offset("T", 0)), (1, 2))
        store.delete_topic("T")
        for _ in range(2):
            self.assertEqual(side.client.ask(310, send_ext()).code, 0)
        self.assertEqual((side.taken, store.max_offset("T", 0)), (2, 2))
        self.end(side)

    def test_a_queue_that_has_stopped(self) -> None:
        """A queue that lags its numbers, because too many were missing, never gets units at wrong places."""
        for values in ({}, {"brokerRole": "SYNC_MASTER"}):
            side = Side(with_lane=True, values=values)
            self.assertEqual(side.client.ask(310, send_ext()).code, side.client.ask(310, send_ext()).code)
            taken = side.taken
            self.assertGreater(taken, 0)
            (queue,) = (queue for queue in side.one.service.store._queues if queue.key == ("T", 0))
            queue.next += 2_000_000
            end = queue.end
            side.client.ask(310, send_ext())
            self.assertEqual((side.taken, queue.end), (taken, end))
            self.end(side)

    def test_a_planted_difference_is_seen(self) -> None:
        """Two sides that were sent different things do not compare equal."""
        short, ordinary = Side(with_lane=True), Side(with_lane=False)
        left = short.replay([RemotingCommand(310, ext_fields=send_ext(h="1"))])
        right = ordinary.replay([RemotingCommand(310, ext_fields=send_ext(h="2"))])
        self.assertEqual(left, right)
        self.assertNotEqual(short.log(), ordinary.log())
        short.one.end()
        ordinary.one.end()

    def test_changes_of_the_topic_count_at_once(self) -> None:
        """A topic that is changed or deleted is looked at again."""
        side = Side(with_lane=True)
        # the first message makes the queue, which is not for the lane
        self.assertEqual(side.client.ask(310, send_ext(queue_id=3)).code, 0)
        self.assertEqual(side.client.ask(310, send_ext(queue_id=3)).code, 0)
        self.assertEqual(side.taken, 1)
        ext = {"topic": "T", "defaultTopic": "x", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        side.client.ask(17, ext | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})
        self.assertEqual(side.client.ask(310, send_ext(queue_id=3)).code, 1)
        side.client.ask(215, {"topic": "T"})
        self.assertEqual(side.client.ask(310, send_ext(c="none")).code, 17)
        side.one.end()

    def test_a_permission_that_is_withdrawn_counts_at_once(self) -> None:
        """After brokerPermission=4 no send to an ordered topic is stored, though the lane has stored others before."""
        side = Side(with_lane=True)
        side.one.service.topics.put(msgspec.structs.replace(topic("T", 4), order=True))
        side.one.world.run_for(1)
        self.assertEqual(side.client.ask(310, send_ext()).code, 0)
        self.assertEqual(side.taken, 1)
        self.assertEqual(side.client.ask(25, {}, b"brokerPermission=4").code, 0)
        self.assertEqual(side.client.ask(310, send_ext()).code, 16)
        self.assertEqual((side.taken, side.one.service.store.max_offset("T", 0)), (1, 2))
        self.end(side)

    def test_a_time_before_which_sends_are_refused_counts_at_once(self) -> None:
        """After startAcceptSendRequestTimeStamp was set to a later time no send is stored."""
        side = Side(with_lane=True)
        self.assertEqual(side.client.ask(310, send_ext()).code, 0)
        later = now_ms(side.one.service.clock) + 1_000_000
        self.assertEqual(side.client.ask(25, {}, b"startAcceptSendRequestTimeStamp=%d" % later).code, 0)
        self.assertEqual(side.client.ask(310, send_ext()).code, 1)
        self.assertEqual((side.taken, side.one.service.store.max_offset("T", 0)), (1, 2))
        self.end(side)

    def test_topics_with_rules_of_their_own(self) -> None:
        """Retries can become dead letters and some topics are the broker's: their messages are not for the lane."""
        side = Side(with_lane=True)
        for name, code in (("%RETRY%g", 0), ("Multi", 0), (SCHEDULE_TOPIC, 16)):
            if name != "Multi":
                side.one.service.topics.put(topic(name, 1))
            side.one.service.store._queues.make(name, 0)
            for _ in range(2):
                self.assertEqual(side.client.ask(310, send_ext(name)).code, code, name)
            self.assertEqual(side.taken, 0, name)
        self.end(side)

    def test_bounds(self) -> None:
        """Known topics and waiting answers are bounded; beyond that the responder takes the sends."""
        self.patch(lanes, "MAX_KNOWN_TOPICS", 3)
        side = Side(with_lane=True)
        lane: Any = side.table.chunk_lanes[310]
        for number in range(7):
            for _ in range(2):
                self.assertEqual(side.client.ask(310, send_ext(f"T{number}")).code, 0)
            self.assertLessEqual(len(lane._known), 3)
        self.assertEqual(side.taken, 7)
        for number in range(7):
            # the topics stay as they are, so that nothing else makes the lane forget
            self.assertEqual(side.client.ask(310, send_ext(f"T{number}")).code, 0)
            self.assertLessEqual(len(lane._known), 3)
        self.assertEqual(side.taken, 14)
        self.end(side)
        self.patch(lanes, "MAX_WAITING_ANSWERS", 0)
        side = Side(with_lane=True, values={"flushDiskType": "SYNC_FLUSH"})
        self.assertEqual((side.client.ask(310, send_ext()).code, side.taken), (0, 0))
        self.end(side)

    def test_replication_and_listeners_hear_of_each_append(self) -> None:
        """Replication is notified once per chunk; listeners get each message in order, also if they store some."""
        side = Side(with_lane=True)
        store = side.one.service.store
        ends: list[int] = []
        arrived: list[int] = []

        def arrival(_topic: str, _queue_id: int, end: int, _code: int) -> None:
            arrived.append(end)
            if len(arrived) == 1:
                store.put(Message("T", 0, b"mine", 0, "", 0, 0, HOST, HOST))

        store.on_arrival(arrival, topic="T")
        store.on_appended(lambda: ends.append(store.end_offset))
        side.client.transport.write(  # type: ignore[union-attr]
            b"".join(encode_command(RemotingCommand(310, number, ext_fields=send_ext())) for number in (91, 92))
        )
        side.one.world.run_for(1)
        self.assertEqual((side.taken, arrived), (2, [2, 3, 4]))
        self.assertEqual((len(ends), ends[-1], store.max_offset("T", 0)), (2, store.end_offset, 4))
        self.end(side)

    def test_only_where_nothing_waits(self) -> None:
        """A broker that syncs or replicates before it answers has no lane that answers at once; a slave has none."""
        self.assertTrue(answers_at_once(setup_of({}).store))
        self.assertFalse(answers_at_once(setup_of({"flushDiskType": FlushDiskType.SYNC_FLUSH.name}).store))
        self.assertFalse(answers_at_once(setup_of({"brokerRole": "SYNC_MASTER"}).store))
        self.assertFalse(answers_at_once(setup_of({"brokerRole": "SLAVE"}).store))
