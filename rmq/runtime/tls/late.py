"""
Twisted's reactor without pyOpenSSL, until TLS is used.

Where pyOpenSSL is installed, `twisted.internet.tcp` and `posixbase` import it, and cryptography and service-identity
with it: 250 of the 700 million instructions that importing a NameServer took, 94 modules and 8 MiB, for a handshake
that most processes never do. Here the three modules of Twisted that need it are replaced while these two are imported.
TLS still works, with all interfaces that the reactor declares: the first ``startTLS``, ``listenSSL`` or ``connectSSL``
imports the real modules, which takes a tenth of a second, once. The reactor's modules for UNIX sockets and UDP are
imported lazily in the same way.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_NEWTLS = "twisted.internet._newtls"
#: their users read them from the module at each use, so it may be imported then
_USED_LATER = ("twisted.protocols.tls", "twisted.internet.ssl", "twisted.internet.unix", "twisted.internet.udp")


class _Later(ModuleType):
    """Replaces a module until one of its names is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class ConnectionMixin:
    """
    The TLS mixin of TCP transports until the first connection of the process starts TLS.

    Then it becomes the real mixin; before that the other methods of the real one would only pass on their arguments.
    Twisted: twisted.internet._newtls.ConnectionMixin
    """

    TLS = False

    def startTLS(self, ctx: Any, normal: bool = True) -> None:
        real = importlib.import_module(_NEWTLS).ConnectionMixin
        for name, value in vars(real).items():
            if not name.startswith("__"):
                setattr(ConnectionMixin, name, value)
        self.startTLS(ctx, normal)


class ClientMixin:
    """Twisted: twisted.internet._newtls.ClientMixin"""

    _tlsClientDefault = True


class ServerMixin:
    """Twisted: twisted.internet._newtls.ServerMixin"""

    _tlsClientDefault = False


@contextmanager
def tls_later() -> Iterator[None]:
    """
    Import Twisted's reactor modules within this context without pyOpenSSL, which is imported at its first use.

    Without effect where pyOpenSSL is missing and where Twisted's TCP is imported already.
    """
    absent = importlib.util.find_spec("OpenSSL") is None
    if absent or any(name in sys.modules for name in (_NEWTLS, *_USED_LATER, "twisted.internet.tcp")):
        yield
        return
    stand_ins: dict[str, ModuleType] = {name: _Later(name) for name in (_NEWTLS, *_USED_LATER)}
    vars(stand_ins[_NEWTLS]).update(ConnectionMixin=ConnectionMixin, ClientMixin=ClientMixin, ServerMixin=ServerMixin)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


@contextmanager
def without_openssl() -> Iterator[None]:
    """
    Import `twisted.internet.endpoints` within this context without pyOpenSSL; its `wrapClientTLS` does not work then.

    For our own processes, which have TLS around connections in another way: not for those that import us. Without
    effect where one of the two is imported already.
    """
    if "OpenSSL" in sys.modules or "twisted.internet.endpoints" in sys.modules:
        yield
        return
    sys.modules["OpenSSL"] = None  # type: ignore[assignment]  # an import of it is an ImportError
    try:
        yield
    finally:
        del sys.modules["OpenSSL"]
