"""
Write the tables of docs/namesrv.md that come from the code: ``python docs/make_namesrv.py``.

A test fails when one of them is out of date. Text between the tables is written by hand.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from rmq.namesrv.config import CONFIG_CLASSES
from rmq.namesrv.journal import eventlog
from rmq.namesrv.journal.events import REMOVALS, EventKind
from rmq.runtime.config import config_fields, format_value

PATH = Path(__file__).resolve().parent / "namesrv.md"

#: keys with such a text have no effect here
IDLE = re.compile(r"no effect|sizes a|limits requests of the server in Apache|not needed")

MEANINGS = {
    EventKind.REGISTERED: "a new broker process registered",
    EventKind.CHANGED: "a registration changed topics, id, cluster or HA address",
    EventKind.RECONNECTED: "a broker uses another connection than before",
    EventKind.REPLACED: "another address registered with the same name and id, or has it with a higher state version",
    EventKind.UNREGISTERED: "the broker unregistered: an orderly stop",
    EventKind.CLOSED: "its connection closed before it unregistered: kill, crash, network failure",
    EventKind.EXPIRED: "it was silent for too long; its connection is closed",
    EventKind.WIPED: "an admin took the write permission of its topics (`wipeWritePerm`); a 5.x group lost its master",
    EventKind.WRITE_ADDED: "an admin added the write permission again (`addWritePerm`)",
    EventKind.TOPIC_DELETED: "an admin deleted a topic; a broker that still has it adds it again with its next change",
    EventKind.TOPIC_REGISTERED: "an admin added a topic to a broker (217)",
    EventKind.FENCED: "a registration, unregister request, closed connection or expiry was ignored as out of date",
}


def keys() -> list[str]:
    """Return the rows of the keys that have an effect."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for cls in CONFIG_CLASSES:
        for field in config_fields(cls):
            if not IDLE.search(field.doc):
                value = format_value(field.default).replace(os.path.expanduser("~"), "~")
                rows.append(f"| `{field.key}` | `{value}` | {field.doc} |")
    return rows


def events() -> list[str]:
    """Return the rows of all kinds of events."""
    head = ["| event | meaning | level |", "|---|---|---|"]
    return head + [
        f"| {kind.value} | {MEANINGS[kind]} | {'warn' if kind in REMOVALS else 'info'} |" for kind in EventKind
    ]


def limits() -> list[str]:
    """Return the lines about the limits of the journal."""
    kept = eventlog.Limits()
    total_bytes = kept.max_event_bytes + kept.max_broker_bytes + kept.max_topic_bytes
    return [
        f"It keeps the last {kept.max_events:,} events of all; apart from these the last {kept.events_per_broker}",
        f"of each of {kept.max_brokers:,} broker names and its last removal,",
        f"and for each of {kept.max_topics:,} topics the last event with each of {kept.brokers_per_topic} brokers:",
        "a storm of events about others does not evict the one you need.",
        f"The journal takes at most {total_bytes >> 20} MiB, however long the names that peers send;",
        "it is empty after each start.",
    ]


PARTS = {"keys": keys, "events": events, "limits": limits}


def updated(page: str) -> str:
    """Return ``page`` with its parts generated again."""
    for name, lines in PARTS.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, _, rest = page.partition(f"{begin}\n")
        _, found, tail = rest.partition(f"{end}\n")
        if not found:
            raise ValueError(f"{PATH.name} lacks {begin} or {end}")
        page = "\n".join([f"{head}{begin}", *lines(), f"{end}\n"]) + tail
    return page


if __name__ == "__main__":
    PATH.write_text(updated(PATH.read_text("utf-8")), encoding="utf-8")
