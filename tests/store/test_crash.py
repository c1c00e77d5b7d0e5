"""Random lives of a store, with kills and power failures at random moments; every failure prints its seed."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.store.check import check_store
from rmq.store.config import BrokerRole
from rmq.store.messages import BatchEntry, PutResult, PutStatus, StoreError
from rmq.wire.record import Record
from tests.store.support import ROOT, SYNC, Box, all_records, message

#: what a power failure may leave behind in what was not synced: intact records behind lost ones are kept
LEGAL = {"damaged-record", "torn-record", "queue-number", "filled-unit"}


class Life:
    """A store, what its producers were told and what its consumers saw."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.seed = seed
        self.rng = Random(f"life {seed}")
        self.box = Box(seed, **config)
        self.sync = self.box.config.is_sync_flush
        self.store = self.box.open()
        self.number = 0
        #: (topic, queueId, queueOffset) -> body, of all that were written
        self.written: dict[tuple[str, int, int], bytes] = {}
        #: those that were answered with PUT_OK
        self.acked: dict[tuple[str, int, int], bytes] = {}
        #: those that a consumer got
        self.seen: dict[tuple[str, int, int], bytes] = {}

    def put(self) -> None:
        self.number += 1
        size = self.rng.choice((5, 50, 500, 3000))
        topic, queue_id = self.rng.choice(("A", "B")), self.rng.randrange(2)
        bodies = [f"{self.number}-{n}:".encode() + self.rng.randbytes(size) for n in range(self.rng.choice((1, 1, 3)))]
        one = message(self.number, topic=topic, queue_id=queue_id, body=bodies[0])
        if len(bodies) == 1:
            result = self.store.put(one)
        else:
            entries = [BatchEntry(body, f"UNIQ_KEY\x01u{self.number}-{n}") for n, body in enumerate(bodies)]
            result = self.store.put_batch(one, entries)
        if isinstance(result, Deferred):
            result.addCallback(self.answered, topic, queue_id, bodies)
        else:
            self.answered(result, topic, queue_id, bodies)

    def answered(self, result: PutResult, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        if result.status is PutStatus.PUT_OK:
            for number, body in enumerate(bodies, result.queue_offset):
                self.acked[topic, queue_id, number] = body

    def consume(self) -> dict[tuple[str, int, int], Record]:
        """Read everything, as consumers would; remember it."""
        found = {}
        for (topic, queue_id), records in all_records(self.store).items():
            first = self.store.min_offset(topic, queue_id)
            for number, one in enumerate(records, first):
                found[topic, queue_id, number] = one
        for key, one in found.items():
            if one.queue_offset == key[2]:  # not one that stands for a message that a power failure took
                self.seen[key] = one.body
        return found

    def live(self) -> None:
        """Some time with puts and reads; it may end in the middle of anything."""
        for _ in range(self.rng.randint(1, 25)):
            for _ in range(self.rng.randint(0, 12)):
                self.put()
            if self.rng.random() < 0.2:
                self.consume()
            if self.rng.random() < 0.15:
                self.box.run(self.rng.choice((0.3, 2, 65)))
            for _ in range(self.rng.randint(0, 6)):
                self.box.world.step()

    def end(self) -> str:
        how = self.rng.choice(("kill", "kill", "crash", "crash", "crash", "stop"))
        if self.rng.random() < 0.3 and how != "stop":
            # The end may come while a clean stop is on its way.
            self.store.stop()
            for _ in range(self.rng.randint(0, 30)):
                self.box.world.step()
        getattr(self.box, how)()
        return how

    def check(self, how: str) -> None:
        """Look at the store that was opened after an end."""
        where = f"seed {self.seed}, after {how}"
        found = self.consume_quietly()
        if how != "crash" or self.sync:
            promised = dict(self.acked)
            if how != "crash":
                promised.update(self.seen)
            for key, body in {**promised, **(self.seen if self.sync else {})}.items():
                assert key in found, f"{where}: {key} is missing"
                assert found[key].body == body, f"{where}: {key} is another message"
                assert found[key].queue_offset == key[2], f"{where}: {key} carries {found[key].queue_offset}"
        else:
            # What a power failure took was never promised; its numbers are free again.
            self.acked = {key: body for key, body in self.acked.items() if key in found and found[key].body == body}
        self.seen = {key: one.body for key, one in found.items() if one.queue_offset == key[2]}
        findings = check_store(self.box.disk, ROOT, self.box.config)
        wrong = [one for one in findings if one.kind not in LEGAL]
        assert not wrong, f"{where}: {wrong}"
        assert not self.box.world.failures, f"{where}: {self.box.world.failures}"

    def consume_quietly(self) -> dict[tuple[str, int, int], Record]:
        seen = dict(self.seen)
        found = self.consume()
        self.seen = seen
        return found


def live_and_die(seed: int, rounds: int = 4, **config: Any) -> None:
    life = Life(seed, **config)
    for _ in range(rounds):
        life.live()
        how = life.end()
        life.store = life.box.open()
        life.check(how)


class MasterLivesTests(SynchronousTestCase):
    def test_sync_flush(self) -> None:
        """With SYNC_FLUSH no acknowledged and no consumed message is ever lost or changes its number."""
        for seed in range(12):
            live_and_die(seed, **SYNC)

    def test_async_flush(self) -> None:
        """With ASYNC_FLUSH a kill takes nothing; after a power failure the rest is consistent."""
        for seed in range(100, 112):
            live_and_die(seed)

    def test_a_broken_store_is_found(self) -> None:
        """These checks see it when an acknowledged message is missing."""
        life = Life(5, **SYNC)
        life.live()
        life.box.run(5)
        life.acked["A", 0, 10_000] = b"never stored"
        life.box.crash()
        life.store = life.box.open()
        with self.assertRaises(AssertionError) as caught:
            life.check("crash")
        self.assertIn("('A', 0, 10000) is missing", str(caught.exception))


class SlaveLivesTests(SynchronousTestCase):
    def test_slave_gets_its_masters_bytes(self) -> None:
        """However a slave dies, what it keeps is a prefix of its master's log, and it ends up equal."""
        for seed in range(200, 210):
            self.follow(seed)

    def test_a_power_failure_behind_a_blank(self) -> None:
        """Seed 1007: the rest of a file behind its BLANK, not synced, came back as garbage; now it is cleared."""
        self.follow(1007)

    def follow(self, seed: int) -> None:
        rng = Random(f"slave {seed}")
        master = Life(seed)
        for _ in range(3):
            master.live()
        end = master.store.end_offset
        log = b"".join(master.store.read(at, 16384) for at in range(0, end, 16384))
        config = SYNC if rng.random() < 0.5 else {}
        box = Box(seed + 1000, broker_role=BrokerRole.SLAVE, **config)
        store = box.open()
        lives = 0
        while store.end_offset < end:
            at = store.end_offset
            if at == 0:
                at = rng.randrange(0, min(end, 2 * 16384), 16384) if lives == 0 else 0
            cut = min(at + rng.randint(1, 6000), at + 16384 - at % 16384, end)
            store.append_raw(at, log[at:cut])
            for _ in range(rng.randint(0, 3)):
                box.world.step()
            if rng.random() < 0.05 and lives < 5:
                lives += 1
                how = rng.choice(("kill", "crash", "stop"))
                store = box.reopen(how)
                first, last = store.min_phy_offset, store.end_offset
                kept = b"".join(store.read(at, 16384 - at % 16384) for at in range(first, last, 16384))
                assert kept == log[first:last], f"seed {seed}: the slave's log differs after {how}"
                if last and rng.random() < 0.5:
                    findings = check_store(box.disk, ROOT, box.config)
                    assert not findings, f"seed {seed}: {findings}"
        box.run(3)
        expected = {
            key: [(one.queue_offset, one.body) for one in records if one.phy_offset >= store.min_phy_offset]
            for key, records in all_records(master.store).items()
        }
        got = {key: [(one.queue_offset, one.body) for one in records] for key, records in all_records(store).items()}
        assert got == {key: found for key, found in expected.items() if found}, f"seed {seed}"
        box.stop()
        findings = check_store(box.disk, ROOT, box.config)
        assert not findings, f"seed {seed}: {findings}"


class FailingDiskTests(SynchronousTestCase):
    def test_syncs_that_fail(self) -> None:
        """A store whose sync failed keeps every promise that it made before, and opens again."""
        for seed in range(300, 315):
            life = Life(seed, **SYNC)
            life.live()
            life.box.disk.fail_syncs = 1
            life.live()
            life.box.crash()
            life.store = life.box.open()
            life.check("crash")

    def test_full_disk(self) -> None:
        """A disk that fills up and is freed again costs refusals, never a message."""
        for seed in range(400, 410):
            life = Life(seed, clean_file_forcibly_enable=False)
            for _ in range(3):
                life.live()
                life.box.disk.capacity_bytes = life.box.disk.capacity_bytes - life.store.disk_usage.free_bytes + 20000
                life.live()
                if life.rng.random() < 0.5:
                    try:
                        life.store = life.box.reopen("kill")
                    except (StoreError, DiskError):
                        life.box.disk.recover()
                        life.store = life.box.reopen("kill")
                    life.check("kill")
                life.box.disk.recover()
            life.live()
            life.store = life.box.reopen("stop")
            life.check("stop")
