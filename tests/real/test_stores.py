"""A store directory changes hands: Apache opens ours, we open Apache's, every message at its old place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.driver.audit import Options, check
from rmq_audit.engine.engines import LocalEngine

from tests.real.campaigns import campaign_only
from tests.real.conftest import Clients
from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, until
from tests.real.probe import Record

TOPICS = {"Moved": 4, "Second": 2}
GROUP = "movers"

#: (who wrote it, who opens it)
MOVES = [(OURS, APACHE_4), (OURS, APACHE_5), (APACHE_4, OURS), (APACHE_5, OURS)]
#: 5.x may write what 4.9 and we do not know; what it needs to write plain stores
PLAIN_5 = {"timerWheelEnable": False}


def start(site: Site, kind: str, namesrv: Process, name: str, store: Path) -> Broker:
    config: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 19, "mappedFileSizeConsumeQueue": 20 * 200}
    config |= {"maxHashSlotNum": 500, "maxIndexNum": 2000} | (PLAIN_5 if kind == APACHE_5 else {})
    return site.broker(kind, namesrv.addr, name, store=store, **config)


def fill(java: JavaClient, broker: Broker) -> None:
    """Put mixed messages of two topics into the store, and consumer offsets in the middle of the queues."""
    for topic, queues in TOPICS.items():
        with broker.probe() as probe:
            probe.create_topic(topic, queues)
        java.send(topic, "mixed", 800, prefix=f"{topic}-mixed", sizes=(20, 2500))
        java.send(topic, "sync", 50, prefix=f"{topic}-sync", sizes=(20, 9000))
    with broker.probe() as probe:
        probe.join_group(GROUP, "Moved")  # 5.x keeps no offsets of a group that it has never seen
        for queue in range(TOPICS["Moved"]):
            probe.commit_offset(GROUP, "Moved", queue, 17 + queue)


def everything(broker: Broker) -> dict[str, dict[int, list[Record]]]:
    with broker.probe() as probe:
        return {topic: probe.read_topic(topic, queues) for topic, queues in TOPICS.items()}


def offsets(broker: Broker) -> dict[int, int]:
    with broker.probe() as probe:
        return {queue: probe.committed_offset(GROUP, "Moved", queue) for queue in range(TOPICS["Moved"])}


def wait_offsets_written(broker: Broker) -> None:
    path = broker.store / "config" / "consumerOffset.json"
    until(f"{path} holds the group", lambda: GROUP in path.read_text(), seconds=30)


@pytest.mark.real
@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize(("writer", "opener"), MOVES, ids=lambda kind: kind)
def test_a_store_changes_hands(writer: str, opener: str, end: str, site: Site, client: Clients) -> None:
    """
    After a clean stop or a kill -9 of the writer, the opener serves every message at its queue offset, unchanged.

    It finds messages by key and id, knows the topics' queues and the group's offsets, and goes on where the queues end.
    """
    namesrv = site.namesrv(OURS)
    first = start(site, writer, namesrv, "writer", site.root / "store")
    java = client(APACHE_4, namesrv.addr)
    fill(java, first)
    before, committed = everything(first), offsets(first)
    sent = {e["key"]: e for e in java.sent("Moved-mixed") + java.sent("Moved-sync")}
    wait_offsets_written(first)
    java.close()
    if end == "killed":
        first.kill()
    else:
        first.stop()

    second = start(site, opener, namesrv, "opener", first.store)
    assert_same_messages(before, everything(second))
    assert offsets(second) == committed
    with second.probe() as probe:
        topics = probe.topics()
    assert {t: topics[t]["writeQueueNums"] for t in TOPICS} == TOPICS
    assert_found_by_key_and_id(client(APACHE_4, namesrv.addr), second, sent)
    assert_goes_on(second, before)


def assert_same_messages(before: dict[str, dict[int, list[Record]]], after: dict[str, dict[int, list[Record]]]) -> None:
    for topic, queues in before.items():
        for queue, expected in queues.items():
            served = after[topic][queue]
            assert len(served) == len(expected), f"{topic}-{queue}"
            for old, new in zip(expected, served, strict=True):
                assert new.raw == old.raw, f"{topic}-{queue} offset {old.queue_offset}"


def assert_found_by_key_and_id(java: JavaClient, broker: Broker, sent: dict[str, dict[str, Any]]) -> None:
    """The index file names the message; the id, whose port is the old broker's, works with the new one's."""
    for key in list(sent)[:: len(sent) // 7]:
        old_id = str(sent[key]["offsetMsgId"])
        new_id = old_id[:8] + f"{broker.port:08X}" + old_id[16:]
        found = java.query("Moved", key=key) + java.query("Moved", msgId=new_id)
        places = [(e["key"], e["queue"], e["offset"], e["hash"]) for e in found]
        assert places == [(key, sent[key]["queue"], sent[key]["offset"], sent[key]["hash"])] * 2


def assert_goes_on(broker: Broker, before: dict[str, dict[int, list[Record]]]) -> None:
    """New messages continue the queues without a gap and without taking a place again."""
    with broker.probe() as probe:
        for queue, old in before["Moved"].items():
            answer = probe.send_message("Moved", queue, b"after the move", KEYS="new")
            assert (answer.code, int(answer.ext["queueOffset"])) == (0, len(old))


def queue_to_damage(topic: Path) -> tuple[int, int]:
    """
    Return the queue whose last file holds most units, and half their number.

    The file must not become empty: Apache's ConsumeQueue#truncateDirtyLogicFiles then takes its first 20 zero bytes for
    a unit, and its broker answers the pull of that unit with an IndexOutOfBoundsException.
    """
    used = {int(q.name): len(max(q.iterdir()).read_bytes().rstrip(b"\0")) // 20 for q in topic.iterdir()}
    queue_id = max(used, key=lambda queue: used[queue])
    assert used[queue_id] >= 2, used
    return queue_id, used[queue_id] // 2


@pytest.mark.real
@pytest.mark.parametrize("kind", [APACHE_4, campaign_only(APACHE_5), OURS])
def test_a_queue_that_lost_units_is_rebuilt_as_the_audit_says(
    kind: str, site: Site, client: Clients, tmp_path: Path
) -> None:
    """
    Apache's broker never adds units that one queue has lost, not even when the queue's folder is deleted.

    Without its checkpoint, and with the file abort, it makes them from the log, and every message is at its old place.
    Ours does so by itself.
    """
    store = tmp_path / "store"
    namesrv = site.namesrv(OURS)
    broker = start(site, kind, namesrv, "broker-a", store)
    fill(client(APACHE_4, namesrv.addr), broker)
    written = everything(broker)
    broker.stop()
    assert check(str(store), LocalEngine(1), Options()).exit_status == 0
    queue_id, half = queue_to_damage(store / "consumequeue" / "Moved")
    last = max((store / "consumequeue" / "Moved" / str(queue_id)).iterdir())
    units = last.read_bytes()
    last.write_bytes(units[: half * 20].ljust(len(units), b"\0"))
    shutil.rmtree(store / "consumequeue" / "Second" / "0")
    damaged = check(str(store), LocalEngine(1), Options())
    lost = [(one.topic, one.queue_id) for one in damaged.findings if one.invariant == "CQ-LOST"]
    assert (damaged.exit_status, lost) == (2, [("Moved", queue_id), ("Second", 0)]), damaged.findings

    broker = start(site, kind, namesrv, "broker-a", store)
    found = everything(broker)
    broker.stop()
    if kind != OURS:
        for topic, queue in (("Moved", queue_id), ("Second", 0)):
            assert len(found[topic][queue]) < len(written[topic][queue])
        (store / "checkpoint").unlink()
        shutil.rmtree(store / "consumequeue" / "Moved" / str(queue_id))
        shutil.rmtree(store / "consumequeue" / "Second" / "0", ignore_errors=True)
        (store / "abort").touch()
        broker = start(site, kind, namesrv, "broker-a", store)
        found = everything(broker)
        broker.stop()
    assert found == written
    rebuilt = check(str(store), LocalEngine(1), Options())
    assert [one for one in rebuilt.findings if one.invariant.startswith(("CQ-", "QO-", "IX-"))] == []
