"""
The subscription groups of a broker: ``config/subscriptionGroup.json``.

Java: SubscriptionGroupManager
"""

from __future__ import annotations

import re

from twisted.internet.interfaces import IReactorTime

from rmq.broker.tables import Shape, VersionedTable
from rmq.runtime.disk.files import Disk
from rmq.store.multidispatch import is_lmq
from rmq.wire.api.common import SubscriptionGroupConfig, SubscriptionGroupWrapper

MAX_GROUP_CHARS = 255
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

#: Java: MixAll
TOOLS_GROUPS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP")
BROADCAST_GROUPS = ("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER")

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


_SHAPE = Shape(
    file_name="subscriptionGroup.json",
    wrapper=SubscriptionGroupWrapper,
    entry=SubscriptionGroupConfig,
    table="subscription_group_table",
    member="subscriptionGroupTable",
    name="group_name",
)


class SubscriptionGroupTable(VersionedTable[SubscriptionGroupConfig, SubscriptionGroupWrapper]):
    """
    Subscription groups by name.

    With ``lmq`` every name of a light message queue is that of a group, which is not in the table.
    Java: SubscriptionGroupManager, LmqSubscriptionGroupManager
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        clock: IReactorTime,
        *,
        auto_create: bool = True,
        is_slave: bool = False,
        lmq: bool = False,
    ) -> None:
        super().__init__(_SHAPE, disk, directory, clock)
        self._lmq = lmq
        self._auto_create = auto_create
        self._is_slave = is_slave

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        if self._lmq and is_lmq(name):
            return SubscriptionGroupConfig(group_name=name)
        return super().get(name)

    def put(self, entry: SubscriptionGroupConfig) -> None:
        if not (self._lmq and is_lmq(entry.group_name)):
            super().put(entry)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """
        Return the group, made with defaults when it is new and may be made (``autoCreateSubscriptionGroup``, system
        groups); None otherwise, and for names that no group can have.

        A slave adds none to its table, which is its master's, but serves groups that its master would make.
        Java: SubscriptionGroupManager#findSubscriptionGroupConfig
        """
        found = self.get(group)
        if found is not None or not self._may_make(group):
            return found
        made = SubscriptionGroupConfig(group_name=group)
        if not self._is_slave:
            self.put(made)
        return made

    def _may_make(self, group: str) -> bool:
        return (self._auto_create or group.startswith(SYSTEM_GROUP_PREFIX)) and is_group_name(group)


def is_group_name(group: str) -> bool:
    """
    Return whether ``name`` is a valid group name.

    Java: Validators#checkGroup
    """
    return len(group) <= MAX_GROUP_CHARS and _LEGAL.fullmatch(group) is not None


def default_groups() -> list[SubscriptionGroupConfig]:
    """
    Return the groups that every broker has.

    Java: SubscriptionGroupManager#init
    """
    tools = [SubscriptionGroupConfig(group_name=name) for name in TOOLS_GROUPS]
    return tools + [
        SubscriptionGroupConfig(group_name=name, consume_broadcast_enable=True) for name in BROADCAST_GROUPS
    ]
