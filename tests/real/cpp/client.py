"""
The C++ client library of RocketMQ behind a pipe, by way of its Python wrapper: client.py NAMESRV [ACCESS_KEY SECRET].

Each line on stdin is a JSON object {"id": n, "do": command, ...}. A command ends with {"event": "done", "id": n} or
{"event": "failed", "id": n, "error": text}. The program ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

import rocketmq.client as library  # type: ignore[import-not-found]
from rocketmq.ffi import MessageModel  # type: ignore[import-not-found]

NAMESRV, ACCOUNT = sys.argv[1], sys.argv[2:]
OUT = os.fdopen(os.dup(1), "w")
LOCK = threading.Lock()
WRITERS: dict[bool, Any] = {}
READERS: dict[str, Any] = {}


def emit(**event: object) -> None:
    with LOCK:
        OUT.write(json.dumps(event) + "\n")
        OUT.flush()


def set_up(one: Any) -> Any:
    one.set_namesrv_addr(NAMESRV)
    if ACCOUNT:
        one.set_session_credentials(*ACCOUNT, "ALIYUN")
    return one


def writer() -> Any:
    if True not in WRITERS:
        WRITERS[True] = set_up(library.Producer(f"cpp-writer-{os.getpid()}", timeout=10_000))
        WRITERS[True].start()
    return WRITERS[True]


def send(c: dict[str, Any]) -> None:
    producer = writer()
    tags = c.get("tags") or [""]
    for number in range(c["count"]):
        key = f"{c['prefix']}-{number}"
        message = library.Message(c["topic"])
        message.set_keys(key)
        message.set_tags(tags[number % len(tags)])
        message.set_body(f"body of {key}")
        for name, value in {"number": str(number), **c.get("properties", {})}.items():
            message.set_property(name, value)
        if c.get("delay"):
            message.set_delay_time_level(c["delay"])
        if c.get("order"):
            result = producer.send_orderly(message, sum(c["prefix"].encode()))
        else:
            result = producer.send_sync(message)
        emit(event="sent", key=key, status=f"SEND_{result.status.name}", msgId=result.msg_id)


def consume(c: dict[str, Any]) -> None:
    model = MessageModel.BROADCASTING if c.get("broadcast") else MessageModel.CLUSTERING
    reader = set_up(library.PushConsumer(c["group"], orderly=c.get("order", False), message_model=model))
    reader.set_instance_name(f"{c['member']}-{os.getpid()}")
    reader.set_thread_count(2)
    seen: Counter[str] = Counter()

    def received(message: Any) -> int:
        key = message.keys.decode()
        seen[key] += 1
        lag = int(time.time() * 1000) - message.born_timestamp
        emit(
            event="got",
            member=c["member"],
            key=key,
            tag=message.tags.decode(),
            queue=message.queue_id,
            body=message.body.decode(),
            attempt=message.reconsume_times,
            lag=lag,
        )
        return 1 if seen[key] <= c.get("refuse", 0) else 0

    library.ffi_check(library.dll.Subscribe(reader._handle, c["topic"].encode(), c.get("expression", "*").encode()))
    reader._register_callback(lambda _, handle: received(library.RecvMessage(handle)))
    reader.start()
    READERS[c["member"]] = reader


def leave(c: dict[str, Any]) -> None:
    READERS.pop(c["member"]).shutdown()


COMMANDS = {"send": send, "consume": consume, "leave": leave}


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        try:
            COMMANDS[command["do"]](command)
            emit(event="done", id=command["id"])
        except Exception as error:  # noqa: BLE001
            emit(event="failed", id=command["id"], error=repr(error))
    for one in [*READERS.values(), *WRITERS.values()]:
        one.shutdown()
    os._exit(0)  # the library's threads outlive it


main()
