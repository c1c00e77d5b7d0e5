"""All consume queues of a store.  Java: DefaultMessageStore#consumeQueueTable, #topicQueueTable"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from rmq.runtime.disk.files import Disk, FileSystem
from rmq.store import layout
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.layout import CQ_UNIT_BYTES
from rmq.store.openfiles import OpenFiles
from rmq.store.queueext import QueueExt
from rmq.wire.record import LMQ_PREFIX, MAX_TOPIC_BYTES

Key = tuple[str, int]


def is_storable_topic(topic: str) -> bool:
    """Tell whether a topic can be a folder and fits the record: 1 to 127 bytes, no slash, no NUL, not `.` or `..`."""
    return (
        0 < len(topic.encode("utf-8", "replace")) <= MAX_TOPIC_BYTES
        and "/" not in topic
        and "\0" not in topic
        and topic not in (".", "..")
    )


class QueueTable:
    """Consume queues by (topic, queueId), made on first use."""

    _log = Logger()

    def __init__(self, disk: Disk, root: str, file_bytes: int, *, ext_file_bytes: int | None = None) -> None:
        self._disk = disk
        self._root = root
        self.file_bytes = file_bytes
        #: length of extension files; None without extension
        self._ext_file_bytes = ext_file_bytes
        self._files = OpenFiles(disk, 256)
        self._queues: dict[Key, ConsumeQueue] = {}
        #: how many of them are light message queues
        self.lmq_queues = 0
        #: called with (topic, queueId) when a queue is made
        self.on_made: Callable[[str, int], None] | None = None
        #: queues with buffered units, the first one has waited longest
        self._dirty: deque[ConsumeQueue] = deque()
        #: a queue lacked a file and was emptied
        self.is_broken = False
        #: folders with names that are not synced
        self._new_names: set[str] = set()
        #: what holds all queues; None where each file must be synced
        self._system: FileSystem | None = None

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def keys(self) -> list[Key]:
        return list(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue; None when nothing was ever stored in it."""
        return self._queues.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, empty if it is new. The caller has checked the topic (:func:`is_storable_topic`)."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            folder = layout.consume_queue_dir(self._root, topic, queue_id)
            queue = self._queues[key] = ConsumeQueue(
                self._files, folder, topic, queue_id, self.file_bytes, ext=self._ext(topic, queue_id)
            )
            self.lmq_queues += topic.startswith(LMQ_PREFIX)
            if self.on_made is not None:
                self.on_made(topic, queue_id)
        return queue

    def _ext(self, topic: str, queue_id: int) -> QueueExt | None:
        if self._ext_file_bytes is None:
            return None
        return QueueExt(self._files, layout.consume_queue_ext_dir(self._root, topic, queue_id), self._ext_file_bytes)

    def load(self) -> None:
        """
        Find all queues; StoreError names a file of another length. Folders that are no queue are left alone.

        Afterwards :attr:`is_broken` tells whether some queue lacks a file.
        """
        base = layout.consume_queue_dir(self._root)
        found = []
        self._system = self._disk.file_system(self._root)
        for topic, name, folder in self._folders(base):
            if not (layout.is_queue_name(name) and is_storable_topic(topic)):
                self._log.warn("{path} is no consume queue and is left alone", path=folder)
                continue
            found.append((self.make(topic, int(name)), layout.file_starts(self._disk.list_dir(folder))))
        # All are looked at before any is changed.
        for queue, starts in found:
            queue.check_files(starts)
        if self._ext_file_bytes is not None:
            self._load_ext()
        for queue, starts in found:
            if not queue.load(starts):
                self.is_broken = True

    def _load_ext(self) -> None:
        base = layout.consume_queue_ext_dir(self._root)
        for topic, name, folder in self._folders(base):
            queue = self._queues.get((topic, int(name))) if name.isascii() and name.isdigit() else None
            if queue is None or queue.ext is None:
                self._log.warn("{path} extends no consume queue and is deleted", path=folder)
                self._disk.delete_tree(folder)
                continue
            queue.ext.load(layout.file_starts(self._disk.list_dir(folder)))

    def _folders(self, base: str) -> Iterator[tuple[str, str, str]]:
        """Yield topic, name and path of each folder of the second level; files among them are left alone."""
        for topic in self._disk.list_dir(base):
            if not self._disk.is_dir(layout.join(base, topic)):
                self._log.warn("{path} is no folder of a topic and is left alone", path=layout.join(base, topic))
                continue
            if self._system is not None and not self._system.holds(layout.join(base, topic)):
                self._system.close()
                self._system = None
            for name in self._disk.list_dir(layout.join(base, topic)):
                folder = layout.join(base, topic, name)
                if self._disk.is_dir(folder):
                    yield topic, name, folder
                else:
                    self._log.warn("{path} is no consume queue and is left alone", path=folder)

    @property
    def max_phy(self) -> int:
        """The physical end of the last message that any queue knows; -1 when there is none."""
        return max((queue.max_phy for queue in self), default=-1)

    @property
    def total_units(self) -> int:
        """The sum of all ends: what a clean stop records and the next start compares."""
        return sum(queue.end for queue in self)

    def touched(self, queue: ConsumeQueue) -> None:
        """Note that a queue has buffered units."""
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)

    @property
    def unwritten(self) -> int:
        """How many queues have buffered units."""
        return len(self._dirty)

    def write(self, most: int | None = None) -> None:
        """
        Write all buffered units, or those of ``most`` queues.

        DiskError (a full disk) leaves the rest buffered for the next time.
        """
        for _ in range(len(self._dirty) if most is None else min(most, len(self._dirty))):
            self.write_one(self._dirty[0])
            self._dirty.popleft().dirty = False

    def write_one(self, queue: ConsumeQueue) -> None:
        """Write the buffered units of one queue."""
        if queue.ext is not None:
            # Units must never point at extension units that are not there yet.
            self._write_part(queue.ext, layout.consume_queue_ext_dir(self._root))
        self._write_part(queue, layout.consume_queue_dir(self._root))

    def _write_part(self, part: ConsumeQueue | QueueExt, base: str) -> None:
        """Write a queue, or an extension, whose folder is two levels below ``base``; new names are synced later."""
        if not part.starts:
            self._disk.make_dirs(base)
            self._disk.add_dirs(part.folder)
            self._new_names |= {base, os.path.dirname(part.folder)}
        before = len(part.starts)
        try:
            part.write()
        finally:
            if len(part.starts) != before:
                self._new_names.add(part.folder)

    async def sync(self) -> None:
        """Sync everything written so far, without blocking; DiskError when a sync failed, and then nothing counts."""
        unsynced = self._files.unsynced
        if self._system is not None and len(unsynced) + len(self._new_names) >= self._system.worth_files:
            # Before, for what is written meanwhile needs another sync.
            unsynced.clear()
            self._new_names.clear()
            all_synced: Deferred[None] = self._system.sync()
            await all_synced
            return
        for folder in sorted(self._new_names):
            # Before, for a name that is added meanwhile needs another one.
            self._new_names.discard(folder)
            folder_synced: Deferred[None] = self._disk.sync_dir_soon(folder)
            await folder_synced
        for path in sorted(unsynced):
            if path in unsynced:  # else it was deleted meanwhile
                unsynced.discard(path)
                synced: Deferred[None] = self._files.get(path).sync()
                await synced

    def cut(self, phy_offset: int) -> None:
        """Drop the units of all messages at ``phy_offset`` and behind, and whatever a crash left behind the ends."""
        self.write()
        base = layout.consume_queue_dir(self._root)
        for queue in self:
            queue.cut(phy_offset)
            if queue.starts and queue.starts[-1] == queue.end * CQ_UNIT_BYTES:
                # The process that was killed had not synced the name of a file without older units.
                self._new_names |= {base, os.path.dirname(queue.folder), queue.folder}

    def correct_min(self, min_phy: int) -> None:
        """Let every queue begin with the first message that the log still has."""
        for queue in self:
            queue.correct_min(min_phy)

    def delete_topic(self, topic: str) -> list[int]:
        """Delete all queues of a topic with their files; return their numbers."""
        gone = [key for key in self._queues if key[0] == topic]
        if topic.startswith(LMQ_PREFIX):
            self.lmq_queues -= len(gone)
        for key in gone:
            queue = self._queues.pop(key)
            queue.destroy()
            if queue.dirty:
                self._dirty.remove(queue)
        if gone:
            for folder in (
                layout.consume_queue_dir(self._root, topic),
                layout.consume_queue_ext_dir(self._root, topic),
            ):
                if self._disk.exists(folder):
                    self._disk.delete_tree(folder)
                    self._new_names -= {
                        name for name in self._new_names if name == folder or name.startswith(f"{folder}/")
                    }
                    # Once the deletion is recorded a power failure must not bring back a part of it.
                    self._new_names.add(os.path.dirname(folder))
        return [queue_id for _, queue_id in gone]

    def close(self) -> None:
        """Give all files back."""
        if self._system is not None:
            self._system.close()
        self._files.close()
