"""
Our client as `bench.client` runs it: ``python -m bench.clientload aio|tx NAMESRV``.

A line of stdin is a command, a line of stdout its answer; all are JSON objects. ``{"do": "send", "topic", "bodyBytes",
"inFlight", "rate", "seconds"}`` sends for so long, with ``rate`` above 0 at that many a second. ``{"do": "consume",
"topic", "group", "count", "batch"}`` starts a push consumer at the first message and stops it after ``count``. An
answer has messages a second (``rate``), CPU of the process for each (``cpu_us``), the time from the call of a send to
its result (``p50``, ``p99``, in us), and ``bad``: what was not sent or did not come.

ClientLoad.java is the same for Java's client.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

import attrs

from rmq.client.settings import From, PushSettings
from rmq.client.types import Message
from rmq.errors import RocketMqError

Command = dict[str, Any]
Answer = dict[str, float]

CONSUME_DEADLINE_S = 120.0
POLL_S = 0.005


class Framework(Protocol):
    """What differs between asyncio and Twisted."""

    def sleep(self, seconds: float) -> Awaitable[object]: ...
    def all_of(self, coroutines: Iterable[Coroutine[Any, Any, None]]) -> Awaitable[object]: ...
    def next_line(self) -> Awaitable[str]: ...


@attrs.define
class Load:
    """Commands over a client, whichever it is."""

    framework: Framework
    client: Any
    producer: Any

    async def run(self) -> None:
        while line := await self.framework.next_line():
            command = json.loads(line)
            answer = await (self.send(command) if command["do"] == "send" else self.consume(command))
            print(json.dumps(answer), flush=True)

    async def send(self, command: Command) -> Answer:
        message = Message(command["topic"], b"x" * command["bodyBytes"])
        latencies: list[float] = []
        bad = 0
        cpu, began = time.process_time(), time.perf_counter()
        end = began + command["seconds"]
        interval = 1 / command["rate"] if command["rate"] else 0.0
        due = began

        async def one() -> None:
            nonlocal bad
            at = time.perf_counter()
            try:
                await self.producer.send(message)
                latencies.append(time.perf_counter() - at)
            except RocketMqError:
                bad += 1

        async def sender() -> None:
            """Send one after the other; at a rate, the next free one takes each turn."""
            nonlocal due
            while time.perf_counter() < end:
                if interval:
                    mine, due = due, due + interval
                    if (left := mine - time.perf_counter()) > 0:
                        await self.framework.sleep(left)
                await one()

        await self.framework.all_of(sender() for _ in range(command["inFlight"]))
        latencies.sort()
        answer = _figures(len(latencies), began, cpu)
        p50, p99 = (latencies[len(latencies) * percent // 100] * 1e6 for percent in (50, 99))
        return answer | {"bad": bad, "p50": p50, "p99": p99}

    async def consume(self, command: Command) -> Answer:
        batch, count = command["batch"], command["count"]
        got, first = 0, 0.0

        async def handler(messages: Any) -> None:
            nonlocal got, first
            first = first or time.perf_counter()
            got += len(messages) if batch > 1 else 1

        settings = PushSettings(consume_from=From.FIRST, batch_size=batch)
        cpu, deadline = time.process_time(), time.perf_counter() + CONSUME_DEADLINE_S
        consumer = self.client.push_consumer(
            command["group"], {command["topic"]: "*"}, handler=handler, settings=settings
        )
        await consumer.start()
        while got < count and time.perf_counter() < deadline:
            await self.framework.sleep(POLL_S)
        answer = _figures(count, first, cpu)
        await consumer.close()
        return answer | {"bad": count - got, "p50": 0.0, "p99": 0.0}


def _figures(messages: int, began: float, cpu: float) -> Answer:
    took, used = time.perf_counter() - began, time.process_time() - cpu
    return {"rate": messages / took, "cpu_us": used * 1e6 / max(1, messages)}


class _Asyncio:
    sleep: Callable[[float], Awaitable[object]] = staticmethod(asyncio.sleep)

    def all_of(self, coroutines: Iterable[Coroutine[Any, Any, None]]) -> Awaitable[object]:
        return asyncio.gather(*coroutines)

    def next_line(self) -> Awaitable[str]:
        return asyncio.to_thread(sys.stdin.readline)


async def _on_asyncio(namesrv: str) -> None:
    from rmq.aio import Client

    async with Client(namesrv) as client:
        await Load(_Asyncio(), client, client.producer("bench-producers")).run()


def _on_twisted(namesrv: str) -> None:
    from twisted.internet.defer import Deferred, gatherResults
    from twisted.internet.task import deferLater, react
    from twisted.internet.threads import deferToThread

    from rmq.tx import Client

    async def work(reactor: Any) -> None:
        class Twisted:
            def sleep(self, seconds: float) -> Awaitable[object]:
                return deferLater(reactor, seconds)

            def all_of(self, coroutines: Iterable[Coroutine[Any, Any, None]]) -> Awaitable[object]:
                return gatherResults([Deferred.fromCoroutine(each) for each in coroutines])

            def next_line(self) -> Awaitable[str]:
                return deferToThread(sys.stdin.readline)

        client = Client(reactor, namesrv)
        await client.start()
        await Load(Twisted(), client, client.producer("bench-producers")).run()
        await client.close()

    react(lambda reactor: Deferred.fromCoroutine(work(reactor)))


def main() -> None:
    face, namesrv = sys.argv[1:]
    if face == "aio":
        asyncio.run(_on_asyncio(namesrv))
    else:
        _on_twisted(namesrv)


if __name__ == "__main__":
    main()
