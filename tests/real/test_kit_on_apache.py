"""The test kit with --rmq-address: tests of users run against Apache's cluster as against the kit's own servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.peers import APACHE_4, APACHE_5, Site, require_apache
from tests.testing.test_examples import PLUGINS, pytest_of, run

CONSUMING = """
import pytest
from rmq.blocking import Message, PushSettings
from rmq.client.settings import From
from rmq.testing import ServerFailed

def test_consumed(rmq, rmq_client):
    topic, group = rmq.topic(queues=2), rmq.group()
    for n in range(10):
        rmq_client.producer().send(Message(topic, str(n).encode()))
    seen = set()
    first = PushSettings(consume_from=From.FIRST)
    rmq_client.push_consumer(group, {topic: "*"}, handler=lambda one: seen.add(one.body), settings=first).start()
    rmq.wait_consumed(group, topic, timeout_s=60)
    with pytest.raises(ServerFailed, match="not with --rmq-address"):
        rmq.faults.full_disk()
    assert seen == {str(n).encode() for n in range(10)}
"""


@pytest.mark.real
@pytest.mark.parametrize("kind", [APACHE_4, APACHE_5])
def test_against_apache(site: Site, tmp_path: Path, kind: str) -> None:
    """Topics, clients and wait_consumed work there; faults say that they do not."""
    require_apache(kind)
    namesrv = site.namesrv(kind)
    site.broker(kind, namesrv.addr)
    (tmp_path / "test_consuming.py").write_text(CONSUMING)
    assert "1 passed" in run(tmp_path, *pytest_of(PLUGINS[0]), "--rmq-address", namesrv.addr)
