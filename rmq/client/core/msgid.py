"""
Unique message ids, made by the producer.

::

    4 or 16 bytes  IP address
    2 bytes        process id
    4 bytes        a number of this process
    4 bytes        milliseconds since the begin of the month
    2 bytes        counter

Java: MessageClientIDSetter
"""

from __future__ import annotations

import struct
from ipaddress import ip_address

_TAIL = struct.Struct(">IH")


class UniqueIds:
    """Ids of one process; ``number`` is drawn for it."""

    def __init__(self, ip: str, pid: int, number: int) -> None:
        fixed = ip_address(ip).packed + struct.pack(">HI", pid & 0xFFFF, number & 0xFFFFFFFF)
        self._fixed = fixed.hex().upper()
        self._counter = 0

    def next(self, month_ms: int) -> str:
        """Return a new id; ``month_ms`` are the milliseconds since the begin of the month."""
        self._counter = self._counter + 1 & 0xFFFF
        return self._fixed + _TAIL.pack(month_ms & 0xFFFFFFFF, self._counter).hex().upper()
