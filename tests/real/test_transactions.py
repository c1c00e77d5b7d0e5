"""Transactions with Java's clients, and stores with open transactions that move between Apache's broker and ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.real.campaigns import campaign_only
from tests.real.conftest import Clients
from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, until

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
TOPIC, GROUP = "Deals", "dealers"
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKER = "CID_RMQ_SYS_TRANS"

#: Checks come soon and often; between two of them is time to kill a broker. Nothing is discarded.
CHECKS: dict[str, Any] = {"transactionTimeOut": 500, "transactionCheckInterval": 3000, "transactionCheckMax": 1000}


def keys(prefix: str, count: int = 3) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def got(java: JavaClient) -> list[str]:
    return sorted(event["key"] for event in java.got())


def checked(java: JavaClient) -> set[str]:
    return {event["key"] for event in java.happened("checked")}


def wait_for(java: JavaClient, what: str, seen: Callable[[JavaClient], object], wanted: object) -> None:
    java.wait(what, lambda: {"seen": True} if seen(java) == wanted else None, seconds=60)


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_java_producers(version: str, site: Site, client: Clients) -> None:
    """
    Committed messages arrive once, rolled back ones never; unknown ones end as the producer says when it is asked.

    The questions about a producer that was killed go to another member of its group.
    """
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, **CHECKS)
    with broker.probe() as probe:
        probe.create_topic(TOPIC, 4)
    first, second = client(version, namesrv.addr), client(version, namesrv.addr)
    second.consume("buyers", TOPIC, "buyer", "TagA")
    for prefix, local, answer in (
        ("committed", COMMIT, UNKNOWN),
        ("rolled", ROLLBACK, UNKNOWN),
        ("later-committed", UNKNOWN, COMMIT),
        ("later-rolled", UNKNOWN, ROLLBACK),
    ):
        begun = first.transact(GROUP, TOPIC, 3, prefix=prefix, local=local, checked=answer)
        assert {(event["status"], event["state"]) for event in begun} == {("SEND_OK", local)}
    unknown = {*keys("later-committed"), *keys("later-rolled")}
    wait_for(first, "the questions", checked, unknown)
    visible = keys("committed") + keys("later-committed")
    wait_for(second, "the committed messages", got, sorted(visible))
    assert {(event["topic"], event["transaction"]) for event in first.happened("checked")} == {
        (TOPIC, event["msgId"]) for event in first.happened("transaction") if event["key"] in unknown
    }

    first.transact(GROUP, TOPIC, 3, prefix="orphaned", local=UNKNOWN, checked=UNKNOWN, by_another=COMMIT)
    first.kill()
    second.answer(GROUP, by="by_another")
    second.transact(GROUP, TOPIC, 1, prefix="own", local=ROLLBACK)  # a 5.x producer that sends nothing is in no group
    wait_for(second, "the messages of the killed producer", got, sorted(visible + keys("orphaned")))
    wait_settled(broker)
    assert got(second) == sorted(visible + keys("orphaned"))
    assert len(first.happened("checked")) == len(unknown)


# ---- stores that move ----


def position(broker: Broker, topic: str) -> tuple[int, int]:
    """Return how far the checks are in a topic of half or op messages, and its end."""
    with broker.probe() as probe:
        return probe.all_offsets().get(f"{topic}@{CHECKER}", {}).get("0", -1), probe.max_offset(topic, 0)


def wait_settled(broker: Broker) -> None:
    """Wait until no half message is open."""

    def settled() -> bool:
        return all(offset == end > 0 for offset, end in (position(broker, HALF), position(broker, OP)))

    until(f"{broker.name} has no open half messages", settled)


def saved(broker: Broker) -> int:
    """Return how far the checks of half messages are, by the file; -1 without one."""
    path = broker.store / "config" / "consumerOffset.json"
    # Apache deletes the file for a moment when it writes the next one.
    for one in (path, path.with_name(path.name + ".bak")):
        if one.exists():
            table = json.loads(_quoted(one.read_text()))["offsetTable"]
            return int(table.get(f"{HALF}@{CHECKER}", {}).get("0", 0))
    return -1


def _quoted(text: str) -> str:
    """Quote the numbers that fastjson writes as keys."""
    for queue in range(16):
        text = text.replace(f"{{{queue}:", f'{{"{queue}":').replace(f",{queue}:", f',"{queue}":')
    return text


def end(broker: Broker, how: str) -> None:
    """
    Stop a broker, or kill it just after a check, of which it has saved how far it is.

    A kill in the middle of a check may repeat its questions; then a transaction may be committed twice.
    """
    if how == "killed":
        before = saved(broker)
        until(f"{broker.name} has saved the next check", lambda: saved(broker) > before)
        broker.kill()
    else:
        broker.stop()


def start(site: Site, kind: str, namesrv: Process, name: str, first: Broker | None = None) -> Broker:
    more: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 200}
    store = site.root / "store" if first is None else first.store
    # 5.x writes op messages of the last 3 s together; a check before that asks again, and commits come twice
    more |= {"transactionOpBatchInterval": 100} if kind == APACHE_5 else {}
    return site.broker(kind, namesrv.addr, name, store=store, flushConsumerOffsetInterval=500, **CHECKS, **more)


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, campaign_only(APACHE_5)])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_open_transactions_move(how: str, version: str, site: Site, client: Clients) -> None:
    """
    What is open at ours ends at Apache's, what is open at Apache's ends at ours: no commit is lost or doubled.

    Both have checked the open ones before the move, so the store has copies of their half messages.
    """
    namesrv = site.namesrv(OURS)
    ours = start(site, OURS, namesrv, "ours")
    with ours.probe() as probe:
        probe.create_topic(TOPIC, 4)
    java = client(APACHE_4, namesrv.addr)
    java.transact(GROUP, TOPIC, 3, prefix="a-committed", local=COMMIT)
    java.transact(GROUP, TOPIC, 3, prefix="a-rolled", local=ROLLBACK)
    java.transact(GROUP, TOPIC, 3, prefix="a-open-committed", local=UNKNOWN, second=COMMIT)
    java.transact(GROUP, TOPIC, 3, prefix="a-open-rolled", local=UNKNOWN, second=ROLLBACK)
    opened = {*keys("a-open-committed"), *keys("a-open-rolled")}
    wait_for(java, "questions of our broker", checked, opened)
    java.kill()
    end(ours, how)

    apache = start(site, version, namesrv, "apache", ours)
    java = client(APACHE_4, namesrv.addr)
    java.answer(GROUP, by="second")
    wait_for(java, "questions of Apache's broker", checked, opened)
    wait_settled(apache)
    visible = keys("a-committed") + keys("a-open-committed")
    assert sorted(event["key"] for event in java.read(TOPIC)) == sorted(visible)
    java.transact(GROUP, TOPIC, 3, prefix="b-committed", local=COMMIT)
    java.transact(GROUP, TOPIC, 3, prefix="b-open-committed", local=UNKNOWN, third=COMMIT)
    java.transact(GROUP, TOPIC, 3, prefix="b-open-rolled", local=UNKNOWN, third=ROLLBACK)
    more = {*keys("b-open-committed"), *keys("b-open-rolled")}
    wait_for(java, "questions about new half messages", lambda one: checked(one) - opened, more)
    java.kill()
    end(apache, how)

    again = start(site, OURS, namesrv, "ours-again", ours)
    java = client(APACHE_4, namesrv.addr)
    java.answer(GROUP, by="third")
    wait_for(java, "questions of our broker", checked, more)
    wait_settled(again)
    visible += keys("b-committed") + keys("b-open-committed")
    assert sorted(event["key"] for event in java.read(TOPIC)) == sorted(visible)
