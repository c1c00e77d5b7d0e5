"""The log lines that docs/replication.md explains are those that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parents[2]
#: a placeholder of a value, or a value
VALUE = re.compile(r"\b[A-Z]\b|\.\.\.|\bn\b|\bwhy\b|\bout of\b|\bsends\b|\bthis is\b")


def lines_of_the_page() -> list[str]:
    page = (ROOT / "docs/replication.md").read_text().partition("| line | meaning |")[2].partition("\n\n")[0]
    return [row.split("`")[1] for row in page.splitlines() if row.startswith("| `")]


def logged() -> str:
    """Return the texts of the package, those over several lines of source joined, values as a letter."""
    source = "\n".join(path.read_text() for path in sorted((ROOT / "rmq/ha").rglob("*.py")))
    return re.sub(r"\{[^{}]*\}", "A", re.sub(r'"\s*\n\s*f?"', "", source))


class LineTests(SynchronousTestCase):
    def test_pieces(self) -> None:
        """Each piece of a line between its values is in the code."""
        source, lines = logged(), lines_of_the_page()
        self.assertGreater(len(lines), 8)
        for line in lines:
            for piece in re.split(r"[:;,] ", line):
                for words in VALUE.split(piece):
                    if len(words.split()) > 1:
                        self.assertIn(words.strip(), source, line)
