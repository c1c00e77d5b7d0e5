"""A bug that raises for one message costs that message, never the ones behind it, nor the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.config import BrokerRole
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.dispatch import Dispatcher, Units, numbered
from rmq.store.index import Index
from rmq.store.multidispatch import MultiDispatch
from rmq.store.store import MessageStore
from tests.needs import need_compiled
from tests.store.support import SYNC, Box, log_events, message, queue_records

#: of the message that fails
KEY = "poison"


class Planted(Exception):
    """The bug."""


class DispatchFailureTests(SynchronousTestCase):
    def plant(self, owner: type, name: str, fails: Callable[..., bool]) -> None:
        true = getattr(owner, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            if fails(*args):
                raise Planted(name)
            return true(*args, **kwargs)

        self.patch(owner, name, broken)

    def put(self, box: Box, number: int, **changes: Any) -> None:
        (result,) = box.put(message(number, queue_id=0, **changes))
        self.assertTrue(result.ok)

    def fill(self, box: Box) -> MessageStore:
        """Put messages 0 to 9 into one queue; the fourth one has the key that fails."""
        store = box.open()
        for number in range(10):
            self.put(box, number, properties=f"KEYS\x01{KEY if number == 4 else number}\x02TAGS\x01tag")
        box.run(2)
        return store

    def bodies(self, store: MessageStore) -> list[int]:
        return [int(one.body.split()[1]) for one in queue_records(store, "Topic", 0)]

    def logged(self, case: list[dict[str, Any]]) -> list[tuple[int, int]]:
        """Return offset and count of each line about a failed dispatch, and take its traceback away."""
        self.assertGreater(len(self.flushLoggedErrors(Planted)), 0)
        found = [one for one in case if str(one.get("log_format", "")).startswith("dispatch of the record")]
        return [(one["phy_offset"], one["count"]) for one in found]

    def test_a_unit(self) -> None:
        """Without its unit a message is missed, its place is the next one's, and it is in the log and the index."""
        for config in ({}, SYNC):
            events = log_events(self)
            self.plant(Dispatcher, "_tags_code", lambda _self, _topic, _ms, properties: KEY in properties)
            box = Box(**config)
            store = self.fill(box)
            self.assertEqual(self.bodies(store), [0, 1, 2, 3, 5, 5, 6, 7, 8, 9])
            (found,) = store.query("Topic", KEY, 10, 0, 1 << 62).messages
            self.assertIn(b"body 4", found)
            ((phy_offset, count),) = self.logged(events)
            self.assertEqual((store.message_at(phy_offset), count), (found, 1))
            self.assertEqual((store.health().dispatch_failures, store.dispatched_offset), (1, store.end_offset))

    def test_keys(self) -> None:
        """A message whose keys cannot be indexed is consumed as the others are."""
        events = log_events(self)
        self.plant(Index, "add", lambda _self, _queue, _unique, keys, *_: keys == KEY)
        store = self.fill(Box())
        self.assertEqual(self.bodies(store), list(range(10)))
        self.assertEqual(len(self.logged(events)), 1)
        self.assertEqual(len(store.query("Topic", "5", 10, 0, 1 << 62).messages), 1)

    def test_a_listener(self) -> None:
        """A listener that raises misses one message; other listeners get all, and so does it afterwards."""
        box = Box()
        store = box.open()
        ends: dict[str, list[int]] = {"broken": [], "sound": []}

        def broken(topic: str, queue_id: int, end: int, code: int) -> None:
            if end == 5:
                raise Planted("listener")
            ends["broken"].append(end)

        store.on_arrival(broken)
        store.on_arrival(lambda topic, queue_id, end, code: ends["sound"].append(end))
        for number in range(10):
            self.put(box, number)
        self.assertEqual(ends["sound"], list(range(1, 11)))
        self.assertEqual(ends["broken"], [*range(1, 5), *range(6, 11)])
        self.assertEqual(len(self.flushLoggedErrors(Planted)), 1)

    def test_a_listener_of_many(self) -> None:
        """One that takes messages together gets those of a chunk at once; if it raises it misses these only."""
        need_compiled("rmq.store._record")
        source = self.fill(Box())
        log = bytes(source.read(0, source.end_offset))
        box = Box(2, broker_role=BrokerRole.SLAVE)
        slave = box.open()
        chunks: list[list[int]] = []
        ends: list[int] = []

        def together(units: Units) -> None:
            chunks.append([end for queue, more, _ in units for end, _ in numbered(queue, more)])
            if len(chunks) == 1:
                raise Planted("listener")

        slave.on_arrival(lambda *_: self.fail("each message has come with others"), together=together)
        slave.on_arrival(lambda topic, queue_id, end, code: ends.append(end))
        half = source.message_at(0) or b""
        slave.append_raw(0, log[: 5 * len(half)])
        slave.append_raw(5 * len(half), log[5 * len(half) :])
        box.run(2)
        self.assertEqual([end for chunk in chunks for end in chunk], list(range(1, 11)))
        self.assertGreater(len(chunks), 1)
        self.assertEqual(ends, list(range(1, 11)))
        self.assertEqual((slave.health().dispatch_failures, len(self.flushLoggedErrors(Planted))), (1, 1))

    def test_a_further_queue(self) -> None:
        """A message whose further queues fail is in its own one."""
        self.plant(MultiDispatch, "of", lambda _self, properties, _queue: KEY in properties)
        store = self.fill(Box(enable_multi_dispatch=True, enable_lmq=True))
        self.assertEqual(self.bodies(store), list(range(10)))
        self.assertEqual(len(self.flushLoggedErrors(Planted)), 1)

    def test_records_of_a_slave_and_of_a_recovery(self) -> None:
        """A slave, and a start after a kill, go on behind a record that fails."""
        master = Box()
        source = self.fill(master)
        log = bytes(source.read(0, source.end_offset))
        self.plant(Dispatcher, "_tags_code", lambda _self, _topic, _ms, properties: KEY in properties)
        self.plant(Dispatcher, "queue_for", lambda *_: True)  # what the compiled walk asks
        box = Box(2, broker_role=BrokerRole.SLAVE)
        slave = box.open()
        slave.append_raw(0, log)
        box.run(2)
        self.assertEqual(self.bodies(slave), [0, 1, 2, 3, 5, 5, 6, 7, 8, 9])
        self.assertEqual(slave.dispatched_offset, slave.end_offset)
        slave = box.reopen("kill")
        self.assertEqual(self.bodies(slave), [0, 1, 2, 3, 5, 5, 6, 7, 8, 9])
        self.assertGreater(len(self.flushLoggedErrors(Planted)), 0)

    def test_each_message_fails(self) -> None:
        """Of many failures the first, second, fourth, eighth … are logged."""
        events = log_events(self)
        self.plant(ConsumeQueue, "append", lambda *_: True)
        store = self.fill(Box())
        self.assertEqual([count for _, count in self.logged(events)], [1, 2, 4, 8])
        self.assertEqual(store.health().dispatch_failures, 10)
        self.assertEqual(self.bodies(store), [])
