"""
The status pages of a NameServer: brokers, topics, routes, events with their reasons, requests, configuration.

`rmq.runtime.http.html` escapes all texts that peers sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rmq.namesrv.service import NamesrvService
from rmq.remoting.stats import BUCKETS_S
from rmq.remoting.statsview import refusals_by_name, timed_by_name
from rmq.runtime.clock import now_ms, steady_ms
from rmq.runtime.http.html import (
    Markup,
    Section,
    Text,
    esc,
    facts,
    form,
    joined,
    link,
    page,
    paragraph,
    preformatted,
    settings,
    size_text,
    span_text,
    table,
    tagged,
    time_text,
)
from rmq.runtime.platform import join_addr
from rmq.wire.api.common import DataVersion, perm_text
from rmq.wire.api.explain import RouteEventData

#: entries of a list on one page
MAX_EVENTS = 30
MAX_TOPICS_IN_BRIEF = 60
MAX_TOPICS = 2000

NAVIGATION = {"/": "Status", "/topics": "Topics", "/requests": "Requests", "/config": "Configuration"}

#: a broker silent for more than this part of its expiry time is shown in red
WORRYING_SILENCE = 0.5

Query = Mapping[str, str]


class NamesrvPages:
    """Makes the pages of one NameServer, each time from live objects."""

    def __init__(self, namesrv: NamesrvService) -> None:
        self._namesrv = namesrv
        self._topology = namesrv.routes.topology

    def by_path(self) -> dict[str, Callable[[Query], str]]:
        return {
            "/": self.status,
            "/topics": self.topics,
            "/topic": self.topic,
            "/broker": self.broker,
            "/requests": self.requests,
            "/config": self.config,
        }

    # pages

    def status(self, _: Query) -> str:
        return self._page(
            "",
            Section("State", self._state()),
            Section("Brokers", self._brokers()),
            *self._elected(),
            Section("Topics", self._topics_in_brief()),
            Section("Last events", self._events(self._namesrv.journal.recent(MAX_EVENTS))),
        )

    def topics(self, query: Query) -> str:
        part = query.get("part", "")
        found = [topic for topic in self._topology.topics() if part in topic]
        shown = found[:MAX_TOPICS]
        said = f"{len(found):,} topics" + (f", the first {MAX_TOPICS:,} of them" if len(shown) < len(found) else "")
        body = form("/topics", "part", "Names that contain", part) + paragraph(said) + _topic_links(shown, "\n")
        return self._page(" · topics", Section("Topics", Markup(body)))

    def topic(self, query: Query) -> str:
        name = query.get("name", "").strip()
        sections = [Section("Look up", form("/topic", "name", "Topic", name))]
        if name:
            sections += [
                Section("Route", self._route(name)),
                Section("Why", preformatted(self._namesrv.journal.explain_topic(name).text)),
            ]
        return self._page(f" · topic {name}", *sections)

    def broker(self, query: Query) -> str:
        name = query.get("name", "").strip()
        sections = [Section("Look up", form("/broker", "name", "Broker name", name))]
        if name:
            sections.append(Section("Why", preformatted(self._namesrv.journal.explain_broker(name).text)))
        return self._page(f" · broker {name}", *sections)

    def requests(self, _: Query) -> str:
        stats = self._namesrv.responders.stats
        answered = [
            (name, timed.count, _mean_text(timed.seconds, timed.count), _most_within(timed.buckets))
            for name, timed in sorted(timed_by_name(stats).items())
        ]
        refused = [(*names, number) for names, number in sorted(refusals_by_name(stats).items())]
        return self._page(
            " · requests",
            Section("Answered", table(["Request", "Number", "Mean", "99 % within"], answered)),
            Section("Refused", table(["Request", "Answer", "Number"], refused)),
        )

    def config(self, _: Query) -> str:
        return self._page(" · configuration", Section("Configuration", settings(self._namesrv.settings.text())))

    # parts

    def _page(self, title: str, *sections: Section) -> str:
        server = self._namesrv.server
        at_ms = now_ms(self._namesrv.clock)
        return page(f"NameServer {join_addr(server.host, server.port)}{title}", NAVIGATION, sections, at_ms=at_ms)

    def _state(self) -> Markup:
        namesrv = self._namesrv
        up_ms = steady_ms(namesrv.clock) - namesrv.look_ups.started_ms
        sizes = namesrv.kv.sizes()
        return facts(
            [
                ("Up for", f"{span_text(up_ms)}, since {time_text(now_ms(namesrv.clock) - up_ms)}"),
                ("Brokers", len(namesrv.routes.live_brokers())),
                ("Topics", len(self._topology.topics())),
                ("Changes of routes", self._topology.version),
                ("Connections", len(namesrv.server.channels)),
                ("Requests answered", sum(namesrv.responders.stats.counts.values())),
                ("Cached replies", size_text(namesrv.lane.replies.memo_bytes)),
                ("Key-value entries", joined([f"{name}: {size}" for name, size in sizes.items()]) if sizes else 0),
            ]
        )

    def _brokers(self) -> Markup:
        now = steady_ms(self._namesrv.clock)
        rows: list[tuple[Text, ...]] = []
        for live in sorted(
            self._namesrv.routes.live_brokers(), key=lambda live: (live.cluster_name, live.broker_name, live.broker_id)
        ):
            silent_ms = now - live.heard_ms
            silence = f"{span_text(silent_ms)} ago"
            rows.append(
                (
                    live.cluster_name,
                    link("/broker", live.broker_name, name=live.broker_name),
                    str(live.broker_id),
                    live.broker_addr,
                    live.ha_server_addr,
                    _version_text(live.data_version),
                    tagged("bad", silence) if silent_ms > live.expiry_ms * WORRYING_SILENCE else silence,
                    span_text(live.expiry_ms - silent_ms),
                )
            )
        head = ["Cluster", "Name", "Id", "Address", "HA address", "Data version", "Last heartbeat", "Expires in"]
        return table(head, rows, nothing="no broker is registered")

    def _elected(self) -> Iterable[Section]:
        """Yield the groups whose masters are elected here."""
        controller = self._namesrv.controller
        if controller is None:
            return
        rows: list[tuple[Text, ...]] = []
        for group in controller.groups():
            for broker_id in sorted(group.members):
                lives = controller.lives(group.broker_name, broker_id)
                in_sync = broker_id in group.sync_state_set
                role = "master" if broker_id == group.master_id else "in sync" if in_sync else "not in sync"
                rows.append(
                    (
                        group.cluster_name,
                        link("/broker", group.broker_name, name=group.broker_name),
                        str(broker_id),
                        group.address(broker_id),
                        role if in_sync else tagged("bad", role),
                        "alive" if lives else tagged("bad", "not heard"),
                        str(group.master_epoch),
                        str(group.sync_state_set_epoch),
                    )
                )
            if group.master_id is None:
                lost = tagged("bad", "no master: nobody of the SyncStateSet lives")
                rows.append((group.cluster_name, group.broker_name, None, None, lost, None, None, None))
        head = ["Cluster", "Name", "Id", "Address", "Role", "State", "Master epoch", "Set epoch"]
        yield Section("Elected masters", table(head, rows, nothing="no broker has registered at this controller"))

    def _topics_in_brief(self) -> Markup:
        names = self._topology.topics()
        more = f" and {len(names) - MAX_TOPICS_IN_BRIEF:,} more" if len(names) > MAX_TOPICS_IN_BRIEF else ""
        listed = _topic_links(names[:MAX_TOPICS_IN_BRIEF], ", ")
        return Markup(form("/topic", "name", "Explain the route of a topic") + paragraph(listed, more))

    def _route(self, topic: str) -> Markup:
        route = self._topology.pick_route(topic)
        if route is None:
            return paragraph(tagged("bad", "No route: no registered broker has this topic."))
        queues = {queue.broker_name: queue for queue in route.queue_datas}
        rows: list[tuple[Text, ...]] = []
        for data in route.broker_datas:
            queue = queues.get(data.broker_name)
            rows.append(
                (
                    data.cluster,
                    link("/broker", data.broker_name, name=data.broker_name),
                    joined([f"{id_}: {addr}" for id_, addr in data.broker_addrs.items()]),
                    None if queue is None else str(queue.read_queue_nums),
                    None if queue is None else str(queue.write_queue_nums),
                    None if queue is None else f"{perm_text(queue.perm)} ({queue.perm})",
                )
            )
        return table(["Cluster", "Broker", "Addresses", "Read queues", "Write queues", "Permission"], rows)

    def _events(self, events: Sequence[RouteEventData]) -> Markup:
        return table(
            ["Time", "Event", "Broker", "Address", "Peer", "Topics", "Why"],
            [
                (
                    tagged("whole", time_text(event.at_ms)),
                    tagged("whole", event.kind),
                    tagged("whole", link("/broker", event.broker_name, name=event.broker_name)),
                    tagged("whole", event.broker_addr),
                    tagged("whole", event.peer),
                    _event_topics(event),
                    event.reason,
                )
                for event in reversed(events)
            ],
            nothing="no events yet",
        )


def _version_text(version: DataVersion) -> str:
    return f"{version.counter} of {time_text(version.timestamp)}"


def _event_topics(event: RouteEventData) -> Markup:
    if not event.topic_count:
        return esc(None)
    links = [link("/topic", topic, name=topic) for topic in event.topics]
    more = event.topic_count - len(event.topics)
    return joined([*links, f"{more:,} more"] if more > 0 else links)


def _topic_links(names: list[str], between: str) -> Markup:
    links = [link("/topic", name, name=name) for name in names]
    if between == "\n":
        return Markup("<ul>" + "".join(f"<li>{each}</li>\n" for each in links) + "</ul>")
    return joined(links, between)


def _mean_text(seconds: float, count: int) -> str:
    return f"{seconds / count * 1e6:,.0f} µs" if count else "-"


def _most_within(buckets: list[int]) -> str:
    """Return the upper bound of the 99th percentile."""
    left = sum(buckets) * 0.99
    for number, bound in zip(buckets, BUCKETS_S, strict=False):
        left -= number
        if left <= 0:
            return f"{bound * 1e3:g} ms"
    return f"more than {BUCKETS_S[-1]:g} s"
