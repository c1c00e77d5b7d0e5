"""
What consumers repeat beside their pulls: our broker against Apache's.

From the project's root: ``python -m bench.consumers``

Each shape is one request of a member of a group: `commit` and `query` an offset (15 and 14, here
both with an answer), the `members` of its group (38), its `heartbeat` (34) with eight subscriptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.frames import plain_template
from bench.pairing import Outcome, Plan, Shape, Side, measure, options, parsed_shape, run
from bench.pull import subscribed
from bench.store import TOPIC, Goal, ratio, table
from tests.real.peers import APACHE_4, Broker, Site
from tests.real.probe import Probe
from tests.real.storm import QUEUES

GROUP = "bench-consumers"
COMMIT, QUERY, MEMBERS, HEARTBEAT = 15, 14, 38, 34
_OFFSET = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "@Q@"}
#: kind -> (request code, header fields)
REQUESTS: dict[str, tuple[int, Mapping[str, object]]] = {
    "commit": (COMMIT, {**_OFFSET, "commitOffset": "@T@"}),
    "query": (QUERY, _OFFSET),
    "members": (MEMBERS, {"consumerGroup": GROUP}),
    "heartbeat": (HEARTBEAT, {}),
}
GOALS = {
    f"{size} {kind}": (Goal("rate", least=2.0), Goal("server_cpu_us", most=0.4))
    for kind in REQUESTS
    for size in ("c1d1", "c16d1")
}


def heartbeat() -> bytes:
    """Return the heartbeat of a client with a consumer of eight topics and a producer."""
    subscriptions = [subscribed(f"{TOPIC}-{number}" if number else TOPIC, "TAG", "*") for number in range(8)]
    consumer: dict[str, object] = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY"}
    consumer |= {"groupName": GROUP, "messageModel": "CLUSTERING", "unitMode": False}
    consumer["subscriptionDataSet"] = subscriptions
    producers = [{"groupName": "bench-producers"}]
    return json.dumps({"clientID": "bench@1", "consumerDataSet": [consumer], "producerDataSet": producers}).encode()


def start(site: Site, kind: str, name: str) -> Side:
    """Start a broker that knows the topic."""
    others = len(site.processes)
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    server = site.broker(kind, namesrv.addr, name)
    with server.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    return Side(server, site.processes[others:])


def join(broker: Broker) -> Probe:
    """Return a connection that is a member of the group, with an offset for each queue."""
    probe = Probe(broker.port)
    probe.must(HEARTBEAT, {}, heartbeat())
    for queue in range(QUEUES):
        probe.commit_offset(GROUP, TOPIC, queue, 1)
    return probe


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = options("What consumers repeat: our broker against Apache's.", ())
    parser.set_defaults(rounds=5, shapes=",".join(GOALS))
    arguments = parser.parse_args()
    if unknown := {name for name in arguments.shapes.split(",") if name.partition(" ")[2] not in REQUESTS}:
        parser.error(f"--shapes: {', '.join(sorted(unknown))}: like 'c16d1 commit'; kinds: {', '.join(REQUESTS)}")

    def measured(site: Site, loadgen: Path, plan: Plan) -> list[Outcome]:
        ours, apache = (start(site, kind, name) for kind, name in ((arguments.ours, "ours"), (APACHE_4, "apache")))
        outcomes = []
        for name in arguments.shapes.split(","):
            size, _, kind = name.partition(" ")
            code, fields = REQUESTS[kind]
            body = heartbeat() if kind == "heartbeat" else b""
            shape = Shape(
                name, *parsed_shape(size), plain_template(site.root / kind, code, fields, body), arguments.rate
            )
            # a group lives as long as its connections, which a stopped broker would close
            members = [join(side.server) for side in (ours, apache) if isinstance(side.server, Broker)]
            try:
                outcomes.append(measure(loadgen, shape, ours, apache, plan))
            finally:
                for member in members:
                    member.close()
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
