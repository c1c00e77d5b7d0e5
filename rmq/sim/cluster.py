"""
A whole cluster of the real code on simulated machines: NameServers, broker groups, and machines for clients.

Files are small, so that minutes of simulated time roll segments, queue files and index files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from random import Random

import attrs

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup
from rmq.broker.service import BrokerService, build_broker
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.runtime.config import load
from rmq.runtime.platform import Platform
from rmq.sim.inode import SECTOR_BYTES
from rmq.sim.net import SimNet
from rmq.sim.node import Builder, Node
from rmq.sim.world import SimError, World
from rmq.store import layout
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.wire.api.common import MASTER_ID

CLUSTER_NAME = "sim"
ROOT = "/store"
NAMESRV_PORT = 9876
BROKER_PORT = 10911

#: Keys of every broker. Files are never deleted here: what was acknowledged must be found at the end.
FIXED = {
    "brokerClusterName": CLUSTER_NAME,
    "storePathRootDir": ROOT,
    "cleanFileForciblyEnable": "false",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "5000",
    # no half message is discarded, however long its producers are away
    "transactionCheckMax": "1000000",
}

#: Keys that are drawn, the same for all brokers of a run, with what they are drawn from.
DRAWN: dict[str, tuple[int, ...]] = {
    "mappedFileSizeCommitLog": (32 << 10, 64 << 10),
    "mappedFileSizeConsumeQueue": (20 * 7, 20 * 50, 20 * 300),
    "maxHashSlotNum": (1, 16, 200),
    "maxIndexNum": (20, 100, 1000),
    "flushIntervalCommitLog": (100, 500),
    "flushCommitLogThoroughInterval": (500, 10_000),
    "flushIntervalConsumeQueue": (200, 1000),
    "flushConsumeQueueThoroughInterval": (1000, 10_000, 60_000),
    "flushConsumerOffsetInterval": (500, 5000),
    "registerNameServerPeriod": (10_000, 30_000),
    "haTransferBatchSize": (333, 4096, 32_768),
    "maxTransferCountOnMessageInMemory": (1, 4, 32),
}

#: Keys that few brokers have, together with what belongs to them.
RARE: tuple[dict[str, str], ...] = (
    {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "1000"},
    {"haTransferFlushedOnly": "true"},
    {"haAckAfterFlush": "true"},
)
RARELY = 0.15

#: disks write sectors of 512 bytes whole, some only less
SECTORS = (SECTOR_BYTES, SECTOR_BYTES, 64, 1)
#: wall clocks of a run are at most so far from the right time, by one of these
AHEAD_S = (0.05, 5.0, 3600.0)
#: and at most so much too fast or too slow where they drift
DRIFT = 0.01


@attrs.frozen(kw_only=True)
class GroupOptions:
    """A master and its slaves."""

    name: str
    role: BrokerRole
    flush: FlushDiskType
    slaves: int
    slave_flush: FlushDiskType

    def __str__(self) -> str:
        return f"{self.name} {self.role.value} {self.flush.value}, {self.slaves} slave(s) {self.slave_flush.value}"


@attrs.frozen(kw_only=True)
class Options:
    """Everything about a run that is drawn before it begins, but the plan of faults."""

    name_servers: int
    groups: tuple[GroupOptions, ...]
    #: what a sync of a broker's healthy disk takes, from and to
    sync_s: tuple[float, float]
    #: what a broker's disk writes whole or not at all
    sector_bytes: int = SECTOR_BYTES
    #: configuration keys of all brokers
    store: Mapping[str, str]
    topics: tuple[str, ...]
    #: made on all masters before anybody sends; else the first sends make them
    topics_made_first: bool
    #: queues of each topic
    queues: int
    producers: int
    consumers: int
    #: mean pause of a producer between two sends
    send_every_s: float
    #: bodies are at most so long
    body_bytes: int
    #: the part of sends that are batches
    batched: float
    #: the part of sends that begin a transaction
    transactional: float = 0.0

    @property
    def all_queues(self) -> list[tuple[str, int]]:
        """Every queue of each topic."""
        return [(topic, queue_id) for topic in self.topics for queue_id in range(self.queues)]

    def lines(self) -> Iterator[str]:
        """Yield the options for a reader."""
        yield (
            f"{self.name_servers} NameServer(s), {self.producers} producer(s), {self.consumers} consumer(s), "
            f"syncs take {self.sync_s[0]:g} to {self.sync_s[1]:g} s, sectors have {self.sector_bytes} bytes"
        )
        yield from map(str, self.groups)
        yield (
            f"topics {', '.join(self.topics)} with {self.queues} queues, made by "
            f"{'an operator' if self.topics_made_first else 'the first sends'}; a send every {self.send_every_s} s, "
            f"bodies to {self.body_bytes} bytes, {self.batched:.0%} batches, {self.transactional:.0%} transactions"
        )
        yield " ".join(f"{key}={value}" for key, value in self.store.items())


def draw_options(rng: Random) -> Options:
    """Draw a cluster."""
    groups = []
    for name in ("broker-a", "broker-b")[: rng.choice((1, 1, 1, 2))]:
        groups.append(
            GroupOptions(
                name=name,
                role=rng.choice((BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER)),
                flush=rng.choice(tuple(FlushDiskType)),
                slaves=rng.choice((0, 1, 1, 1, 2)),
                slave_flush=rng.choice(tuple(FlushDiskType)),
            )
        )
    options = Options(
        name_servers=rng.choice((1, 2)),
        groups=tuple(groups),
        sync_s=rng.choice(((0.0005, 0.005), (0.005, 0.1), (0.02, 0.4))),
        store={key: str(rng.choice(values)) for key, values in DRAWN.items()},
        topics=("orders", "events")[: rng.choice((1, 2))],
        # Sends go where the topic is, so without an operator a second group might never get one.
        topics_made_first=len(groups) > 1 or rng.random() < 0.5,
        queues=rng.choice((1, 2, 4)),
        producers=rng.choice((1, 2, 3)),
        consumers=rng.choice((1, 2)),
        send_every_s=rng.choice((0.05, 0.1, 0.2)),
        body_bytes=rng.choice((100, 1000, 4000)),
        batched=rng.choice((0.0, 0.2)),
    )
    rare = {key: value for keys in RARE if rng.random() < RARELY for key, value in keys.items()}
    sector_bytes = rng.choice(SECTORS)
    if rng.random() < 0.5:
        # Brokers ask NameServers whether anything is new, which counts as a sign of life, and register only then.
        rare["forceRegister"] = "false"
    transactional = rng.choice((0.0, 0.0, 0.3))
    return attrs.evolve(
        options, store={**options.store, **rare}, sector_bytes=sector_bytes, transactional=transactional
    )


@attrs.frozen(eq=False)
class Member:
    """One broker of a group and the machine that it runs on."""

    group: GroupOptions
    broker_id: int
    node: Node

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    @property
    def addr(self) -> str:
        return f"{self.node.address}:{BROKER_PORT}"

    @property
    def running(self) -> BrokerService | None:
        """The broker that runs there now."""
        service = self.node.service
        return service if isinstance(service, BrokerService) else None

    @property
    def broker(self) -> BrokerService:
        """The broker, which must run."""
        service = self.running
        if service is None:
            raise SimError(f"{self.node.name} does not run")
        return service


class Cluster:
    """The machines of a run; nothing runs before :meth:`start`."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options
        self.net = SimNet(world)
        self.name_servers = [Node(world, self.net, f"namesrv-{n}") for n in range(options.name_servers)]
        self.members = [
            Member(group, broker_id, Node(world, self.net, f"{group.name}-{broker_id}"))
            for group in options.groups
            for broker_id in range(group.slaves + 1)
        ]
        for member in self.members:
            disk = member.node.disk
            disk.sync_s = disk.healthy_sync_s = options.sync_s
            disk.sector_bytes = lambda path: options.sector_bytes
        self.producers = [Node(world, self.net, f"producer-{n}") for n in range(options.producers)]
        self.consumers = [Node(world, self.net, f"consumer-{n}") for n in range(options.consumers)]
        self.observer = Node(world, self.net, "observer")
        self._set_clocks()

    def _set_clocks(self) -> None:
        """Let no two machines show the same time; in some runs their clocks drift, in some they are corrected."""
        rng = self.world.rng_for("clocks")
        scale_s, drift, wander = rng.choice(AHEAD_S), rng.random() < 0.3, rng.random() < 0.3
        for node in [*self.nodes, self.observer]:
            node.wall.ahead_s = rng.uniform(-scale_s, scale_s)
            if drift:
                node.wall.rate = rng.uniform(1 - DRIFT, 1 + DRIFT)
            if wander:
                node.wall.wander(self.world.rng_for(node.name, "clock"))

    @property
    def servers(self) -> list[Node]:
        """NameServers and brokers."""
        return self.name_servers + [member.node for member in self.members]

    @property
    def nodes(self) -> list[Node]:
        """All machines but the observer's, which meets no faults."""
        return self.servers + self.producers + self.consumers

    @property
    def namesrv_addrs(self) -> list[str]:
        return [f"{node.address}:{NAMESRV_PORT}" for node in self.name_servers]

    def master_of(self, name: str) -> Member:
        """Return the master of a group by its broker name."""
        return next(member for member in self.members if member.is_master and member.group.name == name)

    def slaves_of(self, master: Member) -> list[Member]:
        """Return the slaves of a master's group."""
        return [member for member in self.members if member.group is master.group and not member.is_master]

    @property
    def masters(self) -> list[Member]:
        return [member for member in self.members if member.is_master]

    def start_servers(self) -> None:
        """Start NameServers and brokers, within a few seconds and in any order."""
        for node in self.name_servers:
            self._start_soon(node, self._build_namesrv)
        for member in self.members:
            self._start_soon(member.node, partial(self._build_broker, member))

    def _start_soon(self, node: Node, build: Builder) -> None:
        self.world.schedule(self.world.rng.uniform(0, 3), lambda: node.start(build))

    def _build_namesrv(self, platform: Platform) -> NamesrvService:
        namesrv = NamesrvConfig(
            kv_config_path="/namesrv/kvConfig.json", config_store_path="/namesrv/namesrv.properties"
        )
        return build_namesrv(platform, NamesrvSetup(namesrv=namesrv))

    def _build_broker(self, member: Member, platform: Platform) -> BrokerService:
        return build_broker(
            platform,
            self.setup_of(member),
            host_address=member.node.address,
            host_name=member.node.name,
            on_fatal=lambda text: fatal(platform, member.node, text),
        )

    def setup_of(self, member: Member) -> BrokerSetup:
        """Return the configuration of a broker, made the way a properties file is read."""
        group = member.group
        values = {
            **FIXED,
            **self.options.store,
            "namesrvAddr": ";".join(self.namesrv_addrs),
            "brokerName": group.name,
            "brokerId": str(member.broker_id),
            "brokerRole": (group.role if member.is_master else BrokerRole.SLAVE).value,
            "flushDiskType": (group.flush if member.is_master else group.slave_flush).value,
        }
        broker, server, client, store, extra = load(CONFIG_CLASSES, values, member.node.name).configs
        return BrokerSetup(broker=broker, server=server, client=client, store=store, extra=extra)


def fatal(platform: Platform, node: Node, text: str) -> None:
    """Do what twistd does when a broker cannot go on: end the process."""
    node.world.note(node.name, "fatal", text)
    platform.reactor.stop()


class LogImage:
    """
    The commit log of a machine as its disk shows it, running or not: what is in the files, synced or not.

    Its end is behind the last byte that is not zero: records end with bytes other than zero.
    """

    def __init__(self, node: Node) -> None:
        self._disk = node.disk
        folder = layout.commit_log_dir(ROOT)
        self._paths = {
            start: layout.join(folder, name)
            for name in node.disk.list_dir(folder)
            if (start := layout.file_start(name)) is not None
        }
        self.start = min(self._paths, default=0)
        self._kept: dict[int, bytes] | None = None

    def keep(self) -> LogImage:
        """Hold the bytes themselves from now on, whatever becomes of the disk."""
        self._kept = {start: self._disk.read_whole(path) for start, path in self._paths.items()}
        return self

    @property
    def end(self) -> int:
        """One behind the last byte that was written."""
        for start in sorted(self._paths, reverse=True):
            written = len(self._disk.read_whole(self._paths[start]).rstrip(b"\0"))
            if written:
                return start + written
        return self.start

    def read(self, phy_offset: int, size: int) -> bytes:
        """Return bytes of one file, fewer where there are no more."""
        start = max((start for start in self._paths if start <= phy_offset), default=None)
        if self._kept is not None:
            return b"" if start is None else self._kept[start][phy_offset - start : phy_offset - start + size]
        return b"" if start is None else self._disk.peek(self._paths[start], phy_offset - start, size)
