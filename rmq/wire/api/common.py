"""
The classes that several conversations share: versions, queues, topic and group configuration, subscriptions.

Their members, in alphabetical order of the wire names, are what Apache writes into bodies and configuration files.
"""

from __future__ import annotations

import msgspec

#: the broker id of a master.  Java: MixAll#MASTER_ID
MASTER_ID = 0
# bits of `TopicConfig.perm`.  Java: PermName
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
# bits of `TopicConfig.topic_sys_flag`.  Java: TopicSysFlag
SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB = 1, 2


def perm_text(perm: int) -> str:
    """Return ``RWX`` with ``-`` for each missing bit; X is inherit.  Java: PermName#perm2String"""
    return "".join(
        letter if perm & bit else "-" for letter, bit in zip("RWX", (PERM_READ, PERM_WRITE, PERM_INHERIT), strict=True)
    )


class DataVersion(msgspec.Struct, rename="camel", kw_only=True):
    """
    The version of a table: equal means unchanged, there is no order.

    ``timestamp`` is epoch milliseconds. ``state_version`` is 5.x's (who was master last); 0 equals absent, and is never
    sent.
    """

    counter: int = 0
    state_version: int | msgspec.UnsetType = msgspec.UNSET
    timestamp: int = 0

    def __post_init__(self) -> None:
        if not self.state_version:
            self.state_version = msgspec.UNSET


class MessageQueue(msgspec.Struct, rename="camel", kw_only=True, frozen=True, order=True):
    """One queue of a topic on one broker; also a map key in bodies."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker_name}:{self.queue_id}"


class KVTable(msgspec.Struct, rename="camel", kw_only=True):
    """Names with values: runtime info, KV configuration, order topics."""

    table: dict[str, str] = {}


class TopicConfig(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """
    One topic of a broker.

    ``perm``: 1 inherit, 2 write, 4 read. ``topic_filter_type``: SINGLE_TAG or MULTI_TAG.
    """

    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class TopicQueueMappingInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    The part of a static topic (5.x) that one broker group, ``bname``, has: its queue id by the queue id for clients.

    Java: TopicQueueMappingInfo
    """

    bname: str | None = None
    curr_id_map: dict[int, int] = {}
    dirty: bool = False
    epoch: int = 0
    scope: str | None = None
    topic: str | None = None
    total_queues: int = 0


class TopicConfigWrapper(msgspec.Struct, rename="camel", kw_only=True):
    """
    All topics of a broker by name, with the version of the table; 5.x adds the static ones among them.

    Java: TopicConfigSerializeWrapper, TopicConfigAndMappingSerializeWrapper
    """

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None


class SubscriptionGroupConfig(msgspec.Struct, rename="camel", kw_only=True):
    """One consumer group of a broker."""

    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupWrapper(msgspec.Struct, rename="camel", kw_only=True):
    """
    All consumer groups of a broker by name, with the version of the table.

    Java: SubscriptionGroupWrapper
    """

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class SubscriptionData(msgspec.Struct, rename="camel", kw_only=True):
    """
    What a consumer group wants of a topic.

    ``code_set`` holds the Java hash codes of ``tags_set``; both are empty for ``*`` and for SQL92. ``sub_version`` is
    epoch milliseconds of the subscription. C++ clients leave the sets out.
    """

    class_filter_mode: bool = False
    code_set: set[int] = set()
    expression_type: str | None = "TAG"
    sub_string: str = "*"
    sub_version: int = 0
    tags_set: set[str] = set()
    topic: str
