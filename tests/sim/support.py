"""What the tests of the simulator's judges stand on: a small cluster, and recorded runs in which something is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from rmq.sim.checkers import Losses, PowerLoss, Queue
from rmq.sim.cluster import ROOT, GroupOptions, LogImage, Options
from rmq.sim.disk import SimDisk
from rmq.sim.history import Ack, Copy, History, Seen, Sent, shared_key
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store import layout
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.wire.record import Record, decode_record, encode_properties, encode_record

ASYNC_MASTER, SYNC_MASTER = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER
ASYNC_FLUSH, SYNC_FLUSH = FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH
HOST = (bytes((10, 0, 0, 1)), 10911)
LOG_DIR = layout.commit_log_dir(ROOT)


def options(role: BrokerRole, flush: FlushDiskType, *, slaves: int = 0, **changes: Any) -> Options:
    """Return a small cluster; ``changes`` are other options than its own, those of ``store`` key by key."""
    group = GroupOptions(name="broker-a", role=role, flush=flush, slaves=slaves, slave_flush=ASYNC_FLUSH)
    plain = Options(
        name_servers=1,
        groups=(group,),
        sync_s=(0.0005, 0.005),
        store={
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "1000",
            "maxHashSlotNum": "16",
            "maxIndexNum": "100",
        },
        topics=("orders",),
        topics_made_first=True,
        queues=2,
        producers=1,
        consumers=1,
        send_every_s=0.2,
        body_bytes=100,
        batched=0.0,
    )
    store = {**plain.store, **changes.pop("store", {})}
    return attrs.evolve(plain, store=store, **changes)


def two_groups(role: BrokerRole, flush: FlushDiskType, *, slaves: int = 1, **store: Any) -> Options:
    """Return options with another group, broker-b, that is configured like broker-a."""
    one = options(role, flush, slaves=slaves, store=store)
    return attrs.evolve(one, groups=(*one.groups, attrs.evolve(one.groups[0], name="broker-b")))


def losses(
    *failures: PowerLoss, role: BrokerRole = SYNC_MASTER, flush: FlushDiskType = ASYNC_FLUSH, **store: Any
) -> Losses:
    """Return what the given power failures excuse; without any: nothing."""
    found = Losses(two_groups(role, flush, **store))
    found.failures += failures
    return found


def failure(**changes: Any) -> PowerLoss:
    """Return a power failure at 5 s that put everything of broker-a's master at risk."""
    plain = PowerLoss(node="broker-a-0", group="broker-a", is_master=True, at_s=5.0, from_phy=0, end=1000)
    return attrs.evolve(plain, **changes)


def message(key: str, **changes: Any) -> Sent:
    """Return a message that a producer sent at 1 s, waited for, and had acknowledged 0.1 s later at ``offset``."""
    values: dict[str, Any] = {
        "group": "broker-a",
        "topic": "orders",
        "queue_id": 0,
        "body": f"body of {key}".encode(),
        "at_s": 1.0,
        "waits": True,
        "code": 0,
        "took_s": 0.1,
        "offset": 0,
        "phy": 0,
        **changes,
    }
    code, took_s, offset, phy = (values.pop(name) for name in ("code", "took_s", "offset", "phy"))
    sent = Sent(key=key, tag="A", **values)
    if code is not None:
        at_s = sent.at_s + took_s
        sent.ack = Ack(at_s=at_s, code=code, queue_id=sent.queue_id, queue_offset=offset, phy_offset=phy)
    return sent


def history_of(*messages: Sent) -> History:
    """Return what clients did: they sent ``messages``, and nobody has consumed any."""
    history = History(lambda: 0.0)
    history.sent.update({sent.key: sent for sent in messages})
    return history


def seen(sent: Sent, **changes: Any) -> Seen:
    """Return how a consumer got an acknowledged message at 2 s."""
    assert sent.ack is not None
    plain = Seen(
        key=sent.key,
        group=sent.group,
        topic=sent.topic,
        queue_id=sent.queue_id,
        queue_offset=sent.ack.queue_offset,
        body=sent.body,
        at_s=2.0,
        consumer="consumer-0",
        handled_s=2.0,
    )
    return attrs.evolve(plain, **changes)


def properties_of(sent: Sent) -> str:
    """Return the properties of a message, whose id is its own key."""
    return encode_properties({"UNIQ_KEY": sent.key, "KEYS": f"{sent.key} {shared_key(sent)}", "TAGS": sent.tag})


def frame(sent: Sent, **changes: Any) -> bytes:
    """Return the bytes of the record of an acknowledged message."""
    assert sent.ack is not None
    values: dict[str, Any] = {
        "topic": sent.topic.encode(),
        "queue_id": sent.queue_id,
        "body": sent.body,
        "properties": properties_of(sent).encode(),
        "queue_offset": sent.ack.queue_offset,
        "phy_offset": sent.ack.phy_offset,
        "born_timestamp": 1_000_000,
        "store_timestamp": 1_000_000,
        "born_host": HOST,
        "store_host": HOST,
        **changes,
    }
    return encode_record(**values)


def record(sent: Sent, **changes: Any) -> Record:
    """Return an acknowledged message as its master serves it."""
    return decode_record(frame(sent, **changes))


def copy_of(*records: Record, min_offset: int = 0, max_offset: int | None = None, queue_id: int = 0) -> Copy:
    """Return a queue that serves ``records``."""
    return Copy(
        topic="orders",
        queue_id=queue_id,
        min_offset=min_offset,
        max_offset=min_offset + len(records) if max_offset is None else max_offset,
        records=list(records),
    )


def queues_of(*copies: Copy) -> dict[str, dict[Queue, Copy]]:
    """Return what the masters serve: broker-a's has ``copies``, broker-b's nothing."""
    return {"broker-a": {(copy.topic, copy.queue_id): copy for copy in copies}, "broker-b": {}}


def write_log(disk: SimDisk, data: bytes, *, start: int = 0, at: int = 0, synced: bool = True) -> None:
    """Write ``data`` into the commit log file that begins at ``start``, made when it is missing."""
    disk.make_dirs(LOG_DIR)
    path = layout.join(LOG_DIR, layout.file_name(start))
    file = disk.open(path) if disk.exists(path) else disk.create(path, 65536)
    file.write_at(at, data)
    if synced:
        file.sync_now()
        disk.sync_dir(LOG_DIR)
    file.close()


def image_of(messages: Iterable[Sent] = (), *, hurt_at: int | None = None, **changes: Any) -> LogImage:
    """Return the log of a machine that has ``messages`` at their places, with other ``changes`` or one other byte."""
    world = World(1)
    node = Node(world, SimNet(world), "somewhere")
    for sent in messages:
        assert sent.ack is not None
        write_log(node.disk, frame(sent, **changes), at=sent.ack.phy_offset)
    if hurt_at is not None:
        write_log(node.disk, b"\xff", at=hurt_at)
    return LogImage(node)
