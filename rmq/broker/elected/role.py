"""What a broker must know of the role that a controller gave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from rmq.ha.session import Term
from rmq.store.epochs import Epoch


@attrs.frozen(kw_only=True)
class ElectedRole:
    """``loaded`` is called with the end of the log once it is known, before anybody can write or read."""

    term: Term
    loaded: Callable[[int], None]
    epochs: Callable[[], Sequence[Epoch]]
    #: called when the controller says that something has changed
    notified: Callable[[], None]
