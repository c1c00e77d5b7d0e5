"""
``python -m rmq.sim --seed N [--seconds S] [--plan NAME]``: one simulated disaster, printed; exit status 0 when good.

Options and plan that were drawn, what happened, the verdict and the digest of the trace, which is the same each time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from zope.interface import implementer

from rmq.sim.scenario import CHAOS_S, PLANS, Run


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


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="rmq.sim", description="Run a whole cluster on simulated machines.")
    parser.add_argument("--seed", type=int, required=True, help="the same seed gives the same run")
    parser.add_argument("--seeds", type=int, default=1, metavar="COUNT", help="run so many seeds from there on")
    parser.add_argument("--seconds", type=float, default=CHAOS_S, help="simulated seconds with faults (%(default)g)")
    parser.add_argument("--plan", choices=sorted(PLANS), default="all", help="kinds of faults (%(default)s)")
    parser.add_argument("--log", choices=("debug", "info", "warn", "error", "critical"), help="print what is logged")
    parser.add_argument("--trace", action="store_true", help="print the last events of a bad run")
    options = parser.parse_args(arguments)
    lines = Lines(options.log)
    globalLogBeginner.beginLoggingTo([lines], redirectStandardIO=False, discardBuffer=True)
    bad = 0
    for seed in range(options.seed, options.seed + options.seeds):
        lines.run = run = Run(seed, plan=options.plan, chaos_s=options.seconds)
        outcome = run.go()
        bad += bool(outcome.violations)
        if options.seeds == 1 or outcome.violations:
            print("\n".join(outcome.lines()))
        else:
            print(f"seed {seed} good after {outcome.simulated_s:.0f} simulated seconds, trace {outcome.digest}")
        if options.trace and outcome.violations:
            print("\n".join(run.world.trace.tail))
        sys.stdout.flush()
    if options.seeds > 1:
        print(f"{options.seeds} seeds, {bad} with violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
