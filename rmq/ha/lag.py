"""How far behind a slave is in time, and how long its acknowledgements take."""

from __future__ import annotations

from bisect import bisect_right

#: places of the log whose time is remembered; then every second one is forgotten
MAX_MARKS = 1024


class EndMarks:
    """
    When the end of the log was where. Times are seconds of one clock, offsets physical.

    A mark is made at each push and each second, so answers are right to a second while the log rests, to a turn of the
    reactor while it grows, and coarser for what is long ago.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, end_offset: int, now_s: float) -> None:
        """Everything below ``end_offset`` is there now."""
        offsets = self._offsets
        if offsets and end_offset <= offsets[-1]:
            if end_offset == offsets[-1]:
                return
            # A shorter log than before: it was replaced, and what is known of the old one means nothing.
            offsets.clear()
            self._times.clear()
        offsets.append(end_offset)
        self._times.append(now_s)
        if len(offsets) > MAX_MARKS:
            keep = slice(len(offsets) % 2, None, 2)
            # The newest stays: it tells a log that rests from one that grows.
            self._offsets, self._times = [*offsets[keep], offsets[-1]], [*self._times[keep], self._times[-1]]
            if self._offsets[-2] == self._offsets[-1]:
                del self._offsets[-1], self._times[-1]

    def age_s(self, offset: int, now_s: float) -> float:
        """Return for how long the byte at ``offset`` has been there; 0 when there is none."""
        at = bisect_right(self._offsets, offset)
        return max(0.0, now_s - self._times[at]) if at < len(self._offsets) else 0.0

    def waited_s(self, before: int, offset: int, since_s: float, now_s: float) -> float | None:
        """
        Return how long the first bytes between two acknowledgements have waited for the second one.

        None when no mark lies between them, or one from before ``since_s``: that is catching up, not waiting.
        """
        at = bisect_right(self._offsets, before)
        if at == len(self._offsets) or self._offsets[at] > offset or self._times[at] < since_s:
            return None
        return max(0.0, now_s - self._times[at])
