"""
Twisted's reactor without pyOpenSSL, until somebody wants TLS.

Where pyOpenSSL is installed, `twisted.internet.tcp` and `posixbase` import it, and cryptography and service-identity
with it: 250 of the 700 million instructions that importing a NameServer took, 94 modules and 8 MiB, for a handshake
that most processes never see. Here the three modules of Twisted that need it are stood in for while these two are
imported. TLS is there nevertheless, with everything that the reactor says of itself: the first ``startTLS``,
``listenSSL`` or ``connectSSL`` imports the real ones, which takes a tenth of a second, once. The reactor's modules for
UNIX sockets and UDP wait in the same way for somebody who wants them.
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
#: what uses them takes them from the module when it needs them: a module that is imported then will do
_USED_LATER = ("twisted.protocols.tls", "twisted.internet.ssl", "twisted.internet.unix", "twisted.internet.udp")


class _Later(ModuleType):
    """Stands in for a module until one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class ConnectionMixin:
    """
    What a TCP transport is made of until the first of the process begins TLS: it can do so, and none has.

    Then it becomes what it stands for; before that the other methods of that would only pass on what they are given.
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
    Let what is imported of Twisted's reactors meanwhile bring pyOpenSSL when it is used, not now.

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
