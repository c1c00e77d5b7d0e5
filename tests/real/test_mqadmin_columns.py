"""The four outputs of ``mqadmin`` that scripts cut: rmq-admin prints the same under the same name."""

from __future__ import annotations

import re

import pytest

from tests.real.peers import APACHE_4, OURS, Site, mqadmin, require_apache, until
from tests.real.test_rmq_admin import Admin

COMMANDS = (
    ("clusterList",),
    ("clusterList", "-m"),
    ("topicList",),
    ("topicList", "-c"),
    ("topicRoute", "-t", "orders"),
    ("topicRoute", "-t", "orders", "-l"),
    ("consumerProgress",),
    ("consumerProgress", "-g", "G"),
    ("consumerProgress", "-g", "G", "-s", "true"),
)


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, APACHE_4])
def test_same_text(site: Site, kind: str) -> None:
    """Column by column; rates and what time changes (an hour's hundredth, a wait in ms) are compared as a shape."""
    require_apache(APACHE_4)
    namesrv = site.namesrv(kind)
    site.broker(kind, namesrv.addr)
    admin = Admin(namesrv.addr)
    admin.text("topic", "create", "orders", "--queues", "2")
    until("the route", lambda: admin.run("topic", "route", "orders").returncode == 0)
    admin.text("produce", "orders", text="a\nb\nc\n")
    admin.text("group", "create", "G")
    admin.text("group", "reset", "G", "orders", "--to", "begin", "--yes")
    admin.text("topic", "create", "%RETRY%G", "--queues", "1")
    until("the group", lambda: admin.run("group", "show", "G").returncode == 0)
    for command in COMMANDS:
        expected = _shape(mqadmin(site.root, *command, "-n", namesrv.addr))
        shown = _shape(admin.text(*command))
        if command[0] == "topicList":  # Java prints a hash set
            shown, expected = ("\n".join(sorted(text.splitlines())) for text in (shown, expected))
        assert shown == expected, command


def _shape(text: str) -> str:
    """Leave out what logging prints, and what differs between two moments: rates, hours, waits, free space."""
    lines = [line.rstrip() for line in text.rstrip().splitlines() if "RocketMQLog" not in line]
    return re.sub(r"\d+\.\d+(?=\(|  *\d\.\d{4}$|$)", "0.0", "\n".join(lines)).strip()
