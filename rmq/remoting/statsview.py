"""The request statistics of a port by names of codes, as in Apache's metrics."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from rmq.remoting.stats import BUCKETS_S, RequestStats
from rmq.wire.codes import RequestCode, ResponseCode

#: all codes without a name: a peer may send any number
UNKNOWN = "unknown"

_REQUEST_NAMES = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES = {int(code): code.name.lower() for code in ResponseCode}


def request_name(code: int) -> str:
    """Return ``get_routeinfo_by_topic`` for 105.  Java: RemotingMetricsConstant#REQUEST_CODE_MAP"""
    return _REQUEST_NAMES.get(code, UNKNOWN)


def response_name(code: int) -> str:
    """Return ``topic_not_exist`` for 17."""
    return _RESPONSE_NAMES.get(code, UNKNOWN)


@attrs.define
class Timed:
    """Answers to one kind of request: their number, seconds altogether, and number by class of BUCKETS_S."""

    count: int = 0
    seconds: float = 0.0
    buckets: list[int] = attrs.field(factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def add(self, stats: RequestStats, code: int) -> None:
        self.count += stats.counts.get(code, 0)
        self.seconds += stats.sums.get(code, 0.0)
        for index, number in enumerate(stats.buckets.get(code, ())):
            self.buckets[index] += number


def timed_by_name(stats: RequestStats) -> dict[str, Timed]:
    """Return the answers by name of the request code; codes without a name are one entry."""
    found: dict[str, Timed] = {}
    for code in list(stats.counts):
        found.setdefault(request_name(code), Timed()).add(stats, code)
    return found


def timed_of(stats: RequestStats, codes: Iterable[int]) -> Timed:
    """Return the sum of the answers to ``codes``."""
    timed = Timed()
    for code in codes:
        timed.add(stats, int(code))
    return timed


def bugs_by_name(stats: RequestStats) -> dict[str, int]:
    """Return the number of requests that a bug of ours left without their answer, by name of the request code."""
    return {request_name(code): count for code, count in list(stats.bugs.items())}


def refusals_by_name(stats: RequestStats) -> dict[tuple[str, str], int]:
    """Return the number of refusals by names of request and response code."""
    found: dict[tuple[str, str], int] = {}
    for (code, response), count in list(stats.refusals.items()):
        names = (request_name(code), response_name(response))
        found[names] = found.get(names, 0) + count
    return found
