"""
What happened to the routes of one NameServer, and the answers to why they are as they are.

What puts the answers into words is imported when somebody asks: few ever do, and every start would pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from rmq.namesrv.eventlog import EventLog, Limits
from rmq.namesrv.events import RouteEvent
from rmq.namesrv.routes import RouteTable
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms, steady_ms, wall_ms
from rmq.wire.api.explain import EXPLAIN_ROUTE, ExplainRouteHeader, RouteExplanation
from rmq.wire.codes import ResponseCode

if TYPE_CHECKING:
    from rmq.namesrv.explain import Now

#: events in one answer
MAX_RECENT = 500


class Journal:
    """
    Remembers events of ``routes`` (see :mod:`rmq.namesrv.eventlog` for how many) and explains with them and the table.

    Whoever makes the table passes it :meth:`record`. ``started_ms`` is the steady time since which events are recorded;
    ``ready`` says whether look-ups are answered already.
    """

    def __init__(
        self,
        routes: RouteTable,
        clock: IReactorTime,
        *,
        limits: Limits | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.log = EventLog(limits)
        self.started_ms = steady_ms(clock)
        self._routes = routes
        self._clock = clock
        self._ready = ready

    def record(self, event: RouteEvent) -> None:
        """Take in an event."""
        self.log.record(event)

    def recent(self, count: int = 20) -> list[RouteEvent]:
        """Return the last ``count`` events, oldest first."""
        return self.log.recent(count)

    def explain_topic(self, topic: str) -> RouteExplanation:
        """Say where a topic is served and by whom, or since when and why it is not."""
        from rmq.namesrv.explain import explain_topic

        return explain_topic(topic, self._routes, self.log, self._now())

    def explain_broker(self, broker_name: str) -> RouteExplanation:
        """Say what is there of a broker name and what happened to it, or since when and why it is not there."""
        from rmq.namesrv.explain import explain_broker

        return explain_broker(broker_name, self._routes, self.log, self._now())

    def explain_recent(self, count: int = 20) -> RouteExplanation:
        """Say what happened last."""
        from rmq.namesrv.explain import explain_recent

        return explain_recent(count, self.log, self._now())

    def _now(self) -> Now:
        from rmq.namesrv.explain import Now

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
