"""
The configuration of TLS: Apache's keys, their file, and the resolved terms.

Java: TlsHelper, TlsSystemConfig, TlsMode
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs

from rmq.runtime.config import ConfigError, load
from rmq.runtime.disk.error import DiskError
from rmq.runtime.properties import decode_properties

if TYPE_CHECKING:  # the client for asyncio reads the same keys, without Twisted
    from rmq.runtime.disk.files import Disk

DEFAULT_CONFIG_FILE = "/etc/rocketmq/tls.properties"


class TlsMode(enum.Enum):
    """TLS on a port: refused, accepted beside plain connections, or required."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.Enum):
    """Whether clients are asked for a certificate, and whether they must have one."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


def _key(key: str, doc: str, check: Any = None) -> Any:
    return attrs.field(default=None, metadata={"key": key, "doc": doc, "local": True}, validator=check)


def _one_of(kind: type[enum.Enum]) -> Any:
    """Return a validator: the value is one of ``kind``, in any case."""

    def check(config: object, field: attrs.Attribute[Any], value: str | None) -> None:
        names = [member.value for member in kind]
        if value is not None and value.strip().lower() not in names:
            raise ValueError(f"{field.metadata['key']}={value!r} is wrong, one of {', '.join(names)} is expected")

    return check


@attrs.frozen(kw_only=True, eq=False, repr=False)  # secret: not in comparisons and not in repr
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
    """Files of one side: key, certificate, trusted certificates. ``verify``: certificates must be trusted."""

    side: str
    key_path: str | None = None
    key_password: str | None = attrs.field(default=None, repr=False)
    cert_path: str | None = None
    trust_path: str | None = None
    verify: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path in (self.key_path, self.cert_path, self.trust_path) if path is not None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TlsTerms:
    """
    The resolved terms of :class:`TlsConfig` and its file.

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

    Raises ConfigError for a configured file that is missing, for bad values, and as :func:`terms_of`.
    """
    return terms_of(_with_file(config, disk))


def terms_of(config: TlsConfig) -> TlsTerms:
    """
    Return the terms of ``config`` alone.

    Raises ConfigError for a key without its certificate, and for a test mode that would disable what other keys
    require.
    """
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


def parse_tls(data: bytes, path: str) -> TlsConfig:
    """Return the keys of a properties file; ConfigError with the file and the key when one is unknown or wrong."""
    loaded = load((TlsConfig,), decode_properties(data, path), path)
    if loaded.unknown:
        # A misspelled key of this file would disable a protection that the operator relies on.
        raise ConfigError(f"{path}: unknown key {sorted(loaded.unknown)[0]}")
    config: TlsConfig = loaded.configs[0]
    return config


def _with_file(config: TlsConfig, disk: Disk) -> TlsConfig:
    """Return ``config``, completed from its file."""
    path = config.config_file or DEFAULT_CONFIG_FILE
    try:
        if not disk.exists(path):
            if config.config_file:
                raise ConfigError(f"tls.config.file={path}: there is no such file")
            return config
        given = parse_tls(disk.read_whole(path), path)
    except DiskError as error:
        raise ConfigError(f"tls.config.file: {error}") from error
    missing = {name: value for name, value in attrs.asdict(given).items() if getattr(config, name) is None}
    return attrs.evolve(config, **missing)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
