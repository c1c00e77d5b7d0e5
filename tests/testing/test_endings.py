"""Cancellations and closes on asyncio's own loop, and in the threads of the blocking client."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from rmq import blocking
from rmq.aio import CloseReport, From, Message, PushSettings, ReceivedMessage
from rmq.errors import AlreadySettled
from rmq.testing import cluster
from rmq.testing.aio import cluster as aio_cluster

FIRST = PushSettings(consume_from=From.FIRST, concurrency=2)


def test_shared_task_is_cancelled() -> None:
    """A handler that waits for a task which others cancel has failed: handlers go on, and the message comes again."""

    async def main() -> None:
        async with aio_cluster() as mq, mq.client() as client:
            topic, group = mq.topic(queues=1), mq.group()
            got: list[tuple[bytes, int]] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append((message.body, message.reconsume_times))
                if message.body.startswith(b"bad") and not message.reconsume_times:
                    shared = asyncio.ensure_future(asyncio.sleep(100))
                    asyncio.get_running_loop().call_soon(shared.cancel)
                    await shared

            await client.push_consumer(group, {topic: "*"}, handler=handle, settings=FIRST).start()
            for body in (b"bad 1", b"bad 2", b"good"):
                await client.producer().send(Message(topic, body))
            async with asyncio.timeout(30):
                while len(got) < 5:
                    mq.deliver_delayed_now()
                    await asyncio.sleep(0.05)
            assert sorted(got) == [(b"bad 1", 0), (b"bad 1", 1), (b"bad 2", 0), (b"bad 2", 1), (b"good", 0)]

    asyncio.run(main())


def test_end_of_the_loop() -> None:
    """A program that ends without a close ends: asyncio.run cancels the handler that runs, and those that wait."""
    cancelled: list[bool] = []

    async def main() -> None:
        async with aio_cluster() as mq:
            client = mq.client()
            await client.start()
            topic, running = mq.topic(), asyncio.Event()

            async def handle(message: ReceivedMessage) -> None:
                running.set()
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise

            await client.push_consumer(mq.group(), {topic: "*"}, handler=handle, settings=FIRST).start()
            await client.producer().send(Message(topic, b"x"))
            await running.wait()

    with pytest.warns(ResourceWarning):
        began = time.monotonic()
        asyncio.run(main())
        gc.collect()
    assert cancelled == [True]
    assert time.monotonic() - began < 30


def test_timeout_of_a_block() -> None:
    """A delivery whose block runs into asyncio.timeout comes again, and so does one whose `later` is cancelled."""

    async def main() -> None:
        async with aio_cluster() as mq, mq.client() as client:
            topic, group = mq.topic(queues=1), mq.group()
            for body in (b"slow", b"later"):
                await client.producer().send(Message(topic, body))
            consumer = client.push_consumer(group, {topic: "*"}, settings=FIRST)
            got: list[tuple[bytes, int]] = []
            async with asyncio.timeout(30):
                async for delivery in consumer:
                    message = delivery.message
                    got.append((message.body, message.reconsume_times))
                    if message.reconsume_times:
                        await delivery.ack()
                        with pytest.raises(AlreadySettled):
                            await delivery.ack()
                    elif message.body == b"slow":
                        with pytest.raises(TimeoutError):
                            async with asyncio.timeout(0.05), delivery:
                                await asyncio.sleep(100)
                    else:
                        asking = asyncio.create_task(delivery.later())
                        await asyncio.sleep(0)
                        asking.cancel()
                    if len(got) == 4:
                        break
                    if len(got) == 2:
                        await mq.wait_consumed(group, topic)
                        mq.deliver_delayed_now()
            assert sorted(got) == [(b"later", 0), (b"later", 1), (b"slow", 0), (b"slow", 1)]

    asyncio.run(main())


@pytest.mark.parametrize("of_client", [False, True])
def test_close_in_a_handler(of_client: bool) -> None:
    """A handler that closes its consumer or client does not wait; its message is consumed."""

    async def main() -> None:
        async with aio_cluster() as mq:
            client = mq.client()
            await client.start()
            topic, group = mq.topic(), mq.group()
            reports: list[CloseReport] = []

            async def handle(message: ReceivedMessage) -> None:
                # with a task of its own, as gather and older versions of wait_for make it
                reports.append(await asyncio.create_task((client if of_client else consumer).close()))

            consumer = client.push_consumer(group, {topic: "*"}, handler=handle, settings=FIRST)
            await client.producer().send(Message(topic, b"x"))
            async with asyncio.timeout(15):
                await consumer.run()
                report = await client.close()
            assert reports == [CloseReport()]
            assert report.handlers_cancelled == 0
            await mq.wait_consumed(group, topic, timeout_s=0)

    asyncio.run(main())


def test_wait_for_a_close() -> None:
    """A close that took too long for its caller goes on; that of the client waits for it."""

    async def main() -> None:
        async with aio_cluster() as mq:
            client = mq.client()
            await client.start()
            topic, group = mq.topic(), mq.group()
            running, may_end = asyncio.Event(), asyncio.Event()

            async def handle(message: ReceivedMessage) -> None:
                running.set()
                await may_end.wait()

            consumer = client.push_consumer(group, {topic: "*"}, handler=handle, settings=FIRST)
            await consumer.start()
            await client.producer().send(Message(topic, b"x"))
            await running.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.close(), 0.1)
            may_end.set()
            async with asyncio.timeout(15):
                await client.close()
            await mq.wait_consumed(group, topic, timeout_s=0)

    asyncio.run(main())


@pytest.mark.parametrize("of_client", [False, True])
def test_close_in_a_thread(of_client: bool) -> None:
    """The same for a handler of the blocking client: its thread does not wait, and the close elsewhere does."""
    with cluster() as mq:
        topic, group = mq.topic(), mq.group()
        reports: list[CloseReport] = []
        with mq.client() as client:

            def handle(message: ReceivedMessage) -> None:
                reports.append((client if of_client else consumer).close())

            settings = blocking.PushSettings(consume_from=From.FIRST)
            consumer = client.push_consumer(group, {topic: "*"}, handler=handle, settings=settings)
            client.producer().send(Message(topic, b"x"))
            began = time.monotonic()
            consumer.run()
        assert client.close().handlers_cancelled == 0
        assert time.monotonic() - began < 15
        assert reports == [CloseReport()]
        mq.wait_consumed(group, topic, timeout_s=0)
