"""
The chance in tests that draw new cases in each run: one seed for all of them.

The head of a run of pytest names it, and the test that fails; ``RMQ_SEED=N`` repeats the run with it.
"""

from __future__ import annotations

import os
import random

from tests.needs import MUST_RUN

_DRAWN = "drawn"

_chosen = os.environ.get("RMQ_SEED") or f"{random.SystemRandom().randrange(2**32)} {_DRAWN}"
#: so that processes of this run (pytest-xdist's workers) draw the same
os.environ["RMQ_SEED"] = _chosen

SEED = int(_chosen.split()[0])

#: for ``hypothesis.seed``: in CI always the same examples, unless RMQ_SEED was set
EXAMPLES_SEED = 0 if MUST_RUN and _chosen.endswith(_DRAWN) else SEED
