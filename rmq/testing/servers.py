"""
The servers of a test on one reactor: a NameServer, masters and slaves, with free ports and small files.

What a test asks of them are the methods named in :data:`COMMANDS`; arguments and results have a JSON form, because a
test in another process, or in another language, asks by lines of JSON.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import Deferred, DeferredLock, gatherResults
from twisted.internet.error import CannotListenError
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup
from rmq.broker.service import BrokerService, build_broker
from rmq.broker.sessions import ClientLink, Member
from rmq.broker.topics import RETRY_PREFIX, topic
from rmq.client.core.routes import check_topic
from rmq.errors import ConfigurationError, RequestFailed
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup, NettyServerConfig
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.remoting.access import ACCESS_CLASSES, AccessSetup
from rmq.remoting.channel import Channel
from rmq.remoting.responders import ResponderTable, Written
from rmq.runtime.config import ConfigError, load
from rmq.runtime.disk.files import DiskUsage, RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from rmq.runtime.tls.config import TlsConfig
from rmq.store.messages import GetResult, GetStatus
from rmq.store.store import MessageStore
from rmq.testing.faults import Fault, Faults, FaultTable, HeldReplication, codes_of
from rmq.testing.handle import absent, mistake_in
from rmq.wire import fastjson
from rmq.wire.api.clients import ConsumerIdList
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.forwarding import (
    GET_CONSUMER_RUNNING_INFO,
    RESET_CONSUMER_CLIENT_OFFSET,
    OffsetsByQueue,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand, encode_reply
from rmq.wire.record import SCHEDULE_TOPIC

HOST = "127.0.0.1"
#: client sockets of the kernel begin above
PORTS = range(12_000, 32_000)
PORT_TRIES = 50
#: how long the servers may take to know each other
READY_S = 20.0
POLL_S = 0.005
#: with less free space than this a disk counts as it is
ROOM_BYTES = 64 << 20
#: phantom members of a group, more than a topic of a test has queues
THIEVES = 64
#: members are asked for their offsets so often at most, and may take so long to answer
ASK_EVERY_S, ASK_MS = 0.1, 3000.0

#: keys of every broker, below those of the test
DEFAULTS = {
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": HOST,
    "bindAddress": HOST,
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 5000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "enablePropertyFilter": "true",
    # below the three seconds after which clients give up
    "slaveTimeout": "1000",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}


class ServersError(Exception):
    """The servers cannot start, or cannot do what a test asks; the text says why."""


def check(masters: object, slaves: object, role: object, config: object, port: object = None) -> None:
    """Raise ServersError, with its name, for an argument of a cluster that is wrong."""
    if mistake := mistake_in(masters, slaves, role, config, port):
        raise ServersError(mistake)


@attrs.frozen(kw_only=True)
class Layout:
    """
    Which servers there are: masters named broker-a, broker-b and so on, each with so many slaves.

    ``only`` names one of them, ``namesrv``, ``broker-a`` or ``broker-a-1`` (a slave): the others run elsewhere, the
    NameServer at ``namesrv``. ``port`` is that of this one, or of the NameServer if all run here; None: a free one.
    """

    masters: int = 1
    slaves: int = 0
    role: str = "ASYNC_MASTER"
    config: Mapping[str, str] = attrs.field(factory=dict)
    only: str | None = None
    namesrv: str | None = None
    port: int | None = None

    def nodes(self) -> Iterator[tuple[str, str, int]]:
        """Yield (node, broker name, broker id) of all brokers."""
        for number in range(self.masters):
            name = f"broker-{chr(ord('a') + number)}"
            for broker_id in range(self.slaves + 1):
                yield f"{name}-{broker_id}" if broker_id else name, name, broker_id

    def names(self) -> list[str]:
        """Return the names of all servers."""
        return ["namesrv", *(node for node, _, _ in self.nodes())]

    def check(self) -> None:
        """Raise ServersError for a layout that cannot be."""
        check(self.masters, self.slaves, self.role, self.config, self.port)


class FillableDisk(RealDisk):
    """
    A disk that is full when a test says so, or when it hardly has room.

    What other programs have on it does not count, however much: a developer's disk is often nearly full, and a broker
    would refuse messages above 90 % and delete unread ones above 85 %.
    """

    full = False

    def usage(self, path: str) -> DiskUsage:
        usage = super().usage(path)
        if self.full:
            return attrs.evolve(usage, free_bytes=0)
        return attrs.evolve(usage, total_bytes=usage.free_bytes) if usage.free_bytes >= ROOM_BYTES else usage


@attrs.define(eq=False)
class RunningBroker:
    """A broker of the test."""

    node: str
    service: BrokerService
    disk: FillableDisk
    #: (topic, queue id) -> the offset before which a test has emptied the queue
    emptied: dict[tuple[str, int], int]

    @property
    def is_master(self) -> bool:
        return not self.service.setup.is_slave


class DelaysUntilNow:
    """A store whose delayed messages, as `rmq.broker.delays` sees them, are those that it has now."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        #: by queue of SCHEDULE_TOPIC
        self.ends = {
            queue_id: store.max_offset(name, queue_id) for name, queue_id in store.queues() if name == SCHEDULE_TOPIC
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def pull(self, topic: str, queue_id: int, queue_offset: int, max_count: int, matches: None) -> GetResult:
        end = self.ends.get(queue_id, 0)
        if queue_offset >= end:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, 0, end)
        return self._store.pull(topic, queue_id, queue_offset, min(max_count, end - queue_offset), matches)


class Servers:
    """
    The servers below the folder ``root``. ``rng`` chooses ports.

    ``on_fatal`` is called when a broker cannot go on.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        root: str,
        layout: Layout,
        *,
        rng: Any,
        on_fatal: Callable[[str], object] = lambda text: None,
    ) -> None:
        layout.check()
        self._reactor = reactor
        self._root = root
        self._layout = layout
        self._rng = rng
        self._on_fatal = on_fatal
        self._disks: list[RealDisk] = []
        self._namesrv: NamesrvService | None = None
        self._delivery = DeferredLock()
        #: when the members of a group are asked for their offsets again; those that have not answered yet
        self._ask_at_s: dict[str, float] = {}
        self._asked: set[ClientLink] = set()
        self.faults = Faults(reactor, layout.names())
        self.brokers: dict[str, RunningBroker] = {}
        self.namesrv_addr = layout.namesrv or ""

    # life

    async def start(self) -> None:
        """Start all; ends when the NameServer knows every broker, and every master its slaves."""
        layout = self._layout
        if layout.only in (None, "namesrv"):
            self._start_on_free_port(self._start_namesrv, "namesrv")
        for node, name, broker_id in layout.nodes():
            if layout.only in (None, node):
                self._start_on_free_port(partial(self._start_broker, node, name, broker_id), node)
        if layout.only not in (None, "namesrv") and not self.brokers:
            raise ServersError(f"there is no server {layout.only!r}")
        for broker in self.brokers.values():
            await broker.service.registration.first_round
        if layout.only is None and layout.slaves:
            await self._until(self._replicates, "slaves connected to their masters")

    def _replicates(self) -> bool:
        slaves = self._layout.slaves
        return all(len(b.service.ha.status().slaves) >= slaves for b in self.brokers.values() if b.is_master)

    async def _until(self, condition: Callable[[], bool], what: str, seconds: float = READY_S) -> None:
        deadline = self._reactor.seconds() + seconds
        while not condition():
            if self._reactor.seconds() > deadline:
                raise ServersError(f"not after {seconds:g} s: {what}")
            await deferLater(self._reactor, POLL_S)

    def _platform(self, disk: RealDisk) -> Platform:
        self._disks.append(disk)
        return Platform(reactor=self._reactor, disk=disk, rng=self._rng, endpoint_factory=dial_by_name)

    def _start_on_free_port(self, start: Callable[[int, int], None], node: str) -> None:
        """Call ``start(number of the try, port)`` until the ports are free: another program may have one of them."""
        port = self._layout.port if node == (self._layout.only or "namesrv") else None
        tries = [(self._last_try(node), port)] if port else list(enumerate(self._rng.sample(PORTS, PORT_TRIES)))
        for number, port in tries:
            try:
                start(number, port)
            except CannotListenError as error:
                failure = error
            else:
                return
        raise ServersError(f"no free port for {node}: {failure}") from failure

    def _last_try(self, node: str) -> int:
        """Return the number of the try that found ports when the server started before, 0 if it did not."""
        return max(n for n in range(PORT_TRIES) if n == 0 or os.path.isdir(self._folder(node, n)))

    def _folder(self, node: str, number: int) -> str:
        # A start that failed may still hold the folder.
        return os.path.join(self._root, f"{node}.{number}" if number else node)

    def _start_namesrv(self, number: int, port: int) -> None:
        folder = os.path.join(self._root, "namesrv")
        setup = NamesrvSetup(
            namesrv=NamesrvConfig(
                kv_config_path=os.path.join(folder, "kvConfig.json"),
                config_store_path=os.path.join(folder, "namesrv.properties"),
            ),
            netty=NettyServerConfig(listen_port=port, bind_address=HOST),
            # TLS is for all servers; accounts are the brokers', as with Apache
            access=AccessSetup(tls=load((TlsConfig,), self._layout.config, "config").configs[0]),
        )
        namesrv = build_namesrv(self._platform(RealDisk(self._reactor)), setup)
        namesrv.server.responders = FaultTable("namesrv", namesrv.responders, self.faults)
        namesrv.startService()
        self._namesrv = namesrv
        self.namesrv_addr = f"{HOST}:{port}"

    def _start_broker(self, node: str, name: str, broker_id: int, number: int, port: int) -> None:
        disk = FillableDisk(self._reactor)
        service = build_broker(
            self._platform(disk),
            self._setup(name, broker_id, port, self._folder(node, number)),
            host_address=HOST,
            host_name=name,
            on_fatal=self._on_fatal,
        )
        emptied: dict[tuple[str, int], int] = {}
        for server in (service.server, service.vip_server):
            server.responders = FaultTable(node, server.responders, self.faults, emptied)
        service.store.replication = HeldReplication(service.ha, self.faults)
        service.startService()
        self.brokers[node] = RunningBroker(node, service, disk, emptied)

    def _setup(self, name: str, broker_id: int, port: int, folder: str) -> BrokerSetup:
        values = {
            **DEFAULTS,
            "namesrvAddr": self.namesrv_addr,
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerRole": "SLAVE" if broker_id else self._layout.role,
            "listenPort": str(port),
            "storePathRootDir": folder,
            **self._layout.config,
        }
        loaded = load((*CONFIG_CLASSES, *ACCESS_CLASSES), values, "config")
        if loaded.unknown:
            raise ConfigError(f"config: no broker knows {', '.join(sorted(loaded.unknown))}")
        broker, server, client, store, extra, *access = loaded.configs
        return BrokerSetup(
            broker=broker, server=server, client=client, store=store, extra=extra, access=AccessSetup.of(access)
        )

    async def stop(self) -> None:
        """Stop all, slaves first; their files stay."""
        self.faults.undo_all()
        for broker in reversed(list(self.brokers.values())):
            await broker.service.stopService()
        self.brokers.clear()
        if self._namesrv is not None:
            await self._namesrv.stopService()
            self._namesrv = None
        for disk in self._disks:
            disk.close()
        self._disks.clear()

    def describe(self) -> dict[str, Any]:
        """Return the ready line."""
        brokers = [
            {
                "node": broker.node,
                "name": broker.service.setup.name,
                "id": broker.service.setup.broker.broker_id,
                "address": broker.service.setup.address,
            }
            for broker in self.brokers.values()
        ]
        return {"namesrv": self.namesrv_addr, "brokers": brokers, "dir": self._root}

    @property
    def masters(self) -> list[RunningBroker]:
        return [broker for broker in self.brokers.values() if broker.is_master]

    # what tests ask for

    def do(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Do what a test asks for, return its result or a Deferred of it; ServersError, ValueError, TypeError."""
        if command not in COMMANDS:
            raise ServersError(f"there is no command {command!r}: {', '.join(COMMANDS)}")
        level = LogLevel.debug if command in QUIET else LogLevel.info
        self._log.emit(level, "the test asks: {command} {arguments}", command=command, arguments=dict(arguments))
        result = getattr(self if hasattr(self, command) else self.faults, command)(**arguments)
        return Deferred.fromCoroutine(result) if hasattr(result, "send") else result

    async def topic(self, name: str, queues: int = 4) -> None:
        """Create a topic on every master; ends when clients can find it. ServersError for a wrong name."""
        try:
            check_topic(name)
        except ConfigurationError as error:
            raise ServersError(str(error)) from None
        if not isinstance(queues, int) or queues < 1:
            raise ServersError(f"queues is a whole number above 0, not {queues!r}")
        config = topic(name, queues)
        for broker in self.masters:
            broker.service.topics.create(config)
        await gatherResults([broker.service.registration.topic_updated(config) for broker in self.masters])
        await gatherResults([broker.service.topics.saved() for broker in self.masters])

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Return the messages of a topic that the masters have, as they are stored."""
        return [
            {"broker": name, "record": b64encode(data).decode()}
            for broker in self.masters
            for name, data in stored(broker.service, topic, broker.emptied)
        ]

    def unconsumed(self, group: str, topic: str) -> int:
        """Return how many messages of a topic, and of the retry topic of a group, the group has not acknowledged."""
        left = sum(unconsumed(broker.service, group, topic, broker.emptied) for broker in self.masters)
        if left and self._reactor.seconds() >= self._ask_at_s.get(group, 0.0):
            self._ask_at_s[group] = self._reactor.seconds() + ASK_EVERY_S
            for broker in self.masters:
                online = broker.service.consumers.find(group)
                for member in [] if online is None else list(online.members.values()):
                    if member.channel not in self._asked:
                        Deferred.fromCoroutine(self._ask_for_offsets(broker.service, group, member))
        return left

    async def _ask_for_offsets(self, service: BrokerService, group: str, member: Member) -> None:
        """Have a member say what it has consumed, and store it as if it had written it: it does so seldom."""
        header = RunningInfoHeader(consumer_group=group, client_id=member.client_id)
        self._asked.add(member.channel)
        try:
            answer = await member.channel.invoke(GET_CONSUMER_RUNNING_INFO, header, None, timeout_ms=ASK_MS)
            _store_offsets(service, group, answer.body)
        except (RequestFailed, ValueError):
            pass  # a client that does not know the question writes its offsets when its time comes
        finally:
            self._asked.discard(member.channel)

    def has_topic(self, topic: str) -> bool:
        """Return whether a broker has a topic, created by a test or by the first message for it."""
        return any(has_topic(broker.service, topic) for broker in self.brokers.values())

    async def wait_consumed(self, group: str, topic: str, timeout_s: float = 30.0) -> None:
        """Wait until a topic exists and nothing of it is unconsumed; ServersError."""

        def is_consumed() -> bool:
            return not self.unconsumed(group, topic) and self.has_topic(topic)

        try:
            await self._until(is_consumed, f"group {group} has acknowledged all messages of topic {topic}", timeout_s)
        except ServersError:
            if not self.has_topic(topic):
                raise ServersError(absent(topic, timeout_s)) from None
            raise

    async def wait_messages(self, topic: str, count: int = 1, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """Wait until a topic has so many messages, and return all that it has; ServersError."""
        await self._until(lambda: len(self.messages(topic)) >= count, f"{count} messages of topic {topic}", timeout_s)
        return self.messages(topic)

    async def empty(self, topic: str | None = None) -> None:
        """
        Let nobody see the messages that a topic has now; None: those of all topics, nor those that are delayed.

        They stay in the store, and look-ups by key or id find them; pulls, `messages` and `unconsumed` do not.
        """
        if topic is None:
            await self._skip_delayed()
        for broker in self.brokers.values():
            for name, queue_id, _, end in broker.service.store.queue_ranges():
                if topic in (None, name):
                    broker.emptied[name, queue_id] = end

    async def _skip_delayed(self) -> None:
        await self._delivery.acquire()
        try:
            all_delays: list[Any] = [broker.service.delays for broker in self.masters]
            await self._until(lambda: not any(one._delivering for one in all_delays), "no delivery is under way")
            for broker, delays in zip(self.masters, all_delays, strict=True):
                for name, queue_id, _, end in broker.service.store.queue_ranges():
                    if name == SCHEDULE_TOPIC:
                        delays._advance(queue_id + 1, end)
        finally:
            self._delivery.release()

    async def deliver_delayed_now(self) -> None:
        """Deliver all delayed messages that wait now; not those that come meanwhile, a next retry for example."""
        waiting = [(broker, DelaysUntilNow(broker.service.store)) for broker in self.masters]
        await self._delivery.acquire()
        try:
            for broker, store in waiting:
                await self._deliver_now(broker, store)
        finally:
            self._delivery.release()

    async def _deliver_now(self, broker: RunningBroker, store: DelaysUntilNow) -> None:
        delays: Any = broker.service.delays
        levels = delays._levels_ms

        def all_done() -> bool:
            done = delays.table().offset_table
            ends = [store.ends.get(n, 0) for n in range(len(levels))]
            return not delays._delivering and all(done.get(n + 1, 0) >= end for n, end in enumerate(ends))

        # Apache's time has no seam for this: no level has a delay, until all is delivered.
        delays._levels_ms, delays._store = [0] * len(levels), store
        try:
            delays.start()
            await self._until(all_done, "delayed messages are delivered")
        finally:
            delays._levels_ms, delays._store = levels, broker.service.store
            if delays._running:
                delays.start()

    def redeliver(self, group: str, topic: str, broker: str, queue_id: int, offset: int) -> int:
        """Have the members of a group go back to an offset of a queue, as an operator may; return their number."""
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        body = fastjson.encode(OffsetsByQueue(offset_table={queue: offset}))
        header = ResetOffsetHeader(topic=topic, group=group, timestamp=0, is_force=True)
        members = self._members(broker, group)
        for channel in members:
            channel.oneway(RESET_CONSUMER_CLIENT_OFFSET, header, body)
        for one in self.masters:
            # Ends the long polls at the old offset, which would last fifteen seconds.
            one.service.polls.topic_deleted(topic)
        return len(members)

    def _members(self, broker_name: str, group: str) -> list[Any]:
        for broker in self.masters:
            online = broker.service.consumers.find(group)
            if broker.service.setup.name == broker_name and online is not None:
                return [member.channel for member in online.members.values()]
        return []

    # faults: each returns the number of the fault

    def cut(
        self,
        request: str | int | None = None,
        connections_of: str | None = None,
        times: int | None = None,
        topic: str | None = None,
    ) -> int:
        """
        Close connections of clients to brokers: after a request is done, before its answer; without one now.

        ``connections_of`` is a client id, None: all clients.
        """
        if request is not None and connections_of is not None:
            raise ValueError("connections_of is for a cut now: either a request or connections_of")
        if request is not None:
            return self.faults.cut_after(request, times=times, topic=topic)
        fault = Fault()
        for broker in self.brokers.values():
            for channel in list(broker.service.server.channels):
                if connections_of in (None, _client_id(broker.service, channel)):
                    channel.close("cut by a test")
                    fault.count += 1
        return self.faults.add(fault)

    def hold_slave(self, times: int | None = None) -> int:
        """No slave acknowledges: a SYNC_MASTER answers FLUSH_SLAVE_TIMEOUT after its slaveTimeout."""
        if not self._layout.slaves:
            raise ServersError("there is no slave: cluster(slaves=1, role='SYNC_MASTER')")
        return self.faults.add(Fault(times=times, holds=True))

    def full_disk(self, node: str | None = None) -> int:
        """The disk of a broker is full: it refuses messages. The count is that of the sends that came meanwhile."""
        if node == "namesrv":
            raise ServersError(f"{node} has no store whose disk could be full; brokers: {', '.join(self.brokers)}")
        full = frozenset(self.brokers if node is None else (node,))
        number = self.faults.add(Fault(codes=codes_of("SEND_MESSAGE"), node=node, full=full, undo=self._look_at_disks))
        self._look_at_disks()
        return number

    def _look_at_disks(self) -> None:
        for broker in self.brokers.values():
            broker.disk.full = self.faults.is_full(broker.node)
            # At once, where it would look every ten seconds.
            broker.service.store._look_at_disk()

    def steal_queues(self, group: str) -> int:
        """Other members join a group that take all queues of its members, until the fault ends."""
        thieves = [f"!thief-{number:02}" for number in range(THIEVES)]

        def answer(inner: ResponderTable, command: RemotingCommand, channel: Channel) -> Written:
            members = thieves + [one for broker in self.brokers.values() for one in _client_ids(broker, group)]
            body = fastjson.encode(ConsumerIdList(consumer_id_list=list(dict.fromkeys(members))))
            return encode_reply(command, body=body)

        fault = Fault(
            codes=codes_of(int(RequestCode.GET_CONSUMER_LIST_BY_GROUP)),
            group=group,
            answer=answer,
            undo=lambda: self._reactor.callLater(0, self._rebalance, group),
        )
        number = self.faults.add(fault)
        self._rebalance(group)
        return number

    def _rebalance(self, group: str) -> None:
        """Have the members of a group share the queues again."""
        for broker in self.brokers.values():
            online = broker.service.consumers.find(group)
            if online is not None:
                broker.service.notices.now(online)


#: of a broker that was never emptied
NOTHING_EMPTIED: Mapping[tuple[str, int], int] = {}


def stored(
    service: BrokerService, topic: str, emptied: Mapping[tuple[str, int], int] = NOTHING_EMPTIED
) -> Iterator[tuple[str, bytes]]:
    """Yield (broker name, record) of the messages of a topic, by queue and offset."""
    store = service.store
    for queue_id in sorted(queue_id for name, queue_id in store.queues() if name == topic):
        offset = max(store.min_offset(topic, queue_id), emptied.get((topic, queue_id), 0))
        while (got := store.get(topic, queue_id, offset, 32)).status is GetStatus.FOUND:
            for data in got.messages:
                yield service.setup.name, data
            offset = got.next_begin_offset


def has_topic(service: BrokerService, topic: str) -> bool:
    """Return whether a broker has a topic."""
    return service.topics.get(topic) is not None


def unconsumed(
    service: BrokerService, group: str, topic: str, emptied: Mapping[tuple[str, int], int] = NOTHING_EMPTIED
) -> int:
    """
    Return how many messages of a topic and of a group's retries have no acknowledgement of the group.

    ServersError for a group that broadcasts: its members keep their offsets themselves.
    """
    online = service.consumers.find(group)
    if online is not None and online.message_model == "BROADCASTING":
        raise ServersError(f"group {group} is broadcast: brokers do not know what its members have consumed")
    store, offsets, count = service.store, service.offsets, 0
    for name, queue_id in store.queues():
        if name in (topic, RETRY_PREFIX + group):
            first = max(store.min_offset(name, queue_id), emptied.get((name, queue_id), 0))
            done = max(offsets.query(group, name, queue_id) or 0, first)
            count += max(0, store.max_offset(name, queue_id) - done)
    return count


class _Consumed(msgspec.Struct, rename="camel"):
    """What is read of a queue in the answer of a member; Go's and Java's write more, not all of it the same."""

    commit_offset: int = 0


class _Member(msgspec.Struct, rename="camel"):
    mq_table: dict[MessageQueue, _Consumed] = {}


def _store_offsets(service: BrokerService, group: str, answer: bytes) -> None:
    """Commit the offsets of a member for queues of this broker; none goes back. ValueError."""
    for queue, consumed in fastjson.decode(answer, _Member).mq_table.items():
        before = service.offsets.query(group, queue.topic, queue.queue_id) or 0
        if queue.broker_name == service.setup.name and consumed.commit_offset > before:
            service.offsets.commit(group, queue.topic, queue.queue_id, consumed.commit_offset)


def _client_ids(broker: RunningBroker, group: str) -> list[str]:
    online = broker.service.consumers.find(group)
    return [] if online is None else online.client_ids


def _client_id(service: BrokerService, channel: Any) -> str | None:
    """Return the id of the client of a connection."""
    for members in service.producers.table().values():
        for member in members:
            if member.channel is channel:
                return member.client_id
    for group in map(service.consumers.find, service.consumers.names()):
        if group is not None and channel in group.members:
            return group.members[channel].client_id
    return None


#: those that a test calls again and again
QUIET = ("unconsumed", "has_topic", "count")

#: the methods that a test may call
COMMANDS = (
    "topic",
    "messages",
    "unconsumed",
    "has_topic",
    "wait_consumed",
    "wait_messages",
    "empty",
    "deliver_delayed_now",
    "redeliver",
    "refuse",
    "drop_answers",
    "delay_answers",
    "forget_route",
    "cut",
    "hold_slave",
    "full_disk",
    "steal_queues",
    "count",
    "undo",
    "undo_all",
)
