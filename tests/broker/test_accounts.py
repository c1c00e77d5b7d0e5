"""Accounts that are changed and shown over the network (50 to 54)."""

from __future__ import annotations

import json
import random

import attrs
import yaml
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.service import BrokerService, build_broker
from rmq.remoting.access import AccessSetup
from rmq.remoting.aclconfig import AclConfig
from rmq.runtime.clock import now_ms
from rmq.runtime.platform import Platform
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand
from rmq.wire.signing import Credentials
from tests.broker import harness
from tests.broker.harness import OneBroker, send_ext

PLAIN, TEAM = "/home/conf/plain_acl.yml", "/home/conf/acl/team.yml"
PLAIN_TEXT = b"""
globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
- {accessKey: operator, secretKey: abcdefg, admin: true}
- {accessKey: application, secretKey: 12345678, topicPerms: [T=PUB]}
"""
TEAM_TEXT = b"""
accounts: [{accessKey: teamaccount, secretKey: abcdefg}]
dataVersion: [{counter: 7, timestamp: 1600000000000}]
"""
OPERATOR = Credentials(access_key="operator", secret_key="abcdefg")
APPLICATION = Credentials(access_key="application", secret_key="12345678")
UPDATE = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
WHITE = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
SHOW = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG


class SecuredBroker(OneBroker):
    """A broker with the files of Apache's layout below rocketmqHome."""

    files = {PLAIN: PLAIN_TEXT, TEAM: TEAM_TEXT, "/home/conf/acl/tools.yml": b"accessKey: x\nsecretKey: y\n"}

    def build(self, platform: Platform) -> BrokerService:
        platform.disk.make_dirs("/home/conf/acl")
        for path, text in self.files.items():
            platform.disk.write_atomic(path, text)
        access = AccessSetup(acl=AclConfig(acl_enable=True))
        setup = attrs.evolve(harness.setup_of({**self.values, "rocketmqHome": "/home"}), access=access)
        return build_broker(platform, setup, host_address=self.node.address, host_name="host")


class AccountsCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = SecuredBroker()
        self.addCleanup(self.one.end)
        self.client = self.one.connect()

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, who: Credentials | None = OPERATOR
    ) -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=ext or {}, body=body or None)
        if who is not None:
            who.sign(command)
        return self.client.wait(self.client.send(command))

    def done(self, code: int, **ext: str) -> None:
        answer = self.ask(code, ext)
        self.assertEqual((answer.code, answer.remark), (0, None))

    def refused(self, code: int, **ext: str) -> tuple[int, str]:
        """Return code and remark of a refusal that must change nothing."""
        before = self.read(PLAIN), self.read(TEAM)
        answer = self.ask(code, ext)
        self.assertEqual((self.read(PLAIN), self.read(TEAM)), before)
        return answer.code, str(answer.remark)

    def read(self, path: str) -> bytes:
        return self.one.node.disk.read_whole(path)

    def file(self, path: str) -> dict[str, object]:
        content: dict[str, object] = yaml.safe_load(self.read(path))
        return content

    def version(self, path: str) -> int:
        """Return the counter of a file's version, which must have been raised a moment ago."""
        version = self.file(path)["dataVersion"]
        assert isinstance(version, list)
        self.assertLess(abs(now_ms(self.one.service.clock) - version[0]["timestamp"]), 1000)
        return int(version[0]["counter"])


class ChangeTests(AccountsCase):
    def test_new_account(self) -> None:
        """A new account is in the default file and counts with the answer; the rest of the file stays."""
        new = Credentials(access_key="newaccount", secret_key="1234567")
        send = (RequestCode.SEND_MESSAGE_V2, send_ext("U"), b"x")
        self.assertIn("No acl config for newaccount", str(self.ask(*send, who=new).remark))
        self.done(
            UPDATE,
            accessKey="newaccount",
            secretKey="1234567",
            whiteRemoteAddress="192.168.0.*",
            defaultTopicPerm="DENY",
            topicPerms="U=PUB,V=DENY",
            groupPerms="g=SUB",
        )
        self.assertEqual(self.ask(*send, who=new).code, 0)
        self.assertIn("topic V", str(self.ask(RequestCode.SEND_MESSAGE_V2, send_ext("V"), b"x", who=new).remark))
        content = self.file(PLAIN)
        self.assertEqual(list(content), ["globalWhiteRemoteAddresses", "accounts", "dataVersion"])
        self.assertEqual(self.version(PLAIN), 1)
        accounts = content["accounts"]
        assert isinstance(accounts, list)
        self.assertEqual([account["accessKey"] for account in accounts], ["operator", "application", "newaccount"])
        self.assertEqual(
            accounts[-1],
            {
                "accessKey": "newaccount",
                "secretKey": "1234567",
                "whiteRemoteAddress": "192.168.0.*",
                "admin": False,
                "defaultTopicPerm": "DENY",
                "topicPerms": ["U=PUB", "V=DENY"],
                "groupPerms": ["g=SUB"],
            },
        )

    def test_last_admin(self) -> None:
        """The last admin stays one: nobody could change accounts any more; with a second one he may go."""
        gone = (
            (RequestCode.DELETE_ACL_CONFIG, {"accessKey": "operator"}, 210),
            (UPDATE, {"accessKey": "operator", "secretKey": "another-key"}, 209),
        )
        for code, ext, refusal in gone:
            answer = self.refused(code, **ext)
            self.assertEqual((answer[0], "no account with admin: true would be left" in answer[1]), (refusal, True))
        self.done(UPDATE, accessKey="operator", secretKey="another-key", admin="true")
        renewed = Credentials(access_key="operator", secret_key="another-key")
        for code, ext in (
            (UPDATE, {"accessKey": "application", "secretKey": "12345678", "admin": "true"}),
            (RequestCode.DELETE_ACL_CONFIG, {"accessKey": "operator"}),
        ):
            self.assertEqual(self.ask(code, ext, who=renewed).code, 0)

    def test_changed_account(self) -> None:
        """An account is changed in its own file and goes to its end; what the request leaves out stays, but admin."""
        self.done(UPDATE, accessKey="application", secretKey="87654321", admin="true")
        self.done(UPDATE, accessKey="application", secretKey="87654321", defaultGroupPerm="SUB")
        accounts = self.file(PLAIN)["accounts"]
        assert isinstance(accounts, list)
        self.assertEqual(
            accounts[-1],
            {
                "accessKey": "application",
                "secretKey": "87654321",
                "topicPerms": ["T=PUB"],
                "admin": False,
                "defaultGroupPerm": "SUB",
            },
        )
        self.assertEqual(self.read(TEAM), TEAM_TEXT)
        self.done(UPDATE, accessKey="teamaccount", secretKey="abcdefgh")
        self.assertEqual(
            self.file(TEAM)["accounts"], [{"accessKey": "teamaccount", "secretKey": "abcdefgh", "admin": False}]
        )
        self.assertEqual(self.version(TEAM), 8)

    def test_edited_meanwhile(self) -> None:
        """What was edited in the file a moment ago is not lost; a file that is broken is not replaced."""
        disk = self.one.node.disk
        disk.write_atomic(PLAIN, PLAIN_TEXT + b"- {accessKey: fromeditor, secretKey: abcdefg}\n")
        self.done(UPDATE, accessKey="newaccount", secretKey="1234567")
        self.assertIn(b"fromeditor", self.read(PLAIN))
        disk.write_atomic(PLAIN, b"accounts: [")
        code, remark = self.refused(UPDATE, accessKey="otheraccount", secretKey="1234567")
        self.assertEqual(code, 209)
        self.assertIn(PLAIN, remark)

    def test_refused_accounts(self) -> None:
        """What Apache does not take is refused with its code and words."""
        long = "cannot be null and length should longer than 6"
        for ext, text in (
            ({"accessKey": "short", "secretKey": "1234567"}, f"The accessKey=short and secretKey=1234567 {long}"),
            ({"accessKey": "newaccount"}, f"The accessKey=newaccount and secretKey=null {long}"),
            (
                {"accessKey": "newaccount", "secretKey": "1234567", "topicPerms": "a=PUB,b"},
                "Parse Resource format error for b.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB",
            ),
            (
                {"accessKey": "newaccount", "secretKey": "1234567", "groupPerms": "g=ALL"},
                "Parse resource permission error for g=ALL.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'.",
            ),
            (
                {"accessKey": "newaccount", "secretKey": "1234567", "whiteRemoteAddress": "300.1.1.1"},
                "Netaddress examine Exception netaddress is 300.1.1.1",
            ),
        ):
            self.assertEqual(self.refused(UPDATE, **ext), (209, text))
        code, remark = self.refused(UPDATE, accessKey="newaccount", secretKey="1234567", defaultTopicPerm="ALL")
        self.assertEqual(code, 209)
        self.assertIn("'ALL' is no permission", remark)

    def test_garbage(self) -> None:
        """Whatever the fields hold, the answer is success or a refusal, and the files can be read afterwards."""
        seed = random.randrange(2**32)
        rng = random.Random(seed)
        pieces = [
            "",
            "=",
            ",",
            "a",
            "PUB",
            "*",
            "{",
            "}",
            ":",
            "\n- x",
            "'",
            '"',
            "\u4f60",
            "&a",
            "!!python",
            "null",
            "1.2.3",
        ]
        names = (
            "accessKey",
            "secretKey",
            "whiteRemoteAddress",
            "defaultTopicPerm",
            "topicPerms",
            "groupPerms",
            "admin",
        )
        for _ in range(200):
            ext = {name: "".join(rng.choices(pieces, k=rng.randrange(6))) for name in names if rng.random() < 0.7}
            ext |= {"accessKey": "key" + ext.get("accessKey", "") + "1234"}
            answer = self.ask(UPDATE, ext)
            self.assertIn(answer.code, (0, 1, 209), (seed, ext, answer.remark))
            self.assertNotIn("Error: ", str(answer.remark), (seed, ext))
            self.assertIsInstance(self.file(PLAIN)["accounts"], list, seed)
            self.assertEqual(self.ask(SHOW).code, 0, seed)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_delete(self) -> None:
        """A deleted account is refused from then on; one that nobody has is refused with Apache's words."""
        self.done(RequestCode.DELETE_ACL_CONFIG, accessKey="application")
        self.assertIn("No acl config", str(self.ask(11, {"topic": "T"}, who=APPLICATION).remark))
        self.assertEqual(
            self.refused(RequestCode.DELETE_ACL_CONFIG, accessKey="application"),
            (210, "The accesskey[application] corresponding to accessConfig has been deleted failed."),
        )
        self.done(RequestCode.DELETE_ACL_CONFIG, accessKey="teamaccount")
        self.assertEqual(self.file(TEAM)["accounts"], [])

    def test_white_addresses(self) -> None:
        """The white addresses of a file are replaced and count at once; only files in use are written."""
        self.assertEqual(self.ask(21, who=None).code, ResponseCode.NO_PERMISSION)
        self.done(WHITE, globalWhiteAddrs="10.*.*.*,192.0.2.*", aclFileFullPath=TEAM)
        self.assertEqual(self.ask(21, who=None).code, 0)
        self.assertEqual(self.file(TEAM)["globalWhiteRemoteAddresses"], ["10.*.*.*", "192.0.2.*"])
        self.done(WHITE, globalWhiteAddrs="")
        self.assertEqual(self.file(PLAIN)["globalWhiteRemoteAddresses"], [""])
        for path in ("/store/config/topics.json", "/home/conf/acl/new.yml", "/home/conf/acl/tools.yml"):
            self.assertEqual(
                self.refused(WHITE, globalWhiteAddrs="*", aclFileFullPath=path),
                (211, "The globalWhiteAddresses[*] has been updated failed."),
            )
        self.assertEqual(self.refused(WHITE)[1], "The globalWhiteAddresses[null] has been updated failed.")
        code, remark = self.refused(WHITE, globalWhiteAddrs="everywhere")
        self.assertEqual(code, 211)
        self.assertIn("everywhere", remark)


class ShowTests(AccountsCase):
    def test_accounts(self) -> None:
        """54 shows all files' accounts and addresses as they are written."""
        self.done(WHITE, globalWhiteAddrs="192.168.2.1", aclFileFullPath=TEAM)
        shown = json.loads(self.ask(SHOW).body or b"")
        self.assertEqual(shown["globalWhiteAddrs"], ["192.168.2.1", "10.9.9.9"])
        self.assertEqual(
            shown["plainAccessConfigs"],
            [
                {"accessKey": "teamaccount", "admin": False, "secretKey": "abcdefg"},
                {"accessKey": "operator", "admin": True, "secretKey": "abcdefg"},
                {"accessKey": "application", "admin": False, "secretKey": "12345678", "topicPerms": ["T=PUB"]},
            ],
        )

    def test_versions(self) -> None:
        """52 has the version of each file; of one that says none the time when it was read."""
        answer = self.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO).ext_fields
        versions = json.loads(answer["allAclFileVersion"])
        self.assertEqual(versions[TEAM], {"counter": 7, "timestamp": 1_600_000_000_000})
        self.assertEqual(versions[PLAIN]["counter"], 0)
        self.assertGreater(versions[PLAIN]["timestamp"], 0)
        self.assertEqual(json.loads(answer["version"]), versions[PLAIN])
        self.assertEqual(
            (answer["brokerName"], answer["clusterName"], answer["brokerAddr"]),
            ("broker-a", "DefaultCluster", self.one.service.setup.address),
        )


class WhoTests(AccountsCase):
    def test_admins_only(self) -> None:
        """No other account, and no white address without an admin's signature, reads or changes accounts."""
        white = {"globalWhiteAddrs": "*"}
        for who, text in ((APPLICATION, "Need admin permission"), (None, "No accessKey is configured")):
            for code in (50, 51, 52, 53, 54):
                answer = self.ask(code, {"accessKey": "operator", **white}, who=who)
                self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)
                self.assertIn(text, str(answer.remark))
        self.done(WHITE, **white)
        self.assertEqual(self.ask(21, who=None).code, 0)
        for code in (50, 51, 52, 53, 54):
            self.assertEqual(self.ask(code, {"accessKey": "operator"}, who=None).code, ResponseCode.NO_PERMISSION)
        self.done(UPDATE, accessKey="whiteadmin", secretKey="1234567", admin="true", whiteRemoteAddress="*")
        stranger = Credentials(access_key="whiteadmin", secret_key="wrong")
        self.assertEqual(self.ask(SHOW, who=stranger).code, ResponseCode.NO_PERMISSION)

    def test_without_access_control(self) -> None:
        """With aclEnable=false nothing is shown and nothing is written, whoever asks."""
        one = OneBroker()
        self.addCleanup(one.end)
        client = one.connect()
        for code, answer_code in ((50, 209), (51, 210), (52, 1), (53, 211), (54, 1)):
            answer = client.ask(code, {"accessKey": "newaccount", "secretKey": "1234567", "globalWhiteAddrs": "*"})
            self.assertEqual(answer.code, answer_code)
            self.assertIn("aclEnable=false", str(answer.remark))


class TeamBroker(SecuredBroker):
    """Apache's layout without plain_acl.yml."""

    files = {TEAM: b"accounts: [{accessKey: operator, secretKey: abcdefg, admin: true}]\n"}


class LayoutTests(SynchronousTestCase):
    def test_folder_only(self) -> None:
        """conf/acl alone is enough to start; the first new account makes conf/plain_acl.yml."""
        one = TeamBroker()
        self.addCleanup(one.end)
        client = one.connect()
        command = RemotingCommand(50, ext_fields={"accessKey": "newaccount", "secretKey": "1234567"})
        OPERATOR.sign(command)
        self.assertEqual(client.wait(client.send(command)).code, 0)
        content = yaml.safe_load(one.node.disk.read_whole(PLAIN))
        self.assertEqual(content["accounts"], [{"accessKey": "newaccount", "secretKey": "1234567", "admin": False}])
