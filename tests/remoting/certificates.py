"""Certificates for tests, made on the spot: an authority of one's own and what it signs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
_END = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)


@attrs.frozen
class Pem:
    """A certificate and its key (PKCS #8), both as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates; ``pem`` is its own one."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
        self._certificate = self._sign(
            self._name,
            self._key,
            [x509.BasicConstraints(ca=True, path_length=None), x509.KeyUsage(**usage)],
            until=_END,
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str = "broker-a",
        addresses: Sequence[str] | None = ("127.0.0.1",),
        *,
        password: str | None = None,
        since: datetime.datetime = _BEGIN,
        until: datetime.datetime = _END,
    ) -> Pem:
        """Return a certificate for ``name`` and ``addresses``; with None it has no subjectAltName."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        names += [x509.IPAddress(ip_address(address)) for address in addresses or ()]
        certificate = self._sign(
            _name(name),
            key,
            [x509.SubjectAlternativeName(names)] if addresses is not None else [],
            since=since,
            until=until,
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return Pem(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
        )

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: Sequence[x509.ExtensionType],
        *,
        since: datetime.datetime = _BEGIN,
        until: datetime.datetime,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
        )
        # Python 3.13 wants all that RFC 5280 wants
        identifiers = (
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )
        for extension in (*extensions, *identifiers):
            critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
