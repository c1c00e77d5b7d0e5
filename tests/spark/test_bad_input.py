"""
What lies on disks instead of a store: every kind is named with its path, counted, and never taken for sound.

Exit status 3 where something was not read, 2 where what was read proves damage, 64 for an operator's mistake.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.worker import lentwindow, scan

from tests.spark.support import result_of
from tests.spark.synthetic import SEGMENT_BYTES, Pair, make_store
from tests.spark.test_command import CommandCase

STORE = make_store(61, 260)


class BadInputCase(CommandCase):
    @pytest.fixture(autouse=True)
    def _make_pair(self, tmp_path: Path) -> None:
        self.pair = Pair(tmp_path, STORE)
        self.middle = self.pair.segment(self.pair.slave, SEGMENT_BYTES)

    def look(self) -> tuple[int, dict[str, Any]]:
        """Compare; return the exit status and the JSON, once the output is known to hold no stack trace."""
        path = self.folder / "result.json"
        status, out, err = self.compare(self.pair.master, self.pair.slave, "--json", path)
        self.assertNotIn("Traceback", out + err)
        return status, result_of(path)

    def uncovered(self, answer: dict[str, Any]) -> list[str]:
        return [one["detail"] for one in answer["findings"] if one["invariant"] == "AU-COVER"]

    def assert_incomplete(self, path: object, *words: str) -> None:
        """Exit status 3, coverage incomplete, and one AU-COVER finding that has the path and the words."""
        status, answer = self.look()
        details = self.uncovered(answer)
        self.assertEqual((status, answer["verdict"], answer["coverage"]["complete"]), (3, "INCOMPLETE", False), details)
        for word in (str(path), *words):
            self.assertTrue(any(word in text for text in details), (word, details))

    def assert_found(self, invariant: str) -> None:
        status, answer = self.look()
        kinds = {one["invariant"] for one in answer["findings"]}
        self.assertEqual((status, invariant in kinds), (2, True), kinds)


class ForeignNamesTests(BadInputCase):
    def test_named_and_counted(self) -> None:
        """
        Files of others in a store are not read, but named on both sides and counted; those among files that Apache's
        broker opens by number keep it from starting, which is an error.
        """
        slave, master = self.pair.slave, self.pair.master
        queue = sorted((master / "consumequeue").glob("*/*"))[0]
        made = [
            slave / "commitlog" / "foo.txt",
            slave / "commitlog" / "00000000000000000000.bak",
            slave / "index" / "notes<b>",
            slave / "consumequeue" / "copy.tar",
        ]
        for path in [*made, queue / "x~"]:
            path.write_text("x")
        (slave / "commitlog" / "lost+found").mkdir()
        (queue.parent / "old").mkdir()
        (master / "readme.md").write_text("beside the log, where nothing is looked for")
        outputs = [self.folder / name for name in ("r.json", "r.html")]
        status, out, _ = self.compare(master, slave, "--json", outputs[0], "--html", outputs[1])
        answer = result_of(outputs[0])
        self.assertEqual((status, answer["verdict"], answer["coverage"]["complete"]), (2, "DAMAGED", True))
        blocking = {one["detail"].split(" ")[0] for one in answer["findings"] if one["invariant"] == "ST-FILE"}
        self.assertEqual(blocking, {str(path) for path in (*made[:2], queue / "x~")})
        details = {side: answer["coverage"][side]["foreign_names"] for side in ("master", "slave")}
        self.assertEqual(set(details["slave"]), {str(path) for path in [*made, slave / "commitlog" / "lost+found"]})
        self.assertEqual(set(details["master"]), {str(queue / "x~"), str(queue.parent / "old")})
        self.assertEqual([answer["coverage"][side]["foreign_files"] for side in ("master", "slave")], [2, 5])
        self.assertIn("foo.txt", out)
        self.assertIn("and 2 more", out)
        page = outputs[1].read_text()
        self.assertIn("notes&lt;b&gt;", page)
        self.assertNotIn("notes<b>", page)

    def test_names_that_are_no_text(self) -> None:
        """Names that are not UTF-8 are shown with their bytes escaped, in every output, and are not RocketMQ's."""
        root = os.fsencode(self.pair.slave)
        os.makedirs(root + b"/consumequeue/T\xff/0")
        for path in (b"/commitlog/fo\xffo", b"/consumequeue/T\xff/0/00000000000000000000"):
            with open(root + path, "wb") as file:
                file.write(bytes(20))
        options = [(option, self.folder / f"r{option}") for option in ("--json", "--html", "--junit", "--prometheus")]
        stores = (self.pair.master, self.pair.slave)
        status, out, err = self.compare(*stores, *(word for option in options for word in option))
        self.assertEqual((status, err), (2, ""))
        self.assertIn("commitlog/fo\\xffo", out)
        self.assertEqual(result_of(options[0][1])["coverage"]["slave"]["foreign_files"], 2)

    def test_a_second_folder_of_a_queue(self) -> None:
        """A folder 00, or one in digits of another script, does not stand for the queue that has its folder."""
        topic = sorted((self.pair.slave / "consumequeue").iterdir())[0]
        for name in ("00", "\u0660", "\u00b2"):
            (topic / name).mkdir()
            (topic / name / f"{0:020d}").write_bytes(bytes(2000))
        status, answer = self.look()
        self.assertEqual((status, answer["coverage"]["slave"]["foreign_files"]), (0, 3))

    def test_very_many(self) -> None:
        """The count is whole, the names are bounded."""
        for at in range(300):
            (self.pair.slave / "commitlog" / f"core.{at}").touch()
        _, answer = self.look()
        seen = answer["coverage"]["slave"]
        self.assertEqual((seen["foreign_files"], len(seen["foreign_names"])), (300, 20))


class UnreadableTests(BadInputCase):
    def loop(self, path: Path) -> None:
        """Put something there that no user can open, root neither."""
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        path.symlink_to(path.name)

    def test_segments(self) -> None:
        """A segment that cannot be opened, a dangling link, a directory: the rest is compared all the same."""
        self.loop(self.middle)
        self.assert_incomplete(self.middle, "Too many levels")
        self.middle.unlink()
        self.middle.symlink_to("nowhere")
        self.assert_incomplete(self.middle, "No such file")
        self.middle.unlink()
        self.middle.mkdir()
        self.assert_incomplete(self.middle, "is a directory")

    def test_folders(self) -> None:
        """A log that cannot be listed proves nothing: neither lag, nor that the other side is ahead."""
        for root in (self.pair.slave, self.pair.master):
            shutil.move(root / "commitlog", self.folder / "kept")
            self.loop(root / "commitlog")
            self.assert_incomplete(root / "commitlog", "Too many levels")
            (root / "commitlog").unlink()
            shutil.move(self.folder / "kept", root / "commitlog")
        self.assertEqual(self.look()[0], 0)

    def test_queues_index_and_offsets(self) -> None:
        """Consume queue files, index files and consumer offsets that cannot be opened are not passed over."""
        places = [sorted(self.pair.slave.glob(pattern))[0] for pattern in ("consumequeue/*/*/*", "index/*")]
        for path in (*places, self.pair.slave / "config" / "consumerOffset.json"):
            kept = path.read_bytes()
            self.loop(path)
            self.assert_incomplete(path)
            path.unlink()
            path.write_bytes(kept)


class ForeignTests(BadInputCase):
    def test_files_of_others_are_left_alone(self) -> None:
        """
        Names that are not RocketMQ's change nothing where no broker looks for numbers: editors' copies, core files,
        folders; and in a store of our broker, which leaves them alone, nowhere.
        """
        for folder in (self.pair.slave / "index", self.pair.slave):
            (folder / "core.4711").write_bytes(os.urandom(100))
            (folder / f"{0:020d}.bak").write_bytes(bytes(10))
            (folder / "lost+found").mkdir()
        (self.pair.slave / "consumequeue" / "notes.txt").write_text("x")
        (self.pair.slave / "commitlog" / "lost+found").mkdir()
        self.assertEqual(self.look()[0], 0)
        (self.pair.slave / "commitlog" / "core.4711").write_bytes(os.urandom(100))
        self.assert_found("ST-FILE")
        (self.pair.slave / "checkpoint.rmq").touch()
        self.assertEqual(self.look()[0], 0)

    def test_a_segment_under_a_number_that_none_has(self) -> None:
        """No broker starts with a segment file that does not begin where one can; the rest is compared all the same."""
        (self.pair.slave / "commitlog" / f"{20:020d}").write_bytes(bytes(SEGMENT_BYTES))
        self.assert_found("ST-FILE")
        self.assertEqual([one["invariant"] for one in self.look()[1]["findings"]], ["ST-FILE"])

    def test_foreign_bytes_under_a_right_name(self) -> None:
        """A segment that holds something else is damage on the side that has it."""
        self.middle.write_bytes((b"# not a log\n" * SEGMENT_BYTES)[:SEGMENT_BYTES])
        self.assert_found("RP-MISSING")

    def test_foreign_configuration(self) -> None:
        """Consumer offsets that are no JSON, or JSON of something else, are damage: a broker starts without them."""
        path = self.pair.slave / "config" / "consumerOffset.json"
        for text in ("<html>", "[1]", '{"offsetTable": 3}', '{"offsetTable": {"x": {"0": 1}}}', "\xff\xfe", "{}"):
            path.write_bytes(text.encode("latin-1"))
            self.assert_found("CF-BROKEN")

    def test_foreign_queue_and_index_files(self) -> None:
        """Queue files of broken length and index files of another kind: named or found, never a stack trace."""
        path = sorted(self.pair.slave.glob("consumequeue/*/*/*"))[0]
        kept = path.read_bytes()
        path.write_bytes(kept + b"x")
        self.assert_found("CQ-SIZE")
        path.write_bytes(kept)
        path = sorted(self.pair.slave.glob("index/*"))[0]
        kept = path.read_bytes()
        for data in (b"", b"x", kept[:40], kept[:700], os.urandom(4000)):
            path.write_bytes(data)
            status, answer = self.look()
            details = [one["detail"] for one in answer["findings"]]
            self.assertEqual(status, 2, (len(data), details))
            self.assertTrue(any(str(path) in text for text in details), (len(data), details))


class LengthTests(BadInputCase):
    def test_empty_and_short_files(self) -> None:
        """
        An empty or short segment in the middle is CL-GAP. An empty one after the end is what a killed broker leaves;
        after a clean stop Apache's 4.9 does not start with it.
        """
        for size in (0, 1, 4096):
            os.truncate(self.middle, size)
            self.assert_found("CL-GAP")
        shutil.copy(self.pair.segment(self.pair.master, SEGMENT_BYTES), self.middle)
        last = sorted((self.pair.slave / "commitlog").iterdir())[-1]
        os.truncate(last, 0)
        self.assert_found("ST-FILE")
        (self.pair.slave / "abort").touch()
        self.assertEqual(self.look()[0], 0)

    def test_empty_stores(self) -> None:
        """Two stores without messages agree; one without beside one with is a lag, or a slave that is ahead."""
        for root in (self.pair.slave, self.pair.master):
            for folder in ("commitlog", "consumequeue", "index", "config"):
                shutil.rmtree(root / folder)
                (root / folder).mkdir()
            status, answer = self.look()
            self.assertEqual(
                (status, answer["verdict"]), {"slave": (1, "LAGGING"), "master": (0, "CONSISTENT")}[root.name]
            )

    def test_a_segment_that_is_too_long(self) -> None:
        """No broker starts with a segment that is longer than the others."""
        with open(self.middle, "ab") as file:
            file.write(b"surplus")
        self.assert_found("ST-FILE")

    def test_other_segment_sizes(self) -> None:
        """A store of other segments is no replica: said with both sizes before anything is read."""
        log = self.pair.slave / "commitlog"
        shutil.rmtree(log)
        log.mkdir()
        for number in range(4):
            (log / f"{number * 32768:020d}").write_bytes(bytes(32768))
        self.assert_refused(self.compare(self.pair.master, self.pair.slave), "32768", str(SEGMENT_BYTES))


class PipeTests(BadInputCase):
    def test_a_pipe_where_a_file_belongs(self) -> None:
        """Nobody writes into it, so that its reader would wait for ever: the file is named, status 3."""
        names = ("config/topics.json", "config/consumerOffset.json", "epochFileCheckpoint", "checkpoint")
        log, queue, index = (
            sorted(self.pair.slave.glob(pattern))[-1] for pattern in ("commitlog/*", "consumequeue/*/*/*", "index/*")
        )
        (self.pair.slave / "abort").touch()
        for path in (*(self.pair.slave / name for name in names), log, queue, index):
            with self.subTest(path):
                held = path.read_bytes() if path.exists() else None
                path.unlink(missing_ok=True)
                os.mkfifo(path)
                status, answer = self.look()
                details = [one["detail"] for one in answer["findings"] if one["invariant"] == "AU-COVER"]
                self.assertIn("is no regular file", " ".join(details))
                self.assertIn(str(path), " ".join(details))
                self.assertIn(status, (2, 3))
                path.unlink()
                if held is not None:
                    path.write_bytes(held)


class MovingTests(BadInputCase):
    def during_scan(self, change: Callable[[], object]) -> None:
        """Let something happen once, between the listing and the first read of a segment."""
        original, pending = lentwindow.split_window, [change]

        def split_window(*arguments: Any) -> Any:
            while pending:
                pending.pop()()
            return original(*arguments)

        self.patch(scan, "split_window", split_window)

    def assert_alone_found(self) -> None:
        """The slave's store alone, at a second look: status 2, with the gap."""
        status, out, err = self.run_here("check", self.pair.slave, "--engine", "local", "--workers", "1")
        self.assertEqual((status, err), (2, ""), out)
        self.assertIn("CL-GAP", out)

    def test_a_segment_that_goes_away(self) -> None:
        """What is deleted between listing and reading is missing at a second look."""
        self.during_scan(self.middle.unlink)
        self.assert_alone_found()
        shutil.copy(self.pair.segment(self.pair.master, SEGMENT_BYTES), self.middle)
        self.during_scan(self.middle.unlink)
        self.assert_found("CL-GAP")

    def test_a_segment_that_shrinks(self) -> None:
        """A file that becomes shorter while it is read is short at a second look."""
        self.during_scan(lambda: os.truncate(self.middle, 5000))
        self.assert_alone_found()
        shutil.copy(self.pair.segment(self.pair.master, SEGMENT_BYTES), self.middle)
        self.during_scan(lambda: os.truncate(self.middle, 5000))
        self.assert_found("CL-GAP")

    def test_a_log_that_grows(self) -> None:
        """Files that are written to are listed, and ends that move are no findings."""
        last = sorted((self.pair.slave / "commitlog").iterdir())[-1]
        self.during_scan(lambda: last.write_bytes(b"\x00\x00\x01\x00\xda\xa3\x20\xa7" + bytes(SEGMENT_BYTES - 8)))
        status, answer = self.look()
        self.assertEqual(answer["changed_files"], [str(last)])
        self.assertEqual(status, 0, answer["findings"])


class IdentityTests(BadInputCase):
    def test_dumps_of_two_brokers(self) -> None:
        """Two dumps of different brokers, or clusters, are refused with both names."""
        for member in ("brokerName", "cluster"):
            for root, name in ((self.pair.master, "one"), (self.pair.slave, "other")):
                (root / "manifest.json").write_text(json.dumps({member: name}))
            self.assert_refused(self.compare(self.pair.master, self.pair.slave), "one", "other")

    def test_clocks_that_differ(self) -> None:
        """
        A clock that was set back is CL-TIME; the slave's records have the master's times: its clock is no matter.
        """
        made = make_store(62, 60)
        made.now_ms -= 90_000
        made.put("topic-0", 0, b"stored after the clock was set back")
        self.pair = Pair(self.folder / "skewed", made)
        status, answer = self.look()
        (one,) = answer["findings"]
        self.assertEqual((status, one["invariant"], one["replica"]), (1, "CL-TIME", "both"))
        for path in self.pair.slave.rglob("*"):
            os.utime(path, (4_000_000_000, 4_000_000_000))
        self.assertEqual(self.look()[0], 1)
