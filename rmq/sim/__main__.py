"""``python -m rmq.sim --seed N [--seconds S] [--plan NAME]``: one simulated disaster, printed; exit status 0 when good."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rmq.sim.scenario import CHAOS_S, PLANS, Run


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="rmq.sim", description="Run a whole cluster on simulated machines.")
    parser.add_argument("--seed", type=int, required=True, help="the same seed gives the same run")
    parser.add_argument("--seeds", type=int, default=1, metavar="COUNT", help="run so many seeds from there on")
    parser.add_argument("--seconds", type=float, default=CHAOS_S, help="simulated seconds with faults (%(default)g)")
    parser.add_argument("--plan", choices=sorted(PLANS), default="all", help="kinds of faults (%(default)s)")
    parser.add_argument("--trace", action="store_true", help="print the last events of a bad run")
    options = parser.parse_args(arguments)
    bad = 0
    for seed in range(options.seed, options.seed + options.seeds):
        run = Run(seed, plan=options.plan, chaos_s=options.seconds)
        outcome = run.go()
        bad += bool(outcome.violations)
        if options.seeds == 1 or outcome.violations:
            for line in outcome.lines():
                print(line)
        else:
            print(f"seed {seed} good {outcome.digest[:16]}")
        if options.trace and outcome.violations:
            for line in run.world.trace.tail:
                print(line)
        sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
