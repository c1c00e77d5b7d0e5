"""Acknowledged sends against the log: each must be at its acknowledged offset, in its queue and with its body."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import attrs
import numpy as np

from rmq.wire.record import decode_offset_msg_id
from rmq_audit.driver.coverage import SideCoverage
from rmq_audit.driver.duplicates import Placeless, check_duplicates
from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.log import Log
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.acked import ACKED, AckCheck, AckFault, Send
from rmq_audit.worker.files import open_binary, unreadable
from rmq_audit.worker.location import InputError, ReadError, located
from rmq_audit.worker.tally import SPAN_MS, Tally, tallies
from rmq_audit.worker.work import MAX_SAMPLES

#: what the answers to sends say when the message is in the master's log
STORED = frozenset({"SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"})

#: what tables say of a send that no broker acknowledged
REFUSED = frozenset({"SEND_FAILED"})

#: sends of one task
SENDS_PER_TASK = 200_000

#: a whole number as text; 19 digits hold all of 64 bits
_DECIMAL = re.compile(r"-?[0-9]{1,19}")

_TEXTS = {
    "AK-LOST": "were acknowledged and are not at the acknowledged offset",
    "AK-PLACE": "were acknowledged under another topic, queue or queue offset than they have",
    "AK-BODY": "were acknowledged and have another body now",
}


@attrs.define(kw_only=True)
class Sends:
    """
    The side table: acknowledged sends, and how many rows are not about this log: refused sends, those of other brokers,
    and those without a place (transactions, which are stored again when they commit).
    """

    path: str
    sends: list[Send] = attrs.field(factory=list)
    placeless: list[Placeless] = attrs.field(factory=list)
    not_stored: int = 0
    of_others: int = 0
    without_place: int = 0

    def merge(self, other: Sends) -> None:
        """Add the rows of another table."""
        self.path += f", {other.path}"
        self.sends = sorted([*self.sends, *other.sends], key=lambda send: send.phy)
        self.placeless += other.placeless
        self.not_stored += other.not_stored
        self.of_others += other.of_others
        self.without_place += other.without_place


@attrs.define(kw_only=True)
class SendTimes:
    """
    When acknowledged sends were stored, by the topic of the send: those that were ``found``, by their records; those
    that were ``lost``, by the records around their acknowledged places.
    """

    found: list[Tally] = attrs.field(factory=list)
    lost: list[Tally] = attrs.field(factory=list)


def read_sends(path: str, broker_name: str | None) -> Sends:
    """
    Return the rows of a JSON Lines or Parquet file that concern this broker; InputError naming file and row.

    Columns are those of RocketMQ's SendResult: ``msgId``, ``topic``, ``queueId``, ``queueOffset``, ``offsetMsgId`` or
    ``physicalOffset``, and optional ``brokerName``, ``sendStatus``, ``bodyCrc`` (crc32 & 0x7fffffff), ``bodyLen``. Ids
    of batches may stand as RocketMQ gives them, joined by commas.
    """
    path = located(path)
    found = Sends(path=path)
    for number, row in _rows(path):
        if broker_name is not None and row.get("brokerName") not in (None, broker_name):
            found.of_others += 1
        else:
            _take(found, path, number, row)
    found.sends.sort(key=lambda send: send.phy)
    return found


def split_sends(
    paths: Sequence[str], brokers: Iterable[str], nameless: str | None = None
) -> tuple[dict[str, Sends], dict[str, int]]:
    """
    Return the rows of several side tables by broker, each table read once, and how many rows name a broker that is not
    among ``brokers``; InputError naming file and row.

    Rows that name no broker are those of ``nameless``; without it they are a mistake.
    """
    by_broker = {name: Sends(path=", ".join(map(located, paths))) for name in brokers}
    strangers: dict[str, int] = {}
    for path in map(located, paths):
        for number, row in _rows(path):
            name = row.get("brokerName") or nameless
            if not isinstance(name, str):
                raise InputError(f"{path}: row {number}: brokerName is missing; in a cluster's table each row has it")
            if name in by_broker:
                _take(by_broker[name], path, number, row)
            else:
                strangers[name] = strangers.get(name, 0) + 1
    for found in by_broker.values():
        found.sends.sort(key=lambda send: send.phy)
    return by_broker, strangers


def _take(found: Sends, path: str, number: int, row: Mapping[str, Any]) -> None:
    """Add one row to the table, or count why not; InputError naming file and row."""
    try:
        if not _is_stored(row):
            found.not_stored += 1
        elif row.get("offsetMsgId") is None and row.get("physicalOffset") is None:
            found.without_place += 1
            # what became of a transaction is its producer's to say; without a word it counts like any other send
            if row.get("localTransactionState") in (None, "COMMIT_MESSAGE"):
                found.placeless += _placeless(row)
        else:
            found.sends += _sends_of(row)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path}: row {number}: {_why(error)}") from error


def _is_stored(row: Mapping[str, Any]) -> bool:
    """Tell whether the answer says that the message is in the log; a row without an answer is one of a good send."""
    status = row.get("sendStatus")
    if status is None:
        return True
    # a word that is not known would otherwise pass for a refusal, and its message would never be looked for
    if not isinstance(status, str) or status not in STORED | REFUSED:
        raise ValueError(f"sendStatus is {status!r}, known are {', '.join(sorted(STORED | REFUSED))}")
    return status in STORED


def _placeless(row: Mapping[str, Any]) -> Iterator[Placeless]:
    at = next((_number(row, name) for name in ("sentTs", "bornTimestamp", "ackTs") if row.get(name) is not None), None)
    if row.get("msgId") is not None and row.get("topic") is not None:
        yield Placeless(message_id=str(row["msgId"]), topic=str(row["topic"]), sent_ms=at)


def check_acked(
    log: Log,
    table: Sends,
    engine: Engine,
    coverage: SideCoverage,
    *,
    moving: bool = False,
    replica: Log | None = None,
) -> tuple[list[Finding], SendTimes]:
    """
    Return what is not in the log as it was acknowledged, and the times of the sends that were looked for.

    Sends of segments that retention deleted are not judged, nor those after an end that still moves (``moving``). What
    is lost is looked for in the ``replica``.
    """
    judged = [
        send
        for send in table.sends
        if send.phy >= log.start and not log.unknown(send.phy, send.phy + 1) and not (moving and send.phy >= log.end)
    ]
    coverage.acked_sends_checked = len(judged)
    coverage.acked_sends_without_place = table.without_place
    coverage.acked_sends_not_stored = table.not_stored
    coverage.acked_sends_of_others = table.of_others
    coverage.acked_sends_expired = sum(send.phy < log.start for send in table.sends)
    tasks = list(_tasks(log, judged))
    faults: list[AckFault] = []
    found: list[Finding] = []
    times = SendTimes()
    for task, answer in zip(tasks, engine.run(ACKED, tasks) if tasks else [], strict=True):
        faults += answer.faults
        times.found += answer.found
        if answer.error is not None:
            coverage.acked_sends_checked -= len(task.sends)
            found.append(finding("AU-COVER", log.side, detail=answer.error))
    segments = {segment.start for segment in log.store.segments}
    faults += [
        AckFault(invariant="AK-LOST", send=send, actual="no file of the log")
        for send in judged
        if send.phy - send.phy % log.segment_bytes not in segments
    ]
    times.lost = _times_of_lost(log, [one.send for one in faults if one.invariant == "AK-LOST"])
    for invariant in _TEXTS:
        ones = sorted((one for one in faults if one.invariant == invariant), key=lambda one: one.send.phy)
        if ones:
            found.append(_finding(log, table, invariant, ones))
            if invariant == "AK-LOST" and replica is not None:
                found[-1].detail += _elsewhere(replica, [one.send for one in ones], engine)
    coverage.acked_sends_counted, counted = check_duplicates(log, judged, table.placeless, engine, moving=moving)
    return found + counted, times


def _times_of_lost(log: Log, lost: Sequence[Send]) -> list[Tally]:
    """Return when messages that are not there would have been stored, by the records before and after their places."""
    ends = [
        end
        for scan in log.scans
        for one in scan.stretches
        if one.records
        for end in ((one.start, one.head_timestamp), (one.last_phy, one.last_timestamp))
    ]
    if not lost or not ends:
        return []
    places, times = zip(*sorted(ends), strict=True)
    counts: dict[tuple[str, int], int] = {}
    for send, at in zip(lost, np.interp([send.phy for send in lost], places, times).tolist(), strict=True):
        key = send.topic, int(at) // SPAN_MS
        counts[key] = counts.get(key, 0) + 1
    return tallies(counts)


def _elsewhere(replica: Log, lost: Sequence[Send], engine: Engine) -> str:
    """Return what the other side has of the messages that this one lost."""
    there = [send for send in lost if replica.start <= send.phy < replica.end]
    tasks = list(_tasks(replica, there))
    answers = engine.run(ACKED, tasks) if tasks else []
    looked = sum(len(task.sends) for task, answer in zip(tasks, answers, strict=True) if answer.error is None)
    has = looked - len({fault.send.phy for answer in answers for fault in answer.faults})
    return f"; the {replica.side} has {has} of them"


def _tasks(log: Log, sends: Sequence[Send]) -> Iterator[AckCheck]:
    by_segment: dict[int, list[Send]] = {}
    for send in sends:
        by_segment.setdefault(send.phy - send.phy % log.segment_bytes, []).append(send)
    for file in log.files:
        mine = by_segment.get(file.start, [])
        for at in range(0, len(mine), SENDS_PER_TASK):
            yield AckCheck(segment=file, sends=mine[at : at + SENDS_PER_TASK])


def _finding(log: Log, table: Sends, invariant: str, faults: Sequence[AckFault]) -> Finding:
    first = faults[0]
    return finding(
        invariant,
        log.side,
        topic=first.send.topic,
        queue_id=first.send.queue_id,
        queue_offset_from=first.send.queue_offset,
        phy_from=first.send.phy,
        phy_to=first.send.phy + 1,
        count=len(faults),
        expected=first.expected,
        actual=first.actual,
        sample_msg_ids=[one.send.message_id for one in faults[:MAX_SAMPLES]],
        detail=f"{len(faults)} messages {_TEXTS[invariant]} ({table.path}); the first one is shown",
    )


def _sends_of(row: Mapping[str, Any]) -> Iterator[Send]:
    ids = str(_given(row, "msgId")).split(",")
    places: Sequence[int | str] = str(row.get("offsetMsgId")).split(",")
    if row.get("physicalOffset") is not None:
        places = [_number(row, "physicalOffset")]
    if len(ids) != len(places):
        raise ValueError(f"{len(ids)} ids in msgId, {len(places)} in offsetMsgId")
    for index, (message_id, place) in enumerate(zip(ids, places, strict=True)):
        alone = len(ids) == 1
        yield Send(
            message_id=message_id,
            topic=str(_given(row, "topic")),
            queue_id=_number(row, "queueId"),
            queue_offset=_number(row, "queueOffset") + index,
            phy=place if isinstance(place, int) else decode_offset_msg_id(place)[1],
            body_crc=_number(row, "bodyCrc") & 0x7FFFFFFF if alone and row.get("bodyCrc") is not None else None,
            body_size=_number(row, "bodyLen") if alone and row.get("bodyLen") is not None else None,
        )


def _given(row: Mapping[str, Any], name: str) -> Any:
    """Return a member of a row; KeyError when it is missing or null."""
    if row.get(name) is None:
        raise KeyError(name)
    return row[name]


def _number(row: Mapping[str, Any], name: str) -> int:
    """
    Return a whole number of 64 bits, as numbers come: Parquet of pandas has doubles in a column with holes, and some
    writers put text; KeyError or ValueError.
    """
    value, found = _given(row, name), None
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str):
        found = int(value) if _DECIMAL.fullmatch(value) else None
    elif isinstance(value, float | Decimal) and value % 1 == 0:
        found = int(value)
    if found is None or not -1 << 63 <= found < 1 << 63:
        raise ValueError(f"{name} is {value!r}, expected is a whole number")
    return found


def _rows(path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return enumerate(_parquet_rows(path) if path.endswith(".parquet") else _json_rows(path), 1)


def _json_rows(path: str) -> Iterator[Mapping[str, Any]]:
    try:
        with open_binary(path) as raw, io.TextIOWrapper(raw, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise InputError(f"{path}: line {number}: an object is expected")
                yield row
    except (OSError, ReadError) as error:
        raise InputError(unreadable(path, error)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON Lines: {error}") from error


def _parquet_rows(path: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with open_binary(path) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, ReadError) as error:
        raise InputError(unreadable(path, error)) from error
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: is not a Parquet file: {error}") from error


def _why(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
