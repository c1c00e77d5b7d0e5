"""
Metrics in the text format of Prometheus; imported only with an HTTP port, because prometheus_client is an extra.

A role's collector is a class with one method for each metric, decorated with :func:`family`. The methods read live
objects at the time of the scrape: there is no state for metrics except the plain counters of those objects. A scrape is
made in slices, between which the reactor does its other work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector as PrometheusCollector
from prometheus_client.utils import floatToGoString
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from rmq.runtime.histogram import Histogram

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

#: limit of the series of one metric; further ones are omitted and counted in DROPPED
MAX_SERIES = 20_000
#: longest value of a label; longer ones are shortened
MAX_LABEL_CHARS = 255
#: series that are written without a pause; 2 to 5 ms
SLICE_SERIES = 100
#: a scrape that is not older than this answers the next one too, so that frequent scrapes cost little
FRESH_S = 1.0

#: where a name comes from
APACHE = "Apache 5.3.3"
RUST = "rocketmq-rust"
OWN = "rmq"

#: the labels' values, then a number (gauge, counter) or (bounds, counts, sum) of a histogram
Row = tuple[tuple[str, ...], Any]
_Method = TypeVar("_Method", bound=Callable[[Any], Iterable[Row]])
_FAMILY = "__rmq_family__"


@attrs.frozen(kw_only=True)
class Family:
    """
    One metric: ``name`` is what Prometheus stores (of a histogram without ``_bucket``), ``help`` one sentence.

    ``slice_series`` is how many of its series may be made without a pause.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    origin: str
    slice_series: int = SLICE_SERIES

    def metric(self, rows: Iterable[Row], fixed: Mapping[str, str]) -> Metric:
        """Return the metric with these rows; ``fixed`` are labels that all have."""
        names = [*fixed, *self.labels]
        values = list(fixed.values())
        if self.kind == HISTOGRAM:
            histogram = HistogramMetricFamily(self.name, self.help, labels=names)
            for labels, (bounds, counts, total) in rows:
                histogram.add_metric([*values, *map(_label, labels)], _cumulative(bounds, counts), total)
            return histogram
        kind: Any = CounterMetricFamily if self.kind == COUNTER else GaugeMetricFamily
        metric = kind(self.name, self.help, labels=names)
        for labels, value in rows:
            metric.add_metric([*values, *map(_label, labels)], value)
        return cast(Metric, metric)


#: written last, by :class:`Scrapes`
DROPPED = Family(
    name="rocketmq_scrape_series_dropped",
    kind=GAUGE,
    help=f"Series that this scrape left out because their metric has more than {MAX_SERIES}.",
    labels=(),
    origin=OWN,
)


def _label(value: str) -> str:
    """Return a label's value, shortened: peers choose names, which may have megabytes."""
    if len(value) > MAX_LABEL_CHARS or not value.isascii():
        return value[:MAX_LABEL_CHARS].encode("utf-8", "replace").decode()
    return value


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return (upper end, count of all up to it) as Prometheus wants them; ``counts`` has one more than ``bounds``."""
    # Round the bound: in other units it has a rounding error.
    ends = [*(floatToGoString(float(f"{bound:g}")) for bound in bounds), "+Inf"]
    return list(zip(ends, map(float, itertools.accumulate(counts)), strict=True))


def family(
    name: str, kind: str, help: str, *, labels: Sequence[str] = (), origin: str = OWN, slice_series: int = SLICE_SERIES
) -> Callable[[_Method], _Method]:
    """
    Make a method of a :class:`Collector` the source of one metric.

    It returns or yields rows. They are fetched in slices, between which everything may change: loop over copies. A
    method with expensive rows (a read from disk) sets the number of rows of a slice.
    """
    described = Family(name=name, kind=kind, help=help, labels=tuple(labels), origin=origin, slice_series=slice_series)

    def mark(method: _Method) -> _Method:
        setattr(method, _FAMILY, described)
        return method

    return mark


def rows_of(histogram: Histogram, scale: float = 1.0, *labels: str) -> list[Row]:
    """Return the row of one histogram, its bounds and sum multiplied by ``scale``."""
    bounds = tuple(bound * scale for bound in histogram.bounds)
    return [(labels, (bounds, tuple(histogram.counts), histogram.sum * scale))]


class Collector:
    """The metrics of one role; ``fixed`` are labels that all of them have."""

    def __init__(self, fixed: Mapping[str, str] | None = None) -> None:
        self._fixed = dict(fixed or {})
        #: series that the last scrape left out
        self.dropped = 0

    @classmethod
    def families(cls) -> list[Family]:
        """Return the metrics in the order in which they are written."""
        return [found for _, found in cls._methods()]

    @classmethod
    def _methods(cls) -> Iterator[tuple[str, Family]]:
        for kind in reversed(cls.__mro__):
            for name, value in vars(kind).items():
                if hasattr(value, _FAMILY):
                    yield name, getattr(value, _FAMILY)

    def collect(self) -> Iterator[Metric]:
        """Yield each metric whole."""
        for name, found in self._methods():
            yield found.metric(getattr(self, name)(), self._fixed)

    def in_slices(self) -> Iterator[tuple[Family, Iterator[Metric]]]:
        """Yield each metric in pieces, each of which is made without a pause; there is at least one."""
        self.dropped = 0
        for name, found in self._methods():
            yield found, self._pieces(found, getattr(self, name))

    def _pieces(self, found: Family, method: Callable[[], Iterable[Row]]) -> Iterator[Metric]:
        rows = iter(method())
        shown = itertools.islice(rows, MAX_SERIES)
        piece = list(itertools.islice(shown, found.slice_series))
        yield found.metric(piece, self._fixed)
        while len(piece) == found.slice_series:
            piece = list(itertools.islice(shown, found.slice_series))
            if piece:
                yield found.metric(piece, self._fixed)
        self.dropped += sum(1 for _ in rows)


class ProcessMetrics(Collector):
    """What every process has: memory, processor time, file descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self._source: PrometheusCollector = ProcessCollector(registry=None)

    def in_slices(self) -> Iterator[tuple[Family, Iterator[Metric]]]:
        for metric in self._source.collect():
            name = metric.name + "_total" if metric.type == COUNTER else metric.name
            found = Family(
                name=name, kind=metric.type, help=metric.documentation, labels=(), origin="prometheus_client"
            )
            yield found, iter([metric])


class Scrapes:
    """
    The text of all metrics, one scrape at a time.

    Requests during a scrape, or within FRESH_S after it, get the same text.
    """

    def __init__(self, clock: IReactorTime, collectors: Sequence[Collector]) -> None:
        self._clock = clock
        self._collectors = tuple(collectors)
        #: by content type: (when it was made, the text)
        self._made: dict[str, tuple[float, bytes]] = {}
        self._waiting: dict[str, list[Deferred[bytes]]] = {}

    def text(self, accept: str) -> tuple[str, Deferred[bytes]]:
        """Return the content type that suits an Accept header (Prometheus text or OpenMetrics), and the text."""
        try:
            encode, content_type = choose_encoder(accept)
            content_type.encode("ascii")
        except (TypeError, ValueError):  # a version that is none
            encode, content_type = choose_encoder("")
        at_s, text = self._made.get(content_type, (0.0, b""))
        if text and 0 <= self._clock.seconds() - at_s < FRESH_S:
            return content_type, succeed(text)
        done: Deferred[bytes] = Deferred()
        waiting = self._waiting.get(content_type)
        if waiting is not None:
            waiting.append(done)
        else:
            self._waiting[content_type] = [done]
            making = Deferred.fromCoroutine(self._make(cast(Callable[[Any], bytes], encode)))
            making.addBoth(partial(self._finished, content_type))
        return content_type, done

    async def _make(self, encode: Callable[[Any], bytes]) -> bytes:
        end = b"# EOF\n" if encode(_One(None)).endswith(b"# EOF\n") else b""
        parts = []
        for collector in self._collectors:
            for _, pieces in collector.in_slices():
                for number, piece in enumerate(pieces):
                    text = encode(_One(piece)).removesuffix(end)
                    parts.append(text if number == 0 else _without_head(text))
                    await deferLater(self._clock, 0, lambda: None)
        dropped = sum(collector.dropped for collector in self._collectors)
        parts.append(encode(_One(DROPPED.metric([((), dropped)], {}))))
        return b"".join(parts)

    def _finished(self, content_type: str, result: Any) -> None:
        if isinstance(result, bytes):
            # Texts of other types are dropped after FRESH_S.
            self._made = {content_type: (self._clock.seconds(), result)}
        for done in self._waiting.pop(content_type):
            done.callback(result)


class _One:
    """A registry of one metric, or of none."""

    def __init__(self, metric: Metric | None) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [] if self._metric is None else [self._metric]


def _without_head(text: bytes) -> bytes:
    """Return the series without the comment lines before them, for a piece that continues a metric."""
    lines = text.split(b"\n")
    while lines and lines[0].startswith(b"#"):
        del lines[0]
    return b"\n".join(lines)
