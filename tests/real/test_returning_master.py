"""Consumers went on at the slave while the master was away: back, it does not send them back (Apache issue 1094)."""

from __future__ import annotations

import pytest

from tests.real.pairs import TOPIC, start_pair
from tests.real.peers import APACHE_4, OURS, Broker, Site, until

GROUP = "returning-readers"


def offset_at(broker: Broker) -> int:
    with broker.probe() as probe:
        return probe.committed_offset(GROUP, TOPIC, 1)


@pytest.mark.real
@pytest.mark.parametrize("master_kind", [OURS, APACHE_4])
def test_offsets_of_a_returning_master(master_kind: str, site: Site) -> None:
    """
    Committed at our slave while its master was killed: kept there, and told to the master, also one of Apache's.

    An Apache slave takes over the master's older offset instead, and what was consumed meanwhile comes again.
    """
    _, master, slave = start_pair(site, (master_kind, OURS))
    with master.probe() as probe:
        probe.join_group(GROUP, TOPIC)
        for number in range(40):
            assert probe.send_message(TOPIC, 1, b"%d" % number).code == 0
        probe.commit_offset(GROUP, TOPIC, 1, 10)
    until("the slave has the master's offset", lambda: offset_at(slave) == 10, seconds=90)
    # Apache's master writes its offsets every 5 s, and has them after a kill only then.
    until("the master has written it", lambda: GROUP in (master.store / "config/consumerOffset.json").read_text())
    master.kill()
    with slave.probe() as probe:
        probe.commit_offset(GROUP, TOPIC, 1, 30)
    slave.stop()
    slave.start()
    assert offset_at(slave) == 30
    master.start()
    until("the returned master knows what was committed", lambda: offset_at(master) == 30, seconds=120)
    assert offset_at(slave) == 30
    with master.probe() as probe:
        probe.commit_offset(GROUP, TOPIC, 1, 5)
    until("a reset at the master reaches the slave", lambda: offset_at(slave) == 5, seconds=90)
