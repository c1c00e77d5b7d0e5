"""The asyncio host and the Twisted host keep the contract, each with what is its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol

from rmq.aio.connections import CONNECT_TIMEOUT_S, AsyncioConnections
from rmq.aio.host import AsyncioHost
from rmq.client.flows.usercode import outcome
from rmq.client.host import Host
from rmq.errors import RequestFailed
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node, platform_for
from rmq.sim.world import World
from rmq.tx.host import TwistedHost
from rmq.wire.api.offsets import GET_MAX_OFFSET, QueueHeader
from rmq.wire.command import RemotingCommand
from tests.client import host_contract
from tests.client.host_contract import ASK, PORT, Peer
from tests.client.loops import MemoryTransport, SimLoop, left_timers, run


class AsyncioHostTests(host_contract.Contract):
    addr = f"10.0.0.1:{PORT}"

    def run_on_host(self, scenario: Callable[[Host], Coroutine[Any, Any, Any]]) -> Any:
        self.peers = []

        def accept(transport: MemoryTransport) -> Peer:
            self.peers.append(Peer(transport.deliver, transport.close))
            return self.peers[-1]

        async def main(loop: SimLoop) -> Any:
            loop.listen[PORT] = accept
            result = await scenario(AsyncioHost())
            await asyncio.sleep(10)
            self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()})
            return result

        return run(main)

    def test_failures_of_tasks_are_logged(self) -> None:
        """A coroutine that fails is a log line with its traceback, and never lost."""

        async def scenario(host: Host) -> None:
            async def fail() -> None:
                raise LookupError("planted")

            await host.spawn(fail(), name="the failing one").wait()

        with self.assertLogs("rmq.client", logging.ERROR) as logs:
            self.run_on_host(scenario)
        self.assertIn("the failing one failed", logs.output[0])
        self.assertIn("planted", logs.output[0])

    def test_exits_in_threads(self) -> None:
        """SystemExit and KeyboardInterrupt of a plain handler are its failure; raised in the loop they would end it."""

        async def scenario(host: Host) -> None:
            for error in (SystemExit(3), KeyboardInterrupt()):

                def leave(message: object, error: BaseException = error) -> None:
                    raise error

                raised = await self.raised(host.call(leave, "m"))
                self.assertEqual((type(raised), raised.__cause__), (RuntimeError, error))
                self.assertIn(repr(error), str(raised))
            host.close()

        self.run_on_host(scenario)

    def test_idle_connections_are_closed(self) -> None:
        """A connection without a byte for 120 s is closed; each byte counts, and the next request connects again."""

        async def scenario(host: Host) -> None:
            connections = self.connections(host)
            for _ in range(3):
                await connections.ask(self.addr, GET_MAX_OFFSET, ASK, None, timeout_s=3)
                await host.sleep(119)
            await connections.tell(self.addr, GET_MAX_OFFSET, QueueHeader(topic="T", queue_id=8), None)
            await host.sleep(119)
            self.assertEqual((len(self.peers), connections.local_ip), (1, "10.0.0.9"))
            await host.sleep(2)
            self.assertEqual(connections.local_ip, None)
            await connections.ask(self.addr, GET_MAX_OFFSET, ASK, None, timeout_s=3)
            self.assertEqual(len(self.peers), 2)
            await connections.close()

        self.run_on_host(scenario)

    def test_the_first_frame_of_a_turn_does_not_wait(self) -> None:
        """The first request of a turn of the loop is written at once, the others together at the turn's end."""

        async def main(loop: SimLoop) -> None:
            peers: list[Peer] = []
            writes: list[int] = []

            def accept(transport: MemoryTransport) -> Peer:
                peers.append(Peer(transport.deliver, transport.close))
                write = transport.write

                def noted(data: bytes) -> None:
                    writes.append(data.count(b'"queueId"'))
                    write(data)

                self.patch(transport, "write", noted)
                return peers[-1]

            loop.listen[PORT] = accept
            connections = AsyncioConnections(AsyncioHost(), lambda command: None, _answer, None)
            header = QueueHeader(topic="T", queue_id=8)
            await connections.tell(self.addr, GET_MAX_OFFSET, header, None)
            for _ in range(2):
                await asyncio.sleep(1)
                writes.clear()
                for _ in range(3):
                    await connections.tell(self.addr, GET_MAX_OFFSET, header, None)
                    self.assertEqual(writes, [1])
                await asyncio.sleep(0)
                self.assertEqual(writes, [1, 2])
            await asyncio.sleep(1)
            self.assertEqual(len(peers[0].got), 7)
            await connections.close()

        run(main)

    def test_nothing_is_left_after_a_close(self) -> None:
        """A close ends dials that hang, and connections to peers that do not read; then no task and timer is left."""

        async def main(loop: SimLoop) -> None:
            transports: list[MemoryTransport] = []

            def accept(transport: MemoryTransport) -> Peer:
                transports.append(transport)
                return Peer(transport.deliver, transport.close)

            loop.listen[PORT] = accept
            loop.silent.add(999)
            host = AsyncioHost()
            silent = self.addr.replace(str(PORT), "999")

            async def dial() -> None:
                error = await self.raised(connections.ask(silent, GET_MAX_OFFSET, ASK, None, timeout_s=30))
                self.assertIn("closed", str(error))

            for has_connection in (False, True):
                connections = AsyncioConnections(host, lambda command: None, _answer, None)
                if has_connection:
                    await connections.ask(self.addr, GET_MAX_OFFSET, ASK, None, timeout_s=3)
                    transports[0].peer_reads = False
                dialling = asyncio.create_task(dial())
                await asyncio.sleep(1)
                began = loop.time()
                await connections.close()
                self.assertLess(loop.time() - began, 10)
                self.assertLessEqual(asyncio.all_tasks(), {asyncio.current_task(), dialling})
                await dialling
                self.assertEqual(connections.connected, set())
                self.assertEqual(left_timers(loop), [])

        run(main)

    def test_a_dial_that_nobody_waits_for(self) -> None:
        """It fails without a line in the log: who had waited for it knows already that there was no answer."""
        said: list[object] = []

        async def main(loop: SimLoop) -> None:
            loop.silent.add(999)
            loop.set_exception_handler(lambda _, context: said.append(context["message"]))
            silent = self.addr.replace(str(PORT), "999")
            connections = AsyncioConnections(AsyncioHost(), lambda command: None, _answer, None)
            for seconds in (1, CONNECT_TIMEOUT_S):
                error = await self.raised(connections.ask(silent, GET_MAX_OFFSET, ASK, None, timeout_s=seconds))
                self.assertIsInstance(error, RequestFailed)
                await asyncio.sleep(10)
            await connections.close()

        run(main)
        gc.collect()
        self.assertEqual(said, [])

    def test_a_dial_at_the_end_of_the_loop(self) -> None:
        """asyncio.run cancels all tasks once: one that waits for a dial ends, and does not take it for a failed one."""

        async def main(loop: SimLoop) -> None:
            loop.silent.add(999)
            silent = self.addr.replace(str(PORT), "999")
            connections = AsyncioConnections(AsyncioHost(), lambda command: None, _answer, None)
            asking = asyncio.create_task(self.raised(connections.ask(silent, GET_MAX_OFFSET, ASK, None, timeout_s=30)))
            await asyncio.sleep(1)
            # a set has any order; this one is the worst
            for task in sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=lambda task: task is asking):
                task.cancel()
            await asyncio.wait([asking])
            self.assertTrue(asking.cancelled())

        run(main)

    def test_the_end_of_a_program(self) -> None:
        """A handler that gets no thread, because the program ends, did not fail: its message is not sent back."""

        async def main(loop: SimLoop) -> None:
            host, seen = AsyncioHost(), list[object]()

            async def work() -> None:
                seen.append(await outcome(host, str, b"x"))

            await host.spawn(work(), name="before").wait()
            assert host._threads is not None
            host._threads.shutdown()
            before = asyncio.all_tasks()
            running = host.spawn(work(), name="after")
            (task,) = asyncio.all_tasks() - before
            await running.wait()
            self.assertTrue(task.cancelled())
            self.assertEqual(seen, [("b'x'", None)])

        run(main)

    def test_the_end_of_a_program_with_others(self) -> None:
        """The same while other coroutines of the client run."""

        async def main(loop: SimLoop) -> None:
            host, seen = AsyncioHost(), list[object]()

            async def work() -> None:
                seen.append(await outcome(host, str, b"x"))

            async def beside() -> None:
                await asyncio.sleep(1000)

            other = host.spawn(beside(), name="beside")
            await host.spawn(work(), name="before").wait()
            assert host._threads is not None
            host._threads.shutdown()
            await host.spawn(work(), name="after").wait()
            self.assertEqual(seen, [("b'x'", None)])
            other.cancel()
            await other.wait()

        run(main)

    def test_owner_that_cancels_too(self) -> None:
        """A handler has cancelled its task, and the owner does so before that has come: the task ends."""

        async def main(loop: SimLoop) -> None:
            host, seen = AsyncioHost(), list[str]()

            async def cancels(message: object) -> None:
                current = asyncio.current_task()
                assert current is not None
                current.cancel()
                loop.call_soon(working.cancel)

            async def work() -> None:
                await outcome(host, cancels, "m")
                seen.append("went on")

            async def beside() -> None:
                await asyncio.sleep(100_000)

            other = host.spawn(beside(), name="beside")
            working = host.spawn(work(), name="work")
            await working.wait()
            other.cancel()
            await other.wait()
            self.assertEqual(seen, [])

        run(main)

    def test_handlers_that_cancel_their_task(self) -> None:
        """
        A handler that cancels its own task, or lets the cancellation of a scope of it out, has failed; its worker goes
        on. One that returns before the cancellation comes has not failed. All tasks cancelled at once: it ends.
        """

        async def main(loop: SimLoop) -> None:
            host, seen = AsyncioHost(), list[str]()

            def task() -> asyncio.Task[Any]:
                current = asyncio.current_task()
                assert current is not None
                return current

            async def waits(message: object) -> None:
                task().cancel()
                await asyncio.sleep(1000)

            async def returns(message: object) -> None:
                task().cancel()

            async def fails(message: object) -> None:
                task().cancel()
                raise LookupError

            async def leaks(message: object) -> None:
                loop.call_later(5, task().cancel)
                await asyncio.sleep(1000)

            async def hangs(message: object) -> None:
                await asyncio.sleep(1000)

            async def work() -> None:
                for handler in (waits, returns, fails, leaks, waits):
                    _, error = await outcome(host, handler, "m")
                    await asyncio.sleep(1)
                    seen.append(f"{type(error).__name__} {task().cancelling()}")
                await outcome(host, hangs, "m")
                seen.append("not reached")

            async def beside() -> None:
                await asyncio.sleep(100_000)

            others = [host.spawn(beside(), name="beside") for _ in range(3)]
            working = host.spawn(work(), name="work")
            await asyncio.sleep(100)
            self.assertEqual(
                seen, ["CancelledError 0", "NoneType 0", "LookupError 0", "CancelledError 0", "CancelledError 0"]
            )
            for one in asyncio.all_tasks() - {task()}:
                one.cancel()
            await working.wait()
            for other in others:
                await other.wait()
            self.assertEqual(len(seen), 5)

        run(main)

    def test_import_without_twisted(self) -> None:
        """The asyncio face does not import Twisted, nor anything but msgspec and attrs beside the standard library."""
        code = (
            "import sys; before = set(sys.modules); import rmq.aio\n"
            "found = {name.split('.')[0] for name in set(sys.modules) - before}\n"
            "print(sorted(found - sys.stdlib_module_names - {'rmq', 'attr', 'attrs', 'msgspec', 'typing_extensions'}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.stdout.strip(), done.stderr), ("[]", ""))


async def _answer(addr: str, command: RemotingCommand) -> bytes | None:
    return None


class _Served(Protocol):
    def __init__(self, peers: list[Peer]) -> None:
        self._peers = peers

    def connectionMade(self) -> None:
        assert self.transport is not None
        self._peer = Peer(self.transport.write, self.transport.loseConnection)
        self._peers.append(self._peer)

    def dataReceived(self, data: bytes) -> None:
        self._peer.received(data)


class TwistedHostTests(host_contract.Contract):
    def run_on_host(self, scenario: Callable[[Host], Coroutine[Any, Any, Any]]) -> Any:
        world = World(3)
        net = SimNet(world)
        server, client = Node(world, net, "server"), Node(world, net, "client")
        self.peers = []
        server.start()
        client.start()
        TCP4ServerEndpoint(server.process, PORT).listen(Factory.forProtocol(lambda: _Served(self.peers)))
        self.addr = f"{server.address}:{PORT}"
        platform: Platform = platform_for(client)
        host: Host = TwistedHost(platform, home="/home")
        result = world.settle(Deferred.fromCoroutine(scenario(host)), 2000)
        world.run_for(10)
        self.assertEqual(client.process.leaks() if client.process else None, [])
        return result

    def test_files(self) -> None:
        """A file is read as it was written; one that is not there is None."""

        async def scenario(host: Host) -> None:
            self.assertEqual(host.read_file("a/b.json"), None)
            host.write_file("a/b.json", b"{}")
            self.assertEqual(host.read_file("a/b.json"), b"{}")

        self.run_on_host(scenario)
