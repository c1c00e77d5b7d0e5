"""
Which brokers a controller hears: their heartbeats, and the ends of their connections.

Java: DefaultBrokerHeartbeatManager
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

#: silence after which a broker is lost, when its heartbeats name none.  Java: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME
DEFAULT_TIMEOUT_MS = 10_000
#: a broker whose connection closed is lost unless it is heard again so soon; heartbeats come every second. It is lost
#: at once when its port refuses connections
CLOSED_TIMEOUT_MS = 2_500
#: a broker may become master for so long after a heartbeat
FRESH_MS = 2_500
#: ``electionPriority`` of a broker that names none; the smallest one comes first
LAST_PRIORITY = 2**31 - 1

#: a broker: its group's name and its id
Key = tuple[str, int]


@attrs.define(kw_only=True, eq=False)
class Heard:
    """
    What a broker has said last; ``until_ms`` is when it is lost, in steady milliseconds.

    ``at_ms`` is when it said that; None once the connection that brought it has closed. ``is_gone``: its process has
    ended since.
    """

    channel: object
    at_ms: int | None
    until_ms: int
    epoch: int
    end_offset: int
    priority: int
    is_gone: bool = False


class Hearing:
    """
    The brokers that are heard.

    A controller that has just started, or that was stopped, has not heard what was sent to it meanwhile: until
    ``patient_until_ms`` a broker that is only silent is not lost, but no candidate either.
    """

    def __init__(self) -> None:
        self._heard: dict[Key, Heard] = {}
        self._patient_until_ms = 0

    def be_patient(self, now_ms: int) -> None:
        """Give all brokers their time again."""
        self._patient_until_ms = now_ms + DEFAULT_TIMEOUT_MS
        for heard in self._heard.values():
            heard.until_ms = max(heard.until_ms, self._patient_until_ms)

    def hear(
        self,
        key: Key,
        channel: object,
        now_ms: int,
        *,
        timeout_ms: int | None,
        epoch: int | None,
        end_offset: int | None,
        priority: int | None,
    ) -> None:
        """A broker lives."""
        until_ms = now_ms + (DEFAULT_TIMEOUT_MS if timeout_ms is None or timeout_ms <= 0 else timeout_ms)
        self._heard[key] = Heard(
            channel=channel,
            at_ms=now_ms,
            until_ms=until_ms,
            epoch=-1 if epoch is None else epoch,
            end_offset=-1 if end_offset is None else end_offset,
            priority=LAST_PRIORITY if priority is None else priority,
        )

    def closed(self, channel: object, now_ms: int) -> list[Key]:
        """Return the brokers whose connection closed; they must be heard again soon."""
        found = [key for key, heard in self._heard.items() if heard.channel is channel]
        for key in found:
            heard = self._heard[key]
            heard.until_ms = min(heard.until_ms, now_ms + CLOSED_TIMEOUT_MS)
            heard.at_ms = None
        return found

    def is_cut_off(self, key: Key) -> bool:
        """Tell whether the connection of a broker closed and it was not heard since."""
        heard = self._heard.get(key)
        return heard is not None and heard.at_ms is None

    def gone(self, key: Key) -> None:
        """The broker's process has ended: it is lost now, however patient we are."""
        self._heard[key].is_gone = True

    def forget(self, key: Key) -> None:
        """The broker is no longer one of its group."""
        self._heard.pop(key, None)

    def lives(self, key: Key, now_ms: int) -> bool:
        """Tell whether a broker has been heard and is not silent since."""
        heard = self._heard.get(key)
        return heard is not None and not heard.is_gone and now_ms < heard.until_ms

    def is_lost(self, key: Key, now_ms: int) -> bool:
        """Tell whether a broker has been silent for too long: another one has to become master."""
        heard = self._heard.get(key)
        if heard is not None and heard.is_gone:
            return True
        return now_ms >= self._patient_until_ms and not self.lives(key, now_ms)

    def candidates(self, broker_name: str, ids: Iterable[int], now_ms: int) -> dict[int, tuple[int, int, int]]:
        """
        Return which of ``ids`` may become master now, with epoch, end of the log and priority.

        One that has been silent for a moment is not lost yet, but it may be dead; elected, it would be alone in the
        SyncStateSet, and nobody could take its place.
        """
        found = {broker_id: self._heard.get((broker_name, broker_id)) for broker_id in ids}
        return {
            broker_id: (heard.epoch, heard.end_offset, heard.priority)
            for broker_id, heard in found.items()
            if heard is not None
            and now_ms < heard.until_ms
            and heard.at_ms is not None
            and now_ms - heard.at_ms < FRESH_MS
        }
