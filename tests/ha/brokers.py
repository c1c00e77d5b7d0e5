"""Replication services on a net in memory, and a peer that only listens."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.service import HAService
from rmq.ha.status import LinkStatus
from rmq.runtime.clock import steady_ms
from rmq.runtime.platform import Platform
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import PutStatus, StoreError
from tests.ha.memory_log import MemoryLog
from tests.ha.net import End, Net

SEGMENT = 65536
MASTER_PORT, SLAVE_PORT, OTHER_PORT = 10912, 20912, 30912


class Recorder(Protocol):
    """A peer that only notes what it gets."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: object = None) -> None:
        self.lost = True


class Broker:
    """A log with its replication service."""

    def __init__(self, net: Net, role: BrokerRole, port: int, *, log: MemoryLog | None = None, **config: Any) -> None:
        self.log = log or MemoryLog(SEGMENT, StoreError)
        self.net = net
        platform = Platform(
            reactor=net,
            disk=None,  # type: ignore[arg-type]  # replication touches no file but through the log
            rng=random.Random(1),
            endpoint_factory=net.endpoint,
        )
        secured, term = config.pop("secured", None), config.pop("term", None)
        settings = StoreConfig(broker_role=role, ha_listen_port=port, mapped_file_size_commit_log=SEGMENT, **config)
        self.ha = HAService(platform, self.log, settings, host="", role=role, secured=secured, term=term)

    @property
    def link(self) -> LinkStatus:
        """How the connection to the master is."""
        link = self.ha.status().link
        assert link is not None
        return link

    def put(self, data: bytes, timeout_ms: int = 3000) -> PutStatus | Deferred[PutStatus]:
        """Append and wait for slaves, as a SYNC_MASTER's store does."""
        end = self.log.grow(data)
        return self.ha.wait_for_slaves(end, steady_ms(self.net) + timeout_ms)


class ServiceCase(SynchronousTestCase):
    """Brokers on one net; each test ends with a stop that must leave nothing behind."""

    seed = 7

    def setUp(self) -> None:
        self.net = Net(self.seed)
        self.brokers: list[Broker] = []
        self.addCleanup(self.stop_all)

    def stop_all(self) -> None:
        stopping = [broker.ha.stopService() for broker in self.brokers if broker.ha.running]
        self.net.deliver()
        for done in stopping:
            self.successResultOf(done)
        self.assertEqual(self.net.getDelayedCalls(), [])
        self.assertEqual(self.net.listening, {})
        self.assertEqual([end for end in self.net.ends if end.connected], [])

    def broker(self, role: BrokerRole, port: int, **config: Any) -> Broker:
        broker = Broker(self.net, role, port, **config)
        broker.ha.startService()
        self.brokers.append(broker)
        return broker

    def master(self, size: int = 0, port: int = MASTER_PORT, **config: Any) -> Broker:
        """Start a master whose log holds ``size`` bytes of its former life."""
        log = MemoryLog(SEGMENT, StoreError)
        log.grow(random.Random(size).randbytes(size))
        log.sync()
        return self.broker(BrokerRole.SYNC_MASTER, port, log=log, **config)

    def slave(self, port: int = SLAVE_PORT, *, of: str | None = "10.0.0.9:10912", **config: Any) -> Broker:
        slave = self.broker(BrokerRole.SLAVE, port, **config)
        slave.ha.set_master(of)
        return slave

    def peer(self, *, host: str = "10.0.0.66", port: int = MASTER_PORT) -> tuple[End, Recorder]:
        """Connect to an HA port as somebody."""
        end = self.net.join(Factory.forProtocol(Recorder), "10.0.0.9", port, client_host=host)
        return end, end.protocol
