"""The folder of a record index: made before the scan, and cleaned up after it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from rmq_audit.driver.log import Log
from rmq_audit.engine.engines import Engine, EngineError
from rmq_audit.worker.location import InputError
from rmq_audit.worker.work import MASTER, SLAVE, STORE, IndexFile


def prepare(folder: str) -> None:
    """Make sure before the long part that ``folder`` is empty and can be written; InputError."""
    try:
        import pyarrow  # noqa: F401 (the workers need it)
    except ImportError as error:
        raise InputError("--record-index needs pyarrow: pip install 'txrocketmq[audit]'") from error
    try:
        if os.path.isdir(folder) and os.listdir(folder):
            raise InputError(f"--record-index {folder}: is not empty")
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InputError(f"--record-index {folder}: cannot be written: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--record-index {folder}: cannot be written")


def of_sides(folder: str, sides: Iterable[str]) -> dict[str, str]:
    """Return the folder of each side of a store or pair."""
    return {side: os.path.join(os.path.abspath(folder), f"replica={side}") for side in sides}


def of_broker(folder: str, broker: str, number: int, *, several: bool) -> dict[str, str]:
    """
    Return the folders of a cluster's pair by side, below the broker's; the names are as Spark and Arrow read them.

    The pair with slave ``number`` (from 1; 0 for a master without slaves). The rows of a master stand once, with the
    first of its ``several`` slaves.
    """
    inside = os.path.join(os.path.abspath(folder), f"broker={quote(broker, safe='')}")
    if number == 0:
        return {STORE: os.path.join(inside, "replica=master")}
    slave = f"replica={SLAVE}-{number}" if several else f"replica={SLAVE}"
    sides = {SLAVE: os.path.join(inside, slave)}
    return sides if number > 1 else {MASTER: os.path.join(inside, "replica=master")} | sides


def make(folders: Mapping[str, str]) -> None:
    """Make the folders for the workers; EngineError when that fails."""
    for path in folders.values():
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise EngineError(f"--record-index: {path}: cannot be written: {error.strerror}") from error


def finish(folders: Mapping[str, str], logs: Mapping[str, Log], engine: Engine) -> None:
    """
    Leave one row for each record of each log that has a folder: without what lies after its end, or was written twice.

    EngineError naming the file when one could not be written.
    """
    if not folders:
        return
    from rmq_audit.worker.recordindex import TRIM, TrimIndex  # pyarrow is needed for this alone

    for side, folder in folders.items():
        log = logs[side]
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
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if path not in kept:
                os.remove(path)
        missing = sorted(path for path in kept if not os.path.exists(path))
        if missing:
            raise EngineError(f"--record-index: {missing[0]} is not here: all workers must see one folder")


def _check(written: Iterable[IndexFile]) -> None:
    for one in written:
        if one.error is not None:
            raise EngineError(f"--record-index: {one.error}")
