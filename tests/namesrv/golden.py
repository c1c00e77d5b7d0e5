"""Recorded conversations with an Apache NameServer 4.9.7, and how to compare its answers with ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from rmq.wire.command import RemotingCommand, decode_commands
from rmq.wire.fastjson import parse

FRAMES = Path(__file__).resolve().parent.parent / "golden" / "frames"

#: The recording proxy stood between brokers and NameServer and changed the brokers' ports in what it passed on.
PASSED_ON = {b"127.0.0.1:189": b"127.0.0.1:289"}


@attrs.frozen(kw_only=True)
class Exchange:
    """A request as the NameServer saw it, with Apache's answer (None: it gave none)."""

    ms: int
    connection: int
    note: str
    request: RemotingCommand
    answer: RemotingCommand | None


def exchanges(name: str) -> list[Exchange]:
    """Return the requests of ``name``.jsonl in order of time."""
    rows = [json.loads(line) for line in (FRAMES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = {(row["conn"], row["opaque"]): _command(row) for row in rows if row["dir"] == "s2c" and row.get("hex")}
    return list(_exchanges(rows, answers))


def _exchanges(rows: list[dict[str, Any]], answers: dict[tuple[int, int], RemotingCommand]) -> Iterator[Exchange]:
    for row in rows:
        if row["dir"] == "c2s" and row.get("hex"):
            request = _command(row)
            answer = None if request.is_oneway else answers.get((row["conn"], row["opaque"]))
            yield Exchange(
                ms=row["ms"], connection=row["conn"], note=row.get("note", ""), request=request, answer=answer
            )


def _command(row: dict[str, Any]) -> RemotingCommand:
    assert "cut" not in row, row["name"]
    data = bytes.fromhex(row["hex"])
    if row["dir"] == "c2s":
        for before, after in PASSED_ON.items():
            data = data.replace(before, after)
    (command,) = decode_commands(data)
    return command


#: what BrokerData of 5.x have and those of 4.9.7 lack
FIVE_X = b',"enableActingMaster":false'


def differences(ours: RemotingCommand | None, apache: RemotingCommand | None) -> list[str]:
    """
    Return what differs between two answers, one line each.

    Version and the order of names in lists are left out: the one is 407 there and 409 here, the other Java's hashes. So
    is what broker groups have besides as in 5.x.
    """
    if ours is None or apache is None:
        return [] if ours is apache else [f"ours {ours!r}, Apache's {apache!r}"]
    pairs = {
        "code": (ours.code, apache.code),
        "flag": (ours.flag, apache.flag),
        "opaque": (ours.opaque, apache.opaque),
        "serialize type": (ours.serialize_type, apache.serialize_type),
        "remark": (ours.remark, apache.remark),
        "extFields at all": (ours.has_ext_fields, apache.has_ext_fields),
        "extFields": (dict(ours.ext_fields), dict(apache.ext_fields)),
        "body": (_comparable(ours.body and ours.body.replace(FIVE_X, b"")), _comparable(apache.body)),
    }
    return [f"{what}: ours {mine!r}, Apache's {theirs!r}" for what, (mine, theirs) in pairs.items() if mine != theirs]


def _comparable(body: bytes | None) -> object:
    """Return bodies as bytes; lists of names, which come in hash order, as sorted."""
    if body is None or b'"topicList"' not in body:
        return body
    members = parse(body.decode())
    return list(members), {**members, "topicList": sorted(members["topicList"])}
