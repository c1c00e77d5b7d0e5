"""
A bounded memory of what happened to the routes.

It holds the last events of all, and apart from these the last ones of each broker name and of each topic, so that a
storm of events about others does not wash away what an operator will ask for. Everything has a bound in number and in
bytes, and of everything that fell out it is known until when: an answer of "nothing is known" says since when.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

import attrs

from rmq.namesrv.events import EventKind, RouteEvent

#: the last events, whatever they are about
MAX_EVENTS = 2_000
MAX_EVENT_BYTES = 2 << 20
#: the last events of one broker name, and of how many names
EVENTS_PER_BROKER = 16
MAX_BROKERS = 2_000
MAX_BROKER_BYTES = 4 << 20
#: of one topic the last event for each of so many broker names, and of how many topics
BROKERS_PER_TOPIC = 8
MAX_TOPICS = 20_000
MAX_TOPIC_BYTES = 6 << 20
#: texts come from peers, which may send a megabyte as a name
MAX_TEXT_CHARS = 255
#: an arrival or a change with more topics than this is not noted topic by topic: they are in the table, or their loss
#: is noted; a changed registration of 10,000 topics would be held up by as much again as it takes without
MAX_NOTED_ARRIVALS = 64

#: what an event or a note costs beside its texts, roughly
_EVENT_BYTES = 500
_NOTE_BYTES = 200
_REFERENCE_BYTES = 100

#: a broker process left the routes
REMOVALS = frozenset({EventKind.UNREGISTERED, EventKind.CLOSED, EventKind.EXPIRED, EventKind.REPLACED})

#: the topics of these events are in the routes afterwards
STAYS = frozenset({EventKind.REGISTERED, EventKind.CHANGED})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Limits:
    """How much is kept; bytes are estimated."""

    max_events: int = MAX_EVENTS
    max_event_bytes: int = MAX_EVENT_BYTES
    events_per_broker: int = EVENTS_PER_BROKER
    max_brokers: int = MAX_BROKERS
    max_broker_bytes: int = MAX_BROKER_BYTES
    brokers_per_topic: int = BROKERS_PER_TOPIC
    max_topics: int = MAX_TOPICS
    max_topic_bytes: int = MAX_TOPIC_BYTES


@attrs.define(eq=False, repr=False)
class _BrokerNotes:
    """The last events of a broker name, oldest first, and the last one that made a process of it leave."""

    events: deque[RouteEvent]
    removed: RouteEvent | None = None
    cost: int = 0
    last_ms: int = 0


class _Brokers:
    """
    Notes by broker name; beyond the bounds the name of which nothing was heard for longest is forgotten.

    ``forgotten_ms`` is the time of the last event of the names that are forgotten, None while there are none.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._notes: OrderedDict[str, _BrokerNotes] = OrderedDict()
        self.size_bytes = 0
        self.forgotten_ms: int | None = None

    def get(self, name: str) -> _BrokerNotes | None:
        return self._notes.get(name)

    def note(self, event: RouteEvent, cost: int) -> None:
        """Take in an event that costs ``cost``."""
        notes, before = self._notes.get(event.broker_name), 0
        if notes is None:
            notes = self._notes[event.broker_name] = _BrokerNotes(deque(), cost=_NOTE_BYTES + len(event.broker_name))
        else:
            before = notes.cost
            self._notes.move_to_end(event.broker_name)
        if len(notes.events) == self._limits.events_per_broker:
            notes.cost -= cost_of(notes.events.popleft())
        notes.events.append(event)
        notes.cost += cost
        notes.last_ms = event.at_ms
        if event.kind in REMOVALS:
            if notes.removed is not None:
                notes.cost -= cost_of(notes.removed)
            notes.removed = event
            notes.cost += cost
        self.size_bytes += notes.cost - before
        while len(self._notes) > self._limits.max_brokers or self.size_bytes > self._limits.max_broker_bytes:
            _, gone = self._notes.popitem(last=False)
            self.size_bytes -= gone.cost
            self.forgotten_ms = max(gone.last_ms, self.forgotten_ms or 0)


class _Topics:
    """
    By topic, for each of some broker names, the last event that was about it; bounded as :class:`_Brokers` is.

    A broker with ten thousand topics that goes is ten thousand notes at once: about 0.3 us each.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._notes: OrderedDict[str, tuple[RouteEvent, ...]] = OrderedDict()
        self.size_bytes = 0
        self.forgotten_ms: int | None = None

    def get(self, name: str) -> tuple[RouteEvent, ...]:
        return self._notes.get(name, ())

    def note(self, names: Iterable[str], event: RouteEvent) -> None:
        notes, others, alone, broker = self._notes, self._limits.brokers_per_topic - 1, (event,), event.broker_name
        for name in names:
            if len(name) > MAX_TEXT_CHARS:
                name = clip(name)
            known = notes.get(name)
            if known is None:
                notes[name] = alone
                self.size_bytes += _NOTE_BYTES + len(name) + _REFERENCE_BYTES
                continue
            if len(known) == 1 and known[0].broker_name == broker:
                notes[name] = alone
            else:
                kept = [one for one in known if one.broker_name != broker]
                notes[name] = (*kept[-others:], event)
                self.size_bytes += _REFERENCE_BYTES * (len(notes[name]) - len(known))
            notes.move_to_end(name)
        while len(notes) > self._limits.max_topics or self.size_bytes > self._limits.max_topic_bytes:
            name, gone = notes.popitem(last=False)
            self.size_bytes -= _NOTE_BYTES + len(name) + _REFERENCE_BYTES * len(gone)
            self.forgotten_ms = max(gone[-1].at_ms, self.forgotten_ms or 0)


class EventLog:
    """Keeps events within ``limits``; see the text of the module."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._events: deque[RouteEvent] = deque()
        self._event_bytes = 0
        self._brokers = _Brokers(self._limits)
        self._topics = _Topics(self._limits)
        #: how many events there were
        self.count = 0

    @property
    def size_bytes(self) -> int:
        """What is kept, estimated."""
        return self._event_bytes + self._brokers.size_bytes + self._topics.size_bytes

    def record(self, event: RouteEvent) -> None:
        """Take in an event."""
        self.count += 1
        concerns = event.concerns
        event = clipped(event)
        cost = cost_of(event)
        self._events.append(event)
        self._event_bytes += cost
        while len(self._events) > self._limits.max_events or self._event_bytes > self._limits.max_event_bytes:
            self._event_bytes -= cost_of(self._events.popleft())
        self._brokers.note(event, cost)
        if event.kind not in STAYS or len(concerns) <= MAX_NOTED_ARRIVALS:
            self._topics.note(concerns, event)

    def recent(self, count: int) -> list[RouteEvent]:
        """Return the last ``count`` events, oldest first."""
        return list(self._events)[-count:] if count > 0 else []

    def of_broker(self, broker_name: str) -> list[RouteEvent]:
        """Return the last events of a broker name, oldest first."""
        notes = self._brokers.get(clip(broker_name))
        return [] if notes is None else list(notes.events)

    def removal_of(self, broker_name: str) -> RouteEvent | None:
        """Return the last event by which a process of that name left the routes."""
        notes = self._brokers.get(clip(broker_name))
        return None if notes is None else notes.removed

    def of_topic(self, topic: str) -> list[RouteEvent]:
        """Return, oldest first, for each broker name the last event that was about the topic and is known."""
        return list(self._topics.get(clip(topic)))

    def brokers_forgotten_ms(self) -> int | None:
        """Return until when something about a broker may be forgotten; None when nothing is."""
        return self._brokers.forgotten_ms

    def topics_forgotten_ms(self) -> int | None:
        """Return until when something about a topic may be forgotten; None when nothing is."""
        return self._topics.forgotten_ms


def clip(text: str) -> str:
    """Return a text that came from a peer in a size that may be kept."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def clipped(event: RouteEvent) -> RouteEvent:
    """Return an event as it is kept: no text too long, and without what only counts while it happens."""
    texts = (event.broker_name, event.broker_addr, event.cluster, event.reason, *event.topics)
    if max(map(len, texts)) <= MAX_TEXT_CHARS:
        return attrs.evolve(event, concerns=())
    return attrs.evolve(
        event,
        broker_name=clip(event.broker_name),
        broker_addr=clip(event.broker_addr),
        cluster=clip(event.cluster),
        topics=tuple(map(clip, event.topics)),
        reason=clip(event.reason),
        concerns=(),
    )


def cost_of(event: RouteEvent) -> int:
    """Return about how many bytes an event takes."""
    texts = len(event.broker_name) + len(event.broker_addr) + len(event.cluster) + len(event.peer) + len(event.reason)
    return _EVENT_BYTES + texts + sum(map(len, event.topics))
