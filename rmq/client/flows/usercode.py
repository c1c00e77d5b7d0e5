"""Calls of what users wrote: whatever it raises, the client goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq.client.host import Host


async def outcome(host: Host, handler: Callable[[Any], Any], argument: object) -> tuple[object, Exception | None]:
    """Call a handler and return its result and what it raised; a cancellation goes on."""
    try:
        return await host.call(handler, argument), None
    except host.CANCELLED:
        raise
    except Exception as error:  # noqa: BLE001 - any failure of a handler means that the message comes again
        return None, error
