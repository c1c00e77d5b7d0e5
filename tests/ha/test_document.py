"""docs/replication.md names tests: they are there."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import BrokerConfig
from rmq.runtime.config import config_fields
from rmq.store.config import StoreConfig

ROOT = Path(__file__).resolve().parent.parent.parent


class DocumentTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.text = (ROOT / "docs" / "replication.md").read_text("utf-8")
        self.tests = sorted((ROOT / "tests").rglob("test_*.py"))

    def test_named_tests_exist(self) -> None:
        """Each module, function and number of an observation that the tables name is a test."""
        everything = "".join(path.read_text("utf-8") for path in self.tests)
        missing = set(re.findall(r"(test_\w+\.py)`", self.text)) - {path.name for path in self.tests}
        missing |= {name for name in re.findall(r"`(test_\w+)`", self.text) if f"def {name}(" not in everything}
        self.assertEqual(missing, set())
        numbers = {
            int(n)
            for n in re.findall(
                r"def test_(\d+)_", (ROOT / "tests" / "real" / "test_observations.py").read_text("utf-8")
            )
        }
        named = {
            int(n)
            for row in re.findall(r"test_observations\.py` ([\d, ]+)", self.text)
            for n in re.findall(r"\d+", row)
        }
        self.assertEqual(named, numbers)
        self.assertEqual({int(n) for n in re.findall(r"^\| (\d+) \|", self.text, re.MULTILINE)}, set(range(1, 12)))

    def test_every_rule_has_a_test(self) -> None:
        """No row of the rules is without one."""
        rules = self.text.split("## Keys")[0]
        rows = [line for line in rules.splitlines() if line.startswith("| ") and not line.startswith("| rule")]
        self.assertGreaterEqual(len(rows), 17)
        for row in rows:
            self.assertRegex(row, r"test_\w+")

    def test_keys_exist(self) -> None:
        """The keys of the table are keys of the broker, with the defaults that are told."""
        defaults = {field.key: field.default for kind in (StoreConfig, BrokerConfig) for field in config_fields(kind)}
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", self.text, re.MULTILINE)
        self.assertGreaterEqual(len(rows), 6)
        for key, default in rows:
            told = {"true": True, "false": False, "empty": "", "1": 1}[default]
            self.assertEqual(defaults[key], told, key)
