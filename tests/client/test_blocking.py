"""The blocking client where a call of it cannot be served: it raises, and does not wait for ever."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq import aio, blocking, tx
from rmq.errors import ClosedClient, ConfigurationError
from tests.client.loops import MemoryLoop
from tests.client.test_dropped import ADDR, Nameserver

#: after which a call hangs; a good one takes milliseconds
LIMIT_S = 3


class BlockingCase(SynchronousTestCase):
    def setUp(self) -> None:
        def new_loop() -> MemoryLoop:
            loop = MemoryLoop()
            loop.listen[9876] = Nameserver
            return loop

        self.patch(asyncio, "new_event_loop", new_loop)

        def hangs(*_: object) -> None:
            raise AssertionError(f"the test waits for more than {2 * LIMIT_S} s")

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, hangs))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(2 * LIMIT_S)


class OwnThreadTests(BlockingCase):
    def test_calls(self) -> None:
        """What runs on the loop of the client, a coroutine handler for example, cannot call it, nor close it."""
        with blocking.Client(ADDR) as client:
            producer = client.producer()

            async def handler() -> None:
                for call in (client.producer, client.close, lambda: producer.send(blocking.Message("T", b"x"))):
                    error = self.assertRaises(RuntimeError, call)
                    self.assertIn("Make the handler a plain function", str(error))

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


class ProcessTests(BlockingCase):
    def test_another_process(self) -> None:
        """A client, and what it made, cannot be sent to another process: an error says that each makes its own."""
        with blocking.Client(ADDR) as client:
            for one in (client, client.producer(), client.push_consumer("G", {"T": "*"}), client.admin()):
                with self.assertRaisesRegex(TypeError, "each process makes its own client"):
                    pickle.dumps(one)
        for other in (aio.Client(ADDR), tx.Client(Clock(), ADDR)):
            with self.assertRaisesRegex(TypeError, "each process makes its own client"):
                pickle.dumps(other)

    def test_no_message(self) -> None:
        """A wait that ends without a message says how long it was."""
        with blocking.Client(ADDR) as client, self.assertRaisesRegex(TimeoutError, "no message came within 0.01 s"):
            client.push_consumer("G", {"T": "*"}).receive(timeout_s=0.01).__enter__()
        with blocking.Client(ADDR) as client, self.assertRaisesRegex(ConfigurationError, "timeout_s is a number of"):
            client.push_consumer("G", {"T": "*"}).receive(timeout_s="3")  # type: ignore[arg-type]


class CloseTests(BlockingCase):
    def in_thread(self, work: Callable[[], object]) -> list[object]:
        """Run the work in a thread that is joined at the end; the list gets what it raises."""
        raised: list[object] = []

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.joined.append(thread)
        return raised

    def setUp(self) -> None:
        super().setUp()
        self.joined: list[threading.Thread] = []

    def join(self) -> None:
        for thread in self.joined:
            thread.join(LIMIT_S)
            self.assertFalse(thread.is_alive())

    def test_waiting_threads(self) -> None:
        """A close ends what other threads wait for with ClosedClient, and a second close at the same time returns."""
        client = blocking.Client(ADDR).__enter__()
        begun = threading.Event()

        async def for_ever() -> None:
            begun.set()
            await asyncio.sleep(3600)

        raised = self.in_thread(lambda: client._run(for_ever()))
        self.assertTrue(begun.wait(LIMIT_S))
        closed = [self.in_thread(client.close) for _ in range(5)]
        client.close()
        self.join()
        self.assertEqual([type(error) for error in raised], [ClosedClient])
        self.assertEqual(closed, [[]] * 5)

    def test_failed_close(self) -> None:
        """A close that fails raises its error, and the thread of the client ends all the same."""
        client = blocking.Client(ADDR).__enter__()
        thread = client._thread
        assert thread is not None
        real = client._client.close

        async def failing() -> blocking.CloseReport:
            await real()
            raise LookupError("planted")

        client._client.close = failing  # type: ignore[method-assign]
        self.assertRaises(LookupError, client.close)
        self.assertFalse(thread.is_alive())
        self.assertRaises(ClosedClient, client.producer)


class ForkTests(BlockingCase):
    def in_child(self, work: Callable[[], object]) -> str:
        """Fork, and return what the work returned or raised in the child."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
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
            consumer = client.push_consumer("F", {"T": "*"}, handler=print)
            message = blocking.Message("T", b"x")
            for call in (
                consumer.start,
                consumer.run,
                consumer.health,
                client.__enter__,
                client.producer,
                client.admin,
                lambda: client.push_consumer("G", {"T": "*"}),
                lambda: client.client_id,
                lambda: producer.send(message),
                lambda: (client.close(), producer.send(message)),
            ):
                self.assertEqual(self.in_child(call), "ForkedClient")
            for close in (client.close, consumer.close):
                self.assertEqual(self.in_child(close), repr(blocking.CloseReport()))
            client.producer()
        self.assertEqual(self.in_child(client.producer), "ClosedClient")
