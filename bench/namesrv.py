"""
NameServers against each other: look-ups, registrations beside look-ups, start, memory, idle connections.

From the project's root: python -m bench.namesrv
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from bench.conditions import conditions
from bench.frames import PretendedBrokers, Registrar, registrations, route_template
from bench.rounds import Candidate, Rounds, Shape, Spread, Window, built, markdown, measure, parsed_shape, table, window
from bench.servers import (
    NAMESRV_JAVA,
    SERVERS,
    Connections,
    Server,
    cost_of_connections,
    raise_file_limit,
    start_to_first_answer,
)
from tests.real.peers import Process, Site
from tests.real.storm import MB, anonymous_bytes

PARTS = ("lookups", "registrations", "start", "idle")
SHAPES = ("c16d1", "c16d16", "c256d1", "c16d1+5%", "c16d1+5%changed")
#: look-ups beside the registrations of a large broker: connections and requests a second
BESIDE_CONNECTIONS, BESIDE_RATE = 16, 2000.0
LARGE_TOPICS, LARGE_A_SECOND = 5000, 10.0
WARM_PYTHON_S = 1.5


@attrs.define
class Running:
    """A server that runs, with the brokers that keep its routes alive."""

    server: Server
    process: Process
    candidate: Candidate
    brokers: PretendedBrokers | None = None
    start_s: list[float] = attrs.Factory(list)
    fresh_mb: float = 0.0
    loaded_mb: float = 0.0
    idle: Connections | None = None


class Bench:
    """One run of the benchmark in a folder of its own; ``report`` says what was found."""

    def __init__(self, arguments: argparse.Namespace, site: Site):
        self.arguments, self.site = arguments, site
        self.loadgen = built(site.root, "loadgen")
        self.outcomes: list[Rounds] = []
        self.beside: list[Rounds] = []
        self.registered_ms: dict[str, dict[str, float]] = {}
        self.running = [self._made(server) for server in chosen(arguments.servers)]
        self.template = route_template(site.root / "route", arguments.topics)

    def _made(self, server: Server) -> Running:
        process = server.make(self.site, f"server-{server.name}")
        warm_s = self.arguments.warm if server.is_java else min(self.arguments.warm, WARM_PYTHON_S)
        return Running(server, process, Candidate(server.name, process, warm_s))

    def run(self) -> None:
        parts = self.arguments.parts.split(",")
        self._start("start" in parts)
        if "lookups" in parts:
            for name in self.arguments.shapes.split(","):
                self._progress(f"look-ups, {name}")
                self.outcomes.append(self._look_ups(name))
        if "registrations" in parts:
            for changes in (True, False):
                self._progress(f"look-ups beside registrations, {'changed' if changes else 'unchanged'}")
                self.beside.append(self._beside_registrations(changes))
        for each in self.running:
            each.loaded_mb = anonymous_bytes(each.process.pid) / MB
        if "idle" in parts and self.arguments.idle:
            for each in self.running:
                self._progress(f"{self.arguments.idle:,} idle connections, {each.server.label}")
                each.idle = cost_of_connections(each.process, self.arguments.idle)
        for each in self.running:
            if each.brokers is not None:
                each.brokers.close()

    # -- the parts

    def _start(self, measured: bool) -> None:
        """Start every server, several times in turn when that is measured, and give it its routes."""
        # the first start of each is not counted: files are read from disk then, and bytecode is made
        for number in range(1 + self.arguments.starts if measured else 1):
            for each in self.running:
                self._progress(f"start {number}, {each.server.label}")
                each.process.kill()
                taken_s = start_to_first_answer(each.process)
                if number or not measured:
                    each.start_s.append(taken_s)
        time.sleep(2.0 if measured else 0.0)
        for each in self.running:
            each.fresh_mb = anonymous_bytes(each.process.pid) / MB
            each.brokers = PretendedBrokers(each.process.port, topics=self.arguments.topics, width=self.arguments.width)

    def _look_ups(self, name: str) -> Rounds:
        mix = parsed_mix(name)
        shape = Shape(name, mix.connections, mix.outstanding, self.template, self.arguments.rate)
        others: tuple[object, ...] = ()
        if mix.percent:
            # a broker for each connection, as in life
            frames = registrations(
                self.site.root / "others",
                topics=self.arguments.topics,
                brokers=mix.connections,
                changes=mix.changes,
            )
            others = ("others", frames, round(100 / mix.percent))

        def one(candidate: Candidate, seconds: float) -> Window:
            return window(self.loadgen, shape, candidate.process, seconds, *others)

        return self._measured(name, one)

    def _beside_registrations(self, changes: bool) -> Rounds:
        name = "changed" if changes else "unchanged"
        shape = Shape(name, BESIDE_CONNECTIONS, 1, self.template, BESIDE_RATE)
        taken: dict[str, list[float]] = {}

        def one(candidate: Candidate, seconds: float) -> Window:
            registrar = Registrar(candidate.process.port, topics=LARGE_TOPICS, a_second=LARGE_A_SECOND, changes=changes)
            try:
                return window(self.loadgen, shape, candidate.process, seconds)
            finally:
                registrar.close()
                taken.setdefault(candidate.name, []).extend(registrar.seconds)

        found = self._measured(name, one, there_and_back=False)
        self.registered_ms[name] = {key: statistics.median(values) * 1e3 for key, values in taken.items()}
        return found

    def _measured(self, name: str, one: Callable[[Candidate, float], Window], *, there_and_back: bool = True) -> Rounds:
        candidates = [each.candidate for each in self.running]
        plan = partial(measure, rounds=self.arguments.rounds, window_s=self.arguments.window)
        return plan(candidates, name, one, there_and_back=there_and_back)

    # -- what was found

    def report(self) -> str:
        labels = {each.server.name: each.server.label for each in self.running}
        parts = []
        if self.outcomes:
            parts += ["### Look-ups", table(self.outcomes, [name for name in ("ours", "epoll") if name in labels])]
        if self.beside:
            parts += [self._beside_title(), self._beside_table()]
        parts += ["### Start and memory", self._process_table()]
        parts.append("Servers: " + "; ".join(f"{name} = {label}" for name, label in labels.items()) + ".")
        return "\n\n".join(parts)

    def _beside_title(self) -> str:
        asked = f"{BESIDE_RATE:,.0f} look-ups a second beside a broker"
        return f"### {asked} with {LARGE_TOPICS:,} topics that registers {LARGE_A_SECOND:.0f} times a second"

    def _beside_table(self) -> str:
        rows = []
        for outcome in self.beside:
            for name in outcome.windows:
                p99 = Spread.of([window["p99"] / 1e3 for window in outcome.all_windows(name)])
                row = [outcome.shape, name, f"{outcome.middle(name, 'p50') / 1e3:.2f}", p99.text()]
                row += [f"{outcome.middle(name, 'max') / 1e3:.1f}", f"{self.registered_ms[outcome.shape][name]:.1f}"]
                rows.append([*row, f"{outcome.middle(name, 'rate'):,.0f}", str(outcome.bad(name))])
        head = ["registrations", "server", "p50 ms", "p99 ms (min-max)", "slowest ms", "registration ms"]
        return markdown([*head, "answers/s", "not 0"], rows)

    def _process_table(self) -> str:
        rows = []
        for each in self.running:
            start = Spread.of([seconds * 1e3 for seconds in each.start_s]).text(0)
            idle = ["", "", ""]
            if each.idle is not None:
                idle = [f"{each.idle.kept:,}", f"{each.idle.bytes_each:,.0f}", f"{each.idle.cpu_ms_each:.3f}"]
            rows.append([each.server.name, start, f"{each.fresh_mb:.1f}", f"{each.loaded_mb:.1f}", *idle])
        head = ["server", "start to first answer, ms", "anonymous MiB, fresh", "after load"]
        head += [f"of {self.arguments.idle:,} idle connections kept", "bytes for each", "CPU ms to accept one"]
        return markdown(head, rows)

    def to_json(self) -> dict[str, Any]:
        processes = {
            each.server.name: {
                "start_s": each.start_s,
                "fresh_mb": each.fresh_mb,
                "loaded_mb": each.loaded_mb,
                "idle": each.idle and attrs.asdict(each.idle),
            }
            for each in self.running
        }
        facts = {"python": platform.python_version(), "machine": platform.machine(), "command": sys.argv}
        beside = [outcome.to_json() | {"registered_ms": self.registered_ms[outcome.shape]} for outcome in self.beside]
        look_ups = [outcome.to_json() for outcome in self.outcomes]
        return {**facts, "lookups": look_ups, "registrations": beside, "processes": processes}

    def _progress(self, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@attrs.frozen
class Mix:
    """Connections, requests outstanding on each, how many of 100 are registrations, and whether those change."""

    connections: int
    outstanding: int
    percent: float
    changes: bool


def parsed_mix(text: str) -> Mix:
    """Read a shape such as "c16d1", "c16d1+5%" or "c16d1+5%changed"; SystemExit when it is none."""
    found = re.fullmatch(r"(c\d+d\d+)(?:\+(\d+(?:\.\d+)?)%(changed)?)?", text)
    if found is None or not 0 <= float(found[2] or 0) <= 50:
        raise SystemExit(f"{text!r} is no shape; c16d1+5% would be c16d1 with 5 % registrations")
    return Mix(*parsed_shape(found[1]), float(found[2] or 0), found[3] is not None)


def chosen(names: str) -> Sequence[Server]:
    """Return the servers of a comma list that are there; what is missing is told and left out."""
    found = []
    for name in names.split(","):
        if name not in SERVERS:
            raise SystemExit(f"{name!r} is no server; there are {', '.join(SERVERS)}")
        why = SERVERS[name].why_absent()
        if why is None:
            found.append(SERVERS[name])
        else:
            print(f"without {SERVERS[name].label}: {why}", file=sys.stderr, flush=True)
    if not found:
        raise SystemExit("no server is left to measure")
    return found


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="NameServers against each other.")
    add = parser.add_argument
    add("--servers", default=",".join(SERVERS), help="which servers (default: %(default)s)")
    add("--parts", default=",".join(PARTS), help="what is measured (default: %(default)s)")
    add("--shapes", default=",".join(SHAPES), help="which look-ups (default: %(default)s)")
    add("--rounds", type=int, default=7, help="rounds of A B C, C B A (default: %(default)s)")
    add("--window", type=float, default=0.8, help="seconds of a window (default: %(default)s)")
    add("--warm", type=float, default=6.0, help="seconds of load on Java before each shape (default: %(default)s)")
    add("--rate", type=float, default=0.0, help="look-ups a second, sent on time (default: closed loop)")
    add("--topics", type=int, default=64, help="topics registered and asked for (default: %(default)s)")
    add("--width", type=int, default=4, help="brokers per topic (default: %(default)s)")
    add("--starts", type=int, default=5, help="starts of each server (default: %(default)s)")
    add("--idle", type=int, default=10_000, help="idle connections (default: %(default)s; 0: none)")
    add("--json", type=Path, help="file for the whole result")
    add("--markdown", type=Path, help="file for the tables")
    return parser


def main() -> int:
    """Run the benchmark that the command line asks for."""
    arguments = options().parse_args()
    for name in arguments.shapes.split(","):
        parsed_mix(name)
    strangers = set(arguments.parts.split(",")) - set(PARTS)
    if strangers:
        raise SystemExit(f"no part is called {', '.join(sorted(strangers))}; there are {', '.join(PARTS)}")
    # what we measure is this checkout, installed or not
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    if arguments.idle and "idle" in arguments.parts:
        raise_file_limit(arguments.idle + 1000)  # before the servers start: they inherit it
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        site = Site(Path(folder), NAMESRV_JAVA)
        facts = conditions(site.root, NAMESRV_JAVA)
        try:
            bench = Bench(arguments, site)
            bench.run()
        finally:
            site.close()
    report = f"{facts}\n{bench.report()}"
    print(report)
    if arguments.markdown is not None:
        arguments.markdown.write_text(report + "\n")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(bench.to_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
