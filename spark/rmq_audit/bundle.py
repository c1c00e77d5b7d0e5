"""
The audit as a zip that Spark's workers import: itself and the modules of the broker that it reads stores with.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import zipfile

from rmq_audit.shipped import LIBRARY_SUFFIX, archive

#: what the workers need beside this package
BORROWED = ("rmq.wire.record", "rmq.wire.compiled", "rmq.wire.loosejson", "rmq.store.layout")


def write_bundle(path: str) -> None:
    """
    Write the zip; packages above the borrowed modules get empty ``__init__`` files, and nothing of Twisted comes
    along. The compiled kernel does; workers with another Python or on other machines leave it alone. An audit that
    itself runs out of a zip hands that on.
    """
    packed = archive()
    if packed is not None:
        shutil.copyfile(packed, path)
        return
    files: dict[str, str | None] = {}
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in sorted(os.listdir(folder)):
        if name.endswith((".py", LIBRARY_SUFFIX)):
            files[f"rmq_audit/{name}"] = os.path.join(folder, name)
    for module in BORROWED:
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            raise ImportError(f"{module} is not installed")
        parts = module.split(".")
        for depth in range(1, len(parts)):
            files["/".join(parts[:depth]) + "/__init__.py"] = None
        files["/".join(parts) + ".py"] = found.origin
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, source in files.items():
            if source is None:
                bundle.writestr(name, "")
            else:
                bundle.write(source, name)
