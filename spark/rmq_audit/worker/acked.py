"""Acknowledged sends looked up in one segment. This is what a worker runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from rmq.wire.record import COMPRESSED, SCHEDULE_TOPIC
from rmq_audit.worker import properties
from rmq_audit.worker.files import LogFile
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.places import Places, windows
from rmq_audit.worker.tally import SPAN_MS, Tally, tallies
from rmq_audit.worker.work import Work


@attrs.frozen(kw_only=True)
class Send:
    """One acknowledged send; what the side table does not say is None."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    phy: int
    body_crc: int | None
    body_size: int | None


@attrs.frozen(kw_only=True)
class AckCheck:
    """Look for acknowledged sends, ascending by place, in one segment."""

    segment: LogFile
    sends: Sequence[Send]


@attrs.frozen(kw_only=True)
class AckFault:
    """A send that is not in the log as it was acknowledged."""

    invariant: str
    send: Send
    expected: str | None = None
    actual: str | None = None


@attrs.frozen(kw_only=True)
class AckState:
    """What became of the sends of one task, and when those that are there were stored, by the topic of the send."""

    error: str | None = None
    faults: Sequence[AckFault] = ()
    found: Sequence[Tally] = ()


def check_sends(task: AckCheck) -> AckState:
    """Compare each send with the record at its place; a file that cannot be read is reported in ``error``."""
    phy = np.array([send.phy for send in task.sends], dtype=np.int64)
    faults: list[AckFault] = []
    found: dict[tuple[str, int], int] = {}
    try:
        inside = np.flatnonzero(phy < task.segment.stop)
        for part in windows(phy, inside):
            places, sends = Places(task.segment, phy[part]), [task.sends[row] for row in part.tolist()]
            wrong = list(_compare(places, sends))
            faults += wrong
            _count(places, sends, {id(one.send) for one in wrong if one.invariant == "AK-LOST"}, found)
    except ReadError as error:
        return AckState(error=str(error))
    faults += [
        AckFault(invariant="AK-LOST", send=send, actual="after the end of the file")
        for send in task.sends
        if send.phy >= task.segment.stop
    ]
    return AckState(faults=faults, found=tallies(found))


def _count(places: Places, sends: Sequence[Send], lost: set[int], found: dict[tuple[str, int], int]) -> None:
    """Count the sends that are there by topic and window of the time when they were stored."""
    for index, send in enumerate(sends):
        if id(send) not in lost:
            window = int(places.columns.store_timestamp[int(places.row[index])]) // SPAN_MS
            found[send.topic, window] = found.get((send.topic, window), 0) + 1


def _compare(places: Places, sends: list[Send]) -> Iterator[AckFault]:
    columns, data = places.columns, places.data
    names = dict[int, bytes]()
    if len(columns):
        values = properties.values_of(data, columns, b"UNIQ_KEY")
        for row, at, size in zip(values.rows.tolist(), values.pos.tolist(), values.length.tolist(), strict=True):
            names[row] = data[at : at + size]
    for index, send in enumerate(sends):
        if not places.there[index]:
            yield AckFault(invariant="AK-LOST", send=send, expected=send.message_id, actual="no record")
            continue
        row = int(places.row[index])
        compressed = bool(int(columns.sys_flag[row]) & COMPRESSED)  # then the producer's body is not the stored one
        place, body = _place(places, index), _body(int(columns.crc[row]), int(columns.body_length[row]), send)
        right_place = place == (send.topic, send.queue_id, send.queue_offset)
        right_body = compressed or body == _body(send.body_crc, send.body_size, send)
        name = names.get(row, send.message_id.encode())
        # 5.x gives the messages of a batch one name; with the same CRC in the same place it is the message all the same
        known = send.body_crc is not None and not compressed and right_place and right_body
        if name != send.message_id.encode() and not known:
            text = name.decode("utf-8", "backslashreplace")
            yield AckFault(invariant="AK-LOST", send=send, expected=send.message_id, actual=text)
            continue
        if not right_place:
            expected = _text(send.topic, send.queue_id, send.queue_offset)
            yield AckFault(invariant="AK-PLACE", send=send, expected=expected, actual=_text(*place))
        if not right_body:
            expected = _body(send.body_crc, send.body_size, send)
            yield AckFault(invariant="AK-BODY", send=send, expected=expected, actual=body)


def _place(places: Places, index: int) -> tuple[str, int, int]:
    """Return topic, queue and queue offset as in the answer to a send: of a delayed message those it is meant for."""
    columns, row = places.columns, int(places.row[index])
    topic = columns.topic(places.data, row)
    queue_id, queue_offset = int(columns.queue_id[row]), int(columns.queue_offset[row])
    if topic == SCHEDULE_TOPIC:
        record = places.record(index)
        assert record is not None
        topic = record.value_of("REAL_TOPIC") or topic
        real_queue = record.value_of("REAL_QID")
        queue_id = int(real_queue) if real_queue is not None and real_queue.isdecimal() else queue_id
    return topic, queue_id, queue_offset


def _text(topic: str, queue_id: int, queue_offset: int) -> str:
    return f"{topic} queue {queue_id} offset {queue_offset}"


def _body(crc: int | None, size: int | None, send: Send) -> str:
    """Return what is said of a body, as far as the side table says it."""
    parts = [f"CRC {crc}" if send.body_crc is not None else "", f"{size} bytes" if send.body_size is not None else ""]
    return ", ".join(part for part in parts if part)


ACKED = Work("acked", check_sends, lambda task: task.sends[-1].phy - task.sends[0].phy)
