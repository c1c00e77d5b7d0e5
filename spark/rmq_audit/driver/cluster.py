"""A cluster: each pair by itself, then the routes, then one verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import xxhash

from rmq.store import layout
from rmq_audit.driver import recordindex
from rmq_audit.driver.acked import Sends, split_sends
from rmq_audit.driver.audit import Options, Result, check, compare
from rmq_audit.driver.clusterconfig import BrokerConfig, ClusterConfig
from rmq_audit.driver.consumers import TOPICS_FILE, Earlier, configured_topics
from rmq_audit.driver.findings import Finding, Verdict, finding, judge
from rmq_audit.driver.queues import by_queue, current_runs
from rmq_audit.driver.routes import Held, Routes, check_routes, disambiguate, read_routes
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.location import InputError, child, located
from rmq_audit.worker.work import BOTH, MASTER, SLAVE, STORE, Severity

#: what the cluster is called whose stores are sound and whose NameServers are not
MISROUTED = "MISROUTED"

#: from harmless to worst; one word for the cluster is that of its worst part
WORDS = (
    Verdict.CONSISTENT.value,
    Verdict.LAGGING.value,
    Verdict.INCOMPLETE.value,
    MISROUTED,
    Verdict.AHEAD.value,
    Verdict.DAMAGED.value,
    Verdict.DIFFERENT.value,
    Verdict.DIVERGED.value,
)

#: exit statuses from harmless to worst: what is proven outranks what was not read
STATUSES = (0, 1, 3, 2)


@attrs.frozen
class Pair:
    """One comparison: a broker's master with one of its slaves, by number from 1; 0 for a master without slaves."""

    broker: BrokerConfig
    number: int

    @property
    def slave(self) -> str | None:
        """Where the slave's store lies."""
        return self.broker.slaves[self.number - 1] if self.number else None

    @property
    def name(self) -> str:
        """What reports call it."""
        if len(self.broker.slaves) < 2:
            return self.broker.name
        return f"{self.broker.name} slave {self.number}"


@attrs.define(kw_only=True)
class PairResult:
    """What became of one pair; ``refused`` says why there is no ``result``."""

    pair: Pair
    seconds: float
    result: Result | None = None
    refused: str | None = None

    @property
    def verdict(self) -> str:
        return Verdict.INCOMPLETE.value if self.result is None else self.result.verdict.value

    @property
    def exit_status(self) -> int:
        return 3 if self.result is None else self.result.exit_status


@attrs.define(kw_only=True)
class ClusterResult:
    """
    Everything one run found out. ``findings`` are those of all pairs, each once, and those of the cluster as a whole;
    they name broker and, where there are several, slave. ``of_cluster`` are those that are no pair's own.
    """

    config: ClusterConfig
    pairs: list[PairResult]
    routes: list[Routes]
    findings: list[Finding]
    verdict: str
    exit_status: int
    complete: bool
    of_cluster: list[Finding] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class Tables:
    """Everything that is compared with the stores, read before the long part, so that a mistake in it shows at once."""

    sends: Mapping[str, Sends]
    strangers: Mapping[str, int]
    routes: list[Routes]


#: what to judge of a pair beside the options of all: the ends of what is still written
Ends = Callable[[Pair], Mapping[str, int] | None]


def pairs_of(config: ClusterConfig) -> Iterator[Pair]:
    """Yield every pair; a broker without slaves once, to be checked alone."""
    for broker in config.brokers:
        for number in range(1, len(broker.slaves) + 1) if broker.slaves else (0,):
            yield Pair(broker, number)


def read_tables(config: ClusterConfig) -> Tables:
    """Return the side tables and routes; InputError naming file and row."""
    names = [broker.name for broker in config.brokers]
    sends: dict[str, Sends] = {}
    strangers: dict[str, int] = {}
    if config.acked:
        sends, strangers = split_sends(config.acked, names)
    read_for = {broker.name: (*config.acked, *broker.acked) for broker in config.brokers}
    for broker in config.brokers:
        for path in broker.acked:
            own, others = split_sends((path,), (broker.name,), nameless=broker.name)
            if sends.setdefault(broker.name, own[broker.name]) is not own[broker.name]:
                sends[broker.name].merge(own[broker.name])
            for name, count in others.items():
                # one table may be named for each of the brokers whose rows it has
                if path not in read_for.get(name, ()):
                    strangers[name] = strangers.get(name, 0) + count
    routes = disambiguate([one for path in config.routes for one in read_routes(path)])
    return Tables(sends=sends, strangers=strangers, routes=routes)


def audit_cluster(
    config: ClusterConfig,
    tables: Tables,
    engine: Engine,
    options: Options,
    *,
    ends: Ends = lambda pair: None,
    earlier: Mapping[str, Earlier] | None = None,
    record_index: str | None = None,
) -> ClusterResult:
    """
    Audit every pair and the routes; EngineError when the engine fails.

    What is wrong with one store (not there, a dump of another broker) leaves its pair incomplete and the others alone.
    ``earlier`` are consumer offsets at the previous run, by name of the pair.
    ``record_index`` is an empty folder for the record index of all stores.
    """
    pairs, found = [], list[Finding]()
    for pair in pairs_of(config):
        own = attrs.evolve(options, cluster=config.cluster, ends=ends(pair), earlier=(earlier or {}).get(pair.name))
        if record_index is not None:
            several = len(pair.broker.slaves) > 1
            folders = recordindex.of_broker(record_index, pair.broker.name, pair.number, several=several)
            own = attrs.evolve(own, record_index=folders)
        one = _audit_pair(pair, tables, engine, own)
        pairs.append(one)
        found += _named(one, config)
    of_all = [*_of_strangers(config, tables), *_of_routes(config, tables, pairs)]
    for finding_ in of_all:
        finding_.cluster = finding_.cluster or config.cluster
        finding_.finding_id = _id(finding_, "")
    findings = _once([*found, *of_all])
    word, status = _judge(of_all)
    return ClusterResult(
        config=config,
        pairs=pairs,
        routes=tables.routes,
        findings=findings,
        verdict=max([word, *(one.verdict for one in pairs)], key=WORDS.index),
        exit_status=max([status, *(one.exit_status for one in pairs)], key=STATUSES.index),
        complete=not any(one.invariant == "AU-COVER" for one in findings),
        of_cluster=of_all,
    )


def with_findings(result: ClusterResult, more: Sequence[Finding]) -> ClusterResult:
    """Return the result with findings that are no pair's own, each about one broker."""
    for one in more:
        one.cluster = one.cluster or result.config.cluster
        one.finding_id = _id(one, one.replica)
    return attrs.evolve(
        result,
        findings=_once([*result.findings, *more]),
        of_cluster=[*result.of_cluster, *more],
        exit_status=max(result.exit_status, _judge(more)[1], key=STATUSES.index),
    )


def _audit_pair(pair: Pair, tables: Tables, engine: Engine, options: Options) -> PairResult:
    broker = pair.broker
    options = attrs.evolve(
        options,
        broker=broker.name,
        allowed_lag_bytes=broker.allowed_lag_bytes,
        index_slots=broker.index_slots,
        acked=tables.sends.get(broker.name),
        consumer_offsets=None if broker.consumer_offsets is None else located(broker.consumer_offsets),
    )
    began = time.perf_counter()
    result, refused = None, None
    try:
        if pair.slave is None:
            result = check(broker.master, engine, options)
        else:
            result = compare(broker.master, pair.slave, engine, options)
    except InputError as error:
        refused = str(error)
    return PairResult(pair=pair, seconds=time.perf_counter() - began, result=result, refused=refused)


def _named(one: PairResult, config: ClusterConfig) -> Iterator[Finding]:
    """
    Yield the findings of a pair under the names of the cluster.

    What is on the master alone has one identity whatever slave it was compared with. A broker's several slaves are
    numbered as in the configuration.
    """
    pair = one.pair
    several = len(pair.broker.slaves) > 1
    if one.result is None:
        side = STORE if pair.slave is None else f"{SLAVE} {pair.number}" if several else SLAVE
        refused = finding("AU-COVER", side, detail=str(one.refused), broker=pair.broker.name)
        refused.cluster = config.cluster
        refused.finding_id = _id(refused, pair.name)
        yield refused
        return
    ids = {old.finding_id: _id(old, "" if old.replica in (MASTER, STORE) else pair.name) for old in one.result.findings}
    for old in one.result.findings:
        new = attrs.evolve(old, sample_msg_ids=list(old.sample_msg_ids))
        new.finding_id = ids[old.finding_id]
        new.derived_from = None if old.derived_from is None else ids.get(old.derived_from)
        new.broker = pair.broker.name
        if several and old.replica in (SLAVE, BOTH):
            new.replica = f"{old.replica} {pair.number}" if old.replica == SLAVE else f"{BOTH} of slave {pair.number}"
            new.blame = f"{SLAVE} {pair.number}" if old.blame == SLAVE else old.blame
        yield new


def _id(one: Finding, pair: str) -> str:
    text = "|".join((one.invariant, one.broker or "", pair, one.field or "", one.topic or "", one.finding_id))
    if not one.finding_id:
        text += one.detail
    digest: str = xxhash.xxh3_64_hexdigest(text.encode())
    return digest


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Return each finding once, causes before what follows from them."""
    kept: dict[str, Finding] = {}
    for one in findings:
        known = kept.setdefault(one.finding_id, one)
        if known.derived_from is None:
            known.derived_from = one.derived_from
    return sorted(kept.values(), key=lambda one: (one.derived_from is not None, -one.severity))


def _of_strangers(config: ClusterConfig, tables: Tables) -> Iterator[Finding]:
    known = {broker.name for broker in config.brokers}
    for name, count in tables.strangers.items():
        why = "but are in another broker's table" if name in known else "which the configuration does not name"
        text = f"{count} acknowledged sends are of broker {name}, {why}: not searched for"
        yield finding("AU-COVER", STORE, broker=name, count=count, detail=text)


def _of_routes(config: ClusterConfig, tables: Tables, pairs: Sequence[PairResult]) -> list[Finding]:
    """Compare the routes with each broker whose log was read as a whole."""
    held = []
    for broker in config.brokers:
        results = [one.result for one in pairs if one.pair.broker is broker and one.result is not None]
        queues: dict[tuple[str, int], int] = {}
        configured = None
        if results and not results[0].master.unread:
            log = results[0].master
            for queue, runs in by_queue(log.runs).items():
                if queue[0] in log.topics:
                    queues[queue] = sum(run.last - run.first + 1 for run in current_runs(runs))
            configured = configured_topics(child(log.store.path, layout.CONFIG_DIR, TOPICS_FILE))
        held.append(Held(broker=broker.name, slaves=len(broker.slaves), queues=queues, configured=configured))
    return check_routes(tables.routes, held)


def _judge(findings: Sequence[Finding]) -> tuple[str, int]:
    """Return the verdict over findings that are no pair's own, and its exit status."""
    verdict, exit_status = judge(findings)
    if any(one.severity >= Severity.ERROR and one.invariant != "AU-COVER" for one in findings):
        return MISROUTED, 2
    return verdict.value, exit_status
