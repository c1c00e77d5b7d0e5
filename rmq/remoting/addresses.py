"""
Patterns of addresses in the files of access control.

Java: RemoteAddressStrategyFactory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import attrs


@attrs.frozen
class AddressPattern:
    """
    Addresses as Apache's files write them: ``*``, ``192.0.2.7``, ``192.0.2.*``, ``192.0.2.1-10``, ``192.0.*.*``,
    ``192.0.2.{4,5}``, several of them joined by commas, and the same for IPv6.

    ``alternatives`` hold a lowest and a highest number for each of the 4 or 8 segments; None matches every address.
    """

    alternatives: tuple[tuple[tuple[int, int], ...] | None, ...]

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """Raises ValueError with the wrong part."""
        return cls(tuple(_alternative(part) for part in _split_address(text)))

    def matches(self, host: str) -> bool:
        """Return whether ``host``, an address without port, matches."""
        if None in self.alternatives:
            return True
        if not self.alternatives:
            return False
        segments = _segments_of(host)
        return any(
            ranges is not None
            and len(ranges) == len(segments)
            and all(low <= number <= high for number, (low, high) in zip(segments, ranges, strict=True))
            for ranges in self.alternatives
        )


@lru_cache(maxsize=1024)  # a client's address comes with each of its requests
def _segments_of(host: str) -> Sequence[int]:
    """Return the segments of an address without port; none if it is no address."""
    try:
        return _segments(ip_address(host.partition("%")[0]))
    except ValueError:
        return ()


def _split_address(text: str) -> Iterator[str]:
    text = text.strip()
    if text.endswith("}"):
        head, brace, last = text[:-1].partition("{")
        if not brace or not head.endswith((".", ":")):
            raise ValueError(f"{text!r} is no address: {{...}} stands for the last segment")
        yield from (head + item.strip() for item in last.split(","))
    elif text:
        yield from (item.strip() for item in text.split(","))


def _alternative(text: str) -> tuple[tuple[int, int], ...] | None:
    if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return None
    if not any(sign in text for sign in "*-"):
        return tuple((number, number) for number in _segments(ip_address(text)))
    is_v6 = ":" in text
    base, highest, count = (16, 0xFFFF, 8) if is_v6 else (10, 255, 4)
    parts = text.split(":" if is_v6 else ".")
    if len(parts) != count:
        raise ValueError(f"{text!r} is no address: {count} segments are needed around * and -")
    ranges = []
    for part in parts:
        low, dash, high = part.strip().partition("-")
        span = (0, highest) if part.strip() == "*" else (int(low, base), int(high if dash else low, base))
        if not 0 <= span[0] <= span[1] <= highest:
            raise ValueError(f"{text!r} is no address: {part!r} is outside 0..{highest:{'x' if is_v6 else 'd'}}")
        ranges.append(span)
    return tuple(ranges)


def _segments(address: IPv4Address | IPv6Address) -> list[int]:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, IPv4Address):
        return list(address.packed)
    return [int(part, 16) for part in address.exploded.split(":")]
