"""The Python client as its users run it, against Apache's broker and ours, beside members in Java."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmq.aio import (
    Client,
    ClientSettings,
    From,
    Later,
    Message,
    MessageQueue,
    Outcome,
    PullSettings,
    PushConsumer,
    PushSettings,
    ReceivedMessage,
    Reject,
    SendStatus,
    Sql,
)
from tests.client.allocations import GOLDEN, drawn_cases
from tests.real import peers
from tests.real.conftest import Clients
from tests.real.goclient import GoClient
from tests.real.javaclient import SOURCE, compiled
from tests.real.peers import APACHE_4, OURS, Broker, Site, jars, mqadmin, require_apache

ROOT = Path(__file__).resolve().parent.parent.parent
ALLOCATIONS = SOURCE.with_name("Allocations.java")
DEADLINE_S = 120.0


def examples(name: str) -> list[str]:
    """Return the Python blocks of a document."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.real
@pytest.mark.parametrize("document", [pytest.param("README.md", marks=pytest.mark.smoke), "docs/client.md"])
def test_examples(document: str, site: Site) -> None:
    """Every Python example of the documents runs as it is printed there, and writes what it received."""
    namesrv = site.namesrv()
    site.broker(OURS, namesrv.addr)
    for example in examples(document):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            env=os.environ | {"NAMESRV_ADDR": namesrv.addr, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{example}\n{done.stdout}{done.stderr}"
        prints = ("print(message", "print((await received", "print(reply")
        shown = "b'hello" in done.stdout or not any(text in example for text in prints)
        assert shown, f"{example}\n{done.stdout}{done.stderr}"
        assert "print(kind" not in example or "Pub True True" in done.stdout, f"{example}\n{done.stdout}{done.stderr}"
        if 'print("span"' in example:
            *names, trace_id = zip(*(line.split()[1:] for line in done.stdout.splitlines()), strict=True)
            assert sorted(names[0]) == ["process", "send", "send"] and len(set(trace_id)) == 1, done.stdout
        assert "Warning" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len(examples(document)) >= (3 if document == "README.md" else 8)


@pytest.mark.real
def test_allocations_equal_java(tmp_path: Path) -> None:
    """
    10,000 drawn groups are allocated as Apache's classes allocate them, for each strategy.

    With RMQ_WRITE_GOLDEN=1 the file of the unit test is written again.
    """
    require_apache(APACHE_4)
    cases = list(drawn_cases(Random(497), 10_000))
    classpath = f"{compiled(APACHE_4, ALLOCATIONS)}{os.pathsep}{jars(APACHE_4)}/*"
    done = subprocess.run(
        ["java", "-Xmx200m", "-Dfile.encoding=UTF-8", "-cp", classpath, "Allocations"],
        input="".join(f"{case.line}\n" for case in cases).encode(),
        capture_output=True,
        timeout=DEADLINE_S,
    )
    answers = done.stdout.decode().splitlines()
    assert len(answers) == len(cases), done.stderr.decode()
    if os.environ.get("RMQ_WRITE_GOLDEN"):
        lines = zip(cases[:400], answers, strict=False)
        GOLDEN.write_text("".join(f"{case.line}\t{answer}\n" for case, answer in lines), encoding="utf-8")
    assert [case for case, answer in zip(cases, answers, strict=True) if case.answer() != answer] == []


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE_S))


async def until(condition: Any, what: str) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_S / 2
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.05)


def queues_of(members: list[PushConsumer], topic: str) -> list[frozenset[MessageQueue]]:
    return [frozenset(queue for queue in member.assignment() if queue.topic == topic) for member in members]


@pytest.mark.real
@pytest.mark.parametrize("kind", [APACHE_4, OURS])
def test_group_of_python_and_java(kind: str, site: Site, client: Clients) -> None:
    """
    Two Python members and one of Java share the queues of a topic; each message of Java's and Python's producers is
    consumed once, retries and dead letters too, and when members leave the others have all queues.
    """
    require_apache(APACHE_4)
    namesrv = site.namesrv()
    broker: Broker = site.broker(kind, namesrv.addr)
    java = client(APACHE_4, namesrv.addr)
    topic, group = "Mixed", "mixed"

    async def main() -> None:
        async with Client(namesrv.addr) as first, Client(namesrv.addr) as second:
            producer = first.producer()
            await producer.send(Message(topic, b"0", keys=("first-0",)))
            got: list[ReceivedMessage] = []

            async def handle(message: ReceivedMessage) -> None:
                if message.keys == ("python-7",) and not message.reconsume_times:
                    raise ValueError("not the first time")
                got.append(message)

            settings = PushSettings(consume_from=From.FIRST)
            members = [c.push_consumer(group, {topic: "*"}, handler=handle, settings=settings) for c in (first, second)]
            for member in members:
                await member.start()
            await asyncio.to_thread(java.consume, group, topic, "j")

            def shared() -> bool:
                mine, others = queues_of(members, topic)
                return not mine & others and sorted((len(mine), len(others))) == [1, 1]

            # 4 queues of 3 members: two, one and one, by the order of the client ids
            await until(lambda: len(frozenset.union(*queues_of(members, topic))) < 4, "Java has a queue")
            await until(lambda: not frozenset.intersection(*queues_of(members, topic)), "no queue has two owners")
            for number in range(60):
                result = await producer.send(Message(topic, b"%d" % number, tags="TagA", keys=(f"python-{number}",)))
                assert result.status is SendStatus.OK
            await asyncio.to_thread(java.send, topic, "sync", 60, prefix="java")

            def keys() -> list[str]:
                return [key for message in got for key in message.keys] + [event["key"] for event in java.got("j")]

            wanted = {f"{who}-{n}" for who in ("python", "java") for n in range(60)}
            await until(lambda: wanted <= set(keys()), "every message")
            assert {event["key"] for event in java.got("j")} & wanted
            assert {key for message in got for key in message.keys} & wanted
            await asyncio.to_thread(java.leave, "j")
            await until(lambda: len(frozenset.union(*queues_of(members, topic))) == 4, "the queues of Java's member")
            report = await second.close()
            assert (report.offsets_not_written, report.handlers_cancelled) == (0, 0)
            await until(lambda: len(queues_of(members, topic)[0]) == 4, "all queues")
            before = len(keys())
            await asyncio.to_thread(java.send, topic, "sync", 20, prefix="more")
            await until(lambda: len([k for k in keys() if k.startswith("more-")]) >= 20, "the last messages")
            assert len(keys()) - before == 20, "a message came twice"

    run(main())
    assert broker.alive


@pytest.mark.real
def test_group_of_python_and_go(site: Site, tmp_path: Path) -> None:
    """A Python member and one of Go have two queues each; every message of Go's producer is consumed once."""
    namesrv = site.namesrv()
    with site.broker(OURS, namesrv.addr).probe() as probe:
        probe.create_topic("Gophers", 4)
    go = GoClient(namesrv.addr, "Gophers", "gophers", tmp_path / "go")

    async def main() -> None:
        async with Client(namesrv.addr) as client:
            got: list[str] = []

            async def handle(message: ReceivedMessage) -> None:
                got.extend(message.keys)

            await until(lambda: go.happened("sent"), "Go sends")
            settings = PushSettings(consume_from=From.FIRST)
            member = client.push_consumer("gophers", {"Gophers": "*"}, handler=handle, settings=settings)
            await member.start()
            await until(lambda: len(queues_of([member], "Gophers")[0]) == 2, "two queues")

            def keys() -> list[str]:
                return got + [event["key"] for event in go.happened("got")]

            await asyncio.sleep(5)  # the time in which queues change their owner, and messages may come twice
            before, sent = len(keys()), len(go.happened("sent"))
            await until(lambda: len(go.happened("sent")) >= sent + 200, "200 more messages")
            last = {event["key"] for event in go.happened("sent")}
            await until(lambda: last <= set(keys()), "every message")
            recent = keys()[before:]
            assert len(recent) - len(set(recent)) == 0, "messages came twice"
            assert got and go.happened("got")

    try:
        run(main())
    finally:
        go.close()


@pytest.mark.real
@pytest.mark.parametrize("kind", [APACHE_4, OURS])
def test_every_kind(kind: str, site: Site) -> None:
    """
    Against Apache's broker and ours: delayed, compressed and selected messages, retries and dead letters, order, pulls
    with commits, transactions that end and one that the broker has to ask for, requests with replies.
    """
    if kind == APACHE_4:
        require_apache(APACHE_4)
    namesrv = site.namesrv()
    values: dict[str, Any] = {"transactionCheckInterval": 3000, "transactionTimeOut": 2000}
    site.broker(kind, namesrv.addr, enablePropertyFilter=True, **values)

    async def main() -> None:
        async with Client(namesrv.addr) as client:
            producer = client.producer()
            for topic in ("Kinds", "Ordered", "Pulled", "Paid", "Asked"):
                await producer.send(Message(topic, b"first"))
            got: list[ReceivedMessage] = []
            asked: list[ReceivedMessage] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message)
                if message.body == b"again" and not message.reconsume_times:
                    raise Later(delay_level=1)
                if message.body == b"never":
                    raise Reject

            def bodies() -> list[bytes]:
                return [message.body for message in got]

            async def check(message: ReceivedMessage) -> Outcome:
                asked.append(message)
                return Outcome.COMMIT

            async def answer(message: ReceivedMessage) -> None:
                if message.tags == "question":
                    await producer.reply(message, message.body.upper())

            first = PushSettings(consume_from=From.FIRST)
            await client.push_consumer("kinds", {"Kinds": "*", "Paid": "*"}, handler=handle, settings=first).start()
            await client.push_consumer("answers", {"Asked": "*"}, handler=answer, settings=first).start()
            chosen: list[bytes] = []

            async def choose(message: ReceivedMessage) -> None:
                chosen.append(message.body)

            by_price = {"Kinds": Sql("price BETWEEN 10 AND 20")}
            await client.push_consumer("choosers", by_price, handler=choose, settings=first).start()

            # transactions first: the broker asks for the unknown one while the rest goes on
            cashier = client.transaction_producer("cashier", check)
            async with cashier.transaction(Message("Paid", b"committed")):
                pass
            async with cashier.transaction(Message("Paid", b"unknown")) as transaction:
                transaction.unknown()
            with pytest.raises(LookupError):
                async with cashier.transaction(Message("Paid", b"rolled back")):
                    raise LookupError

            long = b"long " * 5000
            await producer.send(Message("Kinds", long, tags="A", keys=("k",)))
            began = asyncio.get_running_loop().time()
            for body in (b"delayed", b"again", b"never"):
                await producer.send(Message("Kinds", body, delay_level=2 if body == b"delayed" else 0))
            for price in (9, 15, 21):
                await producer.send(Message("Kinds", b"%d" % price, properties={"price": str(price)}))
            await until(lambda: {long, b"committed", b"15"} <= set(bodies()), "messages")
            await until(lambda: b"delayed" in bodies(), "the delayed message")
            assert asyncio.get_running_loop().time() - began > 4
            await until(lambda: bodies().count(b"again") == 2, "the retry")
            await until(lambda: chosen == [b"15"], "what the expression selects")

            reply = await producer.request(Message("Asked", b"how much", tags="question"), timeout_s=30)
            assert reply.body == b"HOW MUCH"

            # order
            order: list[tuple[bytes, int]] = []

            async def in_order(message: ReceivedMessage) -> None:
                order.append((message.body, message.reconsume_times))
                if message.body == b"2" and not message.reconsume_times:
                    raise Later

            ordered = PushSettings(consume_from=From.FIRST, orderly=True, suspend_queue_ms=100)
            for number in range(5):
                await producer.send(Message("Ordered", b"%d" % number), sharding_key="one")
            await client.push_consumer("ordered", {"Ordered": "*"}, handler=in_order, settings=ordered).start()
            wanted = [(b"0", 0), (b"1", 0), (b"2", 0), (b"2", 1), (b"3", 0), (b"4", 0)]
            await until(lambda: [one for one in order if one[0] != b"first"] == wanted, "messages in order")

            # pulls
            queue = (await producer.send(Message("Pulled", b"pulled"))).queue
            own = PullSettings(consume_from=From.FIRST, auto_commit=False)
            puller = await client.pull_consumer("pullers", {"Pulled": "*"}, own)
            pulled: list[bytes] = []
            while sorted(pulled) != [b"first", b"pulled"]:
                pulled += [message.body for message in await puller.getmany(timeout_s=30)]
            await puller.commit()
            assert await puller.committed(queue) == puller.position(queue)

            await until(lambda: b"unknown" in bodies(), "the transaction that the broker asks for")
            assert [message.body for message in asked][:1] == [b"unknown"]
            assert b"rolled back" not in bodies()
            dead = await client.pull_consumer("undertaker", settings=PullSettings(consume_from=From.FIRST))
            await dead.assign([MessageQueue(topic="%DLQ%kinds", broker_name=queue.broker_name, queue_id=0)])
            assert [message.body for message in await dead.getmany(timeout_s=30)] == [b"never"]

    run(main())


@pytest.mark.real
@pytest.mark.parametrize("kind", [APACHE_4, OURS])
def test_traces(kind: str, site: Site) -> None:
    """Apache's mqadmin shows who sent a message and which group had it, from the traces of this client."""
    require_apache(APACHE_4)
    namesrv = site.namesrv()
    site.broker(kind, namesrv.addr, traceTopicEnable=True)

    async def main() -> str:
        async with Client(namesrv.addr, settings=ClientSettings(trace=True)) as client:
            got = asyncio.Event()

            async def handle(message: ReceivedMessage) -> None:
                got.set()

            result = await client.producer("sellers").send(Message("Traced", b"x", tags="A", keys=("order-1",)))
            first = PushSettings(consume_from=From.FIRST)
            await client.push_consumer("buyers", {"Traced": "*"}, handler=handle, settings=first).start()
            await asyncio.wait_for(got.wait(), DEADLINE_S)
        return result.message_id

    message_id = asyncio.run(main())

    def shown() -> str | None:
        text = mqadmin(site.root, "queryMsgTraceById", "-n", namesrv.addr, "-i", message_id)
        return text if "sellers" in text and "buyers" in text else None

    lines = [line.split() for line in peers.until("the traces are found", shown).splitlines()]
    assert [line[:2] for line in lines if line and line[0] == "Pub"] == [["Pub", "sellers"]], lines
    assert [line[-1] for line in lines if line and line[0] in ("Pub", "Sub")] == ["success", "success"], lines
