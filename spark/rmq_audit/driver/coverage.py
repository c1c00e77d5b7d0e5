"""What was read and compared, and what no run checks."""

from __future__ import annotations

import attrs

#: bytes of a store that no finding speaks of, as (file, what of it, why); all others are checked
NOT_CHECKED = (
    (
        "commitlog/*",
        "headers and properties of a store that is checked alone, or that are alike on both sides",
        "no CRC covers them without enabledAppendPropCRC; what queues and index keep of them is compared",
    ),
    ("commitlog/*", "bytes after the first 8 of a BLANK record, and after the end of the log", "they may be anything"),
    ("consumequeue/*/*/*", "size and tagsCode of units before the log's begin", "their messages were deleted"),
    ("consumequeue/*/*/*", "bytes after the last unit of a queue", "the broker writes over them"),
    (
        "consumequeue/*/*/*",
        "further queues (INNER_MULTI_DISPATCH) of a store in which no broker has made a unit for one",
        "names and numbers of records may have come from a client",
    ),
    ("consumequeue_ext/*/*/*", "filter bitmaps, and units that no address leads to", "no record determines them"),
    ("batchconsumequeue", "the whole folder", "another format, of 5.x"),
    ("consumequeue_rocksdb", "the whole folder, or RocksDB's files in `consumequeue`", "another format, of 5.x"),
    (
        "index/*",
        "hash and time of entries before the log's begin or after its end",
        "there is no record to compare with",
    ),
    ("index/*", "bytes after the last entry, and entry 0", "nothing reads them"),
    ("index/*", "the last file of a store that is written during the audit", "it changes while it is read"),
    ("config/consumerOffset.json", "offsets within their queue", "only the group knows; --previous compares them"),
    (
        "config/topics.json, config/subscriptionGroup.json",
        "settings of the right kind, in a store alone or alike on both sides",
        "they are what operators have set",
    ),
    (
        "config/delayOffset.json",
        "offsets within their queue that are not beyond the master's",
        "they are the progress of deliveries",
    ),
    ("config/*", "all other files, but that they can be loaded", "clients and operators set them"),
    (
        "config/*",
        "tables of a store that is being written; of dumps, and of sides whose ends differ, against each other",
        "they may be from different moments",
    ),
    (
        "checkpoint",
        "its times, but that none is after the last message where the file abort is there",
        "they only say where recovery starts to read",
    ),
    ("checkpoint.rmq", "the whole file", "it only says where recovery starts to read"),
    ("abort", "its content", "only its presence matters"),
    ("epochFileCheckpoint", "epochs after the common end; all of them in a store alone", "only a pair can be compared"),
    (
        "*",
        "all other files and folders (timerwheel, timerlog, compaction, lock, ...)",
        "the audit does not know their formats",
    ),
)

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
    """
    What the verdict rests on; ``complete`` is false when something of the inventory was not read or not compared.

    ``not_checked`` names the bytes that no run checks.
    """

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
    not_checked: list[dict[str, str]] = attrs.field(
        factory=lambda: [{"file": file, "what": what, "why": why} for file, what, why in NOT_CHECKED]
    )
