"""
Signatures of requests by an account.

Java: AclSigner, AclUtils, AclClientRPCHook
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping

import attrs

from rmq.wire.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def signature(ext_fields: Mapping[str, str], body: bytes | None, secret_key: str) -> str:
    """
    Return the signature over the values of all extFields but itself, sorted by key, and the body.

    Java: AclUtils#calSignature
    """
    keys = [key for key in ext_fields if key != SIGNATURE]
    # as Java's TreeMap sorts, by UTF-16; of ASCII that is the order of the characters
    keys.sort(key=None if "".join(keys).isascii() else _utf16)
    content = "".join([ext_fields[key] for key in keys]).encode("utf-8", "replace")
    return signature_of(content + body if body else content, secret_key.encode()).decode()


def signature_of(content: bytes, secret_key: bytes) -> bytes:
    """Return the signature over what :func:`signature` has put together."""
    return b2a_base64(hmac.digest(secret_key, content, "sha1"), newline=False)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


@attrs.frozen(kw_only=True)
class Credentials:
    """Signs requests with one account."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)

    def sign(self, command: RemotingCommand) -> None:
        """Add the account and the signature to an otherwise complete request.  Java: AclClientRPCHook"""
        fields = dict(command.ext_fields)
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature(fields, command.body, self.secret_key)
        command.ext_fields = fields
