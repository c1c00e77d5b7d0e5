"""The close of a client or a consumer, as a coroutine that does not end with its caller."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from rmq.client.flows.attempt import attempt
from rmq.client.flows.usercode import InHandler, is_in_handler
from rmq.client.host import Host
from rmq.client.types import CloseReport


class Closing:
    """
    Closes ``what`` once, in a coroutine of its own: a caller that is cancelled does not end it, and each caller gets
    its report. Those who wait when it fails get its failure.
    """

    def __init__(
        self, host: Host, what: object, close: Callable[[], Coroutine[Any, Any, CloseReport]], *, name: str
    ) -> None:
        self._host = host
        self._what = what
        self._close = close
        self._name = name
        self._pid = host.pid()
        self._begun = False
        self._over = host.gate()
        self._report = CloseReport()
        self._error: Exception | None = None

    async def report(self) -> CloseReport:
        """
        Close, and wait for the end.

        In a handler for which the close waits, there is no wait, and the report is empty. In a process that was forked
        meanwhile nothing is done: coroutines, connections and groups are the parent's.
        """
        if self._host.pid() != self._pid:
            return CloseReport()
        waits_for_caller = is_in_handler(self._what)
        if not self._begun:
            self._begun = True
            self._host.spawn(self._run(), name=self._name)
        if waits_for_caller:
            return CloseReport()
        was_over = self._over.is_open
        await self._over.wait()
        if self._error is not None and not was_over:
            raise self._error
        return self._report

    async def _run(self) -> None:
        try:
            with InHandler():
                report, self._error = await attempt(self._host, self._close())
            self._report = report or CloseReport()
        finally:
            self._over.open()
