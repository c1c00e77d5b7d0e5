"""Lanes use nothing that has become untrue: they answer as responders do while everything changes."""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.pulllane import PullLane
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from rmq.wire.record import BatchEntry, encode_batch
from tests.broker.harness import OneBroker, heartbeat, pull_ext, send_ext
from tests.broker.test_consumer_lanes import state_of
from tests.broker.test_waiting_lanes import back_ext, end_ext, half_ext
from tests.needs import need_compiled
from tests.remoting.peer import LeanTransport, Peer, one_turn
from tests.seeds import SEED

TOPICS = "T", "U", "V"
GROUPS = "g", "h"
PEERS, PULLS = 4, 10
STORING = 36, 37, 310, 320
#: keys that may change while a broker runs, with values that differ for lanes
KEYS = {
    "brokerPermission": "6642",
    "maxMessageSize": ("4194304", "300", "40"),
    "enablePropertyFilter": ("true", "true", "false"),
    "autoCreateTopicEnable": ("true", "false"),
    "rejectTransactionMessage": ("false", "false", "true"),
    "longPollingEnable": ("true", "false"),
    "shortPollingTimeMills": ("1000", "20"),
    "slaveReadEnable": ("true", "false"),
    "startAcceptSendRequestTimeStamp": ("0", "0", "0", "9999999999999"),
    "flushDiskType": ("ASYNC_FLUSH", "SYNC_FLUSH"),
    "defaultQueryMaxNum": ("32", "1"),
    "maxTransferCountOnMessageInMemory": ("32", "2"),
    "messageDelayLevel": ("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "1s 2s"),
    "regionId": ("DefaultRegion", "other"),
    "traceOn": ("true", "false"),
    "accessMessageInMemoryMaxRatio": ("40", "0"),
    "autoCreateSubscriptionGroup": ("true", "false"),
    "notifyConsumerIdsChangedEnable": ("true", "false"),
    "offsetCheckInSlave": ("true", "false"),
    "enableDetailStat": ("true", "false"),
    "filterSupportRetry": ("true", "false"),
    "maxFilterMessageSize": ("16000", "40"),
    "enableMultiDispatch": ("true", "false"),
    "enableLmq": ("true", "false"),
    "inSyncReplicas": ("1", "2"),
    "defaultTopicQueueNums": ("8", "1"),
    "maxMsgsNumBatch": ("64", "1"),
    "diskMaxUsedSpaceRatio": ("75", "10"),
    "fileReservedTime": ("72", "1"),
    "messageIndexEnable": ("true", "false"),
    "storeReplyMessageEnable": ("true", "false"),
}


class Both:
    """A broker with lanes and one without; both see the same requests, changes and times."""

    def __init__(self, test: SynchronousTestCase, seed: int, values: dict[str, str]) -> None:
        self._test = test
        self._seed = seed
        self.waits = "flushDiskType" in values
        self.chance = random.Random(seed)
        self.brokers = [OneBroker(values, seed=5) for _ in range(2)]
        table = self.brokers[1].service.responders
        table._lanes.clear()
        table.refuse({})
        for one in self.brokers:  # both store in the same milliseconds: in the middle of one
            one.world.run_for(100.0005 - one.world.now_s)
        self.history: list[str] = []
        self._opaque = 0
        self._ports = 40_000
        self.peers = [self._connect() for _ in range(PEERS)]
        #: where messages were stored: offset of the log, and the answer to each half message
        self.places: list[int] = [0]
        self.halves: list[RemotingCommand] = []
        self.half_opaques: set[int] = set()

    def _connect(self) -> list[Peer]:
        self._ports += 1
        peers = []
        for one in self.brokers:
            clock = Clock()
            clock.seconds = one.service.clock.seconds  # type: ignore[method-assign]
            peer = Peer(one.service.responders, clock=clock, transport=LeanTransport(port=self._ports))
            peer.ask(30, topic="T", queueId="0")  # the first bytes of a connection take the ordinary way
            peers.append(peer)
        return peers

    def reconnect(self, number: int) -> None:
        for one, peer in zip(self.brokers, self.peers[number], strict=True):
            peer.lose()
            one.service._channel_closed(peer.channel, "")
        self.peers[number] = self._connect()
        self.history.append(f"reconnect {number}")

    def send(self, *requests: tuple[int, RemotingCommand]) -> None:
        """Send requests of peers (their numbers) in one turn; those of one peer in one chunk."""
        chunks: dict[int, bytes] = {}
        one_write = len(self.brokers[0].service.polls) or any(command.code in (11, 361) for _, command in requests)
        stores = 0
        for number, command in requests:
            stores += command.code in STORING
            if one_write and command.code in STORING and (stores > 1 or command.code == 320):
                continue  # what is stored together wakes a held pull once
            self._opaque += 1
            command.opaque = self._opaque
            if "TRAN_MSG" in command.ext_fields.get("i", ""):
                self.half_opaques.add(command.opaque)
            self.history.append(f"{number}: {command.code} {command.ext_fields} {(command.body or b'')[:400]!r}")
            chunks[number] = chunks.get(number, b"") + encode_command(command)
        pieces = list(chunks.items())
        order = one_turn([(self.peers[number][0], data) for number, data in pieces])
        for number, data in (pieces[index] for index in order):
            self.peers[number][1].send(data)

    def run(self, seconds: float) -> None:
        self.history.append(f"run {seconds}")
        for one in self.brokers:
            one.world.run_for(seconds)

    def compare(self) -> list[RemotingCommand]:
        """Return the answers that have come, which are the same on both sides."""
        found = []
        for number, peers in enumerate(self.peers):
            # notices overtake the answers of their read
            left, right = (sorted(peer.received(), key=_order) for peer in peers)
            if list(map(encode_command, left)) != list(map(encode_command, right)):
                self._same(left, right, f"answers to peer {number}")
                self._same([*map(encode_command, left)], [*map(encode_command, right)], f"answers to peer {number}")
            found += left
        return found

    def compare_all(self) -> None:

        def same(what: str, find: Callable[[OneBroker], object]) -> None:
            left, right = map(find, self.brokers)
            self._same(left, right, what)

        same("end of the log", lambda one: one.service.store.end_offset)
        same("log", _log)
        same("queues", _derived)
        same("members", state_of)
        same("offsets", lambda one: one.service.offsets.snapshot())
        same("topics", lambda one: one.service.topics.snapshot().topic_config_table)
        same("groups", lambda one: one.service.groups.snapshot().subscription_group_table)
        same("held pulls", lambda one: len(one.service.polls))
        same("counts", lambda one: one.service.responders.stats.counts)
        same("refusals", lambda one: one.service.responders.stats.refusals)
        for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"):
            same(name, lambda one, name=name: sorted(one.service.stats.totals(name)))  # type: ignore[misc]
        same("put failures", lambda one: one.service.stats.put_failures)

    def _same(self, left: object, right: object, what: str) -> None:
        if left != right:
            history = "\n".join(self.history[-40:])
            self._test.fail(
                f"RMQ_SEED={self._seed}: {what} differ\n{history}\nlanes: {left!r}\nwithout: {right!r}"[-9000:]
            )

    def end(self) -> None:
        for one in self.brokers:
            one.node.disk.recover()
            one.end()
        self._test.flushLoggedErrors()


def _order(command: RemotingCommand) -> tuple[bool, int, int]:
    return command.is_response, command.opaque, command.code


def _log(one: OneBroker) -> bytes:
    store = one.service.store
    at, data = store.min_phy_offset, b""
    while at < store.end_offset:
        piece = store.read(at, store.end_offset - at)
        data, at = data + piece, at + len(piece)
    return data


def _derived(one: OneBroker) -> list[object]:
    one.service.store.write_buffers()
    queues = one.service.store._queues
    return [(queue.topic, queue.queue_id, queue.min, queue.end, queue.read(queue.min, queue.end)) for queue in queues]


class History:
    """Random requests of clients, and changes."""

    def __init__(self, both: Both) -> None:
        self.both = both
        self.chance = both.chance
        self.version = 1
        self.said: list[bytes] = []
        self.pulls = [self._new_pull() for _ in range(PULLS)]

    def request(self) -> RemotingCommand:
        chance = self.chance
        kind = chance.choices(
            (self.single, self.batch, self.half, self.ending, self.back, self.pull, self.commit, self.ask, self.member),
            (14, 4, 5, 6, 5, 30, 6, 6, 8),
        )[0]
        if self.both.waits and kind in (self.half, self.ending, self.back):
            kind = self.single  # what the broker stores itself has other times there
        command = kind()
        if command.code in (15, 36, 37, 310) and chance.random() < 0.1:
            command.flag = ONEWAY
        return command

    def topic(self) -> str:
        return self.chance.choices((*TOPICS, "New", "%RETRY%g", "%RETRY%h"), (8, 5, 3, 1, 2, 1))[0]

    def single(self) -> RemotingCommand:
        chance = self.chance
        props = chance.choice(
            ("", "TAGS\x01A", "TAGS\x01B\x02KEYS\x01k", "TAGS\x01A\x02own\x015", "DELAY\x011", "DELAY\x012")[
                : 4 if self.both.waits else 6
            ]
        )
        ext = send_ext(self.topic(), queue_id=chance.choice((0, 0, 1, 2, 3)), props=props)
        return RemotingCommand(310, version=409, ext_fields=ext, body=b"x" * chance.choice((1, 20, 60, 400)))

    def batch(self) -> RemotingCommand:
        chance = self.chance
        ext = send_ext(self.topic(), queue_id=chance.choice((0, 1, 2)), m="true")
        body = encode_batch([BatchEntry(b"y" * chance.choice((1, 30)), "TAGS\x01A", 0)] * chance.choice((1, 3, 8)))
        return RemotingCommand(320, version=409, ext_fields=ext, body=body)

    def half(self) -> RemotingCommand:
        return RemotingCommand(310, ext_fields=half_ext(self.chance.choice((0, 1)), b=self.topic()), body=b"half")

    def ending(self) -> RemotingCommand:
        if not self.both.halves:
            return self.half()
        ext = end_ext(self.chance.choice(self.both.halves[-8:]), self.chance.choice(("8", "8", "12")))
        return RemotingCommand(37, ext_fields=ext)

    def back(self) -> RemotingCommand:
        chance = self.chance
        ext = back_ext(chance.choice(self.both.places[-30:]), group=chance.choice((*GROUPS, "new")))
        ext["delayLevel"] = chance.choice(("0", "0", "2"))
        if chance.random() < 0.5:
            del ext["maxReconsumeTimes"]
        return RemotingCommand(36, version=409, ext_fields=ext)

    def pull(self) -> RemotingCommand:
        chance = self.chance
        code, ext = chance.choice(self.pulls)
        topic, queue_id = ext["topic"], chance.choice((0, 0, 1, 2))
        store = self.both.brokers[0].service.store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        offset = chance.choice((low, high, high, max(0, high - 1), max(0, high - 3), low + 1, 0))
        numbers = {"queueId": queue_id, "queueOffset": offset, "commitOffset": chance.choice((0, offset))}
        return RemotingCommand(code, version=409, ext_fields=ext | {key: str(value) for key, value in numbers.items()})

    def _new_pull(self) -> tuple[int, dict[str, str]]:
        """Return what one consumer repeats."""
        chance = self.chance
        subscription, kind = chance.choice((("*", "TAG"), ("A", "TAG"), ("own = 5", "SQL92"), ("TAGS = 'A'", "SQL92")))
        return chance.choice((11, 11, 361)), pull_ext(
            chance.choice(("T", "T", "U", "%RETRY%g")),
            group=chance.choice(GROUPS),
            sys_flag=chance.choice((4, 6, 7, 5, 0, 2, 3)),
            subscription=subscription,
            expressionType=kind,
            subVersion=str(chance.choice((0, 0, 4))),
            suspendTimeoutMillis=chance.choice(("15000", "300")),
        )

    def _queue(self) -> dict[str, str]:
        chance = self.chance
        return {"consumerGroup": chance.choice(GROUPS), "topic": self.topic(), "queueId": chance.choice("001")}

    def commit(self) -> RemotingCommand:
        ext = self._queue() | {"commitOffset": str(self.chance.randrange(30))}
        return RemotingCommand(15, version=409, ext_fields=ext)

    def ask(self) -> RemotingCommand:
        if self.chance.random() < 0.5:
            return RemotingCommand(14, version=409, ext_fields=self._queue())
        return RemotingCommand(38, version=409, ext_fields={"consumerGroup": self.chance.choice(GROUPS)})

    def member(self) -> RemotingCommand:
        chance = self.chance
        if self.said and chance.random() < 0.7:
            return RemotingCommand(34, version=409, body=chance.choice(self.said[-3:]))
        body = heartbeat(
            chance.choice("abc"),
            chance.choice(GROUPS),
            *chance.choice((("T", "U"), ("T",))),
            producer=chance.choice((None, "PG")),
        )
        if chance.random() < 0.2:
            self.version += 1
        body = body.replace(b'"subVersion":1', b'"subVersion":%d' % self.version)
        other = chance.random()
        if other < 0.15:
            body = body.replace(b'"TAG","subString":"*"', b'"SQL92","subString":"own = 5"')
        elif other < 0.3:
            body = body.replace(b'"codeSet":[]', b'"codeSet":[65]').replace(b'"tagsSet":[]', b'"tagsSet":["A"]')
            body = body.replace(b'"subString":"*"', b'"subString":"A"')
        elif other < 0.4:
            body = body.replace(b"CLUSTERING", b"BROADCASTING")
        self.said.append(body)
        return RemotingCommand(34, version=409, body=body)

    # changes

    def change(self) -> None:
        chance, both = self.chance, self.both
        kind = chance.randrange(17)
        number = chance.randrange(PEERS)
        if kind < 4:
            ext = {"topic": chance.choice((*TOPICS, "%RETRY%g")), "defaultTopic": "TBW102"}
            ext |= {"readQueueNums": chance.choice("0123"), "writeQueueNums": chance.choice("0123")}
            ext |= {"perm": chance.choice("66624"), "topicSysFlag": "0", "order": chance.choice(("false", "true"))}
            ext |= {"topicFilterType": chance.choice(("SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG"))}
            both.send((number, RemotingCommand(17, ext_fields=ext)))
        elif kind < 6:
            both.send((number, RemotingCommand(215, ext_fields={"topic": chance.choice((*TOPICS, "%RETRY%g"))})))
        elif kind < 8:
            body = (
                f'{{"groupName":"{chance.choice(GROUPS)}","consumeEnable":{chance.choice(("true", "true", "false"))},'
                f'"consumeBroadcastEnable":{chance.choice(("true", "false"))},"retryQueueNums":{chance.choice("0123")},'
                f'"retryMaxTimes":{chance.choice((0, 1, 16))},"brokerId":{chance.choice("01")},'
                f'"whichBrokerWhenConsumeSlowly":{chance.choice("12")}}}'
            )
            both.send((number, RemotingCommand(200, body=body.encode())))
        elif kind == 8:
            ext = {"groupName": chance.choice(GROUPS), "removeOffset": chance.choice(("true", "false"))}
            both.send((number, RemotingCommand(207, ext_fields=ext)))
        elif kind < 12:
            key = chance.choice(sorted(KEYS))
            both.send((number, RemotingCommand(25, body=f"{key}={chance.choice(KEYS[key])}".encode())))
        elif kind == 12:
            ext = {
                "topic": chance.choice(TOPICS),
                "group": chance.choice(GROUPS),
                "timestamp": chance.choice(("-1", "0")),
            }
            both.send((number, RemotingCommand(222, ext_fields=ext | {"isForce": "true"})))
        elif kind == 13:
            ext = {"consumerGroup": chance.choice(GROUPS), "clientID": chance.choice("abc"), "producerGroup": "PG"}
            both.send((number, RemotingCommand(35, ext_fields=ext)))
        elif kind == 14:
            both.reconnect(number)
        elif kind == 15:
            code = chance.choice((306, 316, 329, 314))
            ext = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"} if code == 314 else {}
            both.send((number, RemotingCommand(code, ext_fields=ext)))
        else:
            self.outside()

    def outside(self) -> None:
        """What no request of a client does."""
        chance, both = self.chance, self.both
        kind = chance.randrange(4)
        order = chance.sample(TOPICS, k=chance.randrange(3))
        both.history.append(f"outside {kind} {order}")
        for one in both.brokers:
            if kind == 0:
                one.service.topics.set_order_topics(order)
            elif kind == 1:
                one.node.disk.fill()
            else:
                one.node.disk.recover()
        if kind == 2:
            both.run(130.0)

    def step(self) -> None:
        chance, both = self.chance, self.both
        if chance.random() < 0.12:
            self.change()
        elif chance.random() < 0.6:
            number = chance.randrange(PEERS)
            both.send(*((number, self.request()) for _ in range(chance.choice((1, 1, 2, 5)))))
        else:
            numbers = chance.sample(range(PEERS), k=chance.randrange(2, PEERS + 1))
            kind = self.request().code
            both.send(*((number, self._like(kind)) for number in numbers))
        both.run(chance.choice((0.0, 0.0, 0.05, 0.05, 0.3, 2.0)))
        for answer in both.compare():
            place = answer.ext_fields.get("msgId") if answer.ext_fields else None
            if place:
                for one in place.split(","):
                    both.places.append(int(one[16:], 16))
                if answer.opaque in both.half_opaques:
                    both.halves.append(answer)

    def _like(self, code: int) -> RemotingCommand:
        """Return a request of a code, if one is drawn soon."""
        for _ in range(5):
            command = self.request()
            if command.code == code:
                break
        return command


VALUES = {"enablePropertyFilter": "true", "mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}


class LanesAndChangesTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def test_same_history(self) -> None:
        """Answers, tables and files are the same with lanes and without, whatever changes between requests."""
        replay(self, SEED, VALUES, 150)

    def test_a_planted_difference(self) -> None:
        """Pulls that are not checked again are found."""
        self.patch(PullLane, "_has_other_terms", lambda _: False)
        self.assertRaises(self.failureException, replay, self, 2, VALUES, 300)


def replay(test: SynchronousTestCase, seed: int, values: dict[str, str], steps: int) -> Both:
    """Play a random history on both brokers."""
    both = Both(test, seed, values)
    history = History(both)
    for number in range(steps):
        history.step()
        if number % 50 == 49:
            both.run(0.5)
            both.compare()
            both.compare_all()
    both.end()
    return both
