"""
The command line: arguments in, summary and exit status out; an operator's mistake is one line, never a stack trace.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from rmq_audit import report
from rmq_audit.audit import Options, Result, check, compare
from rmq_audit.engines import Engine, EngineError, LocalEngine
from rmq_audit.html import to_html
from rmq_audit.inventory import InputError
from rmq_audit.outputs import to_junit, to_prometheus
from rmq_audit.previous import mark, read_previous
from rmq_audit.seams import CHUNK_BYTES, SPLIT_BYTES

EXIT_USAGE = 64
EXIT_CRASH = 70

_EXITS = """\
exit status:
  0   consistent
  1   consistent, with warnings (a slave that lags, half a record at an end, queues behind)
  2   inconsistent: different, diverged, damaged, or a slave ahead of its master
  3   incomplete: something could not be read or compared, and nothing worse was found
  64  wrong arguments, no store directory, or an engine that cannot run here
  70  a defect of the audit itself
"""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2 on wrong arguments, which here means "inconsistent"."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (InputError, EngineError) as error:
        print(f"rmq-audit: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("rmq-audit: interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    run_id = str(uuid.uuid4())
    for option, path in _outputs(options).items():
        _check_writable(option, path)
    previous = None if options.previous is None else read_previous(options.previous)
    engine = _engine(options)
    try:
        began = time.perf_counter()
        result = _audit(options, engine)
        seconds = time.perf_counter() - began
    finally:
        engine.close()
    resolved = [] if previous is None else mark(result.findings, previous, complete=result.coverage.complete)
    since: dict[str, Any] = {"previous": previous, "resolved": resolved}
    answer = report.to_json(result, run_id=run_id, started_at=started_at, seconds=seconds, engine=engine.name, **since)
    texts = {
        "--json": lambda: json.dumps(answer, indent=2) + "\n",
        "--html": lambda: to_html(answer, report.chunk_cells(result)),
        "--junit": lambda: to_junit(answer),
        "--prometheus": lambda: to_prometheus(answer, time.time()),
    }
    for option, path in _outputs(options).items():
        _write(path, texts[option]())
    if options.json != "-":
        print(report.to_text(result, seconds=seconds, engine=engine.name, **since))
    return result.exit_status


def _audit(options: argparse.Namespace, engine: Engine) -> Result:
    if options.command == "check":
        alone = Options(split_bytes=options.split_bytes, index_slots=options.index_slots, acked=options.acked)
        return check(options.store, engine, alone)
    how = Options(
        split_bytes=options.split_bytes,
        chunk_bytes=options.chunk_bytes,
        allowed_lag_bytes=options.allow_lag,
        crc_both=options.crc == "both",
        index_slots=options.index_slots,
        acked=options.acked,
    )
    return compare(options.master, options.slave, engine, how)


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
    from rmq_audit.sparkengine import OwnedSparkEngine

    return OwnedSparkEngine(options.master_url)


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    # written aside and renamed, so that whoever watches the file never reads half of it
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.tmp", path)


def _check_writable(option: str, path: str) -> None:
    """Find out before the long part whether the result can be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if path == "-" and option == "--json":
        return
    if path == "-" or not os.path.isdir(folder) or not os.access(folder, os.W_OK) or os.path.isdir(path):
        raise InputError(f"{option} {path}: cannot be written")


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper().removesuffix("IB").removesuffix("B"))
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; examples: 65536, 64K, 64M")
    return int(found[1]) * _UNITS[found[2]]


def _positive_bytes(text: str) -> int:
    size = _bytes(text)
    if size < 512:
        raise argparse.ArgumentTypeError(f"{text!r} is too small, 512 bytes are the least")
    return size


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)


def _slots(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hash slots")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rmq-audit", description="Prove that the stores of RocketMQ brokers are whole and their replicas agree."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pair = _command(commands, "compare", "compare the store directories (or consistency dumps) of a master and a slave")
    pair.add_argument("master", metavar="MASTER_DIR", help="store directory of the master")
    pair.add_argument("slave", metavar="SLAVE_DIR", help="store directory of the slave")
    pair.add_argument(
        "--allow-lag", type=_bytes, default=0, metavar="SIZE", help="a slave so far behind counts as consistent"
    )
    pair.add_argument(
        "--crc",
        choices=("master", "both"),
        default="master",
        help="whose bodies are checked; equal digests vouch for the slave's (default: master)",
    )
    pair.add_argument(
        "--chunk-bytes", type=_positive_bytes, default=CHUNK_BYTES, metavar="SIZE", help="bytes a digest covers (1M)"
    )
    alone = _command(commands, "check", "check one store directory (or consistency dump) by its own rules")
    alone.add_argument("store", metavar="DIR", help="store directory")
    return parser


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
    one.add_argument("--junit", metavar="FILE", help="write JUnit XML, one test case an invariant")
    one.add_argument("--prometheus", metavar="FILE", help="write metrics for the node exporter's textfile collector")
    one.add_argument(
        "--previous", metavar="FILE", help="JSON of the run before: tell new, persisting and resolved findings apart"
    )
    one.add_argument(
        "--split-bytes", type=_positive_bytes, default=SPLIT_BYTES, metavar="SIZE", help="bytes a task reads (64M)"
    )
    one.add_argument(
        "--index-slots", type=_slots, metavar="NUMBER", help="maxHashSlotNum of the broker (default: found out)"
    )
    one.add_argument(
        "--acked", metavar="FILE", help="acknowledged sends (JSON Lines or .parquet), held against the master's log"
    )
    one.add_argument("--workers", type=_workers, help="processes of the local engine (default: one a core)")
    one.add_argument("--master-url", metavar="URL", help="Spark master (default: local[*], or what spark-submit says)")
    return one
