"""TLS: what its keys mean, one port for both, certificates that change, and dials that verify."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path
from typing import Any

import attrs
import msgspec
from OpenSSL.SSL import Error
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmq.errors import with_advice
from rmq.remoting.client import RemotingClient, Unreachable
from rmq.remoting.responders import Reply, Request, ResponderTable, responds_to
from rmq.remoting.tls import admission
from rmq.runtime.config import ConfigError, load
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform
from rmq.runtime.tls import context as tls_module
from rmq.runtime.tls.certificates import self_signed_options
from rmq.runtime.tls.config import ClientAuth, TlsConfig, TlsMode, TlsTerms, resolve_tls
from rmq.runtime.tls.context import REFRESH_S, ClientTls, ServerTls, loss_text
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.contract import contract
from rmq.wire.exchange import Response
from rmq.wire.extfields import Int32
from tests.remoting.certificates import Authority, Pem
from tests.remoting.peer import Peer, RecordingTransport
from tests.remoting.test_server import platform_of
from tests.remoting.tlspeer import SslEnd, TlsTransport

PING = contract(98_201)
AUTHORITY = Authority()


class SizeHeader(msgspec.Struct, rename="camel", kw_only=True):
    size: Int32 = 0


GIVE = contract(98_202, SizeHeader, reply_body=bytes)


class Pings:
    @responds_to(GIVE)
    def give(self, request: Request[SizeHeader, None]) -> Reply:
        return Reply(body=bytes(request.header.size))

    @responds_to(PING)
    def ping(self, request: Request[None, None]) -> None:
        """Success."""


def ping(opaque: int = 7) -> bytes:
    return encode_command(RemotingCommand(PING.code, opaque))


class TlsCase(SynchronousTestCase):
    """A folder for certificates, and a clock at a time at which they are valid."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp())
        self.disk = RealDisk(self.clock)
        self.addCleanup(self.disk.close)
        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        self.ca = self.write("ca.pem", AUTHORITY.pem)

    def write(self, name: str, data: bytes | str) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        return path

    def install(self, pem: Pem) -> dict[str, str]:
        """Put a certificate in its place; the keys that name it."""
        return {
            "tls.server.certPath": self.write("server.pem", pem.certificate),
            "tls.server.keyPath": self.write("server.key", pem.key),
        }

    def terms(self, values: dict[str, str] | None = None) -> TlsTerms:
        """The terms of these keys, with a file beside them that no machine's own one stands in for."""
        path = self.write("tls.properties", "") if not values or "tls.config.file" not in values else ""
        values = {"tls.config.file": path, **(values or {})}
        return resolve_tls(load((TlsConfig,), values, "test").configs[0], self.disk)

    def server(self, values: dict[str, str] | None = None) -> ServerTls:
        tls = ServerTls(self.disk, self.clock, self.terms(values))
        tls.startService()
        self.addCleanup(tls.stopService)
        return tls


class TermsTests(TlsCase):
    def refused(self, **values: str) -> str:
        given = {key.replace("_", "."): value for key, value in values.items()}
        return str(self.assertRaises(ConfigError, self.terms, given))

    def test_defaults(self) -> None:
        """As in Apache: TLS is offered beside plain connections, and not used for our own."""
        terms = self.terms()
        self.assertEqual((terms.mode, terms.dial, terms.client_auth), (TlsMode.PERMISSIVE, False, ClientAuth.NONE))

    def test_file(self) -> None:
        """tls.config.file is read, its mode counts too, and what is given elsewhere beats it."""
        path = self.write("own.properties", "tls.server.mode=enforcing\ntls.server.need.client.auth=OPTIONAL\n")
        terms = self.terms({"tls.config.file": path})
        self.assertEqual((terms.mode, terms.client_auth, terms.dial), (TlsMode.ENFORCING, ClientAuth.OPTIONAL, True))
        terms = self.terms({"tls.config.file": path, "tls.server.mode": "disabled", "tls.enable": "false"})
        self.assertEqual((terms.mode, terms.dial), (TlsMode.DISABLED, False))

    def test_example(self) -> None:
        """The example in etc is good."""
        example = Path(__file__).resolve().parents[2] / "etc" / "tls.properties"
        terms = self.terms({"tls.config.file": str(example)})
        self.assertEqual((terms.mode, terms.client.verify), (TlsMode.PERMISSIVE, True))
        self.assertEqual(terms.server.cert_path, "/etc/rocketmq/server.pem")

    def test_missing_file(self) -> None:
        """A file that was named must be there."""
        self.assertIn("no such file", str(self.assertRaises(ConfigError, self.terms, {"tls.config.file": "/no/file"})))

    def test_mistyped_key_in_the_file(self) -> None:
        """A key that nobody knows is refused: the door that it should shut would stand open."""
        path = self.write("own.properties", "tls.server.need.clientAuth=require\n")
        error = self.assertRaises(ConfigError, self.terms, {"tls.config.file": path})
        self.assertIn("tls.server.need.clientAuth", str(error))

    def test_bad_values(self) -> None:
        """Apache takes any word for permissive and none; here it stops the start and is named."""
        for key in ("tls.server.mode", "tls.server.need.client.auth"):
            text = str(self.assertRaises(ConfigError, self.terms, {key: "enforced"}))
            self.assertIn(f"{key}='enforced'", text)

    def test_no_certificates_wanted(self) -> None:
        """Without test mode and certificate there is no TLS; who enforces it must name a certificate."""
        self.assertIs(self.terms({"tls.test.mode.enable": "false"}).mode, TlsMode.DISABLED)
        text = self.refused(**{"tls.test.mode.enable": "false", "tls.server.mode": "enforcing"})
        self.assertIn("tls.server.certPath", text)

    def test_test_mode_against_others(self) -> None:
        """A test mode that was asked for would silently undo verification: refused."""
        for key in ("tls.client.authServer", "tls.server.authClient"):
            self.assertIn(key, self.refused(**{"tls.test.mode.enable": "true", key: "true"}))
        self.assertIn("certPath", self.refused(**{"tls.test.mode.enable": "true", **self.install(AUTHORITY.issue())}))

    def test_half_a_pair(self) -> None:
        """A certificate without key is refused."""
        self.assertIn("only one is given", self.refused(**{"tls.server.certPath": self.ca}))

    def test_verification_without_question(self) -> None:
        """Certificates of clients cannot be verified when clients are not asked for any."""
        self.assertIn("need.client.auth", self.refused(**{"tls.server.authClient": "true"}))

    def test_password_is_not_shown(self) -> None:
        """The password does not get into texts about the terms."""
        terms = self.terms({"tls.server.keyPassword": "geheim", **self.install(AUTHORITY.issue())})
        self.assertNotIn("geheim", repr(terms))


class PortCase(TlsCase):
    """A port to connect to."""

    def setUp(self) -> None:
        super().setUp()
        self.context = ssl.create_default_context(cafile=self.ca)

    def connect(self, tls: ServerTls) -> tuple[Peer, TlsTransport]:
        transport = TlsTransport()
        peer = Peer(ResponderTable(Pings()), self.clock, transport=transport, admit=admission(tls))
        transport.protocol = peer.protocol
        return peer, transport

    def ask(self, tls: ServerTls, context: ssl.SSLContext | None = None) -> SslEnd:
        """Have a TLS client connect and ask once; AssertionError without an answer."""
        _, transport = self.connect(tls)
        far = SslEnd(context or self.context, transport)
        far.run(transport.protocol)
        far.write(ping(opaque=31))
        far.run(transport.protocol)
        (answer,) = decode_commands(far.received)
        self.assertEqual((answer.code, answer.opaque), (0, 31))
        return far

    def with_certificate(self, pem: Pem) -> ssl.SSLContext:
        """A client that shows ``pem``."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.write("client.pem", pem.certificate), self.write("client.key", pem.key))
        return context


class PortTests(PortCase):
    """One port, both kinds of connections."""

    def test_tls_and_plain(self) -> None:
        """A permissive port answers both, TLS clients see the certificate."""
        tls = self.server(self.install(AUTHORITY.issue()))
        self.assertIn(self.ask(tls).version, ("TLSv1.2", "TLSv1.3"))
        peer, transport = self.connect(tls)
        peer.send(ping())
        self.assertEqual(len(decode_commands(transport.raw.read())), 1)

    def test_byte_by_byte(self) -> None:
        """It is the first byte that decides, whatever comes with it."""
        tls = self.server(self.install(AUTHORITY.issue()))
        _, transport = self.connect(tls)
        hello = ssl.MemoryBIO(), ssl.MemoryBIO()
        raw = self.context.wrap_bio(*hello, server_hostname="127.0.0.1")
        self.assertRaises(ssl.SSLWantReadError, raw.do_handshake)
        first = hello[1].read()
        for position in range(len(first)):
            transport.protocol.dataReceived(first[position : position + 1])
        self.assertEqual(transport.raw.read()[:1], b"\x16")

    def test_many_requests_in_one_record(self) -> None:
        """Answers to one record go out together and in order."""
        tls = self.server(self.install(AUTHORITY.issue()))
        _, transport = self.connect(tls)
        far = SslEnd(self.context, transport)
        far.run(transport.protocol)
        far.write(b"".join(ping(opaque) for opaque in range(50)))
        far.run(transport.protocol)
        self.assertEqual([answer.opaque for answer in decode_commands(far.received)], list(range(50)))

    def test_slow_reader(self) -> None:
        """A peer that does not read is asked nothing more under TLS too, and has everything once it reads."""
        tls = self.server(self.install(AUTHORITY.issue()))
        peer, transport = self.connect(tls)
        far = SslEnd(self.context, transport)
        far.run(transport.protocol)
        # Two questions that our side gets before the peer has read anything of the first answer.
        for opaque in (1, 2):
            far.write(encode_command(RemotingCommand(GIVE.code, opaque, ext_fields={"size": "300000"})))
            transport.protocol.dataReceived(far.taken())
        self.assertEqual(transport.producerState, "paused")
        self.assertGreater(peer.channel.held_bytes, 300_000)
        far.run(transport.protocol)
        answers = decode_commands(far.received)
        self.assertEqual([(answer.opaque, len(answer.body or b"")) for answer in answers], [(1, 300_000), (2, 300_000)])
        self.assertEqual((transport.producerState, peer.channel.held_bytes), ("producing", 0))

    def test_enforcing_refuses_plain(self) -> None:
        """A plain connection to an enforcing port is closed, with the reason in the log."""
        tls = self.server({"tls.server.mode": "enforcing", **self.install(AUTHORITY.issue())})
        peer, transport = self.connect(tls)
        with capturedLogs() as logs:
            peer.send(ping())
        self.assertTrue(peer.is_cut)
        self.assertEqual(transport.raw.read(), b"")
        self.assertIn("tls.server.mode=enforcing", logs[-1]["why"])
        self.ask(tls)

    def test_disabled_refuses_tls(self) -> None:
        """A TLS connection to a port without TLS is closed, with the reason in the log; plain ones work."""
        tls = self.server({"tls.server.mode": "disabled"})
        peer, transport = self.connect(tls)
        with capturedLogs() as logs:
            SslEnd(self.context, transport).run(transport.protocol)
        self.assertTrue(peer.is_cut)
        self.assertIn("TLS is disabled here", logs[-1]["why"])
        peer, transport = self.connect(tls)
        peer.send(ping())
        self.assertEqual(len(decode_commands(transport.raw.read())), 1)

    def test_test_mode(self) -> None:
        """Without certificates a self-signed one is made with the first handshake, and the log says what it is."""
        tls = self.server()
        with capturedLogs() as logs:
            first = self.ask(tls, _trusting_all())
            second = self.ask(tls, _trusting_all())
        self.assertEqual(first.certificate(), second.certificate())
        self.assertEqual([event["log_level"] for event in logs if "test mode" in event["log_format"]], [LogLevel.warn])

    def test_password(self) -> None:
        """A key under a password is used; with a wrong one the start says which file and which key."""
        values = self.install(AUTHORITY.issue(password="geheim"))
        self.ask(self.server({**values, "tls.server.keyPassword": "geheim"}))
        for given in ({}, {"tls.server.keyPassword": "falsch"}):
            tls = ServerTls(self.disk, self.clock, self.terms({**values, **given}))
            text = str(self.assertRaises(ConfigError, tls.startService))
            self.assertIn("server.key", text)
            self.assertIn("tls.server.keyPassword", text)

    def test_wrong_files(self) -> None:
        """What is no certificate, or another one's key, stops the start, and the file is named."""
        pem = AUTHORITY.issue()
        for certificate, key, name in (
            (b"nonsense", pem.key, "server.pem"),
            (pem.certificate, AUTHORITY.issue().key, "is not the key of"),
            (pem.certificate, b"nonsense", "server.key"),
        ):
            tls = ServerTls(self.disk, self.clock, self.terms(self.install(Pem(certificate, key))))
            self.assertIn(name, str(self.assertRaises(ConfigError, tls.startService)))
        values = self.install(pem)
        os.remove(values["tls.server.keyPath"])
        tls = ServerTls(self.disk, self.clock, self.terms(values))
        self.assertIn("server.key", str(self.assertRaises(ConfigError, tls.startService)))

    def test_garbage_after_the_first_byte(self) -> None:
        """What begins like a handshake and is none costs its connection, and nobody a traceback."""
        tls = self.server(self.install(AUTHORITY.issue()))
        peer, transport = self.connect(tls)
        transport.protocol.dataReceived(b"\x16" + bytes(range(200)))
        self.assertTrue(transport.raw.disconnecting)
        transport.protocol.connectionLost(_lost())
        self.assertTrue(peer.closed[0][1].startswith("TLS: "), peer.closed)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_client_certificates(self) -> None:
        """Who is asked for a certificate and has none, or a stranger's, does not get in."""
        values = {
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": self.ca,
            **self.install(AUTHORITY.issue()),
        }
        tls = self.server(values)
        self.ask(tls, self.with_certificate(AUTHORITY.issue("client")))
        stranger = self.with_certificate(Authority("stranger").issue("client"))
        for context in (self.context, stranger):
            with self.assertRaises((ssl.SSLError, ValueError)):
                self.ask(tls, context)

    def test_refused_client_certificate(self) -> None:
        """The end of the connection names the certificate and what is wrong with it; the client gets TLS's alert."""
        terms = {"need.client.auth": "require", "authClient": "true", "trustCertPath": self.ca}
        tls = self.server(
            {f"tls.server.{key}": value for key, value in terms.items()} | self.install(AUTHORITY.issue())
        )
        ended = AUTHORITY.issue("client", until=datetime.datetime(2021, 2, 3, tzinfo=datetime.UTC))
        for pem, said, alert in (
            (ended, "CN=client ended on 2021-02-03", "EXPIRED"),
            (Authority("stranger").issue("client"), f"not trusted: tls.server.trustCertPath={self.ca}", "UNKNOWN_CA"),
        ):
            peer, transport = self.connect(tls)
            far = SslEnd(self.with_certificate(pem), transport)
            with self.assertRaises(ssl.SSLError) as refused:
                far.run(transport.protocol)
                far.run(transport.protocol)
            self.assertIn(alert, str(refused.exception))
            self.assertIn("tls.client.certPath", with_advice(str(refused.exception)))
            transport.protocol.connectionLost(_lost())
            ((_, reason),) = peer.closed
            self.assertIn(said, reason)

    def test_any_client_certificate(self) -> None:
        """Without authClient any certificate will do, but there must be one, as in Apache."""
        tls = self.server({"tls.server.need.client.auth": "require", **self.install(AUTHORITY.issue())})
        self.ask(tls, self.with_certificate(Authority("stranger").issue("client")))
        with self.assertRaises((ssl.SSLError, ValueError)):
            self.ask(tls)


class ReloadTests(PortCase):
    """Certificates that change while the port is open."""

    def setUp(self) -> None:
        super().setUp()
        self.old = AUTHORITY.issue("old")
        self.tls = self.server(self.install(self.old))

    def name(self) -> bytes:
        return self.ask(self.tls).certificate()

    def test_new_certificate(self) -> None:
        """A new certificate is shown to new connections within REFRESH_S."""
        before = self.name()
        self.clock.advance(REFRESH_S)
        self.assertEqual(self.name(), before)
        self.install(AUTHORITY.issue("new"))
        self.clock.advance(REFRESH_S)
        after = self.name()
        self.assertNotEqual(after, before)
        self.assertIn(b"new", after)

    def test_old_connections_go_on(self) -> None:
        """A connection made before the change is not disturbed by it."""
        _, transport = self.connect(self.tls)
        far = SslEnd(self.context, transport)
        far.run(transport.protocol)
        self.install(AUTHORITY.issue("new"))
        self.clock.advance(REFRESH_S)
        far.write(ping())
        far.run(transport.protocol)
        self.assertEqual(len(decode_commands(far.received)), 1)

    def test_broken_files(self) -> None:
        """With broken files the old certificate stays, and the log says so once; repaired ones are taken."""
        before = self.name()
        with capturedLogs() as logs:
            self.write("server.pem", b"-----BEGIN CERTIFICATE-----\nhalf")
            self.clock.pump([REFRESH_S] * 3)
        self.assertEqual([event["log_level"] for event in logs], [LogLevel.error])
        self.assertIn("server.pem", str(logs[0]["error"]))
        self.assertEqual(self.name(), before)
        self.install(AUTHORITY.issue("new"))
        self.clock.advance(REFRESH_S)
        self.assertNotEqual(self.name(), before)

    def test_half_changed(self) -> None:
        """Between the change of the certificate and that of its key the old pair stays."""
        before, new = self.name(), AUTHORITY.issue("new")
        self.write("server.pem", new.certificate)
        self.clock.advance(REFRESH_S)
        self.assertEqual(self.name(), before)
        self.write("server.key", new.key)
        self.clock.advance(REFRESH_S)
        self.assertNotEqual(self.name(), before)

    def test_missing_files(self) -> None:
        """Deleted files disturb nobody."""
        os.remove(os.path.join(self.folder, "server.pem"))
        self.clock.advance(REFRESH_S)
        self.assertTrue(self.name())

    def test_expiry(self) -> None:
        """A certificate that ends soon is worth a warning."""
        soon = datetime.datetime(2030, 1, 10, tzinfo=datetime.UTC)
        self.install(AUTHORITY.issue("short", until=soon))
        with capturedLogs() as logs:
            self.clock.advance(REFRESH_S)
        self.assertEqual([event["what"] for event in logs if event["log_level"] is LogLevel.warn], ["ends"])

    def test_stopped(self) -> None:
        """Nothing is left behind."""
        self.tls.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Wire:
    """An endpoint that connects at once, to a server end that the test plays."""

    near: RecordingTransport = attrs.field(factory=RecordingTransport)
    protocol: Any = None

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        self.protocol = protocolFactory.buildProtocol(None)
        self.protocol.makeConnection(self.near)
        done: Deferred[Any] = Deferred()
        done.callback(self.protocol)
        return done


class DialTests(TlsCase):
    """Our side dials, Python's ssl answers."""

    def dial(self, pem: Pem, values: dict[str, str], host: str = "127.0.0.1") -> Deferred[Response[Any, Any]]:
        """Ask a server that shows ``pem``; the answer, or how it failed."""
        tls = ClientTls(self.disk, self.clock, self.terms({"tls.enable": "true", **values}))
        tls.load()
        self.wire = Wire()
        platform: Platform = attrs.evolve(
            platform_of(self.clock), endpoint_factory=lambda _reactor, _host, _port: self.wire
        )
        client = RemotingClient(platform, tls=tls)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.write("far.pem", pem.certificate), self.write("far.key", pem.key))
        asked = client.invoke(f"{host}:9876", PING, None, None, timeout_ms=3000)
        # A request that is written before the handshake is over would make us stop reading, for ever.
        self.assertEqual(self.wire.near.producerState, "producing")
        far = SslEnd(context, self.wire.near, server_side=True)
        try:
            for _ in range(3):
                far.run(self.wire.protocol)
                self.clock.advance(0)
            for command in decode_commands(far.received):
                far.write(encode_command(RemotingCommand(0, command.opaque, 1)))
            far.run(self.wire.protocol)
        except ssl.SSLError:
            pass
        if self.wire.near.disconnecting:
            self.wire.protocol.connectionLost(_lost())
        return asked

    def test_unverified(self) -> None:
        """By default certificates are not verified, as in Apache, and the log says so."""
        with capturedLogs() as logs:
            self.successResultOf(self.dial(Authority("stranger").issue(), {}))
        self.assertIn("not verified", logs[0]["log_format"])

    def test_verified(self) -> None:
        """With authServer a trusted certificate for the dialled address is accepted, by IP and by name."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        self.successResultOf(self.dial(AUTHORITY.issue(), values))
        self.successResultOf(self.dial(AUTHORITY.issue("broker-a.example"), values, "broker-a.example"))

    def test_stranger(self) -> None:
        """A certificate that nobody trusted has signed fails the request, with OpenSSL's reason."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        failure = self.failureResultOf(self.dial(Authority("stranger").issue(), values), Unreachable)
        said = f"CN=broker-a, signed by CN=stranger, is not trusted: tls.client.trustCertPath={self.ca}"
        self.assertIn(f"TLS: certificate verify failed: {said}", str(failure.value))

    def test_dates(self) -> None:
        """A certificate outside its dates fails the request, with the date and what to look at."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        for pem, said in (
            (AUTHORITY.issue(until=datetime.datetime(2021, 2, 3, tzinfo=datetime.UTC)), "ended on 2021-02-03"),
            (AUTHORITY.issue(since=datetime.datetime(2089, 2, 3, tzinfo=datetime.UTC)), "begins on 2089-02-03"),
        ):
            failure = self.failureResultOf(self.dial(pem, values), Unreachable)
            self.assertIn(said, str(failure.value))
            self.assertIn("clock of this host", str(failure.value))

    def test_not_for_any_address(self) -> None:
        """A trusted certificate without a subjectAltName is for no address: it fails the request."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        nameless = AUTHORITY.issue("broker-a.example", None)
        for host in ("127.0.0.1", "broker-a.example"):
            failure = self.failureResultOf(self.dial(nameless, values, host), Unreachable)
            self.assertIn(f"dialled, {host}: its subjectAltName has nothing", str(failure.value))

    def test_plain_server(self) -> None:
        """A server that hangs up in the handshake or answers something else may be a plain port: the error says so."""
        for answer, end in ((b"", ConnectionDone()), (b"", ConnectionLost()), (b"HTTP/1.1 400 Bad Request", None)):
            tls = ClientTls(self.disk, self.clock, self.terms({"tls.enable": "true"}))
            wire = Wire()
            client = RemotingClient(
                attrs.evolve(platform_of(self.clock), endpoint_factory=lambda *_, w=wire: w), tls=tls
            )
            asked = client.invoke("127.0.0.1:1", PING, None, None, timeout_ms=3000)
            if answer:
                wire.protocol.dataReceived(answer)
            wire.protocol.connectionLost(Failure(end or ConnectionLost()))
            self.assertIn("is this a plain port", str(self.failureResultOf(asked, Unreachable).value))

    def test_wrong_address(self) -> None:
        """A trusted certificate for another address fails the request."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        for pem, host in (
            (AUTHORITY.issue(addresses=["192.0.2.1"]), "127.0.0.1"),
            (AUTHORITY.issue(), "other.example"),
        ):
            failure = self.failureResultOf(self.dial(pem, values, host), Unreachable)
            self.assertIn("not for the address", str(failure.value))

    def test_unreadable_trust(self) -> None:
        """Files that went bad fail the dial, and say which one."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        tls = ClientTls(self.disk, self.clock, self.terms({"tls.enable": "true", **values}))
        tls.load()
        os.remove(self.ca)
        client = RemotingClient(attrs.evolve(platform_of(self.clock), endpoint_factory=lambda *_: Wire()), tls=tls)
        failure = self.failureResultOf(client.invoke("127.0.0.1:1", PING, None, None, timeout_ms=1), Unreachable)
        self.assertIn("ca.pem", str(failure.value))


class LossTests(SynchronousTestCase):
    def test_texts(self) -> None:
        """Ends are told in words, whatever OpenSSL calls them."""
        self.assertEqual(loss_text(Error([("SSL routines", "", "bad record mac")])), "TLS: bad record mac")
        self.assertEqual(loss_text(Error()), "TLS: the handshake failed")
        self.assertEqual(loss_text(Error(-1, "Unexpected EOF")), "TLS: Unexpected EOF")
        self.assertEqual(loss_text(ConnectionResetError("reset")), "reset")


def _trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _lost() -> Failure:
    return Failure(ConnectionLost())


class NameTests(TlsCase):
    def test_name_that_no_certificate_has(self) -> None:
        """A host name that IDNA refuses fails each request, with the name, and leaves no dial behind."""
        values = {"tls.client.authServer": "true", "tls.client.trustCertPath": self.ca}
        tls = ClientTls(self.disk, self.clock, self.terms({"tls.enable": "true", **values}))
        client = RemotingClient(attrs.evolve(platform_of(self.clock), endpoint_factory=lambda *_: Wire()), tls=tls)
        for host in ("a..b", "a..b", "x" * 70):
            asked = client.invoke(f"{host}:9876", PING, None, None, timeout_ms=1)
            self.assertIn(f"host name {host!r}", str(self.failureResultOf(asked, Unreachable).value))
        self.assertEqual(client._dials, {})
        self.assertRaises(ConfigError, tls.creator, "a..b")
        tls.creator("rmq_namesrv")  # as container engines name hosts


DAY_S = 86_400


class WallClock(Clock):
    """A clock whose steady time began when the machine was started."""

    def wall_seconds(self) -> float:
        return datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp() + float(self.seconds())


class DateTests(TlsCase):
    """Certificates have dates, so the steady clock says nothing about them."""

    def setUp(self) -> None:
        super().setUp()
        self.wall_clock = self.clock = WallClock()

    def test_expiry(self) -> None:
        """The rest of a certificate's time is counted from today."""
        for day, what in ((10, ["ends"]), (30, [])):
            until = datetime.datetime(2030, 1, day, tzinfo=datetime.UTC)
            values = self.install(AUTHORITY.issue(f"until-{day}", until=until))
            with capturedLogs() as logs:
                ServerTls(self.disk, self.clock, self.terms(values)).load()
            self.assertEqual([event["what"] for event in logs if event["log_level"] is LogLevel.warn], what)

    def test_running(self) -> None:
        """While the process runs it warns once a day, from two weeks before the end on, and when the end has come."""
        until = datetime.datetime.fromtimestamp(self.wall_clock.wall_seconds() + 15.5 * DAY_S, datetime.UTC)
        tls = ServerTls(self.disk, self.clock, self.terms(self.install(AUTHORITY.issue("old", until=until))))
        tls.startService()
        self.addCleanup(tls.stopService)
        said: list[list[str]] = []
        for _ in range(18):
            with capturedLogs() as logs:
                self.clock.pump([DAY_S / 4] * 4)
            said.append([event["what"] for event in logs if event["log_level"] is LogLevel.warn])
        self.assertEqual(said[:3], [[], ["ends"], ["ends"]])
        self.assertEqual(said[-4:], [["ends"], ["ended"], ["ended"], ["ended"]])

    def test_wrong_dates(self) -> None:
        """
        A valid certificate is not replaced by one that has ended or not yet begun; the log says so once.

        When the new one begins it is taken. A start takes any, since there is no other: it warns.
        """
        now = datetime.datetime.fromtimestamp(self.wall_clock.wall_seconds(), datetime.UTC)
        hour = datetime.timedelta(hours=1)
        tls = ServerTls(
            self.disk, self.clock, self.terms(self.install(AUTHORITY.issue("valid", until=now + 99 * hour)))
        )
        tls.startService()
        self.addCleanup(tls.stopService)
        valid = tls.context()
        with capturedLogs() as logs:
            for pem in (AUTHORITY.issue("ended", until=now - hour), AUTHORITY.issue("later", since=now + hour)):
                self.install(pem)
                self.clock.pump([REFRESH_S] * 3)
        errors = [str(event["error"]) for event in logs if event["log_level"] is LogLevel.error]
        self.assertEqual([text.split("server.pem ")[1] for text in errors], [
            "ended on 2029-12-31 23:00 UTC", "begins on 2030-01-01 01:00 UTC",
        ])  # fmt: skip
        self.assertIs(tls.context(), valid)
        with capturedLogs() as logs:
            ServerTls(self.disk, self.clock, tls.terms).load()
        self.assertEqual([event["since"] for event in logs if "since" in event], ["2030-01-01 01:00 UTC"])
        self.clock.advance(3600)
        self.assertIsNot(tls.context(), valid)

    def test_ended_both(self) -> None:
        """When the certificate in use has ended, another one is taken whatever its dates are."""
        end = datetime.datetime.fromtimestamp(self.wall_clock.wall_seconds() - 1, datetime.UTC)
        tls = ServerTls(self.disk, self.clock, self.terms(self.install(AUTHORITY.issue("ended", until=end))))
        tls.startService()
        self.addCleanup(tls.stopService)
        ended = tls.context()
        self.install(AUTHORITY.issue("other", until=end))
        self.clock.advance(REFRESH_S)
        self.assertIsNot(tls.context(), ended)

    def test_test_mode(self) -> None:
        """The certificate of the test mode begins a day ago."""
        begun: list[int] = []

        def noted(now_s: int) -> Any:
            begun.append(now_s)
            return self_signed_options(now_s)

        self.patch(tls_module, "self_signed_options", noted)
        self.server().context()
        self.assertEqual(begun, [int(self.wall_clock.wall_seconds())])
