"""
SQL92 filters of consumer groups, from their heartbeats: ``config/consumerFilter.json``.

A group's filter outlives its members for a day, so that the file that Apache's broker finds is the one it would have
written. Pulls are served by it only while the group is online.

Java: ConsumerFilterManager, ConsumerFilterData
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import attrs
import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.filters import SQL92, SubscriptionError, is_tag_type
from rmq.runtime.clock import now_ms
from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.disk.statefile import read_state, write_state_soon
from rmq.wire import fastjson
from rmq.wire.api.common import SubscriptionData

if TYPE_CHECKING:
    from rmq.broker.sql92 import Sql92

FILE_NAME = "consumerFilter.json"
#: groups in a file are taken to have been offline for so long.  Java: ConsumerFilterManager#decode
ASSUMED_OFFLINE_MS = 30_000


def compile_filter(expression_type: str | None, expression: str | None) -> Sql92:
    """Return a filter that is no tag filter, ready for use. Raises SubscriptionError."""
    from rmq.broker.sql92 import compile_sql92  # it needs a parser that most brokers never use

    if expression_type != SQL92:
        raise SubscriptionError(f"the filter type {expression_type} is unknown")
    if not expression:
        raise SubscriptionError("the expression is empty")
    return compile_sql92(expression)


class BloomFilterData(msgspec.Struct, rename="camel", kw_only=True):
    """The bits of a group in the bit maps that Apache's broker keeps beside consume queues; ours uses none."""

    bit_num: int = 0
    bit_pos: list[int] = []


class ConsumerFilter(msgspec.Struct, rename="camel", kw_only=True):
    """
    The filter of a group for a topic; times are epoch milliseconds, ``client_version`` is the subVersion of clients.

    Java: ConsumerFilterData
    """

    bloom_filter_data: BloomFilterData | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: int = 0
    expression: str = ""
    expression_type: str = SQL92
    topic: str = ""

    def end(self, at_ms: int) -> None:
        self.dead, self.dead_time = True, max(at_ms, self.born_time)

    def revive(self) -> None:
        self.dead, self.dead_time = False, 0


class _TopicFilters(msgspec.Struct, rename="camel", kw_only=True):
    group_filter_data: dict[str, ConsumerFilter] = {}
    topic: str = ""


class _FilterFile(msgspec.Struct, rename="camel", kw_only=True):
    filter_data_by_topic: dict[str, _TopicFilters] = {}


class ConsumerFilters:
    """
    The filters of all groups. Changes are in memory until :meth:`persist`.

    ``keep_ms``: how long a filter is kept when its group is gone. ``error_percent`` and ``expected_groups`` are the
    dimensions of Apache's bit maps: a file of other dimensions would be ignored by its broker.
    """

    _log = Logger()

    def __init__(
        self, disk: Disk, directory: str, clock: IReactorTime, *, keep_ms: int, error_percent: int, expected_groups: int
    ) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._disk = disk
        self._clock = clock
        self._keep_ms = keep_ms
        self._bloom = BloomFilter.of(error_percent, expected_groups)
        #: group -> topic -> filter
        self._groups: dict[str, dict[str, ConsumerFilter]] = {}
        self._changed = False

    def __iter__(self) -> Iterator[ConsumerFilter]:
        return (one for topics in self._groups.values() for one in topics.values())

    def is_used(self, group: str) -> bool:
        """Return whether the group has a filter that is in use."""
        topics = self._groups.get(group)
        return topics is not None and not all(known.dead for known in topics.values())

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        topics = self._groups.get(group)
        return None if topics is None else topics.get(topic)

    def register(self, group: str, subscriptions: Collection[SubscriptionData]) -> SubscriptionError | None:
        """
        Take the filters of a heartbeat; return what is wrong with the first one that cannot be used.

        A filter that is replaced by one that cannot be used is removed: pulls are refused until the client sends a
        good one.
        """
        wanted = {one.topic: one for one in subscriptions if not is_tag_type(one.expression_type)}
        trouble: SubscriptionError | None = None
        for subscription in wanted.values():
            try:
                self._take(group, subscription)
            except SubscriptionError as error:
                trouble = trouble or error
        for topic, known in self._groups.get(group, {}).items():
            if topic not in wanted and not known.dead:
                self._end(known)
        return trouble

    def unregister(self, group: str) -> None:
        """The group is offline."""
        for known in self._groups.get(group, {}).values():
            if not known.dead:
                self._end(known)

    def _take(self, group: str, subscription: SubscriptionData) -> None:
        topics = self._groups.setdefault(group, {})
        known = topics.get(subscription.topic)
        text, kind, version = subscription.sub_string, subscription.expression_type or "", subscription.sub_version
        same = known is not None and (known.expression, known.expression_type) == (text, kind)
        if known is not None and version <= known.client_version:
            if known.dead and version == known.client_version:
                known.revive()
                self._changed = True
            return
        self._changed = True
        if known is not None and same:
            known.client_version = version
            known.revive()
            return
        try:
            compiled = compile_filter(kind, text)
        except SubscriptionError as error:
            topics.pop(subscription.topic, None)
            if not topics:
                del self._groups[group]
            self._log.warn(
                "the filter {expression} of group {group} for topic {topic} cannot be used: {error}",
                expression=text,
                group=group,
                topic=subscription.topic,
                error=error,
            )
            raise
        topics[subscription.topic] = ConsumerFilter(
            bloom_filter_data=self._bloom.data(f"{group}#{subscription.topic}"),
            born_time=now_ms(self._clock),
            client_version=version,
            consumer_group=group,
            expression=text,
            expression_type=kind,
            topic=subscription.topic,
        )
        self._log.info(
            "group {group} filters topic {topic} by {expression}",
            group=group,
            topic=subscription.topic,
            expression=text,
        )
        if compiled.ignored:
            self._log.warn(
                "the filter of group {group} for topic {topic} ends in front of {ignored}, as in Apache: the rest of "
                "{expression} is ignored",
                group=group,
                topic=subscription.topic,
                ignored=compiled.ignored,
                expression=text,
            )

    def _end(self, known: ConsumerFilter) -> None:
        known.end(now_ms(self._clock))
        self._changed = True

    # ---- the file ----

    def load(self) -> None:
        """Read the file; StateFileError when it exists and cannot be read."""
        found = read_state(self._disk, self.path, lambda data: fastjson.decode(data, _FilterFile))
        now = now_ms(self._clock)
        for topic, filters in (found.filter_data_by_topic if found is not None else {}).items():
            for group, one in filters.group_filter_data.items():
                if not one.dead_time:
                    one.end(now - ASSUMED_OFFLINE_MS)
                one.dead = True
                self._groups.setdefault(group, {})[topic] = one

    async def persist(self) -> None:
        """
        Drop what nobody has used for ``keep_ms``; write the file if anything has changed, while the reactor goes on.

        Calls must not overlap. DiskError when that fails, and the next call tries again.
        """
        now = now_ms(self._clock)
        for known in [one for one in self if one.dead and now - one.dead_time >= self._keep_ms]:
            topics = self._groups[known.consumer_group]
            del topics[known.topic]
            if not topics:
                del self._groups[known.consumer_group]
            self._changed = True
        if not self._changed:
            return
        by_topic: dict[str, _TopicFilters] = {}
        for known in self:
            filters = by_topic.setdefault(known.topic, _TopicFilters(topic=known.topic))
            filters.group_filter_data[known.consumer_group] = known
        content = msgspec.json.encode(_FilterFile(filter_data_by_topic=by_topic))
        self._changed = False
        try:
            await write_state_soon(self._disk, self.path, msgspec.json.format(content, indent=1))
        except DiskError:
            self._changed = True
            raise


# ---- Apache's bit maps ----

_MASK = (1 << 64) - 1


@attrs.frozen
class BloomFilter:
    """Places of a text's bits among ``bits``, ``hashes`` of them.  Java: BloomFilter"""

    bits: int
    hashes: int

    @classmethod
    def of(cls, error_percent: int, expected: int) -> BloomFilter:
        """Return the filter for ``expected`` texts of which ``error_percent`` may be found by mistake."""
        wrong = error_percent / 100
        bits = math.ceil(expected * math.log2(1 / wrong) * math.log2(math.e))
        return cls(bits=8 * math.ceil(bits / 8), hashes=max(1, math.ceil(math.log(wrong, 0.5))))

    def data(self, text: str) -> BloomFilterData:
        hashed = murmur3_64(text.encode())
        low, high = _signed(hashed & 0xFFFFFFFF), _signed(hashed >> 32)
        places = []
        for number in range(1, self.hashes + 1):
            combined = _signed((low + number * high) & 0xFFFFFFFF)
            places.append((~combined if combined < 0 else combined) % self.bits)
        return BloomFilterData(bit_num=self.bits, bit_pos=places)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3_64(data: bytes) -> int:
    """Return the lower half of MurmurHash3 x64 128 with seed 0.  Java: Guava's Hashing#murmur3_128, asLong"""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = 0
    for at in range(0, len(data), 16):
        block = data[at : at + 16]
        k1, k2 = int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")
        h1 ^= _rotated(k1 * c1 & _MASK, 31) * c2 & _MASK
        if len(block) == 16:
            h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _rotated(k2 * c2 & _MASK, 33) * c1 & _MASK
        if len(block) == 16:
            h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _mixed(h1) + _mixed(h2) & _MASK
