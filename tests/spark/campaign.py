"""
Every class of damage on stores of every kind: what the audit finds, whom it blames, and that it is silent otherwise.

    python -m tests.spark.campaign --seeds 20
    python -m tests.spark.campaign --seeds 2 --kinds ours --classes body_bit_of_the_slave

Prints a table (class x kind: found/blamed/planted) and every miss, and ends with status 1 if there was one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
from rmq_audit.cli.watch import REPORT_FILE, Clock, Watch
from rmq_audit.driver.audit import Options, compare
from rmq_audit.driver.cluster import Tables, audit_cluster
from rmq_audit.driver.clusterconfig import ClusterConfig, config_of
from rmq_audit.driver.findings import Finding
from rmq_audit.driver.routes import read_routes
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker.work import Severity

from tests.spark.corruptor import clusters, logs, queues, records, tables
from tests.spark.corruptor.classes import CLASSES, REMARKS, NotHere, Outcome, Plan, judge, outcome_of
from tests.spark.corruptor.kinds import KINDS, legal_of, prepare
from tests.spark.corruptor.specimen import Specimen

#: the modules that fill CLASSES
SOURCES = (records, logs, queues, tables, clusters)

#: sizes of splits and chunks, taken in turn: some splits begin in forged records
SIZES = ((64 << 20, 1 << 20), (16_384, 16_384), (8_192, 4_096))

CLEAN = "nothing (clean pair)"


@attrs.frozen
class Case:
    """What one audit of the campaign gave; ``skipped`` says what the pair lacks for this class."""

    name: str
    kind: str
    seed: int
    found: bool = True
    blamed: bool = True
    wrong: tuple[str, ...] = ()
    skipped: str | None = None


def run(kind: str, seed: int, names: Sequence[str], folder: Path) -> list[Case]:
    """Make the clean pair of a kind and seed, audit it, and damage a copy of it in each of the ways named."""
    clean = folder / "clean"
    prepare(kind, seed, clean)
    try:
        cases = [_clean(kind, seed, clean, split, chunk) for split, chunk in SIZES]
        for number, name in enumerate(names):
            copy = folder / "copy"
            shutil.copytree(clean, copy)
            cases.append(_damaged(name, kind, seed, copy, SIZES[(seed + number) % len(SIZES)]))
            shutil.rmtree(copy)
    finally:
        shutil.rmtree(folder)
    return cases


def _clean(kind: str, seed: int, pair: Path, split: int, chunk: int) -> Case:
    """Audit a clean pair: alone, as a cluster with sound routes, and in two rounds of watch."""
    wrong = []
    specimen = Specimen(pair / "master", pair / "slave")
    routes = clusters.write_routes(specimen, clusters.sound_routes(specimen))
    for how, plan in (("", Plan([])), ("cluster: ", Plan([], routes=routes)), ("watch: ", Plan([], meanwhile=int))):
        result = _audit(pair, split, chunk, plan)
        wrong += [f"{how}cries wolf: {one}" for one in result.findings if one.invariant not in REMARKS]
        if (result.verdict, result.exit_status) != ("CONSISTENT", 0):
            wrong.append(f"{how}verdict {result.verdict}, exit status {result.exit_status}")
    return Case(CLEAN, kind, seed, not wrong, not wrong, tuple(wrong))


def _damaged(name: str, kind: str, seed: int, folder: Path, sizes: tuple[int, int]) -> Case:
    one = CLASSES[name]
    pair = Specimen(folder / "master", folder / "slave")
    try:
        plan = one.plant(pair, random.Random(f"{seed} {name}"))
    except NotHere as reason:
        return Case(name, kind, seed, skipped=str(reason))
    judged = judge(_audit(folder, *sizes, plan), one, plan)
    return Case(name, kind, seed, judged.found, judged.blamed, tuple(judged.wrong))


def _audit(folder: Path, split: int, chunk: int, plan: Plan) -> Outcome:
    options = Options(
        split_bytes=split,
        chunk_bytes=chunk,
        acked=plan.acked,
        index_slots=plan.index_slots,
        earlier=plan.earlier,
    )
    pair = str(folder / "master"), str(folder / "slave")
    if plan.routes is not None:
        tables = Tables(sends={}, strangers={}, routes=read_routes(plan.routes))
        whole = audit_cluster(config_of(*pair, 0), tables, LocalEngine(1), options)
        return Outcome(whole.verdict, whole.exit_status, whole.findings)
    if plan.meanwhile is not None:
        return _second_round(config_of(*pair, 0), options, plan.meanwhile)
    return outcome_of(compare(*pair, LocalEngine(1), options))


def _second_round(config: ClusterConfig, options: Options, meanwhile: Callable[[], object]) -> Outcome:
    """Watch the stores for two rounds with something between them, and return what the second one said."""
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(
            config,
            lambda: contextlib.nullcontext(LocalEngine(1)),
            options,
            folder=folder,
            clock=Clock(now_s=lambda: 0.0, wait=lambda _: None, date=lambda: "then", epoch_s=lambda: 0.0),
            say=lambda _: None,
            new_id=lambda: "run",
        )
        watch.round()
        meanwhile()
        watch.round()
        last = json.loads((Path(folder) / REPORT_FILE).read_text())
    findings = [Finding(**{**one, "severity": Severity[one["severity"]]}) for one in last["findings"]]
    return Outcome(last["verdict"], last["exit_status"], findings)


def _job(job: tuple[str, int, list[str], str]) -> list[Case]:
    kind, seed, names, root = job
    try:
        return run(kind, seed, names, Path(tempfile.mkdtemp(dir=root)))
    except StopIteration as error:
        # it would end the loop over the answers of the pool as if all were done
        raise RuntimeError(f"{kind}, seed {seed}: something was looked for and not found") from error


def campaign(kinds: Sequence[str], seeds: Sequence[int], names: Sequence[str], processes: int) -> Iterator[Case]:
    """Yield every case as it is done."""
    with tempfile.TemporaryDirectory(prefix="rmq-audit-campaign-") as root:
        jobs = [(kind, seed, list(names), root) for seed in seeds for kind in kinds]
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            for cases in pool.imap(_job, jobs):
                yield from cases


def table(cases: Sequence[Case], kinds: Sequence[str]) -> str:
    """Return found/blamed/planted for each class and kind, in Markdown."""
    rows: dict[str, dict[str, list[Case]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for case in cases:
        rows[case.name][case.kind].append(case)
    lines = [f"| class | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    for name, by_kind in rows.items():
        cells = []
        for kind in kinds:
            ones = [case for case in by_kind[kind] if case.skipped is None]
            found, blamed = sum(case.found for case in ones), sum(case.blamed for case in ones)
            silent = sum(not case.wrong for case in ones)
            cells.append(f"silent {silent}/{len(ones)}" if name == CLEAN else f"{found}/{blamed}/{len(ones)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--classes", nargs="+", choices=list(CLASSES), default=list(CLASSES), metavar="CLASS")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    cases: list[Case] = []
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for case in campaign(options.kinds, seeds, options.classes, options.processes):
        if case.name == CLEAN and not any((one.kind, one.seed) == (case.kind, case.seed) for one in cases):
            print(f"{time.monotonic() - began:5.0f} s  {case.kind}, seed {case.seed}", file=sys.stderr, flush=True)
        cases.append(case)
        for text in case.wrong:
            print(f"WRONG {case.kind}, seed {case.seed} ({legal_of(case.seed)}), {case.name}: {text}", flush=True)
    print(table(cases, options.kinds))
    planted = [case for case in cases if case.skipped is None and case.name != CLEAN]
    clean = [case for case in cases if case.name == CLEAN]
    print(
        f"{len(options.classes)} classes, {len(planted)} pairs damaged: {sum(case.found for case in planted)} found, "
        f"{sum(case.blamed for case in planted)} blamed as they should; {len(clean)} times a clean pair "
        "(compared, as a cluster, watched): "
        f"{sum(not case.wrong for case in clean)} silent; {sum(case.skipped is not None for case in cases)} left out "
        f"(nothing there to damage); {time.monotonic() - began:.0f} s"
    )
    return 1 if any(case.wrong for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
