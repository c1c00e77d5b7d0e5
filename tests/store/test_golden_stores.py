"""Store directories of real Apache brokers, opened by ours: every message at its number, and sound afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import RealDisk
from rmq.store.check import check_store
from rmq.store.check import main as check_main
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import PutResult
from rmq.store.store import MessageStore
from rmq.wire.record import COMPRESSED, Record, decode_record, split_keys, tags_code
from tests.goldens import STORES, unpack_store
from tests.store.support import RoomyDisk, ThreadClock, all_records, message

#: what the client adds to the properties of what it gets
ADDED = {"MIN_OFFSET", "MAX_OFFSET"}

Queues = dict[tuple[str, int], list[Record]]


def differences(served: list[dict[str, Any]], queues: Queues) -> list[str]:
    """Compare what a Java consumer got of an Apache broker with what ours has, message by message."""
    by_number = {(*key, one.queue_offset): one for key, records in queues.items() for one in records}
    found = []
    for want in served:
        key = (want["topic"], want["queueId"], want["queueOffset"])
        one = by_number.get(key)
        if one is None:
            found.append(f"{key} is missing")
            continue
        got = {
            "phyOffset": one.phy_offset,
            "storeSize": one.size,
            "flag": one.flag,
            "bornTimestamp": one.born_timestamp,
            "storeTimestamp": one.store_timestamp,
            "reconsumeTimes": one.reconsume_times,
            "preparedTransactionOffset": one.prepared_transaction_offset,
        }
        found += [f"{key} {name}: {got[name]} != {want[name]}" for name in got if got[name] != want[name]]
        if one.sys_flag & ~COMPRESSED != want["sysFlag"] & ~COMPRESSED:
            found.append(f"{key} sysFlag: {one.sys_flag} != {want['sysFlag']}")
        if not one.sys_flag & COMPRESSED and hashlib.sha256(one.body).hexdigest() != want["bodySha256"]:
            found.append(f"{key} has another body")
        properties = {name: value for name, value in want["properties"].items() if name not in ADDED}
        if one.property_map != properties:
            found.append(f"{key} properties: {one.property_map} != {properties}")
    return found


class GoldenStoreCase(SynchronousTestCase):
    def unpack(self, name: str) -> dict[str, Any]:
        """Unpack an archive; return its manifest."""
        self.folder = tempfile.mkdtemp(prefix="rmq-golden-")
        self.addCleanup(shutil.rmtree, self.folder)
        unpack_store(name, Path(self.folder))
        manifest: dict[str, Any] = json.loads((Path(self.folder) / "MANIFEST.json").read_text())
        return manifest

    def config(self, manifest: dict[str, Any], role: str) -> StoreConfig:
        keys = manifest["config"][role]
        return StoreConfig(
            store_path_root_dir=f"{self.folder}/{role}",
            broker_role=BrokerRole[keys.get("brokerRole", "ASYNC_MASTER")],
            mapped_file_size_commit_log=keys["mappedFileSizeCommitLog"],
            mapped_file_size_consume_queue=keys["mappedFileSizeConsumeQueue"],
            max_hash_slot_num=keys["maxHashSlotNum"],
            max_index_num=keys["maxIndexNum"],
            file_reserved_time=24 * 365 * 100,
        )

    def open(self, config: StoreConfig) -> MessageStore:
        self.clock = ThreadClock()
        disk = RoomyDisk(self.clock)
        self.addCleanup(disk.close)
        store = MessageStore(disk, self.clock, config, memory_bytes=1 << 30)
        store.load()
        store.start()
        self.addCleanup(lambda: self.clock.settle(store.stop()))
        return store

    def close(self, store: MessageStore) -> None:
        self.clock.settle(store.stop())

    def assert_sound(self, config: StoreConfig) -> None:
        findings = check_store(RealDisk(None), config.store_path_root_dir, config)
        self.assertEqual([one for one in findings if one.severity == "error"], [])

    def assert_keys_found(self, store: MessageStore, queues: Queues) -> None:
        """Every message is found by its unique key and by each of its keys."""
        for records in queues.values():
            for one in records[:: max(1, len(records) // 20)]:
                names = one.property_map
                for key in [names.get("UNIQ_KEY"), *split_keys(names.get("KEYS"))]:
                    if key:
                        found = store.query(one.topic, key, 64, one.store_timestamp, one.store_timestamp).messages
                        self.assertIn(store.message_at(one.phy_offset), found, (one.topic, key))

    def open_and_compare(self, name: str, role: str) -> None:
        """Open a store of an archive twice; compare with what its own broker and client said."""
        manifest = self.unpack(name)
        config = self.config(manifest, role)
        served = manifest["served"]
        told = manifest["broker"].get(role)
        for _ in range(2):
            store = self.open(config)
            queues = all_records(store)
            if told is not None:
                self.assertEqual(store.min_phy_offset, int(told["commitLogMinOffset"]))
                self.assertEqual(store.end_offset, int(told["commitLogMaxOffset"]))
                for queue, (low, high) in told["queues"].items():
                    topic, _, number = queue.rpartition("-")
                    self.assertEqual(
                        [store.min_offset(topic, int(number)), store.max_offset(topic, int(number))], [low, high], queue
                    )
            wanted = [one for one in served if one["phyOffset"] >= store.min_phy_offset]
            self.assertEqual(differences(wanted, queues), [])
            for one in manifest["messages"]:
                offset_id = one.get("offsetMsgId")
                if offset_id:
                    for single in offset_id.split(","):
                        place = int(single[-16:], 16)
                        self.assertTrue(place < store.min_phy_offset or store.message_at(place), single)
            self.assert_keys_found(store, queues)
            self.close(store)
            self.assert_sound(config)


class GoldenStoreTests(GoldenStoreCase):
    def test_cleanly_stopped(self) -> None:
        """Stores of 4.9.7 and 5.3.3, cleanly stopped: all kinds of messages."""
        for name in ("mixed-4.9.7", "mixed-5.3.3"):
            self.open_and_compare(name, "store")

    def test_killed(self) -> None:
        """Stores whose broker was killed under load: nothing acknowledged is missing, the missing units are added."""
        for name in ("killed-4.9.7", "killed-5.3.3", "killed-4.9.7-recovered"):
            self.open_and_compare(name, "store")

    def test_killed_serves_what_apache_served_afterwards(self) -> None:
        """After its recovery ours gives every number to the same message as Apache's recovery did."""
        served = self.unpack("killed-4.9.7-recovered")["served"]
        manifest = self.unpack("killed-4.9.7")
        store = self.open(self.config(manifest, "store"))
        self.assertEqual(differences(served, all_records(store)), [])
        self.assertEqual(store.end_offset, 388090)

    def test_pairs(self) -> None:
        """Master and slave of each pair at rest."""
        for name in ("pair-equal-4.9.7", "pair-equal-5.3.3", "pair-equal-4.9.7-slave-5.3.3", "pair-late-4.9.7"):
            for role in ("master", "slave"):
                self.open_and_compare(name, role)

    def test_extended_queues(self) -> None:
        """Units that point to extension files are understood: tags filter as if they were plain."""
        self.open_and_compare("cqext-4.9.7", "store")
        manifest = self.unpack("cqext-4.9.7")
        store = self.open(self.config(manifest, "store"))
        for (topic, queue_id), records in all_records(store).items():
            if topic == "SCHEDULE_TOPIC_XXXX":
                continue
            for tags in ("TagA", "TagB", None):
                wanted = tags_code(tags)
                found = store.get(topic, queue_id, 0, 32, wanted.__eq__).messages
                having = [one.phy_offset for one in records if one.property_map.get("TAGS") == tags]
                self.assertEqual([decode_record(data).phy_offset for data in found], having[:32], (topic, tags))

    def test_extended_queues_go_on(self) -> None:
        """With enableConsumeQueueExt Apache's extension files are read, and new units follow behind its own."""
        manifest = self.unpack("cqext-4.9.7")
        keys = manifest["config"]["store"]
        config = attrs.evolve(
            self.config(manifest, "store"),
            enable_consume_queue_ext=True,
            mapped_file_size_consume_queue_ext=keys["mappedFileSizeConsumeQueueExt"],
        )
        for extra in (0, 1, 2):
            store = self.open(config)
            numbers = [store.max_offset("Mixed", queue_id) for queue_id in range(4)]
            found = store.get("Mixed", 0, 0, 32, tags_code("TagA").__eq__).messages
            self.assertTrue(found)
            self.assertEqual({decode_record(data).property_map.get("TAGS") for data in found}, {"TagA"})
            result = store.put(message(extra, topic="Mixed", queue_id=0))
            assert isinstance(result, PutResult)
            self.assertEqual(result.queue_offset, numbers[0])
            tag = tags_code(f"tag{extra % 2}")
            self.assertEqual(len(store.get("Mixed", 0, numbers[0], 1, tag.__eq__).messages), 1)
            self.close(store)
            self.assert_sound(config)

    def test_cleaned(self) -> None:
        """A store whose first files were deleted."""
        self.open_and_compare("cleaned-4.9.7", "store")

    def test_torn_record_is_cut(self) -> None:
        """A slave that was stopped in the middle of a record goes on in front of that record, not behind a hole."""
        manifest = self.unpack("pair-lag-4.9.7")
        config = self.config(manifest, "slave")
        store = self.open(config)
        self.assertEqual(store.end_offset, 32611)
        served = [one for one in manifest["served"] if one["phyOffset"] < 32611]
        self.assertEqual(differences(served, all_records(store)), [])
        self.close(store)
        log = (Path(self.folder) / "master" / "commitlog" / ("0" * 20)).read_bytes()
        store = self.open(config)
        for at in range(32611, 56813, 1000):
            store.append_raw(at, log[at : min(at + 1000, 56813)])
        self.assertEqual(differences(manifest["served"], all_records(store)), [])
        self.close(store)
        self.assertEqual((Path(config.commit_log_dir) / ("0" * 20)).read_bytes(), log)
        self.assert_sound(config)

    def test_the_check_sees_what_apache_did_not(self) -> None:
        """The slave that Apache let go on behind a hole is found to have a record of zeros."""
        manifest = self.unpack("pair-lag-4.9.7-resumed")
        self.assert_sound(self.config(manifest, "master"))
        config = self.config(manifest, "slave")
        findings = check_store(RealDisk(None), config.store_path_root_dir, config)
        self.assertIn(("torn-record", 32611), [(one.kind, one.offset) for one in findings if one.severity == "error"])

    def test_the_command_reads_them_all(self) -> None:
        """`python -m rmq.store.check` finds an error in no store of Apache's but the one known to be damaged."""
        bad = []
        for archive in sorted(STORES.glob("*.tar.xz")):
            name = archive.name.removesuffix(".tar.xz")
            manifest = self.unpack(name)
            config = manifest["config"]
            # a pair whose sides are configured alike says so once
            alike = dict.fromkeys(("master", "slave"), config)
            for role, keys in (alike if "maxHashSlotNum" in config else config).items():
                command = [f"{self.folder}/{role}/", f"--maxHashSlotNum={keys['maxHashSlotNum']}"]
                with contextlib.redirect_stdout(io.StringIO()):
                    status = check_main([*command, f"--maxIndexNum={keys['maxIndexNum']}"])
                if status:
                    bad.append((name, role, status))
        self.assertEqual(bad, [("pair-lag-4.9.7-resumed", "slave", 1)])

    def test_comparison_sees_a_difference(self) -> None:
        """One changed body byte, or one moved message, makes the comparison fail."""
        manifest = self.unpack("pair-equal-4.9.7")
        config = self.config(manifest, "master")
        store = self.open(config)
        queues = all_records(store)
        self.assertEqual(differences(manifest["served"], queues), [])
        victim = next(records[3] for records in queues.values() if len(records) > 4)
        body, victim.body = victim.body, b"?" + victim.body[1:]
        self.assertEqual(len(differences(manifest["served"], queues)), 1)
        victim.body = body
        victim.queue_offset += 1000
        self.assertEqual(len(differences(manifest["served"], queues)), 1)
