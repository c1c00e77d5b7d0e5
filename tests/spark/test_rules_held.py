"""Each rule of the audit is needed: with the function behind it emptied, damage that it finds goes unseen."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from rmq_audit.driver import findings, queues
from rmq_audit.driver.findings import INVARIANTS
from rmq_audit.worker.work import Fault

from tests.needs import ROOT
from tests.spark import campaign
from tests.spark.cases import FolderCase
from tests.spark.corruptor.kinds import prepare

#: its slave has joined late
SEED = 1
SIZES = (16_384, 4096)


def nothing(*_: Any, **__: Any) -> Any:
    """Stand in for a function that returns findings."""
    return []


def no_more(*_: Any, **__: Any) -> None:
    """Stand in for a function that changes what it is given, or returns None."""


def same(first: Any, *_: Any, **__: Any) -> Any:
    """Stand in for a function that returns a part, or another form, of its first argument."""
    return list(first)


def keep(_: Any, second: Any, *__: Any) -> Any:
    return second


def campaign_finding() -> Any:
    """A finding that no class expects, in place of one."""
    return findings.finding("CL-STALE", "master", detail="emptied")


def nothing_of(invariant: str) -> Callable[..., Any]:
    """Stand in for what makes findings of the faults that workers see: not of this kind."""

    def stand_in(replica: str, fault: Fault, **members: Any) -> Any:
        return campaign_finding() if fault.invariant == invariant else of_fault(replica, fault, **members)

    of_fault = findings.of_fault
    return stand_in


def without(member: str) -> Callable[..., Any]:
    """Stand in for what says where a queue's own units lie."""
    owned = queues._owned
    return lambda *given, **named: {name: value for name, value in owned(*given, **named).items() if name != member}


#: (module, function as it is looked up there, what stands in for it) -> a class of damage that then goes unseen
HELD: list[tuple[str, str, Callable[..., Any], str]] = [
    ("driver.acked", "_finding", lambda *_: campaign_finding(), "acknowledged_send_is_nowhere"),
    ("driver.audit", "check_acked", lambda *_, **__: ([], None), "acknowledged_body_is_another"),
    ("driver.audit", "check_continuity", nothing, "offset_left_out"),
    ("driver.audit", "check_consumers", lambda *_, **__: ([], []), "consumer_is_ahead_of_its_queue"),
    ("driver.audit", "check_backwards", nothing, "consumer_went_back"),
    ("driver.audit", "check_epochs", nothing, "epochs_part"),
    ("driver.audit", "check_indexes", nothing, "index_slot_is_empty"),
    ("driver.audit", "compare_ends", nothing, "slave_behind"),
    ("driver.audit", "_Audit._vouch", no_more, "body_bit_of_both_alike"),
    ("driver.duplicates", "_missing", nothing, "acknowledged_transaction_is_missing"),
    ("driver.duplicates", "_duplicates", nothing, "acknowledged_message_is_stored_twice"),
    ("driver.consumers", "_committed", nothing, "consumer_of_a_topic_that_is_gone"),
    ("driver.findings", "_blame_by_consequence", no_more, "queue_offset_of_the_slave"),
    ("driver.findings", "_link", no_more, "missing_segment_of_the_slave"),
    ("driver.findings", "_merge_sides", same, "offset_given_twice"),
    ("driver.log", "_drop_stale", keep, "old_records_behind_the_end_of_the_master"),
    ("driver.log", "_report_damage", no_more, "magic_of_both_alike"),
    ("driver.log", "_report_gaps", no_more, "missing_segment_of_the_slave"),
    ("driver.log", "_take_gaps", no_more, "missing_segment_of_the_slave"),
    ("driver.log", "_take_unread", no_more, "segment_cannot_be_read"),
    ("worker.indexes", "_Check._check_chains", no_more, "index_chain_is_cut"),
    ("worker.indexes", "_Check._check_complete", no_more, "index_file_is_missing"),
    ("worker.indexes", "_Check._check_places", lambda *_: 0, "index_entry_points_at_another_record"),
    ("worker.indexes", "_Check._check_times", no_more, "index_entry_has_another_time"),
    ("worker.indexes", "_Check._say_of", no_more, "index_entry_points_into_a_record"),
    ("worker.indexes", "_keyed", nothing, "index_file_is_missing"),
    ("worker.indexes", "_Check._say", no_more, "index_header_has_another_field"),
    ("worker.indexes", "_Check._say_of", no_more, "index_entry_has_another_hash"),
    ("driver.queues", "_check_queue", nothing, "offset_given_twice"),
    ("driver.queues", "of_fault", nothing_of("CQ-DANGLING"), "log_of_the_slave_lost_its_end"),
    ("driver.queues", "of_fault", nothing_of("CQ-LOST"), "last_unit_of_a_queue_is_lost"),
    ("driver.queues", "of_fault", nothing_of("CQ-MIN"), "queue_files_that_retention_forgot"),
    ("driver.queues", "_frontier", lambda *_: -1, "last_unit_of_a_queue_is_lost"),
    ("driver.queues", "of_fault", nothing_of("CQ-MISMATCH"), "unit_in_front_of_the_first_record_is_lost"),
    ("driver.queues", "_owned", without("owned_from"), "unit_in_front_of_the_first_record_is_lost"),
    ("driver.queues", "_owned", without("owned_to"), "unit_behind_the_last_record"),
    ("driver.queues", "_odd_sizes", nothing, "queue_file_is_too_short"),
    ("driver.queues", "_summed", nothing, "unit_is_lost"),
    ("driver.queues", "of_fault", nothing_of("CQ-TAG"), "unit_has_another_tag"),
    ("driver.queues", "of_fault", nothing_of("CQ-MISMATCH"), "unit_has_another_size"),
    ("worker.queues", "_surplus", lambda _, __, used, ___: used["phy"] < 0, "unit_behind_the_last_record"),
    ("worker.queues", "_check_used", nothing, "log_of_the_slave_lost_its_end"),
    ("driver.routes", "_check_broker", nothing, "no_nameserver_knows_the_broker"),
    ("driver.routes", "_compare_brokers", nothing, "nameserver_lacks_a_slave"),
    ("driver.routes", "_compare_queues", nothing, "nameserver_lacks_a_topic"),
    ("driver.routes", "_unrouted", nothing, "no_route_to_a_topic_that_is_stored"),
    ("worker.scan", "_Pass._check_blank", no_more, "blank_of_both_alike"),
    ("worker.scan", "_Pass._step_back", no_more, "clock_of_the_master_went_back"),
    ("cli.watch", "Watch._gone_back", nothing, "slave_lost_its_end"),
]


class HeldTests(FolderCase):
    def wrong(self, name: str) -> tuple[str, ...]:
        """Return what the audit says wrongly of a pair that was damaged in that way."""
        shutil.copytree(self.folder / "clean", self.folder / "copy")
        try:
            case = campaign._damaged(name, "made", SEED, self.folder / "copy", SIZES)
        finally:
            shutil.rmtree(self.folder / "copy")
        self.assertIsNone(case.skipped, name)
        return case.wrong

    @pytest.mark.campaign
    def test_no_rule_can_be_emptied(self) -> None:
        """Damage that the audit finds is missed, or said of another side, as soon as the rule that finds it is gone."""
        prepare("made", SEED, self.folder / "clean")
        for name in sorted({name for *_, name in HELD}):
            self.assertEqual((name, self.wrong(name)), (name, ()))
        survivors = []
        for module, function, empty, name in HELD:
            owner: Any = importlib.import_module(f"rmq_audit.{module}")
            *outer, last = function.split(".")
            for part in outer:
                owner = getattr(owner, part)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(owner, last, empty)
                if not self.wrong(name):
                    survivors.append(f"{module}.{function}: {name}")
        self.assertEqual(survivors, [])

    def test_every_invariant_is_planted(self) -> None:
        """No finding is in the table that no planted damage raises."""
        folder = ROOT / "tests" / "spark"
        # test_configs.py plants what made stores have no tables for
        sources = (*(folder / "corruptor").glob("*.py"), folder / "test_configs.py")
        planted = set(re.findall(r"\b[A-Z]{2}-[A-Z]+\b", "".join(path.read_text("utf-8") for path in sources)))
        # consumers of deleted messages: tests/spark/test_alone.py
        self.assertEqual(set(INVARIANTS) - planted, {"CO-BEHIND"})
