"""The documents that are made from the code, and the samples that users copy."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.names import ALIASES, NOUNS
from rmq.broker.config import CONFIG_CLASSES as BROKER_CLASSES
from rmq.namesrv.config import CONFIG_CLASSES as NAMESRV_CLASSES
from rmq.runtime.config import load
from rmq.runtime.properties import parse_properties
from rmq.runtime.tls.config import TlsConfig

ROOT = Path(__file__).resolve().parent.parent


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: what follows the name rmq-admin and is no command of a table
OTHER_WORDS = ("help", "NAME")


def headings(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def has_verb(noun: str, verb: str) -> bool:
    """Return whether a noun of rmq-admin has a verb, or takes none."""
    takes_none = noun in ("produce", "consume", "tail", "monitor")
    return not verb or takes_none or verb in re.findall(r"[a-z-]+", NOUNS[noun][1])


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
        """Every relative link of the README and of docs/ names a file that exists, and a heading that it has."""
        broken = []
        for page in PAGES:
            for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
                if "://" in target:
                    continue
                found = page.parent / target if target else page
                if not found.exists() or (heading and heading not in headings(found)):
                    broken.append(f"{page.name}: {target}#{heading}")
        self.assertEqual(broken, [])

    def test_commands_of_rmq_admin(self) -> None:
        """Every command of rmq-admin that a page or an alert names is one, with its verb if it needs one."""
        wrong = []
        for page in [*PAGES, ROOT / "etc" / "prometheus-alerts.yml"]:
            for noun, verb in re.findall(r"\brmq-admin ([a-zA-Z]+)(?: ([a-z][a-z-]*))?", page.read_text("utf-8")):
                if noun not in ALIASES and noun not in OTHER_WORDS and not (noun in NOUNS and has_verb(noun, verb)):
                    wrong.append(f"{page.name}: rmq-admin {noun} {verb}")
        self.assertEqual(wrong, [])
