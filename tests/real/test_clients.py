"""
Unmodified Java clients against the local cluster that the README starts (acceptance 1).

Every way to send, a push group of two, a broker killed with -9 in between.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.conftest import Clients
from tests.real.javaclient import JavaClient, content
from tests.real.peers import APACHE_4, APACHE_5, HOST, OURS, STAND_IN, Process, Site, until
from tests.real.probe import PULL, Probe, decode_records, fastjson, pull_fields

WAYS = ("sync", "async", "oneway", "batch")
VERSIONS = (APACHE_4, APACHE_5)
PULL_NOT_FOUND = 19
NOTICED = "broker-a was killed by signal 9"


class LocalCluster:
    """``rmq-local`` on ports of its own; its master can be killed and comes back by itself."""

    def __init__(self, site: Site):
        self.namesrv_port, self.master_port, self.slave_port = free_port(), free_port(), free_port()
        self.namesrv = f"{HOST}:{self.namesrv_port}"
        self._site = site
        if STAND_IN == OURS:
            self._start_local()
        else:
            self._start_apache()
        until("master and slave are registered", self.is_complete)

    def _start_local(self) -> None:
        data = self._site.root / "rmq-data"
        self.store = data / "broker-a"
        ports = {"--namesrv-port": self.namesrv_port, "--broker-port": self.master_port}
        ports["--slave-port"] = self.slave_port
        ports["--http-port"] = 0
        options = [text for option, port in ports.items() for text in (option, str(port))]
        command = [sys.executable, "-m", "rmq.local", "--dir", str(data), *options]
        self.process = self._site.command("rmq-local", command, self.slave_port)
        self.process.logs += [data / "logs" / f"{name}.log" for name in ("namesrv", "broker-a", "broker-a-s")]

    def _start_apache(self) -> None:
        namesrv = self._site.namesrv(name="namesrv")
        self.namesrv, self.namesrv_port = namesrv.addr, namesrv.port
        self.process = self._site.broker(OURS, self.namesrv)
        self.master_port = self.process.port
        self.store = self.process.store

    def is_complete(self) -> bool:
        with Probe(self.namesrv_port) as probe:
            addrs = probe.cluster()["brokerAddrTable"]["broker-a"]["brokerAddrs"]
        return STAND_IN != OURS or set(addrs) == {"0", "1"}

    def has_master(self) -> bool:
        with Probe(self.namesrv_port) as probe:
            broker = probe.cluster()["brokerAddrTable"].get("broker-a", {"brokerAddrs": {}})
        return "0" in broker["brokerAddrs"]

    def has_stored(self, topic: str, group: str, offsets: dict[str, tuple[int, int, int]]) -> bool:
        """Tell whether the master's file of consumer offsets holds these."""
        table = fastjson((self.store / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
        stored = table.get(f"{topic}@{group}")
        return bool(stored == {queue: committed for queue, (_, _, committed) in offsets.items()})

    def kill_master(self) -> None:
        """SIGKILL the master and wait until it serves again."""
        if STAND_IN != OURS:
            self.process.kill()
            until("the route is gone", lambda: not self.has_master())
            self.process.start()
        else:
            boot_line = f"The broker[broker-a, {HOST}:{self.master_port}] boot success."
            boots, deaths = self.process.console.read_text().count(boot_line), self.process.text().count(NOTICED)
            os.kill(master_pid(self.process, self.master_port), signal.SIGKILL)
            until("rmq-local noticed", lambda: self.process.text().count(NOTICED) > deaths)
            until("the master boots again", lambda: self.process.console.read_text().count(boot_line) > boots)
        until("the master is registered again", self.has_master)


def master_pid(local: Process, port: int) -> int:
    """Return the child of rmq-local that was started with this ``--listenPort``."""
    for line in Path(f"/proc/{local.pid}/task/{local.pid}/children").read_text().split():
        arguments = Path(f"/proc/{line}/cmdline").read_bytes().split(b"\0")
        if b"rmq-broker" in arguments and str(port).encode() in arguments:
            return int(line)
    raise LookupError(f"no child of rmq-local serves port {port}")


def send_all_ways(java: JavaClient, topic: str, count: int, prefix: str) -> dict[str, tuple[str, str, int, str]]:
    """Send ``count`` messages, a quarter each way; return key -> content."""
    sent = {}
    for way in WAYS:
        for event in java.send(topic, way, count // len(WAYS), prefix=f"{prefix}{way}", sizes=(30, 6000)):
            sent[event["key"]] = content(event)
            assert way == "oneway" or event["status"] == "SEND_OK"
    assert len(sent) == count
    return sent


def assert_received(java: JavaClient, sent: dict[str, tuple[str, str, int, str]], *members: str) -> None:
    """Each message reached the group at least once, with key, tag and body intact."""
    keys = set(sent)
    java.wait_for_count(
        "the group receives every message", lambda: len(keys & {e["key"] for e in java.got(*members)}), len(keys)
    )
    changed = [e for e in java.got(*members) if e["key"] in keys and content(e) != sent[e["key"]]]
    assert not changed, f"{len(changed)} messages changed on the way, such as {changed[0]}"


@pytest.mark.real
def test_every_way_to_send_reaches_a_group_of_two(site: Site, client: Clients) -> None:
    """
    Clients 4.9.7 and 5.3.3 send 1,000 messages each in all ways; a group of two gets each at least once, intact.

    Half way the master is killed with -9. Nobody's offsets are lost: a member that joins later starts where the
    group was.
    """
    cluster = LocalCluster(site)
    for version in VERSIONS:
        topic, group = f"Clients{version[0]}", f"readers-{version[0]}"
        java = client(version, cluster.namesrv)
        java.send(topic, "sync", 1, prefix="first")
        for member in ("one", "two"):
            java.consume(group, topic, member)
        sent = send_all_ways(java, topic, 500, "before-")
        assert_received(java, sent, "one", "two")
        until("the offsets are committed", partial(all_consumed, java, topic, group), seconds=30)
        before = java.offsets(topic, group)
        # A broker writes the table down every 5 s, Apache's and ours; what is younger is delivered again.
        until("the offsets are on disk", partial(cluster.has_stored, topic, group, before), seconds=30)

        cluster.kill_master()

        after = java.offsets(topic, group)
        assert after == before, "offsets changed when the master was killed"
        sent = send_all_ways(java, topic, 500, "after-")
        assert_received(java, sent, "one", "two")
        both = {member: {e["queue"] for e in java.got(member)} for member in ("one", "two")}
        assert both["one"] and both["two"], f"the queues were not shared: {both}"
        # A member that leaves commits in the background, while the other already takes its queues over.
        until("the offsets are committed", partial(all_consumed, java, topic, group), seconds=30)
        java.leave("one")
        java.leave("two")
        java.consume(group, topic, "three")
        sent = {e["key"]: content(e) for e in java.send(topic, "sync", 20, prefix="last")}
        assert_received(java, sent, "three")
        again = [e for e in java.got("three") if not e["key"].startswith("last-")]
        assert not again, f"member three received {len(again)} messages that its group had consumed: {again[:3]}"
        java.close()


def all_consumed(java: JavaClient, topic: str, group: str) -> bool:
    return all(committed == maximum for _, maximum, committed in java.offsets(topic, group).values())


@pytest.mark.real
@pytest.mark.parametrize("version", VERSIONS)
def test_tags_are_filtered_and_messages_found(version: str, site: Site, client: Clients) -> None:
    """A subscription by tags gets just these; messages are found by key and by id, and old offsets by pulling."""
    namesrv = site.namesrv()
    site.broker(OURS, namesrv.addr)
    java = client(version, namesrv.addr)
    java.send("Tags", "sync", 1, prefix="first", tags=["TagZ"])
    java.consume("tag-readers", "Tags", "one", "TagA || 标签")
    sent = {e["key"]: e for e in java.send("Tags", "sync", 200, prefix="tagged")}
    wanted = {key: content(e) for key, e in sent.items() if e["tag"] in ("TagA", "标签")}
    assert len(wanted) == 100
    assert_received(java, wanted, "one")
    assert {e["tag"] for e in java.got()} == {"TagA", "标签"}
    one = sent["tagged-77"]
    for found in (java.query("Tags", key="tagged-77"), java.query("Tags", msgId=one["offsetMsgId"])):
        assert [(content(e), e["queue"], e["offset"]) for e in found] == [(content(one), one["queue"], one["offset"])]
    read = {e["key"]: e for e in java.read("Tags")}
    assert len(read) == 201
    for key, event in sent.items():
        assert (read[key]["queue"], read[key]["offset"]) == (event["queue"], event["offset"])


@pytest.mark.smoke
def test_a_java_client_sends_and_receives(site: Site, client: Clients) -> None:
    """A 4.9.7 client sends in every way and a push group of two receives each message intact."""
    namesrv = site.namesrv()
    site.broker(OURS, namesrv.addr)
    java = client(APACHE_4, namesrv.addr)
    java.send("Smoke", "sync", 1, prefix="first")
    java.consume("smoke-readers", "Smoke", "one")
    java.consume("smoke-readers", "Smoke", "two")
    assert_received(java, send_all_ways(java, "Smoke", 200, "smoke-"), "one", "two")


@pytest.mark.real
@pytest.mark.parametrize(("asks", "answers"), [(APACHE_4, APACHE_5), (APACHE_5, APACHE_4)])
def test_requests_are_replied_to(asks: str, answers: str, site: Site, client: Clients) -> None:
    """A request reaches a consumer of another version, and its reply the requester; the reply is stored as well."""
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr)
    with broker.probe() as probe:
        probe.create_topic("Requests", 2)
    replier, requester = client(answers, namesrv.addr), client(asks, namesrv.addr)
    replier.call("replier", group="repliers", topic="Requests", member="one")
    for number in range(5):
        reply = requester.call("request", topic="Requests", key=f"r-{number}", body=f"ask {number}", timeoutMs=60_000)
        assert (reply["body"], reply["type"], reply["pushed"]) == (f"re: ask {number}", "reply", True), replier.tail()
    until("the replier was answered", lambda: len(replier.happened("replied")) == 5)
    stored = {event["offsetMsgId"] for event in replier.happened("replied")}
    assert {event["status"] for event in replier.happened("replied")} == {"SEND_OK"}
    with broker.probe() as probe:
        records = probe.read_queue("DefaultCluster_REPLY_TOPIC", 0)
    assert sorted(record.body.decode() for record in records) == [f"re: ask {number}" for number in range(5)]
    assert len(stored) == 5


@pytest.mark.smoke
def test_a_waiting_pull_wakes_up(site: Site) -> None:
    """A pull at the end of a queue is held, and answered as soon as a message comes or when its time is up."""
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr)
    with broker.probe() as sender, broker.probe() as puller:
        sender.create_topic("Waits", 1)
        sender.send_message("Waits", 0, b"first")
        started = time.monotonic()
        answer = puller.pull("Waits", 0, 1, wait_ms=1500)
        # Apache looks for expired pulls every 5 s.
        assert answer.code == PULL_NOT_FOUND and 1.4 <= time.monotonic() - started <= 60

        waiting = puller.send(PULL, pull_fields("Waits", 0, 1, wait_ms=120_000))
        assert puller.max_offset("Waits", 0) == 1  # answered behind the pull, which therefore waits now
        sender.send_message("Waits", 0, b"second")
        sent = time.monotonic()
        puller.socket.settimeout(60)
        woken = puller.read()
        assert woken.opaque == waiting and time.monotonic() - sent < 60
        assert [record.body for record in decode_records(woken.body)] == [b"second"]
