"""Apache's own ``mqadmin`` 4.9.7 against our NameServer and broker (acceptance 2)."""

from __future__ import annotations

import json
import os
import re
from collections import Counter

import pytest

from rmq.blocking import Client as PythonClient
from rmq.blocking import Later, PushSettings, ReceivedMessage
from rmq.client.settings import From
from tests.real.campaigns import campaign_only
from tests.real.conftest import Clients
from tests.real.javaclient import JavaAdmin
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, mqadmin, until

#: what a Java program prints when something went wrong inside it
TROUBLE = re.compile(r"Exception|^\s+at [\w.$]+\(|\[error\]|command failed", re.MULTILINE | re.IGNORECASE)


def sound(output: str) -> str:
    """Return the output of a sub-command, which must not tell of an exception."""
    assert not TROUBLE.search(output), output
    return output


@pytest.fixture
def cluster(site: Site) -> tuple[Process, Broker]:
    namesrv = site.namesrv()
    return namesrv, site.broker(OURS, namesrv.addr)


@pytest.mark.smoke
def test_cluster_list(site: Site, cluster: tuple[Process, Broker]) -> None:
    """clusterList shows the broker with its address and a 4.9 version."""
    namesrv, broker = cluster
    output = sound(mqadmin(site.root, "clusterList", "-n", namesrv.addr))
    row = next(line for line in output.splitlines() if broker.addr in line)
    name, brokername, broker_id, addr, version = row.split()[:5]
    assert (name, brokername, broker_id, addr) == ("DefaultCluster", "broker-a", "0", broker.addr)
    assert re.fullmatch(r"V4_9_\d+", version)


@pytest.mark.real
def test_everyday_commands(cluster: tuple[Process, Broker], java_admin: JavaAdmin) -> None:
    """topicList, updateTopic, topicRoute, sendMessage and brokerStatus do what their names say."""
    namesrv, broker = cluster
    n = ("-n", namesrv.addr)
    assert "BenchmarkTest" in sound(java_admin.run("topicList", *n)).split()

    created = sound(java_admin.run("updateTopic", *n, "-c", "DefaultCluster", "-t", "Admin", "-r", "5", "-w", "3"))
    assert f"create topic to {broker.addr} success" in created and "writeQueueNums=3" in created
    assert "Admin" in sound(java_admin.run("topicList", *n)).split()
    assert "Admin" in broker_topics(broker)

    route = sound(java_admin.run("topicRoute", *n, "-t", "Admin"))
    assert broker.addr in route and re.search(r'"readQueueNums":\s*5', route)

    sent = sound(
        java_admin.run("sendMessage", *n, "-t", "Admin", "-k", "admin-key", "-c", "TagA", "-p", "hello from mqadmin")
    )
    row = next(line for line in sent.splitlines() if "SEND_OK" in line)
    assert row.split()[0] == "broker-a"
    with broker.probe() as probe:
        stored = [record for queue in range(3) for record in probe.read_queue("Admin", queue)]
    assert [(r.key, r.properties["TAGS"], r.body) for r in stored] == [("admin-key", "TagA", b"hello from mqadmin")]

    lines = [line.partition(":") for line in sound(java_admin.run("brokerStatus", *n, "-b", broker.addr)).splitlines()]
    status = {name.strip(): value.strip() for name, _, value in lines}
    assert int(status["commitLogMaxOffset"]) > 0
    assert status["brokerVersionDesc"].startswith("V4_9_")
    assert status["msgPutTotalTodayNow"] != "0"

    widened = sound(java_admin.run("updateTopic", *n, "-b", broker.addr, "-t", "Admin", "-r", "8", "-w", "8"))
    assert "success" in widened

    def routed() -> bool:
        with namesrv.probe() as probe:
            found = probe.route("Admin")
        return bool(found and found["queueDatas"][0]["writeQueueNums"] == 8)

    until("the wider topic is in the route", routed, seconds=30)


@pytest.mark.real
def test_a_command_for_something_unknown_fails_politely(cluster: tuple[Process, Broker], java_admin: JavaAdmin) -> None:
    """The route of a topic that nobody has is refused with the code and the remark that mqadmin prints for Apache."""
    namesrv, _ = cluster
    output = java_admin.run("topicRoute", "-n", namesrv.addr, "-t", "NoSuchTopic")
    assert "CODE: 17" in output and "No topic route info in name server for the topic: NoSuchTopic" in output


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, APACHE_4])
def test_commands_that_consumers_answer(kind: str, site: Site, client: Clients, java_admin: JavaAdmin) -> None:
    """What mqadmin asks of consumers reaches them through the broker, with clients of both versions in one group."""
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr)
    n = ("-n", namesrv.addr)
    with broker.probe() as probe:
        probe.create_topic("Asked", 2)
    java = {version: client(version, namesrv.addr) for version in (APACHE_4, APACHE_5)}
    sent = java[APACHE_4].send("Asked", "sync", 20, prefix="asked")
    for version, one in java.items():
        one.consume("asked-group", "Asked", f"member-{version}")
    with broker.probe() as probe:

        def ids() -> list[str]:
            answer = probe.ask(38, {"consumerGroup": "asked-group"})
            return json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []

        until("both members are known", lambda: len(ids()) == 2, seconds=60)
        members = ids()

    def received() -> Counter[str]:
        return Counter(event["key"] for one in java.values() for event in one.got())

    until("all messages came", lambda: set(received()) == {event["key"] for event in sent}, seconds=60)

    def committed() -> int:
        return sum(value for _, _, value in java[APACHE_4].offsets("Asked", "asked-group").values())

    until("their offsets are committed", lambda: committed() == 20, seconds=60)

    # 307: running information, of both members
    status = sound(java_admin.run("consumerStatus", *n, "-g", "asked-group"))
    assert all(member in status for member in members), status
    details = java_admin.run("consumerStatus", *n, "-g", "asked-group", "-i", members[0])
    assert "#Consumer Properties#" in details and "Asked" in details

    # 223: positions, asked of the members themselves
    with broker.probe() as probe:
        answer = probe.ask(223, {"topic": "Asked", "group": "asked-group"})
    assert answer.code == 0 and all(b'"queueId":%d' % queue in answer.body for queue in range(2)), answer

    # 309: one member consumes one message again, out of turn
    event = sent[7]
    which = ("-t", "Asked", "-i", event["msgId"], "-g", "asked-group", "-d", members[0])
    again = sound(java_admin.run("queryMsgByUniqueKey", *n, *which))
    assert "CR_SUCCESS" in again, again
    assert received()[event["key"]] == 2

    # 222 and 220: everything once more
    before = received()
    reset = sound(java_admin.run("resetOffsetByTime", *n, "-g", "asked-group", "-t", "Asked", "-s", "0"))
    assert reset.count("broker-a") == 2, reset
    until("every message came again", lambda: set(received() - before) == set(before), seconds=120)

    with broker.probe() as probe:
        spans = json.loads(probe.ask(303, {"topic": "Asked", "group": "asked-group"}).body)["consumeTimeSpanSet"]
    assert [span["messageQueue"]["queueId"] for span in spans] == [0, 1]
    assert all(0 < span["minTimeStamp"] <= span["consumeTimeStamp"] <= span["maxTimeStamp"] for span in spans)


def broker_topics(broker: Broker) -> list[str]:
    with broker.probe() as probe:
        return list(probe.topics())


assert APACHE_4 == "4.9.7", "the acceptance list names mqadmin 4.9.7"


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, campaign_only(APACHE_4)])
def test_a_python_member_beside_one_of_java(kind: str, site: Site, client: Clients, java_admin: JavaAdmin) -> None:
    """consumerStatus and consumerProgress show a Python member as Java's: the same sections, rates, times, stacks."""
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr)
    n = ("-n", namesrv.addr)
    with broker.probe() as probe:
        probe.create_topic("Shown", 4)
    java = client(APACHE_4, namesrv.addr)
    java.consume("shown-group", "Shown", "java")
    got: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        got.append(message.keys[0])
        if message.keys[0] == "shown-3":
            raise Later(1)

    with PythonClient(namesrv.addr) as python:
        settings = PushSettings(consume_from=From.FIRST)
        member = python.push_consumer("shown-group", {"Shown": "*"}, handler=handle, settings=settings)
        member.start()
        until("both have queues", lambda: sum(q.topic == "Shown" for q in member.assignment()) == 2, seconds=120)
        java.send("Shown", "sync", 40, prefix="shown")
        until("all messages came", lambda: len(set(got)) + len(java.got("java")) >= 40, seconds=120)
        shown = sound(java_admin.run("consumerStatus", *n, "-g", "shown-group"))
        mine, other = sorted(set(re.findall(r"[^\s/]+@[^\s/]+", shown)), key=lambda id: str(os.getpid()) not in id)

        def sections(client_id: str) -> dict[str, str]:
            shown = sound(java_admin.run("consumerStatus", *n, "-g", "shown-group", "-i", client_id, "-s", "true"))
            parts = re.split(r"^#([\w& ]+)#$", shown, flags=re.MULTILINE)
            return dict(zip(parts[1::2], parts[2::2], strict=True))

        def rates(client_id: str) -> list[float]:
            """pull RT, pull TPS, consume RT, consume OK TPS, consume failed TPS, consume failed messages."""
            rows = sections(client_id)["Consumer RT&TPS"].splitlines()
            return [float(cell) for cell in next(row for row in rows if row.startswith("Shown ")).split()[1:]]

        # Java's member counts every ten seconds
        until("both have rates", lambda: rates(mine)[3] > 0 and rates(other)[3] > 0, seconds=60)
        assert rates(mine)[1] > 0 and len(rates(mine)) == len(rates(other))
        python_shows, java_shows = sections(mine), sections(other)
        assert set(python_shows) == set(java_shows)
        for shows in python_shows, java_shows:
            assert shows["Consumer Offset"].count("Shown") == 2 and len(shows["Consumer jstack"].splitlines()) > 10
        assert "rmq handler of shown-group" in python_shows["Consumer jstack"]
        for name in ("consumerGroup", "messageModel", "pullBatchSize", "maxReconsumeTimes", "PROP_CONSUMEORDERLY"):
            texts = [shows["Consumer Properties"] for shows in (python_shows, java_shows)]
            values = [re.findall(rf"^{name} *: (.*)$", text, re.MULTILINE) for text in texts]
            assert values[0] == values[1] and len(values[0]) == 1, (name, values)
