"""
How long a store of some size takes to open. From the project's root: ``python -m bench.store_restart [--gib 1]``.

Our broker and Apache's are filled with the same sends and started again: after a clean stop, after a kill while they
are idle, and after a kill under load. Measured is from the start of the process to its first answered send.

``--alone`` measures our store in processes that do nothing else: after a clean stop; after a kill right behind the last
record of progress (at most flushConsumeQueueThoroughInterval ago); after a kill 64 MiB later; and without any
checkpoint, so that the whole log is read.

The page cache is warm: what is measured is the work, not the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.frames import send_template
from bench.rounds import BENCH_JAVA, Spread, built, markdown
from tests.real.peers import APACHE_4, OURS, Broker, Site
from tests.real.probe import Closed
from tests.real.storm import QUEUES

TOPIC = "BenchRestart"
DEADLINE_S = 120.0
ROOT = Path(__file__).resolve().parent.parent


def child(folder: str, action: str, amount: int, body_bytes: int) -> None:
    """Open the store, print how long that took, maybe add something, and end by a stop or by no more than an exit."""
    from twisted.internet import reactor
    from twisted.internet.defer import Deferred

    from rmq.runtime.disk.files import RealDisk
    from rmq.store.config import StoreConfig
    from rmq.store.messages import BatchEntry, Message
    from rmq.store.store import MessageStore

    loop: Any = reactor
    disk = RealDisk(loop)
    store = MessageStore(disk, loop, StoreConfig(store_path_root_dir=folder))
    began_s = time.perf_counter()
    store.load()
    load_s = time.perf_counter() - began_s
    found: dict[str, Any] = {"load_s": round(load_s, 3), "end": store.end_offset}
    store.start()

    def put(until: int) -> None:
        number = 0
        host = (bytes((127, 0, 0, 1)), 10911)
        while store.end_offset < until:
            number += 1
            batch = [BatchEntry(os.urandom(16) * (body_bytes // 16), f"UNIQ_KEY\x01{n:032d}") for n in range(64)]
            message = Message(
                topic="Load",
                queue_id=number % 8,
                body=b"",
                flag=0,
                properties="",
                sys_flag=0,
                born_timestamp=0,
                born_host=host,
                store_host=host,
            )
            store.put_batch(message, batch)
            if number % 256 == 0:
                store.write_buffers()

    async def run() -> None:
        put(store.end_offset + amount)
        found["messages"] = sum(store.max_offset(*queue) for queue in store.queues())
        print(json.dumps(found), flush=True)
        if action == "kill":
            store.write_buffers()
            os._exit(0)
        if action == "record":
            await store._checkpointer.record(is_end=False)
            os._exit(0)
        await store.stop()
        loop.stop()

    def broken(why: object) -> None:
        print(why, file=sys.stderr)
        os._exit(1)

    loop.callWhenRunning(lambda: Deferred.fromCoroutine(run()).addErrback(broken))
    loop.run()


def open_once(folder: str, action: str, amount: int, body_bytes: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", action, "--folder", folder, "--amount", str(amount)]
    ended = subprocess.run(
        [*command, "--body", str(body_bytes)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return dict(json.loads(ended.stdout))


def first_answer_s(broker: Broker) -> float:
    """Start a broker; return how long that took, until a send is answered."""
    began = time.monotonic()
    broker.start(wait=False)
    said = "nothing listens"
    while True:
        if not broker.alive:
            raise SystemExit(f"{broker.name} does not start\n{broker.tail()}")
        if time.monotonic() > began + DEADLINE_S:
            raise SystemExit(f"{broker.name} takes no message, last: {said}\n{broker.tail()}")
        try:
            with broker.probe() as probe:
                answer = probe.send_message(TOPIC, 0, b"first")
                if answer.code == 0:
                    return time.monotonic() - began
                said = f"{answer.code} {answer.remark}"
        except (OSError, Closed) as error:
            said = repr(error)
        time.sleep(0.005)


def fill(broker: Broker, loadgen: Path, template: Path, size: int) -> None:
    """Send until the log has ``size`` bytes."""
    while (left := size - broker.end_offset()) > 0:
        seconds = min(5.0, max(0.3, left / 60e6))
        command = [loadgen, broker.port, 16, 16, seconds, 0.0, 0, broker.pid, template]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"filling {broker.name}: {done.stderr.strip()}\n{broker.tail()}")


def against_apache(gib: float, body: int, rounds: int, folder: str) -> None:
    """Print the starts of both brokers."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=folder) as root:
        site = Site(Path(root), BENCH_JAVA)
        print(conditions(site.root, BENCH_JAVA), flush=True)
        try:
            loadgen = built(site.root, "loadgen")
            template = send_template(site.root / "template", TOPIC, body)
            config: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 20 * 300_000}
            config |= {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
            brokers = {}
            for kind in (OURS, APACHE_4):
                namesrv = site.namesrv(kind, f"{kind}-namesrv")
                brokers[kind] = broker = site.broker(kind, namesrv.addr, kind, **config)
                with broker.probe() as probe:
                    probe.create_topic(TOPIC, QUEUES)
                fill(broker, loadgen, template, int(gib * (1 << 30)))
                # One at a time on the machine: the other one neither flushes nor collects garbage meanwhile.
                broker.stop()
            found: dict[tuple[str, str], list[float]] = {}
            for number in range(rounds):
                for kind in (OURS, APACHE_4) if number % 2 == 0 else (APACHE_4, OURS):
                    broker = brokers[kind]
                    for name in ("after a clean stop", "after kill -9, idle", "after kill -9 under load"):
                        found.setdefault((name, kind), []).append(first_answer_s(broker))
                        if name == "after a clean stop":
                            time.sleep(3)
                            broker.kill()
                        elif name == "after kill -9, idle":
                            fill(broker, loadgen, template, broker.end_offset() + (48 << 20))
                            broker.kill()
                        else:
                            broker.stop()
            head = ["start of a store", "ours s", f"Apache {APACHE_4} s", "ratio (min-max)"]
            rows = []
            for name in dict.fromkeys(name for name, _ in found):
                ours, apache = found[name, OURS], found[name, APACHE_4]
                ratio = Spread.of([mine / theirs for mine, theirs in zip(ours, apache, strict=True)])
                rows.append([name, f"{statistics.median(ours):.2f}", f"{statistics.median(apache):.2f}", ratio.text()])
            print(f"{gib:g} GiB of sends with {body} B, {rounds} rounds")
            print(markdown(head, rows))
        finally:
            site.close()
            site.forget_stores()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--body", type=int, default=256, help="bytes of a message body (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each kind (default: %(default)s)")
    parser.add_argument("--alone", action="store_true", help="our store by itself, without brokers and Apache")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.folder, options.child, options.amount, options.body)
        return
    if not options.alone:
        against_apache(options.gib, options.body, options.rounds, options.folder)
        return
    folder = tempfile.mkdtemp(prefix="store-restart-", dir=options.folder)
    try:
        steps = [
            ("fill", "stop", int(options.gib * (1 << 30))),
            ("after a clean stop", "record", 0),
            ("after a kill, nothing since the progress", "kill", 64 << 20),
            ("after a kill, 64 MiB since the progress", "kill", 0),
        ]
        for name, action, amount in steps:
            found = open_once(folder, action, amount, options.body)
            print(f"{name}: {found['load_s']} s to open, then {found['messages']} messages, log was at {found['end']}")
        for name in ("checkpoint", "checkpoint.rmq"):
            os.unlink(os.path.join(folder, name))
        shutil.rmtree(os.path.join(folder, "consumequeue"))
        found = open_once(folder, "stop", 0, options.body)
        print(f"from the log alone: {found['load_s']} s to open, {found['messages']} messages")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
