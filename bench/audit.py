"""
The speed of the audit, in ratios of one run: ``python -m bench.audit``.

Everything that is compared takes turns, round by round; a ratio is that of one round, and the table shows the median
with the smallest and the largest. Stores are made for the run, in memory where that is large enough, and removed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

ROOT = Path(__file__).resolve().parent.parent
# for this process and for the workers, which import by the environment
sys.path[:0] = [str(ROOT / "spark")]
os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "spark")))

from rmq_audit.driver import inventory  # noqa: E402
from rmq_audit.driver.audit import Options, Result, compare  # noqa: E402
from rmq_audit.driver.scan import CHUNK_BYTES, SPLIT_BYTES, plan_splits  # noqa: E402
from rmq_audit.engine.engines import Engine, LocalEngine  # noqa: E402
from rmq_audit.worker import kernel  # noqa: E402
from rmq_audit.worker.frames import Asked, extract  # noqa: E402
from rmq_audit.worker.scan import SCAN, Split, scan  # noqa: E402

from bench.auditstores import Made, copy_store, make_store, shorter  # noqa: E402
from bench.conditions import file_system  # noqa: E402
from bench.rounds import Spread, markdown  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
BODIES = (200, 1024)
SEGMENT_BYTES = 128 * MIB
PLANTED = 8
WORKERS = 2
#: what both replicas of the comparison have at most: a join of whole records has to end some day
COMPARED_BYTES = GIB
#: options of Java and of spark-submit, of the audit by default and for joins: a JVM with room, which compiles well
AUDITING = "", "pyspark-shell"
JOINING = "-XX:TieredStopAtLevel=4", "--driver-memory 4g pyspark-shell"
#: audits until Java has compiled what they need
WARM_AUDITS = 2
#: what Spark, its workers and this process need beside stores that lie in memory
OTHER_BYTES = 6 * GIB
PARTS = ("kernel", "scan", "compare", "linear", "memory")

Answer = TypeVar("Answer")


@attrs.frozen
class Row:
    """One line of the table; ``wanted`` is the goal for ``ratio``, a least value or, with ``at_most``, a largest."""

    part: str
    what: str
    figures: str
    ratio: Spread | None = None
    wanted: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.ratio is None or self.wanted is None:
            return None
        return self.ratio.median <= self.wanted if self.at_most else self.ratio.median >= self.wanted

    def cells(self) -> list[str]:
        goal = "" if self.wanted is None else f"{'<=' if self.at_most else '>='} {self.wanted:g}"
        verdict = {None: "", True: "yes", False: "NO"}[self.met]
        return [self.part, self.what, self.figures, "" if self.ratio is None else self.ratio.text(), goal, verdict]


@attrs.frozen
class Cost:
    """What one measured call took: seconds of wall clock, CPU seconds of this process and of all below it."""

    wall_s: float
    cpu_s: float


def tree_cpu_s() -> float:
    """Return the CPU seconds that this process and all its children, dead or alive, have used."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile; its parent's count has its time
        children.setdefault(int(fields[1]), []).append(int(name))
        ticks[int(name)] = sum(map(int, fields[11:15]))
    total, todo = 0, [os.getpid()]
    while todo:
        one = todo.pop()
        total += ticks.get(one, 0)
        todo += children.get(one, ())
    return total / os.sysconf("SC_CLK_TCK")


def cost_of(what: Callable[[], object]) -> Cost:
    cpu, wall = tree_cpu_s(), time.perf_counter()
    what()
    return Cost(time.perf_counter() - wall, tree_cpu_s() - cpu)


def in_turns(
    candidates: Mapping[str, Callable[[], Answer]], rounds: int, warm: int, cost: Callable[[Callable[[], Answer]], Cost]
) -> dict[str, list[Cost]]:
    """Run all candidates ``warm`` times, then let them take turns, every other round in reverse."""
    found: dict[str, list[Cost]] = {name: [] for name in candidates}
    for number in range(warm + rounds):
        for name in list(candidates)[:: -1 if number % 2 else 1]:
            one = cost(candidates[name])
            if number >= warm:
                found[name].append(one)
    return found


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def walls(costs: Sequence[Cost]) -> list[float]:
    return [one.wall_s for one in costs]


def cpus(costs: Sequence[Cost]) -> list[float]:
    return [one.cpu_s for one in costs]


def cpu_text(costs: Sequence[Cost]) -> str:
    return f"{Spread.of(cpus(costs)).text()} CPU s"


def rate(size: int, seconds: Sequence[float]) -> str:
    return f"{Spread.of([size / 1e6 / one for one in seconds]).text(0)} MB/s"


def measure_kernel(folder: Path, rounds: int) -> Iterable[Row]:
    """The kernel with CRC, tags, queues and runs on bytes at hand, against one CRC over all of them."""
    for body in BODIES:
        made = make_store(folder / f"kernel-{body}", 80 * MIB, body_bytes=body, segment_bytes=80 * MIB)
        data = next((made.path / "commitlog").iterdir()).read_bytes()[: 64 * MIB]
        shutil.rmtree(made.path)

        def all_of_it(data: bytes = data) -> None:
            found = extract(data, 0, len(data), len(data), Asked(crc=True, tags=True))
            assert len(found.wrong_bodies) == 0
            kernel.runs(data, found.columns, found.queues, 0, found.tags)

        def cost(what: Callable[[], object]) -> Cost:
            cpu, wall = time.process_time(), time.perf_counter()
            what()
            return Cost(time.perf_counter() - wall, time.process_time() - cpu)

        costs = in_turns({"crc": partial(zlib.crc32, data), "kernel": all_of_it}, 2 * rounds + 1, 1, cost)
        seconds = {name: cpus(each) for name, each in costs.items()}
        figures = f"{kernel.NAME} {rate(len(data), seconds['kernel'])}; zlib.crc32 {rate(len(data), seconds['crc'])}"
        share = ratio(seconds["crc"], seconds["kernel"])
        yield Row("kernel", f"{body} B: with CRC, of zlib.crc32 over 64 MiB", figures, share, 0.5)


def splits_of(made: Made) -> list[Split]:
    store = inventory.take_inventory("store", str(made.path))
    size = store.segment_bytes or 0
    sizes = {"split_bytes": SPLIT_BYTES, "chunk_bytes": CHUNK_BYTES}
    return [split for one in store.segments for split in plan_splits(store, one, size, crc=True, **sizes)]


def measure_scan(made: Sequence[Made], spark: Engine, rounds: int) -> Iterable[Row]:
    """The scan of a store on Spark, warm, against the pool of as many processes with the same kernel."""
    pool = LocalEngine(WORKERS, pool_from_bytes=0)
    for one, body in zip(made, BODIES, strict=False):
        splits = splits_of(one)
        candidates = {"pool": partial(pool.run, SCAN, splits), "spark": partial(spark.run, SCAN, splits)}
        costs = in_turns(candidates, rounds, 2, cost_of)
        figures = "; ".join(f"{name} {rate(one.log_bytes, walls(each))}" for name, each in costs.items())
        what = f"{body} B, {one.log_bytes / GIB:g} GiB: Spark local[{WORKERS}], of a pool of {WORKERS} (wall)"
        yield Row("scan", what, figures, ratio(walls(costs["pool"]), walls(costs["spark"])), 0.7)
    pool.close()


def plant(made: Made) -> None:
    """Change one byte in the properties of some records all over the log, where no CRC sees it."""
    splits = splits_of(made)
    for number in range(PLANTED):
        place = number * made.log_bytes // PLANTED // MIB * MIB
        split = next(one for one in splits if one.begin <= place < one.end)
        found = scan(attrs.evolve(split, begin=place, end=place + MIB, start=None))
        (run, *_) = found.runs
        with open(split.file.path, "r+b") as file:
            file.seek(run.phy_last - split.file.start)
            size = int.from_bytes(file.read(4), "big")
            file.seek(run.phy_last - split.file.start + size - 1)
            file.write(b"X")


def audit(master: Path, slave: Path, engine: Engine) -> Result:
    return compare(str(master), str(slave), engine, Options())


def measure_comparison(master: Made, slave: Made, rounds: int) -> Iterable[Row]:
    """
    The whole audit of a pair of logs against joins that find the same differences, in CPU of the process tree.

    Each side has a process with a Spark of its own, and so pays for none of what the other's JVM compiles or sweeps up.
    """
    context = multiprocessing.get_context("spawn")
    both = master.log_bytes + slave.log_bytes
    with ProcessPoolExecutor(1, context) as auditing, ProcessPoolExecutor(1, context) as joining:

        def audited() -> Cost:
            return auditing.submit(cost_of_audit, master.path, slave.path).result()

        def joined(what: str) -> Cost:
            return joining.submit(cost_of_join, master.path, slave.path, what).result()

        try:
            for _ in range(WARM_AUDITS):
                audited()
            for what, wanted, times in (("hashes", 4, rounds), ("records", 10, max(rounds // 2, 1))):
                candidates: dict[str, Callable[[], Cost]] = {"audit": audited, f"join of {what}": partial(joined, what)}
                warm = int(what == "hashes")  # then Spark is
                costs = in_turns(candidates, times, warm, lambda candidate: candidate())
                figures = "; ".join(
                    f"{name} {cpu_text(each)}, {Spread.of(walls(each)).median:.1f} s" for name, each in costs.items()
                )
                share = ratio(cpus(costs[f"join of {what}"]), cpus(costs["audit"]))
                title = f"2 x {both / 2 / GIB:g} GiB: join of {what}, of the audit (CPU)"
                yield Row("compare", title, figures, share, wanted)
        finally:
            auditing.submit(close_spark, *AUDITING).result()
            joining.submit(close_spark, *JOINING).result()


@cache
def own_spark(java_options: str, submit: str) -> Engine:
    """Return the Spark of this process, started on first use."""
    from rmq_audit.engine.spark import JVM_OPTIONS, OwnedSparkEngine

    os.environ[JVM_OPTIONS] = java_options
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit
    return OwnedSparkEngine(f"local[{WORKERS}]")


def cost_of_audit(master: Path, slave: Path) -> Cost:
    spark = own_spark(*AUDITING)

    def digests() -> None:
        found = sum(one.invariant == "RP-DIFF" for one in audit(master, slave, spark).findings)
        assert found == PLANTED, f"{found} differences found"

    # Spark ends Python workers that had nothing to do for a minute, as long as joins may take; new ones cost 2.5 CPU s
    digests()
    return cost_of(digests)


def cost_of_join(master: Path, slave: Path, what: str) -> Cost:
    from pyspark.sql import SparkSession

    from bench.auditjoins import differing

    own_spark(*JOINING)
    session = SparkSession.builder.config("spark.sql.shuffle.partitions", "16").getOrCreate()

    def join() -> None:
        found = differing(session, master, slave, what)
        assert found == PLANTED, f"{found} differences found by a join of {what}"

    return cost_of(join)


def close_spark(java_options: str, submit: str) -> None:
    if own_spark.cache_info().currsize:
        own_spark(java_options, submit).close()


def measure_growth(folder: Path, master: Made, slave: Made, engines: dict[str, Engine], rounds: int) -> Iterable[Row]:
    """The audit of ever larger pairs: how much more CPU twice the bytes take."""
    pairs: dict[int, tuple[Path, Path]] = {}
    for part in (4, 2, 1):
        size = master.log_bytes // part
        sides = [shorter(one, folder / f"{one.path.name}-{part}", size) for one in (master, slave)]
        pairs[2 * size] = sides[0], sides[1]
    for name, engine in engines.items():
        candidates = {str(size): partial(audit, *pair, engine) for size, pair in pairs.items()}
        costs = in_turns(candidates, rounds, 1, cost_of)
        for less, more in zip(pairs, list(pairs)[1:], strict=False):
            share = ratio(cpus(costs[str(more)]), cpus(costs[str(less)]))
            figures = "; ".join(f"{size / GIB:g} GiB {cpu_text(costs[str(size)])}" for size in (less, more))
            what = f"{name}: {less / GIB:g} to {more / GIB:g} GiB of log (CPU)"
            yield Row("linear", what, figures, share, 2.3, at_most=True)
    for side in (side for sides in pairs.values() for side in sides):
        shutil.rmtree(side)


def peak_kib(pid: int | str = "self") -> int:
    """Return the most memory that a process ever held."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _scan_in_own_process(splits: Sequence[Split], answer: Any) -> None:
    before = peak_kib()
    for split in splits:
        assert scan(split).error is None
    answer.put((before, peak_kib()))


def measure_memory(folder: Path, spark: Engine) -> Iterable[Row]:
    """What a worker holds at most while it reads a segment of 1 GiB, by the size of a split."""
    made = make_store(folder / "wide", GIB, body_bytes=BODIES[0], segment_bytes=GIB)
    store = inventory.take_inventory("store", str(made.path))
    context = multiprocessing.get_context("spawn")
    for split_bytes in (8 * MIB, 64 * MIB, 128 * MIB):
        sizes = {"split_bytes": split_bytes, "chunk_bytes": CHUNK_BYTES}
        splits = list(plan_splits(store, store.segments[0], GIB, crc=True, **sizes))
        answer = context.Queue()
        process = context.Process(target=_scan_in_own_process, args=(splits, answer))
        process.start()
        before, most = answer.get()
        process.join()
        share = (most - before) * 1024 / split_bytes
        figures = f"{before / 1024:.0f} MiB after import, {most / 1024:.0f} MiB at most"
        what = f"segment of 1 GiB in splits of {split_bytes // MIB} MiB: growth, of a split"
        yield Row("memory", what, figures, Spread(share, share, share), 10, at_most=True)
    spark.run(SCAN, splits_of(made))
    figures = "; ".join(f"{name} {size / 1024:.0f} MiB" for name, size in sorted(spark_peaks().items()))
    yield Row("memory", "segment of 1 GiB on Spark, splits of 64 MiB: the most that each process held", figures)
    shutil.rmtree(made.path)


def spark_peaks() -> dict[str, int]:
    """Return the most memory that the JVM and the largest Python worker below this process ever held, in KiB."""
    found: dict[str, int] = {}
    told = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in told.splitlines()]
    below = {os.getpid()}
    for _ in range(5):
        below |= {int(row[0]) for row in rows if int(row[1]) in below}
    for pid, _, args in rows:
        for name, mark in (("JVM", "org.apache.spark.deploy"), ("worker", "pyspark.daemon")):
            if mark in args and int(pid) in below:
                found[name] = max(found.get(name, 0), peak_kib(pid))
    return found


def free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def scratch(needed: int, within: Path | None) -> Path:
    """Return a new folder with room for so many bytes: if nobody says where, in memory, else in /tmp."""
    memory = Path("/dev/shm")
    if within is None and memory.is_dir():
        room = min(shutil.disk_usage(memory).free, free_memory() - OTHER_BYTES)
        within = memory if room > needed else None
    folder = Path(within or tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(f"{folder} has {free / GIB:.1f} GiB free, {needed / GIB:.1f} are needed: give --folder, or less --gib")
    return Path(tempfile.mkdtemp(prefix="rmq-bench-audit-", dir=folder))


def run(options: argparse.Namespace, folder: Path) -> Iterable[Row]:
    parts = set(options.parts.split(","))
    if "kernel" in parts:
        yield from measure_kernel(folder, options.rounds)
    if not parts - {"kernel"}:
        return
    size = int(options.gib * GIB) // SEGMENT_BYTES * SEGMENT_BYTES
    made = [
        make_store(folder / f"master-{body}", size, body_bytes=body, segment_bytes=SEGMENT_BYTES)
        for body in (BODIES if "scan" in parts else BODIES[:1])
    ]
    if parts & {"scan", "memory", "linear"}:
        yield from run_on_spark(parts, made, folder, options.rounds)
    for one in made[1:]:
        shutil.rmtree(one.path, ignore_errors=True)
    if "compare" in parts:
        half = min(size // 2, COMPARED_BYTES) // SEGMENT_BYTES * SEGMENT_BYTES
        master = Made(shorter(made[0], folder / "master-half", half), 0, half)
        slave = copy_store(master, folder / "slave-half")
        plant(slave)
        yield from measure_comparison(master, slave, options.rounds)


def run_on_spark(parts: set[str], made: Sequence[Made], folder: Path, rounds: int) -> Iterable[Row]:
    """The parts that need Spark as the audit starts it."""
    from rmq_audit.engine.spark import OwnedSparkEngine

    spark = OwnedSparkEngine(f"local[{WORKERS}]")
    try:
        if "scan" in parts:
            yield from measure_scan(made, spark, rounds)
        for one in made[1:]:
            shutil.rmtree(one.path)
        if "memory" in parts:
            yield from measure_memory(folder, spark)
        if "linear" in parts:
            # the logs alone, as for the joins
            master = Made(shorter(made[0], folder / "master", made[0].log_bytes), 0, made[0].log_bytes)
            slave = copy_store(master, folder / "slave")
            engines: dict[str, Engine] = {"local, one process": LocalEngine(1), "Spark": spark}
            yield from measure_growth(folder, master, slave, engines, rounds)
            for one in (master, slave):
                shutil.rmtree(one.path)
    finally:
        spark.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (%(default)s)")
    parser.add_argument("--gib", type=float, default=2, help="GiB of log in each replica (%(default)s)")
    parser.add_argument("--full", action="store_true", help="4 GiB in each replica")
    parser.add_argument("--folder", type=Path, help="where to make the stores (default: in memory, else in /tmp)")
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if options.full:
        options.gib = 4
    if options.gib < 0.5:
        parser.error("--gib must be 0.5 at least: a quarter of it is one segment")
    # two stores, their queues, and the segment of the part memory
    folder = scratch(int(2.2 * options.gib * GIB) + GIB, options.folder)
    kind = file_system(folder)
    began = time.perf_counter()
    rows = []
    try:
        for row in run(options, folder):
            rows.append(row)
            print(" | ".join(row.cells()), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.perf_counter() - began
    head = ["part", "what", "figures", "ratio", "goal", "met"]
    text = markdown(head, [row.cells() for row in rows])
    print(f"\n{text}\n\nkernel {kernel.NAME}, stores on {kind}, {options.rounds} rounds, {seconds:.0f} s")
    if options.markdown is not None:
        options.markdown.write_text(text + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(row) | {"met": row.met} for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
