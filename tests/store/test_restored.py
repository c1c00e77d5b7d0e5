"""A store that was restored from a dump: the dump's manifest does not stay the store's."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.store import check
from rmq.store.messages import StoreError
from tests.store.support import ROOT, Box, log_events

MANIFEST, RESTORED = f"{ROOT}/manifest.json", f"{ROOT}/manifest.json.restored"
SEGMENT = f"{ROOT}/commitlog/{0:020d}"


class RestoredTests(SynchronousTestCase):
    def setUp(self) -> None:
        """A store with some messages, the file abort, and the manifest of a dump."""
        self.box = Box()
        self.box.open()
        self.results = self.box.put_many(20)
        self.box.stop()
        self.box.disk.write_atomic(f"{ROOT}/abort", b"")
        self.box.disk.write_atomic(MANIFEST, b"{}")

    def test_its_manifest_is_renamed(self) -> None:
        """The start renames it once, says so in one line, and no power failure takes that back."""
        events = log_events(self)
        self.box.open(start=False)
        self.box.crash()
        self.box.open()
        disk = self.box.disk
        self.assertEqual((disk.exists(MANIFEST), disk.read_whole(RESTORED)), (False, b"{}"))
        lines = [event["log_format"] for event in events if "restored" in event.get("log_format", "")]
        self.assertEqual(lines, ["the store was restored from a dump: {path} renamed to {restored}"])

    def test_an_older_one_is_replaced(self) -> None:
        """A store may be restored from a dump a second time."""
        self.box.disk.write_atomic(RESTORED, b"older")
        self.box.open()
        self.assertEqual(self.box.disk.read_whole(RESTORED), b"{}")

    def test_nothing_is_written_before(self) -> None:
        """While the new name may not last, the store does not start, and its files stay as they are."""
        end = self.results[-1].next_offset
        self.box.disk.open(SEGMENT).write_at(end, b"torn")
        self.box.disk.sync_fails = lambda path: path == ROOT
        self.assertRaises(StoreError, self.box.open)
        self.assertEqual(self.box.disk.open(SEGMENT).read_at(end, 4), b"torn")
        self.box.kill()
        self.box.disk.sync_fails = lambda path: False
        self.box.open()
        self.assertEqual(self.box.disk.open(SEGMENT).read_at(end, 4), bytes(4))
        self.assertTrue(self.box.disk.exists(RESTORED))

    def test_a_store_that_is_only_looked_at(self) -> None:
        """The check of a store changes nothing, a dump's manifest neither."""
        self.box.node.start()
        check.check_store(self.box.disk, ROOT, self.box.config)
        self.assertTrue(self.box.disk.exists(MANIFEST))
