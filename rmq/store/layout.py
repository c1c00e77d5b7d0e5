"""
Every path, magic number and structure of a store directory that is not the record itself.

Pure: the audit job imports this module into Spark executors. Sizes that a configuration decides are parameters.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable

COMMIT_LOG_DIR = "commitlog"
CONSUME_QUEUE_DIR = "consumequeue"
CONSUME_QUEUE_EXT_DIR = "consumequeue_ext"
BATCH_CONSUME_QUEUE_DIR = "batchconsumequeue"
ROCKSDB_CONSUME_QUEUE_DIR = "consumequeue_rocksdb"
INDEX_DIR = "index"
CONFIG_DIR = "config"
#: what 5.x keeps in RocksDB with storeType=defaultRocksDB, and a file that each of its folders has
ROCKSDB_DIRS = (CONSUME_QUEUE_DIR, "config/topics", "config/subscriptionGroups", "config/consumerOffsets")
ROCKSDB_FILE = "CURRENT"
CHECKPOINT_FILE = "checkpoint"
ABORT_FILE = "abort"
LOCK_FILE = "lock"
#: ours alone: at the root of a dump it says where that ends, and makes the audit read no further
MANIFEST_FILE = "manifest.json"
#: its name from when a broker runs on the dump, which grows then
RESTORED_MANIFEST_FILE = "manifest.json.restored"
#: ours alone: what was cut off the log although it was not all damaged
CUT_DIR = "cut"
#: what a broker with enableControllerMode keeps: its id at the controller, and while it applies for one
IDENTITY_FILE = "brokerIdentity"
APPLIED_IDENTITY_FILE = "brokerIdentity-temp"
#: the number of epochs of elected masters, then a line ``epoch-startOffset`` each
EPOCH_FILE = "epochFileCheckpoint"
#: ours alone, ignored by Apache: how far log, queues and index were surely on disk
PROGRESS_FILE = "checkpoint.rmq"

#: commit log and consume queue files are named by their start offset, zero padded
NAME_DIGITS = 20
#: index files are named by local time, yyyyMMddHHmmssSSS
INDEX_NAME_DIGITS = 17

#: phyOffset of the message, its size, its tagsCode
CQ_UNIT = struct.Struct(">qiq")
CQ_UNIT_BYTES = CQ_UNIT.size
#: stands in front of the first real unit of a queue that does not begin at 0
CQ_FILLER = CQ_UNIT.pack(0, 0x7FFFFFFF, 0)
CQ_FILLER_SIZE = 0x7FFFFFFF
#: a tagsCode up to here is an address in the extension file (address = offset in it - 2^63)
CQ_EXT_ADDRESS_MAX = -2147483649
CQ_EXT_BASE = -(1 << 63)
#: size, tagsCode, msgStoreTime, bitMapSize; the bitmap follows
CQ_EXT_UNIT = struct.Struct(">hqqh")
#: stands where the next unit does not fit into its file; so many bytes are always left for it
CQ_EXT_END = struct.Struct(">h")
CQ_EXT_END_BYTES = 4

#: beginTimestamp, endTimestamp, beginPhyOffset, endPhyOffset, hashSlotCount, indexCount
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_HEADER_BYTES = INDEX_HEADER.size
INDEX_SLOT = struct.Struct(">i")
INDEX_SLOT_BYTES = INDEX_SLOT.size
#: keyHash, phyOffset, seconds since beginTimestamp, entry before it in the chain
INDEX_ENTRY = struct.Struct(">iqii")
INDEX_ENTRY_BYTES = INDEX_ENTRY.size

CHECKPOINT_BYTES = 4096
#: physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp; 5.x adds masterFlushedOffset and confirmPhyOffset
CHECKPOINT = struct.Struct(">qqq")


@functools.lru_cache(maxsize=1024)
def file_name(offset: int) -> str:
    """Return the name of the commit log or consume queue file that starts at ``offset``."""
    return f"{offset:0{NAME_DIGITS}d}"


def file_start(name: str) -> int | None:
    """Return the start offset that ``name`` stands for; None when it is no such file's name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def file_starts(names: Iterable[str]) -> list[int]:
    """Return the start offsets of those ``names`` that are such files', sorted."""
    return sorted(start for name in names if (start := file_start(name)) is not None)


def is_queue_name(name: str) -> bool:
    """Tell whether ``name`` can be the folder of a queue: its number as it is written."""
    return name.isascii() and name.isdigit() and str(int(name)) == name


def is_index_name(name: str) -> bool:
    """Tell whether ``name`` can be an index file's."""
    return len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdigit()


def consume_queue_file_bytes(configured: int) -> int:
    """Return the true length of consume queue files: the configured one rounded up to whole units."""
    return -(-configured // CQ_UNIT_BYTES) * CQ_UNIT_BYTES


def index_file_bytes(slots: int, entries: int) -> int:
    """Return the length of an index file."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + entries * INDEX_ENTRY_BYTES


def index_slot_at(slot: int) -> int:
    """Return where in an index file a slot lies."""
    return INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES


def index_entry_at(slots: int, number: int) -> int:
    """Return where in an index file an entry lies; entry 0 is never used."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + number * INDEX_ENTRY_BYTES


def join(*parts: str) -> str:
    """Return a path; stores are only on systems whose separator is a slash."""
    return "/".join(parts)


def commit_log_dir(root: str) -> str:
    return join(root, COMMIT_LOG_DIR)


def consume_queue_dir(root: str, topic: str | None = None, queue_id: int | None = None) -> str:
    """Return the folder of all queues, of a topic's, or of one."""
    return _queue_folder(root, CONSUME_QUEUE_DIR, topic, queue_id)


def consume_queue_ext_dir(root: str, topic: str | None = None, queue_id: int | None = None) -> str:
    """Return the folder of all queues' extension files, of a topic's, or of one queue's."""
    return _queue_folder(root, CONSUME_QUEUE_EXT_DIR, topic, queue_id)


def _queue_folder(root: str, base: str, topic: str | None, queue_id: int | None) -> str:
    return join(root, base, *(str(part) for part in (topic, queue_id) if part is not None))


def index_dir(root: str) -> str:
    return join(root, INDEX_DIR)


def config_dir(root: str) -> str:
    return join(root, CONFIG_DIR)


def checkpoint_path(root: str) -> str:
    return join(root, CHECKPOINT_FILE)


def progress_path(root: str) -> str:
    return join(root, PROGRESS_FILE)


def abort_path(root: str) -> str:
    return join(root, ABORT_FILE)


def lock_path(root: str) -> str:
    return join(root, LOCK_FILE)
