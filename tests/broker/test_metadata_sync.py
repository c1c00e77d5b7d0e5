"""How a slave takes over its master's tables, against a master that answers what it is told to."""

from __future__ import annotations

import json
import random
import tempfile
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import provider

from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.metadata_sync import MetadataSync, vip_addr
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.topics import TopicTable
from rmq.remoting.client import RemotingClient
from rmq.remoting.responders import NO_REPLY, NoReply, Refuse, Reply, Request, ResponderTable, responds_to
from rmq.remoting.server import RemotingServer
from rmq.runtime.platform import Platform
from rmq.store.messages import GetResult, GetStatus
from rmq.wire.api.admin import GET_BROKER_RUNTIME_INFO
from rmq.wire.api.common import DataVersion, TopicConfig
from rmq.wire.api.replication import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_ALL_TOPIC_CONFIG,
)
from tests.broker.harness import AtOnceDisk
from tests.ha.golden import conversation
from tests.ha.net import Net

PORT = 10911
MASTER = f"10.0.0.9:{PORT}"
RECORD_BYTES = 64
NAMES = {21: "topics", 43: "consumer offsets", 45: "delay offsets", 201: "subscription groups"}


def recorded_bodies() -> dict[int, bytes]:
    """Return the bodies with which a 4.9.7 master answered its slave, by request code."""
    bodies: dict[int, bytes] = {}
    for event in conversation("slave-4.9.7_master-4.9.7_synchronize"):
        if not event.to_master and event.data:
            size = int.from_bytes(event.data[5:8], "big")
            name = event.name.removeprefix("SUCCESS <- ")
            code = {
                "GET_ALL_TOPIC_CONFIG": 21,
                "GET_ALL_CONSUMER_OFFSET": 43,
                "GET_ALL_DELAY_OFFSET": 45,
                "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": 201,
            }[name]
            bodies.setdefault(code, event.data[8 + size :])
    return bodies


class Master:
    """Answers with raw bodies; ``broken`` holds refusals by code, None for no answer at all."""

    def __init__(self) -> None:
        self.bodies = {**recorded_bodies(), 28: b'{"table":{"commitLogMaxOffset":"1000"}}'}
        self.broken: dict[int, str | None] = {}
        self.asked: list[tuple[int, int]] = []

    @responds_to(GET_ALL_TOPIC_CONFIG)
    @responds_to(GET_ALL_CONSUMER_OFFSET)
    @responds_to(GET_ALL_DELAY_OFFSET)
    @responds_to(GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    @responds_to(GET_BROKER_RUNTIME_INFO)
    def answer(self, request: Request[None, None]) -> Reply | NoReply:
        code = request.command.code
        assert not request.command.body and not request.command.ext_fields
        self.asked.append((code, request.channel.id))
        if code in self.broken:
            remark = self.broken[code]
            if remark is None:
                return NO_REPLY
            raise Refuse(1, remark)
        return Reply(None, self.bodies[code])


class MemoryQueues:
    """A log in memory, of records that hold nothing but where they lie and what is written into them."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self._queues: dict[tuple[str, int], list[int]] = {}
        #: the first messages that are still there, 0 where nothing else is said
        self.first: dict[tuple[str, int], int] = {}
        self.end_offset = self.flushed_offset = 1000
        self.syncing: list[tuple[int, Deferred[bool]]] = []

    def sync_until(self, phy_offset: int) -> Deferred[bool]:
        if self.flushed_offset >= phy_offset:
            return succeed(True)
        self.syncing.append((phy_offset, Deferred()))
        return self.syncing[-1][1]

    def synced(self, phy_offset: int) -> None:
        """A sync has ended."""
        self.flushed_offset = phy_offset
        for wanted, done in self.syncing[:]:
            if wanted <= phy_offset:
                self.syncing.remove((wanted, done))
                done.callback(True)

    def write(self, topic: str, queue_id: int, count: int, text: str = "") -> None:
        """Append messages to a queue; logs of the same writes are the same."""
        for _ in range(count):
            phy_offset = RECORD_BYTES * len(self.records)
            record = b"".join((bytes(28), phy_offset.to_bytes(8, "big"), text.encode()))
            self.records[phy_offset] = record.ljust(RECORD_BYTES, b"-")
            self._queues.setdefault((topic, queue_id), []).append(phy_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self._queues.get((topic, queue_id), ()))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.first.get((topic, queue_id), 0)

    def get(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> GetResult:
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        places = self._queues.get((topic, queue_id), [])[queue_offset : queue_offset + max_count]
        if queue_offset < low or not places:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        messages = [self.records[place] for place in places]
        return GetResult(GetStatus.FOUND, queue_offset + len(messages), low, high, messages)


def usual_messages() -> MemoryQueues:
    """Return what a master and its slave have: 200 messages in each queue of T, and in one of a topic to be deleted."""
    messages = MemoryQueues()
    for topic, queue_id in (("T", 0), ("T", 1), ("T", 2), ("T", 3), ("Gone", 0)):
        messages.write(topic, queue_id, 200)
    return messages


class MetadataSyncCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.net = Net(5)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.disk = AtOnceDisk(self.net)
        self.addCleanup(self.disk.close)
        self.platform = Platform(
            reactor=self.net, disk=self.disk, rng=random.Random(1), endpoint_factory=self.net.endpoint
        )
        self.client = RemotingClient(self.platform)
        self.client.startService()
        self.topics = TopicTable(self.disk, self.folder, self.net)
        self.groups = SubscriptionGroupTable(self.disk, self.folder, self.net)
        self.offsets = ConsumerOffsetTable(self.disk, self.folder, self.net)
        self.messages = usual_messages()
        #: whether replication stands, and has got past the comparison
        self.agrees = True
        self.sync = self.new_sync()
        self.sync.startService()
        self.servers: list[RemotingServer] = []
        self.addCleanup(self.stop_all)

    def new_sync(self) -> MetadataSync:
        return MetadataSync(
            self.client,
            self.net,
            self.disk,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            config_dir=self.folder,
            own_addr="10.0.0.1:20911",
            messages=self.messages,
            agrees_with_master=lambda: self.agrees,
        )

    def stop_all(self) -> None:
        """Everything stops within its bounds and leaves no timer behind."""
        stopping: list[Deferred[None]] = []
        if self.sync.running:
            stopping.append(self.sync.stopService())
            self.net.run(3.5)
        stopping += [self.client.stopService(), *(server.stopService() for server in self.servers)]
        self.net.run(6)
        for each in stopping:
            self.successResultOf(each)
        self.assertEqual(self.net.getDelayedCalls(), [])

    def persist(self) -> None:
        """Write the consumer offsets."""
        self.successResultOf(Deferred.fromCoroutine(self.offsets.persist()))

    def return_master(self, master: object) -> None:
        """``master`` is there from now on; the first round is 3 s away, the next ones 10 s each."""
        server = RemotingServer(self.platform, host="", port=PORT, responders=ResponderTable(master), name="master")
        server.startService()
        self.servers.append(server)
        self.sync.set_master(MASTER)

    def master(self) -> Master:
        master = Master()
        for port in (PORT, PORT - 2):
            server = RemotingServer(
                self.platform, host="", port=port, responders=ResponderTable(master), name=f"master {port}"
            )
            server.startService()
            self.servers.append(server)
        self.sync.set_master(MASTER)
        return master

    def file(self, name: str) -> Any:
        return json.loads(self.disk.read_whole(f"{self.folder}/{name}"))


class RoundTests(MetadataSyncCase):
    def test_rhythm_and_ports(self) -> None:
        """After 3 s and then every 10 s: 21 at the VIP port, then 43, 45 and 201 at the main one, as Apache asks."""
        master = self.master()
        self.net.run(2.5)
        self.assertEqual(master.asked, [])
        self.net.run(1)
        self.assertEqual([code for code, _ in master.asked], [21, 43, 45, 28, 201])
        self.assertEqual([port for _, port in self.net.dials], [PORT - 2, PORT])
        self.net.run(10)
        self.assertEqual(len(master.asked), 9)
        self.assertEqual(len(self.net.dials), 2)

    def test_a_topic_that_the_log_has_and_the_table_lacks(self) -> None:
        """Topics are asked for at once, and no more than four times a second; a known queue asks for nothing."""
        master = self.master()
        self.net.run(4)
        master.asked.clear()
        self.sync.queue_made("HaTopic", 3)
        self.net.run(0.1, 0.05)
        self.assertEqual(master.asked, [])
        for queue_id in range(40):
            self.sync.queue_made("New", queue_id)
            self.net.run(0.05, 0.05)
        self.assertEqual({code for code, _ in master.asked}, {21})
        self.assertIn(len(master.asked), range(6, 10))
        master.asked.clear()
        master.broken[21] = None
        self.sync.queue_made("HaTopic", 4)
        self.net.run(0.4, 0.05)
        self.assertEqual(len(master.asked), 1)
        self.sync.queue_made("Newer", 0)
        self.net.run(1)
        self.assertEqual(len(master.asked), 1)  # one at a time; the test's end stops it with both under way

    def test_a_topic_that_the_log_has_without_a_master(self) -> None:
        """There is nobody to ask."""
        self.sync.queue_made("New", 0)
        self.assertIsNone(self.sync._early)

    def test_tables_of_an_apache_master(self) -> None:
        """What a 4.9.7 master answered, integer keys without quotes included, is in the tables and files afterwards."""
        self.master()
        self.net.run(4)
        topic = self.topics.get("HaTopic")
        assert topic is not None
        self.assertEqual((topic.read_queue_nums, topic.perm), (4, 6))
        self.assertEqual(self.topics.data_version, DataVersion(counter=2, timestamp=1795242166726))
        self.assertEqual(self.groups.data_version, DataVersion(counter=0, timestamp=1795242158785))
        self.assertIn("CID_ONSAPI_OWNER", self.groups)
        self.assertEqual(self.offsets.query("CG", "HaTopic", 0), 2)
        self.assertEqual(self.disk.read_whole(f"{self.folder}/delayOffset.json"), b'{"offsetTable":{4:1}}')
        self.assertEqual(self.file("consumerOffset.json")["offsetTable"], {"HaTopic@CG": {"0": 2}})
        self.assertIn("HaTopic", self.file("topics.json")["topicConfigTable"])
        self.assertEqual(self.file("subscriptionGroup.json")["dataVersion"]["timestamp"], 1795242158785)
        self.assertEqual(self.sync.failing, {})

    def test_own_entries_give_way(self) -> None:
        """Topics that the master does not have disappear; offsets that it does not have stay."""
        self.topics.put(TopicConfig(topic_name="Mine"))
        self.offsets.commit("G", "Mine", 0, 7)
        self.offsets.commit("CG", "HaTopic", 0, 1)
        self.master()
        self.net.run(4)
        self.assertNotIn("Mine", self.topics)
        self.assertEqual(self.offsets.query("G", "Mine", 0), 7)
        self.assertEqual(self.offsets.query("CG", "HaTopic", 0), 2)

    def test_unchanged_versions_cost_nothing(self) -> None:
        """Equal versions leave tables and files alone; another version replaces the table."""
        master = self.master()
        self.net.run(4)
        self.assertIn("HaTopic", self.topics)
        version = self.topics.data_version
        for name in ("topics.json", "subscriptionGroup.json", "delayOffset.json", "consumerOffset.json"):
            self.disk.delete(f"{self.folder}/{name}")
        self.net.run(10)
        self.assertIs(self.topics.data_version, version)
        self.assertEqual([name for name in self.disk.list_dir(self.folder) if name.endswith(".json")], [])
        master.bodies[21] = master.bodies[21].replace(b'"counter":2', b'"counter":3').replace(b"HaTopic", b"HbTopic")
        master.bodies[45] = b'{"offsetTable":{4:2}}'
        self.net.run(10)
        self.assertIn("HbTopic", self.topics)
        self.assertNotIn("HaTopic", self.topics)
        self.assertEqual(self.disk.read_whole(f"{self.folder}/delayOffset.json"), b'{"offsetTable":{4:2}}')

    def test_delay_offsets_wait_for_the_log(self) -> None:
        """They are written when this slave's log is on disk up to where the master's ended, and not replaced before."""
        path = f"{self.folder}/delayOffset.json"
        self.messages.end_offset = self.messages.flushed_offset = 999
        master = self.master()
        self.net.run(14)
        self.assertFalse(self.disk.exists(path))
        self.assertEqual(self.messages.syncing, [])
        master.bodies |= {45: b'{"offsetTable":{4:9}}', 28: b'{"table":{"commitLogMaxOffset":"5000"}}'}
        self.messages.end_offset = 1000
        self.net.run(10)
        self.assertEqual((self.disk.exists(path), len(self.messages.syncing)), (False, 1))
        self.messages.synced(1000)
        self.net.run(0.1)
        self.assertEqual(self.disk.read_whole(path), b'{"offsetTable":{4:1}}')
        self.net.run(10)
        self.assertEqual(self.disk.read_whole(path), b'{"offsetTable":{4:1}}', "of a busy master, too")
        self.messages.end_offset = self.messages.flushed_offset = 5000
        self.net.run(10)
        self.assertEqual(self.disk.read_whole(path), b'{"offsetTable":{4:9}}')
        self.assertEqual(self.sync.failing, {})

    def test_a_master_whose_log_has_no_end(self) -> None:
        """Without the end of its log a master's delay offsets are not taken, and the log says why."""
        master = self.master()
        for body in (b'{"table":{}}', b'{"table":{"commitLogMaxOffset":"-1"}}'):
            master.bodies[28] = body
            self.net.run(14)
            self.assertIn("commitLogMaxOffset", self.sync.failing["delay offsets"])
            self.assertFalse(self.disk.exists(f"{self.folder}/delayOffset.json"))

    def test_delay_offsets_of_another_master(self) -> None:
        """What waits for the log is dropped with the master that it came from."""
        self.messages.end_offset = self.messages.flushed_offset = 0
        self.master()
        self.net.run(4)
        self.sync.set_master(None)
        self.messages.end_offset = self.messages.flushed_offset = 1000
        self.net.run(20)
        self.assertFalse(self.disk.exists(f"{self.folder}/delayOffset.json"))


class TroubleTests(MetadataSyncCase):
    def test_no_master(self) -> None:
        """Without a master, or with itself as one, a slave asks nobody."""
        self.sync.set_master("10.0.0.1:20911")
        self.net.run(30)
        self.sync.set_master("no address")
        self.net.run(30)
        self.assertEqual(self.net.dials, [])

    def test_steps_are_independent(self) -> None:
        """Each step that fails leaves the others alone, is named until it works again, and works again."""
        for code, what in NAMES.items():
            for broken in ("no", None):
                with_trouble = f"{what}, {broken}"
                self.stop_all()
                self.setUp()
                master = self.master()
                master.broken[code] = broken
                self.net.run(8)
                self.assertEqual(list(self.sync.failing), [what], with_trouble)
                self.assertEqual([asked for asked, _ in master.asked if asked != 28], list(NAMES), with_trouble)
                done = {
                    21: "HaTopic" in self.topics,
                    43: self.offsets.query("CG", "HaTopic", 0) == 2,
                    45: self.disk.exists(f"{self.folder}/delayOffset.json"),
                    201: "CID_ONSAPI_OWNER" in self.groups,
                }
                self.assertEqual([step for step, ok in done.items() if not ok], [code], with_trouble)
                del master.broken[code]
                self.net.run(11)
                self.assertEqual(self.sync.failing, {}, with_trouble)

    def test_bodies_that_are_no_tables(self) -> None:
        """Garbage, wrong types, nothing, and an empty table change no table and no file."""
        self.master()
        self.net.run(4)
        before = {name: self.disk.read_whole(f"{self.folder}/{name}") for name in self.disk.list_dir(self.folder)}
        self.stop_all()
        for code, what in NAMES.items():
            for body in (b"garbage", b"[1]", b'{"offsetTable":7,"dataVersion":"x"}', b"", b"{}"):
                if body in (b"", b"{}") and code == 43:
                    continue  # a young master has no offsets, and nothing is what an empty table merges
                if body == b"{}" and code == 45:
                    continue  # no level has delivered anything
                self.setUp_with(before)
                master = self.master()
                master.bodies[code] = body
                self.net.run(4)
                self.assertEqual(list(self.sync.failing), [what], f"{what}: {body!r}")
                after = {name: self.disk.read_whole(f"{self.folder}/{name}") for name in before}
                self.assertEqual(after, before, f"{what}: {body!r}")
                self.stop_all()

    def setUp_with(self, files: dict[str, bytes]) -> None:
        self.setUp()
        for name, data in files.items():
            self.disk.write_atomic(f"{self.folder}/{name}", data)
        for table in (self.topics, self.groups, self.offsets):
            table.load()

    def test_master_away(self) -> None:
        """A master that cannot be reached fails all steps quickly; when it is there again all is well."""
        self.sync.set_master(MASTER)
        self.net.run(4)
        self.assertEqual(list(self.sync.failing), list(NAMES.values()))
        self.master()
        self.net.run(10)
        self.assertEqual(self.sync.failing, {})

    def test_hanging_master(self) -> None:
        """A master that never answers costs three seconds a step, and a stop no more than that."""
        master = self.master()
        master.broken = dict.fromkeys(NAMES)
        self.net.run(3)
        for asked in range(1, 5):
            self.assertEqual(len(master.asked), asked)
            self.net.run(3)
        self.net.run(2)
        done = self.sync.stopService()
        self.net.run(3.25)
        self.successResultOf(done)
        self.assertLessEqual(len(master.asked), 5)

    def test_master_that_is_left_in_the_middle(self) -> None:
        """A slave that follows another master takes no further table of the one that it has left."""
        master = self.master()
        master.broken = dict.fromkeys(NAMES)
        self.net.run(4)
        asked = len(master.asked)
        self.sync.set_master(None)
        self.net.run(10)
        self.assertEqual((asked, len(master.asked)), (1, 1))

    def test_unwritable_file(self) -> None:
        """A file that cannot be written fails its step and nothing else; in memory the slave has its topics."""
        self.disk.make_dirs(f"{self.folder}/topics.json")
        self.master()
        self.net.run(4)
        self.assertEqual(list(self.sync.failing), ["topics"])
        self.assertIn("HaTopic", self.topics)

    def test_delay_offsets_on_a_full_disk(self) -> None:
        """The log is synced twice a second: one line says that delay offsets cannot be written, one that they can."""
        path = f"{self.folder}/delayOffset.json"
        lines: list[str] = []

        @provider(ILogObserver)
        def observe(event: Any) -> None:
            if "delay offsets" in (line := formatEvent(event)):
                lines.append(line)

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        self.disk.make_dirs(path)
        self.messages.end_offset = 999
        self.master()
        self.net.run(4)
        self.messages.end_offset = 1000
        for _ in range(5):
            self.sync.log_flushed()
            self.net.run(0.5)
        self.assertIn("delay offsets sync from master", lines[0])
        self.disk.delete_tree(path)
        self.net.run(10)
        self.assertEqual(lines[1:], [f"delay offsets sync from master {MASTER} recovered"])


class AddressTests(SynchronousTestCase):
    def test_vip_port(self) -> None:
        """Two below the main port, also of an IPv6 address."""
        self.assertEqual(vip_addr("10.0.0.1:10911"), "10.0.0.1:10909")
        self.assertEqual(vip_addr("[::1]:10911"), "[::1]:10909")
