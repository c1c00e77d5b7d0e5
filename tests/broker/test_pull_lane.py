"""The lane for pulls: it answers what the ordinary way answers, or nothing."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any, cast

import msgspec
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import pulllane
from rmq.broker.longpoll import HeldPull
from rmq.broker.pulllane import PullLane
from rmq.remoting import protocol
from rmq.remoting.channel import Channel
from rmq.remoting.responders import OVERLOAD_REMARK
from rmq.runtime.disk.error import DiskError
from rmq.store.consumequeue import ConsumeQueue
from rmq.wire.command import ONEWAY, RemotingCommand, decode_commands, encode_command
from rmq.wire.frames import PREFIX
from rmq.wire.record import decode_records
from tests.broker.harness import OneBroker, heartbeat, pull_ext, send_ext, setup_of
from tests.needs import need_compiled
from tests.otherclients import as_others_write, pieces
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
        subscription=mostly(chance.choice(("*", "A", "A || B", "TAGS = 'A'")), "", "||", "C"),
        subVersion=mostly("1", "0", "2"),
        expressionType=chance.choice(("TAG", "TAG", "SQL92")) if chance.random() < 0.95 else "",
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


def peer_of(one: OneBroker) -> Peer:
    """Return a client that has connected; it has the broker's time, but its own timers."""
    clock = Clock()
    clock.seconds = one.service.clock.seconds  # type: ignore[method-assign]
    return Peer(one.service.responders, clock=clock)


class LaneCase(SynchronousTestCase):
    """Two brokers with the same messages, one of them without lanes."""

    def setUp(self) -> None:
        self.sides = [OneBroker({"enablePropertyFilter": "true"}, seed=3) for _ in range(2)]
        self.taken = self.kept = 0
        for one in self.sides:
            client = one.connect()
            for number in range(120):
                tag = "AB"[number % 2]
                client.ask(310, send_ext(queue_id=number % 3, props=f"TAGS\x01{tag}"), b"x" * (number % 50))
            client.ask(34, body=heartbeat("me", "live", "T"))
        lanes = self.sides[0].service.responders.chunk_lanes
        need_compiled("rmq.store._pick")
        self.lane = lane = cast(PullLane, lanes[11])

        def counted(data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
            before = len(self.sides[0].service.polls)
            stop, count = lane(data, position, answers, channel)
            self.taken += count
            self.kept += len(self.sides[0].service.polls) - before
            return stop, count

        counted.code = 11  # type: ignore[attr-defined]
        self.sides[0].service.responders.chunk_lanes = {**lanes, 11: counted}  # type: ignore[dict-item]
        self.sides[1].service.responders.chunk_lanes = {}

    def tearDown(self) -> None:
        for one in self.sides:
            one.end()
        self.flushLoggedErrors()


class PullLaneTests(LaneCase):
    def test_same_answers(self) -> None:
        """Whatever is pulled, in any pieces: answers, offsets and counters are those of the ordinary way."""
        seed = SEED
        chance = random.Random(seed)
        peers = [peer_of(one) for one in self.sides]
        opaque = 0
        for number in range(150):
            stream = b""
            for _ in range(chance.randrange(1, 8)):
                opaque += 1
                command = random_pull(chance)
                command.opaque = opaque
                stream += as_others_write(chance, command)
            parts = pieces(chance, stream)
            for peer in peers:
                for part in parts:
                    peer.send(part)
            left, right = (list(map(encode_command, peer.received())) for peer in peers)
            self.assertEqual(left, right, f"seed {seed}, round {number}")
        self.assertGreater(self.taken, 50, f"seed {seed}: the lane took next to nothing")
        taken = self.taken
        self.patch(pulllane, "MAX_LANE_BYTES", 1)
        self.assertEqual([peer.ask(11, None, version=409, **pull_ext()).remark for peer in peers], ["FOUND", "FOUND"])
        self.assertEqual(self.taken, taken, "an answer that may be too long for a frame")
        brokers = [one.service for one in self.sides]
        self.assertEqual(brokers[0].offsets.snapshot(), brokers[1].offsets.snapshot(), f"seed {seed}")
        for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            totals = [dict(broker.stats.totals(name)) for broker in brokers]
            self.assertEqual(totals[0], totals[1], f"seed {seed}")
        sums = [(broker.stats.gets_found.total, broker.stats.transferred.total) for broker in brokers]
        self.assertEqual(sums[0], sums[1], f"seed {seed}")
        stats = [one.service.responders.stats for one in self.sides]
        self.assertEqual(stats[0].counts, stats[1].counts, f"seed {seed}")

    def test_what_changed_counts_at_once(self) -> None:
        """A known pull is checked again when its group, topic or subscription, or the broker, changed."""
        one = self.sides[0]
        client, member = one.connect(), one.connect()
        topics, groups = one.service.topics, one.service.groups

        def say(*topics: str, version: int, tag: str = "*", model: bytes = b"CLUSTERING") -> None:
            body = heartbeat("me", "g", *topics).replace(b'"subVersion":1', b'"subVersion":%d' % version)
            body = body.replace(b"CLUSTERING", model)
            member.ask(34, body=body.replace(b'"*"', f'"{tag}"'.encode()))

        def pull() -> tuple[int, int]:
            """Return the code, and how many pulls the lane answered so far."""
            return client.ask(11, pull_ext(group="g", sys_flag=0)).code, self.taken

        say("T", version=1)
        self.assertEqual([pull(), pull()], [(0, 1), (0, 2)])
        say("T", version=2, tag="none")
        self.assertEqual(pull(), (20, 2))
        say("T", version=3)
        self.assertEqual(pull(), (0, 3))
        say("Other", version=1)
        self.assertEqual(pull(), (24, 3))
        say("T", version=4)
        self.assertEqual(pull(), (0, 4))
        member.ask(35, {"clientID": "me", "consumerGroup": "g"})
        self.assertEqual(pull(), (24, 4))
        say("T", version=4)
        self.assertEqual(pull(), (0, 5))
        group, topic = groups.get("g"), topics.get("T")
        assert group is not None and topic is not None
        groups.put(msgspec.structs.replace(group, consume_enable=False))
        self.assertEqual(pull(), (16, 5))
        groups.put(msgspec.structs.replace(group, consume_broadcast_enable=False))
        self.assertEqual(pull(), (0, 6))
        say("T", version=4, model=b"BROADCASTING")
        self.assertEqual(pull(), (16, 6))
        groups.put(group)
        self.assertEqual(pull(), (0, 7))
        topics.put(msgspec.structs.replace(topic, perm=2))
        self.assertEqual(pull(), (16, 7))
        topics.put(topic)
        self.assertEqual(pull(), (0, 8))
        one.service.settings.setup = setup_of({"brokerPermission": "2"})
        self.assertEqual(pull(), (16, 8))

    def test_a_header_that_is_no_header(self) -> None:
        """A pull whose header cannot be read closes its connection, whatever the lane makes of its fields."""
        for field in (
            '"version":"x"',
            '"version":null',
            '"language":1.5',
            '"language":{}',
            '"remark":5',
            '"code":"11"',
        ):
            peers = [peer_of(one) for one in self.sides]
            header = encode_command(RemotingCommand(11, version=409, ext_fields=pull_ext()))[PREFIX.size : -1]
            header += f",{field}}}".encode()
            answers = []
            for peer in peers:
                peer.send(PREFIX.pack(4 + len(header), len(header)) + header)
                answers.append([*map(encode_command, peer.received()), peer.is_cut])
            self.assertEqual(answers[0], answers[1], field)
            self.assertEqual(answers[0] == [True], field == '"version":"x"', field)

    def test_a_queue_that_cannot_be_read(self) -> None:
        """A consumer of a queue whose file cannot be read hears why, and keeps its connection."""
        peers = [peer_of(one) for one in self.sides]
        for one in self.sides:
            store = one.service.store
            store.write_buffers()
            queue = store.ordinary_queue("T", 0)
            assert queue is not None
            queue.drop_block()

        def fail(*_: object) -> bytes:
            raise DiskError("/store/consumequeue/T/0", "Input/output error")

        self.patch(ConsumeQueue, "read", fail)
        stream = encode_command(RemotingCommand(11, 6, version=409, ext_fields=pull_ext()))
        for peer in peers:
            peer.send(stream)
        answers = [[(each.code, each.remark) for each in peer.received()] for peer in peers]
        self.assertEqual(answers, [[(1, "/store/consumequeue/T/0: Input/output error")]] * 2)
        self.assertEqual([peer.is_cut for peer in peers], [False, False])

    def test_a_queue_that_is_not_there(self) -> None:
        """A consumer whose pulls are known is refused for a queue that its topic does not have."""
        peers = [peer_of(one) for one in self.sides]
        for queue_id, code in ((0, 0), (-1, 1), (99, 1), (1, 0)):
            answers = [peer.ask(11, None, version=409, **pull_ext(queue_id=queue_id)) for peer in peers]
            self.assertEqual([each.code for each in answers], [code, code])
            self.assertEqual(answers[0].remark, answers[1].remark)

    def test_lite_pulls_have_a_lane(self) -> None:
        """A consumer that polls itself asks with another code: it is answered and held in the same way."""
        one = self.sides[0]
        lane = cast(PullLane, one.service.responders.chunk_lanes[361])
        peer = peer_of(one)
        ext = pull_ext(offset=39, sys_flag=20)
        data = encode_command(RemotingCommand(361, opaque=1, version=409, ext_fields=ext))
        answers: list[bytes] = []
        self.assertEqual(lane(data, 0, answers, peer.channel), (len(data), 1))
        self.assertEqual(decode_commands(b"".join(answers))[0].remark, "FOUND")
        ext = pull_ext(offset=40, sys_flag=22, suspendTimeoutMillis="3000")
        peer.send(encode_command(RemotingCommand(361, opaque=2, version=409, ext_fields=ext)))
        self.assertEqual(len(one.service.polls), 1)
        one.world.run_for(5)
        self.assertEqual([(each.opaque, each.code) for each in peer.received()], [(2, 19)])
        self.assertEqual(one.service.responders.stats.counts[361], 1)

    def test_known_pulls_are_bounded(self) -> None:
        """Other headers without end do not fill the memory."""
        self.patch(pulllane, "MAX_KNOWN_PULLS", 3)
        client = self.sides[0].connect()
        for number in range(8):
            self.assertEqual(client.ask(11, pull_ext(maxMsgNums=str(number + 1))).code, 0)
            self.assertLessEqual(len(self.lane._known), 3)
            self.assertLessEqual(len(self.lane._counted), 4)
        self.assertEqual(self.taken, 8)
        self.assertEqual(self.sides[0].service.stats.gets_found.total, 8)

    def test_memory_of_known_pulls_is_bounded(self) -> None:
        """So do not other subscriptions, of long expressions or of many tags; pulls that share one keep it once."""
        self.patch(pulllane, "MAX_KNOWN_BYTES", 300_000)
        client = self.sides[0].connect()
        kept = 0

        def pull(subscription: str, **ext: str) -> None:
            nonlocal kept
            code = client.ask(11, pull_ext() | {"subscription": subscription, **ext}).code
            self.assertIn(code, (0, 20))
            self.assertLessEqual(self.lane._known_bytes, 300_000)
            kept = len(self.lane._known)

        for number in range(20):
            pull(f"a = '{number:0500}'", expressionType="SQL92")
        self.assertLess(kept, 6)
        for number in range(20):
            pull("||".join(f"{number}-{tag}" for tag in range(500)))
        self.assertLess(kept, 6)
        for number in range(100):
            pull(f"a = '{0:0500}'", expressionType="SQL92", maxMsgNums=str(number + 1))
        self.assertGreater(kept, 90)

    def test_answers_that_are_kept_together_are_bounded(self) -> None:
        """Of many pulls in one piece only as many are answered at a time as may be kept in memory."""
        peer = peer_of(self.sides[0])
        command = RemotingCommand(11, version=409, ext_fields=pull_ext())
        data = encode_command(command) * 3
        self.assertEqual(self.lane(data, 0, [], peer.channel), (len(data), 3))
        self.patch(pulllane, "MAX_COLLECTED_BYTES", 1)
        self.assertEqual(self.lane(data, 0, [], peer.channel), (len(data) // 3, 1))


class HeldTests(LaneCase):
    """Pulls that wait."""

    def held(self) -> list[int]:
        """Return how many pulls wait at each side."""
        return [len(one.service.polls) for one in self.sides]

    def sent(self, tag: str, *, topic: str = "T", queue_id: int = 0, body: bytes = b"new") -> None:
        for one in self.sides:
            one.connect().ask(310, send_ext(topic, queue_id=queue_id, props=f"TAGS\x01{tag}"), body)

    def test_same_answers(self) -> None:
        """Whatever ends a wait: answers, offsets and counters are those of the ordinary way."""
        chance = random.Random(SEED)
        peers = [peer_of(one) for one in self.sides]
        members = [one.connect() for one in self.sides]
        opaque = 0
        for number in range(60):
            for _ in range(chance.randrange(1, 6)):
                opaque += 1
                group = chance.choice(("CG", "live"))
                name, queue_id = chance.choice(("T", "T", "T", "Empty")), chance.randrange(3)
                end = self.sides[0].service.store.max_offset(name, queue_id)
                command = RemotingCommand(
                    chance.choice((11, 11, 361)),
                    opaque=opaque,
                    version=409,
                    ext_fields=pull_ext(
                        name,
                        group=group,
                        queue_id=queue_id,
                        offset=end + chance.choice((0, 0, 0, 0, 0, 0, 1, -1, -3)),
                        sys_flag=(0 if group == "live" else 4) | chance.choice((2, 2, 3, 3, 0, 1)),
                        commitOffset=str(number),
                        subscription=chance.choice(("*", "A", "B")),
                        suspendTimeoutMillis=chance.choice(("0", "3000", "7000", "15000")),
                        subVersion="1",
                    ),
                )
                for peer in peers:
                    peer.send(encode_command(command))
            action = chance.randrange(10)
            if action < 5:
                self.sent(chance.choice("ABC"), topic=chance.choice(("T", "T", "Empty")), queue_id=chance.randrange(3))
            elif action == 5:
                seconds = chance.choice((0.5, 3, 9))
                for one in self.sides:
                    one.world.run_for(seconds)
            elif action == 6:
                body = heartbeat("me", "live", "T").replace(b'"*"', chance.choice((b'"*"', b'"A"', b'"B"')))
                for member in members:
                    member.ask(34, body=body.replace(b'"subVersion":1', b'"subVersion":%d' % (number + 2)))
            elif action == 7:
                for one in self.sides:
                    topic = one.service.topics.get("T")
                    assert topic is not None
                    one.service.topics.put(msgspec.structs.replace(topic, perm=2))
                    one.world.run_for(2)
                    one.service.topics.put(topic)
            elif action == 8:
                for one in self.sides:
                    one.connect().ask(215, {"topic": "Empty"})
            left, right = (sorted(encode_command(each) for each in peer.received()) for peer in peers)
            self.assertEqual(left, right, f"seed {SEED}, round {number}")
            held = self.held()
            self.assertEqual(held[0], held[1], f"seed {SEED}, round {number}")
        self.assertGreater(self.kept, 20, f"seed {SEED}: the lane held next to nothing")
        for one in self.sides:
            one.world.run_for(20)
            self.assertEqual(len(one.service.polls), 0)
        left, right = (sorted(encode_command(each) for each in peer.received()) for peer in peers)
        self.assertEqual(left, right, f"seed {SEED}, the end")
        brokers = [one.service for one in self.sides]
        self.assertEqual(brokers[0].offsets.snapshot(), brokers[1].offsets.snapshot(), f"seed {SEED}")
        for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            totals = [dict(broker.stats.totals(name)) for broker in brokers]
            self.assertEqual(totals[0], totals[1], f"seed {SEED}")
        self.assertEqual(brokers[0].stats.gets_missed.total, brokers[1].stats.gets_missed.total, f"seed {SEED}")
        requests = [one.service.responders.stats for one in self.sides]
        self.assertEqual(requests[0].counts, requests[1].counts, f"seed {SEED}")
        self.assertEqual(requests[0].refusals, requests[1].refusals, f"seed {SEED}")

    def test_a_group_that_turns_to_sql92(self) -> None:
        """A held pull of tags whose group has an SQL92 filter now waits on behind messages that this rejects."""
        for one in self.sides:
            client, member = one.connect(), one.connect()
            end = int(client.ask(30, {"topic": "T", "queueId": "0"}).ext_fields["offset"])
            opaque = client.post(11, pull_ext(group="live", offset=end, sys_flag=2))
            one.world.run_for(0.1)
            new = heartbeat("me", "live", "T").replace(b'"subVersion":1', b'"subVersion":2')
            member.ask(34, body=new.replace(b'"TAG","subString":"*"', b'"SQL92","subString":"a = 5"'))
            member.ask(310, send_ext(queue_id=0))
            one.world.run_for(0.1)
            self.assertEqual((client.answer(opaque), len(one.service.polls)), (None, 1))
            member.ask(310, send_ext(queue_id=0, props="a\x015"))
            self.assertEqual(client.wait(opaque, 0.1).ext_fields["nextBeginOffset"], str(end + 2))
        left, right = (one.service.responders.stats.counts for one in self.sides)
        self.assertEqual(left[11], right[11])

    def test_a_full_table(self) -> None:
        """Where no more pulls may wait, a pull hears at once that there is nothing."""
        for one in self.sides:
            one.service.polls._limit = 1
        peers = [peer_of(one) for one in self.sides]
        for opaque in (1, 2):
            command = RemotingCommand(11, opaque=opaque, version=409, ext_fields=pull_ext(offset=40, sys_flag=6))
            for peer in peers:
                peer.send(encode_command(command))
        answers = [[(each.opaque, each.code) for each in peer.received()] for peer in peers]
        self.assertEqual(answers, [[(2, 19)], [(2, 19)]])

    def test_too_many_wait_on_a_connection(self) -> None:
        """Held pulls count among the answers that a connection may wait for, whichever way holds them."""
        for module in pulllane, protocol:
            self.patch(module, "MAX_WAITING_ANSWERS", 2)
        peers = [peer_of(one) for one in self.sides]
        found, missed = [], []

        def ask(opaque: int, queue_id: int = 1, **fields: Any) -> None:
            for peer in peers:
                peer.tell(RemotingCommand(11, opaque, version=409, ext_fields=pull_ext(queue_id=queue_id, **fields)))

        for opaque in (1, 2, 3):
            ask(opaque, offset=40, sys_flag=7, commitOffset=str(opaque))
        ask(4, offset=40)  # it would not wait
        self.assertEqual(self.kept, 2)
        for one, peer in zip(self.sides, peers, strict=True):
            found.append([(each.opaque, each.code, each.remark) for each in peer.received()])
            missed.append((one.service.stats.gets_missed.total, one.service.offsets.snapshot()))
            one.connect().ask(310, send_ext(queue_id=1))
            self.assertEqual([each.code for each in peer.received()], [0, 0])
            self.assertEqual(peer.channel.waiting_answers, 0)
        self.assertEqual(found[0], [(3, 2, OVERLOAD_REMARK), (4, 2, OVERLOAD_REMARK)])
        self.assertEqual(*found)
        self.assertEqual(*missed)
        ask(5, offset=41, sys_flag=6)
        for one, peer in zip(self.sides, peers, strict=True):
            self.assertEqual((peer.received(), peer.channel.waiting_answers), ([], 1))
            one.world.run_for(17)
            self.assertEqual(([each.code for each in peer.received()], peer.channel.waiting_answers), ([19], 0))
        self.assertEqual(self.kept, 3)

    def test_one_write_for_all_that_end_together(self) -> None:
        """A consumer whose pulls of many queues end at one time gets the answers in one piece."""
        one = self.sides[0]
        peer = peer_of(one)
        for queue_id in range(3):
            command = RemotingCommand(
                11, opaque=queue_id, version=409, ext_fields=pull_ext(queue_id=queue_id, offset=40, sys_flag=6)
            )
            peer.send(encode_command(command))
        self.assertEqual(self.kept, 3)
        before = len(peer.transport.writes)
        one.world.run_for(17)
        self.assertEqual([each.code for each in peer.received()], [19, 19, 19])
        self.assertEqual(len(peer.transport.writes) - before, 1)

    def test_one_read_for_all_that_wait_for_a_message(self) -> None:
        """Groups that wait at the same place are answered from one read of the log, each with its own statistics."""
        one = self.sides[0]
        peer = peer_of(one)
        for opaque, tag in enumerate(("*", "*", "*", "A", "A", "B")):
            ext = pull_ext(group=f"G{opaque}", offset=40, sys_flag=6, subscription=tag)
            peer.send(encode_command(RemotingCommand(11, opaque=opaque, version=409, ext_fields=ext)))
        self.assertEqual(self.kept, 6)
        store, reads = one.service.store, []

        def counted(*what: Any) -> Any:
            reads.append(what)
            return pick(*what)

        pick = store.pick
        self.patch(store, "pick", counted)
        client = one.connect()
        client.ask(310, send_ext(props="TAGS\x01A"), b"new")
        answers = peer.received()
        self.assertEqual([(each.opaque, each.code) for each in answers], [(each, 0) for each in range(5)])
        self.assertEqual(len({each.body for each in answers}), 1)
        self.assertEqual(len(reads), 2, "one for each filter")
        self.assertEqual(sum(value for _, value in one.service.stats.totals("GROUP_GET_NUMS")), 5)
        client.ask(310, send_ext(props="TAGS\x01B"), b"newer")
        (last,) = peer.received()
        self.assertEqual([record.body for record in decode_records(last.body or b"")], [b"newer"])

    def test_messages_stored_together_wake_together(self) -> None:
        """Pulls of several queues whose messages came in one turn are woken in one go."""
        one = self.sides[0]
        peer, woken = peer_of(one), []
        for queue_id in range(3):
            ext = pull_ext(queue_id=queue_id, offset=40, sys_flag=6)
            peer.send(encode_command(RemotingCommand(11, opaque=queue_id, version=409, ext_fields=ext)))
        wake = one.service.polls._wake

        def counted(pulls: list[HeldPull]) -> None:
            woken.append(len(pulls))
            wake(pulls)

        self.patch(one.service.polls, "_wake", counted)
        sends = [RemotingCommand(310, opaque=9, ext_fields=send_ext(queue_id=each), body=b"new") for each in (0, 2)]
        peer_of(one).send(b"".join(map(encode_command, sends)))
        self.assertEqual(woken, [2])
        self.assertEqual([each.opaque for each in peer.received()], [0, 2])

    def test_a_send_wakes_its_own_polls_only(self) -> None:
        """A send to one queue looks at the pulls that wait for this queue, however many others wait."""
        looked: list[tuple[str, int]] = []

        class Seen(int):
            """An offset that notes when it is compared with the end of a queue."""

            def __new__(cls, value: int, queue: tuple[str, int]) -> Seen:
                made = super().__new__(cls, value)
                made.queue = queue
                return made

            queue: tuple[str, int]

            def __lt__(self, other: int) -> bool:
                looked.append(self.queue)
                return super().__lt__(other)

        one = self.sides[0]
        peer = peer_of(one)
        for opaque in range(30):
            ext = pull_ext(group=f"G{opaque % 4}", queue_id=opaque % 3, offset=40, sys_flag=6)
            peer.send(encode_command(RemotingCommand(11, opaque=opaque, version=409, ext_fields=ext)))
        self.assertEqual(self.kept, 30)
        for queue, pulls in one.service.polls._queues.items():
            for pull in pulls:
                pull.from_offset = Seen(pull.from_offset, queue)
        client = one.connect()
        client.ask(310, send_ext(queue_id=1), b"new")
        client.ask(310, send_ext("Other", queue_id=1), b"new")
        self.assertGreaterEqual(len(looked), 10)
        self.assertEqual(set(looked), {("T", 1)})
        self.assertEqual(sorted(each.opaque for each in peer.received()), list(range(1, 30, 3)))
        self.assertEqual(len(one.service.polls), 20)


class SplitTests(SynchronousTestCase):
    """:func:`rmq.store._pick.split`"""

    def setUp(self) -> None:
        need_compiled("rmq.store._pick")

    def split(self, data: bytes, position: int) -> Any:
        return pulllane._compiled.split(data, position, pulllane._NUMBERS)

    def frame(self, header: bytes) -> bytes:
        return PREFIX.pack(4 + len(header), len(header)) + header

    def test_numbers_are_cut_out(self) -> None:
        """Headers that differ in queue, offsets and opaque only have one key, whatever the order of the fields."""
        text = b'{"opaque":%d,"extFields":{"queueId":"%d","queueOffset":"%d","x":"y","commitOffset":"%d"}}'
        numbers = [(1, 2, 3, 4), (-7, 0, 999_999_999_999_999_999, -4), (0, 0, 0, 0)]
        frames = [self.frame(text % each) for each in numbers]
        found = [self.split(b"before" + frame + b"behind", 6) for frame in frames]
        self.assertEqual(len({parts[0] for parts in found}), 1)
        self.assertEqual([parts[2:] for parts in found], numbers)
        self.assertEqual([parts[1] for parts in found], [6 + len(frame) for frame in frames])
        keys = {
            self.split(self.frame(b'{"opaque":%d,"extFields":{%s}}' % (number, b",".join(fields))), 0)[0]
            for number, fields in enumerate(
                permutations((b'"queueId":"2"', b'"queueOffset":3', b'"x":"y"', b'"commitOffset": "4"', b'"abc": 5 '))
            )
        }
        self.assertEqual(len(keys), 1, "in any order, with or without quotes and blanks")

    def test_what_makes_a_difference(self) -> None:
        """Every other byte of a header counts, but for the signature, which C++ clients make for each request."""
        text = b'{"opaque":1,"extFields":{"queueId":"1","queueOffset":"2","commitOffset":"3",%s},"flag":0}'
        plain = self.split(self.frame(text % b'"a":"b","cd":"e"'), 0)[0]
        signed = [text % (b'"Signature":"%s","cd":"e","a":"b"' % each) for each in (b"", b"p+M/=")]
        self.assertEqual({self.split(self.frame(each), 0)[0] for each in signed}, {plain})
        others = [
            b'"a":"b","cd":e',
            b'"a":"be","cd":""',
            b'"a":"b"',
            b'"a":"b","c":"de"',
            b'"ab":"","cd":"e"',
            b'"a":"b","cd":"e","Signature":1',
        ]
        keys = {self.split(self.frame(text % each), 0)[0] for each in others} | {plain}
        keys.add(self.split(self.frame(text.replace(b"0}", b"1}") % b'"a":"b","cd":"e"'), 0)[0])
        self.assertEqual(len(keys), len(others) + 2)

    def test_what_is_left_alone(self) -> None:
        """Numbers that are missing, twice there, too long or not plain, and frames that are not whole."""
        good = b'{"extFields":{"commitOffset":"3","queueOffset":"2","queueId":"1"},"opaque":1}'
        self.assertIsNotNone(self.split(self.frame(good), 0))
        for before, after in (
            (b'"opaque":1', b'"other":1'),
            (b'"opaque":1', b'"opaque":1,"opaque":2'),
            (b'"opaque":1', b'"opaque":"1"'),
            (b'"opaque":1', b'"opaque":01'),
            (b'"opaque":1', b'"opaque":1.5'),
            (b'"opaque":1', b'"opaque":-'),
            (b'"opaque":1', b'"opaque":1}'),
            (b'"opaque":1', b'"opaque":{}'),
            (b'"opaque":1', b'"extFields":{},"opaque":1'),
            (b'"opaque":1', b'"opaque":2147483648'),
            (b'"queueOffset":"2"', b'"queueOffset":2.0'),
            (b'"queueOffset":"2"', b'"queueOffset":[2]'),
            (b'"queueOffset":"2"', b'"queueOffset":"2'),
            (b'"queueOffset":"2"', b'"queueOffset":"2",'),
            (b'"queueOffset":"2"', b'"queueOffset":"2""a":"b"'),
            (b'"queueOffset":"2"', b'"queueOffset":"2","a":"b","a":"b"'),
            (b'"queueOffset":"2"', b'"queueOffset":"2","\\u0061":"b"'),
            (b'"queueOffset":"2"', b'"queueOffset":"2",' + b",".join(b'"a%d":1' % each for each in range(33))),
            (b'"queueOffset":"2"', b'"queueOffset":"2 "'),
            (b'"queueOffset":"2"', b'"queueOffset":"1000000000000000000"'),
            (b'"queueOffset":"2"', b'"queueOffset":"-0"'),
            (b'"queueId":"1"', b'"queueId":"1","queueId":"2"'),
            (b'"commitOffset":"3"', b'"commitOffset":""'),
        ):
            self.assertIn(before, good)
            self.assertIsNone(self.split(self.frame(good.replace(before, after)), 0), after)
        whole = self.frame(good)
        for cut in range(len(whole)):
            self.assertIsNone(self.split(whole[:cut], 0))
        self.assertIsNone(self.split(b"\x00\x00\x00\x05" + whole[4:], 0), "a header longer than its frame")
        self.assertIsNone(self.split(self.frame(good[:-1] + b" " * 5000 + b"}"), 0), "a long header")
