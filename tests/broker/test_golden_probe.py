"""
Our answers beside those of an Apache broker 4.9.7, request by request.

The recording holds hand-made requests for nearly every code of a broker. It is replayed in its order on one connection;
what differs on purpose stands in one table with the reason.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire import fastjson
from rmq.wire.command import RemotingCommand, decode_commands
from rmq.wire.record import decode_records
from tests.broker.harness import OneBroker, RawClient

#: a seed whose first of four queues is 0
FIRST_QUEUE_0 = 2

FRAMES = Path(__file__).parent.parent / "golden" / "frames"

#: opaque of the recording -> (our code, why it differs from Apache's answer)
ON_PURPOSE = {
    32: (23, "a pull whose expression cannot be compiled is refused, not served without a filter"),
    34: (0, "5.x's lite pull is answered"),
    83: (1, "4.9.7 makes a queue when its offsets are asked for, as the recording did before"),
    86: (1, "no access control; Apache keeps silent"),
    89: (16, "4.9.7 had no black list of keys"),
    98: (1, "no access control; Apache keeps silent"),
    102: (1, "5.x's look-up of a topic is answered"),
    103: (1, "5.x's look-up of a group is answered"),
    107: (0, "5.x's haStatus is answered"),
}

#: the code is the same, the text is not Java's: opaque -> why
OWN_WORDS = {
    5: "the text of a Java exception",
    6: "we name the missing field",
    51: "the text of a Java exception",
    56: "the text of a Java exception",
    104: "we say what that would be",
    105: "we say who answers that",
    106: "we say who answers that",
    108: "we say what that would be",
}


@attrs.frozen
class Exchange:
    """A recorded request and its answer, if it got one."""

    opaque: int
    request: bytes
    note: str
    answer: RemotingCommand | None


def recorded(name: str) -> list[Exchange]:
    rows = [json.loads(line) for line in (FRAMES / name).read_text(encoding="utf-8").splitlines()]
    answers = {
        row["opaque"]: decode_commands(bytes.fromhex(row["hex"]))[0]
        for row in rows
        if row["dir"] == "s2c" and row.get("answers") is not None
    }
    return [
        Exchange(row["opaque"], bytes.fromhex(row["hex"]), row.get("note", ""), answers.get(row["opaque"]))
        for row in rows
        if row["dir"] == "c2s" and "hex" in row and row["hex"]
    ]


def masked(value: Any) -> Any:
    """Return a body without what no two runs have in common, times and the client's port, and without 5.x's members."""
    if isinstance(value, dict):
        return {
            str(key): "?" if re.search(r"[Tt]imestamp|consumeTps|clientAddr", str(key)) else masked(item)
            for key, item in value.items()
            if key != "pullOffset"
        }
    if isinstance(value, list):
        return sorted((masked(item) for item in value), key=str)
    return value


def comparable(answer: RemotingCommand, peer: str) -> dict[str, Any]:
    """Return what of an answer must be equal."""
    body: Any = answer.body or b""
    if body[:1] == b"{":
        body = masked(fastjson.parse(body.decode()))
    elif len(body) > 90:
        body = [
            (r.topic, r.queue_id, r.queue_offset, r.phy_offset, r.body, r.property_map, r.flag, r.sys_flag)
            for r in decode_records(body)
        ]
    remark = answer.remark
    if remark is not None:
        remark = remark.replace(peer, "PEER")
    if remark == "not set any response code":
        remark = None
    ext = {key: "?" if key == "timestamp" and value != "-1" else value for key, value in answer.ext_fields.items()}
    return {"code": answer.code, "remark": remark, "ext": ext, "body": body}


class ProbeTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker({"listenPort": "18911", "brokerIP1": "127.0.0.1", "enablePropertyFilter": "true"})

    def replay(self, client: RawClient, exchange: Exchange) -> RemotingCommand | None:
        """Send a recorded request; return the answer, None when there is none within a while."""
        before = len(client.received)
        assert client.transport is not None
        client.transport.write(exchange.request)

        def answered() -> RemotingCommand | None:
            return next((a for a in client.received[before:] if a.is_response and a.opaque == exchange.opaque), None)

        if exchange.answer is None and exchange.opaque not in ON_PURPOSE:
            self.one.world.run_for(1)
        else:
            self.one.world.run_until(answered, 10, exchange.note)
        return answered()

    def test_every_recorded_answer(self) -> None:
        """Whoever knows Apache's broker gets the same codes, remarks, header fields and bodies from ours."""
        client = self.one.connect(18911)
        # The recorded broker happened to choose queue 0 for a message without queue; so does ours, this time.
        self.one.service._platform.rng.seed(FIRST_QUEUE_0)
        peer = f"{self.one.client_node.address}:{self.port_of(client)}"
        wrong = []
        for exchange in recorded("probe_broker-4.9.7.jsonl"):
            answer = self.replay(client, exchange)
            problem = self.difference(exchange, answer, peer)
            if problem:
                wrong.append(f"{exchange.opaque} {exchange.note}: {problem}")
        self.assertEqual(wrong, [], "\n".join(wrong))
        self.one.end()

    def port_of(self, client: RawClient) -> int:
        assert client.transport is not None
        host: Any = client.transport.getHost()
        return int(host.port)

    def difference(self, exchange: Exchange, answer: RemotingCommand | None, peer: str) -> str:
        theirs = exchange.answer
        if exchange.opaque in ON_PURPOSE:
            code, why = ON_PURPOSE[exchange.opaque]
            return "" if answer is not None and answer.code == code else f"{answer}, not {code}: {why}"
        if theirs is None or answer is None:
            return "" if theirs is answer else f"{answer} instead of {theirs}"
        expected, ours = comparable(theirs, "127.0.0.1:49020"), comparable(answer, peer)
        if exchange.opaque in OWN_WORDS:
            expected = ours | {"code": expected["code"]}
        return "" if ours == expected else f"\n   ours   {ours}\n   Apache {expected}"

    def test_a_planted_difference_is_seen(self) -> None:
        """The comparison notices a code, a remark, a header field and a body that differ."""
        exchange = next(each for each in recorded("probe_broker-4.9.7.jsonl") if each.opaque == 59)
        theirs = exchange.answer
        assert theirs is not None
        for change in (
            {"code": 1},
            {"remark": "x"},
            {"ext_fields": {"x": "y"}},
            {"body": b'{"consumerIdList":["probe@2"]}'},
        ):
            fields: dict[str, Any] = {"code": theirs.code, "remark": theirs.remark, "body": theirs.body, **change}
            self.assertNotEqual(self.difference(exchange, RemotingCommand(**fields), ""), "", str(change))
        self.assertEqual(self.difference(exchange, theirs, ""), "")
        self.one.end()

    def test_vip_port(self) -> None:
        """The VIP port answers everything but pulls."""
        first = self.one.connect(18911)
        first.ask(310, decode_commands(recorded("probe_broker-4.9.7.jsonl")[0].request)[0].ext_fields, b"hello")
        client = self.one.connect(18909)
        for exchange in recorded("probe_broker-4.9.7_vip.jsonl"):
            answer = self.replay(client, exchange)
            assert answer is not None and exchange.answer is not None
            self.assertEqual((answer.code, answer.remark), (exchange.answer.code, exchange.answer.remark))
        self.one.end()
