"""Do the sanitizer's inputs fit the compiled modules as they are? Here without a sanitizer: that takes minutes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmq.wire.compiled import load
from tests.needs import need_compiled
from tests.seeds import SEED

MODULES = ("rmq.store._record", "rmq.store._pick", "rmq.remoting._fastpath", "rmq.namesrv._lanes", "rmq.runtime._lean")


def test_they_fit() -> None:
    """Each kind of input reaches its module with the arguments that it takes."""
    pytest.importorskip("numpy")
    for module in (*MODULES, "rmq_audit.worker._kernel"):
        need_compiled(module)
    assert all(load(module) for module in MODULES)
    # Lazy import: it needs numpy.
    from tests.sanitizer.inputs import KINDS

    for name, (make, _) in KINDS.items():
        once: Any = make()
        for number in range(20):
            once(random.Random(f"{SEED}/{name}/{number}"))
