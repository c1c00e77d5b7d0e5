"""Findings become a verdict and an exit status, and consequences are told from causes."""

from __future__ import annotations

from typing import Any

from rmq_audit.driver.findings import INVARIANTS, Finding, consolidate, finding, judge
from rmq_audit.report.pair import causes_of, finding_lines
from rmq_audit.worker.work import Severity
from twisted.trial.unittest import SynchronousTestCase


def at(invariant: str, begin: int, end: int, replica: str = "slave", **members: Any) -> Finding:
    return finding(invariant, replica, phy_from=begin, phy_to=end, **members)


class VerdictTests(SynchronousTestCase):
    def outcome(self, *findings: Finding) -> tuple[str, int]:
        found, exit_status = judge(findings)
        return found.value, exit_status

    def test_table(self) -> None:
        """Each kind of finding alone gives the verdict and exit status that the documentation promises."""
        info = finding("RP-LAG", "slave", severity=Severity.INFO)
        self.assertEqual(self.outcome(), ("CONSISTENT", 0))
        self.assertEqual(self.outcome(info), ("CONSISTENT", 0))
        warnings = {name for name, (_, severity, _) in INVARIANTS.items() if severity is Severity.WARN}
        expected = {
            "CONSISTENT": (warnings - {"RP-LAG"}, 1),
            "LAGGING": ({"RP-LAG"}, 1),
            "INCOMPLETE": ({"AU-COVER"}, 3),
            "AHEAD": ({"RP-AHEAD"}, 2),
            "DIFFERENT": ({"RP-DIFF", "RP-MISSING", "RP-EXTRA"}, 2),
            "DIVERGED": ({"RP-DIVERGE", "RP-EPOCH"}, 2),
        }
        silent = {name for name, (_, severity, _) in INVARIANTS.items() if severity is Severity.INFO}
        rest = set(INVARIANTS) - silent - {name for names, _ in expected.values() for name in names}
        expected["DAMAGED"] = (rest, 2)
        for name, (invariants, status) in expected.items():
            for invariant in invariants:
                self.assertEqual((invariant, *self.outcome(finding(invariant, "slave"))), (invariant, name, status))

    def test_a_proven_difference_outranks_what_was_not_read(self) -> None:
        """Exit status 3 is for runs that found nothing worse; what is missing is told by the coverage."""
        unread = finding("AU-COVER", "slave")
        self.assertEqual(self.outcome(unread, finding("RP-DIFF", "slave")), ("DIFFERENT", 2))
        self.assertEqual(self.outcome(unread, finding("RP-LAG", "slave")), ("INCOMPLETE", 3))


class CauseTests(SynchronousTestCase):
    def test_consequences_name_their_cause(self) -> None:
        """
        What lies inside a missing segment follows from it, on that side; elsewhere and on the other side it does
        not.
        """
        gap = at("CL-GAP", 1000, 2000)
        inside, elsewhere = at("RP-MISSING", 1200, 1900, blame="slave"), at("RP-MISSING", 5000, 5100, blame="slave")
        queue, other_side = at("QO-GAP", 900, 1500), at("QO-GAP", 900, 1500, "master", topic="t")
        consolidate([gap, inside, elsewhere, queue, other_side])
        self.assertEqual(inside.derived_from, gap.finding_id)
        self.assertEqual(queue.derived_from, gap.finding_id)
        self.assertIsNone(elsewhere.derived_from)
        self.assertIsNone(other_side.derived_from)

    def test_what_both_sides_share_is_one_finding(self) -> None:
        """The slave copies damage with the log: found alike on both sides, it is reported once."""
        (one,) = consolidate([at("CL-PHY", 10, 20, "master", actual="7"), at("CL-PHY", 10, 20, actual="7")])
        self.assertEqual(one.replica, "both")
        self.assertEqual(
            len(consolidate([at("CL-PHY", 10, 20, "master", actual="7"), at("CL-PHY", 10, 20, actual="8")])), 2
        )

    def test_unread_files_are_told_one_by_one(self) -> None:
        """What was not read and has no place in the log is one finding a file, each with an id of its own."""
        found = consolidate([finding("AU-COVER", "slave", detail=f"file {number}") for number in range(4)])
        self.assertEqual((len(found), len({one.finding_id for one in found})), (4, 4))

    def test_torn_queues_decide_the_blame(self) -> None:
        """Where both CRCs hold, the side whose queues do not follow is to blame."""
        one = at("RP-DIFF", 100, 200, blame="undecided")
        consolidate([one, at("QO-GAP", 50, 101)])
        self.assertEqual(one.blame, "slave")
        undecided = at("RP-DIFF", 100, 200, blame="undecided")
        consolidate([undecided, at("QO-GAP", 50, 101), at("QO-GAP", 50, 101, "master", topic="t")])
        self.assertEqual(undecided.blame, "undecided")

    def test_ids_are_stable(self) -> None:
        """The same finding has the same id in every run, so that runs can be compared."""
        ids = [consolidate([at("RP-DIFF", 100, 200, topic="t")])[0].finding_id for _ in range(2)]
        self.assertEqual(ids[0], ids[1])
        self.assertNotEqual(ids[0], consolidate([at("RP-DIFF", 101, 200, topic="t")])[0].finding_id)


class SummaryTests(SynchronousTestCase):
    def test_remarks_on_queues_that_are_behind(self) -> None:
        """Of a broker that runs each queue may be behind: the summary says it once, beside all that is wrong."""

        def behind(queue_id: int, replica: str, reason: str, severity: Severity | None = None) -> Finding:
            detail = f"{queue_id + 1} records have no unit in their consume queue: {reason}"
            place = {"topic": "T", "queue_id": queue_id, "queue_offset_from": 7}
            return finding("CQ-BEHIND", replica, severity=severity, count=queue_id + 1, detail=detail, **place)

        found = consolidate(
            [behind(number, "master", "in use", Severity.INFO) for number in range(20)]
            + [behind(number, "slave", "in use", Severity.INFO) for number in (60, 61)]
            + [behind(30, "master", "the topic was deleted", Severity.INFO)]
            + [behind(number, "master", "in use") for number in (40, 41)]
        )
        shown = causes_of(found)
        self.assertEqual(
            sorted((one.severity.name, one.replica, "deleted" in one.detail) for one in shown),
            [
                ("INFO", "master", False), ("INFO", "master", True), ("INFO", "slave", False),
                ("WARN", "master", False), ("WARN", "master", False),
            ],
        )  # fmt: skip
        lines = [line for one in shown for line in finding_lines(one, found) if "the same" in line]
        self.assertIn("    the same of 1 more queues, 62 records", lines)
        self.assertIn("    the same of 19 more queues, 209 records", lines)
        self.assertEqual(len(lines), 2)
