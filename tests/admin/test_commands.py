"""What the sub-commands find out, from NameServers in the test's own process and from answers made up."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec import structs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.command import COMMANDS, Call, Outcome, Terminal, WrongUse, addresses
from rmq.admin.main import parse
from rmq.errors import Refused, RequestFailed, RequestTimeout, Unreachable
from rmq.wire.api.replication import GET_BROKER_HA_STATUS, HAClientInfo, HAConnectionInfo, HARuntimeInfo
from rmq.wire.api.routes import REGISTER_BROKER
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response, read_response
from tests.namesrv.talk import Talk, by_admin
from tests.namesrv.test_responders import HEADER, body


class Answers:
    """An Asker: NameServers by address, an HARuntimeInfo as a broker, or an error in place of an answer."""

    def __init__(self, **servers: Any) -> None:
        self.servers = {f"{name}:1": server for name, server in servers.items()}
        self.asked = 0

    def invoke(
        self, addr: str, contract: Contract[Any, Any, Any, Any], header: Any, body: Any, *, timeout_ms: float
    ) -> Deferred[Any]:
        self.asked += 1
        server = self.servers.get(addr, Unreachable(addr, f"cannot connect to {addr}"))
        if isinstance(server, Exception):
            return fail(server)
        if isinstance(server, HARuntimeInfo):
            assert contract is GET_BROKER_HA_STATUS
            return succeed(Response(None, server, 0, None, {}))
        assert isinstance(server, Talk)
        try:
            return succeed(read_response(contract, server.ask(contract, header, body), addr))
        except RequestFailed as error:
            return fail(error)


SLAVE = HAConnectionInfo(
    addr="10.0.0.2:4711",
    slave_ack_offset=900,
    diff=100,
    in_sync=True,
    transferred_byte_in_second=5,
    transfer_from_where=900,
    state="STREAMING",
    lag_seconds=1.5,
    ack_latency_millis=0.25,
)
#: these commands need none
NO_PLATFORM: Any = None


class AdminCase(SynchronousTestCase):
    def run_command(self, answers: Answers, *arguments: str) -> Outcome:
        options = parse(arguments)
        call = Call(asker=answers, options=options, timeout_ms=1000, platform=NO_PLATFORM, terminal=Terminal())
        outcome = self.successResultOf(Deferred.fromCoroutine(COMMANDS[options.command].run(call)))
        assert outcome is not None
        return outcome

    def fails(self, answers: Answers, *arguments: str) -> Exception:
        options = parse(arguments)
        call = Call(asker=answers, options=options, timeout_ms=1000, platform=NO_PLATFORM, terminal=Terminal())
        error: Exception = self.failureResultOf(Deferred.fromCoroutine(COMMANDS[options.command].run(call))).value
        return error

    def namesrv(self, *topics: str, version: int = 1) -> Talk:
        talk = Talk(self.mktemp())
        if topics:
            talk.ask(REGISTER_BROKER, HEADER, body(*topics, version=version))
        return talk


class RouteDiffTests(AdminCase):
    def test_agreement(self) -> None:
        """NameServers that know the same: status 0, with how much they know."""
        outcome = self.run_command(
            Answers(a=self.namesrv("T", "U"), b=self.namesrv("T", "U")), "routeDiff", "-n", "a:1;b:1"
        )
        self.assertEqual(outcome.status, 0)
        self.assertIn("they agree", outcome.text)
        self.assertEqual(outcome.data["nameServers"]["a:1"], {"brokers": 1, "topics": 2})

    def test_what_one_lacks(self) -> None:
        """A topic that one does not know is one difference, without its queues; a broker and its cluster are others."""
        outcome = self.run_command(Answers(a=self.namesrv("T", "U"), b=self.namesrv("T")), "routeDiff", "-n", "a:1;b:1")
        self.assertEqual(outcome.status, 2)
        self.assertEqual(
            [(one["kind"], one["name"], one["values"]) for one in outcome.data["differences"]],
            [("topic", "U", {"a:1": "is known", "b:1": "-"})],
        )
        self.assertIn("b:1: does not know it", outcome.text)
        empty = self.run_command(Answers(a=self.namesrv("T"), b=self.namesrv()), "routeDiff", "-n", "a:1;b:1")
        self.assertEqual({one["kind"] for one in empty.data["differences"]}, {"broker", "cluster", "topic"})

    def test_permissions(self) -> None:
        """Queues and permissions are compared where both know the topic."""
        wiped = self.namesrv("T")
        wiped.service.routes.wipe_write_perm("a", **by_admin())
        outcome = self.run_command(Answers(a=self.namesrv("T"), b=wiped), "routeDiff", "-n", "a:1;b:1", "-t", "T")
        (one,) = outcome.data["differences"]
        self.assertEqual((one["name"], sorted(one["values"])), ("T on a", ["a:1", "b:1"]))
        self.assertIn("permission 6", one["values"]["a:1"])
        self.assertIn("permission 4", one["values"]["b:1"])

    def test_what_lasts_counts(self) -> None:
        """A difference that is gone when asked again was a registration under way."""
        late = self.namesrv()

        class Late(Answers):
            def invoke(self, addr: str, *arguments: Any, **more: Any) -> Deferred[Any]:
                answer = super().invoke(addr, *arguments, **more)
                if addr == "b:1" and self.asked > 4:
                    late.ask(REGISTER_BROKER, HEADER, body("T"))
                return answer

        outcome = self.run_command(Late(a=self.namesrv("T"), b=late), "routeDiff", "-n", "a:1;b:1")
        self.assertEqual((outcome.status, outcome.data["differences"]), (0, []))

    def test_cannot_be_asked(self) -> None:
        """One NameServer alone is wrong use; one that does not answer fails the whole, since nothing is known of it."""
        self.assertIsInstance(self.fails(Answers(a=self.namesrv()), "routeDiff", "-n", "a:1;a:1"), WrongUse)
        gone = Unreachable("b:1", "no connection")
        self.assertIs(self.fails(Answers(a=self.namesrv(), b=gone), "routeDiff", "-n", "a:1;b:1"), gone)


class ExplainTests(AdminCase):
    def test_states(self) -> None:
        """Present at one and never seen by the other: both texts, status 2."""
        answers = Answers(a=self.namesrv("T"), b=self.namesrv())
        outcome = self.run_command(answers, "explain", "-n", "a:1;b:1", "-t", "T")
        self.assertEqual(outcome.status, 2)
        self.assertEqual([outcome.data[addr].state for addr in ("a:1", "b:1")], ["PRESENT", "NEVER_SEEN"])
        self.assertEqual(self.run_command(answers, "explain", "-n", "a:1", "-b", "a").status, 0)
        self.assertEqual(self.run_command(answers, "explain", "-n", "a:1;b:1").status, 0)

    def test_apache_cannot_explain(self) -> None:
        """5.x refuses the code, 4.9 is silent: each is said, the others are asked all the same, status 3."""
        answers = Answers(a=Refused(3, "x", "a:1"), b=RequestTimeout("b:1", "late"), c=self.namesrv("T"))
        outcome = self.run_command(answers, "explain", "-n", "a:1;b:1;c:1", "-t", "T")
        self.assertEqual(outcome.status, 3)
        self.assertIn("it is no NameServer of rmq", outcome.text)
        self.assertIn("4.9 never answers", outcome.text)
        self.assertIn("PRESENT", outcome.text)


class HaStatusTests(AdminCase):
    def test_master(self) -> None:
        """Each slave with its lag; --maxLag makes it a check."""
        info = HARuntimeInfo(
            master=True, master_commit_log_max_offset=1000, in_sync_slave_nums=1, ha_connection_info=[SLAVE], refused=2
        )
        outcome = self.run_command(Answers(m=info), "haStatus", "-b", "m:1")
        self.assertEqual(outcome.status, 0)
        for part in ("m:1: master", "replication lag 100 bytes, 1.5 s", "10.0.0.2:4711", "2 connections were dropped"):
            self.assertIn(part, outcome.text)
        self.assertEqual(self.run_command(Answers(m=info), "haStatus", "-b", "m:1", "--maxLag", "100").status, 0)
        self.assertEqual(self.run_command(Answers(m=info), "haStatus", "-b", "m:1", "--maxLag", "99").status, 2)
        alone = HARuntimeInfo(master=True)
        self.assertEqual(self.run_command(Answers(m=alone), "haStatus", "-b", "m:1", "--maxLag", "99").status, 2)

    def test_slave(self) -> None:
        """Its master, whether it is connected, and the last trouble."""
        way = HAClientInfo(master_addr="10.0.0.1:10912", max_offset=5, activated=False, last_error="refused")
        outcome = self.run_command(
            Answers(s=HARuntimeInfo(master=False, ha_client_runtime_info=way)), "haStatus", "-b", "s:1"
        )
        for part in ("s:1: slave", "10.0.0.1:10912, not connected", "refused"):
            self.assertIn(part, outcome.text)

    def test_what_is_missing(self) -> None:
        """A registered slave that is not connected, and a group without a master, are no success for --maxLag."""
        info = HARuntimeInfo(master=True, in_sync_slave_nums=1, ha_connection_info=[SLAVE])
        for others, status, line in (
            ([("a", 1, "s:1")], 0, ""),
            ([("a", 1, "s:1"), ("a", 2, "t:1")], 2, ""),
            ([("a", 1, "s:1"), ("b", 1, "u:1")], 2, "rmq-admin: b has no master, its slaves: u:1"),
        ):
            talk = Talk(self.mktemp())
            for name, broker_id, addr in [("a", 0, "m:1"), *others]:
                header = structs.replace(HEADER, broker_name=name, broker_id=broker_id, broker_addr=addr)
                talk.ask(REGISTER_BROKER, header, body("T"))
            lines: list[str] = []
            options = parse(("ha", "status", "-n", "n:1", "--maxLag", "100"))
            call = Call(
                asker=Answers(n=talk, m=info),
                options=options,
                timeout_ms=1000,
                platform=NO_PLATFORM,
                terminal=Terminal(warn=lines.append),
            )
            outcome = self.successResultOf(Deferred.fromCoroutine(COMMANDS[options.command].run(call)))
            assert outcome is not None
            self.assertEqual((outcome.status, "".join(lines)), (status, line))
            self.assertEqual("1 of 2 registered slaves not connected" in outcome.text, len(others) == 2 and not line)

    def test_master_away(self) -> None:
        """The slaves of a master that does not answer, or is not registered, are asked how far they came."""
        way = HAClientInfo(master_addr="10.0.0.1:10912", max_offset=77, activated=False, last_error="no connection")
        slave = HARuntimeInfo(master=False, ha_client_runtime_info=way)
        for brokers, status, failed in (
            ([("a", 0, "m:1"), ("a", 1, "s:1")], 0, ["m:1"]),
            ([("a", 1, "s:1")], 2, []),
            ([("a", 0, "m:1"), ("a", 1, "s:1"), ("a", 2, "t:1")], 0, ["m:1", "t:1"]),
        ):
            talk = Talk(self.mktemp())
            for name, broker_id, addr in brokers:
                header = structs.replace(HEADER, broker_name=name, broker_id=broker_id, broker_addr=addr)
                talk.ask(REGISTER_BROKER, header, body("T"))
            outcome = self.run_command(Answers(n=talk, s=slave), "ha", "status", "-n", "n:1")
            self.assertEqual((outcome.status, [one.addr for one in outcome.failures]), (status, failed))
            self.assertIn("s:1: slave", outcome.text)
            self.assertIn("log ends at 77", outcome.text)

    def test_a_refusal_is_an_answer(self) -> None:
        """The slaves of a master that refuses the request, as Apache 4.9 does, would refuse it, too."""
        talk = Talk(self.mktemp())
        for broker_id, addr in ((0, "m:1"), (1, "s:1")):
            talk.ask(REGISTER_BROKER, structs.replace(HEADER, broker_id=broker_id, broker_addr=addr), body("T"))
        outcome = self.run_command(Answers(n=talk, m=Refused(3, "x", "m:1")), "ha", "status", "-n", "n:1")
        self.assertEqual([one.addr for one in outcome.failures], ["m:1"])


class AddressTests(SynchronousTestCase):
    def test_addresses(self) -> None:
        """As in mqadmin: several joined by semicolons, one too many at the end is no mistake."""
        self.assertEqual(addresses("a:1; b:2;"), ["a:1", "b:2"])
        for text in ("", ";", "a", "a:x", "a:1;b"):
            self.assertRaises(argparse.ArgumentTypeError, addresses, text)
