"""
Certificates and keys from files, as Twisted's and pyOpenSSL's objects; and the certificate of the test mode.

pyOpenSSL and cryptography (extra ``tls``) are imported by the functions that need them: without TLS they cost nothing.

Java: TlsHelper
"""

from __future__ import annotations

import math
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.disk.files import Disk
from rmq.runtime.tls.config import ClientAuth, Identity

if TYPE_CHECKING:
    from twisted.internet.ssl import CertificateOptions

#: days for which a self-signed certificate of the test mode is valid
TEST_CERTIFICATE_DAYS = 365
DATE = "%Y-%m-%d %H:%M UTC"
#: characters of a peer's names in a text
MAX_NAME = 200
#: OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED, and those of a signer that is not known
NOT_YET_VALID, HAS_EXPIRED, UNKNOWN_SIGNERS = 9, 10, (2, 18, 19, 20, 21)


def require_openssl() -> None:
    """Raise ConfigError when pyOpenSSL or service-identity is missing."""
    try:
        import OpenSSL
        import service_identity
    except ImportError as error:
        raise ConfigError(
            f"TLS needs the extra packages of txrocketmq[tls] (pip install 'txrocketmq[tls]'): {error}"
        ) from error
    del OpenSSL, service_identity


def read_files(disk: Disk, identity: Identity) -> dict[str, bytes]:
    """Return path -> content of the files of ``identity``; raises ConfigError."""
    try:
        return {path: disk.read_whole(path) for path in identity.paths}
    except DiskError as error:
        raise ConfigError(f"TLS: {error}") from error


class Dates(NamedTuple):
    """Subject and validity of a certificate; dates for people, and in seconds since the epoch."""

    subject: str = ""
    since: str = ""
    since_s: float = -math.inf
    until: str = ""
    until_s: float = math.inf

    def trouble(self, now_s: float) -> str | None:
        """Return why clients refuse the certificate at this time; None when its dates are right."""
        if now_s >= self.until_s:
            return f"ended on {self.until}"
        return f"begins on {self.since}" if now_s < self.since_s else None


def make_options(
    identity: Identity, files: dict[str, bytes], client_auth: ClientAuth
) -> tuple[CertificateOptions, Dates]:
    """Return Twisted's options for ``identity``, and subject and validity of its certificate; raises ConfigError."""
    require_openssl()
    from OpenSSL import SSL
    from twisted.internet.ssl import CertificateOptions

    own, dates = _own_of(identity, files)
    if identity.verify:
        own["trustRoot"] = _trust_of(identity, files)
    try:
        options = CertificateOptions(**own)
        context = options.getContext()
    except SSL.Error as error:
        raise ConfigError(f"TLS: {identity.key_path} is not the key of {identity.cert_path}") from error
    if identity.side == "server":
        ask_clients(context, client_auth, identity)
    return options, dates


def ask_clients(context: Any, client_auth: ClientAuth, identity: Identity) -> None:
    """Ask for a certificate; unless ``identity`` verifies take any, as Apache's InsecureTrustManagerFactory does."""
    from OpenSSL import SSL

    flags = SSL.VERIFY_NONE
    if client_auth is not ClientAuth.NONE:
        flags = SSL.VERIFY_PEER
    if client_auth is ClientAuth.REQUIRE:
        flags |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT

    def check(_connection: Any, x509: Any, error: int, _depth: int, good: int) -> bool:
        if identity.verify and not good:
            refuse(untrusted_text(x509, error, identity))
        return True

    context.set_verify(flags, check)


def refuse(text: str) -> NoReturn:
    """End a handshake: what a callback of OpenSSL raises is the reason of the connection's end."""
    from OpenSSL import SSL

    raise SSL.Error([("", "", text)])


def _own_of(identity: Identity, files: dict[str, bytes]) -> tuple[dict[str, Any], Dates]:
    """Return the key and the certificates as arguments of CertificateOptions; empty without them."""
    if identity.cert_path is None or identity.key_path is None:
        return {}, Dates()
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
    subject = certificates[0].subject.rfc4514_string()
    since, until = certificates[0].not_valid_before_utc, certificates[0].not_valid_after_utc
    return own, Dates(subject, f"{since:{DATE}}", since.timestamp(), f"{until:{DATE}}", until.timestamp())


def _trust_of(identity: Identity, files: dict[str, bytes]) -> Any:
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


def is_address(host: str) -> bool:
    """Return whether ``host`` is an IP address, not a name."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def untrusted_text(openssl_certificate: Any, error: int, identity: Identity) -> str:
    """Return why OpenSSL refuses a peer's certificate with ``error`` (X509_V_ERR_...): its dates, its signer."""
    try:
        certificate = openssl_certificate.to_cryptography()
        name = certificate.subject.rfc4514_string()[:MAX_NAME] or "without a name"
        signer = certificate.issuer.rfc4514_string()[:MAX_NAME]
        since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except ValueError as broken:
        return f"certificate verify failed: it cannot be read: {broken}"
    if error == HAS_EXPIRED:
        why = f"{name} ended on {until:{DATE}}, by the clock of this host: renew it"
    elif error == NOT_YET_VALID:
        why = f"{name} begins on {since:{DATE}}: is the clock of this host right?"
    elif error in UNKNOWN_SIGNERS:
        trusted = identity.trust_path or "not set, so the system's list counts"
        why = f"{name}, signed by {signer}, is not trusted: tls.{identity.side}.trustCertPath={trusted}"
    else:
        why = f"{name}: X509_V_ERR {error} of OpenSSL"
    return f"certificate verify failed: {why}"


def other_host_text(openssl_certificate: Any, host: str, *, is_address: bool) -> str | None:
    """Return why a certificate is not one for ``host``, None if it is."""
    from cryptography import x509
    from service_identity import CertificateError, VerificationError
    from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address

    verify = verify_certificate_ip_address if is_address else verify_certificate_hostname
    unreadable = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
    listed = "nothing"
    try:
        certificate = openssl_certificate.to_cryptography()
        try:
            verify(certificate, host)
            return None
        except (CertificateError, VerificationError):
            names: Any = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            listed = ", ".join(str(name.value) for name in names)[:MAX_NAME]
    except x509.ExtensionNotFound:
        pass
    except unreadable as error:
        listed = f"what cannot be read: {error}"
    return f"the server's certificate is not for the address that was dialled, {host}: its subjectAltName has {listed}"


def self_signed_options(now_s: int) -> Any:
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
