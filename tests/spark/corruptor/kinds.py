"""Whose stores are damaged: Apache's, ours, and made ones; all with the legal traps and with legal differences."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from rmq.store import layout
from rmq.wire import record
from tests.broker.harness import OneBroker, RawClient, send_ext
from tests.goldens import unpack_store
from tests.spark.corruptor import traps
from tests.spark.corruptor.specimen import Specimen
from tests.spark.synthetic import make_store

_SEGMENT_BYTES = 65_536
_MESSAGES = 440
_GROUP = "traps-readers"


def _from_archive(name: str) -> Callable[[Path, int], None]:
    def unpack(folder: Path, seed: int) -> None:
        unpack_store(name, folder)

    return unpack


def _made(folder: Path, seed: int) -> None:
    """Write a made pair; these stores also have IPv6 hosts and records for long topics."""
    make_store(seed).write(folder / "master")
    shutil.copytree(folder / "master", folder / "slave")


class _Ours:
    """Our broker on a simulated machine, as a target of traps."""

    segment_bytes = _SEGMENT_BYTES
    takes_empty_bodies = True
    takes_transactions = False

    def __init__(self, seed: int) -> None:
        sizes = {"mappedFileSizeCommitLog": str(_SEGMENT_BYTES), "mappedFileSizeConsumeQueue": "2000"}
        self.one = OneBroker({**sizes, "maxHashSlotNum": "128", "maxIndexNum": "400"}, seed=seed)
        self.client: RawClient = self.one.connect()

    def send(self, topic: str, queue_id: int, body: bytes, properties: dict[str, str]) -> None:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        answer = self.client.ask(310, send_ext(topic, queue_id=queue_id, props=text), body)
        assert answer.code == 0, answer

    def end(self) -> int:
        return self.one.service.store.end_offset

    def read(self, begin: int, end: int) -> bytes:
        start = begin - begin % _SEGMENT_BYTES
        if end > start + _SEGMENT_BYTES:
            return b""
        data = self.one.node.disk.read_whole(f"/store/commitlog/{layout.file_name(start)}")
        return data[begin - start : end - start]

    def commit(self, topic: str, queue_id: int) -> None:
        end = self.one.service.store.max_offset(topic, queue_id)
        ext = {"consumerGroup": _GROUP, "topic": topic, "queueId": str(queue_id), "commitOffset": str(end)}
        assert self.client.ask(15, ext).code == 0

    def export(self, folder: Path) -> None:
        """Stop the broker and write its store to a real directory."""
        self.one.end()
        self._export("/store", folder)

    def _export(self, source: str, target: Path) -> None:
        disk = self.one.node.disk
        target.mkdir(parents=True)
        for name in disk.list_dir(source):
            path = f"{source}/{name}"
            if disk.is_dir(path):
                self._export(path, target / name)
            else:
                (target / name).write_bytes(disk.read_whole(path))


def _ours(folder: Path, seed: int) -> None:
    """Have our broker store the traps; its slave is a copy."""
    broker = _Ours(seed)
    forged = traps.fill(broker, random.Random(seed), _MESSAGES)
    assert forged > 3
    for topic, queues in traps.TOPICS.items():
        for queue_id in range(queues):
            broker.commit(topic, queue_id)
    broker.export(folder / "master")
    shutil.copytree(folder / "master", folder / "slave")


KINDS: dict[str, Callable[[Path, int], None]] = {
    "apache-4.9.7": _from_archive("pair-traps-4.9.7"),
    "apache-5.3.3": _from_archive("pair-traps-5.3.3"),
    "ours": _ours,
    "made": _made,
}

#: what may differ between the sides of a pair although nothing is wrong
LEGAL = ("as written", "slave joined late", "retention on the master", "junk after BLANKs, files made ahead")


def legal_of(seed: int) -> str:
    return LEGAL[seed % len(LEGAL)]


def prepare(kind: str, seed: int, folder: Path) -> None:
    """Write a clean pair of a kind to ``folder``/master and /slave, with the legal difference of its seed."""
    KINDS[kind](folder, seed)
    master, slave = folder / "master", folder / "slave"
    match legal_of(seed):
        case "slave joined late":
            _forget_first_segment(slave, queues=False)
        case "retention on the master":
            _forget_first_segment(master, queues=True)
        case "junk after BLANKs, files made ahead":
            _junk_behind_blanks(Specimen(master, slave), random.Random(seed))


def _forget_first_segment(root: Path, *, queues: bool) -> None:
    """Delete the first segment; and the queue files that have no unit of a later one, as retention does."""
    paths = sorted((root / layout.COMMIT_LOG_DIR).iterdir())
    os.remove(paths[0])
    begin = int(paths[1].name)
    for path in sorted((root / layout.CONSUME_QUEUE_DIR).glob("*/*/*")) if queues else ():
        units = list(layout.CQ_UNIT.iter_unpack(path.read_bytes()))
        if all(phy < begin and size for phy, size, _ in units):
            os.remove(path)


def _junk_behind_blanks(pair: Specimen, chance: random.Random) -> None:
    """What follows the 8 bytes of a BLANK may be anything; a broker makes its next segment ahead."""
    for start in pair.segments()[:-1]:
        begin = pair.blank_behind(start) + record.BLANK_BYTES
        if begin < start + pair.segment_bytes:
            pair.write(pair.slave, begin, chance.randbytes(start + pair.segment_bytes - begin))
    following = pair.segment(pair.master, pair.segments()[-1] + pair.segment_bytes)
    if not following.exists():
        following.write_bytes(bytes(pair.segment_bytes))
