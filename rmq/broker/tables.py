"""
Tables that a broker keeps as JSON below ``config/``: named entries and a version.

Files are standard JSON that Apache's fastjson reads, and we read Apache's (integer keys without quotes included).
Unknown members, such as 5.x's ``attributes``, are written back as they were read.

A change counts at once and is written while the reactor goes on; who must not answer before asks
:meth:`VersionedTable.saved`. What changes during a write is in the next one, however much it is (group commit).

Of a small table the whole file is written. In a large one (JOURNAL_FROM_ENTRIES) a changed entry costs one line in a
journal beside the file, ``topics.json.journal``; it is folded into the file within seconds
(:meth:`VersionedTable.fold`), at a stop and at a start; then there is none.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.runtime.clock import map_in_turns, now_ms, slices_of
from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.disk.statefile import read_state, write_state_soon
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion

C = TypeVar("C", bound=msgspec.Struct)
W = TypeVar("W", bound=msgspec.Struct)


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

    @classmethod
    def of(cls, before: DataVersion, after: DataVersion, name: str, entry: msgspec.Struct | None) -> JournalLine:
        return cls(before=before, after=after, name=name, entry=msgspec.Raw(msgspec.json.encode(entry)))

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


@attrs.frozen(eq=False)
class _Waiting:
    """Who waits until so many changes are durable; ``in_file``: without the journal."""

    changes: int
    in_file: bool
    done: Deferred[None] = attrs.field(init=False, factory=Deferred)


class VersionedTable(Generic[C, W]):
    """
    Named entries, their version, and the file they live in.

    Entries are values: to change one, put another. No change fails: what the disk refuses is in memory, is written with
    the next change or :meth:`fold`, and is an error for who waits for :meth:`saved`.
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
        self._journal_path = f"{self.path}.journal"
        self._has_journal = False
        #: where its next line goes
        self._journal_end = 0
        #: what file and journal lack, as the journal has it; None when only the whole file will do
        self._lines: list[tuple[DataVersion, DataVersion, str, C | None]] | None = None
        #: how many changes there were, and how many of them file and journal have
        self._changes = self._saved = 0
        self._waiting: list[_Waiting] = []
        self._is_saving = False
        self._is_late = False

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

    # changes

    def put(self, entry: C) -> None:
        """Add an entry or change it; counts as a change even if it is equal."""
        name = self._shape.name_of(entry)
        self._entries[name] = entry
        self._changed([name])

    def delete(self, name: str) -> bool:
        """Remove an entry; False when there was none."""
        if self._entries.pop(name, None) is None:
            return False
        self._strange.forget(name)
        self._changed([name])
        return True

    def add_missing(self, entries: Iterable[C]) -> list[str]:
        """Add the entries whose names are missing, in one change, and return those names."""
        missing = {self._shape.name_of(entry): entry for entry in entries}
        missing = {name: entry for name, entry in missing.items() if name not in self._entries}
        if missing:
            self._entries.update(missing)
            self._changed(list(missing))
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
        self._entries, self._strange = entries, strange
        self._lines = None  # members that are not in entries may have changed, too
        self._changed([], version)

    def _changed(self, names: Sequence[str], version: DataVersion | None = None) -> None:
        """Begin to write a change of these entries."""
        before, self.data_version = self.data_version, version or next_version(self.data_version, now_ms(self._clock))
        if self._lines is not None and len(names) == 1:
            self._lines.append((before, self.data_version, names[0], self._entries.get(names[0])))
        else:
            self._lines = None
        self._changes += 1
        self._save_soon()

    # the file

    def load(self) -> None:
        """
        Read the file, or its ``.bak``; without either the table does not change.

        Raises StateFileError when neither can be read.
        """
        found = read_state(self._disk, self.path, self._parse)
        if found is not None:
            self._strange, (self.data_version, self._entries) = found[0], self._shape.unwrap(found[1])
            self._lines = []
        if self._disk.exists(self._journal_path):
            self._has_journal, self._lines = True, None  # its end may be torn
            self._changes += 1  # and not durable, if the last process was killed during its fsync
            self._load_journal()
            self.fold().addErrback(lambda _: None)  # in the log

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

    @property
    def is_in_file(self) -> bool:
        """Whether the file has everything, without the journal."""
        return self._saved == self._changes and not self._has_journal

    def saved(self) -> Deferred[None]:
        """Fire when every change so far is durable; DiskError: it is in memory only."""
        return succeed(None) if self._saved == self._changes else self._wait(in_file=False)

    def fold(self) -> Deferred[None]:
        """As :meth:`saved`; the file then has every change so far."""
        return succeed(None) if self.is_in_file else self._wait(in_file=True)

    def encode(self) -> bytes:
        """Return what the file has when everything is in it."""
        return self._around(self.data_version, [self._piece(one) for one in self._slices()])

    def _wait(self, *, in_file: bool) -> Deferred[None]:
        waiting = _Waiting(self._changes, in_file)
        self._waiting.append(waiting)
        self._save_soon()
        return waiting.done

    def _save_soon(self) -> None:
        if not self._is_saving:
            self._is_saving = True
            Deferred.fromCoroutine(self._save()).addErrback(self._broken)

    async def _save(self) -> None:
        """Write until the disk has everything, or refuses."""
        try:
            while self._saved != self._changes or self._waiting:
                await self._save_once()
        except DiskError as error:
            if not self._is_late:
                self._log.error(
                    "{path} cannot be written, its last changes are in memory only until it can: {error}",
                    path=self.path,
                    error=error,
                )
            self._is_late = True
            self._failed(Failure(error))
        else:
            self._is_saving = self._is_late = False

    async def _save_once(self) -> None:
        """Make durable what the table is now."""
        changes, lines, self._lines = self._changes, self._lines, []
        in_file = (
            lines is None
            or len(self._entries) < JOURNAL_FROM_ENTRIES
            or self._journal_end > MAX_JOURNAL_BYTES
            or any(one.in_file for one in self._waiting)
        )
        if in_file or lines is None:
            await self._write()
        else:
            await self._append(b"".join(JournalLine.of(*line).encode() for line in lines))
        self._saved = changes
        waiting, self._waiting = self._waiting, []
        done: list[_Waiting] = []
        for one in waiting:
            is_done = one.changes <= changes and (in_file or not one.in_file)
            (done if is_done else self._waiting).append(one)
        for one in done:
            one.done.callback(None)

    async def _write(self) -> None:
        """Replace the file; the journal, which it then has, goes."""
        version = self.data_version
        pieces = await map_in_turns(self._clock, self._piece, self._slices())
        await write_state_soon(self._disk, self.path, self._around(version, pieces))
        if self._has_journal:
            # Should it come back after a power failure: the file has its last version.
            self._disk.delete(self._journal_path)
            self._has_journal, self._journal_end = False, 0

    async def _append(self, lines: bytes) -> None:
        """Write lines to the journal."""
        is_new = not self._has_journal
        if is_new:
            self._disk.delete(self._journal_path)
            self._has_journal = True
        file = self._disk.create_sparse(self._journal_path, 0) if is_new else self._disk.open(self._journal_path)
        try:
            file.write_at(self._journal_end, lines)
            await file.sync()
        finally:
            file.close()
        if is_new:
            await self._disk.sync_dir_soon(os.path.dirname(self._journal_path))
        self._journal_end += len(lines)

    def _broken(self, failure: Failure) -> None:
        self._log.failure("a bug in writing a table", failure)
        self._failed(failure)

    def _failed(self, failure: Failure) -> None:
        self._lines = None  # the journal may have half of them
        self._is_saving = False
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.done.errback(failure)

    def _slices(self) -> list[dict[str, C]]:
        """Cut the entries into what one turn of the reactor writes."""
        return [dict(one) for one in slices_of(list(self._entries.items()), ENTRIES_AT_ONCE)]

    def _piece(self, entries: dict[str, C]) -> bytes:
        """Return the lines of some entries in the file."""
        members = self._strange.added_to(self._shape.wrap(self.data_version, entries))
        table = {self._shape.member: members[self._shape.member]}
        return msgspec.json.format(msgspec.json.encode(table), indent=1)[len(self._head) : -len(_TAIL)]

    @property
    def _head(self) -> bytes:
        return b'{\n "%b": {\n' % self._shape.member.encode()

    def _around(self, version: DataVersion, pieces: Sequence[bytes]) -> bytes:
        """Return the file of a version with these entries."""
        members = self._strange.added_to(self._shape.wrap(version, {}))
        around = msgspec.json.format(msgspec.json.encode(members), indent=1)
        if pieces:
            before, empty, behind = around.partition(b'\n "%b": {}' % self._shape.member.encode())
            around = b"".join((before, empty[:-1], b"\n", b",\n".join(pieces), b"\n }", behind))
        return around

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
