"""Recorded replication conversations of Apache brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import attrs

FRAMES = Path(__file__).resolve().parent.parent / "golden" / "frames"


@attrs.frozen
class Event:
    """One line of a recording: bytes in one direction, CONNECT or CLOSE."""

    name: str
    to_master: bool
    connection: int
    ms: int
    data: bytes
    #: length of the frame, of which ``data`` may be the beginning only
    size: int


def conversation(name: str) -> list[Event]:
    """Return the events of ``name``.jsonl in order of time."""
    return list(_events(FRAMES / f"{name}.jsonl"))


def _events(path: Path) -> Iterator[Event]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        data = bytes.fromhex(row.get("hex", ""))
        yield Event(row["name"], row["dir"] == "c2s", row["conn"], row["ms"], data, row.get("cut", len(data)))
