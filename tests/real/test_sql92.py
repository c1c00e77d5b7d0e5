"""SQL92 filters: Apache's own compiler and ours, side by side, and consumers of Apache that filter at our broker."""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import Any

import pytest

from rmq.broker.filters import SubscriptionError
from rmq.broker.sql92 import compile_sql92
from rmq.wire.record import encode_properties
from tests.expressions import WORDS_OF_5, Generator
from tests.real.conftest import Clients
from tests.real.javaclient import SOURCE, compiled
from tests.real.peers import APACHE_4, APACHE_5, OURS, Site, jars, until
from tests.seeds import SEED


def ask_apache(version: str, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    classes = compiled(version, SOURCE.with_name("Filters.java"))
    command = ["java", "-Xmx160m", "-XX:+UseSerialGC", "-cp", f"{classes}{os.pathsep}{jars(version)}/*", "Filters"]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


MISTAKES = [
    "a > ",
    "a = AND b = 1",
    "(a = 1",
    "a BETWEEN 1",
    "a IN (1)",
    "a IN 'x'",
    "a IS NOT 5",
    "a == 1",
    "5",
    "'x'",
]
MISTAKES += [
    "a > 'x'",
    "a = NULL",
    "TRUE = 5",
    "a BETWEEN 9 AND 1",
    "a BETWEEN NULL AND 1",
    "5 IN ('x')",
    "a = 1e400",
    "a = 0.0",
]
MISTAKES += ["a = 9223372036854775808", "a > (b = 1)", "- a", "a IS 'it'"]


@pytest.mark.real
@pytest.mark.parametrize(("version", "words"), [(APACHE_4, []), (APACHE_5, WORDS_OF_5)], ids=["4", "5"])
def test_expressions_mean_what_they_mean_in_apache(version: str, words: list[str]) -> None:
    """Thousands of random expressions are refused by both with the same text, or select the same messages."""
    generator = Generator(random.Random(SEED), words)
    questions: list[dict[str, Any]] = [
        {"expression": generator.expression(), "messages": [generator.message() for _ in range(8)]} for _ in range(6000)
    ]
    differences, selected, refused = [], 0, 0
    for question, theirs in zip(questions, ask_apache(version, questions), strict=True):
        messages = question["messages"]
        try:
            mine = compile_sql92(question["expression"])
            ours: dict[str, Any] = {"selected": [mine(encode_properties(message)) for message in messages]}
            selected += sum(ours["selected"])
        except SubscriptionError as error:
            ours, refused = {"error": str(error)}, refused + 1
        if ours != theirs and not ("error" in ours and "error" in theirs):
            differences.append(f"{question['expression']}\n  ours   {ours}\n  Apache {theirs}")
    assert not differences, f"{len(differences)} differ, seed {SEED}:\n" + "\n".join(differences[:20])
    assert selected > 1000 and refused > 500


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_mistakes_are_explained_as_in_apache(version: str) -> None:
    """What 46 answers for a bad expression, and what the consumer's log shows, is Apache's text."""
    for mistake, theirs in zip(
        MISTAKES, ask_apache(version, [{"expression": mistake, "messages": []} for mistake in MISTAKES]), strict=True
    ):
        with pytest.raises(SubscriptionError) as raised:
            compile_sql92(mistake)
        # what might have followed depends on how a parser was generated
        assert str(raised.value).partition(".\nWas")[0] == theirs["error"].partition(".\nWas")[0], mistake


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_consumers_filter_by_properties(version: str, site: Site, client: Clients) -> None:
    """
    A Java consumer gets the old and the new messages that its expression selects, and no others.

    One whose expression is wrong is told so at its start, with the text of the compiler.
    """
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr, enablePropertyFilter=True)
    with broker.probe() as probe:
        probe.create_topic("Filtered", 2)
    java = client(version, namesrv.addr)
    with pytest.raises(AssertionError, match=r"Encountered .*<EOF>.* at line 1, column 8"):
        java.consume("wrong", "Filtered", "three", sql="number >")
    java.send("Filtered", "sync", 40, prefix="old")
    java.consume("filters", "Filtered", "one", sql="number BETWEEN 10 AND 14 OR number = 39 AND TAGS IS NOT NULL")
    selected = {10, 11, 12, 13, 14, 39}
    until("the old messages came", lambda: {int(e["key"][4:]) for e in java.got("one")} == selected, seconds=60)
    java.send("Filtered", "sync", 40, prefix="new")
    until("the new messages came", lambda: len(java.got("one")) == 2 * len(selected), seconds=60)
    assert sorted(e["key"] for e in java.got("one")) == sorted(f"{p}-{n}" for p in ("new", "old") for n in selected)

    def lag() -> int:
        return sum(highest - committed for _, highest, committed in java.offsets("Filtered", "filters").values())

    until("the messages that were passed count as consumed", lambda: lag() == 0, seconds=60)
