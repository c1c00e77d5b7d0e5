"""The brokers that `bench.table` compares, how they are filled, and consumers that keep their groups known."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from bench.rounds import Candidate
from tests.real.elected import Elected
from tests.real.peers import APACHE_5, OURS, Broker, Process, Site, until
from tests.real.probe import Probe
from tests.real.storm import QUEUES

#: topics for sends; for pulls; for what is pulled while it is sent, with a queue for each of its consumers
SENT, FILLED, HELD = "BenchSent", "BenchFilled", "BenchHeld"
CONSUMERS = 16
#: seconds of load before ours is measured
WARM_S = 0.5
MESSAGES, BODY_BYTES, BATCH = 8 * QUEUES * 64, 256, 32
HEARTBEAT, HEARTBEAT_S = 34, 10.0
#: of a producer and consumer that may not administrate
ACCOUNT = ("application", "12345678")
ACCOUNTS = """globalWhiteRemoteAddresses: []
accounts:
- accessKey: application
  secretKey: "12345678"
  whiteRemoteAddress: ""
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
"""
#: group -> what it subscribes to, (topic, type, expression) each
GROUPS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "all": [(FILLED, "TAG", "*")],
    "tag": [(FILLED, "TAG", "TagA")],
    "sql": [(FILLED, "SQL92", "part BETWEEN 1 AND 3 AND part = 2")],
    "many": [(f"{SENT}-{number}" if number else SENT, "TAG", "*") for number in range(8)],
}


@attrs.frozen(kw_only=True)
class Started(Candidate):
    """A NameServer with masters, and a slave of the first one where there is one."""

    masters: Sequence[Broker]
    namesrv: Process
    slave: Broker | None = None

    @property
    def master(self) -> Broker:
        return self.masters[0]


def start(
    site: Site, kind: str, name: str, warm_s: float, *, slave: bool = False, masters: int = 1, **config: object
) -> Started:
    """Start brokers with empty topics; ``warm_s`` is the load that Java needs before it is measured."""
    others = len(site.processes)
    values: dict[str, Any] = {"mappedFileSizeCommitLog": 256 << 20, "mappedFileSizeConsumeQueue": 20 * 300_000}
    values |= {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000, "enablePropertyFilter": True} | config
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    brokers = []
    for number in range(masters):
        values["brokerName"] = f"broker-{'ab'[number]}"
        brokers.append(site.broker(kind, namesrv.addr, f"{name}-{number}", **values))
        with brokers[-1].probe() as probe:
            for topic, queues in ((SENT, QUEUES), (FILLED, QUEUES), (HELD, CONSUMERS)):
                probe.create_topic(topic, queues)
    behind = None
    if slave:
        behind = site.slave(kind, brokers[0], namesrv.addr, f"{name}-slave")
        until(f"{name} replicates", partial(_replicates, brokers[0], behind))  # Apache's slave first reports after 5 s
    return Started(
        name,
        brokers[0],
        warm_seconds(kind, warm_s),
        site.processes[others:],
        masters=brokers,
        namesrv=namesrv,
        slave=behind,
    )


def warm_seconds(kind: str, java_s: float) -> float:
    """Return how long a server has load before it is measured; Java's JIT needs ``java_s``."""
    return min(java_s, WARM_S) if kind == OURS else java_s


def start_guarded(site: Site, kind: str, name: str, warm_s: float) -> Started:
    """Start a broker with access control and one account, ACCOUNT; its topics are made by messages."""
    others = len(site.processes)
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    accounts = site.root / name / "home" / "conf" / "plain_acl.yml"
    values: dict[str, Any] = {"mappedFileSizeCommitLog": 256 << 20, "aclEnable": True}
    if kind == OURS:
        values["aclFile"] = accounts
    broker = site.broker(kind, namesrv.addr, name, start=False, **values)
    accounts.parent.mkdir(parents=True, exist_ok=True)
    accounts.write_text(ACCOUNTS)
    broker.start()
    warm_s = warm_seconds(kind, warm_s)
    return Started(name, broker, warm_s, site.processes[others:], masters=[broker], namesrv=namesrv)


def start_elected(site: Site, kind: str, name: str, warm_s: float) -> Started:
    """Start a pair whose master a controller elects: ours, or Apache's 5.3.3 (4.9.7 has none)."""
    others = len(site.processes)
    kind = OURS if kind == OURS else APACHE_5
    # who is stopped while the other side is measured is not silent
    config: dict[str, Any] = {"mappedFileSizeCommitLog": 256 << 20, "controllerHeartBeatTimeoutMills": 600_000}
    group = Elected(site, kind, kind, prefix=f"{name}-", **config)
    with group.master.probe() as probe:
        probe.create_topic(SENT, QUEUES)
    group.wait_whole()
    return Started(
        name,
        group.master,
        warm_seconds(kind, warm_s),
        site.processes[others:],
        masters=[group.master],
        namesrv=group.namesrv,
        slave=group.slave,
    )


def _replicates(master: Broker, slave: Broker) -> bool:
    with master.probe() as probe, slave.probe() as other:
        sent = probe.send_message(SENT, 0, b"ready?").code == 0
        return sent and other.max_offset(SENT, 0) > 0


def unique_key(digits: str) -> str:
    """Return the unique key of a message in FILLED; ``digits`` are the six of its number, or stand for them."""
    return "0" * 26 + digits


def fill(broker: Broker) -> None:
    """Send the messages that pulls find, one after the other; one in four has the tag, and the property, asked for."""
    body = b"x" * BODY_BYTES
    with broker.probe() as probe:
        for number in range(MESSAGES):
            part = number // QUEUES % 4
            tag = "TagA" if part == 0 else "TagB"
            properties = {"UNIQ_KEY": unique_key(f"{number:06}"), "WAIT": "true", "TAGS": tag, "part": str(part)}
            answer = probe.send_message(FILLED, number % QUEUES, body, **properties)
            assert answer.code == 0, answer


def heartbeat(group: str, subscriptions: Sequence[tuple[str, str, str]], client: str = "bench") -> bytes:
    """Return what a consumer with these subscriptions, which also produces, says every 30 s."""
    consumer: dict[str, object] = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY"}
    consumer |= {"groupName": group, "messageModel": "CLUSTERING", "unitMode": False}
    consumer["subscriptionDataSet"] = [_subscribed(*each) for each in subscriptions]
    producers = [{"groupName": "bench-producers"}]
    body = {"clientID": f"{client}@{group}", "consumerDataSet": [consumer], "producerDataSet": producers}
    return json.dumps(body).encode()


def _subscribed(topic: str, kind: str, expression: str) -> dict[str, object]:
    tags = [expression] if kind == "TAG" and expression != "*" else []
    subscription: dict[str, object] = {"classFilterMode": False, "codeSet": [_java_hash(tag) for tag in tags]}
    subscription |= {"expressionType": kind, "subString": expression, "subVersion": 1, "tagsSet": tags}
    return subscription | {"topic": topic}


def _java_hash(text: str) -> int:
    value = 0
    for char in text:
        value = (value * 31 + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class Members:
    """A connection for each group that says what it subscribes to, until ``close``, with offsets in each queue."""

    def __init__(self, broker: Broker) -> None:
        self._probes = {group: Probe(broker.port, timeout=60) for group in GROUPS}
        self._stop = threading.Event()
        self._say()
        for queue in range(QUEUES):
            self._probes["many"].commit_offset("many", SENT, queue, 1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _say(self) -> None:
        for group, probe in self._probes.items():
            probe.must(HEARTBEAT, {}, heartbeat(group, GROUPS[group]))

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self._say()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for probe in self._probes.values():
            probe.close()
