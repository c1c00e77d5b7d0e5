"""A whole ssh conversation with the manhole: handshake, keys, a shell, a line and its answer."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from twisted.conch.ssh import channel, connection, keys, session, transport, userauth
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher
from twisted.test.iosim import FakeTransport, connect
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime import prompt

#: more rounds than a conversation of this kind takes
MAX_ROUNDS = 200


class Screen(channel.SSHChannel):
    """A shell on the other side, and what it wrote so far."""

    name = b"session"
    conn: Any

    def __init__(self, client: Client) -> None:
        super().__init__(conn=client.connection)
        self.client = client

    def channelOpen(self, specificData: bytes) -> None:
        terminal = session.packRequest_pty_req(b"xterm", (24, 80, 0, 0), b"")
        self.conn.sendRequest(self, b"pty-req", terminal)
        self.conn.sendRequest(self, b"shell", b"")
        self.client.screen = self

    def dataReceived(self, data: bytes) -> None:
        self.client.output += data


class Login(userauth.SSHUserAuthClient):
    """Offers one key, or a password when there is none."""

    def __init__(self, client: Client) -> None:
        super().__init__(b"operator", client.connection)
        self.client = client

    def getPublicKey(self) -> keys.Key | None:
        key, self.client.key = self.client.key, None
        self.client.signer = key
        return None if key is None else key.public()

    def getPrivateKey(self) -> Deferred[Any]:
        return succeed(self.client.signer)

    def getPassword(self, prompt: bytes | None = None) -> Deferred[Any]:
        self.client.password_asked = True
        return succeed(b"secret")


class Connection(connection.SSHConnection):
    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client

    def serviceStarted(self) -> None:
        self.openChannel(Screen(self.client))


class Client(transport.SSHClientTransport):
    """An ssh client with a key, which takes the host key that it is shown."""

    def __init__(self, key: keys.Key) -> None:
        self.key: keys.Key | None = key
        self.signer: keys.Key | None = None
        self.connection = Connection(self)
        self.screen: Screen | None = None
        self.output = b""
        self.host_key = b""
        self.password_asked = False

    def verifyHostKey(self, hostKey: bytes, fingerprint: bytes) -> Deferred[Any]:
        self.host_key = hostKey
        return succeed(True)

    def connectionSecure(self) -> None:
        self.requestService(Login(self))


class ConversationTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="rmq-manhole-")
        self.addCleanup(shutil.rmtree, self.root)
        self.key = prompt.host_key(os.path.join(self.root, "client"))
        with open(self.authorized_keys, "wb") as file:
            file.write(self.key.public().toString("openssh") + b"\n")
        self.events = EventLoggingObserver()
        globalLogPublisher.addObserver(self.events)
        self.addCleanup(globalLogPublisher.removeObserver, self.events)

    @property
    def authorized_keys(self) -> str:
        return os.path.join(self.root, "authorized_keys")

    def talk(self, key: keys.Key, namespace: dict[str, Any]) -> tuple[Client, Any]:
        """Return a client after its login, and the pump of the connection."""
        factory: Any = prompt.ssh_factory(namespace, self.authorized_keys)
        factory.startFactory()
        self.addCleanup(factory.stopFactory)
        server, client = factory.buildProtocol(None), Client(key)
        pump = connect(
            server,
            FakeTransport(server, True, peerAddress=IPv4Address("TCP", "127.0.0.1", 40022)),
            client,
            FakeTransport(client, False),
        )
        self.run_until_quiet(pump)
        return client, pump

    def run_until_quiet(self, pump: Any) -> None:
        for _ in range(MAX_ROUNDS):
            if not pump.pump():
                return
        self.fail("the two never stop talking")

    def test_a_line_and_its_answer(self) -> None:
        """The owner of a listed key types a line and sees its answer; the log has the line and where it came from."""
        client, pump = self.talk(self.key, {"answer": 6 * 7})
        assert client.screen is not None, "no shell"
        client.screen.write(b"answer + 100\r")
        self.run_until_quiet(pump)
        self.assertIn(b"142", client.output)
        typed = [(event["peer"], event["line"]) for event in self.events if "line" in event]
        self.assertEqual(typed, [("ssh 127.0.0.1:40022", "answer + 100")])

    def test_host_key_stays(self) -> None:
        """A second process on the same files shows the same host key."""
        shown = {self.talk(self.key, {})[0].host_key for _ in range(2)}
        self.assertEqual(len(shown), 1)
        self.assertNotEqual(shown, {b""})

    def test_stranger(self) -> None:
        """Another key opens no shell, and no password is ever asked for."""
        client, _ = self.talk(prompt.host_key(os.path.join(self.root, "stranger")), {})
        self.assertIsNone(client.screen)
        self.assertFalse(client.password_asked)
        self.flushLoggedErrors()
