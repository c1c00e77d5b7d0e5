"""A NameServer that checks who administers it, and what nobody may change over the network."""

from __future__ import annotations

import os
import random

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.config import NamesrvConfig, NamesrvSetup
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.namesrv.settings import ALWAYS_BLACK
from rmq.namesrv.tap import Options, setup_of
from rmq.remoting.access import ACCESS_KEYS, AccessSetup
from rmq.remoting.acl import Credentials
from rmq.remoting.aclconfig import NAMESRV_ADMIN_CODES, AclConfig
from rmq.runtime.config import ConfigError
from rmq.runtime.disk import RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from rmq.runtime.properties import format_properties, parse_properties
from rmq.runtime.tlsconfig import TlsConfig
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand
from tests.remoting.peer import Peer

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: abcdefg, admin: true}
- {accessKey: application, secretKey: abcdefg}
"""
OPERATOR = Credentials(access_key="operator", secret_key="abcdefg")
APPLICATION = Credentials(access_key="application", secret_key="abcdefg")


class AccessCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        self.reactor = MemoryReactorClock()
        self.disk = RealDisk(self.reactor)
        self.addCleanup(self.disk.close)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, access: AccessSetup, **config: str) -> Peer:
        """Start a NameServer with this access; a peer of it."""
        config = {
            "kv_config_path": self.path("kv.json"),
            "config_store_path": self.path("namesrv.properties"),
            **config,
        }
        setup = NamesrvSetup(namesrv=NamesrvConfig(**config), access=access)  # type: ignore[arg-type]
        platform = Platform(reactor=self.reactor, disk=self.disk, rng=random.Random(0), endpoint_factory=dial_by_name)
        self.service: NamesrvService = build_namesrv(platform, setup)
        self.service.startService()
        self.addCleanup(self.service.stopService)
        return Peer(self.service.responders, self.reactor)

    def accounts(self, text: str = ACCOUNTS) -> AccessSetup:
        with open(self.path("acl.yml"), "w", encoding="utf-8") as file:
            file.write(text)
        return AccessSetup(acl=AclConfig(acl_enable=True, acl_file=self.path("acl.yml")))


class AccountsTests(AccessCase):
    def ask(self, peer: Peer, code: int, who: Credentials | None = None, body: bytes | None = None) -> RemotingCommand:
        command = RemotingCommand(code, 7, ext_fields={"namespace": "n", "key": "k", "value": "v"}, body=body)
        if who is not None:
            who.sign(command)
        peer.tell(command)
        (answer,) = peer.received()
        return answer

    def test_administration(self) -> None:
        """What changes a NameServer needs an admin."""
        peer = self.start(self.accounts())
        for code in NAMESRV_ADMIN_CODES:
            for who in (None, APPLICATION):
                self.assertEqual(self.ask(peer, code, who).code, ResponseCode.NO_PERMISSION, code)
        self.assertEqual(self.ask(peer, RequestCode.PUT_KV_CONFIG, OPERATOR).code, 0)
        self.assertEqual(self.ask(peer, RequestCode.GET_NAMESRV_CONFIG, OPERATOR).code, 0)

    def test_everything_else(self) -> None:
        """What brokers and clients ask needs no account."""
        peer = self.start(self.accounts())
        for code in sorted(self.service.responders.codes() - NAMESRV_ADMIN_CODES):
            self.assertNotEqual(self.ask(peer, code, body=b"{}").code, ResponseCode.NO_PERMISSION, code)

    def test_bad_accounts(self) -> None:
        """Accounts that cannot be read stop the start, and nothing is left running."""
        self.assertRaises(ConfigError, self.start, self.accounts("accounts: ["))
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertFalse(self.service.running)


class DenyListTests(AccessCase):
    def test_keys(self) -> None:
        """No request changes where files are or who gets in, whatever configBlackList says."""
        peer = self.start(AccessSetup(), config_black_list="bindAddress")
        for key in sorted(ALWAYS_BLACK | ACCESS_KEYS | {"bindAddress"}):
            answer = peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, format_properties({key: "1"}).encode())
            self.assertEqual(answer.code, ResponseCode.NO_PERMISSION, key)
            self.assertEqual(answer.remark, "Can not update config in black list.")

    def test_secrets_stay_here(self) -> None:
        """A changed configuration is written with the keys of access, and shown without."""
        peer = self.start(AccessSetup(tls=TlsConfig(server_key_password="geheim", mode="permissive")))
        self.assertEqual(peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"productEnvName=p\n").code, 0)
        with open(self.path("namesrv.properties"), encoding="utf-8") as file:
            written = parse_properties(file.read(), "written")
        self.assertEqual((written["tls.server.keyPassword"], written["productEnvName"]), ("geheim", "p"))
        shown = peer.ask(RequestCode.GET_NAMESRV_CONFIG).body or b""
        self.assertIn(b"productEnvName=p", shown)
        self.assertNotIn(b"geheim", shown)


class OptionsTests(SynchronousTestCase):
    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def test_keys(self) -> None:
        """The keys of access are options."""
        setup = setup_of(self.parse("--tls.server.mode", "enforcing", "--aclEnable", "true", "--aclFile", "/x.yml"))
        self.assertEqual(setup.access.tls.mode, "enforcing")
        self.assertEqual(setup.access.acl, AclConfig(acl_enable=True, acl_file="/x.yml"))

    def test_bad_value(self) -> None:
        """A mode that is none ends the process and names the option."""
        error = self.assertRaises(SystemExit, self.parse, "--tls.server.mode", "strict")
        self.assertIn("tls.server.mode='strict'", str(error))
