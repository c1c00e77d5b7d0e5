"""Damaged requests in numbers: 8,000 for each server, 20,000 with ``RMQ_CAMPAIGN=1``, other ones each time."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.needs import IS_CAMPAIGN
from tests.remoting.fuzz import Machine, fuzz, golden_requests
from tests.seeds import SEED

CASES = 20_000 if IS_CAMPAIGN else 8_000
#: cases for one machine; the next one begins with nothing
CASES_A_MACHINE = 2_000


class FuzzCampaign(SynchronousTestCase):
    def fuzz(self, role: str) -> None:
        base = SEED
        print(f"\nFUZZ {role} seed {base}")
        requests = golden_requests()
        for number in range(CASES // CASES_A_MACHINE):
            machine = Machine(role, base + number)
            try:
                fuzz(machine, requests, f"{base}-{number}", CASES_A_MACHINE)
            finally:
                machine.close()

    def test_namesrv(self) -> None:
        """A NameServer survives damaged requests of any kind, whatever state earlier ones have left."""
        self.fuzz("namesrv")

    def test_broker(self) -> None:
        """So does a broker."""
        self.fuzz("broker")
