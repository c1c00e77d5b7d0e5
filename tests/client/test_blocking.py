"""The blocking client where a call of it cannot be served: it raises, and does not wait for ever."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from rmq import blocking
from tests.client.loops import MemoryLoop
from tests.client.test_dropped import ADDR, Nameserver

#: after which a call hangs; a good one takes milliseconds
LIMIT_S = 5


class BlockingCase(SynchronousTestCase):
    def setUp(self) -> None:
        def new_loop() -> MemoryLoop:
            loop = MemoryLoop()
            loop.listen[9876] = Nameserver
            return loop

        self.patch(asyncio, "new_event_loop", new_loop)


class OwnThreadTests(BlockingCase):
    def test_calls(self) -> None:
        """What runs on the loop of the client, a coroutine handler for example, cannot call it, nor close it."""
        with blocking.Client(ADDR) as client:
            producer = client.producer()

            async def handler() -> None:
                for call in (client.producer, client.close, lambda: producer.send(blocking.Message("T", b"x"))):
                    error = self.assertRaises(RuntimeError, call)
                    self.assertIn("make the handler a plain function", str(error))

            assert client._loop is not None
            asyncio.run_coroutine_threadsafe(handler(), client._loop).result(LIMIT_S)
            client.producer()


class ExitTests(BlockingCase):
    def test_coroutines(self) -> None:
        """What a coroutine raises to end the program is logged, and the loop goes on: it has no program to end."""
        for error in (SystemExit(3), KeyboardInterrupt()):
            with blocking.Client(ADDR) as client:

                async def handler(error: BaseException = error) -> None:
                    raise error

                assert client._loop is not None
                with self.assertLogs("rmq.client", logging.ERROR):
                    failed = asyncio.run_coroutine_threadsafe(handler(), client._loop)
                    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), client._loop).result(LIMIT_S)
                self.assertIs(failed.exception(LIMIT_S), error)
                client.producer()


class ForkTests(BlockingCase):
    def in_child(self, work: Callable[[], object]) -> str:
        """Fork, and return what the work returned or raised in the child."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(LIMIT_S)
                text = repr(work())
            except BaseException as error:  # noqa: BLE001
                text = type(error).__name__
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as said:
            text = said.read().decode()
        os.waitpid(child, 0)
        return text or "hangs"

    def test_child(self) -> None:
        """Every call of the child is ForkedClient, its close does nothing, and the client of the parent goes on."""
        with blocking.Client(ADDR) as client:
            producer = client.producer()
            message = blocking.Message("T", b"x")
            for call in (
                client.__enter__,
                client.producer,
                client.admin,
                lambda: client.push_consumer("G", {"T": "*"}),
                lambda: client.client_id,
                lambda: producer.send(message),
                lambda: (client.close(), producer.send(message)),
            ):
                self.assertEqual(self.in_child(call), "ForkedClient")
            self.assertEqual(self.in_child(client.close), repr(blocking.CloseReport()))
            client.producer()
        self.assertEqual(self.in_child(client.producer), "ClosedClient")
