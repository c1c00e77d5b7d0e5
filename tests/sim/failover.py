"""A pair (or three brokers) with a controller on simulated machines, one producer, one reader, and faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup
from rmq.broker.elected.service import ElectedBroker, build_elected
from rmq.broker.service import BrokerService
from rmq.namesrv.config import ControllerConfig, NamesrvConfig, NamesrvSetup
from rmq.namesrv.controller.groups import Group
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.remoting.client import RemotingClient
from rmq.runtime.config import load
from rmq.runtime.disk.files import DiskError
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.wire.api.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_ELECT_MASTER,
    AlterSyncStateSetHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    SyncStateSet,
)
from rmq.wire.api.pulling import PULL_MESSAGE, PullMessageHeader
from rmq.wire.api.sending import SEND_MESSAGE_V2, SendMessageV2Header
from rmq.wire.record import decode_records

ROOT = "/store"
PORT = 10911
CONTROLLER_PORT = 9876
GROUP = "pair"
TOPIC = "orders"
#: what every broker of a run has
KEYS = {
    "brokerClusterName": "sim",
    "brokerName": GROUP,
    "storePathRootDir": ROOT,
    "enableControllerMode": "true",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "cleanFileForciblyEnable": "false",
    "defaultTopicQueueNums": "2",
    "listenPort": str(PORT),
}


@attrs.define
class Sent:
    """A message: what its producer got, and from whom."""

    body: bytes
    code: int | None = None
    queue_id: int = -1
    offset: int = -1
    #: where its record begins in the log of the broker that answered
    physical: int = -1


class Pair:
    """The machines; ``flush`` is flushDiskType."""

    def __init__(self, seed: int, *, brokers: int = 2, flush: str = "ASYNC_FLUSH", **keys: str) -> None:
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.rng = Random(seed)
        self.keys = {**KEYS, "flushDiskType": flush, **keys}
        self.controller = Node(self.world, self.net, "controller")
        self.brokers = [Node(self.world, self.net, f"broker-{number}") for number in range(brokers)]
        self.client = Node(self.world, self.net, "client")
        self.sent: list[Sent] = []
        #: what readers have seen: (queue, offset) -> body
        self.seen: dict[tuple[int, int], bytes] = {}
        self.violations: list[str] = []
        #: messages that were answered with SEND_OK begin before this place of the log
        self.acknowledged = -1
        #: the group as it was at moments before
        self.former: list[Group] = []
        #: whether a power failure may take what a broker had acknowledged
        self.may_lose = False
        self.controller.start(self.build_controller)
        self.client.start(self.build_client)
        for node in self.brokers:
            node.start(self.build_broker)

    # building

    def build_controller(self, platform: Platform) -> NamesrvService:
        setup = NamesrvSetup(
            namesrv=NamesrvConfig(
                enable_controller_in_namesrv=True, kv_config_path="/ns/kv.json", config_store_path="/ns/ns.properties"
            ),
            controller=ControllerConfig(controller_store_path="/ns/controller"),
        )
        return build_namesrv(platform, setup)

    def build_broker(self, platform: Platform) -> ElectedBroker:
        node = next(node for node in self.brokers if platform.reactor is node.process)
        addr = f"{self.controller.address}:{CONTROLLER_PORT}"
        values = {**self.keys, "namesrvAddr": addr, "controllerAddr": addr, "brokerIP1": node.address}
        broker, server, client, store, extra = load(CONFIG_CLASSES, values, node.name).configs
        setup = BrokerSetup(broker=broker, server=server, client=client, store=store, extra=extra)
        return build_elected(platform, setup, host_address=node.address, host_name=node.name)

    def build_client(self, platform: Platform) -> RemotingClient:
        self.remoting = RemotingClient(platform, name="client")
        return self.remoting

    # looking

    def elected(self, node: Node) -> ElectedBroker | None:
        """Return the service of a machine."""
        service = node.service
        return service if isinstance(service, ElectedBroker) else None

    def broker_of(self, node: Node) -> BrokerService | None:
        """Return the broker of a machine in its present role."""
        elected = self.elected(node)
        return None if elected is None else elected.broker

    def group(self) -> Group | None:
        """Return what the controller knows."""
        service = self.controller.service
        assert isinstance(service, NamesrvService)
        assert service.controller is not None
        return service.controller.group(GROUP)

    def master(self) -> Node | None:
        """Return the machine whose broker is master, as the controller says and as it knows itself."""
        group = None if self.controller.service is None else self.group()
        address = None if group is None else group.address(group.master_id)
        for node in self.brokers:
            broker = self.broker_of(node)
            if broker is not None and not broker.setup.is_slave and f"{node.address}:{PORT}" == address:
                return node
        return None

    def sole_master(self) -> Node:
        """As :meth:`master`; an AssertionError when there is none."""
        node = self.master()
        assert node is not None
        return node

    def masters(self) -> list[Node]:
        """Return the machines whose broker says that it is master."""
        return [one for one in self.brokers if (broker := self.broker_of(one)) and not broker.setup.is_slave]

    def is_whole(self) -> bool:
        """Tell whether there is a master, and all brokers are in the SyncStateSet."""
        group = None if self.controller.service is None else self.group()
        return (
            group is not None
            and self.master() is not None
            and len(group.sync_state_set) == len(self.brokers)
            and all(self.broker_of(node) is not None for node in self.brokers)
        )

    def look(self) -> None:
        """Check what holds at any moment, also where no fault makes a violation visible."""
        group = None if self.controller.service is None else self.group()
        if group is None:
            return
        for node in self.brokers:
            elected, broker = self.elected(node), self.broker_of(node)
            if elected is None or broker is None or not broker.running or node.is_ending:
                continue
            in_set = elected.broker_id in group.sync_state_set
            if in_set and broker.store.end_offset <= self.acknowledged and not self.may_lose:
                self.violations.append(
                    f"{self.world.now_s:.3f} s: {node.name} is in the SyncStateSet and ends at "
                    f"{broker.store.end_offset}, {self.acknowledged} was acknowledged"
                )
            if elected.master_epoch == group.master_epoch and elected.broker_id == group.master_id:
                missing = group.sync_state_set - broker.ha.required_members() - {elected.broker_id}
                if missing:
                    self.violations.append(
                        f"{self.world.now_s:.3f} s: {node.name} is master and does not wait for {sorted(missing)}"
                    )

    # acting

    def send(self, node: Node | None = None) -> Sent:
        """Send a message to a broker, any one that says it is master unless given."""
        sent = Sent(b"%d:" % len(self.sent) + self.rng.randbytes(self.rng.choice((4, 100, 2000))))
        self.sent.append(sent)
        if node is None:
            masters = self.masters()
            if not masters:
                return sent
            node = self.rng.choice(masters)
        header = SendMessageV2Header(
            producer_group="p",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=2,
            queue_id=self.rng.randrange(2),
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )

        def answered(answer: Any) -> None:
            if isinstance(answer, Failure):
                return
            sent.code = answer.code
            sent.queue_id, sent.offset = answer.header.queue_id, answer.header.queue_offset
            sent.physical = int(answer.header.msg_id[-16:], 16)
            if sent.code == 0:
                self.acknowledged = max(self.acknowledged, sent.physical)
                self.look()

        asked: Deferred[Any] = self.remoting.invoke(
            f"{node.address}:{PORT}", SEND_MESSAGE_V2, header, sent.body, timeout_ms=3000
        )
        asked.addBoth(answered)
        return sent

    def read(self, node: Node, queue_id: int, offset: int) -> Deferred[object]:
        """Pull what is behind ``offset`` and note it: at one place of a queue there is always one message."""
        header = PullMessageHeader(
            consumer_group="reader",
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        )

        def answered(answer: Any) -> None:
            if isinstance(answer, Failure) or answer.code != 0:
                return
            for record in decode_records(answer.body):
                place = (queue_id, record.queue_offset)
                before = self.seen.setdefault(place, record.body)
                if before != record.body:
                    self.violations.append(f"at {place} were {before[:8]!r} and {record.body[:8]!r}")

        asked: Deferred[Any] = self.remoting.invoke(
            f"{node.address}:{PORT}", PULL_MESSAGE, header, None, timeout_ms=2000
        )
        return asked.addBoth(answered)

    def read_some(self) -> None:
        """Read a little behind what was seen, from a broker that says it is master."""
        masters = self.masters()
        if not masters:
            return
        node = self.rng.choice(masters)
        queue_id = self.rng.randrange(2)
        known = max((offset for queue, offset in self.seen if queue == queue_id), default=-1)
        self.read(node, queue_id, max(0, known + 1 - self.rng.choice((0, 0, 5))))

    def ask_tool(self, contract: Any, header: Any, body: Any = None) -> None:
        """Ask the controller as a tool does; the answer does not matter."""
        asked: Deferred[Any] = self.remoting.invoke(
            f"{self.controller.address}:{CONTROLLER_PORT}", contract, header, body, timeout_ms=3000
        )
        asked.addBoth(lambda _: None)

    def elect(self, broker_id: int) -> None:
        """Ask for another master, as `mqadmin electMaster` does."""
        self.ask_tool(
            CONTROLLER_ELECT_MASTER,
            ElectMasterHeader(cluster_name="sim", broker_name=GROUP, broker_id=broker_id, designate_elect=True),
        )

    def clean(self, broker_id: int) -> None:
        """Have a broker forgotten, as `mqadmin cleanBrokerMetadata` does."""
        self.ask_tool(
            CLEAN_BROKER_DATA,
            CleanBrokerDataHeader(cluster_name="sim", broker_name=GROUP, broker_controller_ids_to_clean=str(broker_id)),
        )

    def alter_late(self) -> None:
        """Let a request of a former time arrive, for a set with all brokers; then remember the present time."""
        group = None if self.controller.service is None else self.group()
        if group is None:
            return
        late = [old for old in self.former if old.sync_state_set_epoch != group.sync_state_set_epoch]
        for old in self.rng.sample(late, min(2, len(late))):
            self.ask_tool(
                CONTROLLER_ALTER_SYNC_STATE_SET,
                AlterSyncStateSetHeader(
                    broker_name=GROUP, master_broker_id=old.master_id or 1, master_epoch=old.master_epoch
                ),
                SyncStateSet(sync_state_set=sorted(old.members), sync_state_set_epoch=old.sync_state_set_epoch),
            )
        self.former.append(group)

    def hard_fault(self) -> None:
        """Do something bad that :meth:`fault` does not."""
        self.alter_late()
        node = self.rng.choice(self.brokers)
        everything = [self.controller, *self.brokers]
        match self.rng.randrange(10):
            case 0:
                if node.process is not None and not node.is_ending:
                    node.stop()
            case 1:
                self.rng.choice(everything).disk.fill()
            case 2:
                # Only one: when also the zeros over a part that was written fail, and the process is killed then, the
                # next start finds intact records behind a hole.
                self.rng.choice(everything).disk.fail_writes = 1
            case 3:
                self.rng.choice(everything).step_clock(self.rng.choice((-3600.0, -5.0, 7.0, 3600.0)))
            case 4 | 5:
                self.elect(self.rng.randrange(1, len(self.brokers) + 1))
            case 6:
                # Answers of the controller are late, questions are not.
                self.net.clog(self.controller, node, self.rng.choice((0.9, 2.9, 3.5, 6.0)))
            case 7:
                # Questions are late: each is applied when its broker has given up.
                self.net.clog(node, self.controller, self.rng.choice((0.9, 2.9, 3.5, 6.0)))
            case 8:
                # What is acknowledged now must be at the others when the master is gone.
                master = self.master()
                if master is not None:
                    for other in self.brokers:
                        self.net.clog(master, other, self.rng.choice((0.0, 0.7, 1.5)))
                    for _ in range(40):
                        self.send(master)
                    self.world.run_for(self.rng.choice((0.01, 0.3, 1.0)))
                    if self.rng.random() < 0.5:
                        master.kill()
            case _:
                for each in everything:
                    each.disk.recover()

    def fault(self, *, power: bool) -> None:
        """Do something bad, or undo it; a power failure only if ``power``."""
        node = self.rng.choice(self.brokers)
        everything = [self.controller, *self.brokers]
        match self.rng.randrange(10):
            case 0:
                node.kill()
            case 1:
                if power:
                    node.crash()
                else:
                    node.kill()
            case 2:
                self.net.partition(*self.rng.sample(everything, 2))
            case 3 | 4:
                self.net.heal()
            case 5:
                self.net.reset_between(*self.rng.sample(everything, 2))
            case 6:
                self.rng.choice(everything).kill()
            case 7:
                one, other = self.rng.sample(everything, 2)
                self.net.clog(one, other, self.rng.choice((0.5, 3.0, 12.0)))
            case _:
                pass
        self.start_some()

    def start_some(self, *, everything: bool = False) -> None:
        """Start what is down, most of it."""
        for node in (self.controller, *self.brokers):
            if node.process is None and (everything or self.rng.random() < 0.6):
                self.violations += [f"{node.name} left {leak}" for leak in node.leaks]
                self.start(node, everything=everything)

    def start(self, node: Node, *, everything: bool) -> None:
        """Start a machine's process; one whose disk is full or broken may end at once."""
        try:
            node.start()
        except DiskError:
            if everything:
                raise

    def rest(self, limit_s: float = 240.0) -> None:
        """Let everything come back."""
        self.net.heal()
        for node in (self.controller, *self.brokers):
            node.disk.recover()
        end_s = self.world.now_s + limit_s
        while not self.is_whole():
            # As a supervisor does: start what has ended, also by an error of its own.
            self.start_some(everything=True)
            assert self.world.now_s < end_s, f"no whole group after {limit_s} s (seed {self.world.seed})"
            self.world.run_for(1.0)

    def check(self) -> None:
        """Find each acknowledged message in its place at each broker, and what was seen too."""
        self.world.run_for(5.0)
        for node in self.brokers:
            found: dict[tuple[int, int], bytes] = {}
            broker = self.broker_of(node)
            assert broker is not None
            for queue_id in range(2):
                end = broker.store.max_offset(TOPIC, queue_id)
                for offset in range(end):
                    body = self._body_at(broker, queue_id, offset)
                    if body is not None:
                        found[queue_id, offset] = body
            for sent in self.sent:
                if sent.code == 0 and found.get((sent.queue_id, sent.offset)) != sent.body:
                    self.violations.append(f"{node.name}: lost {sent.body[:8]!r} at {sent.queue_id}, {sent.offset}")
            for place, body in self.seen.items():
                if found.get(place) != body:
                    self.violations.append(f"{node.name}: what was read at {place}, {body[:8]!r}, is gone")
        assert not self.violations, "\n".join(self.violations[:20])

    @staticmethod
    def _body_at(broker: BrokerService, queue_id: int, offset: int) -> bytes | None:
        for record in broker.store.get(TOPIC, queue_id, offset, 1).messages:
            return decode_records(record)[0].body
        return None


class FaultsOfSeeds:
    """Tests of a pair through faults that each of ``seeds`` draws; four in a row meet all that differs between them."""

    seeds: range
    subTest: Callable[..., AbstractContextManager[None]]

    def run_seed(self, seed: int, *, power: bool = True, hard: bool = False, **options: Any) -> None:
        pair = Pair(seed, **options)
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        for _ in range(60):
            for _ in range(pair.rng.randrange(12)):
                pair.send()
                pair.read_some()
                pair.world.run_for(pair.rng.choice((0.0, 0.01, 0.3)))
            if pair.rng.random() < 0.4:
                pair.fault(power=power)
            if hard and pair.rng.random() < 0.4:
                pair.hard_fault()
            for _ in range(pair.rng.choice((1, 4, 20, 48)) if hard else 0):
                pair.world.run_for(0.25)
                pair.look()
            if not hard:
                pair.world.run_for(pair.rng.choice((0.1, 1.0, 5.0, 12.0)))
            assert not pair.violations, "\n".join(pair.violations[:20])
        pair.rest()
        pair.check()

    def test_faults_lose_nothing_that_is_on_disk(self) -> None:
        """SYNC_FLUSH: no fault of the list takes what was answered with SEND_OK, or what a consumer has seen."""
        for seed in self.seeds:
            with self.subTest(seed=seed):
                self.run_seed(seed, flush="SYNC_FLUSH", brokers=2 + seed % 2)

    def test_with_more_faults_nothing_is_lost(self) -> None:
        """Full disks, orderly stops, steps of clocks, tools, requests and answers of the controller that come late."""
        for seed in self.seeds:
            with self.subTest(seed=seed):
                if seed % 2:
                    self.run_seed(seed, hard=True, power=False, brokers=2 + seed // 2 % 2)
                else:
                    self.run_seed(seed, hard=True, flush="SYNC_FLUSH", brokers=2 + seed // 2 % 2)

    def test_without_power_failures_nothing_is_lost(self) -> None:
        """ASYNC_FLUSH: what was answered with SEND_OK is in the memory of both machines."""
        for seed in self.seeds:
            with self.subTest(seed=seed):
                self.run_seed(seed, power=False, brokers=2 + seed % 2)
