"""
Duplicate and missing acked sends: messages that were acknowledged once and stored twice, and acknowledged sends
without a place (transactions), which can only be counted.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.log import Log
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.acked import Send
from rmq_audit.worker.duplicates import NAMES, NameHit, NameSearch, name_hashes
from rmq_audit.worker.records import MAX_RECORD_BYTES, plausible_size, record_at
from rmq_audit.worker.work import MAX_SAMPLES

#: width of the windows that acknowledged sends are counted in
WINDOW_MS = 10 * 60 * 1000

#: a producer's clock may differ from the broker's by so much, and a commit may take so long
SLACK_MS = 60 * 1000

#: messages stored more than once that are looked at one by one
MAX_DUPLICATES = 1000


@attrs.frozen(kw_only=True)
class Placeless:
    """An acknowledged send without a place in its answer; ``sent_ms`` is the producer's time, if the table has it."""

    message_id: str
    topic: str
    sent_ms: int | None


def check_duplicates(
    log: Log, sends: Sequence[Send], placeless: Sequence[Placeless], engine: Engine, *, moving: bool
) -> tuple[int, list[Finding]]:
    """
    Return how many sends without a place were looked for, and what does not add up.

    All records up to the log's end are looked through once more, by the hash of their names. Of a log that still moves
    (``moving``) sends near its end are not judged, of one whose begin retention has deleted those from before it.
    """
    judged = [one for one in placeless if _is_judged(log, one, moving=moving)]
    if log.unread:
        judged = []
    tasks = list(_tasks(log, sends, judged))
    hits: list[NameHit] = []
    found: list[Finding] = []
    for answer in engine.run(NAMES, tasks) if tasks else []:
        hits += answer.hits
        if answer.error is not None or answer.left_out:
            text = answer.error or f"{answer.left_out} more messages with names of acknowledged ones were not looked at"
            found.append(finding("AU-COVER", log.side, detail=text))
    if any(one.invariant == "AU-COVER" for one in found):
        return 0, found
    found += _missing(log, judged, hits)
    found += _duplicates(log, sends, judged, hits)
    return len(judged), found


def _is_judged(log: Log, one: Placeless, *, moving: bool) -> bool:
    stretches = [stretch for scan in log.scans for stretch in scan.stretches if stretch.records]
    if not stretches:
        return not moving
    if one.sent_ms is None:
        return log.start == 0 and not moving
    if log.start > 0 and one.sent_ms < stretches[0].head_timestamp + SLACK_MS:
        return False
    return not moving or one.sent_ms < stretches[-1].last_timestamp - SLACK_MS


def _tasks(log: Log, sends: Sequence[Send], placeless: Sequence[Placeless]) -> Iterator[NameSearch]:
    if not sends and not placeless:
        return
    names = [send.message_id for send in sends] + [one.message_id for one in placeless]
    hashes = np.unique(name_hashes(names)).tobytes()
    places = np.unique(np.array([send.phy for send in sends], dtype=np.int64)).tobytes()
    for scan in log.scans:
        if scan.first is not None and scan.first < log.end:
            file = attrs.evolve(scan.split.file, limit=min(log.end, scan.split.full))
            end = min(scan.split.end, log.end)
            yield NameSearch(file=file, start=scan.first, end=end, names=hashes, places=places)


def _missing(log: Log, placeless: Sequence[Placeless], hits: Sequence[NameHit]) -> Iterator[Finding]:
    """Count acknowledged and stored sends by topic and window; one finding a topic."""
    there = {(hit.message_id, hit.topic) for hit in hits}
    windows: dict[str, dict[int | None, list[Placeless]]] = {}
    for one in placeless:
        window = None if one.sent_ms is None else one.sent_ms // WINDOW_MS
        windows.setdefault(one.topic, {}).setdefault(window, []).append(one)
    for topic, by_window in sorted(windows.items()):
        missing = {
            window: [one for one in ones if (one.message_id, topic) not in there] for window, ones in by_window.items()
        }
        short = sorted((window for window, ones in missing.items() if ones), key=lambda window: window or 0)
        if not short:
            continue
        acknowledged = sum(len(by_window[window]) for window in short)
        lost = [one for window in short for one in missing[window]]
        stored = acknowledged - len(lost)
        text = (
            f"of {acknowledged} acknowledged sends without a place{_when(short)}, {stored} are in the log: "
            "the others are transactions that are not committed yet, or lost"
        )
        yield finding(
            "AK-COUNT",
            log.side,
            topic=topic,
            count=len(lost),
            expected=str(acknowledged),
            actual=str(stored),
            sample_msg_ids=[one.message_id for one in lost[:MAX_SAMPLES]],
            detail=text,
        )


def _when(windows: Sequence[int | None]) -> str:
    if windows[0] is None:
        return ""
    first = datetime.datetime.fromtimestamp(windows[0] * WINDOW_MS / 1000, datetime.UTC)
    many = "" if len(windows) == 1 else f" in {len(windows)} windows of 10 minutes, the first"
    return f"{many} from {first:%Y-%m-%d %H:%M} UTC"


def _duplicates(
    log: Log, sends: Sequence[Send], placeless: Sequence[Placeless], hits: Sequence[NameHit]
) -> Iterator[Finding]:
    """
    Make one finding a topic of messages that lie there more than once.

    A delayed message is in the topic of schedules at its acknowledged place, and was delivered once; so the record
    at that place is looked at before it counts.
    """
    places: dict[tuple[str, str], set[int]] = {}
    wanted = {(one.message_id, one.topic) for one in placeless}
    own: dict[tuple[str, str], Send] = {(send.message_id, send.topic): send for send in sends}
    for hit in hits:
        key = hit.message_id, hit.topic
        if key in wanted or key in own:
            places.setdefault(key, set()).add(hit.phy)
    for key in list(places)[:MAX_DUPLICATES]:
        if key in own and _topic_at(log, own[key].phy) == key[1]:
            places[key].add(own[key].phy)
    topics: dict[str, list[tuple[str, list[int]]]] = {}
    for (message_id, topic), found in places.items():
        if len(found) > 1:
            topics.setdefault(topic, []).append((message_id, sorted(found)))
    for topic, ones in sorted(topics.items()):
        first = min(ones, key=lambda one: one[1])
        text = (
            f"{len(ones)} messages are stored more than once; the first one at {', '.join(map(str, first[1][:4]))}: "
            "its producer sent it again, which it may (consumers must expect that)"
        )
        yield finding(
            "AK-DUP",
            log.side,
            topic=topic,
            phy_from=first[1][-1],
            phy_to=first[1][-1] + 1,
            count=len(ones),
            sample_msg_ids=[name for name, _ in ones[:MAX_SAMPLES]],
            detail=text,
        )


def _topic_at(log: Log, phy: int) -> str | None:
    size = plausible_size(log.read(phy, 128), 0)
    if size is None or size > MAX_RECORD_BYTES:
        return None
    record = record_at(log.read(phy, size), 0, phy)
    return None if record is None else record.topic
