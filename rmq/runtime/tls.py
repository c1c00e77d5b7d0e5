"""
TLS: Apache's keys, certificates from files, contexts that follow the files when they change.

pyOpenSSL (extra ``tls``) is imported when the first context is made: who does not use TLS does not pay for it. Whoever
listens takes a :class:`ServerTls`, whoever dials a :class:`ClientTls`; both are made from the same :class:`TlsTerms`.

Java: TlsHelper, TlsSystemConfig, TlsMode, FileWatchService
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred
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

from rmq.runtime.clock import Periodic
from rmq.runtime.config import ConfigError, load
from rmq.runtime.disk import Disk
from rmq.runtime.diskerror import DiskError
from rmq.runtime.properties import decode_properties

if TYPE_CHECKING:
    from OpenSSL.SSL import Connection, Context
    from twisted.internet.ssl import CertificateOptions

#: how :func:`loss_text` begins when TLS is the reason
TLS_TROUBLE = "TLS: "
DEFAULT_CONFIG_FILE = "/etc/rocketmq/tls.properties"
#: how often certificate files are looked at
REFRESH_S = 5.0
#: days for which a self-signed certificate of the test mode is valid
TEST_CERTIFICATE_DAYS = 365
#: a certificate that ends within so many days is worth a warning when it is loaded
EXPIRY_WARNING_DAYS = 14


class TlsMode(enum.Enum):
    """What a port does with TLS: refuses it, takes it beside plain connections, or takes nothing else."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.Enum):
    """Whether clients are asked for a certificate, and whether they must have one."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


def _key(key: str, doc: str, check: Any = None) -> Any:
    return attrs.field(default=None, metadata={"key": key, "doc": doc}, validator=check)


def _one_of(kind: type[enum.Enum]) -> Any:
    """Return a validator: the value is one of ``kind``, in whatever case."""

    def check(config: object, field: attrs.Attribute[Any], value: str | None) -> None:
        names = [member.value for member in kind]
        if value is not None and value.strip().lower() not in names:
            raise ValueError(f"{field.metadata['key']}={value!r} is wrong, one of {', '.join(names)} is expected")

    return check


@attrs.frozen(kw_only=True)
class TlsConfig:
    """
    The keys of Apache's TLS; None where nothing was given.

    They come from the command line, the file of ``-c`` and the file of ``tls.config.file``; earlier beats later.

    Java: TlsSystemConfig
    """

    config_file: str | None = _key(
        "tls.config.file", f"properties file with the keys below; without it {DEFAULT_CONFIG_FILE}, if that exists"
    )
    mode: str | None = _key(
        "tls.server.mode",
        "disabled, permissive (TLS and plain connections on one port, the default) or enforcing (TLS only)",
        _one_of(TlsMode),
    )
    enable: bool | None = _key(
        "tls.enable", "connect to other servers with TLS; without it only when tls.server.mode=enforcing"
    )
    test_mode: bool | None = _key(
        "tls.test.mode.enable",
        "self-signed certificate, no verification; without it true as long as no certificates are configured",
    )
    server_client_auth: str | None = _key(
        "tls.server.need.client.auth", "ask clients for a certificate: none (default), optional, require",
        _one_of(ClientAuth),
    )  # fmt: skip
    server_key_path: str | None = _key("tls.server.keyPath", "private key, PEM")
    server_key_password: str | None = _key("tls.server.keyPassword", "password of tls.server.keyPath")
    server_cert_path: str | None = _key("tls.server.certPath", "certificate and those that signed it, PEM")
    server_auth_client: bool | None = _key("tls.server.authClient", "verify the certificates of clients")
    server_trust_cert_path: str | None = _key(
        "tls.server.trustCertPath", "who may sign certificates of clients, PEM; without it the system's list"
    )
    client_key_path: str | None = _key("tls.client.keyPath", "private key for connections to other servers, PEM")
    client_key_password: str | None = _key("tls.client.keyPassword", "password of tls.client.keyPath")
    client_cert_path: str | None = _key("tls.client.certPath", "certificate for connections to other servers, PEM")
    client_auth_server: bool | None = _key(
        "tls.client.authServer", "verify the certificates of other servers and that they are for the address dialled"
    )
    client_trust_cert_path: str | None = _key(
        "tls.client.trustCertPath", "who may sign certificates of servers, PEM; without it the system's list"
    )


@attrs.frozen(kw_only=True)
class Identity:
    """Files of one side: its key, its certificate, and whom it trusts. ``verify``: certificates must be trusted."""

    side: str
    key_path: str | None = None
    key_password: str | None = attrs.field(default=None, repr=False)
    cert_path: str | None = None
    trust_path: str | None = None
    verify: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path in (self.key_path, self.cert_path, self.trust_path) if path is not None)


@attrs.frozen(kw_only=True)
class TlsTerms:
    """
    What :class:`TlsConfig` and its file come to.

    ``server`` without files is the test mode: a self-signed certificate, made when it is first needed. ``dial``: our
    own connections use TLS.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    dial: bool = False
    client_auth: ClientAuth = ClientAuth.NONE
    server: Identity = attrs.field(factory=lambda: Identity(side="server"))
    client: Identity = attrs.field(factory=lambda: Identity(side="client"))


def resolve_tls(config: TlsConfig, disk: Disk) -> TlsTerms:
    """
    Return the terms of ``config`` and of the file that it names.

    Raises ConfigError for a file that was named and is not there, for bad values, for a key without its certificate,
    and for a test mode that would switch off what other keys ask for.
    """
    config = _with_file(config, disk)
    test_mode = config.test_mode
    asked_for = {
        "tls.server.certPath": config.server_cert_path,
        "tls.server.authClient": config.server_auth_client,
        "tls.client.authServer": config.client_auth_server,
    }
    if test_mode:
        for key, value in asked_for.items():
            if value:
                raise ConfigError(f"tls.test.mode.enable=true would switch off {key}={_shown(value)}: leave one out")
    server = Identity(
        side="server",
        key_path=config.server_key_path or None,
        key_password=config.server_key_password or None,
        cert_path=config.server_cert_path or None,
        trust_path=config.server_trust_cert_path or None,
        verify=bool(config.server_auth_client),
    )
    client = Identity(
        side="client",
        key_path=config.client_key_path or None,
        key_password=config.client_key_password or None,
        cert_path=config.client_cert_path or None,
        trust_path=config.client_trust_cert_path or None,
        verify=bool(config.client_auth_server),
    )
    for identity in (server, client):
        if (identity.key_path is None) != (identity.cert_path is None):
            raise ConfigError(
                f"tls.{identity.side}.keyPath and tls.{identity.side}.certPath belong together, only one is given"
            )
    mode = TlsMode((config.mode or "permissive").strip().lower())
    if mode is TlsMode.ENFORCING and test_mode is False and server.cert_path is None:
        raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
    if test_mode is False and server.cert_path is None:
        mode = TlsMode.DISABLED
    dial = config.enable if config.enable is not None else mode is TlsMode.ENFORCING
    auth = ClientAuth((config.server_client_auth or "none").strip().lower())
    if server.verify and auth is ClientAuth.NONE:
        raise ConfigError("tls.server.authClient=true needs tls.server.need.client.auth, optional or require")
    return TlsTerms(mode=mode, dial=dial, client_auth=auth, server=server, client=client)


def _with_file(config: TlsConfig, disk: Disk) -> TlsConfig:
    """Return ``config`` with what it leaves open taken from its file."""
    path = config.config_file or DEFAULT_CONFIG_FILE
    try:
        if not disk.exists(path):
            if config.config_file:
                raise ConfigError(f"tls.config.file={path}: there is no such file")
            return config
        values = decode_properties(disk.read_whole(path), path)
    except DiskError as error:
        raise ConfigError(f"tls.config.file: {error}") from error
    loaded = load((TlsConfig,), values, path)
    if loaded.unknown:
        # A mistyped key of this file would leave a door open that the operator believes to be shut.
        raise ConfigError(f"{path}: unknown key {sorted(loaded.unknown)[0]}")
    given: TlsConfig = loaded.configs[0]
    missing = {name: value for name, value in attrs.asdict(given).items() if getattr(config, name) is None}
    return attrs.evolve(config, **missing)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ServerTls(Service):
    """
    The listening side of TLS: hand its :meth:`creator` to ``transport.startTLS`` or ``listenSSL``.

    :meth:`load` (or the start) reads the files. While the service runs, they are read again every REFRESH_S; new
    connections get what the newest good files say, and with broken files the old ones stay.
    """

    _log = Logger()

    def __init__(self, disk: Disk, clock: IReactorTime, terms: TlsTerms, *, name: str = "TLS") -> None:
        self.terms = terms
        self._disk = disk
        self._clock = clock
        self._files: dict[str, bytes] = {}
        self._options: CertificateOptions | None = None
        self._trouble = ""
        self._refresh = Periodic(clock, REFRESH_S, self.refresh, name=f"refresh of the certificates of {name}")

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
        Read the files; without a certificate nothing yet.

        Raises ConfigError, naming the file, when they cannot be used or TLS is enforced and pyOpenSSL is missing.
        """
        if self.terms.mode is TlsMode.DISABLED or self._options is not None:
            return
        if self.terms.server.cert_path is not None:
            self._take(read_files(self._disk, self.terms.server))
        elif self.terms.mode is TlsMode.ENFORCING:
            require_openssl()

    def refresh(self) -> None:
        """Read the files again and use them if they have changed and are sound."""
        if self.terms.server.cert_path is None:
            return
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
            self._options = _test_options(int(self._clock.seconds()))
            _ask_clients(self._options.getContext(), ClientAuth.OPTIONAL, verify=False)
        context: Context = self._options.getContext()
        return context

    def connection(self) -> Connection:
        """Return OpenSSL's state of a new connection; raises as :meth:`context`."""
        from OpenSSL.SSL import Connection

        return Connection(self.context(), None)

    def creator(self) -> Any:
        """Return what Twisted's ``startTLS`` and ``listenSSL`` want; it follows the files too."""
        return _ServerCreator(self)

    def _take(self, files: dict[str, bytes]) -> None:
        terms = self.terms
        options, ends = _options(terms.server, files, terms.client_auth)
        self._options, self._files = options, files
        self._log.info(
            "TLS: the certificate {path} ({subject}, valid until {until}) is in use",
            path=terms.server.cert_path,
            subject=ends.subject,
            until=ends.until,
        )
        rest_days = (ends.until_s - self._clock.seconds()) / 86_400
        if rest_days < EXPIRY_WARNING_DAYS:
            self._log.warn(
                "TLS: the certificate {path} {what} on {until}",
                path=terms.server.cert_path,
                what="ended" if rest_days < 0 else "ends",
                until=ends.until,
            )


class ClientTls:
    """
    The dialling side of TLS.

    Files are read for each dial, so new ones count from then on; :meth:`load` finds out early whether they are good.
    """

    _log = Logger()

    def __init__(self, disk: Disk, clock: IReactorTime, terms: TlsTerms) -> None:
        self._disk = disk
        self._clock = clock
        self._identity = terms.client

    def load(self) -> None:
        """Raises ConfigError, naming the file, when a dial could not succeed."""
        require_openssl()
        _options(self._identity, read_files(self._disk, self._identity), ClientAuth.NONE)
        if not self._identity.verify:
            self._log.warn(
                "TLS: the certificates of servers that this one connects to are not verified; "
                "tls.client.authServer=true with tls.client.trustCertPath does that"
            )

    def creator(self, host: str) -> Any:
        """Return Twisted's connection creator for a dial to ``host``, a name or an IP address; raises ConfigError."""
        require_openssl()
        from twisted.internet.ssl import optionsForClientTLS

        files = read_files(self._disk, self._identity)
        if not self._identity.verify:
            options, _ = _options(self._identity, files, ClientAuth.NONE)
            return _ClientCreator(options.getContext())
        return optionsForClientTLS(
            host, trustRoot=_trust(self._identity, files), extraCertificateOptions=_own(self._identity, files)[0]
        )

    def wrap(self, endpoint: IStreamClientEndpoint, host: str) -> IStreamClientEndpoint:
        """Return an endpoint that speaks TLS over what ``endpoint`` connects to; raises ConfigError."""
        return _TlsEndpoint(endpoint, self.creator(host.strip("[]")), self._clock)


@implementer(IStreamClientEndpoint)
class _TlsEndpoint:
    """
    Twisted's wrapClientTLS, with two differences: the clock is ours, and connected means that the handshake is over.

    What is written before that makes the TLS layer pause its producer, and a protocol that answers by reading nothing
    more would wait for ever.
    """

    def __init__(self, endpoint: IStreamClientEndpoint, creator: Any, clock: IReactorTime) -> None:
        self._endpoint = endpoint
        self._creator = creator
        self._clock = clock

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol

        class Layer(TLSMemoryBIOProtocol):
            """Tells how the handshake ended."""

            shaken: Deferred[Any] | None = None

            def connectionMade(self) -> None:
                self.shaken = Deferred(lambda _: self.abortConnection())
                super().connectionMade()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                told: Failure = getattr(self, "_reason", None) or reason
                super().connectionLost(reason)
                if self.shaken is not None and not self.shaken.called:
                    self.shaken.errback(told)

        def completed(layer: Layer) -> Deferred[Any] | None:
            inner: Any = layer.wrappedProtocol
            shaken = layer.shaken
            if shaken is not None and not shaken.called:
                inner.handshakeCompleted = lambda: shaken.callback(inner)
                alsoProvides(inner, IHandshakeListener)
            return shaken

        factory = TLSMemoryBIOFactory(self._creator, True, protocolFactory, self._clock)
        factory.protocol = Layer
        connected: Deferred[Any] = self._endpoint.connect(factory)
        return connected.addCallback(completed)


@implementer(IOpenSSLServerConnectionCreator)
class _ServerCreator:
    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls

    def serverConnectionForTLS(self, tlsProtocol: Any) -> Connection:
        return self._tls.connection()


@implementer(IOpenSSLClientConnectionCreator)
class _ClientCreator:
    """Connections that verify nothing."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def clientConnectionForTLS(self, tlsProtocol: Any) -> Connection:
        from OpenSSL.SSL import Connection

        return Connection(self._context, None)


def loss_text(error: BaseException | None) -> str:
    """Return why a connection was lost, for people; OpenSSL's and service-identity's own texts are none."""
    module = type(error).__module__
    if module == "OpenSSL.SSL":
        args = () if error is None else error.args
        # Either one list of (library, function, reason), or a number and a text.
        reasons = args[0] if args and isinstance(args[0], list | tuple) else [args] if args else []
        texts = [str(entry[-1]) for entry in reasons if entry]
        return f"{TLS_TROUBLE}{', '.join(texts) or 'the handshake failed'}"
    if module.startswith("service_identity"):
        return f"{TLS_TROUBLE}the server's certificate is not for the address that was dialled"
    return str(error)


def require_openssl() -> None:
    """Raise ConfigError when pyOpenSSL or service-identity is missing."""
    try:
        import OpenSSL
        import service_identity
    except ImportError as error:
        raise ConfigError(f"TLS needs the extra packages of rmq[tls] (pip install 'rmq[tls]'): {error}") from error
    del OpenSSL, service_identity


def read_files(disk: Disk, identity: Identity) -> dict[str, bytes]:
    """Return path -> content of the files of ``identity``; raises ConfigError."""
    try:
        return {path: disk.read_whole(path) for path in identity.paths}
    except DiskError as error:
        raise ConfigError(f"TLS: {error}") from error


@attrs.frozen
class _Ends:
    subject: str
    until: str
    until_s: float


def _options(identity: Identity, files: dict[str, bytes], client_auth: ClientAuth) -> tuple[CertificateOptions, _Ends]:
    """Return Twisted's options for ``identity``, and what its certificate says; raises ConfigError."""
    require_openssl()
    from OpenSSL import SSL
    from twisted.internet.ssl import CertificateOptions

    own, ends = _own(identity, files)
    if identity.verify:
        own["trustRoot"] = _trust(identity, files)
    try:
        options = CertificateOptions(**own)
        context = options.getContext()
    except SSL.Error as error:
        raise ConfigError(f"TLS: {identity.key_path} is not the key of {identity.cert_path}") from error
    if identity.side == "server":
        _ask_clients(context, client_auth, verify=identity.verify)
    return options, ends


def _ask_clients(context: Any, client_auth: ClientAuth, *, verify: bool) -> None:
    """Ask for a certificate; without ``verify`` take any, as Apache's InsecureTrustManagerFactory does."""
    from OpenSSL import SSL

    flags = SSL.VERIFY_NONE
    if client_auth is not ClientAuth.NONE:
        flags = SSL.VERIFY_PEER
    if client_auth is ClientAuth.REQUIRE:
        flags |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
    context.set_verify(flags, lambda *found: bool(found[-1]) or not verify)


def _own(identity: Identity, files: dict[str, bytes]) -> tuple[dict[str, Any], _Ends]:
    """Return the key and the certificates as arguments of CertificateOptions; empty without them."""
    if identity.cert_path is None or identity.key_path is None:
        return {}, _Ends("", "", float("inf"))
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from OpenSSL import crypto

    certificates = _certificates(identity.cert_path, files)
    password = identity.key_password.encode() if identity.key_password is not None else None
    try:
        key: Any = load_pem_private_key(files[identity.key_path], password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = f"tls.{identity.side}.keyPassword"
        raise ConfigError(f"TLS: {identity.key_path} cannot be read with {hint} as it is: {error}") from error
    own = {
        "privateKey": crypto.PKey.from_cryptography_key(key),
        "certificate": crypto.X509.from_cryptography(certificates[0]),
        "extraCertChain": [crypto.X509.from_cryptography(issuer) for issuer in certificates[1:]],
    }
    until = certificates[0].not_valid_after_utc
    ends = _Ends(certificates[0].subject.rfc4514_string(), f"{until:%Y-%m-%d %H:%M} UTC", until.timestamp())
    return own, ends


def _trust(identity: Identity, files: dict[str, bytes]) -> Any:
    from OpenSSL import crypto
    from twisted.internet.ssl import Certificate, platformTrust, trustRootFromCertificates

    if identity.trust_path is None:
        return platformTrust()
    return trustRootFromCertificates(
        [
            Certificate(crypto.X509.from_cryptography(certificate))
            for certificate in _certificates(identity.trust_path, files)
        ]
    )


def _certificates(path: str, files: dict[str, bytes]) -> list[Any]:
    from cryptography import x509

    try:
        return list(x509.load_pem_x509_certificates(files[path]))
    except ValueError as error:
        raise ConfigError(f"TLS: {path} holds no certificate in PEM form: {error}") from error


def _test_options(now_s: int) -> Any:
    """Return the options of a new self-signed certificate.  Java: io.netty.handler.ssl.util.SelfSignedCertificate"""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
    from OpenSSL import crypto
    from twisted.internet.ssl import CertificateOptions

    key: Any = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rocketmq-test-mode")])
    begin = datetime.fromtimestamp(now_s, UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=TEST_CERTIFICATE_DAYS))
        .sign(key, hashes.SHA256())
    )
    return CertificateOptions(
        privateKey=crypto.PKey.from_cryptography_key(key), certificate=crypto.X509.from_cryptography(certificate)
    )
