"""What compiled code reads of signed requests lets the same requests pass as the whole check does."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting import acl
from rmq.remoting.acl import RESOURCE_FIELDS, AclRules, needed_perms, parse_rules
from rmq.wire import fastjson
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand, decode_command, encode_command
from rmq.wire.frames import PREFIX, Frame, ProtocolError, whole_frame
from rmq.wire.signing import ACCESS_KEY, SIGNATURE, signature
from tests.needs import need_compiled
from tests.otherclients import as_others_write
from tests.seeds import SEED

SECRET = "12345678"
ACCOUNTS = b"""
accounts:
- {accessKey: everything, secretKey: '12345678', admin: true}
- {accessKey: ordinary, secretKey: '12345678', defaultTopicPerm: PUB, defaultGroupPerm: SUB, topicPerms: [Secret=DENY]}
- {accessKey: at-home, secretKey: '12345678', whiteRemoteAddress: 192.0.2.9}
"""
CODES = (310, 320, 10, 11, 14, 15, 36, 37, 38, 12, 34, 17)
ADMIN_CODES = (17,)
NAMES = ("b", "topic", "consumerGroup", "group", "a", "bb", "groups", "e", "")
HEARTBEAT = b'{"clientID":"one","consumerDataSet":[],"producerDataSet":[]}'
PEERS = ("192.0.2.1:5", "192.0.2.9:5")


def fields_of(rng: random.Random) -> dict[str, str]:
    values = (
        "T",
        "Secret",
        "%RETRY%G",
        "G",
        "0",
        "-7",
        "-0",
        "true",
        "",
        "x" * 300,
        "tab\t",
        "KEYS\x01a\x02",
        "/",
        'quote"',
        "backslash\\",
        "\u4e2d",
        "{}",
        "a b",
    )
    return {rng.choice(NAMES): rng.choice(values[: rng.choice((4, 9, 18))]) for _ in range(rng.randrange(6))}


def request(rng: random.Random) -> RemotingCommand:
    """Return a random request; most are signed well."""
    code = rng.choice(CODES)
    body = HEARTBEAT if code == RequestCode.HEART_BEAT else rng.choice((None, b"", b"x" * 100))
    fields = {**fields_of(rng), ACCESS_KEY: rng.choice(("everything", "ordinary", "ordinary", "at-home", "nobody"))}
    fields[SIGNATURE] = signature(fields, body, rng.choice((SECRET, SECRET, SECRET, "another1")))
    chance = rng.random()
    if chance < 0.05:
        fields.update(fields_of(rng))
    elif chance < 0.1:
        del fields[rng.choice((ACCESS_KEY, SIGNATURE))]
    elif chance < 0.13:
        body = b"another"
    return RemotingCommand(code, rng.randrange(1000), ext_fields=fields, body=body, serialize_type=int(chance > 0.95))


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with a name twice, something inserted, one byte changed, cut, or as it was."""
    total, size = PREFIX.unpack_from(frame)
    if size >> 24:
        return frame
    header, body = frame[8 : 8 + size], frame[8 + size :]
    what = rng.randrange(12)
    if what == 0:
        more = rng.choice(
            (b'"b":"Secret",', b'"AccessKey":"everything",', b'"Signature":"",', b'"topic":"T",', b'"b":1,')
        )
        header = header.replace(b'"extFields":{', b'"extFields":{' + more, 1)
    elif what == 1:
        more = rng.choice(
            (
                b'"code":17,',
                b'"code":"310",',
                b'"extFields":{},',
                b'"extFields":{"b":"T"},',
                b'"extFields":null,',
                b'"x":{},',
                b" ",
            )
        )
        header = header.replace(b"{", b"{" + more, 1) if rng.random() < 0.5 else header[:-1] + b"," + more[:-1] + b"}"
    elif what == 2:
        at = rng.randrange(len(header))
        header = header[:at] + bytes([rng.choice(b'"{},:\\ 0a\x00\xff')]) + header[at + rng.randrange(2) :]
    elif what == 3:
        return frame[: rng.randrange(len(frame))]
    elif what == 4:
        return PREFIX.pack(rng.choice((0, 4, total - 1, total + 1, -1)), rng.choice((size, size + 1, 0))) + frame[8:]
    return PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def expected(rules: AclRules, data: bytes, position: int, code: int, peer: str) -> int | None:
    """What :meth:`AclRules.admitted` returns, by the whole check; None for what is no header: lanes decline that."""
    whole = whole_frame(data, position)
    if whole is None:
        return position
    try:
        command = decode_command(whole[0])
        bool(command.ext_fields)  # decoded when it is asked for
    except (ProtocolError, fastjson.JsonError):
        return None
    try:
        problem = rules.problem(command, peer.rpartition(":")[0], ADMIN_CODES)
    except fastjson.JsonError:
        return position
    return whole[1] if problem is None and command.code == code else position


class AdmittedTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.remoting._fastpath")

    def decoded(self) -> list[Frame]:
        """The frames that are decoded for a check from now on."""
        frames: list[Frame] = []

        def decode(frame: Frame) -> RemotingCommand:
            frames.append(frame)
            return decode_command(frame)

        self.patch(acl, "decode_command", decode)
        return frames

    def test_same_as_the_whole_check(self) -> None:
        """For requests signed well and badly, damaged, cut, from everywhere, seen before or not: the same pass."""
        rng = random.Random(SEED)
        rules = parse_rules({"accounts": ACCOUNTS})
        whole = self.decoded()
        passed = 0
        for number in range(8000):
            command = request(rng)
            before = bytes(rng.randrange(3))
            frame = encode_command(command) if rng.random() < 0.7 else as_others_write(rng, command)
            data = before + damaged(rng, frame) + bytes(rng.randrange(3))
            code = command.code if rng.random() < 0.95 else rng.choice(CODES)
            peer = PEERS[rng.random() < 0.2]
            stop = rules.admitted(data, len(before), code, peer, ADMIN_CODES)
            want = expected(rules, data, len(before), code, peer)
            if want is not None:
                self.assertEqual(stop, want, f"seed {SEED}, request {number}: {data!r}")
            passed += stop != len(before)
        self.assertGreater(passed, 1500, f"seed {SEED}")
        self.assertLess(passed, 6500, f"seed {SEED}")
        self.assertGreater(8000 - len(whole), 400, f"seed {SEED}: hardly any was admitted by compiled code")

    def test_seen_before(self) -> None:
        """The second request of a kind is not decoded; with another topic, account or code it is."""
        rules = parse_rules({"accounts": ACCOUNTS})
        whole = self.decoded()

        def passes(code: int, account: str, body: bytes = b"", **fields: str) -> tuple[bool, int]:
            own = {**fields, ACCESS_KEY: account}
            frame = encode_command(
                RemotingCommand(code, ext_fields={**own, SIGNATURE: signature(own, body, SECRET)}, body=body)
            )
            whole.clear()
            return rules.admitted(frame, 0, code, PEERS[0], ADMIN_CODES) == len(frame), len(whole)

        self.assertEqual(passes(310, "ordinary", b="T"), (True, 1))
        self.assertEqual(passes(310, "ordinary", b"other", b="T", g="1"), (True, 0))
        properties = 'UNIQ_KEY\x017F00\x02WAIT\x01true\x02TAGS\x01标签😀\x02own\x01"\\'
        self.assertEqual(passes(310, "ordinary", b"other", b="T", i=properties), (True, 0), "as each message has them")
        self.assertEqual(passes(310, "ordinary", b="Secret"), (False, 1))
        self.assertEqual(passes(310, "ordinary", b="T", topic="Secret"), (False, 1))
        self.assertEqual(passes(310, "everything", b="T"), (True, 1))
        for text in ("7", "-7", "0", "true", "false"):  # as C++ and Node.js write them
            fields = {ACCESS_KEY: "everything", "b": "T", "e": text}
            fields[SIGNATURE] = signature(fields, None, SECRET)
            frame = encode_command(RemotingCommand(310, ext_fields=fields))
            bare = frame[8:].replace(b'"e":"%s"' % text.encode(), b'"e":%s' % text.encode())
            whole.clear()
            data = PREFIX.pack(4 + len(bare), len(bare)) + bare
            self.assertEqual((rules.admitted(data, 0, 310, PEERS[0], ()), whole), (len(data), []), text)
        self.assertEqual(passes(11, "ordinary", b="T"), (False, 1))
        self.assertEqual(passes(17, "everything"), (True, 1))
        self.assertEqual(passes(17, "ordinary"), (False, 1))
        self.assertEqual(passes(34, "everything", HEARTBEAT), (True, 1))
        self.assertEqual(passes(34, "everything", HEARTBEAT), (True, 1), "the body of a heartbeat decides")

    def test_escaped_names(self) -> None:
        """A topic whose field is written with an escape is that topic all the same, whatever was permitted before."""
        rules = parse_rules({"accounts": ACCOUNTS})
        for more, passes in (({}, True), ({"\\u0062": "Secret"}, False)):
            fields = {"topic": "T", ACCESS_KEY: "ordinary", **more}
            fields[SIGNATURE] = signature(fields, None, SECRET)  # over the text as it is written
            frame = encode_command(RemotingCommand(310, ext_fields=fields)).replace(b"\\\\", b"\\")
            header = frame[8:]
            data = PREFIX.pack(4 + len(header), len(header)) + header
            self.assertEqual(rules.admitted(data, 0, 310, PEERS[0], ()) == len(data), passes)

    def test_fields_in_two_places(self) -> None:
        """Fields that are good together are not, where the account is in an object that the second one replaces."""
        rules = parse_rules({"accounts": ACCOUNTS})
        fields = {ACCESS_KEY: "ordinary", "b": "T"}
        fields[SIGNATURE] = signature(fields, None, SECRET)
        good = encode_command(RemotingCommand(310, ext_fields=fields))
        self.assertEqual(rules.admitted(good, 0, 310, PEERS[0], ()), len(good))
        header = good[8:].replace(b',"b":', b'},"extFields":{"b":')
        self.assertEqual(header.count(b'"extFields"'), 2)
        self.assertEqual(rules.admitted(PREFIX.pack(4 + len(header), len(header)) + header, 0, 310, PEERS[0], ()), 0)

    def test_white_addresses_are_not_remembered(self) -> None:
        """What an address may do without a permission, the same account may not do from elsewhere."""
        rules = parse_rules({"accounts": ACCOUNTS})
        fields = {"b": "T", ACCESS_KEY: "at-home"}
        frame = encode_command(RemotingCommand(310, ext_fields={**fields, SIGNATURE: signature(fields, None, SECRET)}))
        for peer, stop in ((PEERS[1], len(frame)), (PEERS[0], 0), (PEERS[1], len(frame)), (PEERS[0], 0)):
            self.assertEqual(rules.admitted(frame, 0, 310, peer, ADMIN_CODES), stop)

    def test_memory_is_bounded(self) -> None:
        """Names of a million topics do not stay, and long ones never."""
        self.patch(acl, "MAX_PERMITTED", 5)
        rules = parse_rules({"accounts": ACCOUNTS})
        for number in range(23):
            fields = {"b": f"T{number}" if number % 2 else "T" * 2000, ACCESS_KEY: "everything"}
            fields[SIGNATURE] = signature(fields, None, SECRET)
            frame = encode_command(RemotingCommand(310, ext_fields=fields))
            self.assertEqual(rules.admitted(frame, 0, 310, PEERS[0], ()), len(frame))
            self.assertLessEqual(len(rules._permitted), 5)
        self.assertEqual(len(rules._permitted), 1)

    def test_permissions_need_these_fields_only(self) -> None:
        """What a request needs depends on its code and RESOURCE_FIELDS, but for a heartbeat."""
        rng = random.Random(SEED)
        for _ in range(2000):
            command = request(rng)
            some = {name: text for name, text in command.ext_fields.items() if name.encode() in RESOURCE_FIELDS}
            if command.code != RequestCode.HEART_BEAT:
                less = RemotingCommand(command.code, ext_fields=some)
                self.assertEqual(needed_perms(command), needed_perms(less), f"seed {SEED}: {command}")
