"""
The price of the kernel: our broker against a C program that only answers.

From the project's root: ``python -m bench.anchor``. `anchor.c` finds where a request ends and writes a prepared answer
of the same length. CPU time beyond its own is the broker's; the rest no broker can save on the same machine.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from bench.consumers import REQUESTS
from bench.consumers import join as join_group
from bench.frames import batch_template, plain_template, pull_template, send_template
from bench.pairing import Outcome, Plan, Shape, Side, measure, options, parsed_shape, run
from bench.pull import BATCH, Consumers, start
from bench.rounds import markdown
from bench.store import TOPIC, ratio
from tests.ports import free_port
from tests.real.peers import Broker, Process, Site


@attrs.frozen
class Exchange:
    """A request, and how many bytes the broker's answer has behind its header."""

    answer_bytes: int
    template: Callable[[Path], Path]


#: kind -> exchange; 410 bytes are a message of the benchmark of pulls
EXCHANGES = {
    "pull": Exchange(BATCH * 410, lambda path: pull_template(path, TOPIC, "all", BATCH)),
    "send": Exchange(90, lambda path: send_template(path, TOPIC, 100)),
    "batch": Exchange(BATCH * 33, lambda path: batch_template(path, TOPIC, BATCH, 100)),
    "query": Exchange(20, lambda path: plain_template(path, *REQUESTS["query"])),
}
SHAPES = ("c1d1 pull", "c16d1 pull", "c1d1 send", "c64d1 send", "c16d16 send", "c16d1 batch", "c16d1 query")


def anchor(site: Site, answer_bytes: int) -> Process:
    """Compile and start the C program."""
    program, source = site.root / "anchor", Path(__file__).with_name("anchor.c")
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)
    port = free_port()
    process = Process(f"anchor-{port}", "anchor", [str(program), str(port), str(answer_bytes)], site.root, port, ())
    site.processes.append(process)
    return process.start()


def table(outcomes: Sequence[Outcome]) -> str:
    """Return rates and CPU times of both, and which share of our CPU time is above that of the C program."""
    head = ["shape", "rate ours", "C program", "ratio (min-max)", "CPU us/request ours", "C program", "share above it"]
    rows = []
    for outcome in outcomes:
        sides = outcome.ours, outcome.apache
        row = [outcome.shape.name]
        row += [f"{statistics.median(window['rate'] for window in side):,.0f}" for side in sides]
        row.append(ratio(outcome, "rate").text())
        ours, theirs = (statistics.median(window["server_cpu_us"] for window in side) for side in sides)
        row += [f"{ours:.1f}", f"{theirs:.1f}", f"{max(0.0, 1 - theirs / ours):.0%}"]
        rows.append(row)
    return markdown(head, rows)


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = options("The price of the kernel: our broker against a C program that only answers.", ())
    parser.set_defaults(rounds=3, warm=1.0, shapes=",".join(SHAPES))
    arguments = parser.parse_args()
    if unknown := {name for name in arguments.shapes.split(",") if name.partition(" ")[2] not in EXCHANGES}:
        parser.error(f"--shapes: {', '.join(sorted(unknown))}: like 'c16d1 pull'; kinds: {', '.join(EXCHANGES)}")

    def measured(site: Site, loadgen: Path, plan: Plan) -> list[Outcome]:
        ours = start(site, arguments.ours, "ours")
        broker = ours.server
        assert isinstance(broker, Broker)
        consumers, member = Consumers(broker), join_group(broker)
        outcomes = []
        try:
            for name in arguments.shapes.split(","):
                size, _, kind = name.partition(" ")
                exchange = EXCHANGES[kind]
                shape = Shape(name, *parsed_shape(size), exchange.template(site.root / kind), arguments.rate)
                other = anchor(site, exchange.answer_bytes)
                outcomes.append(measure(loadgen, shape, ours, Side(other, [other]), plan))
        finally:
            member.close()
            consumers.close()
        return outcomes

    return run(arguments, measured, table)


if __name__ == "__main__":
    raise SystemExit(main())
