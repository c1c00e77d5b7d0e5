"""
Subscriptions as they are sent, and the exact filter behind the broker's filter by hash.

Java: FilterAPI#buildSubscriptionData
"""

from __future__ import annotations

from rmq.client.types import ReceivedMessage, Sql
from rmq.wire.api.common import SubscriptionData
from rmq.wire.record import java_hash

SQL92 = "SQL92"


def subscription(topic: str, expression: str | Sql, *, version: int) -> SubscriptionData:
    """Return the subscription of ``A || B``, ``*`` or an SQL92 expression; ``version`` is epoch milliseconds."""
    if isinstance(expression, Sql):
        return SubscriptionData(
            topic=topic, sub_string=expression.expression, expression_type=SQL92, sub_version=version
        )
    tags = {tag for part in expression.split("||") if (tag := part.strip())}
    if not tags or expression.strip() == "*":
        return SubscriptionData(topic=topic, sub_version=version)
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set={java_hash(tag) for tag in tags},
        sub_version=version,
    )


def wanted(data: SubscriptionData, message: ReceivedMessage) -> bool:
    """Whether the message has one of the tags: hashes of different tags may be equal."""
    return not data.tags_set or message.tags in data.tags_set
