"""A slave finds its master whichever of the two starts first."""

from __future__ import annotations

from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from rmq.sim.cluster import Cluster
from rmq.sim.world import World
from tests.sim.support import ASYNC_FLUSH, ASYNC_MASTER, options


class SlaveRegistrationTests(SynchronousTestCase):
    def test_master_starts_later(self) -> None:
        """With forceRegister=false a slave that registered before its master connects to it within two periods."""
        store = {"forceRegister": "false", "registerNameServerPeriod": "10000"}
        cluster = Cluster(World(1), options(ASYNC_MASTER, ASYNC_FLUSH, slaves=1, store=store))
        master, slave = cluster.members
        cluster.name_servers[0].start(cluster._build_namesrv)
        cluster.world.run_for(1.0)
        slave.node.start(partial(cluster._build_broker, slave))
        cluster.world.run_for(15.0)
        master.node.start(partial(cluster._build_broker, master))
        cluster.world.run_for(25.0)
        link = slave.broker.ha.status().link
        assert link is not None
        self.assertTrue(link.connected, link)
