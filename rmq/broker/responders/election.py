"""
Requests that only a broker with enableControllerMode answers.

Java: AdminBrokerProcessor#getBrokerEpochCache, #notifyBrokerRoleChanged
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from rmq.broker.config import BrokerSetup
from rmq.remoting.responders import Reply, Request, responds_to
from rmq.store.epochs import Epoch
from rmq.store.store import MessageStore
from rmq.wire.api.controller import (
    GET_BROKER_EPOCH_CACHE,
    NOTIFY_BROKER_ROLE_CHANGED,
    EpochEntry,
    EpochEntryCache,
    RoleChangedHeader,
    SyncStateSet,
)


@attrs.define(eq=False)
class ElectionResponder:
    """The epochs of this broker's log, and the controller's notices."""

    _setup: BrokerSetup
    _store: MessageStore
    _broker_id: int
    _epochs: Callable[[], Sequence[Epoch]]
    #: called when the controller has notified this broker of a new master
    _notified: Callable[[], object]

    @responds_to(GET_BROKER_EPOCH_CACHE)
    def epochs(self, _: Request[None, None]) -> Reply:
        setup, epochs = self._setup, self._epochs()
        ends = [epoch.start for epoch in epochs[1:]]
        entries = [EpochEntry(epoch=epoch.number, start_offset=epoch.start) for epoch in epochs]
        for entry, end in zip(entries, ends, strict=False):
            entry.end_offset = end
        return Reply(
            body=EpochEntryCache(
                cluster_name=setup.broker.broker_cluster_name,
                broker_name=setup.name,
                broker_id=self._broker_id,
                epoch_list=entries,
                max_offset=self._store.end_offset,
                ha_server_addr=setup.ha_address,
            )
        )

    @responds_to(NOTIFY_BROKER_ROLE_CHANGED)
    def role_changed(self, _: Request[RoleChangedHeader, SyncStateSet]) -> None:
        # Who is master is asked of the controller itself: anybody could send this.
        self._notified()
