"""
Our NameServer under crowds: ten thousand connections, peers that stop in mid-frame or do not read, everybody at once.

Beside each attack an ordinary client looks topics up and is answered; memory and descriptors come back. Figures are
printed (``pytest -s``).
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from functools import cache, partial

import pytest

from tests.needs import missing
from tests.real.peers import HOST, OURS, STAND_IN, Process, Site, until
from tests.real.probe import frame
from tests.real.storm import MB, Asker, Brokers, anonymous_bytes, forget_peak, memory, registration_body

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: a promise of ours, not Apache's"),
]

#: of twistd: the stock one and ours
REACTORS = ("epoll", "rmq-lean")

IDLE_CONNECTIONS = 10_000
#: anonymous memory for a connection that says nothing, and for one that has asked once
IDLE_BYTES, USED_BYTES = 4 << 10, 6 << 10

#: how long a silent connection may stay in these tests (serverChannelMaxIdleTimeSeconds)
IDLE_S = 10
#: what the closing of a connection may take after that: the grace for what is unsent, and a busy machine
CLOSING_S = 120.0

STORM_BROKERS = 300
#: a client waits 3 s for a route; that some take longer may be the fault of a busy machine
MEDIAN_S, LONGEST_S = 3.0, 60.0


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process and its children open as many files as the test of idle connections needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        missing(f"RLIMIT_NOFILE cannot be raised to {wanted}: its hard limit is {hard}")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def with_topics(namesrv: Process, topics: list[str], *, brokers: int = 1) -> Brokers:
    """Register brokers with all ``topics`` and keep their connections and routes."""
    found = Brokers(namesrv.port, brokers)
    body = registration_body(topics)
    found.prepare(lambda number: body)
    found.storm()
    found.keep_alive(IDLE_S / 4)
    return found


def dial(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), 60)


def open_files(namesrv: Process) -> int:
    return len(os.listdir(f"/proc/{namesrv.pid}/fd"))


def has_files(namesrv: Process, least: int, most: int) -> bool:
    return least <= open_files(namesrv) <= most


def is_closed(sock: socket.socket) -> bool:
    """Tell whether the peer of a socket that does not block has closed the connection."""
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def report(line: str) -> None:
    print(f"\n    {line}", end="")


@pytest.mark.parametrize("reactor", REACTORS)
def test_ten_thousand_idle_connections(reactor: str, site: Site, many_files: None) -> None:
    """They cost little memory each, hold up nobody, and leave nothing behind."""
    namesrv = site.namesrv(twistd=("--reactor", reactor))
    brokers = with_topics(namesrv, ["Idle"])
    asker = Asker(namesrv.port, ["Idle"])
    files, before = open_files(namesrv), anonymous_bytes(namesrv.pid)
    crowd = [dial(namesrv.port) for _ in range(IDLE_CONNECTIONS)]
    until("every connection is accepted", partial(has_files, namesrv, files + IDLE_CONNECTIONS, 1 << 20))
    each = (anonymous_bytes(namesrv.pid) - before) / IDLE_CONNECTIONS
    request = frame(105, {"topic": "Idle"}, opaque=1)
    for sock in crowd:
        sock.sendall(request)
    for sock in crowd:
        assert sock.recv(8), "a look-up of the crowd was not answered"
    used = (anonymous_bytes(namesrv.pid) - before) / IDLE_CONNECTIONS
    report(f"{IDLE_CONNECTIONS:,} connections: {each:,.0f} B each when idle, {used:,.0f} B after a look-up each")
    report(asker.stop())
    assert each <= IDLE_BYTES and used <= USED_BYTES
    assert asker.quantile(0.5) <= MEDIAN_S and asker.quantile(1) <= LONGEST_S
    for sock in crowd:
        sock.close()
    until("all are forgotten", partial(has_files, namesrv, 0, files), seconds=60)
    brokers.close()


#: the largest frame but a little: one of 16 MiB with its length is refused at once
ALMOST_16_MIB = (16 << 20) - 1024

#: what 300 peers send before they fall silent for ever
BEGINNINGS = {
    "nothing": b"",
    "half a length": b"\0\0",
    "half a look-up": frame(105, {"topic": "Silent"}, opaque=1)[:30],
    "the announcement of a frame of 16 MiB": struct.pack(">II", ALMOST_16_MIB, 60) + b'{"code":103',
    "64 KiB of 16 MiB": struct.pack(">II", ALMOST_16_MIB, 60) + b"x" * 65_536,
}


@pytest.mark.parametrize("what", BEGINNINGS)
def test_three_hundred_half_open_connections(what: str, site: Site) -> None:
    """Peers that stop in the middle are cut off after the idle time; until then they cost what they have sent."""
    namesrv = site.namesrv(serverChannelMaxIdleTimeSeconds=IDLE_S)
    brokers = with_topics(namesrv, ["Silent"])
    asker = Asker(namesrv.port, ["Silent"])
    before = anonymous_bytes(namesrv.pid)
    crowd = [dial(namesrv.port) for _ in range(300)]
    for number, sock in enumerate(crowd):
        sock.sendall(BEGINNINGS[what])
        if number % 3 == 0 and BEGINNINGS[what]:
            sock.shutdown(socket.SHUT_WR)  # a third says that it will never send the rest
        sock.setblocking(False)
    most = before
    deadline = time.monotonic() + IDLE_S + CLOSING_S
    left = crowd
    while left:
        most = max(most, anonymous_bytes(namesrv.pid))
        assert time.monotonic() < deadline, f"{len(left)} silent connections are still open"
        time.sleep(0.2)
        left = [sock for sock in left if not is_closed(sock)]
    report(f"300 peers that sent {what}: {(most - before) / 300:,.0f} B each at most")
    report(asker.stop())
    sent = len(BEGINNINGS[what])
    assert most - before <= 300 * (2 * sent + USED_BYTES) + 8 * MB
    assert asker.quantile(0.5) <= MEDIAN_S and asker.quantile(1) <= LONGEST_S
    brokers.close()
    for sock in crowd:
        sock.close()


def test_peers_that_do_not_read_are_cut_off(site: Site) -> None:
    """
    Peers that ask without end and read nothing: their questions are left unread, their answers bounded, then they go.

    Each could ask for hundreds of megabytes; the NameServer keeps about what it was writing when they stopped reading.
    """
    namesrv = site.namesrv(serverChannelMaxIdleTimeSeconds=IDLE_S)
    brokers = with_topics(namesrv, ["Wide"], brokers=100)
    with namesrv.probe() as probe:
        answer_bytes = len(probe.must(105, {"topic": "Wide"}).body)
    files, before = open_files(namesrv), anonymous_bytes(namesrv.pid)
    asker = Asker(namesrv.port, ["Wide"])
    questions = frame(105, {"topic": "Wide"}, opaque=1) * 4000
    crowd = []
    for _ in range(50):
        sock = dial(namesrv.port)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        crowd.append(sock)
    most = before
    deadline = time.monotonic() + IDLE_S + CLOSING_S
    asked = dict.fromkeys(crowd, 0)
    left = set(crowd)
    while left:
        for sock in list(left):
            try:
                asked[sock] += sock.send(questions)
            except BlockingIOError:
                pass
            except ConnectionError:
                left.discard(sock)
        most = max(most, anonymous_bytes(namesrv.pid))
        assert time.monotonic() < deadline, f"{len(left)} peers that do not read are still connected"
        time.sleep(0.1)
    each = (most - before) / len(crowd)
    report(f"50 peers ask for answers of {answer_bytes:,} B and do not read: {each:,.0f} B each at most")
    report(asker.stop())
    # one chunk of questions is answered whole: 64 KiB of them, at about 150 B
    chunk = answer_bytes * 65_536 // (len(questions) // 4000)
    assert each <= 2 * chunk + MB, f"{each:,.0f} B for each peer that does not read"
    assert asker.quantile(0.5) <= MEDIAN_S and asker.quantile(1) <= LONGEST_S
    for sock in crowd:
        sock.close()
    until("all are forgotten", partial(has_files, namesrv, 0, files + 1), seconds=30)
    brokers.close()


@pytest.mark.parametrize(("kind", "topics", "table_mb"), [("same", 10_000, 700), ("distinct", 2_000, 500)])
def test_registration_storm(kind: str, topics: int, table_mb: int, site: Site) -> None:
    """
    300 brokers register all their topics at the same moment, again unchanged, again changed: every one is accepted.

    Look-ups go on, and memory is the table plus the frames under way.
    """
    namesrv = site.namesrv()
    names = [f"Topic{number:06d}" for number in range(topics)]

    @cache
    def one_body(prefix: str, counter: int) -> bytes:
        return registration_body([prefix + name for name in names], counter=counter, queues=7 + counter)

    def body_of(number: int, counter: int) -> bytes:
        return one_body("" if kind == "same" else f"B{number:03d}", counter)

    brokers = Brokers(namesrv.port, STORM_BROKERS)
    with_first = with_topics(namesrv, ["Calm"])
    before = anonymous_bytes(namesrv.pid)
    size = STORM_BROKERS * len(body_of(0, 1))
    for round_name, counter in (("first", 1), ("unchanged", 1), ("changed", 2)):
        brokers.prepare(partial(body_of, counter=counter))
        forget_peak(namesrv.pid)
        asker = Asker(namesrv.port, ["Calm"])
        took = brokers.storm()
        line = asker.stop()
        found = memory(namesrv.pid)
        table, peak = (found["RssAnon"] - before) / MB, found["VmHWM"] / MB
        report(
            f"{STORM_BROKERS} brokers x {topics:,} {kind} topics, {round_name}: {took:.1f} s for {size / MB:,.0f} MB"
        )
        report(f"  {line}; memory +{table:,.0f} MB, peak {peak:,.0f} MB")
        assert asker.quantile(0.5) <= MEDIAN_S and asker.quantile(1) <= LONGEST_S
        assert peak <= (before + 1.5 * size) / MB + table_mb
        assert table <= table_mb + size / MB
    with namesrv.probe() as probe:
        for number in (0, 150, STORM_BROKERS - 1):
            topic = names[-1] if kind == "same" else f"B{number:03d}{names[-1]}"
            route = probe.route(topic)
            assert route is not None
            queues = {data["brokerName"]: data["writeQueueNums"] for data in route["queueDatas"]}
            assert queues[f"storm-{number:03d}"] == 9
    brokers.close()
    with_first.close()
