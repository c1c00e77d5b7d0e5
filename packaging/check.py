"""
``tox -e package``: builds the packages as they are published, and tries them where nothing else is installed.

``python packaging/check.py FOLDER`` works in FOLDER, which it makes again. The first thing that does not hold ends it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: what a wheel may hold
IN_WHEEL = re.compile(
    r"(rmq|rmq_audit|pyspark_rocketmq|pyspark_rocketmq_queue)/.*\.(py|pyx|pxi|so|css|js|typed)"
    r"|rmq/py\.typed|twisted/plugins/rmq_plugins\.py|txrocketmq-[^/]*\.dist-info/.*"
)
#: modules of rmq that need an extra (metrics, otel, manhole, pytest, hypothesis), and what they need; no other may
FOR_EXTRAS = {
    "rmq.broker.http.face",
    "rmq.broker.http.metrics",
    "rmq.client.otel",
    "rmq.client.prometheus",
    "rmq.namesrv.metrics",
    "rmq.runtime.http.metrics",
    "rmq.runtime.http.site",
    "rmq.runtime.prompt",
    "rmq.testing.plugin",
    "rmq.testing.strategies",
}
NEEDED = ("prometheus_client", "opentelemetry", "cryptography", "bcrypt", "pytest", "hypothesis")
#: the symbols of a wheel that is built here: 2.34 renamed those of threads; the publishing machine's images have 2.28
NEWEST_GLIBC = (2, 34)
#: what the publishing machine builds of [tool.cibuildwheel]: systems with their architectures, for each CPython
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
SYSTEMS = {
    "linux": ("manylinux_x86_64", "musllinux_x86_64", "manylinux_aarch64", "musllinux_aarch64"),
    "macos": ("macosx_arm64",),
}
#: the worst mark that `systemd-analyze security` may give a unit
WORST_EXPOSURE = 2.0
SOURCE_DATE_EPOCH = "1764028800"
#: of pyproject.toml: what the publishing machine does with each wheel
PUBLISHING = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]


class Failed(Exception):
    """Something does not hold; the text says what."""


def run(*command: str | Path, **environment: str) -> str:
    """Run a command to its end and return its output."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    if done.returncode:
        raise Failed(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def holds(condition: object, text: str) -> None:
    if not condition:
        raise Failed(text)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"{name} ...", end=" ", flush=True)
    yield
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def copy_of_sources(folder: Path) -> Path:
    """Copy what is in the repository (or in the folder, where there is none), without git."""
    try:
        names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    except (Failed, OSError):
        ignored = shutil.ignore_patterns(".*", "*.so", "__pycache__", "rmq-data")
        shutil.copytree(ROOT, folder, ignore=ignored)
        return folder
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(source: Path, out: Path, *what: str, **environment: str) -> list[Path]:
    environment = {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, **environment}
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *what, source, **environment)
    return sorted(out.iterdir())


def check_builds(folder: Path) -> tuple[Path, Path, Path]:
    """Build from two copies at different places; return a compiled wheel, a pure one and the sdist."""
    made = {}
    for name in ("one", "another-with-a-longer-name"):
        source = copy_of_sources(folder / name / "source")
        # sdist, then the wheel from it: so the sdist has all that it takes
        made[name] = build(source, folder / name / "dist", RMQ_CI="1")
    one, other = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths} for paths in made.values()
    )
    holds(one == other, f"two builds of equal sources differ: {one} {other}")
    wheel, sdist = sorted(made["one"], key=lambda path: path.suffix == ".gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("tests/__init__.py", "packaging/Containerfile", "docs/deployment.md", "tox.ini", "hatch_build.py"):
        holds(needed in names, f"{sdist.name} lacks {needed}")
    (pure,) = build(folder / "one" / "source", folder / "pure", "--wheel", RMQ_PURE_PYTHON="1")
    holds(pure.name.endswith("-py3-none-any.whl"), f"{pure.name} is not pure")
    holds("-none-any" not in wheel.name, f"{wheel.name} has no compiled modules")
    return wheel, pure, sdist


def check_finder(folder: Path, wheel: Path) -> None:
    """The empty distribution for those who look for a plugin of pytest has the version of the wheel and no file."""
    (empty,) = build(ROOT / "packaging" / "pytest-rocketmq", folder, "--wheel")
    version = wheel.name.split("-")[1]
    archive = zipfile.ZipFile(empty)
    strangers = [name for name in archive.namelist() if ".dist-info/" not in name]
    holds(not strangers, f"{empty.name} has {strangers}")
    metadata = archive.read(f"pytest_rocketmq-{version}.dist-info/METADATA").decode()
    holds(f"Requires-Dist: txrocketmq=={version}\n" in metadata, metadata)


def check_identifiers() -> None:
    """The publishing machine builds for these systems and no others."""
    for system, kinds in SYSTEMS.items():
        said = run("cibuildwheel", "--platform", system, "--print-build-identifiers").split()
        expected = {f"{python}-{kind}" for python in PYTHONS for kind in kinds}
        holds(set(said) == expected, f"cibuildwheel for {system}: {set(said) ^ expected}")


def check_contents(wheel: Path, pure: Path, sdist: Path) -> None:
    """Nothing is in the wheels that does not belong there, and nothing is missing."""
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, pure, sdist)
    run("check-wheel-contents", wheel, pure)
    run("validate-pyproject", ROOT / "pyproject.toml")
    for path in (wheel, pure):
        names = zipfile.ZipFile(path).namelist()
        strangers = [name for name in names if not IN_WHEEL.fullmatch(name)]
        holds(not strangers, f"{path.name} has {strangers}")
        for needed in (
            "rmq/py.typed",
            "twisted/plugins/rmq_plugins.py",
            "rmq_audit/__main__.py",
            "rmq/testing/plugin.py",
        ):
            holds(needed in names, f"{path.name} lacks {needed}")
        compiled = [name for name in names if name.endswith(".so")]
        sources = [name for name in names if name.endswith(".pyx")]
        holds(len(compiled) == (0 if path is pure else len(sources)), f"{path.name} has {compiled} of {sources}")
    shown = run("auditwheel", "show", wheel)
    found = re.search(r'platform tag:\s*"manylinux_(\d+)_(\d+)', " ".join(shown.split()))
    holds(found and (int(found[1]), int(found[2])) <= NEWEST_GLIBC, f"auditwheel: {shown}")


def repaired(wheel: Path, folder: Path) -> Path:
    """Return the wheel as it is published: auditwheel has given it the name of what it runs on."""
    name = "manylinux_{}_{}_{}".format(*NEWEST_GLIBC, os.uname().machine)
    run("auditwheel", "repair", "--plat", name, "-w", folder, wheel)
    (made,) = folder.iterdir()
    names = (zipfile.ZipFile(path).namelist() for path in (wheel, made))
    before, after = ({name for name in found if not name.endswith("/")} for found in names)
    holds(before == after, f"auditwheel changed what is in {made.name}: {before ^ after}")
    return made


def check_installed(wheel: Path, folder: Path, *, compiled: bool) -> None:
    """Install a wheel without extras in an empty environment: modules, scripts, a cluster, a message, and a test."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel)
    script = folder / "bin" / "rmq-admin"
    *others, count = run(python, "-c", IMPORT_ALL, *NEEDED, PYTHONSAFEPATH="1").split()
    holds(set(others) == FOR_EXTRAS, f"other modules need an extra: {set(others) ^ FOR_EXTRAS}")
    holds(int(count) > 200, f"only {count} modules were imported")
    holds("txrocketmq" in run(python, "-m", "rmq", PYTHONSAFEPATH="1"), "python -m rmq")
    for name, mark in (("local", "--masters"), ("admin", "topic"), ("namesrv", "--http"), ("broker", "--http")):
        holds(mark in run(folder / "bin" / f"rmq-{name}", "--help"), f"rmq-{name} --help")
    holds("RMQ_BROKER_IP1" in run(folder / "bin" / "rmq-container", "--help"), "rmq-container --help")
    holds("rmq-broker" in run(folder / "bin" / "twistd", "--help"), "twistd --help lists no rmq-broker")
    holds("listenPort=9876" in run(folder / "bin" / "twistd", "--nodaemon", "rmq-namesrv", "-p"), "twistd rmq-namesrv")
    for role in ("namesrv", "broker"):
        holds("listenPort=" in run(folder / "bin" / f"rmq-{role}", "--nodaemon", "--pidfile=", "-p"), role)
    holds("nothing found" in run(script, "config", "check", ROOT / "etc" / "broker-master.properties"), "config check")
    namesrv, master, slave = free_ports()
    command = [folder / "bin" / "rmq-local", "--dir", folder / "data", "--http-port", "0", "--namesrv-port", namesrv]
    command += ["--broker-port", master, "--slave-port", slave]
    cluster = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    try:
        assert cluster.stdout is not None
        holds(any(line.startswith("Ready.") for line in cluster.stdout), "rmq-local is not ready")
        addr = f"127.0.0.1:{namesrv}"
        run(script, "topic", "create", "orders", "-n", addr)
        run(script, "produce", "orders", "-m", "hello", "-n", addr)
        holds("hello" in run(script, "tail", "orders", "--from", "begin", "--exit", "-n", addr), "the message is lost")
    finally:
        cluster.send_signal(signal.SIGINT)
        cluster.communicate(timeout=90)
    holds(cluster.returncode == 0, f"rmq-local ended with {cluster.returncode}")
    check_plugin(folder)
    if compiled:
        with_extras = f"{wheel}[{','.join(PUBLISHING['test-extras'])}]"
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", with_extras)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        run("sh", "-c", PUBLISHING["test-command"], PATH=path, PYTHONSAFEPATH="1")


def check_plugin(folder: Path) -> None:
    """The test of README passes with pytest alone, which finds the plugin by its entry point."""
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "pytest>=8")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    tests = folder / "tests"
    tests.mkdir()
    example = next(block for block in blocks if "def test_" in block)
    here = f"\n\ndef test_installed():\n    import rmq\n    assert rmq.__file__.startswith({str(folder)!r})\n"
    (tests / "test_readme.py").write_text(example + here)
    # -c: not the configuration of the checkout, which has this folder
    said = run(folder / "bin" / "pytest", "-c", os.devnull, "--rootdir", tests, "-p", "no:cacheprovider", tests)
    holds("2 passed" in said, said)


#: prints the modules that need an extra, and the number of all others
IMPORT_ALL = """
import importlib, pkgutil, sys
import rmq
count = 0
for found in pkgutil.walk_packages(rmq.__path__, "rmq."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
        count += 1
    except ImportError as error:
        while error.__cause__ is not None:
            error = error.__cause__
        if (error.name or "").partition(".")[0] not in sys.argv[1:]:
            raise
        print(found.name)
print(count)
"""


def free_ports() -> list[int]:
    """Return a free port, and two with free neighbours."""
    found: list[int] = []
    while len(found) < 3:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if not 20_000 < port < 65_000 or any(abs(port - other) < 5 for other in found):
                continue
            with contextlib.suppress(OSError):
                for near in (port - 2, port + 1):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", near))
                found.append(port)
    return found


def check_units(folder: Path) -> None:
    """Systemd finds nothing to complain about, and rates the units well."""
    if shutil.which("systemd-analyze") is None:
        print("left out, missing: systemd-analyze on PATH", end=" ")
        return
    folder.mkdir()
    for path in (ROOT / "packaging" / "systemd").glob("*.service"):
        text = re.sub(r"/opt/rmq/bin/\S+", "/bin/true", path.read_text("utf-8"))
        unit = folder / path.name.replace("@.", "@a.")
        unit.write_text(text)
        if unit.name != path.name:
            (folder / path.name).write_text(text)
        said = run("systemd-analyze", "verify", "--man=no", unit)
        holds(not said.strip(), f"systemd-analyze verify {path.name}: {said}")
        said = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
        found = re.search(r"exposure level for \S+: ([\d.]+)", said)
        holds(found and float(found[1]) <= WORST_EXPOSURE, f"{path.name}: {said}")


def check_pages(folder: Path) -> None:
    """Manual pages and the next changelog can be made; groff reads the pages."""
    run(sys.executable, ROOT / "packaging" / "manpages.py", folder)
    pages = sorted(folder.iterdir())
    holds(len(pages) == 6, f"{pages}")
    readers = {
        "man": ("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"),
        "mandoc": ("mandoc", "-T", "lint", "-W", "warning"),
        "lexgrog": ("lexgrog",),  # what apropos and whatis find
    }
    for page in pages:
        for program, command in readers.items():
            if shutil.which(program) is None:
                print(f"left out, missing: {program} on PATH", end=" ")
                continue
            environment = {**os.environ, "MANROFFSEQ": "", "LC_ALL": "C.UTF-8"}
            done = subprocess.run([*command, page], env=environment, capture_output=True, text=True)
            complaints = done.stderr + (done.stdout if program == "mandoc" else "")
            holds(done.returncode == 0 and not complaints, f"{program} {page.name}: {complaints[:500]}")
    holds("## 9.9.9" in run("towncrier", "build", "--draft", "--version", "9.9.9"), "towncrier makes no changelog")


def check_formula() -> None:
    """Ruby reads the template of the formula for Homebrew."""
    if shutil.which("ruby") is None:
        print("left out, missing: ruby on PATH", end=" ")
        return
    run("ruby", "-c", ROOT / "packaging" / "homebrew" / "txrocketmq.rb")


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with step("three builds, two of them equal"):
            wheel, pure, sdist = check_builds(folder)
        with step("contents"):
            check_contents(wheel, pure, sdist)
            check_finder(folder / "finder", wheel)
        with step("what is published"):
            check_identifiers()
            wheel = repaired(wheel, folder / "published")
        for name, path in (("compiled", wheel), ("pure", pure)):
            with step(f"the {name} wheel in an empty environment"):
                check_installed(path, folder / f"with-{name}", compiled=path is wheel)
        with step("units"):
            check_units(folder / "units")
        with step("formula"):
            check_formula()
        with step("manual pages, changelog"):
            check_pages(folder / "man")
    except Failed as failed:
        sys.exit(f"FAILED\n{failed}")


if __name__ == "__main__":
    main()
