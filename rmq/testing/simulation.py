"""
Servers and clients in simulated time: ten minutes of retries take a second, and a seed repeats a run.

The code of the test may use the client of `rmq.tx` as it is here, `Simulation.sleep`, and pure functions; real sockets,
threads and asyncio do not run in simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup
from rmq.broker.service import BrokerService, build_broker
from rmq.broker.topics import topic
from rmq.client.core.routes import check_group, check_topic
from rmq.client.flows.instance import Instance
from rmq.client.settings import ClientSettings
from rmq.client.types import CloseReport, ReceivedMessage
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.runtime.config import load
from rmq.runtime.platform import Platform
from rmq.sim.faults import Fault, full_disk, slow_disk
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import SimError, World
from rmq.testing.faults import Faults, FaultTable
from rmq.testing.handle import FaultMaker, absent, texts_of
from rmq.testing.servers import DEFAULTS, Layout, check, has_topic, stored, unconsumed
from rmq.tx import Client
from rmq.tx.host import TwistedHost
from rmq.wire.api.common import MessageQueue
from rmq.wire.record import decode_record

T = TypeVar("T")

NAMESRV_PORT = 9876
#: simulated seconds that a test may take
LIMIT_S = 86_400.0
READY_S = 60.0
POLL_S = 0.1
#: what a real broker has in place of machines with addresses of their own
_REAL_ONLY = ("brokerIP1", "bindAddress")


class SimClient(Client):
    """A client on a simulated machine; see :class:`rmq.tx.Client`."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance


class _Host(TwistedHost):
    """A host whose process id is the same in each run."""

    def pid(self) -> int:
        return 4711


class _ClientProcess(Service):
    def __init__(self, platform: Platform, namesrv: str, settings: ClientSettings) -> None:
        self.instance = Instance(_Host(platform, home="/home"), namesrv, None, settings)

    def stopService(self) -> Deferred[CloseReport]:
        return Deferred.fromCoroutine(self.instance.close())


@attrs.frozen(eq=False)
class _Clock:
    """The time of the world, for faults."""

    _world: World

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:
        return self._world.schedule(delay, lambda: callable(*args, **kwargs))


@attrs.frozen(eq=False)
class _Link:
    _faults: Faults

    def ask(self, command: str, **arguments: Any) -> Any:
        if command in ("full_disk", "hold_slave", "steal_queues"):
            raise SimError(f"sim.faults has no {command}; accidents of machines are sim.full_disk, sim.hold_slave, …")
        if command == "cut" and ("request" not in arguments or "connections_of" in arguments):
            raise SimError(
                "sim.faults.cut needs a request, and takes no connections_of; sim.partition cuts machines off"
            )
        return getattr(self._faults, "cut_after" if command == "cut" else command)(**arguments)


class Simulation:
    """
    Simulated machines: ``namesrv``, masters ``broker-a``, ``broker-b``, slaves ``broker-a-1``, and one for each client.

    The same seed is the same run. At the end of ``with`` everything is stopped, and a SimError says what was left or
    went wrong on the way. ``faults`` has refuse, drop_answers, delay_answers, forget_route, and cut with a request.
    """

    def __init__(
        self,
        seed: int,
        *,
        masters: int = 1,
        slaves: int = 0,
        role: str = "ASYNC_MASTER",
        config: Mapping[str, object] | None = None,
    ) -> None:
        check(masters, slaves, role, config)
        layout = Layout(masters=masters, slaves=slaves, role=role)
        self.world = World(seed)
        self.net = SimNet(self.world)
        self._server_faults = Faults(_Clock(self.world), layout.names())  # type: ignore[arg-type]
        links = [_Link(self._server_faults)]
        self.faults = FaultMaker(lambda: links)
        self._config = texts_of(config)
        self._names = 0
        self._clients: list[Node] = []
        namesrv = Node(self.world, self.net, "namesrv")
        self.namesrv = f"{namesrv.address}:{NAMESRV_PORT}"
        self._servers = {"namesrv": namesrv}
        namesrv.start(self._namesrv)
        for node, name, broker_id in layout.nodes():
            self._servers[node] = Node(self.world, self.net, node)
            self._servers[node].start(self._broker(node, name, broker_id, "SLAVE" if broker_id else role))
        self.world.run_until(self._is_ready, READY_S, "servers that know each other")

    def _namesrv(self, platform: Platform) -> NamesrvService:
        config = NamesrvConfig(kv_config_path="/namesrv/kvConfig.json", config_store_path="/namesrv/namesrv.properties")
        service = build_namesrv(platform, NamesrvSetup(namesrv=config))
        service.server.responders = FaultTable("namesrv", service.responders, self._server_faults)
        return service

    def _broker(self, node: str, name: str, broker_id: int, role: str) -> Callable[[Platform], BrokerService]:
        values = {key: value for key, value in DEFAULTS.items() if key not in _REAL_ONLY}
        values |= {"namesrvAddr": self.namesrv, "brokerName": name, "brokerId": str(broker_id), "brokerRole": role}
        values |= {"storePathRootDir": "/store", **self._config}

        def build(platform: Platform) -> BrokerService:
            broker, server, client, store, extra = load(CONFIG_CLASSES, values, "config").configs
            setup = BrokerSetup(broker=broker, server=server, client=client, store=store, extra=extra)
            service = build_broker(platform, setup, host_address=self._servers[node].address, host_name=node)
            for listener in (service.server, service.vip_server):
                listener.responders = FaultTable(node, listener.responders, self._server_faults)
            return service

        return build

    def _is_ready(self) -> bool:
        brokers = self._brokers
        slaves = sum(broker.setup.is_slave for broker in brokers)
        connected = sum(len(broker.ha.status().slaves) for broker in brokers if not broker.setup.is_slave)
        return all(broker.registration.first_round.called for broker in brokers) and connected >= slaves

    @property
    def _brokers(self) -> list[BrokerService]:
        running: list[BrokerService] = []
        for node in self._servers.values():
            service = node.service
            if isinstance(service, BrokerService):
                running.append(service)
        return running

    @property
    def _masters(self) -> list[BrokerService]:
        return [broker for broker in self._brokers if not broker.setup.is_slave]

    # the test

    @property
    def seed(self) -> int:
        return self.world.seed

    @property
    def digest(self) -> str:
        """A hash over everything that has happened; the same seed has the same."""
        return self.world.trace.digest

    def seconds(self) -> float:
        """Return the simulated time since the begin."""
        return self.world.now_s

    def run(self, main: Callable[[Simulation], Coroutine[Any, Any, T]], *, limit_s: float = LIMIT_S) -> T:
        """Run a coroutine to its end and return its result; SimError when it takes more simulated seconds."""
        result = Deferred.fromCoroutine(main(self))
        try:
            return self.world.settle(result, limit_s)
        except SimError as error:
            if not result.called:
                error.add_note(
                    "What waits for a thread, a socket, asyncio or the reactor never ends in simulated time."
                )
            raise

    def sleep(self, seconds: float) -> Deferred[None]:
        """Fires after so much simulated time."""
        fired: Deferred[None] = Deferred()
        self.world.schedule(seconds, lambda: fired.callback(None))
        return fired

    async def client(self, settings: ClientSettings = ClientSettings()) -> SimClient:  # noqa: B008 - a frozen value
        """Start a client on a machine of its own."""
        node = Node(self.world, self.net, f"client-{len(self._clients)}")
        self._clients.append(node)
        process = node.start(lambda platform: _ClientProcess(platform, self.namesrv, settings))
        assert isinstance(process, _ClientProcess)
        await process.instance.start()
        return SimClient(process.instance)

    async def topic(self, name: str = "topic", *, queues: int = 4) -> str:
        """Create a topic and return its name, which no other call returns."""
        full = self._name(name)
        check_topic(full)
        config = topic(full, queues)
        for broker in self._masters:
            broker.topics.create(config)
            await broker.registration.topic_updated(config)
            await broker.topics.saved()
        return config.topic_name

    def group(self, name: str = "group") -> str:
        """Return a name that no other call returns; ConfigurationError for one that no group can have."""
        full = self._name(name)
        check_group(full)
        return full

    def _name(self, name: str) -> str:
        self._names += 1
        return f"{name}-{self._names}"

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages of a topic that running masters have."""
        found = []
        for broker in self._masters:
            for name, data in stored(broker, topic):
                record = decode_record(data)
                queue = MessageQueue(topic=record.topic, broker_name=name, queue_id=record.queue_id)
                found.append(ReceivedMessage(record, queue))
        return found

    async def wait_consumed(self, group: str, topic: str, *, timeout_s: float = 3600.0) -> None:
        """Wait until a group has acknowledged all messages of a topic, retries included; TimeoutError."""
        deadline = self.seconds() + timeout_s
        while True:
            left = sum(unconsumed(broker, group, topic) for broker in self._masters)
            is_there = any(has_topic(broker, topic) for broker in self._brokers)
            if is_there and not left:
                return
            if self.seconds() > deadline:
                if not is_there:
                    raise TimeoutError(absent(topic, timeout_s))
                raise TimeoutError(f"group {group} has not acknowledged {left} messages of topic {topic}")
            await self.sleep(POLL_S)

    # accidents

    def _server(self, node: str) -> Node:
        return self._machine(node, self._servers)

    @staticmethod
    def _machine(node: str, machines: Mapping[str, Node]) -> Node:
        if node not in machines:
            raise SimError(f"there is no machine {node!r}, but {', '.join(machines)}")
        return machines[node]

    def kill(self, node: str) -> None:
        """End the process of a server as kill -9 does."""
        self._server(node).kill()

    def power_failure(self, node: str) -> None:
        """Switch a machine off: of what was not synced, the seed decides what is on its disk."""
        self._server(node).crash()

    def start(self, node: str) -> None:
        """Start a server again."""
        self._server(node).start()

    def clock_step(self, node: str, seconds: float) -> None:
        """Let the wall clock of a machine jump."""
        self._server(node).step_clock(seconds)

    @contextmanager
    def partition(self, one: str, other: str) -> Iterator[None]:
        """Let nothing through between two machines in the block; clients are ``client-0``, ``client-1`` and so on."""
        first, second = (self._machine(node, self.world.nodes) for node in (one, other))
        self.net.partition(first, second)
        try:
            yield
        finally:
            self.net.unblock(first, second)
            self.net.unblock(second, first)

    @contextmanager
    def hold_slave(self, node: str) -> Iterator[None]:
        """Let nothing that a slave sends reach its master in the block: it gets messages and acknowledges none."""
        slave, master = self._server(node), self._servers.get(node.rpartition("-")[0])
        if master is None:
            raise SimError(f"{node} is no slave")
        self.net.block(slave, master)
        try:
            yield
        finally:
            self.net.unblock(slave, master)

    @contextmanager
    def full_disk(self, node: str) -> Iterator[None]:
        """Let the disk of a server have no room in the block."""
        with self._accident(full_disk(self._server(node))):
            yield

    @contextmanager
    def slow_disk(self, node: str, seconds: float) -> Iterator[None]:
        """Let every sync of a server take so long in the block."""
        with self._accident(slow_disk(self._server(node), seconds)):
            yield

    @contextmanager
    def _accident(self, accident: Fault) -> Iterator[None]:
        accident.apply()
        try:
            yield
        finally:
            accident.undo()

    # the end

    def close(self) -> None:
        """Stop everything; SimError when something was left, or went wrong on the way."""
        self._server_faults.undo_all()
        for node in [*self._clients, *reversed(self._servers.values())]:
            if node.process is not None:
                self.world.settle(node.stop())
            if node.leaks:
                raise SimError(f"{node.name} left {node.leaks} (seed {self.seed})")
        if self.world.failures:
            raise SimError(f"{self.world.failures[0]} (seed {self.seed})")

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"simulation with seed {self.seed}")
            return
        self.close()
