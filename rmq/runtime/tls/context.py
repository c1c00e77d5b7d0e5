"""
TLS: certificates from files, contexts that follow the files when they change.

pyOpenSSL (extra ``tls``) is imported when the first context is made: without TLS it costs nothing. Listeners use a
:class:`ServerTls`, clients a :class:`ClientTls`; both are made from the same :class:`TlsTerms`.

Java: TlsHelper, FileWatchService
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IHandshakeListener,
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import alsoProvides, implementer

from rmq.runtime.clock import Periodic, now_ms
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.files import Disk
from rmq.runtime.tls.certificates import (
    Dates,
    ask_clients,
    is_address,
    make_options,
    other_host_text,
    read_files,
    refuse,
    require_openssl,
    self_signed_options,
    untrusted_text,
)
from rmq.runtime.tls.config import ClientAuth, Identity, TlsMode, TlsTerms

if TYPE_CHECKING:
    from OpenSSL.SSL import Connection, Context
    from twisted.internet.ssl import CertificateOptions

#: prefix of :func:`loss_text` when TLS is the reason
TLS_TROUBLE = "TLS: "
#: OpenSSL's reasons when the peer hangs up in the handshake, or does not speak TLS
NO_TLS = ("Unexpected EOF", "unexpected eof", "wrong version number", "packet length too long", "record layer failure")
#: how often certificate files are checked
REFRESH_S = 5.0
#: a certificate that expires within so many days is logged as a warning, once a day
EXPIRY_WARNING_DAYS = 14


class ServerTls(Service):
    """
    The listening side of TLS: hand its :meth:`creator` to ``transport.startTLS`` or ``listenSSL``.

    :meth:`load` (or the start) reads the files. While the service runs, they are read again every REFRESH_S; new
    connections use the newest valid files; broken files, and a certificate that has ended or not yet begun in place of
    one that is valid, change nothing.
    """

    _log = Logger()

    def __init__(self, disk: Disk, clock: IReactorTime, terms: TlsTerms) -> None:
        self.terms = terms
        self._disk = disk
        self._clock = clock
        self._files: dict[str, bytes] = {}
        self._options: CertificateOptions | None = None
        self._dates: Dates | None = None
        #: days until the certificate ends, at the last warning
        self._warned_days: int | None = None
        self._trouble = ""
        self._refresh = Periodic(clock, REFRESH_S, self.refresh, name="refresh of the TLS certificates")

    @property
    def mode(self) -> TlsMode:
        return self.terms.mode

    def startService(self) -> None:
        """Raises ConfigError, naming the file, when the certificate cannot be used."""
        self.load()
        super().startService()
        if self.terms.mode is not TlsMode.DISABLED and self.terms.server.paths:
            self._refresh.start()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return self._refresh.stop()

    def load(self) -> None:
        """
        Read the files; without a certificate do nothing yet.

        Raises ConfigError, naming the file, when they cannot be used or TLS is enforced and pyOpenSSL is missing.
        """
        if self.terms.mode is TlsMode.DISABLED or self._options is not None:
            return
        if self.terms.server.cert_path is not None:
            self._take(read_files(self._disk, self.terms.server))
        elif self.terms.mode is TlsMode.ENFORCING:
            require_openssl()

    def refresh(self) -> None:
        """Read the files again and use them if they have changed and are valid."""
        if self.terms.server.cert_path is None:
            return
        self._warn_of_end()
        try:
            files = read_files(self._disk, self.terms.server)
            if files == self._files:
                self._trouble = ""
                return
            self._take(files)
        except ConfigError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._log.error(
                    "new TLS files cannot be used, the certificate loaded before stays in use: {error}", error=error
                )
            return
        self._trouble = ""

    def context(self) -> Context:
        """
        Return the context for the next connection; in test mode the first call makes a certificate.

        Raises ConfigError when pyOpenSSL is missing.
        """
        require_openssl()
        if self._options is None:
            self._log.warn(
                "TLS in test mode: a self-signed certificate that nobody can verify is made; "
                "set tls.server.certPath and tls.server.keyPath to a real one"
            )
            self._options = self_signed_options(now_ms(self._clock) // 1000)
            ask_clients(self._options.getContext(), ClientAuth.OPTIONAL, self.terms.server)
        context: Context = self._options.getContext()
        return context

    def connection(self) -> Connection:
        """Return OpenSSL's state of a new connection; raises as :meth:`context`."""
        from OpenSSL.SSL import Connection

        return Connection(self.context(), None)

    def creator(self) -> Any:
        """Return the context factory for Twisted's ``startTLS`` and ``listenSSL``; it follows the files too."""
        return _ServerCreator(self)

    def _take(self, files: dict[str, bytes]) -> None:
        terms = self.terms
        options, dates = make_options(terms.server, files, terms.client_auth)
        now_s = now_ms(self._clock) / 1000
        trouble = dates.trouble(now_s)
        if trouble is not None and self._dates is not None and self._dates.trouble(now_s) is None:
            raise ConfigError(f"TLS: the certificate {terms.server.cert_path} {trouble}")
        self._options, self._files, self._dates, self._warned_days = options, files, dates, None
        self._log.info(
            "TLS: the certificate {path} ({subject}, valid until {until}) is in use",
            path=terms.server.cert_path,
            subject=dates.subject,
            until=dates.until,
        )
        if now_s < dates.since_s:
            self._log.warn(
                "TLS: the certificate {path} begins on {since}, and clients refuse it until then; is the clock right?",
                path=terms.server.cert_path,
                since=dates.since,
            )
        self._warn_of_end()

    def _warn_of_end(self) -> None:
        """Warn of the end of the certificate in use, once a day in the last EXPIRY_WARNING_DAYS and afterwards."""
        if self._dates is None:
            return
        rest_days = math.floor((self._dates.until_s - now_ms(self._clock) / 1000) / 86_400)
        if rest_days < EXPIRY_WARNING_DAYS and rest_days != self._warned_days:
            self._warned_days = rest_days
            self._log.warn(
                "TLS: the certificate {path} {what} on {until}",
                path=self.terms.server.cert_path,
                what="ended" if rest_days < 0 else "ends",
                until=self._dates.until,
            )


class ClientTls:
    """
    The dialling side of TLS.

    Files are read for each connection, so new ones are used at once; :meth:`load` checks them early.
    """

    _log = Logger()

    def __init__(self, disk: Disk, clock: IReactorTime, terms: TlsTerms) -> None:
        self._disk = disk
        self._clock = clock
        self._identity = terms.client

    def load(self) -> None:
        """Raises ConfigError, naming the file, when no connection could succeed."""
        require_openssl()
        make_options(self._identity, read_files(self._disk, self._identity), ClientAuth.NONE)
        if not self._identity.verify:
            self._log.warn(
                "TLS: the certificates of servers that this one connects to are not verified; "
                "tls.client.authServer=true with tls.client.trustCertPath does that"
            )

    def creator(self, host: str) -> _ClientCreator:
        """Return Twisted's connection creator for ``host``, a name or an IP address; raises ConfigError."""
        options, _ = make_options(self._identity, read_files(self._disk, self._identity), ClientAuth.NONE)
        if self._identity.verify:
            return _VerifyingCreator(options.getContext(), host, self._identity)
        return _ClientCreator(options.getContext())

    def wrap(self, endpoint: IStreamClientEndpoint, host: str) -> IStreamClientEndpoint:
        """Return an endpoint that speaks TLS over what ``endpoint`` connects to; raises ConfigError."""
        return _TlsEndpoint(endpoint, self.creator(host.strip("[]")), self._clock)


@implementer(IStreamClientEndpoint)
class _TlsEndpoint:
    """
    Twisted's wrapClientTLS, with two differences: the clock is ours, and connected means after the handshake.

    Data written before that makes the TLS layer pause its producer, and a protocol that then stops reading would wait
    for ever.
    """

    def __init__(self, endpoint: IStreamClientEndpoint, creator: _ClientCreator, clock: IReactorTime) -> None:
        self._endpoint = endpoint
        self._creator = creator
        self._clock = clock

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        from twisted.protocols.tls import TLSMemoryBIOProtocol

        class Layer(TLSMemoryBIOProtocol):
            """Reports the result of the handshake."""

            shaken: Deferred[Any] | None = None

            def connectionMade(self) -> None:
                self.shaken = Deferred(lambda _: self.abortConnection())
                super().connectionMade()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                known: Failure = getattr(self, "_reason", None) or reason
                super().connectionLost(reason)
                if self.shaken is not None and not self.shaken.called:
                    self.shaken.errback(known)

        def completed(layer: Layer) -> Deferred[Any] | None:
            inner: Any = layer.wrappedProtocol
            shaken = layer.shaken
            if shaken is not None and not shaken.called:
                inner.handshakeCompleted = lambda: shaken.callback(inner)
                alsoProvides(inner, IHandshakeListener)
            return shaken

        factory = tls_around(protocolFactory, self._creator, self._clock, is_client=True)
        factory.protocol = Layer
        connected: Deferred[Any] = self._endpoint.connect(factory)
        return connected.addCallback(completed)


def tls_around(factory: Any, creator: Any, clock: IReactorTime, *, is_client: bool) -> Any:
    """
    Return a factory of TLS connections around those of ``factory``, which may refuse one by making none.

    Twisted's own also wraps a None: an error when the connection is made, and a socket that is never closed.
    """
    # Lazy import: pyOpenSSL is an extra, needed with TLS only.
    from twisted.protocols.tls import TLSMemoryBIOFactory

    class Around(TLSMemoryBIOFactory):
        def buildProtocol(self, addr: Any) -> Any:
            inner = self.wrappedFactory.buildProtocol(addr)
            return None if inner is None else self.protocol(self, inner)

    return Around(creator, is_client, factory, clock)


@implementer(IOpenSSLServerConnectionCreator)
class _ServerCreator:
    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls

    def serverConnectionForTLS(self, tlsProtocol: Any) -> Connection:
        return self._tls.connection()


@implementer(IOpenSSLClientConnectionCreator)
class _ClientCreator:
    """Connections without verification."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def clientConnectionForTLS(self, tlsProtocol: Any) -> Connection:
        from OpenSSL.SSL import Connection

        return Connection(self._context, None)


class _VerifyingCreator(_ClientCreator):
    """
    A connection to ``host``, whose certificate must be for it.

    Twisted's optionsForClientTLS takes a trusted certificate without subjectAltName for any host, and keeps the reason
    of a refusal to itself.
    """

    def __init__(self, context: Context, host: str, identity: Identity) -> None:
        from OpenSSL.SSL import VERIFY_FAIL_IF_NO_PEER_CERT, VERIFY_PEER

        super().__init__(context)
        self._identity = identity
        self._is_address = is_address(host)
        try:
            self._host = host if self._is_address else host.encode("idna").decode()
        except UnicodeError as error:
            raise ConfigError(f"TLS: no certificate can be for the host name {host!r}: {error}") from error
        context.set_verify(VERIFY_PEER | VERIFY_FAIL_IF_NO_PEER_CERT, self._check)

    def clientConnectionForTLS(self, tlsProtocol: Any) -> Connection:
        connection = super().clientConnectionForTLS(tlsProtocol)
        if not self._is_address:
            connection.set_tlsext_host_name(self._host.encode())
        return connection

    def _check(self, _connection: Connection, x509: Any, error: int, depth: int, good: int) -> bool:
        """Raise SSL.Error unless the chain is good so far; called for each certificate, the server's last."""
        if not good:
            refuse(untrusted_text(x509, error, self._identity))
        if depth == 0:
            text = other_host_text(x509, self._host, is_address=self._is_address)
            if text is not None:
                refuse(text)
        return True


def is_no_tls(error: BaseException | None) -> bool:
    """Return whether a handshake failed because the peer hung up or answered something else than TLS."""
    if isinstance(error, ConnectionDone | ConnectionLost):
        return True
    return type(error).__module__ == "OpenSSL.SSL" and any(word in str(error) for word in NO_TLS)


def loss_text(error: BaseException | None) -> str:
    """Return why a connection was lost, for people; OpenSSL's own texts are unreadable."""
    module = type(error).__module__
    if module == "OpenSSL.SSL":
        args = () if error is None else error.args
        # Either one list of (library, function, reason), or a number and a text.
        reasons = args[0] if args and isinstance(args[0], list | tuple) else [args] if args else []
        texts = [str(entry[-1]) for entry in reasons if entry]
        return f"{TLS_TROUBLE}{', '.join(texts) or 'the handshake failed'}"
    return str(error)
