"""Look-ups of single messages, by key and by time, against what the same broker serves when everything is pulled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from random import Random

from rmq.remoting.client import Refused
from rmq.sim.history import Copy, keys_of
from rmq.sim.readers import ASK_TIMEOUT_MS, Observer
from rmq.wire.api.offsets import SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader
from rmq.wire.api.pulling import QUERY_MESSAGE, QueryMessageHeader
from rmq.wire.codes import ResponseCode
from rmq.wire.record import PROPERTY_UNIQ_KEY, Record, decode_records, find_property

#: so many messages of a broker are looked for by key, and so many moments in each of its queues
KEYS = 12
TIMES = 3
#: how many messages a query by key asks for
MAX_FOUND = 8


async def wrong_lookups(observer: Observer, name: str, addr: str, copies: Iterable[Copy], rng: Random) -> list[str]:
    """Return what a broker finds otherwise than it serves it, in words; RequestFailed when it does not answer."""
    served = [copy for copy in copies if copy.records]
    records = sorted((record for copy in served for record in copy.records), key=lambda record: record.phy_offset)
    wrong = []
    by_keys: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for key in names_of(record):
            by_keys.setdefault((record.topic, key), []).append(record.phy_offset)
    for record in rng.sample(records, min(KEYS, len(records))):
        for key in names_of(record):
            found = await by_key(observer, addr, record.topic, key)
            same = by_keys[record.topic, key]  # more than one where many share it, or a transaction was committed twice
            if places(found) != same[-MAX_FOUND:]:
                wrong.append(f"{name} finds {places(found)} by the key {key}, the newest are {same[-MAX_FOUND:]}")
    if records and (found := await by_key(observer, addr, records[0].topic, "never sent")):
        wrong.append(f"{name} finds {places(found)} by a key that nobody ever sent")
    for copy in served:
        times = [record.store_timestamp for record in copy.records]
        if times != sorted(times):
            continue  # its clock went back
        for _ in range(TIMES):
            time_ms = rng.randint(times[0] - 1000, times[-1] + 1000)
            offset = await by_time(observer, addr, copy, time_ms)
            expected = copy.min_offset + nearest(times, time_ms)
            if offset != expected:
                wrong.append(f"{name} has {copy.topic}:{copy.queue_id} at {offset} for {time_ms}, not at {expected}")
    return wrong


def names_of(record: Record) -> list[str]:
    """Return what a message is found by: its keys, and the id that the client gave it."""
    unique = find_property(record.properties.decode("utf-8", "replace"), PROPERTY_UNIQ_KEY)
    return list(dict.fromkeys([*keys_of(record), *([unique] if unique else [])]))


def places(records: Sequence[Record]) -> list[int]:
    return [record.phy_offset for record in records]


def nearest(times: Sequence[int], time_ms: int) -> int:
    """Return the place of the time nearest to another one, the earlier one of two that are equally near."""
    after = bisect_left(times, time_ms)
    if after in (0, len(times)):
        return min(after, len(times) - 1)
    return after if times[after] - time_ms < time_ms - times[after - 1] or times[after] == time_ms else after - 1


async def by_key(observer: Observer, addr: str, topic: str, key: str) -> list[Record]:
    """Ask for the newest messages with a key, in the order of the log."""
    header = QueryMessageHeader(topic=topic, key=key, max_num=MAX_FOUND, begin_timestamp=0, end_timestamp=1 << 60)
    try:
        response = await observer.remoting.invoke(addr, QUERY_MESSAGE, header, None, timeout_ms=ASK_TIMEOUT_MS)
    except Refused as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return []
    return decode_records(response.body)


async def by_time(observer: Observer, addr: str, copy: Copy, time_ms: int) -> int:
    """Ask which message of a queue was stored at a time."""
    header = SearchOffsetHeader(topic=copy.topic, queue_id=copy.queue_id, timestamp=time_ms)
    response = await observer.remoting.invoke(addr, SEARCH_OFFSET_BY_TIMESTAMP, header, None, timeout_ms=ASK_TIMEOUT_MS)
    return response.header.offset
