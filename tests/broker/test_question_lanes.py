"""The lanes for questions of tools, and for locks: they answer what the ordinary way answers, or nothing."""

from __future__ import annotations

import json
import random
import re
import struct

from rmq.broker import consumerlanes, questionlanes
from rmq.broker.consumerlanes import LockLane
from rmq.broker.questionlanes import (
    ConsumeStatsLane,
    KeyLane,
    MaxOffsetLane,
    MessageLane,
    MinOffsetLane,
    OffsetByTimeLane,
    TopicStatsLane,
)
from rmq.runtime.disk.error import DiskError
from rmq.wire.command import ONEWAY, RemotingCommand, decode_commands, encode_command
from rmq.wire.record import decode_records
from tests.broker.harness import OneBroker, SidesCase, heartbeat, send_ext
from tests.needs import need_compiled
from tests.otherclients import as_others_write
from tests.remoting.peer import Peer
from tests.seeds import SEED

OF_STORE = (MaxOffsetLane, MinOffsetLane, OffsetByTimeLane, MessageLane, KeyLane, TopicStatsLane, ConsumeStatsLane)
CODES = [LockLane.code, *(int(lane.contract.code) for lane in OF_STORE)]
TOPICS, GROUPS = ("T", "U", "absent", "ü"), ("g", "h", "absent")
#: the last two have the same hash
KEYS = ("k", "ü", "Aa", "BB")

BY_KEY = {"topic": "T", "key": "key", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}


def lock_body(chance: random.Random) -> bytes:
    queues = [
        {"topic": chance.choice(TOPICS), "brokerName": "broker-a", "queueId": queue}
        for queue in range(chance.choice((0, 1, 3)))
    ]
    asked = {"consumerGroup": chance.choice(GROUPS), "clientId": chance.choice("ab"), "mqSet": queues}
    return json.dumps(asked, separators=chance.choice(((",", ":"), (", ", ": ")))).encode()


def random_request(chance: random.Random, one: OneBroker) -> RemotingCommand:
    """Return a question, most of them plain, or something that changes the answers."""

    def mostly(usual: str, *others: str) -> str:
        return usual if chance.random() < 0.95 else chance.choice(others)

    topic, group, queue_id = chance.choice(TOPICS), chance.choice(GROUPS), chance.choice("0123")
    kind = chance.random()
    if kind < 0.1:
        props = f"KEYS\x01{chance.choice(KEYS)} {chance.choice(KEYS)}\x02UNIQ_KEY\x01{chance.choice(KEYS)}"
        sent = send_ext(chance.choice("TU"), queue_id=int(queue_id), props=chance.choice(("", props, props)))
        return RemotingCommand(310, ext_fields=sent, body=b"body")
    if kind < 0.2:
        ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": str(chance.randrange(9))}
        return RemotingCommand(15, ext_fields=ext)
    if kind < 0.22:
        return RemotingCommand(34, body=heartbeat("me", chance.choice("gh"), *chance.sample(("T", "U"), k=1)))
    if kind < 0.24:
        queues = chance.choice("1258")
        ext = {"topic": "U", "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": chance.choice("158")}
        ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        return RemotingCommand(17, ext_fields=ext)
    if kind < 0.25:
        return RemotingCommand(215, ext_fields={"topic": chance.choice("TU")})
    if kind < 0.27:
        return RemotingCommand(42, body=lock_body(chance))
    code = chance.choice(CODES)
    now = int(one.service.clock.seconds() * 1000)
    ext = {
        "consumerGroup": group,
        "topic": mostly(topic, "", "T@g"),
        "queueId": mostly(queue_id, "-1", "x", "99999999999"),
        "timestamp": mostly(str(now - chance.randrange(100_000)), "-1", "0", str(1 << 63), "x", str(now + 9)),
        "boundaryType": chance.choice(("UPPER", "LOWER", "")),
        "offset": mostly(str(chance.choice((0, 0, 0, 100))), "-1", str(1 << 62), "x"),
        "key": mostly(chance.choice(KEYS), "", "k k", "absent", "\ufffd"),
        "maxNum": mostly(chance.choice(("1", "3", "32")), "0", "-1", "99", "x"),
        "beginTimestamp": mostly("0", str(now - chance.randrange(100_000)), "-1", str(1 << 63)),
        "endTimestamp": mostly(str(1 << 62), str(now - chance.randrange(100_000)), "0", "x"),
        "_UNIQUE_KEY_QUERY": chance.choice(("true", "TRUE", "false", "1", "")),
    }
    for name in chance.sample(sorted(ext), k=chance.choice((0, 1, 2))):
        del ext[name]
    return RemotingCommand(
        code,
        flag=int(mostly("0", str(ONEWAY), "4")),
        version=chance.choice((407, 479)),
        ext_fields=ext,
        body=mostly("", "?").encode() if code != LockLane.code else mostly("", "x").encode() + lock_body(chance),
        serialize_type=int(mostly("0", "1")),
    )


class QuestionLaneTests(SidesCase):
    codes = CODES

    def setUp(self) -> None:
        need_compiled("rmq.store._pick", "rmq.store._record")
        super().setUp()
        for one in self.sides:
            one.connect().ask(310, send_ext("T"), b"first")
        self.connect()

    def connect(self) -> None:
        self.peers = [Peer(one.service.responders) for one in self.sides]
        for peer in self.peers:  # the first bytes of a connection take the ordinary way
            peer.send(encode_command(RemotingCommand(30, ext_fields={"topic": "T", "queueId": "0"})))
            peer.received()

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes | None = None) -> RemotingCommand:
        """Return the answer of the side with lanes, which is that of the other."""
        answers = []
        for peer in self.peers:
            peer.send(encode_command(RemotingCommand(code, opaque=5, ext_fields=ext or {}, body=body)))
        self.run_for(0.1)
        for peer in self.peers:
            answers.append(list(map(encode_command, peer.received())))
        self.assertEqual(*answers)
        (answer,) = decode_commands(answers[0][0])
        return answer

    def run_for(self, seconds: float) -> None:
        for one in self.sides:
            one.world.run_for(seconds)

    def test_same_answers(self) -> None:
        """Whatever is asked and changes: answers and counters are those of the ordinary way."""
        chance = random.Random(SEED)
        opaque = answered = 0
        for number in range(200):
            if number % 10 == 0:  # a connection ends with the membership of its client
                self.connect()
            chunks = [b"" for _ in range(chance.choice((1, 4)))]
            for at in [*range(len(chunks)), *chance.choices(range(len(chunks)), k=4)]:
                opaque += 1
                command = random_request(chance, self.sides[0])
                command.opaque = opaque
                chunks[at] += as_others_write(chance, command)
            for peer in self.peers:
                for chunk in chunks:
                    peer.send(chunk)
            self.run_for(chance.choices((0.0, 0.01, 1.0, 3.0, 30.0), (8, 4, 2, 1, 1))[0])
            left, right = (
                [encode_command(each) for each in sorted(peer.received(), key=lambda answer: answer.opaque)]
                for peer in self.peers
            )
            self.assertEqual(left, right, f"seed {SEED}, round {number}")
            answered += len(left)
        self.assertGreater(answered, opaque // 2)
        for code, count in self.taken.items():
            self.assertGreater(count, 5, f"seed {SEED}: the lane of {code} took next to nothing")
        stats = [one.service.responders.stats for one in self.sides]
        self.assertEqual(stats[0].counts, stats[1].counts, f"seed {SEED}")
        self.assertEqual(stats[0].refusals, stats[1].refusals, f"seed {SEED}")

    def test_a_topic_that_is_made_again(self) -> None:
        """The same number of other messages is another answer."""
        commit = 15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
        questions = (202, {"topic": "T"}), (208, {"consumerGroup": "g", "topic": "T"})

        def answers() -> list[bytes | None]:
            return [self.ask(*question).body for question in questions]

        self.ask(*commit)
        before = answers()
        self.assertEqual(answers(), before)
        self.run_for(2.0)
        for changed in (215, {"topic": "T"}), (310, send_ext("T")), commit:
            self.assertEqual(self.ask(*changed, b"again").code, 0)
        for old, new in zip(before, answers(), strict=True):
            self.assertNotEqual(new, old)
            places = [re.sub(rb'"last\w*Timestamp":\d+', b"", each or b"") for each in (old, new)]
            self.assertEqual(*places)

    def test_an_answer_is_made_once(self) -> None:
        """It is made again when something has changed, and only then."""
        made: list[object] = []
        lane = self.lanes[202]
        real = lane.body

        def body(*what: object) -> object:
            made.append(what)
            return real(*what)

        self.patch(lane, "body", body)
        for _ in range(3):
            self.ask(202, {"topic": "T"})
        self.assertEqual(len(made), 1)
        self.ask(310, send_ext("T"), b"second")
        self.assertIn(b'"maxOffset":2', self.ask(202, {"topic": "T"}).body or b"")
        self.assertEqual(len(made), 2)

    def test_kept_bodies_are_bounded(self) -> None:
        self.patch(consumerlanes, "MAX_KEPT_BYTES", 2000)
        for number in range(20):
            self.ask(310, send_ext(f"T{number}"), b"x")
            self.ask(202, {"topic": f"T{number}"})
            self.ask(41, None, b'{"consumerGroup":"g","clientId":"c%d","mqSet":[]}' % number)
            for code in 202, 41:
                kept = self.lanes[code]._known.values()
                self.assertLess(sum(len(each[0][2] if code == 202 else each[2]) for each in kept), 4000)
        self.assertEqual([self.taken[202], self.taken[41]], [20, 20])

    def test_known_locks_are_bounded(self) -> None:
        """Other short bodies without end do not fill the memory either."""
        self.patch(consumerlanes, "MAX_KNOWN", 3)
        for number in range(8):
            self.ask(41, None, b'{"consumerGroup":"g","clientId":"c%d","mqSet":[]}' % number)
            self.assertLessEqual(len(self.lanes[41]._known), 3)
        self.assertEqual(self.taken[41], 8)

    def test_messages_of_a_key(self) -> None:
        """They are found once they are stored; nothing found, and more than a frame holds, is left to the responder."""
        self.assertEqual(self.ask(12, BY_KEY).code, 22)
        for body in b"one", b"two":
            self.ask(310, send_ext("T", props="KEYS\x01key"), body)
            answer = self.ask(12, BY_KEY)
            self.assertEqual(decode_records(answer.body or b"")[-1].body, body)
        self.assertEqual(self.taken[12], 2)
        for most, taken in (0, 3), (-1, 3):
            self.patch(questionlanes, "MAX_FOUND_BYTES", len(answer.body or b"") + most)
            self.assertEqual(self.ask(12, BY_KEY).body, answer.body)
            self.assertEqual(self.taken[12], taken)

    def test_other_keys_are_known(self) -> None:
        """Whose header differs in its key and its time only is not decoded; a key that may be no JSON is."""
        for number in range(3):
            self.ask(310, send_ext("T", props=f"KEYS\x01key{number} \x7f"), b"%d" % number)
        for number, begin in (0, "0"), (1, "-1"), (2, "5"):
            answer = self.ask(12, {**BY_KEY, "key": f"key{number}", "beginTimestamp": begin})
            self.assertEqual(decode_records(answer.body or b"")[0].body, b"%d" % number)
        self.ask(12, {**BY_KEY, "key": "\x7f"})
        self.assertEqual((self.taken[12], len(self.lanes[12]._known)), (4, 1))
        self.assertEqual(self.ask(12, {**BY_KEY, "key": "key0", "beginTimestamp": "9" * 15}).code, 22)

        # messages that are found where these texts are taken as they are written
        self.ask(310, send_ext("T", props="KEYS\x01ke\\u0079 k\ny 4444 true"))

        frame = encode_command(RemotingCommand(12, opaque=7, ext_fields={**BY_KEY, "key": "key0"}))
        odd = [b'""', b"4444", b'"ke\\u0079"', b'"\xffey"', b'"\xed\xa0\x80"', b'"k\ny"', b'"k","key":"key0"', b"true"]
        for text in odd:
            header = frame[8:].replace(b'"key0"', text)
            chunk = struct.pack(">II", 4 + len(header), len(header)) + header
            self.connect()
            for peer in self.peers:
                peer.send(chunk)
            self.run_for(0.1)
            left, right = ([encode_command(each) for each in peer.received()] for peer in self.peers)
            self.assertEqual(left, right, text)
        without = {name: value for name, value in BY_KEY.items() if name != "beginTimestamp"}
        self.ask(12, {**without, "key": "key0"})
        self.assertEqual(self.taken[12], 4)

    def test_a_disk_that_does_not_answer(self) -> None:
        """The ordinary way says what the disk says, and the next question is answered."""
        self.ask(310, send_ext("T", props="KEYS\x01key"))
        questions: list[tuple[int, dict[str, str]]] = [
            (33, {"offset": "0"}),
            (12, BY_KEY),
            (202, {"topic": "T"}),
            (29, {"topic": "T", "queueId": "0", "timestamp": "5"}),
        ]

        def broken(*_: object) -> None:
            raise DiskError("log", "cannot be read")

        patches = [self.patch(one.service.store._commit_log, "view_some", broken) for one in self.sides]
        for code, ext in questions:
            answer = self.ask(code, ext)
            self.assertEqual((answer.code, answer.remark), (1, "log: cannot be read"))
        for patch in patches:
            patch.restore()
        for code, ext in questions:
            self.assertEqual(self.ask(code, ext).code, 0)

    def test_locks_change_hands(self) -> None:
        """A kept question is answered with the locks of the moment."""
        queues = b'[{"topic":"T","brokerName":"broker-a","queueId":0}]'

        def lock(client: bytes) -> bool:
            body = (
                self.ask(41, None, b'{"consumerGroup":"g","clientId":"%s","mqSet":%s}' % (client, queues)).body or b""
            )
            return b"queueId" in body

        self.assertEqual([lock(b"a"), lock(b"b"), lock(b"a"), lock(b"b")], [True, False, True, False])
        self.run_for(61)
        self.assertEqual([lock(b"b"), lock(b"a")], [True, False])
        self.ask(42, None, b'{"consumerGroup":"g","clientId":"b","mqSet":%s}' % queues)
        self.assertEqual([lock(b"a"), lock(b"b")], [True, False])
        self.assertEqual(self.taken[41], 8)

    def test_a_slave_keeps_no_answers(self) -> None:
        """Its log can be cut where nobody sees it."""
        one = OneBroker({"brokerRole": "SLAVE", "brokerId": "1"}, seed=3)
        lanes = one.service.responders.chunk_lanes
        self.assertEqual([code in lanes for code in (12, 29, 30, 31, 33, 202, 208)], [True] * 5 + [False] * 2)
        one.end()
        self.flushLoggedErrors()
