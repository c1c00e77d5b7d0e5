"""
Compiles the modules that have a faster twin in Cython, where that is possible; the hook of the package's build.

Without a C compiler, or without Python's headers, the package is built without them and does the same more slowly.
With RMQ_CI set the build fails instead, and names what is not compiled.
``python hatch_build.py`` compiles them in place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
#: what the modules include
INCLUDES = [ROOT / "rmq" / "wire" / name for name in ("record_layout.pxi", "crc32.pxi")]
#: where the packages with compiled modules begin
PACKAGES = ((ROOT, "rmq"), (ROOT / "spark", "rmq_audit"))
#: need epoll(7) or eventfd(2), and are of no use without it
LINUX_ONLY = frozenset({"rmq.runtime._lean", "rmq.runtime.disk._syncs"})
#: added to each module: what rmq.wire.compiled compares, and what this file finds in the library
ORIGIN = '''
COMPILED_FROM = "{checksum}"

cdef extern from *:
    """
    static const char rmq_origin[] __attribute__((used)) = "{origin}";
    """
'''
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing", "-Wno-unused-function"]
#: debug information names the temporary folder, and equal sources are to give equal wheels
LINK_FLAGS = ["-Wl,--strip-debug"] if sys.platform == "linux" else []


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel; makes them in place for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        built = compile_all()
        if built:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"] += [f"/{path.relative_to(ROOT)}" for path in built]


def compile_all() -> list[Path]:
    """
    Compile every ``.pyx`` from which its library was not compiled; return the libraries.

    What cannot be built is named on standard error, and left out; with RMQ_CI set it ends the build.
    """
    if os.environ.get("RMQ_PURE_PYTHON"):
        return []
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built, stale = [], []
    for base, package in PACKAGES:
        for source in sorted((base / package).rglob("*.pyx")):
            name = ".".join(source.relative_to(base).with_suffix("").parts)
            if name in LINUX_ONLY and sys.platform != "linux":
                continue
            target = source.with_suffix(suffix)
            built.append(target)
            origin = " ".join((_checksum(path.read_bytes() for path in (source, *INCLUDES)), *FLAGS))
            if not target.exists() or origin.encode() not in target.read_bytes():
                stale.append((name, source, target, origin))
    stale.sort(key=lambda job: -job[1].stat().st_size)  # the longest begins first
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        troubles = list(pool.map(lambda job: _compile_apart(*job), stale))
    for (_, source, target, _), trouble in zip(stale, troubles, strict=True):
        if trouble:
            text = f"{source.relative_to(ROOT)} is not compiled: {trouble}"
            if os.environ.get("RMQ_CI"):
                raise SystemExit(f"{text} (RMQ_CI is set: this is a failure)")
            print(text, file=sys.stderr)
            built.remove(target)
    return built


def _checksum(parts: Iterable[bytes]) -> str:
    """See rmq.wire.compiled.checksum, which compares it; this build must not import what it builds."""
    return f"crc32:{zlib.crc32(b''.join(parts)):08x}"


def _compile_apart(name: str, source: Path, target: Path, origin: str) -> str:
    """Compile a module in a process of its own, as each takes seconds; return what went wrong, or nothing."""
    command = [sys.executable, __file__, name, str(source), str(target), origin, *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else ""


def _compile(name: str, source: Path, target: Path, origin: str, flags: list[str]) -> None:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    # From inside, so that the library does not hold the name of the folder.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        copy = Path(folder, source.name)
        text = source.read_text(encoding="utf-8")
        for include in INCLUDES:
            shutil.copy(include, folder)
        copy.write_text(text + ORIGIN.format(origin=origin, checksum=origin.partition(" ")[0]), encoding="utf-8")
        # the compiler's own messages would stand in front of pip's
        modules = cythonize(
            [Extension(name, [source.name], extra_compile_args=flags, extra_link_args=LINK_FLAGS)],
            build_dir=folder,
            quiet=True,
            compiler_directives={"language_level": 3},
        )
        command = Distribution({"name": name, "ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib = command.build_temp = folder
        command.ensure_finalized()
        command.run()
        made = Path(command.get_ext_fullpath(name))
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(made, beside)
        beside.replace(target)


def main() -> None:
    if sys.argv[1:]:
        name, source, target, origin, *flags = sys.argv[1:]
        try:
            _compile(name, Path(source), Path(target), origin, flags)
        except Exception as error:
            raise SystemExit(str(error)) from error
    else:
        for path in compile_all():
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
