"""
Parts of the audit as a zip that Spark's workers import: the code that they run, and the modules of the broker that it
reads stores with.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import zipfile

import rmq_audit
from rmq_audit.worker.kernel import LIBRARY_SUFFIX, archive

#: what the workers need beside this package
BORROWED = ("rmq.wire.record", "rmq.wire.compiled", "rmq.wire.loosejson", "rmq.store.layout")


def write_bundle(path: str, part: str = "worker") -> None:
    """
    Write a zip with one folder of this package; "" for all of them, to run the audit where it is not installed.

    Packages above the borrowed modules get empty ``__init__`` files, and nothing of Twisted comes along. The compiled
    kernel does; workers with another Python or on other machines leave it alone. An audit that itself runs out of a zip
    hands that on.
    """
    packed = archive()
    if packed is not None:
        shutil.copyfile(packed, path)
        return
    files: dict[str, str | None] = {"rmq_audit/__init__.py": None}
    root = os.path.dirname(os.path.abspath(str(rmq_audit.__file__)))
    for folder, _, there in sorted(os.walk(os.path.join(root, part))):
        for file in sorted(there):
            if file.endswith((".py", LIBRARY_SUFFIX)):
                inside_zip = os.path.relpath(os.path.join(folder, file), root)
                files[f"rmq_audit/{inside_zip}"] = os.path.join(folder, file)
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
