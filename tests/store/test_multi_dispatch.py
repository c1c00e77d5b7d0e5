"""Further queues of messages: INNER_MULTI_DISPATCH, and light message queues."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.check import check_store
from rmq.store.config import BrokerRole
from rmq.store.messages import BatchEntry, Message, PutStatus
from rmq.store.store import MessageStore
from rmq.wire.record import decode_properties, encode_properties
from tests.store.support import ROOT, SYNC, Box, message, queue_records

ON: dict[str, Any] = {"enable_multi_dispatch": True, "enable_lmq": True}


def named(number: int, names: str, **changes: Any) -> Message:
    """Return a message that names further queues."""
    properties = {"INNER_MULTI_DISPATCH": names, "K": str(number), **changes.pop("pairs", {})}
    return message(number, properties=encode_properties(properties), **changes)


class MultiDispatchTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box(**ON)
        self.box.open()

    @property
    def store(self) -> MessageStore:
        assert self.box.store is not None
        return self.box.store

    def properties(self, topic: str, queue_id: int) -> list[dict[str, str]]:
        """Return the properties of all messages in a queue."""
        return [decode_properties(one.properties.decode()) for one in queue_records(self.store, topic, queue_id)]

    def keys(self, topic: str, queue_id: int = 0) -> list[str]:
        """Return the numbers of all messages in a queue."""
        return [pairs["K"] for pairs in self.properties(topic, queue_id)]

    def offsets(self, topic: str, queue_id: int) -> list[str]:
        return [pairs["INNER_MULTI_QUEUE_OFFSET"] for pairs in self.properties(topic, queue_id)]

    def test_every_named_queue_gets_the_message(self) -> None:
        """One record is in the queue of its topic and, numbered, in each queue that it names; LMQ queues have id 0."""
        self.box.put(named(1, "%LMQ%a,%LMQ%b"), named(2, "%LMQ%b"), named(4, "%LMQ%a,Other"))
        self.assertEqual(self.keys("Topic", 1), ["1", "4"])
        self.assertEqual(self.keys("%LMQ%a"), ["1", "4"])
        self.assertEqual(self.keys("%LMQ%b"), ["1", "2"])
        self.assertEqual(self.keys("Other", 1), ["4"])
        self.assertEqual(self.offsets("%LMQ%a", 0), ["0,0", "1,0"])
        self.assertEqual(self.offsets("%LMQ%b", 0), ["0,0", "1"])

    def test_queues_survive(self) -> None:
        """After any end, and after a loss of the queues' files, all is where it was and numbers go on."""
        number = 0
        for how in ("stop", "kill", "crash"):
            for _ in range(30):
                self.box.put(named(number, "%LMQ%a,%LMQ%b" if number % 2 else "%LMQ%a"))
                number += 1
            self.box.run(75)
            self.box.reopen(how)
            self.assertEqual(self.keys("%LMQ%a"), [str(n) for n in range(number)], how)
            self.assertEqual(self.keys("%LMQ%b"), [str(n) for n in range(1, number, 2)], how)
        self.box.stop()
        self.assertEqual(check_store(self.box.disk, ROOT, self.box.config), [])
        self.box.disk.delete_tree(f"{ROOT}/consumequeue")
        self.box.open()
        self.box.put(named(number, "%LMQ%a"))
        self.assertEqual(self.keys("%LMQ%a"), [str(n) for n in range(number + 1)])

    def test_a_slave(self) -> None:
        """A slave finds the numbers in the records, and goes on with them when it becomes the master."""
        self.box.put(*(named(number, "%LMQ%a,%LMQ%b" if number % 2 else "%LMQ%a") for number in range(10)))
        master, self.box = self.store, Box(2, **ON, broker_role=BrokerRole.SLAVE)
        slave = self.box.open()
        while slave.end_offset < master.end_offset:
            slave.append_raw(slave.end_offset, bytes(master.read(slave.end_offset, 300)))
        self.box.run(1)
        self.box.reopen("stop", broker_role=BrokerRole.ASYNC_MASTER)
        self.box.put(named(10, "%LMQ%b"))
        self.assertEqual(self.offsets("%LMQ%a", 0)[-2:], ["8", "9,4"])
        self.assertEqual(self.offsets("%LMQ%b", 0), ["1,0", "3,1", "5,2", "7,3", "9,4", "5"])

    def test_check_sees_a_wrong_unit(self) -> None:
        """`rmq check` finds a unit of a further queue that its record does not name."""
        self.box.put(named(1, "%LMQ%a"), named(2, "%LMQ%a"))
        self.box.stop()
        self.box.disk.rename(f"{ROOT}/consumequeue/%LMQ%a", f"{ROOT}/consumequeue/%LMQ%c")
        kinds = {finding.kind for finding in check_store(self.box.disk, ROOT, self.box.config)}
        self.assertEqual(kinds, {"wrong-unit"})

    def test_sync_flush(self) -> None:
        """In SYNC_FLUSH mode numbers are given before a message is visible."""
        self.box = Box(**ON, **SYNC)
        store = self.box.open()
        answers = [store.put(named(number, "%LMQ%a")) for number in range(3)]
        self.assertEqual(self.keys("%LMQ%a"), [])
        for answer in answers:
            self.box.world.settle(answer)  # type: ignore[arg-type]
        self.assertEqual(self.offsets("%LMQ%a", 0), ["0", "1", "2"])

    def test_a_queue_named_twice(self) -> None:
        """A queue that a message names twice, or that is the message's own, has it once."""
        self.box.put(named(0, "%LMQ%a,%LMQ%a,Topic"), named(3, "%LMQ%a"))
        self.assertEqual(self.keys("%LMQ%a"), ["0", "3"])
        self.assertEqual(self.keys("Topic", 0), ["0", "3"])

    def test_numbers_of_a_client_do_not_count(self) -> None:
        """A client cannot give numbers: its list is replaced or dropped, and a batch that has one is refused."""
        forged = {"INNER_MULTI_QUEUE_OFFSET": "77"}
        self.box.put(named(0, "%LMQ%a", pairs=forged), named(3, " ", pairs=forged))
        first, second = self.properties("Topic", 0)
        self.assertEqual(first["INNER_MULTI_QUEUE_OFFSET"], "0")
        self.assertNotIn("INNER_MULTI_QUEUE_OFFSET", second)
        entry = BatchEntry(
            flag=0, body=b"x", properties=encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a", **forged})
        )
        result = self.store.put_batch(message(0, properties=""), [entry])
        self.assertEqual(getattr(result, "status", None), PutStatus.MESSAGE_ILLEGAL)

    def test_parked_messages_wait(self) -> None:
        """A delayed or a half message is in no further queue before it is delivered to its topic."""
        for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
            self.box.put(named(0, "%LMQ%a", topic=topic))
        self.assertEqual(self.keys("%LMQ%a"), [])

    def test_names_that_cannot_be_folders(self) -> None:
        """A name that leads out of the store, or an empty one, is refused, and nothing is stored."""
        for names in ("../../etc", "a/b", "..", "%LMQ%a,,b", "x" * 200):
            (result,) = self.box.put(named(0, names))
            self.assertEqual(result.status, PutStatus.MESSAGE_ILLEGAL, names)
        self.assertEqual(self.store.end_offset, 0)

    def test_limit_of_light_queues(self) -> None:
        """No more than maxLmqConsumeQueueNum light queues are made; those that exist go on."""
        self.box = Box(**ON, max_lmq_consume_queue_num=3)
        self.box.open()
        self.assertTrue(all(one.ok for one in self.box.put(*(named(n, f"%LMQ%{n}") for n in range(3)))))
        (refused, known, ordinary) = self.box.put(named(3, "%LMQ%3"), named(4, "%LMQ%0"), named(5, "Another"))
        self.assertEqual(refused.status, PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
        self.assertTrue(known.ok and ordinary.ok)
        self.store.delete_topic("%LMQ%1")
        (again,) = self.box.put(named(6, "%LMQ%3"))
        self.assertTrue(again.ok)

    def test_without_the_keys(self) -> None:
        """Without enableMultiDispatch the property is one like any other; without enableLmq ids are the message's."""
        self.box = Box()
        self.box.open()
        self.box.put(named(1, "%LMQ%a"))
        self.assertEqual(self.keys("%LMQ%a"), [])
        self.box.reopen("stop", enable_multi_dispatch=True)
        self.box.put(named(1, "%LMQ%a"))
        self.assertEqual((self.keys("%LMQ%a", 1), self.keys("%LMQ%a", 0)), (["1"], []))

    def test_impossible_numbers_in_the_log(self) -> None:
        """
        Numbers that a broker without enableMultiDispatch stored as its producers sent them cost one with it nothing.

        One that is possible makes the queue begin there, as it does in Apache's.
        """
        self.box = Box()
        self.box.open()
        wrong = ["9" * 18, "9" * 5000, "-1", "1e3", "", "x", "0,0", "²"]
        for place, numbers in enumerate([*wrong, "9" * 17]):
            pairs = {"INNER_MULTI_QUEUE_OFFSET": numbers} if numbers else {}
            self.box.put(named(4 * place, f"%LMQ%{place}", pairs=pairs))
        self.box.stop()
        self.box.disk.delete_tree(f"{ROOT}/consumequeue")
        self.box.reopen("stop", **ON)
        self.assertEqual(self.store.health().dispatch_failures, 0)
        self.assertEqual([self.store.max_offset(f"%LMQ%{place}", 0) for place in range(len(wrong))], [0] * len(wrong))
        self.assertEqual(self.store.max_offset(f"%LMQ%{len(wrong)}", 0), int("9" * 17) + 1)
        self.assertTrue(all(one.ok for one in self.box.put(named(0, "%LMQ%0"))))
        self.assertEqual(self.keys("%LMQ%0"), ["0"])
        self.box.reopen("stop", **ON)

    def test_waiting_consumers_hear_of_them(self) -> None:
        """Arrival in a further queue is told, with its end and the message's tagsCode."""
        told: list[tuple[str, int, int, int]] = []
        self.store.on_arrival(lambda *what: told.append(what))
        self.box.put(named(2, "%LMQ%a"))
        self.assertEqual([what[:3] for what in told], [("Topic", 2, 1), ("%LMQ%a", 0, 1)])

    def test_properties_stay(self) -> None:
        """What the producer set stays beside the numbers."""
        self.box.put(named(0, "%LMQ%a", pairs={"KEYS": "k", "TAGS": "t"}))
        (pairs,) = self.properties("%LMQ%a", 0)
        self.assertEqual(
            pairs,
            {"INNER_MULTI_DISPATCH": "%LMQ%a", "K": "0", "KEYS": "k", "TAGS": "t", "INNER_MULTI_QUEUE_OFFSET": "0"},
        )
