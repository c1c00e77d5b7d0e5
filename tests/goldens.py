"""Store directories of real Apache brokers, as archives in ``tests/golden/stores``."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

STORES = Path(__file__).resolve().parent / "golden" / "stores"

#: CPython 3.11.2, Debian 12's, extracts without a filter only
_SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpack_store(name: str, folder: Path) -> None:
    """Unpack the archive ``name`` into ``folder``, which exists."""
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, **_SAFE)
