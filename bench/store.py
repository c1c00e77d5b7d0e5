"""
Sends: our broker against Apache's, one way of acknowledging after the other.

From the project's root: ``python -m bench.store``
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from bench.frames import batch_template, send_template
from bench.pairing import (
    BENCH_JAVA,
    MAX_LOADGEN_CPU,
    Outcome,
    Plan,
    Shape,
    Side,
    Window,
    measure,
    options,
    parsed_shape,
    run,
)
from bench.rounds import Spread, markdown
from tests.real.peers import APACHE_4, Broker, Site, until
from tests.real.storm import QUEUES

TOPIC = "BenchSend"


@attrs.frozen
class Goal:
    """A ratio ours : Apache that is asked for, of one figure of a shape."""

    key: str
    least: float | None = None
    most: float | None = None

    def text(self, ratio: float) -> str:
        is_met = (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most)
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        return f"{NAMES[self.key]} {bound}: {ratio:.2f}, {'met' if is_met else 'NOT met'}"


#: figure of a window -> its name in a table
NAMES = {"rate": "rate", "server_cpu_us": "CPU", "p50": "p50"}


@attrs.frozen
class Mode:
    """How the brokers are configured, and what is measured of them: (bytes of the body, shape)."""

    name: str
    shapes: tuple[tuple[int, str], ...]
    goals: dict[tuple[int, str], tuple[Goal, ...]]
    flush: str = "ASYNC_FLUSH"
    slave: bool = False
    #: messages of a batch; 0: single sends
    batch: int = 0


MODES = {
    mode.name: mode
    for mode in (
        Mode(
            "async",
            ((100, "c1d1"), (100, "c64d1"), (1024, "c64d1")),
            {(100, "c64d1"): (Goal("rate", least=1.0), Goal("server_cpu_us", most=0.6))},
        ),
        Mode(
            "sync-flush",
            ((100, "c1d1"), (100, "c64d1")),
            {(100, "c1d1"): (Goal("p50", most=1 / 3),), (100, "c64d1"): (Goal("rate", least=1.2),)},
            flush="SYNC_FLUSH",
        ),
        Mode(
            "sync-master",
            ((100, "c1d1"), (100, "c64d1")),
            {(100, "c1d1"): (Goal("p50", most=0.6),), (100, "c64d1"): (Goal("rate", least=1.0),)},
            slave=True,
        ),
        Mode(
            "batch",
            ((100, "c1d1"), (100, "c16d1")),
            {
                (100, "c1d1"): (Goal("rate", least=1.5), Goal("server_cpu_us", most=0.5)),
                (100, "c16d1"): (Goal("rate", least=2.0), Goal("server_cpu_us", most=0.4)),
            },
            batch=32,
        ),
    )
}


def stores(server: Broker) -> bool:
    """Tell whether a send is answered 0: stored, and by a slave too where one is asked for."""
    with server.probe() as probe:
        return probe.send_message(TOPIC, 0, b"ready?").code == 0


def start(site: Site, kind: str, name: str, mode: Mode) -> Side:
    """Start a broker, and where the mode asks for it a slave of its own kind that replicates."""
    others = len(site.processes)
    config: dict[str, Any] = {"flushDiskType": mode.flush, "mappedFileSizeCommitLog": 256 << 20}
    config |= {"mappedFileSizeConsumeQueue": 20 * 300_000, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
    config["brokerRole"] = "SYNC_MASTER" if mode.slave else "ASYNC_MASTER"
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    server = site.broker(kind, namesrv.addr, name, **config)
    with server.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    if mode.slave:
        site.slave(kind, server, namesrv.addr, f"{name}-slave")
        until(f"{name} replicates", partial(stores, server))  # Apache's slave first reports after 5 s
    return Side(server, site.processes[others:])


def ratio(outcome: Outcome, key: str) -> Spread:
    """Return ours : Apache of a figure, round by round."""

    def rounds(windows: Sequence[Window]) -> list[float]:
        both = zip(windows[::2], windows[1::2], strict=True)
        return [statistics.fmean((there[key], back[key])) for there, back in both]

    pairs = zip(rounds(outcome.ours), rounds(outcome.apache), strict=True)
    return Spread.of([ours / apache for ours, apache in pairs if apache])


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all shapes: figures of both, and how ours stand to Apache's."""
    head = ["shape", "rate ours", "Apache", "ratio (min-max)", "CPU us/request ours", "Apache", "ratio (min-max)"]
    head += ["p50 us ours", "Apache", "ratio (min-max)", "p99 us ours", "Apache", "not 0", "generator"]
    rows = []
    for outcome in outcomes:
        sides = outcome.ours, outcome.apache
        row = [outcome.shape.name]
        for key, digits in (("rate", 0), ("server_cpu_us", 1), ("p50", 0)):
            row += [f"{statistics.median(window[key] for window in side):,.{digits}f}" for side in sides]
            row.append(ratio(outcome, key).text())
        row += [f"{statistics.median(window['p99'] for window in side):,.0f}" for side in sides]
        row.append(" / ".join(str(sum(window["bad"] + window["unanswered"] for window in side)) for side in sides))
        busiest = max(window["loadgen_cpu"] for side in sides for window in side)
        row.append(f"{busiest:.0%}" + (" (too busy: a limit of its own)" if busiest > MAX_LOADGEN_CPU else ""))
        rows.append(row)
    return markdown(head, rows)


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = options("Sends: our broker against Apache's.", ())
    parser.set_defaults(rounds=5, shapes="")
    parser.add_argument("--modes", default=",".join(MODES), help="which modes (default: %(default)s)")
    parser.add_argument("--sizes", default="", help="body sizes in bytes, with --shapes (default: each mode's own)")
    arguments = parser.parse_args()
    unknown = set(arguments.modes.split(",")) - MODES.keys()
    if unknown:
        parser.error(f"--modes: {', '.join(sorted(unknown))} is none of {', '.join(MODES)}")
    goals: dict[str, tuple[Goal, ...]] = {}

    def shapes_of(mode: Mode) -> list[tuple[int, str]]:
        if not arguments.shapes and not arguments.sizes:
            return list(mode.shapes)
        sizes = map(int, (arguments.sizes or "100").split(","))
        names = (arguments.shapes or "c1d1,c64d1").split(",")
        return [(size, name) for size in sizes for name in names]

    def measured(site: Site, loadgen: Path, plan: Plan) -> list[Outcome]:
        outcomes = []
        for mode in map(MODES.__getitem__, arguments.modes.split(",")):
            # Each mode has the machine for itself.
            place = Site(site.root / mode.name, BENCH_JAVA)
            place.root.mkdir()
            try:
                ours, apache = (
                    start(place, kind, name, mode) for kind, name in ((arguments.ours, "ours"), (APACHE_4, "apache"))
                )
                for size, name in shapes_of(mode):
                    path = place.root / f"send-{size}"
                    if mode.batch:
                        template = batch_template(path, TOPIC, mode.batch, size)
                    else:
                        template = send_template(path, TOPIC, size)
                    title = f"{mode.name} {f'{mode.batch} x ' * bool(mode.batch)}{size} B {name}"
                    goals[title] = mode.goals.get((size, name), ())
                    shape = Shape(title, *parsed_shape(name), template, arguments.rate)
                    outcomes.append(measure(loadgen, shape, ours, apache, plan))
            finally:
                place.close()
                place.forget_stores()
        return outcomes

    def report(outcomes: Sequence[Outcome]) -> str:
        lines = [
            f"- {outcome.shape.name}: {goal.text(ratio(outcome, goal.key).median)}"
            for outcome in outcomes
            for goal in goals[outcome.shape.name]
        ]
        return "\n".join([table(outcomes), "", *lines])

    return run(arguments, measured, report)


if __name__ == "__main__":
    raise SystemExit(main())
