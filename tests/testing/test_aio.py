"""The face for asyncio, under pytest-asyncio."""

from __future__ import annotations

import asyncio

import pytest

from rmq.aio import Client, ClientSettings, From, Message, PushSettings, ReceivedMessage
from rmq.testing import Cluster, aio

pytest.importorskip("pytest_asyncio")

FIRST = PushSettings(consume_from=From.FIRST)


@pytest.mark.asyncio
async def test_fixture(rmq: Cluster, rmq_aio_client: Client) -> None:
    """The client of the fixture talks to the servers of the session, on the loop of the test."""
    topic, group = rmq.topic(), rmq.group()
    await rmq_aio_client.producer().send(Message(topic, b"hello"))
    consumer = rmq_aio_client.push_consumer(group, {topic: "*"}, settings=FIRST)
    async for delivery in consumer:
        async with delivery as message:
            assert message.body == b"hello"
        break
    await consumer.close()


@pytest.mark.asyncio
async def test_wait_of_the_fixture(rmq: Cluster) -> None:
    """The wait that blocks its thread says what to do where a loop runs in it, and waits in another thread."""
    topic, group = rmq.topic(), rmq.group()
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        rmq.wait_consumed(group, topic)
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread\(rmq\.wait_messages, topic\)"):
        rmq.wait_messages(topic)
    await asyncio.to_thread(rmq.wait_consumed, group, topic)
    with pytest.raises(TimeoutError, match="0 messages, not 1"):
        await asyncio.to_thread(rmq.wait_messages, topic, timeout_s=0)


def test_own_cluster() -> None:
    """A cluster of the test's own needs no plugin, and never touches the loop but with its coroutines."""

    async def main() -> None:
        async with aio.cluster() as mq, mq.client() as client:
            topic, group = mq.topic(), mq.group()
            await client.producer().send(Message(topic, b"hello"))
            with pytest.raises(TimeoutError, match="1 message"):
                await mq.wait_consumed(group, topic, timeout_s=0)
            with pytest.raises(TimeoutError, match="1 messages, not 2"):
                await mq.wait_messages(topic, 2, timeout_s=0)
            assert [message.body for message in await mq.wait_messages(topic)] == [b"hello"]
            got: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)

            await client.push_consumer(group, {topic: "*"}, handler=handle, settings=FIRST).start()
            await mq.wait_consumed(group, topic)
            assert got == [b"hello"]

    asyncio.run(main())


def test_offsets_that_are_not_written_yet() -> None:
    """The wait asks the members what they have consumed: clients write offsets every five seconds, or more seldom."""

    async def main() -> None:
        seldom = ClientSettings(persist_offsets_s=3600)
        async with aio.cluster() as mq, mq.client(seldom) as client:
            topic, group = mq.topic(), mq.group()
            for number in range(8):
                await client.producer().send(Message(topic, b"%d" % number))
            await client.push_consumer(group, {topic: "*"}, handler=_handle, settings=FIRST).start()
            await mq.wait_consumed(group, topic)
            assert mq.unconsumed(group, topic) == 0
            with pytest.raises(TimeoutError, match="topic typo does not exist"):
                await mq.wait_consumed(group, "typo", timeout_s=0.01)

    asyncio.run(main())


async def _handle(message: ReceivedMessage) -> None:
    """Consume it."""
