"""
Two servers measured against each other in one run, so that what the machine does meanwhile happens to both.

Windows alternate A B B A; each round gives one ratio, and the median of these with the smallest and the largest is the
result. Who is not measured is stopped meanwhile: users run one broker, and an idle one of Apache's wakes all the time.
Absolute figures of different runs must not be compared: on one machine they drift by a factor of two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from bench.conditions import conditions
from tests.real.peers import APACHE_4, OURS, Java, Process, Site

#: a window in which the load generator itself was this busy measured the generator
MAX_LOADGEN_CPU = 0.8
OURS_NAME, APACHE_NAME = "ours", f"Apache {APACHE_4}"
BENCH_JAVA = Java(("-XX:+UseG1GC", "-XX:+AlwaysPreTouch"), namesrv_heap=512, broker_heap=1024)

Window = dict[str, Any]


@attrs.frozen
class Shape:
    """How the load looks: connections, requests outstanding on each, what is asked; ``rate`` 0: as fast as it goes."""

    name: str
    connections: int
    outstanding: int
    template: Path
    rate: float = 0.0


@attrs.frozen
class Plan:
    rounds: int
    window_s: float
    warm_s: float


@attrs.frozen
class Outcome:
    """All windows of a shape; ``ratios`` are ours/Apache of rate, one per round."""

    shape: Shape
    ours: list[Window]
    apache: list[Window]

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.ours[::2], self.ours[1::2], self.apache[::2], self.apache[1::2], strict=True)
        return [(a["rate"] + d["rate"]) / (b["rate"] + c["rate"]) for a, d, b, c in pairs]

    def to_json(self) -> dict[str, Any]:
        shape = {"connections": self.shape.connections, "outstanding": self.shape.outstanding, "rate": self.shape.rate}
        sides = {OURS_NAME: _summary(self.ours), APACHE_NAME: _summary(self.apache)}
        ratio = {"median": statistics.median(self.ratios), "min": min(self.ratios), "max": max(self.ratios)}
        windows = {OURS_NAME: self.ours, APACHE_NAME: self.apache}
        return {"shape": self.shape.name, **shape, "ratio": ratio, "sides": sides, "windows": windows}


def _summary(windows: list[Window]) -> dict[str, float]:
    """Medians over the windows; ``bad`` is the sum of answers with another code than 0."""
    keys = ("rate", "server_cpu_us", "p50", "p99", "p999", "loadgen_cpu")
    found = {key: statistics.median(window[key] for window in windows) for key in keys}
    return found | {"bad": sum(window["bad"] + window["unanswered"] for window in windows)}


@attrs.frozen
class Side:
    """What is measured, and all processes that belong to it: its NameServer, its slave, itself."""

    server: Process
    processes: Sequence[Process]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Take the processor from all of them meanwhile."""
        try:
            for process in self.processes:
                process.suspend()
            yield
        finally:
            for process in self.processes:
                process.resume()


def measure(loadgen: Path, shape: Shape, ours: Side, apache: Side, plan: Plan) -> Outcome:
    """Warm both servers up with the shape, then run the rounds."""

    def window(side: Side, seconds: float) -> Window:
        server = side.server
        command = [loadgen, server.port, shape.connections, shape.outstanding, seconds, 0.2, shape.rate, server.pid]
        with (apache if side is ours else ours).suspended():
            done = subprocess.run(
                [*map(str, command), str(shape.template)], capture_output=True, text=True, timeout=600
            )
        if done.returncode != 0:
            raise SystemExit(f"{shape.name} against {server.name}: {done.stderr.strip()}\n{server.tail()}")
        result: Window = json.loads(done.stdout)
        return result

    if plan.warm_s > 0:
        window(apache, plan.warm_s)
        window(ours, min(plan.warm_s, 2.0))
    outcome = Outcome(shape, [], [])
    for _ in range(plan.rounds):
        for side in (ours, apache, apache, ours):
            (outcome.ours if side is ours else outcome.apache).append(window(side, plan.window_s))
    return outcome


def built_loadgen(folder: Path) -> Path:
    """Compile the load generator."""
    program = folder / "loadgen"
    source = Path(__file__).with_name("loadgen.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)
    return program


def options(description: str, shapes: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of what both benchmarks ask."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of A B B A (default: %(default)s)")
    parser.add_argument("--window", type=float, default=1.0, help="seconds of a window (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=6.0, help="seconds of load before a shape (default: %(default)s)")
    parser.add_argument("--shapes", default=",".join(shapes), help="which shapes (default: %(default)s)")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests a second, sent on time (default: closed loop)"
    )
    parser.add_argument("--json", type=Path, help="file for the whole result")
    parser.add_argument("--ours", default=OURS, help=argparse.SUPPRESS)
    return parser


def parsed_shape(text: str) -> tuple[int, int]:
    """Turn "c16d1" into 16 connections with 1 request outstanding each."""
    connections, _, outstanding = text.removeprefix("c").partition("d")
    if not (connections.isdecimal() and outstanding.isdecimal()):
        raise SystemExit(f"{text!r} is no shape; c16d1 would be 16 connections with one request outstanding each")
    return int(connections), int(outstanding)


def run(
    arguments: argparse.Namespace,
    measured: Callable[[Site, Path, Plan], list[Outcome]],
    report: Callable[[Sequence[Outcome]], str],
) -> int:
    """Run a benchmark in a folder of its own, print its ``report``, write the JSON."""
    # what we measure is this checkout, installed or not
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    plan = Plan(arguments.rounds, arguments.window, arguments.warm)
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        site = Site(Path(folder), BENCH_JAVA)
        facts = conditions(site.root, BENCH_JAVA, syncs=True)
        print(facts, flush=True)
        try:
            outcomes = measured(site, built_loadgen(Path(folder)), plan)
        finally:
            site.close()
    print(report(outcomes))
    if arguments.json is not None:
        results = [outcome.to_json() for outcome in outcomes]
        text = json.dumps({"conditions": facts, "command": sys.argv, "results": results}, indent=1)
        arguments.json.write_text(text + "\n")
    return 0
