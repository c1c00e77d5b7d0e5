"""
The optional HTTP port of a process: metrics for Prometheus, a status page for people, a health check for machines.

It only reads, knows no passwords and listens on 127.0.0.1 by default. twisted.web and prometheus_client are imported
only if a port is configured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from rmq.runtime.http.face import METRICS, Face
from rmq.runtime.properties import ConfigError

DEFAULT_HOST = "127.0.0.1"


@attrs.frozen(kw_only=True)
class HttpAddress:
    """Where the port listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_http(spec: str) -> HttpAddress:
    """Return the address of ``[HOST:]PORT``; ConfigError when it is invalid. Port 0 takes a free one."""
    host, colon, port = spec.strip().rpartition(":")
    is_port = port.isascii() and port.isdecimal() and int(port) <= 65535
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not is_port or (colon and not host) or any(char in " /,;[]" for char in host):
        raise ConfigError(f"--http {spec!r}: [HOST:]PORT is expected, as in 8080 or 0.0.0.0:8080")
    return HttpAddress(host=host or DEFAULT_HOST, port=int(port))


def make_http_service(spec: str, make_face: Callable[[], Face], *, reactor: Any = None) -> HttpService:
    """
    Return the service that shows a face at ``spec``.

    ``make_face`` imports the modules for metrics. Raises ConfigError for a wrong ``spec`` and when
    prometheus-client is not installed.
    """
    address = parse_http(spec)
    if reactor is None:
        from twisted.internet import reactor
    try:
        from rmq.runtime.http.site import make_site

        site = make_site(reactor, make_face())
    except ImportError as error:
        raise ConfigError(
            f"--http needs the extra txrocketmq[metrics]: pip install 'txrocketmq[metrics]' ({error})"
        ) from error
    return HttpService(reactor, address, site)


class HttpService(Service):
    """Listen while the service runs. Port 0 takes a free one; :attr:`port` has its number."""

    _log = Logger()
    name = "http"

    def __init__(self, reactor: Any, address: HttpAddress, site: Any) -> None:
        self._reactor = reactor
        self._site = site
        self._listening: Any = None
        self.address = address
        self.port = address.port

    def startService(self) -> None:
        """Listen; a CannotListenError names the address when that is not possible."""
        self._listening = self._reactor.listenTCP(self.address.port, self._site, interface=self.address.host)
        self.port = getattr(self._listening.getHost(), "port", self.port)
        super().startService()
        self._log.info(
            "http listens on {address}: status page, metrics at {metrics}",
            address=HttpAddress(host=self.address.host, port=self.port),
            metrics=METRICS,
        )

    def stopService(self) -> Deferred[None]:
        """Stop listening and drop all connections; fires when the port is closed."""
        super().stopService()
        listening, self._listening = self._listening, None
        self._site.drop_all()
        if listening is None:
            return maybeDeferred(lambda: None)
        return maybeDeferred(listening.stopListening).addCallback(lambda _: None)
