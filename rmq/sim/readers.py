"""A reader that is no user: it pulls all that each broker has, slaves too, and joins no group."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import Deferred

from rmq.remoting.client import RemotingClient
from rmq.runtime.platform import Platform
from rmq.sim.history import Copy
from rmq.wire.api.pulling import PULL_MESSAGE, PULL_SUBSCRIPTION, PullMessageHeader
from rmq.wire.codes import ResponseCode
from rmq.wire.record import Record, decode_records

ASK_TIMEOUT_MS = 3000
PULL_TIMEOUT_MS = 30_000


class Observer(Service):
    """Pulls everything and changes nothing."""

    def __init__(self, platform: Platform) -> None:
        self.remoting = RemotingClient(platform, name="observer")

    def startService(self) -> None:
        super().startService()
        self.remoting.startService()

    def stopService(self) -> Deferred[None]:
        """End all connections."""
        super().stopService()
        return self.remoting.stopService()

    async def read_queue(self, addr: str, topic: str, queue_id: int) -> Copy:
        """Pull a queue from its beginning to its end; RequestFailed when the broker does not answer."""
        records: list[Record] = []
        offset = 0
        while True:
            header = PullMessageHeader(
                consumer_group="sim-observer",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=PULL_SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription="*",
                sub_version=0,
                expression_type="TAG",
            )
            response = await self.remoting.invoke(addr, PULL_MESSAGE, header, None, timeout_ms=PULL_TIMEOUT_MS)
            reply = response.header
            found = decode_records(response.body) if response.code == ResponseCode.SUCCESS else []
            records += found
            if not found and offset < reply.min_offset:
                # A slave corrects no offsets, for it may lag.
                offset = reply.min_offset
                continue
            if not found and reply.next_begin_offset <= offset:
                return Copy(
                    topic=topic,
                    queue_id=queue_id,
                    min_offset=reply.min_offset,
                    max_offset=reply.max_offset,
                    records=records,
                )
            offset = reply.next_begin_offset
