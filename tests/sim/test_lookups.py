"""`rmq.sim.lookups`: a broker that finds messages otherwise than it serves them is found out, in words."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.client import Refused
from rmq.sim import lookups
from rmq.sim.history import Copy, keys_of
from rmq.wire.api.offsets import SEARCH_OFFSET_BY_TIMESTAMP
from rmq.wire.api.pulling import QUERY_MESSAGE
from rmq.wire.codes import ResponseCode
from rmq.wire.record import Record, decode_record
from tests.sim.support import copy_of, frame, message

ADDR = "10.0.0.1:10911"
TOPIC = "orders"
T = TypeVar("T")
#: what a broker makes of the messages that a key finds
Lie = Callable[[list[Record]], list[Record]]


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, and return its result or raise its exception."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError(f"{coroutine} waits")


class Broker:
    """
    Ten messages in each of two queues, one every 10 s, and honest answers about them but for a planted lie.

    It is asked through ``remoting``, as the observer of a run asks. Each body is one byte longer than the one before,
    so a key that messages share is that of every seventh (see `shared_key`).
    """

    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self.records: list[Record] = []
        for number in range(20):
            sent = message(
                f"m{number}", queue_id=number % 2, offset=number // 2, phy=1000 * number, body=b"x" * (100 + number)
            )
            data = frame(sent, store_timestamp=1_000_000 + 10_000 * number)
            self.frames[1000 * number] = data
            self.records.append(decode_record(data))
        self.asked: list[Any] = []
        #: what is done to the messages that a key finds, by that key
        self.lies: dict[str, Lie] = {}
        #: how far the answers for a time are off, by queue
        self.off: dict[int, int] = {}
        self.refusal: int = ResponseCode.QUERY_NOT_FOUND

    @property
    def copies(self) -> list[Copy]:
        return [copy_of(*self.records[queue_id::2], queue_id=queue_id) for queue_id in (0, 1)]

    @property
    def observer(self) -> Any:
        return SimpleNamespace(remoting=self)

    async def invoke(self, addr: str, contract: object, header: Any, body: object, *, timeout_ms: int) -> Any:
        assert (addr, body) == (ADDR, None)
        self.asked.append(header)
        if contract is SEARCH_OFFSET_BY_TIMESTAMP:
            return SimpleNamespace(header=SimpleNamespace(offset=self.offset_at(header)))
        assert contract is QUERY_MESSAGE
        found = self.find(header)
        if not found:
            raise Refused(self.refusal, "nothing", addr)
        return SimpleNamespace(body=b"".join(self.frames[each.phy_offset] for each in found))

    def find(self, header: Any) -> list[Record]:
        records = [
            each
            for each in self.records
            if each.topic == header.topic
            and header.key in keys_of(each)
            and header.begin_timestamp <= each.store_timestamp <= header.end_timestamp
        ]
        return self.lies.get(header.key, list)(records[-header.max_num :])

    def offset_at(self, header: Any) -> int:
        assert header.topic == TOPIC
        queue = [each for each in self.records if each.queue_id == header.queue_id]
        nearest = min(queue, key=lambda each: abs(each.store_timestamp - header.timestamp))
        return nearest.queue_offset + self.off.get(header.queue_id, 0)

    def judge(self, copies: list[Copy] | None = None) -> list[str]:
        chosen = self.copies if copies is None else copies
        wrong = lookups.wrong_lookups(self.observer, "broker-a-0", ADDR, chosen, Random(1))
        return result_of(wrong)


class LookUpTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.broker = Broker()

    def find(self, *expected: str) -> None:
        """The lies that were planted are found, and nothing else; a lie may be met more than once."""
        self.assertEqual(set(self.broker.judge()), set(expected))

    def test_honest(self) -> None:
        """A broker that finds what it serves is sound: 12 messages by both their keys, a wrong key, 3 times a queue."""
        self.find()
        self.assertEqual(len(self.broker.asked), 12 + 12 + 1 + 3 + 3)

    def test_own_key(self) -> None:
        """A message that its own key does not find, or finds twice or instead of another, is found."""
        first, _, _, _, only, *_ = self.broker.records
        self.broker.records = [only]
        others: list[tuple[Lie, str]] = [
            (lambda found: [], "[]"),
            (lambda found: [only, only], "[4000, 4000]"),
            (lambda found: [first], "[0]"),
        ]
        for lie, places in others:
            self.broker.lies = {"m4": lie}
            self.assertEqual(
                self.broker.judge([copy_of(only, min_offset=2)]),
                [f"broker-a-0 finds {places} by the key m4, the newest are [4000]"],
            )

    def test_shared_key(self) -> None:
        """A key of many messages finds the newest of them, in the order of the log; fewer or others are found."""
        (key,) = {keys_of(each)[1] for each in self.broker.records[6::7]}
        newest = [6000, 13000]
        self.find()
        others: list[tuple[Lie, list[int]]] = [
            (lambda found: found[1:], newest[1:]),
            (lambda found: found[::-1], newest[::-1]),
            (lambda found: [], []),
        ]
        for lie, places in others:
            self.broker.lies = {key: lie}
            self.find(f"broker-a-0 finds {places} by the key {key}, the newest are {newest}")

    def test_more_than_are_asked_for(self) -> None:
        """Of more messages than a query returns the newest eight are due."""
        sent = [message(f"n{number}", offset=number, phy=1000 * number) for number in range(9)]
        self.broker.records = [decode_record(frame(each)) for each in sent]
        self.broker.frames = {1000 * number: frame(each) for number, each in enumerate(sent)}
        (key,) = {keys_of(each)[1] for each in self.broker.records}
        copies = [copy_of(*self.broker.records)]
        self.assertEqual([text for text in self.broker.judge(copies) if key in text], [])
        self.broker.lies = {key: lambda found: self.broker.records[:8]}
        oldest, newest = [1000 * number for number in range(8)], [1000 * number for number in range(1, 9)]
        text = f"broker-a-0 finds {oldest} by the key {key}, the newest are {newest}"
        self.assertEqual({text for text in self.broker.judge(copies) if key in text}, {text})

    def test_unknown_key(self) -> None:
        """A key that nobody sent finds nothing."""
        self.broker.lies = {"never sent": lambda found: self.broker.records[:2]}
        self.find("broker-a-0 finds [0, 1000] by a key that nobody ever sent")

    def test_time(self) -> None:
        """The offset for a time is that of the message stored nearest to it, in every queue."""
        for queue_id in (0, 1):
            self.broker.off = {queue_id: 1}
            found = self.broker.judge()
            self.assertEqual(len(found), lookups.TIMES)
            for text in found:
                self.assertRegex(text, rf"^broker-a-0 has orders:{queue_id} at \d+ for \d+, not at \d+$")

    def test_time_after_a_minimum(self) -> None:
        """Numbers count from the queue's beginning, of which the oldest may be gone."""
        late = [copy_of(*self.broker.records[6::2], min_offset=3)]
        self.broker.records = self.broker.records[6:]
        self.assertEqual([text for text in self.broker.judge(late) if "not at" in text], [])

    def test_clock_that_went_back(self) -> None:
        """A queue whose store times are not in order is not asked by time; the other one is."""
        for each in self.broker.records[::2]:
            each.store_timestamp = 2_000_000 - each.store_timestamp
        self.broker.off = {0: 1, 1: 1}
        found = self.broker.judge()
        self.assertEqual([text.partition(" at ")[0] for text in found], ["broker-a-0 has orders:1"] * lookups.TIMES)

    def test_nothing_stored(self) -> None:
        """A broker without messages is asked for nothing."""
        self.assertEqual(self.broker.judge([copy_of(), copy_of(queue_id=1)]), [])
        self.assertEqual(self.broker.asked, [])

    def test_refusals(self) -> None:
        """Only "not found" means that a key finds nothing; another refusal is no answer."""
        self.broker.refusal = ResponseCode.SYSTEM_ERROR
        asked = lookups.by_key(self.broker.observer, ADDR, TOPIC, "never sent")
        self.assertRaises(Refused, result_of, asked)


class PartTests(SynchronousTestCase):
    def test_by_key(self) -> None:
        """A query asks for all times and at most eight messages, and returns them whole."""
        broker = Broker()
        found = result_of(lookups.by_key(broker.observer, ADDR, TOPIC, "m3"))
        self.assertEqual(found, [broker.records[3]])
        (header,) = broker.asked
        self.assertEqual((header.max_num, header.begin_timestamp), (8, 0))
        self.assertGreater(header.end_timestamp, 1 << 50)

    def test_by_time(self) -> None:
        """The answer for a queue and a time is an offset."""
        broker = Broker()
        asked = lookups.by_time(broker.observer, ADDR, broker.copies[1], 1_000_000 + 50_001)
        self.assertEqual(result_of(asked), 2)

    def test_keys_of(self) -> None:
        """A message has its own key and the shared one in KEYS; none without the property."""
        sent = message("m", body=b"x" * 9)
        self.assertEqual(keys_of(decode_record(frame(sent))), ["m", "k2"])
        self.assertEqual(keys_of(decode_record(frame(sent, properties=b"UNIQ_KEY\x01m"))), [])

    def test_names_of(self) -> None:
        """A message is looked for by its keys and by its id, each once."""
        sent = message("m", body=b"x" * 9)
        self.assertEqual(lookups.names_of(decode_record(frame(sent))), ["m", "k2"])
        own = b"UNIQ_KEY\x01id\x02KEYS\x01m k2"
        self.assertEqual(lookups.names_of(decode_record(frame(sent, properties=own))), ["m", "k2", "id"])

    def test_places(self) -> None:
        """Records are told by their offsets in the log, in the order that they came in."""
        records = [decode_record(frame(message(str(phy), phy=phy))) for phy in (300, 100)]
        self.assertEqual(lookups.places(records), [300, 100])

    def test_nearest(self) -> None:
        """The nearest time wins, of two equally near ones the earlier, of equal ones the first when it is exact."""
        times = [10, 20, 20, 30]
        expected = {0: 0, 10: 0, 14: 0, 15: 0, 16: 1, 20: 1, 24: 2, 25: 2, 26: 3, 30: 3, 99: 3}
        self.assertEqual({time: lookups.nearest(times, time) for time in expected}, expected)
