"""
The command line: verdicts as exit statuses, JSON for programs, and one clear line for every mistake of an operator.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from rmq_audit.cli.commands import main
from rmq_audit.driver.findings import Finding
from rmq_audit.engine.bundle import write_bundle
from rmq_audit.worker import kernel

from tests.needs import need_extra
from tests.spark.cases import GoldenCase
from tests.spark.support import no_room_beyond, result_of, rmq_audit
from tests.spark.synthetic import SEGMENT_BYTES, Pair, make_store


class CommandCase(GoldenCase):
    def run_here(self, *arguments: object) -> tuple[int, str, str]:
        """Run the command line in this process; return exit status, output and errors."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                status = main([str(argument) for argument in arguments])
            except SystemExit as stop:
                status = int(stop.code or 0)
        return status, out.getvalue(), err.getvalue()

    def compare(self, master: object, slave: object, *more: object) -> tuple[int, str, str]:
        return self.run_here("compare", master, slave, "--engine", "local", "--workers", "1", *more)

    def assert_refused(self, outcome: tuple[int, str, str], *words: str) -> None:
        """Exit status 64, nothing on standard output, one line on standard error that has the words."""
        status, out, err = outcome
        self.assertEqual((status, out), (64, ""), err)
        lines = [line for line in err.splitlines() if not line.startswith("usage:")]
        self.assertEqual(len([line for line in lines if line.startswith("rmq-audit")]), 1, err)
        for word in words:
            self.assertIn(word, err)


class VerdictTests(CommandCase):
    def test_exit_statuses(self) -> None:
        """0, 1 and 2 for real pairs, as a program that starts the audit sees them."""
        for name, status in (("pair-equal-4.9.7", 0), ("pair-lag-4.9.7", 1), ("pair-lag-4.9.7-resumed", 2)):
            folder = self.golden(name)
            answer = rmq_audit("compare", folder / "master", folder / "slave", "--engine", "local")
            self.assertEqual((name, answer.returncode, answer.stderr), (name, status, ""))

    def test_summary_fits_a_screen(self) -> None:
        """
        The first line is the verdict; message, place, blame and bytes of both sides follow, in less than a screen.
        """
        folder = self.golden("pair-lag-4.9.7-resumed")
        _, out, _ = self.compare(folder / "master", folder / "slave")
        lines = out.splitlines()
        self.assertTrue(lines[0].startswith("DIFFERENT  (exit status 2)"))
        self.assertLess(len(lines), 25)
        for word in ("topic Mixed queue 3", "offset 26", "C000020266C84E0E2F2A688360430057", "blame slave"):
            self.assertIn(word, out)

    def test_a_directory_in_place_of_a_segment_is_incomplete(self) -> None:
        """What cannot be read is named, and the exit status is 3: never 0 when something was not read."""
        pair = Pair(self.folder, make_store(1, 300))
        path = pair.segment(pair.slave, SEGMENT_BYTES)
        path.unlink()
        path.mkdir()
        status, out, _ = self.compare(pair.master, pair.slave)
        self.assertEqual(status, 3)
        self.assertIn("INCOMPLETE", out)
        self.assertIn(f"{path} is a directory", " ".join(out.split()))


class JsonTests(CommandCase):
    def test_json_has_everything(self) -> None:
        """Verdict, exit status, coverage and findings with the field names of the documentation."""
        folder = self.golden("pair-lag-4.9.7-resumed")
        path = self.folder / "result.json"
        status, _, _ = self.compare(folder / "master", folder / "slave", "--json", path)
        answer = result_of(path)
        self.assertEqual((status, answer["verdict"], answer["exit_status"]), (2, "DIFFERENT", 2))
        self.assertEqual(answer["coverage"]["master"]["records"], 156)
        self.assertTrue(answer["coverage"]["complete"])
        self.assertEqual((answer["engine"], answer["kernel"]), ("local", kernel.NAME))
        (one,) = answer["findings"]
        self.assertEqual(set(one), {field.name for field in Finding.__attrs_attrs__})
        self.assertEqual((one["severity"], one["state"], one["run_id"]), ("ERROR", "new", answer["run_id"]))
        self.assertEqual(os.listdir(self.folder), ["result.json"])

    def test_json_to_standard_output(self) -> None:
        """With ``--json -`` standard output is the JSON and nothing else."""
        folder = self.golden("pair-equal-4.9.7")
        _, out, _ = self.compare(folder / "master", folder / "slave", "--json", "-")
        self.assertEqual(json.loads(out)["verdict"], "CONSISTENT")

    def test_unwritable_json_is_told_at_once(self) -> None:
        """A result that could not be written is refused before the stores are read."""
        folder = self.golden("pair-equal-4.9.7")
        for path in (self.folder / "missing" / "result.json", self.folder):
            self.assert_refused(self.compare(folder / "master", folder / "slave", "--json", path), str(path))

    def test_no_room_for_results(self) -> None:
        """A full disk costs the file and not the verdict: one line names the file, and the old one stays."""
        folder = self.golden("pair-lag-4.9.7-resumed")
        for option in ("--json", "--html", "--junit", "--prometheus"):
            path = self.folder / "kept"
            path.write_text("old")
            with no_room_beyond(100):
                status, out, err = self.compare(folder / "master", folder / "slave", option, path)
            self.assertEqual((option, status, out.split()[0]), (option, 64, "DIFFERENT"))
            self.assertEqual((err.count("\n"), f"{path}: cannot be written" in err), (1, True), err)
            self.assertEqual((os.listdir(self.folder), path.read_text()), (["kept"], "old"))

    def test_nobody_reads_the_summary(self) -> None:
        """Behind a pipe that is closed early the exit status is the verdict's, without a line of errors."""
        folder = self.golden("pair-lag-4.9.7-resumed")
        code = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1); from rmq_audit.__main__ import main; main()"
        for more in ((), ("--json", "-")):
            arguments = ("compare", folder / "master", folder / "slave", "--engine", "local", *more)
            answer = rmq_audit(*arguments, module=["-c", code])
            self.assertEqual((answer.returncode, answer.stderr), (2, ""))


class MistakeTests(CommandCase):
    def test_wrong_paths(self) -> None:
        """A missing directory, a file, a directory that is no store, a URL, the same store twice: one line each."""
        store = self.golden("pair-equal-4.9.7") / "master"
        file = self.folder / "file"
        file.write_text("x")
        self.assert_refused(self.compare(self.folder / "none", store), f"{self.folder / 'none'}: no such directory")
        self.assert_refused(self.compare(store, file), f"{file}: is a file")
        self.assert_refused(self.compare(store, self.folder), f"{self.folder}: is not a store directory", "commitlog")
        self.assert_refused(self.compare("ftp://host/store", store), "ftp://host: cannot be used", "Unrecognized")
        self.assert_refused(
            self.compare("s3://me:word@bucket/store?colour=red", store), "s3://bucket: parameter colour"
        )
        self.assert_refused(self.compare("file://other/store", store), "names the machine other")
        self.assert_refused(self.compare(store, f"{store}/../master"), "as master and as slave")

    def test_wrong_arguments(self) -> None:
        """Wrong options exit with 64, not with argparse's 2, which would mean that the replicas differ."""
        store = self.golden("pair-equal-4.9.7") / "master"
        for arguments in ((), ("frobnicate",), ("compare", store)):
            self.assertEqual(self.run_here(*arguments)[0], 64)
        for option, value in (
            ("--engine", "flink"),
            ("--split-bytes", "many"),
            ("--workers", "0"),
            ("--chunk-bytes", "1"),
        ):
            self.assertEqual(self.run_here("compare", store, store, option, value)[0], 64)

    def test_stores_of_different_segment_sizes(self) -> None:
        """Logs whose segments have different sizes cannot be replicas; that is said, with both sizes."""
        pair = Pair(self.folder, make_store(1, 300))
        log = pair.slave / "commitlog"
        shutil.rmtree(log)
        log.mkdir()
        for number in range(3):
            (log / f"{number * 4096:020d}").write_bytes(bytes(4096))
        self.assert_refused(self.compare(pair.master, pair.slave), "4096", "65536")

    def test_help_names_the_exit_statuses(self) -> None:
        """The help of compare says what each exit status means."""
        status, out, _ = self.run_here("compare", "--help")
        self.assertEqual(status, 0)
        for text in (
            "0   consistent",
            "1   consistent, with warnings",
            "2   inconsistent",
            "3   incomplete",
            "64",
            "70",
        ):
            self.assertIn(text, out)


#: a script finds modules beside itself, also where the tests ask for the contrary
FROM_ITS_FOLDER = {"PYTHONSAFEPATH": ""}


class MissingSparkTests(CommandCase):
    def test_without_a_jdk_the_local_engine_is_named(self) -> None:
        """Where there is no Java the Spark engine says so in one line, and what to use instead."""
        folder = self.golden("pair-equal-4.9.7")
        for java_home in ("", str(self.folder)):
            answer = rmq_audit(
                "compare",
                folder / "master",
                folder / "slave",
                environment={"PATH": "/nonexistent", "JAVA_HOME": java_home},
            )
            self.assert_refused((answer.returncode, answer.stdout, answer.stderr), "needs a JDK", "--engine local")

    def test_an_old_java_is_named(self) -> None:
        """Java 11 is found and refused with its version."""
        java = self.folder / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
        java.chmod(0o755)
        folder = self.golden("pair-equal-4.9.7")
        answer = rmq_audit("compare", folder / "master", folder / "slave", environment={"JAVA_HOME": str(self.folder)})
        self.assert_refused((answer.returncode, answer.stdout, answer.stderr), "is Java 11", "--engine local")

    def test_a_java_that_fails_is_named(self) -> None:
        """When Spark does not start, one line says where its output is, and the file is there."""
        need_extra("audit")
        java = self.folder / "bin" / "java"
        java.parent.mkdir()
        told = "echo 'version \"17.0.1\"' >&2; exit 0"
        java.write_text(f"#!/bin/sh\n[ $1 = -version ] && {{ {told}; }}\necho broken >&2\nexit 3\n")
        java.chmod(0o755)
        folder = self.golden("pair-equal-4.9.7")
        environment = {"JAVA_HOME": str(self.folder), "TMPDIR": str(self.folder)}
        answer = rmq_audit("compare", folder / "master", folder / "slave", environment=environment)
        self.assert_refused((answer.returncode, answer.stdout, answer.stderr), "Spark did not start", "spark.log")
        self.assertIn("broken", Path(answer.stderr.split()[-1]).read_text())

    def test_without_pyspark_the_local_engine_is_named(self) -> None:
        """Where PySpark is not installed the Spark engine says so in one line, and the local engine works."""
        (self.folder / "pyspark.py").write_text("raise ImportError('No module named pyspark')\n")
        folder = self.golden("pair-equal-4.9.7")
        script = self.folder / "run.py"
        script.write_text("import sys\nfrom rmq_audit.__main__ import main\nmain()\n")
        arguments = ["compare", folder / "master", folder / "slave"]
        answer = rmq_audit(*arguments, module=[str(script)], environment=FROM_ITS_FOLDER)
        self.assert_refused(
            (answer.returncode, answer.stdout, answer.stderr), "PySpark", "--engine local", "txrocketmq[audit]"
        )
        answer = rmq_audit(*arguments, "--engine", "local", module=[str(script)], environment=FROM_ITS_FOLDER)
        self.assertEqual(answer.returncode, 0)

    def test_the_light_install_names_the_extra(self) -> None:
        """Without numpy, as after an install without extras, one line says what to install."""
        (self.folder / "numpy.py").write_text("raise ImportError('No module named numpy')\n")
        script = self.folder / "run.py"
        script.write_text("from rmq_audit.__main__ import main\nmain()\n")
        answer = rmq_audit("compare", "a", "b", "--engine", "local", module=[str(script)], environment=FROM_ITS_FOLDER)
        self.assert_refused((answer.returncode, answer.stdout, answer.stderr), "numpy", "txrocketmq[audit]")


class BundleTests(CommandCase):
    def test_the_shipped_zip_is_enough(self) -> None:
        """
        What Spark's workers get runs without the product: the work imports from the zip alone, and without Twisted.
        """
        path = self.folder / "job.zip"
        write_bundle(str(path))
        code = (
            "import sys; sys.path = [p for p in sys.path if 'rmq' not in p or 'site-packages' in p]; "
            f"sys.path.insert(0, {str(path)!r}); import rmq_audit.worker as w; "
            "assert w.__file__.startswith(sys.path[0]), w.__file__; "
            "import importlib, pkgutil; "
            "names = [one.name for one in pkgutil.iter_modules(w.__path__) if one.name != '_kernel']; "
            "modules = [importlib.import_module(f'rmq_audit.worker.{name}') for name in names]; "
            "assert not any(name.split('.')[0] == 'twisted' for name in sys.modules); "
            "found = (one for module in modules for one in vars(module).values()); "
            "print(sorted({one.name for one in found if isinstance(one, modules[names.index('work')].Work)}))"
        )
        answer = rmq_audit(module=["-c", code], environment={"PYTHONPATH": ""})
        self.assertEqual(
            answer.stdout.strip(),
            "['acked', 'drill', 'indexes', 'names', 'queues', 'scan', 'trim', 'units']",
            answer.stderr,
        )
