"""What is new, what stays, what is gone: this run's findings against those of a run before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rmq_audit.findings import Finding
from rmq_audit.inventory import InputError

NEW, PERSISTING, RESOLVED = "new", "persisting", "resolved"


@attrs.frozen(kw_only=True)
class Previous:
    """The run before: when it began, and its findings by finding_id."""

    path: str
    run_id: str
    started_at: str
    findings: Mapping[str, Mapping[str, Any]]


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
        )
    except OSError as error:
        raise InputError(f"--previous {path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"--previous {path}: is no JSON report of rmq-audit") from error


def mark(findings: Sequence[Finding], previous: Previous, *, complete: bool) -> list[dict[str, Any]]:
    """
    Set the state of each finding; return those of the run before that are gone, as its report held them.

    A run that is not ``complete`` resolves nothing: what it did not find may lie in what it did not read.
    """
    ids = set()
    for one in findings:
        one.state = PERSISTING if one.finding_id in previous.findings else NEW
        ids.add(one.finding_id)
    if not complete:
        return []
    return [dict(one) | {"state": RESOLVED} for id_, one in previous.findings.items() if id_ not in ids]
