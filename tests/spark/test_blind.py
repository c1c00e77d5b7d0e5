"""Damage by a generator that does not know the audit's rules: what could be noticed is found, the rest has a reason."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.needs import IS_CAMPAIGN, ROOT
from tests.spark import blind
from tests.spark.blindoracle import UNNOTICEABLE, UNTELLABLE, observe

DOCUMENT = (ROOT / "docs" / "audit.md").read_text("utf-8")


def assert_all_found(cases: Sequence[blind.Case]) -> None:
    missed = [str(case) for case in cases if case.is_missed]
    assert not missed, "\n".join(missed[:10])


def test_quick() -> None:
    """What consumers, producers, slaves or restarts would notice ends with exit status 2: the first 40 seeds."""
    assert_all_found(list(blind.run(range(40))))


@pytest.mark.campaign
def test_many() -> None:
    """The same for 400 cases, with RMQ_CAMPAIGN for 5,000; a seed is the same case each time."""
    assert_all_found(list(blind.run(range(5000 if IS_CAMPAIGN else 400))))


def test_undamaged_pairs_are_silent() -> None:
    """The pairs that are damaged here are not found damaged before; only the one that lags ends with 1."""
    with tempfile.TemporaryDirectory() as folder:
        statuses = {name: blind.audit(pair)[0] for name, pair in blind.Bench(Path(folder)).pairs.items()}
    assert statuses == {name: int(name == "pair-lag-4.9.7") for name in statuses}


def test_a_store_shows_what_its_files_hold() -> None:
    """The oracle reads something of every file that matters; one that saw nothing would excuse every damage."""
    with tempfile.TemporaryDirectory() as folder:
        pair = blind.Bench(Path(folder)).pairs["cqext-4.9.7"]
        files = {name.removeprefix("master/"): data for name, data in pair.held.items() if name.startswith("master/")}
    seen = observe(files)
    assert len(seen.records) == 141
    assert {key[0] for key in seen.shown} >= {"log", "queue", "extension", "files", "index", "table"}
    units = [one for key, value in seen.shown.items() if key[0] == "queue" for one in value]
    assert len(units) == len(seen.records)


def test_the_document_has_the_table() -> None:
    """docs/audit.md lists every class with its reason, and no other."""
    told = dict(re.findall(r"^\| ([a-z].+?) \| \d+ \| \d+ \| (.+?) \|$", DOCUMENT, re.MULTILINE))
    assert told == {blind.NOTICED: "must end with exit status 2"} | UNNOTICEABLE | UNTELLABLE
