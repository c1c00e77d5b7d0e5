"""
What the NameServer remembers of events, within bounds.

It keeps the last events of all, and apart from these the last ones of each broker name and of each topic, so that a
storm of events about others does not evict what an operator will ask for. Each part is bounded in number and in bytes,
and knows the time of the last event that it evicted: an answer of "never seen" says since when that is certain.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice

import attrs

from rmq.namesrv.journal.events import REMOVALS, EventKind, RouteEvent
from rmq.namesrv.journal.reasons import reason_of
from rmq.wire.api.explain import RouteEventData

#: texts come from peers, which may send a megabyte as a name
MAX_TEXT_CHARS = 255
#: topics that an event names, however many it is about
MAX_EVENT_TOPICS = 5
#: an arrival or a change with more topics than this is not noted topic by topic: it would double the time of a changed
#: registration of 10,000 topics, and they are in the table, or their loss is noted
MAX_NOTED_ARRIVALS = 64

#: bytes of an event or a note beside its texts, estimated
_EVENT_BYTES = 500
_NOTE_BYTES = 200
_REFERENCE_BYTES = 100

#: what is kept has the name of a kind
REMOVAL_NAMES = frozenset(kind.value for kind in REMOVALS)
#: the topics of these events are in the routes afterwards
_ARRIVALS = frozenset({EventKind.REGISTERED, EventKind.CHANGED})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Limits:
    """How much is kept; bytes are estimated."""

    #: the last events of all
    max_events: int = 2_000
    max_event_bytes: int = 2 << 20
    #: the last events of one broker name, and broker names
    events_per_broker: int = 16
    max_brokers: int = 2_000
    max_broker_bytes: int = 4 << 20
    #: broker names of one topic, for each of which the last event is kept, and topics
    brokers_per_topic: int = 8
    max_topics: int = 20_000
    max_topic_bytes: int = 6 << 20


@attrs.define(eq=False, repr=False)
class _BrokerNotes:
    """The last events of a broker name, oldest first, and the last one that removed a process of it."""

    events: deque[RouteEventData]
    removed: RouteEventData | None = None
    cost: int = 0
    last_ms: int = 0


class _Brokers:
    """
    Notes by broker name; beyond the bounds the name without events for the longest time is evicted.

    ``forgotten_ms`` is the time of the last event of evicted names, None while there are none.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._notes: OrderedDict[str, _BrokerNotes] = OrderedDict()
        self.size_bytes = 0
        self.forgotten_ms: int | None = None

    def get(self, name: str) -> _BrokerNotes | None:
        return self._notes.get(name)

    def note(self, event: RouteEventData, cost: int) -> None:
        """Add an event of ``cost`` bytes."""
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
        if event.kind in REMOVAL_NAMES:
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

    A broker with ten thousand topics that goes makes ten thousand notes at once, about 0.3 us each.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._notes: OrderedDict[str, tuple[RouteEventData, ...]] = OrderedDict()
        self.size_bytes = 0
        self.forgotten_ms: int | None = None

    def get(self, name: str) -> tuple[RouteEventData, ...]:
        return self._notes.get(name, ())

    def note(self, names: Iterable[str], event: RouteEventData) -> None:
        notes, others, alone, broker = self._notes, self._limits.brokers_per_topic - 1, (event,), event.broker_name
        for name in names:
            if len(name) > MAX_TEXT_CHARS:
                name = _clip(name)
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
    """Keeps events within ``limits``, as they are sent."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._events: deque[RouteEventData] = deque()
        self._event_bytes = 0
        self._brokers = _Brokers(self._limits)
        self._topics = _Topics(self._limits)
        #: how many events there were, by kind
        self.counts: dict[EventKind, int] = dict.fromkeys(EventKind, 0)

    @property
    def size_bytes(self) -> int:
        """Bytes that are kept, estimated."""
        return self._event_bytes + self._brokers.size_bytes + self._topics.size_bytes

    def record(self, event: RouteEvent) -> RouteEventData:
        """Add an event; return it as it is kept."""
        self.counts[event.kind] += 1
        kept = event_data(event)
        cost = cost_of(kept)
        self._events.append(kept)
        self._event_bytes += cost
        while len(self._events) > self._limits.max_events or self._event_bytes > self._limits.max_event_bytes:
            self._event_bytes -= cost_of(self._events.popleft())
        self._brokers.note(kept, cost)
        if event.kind not in _ARRIVALS or len(event.topics) <= MAX_NOTED_ARRIVALS:
            self._topics.note(event.topics, kept)
        return kept

    def recent(self, count: int) -> list[RouteEventData]:
        """Return the last ``count`` events, oldest first."""
        return list(self._events)[-count:] if count > 0 else []

    def of_broker(self, broker_name: str) -> list[RouteEventData]:
        """Return the last events of a broker name, oldest first."""
        notes = self._brokers.get(_clip(broker_name))
        return [] if notes is None else list(notes.events)

    def removal_of(self, broker_name: str) -> RouteEventData | None:
        """Return the last event that removed a process of that name from the routes."""
        notes = self._brokers.get(_clip(broker_name))
        return None if notes is None else notes.removed

    def of_topic(self, topic: str) -> list[RouteEventData]:
        """Return for each broker name the last known event about the topic, oldest first."""
        return list(self._topics.get(_clip(topic)))

    def brokers_forgotten_ms(self) -> int | None:
        """Return the time of the last evicted event of a broker name; None when none was evicted."""
        return self._brokers.forgotten_ms

    def topics_forgotten_ms(self) -> int | None:
        """Return the time of the last evicted event of a topic; None when none was evicted."""
        return self._topics.forgotten_ms


def event_data(event: RouteEvent) -> RouteEventData:
    """Return an event as it is kept and sent: in words, no text too long, only the first topics."""
    return RouteEventData(
        at_ms=event.at_ms,
        kind=event.kind.value,
        broker_name=_clip(event.broker_name),
        broker_addr=_clip(event.broker_addr),
        broker_id=event.broker_id,
        cluster=_clip(event.cluster),
        peer=event.peer,
        data_version=event.data_version,
        topics=[_clip(topic) for topic in islice(event.topics, MAX_EVENT_TOPICS)],
        topic_count=len(event.topics),
        reason=_clip(reason_of(event.causes, event.peer)),
    )


def cost_of(event: RouteEventData) -> int:
    """Return about how many bytes an event takes."""
    texts = len(event.broker_name) + len(event.broker_addr) + len(event.cluster) + len(event.peer) + len(event.reason)
    return _EVENT_BYTES + texts + sum(map(len, event.topics))


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
