"""What a role shows at its HTTP port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from rmq.runtime.http.metrics import Collector

METRICS, HEALTH = "/metrics", "/healthz"


@attrs.frozen(kw_only=True)
class Face:
    """
    What a role shows.

    ``pages`` maps paths to functions that get the query (the last value of each name) and return a whole HTML page;
    "/" is one of them. ``health`` returns None, or the reason why the role does not serve.
    """

    collectors: tuple[Collector, ...]
    pages: Mapping[str, Callable[[Mapping[str, str]], str]]
    health: Callable[[], str | None]
