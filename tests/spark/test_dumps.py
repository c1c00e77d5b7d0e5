"""Manifests of consistency dumps: the end of the log by word and not by guess, and what a wrong manifest is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.worker.location import InputError
from twisted.trial.unittest import SynchronousTestCase

from rmq.store import layout
from tests.spark.support import as_json, audit, causes
from tests.spark.synthetic import SEGMENT_BYTES, Pair, make_store, plant_stale_records


class DumpCase(SynchronousTestCase):
    pair: Pair

    @pytest.fixture(autouse=True)
    def _take_pair(self, tmp_path: Path) -> None:
        self.pair = Pair(tmp_path, make_store(4, 400))

    def manifest(self, root: Path, **members: Any) -> None:
        values = {
            "formatVersion": 1,
            "cluster": "made",
            "brokerName": "broker-a",
            "brokerId": int(root == self.pair.slave),
            "role": "SLAVE" if root == self.pair.slave else "ASYNC_MASTER",
            "minPhyOffset": 0,
            "maxPhyOffset": self.pair.made.end,
            "segmentBytes": SEGMENT_BYTES,
            "files": [],
        }
        (root / "manifest.json").write_text(json.dumps({**values, **members}))

    def both(self, **members: Any) -> None:
        self.manifest(self.pair.master, **members)
        self.manifest(self.pair.slave, **members)


class EndTests(DumpCase):
    def test_ends_are_taken_by_word(self) -> None:
        """With a manifest the end is not inferred, and what lies behind it does not exist for the audit."""
        self.both()
        plant_stale_records(self.pair, self.pair.slave)
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual((result.verdict.value, result.findings), ("CONSISTENT", []))
        self.assertFalse(result.master.end_inferred)

    def test_a_last_segment_may_be_cut_behind_the_end(self) -> None:
        """A dump need not hold the zeros after the end."""
        self.both()
        os.remove(self.pair.segment(self.pair.slave, self.pair.made.end + SEGMENT_BYTES))
        os.truncate(self.pair.segment(self.pair.slave, self.pair.made.end), self.pair.made.end % SEGMENT_BYTES)
        self.assertEqual(audit(self.pair.master, self.pair.slave).verdict.value, "CONSISTENT")

    def test_a_promised_end_that_is_not_there(self) -> None:
        """
        Records that the manifest promises and the files lack are damage, where a raw directory would only seem to
        lag.
        """
        one = self.pair.made.stored[-4]
        self.pair.write(self.pair.slave, one.phy, bytes(self.pair.made.end - one.phy))
        self.assertIn("RP-LAG", [found.invariant for found in audit(self.pair.master, self.pair.slave).findings])
        self.both()
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual(result.verdict.value, "DIFFERENT")
        self.assertEqual(
            [(one.invariant, one.blame, one.count) for one in causes(result)], [("RP-MISSING", "slave", 4)]
        )

    def test_missing_last_segments(self) -> None:
        """Segments that the manifest promises and nobody copied are a gap."""
        self.both()
        for phy in (self.pair.made.end, self.pair.made.end + SEGMENT_BYTES):
            os.remove(self.pair.segment(self.pair.slave, phy))
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual((result.verdict.value, causes(result)[0].invariant), ("DIFFERENT", "CL-GAP"))

    def test_a_slave_that_ends_inside_a_record(self) -> None:
        """A slave's end may lie inside a record, since replication cuts where it likes: half a record, no damage."""
        one = self.pair.made.stored[-1]
        self.pair.write_unit(self.pair.slave, one, bytes(layout.CQ_UNIT_BYTES))
        self.manifest(self.pair.master)
        self.manifest(self.pair.slave, maxPhyOffset=one.phy + 50)
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual(result.verdict.value, "LAGGING")
        self.assertEqual([found.invariant for found in causes(result)], ["CL-TAIL", "RP-LAG"])

    def test_queues_may_be_as_far_behind_as_the_manifest_says(self) -> None:
        """Records that the broker had not dispatched when the dump was made have no unit, and need none."""
        one = self.pair.made.stored[-1]
        for root in (self.pair.master, self.pair.slave):
            self.pair.write_unit(root, one, bytes(layout.CQ_UNIT_BYTES))
        self.both()
        self.assertEqual(audit(self.pair.master, self.pair.slave).exit_status, 1)
        self.both(dispatchedOffset=one.phy)
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual((result.exit_status, result.findings[0].invariant), (0, "CQ-BEHIND"))

    def test_a_store_that_was_restored_from_a_dump(self) -> None:
        """Messages behind the dump's end are read as soon as the broker has renamed the manifest."""
        one = self.pair.made.stored[-4]
        self.both(maxPhyOffset=one.phy)
        self.assertEqual(audit(self.pair.master, self.pair.slave).compared_to, one.phy)
        for root in (self.pair.master, self.pair.slave):
            (root / layout.MANIFEST_FILE).rename(root / layout.RESTORED_MANIFEST_FILE)
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual((result.verdict.value, as_json(result)), ("CONSISTENT", []))
        self.assertEqual(result.compared_to, self.pair.made.end)

    def test_names_come_from_the_manifest(self) -> None:
        """Findings name cluster, broker and role of the side they are about."""
        self.both()
        self.pair.flip(self.pair.slave, self.pair.made.stored[40].body_at)
        one = causes(audit(self.pair.master, self.pair.slave))[0]
        self.assertEqual((one.cluster, one.broker, one.replica), ("made", "broker-a", "slave"))


class MissingFilesTests(DumpCase):
    def test_the_first_segments_are_gone(self) -> None:
        """A dump that lost its first segments is no store whose old messages were deleted: both sides say so."""
        for members in ({"minPhyOffset": 100}, {"minPhyOffset": None, "files": self.listed("commitlog")}):
            self.both(**members)
            for root in (self.pair.master, self.pair.slave):
                self.pair.segment(root, 0).unlink(missing_ok=True)
            result = audit(self.pair.master, self.pair.slave)
            self.assertEqual((result.verdict.value, result.exit_status), ("DAMAGED", 2))
            gaps = [(one.replica, one.phy_from, one.phy_to) for one in result.findings if one.invariant == "CL-GAP"]
            self.assertEqual(gaps, [("master", 0, SEGMENT_BYTES), ("slave", 0, SEGMENT_BYTES)])
            self.both(minPhyOffset=SEGMENT_BYTES + 100)
            self.assertEqual(audit(self.pair.master, self.pair.slave).exit_status, 0)

    def test_listed_files_that_are_gone(self) -> None:
        """What a manifest lists and nobody copied leaves the run incomplete, with the path of each file."""
        root = self.pair.slave
        gone = [sorted(root.glob(pattern))[0] for pattern in ("consumequeue/*/*", "index/*", "config/*")]
        self.manifest(root, files=self.listed("commitlog", "consumequeue", "index", "config"))
        self.assertEqual(audit(self.pair.master, root).exit_status, 0)
        lost = [str(path) for path in gone[1:]] + [str(path) for path in gone[0].iterdir()]
        for path in lost:
            os.remove(path)
        result = audit(self.pair.master, root)
        told = [one.detail for one in result.findings if one.invariant == "AU-COVER"]
        self.assertEqual((result.verdict.value, len(told)), ("INCOMPLETE", len(lost)), told)
        for path in lost:
            self.assertEqual(sum(text.startswith(f"{path} is not there") for text in told), 1, told)

    def listed(self, *folders: str) -> list[dict[str, Any]]:
        root = self.pair.slave
        paths = [path for folder in folders for path in sorted((root / folder).rglob("*")) if path.is_file()]
        return [{"path": str(path.relative_to(root)), "size": path.stat().st_size} for path in paths]


class WrongManifestTests(DumpCase):
    def assert_refused(self, *words: str) -> None:
        error = self.assertRaises(InputError, audit, self.pair.master, self.pair.slave)
        self.assertNotIn("\n", str(error))
        for word in words:
            self.assertIn(word, str(error))

    def test_dumps_of_two_brokers(self) -> None:
        """Two dumps that name different brokers are refused with both names."""
        self.manifest(self.pair.master)
        self.manifest(self.pair.slave, brokerName="broker-b")
        self.assert_refused("broker-a", "broker-b")

    def test_broken_manifests(self) -> None:
        """What is no JSON, no object, or has a member of the wrong kind is refused with file and member."""
        path = self.pair.slave / "manifest.json"
        for text, word in (
            ("{", "not JSON"),
            ("[]", "object"),
            ('{"maxPhyOffset": "many"}', "maxPhyOffset"),
            ("\xff", ""),
            ("[" * 100_000, "not JSON"),
            ('{"indexSlots": 0}', "indexSlots is 0"),
            ('{"indexSlots": 1099511627776}', "indexSlots is 1099511627776"),
            ('{"segmentBytes": 0}', "segmentBytes is 0"),
            ('{"maxPhyOffset": 9223372036854775808}', "maxPhyOffset"),
            ('{"epochs": [{"epoch": Infinity, "startOffset": 0}]}', "epochs"),
            ('{"files": ["commitlog"]}', "files"),
            ('{"files": [{"path": 5}]}', "path is 5"),
        ):
            path.write_bytes(text.encode("latin-1"))
            self.assert_refused(str(path), word)
        self.manifest(self.pair.slave, maxPhyOffset=-1)
        self.assert_refused(str(path), "maxPhyOffset")
        self.manifest(self.pair.slave, formatVersion=7)
        self.assert_refused(str(path), "formatVersion 7")
