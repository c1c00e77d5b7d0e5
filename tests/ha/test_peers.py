"""Who may use the HA port."""

from __future__ import annotations

from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.service import AllowedPeers
from rmq.ha.session import CloseKind
from rmq.store.config import BrokerRole
from tests.ha.brokers import OTHER_PORT, ServiceCase


class AllowedPeersTests(SynchronousTestCase):
    def test_nothing_configured_admits_everybody(self) -> None:
        """Apache's slaves, whose HA port is open to all, go on as they are."""
        for text in ("", " ", ";", " , ;"):
            self.assertTrue(AllowedPeers(text).admits("203.0.113.7"))
            self.assertTrue(AllowedPeers(text).admits(""))

    def test_networks_and_addresses(self) -> None:
        """CIDR networks and single addresses of both families, separated as one likes."""
        allowed = AllowedPeers("10.1.0.0/16; 192.168.7.9, 2001:db8::/32")
        for host in ("10.1.0.0", "10.1.255.255", "192.168.7.9", "2001:db8::5", "::ffff:10.1.2.3"):
            self.assertTrue(allowed.admits(host), host)
        for host in ("10.2.0.1", "192.168.7.10", "2001:db9::1", "::ffff:10.2.0.1", "", "somewhere"):
            self.assertFalse(allowed.admits(host), host)

    def test_mistakes_are_named(self) -> None:
        """What is no network ends the start and is named; host bits that are set are such a mistake."""
        for item in ("10.1.0.0/33", "10.1.2.3/16", "master-a", "10.1.0.0-10.1.0.9"):
            with self.assertRaisesRegex(ValueError, f"haAllowedPeers: '{item}'"):
                AllowedPeers(f"127.0.0.1;{item}")


class PortTests(ServiceCase):
    def test_others_are_turned_away_and_counted(self) -> None:
        """Who is not in the list gets no connection, is counted, and named in the log once."""
        master = self.master(100, ha_allowed_peers="10.0.0.1")
        factory = self.net.listening[10912]
        for _ in range(3):
            self.assertIsNone(factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 5)))
        status = master.ha.status()
        self.assertEqual((status.refused, status.refusals), (3, {CloseKind.FORBIDDEN: 3}))
        self.assertIn("10.0.0.2", status.last_refusal)
        self.assertIn("haAllowedPeers", status.last_refusal)

    def test_the_allowed_slave_is_served(self) -> None:
        """A slave of the list follows as without one."""
        master = self.master(100, ha_allowed_peers="10.0.0.0/30")
        slave = self.slave()
        self.net.deliver()
        self.assertEqual(slave.log.bytes_from(0), master.log.bytes_from(0))

    def test_bad_list(self) -> None:
        """A broker with a list that cannot be read does not start."""
        with self.assertRaises(ValueError):
            self.broker(BrokerRole.SYNC_MASTER, OTHER_PORT, ha_allowed_peers="everybody")
