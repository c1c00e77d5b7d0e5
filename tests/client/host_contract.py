"""What the client relies on, the same for asyncio and for Twisted: the tests that both hosts pass."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from tempfile import TemporaryDirectory
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.aio.host import AsyncioHost
from rmq.client.flows.closing import Closing
from rmq.client.flows.usercode import InHandler, is_in_handler, outcome
from rmq.client.host import Connections, Gate, Host
from rmq.client.types import CloseReport
from rmq.errors import BadAnswer, Refused, RequestTimeout, Unreachable
from rmq.wire.api.offsets import GET_MAX_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, QueueHeader, SearchOffsetHeader
from rmq.wire.codes import LanguageCode
from rmq.wire.command import RemotingCommand, decode_command, encode_command, encode_reply
from rmq.wire.frames import FrameDecoder

PORT = 10911
ASK = QueueHeader(topic="T", queue_id=0)


class Peer:
    """The server of a connection: answers by queue id of the request."""

    def __init__(self, write: Callable[[bytes], object], drop: Callable[[], object]) -> None:
        self._write = write
        self._drop = drop
        self._decoder = FrameDecoder()
        self.got: list[RemotingCommand] = []

    def received(self, data: bytes) -> None:
        for frame in self._decoder.receive(data):
            command = decode_command(frame)
            self.got.append(command)
            if command.is_response or command.is_oneway:
                continue
            frame_back = encode_reply(command, ext_fields={"offset": "7"})
            match command.ext_fields["queueId"]:
                case "0":
                    self._write(frame_back)
                case "1":  # a frame in pieces
                    for at in range(len(frame_back)):
                        self._write(frame_back[at : at + 1])
                case "2":
                    self._drop()
                case "3":
                    self._write(encode_reply(command, 17, "no such topic"))
                case "4":
                    self._write(b"\xff\xff\xff\xff garbage")
                case "5":  # a request of the server first
                    self._write(encode_command(RemotingCommand(40, 99, ext_fields={"consumerGroup": "G"})))
                    self._write(frame_back)
                case "6":
                    self._write(encode_reply(command, ext_fields={"offset": "seven"}))


class Contract(SynchronousTestCase):
    """The tests; a subclass runs ``scenario(host)`` on its host, with a Peer behind ``self.addr``."""

    addr: str
    peers: list[Peer]

    def run_on_host(self, scenario: Callable[[Host], Coroutine[Any, Any, Any]]) -> Any:
        raise NotImplementedError

    async def raised(self, waiting: Awaitable[object]) -> BaseException:
        try:
            await waiting
        except Exception as error:  # noqa: BLE001
            return error
        raise AssertionError("nothing was raised")

    def test_time(self) -> None:
        """A sleep takes its time, and `within` ends a wait with TimeoutError; a quick one returns its result."""

        async def scenario(host: Host) -> None:
            began = host.seconds()
            await host.sleep(5)
            self.assertEqual(round(host.seconds() - began), 5)
            self.assertEqual(type(await self.raised(host.within(self.nap(host, 100), 3))), TimeoutError)
            self.assertEqual(round(host.seconds() - began), 8)
            self.assertEqual(await host.within(self.nap(host, 1), 3), "slept")

        self.run_on_host(scenario)

    async def nap(self, host: Host, seconds: float) -> str:
        await host.sleep(seconds)
        return "slept"

    def test_gates(self) -> None:
        """An open gate lets all pass, in the order of their coming, until it is shut."""
        order: list[int] = []

        async def scenario(host: Host) -> None:
            gate = host.gate()

            async def pass_gate(number: int) -> None:
                await gate.wait()
                order.append(number)

            runs = [host.spawn(pass_gate(number), name=f"run {number}") for number in range(3)]
            await host.sleep(1)
            self.assertEqual((order, gate.is_open), ([], False))
            gate.open()
            await gate.wait()
            for each in runs:
                await each.wait()
            self.assertEqual(order, [0, 1, 2])
            gate.shut()
            self.assertEqual(type(await self.raised(host.within(pass_gate(3), 1))), TimeoutError)

        self.run_on_host(scenario)

    def test_cancelling_at_the_end_of_a_wait(self) -> None:
        """A cancellation is not forgotten when what was waited for comes at the same moment."""

        async def scenario(host: Host) -> None:
            gate = host.gate()

            async def passing() -> None:
                await gate.wait()

            async def rounds() -> None:
                while True:
                    await host.within(passing(), 1000)
                    gate.shut()

            running = host.spawn(rounds(), name="rounds")
            await host.sleep(1)
            gate.open()
            running.cancel()

            async def ended() -> None:
                await running.wait()

            await host.within(ended(), 10)

        self.run_on_host(scenario)

    def test_cancelling(self) -> None:
        """A cancelled coroutine gets CANCELLED where it waits; waiting for its end never fails."""
        seen: list[str] = []

        async def scenario(host: Host) -> None:
            async def sleeper() -> None:
                try:
                    await host.sleep(1000)
                except host.CANCELLED:
                    seen.append("cancelled")
                    raise

            running = host.spawn(sleeper(), name="sleeper")
            await host.sleep(1)
            running.cancel()
            await running.wait()
            running.cancel()
            await running.wait()
            self.assertEqual(seen, ["cancelled"])

        self.run_on_host(scenario)

    def test_no_place_for_files(self) -> None:
        """Where no file can be, a write is OSError; there is none to read, or the read is OSError."""

        async def scenario(host: Host) -> None:
            self.assertIsInstance(await self.raised(self.wrote(host, "a", "a/b.json")), OSError)
            try:
                self.assertEqual(host.read_file("a/b.json"), None)
            except OSError:
                pass
            self.assertIsInstance(await self.raised(self.wrote(host, "c/d", "c")), OSError)

        with TemporaryDirectory() as home:
            self.patch(os, "environ", {**os.environ, "HOME": home})
            self.run_on_host(scenario)

    async def wrote(self, host: Host, *paths: str) -> None:
        for path in paths:
            host.write_file(path, b"{}")

    def test_stacks(self) -> None:
        """An operator sees where each coroutine waits, to the innermost function, and where each thread is."""

        async def scenario(host: Host) -> None:
            async def inner() -> None:
                await host.sleep(1000)

            async def outer() -> None:
                await inner()

            running = host.spawn(outer(), name="a long sleep")
            await host.sleep(1)
            lines = [line for line in host.stacks().splitlines() if line.startswith("a long sleep")]
            self.assertEqual(lines[0].split()[3:], ["coroutine"])
            functions = [line.split()[3].rpartition(".")[2] for line in lines[1:]]
            self.assertEqual([name for name in functions if name in ("inner", "outer")], ["inner", "outer"])
            self.assertIn("host_contract.py:", lines[-1])
            self.assertIn("MainThread ", host.stacks())
            running.cancel()
            await running.wait()
            self.assertNotIn("a long sleep", host.stacks())

        self.run_on_host(scenario)

    def test_handlers(self) -> None:
        """Plain functions and coroutine functions are called with the message; their exception comes out."""

        async def scenario(host: Host) -> None:
            got: list[object] = []

            async def coroutine(message: object) -> None:
                await host.sleep(1)
                got.append(message)

            def failing(message: object) -> None:
                raise LookupError(message)

            await host.call(coroutine, "a")
            await host.call(got.append, "b")
            self.assertEqual(got, ["a", "b"])
            self.assertEqual(type(await self.raised(host.call(failing, "c"))), LookupError)
            host.close()

        self.run_on_host(scenario)

    def test_a_request_that_cannot_be_made(self) -> None:
        """A request whose signature or frame fails waits for no answer, and the end of its connection is no error."""

        async def scenario(host: Host) -> None:
            def prepare(command: RemotingCommand) -> None:
                if command.code == SEARCH_OFFSET_BY_TIMESTAMP.code:
                    raise LookupError("no key")
                if command.ext_fields["queueId"] == "1":
                    command.ext_fields = {"a": "\ud800"}

            async def answer(addr: str, command: RemotingCommand) -> bytes | None:
                return None

            connections = host.connections(prepare, answer)

            async def ask(queue_id: int) -> None:
                header = QueueHeader(topic="T", queue_id=queue_id)
                await connections.ask(self.addr, GET_MAX_OFFSET, header, None, timeout_s=3)

            async def search() -> None:
                header = SearchOffsetHeader(topic="T", queue_id=0, timestamp=0)
                await connections.ask(self.addr, SEARCH_OFFSET_BY_TIMESTAMP, header, None, timeout_s=3)

            await ask(0)
            self.assertIsInstance(await self.raised(ask(1)), UnicodeEncodeError)
            self.assertIsInstance(await self.raised(search()), LookupError)
            await ask(0)
            await connections.close()
            await host.sleep(1)
            gc.collect()

        with self.assertNoLogs("asyncio"):
            self.run_on_host(scenario)

    def test_cancelled_handlers(self) -> None:
        """
        A handler that fails because something else was cancelled has failed, in a thread too; one whose own coroutine
        is cancelled ends that coroutine.
        """
        seen: list[str] = []

        async def scenario(host: Host) -> None:
            async def handler(message: object) -> None:
                if message == "shared":
                    raise host.CANCELLED
                await host.sleep(1000)

            def function(message: object) -> None:
                raise CancelledError

            async def work() -> None:
                for called, message in ((handler, "shared"), (function, "x"), (handler, "shared")):
                    _, error = await outcome(host, called, message)
                    seen.append(type(error).__name__)
                await outcome(host, handler, "hang")
                seen.append("not reached")

            running = host.spawn(work(), name="work")
            for _ in range(1000):
                if len(seen) == 3:
                    break
                await host.sleep(1)
            await host.sleep(1)
            running.cancel()
            await running.wait()
            host.close()

        self.run_on_host(scenario)
        self.assertEqual(seen, ["CancelledError"] * 3)

    def test_closing(self) -> None:
        """A close runs once and goes on when a caller is cancelled; who waits gets its report or its failure."""
        seen: list[object] = []

        async def scenario(host: Host) -> None:
            for failure in (None, LookupError("planted")):

                async def close(failure: Exception | None = failure) -> CloseReport:
                    seen.append("begun")
                    await host.sleep(5)
                    if failure is not None:
                        raise failure
                    return CloseReport(offsets_written=7)

                closing = Closing(host, self, close, name="the close")

                async def impatient(closing: Closing = closing) -> None:
                    await closing.report()
                    seen.append("not reached")

                running = host.spawn(impatient(), name="impatient")
                await host.sleep(1)
                running.cancel()
                await running.wait()
                for _ in range(2):
                    try:
                        seen.append((await closing.report()).offsets_written)
                    except LookupError as error:
                        seen.append(str(error))

        self.run_on_host(scenario)
        self.assertEqual(seen, ["begun", 7, 7, "begun", "planted", 0])

    def test_closing_after_a_fork(self) -> None:
        """In a forked process a close does nothing, and does not wait for the coroutines of the parent."""
        seen: list[object] = []

        async def scenario(host: Host) -> None:
            async def close() -> CloseReport:
                seen.append("begun")
                return CloseReport(offsets_written=7)

            closing = Closing(host, self, close, name="the close")
            pid = host.pid()
            host.pid = lambda: pid + 1  # type: ignore[method-assign]
            seen.append((await closing.report()).offsets_written)
            host.pid = lambda: pid  # type: ignore[method-assign]
            seen.append((await closing.report()).offsets_written)

        self.run_on_host(scenario)
        self.assertEqual(seen, [0, "begun", 7])

    def test_closing_in_a_handler(self) -> None:
        """A handler for which the close waits does not wait for the close, in a thread neither; others do."""
        seen: list[bool] = []

        async def scenario(host: Host) -> None:
            async def coroutine(message: object) -> None:
                seen.extend((is_in_handler(self), is_in_handler(host)))
                ended = host.gate()

                async def close() -> CloseReport:
                    seen.append(is_in_handler(self))
                    await ended.wait()
                    return CloseReport(offsets_written=7)

                closing = Closing(host, self, close, name="the close")
                seen.append((await closing.report()).offsets_written == 0)
                after.append(closing)
                ends.append(ended)

            def function(message: object) -> None:
                seen.append(is_in_handler(self))

            async def beside() -> None:
                await gate.wait()
                seen.append(is_in_handler(self))

            after: list[Closing] = []
            ends: list[Gate] = []
            gate = host.gate()
            with InHandler(self, "the client"):
                await outcome(host, coroutine, "x")
                await outcome(host, function, "x")
                running = host.spawn(beside(), name="beside")
            gate.open()
            ends[0].open()
            await running.wait()
            seen.append((await after[0].report()).offsets_written == 7)
            host.close()

        self.run_on_host(scenario)
        # in the coroutine, of another owner, its report, in the close, in the function, after the end; the report
        self.assertEqual(sorted(seen), sorted([True, False, True, False, True, False, True]))
        self.assertEqual(seen[:2], [True, False])

    def connections(self, host: Host) -> Connections:
        def prepare(command: RemotingCommand) -> None:
            command.language = LanguageCode.PYTHON

        async def answer(addr: str, command: RemotingCommand) -> bytes | None:
            return encode_reply(command, 3, f"to {addr}")

        return host.connections(prepare, answer)

    def test_requests(self) -> None:
        """A request is prepared and answered, also with a frame in pieces; connections know our address."""

        async def scenario(host: Host) -> None:
            connections = self.connections(host)
            self.assertEqual(connections.local_ip, None)
            for queue_id in (0, 1, 5):
                header = QueueHeader(topic="T", queue_id=queue_id)
                answer = await connections.ask(self.addr, GET_MAX_OFFSET, header, None, timeout_s=3)
                self.assertEqual(answer.header.offset, 7)
            await connections.tell(self.addr, GET_MAX_OFFSET, ASK, None)
            self.assertEqual(connections.local_ip is not None, True)
            await host.sleep(1)
            got = self.peers[0].got
            self.assertEqual([c.language for c in got if not c.is_response], [LanguageCode.PYTHON] * 4)
            self.assertEqual([c.is_oneway for c in got if not c.is_response], [False] * 3 + [True])
            (reply,) = [command for command in got if command.is_response]
            self.assertEqual((reply.code, reply.opaque, reply.remark), (3, 99, f"to {self.addr}"))
            await connections.close()

        self.run_on_host(scenario)

    def test_failures(self) -> None:
        """A lost connection, silence, refusals and bad bytes each have their error; the next request connects."""

        async def scenario(host: Host) -> None:
            connections = self.connections(host)
            errors: list[BaseException] = []
            for queue_id in (2, 8, 3, 4, 6):
                header = QueueHeader(topic="T", queue_id=queue_id)
                asked = connections.ask(self.addr, GET_MAX_OFFSET, header, None, timeout_s=3)
                errors.append(await self.raised(asked))
            kinds = [type(error) for error in errors]
            self.assertEqual(kinds, [Unreachable, RequestTimeout, Refused, Unreachable, BadAnswer])
            self.assertIn("tls.server.mode=enforcing", str(errors[0]))
            self.assertIn("did not answer request 30 (GET_MAX_OFFSET) within ", str(errors[1]))
            nowhere = self.addr.replace(str(PORT), "999")
            for waiting in (
                connections.ask(nowhere, GET_MAX_OFFSET, ASK, None, timeout_s=3),
                connections.tell(nowhere, GET_MAX_OFFSET, ASK, None),
                connections.tell("no address", GET_MAX_OFFSET, ASK, None),
            ):
                self.assertEqual(type(await self.raised(waiting)), Unreachable)
            await connections.close()
            closed = connections.ask(self.addr, GET_MAX_OFFSET, ASK, None, timeout_s=3)
            self.assertIn("closed" if isinstance(host, AsyncioHost) else "stopped", str(await self.raised(closed)))

        self.run_on_host(scenario)
