"""
How long a store of some size takes to open: ``python bench/store_restart.py [--gib 1] [--body 1024] [--folder DIR]``.

Four starts of one store, each in a process of its own: after a clean stop; after a kill right behind the last record of
progress (at most flushConsumeQueueThoroughInterval ago); after a kill 64 MiB later; and without any checkpoint, so that
the whole log is read. The page cache is warm: what is measured is the work, not the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def child(folder: str, action: str, amount: int, body_bytes: int) -> None:
    """Open the store, print how long that took, maybe add something, and end by a stop or by no more than an exit."""
    from twisted.internet import reactor
    from twisted.internet.defer import Deferred

    from rmq.runtime.disk import RealDisk
    from rmq.store.config import StoreConfig
    from rmq.store.messages import BatchEntry, Message
    from rmq.store.store import MessageStore

    disk = RealDisk(reactor)
    store = MessageStore(disk, reactor, StoreConfig(store_path_root_dir=folder))
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
            await store._upkeep.record(is_end=False)
            os._exit(0)
        await store.stop()
        reactor.stop()  # type: ignore[attr-defined]

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(run()).addErrback(lambda why: os._exit(str(why) and 1)))  # type: ignore[attr-defined]
    reactor.run()  # type: ignore[attr-defined]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--body", type=int, default=1024, help="bytes of a message body")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.folder, options.child, options.amount, options.body)
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
