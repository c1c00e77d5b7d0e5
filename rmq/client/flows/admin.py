"""
Administration over a client's connections: topics, groups, offsets, messages. `rmq-admin` asks with the same class.

Java: MQAdminExt, DefaultMQAdminExtImpl
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

import attrs

from rmq.client.core.routes import RETRY_PREFIX, check_topic
from rmq.client.flows.instance import Instance
from rmq.client.types import MessageQueue, ReceivedMessage
from rmq.errors import ConfigurationError, NotFound, Refused, RequestFailed
from rmq.wire.api.clients import GET_CONSUMER_CONNECTION_LIST, ConsumerConnection, ConsumerGroupHeader
from rmq.wire.api.common import MASTER_ID
from rmq.wire.api.offsets import GET_CONSUME_STATS, ConsumeStatsHeader, OffsetWrapper
from rmq.wire.api.pulling import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QueryMessageHeader, ViewMessageHeader
from rmq.wire.api.routes import (
    DELETE_TOPIC_IN_NAMESRV,
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    BrokerData,
    ClusterInfo,
    DeleteTopicInNamesrvHeader,
    GetRouteInfoHeader,
    TopicRouteData,
)
from rmq.wire.api.topics import (
    DELETE_TOPIC_IN_BROKER,
    GET_TOPIC_STATS_INFO,
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicHeader,
    TopicHeader,
    TopicOffset,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response
from rmq.wire.record import Record, decode_offset_msg_id, decode_record, decode_records

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")

#: what every client asks of the topics that brokers create by themselves
AUTO_CREATE_TOPIC = "TBW102"
DEFAULT_QUEUES = 8
#: a time that no message reaches
FAR_FUTURE_MS = 2**62
#: a broker's answers for a group that it does not know or that has no member
UNKNOWN = {
    ResponseCode.CONSUMER_NOT_ONLINE,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST,
}


class Ask(Protocol):
    """Asks one server; fails with RequestFailed."""

    def __call__(
        self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B, /
    ) -> Awaitable[Response[RH, RB]]: ...


@attrs.frozen
class Progress:
    """Where a group is in each queue, and how many messages it consumes a second."""

    offsets: dict[MessageQueue, OffsetWrapper]
    rate: float

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed."""
        return sum(map(lag_of, self.offsets.values()))


class Admin:
    """
    Topics, groups, offsets and messages, by the names that brokers have: with the namespace, if there is one.

    Raises NotFound for what is not there, and RequestFailed. Made by the client. ``namesrvs`` is kept in the order in
    which questions go to them: one that did not answer is moved to the end.
    """

    def __init__(self, ask: Ask, namesrvs: list[str]) -> None:
        self._ask = ask
        self._namesrvs = namesrvs

    # NameServers

    async def ask_namesrv(self, contract: Contract[H, B, RH, RB], header: H, body: B) -> Response[RH, RB]:
        """Ask one NameServer after the other until one answers; a refusal is an answer. An error names all of them."""
        failed: list[RequestFailed] = []
        for addr in list(self._namesrvs):
            try:
                return await self._ask(addr, contract, header, body)
            except Refused:
                raise
            except RequestFailed as error:
                failed.append(error)
                # the next request goes to another NameServer first; concurrent ones may have moved it already
                self._namesrvs.remove(addr)
                self._namesrvs.append(addr)
        last = failed[-1]
        raise type(last)(last.addr, "; ".join(map(str, failed)))

    async def cluster(self) -> ClusterInfo:
        """Return clusters and brokers."""
        return (await self.ask_namesrv(GET_BROKER_CLUSTER_INFO, None, None)).body

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic."""
        try:
            return (await self.ask_namesrv(GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic), None)).body
        except Refused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NotFound(f"NameServer {error.addr} has no route of topic {topic}") from None
            raise

    async def masters(self, cluster: str | None = None) -> list[str]:
        """Return the addresses of the masters of a cluster, or of all clusters."""
        info = await self.cluster()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise NotFound(f"no cluster {cluster}; clusters known: {known}")
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        found = [
            info.broker_addr_table[name].broker_addrs.get(MASTER_ID)
            for name in sorted(names)
            if name in info.broker_addr_table
        ]
        return [addr for addr in found if addr is not None]

    # topics

    async def topics(self) -> list[str]:
        """Return all topics that NameServers know, those of the system and of groups too."""
        return sorted((await self.ask_namesrv(GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, None)).body.topic_list)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        perm: int = 6,
        cluster: str | None = None,
    ) -> None:
        """Create a topic, or alter it, on all masters; ``perm`` is 4 (read), 2 (write) or 6."""
        check_topic(topic)
        if queues < 1 or perm not in (2, 4, 6):
            raise ConfigurationError(f"a topic has 1 queue or more and perm 2, 4 or 6, not {queues} and {perm}")
        header = topic_header(topic, queues, queues, perm)
        for addr in await self.masters(cluster):
            await self._ask(addr, UPDATE_AND_CREATE_TOPIC, header, None)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """
        Delete a topic and its messages from all masters, and from the NameServers.

        NotFound when neither a NameServer nor a master has it.
        """
        masters = await self.masters(cluster)
        if not await self._may_exist(topic, masters):
            raise NotFound(f"there is no topic {topic}")
        for addr in masters:
            await self._ask(addr, DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic), None)
        for addr in tuple(self._namesrvs):
            await self._ask(addr, DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvHeader(topic=topic), None)

    async def _may_exist(self, topic: str, masters: Iterable[str]) -> bool:
        """Whether a NameServer has a route of the topic, or a master has the topic or does not say it."""
        try:
            await self.route(topic)
            return True
        except NotFound:
            pass
        for addr in masters:
            try:
                await self._ask(addr, GET_TOPIC_STATS_INFO, TopicHeader(topic=topic), None)
                return True
            except Refused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    return True
        return False

    async def topic_offsets(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the offsets of each queue, and when its last message was stored (epoch ms)."""
        found: dict[MessageQueue, TopicOffset] = {}
        for addr in addresses_by_name((await self.route(topic)).broker_datas).values():
            answer = await self._ask(addr, GET_TOPIC_STATS_INFO, TopicHeader(topic=topic), None)
            found.update(sorted(answer.body.offset_table.items()))
        return found

    # groups

    async def groups(self) -> list[str]:
        """Return the groups that have consumed: those with a retry topic, as mqadmin has it."""
        return [topic.removeprefix(RETRY_PREFIX) for topic in await self.topics() if topic.startswith(RETRY_PREFIX)]

    async def group_brokers(self, group: str) -> dict[str, str]:
        """Return the address of each broker that has the group's retry topic, by name."""
        try:
            route = await self.route(RETRY_PREFIX + group)
        except NotFound:
            why = f"no NameServer has a route of {RETRY_PREFIX}{group}"
            raise NotFound(f"no group {group}, or none that has had a member: {why}") from None
        return addresses_by_name(route.broker_datas)

    async def members_at(self, addr: str, group: str) -> ConsumerConnection | None:
        """Return the members of a group at one broker; None when it has none there."""
        try:
            header = ConsumerGroupHeader(consumer_group=group)
            return (await self._ask(addr, GET_CONSUMER_CONNECTION_LIST, header, None)).body
        except Refused as error:
            if error.code not in UNKNOWN:
                raise
            return None

    async def members(self, group: str) -> ConsumerConnection | None:
        """Return members and subscriptions of a group from the first broker that has any; None when it has none."""
        for addr in (await self.group_brokers(group)).values():
            found = await self.members_at(addr, group)
            if found is not None:
                return found
        return None

    async def progress(self, group: str, topic: str | None = None) -> Progress:
        """Return the offsets of a group, in one topic or in all, and its lag."""
        return await self.progress_at((await self.group_brokers(group)).values(), group, topic)

    async def progress_at(self, addrs: Iterable[str], group: str, topic: str | None = None) -> Progress:
        """Return the offsets of a group as these brokers have them."""
        offsets: dict[MessageQueue, OffsetWrapper] = {}
        rate = 0.0
        for addr in addrs:
            try:
                header = ConsumeStatsHeader(consumer_group=group, topic=topic)
                stats = (await self._ask(addr, GET_CONSUME_STATS, header, None)).body
            except Refused as error:
                if error.code not in UNKNOWN:
                    raise
                continue
            offsets.update(stats.offset_table)
            rate += stats.consume_tps
        return Progress(offsets, rate)

    # messages

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """
        Return a message by the id that a broker gave it, with ``topic`` by the one that its producer made.

        ConfigurationError when ``message_id`` cannot be such an id.
        """
        if topic is None:
            return received(await self.record(message_id), "")
        for message in await self.find_messages(topic, message_id):
            if message.message_id == message_id:
                return message
        raise NotFound(f"topic {topic} has no message {message_id}")

    async def record(self, message_id: str) -> Record:
        """Return the record that a broker has for an id that it made."""
        addr, phy_offset = place_of(message_id)
        try:
            answer = await self._ask(addr, VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=phy_offset), None)
        except Refused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            raise NotFound(f"broker {addr} has no message at offset {phy_offset}: {error.remark}") from None
        return decode_record(answer.body)

    async def find_messages(
        self, topic: str, key: str, *, most: int = 64, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
    ) -> list[ReceivedMessage]:
        """Return ``most`` messages of each broker with a key, or a producer's id, stored in a time; newest first."""
        header = QueryMessageHeader(topic=topic, key=key, max_num=most, begin_timestamp=begin_ms, end_timestamp=end_ms)
        found = []
        for name, addr in addresses_by_name((await self.route(topic)).broker_datas).items():
            try:
                answer = await self._ask(addr, QUERY_MESSAGE, header, None)
            except Refused as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                continue
            # the index knows hashes of keys only
            messages = [received(record, name) for record in decode_records(answer.body)]
            found += [message for message in messages if key in message.keys or key == message.message_id]
        return sorted(found, key=lambda message: -message.stored_ms)


def admin(instance: Instance) -> Admin:
    """Return the administration of a client's servers."""

    async def ask(addr: str, contract: Contract[Any, Any, Any, Any], header: Any, body: Any) -> Any:
        instance.check_usable()
        return await instance.ask(addr, contract, header, body)

    return Admin(ask, list(instance.namesrvs))


def topic_header(topic: str, read_queues: int, write_queues: int, perm: int, **more: Any) -> CreateTopicHeader:
    """Return the request for a topic; ``more`` are fields that few topics have."""
    return CreateTopicHeader(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        topic_filter_type="SINGLE_TAG",
        **more,
    )


def addresses_by_name(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """Return the address to ask of each broker name that has one, by name: the master's, or the lowest id's."""
    found = sorted((broker.broker_name, broker.broker_addrs) for broker in brokers if broker.broker_addrs)
    return {name: addrs[min(addrs)] for name, addrs in found}


def lag_of(at: OffsetWrapper) -> int:
    """Return how many messages of a queue a group has not consumed."""
    return max(0, at.broker_offset - at.consumer_offset)


def received(record: Record, broker_name: str) -> ReceivedMessage:
    """Return a record of a broker as a message."""
    return ReceivedMessage(record, MessageQueue(topic=record.topic, broker_name=broker_name, queue_id=record.queue_id))


def place_of(message_id: str) -> tuple[str, int]:
    """Return broker and offset in its log; ConfigurationError when ``message_id`` has none."""
    try:
        (host, port), phy_offset = decode_offset_msg_id(message_id)
        if not 0 < port < 65536 or phy_offset < 0:
            raise ValueError("it names no port; the id of a producer needs its topic")
    except ValueError as error:
        raise ConfigurationError(f"{message_id} is no id that a broker made: {error}") from None
    address = ip_address(host)
    return (f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"), phy_offset
