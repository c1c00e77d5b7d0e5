"""What the real tests rely on in themselves: their readers and comparisons find planted damage."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.peers import until, write_properties
from tests.real.probe import (
    BLANK_MAGIC,
    RECORD_MAGIC,
    Record,
    batch_body,
    body_crc,
    decode_record,
    decode_records,
    fastjson,
    frame,
)
from tests.real.storefiles import first_difference, flip_body_byte, records, whole_records
from tests.real.test_kill import Acknowledged, assert_nothing_lost
from tests.real.test_ordered_group import TENURES, check_order

SEGMENT = 4096
ROOT = Path(__file__).resolve().parent.parent.parent


def test_sigterm_ends_the_servers(tmp_path: Path) -> None:
    """Who runs a test or a benchmark and ends it with SIGTERM has no servers left over."""
    program = (
        "import sys, pathlib; from tests.real.peers import Site\n"
        f"site = Site(pathlib.Path({str(tmp_path)!r}))\n"
        "try:\n"
        "    print(site.namesrv().pid, flush=True)\n"
        "    sys.stdin.read()\n"
        "finally:\n"
        "    site.close()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        os.kill(pid, 0)  # it is there
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def stored(number: int, phy_offset: int, body: bytes = b"hello") -> bytes:
    """Encode a record of topic T, queue 0."""
    properties = f"KEYS\x01k{number}".encode()
    size = 91 + len(body) + 1 + len(properties)
    head = struct.pack(">IIIIIqqI", size, RECORD_MAGIC, body_crc(body), 0, 0, number, phy_offset, 0)
    hosts = struct.pack(">q4siq4siiq", 1, b"\x7f\0\0\1", 10911, 2, b"\x7f\0\0\1", 10911, 0, 0)
    tail = struct.pack(">i", len(body)) + body + b"\x01T" + struct.pack(">H", len(properties)) + properties
    return head + hosts + tail


def commitlog(folder: Path, count: int) -> Path:
    """Write ``count`` records over segments of 4 KiB."""
    folder.mkdir(parents=True)
    whole, at, pieces = bytearray(), 0, []
    for number in range(count):
        record = stored(number, at)
        room = SEGMENT - at % SEGMENT
        if len(record) + 8 > room:
            pieces.append(struct.pack(">II", room, BLANK_MAGIC).ljust(room, b"\0"))
            at += room
            record = stored(number, at)
        pieces.append(record)
        at += len(record)
    whole += b"".join(pieces)
    whole += bytes(-len(whole) % SEGMENT)
    for start in range(0, len(whole), SEGMENT):
        (folder / f"{start:020d}").write_bytes(whole[start : start + SEGMENT])
    return folder


def test_records_are_read_over_segments(tmp_path: Path) -> None:
    """Every record is found, over fillers and up to the zeros at the end."""
    found = list(records(commitlog(tmp_path / "log", 100)))
    assert [record.key for record in found] == [f"k{number}" for number in range(100)]
    assert all(body_crc(record.body) == record.body_crc for record in found)


def test_a_broken_chain_is_told(tmp_path: Path) -> None:
    """Garbage between records, and a record that lies elsewhere than it says, are errors."""
    log = commitlog(tmp_path / "log", 10)
    first = log / f"{0:020d}"
    data = first.read_bytes()
    size = len(stored(0, 0))
    first.write_bytes(data[:size] + b"garbage!" + data[size + 8 :])
    with pytest.raises(ValueError, match=f"at {size}"):
        list(records(log))
    first.write_bytes(stored(0, 4096) + data[size:])
    with pytest.raises(ValueError, match="says it lies at 4096"):
        list(records(log))


@pytest.mark.parametrize("count", [10, 100], ids=["one-segment", "segments"])
def test_a_log_may_end_within_a_record_when_its_writer_was_killed(tmp_path: Path, count: int) -> None:
    """Wherever the last record is torn, all in front of it are read; one torn in front of others is an error."""
    log = commitlog(tmp_path / "log", count)
    keys = [f"k{number}" for number in range(count)]
    last = list(whole_records(log))[-1]
    assert [record.key for record in whole_records(log)] == keys
    file = log / f"{last.phy_offset - last.phy_offset % SEGMENT:020d}"
    data, at = file.read_bytes(), last.phy_offset % SEGMENT
    for written in range(len(last.raw)):
        file.write_bytes(data[: at + written].ljust(SEGMENT, b"\0"))
        assert [record.key for record in whole_records(log)] == keys[:-1], f"{written} bytes of the last record"
    size = len(stored(0, 0))
    file.write_bytes(data[: 2 * size - 30] + bytes(30) + data[2 * size :])
    with pytest.raises(ValueError, match="its parts have"):
        list(whole_records(log))


def test_a_planted_difference_is_found(tmp_path: Path) -> None:
    """One flipped bit, a missing segment and a shorter segment are each found; behind the end nothing is compared."""
    left, right = commitlog(tmp_path / "left", 100), commitlog(tmp_path / "right", 100)
    last = list(records(left))[-1]
    end = last.phy_offset + len(last.raw)
    assert first_difference(left, right, end) is None
    victim = list(records(right))[60]
    at = flip_body_byte(right, victim)
    assert f"byte {at} is" in (first_difference(left, right, end) or "")
    assert first_difference(left, right, victim.phy_offset) is None
    (right / f"{SEGMENT:020d}").unlink()
    assert "has no segment" in (first_difference(left, right, end) or "")
    (right / f"{0:020d}").write_bytes(bytes(10))
    assert "has 4096 bytes" in (first_difference(left, right, end) or "")


def served(*numbers: int) -> dict[int, list[Record]]:
    return {0: [decode_record(stored(number, 0, b"b%d" % number)) for number in numbers]}


def test_loss_and_double_numbers_are_found() -> None:
    """A lost message, one with another body, a number given twice and a hole in a queue are each found."""
    good = [Acknowledged(f"k{number}", b"b%d" % number, 0, number) for number in range(3)]
    assert_nothing_lost(served(0, 1, 2, 3), good)
    with pytest.raises(AssertionError, match="lost: k2"):
        assert_nothing_lost(served(0, 1), good)
    with pytest.raises(AssertionError, match="0:2 holds k2"):
        assert_nothing_lost(served(0, 1, 2), [*good[:2], Acknowledged("k2", b"other", 0, 2)])
    with pytest.raises(AssertionError, match="given twice"):
        assert_nothing_lost(served(0, 1, 2), [*good, good[0]])
    with pytest.raises(AssertionError, match="not dense"):
        assert_nothing_lost(served(0, 2), good[:1])


def test_waiting_ends_with_a_reason() -> None:
    """A condition that never holds is named together with what it last said."""
    with pytest.raises(AssertionError, match=r"the moon is blue \(last: KeyError"):
        until("the moon is blue", lambda: {"shape": "round"}["colour"], seconds=0.1)


def test_frames_and_bodies_are_what_java_writes(tmp_path: Path) -> None:
    """Lengths add up, bare keys are read, batches have the known bytes, booleans are in lower case."""
    data = frame(105, {"topic": "T", "order": False}, b"body", opaque=3)
    length, header = struct.unpack_from(">II", data)
    assert length + 4 == len(data) and data.endswith(b"body") and b'"order":"false"' in data[8 : 8 + header]
    assert fastjson(b'{"a@b":{0:2,-1:3}}') == {"a@b": {"0": 2, "-1": 3}}
    known = "00000022000000000000000000000000000000026869000a554e49515f4b45590158"
    assert batch_body([("UNIQ_KEY\x01X", b"hi")]).hex() == known
    assert [record.key for record in decode_records(stored(1, 0) + stored(2, 0))] == ["k1", "k2"]
    path = write_properties(tmp_path / "x.conf", {"a": True, "b": tmp_path, "c": 3})
    assert path.read_text() == f"a=true\nb={tmp_path}\nc=3\n"


def test_disorder_of_a_group_is_found() -> None:
    """A member that takes a queue over may begin again; a gap, an older message and two owners at once are found."""

    def check(*got: tuple[str, int]) -> None:
        check_order("queue", [(float(at), member, offset) for at, (member, offset) in enumerate(got)])

    check(("a", 0), ("a", 1), ("b", 1), ("b", 2))
    for disorder in ([("a", 1)], [("a", 0), ("a", 2)], [("a", 0), ("b", 2)]):
        with pytest.raises(AssertionError, match="had not come"):
            check(*disorder)
    with pytest.raises(AssertionError, match="queue: "):
        check(*(("ab"[number % 2], number // 2) for number in range(2 * TENURES)))
