"""
What the audit knows of RocketMQ's bytes beyond what the broker itself says of them: columns, field order, search
marks.
"""

from __future__ import annotations

import struct

import numpy as np

from rmq.wire import record

#: unsigned here, as they stand in the file
MAGIC_V1 = record.MAGIC_V1 & 0xFFFFFFFF
MAGIC_V2 = record.MAGIC_V2 & 0xFFFFFFFF
MAGIC_BLANK = record.MAGIC_BLANK & 0xFFFFFFFF

#: what both message magics begin with; a search for it finds either
MAGIC_PREFIX = MAGIC_V1.to_bytes(4, "big")[:3]

MIN_RECORD_BYTES = record.MIN_RECORD_BYTES
#: a larger totalSize is taken for damage; RocketMQ's own limit is 4 MiB by default and 16 MiB by its frames
MAX_RECORD_BYTES = 64 * 1024 * 1024
#: everything before the body when both hosts are IPv4 addresses
HEADER_BYTES = record.HEADS[0].size
#: two IPv6 hosts make the part before the body so much longer
MAX_HEADER_BYTES = record.HEADS[3].size
#: what may stand behind the body at most: a V2 topic and properties, as long as their length fields can say
MAX_TRAILER_BYTES = 2 + 32767 + 2 + 32767

#: how long a message of level 1, 2, … waits by the default messageDelayLevel
DELAY_LEVELS_MS = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))

#: totalSize and magic, all that a walk from record to record reads
SIZE_MAGIC = struct.Struct(">II")

#: the fixed part of a record whose two hosts are IPv4 addresses, by RocketMQ's names
HEADER = np.dtype([(name, {"i": ">i4", "q": ">i8", "4si": "V8"}[form]) for name, form in record.HEAD_FIELDS])

#: fields of a record up to its body as (RocketMQ's name, bytes); hosts grow by 12 for IPv6
HEADER_FIELDS = tuple(record.HEAD_WIDTHS.items())
