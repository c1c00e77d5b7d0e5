"""A simulated cluster for clients: a NameServer, brokers, and machines whose process is a client over TwistedHost."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred

from rmq.broker.service import BrokerService, build_broker
from rmq.client.flows.instance import Instance
from rmq.client.flows.orderly import push_consumer
from rmq.client.flows.producer import Producer
from rmq.client.flows.push import PushConsumer
from rmq.client.flows.tracing import with_traces
from rmq.client.observers import Observer
from rmq.client.settings import ClientSettings, From, ProducerSettings, PushSettings
from rmq.client.types import CloseReport, Message, MessageQueue, ReceivedMessage, Sql
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup
from rmq.namesrv.service import build_namesrv
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.tx.host import TwistedHost
from tests.broker.harness import setup_of

T = TypeVar("T")


class ClientProcess(Service):
    """One client."""

    def __init__(
        self, host: TwistedHost, namesrv: str, settings: ClientSettings, observers: Sequence[Observer]
    ) -> None:
        self.instance = with_traces(Instance(host, namesrv, None, settings, observers=observers))

    def stopService(self) -> Deferred[CloseReport]:
        return Deferred.fromCoroutine(self.instance.close())


class Simulated:
    """The world; ``brokers`` are names of masters. Nothing may be left at its end."""

    def __init__(self, *brokers: str, seed: int = 1, values: Mapping[str, str] | None = None) -> None:
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.values = dict(values or {})
        self.namesrv = Node(self.world, self.net, "namesrv")
        self.namesrv.start(
            lambda platform: build_namesrv(
                platform,
                NamesrvSetup(namesrv=NamesrvConfig(kv_config_path="/kv.json", config_store_path="/ns.properties")),
            )
        )
        self.namesrv_addr = f"{self.namesrv.address}:9876"
        self.brokers = {name: Node(self.world, self.net, name) for name in brokers or ("broker-a",)}
        for name, node in self.brokers.items():
            node.start(self._builder(name, node))
        self.clients: list[Node] = []
        self.world.run_until(self._complete, 30, "registered brokers")

    def replace(self, name: str) -> Node:
        """Kill a broker, start an empty one of its name on another machine, and return that."""
        self.brokers[name].kill()
        node = self.brokers[name] = Node(self.world, self.net, f"{name}-2")
        node.start(self._builder(name, node))
        self.world.run_until(self._complete, 30, "a registered broker")
        return node

    def _builder(self, name: str, node: Node) -> Callable[[Platform], BrokerService]:
        values = {"namesrvAddr": self.namesrv_addr, "brokerName": name, **self.values}
        return lambda platform: build_broker(platform, setup_of(values), host_address=node.address, host_name=name)

    def _complete(self) -> bool:
        return all(self.broker(name).registration.first_round.called for name in self.brokers)

    def broker(self, name: str = "broker-a") -> BrokerService:
        service = self.brokers[name].service
        assert isinstance(service, BrokerService)
        return service

    def client(self, *observers: Observer, **settings: Any) -> Instance:
        """Start a client on a machine of its own."""
        node = Node(self.world, self.net, f"client-{len(self.clients)}")
        self.clients.append(node)

        def build(platform: Platform) -> ClientProcess:
            host = TwistedHost(platform, home="/home")
            return ClientProcess(host, self.namesrv_addr, ClientSettings(**settings), observers)

        process = node.start(build)
        assert isinstance(process, ClientProcess)
        self.run(process.instance.start())
        return process.instance

    def run(self, coroutine: Coroutine[Any, Any, T], limit_s: float = 60.0) -> T:
        """Run the world until a coroutine ends, and return its result or raise its failure."""
        return self.world.settle(Deferred.fromCoroutine(coroutine), limit_s)

    def pass_s(self, seconds: float) -> None:
        """Let so much time pass."""
        self.world.run_for(seconds)

    def end(self) -> None:
        """Stop everything; an AssertionError when something is left or went wrong on the way."""
        for node in [*self.clients, *self.brokers.values(), self.namesrv]:
            if node.process is not None:
                self.world.settle(node.stop())
            assert node.leaks == [], (node.name, node.leaks)
        assert self.world.failures == [], self.world.failures


def producer(instance: Instance, **settings: Any) -> Producer:
    made = Producer(instance, "PG", ProducerSettings(**settings))
    instance.parts.append(made)
    return made


class Inbox:
    """A handler that keeps what it gets; ``fail`` may raise for a message."""

    def __init__(self, fail: Callable[[ReceivedMessage], object] = lambda message: None) -> None:
        self.got: list[ReceivedMessage] = []
        self._fail = fail

    def __call__(self, message: ReceivedMessage) -> object:
        self.got.append(message)
        return self._fail(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


def consumer(
    instance: Instance,
    handler: Callable[[Any], Any] | None,
    subscriptions: Mapping[str, str | Sql] | None = None,
    group: str = "CG",
    **settings: Any,
) -> PushConsumer:
    return push_consumer(
        instance,
        group,
        {"T": "*"} if subscriptions is None else subscriptions,
        handler,
        PushSettings(**{"consume_from": From.FIRST, **settings}),
    )


async def send_all(sender: Producer, bodies: list[bytes], queue: MessageQueue | None = None, **more: Any) -> None:
    for body in bodies:
        await sender.send(Message("T", body, **more), queue=queue)
