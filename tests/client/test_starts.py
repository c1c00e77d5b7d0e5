"""A start that failed may be repeated, one after the close may not: the same for all faces."""

from __future__ import annotations

import asyncio
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq import aio, blocking, tx
from rmq.errors import ClosedClient, ConfigurationError, NoRoute, Refused, Unreachable
from rmq.wire.command import decode_command, encode_reply
from tests.client.loops import SimLoop, run
from tests.client.test_dropped import ADDR, Nameserver


class StartTests(SynchronousTestCase):
    def test_asyncio(self) -> None:
        """Each start fails until a NameServer is there; after the close it is ClosedClient."""

        async def scenario(loop: SimLoop) -> None:
            client = aio.Client(ADDR)
            for _ in range(3):
                with self.assertRaises(Unreachable):
                    await client.start()
                with self.assertRaises(ClosedClient):
                    client.producer()
            loop.listen[9876] = Nameserver
            await client.start()
            client.producer()
            await client.start()
            await client.close()
            with self.assertRaises(ClosedClient):
                await client.start()
            await asyncio.sleep(10)
            self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()})

        run(scenario)

    def test_asyncio_close_while_it_starts(self) -> None:
        """A close ends a start, and no other one follows."""

        async def scenario(loop: SimLoop) -> None:
            loop.silent.add(9876)
            client = aio.Client(ADDR)
            starting = asyncio.create_task(client.start())
            await asyncio.sleep(1)
            await client.close()
            with self.assertRaises(Unreachable):
                await starting
            with self.assertRaises(ClosedClient):
                await client.start()

        run(scenario)

    def test_blocking(self) -> None:
        """So with a client whose loop is in a thread; a second start changes nothing."""
        listens: list[int] = []

        def new_loop() -> SimLoop:
            loop = SimLoop()
            loop.listen.update(dict.fromkeys(listens, Nameserver))
            return loop

        self.patch(asyncio, "new_event_loop", new_loop)
        client = blocking.Client(ADDR)
        for _ in range(2):
            self.assertRaises(Unreachable, client.__enter__)
        listens.append(9876)
        with client:
            thread = client._thread
            self.assertIs(client.__enter__()._thread, thread)
            client.producer()
        self.assertRaises(ClosedClient, client.__enter__)
        self.assertRaises(ClosedClient, client.producer)

    def test_addresses(self) -> None:
        """What is no address of a NameServer is refused before anything is asked; blanks and a last ; do not matter."""

        async def scenario(loop: SimLoop) -> None:
            loop.listen[9876] = Nameserver
            wrongs: list[Any] = ["", ";", "10.0.0.1", "10.0.0.1:", ":9876", "10.0.0.1:0", "10.0.0.1:99999", "a:b", 9876]
            wrongs += ["10.0.0.1:9876,10.0.0.2:9876", "http://10.0.0.1:9876", [], ["", ADDR], ("10.0.0.1", 9876)]
            for wrong in wrongs:
                with self.assertRaisesRegex(ConfigurationError, "host:port"):
                    await aio.Client(wrong).start()
            for right in (f" {ADDR} ; ", [ADDR], f"10.0.0.1:1;{ADDR}"):
                async with aio.Client(right):
                    pass

        run(scenario)

    def test_a_broker_as_nameserver(self) -> None:
        """The address of a broker is refused at the start, and not with NoRoute at the first send."""

        class Broker(Nameserver):
            def received(self, data: bytes) -> None:
                for frame in self._decoder.receive(data):
                    text = "a NameServer answers this"
                    self._transport.deliver(encode_reply(decode_command(frame), 3, text))

        async def scenario(loop: SimLoop) -> None:
            loop.listen.update({9876: Nameserver, 10911: Broker})
            with self.assertRaisesRegex(Refused, "REQUEST_CODE_NOT_SUPPORTED.*a NameServer answers this"):
                await aio.Client("10.0.0.1:10911").start()
            async with aio.Client(f"10.0.0.1:10911;{ADDR}"):
                pass

        run(scenario)

    def test_another_loop(self) -> None:
        """In another loop than its own a client says so at once, where its answers would wake nobody."""

        async def scenario(loop: SimLoop) -> None:
            loop.listen[9876] = Nameserver
            async with aio.Client(ADDR) as client:
                producer = client.producer()

                async def elsewhere() -> None:
                    send = producer.send(aio.Message("T", b"x"), timeout_s=60)
                    for call in (client.start(), client.close(), send, producer.send_oneway(aio.Message("T", b"x"))):
                        with self.assertRaisesRegex(RuntimeError, "it was started in another"):
                            await call

                await asyncio.to_thread(asyncio.run, elsewhere())
                with self.assertRaises(NoRoute):
                    await producer.send(aio.Message("T", b"x"))
            closed.append(client)

        closed: list[aio.Client] = []
        run(scenario)
        asyncio.run(closed[0].close())  # so in any loop

    def test_twisted(self) -> None:
        """A start after the close fails with ClosedClient."""
        client = tx.Client(Clock(), ADDR)
        self.successResultOf(client.close())
        self.failureResultOf(client.start(), ClosedClient)
