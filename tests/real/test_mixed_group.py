"""
One group with members in Java, Go and Python, which come, leave and are killed.

It takes ten minutes with each broker, so only ``RMQ_CAMPAIGN=1`` runs it.
"""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.real.campaigns import CAMPAIGN
from tests.real.mixedgroup import TOPIC, Group, sending
from tests.real.peers import APACHE_4, APACHE_5, OURS, Site, require_apache, until
from tests.real.piped import PipedClient

pytestmark = [pytest.mark.real, CAMPAIGN]

QUEUES = 8
#: two of Java, two of Python, one of Go
LANGUAGES = ("java", "java", "python", "python", "go")
CAMPAIGN_S = 600.0
#: from a change until each queue has one owner
SETTLED_S = 25.0
SEED = 20_261


@pytest.mark.parametrize("kind", [OURS, APACHE_4, APACHE_5])
def test_members_of_three_languages(kind: str, site: Site) -> None:
    """
    25 s after each change every queue has one owner, all members nearly as many; each message comes to one of them.

    Which is the same as: all clients see the same members and divide the queues between them in the same way.
    """
    if kind != OURS:
        require_apache(kind)
    namesrv = site.namesrv(kind)
    brokers = [site.broker(kind, namesrv.addr, name, brokerName=name) for name in ("broker-a", "broker-b")]
    for broker in brokers:
        with broker.probe() as probe:
            probe.create_topic(TOPIC, QUEUES)
    group, chance = Group(namesrv.addr, site.root / "members", 2 * QUEUES), Random(SEED)
    try:
        with sending(namesrv.addr, brokers, QUEUES) as sent:
            for language in LANGUAGES:
                group.join(language)
            until("each queue has one owner at first", group.is_settled, seconds=120)
            began, changes = time.monotonic(), 0
            while time.monotonic() < began + CAMPAIGN_S:
                member = chance.choice(group.running)
                how = chance.choice((PipedClient.kill, PipedClient.close))
                group.end(member, how)
                what = f"{member.name} was ended by {how.__name__}"
                until(f"each queue has one owner after {what}", group.is_settled, seconds=SETTLED_S)
                group.join(member.name.partition("-")[0])
                until(f"each queue has one owner after a return, {what}", group.is_settled, seconds=SETTLED_S)
                changes += 1
        until("every message has come", lambda: not set(sent) - group.received().keys(), seconds=60)
        again = sum(count > 1 for count in group.received().values())
        print(f"\n{kind}: {2 * changes} changes, {len(sent)} messages, {again} of them came again")
    finally:
        group.close()
