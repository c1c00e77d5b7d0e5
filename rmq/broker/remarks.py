"""Texts of answers that people and tools compare with Apache's."""

from __future__ import annotations

from datetime import UTC, datetime

from rmq.wire.api.common import TopicConfig

#: appended where Apache points to its FAQ.  Java: FAQUrl#suggestTodo
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

SLAVE_REFUSES_CHANGES = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)


def perm_text(perm: int) -> str:
    """Return ``RWX`` with ``-`` for what is missing; X is inherit.  Java: PermName#perm2String"""
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


def describe_topic(topic: TopicConfig) -> str:
    """Java: TopicConfig#toString"""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def human_time(epoch_ms: int) -> str:
    """Return ``2026-11-21 08:00:00,000`` (UTC).  Java: UtilAll#timeMillisToHumanString2"""
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S},{epoch_ms % 1000:03d}"
