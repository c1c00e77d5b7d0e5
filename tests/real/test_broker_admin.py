"""
``mqadmin`` 4.9.7 and 5.3.3 ask an Apache broker of their version and ours the same, and print the same.

Both clusters have the same topics, messages, groups and offsets, made by the same bytes. What must differ (addresses,
times, folders) is given one name first, and what Java's HashMap puts in any order is sorted. Differences that we mean
are in INTENDED, with the reason; docs/compatibility.md has them too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path

import attrs
import pytest

from tests.real.campaigns import campaign_only
from tests.real.conftest import Clients
from tests.real.javaclient import JavaAdmin, JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, STAND_IN, Broker, Process, Site, until
from tests.real.probe import fastjson
from tests.real.test_namesrv_admin import STEPS as NAMESRV_STEPS
from tests.real.test_namesrv_admin import Step, as_failure, as_lines, as_sorted_lines

TOPIC, GROUP, ONLINE = "Orders", "orders-group", "online-group"
QUEUES, MESSAGES = 4, 12
#: ids as clients make them: address, process, class loader, time and number in hexadecimal
UNIQUE = "7F0000010001000000010000000000%02X"

_NAMES = [
    (r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:.]\d+)?", "TIME"),
    (r"@\d+#\d+", "@PROCESS"),
    (r"(?<!\.)\b1[5-9]\d{11}\b", "MILLIS"),
    (r"127\.0\.0\.1:\d+", "PEER"),
    (r"Consume TPS: [\d.]+", "Consume TPS: RATE"),
    (r"(?<=[tT]ps\":)[\d.E-]+", "RATE"),
    # others write to the disk, too
    (r"(?<=DiskRatio\":\")[\d.]+", "SHARE"),
    (r"V(4_9_[78]|5_3_3)\b", "VERSION"),
    (r"(?<=brokerVersion )( *): 40[79]", r"\1: VERSION"),
    (r"/tmp/rocketmq/msgbodys/", "BODIES/"),
    (r"\[ \d+ days, .* seconds \]", "RUNTIME"),
    (r"See https?://rocketmq\.apache\.org/\S+ for", "See FAQ for"),
]


def as_status(text: str) -> list[str]:
    """Keep the names of brokerStatus, and the values that do not depend on the moment."""
    kept = re.compile(
        r"commitLogM..Offset|dispatchBehindBytes|putMessageFailedTimes|putMessageTimesTotal|putMessageSizeTotal|"
        r"msgPutTotal|scheduleMessageOffset|QueueCapacity|Morning|QueueSize|startAcceptSendRequest"
    )
    found = []
    for line in as_lines(text):
        name, _, value = line.replace("BROKER ", "").partition(":")
        found.append(f"{name.strip()}: {value.strip() if kept.search(name) else '...'}")
    return sorted(found)


def as_metadata(text: str) -> list[str]:
    """Mask the versions of tables: our broker counts the making of its own groups, Apache's does not."""
    return sorted(re.sub(r'"counter":\d+', '"counter":N', line) for line in as_lines(text))


def as_metrics(text: str) -> list[str]:
    """Mask the mean size: it contains Apache's message about an offset out of range."""
    return sorted(re.sub(r'"messageAverageSize":"[\d.]+"', '"messageAverageSize":N', line) for line in as_lines(text))


def without_spaces(text: str) -> list[str]:
    return [" ".join(line.split()) for line in as_lines(text)]


def sorted_rows(text: str) -> list[str]:
    return sorted(without_spaces(text))


def without_numbers(text: str) -> list[str]:
    """Keep the form of what depends on the moment: rates, times, ids of new messages, queues drawn by lot."""
    lines = (" ".join(line.split()) for line in as_failure(text))
    return sorted(re.sub(r"\b[0-9A-F]{32}\b|BROKER-ID\w+|\d+(\.\d+)?", "N", line) for line in lines)


BOTH = [
    Step("statsAll", "-a", without_numbers),
    Step("statsAll", f"-t {TOPIC}", without_numbers),
    Step("statsAll", "", without_numbers),
    Step("updateTopic", "-b {broker} -t Made -r 3 -w 2", without_spaces),
    Step("updateTopic", "-c DefaultCluster -t MadeInCluster -r 8 -w 8 -p 6 -o true", sorted_rows),
    Step("updateTopic", "-b {broker} -t bad*name -r 8 -w 8"),
    Step("updateTopic", "-b {broker} -t TBW102 -r 8 -w 8"),
    Step("updateTopic", "-c nowhere -t Made"),
    Step("updateTopicPerm", "-b {broker} -t Made -p 4", without_spaces),
    Step("updateTopicPerm", "-b {broker} -t Made -p 4", without_spaces),
    Step("updateTopicPerm", "-c DefaultCluster -t Made -p 6", without_spaces),
    Step("updateTopicPerm", "-c DefaultCluster -t NoSuchTopic -p 6", without_spaces),
    Step("topicStatus", f"-t {TOPIC}", sorted_rows),
    Step("updateTopic", "-b {broker} -t MoreToRead -r 3 -w 2", without_spaces),
    Step("topicStatus", "-t MoreToRead", sorted_rows),
    Step("topicStatus", "-t NoSuchTopic"),
    Step("topicRoute", "-t Made -l", sorted_rows),
    Step("topicClusterList", "-t Made", sorted_rows),
    Step("topicList", "", as_sorted_lines),
    Step("topicList", "-c", sorted_rows),
    Step("allocateMQ", f"-t {TOPIC} -i 10.0.0.1,10.0.0.2", sorted_rows),
    Step("updateSubGroup", f"-b {{broker}} -g {GROUP} -s true -r 5 -q 2", without_spaces),
    Step("updateSubGroup", "-c DefaultCluster -g other-group -d false -m true", without_spaces),
    Step("updateSubGroup", "-c nowhere -g other-group"),
    Step("getConsumerConfig", f"-g {GROUP}", sorted_rows),
    Step("consumerProgress", f"-g {GROUP}", sorted_rows),
    Step("consumerProgress", f"-g {GROUP} -s true", sorted_rows),
    Step("consumerProgress", f"-g {ONLINE}", sorted_rows),
    Step("consumerProgress", "-g nobody"),
    Step("consumerProgress", "", sorted_rows),
    Step("consumerConnection", f"-g {ONLINE}", sorted_rows),
    Step("consumerConnection", f"-g {ONLINE} -b {{broker}}", sorted_rows),
    Step("consumerConnection", f"-g {GROUP}"),
    Step("producerConnection", f"-g client-producer -t {TOPIC}", sorted_rows),
    Step("producerConnection", f"-g nobody -t {TOPIC}"),
    Step("producer", "-b {broker}", sorted_rows),
    Step("consumerStatus", f"-g {ONLINE}", sorted_rows),
    Step("consumerStatus", f"-g {ONLINE} -b {{broker}}", sorted_rows),
    Step("consumerStatus", f"-g {GROUP}"),
    Step("consumerStatus", f"-g {ONLINE} -i nobody"),
    Step("brokerConsumeStats", "-b {broker}", sorted_rows),
    Step("brokerConsumeStats", "-b {broker} -l 3 -o true", sorted_rows),
    Step("clusterList", "-m", sorted_rows),
    Step("clusterList", "", without_numbers),
    Step("brokerStatus", "-b {broker}", as_status),
    Step("brokerStatus", "-c DefaultCluster", as_status),
    Step("getBrokerConfig", "-b {broker}", as_sorted_lines),
    Step("getBrokerConfig", "-c DefaultCluster", as_sorted_lines),
    Step("updateBrokerConfig", "-b {broker} -k fileReservedTime -v 100"),
    Step("updateBrokerConfig", "-c DefaultCluster -k fileReservedTime -v 72"),
    Step("updateBrokerConfig", "-b {broker} -k noSuchKey -v 1"),
    Step("updateBrokerConfig", "-b {broker} -k brokerConfigPath -v /tmp/elsewhere"),
    Step("queryMsgByKey", f"-t {TOPIC} -k key-3", sorted_rows),
    Step("queryMsgByKey", f"-t {TOPIC} -k nothing", sorted_rows),
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -i {UNIQUE % 3}", without_spaces),
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -i {UNIQUE % 99}"),
    Step("queryMsgByOffset", f"-t {TOPIC} -b broker-a -i 1 -o 1", without_spaces),
    Step("queryMsgTraceById", f"-i {UNIQUE % 3}"),
    Step("printMsg", f"-t {TOPIC}", sorted_rows),
    Step("printMsg", f"-t {TOPIC} -s TagA", sorted_rows),
    Step("printMsgByQueue", f"-t {TOPIC} -a broker-a -i 1 -p true -d true -f true", sorted_rows),
    Step("consumeMessage", f"-t {TOPIC} -b broker-a -i 1 -o 0 -c 2", sorted_rows),
    Step("consumeMessage", f"-t {TOPIC} -g reader-group -c 3", sorted_rows),
    Step("queryCq", f"-t {TOPIC} -q 1 -i 0 -c 2 -b {{broker}}", without_spaces),
    Step("queryCq", f"-t {TOPIC} -q 1 -i 0 -c 2 -b {{broker}} -g {ONLINE}", without_spaces),
    Step("queryCq", f"-t {TOPIC} -q 1 -i 50 -c 2 -b {{broker}}", without_spaces),
    Step("queryCq", "-t NoSuchTopic -q 1 -i 0 -c 2 -b {broker}"),
    Step("updateSubGroup", "-b {broker} -g cloned-group", without_spaces),
    Step("updateTopic", "-b {broker} -t %RETRY%cloned-group -r 1 -w 1", without_spaces),
    Step("cloneGroupOffset", f"-s {GROUP} -d cloned-group -t {TOPIC} -o true", sorted_rows),
    Step("consumerProgress", "-g cloned-group", sorted_rows),
    Step("resetOffsetByTime", f"-g {GROUP} -t {TOPIC} -s 0", sorted_rows),
    Step("consumerProgress", f"-g {GROUP}", sorted_rows),
    Step("skipAccumulatedMessage", f"-g {GROUP} -t {TOPIC}", sorted_rows),
    Step("consumerProgress", f"-g {GROUP}", sorted_rows),
    Step("resetOffsetByTime", "-g nobody -t NoSuchTopic -s now"),
    Step("sendMessage", "-t Made -p hello -k sent-key -c TagA -b broker-a -i 1", without_numbers),
    Step("sendMessage", "-t Made -p hello -i 9"),
    Step("sendMsgStatus", "-b broker-a -s 64 -c 3", without_numbers),
    Step("checkMsgSendRT", "-t Made -a 4 -s 64", without_numbers),
    # The interval ends it after one round: it cannot sleep that long.
    Step("clusterRT", "-c DefaultCluster -a 3 -s 16 -i -1", without_numbers),
    Step("cleanExpiredCQ", "-b {broker}"),
    Step("cleanExpiredCQ", "-c DefaultCluster"),
    Step("deleteExpiredCommitLog", "-b {broker}"),
    Step("deleteExpiredCommitLog", "-c DefaultCluster"),
    Step("cleanUnusedTopic", "-b {broker}"),
    Step("cleanUnusedTopic", "-c DefaultCluster"),
]

ONLY_4 = [
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -i {UNIQUE % 3} -a", without_spaces),
    Step("queryMsgById", "-i {message}", without_spaces),
    Step("queryMsgById", "-i {message} -g online-group -d nobody"),
    Step("queryMsgById", "-i 7F00000100002A9F00000000000F0000"),
    Step("clusterAclConfigVersion", "-b {broker}"),
    Step("getAclConfig", "-b {broker}"),
    Step("updateAclConfig", "-b {broker} -a account1 -s 12345678"),
    Step("deleteAclConfig", "-b {broker} -a account1"),
    Step("updateGlobalWhiteAddr", "-b {broker} -g 10.0.0.*"),
    Step("cloneGroupOffset", f"-s {GROUP} -d no-group -t {TOPIC} -o true", sorted_rows),
]

ONLY_5 = [
    Step("queryMsgById", f"-t {TOPIC} -i {{message}}", without_spaces),
    Step("queryMsgById", f"-t {TOPIC} -c DefaultCluster -i {{message}}", without_spaces),
    Step("queryMsgById", f"-t {TOPIC} -i {{message}} -g online-group -d nobody"),
    Step("queryMsgById", f"-t {TOPIC} -i 7F00000100002A9F00000000000F0000"),
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -i {UNIQUE % 3} -a", without_spaces),
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -c DefaultCluster -i {UNIQUE % 3}", without_spaces),
    Step("queryMsgByKey", f"-t {TOPIC} -k key-3 -c DefaultCluster -m 1", sorted_rows),
    Step("queryMsgTraceById", f"-i {UNIQUE % 3} -t NoSuchTopic"),
    Step("topicStatus", f"-t {TOPIC} -c DefaultCluster", sorted_rows),
    Step("consumerProgress", f"-g {ONLINE} -t Online", sorted_rows),
    Step("resetOffsetByTime", f"-g {GROUP} -t {TOPIC} -s now -b {{broker}} -q 1 -o 2", sorted_rows),
    Step("consumerProgress", f"-g {GROUP}", sorted_rows),
    Step("haStatus", "-b {broker}", without_spaces),
    Step("haStatus", "-c DefaultCluster", without_spaces),
    Step("updateTopicList", "-b {broker} -f {lists}/topics.json"),
    Step("topicStatus", "-t Listed", sorted_rows),
    Step("updateSubGroupList", "-b {broker} -f {lists}/groups.json"),
    Step("cloneGroupOffset", f"-s {GROUP} -d no-group -t {TOPIC} -o true", sorted_rows),
]

#: the last steps: what they make or delete is not asked for any more
LAST = [
    Step("deleteSubGroup", "-b {broker} -g other-group", without_spaces),
    Step("deleteSubGroup", f"-c DefaultCluster -g {GROUP} -r true", without_spaces),
    Step("exportConfigs", "-c DefaultCluster -f {folder}", as_sorted_lines),
    Step("exportMetadata", "-c DefaultCluster -f {folder}", as_metadata),
    Step("exportMetadata", "-b {broker} -f {folder} -t", as_metadata),
    Step("exportMetadata", "-b {broker} -f {folder} -g -s", as_metadata),
    Step("exportMetrics", "-c DefaultCluster -f {folder}", as_metrics),
    Step("deleteTopic", "-c DefaultCluster -t Made"),
    Step("deleteTopic", "-c nowhere -t Made"),
    Step("topicStatus", "-t Made"),
]

#: 5.3.3's broker does what ours refuses
LAST_5 = [
    Step("updateTopic", "-b {broker} -t Typed -r 2 -w 2 -a +message.type=FIFO", without_spaces),
    Step("updateTopic", "-b {broker} -t Typed -r 2 -w 2 -a +nonsense=1", without_spaces),
    Step("updateSubGroup", "-b {broker} -g attributed -s true --attributes +priority.factor=3", without_spaces),
    Step("setConsumeMode", f"-b {{broker}} -t {TOPIC} -g {GROUP} -m POP"),
    Step("exportPopRecord", "-b {broker}"),
    Step("updateStaticTopic", "-t Static -qn 4 -b broker-a"),
    Step("remappingStaticTopic", f"-t {TOPIC} -b broker-a"),
    Step("addBroker", "-c {broker} -b /nowhere/broker.conf"),
    Step("removeBroker", "-c {broker} -b DefaultCluster:broker-a:0"),
    Step("resetMasterFlushOffset", "-b {broker} -o 0"),
    Step("getSyncStateSet", "-a {broker} -b broker-a"),
    Step("getBrokerEpoch", "-b broker-a"),
    Step("getControllerMetaData", "-a {broker}"),
    Step("getControllerConfig", "-a {broker}"),
    Step("updateControllerConfig", "-a {broker} -k key -v value"),
    Step("electMaster", "-a {broker} -b 0 -bn broker-a -c DefaultCluster"),
    Step("cleanBrokerMetadata", "-a {broker} -b 0 -bn broker-a -c DefaultCluster"),
    Step("getColdDataFlowCtrInfo", "-b {broker}"),
    Step("updateColdDataFlowCtrGroupConfig", f"-b {{broker}} -g {GROUP} -v 1"),
    Step("removeColdDataFlowCtrGroupConfig", f"-b {{broker}} -g {GROUP}"),
    Step("setCommitLogReadAheadMode", "-b {broker} -m 0"),
    Step("createUser", "-b {broker} -u user -p 12345678"),
    Step("updateUser", "-b {broker} -u user -p 87654321"),
    Step("deleteUser", "-b {broker} -u user"),
    Step("getUser", "-b {broker} -u user"),
    Step("listUser", "-b {broker}"),
    Step("copyUser", "-f {broker} -t {broker} -u user"),
    Step("createAcl", "-b {broker} -s User:user -r Topic:Orders -a Pub -d ALLOW"),
    Step("updateAcl", "-b {broker} -s User:user -r Topic:Orders -a Pub -d ALLOW"),
    Step("deleteAcl", "-b {broker} -s User:user"),
    Step("getAcl", "-b {broker} -s User:user"),
    Step("listAcl", "-b {broker}"),
    Step("copyAcl", "-f {broker} -t {broker} -s User:user"),
    Step("rocksDBConfigToJson", "-c DefaultCluster -b {broker} -t topics"),
    Step("checkRocksdbCqWriteProgress", f"-c DefaultCluster -t {TOPIC}"),
]

STEPS = {APACHE_4: [*BOTH, *ONLY_4, *LAST], APACHE_5: [*BOTH, *ONLY_5, *LAST, *LAST_5]}

#: 5.3.3's keep their client in a field that a second use in one JVM finds shut down
ONCE = {"queryMsgByUniqueKey"}

#: what prints nothing, but watches consumers for ever and writes to a log
SILENT = "startMonitoring"

#: keys of 4.9.7's configuration with another value, or without one, in ours
OTHER_KEYS = re.compile(r"\w+ThreadPoolNums |bitMapLengthConsumeQueueExt |isEnableBatchPush ")


def lacks_nothing(apache: list[str], ours: list[str]) -> bool:
    """Tell whether ours prints all that Apache prints, and more."""
    return {line for line in apache if not OTHER_KEYS.match(line)} <= set(ours)


def refuses(text: str) -> Callable[[list[str], list[str]], bool]:
    """Tell whether ours refuses with ``text`` what Apache does, or fails at in another way."""

    def holds(apache: list[str], ours: list[str]) -> bool:
        return apache != ours and any(text in line for line in ours) and not any(text in line for line in apache)

    return holds


def refuses_by_code(code: int) -> Callable[[list[str], list[str]], bool]:
    """Tell whether ours does not know the request of ``code``; Apache may serve it, or refuse it as ours does."""
    return lambda _, ours: any(f"CODE: 3  DESC:  request type {code} not supported" in line for line in ours)


def lacks(*patterns: str) -> Callable[[list[str], list[str]], bool]:
    """Tell whether ours prints what Apache prints but for lines like these; there must be one."""
    wanted = re.compile("|".join(patterns))

    def holds(apache: list[str], ours: list[str]) -> bool:
        return apache != ours and [line for line in apache if not wanted.fullmatch(line)] == ours

    return holds


def has_text(new: str, old: str) -> Callable[[list[str], list[str]], bool]:
    """Tell whether ours prints ``old`` where 5.3.3 prints ``new``, and nothing else differs."""
    return lambda apache, ours: apache != ours and [line.replace(new, old) for line in apache] == ours


def same_keys(*, absent: str, others: str = "") -> Callable[[list[str], list[str]], bool]:
    """Tell whether ours has Apache's keys and values but for ``others``; it may lack those like ``absent``."""

    def table(lines: list[str]) -> dict[str, str]:
        return dict(re.split(r"\s*[:=]\s*", line, maxsplit=1) for line in lines)

    def holds(apache: list[str], ours: list[str]) -> bool:
        left, right = table(apache), table(ours)
        wrong = {key for key, value in left.items() if key in right and right[key] != value}
        lacking = left.keys() - right.keys()
        return all(re.fullmatch(others, key) for key in wrong) and all(re.fullmatch(absent, key) for key in lacking)

    return holds


def resets_the_same(apache: list[str], ours: list[str]) -> bool:
    """Tell whether queues get the same offsets; 5.3.3 prints another table where its broker resets by itself."""

    def queues(lines: list[str]) -> list[tuple[str, str, str]]:
        return [(row[0], row[1], row[-1]) for row in map(str.split, lines) if row[0] == "broker-a"]

    return apache != ours and len(queues(ours)) == QUEUES and queues(apache) == queues(ours)


def refuses_only(text: str) -> Callable[[list[str], list[str]], bool]:
    """Tell whether Apache refuses with ``text`` what ours does."""
    return lambda apache, ours: any(text in line for line in apache) and not any("CODE: " in line for line in ours)


OFF = "access control is off (aclEnable=false): there are no accounts"
TOPICS_OF_5 = r"(DefaultCluster )?(RMQ_SYS_TRANS_(OP_)?HALF_TOPIC|rmq_sys_\w+(broker-a)?)( N N N NO_CONSUMER| *)"
STATUS_OF_5 = r"(ackThreadPool|litePullThreadPool|timer)\w+"
#: keys whose defaults differ between 4.9 and 5.x
KEYS_OF_4 = (
    r"\w+ThreadPoolNums|bitMapLengthConsumeQueueExt|autoDeleteUnusedStats|registerBrokerTimeoutMills|timerWheelEnable"
)
NO_POP, NO_AUTH, NO_COLD = "ours has no POP", "ours has the accounts of 4.9", "ours has no flow control of cold data"
NO_STATIC, NO_CONTROLLER, NO_ROCKS = "ours has no static topics", "ours has no controller", "ours has no RocksDB"

#: name of a step -> (what holds instead of equality, why)
Intended = dict[str, tuple[Callable[[list[str], list[str]], bool], str]]

INTENDED: dict[str, Intended] = {
    APACHE_4: {
        "brokerStatus -b {broker}": (
            lacks_nothing,
            "ours also has the figures of 5.x, and says whether it is compiled",
        ),
        "brokerStatus -c DefaultCluster": (lacks_nothing, "as above"),
        "getBrokerConfig -b {broker}": (
            lacks_nothing,
            "ours also has the keys of 5.x and its own; numbers of threads and the bit maps of filters have no effect",
        ),
        "getBrokerConfig -c DefaultCluster": (lacks_nothing, "as above"),
        "updateBrokerConfig -b {broker} -k brokerConfigPath -v /tmp/elsewhere": (
            refuses("CODE: 16  DESC: Can not update config in black list. Only the configuration file changes"),
            "4.9.8 and 5.x refuse this, too",
        ),
        "clusterAclConfigVersion -b {broker}": (refuses(f"CODE: 1  DESC: {OFF}"), "Apache never answers"),
        "getAclConfig -b {broker}": (refuses(f"CODE: 1  DESC: {OFF}"), "Apache never answers"),
        "updateAclConfig -b {broker} -a account1 -s 12345678": (
            refuses(f"CODE: 209  DESC: {OFF}"),
            "Apache answers with the text of a NullPointerException",
        ),
        "deleteAclConfig -b {broker} -a account1": (refuses(f"CODE: 210  DESC: {OFF}"), "as above"),
        "updateGlobalWhiteAddr -b {broker} -g 10.0.0.*": (refuses(f"CODE: 211  DESC: {OFF}"), "as above"),
    },
    APACHE_5: {
        "statsAll -a": (lacks("Online Online .*"), "as topicList -c"),
        "statsAll": (lacks(TOPICS_OF_5, "Online Online .*"), "as topicList -c"),
        "topicList": (lacks(TOPICS_OF_5), "5.3.3 has more topics of its own, and registers those of transactions"),
        "topicList -c": (
            lacks(TOPICS_OF_5, "DefaultCluster Online Online"),
            "as topicList; code 300 of 5.3.3 answers the topic of a subscription as the name of a group",
        ),
        "updateTopic -b {broker} -t bad*name -r 8 -w 8": (has_text("CODE: 29 ", "CODE: 1 "), "4.9 has no code 29"),
        "updateTopic -b {broker} -t TBW102 -r 8 -w 8": (has_text("CODE: 29 ", "CODE: 1 "), "as above"),
        "topicStatus -t MoreToRead": (
            lacks("broker-a 2 0 0"),
            "queues that can be read but not written are shown by 5.3.3, not by 4.9",
        ),
        "brokerStatus -b {broker}": (
            same_keys(absent=STATUS_OF_5),
            "ours has no POP, no timer and no pool for lite pulls",
        ),
        "brokerStatus -c DefaultCluster": (same_keys(absent=STATUS_OF_5), "as above"),
        "getBrokerConfig -b {broker}": (
            same_keys(absent=r"\w+", others=KEYS_OF_4),
            "ours has the keys and values of 4.9 (which the test of 4.9.7 sees), its own, and few of 5.x",
        ),
        "getBrokerConfig -c DefaultCluster": (same_keys(absent=r"\w+", others=KEYS_OF_4), "as above"),
        "updateBrokerConfig -b {broker} -k brokerConfigPath -v /tmp/elsewhere": (
            has_text("black list.", "black list. Only the configuration file changes brokerConfigPath"),
            "ours names the key",
        ),
        "cloneGroupOffset -s orders-group -d no-group -t Orders -o true": (
            refuses_only("CODE: 26 DESC: Group no-group not exist!"),
            "as 4.9, ours takes offsets of a group that has no configuration",
        ),
        f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0": (
            resets_the_same,
            "as 4.9, ours answers 206 about a group that is offline; the tool then sets the offsets itself",
        ),
        f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}": (resets_the_same, "as above"),
        f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s now -b {{broker}} -q 1 -o 2": (
            refuses("CODE: 206 DESC: Consumer not online, so can not reset offset"),
            "as above, but the tool does nothing about one queue",
        ),
        "exportConfigs -c DefaultCluster -f {folder}": (
            lambda apache, ours: apache == [line for line in ours if "filterServerNums" not in line],
            "5.3.3 has no filter servers",
        ),
        "updateTopic -b {broker} -t Typed -r 2 -w 2 -a +nonsense=1": (
            refuses_only("unsupported key: nonsense"),
            "as 4.9, ours takes no notice of attributes",
        ),
        "updateSubGroup -b {broker} -g attributed -s true --attributes +priority.factor=3": (
            refuses_only("unsupported key: priority.factor"),
            "as above",
        ),
        f"setConsumeMode -b {{broker}} -t {TOPIC} -g {GROUP} -m POP": (refuses_by_code(401), NO_POP),
        "exportPopRecord -b {broker}": (refuses_by_code(200056), NO_POP),
        "updateStaticTopic -t Static -qn 4 -b broker-a": (refuses_by_code(513), NO_STATIC),
        "addBroker -c {broker} -b /nowhere/broker.conf": (
            refuses_by_code(902),
            "nor has Apache's broker outside a container",
        ),
        "removeBroker -c {broker} -b DefaultCluster:broker-a:0": (refuses_by_code(903), "as above"),
        "resetMasterFlushOffset -b {broker} -o 0": (
            refuses_by_code(908),
            "only slaves of 5.x that act as master need it",
        ),
        "getSyncStateSet -a {broker} -b broker-a": (refuses_by_code(1005), NO_CONTROLLER),
        "getBrokerEpoch -b broker-a": (refuses_by_code(1007), NO_CONTROLLER),
        "getControllerMetaData -a {broker}": (refuses_by_code(1005), NO_CONTROLLER),
        "getControllerConfig -a {broker}": (refuses_by_code(1010), NO_CONTROLLER),
        "updateControllerConfig -a {broker} -k key -v value": (refuses_by_code(1009), NO_CONTROLLER),
        "electMaster -a {broker} -b 0 -bn broker-a -c DefaultCluster": (refuses_by_code(1005), NO_CONTROLLER),
        "cleanBrokerMetadata -a {broker} -b 0 -bn broker-a -c DefaultCluster": (refuses_by_code(1005), NO_CONTROLLER),
        "getColdDataFlowCtrInfo -b {broker}": (refuses_by_code(2003), NO_COLD),
        f"updateColdDataFlowCtrGroupConfig -b {{broker}} -g {GROUP} -v 1": (refuses_by_code(2001), NO_COLD),
        f"removeColdDataFlowCtrGroupConfig -b {{broker}} -g {GROUP}": (refuses_by_code(2002), NO_COLD),
        "setCommitLogReadAheadMode -b {broker} -m 0": (refuses_by_code(2004), NO_COLD),
        "createUser -b {broker} -u user -p 12345678": (refuses_by_code(3001), NO_AUTH),
        "updateUser -b {broker} -u user -p 87654321": (refuses_by_code(3002), NO_AUTH),
        "deleteUser -b {broker} -u user": (refuses_by_code(3003), NO_AUTH),
        "getUser -b {broker} -u user": (refuses_by_code(3004), NO_AUTH),
        "listUser -b {broker}": (refuses_by_code(3005), NO_AUTH),
        "copyUser -f {broker} -t {broker} -u user": (refuses_by_code(3004), NO_AUTH),
        "createAcl -b {broker} -s User:user -r Topic:Orders -a Pub -d ALLOW": (refuses_by_code(3006), NO_AUTH),
        "updateAcl -b {broker} -s User:user -r Topic:Orders -a Pub -d ALLOW": (refuses_by_code(3007), NO_AUTH),
        "deleteAcl -b {broker} -s User:user": (refuses_by_code(3008), NO_AUTH),
        "getAcl -b {broker} -s User:user": (refuses_by_code(3009), NO_AUTH),
        "listAcl -b {broker}": (refuses_by_code(3010), NO_AUTH),
        "copyAcl -f {broker} -t {broker} -s User:user": (refuses_by_code(3009), NO_AUTH),
        "rocksDBConfigToJson -c DefaultCluster -b {broker} -t topics": (refuses_by_code(355), NO_ROCKS),
        f"checkRocksdbCqWriteProgress -c DefaultCluster -t {TOPIC}": (refuses_by_code(354), NO_ROCKS),
    },
}
#: commands of 5.3.3 that read local files and ask no server
LOCAL = {"exportMetadataInRocksDB", "dumpCompactionLog"}


@attrs.frozen
class Cluster:
    """One NameServer with one broker, a consumer of ONLINE, and what must be renamed in the output about them."""

    namesrv: Process
    broker: Broker
    client: JavaClient
    #: of mqadmin and the client
    version: str
    #: where the messages of TOPIC lie in the commit log, in their order
    offsets: Sequence[int] = ()

    @property
    def folder(self) -> Path:
        return self.broker.folder / "export"

    def ask(self, admin: JavaAdmin, step: Step) -> list[str]:
        arguments = step.arguments.format(
            broker=self.broker.addr, folder=self.folder, message=self.message(5), lists=self.lists()
        )
        for path in self.folder.glob("*"):
            path.unlink()
        text = admin.run(step.command, *arguments.split(), "-n", self.namesrv.addr)
        for path in self.folder.glob("*"):
            text += f"\n{path.name}\n{path.read_text()}"
        text = text.replace(str(self.folder), "EXPORT").replace(str(self.broker.folder), "FOLDER")
        text = text.replace(self.namesrv.addr, "NAMESRV").replace(self.broker.addr, "BROKER")
        text = re.sub(rf"7F000001{self.broker.port:08X}([0-9A-F]{{16}})", self._offset_id, text)
        text = re.sub(r"(commitLogOffset=|CommitLog Offset: *|physicOffset=)(\d+)", self._offset, text)
        if self.version == APACHE_5:
            text = re.sub(r"(storeSize=|physicSize=)(\d+)", self._size, text)
            text = re.sub(rf"(axOffset[\s:]+|putMessageSizeTotal *: ){self.broker.end_offset()}\b", r"\1END", text)
        text = re.sub(rf"\b{self.broker.port}\b", "PORT", text)
        text = re.sub(rf"\b{self.broker.ha_port}\b", "HA-PORT", text)
        for pattern, name in _NAMES:
            text = re.sub(pattern, name, text)
        return step.reads(text)

    def _offset(self, found: re.Match[str]) -> str:
        """Name an offset in the commit log after the message of TOPIC that is there."""
        return f"{found[1]}OFFSET-{self.offsets.index(int(found[2]))}"

    def _size(self, found: re.Match[str]) -> str:
        """Take the separator behind the last property, which 5.3.3 writes, from the length of a record."""
        return f"{found[1]}{int(found[2]) - (self.broker.kind == APACHE_5)}"

    def _offset_id(self, found: re.Match[str]) -> str:
        offset = int(found[1], 16)
        return f"BROKER-ID-{self.offsets.index(offset)}" if offset in self.offsets else f"BROKER-ID{found[1]}"

    def lists(self) -> Path:
        """Return a folder with the files that 5.3.3's commands for lists read."""
        lists = self.broker.folder / "lists"
        lists.mkdir(exist_ok=True)
        topic = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG"}
        topics = [topic | {"topicName": name} for name in ("Listed", "AlsoListed")]
        (lists / "topics.json").write_text(json.dumps(topics))
        (lists / "groups.json").write_text(json.dumps([{"groupName": "listed-1"}, {"groupName": "listed-2"}]))
        return lists

    def message(self, number: int) -> str:
        """Return the offset id of a message of TOPIC."""
        return f"7F000001{self.broker.port:08X}{self.offsets[number]:016X}"


#: properties that a version's broker takes away, or that it adds: so the records of both sides have the same
PROPERTIES = {APACHE_4: {"WAIT": "true"}, APACHE_5: {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}}


def started(site: Site, client: Clients, kind: str, name: str, version: str = APACHE_4) -> Cluster:
    """Start a cluster of ``kind`` that clients and mqadmin of ``version`` will ask."""
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    home = site.root / f"{name}-broker" / "home"  # where Apache's is
    broker = site.broker(kind, namesrv.addr, f"{name}-broker", rocketmqHome=home, transactionCheckInterval=3_600_000)
    return Cluster(namesrv, broker, client(version, namesrv.addr), version)


def filled(cluster: Cluster) -> Cluster:
    """Return the cluster with the contents that the steps ask for."""
    broker, java = cluster.broker, cluster.client
    with broker.probe() as probe:
        for topic in (TOPIC, "Online"):
            probe.create_topic(topic, QUEUES)
        probe.create_topic(f"%RETRY%{GROUP}", 1)  # 5.3.3's consumerProgress asks for the route of it
        for number in range(MESSAGES):
            tag = "TagA" if number % 3 else "TagB"
            properties = {
                "KEYS": f"key-{number}",
                "TAGS": tag,
                "UNIQ_KEY": UNIQUE % number,
                **PROPERTIES[cluster.version],
            }
            answer = probe.send_message(TOPIC, number % QUEUES, b"body of %d" % number, **properties)
            assert answer.code == 0, answer
        probe.must(
            200,
            {},
            json.dumps({"groupName": GROUP, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}).encode(),
        )
        for queue in range(QUEUES):
            probe.commit_offset(GROUP, TOPIC, queue, queue % 3)
        records = [record for queue in range(QUEUES) for record in probe.read_queue(TOPIC, queue)]
    java.send("Online", "sync", 4, prefix="online", in_turn=True)
    java.consume(ONLINE, "Online", "member")
    until("the consumer has all", lambda: len(java.got()) == 4)

    def committed() -> bool:
        with broker.probe() as probe:
            offsets = probe.all_offsets()
        return sum(offsets.get(f"Online@{ONLINE}", {}).values()) == 4 and f"%RETRY%{ONLINE}@{ONLINE}" in offsets

    until("its offsets are committed", committed)

    def counted() -> bool:
        keys = {"TOPIC_PUT_NUMS": TOPIC, "GROUP_GET_NUMS": f"Online@{ONLINE}"}
        with broker.probe() as probe:
            answers = [probe.ask(315, {"statsName": name, "statsKey": key}) for name, key in keys.items()]
        return all(answer.code == 0 and fastjson(answer.body)["statsMinute"]["sum"] for answer in answers)

    until("the messages are in the figures of statsAll", counted)
    return attrs.evolve(cluster, offsets=sorted(record.phy_offset for record in records))


def differences(
    steps: Sequence[Step], intended: Intended, left: Sequence[list[str]], right: Sequence[list[str]]
) -> list[str]:
    wrong = []
    for step, apache, ours in zip(steps, left, right, strict=True):
        holds, why = intended.get(step.name, (list.__eq__, "nothing"))
        if not (apache and ours and holds(apache, ours)):
            wrong += [
                f"mqadmin {step.name} (intended: {why})",
                *unified_diff(apache, ours, "Apache", "ours", lineterm=""),
            ]
    return wrong


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the intended differences are ours")
@pytest.mark.parametrize("version", [APACHE_4, campaign_only(APACHE_5)])
def test_mqadmin_prints_the_same_about_both_brokers(version: str, site: Site, client: Clients) -> None:
    """Every command of mqadmin that asks a broker prints the same about ours and Apache's, but for INTENDED."""
    clusters = [started(site, client, version, "apache", version), started(site, client, OURS, "ours", version)]
    with ThreadPoolExecutor(2) as pool:
        (names, apache), (_, ours) = pool.map(answers, clusters)
    steps, intended = STEPS[version], INTENDED[version]
    wrong = differences(steps, intended, apache, ours)
    assert not wrong, "\n".join(wrong)
    asked = {step.command for step in steps} | {step.command for step in NAMESRV_STEPS} | {SILENT}
    assert names == asked | (LOCAL if version == APACHE_5 else set())

    # the comparison is no liar: each line that is left out is missed
    for number, step in enumerate(steps):
        if step.name not in intended:
            damaged = [*ours[:number], ours[number][1:], *ours[number + 1 :]]
            assert differences(steps, intended, apache, damaged), step.name


def answers(cluster: Cluster) -> tuple[set[str], list[list[str]]]:
    """
    Fill a cluster, and return the names of all commands of mqadmin, and what each step prints.

    One JVM for each cluster, but for ONCE: some commands keep their client in a static field, started once.
    """
    admin = JavaAdmin(cluster.version, cluster.broker.folder / "admin")
    try:
        names = set(re.findall(r"^   (\w+) ", admin.run(), re.MULTILINE))
        cluster = filled(cluster)
        return names, [
            alone(cluster, step) if cluster.version == APACHE_5 and step.command in ONCE else cluster.ask(admin, step)
            for step in STEPS[cluster.version]
        ]
    finally:
        admin.close()


def alone(cluster: Cluster, step: Step) -> list[str]:
    """Return what a step prints in a JVM of its own."""
    admin = JavaAdmin(cluster.version, cluster.broker.folder / "admin-alone")
    try:
        return cluster.ask(admin, step)
    finally:
        admin.close()


#: what 5.3.3 asks besides: code and fields
FIVE: list[tuple[int, dict[str, object]]] = [
    (343, {"group": GROUP}),
    (345, {"group": ONLINE, "topic": "Online"}),
    (345, {"group": GROUP, "topic": TOPIC}),
    (351, {"topic": TOPIC, "lo": False}),
    (351, {"topic": "NoSuchTopic", "lo": False}),
    (352, {"group": GROUP}),
    (352, {"group": "no group"}),
]

FIVE_STEPS = [
    Step("updateTopicList", "-b {broker} -f {lists}/topics.json"),
    Step("updateSubGroupList", "-b {broker} -f {lists}/groups.json"),
    Step("topicStatus", "-t Listed", sorted_rows),
    Step("consumerProgress", f"-g {ONLINE}", sorted_rows),
    Step("consumerConnection", f"-g {ONLINE}", sorted_rows),
]


def within(ours: object, apache: object, where: str = "answer") -> list[str]:
    """Return where ours differs from Apache's answer, which may have more members."""
    if isinstance(ours, dict) and isinstance(apache, dict):
        return [line for key, value in ours.items() for line in within(value, apache.get(key), f"{where}.{key}")]
    if where.endswith(("brokerAddr", "Timestamp", "subVersion", "consumeTps")):
        return []
    return [] if ours == apache else [f"{where}: {ours!r} instead of {apache!r}"]


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the intended differences are ours")
def test_what_5_x_asks_besides(site: Site, client: Clients) -> None:
    """The codes that 5.3.3 has for tables of 4.9 are answered as its broker does, and its mqadmin prints the same."""
    clusters = [
        filled(started(site, client, kind, name, APACHE_5)) for kind, name in ((APACHE_5, "apache"), (OURS, "ours"))
    ]
    for code, fields in FIVE:
        shown = []
        for cluster in clusters:
            with cluster.broker.probe() as probe:
                answer = probe.ask(code, fields)
            body = fastjson(answer.body) if answer.body else {}
            shown.append({"code": answer.code, "remark": answer.remark, "body": body})
        assert within(shown[1], shown[0]) == [], f"{code} {fields}"

    admin = JavaAdmin(APACHE_5, site.root / "admin")
    try:
        apache, ours = ([cluster.ask(admin, step) for step in FIVE_STEPS] for cluster in clusters)
    finally:
        admin.close()
    wrong = differences(FIVE_STEPS, {}, apache, ours)
    assert not wrong, "\n".join(wrong)
    with clusters[1].broker.probe() as probe:
        assert {"Listed", "AlsoListed"} <= set(probe.topics())
        assert {"listed-1", "listed-2"} <= set(json.loads(probe.must(201).body)["subscriptionGroupTable"])
