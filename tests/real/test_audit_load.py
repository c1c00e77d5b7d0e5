"""
The audit of pairs that are being written to: dumps and raw directories under load give no false finding.

RMQ_AUDIT_ROUNDS says how often each is looked at (default 3).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.real.campaigns import campaign_only
from tests.real.load import Load
from tests.real.pairs import QUEUES, TOPIC, start_pair, wait_caught_up
from tests.real.peers import APACHE_4, APACHE_5, OURS, STAND_IN, Site, until
from tests.real.test_audit import audit, dump_of

ROUNDS = int(os.environ.get("RMQ_AUDIT_ROUNDS", "3"))

#: what is no fault of a pair that is being written to: how far the slave is, and that it was looked at later
PROGRESS = {("RP-LAG", "INFO"), ("RP-AHEAD", "INFO")}


def false_findings(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in result["findings"] if (one["invariant"], one["severity"]) not in PROGRESS]


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: Apache's broker writes no dumps")
def test_dumps_under_load(site: Site, tmp_path: Path) -> None:
    """
    Dumps of a running pair, taken one after the other while producers and a consumer go on: only the lag is told.

    Every send that was acknowledged before the master's dump began is in it, and no dump is ever judged different.
    """
    _, master, slave = start_pair(site, (OURS, OURS))
    told = []
    with Load(master, TOPIC, QUEUES) as load:
        load.wait_for(300)
        for number in range(ROUNDS):
            load.wait_for_more(50)
            if number % 2:
                behind = dump_of(slave)
                acked = load.acked
                ahead = dump_of(master)
            else:
                acked = load.acked
                ahead = dump_of(master)
                behind = dump_of(slave)
            table = tmp_path / "acked.jsonl"
            table.write_text("".join(json.dumps(row) + "\n" for row in acked))
            more = ["--acked", str(table), "--allow-lag", "1G"]
            found = audit(ahead, behind, tmp_path / f"dumps-{number}.json", engine="local", more=more)
            assert (found.status, found.result["verdict"]) == (0, "CONSISTENT"), (number, found.output)
            assert false_findings(found.result) == [], (number, found.output)
            assert found.result["coverage"]["master"]["acked_sends_checked"] == len(acked)
            manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (ahead, behind)]
            told.append([one["quiesced"] for one in manifests])
            for folder in (ahead, behind):
                shutil.rmtree(folder)
    assert not load.failures
    assert [False, False] in told, f"nothing was written while the dumps were made: {told}"


@pytest.mark.real
@pytest.mark.parametrize("kind", [APACHE_4, OURS, campaign_only(APACHE_5)])
def test_raw_directories_under_load(kind: str, site: Site, tmp_path: Path) -> None:
    """
    The directories of brokers that run and are written to: nothing that still moves is judged, the rest is.

    When the load is over the same directories are consistent to the last byte, without any allowance.
    """
    _, master, slave = start_pair(site, (kind, kind))
    moved = 0
    with Load(master, TOPIC, QUEUES) as load:
        load.wait_for(300)
        for number in range(ROUNDS):
            load.wait_for_more(20)
            before = master.end_offset()
            found = audit(
                master.store,
                slave.store,
                tmp_path / f"raw-{number}.json",
                engine="local",
                more=["--allow-lag", "64M"],
            )
            moved += master.end_offset() > before
            assert found.status in (0, 1), (number, found.output)
            wrong = [one for one in false_findings(found.result) if one["severity"] != "INFO"]
            assert wrong == [], (number, found.output)
            assert found.result["compared"]["phy_to"] > 0
    assert not load.failures
    assert moved == ROUNDS
    end = wait_caught_up(master, slave)
    # Apache's slaves copy their master's tables after a while
    until("the slave has its master's topics", (slave.store / "config" / "topics.json").exists, seconds=90)
    still = audit(master.store, slave.store, tmp_path / "still.json", engine="local")
    assert (still.status, still.result["verdict"]) == (0, "CONSISTENT"), still.output
    assert still.result["compared"] == {"phy_from": 0, "phy_to": end}
