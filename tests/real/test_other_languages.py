"""
What 4.x brokers do for clients that are not Java: for Go (rocketmq-client-go), Node.js (ali-ons) and C++ with Python.

With RMQ_REAL_OURS=4.9.7 or 5.3.3 the same tests hold for Apache's broker.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.campaigns import CAMPAIGN
from tests.real.cppclient import CppSession
from tests.real.goclient import GoSession
from tests.real.nodeclient import NodeSession
from tests.real.peers import OURS, Broker, Process, Site, until
from tests.real.piped import Event, PipedClient
from tests.real.probe import PULL, decode_records, pull_fields

pytestmark = pytest.mark.real

SESSIONS = {"go": GoSession, "node": NodeSession, "cpp": CppSession}
BOTH = pytest.mark.parametrize("language", ["go", "node"])
ALL = pytest.mark.parametrize("language", ["go", "node", "cpp"])

Sessions = Callable[..., PipedClient]

#: delays and retries come soon; checks of transactions, too
SOON: dict[str, Any] = {
    "messageDelayLevel": "1s 3s" + " 1s" * 16,
    "transactionTimeOut": 500,
    "transactionCheckInterval": 2000,
    "enablePropertyFilter": True,
    "traceTopicEnable": True,
}

ACCOUNTS = """accounts:
- accessKey: application
  secretKey: 12345678
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Allowed=PUB|SUB
- accessKey: operator
  secretKey: 12345678
  admin: true
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Sessions]:
    """Start clients: ``session(language, namesrv, *account)``; they end before the processes of the site do."""
    clients: list[PipedClient] = []

    def start(language: str, namesrv: str, *account: str) -> PipedClient:
        clients.append(SESSIONS[language](namesrv, tmp_path / f"{language}-{len(clients)}", *account))
        return clients[-1]

    yield start
    for one in clients:
        one.close()


def start(site: Site, *topics: str, queues: int = 2, **config: Any) -> tuple[Process, Broker]:
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, **SOON | config)
    with broker.probe() as probe:
        for topic in topics:
            probe.create_topic(topic, queues)
    return namesrv, broker


def got(client: PipedClient, *members: str) -> list[Event]:
    return [event for event in client.happened("got") if event["member"] in members]


def keys(prefix: str, numbers: range = range(6)) -> list[str]:
    return [f"{prefix}-{number}" for number in numbers]


def wait_for(client: PipedClient, member: str, wanted: list[str]) -> list[Event]:
    """Wait until a member has these keys, each as often, and return what it got."""

    def has_all() -> Event | None:
        return {"all": True} if not Counter(wanted) - Counter(event["key"] for event in got(client, member)) else None

    try:
        client.wait(f"{member} has all", has_all, seconds=90)
    except AssertionError as error:
        raise AssertionError(f"{sorted(event['key'] for event in got(client, member))}: {error}") from None
    found = got(client, member)
    assert Counter(event["key"] for event in found) == Counter(wanted)
    return found


@BOTH
def test_filters(language: str, site: Site, session: Sessions) -> None:
    """
    Tags (a hundred of them) and SQL92 expressions choose the messages that a group gets.

    A tag that is not ASCII cannot be chosen: Go hashes its UTF-8 bytes where Java hashes characters.
    """
    namesrv, _ = start(site, "Filtered")
    client = session(language, namesrv.addr)
    client.call("send", topic="Filtered", count=6, prefix="red", tags=["red", "标签"], properties={"price": "5"})
    client.call("send", topic="Filtered", count=2, prefix="green", tags=["green"])
    client.call("send", topic="Filtered", count=6, prefix="blue", tags=["blue"], properties={"price": "50", "城": "京"})
    many = " || ".join(["blue", *(f"tag-{number}" for number in range(99))])
    for member, expression, sql in (
        ("all", "*", False),
        ("tags", "green || blue", False),
        ("hundred", many, False),
        ("sql", "price BETWEEN 10 AND 100 AND number IN ('1', '3') OR TAGS = '标签' AND number <> '5'", True),
    ):
        client.call("consume", group=f"group-{member}", topic="Filtered", member=member, expression=expression, sql=sql)
    found = wait_for(client, "all", keys("red") + keys("green", range(2)) + keys("blue"))
    assert {event["body"] for event in found} == {f"body of {event['key']}" for event in found}
    wait_for(client, "tags", keys("green", range(2)) + keys("blue"))
    wait_for(client, "hundred", keys("blue"))
    wait_for(client, "sql", ["red-1", "red-3", "blue-1", "blue-3"])


@ALL
def test_delays_retries_and_dead_letters(language: str, site: Site, session: Sessions) -> None:
    """Delayed messages wait; a refused message comes again, and is a dead letter when it was refused too often."""
    # clients that find no route to a retry topic ask again after half a minute
    namesrv, broker = start(site, "Tried", "%RETRY%patient", "%RETRY%strict")
    with broker.probe() as probe:
        for group in ("patient", "strict"):
            config = {"groupName": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 2}
            probe.must(200, {}, json.dumps(config).encode())
    client = session(language, namesrv.addr)
    client.call("consume", group="patient", topic="Tried", member="patient", refuse=1, maxReconsume=2)
    client.call("send", topic="Tried", count=3, prefix="late", delay=2)
    tried = keys("late", range(3))
    found = wait_for(client, "patient", tried * 2)
    first = [event for event in found if event["attempt"] == 0]
    assert sorted(event["key"] for event in first) == tried and min(event["lag"] for event in first) >= 2900, found
    assert sorted(event["key"] for event in found if event["attempt"] == 1) == tried
    if language == "node":  # ali-ons takes a second refusal for success
        return

    client.call("consume", group="strict", topic="Tried", member="strict", refuse=99, maxReconsume=2)

    def dead() -> list[str]:
        with broker.probe() as probe:
            return sorted(record.key for record in probe.read_queue("%DLQ%strict", 0))

    until("what was refused too often is dead", lambda: dead() == tried, seconds=120)
    if language == "cpp":  # it sends its own limit, 16, and shows one message of those that it refuses together
        return
    assert Counter(event["key"] for event in got(client, "strict")) == Counter(tried * 3)


@ALL
def test_broadcast_and_shared(language: str, site: Site, session: Sessions) -> None:
    """Each member of a broadcasting group gets all messages; members of another one share them."""
    namesrv, broker = start(site, "Shared", queues=4)
    one, two = session(language, namesrv.addr), session(language, namesrv.addr)
    sides = ((one, "one"), (two, "two"))
    for client, name in sides:
        client.call("consume", group="cast", topic="Shared", member=f"cast-{name}", broadcast=True)
        client.call("consume", group="share", topic="Shared", member=f"share-{name}")

    def members() -> int:
        with broker.probe() as probe:
            found = [probe.ask(38, {"consumerGroup": group}) for group in ("cast", "share")]
        return sum(len(json.loads(answer.body)["consumerIdList"]) for answer in found if answer.code == 0)

    until("all members are known", lambda: members() == 4)
    sent: list[str] = []
    # a consumer that starts to broadcast begins at the end, and queues change hands for a while
    for turn in range(60):
        one.call("send", topic="Shared", count=8, prefix=f"turn-{turn}")
        sent += keys(f"turn-{turn}", range(8))
        if all(got(client, f"{group}-{name}") for client, name in sides for group in ("cast", "share")):
            break
        time.sleep(0.5)
    last = keys(f"turn-{turn}", range(8))
    for client, name in sides:
        until(f"{name} has all of the last turn", lambda: set(last) <= {e["key"] for e in got(client, f"cast-{name}")})  # noqa: B023
    shared = [event["key"] for client, name in sides for event in got(client, f"share-{name}")]
    until("the others have all together", lambda: set(sent) == {
        event["key"] for client, name in sides for event in got(client, f"share-{name}")
    })  # fmt: skip
    assert got(one, "share-one") and got(two, "share-two"), shared


@ALL
def test_accounts(language: str, site: Site, session: Sessions) -> None:
    """A client signs what it asks; another secret, or a topic that the account may not write, is refused."""
    home = site.root / "broker-a" / "home"  # where Apache's is
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, start=False, aclEnable=True, rocketmqHome=home)
    broker.start()
    site.wait_registered(broker, namesrv.addr)
    operator = session("go", namesrv.addr, "operator", "12345678")
    for topic in ("Allowed", "Forbidden"):
        operator.call("send", topic=topic, count=1, prefix="first")
    client = session(language, namesrv.addr, "application", "12345678")
    client.call("send", topic="Allowed", count=3, prefix="signed")
    client.call("consume", group="readers", topic="Allowed", member="reader")
    wait_for(client, "reader", ["first-0", *keys("signed", range(3))])
    with pytest.raises(AssertionError, match="failed"):
        client.call("send", topic="Forbidden", count=1, prefix="refused")
    stranger = session(language, namesrv.addr, "application", "87654321")
    with pytest.raises(AssertionError, match="failed"):
        stranger.call("send", topic="Allowed", count=1, prefix="refused")
    assert broker.alive


def test_go_transactions(site: Site, session: Sessions) -> None:
    """Committed messages arrive, rolled back ones do not; unknown ones end as the producer says when it is asked."""
    namesrv, _ = start(site, "Deals")
    client = session("go", namesrv.addr)
    client.call("consume", group="buyers", topic="Deals", member="buyer")
    for prefix, local, checked in (
        ("committed", "COMMIT_MESSAGE", "UNKNOW"),
        ("rolled", "ROLLBACK_MESSAGE", "UNKNOW"),
        ("later-committed", "UNKNOW", "COMMIT_MESSAGE"),
        ("later-rolled", "UNKNOW", "ROLLBACK_MESSAGE"),
    ):
        properties = {"local": local, "checked": checked}
        client.call("transact", group="dealers", topic="Deals", count=3, prefix=prefix, properties=properties)
    assert {event["status"] for event in client.happened("transaction")} == {"SEND_OK"}
    asked = keys("later-committed", range(3)) + keys("later-rolled", range(3))
    until("the producer was asked", lambda: {event["key"] for event in client.happened("checked")} == set(asked))
    wait_for(client, "buyer", keys("committed", range(3)) + keys("later-committed", range(3)))
    ids = {event["key"]: event["msgId"] for event in client.happened("transaction")}
    assert all(event["msgId"] == ids[event["key"]] for event in client.happened("checked"))


def test_go_requests(site: Site, session: Sessions) -> None:
    """A request reaches a consumer in another process, and its reply the requester."""
    namesrv, _ = start(site, "Requests")
    asks, answers = session("go", namesrv.addr), session("go", namesrv.addr)
    answers.call("consume", group="repliers", topic="Requests", member="replier", reply=True)
    answers.call("send", topic="Requests", count=1, prefix="warm-up")
    # The reply is pushed to a connection that the broker knows by the requester's heartbeat.
    asks.call("send", topic="Requests", count=1, prefix="known")
    until("the requester is known", lambda: broker_knows(site, "go-writer-false-false", 2))
    asks.call("request", topic="Requests", count=3, prefix="ask")
    assert [(event["key"], event["body"]) for event in asks.happened("reply")] == [
        (f"ask-{number}", f"answer to ask-{number}") for number in range(3)
    ]


def broker_knows(site: Site, group: str, members: int) -> bool:
    broker = next(process for process in site.processes if isinstance(process, Broker))
    with broker.probe() as probe:
        answer = probe.ask(204, {"producerGroup": group})
    return answer.code == 0 and len(json.loads(answer.body)["connectionSet"]) == members


def test_go_batches_and_light_queues(site: Site, session: Sessions) -> None:
    """A batch is stored whole in one queue; messages that name light queues are in these, too."""
    namesrv, broker = start(site, "Many", enableLmq=True, enableMultiDispatch=True)
    client = session("go", namesrv.addr)
    client.call("send", topic="Many", count=10, prefix="batch", batch=True, tags=["a", "b"])
    with broker.probe() as probe:
        stored = [record for queue in range(2) for record in probe.read_queue("Many", queue)]
    assert [record.key for record in stored] == keys("batch", range(10))
    assert [record.queue_offset for record in stored] == list(range(10))
    client.call("consume", group="halves", topic="Many", member="half", expression="b")
    wait_for(client, "half", keys("batch", range(1, 10, 2)))

    client.call("send", topic="Many", count=4, prefix="lite", properties={"INNER_MULTI_DISPATCH": "%LMQ%x,%LMQ%y"})
    with broker.probe() as probe:
        for name in ("%LMQ%x", "%LMQ%y"):
            found = decode_records(probe.ask(PULL, pull_fields(name, 0, 0)).body)
            assert [record.key for record in found] == keys("lite", range(4))


def test_go_traces(site: Site, session: Sessions) -> None:
    """What a client sends and consumes with traces on is written to RMQ_SYS_TRACE_TOPIC."""
    namesrv, broker = start(site, "Traced")
    client = session("go", namesrv.addr)
    client.call("consume", group="watched", topic="Traced", member="reader", trace=True)
    client.call("send", topic="Traced", count=3, prefix="traced", trace=True)
    wait_for(client, "reader", keys("traced", range(3)))
    ids = {event["msgId"] for event in client.happened("sent")}

    def traced() -> set[str]:
        with broker.probe() as probe:
            records = probe.read_queue("RMQ_SYS_TRACE_TOPIC", 0)
        traces = [trace.split("\x01") for record in records for trace in record.body.decode().split("\x02")]
        return {trace[0] for trace in traces if ids & set(trace)}

    until("sends are traced", lambda: "Pub" in traced())


def test_go_first_messages(site: Site, session: Sessions) -> None:
    """
    A consumer that is started after the send that made its topic finds the route: Go's Start() fails without.

    About one start in ten fails with 4.9.7, which does not wait for its NameServer.
    """
    namesrv, _ = start(site)
    client = session("go", namesrv.addr)
    for number in range(10):
        topic = f"New{number}"
        client.call("send", topic=topic, count=1, prefix=topic)
        client.call("consume", group=f"group-{topic}", topic=topic, member=topic)
        wait_for(client, topic, [f"{topic}-0"])


def committed(broker: Broker, topic: str, group: str) -> int:
    """Return the sum of a group's offsets, of queues that have one."""
    with broker.probe() as probe:
        return sum(probe.all_offsets().get(f"{topic}@{group}", {}).values())


def test_go_in_order(site: Site, session: Sessions) -> None:
    """
    A group in order takes each key in the order of sending, also where a message is refused.

    The broker asks its member for its state (307, 223), has one consume a message (309) and resets offsets (220).
    """
    namesrv, broker = start(site, "Ordered", queues=4)
    client = session("go", namesrv.addr)
    client.call("consume", group="line", topic="Ordered", member="one", order=True, refuse=1)
    streams = [f"stream{letter}" for letter in "abcdef"]
    for stream in streams:
        client.call("send", topic="Ordered", count=5, prefix=stream, order=True)
    sent = [key for stream in streams for key in keys(stream, range(5))]
    wait_for(client, "one", sent * 2)  # each was refused once
    for stream in streams:
        order = [event["key"] for event in got(client, "one") if event["key"].startswith(stream)]
        assert order == [key for key in keys(stream, range(5)) for _ in range(2)]

    until("their offsets are committed", lambda: committed(broker, "Ordered", "line") == len(sent))
    with broker.probe() as probe:
        member = json.loads(probe.must(38, {"consumerGroup": "line"}).body)["consumerIdList"][0]
        running = probe.must(307, {"consumerGroup": "line", "clientId": member, "jstackEnable": False})
        # the client cannot write its own figures as JSON before they have a second minute
        assert b"Ordered" in running.body or running.remark == "json marshal error: json: unsupported value: NaN"
        record = next(record for queue in range(4) for record in probe.read_queue("Ordered", queue))
        status = probe.must(223, {"topic": "Ordered", "group": "line"})
        assert member.encode() in status.body and b'"queueId":0' in status.body, status
        identity = f"7F000001{broker.port:08X}{record.phy_offset:016X}"
        fields = {"consumerGroup": "line", "clientId": member, "msgId": identity, "brokerName": "broker-a"}
        directly = probe.ask(309, fields)
        probe.must(222, {"topic": "Ordered", "group": "line", "timestamp": 0, "isForce": True})
    assert directly.code in (0, 1), directly
    until("all came again", lambda: set(sent) <= {event["key"] for event in got(client, "one")[2 * len(sent) + 1 :]})


def test_cpp_in_order(site: Site, session: Sessions) -> None:
    """A group in order takes each key in the order of sending, and only the tags that it has subscribed to."""
    namesrv, broker = start(site, "Ordered", queues=4)
    client = session("cpp", namesrv.addr)
    client.call("consume", group="line", topic="Ordered", member="one", order=True, expression="odd || 标签")
    streams = [f"stream{letter}" for letter in "abcdef"]
    for stream in streams:
        client.call("send", topic="Ordered", count=6, prefix=stream, order=True, tags=["even", "odd"])
    wanted = [key for stream in streams for key in keys(stream, range(1, 6, 2))]
    found = wait_for(client, "one", wanted)
    assert {event["body"] for event in found} == {f"body of {key}" for key in wanted}
    for stream in streams:
        assert [event["key"] for event in found if event["key"].startswith(stream)] == keys(stream, range(1, 6, 2))
    # also those that it does not take count as consumed
    until("its offsets are committed", lambda: committed(broker, "Ordered", "line") > len(wanted))


@CAMPAIGN
def test_go_members_in_order(site: Site, session: Sessions) -> None:
    """Members of a group in order lock their queues at the broker: each queue is one member's, and stays in order."""
    namesrv, _ = start(site, "Locked", queues=4)
    one, two = session("go", namesrv.addr), session("go", namesrv.addr)
    for client, name in ((one, "one"), (two, "two")):
        client.call("consume", group="line", topic="Locked", member=name, order=True)
    deadline = time.monotonic() + 90  # Go balances every 20 s
    turn = 0
    while not (got(one, "one") and got(two, "two")):
        assert time.monotonic() < deadline, "each member got queues, and their locks"
        one.call("send", topic="Locked", count=2, prefix=f"early{turn}", order=True)
        turn += 1
        time.sleep(0.5)
    for turn in range(20):
        one.call("send", topic="Locked", count=4, prefix=f"late{turn}", order=True)

    def late(client: PipedClient, name: str) -> list[Event]:
        return [event for event in got(client, name) if event["key"].startswith("late")]

    # A member that saw only itself at first may keep a lock that it no longer wants: it ends after 60 s, and Go tries
    # again every 20 s.
    until("all came", lambda: len(late(one, "one")) + len(late(two, "two")) == 80, seconds=150)
    queues = [{event["queue"] for event in late(client, name)} for client, name in ((one, "one"), (two, "two"))]
    assert not queues[0] & queues[1], queues
    found = late(one, "one") + late(two, "two")
    for turn in range(20):
        assert [e["key"] for e in found if e["key"].startswith(f"late{turn}-")] == keys(f"late{turn}", range(4))
