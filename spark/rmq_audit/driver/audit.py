"""The audit of one pair or store: inventory, scan, comparison, queues, index, tables, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from rmq.store import layout
from rmq_audit.driver import inventory, recordindex
from rmq_audit.driver.acked import Sends, SendTimes, check_acked, read_sends
from rmq_audit.driver.configs import Configs, check_configs, compare_configs, read_configs
from rmq_audit.driver.consumers import (
    TOPICS_FILE,
    Committed,
    Earlier,
    check_backwards,
    check_consumers,
    configured_queues,
)
from rmq_audit.driver.coverage import MAX_FOREIGN_NAMES, Coverage, SideCoverage
from rmq_audit.driver.epochs import check_epochs, knows_epochs
from rmq_audit.driver.findings import Finding, Verdict, consolidate, finding, judge, of_fault
from rmq_audit.driver.indexes import check_indexes
from rmq_audit.driver.inventory import Store
from rmq_audit.driver.log import UNKNOWN_END, Log, build_log, has_grown
from rmq_audit.driver.previous import store_name
from rmq_audit.driver.queues import Bounds, Queue, QueueFiles, check_continuity
from rmq_audit.driver.replicas import Comparison, Replicas, compare_begins, compare_ends
from rmq_audit.driver.scan import CHUNK_BYTES, SPLIT_BYTES, join_scans, plan_splits
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.files import LogFile
from rmq_audit.worker.location import InputError, child, same_place
from rmq_audit.worker.replicas import DRILL, Drill, Drilled
from rmq_audit.worker.scan import SCAN, Chunk, Scan, Split
from rmq_audit.worker.work import BOTH, MASTER, SLAVE, STORE, Severity

#: what is checked on the master only, where the bytes of both sides are equal
CRCS = frozenset({"CL-CRC", "CL-PROPCRC"})

#: findings about the ends of a pair
OF_ENDS = frozenset({"RP-LAG", "RP-AHEAD"})


@attrs.frozen(kw_only=True)
class Options:
    """
    How to audit; sizes in bytes.

    ``allowed_lag_bytes``: a slave so far behind counts as consistent. ``crc_both``: check the bodies of both sides,
    instead of the master's and what differs from it. ``index_slots``: the broker's maxHashSlotNum, where neither a
    manifest nor the files tell it. ``acked``: a side table of acknowledged sends (its path, or its rows), compared with
    the master (or the only store). ``consumer_offsets``: a consumerOffset.json in place of the master's own.

    ``cluster`` and ``broker`` are named in findings of stores that do not say whose they are; a manifest that names
    another broker is refused.

    ``ends``: by side, the physical offset up to which a store that is being written is judged. What lies behind it
    still moves, and so do queues, index and consumer offsets that belong to it.

    ``earlier``: consumer offsets in the previous run. ``record_index``: folders by side that every worker can write
    to, for the record index; a side without one gets no rows. What lies in a folder and is not of this run is deleted.
    """

    split_bytes: int = SPLIT_BYTES
    chunk_bytes: int = CHUNK_BYTES
    allowed_lag_bytes: int = 0
    crc_both: bool = False
    index_slots: int | None = None
    acked: str | Sends | None = None
    consumer_offsets: str | None = None
    cluster: str | None = None
    broker: str | None = None
    ends: Mapping[str, int] | None = None
    earlier: Earlier | None = None
    record_index: Mapping[str, str] | None = None


@attrs.define(kw_only=True)
class Result:
    """
    Everything an audit found out; ``slave`` is None for a store that was checked alone, ``sends`` without a side
    table.

    ``live``: the stores were written during the audit, so that ends were not judged. ``epochs_known``: both sides have
    a table of epochs. ``looked_before``: consumer offsets were compared with those of a run before.
    """

    verdict: Verdict
    exit_status: int
    master: Log
    slave: Log | None
    segment_bytes: int
    chunk_bytes: int
    compared_from: int
    compared_to: int
    changed_files: list[str]
    coverage: Coverage
    findings: list[Finding]
    comparison: Comparison | None
    consumers: dict[str, list[Committed]]
    queues: dict[str, dict[Queue, Bounds]]
    sends: SendTimes | None = None
    live: bool = False
    epochs_known: bool = False
    looked_before: bool = False


def compare(master_dir: str, slave_dir: str, engine: Engine, options: Options) -> Result:
    """Audit a pair of store directories; InputError when they are none, EngineError when the engine fails."""
    master, slave = inventory.take_inventory(MASTER, master_dir), inventory.take_inventory(SLAVE, slave_dir)
    if same_place(master.path, slave.path):
        raise InputError(f"{master.path}: is given as master and as slave")
    inventory.check_same_broker(master, slave)
    return _audited([master, slave], engine, options)


def check(path: str, engine: Engine, options: Options) -> Result:
    """Audit one store by its own rules; InputError when it is none, EngineError when the engine fails."""
    return _audited([inventory.take_inventory(STORE, path)], engine, options)


def _audited(stores: Sequence[Store], engine: Engine, options: Options) -> Result:
    """Audit the stores, and what looks wrong in stores that changed meanwhile a second time."""
    first = _Audit(stores, engine, options).run()
    if first.exit_status < 2 or options.ends is not None:
        return first
    logs = [log for log in (first.master, first.slave) if log is not None]
    before = [(store.segments, store.queues, store.indexes) for store in stores]
    # A worker may have read a record, a unit or an index entry while it was being written; queues and index follow the
    # log within a second or so. What was below an end once does not change any more: real damage is found again by a
    # second audit up to the common end, which cannot see what the first said of ends.
    stores = [inventory.take_inventory(store.side, store.path) for store in stores]
    changed = before != [(store.segments, store.queues, store.indexes) for store in stores]
    if not changed and not any(map(has_grown, logs)):
        return first
    options = attrs.evolve(options, ends={store.side: first.compared_to for store in stores})
    return _Audit(stores, engine, options).run([one for one in first.findings if one.invariant in OF_ENDS])


class _Audit:
    """One run over one pair, or over one store."""

    def __init__(self, stores: Sequence[Store], engine: Engine, options: Options) -> None:
        for store in stores:
            inventory.check_broker(store, options.broker)
        stores = [inventory.ending_at(store, (options.ends or {}).get(store.side)) for store in stores]
        self._segment_bytes = inventory.common_segment_bytes(*stores)
        stores = [inventory.without_misnamed(store, self._segment_bytes) for store in stores]
        self._stores = {store.side: store for store in stores}
        self._engine = engine
        self._options = options
        self._splits = 0
        self._read_again = 0
        self._coverage = {store.side: SideCoverage() for store in stores}
        self._findings: list[Finding] = []
        self._committed: dict[str, list[Committed]] = {}
        self._bounds: dict[str, dict[Queue, Bounds]] = {}
        self._acked = self._read_acked(stores[0])
        self._sends: SendTimes | None = None
        self._looked_before = False
        self._configs: dict[str, Configs] = {}

    def run(self, kept: Sequence[Finding] = ()) -> Result:
        """Compare the pair, or check the only store; ``kept`` are findings of an audit before that still hold."""
        logs = self._read_logs()
        master, slave = next(iter(logs.values())), logs.get(SLAVE)
        begin, end, comparison = master.start, master.end, None
        if slave is not None:
            comparison = self._compare(master, slave)
            begin, end = comparison.begin, max(comparison.begin, comparison.end)
        changed = self._check_files(logs)
        live = bool(changed) or self._options.ends is not None
        if slave is not None and comparison is not None:
            dumps = any(log.store.manifest is not None for log in (master, slave))
            if not live and not dumps and master.end == slave.end and not (master.unread or slave.unread):
                self._findings += compare_configs(self._configs[MASTER], self._configs[SLAVE])
            self._vouch(comparison)
        findings = [*self._consolidated(changed), *kept]
        verdict, exit_status = judge(findings)
        return Result(
            verdict=verdict,
            exit_status=exit_status,
            master=master,
            slave=slave,
            segment_bytes=self._segment_bytes,
            chunk_bytes=self._options.chunk_bytes,
            compared_from=begin,
            compared_to=end,
            changed_files=changed,
            coverage=self._cover(master, slave, comparison, findings),
            findings=findings,
            comparison=comparison,
            consumers=self._committed,
            queues=self._bounds,
            sends=self._sends,
            live=live,
            epochs_known=slave is not None and knows_epochs(master) and knows_epochs(slave),
            looked_before=self._looked_before,
        )

    def _compare(self, master: Log, slave: Log) -> Comparison:
        comparison = Replicas(master, slave, self._options.chunk_bytes, self._drill).compare()
        self._findings += comparison.findings
        if comparison.diverged_at is None:
            self._findings += compare_ends(master, slave, self._drill, self._options.allowed_lag_bytes)
        self._findings += compare_begins(master, slave)
        self._findings += check_epochs(master, slave, comparison.begin, comparison.end)
        self._check_rest_of_slave(slave, comparison)
        return comparison

    def _check_files(self, logs: dict[str, Log]) -> list[str]:
        """Compare everything that follows from each log with it; return the files that changed meanwhile."""
        changed = [path for store in self._stores.values() for path in inventory.changed_files(store)]
        changed += [log.store.path for log in logs.values() if has_grown(log)]
        live = bool(changed) or self._options.ends is not None
        furthest = max(log.end for log in logs.values())
        for side, log in logs.items():
            coverage = self._coverage[side]
            self._findings += check_continuity(log)
            queues = QueueFiles(log, self._engine, coverage)
            configured = configured_queues(child(log.store.path, layout.CONFIG_DIR, TOPICS_FILE))
            self._findings += queues.check(live=live, configured=configured)
            others = [store for store in self._stores.values() if store.side != side]
            slots = self._options.index_slots
            self._findings += check_indexes(log, self._engine, coverage, slots=slots, live=live, others=others)
            judge_end = not live and log.end == furthest and not log.unread
            offsets = None if side == SLAVE else self._options.consumer_offsets
            committed, found = check_consumers(log, queues.bounds, judge_end=judge_end, offsets=offsets)
            coverage.consumer_offsets_checked = len(committed)
            self._findings += found + self._check_backwards(log, committed)
            self._committed[side], self._bounds[side] = committed, queues.bounds
            if not live:
                self._configs[side] = configs = read_configs(log)
                self._findings += check_configs(configs, queues.bounds, judge_end=judge_end)
            self._findings += log.findings
        self._check_acked(*logs.values())
        return changed

    def _check_backwards(self, log: Log, committed: Sequence[Committed]) -> list[Finding]:
        """Compare the first store's consumer offsets with those of the previous run, if that was of the same store."""
        earlier, manifest = self._options.earlier, log.store.manifest
        if earlier is None or log.side == SLAVE:
            return []
        name = store_name(log.store.path, {} if manifest is None else attrs.asdict(manifest))
        if name != earlier.subject:
            return []
        self._looked_before = True
        return check_backwards(log.side, committed, earlier)

    def _read_acked(self, store: Store) -> Sends | None:
        """Read the side table before the long part, so that a mistake in it shows at once."""
        if self._options.acked is None or isinstance(self._options.acked, Sends):
            return self._options.acked
        return read_sends(self._options.acked, None if store.manifest is None else store.manifest.broker_name)

    def _check_acked(self, log: Log, replica: Log | None = None) -> None:
        if self._acked is not None:
            moving = self._options.ends is not None
            coverage = self._coverage[log.side]
            found, self._sends = check_acked(log, self._acked, self._engine, coverage, moving=moving, replica=replica)
            self._findings += found

    def _consolidated(self, changed: Sequence[str]) -> list[Finding]:
        if changed and self._options.ends is None:
            _soften_tails(self._findings)
        findings = consolidate(self._findings)
        for one in findings:
            self._name_store(one)
        return findings

    def _read_logs(self) -> dict[str, Log]:
        """Scan both sides in one go, and build the log of each from its splits."""
        master_starts = {segment.start for segment in next(iter(self._stores.values())).segments}
        splits: list[Split] = []
        for side, store in self._stores.items():
            for segment in store.segments:
                splits += plan_splits(
                    store,
                    segment,
                    self._segment_bytes,
                    split_bytes=self._options.split_bytes,
                    chunk_bytes=self._options.chunk_bytes,
                    crc=side != SLAVE or self._options.crc_both or segment.start not in master_starts,
                )
        folders = self._options.record_index or {}
        recordindex.make(folders)
        splits = [attrs.evolve(split, index=folders.get(split.side)) for split in splits]
        scans = self._scan(splits)
        logs = {}
        for side, store in self._stores.items():
            whole, again = join_scans([scan for scan in scans if scan.split.side == side], self._scan)
            self._read_again += again
            logs[side] = build_log(store, self._segment_bytes, whole)
        recordindex.finish(folders, logs, self._engine)
        return logs

    def _scan(self, splits: Sequence[Split]) -> list[Scan]:
        self._splits += len(splits)
        return self._engine.run(SCAN, splits)

    def _drill(self, tasks: Sequence[Drill]) -> list[Drilled]:
        return self._engine.run(DRILL, tasks)

    def _check_rest_of_slave(self, slave: Log, comparison: Comparison) -> None:
        """Take in the faults that drills saw, and check bodies that neither a drill nor an equal digest covers."""
        coverage = self._coverage[SLAVE]
        for answer in comparison.drilled.values():
            slave.findings += [of_fault(SLAVE, fault) for fault in answer.faults_slave]
            coverage.crcs_checked += answer.crcs
            coverage.crcs_carried_over += answer.equal
        checked = {scan.split.file.start for scan in slave.scans if scan.split.crc}
        rest = []
        for chunk in sorted(slave.chunks):
            file = slave.file_at(chunk)
            seen = chunk in comparison.drilled and (
                chunk + self._options.chunk_bytes <= comparison.end or slave.end <= comparison.end
            )
            if file is None or file.start in checked or seen:
                continue
            if chunk in comparison.equal:
                coverage.crcs_carried_over += slave.chunks[chunk].records
            else:
                rest.append(self._rest_of_chunk(file, slave.chunks[chunk]))
        for scan in self._engine.run(SCAN, rest) if rest else ():
            coverage.crcs_checked += scan.crcs
            crcs = [fault for fault in scan.faults if fault.invariant in CRCS and fault.phy < slave.end]
            slave.findings += [of_fault(SLAVE, fault) for fault in crcs]
            if scan.error is not None:
                slave.findings.append(finding("AU-COVER", SLAVE, phy_from=scan.split.begin, detail=scan.error))

    def _rest_of_chunk(self, file: LogFile, chunk: Chunk) -> Split:
        return Split(
            side=SLAVE,
            file=file,
            segment_bytes=self._segment_bytes,
            begin=chunk.chunk,
            end=min(chunk.chunk + self._options.chunk_bytes, file.stop),
            start=chunk.first,
            chunk_bytes=self._options.chunk_bytes,
            crc=True,
        )

    def _vouch(self, comparison: Comparison) -> None:
        """What fails its CRC on the master fails it on the slave too where the bytes are the same."""
        differing = [one for one in comparison.findings if one.phy_from is not None and one.phy_to is not None]
        for one in self._findings:
            if one.invariant not in CRCS or one.replica != MASTER or one.phy_from is None or one.phy_to is None:
                continue
            begin, end = one.phy_from, one.phy_to
            same = not any((d.phy_from or 0) < end and begin < (d.phy_to or 0) for d in differing)
            if same and comparison.begin <= begin < comparison.end:
                one.replica = one.blame = BOTH

    def _name_store(self, one: Finding) -> None:
        manifest = self._stores[MASTER if one.replica == BOTH else one.replica].manifest
        one.cluster, one.broker = self._options.cluster, self._options.broker
        if manifest is not None:
            one.cluster, one.broker = manifest.cluster or one.cluster, manifest.broker_name or one.broker
            one.role = None if one.replica == BOTH else manifest.role

    def _cover(
        self, master: Log, slave: Log | None, comparison: Comparison | None, findings: Sequence[Finding]
    ) -> Coverage:
        for log in (master, slave):
            if log is None:
                continue
            one = self._coverage[log.side]
            one.files = len(log.store.segments)
            one.bytes_total = sum(segment.size_bytes for segment in log.store.segments)
            one.bytes_unread = sum(part.end - part.begin for part in log.unread if part.end < UNKNOWN_END)
            one.bytes_read = sum(scan.split.end - scan.split.begin for scan in log.scans if scan.error is None)
            one.records = log.records
            one.chunks = len(log.chunks)
            one.crcs_checked += sum(scan.crcs for scan in log.scans)
            one.foreign_files = len(log.store.foreign)
            one.foreign_names = list(log.store.foreign[:MAX_FOREIGN_NAMES])
        drilled = {} if comparison is None else comparison.drilled
        return Coverage(
            complete=not any(one.invariant == "AU-COVER" for one in findings),
            master=self._coverage[master.side],
            slave=None if slave is None else self._coverage[slave.side],
            chunks_compared=0 if comparison is None else comparison.compared,
            chunks_equal=0 if comparison is None else len(comparison.equal),
            chunks_different=sum(bool(answer.differences) for answer in drilled.values()),
            chunks_drilled=len(drilled),
            bytes_compared=0 if comparison is None else comparison.compared_bytes,
            splits=self._splits,
            splits_read_again=self._read_again,
        )


def _soften_tails(findings: Sequence[Finding]) -> None:
    """Make remarks of torn ends and queues one unit behind: they mean nothing in a store that was being written."""
    for one in findings:
        if one.invariant in ("CL-TAIL", "CQ-BEHIND"):
            one.severity = Severity.INFO
            one.detail += "; the store was written during the audit"
