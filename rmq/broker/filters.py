"""Subscriptions: what an expression selects, and how consume queue units are matched."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rmq.wire.api.common import SubscriptionData
from rmq.wire.record import java_hash

#: selects every message
SUB_ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
#: memory of a tag's code in a set
BYTES_PER_TAG = 100


class SubscriptionError(ValueError):
    """An expression cannot be read."""


def is_tag_type(expression_type: str | None) -> bool:
    """True for TAG and for an absent type.  Java: ExpressionType#isTagType"""
    return expression_type is None or expression_type in ("", TAG)


def parse_subscription(topic: str, expression: str | None, expression_type: str | None) -> SubscriptionData:
    """
    Return the subscription for ``TagA || TagB``, ``*`` or nothing; the text of other types is not parsed.

    Raises SubscriptionError.  Java: FilterAPI#build
    """
    if not is_tag_type(expression_type):
        if not expression:
            raise SubscriptionError(f"Expression can't be null! {expression_type}")
        return SubscriptionData(topic=topic, sub_string=expression, expression_type=expression_type or TAG)
    if expression is None or expression in ("", SUB_ALL):
        return SubscriptionData(topic=topic, sub_string=SUB_ALL)
    tags = split_tags(expression)
    if not tags and not expression.replace("|", ""):
        raise SubscriptionError("subString split error")
    return SubscriptionData(
        topic=topic, sub_string=expression, tags_set=set(tags), code_set={java_hash(tag) for tag in tags}
    )


def split_tags(expression: str) -> list[str]:
    """Return the tags of ``TagA || TagB``, each once."""
    return list(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))


def completed(subscription: SubscriptionData) -> SubscriptionData:
    """
    Return a heartbeat's subscription with the hash codes that some clients omit.

    The Python client sends neither tagsSet nor codeSet, C++ none for ``*``.
    """
    if subscription.code_set or not is_tag_type(subscription.expression_type) or subscription.sub_string == SUB_ALL:
        return subscription
    tags = subscription.tags_set or set(split_tags(subscription.sub_string))
    return msgspec.structs.replace(subscription, tags_set=tags, code_set={java_hash(tag) for tag in tags})


class TagCodes(frozenset[int]):
    """A set of tags codes as a predicate; compiled pulls read the set itself."""

    __slots__ = ()
    __call__ = frozenset.__contains__


def filter_bytes(matches: Callable[[int], bool] | None) -> int:
    """Return about how much memory a matcher takes."""
    return len(matches) * BYTES_PER_TAG if isinstance(matches, TagCodes) else 0


def tag_matcher(subscription: SubscriptionData) -> Callable[[int], bool] | None:
    """
    Return the predicate on a unit's tags code, None when every unit matches.

    It compares hash codes; the consumer compares the tags themselves.
    Java: ExpressionMessageFilter#isMatchedByConsumeQueue
    """
    if subscription.class_filter_mode or subscription.sub_string == SUB_ALL:
        return None
    return TagCodes(subscription.code_set)
