"""
``python -m tests.reactor``: the lean reactor must do in Twisted's own reactor tests what Twisted's epoll reactor does.

Both run in this order in processes of their own, so a test that fails on this machine with both (for want of rights or
of IPv6, say) is no difference; such tests are named. A few of Twisted's thousand tests depend on the machine's speed:
the modules of a test that differs are run again with both, and it counts when it differs each time. Ends with 1 when
there is a difference that has no reason in tests/reactor/differences.py. Arguments: modules to run in place of all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.reactor.differences import FAILED, differences, permitted
from tests.reactor.suites import LEAN, MODULES, STOCK

#: one reactor's tests; they take a minute or two
TIMEOUT_S = 900
#: how often the modules of tests that differ are run again
RETRIES = 2


def run(reactor: str, modules: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Return the outcomes of ``modules`` with ``reactor``; SystemExit when its process fails."""
    results = folder / f"{reactor.rpartition('.')[2]}.json"
    log = results.with_suffix(".txt")
    with log.open("wb") as out:
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.reactor.suites", reactor, str(results), *modules],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    if not results.exists():
        raise SystemExit(f"{reactor}: its tests ended with {process.returncode}\n{log.read_text(errors='replace')}")
    outcomes: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes.values()).items()))
    print(f"{reactor}: {len(outcomes)} tests: {counts}", flush=True)
    return outcomes


def lasting(found: list[str], chosen: tuple[str, ...], folder: Path) -> list[str]:
    """Return those of the differences that are there again in each of RETRIES further runs."""
    for number in range(RETRIES):
        if not found:
            break
        print(*(f"run again: {line}" for line in found), sep="\n", flush=True)
        again = tuple(name for name in chosen if any(line.startswith(f"{name}.") for line in found)) or chosen
        place = folder / str(number)
        place.mkdir()
        names = {_name(line) for line in differences(run(STOCK, again, place), run(LEAN, again, place))}
        found = [line for line in found if _name(line) in names]
    return found


def _name(difference: str) -> str:
    return difference.partition(": ")[0]


def main(*modules: str) -> int:
    """Run and compare; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        chosen = modules or MODULES
        stock = run(STOCK, chosen, place)
        lean = run(LEAN, chosen, place)
        for line in permitted(stock, lean):
            print(f"permitted: {line}")
        for name in sorted(name for name in stock if stock[name] == lean.get(name) == FAILED):
            print(f"failed with both: {name}")
        found = lasting(differences(stock, lean), chosen, place)
        if found:
            print((place / "LeanReactor.txt").read_text(errors="replace"))
        for line in found:
            print(f"DIFFERENT: {line}")
    if not stock:
        print("no tests were run")
        return 1
    if not found:
        print(f"rmq-lean does as Twisted's epoll reactor in {len(stock)} of Twisted's tests")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
