"""What a replica meets in its life, one function per situation; each leaves a pair whose bytes can be compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from tests.real.halfway import Halfway
from tests.real.pairs import wait_caught_up
from tests.real.peers import APACHE_5, OURS, Broker, Process, Site, until
from tests.real.storefiles import segments

TOPIC, QUEUES = "Matrix", 4
SEGMENT_BYTES = 1 << 18
#: more than two of Apache's and our housekeeping intervals (20 s), after which a silent connection is dropped
IDLE_S = 60.0
#: a register period after which a slave hears of its master's new address
REGISTER_MS = 10_000
#: Apache's and our frames carry at most so much of the log by default
FRAME_BYTES = 32 * 1024

#: another address of this machine
OTHER_HOST = "127.0.0.2"

_MOVING = ("listenPort", "haListenPort", "namesrvAddr", "storePathRootDir", "storePathCommitLog")


@attrs.define
class Cell:
    """A master and a slave of given kinds; ``slave`` is None until the first one starts."""

    site: Site
    namesrv: Process
    master: Broker
    slave_kind: str
    slave: Broker | None = None
    sent: int = 0
    #: where in the log the record lies of which the slave had a part when it was killed
    half: range = range(0)

    @property
    def follower(self) -> Broker:
        assert self.slave is not None
        return self.slave

    def send(self, count: int) -> None:
        """Send messages of mixed sizes; each must be stored."""
        with self.master.probe(timeout=60.0) as probe:
            for number in range(self.sent, self.sent + count):
                body = b"%d " % number * (1 + number * 37 % 1500)
                answer = probe.send_message(TOPIC, number % QUEUES, body, KEYS=f"m{number}", TAGS="TagA")
                assert answer.code == 0, answer
        self.sent += count

    def join(self, **config: Any) -> None:
        """Start an empty slave and wait until it has begun to copy."""
        self.slave = self.site.slave(
            self.slave_kind, self.master, self.namesrv.addr, registerNameServerPeriod=REGISTER_MS, **config
        )
        until(f"{self.slave.name} follows", lambda: self.follower.end_offset() > 0, seconds=120)

    def difference(self, *, but: range = range(0)) -> str | None:
        """Wait until the slave has caught up and name the first byte that differs from its master's, if any."""
        end = wait_caught_up(self.master, self.follower, seconds=180)
        return difference(self.master, self.follower, end, but)


def difference(master: Broker, slave: Broker, end: int, but: range = range(0)) -> str | None:
    """
    Compare from the slave's first segment to ``end``, all ``but`` a range.

    An empty slave may have begun later than its master.
    """
    theirs, ours = segments(master.commitlog), segments(slave.commitlog)
    start = min(ours)
    for first in (first for first in theirs if start <= first < end):
        if first not in ours:
            return f"the slave has no segment {first:020d}"
        part = slice(max(but.start - first, 0), max(but.stop - first, 0))
        left, right = (bytearray(files[first].read_bytes()[: end - first]) for files in (theirs, ours))
        left[part] = right[part]
        if left != right:
            at = next((n for n, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), len(right))
            return f"byte {first + at} is not its master's ({len(left)} and {len(right)} bytes in that segment)"
    return None


def begin(site: Site, master_kind: str, slave_kind: str, situation: str) -> Cell:
    """Start a NameServer and a master with the topic; a 5.3.3 slave must be told of a master in its routes."""
    namesrv = site.namesrv(OURS)
    values: dict[str, Any] = {
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 20 * 1000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "registerNameServerPeriod": REGISTER_MS,
    }
    if master_kind == APACHE_5:
        values["timerWheelEnable"] = False
    if slave_kind == APACHE_5 and situation in HALVES:
        values["brokerIP2"] = OTHER_HOST
    cell = Cell(site, namesrv, site.broker(master_kind, namesrv.addr, "master", **values), slave_kind)
    with cell.master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    return cell


def _followed(cell: Cell, **config: Any) -> None:
    """Let a slave follow from the first message on."""
    cell.send(1)
    cell.join(**config)
    cell.send(60)
    wait_caught_up(cell.master, cell.follower, seconds=120)


def empty_slave(cell: Cell) -> None:
    """An empty slave begins with the master's last segment and follows."""
    cell.send(400)
    end = cell.master.end_offset()
    last = end - end % SEGMENT_BYTES
    assert last >= 3 * SEGMENT_BYTES
    cell.join()
    cell.send(100)
    assert min(segments(cell.follower.commitlog)) == last


def slave_stopped(cell: Cell) -> None:
    """The slave is stopped in order and comes back, in the segment where it left."""
    _followed(cell)
    cell.follower.stop()
    cell.send(10)
    cell.follower.start()
    cell.send(10)


def slave_killed(cell: Cell) -> None:
    """The slave is killed with -9 while the master writes, and comes back."""
    _followed(cell)
    cell.send(40)
    cell.follower.kill()
    cell.send(10)
    cell.follower.start()
    cell.send(10)


def slave_behind(cell: Cell) -> None:
    """The slave comes back several segments behind."""
    _followed(cell)
    cell.follower.kill()
    before = len(segments(cell.master.commitlog))
    cell.send(400)
    assert len(segments(cell.master.commitlog)) >= before + 3
    cell.follower.start()


def _half_a_record(cell: Cell, body_bytes: int, property_bytes: int) -> None:
    """Kill the slave when it holds the first frame of a record of several, and let it come back."""
    told = str(cell.master.values["brokerIP2"])
    halfway = Halfway(cell.master.ha_port, told)
    # 5.3.3 does not heed the key; it follows the address that its master has registered.
    _followed(cell, **({} if told == OTHER_HOST else {"haMasterAddress": halfway.addr}))
    size = body_bytes + property_bytes
    while (start := cell.master.end_offset()) % SEGMENT_BYTES + size + 1000 > SEGMENT_BYTES:
        cell.send(1)  # the record shall not begin behind a filler
    wait_caught_up(cell.master, cell.follower)
    halfway.hold(start + 1, start + size)
    with cell.master.probe() as probe:
        body = random.Random(1).randbytes(body_bytes)
        properties = {f"P{n}": "x" * 1000 for n in range(property_bytes // 1000)}
        assert probe.send_message(TOPIC, 0, body, KEYS="half", **properties).code == 0
    held = until("a frame ended within the record", lambda: halfway.held_at, seconds=60)
    until("the slave has written what it got", partial(_holds_up_to, cell, start, held), seconds=60)
    cell.half = range(held, cell.master.end_offset())
    cell.follower.kill()
    halfway.release()
    cell.send(20)
    cell.follower.start()
    cell.send(20)
    wait_caught_up(cell.master, cell.follower, seconds=180)
    halfway.close()


def _holds_up_to(cell: Cell, start: int, end: int) -> bool:
    """Tell whether the slave's file holds its master's bytes up to ``end`` and nothing behind."""
    first = start - start % SEGMENT_BYTES
    theirs, ours = (segments(broker.commitlog)[first].read_bytes() for broker in (cell.master, cell.follower))
    part = slice(start - first, end - first)
    return ours[part] == theirs[part] and not any(ours[end - first :])


def slave_stopped_within_a_body(cell: Cell) -> None:
    """The slave is killed with half a body of a record."""
    _half_a_record(cell, 3 * FRAME_BYTES, 0)


def slave_stopped_within_properties(cell: Cell) -> None:
    """The slave is killed with a whole body and half the properties: size, magic and body CRC hold already."""
    _half_a_record(cell, FRAME_BYTES - 10_000, 28_000)


def idle(cell: Cell) -> None:
    """Nothing is sent for a minute: heartbeats keep the connection, and the next message comes at once."""
    _followed(cell)
    ours = [broker for broker in (cell.master, cell.follower) if broker.kind == OURS]
    before = [lost_connections(broker) for broker in ours]
    time.sleep(IDLE_S)  # doing nothing for a minute is what is tested
    cell.send(10)
    wait_caught_up(cell.master, cell.follower, seconds=4)
    assert [lost_connections(broker) for broker in ours] == before, "a connection was lost while idle"


def master_stopped(cell: Cell) -> None:
    """The master is stopped in order and comes back."""
    _followed(cell)
    cell.master.stop()
    cell.master.start()
    cell.send(60)


def master_killed(cell: Cell) -> None:
    """The master is killed with -9 and comes back."""
    _followed(cell)
    cell.send(40)
    cell.master.kill()
    cell.master.start()
    cell.send(60)


def master_moved(cell: Cell) -> None:
    """The master comes back, on its store, at another address, of which the slave hears from the NameServer."""
    _followed(cell)
    old = cell.master
    old.stop() if old.kind == OURS else old.kill()
    same: dict[str, Any] = {key: value for key, value in old.values.items() if key not in _MOVING}
    cell.master = cell.site.broker(old.kind, cell.namesrv.addr, "moved", store=old.store, **same)
    cell.send(60)


def lost_connections(broker: Broker) -> int:
    """Return how often the broker (ours) lost a replication connection."""
    text = broker.text()
    return text.count("disconnected, acked") + text.count("connection to master")


#: the slave is killed with a part of a record
HALVES = ("mid-body", "mid-properties")

Situation = Callable[[Cell], None]
SITUATIONS: dict[str, Situation] = {
    "empty": empty_slave,
    "slave-stopped": slave_stopped,
    "slave-killed": slave_killed,
    "behind": slave_behind,
    "mid-body": slave_stopped_within_a_body,
    "mid-properties": slave_stopped_within_properties,
    "idle": idle,
    "master-stopped": master_stopped,
    "master-killed": master_killed,
    "moved": master_moved,
}
