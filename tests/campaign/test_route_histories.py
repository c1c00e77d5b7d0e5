"""Ten thousand random histories of the route table, thirty with ``RMQ_CAMPAIGN=1``, other ones each time."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.routes import RouteTable
from tests.namesrv.histories import failure
from tests.needs import IS_CAMPAIGN
from tests.seeds import SEED

HISTORIES = 30_000 if IS_CAMPAIGN else 10_000


class RouteHistoryCampaign(SynchronousTestCase):
    def test_table_equals_model(self) -> None:
        """Table, model and journal agree after every step of every history; a failure shows the shortest one."""
        base = SEED
        print(f"\nHISTORIES seed {base}")
        for number in range(HISTORIES):
            wrong = failure(RouteTable, f"{base}-{number}")
            if wrong is not None:
                self.fail(wrong)
