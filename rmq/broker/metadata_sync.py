"""
Copy what is not in the commit log from the master to a slave: topics, groups, consumer offsets, delay offsets.

Unlike Apache, offsets that consumers committed at the slave while its master was away are also pushed to the master
(`rmq.broker.offset_push`). Apache overwrites them with the master's older ones, and messages are consumed again.

Java: SlaveSynchronize
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, DeferredLock, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.offset_push import OffsetPush, OffsetsRefused, OwnMessages
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.topics import TopicTable
from rmq.errors import RequestFailed
from rmq.remoting.client import RemotingClient
from rmq.runtime.clock import Periodic
from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.disk.statefile import write_state_soon
from rmq.runtime.platform import split_addr
from rmq.wire import fastjson
from rmq.wire.api.admin import GET_BROKER_RUNTIME_INFO
from rmq.wire.api.replication import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_ALL_TOPIC_CONFIG,
    AllDelayOffset,
)

FIRST_S = 3.0
PERIOD_S = 10.0
STEP_TIMEOUT_MS = 3000
#: between two requests for topics that the log has and the table lacks
EARLY_S = 0.25

DELAY_OFFSET_FILE = "delayOffset.json"

#: The port beside the main one where an Apache slave asks for topics.
VIP_PORT_DISTANCE = 2


class BadTable(Exception):
    """The master's answer is no table."""


class OwnLog(OwnMessages, Protocol):
    """What the synchronisation reads of this slave's store; `MessageStore` is one."""

    @property
    def end_offset(self) -> int:
        """Where the log ends."""

    def sync_until(self, phy_offset: int) -> Deferred[bool]:
        """Sync the log up to an offset; fires with False when that failed."""


class MetadataSync(Service):
    """
    Ask the master for its tables, first after 3 s and then every 10 s; skip the round while there is none.

    For topics it asks at once when the log brings a message of one that is not known, see :meth:`queue_made`.

    The four steps are independent: one that fails leaves its table as it is and is logged once until it recovers;
    the next step follows. A table whose version is unchanged is not written again.

    Delay offsets say which messages were delivered. A slave that took them before the delivered copies would lose
    those as a promoted master: it writes a table when its own log is on disk up to where the master's log ended after
    that table. Apache's slaves write it at once.
    """

    _log = Logger()
    name = "metadata-sync"

    def __init__(
        self,
        client: RemotingClient,
        clock: IReactorTime,
        disk: Disk,
        *,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        config_dir: str,
        own_addr: str,
        messages: OwnLog,
        agrees_with_master: Callable[[], bool],
        offsets_to_master: bool = True,
    ) -> None:
        self._client = client
        self._clock = clock
        self._disk = disk
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._config_dir = config_dir
        self._delay_path = os.path.join(config_dir, DELAY_OFFSET_FILE)
        self._own_addr = own_addr
        self._offsets_to_master = offsets_to_master
        self._messages = messages
        self._offset_push = OffsetPush(client, offsets, messages, agrees_with_master)
        #: the table of delay offsets that was written last
        self._delay_offset: bytes | None = None
        #: the next one, and the end of the master's log that this slave must have on disk first
        self._next_delay_offset: tuple[int, bytes] | None = None
        #: held while the file of delay offsets is being written, or waits for the log
        self._writing = DeferredLock()
        #: the steps whose last run failed
        self._failing: dict[str, str] = {}
        self._rounds = Periodic(clock, PERIOD_S, self.sync, name="metadata synchronisation", first_s=FIRST_S)
        #: the next request for topics out of turn, the one that is under way, and when it began
        self._early: IDelayedCall | None = None
        self._asking: Deferred[None] = succeed(None)
        self._asked_s = -EARLY_S
        #: "ip:port" of the master; None for none
        self.master_addr: str | None = None

    @property
    def failing(self) -> dict[str, str]:
        """The steps whose last run failed, with their errors."""
        return dict(self._failing)

    def set_master(self, addr: str | None) -> None:
        """Use the master at ``addr`` from the next round on; its own address or an invalid one means no master."""
        if addr is not None:
            try:
                split_addr(addr)
            except ValueError as error:
                self._log.error("metadata sync has no valid master address: {error}", error=error)
                addr = None
        if addr == self._own_addr:
            addr = None
        if addr != self.master_addr:
            before, self.master_addr = self.master_addr, addr
            self._next_delay_offset = None
            self._offset_push.master_was_away()
            self._log.info("metadata sync uses master {addr}, before: {before}", addr=addr, before=before)

    def startService(self) -> None:
        super().startService()
        self._forget_truncated()
        self._rounds.start()

    def stopService(self) -> Deferred[None]:
        """Start no further step; fires when the running one has ended: three seconds and its write at most."""
        super().stopService()
        if self._early is not None:
            self._early.cancel()
            self._early = None
        return DeferredList([self._rounds.stop(), self._asking]).addCallback(lambda _: None)

    def _forget_truncated(self) -> None:
        """
        Forget offsets that were committed here for messages which this slave's log has lost since (truncated).

        It must happen before the first round: then the queues hold the master's messages at the same offsets.
        """
        before = ConsumerOffsetTable(self._disk, self._config_dir, self._clock)
        before.load_own(is_slave=True)
        for own in before.follow({}):
            if own.offset > self._messages.max_offset(own.topic, own.queue_id):
                self._offsets.forget_own(own)

    async def sync(self) -> None:
        """Do one round."""
        master = self.master_addr
        if master is None:
            return
        await self._step("topics", master, self._sync_topics)
        await self._step("consumer offsets", master, self._sync_offsets)
        await self._step("delay offsets", master, self._sync_delay_offsets)
        await self._step("subscription groups", master, self._sync_groups)

    def queue_made(self, topic: str, queue_id: int) -> None:
        """
        Ask for the topics at once when the first message of a queue is replicated that the table lacks.

        Its producer has SEND_OK: after a promotion nobody could read the message without its topic.
        """
        known = self._topics.get(topic)
        if known is not None and queue_id < max(known.read_queue_nums, known.write_queue_nums):
            return
        if self.running and self.master_addr is not None and self._early is None:
            wait_s = max(0.0, self._asked_s + EARLY_S - self._clock.seconds())
            self._early = self._clock.callLater(wait_s, self._ask_early)

    def _ask_early(self) -> None:
        self._early = None
        if not self._asking.called:
            # its answer may have been written before the topic was made
            self._early = self._clock.callLater(EARLY_S, self._ask_early)
        elif (master := self.master_addr) is not None:
            self._asked_s = self._clock.seconds()
            self._asking = Deferred.fromCoroutine(self._step("topics", master, self._sync_topics))

    async def _step(self, what: str, master: str, step: Callable[[str], Coroutine[Deferred[Any], Any, None]]) -> None:
        if not self._is_current(master):
            return
        try:
            await step(master)
        except (RequestFailed, BadTable, OffsetsRefused, DiskError) as error:
            self._failed(what, master, error)
        else:
            if self._failing.pop(what, None) is not None:
                self._log.info("{what} sync from master {addr} recovered", what=what, addr=master)

    def _failed(self, what: str, master: str | None, error: object) -> None:
        if what not in self._failing:
            self._log.error(
                "{what} sync from master {addr} failed, retry in {retry_s} s: {error}",
                what=what,
                addr=master,
                retry_s=PERIOD_S,
                error=error,
            )
        self._failing[what] = str(error)

    def _is_current(self, master: str) -> bool:
        return bool(self.running) and self.master_addr == master

    async def _sync_topics(self, master: str) -> None:
        response = await self._client.invoke(
            vip_addr(master), GET_ALL_TOPIC_CONFIG, None, None, timeout_ms=STEP_TIMEOUT_MS
        )
        try:
            self._topics.replace(response.body)
        except ValueError as error:
            raise BadTable(f"the answer is no table of topics: {error}") from error
        await self._topics.saved()

    async def _sync_groups(self, master: str) -> None:
        response = await self._client.invoke(
            master, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, None, timeout_ms=STEP_TIMEOUT_MS
        )
        try:
            self._groups.replace(response.body)
        except ValueError as error:
            raise BadTable(f"the answer is no table of subscription groups: {error}") from error
        await self._groups.saved()

    async def _sync_offsets(self, master: str) -> None:
        try:
            response = await self._client.invoke(
                master, GET_ALL_CONSUMER_OFFSET, None, None, timeout_ms=STEP_TIMEOUT_MS
            )
        except RequestFailed:
            self._offset_push.master_was_away()
            raise
        table = response.body.offset_table
        if not self._offsets_to_master:
            self._offsets.merge(table)
            await self._offsets.persist()
            return
        newer = self._offsets.follow(table)
        await self._offsets.persist()
        await self._offset_push.offer(master, newer, table, lambda: self._is_current(master))

    async def _sync_delay_offsets(self, master: str) -> None:
        if self._next_delay_offset is None:
            await self._ask_delay_offsets(master)
        await self.write_delay_offsets()

    async def _ask_delay_offsets(self, master: str) -> None:
        response = await self._client.invoke(master, GET_ALL_DELAY_OFFSET, None, None, timeout_ms=STEP_TIMEOUT_MS)
        data = response.body
        if not data:
            raise BadTable("the answer has no body")
        if data == self._delay_offset:
            return
        try:
            fastjson.decode(data, AllDelayOffset)
        except fastjson.JsonError as error:
            raise BadTable(f"the answer is no table of delay offsets: {error}") from error
        # Behind the table: what it says was delivered is in front of this end.
        info = await self._client.invoke(master, GET_BROKER_RUNTIME_INFO, None, None, timeout_ms=STEP_TIMEOUT_MS)
        end = info.body.table.get("commitLogMaxOffset", "")
        if not (end.isascii() and end.isdigit()):
            raise BadTable(f"the master's commitLogMaxOffset is {end!r}: no offset")
        if self._is_current(master):
            self._next_delay_offset = int(end), data

    def log_flushed(self) -> None:
        """Write the delay offsets that wait for the log; to be called after each of its syncs."""
        if self.running and self._next_delay_offset is not None and not self._writing.locked:
            Deferred.fromCoroutine(self.write_delay_offsets()).addErrback(self._not_written)

    def _not_written(self, failure: Failure) -> None:
        failure.trap(DiskError)
        self._failed("delay offsets", self.master_addr, failure.value)

    async def write_delay_offsets(self) -> None:
        """Write the next table if the log goes as far as the master's did, once it is on disk; DiskError."""
        await self._writing.acquire()
        try:
            due = self._next_delay_offset
            if due is None or self._messages.end_offset < due[0] or not await self._messages.sync_until(due[0]):
                return
            if self._next_delay_offset is due:  # else it was of another master
                await write_state_soon(self._disk, self._delay_path, due[1])
                self._delay_offset = due[1]
                if self._next_delay_offset is due:
                    self._next_delay_offset = None
        finally:
            self._writing.release()


def vip_addr(addr: str) -> str:
    """
    Return the address of the VIP port that belongs to a broker's main address.

    Java: MixAll#brokerVIPChannel
    """
    host, _, port = addr.rpartition(":")
    return f"{host}:{int(port) - VIP_PORT_DISTANCE}"
