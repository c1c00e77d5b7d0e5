"""What a broker writes while it works: no fsync halts the reactor, and all of it is on disk at the stop."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire import fastjson
from rmq.wire.api.replication import AllDelayOffset
from rmq.wire.record import encode_properties
from tests.broker.harness import OneBroker, send_ext
from tests.broker.test_consumer_filters import sql_heartbeat

DELAY_FILE, FILTER_FILE = "/store/config/delayOffset.json", "/store/config/consumerFilter.json"
DELAYED = encode_properties({"DELAY": "1"})


class HaltTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker({"enablePropertyFilter": "true", "brokerIP1": "10.0.0.1"})
        self.addCleanup(self.one.end)
        self.client = self.one.connect()
        self.disk = self.one.node.disk

    def send(self, body: bytes = b"x", **more: Any) -> None:
        self.assertEqual(self.client.ask(310, send_ext("T", **more), body).code, 0)

    def saved(self) -> dict[int, int]:
        """Return the delay offsets in the file."""
        if not self.disk.exists(DELAY_FILE):
            return {}
        return fastjson.decode(self.disk.read_whole(DELAY_FILE), AllDelayOffset).offset_table

    def test_a_working_broker(self) -> None:
        """Once the folders are there, no fsync runs in the reactor: of no table, new file, deletion or checkpoint."""
        self.send()
        self.one.world.run_for(61)
        halts: list[str] = []
        self.disk.on_halt = halts.append
        for number in range(30):
            self.send(i=DELAYED)
            for _ in range(4):
                self.send(b"x" * 40_000)
                self.one.world.run_for(0.3)
            self.client.ask(34, {}, sql_heartbeat(f"a = {number}", version=number + 1))
            self.send(a="PG", b=f"New{number}")
            self.assertEqual(self.client.ask(215, {"topic": f"New{number}"}).code, 0)
        self.one.world.run_for(61)
        self.assertGreater(self.one.service.store.end_offset, 4 << 20)
        self.assertEqual(self.saved(), {1: 30})
        self.assertIn("a = 29", json.dumps(json.loads(self.disk.read_whole(FILTER_FILE))))
        self.assertEqual(halts, [])

    def test_sends_beside_a_slow_write(self) -> None:
        """While delay offsets and filters are written, sends are answered; slaves get what the file holds."""
        self.send(i=DELAYED)
        self.client.ask(34, {}, sql_heartbeat("a = 1"))
        self.one.world.run_for(3)
        service = self.one.service
        self.disk.sync_s = (2.0, 2.0)
        saving = [Deferred.fromCoroutine(persist()) for persist in (service.delays.persist, service.filters.persist)]
        began_s = self.one.world.now_s
        self.send()
        self.assertLess(self.one.world.now_s - began_s, 0.1)
        self.assertEqual((self.saved(), service.delays.written.offset_table), ({}, {}))
        self.assertFalse(self.disk.exists(FILTER_FILE))
        self.one.world.run_for(5)
        for each in saving:
            self.successResultOf(each)
        self.assertEqual((self.saved(), service.delays.written.offset_table), ({1: 1}, {1: 1}))
        self.assertTrue(self.disk.exists(FILTER_FILE))

    def test_stop(self) -> None:
        """A stop ends when they are on disk, however slow that is: a power failure then takes nothing."""
        self.send(i=DELAYED)
        self.client.ask(34, {}, sql_heartbeat("a = 1"))
        self.one.world.run_for(3)
        self.disk.sync_s = (2.0, 2.0)
        self.one.stop()
        self.one.node.crash()
        self.assertEqual(self.saved(), {1: 1})
        self.assertIn(b"a = 1", self.disk.read_whole(FILTER_FILE))

    def test_a_disk_that_refuses(self) -> None:
        """What cannot be written is written with the next round."""
        self.send(i=DELAYED)
        self.client.ask(34, {}, sql_heartbeat("a = 1"))
        self.one.world.run_for(3)
        self.disk.write_fails = lambda path: ".json" in path
        self.one.world.run_for(30)
        self.assertEqual(self.saved(), {})
        self.disk.recover()
        self.one.world.run_for(11)
        self.assertEqual(self.saved(), {1: 1})
        self.assertIn(b"a = 1", self.disk.read_whole(FILTER_FILE))
