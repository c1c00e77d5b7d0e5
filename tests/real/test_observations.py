"""
What was seen to go wrong on running Apache brokers, done to ours on real processes: ours must hold.

Each docstring ends with Apache's outcome. docs/replication.md lists all eleven observations; those that another module
tests already are not repeated here.
"""

from __future__ import annotations

import random
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import missing
from tests.real.pairs import TOPIC, start_pair, wait_caught_up
from tests.real.peers import APACHE_4, HOST, OURS, STAND_IN, Broker, Site, until
from tests.real.probe import Probe
from tests.real.storefiles import first_difference, records, segments

pytestmark = [pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: promises of ours, not Apache's")]

SUCCESS, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 11, 12


def report(offset: int) -> bytes:
    return struct.pack(">q", offset)


def dial(port: int, data: bytes = b"") -> socket.socket:
    """Connect to an HA port and say ``data``; a peer that hangs up meanwhile is as good."""
    sock = socket.create_connection((HOST, port), 10)
    try:
        sock.sendall(data)
    except ConnectionError:
        pass
    return sock


def send(probe: Probe, number: int) -> int:
    return probe.send_message(TOPIC, number % 6, b"message %d " % number * 20, KEYS=f"k{number}").code


def lonely_master(site: Site, **config: Any) -> Broker:
    namesrv = site.namesrv(OURS)
    values: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 700, **config}
    master = site.broker(OURS, namesrv.addr, "master", **values)
    with master.probe() as probe:
        probe.create_topic(TOPIC, 6)
        assert send(probe, 0) == (SUCCESS if values["brokerRole"] == "ASYNC_MASTER" else SLAVE_NOT_AVAILABLE)
    return master


@pytest.mark.smoke
def test_1_no_lie_is_ever_an_acknowledgement(site: Site) -> None:
    """
    First reports of 2^62 or just beyond the end, and 10 MB of garbage, acknowledge nothing, now or later.

    The liar is gone and another connection is open; its honest report of 0 does not make earlier lies true. 4.9.7: all
    later sends are SEND_OK as soon as any connection is open. 5.3.3: every too-high report counts while it lasts.
    """
    master = lonely_master(site)
    garbage = random.Random(13).randbytes(10_000_000)
    with master.probe() as probe:
        for lie in (report(1 << 62), report(master.end_offset() + 100_000), garbage):
            liar = dial(master.ha_port, lie)
            assert send(probe, 1) in (SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT)
            liar.close()
            other = dial(master.ha_port, report(0))
            joined = f":{other.getsockname()[1]} joined, acked 0, "
            until("the report of the other connection counts", lambda: joined in master.text())  # noqa: B023
            assert send(probe, 2) in (SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT)
            other.close()


def cut_tail(master: Broker, count: int) -> tuple[int, int]:
    """Take the last ``count`` records off a stopped broker's log, as a power failure would; return (new, old) end."""
    found = list(records(master.commitlog))
    new, old = found[-count].phy_offset, found[-1].phy_offset + len(found[-1].raw)
    for start, path in segments(master.commitlog).items():
        with path.open("r+b") as file:
            size = path.stat().st_size
            if start + size > new:
                at = max(0, new - start)
                file.seek(at)
                file.write(bytes(size - at))
    return new, old


@pytest.mark.real
@pytest.mark.parametrize("slave_kind", [OURS, APACHE_4])
def test_2_a_forked_slave_acknowledges_nothing(slave_kind: str, site: Site) -> None:
    """
    The master loses its last 20 records, the slave still has them: refused while ahead, refused when overtaken.

    No send is told that the slave has it, the slave's log is left as it is, and the master's log names both offsets.
    Both Apache versions: 4 of 4 sends SEND_OK, and the slave goes on behind its forked tail when it is overtaken.
    """
    _, master, slave = start_pair(site, (OURS, slave_kind), brokerRole="SYNC_MASTER", slaveTimeout=1000)
    with master.probe() as probe:
        for number in range(60):
            assert send(probe, number) == SUCCESS
    wait_caught_up(master, slave)
    forked = slave.end_offset()
    master.kill()
    new, old = cut_tail(master, 20)
    assert old == forked
    master.start()
    assert master.end_offset() == new
    with master.probe() as probe:
        assert {send(probe, number) for number in range(100, 104)} <= {SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT}
        until("the slave is refused as ahead", lambda: "slave ahead of its master" in master.text(), seconds=90)
        assert f"reports {forked}" in master.text() or slave_kind == OURS
        number = 200
        while master.end_offset() <= forked + 5000:
            assert send(probe, number) in (SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT)
            number += 1
        parted = re.compile(r"slave with another history|differ")
        until(
            "the slave that was overtaken is refused, by its master or by itself",
            lambda: bool(parted.search(master.text()) or parted.search(slave.text())),
            seconds=120,
        )
        assert send(probe, 999) == SLAVE_NOT_AVAILABLE
    assert slave.end_offset() == forked
    assert first_difference(master.commitlog, slave.commitlog, new) is None
    assert first_difference(master.commitlog, slave.commitlog, forked) is not None


@pytest.mark.smoke
def test_3_bare_connections_are_no_slaves(site: Site) -> None:
    """
    With a silent connection and one that said seven bytes, each send is answered at once that there is no slave.

    4.9.7: each takes 3 s and is answered 12; 5.3.3 never answers 11.
    """
    master = lonely_master(site, slaveTimeout=60_000)
    with dial(master.ha_port), dial(master.ha_port, b"\0" * 7), master.probe() as probe:
        for number in range(3):
            begin = time.monotonic()
            assert send(probe, number) == SLAVE_NOT_AVAILABLE
            assert time.monotonic() - begin < 30, "it waited for a slave"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB; needs the right to mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        missing(f"the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.real
@pytest.mark.parametrize("ratio", [90, 100], ids=["threshold", "no-room"])
def test_5_a_full_disk_costs_no_acknowledged_message(ratio: int, small_disk: Path, site: Site) -> None:
    """
    On a full disk (its threshold, or not a byte of room) sends are refused, pulls go on; with room again sends too.

    All that was acknowledged is there, before and after a kill. Both Apache versions lose 4 to 9 acknowledged messages
    and leave a torn record; 4.9.7 hung for good once.
    """
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    namesrv = site.namesrv(OURS)
    broker = site.broker(
        OURS,
        namesrv.addr,
        store=small_disk / "store",
        mappedFileSizeCommitLog=1 << 20,
        mappedFileSizeConsumeQueue=20 * 1000,
        maxHashSlotNum=100,
        maxIndexNum=400,
        diskMaxUsedSpaceRatio=ratio,
        diskSpaceWarningLevelRatio=ratio,
        diskSpaceCleanForciblyRatio=ratio,
        cleanFileForciblyEnable=False,
        cleanResourceInterval=500,
    )
    acknowledged: list[str] = []

    def send_one(probe: Probe) -> int:
        key = f"full-{len(acknowledged)}"
        answer = probe.send_message(TOPIC, 0, key.encode() * 400, KEYS=key)
        if answer.code == SUCCESS:
            assert int(answer.ext["queueOffset"]) == len(acknowledged)
            acknowledged.append(key)
        return answer.code

    def assert_all_there() -> None:
        with broker.probe() as probe:
            assert [record.key for record in probe.read_queue(TOPIC, 0)] == acknowledged

    with broker.probe() as probe:
        probe.create_topic(TOPIC, 1)
        while send_one(probe) == SUCCESS:
            assert len(acknowledged) < 20_000, "16 MiB are never full"
        assert len(acknowledged) > 500
        assert {send_one(probe) for _ in range(20)} != {SUCCESS}
        assert_all_there()
        ballast.unlink()
        until("sends are taken again", lambda: send_one(probe) == SUCCESS, seconds=60)
    assert_all_there()
    broker.kill()
    broker.start()
    assert_all_there()
    with broker.probe() as probe:
        assert send_one(probe) == SUCCESS


@pytest.mark.real
def test_6_damaged_stores_are_repaired_not_cut(site: Site) -> None:
    """
    A last segment that is too short, and queues older than the log without a mark of a crash: all messages stay.

    Apache does not start with the first, and with the second gives queue offsets twice. A wrong bit in a record, the
    third of these damages, is `test_bad_peers.py` `test_flipped_body_bit_is_told_and_costs_nothing_else`.
    """
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, mappedFileSizeCommitLog=1 << 17, mappedFileSizeConsumeQueue=20 * 1000)
    with broker.probe() as probe:
        probe.create_topic(TOPIC, 6)
        for number in range(300):
            assert send(probe, number) == SUCCESS
    broker.stop()
    queues = broker.store / "consumequeue"
    shutil.copytree(queues, site.root / "old-queues")
    last = list(segments(broker.commitlog).items())[-1]
    end = max(record.phy_offset + len(record.raw) for record in records(broker.commitlog))
    with last[1].open("r+b") as file:
        file.truncate(end - last[0] + 10)
    broker.start()
    with broker.probe() as probe:
        assert len(probe.read_queue(TOPIC, 0)) == 50
        for number in range(300, 360):
            assert send(probe, number) == SUCCESS
    broker.stop()
    shutil.rmtree(queues)
    shutil.copytree(site.root / "old-queues", queues)
    broker.start()
    with broker.probe() as probe:
        assert [record.key for record in probe.read_queue(TOPIC, 0)] == [f"k{n}" for n in range(0, 360, 6)]
        answer = probe.send_message(TOPIC, 0, b"the next")
        assert (answer.code, answer.ext["queueOffset"]) == (SUCCESS, "60")


@pytest.mark.real
def test_7_silent_connections_cost_nothing(site: Site) -> None:
    """
    With 300 silent connections on its HA port the master's memory hardly grows, sends go on, and a slave gets in.

    4.9.7 with a heap of 320 MB: its accept thread dies at about 150, and no slave ever connects again.
    """
    master = lonely_master(site)
    before = resident_kib(master)
    silent = [dial(master.ha_port) for _ in range(300)]
    with master.probe() as probe:
        assert send(probe, 1) == SLAVE_NOT_AVAILABLE
        with dial(master.ha_port, report(0)) as slave:
            slave.settimeout(10)
            until("a newcomer is served", lambda: slave.recv(12), seconds=20)
    assert resident_kib(master) - before < 20_000
    for sock in silent:
        sock.close()


def resident_kib(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


@pytest.mark.real
@pytest.mark.parametrize("master_kind", [OURS, APACHE_4])
def test_8_a_slave_that_stopped_within_a_record_resumes_whole(master_kind: str, site: Site) -> None:
    """
    Our slave, killed again and again while large records arrive in pieces, always ends equal to its master.

    4.9.7: half a record passes for a whole one (its properties are zeros), the slave resumes behind the hole, and both
    end at the same offset with other bytes for good.
    """
    _, master, slave = start_pair(site, (master_kind, OURS))
    chance = random.Random(8)
    within = 0
    with master.probe() as probe:
        for number in range(6):
            for part in range(4):
                body = chance.randbytes(chance.randrange(100_000, 400_000))
                probe.send_message(TOPIC, part, body, KEYS=f"large-{number}-{part}", FILL="x" * 300)
            slave.kill()
            within += ends_within_record(slave)
            slave.start()
        wait_caught_up(master, slave)
        end = master.end_offset()
    assert first_difference(master.commitlog, slave.commitlog, end) is None
    print(f"{within} of 6 kills hit the middle of a record")


def ends_within_record(slave: Broker) -> bool:
    try:
        return not list(records(slave.commitlog))
    except (ValueError, struct.error):
        return True


@pytest.mark.smoke
def test_9_a_latecomer_starts_where_the_log_is_when_it_reports(site: Site) -> None:
    """
    An empty slave gets the segment that is last when its first report comes, not the one of its connect.

    So do Apache's masters; their 4.9 slaves report 5 s after connecting.
    """
    master = lonely_master(site, brokerRole="ASYNC_MASTER", mappedFileSizeCommitLog=65_536)
    with dial(master.ha_port) as late, master.probe() as probe:
        number = 0
        while master.end_offset() < 3 * 65_536:
            send(probe, number)
            number += 1
        end = master.end_offset()
        late.sendall(report(0))
        late.settimeout(10)
        (offset,) = struct.unpack(">q", late.recv(8))
        assert offset == end - end % 65_536


@pytest.mark.smoke
def test_10_a_slave_refuses_sends_as_no_master(site: Site) -> None:
    """
    A send to a slave is answered 14 (4.9.7's SERVICE_NOT_AVAILABLE), nothing is stored.

    4.9.7: 14; 5.3.3: 2.
    """
    namesrv = site.namesrv(OURS)
    slave = site.broker(OURS, namesrv.addr, "slave", brokerRole="SLAVE", brokerId=1)
    with slave.probe() as probe:
        answer = probe.send_message("BenchmarkTest", 0, b"to a slave")
        assert (answer.code, slave.end_offset()) == (14, 0), answer


@pytest.mark.smoke
def test_11_one_report_beyond_the_end_is_one_too_many(site: Site) -> None:
    """
    A report beyond the end ends the connection at once, the first as any other, and is named with both offsets.

    4.9.7 tolerates the first with heartbeats, the second closes.
    """
    master = lonely_master(site)
    end = master.end_offset()
    for reports in (report(end + 1), report(end) + report(end + 1)):
        with dial(master.ha_port, reports) as sock:
            sock.settimeout(10)
            with_data = b"".join(iter(lambda: receive(sock), b""))
            assert len(with_data) % 12 == 0, "at most heartbeats come before the end"
    text = until("the log names both", lambda: master.text() if f"{end + 1}" in master.text() else "", seconds=10)
    assert f"reports {end + 1}, the log of this master ends at {end}" in text


def receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionError:
        return b""
