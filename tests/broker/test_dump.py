"""Consistency dumps: what a dump holds while the broker goes on, and that it leaves the store alone."""

from __future__ import annotations

import json
import os
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from rmq.broker.dump import QUEUES_AT_ONCE, SLICE_BYTES, DumpError
from rmq.broker.topics import topic as topic_of
from rmq.runtime.disk.files import Disk, DiskError
from rmq.sim.disk import SimFileSystem
from rmq.store import layout
from rmq.store.indexfile import IndexFile, IndexHeader
from rmq.wire.record import decode_records, index_key_hash
from tests.broker.harness import OneBrokerCase, pull_ext, send_ext

SEGMENT_BYTES = 65_536


def tree(disk: Disk, folder: str) -> dict[str, bytes]:
    """Return all files below a folder by their relative paths."""
    found = {}
    for name in disk.list_dir(folder):
        path = os.path.join(folder, name)
        if disk.is_dir(path):
            found.update({os.path.join(name, inner): data for inner, data in tree(disk, path).items()})
        else:
            found[name] = disk.read_whole(path)
    return found


class DumpCase(OneBrokerCase):
    values = {
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        "mappedFileSizeConsumeQueue": "2000",
        "maxIndexNum": "300",
    }

    def setUp(self) -> None:
        super().setUp()
        self.disk = self.one.node.disk
        self.sent = 0

    def send(self, count: int, size: int = 1000) -> None:
        for _ in range(count):
            ext = send_ext(queue_id=self.sent % 2, props=f"KEYS\x01k{self.sent}")
            self.assertEqual(self.client.ask(310, ext, b"%d " % self.sent + b"x" * size).code, 0)
            self.sent += 1

    def dump(self) -> tuple[str, dict[str, Any]]:
        folder = self.one.world.settle(self.one.service.dumps.make())
        return folder, json.loads(self.disk.read_whole(f"{folder}/manifest.json"))

    def partial(self, name: str) -> str:
        """Return a path in the dump that is being made."""
        return f"/store-dumps/{self.disk.list_dir('/store-dumps')[0]}/{name}"

    def log_of(self, folder: str, end: int) -> bytes:
        names = self.disk.list_dir(f"{folder}/commitlog")
        return b"".join(self.disk.read_whole(f"{folder}/commitlog/{name}") for name in names)[:end]

    def failure_of(self, deferred: Deferred[str]) -> str:
        found: list[Failure] = []
        deferred.addErrback(found.append)
        self.one.world.run_until(lambda: found, 10)
        found[0].trap(DumpError)
        return str(found[0].value)


class ContentTests(DumpCase):
    def test_log_up_to_the_offset(self) -> None:
        """The dump's log is the store's, byte for byte, up to the offset in the manifest; zeros follow."""
        self.send(150)
        folder, manifest = self.dump()
        end = manifest["maxPhyOffset"]
        self.assertEqual(end, self.one.service.store.end_offset)
        self.assertEqual(self.log_of(folder, end), self.log_of("/store", end))
        last = self.disk.list_dir(f"{folder}/commitlog")[-1]
        data = self.disk.read_whole(f"{folder}/commitlog/{last}")
        self.assertEqual(len(data), SEGMENT_BYTES)
        self.assertEqual(data[end - int(last) :].strip(b"\0"), b"")

    def test_manifest(self) -> None:
        """The manifest says whose dump it is, from when, of what sizes, and lists its files."""
        self.send(10)
        folder, manifest = self.dump()
        expected = {
            "formatVersion": 1,
            "cluster": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "role": "ASYNC_MASTER",
            "minPhyOffset": 0,
            "segmentBytes": SEGMENT_BYTES,
            "cqUnitsPerFile": 100,
            "indexSlots": 1000,
            "indexMax": 300,
            "quiesced": True,
        }
        self.assertEqual({key: manifest[key] for key in expected}, expected)
        files = tree(self.disk, folder)
        del files["manifest.json"]
        self.assertEqual(
            {file["path"]: file["size"] for file in manifest["files"]}, {k: len(v) for k, v in files.items()}
        )
        self.assertLessEqual(manifest["takenAtStart"], manifest["takenAtEnd"])

    def test_queues_name_only_messages_of_the_dump(self) -> None:
        """Each index unit names a record of the dump, and every record has its unit, while sends go on."""
        self.patch(SimFileSystem, "worth_files", 1000)  # each file is synced, which takes its time
        self.send(230, 100)
        making = self.one.service.dumps.make()
        self.send(40, 100)
        folder = self.one.world.settle(making)
        manifest = json.loads(self.disk.read_whole(f"{folder}/manifest.json"))
        self.assertFalse(manifest["quiesced"])
        self.assertLess(manifest["maxPhyOffset"], self.one.service.store.end_offset)
        log = self.log_of(folder, manifest["maxPhyOffset"])
        numbers = []
        for queue_id in (0, 1):
            units = self.log_of_queue(folder, queue_id)
            for number, (phy_offset, size, _) in enumerate(layout.CQ_UNIT.iter_unpack(units)):
                if size:
                    (record,) = decode_records(log[phy_offset : phy_offset + size])
                    self.assertEqual((record.queue_id, record.queue_offset), (queue_id, number))
                    numbers.append(int(record.body.split()[0]))
        self.assertEqual(sorted(numbers), list(range(len(numbers))))
        self.assertGreaterEqual(len(numbers), 230)

    def test_extensions_of_queues(self) -> None:
        """With enableConsumeQueueExt each unit's address leads to its tagsCode in the dump; nothing is behind."""
        self.one.stop()
        self.one.values |= {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "100"}
        self.one.start()
        self.client = self.one.connect()
        self.patch(SimFileSystem, "worth_files", 1000)  # each file is synced, which takes its time
        self.send(30, 100)
        making = self.one.service.dumps.make()
        self.send(10, 100)
        folder = self.one.world.settle(making)
        for queue_id in (0, 1):
            extension = self.log_of_queue(folder, queue_id, layout.CONSUME_QUEUE_EXT_DIR)
            units = [unit for unit in layout.CQ_UNIT.iter_unpack(self.log_of_queue(folder, queue_id)) if unit[1]]
            self.assertGreaterEqual(len(units), 15)
            ends = []
            for _, _, address in units:
                size, tags_code, *_ = layout.CQ_EXT_UNIT.unpack_from(extension, address - layout.CQ_EXT_BASE)
                self.assertEqual((size, tags_code), (layout.CQ_EXT_UNIT.size, 0))
                ends.append(address - layout.CQ_EXT_BASE + size)
            self.assertEqual(extension[ends[-1] :].strip(b"\0"), b"")

    def log_of_queue(self, folder: str, queue_id: int, kind: str = layout.CONSUME_QUEUE_DIR) -> bytes:
        path = f"{folder}/{kind}/T/{queue_id}"
        return b"".join(self.disk.read_whole(f"{path}/{name}") for name in self.disk.list_dir(path))

    def test_index_finds_messages_of_the_dump(self) -> None:
        """The dump's index leads from every key to its message and to nothing behind the dump's end."""
        self.send(40)
        making = self.one.service.dumps.make()
        self.send(40)
        self.one.service.store.write_buffers()
        folder = self.one.world.settle(making)
        end = json.loads(self.disk.read_whole(f"{folder}/manifest.json"))["maxPhyOffset"]
        (name,) = self.disk.list_dir(f"{folder}/index")
        file = self.disk.open(f"{folder}/index/{name}")
        index = IndexFile(name, 1000, 300, IndexHeader.unpack(file.read_at(0, layout.INDEX_HEADER_BYTES)))
        for number in range(40):
            (phy_offset,) = index.find(file, index_key_hash("T", f"k{number}"), 0, 1 << 60, 10)
            self.assertLess(phy_offset, end)
        slots = file.read_at(layout.INDEX_HEADER_BYTES, 1000 * layout.INDEX_SLOT_BYTES)
        highest = max(slot for (slot,) in layout.INDEX_SLOT.iter_unpack(slots))
        self.assertLess(highest, index.header.index_count)
        file.close()

    def test_offsets_are_those_of_the_moment(self) -> None:
        """Consumer offsets that were only in memory are in the dump."""
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "5"})
        folder, _ = self.dump()
        offsets = json.loads(self.disk.read_whole(f"{folder}/config/consumerOffset.json"))
        self.assertEqual(offsets["offsetTable"], {"T@CG": {"0": 5}})

    def test_topics_are_those_of_the_moment(self) -> None:
        """A topic whose file is still being written is in the dump, which may have messages of it."""
        topics, offsets = self.one.service.topics, self.one.service.offsets
        persist = offsets.persist

        async def meanwhile() -> None:
            topics.put(topic_of("Late", 1))
            await persist()

        self.patch(offsets, "persist", meanwhile)
        folder, manifest = self.dump()
        data = self.disk.read_whole(f"{folder}/config/topics.json")
        self.assertIn("Late", json.loads(data)["topicConfigTable"])
        self.assertIn({"path": "config/topics.json", "size": len(data)}, manifest["files"])

    def test_a_broker_runs_on_a_dump(self) -> None:
        """A dump is a store: a broker that opens a copy of it serves the same messages."""
        self.send(100)
        folder, _ = self.dump()
        before = self.client.ask(11, pull_ext(queue_id=1)).body
        self.one.stop()
        for path, data in tree(self.disk, folder).items():
            self.disk.make_dirs(os.path.dirname(f"/copy/{path}"))
            self.disk.write_atomic(f"/copy/{path}", data)
        self.one.values["storePathRootDir"] = "/copy"
        self.one.start()
        self.client = self.one.connect()
        self.assertEqual(self.client.ask(11, pull_ext(queue_id=1)).body, before)
        found = self.client.ask(
            12, {"topic": "T", "key": "k7", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": "9999999999999"}
        )
        self.assertEqual([r.body.split()[0] for r in decode_records(found.body or b"")], [b"7"])
        names = self.disk.list_dir("/copy")
        self.assertNotIn("manifest.json", names, "the audit would read no further than the dump's end")
        self.assertIn("manifest.json.restored", names)

    def test_empty_store(self) -> None:
        """A broker without a message can be dumped, too."""
        _, manifest = self.dump()
        self.assertEqual((manifest["minPhyOffset"], manifest["maxPhyOffset"]), (0, 0))

    def test_many_queues(self) -> None:
        """Queues are looked at in several turns, and have in the dump what they had in the first of them."""
        for topic in range(QUEUES_AT_ONCE):
            for queue_id in range(3):
                self.assertEqual(self.client.ask(310, send_ext(topic=f"T{topic}", queue_id=queue_id), b"x").code, 0)
        store = self.one.service.store
        ranges = [(*key, store.min_offset(*key), store.max_offset(*key)) for key in store.queues()]
        self.assertEqual(store.queue_ranges(), ranges)
        making = self.one.service.dumps.make()
        self.one.world.run_until(lambda: self.disk.is_dir(self.partial("consumequeue")), 10, "the first queues")
        for topic in range(QUEUES_AT_ONCE):
            self.client.post(310, send_ext(topic=f"T{topic}", queue_id=0), b"x")
        folder = self.one.world.settle(making)
        for topic in range(QUEUES_AT_ONCE):
            for queue_id in range(3):
                units = self.disk.read_whole(f"{folder}/consumequeue/T{topic}/{queue_id}/{0:020d}")
                self.assertEqual(sum(size > 0 for _, size, _ in layout.CQ_UNIT.iter_unpack(units)), 1)

    def test_a_queue_that_was_deleted_meanwhile(self) -> None:
        """A dump without a queue that its records name is none."""
        for topic in range(QUEUES_AT_ONCE + 1):
            self.assertEqual(self.client.ask(310, send_ext(topic=f"T{topic:03}"), b"x").code, 0)
        making = self.one.service.dumps.make()
        self.one.world.run_until(lambda: self.disk.is_dir(self.partial("consumequeue")), 10, "the first queues")
        last = self.one.service.store.queues()[-1]
        self.disk.delete_tree(f"/store/consumequeue/{last[0]}")
        self.assertEqual(
            self.failure_of(making), f"queue {last[1]} of {last[0]} was deleted, or a part of it, during the dump"
        )
        self.assertEqual(self.disk.list_dir("/store-dumps"), [])


class HarmlessTests(DumpCase):
    def test_store_is_left_alone(self) -> None:
        """A dump changes nothing in the store, and deleting it neither."""
        self.send(150)
        self.one.world.run_for(70)
        before = tree(self.disk, "/store")
        folder, _ = self.dump()
        self.assertEqual(tree(self.disk, "/store"), before)
        self.disk.delete_tree(folder)
        self.assertEqual(tree(self.disk, "/store"), before)

    def test_full_files_are_linked(self) -> None:
        """Full segments take no room: they are the store's files under a second name."""
        self.send(150)
        folder, _ = self.dump()
        first = self.disk.list_dir("/store/commitlog")[0]
        self.disk.flip_bit(f"{folder}/commitlog/{first}", 5)
        self.assertEqual(
            self.disk.read_whole(f"{folder}/commitlog/{first}"), self.disk.read_whole(f"/store/commitlog/{first}")
        )
        self.disk.flip_bit(f"{folder}/commitlog/{first}", 5)

    def test_expired_files_stay_in_the_dump(self) -> None:
        """A segment that the store deletes lives on in the dump."""
        self.send(150)
        folder, _ = self.dump()
        first = self.disk.list_dir("/store/commitlog")[0]
        self.disk.delete(f"/store/commitlog/{first}")
        self.assertEqual(len(self.disk.read_whole(f"{folder}/commitlog/{first}")), SEGMENT_BYTES)
        self.disk.link(f"{folder}/commitlog/{first}", f"/store/commitlog/{first}")

    def test_one_at_a_time(self) -> None:
        """A second dump while one is made is refused; afterwards it is made."""
        self.send(5)
        making = self.one.service.dumps.make()
        self.assertIn("already", self.failure_of(self.one.service.dumps.make()))
        self.one.world.settle(making)
        self.one.world.run_for(1)
        self.dump()

    def test_stop_while_it_is_made(self) -> None:
        """A broker that stops gives the dump up and leaves nothing of it."""
        self.send(5)
        making = self.one.service.dumps.make()
        stopping = self.one.node.stop()
        self.assertEqual(self.failure_of(making), "the broker stops")
        self.one.world.settle(stopping)
        self.assertEqual(self.disk.list_dir("/store-dumps"), [])

    def test_leftovers(self) -> None:
        """What a killed process left of a dump is deleted by the next one."""
        self.send(5)
        self.one.service.dumps.make()
        self.one.node.kill()
        self.assertEqual([name.endswith(".partial") for name in self.disk.list_dir("/store-dumps")], [True])
        self.one.start()
        self.client = self.one.connect()
        folder, _ = self.dump()
        self.assertEqual(self.disk.list_dir("/store-dumps"), [os.path.basename(folder)])

    def test_what_others_make_there_is_left_alone(self) -> None:
        """Brokers may share a folder of dumps, and anything may lie in it: no broker deletes what is not its own."""
        self.disk.make_dirs("/store-dumps")
        stamp = "20260101T000000000"
        own = f"{self.one.service.setup.name}-0-{stamp}.partial"
        others = [f"other-0-{stamp}.partial", f"{self.one.service.setup.name}-1-{stamp}.partial", "photos.partial"]
        for name in (own, *others):
            self.disk.make_dirs(f"/store-dumps/{name}")
        self.disk.create_sparse("/store-dumps/x.partial", 0).close()
        folder, _ = self.dump()
        names = [os.path.basename(folder), *others, "x.partial"]
        self.assertEqual(self.disk.list_dir("/store-dumps"), sorted(names))

    def test_a_part_that_was_deleted_meanwhile(self) -> None:
        """A dump of which somebody has deleted files is none."""
        self.send(150)
        making = self.one.service.dumps.make()
        (partial,) = self.disk.list_dir("/store-dumps")
        self.disk.delete(f"/store-dumps/{partial}/commitlog/{0:020d}")
        self.assertIn(f"commitlog/{0:020d} is missing", self.failure_of(making))
        self.assertEqual(self.disk.list_dir("/store-dumps"), [])

    def test_disk_errors(self) -> None:
        """A dump that finds no room fails with the reason, and the broker goes on."""
        self.send(5)
        self.one.world.run_for(3)
        self.disk.capacity_bytes = 1
        text = self.failure_of(self.one.service.dumps.make())
        self.assertIn("/store-dumps", text)
        self.disk.capacity_bytes = 1 << 40
        self.assertEqual(self.disk.list_dir("/store-dumps"), [])
        self.one.world.run_for(1)
        self.dump()

    def test_slices(self) -> None:
        """Between two slices of a MiB others get their turn."""
        self.assertLessEqual(SLICE_BYTES, 1 << 20)
        self.send(60)
        turns = []

        def note() -> None:
            turns.append(making.called)
            if len(turns) < 5:
                self.one.service.clock.callLater(0, note)

        making = self.one.service.dumps.make()
        self.one.service.clock.callLater(0, note)
        self.one.world.settle(making)
        self.assertEqual(turns, [False] * 5)

    def test_errors_of_the_store_s_files_are_told(self) -> None:
        """A file that cannot be linked is named."""
        self.send(150)
        first = self.disk.list_dir("/store/commitlog")[0]
        link = self.disk.link

        def broken(src: str, dst: str) -> None:
            raise DiskError(src, "Input/output error")

        self.patch(self.disk, "link", broken)
        self.assertIn(first, self.failure_of(self.one.service.dumps.make()))
        self.patch(self.disk, "link", link)
