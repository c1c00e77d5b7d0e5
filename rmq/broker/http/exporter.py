"""
The keys that configure the metrics exporter of a 5.x broker.

Java: MetricsExporterType, BrokerMetricsManager#init
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rmq.broker.config5x import BrokerConfig5x
from rmq.runtime.properties import ConfigError

if TYPE_CHECKING:
    from rmq.runtime.http.service import HttpAddress

DEFAULT_PORT = 5557
#: by name and by number, as Apache reads them
_TYPES = {"0": "DISABLE", "1": "OTLP_GRPC", "2": "PROM", "3": "LOG"}
_OFF, _PROM = "DISABLE", "PROM"
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
#: reserved by Prometheus and histograms, as all names that begin with two underscores
_TAKEN = frozenset({"le", "quantile", "job", "instance"})


def exporter_type(extra: BrokerConfig5x) -> str:
    """Return ``metricsExporterType`` by name; ConfigError for an unknown value."""
    text = (extra.metrics_exporter_type or _OFF).strip()
    name = _TYPES.get(text, text.upper())
    if name not in _TYPES.values():
        raise ConfigError(f"metricsExporterType={text!r}: one of {', '.join(_TYPES.values())} is expected")
    return name


def prometheus_address(extra: BrokerConfig5x, broker_ip1: str) -> HttpAddress | None:
    """Return where Apache's exporter for Prometheus would listen; None when the keys do not ask for it."""
    if exporter_type(extra) != _PROM:
        return None
    from rmq.runtime.http.service import HttpAddress

    port = (extra.metrics_prom_exporter_port or str(DEFAULT_PORT)).strip()
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= 65535):
        raise ConfigError(f"metricsPromExporterPort={port!r}: a port is expected")
    return HttpAddress(host=(extra.metrics_prom_exporter_host or "").strip() or broker_ip1, port=int(port))


def is_unsupported(extra: BrokerConfig5x) -> bool:
    """Return whether the keys ask for an exporter that rmq does not have."""
    return exporter_type(extra) not in (_OFF, _PROM)


def more_labels(extra: BrokerConfig5x) -> dict[str, str]:
    """Return the labels of ``metricsLabel`` (``name:value,name:value``); invalid labels are omitted."""
    pairs = [pair.split(":") for pair in (extra.metrics_label or "").split(",")]
    found = {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}
    return {name: value for name, value in found.items() if _LABEL.fullmatch(name) and name not in _TAKEN}
