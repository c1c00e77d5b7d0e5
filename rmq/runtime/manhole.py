"""
A Python prompt into the running process, off by default.

``PORT`` opens it over telnet, ``ssh:PORT:AUTHORIZED_KEYS`` over ssh for the owners of the listed keys. Both listen on
127.0.0.1 only. Telnet has no authentication: every user of this machine can control the process.
Every line that is typed goes to the log with the peer's address.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from rmq.runtime.properties import ConfigError

INTERFACE = "127.0.0.1"


@attrs.frozen(kw_only=True)
class ManholeAddress:
    """Where the manhole listens; ``authorized_keys`` is None for telnet."""

    port: int
    authorized_keys: str | None


def parse_manhole(spec: str) -> ManholeAddress:
    """Return the address that ``spec`` (``PORT`` or ``ssh:PORT:AUTHORIZED_KEYS``) names, or raise ConfigError."""
    port, keys = spec, None
    if spec.startswith("ssh:"):
        port, _, keys = spec.removeprefix("ssh:").partition(":")
    if not (port.isascii() and port.isdecimal() and 0 <= int(port) <= 65535) or keys == "":
        raise ConfigError(f"manhole {spec!r}: PORT (telnet) or ssh:PORT:AUTHORIZED_KEYS is expected")
    return ManholeAddress(port=int(port), authorized_keys=keys)


def make_manhole_service(spec: str, namespace: dict[str, Any], *, reactor: Any = None) -> ManholeService:
    """
    Return the service that listens at ``spec``; its prompt has the names of ``namespace``.

    Raises ConfigError for a wrong ``spec``, for unusable key files and when Twisted's conch cannot be imported.
    """
    address = parse_manhole(spec)
    if reactor is None:
        from twisted.internet import reactor
    try:
        # Lazy import: conch is an extra, needed with a manhole only.
        from rmq.runtime import prompt
    except ImportError as error:
        raise ConfigError(
            f"the manhole needs the extra txrocketmq[manhole]: pip install 'txrocketmq[manhole]' ({error})"
        ) from error
    if address.authorized_keys is None:
        factory = prompt.telnet_factory(namespace)
    else:
        factory = prompt.ssh_factory(namespace, address.authorized_keys)
    return ManholeService(reactor, address, factory)


class ManholeService(Service):
    """
    Listen on 127.0.0.1 while the service runs.

    Not Twisted's StreamServerEndpointService: for a port in use that one only logs a traceback, and the process would
    continue without the prompt.
    """

    name = "manhole"
    _log = Logger()

    def __init__(self, reactor: Any, address: ManholeAddress, factory: Any) -> None:
        self._reactor = reactor
        self._address = address
        self._factory = factory
        self._listening: Any = None

    def startService(self) -> None:
        """Listen; a CannotListenError names the address when that is not possible."""
        port, keys = self._address.port, self._address.authorized_keys
        self._listening = self._reactor.listenTCP(port, self._factory, interface=INTERFACE)
        super().startService()
        port = getattr(self._listening.getHost(), "port", port)
        if keys is None:
            self._log.warn(
                "manhole listens on {host}:{port} without passwords: every user of this machine can enter",
                host=INTERFACE,
                port=port,
            )
        else:
            self._log.info(
                "manhole listens on {host}:{port}, for the owners of the keys in {keys}",
                host=INTERFACE,
                port=port,
                keys=keys,
            )
            self._warn_of_writers(keys)

    def _warn_of_writers(self, path: str) -> None:
        """Say who may add keys besides the owner of the file: sshd refuses such a file."""
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            self._log.warn(
                "other users can write {keys} (mode {mode}), and enter with a key of theirs: chmod 600 {keys}",
                keys=path,
                mode=f"{mode:o}",
            )

    def stopService(self) -> Deferred[None]:
        """Stop listening; fires when the port is closed."""
        super().stopService()
        listening, self._listening = self._listening, None
        if listening is None:
            return maybeDeferred(lambda: None)
        return maybeDeferred(listening.stopListening).addCallback(lambda _: None)
