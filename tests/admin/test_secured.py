"""``rmq-admin``, once as a process, against a NameServer and a broker that want TLS and accounts."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess

import attrs
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from rmq.admin.command import Terminal
from rmq.admin.main import parse, run
from rmq.aio import Client
from rmq.broker.config import BrokerConfig, BrokerSetup
from rmq.broker.config import NettyServerConfig as BrokerPort
from rmq.broker.service import build_broker
from rmq.errors import RequestFailed
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup, NettyServerConfig
from rmq.namesrv.service import build_namesrv
from rmq.remoting.access import AccessSetup
from rmq.remoting.aclconfig import AclConfig
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from rmq.runtime.tls.config import TlsConfig
from rmq.store.config import StoreConfig
from tests.admin.test_command_line import rmq_admin
from tests.ports import free_port
from tests.remoting.certificates import Authority

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: abcdefg, admin: true}
- {accessKey: application, secretKey: abcdefg}
"""


async def refusal(namesrv: str, tls: str) -> str:
    """Return why the client for asyncio cannot start."""
    try:
        async with Client(namesrv, tls=tls):
            return ""
    except RequestFailed as error:
        return str(error)


class SecuredTests(TestCase):
    def setUp(self) -> None:
        from twisted.internet import reactor

        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        disk = RealDisk(reactor)
        self.addCleanup(disk.close)
        self.platform = Platform(reactor=reactor, disk=disk, rng=random.Random(0), endpoint_factory=dial_by_name)
        authority, stranger = Authority(), Authority("stranger")
        pem = authority.issue("server", ["127.0.0.1"])
        self.access = AccessSetup(
            tls=TlsConfig(
                mode="enforcing",
                server_cert_path=self.write("server.pem", pem.certificate),
                server_key_path=self.write("server.key", pem.key),
            ),
            acl=AclConfig(acl_enable=True, acl_file=self.write("acl.yml", ACCOUNTS.encode())),
        )
        self.tls = self.trusting("tls.properties", self.write("ca.pem", authority.pem))
        self.strange_tls = self.trusting("strange.properties", self.write("stranger.pem", stranger.pem))
        self.operator = self.write("operator.yml", b"accessKey: operator\nsecretKey: abcdefg\n")
        self.application = self.write("application.yml", b"accessKey: application\nsecretKey: abcdefg\n")

    def write(self, name: str, data: bytes) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def trusting(self, name: str, ca: str) -> str:
        return self.write(name, f"tls.client.authServer=true\ntls.client.trustCertPath={ca}\n".encode())

    def namesrv(self) -> str:
        """Start a NameServer; return its address."""
        setup = NamesrvSetup(
            namesrv=NamesrvConfig(
                kv_config_path=os.path.join(self.folder, "kv.json"),
                config_store_path=os.path.join(self.folder, "namesrv.properties"),
            ),
            netty=NettyServerConfig(bind_address="127.0.0.1", listen_port=0),
            access=self.access,
        )
        service = build_namesrv(self.platform, setup)
        service.startService()
        self.addCleanup(service.stopService)
        return f"127.0.0.1:{service.server.port}"

    async def admin(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command in this process; return its exit status, output and errors."""
        result = await run(self.platform, parse(arguments), Terminal())
        return result.status, result.out, result.err

    async def test_trusted_and_known(self) -> None:
        """With the authority's certificate and an admin's account a NameServer explains, to a process too."""
        addr = self.namesrv()
        ask = ("explain", "-n", addr, "-t", "nowhere", "--json", "--tlsConfig", self.tls, "--aclTools", self.operator)
        done: subprocess.CompletedProcess[str] = await deferToThread(rmq_admin, *ask)
        for status, out, err in ((done.returncode, done.stdout, done.stderr), await self.admin(*ask)):
            self.assertEqual((status, json.loads(out)[addr]["state"], err), (2, "NEVER_SEEN", ""))

    async def test_account_of_the_installation(self) -> None:
        """Without --aclTools the account of conf/tools.yml below ROCKETMQ_HOME signs, as mqadmin's does."""
        os.makedirs(os.path.join(self.folder, "conf"))
        self.write("conf/tools.yml", b"accessKey: operator\nsecretKey: abcdefg\n")
        os.environ["ROCKETMQ_HOME"] = self.folder
        self.addCleanup(os.environ.pop, "ROCKETMQ_HOME")
        ask = ("explain", "-n", self.namesrv(), "-t", "nowhere", "--tlsConfig", self.tls)
        self.assertEqual((await self.admin(*ask))[0], 2)
        self.assertEqual((await self.admin(*ask, "--aclTools", self.application))[0], 3)

    async def test_not_let_in(self) -> None:
        """Without TLS, without trust, without an account and without being an admin: status 3, and why."""
        addr = self.namesrv()
        ask = ("explain", "-n", addr, "-t", "nowhere", "--timeout", "20")
        for more, why in (
            (("--aclTools", self.operator), "closed by the peer before it sent a byte: does it take TLS"),
            (("--aclTools", self.operator, "--tlsConfig", self.strange_tls), "certificate verify failed"),
            (("--tlsConfig", self.tls), "No accessKey is configured"),
            (("--tlsConfig", self.tls, "--aclTools", self.application), "Need admin permission for request code=9701"),
        ):
            status, out, _ = await self.admin(*ask, *more)
            self.assertEqual(status, 3, more)
            self.assertIn(why, out)

    async def test_no_certificate(self) -> None:
        """A server that wants a client's certificate gets none: both faces of the client name the keys to set."""
        self.access = attrs.evolve(self.access, tls=attrs.evolve(self.access.tls, server_client_auth="require"))
        addr = self.namesrv()
        wanted = "the peer wants a certificate of this client: tls.client.certPath"
        _, out, _ = await self.admin("explain", "-n", addr, "-t", "nowhere", "--timeout", "20", "--tlsConfig", self.tls)
        self.assertIn(wanted, out)
        self.assertIn(wanted, await deferToThread(asyncio.run, refusal(addr, self.tls)))

    async def test_untrusted_by_asyncio(self) -> None:
        """The client for asyncio says which key has what it trusts."""
        text = await deferToThread(asyncio.run, refusal(self.namesrv(), self.strange_tls))
        self.assertRegex(text, "certificate verify failed: .*; trusted is what tls.client.trustCertPath holds")

    def broker(self) -> str:
        """Start a broker; return its address."""
        setup = BrokerSetup(
            broker=BrokerConfig(broker_ip1="127.0.0.1"),
            server=BrokerPort(bind_address="127.0.0.1", listen_port=free_port()),
            store=StoreConfig(store_path_root_dir=os.path.join(self.folder, "store"), ha_listen_port=0),
            access=self.access,
        )
        broker = build_broker(self.platform, setup)
        broker.startService()
        self.addCleanup(broker.stopService)
        return f"127.0.0.1:{broker.server.port}"

    async def test_broker(self) -> None:
        """A broker looks at every request: an account is enough for one that is no administration."""
        addr = self.broker()
        ask = ("haStatus", "-b", addr, "--json", "--tlsConfig", self.tls)
        status, out, err = await self.admin(*ask, "--aclTools", self.application)
        self.assertEqual(status, 0, err)
        self.assertTrue(json.loads(out)[addr]["master"])
        status, _, err = await self.admin(*ask)
        self.assertEqual(status, 1)
        self.assertIn("No accessKey is configured", err)

    async def test_altered_account(self) -> None:
        """
        What is not given stays: the right to administer, the secret key, permissions.

        By its name in mqadmin the command takes the right away, as mqadmin does.
        """
        access = ("-b", self.broker(), "--tlsConfig", self.tls, "--aclTools")

        async def account() -> dict[str, object]:
            status, out, err = await self.admin("acl", "show", "--show-secrets", "--json", *access, self.operator)
            self.assertEqual(status, 0, err)
            (found,) = [one for one in json.loads(out) if one["access_key"] == "application"]
            return {key: found[key] for key in ("secret_key", "admin", "white_address", "topic_perms", "group_perms")}

        async def alter(
            *arguments: str, status: int = 0, command: tuple[str, ...] = ("acl", "set", "application")
        ) -> str:
            done, out, err = await self.admin(*command, *arguments, "--yes", *access, self.operator)
            self.assertEqual(done, status, (out, err))
            return err

        plain = {"secret_key": "abcdefg", "admin": False, "white_address": None, "topic_perms": "", "group_perms": ""}
        await alter("-t", "T=PUB,U=SUB", "-w", "10.0.0.*")
        given = plain | {"topic_perms": "T=PUB,U=SUB", "white_address": "10.0.0.*"}
        self.assertEqual(await account(), given)
        await alter("-m", "true")
        await alter("-g", "G=SUB")
        self.assertEqual(await account(), given | {"admin": True, "group_perms": "G=SUB"})
        await alter("-s", "gfedcba", "-m", "false")
        self.assertEqual(await account(), given | {"secret_key": "gfedcba", "group_perms": "G=SUB"})

        mqadmin = ("updateAclConfig", "-a", "application")
        await alter("-s", "abcdefg", "-m", "true", command=mqadmin)
        self.assertIn("mqadmin needs it", await alter("-t", "T=SUB", status=64, command=mqadmin))
        await alter("-s", "abcdefg", command=mqadmin)
        self.assertIs((await account())["admin"], False)

    async def test_account_without_secret_key(self) -> None:
        """A new account needs one, and who may not see the accounts must give what is replaced: said, nothing sent."""
        access = ("--yes", "-b", self.broker(), "--tlsConfig", self.tls, "--aclTools")
        status, _, err = await self.admin("acl", "set", "newcomer", *access, self.operator)
        self.assertEqual(status, 64)
        self.assertIn("--secretKey or --secret-file is needed", err)
        self.assertIn("shows none for newcomer", err)
        status, _, err = await self.admin("acl", "set", "operator", "-m", "false", *access, self.application)
        self.assertEqual(status, 1)
        self.assertIn("--secretKey and --admin are needed", err)
        self.assertIn("Need admin permission for request code=54", err)
        both = ("-s", "abcdefg", "-m", "false")
        status, out, err = await self.admin("acl", "set", "operator", *both, *access, self.application)
        self.assertEqual(status, 1, err)
        self.assertIn("Need admin permission for request code=50", out)
