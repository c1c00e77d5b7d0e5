"""Tests of requests by address."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError, ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting import client as client_module
from rmq.remoting.channel import CLOSE_GRACE_S
from rmq.remoting.client import (
    CONNECT_TIMEOUT_MS,
    MAX_WAITING_FOR_DIAL,
    Refused,
    RemotingClient,
    RequestTimeout,
    Response,
    Unreachable,
)
from rmq.remoting.protocol import RemotingProtocol
from rmq.remoting.responders import Request, ResponderTable, responds_to
from rmq.runtime.platform import split_addr
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.contract import contract
from rmq.wire.signing import Credentials, signature
from tests.remoting.peer import RecordingTransport
from tests.remoting.test_server import platform_of

ADDR = "192.0.2.1:9876"


class WhoHeader(msgspec.Struct, rename="camel", kw_only=True):
    group: str = "G"


ASK = contract(95_001, WhoHeader, reply=WhoHeader)
TELL = contract(95_002, WhoHeader)
CALLED_BACK = contract(95_003)


@attrs.define(eq=False)
class Dialled:
    """One dial of the client: waiting, then connected or failed."""

    host: str
    port: int
    factory: Any = None
    done: Deferred[IProtocol] = attrs.field(factory=Deferred)
    protocol: Any = None
    wire: RecordingTransport = attrs.field(factory=RecordingTransport)

    def connect(self, factory: Any) -> Deferred[IProtocol]:
        """What an endpoint does."""
        self.factory = factory
        return self.done

    def accept(self) -> None:
        self.protocol = self.factory.buildProtocol(None)
        assert isinstance(self.protocol, RemotingProtocol)
        self.protocol.makeConnection(self.wire)
        self.done.callback(self.protocol)

    def refuse(self) -> None:
        self.done.errback(ConnectionRefusedError("nobody listens"))

    def received(self) -> list[RemotingCommand]:
        return decode_commands(self.wire.read())

    def answer(self, request: RemotingCommand, group: str = "A") -> None:
        command = RemotingCommand(0, request.opaque, 1, ext_fields={"group": group})
        self.protocol.dataReceived(encode_command(command))

    def lose(self) -> None:
        self.protocol.connectionLost(Failure(ConnectionDone()))


class ClientCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.dials: list[Dialled] = []
        self.client = self.make_client()
        self.client.startService()

    def make_client(self, responders: ResponderTable | None = None) -> RemotingClient:
        platform = attrs.evolve(platform_of(self.clock), endpoint_factory=self.dial)
        return RemotingClient(platform, responders=responders)

    def dial(self, reactor: Any, host: str, port: int) -> Any:
        self.dials.append(Dialled(host, port))
        return self.dials[-1]

    def ask(self, addr: str = ADDR, timeout_ms: float = 2000) -> Deferred[Response[WhoHeader, None]]:
        return self.client.invoke(addr, ASK, WhoHeader(), None, timeout_ms=timeout_ms)

    def ask_in_vain(self) -> None:
        """Ask, and do not care what becomes of it."""
        self.ask().addErrback(lambda failure: None)


class SignedTests(ClientCase):
    def make_client(self, responders: ResponderTable | None = None) -> RemotingClient:
        account = Credentials(access_key="operator", secret_key="12345678")
        return RemotingClient(attrs.evolve(platform_of(self.clock), endpoint_factory=self.dial), sign=account.sign)

    def test_all_that_we_ask_and_tell_is_signed(self) -> None:
        """A broker with accounts takes requests and one-way requests of a client that has one."""
        self.ask_in_vain()
        (dial,) = self.dials
        dial.accept()
        self.client.oneway(ADDR, TELL, WhoHeader(), None)
        sent = dial.received()
        self.assertEqual([command.code for command in sent], [ASK.code, TELL.code])
        for command in sent:
            fields = command.ext_fields
            self.assertEqual(
                (fields["AccessKey"], fields["Signature"]), ("operator", signature(fields, b"", "12345678"))
            )


class InvokeTests(ClientCase):
    def test_first_request_dials(self) -> None:
        """The first request dials, waits for the connection and is answered on it."""
        done = self.ask()
        (dial,) = self.dials
        self.assertEqual((dial.host, dial.port), ("192.0.2.1", 9876))
        dial.accept()
        dial.answer(dial.received()[0], "X")
        self.assertEqual(self.successResultOf(done).header.group, "X")

    def test_closed_before_a_byte(self) -> None:
        """A server that hangs up without a byte may want TLS: the error says so. One that has answered does not."""
        done = self.ask()
        self.dials[0].accept()
        self.dials[0].lose()
        self.assertIn("tls.server.mode=enforcing", str(self.failureResultOf(done, Unreachable).value))
        first, second = self.ask(), None
        self.dials[1].accept()
        self.dials[1].answer(self.dials[1].received()[0], "X")
        self.successResultOf(first)
        second = self.ask()
        self.dials[1].lose()
        self.assertTrue(str(self.failureResultOf(second, Unreachable).value).endswith(": closed by the peer"))

    def test_one_connection(self) -> None:
        """Requests during and after the dial share one connection."""
        waiting = [self.ask(), self.ask()]
        self.dials[0].accept()
        waiting.append(self.ask())
        requests = self.dials[0].received()
        self.assertEqual(len(requests), 3)
        for request in reversed(requests):
            self.dials[0].answer(request, str(request.opaque))
        groups = [self.successResultOf(done).header.group for done in waiting]
        self.assertEqual(groups, [str(request.opaque) for request in requests])
        self.assertEqual(len(self.dials), 1)

    def test_host_that_is_silent(self) -> None:
        """A host that does not answer the dial is named with the time, whatever error the endpoint ends with."""
        done = self.ask(timeout_ms=5000)
        self.dials[0].done._canceller = lambda gone: gone.errback(
            ConnectingCancelledError(IPv4Address("TCP", "192.0.2.1", 9876))
        )
        self.clock.advance(3)
        said = str(self.failureResultOf(done, Unreachable).value)
        self.assertEqual(said, f"cannot connect to {ADDR}: no connection within 3000 ms")

    def test_one_connection_per_address(self) -> None:
        """Another address is another connection."""
        self.ask(), self.ask("192.0.2.2:9876")
        self.assertEqual([dial.host for dial in self.dials], ["192.0.2.1", "192.0.2.2"])

    def test_refused_dial(self) -> None:
        """When nobody listens all who wait fail with the address and the reason; the next request dials anew."""
        waiting = [self.ask(), self.ask()]
        self.dials[0].refuse()
        for done in waiting:
            error = self.failureResultOf(done, Unreachable).value
            self.assertIn(ADDR, str(error))
            self.assertIn("nobody listens", str(error))
        self.ask()
        self.assertEqual(len(self.dials), 2)

    def test_dial_that_hangs(self) -> None:
        """A dial is given up after CONNECT_TIMEOUT_MS, and with it the requests that would wait longer."""
        done = self.ask(timeout_ms=CONNECT_TIMEOUT_MS * 2)
        self.clock.advance(CONNECT_TIMEOUT_MS / 1000)
        self.assertIn("3000 ms", str(self.failureResultOf(done, Unreachable).value))
        self.ask()
        self.assertEqual(len(self.dials), 2)

    def test_deadline_during_the_dial(self) -> None:
        """A request's time runs while it waits for the connection; others go on waiting."""
        quick, slow = self.ask(timeout_ms=500), self.ask(timeout_ms=2500)
        self.clock.advance(0.5)
        self.assertIn("500 ms", str(self.failureResultOf(quick, RequestTimeout).value))
        self.dials[0].accept()
        self.assertEqual(len(self.dials[0].received()), 1)
        self.clock.advance(1.9)
        self.assertNoResult(slow)
        self.clock.advance(0.1)
        self.failureResultOf(slow, RequestTimeout)

    def test_refusal(self) -> None:
        """A refusal carries the peer's address."""
        done = self.ask()
        self.dials[0].accept()
        (request,) = self.dials[0].received()
        self.dials[0].protocol.dataReceived(encode_command(RemotingCommand(17, request.opaque, 1, remark="no route")))
        error = self.failureResultOf(done, Refused).value
        self.assertEqual((error.code, error.remark), (17, "no route"))

    def test_lost_connection(self) -> None:
        """A lost connection fails what waits at once; the next request dials anew and is answered there."""
        done = self.ask()
        self.dials[0].accept()
        self.dials[0].lose()
        self.failureResultOf(done, Unreachable)
        again = self.ask()
        self.dials[1].accept()
        self.dials[1].answer(self.dials[1].received()[0])
        self.successResultOf(again)

    def test_closing_connection_is_not_used(self) -> None:
        """A connection that is being closed gets no new requests."""
        self.ask_in_vain()
        self.dials[0].accept()
        self.dials[0].protocol.channel.close("test")
        self.ask_in_vain()
        self.assertEqual(len(self.dials), 2)
        self.dials[1].accept()
        self.dials[0].lose()
        self.ask()
        self.assertEqual(len(self.dials), 2)

    def test_giving_up(self) -> None:
        """A caller may give up while the dial goes on for others."""
        first, second = self.ask(), self.ask()
        first.cancel()
        self.failureResultOf(first)
        self.dials[0].accept()
        self.assertEqual(len(self.dials[0].received()), 1)
        self.assertNoResult(second)

    def test_giving_up_when_told(self) -> None:
        """A caller that hears of a failed dial may give up what others wait for, at that moment."""
        first, second, third = self.ask(), self.ask(), self.ask()
        failures: list[Failure] = []

        def told(failure: Failure) -> None:
            failures.append(failure)
            second.cancel()

        first.addErrback(told)
        second.addErrback(lambda failure: failures.append(failure))
        self.dials[0].refuse()
        self.assertEqual([failure.type for failure in failures], [Unreachable, CancelledError])
        self.failureResultOf(third, Unreachable)

    def test_bad_addresses(self) -> None:
        """An address that is none fails by itself, without a dial."""
        for addr in ("", "host", "host:", ":9876", "host:x", "host:0", "host:65536"):
            self.assertIn(repr(addr), str(self.failureResultOf(self.ask(addr), Unreachable).value))
        self.assertEqual(self.dials, [])

    def test_too_many_for_one_dial(self) -> None:
        """MAX_WAITING_FOR_DIAL requests may wait for one dial."""
        self.assertEqual(MAX_WAITING_FOR_DIAL, 10_000)
        self.patch(client_module, "MAX_WAITING_FOR_DIAL", 2)
        self.ask(), self.ask()
        self.assertIn("2 requests", str(self.failureResultOf(self.ask(), Unreachable).value))

    def test_idle_connection(self) -> None:
        """A connection that nobody uses for 120 s is closed."""
        self.ask_in_vain()
        self.dials[0].accept()
        self.clock.advance(120)
        self.assertTrue(self.dials[0].wire.disconnecting)


class OnewayTests(ClientCase):
    def test_dials(self) -> None:
        """A one-way request dials too, and is sent when the connection is there."""
        self.client.oneway(ADDR, TELL, WhoHeader(), None)
        self.dials[0].accept()
        (request,) = self.dials[0].received()
        self.assertEqual((request.code, request.flag), (95_002, 2))
        self.client.oneway(ADDR, TELL, WhoHeader(), None)
        self.assertEqual(len(self.dials[0].received()), 1)

    def test_peer_that_does_not_read(self) -> None:
        """To a peer that reads nothing one-way requests are dropped, without an unhandled error."""
        self.ask_in_vain()
        self.dials[0].accept()
        self.dials[0].protocol.channel.write(bytes(2 << 20))
        before = len(self.dials[0].wire.writes)
        self.client.oneway(ADDR, TELL, WhoHeader(), None)
        self.assertEqual(len(self.dials[0].wire.writes), before)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_unreachable(self) -> None:
        """When there is no connection it is lost, without an unhandled error."""
        self.client.oneway(ADDR, TELL, WhoHeader(), None)
        self.dials[0].refuse()
        self.client.oneway("nonsense", TELL, WhoHeader(), None)
        self.assertEqual(self.flushLoggedErrors(), [])


class CalledBackTests(ClientCase):
    def test_without_responders(self) -> None:
        """A request of the server is answered with code 3."""
        self.ask_in_vain()
        self.dials[0].accept()
        self.dials[0].received()
        self.dials[0].protocol.dataReceived(encode_command(RemotingCommand(95_003, 1)))
        self.assertEqual(self.dials[0].received()[0].code, 3)

    def test_with_responders(self) -> None:
        """Or by the client's own responders."""
        seen = []

        class Owner:
            @responds_to(CALLED_BACK)
            def called_back(self, request: Request[None, None]) -> None:
                seen.append(request.channel.peer)

        self.client = self.make_client(ResponderTable(Owner()))
        self.ask_in_vain()
        self.dials[0].accept()
        self.dials[0].received()
        self.dials[0].protocol.dataReceived(encode_command(RemotingCommand(95_003, 1)))
        self.assertEqual(self.dials[0].received()[0].code, 0)
        self.assertEqual(len(seen), 1)


class StopTests(ClientCase):
    def test_stop(self) -> None:
        """Stopping fails what waits, closes what is open and is done when it is gone."""
        answered = self.ask()
        self.dials[0].accept()
        dialling = self.ask("192.0.2.2:9876")
        stopped = self.client.stopService()
        self.failureResultOf(answered, Unreachable)
        self.assertIn("stopped", str(self.failureResultOf(dialling, Unreachable).value))
        self.assertNoResult(stopped)
        self.assertTrue(self.dials[0].wire.disconnecting)
        self.dials[0].lose()
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_server_that_does_not_let_go(self) -> None:
        """A connection that cannot be closed nicely is cut after CLOSE_GRACE_S."""
        self.ask_in_vain()
        self.dials[0].accept()
        self.client.stopService()
        self.clock.advance(CLOSE_GRACE_S)
        self.assertTrue(self.dials[0].wire.aborted)

    def test_requests_afterwards(self) -> None:
        """A stopped client dials nobody; a started one does again."""
        self.successResultOf(self.client.stopService())
        self.failureResultOf(self.ask(), Unreachable)
        self.assertEqual(self.dials, [])
        self.client.startService()
        self.ask()
        self.assertEqual(len(self.dials), 1)

    def test_connection_made_while_stopping(self) -> None:
        """A dial that succeeds all the same after the stop is closed."""
        done = self.ask()
        dial = self.dials[0]
        dial.done = Deferred(lambda _: None)
        self.client._stopped = True
        dial.protocol = dial.factory.buildProtocol(None)
        dial.protocol.makeConnection(dial.wire)
        self.client._dialled(dial.protocol, self.client._dials[ADDR])
        self.assertTrue(dial.wire.disconnecting)
        self.failureResultOf(done, Unreachable)


class AddrTests(SynchronousTestCase):
    def test_split(self) -> None:
        """Names, IPv4 and IPv6, with blanks around."""
        self.assertEqual(split_addr("localhost:9876"), ("localhost", 9876))
        self.assertEqual(split_addr(" 192.0.2.1:10911 "), ("192.0.2.1", 10911))
        self.assertEqual(split_addr("[::1]:9876"), ("::1", 9876))
        self.assertEqual(split_addr("fe80::1:9876"), ("fe80::1", 9876))


class BrokenEndpointTests(SynchronousTestCase):
    def test_dial_that_raises(self) -> None:
        """An endpoint that cannot even be made or asked fails the request, and the next one dials anew."""

        def broken(*_: object) -> Any:
            raise RuntimeError("no such thing")

        for factory in (broken, lambda *_: attrs.make_class("Endpoint", {}, bases=())()):
            client = RemotingClient(attrs.evolve(platform_of(Clock()), endpoint_factory=factory))
            for _ in range(2):
                asked = client.invoke(ADDR, ASK, WhoHeader(), None, timeout_ms=1000)
                self.assertIn(f"cannot connect to {ADDR}: ", str(self.failureResultOf(asked, Unreachable).value))
            self.assertEqual(client._dials, {})
