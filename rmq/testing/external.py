"""A cluster that runs elsewhere, one of Apache's for example: topics, groups and clients, but no faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from rmq.aio.host import AsyncioHost
from rmq.client.core.routes import RETRY_PREFIX
from rmq.client.flows.instance import Instance
from rmq.client.settings import ClientSettings
from rmq.errors import NoRoute, Refused
from rmq.testing.handle import POLL_S, START_S, Link, ServerFailed
from rmq.wire.api.common import MASTER_ID, PERM_READ, PERM_WRITE, MessageQueue
from rmq.wire.api.offsets import GET_CONSUME_STATS, ConsumeStatsHeader
from rmq.wire.api.routes import GET_BROKER_CLUSTER_INFO
from rmq.wire.api.topics import GET_TOPIC_STATS_INFO, UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, TopicHeader


class Elsewhere:
    """In place of processes: the NameServer of a running cluster."""

    dir = ""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    def links(self) -> Sequence[Link]:
        return [self]

    def logs(self) -> list[str]:
        return []

    def close(self) -> None:
        """The cluster goes on."""

    def ask(self, command: str, **arguments: Any) -> Any:
        """Do what can be done by requests; ServerFailed for the rest."""
        if command == "undo_all":
            return None
        if command == "topic":
            return self._run(lambda instance: _create(instance, **arguments))
        if command == "unconsumed":
            return self._run(lambda instance: _unconsumed(instance, **arguments))
        if command == "has_topic":
            return self._run(lambda instance: _has_topic(instance, **arguments))
        raise ServerFailed(f"{command}: only with servers of the kit, not with --rmq-address")

    def _run(self, what: Callable[[Instance], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine with a client of its own, beside any loop that runs here."""

        async def main() -> Any:
            instance = Instance(AsyncioHost(None), self.namesrv, None, ClientSettings())
            try:
                return await what(instance)
            finally:
                await instance.close()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(main())).result()


async def _masters(instance: Instance) -> list[str]:
    info = (await instance.ask(instance.namesrvs[0], GET_BROKER_CLUSTER_INFO, None, None)).body
    return [data.broker_addrs[MASTER_ID] for data in info.broker_addr_table.values() if MASTER_ID in data.broker_addrs]


async def _create(instance: Instance, name: str, queues: int) -> None:
    header = CreateTopicHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=PERM_READ | PERM_WRITE,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
    )
    masters = await _masters(instance)
    for addr in masters:
        await instance.ask(addr, UPDATE_AND_CREATE_TOPIC, header, None)
    deadline = instance.host.seconds() + START_S
    while True:
        try:
            if len((await instance.fetch_route(name)).queue_datas) >= len(masters):
                return
        except NoRoute:
            if instance.host.seconds() > deadline:
                raise
        await instance.host.sleep(POLL_S)


async def _has_topic(instance: Instance, topic: str) -> bool:
    try:
        await instance.fetch_route(topic)
    except NoRoute as error:
        if error.is_unknown:
            return False
        raise
    return True


async def _unconsumed(instance: Instance, group: str, topic: str) -> int:
    """A group without offsets has acknowledged nothing."""
    ends: dict[MessageQueue, int] = {}
    done: dict[MessageQueue, int] = {}
    for addr in await _masters(instance):
        for name in (topic, RETRY_PREFIX + group):
            with suppress(Refused):
                stats = await instance.ask(addr, GET_TOPIC_STATS_INFO, TopicHeader(topic=name), None)
                for queue, at in stats.body.offset_table.items():
                    ends[queue] = at.max_offset
                    done[queue] = at.min_offset
            with suppress(Refused):
                header = ConsumeStatsHeader(consumer_group=group, topic=name)
                found = await instance.ask(addr, GET_CONSUME_STATS, header, None)
                for queue, position in found.body.offset_table.items():
                    done[queue] = max(done.get(queue, 0), position.consumer_offset)
    return sum(max(0, end - done[queue]) for queue, end in ends.items())
