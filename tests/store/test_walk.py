"""The compiled way from the log to queues and index beside the Python one: the same units, entries and arrivals."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.store import dispatch
from rmq.store.config import BrokerRole
from rmq.store.scan import Walk
from rmq.store.store import MessageStore
from rmq.wire.record import encode_record
from tests.needs import need_compiled
from tests.seeds import SEED
from tests.store.support import BORN, HOST, Box, log_events

TOPICS = ("Topic", "Other", "T" * 127, "SCHEDULE_TOPIC_XXXX", "Tö", ".", "a/b")
VALUES = (
    "a",
    "",
    "x y",
    " a  b ",
    "ü€",
    "7F00000100002A9F0000000000000001",
    "k" * 300,
    "\x00",
    " ".join("abcdefghijklmnopq"),
)
HOST_V6 = (bytes(range(16)), 10911)


def random_properties(rng: random.Random) -> str:
    """Return properties that are mostly well-formed and sometimes anything but."""
    names = ("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "own", "XKEYS", "")
    pairs = [f"{rng.choice(names)}\x01{rng.choice(VALUES)}" for _ in range(rng.randrange(5))]
    if rng.random() < 0.1:
        pairs.append("".join(rng.choice("ab\x01\x02KEYS") for _ in range(rng.randrange(12))))
    return "\x02".join(pairs) + rng.choice(("", "\x02", "\x02CLUSTER\x01c"))


class RandomLog:
    """Bytes of a log as a master sends them: mostly ordinary records, and all that a log may have."""

    def __init__(self, rng: random.Random, segment_bytes: int) -> None:
        self.rng = rng
        self.segment_bytes = segment_bytes
        self.numbers: dict[tuple[str, int], int] = {}
        self.data = bytearray()

    def add(self) -> None:
        rng = self.rng
        topic = rng.choice(TOPICS) if rng.random() < 0.1 else rng.choice(TOPICS[:2])
        queue_id = rng.randrange(3) if rng.random() < 0.99 else -1
        number = self.numbers.get((topic, queue_id), 0)
        chance = rng.random()
        if chance < 0.02:
            number += rng.randrange(1, 4)
        elif chance < 0.04:
            number = max(0, number - 1)
        strange = rng.random() < 0.1
        sys_flag = rng.choice((0, 1, 2, 4, 8, 12)) if strange else 0
        record = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            body=rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 511, 512, 513, 2000))),
            properties=random_properties(rng).encode(),
            born_timestamp=1_700_000_000_000,
            store_timestamp=1_700_000_000_000 + len(self.data),
            born_host=HOST_V6 if strange and rng.random() < 0.5 else BORN,
            store_host=HOST_V6 if strange and rng.random() < 0.5 else HOST,
            queue_offset=number,
            phy_offset=len(self.data),
            sys_flag=sys_flag,
        )
        left = self.segment_bytes - len(self.data) % self.segment_bytes
        if len(record) + 8 > left:
            self.data += left.to_bytes(4, "big") + b"\xcb\xd4\x31\x94" + bytes(left - 8)
            self.add()
            return
        if not sys_flag & 0xC or sys_flag & 0xC == 8:
            self.numbers[topic, queue_id] = number + 1
        if rng.random() < 0.004:
            # torn, or rotten
            at = rng.randrange(len(record))
            record = record[:at] + bytes([rng.randrange(256)]) + record[at + 1 :]
        self.data += record


class WalkTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._record")

    def look(self, store: MessageStore) -> list[object]:
        """Return everything that is made from the log."""
        assert store.write_buffers()
        index = store._index
        assert index is not None
        found: list[object] = [
            (queue.key, queue.min, queue.end, queue.max_phy, queue.read(queue.min, 1 << 20)) for queue in store._queues
        ]
        found += [index._file(file).read_at(0, index._file(file).size) for file in index.files]
        dispatcher = store._dispatcher
        found += [dispatcher.dispatched, dispatcher.last_phy, dispatcher.last_size, dispatcher.store_timestamp]
        return [*found, dispatcher.damage, dispatcher.stalled_at]

    def test_same_on_a_slave_and_in_recovery(self) -> None:
        """A slave that is sent anything, in any pieces, and is killed then, has the same queues and index both ways."""
        seed = SEED
        log_events(self)
        #: bytes of the records that were dispatched by the compiled function
        taken: list[int] = []
        for number in range(12):
            rng = random.Random(f"{seed}/{number}")
            log = RandomLog(rng, 16384)
            while len(log.data) < 60_000:
                log.add()
            data = bytes(log.data)
            cuts = sorted(rng.randrange(len(data)) for _ in range(rng.choice((0, 3, 30))))
            end = rng.choice(("stop", "kill", "crash"))
            loses = rng.random() < 0.5
            found: list[list[object]] = []
            arrivals: list[list[Any]] = []
            for is_compiled in (True, False):
                box = Box(broker_role=BrokerRole.SLAVE)
                twin = None if is_compiled else self.patch(dispatch, "_compiled", None)
                found.append([])
                arrivals.append([])
                store = box.open()
                self.assertEqual(store._dispatcher.walk is not None, is_compiled)
                if (walk := store._dispatcher.walk) is not None:

                    def counted(data: bytes, position: int, base: int, check_crc: bool, walk: Walk = walk) -> int:
                        stop = walk(data, position, base, check_crc)
                        taken.append(stop - position)
                        return stop

                    store._dispatcher.walk = counted
                store.on_arrival(lambda *arrival, to=arrivals[-1]: to.append(arrival))
                at = 0
                for cut in [*cuts, len(data)]:
                    while at < cut:
                        stop = min(cut, at - at % 16384 + 16384)
                        store.append_raw(at, data[at:stop])
                        at = stop
                box.run(1.5)
                found[-1] += self.look(store)
                getattr(box, end)()
                if loses:
                    box.node.start()
                    box.disk.delete_tree("/store/consumequeue")
                    box.node.kill()
                store = box.open()
                found[-1] += self.look(store)
                if twin is not None:
                    twin.restore()
            # Listeners hear of a queue's messages in their order, and of one queue after the other.
            for arrived in arrivals:
                arrived.sort(key=lambda arrival: str(arrival[:2]))
            self.assertEqual(arrivals[0], arrivals[1], f"seed {seed}, round {number}")
            self.assertEqual(found[0], found[1], f"seed {seed}, round {number}")
        self.assertGreater(sum(taken), 40_000)
        self.flushLoggedErrors()
