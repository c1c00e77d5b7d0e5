"""
The fast path of replies to clients' requests (324, 325): pushed, then stored and answered when the client has taken it.

The reference is :meth:`rmq.broker.responders.replies.ReplyResponder.send_reply`; the lanes push, store and answer the
same, or decline the request without side effects. They need the compiled module `rmq.store._record`.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.lanes import SendLane, Waits, answers_at_once
from rmq.broker.responders.replies import PUSH_TIMEOUT_MS, ReplyResponder
from rmq.broker.responders.sending import SendResponder
from rmq.broker.sessions import ProducerGroups
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import TopicTable
from rmq.errors import RequestFailed
from rmq.remoting.channel import Channel
from rmq.remoting.responders import Request, ResponderTable
from rmq.runtime.clock import now_ms
from rmq.store.store import MessageStore
from rmq.wire.api.sending import PUSH_REPLY_MESSAGE_TO_CLIENT
from rmq.wire.codes import MQ_VERSION, RequestCode
from rmq.wire.command import RemotingCommand, decode_commands
from rmq.wire.compiled import load
from rmq.wire.exchange import read_response
from rmq.wire.frames import MAX_FRAME_BYTES, encode_frame

_compiled: Any = load("rmq.store._record")

#: what a push has more than the reply; such a reply is left to the responder
_MORE_BYTES = 1024
_TAIL = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % MQ_VERSION


def add_reply_lanes(
    table: ResponderTable,
    replies: ReplyResponder,
    responder: SendResponder,
    settings: Settings,
    clock: IReactorTime,
    store: MessageStore,
    topics: TopicTable,
    producers: ProducerGroups,
    stats: BrokerStats,
) -> None:
    """Add the lanes to a table that has those of sends, unless replies wait for fsync or slaves."""
    config = settings.setup.store
    if table.added_lane(SendLane.code) is None or not answers_at_once(config):
        return
    for stores in _StoreReplies, _StoreLongNames:
        kept = stores(responder, settings, store, topics, stats, None)
        table.add_chunk_lane(ReplyLane(table, replies, settings, clock, producers, kept))


class _StoreReplies(SendLane):
    """Store replies (325); not in a table."""

    code = int(RequestCode.SEND_REPLY_MESSAGE_V2)

    def admits(self, name: bytes, queue_id: int) -> bool:
        """Return whether messages to that queue are accepted without further checks, and the queue is there."""
        return self._is_open() and (self._has(name, queue_id) or (self.learn(name) and self._has(name, queue_id)))

    def _has(self, name: bytes, queue_id: int) -> bool:
        topic = self._known.get(name)
        return topic is not None and queue_id < len(topic.queues) and topic.queues[queue_id] is not None


class _StoreLongNames(_StoreReplies):
    """Store replies whose fields have long names (324)."""

    code = int(RequestCode.SEND_REPLY_MESSAGE)


class ReplyLane(Waits):
    """Push the replies at the front of received bytes; those of a client that is not here are left to the responder."""

    _log = Logger()

    def __init__(
        self,
        table: ResponderTable,
        replies: ReplyResponder,
        settings: Settings,
        clock: IReactorTime,
        producers: ProducerGroups,
        stores: _StoreReplies,
    ) -> None:
        self.code = stores.code
        self.table = table
        self.replies = replies
        self.clock = clock
        self.stores = stores
        #: replies that were pushed and not yet answered
        self.waiting = 0
        #: those that were acknowledged in this turn
        self._ready: list[_Pushed] = []
        self._settings = settings
        self._producers = producers

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        if self._settings.setup.broker.store_reply_message_enable:
            while position < len(data) and self.has_room(1):
                stop = self._push(data, position, channel)
                if not stop:
                    break
                position = stop
        return position, 0

    def _push(self, data: bytes, position: int, channel: Channel) -> int:
        """Push the reply at a position; return where it ends, 0 for one that is not ordinary."""
        time_ms = now_ms(self.clock)
        found = _compiled.read_reply(data, position, self.code, time_ms)
        if found is None:
            return 0
        stop, body, client_id, topic, queue_id, fields = found
        requester = self._producers.find_client(client_id)
        link: Any = None if requester is None else requester.channel
        if link is None or stop - position > MAX_FRAME_BYTES - _MORE_BYTES:
            return 0
        if not self.stores.admits(topic, queue_id):
            return 0
        setup = self._settings.setup
        head = b'{"code":%d,"extFields":{%b,"bornHost":"%b","storeHost":"%b:%d","storeTimestamp":"%d"},"flag":0,' % (
            PUSH_REPLY_MESSAGE_TO_CLIENT.code,
            fields,
            channel.peer.encode(),
            setup.store_address.encode(),
            setup.server.listen_port,
            time_ms,
        )

        def pushed(opaque: int) -> bytes:
            return encode_frame(0, b'%b"language":"JAVA","opaque":%d%b' % (head, opaque, _TAIL), data[body:stop])

        self.wait(1)
        reply = _Pushed(self, data[position:stop], client_id, link.peer, channel)
        link.call(PUSH_REPLY_MESSAGE_TO_CLIENT.code, pushed, reply, timeout_ms=PUSH_TIMEOUT_MS)
        return int(stop)

    def acknowledged(self, reply: _Pushed) -> None:
        """Store and answer a reply, with what else is acknowledged in this turn."""
        if not self._ready:
            self.clock.callLater(0, self._store)
        self._ready.append(reply)

    def _store(self) -> None:
        ready, self._ready = self._ready, []
        try:
            answers, _ = self.stores.together([(reply.frame, reply.channel) for reply in ready])
        except Exception as ours:  # noqa: BLE001 - costs these connections, not the reactor's other ones
            self._log.failure("{count} replies could not be stored; their connections are closed", count=len(ready))
            for reply in ready:
                reply.broken(ours)
            return
        for reply, answer in zip(ready, answers, strict=True):
            reply.stored(answer)


class _Pushed:
    """A reply whose client has not acknowledged it yet."""

    __slots__ = ("_began_s", "_client", "_client_id", "_lane", "channel", "frame")

    def __init__(self, lane: ReplyLane, frame: bytes, client_id: str, client: str, channel: Channel) -> None:
        self.frame = frame
        self.channel = channel
        self._lane = lane
        self._client_id = client_id
        self._client = client
        self._began_s = channel.last_active_s

    def callback(self, answer: RemotingCommand) -> None:
        """See :class:`rmq.remoting.channel.Done`."""
        try:
            if answer.code:
                read_response(PUSH_REPLY_MESSAGE_TO_CLIENT, answer, self._client)
        except RequestFailed as error:
            self.errback(error)
        else:
            self._lane.acknowledged(self)

    def errback(self, error: Exception) -> None:
        """Store it, and answer that it was not taken."""
        self._respond(self._lane.replies.untaken(self._client_id, self.channel.peer, error))

    def stored(self, answer: bytes | None) -> None:
        """Answer it; None leaves that, and storing it, to the responder."""
        if answer is None:
            self._respond(None)
        else:
            self._end(answer)

    def broken(self, error: Exception) -> None:
        """Close the connection, as for any lane that fails."""
        self.channel.close(f"internal error: {error}")
        self._end(None)

    def _respond(self, trouble: str | None) -> None:
        """Leave the rest to the responder."""
        (command,) = decode_commands(self.frame)
        request: Request[None, bytes] = Request(None, command.body or b"", command, self.channel)
        written = self._lane.table.finish(command, lambda: self._lane.replies.finish(request, trouble))
        if isinstance(written, Deferred):
            written.addCallback(self._end)
        else:
            self._end(written)

    def _end(self, answer: bytes | None) -> None:
        lane = self._lane
        lane.wait(-1)
        if answer is not None:
            self.channel.write(answer)
        lane.table.stats.observe(lane.code, lane.clock.seconds() - self._began_s)
