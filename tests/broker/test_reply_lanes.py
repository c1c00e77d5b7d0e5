"""The lanes of replies to clients' requests: they push, store and answer what the ordinary way does, or nothing."""

from __future__ import annotations

import json
import random
from typing import Any

from rmq.broker import replylane
from rmq.broker.replylane import ReplyLane
from rmq.broker.responders.sending import read_header
from rmq.broker.stats import TOPIC_PUT_NUMS
from rmq.remoting.channel import Channel
from rmq.remoting.protocol import MAX_WAITING_ANSWERS
from rmq.wire.command import ONEWAY, RESPONSE, RemotingCommand, decode_commands, encode_command
from rmq.wire.compiled import load
from rmq.wire.extfields import BadField
from rmq.wire.frames import PREFIX, ProtocolError
from rmq.wire.record import decode_properties
from tests.broker.harness import PORT, OneBroker, RawClient, SidesCase, heartbeat, send_ext
from tests.needs import need_compiled
from tests.otherclients import LONG_NAMES, as_others_write
from tests.seeds import SEED

TOPIC = "DefaultCluster_REPLY_TOPIC"
CLIENT = "requester@1"
PROPERTIES = f"REPLY_TO_CLIENT\x01{CLIENT}\x02TTL\x0120000\x02WAIT\x01true"


def random_reply(chance: random.Random) -> RemotingCommand:
    """Return a reply, most of them plain."""

    def mostly(usual: str, *others: str) -> str:
        return usual if chance.random() < 0.985 else chance.choice(others)

    pairs = [
        mostly(
            f"REPLY_TO_CLIENT\x01{CLIENT}", "REPLY_TO_CLIENT\x01absent", "REPLY_TO_CLIENT\x01", "REPLY_TO_CLIENT", ""
        ),
        *chance.sample(("TTL\x0120000", "WAIT\x01true", 'KEYS\x01a "b" \\c', "UNIQ_KEY\x01AC11"), k=2),
        mostly(
            "x\x01y",
            "PUSH_REPLY_TIME\x015",
            "DELAY\x013",
            "TRAN_MSG\x01true",
            "标\x01ä😀",
            "x\x01y\x02x\x01z",
            "\x01",
            "x",
        ),
    ]
    ext = send_ext(mostly(TOPIC, "absent", "SCHEDULE_TOPIC_XXXX", "%RETRY%g"), props="\x02".join(pairs))
    ext["i"] += chance.choice(("", "", "\x02", "\x02\x02"))
    ext |= {
        "a": mostly("PG", "", 'P"G', "ü"),
        "d": mostly("4", "0", "x", "99999999999"),
        "e": mostly(chance.choice("0000000123"), "-1", "9", "007"),
        "f": mostly(chance.choice("00001"), "4", "8", "16", "-1"),
        "h": mostly("0", "7", "-7"),
        "j": mostly("0", "3", "x", "99999999999"),
        "k": mostly(chance.choice(("true", "false", "0")), "TRUE", "x"),
        "l": mostly("16", "x", "99999999999"),
        "m": mostly("false", "true", "x"),
    }
    for name in chance.sample(("j", "k", "l", "m"), k=chance.choice((0, 1, 4))):
        del ext[name]
    if chance.random() < 0.02:
        del ext[chance.choice("abcdefghi")]
    code = 325
    if chance.random() < 0.3:
        code, ext = 324, {LONG_NAMES[name]: value for name, value in ext.items()}
    return RemotingCommand(
        code,
        flag=int(mostly("0", str(ONEWAY), "4")),
        ext_fields=ext,
        body=bytes(chance.choice((0, 1, 100, 5000))) or None,
        serialize_type=int(mostly("0", "1")),
    )


def with_word(command: RemotingCommand, word: str) -> bytes:
    """Return the frame of a request with a word in the place of the text "@"."""
    frame = encode_command(command).replace(b'"@"', word.encode())
    more = len(word) - 3
    total, size = PREFIX.unpack_from(frame)
    return PREFIX.pack(total + more, size + more) + frame[PREFIX.size :]


class ReplyLaneTests(SidesCase):
    codes = (324, 325)

    def setUp(self) -> None:
        need_compiled("rmq.store._record")
        super().setUp()
        #: replies that the lanes have pushed
        self.pushed = 0
        for one in self.sides:
            one.connect().ask(325, send_ext(TOPIC), b"makes the queues that it needs")
        self.connect()

    def _counted(self, code: int, lane: Any) -> Any:
        def counting(data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
            waiting = lane.waiting
            stop, count = lane(data, position, answers, channel)
            self.pushed += lane.waiting - waiting
            return stop, count

        counting.code = code  # type: ignore[attr-defined]
        return counting

    def connect(self, port: int = PORT) -> None:
        """Connect a client that waits for replies, and one that replies, to each side."""
        self.requesters, self.repliers = ([one.connect(port) for one in self.sides] for _ in range(2))
        for requester, replier in zip(self.requesters, self.repliers, strict=True):
            requester.ask(34, body=heartbeat(CLIENT, "CG", producer="PG"))
            replier.ask(30, {"topic": TOPIC, "queueId": "0"})  # the first bytes of a connection take the ordinary way
            requester.received.clear()
            replier.received.clear()

    def write(self, clients: list[RawClient], *chunks: bytes) -> None:
        """Have each side's client write."""
        for client in clients:
            for chunk in chunks:
                assert client.transport is not None
                client.transport.write(chunk)
        self.run_for(0.05)

    def lose(self, clients: list[RawClient]) -> None:
        for client in clients:
            assert client.transport is not None
            client.transport.loseConnection()
        self.run_for(0.05)

    def received(self, clients: list[RawClient]) -> list[RemotingCommand]:
        """Return what both sides' clients have received since the last call, which is the same."""
        found = [list(client.received) for client in clients]
        self.assertEqual(*([encode_command(each) for each in side] for side in found))
        for client in clients:
            client.received.clear()
        return found[0]

    def reply(self, **more: str) -> None:
        """Send a plain reply."""
        ext = send_ext(TOPIC, props=PROPERTIES) | more
        self.write(self.repliers, encode_command(RemotingCommand(325, opaque=5, ext_fields=ext)))

    def pushes(self) -> list[RemotingCommand]:
        return self.received(self.requesters)

    def acknowledge(self, *pushed: RemotingCommand, code: int = 0) -> None:
        self.write(self.requesters, *(encode_command(RemotingCommand(code, each.opaque, RESPONSE)) for each in pushed))

    def answers(self) -> list[RemotingCommand]:
        """Return the answers to replies, the same of both sides, whose logs and counters are the same, too."""
        found = self.received(self.repliers)
        stores = [one.service.store for one in self.sides]
        self.assertEqual(stores[0].end_offset, stores[1].end_offset)
        self.assertEqual(*(bytes(store.read(0, store.end_offset)) for store in stores))
        stats = [one.service.responders.stats for one in self.sides]
        self.assertEqual(stats[0].counts, stats[1].counts)
        self.assertEqual(stats[0].refusals, stats[1].refusals)
        return found

    def run_for(self, seconds: float) -> None:
        for one in self.sides:
            one.world.run_for(seconds)

    def lane(self) -> ReplyLane:
        lane: ReplyLane = self.lanes[325]
        return lane

    def test_same_replies(self) -> None:
        """Whatever is replied, and however the requester acts: all that leaves the broker and all that it stores."""
        chance = random.Random(SEED)
        opaque = 0
        for number in range(150):
            chunks = [b"" for _ in range(chance.choice((1, 3)))]
            for at in [*range(len(chunks)), *chance.choices(range(len(chunks)), k=2)]:
                opaque += 1
                command = random_reply(chance)
                command.opaque = opaque
                chunks[at] += as_others_write(chance, command)
            self.write(self.repliers, *chunks)
            pushed = self.pushes()
            chance.shuffle(pushed)
            for each in pushed:
                if chance.random() < 0.95:
                    self.acknowledge(each, code=chance.choices((0, 1, 17), (20, 1, 1))[0])
            self.run_for(chance.choices((0.0, 11.0), (12, 1))[0])
            self.answers()
            if number % 50 == 49:
                self.lose(self.requesters)
                self.answers()
                self.connect()
        self.assertGreater(self.pushed, opaque // 8, f"seed {SEED}")
        self.run_for(11)
        self.assertEqual([lane.waiting for lane in self.lanes.values()], [0, 0])
        puts = [one.service.stats for one in self.sides]
        for stats in puts:
            stats.settle()
        self.assertEqual(puts[0].totals(TOPIC_PUT_NUMS), puts[1].totals(TOPIC_PUT_NUMS))
        self.assertEqual(puts[0].put_failures, puts[1].put_failures)

    def test_plain_replies(self) -> None:
        """They never come to the responder, once the topic has its queue; those of one turn are stored together."""
        lane = self.lane()
        for queue_id in "011":  # makes the topic and queue 0, then queue 1
            self.reply(b="N", e=queue_id)
            pushed = self.pushed
            self.acknowledge(*self.pushes())
            self.answers()
        self.assertEqual(pushed, 1)

        def refused(*_: object) -> None:
            raise AssertionError("left to the responder")

        self.patch(type(lane.replies), "finish", refused)
        writes: list[int] = []
        store = lane.stores.together

        def counted(chunks: list[tuple[bytes, Channel]]) -> object:
            writes.append(len(chunks))
            return store(chunks)

        self.patch(lane.stores, "together", counted)
        for _ in range(2):
            frames = [RemotingCommand(325, opaque=at, ext_fields=send_ext("N", props=PROPERTIES)) for at in range(3)]
            self.write(self.repliers, b"".join(map(encode_command, frames)))
            self.acknowledge(*self.pushes())
            self.assertEqual([answer.code for answer in self.answers()], [0, 0, 0])
        self.assertEqual((self.pushed, sum(writes), 0 in writes), (7, 6, False))
        self.assertGreater(max(writes), 1)

    def test_values_that_are_no_texts(self) -> None:
        """They are missing, not the text "null"."""
        ext = send_ext(TOPIC, props=PROPERTIES)
        frame = encode_command(RemotingCommand(325, opaque=5, ext_fields=ext))
        for name in "abci":
            _, size = PREFIX.unpack_from(frame)
            header = json.loads(frame[PREFIX.size : PREFIX.size + size])
            header["extFields"][name] = None
            data = json.dumps(header, separators=(",", ":")).encode()
            self.write(self.repliers, PREFIX.pack(4 + len(data), len(data)) + data)
            self.acknowledge(*self.pushes())
            (answer,) = self.answers()
            self.assertNotEqual(answer.code, 0)
        self.assertEqual(self.pushed, 0)

    def test_words_that_are_no_json(self) -> None:
        """One costs the connection, also in a field that nobody reads; nothing is pushed or stored."""
        for code in 325, 310:
            for word in "nul", "truefalse", "x", "-", "1-1", "-true":
                ext = send_ext(TOPIC, props=PROPERTIES) | {"z": "@"}
                command = RemotingCommand(code, opaque=5, ext_fields=ext)
                self.write(self.repliers, with_word(command, word))
                self.assertEqual([client.closed for client in self.repliers], [True, True], (code, word))
                self.assertEqual([*self.pushes(), *self.answers()], [])
                self.connect()
        for word in "null", "true", "false", "0", "-7", "12345678901234567890":
            self.write(self.repliers, with_word(RemotingCommand(325, opaque=5, ext_fields=ext), word))
            self.acknowledge(*self.pushes())
            self.assertEqual([answer.code for answer in self.answers()], [0])
        self.assertEqual(self.pushed, 6)

    def test_fields_that_are_not_pushed(self) -> None:
        """A reply that is refused for one of them is not pushed before."""
        for code, names in (325, "lm"), (324, ("maxReconsumeTimes", "batch")):
            for name, texts in zip(names, (("x", "99999999999", "1.5"), ("x", "null")), strict=True):
                for text in texts:
                    ext = send_ext(TOPIC, props=PROPERTIES)
                    if code == 324:
                        ext = {LONG_NAMES[letter]: value for letter, value in ext.items()}
                    command = RemotingCommand(code, opaque=5, ext_fields=ext | {name: text})
                    self.write(self.repliers, encode_command(command))
                    self.acknowledge(*self.pushes())
                    self.assertEqual(len(self.answers()), 1, (name, text))
        self.assertEqual(self.pushed, 0)

    def test_never_more_than_the_decoder(self) -> None:
        """Whatever the lane reads as a reply so is for the responder, with the same queue and client."""
        module: Any = load("rmq.store._record")
        chance = random.Random(SEED)
        read = 0
        for _ in range(10_000):
            command = random_reply(chance)
            frame = bytearray(as_others_write(chance, command))
            header_bytes = PREFIX.unpack_from(frame)[1] & 0xFFFFFF
            for _ in range(chance.choice((0, 1, 1, 2))):
                frame[PREFIX.size + chance.randrange(header_bytes)] = chance.choice(b'\x00\x01"{}:,01979alnx \\-')
            found = module.read_reply(bytes(frame), 0, command.code, 5)
            if found is None:
                continue
            read += 1
            try:
                (decoded,) = decode_commands(bytes(frame[: found[0]]))
                header = read_header(decoded)
            except (ProtocolError, BadField) as error:
                self.fail(f"seed {SEED}: {bytes(frame)!r} was read, but {error}")
            pairs = decode_properties(header.properties or "")
            self.assertEqual(
                (found[2], found[3].decode(), found[4]),
                (pairs.get("REPLY_TO_CLIENT"), header.topic, header.queue_id),
                f"seed {SEED}: {bytes(frame)!r}",
            )
        self.assertGreater(read, 1000)

    def test_what_is_left_to_the_responder(self) -> None:
        """A client whose name is not ASCII, a reply that has a time of its push, and one that nobody waits for."""
        ext = send_ext(TOPIC, props="@")
        for client, properties, flag in (
            ("ü@1", "REPLY_TO_CLIENT\x01ü@1", 0),
            (CLIENT, f"PUSH_REPLY_TIME\x015\x02{PROPERTIES}", 0),
            (CLIENT, PROPERTIES, ONEWAY),
        ):
            for requester in self.requesters:
                requester.ask(34, body=heartbeat(client, "CG", producer="PG"))
                requester.received.clear()
            command = RemotingCommand(325, opaque=5, flag=flag, ext_fields=ext)
            self.write(self.repliers, with_word(command, json.dumps(properties)))
            (pushed,) = self.pushes()
            own = dict(pair.split("\x01") for pair in pushed.ext_fields["properties"].split("\x02"))
            self.assertNotEqual(own["PUSH_REPLY_TIME"], "5")
            self.acknowledge(pushed, code=flag)
            self.assertEqual([answer.code for answer in self.answers()], [] if flag else [0])
        self.assertEqual(self.pushed, 0)

    def test_settings(self) -> None:
        """Those that change what happens to a reply leave it to the responder at once."""
        for setting in b"storeReplyMessageEnable=false", b"brokerPermission=4":
            self.reply()
            self.acknowledge(*self.pushes())
            self.answers()
            pushed = self.pushed
            for one in self.sides:
                self.assertEqual(one.connect().ask(25, body=setting).code, 0)
            self.reply()
            self.acknowledge(*self.pushes())
            self.answers()
            self.assertEqual(self.pushed, pushed, setting)
            for one in self.sides:
                one.connect().ask(25, body=b"storeReplyMessageEnable=true\nbrokerPermission=6")
        self.assertEqual(self.pushed, 2)

    def test_limits(self) -> None:
        """What would be too long as a push, and more than may wait, is the responder's."""
        self.reply()
        self.patch(replylane, "MAX_FRAME_BYTES", 1024 + 300)
        self.reply()
        self.patch(replylane, "MAX_FRAME_BYTES", 1 << 24)
        self.lane().waiting += MAX_WAITING_ANSWERS - 1
        self.reply()
        self.lane().waiting -= MAX_WAITING_ANSWERS - 1
        self.acknowledge(*self.pushes())
        self.assertEqual([answer.code for answer in self.answers()], [0, 0, 0])
        self.assertEqual(self.pushed, 1)

    def test_as_many_wait_as_the_configuration_allows(self) -> None:
        """The next reply is refused, whichever way those that wait came, until one of them is answered."""
        for one in self.sides:
            one.connect().ask(25, body=b"replyThreadPoolQueueCapacity=2")
        self.run_for(1)  # flow control has looked at the configuration
        self.reply()
        self.reply(m="odd")
        self.reply()
        waiting = self.pushes()
        self.assertEqual([answer.code for answer in self.answers()], [2])
        self.assertEqual((len(waiting), self.pushed), (2, 1))
        for pushed in waiting:
            self.acknowledge(pushed)
            self.assertEqual([answer.code for answer in self.answers()], [0])
            self.reply()
            self.acknowledge(*self.pushes())
            self.assertEqual([answer.code for answer in self.answers()], [0])
        self.assertEqual((self.lane().waiting, self.pushed), (0, 3))

    def test_not_taken(self) -> None:
        """The requester refuses, is silent, or goes: the reply is stored, and the replier knows."""
        for how in ("refuses", "is silent", "goes"):
            self.reply()
            (pushed,) = self.pushes()
            if how == "refuses":
                self.acknowledge(pushed, code=1)
            elif how == "is silent":
                self.run_for(10.1)
            else:
                self.lose(self.requesters)
            (answer,) = self.answers()
            self.assertEqual((answer.code, answer.remark), (1, f"push reply message to {CLIENT}fail."))
        self.assertEqual(self.pushed, 3)

    def test_what_changes_while_a_reply_waits(self) -> None:
        """A topic that is deleted, a setting that changes, a replier that goes: the rest is the responder's."""
        self.reply()
        (pushed,) = self.pushes()
        for one in self.sides:
            one.service.topics.delete(TOPIC)
        self.acknowledge(pushed)
        self.answers()
        self.reply()  # makes the topic
        (pushed,) = self.pushes()
        self.acknowledge(pushed)
        self.answers()
        self.assertEqual(self.pushed, 1)
        self.reply()
        (pushed,) = self.pushes()
        self.lose(self.repliers)
        self.acknowledge(pushed)
        self.answers()
        self.assertEqual(self.lane().waiting, 0)

    def test_a_fault_of_ours(self) -> None:
        """It is logged and costs the replier's connection, as in any lane."""

        def broken(*_: object) -> None:
            raise ValueError("broken")

        self.reply()
        (pushed,) = self.pushes()
        self.patch(self.lane().stores, "together", broken)
        self.write(self.requesters[:1], encode_command(RemotingCommand(0, pushed.opaque, RESPONSE)))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertTrue(self.repliers[0].closed)
        self.assertEqual(self.lane().waiting, 0)

    def test_how_long_it_took(self) -> None:
        """From the reply's arrival to its answer, however long the requester takes."""
        for waits_s in 0.0, 3.0:
            self.reply()
            self.run_for(waits_s)
            self.acknowledge(*self.pushes())
            self.answers()
        self.assertEqual(self.pushed, 2)
        stats = [one.service.responders.stats for one in self.sides]
        sums = [each.sums[325] for each in stats]
        self.assertAlmostEqual(sums[0], sums[1], delta=0.01)
        self.assertGreater(sums[0], 3.0)
        self.assertEqual(stats[0].buckets[325], stats[1].buckets[325])

    def test_where_the_broker_is(self) -> None:
        """A push names the address and port that the configuration gives, which may be others than the connection's."""
        for one in self.sides:
            one.end()
        self.sides = [OneBroker({"brokerIP1": "192.0.2.9", "listenPort": "10990"}, seed=3) for _ in range(2)]
        self.use_lanes()
        for one in self.sides:
            one.connect(10990).ask(325, send_ext(TOPIC), b"makes the queues that it needs")
        self.connect(10990)
        self.reply()
        (pushed,) = self.pushes()
        self.assertEqual(pushed.ext_fields["storeHost"], "192.0.2.9:10990")
        self.assertEqual(self.pushed, 1)
        self.acknowledge(pushed)

    def test_where_there_is_no_lane(self) -> None:
        """Where replies wait for the disk or for slaves."""
        for values in ({"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}):
            one = OneBroker(values)
            self.assertTrue(one.service.responders.chunk_lanes.keys().isdisjoint(self.codes))
            one.end()
