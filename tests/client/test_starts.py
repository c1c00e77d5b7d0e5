"""A start that failed may be repeated, one after the close may not: the same for all faces."""

from __future__ import annotations

import asyncio

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq import aio, blocking, tx
from rmq.errors import ClosedClient, Unreachable
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

    def test_twisted(self) -> None:
        """A start after the close fails with ClosedClient."""
        client = tx.Client(Clock(), ADDR)
        self.successResultOf(client.close())
        self.failureResultOf(client.start(), ClosedClient)
