"""
Tables that a broker keeps as JSON below ``config/``: named entries and a version.

Files are standard JSON that Apache's fastjson reads, and we read Apache's (integer keys without quotes included).
Unknown members, such as 5.x's ``attributes``, are written back as they were read.

A change of a small table writes the whole file. In a large one (JOURNAL_FROM_ENTRIES) a changed entry costs one line in
a journal beside the file, ``topics.json.journal``; it is folded into the file within seconds
(:meth:`VersionedTable.fold`), at a stop and at a start; then there is none.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import map_in_turns, now_ms, slices_of
from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.disk.statefile import read_state, write_state
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion

C = TypeVar("C", bound=msgspec.Struct)
W = TypeVar("W", bound=msgspec.Struct)

#: Called with the names of the entries that were put, deleted or replaced.
ChangeListener = Callable[[Sequence[str]], None]


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """
    Return the next version of a table; its timestamp never decreases, even if the clock does.

    Java: DataVersion#nextVersion
    """
    return DataVersion(counter=version.counter + 1, timestamp=max(now_ms, version.timestamp))


@attrs.frozen(kw_only=True)
class Shape(Generic[C, W]):
    """Where a table's entries are in the wrapper that is its file and its wire form."""

    file_name: str
    wrapper: type[W]
    entry: type[C]
    #: the wrapper's field that holds the entries, and its name in the file
    table: str
    member: str
    #: the field of an entry with its name
    name: str
    #: other members that brokers send each other and that are not in files
    wire_only: frozenset[str] = frozenset()

    def wrap(self, version: DataVersion, entries: dict[str, C]) -> W:
        return self.wrapper(data_version=version, **{self.table: entries})

    def unwrap(self, wrapper: Any) -> tuple[DataVersion, dict[str, C]]:
        """Return version and entries, each with its name inside: some files have it only as the key."""
        given: Mapping[str, C] = getattr(wrapper, self.table)
        return wrapper.data_version, {name: self._named(entry, name) for name, entry in given.items()}

    def name_of(self, entry: C) -> str:
        name: str = getattr(entry, self.name)
        return name

    def _named(self, entry: C, name: str) -> C:
        return entry if self.name_of(entry) == name else msgspec.structs.replace(entry, **{self.name: name})


#: the end of a file behind its last entry
_TAIL = b"\n }\n}"
#: smaller tables are written whole: Apache's broker and tools, which read no journal, find all of them at any moment
JOURNAL_FROM_ENTRIES = 1000
#: so many entries are written in one turn of the reactor
ENTRIES_AT_ONCE = 500
#: a longer journal is folded at once
MAX_JOURNAL_BYTES = 16 << 20


class JournalLine(msgspec.Struct):
    """One change: the version of the table before and after it, the entry's name, the entry (null: deleted)."""

    before: DataVersion
    after: DataVersion
    name: str
    entry: msgspec.Raw

    def encode(self) -> bytes:
        """Return CRC-32 in hexadecimal digits, a blank, JSON and a line feed."""
        data = msgspec.json.encode(self)
        return b"%08x %b\n" % (zlib.crc32(data), data)


def read_journal(data: bytes) -> Iterator[JournalLine]:
    """Yield the lines that continue each other; a torn one, which no answer promised, ends them."""
    last: DataVersion | None = None
    for line in data.split(b"\n"):
        crc, _, body = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(body):
            return
        change = msgspec.json.decode(body, type=JournalLine)
        if last is not None and change.before != last:
            return  # left from an earlier journal in this place
        last = change.after
        yield change


class VersionedTable(Generic[C, W]):
    """
    Named entries, their version, and the file they live in.

    A change is on disk before it counts: when ``put``, ``delete``, ``replace`` or ``add_missing`` raises DiskError,
    nothing has changed. Entries are values: to change one, put another.
    """

    _log = Logger()

    def __init__(self, shape: Shape[C, W], disk: Disk, directory: str, clock: IReactorTime) -> None:
        self.path = os.path.join(directory, shape.file_name)
        self._shape = shape
        self._disk = disk
        self._clock = clock
        #: the version of the table, another object after every change
        self.data_version = DataVersion(counter=0, timestamp=now_ms(clock))
        self._entries: dict[str, C] = {}
        self._strange = StrangeMembers(shape.wrapper, shape.entry, shape.member)
        self._listeners: list[ChangeListener] = []
        self._journal_path = f"{self.path}.journal"
        #: where the next line goes; 0 while there is no journal
        self._journal_end = 0
        #: the version that file and journal have; None while they lack something
        self._saved: DataVersion | None = None
        #: how often the file was written
        self._saves = 0
        self._is_fold_late = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        return sorted(self._entries)

    def get(self, name: str) -> C | None:
        """Return an entry; None when there is none."""
        return self._entries.get(name)

    def snapshot(self) -> W:
        """Return a copy of version and entries."""
        return self._shape.wrap(self.data_version, dict(self._entries))

    def on_change(self, listener: ChangeListener) -> None:
        """Have ``listener`` called after each change."""
        self._listeners.append(listener)

    def load(self) -> None:
        """
        Read the file, or its ``.bak``; without either the table does not change.

        Raises StateFileError when neither can be read.
        """
        found = read_state(self._disk, self.path, self._parse)
        if found is not None:
            self._strange, (self.data_version, self._entries) = found[0], self._shape.unwrap(found[1])
        if self._disk.exists(self._journal_path):
            self._load_journal()
            self._save(self.data_version, self._entries)
        elif found is not None:
            self._saved = self.data_version

    def _load_journal(self) -> None:
        """Add what the journal has beyond the file; one that does not continue the file says nothing about it."""
        lines = list(read_journal(self._disk.read_whole(self._journal_path)))
        versions = [line.before for line in lines] + [line.after for line in lines[-1:]]
        if self.data_version not in versions:
            self._log.warn("{path} does not continue {file} and is deleted", path=self._journal_path, file=self.path)
            return
        for line in lines[versions.index(self.data_version) :]:
            entry = msgspec.json.decode(line.entry, type=self._shape.entry | None)
            if entry is None:
                self._entries.pop(line.name, None)
                self._strange.forget(line.name)
            else:
                self._entries[line.name] = entry
            self.data_version = line.after

    def fold(self) -> None:
        """Write the file if the journal, or only memory, has more; what the disk refuses is tried the next time."""
        if self._is_unfolded:
            self._fold(lambda: self._save(self.data_version, self._entries))

    async def fold_in_turns(self) -> None:
        """As :meth:`fold`, in slices: what changes meanwhile stays in the journal, which continues the older file."""
        if not self._is_unfolded:
            return
        version, entries, saves = self.data_version, dict(self._entries), self._saves
        pieces = await map_in_turns(self._clock, self._piece, self._slices(entries))
        if self._saves == saves:  # else the file is newer
            self._fold(lambda: self._write_slices(version, pieces))

    def _write_slices(self, version: DataVersion, pieces: Sequence[bytes]) -> None:
        self._write(version, pieces)
        if version is self.data_version:
            self._delete_journal(version)

    @property
    def _is_unfolded(self) -> bool:
        return self._journal_end != 0 or self._saved != self.data_version

    def _fold(self, write: Callable[[], None]) -> None:
        try:
            write()
        except DiskError as error:
            if not self._is_fold_late:
                self._log.error(
                    "{path} cannot be written, its last changes stay beside it: {error}", path=self.path, error=error
                )
            self._is_fold_late = True
        else:
            self._is_fold_late = False

    def put(self, entry: C) -> None:
        """Add an entry or change it; counts as a change even if it is equal."""
        name = self._shape.name_of(entry)
        version = next_version(self.data_version, now_ms(self._clock))
        self._note(version, name, entry)
        self._entries[name] = entry
        self.data_version = version
        self._notify([name])

    def delete(self, name: str) -> bool:
        """Remove an entry; False when there was none."""
        if name not in self._entries:
            return False
        version = next_version(self.data_version, now_ms(self._clock))
        self._note(version, name, None)
        del self._entries[name]
        self._strange.forget(name)
        self.data_version = version
        self._notify([name])
        return True

    def _note(self, version: DataVersion, name: str, entry: C | None) -> None:
        """Write one change to the journal, or the whole file where it is small or lacks more; DiskError: neither."""
        is_small = len(self._entries) < JOURNAL_FROM_ENTRIES
        if is_small or self._saved != self.data_version or self._journal_end > MAX_JOURNAL_BYTES:
            entries = dict(self._entries)
            if entry is None:
                del entries[name]
            else:
                entries[name] = entry
            self._save(version, entries)
            return
        raw = msgspec.Raw(msgspec.json.encode(entry))
        line = JournalLine(before=self.data_version, after=version, name=name, entry=raw).encode()
        self._saved = None  # a failure may leave half of it
        is_new = self._journal_end == 0
        if is_new:
            self._disk.delete(self._journal_path)
        file = self._disk.create_sparse(self._journal_path, 0) if is_new else self._disk.open(self._journal_path)
        try:
            file.write_at(self._journal_end, line)
            file.sync_now()
        finally:
            file.close()
        if is_new:
            self._disk.sync_dir(os.path.dirname(self._journal_path))
        self._journal_end += len(line)
        self._saved = version

    def add_missing(self, entries: Iterable[C]) -> list[str]:
        """Add the entries whose names are missing, in one change, and return those names."""
        missing = {self._shape.name_of(entry): entry for entry in entries}
        missing = {name: entry for name, entry in missing.items() if name not in self._entries}
        if missing:
            self._change({**self._entries, **missing}, list(missing))
        return list(missing)

    def replace(self, data: bytes) -> None:
        """
        Replace the table by another broker's, version and unknown members included; ValueError if it is invalid.

        An equal version or an empty table changes nothing.
        Java: SlaveSynchronize#syncTopicConfig, #syncSubscriptionGroupConfig
        """
        strange, wrapper = self._parse(data)
        version, entries = self._shape.unwrap(wrapper)
        if not entries:
            raise ValueError("it holds no entries")
        if version == self.data_version:
            return
        strange.forget_at_top(self._shape.wire_only)
        own, self._strange = self._strange, strange
        before = self._entries
        try:
            self._save(version, entries)
        except DiskError:
            self._strange = own
            raise
        self._take(version, entries)
        changed = [name for name in before.keys() | entries.keys() if before.get(name) != entries.get(name)]
        if changed:
            self._notify(sorted(changed))

    def keep(self, entry: C) -> None:
        """
        Add an entry that can be created again at any time: if the disk refuses it, it is saved later.

        A full disk must not keep consumers from joining.
        """
        try:
            self.put(entry)
        except DiskError as error:
            name = self._shape.name_of(entry)
            self._log.error("{name} cannot be saved, it is kept in memory only: {error}", name=name, error=error)
            self._entries[name] = entry
            self.data_version = next_version(self.data_version, now_ms(self._clock))
            self._notify([name])

    def _change(self, entries: dict[str, C], names: Sequence[str]) -> None:
        version = next_version(self.data_version, now_ms(self._clock))
        self._save(version, entries)
        self._take(version, entries)
        self._notify(names)

    def _take(self, version: DataVersion, entries: dict[str, C]) -> None:
        self.data_version, self._entries = version, entries
        self._strange.forget_all_but(entries)

    def _notify(self, names: Sequence[str]) -> None:
        for listener in self._listeners:
            listener(names)

    def _save(self, version: DataVersion, entries: dict[str, C]) -> None:
        """Replace the file; the journal, which it then has, goes."""
        self._saved = None
        self._write(version, [self._piece(one) for one in self._slices(entries)])
        self._delete_journal(version)

    def _slices(self, entries: dict[str, C]) -> list[dict[str, C]]:
        """Cut entries into what one turn of the reactor writes."""
        return [dict(one) for one in slices_of(list(entries.items()), ENTRIES_AT_ONCE)]

    def _piece(self, entries: dict[str, C]) -> bytes:
        """Return the lines of some entries in the file."""
        members = self._strange.added_to(self._shape.wrap(self.data_version, entries))
        table = {self._shape.member: members[self._shape.member]}
        return msgspec.json.format(msgspec.json.encode(table), indent=1)[len(self._head) : -len(_TAIL)]

    @property
    def _head(self) -> bytes:
        return b'{\n "%b": {\n' % self._shape.member.encode()

    def _write(self, version: DataVersion, pieces: Sequence[bytes]) -> None:
        """Replace the file by a version."""
        members = self._strange.added_to(self._shape.wrap(version, {}))
        around = msgspec.json.format(msgspec.json.encode(members), indent=1)
        if pieces:
            before, empty, behind = around.partition(b'\n "%b": {}' % self._shape.member.encode())
            around = b"".join((before, empty[:-1], b"\n", b",\n".join(pieces), b"\n }", behind))
        write_state(self._disk, self.path, around)
        self._saves += 1

    def _delete_journal(self, version: DataVersion) -> None:
        """The file has all up to a version, which is the last one: the journal goes."""
        self._saved = version
        if self._journal_end or self._disk.exists(self._journal_path):
            # Should it come back after a power failure: the file has its last version.
            self._disk.delete(self._journal_path)
            self._journal_end = 0

    def _parse(self, data: bytes) -> tuple[StrangeMembers, W]:
        strange = StrangeMembers(self._shape.wrapper, self._shape.entry, self._shape.member)
        wrapper = fastjson.decode(data, self._shape.wrapper)
        strange.note(fastjson.decode(data, dict[str, Any]))
        return strange, wrapper


class StrangeMembers:
    """Members of a file that our classes do not know: of the whole file, and of each entry."""

    def __init__(self, wrapper: type[msgspec.Struct], entry: type[msgspec.Struct], member: str) -> None:
        self._member = member
        self._known_at_top = frozenset(wrapper.__struct_encode_fields__)
        self._known_in_entry = frozenset(entry.__struct_encode_fields__)
        self._is_sorted = list(entry.__struct_encode_fields__) == sorted(entry.__struct_encode_fields__)
        self._at_top: dict[str, Any] = {}
        self._in_entry: dict[str, dict[str, Any]] = {}

    def note(self, members: Mapping[str, Any]) -> None:
        """Remember the unknown members of a whole file."""
        self._at_top = {key: value for key, value in members.items() if key not in self._known_at_top}
        for name, entry in (members.get(self._member) or {}).items():
            strange = {key: value for key, value in entry.items() if key not in self._known_in_entry}
            if strange:
                self._in_entry[name] = strange

    def forget_at_top(self, names: Container[str]) -> None:
        """Forget unknown members of the whole file."""
        self._at_top = {key: value for key, value in self._at_top.items() if key not in names}

    def forget(self, name: str) -> None:
        """Forget those of a removed entry."""
        self._in_entry.pop(name, None)

    def forget_all_but(self, names: Container[str]) -> None:
        """Forget those of removed entries."""
        self._in_entry = {name: strange for name, strange in self._in_entry.items() if name in names}

    def added_to(self, wrapper: msgspec.Struct) -> dict[str, Any]:
        """Return the members of ``wrapper``, sorted, without nulls, with the unknown ones of its entries."""
        members = {**self._at_top, **_without_nulls(msgspec.to_builtins(wrapper, str_keys=True))}
        entries = members[self._member]
        for name, entry in entries.items():
            # Ten thousand topics need nothing of this.
            if name in self._in_entry or not self._is_sorted or None in entry.values():
                entries[name] = dict(sorted({**self._in_entry.get(name, {}), **_without_nulls(entry)}.items()))
        return dict(sorted(members.items()))


def _without_nulls(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}
