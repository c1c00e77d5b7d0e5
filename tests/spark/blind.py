"""
Damage that nobody foresaw, on pairs that real brokers wrote: whatever anybody could notice must end with exit status 2.

    python -m tests.spark.blind --seeds 0-4999
    python -m tests.spark.blind --seeds 17 --keep /tmp/case

Prints each case: what was done, what shows it, what the audit said; at the end the table of classes, in Markdown. Ends
with status 1 when a case was missed.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
from rmq_audit.driver.audit import Options, compare
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker.location import InputError

from tests.goldens import STORES, unpack_store
from tests.spark.blinddamage import SIDES, Pair, damage
from tests.spark.blindoracle import UNNOTICEABLE, UNTELLABLE, Files, Judgement, Store, judge, observe

#: damaged from the start: Apache's slave left a hole
LEFT_OUT = ("pair-lag-4.9.7-resumed",)

NOTICED = "noticed"


@attrs.frozen(kw_only=True)
class Case:
    """One damaged pair; ``findings`` are what the audit said, ``exit_status`` 70 stands for a stack trace."""

    seed: int
    pair: str
    said: list[str]
    judged: Judgement
    exit_status: int
    findings: list[str]

    @property
    def is_missed(self) -> bool:
        return self.exit_status not in ((2,) if self.judged.noticed else (0, 1, 2, 3))

    @property
    def classes(self) -> Sequence[str]:
        """What the case counts as: noticed, else the classes of its changes."""
        judged = self.judged
        return [NOTICED] if judged.noticed else sorted(judged.untellable or judged.unnoticeable)

    def __str__(self) -> str:
        judged = self.judged
        lines = [f"{'MISSED ' if self.is_missed else ''}{self.seed} {self.pair}: exit {self.exit_status}"]
        lines += [f"    {one}" for one in self.said]
        lines += [f"    shown by {one}" for one in judged.noticed[:4]]
        lines.append(f"    classes: {', '.join(sorted(judged.untellable | judged.unnoticeable))}")
        return "\n".join(lines + [f"    {one[:200]}" for one in self.findings[:4]])


class Bench:
    """Every golden pair, and each golden store with a copy of itself as its slave; damaged and restored in turn."""

    def __init__(self, folder: Path) -> None:
        self.pairs: dict[str, Pair] = {}
        self._shown: dict[str, dict[str, Store]] = {}
        for archive in sorted(STORES.glob("*.tar.xz")):
            name = archive.name.removesuffix(".tar.xz")
            if name not in LEFT_OUT:
                self.pairs[name] = pair = Pair(_unpacked(name, folder / "origin" / name), folder / name)
                self._shown[name] = {side: observe(files) for side, files in _sides(pair.held).items()}

    def run(self, seed: int, keep: Path | None = None) -> Case:
        """Damage the pair whose turn it is, audit it, and restore it; ``keep``: copy the damaged pair there."""
        chance = random.Random(f"blind {seed}")
        name = sorted(self.pairs)[seed % len(self.pairs)]
        pair = self.pairs[name]
        strangers = [one for other, one in self.pairs.items() if other != name]
        try:
            said = damage(pair, strangers, chance)
            judged = judge(_sides(pair.held), self._shown[name], _sides(pair.files))
            status, findings = audit(pair)
            if keep is not None:
                shutil.copytree(pair.folder, keep)
        finally:
            pair.restore()
        return Case(seed=seed, pair=name, said=said, judged=judged, exit_status=status, findings=findings)


def _unpacked(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    unpack_store(name, folder)
    (folder / "MANIFEST.json").unlink()
    if (folder / "store").exists():
        (folder / "store").rename(folder / "master")
        shutil.copytree(folder / "master", folder / "slave")
    return folder


def _sides(held: Files) -> dict[str, Files]:
    return {
        side: {name.removeprefix(side + "/"): data for name, data in held.items() if name.startswith(side + "/")}
        for side in SIDES
    }


def audit(pair: Pair) -> tuple[int, list[str]]:
    """Return exit status and findings, as the command gives them."""
    try:
        result = compare(str(pair.folder / "master"), str(pair.folder / "slave"), LocalEngine(1), Options())
    except InputError as error:
        return 64, [str(error)]
    except Exception as error:  # noqa: BLE001 - a stack trace is what this looks for
        return 70, [repr(error)]
    said = [f"{one.invariant} {one.severity.name} on {one.replica}: {one.detail}" for one in result.findings]
    return result.exit_status, said


def run(seeds: Iterable[int], keep: Path | None = None) -> Iterator[Case]:
    """Yield every case as it is done."""
    with tempfile.TemporaryDirectory(prefix="rmq-audit-blind-") as folder:
        bench = Bench(Path(folder))
        for seed in seeds:
            yield bench.run(seed, keep)


def table(cases: Iterable[Case]) -> str:
    """Return for each class how many cases ended with exit status 2 or otherwise, in Markdown, and why."""
    counts: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    for case in cases:
        for name in case.classes:
            counts[name][case.exit_status == 2] += 1
    why = {NOTICED: "must end with exit status 2"} | UNNOTICEABLE | UNTELLABLE
    lines = ["| class | cases | exit 2 | why |", "|---|---|---|---|"]
    lines += [f"| {name} | {counts[name].total()} | {counts[name][True]} | {why[name]} |" for name in why]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-99", metavar="A-B")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy the damaged pair there (of one seed)")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    cases = []
    for case in run(range(int(first), int(last or first) + 1), options.keep):
        print(case, flush=True)
        cases.append(case)
    missed = [case.seed for case in cases if case.is_missed]
    print(f"{table(cases)}\n\n{len(cases)} cases, {len(missed)} missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
