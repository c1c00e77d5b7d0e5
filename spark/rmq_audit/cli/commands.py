"""The command line: arguments in, summary and exit status out; a mistake of the operator is one line."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from rmq_audit.cli.running import Running, of_same_stores, printer_of
from rmq_audit.cli.watch import Clock, Watch, prepared_folder, stopping_by_signals
from rmq_audit.driver import recordindex
from rmq_audit.driver.audit import Options, Result, check, compare
from rmq_audit.driver.cluster import audit_cluster, read_tables
from rmq_audit.driver.clusterconfig import bytes_of, config_of, read_config
from rmq_audit.driver.consumers import Earlier
from rmq_audit.driver.previous import read_previous
from rmq_audit.driver.scan import CHUNK_BYTES, SPLIT_BYTES
from rmq_audit.engine.engines import Engine, EngineError, LocalEngine
from rmq_audit.engine.state import RememberingEngine, State
from rmq_audit.report import cluster as clusterreport
from rmq_audit.report import pair as report
from rmq_audit.report.cluster import write_cluster
from rmq_audit.report.files import check_folder, check_writable, print_text, write_results
from rmq_audit.report.html import to_html
from rmq_audit.report.outputs import to_junit, to_prometheus
from rmq_audit.report.pair import Run
from rmq_audit.report.pictures import pictures_of
from rmq_audit.worker.location import InputError
from rmq_audit.worker.work import MASTER, SLAVE, STORE

EXIT_USAGE = 64
EXIT_CRASH = 70

_EXITS = """\
exit status:
  0   consistent
  1   consistent, with warnings (replication lag, a torn record at an end, queues behind the log)
  2   inconsistent: different, diverged, damaged, or a slave ahead of its master
  3   incomplete: something could not be read or compared, and nothing worse was found
  64  wrong arguments, no store directory, or an engine that cannot run here
  70  a defect of the audit itself
"""


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2 on wrong arguments, which here means "inconsistent"."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except (InputError, EngineError) as error:
        print(f"rmq-audit: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("rmq-audit: interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    for option, path in _outputs(options).items():
        check_writable(option, path)
    if options.parquet is not None:
        check_folder("--parquet", options.parquet)
    if options.command == "cluster":
        return _run_cluster(options)
    if options.command == "watch":
        return _run_watch(options)
    started_at, run_id = _now(), str(uuid.uuid4())
    stores = [options.store] if options.command == "check" else [options.master, options.slave]
    given = None if options.previous is None else read_previous(options.previous)
    with Running(lambda: _engine(options), options, *stores) as running:
        previous = given or running.previous()
        began = time.perf_counter()
        result = _audit(options, running.engine, None if previous is None else previous.consumers)
        seconds = time.perf_counter() - began
        name = running.engine.name
    run = Run(run_id=run_id, started_at=started_at, seconds=seconds, engine=name, state=running.use())
    previous = given or of_same_stores(previous, report.subject(result))
    run = run.since(previous, result.findings, complete=result.coverage.complete)
    answer = report.to_json(result, run)
    # first of all: where the files have no room the verdict must not be lost
    if options.json != "-":
        print_text(report.to_text(result, run) + "\n")
    running.keep(answer)
    texts = {
        "--json": lambda: json.dumps(answer, indent=2) + "\n",
        "--html": lambda: to_html(answer, pictures_of(result)),
        "--junit": lambda: to_junit(answer),
        "--prometheus": lambda: to_prometheus(answer, time.time()),
    }
    rows = [*(one.to_json() for one in result.findings), *run.resolved]
    write_results(_outputs(options), texts, options.parquet, run_id, rows)
    return result.exit_status


def _run_cluster(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    tables = read_tables(config)
    if options.record_index is not None:
        recordindex.prepare(options.record_index)
    previous = None if options.previous is None else read_previous(options.previous)
    started_at, run_id = _now(), str(uuid.uuid4())
    with Running(lambda: _engine(options), options, options.config) as running:
        began = time.perf_counter()
        # several slaves of one master: what the first one's audit read of it is not read again
        with tempfile.TemporaryDirectory(prefix="rmq-audit-") as folder, contextlib.ExitStack() as stack:
            known = running.engine
            if not running.has_state:
                known = stack.enter_context(remembering(known, folder))
            earlier = None if previous is None else previous.pairs
            index = options.record_index
            result = audit_cluster(config, tables, known, _how(options), earlier=earlier, record_index=index)
        seconds = time.perf_counter() - began
        name = running.engine.name
    run = Run(run_id=run_id, started_at=started_at, seconds=seconds, engine=name)
    run = run.since(previous, result.findings, complete=result.complete)
    if options.json != "-":
        print_text(clusterreport.to_text(result, run) + "\n")
    write_cluster(result, run, _outputs(options), time.time(), parquet=options.parquet)
    return result.exit_status


@contextlib.contextmanager
def remembering(engine: Engine, folder: str) -> Iterator[Engine]:
    """Give the engine with what is remembered in a folder; an audit that comes to its end leaves only its own there."""
    state = State(folder).open()
    finished = False
    try:
        yield RememberingEngine(engine, state)
        finished = True
    finally:
        state.close(finished=finished)


def _run_watch(options: argparse.Namespace) -> int:
    if options.record_index is not None:
        raise InputError(
            "--record-index: watch writes none, because each round would write a row for every record again; "
            "use rmq-audit compare or cluster"
        )
    config = config_of(options.what, options.slave, options.allow_lag)
    folder = prepared_folder(options.state)
    read_tables(config)
    engine = _engine(options)
    engine.progress = printer_of(options)
    try:
        with stopping_by_signals() as wait:
            watch = Watch(
                config,
                lambda: remembering(engine, folder),
                _how(options),
                folder=folder,
                clock=Clock(date=_now, wait=wait),
                say=lambda line: print(line, flush=True),
                outputs=_outputs(options),
                parquet=options.parquet,
                new_id=lambda: str(uuid.uuid4()),
            )
            return watch.run(options.every, options.rounds)
    finally:
        engine.close()


def _audit(options: argparse.Namespace, engine: Engine, earlier: Earlier | None) -> Result:
    how = attrs.evolve(_how(options), index_slots=options.index_slots, acked=options.acked, earlier=earlier)
    if options.record_index is not None:
        recordindex.prepare(options.record_index)
        sides = (STORE,) if options.command == "check" else (MASTER, SLAVE)
        how = attrs.evolve(how, record_index=recordindex.of_sides(options.record_index, sides))
    if options.command == "check":
        return check(options.store, engine, how)
    return compare(options.master, options.slave, engine, attrs.evolve(how, allowed_lag_bytes=options.allow_lag))


def _how(options: argparse.Namespace) -> Options:
    """Return the options that all commands share."""
    return Options(
        split_bytes=options.split_bytes,
        chunk_bytes=getattr(options, "chunk_bytes", CHUNK_BYTES),
        crc_both=getattr(options, "crc", "master") == "both",
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _outputs(options: argparse.Namespace) -> dict[str, str]:
    """Return the files that are asked for, by option."""
    named = {
        option: getattr(options, option.removeprefix("--"))
        for option in ("--json", "--html", "--junit", "--prometheus")
    }
    return {option: path for option, path in named.items() if path is not None}


def _engine(options: argparse.Namespace) -> Engine:
    if options.engine == "local":
        return LocalEngine(options.workers)
    from rmq_audit.engine.spark import OwnedSparkEngine

    return OwnedSparkEngine(options.master_url)


def _bytes(text: str) -> int:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; examples: 30s, 5m, 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _positive_bytes(text: str) -> int:
    size = _bytes(text)
    if size < 512:
        raise argparse.ArgumentTypeError(f"{text!r} is too small; the minimum is 512 bytes")
    return size


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rmq-audit",
        description="Check that the stores of RocketMQ brokers are complete and that their replicas agree.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pair = _command(commands, "compare", "compare the store directories (or consistency dumps) of a master and a slave")
    pair.add_argument("master", metavar="MASTER_DIR", help="store directory of the master")
    pair.add_argument("slave", metavar="SLAVE_DIR", help="store directory of the slave")
    pair.add_argument(
        "--allow-lag", type=_bytes, default=0, metavar="SIZE", help="replication lag up to SIZE counts as consistent"
    )
    _comparing(pair)
    alone = _command(commands, "check", "check one store directory (or consistency dump) by its own rules")
    alone.add_argument("store", metavar="DIR", help="store directory")
    for one in (pair, alone):
        _of_one_broker(one)
        _of_single_runs(one)
    cluster = _command(commands, "cluster", "audit all brokers of a cluster, and the routes to them, in one run")
    cluster.add_argument("config", metavar="CONFIG", help="TOML file that names brokers, side tables and routes")
    _comparing(cluster)
    _of_single_runs(cluster)
    _add_watch(commands)
    return parser


def _add_watch(commands: Any) -> None:
    watch = _command(commands, "watch", "audit in rounds, and report what is new, persisting and resolved")
    watch.add_argument("what", metavar="CONFIG|DIR", help="TOML file of a cluster, or a store directory")
    watch.add_argument("slave", nargs="?", metavar="SLAVE_DIR", help="store directory of the slave of DIR")
    watch.add_argument("--state", required=True, metavar="DIR", help="folder for what the next round needs")
    watch.add_argument(
        "--every",
        type=_seconds,
        default=300.0,
        metavar="TIME",
        help="time between the starts of two rounds: 30s, 5m, 1h (5m)",
    )
    watch.add_argument(
        "--rounds", type=_count, metavar="NUMBER", help="number of rounds (default: until Ctrl-C or SIGTERM)"
    )
    watch.add_argument(
        "--allow-lag", type=_bytes, default=0, metavar="SIZE", help="as for compare; a configuration file has its own"
    )
    _comparing(watch)
    _add_findings_table(watch)
    watch.add_argument("--record-index", help=argparse.SUPPRESS)


def _comparing(one: argparse.ArgumentParser) -> None:
    """Add what only matters where two sides are compared."""
    one.add_argument(
        "--crc",
        choices=("master", "both"),
        default="master",
        help="whose message bodies are checked; equal digests cover the slave's (default: master)",
    )
    one.add_argument(
        "--chunk-bytes",
        type=_positive_bytes,
        default=CHUNK_BYTES,
        metavar="SIZE",
        help="bytes that one digest covers (1M)",
    )


def _of_single_runs(one: argparse.ArgumentParser) -> None:
    """Add what a command has that is run now and then: a state, and outputs that are tables."""
    one.add_argument("--state", metavar="DIR", help="keep answers in DIR; the next run reads only what has changed")
    one.add_argument(
        "--resume", action="store_true", help="as --state, in a folder that the audit chooses for these stores"
    )
    one.add_argument("--no-state", action="store_true", help="read everything, whatever --state and --resume say")
    _add_findings_table(one)
    one.add_argument(
        "--record-index", metavar="DIR", help="write a row for each record as Parquet to an empty or new folder"
    )


def _add_findings_table(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--parquet", metavar="DIR", help="add the findings to a table of Parquet files, one folder per run"
    )


def _of_one_broker(one: argparse.ArgumentParser) -> None:
    """Add what a cluster's configuration says of each broker."""
    one.add_argument(
        "--index-slots",
        type=_count,
        metavar="NUMBER",
        help="maxHashSlotNum of the broker (default: derived from the files)",
    )
    one.add_argument(
        "--acked", metavar="FILE", help="acknowledged sends (JSON Lines or .parquet), compared with the master's log"
    )


def _command(commands: Any, name: str, what: str) -> argparse.ArgumentParser:
    """Add a command with the options that all of them have."""
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "--engine", choices=("spark", "local"), default="spark", help="where the work runs (default: spark)"
    )
    one.add_argument("--json", metavar="FILE", help="write the whole result as JSON; - is standard output")
    one.add_argument("--html", metavar="FILE", help="write a page for a browser")
    one.add_argument("--junit", metavar="FILE", help="write JUnit XML, one test case per invariant")
    one.add_argument("--prometheus", metavar="FILE", help="write metrics for the node exporter's textfile collector")
    one.add_argument(
        "--previous", metavar="FILE", help="JSON of the previous run: mark findings as new, persisting or resolved"
    )
    one.add_argument(
        "--split-bytes",
        type=_positive_bytes,
        default=SPLIT_BYTES,
        metavar="SIZE",
        help="bytes that one task reads (64M)",
    )
    one.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="print progress on standard error (default: on a terminal)",
    )
    one.add_argument("--workers", type=_count, help="processes of the local engine (default: one per core)")
    one.add_argument("--master-url", metavar="URL", help="Spark master (default: local[*], or what spark-submit says)")
    return one
