"""docs/audit.md against the code: an operator finds every finding, verdict and exit status there."""

from __future__ import annotations

import re
import shlex

from rmq_audit.cli.commands import parser
from rmq_audit.driver.cluster import WORDS
from rmq_audit.driver.coverage import NOT_CHECKED
from rmq_audit.driver.findings import INVARIANTS, Verdict
from twisted.trial.unittest import SynchronousTestCase

from tests.needs import ROOT
from tests.spark import campaign
from tests.spark.corruptor.classes import CLASSES

TEXT = (ROOT / "docs" / "audit.md").read_text("utf-8")
ROWS = re.findall(r"^\| ((?:[A-Z]{2}-[A-Z]+(?: / )?)+) \| ([A-Z]+) \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)


class AuditDocumentTests(SynchronousTestCase):
    def test_every_finding_is_explained(self) -> None:
        """The tables hold every invariant of the code once, with its severity, and none besides."""
        told = [(name, severity) for names, severity, _, _ in ROWS for name in names.split(" / ")]
        known = [(name, severity.name) for name, (_, severity, _) in INVARIANTS.items()]
        self.assertEqual(sorted(told), sorted(known))

    def test_every_row_says_what_to_do(self) -> None:
        """Meaning and remedy are more than a word."""
        short = [row for row in ROWS if len(row[2]) < 15 or len(row[3]) < 7]
        self.assertEqual(short, [])

    def test_what_no_run_checks_is_named(self) -> None:
        """The list of bytes that no finding speaks of is the one that every report holds."""
        told = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", TEXT.split("### What no run checks")[1], re.MULTILINE)
        self.assertEqual(told[: len(NOT_CHECKED)], list(NOT_CHECKED))

    def test_every_verdict_has_its_exit_status(self) -> None:
        """The first table names each verdict; exit statuses are those of the command's help."""
        told = set(re.findall(r"^\| ([A-Z]+) \| \d \|", TEXT, re.MULTILINE))
        self.assertEqual(told, set(WORDS))
        self.assertLess({one.value for one in Verdict}, told)

    def test_the_number_of_planted_classes_is_right(self) -> None:
        """What the document claims of the campaign is what the campaign does."""
        assert campaign.SOURCES, "the modules that fill CLASSES are imported"
        found = re.search(r"each of (\d+) classes", TEXT)
        assert found is not None
        self.assertEqual(int(found[1]), len(CLASSES))

    def test_commands_are_understood(self) -> None:
        """Every line that README and docs/ show is one that the audit takes, with all options that it needs."""
        seen = 0
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            for line in re.findall(
                r"^(?: {4})?(?:\.rmq-venv/bin/)?rmq-audit (.+)$", path.read_text("utf-8"), re.MULTILINE
            ):
                try:
                    parser().parse_args(shlex.split(line, comments=True))
                except SystemExit:
                    self.fail(f"{path.name}: rmq-audit {line}")
                seen += 1
        self.assertGreaterEqual(seen, 10)
