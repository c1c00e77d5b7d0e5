"""What is new, what stays, what is gone: this run's findings against those of a run before it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from rmq_audit.driver.consumers import Committed, Earlier
from rmq_audit.driver.findings import Finding
from rmq_audit.worker.location import InputError

NEW, PERSISTING, RESOLVED = "new", "persisting", "resolved"


@attrs.frozen(kw_only=True)
class Previous:
    """
    The run before: when it began, its findings by finding_id, whose stores it looked at, and the consumer offsets that
    it found.
    """

    path: str
    run_id: str
    started_at: str
    findings: Mapping[str, Mapping[str, Any]]
    subject: tuple[str, ...] = ()
    consumers: Earlier | None = None
    pairs: Mapping[str, Earlier] = attrs.field(factory=dict)


def read_previous(path: str) -> Previous:
    """Return the run whose JSON report stands at ``path``; InputError when that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        return Previous(
            path=path,
            run_id=report["run_id"],
            started_at=report["started_at"],
            findings={one["finding_id"]: one for one in report["findings"]},
            subject=subject_of(report),
            consumers=_consumers(report),
            pairs={one["name"]: earlier for one in report.get("pairs", ()) if (earlier := _consumers(one))},
        )
    except OSError as error:
        raise InputError(f"--previous {path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"--previous {path}: is not a JSON report of rmq-audit") from error


def subject_of(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Return whose stores a report is about; a dump of the same broker is the same, whatever its folder is called."""
    sides = (report.get("master"), report.get("slave"))
    return tuple(store_name(side["path"], side.get("manifest") or {}) for side in sides if side is not None)


def store_name(path: str, manifest: Mapping[str, Any]) -> str:
    """Return what tells a store from others: cluster, broker and id of a dump, else its path."""
    if manifest.get("broker_name") is None:
        return path
    return f"{manifest.get('cluster')}/{manifest['broker_name']}/{manifest.get('broker_id')}"


def offsets_table(committed: Iterable[Committed]) -> dict[str, dict[str, dict[str, int]]]:
    """Return consumer offsets by group, topic and queue id, as a report holds them."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for one in committed:
        table.setdefault(one.group, {}).setdefault(one.topic, {})[str(one.queue_id)] = one.offset
    return table


def _consumers(report: Mapping[str, Any]) -> Earlier | None:
    if not report.get("consumer_offsets"):
        return None
    return Earlier(
        subject=subject_of(report)[0],
        at=report["started_at"],
        offsets={
            (group, topic, int(queue_id)): int(offset)
            for group, topics in report["consumer_offsets"].items()
            for topic, queues in topics.items()
            for queue_id, offset in queues.items()
        },
    )


def mark(findings: Sequence[Finding], previous: Previous, *, complete: bool) -> list[dict[str, Any]]:
    """
    Set the state of each finding; return those of the previous run that are gone, as its report held them.

    A run that is not ``complete`` resolves nothing: what it did not find may lie in what it did not read.
    """
    ids = set()
    for one in findings:
        one.state = PERSISTING if one.finding_id in previous.findings else NEW
        ids.add(one.finding_id)
    if not complete:
        return []
    return [dict(one) | {"state": RESOLVED} for id_, one in previous.findings.items() if id_ not in ids]
