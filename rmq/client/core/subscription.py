"""
Subscriptions as they are sent, and the exact filter behind the broker's filter by hash.

Java: FilterAPI#buildSubscriptionData
"""

from __future__ import annotations

from collections.abc import Mapping

from rmq.client.types import ReceivedMessage, Sql
from rmq.errors import ConfigurationError
from rmq.wire.api.common import SubscriptionData
from rmq.wire.record import java_hash

SQL92 = "SQL92"


def subscription(topic: str, expression: str | Sql, *, version: int) -> SubscriptionData:
    """Return the subscription of ``A || B``, ``*`` or an SQL92 expression; ``version`` is epoch milliseconds."""
    if isinstance(expression, Sql):
        return SubscriptionData(
            topic=topic, sub_string=expression.expression, expression_type=SQL92, sub_version=version
        )
    if not isinstance(expression, str):
        raise ConfigurationError(f"topic {topic}: tags, '*' or Sql(...) are wanted, not {expression!r}")
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


def differing(ours: Mapping[str, SubscriptionData], group: Mapping[str, SubscriptionData]) -> list[str]:
    """Return where the subscriptions that a broker has of our group are not ours, in words for a log."""
    found = []
    for topic in sorted(ours.keys() | group.keys()):
        mine, theirs = (_expression(table.get(topic)) for table in (ours, group))
        if mine != theirs:
            found.append(f"topic {topic}: we {mine}, the group {theirs}")
    return found


def _expression(data: SubscriptionData | None) -> str:
    if data is None:
        return "nothing"
    if data.expression_type == SQL92:
        return f"SQL92 {data.sub_string}"
    tags = sorted({tag for part in data.sub_string.split("||") if (tag := part.strip())})
    return " || ".join(tags) or "*"
