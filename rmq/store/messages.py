"""What goes into the store and what comes out of it."""

from __future__ import annotations

import enum
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from rmq.wire.record import BatchEntry as BatchEntry


class PutStatus(enum.Enum):
    """How a put went.  Java: PutMessageStatus"""

    PUT_OK = enum.auto()
    FLUSH_DISK_TIMEOUT = enum.auto()
    FLUSH_SLAVE_TIMEOUT = enum.auto()
    SLAVE_NOT_AVAILABLE = enum.auto()
    SERVICE_NOT_AVAILABLE = enum.auto()
    CREATE_MAPPED_FILE_FAILED = enum.auto()
    MESSAGE_ILLEGAL = enum.auto()
    PROPERTIES_SIZE_EXCEEDED = enum.auto()
    OS_PAGE_CACHE_BUSY = enum.auto()
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = enum.auto()
    UNKNOWN_ERROR = enum.auto()


#: with these the message is in the log and will be consumed
STORED = frozenset(
    (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE)
)


# Not frozen: one is made per message, and frozen attrs cost three times as much (performance figures in docs).
@attrs.define
class Message:
    """
    A message to be stored. Hosts are (address of 4 or 16 bytes, port); times are milliseconds since the epoch.

    ``properties`` is the string as it will be stored; ``wait_store_msg_ok`` False asks for an answer without waiting
    for sync or slave. ``was_stored`` is True for one that this broker took before and stores again in another place:
    maxMessageSize may have been lowered meanwhile.
    """

    topic: str
    queue_id: int
    body: bytes
    flag: int
    properties: str
    sys_flag: int
    born_timestamp: int
    born_host: tuple[bytes, int]
    store_host: tuple[bytes, int]
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_msg_ok: bool = True
    was_stored: bool = False


@attrs.define
class PutResult:
    """
    The outcome of a put; where the message lies when :attr:`ok`.

    ``phy_offset`` is that of the (first) record, ``next_offset`` the end of the (last) one, ``queue_offset`` the number
    of the first; ``msg_ids`` are offset ids joined by commas.
    """

    status: PutStatus
    phy_offset: int = -1
    next_offset: int = -1
    size: int = 0
    queue_offset: int = 0
    msg_ids: str = ""
    store_timestamp: int = 0
    count: int = 0

    @property
    def ok(self) -> bool:
        """True when the message is stored, whatever became of sync and slaves."""
        return self.status in STORED


class GetStatus(enum.Enum):
    """How a get went.  Java: GetMessageStatus"""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()


@attrs.define
class GetResult:
    """
    What a pull got: whole records, and where to go on.

    ``messages`` are ``count`` records; those of `Reader.pull` lie one behind the other in a single piece.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[bytes] = attrs.field(factory=list)
    size_bytes: int = 0
    suggest_slave: bool = False
    count: int = 0


@attrs.define
class QueryResult:
    """Messages found by key, oldest first, and up to where the index has got."""

    messages: list[bytes]
    last_update_timestamp: int
    last_update_phy_offset: int


class Replication(Protocol):
    """What a SYNC_MASTER asks before it answers a producer."""

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """Tell when enough slaves have all bytes before ``next_offset``, at the latest at ``deadline_ms``."""


class StoreError(Exception):
    """The store cannot do what was asked; the text names file and offset."""
