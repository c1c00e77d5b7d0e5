"""Tests of a channel: asking a peer, and what becomes of the questions when it does not answer."""

from __future__ import annotations

from typing import Any

import msgspec
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.errors import BadAnswer, Refused, RequestFailed, RequestTimeout, Unreachable
from rmq.remoting.channel import (
    CLOSE_GRACE_S,
    MAX_UNSENT_ONEWAY_BYTES,
    Channel,
    describe_peer,
)
from rmq.remoting.limits import RemotingLimits
from rmq.wire.command import RemotingCommand
from rmq.wire.contract import contract
from rmq.wire.correlator import MAX_WAITING_REQUESTS
from rmq.wire.exchange import Response, read_response
from rmq.wire.extfields import Int32, Int64
from rmq.wire.frames import MAX_FRAME_BYTES
from tests.remoting.peer import Peer


class NotifyHeader(msgspec.Struct, rename="camel", kw_only=True):
    consumer_group: str
    queue_id: Int32 | None = None


class OffsetReply(msgspec.Struct, rename="camel", kw_only=True):
    offset: Int64


class Table(msgspec.Struct, rename="camel", kw_only=True):
    table: dict[str, int] = {}


class Strict(msgspec.Struct, rename="camel", kw_only=True):
    names: list[str]


NOTIFY = contract(92_001, NotifyHeader)
ASK = contract(92_002, NotifyHeader, body=Table, reply=OffsetReply, reply_body=Table, answers=(19,))
RAW = contract(92_003, body=bytes, reply_body=bytes)
STRICT = contract(92_004, reply_body=Strict)

HEADER = NotifyHeader(consumer_group="G")


class InvokeTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.peer = Peer()
        self.channel = self.peer.channel

    def ask(self, timeout_ms: float = 3000) -> Deferred[Response[OffsetReply, Table]]:
        return self.channel.invoke(ASK, HEADER, Table(table={"a": 1}), timeout_ms=timeout_ms)

    def test_request(self) -> None:
        """The request carries header and body, no flags, and our own opaque."""
        self.ask()
        (request,) = self.peer.received()
        self.assertEqual((request.code, request.flag, request.version), (92_002, 0, 409))
        self.assertEqual(request.ext_fields, {"consumerGroup": "G"})
        self.assertEqual(request.body, b'{"table":{"a":1}}')
        self.assertEqual(len(self.channel._calls), 1)

    def test_answer(self) -> None:
        """The answer is read by the contract's classes; its code may be any of the contract's answers."""
        for code in (0, 19):
            done = self.ask()
            (request,) = self.peer.received()
            self.peer.answer(request, code, OffsetReply(offset=7), Table(table={"b": 2}), x="y")
            response = self.successResultOf(done)
            self.assertEqual(
                (response.code, response.header, response.body), (code, OffsetReply(offset=7), Table(table={"b": 2}))
            )
            self.assertEqual(response.ext["x"], "y")
        self.assertEqual(len(self.channel._calls), 0)

    def test_raw_and_empty_bodies(self) -> None:
        """Raw bodies pass through; an absent one is empty, an absent JSON body an object of defaults."""
        raw = self.channel.invoke(RAW, None, b"\0\1", timeout_ms=100)
        self.assertEqual(self.peer.received()[0].body, b"\0\1")
        self.peer.answer(RemotingCommand(0, 0))
        response = self.successResultOf(raw)
        self.assertEqual((response.header, response.body), (None, b""))
        done = self.ask()
        self.peer.answer(self.peer.received()[0], 0, OffsetReply(offset=7))
        self.assertEqual(self.successResultOf(done).body, Table())

    def test_out_of_order(self) -> None:
        """Answers may come in any order, among requests of the peer."""
        first, second = self.ask(), self.ask()
        one, two = self.peer.received()
        self.peer.answer(two, 0, OffsetReply(offset=2))
        self.assertNoResult(first)
        self.peer.answer(one, 0, OffsetReply(offset=1))
        self.assertEqual(self.successResultOf(first).header.offset, 1)
        self.assertEqual(self.successResultOf(second).header.offset, 2)

    def test_own_opaques(self) -> None:
        """A request of the peer with the opaque of ours is a request, not an answer."""
        done = self.ask()
        (request,) = self.peer.received()
        self.peer.tell(RemotingCommand(92_099, request.opaque))
        (refusal,) = self.peer.received()
        self.assertEqual((refusal.code, refusal.opaque), (3, request.opaque))
        self.assertNoResult(done)
        self.peer.answer(request, 0, OffsetReply(offset=1))
        self.successResultOf(done)

    def test_refused(self) -> None:
        """Another code is Refused, with code, remark, extFields and peer."""
        done = self.ask()
        (request,) = self.peer.received()
        self.peer.tell(RemotingCommand(16, request.opaque, 1, remark="no", ext_fields={"a": "b"}))
        error = self.failureResultOf(done, Refused).value
        self.assertEqual((error.code, error.remark, error.addr, error.ext), (16, "no", "192.0.2.7:40001", {"a": "b"}))
        self.assertEqual(error.request_code, 92_002)
        for part in ("92002", "16", "no", "192.0.2.7:40001"):
            self.assertIn(part, str(error))

    def test_bad_answers(self) -> None:
        """An answer that cannot be read names the field or the place; the connection stays."""
        for ext, body, part in (
            ({}, None, "<offset>"),
            ({"offset": "x"}, None, "<offset>"),
            ({"offset": "1"}, b"{", "open"),
            ({"offset": "1"}, b'{"table":1}', "table"),
        ):
            done = self.ask()
            (request,) = self.peer.received()
            self.peer.tell(RemotingCommand(0, request.opaque, 1, ext_fields=ext, body=body))
            self.assertIn(part, str(self.failureResultOf(done, BadAnswer).value))
        self.assertFalse(self.peer.is_cut)

    def test_missing_body(self) -> None:
        """A body class with members that must be there is not made up."""
        done = self.channel.invoke(STRICT, None, None, timeout_ms=100)
        self.peer.answer(self.peer.received()[0])
        self.assertIn("names", str(self.failureResultOf(done, BadAnswer).value))

    def test_deadlines(self) -> None:
        """Each request has its own deadline; a late answer is dropped."""
        slow, quick = self.ask(5000), self.ask(1000)
        requests = self.peer.received()
        self.peer.clock.advance(0.999)
        self.assertNoResult(quick)
        self.peer.clock.advance(0.001)
        error = self.failureResultOf(quick, RequestTimeout).value
        for part in ("92002", "1000 ms", "192.0.2.7:40001"):
            self.assertIn(part, str(error))
        self.peer.answer(requests[1], 0, OffsetReply(offset=1))
        self.assertNoResult(slow)
        self.peer.clock.advance(4)
        self.failureResultOf(slow, RequestTimeout)
        self.assertEqual(len(self.channel._calls), 0)

    def test_no_timer_without_requests(self) -> None:
        """A channel whose requests are answered leaves at most one timer, which does nothing."""
        for _ in range(5):
            done = self.ask()
            self.peer.answer(self.peer.received()[0], 0, OffsetReply(offset=1))
            self.successResultOf(done)
        self.assertLessEqual(len(self.peer.clock.getDelayedCalls()), 2)
        self.peer.clock.advance(4)
        self.assertEqual(len(self.peer.clock.getDelayedCalls()), 1)

    def test_cancel(self) -> None:
        """A caller may give up; a later answer finds nobody."""
        done = self.ask()
        done.cancel()
        self.failureResultOf(done)
        self.assertEqual(len(self.channel._calls), 0)
        self.peer.answer(self.peer.received()[0], 0, OffsetReply(offset=1))

    def test_connection_lost(self) -> None:
        """What waits fails at once when the connection ends, and so does what is asked afterwards."""
        waiting = [self.ask(), self.ask()]
        self.peer.lose(clean=False)
        for done in waiting:
            self.assertIn("closed before", str(self.failureResultOf(done, Unreachable).value))
        self.failureResultOf(self.ask(), Unreachable)
        self.assertEqual(self.peer.clock.getDelayedCalls(), [])

    def test_too_long(self) -> None:
        """A request beyond the frame limit fails alone and does not wait."""
        done = self.channel.invoke(RAW, None, bytes(MAX_FRAME_BYTES), timeout_ms=100)
        self.assertIn("92003", str(self.failureResultOf(done, RequestFailed).value))
        self.assertEqual(len(self.channel._calls), 0)
        self.assertTrue(self.channel.is_open)

    def test_limit_of_waiting_requests(self) -> None:
        """A peer that owes MAX_WAITING_REQUESTS answers is not asked more."""
        self.channel._calls._limit = 2
        self.assertEqual(MAX_WAITING_REQUESTS, 65_535)
        self.ask(), self.ask()
        self.assertIn("2 requests", str(self.failureResultOf(self.ask(), Unreachable).value))
        self.assertEqual(len(self.peer.received()), 2)

    def test_answer_that_nobody_waits_for(self) -> None:
        """Unknown answers are ignored."""
        self.peer.tell(RemotingCommand(0, 12345, 1))
        self.assertEqual(self.peer.transport.writes, [])
        self.assertFalse(self.peer.is_cut)

    def test_read_response_alone(self) -> None:
        """An answer can be read without a channel."""
        answer = RemotingCommand(0, 1, 1, ext_fields={"offset": "5"})
        self.assertEqual(read_response(ASK, answer, "addr").header, OffsetReply(offset=5))


class OnewayTests(SynchronousTestCase):
    def test_flag(self) -> None:
        """A one-way request has the flag and waits for nothing."""
        peer = Peer()
        self.assertTrue(peer.channel.oneway(NOTIFY, HEADER, None))
        (request,) = peer.received()
        self.assertEqual((request.code, request.flag, request.ext_fields), (92_001, 2, {"consumerGroup": "G"}))
        self.assertEqual(len(peer.channel._calls), 0)

    def test_closed(self) -> None:
        """On a closed channel it is dropped, and says so."""
        peer = Peer()
        peer.channel.close("test")
        self.assertFalse(peer.channel.oneway(NOTIFY, HEADER, None))
        self.assertEqual(peer.transport.writes, [])

    def test_peer_that_does_not_read(self) -> None:
        """One-way requests are dropped, not heaped up, while the peer has MAX_UNSENT_ONEWAY_BYTES to read."""
        peer = Peer()
        peer.channel.write(bytes(70_000))
        peer.channel.write(bytes(MAX_UNSENT_ONEWAY_BYTES - 70_000))
        self.assertTrue(peer.channel.oneway(NOTIFY, HEADER, None))
        self.assertFalse(peer.channel.oneway(NOTIFY, HEADER, None))
        peer.transport.read()
        self.assertTrue(peer.channel.oneway(NOTIFY, HEADER, None))


class CloseTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.peer = Peer()
        self.channel = self.peer.channel
        self.told: list[tuple[Channel, str]] = []

    def hear(self, channel: Channel, reason: str) -> None:
        self.told.append((channel, reason))

    def test_lost(self) -> None:
        """Callbacks hear of the end once, with the reason; the channel is closed by then."""
        self.channel.when_closed(self.hear)
        self.assertTrue(self.channel.is_open)
        self.peer.lose()
        self.assertFalse(self.channel.is_open)
        self.assertEqual(self.told, [(self.channel, "closed by the peer")])
        self.channel.lost("again")
        self.assertEqual(len(self.told), 1)

    def test_reason_of_a_break(self) -> None:
        """A broken connection tells how."""
        self.channel.when_closed(self.hear)
        self.peer.lose(clean=False)
        self.assertIn("reset", self.told[0][1])

    def test_too_late(self) -> None:
        """Who asks after the end is called at once."""
        self.peer.lose()
        self.channel.when_closed(self.hear)
        self.assertEqual(len(self.told), 1)

    def test_callback_that_raises(self) -> None:
        """One callback's exception is logged; the others are called all the same."""

        def broken(channel: Channel, reason: str) -> None:
            raise ValueError("callback")

        self.channel.when_closed(broken)
        self.channel.when_closed(self.hear)
        self.peer.lose()
        self.assertEqual(len(self.told), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_close(self) -> None:
        """close() sends what is written, refuses more, and gives its reason to everybody."""
        self.channel.when_closed(self.hear)
        waiting = self.channel.invoke(RAW, None, b"", timeout_ms=100)
        self.channel.close("because")
        self.assertTrue(self.peer.is_cut)
        self.assertFalse(self.peer.transport.aborted)
        # A transport with a producer waits for its rest before it closes.
        self.assertIsNone(self.peer.transport.producer)
        self.assertIn("because", str(self.failureResultOf(waiting, Unreachable).value))
        self.assertEqual(self.told, [])
        self.channel.write(b"more")
        self.assertNotIn(b"more", self.peer.transport.read())
        self.peer.lose()
        self.assertEqual(self.told, [(self.channel, "because")])
        self.assertEqual(self.channel.close_reason, "because")
        self.assertEqual(self.peer.clock.getDelayedCalls(), [])

    def test_close_twice(self) -> None:
        """Closing again changes nothing."""
        self.channel.close("one")
        self.channel.close("two")
        self.assertEqual(self.channel.close_reason, "one")

    def test_peer_that_lets_nothing_out(self) -> None:
        """A closing connection that cannot send its rest is cut after CLOSE_GRACE_S."""
        self.channel.close("because")
        self.peer.clock.advance(CLOSE_GRACE_S - 0.1)
        self.assertFalse(self.peer.transport.aborted)
        self.peer.clock.advance(0.1)
        self.assertTrue(self.peer.transport.aborted)

    def test_abort(self) -> None:
        """abort() does not wait for anything."""
        self.channel.abort("now")
        self.assertTrue(self.peer.transport.aborted)
        self.assertFalse(self.channel.is_open)
        self.peer.lose()
        self.channel.abort("again")
        self.assertEqual(self.channel.close_reason, "now")

    def test_data_after_close(self) -> None:
        """What arrives on a channel that we have closed is ignored."""
        self.channel.close("because")
        self.peer.tell(RemotingCommand(92_099, 1))
        self.assertEqual(self.peer.transport.writes, [])


class UnsentTests(SynchronousTestCase):
    def test_limit(self) -> None:
        """A peer that reads nothing is cut off when serverChannelMaxUnsentBytes wait for it."""
        self.assertEqual(RemotingLimits().server_channel_max_unsent_bytes, 64 * 1024 * 1024)
        peer = Peer(limits=RemotingLimits(server_channel_max_unsent_bytes=100_000))
        peer.channel.write(bytes(70_000))
        peer.channel.write(bytes(30_000))
        self.assertFalse(peer.transport.aborted)
        peer.channel.write(bytes(1))
        self.assertTrue(peer.transport.aborted)
        self.assertFalse(peer.channel.is_open)

    def test_peer_that_reads(self) -> None:
        """Bytes that were read do not count."""
        peer = Peer(limits=RemotingLimits(server_channel_max_unsent_bytes=100_000))
        for _ in range(10):
            peer.channel.write(bytes(70_000))
            peer.channel.write(bytes(900))
            peer.transport.read()
        self.assertTrue(peer.channel.is_open)


class PeerAddressTests(SynchronousTestCase):
    def test_addresses(self) -> None:
        """ip:port, and the raw address; IPv4 inside IPv6 counts as IPv4."""
        cases: list[tuple[Any, str, bytes]] = [
            (IPv4Address("TCP", "192.0.2.1", 10911), "192.0.2.1:10911", bytes([192, 0, 2, 1])),
            (IPv6Address("TCP", "::ffff:192.0.2.1", 10911), "192.0.2.1:10911", bytes([192, 0, 2, 1])),
            (IPv6Address("TCP", "fe80::1%eth0", 10911), "fe80::1:10911", bytes.fromhex("fe80") + bytes(13) + b"\1"),
        ]
        for address, peer, raw in cases:
            self.assertEqual(describe_peer(address), (peer, (raw, 10911)))

    def test_without_ip(self) -> None:
        """An address without ip has the zero address."""
        self.assertEqual(describe_peer(UNIXAddress(b"/x")), ("0.0.0.0:0", (bytes(4), 0)))
        self.assertEqual(describe_peer(IPv4Address("TCP", "node-a", 5)), ("node-a:5", (bytes(4), 5)))

    def test_of_a_channel(self) -> None:
        """A channel knows its peer."""
        channel = Peer().channel
        self.assertEqual((channel.peer, channel.peer_host), ("192.0.2.7:40001", (bytes([192, 0, 2, 7]), 40001)))
        self.assertIn("192.0.2.7:40001", repr(channel))
