"""Request frames of a Java client as templates for ``loadgen.c``, and registrations of brokers that do not exist."""

from __future__ import annotations

import itertools
import json
import random
import re
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmq.wire.signing import ACCESS_KEY, SIGNATURE, signature
from tests.otherclients import LONG_NAMES
from tests.real.probe import (
    PULL,
    SEND,
    SEND_BATCH,
    VERSION,
    Probe,
    batch_body,
    frame,
    properties_text,
    pull_fields,
    send_fields,
    text,
)
from tests.real.storm import QUEUES, REGISTER_BROKER, registration_body, registration_fields

KEEP_ALIVE_S = 15.0
#: ten digits where the generator writes the opaque
OPAQUE_MARK = 1_234_567_890
#: ten digits where it writes a number that grows with each request
GROWING_MARK = 1_098_765_432
#: as long as the 32 digits that the generator writes in its place
UNIQUE_MARK = "@" * 32
#: where a body begins with the moment at which it is sent, in 16 digits
STAMP = b"@S@"
#: the number of the connection
NUMBER = b"@W@"


def route_template(path: Path, topics: int) -> Path:
    """GET_ROUTEINFO_BY_TOPIC for one of ``topics`` topics named by :func:`topic_name`."""
    return _write(path, _header(105, {"topic": "Bench@K@"}), [], topics)


def _delay(level: int) -> dict[str, str]:
    return {"DELAY": str(level)} if level else {}


def send_template(path: Path, topic: str, body_bytes: int, delay_level: int = 0) -> Path:
    """SEND_MESSAGE_V2 of one message as a 4.9.7 producer sends it, its queue chosen in turn."""
    properties = properties_text(UNIQ_KEY="@U@", WAIT="true", TAGS="TagA", **_delay(delay_level))
    fields = {**send_fields(topic, 0, properties), "e": "@Q@", "g": "@T@"}
    return _write(path, _header(SEND, fields), [_noise(body_bytes)], 1)


def go_template(path: Path, topic: str, body_bytes: int) -> Path:
    """SEND_MESSAGE of one message, whose fields have long names, as Go's client sends it."""
    properties = properties_text(UNIQ_KEY="@U@", WAIT="true", TAGS="TagA")
    fields = {**send_fields(topic, 0, properties), "e": "@Q@", "g": "@T@"}
    return _write(
        path, _header(10, {LONG_NAMES[name]: value for name, value in fields.items()}), [_noise(body_bytes)], 1
    )


def cpp_template(path: Path, topic: str, group: str, count: int) -> Path:
    """:func:`pull_template` with numbers without quotes and a signature, as C++ clients send it."""
    header = _header(PULL, {**_pull(topic, group, count), "AccessKey": "", "Signature": "p+MLMmSDsHiXHTD9zaSVVzuv09w="})
    return _write(path, header.replace('"@Q@"', "@Q@").replace(f'"{count}"', str(count)), [], 1)


def batch_template(path: Path, topic: str, count: int, body_bytes: int) -> Path:
    """SEND_BATCH_MESSAGE of ``count`` messages as a 4.9.7 producer sends it, its queue chosen in turn."""
    fields = {**send_fields(topic, 0, "", batch=True), "e": "@Q@", "g": "@T@"}
    properties = [properties_text(UNIQ_KEY=f"{UNIQUE_MARK}{n:04X}", WAIT="true", TAGS="TagA") for n in range(count)]
    body = batch_body((text, _noise(body_bytes)) for text in properties)
    return _write(path, _header(SEND_BATCH, fields), re.split(f"({UNIQUE_MARK})".encode(), body), 1)


def stamped_template(path: Path, topic: str, body_bytes: int, delay_level: int = 0) -> Path:
    """SEND_MESSAGE_V2 whose body begins with the moment of its sending, to each of the pulled queues in turn."""
    fields = send_fields(topic, 0, properties_text(UNIQ_KEY="@U@", WAIT="true", TAGS="TagA", **_delay(delay_level)))
    return _write(path, _header(SEND, {**fields, "e": "@R@", "g": "@T@"}), [STAMP, _noise(body_bytes - 16)], 1)


def held_pull_template(path: Path, topic: str, group: str) -> Path:
    """PULL_MESSAGE of up to 32 messages from where the last one ended, held for 15 s where there are none."""
    fields = {**pull_fields(topic, 0, 0, wait_ms=15_000), "consumerGroup": group}
    return _write(path, _header(PULL, {**fields, "queueId": "@I@", "queueOffset": "@P@"}), [], 1)


def half_template(path: Path, topic: str) -> Path:
    """SEND_MESSAGE_V2 of a half message of 100 B."""
    properties = properties_text(UNIQ_KEY="@U@", WAIT="true", TRAN_MSG="true", PGROUP="probe-producer")
    fields = {**send_fields(topic, 0, properties), "e": "@Q@", "f": 4, "g": "@T@"}
    return _write(path, _header(SEND, fields), [_noise(100)], 1)


def end_template(path: Path) -> Path:
    """END_TRANSACTION that commits the half message of the last answer."""
    fields: dict[str, object] = {"producerGroup": "probe-producer", "tranStateTableOffset": "@J@"}
    fields |= {"commitLogOffset": "@C@", "commitOrRollback": 8, "fromTransactionCheck": False}
    return _write(path, _header(37, {**fields, "msgId": "@X@", "transactionId": "@X@"}), [], 1)


def pull_template(path: Path, topic: str, group: str, count: int) -> Path:
    """PULL_MESSAGE as a 4.9.7 push consumer asks again and again for the first messages of a queue, chosen in turn."""
    return _write(path, _header(PULL, _pull(topic, group, count)), [], 1)


def _pull(topic: str, group: str, count: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "@Q@",
        "queueOffset": 0,
        "maxMsgNums": count,
    }
    fields |= {
        "sysFlag": 2,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subVersion": 1,
        "expressionType": "TAG",
    }
    return fields


def producer_template(path: Path) -> Path:
    """HEART_BEAT of a producer, a client of its own on each connection."""
    body = json.dumps({"clientID": "client-@W@", "consumerDataSet": [], "producerDataSet": [{"groupName": "asks"}]})
    return _write(path, _header(34, {}), re.split(b"(%b)" % NUMBER, body.encode()), 1)


def reply_template(path: Path, topic: str, body_bytes: int) -> Path:
    """SEND_REPLY_MESSAGE_V2 to the client of the same connection."""
    properties = properties_text(UNIQ_KEY="@U@", CORRELATION_ID="@U@", REPLY_TO_CLIENT="client-@W@", MSG_TYPE="reply")
    fields = {**send_fields(topic, 0, properties), "e": "@Q@", "g": "@T@"}
    return _write(path, _header(325, fields), [_noise(body_bytes)], 1)


def plain_template(path: Path, code: int, fields: Mapping[str, object], body: bytes = b"", keys: int = 1) -> Path:
    """
    A request that is the same each time but for ``@Q@``, a queue id, ``@T@``, the time in ms, and ``@K@``.

    That is a random number below ``keys``, in six digits.
    """
    return _write(path, _header(code, fields), [body] if body else [], keys)


def signed_template(
    path: Path, code: int, fields: Mapping[str, object], account: tuple[str, str], body_bytes: int = 0
) -> Path:
    """A request that is the same each time, signed by an account (its name and its secret)."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    body = _noise(body_bytes) if body_bytes else b""
    texts[ACCESS_KEY] = account[0]
    return plain_template(path, code, {**texts, SIGNATURE: signature(texts, body, account[1])}, body)


def signed_send_template(path: Path, topic: str, body_bytes: int, account: tuple[str, str]) -> Path:
    """SEND_MESSAGE_V2 of the same message to queue 0."""
    properties = properties_text(UNIQ_KEY=f"{1:032X}", WAIT="true", TAGS="TagA")
    return signed_template(path, SEND, send_fields(topic, 0, properties), account, body_bytes)


def topic_name(number: int) -> str:
    return f"Bench{number:06d}"


def _header(code: int, fields: Mapping[str, object]) -> str:
    """Return the header as fastjson writes it, keys in order; ``@X@`` stands for the letter X of a template."""
    ext = {name: text(value) for name, value in sorted(fields.items())}
    header = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": "@O@"}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": VERSION}
    return json.dumps(header, separators=(",", ":")).replace('"@O@"', "@O@")


def _write(path: Path, header: str, body: list[bytes], topics: int) -> Path:
    out = bytearray(b"N" + struct.pack(">I", topics))
    for place, piece in enumerate(re.split(r"@(\w)@", header)):
        out += piece.encode() if place % 2 else b"L" + struct.pack(">I", len(piece.encode())) + piece.encode()
    out += b"B"
    for part in body:
        letter = {UNIQUE_MARK.encode(): b"U", STAMP: b"S", NUMBER: b"W"}.get(part)
        out += letter or b"L" + struct.pack(">I", len(part)) + part
    path.write_bytes(bytes(out + b"E"))
    return path


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size).hex()[:size].encode()


class PretendedBrokers:
    """Brokers that only register: ``width`` of them, each with all ``topics``, kept alive until ``close``."""

    def __init__(self, port: int, *, topics: int, width: int):
        self._jobs = [(Probe(port), *_registration(f"bench-{number}", number, topics)) for number in range(width)]
        self._stop = threading.Event()
        self._register()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _register(self) -> None:
        for probe, fields, body in self._jobs:
            probe.must(REGISTER_BROKER, fields, body)

    def _run(self) -> None:
        while not self._stop.wait(KEEP_ALIVE_S):
            self._register()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for probe, _, _ in self._jobs:
            probe.close()


class Registrar:
    """A broker with many topics that registers ``a_second`` times; every time changed, or never."""

    def __init__(self, port: int, *, topics: int, a_second: float, changes: bool):
        self.seconds: list[float] = []
        self.failures: list[str] = []
        names = [f"Large{number:06d}" for number in range(topics)]
        bodies = [registration_body(names, counter=counter, queues=6 + counter) for counter in (1, 2)]
        self._frames = [
            frame(REGISTER_BROKER, registration_fields("large", "127.0.0.1:39999", body), body, opaque=1)
            for body in (bodies if changes else bodies[:1])
        ]
        self._pause = 1 / a_second
        self._probe = Probe(port, timeout=60)
        self._ask(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _ask(self, number: int) -> None:
        self._probe.write(self._frames[number % len(self._frames)])
        answer = self._probe.read()
        if answer.code != 0:
            self.failures.append(f"{answer.code} {answer.remark}")

    def _run(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += self._pause
            number += 1
            began = time.monotonic()
            self._ask(number)
            self.seconds.append(time.monotonic() - began)

    def close(self) -> None:
        """End the broker; SystemExit when a registration was refused or none was made."""
        self._stop.set()
        self._thread.join()
        self._probe.close()
        if self.failures or not self.seconds:
            raise SystemExit(f"registrations failed: {self.failures[:3]}")


def registrations(path: Path, *, topics: int, brokers: int, changes: bool) -> Path:
    """
    Write registrations for ``loadgen.c``: a group for each broker, which has topics of its own.

    A group holds two versions of its broker when it ``changes`` with every registration, else one.
    """
    counters = (1, 2) if changes else (1,)
    groups: list[list[tuple[bytes, int, Mapping[str, object], bytes]]] = []
    for number in range(brokers):
        groups.append([])
        for counter in counters:
            names = [f"Other{number:03d}-{topic:06d}" for topic in range(topics)]
            body = registration_body(names, counter=counter, queues=QUEUES + counter)
            fields = registration_fields(f"others-{number}", f"127.0.0.1:{41_000 + number}", body)
            groups[-1].append((b"", REGISTER_BROKER, fields, body))
    return fixed_frames(path, groups)


def fixed_frames(path: Path, groups: Sequence[Sequence[tuple[bytes, int, Mapping[str, object], bytes]]]) -> Path:
    """Write requests (bytes in front of it, code, header, body) for ``loadgen.c``, those of each group in turn."""
    out = [struct.pack(">II", len(groups), len(groups[0]))]
    for before, code, fields, body in itertools.chain.from_iterable(groups):
        data = before + frame(code, fields, body, opaque=OPAQUE_MARK)
        growing = max(0, data.find(str(GROWING_MARK).encode()))
        out += [struct.pack(">III", len(data), data.index(str(OPAQUE_MARK).encode()), growing), data]
    path.write_bytes(b"".join(out))
    return path


def _registration(name: str, number: int, topics: int) -> tuple[dict[str, object], bytes]:
    body = registration_body([topic_name(i) for i in range(topics)])
    return registration_fields(name, f"127.0.0.1:{40_000 + number}", body), body
