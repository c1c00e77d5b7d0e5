"""A NameServer with its short ways answers as one without them, whatever changes between the requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv import lanes, responders
from rmq.namesrv.lanes import RouteReplies
from rmq.namesrv.routes import RouteTable
from rmq.namesrv.topology import Topology
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper, TopicQueueMappingInfo
from rmq.wire.api.register_body import RegisterBrokerBody, body_crc32, decode_register_body, encode_register_body
from rmq.wire.api.routes import QueueData, RegisterBrokerHeader, TopicRouteData
from rmq.wire.command import RemotingCommand
from rmq.wire.extfields import encode_ext
from tests.namesrv.talk import Talk
from tests.needs import IS_CAMPAIGN, need_compiled
from tests.otherclients import as_others_write
from tests.remoting.twins import PEERS, Twins
from tests.seeds import SEED

TOPICS = "T", "U", "тема", 'quo"te', "%RETRY%g", "rmq_sys_SYNC_BROKER_MEMBER_a"
NAMES, CLUSTERS, ZONES = "abc", "KL", ("", "z", "Z", "y")
ADDRS = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "127.0.0.1:1"
#: keys that may change while a NameServer runs
KEYS = (
    "orderMessageEnable",
    "supportActingMaster",
    "deleteTopicWithBrokerRegistration",
    "needWaitForService",
    "clusterTest",
    "enableTopicList",
    "enableAllTopicList",
    "returnOrderTopicConfigToBroker",
)
#: what is asked after each step, beside the routes: clusters, members, lists of topics, KV configuration
LISTS: tuple[tuple[int, dict[str, str]], ...] = (
    (106, {}),
    (206, {}),
    (304, {}),
    (311, {}),
    (312, {}),
    (313, {}),
    (219, {"namespace": "ORDER_TOPIC_CONFIG"}),
    *((224, {"cluster": cluster}) for cluster in CLUSTERS),
    *((901, {"brokerName": name, "clusterName": "K"}) for name in NAMES),
)


class Both(Twins):
    """Two NameServers; the second has no lane, and decodes each registration."""

    def __init__(self, test: SynchronousTestCase, seed: int) -> None:
        self.talks = [Talk(test.mktemp(), support_acting_master=seed % 2 == 0) for _ in range(2)]
        super().__init__(test, seed, [talk.service for talk in self.talks])
        #: registrations take turns, one less when they are known: nothing else may come between
        self.in_turns = seed % 3 == 0
        test.patch(responders, "LARGE_BODY_BYTES", 900 if self.in_turns else 1 << 20)
        # memories of look-ups are full now and then
        test.patch(lanes, "MAX_MEMO_BYTES", 9000 if seed % 4 == 0 else 1 << 20)
        test.patch(lanes, "MAX_QUESTION_BYTES", 9000 if seed % 4 == 1 else 1 << 20)
        vars(self.services[1].routes)["renew"] = lambda *_, **__: None
        #: look-ups in the forms of their clients; the same bytes come again, with another opaque
        self.look_ups = [self._look_up(topic) for topic in (*TOPICS, "nowhere") for _ in range(3)]
        self.registrations: list[RemotingCommand] = []
        #: of its own, so that other forms of requests do not change the history
        self._writer = random.Random(seed)

    def _look_up(self, topic: str) -> RemotingCommand:
        chance = self.chance
        ext = {"topic": topic}
        if chance.random() < 0.3:
            ext["acceptStandardJsonOnly"] = chance.choice(("true", "TRUE", "false"))
        if chance.random() < 0.15:
            ext |= {"__ZONE_MODE": chance.choice(("true", "false")), "__ZONE_NAME": chance.choice(ZONES)}
        return RemotingCommand(105, version=chance.choice((0, 400, 401, 479)), ext_fields=ext)

    def step(self) -> None:
        """One request or change, or several requests of one turn; then everything is asked."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.55:
            frames = []
            for _ in range(1 if self.in_turns else chance.choice((1, 1, 1, 3))):
                number = chance.randrange(PEERS)
                pair = self.request(), chance.choice(self.look_ups)
                # a look-up behind a registration is answered before its last turn, of which a known one has none
                is_late = self.in_turns and pair[0].code == 103
                frames += [self._frame(number, command) for command in (pair[::-1] if is_late else pair)]
            self.deliver(*frames)
        elif kind < 0.58:
            self.reconnect(chance.randrange(PEERS))
        elif kind < 0.65:
            self.wait(chance.choice((0.0, 1.0, 20.0, 29.0, 31.0, 121.0)))
        self.settle()
        self.compare()
        # the same bytes twice: the first may be learned, the second is known
        number = chance.randrange(PEERS)
        asked = chance.sample(self.look_ups, k=8)
        for _ in range(2):
            self.deliver(*((number, self.encode(number, command)) for command in asked))
            self.compare()
        if kind < 0.65:
            lists = (RemotingCommand(code, version=409, ext_fields=ext) for code, ext in LISTS)
            self.deliver(*((number, self.encode(number, command)) for command in lists))
            self.compare()
        left, right = map(_tables, self.talks)
        self.same(left, right, "tables")

    def _frame(self, number: int, command: RemotingCommand) -> tuple[int, bytes]:
        self.encode(number, command)
        return number, as_others_write(self._writer, command)

    def wait(self, seconds: float) -> None:
        self.history.append(f"wait {seconds}")
        for talk in self.talks:
            talk.reactor.advance(seconds)
            talk.service._expire()
        for number, (peer, _) in enumerate(self.peers):
            if peer.is_cut:
                self.compare()
                self.reconnect(number)

    def settle(self) -> None:
        """Let registrations that take turns end."""
        for talk in self.talks:
            while talk.service._turns._taken:
                talk.reactor.advance(0)

    # requests

    def request(self) -> RemotingCommand:
        chance = self.chance
        kind = chance.choices(
            (self.register, self.again, self.unregister, self.sign_of_life, self.by_admin, self.order, self.configure),
            (30, 25, 3, 8, 20, 5, 5),
        )[0]
        return kind()

    def register(self) -> RemotingCommand:
        chance = self.chance
        version = chance.choice((30, 409, 409, 413, 479))
        configs = {}
        for topic in chance.sample(TOPICS, k=chance.choice((0, 2, 3, 5))):
            read, perm, flag = (4, 6, 0) if chance.random() < 0.7 else chance.choice(((1, 6, 0), (4, 4, 1), (4, 2, 3)))
            configs[topic] = TopicConfig(
                topic_name=topic, read_queue_nums=read, write_queue_nums=4, perm=perm, topic_sys_flag=flag
            )
        mappings = {}
        if version >= 413 and chance.random() < 0.3:
            mappings = {
                topic: TopicQueueMappingInfo(topic=topic, curr_id_map={0: chance.randrange(3)}, total_queues=4)
                for topic in configs
            }
        data_version = DataVersion(
            counter=chance.choice((1, 1, 2)), timestamp=7, state_version=chance.choice((0, 0, 0, 1))
        )
        wrapper = TopicConfigWrapper(
            data_version=data_version, topic_config_table=configs, topic_queue_mapping_info_map=mappings
        )
        servers = chance.choice(([], [], ["10.0.0.9:1"]))
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=servers)
        compressed = 30 < version < 413 and chance.random() < 0.3
        data = fastjson.encode(wrapper) if version == 30 else encode_register_body(body, compressed=compressed)
        name, addr, cluster, broker_id = self._place()
        header = RegisterBrokerHeader(
            broker_name=name,
            broker_addr=addr,
            cluster_name=cluster,
            ha_server_addr=chance.choice(("ha:1", "ha:1", "ha:2")),
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=chance.choice((0, *[body_crc32(data)] * 10, 5)),
        )
        if version >= 413:
            header.heartbeat_timeout_millis = chance.choice((None, 30_000, 0))
            header.enable_acting_master = chance.choice((None, True, True, False))
        ext = encode_ext(header)
        if chance.random() < 0.2:
            ext["__ZONE_NAME"] = chance.choice(ZONES)
        command = RemotingCommand(103, version=version, ext_fields=ext, body=data)
        self.registrations.append(command)
        return command

    def _place(self) -> tuple[str, str, str, int]:
        """Return name, address, cluster and id of a broker, mostly of one that has registered before."""
        chance = self.chance
        if self.registrations and chance.random() < 0.7:
            ext = chance.choice(self.registrations[-6:]).ext_fields
            return ext["brokerName"], ext["brokerAddr"], ext["clusterName"], int(ext["brokerId"])
        return chance.choice(NAMES), chance.choice(ADDRS), chance.choice(CLUSTERS), chance.choice((0, 0, 0, 1, 2))

    def again(self) -> RemotingCommand:
        """Return a registration that was sent before, now and then with one field of its header changed."""
        chance = self.chance
        if not self.registrations:
            return self.register()
        before = chance.choice(self.registrations[-6:])
        ext = dict(before.ext_fields)
        if before.version >= 413 and chance.random() < 0.15:
            return self._other_mappings(before)
        if chance.random() < 0.3:
            ext |= chance.choice(
                (
                    {"haServerAddr": "ha:3"},
                    {"brokerId": "1"},
                    {"clusterName": "L"},
                    {"__ZONE_NAME": "z"},
                    {"enableActingMaster": "true"},
                    {"enableActingMaster": "false"},
                )
            )
        return RemotingCommand(103, version=before.version, ext_fields=ext, body=before.body)

    def _other_mappings(self, before: RemotingCommand) -> RemotingCommand:
        """Return a registration in which only the parts of static topics are other ones."""
        assert before.body is not None
        body = decode_register_body(before.body, compressed=False, version=before.version)
        wrapper = body.topic_config_serialize_wrapper
        wrapper.data_version.counter += 1
        wrapper.topic_queue_mapping_info_map = {
            topic: TopicQueueMappingInfo(topic=topic, curr_id_map={0: self.chance.randrange(9)}, total_queues=4)
            for topic in wrapper.topic_config_table
        }
        ext = {**before.ext_fields, "bodyCrc32": "0"}
        return RemotingCommand(103, version=before.version, ext_fields=ext, body=encode_register_body(body))

    def _identity(self) -> dict[str, str]:
        ext = self.again().ext_fields
        return {key: ext[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}

    def unregister(self) -> RemotingCommand:
        return RemotingCommand(104, version=409, ext_fields=self._identity())

    def sign_of_life(self) -> RemotingCommand:
        ext = self._identity()
        if self.chance.random() < 0.5:
            return RemotingCommand(904, version=479, ext_fields=ext)
        body = fastjson.encode(DataVersion(counter=self.chance.choice((1, 2)), timestamp=7, state_version=0))
        return RemotingCommand(322, version=409, ext_fields=ext, body=body)

    def by_admin(self) -> RemotingCommand:
        chance = self.chance
        name, topic = chance.choice(NAMES), chance.choice(TOPICS)
        code = chance.choice((205, 327, 216, 217))
        if code == 216:
            ext = {"topic": topic} | chance.choice(({}, {"clusterName": chance.choice(CLUSTERS)}))
            return RemotingCommand(216, version=409, ext_fields=ext)
        if code == 217:
            queue = QueueData(broker_name=name, perm=6, read_queue_nums=2, topic_sys_flag=0, write_queue_nums=2)
            body = fastjson.encode(TopicRouteData(broker_datas=[], filter_server_table={}, queue_datas=[queue]))
            return RemotingCommand(217, version=479, ext_fields={"topic": topic}, body=body)
        return RemotingCommand(code, version=409, ext_fields={"brokerName": name})

    def order(self) -> RemotingCommand:
        ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": self.chance.choice(TOPICS)}
        if self.chance.random() < 0.5:
            return RemotingCommand(102, version=409, ext_fields=ext)
        return RemotingCommand(100, version=409, ext_fields=ext | {"value": self.chance.choice(("a:4", "b:2;a:1"))})

    def configure(self) -> RemotingCommand:
        key, value = self.chance.choice(KEYS), self.chance.choice(("true", *["false"] * 4))
        return RemotingCommand(318, version=409, body=f"{key}={value}".encode())


def _tables(talk: Talk) -> object:
    """Return what no request asks for: live brokers, events and counts."""
    service = talk.service
    brokers = [
        [live.key, live.broker_id, live.peer, live.last_update_ms, live.expiry_ms, live.data_version, live.generation]
        for live in service.routes.live_brokers()
    ]
    stats = service.responders.stats
    return brokers, service.journal.log.recent(50), stats.counts, stats.refusals


class LanesAndChangesTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.namesrv._lanes", "rmq.remoting._fastpath")

    def test_same_history(self) -> None:
        """Look-ups, lists, replies to brokers, live brokers, events and counts are the same on both."""
        for seed in range(SEED, SEED + HISTORIES):
            replay(self, seed)

    def test_planted_differences(self) -> None:
        """A change that a short way does not notice is found, whichever it is."""
        for where, name, fault, seed in FAULTS:
            patch = self.patch(where, name, fault(getattr(where, name)))
            self.assertTrue(any(differs(self, seed) for seed in (seed, *range(60))), name)
            patch.restore()


def without_touch(method: Callable[..., Any]) -> Callable[..., Any]:
    """A change of the routes that counts as none."""

    def change(topology: Topology, *args: Any, **kwargs: Any) -> Any:
        touch = vars(topology)["touch"] = lambda *_: None
        try:
            return method(topology, *args, **kwargs)
        finally:
            if vars(topology).get("touch") is touch:
                del vars(topology)["touch"]

    return change


def of_one_dialect(drop: Callable[[RouteReplies, str], None]) -> Callable[[RouteReplies, str], None]:
    """A change drops an answer in old JSON only."""

    def faulty(replies: RouteReplies, topic: str) -> None:
        kept = replies._memo.get((topic, True))
        drop(replies, topic)
        if kept is not None:
            replies._memo[topic, True] = kept

    return faulty


def of_any_header(renew: Callable[..., Any]) -> Callable[..., Any]:
    """A registration with a known body is a known one."""

    def faulty(table: RouteTable, header: RegisterBrokerHeader, *args: Any, **kwargs: Any) -> Any:
        live = table._live.get((header.broker_name, header.broker_addr))
        return renew(table, header if live is None else live.header, *args, **kwargs)

    return faulty


#: what is made wrong, and a seed that finds it
FAULTS: tuple[tuple[Any, str, Callable[[Any], Any], int], ...] = (
    (Topology, "set_addr", without_touch, 0),
    (Topology, "remove_addr", without_touch, 14),
    (Topology, "set_filter_servers", without_touch, 0),
    (Topology, "set_zone", without_touch, 0),
    (Topology, "add_topics", without_touch, 4),
    (Topology, "set_mappings", without_touch, 6),
    (Topology, "remove_topic", without_touch, 8),
    (Topology, "change_perms", without_touch, 2),
    (RouteTable, "_forget_digests", lambda _: lambda *_: None, 5),
    (RouteTable, "renew", of_any_header, 1),
    (RouteReplies, "_drop", of_one_dialect, 4),
    (lanes, "is_plain_config", lambda _: lambda _: True, 1),
)

HISTORIES = 300 if IS_CAMPAIGN else 4
STEPS = 100


def replay(test: SynchronousTestCase, seed: int) -> None:
    """Play a random history on both NameServers."""
    both = Both(test, seed)
    for _ in range(STEPS):
        both.step()


def differs(test: SynchronousTestCase, seed: int) -> bool:
    try:
        replay(test, seed)
    except test.failureException:
        return True
    return False
