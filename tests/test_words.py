"""Plain words: terms of docs/glossary.md in place of those that a reader has to guess."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("rmq", "spark", "docs", "etc", "twisted", "README.md")
SUFFIXES = {".py", ".pyx", ".pxi", ".md", ".properties", ".yml", ".toml"}

#: not to be written -> what to write in its place
BANNED = {
    r"told": "notified, reported, sent, known",
    r"whoever": "the client, the caller, the operator ...",
    r"somebody": "a client, an operator ...",
    r"anew": "again",
    r"(hang|hangs|hung) on": "waits for, depends on",
    r"in vain": "without an answer, timed out",
    r"what lay": "the bytes, the lag",
    r"torso": "torn record",
    r"(stood|stands|stand) still": "stalled",
    r"nobody's": "say what is the case",
    r"knocks?": "connects",
    r"little things": "say which",
    r"taken over again": "synced again",
}
#: words of others that are quoted: (file, the words around it)
QUOTED: set[tuple[str, str]] = set()
_PATTERN = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """Yield (path relative to the root, text) of every file that people read."""
    for place in PLACES:
        start = ROOT / place
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.suffix in SUFFIXES:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def banned_words(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for found in _PATTERN.finditer(line):
            if not any(path == where and quoted in line for where, quoted in QUOTED):
                yield f"{path}:{number}: {found[0]}"


class WordTests(SynchronousTestCase):
    def test_banned_words_are_absent(self) -> None:
        """Code, documents and samples avoid words that readers with another mother tongue stumble over."""
        wrong = [found for path, text in texts() for found in banned_words(path, text)]
        self.assertEqual(wrong, [])

    def test_files_of_the_glossary_exist(self) -> None:
        """Every file and folder of rmq that docs/glossary.md names is there."""
        named = set(re.findall(r"`(rmq/[\w/.]+)`", (ROOT / "docs" / "glossary.md").read_text("utf-8")))
        self.assertGreater(len(named), 20)
        self.assertEqual([name for name in sorted(named) if not (ROOT / name).exists()], [])

    def test_a_planted_word_is_found(self) -> None:
        """The check sees a banned word, and not one that only contains it."""
        text = "The slave was Told.\nIt untold.\nReplication hangs on it."
        self.assertEqual(list(banned_words("x.md", text)), ["x.md:1: Told", "x.md:3: hangs on"])
