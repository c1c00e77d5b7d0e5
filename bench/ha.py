"""
Replication as `bench.table` measures it: how fast a new slave catches up, and how far a slave is behind.

A master holds one file of log, and again and again a new slave of its own kind copies it. Measured is from the slave's
first bytes to its last, and the CPU time that master and slave took meanwhile.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

from bench.brokers import SENT, Started
from bench.rounds import Shape, Window, touch_memory, window
from bench.servers import cpu_seconds
from tests.real.peers import Broker, Site, until
from tests.real.storm import QUEUES

SEGMENT_BYTES = 1 << 30
#: each question takes a millisecond of the slave that is measured
POLL_S = 0.05
DEADLINE_S = 900.0


def fill_log(started: Started, loadgen: Path, template: Path, size: int) -> None:
    """Send until the master's log has ``size`` bytes, and not so much that it needs a second file."""
    shape = Shape("filling", 16, 16, template)
    end, rate = started.master.end_offset(), 1e9
    while end < size:
        seconds = min(5.0, max(0.1, (size - end) / rate))
        window(loadgen, shape, started.master, seconds)
        before, end = end, started.master.end_offset()
        rate = max(1.0, (end - before) / seconds)
    if end > SEGMENT_BYTES:
        raise SystemExit(
            f"{started.master.name} has more than one file of log: a new slave would get only the last one"
        )


def catch_up(site: Site, started: Started, number: int) -> Window:
    """
    Start a new slave, let it have the master once it runs, wait until it has everything, and throw it away.

    The window's rate is MB/s, its CPU the master's for each MB, its p50 the time until the queues were complete, too.
    """
    master = started.master
    end = master.end_offset()
    master.suspend()
    slave = site.slave(master.kind, master, started.namesrv.addr, f"{started.name}-slave-{number}", brokerId=1)
    with slave.probe(timeout=DEADLINE_S) as probe:

        def info(key: str) -> int:
            return int(probe.runtime_info()[key])

        def now() -> tuple[float, float, float]:
            return time.monotonic(), cpu_seconds(master.pid), cpu_seconds(slave.pid)

        if info("commitLogMaxOffset"):
            raise SystemExit(f"{slave.name} is not empty")
        touch_memory(1 << 30)  # the slave writes as much as the master has
        master.resume()
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
        megabytes = end / 1e6
        until("the slave's queues are complete", lambda: info("dispatchBehindBytes") == 0, seconds=DEADLINE_S)
        queues_us = (time.monotonic() - began[0]) * 1e6
    slave.kill()
    shutil.rmtree(slave.store)
    cpu = {"server_cpu_us": master_cpu * 1e6 / megabytes, "slave_cpu_us": slave_cpu * 1e6 / megabytes}
    return {"rate": megabytes / took, **cpu, "p50": queues_us, "p99": queues_us}


class Lag:
    """Asks slave and master for the end of a queue, again and again, until ``close``."""

    def __init__(self, master: Broker, slave: Broker) -> None:
        self.messages: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(master, slave), daemon=True)
        self._thread.start()

    def _run(self, master: Broker, slave: Broker) -> None:
        with master.probe() as first, slave.probe() as second:
            while not self._stop.wait(0.002):
                # the slave first: what is sent between the questions counts as lag, so the figure is never too small
                has = second.max_offset(SENT, 0)
                self.messages.append(first.max_offset(SENT, 0) - has)

    def close(self, rate: float) -> dict[str, float]:
        """Return the lag in us of a queue that got its share of ``rate`` messages a second."""
        self._stop.set()
        self._thread.join()
        found = sorted(messages * QUEUES / rate * 1e6 for messages in self.messages)
        return {"p50": found[len(found) // 2], "p99": found[len(found) * 99 // 100]}
