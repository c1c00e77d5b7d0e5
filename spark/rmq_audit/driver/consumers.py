"""Consumer offsets of one side, compared with the queues they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from rmq.store import layout
from rmq.wire.loosejson import JsonError, parse
from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.log import Log
from rmq_audit.driver.queues import Bounds, Queue, by_queue, current_runs
from rmq_audit.worker.files import read_stored, read_whole
from rmq_audit.worker.location import ReadError, child
from rmq_audit.worker.work import Severity

OFFSETS_FILE, TOPICS_FILE = "consumerOffset.json", "topics.json"


@attrs.frozen
class Committed:
    """How far a group has consumed one queue: the next offset it will ask for."""

    group: str
    topic: str
    queue_id: int
    offset: int


@attrs.frozen(kw_only=True)
class Earlier:
    """Consumer offsets of the previous round by group, topic and queue id; ``at``: its time, ``subject``: the store."""

    subject: str
    at: str
    offsets: Mapping[tuple[str, str, int], int]


class _BadFile(Exception):
    """A file of the config folder cannot be used; the text names it."""


def check_consumers(
    log: Log, bounds: Mapping[Queue, Bounds], *, judge_end: bool, offsets: str | None = None
) -> tuple[list[Committed], list[Finding]]:
    """
    Return the offsets that were compared with their queues, and where they do not fit.

    ``judge_end``: whether an offset beyond a queue's end means anything; on a slave that lags, and in a store that is
    written during the audit, it does not. ``offsets``: a file to read in place of the store's own.
    """
    folder = child(log.store.path, layout.CONFIG_DIR)
    try:
        committed = list(_committed(offsets or child(folder, OFFSETS_FILE), required=offsets is not None))
    except _BadFile as error:
        # what is wrong with the store's own file is said where all its tables are read
        return [], [] if offsets is None else [finding("AU-COVER", log.side, detail=str(error))]
    topics = (configured_topics(child(folder, TOPICS_FILE)) or frozenset()) | {topic for topic, _ in bounds}
    found = []
    # the offsets of a topic that was deleted and made again may be those of before
    restarted = {queue for queue, runs in by_queue(log.runs).items() if len(current_runs(runs)) < len(runs)}
    for one in committed:
        if one.topic not in topics:
            found.append(_finding("CO-ORPHAN", log, one, "its topic is in no configuration, queue or message"))
            continue
        held = bounds.get((one.topic, one.queue_id), None if log.start > 0 else Bounds(0, 0))
        if held is not None and one.offset > held.end and judge_end:
            text = f"the next to consume would be {one.offset}, but the queue ends at {held.end}"
            severity = Severity.WARN if (one.topic, one.queue_id) in restarted else None
            found.append(_finding("CO-AHEAD", log, one, text, expected=f"{held.end} or less", severity=severity))
        elif held is not None and one.offset < held.begin:
            text = f"the queue begins at {held.begin} by now: {held.begin - one.offset} messages are gone unconsumed"
            found.append(_finding("CO-BEHIND", log, one, text, expected=f"{held.begin} or more"))
    return committed, found


def check_backwards(side: str, committed: Sequence[Committed], earlier: Earlier) -> list[Finding]:
    """Return where offsets are lower than they were in the previous round; one finding a group and topic."""
    back: dict[tuple[str, str], list[tuple[Committed, int]]] = {}
    for one in committed:
        before = earlier.offsets.get((one.group, one.topic, one.queue_id))
        if before is not None and one.offset < before:
            back.setdefault((one.group, one.topic), []).append((one, before))
    found = []
    for (group, topic), ones in sorted(back.items()):
        first, before = ones[0]
        again = sum(was - one.offset for one, was in ones)
        text = (
            f"consumer group {group}: its offset went back from {before} to {first.offset} since {earlier.at}, "
            f"{again} messages of {len(ones)} queues are consumed again: reset by hand, or an older table was restored"
        )
        found.append(
            finding(
                "CO-BACK",
                side,
                topic=topic,
                queue_id=first.queue_id,
                queue_offset_from=first.offset,
                queue_offset_to=before - 1,
                count=again,
                expected=f"{before} or more",
                actual=str(first.offset),
                field=group,
                detail=text,
            )
        )
    return found


def _finding(invariant: str, log: Log, one: Committed, text: str, **members: Any) -> Finding:
    return finding(
        invariant,
        log.side,
        topic=one.topic,
        queue_id=one.queue_id,
        queue_offset_from=one.offset,
        queue_offset_to=one.offset,
        actual=str(one.offset),
        field=one.group,
        detail=f"consumer group {one.group}: {text}",
        **members,
    )


def _committed(path: str, *, required: bool) -> Iterator[Committed]:
    for key, queues in _table(path, "offsetTable", required=required).items():
        topic, mark, group = key.rpartition("@")
        if not mark or not isinstance(queues, dict):
            raise _BadFile(f"{path}: {key!r} is not topic@group with offsets by queue")
        for queue_id, offset in queues.items():
            if not str(queue_id).isdecimal() or not isinstance(offset, int):
                raise _BadFile(f"{path}: {key!r}: queue {queue_id!r} has offset {offset!r}")
            yield Committed(group, topic, int(queue_id), offset)


def configured_topics(path: str) -> frozenset[str] | None:
    """Return the topics of a topics.json; None when there is none that can be read."""
    queues = configured_queues(path)
    return None if queues is None else frozenset(queues)


def configured_queues(path: str) -> Mapping[str, int | None] | None:
    """
    Return how many queues a topics.json gives each topic, the larger of read and write queues.

    None when there is no such file that can be read, and for a topic whose numbers are no right ones.
    """
    try:
        table = _table(path, "topicConfigTable")
    except _BadFile:
        return None
    return {topic: _queue_count(settings) for topic, settings in table.items()} or None


def _queue_count(settings: object) -> int | None:
    counts = [settings.get(key) for key in ("readQueueNums", "writeQueueNums")] if isinstance(settings, dict) else []
    right = [count for count in counts if type(count) is int and count >= 0]
    return max(right) if len(right) == 2 else None


def _table(path: str, member: str, *, required: bool = False) -> dict[str, Any]:
    """Return a member of a table in fastjson's dialect; empty when the file is neither there nor ``required``."""
    try:
        # a table that was given may come through a pipe
        text = (read_whole if required else read_stored)(path).decode("utf-8")
        values = parse(text) if text.strip() else {}
    except FileNotFoundError:
        if required:
            raise _BadFile(f"{path}: no such file") from None
        return {}
    except ReadError as error:
        raise _BadFile(str(error)) from error
    except UnicodeDecodeError as error:
        raise _BadFile(f"{path}: cannot be read: {error}") from error
    except JsonError as error:
        raise _BadFile(f"{path}: {error}") from error
    table = values.get(member, {}) if isinstance(values, dict) else None
    if not isinstance(table, dict):
        raise _BadFile(f"{path}: an object with {member} is expected")
    return table
