"""
What a NameServer answers, one method per request code.

Java: DefaultRequestProcessor, and of 5.x ClientRequestProcessor
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.namesrv.kvconfig import KVConfig
from rmq.namesrv.production import ProductionRoutes
from rmq.namesrv.routes import SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB, RouteTable
from rmq.namesrv.settings import Settings
from rmq.namesrv.turns import Turns
from rmq.remoting.access import refusal_remark
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms, steady_ms
from rmq.runtime.config import ConfigError, decode_properties
from rmq.runtime.disk import DiskError
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, KVTable
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

#: Senders from this version on (V4_9_4) read standard JSON.
STRICT_JSON_SINCE = 401
#: 5.x: extFields beside the header; a broker's zone, and a client that wants the brokers of its own zone only
ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"
#: registrations of this size, a thousand topics or so, take turns, two each: 3 ms and more
LARGE_BODY_BYTES = 128 * 1024
_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


def no_route_remark(topic: str | None) -> str:
    """Return what a look-up without result is told; clients go by the code."""
    return f"No topic route info in name server for the topic: {'null' if topic is None else topic}{_FAQ}"


def encode_route(route: TopicRouteData, *, strict: bool) -> bytes:
    """
    Return a route as Apache writes it: broker ids as bare keys, or quoted and all in ASCII when ``strict``.

    Java: ClientRequestProcessor#getRouteInfoByTopic
    """
    return fastjson.encode(route, quote_int_keys=strict)


class RouteResponders:
    """
    Route look-ups and lists: what clients and tools ask.

    ``started_ms`` is the steady time from which ``waitSecondsForService`` counts. ``production`` is asked with
    clusterTest.
    """

    def __init__(
        self,
        routes: RouteTable,
        kv: KVConfig,
        settings: Settings,
        clock: IReactorTime,
        production: ProductionRoutes | None = None,
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._settings = settings
        self._clock = clock
        self._production = production
        self.started_ms = steady_ms(clock)

    @property
    def ready(self) -> bool:
        """False while look-ups are refused because the brokers have not had the time to register."""
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
        if zone_name is not None or config.cluster_test:  # always in the old form, whatever the client reads
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
        return _topic_list(self._routes.topics())

    @responds_to(GET_TOPICS_BY_CLUSTER)
    def get_topics_by_cluster(self, request: Request[GetTopicsByClusterHeader, None]) -> Reply:
        self._refuse_disabled_list()
        return _topic_list(self._routes.topics_of_cluster(request.header.cluster))

    @responds_to(GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def get_system_topic_list(self, _: Request[None, None]) -> Reply:
        topics, broker_addr = self._routes.system_topics()
        return Reply(body=TopicList(topic_list=topics, broker_addr=broker_addr))

    @responds_to(GET_UNIT_TOPIC_LIST)
    def get_unit_topic_list(self, _: Request[None, None]) -> Reply:
        self._refuse_disabled_list()
        return _topic_list(self._routes.topics_by_flag(wanted=SYS_FLAG_UNIT))

    @responds_to(GET_HAS_UNIT_SUB_TOPIC_LIST)
    def get_has_unit_sub_topic_list(self, _: Request[None, None]) -> Reply:
        self._refuse_disabled_list()
        return _topic_list(self._routes.topics_by_flag(wanted=SYS_FLAG_UNIT_SUB))

    @responds_to(GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    def get_has_unit_sub_ununit_topic_list(self, _: Request[None, None]) -> Reply:
        self._refuse_disabled_list()
        return _topic_list(self._routes.topics_by_flag(wanted=SYS_FLAG_UNIT_SUB, unwanted=SYS_FLAG_UNIT))

    def _refuse_disabled_list(self) -> None:
        if not self._settings.namesrv.enable_topic_list:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "disable")


class BrokerResponders:
    """Registration and what goes with it: what brokers say, and what admins do to them."""

    _log = Logger()

    def __init__(self, routes: RouteTable, kv: KVConfig, settings: Settings, clock: IReactorTime, turns: Turns) -> None:
        self._routes = routes
        self._kv = kv
        self._settings = settings
        self._clock = clock
        self._turns = turns

    @responds_to(REGISTER_BROKER)
    def register_broker(self, request: Request[RegisterBrokerHeader, bytes]) -> Reply | Coroutine[Any, Any, Reply]:
        is_large = len(request.body) >= LARGE_BODY_BYTES
        # A small one must not overtake a large one of the same broker that waits for its turn.
        if is_large or self._turns.busy:
            turn = self._turns.wait(len(request.body))
            if is_large or turn is not None:
                return self._register_in_turns(turn, request)
        digest = self._digest(request)
        return self._registered(self._renew(request, digest) or self._take_in(request, self._read(request), digest))

    async def _register_in_turns(
        self, turn: Deferred[None] | None, request: Request[RegisterBrokerHeader, bytes]
    ) -> Reply:
        await self._turn_of(request, turn)
        digest = self._digest(request)
        reply = self._renew(request, digest)
        if reply is None:
            body = self._read(request)
            if len(request.body) >= LARGE_BODY_BYTES:
                # That was half of the work: look-ups that came meanwhile are answered before the other half.
                await self._turn_of(request, self._turns.wait(len(request.body), first=True))
            reply = self._take_in(request, body, digest)
        return self._registered(reply)

    async def _turn_of(self, request: Request[RegisterBrokerHeader, bytes], turn: Deferred[None] | None) -> None:
        if turn is None:
            return
        await turn
        if not request.channel.is_open:  # its end was already told to the table
            raise Refuse(ResponseCode.SYSTEM_ERROR, "the connection closed before its registration had its turn")

    def _digest(self, request: Request[RegisterBrokerHeader, bytes]) -> BodyDigest:
        return body_digest(request.body, version=request.command.version)

    def _renew(self, request: Request[RegisterBrokerHeader, bytes], digest: BodyDigest) -> RegisterBrokerReply | None:
        """Take a registration that says nothing new; None for others."""
        return self._routes.renew(
            request.header,
            digest,
            channel=request.channel,
            now_ms=now_ms(self._clock),
            steady_ms=steady_ms(self._clock),
            zone_name=request.command.ext_fields.get(ZONE_NAME),
        )

    def _read(self, request: Request[RegisterBrokerHeader, bytes]) -> RegisterBrokerBody:
        """Return what the body says; refuse one that cannot be read."""
        header, data = request.header, request.body
        if header.body_crc32 != 0 and header.body_crc32 != body_crc32(data):
            self._refused(header, request, "the checksum of its body is wrong")
            raise Refuse(ResponseCode.SYSTEM_ERROR, "crc32 not match", header=RegisterBrokerReply())
        try:
            return decode_register_body(data, compressed=header.compressed, version=request.command.version)
        except RegisterBodyError as error:
            self._refused(header, request, str(error))
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"Failed to decode RegisterBrokerBody, {error}") from error

    def _take_in(
        self, request: Request[RegisterBrokerHeader, bytes], body: RegisterBrokerBody, digest: BodyDigest
    ) -> RegisterBrokerReply:
        return self._routes.register_broker(
            request.header,
            body,
            channel=request.channel,
            now_ms=now_ms(self._clock),
            steady_ms=steady_ms(self._clock),
            zone_name=request.command.ext_fields.get(ZONE_NAME),
            digest=digest,
        )

    def _registered(self, reply: RegisterBrokerReply) -> Reply:
        return Reply(header=reply, body=self._order_topics())

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
        if request.channel.is_open:  # else its end was already told to the table, and the broker may be back
            self._unregister(request)

    def _unregister(self, request: Request[BrokerIdentityHeader, None]) -> None:
        self._routes.unregister_broker(request.header, channel=request.channel, now_ms=now_ms(self._clock))

    @responds_to(QUERY_DATA_VERSION)
    def query_data_version(self, request: Request[BrokerIdentityHeader, DataVersion]) -> Reply:
        changed, known = self._routes.query_data_version(
            request.header.broker_name,
            request.header.broker_addr,
            request.body,
            channel=request.channel,
            now_ms=now_ms(self._clock),
            steady_ms=steady_ms(self._clock),
        )
        return Reply(header=QueryDataVersionReply(changed=changed), body=known)

    @responds_to(BROKER_HEARTBEAT)
    def broker_heartbeat(self, request: Request[BrokerHeartbeatHeader, None]) -> None:
        header = request.header
        self._routes.heartbeat(
            header.broker_name,
            header.broker_addr,
            channel=request.channel,
            now_ms=now_ms(self._clock),
            steady_ms=steady_ms(self._clock),
        )

    @responds_to(WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, request: Request[BrokerNameHeader, None]) -> Reply:
        count = self._routes.wipe_write_perm(
            request.header.broker_name, peer=request.channel.peer, now_ms=now_ms(self._clock)
        )
        return Reply(header=WipeWritePermReply(wipe_topic_count=count))

    @responds_to(ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, request: Request[BrokerNameHeader, None]) -> Reply:
        count = self._routes.add_write_perm(
            request.header.broker_name, peer=request.channel.peer, now_ms=now_ms(self._clock)
        )
        return Reply(header=AddWritePermReply(add_topic_count=count))

    @responds_to(DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, request: Request[DeleteTopicInNamesrvHeader, None]) -> None:
        self._routes.delete_topic(
            request.header.topic, request.header.cluster_name, peer=request.channel.peer, now_ms=now_ms(self._clock)
        )

    @responds_to(REGISTER_TOPIC_IN_NAMESRV)
    def register_topic(self, request: Request[RegisterTopicHeader, TopicRouteData]) -> None:
        self._routes.register_topic(
            request.header.topic, request.body.queue_datas, peer=request.channel.peer, now_ms=now_ms(self._clock)
        )

    def _order_topics(self) -> KVTable | None:
        if not self._settings.namesrv.return_order_topic_config_to_broker:
            return None
        table = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return None if table is None else KVTable(table=table)

    def _refused(self, header: RegisterBrokerHeader, request: Request[RegisterBrokerHeader, bytes], why: str) -> None:
        self._log.warn(
            "registration of {broker_name} at {broker_addr} by {peer} refused: {why}",
            broker_name=header.broker_name,
            broker_addr=header.broker_addr,
            peer=request.channel.peer,
            why=why,
        )


class AdminResponders:
    """The key-value table and the configuration."""

    def __init__(self, kv: KVConfig, settings: Settings) -> None:
        self._kv = kv
        self._settings = settings

    @responds_to(PUT_KV_CONFIG)
    def put_kv_config(self, request: Request[PutKVConfigHeader, None]) -> None:
        header = request.header
        if header.namespace is None or header.key is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        try:
            self._kv.put(header.namespace, header.key, header.value)
        except DiskError as error:
            raise _unwritten(error) from error

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
            raise _unwritten(error) from error

    @responds_to(GET_KVLIST_BY_NAMESPACE)
    def get_kvlist_by_namespace(self, request: Request[NamespaceHeader, None]) -> Reply:
        table = self._kv.namespace(request.header.namespace)
        if table is None:
            raise Refuse(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.header.namespace}")
        return Reply(body=KVTable(table=table))

    @responds_to(UPDATE_NAMESRV_CONFIG)
    def update_namesrv_config(self, request: Request[None, bytes]) -> None:
        if not request.body:
            return
        try:
            values = decode_properties(request.body, f"request of {request.channel.peer}")
        except ConfigError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        if refused := self._settings.black_listed(values):
            raise Refuse(ResponseCode.NO_PERMISSION, refusal_remark(refused))
        try:
            self._settings.update(values)
        except ConfigError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except DiskError as error:
            raise _unwritten(error) from error

    @responds_to(GET_NAMESRV_CONFIG)
    def get_namesrv_config(self, _: Request[None, None]) -> Reply:
        return Reply(body=self._settings.text().encode())


def _zone_asked_for(fields: Mapping[str, str]) -> str | None:
    """Return the zone that a client wants to stay in; None when it does not care.  Java: ZoneRouteRPCHook"""
    zone_name = fields.get(ZONE_NAME, "")
    return zone_name if parse_boolean(fields.get(ZONE_MODE, "")) and zone_name.strip() else None


def _topic_list(topics: list[str]) -> Reply:
    return Reply(body=TopicList(topic_list=topics))


def _unwritten(error: DiskError) -> Refuse:
    return Refuse(ResponseCode.SYSTEM_ERROR, f"nothing was changed, because it cannot be written: {error}")
