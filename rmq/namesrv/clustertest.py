"""
Routes of unknown topics in a test environment (clusterTest=true): production's NameServers are asked.

Java: ClusterTestRequestProcessor
"""

from __future__ import annotations

from twisted.logger import Logger

from rmq.remoting.client import RemotingClient, RequestFailed
from rmq.wire.api.routes import GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader, TopicRouteData

#: timeout of one request
PRODUCTION_TIMEOUT_MS = 5_000


class ProductionRoutes:
    """The NameServers at ``addrs`` (``host:port``), asked one after the other until one has the route."""

    _log = Logger()

    def __init__(self, client: RemotingClient, addrs: tuple[str, ...]) -> None:
        self._client = client
        self.addrs = addrs

    async def find(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic in production; None when no NameServer has one, or none answers."""
        header = GetRouteInfoHeader(topic=topic)
        for addr in self.addrs:
            try:
                answer = await self._client.invoke(
                    addr, GET_ROUTEINFO_BY_TOPIC, header, None, timeout_ms=PRODUCTION_TIMEOUT_MS
                )
            except RequestFailed as error:
                self._log.debug("{addr} has no route of {topic}: {error}", addr=addr, topic=topic, error=error)
            else:
                return answer.body
        return None
