"""Access control: signatures, addresses, accounts from files, and what each request needs."""

from __future__ import annotations

import os
import random
from pathlib import Path

import attrs
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.access import ACCESS_CLASSES, NEVER, Access, AccessSetup
from rmq.remoting.acl import (
    MAX_LOGGED_CHARS,
    MAX_SIGNED_FIELDS,
    PUB,
    REFRESH_S,
    REMARK_PREFIX,
    RETRY_PREFIX,
    SUB,
    TRACE_TOPIC,
    Acl,
    AclRules,
    acl_of,
    needed_perms,
    parse_credentials,
    parse_rules,
    signer_of,
)
from rmq.remoting.aclconfig import BROKER_ADMIN_CODES, AclConfig
from rmq.remoting.addresses import AddressPattern
from rmq.remoting.responders import Request, ResponderTable, responds_to
from rmq.runtime.config import ConfigError, load
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.logs import MAX_QUIET_KEYS, QUIET_MS
from rmq.runtime.platform import Platform, dial_by_name
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.contract import contract
from rmq.wire.signing import Credentials, signature
from tests.remoting.peer import Peer

ETC = Path(__file__).resolve().parents[2] / "etc"

ACCOUNTS = b"""
globalWhiteRemoteAddresses:
  - 198.51.100.*
accounts:
  - accessKey: operator
    secretKey: 12345678
    admin: true
  - accessKey: trusted-host
    secretKey: 12345678
    whiteRemoteAddress: 203.0.113.{4,5}
  - accessKey: application
    secretKey: secret-of-it
    defaultTopicPerm: SUB
    defaultGroupPerm: DENY
    topicPerms:
      - orders=PUB|SUB
      - secret=DENY
    groupPerms:
      - readers=SUB
"""
RULES = parse_rules({"plain_acl.yml": ACCOUNTS})
OPERATOR = Credentials(access_key="operator", secret_key="12345678")
APPLICATION = Credentials(access_key="application", secret_key="secret-of-it")
HOST = "192.0.2.7"


def signed(code: int, who: Credentials = APPLICATION, body: bytes | None = None, **ext: str) -> RemotingCommand:
    """A request as it arrives after it was signed and sent."""
    command = RemotingCommand(code, 1, ext_fields=ext, body=body)
    who.sign(command)
    (received,) = decode_commands(encode_command(command))
    return received


class SignatureTests(SynchronousTestCase):
    def test_golden(self) -> None:
        """The signatures that Apache's own AclUtils makes of these requests."""
        self.assertEqual(
            signature({"AccessKey": "RocketMQ", "topic": "TopicTest"}, None, "12345678"),
            "0jiwhsaYp5ObE5GObbZH1I8/FT4=",
        )
        fields = {
            "a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
            "i": "TAGS\x01TagA", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        command = RemotingCommand(310, 1, ext_fields=fields, body=b"Hello RocketMQ")
        Credentials(access_key="RocketMQ", secret_key="12345678").sign(command)
        self.assertEqual(command.ext_fields["Signature"], "gdbjsh7hsjdxoMbG+w+YkRB8XL4=")

    def test_what_counts(self) -> None:
        """Every value and the body count; the signature itself does not."""
        fields = {"topic": "T", "b": "2"}
        made = signature(fields, b"x", "12345678")
        self.assertEqual(signature({**fields, "Signature": made}, b"x", "12345678"), made)
        for other in (
            signature({**fields, "b": "3"}, b"x", "12345678"),
            signature(fields, b"y", "12345678"),
            signature(fields, b"x", "12345679"),
            signature({**fields, "c": "3"}, b"x", "12345678"),
        ):
            self.assertNotEqual(other, made)

    def test_order_of_keys(self) -> None:
        """Keys are sorted as Java sorts strings, by UTF-16: a client may use any letters in its properties."""
        self.assertEqual(
            signature({"\uff5e": "1", "\U00010000": "2"}, None, "12345678"),
            signature({"a": "2", "b": "1"}, None, "12345678"),
        )

    def test_token(self) -> None:
        """A security token travels with the request, signed."""
        command = RemotingCommand(105, 1, ext_fields={"topic": "T"})
        attrs.evolve(OPERATOR, security_token="token").sign(command)
        self.assertEqual(command.ext_fields["SecurityToken"], "token")
        self.assertIsNone(RULES.problem(command, HOST, ()))

    def test_twice(self) -> None:
        """A request that is signed again, because it is sent again, is as good."""
        command = RemotingCommand(105, 1, ext_fields={"topic": "T"})
        OPERATOR.sign(command)
        OPERATOR.sign(command)
        self.assertIsNone(RULES.problem(command, HOST, ()))

    def test_secrets_are_not_shown(self) -> None:
        """Secrets do not get into texts."""
        self.assertNotIn("12345678", repr(OPERATOR) + repr(RULES))


class AddressTests(SynchronousTestCase):
    def test_forms(self) -> None:
        """The forms of Apache's files, with addresses inside and outside."""
        for text, inside, outside in (
            ("*", ["192.0.2.1", "2001:db8::1"], []),
            ("*.*.*.*", ["192.0.2.1"], []),
            ("192.0.2.7", ["192.0.2.7"], ["192.0.2.70", "192.0.2.8", "2001:db8::7"]),
            ("192.0.2.*", ["192.0.2.0", "192.0.2.255"], ["192.0.3.1"]),
            ("192.0.*.*", ["192.0.9.1"], ["192.1.9.1"]),
            ("192.0.2.1-10", ["192.0.2.1", "192.0.2.10"], ["192.0.2.0", "192.0.2.11"]),
            ("192.0.1-2.*", ["192.0.1.9", "192.0.2.9"], ["192.0.3.9"]),
            ("192.0.2.{4,5}", ["192.0.2.4", "192.0.2.5"], ["192.0.2.6"]),
            ("192.0.2.4,198.51.100.1", ["192.0.2.4", "198.51.100.1"], ["192.0.2.5"]),
            ("2001:db8::7", ["2001:db8:0::7"], ["2001:db8::8", "192.0.2.7"]),
            ("2001:db8:0:0:0:0:0:*", ["2001:db8::ffff"], ["2001:db8::1:0"]),
            ("2001:db8:0:0:0:0:0:1-ff", ["2001:db8::ff"], ["2001:db8::100"]),
            ("2001:db8::{7,8}", ["2001:db8::7", "2001:db8::8"], ["2001:db8::9"]),
            ("192.0.2.7", ["::ffff:192.0.2.7"], []),
            ("", [], ["192.0.2.7", "0.0.0.0", "::"]),
        ):
            pattern = AddressPattern.parse(text)
            for host in inside:
                self.assertTrue(pattern.matches(host), (text, host))
            for host in outside:
                self.assertFalse(pattern.matches(host), (text, host))

    def test_no_addresses(self) -> None:
        """What is no address is refused, not ignored: an entry that matches too much is a hole."""
        for text in ("192.0.2", "192.0.2.256", "192.0.2.9-1", "192.0.2.1-999", "192.*", "host.example", "192.0.{2,3}.1",
                     "192.0.2.4,", "192.0.2.{4,x}", "2001:db8::*", "a.b.c.*", "192.0.2.-1",
                     "192.0.2.1{4,5}", "192.0.2.14}"):  # fmt: skip
            self.assertRaises(ValueError, AddressPattern.parse, text)

    def test_peer_without_address(self) -> None:
        """A peer that has no IP address is only inside of everything."""
        self.assertFalse(AddressPattern.parse("192.0.2.*").matches("node-a"))
        self.assertTrue(AddressPattern.parse("*").matches("node-a"))


class RulesTests(SynchronousTestCase):
    def problem(self, command: RemotingCommand, host: str = HOST) -> str | None:
        return RULES.problem(command, host, BROKER_ADMIN_CODES)

    def test_nobody(self) -> None:
        """Without account, with an unknown one and with a wrong secret: Apache's words."""
        self.assertEqual(self.problem(RemotingCommand(105, 1)), "No accessKey is configured")
        self.assertEqual(
            self.problem(RemotingCommand(105, 1, ext_fields={"AccessKey": ""})), "No accessKey is configured"
        )
        stranger = Credentials(access_key="stranger", secret_key="12345678")
        self.assertEqual(self.problem(signed(105, stranger)), "No acl config for stranger")
        liar = Credentials(access_key="operator", secret_key="87654321")
        self.assertEqual(self.problem(signed(105, liar)), "Check signature failed for accessKey=operator")

    def test_changed_on_the_way(self) -> None:
        """A request that somebody changed after it was signed is refused; so is one without signature."""
        for change in ({"topic": "other"}, {"new": "1"}, {"Signature": ""}, {"Signature": "ü"}):
            command = signed(105, topic="T")
            command.ext_fields = {**command.ext_fields, **change}
            self.assertEqual(self.problem(command), "Check signature failed for accessKey=application", change)
        command = signed(310, body=b"one", b="orders")
        command.body = b"two"
        self.assertIn("Check signature failed", str(self.problem(command)))

    def test_queries_for_keys(self) -> None:
        """A query is good whether its client signs the mark of unique keys (Java since 4.9.4) or adds it afterwards."""
        new = signed(12, topic="orders", key="k", _UNIQUE_KEY_QUERY="true")
        old = signed(12, topic="orders", key="k")
        old.ext_fields = {**old.ext_fields, "_UNIQUE_KEY_QUERY": "false"}
        for command in (new, old):
            self.assertIsNone(self.problem(command))
            command.ext_fields = {**command.ext_fields, "topic": "other"}
            self.assertIn("Check signature failed", str(self.problem(command)))

    def test_many_fields(self) -> None:
        """A request with more fields than any client sends is refused unchecked: sorting a million takes seconds."""
        some = {f"k{number}": "" for number in range(MAX_SIGNED_FIELDS - 2)}
        self.assertIsNone(self.problem(signed(28, APPLICATION, None, **some)))
        self.assertIn("Check signature failed", str(self.problem(signed(28, APPLICATION, None, **some, more=""))))

    def test_retry_topics(self) -> None:
        """A send to a retry topic needs the group of the topic, not the group that the request names as its own."""
        self.assertIsNone(self.problem(signed(310, b="%RETRY%readers", a="CLIENT_INNER_PRODUCER")))
        self.assertEqual(
            self.problem(signed(310, b="%RETRY%others", a="readers")), "No default permission for group others"
        )

    def test_addresses(self) -> None:
        """White addresses need no signature: the global ones of anybody, an account's of who names it."""
        self.assertIsNone(self.problem(RemotingCommand(17, 1), "198.51.100.1"))
        named = RemotingCommand(310, 1, ext_fields={"AccessKey": "trusted-host", "b": "secret"})
        self.assertIsNone(self.problem(named, "203.0.113.4"))
        self.assertIn("Check signature", str(self.problem(named, "203.0.113.6")))

    def test_admin_codes(self) -> None:
        """What only admins may do; an admin without lists may everything."""
        for code in BROKER_ADMIN_CODES:
            self.assertEqual(
                self.problem(signed(code)),
                f"Need admin permission for request code={int(code)}, but accessKey=application is not",
            )
            self.assertIsNone(self.problem(signed(code, OPERATOR)))
        self.assertIsNone(self.problem(signed(310, OPERATOR, b="anything")))

    def test_an_admin_with_lists(self) -> None:
        """An admin whose account has permissions of its own is held by them: DENY counts, and so do the defaults."""
        rules = parse_rules(
            {"a.yml": ACCOUNTS.replace(b"admin: true", b"admin: true\n    topicPerms: [orders=PUB, secret=DENY]")}
        )
        for topic, why in (
            ("orders", None),
            ("secret", "No default permission for topic secret"),
            ("other", "No default permission for topic other"),
        ):
            self.assertEqual(rules.problem(signed(310, OPERATOR, b=topic, a="G"), HOST, BROKER_ADMIN_CODES), why)
        for code in BROKER_ADMIN_CODES:
            self.assertIsNone(rules.problem(signed(code, OPERATOR), HOST, BROKER_ADMIN_CODES))

    def test_topics(self) -> None:
        """Lists decide, then the defaults."""
        self.assertIsNone(self.problem(signed(310, b="orders", a="G")))
        self.assertEqual(self.problem(signed(310, b="other", a="G")), "No default permission for topic other")
        self.assertEqual(self.problem(signed(12, topic="secret")), "No default permission for topic secret")
        self.assertIsNone(self.problem(signed(12, topic="other")))

    def test_groups(self) -> None:
        """A pull needs its topic and its group."""
        self.assertIsNone(self.problem(signed(11, topic="orders", consumerGroup="readers")))
        self.assertEqual(
            self.problem(signed(11, topic="orders", consumerGroup="others")), "No default permission for group others"
        )

    def test_traces(self) -> None:
        """Whoever may send at all may send traces."""
        self.assertIsNone(self.problem(signed(310, b=TRACE_TOPIC, a="G")))

    def test_other_requests(self) -> None:
        """What needs no resource needs a signature all the same."""
        self.assertIsNone(self.problem(signed(RequestCode.GET_BROKER_RUNTIME_INFO)))


class NeededTests(SynchronousTestCase):
    def test_requests(self) -> None:
        """What each kind of request needs, as in Apache."""
        group = RETRY_PREFIX + "G"
        for code, fields, needed in (
            (10, {"topic": "T", "group": "G"}, {"T": PUB}),
            (10, {"topic": group, "group": "G"}, {group: SUB}),
            (310, {"b": "T", "a": "G"}, {"T": PUB}),
            (310, {"b": group, "a": "CLIENT_INNER_PRODUCER"}, {group: SUB}),
            (310, {"b": group, "a": "readers"}, {group: SUB}),
            (320, {"b": "T", "a": "G"}, {"T": PUB}),
            (36, {"group": "G"}, {group: SUB}),
            (11, {"topic": "T", "consumerGroup": "G"}, {"T": SUB, group: SUB}),
            (361, {"topic": "T", "consumerGroup": "G"}, {"T": SUB, group: SUB}),
            (11, {"topic": group, "consumerGroup": "G"}, {group: SUB}),
            (12, {"topic": "T"}, {"T": SUB}),
            (15, {"topic": "T", "consumerGroup": "G"}, {"T": SUB, group: SUB}),
            (35, {"consumerGroup": "G"}, {group: SUB}),
            (35, {"producerGroup": "P"}, {}),
            (35, {"producerGroup": "P", "consumerGroup": "G"}, {group: SUB}),
            (38, {"consumerGroup": "G"}, {group: SUB}),
            (105, {"topic": "T"}, {}),
        ):
            self.assertEqual(needed_perms(RemotingCommand(code, 1, ext_fields=fields)), needed, (code, fields))

    def test_heartbeat(self) -> None:
        """A heartbeat needs all groups and topics in its body."""
        body = (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":['
            b'{"topic":"T","subString":"*"},{"topic":"%RETRY%G","subString":"*"}]}],"producerDataSet":[]}'
        )
        needed = needed_perms(RemotingCommand(34, 1, body=body))
        self.assertEqual(needed, {RETRY_PREFIX + "G": SUB, "T": SUB})


class FileTests(SynchronousTestCase):
    def refused(self, text: str) -> str:
        return str(self.assertRaises(ConfigError, parse_rules, {"conf/plain_acl.yml": text.encode()}))

    def test_errors(self) -> None:
        """What is wrong in a file is named, with the file: nothing of it is taken half."""
        account = "accounts: [{accessKey: abcdefg, secretKey: abcdefg, %s}]"
        for text, said in (
            ("accounts: [", "plain_acl.yml"),
            ("accounts: {accessKey: x}", "accounts"),
            ("accounts: [{accessKey: abcdefg}]", "secretKey"),
            ("accounts: [{accessKey: abcdef, secretKey: abcdefg}]", "more than 6"),
            (account % "whiteRemoteAddress: 192.0.2", "192.0.2"),
            (account % "defaultTopicPerm: READ", "'READ' is no permission"),
            (account % "topicPerms: [T]", "'T' is no permission"),
            (account % "topicPerms: ['T=ALL']", "'ALL' is no permission"),
            (account % "amdin: true", "amdin"),
            ("globalWhiteRemoteAddresses: ['host.example']", "host.example"),
            ("accounts: [{accessKey: abcdefg, secretKey: abcdefg}, {accessKey: abcdefg, secretKey: 1234567}]", "twice"),
        ):
            error = self.refused(text)
            self.assertIn(said, error)
            self.assertIn("conf/plain_acl.yml", error)
            self.assertNotIn("\n", error)

    def test_nothing(self) -> None:
        """An empty file has no accounts: nobody gets in."""
        rules = parse_rules({"x.yml": b""})
        self.assertEqual(rules, AclRules())
        self.assertEqual(rules.problem(RemotingCommand(105, 1), HOST, ()), "No accessKey is configured")

    def test_apache_s_own_file(self) -> None:
        """The keys that Apache's broker writes into its file are understood."""
        rules = parse_rules({"x.yml": ACCOUNTS + b"\ndataVersion:\n- counter: 1\n  timestamp: 1700000000000\n"})
        self.assertEqual(rules, RULES)

    def test_examples(self) -> None:
        """The examples in etc are good, and the two belong together."""
        rules = parse_rules({"plain_acl.yml": (ETC / "plain_acl.yml").read_bytes()})
        self.assertEqual(sorted(rules.accounts), ["billing", "operator", "replica"])
        operator = parse_credentials((ETC / "tools.yml").read_bytes(), "tools.yml")
        self.assertIsNone(rules.problem(signed(17, operator), HOST, BROKER_ADMIN_CODES))

    def test_bad_credentials(self) -> None:
        """A tools.yml without its keys is refused."""
        self.assertIn("secretKey", str(self.assertRaises(ConfigError, parse_credentials, b"accessKey: x", "tools.yml")))
        self.assertRaises(ConfigError, parse_credentials, b"", "tools.yml")


ADMIN = contract(98_101)
OTHER = contract(98_102)
ADMIN_CODES = frozenset({98_101})


class Owner:
    @responds_to(ADMIN)
    def admin(self, request: Request[None, None]) -> None:
        """Success."""

    @responds_to(OTHER)
    def other(self, request: Request[None, None]) -> None:
        """Success."""


class ShellCase(SynchronousTestCase):
    """The accounts of a folder on a disk, asked through a port."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.disk = RealDisk(self.clock)
        self.addCleanup(self.disk.close)
        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        self.path = self.write("plain_acl.yml", ACCOUNTS)

    def write(self, name: str, data: bytes) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def acl(self, path: str | None = None) -> Acl:
        acl = Acl(self.disk, self.clock, path or self.path, ADMIN_CODES)
        acl.startService()
        self.addCleanup(acl.stopService)
        return acl

    def peer(self, acl: Acl, codes: frozenset[int] | None = ADMIN_CODES) -> Peer:
        responders = ResponderTable(Owner())
        responders.guard_with(acl.check, codes)
        return Peer(responders, self.clock)

    def ask(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        peer.tell(command)
        (answer,) = peer.received()
        return answer


class ShellTests(ShellCase):
    def test_refusal(self) -> None:
        """A refused request is answered 16 with Apache's remark; others of the connection go on."""
        peer = self.peer(self.acl())
        answer = self.ask(peer, RemotingCommand(ADMIN.code, 5))
        self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)
        self.assertEqual(answer.remark, REMARK_PREFIX + "No accessKey is configured")
        self.assertEqual(self.ask(peer, RemotingCommand(OTHER.code, 6)).code, 0)
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, 0)
        self.assertEqual(self.ask(peer, signed(ADMIN.code, APPLICATION)).code, ResponseCode.NO_PERMISSION)

    def test_oneway(self) -> None:
        """A one-way request gets no answer, and no effect."""
        peer = self.peer(self.acl())
        peer.tell_oneway(ADMIN.code)
        self.assertEqual(peer.received(), [])

    def test_everything_guarded(self) -> None:
        """With no codes named everything is checked, unknown codes too."""
        responders = ResponderTable(Owner())
        responders.guard_with(self.acl().check)
        for table in (responders, responders.without()):
            peer = Peer(table, self.clock)
            for code in (OTHER.code, 99_999):
                self.assertEqual(self.ask(peer, RemotingCommand(code, 1)).code, ResponseCode.NO_PERMISSION)

    def test_heartbeat_that_cannot_be_read(self) -> None:
        """A body that cannot be read is answered, and is nobody's fault but the sender's."""
        peer = self.peer(self.acl(), None)
        answer = self.ask(peer, signed(34, APPLICATION, b"{"))
        self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_log(self) -> None:
        """A refusal is logged, and again after QUIET_MS while a client repeats it."""
        peer = self.peer(self.acl())
        with capturedLogs() as logs:
            for _ in range(5):
                self.ask(peer, RemotingCommand(ADMIN.code, 5))
            self.clock.advance(QUIET_MS / 1000)
            self.ask(peer, RemotingCommand(ADMIN.code, 5))
        lines = [event for event in logs if "refuses" in event["log_format"]]
        self.assertEqual(
            [(event["log_level"], event["suppressed"]) for event in lines], [(LogLevel.warn, 0), (LogLevel.warn, 4)]
        )
        self.assertIn("192.0.2.7, request 98101: No accessKey", lines[0]["text"])

    def test_log_is_bounded(self) -> None:
        """What was logged is remembered for MAX_QUIET_KEYS refusals, whatever peers make up."""
        acl = self.acl()
        peer = self.peer(acl)
        for number in range(MAX_QUIET_KEYS + 10):
            self.ask(peer, RemotingCommand(ADMIN.code, 5, ext_fields={"AccessKey": f"k{number}"}))
        self.assertEqual(len(acl._throttle._written), MAX_QUIET_KEYS)

    def test_change(self) -> None:
        """A changed file counts after 5 s, not before; a broken one changes nothing and is reported once."""
        peer = self.peer(self.acl())
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, 0)
        with capturedLogs() as logs:
            self.write("plain_acl.yml", b"accounts: [")
            self.clock.pump([REFRESH_S] * 3)
        self.assertEqual([event["log_level"] for event in logs], [LogLevel.error])
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, 0)
        self.write("plain_acl.yml", ACCOUNTS.replace(b"operator", b"successor"))
        self.clock.advance(4.9)
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, 0)
        self.clock.advance(0.1)
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, ResponseCode.NO_PERMISSION)

    def test_broken_again(self) -> None:
        """A file that is mended and then broken in the same way is reported again."""
        self.acl()
        with capturedLogs() as logs:
            for content in (b"accounts: [", ACCOUNTS, b"accounts: ["):
                self.write("plain_acl.yml", content)
                self.clock.advance(REFRESH_S)
        self.assertEqual([event["log_level"] for event in logs].count(LogLevel.error), 2)

    def test_folder(self) -> None:
        """All files of a folder count together; new ones are found."""
        self.write("b.yaml", b"accounts: [{accessKey: another, secretKey: abcdefg}]")
        self.write("notes.txt", b"not yaml: [")
        acl = self.acl(self.folder)
        self.assertEqual(len(acl.rules.accounts), 4)
        self.write("c.yml", b"accounts: [{accessKey: onemore, secretKey: abcdefg}]")
        self.clock.advance(REFRESH_S)
        self.assertEqual(len(acl.rules.accounts), 5)

    def test_start(self) -> None:
        """Accounts that cannot be read stop the start: it would lock everybody out."""
        for path in (os.path.join(self.folder, "none.yml"), self.write("broken.yml", b"accounts: [")):
            acl = Acl(self.disk, self.clock, path, ())
            self.assertIn(path, str(self.assertRaises(ConfigError, acl.startService)))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_configuration(self) -> None:
        """Off by default; where the accounts are must be said, directly or by rocketmqHome."""
        self.assertIsNone(acl_of(AclConfig(), None, self.disk, self.clock, ()))
        on = AclConfig(acl_enable=True)
        self.assertIn("aclFile", str(self.assertRaises(ConfigError, acl_of, on, None, self.disk, self.clock, ())))
        os.makedirs(os.path.join(self.folder, "conf"))
        self.write("conf/plain_acl.yml", ACCOUNTS)
        acl = acl_of(on, self.folder, self.disk, self.clock, ())
        assert acl is not None
        acl.startService()
        self.assertEqual(len(acl.rules.accounts), 3)
        acl.stopService()

    def test_signer(self) -> None:
        """aclToolsFile makes this process sign its requests; one that is missing or broken stops the start."""
        self.assertIsNone(signer_of(AclConfig(), self.disk))
        path = self.write("tools.yml", b"accessKey: operator\nsecretKey: 12345678\n")
        sign = signer_of(AclConfig(acl_tools_file=path), self.disk)
        assert sign is not None
        command = RemotingCommand(21, 1)
        sign(command)
        self.assertIsNone(RULES.problem(command, HOST, ()))
        self.assertRaises(ConfigError, signer_of, AclConfig(acl_tools_file=path + ".no"), self.disk)

    def test_new_key(self) -> None:
        """A changed aclToolsFile counts for the next request; a broken one changes nothing and is logged once."""
        path = self.write("tools.yml", b"accessKey: operator\nsecretKey: before-it\n")
        sign = signer_of(AclConfig(acl_tools_file=path), self.disk)
        assert sign is not None

        def is_good() -> bool:
            command = RemotingCommand(21, 1)
            sign(command)
            return RULES.problem(command, HOST, ()) is None

        self.assertFalse(is_good())
        self.write("tools.yml", b"accessKey: operator\nsecretKey: 12345678\n")
        self.assertTrue(is_good())
        with capturedLogs() as logs:
            self.write("tools.yml", b"accessKey: operator\n")
            self.assertTrue(is_good() and is_good())
            os.remove(path)
            self.assertTrue(is_good())
        self.assertEqual(["tools.yml" in str(event["error"]) for event in logs], [True, True])

    def test_own_requests_are_signed(self) -> None:
        """Requests and one-way requests of a channel with a signer are signed."""
        peer = Peer()
        peer.channel.sign = OPERATOR.sign
        peer.channel.invoke(OTHER, None, None, timeout_ms=1000)
        peer.channel.oneway(OTHER, None, None)
        for command in peer.received():
            self.assertIsNone(RULES.problem(command, HOST, ()))


class AccessTests(SynchronousTestCase):
    def test_changed_keys(self) -> None:
        """What differs from the defaults is kept for the file, under its keys; together they give the same setup."""
        values = {"tls.server.mode": "enforcing", "aclEnable": "true", "aclFile": "/x.yml", "serverMaxConnections": "7"}
        setup = AccessSetup.of(load(ACCESS_CLASSES, values, "test").configs)
        self.assertEqual(setup.changed(), values)
        self.assertEqual(AccessSetup().changed(), {})
        self.assertLess(set(values), NEVER)

    def test_accounts_of_5x(self) -> None:
        """A file that protects a 5.x broker with its accounts ends the start: ignoring it would let everybody in."""
        for key in ("authenticationEnabled", "authorizationEnabled"):
            error = self.assertRaises(ConfigError, load, (AclConfig,), {key: "true"}, "broker.conf")
            self.assertIn(f"broker.conf: {key}=true is wrong", str(error))
            self.assertIn("use aclEnable=true with aclFile", str(error))
            load((AclConfig,), {key: "false"}, "broker.conf")

    def test_failed_start(self) -> None:
        """A start that fails, for want of accounts or of a certificate, names the file and leaves nothing running."""
        clock = Clock()
        disk = RealDisk(clock)
        self.addCleanup(disk.close)
        platform = Platform(reactor=clock, disk=disk, rng=random.Random(0), endpoint_factory=dial_by_name)
        certificate = {"tls.server.mode": "enforcing", "tls.test.mode.enable": "false"}
        certificate |= {"tls.server.certPath": "/no/such.pem", "tls.server.keyPath": "/no/such.key"}
        for setup, file in (
            (AccessSetup(acl=AclConfig(acl_enable=True, acl_file="/no/such.yml")), "/no/such.yml"),
            (AccessSetup.of(load(ACCESS_CLASSES, certificate, "test").configs), "/no/such."),
        ):
            access = Access(platform, setup, rocketmq_home=None, admin_codes=())
            self.assertIn(file, str(self.assertRaises(ConfigError, access.startService)))
            self.assertEqual(clock.getDelayedCalls(), [])
            self.assertFalse(access.running)


class DecoyTests(SynchronousTestCase):
    """Sends that name one topic where it is looked at and another one where it counts."""

    def problem(self, code: int, **fields: str) -> str | None:
        return RULES.problem(signed(code, APPLICATION, b"x", **fields), HOST, BROKER_ADMIN_CODES)

    def test_both_key_sets(self) -> None:
        """A send needs every topic that it names, under whichever code it comes."""
        for code in (10, 310, 320):
            self.assertIsNone(self.problem(code, topic="orders", b="orders"))
            for fields in ({"topic": "secret", "b": "orders"}, {"topic": "orders", "b": "secret"}):
                self.assertEqual(
                    self.problem(code, producerGroup="P", **fields), "No default permission for topic secret", code
                )

    def test_one_key_set(self) -> None:
        """A send is checked by the keys that it has, not by those that go with its code."""
        for code in (10, 310, 320):
            for key in ("topic", "b"):
                self.assertIsNone(self.problem(code, **{key: "orders"}))
                self.assertIn("topic secret", str(self.problem(code, **{key: "secret"})))
            self.assertEqual(needed_perms(RemotingCommand(code, 1)), {"": PUB})

    def test_trace_topic_as_decoy(self) -> None:
        """The trace topic needs no permission, what comes with it does."""
        for code in (10, 310, 320):
            self.assertIsNone(self.problem(code, topic=TRACE_TOPIC, b=TRACE_TOPIC))
            for fields in ({"topic": "secret", "b": TRACE_TOPIC}, {"topic": TRACE_TOPIC, "b": "secret"}):
                self.assertIn("No default permission", str(self.problem(code, **fields)))

    def test_retry_topics(self) -> None:
        """The group of either retry topic is needed."""
        fields = {"topic": "%RETRY%others", "b": "%RETRY%readers", "a": "readers"}
        self.assertEqual(self.problem(310, **fields), "No default permission for group others")


class HostileTests(ShellCase):
    """What peers and editors do to the accounts in use."""

    def test_long_account(self) -> None:
        """Of an account that a peer made up, the log and its memory take the beginning."""
        acl = self.acl()
        with capturedLogs() as logs:
            self.ask(self.peer(acl), RemotingCommand(ADMIN.code, 5, ext_fields={"AccessKey": "k" * 100_000}))
        self.assertEqual([len(str(text)) for text in acl._throttle._written], [MAX_LOGGED_CHARS])
        self.assertEqual([len(event["text"]) for event in logs if "text" in event], [MAX_LOGGED_CHARS])

    def test_emptied_file(self) -> None:
        """A file that is cut before it is written anew locks nobody out; one that says that it has no accounts does."""
        peer = self.peer(self.acl())
        with capturedLogs() as logs:
            self.write("plain_acl.yml", b"\n")
            self.clock.pump([REFRESH_S] * 3)
        self.assertEqual([event["log_level"] for event in logs], [LogLevel.error])
        self.assertIn("plain_acl.yml: it is empty", str(logs[0]["error"]))
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, 0)
        self.write("plain_acl.yml", b"accounts: []")
        self.clock.advance(REFRESH_S)
        self.assertEqual(self.ask(peer, signed(ADMIN.code, OPERATOR)).code, ResponseCode.NO_PERMISSION)
