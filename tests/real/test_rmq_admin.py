"""``rmq-admin`` against our cluster and Apache's: a day's work without a JVM, with the same results on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.real.campaigns import campaign_only
from tests.real.peers import APACHE_4, APACHE_5, OURS, Site, require_apache, until


class Admin:
    """Runs rmq-admin as a process."""

    def __init__(self, namesrv: str) -> None:
        self._environ = {**os.environ, "NAMESRV_ADDR": namesrv}

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rmq.admin", *arguments]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=120, check=False, env=self._environ
        )

    def text(self, *arguments: str, text: str = "") -> str:
        done = self.run(*arguments, text=text)
        assert (done.returncode, done.stderr) == (0, ""), (arguments, done)
        return done.stdout

    def data(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "-o", "json"))

    def lines(self, *arguments: str, text: str = "") -> list[Any]:
        return [json.loads(line) for line in self.text(*arguments, "-o", "json", text=text).splitlines()]


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, APACHE_4, campaign_only(APACHE_5)])
def test_a_day_without_a_jvm(site: Site, kind: str) -> None:
    """
    Topic, messages, lag, reset, look by key, dead letters, configuration: the same on servers of every kind.

    The group's offsets are moved by hand, as no consumer runs.
    """
    if kind != OURS:
        require_apache(kind)
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr)
    admin = Admin(namesrv.addr)
    (row,) = admin.data("cluster", "list")
    assert (row["broker"], row["id"], row["address"]) == ("broker-a", 0, broker.addr)
    assert admin.data("topic", "list") == []

    admin.text("topic", "create", "orders", "--queues", "2")
    until("the route of the topic", lambda: admin.run("topic", "route", "orders").returncode == 0, seconds=60)
    assert admin.data("topic", "list") == [{"topic": "orders"}]

    sent = admin.lines("produce", "orders", "-k", "order-7", "-c", "A", text="".join(f"body {n}\n" for n in range(10)))
    assert [one["status"] for one in sent] == ["OK"] * 10
    until(
        "the messages in both queues",
        lambda: sum(row["messages"] for row in admin.data("topic", "show", "orders")) == 10,
        seconds=60,
    )
    seen = admin.lines("tail", "orders", "--from", "begin", "--exit")
    assert sorted(one["body"] for one in seen) == [f"body {n}" for n in range(10)]
    assert {one["message_id"] for one in seen} == {one["message_id"] for one in sent}
    until(
        "the index of the messages",
        lambda: len(json.loads(admin.run("message", "find", "orders", "order-7", "-o", "json").stdout or "[]")) == 10,
        seconds=60,
    )
    (one,) = admin.data("message", "show", sent[3]["message_id"], "-t", "orders")
    assert (one["body"], one["keys"], one["tags"]) == ("body 3", ["order-7"], "A")
    (same,) = admin.data("message", "show", sent[3]["offset_message_id"])
    assert same["message_id"] == sent[3]["message_id"]

    admin.text("group", "create", "G", "--retryMaxTimes", "3")
    moved = admin.data("group", "reset", "G", "orders", "--to", "begin", "--yes")
    assert [(row["queue"], row["new_offset"]) for row in moved] == [(0, 0), (1, 0)]
    # A group is known to NameServers by its retry topic, which its first member or send-back makes.
    admin.text("topic", "create", "%RETRY%G", "--queues", "1")
    until("the group's route", lambda: admin.run("group", "show", "G").returncode == 0, seconds=60)

    def lag() -> int:
        return sum(row["lag"] for row in admin.data("group", "show", "G") if row["topic"] == "orders")

    assert lag() == 10
    assert admin.run("group", "show", "G", "--maxLag", "5").returncode == 2
    admin.text("group", "skip", "G", "orders", "--yes")
    assert lag() == 0

    with broker.probe() as probe:
        back = {"offset": "0", "group": "G", "delayLevel": "-1", "originTopic": "orders", "maxReconsumeTimes": "3"}
        assert probe.ask(36, back).code == 0
    until("the dead letter", lambda: admin.data("dlq", "list") != [], seconds=60)
    (letter,) = admin.lines("dlq", "show", "G")
    (again,) = admin.data("dlq", "resend", "G", "--all", "--yes")
    assert (letter["topic"], letter["origin_topic"]) == ("%DLQ%G", "orders")
    assert (again["topic"], again["status"]) == ("orders", "OK")
    (copy,) = admin.lines("tail", "%RETRY%G", "--from", "begin", "--exit")
    assert (copy["topic"], copy["origin_topic"], copy["body"]) == ("%RETRY%G", "orders", letter["body"])

    admin.text("broker", "set", "maxMessageSize", "100000", "--yes")
    values = {row["key"]: row["value"] for row in admin.data("broker", "config")}
    assert values["maxMessageSize"] == "100000"
    admin.text("broker", "drain", "broker-a", "--yes")
    assert admin.data("topic", "route", "orders")[0]["perm"] == "R--"
    admin.text("broker", "undrain", "broker-a")
    assert admin.data("topic", "route", "orders")[0]["perm"] == "RW-"
    admin.text("kv", "set", "NS", "k", "v")
    assert admin.text("kv", "get", "NS", "k") == "v\n"
    admin.text("kv", "delete", "NS", "k", "--yes")
    assert admin.run("topic", "delete", "orders").returncode == 4
    admin.text("topic", "delete", "orders", "--yes")
    until("the route is gone", lambda: admin.run("topic", "route", "orders").returncode == 2, seconds=60)
    admin.text("group", "delete", "G", "--yes")


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, APACHE_4, APACHE_5])
def test_rarer_commands(site: Site, kind: str) -> None:
    """Figures, members, exports and a consumer with a program, on servers of every kind."""
    if kind != OURS:
        require_apache(kind)
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr)
    admin = Admin(namesrv.addr)
    admin.text("topic", "create", "orders", "--queues", "2")
    until("the route of the topic", lambda: admin.run("topic", "route", "orders").returncode == 0, seconds=60)
    admin.text("produce", "orders", text="a\nb\nc\nd\n")
    assert admin.data("topic", "clusters", "orders") == [{"cluster": "DefaultCluster"}]
    assert [row["queue"] for row in admin.data("topic", "allocate", "orders", "--members", "b,a")] == [0, 1]
    (row,) = admin.data("topic", "ping", "orders", "--count", "2")
    assert (row["sent"], row["failed"]) == (2, 0)
    (row,) = admin.data("cluster", "ping", "--count", "2")
    assert (row["topic"], row["failed"]) == ("broker-a", 0)
    admin.text("topic", "order", "orders", "set", "--conf", "broker-a:2", "--yes")
    assert admin.text("topic", "order", "orders", "get") == "broker-a:2\n"
    admin.text("topic", "order", "orders", "delete", "--yes")

    admin.text("group", "create", "G")
    done = admin.run("consume", "orders", "-g", "G", "--from", "begin", "--count", "7", "--exec", "cat; echo")
    assert done.returncode == 0, done
    assert set("abcd") <= set(done.stdout.split())
    until("the group's route", lambda: admin.run("group", "show", "G").returncode == 0, seconds=60)
    assert sum(row["lag"] for row in admin.data("group", "show", "G") if row["topic"] == "orders") == 0
    config = {row["key"]: row["value"] for row in admin.data("group", "config", "G")}
    assert (config["groupName"], config["retryMaxTimes"]) == ("G", 16)
    admin.text("group", "lag", "-b", broker.addr)
    admin.text("monitor", "--once")
    admin.text("produce", "orders", "-m", "late")
    found = json.loads(admin.run("monitor", "--once", "-o", "json").stdout)
    assert [(one["group"], one["lag"]) for one in found] == [("G", 1)]
    assert admin.run("group", "lag").returncode == 2
    stats = admin.data("topic", "stats", "orders")
    assert [row["lag"] for row in stats if row["group"] == "G"] == [1], stats

    (message,) = admin.data("message", "at", "orders", "broker-a", "0", "0")
    assert message["body"] in "abcd"
    (unit,) = admin.data("message", "index", "orders", "0", "0", "-b", broker.addr, "--count", "1")
    assert unit["offset"] == 0
    exported = admin.data("export", "metadata")
    assert exported["topicConfigTable"]["orders"]["writeQueueNums"] == 2
    assert "G" in exported["subscriptionGroupTable"]
    assert admin.data("export", "configs")["brokerConfigs"]["broker-a"]["brokerClusterName"] == "DefaultCluster"
    assert "putTps" in admin.data("export", "metrics")["runtimeFigures"][broker.addr]
    admin.text("producer", "list")
    assert admin.run("producer", "members", "P", "orders").returncode == 2
    for what in ("topics", "queues", "log"):
        done = admin.run("broker", f"clean-{what}", "--yes")
        assert "Traceback" not in done.stderr and done.returncode in (0, 1), done
