"""
How far a broker goes: many topics and queues, many connections, groups and held polls.

From the project's root: ``python -m bench.scale [--topics 10000] [--kinds ours,4.9.7] [--markdown FILE]``.

Figures of time are wall time; beside those of a start is the CPU time, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.joins import joined
from bench.rounds import BENCH_JAVA, markdown
from bench.servers import cpu_seconds, raise_file_limit
from tests.real.peers import APACHE_4, HOST, OURS, Broker, Process, Site
from tests.real.probe import PULL, SEND, Closed, Probe, Refused, frame, pull_fields, send_fields

#: requests outstanding on the connection that fills the broker
WINDOW = 32
DEADLINE_S = 300.0
POLL_MS = 15_000
#: as Java clients do
HEARTBEAT_S = 30.0

Figures = dict[str, str]


def pipelined(probe: Probe, requests: Iterator[tuple[int, dict[str, object], bytes]]) -> int:
    """Send requests, WINDOW of them outstanding; return how many succeeded. Raises Refused, Closed or TimeoutError."""
    outstanding = done = 0
    for code, fields, body in requests:
        probe.send(code, fields, body)
        outstanding += 1
        if outstanding == WINDOW:
            done, outstanding = done + _good(probe, code), outstanding - 1
    for _ in range(outstanding):
        done += _good(probe, code)
    return done


def _good(probe: Probe, code: int) -> int:
    answer = probe.read()
    if answer.code != 0:
        raise Refused(code, answer)
    return 1


def topic_requests(topics: int, queues: int) -> Iterator[tuple[int, dict[str, object], bytes]]:
    for number in range(topics):
        fields = {"topic": f"Scale{number:06d}", "defaultTopic": "TBW102", "readQueueNums": queues, "perm": 6}
        more = {"writeQueueNums": queues, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
        yield 17, fields | more, b""


def send_requests(topics: int, queues: int) -> Iterator[tuple[int, dict[str, object], bytes]]:
    for number in range(topics):
        for queue_id in range(queues):
            yield SEND, send_fields(f"Scale{number:06d}", queue_id, ""), b"x" * 100


class LookUps(threading.Thread):
    """Look up a route 200 times a second until stopped, and keep how long each took."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._probe = Probe(port)
        self._stopped = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._stopped.wait(0.005):
            began = time.perf_counter()
            with contextlib.suppress(Refused):
                self._probe.route("TBW102")
            self.seconds.append(time.perf_counter() - began)

    def stop(self) -> str:
        self._stopped.set()
        self.join()
        self._probe.close()
        times = sorted(self.seconds)
        return (
            f"{statistics.median(times) * 1e3:.2f} / {times[len(times) * 99 // 100] * 1e3:.1f} / {times[-1] * 1e3:.1f}"
        )


def status_bytes(pid: int, field: str) -> int:
    """Return a size of /proc/PID/status."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def started(broker: Broker) -> str:
    """Start a broker; return the seconds until a send is answered, and the CPU seconds that it took."""
    began = time.monotonic()
    broker.start(wait=False)
    while time.monotonic() < began + DEADLINE_S:
        if not broker.alive:
            return "ends at its start"
        with contextlib.suppress(OSError, Closed), broker.probe() as probe:
            if probe.send_message("Scale000000", 0, b"first").code == 0:
                return f"{time.monotonic() - began:.1f} ({cpu_seconds(broker.pid):.1f})"
        time.sleep(0.02)
    return f"more than {DEADLINE_S:.0f}"


def timed(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def topics_and_queues(namesrv: Process, broker: Broker, topics: int, queues: int) -> Figures:
    """Create topics, put a message into each queue, stop and start the broker; another into each, kill and start."""
    found: Figures = {}
    look_ups = LookUps(namesrv.port)
    look_ups.start()
    try:
        with broker.probe(timeout=60) as probe:
            seconds = timed(lambda: pipelined(probe, topic_requests(topics, queues)))
            found[f"{topics} topics created, s"] = f"{seconds:.1f}"
            found["look-up meanwhile, ms: p50 / p99 / worst"] = look_ups.stop()
            seconds = timed(lambda: pipelined(probe, send_requests(topics, queues)))
            found[f"a message into each of {topics * queues} queues, s"] = f"{seconds:.1f}"
            time.sleep(3)  # until they are written
            found["open files"] = str(len(os.listdir(f"/proc/{broker.pid}/fd")))
            found["resident MiB"] = f"{status_bytes(broker.pid, 'VmRSS') / (1 << 20):.0f}"
    except (Refused, Closed, OSError) as error:
        found["ended early"] = f"{error}"[:100].replace("|", "/").replace("\n", " ")
    if broker.alive:
        found["clean stop, s"] = f"{timed(broker.stop):.1f}"
    found["start after a clean stop, s (CPU s)"] = started(broker)
    if broker.alive:
        with broker.probe(timeout=60) as probe:
            found["messages readable"] = str(sum(probe.max_offset(f"Scale{n:06d}", 0) > 0 for n in range(topics)))
            with contextlib.suppress(Refused, Closed, OSError):
                pipelined(probe, send_requests(topics, queues))
                time.sleep(3)  # until they are written
    broker.kill()
    found["start after kill -9, each queue grown, s (CPU s)"] = started(broker)
    return found


class Crowd:
    """Connections of consumers, each with polls that it asks again when they are answered."""

    def __init__(self, port: int, connections: int, groups: int, polls: int, topics: int, queues: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._buffers: dict[int, bytearray] = {}
        self._polls: dict[int, tuple[socket.socket, bytes]] = {}
        self._beats: list[tuple[socket.socket, bytes]] = []
        self.answers = 0
        #: heartbeats without an answer so far
        self.unheard = 0
        self.repeats = True
        for number in range(connections):
            sock = socket.create_connection((HOST, port), 60)
            self._sockets.append(sock)
            self._buffers[sock.fileno()] = bytearray()
            self._selector.register(sock, selectors.EVENT_READ, sock)
            group = f"ScaleGroup{number % groups:05d}"
            topic = f"Scale{number % groups % topics:06d}"
            self._beats.append((sock, _heartbeat(f"client{number}", group, topic)))
        for number in range(polls):
            index = number % connections
            group, topic = f"ScaleGroup{index % groups:05d}", f"Scale{index % groups % topics:06d}"
            # At the end of the queue, which has one message.
            fields = pull_fields(topic, number // connections % queues, 1, wait_ms=POLL_MS) | {"consumerGroup": group}
            self._polls[number + 1] = self._sockets[index], frame(PULL, fields, opaque=number + 1)

    def begin(self) -> None:
        """Send heartbeats, then all polls."""
        self.beat()
        for sock, data in self._polls.values():
            sock.sendall(data)

    def beat(self) -> None:
        for sock, data in self._beats:
            sock.sendall(data)
            self.unheard += 1

    def settle(self) -> None:
        """Answer until all heartbeats are answered: the first ones make groups and tell them of each other."""
        until = time.monotonic() + DEADLINE_S
        while self.unheard:
            if time.monotonic() > until:
                raise SystemExit(f"{self.unheard} heartbeats were not answered within {DEADLINE_S:.0f} s")
            self.run(0.5)

    def run(self, seconds: float) -> None:
        """Answer for so long."""
        until = time.monotonic() + seconds
        beat_at = time.monotonic() + HEARTBEAT_S
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left, 0.5)):
                self._read(key.data)
            if time.monotonic() > beat_at:
                beat_at += HEARTBEAT_S
                self.beat()

    def _read(self, sock: socket.socket) -> None:
        data = sock.recv(1 << 18)
        if not data:
            raise SystemExit("the broker has closed a consumer's connection")
        buffer = self._buffers[sock.fileno()]
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + (length := struct.unpack_from(">I", buffer)[0]):
            match = re.search(rb'"opaque":(\d+)', buffer[8 : 4 + length])
            opaque = int(match[1]) if match else 0
            is_answer = re.search(rb'"flag":[13]\b', buffer[8 : 4 + length]) is not None
            del buffer[: 4 + length]
            if opaque == 0 and is_answer:
                self.unheard -= 1
            elif opaque in self._polls and is_answer:
                self.answers += 1
                if self.repeats:
                    poll = self._polls[opaque]
                    poll[0].sendall(poll[1])

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def _heartbeat(client: str, group: str, topic: str) -> bytes:
    subscription = (
        f'{{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],'
        f'"topic":"{topic}"}}'
    )
    body = (
        f'{{"clientID":"{client}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        f'"consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING",'
        f'"subscriptionDataSet":[{subscription}],"unitMode":false}}],"producerDataSet":[]}}'
    )
    return frame(34, {}, body.encode(), opaque=0)


def consumers(broker: Broker, connections: int, groups: int, polls: int, seconds: float) -> Figures:
    """Hold polls of many groups; measure memory and CPU while nothing happens, and what one send wakes."""
    topics, queues = max(1, groups // 10), max(8, polls // connections)
    with broker.probe(timeout=60) as probe:
        pipelined(probe, topic_requests(topics, queues))
        pipelined(probe, send_requests(topics, queues))
    before = status_bytes(broker.pid, "RssAnon")
    crowd = Crowd(broker.port, connections, groups, polls, topics, queues)
    crowd.begin()
    crowd.settle()
    crowd.run(POLL_MS / 1000)  # and what follows from them: each poll comes once
    after = status_bytes(broker.pid, "RssAnon")
    cpu, answers, began = cpu_seconds(broker.pid), crowd.answers, time.monotonic()
    crowd.run(seconds)
    share = (cpu_seconds(broker.pid) - cpu) / (time.monotonic() - began)
    idle_answers = (crowd.answers - answers) / seconds
    answers, crowd.repeats = crowd.answers, False
    with broker.probe() as probe:
        probe.send_message("Scale000000", 0, b"wakes")
    crowd.run(0.3)
    woken = crowd.answers - answers
    crowd.close()
    return {
        f"idle with {connections} connections, {groups} groups, {polls} polls: CPU, % of a core": f"{share * 100:.1f}",
        "polls that end and come again meanwhile, a second": f"{idle_answers:.0f}",
        "memory for them, MiB": f"{(after - before) / (1 << 20):.0f}",
        "polls that end within 0.3 s of a send, by it or by time": str(woken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kinds", default=f"{OURS},{APACHE_4}", help="which brokers (%(default)s)")
    parser.add_argument("--parts", default="topics,consumers,joins", help="what is measured (%(default)s)")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=8, help="of each topic (%(default)s)")
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--polls", type=int, default=20_000)
    parser.add_argument("--members", type=int, default=800, help="that join one group (%(default)s)")
    parser.add_argument("--seconds", type=float, default=45.0, help="of idleness (%(default)s)")
    parser.add_argument("--markdown", help="write the table to this file, too")
    options = parser.parse_args()
    raise_file_limit(max(options.connections, options.members) + 1000)
    kinds = options.kinds.split(",")
    columns: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=os.environ.get("TMPDIR")) as root:
        site = Site(Path(root), BENCH_JAVA)
        print(conditions(site.root, BENCH_JAVA), flush=True)
        sizes: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}
        for kind in kinds:
            found: Figures = {}
            for part in options.parts.split(","):
                namesrv = site.namesrv(kind, f"namesrv-{part}-{kind}")
                address = f"{HOST}:{namesrv.port}"
                broker = site.broker(kind, address, f"broker-{part}-{kind}", **sizes)
                if part == "topics":
                    found |= topics_and_queues(namesrv, broker, options.topics, options.queues)
                elif part == "joins":
                    found |= joined(broker, options.members)
                else:
                    found |= consumers(broker, options.connections, options.groups, options.polls, options.seconds)
                site.close()
            columns.append(found)
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    text = markdown(["", *("ours" if kind == OURS else f"Apache {kind}" for kind in kinds)], rows)
    print(text)
    if options.markdown:
        Path(options.markdown).write_text(text + "\n")


if __name__ == "__main__":
    main()
