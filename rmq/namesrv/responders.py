"""
The replies of a NameServer, one method per request code.

Java: DefaultRequestProcessor, and of 5.x ClientRequestProcessor
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.namesrv.clustertest import ProductionRoutes
from rmq.namesrv.kvconfig import KVConfig
from rmq.namesrv.routes import RouteTable
from rmq.namesrv.settings import Settings
from rmq.namesrv.topology import Topology
from rmq.namesrv.turns import Turns
from rmq.remoting.access import refusal_remark
from rmq.remoting.channel import Channel
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import moment, steady_ms
from rmq.runtime.config import ConfigError, decode_properties
from rmq.runtime.disk.files import DiskError
from rmq.wire import fastjson
from rmq.wire.api.common import SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB, DataVersion, KVTable
from rmq.wire.api.kv import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    ORDER_TOPIC_CONFIG,
    PUT_KV_CONFIG,
    GetKVConfigReply,
    KVConfigHeader,
    NamespaceHeader,
    PutKVConfigHeader,
)
from rmq.wire.api.register_body import (
    BodyDigest,
    RegisterBodyError,
    RegisterBrokerBody,
    body_crc32,
    body_digest,
    decode_register_body,
)
from rmq.wire.api.routes import (
    ADD_WRITE_PERM_OF_BROKER,
    BROKER_HEARTBEAT,
    DELETE_TOPIC_IN_NAMESRV,
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_BROKER_MEMBER_GROUP,
    GET_HAS_UNIT_SUB_TOPIC_LIST,
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    GET_NAMESRV_CONFIG,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST_FROM_NS,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    REGISTER_TOPIC_IN_NAMESRV,
    UNREGISTER_BROKER,
    UPDATE_NAMESRV_CONFIG,
    WIPE_WRITE_PERM_OF_BROKER,
    AddWritePermReply,
    BrokerHeartbeatHeader,
    BrokerIdentityHeader,
    BrokerMemberGroup,
    BrokerNameHeader,
    DeleteTopicInNamesrvHeader,
    GetBrokerMemberGroupBody,
    GetBrokerMemberGroupHeader,
    GetRouteInfoHeader,
    GetTopicsByClusterHeader,
    QueryDataVersionReply,
    RegisterBrokerHeader,
    RegisterBrokerReply,
    RegisterTopicHeader,
    TopicList,
    TopicRouteData,
    WipeWritePermReply,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.extfields import parse_boolean

#: Clients from this version on (V4_9_4) read standard JSON.
STRICT_JSON_SINCE = 401
#: 5.x: extFields beside the header: a broker's zone, and a client that asks for the brokers of its own zone only
ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"
#: registrations of this size, about a thousand topics, take two turns each: 3 ms and more
LARGE_BODY_BYTES = 128 * 1024
_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
#: Apache's 4.9 refuses these two keys, and with this text
PATH_KEYS = frozenset({"kvConfigPath", "configStorePath"})
PATH_REMARK = "Can not update config path"


def no_route_remark(topic: str | None) -> str:
    """Return the remark of TOPIC_NOT_EXIST; clients read the code only."""
    return f"No topic route info in name server for the topic: {'null' if topic is None else topic}{_FAQ}"


def encode_route(route: TopicRouteData, *, strict: bool) -> bytes:
    """
    Return a route as Apache writes it: broker ids as bare keys, or quoted and all in ASCII when ``strict``.

    Java: ClientRequestProcessor#getRouteInfoByTopic
    """
    return fastjson.encode(route, quote_int_keys=strict)


@attrs.define(eq=False)
class RouteResponders:
    """
    Route look-ups and lists, for clients and tools.

    ``started_ms`` is the steady time from which ``waitSecondsForService`` counts. ``production`` is used with
    clusterTest.
    """

    _routes: Topology
    _kv: KVConfig
    _settings: Settings
    _clock: IReactorTime
    _production: ProductionRoutes | None = None
    started_ms: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.started_ms = steady_ms(self._clock)

    @property
    def ready(self) -> bool:
        """False while look-ups are refused because brokers need time to register."""
        config = self._settings.namesrv
        waited_ms = steady_ms(self._clock) - self.started_ms
        return not config.need_wait_for_service or waited_ms >= config.wait_seconds_for_service * 1000

    @responds_to(GET_ROUTEINFO_BY_TOPIC)
    def get_routeinfo_by_topic(self, request: Request[GetRouteInfoHeader, None]) -> Reply | Coroutine[Any, Any, Reply]:
        if not self.ready:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "name server not ready")
        topic = request.header.topic
        zone_name = _zone_asked_for(request.command.ext_fields)
        route = None if topic is None else self._routes.pick_route(topic, zone_name=zone_name)
        config = self._settings.namesrv
        if topic is None or route is None:
            if topic is not None and config.cluster_test and self._production is not None:
                return self._from_production(topic, self._production)
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, no_route_remark(topic))
        if config.order_message_enable or config.cluster_test:
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_CONFIG, topic)
        strict = request.command.version >= STRICT_JSON_SINCE or request.header.accept_standard_json_only
        if zone_name is not None or config.cluster_test:  # Apache writes the old form here for all clients
            strict = False
        return Reply(body=encode_route(route, strict=strict))

    async def _from_production(self, topic: str, production: ProductionRoutes) -> Reply:
        route = await production.find(topic)
        if route is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, no_route_remark(topic))
        return Reply(body=encode_route(route, strict=False))

    @responds_to(GET_BROKER_CLUSTER_INFO)
    def get_broker_cluster_info(self, _: Request[None, None]) -> Reply:
        return Reply(body=self._routes.cluster_info())

    @responds_to(GET_BROKER_MEMBER_GROUP)
    def get_broker_member_group(self, request: Request[GetBrokerMemberGroupHeader, None]) -> Reply:
        name = request.header.broker_name
        group = self._routes.group(name)
        addrs = {} if group is None else group.broker_addrs
        member_group = BrokerMemberGroup(broker_addrs=addrs, broker_name=name, cluster=request.header.cluster_name)
        return Reply(body=GetBrokerMemberGroupBody(broker_member_group=member_group))

    @responds_to(GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def get_all_topic_list(self, _: Request[None, None]) -> Reply:
        if not self._settings.namesrv.enable_all_topic_list:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "disable")
        return Reply(body=TopicList(topic_list=self._routes.topics()))

    @responds_to(GET_TOPICS_BY_CLUSTER)
    def get_topics_by_cluster(self, request: Request[GetTopicsByClusterHeader, None]) -> Reply:
        return self._topic_list(self._routes.topics_of_cluster(request.header.cluster))

    @responds_to(GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def get_system_topic_list(self, _: Request[None, None]) -> Reply:
        topics, broker_addr = self._routes.system_topics()
        return Reply(body=TopicList(topic_list=topics, broker_addr=broker_addr))

    @responds_to(GET_UNIT_TOPIC_LIST)
    def get_unit_topic_list(self, _: Request[None, None]) -> Reply:
        return self._topic_list(self._routes.topics_by_flag(wanted=SYS_FLAG_UNIT))

    @responds_to(GET_HAS_UNIT_SUB_TOPIC_LIST)
    def get_has_unit_sub_topic_list(self, _: Request[None, None]) -> Reply:
        return self._topic_list(self._routes.topics_by_flag(wanted=SYS_FLAG_UNIT_SUB))

    @responds_to(GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    def get_has_unit_sub_ununit_topic_list(self, _: Request[None, None]) -> Reply:
        return self._topic_list(self._routes.topics_by_flag(wanted=SYS_FLAG_UNIT_SUB, unwanted=SYS_FLAG_UNIT))

    def _topic_list(self, topics: list[str]) -> Reply:
        if not self._settings.namesrv.enable_topic_list:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "disable")
        return Reply(body=TopicList(topic_list=topics))


@attrs.define(eq=False)
class BrokerResponders:
    """Requests of brokers, and of admins about brokers and topics."""

    _log = Logger()

    _routes: RouteTable
    _kv: KVConfig
    _settings: Settings
    _clock: IReactorTime
    _turns: Turns
    #: gets each heartbeat and its connection
    _heard: Callable[[BrokerHeartbeatHeader, Channel], None] = lambda _header, _channel: None

    @responds_to(REGISTER_BROKER)
    def register_broker(self, request: Request[RegisterBrokerHeader, bytes]) -> Reply | Coroutine[Any, Any, Reply]:
        is_large = len(request.body) >= LARGE_BODY_BYTES
        # A small one must not overtake a large one of the same broker that waits for its turn.
        turn = self._turns.wait(len(request.body)) if is_large or self._turns.busy else None
        if is_large or turn is not None:
            return self._register_in_turns(turn, request)
        return self._register(request, *self._read(request))

    async def _register_in_turns(
        self, turn: Deferred[None] | None, request: Request[RegisterBrokerHeader, bytes]
    ) -> Reply:
        await self._turn_of(request, turn)
        read, digest = self._read(request)
        if isinstance(read, RegisterBrokerBody) and len(request.body) >= LARGE_BODY_BYTES:
            # Half of the work is done: look-ups that arrived meanwhile are answered before the other half.
            await self._turn_of(request, self._turns.wait(len(request.body), first=True))
        return self._register(request, read, digest)

    async def _turn_of(self, request: Request[RegisterBrokerHeader, bytes], turn: Deferred[None] | None) -> None:
        if turn is None:
            return
        await turn
        if not request.channel.is_open:  # the table has already removed what was bound to it
            raise Refuse(ResponseCode.SYSTEM_ERROR, "the connection closed before its registration had its turn")

    def _read(
        self, request: Request[RegisterBrokerHeader, bytes]
    ) -> tuple[RegisterBrokerBody | RegisterBrokerReply, BodyDigest]:
        """Do the first half of a registration: return its body, or the reply when it is an unchanged one."""
        header, data, version = request.header, request.body, request.command.version
        digest = body_digest(data, version=version)
        zone_name = request.command.ext_fields.get(ZONE_NAME)
        reply = self._routes.renew(header, digest, channel=request.channel, at=moment(self._clock), zone_name=zone_name)
        if reply is not None:
            return reply, digest
        if header.body_crc32 != 0 and header.body_crc32 != body_crc32(data):
            self._log_refused(request, "the checksum of its body is wrong")
            raise Refuse(ResponseCode.SYSTEM_ERROR, "crc32 not match", header=RegisterBrokerReply())
        try:
            return decode_register_body(data, compressed=header.compressed, version=version), digest
        except RegisterBodyError as error:
            self._log_refused(request, str(error))
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"Failed to decode RegisterBrokerBody, {error}") from error

    def _register(
        self,
        request: Request[RegisterBrokerHeader, bytes],
        read: RegisterBrokerBody | RegisterBrokerReply,
        digest: BodyDigest,
    ) -> Reply:
        """Do the second half of a registration."""
        if isinstance(read, RegisterBrokerBody):
            read = self._routes.register_broker(
                request.header,
                read,
                channel=request.channel,
                at=moment(self._clock),
                zone_name=request.command.ext_fields.get(ZONE_NAME),
                digest=digest,
            )
        return Reply(header=read, body=self._order_topics())

    @responds_to(UNREGISTER_BROKER)
    def unregister_broker(self, request: Request[BrokerIdentityHeader, None]) -> Coroutine[Any, Any, None] | None:
        # It must not overtake a registration of the same broker that waits for its turn.
        turn = self._turns.wait(0) if self._turns.busy else None
        if turn is not None:
            return self._unregister_in_turn(turn, request)
        self._unregister(request)
        return None

    async def _unregister_in_turn(self, turn: Deferred[None], request: Request[BrokerIdentityHeader, None]) -> None:
        await turn
        if request.channel.is_open:  # else the table knows that it closed, and the broker may have registered again
            self._unregister(request)

    def _unregister(self, request: Request[BrokerIdentityHeader, None]) -> None:
        self._routes.unregister_broker(request.header, channel=request.channel, at=moment(self._clock))

    @responds_to(QUERY_DATA_VERSION)
    def query_data_version(self, request: Request[BrokerIdentityHeader, DataVersion]) -> Reply:
        header, at = request.header, moment(self._clock)
        changed, known = self._routes.query_data_version(
            header.broker_name, header.broker_addr, request.body, channel=request.channel, at=at
        )
        return Reply(header=QueryDataVersionReply(changed=changed), body=known)

    @responds_to(BROKER_HEARTBEAT)
    def broker_heartbeat(self, request: Request[BrokerHeartbeatHeader, None]) -> None:
        header, at = request.header, moment(self._clock)
        self._routes.heartbeat(header.broker_name, header.broker_addr, channel=request.channel, at=at)
        self._heard(header, request.channel)

    @responds_to(WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, request: Request[BrokerNameHeader, None]) -> Reply:
        peer, at = request.channel.peer, moment(self._clock)
        count = self._routes.wipe_write_perm(request.header.broker_name, peer=peer, at=at)
        return Reply(header=WipeWritePermReply(wipe_topic_count=count))

    @responds_to(ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, request: Request[BrokerNameHeader, None]) -> Reply:
        peer, at = request.channel.peer, moment(self._clock)
        count = self._routes.add_write_perm(request.header.broker_name, peer=peer, at=at)
        return Reply(header=AddWritePermReply(add_topic_count=count))

    @responds_to(DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, request: Request[DeleteTopicInNamesrvHeader, None]) -> None:
        header, peer = request.header, request.channel.peer
        self._routes.delete_topic(header.topic, header.cluster_name, peer=peer, at=moment(self._clock))

    @responds_to(REGISTER_TOPIC_IN_NAMESRV)
    def register_topic(self, request: Request[RegisterTopicHeader, TopicRouteData]) -> None:
        queues, peer = request.body.queue_datas, request.channel.peer
        self._routes.register_topic(request.header.topic, queues, peer=peer, at=moment(self._clock))

    def _order_topics(self) -> KVTable | None:
        if not self._settings.namesrv.return_order_topic_config_to_broker:
            return None
        table = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return None if table is None else KVTable(table=table)

    def _log_refused(self, request: Request[RegisterBrokerHeader, bytes], why: str) -> None:
        self._log.warn(
            "registration of {broker_name} at {broker_addr} by {peer} refused: {why}",
            broker_name=request.header.broker_name,
            broker_addr=request.header.broker_addr,
            peer=request.channel.peer,
            why=why,
        )


@attrs.define(eq=False)
class AdminResponders:
    """Requests about the key-value table and the configuration."""

    _kv: KVConfig
    _settings: Settings

    @responds_to(PUT_KV_CONFIG)
    def put_kv_config(self, request: Request[PutKVConfigHeader, None]) -> None:
        header = request.header
        if header.namespace is None or header.key is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        try:
            self._kv.put(header.namespace, header.key, header.value)
        except DiskError as error:
            raise _not_written(error) from error

    @responds_to(GET_KV_CONFIG)
    def get_kv_config(self, request: Request[KVConfigHeader, None]) -> Reply:
        namespace, key = request.header.namespace, request.header.key
        value = self._kv.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            raise Refuse(ResponseCode.QUERY_NOT_FOUND, remark, header=GetKVConfigReply())
        return Reply(header=GetKVConfigReply(value=value))

    @responds_to(DELETE_KV_CONFIG)
    def delete_kv_config(self, request: Request[KVConfigHeader, None]) -> None:
        try:
            self._kv.delete(request.header.namespace, request.header.key)
        except DiskError as error:
            raise _not_written(error) from error

    @responds_to(GET_KVLIST_BY_NAMESPACE)
    def get_kvlist_by_namespace(self, request: Request[NamespaceHeader, None]) -> Reply:
        table = self._kv.namespace(request.header.namespace)
        if table is None:
            raise Refuse(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.header.namespace}")
        return Reply(body=KVTable(table=table))

    @responds_to(UPDATE_NAMESRV_CONFIG)
    def update_namesrv_config(self, request: Request[None, bytes]) -> None:
        self.update_config(request)

    def update_config(self, request: Request[None, bytes]) -> None:
        """Change the keys that a request's body has."""
        if not request.body:
            return
        try:
            values = decode_properties(request.body, f"request of {request.channel.peer}")
        except ConfigError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        if refused := self._settings.black_listed(values):
            is_path = not PATH_KEYS.isdisjoint(refused)
            raise Refuse(ResponseCode.NO_PERMISSION, PATH_REMARK if is_path else refusal_remark(refused))
        try:
            self._settings.update(values)
        except ConfigError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except DiskError as error:
            raise _not_written(error) from error

    @responds_to(GET_NAMESRV_CONFIG)
    def get_namesrv_config(self, _: Request[None, None]) -> Reply:
        return Reply(body=self._settings.text().encode())


def _zone_asked_for(fields: Mapping[str, str]) -> str | None:
    """Return the zone of a client that asks for its own zone only, else None.  Java: ZoneRouteRPCHook"""
    zone_name = fields.get(ZONE_NAME, "")
    return zone_name if parse_boolean(fields.get(ZONE_MODE, "")) and zone_name.strip() else None


def _not_written(error: DiskError) -> Refuse:
    return Refuse(ResponseCode.SYSTEM_ERROR, f"nothing was changed: the file cannot be written: {error}")
