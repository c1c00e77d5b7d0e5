"""The prompt into a running process."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from typing import Any

from twisted.conch.interfaces import IConchUser
from twisted.conch.ssh import keys
from twisted.conch.ssh.common import NS
from twisted.conch.ssh.connection import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, SSHConnection
from twisted.conch.ssh.session import SSHSession
from twisted.conch.ssh.transport import DISCONNECT_BY_APPLICATION, DISCONNECT_PROTOCOL_ERROR, SSHServerTransport
from twisted.cred.credentials import SSHPrivateKey
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.testing import EventLoggingObserver, MemoryReactorClock, StringTransport
from twisted.logger import LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

import rmq.runtime
from rmq.runtime import prompt
from rmq.runtime.config import ConfigError
from rmq.runtime.manhole import make_manhole_service, parse_manhole


class SpecTests(SynchronousTestCase):
    def test_telnet(self) -> None:
        """A port alone means telnet."""
        address = parse_manhole("6666")
        self.assertEqual((address.port, address.authorized_keys), (6666, None))

    def test_ssh(self) -> None:
        """ssh:PORT:FILE means ssh for the keys in FILE, which may hold colons."""
        address = parse_manhole("ssh:6666:/home/me/a:b")
        self.assertEqual((address.port, address.authorized_keys), (6666, "/home/me/a:b"))

    def test_nonsense(self) -> None:
        """Anything else is refused, with what is expected."""
        for spec in ("", "x", "-1", "65536", "6666:x", "ssh", "ssh:6666", "ssh:6666:", "ssh:x:y", "telnet:1"):
            error = self.assertRaises(ConfigError, parse_manhole, spec)
            self.assertIn("ssh:PORT:AUTHORIZED_KEYS", str(error), spec)


class ManholeCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="rmq-manhole-")
        self.addCleanup(shutil.rmtree, self.root)
        self.reactor = MemoryReactorClock()
        self.events = EventLoggingObserver()
        globalLogPublisher.addObserver(self.events)
        self.addCleanup(globalLogPublisher.removeObserver, self.events)

    def authorized_keys(self) -> str:
        key = prompt.host_key(f"{self.root}/client")
        path = f"{self.root}/authorized_keys"
        with open(path, "wb") as file:
            file.write(b"# mine\n" + key.public().toString("openssh") + b"\n")
        os.chmod(path, 0o600)
        return path


class ServiceTests(ManholeCase):
    def test_listens_on_loopback_only(self) -> None:
        """Neither form can be reached from another machine."""
        for spec in ("6666", f"ssh:6667:{self.authorized_keys()}"):
            service = make_manhole_service(spec, {}, reactor=self.reactor)
            service.startService()
            port, _, _, interface = self.reactor.tcpServers[-1]
            self.assertEqual((str(port) in spec, interface), (True, "127.0.0.1"))
            service.stopService()

    def test_the_log_says_who_may_enter(self) -> None:
        """A prompt for every user of the machine is a warning at the start; one for the owners of keys is none."""
        keys = self.authorized_keys()
        for spec, level, text in (
            ("6666", LogLevel.warn, "manhole listens on 127.0.0.1:6666 without passwords: every user of this machine"),
            (
                f"ssh:6667:{keys}",
                LogLevel.info,
                f"manhole listens on 127.0.0.1:6667, for the owners of the keys in {keys}",
            ),
        ):
            service = make_manhole_service(spec, {}, reactor=self.reactor)
            service.startService()
            event = list(self.events)[-1]
            self.assertEqual((event["log_level"], text in formatEvent(event)), (level, True))
            service.stopService()

    def test_keys_that_others_can_write(self) -> None:
        """A file of keys to which other users of the machine can add theirs is a warning with the remedy."""
        keys = self.authorized_keys()
        for mode, warnings in ((0o600, 0), (0o644, 0), (0o660, 1), (0o666, 1)):
            os.chmod(keys, mode)
            before = len(list(self.events))
            service = make_manhole_service(f"ssh:6667:{keys}", {}, reactor=self.reactor)
            service.startService()
            service.stopService()
            found = [formatEvent(event) for event in list(self.events)[before:] if event["log_level"] is LogLevel.warn]
            self.assertEqual(len(found), warnings, found)
            for line in found:
                self.assertIn(f"(mode {mode:o})", line)
                self.assertIn(f"chmod 600 {keys}", line)

    def test_taken_port(self) -> None:
        """A port that is taken is an error of the start, not a traceback in the log of a process without a prompt."""

        class Busy(MemoryReactorClock):
            def listenTCP(self, port: int, *rest: Any, interface: str = "", **named: Any) -> Any:
                raise CannotListenError(interface, port, "it is taken")

        service = make_manhole_service("6666", {}, reactor=Busy())
        error = self.assertRaises(CannotListenError, service.startService)
        self.assertIn("127.0.0.1:6666", str(error))
        self.assertIsNone(self.successResultOf(service.stopService()))

    def test_stops_listening(self) -> None:
        """After a stop the port is closed; a service may be started again."""
        service = make_manhole_service("6666", {}, reactor=self.reactor)
        for _ in range(2):
            service.startService()
            self.assertTrue(service.running)
            self.assertIsNone(self.successResultOf(service.stopService()))
        self.assertEqual(len(self.reactor.tcpServers), 2)

    def test_missing_packages(self) -> None:
        """Without the packages the error names the extra that brings them."""
        self.addCleanup(sys.modules.__setitem__, "rmq.runtime.prompt", prompt)
        self.addCleanup(setattr, rmq.runtime, "prompt", prompt)
        sys.modules["rmq.runtime.prompt"] = None  # type: ignore[assignment]
        delattr(rmq.runtime, "prompt")
        error = self.assertRaises(ConfigError, make_manhole_service, "1", {}, reactor=self.reactor)
        self.assertIn("txrocketmq[manhole]", str(error))

    def test_unusable_keys(self) -> None:
        """A key file that is missing or holds no key is named."""
        for path in (f"{self.root}/none", os.devnull):
            error = self.assertRaises(ConfigError, make_manhole_service, f"ssh:1:{path}", {}, reactor=self.reactor)
            self.assertIn(path, str(error))


class TelnetTests(ManholeCase):
    def setUp(self) -> None:
        super().setUp()
        self.found: list[int] = []
        factory = prompt.telnet_factory({"broker": self.found})
        protocol = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5))
        assert protocol is not None
        self.protocol = protocol
        self.transport = StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 5))
        self.protocol.makeConnection(self.transport)

    def lines(self) -> list[tuple[str, str]]:
        return [(str(event["peer"]), str(event["line"])) for event in self.events if "line" in event]

    def test_runs_what_is_typed(self) -> None:
        """Lines run in the namespace of the role."""
        self.protocol.dataReceived(b"broker.append(6 * 7)\r\n")
        self.assertEqual(self.found, [42])

    def test_every_line_is_logged(self) -> None:
        """What is typed is in the log with the address it came from, mistakes included."""
        self.protocol.dataReceived(b"broker.append(1)\r\n1 / 0\r\n")
        self.assertEqual([line for _, line in self.lines()], ["broker.append(1)", "1 / 0"])
        self.assertTrue(all(peer == "127.0.0.1:5" for peer, _ in self.lines()))


class SshTests(ManholeCase):
    def setUp(self) -> None:
        super().setUp()
        self.sent: list[tuple[int, bytes]] = []

    def login(self, key: keys.Key) -> Deferred[Any]:
        factory: Any = prompt.ssh_factory({}, self.authorized_keys())
        signed = b"what the client signs"
        credentials = SSHPrivateKey(b"whoever", key.sshType(), key.public().blob(), signed, key.sign(signed))
        found: Deferred[Any] = factory.portal.login(credentials, None, IConchUser)
        return found

    def test_listed_key_enters(self) -> None:
        """The owner of a listed key gets a prompt, under whatever name."""
        self.assertIs(self.successResultOf(self.login(prompt.host_key(f"{self.root}/client")))[0], IConchUser)

    def channel(self) -> Any:
        """Return the channel of a client that has entered; what it gets is appended to ``sent``."""
        _, avatar, _ = self.successResultOf(self.login(prompt.host_key(f"{self.root}/client")))
        wire: Any = SSHServerTransport()
        wire.transport = StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 5))
        wire.sendPacket = lambda kind, packet: self.sent.append((kind, packet))
        connection = SSHConnection()
        connection.transport = wire
        avatar.conn = connection
        channel: Any = SSHSession(remoteWindow=65_536, remoteMaxPacket=1024, conn=connection, avatar=avatar)
        channel.id = 0
        connection.channels[0] = channel
        connection.channelsToRemoteChannel[channel] = connection.localToRemoteChannel[0] = 0
        return channel

    def text(self) -> bytes:
        return b"".join(packet[8:] for kind, packet in self.sent if kind == MSG_CHANNEL_DATA)

    def is_closed(self) -> bool:
        return MSG_CHANNEL_CLOSE in [kind for kind, _ in self.sent]

    def test_begin_and_end_are_logged(self) -> None:
        """A session over ssh leaves its begin, its lines and its end in the log, with the address it came from."""
        channel = self.channel()
        channel.request_pty_req(NS(b"xterm") + bytes(16) + NS(b""))
        channel.request_shell(b"")
        channel.dataReceived(b"1 + 1\r")
        channel.conn.channelClosed(channel)
        told = [formatEvent(event) for event in self.events if "manhole" in event["log_format"]]
        where = "ssh 127.0.0.1:5"
        self.assertEqual(
            told, [f"manhole opened by {where}", f"manhole {where} runs 1 + 1", f"manhole closed by {where}"]
        )

    def test_exit(self) -> None:
        """exit() ends the session, and input() gets nothing: the process and its standard input are left alone."""
        channel = self.channel()
        channel.request_pty_req(NS(b"xterm") + bytes(16) + NS(b""))
        channel.request_shell(b"")
        channel.request_window_change(bytes(16))
        channel.dataReceived(b"input()\r")
        self.assertIn(b"EOFError", self.text())
        self.assertFalse(self.is_closed())
        channel.dataReceived(b"exit()\r")
        self.assertTrue(self.is_closed())
        self.assertFalse(sys.stdin.closed)

    def test_without_a_terminal(self) -> None:
        """``ssh -T`` runs the lines of its standard input and ends with it."""
        channel = self.channel()
        channel.request_shell(b"")
        channel.dataReceived(b"20 + 22\n")
        channel.eofReceived()
        self.assertIn(b"\n42", self.text())
        self.assertTrue(self.is_closed())

    def test_command(self) -> None:
        """A command on ssh's command line is answered with what to do, and no traceback in the log."""
        channel = self.channel()
        channel.request_exec(NS(b"explain"))
        channel.eofReceived()
        self.assertIn(b"ssh -T", self.text())
        self.assertTrue(self.is_closed())

    def test_leaving(self) -> None:
        """A client that leaves says so; that is no error."""
        for code in (DISCONNECT_BY_APPLICATION, DISCONNECT_PROTOCOL_ERROR):
            prompt.Transport().receiveError(code, b"why")
        errors = [event["code"] for event in self.events if event["log_level"] is LogLevel.error]
        self.assertEqual(errors, [DISCONNECT_PROTOCOL_ERROR])

    def test_other_keys_do_not(self) -> None:
        """Any other key is turned away."""
        self.failureResultOf(self.login(prompt.host_key(f"{self.root}/stranger")), UnauthorizedLogin)
        self.flushLoggedErrors()


class HostKeyTests(ManholeCase):
    def test_is_kept(self) -> None:
        """The key is made once, readable for its owner only, and found again."""
        path = f"{self.root}/key"
        first = prompt.host_key(path)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        self.assertEqual(prompt.host_key(path), first)

    def test_broken(self) -> None:
        """A broken key file is named, not replaced."""
        path = f"{self.root}/key"
        with open(path, "w", encoding="ascii") as file:
            file.write("nonsense")
        self.assertIn(path, str(self.assertRaises(ConfigError, prompt.host_key, path)))
        self.assertIn(path, str(self.assertRaises(ConfigError, prompt.host_key, f"{path}/x")))

    def test_authorized_keys(self) -> None:
        """All keys of the file may enter, under any name."""
        allowed = prompt.read_authorized_keys(self.authorized_keys())
        self.assertEqual(len(allowed), 1)
        self.assertIsInstance(allowed[0], keys.Key)
        self.assertEqual(prompt.KeyList(allowed).getAuthorizedKeys(b"whoever"), allowed)
