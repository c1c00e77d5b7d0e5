"""
One run from a seed: warm up, chaos, heal and restart everyone, converge, check, stop, check what is left.

Nothing is judged before everything is healed and recovered, but for what must be true at every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import implementer

from rmq.remoting.client import RequestFailed
from rmq.runtime.disk.files import DiskError
from rmq.runtime.platform import Platform
from rmq.sim import checkers
from rmq.sim.cluster import Cluster, LogImage, Member, Options, draw_options
from rmq.sim.faults import KINDS, Planned, draw_plan, follow, undo_all
from rmq.sim.history import Copy, History
from rmq.sim.lookups import wrong_lookups
from rmq.sim.node import Node
from rmq.sim.readers import ASK_TIMEOUT_MS, Observer
from rmq.sim.workload import Consumer, Producer
from rmq.sim.world import SimError, World
from rmq.wire.api.routes import GET_BROKER_CLUSTER_INFO, GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader, TopicRouteData
from rmq.wire.api.topics import UPDATE_AND_CREATE_TOPIC, CreateTopicHeader
from rmq.wire.record import RecordError

T = TypeVar("T")

#: Kinds of faults by plan. "all" takes some of everything, see `draw_kinds`.
PLANS: dict[str, tuple[str, ...]] = {
    "quiet": (),
    "kills": ("kill", "restart", "kill in a sync"),
    "power": ("power failure", "power failure in a sync", "kill", "new disk"),
    "network": ("half partition", "partition", "clog", "reset"),
    "all": tuple(KINDS),
}
#: these happen to servers only
DISK_KINDS = (
    "power failure in a sync",
    "kill in a sync",
    "slow disk",
    "full disk",
    "failed sync",
    "failed write",
    "clock step",
)
#: a disk that does these raises errors which are no bugs
ERROR_KINDS = {"full disk", "failed sync", "failed write"}
#: after so long each store has synced everything
ERRORS_SHOW_S = 15.0
#: these happen to slaves only
SLAVE_KINDS = ("new disk",)

#: brokers register, slaves connect, topics get their routes
WARM_UP_S = 4.0
CHAOS_S = 60.0
#: the same in a campaign, where many short runs meet more than few long ones
CAMPAIGN_S = 20.0
#: brokers are hit so many times more often than others
BROKER_SHARE = 3
#: a fault begins about so often
FAULT_EVERY_S = 4.0
#: What convergence may take: expiry of a silent broker, a scan, a registration period and a request that hangs. The
#: slave's longest pause between two dials is shorter.
CONVERGE_S = 120 + 10 + 30 + 10
#: after consumers have stopped, a slave takes over offsets within a round of 10 s and its requests
SYNC_S = 25.0
LOOK_EVERY_S = 1.0
#: a stop syncs every queue file one after the other, here hundreds of tiny ones on a slow disk
STOP_S = 900.0
#: violations of one kind that are reported one by one
MAX_REPORTED = 5


#: A campaign's seeds take these in turn; the dear bugs live where power fails and processes die.
CAMPAIGN_PLANS = ("all", "power", "kills", "power", "all", "network", "power", "quiet")


def plan_of(seed: int) -> str:
    """Return the plan that a campaign gives a seed."""
    return CAMPAIGN_PLANS[seed % len(CAMPAIGN_PLANS)]


def draw_kinds(world: World, plan: str) -> list[str]:
    """Return the kinds of faults of a run."""
    kinds = list(PLANS[plan])
    if plan != "all":
        return kinds
    chosen = [kind for kind in kinds if world.rng.random() < 0.6]
    # A sync that fails leaves pages that look written and are not. A power failure of the same machine may then take
    # bytes that a restarted broker has read, served and built upon: no promise covers that pair.
    if world.rng.random() < 0.5:
        return [kind for kind in chosen if kind != "failed sync"]
    return [kind for kind in chosen if not kind.startswith("power failure")]


@attrs.define(kw_only=True)
class Outcome:
    """What a run was, and what it showed; good when there are no violations."""

    seed: int
    plan_name: str
    options: Options
    plan: list[Planned]
    violations: list[str] = attrs.field(factory=list)
    #: what is allowed and yet worth knowing
    remarks: list[str] = attrs.field(factory=list)
    counts: dict[str, int] = attrs.field(factory=dict)
    simulated_s: float = 0.0
    digest: str = ""

    def lines(self) -> Iterator[str]:
        """Yield everything for a reader, the verdict last."""
        yield f"seed {self.seed}, plan {self.plan_name}"
        yield from self.options.lines()
        yield from map(str, self.plan)
        yield ", ".join(f"{name} {count}" for name, count in self.counts.items())
        yield from (f"remark: {text}" for text in self.remarks)
        yield from (f"VIOLATION: {text}" for text in self.violations)
        verdict = f"{len(self.violations)} violation(s)" if self.violations else "good"
        yield f"{verdict} after {self.simulated_s:.0f} simulated seconds, trace {self.digest}"


@implementer(ILogObserver)
class Failures:
    """While entered, collects what is logged as a failure: an exception that nobody expected, or a Deferred's."""

    def __init__(self, *, disk_may_fail: bool) -> None:
        self._disk_may_fail = disk_may_fail
        self.texts: list[str] = []

    def __enter__(self) -> Failures:
        globalLogPublisher.addObserver(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        globalLogPublisher.removeObserver(self)

    def __call__(self, event: LogEvent) -> None:
        failure = event.get("log_failure")
        if failure is None or (self._disk_may_fail and failure.check(DiskError)):
            return
        self.texts.append(f"{formatEvent(event)}: {failure.getErrorMessage()}")


class Run:
    """One run; :meth:`go` does it all."""

    def __init__(
        self, seed: int, *, plan: str = "all", chaos_s: float = CHAOS_S, options: Options | None = None
    ) -> None:
        self.world = World(seed)
        self.options = options or draw_options(self.world.rng_for("options"))
        self.cluster = Cluster(self.world, self.options)
        self.history = History(lambda: self.world.now_s)
        self.losses = checkers.Losses(self.options)
        self.watch = checkers.ReplicaWatch(self.cluster, self.losses)
        self.kinds = draw_kinds(self.world, plan)
        self._chaos_s = chaos_s
        self._retired: list[Member] = []
        #: logs of slaves before an operator emptied their stores
        self._old_images: dict[str, list[LogImage]] = {}
        self.outcome = Outcome(seed=seed, plan_name=plan, options=self.options, plan=[])

    def go(self) -> Outcome:
        """Run all phases; a phase that cannot end is a violation, and the last one."""
        outcome = self.outcome
        with Failures(disk_may_fail=not ERROR_KINDS.isdisjoint(self.kinds)) as failures:
            try:
                self.warm_up()
                self.chaos()
                self.heal()
                self.converge()
                self.check()
                self.stop()
                self.check_stopped()
            except SimError as error:
                outcome.violations.append(str(error))
        outcome.violations += [f"unexpected: {failure.getErrorMessage()}" for failure in self.world.failures]
        outcome.violations += [f"logged: {text}" for text in dict.fromkeys(failures.texts)]
        outcome.violations += self.watch.violations
        self._count()
        outcome.simulated_s = self.world.now_s
        outcome.digest = self.world.trace.digest
        return outcome

    # ---- phases ----

    def warm_up(self) -> None:
        """Start everything and let it come to work."""
        self.losses.watch(self.cluster)
        self.history.on_ack.append(self.watch.acknowledged)
        self.cluster.start_servers()
        for node in self.cluster.producers:
            node.start(partial(self._producer, node))
        for node in self.cluster.consumers:
            node.start(partial(self._consumer, node))
        self.cluster.observer.start(self._observer)
        self.world.run_for(4.0)
        if self.options.topics_made_first:
            for master in self.cluster.masters:
                self._ask(self._make_topics(master))
        self.world.run_for(WARM_UP_S)

    def chaos(self) -> None:
        """Let the faults of the plan happen."""
        self.outcome.plan = self._draw_plan()
        follow(self.world, self.outcome.plan)
        self.world.run_for(self._chaos_s)

    def _draw_plan(self) -> list[Planned]:
        if not self.kinds:
            return []
        count = max(1, round(self._chaos_s / FAULT_EVERY_S))
        anywhere = [kind for kind in self.kinds if kind not in DISK_KINDS + SLAVE_KINDS]
        servers_only = [kind for kind in self.kinds if kind in DISK_KINDS]
        slaves_only = [kind for kind in self.kinds if kind in SLAVE_KINDS]
        brokers = [member.node for member in self.cluster.members] * BROKER_SHARE
        slaves = [member.node for member in self.cluster.members if not member.is_master]
        parts = [
            (anywhere, self.cluster.nodes + brokers),
            (servers_only, self.cluster.servers + brokers),
            (slaves_only, slaves),
        ]
        plan: list[Planned] = []
        for kinds, nodes in parts:
            if kinds and nodes:
                share = max(1, round(count * len(kinds) / len(self.kinds)))
                plan += draw_plan(self.world, nodes, within_s=self._chaos_s, count=share, kinds=kinds)
        return sorted(plan, key=lambda planned: planned.at_s)

    def heal(self) -> None:
        """End every fault; everyone must come up. Now and then one slave stays away for good."""
        nodes = self.cluster.nodes
        undo_all(nodes)
        if not ERROR_KINDS.isdisjoint(self.kinds):
            # an error that one file of a folder met comes out at the next sync of another one, which may end a broker
            self.world.run_for(ERRORS_SHOW_S)
            undo_all(nodes)
        self.world.run_until(lambda: all(runs(node) for node in nodes), STOP_S, "that everyone runs after healing")
        self.world.run_for(4.0)
        slaves = [member for member in self.cluster.members if not member.is_master]
        if slaves and self.kinds and self.world.rng.random() < 0.25:
            member = self.world.rng.choice(slaves)
            self._retired.append(member)
            member.node.crash()
            self.outcome.remarks.append(f"{member.node.name} is switched off for good")

    def converge(self) -> None:
        """Wait, as long as it may take, until producers are served, copies complete, all consumed, routes right."""
        healed_s = self.world.now_s
        self._wait(lambda: self._unserved(healed_s), "producers", healed_s)
        self.history.producing = False
        self.world.run_for(ASK_TIMEOUT_MS / 1000)
        self._wait(self._open_transactions, "transactions", healed_s)
        self._wait(self._incomplete, "slaves", healed_s)
        self._wait(lambda: checkers.delivered(self.history, self.losses), "consumers", healed_s)
        self._wait(lambda: checkers.commits_are_consumed(self.history, self.losses), "consumers", healed_s)
        self._wait(self._wrong_routes, "routes", healed_s)

    def _wait(self, wrong: Callable[[], Iterator[str]], who: str, since_s: float) -> None:
        """Let time pass until nothing is wrong; what still is when the time is up is a violation."""
        while (first := next(wrong(), None)) is not None:
            if self.world.now_s - since_s > CONVERGE_S:
                self.outcome.violations.append(f"{who}, {CONVERGE_S} s after healing: {first}")
                return
            self.world.run_for(LOOK_EVERY_S)

    def _unserved(self, since_s: float) -> Iterator[str]:
        served = {sent.group for sent in self.history.acked if sent.at_s > since_s}
        for group in self.options.groups:
            if group.name not in served:
                yield f"{group.name} has acknowledged nothing"

    def _open_transactions(self) -> Iterator[str]:
        for master in self.cluster.masters:
            yield from checkers.half_messages_end(master)

    def _incomplete(self) -> Iterator[str]:
        for slave in self._live_slaves():
            master = self.cluster.master_of(slave.group.name)
            if self.losses.may_diverge(slave) and checkers.is_parted(master, slave):
                self._begin_anew(slave)
            yield from checkers.slave_is_complete(master, slave)
        for member in self._live():
            store = member.broker.store
            if store.dispatched_offset != store.end_offset:
                yield f"{member.node.name} has dispatched {store.dispatched_offset} of {store.end_offset}"
            if member.broker.ha.status().pending_puts:
                yield f"{member.node.name} has puts that wait for slaves"

    def _begin_anew(self, slave: Member) -> None:
        """Do what an operator does with a slave that holds what its master has lost: an empty store, and a start."""
        self.outcome.remarks.append(f"{slave.node.name} has diverged from its master and restarts with an empty store")
        self.world.settle(slave.node.stop(), STOP_S)
        self._old_images.setdefault(slave.group.name, []).append(LogImage(slave.node).keep())
        slave.node.disk.replace()
        self.losses.forget(slave)
        slave.node.start()

    def _wrong_routes(self) -> Iterator[str]:
        for addr in self.cluster.namesrv_addrs:
            found = self._ask(self._observe_routes(addr))
            if isinstance(found, str):
                yield found
            else:
                yield from checkers.routes_are_right(addr, found[0], found[1], self._live())

    def check(self) -> None:
        """Judge what the living brokers serve."""
        copies = {master.group.name: self._copies_of(master) for master in self.cluster.masters}
        images = {
            master.group.name: [
                *(LogImage(slave.node) for slave in self.cluster.slaves_of(master)),
                *self._old_images.get(master.group.name, ()),
            ]
            for master in self.cluster.masters
        }
        violations = self.outcome.violations
        violations += few(checkers.acked_stays(self.history, copies, images, self.losses))
        violations += few(checkers.nothing_reused(self.history, copies, self.losses))
        violations += few(checkers.seen_is_true(self.history))
        violations += few(checkers.offsets_wait(self.history, self.losses))
        violations += few(checkers.visible_only_after_commit(self.history, copies))
        violations += few(checkers.commits_are_stored(self.history, copies, self.losses))
        for group, queues in copies.items():
            for copy in queues.values():
                violations += few(checkers.queue_is_dense(group, copy))
        for master in self.cluster.masters:
            self._look_up(master, copies[master.group.name].values())
        for slave in self._live_slaves():
            served = self._copies_of(slave).values()
            for copy in served:
                violations += few(checkers.queue_is_dense(slave.node.name, copy))
            self._look_up(slave, served)

    def _look_up(self, member: Member, copies: Iterable[Copy]) -> None:
        """Find messages by key and by time."""
        rng = self.world.rng_for("look-ups", member.node.name)
        wrong = self._ask(wrong_lookups(self.observer, member.node.name, member.addr, copies, rng))
        self.outcome.violations += few(iter(wrong))

    def stop(self) -> None:
        """Stop clients, slaves, masters and NameServers, in order and each in order."""
        self._end(self.cluster.consumers)
        self.world.run_for(SYNC_S)
        self.outcome.violations += (f"routes, {SYNC_S:g} s later: {wrong}" for wrong in self._wrong_routes())
        for slave in self._live_slaves():
            master = self.cluster.master_of(slave.group.name)
            self.outcome.violations += checkers.tables_agree(
                slave.node.name,
                slave.broker.topics.snapshot().topic_config_table,
                master.broker.topics.snapshot().topic_config_table,
                (slave.broker.offsets.snapshot(), master.broker.offsets.snapshot()),
            )
        self._end([*self.cluster.producers, self.cluster.observer])
        self._end([slave.node for slave in self._live_slaves()])
        self._end([master.node for master in self.cluster.masters])
        self._end(self.cluster.name_servers)

    def check_stopped(self) -> None:
        """Judge what is left: on the disks, and in the processes that ended."""
        outcome = self.outcome
        for slave in self._live_slaves():
            master = self.cluster.master_of(slave.group.name)
            outcome.violations += checkers.replicas_agree(master, slave)
        for member in self._live():
            outcome.violations += few(checkers.store_is_sound(member, self.cluster))
        away = {member.node for member in self._retired}
        outcome.violations += checkers.nothing_left(node for node in self.world.nodes.values() if node not in away)

    # ---- parts ----

    def _producer(self, node: Node, platform: Platform) -> Producer:
        name = f"{node.name}.{node.incarnation}"
        return Producer(platform, self.cluster.namesrv_addrs, name, self.options, self.history)

    def _consumer(self, node: Node, platform: Platform) -> Consumer:
        name = f"{node.name}.{node.incarnation}"
        return Consumer(platform, self.cluster.namesrv_addrs, name, self.options, self.history)

    def _observer(self, platform: Platform) -> Observer:
        return Observer(platform)

    @property
    def observer(self) -> Observer:
        service = self.cluster.observer.service
        assert isinstance(service, Observer)
        return service

    def _live(self) -> list[Member]:
        return [member for member in self.cluster.members if member not in self._retired]

    def _live_slaves(self) -> list[Member]:
        return [member for member in self._live() if not member.is_master]

    def _ask(self, coroutine: Any) -> Any:
        return self.world.settle(Deferred.fromCoroutine(coroutine), 60.0)

    def _copies_of(self, member: Member) -> Mapping[checkers.Queue, Copy]:
        """Return all that a broker serves; what it refuses to serve is a violation."""
        copies = {}
        queues = list(self.options.all_queues)
        while queues:
            unknown = []
            for topic, queue_id in queues:
                knows_it = topic in member.broker.topics
                found = self._ask(self._observe_queue(member, topic, queue_id))
                if isinstance(found, Copy):
                    copies[topic, queue_id] = found
                elif knows_it:
                    self.outcome.violations.append(f"{member.node.name} does not serve {topic}:{queue_id}: {found}")
                else:
                    unknown.append((topic, queue_id))
            # A slave may have heard of the topic while others were pulled.
            queues = [queue for queue in unknown if queue[0] in member.broker.topics]
        return copies

    async def _make_topics(self, master: Member) -> None:
        for topic in self.options.topics:
            header = CreateTopicHeader(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=self.options.queues,
                write_queue_nums=self.options.queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
            )
            await self.observer.remoting.invoke(
                master.addr, UPDATE_AND_CREATE_TOPIC, header, None, timeout_ms=ASK_TIMEOUT_MS
            )

    async def _observe_queue(self, member: Member, topic: str, queue_id: int) -> Copy | str:
        failed: RequestFailed | None = None
        for _ in range(2):
            try:
                return await self.observer.read_queue(member.addr, topic, queue_id)
            except RequestFailed as error:
                # The connection may be from before a power failure, of which the observer hears just now.
                failed = error
            except RecordError as error:
                return f"it serves bytes that are no records: {error}"
        return str(failed)

    async def _observe_routes(self, addr: str) -> Any:
        remoting = self.observer.remoting
        routes: dict[str, TopicRouteData | None] = {}
        try:
            info = await remoting.invoke(addr, GET_BROKER_CLUSTER_INFO, None, None, timeout_ms=ASK_TIMEOUT_MS)
            for topic in sorted({sent.topic for sent in self.history.acked}):
                response = await remoting.invoke(
                    addr, GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic), None, timeout_ms=ASK_TIMEOUT_MS
                )
                routes[topic] = response.body
        except RequestFailed as error:
            return f"NameServer {addr} does not answer: {error}"
        return info.body, routes

    def _end(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.world.settle(node.stop(), STOP_S)

    def _count(self) -> None:
        history, counts = self.history, Counter[str]()
        counts["sent"] = len(history.sent)
        for sent in history.acked:
            assert sent.ack is not None
            counts[f"acknowledged ({sent.ack.code})"] += 1
        counts["transactions"] = len(history.transactions)
        counts["committed"] = len(checkers.committed(history, self.losses))
        counts.update(history.refusals)
        counts["consumed"] = len(history.seen)
        counts["acknowledgements looked up on slaves"] = self.watch.checked
        taken = [sent for sent in history.acked if self.losses.may_take(sent)]
        counts["acknowledged and at risk in a power failure"] = len(taken)
        counts["events"] = self.world.trace.count
        self.outcome.counts = {name: count for name, count in counts.items() if count}


def few(violations: Iterator[str]) -> list[str]:
    """Return the first violations of a kind and how many there are."""
    found = list(violations)
    return (
        found
        if len(found) <= MAX_REPORTED
        else [*found[:MAX_REPORTED], f"… and {len(found) - MAX_REPORTED} more like that"]
    )


def runs(node: Node) -> bool:
    """Tell whether a process runs that is not about to end."""
    return node.process is not None and not node.is_ending
