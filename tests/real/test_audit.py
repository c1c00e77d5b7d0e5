"""``rmq-audit compare`` on real pairs: equal is CONSISTENT, one flipped byte is found and named (acceptance 7)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.real.pairs import KINDS, TOPIC, name_of, replicated_pair
from tests.real.peers import Site, missing
from tests.real.storefiles import flip_body_byte, records

MESSAGES = 4000


@attrs.frozen
class Audit:
    status: int
    output: str
    result: dict[str, Any]


def audit(master: Path, slave: Path, report: Path, *, engine: str = "spark") -> Audit:
    """Run the audit as a user does and return its exit status, what it printed and its JSON."""
    if engine == "spark" and shutil.which("java") is None:
        missing("no java on PATH: the Spark engine needs a JDK (17)")
    command = [sys.executable, "-m", "rmq_audit", "compare", str(master), str(slave)]
    command += ["--engine", engine, "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert report.exists(), f"status {done.returncode}:\n{output}"
    return Audit(done.returncode, output, json.loads(report.read_text()))


@pytest.mark.real
@pytest.mark.parametrize("kinds", KINDS, ids=name_of)
def test_audit_of_a_quiesced_pair(kinds: tuple[str, str], site: Site, tmp_path: Path) -> None:
    """
    A pair at rest is CONSISTENT, exit 0, on Spark and on the local engine, and every byte of it was covered.

    With one body byte flipped on the slave the audit exits 2 and names the message, its place and the slave.
    """
    pair = replicated_pair(site, kinds, tmp_path, messages=MESSAGES)
    pair.stop()
    master, slave = pair.master.store, pair.slave.store

    for engine in ("spark", "local"):
        equal = audit(master, slave, tmp_path / f"equal-{engine}.json", engine=engine)
        assert (equal.status, equal.result["verdict"]) == (0, "CONSISTENT"), equal.output
        assert equal.result["compared"] == {"phy_from": 0, "phy_to": pair.end}
        assert "CONSISTENT" in equal.output

    mine = [record for record in records(pair.slave.commitlog) if record.topic == TOPIC]
    victim = mine[len(mine) // 2]
    damaged_at = flip_body_byte(pair.slave.commitlog, victim)
    damaged = audit(master, slave, tmp_path / "damaged.json")
    assert damaged.status == 2, damaged.output
    named = [
        finding
        for finding in damaged.result["findings"]
        if finding["blame"] == "slave"
        and finding["topic"] == TOPIC
        and finding["queue_id"] == victim.queue_id
        and finding["queue_offset_from"] == victim.queue_offset
        and finding["phy_from"] <= damaged_at < finding["phy_to"]
    ]
    assert named, f"no finding names {TOPIC}-{victim.queue_id} offset {victim.queue_offset}:\n{damaged.output}"
    assert str(victim.phy_offset) in damaged.output and "slave" in damaged.output
