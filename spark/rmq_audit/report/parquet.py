"""Findings as Parquet, for tables that hold the runs of months; columns have the names of the JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_audit.worker.location import InputError

_NAMES = (
    *("finding_id", "invariant", "severity", "state", "derived_from", "cluster", "broker", "replica", "role", "topic"),
    *("queue_id", "queue_offset_from", "queue_offset_to", "phy_from", "phy_to", "count", "expected", "actual", "blame"),
    *("evidence_phy", "evidence_master", "evidence_slave", "field", "differing_fields", "sample_msg_ids", "detail"),
)
_NUMBERS = ("queue_offset_from", "queue_offset_to", "phy_from", "phy_to", "count", "evidence_phy")
#: columns that are no text
_KINDS = {
    **dict.fromkeys(_NUMBERS, pa.int64()),
    "queue_id": pa.int32(),
    "differing_fields": pa.list_(pa.struct([(name, pa.string()) for name in ("field", "master", "slave")])),
    "sample_msg_ids": pa.list_(pa.string()),
}
SCHEMA = pa.schema([(name, _KINDS.get(name, pa.string())) for name in _NAMES])


def write_findings(folder: str, run_id: str, findings: Sequence[Mapping[str, Any]]) -> str:
    """
    Write all findings of a run, resolved ones too, as ``run_id=<run_id>/findings.parquet``; return that path.

    A run without findings writes an empty file: it has run. InputError when the folder cannot be written.
    """
    rows = [{name: one.get(name) for name in SCHEMA.names} for one in findings]
    inside = os.path.join(folder, f"run_id={run_id}")
    path = os.path.join(inside, "findings.parquet")
    try:
        os.makedirs(inside, exist_ok=True)
        # a name with a dot in front: Spark and Arrow do not read it while it is not whole
        temporary = os.path.join(inside, ".findings.parquet.tmp")
        table = pa.Table.from_pylist([_legal(row) for row in rows], schema=SCHEMA)
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"--parquet {folder}: cannot be written: {error.strerror or error}") from error
    return path


def _legal(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with text that UTF-8 can hold."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }
