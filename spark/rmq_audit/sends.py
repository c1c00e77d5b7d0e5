"""Acknowledged sends looked up in one segment. This is what a worker runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rmq.wire.record import COMPRESSED, SCHEDULE_TOPIC
from rmq_audit import properties
from rmq_audit.files import ReadError
from rmq_audit.places import Places, windows
from rmq_audit.tally import SPAN_MS, tallies
from rmq_audit.tasks import AckCheck, AckFault, AckState, Send


def check_sends(task: AckCheck) -> AckState:
    """Compare each send with the record at its place; a file that cannot be read is told by ``error``."""
    phy = np.array([send.phy for send in task.sends], dtype=np.int64)
    faults: list[AckFault] = []
    found: dict[tuple[str, int], int] = {}
    try:
        inside = np.flatnonzero(phy < task.segment.stop)
        for part in windows(phy, inside):
            places, sends = Places(task.segment, phy[part], task.log_end), [task.sends[row] for row in part.tolist()]
            wrong = list(_compare(places, sends))
            faults += wrong
            _count(places, sends, {id(one.send) for one in wrong if one.invariant == "AK-LOST"}, found)
    except ReadError as error:
        return AckState(error=str(error))
    faults += [
        AckFault(invariant="AK-LOST", send=send, actual="behind the end of the file")
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
            told = _text(send.topic, send.queue_id, send.queue_offset)
            yield AckFault(invariant="AK-PLACE", send=send, expected=told, actual=_text(*place))
        if not right_body:
            told = _body(send.body_crc, send.body_size, send)
            yield AckFault(invariant="AK-BODY", send=send, expected=told, actual=body)


def _place(places: Places, index: int) -> tuple[str, int, int]:
    """Return topic, queue and queue offset as a producer is told them: of a delayed message those it is meant for."""
    columns, row = places.columns, int(places.row[index])
    at = int(columns.topic_pos[row])
    topic = places.data[at : at + int(columns.topic_length[row])].decode("utf-8", "backslashreplace")
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
