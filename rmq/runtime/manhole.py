"""
A Python prompt into the running process, off unless asked for.

``PORT`` opens it over telnet, ``ssh:PORT:AUTHORIZED_KEYS`` over ssh for the owners of the listed keys. Both listen on
127.0.0.1 only. Telnet asks nobody who they are: whoever may open a connection on this machine then *is* this process.
Every line that is typed goes to the log with the peer's address.
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.application.service import IService

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


def make_manhole_service(spec: str, namespace: dict[str, Any], *, reactor: Any = None) -> IService:
    """
    Return the service that listens as ``spec`` says and offers ``namespace`` at its prompt.

    Raises ConfigError for a wrong ``spec``, for unusable key files and when Twisted's conch cannot be imported.
    """
    address = parse_manhole(spec)
    if reactor is None:
        from twisted.internet import reactor
    # automat and pyOpenSSL, a tenth of a second of every start where nobody asks for a manhole
    from twisted.application.internet import StreamServerEndpointService
    from twisted.internet.endpoints import TCP4ServerEndpoint

    try:
        # Not needed, and not installed, where nobody asks for a manhole.
        from rmq.runtime import prompt
    except ImportError as error:
        raise ConfigError(f"the manhole needs the extra rmq[manhole]: pip install 'rmq[manhole]' ({error})") from error
    if address.authorized_keys is None:
        factory = prompt.telnet_factory(namespace)
    else:
        factory = prompt.ssh_factory(namespace, address.authorized_keys)
    endpoint = TCP4ServerEndpoint(reactor, address.port, interface=INTERFACE)
    service = StreamServerEndpointService(endpoint, factory)
    service.setName("manhole")
    return service
