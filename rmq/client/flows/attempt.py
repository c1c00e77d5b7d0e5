"""Steps of the client of which one may fail, whatever the reason, without an end of the others."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from rmq.client.host import Host

T = TypeVar("T")


async def attempt(host: Host, step: Coroutine[Any, Any, T]) -> tuple[T | None, Exception | None]:
    """Return the result of a step and what it raised; a cancellation goes on."""
    try:
        return await step, None
    except host.CANCELLED:
        raise
    except Exception as error:  # noqa: BLE001 - the caller logs it
        return None, error
