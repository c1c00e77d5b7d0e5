"""
The fast path of answers to our own requests that say nothing but that they succeeded.

The reference is :meth:`rmq.remoting.channel.Channel.received` with what `rmq.wire.command` decodes, which has version
and language of the peer, too. It needs the compiled module `rmq.remoting._fastpath`.
"""

from __future__ import annotations

from typing import Any

from rmq.remoting.channel import Channel
from rmq.remoting.responders import ResponderTable
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RESPONSE, RemotingCommand
from rmq.wire.compiled import load

_compiled: Any = load("rmq.remoting._fastpath")


def add_answer_lane(table: ResponderTable) -> None:
    """Add the lane to a table."""
    if _compiled is not None:
        table.add_chunk_lane(AnswerLane())


class AnswerLane:
    """Complete the requests whose answers are at the front of received bytes."""

    #: no request has it
    code = int(ResponseCode.SUCCESS)

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        while position < len(data) and (found := _compiled.read_answer(data, position)):
            position, opaque = found
            channel.received(RemotingCommand(self.code, opaque, RESPONSE))
        return position, 0
