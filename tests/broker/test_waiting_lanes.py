"""The lanes of messages that wait in a topic of the broker's: same answers and bytes as the ordinary way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import lanes
from rmq.broker.topics import TRANS_OP_HALF_TOPIC, topic
from rmq.broker.waitinglanes import MAX_TOGETHER
from rmq.remoting.channel import Channel
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.wire.command import ONEWAY, RemotingCommand, decode_commands, encode_command
from rmq.wire.record import FIELD_AT, PROPERTY_REAL_QUEUE_ID, STORE_TIMESTAMP_AT, decode_record
from tests.broker.harness import OneBroker, heartbeat, send_ext
from tests.broker.test_lanes import Side
from tests.needs import need_compiled
from tests.otherclients import as_others_write
from tests.remoting.peer import LeanTransport, Peer, RecordingTransport
from tests.seeds import SEED

T = TypeVar("T", str, bytes, int)

CODES = (310, 36, 37)
FLUSH, MASTER = {"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}
#: configurations under which answers wait
WAITING = (FLUSH, MASTER, FLUSH | MASTER)
COUNTERS = [
    "TOPIC_PUT_NUMS",
    "TOPIC_PUT_SIZE",
    "BROKER_PUT_NUMS",
    "SNDBCK_PUT_NUMS",
    "TOPIC_COMMIT_NUMS",
    "TOPIC_ROLLBACK_NUMS",
]


class Two:
    """A broker with the lanes and one without any; both get the same requests, and must do the same."""

    def __init__(self, test: SynchronousTestCase, **values: str) -> None:
        self._test = test
        self._waits = not {"flushDiskType", "brokerRole"}.isdisjoint(values)
        self.sides = [Side(with_lane=with_lane, values=values) for with_lane in (True, False)]
        self.taken = dict.fromkeys(CODES, 0)
        self._writer = random.Random(SEED)
        table = self.sides[0].table
        lanes: dict[int, Any] = dict(table.chunk_lanes)
        table.chunk_lanes = lanes | {code: self._counted(code, lanes[code]) for code in CODES}
        self.lanes = lanes
        self.peers = [Peer(side.table) for side in self.sides]
        self._opaque = 0
        for side in self.sides:
            side.one.service.topics.put(topic("T", 4))
            for queue in range(4):
                side.client.ask(310, send_ext("T", queue_id=queue))
            side.client.ask(34, body=heartbeat("me", "g", "T"))
            # what makes the queues in which messages wait
            side.client.ask(37, end_ext(side.client.ask(310, half_ext())))
            for level in range(1, 19):
                side.client.ask(310, send_ext(props=f"DELAY\x01{level}"))
            if self._waits:  # both store in the same milliseconds: in the middle of one
                side.one.world.run_for(100.0005 - side.one.world.now_s)
        self.taken = dict.fromkeys(CODES, 0)

    def _counted(self, code: int, lane: Any) -> Any:
        def counting(data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
            stop, count = lane(data, position, answers, channel)
            self.taken[code] += count or stop > position  # 0 while answers wait
            return stop, count

        counting.code = code  # type: ignore[attr-defined]
        return counting

    def ask(self, *commands: RemotingCommand, cuts: tuple[int, ...] = ()) -> list[RemotingCommand]:
        """Send requests to both sides; return the answers, which are the same."""
        stream = b""
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
            stream += as_others_write(self._writer, command)
        found = []
        for side, peer in zip(self.sides, self.peers, strict=True):
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                peer.send(stream[start:end])
            if self._waits:
                side.one.world.run_for(0.05)
            found.append(peer.transport.read())
        self._test.assertEqual(found[0], found[1], f"seed {SEED}")
        return decode_commands(found[0])

    def compare(self) -> None:
        short, ordinary = self.sides
        test = self._test
        mine, theirs = (without_op_times(side.log()) if self._waits else side.log() for side in self.sides)
        test.assertEqual(mine, theirs, f"seed {SEED}")
        test.assertEqual(short.derived(), ordinary.derived(), f"seed {SEED}")
        self.compare_counters()
        services = [side.one.service for side in self.sides]
        test.assertEqual(*(service.groups.names() for service in services))
        test.assertEqual(*(service.topics.names() for service in services))

    def compare_counters(self) -> None:
        test = self._test
        services = [side.one.service for side in self.sides]
        for name in COUNTERS:
            totals = [sorted(service.stats.totals(name)) for service in services]
            test.assertEqual(totals[0], totals[1], f"seed {SEED}: {name}")
            for key, _ in totals[0]:
                test.assertEqual(*(service.stats.counter(name, key).times for service in services))
        test.assertEqual(*(service.stats.puts.total for service in services))
        test.assertEqual(*(service.stats.put_bytes for service in services))
        test.assertEqual(*(service.stats.put_failures for service in services))
        test.assertEqual(*(side.table.stats.counts for side in self.sides))
        test.assertEqual(*(side.table.stats.refusals for side in self.sides))

    def end(self) -> None:
        for side in self.sides:
            side.one.end()
            self._test.flushLoggedErrors()


def without_op_times(log: bytes) -> bytes:
    """
    Return a log whose op messages have no times.

    A lane writes them with the message that is committed, a responder when that is safe.
    """
    plain, at = bytearray(log), 0
    while at < len(log):
        size = int.from_bytes(log[at : at + 4], "big")
        record = log[at : at + size]
        if TRANS_OP_HALF_TOPIC.encode() in record[-120:]:
            for time_at in (FIELD_AT["bornTimestamp"], STORE_TIMESTAMP_AT):
                plain[at + time_at : at + time_at + 8] = bytes(8)
        at += size
    return bytes(plain)


def half_ext(queue_id: int = 0, more: str = "", **fields: str) -> dict[str, str]:
    """Return the header of a half message."""
    props = f"UNIQ_KEY\x0100FF\x02WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01PG{more}"
    return send_ext(queue_id=queue_id, props=props, **({"f": "4"} | fields))


def end_ext(stored: RemotingCommand, end: str = "8", **fields: str) -> dict[str, str]:
    """Return the header that ends the transaction of a half message, by the answer that it got."""
    place = stored.ext_fields
    ext = {"producerGroup": "PG", "tranStateTableOffset": place["queueOffset"], "commitOrRollback": end}
    ext |= {"commitLogOffset": str(int(place["msgId"][16:], 16)), "fromTransactionCheck": "false"}
    return ext | {"msgId": "00FF", "transactionId": "00FF"} | fields


def back_ext(offset: int, **fields: str) -> dict[str, str]:
    """Return the header that sends a message back."""
    ext = {"offset": str(offset), "group": "g", "delayLevel": "0", "originMsgId": "7F00", "originTopic": "T"}
    return ext | {"unitMode": "false", "maxReconsumeTimes": "16"} | fields


def mostly(chance: random.Random, usual: T, *others: T) -> T:
    return usual if chance.random() < 0.93 else chance.choice(others)


class WaitingLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def _send(self, chance: random.Random) -> RemotingCommand:
        """Return a send of a message that waits, mostly a plain one."""
        names = chance.sample(("KEYS", "TAGS", "UNIQ_KEY", "own", "WAIT", "CLUSTER", "REAL_QID"), k=chance.randrange(5))
        pieces = [f"{name}\x01{chance.choice(('a', 'true', 'x y', ' k  l ', '7F00'))}" for name in names]
        if chance.random() < 0.6:
            pieces += [mostly(chance, "TRAN_MSG\x01true", "TRAN_MSG\x01false", "TRAN_MSG\x01TRUE")]
            pieces += [f"PGROUP\x01{mostly(chance, 'PG', 'other')}"]
        if not pieces or chance.random() < 0.4:
            pieces.append("DELAY\x01" + mostly(chance, chance.choice(("1", "3", "18")), "0", "-1", "x", "99", "007"))
        chance.shuffle(pieces)
        props = "\x02".join(pieces) + chance.choice(("", "", "\x02"))
        props = mostly(
            chance, props, props + "\x02own2\x01ü😀标", props + "\x02a\x01", props + "\x02TAGS\x01t\x02TAGS\x01u", ""
        )
        ext = send_ext(mostly(chance, "T", "New", "Multi", "%RETRY%g", "a b"), props=props)
        ext |= {"e": mostly(chance, str(chance.randrange(4)), "-1", "9", "x")}
        ext |= {
            "f": mostly(chance, chance.choice(("0", "4", "1")), "8", "12", "16", "-1"),
            "h": mostly(chance, "7", "-7"),
        }
        ext |= {"g": mostly(chance, "1700000000000", "0", "-1", "x"), "j": mostly(chance, "0", "3", "null", "")}
        ext |= {
            "m": mostly(chance, "false", "true"),
            "k": mostly(chance, "false", "true"),
            "l": mostly(chance, "5", "x"),
        }
        for name in chance.sample(sorted(ext), k=chance.choice((0,) * 9 + (1,))):
            del ext[name]
        body = mostly(chance, "body", "", "b" * 600).encode()
        return self._request(chance, 310, ext, body)

    def _request(self, chance: random.Random, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        return RemotingCommand(
            code,
            flag=int(mostly(chance, "0", "2", "2", "1", "3")),
            version=chance.choice((100, 407, 479)),
            ext_fields=ext,
            body=body or None,
            serialize_type=int(mostly(chance, "0", "1")),
        )

    def test_same_answers_and_bytes(self) -> None:
        """Sends, ends and retries, right and wrong ones: answers, log, queues, index and counters are the same."""
        two = Two(self)
        self._same_answers_and_bytes(two, random.Random(SEED), 700)
        for code, taken in two.taken.items():
            self.assertGreater(taken, 10, f"seed {SEED}: the lane of {code} took next to nothing")

    def _same_answers_and_bytes(self, two: Two, chance: random.Random, requests: int) -> None:
        stored: list[RemotingCommand] = []
        for _ in range(requests):
            what = chance.random()
            if what < 0.4 or len(stored) < 3:
                stored += [answer for answer in two.ask(self._send(chance)) if answer.ext_fields.get("msgId")]
                continue
            place = chance.choice(stored[-20:])
            offset = int(place.ext_fields["msgId"][16:], 16)
            wrong = str(offset + chance.randrange(-200, 200))
            others: dict[str, tuple[str, ...]]
            if what < 0.7:
                code, ext = 37, end_ext(place, mostly(chance, chance.choice(("8", "12")), "0", "4", "x"))
                others = {
                    "producerGroup": ("other", ""),
                    "tranStateTableOffset": ("0", "7", "x"),
                    "commitLogOffset": (wrong, "-1", "0", str(1 << 62), str(1 << 64)),
                    "fromTransactionCheck": ("true", "TRUE"),
                }
            else:
                code, ext = 36, back_ext(offset)
                others = {
                    "group": ("new", "h", "a b", "g" * 130, ""),
                    "offset": (wrong, "-1", "0", "x", str(1 << 62)),
                    "delayLevel": ("1", "18", "-1", "99", "x", ""),
                    "maxReconsumeTimes": ("0", "1", "null", "-1", ""),
                    "unitMode": ("true", "1"),
                }
            for name, values in others.items():
                ext[name] = mostly(chance, ext[name], *values)
            for name in chance.sample(sorted(ext), k=chance.choice((0,) * 9 + (1,))):
                del ext[name]
            two.ask(self._request(chance, code, ext))
            if chance.random() < 0.05:
                for side in two.sides:
                    side.one.world.run_for(1.5)
        two.compare()
        two.end()

    def test_pipelined(self) -> None:
        """Requests of several kinds in one read, and requests in pieces, are answered in their order."""
        chance = random.Random(SEED)
        two = Two(self)
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext(), body=b"x"))
        offset = int(half.ext_fields["msgId"][16:], 16)
        for _ in range(40):
            commands = [
                chance.choice(
                    (
                        RemotingCommand(310, ext_fields=send_ext(props="TAGS\x01a"), body=b"plain"),
                        RemotingCommand(310, ext_fields=half_ext(), body=b"half"),
                        RemotingCommand(310, ext_fields=send_ext(props="DELAY\x015"), body=b"delayed"),
                        RemotingCommand(37, ext_fields=end_ext(half)),
                        RemotingCommand(36, ext_fields=back_ext(offset)),
                    )
                )
                for _ in range(chance.randrange(1, 9))
            ]
            for command in commands:
                command.opaque = 1
                command.flag = chance.choice((0, 0, ONEWAY))
            size = sum(len(encode_command(command)) for command in commands)
            cuts = sorted(chance.randrange(1, size) for _ in range(chance.choice((0, 0, 1, 3))))
            answers = two.ask(*commands, cuts=tuple(dict.fromkeys(cuts)))
            self.assertEqual(len(answers), sum(not command.flag for command in commands))
        two.compare()
        self.assertGreater(min(two.taken.values()), 10)
        two.end()

    def test_a_read_takes_one_write(self) -> None:
        """Ends and retries that come in one read are stored together, MAX_TOGETHER at most; half a frame waits."""
        for values in ({}, FLUSH):
            two = Two(self, **values)
            (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext(), body=b"x"))
            offset = int(half.ext_fields["msgId"][16:], 16)
            for code, flag, ext in (
                (37, 0, end_ext(half)),
                (37, ONEWAY, end_ext(half)),
                (37, ONEWAY, end_ext(half, "12")),
                (36, 0, back_ext(offset)),
            ):
                taken, calls = two.taken[code], two.sides[0].calls
                commands = [RemotingCommand(code, flag=flag, ext_fields=ext) for _ in range(MAX_TOGETHER + 1)]
                self.assertEqual(len(two.ask(*commands)), 0 if flag else len(commands))
                self.assertEqual((two.sides[0].calls - calls, two.taken[code] > taken), (2, True))
            two.ask(*(RemotingCommand(37, flag=flag, ext_fields=end_ext(half)) for flag in (0, ONEWAY, 0, ONEWAY)))
            self.assertEqual(*(side.table.stats.counts for side in two.sides))
            if not values:  # else the responder's op messages come after the sync
                two.compare()
            two.end()

    def test_ends_of_several_connections_wait(self) -> None:
        """
        What connections end in one turn is answered when all of it is safe: each its own, one-way requests never.

        These wait, too. Those who wait get the failure of a sync. The time of an answer is that from its request on.
        """
        for values, code in ((FLUSH, 0), (FLUSH, 14), (MASTER | {"slaveTimeout": "1000"}, 0)):
            side = Side(with_lane=True, values=values)
            one, store = side.one, side.one.service.store
            one.service.topics.put(topic("T", 1))
            for _ in range(2):
                half = side.client.ask(310, half_ext())
                side.client.ask(37, end_ext(half))
            peers = [Peer(side.table, transport=LeanTransport(port=40_000 + number)) for number in range(5)]
            lane: Any = side.table.added_lane(37)
            waits: list[tuple[int, Any]] = []
            if values is not FLUSH:
                self.patch(store, "wait_for", lambda *asked, to=waits: to.append(asked))
            one.node.disk.fail_syncs = code
            counts = one.service.responders.stats.counts.get(37, 0)
            chunks = []
            for number, peer in enumerate(peers):
                flag = ONEWAY if number == 3 else 0
                command = RemotingCommand(37, number, flag=flag, ext_fields=end_ext(half))
                chunks.append((encode_command(command), peer.channel))
            self.assertEqual(lane.together(chunks), ([b""] * 5, 1))
            self.assertEqual([peer.received() for peer in peers], [[]] * 5)
            self.assertEqual(lane._later.waiting, 5)
            one.world.run_for(0.05)
            for offset, done in waits:
                self.assertEqual(offset, store.end_offset)
                done.callback(PutStatus.SLAVE_NOT_AVAILABLE)
            answers = [[(each.opaque, each.code) for each in peer.received()] for peer in peers]
            self.assertEqual(answers, [[(0, code)], [(1, code)], [(2, code)], [], [(4, code)]])
            self.assertEqual((lane._later.waiting, len(waits)), (0, int(values is not FLUSH)))
            self.assertEqual(one.service.responders.stats.counts[37] - counts, 4)  # our caller counts what it writes
            self.assertLess(side.table.stats.sums[37], 1)
            self.assertEqual(one.service.stats.put_failures, 5 if code else 0)
            self.assertEqual(side.table.stats.refusals.get((37, code), 0), 5 if code else 0)
            self.assertEqual(len(one.fatal), int(code != 0))
            if not code:
                one.end()

    def test_too_many_answers_wait(self) -> None:
        """When enough ends wait for the sync the responder takes more; later the lane takes them again."""
        self.patch(lanes, "MAX_WAITING_ANSWERS", 3)
        two = Two(self, **FLUSH)
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
        frame = encode_command(RemotingCommand(37, ext_fields=end_ext(half)))
        channel, lane = two.peers[0].channel, two.lanes[37]
        for taken in (3, 6):
            for _ in range(5):
                two.peers[0].send(frame)
            self.assertEqual((two.taken[37], lane._later.waiting), (taken, 3))
            self.assertEqual(lane.together([(frame, channel)]), ([None], 0))
            self.assertEqual(two.peers[0].received(), [])
            two.sides[0].one.world.run_for(0.05)
            self.assertEqual([each.code for each in two.peers[0].received()], [0] * 5)
        two.end()

    def test_a_read_that_exceeds_a_limit(self) -> None:
        """As many requests of one read wait as the configured queues allow; the others, retries too, are refused."""
        two = Two(self, **FLUSH, sendThreadPoolQueueCapacity="3", endTransactionPoolQueueCapacity="3")
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
        offset = int(half.ext_fields["msgId"][16:], 16)
        send, back = send_ext(props="TAGS\x01a"), RemotingCommand(36, ext_fields=back_ext(offset))
        for code, ext in ((310, send), (37, end_ext(half))):
            taken = two.taken[code]
            answers = two.ask(*(RemotingCommand(code, ext_fields=ext) for _ in range(5)))
            self.assertEqual([each.code for each in answers], [2, 2, 0, 0, 0])
            self.assertEqual(two.taken[code], taken)
            self.assertEqual(len(two.ask(*(RemotingCommand(code, ext_fields=ext) for _ in range(3)))), 3)
            self.assertGreater(two.taken[code], taken)
            frame = encode_command(RemotingCommand(code, ext_fields=ext))
            chunks = [(frame, two.peers[0].channel)] * 4
            self.assertEqual(two.lanes[code].together(chunks), ([None] * 4, 0))
        answers = two.ask(*(RemotingCommand(310, ext_fields=send) for _ in range(3)), back)
        self.assertEqual([each.code for each in answers], [2, 0, 0, 0])
        self.assertEqual([each.code for each in two.ask(back)], [0])
        two.end()

    def test_sends_that_wait_are_counted(self) -> None:
        """Flow control and brokerStatus count each request that was written together with others."""
        two = Two(self, **FLUSH)
        for side, peer in zip(two.sides, two.peers, strict=True):
            peer.send(b"".join(encode_command(RemotingCommand(310, ext_fields=send_ext())) for _ in range(5)))
            self.assertEqual(side.one.service.flow.waiting_sends, 5)
            side.one.world.run_for(0.05)
            self.assertEqual((len(peer.received()), side.one.service.flow.waiting_sends), (5, 0))
        two.end()

    def test_one_way_ends_that_wait_are_counted(self) -> None:
        """
        One-way commits, which clients send, take their place in endTransactionPoolQueueCapacity.

        Those beyond it are not committed. One-way rollbacks and ends of messages with WAIT=false take none.
        """
        for values in (FLUSH, FLUSH | MASTER):
            two = Two(self, **values, endTransactionPoolQueueCapacity="3")
            plain, hasty, odd = half_ext(), half_ext(), half_ext()
            hasty["i"] = hasty["i"].replace("WAIT\x01true", "WAIT\x01false")
            odd["i"] = odd["i"].replace("WAIT\x01true", "WAIT\x01TRUE")
            halves = [two.ask(RemotingCommand(310, ext_fields=ext))[0] for ext in (plain, hasty, odd)]
            ends = [end_ext(halves[0], "12"), end_ext(halves[1]), end_ext(halves[1], "12"), end_ext(halves[2])]
            ends += [end_ext(halves[0])] * 2
            for side, peer in zip(two.sides, two.peers, strict=True):
                line, found = side.table.line_of(37), []
                assert line is not None
                stats, refusals = side.table.stats, side.table.stats.refusals.get((37, 2), 0)
                for ext in ends:
                    peer.send(encode_command(RemotingCommand(37, flag=ONEWAY, ext_fields=ext)))
                    found.append(line.waiting)
                self.assertEqual(found, [0, 0, 0, 1, 2, 3])
                before = side.one.service.store.max_offset("T", 0)
                for _ in range(2):
                    peer.send(encode_command(RemotingCommand(37, flag=ONEWAY, ext_fields=end_ext(halves[0]))))
                self.assertEqual((line.waiting, stats.refusals.get((37, 2), 0) - refusals), (3, 2))
                self.assertEqual(side.one.service.store.max_offset("T", 0), before)
                side.one.world.run_for(0.05)
                self.assertEqual((line.waiting, peer.received()), (0, []))
            two.ask(*(RemotingCommand(37, flag=ONEWAY, ext_fields=end_ext(halves[0])) for _ in range(3)))
            two.compare_counters()  # the responder's op messages come after the sync
            self.assertGreater(two.taken[37], 4)
            two.end()

    def test_commits_are_counted_when_they_are_safe(self) -> None:
        """The statistics have a message that is committed after the sync, and not at all when that fails."""
        for fails in (0, 1):
            two = Two(self, **FLUSH)
            (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
            found: list[list[int]] = []
            for side, peer in zip(two.sides, two.peers, strict=True):
                stats = side.one.service.stats
                counters = [stats.counter(name, "T") for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")]
                counters += [stats.counter(f"TOPIC_{end}_NUMS", "T") for end in ("COMMIT", "ROLLBACK")]
                side.one.node.disk.fail_syncs = fails
                found.append([])
                for seconds in (0.0, 1.0):
                    if not seconds:
                        for end, flag in (("8", 0), ("8", ONEWAY), ("12", ONEWAY), ("8", ONEWAY)):
                            peer.send(encode_command(RemotingCommand(37, flag=flag, ext_fields=end_ext(half, end))))
                    side.one.world.run_for(seconds)
                    stats.settle()
                    found[-1] += [number for counter in counters for number in (counter.value, counter.times)]
            self.assertEqual(found[0], found[1], f"fails: {fails}")
            self.assertEqual(found[0][8] - found[0][0], 0 if fails else 3)
            self.assertEqual(two.taken[37], 4)
            self.flushLoggedErrors()

    def test_what_clients_do(self) -> None:
        """Half messages and their ends, delayed messages, each retry of a message up to the last: lanes take them."""
        two = Two(self)
        for number in range(10):
            (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext(number % 4), body=b"%d" % number))
            two.ask(RemotingCommand(37, ext_fields=end_ext(half, "8" if number % 3 else "12")))
            two.ask(RemotingCommand(310, ext_fields=send_ext(props=f"TAGS\x01a\x02DELAY\x01{number + 1}")))
            self.assertEqual((two.taken[310], two.taken[37]), (2 * number + 2, number + 1))
        offset = int(half.ext_fields["msgId"][16:], 16)
        delayed = [side.one.service.store.max_offset("%RETRY%g", 0) for side in two.sides]
        self.assertEqual(delayed, [0, 0])
        for times in range(1, 4):
            ext = back_ext(offset, maxReconsumeTimes="3")
            self.assertEqual(two.ask(RemotingCommand(36, ext_fields=ext, version=407))[0].code, 0)
            self.assertEqual(two.taken[36], times)
            for side in two.sides:
                side.one.world.run_for(60)
                store = side.one.service.store
                self.assertEqual(store.max_offset("%RETRY%g", 0), times)
                (retry,) = store.get("%RETRY%g", 0, times - 1, 1).messages
            record = decode_record(retry)
            self.assertEqual(record.property_map["RETRY_TOPIC"], "RMQ_SYS_TRANS_HALF_TOPIC")
            self.assertEqual((record.reconsume_times, record.property_map["DELAY"]), (times, str(2 + times)))
            offset = record.phy_offset
        # the fourth time it is a dead letter, answered when its topic is durable
        self.assertEqual(two.ask(RemotingCommand(36, ext_fields=ext | {"offset": str(offset)}, version=407)), [])
        for side, peer in zip(two.sides, two.peers, strict=True):
            side.one.world.run_for(1)
            self.assertEqual([each.code for each in decode_commands(peer.transport.read())], [0])
        self.assertEqual([side.one.service.store.max_offset("%DLQ%g", 0) for side in two.sides], [1, 1])
        self.assertEqual(two.taken[36], 3)
        two.compare()
        two.end()

    def test_refusals_and_settings_count_at_once(self) -> None:
        """What may not be stored is refused after a change of settings, of the topic or of the store as before it."""
        two = Two(self)
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
        offset = int(half.ext_fields["msgId"][16:], 16)
        commands = (
            lambda: RemotingCommand(310, ext_fields=half_ext()),
            lambda: RemotingCommand(37, ext_fields=end_ext(half)),
            lambda: RemotingCommand(36, ext_fields=back_ext(offset)),
        )
        for command in commands:
            self.assertEqual(two.ask(command())[0].code, 0)
        self.assertEqual(two.taken, {310: 2, 37: 1, 36: 1})
        for body, code in (
            (b"rejectTransactionMessage=true", 16),
            (b"rejectTransactionMessage=false\nbrokerPermission=4", 16),
        ):
            two.ask(RemotingCommand(25, body=body))
            self.assertIn(code, [two.ask(command())[0].code for command in commands])
        two.ask(RemotingCommand(25, body=b"brokerPermission=6"))
        for side in two.sides:
            side.one.service.store._appender.refusal = PutStatus.SERVICE_NOT_AVAILABLE
        before = dict(two.taken)
        for command in commands:
            self.assertNotEqual(two.ask(command())[0].code, 0)
        self.assertEqual(two.taken, before)
        two.compare()
        two.end()

    def test_end_of_a_file(self) -> None:
        """Where a log file has no room for what a request stores, the ordinary way takes it: nothing is drawn twice."""
        two = Two(self, retryQueueNums="4", mappedFileSizeCommitLog="32768")
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext(), body=b"x" * 300))
        offset = int(half.ext_fields["msgId"][16:], 16)
        for number in range(150):
            two.ask(RemotingCommand(37, ext_fields=end_ext(half)))
            two.ask(RemotingCommand(36, ext_fields=back_ext(offset, delayLevel=str(number % 18))))
            two.ask(RemotingCommand(310, ext_fields=half_ext(), body=b"x" * number))
        self.assertGreater(two.sides[0].one.service.store.end_offset, 4 * 32768)
        two.compare()
        self.assertLess(max(two.taken.values()), 151)
        self.assertGreater(min(two.taken.values()), 120)
        two.end()

    def _together(
        self, chance: random.Random, two: Two, code: int, make: Callable[[], tuple[dict[str, str], bytes]]
    ) -> None:
        """Give requests of several connections to a lane together, to the other broker one after the other."""
        together, writes, opaque = 0, 0, 1000
        channel, lane = two.peers[0].protocol.channel, two.lanes[code]
        for _ in range(40):
            frames = []
            for _ in range(chance.choice((1, 2, 16, MAX_TOGETHER + 3))):
                opaque += 1
                ext, body = make()
                flag = 0 if code == 36 else mostly(chance, 0, 2)  # one-way
                command = RemotingCommand(code, flag=flag, opaque=opaque, ext_fields=ext, body=body or None)
                frames.append(as_others_write(chance, command))
                twice = frames[-1] if code == 310 else frames[-1] * 2  # sends are taken from each as many as there are
                frames[-1] = mostly(chance, frames[-1], twice, frames[-1][:-1])
            answers, count = lane.together([(frame, channel) for frame in frames])
            self.assertEqual(count, sum(answer is not None for answer in answers))
            self.assertLessEqual(count, len(frames) if code == 310 else MAX_TOGETHER)
            if count:
                two.sides[0].table.stats.observe(code, 0.0, count)
            together += count
            writes += count > 0
            for frame, reply in sorted(zip(frames, answers, strict=True), key=lambda pair: pair[1] is None):
                sent = frame if len(frame) >= 4 + int.from_bytes(frame[:4], "big") else b""
                for peer in two.peers[reply is not None :] if sent else ():
                    peer.send(sent)
                found = [peer.transport.read() for peer in two.peers]
                self.assertEqual(found[0] if reply is None else reply, found[1], f"seed {SEED}")
        two.compare()
        self.assertGreater(together, 5 * writes)
        self.assertGreater(two.sides[0].one.service.store.end_offset, 65536)
        two.end()

    def test_send_backs_of_several_connections(self) -> None:
        """What several connections send back in one turn takes one write; the bytes are those of one after another."""
        chance = random.Random(SEED)
        two = Two(self, retryQueueNums="4", mappedFileSizeCommitLog="65536")
        places = []
        for number in range(5):
            ext = send_ext(queue_id=number % 4, props=f"TAGS\x01a\x02KEYS\x01k{number} x")
            (answer,) = two.ask(RemotingCommand(310, ext_fields=ext, body=b"x" * chance.randrange(500)))
            places.append(int(answer.ext_fields["msgId"][16:], 16))

        def make() -> tuple[dict[str, str], bytes]:
            ext = back_ext(chance.choice(places), delayLevel=str(chance.choice((0, 1, 2, 18, 99))))
            ext["group"] = mostly(chance, "g", "new", "a b")
            ext["offset"] = mostly(chance, ext["offset"], "-1", "77")
            return ext, b""

        self._together(chance, two, 36, make)

    def test_ends_of_several_connections(self) -> None:
        """So do the ends of transactions: commits to the same queue and to others, rollbacks, wrong ones among them."""
        chance = random.Random(SEED)
        two = Two(self, mappedFileSizeCommitLog="65536")
        halves = []
        for number in range(5):
            half = half_ext(number % 4, more=f"\x02TAGS\x01a\x02KEYS\x01k{number} x")
            halves += two.ask(RemotingCommand(310, ext_fields=half, body=b"x" * chance.randrange(500)))

        def make() -> tuple[dict[str, str], bytes]:
            ext = end_ext(chance.choice(halves), mostly(chance, chance.choice(("8", "12")), "0", "x"))
            ext["producerGroup"] = mostly(chance, "PG", "other")
            ext["commitLogOffset"] = mostly(chance, ext["commitLogOffset"], "-1", "77")
            return ext, b""

        self._together(chance, two, 37, make)

    def test_half_and_delayed_messages_of_several_connections(self) -> None:
        """So do half messages, delayed ones and ordinary ones among each other."""
        chance = random.Random(SEED)
        two = Two(self, mappedFileSizeCommitLog="65536")

        def make() -> tuple[dict[str, str], bytes]:
            queue, body = chance.randrange(4), b"x" * chance.randrange(500)
            level = mostly(chance, chance.choice(("1", "2", "18")), "0", "99", "x")
            delayed = send_ext(queue_id=queue, props=f"DELAY\x01{level}\x02TAGS\x01a")
            plain = send_ext(queue_id=queue, props="KEYS\x01DELAY TRAN_MSG")
            return chance.choice((half_ext(queue), half_ext(queue, f=mostly(chance, "4", "0")), delayed, plain)), body

        self._together(chance, two, 310, make)

    def test_properties_as_they_are_stored(self) -> None:
        """A committed message has the properties of its half message byte by byte, however Apache ended them."""
        taken = "", "\x02own\x01ü\x02TAGS\x01标签\x02KEYS\x01订单 😀"
        for end in (*taken, "\x02", "\x02KEYS\x01" + "k " * 40, "\x02TAGS\x01a\x02TAGS\x01b"):
            two = Two(self)
            text = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x011{end}"
            host = (bytes((10, 0, 0, 9)), 10911)
            for side in two.sides:
                message = Message("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"x", 0, text, 0, 1, host, host)
                put = side.one.service.store.put(message)
            assert isinstance(put, PutResult)
            fields = {"commitLogOffset": str(put.phy_offset), "tranStateTableOffset": str(put.queue_offset)}
            ext = {"producerGroup": "PG", "commitOrRollback": "8", "msgId": "00FF"} | fields
            self.assertEqual(two.ask(RemotingCommand(37, ext_fields=ext))[0].code, 0)
            two.compare()
            self.assertEqual(two.taken[37], int(end in taken))
            two.end()

    def test_what_is_left_to_the_responders(self) -> None:
        """Requests with something unusual are answered as without lanes, and no lane takes them."""
        two = Two(self, maxMessageSize="1000")
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
        (plain,) = two.ask(
            RemotingCommand(310, ext_fields=send_ext(props="PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010"))
        )
        offset = int(half.ext_fields["msgId"][16:], 16)
        for side in two.sides:
            host = (bytes((10, 0, 0, 9)), 10911)
            put = side.one.service.store.put(Message("T", 0, b"x", 0, "", 4, 1, host, host))
        assert isinstance(put, PutResult)
        two.taken.update(dict.fromkeys(CODES, 0))
        for command in (
            RemotingCommand(310, ext_fields=half_ext(more="\x02DELAY\x013")),
            RemotingCommand(310, ext_fields=half_ext(), body=bytes(1001)),
            RemotingCommand(37, ext_fields=end_ext(half, tranStateTableOffset="77")),
            RemotingCommand(37, ext_fields=end_ext(plain)),
            RemotingCommand(36, ext_fields=back_ext(put.phy_offset)),
            RemotingCommand(36, ext_fields=back_ext(offset, maxReconsumeTimes="0"), version=407),
        ):
            two.ask(command)
        self.assertEqual(two.taken, dict.fromkeys(CODES, 0))
        # the limit of clients before 3.4.9 does not count
        two.ask(RemotingCommand(36, ext_fields=back_ext(offset, maxReconsumeTimes="0"), version=100))
        self.assertEqual(two.taken[36], 1)
        for side in two.sides:
            side.one.service.topics.put(msgspec.structs.replace(topic("%RETRY%g", 1), perm=4))
        self.assertEqual(two.ask(RemotingCommand(36, ext_fields=back_ext(offset)))[0].code, 16)
        for side in two.sides:
            for queue in side.one.service.store._queues:
                queue.next += 2_000_000 if queue.topic == "RMQ_SYS_TRANS_HALF_TOPIC" else 0
        taken = dict(two.taken)
        two.ask(RemotingCommand(310, ext_fields=half_ext()))
        self.assertEqual(two.taken, taken)
        two.compare()
        two.end()

    def test_ipv6(self) -> None:
        """Messages of clients and brokers with IPv6 addresses are stored whole, by the ordinary way."""
        for values, host in (({}, "2001:db8::7"), ({"brokerIP1": "2001:db8::1"}, "192.0.2.7")):
            two = Two(self, **values)
            two.peers = [Peer(side.table, transport=RecordingTransport(host)) for side in two.sides]
            (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
            offset = int(half.ext_fields["msgId"][-16:], 16)
            two.ask(RemotingCommand(310, ext_fields=send_ext(props="DELAY\x015")))
            two.ask(RemotingCommand(37, ext_fields=end_ext(half) | {"commitLogOffset": str(offset)}))
            two.ask(RemotingCommand(36, ext_fields=back_ext(offset)))
            two.compare()
            self.assertEqual(two.taken, dict.fromkeys(CODES, 0))
            two.end()

    def test_queues_of_retries_are_drawn(self) -> None:
        """Retries go to all queues of their group."""
        two = Two(self)
        for side in two.sides:
            service = side.one.service
            service.topics.put(topic("%RETRY%g", 4))
            group = service.groups.get("g")
            assert group is not None
            group.retry_queue_nums = 4
        (half,) = two.ask(RemotingCommand(310, ext_fields=half_ext()))
        for _ in range(30):
            two.ask(RemotingCommand(36, ext_fields=back_ext(int(half.ext_fields["msgId"][16:], 16))))
        two.compare()
        log = two.sides[0].log()
        drawn = {text for text in (b"0", b"1", b"2", b"3") if PROPERTY_REAL_QUEUE_ID.encode() + b"\x01" + text in log}
        self.assertEqual((len(drawn), two.taken[36]), (4, 30))
        two.end()

    def test_a_planted_difference_is_seen(self) -> None:
        """Two brokers that stored different messages do not compare equal."""
        two = Two(self)
        two.peers[0].tell(RemotingCommand(310, 1, ext_fields=half_ext(h="1")))
        two.peers[1].tell(RemotingCommand(310, 1, ext_fields=half_ext(h="2")))
        with self.assertRaises(AssertionError):
            two.compare()
        two.end()

    def test_same_where_answers_wait(self) -> None:
        """So they are where answers come after a sync, or with code 11 for want of a slave."""
        taken = dict.fromkeys(CODES, 0)
        for values in WAITING:
            # deliveries would come at times of their own
            two = Two(self, **values, messageDelayLevel=" ".join(["2h"] * 18))
            self._same_answers_and_bytes(two, random.Random(f"{SEED} {values}"), 300)
            taken = {code: count + two.taken[code] for code, count in taken.items()}
        self.assertGreater(min(taken.values()), 5, f"seed {SEED}: lanes took next to nothing")

    def test_a_slave_has_no_lane(self) -> None:
        """Nothing is stored by a slave."""
        one = OneBroker({"brokerRole": "SLAVE", "brokerId": "1"})
        self.assertTrue(one.service.responders.chunk_lanes.keys().isdisjoint(CODES))
        one.end()

    def test_an_end_is_answered_when_it_is_on_disk(self) -> None:
        """Until the sync a commit has no answer; one-way ends, rollbacks, retries and WAIT=false wait for nothing."""
        two = Two(self, flushDiskType="SYNC_FLUSH")
        hasty = half_ext() | {"i": half_ext()["i"].replace("true", "false", 1)}
        halves = [two.ask(RemotingCommand(310, ext_fields=ext))[0] for ext in (*[half_ext()] * 4, hasty)]
        offset = int(halves[0].ext_fields["msgId"][16:], 16)
        synced = {side: side.one.service.store.flushed_offset for side in two.sides}
        requests = [
            (RemotingCommand(37, ext_fields=end_ext(halves[0])), False),
            (RemotingCommand(37, flag=2, ext_fields=end_ext(halves[1])), False),
            (RemotingCommand(37, ext_fields=end_ext(halves[2], "12")), True),
            (RemotingCommand(37, flag=2, ext_fields=end_ext(halves[3], "12")), False),
            (RemotingCommand(37, ext_fields=end_ext(halves[4])), True),
            (RemotingCommand(36, ext_fields=back_ext(offset)), True),
        ]
        for command, at_once in requests:
            for side, peer in zip(two.sides, two.peers, strict=True):
                peer.send(encode_command(command))
                self.assertEqual(bool(peer.transport.read()), at_once, command)
                self.assertEqual(side.one.service.store.flushed_offset, synced[side])
                side.one.world.run_for(0.05)
                synced[side] = side.one.service.store.flushed_offset
                self.assertEqual(bool(peer.transport.read()), not at_once and not command.flag, command)
        two.compare()
        self.assertEqual(two.taken[36], 1)
        two.end()
