"""Index files: Apache's bytes, chains, repair."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from hypothesis import example, given, seed, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import File
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store import index, layout
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.index import MAX_PREFIXES, Index, KeyHasher, index_name
from rmq.store.indexfile import IndexFile, IndexHeader
from rmq.store.openfiles import OpenFiles
from rmq.wire.record import index_key_hash
from tests.needs import need_compiled
from tests.seeds import EXAMPLES_SEED
from tests.store.support import unique_key

SLOTS, ENTRIES = 8, 20
NOW_MS = 1_700_000_000_000


def queue(topic: str = "TopicTest") -> ConsumeQueue:
    node = Node(World(1), SimNet(World(1)), "n")
    return ConsumeQueue(OpenFiles(node.disk, 1), "/q", topic, 0, 100)


class HasherTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.hasher = KeyHasher()
        self.queue = queue()

    def test_unique_keys(self) -> None:
        """The quick way gives the hashes of the complete way, and remembers a bounded number of beginnings."""
        for number in range(5000):
            key = unique_key(number * 7919)
            self.assertEqual(self.hasher.unique(self.queue, key), index_key_hash("TopicTest", key))
        self.patch(index, "MAX_BLOCKS", 50)
        for number in range(1000):
            key = f"{number:024X}{number * 65537:08X}"
            self.assertEqual(self.hasher.unique(self.queue, key), index_key_hash("TopicTest", key))
        self.assertLessEqual(len(self.queue.key_prefixes), MAX_PREFIXES)

    @seed(EXAMPLES_SEED)
    @settings(max_examples=200, deadline=None)
    @given(st.text(min_size=32, max_size=32) | st.text(max_size=300))
    @example("\uffff\U00010000\U0010fe00\U0010ffff")  # where one UTF-16 unit ends to do
    def test_any_key(self, key: str) -> None:
        """Keys of any length and alphabet hash right both ways."""
        expected = index_key_hash("TopicTest", key)
        self.assertEqual(self.hasher.unique(self.queue, key), expected)
        self.assertEqual(self.hasher.key(self.queue, key), expected)
        self.assertEqual(index.key_hash("TopicTest", key), expected)
        self.assertEqual(index.key_hash(key, "k"), index_key_hash(key, "k"))


class IndexCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.node = Node(World(1), SimNet(World(1)), "broker")
        self.node.start()
        self.queue = queue()
        self.index = self.make()

    def make(self) -> Index:
        assert self.node.process is not None
        return Index(self.node.disk, self.node.process, "/store", slots=SLOTS, entries=ENTRIES)

    def add(self, first: int, end: int) -> None:
        for number in range(first, end):
            self.index.add(self.queue, None, f"k{number}", number * 100, NOW_MS + number * 1000)

    def find(self, key: str, count: int = 10) -> list[int]:
        return self.index.find("TopicTest", key, count, 0, NOW_MS * 2)

    def assert_finds(self, end: int, first: int = 0) -> None:
        for number in range(first, end):
            self.assertEqual(self.find(f"k{number}"), [number * 100], number)

    def reload(self) -> None:
        self.index = self.make()
        self.index.load()
        self.index.resume(in_order=True)

    def data(self, number: int = 0) -> bytes:
        name = self.node.disk.list_dir("/store/index")[number]
        return self.node.disk.read_whole(f"/store/index/{name}")


class FileTests(IndexCase):
    def test_bytes(self) -> None:
        """Header, slot and entry lie where Apache has them."""
        self.add(1, 2)
        self.index.write()
        key_hash = index_key_hash("TopicTest", "k1")
        self.assertEqual(key_hash, 2746024)
        data = self.data()
        self.assertEqual(len(data), 40 + SLOTS * 4 + ENTRIES * 20)
        time = NOW_MS + 1000
        self.assertEqual(layout.INDEX_HEADER.unpack_from(data), (time, time, 100, 100, 1, 2))
        slot = 40 + key_hash % SLOTS * 4
        self.assertEqual(data[slot : slot + 4], b"\0\0\0\1")
        entry = 40 + SLOTS * 4 + 20
        self.assertEqual(layout.INDEX_ENTRY.unpack_from(data, entry), (key_hash, 100, 0, 0))
        self.assertFalse(any(data[entry + 20 :]))

    def test_entries_of_many_messages(self) -> None:
        """Entries that are added together can be found at once, and those that wait for their file are bounded."""
        self.patch(index, "MAX_PENDING_BYTES", 4 * index.PENDING.size)
        for number in range(1, 31):
            key_hash = index_key_hash("TopicTest", f"k{number}")
            self.index.extend(index.PENDING.pack(key_hash, number * 100, NOW_MS + number * 1000))
            self.assertLess(len(self.index._pending), 4 * index.PENDING.size)
        self.assert_finds(31, 1)

    def test_visible_at_once(self) -> None:
        """Entries are found before and after they are written, over several files."""
        for end in (5, 19, 20, 45, 100):
            self.add(len(self.index.files) and self.index.end_phy_offset // 100 + 1, end)
            self.assert_finds(end)
            self.index.write()
            self.assert_finds(end)
        self.reload()
        self.assert_finds(100)

    def test_next_file(self) -> None:
        """A full file has ENTRIES - 1 entries; the next one begins where it ends, and names ascend."""
        self.add(0, ENTRIES + 3)
        first, second = self.index.files
        self.assertTrue(first.is_full)
        self.assertEqual((first.header.index_count, second.header.index_count), (ENTRIES, 5))
        self.assertLess(first.path, second.path)
        self.assertEqual(second.header.begin_phy_offset, first.header.end_phy_offset + 100)

    def test_keys_of_one_message(self) -> None:
        """A unique key and several keys are entries of their own; blanks between them do not matter."""
        self.index.add(self.queue, unique_key(1), "a  b c", 500, NOW_MS)
        for key in ("a", "b", "c", unique_key(1)):
            self.assertEqual(self.find(key), [500])
        self.assertEqual(self.index.files[0].header.index_count, 5)

    def test_again(self) -> None:
        """A message that is indexed already is not indexed again; one without keys takes no file."""
        self.index.add(self.queue, None, None, 0, NOW_MS)
        self.assertEqual(self.index.files, [])
        self.add(0, 5)
        self.add(0, 4)
        self.assertEqual(self.index.files[0].header.index_count, 6)

    def test_names(self) -> None:
        """A file is named by local time to the millisecond."""
        name = index_name(NOW_MS + 7)
        self.assertEqual((len(name), name[-3:], name[:2]), (17, "007", "20"))


class RepairTests(IndexCase):
    def test_killed_while_writing(self) -> None:
        """Entries and slots that were written without their header do not count, and chains lead around them."""
        self.add(0, 10)
        self.index.write()
        header = self.data()[:40]
        self.add(10, 18)
        self.index.write()
        name = self.node.disk.list_dir("/store/index")[0]
        self.node.disk.open(f"/store/index/{name}").write_at(0, header)
        self.reload()
        self.assert_finds(10)
        self.assertEqual(self.find("k12"), [])
        self.add(10, 15)
        self.index.write()
        self.reload()
        self.assert_finds(15)

    def test_slots_of_garbage(self) -> None:
        """Slots that lead nowhere are made again from the entries."""
        self.add(0, 10)
        self.index.write()
        name = self.node.disk.list_dir("/store/index")[0]
        self.node.disk.open(f"/store/index/{name}").write_at(40, b"\x7f" * SLOTS * 4)
        self.reload()
        self.assert_finds(10)

    def test_slots_half_old_and_half_new(self) -> None:
        """After a power failure a slot may name any older entry, of another chain even: all keys are found again."""
        self.add(0, 10)
        self.index.write()
        name = self.node.disk.list_dir("/store/index")[0]
        self.node.disk.open(f"/store/index/{name}").write_at(40, b"\0\0\0\x01" * SLOTS)
        self.index.close()
        self.index = self.make()
        self.index.load()
        self.index.resume(in_order=False)
        self.assert_finds(10)

    def test_cut(self) -> None:
        """After cutting at an offset older messages are found, younger ones are not, and adding goes on."""
        for at in (0, 5, 19, 20, 40, 45, 50):
            self.node.disk.delete_tree("/store/index")
            self.index = self.make()
            self.add(0, 50)
            self.index.write()
            self.index.cut(at * 100)
            self.index.resume(in_order=True)
            self.assert_finds(at)
            self.assertEqual(self.find(f"k{at}"), [])
            self.add(at, 50)
            self.index.write()
            self.reload()
            self.assert_finds(50)

    def test_back_to_a_state(self) -> None:
        """What came after a state that was synced is forgotten, files included."""
        self.add(0, 12)
        self.index.write()
        state = self.index.state()
        self.add(12, 70)
        self.index.write()
        self.reload()
        self.index.go_back(state)
        self.index.resume(in_order=True)
        self.assertEqual(self.index.state(), state)
        self.assert_finds(12)
        self.add(12, 70)
        self.assert_finds(70)

    def test_damaged_files(self) -> None:
        """A file of another size, or with nonsense in its header, is deleted."""
        self.add(0, 45)
        self.index.write()
        names = self.node.disk.list_dir("/store/index")
        self.node.disk.open(f"/store/index/{names[0]}").truncate(100)
        self.node.disk.open(f"/store/index/{names[1]}").write_at(36, b"\x7f\0\0\0")
        self.reload()
        self.assertEqual(self.node.disk.list_dir("/store/index"), names[2:])

    def test_strangers_are_left_alone(self) -> None:
        """A file that is none of the index, as editors and operators leave them, is not deleted at the next start."""
        self.add(0, 5)
        self.index.write()
        for name in ("notes.txt", f"{self.node.disk.list_dir('/store/index')[0]}.bak"):
            self.node.disk.create(f"/store/index/{name}", 10).close()
        names = self.node.disk.list_dir("/store/index")
        self.reload()
        self.assertEqual((self.node.disk.list_dir("/store/index"), len(self.index.files)), (names, 1))
        self.assert_finds(5)

    def test_expired(self) -> None:
        """Files that only point below the minimum go, but for the last."""
        self.add(0, 45)
        self.index.write()
        self.assertEqual(self.index.delete_expired(2500), 1)
        self.assertEqual(self.index.delete_expired(1 << 40), 1)
        self.assertEqual(len(self.node.disk.list_dir("/store/index")), 1)


class SlotPageTests(SynchronousTestCase):
    """Slots are written with the pages of the file that they lie in, so the kernel need not read them before."""

    def added(self, add: Callable[[IndexFile, bytes, int], int]) -> IndexFile:
        file = IndexFile("x", 5000, 10_000, IndexHeader())
        file.begin()
        # around the end of the first page, and with no other slot of the second one
        hashes = [0, 0, 0, *range(1010, 1020), 7 * 5000 + 4000, 1, 1, 1]
        times = [NOW_MS + at for at in range(len(hashes) - 3)] + [-(1 << 63), (1 << 63) - 1, 0]
        pending = b"".join(
            index.PENDING.pack(each, 100 + at, time) for at, (each, time) in enumerate(zip(hashes, times, strict=True))
        )
        self.assertEqual(add(file, pending, 3), len(hashes))
        return file

    def test_whole_pages(self) -> None:
        """Each write of slots is a page, or its part that is slots; together they hold every slot that changed."""
        file = self.added(index.add_entries_slowly)
        assert file.table is not None
        written: list[tuple[int, bytes]] = []
        target = SimpleNamespace(write_at=lambda offset, data: written.append((offset, bytes(data))))
        file.write(cast(File, target))
        whole = bytearray(40 + 4 * 5000)
        for offset, data in written[1:-1]:
            self.assertIn(offset % 4096, (0, 40))
            self.assertTrue((offset + len(data)) % 4096 == 0 or offset + len(data) == len(whole))
            self.assertLessEqual(len(data), 4096)
            whole[offset : offset + len(data)] = data
        table = file.table[:]
        table.byteswap()
        self.assertEqual(bytes(whole[40:]), table.tobytes())

    def test_compiled(self) -> None:
        """The compiled loop leaves the same file to be written, page for page."""
        need_compiled("rmq.store._record")
        slow, fast = self.added(index.add_entries_slowly), self.added(index.add_entries)
        for name in ("header", "buffered", "table", "dirty_pages"):
            self.assertEqual(getattr(fast, name), getattr(slow, name), name)


class HeaderTests(SynchronousTestCase):
    def test_zero_count(self) -> None:
        """A header of zeros is that of an empty file: the first entry is number 1."""
        self.assertEqual(IndexHeader.unpack(bytes(40)).index_count, 1)
        self.assertFalse(IndexFile("x", SLOTS, ENTRIES, IndexHeader.unpack(bytes(40))).is_full)
