"""
Names of message properties that the broker itself reads or writes.

Java: MessageConst
"""

from __future__ import annotations

CLUSTER = "CLUSTER"
DELAY = "DELAY"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
REAL_QUEUE_ID = "REAL_QID"
REAL_TOPIC = "REAL_TOPIC"
RETRY_TOPIC = "RETRY_TOPIC"
TRANSACTION_PREPARED = "TRAN_MSG"
WAIT = "WAIT"
