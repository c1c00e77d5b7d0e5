"""
The table from request codes to responders.

A responder is a method decorated with :func:`responds_to`; a :class:`ResponderTable` collects those of its owners,
decodes requests for them, encodes their replies and turns every error into a response. An exception in a responder is
answered with code 1 and never closes a connection.

Java: NettyRemotingAbstract#processRequestCommand, NettyRequestProcessor
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from types import CoroutineType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.remoting.stats import RequestStats
from rmq.runtime.disk.error import DiskError
from rmq.wire import fastjson
from rmq.wire.codes import ResponseCode
from rmq.wire.command import ONEWAY, RemotingCommand, encode_reply
from rmq.wire.contract import Contract
from rmq.wire.extfields import BadField, HeaderCodec, header_codec
from rmq.wire.frames import ProtocolError

if TYPE_CHECKING:
    from rmq.remoting.channel import Channel

H = TypeVar("H")
B = TypeVar("B")

_NO_EXT: Mapping[str, str] = MappingProxyType({})

#: replies to one chunk of input are written at the latest at this length
MAX_COLLECTED_BYTES = 256 * 1024
#: longest remark of our own refusals, in characters
MAX_REMARK_CHARS = 2048
#: the remark of SYSTEM_BUSY when too many requests wait for their answers.  Java: NettyRemotingAbstract
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"


class Refuse(Exception):
    """
    Raised by a responder to answer with another response code than 0.

    ``ext`` and ``header`` go into the answer's extFields; most refusals have neither.
    """

    def __init__(
        self, code: int, remark: str, ext: Mapping[str, str] = _NO_EXT, header: msgspec.Struct | None = None
    ) -> None:
        super().__init__(f"{code}: {remark}")
        self.code = code
        self.remark = remark
        self.ext = ext
        self.header = header


class Reply(msgspec.Struct, frozen=True):
    """
    An answer. A Struct ``body`` is written as fastjson's JSON, bytes as they are.

    extFields are those of ``header`` and then ``ext``; there are none at all without either.
    """

    header: msgspec.Struct | None = None
    body: msgspec.Struct | bytes | None = None
    code: int = 0
    remark: str | None = None
    ext: Mapping[str, str] = _NO_EXT


class NoReply:
    """The type of :data:`NO_REPLY`."""


#: returned by a responder that never answers
NO_REPLY = NoReply()


class Request(Generic[H, B]):
    """One request as its responder sees it; ``header`` and ``body`` are None where the contract has none."""

    __slots__ = ("body", "channel", "command", "header")

    def __init__(self, header: H, body: B, command: RemotingCommand, channel: Channel) -> None:
        self.header = header
        self.body = body
        self.command = command
        self.channel = channel


Outcome = Reply | NoReply | None
Answer = Outcome | Deferred[Reply] | Deferred[Outcome] | Coroutine[Any, Any, Outcome]
#: the result of a dispatched command: a frame to write, a Deferred of it (None: no reply), or None
Written = bytes | Deferred[bytes | None] | None
Guard = Callable[[RemotingCommand, "Channel"], None]
#: (data, position, code, channel) -> where the request with that code at ``position`` ends, if a guard lets it pass;
#: else, and when it is not whole, ``position``. Never raises
Admitted = Callable[[bytes, int, int, "Channel"], int]


class ChunkLane(Protocol):
    """
    Answers requests of one code in the bytes as they were received, before they are cut into frames.

    Called with what was received (it begins with a frame), the position of a frame in it, a list for the answers and
    the channel. Adds the replies, in any pieces and at most about MAX_COLLECTED_BYTES, and returns the position after
    the answered requests and their number. It stops before the first frame that is not for it or not whole. It answers
    requests with the code :attr:`code` only; it adds nothing for a one-way request.
    """

    code: int

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel, /) -> tuple[int, int]: ...


class WholeLane(ChunkLane, Protocol):
    """A lane with a faster method for chunks that hold only requests for it."""

    def whole(self, data: bytes, /) -> tuple[bytes, int] | None:
        """Return the replies to all requests in ``data``, and their number; None, with nothing done, for other data."""
        ...


class TurnLane(ChunkLane, Protocol):
    """
    A lane that answers the chunks of several connections together, those that came in one turn of the reactor.

    ``together(chunks)`` takes (bytes, channel) of each and returns the replies for each and how many requests they
    answer; None, with nothing done, for a chunk that has anything but ordinary requests for the lane. It is None where
    the lane cannot.
    """

    together: Callable[[list[tuple[bytes, Channel]]], tuple[list[bytes | None], int]] | None


class GuardedLane:
    """
    A lane behind a guard: it gets the requests that the guard lets pass.

    All others take the ordinary way, which tells the peer why. Lanes decline a request that names something twice or
    not plainly, so that what the guard has read is what they do.
    """

    def __init__(self, lane: ChunkLane, admitted: Admitted) -> None:
        self.lane: Any = lane
        self.code = lane.code
        self._admitted_one = admitted
        #: see :class:`TurnLane`
        self.together = None if getattr(lane, "together", None) is None else self._together

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel, /) -> tuple[int, int]:
        """See :class:`ChunkLane`."""
        stop = self._admitted(data, position, channel)
        if stop == position:
            return position, 0
        result: tuple[int, int] = self.lane(data if stop == len(data) else data[:stop], position, answers, channel)
        return result

    def _together(self, chunks: list[tuple[bytes, Channel]]) -> tuple[list[bytes | None], int]:
        passed = [at for at, (data, channel) in enumerate(chunks) if self._admitted(data, 0, channel) == len(data)]
        found, count = self.lane.together([chunks[at] for at in passed])
        answers: list[bytes | None] = [None] * len(chunks)
        for at, answer in zip(passed, found, strict=True):
            answers[at] = answer
        return answers, count

    def _admitted(self, data: bytes, position: int, channel: Channel) -> int:
        """Return where the whole requests for this lane end that may pass."""
        while (stop := self._admitted_one(data, position, self.code, channel)) != position:
            position = stop
        return position


_Self = TypeVar("_Self")
_Answer = TypeVar("_Answer", bound=Answer)
_CONTRACTS = "__rmq_contracts__"


def responds_to(
    contract: Contract[H, B, Any, Any],
) -> Callable[[Callable[[_Self, Request[H, B]], _Answer]], Callable[[_Self, Request[H, B]], _Answer]]:
    """
    Register a method as the responder of ``contract``; may be stacked for several contracts.

    The method returns a :class:`Reply`, None (success, nothing to say), :data:`NO_REPLY`, a Deferred or a coroutine of
    one of them; or raises :class:`Refuse`.
    """

    def register(
        method: Callable[[_Self, Request[H, B]], _Answer],
    ) -> Callable[[_Self, Request[H, B]], _Answer]:
        contracts = getattr(method, _CONTRACTS, ())
        setattr(method, _CONTRACTS, (*contracts, contract))
        return method

    return register


class WaitingLine:
    """
    Requests of some codes whose answers take longer than a turn: at most ``limit`` of them wait.

    Java: the queue in front of a pool of threads
    """

    __slots__ = ("limit", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0

    def leave(self, result: Any) -> Any:
        """Count one less; for Deferred.addBoth."""
        self.waiting -= 1
        return result


class _Responder:
    """One registered method and how to read a request for it."""

    __slots__ = ("body", "codec", "contract", "method")

    def __init__(self, contract: Contract[Any, Any, Any, Any], method: Callable[[Request[Any, Any]], Answer]) -> None:
        self.contract = contract
        self.method = method
        self.codec: HeaderCodec[Any] | None = None if contract.header is None else header_codec(contract.header)
        self.body = contract.body

    def call(self, command: RemotingCommand, channel: Channel) -> Answer:
        header = None if self.codec is None else command.read_header(self.codec)
        kind = self.body
        if kind is None:
            body: Any = None
        elif kind is bytes:
            body = command.body or b""
        elif command.body:
            body = fastjson.decode(command.body, kind)
        else:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"request {command.code} lacks its body, a {kind.__name__}")
        return self.method(Request(header, body, command, channel))


class ResponderTable:
    """
    The responders of one listening port, or of one client for requests of servers.

    ``refused`` maps codes that are deliberately not answered to the reason for the remark. A code in both places, or
    answered twice, is a ValueError.
    """

    _log = Logger()

    def __init__(
        self, *owners: object, refused: Mapping[Any, str] = MappingProxyType({}), stats: RequestStats | None = None
    ) -> None:
        self._refused = {int(code): why for code, why in refused.items()}
        self._responders: dict[int, _Responder] = {}
        #: by request code, tried before anything else; replaced and never changed; see :meth:`add_chunk_lane`
        self.chunk_lanes: Mapping[int, ChunkLane] = {}
        #: the lanes that were added, and what guarded requests get instead
        self._lanes: dict[int, ChunkLane] = {}
        self._guarded_lanes: dict[int, ChunkLane] = {}
        #: by request code the remark of SYSTEM_BUSY, see :meth:`refuse`
        self._busy: Mapping[int, str] = {}
        self._lines: dict[int, WaitingLine] = {}
        self._fast_lanes: Any = None
        #: statistics: the protocol counts requests here, the table refusals
        self.stats = RequestStats() if stats is None else stats
        self._guard: Guard | None = None
        #: the codes that the guard checks, None for all
        self._guarded: frozenset[int] | None = frozenset()
        self._admitted: Admitted | None = None
        for owner in owners:
            for contract, method in _methods(owner):
                self._add(contract, method)

    def guard_with(
        self, guard: Guard, codes: Collection[int] | None = None, *, admitted: Admitted | None = None
    ) -> None:
        """
        Call ``guard`` before each request, or only before those of ``codes``; it raises :class:`Refuse`.

        ``admitted`` says which requests it would let pass. Without it guarded requests have no chunk lane: a lane
        answers before the guard.
        """
        self._admitted, self._guarded_lanes = admitted, {}
        if codes is None:
            self._guarded = None
            self._guard = guard
        else:
            self._guarded = guarded = frozenset(map(int, codes))

            def some(command: RemotingCommand, channel: Channel) -> None:
                if command.code in guarded:
                    guard(command, channel)

            self._guard = some
        self.refuse(self._busy)

    def refuse(self, busy: Mapping[int, str]) -> None:
        """
        Answer requests of these codes with SYSTEM_BUSY and the remark, until the next call.

        Java: NettyRemotingAbstract#processRequestCommand, where rejectRequest is asked
        """
        self._busy = busy
        for code, lane in self._lanes.items():
            if self._admitted is not None and self._is_guarded(code) and code not in self._guarded_lanes:
                self._guarded_lanes[code] = GuardedLane(lane, self._admitted)
        open_lanes = {code: lane for code, lane in self._lanes.items() if not self._is_guarded(code)}
        lanes = open_lanes | self._guarded_lanes
        self.chunk_lanes = {code: lane for code, lane in lanes.items() if code not in busy}

    def limit_waiting(self, line: WaitingLine, codes: Collection[int]) -> None:
        """Answer ``codes`` with SYSTEM_BUSY while as many of their requests wait for answers as ``line`` allows."""
        self._lines.update(dict.fromkeys(map(int, codes), line))

    def line_of(self, code: int) -> WaitingLine | None:
        """Return where requests of a code wait, which a lane counts, too; None where nothing limits them."""
        return self._lines.get(code)

    def codes(self) -> frozenset[int]:
        """Return the request codes that are answered."""
        return frozenset(self._responders)

    def without(self, *codes: int) -> ResponderTable:
        """
        Return a table like this one without ``codes``; for the VIP port, which has no pulls.

        Both count into the same :attr:`stats`.
        """
        table = ResponderTable(refused=self._refused, stats=self.stats)
        table._guard, table._guarded, table._admitted = self._guard, self._guarded, self._admitted
        table._responders = {code: entry for code, entry in self._responders.items() if code not in codes}
        table._lanes = {code: lane for code, lane in self._lanes.items() if code not in codes}
        table._lines = self._lines
        table.refuse(self._busy)
        return table

    def add_chunk_lane(self, lane: ChunkLane) -> None:
        """
        Try ``lane`` on requests of its code before they are cut into frames.

        Where they are guarded it gets those that the guard admits, see :meth:`guard_with`.
        """
        self._lanes[lane.code] = lane
        self._guarded_lanes.pop(lane.code, None)
        self.refuse(self._busy)

    def added_lane(self, code: int) -> Any:
        """Return the lane that was added for a code, as it was; None when there is none."""
        return self._lanes.get(code)

    def fast_lanes(self, make: Callable[[ResponderTable], Any]) -> Any:
        """Return the result of ``make(table)`` for the fast paths of all connections; made once."""
        if self._fast_lanes is None:
            self._fast_lanes = make(self)
        return self._fast_lanes

    def _is_guarded(self, code: int) -> bool:
        return self._guarded is None or code in self._guarded

    def dispatch(self, command: RemotingCommand, channel: Channel) -> Written:
        """
        Answer a request; never raises.

        Returns the frame of the answer, a Deferred of it that never fails (None: no answer), or None for no answer.
        """
        try:
            if self._busy and command.code in self._busy:
                raise Refuse(ResponseCode.SYSTEM_BUSY, self._busy[command.code])
            if self._guard is not None:
                self._guard(command, channel)
            written: Written = self._ordinary(command, channel)
        except Exception as error:  # noqa: BLE001 - one responder's fault is one request's answer
            written = self._failed(error, command)
        if command.flag & ONEWAY:
            return None
        return written

    def finish(self, command: RemotingCommand, respond: Callable[[], Answer]) -> Written:
        """
        Return what ``respond`` answers to a request that a lane has taken, as :meth:`dispatch` does.

        The guard has let it pass when it came, and flow control refuses only what comes.
        """
        try:
            return self._written(command, respond())
        except Exception as error:  # noqa: BLE001 - as in dispatch
            return self._failed(error, command)

    def _add(self, contract: Contract[Any, Any, Any, Any], method: Callable[[Request[Any, Any]], Answer]) -> None:
        code = int(contract.code)
        if code in self._responders:
            raise ValueError(f"request code {code} is answered by {self._responders[code].method} and by {method}")
        if code in self._refused:
            raise ValueError(f"request code {code} is refused, yet answered by {method}")
        self._responders[code] = _Responder(contract, method)

    def _ordinary(self, command: RemotingCommand, channel: Channel) -> Written:
        responder = self._responders.get(command.code)
        if responder is None:
            self.stats.refused(command.code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            return encode_reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, self._unsupported(command.code))
        line = self._lines.get(command.code)
        if line is not None and line.waiting >= line.limit:
            raise Refuse(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        written = self._written(command, responder.call(command, channel))
        if line is not None and isinstance(written, Deferred):
            line.waiting += 1
            written.addBoth(line.leave)
        return written

    def _written(self, command: RemotingCommand, answer: Answer) -> Written:
        if answer.__class__ is Reply or answer is None or answer is NO_REPLY:
            return self._write(command, answer)
        if isinstance(answer, CoroutineType):
            answer = Deferred.fromCoroutine(answer)
        if not isinstance(answer, Deferred):
            raise TypeError(f"the responder of {command.code} returned {answer!r}")
        later: Deferred[Any] = answer
        return later.addCallback(self._write_late, command).addErrback(self._failed_late, command)

    def _write(self, command: RemotingCommand, answer: Outcome) -> bytes | None:
        frame = _frame(command, answer)
        if isinstance(answer, Reply) and answer.code:
            self.stats.refused(command.code, int(answer.code))
        return frame

    def _write_late(self, answer: Outcome, command: RemotingCommand) -> bytes | None:
        return self._write(command, answer)

    def _unsupported(self, code: int) -> str:
        why = self._refused.get(code)
        return f" request type {code} not supported" + (f": {why}" if why else "")

    def _failed_late(self, failure: Failure, command: RemotingCommand) -> bytes | None:
        return self._failed(failure.value or RuntimeError(str(failure)), command, failure)

    def _failed(self, error: BaseException, command: RemotingCommand, failure: Failure | None = None) -> bytes | None:
        """Return the reply to an exception; log internal errors."""
        ext: dict[str, str] | None = None
        code = int(ResponseCode.SYSTEM_ERROR)
        if isinstance(error, Refuse):
            code, remark = error.code, error.remark
            ext = _ext(error.header, error.ext)
        elif isinstance(error, BadField):
            remark = error.text
        elif isinstance(error, fastjson.JsonError):
            remark = f"the body of request {command.code} cannot be read: {error}"
        elif isinstance(error, DiskError):
            # A full disk is no bug of ours: the line says all, a traceback for each request would hide it.
            remark = str(error)
            self._log.error("request {code} refused: {remark}", code=command.code, remark=remark)
        else:
            remark = f"{type(error).__name__}: {error}"
            self.stats.bugs[command.code] = self.stats.bugs.get(command.code, 0) + 1
            self._log.failure(
                "request {code} (opaque {opaque}) failed", failure, code=command.code, opaque=command.opaque
            )
        self.stats.refused(command.code, int(code))
        if command.flag & ONEWAY:
            self._log.debug("one-way request {code} got no answer: {remark}", code=command.code, remark=remark)
            return None
        return encode_reply(command, code, _presentable(remark), ext)


def _methods(owner: object) -> Iterator[tuple[Contract[Any, Any, Any, Any], Callable[[Request[Any, Any]], Answer]]]:
    """Yield each contract of the decorated methods of ``owner``, with the bound method."""
    for name in dir(type(owner)):
        for contract in getattr(getattr(type(owner), name), _CONTRACTS, ()):
            yield contract, getattr(owner, name)


def _presentable(remark: str) -> str:
    """Return a remark that is not too long and has a UTF-8 form."""
    return remark[:MAX_REMARK_CHARS].encode("utf-8", "replace").decode()


def _ext(header: msgspec.Struct | None, extra: Mapping[str, str]) -> dict[str, str] | None:
    if header is None:
        return dict(extra) if extra else None
    fields = header_codec(header.__class__).encode(header)
    if extra:
        fields.update(extra)
    return fields


def _frame(command: RemotingCommand, answer: Outcome) -> bytes | None:
    """Return the frame of an answer; a frame that would be too long is refused in its place."""
    if isinstance(answer, NoReply):
        return None
    if answer is None:
        return encode_reply(command)
    if not isinstance(answer, Reply):
        raise TypeError(f"the responder of {command.code} gave {answer!r}")
    body = answer.body
    if body is None:
        body = b""
    elif not isinstance(body, bytes):
        body = fastjson.encode(body)
    try:
        return encode_reply(command, answer.code, answer.remark, _ext(answer.header, answer.ext), body)
    except ProtocolError as error:
        raise Refuse(ResponseCode.SYSTEM_ERROR, f"the answer is too long: {error}") from error
