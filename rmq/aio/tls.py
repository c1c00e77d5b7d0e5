"""TLS of the client for asyncio, by the same file as Java's clients and `rmq-admin`."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from rmq.errors import ConfigurationError
from rmq.runtime.config import ConfigError
from rmq.runtime.tls.config import Identity, parse_tls, terms_of


class TlsFiles:
    """
    The ``tls.client.*`` keys of a properties file, and the certificates that they name, which may be renewed.

    ConfigurationError, naming file and key, when the file or one that it names cannot be used.

    Java: TlsHelper#buildSslContext
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._identity = terms_of(parse_tls(Path(path).read_bytes(), str(path))).client
        except (ConfigError, OSError) as error:
            raise ConfigurationError(f"tls: {error}") from error
        self._seen: list[tuple[int, ...]] = []
        self._context: ssl.SSLContext | None = None
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection: a new one if a certificate or key has changed."""
        seen = [_version_of(path) for path in self._identity.paths]
        if self._context is None or seen != self._seen:
            self._context = _context_of(self._identity)
            self._seen = seen
        return self._context


def _version_of(path: str) -> tuple[int, ...]:
    """Return numbers that change with the file; none if it cannot be read, of which its reader complains."""
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def _context_of(identity: Identity) -> ssl.SSLContext:
    context = _trusting(identity)
    if identity.cert_path is not None:
        password = identity.key_password or ""  # without one OpenSSL would ask at the terminal
        try:
            context.load_cert_chain(identity.cert_path, identity.key_path, lambda: password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError(
                f"tls: tls.client.certPath={identity.cert_path} and tls.client.keyPath={identity.key_path} cannot be "
                f"used, with tls.client.keyPassword as it is: {error}"
            ) from error
    return context


def _trusting(identity: Identity) -> ssl.SSLContext:
    if not identity.verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=identity.trust_path)
    except OSError as error:
        raise ConfigurationError(f"tls: tls.client.trustCertPath={identity.trust_path}: {error}") from error
