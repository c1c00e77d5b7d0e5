"""The documents that are made from the code, and the samples that users copy."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import CONFIG_CLASSES as BROKER_CLASSES
from rmq.namesrv.config import CONFIG_CLASSES as NAMESRV_CLASSES
from rmq.runtime.config import load
from rmq.runtime.properties import parse_properties
from rmq.runtime.tls.config import TlsConfig

ROOT = Path(__file__).resolve().parent.parent


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CompatibilityTests(SynchronousTestCase):
    def test_table_of_codes_is_what_the_code_answers(self) -> None:
        """docs/compatibility.md is up to date; `python docs/make_compatibility.py` makes it so."""
        made = script(ROOT / "docs" / "make_compatibility.py")
        self.assertEqual(made.PATH.read_text("utf-8"), made.text())


class SampleTests(SynchronousTestCase):
    def test_sample_configurations_load(self) -> None:
        """Each file in etc/ has good values and no unknown key."""
        seen = 0
        for path in sorted((ROOT / "etc").glob("*.properties")):
            classes = NAMESRV_CLASSES if path.name.startswith("namesrv") else BROKER_CLASSES
            if path.name == "tls.properties":
                classes = (TlsConfig,)
            loaded = load(classes, parse_properties(path.read_text("utf-8"), str(path)), str(path))
            self.assertEqual(loaded.unknown, {}, path.name)
            seen += 1
        self.assertGreaterEqual(seen, 4)


class ReadmeTests(SynchronousTestCase):
    def test_first_block_holds_exactly_the_two_commands(self) -> None:
        """Continuous integration runs the first fenced block of the README line by line."""
        text = (ROOT / "README.md").read_text("utf-8")
        block = text.split("```")[1].splitlines()[1:]
        self.assertEqual(len(block), 2)
        self.assertIn("rmq-local", block[0])
        self.assertIn("pytest", block[1])

    def test_links_lead_somewhere(self) -> None:
        """Every relative link of the README and of docs/ names a file that exists."""
        broken = []
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
                if "://" not in target and not (page.parent / target).exists():
                    broken.append(f"{page.name}: {target}")
        self.assertEqual(broken, [])
