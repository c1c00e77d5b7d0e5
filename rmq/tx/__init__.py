"""
The client on Twisted: the classes of `rmq.aio`, but what waits returns a Deferred.

A program imports everything from here: ``from rmq.tx import Client, Message``. docs/client.md has examples. What
can go wrong is in `rmq.errors`: `NotDelivered`, `NoRoute`, `Refused` and others, all of them RocketMqError.

Read in this order:

* `client`: the class that users begin with
* `host`: the reactor below

A plain handler runs in the reactor's thread and may return a Deferred; `in_thread` moves it to a thread.

What always holds: everything runs in the reactor's thread, and ends with the client.
"""

from rmq.client.core.allocate import AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH, by_config, nearby
from rmq.client.core.codec import Compression
from rmq.client.flows.admin import Progress
from rmq.client.flows.transactions import Outcome
from rmq.client.settings import ClientSettings, From, ProducerSettings, PullSettings, PushSettings
from rmq.client.types import (
    CloseReport,
    Credentials,
    Later,
    Message,
    MessageQueue,
    NotDurable,
    ReceivedMessage,
    Reject,
    SendResult,
    SendStatus,
    Sql,
)
from rmq.tx.client import Admin, Client, Producer, PullConsumer, PushConsumer, TransactionProducer, in_thread

__all__ = [
    "AVERAGE",
    "AVERAGE_BY_CIRCLE",
    "CONSISTENT_HASH",
    "Admin",
    "Client",
    "ClientSettings",
    "CloseReport",
    "Compression",
    "Credentials",
    "From",
    "Later",
    "Message",
    "MessageQueue",
    "NotDurable",
    "Outcome",
    "Producer",
    "ProducerSettings",
    "Progress",
    "PullConsumer",
    "PullSettings",
    "PushConsumer",
    "PushSettings",
    "ReceivedMessage",
    "Reject",
    "SendResult",
    "SendStatus",
    "Sql",
    "TransactionProducer",
    "by_config",
    "in_thread",
    "nearby",
]
