"""A producer for commands that send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmq.admin.command import Call
from rmq.client.flows.instance import Instance
from rmq.client.flows.producer import Producer
from rmq.client.settings import ClientSettings, ProducerSettings
from rmq.tx.host import TwistedHost

GROUP = "rmq-admin"


@asynccontextmanager
async def producer(call: Call) -> AsyncIterator[Producer]:
    """Have a producer of the client, with the command's NameServers, account, TLS and timeout."""
    timeout_s = call.timeout_ms / 1000
    host = TwistedHost(call.platform, home="", tls=call.tls)
    instance = Instance(host, call.options.namesrvAddr, call.credentials, ClientSettings(ask_timeout_s=timeout_s))
    try:
        await instance.start()
        yield Producer(instance, GROUP, ProducerSettings(send_timeout_s=timeout_s))
    finally:
        await instance.close()
