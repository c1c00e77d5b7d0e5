"""
Conversations of real Java clients with an Apache broker, replayed against ours.

The requests are the clients' own bytes. Codes and the names of header fields must be those that Apache answered with,
since the clients rely on both; numbers and bodies depend on what the recorded broker held and are compared elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.command import RemotingCommand, decode_commands
from tests.broker.harness import OneBroker, RawClient

FRAMES = Path(__file__).parent.parent / "golden" / "frames"

#: requests to the NameServer, which is another recording's affair
TO_NAMESRV = {103, 104, 105, 106, 206}

#: file -> request code -> why our answer may have another code: the recorded broker held messages that ours lacks
STATE = {
    "client-4.9.7_produce.jsonl": {12: "the recorded time range lies in our future"},
    "client-4.9.7_binary-header.jsonl": {33: "the offset is that of a record in the recorded log"},
    "client-5.3.3_binary-header.jsonl": {
        33: "the offset is that of a record in the recorded log",
        36: "the offset is that of a record in the recorded log",
    },
    "client-4.9.7_sendSmartMsg-false.jsonl": {},
}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FRAMES / name).read_text(encoding="utf-8").splitlines()]


def command_of(row: dict[str, Any]) -> RemotingCommand:
    return decode_commands(bytes.fromhex(row["hex"]))[0]


def is_request(row: dict[str, Any]) -> bool:
    return row["dir"] == "c2s" and bool(row.get("hex")) and row.get("answers") is None and row["code"] not in TO_NAMESRV


class ConversationTests(SynchronousTestCase):
    def replay(self, name: str) -> tuple[int, list[str]]:
        """Replay a recording; return how many answers were compared and what was wrong with them."""
        one = OneBroker({"listenPort": "18911", "brokerIP1": "127.0.0.1"})
        recorded = rows(name)
        answers = {
            (row["conn"], row["opaque"]): command_of(row)
            for row in recorded
            if row["dir"] == "s2c" and row.get("answers") is not None and not row.get("cut")
        }
        clients: dict[int, RawClient] = {}
        wrong = []
        compared = 0
        for row in filter(is_request, recorded):
            client = clients.get(row["conn"])
            if client is None:
                client = clients[row["conn"]] = one.connect(18911)
            theirs = answers.get((row["conn"], row["opaque"]))
            ours = self.ask(one, client, row, wait=theirs is not None)
            if theirs is None:
                continue
            compared += 1
            same = ours is not None and (ours.code, set(ours.ext_fields)) == (theirs.code, set(theirs.ext_fields))
            if not same and row["code"] not in STATE[name]:
                wrong.append(f"{row['name']}: ours {ours} {ours and ours.remark}, Apache's {theirs}")
        one.end()
        return compared, wrong

    def ask(self, one: OneBroker, client: RawClient, row: dict[str, Any], *, wait: bool) -> RemotingCommand | None:
        before = len(client.received)
        assert client.transport is not None
        client.transport.write(bytes.fromhex(row["hex"]))

        def answer() -> RemotingCommand | None:
            found = (each for each in client.received[before:] if each.is_response and each.opaque == row["opaque"])
            return next(found, None)

        if wait:
            one.world.run_until(answer, 20, row["name"])
        else:
            one.world.run_for(0.05)
        return answer()

    def test_clients(self) -> None:
        """What Java clients send, they get answered as by Apache: all ways to send, both header kinds, queries."""
        for name in STATE:
            compared, wrong = self.replay(name)
            self.assertEqual(wrong, [], name)
            self.assertGreater(compared, 3, name)

    def test_answers_come_in_the_kind_of_the_request(self) -> None:
        """A client that writes binary headers gets binary headers, and only such a client."""
        one = OneBroker({"listenPort": "18911"})
        for name, kind in (("client-4.9.7_binary-header.jsonl", 1), ("client-4.9.7_produce.jsonl", 0)):
            row = next(row for row in rows(name) if is_request(row) and row["code"] == 34)
            client = one.connect(18911)
            answer = self.ask(one, client, row, wait=True)
            assert answer is not None
            self.assertEqual(answer.serialize_type, kind)
        one.end()
