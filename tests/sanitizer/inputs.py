"""
Generated inputs for the compiled modules; run by ``python -m tests.sanitizer`` with modules that watch their memory.

Each kind begins with something sound and changes it: bytes flipped, cut out, repeated, lengths set to extremes. What a
module answers does not matter here (twin tests compare it), only that it reads and writes where it may.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import sys
import traceback
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from rmq.broker.sql92 import compile_sql92
from rmq.store.indexfile import IndexHeader
from rmq.store.layout import CQ_UNIT
from rmq.wire.command import RemotingCommand, encode_command
from rmq.wire.compiled import load
from rmq.wire.record import BatchEntry, encode_batch, encode_record
from tests.otherclients import LONG_NAMES, as_others_write

EXTREMES = (
    0,
    1,
    4,
    7,
    8,
    91,
    92,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    1 << 24,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
ODD = ("0", "4", "8", "12", "-1", "99999999999", "x", "")
#: the topics of half messages and of op messages
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HOST = (b"\x7f\x00\x00\x01", 10911)
V6 = (bytes(16), 10911)
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "CLUSTER", "own", "")
TEXTS = ("a", "true", "x y  z", "7F00000100002A9F", "", '"', "\\", "\\u0041", "ü", "\x01", "\x02", "k" * 300)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return ``data`` with up to four changes, often with none."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 4))):
        if not changed:
            break
        # often near the end, behind which nothing may be read
        at = rng.choice((rng.randrange(len(changed)), max(0, len(changed) - rng.randrange(1, 80))))
        how = rng.randrange(8)
        if how == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            changed[at] = rng.choice((0, 1, 2, 0x22, 0x5C, 0x7D, 0x80, 0xFF))
        elif how == 2:
            del changed[at : at + rng.choice((1, 2, 8, 100))]
        elif how == 3:
            changed[at:at] = changed[at : at + rng.choice((1, 8, 40))]
        elif how == 4:
            changed[at : at + 4] = struct.pack(">I", rng.choice(EXTREMES))
        else:
            del changed[at:]
    return bytes(changed)


def properties(rng: random.Random, *, plain: bool) -> str:
    """Return properties, if ``plain`` such as Java clients send."""
    if plain:
        names = rng.sample(("TAGS", "KEYS", "UNIQ_KEY", "own", "标"), k=rng.randrange(5))
        pairs = [name + "\x01" + rng.choice(("a", "x y z", "k" * 300, "ä标\uffff 😀")) for name in names]
        return "\x02".join(pairs + rng.choice(([], [], [], ["TRAN_MSG\x01true"], ["DELAY\x01" + rng.choice("0129")])))
    return "\x02".join(f"{rng.choice(NAMES)}\x01{rng.choice(TEXTS)}" for _ in range(rng.randrange(6)))


def send(rng: random.Random, *, batch: bool = False, reply: bool = False) -> bytes:
    """Return the frame of a send, or of a reply to a client's request."""
    plain = rng.random() < 0.8
    ext = {"a": "PG", "b": rng.choice(("T", "T", "T", "U", "t" * 127)), "c": "TBW102", "d": "4"}
    ext |= {"e": rng.choice("0000123"), "f": rng.choice("00004")}
    if not plain:
        ext |= {"e": rng.choice(ODD), "f": rng.choice(ODD)}
    ext |= {
        "g": str(rng.randrange(1 << 41)),
        "h": "0",
        "i": properties(rng, plain=plain),
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
    }
    sizes = (0, 1, 7, 8, 9, 100, 511, 513, 3000)
    body = bytes(rng.choice(sizes))
    if batch:
        entries = [
            BatchEntry(bytes(rng.choice(sizes[:6])), properties(rng, plain=plain)) for _ in range(rng.randrange(6))
        ]
        body = damaged(rng, encode_batch(entries))
    code = 325 if reply else 310
    if reply:
        more = (*["REPLY_TO_CLIENT\x01me"] * 6, "", "REPLY_TO_CLIENT\x01", "PUSH_REPLY_TIME\x015")
        ext["i"] += "\x02" + rng.choice(more) + rng.choice(("", "", "\x02", "\x02\x02"))
    if rng.random() < 0.2:
        code, ext = 324 if reply else 10, {LONG_NAMES[letter]: value for letter, value in ext.items()}
    flag, opaque = rng.choice((0, 0, 0, 0, 2)), rng.randrange(1 << 31)
    command = RemotingCommand(code, flag=flag, opaque=opaque, ext_fields=ext, body=body or None)
    return as_others_write(rng, command)


def record(rng: random.Random, at: int, topic: bytes = b"", text: bytes = b"") -> bytes:
    """Return a record that lies at ``at``, of any topic and with any properties where they are not given."""
    return encode_record(
        topic=topic or rng.choice((b"T", b"T", b"U", b"t" * 127)),
        queue_id=0 if topic else rng.choice((0, 1, 3, 7)),
        body=bytes(rng.choice((0, 1, 8, 100, 600))),
        properties=text or properties(rng, plain=rng.random() < 0.8).encode(),
        born_timestamp=1,
        store_timestamp=rng.choice((0, 1 << 40)),
        born_host=rng.choice((HOST, HOST, V6)),
        store_host=rng.choice((HOST, HOST, V6)),
        queue_offset=rng.choice((0, 0, 1, 1 << 62)),
        phy_offset=at,
        sys_flag=rng.choice((0, 0, 0, 4, 8)),
    )


def log(rng: random.Random, base: int) -> bytes:
    """Return records one behind the other, the first at ``base``."""
    data = b""
    for _ in range(rng.randrange(1, 6)):
        data += record(rng, base + len(data))
    return data


def sends_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.store._record")
    around = ('{"code":0,"extFields":{"msgId":"', '","queueId":"', '","queueOffset":"', '"},"opaque":', "}")
    kinds = (
        (310, False),
        (310, False),
        (310, True),
        (10, False),
        (320, False),
        (320, True),
        (324, False),
        (325, False),
    )
    batches = [module.SendBatch(code, 2000, "DefaultCluster", around, waits, waits) for code, waits in kinds]
    waiting = [module.SendTopic(name, [SimpleNamespace(next=0, end=0), None]) for name in (HALF, "S")]
    batches[0].park(*waiting, (1000, 5000, 10_000))

    def once(rng: random.Random) -> None:
        queues = [SimpleNamespace(next=0, end=0) for _ in range(3)]
        known = {name: module.SendTopic(name.decode(), [*queues, None]) for name in (b"T", b"t" * 127)}
        batch = rng.choice(batches)
        frames = [send(rng, batch=batch.is_batch, reply=batch.is_reply) for _ in range(rng.choice((1, 1, 2, 9)))]
        data = damaged(rng, b"".join(frames))
        if batch.is_reply:
            module.read_reply(data, rng.choice((0, 0, 0, min(len(data), 9))), rng.choice((324, 325, 325)), 1 << 40)
        host = rng.choice((*[HOST] * 9, V6))
        together = rng.random() < 0.3
        if together:
            batch.begin()
            others = (damaged(rng, send(rng, batch=batch.is_batch)) for _ in range(rng.choice((0, 1, 5))))
            pieces = [data, *others]
            found = [batch.add(piece, known, host) for piece in pieces]
        else:
            found = [batch.parse(data, rng.choice((0, 0, 0, min(len(data), 9))), known, host)]
        if any(found):
            room = rng.choice((*[1 << 30] * 8, 300, 0))
            if batch.encode(rng.randrange(1 << 40), room, 1 << 41, HOST) is not None:
                for one_way in (False, True):
                    batch.counts(one_way)
                if together:
                    assert len(batch.answers_of_each([])) <= sum(found)
                else:
                    batch.answers(rng.choice(([], None)))

    return once


def walk_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.store._record")

    def once(rng: random.Random) -> None:
        base = rng.choice((0, 1 << 40))
        queue = SimpleNamespace(ext=None, end=rng.choice((0, 1)), max_phy=-1)
        module.walk_records(
            damaged(rng, log(rng, base)), 0, base, rng.random() < 0.5, rng.random() < 0.8, lambda *_: queue
        )

    return once


def waiting_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.store._record")
    around = b'{"opaque":', b"}"
    batches = [
        module.MoveBatch(HALF, b"WAIT\x01true\x02TAGS\x01d", around, HOST, lambda queues: queues - 1, waits, waits)
        for waits in (False, True)
    ]

    def queue(topic: str) -> SimpleNamespace:
        return SimpleNamespace(topic_field=bytes((len(topic),)) + topic.encode(), queue_id=0, next=0, end=0)

    def request(rng: random.Random, code: int, fields: dict[str, str]) -> bytes:
        for name in rng.sample(sorted(fields), k=rng.choice((0, 0, 0, 1))):
            fields[name] = rng.choice(ODD)
        flag = rng.choice((0, 0, 2))
        return encode_command(RemotingCommand(code, flag=flag, opaque=rng.randrange(1 << 31), ext_fields=fields))

    def once(rng: random.Random) -> None:
        batch = rng.choice(batches)
        module.read_frame(damaged(rng, send(rng)), rng.choice((0, 0, 0, 9)), 310)
        at = rng.choice((0, 1 << 40))
        ops, schedule = queue(OP), module.SendTopic("S", [None, *(queue("S") for _ in range(17))])
        known = {b"T": module.SendTopic("T", [None, queue("T"), queue("T")])}
        batch.begin()
        added = 0
        for _ in range(rng.choice((1, 1, 3, 80))):
            half = rng.choice((b"", b"PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x01")) + rng.choice(
                (b"0", b"1", b"2")
            )
            half += rng.choice(
                (b"", b"\x02KEYS\x01" + b"k " * rng.randrange(40), b"\x02a\x01" + b"x" * 32_700, b"\x02")
            )
            data = damaged(rng, record(rng, at, HALF.encode() if rng.random() < 0.9 else b"T", half))
            ends = {"producerGroup": "PG", "msgId": "0", "commitOrRollback": rng.choice(("8", "12", "0"))}
            ends |= {"tranStateTableOffset": "0", "commitLogOffset": str(at), "fromTransactionCheck": "false"}
            where = rng.choice((0, 0, 0, 9))
            if batch.end(damaged(rng, request(rng, 37, ends)), where, lambda offset, data=data: data, known, ops):
                added += 1
                if rng.random() < 0.2:
                    batch.drop()
                    added -= 1
            backs = {"group": "g", "unitMode": "false", "maxReconsumeTimes": "16", "delayLevel": rng.choice("019")}
            module.read_send_back(damaged(rng, request(rng, 36, backs | {"offset": str(at)})), where)
            data = damaged(rng, record(rng, at))
            level = rng.choice((0, 1, 18, 1 << 30))
            delays = tuple(range(18))
            if batch.back(
                1, rng.choice((data, None, memoryview(data))), at, 16, level, schedule, delays, b"%RETRY%g", 9
            ):
                added += 1
        room = rng.choice((*[1 << 30] * 8, 900, 0))
        if added and batch.encode(rng.choice((0, 1 << 40)), room, 1 << 41, HOST) is not None:
            assert len(batch.answers([])) <= added
            assert len(batch.counts()) == batch.waiting

    return once


def index_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.store._record")

    def once(rng: random.Random) -> None:
        slots, entries = rng.choice((1, 16, 3000)), rng.choice((2, 20))
        file = SimpleNamespace(
            header=IndexHeader(index_count=rng.choice((1, 1, entries, entries + 5))),
            table=array("i", bytes(4 * slots)),
            buffered=bytearray(),
            dirty_pages=set(),
            slots=slots,
            entries=entries,
        )
        count = rng.randrange(1, 30)
        pending = b"".join(
            struct.pack("=iqq", rng.randrange(1 << 31), rng.randrange(1 << 40), rng.randrange(-1, 1 << 41))
            for _ in range(count)
        )
        module.add_entries(file, pending, rng.randrange(count))
        module.key_hash(rng.choice(TEXTS), rng.choice((*TEXTS, "\ud800😀")))

    return once


def pick_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.store._pick")
    filters: list[tuple[Any, ...]] = [(None, None)]
    for text in (
        "TAGS = 'a' AND NOT (n > 3 OR n IN ('1', '2'))",
        "KEYS CONTAINS 'k' OR n < 1.5 OR n IS NULL",
        "a AND b",
    ):
        compiled = compile_sql92(text)
        filters += [(compiled, compiled.program), (compiled, None)]

    def once(rng: random.Random) -> None:
        window, units, first = b"", b"", rng.choice((0, 1 << 40))
        for _ in range(rng.randrange(1, 6)):
            one = record(rng, first + len(window))
            size = rng.choice((len(one), len(one), len(one), *EXTREMES)) & 0x7FFFFFFF
            units += CQ_UNIT.pack(first + len(window), size, rng.choice((0, 97, -5, -(1 << 62))))
            window += one
        limits = (rng.choice((0, 1, 32)), rng.choice((0, 500, 1 << 18))) * 2
        codes = rng.choice((None, [97], [97, 0], list(range(70))))
        head = rng.choice((None, (0, 1, rng.randrange(1 << 31), b"x" * rng.randrange(99))))
        module.pick(
            damaged(rng, units), rng.choice((0, 0, 0, 20, 7)), rng.choice((0, 1, 9)), damaged(rng, window),
            rng.choice((0, 1 << 40)), 0, 1 << 41, first + len(window), 1 << 20, limits,
            rng.choice((0, 1, 32, 1024, 2000)), codes, *rng.choice(filters), head,
        )  # fmt: skip
        numbers = [rng.choice(("0", "7", "-1", "9" * 18, "9" * 19, "", "x")) for _ in range(3)]
        ext = {
            "queueOffset": numbers[0],
            "commitOffset": numbers[1],
            "queueId": numbers[2],
            "topic": rng.choice(("T", '"opaque":1')),
        }
        frame = as_others_write(rng, RemotingCommand(11, opaque=rng.randrange(1 << 31), ext_fields=ext))
        names = (b"queueOffset", b"commitOffset", b"queueId")[: rng.randrange(4)]
        frame = damaged(rng, frame)
        module.split(frame, rng.choice((0, 0, 0, 9)), names)
        found = rng.choice((None, ("what", True), ("what", False)))
        answer = rng.choice((None, b"", b"answer"))
        name, most = rng.choice((None, *names)), rng.choice((1, 1000))
        around = b"x", b"y"
        text = rng.choice((None, b"topic"))
        module.answer_known(2 * frame, 0, name, text, {}, lambda *_: found, lambda *_: answer, around, [], most)
        module.is_of(damaged(rng, record(rng, 0)), rng.choice("Tt") * rng.choice((1, 127)), rng.choice(TEXTS))
        module.first_since(damaged(rng, units), damaged(rng, window), first, rng.choice((0, 1, 1 << 40, 1 << 62)))
        module.pull_head(*(rng.choice((0, -(1 << 63), (1 << 63) - 1)) for _ in range(6)), b"x" * rng.randrange(99), 5)
        opaque = rng.choice((0, -(1 << 63), (1 << 63) - 1))
        with contextlib.suppress(ValueError):
            module.fill((b"x" * rng.randrange(400), b"", b"y" * rng.randrange(9)), b"z" * rng.randrange(99), 7, opaque)

    return once


def fast_path_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.remoting._fastpath")

    def lane(data: bytes, position: int, answers: list[bytes], channel: object) -> tuple[int, int]:
        answers.append(data[:8])
        return len(data) // 2, 1

    lane.code = 310  # type: ignore[attr-defined]
    stats = SimpleNamespace(add_source=lambda source: None)
    responders = SimpleNamespace(chunk_lanes={310: lane}, stats=stats)
    channel = SimpleNamespace(write=lambda data: None, last_active_s=0.0)
    protocol = SimpleNamespace(
        channel=channel, transport=None, at_frame_start=True, receive=lambda data, with_lanes: None
    )
    path = module.FastPath(protocol, module.Lanes(responders), lambda: 1.0)

    def once(rng: random.Random) -> None:
        path(damaged(rng, send(rng)))
        names = [
            rng.choice(("b", "topic", "group", "x")) + "y" * number for number in range(rng.choice((0, 3, 62, 70)))
        ]
        fields = {name: rng.choice(TEXTS) if rng.random() < 0.1 else "a" for name in ("AccessKey", "Signature", *names)}
        frame = damaged(rng, encode_command(RemotingCommand(310, ext_fields=fields, body=rng.choice((None, b"body")))))
        module.read_signed(frame, rng.choice((0, 0, 0, 9)), 310, (b"b", b"topic", b"group")[: rng.randrange(4)])

    return once


def questions_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq.namesrv._lanes")

    def once(rng: random.Random) -> None:
        frame = encode_command(RemotingCommand(105, opaque=rng.randrange(1 << 31), ext_fields={"topic": "T"}))
        before, _, rest = frame.partition(b'"opaque":')
        after = rest[rest.index(b",") :]
        settings, routes = SimpleNamespace(namesrv=1), SimpleNamespace(version=1)
        known = module.KnownQuestions(
            {before + b'"opaque":' + after: "q"},
            {"q": (b"head", b"rest" * 9)},
            routes,
            settings,
            300,
            b"2147483647",
            1 << 20,
        )
        known.fresh(1, 1)
        known.whole(damaged(rng, frame * rng.choice((1, 1, 3, 70))))

    return once


def kernel_kind() -> Callable[[random.Random], object]:
    module: Any = load("rmq_audit.worker._kernel")

    def once(rng: random.Random) -> None:
        data = damaged(rng, log(rng, 0)) or b"\0"
        module.crc32(data)
        end = rng.choice((len(data), len(data), 5, 1 << 30))
        module.extract(data, 0, rng.choice((end, 1)), end, 91, 1 << 24, *(rng.random() < 0.5 for _ in range(3)))
        places = np.array([rng.choice((0, 1, len(data) - 1, len(data), -1, 1 << 40)) for _ in range(3)], np.int64)
        lengths = np.array([rng.choice((0, 1, 5, len(data), -1, 1 << 62)) for _ in range(3)], np.int64)
        for call in (
            lambda: module.gather(data, places),
            lambda: module.queue_keys(data, places, lengths, lengths),
            lambda: module.values_of(data, places, lengths, b"TAGS\x01"),
            lambda: module.java_hashes(data, places, lengths),
            lambda: module.sorted_units(lengths, places, places, places, lengths, 0, rng.choice((None, lengths))),
        ):
            try:
                call()
            except (IndexError, ValueError):
                pass  # a place outside of the data is refused

    return once


#: kind, and its share of the inputs
KINDS = {
    "sends": (sends_kind, 0.25),
    "messages that wait": (waiting_kind, 0.1),
    "records of the log": (walk_kind, 0.15),
    "index entries": (index_kind, 0.05),
    "pulls": (pick_kind, 0.15),
    "chunks": (fast_path_kind, 0.1),
    "look-ups": (questions_kind, 0.1),
    "audit": (kernel_kind, 0.1),
}


def main(inputs: int, seed: int, folder: str) -> None:
    """Feed all kinds; a sanitizer ends the process where something is wrong, and so does an exception nobody sees."""
    sys.unraisablehook = _ends
    for name, (make, share) in KINDS.items():
        once = make()
        count = max(1, int(inputs * share))
        for number in range(count):
            once(random.Random(f"{seed}/{name}/{number}"))
        print(f"{name}: {count} inputs", flush=True)
    for name, module in sys.modules.items():
        if name.startswith(("rmq.", "rmq_audit.")) and (getattr(module, "__file__", None) or "").endswith(".so"):
            assert str(module.__file__).startswith(folder), f"{name} has no sanitizer: {module.__file__}"


def _ends(unraisable: sys.UnraisableHookArgs) -> None:
    traceback.print_exception(unraisable.exc_value)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
