"""
What operators change while Java clients send and consume: topics, queues, groups, members.

With RMQ_REAL_OURS=4.9.7 the same tests hold for Apache's broker.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.real.campaigns import CAMPAIGN, campaign_only
from tests.real.conftest import Clients
from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, until

pytestmark = pytest.mark.real
VERSIONS = pytest.mark.parametrize("version", [APACHE_4, campaign_only(APACHE_5)])
BOTH = pytest.mark.parametrize("version", [APACHE_4, APACHE_5])

TOPIC, GROUP = "Changed", "changing-group"


def start(site: Site, queues: int = 4, **config: Any) -> tuple[Process, Broker]:
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, **config)
    set_queues(broker, queues, queues)
    return namesrv, broker


def set_queues(broker: Broker, read: int, write: int) -> None:
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": read, "writeQueueNums": write, "perm": 6}
    with broker.probe() as probe:
        probe.must(17, fields | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False})


def keys_of(events: list[dict[str, Any]]) -> set[str]:
    return {event["key"] for event in events}


def wait_for(java: JavaClient, what: str, wanted: set[str], *members: str, seconds: float = 120.0) -> None:
    java.wait_for_count(what, lambda: len(wanted & keys_of(java.got(*members))), len(wanted), seconds=seconds)


def send_until(java: JavaClient, prefix: str, condition: Callable[[], object], *, seconds: float = 120.0) -> set[str]:
    """Send rounds of 16 messages until ``condition`` holds; return the keys of all."""
    deadline, turn, sent = time.monotonic() + seconds, 0, set[str]()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s\n{java.tail()}"
        sent |= keys_of(java.send(TOPIC, "sync", 16, prefix=f"{prefix}{turn}"))
        turn += 1
    return sent


def noted(java: JavaClient, member: str) -> int:
    """Return how many messages are before the offsets in a broadcasting member's own file, written every 5 s."""
    files = java.log.parent.glob(f".rocketmq_offsets/*@{member}*/{GROUP}/offsets.json")
    return sum(int(offset) for file in files for offset in re.findall(r'\}"?\s*:\s*(\d+)', file.read_text()))


@VERSIONS
def test_a_topic_is_deleted(version: str, site: Site, client: Clients) -> None:
    """
    Clients of a topic that is deleted go on: sends make it again, and its consumer gets what is sent then.

    Queues begin at 0 again; the group's offsets go with the topic, so nothing of the new one is skipped.
    """
    namesrv, broker = start(site)
    java = client(version, namesrv.addr)
    java.consume(GROUP, TOPIC, "one")
    before = keys_of(java.send(TOPIC, "sync", 40, prefix="before"))
    wait_for(java, "messages of the first topic", before)
    under_way = java.begin_send(TOPIC, "sync", 400, prefix="meanwhile")
    java.wait("sends are under way", lambda: {"yes": True} if len(java.sent("meanwhile")) > 20 else None)
    with broker.probe() as probe:
        probe.must(215, {"topic": TOPIC})
    with namesrv.probe() as probe:
        probe.ask(216, {"topic": TOPIC})
    done = java.finish(under_way)
    assert done["ok"] == 400 and not done["lost"], java.tail()
    after = keys_of(java.send(TOPIC, "sync", 40, prefix="after"))
    wait_for(java, "messages of the second topic", after)

    def all_consumed() -> bool:
        with broker.probe() as probe:
            offsets = probe.all_offsets().get(f"{TOPIC}@{GROUP}", {})
            return all(offsets.get(str(queue), 0) == probe.max_offset(TOPIC, queue) for queue in range(4))

    until("its group is at the end of each queue", all_consumed, seconds=60)


@CAMPAIGN
@BOTH
def test_queues_are_added_and_taken(version: str, site: Site, client: Clients) -> None:
    """
    Queues that are added are written and consumed within seconds.

    Queues that must not be written any more are read to their end before they must not be read either.
    """
    namesrv, broker = start(site, 2)
    java = client(version, namesrv.addr)
    java.consume(GROUP, TOPIC, "one")
    sent = keys_of(java.send(TOPIC, "sync", 16, prefix="two"))

    def last(prefix: str) -> set[int]:
        return {event["queue"] for event in java.got() if event["key"].startswith(prefix)}

    set_queues(broker, 6, 6)
    sent |= send_until(java, "six", lambda: last("six") == set(range(6)))
    wait_for(java, "messages of all queues", sent)
    set_queues(broker, 6, 3)

    def narrow() -> bool:
        events = [e for e in list(java.events) if e.get("event") == "sent" and e["key"].startswith("less")]
        return len(events) >= 16 and {event["queue"] for event in events[-16:]} == {0, 1, 2}

    sent |= send_until(java, "less", narrow)
    wait_for(java, "what was sent to queues that are not written any more", sent)
    set_queues(broker, 3, 3)
    sent |= keys_of(java.send(TOPIC, "sync", 32, prefix="three"))
    wait_for(java, "messages of three queues", sent)


@VERSIONS
def test_a_group_is_deleted(version: str, site: Site, client: Clients) -> None:
    """A group that is deleted while it consumes goes on where it is: its next pull makes it again."""
    namesrv, broker = start(site)
    java = client(version, namesrv.addr)
    java.consume(GROUP, TOPIC, "one")
    sent = keys_of(java.send(TOPIC, "sync", 40, prefix="before"))
    wait_for(java, "messages before", sent)
    with broker.probe() as probe:
        probe.must(207, {"groupName": GROUP, "cleanOffset": False})
    more = keys_of(java.send(TOPIC, "sync", 40, prefix="after"))
    wait_for(java, "messages after", more)
    assert len([e for e in java.got() if e["key"] in sent]) == len(sent)

    def known() -> bool:
        with broker.probe() as probe:
            return GROUP in json.loads(probe.must(201).body)["subscriptionGroupTable"]

    until("the group is there again", known)


@VERSIONS
def test_a_group_begins_at_a_time(version: str, site: Site, client: Clients) -> None:
    """
    A new group with CONSUME_FROM_TIMESTAMP gets what was stored since; consumeTimestamp counts in seconds.

    A broker lets it choose where the begin of the queue is gone, or no longer in memory; otherwise it begins at 0.
    What it takes is the message nearest to the time, so the time is seconds after the old ones, just before the new.
    """
    namesrv, _broker = start(site, accessMessageInMemoryMaxRatio=0)
    java = client(version, namesrv.addr)
    java.send(TOPIC, "sync", 20, prefix="old")
    second = int(time.time()) + 6
    until("the second has begun", lambda: time.time() > second, seconds=30)
    moment = time.strftime("%Y%m%d%H%M%S", time.localtime(second))
    new = keys_of(java.send(TOPIC, "sync", 20, prefix="new"))
    java.consume(GROUP, TOPIC, "one", **{"from": moment})
    wait_for(java, "what was stored since", new)
    later = keys_of(java.send(TOPIC, "sync", 20, prefix="later"))
    wait_for(java, "what comes later", later)
    assert not [event for event in java.got() if event["key"].startswith("old")]


@VERSIONS
def test_a_broadcast_member_comes_back(version: str, site: Site, client: Clients) -> None:
    """A broadcasting member goes on where its own file says, not where the group is at the broker."""
    namesrv, broker = start(site)
    java = client(version, namesrv.addr)
    java.send(TOPIC, "sync", 4, prefix="first")
    java.consume(GROUP, TOPIC, "one", broadcast=True)
    java.consume(GROUP, TOPIC, "two", broadcast=True)
    ready = send_until(java, "early", lambda: java.got("one") and java.got("two"))
    last = keys_of(java.send(TOPIC, "sync", 20, prefix="both"))
    for member in ("one", "two"):
        wait_for(java, f"{member} gets all", last, member)
    with broker.probe() as probe:
        stored = sum(probe.max_offset(TOPIC, queue) for queue in range(4))
    # a handler that is about to return when its member leaves is not noted, and its message comes again
    until("two has noted what it got", lambda: noted(java, "two") == stored, seconds=60)
    java.leave("two")
    missed = keys_of(java.send(TOPIC, "sync", 20, prefix="missed"))
    wait_for(java, "one gets what two misses", missed, "one")
    count = len(java.got("two"))
    java.consume(GROUP, TOPIC, "two", broadcast=True)
    wait_for(java, "two gets what it missed", missed, "two")
    assert not (ready | last) & keys_of(java.got("two")[count:])
    with broker.probe() as probe:
        assert f"{TOPIC}@{GROUP}" not in probe.all_offsets()


@CAMPAIGN
def test_a_member_in_order_is_killed(site: Site, client: Clients) -> None:
    """
    A queue of a killed member goes to another one, in order: what was not committed comes again, nothing is skipped.

    The broker takes the locks of a member whose connection has ended at the latest 60 s after its last lock.
    """
    namesrv, _broker = start(site)
    doomed, other = client(APACHE_4, namesrv.addr), client(APACHE_4, namesrv.addr)
    doomed.consume(GROUP, TOPIC, "doomed", order=True, pauseMs=20)
    sender = client(APACHE_4, namesrv.addr)
    sent = keys_of(sender.send(TOPIC, "sync", 400, prefix="ordered"))
    doomed.wait("some were consumed", lambda: {"yes": True} if len(doomed.got()) > 20 else None)
    other.consume(GROUP, TOPIC, "other", order=True)
    doomed.kill()

    def seen() -> set[str]:
        return keys_of(doomed.got()) | keys_of(other.got())

    until("all were consumed", lambda: seen() >= sent, seconds=150)
    for queue in range(4):
        offsets = [event["offset"] for event in other.got() if event["queue"] == queue]
        assert offsets == sorted(set(offsets)), f"queue {queue}: {offsets}"
