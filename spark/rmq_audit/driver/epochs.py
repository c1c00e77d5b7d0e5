"""
Epochs of masters that a controller elected: both sides must count the same ones up to their common end.

Java: org.apache.rocketmq.store.ha.autoswitch.EpochFileCache
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.log import Log
from rmq_audit.worker.files import read_stored, unreadable
from rmq_audit.worker.location import ReadError, child
from rmq_audit.worker.work import BOTH, UNDECIDED

#: in the store directory; the number of entries, in newer versions their CRC, then a line ``epoch-startOffset`` each
EPOCH_FILE = "epochFileCheckpoint"

Epochs = Sequence[tuple[int, int]]

_ENTRY = re.compile(r"(\d{1,10})-(\d{1,19})")


class _BadFile(Exception):
    """The file of epochs cannot be used; the text names it."""


def check_epochs(master: Log, slave: Log, begin: int, end: int) -> list[Finding]:
    """
    Return where the sides count different epochs within [``begin``, ``end``); nothing when a side counts none.

    Retention cuts the oldest epochs off a table, so the tables are compared with each other from where both begin.
    """
    try:
        ours, theirs = _epochs_of(master), _epochs_of(slave)
    except _BadFile as error:
        return [finding("AU-COVER", BOTH, detail=str(error))]
    if not ours or not theirs:
        return []
    begin = max(begin, ours[0][1], theirs[0][1])
    for at in sorted({begin, *(start for _, start in [*ours, *theirs] if begin <= start < end)}):
        mine, other = _epoch_at(ours, at), _epoch_at(theirs, at)
        if at < end and mine != other:
            text = (
                f"from {at} on the master counts epoch {mine}, the slave {other}: the sides took bytes of different "
                "masters there, and a controller will have one of them cut its log"
            )
            one = finding("RP-EPOCH", BOTH, phy_from=at, phy_to=at + 1, field="epoch", blame=UNDECIDED, detail=text)
            one.expected, one.actual = str(mine), str(other)
            return [one]
    return []


def knows_epochs(log: Log) -> bool:
    """Whether a side has a table of epochs that can be used."""
    try:
        return bool(_epochs_of(log))
    except _BadFile:
        return False


def _epochs_of(log: Log) -> Epochs:
    """Return (epoch, start offset) in order, by the file that a 5.x broker keeps, else by the manifest."""
    path = child(log.store.path, EPOCH_FILE)
    try:
        lines = read_stored(path).decode("ascii").split()
    except FileNotFoundError:
        return () if log.store.manifest is None else log.store.manifest.epochs
    except ReadError as error:
        raise _BadFile(unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        raise _BadFile(f"{path}: is not a table of epochs") from error
    entries = [entry for entry in map(_ENTRY.fullmatch, lines) if entry is not None]
    if not lines or lines[0] != str(len(entries)):
        raise _BadFile(f"{path}: has {len(entries)} epochs, not as many as its first line says")
    return sorted((int(entry[1]), int(entry[2])) for entry in entries)


def _epoch_at(epochs: Epochs, phy: int) -> int:
    return max(epoch for epoch, start in epochs if start <= phy)
