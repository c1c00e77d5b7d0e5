"""
Everything that a scan wants to know of the records of a buffer, gathered in one go: fields, queues, tags, CRCs.

With the compiled kernel one pass over the bytes answers all of it, while each record is in the processor's cache; the
numpy kernel asks one question after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from rmq_audit import kernel, properties
from rmq_audit.format import MAX_RECORD_BYTES, MIN_RECORD_BYTES
from rmq_audit.kernel import Columns, Ints


@attrs.frozen(kw_only=True)
class Asked:
    """What to find out beside the fields: whether bodies and properties match their CRCs; tagsCodes."""

    crc: bool = False
    tags: bool = False


@attrs.define(kw_only=True)
class Survey:
    """
    Records that follow each other; ``queues`` are the numbers of their queues, small ones from 0 on.

    ``tags`` are their tagsCodes, ``wrong_bodies`` and ``wrong_properties`` the indices of those whose body, or whose
    ``__CRC32#`` property, does not hold; None and empty where nobody asked.
    """

    columns: Columns
    queues: Ints
    tags: Ints | None
    wrong_bodies: Ints
    wrong_properties: Ints


def survey(data: bytes, at: int, stop: int, end: int, asked: Asked) -> Survey:
    """Look at the records that `kernel.records` returns for the same place."""
    if kernel.compiled is not None:
        limits = MIN_RECORD_BYTES, MAX_RECORD_BYTES
        found = kernel.compiled.survey(data, at, stop, end, *limits, asked.crc, asked.tags)
        table, queues, tags, wrong_bodies, wrong_properties, odd = found
        for row, place, length in odd:
            tags[row], _ = properties.text_hash(data, place, length)
        columns = Columns(*table)
        if tags is not None:
            properties.set_deliver_times(data, columns, tags)
        return Survey(
            columns=columns,
            queues=queues,
            tags=tags,
            wrong_bodies=wrong_bodies,
            wrong_properties=wrong_properties,
        )
    columns = kernel.records(data, at, stop, end)
    nothing = np.zeros(0, dtype=np.int64)
    return Survey(
        columns=columns,
        queues=kernel.queue_keys(data, columns),
        tags=properties.tags_codes(data, columns) if asked.tags else None,
        wrong_bodies=kernel.failed_crcs(data, columns) if asked.crc else nothing,
        wrong_properties=properties.failed_property_crcs(data, columns) if asked.crc else nothing,
    )


def joined(data: bytes, pieces: Sequence[Survey]) -> Survey:
    """Return what was found of consecutive records as one; ``data`` begins with the buffers of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    columns = kernel.concatenate([one.columns for one in pieces])
    before = np.cumsum([0, *(len(one.columns) for one in pieces)])[: len(pieces)]
    return Survey(
        columns=columns,
        queues=kernel.queue_keys(data, columns),
        tags=None if pieces[0].tags is None else np.concatenate([one.tags for one in pieces if one.tags is not None]),
        wrong_bodies=np.concatenate([one.wrong_bodies + b for one, b in zip(pieces, before, strict=True)]),
        wrong_properties=np.concatenate([one.wrong_properties + b for one, b in zip(pieces, before, strict=True)]),
    )
