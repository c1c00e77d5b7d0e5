"""
Why a topic has a route or none, and why a broker is registered or not: the route table joined with the event log.

An explanation is a value; its ``text`` says all of it in lines for people.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from rmq.namesrv.journal.eventlog import REMOVAL_NAMES, EventLog
from rmq.namesrv.journal.events import EventKind
from rmq.namesrv.live import LiveBroker
from rmq.namesrv.routes import RouteTable
from rmq.runtime.http.html import span_text, time_text
from rmq.wire.api.common import MASTER_ID, PERM_READ, PERM_WRITE, perm_text
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

#: default interval of registrations. Java: BrokerConfig#registerNameServerPeriod
REGISTER_PERIOD_MS = 30_000
#: a broker that leaves this often within this time is flapping
FLAPPING_TIMES = 3
FLAPPING_MS = 600_000
_REPLACED = EventKind.REPLACED.value
#: brokers with all their details where a topic is explained
MAX_BROKERS_IN_FULL = 16
#: names in one line of text
MAX_NAMES_IN_LINE = 5


@attrs.frozen(kw_only=True)
class Now:
    """
    The moment of an explanation, in epoch and in steady milliseconds, and when the NameServer started (epoch).

    ``ready`` is False while needWaitForService refuses look-ups after the start.
    """

    now_ms: int
    steady_ms: int
    started_ms: int
    ready: bool = True


def explain_topic(topic: str, routes: RouteTable, log: EventLog, now: Now) -> RouteExplanation:
    """Explain which brokers serve a topic, or since when and why none does."""
    route = routes.topology.pick_route(topic)
    queues = [] if route is None else route.queue_datas
    serving = {queue.broker_name for queue in queues}
    # A broker that serves the topic now has added it again: its older losses do not count.
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
    found = _explanation("topic", topic, state, summary, now, forgotten_ms)
    found.queues, found.brokers, found.removed = queues, brokers, lost
    found.hints = [
        *_topic_hints(found, routes, now),
        *(hint for broker in brokers for hint in _broker_hints(broker, now)),
    ]
    found.text = _text(found)
    return found


def explain_broker(broker_name: str, routes: RouteTable, log: EventLog, now: Now) -> RouteExplanation:
    """Explain which processes of a broker name are registered, or since when and why none is."""
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
    found = _explanation("broker", broker_name, broker.state, summary, now, forgotten_ms)
    found.brokers = [broker]
    found.removed = [removed] if removed is not None and broker.state == GONE else []
    found.hints = list(_broker_hints(broker, now))
    if broker.state in (NEVER_SEEN, FORGOTTEN):
        found.hints += [
            *_alike(broker_name, [live.broker_name for live in routes.live_brokers()], "broker"),
            *_early(now),
            "does its namesrvAddr name this NameServer? Its log says where it registers, and which errors that has",
        ]
    found.text = _text(found)
    return found


def explain_recent(count: int, log: EventLog, now: Now) -> RouteExplanation:
    """Return the last events."""
    events = log.recent(count)
    total = sum(log.counts.values())
    summary = f"the last {len(events)} of {total} events since the start" if events else "no events since the start"
    found = _explanation("recent", "", PRESENT, summary, now, None)
    found.events = events
    found.text = _text(found)
    return found


# facts


def _explanation(
    asked: str, name: str, state: str, summary: str, now: Now, forgotten_ms: int | None
) -> RouteExplanation:
    return RouteExplanation(
        asked=asked,
        name=name,
        state=state,
        summary=summary,
        now_ms=now.now_ms,
        started_ms=now.started_ms,
        complete_since_ms=now.started_ms if forgotten_ms is None else forgotten_ms,
    )


def _broker(name: str, routes: RouteTable, log: EventLog, now: Now) -> BrokerExplanation:
    group = routes.topology.group(name)
    events, removed = log.of_broker(name), log.removal_of(name)
    found = BrokerExplanation(
        broker_name=name,
        state=PRESENT,
        topic_count=routes.topology.topic_count(name),
        events=events,
    )
    if group is not None:
        live = {live.broker_addr: live for live in routes.live_brokers() if live.broker_name == name}
        found.cluster = group.cluster
        found.processes = [_process(live[addr], now) for addr in group.broker_addrs.values() if addr in live]
    elif events:
        found.state = GONE
        found.cluster = events[-1].cluster
        found.removed = removed
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


def _unknown(forgotten_ms: int | None, now: Now) -> tuple[str, str]:
    """Return state and summary of a name that is neither in the table nor in the log."""
    if forgotten_ms is None:
        up = span_text(now.now_ms - now.started_ms)
        return NEVER_SEEN, f"never seen since this NameServer started, {time_text(now.started_ms)} ({up} ago)"
    return FORGOTTEN, (
        f"not seen since {time_text(forgotten_ms)} at least; older events have been evicted from the journal"
    )


def _gone_summary(event: RouteEventData, now: Now) -> str:
    ago = span_text(now.now_ms - event.at_ms)
    where = f" at {event.broker_addr}" if event.broker_addr else ""
    return f"{event.kind} {time_text(event.at_ms)} ({ago} ago), {event.broker_name}{where}: {event.reason}"


# hints


def _topic_hints(found: RouteExplanation, routes: RouteTable, now: Now) -> Iterator[str]:
    if not now.ready:
        yield "all look-ups are refused until waitSecondsForService after the start (needWaitForService=true)"
    if found.state == PRESENT:
        if not any(queue.perm & PERM_WRITE for queue in found.queues):
            yield "sends fail: no broker has the topic with write permission (see WIPED, or the topic's perm)"
        elif not any(queue.write_queue_nums for queue in found.queues if queue.perm & PERM_WRITE):
            yield "sends fail: the topic has no write queues"
        if not any(queue.perm & PERM_READ for queue in found.queues):
            yield "pulls fail: no broker has the topic with read permission"
        if found.removed:
            gone = _some([event.broker_name for event in found.removed])
            yield f"its queues on {gone} are missing now"
        return
    yield from _alike(found.name, routes.topology.topics(), "topic")
    if found.state != GONE:
        yield from _early(now)
        yield (
            "a broker registers the topics that it has: does one have it (mqadmin topicList, its topics.json), and is"
            " that broker registered here (explain the broker)?"
        )
    elif found.removed[-1].kind == EventKind.TOPIC_DELETED.value:
        yield "it was deleted here; a broker that still has it adds it again with its next change"


def _broker_hints(broker: BrokerExplanation, now: Now) -> Iterator[str]:
    name = broker.broker_name
    if broker.state == PRESENT:
        if all(process.broker_id != MASTER_ID for process in broker.processes):
            yield f"{name} has no master (id 0) here: sends to it fail, slaves serve reads only"
        for process in broker.processes:
            if process.broker_addr.startswith(("127.", "localhost", "[::1]")):
                yield f"{name} registers {process.broker_addr}: only its own host can reach this; set brokerIP1"
            if process.silent_ms > 2 * REGISTER_PERIOD_MS < process.expiry_ms:
                silence, rest = span_text(process.silent_ms), span_text(process.expiry_ms - process.silent_ms)
                yield f"{name} at {process.broker_addr} is overdue: silent for {silence}, expires in {rest}"
    replaced = [one for one in broker.events if one.kind == _REPLACED and now.now_ms - one.at_ms <= FLAPPING_MS]
    for broker_id in sorted({one.broker_id for one in replaced if one.broker_id is not None}):
        addrs = [one.broker_addr for one in replaced if one.broker_id == broker_id]
        if len(set(addrs)) < len(addrs):  # one that moves has a new one each time
            now_there = {one.broker_addr for one in broker.processes if one.broker_id == broker_id}
            several = _some(sorted({*addrs, *now_there}))
            yield (
                f"several processes register as {name} with id {broker_id}, by turns: {several}; "
                "stop all but one (an old master beside the promoted slave takes messages that the other never gets)"
            )
    left = [one for one in broker.events if one.kind in REMOVAL_NAMES and now.now_ms - one.at_ms <= FLAPPING_MS]
    if len(left) >= FLAPPING_TIMES:
        yield f"{name} is flapping: it left {len(left)} times within {span_text(FLAPPING_MS)}"


def _early(now: Now) -> Iterator[str]:
    up_ms = now.now_ms - now.started_ms
    if up_ms < 2 * REGISTER_PERIOD_MS:
        yield f"this NameServer started {span_text(up_ms)} ago; brokers register every 30 s: ask again in a minute"


def _alike(name: str, others: list[str], what: str) -> Iterator[str]:
    folded = name.strip().casefold()
    alike = sorted({other for other in others if other != name and other.casefold() == folded})
    if alike:
        yield f"names are case-sensitive: there is a {what} called {_some(alike)}"


# text


def _text(found: RouteExplanation) -> str:
    lines = [f"{found.asked} {found.name}: {found.state} {found.summary}" if found.name else found.summary]
    lines += [f"  ! {hint}" for hint in found.hints]
    queues = {queue.broker_name: queue for queue in found.queues}
    for broker in found.brokers:
        lines += _broker_lines(broker, queues.get(broker.broker_name), found)
    more = len({queue.broker_name for queue in found.queues}) - len(found.brokers)
    if more > 0:
        lines.append(f"  and {more} more brokers")
    if found.asked == "topic" and found.removed:
        lines.append("events that removed it, oldest first:")
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
            served = f"{queue.read_queue_nums} read and {queue.write_queue_nums} write queues, {perm_text(queue.perm)}"
        else:
            served = "does not serve it"
            if broker.removed is not None:
                served += f"; {broker.removed.kind}: {broker.removed.reason}"
        lines.append(f"  {broker.broker_name} in cluster {broker.cluster or '?'}, {broker.state}: {served}")
    for process in broker.processes:
        version = process.data_version
        lines.append(
            f"    id {process.broker_id} at {process.broker_addr}, by {process.peer or 'an unknown peer'},"
            f" data version {version.counter} of {time_text(version.timestamp)},"
            f" last heartbeat {span_text(process.silent_ms)} ago (expires after {span_text(process.expiry_ms)})"
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
    """Return a line with its control characters escaped: peers choose their names, and terminals obey them."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_IN_LINE} more" if len(names) > MAX_NAMES_IN_LINE else ""
    return ", ".join(names[:MAX_NAMES_IN_LINE]) + more
