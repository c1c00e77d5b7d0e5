"""
Make the store of an old master fit to follow the new one: ``python -m rmq.ha.rejoin STORE --master NEW [--yes]``.

STORE is the directory of a stopped broker (Apache's or ours), NEW the new master: its store directory, or "host:port"
of the running broker. The report has the last record that both have, every message that only STORE has, and every
damaged place. With --yes all bytes behind the last common record, damaged ones and a mere BLANK included, are moved
into a file below STORE/cut, and the log is truncated there; without it nothing is changed.

Exit status: 0 nothing has to be cut, or it was; 1 something has to be cut; 2 failed, with the reason.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from rmq.ha.rejoin.divergence import Divergence, Records, StoredRecords, find_divergence
from rmq.ha.rejoin.remote_log import RemoteLog, RemoteLogError
from rmq.runtime.disk.files import Disk, DiskError, RealDisk
from rmq.runtime.http.html import time_text
from rmq.runtime.platform import split_addr
from rmq.store import layout
from rmq.store.cut import save_and_cut
from rmq.store.messages import StoreError
from rmq.store.scan import Damage, LogFiles

#: messages that are listed unless --list says otherwise
LISTED = 20


class CannotRejoin(Exception):
    """The store cannot be compared or truncated; the text says why."""


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
        split_addr(master)
    except ValueError:
        raise CannotRejoin(f"{master} is neither a store (there is no {folder}) nor host:port of a broker") from None
    broker = RemoteLog(master)
    try:
        yield broker
    finally:
        broker.close()


def compare(disk: Disk, folder: str, master: str) -> Divergence:
    """Return where the log in ``folder`` diverges from the new master's; CannotRejoin, RemoteLogError, DiskError."""
    if not disk.is_dir(folder):
        raise CannotRejoin(f"{folder} does not exist, so this is no store")
    log = LogFiles(disk, folder)
    try:
        stored = StoredRecords(log)
        if stored.end_offset == stored.min_offset:
            raise CannotRejoin(f"{folder} holds no records: an empty slave can start as it is")
        with opened(disk, master) as other:
            if other.end_offset <= other.min_offset:
                raise CannotRejoin("the new master holds no records: is that the right one, and is its disk mounted?")
            divergence = find_divergence(stored, other)
            if divergence.common_offset < 0:
                raise CannotRejoin(
                    f"{folder} ({stored.min_offset} to {stored.end_offset}) and {master} ({other.min_offset} to "
                    f"{other.end_offset}) have no record in common: move this store away, and start the broker empty"
                )
            return divergence
    finally:
        log.close()


def report_lines(divergence: Divergence, most: int) -> Iterator[str]:
    """Yield the report, at most ``most`` messages and damaged places of it."""
    yield (
        f"last common record: {divergence.common_offset} to {divergence.keep_offset}, "
        f"stored {time_text(divergence.common_timestamp)}"
    )
    yield f"this store ends at {divergence.end_offset}, the new master's at {divergence.other_end}"
    for damage in itertools.islice(divergence.common_damage, most):
        yield f"  {_damaged(damage)}: in the common part, and stays; records after it are common"
    if not divergence.cut_bytes:
        return
    if divergence.count:
        yield f"{divergence.count} messages ({divergence.cut_bytes} bytes) are in this store only:"
    else:
        what = "a damaged record" if divergence.damage else "the BLANK that ends a file, where the new master may go on"
        yield f"no whole message, but {divergence.cut_bytes} bytes follow the last common record: {what}"
    for extra in itertools.islice(divergence.extras(), most):
        yield (
            f"  offset {extra.phy_offset} size {extra.size} topic {extra.topic} queue {extra.queue_id} "
            f"queueOffset {extra.queue_offset} stored {time_text(extra.store_timestamp)} keys {extra.keys or '-'}"
        )
    if divergence.count > most:
        yield f"  and {divergence.count - most} more (--list {divergence.count} shows all)"
    for damage in itertools.islice(divergence.damage, most):
        behind = "intact records follow it" if damage.end <= divergence.last_extra else "no intact record follows it"
        yield f"  {_damaged(damage)}: its content is unknown, its bytes are saved with the rest; {behind}"
    places = max(len(divergence.damage), len(divergence.common_damage))
    if places > most:
        yield f"  and more damaged places (--list {places} shows all)"


def _damaged(damage: Damage) -> str:
    return f"damaged from {damage.start} to {damage.end} ({damage.flaw.value})"


def as_json(divergence: Divergence, most: int, saved: str | None) -> str:
    """Return the report as JSON."""
    return json.dumps(
        {
            "commonOffset": divergence.common_offset,
            "keepOffset": divergence.keep_offset,
            "endOffset": divergence.end_offset,
            "masterEndOffset": divergence.other_end,
            "messages": divergence.count,
            "bytes": divergence.cut_bytes,
            "extra": [attrs.asdict(extra) for extra in itertools.islice(divergence.extras(), most)],
            "damaged": [
                {"from": damage.start, "to": damage.end, "why": damage.flaw.value}
                for damage in itertools.islice([*divergence.common_damage, *divergence.damage], most)
            ],
            "saved": saved,
        }
    )


def rejoin(disk: Disk, options: argparse.Namespace, say: Callable[[str], object]) -> int:
    """Compare, report, and cut with --yes; return the exit status. The store's lock is held meanwhile."""
    root = options.store.rstrip("/")
    folder = options.storePathCommitLog or layout.commit_log_dir(root)
    if not disk.is_dir(folder):
        raise CannotRejoin(f"{folder} does not exist, so this is no store")
    lock = disk.lock(layout.lock_path(root))
    try:
        divergence = compare(disk, folder, options.master)
        saved = None
        if divergence.cut_bytes and options.yes:
            # The files decide what is saved, even if the comparison ended too early: all of it will be cleared.
            saved = save_and_cut(disk, root, folder, divergence.keep_offset, divergence.cut_end)
    finally:
        lock.release()
    if options.json:
        say(as_json(divergence, options.list, saved))
    else:
        for line in report_lines(divergence, options.list):
            say(line)
        if saved is not None:
            say(f"log truncated, these bytes are saved in {saved}; start this broker with brokerRole=SLAVE now")
        elif divergence.cut_bytes:
            say("nothing was changed: --yes truncates the log and saves these bytes in a file")
        else:
            say("nothing has to be cut: this broker can follow the new master as it is")
    return 1 if divergence.cut_bytes and saved is None else 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of messages")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="rmq.ha.rejoin",
        description="Compare a stopped old master with the new master, and cut what only the old one has.",
        epilog="Exit status: 0 nothing has to be cut (any more), 1 something has to be cut, 2 failed.",
    )
    parser.add_argument("store", help="storePathRootDir of the stopped broker")
    parser.add_argument("--master", required=True, help="the new master: its storePathRootDir, or host:listenPort")
    parser.add_argument("--storePathCommitLog", help="when it is not STORE/commitlog")
    parser.add_argument("--list", type=_count, default=LISTED, metavar="N", help="list N messages (%(default)s)")
    parser.add_argument("--yes", action="store_true", help="cut; without it nothing is changed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if os.path.abspath(options.store) == os.path.abspath(options.master):
        parser.error("STORE and --master are the same directory")
    try:
        return rejoin(RealDisk(None), options, print)
    except (CannotRejoin, RemoteLogError, DiskError, StoreError) as error:
        print(f"{options.store} cannot be compared with {options.master}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
