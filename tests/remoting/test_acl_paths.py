"""Where the accounts are looked for."""

from __future__ import annotations

import os

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.acl import acl_of
from rmq.remoting.aclconfig import AclConfig
from rmq.runtime.disk.files import RealDisk


class DefaultPathTests(SynchronousTestCase):
    def test_apaches_place_is_read(self) -> None:
        """With rocketmqHome alone the accounts are those of conf/plain_acl.yml, not of a file beside conf."""
        clock = Clock()
        home = os.path.abspath(self.mktemp())
        os.makedirs(f"{home}/conf")
        for name, key in (("plain_acl.yml", "wrongKey"), ("conf/plain_acl.yml", "rightKey")):
            with open(f"{home}/{name}", "w") as file:
                file.write(f"accounts: [{{accessKey: {key}, secretKey: '12345678'}}]\n")
        acl = acl_of(AclConfig(acl_enable=True), home, RealDisk(clock), clock, ())
        assert acl is not None
        acl.startService()
        self.addCleanup(acl.stopService)
        self.assertEqual(list(acl.rules.accounts), ["rightKey"])
