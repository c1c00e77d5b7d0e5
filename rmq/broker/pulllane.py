"""
The fast path of pulls that find messages.

The reference is :meth:`rmq.broker.responders.pulling.PullResponder.pull`; the lane gives the same bytes, or declines
the request without side effects.
"""

from __future__ import annotations

import msgspec

from rmq.broker.responders.pulling import PullResponder
from rmq.remoting.channel import Channel
from rmq.remoting.responders import MAX_COLLECTED_BYTES
from rmq.wire.api.pulling import PullMessageHeader
from rmq.wire.codes import MQ_VERSION, RequestCode
from rmq.wire.command import RESPONSE
from rmq.wire.extfields import Int32
from rmq.wire.frames import MAX_FRAME_BYTES, PREFIX

_unpack_prefix = PREFIX.unpack_from


class _PullCommand(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """A JSON header of a pull, read in one go."""

    code: Int32
    opaque: Int32
    ext_fields: PullMessageHeader
    flag: Int32 = 0


class PullLane:
    """See :class:`rmq.remoting.responders.ChunkLane`."""

    code = int(RequestCode.PULL_MESSAGE)

    def __init__(self, responder: PullResponder) -> None:
        self._found = responder.found
        self._decode = msgspec.json.Decoder(_PullCommand, strict=False).decode

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        count = collected = 0
        end = len(data)
        while end - position > PREFIX.size and collected < MAX_COLLECTED_BYTES:
            length, word = _unpack_prefix(data, position)
            stop = position + 4 + length
            # The word is the length of a JSON header, whose serialize type is 0.
            if not 4 + word <= length <= MAX_FRAME_BYTES - 4 or stop > end:
                break
            start = position + PREFIX.size
            try:
                command = self._decode(data[start : start + word])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                break
            header = command.ext_fields
            if command.code != self.code or command.flag:
                break
            found = self._found(header, channel.peer)
            if found is None:
                break
            reply, body = found
            head = (
                f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"{reply.suggest_which_broker_id}",'
                f'"nextBeginOffset":"{reply.next_begin_offset}","minOffset":"{reply.min_offset}",'
                f'"maxOffset":"{reply.max_offset}"}},"flag":{RESPONSE},"language":"JAVA","opaque":{command.opaque},'
                f'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
            ).encode()
            answers += (PREFIX.pack(4 + len(head) + len(body), len(head)), head, body)
            collected += len(body)
            count += 1
            position = stop
        return position, count
