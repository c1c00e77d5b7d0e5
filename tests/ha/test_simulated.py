"""Replication with the real store on simulated machines: kills, partitions, slow networks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.service import HAService
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.store.store import MessageStore

SEGMENT = 65536
HA_PORT = 10912
QUEUES = 4
#: 198: a master that was killed twice gave queue offsets anew
SEEDS = (*range(8), 198)
HOST = (b"\x0a\x00\x00\x01", 10911)


class StoreBroker(Service):
    """A store with replication, and nothing else of a broker."""

    def __init__(self, platform: Platform, config: StoreConfig, master: str | None) -> None:
        self._master = master
        self.store = MessageStore(platform.disk, platform.reactor, config, memory_bytes=1 << 30)
        self.ha = HAService(platform, self.store, config, host="", role=config.broker_role)
        self.store.replication = self.ha

    def startService(self) -> None:
        super().startService()
        self.store.load()
        self.store.start()
        self.ha.startService()
        if self._master is not None:
            self.ha.set_master(f"{self._master}:{HA_PORT}")

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return self.ha.stopService().addCallback(lambda _: self.store.stop())


@attrs.define
class Sent:
    """One message: where it lies and what its producer was told."""

    queue_id: int
    body: bytes
    result: PutResult | None = None


class Cluster:
    """A SYNC_MASTER and two slaves."""

    def __init__(self, seed: int, flush: FlushDiskType) -> None:
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.rng = Random(seed)
        self.master, *self.slaves = [Node(self.world, self.net, name) for name in ("master", "slave-1", "slave-2")]
        self.nodes = [self.master, *self.slaves]
        for number, node in enumerate(self.nodes):
            node.step_clock(1_000_000 * (1 - number))
        self.sent: list[Sent] = []
        self.lies: list[str] = []
        self.held: dict[str, int] = {}
        self.master.start(self.builder(BrokerRole.SYNC_MASTER, flush))
        for slave in self.slaves:
            slave.start(self.builder(BrokerRole.SLAVE, flush))

    def builder(self, role: BrokerRole, flush: FlushDiskType) -> Callable[[Platform], StoreBroker]:
        config = StoreConfig(
            store_path_root_dir="/store",
            broker_role=role,
            flush_disk_type=flush,
            ha_listen_port=HA_PORT,
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        master = None if role is BrokerRole.SYNC_MASTER else self.master.address
        return lambda platform: StoreBroker(platform, config, master)

    def broker(self, node: Node) -> StoreBroker | None:
        service = node.service
        assert service is None or isinstance(service, StoreBroker)
        return service

    def put(self) -> None:
        """Send one message; note a PUT_OK that no slave can confirm."""
        broker = self.broker(self.master)
        if broker is None:
            return
        body = self.rng.randbytes(self.rng.choice((10, 300, 4000)))
        sent = Sent(self.rng.randrange(QUEUES), body)
        message = Message("T", sent.queue_id, body, 0, "TAGS\x01a", 0, 1, HOST, HOST)
        self.sent.append(sent)

        def answered(result: PutResult) -> None:
            sent.result = result
            self.look()
            if result.status is PutStatus.PUT_OK and max(self.held.values()) < result.next_offset:
                self.lies.append(f"{result.next_offset} is confirmed, slaves end at {self.held}")

        result = broker.store.put(message)
        if isinstance(result, Deferred):
            result.addCallback(answered)
        else:
            answered(result)

    def look(self) -> None:
        """Note how far the slaves are; one may be killed while its report is still on its way."""
        for node in self.slaves:
            slave = self.broker(node)
            if slave is not None:
                self.held[node.name] = max(self.held.get(node.name, 0), slave.store.end_offset)

    def fault(self) -> None:
        """Do something bad, or undo it."""
        self.look()
        node = self.rng.choice(self.nodes)
        slave = self.rng.choice(self.slaves)
        match self.rng.randrange(8):
            case 0:
                node.kill()
            case 1:
                self.net.partition(self.master, slave)
            case 2:
                self.net.heal()
            case 3:
                self.net.reset_between(self.master, slave)
            case 4:
                self.net.clog(self.master, slave, self.rng.choice((0.5, 4.0, 30.0)))
            case 5:
                self.world.settle(node.stop())
            case _:
                for stopped in self.nodes:
                    if stopped.process is None:
                        stopped.start()

    def calm(self) -> None:
        """End all faults and give everybody time to recover."""
        self.net.heal()
        for node in self.nodes:
            if node.process is None:
                node.start()
        self.world.run_for(180)


def log_of(broker: StoreBroker, start: int) -> bytes:
    pieces = []
    while piece := broker.store.read(start, SEGMENT):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


class SimulatedReplicationTests(SynchronousTestCase):
    def run_seed(self, seed: int, flush: FlushDiskType) -> Cluster:
        cluster = Cluster(seed, flush)
        cluster.world.run_for(1)
        for _ in range(40):
            for _ in range(cluster.rng.randrange(12)):
                cluster.put()
                cluster.world.run_for(cluster.rng.choice((0.0, 0.001, 0.05)))
            cluster.fault()
            cluster.world.run_for(cluster.rng.choice((0.01, 1.0, 5.0)))
        cluster.calm()
        return cluster

    def check(self, cluster: Cluster, seed: int) -> int:
        """Check the copies; return how many messages were confirmed by a slave."""
        self.assertEqual(cluster.lies, [], f"seed {seed}")
        self.assertEqual(cluster.world.failures, [], f"seed {seed}")
        master = cluster.broker(cluster.master)
        assert master is not None
        end = master.store.end_offset
        for node in cluster.slaves:
            slave = cluster.broker(node)
            assert slave is not None
            self.assertEqual(slave.store.end_offset, end, f"seed {seed}: {slave.ha.status()}")
            start = slave.store.min_phy_offset
            self.assertEqual(log_of(slave, start), log_of(master, start), f"seed {seed}")
            for queue_id in range(QUEUES):
                ends = [broker.store.max_offset("T", queue_id) for broker in (master, slave)]
                # A slave that joined late may have no message of a queue at all.
                if start == 0 or ends[1]:
                    self.assertEqual(ends[0], ends[1], f"seed {seed}")
        confirmed = [sent for sent in cluster.sent if sent.result and sent.result.status is PutStatus.PUT_OK]
        for sent in confirmed:
            assert sent.result is not None
            record = master.store.message_at(sent.result.phy_offset)
            self.assertIsNotNone(record, f"seed {seed}")
            self.assertIn(sent.body, record or b"", f"seed {seed}")
        for node in cluster.nodes:
            cluster.world.settle(node.stop())
            self.assertEqual(node.leaks, [], f"seed {seed}")
        return len(confirmed)

    def test_copies_stay_copies(self) -> None:
        """
        Whatever is killed, cut off or stopped: no PUT_OK without a slave that has the message, no confirmed message is
        lost, and three minutes after the last fault master and slaves hold the same bytes and queues.
        """
        confirmed = 0
        for seed in SEEDS:
            print(f"seed {seed}")
            flush = FlushDiskType.SYNC_FLUSH if seed % 2 else FlushDiskType.ASYNC_FLUSH
            confirmed += self.check(self.run_seed(seed, flush), seed)
        self.assertGreater(confirmed, 400)

    def test_a_planted_difference_is_found(self) -> None:
        """The check above fails when a slave's log holds one other bit."""
        cluster = self.run_seed(0, FlushDiskType.ASYNC_FLUSH)
        path = f"/store/commitlog/{0:020d}"
        cluster.slaves[0].disk.flip_bit(path, 100)
        self.assertRaises(self.failureException, self.check, cluster, 0)
        for node in cluster.nodes:
            cluster.world.settle(node.stop())
