"""One bad request, responder, filter or client costs one line in the log and its own answer; all else goes on."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.responders.pulling import PullResponder
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.record import decode_records
from tests.broker.harness import OneBroker, pull_ext, send_ext
from tests.seeds import SEED


class Planted(Exception):
    """The fault that a test plants."""


class Raises:
    """A responder with a bug."""

    def call(self, *_: Any) -> Any:
        raise Planted("here")


class FailsLater:
    """A responder with a bug behind something that it waits for."""

    def call(self, *_: Any) -> Deferred[Any]:
        return fail(Planted("here"))


class BrokenFilter:
    """A filter with a bug."""

    program = None
    size_bytes = 0

    def __call__(self, properties: str) -> bool:
        raise Planted("here")


class RobustTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker({"enablePropertyFilter": "true"})
        self.addCleanup(self.one.end)
        self.client, self.other = self.one.connect(), self.one.connect()
        self.assertEqual(self.other.ask(310, send_ext("T"), b"first").code, 0)

    def goes_on(self) -> None:
        """Send a message and receive it, on another connection."""
        self.assertFalse(self.other.closed)
        sent = self.other.ask(310, send_ext(), b"more")
        self.assertEqual(sent.code, 0, sent.remark)
        pulled = self.other.ask(11, pull_ext(offset=int(sent.ext_fields["queueOffset"])))
        self.assertEqual([record.body for record in decode_records(pulled.body or b"")], [b"more"])

    def test_each_responder_that_raises(self) -> None:
        """Whatever request fails because of a bug is answered with code 1, and logged with its traceback."""
        table = self.one.service.responders
        responders, codes = table._responders, sorted(table.codes())
        self.assertGreater(len(codes), 60)
        table.chunk_lanes = {}
        for code in codes:
            true = responders[code]
            for broken in (Raises(), FailsLater()):
                responders[code] = broken  # type: ignore[assignment]
                answer = self.client.ask(code)
                self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, "Planted: here"), code)
                self.assertEqual(len(self.flushLoggedErrors(Planted)), 1, code)
                self.client.tell(code)
                self.one.world.run_for(0.01)
                self.assertEqual(len(self.flushLoggedErrors(Planted)), 1, code)
            responders[code] = true
        self.assertFalse(self.client.closed)
        self.goes_on()

    def test_each_lane_that_raises(self) -> None:
        """A lane that fails costs the connection whose bytes it had, with one line in the log."""
        table = self.one.service.responders
        lanes = table.chunk_lanes

        class Broken:
            together = None

            def __init__(self, code: int) -> None:
                self.code = code

            def __call__(self, *_: Any) -> Any:
                raise Planted("here")

        for code in lanes:
            table.chunk_lanes = {**lanes, code: Broken(code)}
            client = self.one.connect()
            client.post(code)
            self.one.world.run_for(1)
            self.assertTrue(client.closed)
            self.assertEqual(len(self.flushLoggedErrors(Planted)), 1, code)
        table.chunk_lanes = lanes
        self.goes_on()

    def test_garbage_for_each_code(self) -> None:
        """Any header and body of any request is answered, and nothing else suffers."""
        rng = Random(SEED)
        texts = ["", " ", "-1", "x", "9" * 30, "\0", "null", "true", "a" * 300, "%LMQ%x", "../..", "{", "é", "T", "8"]
        bodies = [b"", b"{", b"[]", b"null", b"{}", b'{"a":' * 50, b"[" * 5000]
        table = self.one.service.responders
        for code in sorted(table.codes()):
            header = table._responders[code].contract.header
            keys = sorted(send_ext() if header is None else header.__struct_encode_fields__)
            for _ in range(8):
                ext = {key: rng.choice(texts) for key in keys if rng.random() < 0.9}
                if code == RequestCode.END_TRANSACTION:
                    ext["commitOrRollback"] = "8"  # an unknown state has no answer
                answer = self.client.ask(code, ext, rng.choice([*bodies, rng.randbytes(40)]))
                self.assertTrue(answer.is_response, f"seed {SEED} code {code}")
        self.assertFalse(self.client.closed)
        self.assertEqual(self.flushLoggedErrors(), [], f"seed {SEED}")
        self.goes_on()

    def test_a_filter_that_raises(self) -> None:
        """A filter that fails on a message costs the pulls that have it."""
        ext = pull_ext("T", expressionType="SQL92", subscription="a > 1")
        self.assertEqual(self.client.ask(11, ext).code, ResponseCode.PULL_RETRY_IMMEDIATELY)
        true = PullResponder._filter

        def broken(self: Any, header: Any, group: Any) -> Any:
            admitted = true(self, header, group)
            sql = header.expression_type == "SQL92"
            return type(admitted)(group, admitted.matches, BrokenFilter()) if sql else admitted

        self.patch(PullResponder, "_filter", broken)
        answer = self.client.ask(11, ext)
        self.assertEqual((answer.code, answer.remark), (ResponseCode.SYSTEM_ERROR, "Planted: here"))
        self.assertEqual(len(self.flushLoggedErrors(Planted)), 1)
        self.goes_on()

    def test_a_client_that_never_reads(self) -> None:
        """A client that asks and never reads loses its connection; others are served meanwhile."""
        client = self.one.connect()
        transport: Any = client.transport
        for _ in range(40):
            self.assertEqual(self.other.ask(310, send_ext("T"), b"x" * 100_000).code, 0)
        transport.pauseProducing()
        for _ in range(300):
            client.post(11, pull_ext("T"))
        self.one.world.run_for(2)
        self.goes_on()
        held = sum(channel.held_bytes for channel in self.one.service.server.channels)
        self.assertLess(held, 80 << 20)
        transport.abortConnection()
