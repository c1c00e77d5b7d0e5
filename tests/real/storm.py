"""
Brokers that exist on the wire only: bodies encoded once, one connection each, all registering at the same moment.

Used by the robustness tests and by the benchmark of registrations.
"""

from __future__ import annotations

import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from tests.real.probe import Answer, Probe, frame

REGISTER_BROKER = 103
QUEUES = 8


def registration_body(topics: Sequence[str], *, counter: int = 1, queues: int = QUEUES) -> bytes:
    """Return the body of REGISTER_BROKER as a 5.x broker writes it; a 4.9 NameServer passes over what it lacks."""
    config: dict[str, object] = {"attributes": {}, "order": False, "perm": 6, "readQueueNums": queues}
    config |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "writeQueueNums": queues}
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    wrapper = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": {name: {**config, "topicName": name} for name in topics},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    return json.dumps(body, separators=(",", ":")).encode()


def registration_fields(name: str, addr: str, body: bytes, *, broker_id: int = 0) -> dict[str, object]:
    fields: dict[str, object] = {"brokerName": name, "brokerAddr": addr, "brokerId": broker_id}
    fields |= {"clusterName": "DefaultCluster", "haServerAddr": addr, "compressed": False}
    return fields | {"bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF}


@attrs.define
class PretendedBroker:
    """A broker's connection and the frame of its registration."""

    number: int
    probe: Probe
    registration: bytes = b""

    def prepare(self, body: bytes) -> None:
        name, addr = f"storm-{self.number:03d}", f"127.0.0.1:{40_000 + self.number}"
        fields = registration_fields(name, addr, body)
        self.registration = frame(REGISTER_BROKER, fields, body, opaque=self.number)

    def register(self) -> Answer:
        self.probe.write(self.registration)
        answer = self.probe.read()
        assert answer.opaque == self.number, answer
        return answer


class Brokers:
    """``count`` brokers connected to one NameServer; ``prepare`` gives each its body, ``storm`` sends all at once."""

    def __init__(self, port: int, count: int, *, timeout: float = 240.0):
        self._brokers = [PretendedBroker(number, Probe(port, timeout=timeout)) for number in range(count)]
        self._stop = threading.Event()
        self._alive: threading.Thread | None = None

    def prepare(self, body: Callable[[int], bytes]) -> None:
        for broker in self._brokers:
            broker.prepare(body(broker.number))

    def storm(self) -> float:
        """Register all at the same moment and return the seconds until the last answer; AssertionError on a refusal."""
        refused: list[str] = []

        def one(broker: PretendedBroker) -> None:
            try:
                answer = broker.register()
                if answer.code != 0:
                    refused.append(f"broker {broker.number}: {answer.code} {answer.remark}")
            except OSError as error:
                refused.append(f"broker {broker.number}: {error!r}")

        threads = [threading.Thread(target=one, args=(broker,)) for broker in self._brokers]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not refused, f"{len(refused)} registrations failed: {refused[:3]}"
        return time.monotonic() - began

    def keep_alive(self, every_s: float) -> None:
        """From now on register again and again, one after the other, until :meth:`close`."""
        self._alive = threading.Thread(target=self._run, args=(every_s,), daemon=True)
        self._alive.start()

    def _run(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            for broker in self._brokers:
                broker.register()

    def close(self) -> None:
        self._stop.set()
        if self._alive is not None:
            self._alive.join()
        for broker in self._brokers:
            broker.probe.close()


class Asker:
    """A client that looks topics up in turn, about ``a_second`` times, and notes how long each answer took."""

    def __init__(self, port: int, topics: Sequence[str], *, a_second: float = 200.0, timeout: float = 240.0):
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._topics, self._pause = topics, 1 / a_second
        self._probe = Probe(port, timeout=timeout)
        self._probe.must(105, {"topic": topics[0]})  # the connection is accepted and there is something to find
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            topic = self._topics[number % len(self._topics)]
            number += 1
            began = time.monotonic()
            try:
                if self._probe.ask(105, {"topic": topic}).code != 0:
                    self.failures.append(topic)
            except OSError as error:
                self.failures.append(f"{topic}: {error!r}")
                return
            self.seconds.append(time.monotonic() - began)

    def stop(self) -> str:
        """Stop asking and return the latencies as a line; AssertionError when a look-up failed or none was answered."""
        self._stop.set()
        self._thread.join()
        self._probe.close()
        assert not self.failures, f"{len(self.failures)} look-ups failed: {self.failures[:3]}"
        assert self.seconds, "no look-up was answered"
        p50, p99, slowest = (self.quantile(share) * 1e3 for share in (0.5, 0.99, 1.0))
        return f"{len(self.seconds)} look-ups meanwhile: p50 {p50:.1f}, p99 {p99:.1f}, max {slowest:.1f} ms"

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the look-ups was answered."""
        found = sorted(self.seconds)
        return found[min(len(found) - 1, int(len(found) * share))]


def memory(pid: int) -> Mapping[str, int]:
    """Return ``RssAnon``, ``VmHWM`` and their like of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)}


def anonymous_bytes(pid: int) -> int:
    return memory(pid)["RssAnon"]


def forget_peak(pid: int) -> None:
    """Let ``VmHWM`` begin anew at what the process holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


MB = 1 << 20
