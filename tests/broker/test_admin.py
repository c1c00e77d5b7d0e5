"""Topics, groups, configuration and figures, as mqadmin sees and changes them."""

from __future__ import annotations

import json

import rmq
from rmq.broker.responders.refused import REFUSED
from rmq.broker.responders.topics import MAX_QUEUES
from rmq.runtime.config import parse_properties
from rmq.wire import fastjson
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand
from rmq.wire.contract import declared
from tests.broker.harness import OneBroker, OneBrokerCase, heartbeat, pull_ext, send_ext


class AdminCase(OneBrokerCase):
    def create(self, name: str, queues: int = 2, **more: str) -> RemotingCommand:
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        return self.client.ask(17, ext | more)

    def json(self, code: int, ext: dict[str, str] | None = None) -> dict[str, object]:
        answer = self.client.ask(code, ext)
        self.assertEqual(answer.code, 0, answer.remark)
        parsed = fastjson.parse((answer.body or b"{}").decode())
        assert isinstance(parsed, dict)
        return parsed


class TopicTests(AdminCase):
    def test_create_change_and_restart(self) -> None:
        """A topic is there at once, can be changed, and is there after a kill."""
        self.assertEqual(self.create("T").code, 0)
        self.assertEqual(self.create("T", 3, perm="4").code, 0)
        self.one.node.kill()
        self.one.start()
        topic = self.one.service.topics.get("T")
        assert topic is not None
        self.assertEqual((topic.read_queue_nums, topic.write_queue_nums, topic.perm), (3, 3, 4))

    def test_refusals(self) -> None:
        """System topics, impossible names and numbers are refused by name."""
        for name, text in (
            ("TBW102", "The topic[TBW102] is conflict with system topic."),
            ("broker-a", "The topic[broker-a] is conflict with system topic."),
            ("a b", "illegal characters"),
            ("", "blank"),
        ):
            answer = self.create(name)
            self.assertEqual(answer.code, 1)
            self.assertIn(text, answer.remark or "")
        for queues in (-1, MAX_QUEUES + 1):
            answer = self.create("T", queues)
            self.assertIn(f"readQueueNums={queues}", answer.remark or "")
        self.assertIsNone(self.one.service.topics.get("T"))

    def test_filter_types(self) -> None:
        """Apache's two filter types are taken; another one is refused, before the name is looked at."""
        for filter_type in ("FOO", "", "single_tag"):
            for name in ("T", "TBW102"):
                answer = self.create(name, topicFilterType=filter_type)
                self.assertEqual((answer.code, answer.remark), (1, f"topicFilterType = [{filter_type}] value invalid"))
        self.assertIsNone(self.one.service.topics.get("T"))
        for filter_type in ("SINGLE_TAG", "MULTI_TAG"):
            self.assertEqual(self.create("T", topicFilterType=filter_type).code, 0)
            config = self.one.service.topics.get("T")
            assert config is not None
            self.assertEqual(config.topic_filter_type, filter_type)

    def test_delete(self) -> None:
        """A deleted topic takes its messages and offsets along; made anew it begins at 0."""
        self.create("T")
        self.client.ask(310, send_ext("T"))
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
        self.assertEqual(self.client.ask(215, {"topic": "T"}).code, 0)
        self.assertEqual(self.client.ask(11, pull_ext("T")).code, 17)
        self.assertEqual(self.json(300, {"topic": "T"}), {"groupList": []})
        self.create("T")
        self.assertEqual(self.client.ask(30, {"topic": "T", "queueId": "0"}).ext_fields["offset"], "0")
        self.assertEqual(self.client.ask(215, {"topic": "Unknown"}).code, 0)
        self.assertEqual(self.client.ask(215, {"topic": "TBW102"}).code, 1)

    def test_stats_of_an_empty_topic(self) -> None:
        """All queues of a brand-new topic are listed; tools wait for that."""
        self.create("T", 2)
        table = self.json(202, {"topic": "T"})["offsetTable"]
        assert isinstance(table, dict)
        self.assertEqual(list(table.values()), [{"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}] * 2)
        answer = self.client.ask(202, {"topic": "Nope"})
        self.assertEqual((answer.code, answer.remark), (17, "topic[Nope] not exist"))

    def test_system_topics(self) -> None:
        """exportMetadata leaves these out."""
        topics = self.json(305)["topicList"]
        assert isinstance(topics, list)
        self.assertTrue({"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= set(topics))


class GroupTests(AdminCase):
    def test_create_and_delete(self) -> None:
        """Groups are kept with what they were given; deleted with their offsets if asked for."""
        self.client.ask(200, {}, b'{"groupName":"G","retryMaxTimes":3}')
        self.client.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "4"})
        table = self.json(201)["subscriptionGroupTable"]
        assert isinstance(table, dict)
        self.assertEqual(table["G"]["retryMaxTimes"], 3)
        self.client.ask(207, {"groupName": "G"})
        self.assertIsNone(self.one.service.groups.get("G"))
        self.assertEqual(self.one.service.offsets.query("G", "T", 0), 4)
        self.client.ask(207, {"groupName": "G", "removeOffset": "true"})
        self.assertIsNone(self.one.service.offsets.query("G", "T", 0))


class FiveTests(AdminCase):
    """What mqadmin and clients of 5.x ask besides."""

    def test_one_topic_and_one_group(self) -> None:
        """351 and 352 show one entry of the tables; an unknown topic is refused in 5.3.3's words, a group is made."""
        self.create("T", 3)
        shown = self.json(351, {"topic": "T", "lo": "false"})
        self.assertEqual((shown["topicName"], shown["readQueueNums"], shown["perm"]), ("T", 3, 6))
        answer = self.client.ask(351, {"topic": "Nope"})
        self.assertEqual((answer.code, answer.remark), (17, "No topic in this broker. topic: Nope"))
        self.assertEqual(self.json(352, {"group": "G"})["groupName"], "G")
        self.assertIsNotNone(self.one.service.groups.get("G"))
        answer = self.client.ask(352, {"group": "a b"})
        self.assertEqual((answer.code, answer.remark), (26, "No group in this broker"))

    def test_what_a_group_consumes(self) -> None:
        """343 lists the topics with offsets of a group, 345 its subscription while members are connected."""
        self.client.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"})
        self.client.ask(34, {}, heartbeat("me", "G", "T"))
        self.assertEqual(
            self.json(343, {"group": "G"}), {"brokerAddr": self.one.service.setup.address, "topicList": ["T"]}
        )
        self.assertEqual(self.json(343, {"group": "nobody"})["topicList"], [])
        shown = self.json(345, {"group": "G", "topic": "T"})
        data = shown.pop("subscriptionData")
        assert isinstance(data, dict)
        self.assertEqual((shown, data["subString"], data["topic"]), ({"group": "G", "topic": "T"}, "*", "T"))
        for ext in ({"group": "G", "topic": "U"}, {"group": "nobody", "topic": "T"}):
            self.assertEqual(self.json(345, ext), ext)

    def test_lists(self) -> None:
        """18 and 225 keep several topics and groups; one bad topic refuses all."""
        topics = b'{"topicConfigList":[{"topicName":"A","readQueueNums":1,"writeQueueNums":1},{"topicName":"%s"}]}'
        answer = self.client.ask(18, {}, topics % b"TBW102")
        self.assertEqual((answer.code, answer.remark), (1, "The topic[TBW102] is conflict with system topic."))
        self.assertIsNone(self.one.service.topics.get("A"))
        self.assertEqual(self.client.ask(18, {}, topics % b"B").code, 0)
        found = [self.one.service.topics.get(name) for name in "AB"]
        self.assertEqual([config and config.write_queue_nums for config in found], [1, 16])
        groups = b'{"groupConfigList":[{"groupName":"G1"},{"groupName":"G2","retryMaxTimes":3}]}'
        self.assertEqual(self.client.ask(225, {}, groups).code, 0)
        kept = [self.one.service.groups.get(name) for name in ("G1", "G2")]
        self.assertEqual([config and config.retry_max_times for config in kept], [16, 3])
        for code in (18, 225):
            self.assertEqual(self.client.ask(code).code, 1)


class SlaveTests(AdminCase):
    values = {"brokerRole": "SLAVE", "brokerId": "1"}

    def test_a_slave_changes_nothing(self) -> None:
        """Topics and groups of a slave are its master's."""
        for answer in (
            self.create("T"),
            self.client.ask(215, {"topic": "T"}),
            self.client.ask(200, {}, b'{"groupName":"G"}'),
            self.client.ask(207, {"groupName": "G"}),
            self.client.ask(18, {}, b'{"topicConfigList":[{"topicName":"T"}]}'),
            self.client.ask(225, {}, b'{"groupConfigList":[{"groupName":"G"}]}'),
        ):
            self.assertEqual(answer.code, 1)
            self.assertIn("from slave broker", answer.remark or "")


class ReplicationTests(AdminCase):
    def test_tables_for_slaves(self) -> None:
        """Slaves of 4.9 and 5.x find the versions that they compare."""
        self.client.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": "3", "commitOffset": "4"})
        topics = self.json(21)
        self.assertEqual(topics["mappingDataVersion"], {"counter": 0, "stateVersion": 0, "timestamp": 0})
        self.assertIn("dataVersion", topics)
        offsets = self.json(43)
        self.assertEqual(offsets["offsetTable"], {"T@G": {"3": 4}})
        self.assertIn("dataVersion", offsets)
        self.assertIn("dataVersion", self.json(201))
        self.assertEqual(self.json(45)["offsetTable"], {})

    def test_topics_on_the_vip_port(self) -> None:
        """Apache's slaves ask for topics at listenPort - 2."""
        vip = self.one.connect(10909)
        self.assertEqual(vip.ask(21).code, 0)


class ConfigTests(AdminCase):
    def test_get(self) -> None:
        """getBrokerConfig lists every key once, as properties that can be loaded again."""
        answer = self.client.ask(26)
        values = parse_properties((answer.body or b"").decode(), "answer")
        self.assertEqual((values["brokerName"], values["brokerId"], values["listenPort"]), ("broker-a", "0", "10911"))
        self.assertEqual(values["clientCallbackExecutorThreads"], "4")
        self.assertIn("filterServerNums", values)
        self.assertEqual(set(json.loads(answer.ext_fields["version"])), {"counter", "timestamp"})

    def test_update(self) -> None:
        """A change shows, counts, and is announced by a new version."""
        before = self.client.ask(26).ext_fields["version"]
        self.assertEqual(self.client.ask(25, {}, b"autoCreateTopicEnable=false\nunknownKey=1\n").code, 0)
        answer = self.client.ask(26)
        self.assertIn(b"autoCreateTopicEnable=false\n", answer.body or b"")
        self.assertNotEqual(answer.ext_fields["version"], before)
        self.assertEqual(self.client.ask(310, send_ext("New")).code, 17)

    def test_bad_updates(self) -> None:
        """What cannot be read, must not be changed or makes no sense changes nothing."""
        for body, code, text in (
            (b"\\u00zz=1", 1, "string2Properties error"),
            (b"brokerConfigPath=/x", 16, "Can not update config in black list."),
            (b"configBlackList=", 16, "Can not update config in black list."),
            (b"brokerPermission=many", 1, "brokerPermission='many'"),
        ):
            answer = self.client.ask(25, {}, body)
            self.assertEqual(answer.code, code)
            self.assertIn(text, answer.remark or "")
        self.assertEqual(self.client.ask(25).code, 0)

    def test_file(self) -> None:
        """The properties file takes the change over and keeps its other keys."""
        self.one.node.disk.write_atomic("/broker.conf", b"# mine\nbrokerName=broker-a\ndeleteWhen=05\n")
        self.one.service.settings.path = "/broker.conf"
        self.client.ask(25, {}, b"deleteWhen=06\n")
        text = self.one.node.disk.read_whole("/broker.conf").decode()
        self.assertEqual(parse_properties(text, "file"), {"brokerName": "broker-a", "deleteWhen": "06"})


class RuntimeInfoTests(AdminCase):
    #: what clusterList and brokerStatus of mqadmin 4.9.7 and 5.3.3 read, and exportMetrics copies
    NEEDED = [
        "bootTimestamp",
        "brokerActive",
        "brokerVersion",
        "brokerVersionDesc",
        "commitLogDirCapacity",
        "commitLogDiskRatio",
        "commitLogMaxOffset",
        "commitLogMinOffset",
        "consumeQueueDiskRatio",
        "dispatchBehindBytes",
        "earliestMessageTimeStamp",
        "getFoundTps",
        "getMissTps",
        "getTotalTps",
        "getTransferedTps",
        "getTransferredTps",
        "msgGetTotalTodayMorning",
        "msgGetTotalTodayNow",
        "msgGetTotalYesterdayMorning",
        "msgPutTotalTodayMorning",
        "msgPutTotalTodayNow",
        "msgPutTotalYesterdayMorning",
        "pageCacheLockTimeMills",
        "pullThreadPoolQueueCapacity",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueSize",
        "putMessageAverageSize",
        "putMessageEntireTimeMax",
        "putMessageSizeTotal",
        "putMessageTimesTotal",
        "putTps",
        "queryThreadPoolQueueCapacity",
        "queryThreadPoolQueueHeadWaitTimeMills",
        "queryThreadPoolQueueSize",
        "remainHowManyDataToFlush",
        "runtime",
        "sendThreadPoolQueueCapacity",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "sendThreadPoolQueueSize",
        "startAcceptSendRequestTimeStamp",
    ]

    def test_keys(self) -> None:
        """Every key that the tools read is there, and what they parse as a number is one."""
        self.client.ask(310, send_ext())
        self.client.ask(11, pull_ext())
        self.one.world.run_for(30)
        table = self.json(28)["table"]
        assert isinstance(table, dict)
        self.assertEqual([key for key in self.NEEDED if key not in table], [])
        for key in ("commitLogDiskRatio", "earliestMessageTimeStamp", "msgPutTotalTodayNow", "msgGetTotalTodayNow"):
            float(table[key])
        self.assertEqual((table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]), ("1", "1"))
        self.assertEqual((table["brokerVersionDesc"], table["brokerVersion"]), ("V4_9_8", "409"))
        self.assertEqual(table["rmqVersion"], rmq.__version__)
        self.assertEqual(table["runtime"], "[ 0 days, 0 hours, 0 minutes, 30 seconds ]")
        self.assertEqual(len(table["putTps"].split()), 3)

    def test_counters(self) -> None:
        """statsAll asks for counters by topic; an unknown one has Apache's answer."""
        self.client.ask(310, send_ext())
        self.assertEqual(self.client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}).code, 0)
        answer = self.client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Nope"})
        self.assertEqual((answer.code, answer.remark), (1, "The stats <TOPIC_PUT_NUMS> <Nope> not exist"))


class CleaningTests(AdminCase):
    def test_delete_expired_files(self) -> None:
        """deleteExpiredCommitLog (329): expired files go within the next rounds, though deleteWhen is hours away."""
        self.one.end()
        values = {"deleteWhen": "04", "fileReservedTime": "1", "mappedFileSizeCommitLog": "16384"}
        self.one = one = OneBroker(values)
        client = one.connect()
        while one.service.store.end_offset < 3 * 16384:
            client.ask(310, send_ext(), b"x" * 2000)
        one.node.step_clock(2 * 3600)
        one.world.run_for(60)
        self.assertEqual(one.service.store.min_phy_offset, 0)
        client = one.connect()
        self.assertEqual(client.ask(329).code, 0)
        one.world.run_for(30)
        self.assertGreater(one.service.store.min_phy_offset, 0)

    def test_clone_offsets(self) -> None:
        """314: a group gets another's committed offsets, of one topic or all that exist, and of no other."""
        self.client.ask(310, send_ext("T"))
        self.client.ask(310, send_ext("U"))
        for topic, offset in (("T", 1), ("U", 2), ("gone", 3)):
            self.client.ask(15, {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": str(offset)})
        offsets = self.one.service.offsets
        self.assertEqual(self.client.ask(314, {"srcGroup": "g", "destGroup": "h", "topic": "T"}).code, 0)
        self.assertEqual(offsets.topics_of("h"), {"T"})
        for offline in ("true", "false"):
            ext = {"srcGroup": "g", "destGroup": f"all-{offline}", "offline": offline}
            self.assertEqual(self.client.ask(314, ext).code, 0)
            self.assertEqual(offsets.topics_of(f"all-{offline}"), {"T", "U"})
        self.assertEqual((offsets.query("all-true", "T", 0), offsets.query("all-true", "U", 0)), (1, 2))


class CodeTableTests(AdminCase):
    def test_every_code_is_answered_or_refused(self) -> None:
        """No request code of the protocol is forgotten: each is answered, or refused in one table."""
        table = self.one.service.responders
        self.assertEqual(table.codes() | table._refused.keys(), frozenset(int(code) for code in RequestCode))
        self.assertEqual(table.codes() & table._refused.keys(), frozenset())

    def test_every_contract_of_the_broker_has_a_responder(self) -> None:
        """What is declared as answered by a broker is answered."""
        elsewhere = {code for code, why in REFUSED.items() if "answers this" in why}
        ours = set(declared()) & {int(code) for code in RequestCode}  # tests of the wire declare codes of their own
        not_ours = {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE}  # what a NameServer tells 5.x brokers, which ours are not
        not_ours |= {code for code in RequestCode if 1001 <= code <= 1013}  # a controller's, and those of its brokers
        forgotten = ours - self.one.service.responders.codes() - {int(code) for code in elsewhere} - not_ours
        self.assertEqual(forgotten, set())

    def test_refusals_say_why(self) -> None:
        """A refused code answers 3 and, where Apache would have answered, why."""
        answer = self.client.ask(105, {})
        self.assertEqual(
            (answer.code, answer.remark), (3, " request type 105 not supported: a NameServer answers this")
        )
        self.assertEqual(self.client.ask(13, {}).remark, " request type 13 not supported")
