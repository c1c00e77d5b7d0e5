"""
Check every invariant of a store that is not open: ``python -m rmq.store.check DIR [--json]``.

Frames and CRCs of the commit log, numbers without holes in every queue, consume queues and index against the log. Reads
Apache's directories too, and changes nothing. Exit status 0 without errors, 1 with some, 2 when there is no such store.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from rmq.runtime.disk.files import Disk, DiskError, RealDisk
from rmq.store import layout
from rmq.store.config import StoreConfig
from rmq.store.indexfile import IndexFile, IndexHeader
from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_FILLER, CQ_UNIT, CQ_UNIT_BYTES
from rmq.store.multidispatch import further_queues
from rmq.store.scan import CHECK, LogFiles, LogScanner
from rmq.wire.record import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Flaw,
    Frame,
    find_property,
    index_key_hash,
    is_torn,
    split_keys,
    tags_code,
)

#: findings of one kind that are listed one by one
MAX_OF_A_KIND = 20


@attrs.frozen
class Finding:
    """Something that should not be so. A "note" is legal, for instance after a kill."""

    severity: str
    kind: str
    where: str
    offset: int
    text: str


@attrs.define
class _Entry:
    """What is remembered of a record."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int
    tags_code: int
    key_hashes: frozenset[int]
    has_unit: bool
    #: numbers in further queues, by topic and queueId
    further: Mapping[tuple[str, int], int]
    covered: bool = False
    #: its topic was created again behind it: a later record of the queue has number 0
    is_former: bool = False


def check_store(disk: Disk, root: str, config: StoreConfig | None = None) -> list[Finding]:
    """
    Return all that is wrong with the store in ``root``, empty when it is sound. DiskError when it cannot be read.

    ``config`` says where the commit log is and how large index files are; other files show their own sizes.
    """
    return StoreCheck(disk, root, config or StoreConfig(store_path_root_dir=root)).run()


class StoreCheck:
    """One run over one store."""

    def __init__(self, disk: Disk, root: str, config: StoreConfig) -> None:
        self._disk = disk
        self._root = root
        self._config = config
        self._findings: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._records: dict[int, _Entry] = {}
        self._is_clean = not disk.exists(layout.abort_path(root))
        #: the topics of `config/topics.json`; None where it cannot be read
        self._topics = _topics(disk, layout.join(layout.config_dir(root), "topics.json"))
        self.min_offset = 0
        self.end_offset = 0

    @property
    def summary(self) -> dict[str, int]:
        return {"minOffset": self.min_offset, "endOffset": self.end_offset, "records": len(self._records)}

    def run(self) -> list[Finding]:
        log = LogFiles(self._disk, self._config.store_path_commit_log or layout.commit_log_dir(self._root))
        try:
            self._check_files(log)
            if log.starts:
                self._check_log(log)
        finally:
            log.close()
        self._check_numbers()
        self._check_queues()
        self._check_index()
        for kind, count in self._counts.items():
            if count > MAX_OF_A_KIND:
                self._findings.append(Finding("note", kind, "", -1, f"{count - MAX_OF_A_KIND} more of this kind"))
        return self._findings

    def _find(self, severity: str, kind: str, where: str, offset: int, text: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= MAX_OF_A_KIND:
            self._findings.append(Finding(severity, kind, where, offset, text))

    def _lag(self) -> str:
        """Return the severity of entries that queues and index lack: after a kill recovery rebuilds them."""
        return "error" if self._is_clean else "note"

    # ---- commit log ----

    def _check_files(self, log: LogFiles) -> None:
        for start, after in itertools.zip_longest(log.starts, log.starts[1:]):
            path = layout.join(log.folder, layout.file_name(start))
            if log.sizes[start] != log.segment_bytes:
                self._find("error", "file-size", path, start, f"{log.sizes[start]} bytes, others {log.segment_bytes}")
            if after is not None and after != start + log.segment_bytes:
                self._find("error", "missing-file", path, start + log.segment_bytes, "the next file is missing")

    def _check_log(self, log: LogFiles) -> None:
        self.min_offset = log.starts[0]
        for at, found in LogScanner(log, CHECK).records(self.min_offset, log.end):
            self.end_offset = at
            if isinstance(found, Frame):
                if is_torn(found, (at + found.size) % log.segment_bytes):
                    self._find(self._lag(), "torn-record", found.topic, at, Flaw.TORN.value)
                else:
                    self._remember(at, found)
            elif found.resumes:
                text = f"{found.flaw.value}; intact again at {found.end}"
                self._find("error", "damaged-record", log.folder, at, text)
            else:
                if found.flaw is not Flaw.EMPTY:
                    self._find(self._lag(), "torn-tail", log.folder, at, found.flaw.value)
                self._check_tail(log)
                return
        self.end_offset = log.end

    def _remember(self, phy_offset: int, frame: Frame) -> None:
        properties = frame.properties.decode("utf-8", "replace")
        transaction = frame.sys_flag & TRANSACTION_MASK
        keys = [find_property(properties, PROPERTY_UNIQ_KEY), *split_keys(find_property(properties, PROPERTY_KEYS))]
        hashes = frozenset(index_key_hash(frame.topic, key) for key in keys if key)
        self._records[phy_offset] = _Entry(
            frame.topic,
            frame.queue_id,
            frame.queue_offset,
            frame.size,
            tags_code(find_property(properties, PROPERTY_TAGS)),
            hashes if transaction != TRANSACTION_ROLLBACK else frozenset(),
            transaction in (0, TRANSACTION_COMMIT),
            {
                (name, queue_id): number
                for lmq in (False, True)
                for name, queue_id, number in further_queues(properties, frame.queue_id, lmq=lmq)
            },
        )

    def _check_tail(self, log: LogFiles) -> None:
        offset = self.end_offset
        dirty = 0
        while data := log.read_some(offset, 1 << 20):
            dirty += len(data) - data.count(0)
            offset += len(data)
        if dirty:
            self._find("note", "stale-bytes", log.folder, self.end_offset, f"{dirty} bytes behind the end are not zero")

    def _check_numbers(self) -> None:
        """Check that numbers of a queue follow one another; they begin again with a topic that was deleted before."""
        following: dict[tuple[str, int], int] = {}
        lives: dict[tuple[str, int], list[_Entry]] = {}
        for phy_offset, record in self._records.items():
            if not record.has_unit:
                continue
            key = (record.topic, record.queue_id)
            expected = following.get(key, record.queue_offset)
            if record.queue_offset == 0 and expected:
                where = f"{record.topic}-{record.queue_id}"
                self._find("note", "queue-reset", where, phy_offset, f"begins again where number {expected} was due")
                for former in lives.pop(key):
                    former.is_former = True
            elif record.queue_offset != expected:
                self._find(
                    "error",
                    "queue-number",
                    f"{record.topic}-{record.queue_id}",
                    phy_offset,
                    f"number {record.queue_offset} where {expected} was due",
                )
            following[key] = record.queue_offset + 1
            lives.setdefault(key, []).append(record)

    # ---- consume queues ----

    def _check_queues(self) -> None:
        base = layout.consume_queue_dir(self._root)
        for topic in self._disk.list_dir(base):
            folder = layout.join(base, topic)
            for name in self._disk.list_dir(folder) if self._disk.is_dir(folder) else ():
                # As in the broker: any other name is no queue.
                if layout.is_queue_name(name) and self._disk.is_dir(layout.join(folder, name)):
                    self._check_queue(topic, int(name))
        deleted: dict[str, tuple[int, int]] = {}
        for phy_offset, record in self._records.items():
            if not record.has_unit or record.covered or record.is_former:
                continue
            if self._is_deleted(record.topic):
                first, count = deleted.get(record.topic, (phy_offset, 0))
                deleted[record.topic] = first, count + 1
                continue
            where = f"{record.topic}-{record.queue_id}"
            self._find(self._lag(), "missing-unit", where, phy_offset, f"number {record.queue_offset} has no unit")
        for topic, (first, count) in deleted.items():
            self._find("note", "deleted-topic", topic, first, f"{count} messages of a topic that was deleted")

    def _is_deleted(self, topic: str) -> bool:
        """A topic that the broker has no longer, nor any queue of it; its messages stay until their file expires."""
        return (
            self._topics is not None
            and topic not in self._topics
            and not self._disk.is_dir(layout.join(layout.consume_queue_dir(self._root), topic))
        )

    def _units(self, topic: str, queue_id: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, unit) of a queue, up to the first empty one."""
        folder = layout.consume_queue_dir(self._root, topic, queue_id)
        expected: int | None = None
        ended = False
        for name in self._disk.list_dir(folder):
            start = layout.file_start(name)
            if start is None:
                continue
            where = layout.join(folder, name)
            if expected is not None and start != expected:
                self._find("error", "missing-file", where, start, f"the file of byte {expected} is missing")
            data = self._disk.read_whole(where)
            expected = start + len(data)
            for at in range(0, len(data) - CQ_UNIT_BYTES + 1, CQ_UNIT_BYTES):
                unit = data[at : at + CQ_UNIT_BYTES]
                if not any(unit):
                    ended = True
                elif ended:
                    self._find("note", "stale-unit", where, start + at, "a unit behind the end of its queue")
                else:
                    yield (start + at) // CQ_UNIT_BYTES, unit

    def _check_queue(self, topic: str, queue_id: int) -> None:
        where = f"{topic}-{queue_id}"
        last_phy = -1
        for number, unit in self._units(topic, queue_id):
            phy_offset, size, code = CQ_UNIT.unpack(unit)
            if unit == CQ_FILLER or phy_offset < self.min_offset:
                continue
            record = self._records.get(phy_offset)
            if record is None:
                self._find("error", "unit-without-record", where, phy_offset, f"number {number}: no record there")
                continue
            found = (record.topic, record.queue_id, record.size)
            is_own = (topic, queue_id) == found[:2]
            due = record.queue_offset if is_own else record.further.get((topic, queue_id))
            if due is None or size != record.size or phy_offset < last_phy:
                self._find("error", "wrong-unit", where, phy_offset, f"number {number} is for {size} bytes: {found}")
            elif number < due:
                self._find("note", "filled-unit", where, phy_offset, f"number {number} fills in for a missing message")
                continue
            elif number != due:
                text = f"number {number} points at number {due}"
                self._find("error", "shifted-unit", where, phy_offset, text)
            elif code not in (record.tags_code,) and code > CQ_EXT_ADDRESS_MAX and topic != SCHEDULE_TOPIC:
                self._find("error", "tags-code", where, phy_offset, f"number {number}: {code}, not {record.tags_code}")
            record.covered = record.covered or is_own
            last_phy = phy_offset

    # ---- index ----

    def _check_index(self) -> None:
        folder = layout.index_dir(self._root)
        slots, entries = self._config.max_hash_slot_num, self._config.max_index_num
        indexed: set[tuple[int, int]] = set()
        names = [name for name in self._disk.list_dir(folder) if layout.is_index_name(name)]
        for name in names:
            where = layout.join(folder, name)
            file = self._disk.open(where)
            try:
                if file.size != layout.index_file_bytes(slots, entries):
                    text = f"{file.size} bytes do not fit maxHashSlotNum={slots}, maxIndexNum={entries}: not checked"
                    self._find("note", "index-size", where, -1, text)
                    return
                index = IndexFile(where, slots, entries, IndexHeader.unpack(file.read_at(0, layout.INDEX_HEADER_BYTES)))
                if not 0 <= index.header.index_count <= entries:
                    text = f"its header counts {index.header.index_count} entries, there is room for {entries}"
                    self._find("error", "index-header", where, -1, text)
                    continue
                for number in range(1, index.header.index_count):
                    key_hash, phy_offset, _, before = index.entry(file, number)
                    indexed.add((phy_offset, key_hash))
                    record = self._records.get(phy_offset)
                    if phy_offset >= self.min_offset and (record is None or key_hash not in record.key_hashes):
                        self._find("error", "wrong-index-entry", where, phy_offset, f"entry {number} fits no key there")
                    if before >= number:
                        self._find("error", "index-chain", where, phy_offset, f"entry {number} follows entry {before}")
                    elif index.newest(file, key_hash % slots) < number:
                        self._find(
                            "error", "index-slot", where, phy_offset, f"entry {number} is not in its slot's chain"
                        )
            finally:
                file.close()
        for phy_offset, record in self._records.items() if names else ():
            for key_hash in record.key_hashes:
                if (phy_offset, key_hash) not in indexed:
                    self._find(self._lag(), "missing-index-entry", record.topic, phy_offset, "a key is not indexed")


def _topics(disk: Disk, path: str) -> frozenset[str] | None:
    if not disk.exists(path):
        return None
    try:
        return frozenset(json.loads(disk.read_whole(path))["topicConfigTable"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; return the exit status."""
    defaults = StoreConfig()
    parser = argparse.ArgumentParser(prog="rmq.store.check", description="Check a store that is not open.")
    parser.add_argument("directory", help="storePathRootDir")
    parser.add_argument("--storePathCommitLog", help="when it is not DIR/commitlog")
    parser.add_argument("--maxHashSlotNum", type=int, default=defaults.max_hash_slot_num)
    parser.add_argument("--maxIndexNum", type=int, default=defaults.max_index_num)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    options.directory = options.directory.rstrip("/") or "/"
    disk = RealDisk(None)
    config = StoreConfig(
        store_path_root_dir=options.directory,
        store_path_commit_log=options.storePathCommitLog,
        max_hash_slot_num=options.maxHashSlotNum,
        max_index_num=options.maxIndexNum,
    )
    check = StoreCheck(disk, options.directory, config)
    try:
        if not disk.is_dir(config.commit_log_dir):
            raise DiskError(config.commit_log_dir, "is not there, so this is no store")
        findings = check.run()
    except DiskError as error:
        print(f"{options.directory} cannot be checked: {error}", file=sys.stderr)
        return 2
    errors = sum(finding.severity == "error" for finding in findings)
    if options.json:
        print(json.dumps({**check.summary, "errors": errors, "findings": [attrs.asdict(f) for f in findings]}))
    else:
        for finding in findings:
            print(f"{finding.severity:5} {finding.kind} {finding.where} at {finding.offset}: {finding.text}")
        summary = ", ".join(f"{name} {value}" for name, value in check.summary.items())
        print(f"{options.directory}: {summary}, {errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
