"""What other programs and browsers read, and the comparison with the previous run."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any
from xml.etree import ElementTree

from prometheus_client.parser import text_string_to_metric_families
from rmq_audit.driver.audit import Options, Result, check
from rmq_audit.driver.findings import INVARIANTS, finding
from rmq_audit.driver.previous import Previous, mark, read_previous
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.report.files import check_writable, write
from rmq_audit.report.html import to_html
from rmq_audit.report.outputs import to_junit, to_prometheus
from rmq_audit.report.pair import MAX_JSON_FINDINGS, Run, to_json
from rmq_audit.report.pictures import EQUAL, MISSING, Cell, Pictures, chunk_cells, pictures_of
from rmq_audit.worker.location import InputError

from rmq.store import layout
from tests.spark.cases import FolderCase
from tests.spark.support import audit, rmq_audit
from tests.spark.synthetic import Pair, make_store


def as_report(result: Result, **members: Any) -> dict[str, Any]:
    return to_json(
        result, Run(run_id="r1", started_at="2026-11-22T00:00:00+00:00", seconds=1.5, engine="local", **members)
    )


class OutputCase(FolderCase):
    def damaged(self) -> Result:
        """A pair with one flipped body byte, and a unit too many in a consume queue."""
        pair = Pair(self.folder, make_store(2))
        one = next(one for one in pair.made.stored[50:] if one.body_size > 20)
        pair.flip(pair.slave, one.body_at)
        return audit(pair.master, pair.slave, chunk=2048)


class JUnitTests(OutputCase):
    def test_one_case_an_invariant(self) -> None:
        """CI sees every rule that was checked, and a failure for each that is broken."""
        suite = ElementTree.fromstring(to_junit(as_report(self.damaged())))
        self.assertEqual(
            (suite.get("tests"), suite.get("failures"), suite.get("errors")), (str(len(INVARIANTS)), "2", "0")
        )
        self.assertEqual(self.names(suite, "failure"), ["RP-DIFF", "CL-CRC"])
        self.assertEqual([(case.get("name") or "").split()[0] for case in suite], list(INVARIANTS))

    def names(self, suite: ElementTree.Element, child: str) -> list[str]:
        return [(case.get("name") or "").split()[0] for case in suite if case.find(child) is not None]

    def skipped(self, suite: ElementTree.Element) -> dict[str, str]:
        found = {(case.get("name") or "").split()[0]: case.find("skipped") for case in suite}
        return {name: str(one.get("message")) for name, one in found.items() if one is not None}

    def test_what_nobody_could_look_at_is_skipped(self) -> None:
        """A rule that nothing in the run could break did not pass: the case says why, and the JSON too."""
        pair = Pair(self.folder, make_store(2, 100))
        text = to_junit(as_report(audit(pair.master, pair.slave)))
        suite = ElementTree.fromstring(text)
        skipped = self.skipped(suite)
        self.assertEqual((suite.get("skipped"), suite.get("failures")), (str(len(skipped)), "0"))
        whole = {name for name in INVARIANTS if name.startswith(("AK-", "RT-"))}
        self.assertEqual(set(skipped), whole | {"CL-BACK", "CO-BACK", "RP-EPOCH", "CF-TIME"})
        self.assertIn("--acked", skipped["AK-LOST"])
        alone = as_report(check(str(pair.master), LocalEngine(1), Options()))
        skipped = self.skipped(ElementTree.fromstring(to_junit(alone)))
        self.assertTrue({name for name in INVARIANTS if name.startswith("RP-")} <= set(skipped))
        self.assertIn("one store alone", skipped["RP-LAG"])
        self.assertEqual({row["invariant"]: row["why"] for row in alone["invariants"] if row["why"]}, skipped)
        for folder, kind, found in (
            (layout.CONSUME_QUEUE_DIR, "CQ-", ["CQ-BEHIND"]),
            (layout.INDEX_DIR, "IX-", []),
            (layout.CONFIG_DIR, "CO-", []),
        ):
            shutil.rmtree(pair.master / folder)
            bare = as_report(check(str(pair.master), LocalEngine(1), Options()))
            skipped = self.skipped(ElementTree.fromstring(to_junit(bare)))
            self.assertEqual([name for name in INVARIANTS if name.startswith(kind) and name not in skipped], found)

    def test_a_finding_beyond_the_report_fails_its_case(self) -> None:
        """The report holds 1000 findings; what the others are about did not pass."""
        result = self.damaged()
        many = [finding("CL-CRC", "slave", finding_id=str(at), phy_from=at) for at in range(MAX_JSON_FINDINGS)]
        result.findings[:] = [*many, finding("CL-TIME", "master"), finding("RP-MISSING", "slave")]
        suite = ElementTree.fromstring(to_junit(as_report(result)))
        self.assertEqual(self.names(suite, "failure"), ["RP-MISSING", "CL-CRC"])
        self.assertEqual(self.names(suite, "system-out"), ["CL-TIME"])
        self.assertIn("1 findings are not in the report", ElementTree.tostring(suite, encoding="unicode"))

    def test_what_was_not_read_is_an_error_and_warnings_are_output(self) -> None:
        """Bytes that XML cannot hold do not break the file."""
        result = self.damaged()
        unread = finding("AU-COVER", "slave", detail="\x00 & <\ud800>")
        result.findings[:] = [unread, finding("CL-TIME", "both", detail="late")]
        suite = ElementTree.fromstring(to_junit(as_report(result)))
        self.assertEqual((suite.get("failures"), suite.get("errors")), ("0", "1"))
        texts = [case.findtext("system-out") for case in suite if case.find("system-out") is not None]
        self.assertEqual(texts, ["WARN on both: late"])


class PrometheusTests(OutputCase):
    def test_metrics_parse(self) -> None:
        """The text is what Prometheus' own parser reads, and says verdict, age and findings."""
        text = to_prometheus(as_report(self.damaged()), 1_795_000_000.0)
        families = {family.name: family for family in text_string_to_metric_families(text)}
        self.assertEqual([one.value for one in families["rmq_audit_exit_status"].samples], [2.0])
        self.assertEqual(
            [one.labels["verdict"] for one in families["rmq_audit_verdict"].samples if one.value], ["DIFFERENT"]
        )
        self.assertEqual(families["rmq_audit_finished_timestamp_seconds"].samples[0].value, 1_795_000_000.0)
        found = {one.labels["invariant"]: one.value for one in families["rmq_audit_findings"].samples}
        self.assertEqual(found, {"RP-DIFF": 1.0, "CL-CRC": 1.0})


class HtmlTests(OutputCase):
    def test_page_stands_alone(self) -> None:
        """Nothing is loaded from elsewhere, what stores say is escaped, differing bytes are marked on both sides."""
        result = self.damaged()
        result.findings[0].topic = "<script>alert(1)</script>"
        page = to_html(as_report(result), pictures_of(result))
        self.assertNotIn("<script", page)
        self.assertEqual(re.findall(r"(?:src|href)=|url\(|@import", page), [])
        self.assertEqual(len(re.findall("<mark>", page)), 2)
        self.assertIn("DIFFERENT", page)

    def test_chunk_map(self) -> None:
        """A square for each chunk; many share one, and the worst shows."""
        result = self.damaged()
        cells = chunk_cells(result)
        self.assertEqual(len(cells), result.coverage.chunks_compared)
        self.assertEqual(sum(cell.state != EQUAL for cell in cells), result.coverage.chunks_different)
        many = [Cell(at, at + 1, MISSING if at == 4321 else EQUAL) for at in range(10_000)]
        page = to_html(as_report(result), Pictures(cells=many))
        self.assertEqual(page.count("slave lacks it</title>"), 1)
        self.assertLess(page.count("<rect"), 1000)


class FileTests(OutputCase):
    def test_a_link_stays(self) -> None:
        """What a symbolic link leads to is written, also when it is not there yet."""
        for name in ("there", "new"):
            link, target = self.folder / f"link-{name}", self.folder / name
            link.symlink_to(name)
            if name == "there":
                target.write_text("older")
            check_writable("--html", str(link))
            write(str(link), "text")
            self.assertEqual((link.is_symlink(), target.read_text()), (True, "text"))
        self.assertEqual(list(self.folder.glob("*.tmp")), [])

    def test_a_pipe_stays(self) -> None:
        """Who reads a FIFO gets the result; a renamed file would replace it, as it would a device."""
        path = self.folder / "fifo"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        check_writable("--json", str(path))
        write(str(path), "text")
        self.assertEqual((path.is_fifo(), os.read(reader, 100)), (True, b"text"))

    def test_what_is_no_place_for_a_file(self) -> None:
        """A folder, a file below a file, and one in a folder that is not there are refused before the run."""
        (self.folder / "file").touch()
        for path in (self.folder, self.folder / "file" / "x", self.folder / "no" / "x"):
            self.assertRaises(InputError, check_writable, "--html", str(path))


class PreviousTests(OutputCase):
    def test_new_persisting_resolved(self) -> None:
        """What both runs found persists; what only the previous run had is resolved, unless this one is incomplete."""
        old, stays, fresh = (finding("CL-CRC", "slave", finding_id=name) for name in ("old", "stays", "fresh"))
        before = Previous(
            path="x", run_id="r0", started_at="t", findings={one.finding_id: one.to_json() for one in (old, stays)}
        )
        resolved = mark([stays, fresh], before, complete=True)
        self.assertEqual((stays.state, fresh.state), ("persisting", "new"))
        self.assertEqual([(one["finding_id"], one["state"]) for one in resolved], [("old", "resolved")])
        self.assertEqual(mark([stays, fresh], before, complete=False), [])

    def test_reports_of_others_are_refused(self) -> None:
        """A file that is no report is named."""
        path = self.folder / "x.json"
        for text in ("", "[]", '{"run_id":"x"}'):
            path.write_text(text)
            self.assertIn("x.json", str(self.assertRaises(InputError, read_previous, str(path))))
        self.assertIn("no-file", str(self.assertRaises(InputError, read_previous, str(self.folder / "no-file"))))

    def test_command_writes_everything_asked_for(self) -> None:
        """Two runs: the second tells what has changed since the first, in text and in all files."""
        pair = Pair(self.folder, make_store(2))
        one = next(one for one in pair.made.stored[50:] if one.body_size > 20)
        pair.flip(pair.slave, one.body_at)
        first, second = self.folder / "1.json", self.folder / "2.json"
        self.assertEqual(
            rmq_audit("compare", pair.master, pair.slave, "--engine", "local", "--json", first).returncode, 2
        )
        pair.flip(pair.slave, one.body_at)
        outputs = [self.folder / name for name in ("a.html", "a.xml", "a.prom")]
        answer = rmq_audit(
            *("compare", pair.master, pair.slave, "--engine", "local", "--previous", first, "--json", second),
            *("--html", outputs[0], "--junit", outputs[1], "--prometheus", outputs[2]),
        )
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("0 new, 0 persisting, 2 resolved", answer.stdout)
        self.assertEqual([path.stat().st_size > 100 for path in outputs], [True] * 3)
        self.assertEqual(len(json.loads(second.read_text())["resolved"]), 2)
        refused = rmq_audit("compare", pair.master, pair.slave, "--engine", "local", "--html", self.folder / "no" / "x")
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (64, 1))
