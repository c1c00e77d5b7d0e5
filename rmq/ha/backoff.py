"""How long a slave waits before it dials its master again."""

from __future__ import annotations

from random import Random

#: Apache's slaves dial every five seconds
FIRST_S = 5.0
LONGEST_S = 60.0
#: part of a pause that chance may add, so that the slaves of one master do not all come back at once
JITTER = 0.2


class Backoff:
    """Pauses of 5 s, 10 s, 20 s, 40 s, then up to a minute, each a little longer by chance."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._failures = 0

    def healthy(self) -> None:
        """The master was there and fits: the next pause is the first one again."""
        self._failures = 0

    def next_pause_s(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause_s = min(FIRST_S * 2.0 ** min(self._failures, 10), LONGEST_S / (1.0 + JITTER))
        self._failures += 1
        return min(pause_s * (1.0 + JITTER * self._rng.random()), LONGEST_S)
