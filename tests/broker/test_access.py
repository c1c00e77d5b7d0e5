"""A broker that checks who asks, and what nobody may change over the network."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.responders.admin import ALWAYS_BLACK
from rmq.broker.service import BrokerService, build_broker
from rmq.broker.tap import Options, setup_of
from rmq.remoting.access import ACCESS_KEYS, AccessSetup
from rmq.remoting.acl import Credentials
from rmq.remoting.aclconfig import AclConfig
from rmq.runtime.platform import Platform
from rmq.runtime.properties import format_properties
from rmq.runtime.tlsconfig import TlsConfig
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand
from tests.broker import harness
from tests.broker.harness import PORT, OneBroker, RawClient, send_ext

ACCOUNTS = b"""
accounts:
- {accessKey: operator, secretKey: abcdefg, admin: true}
- {accessKey: application, secretKey: abcdefg, topicPerms: [T=PUB]}
"""
OPERATOR = Credentials(access_key="operator", secret_key="abcdefg")
APPLICATION = Credentials(access_key="application", secret_key="abcdefg")


class SecuredBroker(OneBroker):
    """A broker with accounts."""

    def build(self, platform: Platform) -> BrokerService:
        platform.disk.write_atomic("/plain_acl.yml", ACCOUNTS)
        access = AccessSetup(
            acl=AclConfig(acl_enable=True, acl_file="/plain_acl.yml"), tls=TlsConfig(server_key_password="geheim")
        )
        setup = attrs.evolve(harness.setup_of(self.values), access=access)
        return build_broker(platform, setup, host_address=self.node.address, host_name="host")


def signed(client: RawClient, who: Credentials, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    command = RemotingCommand(code, ext_fields=ext, body=body or None)
    who.sign(command)
    return client.wait(client.send(command))


class AccountsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = SecuredBroker()
        self.addCleanup(self.one.end)
        self.client = self.one.connect()

    def test_sends(self) -> None:
        """A send needs an account with the topic, on the quick way of sends as on the ordinary one."""
        answer = self.client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)
        self.assertIn("No accessKey is configured", str(answer.remark))
        self.assertEqual(signed(self.client, APPLICATION, 310, send_ext("T"), b"x").code, 0)
        self.assertIn("topic U", str(signed(self.client, APPLICATION, 310, send_ext("U"), b"x").remark))
        self.assertEqual(signed(self.client, OPERATOR, 310, send_ext("U"), b"x").code, 0)

    def test_both_ports(self) -> None:
        """The VIP port asks the same."""
        vip = self.one.connect(PORT - 2)
        self.assertEqual(vip.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x").code, ResponseCode.NO_PERMISSION)
        self.assertEqual(signed(vip, APPLICATION, 310, send_ext("T"), b"x").code, 0)

    def test_every_code(self) -> None:
        """No code is answered without an account, not even unknown ones."""
        for code in (*self.one.service.responders.codes(), 77_777):
            answer = self.client.ask(code, {"topic": "T", "consumerGroup": "G"}, b"{}")
            self.assertEqual(answer.code, ResponseCode.NO_PERMISSION, code)

    def test_secrets_stay_here(self) -> None:
        """The configuration that is shown holds no passwords."""
        answer = signed(self.client, OPERATOR, RequestCode.GET_BROKER_CONFIG, {})
        self.assertEqual(answer.code, 0)
        self.assertNotIn(b"geheim", answer.body or b"")


class DenyListTests(SynchronousTestCase):
    def test_keys(self) -> None:
        """No request changes where files are or who gets in, whatever configBlackList says."""
        for black_list in ("configBlackList;brokerConfigPath", "brokerIP1"):
            one = OneBroker({"configBlackList": black_list})
            client = one.connect()
            for key in sorted(ALWAYS_BLACK | ACCESS_KEYS):
                answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=format_properties({key: "1"}).encode())
                self.assertEqual(answer.code, ResponseCode.NO_PERMISSION, key)
                self.assertEqual(answer.remark, "Can not update config in black list.")
            one.end()


class OptionsTests(SynchronousTestCase):
    def test_keys(self) -> None:
        """The keys of access are options and keys of the file of -c."""
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write("tls.server.mode=enforcing\nserverMaxConnections=7\naclEnable=true\n")
        options = Options()
        options.parseOptions(["-c", path, "--tls.enable", "false", "--aclFile", "/x.yml"])
        self.assertEqual(options.unknown, {})
        setup = setup_of(options)
        self.assertEqual((setup.access.tls.mode, setup.access.tls.enable), ("enforcing", False))
        self.assertEqual(setup.access.limits.server_max_connections, 7)
        self.assertEqual((setup.access.acl.acl_enable, setup.access.acl.acl_file), (True, "/x.yml"))
        self.assertTrue(setup.broker.acl_enable)
