"""Lanes use nothing that has become untrue: they answer as responders do while everything changes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import lanes
from rmq.broker.pulllane import PullLane
from rmq.broker.service import BrokerService
from rmq.sim.net import NetConditions
from rmq.sim.node import Node
from rmq.store.config import BrokerRole
from rmq.store.messages import GetResult
from rmq.store.store import MessageStore
from rmq.wire.command import ONEWAY, RemotingCommand
from rmq.wire.record import BatchEntry, encode_batch
from tests.broker.harness import WALL_AHEAD_S, OneBroker, heartbeat, pull_ext, send_ext
from tests.broker.test_consumer_lanes import state_of
from tests.broker.test_waiting_lanes import back_ext, end_ext, half_ext
from tests.needs import IS_CAMPAIGN, need_compiled
from tests.remoting.twins import PEERS, Twins, remove_lanes
from tests.seeds import SEED

TOPICS = "T", "U", "V"
GROUPS = "g", "h"
PULLS = 10
#: the peer of the slave
AT_SLAVE = PEERS - 1
#: tags of the messages of a batch
BATCHES = "A", "AAA", "BAB", "ABBAAAAB"
#: what pulls ask for; no message has the last two
SUBSCRIPTIONS = (
    ("*", "TAG"),
    ("*", "TAG"),
    ("A", "TAG"),
    ("own = 5", "SQL92"),
    ("TAGS = 'A'", "SQL92"),
    ("Z", "TAG"),
    ("own = 6", "SQL92"),
)
STORING = 36, 37, 310, 320
HISTORIES = 300 if IS_CAMPAIGN else 1
#: keys that may change while a broker runs, with values that differ for lanes
KEYS: Mapping[str, Sequence[str]] = {
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


#: keys of the next start, with values that differ for lanes; a slave of nobody takes no messages
STARTS: Mapping[str, Sequence[str]] = {
    "brokerRole": ("ASYNC_MASTER", "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    "flushDiskType": ("ASYNC_FLUSH", "SYNC_FLUSH"),
    "enableConsumeQueueExt": ("false", "false", "true"),
}


#: a slave asks for the topics also when a message is there before the topic is, which is a matter of milliseconds
SLAVES_ASK = 21


class SlaveOf(OneBroker):
    """A slave, in the world of its master."""

    def __init__(self, master: OneBroker) -> None:
        self._class = BrokerService
        self.world, self.net, self.client_node = master.world, master.net, master.client_node
        self.node = Node(self.world, self.net, "slave")
        self.node.step_clock(WALL_AHEAD_S)
        self.node.disk.sync_s = master.node.disk.sync_s
        self.lines, self.fatal = [], []
        self._master_address = master.node.address
        ha_address = f"{self._master_address}:10912"
        self.values = {**master.values, "brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": ha_address}
        self.start()

    def start(self) -> None:
        super().start()
        self.service.metadata_sync.set_master(f"{self._master_address}:10911")


class Both(Twins):
    """A broker with lanes and one without; both see the same requests, changes and times."""

    def __init__(self, test: SynchronousTestCase, seed: int, values: dict[str, str]) -> None:
        is_pair = "brokerRole" in values
        #: files are deleted, because the disk is full now and then
        self.deletes = values is DELETING
        if not is_pair:
            values = {**values, **self.other_values(random.Random(seed)), "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        self.brokers = [OneBroker(values, seed=5) for _ in range(2)]
        for one in self.brokers:  # both store in the same milliseconds: in the middle of one
            one.world.run_for(100.0005 - one.world.now_s)
            # slowly: requests come between the deletion of a file of the log and that of the queues'
            sync_s = 0.1 if self.deletes else 0.01 if is_pair else 0.0001
            one.node.disk.healthy_sync_s = one.node.disk.sync_s = (sync_s, sync_s)
        #: with SYNC_MASTER, and the last peer is connected to them
        self.slaves: list[SlaveOf] = []
        if is_pair:
            for one in self.brokers:  # what is sent together arrives together: lanes may send it in one piece
                one.net.conditions = NetConditions(latency_s=(0.001, 0.001), give_up_s=(30.0, 30.0), shredded=0.0)
                self.slaves.append(SlaveOf(one))
                one.world.run_for(1.0)
        self._without_lanes()
        super().__init__(test, seed, [one.service for one in self.brokers])
        #: where messages were stored: offset of the log, and the answer to each half message
        self.places: list[int] = [0]
        self.halves: list[RemotingCommand] = []
        self.half_opaques: set[int] = set()

    @property
    def flushes(self) -> bool:
        """Whether messages are seen and answered when they are on disk: several fsyncs later, or one with lanes."""
        return self.brokers[0].service.setup.store.is_sync_flush

    def other_values(self, chance: random.Random) -> dict[str, str]:
        """Return values for the next start."""
        values = {key: chance.choice(KEYS[key]) for key in chance.sample(sorted(KEYS), k=3)}
        values |= {key: chance.choice(choices) for key, choices in STARTS.items()}
        values["brokerId"] = "1" if values["brokerRole"] == "SLAVE" else "0"
        if self.deletes:  # slow fsyncs would have messages delivered at other times
            del values["flushDiskType"]
        return values

    def _without_lanes(self) -> None:
        """Let the second of each take the ordinary way."""
        for ordinary in (*self.brokers[1:], *self.slaves[1:]):
            remove_lanes(ordinary.service.responders)
            check_reads(ordinary)

    def restart(self, values: dict[str, str], *, ends: str) -> None:
        """Stop or kill both, and start them with other values."""
        self.history.append(f"restart {ends} {values}")
        if not self.is_up(AT_SLAVE):
            self.kill_or_start_slave()
        for one in self.brokers:
            one.node.disk.recover()
            one.node.kill() if ends == "killed" else one.stop()
        latest_s = max(one.world.now_s for one in self.brokers)
        for one in self.brokers:
            one.world.run_for(round(latest_s, 3) + 0.0015 - one.world.now_s)
            one.values |= values
            one.start()
        self._without_lanes()
        self.compare()
        self.run(1.0)
        self.peers = [self.connect(number) for number in range(PEERS)]

    def services_of(self, number: int) -> Sequence[BrokerService]:
        ones: Sequence[OneBroker] = self.slaves if self.slaves and number == AT_SLAVE else self.brokers
        return [one.service for one in ones]

    def is_up(self, number: int) -> bool:
        """Return whether what a peer is connected to is running."""
        return not self.slaves or number != AT_SLAVE or self.slaves[0].node.process is not None

    def kill_or_start_slave(self) -> None:
        if self.is_up(AT_SLAVE):
            for one in self.slaves:
                one.node.kill()
            return
        for one in self.slaves:
            one.start()
        self.run(1.0)
        remove_lanes(self.slaves[1].service.responders)
        check_reads(self.slaves[1])
        self.peers[AT_SLAVE] = self.connect(AT_SLAVE)

    def send(self, *requests: tuple[int, RemotingCommand]) -> None:
        """Send requests of peers (their numbers) in one turn; those of one peer in one chunk."""
        frames = []
        pulls = any(command.code in (11, 361) for _, command in requests)
        one_write = pulls or len(self.brokers[0].service.polls)
        stored: list[object] = []
        for number, command in requests:
            if not self.is_up(number):
                continue
            if command.code == 37 and self.flushes and len(requests) > 1:
                continue  # the responder stores the second record when the first is on disk
            if one_write and command.code in STORING:
                ext = command.ext_fields
                queue = (ext["b"], ext["e"]) if command.code == 310 and not pulls else None
                if command.code == 320 or (stored and (None in (queue, *stored) or queue in stored)):
                    continue  # what is stored together wakes a held pull once, but one of another queue, too
                stored.append(queue)
            frames.append((number, self.encode(number, command)))
            if "TRAN_MSG" in command.ext_fields.get("i", ""):
                self.half_opaques.add(command.opaque)
        self.deliver(*frames)

    def run(self, seconds: float) -> None:
        if seconds:  # delays that end in the same millisecond end in any order
            seconds += self.chance.randrange(40) / 1000
        self.history.append(f"run {seconds}")
        for one in self.brokers:
            one.world.run_for(seconds)

    def compare_all(self) -> None:
        self._compare("", self.brokers)
        if self.slaves and self.is_up(AT_SLAVE):
            self._compare("slave's ", self.slaves)

    def _compare(self, whose: str, both: Sequence[OneBroker]) -> None:

        def same(what: str, find: Callable[[OneBroker], object]) -> None:
            left, right = map(find, both)
            self.same(left, right, whose + what)

        same("end of the log", lambda one: one.service.store.end_offset)
        same("log", _log)
        same("queues", _derived)
        same("members", state_of)
        same("offsets", lambda one: one.service.offsets.snapshot())
        same("topics", lambda one: one.service.topics.snapshot().topic_config_table)
        same("groups", lambda one: one.service.groups.snapshot().subscription_group_table)
        same("held pulls", lambda one: len(one.service.polls))
        same("counts", lambda one: _without(one.service.responders.stats.counts, SLAVES_ASK))
        same("refusals", lambda one: one.service.responders.stats.refusals)
        for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"):
            same(name, lambda one, name=name: sorted(one.service.stats.totals(name)))  # type: ignore[misc]
        same("put failures", lambda one: one.service.stats.put_failures)

    def end(self) -> None:
        for one in (*self.slaves, *self.brokers):
            one.node.disk.recover()
            one.end()
        self._test.flushLoggedErrors()


def _without(counts: Mapping[int, int], code: int) -> dict[int, int]:
    return {each: count for each, count in counts.items() if each != code}


def check_reads(one: OneBroker) -> None:
    """Compare what the compiled loop reads, which all pulls use, with a scan of the queue: it may only end earlier."""
    store = one.service.store
    quick, scan = store.pull, store.get

    def pull(*args: Any) -> GetResult:
        found, whole = quick(*args), scan(*args)
        whole.messages = [b"".join(whole.messages)] if whole.messages else []
        if whole.messages and found.messages and whole.messages[0].startswith(found.messages[0]):
            return found
        assert found == whole, f"{args}: {found}, scanned {whole}"
        return found

    store.pull = pull  # type: ignore[assignment]


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
        if self.both.slaves and kind in (self.half, self.ending, self.back):
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
                : 4 if self.both.slaves else 6
            ]
        )
        ext = send_ext(self.topic(), queue_id=chance.choice((0, 0, 1, 2, 3)), props=props)
        return RemotingCommand(310, version=409, ext_fields=ext, body=b"x" * chance.choice((1, 20, 60, 400)))

    def batch(self) -> RemotingCommand:
        chance = self.chance
        ext = send_ext(self.topic(), queue_id=chance.choice((0, 1, 2)), m="true")
        entries = [BatchEntry(b"y" * chance.choice((1, 30)), f"TAGS\x01{tag}", 0) for tag in chance.choice(BATCHES)]
        body = encode_batch(entries)
        return RemotingCommand(320, version=409, ext_fields=ext, body=body)

    def half(self) -> RemotingCommand:
        return RemotingCommand(310, ext_fields=half_ext(self.chance.choice((0, 1)), b=self.topic()), body=b"half")

    def ending(self) -> RemotingCommand:
        if not self.both.halves:
            return self.half()
        ext = end_ext(self.chance.choice(self.both.halves[-8:]), self.chance.choice(("8", "8", "12")))
        return RemotingCommand(37, ext_fields=ext)

    def _place(self) -> int:
        """Return where a message is, or was."""
        places = self.both.places
        return self.chance.choice(places[-30:] if self.chance.random() < 0.8 else places)

    def back(self) -> RemotingCommand:
        chance = self.chance
        ext = back_ext(self._place(), group=chance.choice((*GROUPS, "new")))
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
        offset = chance.choice((low, high, high, high, max(0, high - 1), max(0, high - 3), low + 1, 0, high + 1))
        numbers = {"queueId": queue_id, "queueOffset": offset, "commitOffset": chance.choice((0, offset))}
        return RemotingCommand(code, version=409, ext_fields=ext | {key: str(value) for key, value in numbers.items()})

    def _new_pull(self) -> tuple[int, dict[str, str]]:
        """Return what one consumer repeats."""
        chance = self.chance
        subscription, kind = chance.choice(SUBSCRIPTIONS)
        return chance.choice((11, 11, 361)), pull_ext(
            chance.choice(("T", "T", "U", "%RETRY%g")),
            group=chance.choice(GROUPS),
            sys_flag=chance.choice((4, 6, 7, 5, 0, 2, 3)),
            subscription=subscription,
            expressionType=kind,
            subVersion=str(chance.choice((0, 0, 4))),
            suspendTimeoutMillis=chance.choice(("15000", "15000", "300")),
            maxMsgNums=chance.choice(("32", "32", "1", "2")),
        )

    def _queue(self) -> dict[str, str]:
        chance = self.chance
        return {"consumerGroup": chance.choice(GROUPS), "topic": self.topic(), "queueId": chance.choice("001")}

    def commit(self) -> RemotingCommand:
        ext = self._queue() | {"commitOffset": str(self.chance.randrange(30))}
        return RemotingCommand(15, version=409, ext_fields=ext)

    def ask(self) -> RemotingCommand:
        chance = self.chance
        code = chance.choice((12, 12, 14, 14, 14, 29, 30, 31, 33, 38, 38, 41, 41, 42, 202, 202, 208, 208))
        if code == 33:
            return RemotingCommand(33, version=409, ext_fields={"offset": str(self._place())})
        if code == 12:
            ext = {"topic": self.topic(), "key": "k", "maxNum": chance.choice(("1", "32")), "beginTimestamp": "0"}
            return RemotingCommand(12, version=409, ext_fields=ext | {"endTimestamp": str(1 << 62)})
        if code in (41, 42):
            queues = ",".join(
                f'{{"brokerName":"broker-a","queueId":{queue_id},"topic":"T"}}'
                for queue_id in range(chance.choice((1, 3)))
            )
            owner = f'"clientId":"{chance.choice("ab")}","consumerGroup":"{chance.choice(GROUPS)}"'
            return RemotingCommand(code, version=409, body=f'{{{owner},"mqSet":[{queues}]}}'.encode())
        if code == 29:
            now_ms = int(self.both.brokers[0].service.clock.seconds() * 1000)
            ext = {"timestamp": str(now_ms - chance.choice((0, 50, 300, 2000, 100_000)))}
            return RemotingCommand(29, version=409, ext_fields=self._queue() | ext)
        return RemotingCommand(code, version=409, ext_fields=self._queue())

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

    def crowd(self, topic: str) -> None:
        """Have pulls wait at the ends of queues for what one turn stores there."""
        chance, both = self.chance, self.both
        queues = chance.choice(("0000", "0012", "0123"))
        code, ext = chance.choice(self.pulls)
        ext = ext | {"topic": topic, "sysFlag": "6"}
        if chance.random() < 0.7:
            ext |= {"subscription": "*", "expressionType": "TAG"}
        pulls = []
        for number, queue_id in enumerate(queues):
            offset = str(both.brokers[0].service.store.max_offset(topic, int(queue_id)))
            more = {"queueId": queue_id, "queueOffset": offset}
            if chance.random() < 0.3:
                more |= {"maxMsgNums": "1"}
            elif chance.random() < 0.3:
                more |= {"subscription": "A", "expressionType": "TAG"}
            pulls.append((number, RemotingCommand(code, version=409, ext_fields=ext | more)))
        both.send(*pulls)
        sends = [(number, self.single()) for number in range(PEERS)]
        for (_, command), queue_id in zip(sends, queues, strict=False):
            command.ext_fields = {**(command.ext_fields or {}), "b": topic, "e": queue_id}
        both.send(*sends)

    # changes

    def change(self) -> None:
        chance, both = self.chance, self.both
        kinds = 17 if both.slaves else 19
        kind = 16 if (both.deletes or both.slaves) and chance.random() < 0.3 else chance.randrange(kinds)
        number = chance.randrange(PEERS)
        if kind < 4:
            ext = {"topic": chance.choice((*TOPICS, "%RETRY%g")), "defaultTopic": "TBW102"}
            ext |= {"readQueueNums": chance.choice("0123"), "writeQueueNums": chance.choice("0123")}
            ext |= {"perm": chance.choice("66624"), "topicSysFlag": "0", "order": chance.choice(("false", "true"))}
            ext |= {"topicFilterType": chance.choice(("SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG"))}
            both.send((number, RemotingCommand(17, ext_fields=ext)))
        elif kind < 6:
            topic = chance.choice((*TOPICS, "%RETRY%g"))
            both.send((number, RemotingCommand(215, ext_fields={"topic": topic})))
            # topics of the same name, whose queues begin at 0 again
            for _ in range(0 if both.slaves else chance.choice((0, 2))):
                both.run(0.5)
                ext = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0"}
                ext |= {"defaultTopic": "TBW102", "order": "false", "topicFilterType": "SINGLE_TAG"}
                both.send((number, RemotingCommand(17, ext_fields=ext)))
                self.crowd(topic)
                both.run(0.1)
                both.send((number, RemotingCommand(215, ext_fields={"topic": topic})))
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
        elif kind == 14 and both.is_up(number):
            both.reconnect(number)
        elif kind == 15:
            code = chance.choice((306, 316, 329, 314))
            ext = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"} if code == 314 else {}
            both.send((number, RemotingCommand(code, ext_fields=ext)))
        elif kind == 16:
            self.outside()
        else:
            self.restart()

    def restart(self) -> None:
        """Start with other values, of which many count from the next start on only."""
        chance, both = self.chance, self.both
        both.restart(both.other_values(chance), ends=chance.choice(("killed", "stopped")))

    def outside(self) -> None:
        """What no request of a client does."""
        chance, both = self.chance, self.both
        kind = chance.choice((1, 3, 3)) if both.deletes else chance.randrange(7 if both.slaves else 4)
        order = chance.sample(TOPICS, k=chance.randrange(3))
        both.history.append(f"outside {kind} {order}")
        for one in both.brokers:
            if kind >= 4:
                break
            if kind == 0:
                one.service.topics.set_order_topics(order)
            elif kind == 1:
                one.node.disk.fill()
            else:
                one.node.disk.recover()
        if kind == 2:
            both.run(130.0)
        elif kind == 4:
            both.kill_or_start_slave()
        elif kind > 4:
            for one, slave in zip(both.brokers, both.slaves, strict=True):
                one.net.heal()
                if kind == 5:
                    one.net.block(one.node, slave.node)

    def step(self) -> None:
        chance, both = self.chance, self.both
        if chance.random() < 0.12:
            self.change()
        elif not both.slaves and chance.random() < 0.1:
            self.crowd(chance.choice(TOPICS[:2]))
        elif chance.random() < 0.6:
            number = chance.randrange(PEERS)
            both.send(*((number, self.request()) for _ in range(chance.choice((1, 1, 2, 5)))))
        else:
            numbers = chance.sample(range(PEERS), k=chance.randrange(2, PEERS + 1))
            kind = self.request().code
            both.send(*((number, self._like(kind)) for number in numbers))
        seconds = chance.choice((0.0, 0.0, 0.05, 0.05, 0.3, 6.0 if both.slaves and chance.random() < 0.5 else 2.0))
        at_once = both.compare()
        both.run(max(seconds, 0.1) if both.flushes else seconds)
        for answer in at_once + both.compare():
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


#: small files, of which the oldest are deleted soon after the disk is full
DELETING = {
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": "4096",
    "mappedFileSizeConsumeQueue": "200",
    "maxHashSlotNum": "10",
    "maxIndexNum": "20",
    "cleanResourceInterval": "300",
}
#: sends wait for a slave
PAIR = {"enablePropertyFilter": "true", "brokerRole": "SYNC_MASTER", "haMasterAddress": ""}
VALUES = {"enablePropertyFilter": "true", "mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}


class LanesAndChangesTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def test_same_history(self) -> None:
        """Answers, tables and files are the same with lanes and without, whatever changes between requests."""
        for values in VALUES, DELETING, PAIR:
            for seed in range(SEED, SEED + HISTORIES):
                replay(self, seed, values, 80)

    def test_planted_differences(self) -> None:
        """
        Faults are found: pulls that are not checked again, a queue that keeps its beginning, sends that do not wait
        for slaves or for the disk, queues with extensions that get units without.
        """
        for values, steps, seed, where, name, fault in (
            (VALUES, 150, 0, PullLane, "_has_other_terms", lambda _: False),
            (DELETING, 150, 0, PullLane, "_not_found", _of_a_whole_queue),
            (PAIR, 150, 0, lanes, "answers_at_once", lambda _: True),
            (VALUES, 100, 2, lanes, "answers_at_once", lambda config: config.broker_role is BrokerRole.ASYNC_MASTER),
            (VALUES, 100, 3, MessageStore, "ordinary_queue", lambda store, *place: store._queues.get(*place)),
        ):
            patch = self.patch(where, name, fault)
            self.assertRaises(self.failureException, replay, self, seed, values, steps)
            patch.restore()
            self.flushLoggedErrors()


def _of_a_whole_queue(*pull: Any, real: Callable[..., bytes] = PullLane._not_found) -> bytes:
    """Return an answer that knows nothing of deleted files."""
    return re.sub(rb'"minOffset":"\d+"', lambda found: re.sub(rb"\d", b"0", found[0]), real(*pull))


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
