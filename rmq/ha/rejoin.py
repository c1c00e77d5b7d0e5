"""
Make an old master fit to follow the new one: ``python -m rmq.ha.rejoin STORE --master NEW [--yes]``.

STORE is the directory of a stopped broker (Apache's or ours), NEW the new master: its store directory, or "host:port"
of the running broker. Told is the last record that both have, and every message that only STORE has. With --yes these
are moved into a file below STORE/cut and the log ends behind the last common record; without it nothing is changed.

Exit status: 0 nothing has to be cut, or it was; 1 something would be; 2 it cannot be done, and why.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import attrs

from rmq.ha.asking import AskError, BrokerRecords
from rmq.ha.history import Parting, Records, StoredRecords, find_parting
from rmq.ha.link import parse_addr
from rmq.runtime.disk import Disk, DiskError, RealDisk
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

    The caller holds the store's lock. The bytes are on disk in their new place before the first of them is cleared. The
    next start finds the mark of a crash and makes queues and index fit the log. Raises DiskError or StoreError; when
    that happens the command may be repeated.
    """
    log = LogFiles(disk, folder)
    try:
        segment_bytes = log.segment_bytes
        path = _free_name(disk, layout.join(root, layout.CUT_DIR), parting.keep_offset)
        disk.make_dirs(layout.join(root, layout.CUT_DIR))
        size = parting.end_offset - parting.keep_offset
        saved = disk.create_sparse(path, size)
        offset = parting.keep_offset
        while offset < parting.end_offset:
            data = log.read_some(offset, COPY_BYTES, parting.end_offset)
            saved.write_at(offset - parting.keep_offset, data)
            offset += len(data)
        saved.sync_now()
        saved.close()
        disk.sync_dir(layout.join(root, layout.CUT_DIR))
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
            parting = find_parting(stored, other)
            if parting.common_offset < 0:
                raise CannotRejoin(
                    f"{folder} ({stored.min_offset} to {stored.end_offset}) and {master} ({other.min_offset} to "
                    f"{other.end_offset}) have no record in common: wipe this store, the broker then begins empty"
                )
            return parting
    finally:
        log.close()


def told(parting: Parting, most: int) -> Iterator[str]:
    """Yield what an operator has to know before saying yes."""
    yield (
        f"last common record: {parting.common_offset} to {parting.keep_offset}, "
        f"stored {_time(parting.common_timestamp)}"
    )
    yield f"this store ends at {parting.end_offset}, the new master's at {parting.other_end}"
    if not parting.count:
        return
    yield f"{parting.count} messages ({parting.end_offset - parting.keep_offset} bytes) are in this store only:"
    for extra in itertools.islice(parting.extras(), most):
        yield (
            f"  offset {extra.phy_offset} size {extra.size} topic {extra.topic} queue {extra.queue_id} "
            f"queueOffset {extra.queue_offset} stored {_time(extra.store_timestamp)} keys {extra.keys or '-'}"
        )
    if parting.count > most:
        yield f"  and {parting.count - most} more (--list {parting.count} shows all)"


def _time(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def as_json(parting: Parting, most: int, saved: str | None) -> str:
    """Return the same for programs."""
    return json.dumps(
        {
            "commonOffset": parting.common_offset,
            "keepOffset": parting.keep_offset,
            "endOffset": parting.end_offset,
            "masterEndOffset": parting.other_end,
            "messages": parting.count,
            "bytes": parting.end_offset - parting.keep_offset if parting.count else 0,
            "extra": [attrs.asdict(extra) for extra in itertools.islice(parting.extras(), most)],
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
        saved = cut(disk, root, folder, parting) if parting.count and options.yes else None
    finally:
        lock.release()
    if options.json:
        say(as_json(parting, options.list, saved))
    else:
        for line in told(parting, options.list):
            say(line)
        if saved is not None:
            say(f"they are cut off and kept in {saved}; start this broker with brokerRole=SLAVE now")
        elif parting.count:
            say("nothing was changed: --yes cuts them off and keeps them in a file")
        else:
            say("nothing has to be cut: this broker can follow the new master as it is")
    return 1 if parting.count and saved is None else 0


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
    parser.add_argument("--list", type=int, default=LISTED, metavar="N", help="tell so many messages (%(default)s)")
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
