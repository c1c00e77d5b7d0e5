"""
The choice between Python modules and their compiled twins.

A compiled module is a faster way to the same bytes; everything works without it. The environment variable
RMQ_PURE_PYTHON (any text) switches all of them off.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

PURE_PYTHON = "RMQ_PURE_PYTHON"


def load(name: str) -> ModuleType | None:
    """Return the compiled module ``name``; None where it was not built or is switched off."""
    if os.environ.get(PURE_PYTHON):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
