"""A master and two slaves while connections break, stall and brokers restart."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred

from rmq.store.config import BrokerRole
from rmq.store.messages import PutStatus
from tests.ha.brokers import MASTER_PORT, OTHER_PORT, SLAVE_PORT, Broker, ServiceCase

SLAVE_PORTS = (SLAVE_PORT, OTHER_PORT)
SEEDS = range(25)


class FaultTests(ServiceCase):
    def cluster(self, need: int) -> None:
        self.current = self.master(in_sync_replicas=need + 1)
        self.slaves = {port: self.slave(port) for port in SLAVE_PORTS}
        self.answers: list[list[PutStatus]] = []

    def put_one(self, rng: random.Random, need: int) -> None:
        """Put and check, the moment it is answered, that PUT_OK is true."""
        result = self.current.put(rng.randbytes(rng.choice((1, 200, 5000, 40_000))))
        end = self.current.log.end_offset
        answer: list[PutStatus] = []
        self.answers.append(answer)

        def answered(status: PutStatus) -> None:
            answer.append(status)
            holders = [slave for slave in self.slaves.values() if slave.log.end_offset >= end]
            if status is PutStatus.PUT_OK:
                self.assertGreaterEqual(len(holders), need)

        if isinstance(result, Deferred):
            result.addCallback(answered)
            result.addErrback(self.failed.append)
        else:
            answered(result)

    def restart(self, port: int) -> None:
        """Stop a broker and start another one on the same log."""
        is_master = port == MASTER_PORT
        old = self.current if is_master else self.slaves[port]
        stopped = old.ha.stopService()
        self.net.deliver()
        self.successResultOf(stopped)
        self.brokers.remove(old)
        if is_master:
            self.current = self.rebuilt(old, BrokerRole.SYNC_MASTER, port)
        else:
            self.slaves[port] = self.rebuilt(old, BrokerRole.SLAVE, port)
            self.slaves[port].ha.set_master(f"10.0.0.9:{MASTER_PORT}")

    def rebuilt(self, old: Broker, role: BrokerRole, port: int) -> Broker:
        return self.broker(role, port, log=old.log, in_sync_replicas=self.need + 1)

    def fault(self, rng: random.Random) -> None:
        live = [end for end in self.net.ends if end.connected]
        match rng.randrange(8):
            case 0 if live:
                rng.choice(live).end(ConnectionError("cable"))
            case 1 | 2 if live:
                end = rng.choice(live)
                rng.choice((end, end.other)).stuck = rng.random() < 0.5
            case 3:
                self.restart(rng.choice((MASTER_PORT, *SLAVE_PORTS)))
            case 4:
                rng.choice(list(self.slaves.values())).log.fail_next = True
            case 5:
                end, _ = self.peer(host=f"10.0.1.{rng.randrange(5)}")
                end.write(rng.randbytes(rng.randrange(20)))
            case _:
                self.net.run(rng.choice((0.25, 1, 4)), step=0.25)

    def check_copies(self, seed: int) -> None:
        for slave in self.slaves.values():
            start, end = slave.log.min_phy_offset, slave.log.end_offset
            self.assertLessEqual(end, self.current.log.end_offset, f"seed {seed}")
            if end:
                theirs = self.current.log.bytes_from(start)[: end - start]
                self.assertEqual(slave.log.bytes_from(start), theirs, f"seed {seed}")

    def test_copies_stay_copies(self) -> None:
        """
        Slaves never hold anything but a prefix of their master's bytes; PUT_OK is true when it is said; every put is
        answered once; two minutes after the last fault everybody has everything and is waited for again.
        """
        confirmed = 0
        for seed in SEEDS:
            print(f"seed {seed}")
            self.seed = seed
            self.stop_all()
            self.setUp()
            self.failed: list[object] = []
            rng = random.Random(seed)
            self.need = rng.choice((1, 1, 2))
            self.cluster(self.need)
            self.net.deliver()
            for _ in range(60):
                for _ in range(rng.randrange(4)):
                    self.put_one(rng, self.need)
                if rng.random() < 0.7:
                    self.net.deliver()
                self.fault(rng)
                self.check_copies(seed)
            for end in self.net.ends:
                end.stuck = end.other.stuck = False
            self.net.run(120, step=0.5)
            for slave in self.slaves.values():
                self.assertEqual(slave.log.end_offset, self.current.log.end_offset, f"seed {seed}")
            self.check_copies(seed)
            self.assertEqual({len(answer) for answer in self.answers}, {1}, f"seed {seed}")
            self.assertEqual(self.failed, [], f"seed {seed}")
            self.put_one(rng, self.need)
            self.net.deliver()
            self.assertEqual(self.answers[-1], [PutStatus.PUT_OK], f"seed {seed}")
            confirmed += self.answers.count([PutStatus.PUT_OK])
        self.assertGreater(confirmed, 5 * len(SEEDS))
