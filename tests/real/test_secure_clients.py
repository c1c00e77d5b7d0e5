"""
The Python client and `rmq-admin` where TLS asks for certificates and an access control list for signatures.

With ``RMQ_CAMPAIGN=1`` the servers are Apache's, too.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq.aio import Client, Credentials, From, Message, PushSettings
from rmq.blocking import Client as BlockingClient
from rmq.errors import NotDelivered, Refused, RequestFailed
from tests.real.campaigns import campaign_only
from tests.real.peers import APACHE_4, HOST, OURS, Broker, Process, Site, require_apache, until
from tests.real.test_acl import write
from tests.real.test_rmq_admin import Admin
from tests.real.test_tls import Certificates, certificates, over_tls

__all__ = ["certificates"]  # the fixture

KINDS = [OURS, campaign_only(APACHE_4)]
ACCOUNTS = """accounts:
- accessKey: operator
  secretKey: 12345678
  admin: true
- accessKey: application
  secretKey: 12345678
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Allowed=PUB|SUB
  groupPerms:
  - readers=SUB
"""
APPLICATION = Credentials(access_key="application", secret_key="12345678")
READS = PushSettings(consume_from=From.FIRST)
#: the Twisted face, in a reactor of its own
IN_TWISTED = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from rmq.client.types import Credentials
from rmq.errors import NotDelivered
from rmq.tx import Client, Message

async def main(reactor, namesrv, tls):
    client = Client(reactor, namesrv, tls=tls, credentials=Credentials(access_key="application", secret_key="12345678"))
    await client.start()
    received = Deferred()
    await client.push_consumer("readers", {"Allowed": "tx"}, received.callback).start()
    await client.producer().send(Message("Allowed", b"from Twisted", tags="tx"))
    print((await received).body.decode())
    try:
        await client.producer().send(Message("Denied", b"refused"))
    except NotDelivered as error:
        print(error)
    await client.close()

react(main, sys.argv[1:])
"""


class Secured:
    """A NameServer and a broker that want a certificate and a signature."""

    def __init__(self, site: Site, kind: str, made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
        if kind != OURS:
            require_apache(kind)
        made.issue("client", file="client")
        self.folder = site.root
        self.certificates = made
        tools = write(site.root / "tools.yml", "accessKey: operator\nsecretKey: '12345678'\n")
        own = kind == OURS
        values: dict[str, Any] = made.mutual if own else {}
        secured: dict[str, Any] = {"aclEnable": True} | ({"aclToolsFile": tools} if own else {})
        monkeypatch.setenv("ROCKETMQ_HOME", str(site.root / "broker-a" / "home"))
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", made.as_flags(made.mutual))
        self.namesrv: Process = site.namesrv(kind, **values)
        self.broker: Broker = site.broker(kind, self.namesrv.addr, start=False, **values, **secured)
        write(self.broker.folder / "home" / "conf" / "plain_acl.yml", ACCOUNTS)
        self.broker.start()
        monkeypatch.delenv("JAVA_TOOL_OPTIONS")
        monkeypatch.delenv("ROCKETMQ_HOME")
        self.known = made.context(file="client")
        until("the broker is registered", self._is_registered, seconds=120)
        self.tls = self.properties()
        self.admin = Admin(self.namesrv.addr)
        self.signed = ("--tlsConfig", str(self.tls), "--aclTools", str(tools))
        for topic in ("Allowed", "Denied"):
            self.admin.text("topic", "create", topic, "--queues", "1", *self.signed)
        until("both topics are routed", self._are_routed, seconds=120)

    def _is_registered(self) -> bool:
        with over_tls(self.namesrv, self.known) as probe:
            return "broker-a" in probe.cluster()["brokerAddrTable"]

    def _are_routed(self) -> bool:
        listed = self.admin.run("topic", "list", *self.signed).stdout
        return "Allowed" in listed and "Denied" in listed

    def properties(self, **more: object) -> Path:
        """Write the file of a client that verifies and, with nothing else, shows its certificate."""
        values: dict[str, object] = {"authServer": "true", "trustCertPath": self.certificates.path("ca.pem")}
        more = more or {name: self.certificates.path(f"client.{end}") for name, end in SHOWN.items()}
        lines = (f"tls.client.{key}={value}\n" for key, value in (values | more).items())
        return write(self.folder / "client" / f"tls-{len(more)}.properties", "".join(lines))


SHOWN = {"certPath": "pem", "keyPath": "key"}


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
def test_client(site: Site, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """
    Each face sends and receives with certificate and account, and is refused what the account may not do.

    Without a certificate, with one server's certificate not trusted, or without an account nothing is served.
    """
    secured = Secured(site, kind, certificates, monkeypatch)
    namesrv, tls = secured.namesrv.addr, secured.tls

    async def in_asyncio() -> bytes:
        async with Client(namesrv, tls=tls, credentials=APPLICATION) as client:
            await client.producer().send(Message("Allowed", b"from asyncio", tags="aio"))
            with pytest.raises(NotDelivered, match=r"No default permission for topic[: ]Denied"):
                await client.producer().send(Message("Denied", b"refused"))
            async for delivery in client.push_consumer("readers", {"Allowed": "aio"}, settings=READS):
                async with delivery as message:
                    return message.body
        raise AssertionError("the consumer ended")

    async def stranger(**arguments: Any) -> None:
        async with Client(namesrv, **arguments) as client:
            await client.producer().send(Message("Allowed", b"refused"))

    assert asyncio.run(asyncio.wait_for(in_asyncio(), 120)) == b"from asyncio"
    for refused, reason in (
        ({"tls": secured.properties(authServer="true"), "credentials": APPLICATION}, ""),  # no certificate to show
        ({"credentials": APPLICATION}, ""),  # no TLS
        ({"tls": tls}, "No accessKey is configured"),
        (
            {"tls": tls, "credentials": Credentials(access_key="application", secret_key="another")},
            "[Cc]heck signature",
        ),
    ):
        with pytest.raises((RequestFailed, NotDelivered), match=reason):
            asyncio.run(asyncio.wait_for(stranger(**refused), 120))

    with BlockingClient(namesrv, tls=tls, credentials=APPLICATION) as client:
        client.producer().send(Message("Allowed", b"from a thread", tags="blocking"))
        with pytest.raises(NotDelivered, match=r"No default permission for topic[: ]Denied"):
            client.producer().send(Message("Denied", b"refused"))
        with pytest.raises(Refused, match="Need admin permission"):
            client.admin().create_topic("Another")

    twisted = subprocess.run(
        [sys.executable, "-c", IN_TWISTED, namesrv, str(tls)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert twisted.returncode == 0, twisted
    first, second = twisted.stdout.splitlines()
    assert first == "from Twisted" and re.search("No default permission for topic[: ]Denied", second), second


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
def test_accounts(site: Site, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """`rmq-admin acl` shows, makes, alters and deletes accounts and addresses of a broker, which heeds them at once."""
    secured = Secured(site, kind, certificates, monkeypatch)
    admin, signed = secured.admin, secured.signed

    def shown() -> dict[str, dict[str, Any]]:
        rows = admin.data("acl", "show", "-c", "DefaultCluster", *signed)
        return {row["access_key"] or row["white_address"]: row for row in rows}

    assert set(shown()) == {"operator", "application"}
    assert shown()["application"]["topic_perms"] == "Allowed=PUB|SUB"
    (before,) = admin.data("acl", "version", "-c", "DefaultCluster", *signed)

    secret = write(secured.folder / "secret", "87654321\n")
    made = ("acl", "set", "visitor", "--secret-file", str(secret), "-t", "Allowed=PUB", "-c", "DefaultCluster")
    admin.text(*made, "--yes", *signed)
    until("the account is there", lambda: "visitor" in shown(), seconds=60)
    (after,) = admin.data("acl", "version", "-c", "DefaultCluster", *signed)
    assert after["version"] > before["version"]

    as_visitor = write(secured.folder / "visitor.yml", "accessKey: visitor\nsecretKey: '87654321'\n")
    visitor = ("--tlsConfig", str(secured.tls), "--aclTools", str(as_visitor))
    admin.text("produce", "Allowed", "-m", "hello", *visitor)
    refused = admin.run("produce", "Denied", "-m", "hello", *visitor)
    assert refused.returncode != 0 and re.search("No default permission for topic[: ]Denied", refused.stderr), refused

    admin.text("acl", "set", "visitor", "-t", "Allowed=DENY", "-c", "DefaultCluster", "--yes", *signed)
    until(
        "the account may no longer send",
        lambda: admin.run("produce", "Allowed", "-m", "hello", *visitor).returncode != 0,
        seconds=60,
    )
    admin.text("acl", "delete", "visitor", "-c", "DefaultCluster", "--yes", *signed)
    until("the account is gone", lambda: "visitor" not in shown(), seconds=60)
    admin.text("acl", "whitelist", "192.168.2.*", "-c", "DefaultCluster", "--yes", *signed)
    until("the address is there", lambda: "192.168.2.*" in shown(), seconds=60)
    assert HOST not in shown()
