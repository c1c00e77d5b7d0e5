"""
What brokers, consumers, producers, slaves and restarts can notice of a store: read as they read it, not as the audit
does.

``observe`` returns what a store shows. Two stores that show the same are the same to everybody, whatever their bytes
are; ``UNNOTICEABLE`` says for each kind of byte that may differ then why nobody reads it. A byte of no such kind counts
as noticed. ``UNTELLABLE`` are changes that would be noticed, and that no look at the two stores can tell from what
brokers, operators and clients write.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Hashable, Mapping
from typing import Any

import attrs

from rmq.wire.loosejson import JsonError, parse

#: one side: path below the store's root -> bytes
Files = Mapping[str, bytes]

UNNOTICEABLE = {
    "nothing changed": "the damage wrote what was there before",
    "after the log's end": "recovery stops at the first byte that begins no record; the next append overwrites it",
    "segment made ahead": "brokers make the next segment before they need it, and again when it is not there",
    "behind a BLANK's head": "behind size and magic of its BLANK a segment may hold anything; readers skip it",
    "behind a queue's end": "a queue ends at its first unit without a size; the next unit overwrites what is behind it",
    "unit of a deleted message": "it points before the log; a queue begins at its first unit that does not",
    "queue's end before recovery": "the file abort is there: the next start writes units, and the newest index, again",
    "behind an extension's end": "consume queue units hold the addresses; none leads after the last one",
    "index bytes without meaning": "file name, used-slot count, entry 0, entries behind the count, empty slots: unread",
    "index file's length": "brokers map index files with the configured length, whatever they have on disk",
    "backup of a table": "a .bak file is read only where its main file cannot be",
    "spelling of a table": "white space, order and dataVersion (a change counter) do not change what is loaded",
    "checkpoint after a clean stop": "without the file abort the next start reads the log and not these times",
    "checkpoint that is older": "recovery begins at the same segment or an earlier one, and finds the same",
    "checkpoint bytes without meaning": "brokers of 4.x read 24 bytes of the 4096, those of 5.x 40",
    "abort": "it only chooses how much of the log the next start reads again; its content is a process id",
    "lock": "a broker locks the file, nobody reads it",
    "statistics of 5.x": "counters for tools (transactionMetrics), and the place of compactions where no topic has any",
    "stranger outside of numbered files": "brokers open the files of these folders by name, or skip other names",
}

UNTELLABLE = {
    "a record's only copy": "flag, times, hosts, counters, other properties, or body and its CRC, alike on both sides "
    "or where only one side has the record; nothing in a store repeats them",
    "the log's first segments": "gone on a side, as after retention or on a slave that joined late",
    "the only segment's length": "alike on both sides; no other file tells what mappedFileSizeCommitLog was",
    "every index file": "gone on both sides, as with messageIndexEnable=false",
    "the last units": "of a queue, after everything that any queue of the store has: as before they are dispatched",
    "the other side's records": "a side that was behind holds what the other one has: it may have caught up",
    "the unit of half a record": "the record at the end of a killed slave's log, which recovery cuts off with its unit",
    "a filter bitmap": "a broker computed its bits from the filters that consumers had then",
    "a setting's only copy": "perm, queue counts, retries, alike on both sides or on one that lags: it may be meant",
    "a table that the slave copies later": "the slave lacks entries of its master's table, or the table, as before "
    "every copy",
    "an offset that may be committed": "of a group or delay level, within its queue, or none: consumers commit what "
    "they like, and a slave's are older",
    "a table that clients fill": "filters, orders, modes and mappings: whatever can be loaded may be meant",
    "a checkpoint that may be": "its times are not after the last message's",
}

_RECORD_MAGICS = (0xDAA320A7, 0xDAA320AB)
_BLANK_MAGIC = bytes.fromhex("cbd43194")
#: what the brokers of the golden stores were configured with
SEGMENT_BYTES, QUEUE_FILE_BYTES = 65_536, 2000
_UNIT = struct.Struct(">qiq")
_ENTRY = struct.Struct(">iqii")
_INDEX_HEADER = struct.Struct(">qqqqii")
_EXT_UNIT = struct.Struct(">hqqh")

#: settings that a table of 4.9 does not have
_ONLY_5X = ("attributes", "consumeMessageOrderly", "consumeTimeoutMinute", "groupRetryPolicy", "groupSysFlag")
#: topics that every broker makes at its start, with some others by version
_MADE_AT_START = (
    "TBW102",
    "SELF_TEST_TOPIC",
    "BenchmarkTest",
    "DefaultCluster",
    "broker-a",
    "OFFSET_MOVED_EVENT",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_",
    "rmq_sys_",
    "%SYS%",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)

_NOT_LOADED = ("dataVersion",)


@attrs.define
class Store:
    """
    What a store shows, by what would show it; ``marks`` are the classes of bytes that show nothing: (path, begin,
    end, class).
    """

    shown: dict[tuple[Hashable, ...], Any] = attrs.field(factory=dict)
    marks: list[tuple[str, int, int, str]] = attrs.field(factory=list)
    records: list[tuple[int, int]] = attrs.field(factory=list)
    start: int = 0
    end: int = 0
    last_ms: int = 0
    checkpoint_ms: int = 0
    #: segments and the store times of their first records
    firsts: list[tuple[int, int]] = attrs.field(factory=list)

    def marks_of(self, path: str) -> list[tuple[int, int, str]]:
        """Return the marks of one file: (begin, end, class)."""
        return [(begin, end, which) for name, begin, end, which in self.marks if name == path]


def observe(files: Files) -> Store:
    """Read a store as brokers do."""
    store = Store()
    folders: dict[str, list[str]] = {}
    for path in sorted(files):
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    _see_log(store, files, folders.get("commitlog", []))
    for folder, paths in folders.items():
        kind = folder.partition("/")[0]
        if kind in ("consumequeue", "consumequeue_ext") and folder.count("/") == 2:
            (_see_queue if kind == "consumequeue" else _see_extension)(store, files, folder, paths)
    _see_indexes(store, files, folders.get("index", []))
    for path in folders.get("config", []):
        _see_table(store, path, files[path])
    _see_checkpoint(store, files)
    return store


def _see_lengths(store: Store, files: Files, folder: str, paths: list[str]) -> None:
    """A broker opens every file of these folders: with another name or length than it gave, it does not start."""
    store.shown["files", folder] = [(path, len(files[path])) for path in paths]


def _see_log(store: Store, files: Files, paths: list[str]) -> None:
    """Walk from record to record as recovery does, and keep the bytes up to the end: a slave receives them."""
    expected: int | None = None
    ahead: list[str] = []
    for path in paths:
        name, data = path.rpartition("/")[2], files[path]
        if not name.isdigit() or (ahead and ahead[0] != path) or expected not in (None, int(name)):
            continue
        if expected is None:
            store.start = int(name)
        if ahead:
            # of a killed broker the file that it was just making may be empty
            ahead = [path] if len(data) == SEGMENT_BYTES or (not data and "abort" in files) else []
            break
        at = _walk(store, path, data, int(name))
        expected = int(name) + SEGMENT_BYTES
        store.end = int(name) + at
        store.shown["log", path] = data[:at]
        if data[at + 4 : at + 8] == _BLANK_MAGIC:
            store.end = expected
            store.shown["log", path] = data[: at + 8]
            store.marks.append((path, at + 8, len(data), "behind a BLANK's head"))
        else:
            store.marks.append((path, at, len(data), "after the log's end"))
            ahead = [f"commitlog/{expected:020d}"]
    store.marks += [(path, 0, 1 << 62, "segment made ahead") for path in ahead]
    store.marks += [(path, 0, 1 << 62, "after the log's end") for path in paths if ("log", path) not in store.shown]
    _see_lengths(store, files, "commitlog", [path for path in paths if path not in ahead])


def _walk(store: Store, path: str, data: bytes, begin: int) -> int:
    at = 0
    while at + 91 <= len(data):
        size, magic, crc = struct.unpack_from(">III", data, at)
        if magic not in _RECORD_MAGICS or not 91 <= size <= len(data) - at:
            break
        (sys_flag,) = struct.unpack_from(">i", data, at + 36)
        body_at = at + 88 + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        (length,) = struct.unpack_from(">i", data, body_at - 4)
        if not 0 <= length <= at + size - body_at:
            break
        if length and zlib.crc32(data[body_at : body_at + length]) & 0x7FFFFFFF != crc:
            break
        if not data[at + size - 1]:
            break  # its properties never arrived
        store.records.append((begin + at, size))
        (store.last_ms,) = struct.unpack_from(">q", data, at + 56 + 12 * (sys_flag >> 4 & 1))
        if at == 0:
            store.firsts.append((begin, store.last_ms))
        at += size
    return at


def _see_queue(store: Store, files: Files, folder: str, paths: list[str]) -> None:
    """The units from the first that points into the log to the first without a size are what consumers can read."""
    units: list[tuple[int, bytes]] = []
    begin = expected = None
    ended = stopped = False
    ahead: list[str] = []
    for path in paths:
        name = path.rpartition("/")[2]
        if not name.isdigit() or (expected is not None and int(name) != expected):
            ended = True
        data = files[path]
        if ended:
            # recovery deletes whole files after the end
            if stopped and name.isdigit() and len(name) == 20 and int(name) >= (expected or 0):
                ahead += [path] * (len(data) == QUEUE_FILE_BYTES)
            store.marks.append((path, 0, 1 << 62, "behind a queue's end"))
            continue
        begin = int(name) if begin is None else begin
        expected = int(name) + len(data)
        for at in range(0, len(data) - len(data) % 20, 20):
            phy, size, _ = _UNIT.unpack_from(data, at)
            if phy < 0 or size <= 0:
                ended = stopped = True
                store.marks.append((path, at, 1 << 62, "behind a queue's end"))
                break
            if phy < store.start:
                store.marks.append((path, at, at + 20, "unit of a deleted message"))
            else:
                units.append(((int(name) + at) // 20, data[at : at + 20]))
            store.shown["queue's end", folder] = (int(name) + at) // 20 + 1
    store.shown["queue", folder] = units
    _see_lengths(store, files, folder, [path for path in paths if path not in ahead])


def _see_extension(store: Store, files: Files, folder: str, paths: list[str]) -> None:
    """Extension units follow each other from the begin of each file to a size of 0 or less."""
    _see_lengths(store, files, folder, paths)
    for path in paths:
        data, at = files[path], 0
        units: list[tuple[bytes, bytes]] = []
        while at + _EXT_UNIT.size <= len(data):
            (size,) = struct.unpack_from(">h", data, at)
            if size < _EXT_UNIT.size or at + size > len(data):
                break
            units.append((data[at : at + _EXT_UNIT.size], data[at + _EXT_UNIT.size : at + size]))
            at += size
        store.shown["extension", path] = [head for head, _ in units]
        store.shown["bitmaps", path] = [bitmap for _, bitmap in units]
        store.marks.append((path, at, 1 << 62, "behind an extension's end"))


def _see_indexes(store: Store, files: Files, paths: list[str]) -> None:
    """What look-ups by key find: the chain of every hash slot, as far as it leads to messages that are there."""
    seen = []
    for path in paths:
        data = files[path]
        base = path.rpartition("/")[2]
        if not base.isdigit() or len(base) != 17:
            store.marks.append((path, 0, 1 << 62, "stranger outside of numbered files"))
            continue
        slots = 128
        full = 40 + slots * 4 + 400 * 20
        store.marks.append((path, full, 1 << 62, "index file's length"))
        used = data.ljust(full, b"\0")[:full]
        begin_ms, end_ms, begin_phy, end_phy, _, count = _INDEX_HEADER.unpack_from(used)
        chains = []
        for slot in range(slots):
            chains.append(_chain(store, used, slots, slot, count, begin_ms))
        if any(chains):
            seen.append((begin_ms, end_ms, begin_phy, end_phy, count, chains))
        store.marks.append((path, 0, full, "index bytes without meaning"))
    # who finds a message twice has found it
    store.shown["index",] = sorted({repr(one) for one in seen})


def _chain(store: Store, data: bytes, slots: int, slot: int, count: int, begin_ms: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    (number,) = struct.unpack_from(">i", data, 40 + slot * 4)
    seen = set()
    while 0 < number <= count and number not in seen:
        seen.add(number)
        at = 40 + slots * 4 + number * 20
        if at + 20 > len(data):
            break
        key_hash, phy, seconds, before = _ENTRY.unpack_from(data, at)
        if seconds < 0:
            break
        if key_hash % slots == slot and store.start <= phy < store.end:
            found.append((key_hash, phy, seconds))
        number = before
    return found


def _see_table(store: Store, path: str, data: bytes) -> None:
    name = path.rpartition("/")[2]
    if name.endswith(".bak"):
        store.marks.append((path, 0, 1 << 62, "backup of a table"))
    elif name == "transactionMetrics":
        store.marks.append((path, 0, 1 << 62, "statistics of 5.x"))
    elif name in _TABLES:
        store.marks.append((path, 0, 1 << 62, "spelling of a table"))
        store.shown["table", name] = table_of(data)
    else:
        store.marks.append((path, 0, 1 << 62, "stranger outside of numbered files"))


_TABLES = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "messageRequestMode.json",
    "topicQueueMapping.json",
)


def table_of(data: bytes) -> Any:
    """Return what a broker loads of a table; text that says why it cannot."""
    try:
        values = parse(data.decode("utf-8"))
    except (UnicodeDecodeError, JsonError):
        return "cannot be loaded"
    if not isinstance(values, dict):
        return "cannot be loaded"
    return {name: value for name, value in values.items() if name not in _NOT_LOADED}


def explain(key: tuple[Hashable, ...], side: str, was: Mapping[str, Store], now: Mapping[str, Store]) -> str | None:
    """Return the class of UNTELLABLE that a change of one side belongs to; None where the bytes give it away."""
    other = "slave" if side == "master" else "master"
    before, after = was[side].shown.get(key), now[side].shown.get(key)
    if key == ("files", "commitlog"):
        grown = after is not None and len(after) == 1 == len(before or ()) and after == now[other].shown.get(key)
        return "the only segment's length" if grown and after is not None and after[0][1] > SEGMENT_BYTES else None
    if key[0] == "index" and not after and not now[other].shown.get(key):
        return "every index file"
    if key[0] == "bitmaps" and [len(one) for one in after or ()] == [len(one) for one in before or ()]:
        return "a filter bitmap"
    if key[0] in ("queue", "queue's end", "files") and _is_undispatched(str(key[1]), was[side], now[side]):
        return "the last units"
    if key[0] == "queue" and before and after and len(before) == len(after):
        wrong = [one for one, fresh in zip(before, after, strict=True) if one != fresh]
        if all(_UNIT.unpack(unit)[0] == was[side].end for _, unit in wrong):
            return "the unit of half a record"
    if key[0] == "log" and after == now[other].shown.get(key) == was[other].shown.get(key):
        return "the other side's records" if was[side].end < was[other].end else None
    if key[0] == "log":
        return "a record's only copy" if _only_copies(before, after, now[other].shown.get(key)) else None
    if key[0] == "checkpoint":
        return "a checkpoint that may be" if now[side].checkpoint_ms <= now[side].last_ms else None
    if key[0] != "table":
        return None
    name = str(key[1])
    if name in ("topics.json", "subscriptionGroup.json"):
        return _explain_settings(name, side, before, now[side], now[other])
    if name == "consumerOffset.json":
        return _explain_offsets(after, now[side])
    if name == "delayOffset.json":
        return _explain_delays(side, after, now)
    if after is None or (isinstance(after, dict) and isinstance(before, dict) and after.keys() >= before.keys()):
        return "a table that clients fill"
    return None


def _is_undispatched(folder: str, was: Store, now: Store) -> bool:
    """Whether a queue lacks units at its end only, and no queue has one for a later record."""
    before, after = was.shown.get(("queue", folder), []), now.shown.get(("queue", folder), [])
    if len(after) >= len(before) or before[: len(after)] != after:
        return False
    units = [unit for key, value in now.shown.items() if key[0] == "queue" for _, unit in value]
    last = max((_UNIT.unpack(unit)[0] for unit in units), default=-1)
    files, left = was.shown.get(("files", folder), []), now.shown.get(("files", folder), [])
    return bool(last < _UNIT.unpack(before[len(after)][1])[0] and files[: len(left)] == left)


def _only_copies(before: bytes | None, after: bytes | None, twin: bytes | None) -> bool:
    """Whether all records are where they were, and the changed ones differ in nothing that has a second copy."""
    if before is None or after is None or len(before) != len(after):
        return False
    at = 0
    while at < len(before):
        (size,) = struct.unpack_from(">I", before, at)
        blank = before[at + 4 : at + 8] == _BLANK_MAGIC
        size = 8 if blank else size
        one, fresh = before[at : at + size], after[at : at + size]
        if one != fresh:
            alone = twin is None or len(twin) <= at or twin[at : at + size] == fresh
            try:
                if blank or not alone or _repeated(one) != _repeated(fresh):
                    return False
            except struct.error:
                return False
        at += size
    return True


def _repeated(raw: bytes) -> Any:
    """
    Return what of a record stands elsewhere too: its place, its queue, its kind, its keys and tags.
    """
    size, magic, _, queue_id = struct.unpack_from(">IIIi", raw)
    queue_offset, phy, sys_flag = struct.unpack_from(">qqi", raw, 20)
    at = 88 + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    at += struct.unpack_from(">i", raw, at - 4)[0]
    width = ">B" if magic == _RECORD_MAGICS[0] else ">h"
    (length,) = struct.unpack_from(width, raw, at)
    at += struct.calcsize(width)
    topic, properties = raw[at : at + length], raw[at + length + 2 :]
    (stated,) = struct.unpack_from(">h", raw, at + length)
    pairs = [one.split(b"\1", 1) for one in properties.split(b"\2")]
    kept = {one[0]: one[1] for one in pairs if len(one) == 2 and one[0] in (b"TAGS", b"KEYS", b"UNIQ_KEY")}
    # a committed half is a message like any other; halves and rollbacks have no unit
    kind = sys_flag & (16 | 32), sys_flag & 12 in (0, 8)
    return size, magic, queue_id, queue_offset, phy, kind, topic, stated == len(properties), kept


def _explain_settings(name: str, side: str, before: Any, mine: Store, other: Store) -> str | None:
    key: tuple[Hashable, ...] = ("table", name)
    member = {"topics.json": "topicConfigTable"}.get(name, "subscriptionGroupTable")
    after, twin = mine.shown.get(key), other.shown.get(key)
    if after is None:
        # groups have a file only when one was made; a slave copies the delay offsets after the topics
        copied = side == "master" or ("table", "delayOffset.json") in mine.shown or _has_backup(mine)
        return None if name == "topics.json" and copied else "a table that the slave copies later"
    if not isinstance(after, dict) or not isinstance(after.get(member), dict) or not isinstance(before, dict):
        return None
    table, old = after[member], before.get(member, {})
    for entry, one in table.items():
        shape: dict[str, Any] = old.get(entry) or next(iter(old.values()), {})
        shape = {each: value for each, value in shape.items() if each not in _ONLY_5X}
        named = isinstance(one, dict) and entry == one.get("topicName", one.get("groupName"))
        if not named or any(type(one.get(each)) is not type(value) for each, value in shape.items()):
            return None
        if one.get("topicFilterType", "SINGLE_TAG") not in ("SINGLE_TAG", "MULTI_TAG"):
            return None
    if mine.end != other.end or not isinstance(twin, dict) or twin.get(member) == table:
        return "a setting's only copy" if _reachable(name, side, table, mine) else None
    theirs = twin.get(member)
    if side == "slave" and isinstance(theirs, dict) and all(theirs.get(each) == one for each, one in table.items()):
        return "a table that the slave copies later"
    if isinstance(theirs, dict) and side == "master" and _same_settings(table, theirs):
        return "a setting's only copy" if _reachable(name, side, table, mine) else None
    return None


def _has_backup(store: Store) -> bool:
    names = ("config/topics.json.bak", "config/delayOffset.json.bak")
    return any(path in names for path, *_ in store.marks)


def _same_settings(master: Mapping[str, Any], slave: Mapping[str, Any]) -> bool:
    """Whether the slave has nothing that contradicts its master, in what both of their versions write."""
    return all(
        each.startswith(_MADE_AT_START)
        if each not in master
        else all(master[each].get(member, value) == value for member, value in one.items())
        for each, one in slave.items()
    )


def _reachable(name: str, side: str, table: Mapping[str, Any], store: Store) -> bool:
    """Whether every topic with queues is configured, on a side that makes topics."""
    if name != "topics.json" or side == "slave":
        return True
    topics = {str(key[1]).split("/")[1] for key, units in store.shown.items() if key[0] == "queue" and units}
    return all(topic in table or topic.startswith(_MADE_AT_START) for topic in topics)


def _explain_offsets(after: Any, store: Store) -> str | None:
    if after is None:
        return "an offset that may be committed"
    table = after.get("offsetTable") if isinstance(after, dict) else None
    if not isinstance(table, dict):
        return None
    for entry, queues in table.items():
        topic, mark, _ = entry.partition("@")
        if not mark or not isinstance(queues, dict):
            return None
        topic = entry.rpartition("@")[0]
        known = any(key[0] == "queue" and str(key[1]).split("/")[1] == topic for key in store.shown)
        for queue_id, offset in queues.items():
            end = store.shown.get(("queue's end", f"consumequeue/{topic}/{queue_id}"), 0)
            if not str(queue_id).isdecimal() or type(offset) is not int or offset < 0 or (known and offset > end):
                return None
    return "an offset that may be committed"


def _explain_delays(side: str, after: Any, now: Mapping[str, Store]) -> str | None:
    if after is None:
        return "an offset that may be committed"
    table = after.get("offsetTable") if isinstance(after, dict) else None
    if not isinstance(table, dict):
        return None
    for level, offset in table.items():
        if not str(level).isdecimal() or type(offset) is not int or offset < 0:
            return None
        if offset > now[side].shown.get(("queue's end", f"consumequeue/SCHEDULE_TOPIC_XXXX/{int(level) - 1}"), 0):
            return None
    masters = now["master"].shown.get(("table", "delayOffset.json")) or {}
    slaves = now["slave"].shown.get(("table", "delayOffset.json")) or {}
    ours, theirs = (one.get("offsetTable", {}) if isinstance(one, dict) else {} for one in (masters, slaves))
    if now["master"].end == now["slave"].end and any(offset > ours.get(level, 0) for level, offset in theirs.items()):
        return None
    return "an offset that may be committed"


def _see_checkpoint(store: Store, files: Files) -> None:
    for path in ("lock", "abort", "abort.bak"):
        store.marks.append((path, 0, 1 << 62, path.removesuffix(".bak")))
    for path in files:
        if path.startswith("compaction/"):
            store.marks.append((path, 0, 1 << 62, "statistics of 5.x"))
        elif "/" not in path and path not in ("lock", "abort", "abort.bak", "checkpoint"):
            store.marks.append((path, 0, 1 << 62, "stranger outside of numbered files"))
    data = files.get("checkpoint", b"").ljust(4096, b"\0")
    store.marks.append(("checkpoint", 40, 1 << 62, "checkpoint bytes without meaning"))
    if "abort" not in files:
        store.marks.append(("checkpoint", 0, 40, "checkpoint after a clean stop"))
    else:
        store.marks.append(("checkpoint", 0, 40, "checkpoint that is older"))
        physic_ms, logics_ms, _ = struct.unpack_from(">qqq", data)
        store.checkpoint_ms = max(physic_ms, logics_ms)
        safe_ms = max(0, min(physic_ms, logics_ms) - 3000)
        firsts = [one for one in store.firsts if one[1] <= safe_ms]
        store.shown["checkpoint",] = max(firsts, default=(store.start, 0))[0]


@attrs.frozen(kw_only=True)
class Judgement:
    """
    What a damage means: ``noticed`` is what shows it and is given away by the bytes; ``untellable`` and
    ``unnoticeable`` are the classes of the rest.
    """

    noticed: list[str]
    untellable: set[str]
    unnoticeable: set[str]


def judge(before: Mapping[str, Files], was: Mapping[str, Store], after: Mapping[str, Files]) -> Judgement:
    """Hold a damaged pair against the undamaged one, by side; ``was`` is what that shows."""
    now = {side: observe(files) for side, files in after.items()}
    noticed: list[str] = []
    untellable: set[str] = set()
    unnoticeable: set[str] = set()
    for side in before:
        kept = _without_first_segments(before[side], after[side])
        if kept is not None:
            untellable.add("the log's first segments")
            was = {**was, side: observe(kept)}
        shown, classes = _differences(kept or before[side], was[side], after[side], now[side])
        unnoticeable |= classes
        for key in shown:
            which = explain(key, side, was, now)
            if which is None:
                noticed.append(" ".join(map(str, (side, *key))))
            else:
                untellable.add(which)
    return Judgement(noticed=noticed, untellable=untellable, unnoticeable=unnoticeable or {"nothing changed"})


def _without_first_segments(before: Files, after: Files) -> Files | None:
    """Return the undamaged side without the segments that are gone, if they are the first ones; None if none are."""
    segments = sorted(path for path in before if path.startswith("commitlog/"))
    gone = [path for path in segments if path not in after]
    if not gone or gone != segments[: len(gone)] or len(gone) == len(segments):
        return None
    return {path: data for path, data in before.items() if path not in gone}


def _differences(before: Files, was: Store, after: Files, now: Store) -> tuple[list[tuple[Hashable, ...]], set[str]]:
    """
    Return what shows a change of one side, and the classes of bytes that changed.

    A changed byte of no class is shown as ("byte", path, position).
    """
    shown = [key for key in was.shown.keys() | now.shown.keys() if was.shown.get(key) != now.shown.get(key)]
    if now.shown.get(("checkpoint",), 0) < was.shown.get(("checkpoint",), 0):
        shown.remove(("checkpoint",))
    classes: set[str] = set()
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one == other:
            continue
        one, other = one or b"", other or b""
        positions = [at for at in range(min(len(one), len(other))) if one[at] != other[at]]
        if len(one) != len(other) or not positions:
            positions.append(min(len(one), len(other)))
        marks = was.marks_of(path) + now.marks_of(path)
        for at in positions:
            which = next((which for begin, end, which in marks if begin <= at < end), None)
            if which is not None:
                classes.add(which)
            elif not shown:
                shown.append(("byte", path, at))
    if "abort" in after and any(_is_refilled(key, was, now) for key in shown):
        shown = [key for key in shown if not _is_refilled(key, was, now)]
        classes.add("queue's end before recovery")
    return sorted(shown, key=repr), classes


def _is_refilled(key: tuple[Hashable, ...], was: Store, now: Store) -> bool:
    """Whether only units at the end of a queue are gone, whole files, or the newest index file's."""
    if key[0] == "index":
        entries, kept = was.shown.get(key, []), now.shown.get(key, [])
        return len(entries) - 1 <= len(kept) <= len(entries) and bool(kept[: len(entries) - 1] == entries[:-1])
    if key[0] == "files" and str(key[1]).startswith("consumequeue/"):
        files, left = was.shown.get(key, []), now.shown.get(key, [])
        return bool(files[: len(left)] == left)
    if key[0] not in ("queue", "queue's end"):
        return False
    one, other = was.shown.get(("queue", key[1]), []), now.shown.get(("queue", key[1]), [])
    return len(other) < len(one) and one[: len(other)] == other
