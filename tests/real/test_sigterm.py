"""SIGTERM while requests, checks, deliveries and group commits are under way."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.peers import OURS, Site, until
from tests.real.probe import SEND, Closed, Probe, frame, properties_text, pull_fields, send_fields

COUNT = 200
#: a stop may take so long on a machine that does something else, too
MOST_S = 15


@pytest.mark.real
def test_sigterm_in_the_middle_of_everything(site: Site) -> None:
    """
    The broker ends within seconds, by itself, and unregisters; what waits is refused or loses its connection.

    Answered sends, delayed messages and half messages are there after the next start, which need not recover.
    """
    namesrv = site.namesrv()
    terms: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH", "transactionTimeOut": 300, "transactionCheckInterval": 1000}
    broker = site.broker(OURS, namesrv.addr, **terms)
    with broker.probe() as probe, broker.probe() as member, broker.probe() as tool, broker.probe() as sender:
        for topic in ("Topic", "Later"):
            probe.create_topic(topic, 1)
        until("the route is there", lambda: _has_route(namesrv.port), seconds=40)
        member.join_group("CG", "Topic")
        client_id = f"probe@{member.socket.getsockname()[1]}"
        tool.send(307, {"consumerGroup": "CG", "clientId": client_id, "jstackEnable": False})
        assert member.read().code in (40, 307)
        probe.send(11, pull_fields("Later", 0, 0, wait_ms=60_000))
        for number in range(COUNT):
            half = properties_text(TRAN_MSG="true", PGROUP="PG", UNIQ_KEY=f"K{number}")
            sender.must(SEND, send_fields("Topic", 0, half) | {"f": 4, "g": int(time.time() * 1000)}, b"half")
            sender.must(SEND, send_fields("Later", 0, properties_text(DELAY="1")), b"%d" % number)
        sender.must(329)
        until("deliveries have begun", lambda: sender.max_offset("Later", 0) > 0, seconds=30)
        last = sender.send(SEND, send_fields("Topic", 0, ""), b"0")
        sender.write(
            b"".join(
                frame(SEND, send_fields("Topic", 0, ""), b"%d" % number, opaque=last + number)
                for number in range(1, COUNT)
            )
        )
        answered = 0 if sender.read().code else 1
        began = time.monotonic()
        assert broker.stop() in (0, -signal.SIGTERM), broker.tail()
        assert time.monotonic() - began < MOST_S, broker.tail()
        with contextlib.suppress(Closed):
            while sender.read().code == 0:
                answered += 1
        with contextlib.suppress(Closed):
            assert tool.read().code == 1  # the consumer's connection was closed first
    assert not _has_route(namesrv.port)
    assert not (broker.store / "abort").exists()
    assert "Traceback" not in broker.text(), broker.tail()

    broker.start()
    with broker.probe() as probe:
        bodies = [record.body for record in probe.read_queue("Topic", 0)]
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        assert len(bodies) >= answered > 0
        until("all is delivered", lambda: len({r.body for r in probe.read_queue("Later", 0)}) == COUNT, seconds=30)
        assert probe.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) >= COUNT


def _has_route(port: int) -> bool:
    with Probe(port) as probe:
        return probe.route("Topic") is not None


@pytest.fixture
def _hang_up_is_not_ignored() -> Iterator[None]:
    """Processes that are started ignore SIGHUP where this one does, under nohup for example."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.real
@pytest.mark.usefixtures("_hang_up_is_not_ignored")
def test_hang_up(site: Site) -> None:
    """SIGHUP, which comes when a terminal closes, stops NameServer and broker as SIGTERM does."""
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr)
    until("the broker is registered", lambda: _is_registered(namesrv.port), seconds=40)
    os.kill(broker.pid, signal.SIGHUP)
    until("the broker has ended", lambda: not broker.alive, seconds=40)
    assert not (broker.store / "abort").exists(), broker.tail()
    assert not _is_registered(namesrv.port)
    os.kill(namesrv.pid, signal.SIGHUP)
    until("the NameServer has ended", lambda: not namesrv.alive, seconds=40)
    assert "Received SIGHUP" in broker.text() and "Received SIGHUP" in namesrv.text()


def _is_registered(port: int) -> bool:
    with Probe(port) as probe:
        return probe.route("TBW102") is not None
