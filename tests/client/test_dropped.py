"""A client that is dropped without close says so, for asyncio and for programs without a loop."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq import aio, blocking
from rmq.wire.command import decode_command, encode_reply
from rmq.wire.frames import FrameDecoder
from tests.client.loops import MemoryTransport, SimLoop, run

ADDR = "10.0.0.1:9876"


class Nameserver:
    """Knows no topic."""

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport
        self._decoder = FrameDecoder()

    def received(self, data: bytes) -> None:
        for frame in self._decoder.receive(data):
            self._transport.deliver(encode_reply(decode_command(frame), 17, "no such topic"))


class DroppedTests(SynchronousTestCase):
    def warned(self, work: Callable[[], object]) -> list[str]:
        """Return the ResourceWarnings about clients."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
            gc.collect()
        return [str(one.message) for one in caught if one.category is ResourceWarning and "client" in str(one.message)]

    def in_loop(self, main: Callable[[], Any]) -> list[str]:
        async def scenario(loop: SimLoop) -> None:
            loop.listen[9876] = Nameserver
            await main()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(1)

        return self.warned(lambda: run(scenario))

    def test_asyncio(self) -> None:
        """A started client without close warns, with its id."""

        async def drop() -> None:
            client = aio.Client(ADDR, settings=aio.ClientSettings(client_ip="10.0.0.9", instance_name="shop"))
            await client.start()

        (text,) = self.in_loop(drop)
        self.assertIn("client 10.0.0.9@shop was dropped without close", text)

    def test_no_warning(self) -> None:
        """A client that was closed, never started, refused at its start or made wrong does not warn."""

        async def work() -> None:
            async with aio.Client(ADDR):
                pass
            aio.Client(ADDR)
            with self.assertRaises(ConnectionError):
                await aio.Client("10.0.0.1:1").start()
            with self.assertRaises(TypeError):
                aio.Client(ADDR, colour="red")  # type: ignore[call-arg]

        self.assertEqual(self.in_loop(work), [])

    def test_blocking(self) -> None:
        """So does a client whose loop is in a thread of its own; one that is closed does not."""
        loops: list[SimLoop] = []
        threads: list[Any] = []

        def new_loop() -> SimLoop:
            loop = SimLoop()
            loop.listen[9876] = Nameserver
            loops.append(loop)
            return loop

        self.patch(asyncio, "new_event_loop", new_loop)

        def drop() -> None:
            client = blocking.Client(ADDR)
            threads.append(client.__enter__()._thread)

        def close() -> None:
            with blocking.Client(ADDR):
                pass

        self.assertEqual(self.warned(close), [])
        (text,) = self.warned(drop)
        self.assertIn("was dropped without close", text)
        loop = loops[-1]

        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(1)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        threads[0].join()
        loop.close()

    def test_the_end_of_a_program(self) -> None:
        """An open client without a loop warns once: one that its own handler uses is never dropped."""

        def new_loop() -> SimLoop:
            loop = SimLoop()
            loop.listen[9876] = Nameserver
            return loop

        self.patch(asyncio, "new_event_loop", new_loop)

        with blocking.Client(ADDR) as closed, blocking.Client(ADDR) as client:
            client.push_consumer("G", {"T": "*"}, handler=lambda message: client.producer())
            closed.close()
            (text,) = self.warned(blocking.Client._program_ends)
            self.assertIn(f"{client.client_id} was not closed before the end of the program", text)
            self.assertEqual(self.warned(blocking.Client._program_ends), [])
