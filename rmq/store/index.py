"""
All index files of a store, and the hashes of keys.

Java: IndexService
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import now_ms
from rmq.runtime.disk.files import Disk, File
from rmq.store import layout
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.indexfile import IndexFile, IndexHeader
from rmq.store.openfiles import OpenFiles
from rmq.wire.compiled import load as load_compiled
from rmq.wire.record import index_hash, index_key_hash, java_hash

MAX_PREFIXES = 256
#: keyHash, phyOffset and storeTimestamp of an entry that has no file yet
PENDING = struct.Struct("=iqq")
MAX_BLOCKS = 1 << 17
#: entries that wait for the index file to be needed
MAX_PENDING_BYTES = 65_536 * PENDING.size
_31_POW_4 = 31**4
_POWERS = tuple(pow(31, n, 1 << 32) for n in range(256))


@attrs.frozen
class IndexState:
    """How far the newest index file was when everything was synced last; "" without any file."""

    name: str = ""
    header: IndexHeader = attrs.field(factory=IndexHeader)


def index_name(clock_ms: int) -> str:
    """Return the name of an index file made at that time: yyyyMMddHHmmssSSS, local."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(clock_ms // 1000)) + f"{clock_ms % 1000:03d}"


class KeyHasher:
    """
    Hashes of keys as index files keep them.

    A unique key has 32 characters, of which the first 24 are the same for about a minute of one client process: with
    their hash remembered per queue, and those of 4-character blocks in one table, a key costs 0.6 us instead of 4.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, int] = {}

    def unique(self, queue: ConsumeQueue, key: str) -> int:
        """Return ``index_key_hash(queue.topic, key)``."""
        if len(key) != 32:
            return self.key(queue, key)
        prefix = queue.key_prefixes.get(key[:24])
        if prefix is None:
            prefix = self._prefix(queue, key[:24])
        blocks = self._blocks
        try:
            value = ((prefix * _31_POW_4 + blocks[key[24:28]]) * _31_POW_4 + blocks[key[28:]]) & 0xFFFFFFFF
        except KeyError:
            if not key.isascii():
                return index_key_hash(queue.topic, key)
            self._block(key[24:28])
            self._block(key[28:])
            return self.unique(queue, key)
        if value < 0x80000000:
            return value
        return 0x100000000 - value if value > 0x80000000 else 0

    def key(self, queue: ConsumeQueue, key: str) -> int:
        """Return ``index_key_hash(queue.topic, key)`` for any key."""
        if len(key) >= len(_POWERS) or not key.isascii():
            return index_key_hash(queue.topic, key)
        prefix = queue.key_prefixes.get("")
        if prefix is None:
            prefix = self._prefix(queue, "")
        value = (prefix * _POWERS[len(key)] + java_hash(key)) & 0xFFFFFFFF
        return index_hash(value - (1 << 32) if value >> 31 else value)

    def _prefix(self, queue: ConsumeQueue, prefix: str) -> int:
        if len(queue.key_prefixes) >= MAX_PREFIXES:
            queue.key_prefixes.clear()
        value = queue.key_prefixes[prefix] = java_hash(f"{queue.topic}#{prefix}") & 0xFFFFFFFF
        return value

    def _block(self, block: str) -> None:
        if len(self._blocks) >= MAX_BLOCKS:
            self._blocks.clear()
        self._blocks[block] = java_hash(block) & 0xFFFFFFFF


def add_entries_slowly(file: IndexFile, pending: bytes, first: int) -> int:
    """Add entries from number ``first`` of ``pending`` on to a file until it is full; return behind which one."""
    number = first
    while number * PENDING.size < len(pending) and not file.is_full:
        key_hash, phy_offset, store_timestamp = PENDING.unpack_from(pending, number * PENDING.size)
        number += 1
        # Otherwise the file has it already.
        if phy_offset >= file.header.end_phy_offset:
            file.add(key_hash, phy_offset, store_timestamp)
    return number


_compiled = load_compiled("rmq.store._record")
add_entries: Callable[[IndexFile, bytes, int], int] = add_entries_slowly if _compiled is None else _compiled.add_entries
key_hash: Callable[[str, str], int] = index_key_hash if _compiled is None else _compiled.key_hash


class Index:
    """
    The index of all message keys: query by topic and key.

    New entries are visible at once and written by :meth:`write`; what a crash takes is made again from the log.
    """

    _log = Logger()

    def __init__(self, disk: Disk, clock: IReactorTime, root: str, *, slots: int, entries: int) -> None:
        self._disk = disk
        self._clock = clock
        self._dir = layout.index_dir(root)
        self._slots = slots
        self._entries = entries
        self._open = OpenFiles(disk, 16)
        #: there is a file whose name is not synced
        self._has_new_name = False
        #: oldest first; only the last is added to
        self._indexes: list[IndexFile] = []
        #: entries that are not in their file yet, PENDING each; see :meth:`settle`
        self._pending = bytearray()
        self.hasher = KeyHasher()

    @property
    def _list(self) -> list[IndexFile]:
        """The files, with all that was added."""
        if self._pending:
            self.settle()
        return self._indexes

    def extend(self, entries: bytes) -> None:
        """
        Add entries, PENDING bytes each, of messages behind all that are indexed.

        They are kept until many can be added to their file at once, which costs less, or a reader needs the file.
        """
        self._pending += entries
        if len(self._pending) >= MAX_PENDING_BYTES:
            self.settle()

    def settle(self) -> None:
        """Add the pending entries to their file."""
        pending = bytes(self._pending)
        del self._pending[:]
        number, count = 0, len(pending) // PENDING.size
        while number < count:
            last = self._indexes[-1] if self._indexes else None
            if last is None or last.is_full:
                last = self._begin()
            number = add_entries(last, pending, number)

    @property
    def files(self) -> list[IndexFile]:
        """All files, oldest first."""
        return self._list

    @property
    def end_phy_offset(self) -> int:
        """Where the last indexed message begins; -1 without any entry."""
        return self._list[-1].header.end_phy_offset if self._list else -1

    @property
    def end_timestamp(self) -> int:
        """When the last indexed message was stored."""
        return self._list[-1].header.end_timestamp if self._list else 0

    @property
    def synced_timestamp(self) -> int:
        """Store time up to which full files are synced."""
        return max(
            (
                index.header.end_timestamp
                for index in self._list
                if index.is_full and not index.is_dirty and not index.unsynced
            ),
            default=0,
        )

    # ---- loading ----

    def load(self) -> None:
        """Find the files; one of another length, or nonsense in the header, is deleted: it can be made again."""
        size = layout.index_file_bytes(self._slots, self._entries)
        for name in self._disk.list_dir(self._dir):
            path = layout.join(self._dir, name)
            if not layout.is_index_name(name):
                self._log.warn("{path} is no index file and is left alone", path=path)
                continue
            file = self._open.get(path)
            header = IndexHeader.unpack(file.read_at(0, layout.INDEX_HEADER_BYTES)) if file.size == size else None
            if header is None or header.index_count > self._entries:
                self._log.error("index file {path} is damaged or of another size and is deleted", path=path)
                self._open.delete(path)
                continue
            self._list.append(IndexFile(path, self._slots, self._entries, header))

    def drop_after(self, timestamp: int) -> None:
        """Delete the files with messages younger than ``timestamp``: nobody knows whether they are whole."""
        for index in [index for index in self._list if not 0 < index.header.end_timestamp <= timestamp]:
            self._drop(index)

    def drop_all(self) -> None:
        """Delete all files."""
        for index in self._list[:]:
            self._drop(index)

    def go_back(self, state: IndexState) -> None:
        """Return to a state that was synced: later files go, later entries do not count."""
        for index in self._list[:]:
            name = index.path.rpartition("/")[2]
            if name > state.name or (name == state.name and index.header.index_count < state.header.index_count):
                self._drop(index)
            elif name == state.name:
                self._list[self._list.index(index)] = IndexFile(
                    index.path, self._slots, self._entries, attrs.evolve(state.header)
                )

    def cut(self, phy_offset: int) -> None:
        """Drop the entries of messages at ``phy_offset`` and behind."""
        while self._list and self._list[-1].header.end_phy_offset >= phy_offset:
            last = self._list[-1]
            file = self._file(last)
            count = last.last_entry_below(file, phy_offset) if last.header.begin_phy_offset < phy_offset else 1
            if count <= 1:
                self._drop(last)
                continue
            _, phy, seconds, _ = last.entry(file, count - 1)
            header = attrs.evolve(last.header, index_count=count, end_phy_offset=phy)
            header.end_timestamp = header.begin_timestamp + seconds * 1000
            self._list[-1] = IndexFile(last.path, self._slots, self._entries, header)

    def resume(self, *, in_order: bool | None) -> None:
        """Get ready to add to the last file; ``in_order``: nothing that was written is lost but the end, if known."""
        if self._list and not self._list[-1].is_full:
            last = self._list[-1]
            last.resume(self._file(last), in_order=in_order)

    def state(self) -> IndexState:
        """Return where the index stands."""
        if not self._list:
            return IndexState()
        last = self._list[-1]
        return IndexState(last.path.rpartition("/")[2], attrs.evolve(last.header))

    def _drop(self, index: IndexFile) -> None:
        self._list.remove(index)
        self._open.delete(index.path)

    # ---- adding ----

    def add(self, queue: ConsumeQueue, unique_key: str | None, keys: str | None, phy: int, timestamp: int) -> None:
        """Index a message by its unique key and its keys; nothing happens when it is indexed already."""
        if not unique_key and not keys:
            return
        last = self._list[-1] if self._list else None
        if last is None or last.header.index_count >= last.entries:
            last = self._begin()
        if phy < last.header.end_phy_offset:
            return
        if unique_key:
            last.add(self.hasher.unique(queue, unique_key), phy, timestamp)
        if keys:
            for key in keys.split(" "):
                if key:
                    if last.is_full:
                        last = self._begin()
                    last.add(self.hasher.key(queue, key), phy, timestamp)

    def _begin(self) -> IndexFile:
        """Begin a new file; it gets its place on disk with the next :meth:`write`."""
        header = IndexHeader()
        name = index_name(now_ms(self._clock))
        if self._indexes:
            before = self._indexes[-1]
            header.begin_timestamp = header.end_timestamp = before.header.end_timestamp
            header.begin_phy_offset = header.end_phy_offset = before.header.end_phy_offset
            last_name = before.path.rpartition("/")[2]
            if name <= last_name:  # the same millisecond, or a clock that went back: names must ascend
                name = f"{int(last_name) + 1:0{layout.INDEX_NAME_DIGITS}d}"
        index = IndexFile(layout.join(self._dir, name), self._slots, self._entries, header)
        index.begin()
        self._indexes.append(index)
        return index

    @property
    def unwritten_pages(self) -> int:
        """How many pages of slots :meth:`write` would write."""
        return sum(len(index.dirty_pages) for index in self._list)

    def write(self, most_pages: int | None = None) -> None:
        """
        Write what is new; DiskError (a full disk) leaves it for the next time.

        With ``most_pages`` so many pages of slots of each file at most.
        """
        for index in self._list:
            if index.is_dirty:
                index.write(self._file(index), most_pages)

    async def sync(self) -> None:
        """Sync what was written, without blocking; full files then give their memory back."""
        if self._has_new_name:
            self._has_new_name = False
            named: Deferred[None] = self._disk.sync_dir_soon(self._dir)
            await named
        for index in self._list[:]:
            if index.unsynced:
                index.unsynced = False
                synced: Deferred[None] = self._file(index).sync()
                await synced
                self._settled(index)

    def _settled(self, index: IndexFile) -> None:
        if index.is_full and not index.is_dirty:
            index.rest()

    def _file(self, index: IndexFile) -> File:
        if not index.on_disk:
            self._disk.make_dirs(self._dir)
            file = self._open.create(index.path, layout.index_file_bytes(self._slots, self._entries))
            index.on_disk = self._has_new_name = True
            return file
        return self._open.get(index.path)

    # ---- asking, cleaning ----

    def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return up to ``max_count`` physical offsets of messages that may have this key, newest first."""
        hashed = key_hash(topic, key)
        found: list[int] = []
        for index in reversed(self._list):
            if index.covers(begin_ms, end_ms):
                file = self._file(index) if index.on_disk else None
                found += index.find(file, hashed, begin_ms, end_ms, max_count - len(found))
            if index.header.begin_timestamp < begin_ms or len(found) >= max_count:
                break
        return found

    def delete_expired(self, min_phy: int) -> int:
        """Delete files, but for the last, that only point below ``min_phy``; return how many."""
        expired = [index for index in self._list[:-1] if index.header.end_phy_offset < min_phy]
        for index in expired:
            self._drop(index)
        return len(expired)

    def close(self) -> None:
        """Give all files back."""
        self._open.close()
