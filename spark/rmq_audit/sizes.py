"""Sizes and durations as people write them."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def bytes_of(value: Any) -> int:
    """Return the bytes that a number or a text like 64M stands for; ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = value.upper().removesuffix("IB").removesuffix("B") if isinstance(value, str) else ""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if found is None:
        raise ValueError(f"{value!r} is no size; examples: 65536, 64K, 64M")
    return int(found[1]) * _UNITS[found[2]]


def seconds_of(text: str) -> float:
    """Return the seconds that a text like 90s, 5m or 1h stands for; ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is no duration; examples: 30s, 5m, 1h")
    return float(found[1]) * _SECONDS[found[2]]
