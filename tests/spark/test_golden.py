"""Stores that real Apache brokers wrote, and what the audit says of them."""

from __future__ import annotations

from pathlib import Path

from tests.spark.cases import GoldenCase
from tests.spark.support import as_json, audit, causes


class EqualPairTests(GoldenCase):
    def test_pairs_at_rest_are_consistent(self) -> None:
        """
        Master and slave of 4.9.7, of 5.3.3, and a 5.3.3 slave of a 4.9.7 master: no finding at all, exit status 0.
        """
        for name in ("pair-equal-4.9.7", "pair-equal-5.3.3", "pair-equal-4.9.7-slave-5.3.3"):
            folder = self.golden(name)
            result = audit(folder / "master", folder / "slave")
            self.assertEqual((name, result.verdict.value, result.exit_status), (name, "CONSISTENT", 0))
            self.assertEqual(as_json(result), [])

    def test_silence_means_checked(self) -> None:
        """A consistent verdict says how many records, bodies, chunks and queue units it rests on."""
        folder = self.golden("pair-equal-4.9.7")
        coverage = audit(folder / "master", folder / "slave").coverage
        self.assertTrue(coverage.complete)
        assert coverage.slave is not None
        self.assertEqual((coverage.master.records, coverage.slave.records), (108, 108))
        self.assertEqual((coverage.master.crcs_checked, coverage.slave.crcs_carried_over), (108, 108))
        self.assertEqual((coverage.chunks_compared, coverage.chunks_equal, coverage.bytes_compared), (1, 1, 35336))
        self.assertEqual((coverage.master.units_checked, coverage.slave.units_checked), (108, 108))

    def test_a_slave_that_joined_late_is_consistent(self) -> None:
        """A slave that starts with the master's last segment agrees; which messages it lacks is a remark."""
        folder = self.golden("pair-late-4.9.7")
        result = audit(folder / "master", folder / "slave")
        self.assertEqual((result.verdict.value, result.exit_status), ("CONSISTENT", 0))
        (begin,) = result.findings
        self.assertEqual((begin.invariant, begin.severity.name, begin.replica), ("RP-BEGIN", "INFO", "slave"))
        self.assertEqual((begin.phy_from, begin.phy_to), (0, 131072))
        self.assertEqual((result.compared_from, result.compared_to), (131072, 152584))

    def test_a_master_with_deleted_segments_is_consistent(self) -> None:
        """The other way round: the slave still has what the master's retention has removed."""
        folder = self.golden("pair-late-4.9.7")
        result = audit(folder / "slave", folder / "master")
        self.assertEqual((result.verdict.value, result.exit_status), ("CONSISTENT", 0))
        (begin,) = result.findings
        self.assertEqual((begin.invariant, begin.severity.name, begin.replica), ("RP-BEGIN", "INFO", "master"))
        self.assertEqual((begin.phy_from, begin.phy_to), (0, 131072))
        assert result.coverage.slave is not None
        self.assertEqual(result.coverage.slave.crcs_checked, 360)

    def test_stores_with_everything_in_them_have_no_findings(self) -> None:
        """
        Delays, transactions, batches, retries, dead letters, a log that does not begin at 0: against a copy,
        silence.
        """
        for name in ("mixed-5.3.3", "cleaned-4.9.7"):
            copy = self.golden_copy(name)
            result = audit(self.golden(name) / "store", copy / "store")
            self.assertEqual((name, result.verdict.value, as_json(result)), (name, "CONSISTENT", []))


class LaggingPairTests(GoldenCase):
    def test_half_a_record_is_not_taken_for_one(self) -> None:
        """
        Apache's slave holds half of its last record, and size, magic and CRC hold: the pair lags, nothing differs.
        """
        folder = self.golden("pair-lag-4.9.7")
        for chunk in (1 << 20, 4096):
            result = audit(folder / "master", folder / "slave", chunk=chunk, split=chunk)
            self.assertEqual((result.verdict.value, result.exit_status), ("LAGGING", 1))
            found = {one.invariant: one for one in result.findings}
            self.assertEqual(sorted(found), ["CL-TAIL", "RP-LAG"])
            self.assertEqual((found["CL-TAIL"].phy_from, found["CL-TAIL"].phy_to), (32611, 32768))
            self.assertEqual((found["RP-LAG"].phy_from, found["RP-LAG"].phy_to), (32611, 56813))

    def test_lag_may_be_allowed(self) -> None:
        """A slave that is no further behind than the operator allows is consistent, and the lag is still told."""
        folder = self.golden("pair-lag-4.9.7")
        result = audit(folder / "master", folder / "slave", lag=24202)
        self.assertEqual(result.verdict.value, "CONSISTENT")
        self.assertIn("RP-LAG", {one.invariant for one in result.findings})
        self.assertEqual(audit(folder / "master", folder / "slave", lag=24201).verdict.value, "LAGGING")

    def test_units_in_front_of_half_a_record_are_checked(self) -> None:
        """The queue that the half record belongs to is compared up to it: consumers of the slave read those units."""
        folder = self.golden_copy("pair-lag-4.9.7")
        path = folder / "slave" / "consumequeue" / "Mixed" / "3" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[25 * 20 + 11] ^= 4
        path.write_bytes(data)
        result = audit(folder / "master", folder / "slave")
        self.assertEqual(result.exit_status, 2)
        found = [(one.queue_id, one.queue_offset_from) for one in result.findings if one.invariant == "CQ-MISMATCH"]
        self.assertEqual(found, [(3, 25)])

    def test_the_hole_that_apache_left_is_found(self) -> None:
        """
        After a restart Apache's slave ends where its master does, every CRC holds, and 69 bytes are gone for good.
        """
        folder = self.golden("pair-lag-4.9.7-resumed")
        for chunk in (1 << 20, 4096):
            result = audit(folder / "master", folder / "slave", chunk=chunk)
            self.assertEqual((result.verdict.value, result.exit_status), ("DIFFERENT", 2))
            (one,) = result.findings
            self.assertEqual((one.invariant, one.field, one.blame), ("RP-DIFF", "properties", "slave"))
            self.assertEqual((one.topic, one.queue_id, one.queue_offset_from), ("Mixed", 3, 26))
            self.assertEqual((one.phy_from, one.phy_to), (32611, 32837))
            self.assertEqual(one.sample_msg_ids, ["C000020266C84E0E2F2A688360430057"])
            self.assertIn("69 bytes between 32768 and 32836", one.detail)
            assert one.evidence_slave is not None and one.evidence_phy is not None
            self.assertEqual(bytes.fromhex(one.evidence_slave)[32768 - one.evidence_phy :].strip(b"\0"), b"")


class DamagedPairTests(GoldenCase):
    def flip(self, path: Path, at: int) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def test_one_bit_of_one_body(self) -> None:
        """
        A flipped body bit on the slave is found with message, queue, offset, and with the side that fails its CRC.
        """
        folder = self.golden_copy("pair-equal-5.3.3")
        log = folder / "slave" / "commitlog" / "0".zfill(20)
        self.flip(log, 89)
        result = audit(folder / "master", folder / "slave")
        self.assertEqual((result.verdict.value, result.exit_status), ("DIFFERENT", 2))
        (one,) = causes(result)
        self.assertEqual((one.invariant, one.blame, one.field, one.phy_from), ("RP-DIFF", "slave", "body", 0))
        self.assertEqual((one.topic, one.queue_id, one.queue_offset_from), ("Mixed", 2, 0))
        self.assertEqual(len(one.sample_msg_ids[0]), 32)
        self.assertIn("the slave fails its own CRC", one.detail)
        (follows,) = [other for other in result.findings if other.derived_from is not None]
        self.assertEqual(
            (follows.invariant, follows.replica, follows.derived_from), ("CL-CRC", "slave", one.finding_id)
        )

    def test_one_bit_of_a_header(self) -> None:
        """No CRC covers a header, so neither side can be blamed by it, and the difference is still found and named."""
        folder = self.golden_copy("pair-equal-4.9.7")
        self.flip(folder / "slave" / "commitlog" / "0".zfill(20), 47)
        (one,) = causes(audit(folder / "master", folder / "slave"))
        self.assertEqual((one.invariant, one.field, one.blame), ("RP-DIFF", "bornTimestamp", "undecided"))
        self.assertEqual(abs(int(one.expected or 0) - int(one.actual or 0)), 1)

    def test_two_unrelated_stores(self) -> None:
        """Stores that never had to do with each other have no common history."""
        result = audit(self.golden("pair-equal-4.9.7") / "master", self.golden("pair-lag-4.9.7") / "slave")
        self.assertEqual((result.verdict.value, result.exit_status), ("DIVERGED", 2))
        self.assertEqual((causes(result)[0].invariant, causes(result)[0].phy_from), ("RP-DIVERGE", 0))
