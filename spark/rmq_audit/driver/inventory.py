"""Inventory of a store: segments, queues, index files, manifest, and what could not be listed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import attrs

from rmq.store import layout
from rmq_audit.worker.files import Lister, StoreFile, lister, read_stored
from rmq_audit.worker.location import Entry, InputError, ReadError, child, located

#: numbers of a manifest are Java's longs, and maxHashSlotNum is an int
MAX_INT64, MAX_INDEX_SLOTS = (1 << 63) - 1, (1 << 31) - 1


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
    taken_at_start: int | None = None
    index_slots: int | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    files: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Queue:
    """The consume queue files of one topic and queue, in order."""

    topic: str
    queue_id: int
    files: tuple[StoreFile, ...]


@attrs.frozen(kw_only=True)
class Problem:
    """
    Something of a store that could not be taken in.

    The audit is incomplete because of it, unless ``invariant`` says that a broker would not take it either. ``phy`` is
    set when a segment of the log is meant: where it starts. ``whole_log``: nothing is known of the log.
    """

    path: str
    text: str
    phy: int | None = None
    whole_log: bool = False
    invariant: str = "AU-COVER"


@attrs.frozen(kw_only=True)
class Store:
    """
    One side: its segments by start offset, its queues, its index files by name, its manifest if it is a dump, and what
    was wrong with the listing.

    ``unfinished``: the file abort is there, so the broker runs, or was killed, or this is a dump of a running one;
    queues may then be behind the log, because recovery dispatches the rest. ``batch_topics`` are topics of
    5.x with batch queues, whose units lie elsewhere and in another format; ``in_rocksdb``: so do those of all topics.
    ``extensions`` hold the tagsCodes of queues whose units name an address instead. ``foreign`` is what lies in the
    folders of log, queues and index under names that RocketMQ does not give; nothing of it was read. ``ours``: our
    broker wrote the store last, which leaves them alone.
    """

    side: str
    path: str
    segments: tuple[StoreFile, ...]
    queues: tuple[Queue, ...]
    indexes: tuple[StoreFile, ...]
    manifest: Manifest | None
    problems: tuple[Problem, ...]
    unfinished: bool
    batch_topics: frozenset[str] = frozenset()
    in_rocksdb: bool = False
    extensions: tuple[Queue, ...] = ()
    foreign: tuple[str, ...] = ()
    ours: bool = False

    def is_unlisted(self, *names: str) -> bool:
        """Whether the folder below the store, or something in it, could not be listed."""
        folder = f"{child(self.path, *names)}/"
        return any(
            folder.startswith(f"{problem.path}/") or str(problem.path).startswith(folder) for problem in self.problems
        )

    @property
    def segment_bytes(self) -> int | None:
        """
        Bytes of a full segment; None for a store without segments.

        By the manifest, else the commonest file size, and of those the one that divides most names.
        """
        if self.manifest is not None and self.manifest.segment_bytes is not None:
            return self.manifest.segment_bytes
        sizes = Counter(segment.size_bytes for segment in self.segments if segment.size_bytes)

        def fits(size: int) -> tuple[int, int, int]:
            return sizes[size], sum(segment.start % size == 0 for segment in self.segments), size

        return max(sizes, key=fits, default=None)


def take_inventory(side: str, path: str) -> Store:
    """
    List the store at ``path``, a directory or a URI; InputError when that is not a store directory.

    An object store that does not answer is a problem of the store, not a mistake of the operator.
    """
    root = located(path)
    found = _Listing(lister(root))
    names = {one.name: one for one in found.entries(root, whole_log=True)}
    log = layout.COMMIT_LOG_DIR
    if log in names and names[log].error is not None:
        found.problems.append(Problem(path=names[log].path, text=str(names[log].error), whole_log=True))
    known = not found.problems
    if known and not names.get(log, _NOTHING).is_folder:
        raise InputError(_why_no_store(found.there, root, names))
    manifest = _read_manifest(names[name].path) if (name := layout.MANIFEST_FILE) in names else None
    ours = layout.PROGRESS_FILE in names
    segments = found.files(child(root, log), in_log=True) if known else ()
    queues = found.queues(child(root, layout.CONSUME_QUEUE_DIR)) if known else ()
    extensions = found.queues(child(root, layout.CONSUME_QUEUE_EXT_DIR)) if known else ()
    indexes = found.files(child(root, layout.INDEX_DIR), number=_index_number) if known else ()
    batches = found.folders(child(root, layout.BATCH_CONSUME_QUEUE_DIR)) if known else ()
    if known and manifest is not None and manifest.files:
        files = [*segments, *indexes, *(file for queue in queues for file in queue.files)]
        seen = {*(one.path for one in files), *(one.path for one in found.problems), *found.foreign}
        found.problems += _missing_files(found.there, root, manifest, segments, seen)
    # our broker leaves files of others alone
    problems = [one for one in found.problems if not (known and ours and one.path in found.foreign)]
    return Store(
        side=side,
        path=root,
        segments=segments,
        queues=queues,
        indexes=indexes,
        manifest=manifest,
        problems=tuple(problems),
        unfinished=layout.ABORT_FILE in names,
        batch_topics=frozenset(one.name for one in batches),
        # 5.x has the database there, or in the folder of the queues
        in_rocksdb=layout.ROCKSDB_CONSUME_QUEUE_DIR in names
        or child(root, layout.CONSUME_QUEUE_DIR, "CURRENT") in found.foreign,
        extensions=extensions,
        foreign=tuple(found.foreign),
        ours=ours,
    )


_NOTHING = Entry(name="", path="")


def _missing_files(
    there: Lister, root: str, manifest: Manifest, segments: Sequence[StoreFile], seen: Container[str]
) -> Iterator[Problem]:
    """
    Yield the files of a manifest that the audit would read and that are not there.

    Segments before others, or before the end that the manifest states, are a gap of the log and said there.
    """
    last = max((segment.start for segment in segments), default=-1)
    config: set[str] | None = None
    for path in manifest.files:
        folder, _, name = path.rpartition("/")
        if folder == layout.COMMIT_LOG_DIR:
            start = layout.file_start(name)
            reported = start is None or start < last or manifest.max_phy_offset is not None
            missing = not reported and str(child(root, path)) not in seen
        elif folder == layout.CONFIG_DIR:
            if config is None:
                config = {one.name for one in _Listing(there).entries(child(root, folder))}
            missing = name not in config
        elif folder.split("/")[0] in (layout.CONSUME_QUEUE_DIR, layout.INDEX_DIR):
            missing = str(child(root, path)) not in seen
        else:
            missing = False
        if missing:
            yield Problem(path=child(root, path), text="is not there, though manifest.json lists it")


def _why_no_store(there: Lister, root: str, names: Mapping[str, Entry]) -> str:
    parent, _, name = root.rpartition("/")
    if names:
        return f"{root}: is not a store directory, it has no folder {layout.COMMIT_LOG_DIR}"
    if "://" in root:
        return f"{root}: nothing is there"
    around = {one.name: one for one in there.entries(parent or "/") or ()}
    if name and name not in around:
        return f"{root}: no such directory"
    if name and not around[name].is_folder:
        return f"{root}: is a file; a store directory is expected"
    return f"{root}: is not a store directory, it has no folder {layout.COMMIT_LOG_DIR}"


def check_broker(store: Store, name: str | None) -> None:
    """Raise InputError when a manifest names another broker than the one that is looked at."""
    known = store.manifest.broker_name if store.manifest is not None else None
    if name is not None and known is not None and known != name:
        raise InputError(f"{store.path} is a dump of broker {known}, not of {name}")


def ending_at(store: Store, end: int | None) -> Store:
    """
    Return the store as if a manifest said that its log ends at ``end`` and its queues may be short of the last records.

    A manifest that states an end itself is believed.
    """
    if end is None or (store.manifest is not None and store.manifest.max_phy_offset is not None):
        return store
    return attrs.evolve(store, manifest=attrs.evolve(store.manifest or Manifest(), max_phy_offset=end))


def common_segment_bytes(*stores: Store) -> int:
    """
    Return the segment size of the stores; InputError when their logs cannot belong together.

    A side with a single file may have lost the end of it, so the larger size counts if it fits that file's name.
    """
    sizes = [store.segment_bytes for store in stores if store.segment_bytes is not None]
    if not sizes:
        return 1 << 30
    starts = [segment.start for store in stores for segment in store.segments]
    size = max(sizes, key=lambda size: (sum(start % size == 0 for start in starts), size))
    for store in stores:
        own = store.segment_bytes
        fits = own is not None and all(segment.start % own == 0 for segment in store.segments)
        if fits and own != size and len(store.segments) > 1:
            raise InputError(
                f"segments of the {store.side} have {own} bytes, of the other side {size}: "
                "these logs are not replicas of each other"
            )
    return size


def without_misnamed(store: Store, segment_bytes: int) -> Store:
    """Return the store without the segments whose number is none that a segment of that size can have."""
    wrong = [one for one in store.segments if one.start % segment_bytes]
    text = f"is not a segment of the log: its name is not a multiple of {segment_bytes} bytes, the length of a segment"
    problems = tuple(Problem(path=one.path, text=text, invariant="ST-FILE") for one in wrong)
    segments = tuple(one for one in store.segments if one not in wrong)
    return attrs.evolve(store, segments=segments, problems=store.problems + problems) if wrong else store


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
    try:
        entries = lister(store.path).entries(child(store.path, layout.COMMIT_LOG_DIR)) or ()
    except ReadError:
        entries = ()
    now = {str(one.path): (one.size_bytes, one.modified_ns) for one in entries if one.error is None}
    return [one.path for one in store.segments if now.get(one.path) != (one.size_bytes, one.modified_ns)]


@attrs.define
class _Listing:
    """What the folders of a store hold, and what is wrong or foreign there."""

    there: Lister
    problems: list[Problem] = attrs.field(factory=list)
    foreign: list[str] = attrs.field(factory=list)

    def entries(self, folder: str, *, whole_log: bool = False) -> Sequence[Entry]:
        try:
            return self.there.entries(folder) or ()
        except ReadError as error:
            self.problems.append(Problem(path=error.path, text=error.text, whole_log=whole_log))
            return ()

    def files(
        self, folder: str, *, in_log: bool = False, number: Callable[[str], int | None] = layout.file_start
    ) -> tuple[StoreFile, ...]:
        """Return the files whose names are numbers of the right length, by number; other names are foreign."""
        found = []
        for one in self.entries(folder, whole_log=in_log):
            start = number(one.name)
            if start is None:
                self.foreign.append(one.path)
                if not one.is_folder and number is layout.file_start:
                    text = "is not a file that a broker makes: Apache's broker does not start while it is there"
                    self.problems.append(Problem(path=one.path, text=text, invariant="ST-FILE"))
            elif one.error is not None or one.is_folder:
                text = one.error or "is a directory where a file belongs"
                self.problems.append(Problem(path=one.path, text=text, phy=start if in_log else None))
            else:
                size, modified_ns = one.size_bytes, one.modified_ns
                found.append(StoreFile(path=one.path, start=start, size_bytes=size, modified_ns=modified_ns))
        return tuple(found)

    def queues(self, folder: str) -> tuple[Queue, ...]:
        """Return the queues ``<topic>/<queueId>`` and their files; a store without consume queues simply has none."""
        queues = []
        for topic in self.folders(folder):
            for queue in self.folders(topic.path):
                # 00 or digits of other scripts would stand for a queue that has its folder already
                if not (queue.name.isascii() and queue.name.isdigit() and str(int(queue.name)) == queue.name):
                    self.foreign.append(queue.path)
                    continue
                files = self.files(queue.path)
                if files:
                    queues.append(Queue(topic=topic.name, queue_id=int(queue.name), files=files))
        return tuple(queues)

    def folders(self, path: str) -> list[Entry]:
        """Return the folders in a folder; what else lies there is no queue's."""
        entries = self.entries(path)
        self.foreign += [one.path for one in entries if not one.is_folder]
        return [one for one in entries if one.is_folder]


def _index_number(name: str) -> int | None:
    return int(name) if layout.is_index_name(name) else None


def _read_manifest(path: str) -> Manifest | None:
    try:
        values = json.loads(read_stored(path))
    except FileNotFoundError:
        return None
    except ReadError as error:
        raise InputError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: an object is expected")
    version = values.get("formatVersion", 1)
    if version != 1:
        raise InputError(f"{path}: formatVersion {version!r} is not known, 1 is")

    def take(name: str, kind: type, allowed: Container[int] = range(MAX_INT64 + 1)) -> Any:
        return None if values.get(name) is None else json_member(path, values, name, kind, allowed)

    return Manifest(
        cluster=take("cluster", str),
        broker_name=take("brokerName", str),
        broker_id=take("brokerId", int),
        role=take("role", str),
        min_phy_offset=take("minPhyOffset", int),
        max_phy_offset=take("maxPhyOffset", int),
        segment_bytes=take("segmentBytes", int, range(1, MAX_INT64)),
        dispatched_offset=take("dispatchedOffset", int),
        taken_at_start=take("takenAtStart", int),
        index_slots=take("indexSlots", int, range(1, MAX_INDEX_SLOTS + 1)),
        epochs=_epochs(path, values),
        files=_files(path, values),
    )


def _epochs(path: str, values: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return (epoch, start offset) of every mastership that the dump knows of, in order."""
    listed = values.get("epochs") or []
    try:
        return tuple(sorted((int(one["epoch"]), int(one["startOffset"])) for one in listed))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: epochs is {listed!r}, expected is a list of epoch and startOffset") from error


def _files(path: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of the files that the dump says it has, from its root."""
    listed = json_objects(path, values, "files") if values.get("files") else []
    return tuple(json_member(path, one, "path", str) for one in listed if one.get("path") is not None)


def json_objects(where: str, values: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a member that is a list of objects; InputError."""
    found = values.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InputError(f"{where}: {name} is not a list of objects")
    return found


def json_member(
    where: str, values: Mapping[str, Any], name: str, kind: type, allowed: Container[int] | None = None
) -> Any:
    """Return a member that is a text or a number, one that is ``allowed``; InputError."""
    value = values.get(name)
    wrong = not isinstance(value, kind) or isinstance(value, bool)
    if wrong or (isinstance(value, int) and allowed is not None and value not in allowed):
        raise InputError(f"{where}: {name} is {value!r}, expected is {'a number' if kind is int else 'text'}")
    return value
