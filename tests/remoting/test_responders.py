"""Tests of the responder table: what becomes of a request."""

from __future__ import annotations

from typing import Any

import msgspec
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.responders import (
    MAX_REMARK_CHARS,
    NO_REPLY,
    NoReply,
    Refuse,
    Reply,
    Request,
    ResponderTable,
    responds_to,
)
from rmq.runtime.disk.error import DiskFull
from rmq.wire.codes import ResponseCode
from rmq.wire.command import ONEWAY, RemotingCommand, decode_commands
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32
from rmq.wire.frames import MAX_FRAME_BYTES
from tests.remoting.peer import Peer, request


class TopicHeader(msgspec.Struct, rename="camel", kw_only=True):
    topic: str
    queue_id: Int32 = 0
    batch: bool = False


class OffsetReply(msgspec.Struct, rename="camel", kw_only=True):
    offset: int
    found: bool = True
    nothing: str | None = None


class Names(msgspec.Struct, rename="camel", kw_only=True):
    topic_list: list[str]


ECHO = contract(91_001, TopicHeader, reply=OffsetReply, reply_body=bytes, body=bytes)
LIST = contract(91_002, body=Names, reply_body=Names)
PLAIN = contract(91_003)
LATER = contract(91_004, TopicHeader, reply=OffsetReply)
COROUTINE = contract(91_005, TopicHeader, reply=OffsetReply)
TROUBLE = contract(91_006, TopicHeader)
ALIAS = contract(91_007, TopicHeader)
SILENT = contract(91_008)
WRONG = contract(91_009)
LONG = contract(91_010, reply_body=bytes)


class Owner:
    """Responders of every kind."""

    def __init__(self) -> None:
        self.later: Deferred[Reply] = Deferred()
        self.seen: list[Request[Any, Any]] = []

    @responds_to(ECHO)
    def echo(self, request: Request[TopicHeader, bytes]) -> Reply:
        self.seen.append(request)
        return Reply(OffsetReply(offset=request.header.queue_id), request.body, ext={"TRACE_ON": "true"})

    @responds_to(LIST)
    def list(self, request: Request[None, Names]) -> Reply:
        return Reply(body=Names(topic_list=request.body.topic_list[::-1]))

    @responds_to(PLAIN)
    def plain(self, request: Request[None, None]) -> None:
        self.seen.append(request)

    @responds_to(LATER)
    def wait(self, request: Request[TopicHeader, None]) -> Deferred[Reply]:
        return self.later

    @responds_to(COROUTINE)
    async def flow(self, request: Request[TopicHeader, None]) -> Reply:
        reply = await self.later
        return Reply(reply.header, code=19, remark=request.header.topic)

    @responds_to(TROUBLE)
    @responds_to(ALIAS)
    def trouble(self, request: Request[TopicHeader, None]) -> None:
        if request.header.topic == "refuse":
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, "no such topic", {"a": "b"}, OffsetReply(offset=5))
        if request.header.topic == "full":
            raise DiskFull("/store/config/topics.json.tmp", "No space left on device")
        raise KeyError(request.header.topic)

    @responds_to(SILENT)
    def silent(self, request: Request[None, None]) -> NoReply:
        return NO_REPLY

    @responds_to(WRONG)
    def wrong(self, request: Request[None, None]) -> Any:
        return 5

    @responds_to(LONG)
    def long(self, request: Request[None, None]) -> Reply:
        return Reply(body=bytes(MAX_FRAME_BYTES))


class DispatchTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.owner = Owner()
        self.table = ResponderTable(self.owner, refused={91_050: "not in this version"})
        self.peer = Peer(self.table)

    def test_typed_both_ways(self) -> None:
        """A responder gets its header and body read, and its reply is written with extFields and body."""
        answer = self.peer.ask(91_001, b"body", topic="T", queueId="7", batch="true")
        self.assertEqual(answer.code, 0)
        self.assertIsNone(answer.remark)
        self.assertEqual(answer.ext_fields, {"offset": "7", "found": "true", "TRACE_ON": "true"})
        self.assertEqual(answer.body, b"body")
        (seen,) = self.owner.seen
        self.assertEqual(seen.header, TopicHeader(topic="T", queue_id=7, batch=True))
        self.assertIs(seen.channel, self.peer.channel)
        self.assertEqual(seen.command.ext_fields["topic"], "T")

    def test_raw_body_may_be_absent(self) -> None:
        """A body of bytes that is not there is empty."""
        self.assertIsNone(self.peer.ask(91_001, topic="T").body)
        self.assertEqual(self.owner.seen[0].body, b"")

    def test_json_bodies(self) -> None:
        """A body class is read from JSON and written as JSON; an answer without header has no extFields."""
        answer = self.peer.ask(91_002, b'{"topicList":["a","b"]}')
        self.assertEqual(answer.body, b'{"topicList":["b","a"]}')
        self.assertFalse(answer.has_ext_fields)

    def test_bad_bodies(self) -> None:
        """A body that is missing or cannot be read is refused by name; the connection stays."""
        for body, part in ((None, "Names"), (b"{", "open"), (b'{"topicList":5}', "topicList"), (b"{}", "topicList")):
            answer = self.peer.ask(91_002, body)
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
            self.assertIn(part, answer.remark or "")
            self.assertIn("91002", answer.remark or "")
        self.assertFalse(self.peer.is_cut)

    def test_bad_fields(self) -> None:
        """Missing and unreadable fields are refused with code 1 and Java's words."""
        answer = self.peer.ask(91_001)
        self.assertEqual((answer.code, answer.remark), (1, "the custom field <topic> is null"))
        answer = self.peer.ask(91_001, topic="T", queueId="x")
        self.assertEqual(answer.code, 1)
        self.assertIn("<queueId>", answer.remark or "")

    def test_nothing_to_say(self) -> None:
        """A responder that returns None answers a bare success."""
        answer = self.peer.ask(91_003)
        self.assertEqual((answer.code, answer.remark, answer.body), (0, None, None))
        self.assertFalse(answer.has_ext_fields)

    def test_refusal(self) -> None:
        """Refuse becomes its code, remark and extFields; nothing is logged as our fault."""
        answer = self.peer.ask(91_006, topic="refuse")
        self.assertEqual((answer.code, answer.remark), (17, "no such topic"))
        self.assertEqual(answer.ext_fields, {"offset": "5", "found": "true", "a": "b"})
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_our_own_fault(self) -> None:
        """Any other exception is logged, costs code 1 with its text, and harms nobody else."""
        answer = self.peer.ask(91_006, topic="boom")
        self.assertEqual((answer.code, answer.remark), (1, "KeyError: 'boom'"))
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.assertEqual(self.peer.ask(91_003).code, 0)

    def test_a_full_disk(self) -> None:
        """A failed file operation costs code 1 with path and reason, and one line of the log without a traceback."""
        with capturedLogs() as events:
            answer = self.peer.ask(91_006, topic="full")
        text = "/store/config/topics.json.tmp: No space left on device"
        self.assertEqual((answer.code, answer.remark), (1, text))
        self.assertEqual([formatEvent(event) for event in events], [f"request 91006 refused: {text}"])
        self.assertEqual([event["log_level"] for event in events], [LogLevel.error])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_wrong_return_value(self) -> None:
        """A responder that returns nonsense is our own fault too."""
        self.assertEqual(self.peer.ask(91_009).code, 1)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    def test_endless_remark(self) -> None:
        """Remarks are bounded and always have a UTF-8 form."""
        answer = self.peer.ask(91_006, topic="x" * 10_000)
        self.assertEqual(len(answer.remark or ""), MAX_REMARK_CHARS)
        self.flushLoggedErrors(KeyError)

        class Halves:
            @responds_to(PLAIN)
            def refuse(self, request: Request[None, None]) -> None:
                raise Refuse(1, "half \ud83d")

        self.assertEqual(Peer(ResponderTable(Halves())).ask(91_003).remark, "half ?")

    def test_too_long_answer(self) -> None:
        """An answer beyond the frame limit is refused in its place."""
        answer = self.peer.ask(91_010)
        self.assertEqual(answer.code, 1)
        self.assertIn("too long", answer.remark or "")

    def test_unknown_code(self) -> None:
        """A code that nobody answers gets code 3 and Java's remark, leading blank included."""
        answer = self.peer.ask(91_099)
        self.assertEqual((answer.code, answer.remark), (3, " request type 91099 not supported"))

    def test_refused_code(self) -> None:
        """A code that is knowingly refused says why."""
        answer = self.peer.ask(91_050)
        self.assertEqual((answer.code, answer.remark), (3, " request type 91050 not supported: not in this version"))

    def test_stacked(self) -> None:
        """One method may answer several codes."""
        self.assertEqual(self.peer.ask(91_007, topic="refuse").code, 17)

    def test_no_reply(self) -> None:
        """NO_REPLY is silence, also later."""
        self.peer.tell(request(SILENT))
        self.assertEqual(self.peer.received(), [])

    def test_binary_in_kind(self) -> None:
        """A binary request is answered in binary, refusals and unknown codes included."""
        for code, ext in ((91_001, {"topic": "T"}), (91_006, {"topic": "refuse"}), (91_099, None), (91_001, None)):
            self.peer.tell(RemotingCommand(code - 90_000, 5, ext_fields=ext, serialize_type=1))
            self.peer.tell(RemotingCommand(code, 6, ext_fields=ext, serialize_type=0))
            binary, text = self.peer.received()
            self.assertEqual((binary.serialize_type, text.serialize_type), (1, 0))


class LaterTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.owner = Owner()
        self.peer = Peer(ResponderTable(self.owner))
        self.ask = request(LATER, TopicHeader(topic="T"), opaque=41)
        self.flow = request(COROUTINE, TopicHeader(topic="T"), opaque=42)

    def test_deferred(self) -> None:
        """A Deferred answers when it fires, after others that came later."""
        self.peer.tell(self.ask, request(PLAIN, opaque=43))
        self.assertEqual([answer.opaque for answer in self.peer.received()], [43])
        self.owner.later.callback(Reply(OffsetReply(offset=9)))
        (answer,) = self.peer.received()
        self.assertEqual((answer.opaque, answer.ext_fields["offset"]), (41, "9"))

    def test_coroutine(self) -> None:
        """A coroutine answers with what it returns."""
        self.peer.tell(self.flow)
        self.assertEqual(self.peer.received(), [])
        self.owner.later.callback(Reply(OffsetReply(offset=9)))
        (answer,) = self.peer.received()
        self.assertEqual((answer.opaque, answer.code, answer.remark), (42, 19, "T"))

    def test_deferred_that_has_fired(self) -> None:
        """An answer that is there already goes out with its chunk."""
        self.owner.later = succeed(Reply(OffsetReply(offset=1)))
        self.peer.tell(self.ask, request(PLAIN, opaque=43))
        self.assertEqual(len(self.peer.transport.writes), 1)
        self.assertEqual([answer.opaque for answer in self.peer.received()], [41, 43])

    def test_failures(self) -> None:
        """A Deferred or coroutine that fails is answered like an exception."""
        for error, code, logged in ((Refuse(14, "later"), 14, 0), (ValueError("x"), 1, 1)):
            for command in (self.ask, self.flow):
                self.owner.later = fail(error)
                self.peer.tell(command)
                (answer,) = self.peer.received()
                self.assertEqual((answer.opaque, answer.code), (command.opaque, code))
                self.assertEqual(len(self.flushLoggedErrors(ValueError)), logged)

    def test_none_and_no_reply(self) -> None:
        """A Deferred may end in a bare success or in silence."""
        self.owner.later = succeed(None)  # type: ignore[arg-type]
        self.peer.tell(self.ask)
        self.assertEqual([answer.code for answer in self.peer.received()], [0])
        self.owner.later = succeed(NO_REPLY)  # type: ignore[arg-type]
        self.peer.tell(self.ask)
        self.assertEqual(self.peer.received(), [])

    def test_nonsense(self) -> None:
        """A Deferred that ends in nonsense is our own fault."""
        self.owner.later = succeed(5)  # type: ignore[arg-type]
        self.peer.tell(self.ask)
        self.assertEqual([answer.code for answer in self.peer.received()], [1])
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    def test_peer_gone(self) -> None:
        """An answer for a connection that is lost is dropped without a complaint."""
        self.peer.tell(self.ask)
        self.peer.lose()
        before = len(self.peer.transport.writes)
        self.owner.later.callback(Reply())
        self.assertEqual(len(self.peer.transport.writes), before)


class OnewayTests(SynchronousTestCase):
    def test_never_answered(self) -> None:
        """One-way requests get no answer: success, refusal, fault, unknown code, bad field or later."""
        owner = Owner()
        table = ResponderTable(owner)
        peer = Peer(table)
        later: list[Deferred[Reply]] = []
        for code, ext in (
            (91_001, {"topic": "T"}),
            (91_006, {"topic": "refuse"}),
            (91_006, {"topic": "boom"}),
            (91_099, {}),
            (91_001, {}),
            (91_004, {"topic": "T"}),
            (91_005, {"topic": "T"}),
        ):
            owner.later = Deferred()
            later.append(owner.later)
            peer.tell_oneway(code, None, **ext)
        for waiting in later:
            waiting.callback(Reply())
        self.assertEqual(peer.transport.writes, [])
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_late_fault(self) -> None:
        """A one-way request that fails later is logged and not answered."""
        owner = Owner()
        peer = Peer(ResponderTable(owner))
        peer.tell_oneway(91_004, topic="T")
        owner.later.errback(ValueError("x"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(peer.transport.writes, [])


class TableTests(SynchronousTestCase):
    def test_codes(self) -> None:
        """The table lists what is answered and what is refused."""
        table = ResponderTable(Owner(), refused={91_050: "why"})
        self.assertEqual(table.codes(), set(range(91_001, 91_011)))
        self.assertEqual(table._refused.keys(), {91_050})
        self.assertEqual(ResponderTable().codes(), set())

    def test_two_for_one_code(self) -> None:
        """A code that two methods answer, or that is answered and refused, is found when the table is made."""
        self.assertIn("91001", str(self.assertRaises(ValueError, ResponderTable, Owner(), Owner())))
        self.assertIn("91003", str(self.assertRaises(ValueError, ResponderTable, Owner(), refused={91_003: "no"})))

    def test_without(self) -> None:
        """A table can be had without some codes; the first one is unchanged."""
        table = ResponderTable(Owner(), refused={91_050: "why"})
        vip = table.without(91_001)
        self.assertEqual(table.codes() - vip.codes(), {91_001})
        peer = Peer(vip)
        self.assertEqual(peer.ask(91_001, topic="T").code, 3)
        self.assertEqual(peer.ask(91_003).code, 0)
        self.assertEqual(vip._refused.keys(), {91_050})

    def test_subclasses(self) -> None:
        """Inherited responders count, overridden ones by the overriding method."""

        class Special(Owner):
            @responds_to(PLAIN)
            def plain(self, request: Request[None, None]) -> None:
                raise Refuse(16, "special")

        peer = Peer(ResponderTable(Special()))
        self.assertEqual(peer.ask(91_003).code, 16)
        self.assertEqual(peer.ask(91_001, topic="T").code, 0)

    def test_dispatch_alone(self) -> None:
        """Without a protocol, dispatch gives the frame of the answer, or None for a one-way request."""
        peer = Peer()
        table = ResponderTable(Owner())
        frame = table.dispatch(RemotingCommand(91_003, 5), peer.channel)
        assert isinstance(frame, bytes)
        self.assertEqual(decode_commands(frame)[0].opaque, 5)
        self.assertIsNone(table.dispatch(RemotingCommand(91_003, 5, ONEWAY), peer.channel))
