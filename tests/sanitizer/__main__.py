"""
Compile every ``.pyx`` with AddressSanitizer and UndefinedBehaviorSanitizer, and feed it generated inputs.

``python -m tests.sanitizer [--inputs N] [--seed S]``; exit status 1 with the sanitizer's report when a module reads or
writes where it must not. Needs gcc with its sanitizers. What is compiled is a copy; the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hatch_build

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.sanitizer", description=__doc__.strip().splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs of all modules together (1000000)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs (1)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "rmq", copy / "rmq", ignore=ignore)
        shutil.copytree(ROOT / "spark" / "rmq_audit", copy / "rmq_audit", ignore=ignore)
        hatch_build.ROOT = copy
        hatch_build.PACKAGES = ((copy, "rmq"), (copy, "rmq_audit"))
        hatch_build.FLAGS += FLAGS
        os.environ["RMQ_CI"] = "1"
        built = hatch_build.compile_all()
        print(f"compiled with sanitizers: {', '.join(path.name.partition('.')[0] for path in built)}", flush=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(_library, ("libasan.so", "libubsan.so"))),
            # Python keeps what it allocates until its end; with malloc each object has borders of its own.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join((str(copy), str(ROOT))),
            "PYTHONSAFEPATH": "1",
        }
        command = [sys.executable, "-m", "tests.sanitizer.inputs", str(options.inputs), str(options.seed), str(copy)]
        return subprocess.run(command, env=environment, check=False).returncode


def _library(name: str) -> str:
    """Return where the compiler has one of its libraries."""
    done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
