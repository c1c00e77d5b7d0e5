"""
``rmq-audit compare`` on stores and dumps of real pairs.

Its verdict about each combination of master and slave is in test_replication.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from rmq_audit.driver.audit import Options, compare
from rmq_audit.engine.engines import LocalEngine

from tests.needs import missing
from tests.real.campaigns import campaign_only
from tests.real.conftest import Clients
from tests.real.pairs import TOPIC, replicated_pair, start_pair, wait_caught_up
from tests.real.peers import APACHE_4, APACHE_5, OURS, STAND_IN, Broker, Site, until
from tests.spark import campaign
from tests.spark.corruptor.classes import CLASSES, judge, outcome_of
from tests.spark.corruptor.specimen import Specimen

MESSAGES = 4000

assert campaign.SOURCES, "the modules that fill CLASSES are imported"


@attrs.frozen
class Audit:
    status: int
    output: str
    result: dict[str, Any]


def audit(master: Path, slave: Path, report: Path, *, engine: str = "spark", more: Sequence[str] = ()) -> Audit:
    """Run the audit as a user does and return its exit status, what it printed and its JSON."""
    if engine == "spark" and shutil.which("java") is None:
        missing("no java on PATH: the Spark engine needs a JDK (17)")
    command = [sys.executable, "-m", "rmq_audit", "compare", str(master), str(slave)]
    command += ["--engine", engine, "--json", str(report), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert report.exists(), f"status {done.returncode}:\n{output}"
    return Audit(done.returncode, output, json.loads(report.read_text()))


#: planted in the slave's or master's copy of a real pair; all classes are planted in stored pairs by tests/spark
PLANTED = [
    "body_bit_of_the_slave",
    "body_bit_of_the_master",
    "queue_offset_of_the_slave",
    "property_bit_under_a_crc_of_the_master",
    "zeroed_page_of_the_slave",
    "missing_segment_of_the_slave",
    "slave_ahead",
    "split_brain",
    "unit_of_another_queue",
    "index_entry_points_into_a_record",
    "several_at_once",
]


@pytest.mark.real
@pytest.mark.parametrize("kind", [campaign_only(APACHE_4), APACHE_5])
def test_a_pair_of_apache_end_to_end(kind: str, site: Site, tmp_path: Path) -> None:
    """
    Master and slave are Apache's own processes, filled by its client: CONSISTENT on Spark and locally, every byte read.

    Damage of each kind in a copy is then found, with its cause and the side to blame, and nothing besides.
    """
    pair = replicated_pair(site, (kind, kind), tmp_path, messages=2000)
    pair.stop()
    for engine in ("spark", "local"):
        equal = audit(pair.master.store, pair.slave.store, tmp_path / f"equal-{engine}.json", engine=engine)
        assert (equal.status, equal.result["verdict"]) == (0, "CONSISTENT"), equal.output
        assert equal.result["compared"] == {"phy_from": 0, "phy_to": pair.end}
        assert equal.result["findings"] == []
        assert equal.result["coverage"]["master"]["records"] >= len(pair.sent)
    for name in PLANTED:
        folder = tmp_path / "damaged"
        for side in (pair.master, pair.slave):
            shutil.copytree(side.store, folder / ("master" if side is pair.master else "slave"))
        specimen = Specimen(folder / "master", folder / "slave")
        plan = CLASSES[name].plant(specimen, random.Random(name))
        result = compare(str(specimen.master), str(specimen.slave), LocalEngine(1), Options())
        judged = judge(outcome_of(result), CLASSES[name], plan)
        assert judged.wrong == [], f"{name}: {judged.wrong}"
        shutil.rmtree(folder)


def dump_of(broker: Broker) -> Path:
    """Have a running broker write a consistency dump of itself and return its folder."""
    before = broker.console.read_text().count("\ndump ")
    os.kill(broker.pid, signal.SIGUSR1)
    until(f"{broker.name} has written its dump", lambda: broker.console.read_text().count("\ndump ") > before)
    lines = [line for line in broker.console.read_text().splitlines() if line.startswith("dump ")]
    return Path(lines[-1].removeprefix("dump "))


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: Apache's broker writes no dumps")
def test_dumps_of_running_brokers(site: Site, client: Clients, tmp_path: Path) -> None:
    """
    Dumps taken while messages flow have one history: CONSISTENT or LAGGING; taken at rest they are CONSISTENT.

    A dump says where it ends, and the broker goes on as if nothing had happened.
    """
    namesrv, master, slave = start_pair(site, (OURS, OURS))
    java = client(APACHE_4, namesrv.addr)
    sending = java.begin_send(TOPIC, "mixed", MESSAGES, prefix="flow", sizes=(100, 2000))
    java.wait_for_count("a part was sent", lambda: len(java.sent("flow")), MESSAGES // 4)
    # The slave first: what it has then, the master has too.
    behind, ahead = dump_of(slave), dump_of(master)
    java.finish(sending)
    moving = audit(ahead, behind, tmp_path / "moving.json", engine="local")
    assert (moving.result["verdict"], moving.status) in (("CONSISTENT", 0), ("LAGGING", 1)), moving.output
    end = wait_caught_up(master, slave)
    still = audit(dump_of(master), dump_of(slave), tmp_path / "still.json", engine="local")
    assert (still.result["verdict"], still.status) == ("CONSISTENT", 0), still.output
    assert still.result["compared"] == {"phy_from": 0, "phy_to": end}
    assert not still.result["master"]["end_inferred"] and not still.result["slave"]["end_inferred"]
