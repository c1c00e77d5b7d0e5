"""
Response codes and remarks that clients and tools compare with Apache's.

Java: SendMessageProcessor#handlePutMessageResult
"""

from __future__ import annotations

from datetime import UTC, datetime

from rmq.broker.config import BrokerConfig
from rmq.broker.filters import SQL92
from rmq.remoting.responders import Refuse
from rmq.store.messages import PutStatus
from rmq.store.store import MessageStore
from rmq.wire.api.common import TopicConfig, perm_text
from rmq.wire.codes import ResponseCode

#: appended where Apache points to its FAQ.  Java: FAQUrl#suggestTodo
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

SLAVE_REFUSES_CHANGES = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)
LMQ_QUEUES_EXCEEDED = (
    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
    "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
)
#: the message is stored; 10, 11 and 12 say what was missed.
STORED_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def put_refusal(status: PutStatus, store: MessageStore, max_message_bytes: int) -> tuple[int, str]:
    """Return code and remark for a message that was not stored."""
    if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        return ResponseCode.MESSAGE_ILLEGAL, illegal(max_message_bytes)
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        return ResponseCode.SERVICE_NOT_AVAILABLE, service_not_available(store)
    if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return ResponseCode.SYSTEM_ERROR, f"create mapped file failed, server is busy or broken.{_reason(store)}"
    if status is PutStatus.OS_PAGE_CACHE_BUSY:
        return ResponseCode.SYSTEM_ERROR, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    if status is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
        return ResponseCode.SYSTEM_ERROR, LMQ_QUEUES_EXCEEDED
    return ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"


def check_filter_type(broker: BrokerConfig, expression_type: str | None) -> None:
    """Raise Refuse for a filter that is no tag filter, unless it is a SQL92 filter and the configuration allows it."""
    if expression_type != SQL92 or not broker.enable_property_filter:
        raise Refuse(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )


def illegal(max_message_bytes: int) -> str:
    """The remark of a message that is too long or otherwise impossible."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {max_message_bytes}B, msg properties length limit 32KB."
    )


def service_not_available(store: MessageStore) -> str:
    """The remark of a store that takes nothing now.  Java: SendMessageProcessor#diskUtil"""
    return (
        "service not available now. It may be caused by one of the following reasons: "
        f"the broker's disk is full [CL: {store.disk_usage.used_ratio:5.2f}], messages are put to the slave, "
        f"message store has been shut down, etc.{_reason(store)}"
    )


def _reason(store: MessageStore) -> str:
    """What Apache leaves to its log: which disk, how full, and the key that says how full it may be."""
    reason = store.refuses_because
    return "" if reason is None else f" Now: {reason}"


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
