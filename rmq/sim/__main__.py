"""
``python -m rmq.sim --seed N [--seconds S] [--plan NAME]``: one simulated disaster, printed; exit status 0 when good.

Options and plan that were drawn, what happened, the verdict and the digest of the trace, which is the same each time.

``python -m rmq.sim --seeds 1-10000`` or ``--hours 8 [--seed FIRST]``: a campaign, one line for each bad seed and a line
of progress now and then. Without ``--plan`` its seeds take the plans in turn (`rmq.sim.scenario.plan_of`); what a
campaign finds is seen again with ``--seed N --plan NAME --seconds S`` as its line says. Its last line has one digest
of all traces: a change of the code that leaves it as it was changed nothing that these seeds do.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import logging
import sys
import time
from collections.abc import Iterable, Sequence

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from zope.interface import implementer

from rmq.sim.scenario import CAMPAIGN_S, CHAOS_S, PLANS, Run, plan_of

#: a campaign reports its progress after so many seeds
TELL_EVERY = 100


@implementer(ILogObserver)
class Lines:
    """Log events as lines with simulated time; what the roles would have logged."""

    def __init__(self, level: str | None) -> None:
        self._level = None if level is None else LogLevel.levelWithName(level)
        self.run: Run | None = None

    def __call__(self, event: LogEvent) -> None:
        level = event.get("log_level")
        if self.run is None or self._level is None or level is None or level < self._level:
            return
        now_s = self.run.world.now_s
        print(f"{now_s:10.3f} {level.name:8} {event.get('log_namespace', '')} {formatEvent(event)}")


class ClientLines(logging.Handler):
    """What clients log, which is with `logging`, among the other lines."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        level = LogLevel.levelWithName({"WARNING": "warn"}.get(record.levelname, record.levelname.lower()))
        text = record.getMessage()
        self._lines({"log_level": level, "log_namespace": record.name, "log_format": "{text}", "text": text})


def seed_range(text: str) -> range:
    """Return the seeds of ``A-B``, both included."""
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds like 1-200")
    return range(int(first), int(last) + 1)


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="rmq.sim", description="Run whole clusters on simulated machines.")
    parser.add_argument("--seed", type=int, help="the same seed gives the same run; with --hours the first of many")
    parser.add_argument("--seeds", type=seed_range, metavar="A-B", help="a campaign: run all these seeds")
    parser.add_argument("--hours", type=float, help="a campaign: run one seed after the other for so long")
    parser.add_argument(
        "--seconds", type=float, help=f"simulated seconds with faults ({CHAOS_S:g}, in campaigns {CAMPAIGN_S:g})"
    )
    parser.add_argument("--plan", choices=sorted(PLANS), help="kinds of faults (all; in campaigns all plans in turn)")
    parser.add_argument("--log", choices=("debug", "info", "warn", "error", "critical"), help="print what is logged")
    parser.add_argument("--trace", action="store_true", help="print the last events of a bad run")
    options = parser.parse_args(arguments)
    if options.seed is None and options.seeds is None and options.hours is None:
        parser.error("one of --seed, --seeds and --hours is needed")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; return the exit status."""
    options = arguments_of(arguments)
    lines = Lines(options.log)
    globalLogBeginner.beginLoggingTo([lines], redirectStandardIO=False, discardBuffer=True)
    logging.getLogger("rmq.client").addHandler(ClientLines(lines))
    if options.seeds is not None or options.hours is not None:
        return campaign(options, lines)
    run = Run(options.seed, plan=options.plan or "all", chaos_s=options.seconds or CHAOS_S)
    lines.run = run
    outcome = run.go()
    print("\n".join(outcome.lines()))
    if options.trace and outcome.violations:
        print("\n".join(run.world.trace.tail))
    return 1 if outcome.violations else 0


def campaign(options: argparse.Namespace, lines: Lines) -> int:
    """Run seed after seed; the exit status is 0 when none was bad."""
    seeds: Iterable[int] = itertools.count(options.seed or 1) if options.seeds is None else options.seeds
    chaos_s = options.seconds or CAMPAIGN_S
    began_s = time.monotonic()
    count = bad = 0
    simulated_s = 0.0
    traces = hashlib.sha256()
    for seed in seeds:
        if options.hours is not None and time.monotonic() - began_s >= options.hours * 3600:
            break
        plan = options.plan or plan_of(seed)
        lines.run = run = Run(seed, plan=plan, chaos_s=chaos_s)
        outcome = run.go()
        count += 1
        simulated_s += outcome.simulated_s
        traces.update(outcome.digest.encode())
        if outcome.violations:
            bad += 1
            found = "; ".join(outcome.violations[:3])
            print(f"BAD --seed {seed} --plan {plan} --seconds {chaos_s:g}: {found}", flush=True)
            if options.trace:
                print("\n".join(run.world.trace.tail))
        if count % TELL_EVERY == 0:
            print(_so_far(count, bad, simulated_s, time.monotonic() - began_s), flush=True)
    so_far = _so_far(count, bad, simulated_s, time.monotonic() - began_s)
    print(f"end: {so_far}, all traces {traces.hexdigest()}")
    return 1 if bad else 0


def _so_far(count: int, bad: int, simulated_s: float, real_s: float) -> str:
    return (
        f"{count} seeds, {bad} with violations, {simulated_s / 3600:.1f} simulated hours in {real_s:.0f} s "
        f"({real_s / max(1, count):.2f} s a seed)"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
