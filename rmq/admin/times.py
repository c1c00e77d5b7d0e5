"""Times as people read and write them."""

from __future__ import annotations

from datetime import UTC, datetime

#: a number below is no time of a message; where one is given, an offset is meant
EARLIEST_MS = 100_000_000_000


def time_text(at_ms: int) -> str | None:
    """Return epoch milliseconds as ISO 8601 in UTC; None for no time."""
    if at_ms <= 0:
        return None
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ms % 1000:03d}Z"


def parse_time(text: str) -> int:
    """
    Return the epoch milliseconds of a time, or raise a ValueError.

    ISO 8601, in UTC where it names no zone; a number of milliseconds; or mqadmin's form with a #, which is local time.
    """
    if text.isdecimal():
        return int(text)
    if "#" in text:
        return round(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)  # Java: UtilAll#parseDate
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
