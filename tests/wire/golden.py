"""Frames of real Apache processes, from tests/golden/frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import attrs

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "frames"

#: conversations in remoting frames; the others in the folder are the replication stream
CONVERSATIONS = (
    "broker-4.9.7_namesrv-4.9.7_register",
    "broker-5.3.3_namesrv-4.9.7",
    "client-4.9.7_binary-header",
    "client-4.9.7_produce",
    "client-4.9.7_push",
    "client-4.9.7_sendSmartMsg-false",
    "client-5.3.3_binary-header",
    "mqadmin-4.9.7_resetOffset",
    "probe_namesrv-4.9.7",
    "probe_tables",
    "slave-4.9.7_master-4.9.7_synchronize",
)


@attrs.frozen(kw_only=True)
class GoldenFrame:
    """One whole frame; ``answers`` is the request code that a response belongs to."""

    conversation: str
    from_client: bool
    code: int
    name: str
    opaque: int
    answers: int | None
    note: str
    data: bytes


def frames(conversation: str) -> Iterator[GoldenFrame]:
    """Yield the whole frames of one conversation in order of time."""
    with (FOLDER / f"{conversation}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["code"] is None or "cut" in entry:
                continue
            yield GoldenFrame(
                conversation=conversation,
                from_client=entry["dir"] == "c2s",
                code=entry["code"],
                name=entry["name"],
                opaque=entry["opaque"],
                answers=entry.get("answers"),
                note=entry["note"],
                data=bytes.fromhex(entry["hex"]),
            )


def all_frames() -> Iterator[GoldenFrame]:
    """Yield the whole frames of all conversations."""
    for conversation in CONVERSATIONS:
        yield from frames(conversation)
