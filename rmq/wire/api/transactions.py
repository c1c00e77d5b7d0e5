"""Transactions: their end (37), the broker's question how they ended (39), and asking again (323)."""

from __future__ import annotations

import msgspec

from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64


class EndTransactionHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    What became of a transaction: ``commit_or_rollback`` is 8 (commit), 12 (rollback) or 0 (unknown).

    ``tran_state_table_offset`` and ``commit_log_offset`` are the queue offset and the physical offset of its half
    message. Java: EndTransactionRequestHeader
    """

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionStateHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Where the half message is, for the END_TRANSACTION that answers. ``msg_id`` is the producer's UNIQ_KEY.

    Java: CheckTransactionStateRequestHeader
    """

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageHeader(msgspec.Struct, rename="camel", kw_only=True):
    """``msg_id`` is an offset message id.  Java: ResumeCheckHalfMessageRequestHeader"""

    msg_id: str | None = None


END_TRANSACTION = contract(RequestCode.END_TRANSACTION, header=EndTransactionHeader)
#: the body is a whole record, with the real topic and queue
CHECK_TRANSACTION_STATE = contract(RequestCode.CHECK_TRANSACTION_STATE, header=CheckTransactionStateHeader, body=bytes)
RESUME_CHECK_HALF_MESSAGE = contract(RequestCode.RESUME_CHECK_HALF_MESSAGE, header=ResumeCheckHalfMessageHeader)
