"""``rmq-admin`` against our cluster and Apache's: a day's work without a JVM, with the same results on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

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
@pytest.mark.parametrize("kind", [OURS, APACHE_4, APACHE_5])
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
    assert (letter["topic"], again["topic"], again["status"]) == ("orders", "orders", "OK")
    (copy,) = admin.lines("tail", "%RETRY%G", "--from", "begin", "--exit")
    assert (copy["topic"], copy["body"]) == ("orders", letter["body"])

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
