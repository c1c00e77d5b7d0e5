"""
The client for programs without an event loop: one private asyncio loop in a thread of its own.

A program imports everything from here: ``from rmq.blocking import Client, Message``. docs/client.md has examples. What
can go wrong is in `rmq.errors`: `NotDelivered`, `NoRoute`, `Refused` and others, all of them RocketMqError.

Read in this order:

* `client`: all of it

It is meant for scripts, and for servers with a thread for each request.

Handlers of consumers run in threads of the client, not in the one that called it.

What always holds: every method waits for its end, and may be called from any thread.
"""

from rmq.blocking.client import Admin, Client, Producer, PullConsumer, PushConsumer, TransactionProducer
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
    "nearby",
]
