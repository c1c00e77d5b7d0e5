"""
Replies of request-reply: codes 324 and 325, pushed to the requester with 326.

Java: ReplyMessageProcessor
"""

from __future__ import annotations

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.refusals import STORED_CODES
from rmq.broker.responders.sending import SendResponder, any_send, read_header
from rmq.broker.sessions import ProducerGroups
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.errors import RequestFailed
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms
from rmq.store.messages import Message, PutResult
from rmq.store.store import MessageStore
from rmq.wire.api.sending import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    ReplyMessageHeader,
    SendMessageHeader,
    SendMessageReply,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.record import (
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
)

#: so long the requester may take to acknowledge a reply.  Java: Broker2Client#callClient
PUSH_TIMEOUT_MS = 10_000


@attrs.define(eq=False)
class ReplyResponder:
    """Push a reply to the producer that sent the request, then store it if the configuration says so."""

    _log = Logger()

    _settings: Settings
    _clock: IReactorTime
    _store: MessageStore
    _stats: BrokerStats
    _producers: ProducerGroups
    _sends: SendResponder

    @responds_to(any_send(SEND_REPLY_MESSAGE))
    @responds_to(any_send(SEND_REPLY_MESSAGE_V2))
    async def send_reply(self, request: Request[None, bytes]) -> Reply:
        header, ext = read_header(request.command), self._sends.ext
        try:
            _, queue_id = self._sends.admit(header, request.channel.peer)
        except Refuse as refusal:
            raise Refuse(refusal.code, refusal.remark, ext=ext) from None
        return await self._finish(header, request, queue_id, await self._push(header, request))

    async def finish(self, request: Request[None, bytes], trouble: str | None) -> Reply:
        """Answer a reply to a queue that it names after a lane has pushed it; ``trouble`` is from :meth:`untaken`."""
        header = read_header(request.command)
        return await self._finish(header, request, header.queue_id, trouble)

    def untaken(self, client_id: str, replier: str, error: Exception) -> str:
        """Log why the requester has not acknowledged a reply; return the remark of the answer to the replier."""
        self._log.warn(
            "a reply from {replier} was not taken by client {client_id}: {error}",
            replier=replier,
            client_id=client_id,
            error=str(error),
        )
        return f"push reply message to {client_id}fail."

    async def _finish(
        self, header: SendMessageHeader, request: Request[None, bytes], queue_id: int, trouble: str | None
    ) -> Reply:
        """Store a reply that was pushed, if the configuration says so, and answer it."""
        reply = None if trouble else SendMessageReply(msg_id="0", queue_id=queue_id, queue_offset=0)
        if self._settings.setup.broker.store_reply_message_enable:
            result = await self._keep(header, request, queue_id)
            if result is not None:
                reply = SendMessageReply(msg_id=result.msg_ids, queue_id=queue_id, queue_offset=result.queue_offset)
        code = ResponseCode.SYSTEM_ERROR if trouble else 0
        return Reply(reply, code=code, remark=trouble, ext=self._sends.ext)

    async def _push(self, header: SendMessageHeader, request: Request[None, bytes]) -> str | None:
        """Send a reply to its requester; return why that failed, None when the requester has acknowledged it."""
        pairs = decode_properties(header.properties or "")
        client_id = pairs.get(PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
        requester = self._producers.find_client(client_id)
        if requester is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        setup = self._settings.setup
        # in front, and in the place of one that came with the reply
        pushed_at = {PROPERTY_PUSH_REPLY_TIME: str(now_ms(self._clock))}
        pushed = ReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties(pushed_at | pairs | pushed_at),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=request.channel.peer,
            store_host=f"{setup.store_address}:{setup.server.listen_port}",
            store_timestamp=now_ms(self._clock),
        )
        try:
            await requester.channel.invoke(
                PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, request.body, timeout_ms=PUSH_TIMEOUT_MS
            )
        except RequestFailed as error:
            return self.untaken(client_id, request.channel.peer, error)
        return None

    async def _keep(self, header: SendMessageHeader, request: Request[None, bytes], queue_id: int) -> PutResult | None:
        """Store a reply with the properties as they came; None, and a log line, when that fails."""
        message = Message(
            topic=header.topic,
            queue_id=queue_id,
            body=request.body,
            flag=header.flag,
            properties=header.properties or "",
            sys_flag=0,
            born_timestamp=header.born_timestamp,
            born_host=request.channel.peer_host,
            store_host=self._settings.setup.store_host,
            reconsume_times=header.reconsume_times or 0,
        )
        put = self._store.put(message)
        result = put if isinstance(put, PutResult) else await put
        if result.status not in STORED_CODES:
            self._stats.put_failures += 1
            self._log.warn(
                "a reply from {replier} in topic {topic} was not stored: {status}",
                replier=request.channel.peer,
                topic=header.topic,
                status=result.status.name,
            )
            return None
        self._stats.put(header.topic, result.count, result.size)
        return result
