"""
The end of transactions (37), and resuming the checks of a half message (323).

Java: EndTransactionProcessor, AdminBrokerProcessor#resumeCheckHalfMessage

One difference is deliberate: Apache commits whatever message is at the offset, and puts any message into the queue of
half messages. Here it must be a half message, for 323 also one that was discarded.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.settings import Settings
from rmq.broker.stats import TOPIC_COMMIT_NUMS, TOPIC_ROLLBACK_NUMS, BrokerStats
from rmq.broker.topics import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from rmq.broker.transactions import committed_message, op_message, put_back
from rmq.remoting.responders import NO_REPLY, NoReply, Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.store.store import MessageStore
from rmq.wire.api.transactions import (
    END_TRANSACTION,
    RESUME_CHECK_HALF_MESSAGE,
    EndTransactionHeader,
    ResumeCheckHalfMessageHeader,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.record import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    Record,
    decode_offset_msg_id,
    decode_record,
)

_NOT_FOUND = "Find prepared transaction message failed"
_NOT_PUT = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
_NO_HALF_MESSAGE = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."


class TransactionResponder:
    """Commit half messages, or note that they were rolled back."""

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        clock: IReactorTime,
        store: MessageStore,
        stats: BrokerStats,
        max_delay_level: int,
    ) -> None:
        self._setup = settings.setup
        self._clock = clock
        self._store = store
        self._stats = stats
        self._max_delay_level = max_delay_level

    @responds_to(END_TRANSACTION)
    async def end_transaction(self, request: Request[EndTransactionHeader, None]) -> Reply | NoReply:
        """A state that is still unknown gets no answer, as clients expect: the next check asks again."""
        if self._setup.is_slave:
            return Reply(code=ResponseCode.SLAVE_NOT_AVAILABLE)
        header = request.header
        if header.commit_or_rollback == 0:
            return NO_REPLY
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise Refuse(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
        half = self._half_message(header)
        topic = half.property_map.get(PROPERTY_REAL_TOPIC, "")
        commits = header.commit_or_rollback == TRANSACTION_COMMIT
        if commits:
            message = committed_message(half, self._max_delay_level)
            if message is None:
                raise Refuse(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
            result = await self._put(message)
            code, remark = self.outcome(result.status)
            if remark is not None:
                raise Refuse(code, remark)
            self._stats.put(topic, result.count, result.size)
        # Without its op message the half message is checked again, and the producer ends it again.
        if not (await self._put(op_message(half, self._setup.store_host, now_ms(self._clock)))).ok:
            self._log.warn("the end of the transaction at {offset} was not noted", offset=half.phy_offset)
        self._stats.counter(TOPIC_COMMIT_NUMS if commits else TOPIC_ROLLBACK_NUMS, topic).add(1)
        return Reply()

    def _half_message(self, header: EndTransactionHeader) -> Record:
        """Return the half message that a producer means.  Java: EndTransactionProcessor#checkPrepareMessage"""
        half = self._record_at(header.commit_log_offset, TRANS_HALF_TOPIC)
        if half is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        if half.property_map.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    def _record_at(self, phy_offset: int, *topics: str) -> Record | None:
        data = self._store.message_at(phy_offset)
        record = None if data is None else decode_record(data)
        return record if record is not None and record.topic in topics else None

    async def _put(self, message: Message) -> PutResult:
        result: Any = self._store.put(message)
        if isinstance(result, Deferred):
            result = await result
        assert isinstance(result, PutResult)
        return result

    def outcome(self, status: PutStatus) -> tuple[int, str | None]:
        """
        Return code and remark of the answer to the end of a transaction whose put had that status.

        Java: EndTransactionProcessor#sendFinalMessage
        """
        if PutResult(status).ok:
            return ResponseCode.SUCCESS, None
        self._stats.put_failures += 1
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return ResponseCode.MESSAGE_ILLEGAL, (
                "The message is illegal, maybe msg body or properties length not matched. msg body length limit "
                f"{self._setup.store.max_message_size}B, msg properties length limit 32KB."
            )
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now."
        if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
            return ResponseCode.SYSTEM_ERROR, "Create mapped file failed."
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            return ResponseCode.SYSTEM_ERROR, "OS page cache busy, please try another machine"
        return ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"

    @responds_to(RESUME_CHECK_HALF_MESSAGE)
    async def resume_check(self, request: Request[ResumeCheckHalfMessageHeader, None]) -> Reply:
        """Have a half message checked again from the beginning, one that was discarded too."""
        try:
            _, phy_offset = decode_offset_msg_id(request.header.msg_id or "")
        except ValueError:
            raise Refuse(ResponseCode.SYSTEM_ERROR, _NO_HALF_MESSAGE) from None
        record = self._record_at(phy_offset, TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
        if record is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, _NO_HALF_MESSAGE)
        pairs = {**record.property_map, PROPERTY_TRANSACTION_CHECK_TIMES: "0"}
        if not (await self._put(put_back(record, pairs))).ok:
            raise Refuse(ResponseCode.SYSTEM_ERROR, _NOT_PUT)
        self._log.info("{peer} resumes the checks of {msg_id}", peer=request.channel.peer, msg_id=record.offset_msg_id)
        return Reply()
