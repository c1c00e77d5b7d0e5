"""
Pulls: our broker against Apache's. From the project's root: ``python -m bench.pull``

Each broker holds the same messages of 256 B, in eight queues, sent one after the other; one in four has the tag, and
the property, that the filtered shapes subscribe to. A pull asks for 32 of them, as a push consumer does; its
subscription is the one that its group's heartbeats say.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.frames import pull_template
from bench.pairing import Outcome, Plan, Shape, Side, measure, options, parsed_shape, run
from bench.store import TOPIC, Goal, ratio, table
from tests.real.peers import APACHE_4, Broker, Site
from tests.real.probe import Probe
from tests.real.storm import QUEUES

MESSAGES, BODY_BYTES, BATCH = 8 * QUEUES * 64, 256, 32
HEARTBEAT, HEARTBEAT_S = 34, 10.0
#: group -> what it subscribes to: type and expression
GROUPS = {"all": ("TAG", "*"), "tag": ("TAG", "TagA"), "sql": ("SQL92", "part BETWEEN 1 AND 3 AND part = 2")}
#: shape -> goals; ``c16d1 tag``: 16 connections, a tag filter that keeps one message in four
GOALS = {
    name: (Goal("rate", least=2.0), Goal("server_cpu_us", most=0.4))
    for name in ("c1d1 all", "c16d1 all", "c1d1 tag", "c16d1 tag")
} | {name: (Goal("rate", least=1.5), Goal("server_cpu_us", most=0.6)) for name in ("c1d1 sql", "c16d1 sql")}


def subscribed(topic: str, kind: str, expression: str) -> dict[str, object]:
    """Return a subscription as a heartbeat has it."""
    tags = [expression] if kind == "TAG" and expression != "*" else []
    subscription: dict[str, object] = {"classFilterMode": False, "codeSet": [java_hash(tag) for tag in tags]}
    subscription |= {"expressionType": kind, "subString": expression, "subVersion": 1, "tagsSet": tags}
    return subscription | {"topic": topic}


def heartbeat(group: str, kind: str, expression: str) -> bytes:
    """Return what a consumer of ``TOPIC`` with this subscription says every 30 s."""
    consumer: dict[str, object] = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
    }
    consumer |= {"messageModel": "CLUSTERING", "subscriptionDataSet": [subscribed(TOPIC, kind, expression)]}
    consumer |= {"unitMode": False}
    return json.dumps({"clientID": f"bench@{group}", "consumerDataSet": [consumer], "producerDataSet": []}).encode()


def java_hash(text: str) -> int:
    value = 0
    for char in text:
        value = (value * 31 + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class Consumers:
    """One connection for each group that says what it subscribes to, until ``close``."""

    def __init__(self, broker: Broker) -> None:
        self._probes = {group: Probe(broker.port) for group in GROUPS}
        self._stop = threading.Event()
        self._say()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _say(self) -> None:
        for group, probe in self._probes.items():
            probe.must(HEARTBEAT, {}, heartbeat(group, *GROUPS[group]))

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self._say()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for probe in self._probes.values():
            probe.close()


def start(site: Site, kind: str, name: str) -> Side:
    """Start a broker and fill its queues."""
    others = len(site.processes)
    config: dict[str, Any] = {"mappedFileSizeCommitLog": 256 << 20, "mappedFileSizeConsumeQueue": 20 * 300_000}
    config |= {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000, "enablePropertyFilter": True}
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    server = site.broker(kind, namesrv.addr, name, **config)
    body = b"x" * BODY_BYTES
    with server.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
        for number in range(MESSAGES):
            part = number // QUEUES % 4
            tag = "TagA" if part == 0 else "TagB"
            properties = {"UNIQ_KEY": f"{number:032X}", "WAIT": "true", "TAGS": tag, "part": str(part)}
            answer = probe.send_message(TOPIC, number % QUEUES, body, **properties)
            assert answer.code == 0, answer
    return Side(server, site.processes[others:])


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = options("Pulls: our broker against Apache's.", ())
    parser.set_defaults(rounds=5, shapes=",".join(GOALS))
    arguments = parser.parse_args()
    if unknown := {name for name in arguments.shapes.split(",") if name.partition(" ")[2] not in GROUPS}:
        parser.error(f"--shapes: {', '.join(sorted(unknown))}: like 'c16d1 all', 'c16d1 tag' or 'c16d1 sql'")

    def measured(site: Site, loadgen: Path, plan: Plan) -> list[Outcome]:
        ours, apache = (start(site, kind, name) for kind, name in ((arguments.ours, "ours"), (APACHE_4, "apache")))
        outcomes = []
        for name in arguments.shapes.split(","):
            size, _, group = name.partition(" ")
            template = pull_template(site.root / f"pull-{group}", TOPIC, group, BATCH)
            shape = Shape(name, *parsed_shape(size), template, arguments.rate)
            # a group lives as long as its connections, which a stopped broker would close
            consumers = [Consumers(broker) for broker in (ours.server, apache.server) if isinstance(broker, Broker)]
            try:
                outcomes.append(measure(loadgen, shape, ours, apache, plan))
            finally:
                for one in consumers:
                    one.close()
        return outcomes

    def report(outcomes: Sequence[Outcome]) -> str:
        lines = [
            f"- {outcome.shape.name}: {goal.text(ratio(outcome, goal.key).median)}"
            for outcome in outcomes
            for goal in GOALS.get(outcome.shape.name, ())
        ]
        return "\n".join([table(outcomes), "", *lines])

    return run(arguments, measured, report)


if __name__ == "__main__":
    raise SystemExit(main())
