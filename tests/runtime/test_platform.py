"""What a real process stands on."""

from __future__ import annotations

from random import Random

from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk import RealDisk
from rmq.runtime.platform import real_platform


class RealPlatformTests(SynchronousTestCase):
    def test_parts(self) -> None:
        """A real platform has this reactor, real files, real chance, and dials by name."""
        reactor = MemoryReactorClock()
        platform = real_platform(reactor)
        self.assertIs(platform.reactor, reactor)
        self.assertIsInstance(platform.disk, RealDisk)
        self.assertIsInstance(platform.rng, Random)
        self.assertNotEqual([platform.rng.random() for _ in range(3)], [platform.rng.random() for _ in range(3)])
        self.assertIsInstance(platform.endpoint_factory(reactor, "[::1]", 9876), HostnameEndpoint)

    def test_disk_closes_after_shutdown(self) -> None:
        """The disk's thread ends after everything else has been shut down."""
        reactor = MemoryReactorClock()
        platform = real_platform(reactor)
        assert isinstance(platform.disk, RealDisk)
        for call, arguments, named in reactor.triggers["after"]["shutdown"]:
            call(*arguments, **named)
        self.assertTrue(platform.disk._flusher.closed)
