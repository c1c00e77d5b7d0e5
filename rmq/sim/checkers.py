"""
What must be true of a cluster, one function per invariant; each returns what is wrong, in words.

The functions judge records of a run (`History`, `Copy`, `LogImage`), so that a test can plant a difference and see it
found. What a fault was allowed to take is no violation; :class:`Losses` is the table of that:

| flush mode of the master | a kill may take | a power failure of the master may take |
|---|---|---|
| ASYNC_FLUSH, or the producer did not wait | nothing | what was not synced; a slave has it if SYNC_MASTER said so |
| SYNC_FLUSH | nothing | nothing |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from rmq.sim.cluster import ROOT, Cluster, LogImage, Member, Options
from rmq.sim.history import Committed, Copy, History, Sent, Transaction, key_of, same
from rmq.sim.node import Node
from rmq.store import layout
from rmq.store.check import check_store
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.wire.api.common import TopicConfig
from rmq.wire.api.routes import ClusterInfo, TopicRouteData
from rmq.wire.codes import ResponseCode
from rmq.wire.record import TRANSACTION_COMMIT, Record, RecordError, decode_record

#: a consumer may get what was on its way so long after the sender has lost its power
IN_FLIGHT_S = 10.0
#: Answers "no slave" and "slave too late" say nothing of the disk; given before syncFlushTimeout, the disk was in time.
SURELY_FLUSHED_S = 4.0
#: a record is at least so much longer than its body
RECORD_HEAD_BYTES = 128

Place = tuple[str, str, int, int]
Queue = tuple[str, int]


@attrs.frozen(kw_only=True)
class PowerLoss:
    """A power failure of one broker: the log from ``from_phy`` up to ``end`` was not surely on its platter."""

    node: str
    group: str
    is_master: bool
    at_s: float
    from_phy: int
    #: the end of the longest copy in the group at that moment
    end: int
    #: the group's other machines whose logs reached beyond ``from_phy``
    ahead: tuple[str, ...] = ()


class Losses:
    """The power failures of a run, and what they excuse."""

    def __init__(self, options: Options) -> None:
        self._groups = {group.name: group for group in options.groups}
        self._acks_after_flush = options.store.get("haAckAfterFlush") == "true"
        self.failures: list[PowerLoss] = []
        #: (group, when) of slaves that got an empty disk
        self._new_disks: list[tuple[str, float]] = []

    def watch(self, cluster: Cluster) -> None:
        """Note every power failure of a broker from now on."""
        for member in cluster.members:
            member.node.before_crash = lambda member=member: self.note(cluster, member)  # type: ignore[misc]
            member.node.disk.on_replace = partial(self._replaced, cluster, member)

    def _replaced(self, cluster: Cluster, member: Member) -> None:
        self._new_disks.append((member.group.name, cluster.world.now_s))

    def note(self, cluster: Cluster, member: Member) -> None:
        """Look what the disk would lose, before it does."""
        folder = layout.commit_log_dir(ROOT)
        risks = [
            start + first
            for path, first in member.node.disk.at_risk(folder).items()
            if (start := layout.file_start(path.rpartition("/")[2])) is not None
        ]
        ends = {other.node.name: LogImage(other.node).end for other in cluster.members if other.group is member.group}
        from_phy = min(risks, default=1 << 62)
        self.failures.append(
            PowerLoss(
                node=member.node.name,
                group=member.group.name,
                is_master=member.is_master,
                at_s=cluster.world.now_s,
                from_phy=from_phy,
                end=max(ends.values()),
                ahead=tuple(name for name, end in ends.items() if name != member.node.name and end > from_phy),
            )
        )

    def of_master(self, group: str) -> list[PowerLoss]:
        """Return the power failures of a group's master at which something was at risk."""
        return [each for each in self.failures if each.group == group and each.is_master and each.from_phy < each.end]

    def is_durable(self, sent: Sent) -> bool:
        """Tell whether the answer promised that the message is on the master's disk."""
        ack = sent.ack
        if ack is None or not sent.waits or self._groups[sent.group].flush is not FlushDiskType.SYNC_FLUSH:
            return False
        in_time = ack.at_s - sent.at_s < SURELY_FLUSHED_S
        return ack.code == ResponseCode.SUCCESS or (ack.code != ResponseCode.FLUSH_DISK_TIMEOUT and in_time)

    def is_replicated(self, sent: Sent) -> bool:
        """Tell whether the answer promised that a slave has the message."""
        is_sync = self._groups[sent.group].role is BrokerRole.SYNC_MASTER
        return sent.ack is not None and sent.waits and is_sync and sent.ack.code == ResponseCode.SUCCESS

    def may_take(self, sent: Sent, *, was_seen: bool = False) -> bool:
        """Tell whether the master may have lost a message; never what a SYNC_FLUSH master showed to consumers."""
        if self.is_durable(sent) or (was_seen and self._groups[sent.group].flush is FlushDiskType.SYNC_FLUSH):
            return False
        end = 1 << 62 if sent.ack is None else sent.ack.phy_offset + len(sent.body) + RECORD_HEAD_BYTES
        return any(each.at_s >= sent.at_s and end > each.from_phy for each in self.of_master(sent.group))

    def slave_failed_since(self, group: str, since_s: float) -> bool:
        """Tell whether any slave of a group may have lost since then what it had acknowledged."""
        if any(name == group and at_s >= since_s for name, at_s in self._new_disks):
            return True
        return not self._acks_after_flush and any(
            each.group == group and not each.is_master and each.at_s >= since_s for each in self.failures
        )

    def may_diverge(self, member: Member) -> bool:
        """
        Tell whether a slave may hold other bytes than its master; the two must part then, and not go on as one.

        Either it has kept what its master lost, or its own power failure has changed bytes that no CRC covers.
        """
        own = any(each.node == member.node.name and each.from_phy < each.end for each in self.failures)
        return not member.is_master and (
            own or any(member.node.name in each.ahead for each in self.of_master(member.group.name))
        )

    def forget(self, member: Member) -> None:
        """Note a slave with an emptied store: from now on it must agree with its master."""
        self.failures = [
            attrs.evolve(each, ahead=tuple(name for name in each.ahead if name != member.node.name))
            for each in self.failures
            if each.node != member.node.name
        ]

    def skipped(self, history: History, sent: Sent) -> bool:
        """Tell whether consumers were beyond a message's number before it was sent, because of one that was lost."""
        assert sent.ack is not None
        for loss in self.of_master(sent.group):
            for seen in history.seen:
                if (
                    (seen.group, seen.topic, seen.queue_id) == (sent.group, sent.topic, sent.ack.queue_id)
                    and seen.queue_offset >= sent.ack.queue_offset
                    and seen.at_s <= loss.at_s + IN_FLIGHT_S
                    and sent.ack.at_s >= loss.at_s
                    and self._groups[sent.group].flush is FlushDiskType.ASYNC_FLUSH
                ):
                    return True
        return False


# ---- 1: what was acknowledged stays ----


def acked_stays(
    history: History,
    copies: Mapping[str, Mapping[Queue, Copy]],
    slaves: Mapping[str, Sequence[LogImage]],
    losses: Losses,
) -> Iterator[str]:
    """
    Every acknowledged message is at its (topic, queue, offset) on its master, byte for byte.

    ``copies`` is what the masters serve, by broker name; ``slaves`` the logs of their slaves.
    """
    for sent in history.acked:
        assert sent.ack is not None
        record = at(copies[sent.group].get((sent.topic, sent.ack.queue_id)), sent.ack.queue_offset)
        if record is not None and same(sent, record) and record.phy_offset == sent.ack.phy_offset:
            continue
        found = "nothing" if record is None else f"{key_of(record)!r} at log {record.phy_offset}"
        if not losses.may_take(sent):
            yield f"{sent.key} was acknowledged ({sent.ack.code}) at {sent.place}, where there is {found}"
        elif (
            losses.is_replicated(sent)
            and not losses.slave_failed_since(sent.group, sent.at_s)
            and not any(holds(image, sent) for image in slaves[sent.group])
        ):
            yield f"{sent.key}, lost by its master, was acknowledged as replicated at {sent.place}; no slave has it"


def at(copy: Copy | None, queue_offset: int) -> Record | None:
    """Return the record that a broker serves for a number."""
    if copy is None or not copy.min_offset <= queue_offset < copy.min_offset + len(copy.records):
        return None
    return copy.records[queue_offset - copy.min_offset]


def holds(image: LogImage, sent: Sent) -> bool:
    """Tell whether a log has a message at its place."""
    assert sent.ack is not None
    try:
        record = decode_record(image.read(sent.ack.phy_offset, len(sent.body) + 4096))
    except RecordError:
        return False
    return same(sent, record) and record.phy_offset == sent.ack.phy_offset


class ReplicaWatch:
    """Check, at the moment a SYNC_MASTER acknowledges, that a slave has the message in its file."""

    def __init__(self, cluster: Cluster, losses: Losses) -> None:
        self._cluster = cluster
        self._losses = losses
        #: so many slaves must have it; inSyncReplicas counts the master
        self._need = max(1, int(cluster.options.store.get("inSyncReplicas", "1")) - 1)
        self.violations: list[str] = []
        self.checked = 0

    def acknowledged(self, sent: Sent) -> None:
        """Check one acknowledgement."""
        if not self._losses.is_replicated(sent) or self._losses.slave_failed_since(sent.group, sent.at_s):
            return
        self.checked += 1
        slaves = self._cluster.slaves_of(self._cluster.master_of(sent.group))
        have = sum(holds(LogImage(slave.node), sent) for slave in slaves)
        if have < self._need:
            who = "no slave has it" if not have else f"{have} of {self._need} slaves have it"
            self.violations.append(f"{sent.key} was acknowledged as replicated at {sent.place}, but {who}")


# ---- 2: copies agree ----


def replicas_agree(master: Member, slave: Member) -> Iterator[str]:
    """Where both logs hold bytes they are equal. A slave may begin at the start of a later file."""
    one, other = LogImage(master.node), LogImage(slave.node)
    start, end = max(one.start, other.start), min(one.end, other.end)
    step = 4096
    found = 0
    for offset in range(start, end, step):
        size = min(step, end - offset)
        left, right = one.read(offset, size), other.read(offset, size)
        if left != right and found < 3:
            found += 1
            wrong = [offset + n for n in range(size) if left[n : n + 1] != right[n : n + 1]]
            yield f"{slave.node.name} differs from its master at {wrong[0]} ({len(wrong)} bytes of this page)"


def slave_is_complete(master: Member, slave: Member) -> Iterator[str]:
    """After healing a slave has all that its master has, and nothing else."""
    end, copied = master.broker.store.end_offset, slave.broker.store.end_offset
    if copied != end:
        yield f"{slave.node.name} ends at {copied}, its master at {end}"


def is_parted(master: Member, slave: Member) -> bool:
    """Tell whether one of the two has said that the other stands for another history."""
    if slave.broker.store.end_offset == master.broker.store.end_offset:
        return False
    link = slave.broker.ha.status().link
    said = "" if link is None else link.last_error
    return "diverged" in said or "ahead" in said or master.broker.ha.status().refused > 0


# ---- 3: queues and index are what the log dictates ----


def store_is_sound(member: Member, cluster: Cluster) -> Iterator[str]:
    """`rmq.store.check` finds no error in a broker that was stopped."""
    for finding in check_store(member.node.disk, ROOT, cluster.setup_of(member).store):
        if finding.severity == "error":
            yield f"{member.node.name}: {finding.kind} {finding.where} at {finding.offset}: {finding.text}"


# ---- 4: numbers ----


def queue_is_dense(name: str, copy: Copy) -> Iterator[str]:
    """A queue serves one record for each number from its minimum to its end, and that record carries the number."""
    where = f"{name} {copy.topic}:{copy.queue_id}"
    if copy.min_offset + len(copy.records) != copy.max_offset:
        yield f"{where} has {len(copy.records)} records for the numbers {copy.min_offset} to {copy.max_offset - 1}"
    for number, record in enumerate(copy.records, copy.min_offset):
        if (record.topic, record.queue_id) != (copy.topic, copy.queue_id):
            yield f"{where} has a record of {record.topic}:{record.queue_id} as number {number}"
        elif record.queue_offset != number:
            yield f"{where} has number {record.queue_offset} as number {number}"


def nothing_reused(history: History, copies: Mapping[str, Mapping[Queue, Copy]], losses: Losses) -> Iterator[str]:
    """No number of a queue ever stands for two messages, and none but committed ones is stored twice."""
    users: dict[Place, dict[str, bool]] = {}
    for sent in history.acked:
        assert sent.ack is not None
        users.setdefault((sent.group, sent.topic, sent.ack.queue_id, sent.ack.queue_offset), {})[sent.key] = False
    for seen in history.seen:
        users.setdefault((seen.group, seen.topic, seen.queue_id, seen.queue_offset), {})[seen.key] = True
    stored: dict[str, Record] = {}
    for group, queues in copies.items():
        for copy in queues.values():
            for record in copy.records:
                key = key_of(record)
                place = (group, record.topic, record.queue_id, record.queue_offset)
                users.setdefault(place, {}).setdefault(key, False)
                twin = stored.setdefault(key, record)
                if twin.phy_offset != record.phy_offset and key not in history.transactions:
                    yield f"{key} is stored twice, at log {twin.phy_offset} and {record.phy_offset} of {group}"
    for place, keys in users.items():
        messages = sorted((history.sent[key] for key in keys if key in history.sent), key=lambda sent: sent.at_s)
        for earlier in messages[:-1]:
            if not losses.may_take(earlier, was_seen=keys[earlier.key]):
                yield f"number {place} was that of {earlier.key} and is that of {messages[-1].key}"


# ---- 5: delivery ----


def seen_is_true(history: History) -> Iterator[str]:
    """Consumers get what was sent, and nothing else."""
    for seen in history.seen:
        sent = history.sent.get(seen.key)
        if sent is None and seen.key in history.transactions:
            sent = history.transactions[seen.key].sent
        if sent is None:
            yield f"{seen.consumer} got {seen.key!r} from {seen.group}, which nobody sent"
        elif (sent.body, sent.topic, sent.queue_id, sent.group) != (seen.body, seen.topic, seen.queue_id, seen.group):
            yield f"{seen.consumer} got {seen.key} from {seen.group} {seen.topic}:{seen.queue_id} with other contents"


def handled(history: History) -> set[str]:
    """
    Return the keys of messages whose handler has ended.

    A message whose handler died with its process comes again, unless an offset has passed it: that must not be.
    """
    return {each.key for each in history.seen if each.handled_s is not None}


def undelivered(history: History, losses: Losses) -> list[Sent]:
    """Return the acknowledged messages that no handler has done, and that no fault may have taken."""
    seen = handled(history)
    return [
        sent
        for sent in history.acked
        if sent.key not in seen and not losses.may_take(sent) and not losses.skipped(history, sent)
    ]


def delivered(history: History, losses: Losses) -> Iterator[str]:
    """Every acknowledged message was consumed."""
    for sent in undelivered(history, losses):
        yield f"{sent.key} was acknowledged at {sent.place} and never consumed"


def offsets_wait(history: History, losses: Losses) -> Iterator[str]:
    """No offset passes an acknowledged message before a handler of the group has ended with it."""
    ended: dict[str, float] = {}
    for seen in history.seen:
        if seen.handled_s is not None:
            ended[seen.key] = min(seen.handled_s, ended.get(seen.key, seen.handled_s))
    offsets: dict[tuple[str, str, int], list[Committed]] = {}
    for each in history.committed:
        offsets.setdefault((each.group, each.topic, each.queue_id), []).append(each)
    for sent in history.acked:
        assert sent.ack is not None
        ended_s = ended.get(sent.key, math.inf)
        for each in offsets.get((sent.group, sent.topic, sent.ack.queue_id), ()):
            if sent.ack.at_s <= each.at_s < ended_s and each.offset > sent.ack.queue_offset:
                if not losses.may_take(sent) and not losses.skipped(history, sent):
                    why = f"no handler had ended with {sent.key} at {sent.place}"
                    yield f"{each.consumer} wrote offset {each.offset}, and {why}"
                break


# ---- 6: transactions ----


def committed(history: History, losses: Losses) -> list[Transaction]:
    """Return the transactions that must be visible: acknowledged, committed, and beyond the reach of any fault."""
    return [
        transaction
        for transaction in history.transactions.values()
        if transaction.state == TRANSACTION_COMMIT and not losses.may_take(transaction.sent)
    ]


def visible_only_after_commit(history: History, copies: Mapping[str, Mapping[Queue, Copy]]) -> Iterator[str]:
    """No message of a transaction is consumed or served before its commit, and none ever after a rollback."""
    for seen in history.seen:
        transaction = history.transactions.get(seen.key)
        if transaction is not None and (why := invisible(transaction, seen.at_s)):
            yield f"{seen.consumer} got {seen.key} from {seen.group}, which {why}"
    for group, queues in copies.items():
        for copy in queues.values():
            for record in copy.records:
                transaction = history.transactions.get(key_of(record))
                if transaction is not None and (why := invisible(transaction)):
                    yield f"{group} serves {key_of(record)} at log {record.phy_offset}, which {why}"
    yield from history.wrong_checks


def invisible(transaction: Transaction, at_s: float | None = None) -> str:
    """Return why nobody may see a message, now or at a moment; empty when everybody may."""
    if transaction.decided_s is None:
        return "was never committed"
    if transaction.state != TRANSACTION_COMMIT:
        return "was rolled back"
    early = at_s is not None and at_s < transaction.decided_s
    return f"was committed {transaction.decided_s - (at_s or 0):.3f} s later" if early else ""


def commits_are_stored(history: History, copies: Mapping[str, Mapping[Queue, Copy]], losses: Losses) -> Iterator[str]:
    """Each committed transaction is in its queue, once or more."""
    stored = {
        (group, *queue, key_of(record))
        for group, queues in copies.items()
        for queue, copy in queues.items()
        for record in copy.records
    }
    for transaction in committed(history, losses):
        sent = transaction.sent
        if (sent.group, sent.topic, sent.queue_id, sent.key) not in stored:
            yield f"{sent.key} was committed and is not in {sent.group} {sent.topic}:{sent.queue_id}"


def commits_are_consumed(history: History, losses: Losses) -> Iterator[str]:
    """Each committed transaction was consumed; where lost numbers were used again, consumers may have passed it."""
    seen = handled(history)
    for transaction in committed(history, losses):
        sent = transaction.sent
        if sent.key not in seen and not losses.of_master(sent.group):
            yield f"{sent.key} was committed and never consumed"


def half_messages_end(master: Member) -> Iterator[str]:
    """Once every producer answers, no half message stays open."""
    if count := master.broker.checks.open_half_messages:
        yield f"{master.node.name} has {count} half messages without an end"


# ---- 7: routes ----


def routes_are_right(
    name_server: str, found: ClusterInfo, routes: Mapping[str, TopicRouteData | None], members: Sequence[Member]
) -> Iterator[str]:
    """A NameServer lists exactly the brokers that live, in the cluster and in the route of every topic in use."""
    expected: dict[str, dict[int, str]] = {}
    for member in members:
        expected.setdefault(member.group.name, {})[member.broker_id] = member.addr
    addrs = {name: data.broker_addrs for name, data in found.broker_addr_table.items()}
    if addrs != expected:
        yield f"{name_server} lists {addrs}, alive are {expected}"
    for topic, route in routes.items():
        listed = {} if route is None else {data.broker_name: data.broker_addrs for data in route.broker_datas}
        unknown = {name: addr for name, addr in listed.items() if expected.get(name) != addr}
        if unknown or not listed:
            yield f"{name_server} routes {topic} to {listed}, alive are {expected}"


def tables_agree(
    slave: str, mine: Mapping[str, TopicConfig], masters: Mapping[str, TopicConfig], offsets: tuple[object, object]
) -> Iterator[str]:
    """A slave has its master's topics and, once nobody consumes any more, consumer offsets."""
    if mine != masters:
        yield f"{slave} has topics {sorted(mine)}, its master {sorted(masters)}"
    if offsets[0] != offsets[1]:
        yield f"{slave} has consumer offsets {offsets[0]}, its master {offsets[1]}"


# ---- 8: leaks ----


def nothing_left(nodes: Iterable[Node]) -> Iterator[str]:
    """A process that was stopped has left no timer, connection, port or open file."""
    for node in nodes:
        if node.process is not None:
            yield f"{node.name} still runs"
        for leak in node.leaks:
            yield f"{node.name} left a {leak}"
