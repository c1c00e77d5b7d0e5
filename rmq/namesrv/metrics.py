"""
The metrics of a NameServer.

Apache's NameServer has none. Where rocketmq-rust's NameServer has the same metric, its name, unit and labels are used
(semantic.rs and metrics/catalog.rs of its rocketmq-observability). Our own begin with ``rocketmq_namesrv_`` too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rmq.namesrv.controller.groups import Group
from rmq.namesrv.journal.events import EventKind
from rmq.namesrv.pages import NamesrvPages
from rmq.namesrv.service import NamesrvService
from rmq.remoting.stats import BUCKETS_S
from rmq.remoting.statsview import Timed, bugs_by_name, refusals_by_name, request_name, timed_by_name, timed_of
from rmq.runtime.clock import steady_ms
from rmq.runtime.http.face import Face
from rmq.runtime.http.metrics import COUNTER, GAUGE, HISTOGRAM, RUST, Collector, ProcessMetrics, Row, family, rows_of
from rmq.wire.codes import RequestCode

MS, US = 1e3, 1e6

ROUTE_READ, BROKER_CONTROL, ADMIN = "route-read", "broker-control", "admin"
_ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC.name.lower()
_BROKER_CONTROL = frozenset(
    code.name.lower()
    for code in (
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.GET_BROKER_MEMBER_GROUP,
    )
)
#: events that a registration can cause
_REGISTRATION_EVENTS = (
    EventKind.REGISTERED,
    EventKind.CHANGED,
    EventKind.RECONNECTED,
    EventKind.REPLACED,
    EventKind.FENCED,
)


def namesrv_face(namesrv: NamesrvService) -> Face:
    """Return the metrics, pages and health of ``namesrv`` for its HTTP port."""

    def health() -> str | None:
        if not namesrv.running:
            return "the NameServer is not running"
        return None if namesrv.look_ups.ready else "look-ups are refused until waitSecondsForService after the start"

    return Face(
        collectors=(NamesrvCollector(namesrv), ProcessMetrics()), pages=NamesrvPages(namesrv).by_path(), health=health
    )


def request_type(name: str) -> str:
    """Return rocketmq-rust's class of a request code."""
    return ROUTE_READ if name == _ROUTE else BROKER_CONTROL if name in _BROKER_CONTROL else ADMIN


def _row(timed: Timed, scale: float, *labels: str) -> Row:
    return labels, ([bound * scale for bound in BUCKETS_S], timed.buckets, timed.seconds * scale)


def _of(group: Group) -> tuple[str, str]:
    return group.cluster_name, group.broker_name


class NamesrvCollector(Collector):
    """All metrics of a NameServer."""

    def __init__(self, namesrv: NamesrvService) -> None:
        super().__init__()
        self._namesrv = namesrv
        self._stats = namesrv.responders.stats

    # routes

    @family("rocketmq_namesrv_active_brokers", GAUGE, "Broker processes that are registered.", origin=RUST)
    def active_brokers(self) -> Iterable[Row]:
        yield (), len(self._namesrv.routes.live_brokers())

    @family("rocketmq_namesrv_brokers", GAUGE, "Broker processes that are registered, by cluster.", labels=["cluster"])
    def brokers(self) -> Iterable[Row]:
        numbers = Counter(live.cluster_name for live in self._namesrv.routes.live_brokers())
        return [((cluster,), number) for cluster, number in sorted(numbers.items())]

    @family(
        "rocketmq_namesrv_broker_silence_seconds",
        GAUGE,
        "Seconds since the last heartbeat or registration of a broker.",
        labels=["cluster", "broker_name", "broker_id", "broker_addr"],
    )
    def broker_silence(self) -> Iterable[Row]:
        now = steady_ms(self._namesrv.clock)
        for live in self._namesrv.routes.live_brokers():
            labels = (live.cluster_name, live.broker_name, str(live.broker_id), live.broker_addr)
            yield labels, (now - live.heard_ms) / 1000

    @family("rocketmq_namesrv_topics", GAUGE, "Topics that have a route.")
    def topics(self) -> Iterable[Row]:
        yield (), len(self._namesrv.routes.topology.topics())

    @family("rocketmq_namesrv_route_changes_total", COUNTER, "Changes of the route table that look-ups can see.")
    def route_changes(self) -> Iterable[Row]:
        yield (), self._namesrv.routes.topology.version

    @family(
        "rocketmq_namesrv_registration_events_total",
        COUNTER,
        "Registrations that changed something, by result; fenced ones were out of date and ignored.",
        labels=["result"],
        origin=RUST,
    )
    def registration_events(self) -> Iterable[Row]:
        events = self._namesrv.journal.log.counts
        return [((kind.value.lower(),), events[kind]) for kind in _REGISTRATION_EVENTS]

    @family(
        "rocketmq_namesrv_route_events_total",
        COUNTER,
        "Events of the route table by kind; the status page shows the last ones with their reasons.",
        labels=["event"],
    )
    def route_events(self) -> Iterable[Row]:
        return [((kind.value.lower(),), number) for kind, number in self._namesrv.journal.log.counts.items()]

    @family(
        "rocketmq_namesrv_expiry_events_total",
        COUNTER,
        "Brokers that were removed because they were silent for too long.",
        labels=["result"],
        origin=RUST,
    )
    def expiry_events(self) -> Iterable[Row]:
        yield ("expired",), self._namesrv.journal.log.counts[EventKind.EXPIRED]

    @family(
        "rocketmq_namesrv_expiry_scan_duration",
        HISTOGRAM,
        "Microseconds that a scan for silent brokers took.",
        origin=RUST,
    )
    def expiry_scans(self) -> Iterable[Row]:
        return rows_of(self._namesrv.scans, US)

    # groups whose masters this NameServer elects

    def _groups(self) -> list[Group]:
        controller = self._namesrv.controller
        return [] if controller is None else controller.groups()

    def _hears(self, group: Group, broker_id: int | None) -> bool:
        controller = self._namesrv.controller
        return controller is not None and controller.lives(group.broker_name, broker_id)

    @family(
        "rocketmq_controller_has_master",
        GAUGE,
        "1 when a group of brokers has a master that the controller hears, 0 when nobody takes its messages.",
        labels=["cluster", "broker_name"],
    )
    def has_master(self) -> Iterable[Row]:
        for group in self._groups():
            yield _of(group), int(self._hears(group, group.master_id))

    @family(
        "rocketmq_controller_brokers",
        GAUGE,
        "Brokers of a group by state: registered, alive (heard), and in_sync (of the SyncStateSet).",
        labels=["cluster", "broker_name", "state"],
    )
    def group_brokers(self) -> Iterable[Row]:
        for group in self._groups():
            alive = sum(self._hears(group, broker_id) for broker_id in group.members)
            numbers = {"registered": len(group.members), "alive": alive, "in_sync": len(group.sync_state_set)}
            for state, number in numbers.items():
                yield (*_of(group), state), number

    @family(
        "rocketmq_controller_master_epoch",
        GAUGE,
        "The epoch of a group: it grows with each election, and when the master is lost.",
        labels=["cluster", "broker_name"],
    )
    def master_epoch(self) -> Iterable[Row]:
        return [(_of(group), group.master_epoch) for group in self._groups()]

    @family(
        "rocketmq_controller_elections_total",
        COUNTER,
        "Masters that were elected.",
        labels=["cluster", "broker_name"],
    )
    def elections(self) -> Iterable[Row]:
        controller = self._namesrv.controller
        if controller is not None:
            for group in controller.groups():
                yield _of(group), controller.elections[group.broker_name]

    # requests

    @family("rocketmq_namesrv_route_request_total", COUNTER, "Route look-ups that were answered.", origin=RUST)
    def route_requests(self) -> Iterable[Row]:
        yield (), timed_of(self._stats, [RequestCode.GET_ROUTEINFO_BY_TOPIC]).count

    @family(
        "rocketmq_namesrv_route_request_latency",
        HISTOGRAM,
        "Milliseconds from a route look-up's arrival to its answer.",
        origin=RUST,
    )
    def route_latency(self) -> Iterable[Row]:
        yield _row(timed_of(self._stats, [RequestCode.GET_ROUTEINFO_BY_TOPIC]), MS)

    @family(
        "rocketmq_namesrv_route_errors_total",
        COUNTER,
        "Route look-ups that were refused: not_found, rejected, or internal (a bug of the NameServer).",
        labels=["result"],
        origin=RUST,
    )
    def route_errors(self) -> Iterable[Row]:
        refused = {
            response: number for (name, response), number in refusals_by_name(self._stats).items() if name == _ROUTE
        }
        not_found, internal = refused.get("topic_not_exist", 0), bugs_by_name(self._stats).get(_ROUTE, 0)
        yield ("not_found",), not_found
        yield ("rejected",), sum(refused.values()) - not_found - internal
        yield ("internal",), internal

    @family(
        "rocketmq_namesrv_broker_registrations_total",
        COUNTER,
        "Registrations that were answered, unchanged ones included.",
        origin=RUST,
    )
    def registrations(self) -> Iterable[Row]:
        yield (), timed_of(self._stats, [RequestCode.REGISTER_BROKER]).count

    @family(
        "rocketmq_namesrv_requests_total",
        COUNTER,
        "Requests by code: answered with success, rejected with another code, or failed (error: its own bug).",
        labels=["request_type", "request_code", "result"],
        origin=RUST,
    )
    def requests(self) -> Iterable[Row]:
        refused: Counter[str] = Counter()
        for (name, _), number in refusals_by_name(self._stats).items():
            refused[name] += number
        bugs = bugs_by_name(self._stats)
        answered = {name: timed.count for name, timed in timed_by_name(self._stats).items()}
        # Zeros too, of all codes that have a responder: Prometheus sees no increase in a series that starts at 1.
        served = map(request_name, sorted(self._namesrv.responders.codes()))
        for name in dict.fromkeys([*served, *refused, *answered]):
            yield (request_type(name), name, "success"), max(0, answered.get(name, 0) - refused[name])
            yield (request_type(name), name, "rejected"), refused[name] - bugs.get(name, 0)
            yield (request_type(name), name, "error"), bugs.get(name, 0)

    @family(
        "rocketmq_namesrv_request_handler_latency",
        HISTOGRAM,
        "Microseconds from a request's arrival to its answer, by code.",
        labels=["request_type", "request_code"],
        origin=RUST,
    )
    def request_latency(self) -> Iterable[Row]:
        for name, timed in timed_by_name(self._stats).items():
            yield _row(timed, US, request_type(name), name)

    @family(
        "rocketmq_namesrv_refusals_total",
        COUNTER,
        "Requests that were answered with another code than success.",
        labels=["request_code", "response_code"],
    )
    def refusals(self) -> Iterable[Row]:
        return list(refusals_by_name(self._stats).items())

    # the rest

    @family("rocketmq_namesrv_active_connections", GAUGE, "Open connections.", origin=RUST)
    def connections(self) -> Iterable[Row]:
        yield (), len(self._namesrv.server.channels)

    @family(
        "rocketmq_namesrv_connection_events_total",
        COUNTER,
        "Connections that were admitted, rejected (a limit was reached), or closed.",
        labels=["event"],
        origin=RUST,
    )
    def connection_events(self) -> Iterable[Row]:
        server = self._namesrv.server
        yield ("admitted",), server.accepted
        yield ("rejected",), server.refused
        yield ("closed",), server.accepted - len(server.channels)

    @family("rocketmq_namesrv_route_cache_bytes", GAUGE, "Bytes of encoded route replies in the cache.", origin=RUST)
    def memo_bytes(self) -> Iterable[Row]:
        yield (), self._namesrv.lane.replies.memo_bytes

    @family("rocketmq_namesrv_kv_entries", GAUGE, "Entries of the key-value table.", labels=["namespace"])
    def kv_entries(self) -> Iterable[Row]:
        return [((namespace,), number) for namespace, number in self._namesrv.kv.sizes().items()]
