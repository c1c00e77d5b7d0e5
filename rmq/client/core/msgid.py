"""
Unique message ids, made by the producer.

::

    4 or 16 bytes  IP address
    2 bytes        process id
    4 bytes        a number of this process
    4 bytes        milliseconds since the begin of the month, local time
    2 bytes        counter

Java: MessageClientIDSetter
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from ipaddress import ip_address

_TAIL = struct.Struct(">IH")


class UniqueIds:
    """Ids of one process; ``number`` is drawn for it, ``month_of`` is asked once a month."""

    def __init__(self, ip: str, pid: int, number: int, month_of: Callable[[int], tuple[int, int]]) -> None:
        fixed = ip_address(ip).packed + struct.pack(">HI", pid & 0xFFFF, number & 0xFFFFFFFF)
        self._fixed = fixed.hex().upper()
        self._counter = 0
        self._month_of = month_of
        self._begin_ms = self._end_ms = 0

    def next(self, wall_ms: int) -> str:
        """Return a new id at an epoch time in milliseconds."""
        if not self._begin_ms <= wall_ms < self._end_ms:
            self._begin_ms, self._end_ms = self._month_of(wall_ms)
        self._counter = self._counter + 1 & 0xFFFF
        return self._fixed + _TAIL.pack(wall_ms - self._begin_ms & 0xFFFFFFFF, self._counter).hex().upper()


def local_month(wall_ms: int) -> tuple[int, int]:
    """Return the epoch milliseconds at which the month of ``wall_ms`` begins in local time, and the next one."""
    begin = datetime.fromtimestamp(wall_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=31)).replace(day=1)
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)
