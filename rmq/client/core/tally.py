"""
How fast messages came and were handled lately, for tools.

Java: ConsumerStatsManager, StatsItem
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

from rmq.wire.api.forwarding import ConsumeStatus

SLOT_S = 10.0
#: slots of a minute, for rates, and of an hour, for failures
MINUTE, HOUR = 6, 360


@attrs.define
class _Slot:
    """What happened in one slot: pulls with their messages and seconds; handlers likewise."""

    number: int
    pulls: int = 0
    pulled: int = 0
    pull_s: float = 0.0
    handlers: int = 0
    handler_s: float = 0.0
    consumed: int = 0
    failed: int = 0


class Tally:
    """One topic of a member; ``now_s`` is steady time, in seconds."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._slots: deque[_Slot] = deque(maxlen=HOUR)

    def pulled(self, now_s: float, messages: int, seconds: float) -> None:
        """Count a pull that brought messages."""
        slot = self._slot(now_s)
        slot.pulls += 1
        slot.pulled += messages
        slot.pull_s += seconds

    def handled(self, now_s: float, consumed: int, failed: int, seconds: float) -> None:
        """Count a handler that has ended, with the messages of either outcome."""
        slot = self._slot(now_s)
        slot.handlers += 1
        slot.handler_s += seconds
        slot.consumed += consumed
        slot.failed += failed

    def _slot(self, now_s: float) -> _Slot:
        number = int(now_s / SLOT_S)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
        return self._slots[-1]

    def status(self, now_s: float) -> ConsumeStatus:
        """
        Return times in milliseconds and rates a second, of the last minute; failed messages of the last hour.

        Without a handler in the minute its time is that of the hour.
        """
        number = int(now_s / SLOT_S)
        hour = [slot for slot in self._slots if slot.number > number - HOUR]
        minute = [slot for slot in hour if slot.number > number - MINUTE]
        seconds = max(now_s - max(self._began_s, (number - MINUTE + 1) * SLOT_S), 1.0)
        handled = minute if any(slot.handlers for slot in minute) else hour
        return ConsumeStatus(
            pull_rt=_mean_ms((slot.pull_s, slot.pulls) for slot in minute),
            pull_tps=sum(slot.pulled for slot in minute) / seconds,
            consume_rt=_mean_ms((slot.handler_s, slot.handlers) for slot in handled),
            consume_ok_tps=sum(slot.consumed for slot in minute) / seconds,
            consume_failed_tps=sum(slot.failed for slot in minute) / seconds,
            consume_failed_msgs=sum(slot.failed for slot in hour),
        )


def _mean_ms(counts: Iterable[tuple[float, int]]) -> float:
    seconds, number = 0.0, 0
    for some_s, some in counts:
        seconds += some_s
        number += some
    return 1000 * seconds / number if number else 0.0
