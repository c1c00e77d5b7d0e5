"""What the responders share: tables, store, clock. Created once by :mod:`rmq.broker.service`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from rmq.broker.config import BrokerSetup
from rmq.broker.consumerfilters import ConsumerFilters
from rmq.broker.delays import Delays
from rmq.broker.groups import SubscriptionGroupTable, is_group_name
from rmq.broker.locks import QueueLocks
from rmq.broker.longpoll import LongPolls
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.sessions import ChangeNotices, ConsumerGroups, ProducerGroups
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import TopicDefaults, TopicTable
from rmq.runtime.clock import now_ms, steady_ms, wall_ms
from rmq.runtime.disk.files import Disk
from rmq.store.store import MessageStore
from rmq.wire.api.common import SubscriptionGroupConfig, TopicConfig


class Announcer(Protocol):
    """Announces changes of topics to the NameServers."""

    def topics_changed(self) -> object:
        """Register everything, without waiting for an answer."""

    def topic_updated(self, config: TopicConfig) -> Deferred[None]:
        """Register one topic; fires when the NameServers have answered or timed out."""

    def set_broker_permission(self, permission: int) -> None:
        """Publish topics with another brokerPermission from now on."""


@attrs.define(eq=False, kw_only=True)
class BrokerState:
    """One running broker."""

    setup: BrokerSetup
    clock: IReactorTime
    disk: Disk
    rng: Random
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    producers: ProducerGroups
    consumers: ConsumerGroups
    filters: ConsumerFilters
    notices: ChangeNotices
    locks: QueueLocks
    polls: LongPolls
    stats: BrokerStats
    delays: Delays
    announcer: Announcer
    store_host: tuple[bytes, int]
    topic_defaults: TopicDefaults
    delay_levels_ms: Sequence[int]
    #: steady time of the start
    boot_ms: int
    #: the configuration file that code 25 rewrites, None for none
    config_path: str | None = None

    @property
    def is_slave(self) -> bool:
        return self.setup.is_slave

    @property
    def now_ms(self) -> int:
        return now_ms(self.clock)

    @property
    def steady_ms(self) -> int:
        """The steady time, for expiry, locks and suspended pulls: changes of the wall clock do not affect them."""
        return steady_ms(self.clock)

    def wall_ms(self, steady_ms: int) -> int:
        """Return the wall clock time, by today's clock, of a steady time."""
        return wall_ms(self.clock, steady_ms)

    @property
    def up_ms(self) -> int:
        """How long this broker has been running."""
        return self.steady_ms - self.boot_ms

    @property
    def max_delay_level(self) -> int:
        return len(self.delay_levels_ms)

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """
        Return a group, created if that is allowed; None otherwise.

        A slave creates none in its table, which is its master's, but serves groups that its master would create.
        """
        if not self.is_slave:
            return self.groups.find(name)
        found = self.groups.get(name)
        if found is None and self.setup.broker.auto_create_subscription_group and is_group_name(name):
            return SubscriptionGroupConfig(group_name=name)
        return found

    def create_topic(self, topic: TopicConfig) -> None:
        """Add a topic that a message or a consumer needs, and register it."""
        self.topics.keep(topic)
        self.announcer.topics_changed()

    def announce_permission(self) -> None:
        """Register with a changed brokerPermission; the new version makes NameServers update every topic."""
        self.announcer.set_broker_permission(self.setup.broker.broker_permission)
        own = self.topics.get(self.setup.name)
        if own is not None:
            self.topics.put(own)
        self.announcer.topics_changed()
