"""A master and a slave of given kinds: filled, quiesced and described. The replication and audit tests share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, until

#: (master, slave): what issue 3 promises
KINDS = [(OURS, OURS), (OURS, APACHE_4), (APACHE_4, OURS), (OURS, APACHE_5)]
TOPIC = "Pairs"
QUEUES = 6
GROUP = "pairs-readers"
MESSAGES = 20_000
#: small, so that the log rolls more than five times
SEGMENT_BYTES = 1 << 20


def name_of(kinds: tuple[str, str]) -> str:
    return f"{kinds[0]}-to-{kinds[1]}"


@attrs.frozen
class Pair:
    """
    A master and its slave that followed from the first byte; both run and nothing is being sent.

    ``end`` is the end of the master's log; ``sent`` what the producer was told.
    """

    site: Site
    namesrv: Process
    master: Broker
    slave: Broker
    end: int
    sent: list[dict[str, object]]

    def stop(self) -> None:
        self.slave.stop()
        self.master.stop()


def start_pair(site: Site, kinds: tuple[str, str], **config: Any) -> tuple[Process, Broker, Broker]:
    """Start a NameServer, a master and a slave, and wait until the first message has reached the slave."""
    master_kind, slave_kind = kinds
    namesrv = site.namesrv(OURS)
    values: dict[str, Any] = {
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 20 * 1000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        **config,
    }
    master = site.broker(master_kind, namesrv.addr, "master", **values)
    slave = site.slave(slave_kind, master, namesrv.addr)
    with master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
        # An empty slave begins with the segment that is last when it first reports; Apache's reports after 5 s.
        answer = probe.send_message(TOPIC, 0, b"the slave must have this before the log rolls")
        assert answer.code in (0, 11, 12), answer
    wait_caught_up(master, slave)
    return namesrv, master, slave


def wait_caught_up(master: Broker, slave: Broker, *, seconds: float = 90.0) -> int:
    """Wait until the slave's log ends where the master's does, and the master's stands still; return that offset."""
    end = 0

    def caught_up() -> bool:
        nonlocal end
        end = master.end_offset()
        return end > 0 and slave.end_offset() == end == master.end_offset()

    until(f"{slave.name} has caught up with {master.name}", caught_up, seconds=seconds)
    return end


def replicated_pair(
    site: Site, kinds: tuple[str, str], folder: Path, *, messages: int = MESSAGES, client: str = APACHE_4
) -> Pair:
    """Start a pair, send mixed messages with a Java client, read them all with a consumer group, and wait for rest."""
    namesrv, master, slave = start_pair(site, kinds)
    with JavaClient(client, namesrv.addr, folder / "client") as java:
        java.send(TOPIC, "mixed", messages - 200, prefix="mixed", sizes=(20, 900), seconds=300)
        java.send(TOPIC, "async", 200, prefix="large", sizes=(6_000, 40_000), seconds=120)
        java.consume(GROUP, TOPIC, "reader")
        java.wait_for_count("all read", lambda: len({e["key"] for e in java.got()}), messages + 1, seconds=180)
        java.leave("reader")
        sent = java.sent("mixed") + java.sent("large")
    end = wait_caught_up(master, slave)
    return Pair(site, namesrv, master, slave, end, sent)
