"""Producers and a consumer that never pause, in threads of the test: load on a broker while it is looked at."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.real.peers import Broker, until
from tests.real.probe import Probe, body_crc, properties_text, send_fields

SEND_V2 = 310
HEARTBEAT_S = 20.0
#: of a producer between two sends, so that the store does not outgrow the test
PAUSE_S = 0.005


class Load:
    """
    Load on one broker as a context: ``producers`` connections that send, one consumer that pulls and commits.

    ``acked`` is what the producers were told so far, in the columns that `rmq-audit --acked` reads.
    """

    def __init__(self, broker: Broker, topic: str, queues: int, *, producers: int = 2, size: int = 1500) -> None:
        self._broker, self._topic, self._queues, self._size = broker, topic, queues, size
        self._stopping = threading.Event()
        self._threads = [self._thread(self._produce, number) for number in range(producers)]
        self._threads.append(self._thread(self._consume, 0))
        self._lock = threading.Lock()
        self._acked: list[dict[str, Any]] = []
        self.failures: list[BaseException] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)

    @property
    def acked(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._acked)

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` sends were acknowledged."""
        until(f"{count} sends are acknowledged", lambda: self.failures or len(self.acked) >= count, seconds=120)
        assert not self.failures, self.failures

    def wait_for_more(self, count: int) -> None:
        self.wait_for(len(self.acked) + count)

    def _thread(self, work: Callable[[int], None], number: int) -> threading.Thread:
        return threading.Thread(target=self._watched, args=(work, number), daemon=True)

    def _watched(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except (AssertionError, OSError, LookupError, ValueError) as error:
            self.failures.append(error)

    def _produce(self, number: int) -> None:
        chance = random.Random(number)
        with self._broker.probe() as probe:
            count = 0
            while not self._stopping.is_set():
                self._send(probe, chance, f"7F0001{number:04d}00{count:020X}", count)
                count += 1
                self._stopping.wait(PAUSE_S)

    def _send(self, probe: Probe, chance: random.Random, message_id: str, count: int) -> None:
        queue_id = chance.randrange(self._queues)
        body = chance.randbytes(chance.randrange(1, self._size))
        properties = properties_text(UNIQ_KEY=message_id, KEYS=f"k{count}", TAGS=f"T{count % 3}")
        answer = probe.ask(SEND_V2, send_fields(self._topic, queue_id, properties), body)
        if answer.code != 0:  # Apache's is busy now and then
            time.sleep(0.01)
            return
        row = {
            "msgId": message_id,
            "topic": self._topic,
            "queueId": queue_id,
            "queueOffset": int(answer.ext["queueOffset"]),
            "offsetMsgId": answer.ext["msgId"],
            "sendStatus": "SEND_OK",
            "bodyCrc": body_crc(body),
            "bodyLen": len(body),
        }
        with self._lock:
            self._acked.append(row)

    def _consume(self, number: int) -> None:
        group = "load-readers"
        at = dict.fromkeys(range(self._queues), 0)
        with self._broker.probe() as probe:
            heartbeat_at = 0.0
            while not self._stopping.is_set():
                if time.monotonic() >= heartbeat_at:  # a consumer that is silent for two minutes is disconnected
                    probe.join_group(group, self._topic)
                    heartbeat_at = time.monotonic() + HEARTBEAT_S
                for queue_id in at:
                    answer = probe.pull(self._topic, queue_id, at[queue_id])
                    if answer.code == 0:
                        at[queue_id] = int(answer.ext["nextBeginOffset"])
                        probe.commit_offset(group, self._topic, queue_id, at[queue_id])
