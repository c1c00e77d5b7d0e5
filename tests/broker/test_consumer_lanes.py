"""The lanes for what members of a group repeat: they answer what the ordinary way answers, or nothing."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import consumerlanes, sessions
from rmq.broker.consumerlanes import CommitLane, HeartbeatLane, MembersLane, QueryLane
from rmq.broker.sessions import Member
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from rmq.wire.frames import PREFIX
from tests.broker.harness import OneBroker, SidesCase, heartbeat, send_ext
from tests.needs import need_compiled
from tests.otherclients import as_others_write, pieces
from tests.remoting.peer import LeanTransport, Peer
from tests.seeds import SEED

LANES = (CommitLane, QueryLane, MembersLane)
CODES = [int(lane.contract.code) for lane in LANES] + [HeartbeatLane.code]


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


def random_heartbeat(chance: random.Random) -> bytes:
    """Return what a client may say of its groups."""
    body = heartbeat(
        chance.choice("aab"),
        chance.choice("gggh"),
        *chance.sample(("T", "U", "V"), k=chance.choice((1, 1, 2))),
        producer=chance.choice((None, "pg", "ph")),
    )
    for old, new in (
        (b'"subVersion":1', b'"subVersion":2'),
        (b'"TAG","subString":"*"', b'"SQL92","subString":"a > 1"'),
        (b'"TAG","subString":"*"', b'"SQL92","subString":"a >"'),
        (b"FIRST", b"LAST"),
        (b'"groupName":"g"', b'"groupName":""'),
        (b'"consumerDataSet"', b'"withoutSub":true,"consumerDataSet"'),
        (b'"consumerDataSet":[', b'"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[]},'),
        (b"}", b""),
    ):
        if chance.random() < 0.06:
            body = body.replace(old, new)
    return body


def state_of(one: OneBroker) -> list[object]:
    """Return everything that heartbeats change."""
    service = one.service
    state: list[object] = []
    for name, members in service.producers.table().items():
        state.append((name, list(map(_shown, members))))
    for name in service.consumers.names():
        group = service.consumers.find(name)
        assert group is not None
        said = group.consume_type, group.message_model, group.consume_from_where, dict(group.subscriptions)
        state.append((name, *said, list(map(_shown, group.members.values()))))
    for client_id in "abc":
        found = service.producers.find_client(client_id)
        state.append(None if found is None else _shown(found))
    return [*state, list(map(repr, service.filters)), service.topics.names(), service.groups.names()]


def _shown(member: Member) -> tuple[object, ...]:
    return member.channel.peer, member.client_id, member.language, member.version, member.last_heard_ms


class TogetherTests(SynchronousTestCase):
    def test_lanes_that_follow_each_other(self) -> None:
        """Requests of several lanes in one chunk are answered with one write, as commits before a query are."""
        need_compiled("rmq.remoting._fastpath")
        one = OneBroker()
        one.connect().ask(310, send_ext("T"))
        table = one.service.responders
        transport = LeanTransport()
        peer = Peer(table, transport=transport)
        where = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        chunk = b"".join(
            encode_command(RemotingCommand(code, opaque=opaque, flag=flag, ext_fields=ext))
            for opaque, code, flag, ext in (
                (1, 15, ONEWAY, where | {"commitOffset": "7"}),
                (2, 14, 0, where),
                (3, 15, 0, where | {"commitOffset": "8"}),
                (4, 14, 0, where),
            )
        )
        before = dict(table.stats.counts)
        for fast in (0, 1):  # the first bytes of a connection take the ordinary way
            writes = len(transport.writes)
            peer.send(chunk)
            answers = peer.received()
            self.assertEqual([answer.opaque for answer in answers], [2, 3, 4])
            self.assertEqual([answer.ext_fields.get("offset") for answer in answers], ["7", None, "8"])
            self.assertEqual(transport.answered_fast, fast)
        self.assertEqual(len(transport.writes) - writes, 1)
        self.assertEqual([table.stats.counts[code] - before.get(code, 0) for code in (14, 15)], [4, 4])
        one.end()


class FillTests(SynchronousTestCase):
    """:func:`rmq.store._pick.fill`"""

    def test_numbers_between_texts(self) -> None:
        """The frame is what formatting would make; too few texts, or more than a header has room for, are refused."""
        need_compiled("rmq.store._pick")
        fill, chance = consumerlanes._compiled.fill, random.Random(SEED)
        for _ in range(300):
            numbers = [
                chance.choice((0, -1, 1 << 31, -(1 << 63), (1 << 63) - 1, chance.randrange(1000)))
                for _ in range(chance.randrange(4))
            ]
            texts = tuple(b"t" * chance.randrange(9) for _ in range(len(numbers) + 1))
            body = b"b" * chance.choice((0, 5, 5000))
            header = b"%d".join(texts) % tuple(numbers)
            frame = PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body
            self.assertEqual(fill(texts, body, *numbers), frame, f"seed {SEED}: {texts}, {numbers}")
        self.assertRaises(ValueError, fill, (b"one",), b"", 1)
        self.assertRaises(ValueError, fill, (b"one", b"x" * 400), b"", 1)
        self.assertRaises(OverflowError, fill, (b"", b""), b"", 1 << 63)


class ConsumerLaneTests(SidesCase):
    codes = CODES

    def setUp(self) -> None:
        need_compiled("rmq.store._pick")
        super().setUp()
        for one in self.sides:
            client = one.connect()
            client.ask(310, send_ext("T"))
            client.ask(34, body=heartbeat("me", "g", "T"))

    def test_same_answers(self) -> None:
        """Whatever is asked, in any pieces: answers, offsets and counters are those of the ordinary way."""
        chance = random.Random(SEED)
        peers = [Peer(one.service.responders) for one in self.sides]
        opaque = 0
        for number in range(400):
            stream = b""
            for _ in range(chance.randrange(1, 8)):
                opaque += 1
                command = random_request(chance)
                command.opaque = opaque
                stream += as_others_write(chance, command)
            parts = pieces(chance, stream)
            for peer in peers:
                for part in parts:
                    peer.send(part)
            left, right = (list(map(encode_command, peer.received())) for peer in peers)
            self.assertEqual(left, right, f"seed {SEED}, round {number}")
            snapshots = [one.service.offsets.snapshot() for one in self.sides]
            self.assertEqual(snapshots[0], snapshots[1], f"seed {SEED}, round {number}")
        for lane in LANES:
            code = int(lane.contract.code)
            self.assertGreater(self.taken[code], 5, f"seed {SEED}: the lane of {code} took next to nothing")
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
        self.assertEqual(self.taken[15], 1)

    def test_heartbeats(self) -> None:
        """Whatever clients say and commands change: answers, notices, groups are those of the ordinary way."""
        chance = random.Random(SEED)
        clients = [[one.connect() for one in self.sides] for _ in range(4)]
        said: dict[int, bytes] = {}
        for number in range(400):
            place = chance.randrange(4)
            self.assertEqual(*(each.closed for each in clients[place]))
            what = 0.9 if clients[place][0].closed else chance.random()
            if what < 0.7 and place in said:
                ask: tuple[int, dict[str, str] | None, bytes] = 34, None, said[place]
            elif what < 0.88:
                said[place] = random_heartbeat(chance)
                ask = 34, None, said[place]
            elif what < 0.91:
                for side, one in enumerate(self.sides):
                    transport: Any = clients[place][side].transport
                    transport.loseConnection()
                    clients[place][side] = one.connect()
                continue
            else:
                group = chance.choice("gh")
                ask = chance.choice(
                    (
                        (35, {"clientID": "a", "consumerGroup": group}, b""),
                        (35, {"clientID": "a", "producerGroup": f"p{group}"}, b""),
                        (207, {"groupName": group}, b""),
                        (215, {"topic": f"%RETRY%{group}"}, b""),
                    )
                )
            version = chance.choice((409, 409, 409, 407))
            wait_s = chance.choice((0.0, 0.0, 0.0, 1.0, 20.0))
            for one, client in zip(self.sides, clients[place], strict=True):
                client.ask(*ask, version=version)
                one.world.run_for(wait_s)
            received = [[list(map(encode_command, each.received)) for each in pair] for pair in clients]
            for left, right in received:
                self.assertEqual(left, right, f"seed {SEED}, round {number}")
            states = [state_of(one) for one in self.sides]
            self.assertEqual(states[0], states[1], f"seed {SEED}, round {number}")
        self.assertGreater(self.taken[34], 15, f"seed {SEED}: the lane took next to nothing")

    def test_a_heartbeat_that_changes_something_again(self) -> None:
        """A heartbeat as before counts, if what it says was changed by another client or a command meanwhile."""
        one = self.sides[0]
        service = one.service
        first, second = one.connect(), one.connect()
        body = heartbeat("a", "new", "T", producer="p")

        def taken() -> int:
            before = self.taken[34]
            self.assertEqual(first.ask(34, body=body).code, 0)
            return self.taken[34] - before

        self.assertEqual([taken(), taken(), taken()], [0, 1, 1])
        group = service.consumers.find("new")
        assert group is not None
        second.ask(34, body=heartbeat("b", "new", "Other"))
        self.assertEqual(list(group.subscriptions), ["Other"])
        self.assertEqual(([taken(), taken()], list(group.subscriptions)), ([0, 1], ["T"]))
        second.ask(34, body=heartbeat("b", "new", "T").replace(b"FIRST", b"LAST"))
        self.assertEqual(group.consume_from_where, "CONSUME_FROM_LAST_OFFSET")
        self.assertEqual(([taken(), taken()], group.consume_from_where), ([0, 1], "CONSUME_FROM_FIRST_OFFSET"))
        second.ask(34, body=heartbeat("a", "other", "T", producer="p"))
        self.assertEqual([taken(), taken()], [0, 1])
        second.ask(
            34, body=heartbeat("b", "new", "T").replace(b'"TAG","subString":"*"', b'"SQL92","subString":"a > 1"')
        )
        self.assertTrue(service.filters.is_used("new"))
        self.assertEqual(([taken(), taken()], service.filters.is_used("new")), ([0, 1], False))
        service.topics.delete("%RETRY%new")
        self.assertEqual([taken(), taken()], [0, 1])
        self.assertIsNotNone(service.topics.get("%RETRY%new"))
        first.ask(35, {"clientID": "a", "producerGroup": "p"})
        self.assertEqual([taken(), taken()], [0, 1])
        self.assertIs(service.producers.members("p")[-1].channel, next(iter(group.members)))

    def test_headers_of_heartbeats(self) -> None:
        """Clients that write blanks, no fields, another language or another order are served; odd headers are too."""
        body = heartbeat("a", "new", "T")
        for header, taken in (
            (b'{"code": 34, "language": "PYTHON", "version": 409, "opaque":         7, "flag": 0, "extFields": {}}', 1),
            (b'{"opaque":7,"version":409,"code":34,"extFields":{"a":"b"},"language":"CPP"}', 1),
            (b'{"opaque":7,"version":409,"code":34,"language":"OTHER"}', 1),
            (b'{"opaque":7,"version":409,"code":34,"language":"NONE"}', 0),
            (b'{"opaque":7,"version":409,"code":34,"language":5}', 0),
            (b'{"opaque":7,"version":409,"code":34}', 0),
            (b'{"opaque":7,"version":409,"code":34,"language":"JAVA","extFields":null}', 0),
            (b'{"opaque":7,"version":409,"code":34,"language":"JAVA","flag":2}', 0),
        ):
            states = []
            for one in self.sides:
                peer = Peer(one.service.responders)
                before = self.taken[34]
                for _ in range(2):
                    peer.send(PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body)
                answers = [(answer.code, answer.opaque) for answer in peer.received() if answer.is_response]
                self.assertEqual(answers, [] if b'"flag":2' in header else [(0, 7), (0, 7)])
                if one is self.sides[0]:
                    self.assertEqual(self.taken[34] - before, taken, header)
                states.append(state_of(one))
            self.assertEqual(states[0], states[1])

    def test_a_repeated_heartbeat_keeps_a_client_online(self) -> None:
        """Clients expire 120 s after their last heartbeat, whether that was a repetition or not."""
        one = self.sides[0]
        client = one.connect()
        for _ in range(5):
            client.ask(34, body=heartbeat("a", "new", "T"))
            one.world.run_for(100)
        # within the first minute the version of the topics changes
        self.assertEqual(self.taken[34], 3)
        self.assertFalse(client.closed)
        one.world.run_for(40)
        self.assertTrue(client.closed)
        self.assertIsNone(one.service.consumers.find("new"))

    def test_kept_heartbeats_are_bounded(self) -> None:
        """Heartbeats are kept up to a limit, the long ones never, and none of a connection that has gone."""
        one = self.sides[0]
        kept = one.service.heartbeats
        before = kept.kept_bytes
        client = one.connect()
        client.ask(34, body=heartbeat("a", "new", "T"))
        self.assertEqual(kept.kept_bytes - before, len(heartbeat("a", "new", "T")))
        client.ask(34, body=heartbeat("a", "new", "T" * sessions.MAX_KEPT_BODY_BYTES))
        self.assertEqual(kept.kept_bytes, before)
        client.ask(34, body=heartbeat("a", "new", "T"))
        transport: Any = client.transport
        transport.loseConnection()
        one.world.run_for(1)
        self.assertEqual(kept.kept_bytes, before)
        self.patch(sessions, "MAX_KEPT_BYTES", 1000)
        for number in range(8):
            one.connect().ask(34, body=heartbeat(f"c{number}", "new", "T"))
            self.assertLessEqual(kept.kept_bytes, 1000)
        self.assertGreater(kept.kept_bytes, 0)

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
