"""
Any number of servers measured in one run, window after window in turn, so that what the machine does happens to all.

A round visits the servers A B C, then C B A. A ratio is that of one round; the median with the smallest and the
largest is the result. Processes of a candidate are stopped (SIGSTOP) while another one is measured: users run one
broker, and an idle one of Apache's wakes all the time. Absolute figures of different runs must not be compared: on one
machine they drift by a factor of two.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.real.peers import Java, Process

#: a window in which the load generator itself was this busy measured the generator
MAX_LOADGEN_CPU = 0.8
TOUCHED_BYTES = 1 << 28
BENCH_JAVA = Java(("-XX:+UseG1GC", "-XX:+AlwaysPreTouch"), namesrv_heap=512, broker_heap=1024)

Window = dict[str, Any]


@attrs.frozen
class Shape:
    """
    How the load looks: connections, requests outstanding on each, what is asked.

    ``rate`` 0: as fast as it goes. ``warm_s`` seconds pass before anything counts.
    """

    name: str
    connections: int
    outstanding: int
    template: Path
    rate: float = 0.0
    warm_s: float = 0.1


def parsed_shape(text: str) -> tuple[int, int]:
    """Turn "c16d1" into 16 connections with 1 request outstanding each."""
    connections, _, outstanding = text.removeprefix("c").partition("d")
    if not (connections.isdecimal() and outstanding.isdecimal()):
        raise SystemExit(f"{text!r} is no shape; c16d1 would be 16 connections with one request outstanding each")
    return int(connections), int(outstanding)


def built(folder: Path, name: str, *, tls: bool = False) -> Path:
    """Compile ``name``.c; ``tls`` needs the headers of OpenSSL."""
    program, source = folder / (f"{name}-tls" if tls else name), Path(__file__).with_name(f"{name}.c")
    more = ["-DWITH_TLS", "-lssl", "-lcrypto"] if tls else []
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-Wall", "-o", str(program), str(source), *more], check=True)
    return program


@attrs.frozen
class Candidate:
    """
    A server under its name in the table; ``processes`` run only while it is measured.

    With ``is_steady`` one window is enough: it only says what the machine asks for the same bytes.
    """

    name: str
    process: Process
    warm_s: float
    processes: Sequence[Process] = ()
    is_steady: bool = False


@contextmanager
def suspended(candidates: Sequence[Candidate]) -> Iterator[None]:
    """Take the processor from all processes of the candidates meanwhile."""
    processes = [process for candidate in candidates for process in candidate.processes]
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            process.resume()


def touch_memory(length: int = TOUCHED_BYTES) -> None:
    """
    Fill pages of a file and give them back, so that what is written next meets memory that the machine really has.

    A hypervisor may take back what its guest has free. The first write to such a page then costs ten times as much as
    the next (measured: 3.3 and 0.3 s of CPU time a GiB), and whose window it meets is chance.
    """
    block = b"x" * (1 << 20)
    with tempfile.TemporaryFile() as file:
        for _ in range(length // len(block)):
            file.write(block)


@attrs.frozen
class Spread:
    """A median with the smallest and the largest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}-{self.most:,.{digits}f})"


@attrs.frozen
class Rounds:
    """All windows of one shape: for each server, per round, the windows of the way there and back."""

    shape: str
    windows: dict[str, list[list[Window]]]

    def per_round(self, name: str, key: str) -> list[float]:
        return [statistics.fmean(window[key] for window in each) for each in self.windows[name]]

    def all_windows(self, name: str) -> list[Window]:
        return [window for each in self.windows[name] for window in each]

    def ratio(self, name: str, other: str, key: str) -> Spread:
        """Return how often ``other`` fits into ``name``, round by round."""
        pairs = zip(self.per_round(name, key), self.per_round(other, key), strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs if theirs])

    def middle(self, name: str, key: str) -> float:
        return float(statistics.median(window[key] for window in self.all_windows(name)))

    def bad(self, name: str) -> int:
        """Return how many requests were answered with another code than 0 or not at all."""
        return sum(window.get("bad", 0) + window.get("unanswered", 0) for window in self.all_windows(name))

    def stolen(self, name: str) -> float:
        """Return the ms of all processors that a hypervisor took during the windows of this server."""
        return float(sum(window.get("stolen_ms", 0) for window in self.all_windows(name)))

    def busiest(self, name: str) -> float:
        """Return the largest share of a core that the generator took in a window of this server."""
        return float(max(window.get("loadgen_cpu", 0.0) for window in self.all_windows(name)))

    def to_json(self) -> dict[str, Any]:
        keys = [key for key in self.all_windows(next(iter(self.windows)))[0] if key != "codes"]
        sides = {name: {key: self.middle(name, key) for key in keys} | {"bad": self.bad(name)} for name in self.windows}
        return {"shape": self.shape, "servers": sides, "windows": self.windows}


def stolen_ms() -> int:
    """Return how long a hypervisor has run something else while this machine's processors had work, all together."""
    # user, nice, system, idle, iowait, irq, softirq, steal
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) * 1000 // os.sysconf("SC_CLK_TCK")


def window(
    loadgen: Path, shape: Shape, server: Process, seconds: float, *more: object, pids: Sequence[int] = ()
) -> Window:
    """Run the generator once, with ``more`` of its arguments; SystemExit with the server's last lines when it fails."""
    counted = ",".join(map(str, pids or [server.pid]))
    command = [loadgen, server.port, shape.connections, shape.outstanding, seconds, shape.warm_s, shape.rate, counted]
    stolen = stolen_ms()
    done = subprocess.run([*map(str, [*command, shape.template, *more])], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{shape.name} against {server.name}: {done.stderr.strip()}\n{server.tail()}")
    result: Window = json.loads(done.stdout)
    return result | {"stolen_ms": stolen_ms() - stolen}


def measure(
    candidates: Sequence[Candidate],
    name: str,
    one_window: Callable[[Candidate, float], Window],
    *,
    rounds: int,
    window_s: float,
    there_and_back: bool = True,
    writes: bool = True,
) -> Rounds:
    """
    Warm every server up with the shape, then run the rounds.

    Without ``there_and_back`` a round visits each server once, every other round in reverse. Where a window ``writes``,
    memory is touched before it.
    """

    def one(candidate: Candidate, seconds: float) -> Window:
        with suspended([other for other in candidates if other is not candidate]):
            if writes and not candidate.is_steady:  # the C program stores nothing
                touch_memory()
            return one_window(candidate, seconds)

    for candidate in candidates:
        if candidate.warm_s > 0:
            one(candidate, candidate.warm_s)
    found: dict[str, list[list[Window]]] = {candidate.name: [] for candidate in candidates}
    for number in range(rounds):
        order = [candidate for candidate in candidates if number == 0 or not candidate.is_steady]
        for candidate in order:
            found[candidate.name].append([])
        if there_and_back:
            order += [candidate for candidate in reversed(order) if not candidate.is_steady]
        elif number % 2:
            order.reverse()
        for candidate in order:
            found[candidate.name][-1].append(one(candidate, window_s))
    return Rounds(name, found)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(outcomes: Sequence[Rounds], ours: Sequence[str]) -> str:
    """Return all shapes; for each server its figures, and by how much each of ``ours`` is faster and cheaper."""
    head = ["shape", "server", "requests/s", "CPU us/request", "p50 us", "p99 us"]
    for name in ours:
        head += [f"rate, {name} : it", f"CPU, it : {name}"]
    head += ["not 0", "generator"]
    rows = []
    for outcome in outcomes:
        for name in outcome.windows:
            busiest = outcome.busiest(name)
            generator = f"{busiest:.0%}" + (" (too busy: it is faster than this)" if busiest > MAX_LOADGEN_CPU else "")
            row = [outcome.shape, name, f"{outcome.middle(name, 'rate'):,.0f}"]
            row += [f"{outcome.middle(name, 'server_cpu_us'):.1f}"]
            row += [f"{outcome.middle(name, key):,.0f}" for key in ("p50", "p99")]
            for mine in ours:
                if mine == name:
                    row += ["", ""]
                else:
                    row += [
                        outcome.ratio(mine, name, "rate").text(),
                        outcome.ratio(name, mine, "server_cpu_us").text(1),
                    ]
            rows.append([*row, str(outcome.bad(name)), generator])
    return markdown(head, rows)
