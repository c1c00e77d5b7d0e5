"""Tests of `rmq.tx` with real sockets, as coroutines; pytest-twisted and trial run the same ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater

from rmq.broker.delays import park, restored
from rmq.client.settings import From
from rmq.errors import NotDelivered
from rmq.testing.servers import stored
from rmq.testing.tx import Cluster, Direct, InProcess
from rmq.tx import Client, Later, Message, Outcome, PullSettings, PushSettings, ReceivedMessage, Reject, SendStatus
from rmq.wire.record import SCHEDULE_TOPIC, decode_record

FIRST = PushSettings(consume_from=From.FIRST)


@asynccontextmanager
async def started(reactor: Any, **layout: Any) -> AsyncIterator[tuple[Cluster, Client]]:
    """Servers in this reactor and a client; nothing is left at the end."""
    servers = InProcess(reactor, **layout)
    mq = await servers.start()
    client = mq.client()
    try:
        await client.start()
        yield mq, client
        report = await client.close()
        assert (report.handlers_cancelled, report.offsets_not_written) == (0, 0), report
    finally:
        await client.close()
        await servers.stop()
    assert not Path(servers.dir).exists()


async def first_send_comes_soon(reactor: Any) -> float:
    """Return the seconds from nothing to the first acknowledged send."""
    began = reactor.seconds()
    async with started(reactor) as (mq, client):
        topic = await mq.topic("orders")
        result = await client.producer().send(Message(topic, b"hello"))
        took = reactor.seconds() - began
        assert result.status is SendStatus.OK
        assert [message.body for message in mq.messages(topic)] == [b"hello"]
        await mq.empty()
        assert mq.messages(topic) == []
        absent = ""
        try:
            await mq.wait_consumed("g", "typo", timeout_s=0.01)
        except TimeoutError as error:
            absent = str(error)
        assert absent.startswith("topic typo does not exist"), absent
    return float(took)


async def retries_and_dead_letters(reactor: Any) -> None:
    """A handler may return a Deferred; what fails comes again, what is rejected is a dead letter."""
    async with started(reactor, config={"messageDelayLevel": "1h 2h 3h"}) as (mq, client):
        topic, group = await mq.topic(), mq.group()
        got: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            await deferLater(reactor, 0.001)
            got.append((message.body, message.reconsume_times))
            if message.body == b"again" and not message.reconsume_times:
                raise Later
            if message.body == b"never":
                raise Reject

        producer = client.producer()
        await gatherResults([producer.send(Message(topic, body)) for body in (b"once", b"again", b"never")])
        await client.push_consumer(group, {topic: "*"}, handle, FIRST).start()
        await mq.wait_consumed(group, topic)
        await mq.deliver_delayed_now()
        await mq.wait_consumed(group, topic)
        assert sorted(got) == [(b"again", 0), (b"again", 1), (b"never", 0), (b"once", 0)]
        assert [message.body for message in mq.messages(f"%DLQ%{group}")] == [b"never"]


async def transactions_and_pulls(reactor: Any) -> None:
    """A message is seen when its transaction ends, or when the broker has asked for its end; a pull commits offsets."""
    async with started(reactor) as (mq, client):
        topic = await mq.topic(queues=1)
        asked: list[bytes] = []

        def check(message: ReceivedMessage) -> Outcome:
            asked.append(message.body)
            return Outcome.COMMIT

        cashier = client.transaction_producer(mq.group(), check)
        await cashier.end(await cashier.begin(Message(topic, b"paid")), Outcome.COMMIT)
        await cashier.end(await cashier.begin(Message(topic, b"cancelled")), Outcome.ROLLBACK)
        await cashier.end(await cashier.begin(Message(topic, b"forgotten")), Outcome.UNKNOWN)
        puller = await client.pull_consumer(
            mq.group(), {topic: "*"}, PullSettings(consume_from=From.FIRST, auto_commit=False)
        )
        pulled: list[bytes] = []
        while len(pulled) < 2:
            pulled += [message.body for message in await puller.getmany(timeout_s=20)]
        assert pulled == [b"paid", b"forgotten"] and asked == [b"forgotten"]
        await puller.commit()
        (queue,) = puller.assignment()
        assert await puller.committed(queue) == 2


async def faults_in_process(reactor: Any) -> None:
    """Faults work without a process, too; a held slave does not hold the end up."""
    async with started(reactor, slaves=1, role="SYNC_MASTER") as (mq, client):
        topic = await mq.topic()
        with mq.faults.drop_answers("SEND_MESSAGE", times=1) as fault:
            failed = False
            try:
                await client.producer().send(Message(topic, b"stored"), timeout_s=0.2)
            except NotDelivered as error:
                failed = error.may_be_stored
            assert failed and fault.count == 1
        assert [message.body for message in await mq.wait_messages(topic)] == [b"stored"]
        late = False
        try:
            await mq.wait_messages(topic, 2, timeout_s=0)
        except TimeoutError as error:
            late = "1 messages, not 2" in str(error)
        assert late
        mq.faults.hold_slave()
        sending: Deferred[Any] = client.producer().send(Message(topic, b"held"), timeout_s=10)
        assert (await sending).status is SendStatus.FLUSH_SLAVE_TIMEOUT


async def what_is_delayed_now(reactor: Any) -> None:
    """Delayed messages that come after the call, a retry that failed again for example, wait for their own time."""
    async with started(reactor, config={"messageDelayLevel": "1h"}) as (mq, client):
        topic = await mq.topic()
        await client.producer().send(Message(topic, b"in an hour", delay_level=1))
        (link,) = mq._links()
        assert isinstance(link, Direct)
        store = link.servers.brokers["broker-a"].service.store
        records = [decode_record(data) for _, data in stored(link.servers.brokers["broker-a"].service, SCHEDULE_TOPIC)]
        message = restored(records[0])
        assert message is not None
        delivered = mq.deliver_delayed_now()
        store.put(park(message, records[0].property_map, 1, 1))
        await delivered
        assert [message.body for message in mq.messages(topic)] == [b"in an hour"]
        # two at once, as after a call that was interrupted
        await gatherResults([mq.deliver_delayed_now(), mq.deliver_delayed_now()])
        assert len(mq.messages(topic)) == 2
        store.put(park(message, records[0].property_map, 1, 1))
        await deferLater(reactor, 0)
        assert len(mq.messages(topic)) == 2
