"""
Our client beside Java's: sends and consumption against one broker after the other.

From the project's root: ``python -m bench.client [--kinds ours,4.9.7] [--rounds 3] [--markdown FILE]``.

Each client is one process, which lives as long as its broker; windows take turns. CPU is that of the client's process
for each message. ``bench.clientload`` and ClientLoad.java say what a client does in a window.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from bench.conditions import conditions
from bench.rounds import BENCH_JAVA, Candidate, Rounds, Window, markdown, measure
from bench.scale import pipelined
from tests.real.javaclient import compiled
from tests.real.peers import APACHE_4, HOST, OURS, Broker, Site, jars
from tests.real.piped import PipedClient
from tests.real.probe import SEND, send_fields

SENT, WAITING = "BenchSent", "BenchWaiting"
QUEUES = 8
BODY_BYTES = 100
JAVA = "java"
#: a client's answer comes in this time after its window
ANSWER_S = 150.0


@attrs.frozen
class Shape:
    """What the clients do; ``command`` for a client, ``goal`` is one of messages a second."""

    name: str
    command: Mapping[str, Any]
    goal: float = 0.0

    @property
    def consumes(self) -> bool:
        return bool(self.command["do"] == "consume")


def _send(in_flight: int, rate: float = 0.0) -> Mapping[str, Any]:
    return {"do": "send", "topic": SENT, "bodyBytes": BODY_BYTES, "inFlight": in_flight, "rate": rate}


SHAPES = (
    Shape("send, 1 in flight", _send(1)),
    Shape("send, 64 in flight", _send(64), goal=5000),
    Shape("send, 1,000 a second", _send(64, 1000.0)),
    Shape("consume, handler of 1", {"do": "consume", "topic": WAITING, "batch": 1}),
    Shape("consume, handler of 32", {"do": "consume", "topic": WAITING, "batch": 32}, goal=20_000),
)


class Clients:
    """The processes of all clients for one NameServer."""

    def __init__(self, names: Sequence[str], namesrv: str, folder: Path) -> None:
        self._clients = {name: PipedClient(name, _command(name, namesrv), folder / name) for name in names}
        self._groups = 0

    def window(self, name: str, shape: Shape, seconds: float, messages: int) -> Window:
        client = self._clients[name]
        more: dict[str, object] = {"seconds": seconds}
        if shape.consumes:
            self._groups += 1
            more = {"count": messages, "group": f"bench-{name}-{self._groups}"}
        answered = len(client.events)
        client.write_line({**shape.command, **more})
        found = client.wait(
            shape.name,
            lambda: client.events[answered] if len(client.events) > answered else None,
            seconds=seconds + ANSWER_S,
        )
        if "error" in found:
            raise SystemExit(f"{name}, {shape.name}: {found['error']}\n{client.tail()}")
        return found

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _command(name: str, namesrv: str) -> list[str]:
    if name != JAVA:
        return [sys.executable, "-m", "bench.clientload", name, namesrv]
    classpath = f"{compiled(APACHE_4, Path(__file__).with_name('ClientLoad.java'))}{os.pathsep}{jars(APACHE_4)}/*"
    return ["java", "-Xms512m", "-Xmx512m", *BENCH_JAVA.flags, "-cp", classpath, "ClientLoad", namesrv]


def fill(broker: Broker, messages: int) -> None:
    """Create the topics, and send what consumers will find."""
    with broker.probe(timeout=60) as probe:
        for topic in (SENT, WAITING):
            probe.create_topic(topic, QUEUES)
        body = b"x" * BODY_BYTES
        properties = "UNIQ_KEY\1{:032X}\2WAIT\1true"
        pipelined(
            probe,
            (
                (SEND, send_fields(WAITING, number % QUEUES, properties.format(number)), body)
                for number in range(messages)
            ),
        )


def table(outcomes: Sequence[tuple[str, Shape, Rounds]]) -> str:
    """Return a row for each broker, shape and client; ratios are those of the same rounds."""
    head = ["broker", "shape", "client", "messages/s", "CPU us/message", "p50 us", "p99 us"]
    head += ["rate, it : java", "CPU, it : java", "p99, it : java", "goal/s", "bad"]
    rows = []
    for kind, shape, outcome in outcomes:
        for name in outcome.windows:
            row = ["ours" if kind == OURS else f"Apache {kind}", shape.name, name]
            row += [f"{outcome.middle(name, 'rate'):,.0f}", f"{outcome.middle(name, 'cpu_us'):.0f}"]
            row += ["", ""] if shape.consumes else [f"{outcome.middle(name, key):,.0f}" for key in ("p50", "p99")]
            for key in ("rate", "cpu_us", "p99"):
                is_shown = name != JAVA and JAVA in outcome.windows and not (shape.consumes and key == "p99")
                row.append(outcome.ratio(name, JAVA, key).text() if is_shown else "")
            goal = f"{shape.goal:,.0f}" if shape.goal and name != JAVA else ""
            rows.append([*row, goal, str(outcome.bad(name))])
    return markdown(head, rows)


def measured(
    broker: Broker, clients: Clients, names: Sequence[str], shape: Shape, options: argparse.Namespace
) -> Rounds:
    """Return all windows of a shape, of each client in turn."""

    def one(candidate: Candidate, seconds: float) -> Window:
        return clients.window(candidate.name, shape, seconds, options.messages)

    candidates = [Candidate(name, broker, options.warm) for name in names]
    return measure(candidates, shape.name, one, rounds=options.rounds, window_s=options.window, there_and_back=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kinds", default=f"{OURS},{APACHE_4}", help="which brokers (%(default)s)")
    parser.add_argument("--clients", default=f"aio,tx,{JAVA}", help="which clients (%(default)s)")
    parser.add_argument("--shapes", help="parts of the names of shapes, joined by commas; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of sends (%(default)s)")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds of sends before the rounds (%(default)s)")
    parser.add_argument("--messages", type=int, default=100_000, help="that wait for consumers (%(default)s)")
    parser.add_argument("--markdown", help="write the table to this file, too")
    options = parser.parse_args()
    names = options.clients.split(",")
    parts = (options.shapes or "").split(",")
    shapes = [shape for shape in SHAPES if any(part in shape.name for part in parts)]
    outcomes: list[tuple[str, Shape, Rounds]] = []
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=os.environ.get("TMPDIR")) as root:
        site = Site(Path(root), BENCH_JAVA)
        print(conditions(site.root, BENCH_JAVA), flush=True)
        for kind in options.kinds.split(","):
            namesrv = site.namesrv(kind, f"namesrv-{kind}")
            sizes: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}
            broker = site.broker(kind, f"{HOST}:{namesrv.port}", f"broker-{kind}", **sizes)
            fill(broker, options.messages)
            clients = Clients(names, f"{HOST}:{namesrv.port}", site.root / f"clients-{kind}")
            outcomes += [(kind, shape, measured(broker, clients, names, shape, options)) for shape in shapes]
            clients.close()
            site.close()
    text = table(outcomes)
    print(text)
    if options.markdown:
        Path(options.markdown).write_text(text + "\n")


if __name__ == "__main__":
    main()
