"""A client for commands that send or consume."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmq.admin.command import Call
from rmq.client.flows.instance import Instance
from rmq.client.flows.producer import Producer
from rmq.client.flows.tracing import with_traces
from rmq.client.settings import ClientSettings, ProducerSettings
from rmq.client.types import Message
from rmq.tx.host import TwistedHost
from rmq.wire.codes import RequestCode

GROUP = "rmq-admin"


@asynccontextmanager
async def client(call: Call, *, trace: bool = False) -> AsyncIterator[Instance]:
    """Have a client, with the command's NameServers, account, TLS and timeout."""
    host = TwistedHost(call.platform, home="", tls=call.tls)
    settings = ClientSettings(ask_timeout_s=call.timeout_ms / 1000, trace=trace)
    instance = with_traces(Instance(host, call.namesrvs, call.credentials, settings))
    try:
        await instance.start()
        yield instance
    finally:
        await instance.close()


@asynccontextmanager
async def producer(call: Call, *, trace: bool = False) -> AsyncIterator[Producer]:
    """Have a producer of such a client."""
    async with client(call, trace=trace) as instance:
        yield Producer(instance, GROUP, settings_of(call))


def settings_of(call: Call) -> ProducerSettings:
    """Return the settings of a command's producer."""
    return ProducerSettings(send_timeout_s=call.timeout_ms / 1000)


def plan_send(call: Call, message: Message) -> None:
    """Print a message that ``--dry-run`` does not send."""
    values = {"topic": message.topic, "tags": message.tags, "keys": " ".join(message.keys), "bytes": len(message.body)}
    call.plan("a broker of the topic", RequestCode.SEND_MESSAGE_V2.name, {k: v for k, v in values.items() if v})
