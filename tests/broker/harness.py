"""One broker on a simulated machine, and a client that writes frames by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup
from rmq.broker.service import BrokerService, build_broker
from rmq.remoting.channel import Channel
from rmq.runtime.config import load
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.wire.codes import LanguageCode
from rmq.wire.command import ONEWAY, RemotingCommand, decode_command, encode_command
from rmq.wire.frames import FrameDecoder

PORT = 10911
#: what the wall clock of a broker is ahead of the steady one, in seconds
WALL_AHEAD_S = 1_000_000

#: small files, quick clocks: a broker that starts in no time
SMALL = {
    "brokerName": "broker-a",
    "storePathRootDir": "/store",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


def setup_of(values: Mapping[str, str]) -> BrokerSetup:
    """Return a setup of these keys on top of SMALL."""
    broker, server, client, store, extra = load(CONFIG_CLASSES, {**SMALL, **values}, "test").configs
    return BrokerSetup(broker=broker, server=server, client=client, store=store, extra=extra)


class AtOnceDisk(RealDisk):
    """A disk whose thread has always done its work already."""

    def write_atomic_soon(self, path: str, data: bytes, *, keep_backup: bool = False) -> Deferred[None]:
        return maybeDeferred(self.write_atomic, path, data, keep_backup=keep_backup)


class RawClient(Protocol):
    """A connection whose frames the test sees."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._decoder = FrameDecoder()
        self._opaque = 0
        self.received: list[RemotingCommand] = []
        self.closed = False

    def dataReceived(self, data: bytes) -> None:
        self.received += [decode_command(frame) for frame in self._decoder.receive(data)]

    def connectionLost(self, reason: Any = None) -> None:
        self.closed = True

    def send(self, command: RemotingCommand) -> int:
        """Send a request under a new opaque and return that."""
        self._opaque += 1
        command.opaque = self._opaque
        assert self.transport is not None
        self.transport.write(encode_command(command))
        return self._opaque

    def post(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 409,
        flag: int = 0,
        language: LanguageCode | None = LanguageCode.JAVA,
    ) -> int:
        """Send a request without waiting for its answer; return its opaque."""
        return self.send(
            RemotingCommand(code, flag=flag, version=version, language=language, ext_fields=ext, body=body or None)
        )

    def tell(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> int:
        """Send a one-way request."""
        return self.post(code, ext, body, flag=ONEWAY)

    def answer(self, opaque: int) -> RemotingCommand | None:
        """Return the answer to ``opaque`` if it is there."""
        return next((each for each in self.received if each.is_response and each.opaque == opaque), None)

    def wait(self, opaque: int, limit_s: float = 40.0) -> RemotingCommand:
        """Run the world until ``opaque`` is answered."""
        self._world.run_until(lambda: self.answer(opaque), limit_s, f"the answer to {opaque}")
        answer = self.answer(opaque)
        assert answer is not None
        return answer

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, version: int = 409
    ) -> RemotingCommand:
        """Send a request and run the world until it is answered."""
        return self.wait(self.post(code, ext, body, version=version))

    def requests(self, code: int) -> list[RemotingCommand]:
        """What the broker asked or told on its own."""
        return [each for each in self.received if not each.is_response and each.code == code]


def connect(world: World, machine: Node, host: str, port: int = PORT) -> RawClient:
    """Return a connected client on ``machine``."""
    client = RawClient(world)
    reactor = machine.process
    assert reactor is not None
    TCP4ClientEndpoint(reactor, host, port).connect(Factory.forProtocol(lambda: client))
    world.run_until(lambda: client.transport is not None and client.connected, 5, "the connection")
    return client


class OneBroker:
    """
    A world with one broker; ``values`` are configuration keys.

    Nothing of it may be left when the test ends: :meth:`end` stops the broker and says so.
    """

    def __init__(
        self,
        values: Mapping[str, str] | None = None,
        *,
        seed: int = 1,
        service: type[BrokerService] = BrokerService,
    ) -> None:
        self._class = service
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.node = Node(self.world, self.net, "broker")
        # Clocks that differ, so that a test fails when the code takes one for the other.
        self.node.step_clock(WALL_AHEAD_S)
        self.client_node = Node(self.world, self.net, "client")
        self.client_node.start()
        self.lines: list[str] = []
        self.fatal: list[str] = []
        self.values = dict(values or {})
        self.start()

    def start(self) -> None:
        """Start the broker's process, on whatever its disk holds."""
        self.node.start(self.build)

    def build(self, platform: Platform) -> BrokerService:
        return build_broker(
            platform,
            setup_of(self.values),
            host_address=self.node.address,
            host_name="host",
            announce=self.lines.append,
            on_fatal=self.fatal.append,
            service=self._class,
        )

    @property
    def service(self) -> BrokerService:
        service = self.node.service
        assert isinstance(service, BrokerService)
        return service

    def connect(self, port: int = PORT) -> RawClient:
        """Return a client that is connected."""
        return connect(self.world, self.client_node, self.node.address, port)

    def stop(self) -> None:
        """Stop the broker in order."""
        self.world.settle(self.node.stop())

    def end(self) -> None:
        """Stop everything; an AssertionError when something is left or went wrong on the way."""
        if self.node.process is not None:
            self.stop()
        assert self.node.leaks == [], self.node.leaks
        assert self.world.failures == [], self.world.failures


class OneBrokerCase(SynchronousTestCase):
    """One broker with ``values`` on top of SMALL, and a client of it."""

    values: Mapping[str, str] = {}

    def setUp(self) -> None:
        self.one = OneBroker(self.values)
        self.client = self.one.connect()

    def tearDown(self) -> None:
        self.one.end()


class SidesCase(SynchronousTestCase):
    """Two equal brokers of which the first has lanes; ``taken`` counts what those with ``codes`` answer."""

    codes: Sequence[int]

    def setUp(self) -> None:
        self.sides = [OneBroker(seed=3) for _ in range(2)]
        self.use_lanes()

    def use_lanes(self) -> None:
        """Let the first of the brokers have lanes, and none the second."""
        self.taken = dict.fromkeys(self.codes, 0)
        lanes = self.sides[0].service.responders.chunk_lanes
        self.lanes: dict[int, Any] = {code: lanes[code] for code in self.codes}
        counted = {code: self._counted(code, lane) for code, lane in self.lanes.items()}
        self.sides[0].service.responders.chunk_lanes = {**lanes, **counted}
        self.sides[1].service.responders.chunk_lanes = {}

    def _counted(self, code: int, lane: Any) -> Any:
        def counting(data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
            stop, count = lane(data, position, answers, channel)
            self.taken[code] += count
            return stop, count

        counting.code = code  # type: ignore[attr-defined]
        return counting

    def tearDown(self) -> None:
        for one in self.sides:
            one.end()
        self.flushLoggedErrors()


def send_ext(topic: str = "T", *, queue_id: int = 0, props: str = "", **more: str) -> dict[str, str]:
    """Return the short-named header of a send."""
    ext = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": props,
        "j": "0",
        "k": "false",
    }
    return ext | more


def pull_ext(
    topic: str = "T", *, group: str = "CG", queue_id: int = 0, offset: int = 0, sys_flag: int = 4, **more: str
) -> dict[str, str]:
    """Return the header of a pull; by default with its subscription and without waiting."""
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(sys_flag),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
    }
    return ext | more


def heartbeat(client_id: str, group: str, *topics: str, producer: str | None = None) -> bytes:
    """Return the body of a heartbeat."""
    subscriptions = ",".join(
        f'{{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,'
        f'"tagsSet":[],"topic":"{topic}"}}'
        for topic in topics
    )
    producers = f'{{"groupName":"{producer}"}}' if producer else ""
    return (
        f'{{"clientID":"{client_id}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        f'"consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING",'
        f'"subscriptionDataSet":[{subscriptions}],"unitMode":false}}],"producerDataSet":[{producers}]}}'
    ).encode()
