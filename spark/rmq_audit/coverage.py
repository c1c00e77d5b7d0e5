"""What was read and compared: the part of a report that says what its silence is worth."""

from __future__ import annotations

import attrs

#: names of foreign files that a report holds
MAX_FOREIGN_NAMES = 20


@attrs.define(kw_only=True)
class SideCoverage:
    """
    What was read of one side. ``crcs_carried_over`` are bodies of the slave that equal digests vouch for.
    ``foreign_files`` lie in the store's folders under names that RocketMQ does not give, ``foreign_names`` are the
    first of them; they were not read. ``acked_sends_not_stored`` were refused, ``acked_sends_of_others`` are those of
    other brokers: rows of the side table that nothing was looked for.
    """

    files: int = 0
    bytes_total: int = 0
    bytes_read: int = 0
    bytes_unread: int = 0
    records: int = 0
    chunks: int = 0
    crcs_checked: int = 0
    crcs_carried_over: int = 0
    queues: int = 0
    units_checked: int = 0
    index_files: int = 0
    index_entries_checked: int = 0
    consumer_offsets_checked: int = 0
    acked_sends_checked: int = 0
    acked_sends_expired: int = 0
    acked_sends_without_place: int = 0
    acked_sends_not_stored: int = 0
    acked_sends_of_others: int = 0
    acked_sends_counted: int = 0
    foreign_files: int = 0
    foreign_names: list[str] = attrs.field(factory=list)


@attrs.define(kw_only=True)
class Coverage:
    """What the verdict rests on; ``complete`` is false when something of the inventory was not read or not compared."""

    complete: bool
    master: SideCoverage
    slave: SideCoverage | None
    chunks_compared: int
    chunks_equal: int
    chunks_different: int
    chunks_drilled: int
    bytes_compared: int
    splits: int
    splits_read_again: int
