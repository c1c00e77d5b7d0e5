"""
The journal of one NameServer: it records events and explains the routes with them.

:mod:`rmq.namesrv.journal.explain` is imported with the first question: most processes are never asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from rmq.namesrv.journal.eventlog import EventLog
from rmq.namesrv.routes import RouteTable
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms, steady_ms, wall_ms
from rmq.wire.api.explain import EXPLAIN_ROUTE, ExplainRouteHeader, RouteEventData, RouteExplanation
from rmq.wire.codes import ResponseCode

if TYPE_CHECKING:
    from rmq.namesrv.journal.explain import Now

#: events in one answer
MAX_RECENT = 500


class Journal:
    """
    Explains the routes of ``routes`` with the events in ``log``, to which the service adds them.

    ``started_ms`` is the steady time since which events are recorded; ``ready`` returns whether look-ups are answered.
    """

    def __init__(self, routes: RouteTable, clock: IReactorTime, *, ready: Callable[[], bool] = lambda: True) -> None:
        self.log = EventLog()
        self.started_ms = steady_ms(clock)
        self._routes = routes
        self._clock = clock
        self._ready = ready

    def recent(self, count: int = 20) -> list[RouteEventData]:
        """Return the last ``count`` events, oldest first."""
        return self.log.recent(count)

    def explain_topic(self, topic: str) -> RouteExplanation:
        """Explain which brokers serve a topic, or since when and why none does."""
        from rmq.namesrv.journal.explain import explain_topic

        return explain_topic(topic, self._routes, self.log, self._now())

    def explain_broker(self, broker_name: str) -> RouteExplanation:
        """Explain which processes of a broker name are registered, or since when and why none is."""
        from rmq.namesrv.journal.explain import explain_broker

        return explain_broker(broker_name, self._routes, self.log, self._now())

    def explain_recent(self, count: int = 20) -> RouteExplanation:
        """Return the last events."""
        from rmq.namesrv.journal.explain import explain_recent

        return explain_recent(count, self.log, self._now())

    def _now(self) -> Now:
        from rmq.namesrv.journal.explain import Now

        clock = self._clock
        return Now(
            now_ms=now_ms(clock),
            steady_ms=steady_ms(clock),
            started_ms=wall_ms(clock, self.started_ms),
            ready=self._ready(),
        )


class JournalResponders:
    """Explanations over the wire."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @responds_to(EXPLAIN_ROUTE)
    def explain_route(self, request: Request[ExplainRouteHeader, None]) -> Reply:
        header = request.header
        if header.topic is not None and header.broker_name is not None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "topic or brokerName, not both")
        if header.topic is not None:
            return Reply(body=self._journal.explain_topic(header.topic))
        if header.broker_name is not None:
            return Reply(body=self._journal.explain_broker(header.broker_name))
        return Reply(body=self._journal.explain_recent(max(0, min(header.recent, MAX_RECENT))))
