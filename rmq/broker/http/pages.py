"""
The status page of a broker: role, store, replication, topics, groups with their lag, sessions.

Everything that peers sent is escaped by `rmq.runtime.http.html`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from rmq.broker.http.consumer_lag import lags
from rmq.broker.service import BrokerService
from rmq.broker.sessions import Member
from rmq.broker.stats import TOPIC_PUT_NUMS, Rate
from rmq.ha.status import HAStatus, LinkStatus, SlaveStatus
from rmq.remoting.stats import BUCKETS_S
from rmq.remoting.statsview import refusals_by_name, timed_by_name
from rmq.runtime.clock import now_ms, steady_ms, wall_ms
from rmq.runtime.config import to_properties
from rmq.runtime.http.html import (
    Markup,
    Section,
    Text,
    facts,
    form,
    joined,
    page,
    paragraph,
    settings,
    size_text,
    span_text,
    table,
    tagged,
    time_text,
)
from rmq.store.health import StopBefore
from rmq.wire.codes import version_desc

#: rows of a list that one page shows
MAX_ROWS = 1000
MAX_ROWS_IN_BRIEF = 20
#: pairs of group and topic that a page checks; each blocks the reactor for some microseconds
MAX_PAIRS = 10_000

NAVIGATION = {
    "/": "Status",
    "/topics": "Topics",
    "/groups": "Groups",
    "/clients": "Clients",
    "/requests": "Requests",
    "/config": "Configuration",
}

_STOPS: Mapping[StopBefore, Text] = {
    StopBefore.CLEAN: "clean",
    StopBefore.KILLED: "a kill or a power failure",
    StopBefore.SYNC_FAILED: tagged("bad", "an fsync failed: do not trust the disk"),
}

Query = Mapping[str, str]
Rows = list[tuple[Text, ...]]


class BrokerPages:
    """Makes the pages of one broker from live objects, at each request."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker

    PATHS = ("/", "/topics", "/groups", "/clients", "/requests", "/config")

    def by_path(self) -> dict[str, Callable[[Query], str]]:
        pages = (self.status, self.topics, self.groups, self.clients, self.requests, self.config)
        return dict(zip(self.PATHS, pages, strict=True))

    # pages

    def status(self, _: Query) -> str:
        ha = self._broker.ha.status()
        sections = [Section("State", self._overview()), Section("Store", self._store())]
        if ha.is_slave:
            sections.append(Section("Replication from the master", self._link(ha.link)))
        if not ha.is_slave or ha.slaves or ha.refused:
            sections.append(Section("Replication to slaves", self._slaves(ha)))
        behind = [row for row in self._group_rows() if row[2]]
        worst = sorted(behind, key=lambda row: -int(row[2] or 0))[:MAX_ROWS_IN_BRIEF]
        sections.append(Section("Groups with the largest lag", _groups_table(worst, nothing="no group has a lag")))
        return self._page("", *sections)

    def topics(self, query: Query) -> str:
        part = query.get("part", "")
        stored = dict(self._broker.stats.totals(TOPIC_PUT_NUMS))
        rows: Rows = []
        names = [name for name in sorted(self._broker.topics.names()) if part in name]
        for name in names[:MAX_ROWS]:
            config = self._broker.topics.get(name)
            if config is None:
                continue
            store = self._broker.store
            held = sum(
                store.max_offset(name, queue) - store.min_offset(name, queue)
                for queue in range(max(config.read_queue_nums, config.write_queue_nums))
            )
            queues = f"{config.read_queue_nums} / {config.write_queue_nums}"
            rows.append((name, queues, str(config.perm), held, stored.get(name, 0)))
        head = ["Topic", "Read / write queues", "Permission", "Messages held", "Stored since the start"]
        body = form("/topics", "part", "Names that contain", part) + paragraph(_of(len(rows), len(names), "topics"))
        return self._page(" · topics", Section("Topics", Markup(body + table(head, rows))))

    def groups(self, query: Query) -> str:
        part = query.get("part", "")
        known = list(self._group_rows())
        rows = [row for row in known if part in str(row[0]) or part in str(row[1])]
        shown = sorted(rows, key=lambda row: (str(row[0]), str(row[1])))[:MAX_ROWS]
        body = form("/groups", "part", "Groups or topics that contain", part)
        beyond = f"; only {MAX_PAIRS:,} pairs were looked at" if len(known) == MAX_PAIRS else ""
        found = paragraph(_of(len(shown), len(rows), "pairs of group and topic"), beyond)
        body = Markup(body + found + _groups_table(shown))
        return self._page(" · groups", Section("Groups and their lag", body))

    def clients(self, _: Query) -> str:
        now = steady_ms(self._broker.clock)
        consumers: Rows = []
        for name in sorted(self._broker.consumers.names()):
            group = self._broker.consumers.find(name)
            if group is not None:
                topics = joined(sorted(group.subscriptions))
                consumers += [(*_client_row(name, member, now), topics) for member in group.members.values()]
        producers: Rows = [
            _client_row(name, member, now)
            for name, members in sorted(self._broker.producers.table().items())
            for member in members
        ]
        head = ["Group", "Client", "Peer", "Language", "Version", "Last heartbeat"]
        return self._page(
            " · clients",
            Section("Consumers", table([*head, "Topics"], consumers[:MAX_ROWS], nothing="no consumer is connected")),
            Section("Producers", table(head, producers[:MAX_ROWS], nothing="no producer is connected")),
        )

    def requests(self, _: Query) -> str:
        stats = self._broker.responders.stats
        answered = [
            (name, timed.count, f"{timed.seconds / timed.count * 1e3:,.3f} ms" if timed.count else None)
            for name, timed in sorted(timed_by_name(stats).items())
        ]
        slow: Rows = []
        for name, timed in sorted(timed_by_name(stats).items()):
            above = [sum(timed.buckets[_first_above(bound_s) :]) for bound_s in (0.01, 0.1, 1.0)]
            slow.append((name, above[0], above[1], above[2]))
        refused = [(*names, number) for names, number in sorted(refusals_by_name(stats).items())]
        return self._page(
            " · requests",
            Section("Answered", table(["Request", "Number", "Mean"], answered)),
            Section("Slow ones", table(["Request", "Above 10 ms", "Above 100 ms", "Above 1 s"], slow)),
            Section("Refused", table(["Request", "Answer", "Number"], refused)),
        )

    def config(self, _: Query) -> str:
        setup = self._broker.settings.setup
        text = to_properties(setup.broker, setup.server, setup.client, setup.store)
        return self._page(" · configuration", Section("Configuration", settings(text)))

    # parts

    def _page(self, title: str, *sections: Section) -> str:
        setup = self._broker.setup
        name = f"Broker {setup.name} ({setup.store.broker_role.name}, id {setup.broker.broker_id}) {setup.address}"
        return page(f"{name}{title}", NAVIGATION, sections, at_ms=now_ms(self._broker.clock))

    def _overview(self) -> Markup:
        broker = self._broker
        servers = [
            joined([addr, {True: "registered", False: tagged("bad", "not registered"), None: "asked"}[taken]], " ")
            for addr, taken in broker.registration.name_servers.items()
        ]
        puts, up_ms = broker.stats, steady_ms(broker.clock) - broker.boot_ms
        return facts(
            [
                ("Cluster", broker.setup.broker.broker_cluster_name),
                ("Up for", f"{span_text(up_ms)}, since {time_text(wall_ms(broker.clock, broker.boot_ms))}"),
                ("NameServers", joined(servers) if servers else tagged("bad", "none configured")),
                ("Messages stored", _rate_text(puts.puts)),
                ("Messages pulled", _rate_text(puts.transferred)),
                ("Failed sends", puts.put_failures),
                ("Connections", f"{len(broker.server.channels)}, VIP {len(broker.vip_server.channels)}"),
                ("Waiting pulls", len(broker.polls)),
                ("Open half messages", broker.checks.open_half_messages),
                ("Topics", len(broker.topics)),
                ("Groups", f"{len(broker.groups)}, {len(broker.consumers.names())} of them with consumers"),
            ]
        )

    def _store(self) -> Markup:
        store = self._broker.store
        health = store.health()
        if health.failure is not None:
            takes: Text = tagged("bad", f"stopped: {health.failure}")
        elif health.is_writable:
            takes = tagged("good", "taken")
        elif store.config.is_slave:
            takes = "only from the master (slave)"
        else:
            takes = tagged("bad", "refused" if health.refuses_because is None else f"refused: {health.refuses_because}")
        disks = f"commitlog {health.log_disk.used_ratio:.0%}, consumequeue {health.queue_disk.used_ratio:.0%}"
        oldest_ms = store.earliest_store_time()
        syncs = health.sync_seconds
        entries: list[tuple[str, Text]] = [
            ("Messages are", takes),
            ("Log begins at", store.min_phy_offset),
            ("Log ends at", store.end_offset),
            ("Flushed to", _until(store.flushed_offset, store.end_offset, "flushed")),
            ("Dispatched to", _until(store.dispatched_offset, store.end_offset, "dispatched")),
            ("Oldest message", f"{span_text(now_ms(self._broker.clock) - oldest_ms)} ago" if oldest_ms > 0 else None),
            ("Files", f"{health.segments} of the log, {health.queues} queues"),
            ("Disks used", disks),
            ("Fsyncs", f"{syncs.total:,}, mean {syncs.sum / syncs.total * 1e3:.2f} ms" if syncs.total else 0),
            ("Sends waiting for an fsync", health.puts_waiting_for_disk),
            ("Unreadable parts", tagged("bad", health.damaged_parts) if health.damaged_parts else 0),
            ("Failed dispatches", tagged("bad", health.dispatch_failures) if health.dispatch_failures else 0),
        ]
        if health.load is not None:
            read = size_text(health.load.read_bytes)
            entries.append(("Loaded", f"in {span_text(health.load.seconds * 1e3)}, {read} read again"))
            entries.append(("Stop before", _STOPS[health.load.stop_before]))
        return facts(entries)

    def _slaves(self, ha: HAStatus) -> Markup:
        figures = facts(
            [
                ("In sync", ha.in_sync_slaves),
                ("Sends waiting for slaves", ha.pending_puts),
                ("Replica timeouts", ha.timeouts),
                ("Connections without an acknowledgement", ha.waiting_connections),
                ("Refused connections", ha.refused),
                ("Last refusal", tagged("bad", ha.last_refusal) if ha.last_refusal else None),
            ]
        )
        head = [
            "Slave",
            "State",
            "Connected",
            "Acknowledged",
            "Replication lag",
            "Lag in time",
            "In sync",
            "Rate",
            "Last ack",
        ]
        rows = [self._slave_row(slave) for slave in ha.slaves]
        return Markup(table(head, rows, nothing="no slave is connected") + figures)

    def _slave_row(self, slave: SlaveStatus) -> tuple[Text, ...]:
        return (
            slave.addr,
            slave.state.value,
            f"{span_text(now_ms(self._broker.clock) - slave.connected_ms)} ago",
            slave.ack_offset if slave.ack_offset >= 0 else None,
            size_text(slave.lag_bytes) if slave.lag_bytes >= 0 else None,
            span_text(slave.lag_seconds * 1e3) if slave.lag_seconds >= 0 else None,
            tagged("good", "yes") if slave.in_sync else tagged("bad", "no"),
            f"{size_text(slave.bytes_per_second)}/s",
            f"{slave.ack_latency_ms:.2f} ms" if slave.ack_latency_ms >= 0 else None,
        )

    def _link(self, link: LinkStatus | None) -> Markup:
        if link is None:
            return paragraph(tagged("bad", "none"))
        now = now_ms(self._broker.clock)
        failing = self._broker.metadata_sync.failing
        return facts(
            [
                ("Master", link.master_addr or tagged("bad", "not known yet")),
                ("Connection", tagged("good", "up") if link.connected else tagged("bad", "down")),
                ("Since", f"{span_text(now - link.connected_ms)} ago" if link.connected else None),
                ("Last data received", f"{span_text(now - link.last_read_ms)} ago" if link.last_read_ms else None),
                ("Rate", f"{size_text(link.bytes_per_second)}/s"),
                ("Refused connections", link.refused),
                ("Last error", tagged("bad", link.last_error) if link.last_error and not link.connected else None),
                (
                    "Tables not copied",
                    joined([tagged("bad", f"{k}: {v}") for k, v in failing.items()]) if failing else 0,
                ),
            ]
        )

    def _group_rows(self) -> Iterator[tuple[Text, ...]]:
        for lag in itertools.islice(lags(self._broker), MAX_PAIRS):
            group = self._broker.consumers.find(lag.group)
            members = len(group.members) if group is not None else 0
            yield lag.group, lag.topic, lag.messages, len(lag.behind), members


def _client_row(group: str, member: Member, now_ms: int) -> tuple[Text, ...]:
    heard = f"{span_text(now_ms - member.last_heard_ms)} ago"
    return group, member.client_id, member.channel.peer, member.language, version_desc(member.version), heard


def _groups_table(rows: Iterable[tuple[Text, ...]], *, nothing: str = "no group has committed an offset") -> Markup:
    head = ["Group", "Topic", "Lag (messages)", "Queues with lag", "Consumers connected"]
    return table(head, rows, nothing=nothing)


def _rate_text(rate: Rate) -> str:
    """Return the total and the known rates over 10 s, a minute and ten minutes."""
    spans = zip(("10 s", "1 min", "10 min"), rate.per_second(), strict=True)
    known = [f"{figure:,.1f} a second in {span}" for span, figure in spans if figure is not None]
    return ", ".join([f"{rate.total:,}", *known])


def _until(offset: int, end: int, done: str) -> Text:
    return offset if offset == end else f"{offset:,} ({size_text(end - offset)} not {done})"


def _of(shown: int, found: int, what: str) -> str:
    return f"{found:,} {what}" if shown == found else f"the first {shown:,} of {found:,} {what}"


def _first_above(bound_s: float) -> int:
    """Return the index of the first class of durations above ``bound_s``."""
    return BUCKETS_S.index(bound_s) + 1
