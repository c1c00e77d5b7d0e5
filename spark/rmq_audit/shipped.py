"""
The compiled kernel, wherever this package comes from: a folder, or the zip that Spark brought to a worker.

The system loads libraries from files only, so the one in a zip is written to a file first, which is gone as soon as it
is loaded.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import tempfile
import zipimport
from types import ModuleType

from rmq.wire.compiled import PURE_PYTHON, load

#: files of this package's folder with this end are libraries for this Python on this kind of machine
LIBRARY_SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


#: what imported this module: for a folder it is something else
_ZIP = __spec__.loader if isinstance(__spec__.loader, zipimport.zipimporter) else None


def archive() -> str | None:
    """Return the zip that this package was imported from, None where it lies in a folder."""
    return None if _ZIP is None else _ZIP.archive


def load_compiled(name: str) -> ModuleType | None:
    """Return the compiled module ``name``; None where there is none for this Python, or where it is switched off."""
    found = load(name)
    if found is not None or _ZIP is None or os.environ.get(PURE_PYTHON):
        return found
    try:
        data = _ZIP.get_data(name.replace(".", "/") + LIBRARY_SUFFIX)
        with tempfile.NamedTemporaryFile(suffix=LIBRARY_SUFFIX) as file:
            file.write(data)
            file.flush()
            spec = importlib.util.spec_from_file_location(name, file.name)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except (OSError, ImportError):
        # made for another machine, or /tmp may hold no programs
        return None
    return module
