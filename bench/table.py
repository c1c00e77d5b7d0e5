"""
Everything that a client, a broker or a slave repeats: our servers against Apache's, in one table.

From the project's root: ``python -m bench.table --markdown FILE``. `anchor.c` is a third server where a request has one
answer and nothing else follows: it finds where a request ends and writes a prepared answer of the same length. CPU time
beyond its own is the broker's; the rest is the kernel's, which no broker can save on the same machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs

from bench.brokers import (
    ACCOUNT,
    BATCH,
    BODY_BYTES,
    CONSUMERS,
    FILLED,
    GROUPS,
    HEARTBEAT,
    HELD,
    MESSAGES,
    SENT,
    Members,
    Started,
    fill,
    heartbeat,
    start,
    start_elected,
    start_guarded,
    unique_key,
    warm_seconds,
)
from bench.coldlog import evict
from bench.conditions import conditions
from bench.frames import (
    GROWING_MARK,
    PretendedBrokers,
    batch_template,
    cpp_template,
    end_template,
    fixed_frames,
    go_template,
    half_template,
    held_pull_template,
    plain_template,
    producer_template,
    pull_template,
    registrations,
    reply_template,
    route_template,
    send_template,
    signed_send_template,
    signed_template,
    stamped_template,
)
from bench.ha import SEGMENT_BYTES, Lag, catch_up, fill_log
from bench.rounds import (
    BENCH_JAVA,
    MAX_LOADGEN_CPU,
    Candidate,
    Rounds,
    Shape,
    Window,
    built,
    markdown,
    measure,
    parsed_shape,
    window,
)
from tests.ports import free_port
from tests.real.peers import APACHE_4, OURS, Process, Site, until
from tests.real.probe import ONE_WAY, SEND, decode_record, frame, properties_text, pull_fields, send_fields
from tests.real.storm import QUEUES

OURS_NAME, APACHE_NAME, C_NAME = "ours", "Apache", "C"
#: figure of a window -> its name in the table; a rate has a least ratio, all others a largest one
FIGURES = {"rate": "rate", "server_cpu_us": "CPU", "p50": "p50", "p99": "p99"}
FIGURES |= {"receive_p50": "receive p50", "receive_p99": "receive p99", "beside": "p99 cold : p99 warm"}
#: what must not get worse by more than this share
SLACK = 0.05
#: what a log must have whose beginning is read, messages from one window to the next, and sends beside it
COLD_BYTES, COLD_STEP, COLD_RATE = 1_000_000_000, 60_000, 1000.0
#: figures for which the requirement is not about Apache's
OWN = ("beside",)
MIXED_SHARE, WAKE_RATE, DELAYED_RATE = 0.6, 500.0, 5000.0
#: delayed messages of one second, all due within the next, and sends beside their delivery
BACKLOG_RATE, BESIDE_RATE = 20_000.0, 1000.0
BESIDES_S = 1.0
#: a window that only shows how long an answer is
LOOK_S = 0.1
#: what a slave that comes back has to copy
MISSED_BYTES = 500_000_000
#: longer than the delay of level 1, which is a second
DELAYED_WARM_S = 1.5

Asked = Mapping[str, float]


class Stage:
    """What the rows of one group share: a pair of servers, the generator, and templates in a folder."""

    def __init__(self, site: Site, rate: float, warm_s: float) -> None:
        self.site, self.rate, self.warm_s = site, rate, warm_s
        self.loadgen = built(site.root, "loadgen")
        self.candidates: dict[str, Candidate] = {}
        self._apache_rate = 0.0

    def add(self, candidate: Candidate) -> None:
        self.candidates[candidate.name] = candidate

    def file(self, make: Callable[[Path], Path]) -> Path:
        return make(self.site.root / f"file-{len(list(self.site.root.iterdir()))}")

    def anchor(self, answer_bytes: int) -> Candidate:
        """Start the C program."""
        port = free_port()
        command = [str(built(self.site.root, "anchor")), str(port), str(answer_bytes)]
        process = Process(f"anchor-{port}", "anchor", command, self.site.root, port, ())
        self.site.processes.append(process)
        return Candidate(C_NAME, process.start(), 0.3, [process], is_steady=True)

    def share_of_apache(self, template: Path) -> float:
        """Return the rate of the mixed rows; Apache's maximum with 16 producers is measured once."""
        if not self._apache_rate:
            apache = self.candidates[APACHE_NAME].process
            found = [window(self.loadgen, Shape("maximum", 16, 1, template), apache, BESIDES_S) for _ in range(2)]
            self._apache_rate = found[-1]["rate"]
        return MIXED_SHARE * self._apache_rate


One = Callable[[Candidate, float], Window]


@attrs.frozen
class Row:
    """
    One line of the table: ``prepare`` makes what is needed and returns how a window of one server is measured.

    Where ``prepared`` the C program can answer, too. ``window_s`` is the command's where it is None. With ``visits`` a
    window takes long: so often each server is measured, without load before; None: the command's rounds, there and
    back. ``writes`` is False where no server writes more than some bytes.
    """

    name: str
    asked: Asked
    prepare: Callable[[Stage], One]
    prepared: bool = False
    window_s: float | None = None
    visits: int | None = None
    writes: bool = True


@attrs.frozen
class Group:
    """Rows of the same pair of servers; ``start`` starts one of them."""

    name: str
    start: Callable[[Stage, str, str], Candidate]
    rows: Sequence[Row]


def asked(rate: float, cpu: float, **more: float) -> Asked:
    return {"rate": rate, "server_cpu_us": cpu, **more}


def kept(rate: float, cpu: float, **more: float) -> Asked:
    """Return what must not be below figures that were reached before."""
    return asked(rate * (1 - SLACK), cpu / (1 - SLACK), **more)


def reading(rows: Iterable[Row]) -> list[Row]:
    """Return rows whose requests write nothing to files, or some numbers."""
    return [attrs.evolve(row, writes=False) for row in rows]


# ---- ways to measure -------------------------------------------------------------------------------------------


def load(
    name: str,
    make: Callable[[Path], Path],
    wanted: Asked,
    more: Callable[[Stage], tuple[object, ...]] = lambda stage: (),
    *,
    prepared: bool = True,
    tls: bool = False,
) -> Row:
    """Return a row of one request again and again; the last word of its name is its shape."""

    def prepare(stage: Stage) -> One:
        connections, outstanding = parsed_shape(name.rpartition(" ")[2])
        shape = Shape(name, connections, outstanding, stage.file(make), stage.rate)
        arguments = (*more(stage), "tls") if tls else more(stage)
        loadgen = built(stage.site.root, "loadgen", tls=tls)
        return lambda candidate, seconds: window(loadgen, shape, candidate.process, seconds, *arguments)

    return Row(name, wanted, prepare, prepared and not tls)


def frames_of(
    groups: Sequence[Sequence[tuple[bytes, int, Mapping[str, object], bytes]]],
) -> Callable[..., tuple[object, ...]]:
    """Return the generator's arguments for requests of several connections instead of a template."""
    return lambda stage: ("others", stage.file(partial(fixed_frames, groups=groups)), 1)


def while_pulled(name: str, wanted: Asked, connections: int, pullers: int, rate: float = 0.0, delay: int = 0) -> Row:
    """Return a row of sends while ``pullers`` long polls get them; rate 0: a share of Apache's maximum."""

    def prepare(stage: Stage) -> One:
        sent = stage.file(partial(stamped_template, topic=HELD, body_bytes=100, delay_level=delay))
        pulled = stage.file(partial(held_pull_template, topic=HELD, group="held"))
        plain = stage.file(partial(send_template, topic=SENT, body_bytes=100))
        wanted_rate = rate or stage.share_of_apache(plain)
        # what counts begins when messages arrive as fast as they are sent, those of the last window included
        warm_s = DELAYED_WARM_S if delay else 0.2
        shape = Shape(name, connections, 64 if delay else 4, sent, wanted_rate, warm_s)

        def one(candidate: Candidate, seconds: float) -> Window:
            port = candidate.process.port
            with candidate.process.probe() as probe:
                ends = ",".join(str(probe.max_offset(HELD, queue)) for queue in range(pullers))
            found = window(stage.loadgen, shape, candidate.process, seconds, "pull", pulled, port, ends)
            # what counts is what arrives
            return found | {"rate": found["receive_rate"]}

        return one

    return Row(name, wanted, prepare, window_s=BESIDES_S)


def send_back(stage: Stage) -> One:
    """CONSUMER_SEND_MSG_BACK (36) of one message, with a delay of two hours."""
    places = {}
    for candidate in stage.candidates.values():
        with candidate.process.probe() as probe:
            # the brokers of some rows are not filled
            probe.send_message(FILLED, 0, b"x" * BODY_BYTES)
            places[candidate.name] = decode_record(probe.must(11, pull_fields(FILLED, 0, 0, count=1)).body).phy_offset
    shapes = {}
    for name, place in places.items():
        fields = {"offset": place, "group": "all", "delayLevel": 18, "originMsgId": "0" * 32, "originTopic": FILLED}
        fields |= {"unitMode": False, "maxReconsumeTimes": 16}
        shapes[name] = Shape(
            "send back", 16, 1, stage.file(partial(plain_template, code=36, fields=fields)), stage.rate
        )
    # the C program answers whatever is asked
    return lambda candidate, seconds: window(
        stage.loadgen, shapes.get(candidate.name, shapes[OURS_NAME]), candidate.process, seconds
    )


def behind(stage: Stage) -> One:
    """Sends at a share of Apache's maximum; the latencies are the slave's lag, the CPU that of master and slave."""
    template = stage.file(partial(send_template, topic=SENT, body_bytes=100))
    shape = Shape("slave behind", 16, 4, template, stage.share_of_apache(template))

    def one(candidate: Candidate, seconds: float) -> Window:
        assert isinstance(candidate, Started)
        assert candidate.slave is not None
        lag = Lag(candidate.master, candidate.slave)
        pids = [candidate.master.pid, candidate.slave.pid]
        found = window(stage.loadgen, shape, candidate.master, seconds, pids=pids)
        return found | lag.close(shape.rate)

    return one


def caught_up(body_bytes: int) -> Callable[[Stage], One]:
    def prepare(stage: Stage) -> One:
        template = stage.file(partial(send_template, topic=SENT, body_bytes=body_bytes))
        numbers = iter(range(1 << 20))
        for started in stage.candidates.values():
            assert isinstance(started, Started)
            fill_log(started, stage.loadgen, template, 500_000_000)

        def one(candidate: Candidate, seconds: float) -> Window:
            assert isinstance(candidate, Started)
            return catch_up(stage.site, candidate, next(numbers))

        return one

    return prepare


def cold(stage: Stage) -> One:
    """Sends beside one consumer of a log in the page cache, then of one that is not; ``beside`` is the ratio of p99."""
    sent = stage.file(partial(stamped_template, topic=HELD, body_bytes=1000))
    pulled = stage.file(partial(held_pull_template, topic=HELD, group="held"))
    plain = stage.file(partial(send_template, topic=SENT, body_bytes=100))
    far, filling = 1 << 40, Shape("filling", 16, 16, sent)
    for started in stage.candidates.values():
        assert isinstance(started, Started)
        while started.master.end_offset() < COLD_BYTES:
            window(stage.loadgen, filling, started.master, 2.0, "pull", pulled, started.master.port, far)
    os.sync()
    places = {name: iter(range(0, 1 << 40, COLD_STEP)) for name in stage.candidates}
    shape = Shape("cold", 4, 4, plain, COLD_RATE)

    def one(candidate: Candidate, seconds: float) -> Window:
        assert isinstance(candidate, Started)
        master, at = candidate.master, next(places[candidate.name])

        def beside() -> Window:
            return window(stage.loadgen, shape, master, seconds, "pull", pulled, master.port, at)

        for path in master.commitlog.iterdir():
            with path.open("rb") as file:
                while file.read(1 << 20):
                    pass
        warm = beside()
        evict(master)
        found = beside()
        return found | {"beside": found["p99"] / max(warm["p99"], 1.0), "warm_stolen_ms": warm["stolen_ms"]}

    return one


def while_slave_copies(stage: Stage) -> One:
    """Sends while a slave that was away copies what it missed from a master that has it on the disk only."""
    filling = Shape("filling", 16, 16, stage.file(partial(send_template, topic=SENT, body_bytes=1000)))
    shape = Shape("copied", 4, 4, stage.file(partial(send_template, topic=SENT, body_bytes=100)), COLD_RATE)

    def one(candidate: Candidate, seconds: float) -> Window:
        assert isinstance(candidate, Started)
        assert candidate.slave is not None
        master, slave = candidate.master, candidate.slave
        slave.kill()
        end = before = master.end_offset()
        while end < before + MISSED_BYTES:
            window(stage.loadgen, filling, master, 1.0)
            end = master.end_offset()
        evict(master)
        slave.start()
        until(f"{slave.name} copies", lambda: slave.end_offset() > before)
        found = window(stage.loadgen, shape, master, seconds)
        until(f"{slave.name} has all", lambda: slave.end_offset() >= end, seconds=120)
        return found

    return one


def both_masters(stage: Stage) -> One:
    """Sends to all masters of a side at once, from two generators."""
    shape = Shape("masters", 16, 4, stage.file(partial(send_template, topic=SENT, body_bytes=100)))

    def one(candidate: Candidate, seconds: float) -> Window:
        assert isinstance(candidate, Started)
        with ThreadPoolExecutor(2) as pool:
            both = [candidate.masters[0], candidate.masters[-1]]
            found = list(pool.map(lambda broker: window(stage.loadgen, shape, broker, seconds), both))
        operations = sum(each["done"] for each in found)
        used = [each["server_cpu_us"] * each["done"] for each in found]
        cpu_us = sum(used) if both[0] is not both[1] else statistics.fmean(used)
        whole = {"rate": sum(each["rate"] for each in found), "server_cpu_us": cpu_us / operations}
        return found[0] | whole | {key: max(each[key] for each in found) for key in ("p50", "p99", "loadgen_cpu")}

    return one


# ---- the table -------------------------------------------------------------------------------------------------

_OFFSET: dict[str, object] = {"consumerGroup": "many", "topic": SENT}


def pull_rows() -> list[Row]:
    kinds = (("", "all", asked(2.0, 0.4)), (" by tag", "tag", asked(2.0, 0.4)), (" by SQL92", "sql", asked(1.5, 0.6)))
    rows = []
    for what, group, wanted in kinds:
        make = partial(pull_template, topic=FILLED, group=group, count=BATCH)
        for shape in ("c1d1", "c16d1"):
            rows.append(load(f"pull {BATCH} x 256 B{what} {shape}", make, wanted))
    cpp = partial(cpp_template, topic=FILLED, group="all", count=BATCH)
    rows.append(load(f"pull {BATCH} x 256 B by C++ c16d1", cpp, asked(2.0, 0.4)))
    return rows


_Fixed = tuple[bytes, int, Mapping[str, object], bytes]


def _beat(group: str, client: str) -> _Fixed:
    return b"", HEARTBEAT, {}, heartbeat(group, GROUPS["many"], client)


def consumer_rows() -> list[Row]:
    wanted, rows = asked(2.0, 0.4), []
    commit = partial(plain_template, code=15, fields={**_OFFSET, "queueId": "@Q@", "commitOffset": "@T@"})
    query = partial(plain_template, code=14, fields={**_OFFSET, "queueId": "@Q@"})
    members = partial(plain_template, code=38, fields={"consumerGroup": "many"})
    for shape in ("c1d1", "c16d1"):
        rows.append(load(f"commit an offset {shape}", commit, wanted))
        rows.append(load(f"query an offset {shape}", query, wanted))
        rows.append(load(f"members of a group {shape}", members, wanted))
    one_way: list[_Fixed] = [
        (frame(15, {**asks, "commitOffset": GROWING_MARK}, opaque=1, flag=ONE_WAY), 14, asks, b"")
        for asks in ({**_OFFSET, "queueId": number} for number in range(QUEUES))
    ]
    rows.append(load("commit one-way, then query c16d1", query, wanted, frames_of([one_way]), prepared=False))
    # ten members in a group; a member that joins makes the broker notify all others
    beats = [f"many-{number // 10}" for number in range(200)]
    frames = [[_beat(group, f"client-{number}")] for number, group in enumerate(beats)]
    rows.append(load("heartbeats of 200 consumers c200d1", query, wanted, frames_of(frames)))
    return rows


def question_rows() -> list[Row]:
    """Return rows of what members of ordered groups, tools and exporters ask."""
    queues = [{"topic": SENT, "brokerName": "broker-a", "queueId": queue} for queue in range(QUEUES)]
    by_key: dict[str, object] = {"topic": FILLED, "key": unique_key("@K@"), "_UNIQUE_KEY_QUERY": "true"}
    by_key |= {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    locked = json.dumps({"consumerGroup": "many", "clientId": "127.0.0.1@1", "mqSet": queues}).encode()
    questions: dict[str, tuple[int, dict[str, object], bytes]] = {
        f"lock {QUEUES} queues": (41, {}, locked),
        "largest offset": (30, {"topic": SENT, "queueId": "@Q@"}, b""),
        "offset by time": (29, {"topic": FILLED, "queueId": "@Q@", "timestamp": 1}, b""),
        "messages by key": (12, by_key, b""),
        "message by its offset": (33, {"offset": 0}, b""),
        f"offsets of a topic, {QUEUES} queues": (202, {"topic": SENT}, b""),
        f"offsets of a group, {QUEUES} queues": (208, {"consumerGroup": "many", "topic": SENT}, b""),
    }
    make = partial(plain_template, keys=MESSAGES)
    return [
        load(f"{name} c16d1", partial(make, code=code, fields=fields, body=body), asked(1.0, 0.6))
        for name, (code, fields, body) in questions.items()
    ]


def send_rows(name: str, shapes: Mapping[str, Asked], body_bytes: int = 100) -> list[Row]:
    make = partial(send_template, topic=SENT, body_bytes=body_bytes)
    return [load(f"{name} {body_bytes} B {shape}", make, wanted) for shape, wanted in shapes.items()]


def one_way_row() -> Row:
    """Return a row of messages that nobody waits for, eight in one write; the query behind them is answered."""
    query = partial(plain_template, code=14, fields={**_OFFSET, "queueId": "@Q@"})
    properties = properties_text(UNIQ_KEY=f"{1:032X}", WAIT="true", TAGS="TagA")
    sends: list[_Fixed] = []
    for queue in range(QUEUES):
        message = frame(SEND, send_fields(SENT, queue, properties), bytes(100), opaque=1, flag=ONE_WAY)
        sends.append((message * 8, 14, {**_OFFSET, "queueId": queue}, b""))
    return load("8 x 100 B one-way, then query c16d1", query, asked(1.0, 0.6), frames_of([sends]), prepared=False)


def reply_row(shape: str) -> Row:
    """Return a row of replies to requests, each pushed to its requester and acknowledged before it is answered."""
    make = partial(reply_template, topic=SENT, body_bytes=100)
    return load(
        f"reply to a request {shape}",
        make,
        asked(1.0, 0.6),
        more=lambda stage: ("hello", stage.file(producer_template)),
        prepared=False,
    )


def half_row(name: str) -> Row:
    """Return a row of half messages, each committed when it is answered."""
    make, end = partial(half_template, topic=SENT), lambda stage: ("end", stage.file(end_template))
    return load(f"{name} c16d1", make, asked(1.0, 0.6), end, prepared=False)


def waiting_rows(name: str) -> list[Row]:
    """Return rows of other messages than ordinary ones, whose answers wait for disk or slave."""
    delayed = partial(send_template, topic=SENT, body_bytes=100, delay_level=18)
    half = partial(half_template, topic=SENT)
    # half messages without an end come last: the broker goes on to ask their producers while other rows are measured
    return [
        load(f"{name} delayed 100 B c16d1", delayed, asked(1.0, 0.6)),
        Row(f"{name} send back c16d1", asked(1.0, 0.6), send_back, prepared=True),
        half_row(f"{name} half message, then end"),
        load(f"{name} half message c16d1", half, asked(1.0, 0.6)),
    ]


def signed_rows() -> list[Row]:
    """Return rows of requests with a signature, which a broker with access control checks."""
    send = partial(signed_send_template, topic=SENT, body_bytes=100, account=ACCOUNT)
    commit = partial(signed_template, code=15, fields={**_OFFSET, "queueId": 0, "commitOffset": 1}, account=ACCOUNT)
    rows = [load(f"signed send 100 B {shape}", send, asked(1.0, 0.8)) for shape in ("c1d1", "c16d1", "c16d16")]
    return [*rows, load("signed commit of an offset c16d1", commit, asked(1.0, 0.8))]


def tls_rows() -> list[Row]:
    """Return rows of connections that are encrypted."""
    send = partial(send_template, topic=SENT, body_bytes=100)
    pull = partial(pull_template, topic=FILLED, group="all", count=BATCH)
    pulls = [load(f"TLS pull {BATCH} x 256 B {shape}", pull, asked(1.0, 0.8), tls=True) for shape in ("c1d1", "c16d1")]
    sends = [load(f"TLS send 100 B {shape}", send, asked(1.0, 0.8), tls=True) for shape in ("c1d1", "c16d1", "c16d16")]
    return [*reading(pulls), *sends]


def route_rows() -> list[Row]:
    make = partial(route_template, topics=64)
    before = {"c1d1": (1.6, 0.33), "c16d1": (3.9, 0.15), "c16d16": (13.0, 0.04), "c256d1": (2.3, 0.26)}
    rows = [load(f"route {shape}", make, kept(*figures)) for shape, figures in before.items()]

    def changed(stage: Stage) -> tuple[object, ...]:
        return "others", stage.file(partial(registrations, topics=5000, brokers=1, changes=True)), 1

    return [*rows, load("registration of 5,000 changed topics c1d1", make, asked(1.5, 0.7), changed)]


def start_filled(stage: Stage, kind: str, name: str) -> Candidate:
    started = start(stage.site, kind, name, stage.warm_s)
    fill(started.master)
    return started


def start_brokers(**config: object) -> Callable[[Stage, str, str], Candidate]:
    # ``config`` are arguments of bench.brokers.start, or keys of the broker's properties
    arguments: dict[str, object] = config
    return lambda stage, kind, name: start(stage.site, kind, name, stage.warm_s, **arguments)  # type: ignore[arg-type]


def beside_delayed(stage: Stage) -> One:
    """Sends while the delayed messages of the second before become due."""
    delayed = stage.file(partial(send_template, topic=SENT, body_bytes=100, delay_level=1))
    plain = stage.file(partial(send_template, topic=SENT, body_bytes=100))
    backlog = Shape("backlog", 16, 64, delayed, BACKLOG_RATE, warm_s=0.0)
    beside = Shape("sends beside a backlog", 4, 4, plain, BESIDE_RATE)

    def one(candidate: Candidate, seconds: float) -> Window:
        window(stage.loadgen, backlog, candidate.process, seconds)
        return window(stage.loadgen, beside, candidate.process, seconds)

    return one


def start_masters(stage: Stage, kind: str, name: str) -> Candidate:
    return start(stage.site, kind, name, stage.warm_s, masters=2 if kind == OURS else 1)


def start_namesrv(stage: Stage, kind: str, name: str) -> Candidate:
    process = stage.site.namesrv(kind, name)
    return Candidate(name, process, warm_seconds(kind, stage.warm_s), [process])


GROUPS_OF_ROWS = (
    Group(
        "broker",
        start_filled,
        (
            *reading(pull_rows()),
            load(
                "batch 32 x 100 B c1d1",
                partial(batch_template, topic=SENT, count=BATCH, body_bytes=100),
                asked(1.5, 0.5),
            ),
            load(
                "batch 32 x 100 B c16d1",
                partial(batch_template, topic=SENT, count=BATCH, body_bytes=100),
                asked(2.0, 0.4),
            ),
            while_pulled(
                "16 producers, 16 long polls",
                asked(0.97, 0.5, p99=1.0, receive_p50=0.7, receive_p99=0.7),
                CONSUMERS,
                CONSUMERS,
            ),
            while_pulled("wake-up of one held pull", {"server_cpu_us": 0.5, "receive_p50": 0.4}, 1, 1, WAKE_RATE),
            *reading(consumer_rows()),
            *reading(question_rows()),
            Row("send back c16d1", asked(1.0, 0.6), send_back, prepared=True),
            while_pulled("delayed messages, 5,000 a second", asked(0.97, 0.6), 16, CONSUMERS, DELAYED_RATE, delay=1),
            Row("sends beside 20,000 delayed messages", asked(0.97, 0.6, p99=1.0), beside_delayed, window_s=1.0),
            half_row("half message, then end"),
            load("send 100 B by Go c16d16", partial(go_template, topic=SENT, body_bytes=100), asked(1.0, 0.6)),
            *send_rows("send", {"c1d1": kept(1.28, 0.27), "c64d1": kept(1.49, 0.44), "c16d16": kept(3.5, 0.18)}),
            *send_rows("send", {"c16d1": asked(1.0, 0.6)}, 65_536),
            one_way_row(),
            reply_row("c1d1"),
            reply_row("c16d1"),
        ),
    ),
    Group(
        "checks",
        start_brokers(transactionCheckInterval=1000),
        (attrs.evolve(half_row("half message, end and its check"), window_s=BESIDES_S),),
    ),
    Group(
        "SYNC_FLUSH",
        start_brokers(flushDiskType="SYNC_FLUSH"),
        (
            *send_rows("SYNC_FLUSH", {"c1d1": kept(1.25, 0.44, p50=0.85), "c64d1": kept(1.30, 0.53)}),
            *waiting_rows("SYNC_FLUSH"),
        ),
    ),
    Group(
        "SYNC_MASTER",
        start_brokers(slave=True, brokerRole="SYNC_MASTER"),
        (
            *send_rows("SYNC_MASTER", {"c1d1": kept(1.03, 0.44, p50=0.9), "c64d1": kept(1.53, 0.37)}),
            *waiting_rows("SYNC_MASTER"),
        ),
    ),
    Group(
        "SYNC_FLUSH and SYNC_MASTER",
        start_brokers(slave=True, brokerRole="SYNC_MASTER", flushDiskType="SYNC_FLUSH"),
        send_rows("SYNC_FLUSH and SYNC_MASTER", {shape: asked(1.0, 0.6) for shape in ("c1d1", "c64d1")}),
    ),
    Group(
        "elected pair",
        lambda stage, kind, name: start_elected(stage.site, kind, name, stage.warm_s),
        send_rows("elected pair (5.3.3)", {shape: asked(1.0, 0.6) for shape in ("c1d1", "c64d1")}),
    ),
    Group(
        "slave",
        start_brokers(slave=True),
        (
            Row("slave behind a master under load", asked(0.97, 0.5, p99=0.5), behind, window_s=BESIDES_S),
            Row(
                "sends while a slave copies cold log",
                {"rate": 0.97, "p99": 1.0},
                while_slave_copies,
                window_s=1.5,
                visits=2,
            ),
        ),
    ),
    *(
        Group(
            f"catch-up {size}",
            start_brokers(mappedFileSizeCommitLog=SEGMENT_BYTES),
            (Row(f"a new slave catches up, {size} B (MB)", asked(rate, 0.5), caught_up(size), visits=3),),
        )
        for size, rate in ((256, 2.0), (1024, 2.8))
    ),
    Group(
        "cold", start_brokers(), (Row("sends beside a cold consumer", {"beside": 2.0}, cold, window_s=2.0, visits=2),)
    ),
    Group(
        "access control",
        lambda stage, kind, name: start_guarded(stage.site, kind, name, stage.warm_s),
        signed_rows(),
    ),
    Group("TLS", start_filled, tls_rows()),
    Group("NameServer", start_namesrv, reading(route_rows())),
    Group("masters", start_masters, (Row("two masters : one Apache broker", {}, both_masters),)),
)


def run_group(
    group: Group, rows: Sequence[Row], stage: Stage, arguments: argparse.Namespace
) -> list[tuple[Row, Rounds | str]]:
    """Measure rows of a group; the text says why there is no result."""
    held: list[Members | PretendedBrokers] = []
    found: list[tuple[Row, Rounds | str]] = []
    for kind, name in ((arguments.ours, OURS_NAME), (APACHE_4, APACHE_NAME)):
        candidate = group.start(stage, kind, name)
        stage.add(candidate)
        if group.start is start_filled and isinstance(candidate, Started):
            held.append(Members(candidate.master))
        elif group.name == "NameServer":
            held.append(PretendedBrokers(candidate.process.port, topics=64, width=4))
    try:
        for row in rows:
            print(f"{time.strftime('%H:%M:%S')} {row.name}", file=sys.stderr, flush=True)
            candidates = list(stage.candidates.values())
            rounds, seconds = row.visits or arguments.rounds, row.window_s or arguments.window
            try:
                one = row.prepare(stage)
                if row.prepared:
                    answered = one(stage.candidates[OURS_NAME], LOOK_S)
                    candidates.append(stage.anchor(answered["answer_bytes"]))
                if row.visits:
                    candidates = [attrs.evolve(candidate, warm_s=0.0) for candidate in candidates]
                windows = measure(
                    candidates,
                    row.name,
                    one,
                    rounds=rounds,
                    window_s=seconds,
                    there_and_back=row.visits is None,
                    writes=row.writes,
                )
                found.append((row, windows))
            except (SystemExit, OSError, LookupError, subprocess.SubprocessError) as error:
                found.append((row, str(error)))
    finally:
        for each in held:
            each.close()
    return found


def verdict(row: Row, found: Rounds) -> str:
    """Say for each figure that is asked for whether its median ratio met it."""
    parts = []
    for key, bound in row.asked.items():
        ratio = found.middle(OURS_NAME, key) if key in OWN else found.ratio(OURS_NAME, APACHE_NAME, key).median
        is_met = ratio >= bound if key == "rate" else ratio <= bound
        parts.append(f"{FIGURES[key]} {bound:.2f}: {'met' if is_met else f'**not met** ({ratio:.2f})'}")
    if found.bad(OURS_NAME):
        parts.append("**refused**")
    return ", ".join(parts) or "-"


def report(results: Sequence[tuple[Row, Rounds | str]]) -> str:
    """Return the table of all rows."""
    head = [
        "what",
        "rate ours",
        "Apache",
        "ratio (min-max)",
        "CPU us ours",
        "Apache",
        "ratio (min-max)",
        "C program: CPU us",
    ]
    head += ["ours above it", "p50 us ours", "Apache", "p99 us ours", "Apache", "not 0"]
    head += ["stolen ms", "generator", "asked"]
    rows = []
    for row, found in results:
        if isinstance(found, str):
            rows.append([row.name, *["-"] * (len(head) - 2), f"**failed**: {' '.join(found.split())[:200]}"])
            continue
        sides = OURS_NAME, APACHE_NAME
        cells = [row.name]
        for key, digits in (("rate", 0), ("server_cpu_us", 1)):
            cells += [f"{found.middle(side, key):,.{digits}f}" for side in sides]
            cells.append(found.ratio(OURS_NAME, APACHE_NAME, key).text())
        if C_NAME in found.windows:
            ours, least = (found.middle(side, "server_cpu_us") for side in (OURS_NAME, C_NAME))
            cells += [f"{least:.1f}", f"{max(0.0, 1 - least / ours):.0%}"]
        else:
            cells += ["", ""]
        receiving = any(key.startswith("receive") for key in row.asked)
        for key in ("p50", "p99"):
            for side in sides:
                text = f"{found.middle(side, key):,.0f}"
                cells.append(text + (f", receive {found.middle(side, f'receive_{key}'):,.0f}" if receiving else ""))
        cells.append(" / ".join(str(found.bad(side)) for side in sides))
        cells.append(" / ".join(f"{found.stolen(side):.0f}" for side in sides))
        busiest = max(found.busiest(side) for side in sides)
        cells.append(f"{busiest:.0%}" + (" (a limit of its own)" if busiest > MAX_LOADGEN_CPU else ""))
        rows.append([*cells, verdict(row, found)])
    return markdown(head, rows)


def main() -> int:
    """Run the rows that the command line asks for."""
    parser = argparse.ArgumentParser(description="Everything that is repeated: our servers against Apache's.")
    names = [row.name for group in GROUPS_OF_ROWS for row in group.rows]
    parser.add_argument("--rows", nargs="+", default=["*"], help="names of rows, or patterns with * (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of A B B A (default: %(default)s)")
    parser.add_argument("--window", type=float, default=0.5, help="seconds of a window (default: %(default)s)")
    parser.add_argument(
        "--warm", type=float, default=2.0, help="seconds of load on Java before a row (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests a second, sent on time (default: closed loop)"
    )
    parser.add_argument("--markdown", type=Path, help="file for the table")
    parser.add_argument("--json", type=Path, help="file for every window")
    parser.add_argument("--ours", default=OURS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(names))
        return 0
    for pattern in arguments.rows:
        if not fnmatch.filter(names, pattern):
            parser.error(f"--rows: {pattern!r} is no row; --list names them")
    # what we measure is this checkout, installed or not
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    commit = subprocess.run(
        ["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout
    results: list[tuple[Row, Rounds | str]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        facts = conditions(Path(folder), BENCH_JAVA, syncs=True)
        facts += (
            f"- {time.strftime('%d %B %Y, %H:%M')}, commit {commit.strip() or 'unknown'}, {arguments.rounds} rounds\n"
        )
        print(facts, flush=True)
        for number, group in enumerate(GROUPS_OF_ROWS):
            rows = [row for row in group.rows if any(fnmatch.fnmatch(row.name, pattern) for pattern in arguments.rows)]
            if rows:
                # each group has the machine for itself
                site = Site(Path(folder) / str(number), BENCH_JAVA)
                site.root.mkdir()
                try:
                    results += run_group(group, rows, Stage(site, arguments.rate, arguments.warm), arguments)
                finally:
                    site.close()
                    site.forget_stores()
    facts += f"- took {(time.monotonic() - began) / 60:.0f} minutes\n"
    text = f"{facts}\n{report(results)}"
    print(text)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text + "\n")
    if arguments.json is not None:
        found = [each.to_json() for _, each in results if isinstance(each, Rounds)]
        arguments.json.write_text(
            json.dumps({"conditions": facts, "command": sys.argv, "results": found}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
