"""
Brokers that failed or were slow, which sends avoid for a while.

Java: MQFaultStrategy, LatencyFaultToleranceImpl
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from rmq.wire.api.common import MessageQueue

#: a send that took so long (seconds) keeps others away for so long.  Java: MQFaultStrategy#latencyMax
AVOIDED_S = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))
#: what a failed send counts as.  Java: MQFaultStrategy#updateFaultItem
FAILED_S = 30.0


@attrs.frozen
class _Last:
    latency_s: float
    usable_at_s: float


class Faults:
    """The last send to each broker, by its name."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def note(self, broker_name: str, latency_s: float, now_s: float, *, failed: bool) -> None:
        """A send to a broker has ended."""
        counts = FAILED_S if failed else latency_s
        avoided = next((avoided_s for least_s, avoided_s in AVOIDED_S if counts >= least_s), 0.0)
        self._last[broker_name] = _Last(latency_s, now_s + avoided)

    def usable(self, queues: Sequence[MessageQueue], now_s: float) -> list[MessageQueue]:
        """Return the queues of brokers that are not avoided; if all are, those of the better half of the brokers."""
        good = [queue for queue in queues if self._is_usable(queue.broker_name, now_s)]
        if good:
            return good
        brokers = sorted({queue.broker_name for queue in queues}, key=lambda name: (self._last[name].latency_s, name))
        better = set(brokers[: max(1, len(brokers) // 2)])
        return [queue for queue in queues if queue.broker_name in better]

    def _is_usable(self, broker_name: str, now_s: float) -> bool:
        last = self._last.get(broker_name)
        return last is None or now_s >= last.usable_at_s
