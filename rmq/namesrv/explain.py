"""
Why a topic has a route or has none, and why a broker is there or not: facts of the table and of the event log, joined.

An explanation is a value, and its ``text`` says all of it to somebody who was woken up by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from rmq.namesrv.eventlog import REMOVALS, EventLog
from rmq.namesrv.events import EventKind, RouteEvent
from rmq.namesrv.live import LiveBroker
from rmq.namesrv.routes import MASTER_ID, PERM_READ, PERM_WRITE, RouteTable
from rmq.runtime.html import span_text, time_text
from rmq.wire.api.explain import (
    FORGOTTEN,
    GONE,
    NEVER_SEEN,
    PRESENT,
    BrokerExplanation,
    BrokerProcess,
    RouteEventData,
    RouteExplanation,
)
from rmq.wire.api.routes import QueueData

#: brokers register this often, unless they are told otherwise. Java: BrokerConfig#registerNameServerPeriod
REGISTER_PERIOD_MS = 30_000
#: so many departures of one broker in so short a time are called flapping
FLAPPING_TIMES = 3
FLAPPING_MS = 600_000
#: brokers that are told of in full where a topic is explained
MAX_BROKERS_IN_FULL = 16


@attrs.frozen(kw_only=True)
class Now:
    """
    The moment of an explanation: epoch milliseconds, milliseconds of the steady clock, and when the NameServer started.

    ``ready`` is False while look-ups are refused because the start was a moment ago (needWaitForService).
    """

    now_ms: int
    steady_ms: int
    started_ms: int
    ready: bool = True


def explain_topic(topic: str, routes: RouteTable, log: EventLog, now: Now) -> RouteExplanation:
    """Say where a topic is served and by whom, or since when and why it is not."""
    route = routes.pick_route(topic)
    queues = [] if route is None else route.queue_datas
    serving = {queue.broker_name for queue in queues}
    # A broker that serves it has put it back since; what is left are the losses that count.
    lost = [event for event in log.of_topic(topic) if event.broker_name not in serving]
    forgotten_ms = log.topics_forgotten_ms()
    names = [*sorted(serving), *dict.fromkeys(event.broker_name for event in lost)]
    brokers = [_broker(name, routes, log, now) for name in names[:MAX_BROKERS_IN_FULL]]
    if serving:
        state, summary = PRESENT, f"served by {_count(len(serving), 'broker')}: {_some(sorted(serving))}"
    elif lost:
        state, summary = GONE, _gone_summary(lost[-1], now)
    else:
        state, summary = _unknown(forgotten_ms, now)
    found = RouteExplanation(
        asked="topic",
        name=topic,
        state=state,
        summary=summary,
        now_ms=now.now_ms,
        started_ms=now.started_ms,
        complete_since_ms=_since(forgotten_ms, now),
        queues=queues,
        brokers=brokers,
        removed=[event_data(event) for event in lost],
    )
    found.hints = [
        *_topic_hints(found, routes, now),
        *(hint for broker in brokers for hint in _broker_hints(broker, now)),
    ]
    found.text = _text(found)
    return found


def explain_broker(broker_name: str, routes: RouteTable, log: EventLog, now: Now) -> RouteExplanation:
    """Say which processes of a broker name are there and what happened to it, or since when and why it is not there."""
    broker = _broker(broker_name, routes, log, now)
    forgotten_ms = log.brokers_forgotten_ms()
    removed = log.removal_of(broker_name)
    if broker.state == PRESENT:
        summary = f"{_count(len(broker.processes), 'process', 'processes')} in cluster {broker.cluster}"
        summary += f", {_count(broker.topic_count, 'topic')}"
    elif removed is not None:
        summary = _gone_summary(removed, now)
    elif broker.state == GONE:
        summary = f"{broker.events[-1].kind}: {broker.events[-1].reason}"
    else:
        _, summary = _unknown(forgotten_ms, now)
    found = RouteExplanation(
        asked="broker",
        name=broker_name,
        state=broker.state,
        summary=summary,
        now_ms=now.now_ms,
        started_ms=now.started_ms,
        complete_since_ms=_since(forgotten_ms, now),
        brokers=[broker],
        removed=[event_data(removed)] if removed is not None and broker.state == GONE else [],
    )
    found.hints = list(_broker_hints(broker, now))
    if broker.state in (NEVER_SEEN, FORGOTTEN):
        found.hints += [
            *_alike(broker_name, [live.broker_name for live in routes.live_brokers()], "broker"),
            *_early(now),
            "does its namesrvAddr name this NameServer? Its log says where it registers, and what goes wrong with that",
        ]
    found.text = _text(found)
    return found


def explain_recent(count: int, log: EventLog, now: Now) -> RouteExplanation:
    """Return the last events, whatever they are about."""
    events = [event_data(event) for event in log.recent(count)]
    summary = f"the last {len(events)} of {log.count} events since the start" if events else "nothing since the start"
    found = RouteExplanation(
        asked="recent",
        name="",
        state=PRESENT,
        summary=summary,
        now_ms=now.now_ms,
        started_ms=now.started_ms,
        complete_since_ms=now.started_ms,
        events=events,
    )
    found.text = _text(found)
    return found


def event_data(event: RouteEvent) -> RouteEventData:
    """Return an event as it is sent."""
    return RouteEventData(
        at_ms=event.at_ms,
        kind=event.kind.value,
        broker_name=event.broker_name,
        broker_addr=event.broker_addr,
        broker_id=event.broker_id,
        cluster=event.cluster,
        peer=event.peer,
        data_version=event.data_version,
        topics=list(event.topics),
        topic_count=event.topic_count,
        reason=event.reason,
    )


# facts


def _broker(name: str, routes: RouteTable, log: EventLog, now: Now) -> BrokerExplanation:
    group = routes.group(name)
    events, removed = log.of_broker(name), log.removal_of(name)
    found = BrokerExplanation(
        broker_name=name,
        state=PRESENT,
        topic_count=routes.topic_count(name),
        events=[event_data(event) for event in events],
    )
    if group is not None:
        live = {live.broker_addr: live for live in routes.live_brokers() if live.broker_name == name}
        found.cluster = group.cluster
        found.processes = [_process(live[addr], now) for addr in group.broker_addrs.values() if addr in live]
    elif removed is not None or events:
        found.state = GONE
        found.cluster = (removed or events[-1]).cluster
        found.removed = None if removed is None else event_data(removed)
    else:
        found.state, _ = _unknown(log.brokers_forgotten_ms(), now)
    return found


def _process(live: LiveBroker, now: Now) -> BrokerProcess:
    return BrokerProcess(
        broker_addr=live.broker_addr,
        broker_id=live.broker_id,
        peer=live.peer,
        ha_server_addr=live.ha_server_addr,
        data_version=live.data_version,
        last_heartbeat_ms=live.last_update_ms,
        silent_ms=now.steady_ms - live.heard_ms,
        expiry_ms=live.expiry_ms,
    )


def _since(forgotten_ms: int | None, now: Now) -> int:
    return now.started_ms if forgotten_ms is None else forgotten_ms


def _unknown(forgotten_ms: int | None, now: Now) -> tuple[str, str]:
    """Return state and summary of what is neither in the table nor in the log."""
    if forgotten_ms is None:
        up = span_text(now.now_ms - now.started_ms)
        return NEVER_SEEN, f"never seen since this NameServer started, {time_text(now.started_ms)} ({up} ago)"
    return FORGOTTEN, (
        f"not seen since {time_text(forgotten_ms)} at least; what happened before has fallen out of the journal"
    )


def _gone_summary(event: RouteEvent, now: Now) -> str:
    ago = span_text(now.now_ms - event.at_ms)
    where = f" at {event.broker_addr}" if event.broker_addr else ""
    return f"{event.kind.value} {time_text(event.at_ms)} ({ago} ago) with {event.broker_name}{where}: {event.reason}"


# hints


def _topic_hints(found: RouteExplanation, routes: RouteTable, now: Now) -> Iterator[str]:
    if not now.ready:
        yield "every look-up is refused for the time being: needWaitForService=true and the start was a moment ago"
    if found.state == PRESENT:
        if not any(queue.perm & PERM_WRITE for queue in found.queues):
            yield "nobody can send to it: no broker has it with write permission (see WIPED, or the topic's perm)"
        elif not any(queue.write_queue_nums for queue in found.queues if queue.perm & PERM_WRITE):
            yield "nobody can send to it: it has no write queues"
        if not any(queue.perm & PERM_READ for queue in found.queues):
            yield "nobody can read it: no broker has it with read permission"
        if found.removed:
            gone = _some([event.broker_name for event in found.removed])
            yield f"it had queues on {gone} as well, which are missing now"
        return
    yield from _alike(found.name, routes.topics(), "topic")
    if found.state != GONE:
        yield from _early(now)
        yield (
            "a broker registers the topics that it has: does one have it (mqadmin topicList, its topics.json), and is"
            " that broker here (explain the broker)?"
        )
    elif found.removed[-1].kind == EventKind.TOPIC_DELETED.value:
        yield "it was deleted here; a broker that still has it brings it back with its next change"


def _broker_hints(broker: BrokerExplanation, now: Now) -> Iterator[str]:
    name = broker.broker_name
    if broker.state == PRESENT:
        if all(process.broker_id != MASTER_ID for process in broker.processes):
            yield f"{name} has no master (id 0) here: nobody can send to it, slaves serve reads only"
        for process in broker.processes:
            if process.broker_addr.startswith(("127.", "localhost", "[::1]")):
                yield f"{name} registers {process.broker_addr}: only its own host can reach that; set brokerIP1"
            if process.silent_ms > 2 * REGISTER_PERIOD_MS < process.expiry_ms:
                silence, rest = span_text(process.silent_ms), span_text(process.expiry_ms - process.silent_ms)
                yield f"{name} at {process.broker_addr} is overdue: silent for {silence}, gone in {rest}"
    removals = {kind.value for kind in REMOVALS}
    left = [event for event in broker.events if event.kind in removals and now.now_ms - event.at_ms <= FLAPPING_MS]
    if len(left) >= FLAPPING_TIMES:
        yield f"{name} is flapping: it left {len(left)} times within {span_text(FLAPPING_MS)}"


def _early(now: Now) -> Iterator[str]:
    up_ms = now.now_ms - now.started_ms
    if up_ms < 2 * REGISTER_PERIOD_MS:
        yield f"this NameServer runs for {span_text(up_ms)} only; brokers register every 30 s: ask again in a minute"


def _alike(name: str, others: list[str], what: str) -> Iterator[str]:
    folded = name.strip().casefold()
    alike = sorted({other for other in others if other != name and other.casefold() == folded})
    if alike:
        yield f"names are case-sensitive: there is a {what} called {_some(alike)}"


# text


def _text(found: RouteExplanation) -> str:
    head = f"{found.asked} {found.name}: " if found.name else ""
    lines = [f"{head}{found.state if found.name else ''} {found.summary}".replace(":  ", ": ").strip()]
    lines += [f"  ! {hint}" for hint in found.hints]
    queues = {queue.broker_name: queue for queue in found.queues}
    for broker in found.brokers:
        lines += _broker_lines(broker, queues.get(broker.broker_name), found)
    more = len({queue.broker_name for queue in found.queues}) - len(found.brokers)
    if more > 0:
        lines.append(f"  and {more} more brokers")
    if found.asked == "topic" and found.removed:
        lines.append("what took it from brokers, oldest first:")
        lines += [_event_line(event) for event in found.removed]
    if found.asked == "broker" and found.brokers[0].events:
        lines.append("last events, oldest first:")
        lines += [_event_line(event) for event in found.brokers[0].events]
    lines += [_event_line(event) for event in found.events]
    return "\n".join(map(printable, lines))


def _broker_lines(broker: BrokerExplanation, queue: QueueData | None, found: RouteExplanation) -> list[str]:
    lines = []
    if found.asked == "topic":
        if queue is not None:
            served = f"{queue.read_queue_nums} read and {queue.write_queue_nums} write queues, {_perm(queue.perm)}"
        else:
            served = "does not serve it now"
            if broker.removed is not None:
                served += f"; {broker.removed.kind}: {broker.removed.reason}"
        lines.append(f"  {broker.broker_name} in cluster {broker.cluster or '?'}, {broker.state}: {served}")
    for process in broker.processes:
        version = process.data_version
        lines.append(
            f"    id {process.broker_id} at {process.broker_addr}, by {process.peer or 'an unknown peer'},"
            f" data version {version.counter} of {time_text(version.timestamp)},"
            f" last heartbeat {span_text(process.silent_ms)} ago (gone after {span_text(process.expiry_ms)})"
        )
    return lines


def _event_line(event: RouteEventData) -> str:
    who = event.broker_name
    if event.broker_addr:
        who += f" {event.broker_addr}"
    if event.broker_id is not None:
        who += f" id {event.broker_id}"
    topics = ""
    if event.topic_count:
        more = ", ..." if event.topic_count > len(event.topics) else ""
        topics = f", {_count(event.topic_count, 'topic')} ({', '.join(event.topics)}{more})"
    by = f", by {event.peer}" if event.peer else ""
    return f"  {time_text(event.at_ms)} {event.kind} {who}{by}{topics}: {event.reason}"


def printable(line: str) -> str:
    """Return a line with whatever would move a terminal's cursor or colours written out; peers choose their names."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def _perm(perm: int) -> str:
    """Java: PermName#perm2String"""
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
