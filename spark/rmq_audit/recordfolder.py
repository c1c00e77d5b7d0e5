"""The folder of a record index as the driver sees it: made before the scan, put in order behind it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rmq_audit.engines import Engine, EngineError
from rmq_audit.history import Log
from rmq_audit.inventory import InputError
from rmq_audit.tasks import IndexFile, TrimIndex
from rmq_audit.work import TRIM


def prepare(folder: str, sides: Iterable[str]) -> dict[str, str]:
    """Return the folder of each side, made now; InputError when something is there already or nothing can be."""
    try:
        import pyarrow  # noqa: F401 (the workers need it)
    except ImportError as error:
        raise InputError("--record-index needs pyarrow: pip install 'rmq[audit]'") from error
    try:
        if os.path.isdir(folder) and os.listdir(folder):
            raise InputError(f"--record-index {folder}: is not empty")
        folders = {side: os.path.join(os.path.abspath(folder), f"replica={side}") for side in sides}
        for path in folders.values():
            os.makedirs(path)
    except OSError as error:
        raise InputError(f"--record-index {folder}: cannot be written: {error.strerror}") from error
    return folders


def finish(folders: dict[str, str], logs: dict[str, Log], engine: Engine) -> None:
    """
    Leave one row for each record of each log: take out what lies behind its end, and files of tasks that ran twice.

    EngineError naming the file when one could not be written.
    """
    for side, log in logs.items():
        written = [scan.index for scan in log.scans if scan.index is not None]
        _check(written)
        tasks = [
            TrimIndex(file=one.path, limit=log.end)
            for one in written
            if one.path is not None and one.last_phy >= log.end
        ]
        trimmed = engine.run(TRIM, tasks) if tasks else []
        _check(trimmed)
        empty = {one.path for one in trimmed if one.rows == 0}
        kept = {one.path for one in written if one.path is not None} - empty
        for name in os.listdir(folders[side]):
            path = os.path.join(folders[side], name)
            if path not in kept:
                os.remove(path)
        missing = sorted(path for path in kept if not os.path.exists(path))
        if missing:
            raise EngineError(f"--record-index: {missing[0]} is not here: all workers must see one folder")


def _check(written: Iterable[IndexFile]) -> None:
    for one in written:
        if one.error is not None:
            raise EngineError(f"--record-index: {one.error}")
