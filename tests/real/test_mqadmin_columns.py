"""The outputs of ``mqadmin`` that scripts cut or search: rmq-admin prints the same under the same name."""

from __future__ import annotations

import re

import pytest

from tests.real.javaclient import JavaAdmin
from tests.real.peers import APACHE_4, OURS, Site, require_apache, until
from tests.real.test_rmq_admin import Admin

BROKER = "the broker's address"

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
    ("topicStatus", "-t", "orders"),
    ("statsAll",),
    ("statsAll", "-t", "orders"),
    ("brokerStatus", "-c", "DefaultCluster"),
    ("getBrokerConfig", "-c", "DefaultCluster"),
    ("getNamesrvConfig",),
    ("queryMsgByKey", "-t", "orders", "-k", "k1"),
    ("brokerConsumeStats", "-b", BROKER),
    ("getConsumerConfig", "-g", "G"),
    ("queryCq", "-t", "orders", "-q", "0", "-i", "0"),
    ("allocateMQ", "-t", "orders", "-i", "a,b"),
    ("resetOffsetByTime", "-g", "G", "-t", "orders", "-s", "2020-01-01#00:00:00:000"),
    ("updateTopic", "-c", "DefaultCluster", "-t", "others", "-o", "true"),
    ("updateOrderConf", "-t", "others", "-m", "get"),
    ("updateSubGroup", "-c", "DefaultCluster", "-g", "H"),
    ("deleteSubGroup", "-c", "DefaultCluster", "-g", "H"),
    ("updateBrokerConfig", "-b", BROKER, "-k", "maxTransferCountOnMessageInMemory", "-v", "33"),
    ("updateKvConfig", "-s", "NS", "-k", "k", "-v", "v"),
    ("deleteKvConfig", "-s", "NS", "-k", "k"),
    ("cleanExpiredCQ", "-b", BROKER),
    ("wipeWritePerm", "-b", "broker-a"),
    ("deleteTopic", "-c", "DefaultCluster", "-t", "others"),
)

#: their lines come in the order of a hash table, in Java
UNORDERED = {"topicList", "statsAll", "getBrokerConfig", "getNamesrvConfig"}


@pytest.mark.real
@pytest.mark.parametrize("kind", [OURS, APACHE_4])
def test_same_text(site: Site, java_admin: JavaAdmin, kind: str) -> None:
    """Column by column; rates and what time changes (an hour's hundredth, a wait in ms) are compared as a shape."""
    require_apache(APACHE_4)
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr)
    admin = Admin(namesrv.addr)
    admin.text("topic", "create", "orders", "--queues", "2")
    until("the route", lambda: admin.run("topic", "route", "orders").returncode == 0)
    admin.text("produce", "orders", text="a\nb\nc\n")
    admin.text("group", "create", "G")
    admin.text("group", "reset", "G", "orders", "--to", "begin", "--yes")
    admin.text("topic", "create", "%RETRY%G", "--queues", "1")
    until("the group", lambda: admin.run("group", "show", "G").returncode == 0)
    admin.text("produce", "orders", "-m", "with a key", "-k", "k1")
    until("the key", lambda: admin.run("message", "find", "orders", "k1").returncode == 0)
    for template in COMMANDS:
        command = [broker.addr if word == BROKER else word for word in template]
        expected = _shape(java_admin.run(*command, "-n", namesrv.addr))
        shown = _shape(admin.text(*command))
        if command[0] == "brokerStatus":  # nearly every figure changes
            shown, expected = (re.sub(": .*", "", text) for text in (shown, expected))
        if command[0] == "statsAll":  # messages of 24 hours are counted once in a while
            shown, expected = (re.sub(r"(?m)\d+(?= +\S+$)", "0", text) for text in (shown, expected))
        if command[0] == "wipeWritePerm":  # of so many topics: the broker may register another one in between
            shown, expected = (re.sub(r"\d+(?=\s*$)", "0", text) for text in (shown, expected))
        if command[0] in UNORDERED:
            shown, expected = ("\n".join(sorted(text.splitlines())) for text in (shown, expected))
        assert shown == expected, command


def _shape(text: str) -> str:
    """Leave out what logging prints, what differs between two moments: rates, hours, waits, free space."""
    lines = [line.rstrip() for line in text.rstrip().splitlines() if "RocketMQLog" not in line]
    lines = [line for line in lines if "RMQ_SYS_TRANS_HALF_TOPIC" not in line]  # it comes a minute after the start
    lines = [re.sub(r" \d+\.\d\d ", " 0.00 ", line) if "#" not in line else line for line in lines]
    return re.sub(r"\d+\.\d+(?=\(|  *\d\.\d{4}$|$)", "0.0", "\n".join(lines)).strip()
