"""What goes wrong on purpose: requests that are refused, answered late, or never answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmq.broker.topics import AUTO_CREATE_TOPIC_KEY_TOPIC
from rmq.remoting.channel import Channel
from rmq.remoting.responders import ResponderTable, Written
from rmq.runtime.clock import steady_ms
from rmq.store.messages import PutStatus, Replication
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand, encode_reply

Answer = Callable[[ResponderTable, RemotingCommand, Channel], Written]

#: names that stand for all the codes with which clients ask the same
FAMILIES = {
    "SEND_MESSAGE": (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
    "PULL_MESSAGE": (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
}
PULLS = frozenset(map(int, FAMILIES["PULL_MESSAGE"]))


def codes_of(request: str | int) -> frozenset[int]:
    """Return the request codes of a name in `RequestCode`, or a number; ValueError for a name that is none."""
    if isinstance(request, int):
        return frozenset((request,))
    if request not in FAMILIES and request not in RequestCode.__members__:
        raise ValueError(f"there is no request {request!r}; rmq.wire.codes.RequestCode has their names")
    return frozenset(map(int, FAMILIES.get(request, ()) or (RequestCode[request],)))


def response_code(code: str | int) -> int:
    """Return a response code by its name in `ResponseCode`, or the number itself."""
    if isinstance(code, int):
        return code
    if code not in ResponseCode.__members__:
        raise ValueError(f"there is no response code {code!r}; rmq.wire.codes.ResponseCode has their names")
    return int(ResponseCode[code])


def topic_of(command: RemotingCommand) -> str | None:
    """Return the topic of a request; SEND_MESSAGE_V2 and batches have it under ``b``."""
    return command.ext_fields.get("topic") or command.ext_fields.get("b")


@attrs.define(eq=False, kw_only=True)
class Fault:
    """
    Something that goes wrong until it is undone, or has happened ``times`` times; ``count`` says how often it did.

    ``node``, ``topics`` and ``group`` None: all of them.
    """

    codes: frozenset[int] = frozenset()
    node: str | None = None
    topics: frozenset[str] | None = None
    group: str | None = None
    times: int | None = None
    #: None: such requests are counted and answered as ever
    answer: Answer | None = None
    #: the brokers that have no room on their disk
    full: frozenset[str] = frozenset()
    #: whether no slave acknowledges
    holds: bool = False
    #: what is to be done after its end
    undo: Callable[[], object] = lambda: None
    count: int = 0

    @property
    def is_spent(self) -> bool:
        return self.times is not None and self.count >= self.times

    def concerns(self, node: str, command: RemotingCommand) -> bool:
        """Tell whether it changes the answer to a request."""
        return (
            command.code in self.codes
            and not self.is_spent
            and self.node in (None, node)
            and (self.topics is None or topic_of(command) in self.topics)
            and self.group in (None, command.ext_fields.get("consumerGroup"))
        )


class Faults:
    """
    The faults of one reactor, by number. What waits because of them goes on at :meth:`undo_all`.

    ``nodes`` are the names of all servers, also of those elsewhere.
    """

    def __init__(self, clock: IReactorTime, nodes: Sequence[str]) -> None:
        self.clock = clock
        self._nodes = nodes
        self._active: dict[int, Fault] = {}
        self._counts: dict[int, int] = {}
        self._last = 0
        self._waiting: dict[IDelayedCall, tuple[Deferred[Any], object]] = {}

    def add(self, fault: Fault) -> int:
        """Let it begin, and return its number; ValueError for a node that does not exist."""
        if fault.node is not None and fault.node not in self._nodes:
            raise ValueError(f"there is no server {fault.node!r}, but {', '.join(self._nodes)}")
        if fault.times is not None and not (isinstance(fault.times, int) and fault.times > 0):
            raise ValueError(f"times is a whole number above 0, not {fault.times!r}")
        self._last += 1
        self._active[self._last] = fault
        return self._last

    def count(self, fault: int) -> int:
        """Return how often it has happened, also after its end."""
        found = self._active.get(fault)
        return self._counts.get(fault, 0) if found is None else found.count

    def undo(self, fault: int) -> int:
        """End it, and return how often it has happened."""
        found = self._active.pop(fault, None)
        if found is not None:
            self._counts[fault] = found.count
            found.undo()
        return self.count(fault)

    def undo_all(self) -> None:
        """End all of them."""
        for number in list(self._active):
            self.undo(number)
        for call, (deferred, result) in list(self._waiting.items()):
            call.cancel()
            deferred.callback(result)
        self._waiting.clear()

    def dispatch(self, node: str, inner: ResponderTable, command: RemotingCommand, channel: Channel) -> Written:
        """Answer a request of a node, by the first fault that concerns it and has an answer, else as ever."""
        answer: Answer | None = None
        for fault in self._active.values():
            if (answer is None or fault.answer is None) and fault.concerns(node, command):
                fault.count += 1
                answer = answer or fault.answer
        return inner.dispatch(command, channel) if answer is None else answer(inner, command, channel)

    def is_full(self, node: str) -> bool:
        """Tell whether the disk of a broker is full."""
        return any(node in fault.full for fault in self._active.values())

    def holding(self) -> Fault | None:
        """Return the first fault because of which no slave acknowledges now."""
        return next((fault for fault in self._active.values() if fault.holds and not fault.is_spent), None)

    def later(self, seconds: float, result: Any = None) -> Deferred[Any]:
        """Return a Deferred that fires after so many seconds, or at the end of all faults."""

        def fire() -> None:
            del self._waiting[call]
            deferred.callback(result)

        deferred: Deferred[Any] = Deferred()
        call = self.clock.callLater(seconds, fire)
        self._waiting[call] = deferred, result
        return deferred

    # what tests ask for: each returns the number of the fault

    def refuse(
        self,
        request: str | int,
        code: str | int = "SYSTEM_BUSY",
        times: int | None = None,
        topic: str | None = None,
        node: str | None = None,
    ) -> int:
        """Answer a request with another response code; nothing is done."""
        answer = self.refused(response_code(code), "[TEST] refused by a test")
        return self._answered(request, answer, times=times, topic=topic, node=node)

    def drop_answers(
        self, request: str | int, times: int | None = None, topic: str | None = None, node: str | None = None
    ) -> int:
        """Do what is asked, and never answer."""
        return self._answered(request, self.dropped, times=times, topic=topic, node=node)

    def delay_answers(
        self,
        request: str | int,
        seconds: float,
        times: int | None = None,
        topic: str | None = None,
        node: str | None = None,
    ) -> int:
        """Do what is asked, and answer later."""
        if not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"seconds is a number, not {seconds!r}")
        return self._answered(request, self.delayed(seconds), times=times, topic=topic, node=node)

    def _answered(
        self,
        request: str | int,
        answer: Answer,
        *,
        times: int | None = None,
        topic: str | None = None,
        node: str | None = None,
    ) -> int:
        topics = None if topic is None else frozenset((topic,))
        return self.add(Fault(codes=codes_of(request), answer=answer, times=times, topics=topics, node=node))

    def forget_route(self, topic: str) -> int:
        """The NameServer does not know a topic, nor the one from which a send would create it again."""
        answer = self.refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server: {topic}")
        topics = frozenset((topic, AUTO_CREATE_TOPIC_KEY_TOPIC))
        return self.add(Fault(codes=codes_of("GET_ROUTEINFO_BY_TOPIC"), answer=answer, topics=topics))

    def cut_after(self, request: str | int, times: int | None = None, topic: str | None = None) -> int:
        """Do what is asked, and close the connection in place of an answer."""
        return self._answered(request, self.cut, times=times, topic=topic)

    # answers

    def refused(self, code: int, remark: str) -> Answer:
        """Return the answer of a server that does nothing but refuse."""

        def answer(inner: ResponderTable, command: RemotingCommand, channel: Channel) -> Written:
            return None if command.is_oneway else encode_reply(command, code, remark)

        return answer

    def dropped(self, inner: ResponderTable, command: RemotingCommand, channel: Channel) -> Written:
        """Do what was asked, and never answer."""
        written = inner.dispatch(command, channel)
        return written.addCallback(lambda _: None) if isinstance(written, Deferred) else None

    def cut(self, inner: ResponderTable, command: RemotingCommand, channel: Channel) -> Written:
        """Do what was asked, and close the connection."""
        written = self.dropped(inner, command, channel)
        channel.close("cut by a test")
        return written

    def delayed(self, seconds: float) -> Answer:
        """Return the answer of a server that is slow to write it."""

        def answer(inner: ResponderTable, command: RemotingCommand, channel: Channel) -> Written:
            written = inner.dispatch(command, channel)
            return self.later(seconds).addCallback(lambda _: written)

        return answer


class FaultTable(ResponderTable):
    """
    The responders of a node, behind the faults.

    It has no lanes, so every request passes here; lanes answer the same, faster. Of a queue in ``emptied``, by topic
    and queue id, pulls get what is behind its offset.
    """

    def __init__(
        self, node: str, inner: ResponderTable, faults: Faults, emptied: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        super().__init__(stats=inner.stats)
        self._emptied = {} if emptied is None else emptied
        self._node = node
        self._inner = inner
        self._faults = faults

    def codes(self) -> frozenset[int]:
        return self._inner.codes()

    def dispatch(self, command: RemotingCommand, channel: Channel) -> Written:
        if self._emptied and command.code in PULLS:
            end = self._end_of_emptied(command.ext_fields)
            if end is not None:
                return _go_on(command, end)
        return self._faults.dispatch(self._node, self._inner, command, channel)

    def _end_of_emptied(self, fields: Mapping[str, str]) -> int | None:
        """Return where a pull goes on that asks for what was emptied; None for any other, the responder's to judge."""
        try:
            end = self._emptied.get((fields["topic"], int(fields["queueId"])), 0)
            return end if int(fields["queueOffset"]) < end else None
        except (KeyError, ValueError):
            return None


def _go_on(command: RemotingCommand, offset: int) -> bytes:
    """
    Answer a pull as if its filter matched nothing before ``offset``: the client pulls there at once.

    A Java client whose offset is "moved" (code 21) waits for half a minute.
    """
    where = {"nextBeginOffset": offset, "minOffset": offset, "maxOffset": offset, "suggestWhichBrokerId": 0}
    fields = {name: str(value) for name, value in where.items()}
    return encode_reply(command, ResponseCode.PULL_RETRY_IMMEDIATELY, "emptied by a test", fields)


class HeldReplication:
    """Replication of a master whose slaves may be held: then nobody acknowledges before the deadline."""

    def __init__(self, inner: Replication, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        fault = self._faults.holding()
        if fault is None:
            return self._inner.wait_for_slaves(next_offset, deadline_ms)
        fault.count += 1
        left_s = max(0, deadline_ms - steady_ms(self._faults.clock)) / 1000
        return self._faults.later(left_s, PutStatus.FLUSH_SLAVE_TIMEOUT)
