"""
The short way to take ordinary messages, most of what a broker is sent.

The ordinary way is :meth:`rmq.broker.responders.sending.SendResponder.send`; the lane stores and answers the same
bytes or leaves the request to it with nothing done. A send of 100 bytes takes 23 us with it and 29 us without, of which
the store has 13 us.
"""

from __future__ import annotations

import msgspec

from rmq.broker import properties
from rmq.broker.responders.sending import MULTI_TAG, SendResponder
from rmq.broker.state import BrokerState
from rmq.broker.topics import PERM_WRITE, RETRY_PREFIX, sending_problem, topic_name_problem
from rmq.remoting.channel import Channel
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.wire.api.common import TopicConfig
from rmq.wire.api.sending import SendMessageV2Header
from rmq.wire.codes import MQ_VERSION, SerializeType
from rmq.wire.command import RESPONSE, RemotingCommand
from rmq.wire.extfields import BadField, header_codec
from rmq.wire.frames import encode_frame
from rmq.wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, decode_properties, encode_properties

#: topics that were looked at and found ordinary; when there are more, all are looked at again
MAX_KNOWN_TOPICS = 10_000

_DELAY = properties.DELAY + "\x01"
_TRANSACTION = properties.TRANSACTION_PREPARED + "\x01"


def answers_at_once(config: StoreConfig) -> bool:
    """Tell whether a put never has to wait; only then can a lane, which knows no later, be used."""
    return config.broker_role is BrokerRole.ASYNC_MASTER and not config.is_sync_flush


class SendLane:
    """
    Take a single message (310) of an existing, ordinary topic, without delay or transaction.
    """

    def __init__(self, state: BrokerState, responder: SendResponder) -> None:
        self._state = state
        self._codec = header_codec(SendMessageV2Header)
        self._cluster = state.setup.broker.broker_cluster_name
        #: name -> the configuration that was found ordinary; another object is another configuration
        self._known: dict[str, TopicConfig] = {}
        ext = "".join(f',"{key}":{msgspec.json.encode(value).decode()}' for key, value in responder.ext.items())
        self._head = '{"code":0,"extFields":{"msgId":"'
        self._middle = '","queueId":"'
        self._offset = '","queueOffset":"'
        self._tail = f'"{ext}}},"flag":{RESPONSE},"language":"JAVA","opaque":'
        self._end = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'

    def __call__(self, command: RemotingCommand, channel: Channel) -> bytes | None:
        """Store a message and return the frame of the answer; None when this is not for the lane."""
        if command.serialize_type != SerializeType.JSON:
            return None
        try:
            header = command.read_header(self._codec)
        except BadField:
            return None
        topic = self._state.topics.get(header.topic)
        if topic is None or not self._is_plain(header, topic):
            return None
        result = self._put(header, command, channel)
        if result.status is not PutStatus.PUT_OK:
            return None
        self._state.stats.put(header.topic, 1, result.size)
        text = "".join(
            (
                self._head,
                result.msg_ids,
                self._middle,
                str(header.queue_id),
                self._offset,
                str(result.queue_offset),
                self._tail,
                str(command.opaque),
                self._end,
            )
        )
        return encode_frame(0, text.encode(), b"")

    def _is_plain(self, header: SendMessageV2Header, topic: TopicConfig) -> bool:
        """Tell whether the ordinary way would do nothing but store this message as it is."""
        broker = self._state.setup.broker
        if self._known.get(header.topic) is not topic and not self._learn(header.topic, topic):
            return False
        text = header.properties or ""
        return (
            0 <= header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)
            and not header.batch
            and header.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
            and broker.broker_permission & PERM_WRITE != 0
            and not broker.start_accept_send_request_time_stamp
            and _DELAY not in text
            and _TRANSACTION not in text
        )

    def _learn(self, name: str, topic: TopicConfig) -> bool:
        if (
            topic_name_problem(name) is not None
            or sending_problem(name) is not None
            or name.startswith(RETRY_PREFIX)
            or topic.topic_filter_type == MULTI_TAG
        ):
            return False
        if len(self._known) >= MAX_KNOWN_TOPICS:
            self._known.clear()
        self._known[name] = topic
        return True

    def _put(self, header: SendMessageV2Header, command: RemotingCommand, channel: Channel) -> PutResult:
        pairs = decode_properties(header.properties or "")
        pairs[properties.CLUSTER] = self._cluster
        pairs.pop(properties.WAIT, None)
        result = self._state.store.put(
            Message(
                header.topic,
                header.queue_id,
                command.body or b"",
                header.flag,
                encode_properties(pairs),
                header.sys_flag,
                header.born_timestamp,
                channel.peer_host,
                self._state.store_host,
                header.reconsume_times or 0,
            )
        )
        # See answers_at_once.
        assert isinstance(result, PutResult)
        return result
