"""
The audit in rounds: every few minutes what is there now, judged only up to where it no longer changes.

A round is one bounded run over what was there when it began, like Spark's trigger ``AvailableNow``; nothing runs
between rounds. A dump states its end. Of a store that is being written the end is where the log ended at the look
before: what lies behind it may still be on its way, and is judged by the next round.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs

from rmq_audit.driver.audit import Options
from rmq_audit.driver.cluster import ClusterResult, Pair, audit_cluster, read_tables, with_findings
from rmq_audit.driver.clusterconfig import ClusterConfig
from rmq_audit.driver.ends import End, observe_ends
from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.previous import NEW, Previous, read_previous
from rmq_audit.engine.engines import Engine
from rmq_audit.report import cluster as clusterreport
from rmq_audit.report.files import write
from rmq_audit.report.pair import MAX_SHOWN, Run, causes_of, finding_lines, since_text
from rmq_audit.worker.location import InputError, located
from rmq_audit.worker.work import MASTER, SLAVE, STORE

#: in the state's folder: the JSON of the last round, and where each log ended when it was looked at
REPORT_FILE, ENDS_FILE = "last.json", "ends.json"

#: between the first look ever and the first judgement, so that records on their way and their units arrive
FIRST_WAIT_S = 5.0

#: what a watch that was stopped in its first round exits with: nothing was judged
EXIT_NOTHING_JUDGED = 3


class Stopped(BaseException):
    """A signal asked the watch to end; what it was doing is given up."""


@contextlib.contextmanager
def stopping_by_signals() -> Iterator[Callable[[float], None]]:
    """
    Turn SIGINT and SIGTERM into :class:`Stopped` in the main thread; a second one ends the process the hard way.

    Gives what waits so many seconds or for a signal. `time.sleep` would sleep on when another thread took the signal,
    or when it came just before the sleep began.
    """

    def stop(number: int, frame: object) -> None:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        raise Stopped

    def wait(seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                os.read(woken, 512)

    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        yield wait
    finally:
        signal.set_wakeup_fd(wakeup)
        for one, handler in before.items():
            signal.signal(one, handler)
        os.close(woken)
        os.close(wakes)


@attrs.frozen(kw_only=True)
class Clock:
    """The time as the watch sees it: monotonic seconds, how to wait, the date as text, seconds of the epoch."""

    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    date: Callable[[], str]
    epoch_s: Callable[[], float] = time.time


@attrs.define(eq=False)
class Watch:
    """
    Rounds over one configuration, with what is known from one to the next in a folder.

    ``engine`` gives what does one round's work. ``say`` gets the lines for the terminal, ``outputs`` are files to write
    after every round, by option, ``parquet`` is a folder that each round adds its findings to.
    """

    _config: ClusterConfig
    _engine: Callable[[], AbstractContextManager[Engine]]
    _options: Options
    _folder: str = attrs.field(kw_only=True)
    _clock: Clock = attrs.field(kw_only=True)
    _say: Callable[[str], None] = attrs.field(kw_only=True)
    _new_id: Callable[[], str] = attrs.field(kw_only=True)
    _outputs: Mapping[str, str] = attrs.field(kw_only=True, factory=dict)
    _parquet: str | None = attrs.field(kw_only=True, default=None)
    _number: int = attrs.field(init=False, default=0)
    _ends: dict[str, End] = attrs.field(init=False)
    last_status: int = attrs.field(init=False, default=EXIT_NOTHING_JUDGED)

    def __attrs_post_init__(self) -> None:
        self._ends = read_ends(self._path(ENDS_FILE))

    def run(self, every_s: float, rounds: int | None = None) -> int:
        """Do rounds that begin ``every_s`` apart, until there were so many or :class:`Stopped`; return the status."""
        try:
            while True:
                began = self._clock.now_s()
                self.round()
                if rounds is not None and self._number >= rounds:
                    return self.last_status
                self._clock.wait(max(0.0, began + every_s - self._clock.now_s()))
        except Stopped:
            self._say(f"stopped after {self._number} rounds (exit status {self.last_status})")
            return self.last_status

    def round(self) -> int:
        """Look, judge what the previous round saw, and tell what changed; return the round's exit status."""
        run = Run(run_id=self._new_id(), started_at=self._clock.date(), seconds=0.0, engine="")
        began = self._clock.now_s()
        previous = self._previous()
        try:
            tables = read_tables(self._config)
            with self._engine() as engine:
                seen = observe_ends(self._config, engine, self._options, run.started_at)
                if any(place not in self._ends for place in seen):
                    self._clock.wait(FIRST_WAIT_S)
                judged = {place: self._judged(place, end) for place, end in seen.items()}
                result = audit_cluster(
                    self._config,
                    tables,
                    engine,
                    self._options,
                    ends=_ends_of(judged, seen, self._ends),
                    earlier=None if previous is None else previous.pairs,
                )
                run = attrs.evolve(run, engine=engine.name)
        except InputError as error:
            # a table that is being written, a file that was moved: the next round may find it in order
            self._number += 1
            self.last_status = EXIT_NOTHING_JUDGED
            self._say(f"round {self._number}  {run.started_at}  not done: {error}")
            return self.last_status
        result = with_findings(result, list(self._gone_back(seen)))
        known = any(place in self._ends for place in seen)
        run = attrs.evolve(run, ends_unknown=None if known else _why_no_ends(seen))
        run = attrs.evolve(run, seconds=self._clock.now_s() - began)
        run = run.since(previous, result.findings, complete=result.complete)
        self._number += 1
        self._ends |= seen
        unwritten = self._write(result, run)
        # before it is printed: a reader of the line may stop this process at once
        self.last_status = result.exit_status
        self._print_round(result, run)
        for text in unwritten:
            self._say(f"  not written: {text}")
        return self.last_status

    def _write(self, result: ClusterResult, run: Run) -> list[str]:
        """Write what others and the next round read; return what could not be written, so that the watch goes on."""
        outputs, at = self._outputs, self._clock.epoch_s()
        report = json.dumps(clusterreport.to_json(result, run)) + "\n"
        unwritten = []
        for one in (
            lambda: write_ends(self._path(ENDS_FILE), self._ends),
            lambda: clusterreport.write_cluster(result, run, outputs, at, parquet=self._parquet),
            lambda: write(self._path(REPORT_FILE), report),
        ):
            try:
                one()
            except InputError as error:
                unwritten.append(str(error))
        return unwritten

    def _judged(self, place: str, seen: End) -> End:
        before = self._ends.get(place)
        return seen if before is None or before.phy > seen.phy else before

    def _gone_back(self, seen: Mapping[str, End]) -> Iterator[Finding]:
        """Yield what logs have lost at their ends since the previous round."""
        for place, end in seen.items():
            before = self._ends.get(place)
            if before is not None and end.phy < before.phy:
                text = (
                    f"{place} ended at {before.phy} at {before.at}, and ends at {end.phy} now: {before.phy - end.phy} "
                    "bytes are gone (an older copy restored, a slave reset, or a torn record truncated by recovery)"
                )
                one = finding("CL-BACK", end.side, phy_from=end.phy, phy_to=before.phy, broker=end.broker, detail=text)
                one.expected, one.actual = str(before.phy), str(end.phy)
                yield one

    def _previous(self) -> Previous | None:
        path = self._path(REPORT_FILE)
        return read_previous(path) if os.path.exists(path) else None

    def _print_round(self, result: ClusterResult, run: Run) -> None:
        changed = since_text(result.findings, run)
        self._say(
            f"round {self._number}  {run.started_at}  {result.verdict} (exit status {result.exit_status}), "
            f"{run.seconds:.1f} s" + (f"; since {changed}" if changed else "")
        )
        new = causes_of([one for one in result.findings if one.state == NEW])
        for one in new[:MAX_SHOWN]:
            first, *rest = finding_lines(one, result.findings)
            self._say(f"  new: {one.broker}: {first}" if one.broker else f"  new: {first}")
            for line in rest:
                self._say(f"  {line}")
        if len(new) > MAX_SHOWN:
            self._say(f"  ... and {len(new) - MAX_SHOWN} more new findings; {self._path(REPORT_FILE)} has them all")
        for gone in [one for one in run.resolved if one.get("derived_from") is None][:MAX_SHOWN]:
            self._say(f"  resolved: {gone.get('broker')}: {gone.get('severity')} {gone.get('invariant')}")

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _why_no_ends(seen: Mapping[str, End]) -> str:
    if not seen:
        return "all stores state their ends themselves, or cannot be listed"
    return "the first round of these logs: the next one compares their ends"


def _ends_of(
    judged: Mapping[str, End], seen: Mapping[str, End], before: Mapping[str, End]
) -> Callable[[Pair], Mapping[str, int] | None]:
    """
    Return what gives each pair its ends; None where all sides state theirs, or one has no log yet.

    A slave that was empty at the previous look is limited by this one only, and so must its master be: else the slave
    would seem ahead of it.
    """

    def ends(pair: Pair) -> Mapping[str, int] | None:
        sides = {STORE: pair.broker.master} if pair.slave is None else {MASTER: pair.broker.master, SLAVE: pair.slave}
        places = {side: located(path) for side, path in sides.items()}
        if not all(place in seen for place in places.values()):
            return None
        is_new = not all(place in before for place in places.values())
        return {side: (seen if is_new else judged)[place].phy for side, place in places.items()}

    return ends


def prepared_folder(path: str) -> str:
    """Return the folder of a state, made if it was not there; InputError."""
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise InputError(f"--state {path}: cannot be written")
    except OSError as error:
        raise InputError(f"--state {path}: cannot be used: {error.strerror}") from error
    return path


def read_ends(path: str) -> dict[str, End]:
    """Return what a round before has seen; InputError when the file is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            values: dict[str, Any] = json.load(file)
        return {place: End(**one) for place, one in values.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is not a state of rmq-audit watch; delete it to start again") from error


def write_ends(path: str, ends: Mapping[str, End]) -> None:
    write(path, json.dumps({place: attrs.asdict(end) for place, end in ends.items()}, indent=1) + "\n")
