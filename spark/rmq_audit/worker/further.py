"""
Further queues of records: INNER_MULTI_DISPATCH names them, INNER_MULTI_QUEUE_OFFSET has the record's number in each.

A broker with ``enableMultiDispatch`` puts a unit of the one record into each of these queues. The driver decides from
the store whether its broker did so: anybody may send both properties to a broker that takes them for ordinary ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import attrs
import numpy as np

from rmq.wire.record import LMQ_PREFIX, PROPERTY_MULTI_DISPATCH, PROPERTY_MULTI_QUEUE_OFFSET, SCHEDULE_TOPIC
from rmq_audit.worker import kernel, properties
from rmq_audit.worker.kernel import Bools, Columns, Ints, Run

NAMES, NUMBERS = PROPERTY_MULTI_DISPATCH.encode(), PROPERTY_MULTI_QUEUE_OFFSET.encode()
_LIGHT, _SEPARATOR = LMQ_PREFIX.encode(), b","

#: a queue offset of more digits is none
_MAX_DIGITS = 17

#: Brokers of 5.x give no numbers to records of these topics: what such a record has was given to the one that it is a
#: copy of. Those of 4.9 give each copy numbers of its own.  Java: MixAll#topicAllowsLMQ
_COPIES = (b"%RETRY%", b"rmq_sys_", SCHEDULE_TOPIC.encode())

#: units of other queues than light ones that a split shows to the driver
MAX_SAMPLES = 16


@attrs.frozen(kw_only=True)
class Sample:
    """Where the unit of a record has to be in a further queue, if the broker makes such units."""

    topic: str
    queue_id: int
    queue_offset: int
    phy: int
    size: int


@attrs.define(kw_only=True)
class Spread:
    """
    A row for each unit that records claim, in the order of the log: one in their own queue, then one in each further
    queue, as a record of that queue would be. ``source`` is the row of the record, ``further`` marks the units of
    further queues, ``copied`` those of records whose numbers may be those of another record.
    """

    columns: Columns
    source: Ints
    further: Bools
    copied: Bools

    def chosen(self, rows: Ints) -> Spread:
        """Return the units with those numbers."""
        flags = self.source[rows], self.further[rows], self.copied[rows]
        return Spread(columns=self.columns.chosen(rows), source=flags[0], further=flags[1], copied=flags[2])


def spread(data: bytes, columns: Columns, having: Ints, apart: Collection[str]) -> Spread:
    """
    Return the units of records, of which those in the rows ``having`` have numbers in further queues.

    ``apart`` are the light queues that do not have the id 0 (without `enableLmq`), but that of the record's queue.
    A queue that a record names twice has it once.
    """
    own = np.arange(len(columns))
    # without a tuple for each claim: one record may name thousands of queues
    claims = np.fromiter(itertools.chain.from_iterable(_claims(data, columns, having, apart)), dtype=np.int64)
    source, topic_pos, topic_length, queue_id, queue_offset, copied = claims.reshape(-1, 6).T
    found = columns.chosen(np.concatenate((own, source)))
    found.topic_pos[len(own) :], found.topic_length[len(own) :] = topic_pos, topic_length
    found.queue_id[len(own) :], found.queue_offset[len(own) :] = queue_id, queue_offset
    whole = Spread(
        columns=found,
        source=np.concatenate((own, source)),
        further=np.arange(len(found)) >= len(own),
        copied=np.concatenate((np.zeros(len(own)), copied)).astype(np.bool_),
    )
    return whole.chosen(np.argsort(whole.source, kind="stable"))


def _claims(
    data: bytes, columns: Columns, having: Ints, apart: Collection[str]
) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """
    Yield row, place and length of the name, queueId and number of each further unit, and whether it may be a copy's.

    Java: ConsumeQueue#multiDispatchLmqQueue; ours: rmq.store.multidispatch.further_queues
    """
    some = columns.chosen(having)
    names, numbers = (properties.values_of(data, some, name) for name in (NAMES, NUMBERS))
    named = dict(zip(names.rows.tolist(), zip(names.pos.tolist(), names.length.tolist(), strict=True), strict=True))
    for one, pos, length in zip(numbers.rows.tolist(), numbers.pos.tolist(), numbers.length.tolist(), strict=True):
        at, size = named.get(one, (0, 0))
        of_names = data[at : at + size].rstrip(_SEPARATOR).split(_SEPARATOR)
        of_numbers = data[pos : pos + length].split(_SEPARATOR)
        if len(of_names) != len(of_numbers) or not all(n.isdigit() and len(n) <= _MAX_DIGITS for n in of_numbers):
            continue
        row, own_id = int(having[one]), int(some.queue_id[one])
        topic_at = int(some.topic_pos[one])
        topic = data[topic_at : topic_at + int(some.topic_length[one])]
        copied = topic.startswith(_COPIES)
        seen = {(topic, own_id, int(some.queue_offset[one]))}
        for name, number in zip(of_names, of_numbers, strict=True):
            light = name.startswith(_LIGHT) and not (apart and name.decode("utf-8", "backslashreplace") in apart)
            claim = name, 0 if light else own_id, int(number)
            if claim not in seen and _is_folder(name):
                seen.add(claim)
                yield row, at, len(name), claim[1], claim[2], copied
            at += len(name) + len(_SEPARATOR)


def _is_folder(name: bytes) -> bool:
    """Whether a queue of that name can be a folder: brokers make no queue of another name."""
    return name not in (b"", b".", b"..") and b"/" not in name and b"\0" not in name


def runs(data: bytes, found: Spread, base: int, tags: Ints | None) -> tuple[list[Run], list[Sample]]:
    """
    Return the runs of all queues that are further queues of a record, with their other records; and samples.

    Those of copies are runs of their own. ``tags`` are the tagsCodes of the records.
    """
    keys = kernel.queue_keys(data, found.columns)
    sure = np.flatnonzero(~found.copied & np.isin(keys, keys[found.further & ~found.copied]))
    made: list[Run] = []
    for rows, copied in ((sure, False), (np.flatnonzero(found.copied), True)):
        part = found.chosen(rows)
        codes = None if tags is None else tags[part.source]
        of_part = kernel.runs(data, part.columns, kernel.queue_keys(data, part.columns), base, codes)
        made += [attrs.evolve(run, further=True, copied=copied) for run in of_part]
    return made, list(_samples(data, found.chosen(np.flatnonzero(found.further & ~found.copied)).columns, base))


def _samples(data: bytes, columns: Columns, base: int) -> Iterator[Sample]:
    light = columns.topic_length >= len(_LIGHT)
    light[light] = kernel.items(data, columns.topic_pos[light], len(_LIGHT)).view(f"S{len(_LIGHT)}") == _LIGHT
    for row in np.flatnonzero(~light & kernel.owns_unit(columns))[:MAX_SAMPLES].tolist():
        yield Sample(
            topic=columns.topic(data, row),
            queue_id=int(columns.queue_id[row]),
            queue_offset=int(columns.queue_offset[row]),
            phy=int(columns.pos[row]) + base,
            size=int(columns.size[row]),
        )


def rows_of(data: bytes, found: Spread, run: Run) -> Ints:
    """Return the units of the queue of a run that begins with the first record."""
    keys = kernel.queue_keys(data, found.columns)
    for row in np.flatnonzero((found.source == 0) & (found.copied == run.copied)).tolist():
        if (found.columns.topic(data, row), int(found.columns.queue_id[row])) == (run.topic, run.queue_id):
            return np.flatnonzero((keys == keys[row]) & (found.copied == run.copied))
    return np.zeros(0, dtype=np.int64)
