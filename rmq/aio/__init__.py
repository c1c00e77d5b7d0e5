"""
The client for asyncio, natively on the running loop; Twisted is never imported.

A program imports everything from here: ``from rmq.aio import Client, Message``. docs/client.md has examples. What
can go wrong is in `rmq.errors`: `NotDelivered`, `NoRoute`, `Refused` and others, all of them RocketMqError.

Read in this order:

* `client`: the class that users begin with
* `host`: the loop below; `connections`: sockets

The classes of producers and consumers are those of `rmq.client.flows`.

What always holds: everything belongs to the loop in which the client was entered, and ends with the client.
"""

from rmq.aio.client import Client
from rmq.client.core.allocate import AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH, by_config, nearby
from rmq.client.core.codec import Compression
from rmq.client.flows.admin import Admin, Progress
from rmq.client.flows.litepull import PullConsumer
from rmq.client.flows.producer import Producer
from rmq.client.flows.push import Delivery, PushConsumer
from rmq.client.flows.transactions import Outcome, Transaction, TransactionProducer
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
    "Delivery",
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
    "Transaction",
    "TransactionProducer",
    "by_config",
    "nearby",
]
