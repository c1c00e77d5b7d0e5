"""A group that consumes in order, with members of Java's client and of ours, some of which are killed."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.real.campaigns import campaign_only
from tests.real.mixedgroup import TOPIC, Group, sending
from tests.real.peers import APACHE_4, APACHE_5, OURS, Site, require_apache, until
from tests.real.piped import PipedClient

QUEUES = 8
#: a broker keeps the locks of a killed member for 60 s, and members ask for them every 20 s
SETTLED_S = 180.0
#: a queue has a new owner at most with each of the eight changes; two at once would take turns all the time
TENURES = 10


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, campaign_only(APACHE_4), campaign_only(APACHE_5)])
def test_order_holds_through_kills(kind: str, site: Site) -> None:
    """
    No message comes before an earlier one of its queue, whichever members are killed, and none is left out.

    A member that takes a queue over begins where its offset was committed, so what the last one had in hand may come
    again, in order.
    """
    if kind != OURS:
        require_apache(kind)
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr)
    with broker.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    group = Group(namesrv.addr, site.root / "members", QUEUES, in_order=True)
    try:
        with sending(namesrv.addr, [broker], QUEUES) as sent:
            for language in ("java", "java", "python", "python"):
                group.join(language)
            until("each queue has one owner at first", group.is_settled, seconds=SETTLED_S)
            java, _, python, _ = group.running
            for member in (java, python):
                group.end(member, PipedClient.kill)
            until("each queue has one owner after kills", group.is_settled, seconds=SETTLED_S)
            for language in ("java", "python"):
                group.join(language)
            until("each queue has one owner after returns", group.is_settled, seconds=SETTLED_S)
        until("every message has come", lambda: not set(sent) - group.received().keys(), seconds=SETTLED_S)
        again = sum(count - 1 for count in group.received().values())
        print(f"\n{kind}: {len(sent)} messages, {again} came again")
        queues = deliveries(group)
        assert len(queues) == QUEUES
        for queue, offsets in queues.items():
            check_order(queue, offsets)
        killed = {java.name, python.name}
        assert all({member for _, member, _ in queues[queue]} - killed for queue in queues)
    finally:
        group.close()


Delivery = tuple[float, str, int]


def deliveries(group: Group) -> dict[str, list[Delivery]]:
    """Return by queue who got which offset, in the order of time."""
    found: dict[str, list[Delivery]] = defaultdict(list)
    for member in group.all():
        for event in member.got():
            found[event["key"].rpartition("-")[0]].append((event["at"], member.name, event["offset"]))
    # those of one millisecond in the order in which their member got them
    return {queue: sorted(events, key=lambda event: event[0]) for queue, events in found.items()}


def check_order(queue: str, events: list[Delivery]) -> None:
    """A member gets a queue one by one; where another begins, nothing was left out; no two have it at once."""
    end, tenures, last = 0, [], ("", -1)
    for _, member, offset in events:
        if (member, offset - 1) != last:
            tenures.append(f"{member} from {offset}")
            assert offset <= end, f"{queue}: {tenures}, but {end} had not come"
        end, last = max(end, offset + 1), (member, offset)
    assert len(tenures) <= TENURES, f"{queue}: {tenures}"
