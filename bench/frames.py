"""Request frames of a Java client as templates for ``loadgen.c``, and registrations of brokers that do not exist."""

from __future__ import annotations

import json
import random
import re
import struct
import threading
import zlib
from pathlib import Path

from tests.real.probe import SEND, VERSION, Probe, properties_text, send_fields, text

QUEUES = 8
KEEP_ALIVE_S = 15.0


def route_template(path: Path, topics: int) -> Path:
    """GET_ROUTEINFO_BY_TOPIC for one of ``topics`` topics named by :func:`topic_name`."""
    return _write(path, _header(105, {"topic": "Bench@K@"}), [], topics)


def send_template(path: Path, topic: str, body_bytes: int) -> Path:
    """SEND_MESSAGE_V2 of one message as a 4.9.7 producer sends it, its queue chosen in turn."""
    properties = properties_text(UNIQ_KEY="@U@", WAIT="true", TAGS="TagA")
    fields = {**send_fields(topic, 0, properties), "e": "@Q@", "g": "@T@"}
    return _write(path, _header(SEND, fields), [_noise(body_bytes)], 1)


def topic_name(number: int) -> str:
    return f"Bench{number:06d}"


def _header(code: int, fields: dict[str, object]) -> str:
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
        out += b"L" + struct.pack(">I", len(part)) + part
    path.write_bytes(bytes(out + b"E"))
    return path


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size).hex()[:size].encode()


class PretendedBrokers:
    """Brokers that only register: ``width`` of them, each with all ``topics``, kept alive until ``close``."""

    def __init__(self, port: int, *, topics: int, width: int):
        self._jobs = [(Probe(port), *_registration(number, topics)) for number in range(width)]
        self._stop = threading.Event()
        self._register()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _register(self) -> None:
        for probe, fields, body in self._jobs:
            probe.must(103, fields, body)

    def _run(self) -> None:
        while not self._stop.wait(KEEP_ALIVE_S):
            self._register()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for probe, _, _ in self._jobs:
            probe.close()


def _registration(number: int, topics: int) -> tuple[dict[str, object], bytes]:
    config: dict[str, object] = {
        "order": False,
        "perm": 6,
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "topicSysFlag": 0,
    }
    config["topicFilterType"] = "SINGLE_TAG"
    names = [topic_name(i) for i in range(topics)]
    table = {name: {**config, "topicName": name} for name in names}
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1_700_000_000_000}, "topicConfigTable": table}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
    addr = f"127.0.0.1:{40_000 + number}"
    fields: dict[str, object] = {"brokerName": f"bench-{number}", "brokerAddr": addr, "brokerId": 0}
    fields |= {"clusterName": "DefaultCluster", "haServerAddr": addr, "compressed": False}
    return fields | {"bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF}, body
