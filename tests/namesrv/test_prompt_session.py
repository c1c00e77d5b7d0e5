"""The session that docs/manhole.md shows is one that can be had."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from twisted.conch.manhole import ManholeInterpreter
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.prompt import prompt_names
from rmq.runtime.clock import moment
from rmq.wire.api.routes import REGISTER_BROKER
from tests.namesrv.talk import Talk
from tests.namesrv.test_journal import HEADER, body

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "manhole.md"


class Screen:
    """What the interpreter of a manhole writes to."""

    def __init__(self) -> None:
        self.text = ""

    def addOutput(self, data: str | bytes, isAsync: bool = False) -> None:
        self.text += data if isinstance(data, str) else data.decode()


def shown_session(page: str) -> list[tuple[str, str]]:
    """Return what is typed and what is answered in the first ``pycon`` block of a page."""
    found = re.search(r"```pycon\n(.*?)```", page, re.DOTALL)
    assert found is not None
    parts = re.split(r"^>>> (.*)\n", found[1], flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def held_session(names: dict[str, Any], lines: list[str]) -> list[tuple[str, str]]:
    """Type ``lines`` at a prompt with ``names`` and return the session."""
    session = []
    for line in lines:
        screen = Screen()
        ManholeInterpreter(screen, names).push(line.encode())
        session.append((line, screen.text.rstrip("\n") + "\n"))
    return session


class SessionTests(SynchronousTestCase):
    def setUp(self) -> None:
        """A broker that serves orders falls silent; somebody looks for the reason four minutes after it is gone."""
        self.talk = Talk.started(self.mktemp())
        routes, reactor = self.talk.service.routes, self.talk.reactor
        self.talk.ask(REGISTER_BROKER, HEADER, body("orders", "payments"))
        reactor.rightNow += 125
        routes.expire(moment(reactor))
        reactor.rightNow += 250

    def test_session(self) -> None:
        """Typed line by line it gives exactly what the page shows."""
        shown = shown_session(PAGE.read_text("utf-8"))
        self.assertGreaterEqual(len(shown), 4)
        self.assertEqual(held_session(prompt_names(self.talk.service), [line for line, _ in shown]), shown)

    def test_a_difference_is_seen(self) -> None:
        """A session against a NameServer where nothing happened looks different."""
        shown = shown_session(PAGE.read_text("utf-8"))
        quiet = Talk(self.mktemp())
        self.assertNotEqual(held_session(prompt_names(quiet.service), [line for line, _ in shown]), shown)
