"""`rmq-admin controller` about a simulated pair."""

from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from twisted.internet.defer import Deferred

from rmq.admin.command import DIFFERENT, OK, REFUSED, UNCONFIRMED, Terminal
from rmq.admin.main import Result, parse, run
from rmq.sim.node import platform_for
from tests.admin.schema import mistakes
from tests.sim.failover import CONTROLLER_PORT, GROUP, PORT, Pair


class ControllerTests(TestCase):
    def setUp(self) -> None:
        self.pair = Pair(1)
        self.pair.world.run_until(self.pair.is_whole, 60, "a whole group")
        self.pair.world.run_for(1)
        self.emitted: list[str] = []
        self.namesrv = f"{self.pair.controller.address}:{CONTROLLER_PORT}"

    def run_it(self, *words: str, namesrv: str | None = None) -> Result:
        options = parse([*words, "-n", namesrv or self.namesrv, "--timeout", "3"])
        running = run(platform_for(self.pair.client), options, Terminal(emit=self.emitted.append))
        result: Result = self.pair.world.settle(Deferred.fromCoroutine(running))
        return result

    def data(self, *words: str) -> tuple[int, Any]:
        result = self.run_it(*words, "-o", "json")
        data = json.loads(result.out or "null")
        self.assertEqual(mistakes(" ".join(words[:2]), data), [])
        return result.status, data

    def test_a_whole_pair(self) -> None:
        status, rows = self.data("controller", "show")
        first, second = (node.address for node in self.pair.brokers)
        self.assertEqual(
            (status, [(row["id"], row["address"], row["role"], row["alive"]) for row in rows]),
            (OK, [(1, f"{first}:{PORT}", "master", True), (2, f"{second}:{PORT}", "in sync", True)]),
        )

    def test_a_slave_is_lost(self) -> None:
        self.pair.brokers[1].kill()
        self.pair.world.run_for(5)
        status, rows = self.data("controller", "show", GROUP)
        self.assertEqual(
            (status, [(row["role"], row["alive"]) for row in rows]),
            (DIFFERENT, [("master", True), ("not in sync", False)]),
        )

    def test_no_master_and_no_broker_in_a_route(self) -> None:
        """A group is shown without its name when no NameServer knows a broker of it any more: then it is needed."""
        self.pair.brokers[1].kill()
        self.pair.world.run_for(5)
        self.pair.brokers[0].kill()
        self.pair.brokers[1].start()
        self.pair.world.run_for(5)
        status, rows = self.data("controller", "show")
        self.assertEqual(
            (status, [(row["id"], row["role"], row["alive"]) for row in rows]),
            (DIFFERENT, [(1, "in sync", False), (2, "not in sync", True)]),
        )

    def test_an_unknown_group(self) -> None:
        result = self.run_it("controller", "show", "nobody")
        self.assertEqual((result.status, "elects the master of none of these: nobody" in result.out), (DIFFERENT, True))

    def test_elect(self) -> None:
        status, rows = self.data("controller", "elect", GROUP, "2", "--yes")
        self.assertEqual((status, rows[0]["master_id"], rows[0]["master_epoch"]), (OK, 2, 2))
        self.pair.world.run_until(lambda: self.pair.master() is self.pair.brokers[1], 20, "the other master")
        status, rows = self.data("controller", "elect", GROUP, "2", "--yes")
        self.assertEqual((status, rows[0]["master_id"]), (REFUSED, 2))
        result = self.run_it("controller", "elect", GROUP, "7", "--yes")
        self.assertEqual((result.status, "Failed to elect" in result.err), (REFUSED, True))
        self.assertIs(self.pair.master(), self.pair.brokers[1])

    def test_changes_of_nothing(self) -> None:
        """--dry-run prints what would be sent, without a question; without --yes and a terminal nothing is sent."""
        for verb, request in (("elect", "CONTROLLER_ELECT_MASTER"), ("forget", "CLEAN_BROKER_DATA")):
            self.emitted.clear()
            result = self.run_it("controller", verb, GROUP, "2", "--dry-run")
            self.assertEqual((result.status, result.out, result.err), (OK, "", ""))
            self.assertIn(f"would send {request} to {self.namesrv}: ", self.emitted[0])
            self.assertEqual(self.run_it("controller", verb, GROUP, "2").status, UNCONFIRMED)
        self.pair.world.run_for(5)
        self.assertIs(self.pair.master(), self.pair.brokers[0])
        self.assertEqual(self.data("controller", "show")[0], OK)

    def test_forget(self) -> None:
        result = self.run_it("controller", "forget", GROUP, "2", "--yes")
        self.assertEqual((result.status, "is still alive" in result.err), (REFUSED, True))
        self.pair.brokers[1].kill()
        self.pair.world.run_for(15)
        self.assertEqual(self.data("controller", "forget", GROUP, "2", "--yes")[0], OK)
        group = self.pair.group()
        assert group is not None
        self.assertEqual(list(group.members), [1])

    def test_no_controller(self) -> None:
        """A broker is none; a controller that is named is asked at its own address."""
        broker = f"{self.pair.brokers[0].address}:{PORT}"
        result = self.run_it("controller", "show", GROUP, namesrv=broker)
        self.assertEqual((result.status, "no NameServer given is a controller" in result.err), (DIFFERENT, True))
        result = self.run_it("controller", "show", GROUP, "-a", self.namesrv, namesrv=broker)
        self.assertEqual(result.status, OK)
