"""The names in the manhole of a NameServer: ``namesrv``, ``routes``, ``journal`` and ``explain``."""

from __future__ import annotations

from typing import Any

from rmq.namesrv.journal.journal import Journal
from rmq.namesrv.service import NamesrvService


class Shown(str):
    """Text that a Python prompt shows in lines, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Explain:
    """
    explain("NAME") explains why a topic has a route or none, or why a broker is registered or not.

    explain.topic("NAME") and explain.broker("NAME") choose between both; explain.recent(20) shows the last events.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __repr__(self) -> str:
        return str(self.__doc__).strip()

    def __call__(self, name: str) -> Shown:
        return self.broker(name) if self._journal.log.of_broker(name) else self.topic(name)

    def topic(self, name: str) -> Shown:
        return Shown(self._journal.explain_topic(name).text)

    def broker(self, name: str) -> Shown:
        return Shown(self._journal.explain_broker(name).text)

    def recent(self, count: int = 20) -> Shown:
        return Shown(self._journal.explain_recent(count).text)


def prompt_names(namesrv: NamesrvService) -> dict[str, Any]:
    """Return the names for the prompt."""
    journal = namesrv.journal
    return {"namesrv": namesrv, "routes": namesrv.routes, "journal": journal, "explain": Explain(journal)}
