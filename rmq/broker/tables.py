"""
Tables that a broker keeps as JSON below ``config/``: named entries and a version.

Files are standard JSON that Apache's fastjson reads, and we read Apache's (integer keys without quotes included).
Unknown members, such as 5.x's ``attributes``, are written back as they were read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import now_ms
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
        if found is None:
            return
        self._strange, (self.data_version, self._entries) = found[0], self._shape.unwrap(found[1])

    def persist(self) -> None:
        """Write the file if entries were added in memory only; other changes are written at once."""
        self._save(self.data_version, self._entries)

    def put(self, entry: C) -> None:
        """Add an entry or change it; counts as a change even if it is equal."""
        name = self._shape.name_of(entry)
        self._change({**self._entries, name: entry}, [name])

    def delete(self, name: str) -> bool:
        """Remove an entry; False when there was none."""
        if name not in self._entries:
            return False
        self._change({other: entry for other, entry in self._entries.items() if other != name}, [name])
        return True

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
            self._swap(next_version(self.data_version, now_ms(self._clock)), {**self._entries, name: entry}, [name])

    def _change(self, entries: dict[str, C], names: Sequence[str]) -> None:
        version = next_version(self.data_version, now_ms(self._clock))
        self._save(version, entries)
        self._swap(version, entries, names)

    def _swap(self, version: DataVersion, entries: dict[str, C], names: Sequence[str]) -> None:
        self._take(version, entries)
        self._notify(names)

    def _take(self, version: DataVersion, entries: dict[str, C]) -> None:
        self.data_version, self._entries = version, entries
        self._strange.forget_all_but(entries)

    def _notify(self, names: Sequence[str]) -> None:
        for listener in self._listeners:
            listener(names)

    def _save(self, version: DataVersion, entries: dict[str, C]) -> None:
        members = self._strange.added_to(self._shape.wrap(version, entries))
        write_state(self._disk, self.path, msgspec.json.format(msgspec.json.encode(members), indent=1))

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

    def forget_all_but(self, names: Container[str]) -> None:
        """Forget those of removed entries."""
        self._in_entry = {name: strange for name, strange in self._in_entry.items() if name in names}

    def added_to(self, wrapper: msgspec.Struct) -> dict[str, Any]:
        """Return the members of ``wrapper``, sorted, without nulls, with the unknown ones of its entries."""
        members = {**self._at_top, **_without_nulls(msgspec.to_builtins(wrapper, str_keys=True))}
        entries = members[self._member]
        members[self._member] = {
            name: dict(sorted({**self._in_entry.get(name, {}), **_without_nulls(entry)}.items()))
            for name, entry in entries.items()
        }
        return dict(sorted(members.items()))


def _without_nulls(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}
