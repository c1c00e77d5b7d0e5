"""Keys of TLS, accounts and limits, written down by hand: no request changes one of them, whatever the lists say."""

from __future__ import annotations

import re
from pathlib import Path


def words(text: str) -> list[str]:
    """Return the words of ``text`` without its lines of comment."""
    return [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]


NEVER = words(
    """
tls.config.file tls.server.mode tls.enable tls.test.mode.enable tls.server.need.client.auth tls.server.keyPath
tls.server.keyPassword tls.server.certPath tls.server.authClient tls.server.trustCertPath tls.client.keyPath
tls.client.keyPassword tls.client.certPath tls.client.authServer tls.client.trustCertPath
aclEnable aclFile aclToolsFile authenticationEnabled authorizationEnabled
serverMaxConnections serverChannelMaxUnsentBytes serverMaxHeldBytes
configBlackList configWhiteList
"""
)


def documented(role: str) -> list[str]:
    """Return the keys that the tables of docs/security.md list for ``role``."""
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith(f"| {role} |")]
    return sorted(key for row in rows if len(row) == 5 for key in re.findall(r"`([\w.]+)`", row[3]))
