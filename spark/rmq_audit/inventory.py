"""What there is to read: the segments and queues of two store directories, and what their manifests say."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from rmq.store import layout


class InputError(Exception):
    """What the operator asked for cannot be audited; the text is one line and names the path."""


@attrs.frozen(kw_only=True)
class Segment:
    """One file of a log or of a queue; ``start`` is its name, ``size_bytes`` its length when it was listed."""

    path: str
    start: int
    size_bytes: int
    modified_ns: int


@attrs.frozen(kw_only=True)
class Manifest:
    """The part of a consistency dump's manifest.json that the audit uses; members that are absent are None."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_id: int | None = None
    role: str | None = None
    min_phy_offset: int | None = None
    max_phy_offset: int | None = None
    segment_bytes: int | None = None
    dispatched_offset: int | None = None
    index_slots: int | None = None


@attrs.frozen(kw_only=True)
class Queue:
    """The consume queue files of one topic and queue, in order."""

    topic: str
    queue_id: int
    files: tuple[Segment, ...]


@attrs.frozen(kw_only=True)
class Problem:
    """
    Something of a store that could not be taken in; the audit is incomplete because of it.

    ``phy`` is set when a segment of the log is meant: where it starts.
    """

    path: str
    text: str
    phy: int | None = None


@attrs.frozen(kw_only=True)
class Store:
    """
    One side: its segments by start offset, its queues, its index files by name, its manifest if it is a dump, and what
    was wrong with the listing.

    ``unfinished``: the file abort is there, so the broker runs, or was killed, or this is a dump of a running one;
    queues may then be behind the log, since whoever opens the store dispatches the rest.
    """

    side: str
    path: str
    segments: tuple[Segment, ...]
    queues: tuple[Queue, ...]
    indexes: tuple[Segment, ...]
    manifest: Manifest | None
    problems: tuple[Problem, ...]
    unfinished: bool

    @property
    def segment_bytes(self) -> int | None:
        """Bytes of a full segment: by the manifest, else the commonest file size; None for a store without segments."""
        if self.manifest is not None and self.manifest.segment_bytes is not None:
            return self.manifest.segment_bytes
        sizes = Counter(segment.size_bytes for segment in self.segments if segment.size_bytes)
        return max(sizes, key=lambda size: (sizes[size], size)) if sizes else None


def take_inventory(side: str, path: str) -> Store:
    """List the store at ``path``; InputError when that is no store directory."""
    root = os.path.abspath(path)
    if "://" in path:
        raise InputError(f"{path}: only local paths can be audited (a path that every worker sees)")
    if not os.path.exists(root):
        raise InputError(f"{root}: no such directory")
    if not os.path.isdir(root):
        raise InputError(f"{root}: is a file; a store directory is expected")
    log = layout.commit_log_dir(root)
    manifest = _read_manifest(os.path.join(root, "manifest.json"))
    if not os.path.isdir(log):
        raise InputError(f"{root}: is no store directory, it has no folder {layout.COMMIT_LOG_DIR}")
    problems: list[Problem] = []
    segments = _list_files(log, problems, in_log=True)
    queues = _list_queues(layout.consume_queue_dir(root), problems)
    return Store(
        side=side,
        path=root,
        segments=segments,
        queues=queues,
        indexes=_list_indexes(layout.index_dir(root), problems),
        manifest=manifest,
        problems=tuple(problems),
        unfinished=os.path.exists(layout.abort_path(root)),
    )


def common_segment_bytes(*stores: Store) -> int:
    """
    Return the segment size of the stores; InputError when their logs cannot belong together.

    A side with a single file may have lost the end of it, so the larger size counts if it fits that file's name.
    """
    sizes = {store.segment_bytes for store in stores} - {None}
    if not sizes:
        return 1 << 30
    size = max(size for size in sizes if size is not None)
    for store in stores:
        own = store.segment_bytes
        if own is not None and own != size and (len(store.segments) > 1 or store.segments[0].start % size):
            raise InputError(
                f"segments of the {store.side} have {own} bytes, of the other side {size}: "
                "these logs are no replicas of each other"
            )
    return size


def check_same_broker(master: Store, slave: Store) -> None:
    """Raise InputError when two manifests name different brokers or clusters."""
    if master.manifest is None or slave.manifest is None:
        return
    for name, ours, theirs in (
        ("cluster", master.manifest.cluster, slave.manifest.cluster),
        ("broker", master.manifest.broker_name, slave.manifest.broker_name),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            raise InputError(f"{master.path} is a dump of {name} {ours}, {slave.path} of {name} {theirs}")


def changed_files(store: Store) -> list[str]:
    """Return the segments that were written or removed since the inventory."""
    changed = []
    for segment in store.segments:
        try:
            now = os.stat(segment.path)
        except OSError:
            changed.append(segment.path)
            continue
        if (now.st_size, now.st_mtime_ns) != (segment.size_bytes, segment.modified_ns):
            changed.append(segment.path)
    return changed


def _list_files(
    folder: str, problems: list[Problem], *, in_log: bool, number: Callable[[str], int | None] = layout.file_start
) -> tuple[Segment, ...]:
    """
    Return the files whose names are numbers of the right length, by number; sub-directories and other names are not
    RocketMQ's and are left out.
    """
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        problems.append(Problem(path=folder, text=f"cannot be listed: {error.strerror}"))
        return ()
    for name in names:
        path = os.path.join(folder, name)
        start = number(name)
        if start is None:
            continue
        phy = start if in_log else None
        try:
            status = os.stat(path)
        except OSError as error:
            problems.append(Problem(path=path, text=f"cannot be read: {error.strerror}", phy=phy))
            continue
        if os.path.isdir(path):
            problems.append(Problem(path=path, text="is a directory where a file belongs", phy=phy))
            continue
        found.append(Segment(path=path, start=start, size_bytes=status.st_size, modified_ns=status.st_mtime_ns))
    return tuple(found)


def _list_indexes(folder: str, problems: list[Problem]) -> tuple[Segment, ...]:
    if not os.path.isdir(folder):
        return ()
    return _list_files(
        folder, problems, in_log=False, number=lambda name: int(name) if layout.is_index_name(name) else None
    )


def _list_queues(folder: str, problems: list[Problem]) -> tuple[Queue, ...]:
    """Return ``<topic>/<queueId>`` with files of whole units; a store without consume queues simply has none."""
    queues = []
    for topic in _folders(folder, problems):
        for name in _folders(os.path.join(folder, topic), problems):
            if not name.isdecimal():
                continue
            files = _list_files(os.path.join(folder, topic, name), problems, in_log=False)
            for file in files:
                if file.size_bytes % layout.CQ_UNIT_BYTES:
                    problems.append(
                        Problem(
                            path=file.path,
                            text=f"has {file.size_bytes} bytes, not a multiple of {layout.CQ_UNIT_BYTES}",
                        )
                    )
            if files:
                queues.append(Queue(topic=topic, queue_id=int(name), files=files))
    return tuple(queues)


def _folders(path: str, problems: list[Problem]) -> list[str]:
    if not os.path.isdir(path):
        return []
    try:
        return sorted(name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name)))
    except OSError as error:
        problems.append(Problem(path=path, text=f"cannot be listed: {error.strerror}"))
        return []


def _read_manifest(path: str) -> Manifest | None:
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: an object is expected")
    version = values.get("formatVersion", 1)
    if version != 1:
        raise InputError(f"{path}: formatVersion {version!r} is not known, 1 is")
    return Manifest(
        cluster=_member(path, values, "cluster", str),
        broker_name=_member(path, values, "brokerName", str),
        broker_id=_member(path, values, "brokerId", int),
        role=_member(path, values, "role", str),
        min_phy_offset=_member(path, values, "minPhyOffset", int),
        max_phy_offset=_member(path, values, "maxPhyOffset", int),
        segment_bytes=_member(path, values, "segmentBytes", int),
        dispatched_offset=_member(path, values, "dispatchedOffset", int),
        index_slots=_member(path, values, "indexSlots", int),
    )


def _member(path: str, values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise InputError(f"{path}: {name} is {value!r}, expected is {'a number' if kind is int else 'text'}")
    return value
