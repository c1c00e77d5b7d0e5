"""
Make an old master fit to follow the new one: ``python -m rmq.ha.rejoin STORE --master NEW [--yes]``.

STORE is the directory of a stopped broker (Apache's or ours), NEW the new master: its store directory, or "host:port"
of the running broker. Told is the last record that both have, every message that only STORE has, and every damaged
place in between. With --yes all bytes behind the last common record, damaged ones and a mere BLANK included, are moved
into a file below STORE/cut and the log ends there; without it nothing is changed.

Exit status: 0 nothing has to be cut, or it was; 1 something would be; 2 it cannot be done, and why.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import attrs

from rmq.ha.asking import AskError, BrokerRecords
from rmq.ha.history import Damage, Parting, Records, StoredRecords, find_parting, written_end
from rmq.ha.link import parse_addr
from rmq.runtime.disk import Disk, DiskError, RealDisk
from rmq.runtime.html import time_text
from rmq.store import layout
from rmq.store.check import LogFiles
from rmq.store.commitlog import CommitLog
from rmq.store.messages import StoreError

COPY_BYTES = 1 << 20
#: messages that are told one by one unless --list says otherwise
LISTED = 20


class CannotRejoin(Exception):
    """Why the store cannot be made to fit; for the operator."""


def cut(disk: Disk, root: str, folder: str, parting: Parting) -> str:
    """
    Move what lies behind the last common record into a file below ``root``/cut; return its path.

    The caller holds the store's lock. All that will be cleared, up to the last byte of the last file that is not zero,
    is on disk in its new place, and was read again from there, before the first byte of it is cleared. The next start
    finds the mark of a crash and makes queues and index fit the log. Raises DiskError or StoreError; when that happens
    the command may be repeated.
    """
    log = LogFiles(disk, folder)
    try:
        segment_bytes = log.segment_bytes
        # Asked of the files themselves: whatever was understood of these bytes, they are what is about to go.
        path = _save(disk, root, log, parting.keep_offset, max(parting.cut_end, written_end(log)))
    finally:
        log.close()
    # From here on queues may know more than the log: the next start must not believe in a clean stop.
    if not disk.exists(layout.abort_path(root)):
        disk.create_sparse(layout.abort_path(root), 0).close()
    disk.delete(layout.progress_path(root))
    disk.sync_dir(root)
    whole = CommitLog(disk, folder, segment_bytes)
    whole.load()
    try:
        whole.cut(parting.keep_offset, synced=0)
    finally:
        whole.close()
    return path


def _save(disk: Disk, root: str, log: LogFiles, start: int, end: int) -> str:
    """Copy the bytes from ``start`` to ``end`` into a new file and make sure that it has them; return its path."""
    folder = layout.join(root, layout.CUT_DIR)
    disk.make_dirs(folder)
    path = _free_name(disk, folder, start)
    try:
        # Made empty: its length then tells what was really written.
        saved = disk.create_sparse(path, 0)
        try:
            for offset, data in _pieces(log, start, end):
                saved.write_at(offset - start, data)
            saved.sync_now()
        finally:
            saved.close()
        disk.sync_dir(folder)
        _verify(disk, path, log, start, end)
    except (DiskError, StoreError):
        # Nothing was cleared, and a part under this name would look like the whole.
        with suppress(DiskError):
            disk.delete(path)
        raise
    return path


def _verify(disk: Disk, path: str, log: LogFiles, start: int, end: int) -> None:
    """Raise StoreError unless the file holds the bytes of the log from ``start`` to ``end`` and no others."""
    saved = disk.open(path)
    try:
        if saved.size != end - start:
            raise StoreError(f"{path} has {saved.size} bytes where {end - start} were to be saved; nothing was cut")
        for offset, data in _pieces(log, start, end):
            if saved.read_at(offset - start, len(data)) != data:
                raise StoreError(f"{path} does not hold the bytes of the log from {offset} on; nothing was cut")
    finally:
        saved.close()


def _pieces(log: LogFiles, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of the log with their offsets; StoreError where a file of it is missing or too short."""
    offset = start
    while offset < end:
        data = log.read_some(offset, COPY_BYTES, end)
        if not data:
            raise StoreError(f"the bytes of {log.folder} at {offset} are missing, yet there are others behind them")
        yield offset, data
        offset += len(data)


def _free_name(disk: Disk, folder: str, offset: int) -> str:
    """Return a name that is not taken: an earlier cut at the same place is kept."""
    path = layout.join(folder, layout.file_name(offset))
    for number in itertools.count(1):
        if not disk.exists(path):
            return path
        path = layout.join(folder, f"{layout.file_name(offset)}.{number}")
    raise AssertionError("numbers do not end")


@contextmanager
def opened(disk: Disk, master: str) -> Iterator[Records]:
    """Open the new master: a directory, or a broker's address."""
    folder = layout.commit_log_dir(master)
    if disk.is_dir(folder):
        log = LogFiles(disk, folder)
        try:
            yield StoredRecords(log)
        finally:
            log.close()
        return
    try:
        parse_addr(master)
    except ValueError:
        raise CannotRejoin(f"{master} is neither a store (there is no {folder}) nor host:port of a broker") from None
    broker = BrokerRecords(master)
    try:
        yield broker
    finally:
        broker.close()


def compare(disk: Disk, folder: str, master: str) -> Parting:
    """Return where the log in ``folder`` and the new master's part; raises CannotRejoin, AskError, DiskError."""
    if not disk.is_dir(folder):
        raise CannotRejoin(f"{folder} is not there, so this is no store")
    log = LogFiles(disk, folder)
    try:
        stored = StoredRecords(log)
        if stored.end_offset == stored.min_offset:
            raise CannotRejoin(f"{folder} holds no records: an empty slave needs nothing but its start")
        with opened(disk, master) as other:
            if other.end_offset <= other.min_offset:
                raise CannotRejoin("the new master holds no records: is that the right one, and is its disk mounted?")
            parting = find_parting(stored, other)
            if parting.common_offset < 0:
                raise CannotRejoin(
                    f"{folder} ({stored.min_offset} to {stored.end_offset}) and {master} ({other.min_offset} to "
                    f"{other.end_offset}) have no record in common: move this store aside, the broker then begins empty"
                )
            return parting
    finally:
        log.close()


def told(parting: Parting, most: int) -> Iterator[str]:
    """Yield what an operator has to know before saying yes."""
    yield (
        f"last common record: {parting.common_offset} to {parting.keep_offset}, "
        f"stored {time_text(parting.common_timestamp)}"
    )
    yield f"this store ends at {parting.end_offset}, the new master's at {parting.other_end}"
    for damage in itertools.islice(parting.common_damage, most):
        yield f"  {_damaged(damage)}: in the common part, and stays; what is behind it is common again"
    if not parting.cut_bytes:
        return
    if parting.count:
        yield f"{parting.count} messages ({parting.cut_bytes} bytes) are in this store only:"
    else:
        what = "a damaged record" if parting.damage else "the BLANK that ends a file, where the new master may go on"
        yield f"no whole message, but {parting.cut_bytes} bytes lie behind the last common record: {what}"
    for extra in itertools.islice(parting.extras(), most):
        yield (
            f"  offset {extra.phy_offset} size {extra.size} topic {extra.topic} queue {extra.queue_id} "
            f"queueOffset {extra.queue_offset} stored {time_text(extra.store_timestamp)} keys {extra.keys or '-'}"
        )
    if parting.count > most:
        yield f"  and {parting.count - most} more (--list {parting.count} shows all)"
    for damage in itertools.islice(parting.damage, most):
        behind = "intact records lie behind it" if damage.end <= parting.last_extra else "no intact record behind it"
        yield f"  {_damaged(damage)}: what was there cannot be told, its bytes are kept with the rest; {behind}"
    places = max(len(parting.damage), len(parting.common_damage))
    if places > most:
        yield f"  and more damaged places (--list {places} shows all)"


def _damaged(damage: Damage) -> str:
    return f"damaged from {damage.start} to {damage.end} ({damage.flaw.value})"


def as_json(parting: Parting, most: int, saved: str | None) -> str:
    """Return the same for programs."""
    return json.dumps(
        {
            "commonOffset": parting.common_offset,
            "keepOffset": parting.keep_offset,
            "endOffset": parting.end_offset,
            "masterEndOffset": parting.other_end,
            "messages": parting.count,
            "bytes": parting.cut_bytes,
            "extra": [attrs.asdict(extra) for extra in itertools.islice(parting.extras(), most)],
            "damaged": [
                {"from": damage.start, "to": damage.end, "why": damage.flaw.value}
                for damage in itertools.islice([*parting.common_damage, *parting.damage], most)
            ],
            "saved": saved,
        }
    )


def rejoin(disk: Disk, options: argparse.Namespace, say: Callable[[str], object]) -> int:
    """Compare, tell, and cut if that was said; return the exit status. The store's lock is held meanwhile."""
    root = options.store.rstrip("/")
    folder = options.storePathCommitLog or layout.commit_log_dir(root)
    if not disk.is_dir(folder):
        raise CannotRejoin(f"{folder} is not there, so this is no store")
    lock = disk.lock(layout.lock_path(root))
    try:
        parting = compare(disk, folder, options.master)
        saved = cut(disk, root, folder, parting) if parting.cut_bytes and options.yes else None
    finally:
        lock.release()
    if options.json:
        say(as_json(parting, options.list, saved))
    else:
        for line in told(parting, options.list):
            say(line)
        if saved is not None:
            say(f"they are cut off and kept in {saved}; start this broker with brokerRole=SLAVE now")
        elif parting.cut_bytes:
            say("nothing was changed: --yes cuts them off and keeps them in a file")
        else:
            say("nothing has to be cut: this broker can follow the new master as it is")
    return 1 if parting.cut_bytes and saved is None else 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of messages")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="rmq.ha.rejoin",
        description="Compare a stopped old master with the new master, and cut what only the old one has.",
        epilog="Exit status: 0 it fits (now), 1 something would be cut, 2 it cannot be done.",
    )
    parser.add_argument("store", help="storePathRootDir of the stopped broker")
    parser.add_argument("--master", required=True, help="the new master: its storePathRootDir, or host:listenPort")
    parser.add_argument("--storePathCommitLog", help="when it is not STORE/commitlog")
    parser.add_argument("--list", type=_count, default=LISTED, metavar="N", help="tell so many messages (%(default)s)")
    parser.add_argument("--yes", action="store_true", help="cut; without it nothing is changed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if os.path.abspath(options.store) == os.path.abspath(options.master):
        parser.error("STORE and --master are the same directory")
    try:
        return rejoin(RealDisk(None), options, print)
    except (CannotRejoin, AskError, DiskError, StoreError) as error:
        print(f"{options.store} cannot be compared with {options.master}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
