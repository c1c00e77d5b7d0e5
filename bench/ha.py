"""
Replication: how fast an empty slave catches up, ours against Apache's. From the project's root: python -m bench.ha

Each side is a master that holds ``--gb`` of log in one file, and again and again a new slave of its own kind, in the
order A B B A. Measured is from the slave's first bytes to its last, and the CPU that master and slave took meanwhile.
SYNC_MASTER sends are measured by ``python -m bench.store --modes sync-master``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from bench.conditions import conditions
from bench.frames import send_template
from bench.pairing import APACHE_NAME, BENCH_JAVA, OURS_NAME, built_loadgen
from bench.rounds import Spread
from bench.servers import cpu_seconds
from tests.real.peers import APACHE_4, OURS, Broker, Process, Site, until
from tests.real.storm import QUEUES

TOPIC = "BenchHA"
SEGMENT_BYTES = 1 << 30
POLL_S = 0.01
DEADLINE_S = 900.0


@attrs.frozen
class CatchUp:
    """One slave's way to the master's end. ``queues_s``: until its queues were complete, too."""

    mb_per_s: float
    master_cpu_per_gb: float
    slave_cpu_per_gb: float
    queues_s: float


@attrs.frozen
class Side:
    name: str
    namesrv: Process
    master: Broker
    kind: str


def start(site: Site, kind: str, name: str) -> Side:
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    config: dict[str, Any] = {
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 20 * 300_000,
        "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000,
    }
    master = site.broker(kind, namesrv.addr, f"{name}-master", **config)
    with master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    return Side(name, namesrv, master, kind)


def fill(side: Side, loadgen: Path, template: Path, size: int) -> None:
    """Send until the master's log has ``size`` bytes, and not so much that it needs a second file."""
    while (left := size - side.master.end_offset()) > 0:
        seconds = min(5.0, max(0.1, left / 200e6))
        command = [loadgen, side.master.port, 16, 16, seconds, 0.0, 0, side.master.pid, template]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"filling {side.master.name}: {done.stderr.strip()}\n{side.master.tail()}")
    if side.master.end_offset() > SEGMENT_BYTES:
        raise SystemExit(f"{side.master.name} has more than one file of log: a new slave would get only the last one")


def catch_up(site: Site, side: Side, number: int) -> CatchUp:
    """Start a new slave, let it have the master once it runs, wait until it has everything, and throw it away."""
    end = side.master.end_offset()
    side.master.suspend()
    slave = site.slave(side.kind, side.master, side.namesrv.addr, f"{side.name}-slave-{number}", brokerId=1)
    with slave.probe(timeout=DEADLINE_S) as probe:

        def info(key: str) -> int:
            return int(probe.runtime_info()[key])

        def now() -> tuple[float, float, float]:
            return time.monotonic(), cpu_seconds(side.master.pid), cpu_seconds(slave.pid)

        if info("commitLogMaxOffset"):
            raise SystemExit(f"{slave.name} is not empty")
        side.master.resume()
        began = before = now()
        # what counts begins with the last question to which it had nothing: Apache's may wait before it asks
        while (here := info("commitLogMaxOffset")) < end:
            if here == 0:
                began = before
            if time.monotonic() > began[0] + DEADLINE_S:
                raise SystemExit(f"{slave.name} does not catch up\n{slave.tail()}")
            time.sleep(POLL_S)
            before = now()
        took, master_cpu, slave_cpu = (after - start for start, after in zip(began, now(), strict=True))
        gigabytes = end / 1e9
        until("the slave's queues are complete", lambda: info("dispatchBehindBytes") == 0, seconds=DEADLINE_S)
        queues_s = time.monotonic() - began[0]
    slave.kill()
    shutil.rmtree(slave.store)
    return CatchUp(gigabytes * 1000 / took, master_cpu / gigabytes, slave_cpu / gigabytes, queues_s)


def table(results: dict[str, dict[str, list[CatchUp]]]) -> str:
    head = ["shape", "ours MB/s", "Apache", "ratio (min-max)", "master CPU s/GB ours", "Apache"]
    head += ["ratio (min-max)", "slave CPU s/GB ours", "Apache", "ratio (min-max)"]
    head += ["queues complete s ours", "Apache", "ratio (min-max)"]
    rows = [head, ["---"] * len(head)]
    for shape, sides in results.items():
        ours, apache = sides[OURS_NAME], sides[APACHE_NAME]
        cells = [shape]
        for key, digits in (("mb_per_s", 0), ("master_cpu_per_gb", 2), ("slave_cpu_per_gb", 2), ("queues_s", 2)):
            cells += [f"{middle(side, key):,.{digits}f}" for side in (ours, apache)]
            cells.append(Spread.of(ratios_of(ours, apache, key)).text())
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def middle(side: Sequence[CatchUp], key: str) -> float:
    return float(statistics.median(getattr(one, key) for one in side))


def ratios_of(ours: Sequence[CatchUp], apache: Sequence[CatchUp], key: str) -> list[float]:
    """Return ours/Apache of a figure, one for each round of A B B A."""
    there, here = ([getattr(one, key) for one in side] for side in (ours, apache))
    pairs = zip(there[::2], there[1::2], here[::2], here[1::2], strict=True)
    return [(a + d) / (b + c) for a, d, b, c in pairs]


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Catching up: our slaves and masters against Apache's.")
    parser.add_argument("--gb", type=float, default=1.0, help="log to copy, up to 1 (default: %(default)s)")
    parser.add_argument("--sizes", default="256,1024", help="body sizes in bytes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of A B B A (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the whole result")
    parser.add_argument("--ours", default=OURS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 0 < arguments.gb <= 1:
        parser.error("--gb is above 0 and at most 1: an empty slave gets the last file of the log, which has 1 GiB")
    results: dict[str, dict[str, list[CatchUp]]] = {}
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        facts = conditions(Path(folder), BENCH_JAVA)
        print(facts, flush=True)
        for size in map(int, arguments.sizes.split(",")):
            site = Site(Path(folder) / str(size), BENCH_JAVA)
            site.root.mkdir()
            try:
                loadgen = built_loadgen(site.root)
                template = send_template(site.root / "template", TOPIC, size)
                sides = [start(site, arguments.ours, "ours"), start(site, APACHE_4, "apache")]
                for side in sides:
                    fill(side, loadgen, template, round(arguments.gb * 1e9))
                found: dict[str, list[CatchUp]] = {OURS_NAME: [], APACHE_NAME: []}
                for number in range(arguments.rounds * 4):
                    which = (0, 1, 1, 0)[number % 4]
                    found[(OURS_NAME, APACHE_NAME)[which]].append(catch_up(site, sides[which], number))
                results[f"catch-up {arguments.gb:g} GB, {size} B"] = found
            finally:
                site.close()
                site.forget_stores()
    print(table(results))
    if arguments.json is not None:
        plain = {
            shape: {name: [attrs.asdict(c) for c in s] for name, s in sides.items()} for shape, sides in results.items()
        }
        arguments.json.write_text(
            json.dumps({"conditions": facts, "command": sys.argv, "results": plain}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
