"""The conch side of the manhole; `rmq.runtime.manhole` imports it when one is configured."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from twisted.conch import manhole, manhole_ssh, telnet
from twisted.conch.checkers import IAuthorizedKeysDB, SSHPublicKeyChecker, readAuthorizedKeyFile
from twisted.conch.insults import insults
from twisted.conch.ssh import keys
from twisted.conch.ssh.transport import DISCONNECT_BY_APPLICATION, SSHServerTransport
from twisted.cred.portal import Portal
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.runtime.properties import ConfigError

#: kept beside the authorized keys, so that ssh clients see the same host key after a restart
HOST_KEY_NAME = "rmq_manhole_host_key"


class Interpreter(manhole.ManholeInterpreter):
    """``exit()`` ends the session only; ``input()`` and ``help()`` do not wait for the terminal of the process."""

    def __init__(self, handler: Any, names: dict[str, Any] | None) -> None:
        super().__init__(handler, names)
        self.monkeyPatcher.addPatch(sys, "stdin", io.StringIO())

    def runcode(self, *code: Any) -> None:
        try:
            super().runcode(*code)
        except SystemExit:
            self.handler.handle_QUIT()


class LoggedManhole(manhole.ColoredManhole):
    """A Python prompt that logs every line before running it."""

    _log = Logger()

    def connectionMade(self) -> None:
        super().connectionMade()
        self.interpreter = Interpreter(self, self.namespace)
        self._log.warn("manhole opened by {peer}", peer=self._peer())

    def lineReceived(self, line: bytes) -> None:
        self._log.warn("manhole {peer} runs {line}", peer=self._peer(), line=line.decode("utf-8", "replace"))
        super().lineReceived(line)

    def connectionLost(self, reason: Any) -> None:
        self._log.warn("manhole closed by {peer}", peer=self._peer())
        super().connectionLost(reason)

    def _peer(self) -> str:
        # over ssh the transport is a channel, which does not have its connection
        known: str | None = getattr(self.terminal, "ssh_peer", None)
        return _peer_text(self.terminal.transport.getPeer()) if known is None else known


def _peer_text(address: Any) -> str:
    return f"{address.host}:{address.port}" if hasattr(address, "port") else str(address)


class Transport(SSHServerTransport):
    """conch's logs an error whenever a client leaves."""

    def receiveError(self, reasonCode: int, description: bytes) -> None:
        if reasonCode != DISCONNECT_BY_APPLICATION:
            super().receiveError(reasonCode, description)


class Session(manhole_ssh.TerminalSession):
    """A session that may change its size, and that may have no terminal (``ssh -T``): the end of its input ends it."""

    height, width = 24, 80
    _proto: Any = None

    def openShell(self, proto: Any) -> None:
        self._proto = proto
        super().openShell(proto)

    def execCommand(self, proto: Any, cmd: bytes) -> None:
        proto.write(b"ssh runs no command here; send lines to the prompt: ssh -T ... < FILE\r\n")
        proto.loseConnection()

    def windowChanged(self, newWindowSize: Any) -> None:
        """Nothing depends on the size."""

    def eofReceived(self) -> None:
        if self._proto is not None:  # after a command the session is closed already
            self._proto.loseConnection()


def _ssh_session(proto: Any, terminal: Any, avatar: Any, width: int, height: int) -> Any:
    """Begin a session whose prompt knows its peer and is notified of its end: conch notifies only the channel."""
    terminal.ssh_peer = "ssh " + _peer_text(avatar.conn.transport.transport.getPeer())
    channel = proto.session
    closed = channel.closed

    def ended() -> None:
        terminal.connectionLost(Failure(ConnectionDone()))
        closed()

    channel.closed = ended
    return manhole_ssh.TerminalSessionTransport(proto, terminal, avatar, width, height)


@implementer(IAuthorizedKeysDB)
class KeyList:
    """The keys of one file, for any user name: all users get the same process."""

    def __init__(self, allowed: list[keys.Key]) -> None:
        self._allowed = allowed

    def getAuthorizedKeys(self, username: bytes) -> list[keys.Key]:
        return self._allowed


def telnet_factory(namespace: dict[str, Any]) -> IProtocolFactory:
    """Return the factory of a telnet prompt; it asks for no password."""

    def transport() -> Any:
        return telnet.TelnetTransport(telnet.TelnetBootstrapProtocol, insults.ServerProtocol, LoggedManhole, namespace)

    return Factory.forProtocol(transport)


def ssh_factory(namespace: dict[str, Any], authorized_keys: str) -> IProtocolFactory:
    """Return the factory of an ssh prompt for the keys in the file; ConfigError when it holds none."""
    checker = SSHPublicKeyChecker(KeyList(read_authorized_keys(authorized_keys)))
    realm: Any = manhole_ssh.TerminalRealm(_ssh_session)
    realm.sessionFactory = Session
    realm.chainedProtocolFactory = lambda: insults.ServerProtocol(LoggedManhole, namespace)
    factory: Any = manhole_ssh.ConchFactory(Portal(realm, [checker]))
    factory.protocol = Transport
    key = host_key(os.path.join(os.path.dirname(os.path.abspath(authorized_keys)), HOST_KEY_NAME))
    factory.publicKeys = {key.sshType(): key.public()}
    factory.privateKeys = {key.sshType(): key}
    conch_factory: IProtocolFactory = factory
    return conch_factory


def read_authorized_keys(path: str) -> list[keys.Key]:
    """Return the public keys in an OpenSSH ``authorized_keys`` file; ConfigError when that fails or there are none."""
    try:
        with open(path, "rb") as file:
            found = list(readAuthorizedKeyFile(file))
    except OSError as error:
        raise ConfigError(f"manhole: authorized keys {path}: {error.strerror}") from error
    if not found:
        raise ConfigError(f"manhole: {path} holds no public key that can be read")
    return found


def host_key(path: str) -> keys.Key:
    """Return the host key kept in ``path``, which is made (readable for the owner only) when it is missing."""
    try:
        if not os.path.exists(path):
            text = ed25519.Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
        key: keys.Key = keys.Key.fromFile(path)
    except (OSError, keys.BadKeyError) as error:
        raise ConfigError(f"manhole: host key {path}: {error}") from error
    return key
