"""
The client: one set of connections, one heartbeat, one client id for its producers and consumers.

Java: MQClientInstance, ClientConfig, ClientRemotingProcessor
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from rmq.client.core.msgid import UniqueIds
from rmq.client.core.routes import broker_addrs
from rmq.client.flows.attempt import attempt
from rmq.client.flows.closing import Closing
from rmq.client.host import Gate, Host
from rmq.client.observers import Observer, TracingObserver
from rmq.client.settings import ClientSettings, check_kind
from rmq.client.types import CloseReport, Credentials, ReceivedMessage
from rmq.errors import (
    ClosedClient,
    ConfigurationError,
    ForkedClient,
    NoRoute,
    Refused,
    RequestFailed,
    RequestTimeout,
    Unreachable,
)
from rmq.wire.api.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    UnregisterClientHeader,
)
from rmq.wire.api.common import MASTER_ID, MessageQueue
from rmq.wire.api.routes import GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader, TopicRouteData
from rmq.wire.api.sending import PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageHeader
from rmq.wire.codes import LanguageCode, ResponseCode
from rmq.wire.command import RemotingCommand, encode_reply
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response
from rmq.wire.record import MAGIC_V1, Record, decode_properties

if TYPE_CHECKING:
    from rmq.client.flows.tracing import Tracer

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")

#: the producer group of every client, for messages that consumers send back.  Java: MixAll
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
DEFAULT_NAMESRV = "127.0.0.1:9876"
#: between failed rounds
AGAIN_S = 1.0
#: between two looks at the routes, and for how long, after a broker has left them: it may be back soon
LOST_BROKER_POLL_S = 2.0
LOST_BROKER_S = 600.0
#: so often, and for so long, after one could not be reached: another one may become master, or its slave be read
UNREACHABLE_POLL_S = 0.5
UNREACHABLE_S = 5.0
#: how long a close takes it that a server is silent
SILENT_S = 30.0
#: heartbeats that a broker must have missed before others may have our queues; a broker gives a member 120 s
MISSED_BEATS = 3

#: a name or an address, without what joins several or belongs to a URL
_HOST = re.compile(r"[^\s,;/]+")

_log = logging.getLogger("rmq.client")


class Part(Protocol):
    """A producer or consumer of the client."""

    def producer_data(self) -> ProducerData | None: ...
    def consumer_data(self) -> ConsumerData | None:
        """What makes this client a member of a group; None while it is none."""

    def topics(self) -> Iterable[str]:
        """The topics whose routes are kept fresh."""

    def answers(self, addr: str, command: RemotingCommand) -> Coroutine[Any, Any, bytes | None] | None:
        """The answer to a request of a broker, None when it is for another part."""

    def routes_changed(self) -> None: ...
    async def close(self) -> CloseReport: ...


#: a producer's group or a consumer's
_Group = tuple[str | None, str | None]


class Awaited:
    """A reply that a request waits for; None after the wait when the client was closed before it came."""

    def __init__(self, gate: Gate) -> None:
        self.reply: ReceivedMessage | None = None
        self._gate = gate

    def arrived(self, reply: ReceivedMessage) -> None:
        self.reply = reply
        self._gate.open()

    def give_up(self) -> None:
        self._gate.open()

    async def arrival(self) -> None:
        await self._gate.wait()


def not_pickled() -> TypeError:
    """Return what is raised when a client, or a part of it, is to be sent to another process."""
    return TypeError("a client cannot be pickled or copied, for it has connections: each process makes its own client")


class Instance:
    """
    A client over a host. ``namesrv`` None: $NAMESRV_ADDR, else 127.0.0.1:9876.

    ``suffix`` ends the client id: pull consumers of 4.9 and later have ``@STREAM``.
    """

    def __init__(
        self,
        host: Host,
        namesrv: str | Sequence[str] | None,
        credentials: Credentials | None,
        settings: ClientSettings,
        suffix: str = "",
        observers: Sequence[Observer] = (),
    ) -> None:
        if namesrv is None:
            namesrv = os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
        check_kind(settings, ClientSettings)
        if credentials is not None:
            check_kind(credentials, Credentials)
        self.namesrvs = _namesrvs(namesrv)
        self.host = host
        self.settings = settings
        self.routes: dict[str, TopicRouteData] = {}
        #: address by broker name and broker id, of all routes
        self.brokers: dict[str, dict[int, str]] = {}
        #: names of brokers that have left the routes, and when
        self._lost: dict[str, float] = {}
        #: addresses of brokers that cannot be reached, and since when
        self._unreachable: dict[str, float] = {}
        #: addresses that did not answer the last request of a close, and when that was
        self._silent: dict[str, float] = {}
        self._look = host.gate()
        #: when a broker that did not answer last made us look at the routes
        self._looked_s = -LOST_BROKER_POLL_S
        #: by name of a broker: epoch ms of its last answer to a heartbeat or pull; see :meth:`absences`
        self._heard_ms: dict[str, int] = {}
        self._absences: dict[str, int] = {}
        self.parts: list[Part] = []
        self._consumers: dict[str, Part] = {}
        #: by correlation id
        self.requests: dict[str, Awaited] = {}
        self._credentials = credentials
        self._suffix = suffix
        self.observers = observers
        tracing = [observer for observer in observers if isinstance(observer, TracingObserver)]
        if len(tracing) > 1:
            raise ConfigurationError(f"{tracing!r}: only one observer of a client can trace")
        #: the observer that has spans, asked by `rmq.client.flows.spans`
        self.tracing = tracing[0] if tracing else None
        self.connections = host.connections(self._prepare, self._answer)
        self._pid = host.pid()
        self._instance_name = settings.instance_name or f"{self._pid}#{host.rng.getrandbits(48)}"
        self._siblings: list[Instance] = []
        self._has_own_host = True
        self._client_id: str | None = None
        self._ids: UniqueIds | None = None
        self._beat = host.gate()
        #: a close has begun, and consumers are drained
        self.is_closing = False
        #: nothing is sent any more
        self.closed = False
        #: set by `rmq.client.flows.tracing.with_traces`, where the settings ask for it
        self.tracer: Tracer | None = None
        self._closing = Closing(host, self, self._close, name="rmq close")
        self._loops = [
            host.spawn(self._poll_routes(), name="rmq routes"),
            host.spawn(self._heartbeats(), name="rmq heartbeats"),
        ]

    def run_beside(self, run: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a coroutine until the close."""
        self._loops.append(self.host.spawn(run, name=name))

    # identity

    @property
    def ip(self) -> str:
        return self.settings.client_ip or self.connections.local_ip or "127.0.0.1"

    @property
    def client_id(self) -> str:
        """Fixed with its first use, because brokers know members by it.  Java: ClientConfig#buildMQClientId"""
        if self._client_id is None:
            unit = f"@{self.settings.unit_name}" if self.settings.unit_name else ""
            self._client_id = f"{self.ip}@{self._instance_name}{unit}{self._suffix}"
        return self._client_id

    def unique_id(self) -> str:
        """Return a new message id."""
        if self._ids is None:
            self._ids = UniqueIds(self.ip, self._pid, self.host.rng.getrandbits(32), self.host.month_of)
        return self._ids.next(self.host.wall_ms())

    def sibling(self, suffix: str) -> Instance:
        """Return another client over the same host, which ends with this one."""
        made = Instance(self.host, self.namesrvs, self._credentials, self.settings, suffix, self.observers)
        made.tracer = self.tracer
        made._has_own_host = False
        self._siblings = [one for one in self._siblings if not one.closed] + [made]
        return made

    def add_consumer(self, group: str, consumer: Part) -> None:
        """Add a consumer; ConfigurationError when its group has one in this client already."""
        if self._consumers.get(group) in self.parts:
            raise ConfigurationError(f"group {group} has a consumer in this client already")
        self._consumers[group] = consumer
        self.parts.append(consumer)

    async def leave(self, part: Part) -> None:
        """
        Take out a part that is closed, and leave its group, unless another part is in it.

        Other members have a consumer's queues at once, and brokers ask others about a producer's transactions.
        """
        if part in self.parts and not self.closed:
            self.parts.remove(part)
            stays = _groups(self.parts)
            await self._unregister([group for group in _groups([part]) if group not in stays])

    def __reduce__(self) -> NoReturn:
        raise not_pickled()

    def check_process(self) -> None:
        """Raise ForkedClient in another process than the client's."""
        if self.host.pid() != self._pid:
            raise ForkedClient(f"the client was made in process {self._pid}, before a fork")

    def check_usable(self) -> None:
        """Raise ClosedClient or ForkedClient."""
        self.check_process()
        if self.closed:
            raise ClosedClient("the client is closed")

    @property
    def is_open(self) -> bool:
        """Whether a close is still to come, in this process."""
        return not self.is_closing and self.host.pid() == self._pid

    def _prepare(self, command: RemotingCommand) -> None:
        command.language = LanguageCode.PYTHON
        if self._credentials is not None:
            self._credentials.sign(command)

    # requests

    async def ask(
        self,
        addr: str,
        contract: Contract[H, B, RH, RB],
        header: H,
        body: B,
        timeout_s: float | None = None,
    ) -> Response[RH, RB]:
        """Send a request and wait, ``ask_timeout_s`` unless something else is said; fails with RequestFailed."""
        timeout_s = self.settings.ask_timeout_s if timeout_s is None else timeout_s
        try:
            response = await self.connections.ask(addr, contract, header, body, timeout_s=timeout_s)
        except Unreachable:
            if addr not in self._unreachable and addr not in self.namesrvs:
                self._unreachable[addr] = self.host.seconds()
                self._look.open()
            raise
        except RequestTimeout:
            # Its machine or its network may have halted, and another broker may be master by now.
            now = self.host.seconds()
            if addr not in self.namesrvs and now >= self._looked_s + LOST_BROKER_POLL_S:
                self._looked_s = now
                self._look.open()
            raise
        if self._unreachable or self._silent:
            self._unreachable.pop(addr, None)
            self._silent.pop(addr, None)
        return response

    async def ask_last(self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B) -> Response[RH, RB]:
        """
        Ask for something that belongs to a close; a server that did not answer such a request is not asked again.

        Else a close with many queues would wait for a hung broker once for each of them. Fails with RequestFailed.
        """
        if self.host.seconds() < self._silent.get(addr, -SILENT_S) + SILENT_S:
            raise RequestTimeout(addr, f"{addr} did not answer the request before, and was not asked again")
        try:
            return await self.ask(addr, contract, header, body)
        except (RequestTimeout, Unreachable):
            self._silent[addr] = self.host.seconds()
            raise

    def broker_addr(self, broker_name: str, broker_id: int = MASTER_ID, *, any_id: bool = False) -> str:
        """Return an address of a broker, with ``any_id`` that of another member if need be; Unreachable without one."""
        addrs = self.brokers.get(broker_name, {})
        addr = addrs.get(broker_id)
        if addr is None and any_id:
            addr = addrs.get(broker_id + 1) or next(iter(addrs.values()), None)
        if addr is None:
            raise Unreachable(broker_name, f"no address of broker {broker_name} is known")
        return addr

    def master(self, broker_name: str) -> str:
        """Return the address of a broker's master, of any member when there is none."""
        return self.broker_addr(broker_name, any_id=True)

    # routes

    async def start(self) -> None:
        """Ask one NameServer after the other until one answers; the last failure is raised. May be called again."""
        self.check_usable()
        trouble: RequestFailed | None = None
        for addr in self.namesrvs:
            try:
                await self.ask(addr, GET_ROUTEINFO_BY_TOPIC, _route_header("TBW102"), None)
                return
            except Refused as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return
                trouble = error  # a broker, which knows no routes
            except RequestFailed as error:
                trouble = error
        assert trouble is not None
        raise trouble

    async def route(self, topic: str, timeout_s: float | None = None) -> TopicRouteData:
        """Return what is known of a topic's route, or ask; raises NoRoute."""
        return self.routes.get(topic) or await self.fetch_route(topic, timeout_s)

    async def fetch_route(self, topic: str, timeout_s: float | None = None) -> TopicRouteData:
        """Ask one NameServer after the other for a route, and keep it; raises NoRoute."""
        answers: dict[str, str] = {}
        is_unknown = False
        deadline = self.host.seconds() + (self.settings.ask_timeout_s if timeout_s is None else timeout_s)
        for addr in list(self.namesrvs):
            left = deadline - self.host.seconds()
            if left <= 0:
                break
            try:
                response = await self.ask(addr, GET_ROUTEINFO_BY_TOPIC, _route_header(topic), None, left)
            except Refused as error:
                answers[addr] = error.remark or str(error)
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    is_unknown = True
                    continue
            except RequestFailed as error:
                answers[addr] = str(error)
            else:
                self._keep_route(topic, response.body)
                return response.body
            # the next request goes to another NameServer first
            self.namesrvs = [other for other in self.namesrvs if other != addr] + [addr]
        raise NoRoute(topic, answers, is_unknown=is_unknown)

    def _keep_route(self, topic: str, route: TopicRouteData) -> None:
        """Keep a route; what it says of a broker counts, and not what older routes of other topics say.

        Java: MQClientInstance#updateTopicRouteInfoFromNameServer
        """
        changed = self.routes.get(topic) != route
        self.routes[topic] = route
        newest: dict[str, dict[int, str]] = {}
        for name, broker_id, addr in broker_addrs(route):
            newest.setdefault(name, {})[broker_id] = addr
        brokers = self.brokers | newest
        if changed:
            named = {name for known in self.routes.values() for name, _, _ in broker_addrs(known)}
            brokers = {name: addrs for name, addrs in brokers.items() if name in named}
        if brokers != self.brokers:
            lost = dict.fromkeys(self.brokers.keys() - brokers.keys(), self.host.seconds())
            self._lost = {name: since for name, since in (self._lost | lost).items() if name not in brokers}
            self.brokers = brokers
            named_addrs = {addr for addrs in brokers.values() for addr in addrs.values()}
            self._unreachable = {addr: since for addr, since in self._unreachable.items() if addr in named_addrs}
            self.beat()
        if changed:
            for part in self.parts:
                part.routes_changed()

    async def _poll_routes(self) -> None:
        while True:
            try:
                await self.host.within(opened(self._look.wait), self._poll_pause_s())
            except TimeoutError:
                pass
            self._look.shut()
            for topic in dict.fromkeys(topic for part in self.parts for topic in part.topics()):
                try:
                    await self.fetch_route(topic)
                except NoRoute as error:
                    _log.debug("%s", error)

    def _poll_pause_s(self) -> float:
        now, poll_s = self.host.seconds(), self.settings.poll_routes_s
        latest = max(self._unreachable.values(), default=-LOST_BROKER_S)
        if now < latest + UNREACHABLE_S:
            return min(poll_s, UNREACHABLE_POLL_S)
        latest = max(latest, *self._lost.values()) if self._lost else latest
        return min(poll_s, LOST_BROKER_POLL_S) if now < latest + LOST_BROKER_S else poll_s

    # heartbeats

    def beat(self) -> None:
        """Send heartbeats soon, and not only at the next round."""
        self._beat.open()

    async def heartbeat(self) -> None:
        """Send the groups of this client to all brokers: without consumers to masters only; failures are logged."""
        for name, addr in self._addrs(with_slaves=any(part.consumer_data() is not None for part in self.parts)):
            try:
                # what it says may have changed while another broker was asked
                await self.ask(addr, HEART_BEAT, None, self._heartbeat_data())
            except RequestFailed as error:
                _log.info("no heartbeat to %s: %s", addr, error)
            else:
                self.heard(name)

    def heard(self, broker_name: str) -> None:
        """Note that a broker has answered a heartbeat or a pull."""
        self._absences[broker_name] = self.absences(broker_name)
        self._heard_ms[broker_name] = self.host.wall_ms()

    def absences(self, broker_name: str) -> int:
        """
        Return how often a broker had not heard of us for MISSED_BEATS heartbeats, one more while that lasts.

        Others may have got our queues each time. The clock is that of the wall: it goes on while a machine sleeps.
        """
        now = self.host.wall_ms()
        is_absent = now - self._heard_ms.get(broker_name, now) > MISSED_BEATS * 1000 * self.settings.heartbeat_s
        return self._absences.get(broker_name, 0) + is_absent

    def _heartbeat_data(self) -> HeartbeatData:
        consumers = [data for part in self.parts if (data := part.consumer_data()) is not None]
        producers = [made for part in self.parts if (made := part.producer_data()) is not None]
        producers.append(ProducerData(group_name=INNER_PRODUCER))
        return HeartbeatData(client_id=self.client_id, consumer_data_set=consumers, producer_data_set=producers)

    def _addrs(self, *, with_slaves: bool) -> list[tuple[str, str]]:
        return sorted(
            {
                (name, addr)
                for name, addrs in self.brokers.items()
                for broker_id, addr in addrs.items()
                if with_slaves or broker_id == MASTER_ID
            }
        )

    async def _heartbeats(self) -> None:
        while True:
            try:
                await self.host.within(opened(self._beat.wait), self.settings.heartbeat_s)
            except TimeoutError:
                pass
            self._beat.shut()
            if self.parts:
                await self.heartbeat()

    # requests of brokers

    async def _answer(self, addr: str, command: RemotingCommand) -> bytes | None:
        if command.code == PUSH_REPLY_MESSAGE_TO_CLIENT.code:
            return self._replied(command)
        for part in list(self.parts):
            answer = part.answers(addr, command)
            if answer is not None:
                return await answer
        remark = f" request type {command.code} not supported"
        return encode_reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _replied(self, command: RemotingCommand) -> bytes:
        """Give a reply to the request that waits for it.  Java: ClientRemotingProcessor#receiveReplyMessage"""
        header = command.decode_header(ReplyMessageHeader)
        properties = decode_properties(header.properties or "")
        waiting = self.requests.get(properties.get("CORRELATION_ID", ""))
        if waiting is None:
            _log.info("a reply of %s came too late", header.born_host)
            return encode_reply(command)
        body = command.body or b""
        record = Record(
            size=0,
            magic=MAGIC_V1,
            body_crc=0,
            queue_id=header.queue_id,
            flag=header.flag,
            queue_offset=-1,
            phy_offset=-1,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_raw_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_raw_host(header.store_host),
            reconsume_times=header.reconsume_times or 0,
            prepared_transaction_offset=0,
            body=body,
            topic=header.topic,
            properties=(header.properties or "").encode(),
        )
        queue = MessageQueue(topic=header.topic, broker_name="", queue_id=header.queue_id)
        waiting.arrived(ReceivedMessage(record, queue, self.settings.namespace))
        return encode_reply(command)

    # the end

    async def close(self) -> CloseReport:
        """
        Close consumers, then the other parts, leave the groups and the connections; may be repeated.

        A handler that ends meanwhile may still send. When the close of a part fails, that of the others goes on; the
        first error is raised at the end.
        """
        self.is_closing = True
        return await self._closing.report()

    async def _close(self) -> CloseReport:
        report = CloseReport()
        errors: list[Exception] = []
        try:
            for part in [part for part in self.parts if part.consumer_data() is not None]:
                report = report.plus(await self._closed_part(part, errors))
            self.closed = True
            rest: list[Part | Instance] = [*self.parts, *self._siblings]
            for one in rest:
                report = report.plus(await self._closed_part(one, errors))
            if self.tracer is not None:
                await self.tracer.flush()
            await self._unregister(_groups(self.parts))
        finally:
            self.closed = True
            for waiting in self.requests.values():
                waiting.give_up()
            for loop in self._loops:
                loop.cancel()
            for loop in self._loops:
                await loop.wait()
            await self.connections.close()
            if self._has_own_host:
                self.host.close()
        if errors:
            raise errors[0]
        return report

    async def _closed_part(self, part: Part | Instance, errors: list[Exception]) -> CloseReport:
        """Close a part and return its report; what it raises goes to ``errors``: the others have offsets to write."""
        report, error = await attempt(self.host, part.close())
        if error is not None:
            _log.error("the close of a %s failed, that of the others goes on: %r", type(part).__name__, error)
            errors.append(error)
        return report or CloseReport()

    async def _unregister(self, groups: Sequence[_Group]) -> None:
        for _, addr in self._addrs(with_slaves=True):
            for producer_group, consumer_group in groups:
                header = UnregisterClientHeader(
                    client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
                )
                try:
                    await self.ask_last(addr, UNREGISTER_CLIENT, header, None)
                except RequestFailed as error:
                    _log.debug("%s", error)
                    break


def _namesrvs(namesrv: str | Sequence[str]) -> list[str]:
    """Return the addresses of NameServers; ConfigurationError for what is none."""
    found: list[object] = [""]
    if isinstance(namesrv, str):
        found = [part for part in namesrv.split(";") if part.strip()]
    elif isinstance(namesrv, Iterable):
        found = list(namesrv)
    addrs = [addr.strip() if isinstance(addr, str) else "" for addr in found]
    for addr in addrs or [""]:
        host, _, port = addr.rpartition(":")
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigurationError(f"{namesrv!r} is no list of NameServers: host:port, several joined by ';'")
    return addrs


def _groups(parts: Iterable[Part]) -> list[_Group]:
    found: list[_Group] = []
    for part in parts:
        producer, consumer = part.producer_data(), part.consumer_data()
        found += [(producer.group_name, None)] if producer is not None else []
        found += [(None, consumer.group_name)] if consumer is not None else []
    return found


def _route_header(topic: str) -> GetRouteInfoHeader:
    return GetRouteInfoHeader(topic=topic, accept_standard_json_only=True)


def _raw_host(text: str) -> tuple[bytes, int]:
    host, _, port = text.strip("/").rpartition(":")
    return ip_address(host.strip("[]")).packed, int(port)


async def opened(wait: Callable[[], Any]) -> None:
    await wait()
