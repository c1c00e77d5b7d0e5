"""Nothing is left out without a word: what the tests need is named, and in CI its lack is a failure."""

from __future__ import annotations

import ast
import configparser
import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import hatch_build
from rmq.wire import compiled
from tests import needs
from tests.needs import COMPILED, EXTRAS, ROOT, need_compiled

#: a pytest run in a process of its own, in which modules are as if they were not installed
RUN = """
import importlib.machinery, os, sys
hidden = os.environ["HIDDEN"].split()
class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden)
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


class NeedsTests(SynchronousTestCase):
    def test_what_is_tested(self) -> None:
        """A run that must test the installed wheel does not test the checkout, and in CI nothing is missing."""
        self.assertIsNone(needs.refusal())

    def test_every_compiled_module_is_listed(self) -> None:
        """A module that hatch_build.py compiles cannot be missing unnoticed."""
        sources = [path for base in ("rmq", "spark") for path in (ROOT / base).rglob("*.pyx")]
        names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("spark.") for path in sources}
        self.assertEqual(names, set(COMPILED))

    def test_every_extra_is_listed(self) -> None:
        """An extra of pyproject.toml cannot be missing unnoticed."""
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        self.assertEqual(set(project["optional-dependencies"]) - {"dev", "test"}, set(EXTRAS) - {"moto (extra dev)"})

    def test_wheel(self) -> None:
        """Where the wheel is to be tested, a run that imports the checkout is refused."""
        self.patch(os, "environ", {**os.environ, needs.WHEEL: "1"})
        self.patch(needs, "is_checkout", lambda: True)
        self.assertIn("not the installed wheel", str(needs.refusal()))

    def test_not_needed(self) -> None:
        """In CI a run does without the extras that its environment names, and without no other one."""
        self.patch(needs, "MUST_RUN", True)
        self.patch(needs, "_is_there", lambda name: name not in ("pyspark", "OpenSSL"))
        environment = {k: v for k, v in os.environ.items() if k != needs.WHEEL}
        for not_needed, expected in (
            ("", ["extra audit: pyspark", "extra tls: OpenSSL"]),
            ("audit,acl", ["extra tls: OpenSSL"]),
            ("audit,tls", []),
            ("audit,tsl", ["tsl, which is no extra"]),
        ):
            self.patch(os, "environ", environment | {needs.NOT_NEEDED: not_needed})
            refusal = needs.refusal()
            self.assertEqual(refusal is None, not expected, refusal)
            for text in expected:
                self.assertIn(text, str(refusal))
            self.assertEqual("pyspark" in str(refusal), not not_needed, refusal)
            self.assertIn("left out, missing: extra audit: pyspark not installed", needs.left_out())
        self.assertRaises(AssertionError, needs.need_extra, "audit")

    def test_what_needs_an_extra_has_it(self) -> None:
        """No environment of tox that runs tests of the audit or of real peers goes without its extras."""
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(ROOT / "tox.ini")
        light = {name for name in settings.sections() if "[light]set_env" in settings.get(name, "set_env", fallback="")}
        self.assertEqual(light, {"testenv:trial", "testenv:campaign", "testenv:reactor", "testenv:kit"})
        for name in light:
            self.assertNotRegex(
                settings.get(name, "commands"),
                r"tests[./](spark|real)|pytest -q (?!tests/campaign|\{posargs:tests/testing/)",
            )

    def test_missing(self) -> None:
        """A test without its need is skipped by name; in CI it fails by name."""
        self.patch(needs, "MUST_RUN", False)
        with self.assertRaisesRegex(SkipTest, "missing: a loom"):
            needs.missing("a loom")
        self.patch(needs, "MUST_RUN", True)
        with self.assertRaisesRegex(AssertionError, "missing: a loom"):
            needs.missing("a loom")

    def test_compiled_module(self) -> None:
        """A test of a compiled module that was not built is left out, in CI too where Python's twins are asked for."""
        found = importlib.util.find_spec
        self.patch(importlib.util, "find_spec", lambda name: None if name in COMPILED else found(name))
        self.patch(os, "environ", {k: v for k, v in os.environ.items() if k != "RMQ_PURE_PYTHON"})
        self.patch(needs, "MUST_RUN", True)
        for name in COMPILED:
            self.assertRaises(AssertionError, needs.need_compiled, name)
            self.assertIn(name, str(needs.refusal()))
        os.environ["RMQ_PURE_PYTHON"] = "1"
        for name in COMPILED:
            self.assertRaises(SkipTest, needs.need_compiled, name)


class RunTests(SynchronousTestCase):
    """Whole runs of pytest."""

    def run_pytest(self, *arguments: str, hidden: str = "", **environment: str) -> tuple[int, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "RMQ_CI"}
        done = subprocess.run(
            [sys.executable, "-c", RUN, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**inherited, **needs.imports(), "HIDDEN": hidden, **environment},
        )
        return done.returncode, done.stdout + done.stderr

    def test_processes_keep_their_bytecode(self) -> None:
        """What a test starts does not compile the packages again, wherever the run began."""
        self.assertNotIn("PYTHONDONTWRITEBYTECODE", os.environ)

    def test_each_module_of_an_extra(self) -> None:
        """Whichever is not installed, a quiet run names it at its head and end; in CI the run is refused by name."""
        path = str(ROOT / "tests" / "test_needs.py")
        modules = [module for names in EXTRAS.values() for module in names] + list(COMPILED)
        code, output = self.run_pytest("--collect-only", path, hidden=" ".join(modules), RMQ_PURE_PYTHON="")
        self.assertEqual(code, 0, output)
        for name in modules:
            self.assertEqual(len([line for line in output.splitlines() if "missing" in line and name in line]), 2, name)
        code, output = self.run_pytest("--collect-only", path, PATH="/nowhere")
        for name in needs.TOOLS:
            self.assertEqual(output.count(f"left out, missing: {name} on PATH"), 2, output)
        code, output = self.run_pytest("--collect-only", path, hidden=" ".join(modules), RMQ_PURE_PYTHON="", RMQ_CI="1")
        self.assertNotEqual(code, 0)
        for name in modules:
            self.assertIn(name, output)

    def test_audit_without_pyarrow(self) -> None:
        """With the extra audit-local alone, modules that need more are skipped by name; the rest is collected."""
        folder = ROOT / "tests" / "spark"
        code, output = self.run_pytest("--collect-only", str(folder), hidden="pyarrow pyspark")
        self.assertEqual(code, 0, output)
        self.assertIn("missing: extra audit", output)
        self.assertIn("test_kernel.py", output)

    def test_skips_in_ci(self) -> None:
        """A test that skips on its own fails in CI, unless a variable asked for it."""
        folder = Path(self.mktemp())
        folder.mkdir()
        (folder / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
        test = folder / "test_skips.py"
        test.write_text(
            "import pytest\n"
            "def test_quietly(): pytest.skip('no loom here')\n"
            "@pytest.mark.skip(reason='RMQ_REAL_OURS: not now')\n"
            "def test_asked_for(): pass\n"
            "@pytest.mark.xfail\n"
            "def test_known(): assert 0\n"
        )
        code, output = self.run_pytest(str(test.absolute()), RMQ_CI="1")
        self.assertEqual(code, 1, output)
        self.assertIn("1 failed, 1 skipped, 1 xfailed", output)
        self.assertIn("no loom here", output)

    def test_hanging_test(self) -> None:
        """A test that never ends fails at its limit, and the others go on."""
        folder = Path(self.mktemp())
        folder.mkdir()
        test = folder / "test_hangs.py"
        test.write_text("def test_hangs():\n    while True: pass\ndef test_next(): pass\n")
        code, output = self.run_pytest("--timeout", "1", str(test.absolute()))
        self.assertEqual(code, 1, output)
        self.assertIn("1 failed, 1 passed", output)

    def test_hanging_compiled_code(self) -> None:
        """Where no signal reaches it, the run ends and shows the line."""
        folder = Path(self.mktemp())
        folder.mkdir()
        (folder / "conftest.py").write_text("from tests.conftest import pytest_configure, pytest_runtest_protocol\n")
        test = folder / "test_hangs.py"
        test.write_text("import itertools\ndef test_hangs():\n    sum(itertools.repeat(0))\n")
        code, output = self.run_pytest("--timeout", "1", str(test.absolute()))
        self.assertEqual(code, 1, output)
        self.assertIn('test_hangs.py", line 3 in test_hangs', output)


class BuildTests(SynchronousTestCase):
    def test_a_compiled_module_that_cannot_be_built(self) -> None:
        """Without a compiler the package is built without it, with a word; in CI the build fails and names it."""
        folder = Path(self.mktemp()).absolute()
        (folder / "pack").mkdir(parents=True)
        (folder / "pack" / "_broken.pyx").write_text("this is no Cython")
        self.patch(hatch_build, "ROOT", folder)
        self.patch(hatch_build, "PACKAGES", ((folder, "pack"),))
        errors = io.StringIO()
        self.patch(os, "environ", {k: v for k, v in os.environ.items() if k not in ("RMQ_CI", "RMQ_PURE_PYTHON")})
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            self.assertEqual(hatch_build.compile_all(), [])
            self.assertIn("pack/_broken.pyx is not compiled", errors.getvalue())
            os.environ["RMQ_CI"] = "1"
            with self.assertRaisesRegex(SystemExit, "pack/_broken.pyx is not compiled"):
                hatch_build.compile_all()

    def test_modules_for_linux_only(self) -> None:
        """A module that includes headers of Linux is compiled there only, so that CI's rule holds on macOS too."""
        tried: list[str] = []

        def compile_one(name: str, source: Path, target: Path, origin: str) -> str:
            tried.append(name)
            return ""

        self.patch(hatch_build, "_compile_apart", compile_one)
        self.patch(sysconfig, "get_config_var", lambda name: ".none.so")
        self.patch(os, "environ", {k: v for k, v in os.environ.items() if k != "RMQ_PURE_PYTHON"})
        sources = {
            ".".join(path.relative_to(base).with_suffix("").parts): path.read_text("utf-8")
            for base, package in hatch_build.PACKAGES
            for path in (base / package).rglob("*.pyx")
        }
        headers = r'extern from "(sys/(?!socket)|linux/)'
        self.assertEqual({name for name, text in sources.items() if re.search(headers, text)}, hatch_build.LINUX_ONLY)
        for platform, names in (("linux", sources.keys()), ("darwin", sources.keys() - hatch_build.LINUX_ONLY)):
            self.patch(sys, "platform", platform)
            self.assertEqual(len(hatch_build.compile_all()), len(names))
            self.assertEqual(set(tried), names)
            tried.clear()

    def test_a_compiled_module_of_another_source(self) -> None:
        """A library that was compiled from another source, or has none any more, is refused with what to do."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        module = ModuleType("pack._fast")
        module.__file__ = str(folder / "_fast.so")
        source = folder / "_fast.pyx"
        source.write_bytes(b"x = 1")
        layout = Path(compiled.LAYOUT).read_bytes()
        parts = [Path(path).read_bytes() for path in compiled.INCLUDES]
        module.COMPILED_FROM = compiled.checksum(b"x = 1", *parts)  # type: ignore[attr-defined]
        compiled.check(module)
        included = folder / "layout"
        self.patch(compiled, "INCLUDES", (str(included), *compiled.INCLUDES[1:]))
        included.write_bytes(b"fields that lie elsewhere")
        self.assertRaisesRegex(ImportError, "_fast.pyx as it is now: run python hatch_build.py", compiled.check, module)
        included.write_bytes(layout)
        source.write_bytes(b"x = 2")
        self.assertRaisesRegex(ImportError, "_fast.pyx as it is now: run python hatch_build.py", compiled.check, module)
        source.unlink()
        self.assertRaisesRegex(ImportError, "has no source .*_fast.pyx: delete it", compiled.check, module)

    def test_an_import_compares(self) -> None:
        """A compiled module that is imported is compared with its source."""
        need_compiled("rmq.store._pick")
        module = compiled.load("rmq.store._pick")
        assert module is not None
        self.patch(module, "COMPILED_FROM", "crc32:00000000")
        self.assertRaisesRegex(ImportError, "_pick.pyx as it is now", compiled.load, "rmq.store._pick")

    def test_checksums_agree(self) -> None:
        """What the build writes into a module is what the import compares."""
        self.assertEqual(hatch_build._checksum([b"cdef int x", b"y"]), compiled.checksum(b"cdef int x", b"y"))
        names = [path.name for path in hatch_build.INCLUDES]
        self.assertEqual(names, [Path(path).name for path in compiled.INCLUDES])


class LimitTests(SynchronousTestCase):
    def test_step_that_hangs(self) -> None:
        """A step of CI that hangs ends with what it started, and is named; one that ends has its own status."""
        limit = [sys.executable, str(ROOT / "tests" / "limit.py")]
        sleep = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
        done = subprocess.run(
            [*limit, "1", "the long step", sys.executable, "-c", sleep], capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stdout), (124, "begun\n"))
        self.assertIn("the long step took more than 1 s", done.stderr)
        done = subprocess.run([*limit, "60", "it", sys.executable, "-c", "exit(3)"], text=True, timeout=60)
        self.assertEqual(done.returncode, 3)


class SeedTests(SynchronousTestCase):
    def drawn(self, **environment: str) -> list[int]:
        inherited = {name: value for name, value in os.environ.items() if name not in ("RMQ_CI", "RMQ_SEED")}
        code = "from tests.seeds import *; print(SEED, EXAMPLES_SEED)"
        printed = subprocess.check_output(
            [sys.executable, "-c", code], text=True, timeout=60, env={**inherited, **needs.imports(), **environment}
        )
        return [int(one) for one in printed.split()]

    def test_rmq_seed(self) -> None:
        """RMQ_SEED repeats a run; without it each run draws, but the examples of hypothesis in CI stay the same."""
        self.assertEqual(self.drawn(RMQ_SEED="7"), [7, 7])
        self.assertEqual(self.drawn(RMQ_SEED="7", RMQ_CI="1"), [7, 7])
        first, second = self.drawn(), self.drawn()
        self.assertNotEqual(first, second)
        self.assertEqual(first[0], first[1])
        self.assertEqual(self.drawn(RMQ_CI="1")[1], 0)


class ConditionsTests(SynchronousTestCase):
    def test_file_system(self) -> None:
        """A benchmark names the file system that its stores lie on, so that it can warn of one in memory."""
        from bench.conditions import file_system

        mounts = "disk / ext4 rw 0 0\nnone /mem tmpfs rw 0 0\nnone /mem/disk xfs rw 0 0\n"
        for folder, kind in (("/var/x", "ext4"), ("/mem/x", "tmpfs"), ("/memory", "ext4"), ("/mem/disk/x", "xfs")):
            self.assertEqual(file_system(Path(folder), mounts), kind, folder)


class PortTests(SynchronousTestCase):
    def test_no_port_twice(self) -> None:
        """Two runs at once never give the same port to two servers, also while one of these is down."""
        code = (
            "from tests import ports; ports.PORTS = range(12000, 12100); print([ports.free_port() for _ in range(6)])"
        )
        env = {**os.environ, **needs.imports()}
        wait = [sys.executable, "-c", f"{code}; import sys; sys.stdout.flush(); sys.stdin.read()"]
        with subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as first:
            assert first.stdout is not None
            issued = ast.literal_eval(first.stdout.readline())
            second = ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], env=env, text=True))
            self.assertEqual(len({port + n for port in (*issued, *second) for n in (-2, -1, 0, 1)}), 48)
