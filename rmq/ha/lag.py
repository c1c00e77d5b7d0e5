"""How far behind a slave is in time, and how long its acknowledgements take."""

from __future__ import annotations

from bisect import bisect_right

#: places of the log whose time is remembered; then they are thinned out
MAX_MARKS = 1024
#: of marks that are older than so many times their distance one is enough; keeps about 700 of a month
COARSENESS = 32


class EndMarks:
    """
    When the end of the log was where. Times are seconds of one clock, offsets physical.

    A mark is made at each push and each second, so answers are right to a second while the log rests, to a turn of the
    reactor while it grows, and to some percent for what is long ago.
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
            self._thin_out(now_s)

    def _thin_out(self, now_s: float) -> None:
        """Keep the newest mark and, going back, those whose distance from the one kept before is worth their age."""
        kept = [len(self._times) - 1]
        for at in range(len(self._times) - 2, -1, -1):
            time_s = self._times[at]
            if (self._times[kept[-1]] - time_s) * COARSENESS >= now_s - time_s:
                kept.append(at)
        del kept[MAX_MARKS // 4 * 3 :]
        kept.reverse()
        self._offsets, self._times = [self._offsets[at] for at in kept], [self._times[at] for at in kept]

    def age_s(self, offset: int, now_s: float) -> float:
        """Return for how long the byte at ``offset`` has been there; 0 when there is none."""
        at = bisect_right(self._offsets, offset)
        return max(0.0, now_s - self._times[at]) if at < len(self._offsets) else 0.0

    def waited_s(self, before: int, offset: int, since_s: float, now_s: float) -> float | None:
        """
        Return how long the first bytes between two acknowledgements have waited for the second one.

        None when no mark lies between them, or one not after ``since_s``: that is catching up, not waiting.
        """
        at = bisect_right(self._offsets, before)
        if at == len(self._offsets) or self._offsets[at] > offset or self._times[at] <= since_s:
            return None
        return max(0.0, now_s - self._times[at])
