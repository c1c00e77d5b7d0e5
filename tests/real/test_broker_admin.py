"""
``mqadmin`` 4.9.7 asks an Apache broker 4.9.7 and ours the same, and prints the same.

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

from tests.real.conftest import Clients
from tests.real.javaclient import JavaAdmin, JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, STAND_IN, Broker, Process, Site, until
from tests.real.probe import fastjson
from tests.real.test_namesrv_admin import STEPS as NAMESRV_STEPS
from tests.real.test_namesrv_admin import as_failure, as_lines, as_sorted_lines

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
    (r"V4_9_[78]\b", "VERSION"),
    (r"(?<=brokerVersion )( *): 40[79]", r"\1: VERSION"),
    (r"/tmp/rocketmq/msgbodys/", "BODIES/"),
    (r"\[ \d+ days, .* seconds \]", "RUNTIME"),
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


@attrs.frozen
class Step:
    """A sub-command; ``{broker}`` and ``{folder}`` stand for the side's. ``reads`` orders the output."""

    command: str
    arguments: str = ""
    reads: Callable[[str], list[str]] = as_failure

    @property
    def name(self) -> str:
        return f"{self.command} {self.arguments}".strip()


STEPS = [
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
    Step("topicStatus", "-t Made", sorted_rows),
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
    Step("statsAll", "", without_numbers),
    Step("statsAll", "-a", without_numbers),
    Step("statsAll", f"-t {TOPIC}", without_numbers),
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
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -i {UNIQUE % 3} -a", without_spaces),
    Step("queryMsgByUniqueKey", f"-t {TOPIC} -i {UNIQUE % 99}"),
    Step("queryMsgByOffset", f"-t {TOPIC} -b broker-a -i 1 -o 1", without_spaces),
    Step("queryMsgById", "-i {message}", without_spaces),
    Step("queryMsgById", "-i {message} -g online-group -d nobody"),
    Step("queryMsgById", "-i 7F00000100002A9F00000000000F0000"),
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
    Step("deleteSubGroup", "-b {broker} -g other-group", without_spaces),
    Step("deleteSubGroup", f"-c DefaultCluster -g {GROUP} -r true", without_spaces),
    Step("exportConfigs", "-c DefaultCluster -f {folder}", as_sorted_lines),
    Step("exportMetadata", "-c DefaultCluster -f {folder}", as_metadata),
    Step("exportMetadata", "-b {broker} -f {folder} -t", as_metadata),
    Step("exportMetadata", "-b {broker} -f {folder} -g -s", as_metadata),
    Step("exportMetrics", "-c DefaultCluster -f {folder}", as_metrics),
    Step("clusterAclConfigVersion", "-b {broker}"),
    Step("getAclConfig", "-b {broker}"),
    Step("updateAclConfig", "-b {broker} -a account1 -s 12345678"),
    Step("deleteAclConfig", "-b {broker} -a account1"),
    Step("updateGlobalWhiteAddr", "-b {broker} -g 10.0.0.*"),
    Step("deleteTopic", "-c DefaultCluster -t Made"),
    Step("deleteTopic", "-c nowhere -t Made"),
    Step("topicStatus", "-t Made"),
]

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


OFF = "access control is off (aclEnable=false): there are no accounts"
#: name of a step -> (what holds instead of equality, why)
INTENDED: dict[str, tuple[Callable[[list[str], list[str]], bool], str]] = {
    "brokerStatus -b {broker}": (lacks_nothing, "ours also has the figures of 5.x, and says whether it is compiled"),
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
}


@attrs.frozen
class Cluster:
    """One NameServer with one broker, a consumer of ONLINE, and what must be renamed in the output about them."""

    namesrv: Process
    broker: Broker
    client: JavaClient

    @property
    def folder(self) -> Path:
        return self.broker.folder / "export"

    def ask(self, admin: JavaAdmin, step: Step) -> list[str]:
        arguments = step.arguments.format(broker=self.broker.addr, folder=self.folder, message=self.message(5))
        for path in self.folder.glob("*"):
            path.unlink()
        text = admin.run(step.command, *arguments.split(), "-n", self.namesrv.addr)
        for path in self.folder.glob("*"):
            text += f"\n{path.name}\n{path.read_text()}"
        text = text.replace(str(self.folder), "EXPORT").replace(str(self.broker.folder), "FOLDER")
        text = text.replace(self.namesrv.addr, "NAMESRV").replace(self.broker.addr, "BROKER")
        text = text.replace(f"7F000001{self.broker.port:08X}", "BROKER-ID")
        text = re.sub(rf"\b{self.broker.port}\b", "PORT", text)
        text = re.sub(rf"\b{self.broker.ha_port}\b", "HA-PORT", text)
        for pattern, name in _NAMES:
            text = re.sub(pattern, name, text)
        return step.reads(text)

    def message(self, number: int) -> str:
        """Return the offset id of a message of TOPIC."""
        with self.broker.probe() as probe:
            record = next(
                record for record in probe.read_queue(TOPIC, number % QUEUES) if record.key == f"key-{number}"
            )
        return f"7F000001{self.broker.port:08X}{record.phy_offset:016X}"


def filled(site: Site, client: Clients, kind: str, name: str) -> Cluster:
    """Return a cluster of ``kind`` with the contents that the steps ask for."""
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    home = site.root / f"{name}-broker" / "home"  # where Apache's is
    broker = site.broker(kind, namesrv.addr, f"{name}-broker", rocketmqHome=home, transactionCheckInterval=3_600_000)
    with broker.probe() as probe:
        for topic in (TOPIC, "Online"):
            probe.create_topic(topic, QUEUES)
        for number in range(MESSAGES):
            tag = "TagA" if number % 3 else "TagB"
            properties = {"KEYS": f"key-{number}", "TAGS": tag, "UNIQ_KEY": UNIQUE % number, "WAIT": "true"}
            answer = probe.send_message(TOPIC, number % QUEUES, b"body of %d" % number, **properties)
            assert answer.code == 0, answer
        probe.must(
            200,
            {},
            json.dumps({"groupName": GROUP, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}).encode(),
        )
        for queue in range(QUEUES):
            probe.commit_offset(GROUP, TOPIC, queue, queue % 3)
    java = client(APACHE_4, namesrv.addr)
    java.send("Online", "sync", 4, prefix="online")
    java.consume(ONLINE, "Online", "member")
    until("the consumer has all", lambda: len(java.got()) == 4)

    def committed() -> bool:
        with broker.probe() as probe:
            offsets = probe.all_offsets()
        return sum(offsets.get(f"Online@{ONLINE}", {}).values()) == 4 and f"%RETRY%{ONLINE}@{ONLINE}" in offsets

    until("its offsets are committed", committed)
    return Cluster(namesrv, broker, java)


def differences(steps: Sequence[Step], left: Sequence[list[str]], right: Sequence[list[str]]) -> list[str]:
    wrong = []
    for step, apache, ours in zip(steps, left, right, strict=True):
        holds, why = INTENDED.get(step.name, (list.__eq__, "nothing"))
        if not (apache and ours and holds(apache, ours)):
            wrong += [
                f"mqadmin {step.name} (intended: {why})",
                *unified_diff(apache, ours, "Apache", "ours", lineterm=""),
            ]
    return wrong


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the intended differences are ours")
def test_mqadmin_prints_the_same_about_both_brokers(site: Site, client: Clients) -> None:
    """Every command of mqadmin 4.9.7 that asks a broker prints the same about ours and Apache's, but for INTENDED."""
    clusters = [filled(site, client, APACHE_4, "apache"), filled(site, client, OURS, "ours")]
    with ThreadPoolExecutor(2) as pool:
        (names, apache), (_, ours) = pool.map(answers, clusters)
    wrong = differences(STEPS, apache, ours)
    assert not wrong, "\n".join(wrong)
    assert names == {step.command for step in STEPS} | {step.command for step in NAMESRV_STEPS} | {SILENT}

    # the comparison is no liar: each line that is left out is missed
    for number, step in enumerate(STEPS):
        if step.name not in INTENDED:
            damaged = [*ours[:number], ours[number][1:], *ours[number + 1 :]]
            assert differences(STEPS, apache, damaged), step.name


def answers(cluster: Cluster) -> tuple[set[str], list[list[str]]]:
    """
    Return the names of all commands of mqadmin, and what each step prints.

    One JVM for each cluster: some commands keep their client in a static field, started once.
    """
    admin = JavaAdmin(APACHE_4, cluster.broker.folder / "admin")
    try:
        names = set(re.findall(r"^   (\w+) ", admin.run(), re.MULTILINE))
        return names, [cluster.ask(admin, step) for step in STEPS]
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
    clusters = [filled(site, client, APACHE_5, "apache"), filled(site, client, OURS, "ours")]
    for code, fields in FIVE:
        shown = []
        for cluster in clusters:
            with cluster.broker.probe() as probe:
                answer = probe.ask(code, fields)
            body = fastjson(answer.body) if answer.body else {}
            shown.append({"code": answer.code, "remark": answer.remark, "body": body})
        assert within(shown[1], shown[0]) == [], f"{code} {fields}"

    lists = site.root / "lists"
    lists.mkdir()
    topic = {"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    (lists / "topics.json").write_text(json.dumps([topic, topic | {"topicName": "AlsoListed"}]))
    (lists / "groups.json").write_text(json.dumps([{"groupName": "listed-1"}, {"groupName": "listed-2"}]))
    admin = JavaAdmin(APACHE_5, site.root / "admin")
    steps = [attrs.evolve(step, arguments=step.arguments.replace("{lists}", str(lists))) for step in FIVE_STEPS]
    try:
        apache, ours = ([cluster.ask(admin, step) for step in steps] for cluster in clusters)
    finally:
        admin.close()
    wrong = differences(steps, apache, ours)
    assert not wrong, "\n".join(wrong)
    with clusters[1].broker.probe() as probe:
        assert {"Listed", "AlsoListed"} <= set(probe.topics())
        assert {"listed-1", "listed-2"} <= set(json.loads(probe.must(201).body)["subscriptionGroupTable"])
