"""
The choice between Python modules (reference) and compiled modules (fast path).

A compiled module is a faster way to the same bytes; everything works without it. The environment variable
RMQ_PURE_PYTHON (any text) switches all of them off. Each holds the checksum of the source that it was compiled from,
with the files that such sources include, and is refused beside any other: an old one would do what the code did before
its last change.
"""

from __future__ import annotations

import importlib
import os
import zlib
from importlib.machinery import ExtensionFileLoader
from types import ModuleType

PURE_PYTHON = "RMQ_PURE_PYTHON"
#: where the fields of a record lie, for compiled modules
LAYOUT = os.path.join(os.path.dirname(__file__), "record_layout.pxi")
#: all files that their sources include
INCLUDES = (LAYOUT, os.path.join(os.path.dirname(__file__), "crc32.pxi"))


def load(name: str) -> ModuleType | None:
    """
    Return the compiled module ``name``; None where it was not built or is switched off.

    ImportError when it was compiled from another source than the one beside it.
    """
    if os.environ.get(PURE_PYTHON):
        return None
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    check(module)
    return module


def checksum(source: bytes, *includes: bytes) -> str:
    """Return what a compiled module keeps of its source and of INCLUDES."""
    return f"crc32:{zlib.crc32(b''.join((source, *includes))):08x}"


def check(module: ModuleType) -> None:
    """Raise ImportError unless ``module`` was compiled from the source beside it."""
    path = str(module.__file__)
    source = os.path.join(os.path.dirname(path), module.__name__.rpartition(".")[2] + ".pyx")
    get_data = ExtensionFileLoader(module.__name__, path).get_data
    try:
        found = checksum(get_data(source), *map(get_data, INCLUDES))
    except FileNotFoundError:
        raise ImportError(f"{path} has no source {source}: delete it, it was compiled for other code") from None
    if found != getattr(module, "COMPILED_FROM", None):
        raise ImportError(
            f"{path} was not compiled from {source} as it is now: run python hatch_build.py, or set {PURE_PYTHON}=1"
        )
