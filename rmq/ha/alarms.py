"""Keep a log readable while the same thing goes wrong again and again."""

from __future__ import annotations

from collections.abc import Hashable

#: an alarm about the same thing is written once in this time
QUIET_MS = 60_000

#: different things that are remembered; the oldest make room
MAX_REMEMBERED = 256


class Alarms:
    """Tell which repetition of an alarm is worth a line in the log."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._said)

    def admit(self, key: Hashable, now_ms: int) -> int | None:
        """Return how many alarms with ``key`` were withheld since the last admitted one, or None: withhold this one."""
        said_ms, withheld = self._said.get(key, (None, 0))
        if said_ms is not None and 0 <= now_ms - said_ms < QUIET_MS:
            self._said[key] = (said_ms, withheld + 1)
            return None
        self._said.pop(key, None)
        while len(self._said) >= MAX_REMEMBERED:
            del self._said[next(iter(self._said))]
        self._said[key] = (now_ms, 0)
        return withheld
