"""
What a tool asks of consumers, sent on to them: codes 222, 223, 307 and 309.

Java: Broker2Client, AdminBrokerProcessor#callConsumer
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker.config import BrokerSetup
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.sessions import ConsumerGroups, Member
from rmq.broker.topics import TopicTable
from rmq.errors import RequestFailed, RequestTimeout
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.store.store import MessageStore
from rmq.wire import fastjson
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.forwarding import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    INVOKE_BROKER_TO_RESET_OFFSET,
    RESET_CONSUMER_CLIENT_OFFSET,
    ConsumeDirectlyHeader,
    ConsumerStatus,
    ConsumerStatusHeader,
    OffsetList,
    OffsetOfQueue,
    OffsetsByQueue,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from rmq.wire.codes import LanguageCode, ResponseCode, version_desc
from rmq.wire.command import RemotingCommand
from rmq.wire.frames import ProtocolError
from rmq.wire.record import decode_offset_msg_id

#: a member has so long to answer.  Java: Broker2Client#callClient, #getConsumeStatus
CALL_MS, STATUS_MS = 10_000, 5_000
#: versions from which on clients know 220 and 221, and 307 and 309.  Java: MQVersion.Version
V3_0_7_SNAPSHOT, V3_1_8_SNAPSHOT = 28, 62


@attrs.define(eq=False)
class ForwardingResponder:
    """Each request is for a group of consumers that is online at this broker, or for one member of it."""

    _log = Logger()

    _setup: BrokerSetup
    _store: MessageStore
    _topics: TopicTable
    _consumers: ConsumerGroups
    _offsets: ConsumerOffsetTable

    # ---- offsets ----

    @responds_to(INVOKE_BROKER_TO_RESET_OFFSET)
    def reset_offset(self, request: Request[ResetOffsetHeader, None]) -> Reply:
        """
        Have the members of a group go on at other offsets; they commit them here.

        Java: Broker2Client#resetOffset
        """
        header = request.header
        table = self._reset_offsets(header)
        online = self._consumers.find(header.group)
        if online is None:
            raise Refuse(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        pushed = ResetOffsetHeader(topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False)
        for member in list(online.members.values()):
            _check_version(member)
            member.channel.oneway(RESET_CONSUMER_CLIENT_OFFSET, pushed, _offsets_for(member, table))
        self._log.info(
            "{peer} resets the offsets of group {group} in topic {topic}: {count} members were notified",
            peer=request.channel.peer,
            group=header.group,
            topic=header.topic,
            count=len(online.members),
        )
        return Reply(body=OffsetsByQueue(offset_table=table))

    def _reset_offsets(self, header: ResetOffsetHeader) -> dict[MessageQueue, int]:
        """Return where each queue goes on; a queue without an offset of the group refuses all."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise Refuse(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        one_queue = header.queue_id is not None and header.queue_id >= 0
        table = {}
        for queue_id in [header.queue_id or 0] if one_queue else range(topic.write_queue_nums):
            committed = self._offsets.query(header.group, header.topic, queue_id)
            if committed is None or committed < 0:
                raise Refuse(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            if header.offset is not None and one_queue:
                wanted = header.offset
            elif header.timestamp == -1:
                wanted = self._store.max_offset(header.topic, queue_id)
            else:
                wanted = self._store.offset_by_time(header.topic, queue_id, header.timestamp)
            wanted = max(wanted, 0)
            queue = MessageQueue(topic=header.topic, broker_name=self._setup.name, queue_id=queue_id)
            table[queue] = wanted if header.is_force else min(wanted, committed)
        return table

    @responds_to(INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def consumer_status(self, request: Request[ConsumerStatusHeader, None]) -> Reply:
        """
        Ask the members of a group, or one of them, for their offsets; who does not answer in time is left out.

        Java: Broker2Client#getConsumeStatus
        """
        header = request.header
        online = self._consumers.find(header.group)
        if online is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]")
        asked = [
            member
            for member in online.members.values()
            if not (header.client_addr or "").strip() or member.client_id == header.client_addr
        ]
        for member in asked:
            _check_version(member)
        question = ConsumerStatusHeader(topic=header.topic, group=header.group)
        answers = await gatherResults([self._status(member, question) for member in asked], consumeErrors=True)
        found = {member.client_id: answer for member, answer in zip(asked, answers, strict=True) if answer is not None}
        return Reply(body=ConsumerStatus(consumer_table=found))

    def _status(self, member: Member, question: ConsumerStatusHeader) -> Deferred[dict[MessageQueue, int] | None]:
        """Ask one member for its offsets; None when it does not say."""

        def failed(failure: Failure) -> None:
            failure.trap(RequestFailed)
            self._log.warn(
                "client {client_id} does not say its offsets: {error}",
                client_id=member.client_id,
                error=failure.getErrorMessage(),
            )

        asked: Deferred[Any] = member.channel.invoke(
            GET_CONSUMER_STATUS_FROM_CLIENT, question, None, timeout_ms=STATUS_MS
        )
        return asked.addCallbacks(lambda answer: answer.body.message_queue_table, failed)

    # ---- one member ----

    @responds_to(GET_CONSUMER_RUNNING_INFO)
    async def running_info(self, request: Request[RunningInfoHeader, None]) -> Reply:
        """
        Java: AdminBrokerProcessor#getConsumerRunningInfo
        """
        return await self._call(request.header.consumer_group, request.header.client_id, request.command, None)

    @responds_to(CONSUME_MESSAGE_DIRECTLY)
    async def consume_directly(self, request: Request[ConsumeDirectlyHeader, None]) -> Reply:
        """
        Have a member consume one message of this broker, out of turn.

        Java: AdminBrokerProcessor#consumeMessageDirectly
        """
        header = request.header
        try:
            _, phy_offset = decode_offset_msg_id(header.msg_id or "")
        except ValueError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id}: {error}") from None
        message = self._store.message_at(phy_offset)
        if message is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {phy_offset}")
        request.command.ext_fields = {**request.command.ext_fields, "brokerName": self._setup.name}
        return await self._call(header.consumer_group, header.client_id or "", request.command, message)

    async def _call(self, group: str, client_id: str, command: RemotingCommand, body: bytes | None) -> Reply:
        """Send a member the request with its header fields as they came; return what it answers, whatever that is."""
        online = self._consumers.find(group)
        member = None if online is None else online.member(client_id)
        if member is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < V3_1_8_SNAPSHOT:
            raise Refuse(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_desc(member.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        asked = RemotingCommand(command.code, ext_fields=dict(command.ext_fields), body=body)
        try:
            answer = await member.channel.request(asked, timeout_ms=CALL_MS)
        except RequestTimeout as error:
            raise Refuse(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
            ) from None
        except (RequestFailed, ProtocolError) as error:
            raise Refuse(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            ) from None
        return Reply(body=answer.body, code=answer.code, remark=answer.remark, ext=answer.ext_fields)


def _check_version(member: Member) -> None:
    if member.version < V3_0_7_SNAPSHOT:
        raise Refuse(
            ResponseCode.SYSTEM_ERROR,
            f"the client does not support this feature. version={version_desc(member.version)}",
        )


def _offsets_for(member: Member, table: dict[MessageQueue, int]) -> bytes:
    """Return the body of 220 in the form that the member reads; Java looks at the tool's language instead."""
    if member.language != LanguageCode.CPP.name:
        return fastjson.encode(OffsetsByQueue(offset_table=table))
    return fastjson.encode(
        OffsetList(
            offset_table=[
                OffsetOfQueue(broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic)
                for queue, offset in table.items()
            ]
        )
    )
