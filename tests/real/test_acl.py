"""Access control, asked by Apache's own mqadmin with and without its tools.yml, and by our own slave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.javaclient import JavaAdmin
from tests.real.peers import OURS, Site, mqadmin, until
from tests.real.probe import Refused

ACCOUNTS = """accounts:
- accessKey: operator
  secretKey: 12345678
  admin: true
- accessKey: replica
  secretKey: 12345678
- accessKey: application
  secretKey: 12345678
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Allowed=PUB|SUB
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def as_account(site: Site, name: str | None) -> None:
    """From now on mqadmin signs with this account, or not at all."""
    tools = site.root / "mqadmin" / "home" / "conf" / "tools.yml"
    tools.unlink(missing_ok=True)
    if name is not None:
        write(tools, f'accessKey: {name}\nsecretKey: "12345678"\n')


@pytest.mark.real
def test_mqadmin(site: Site, java_admin: JavaAdmin) -> None:
    """NameServer and broker do what an admin signs and refuse what nobody or another one signs, in Apache's words."""
    accounts = write(site.root / "plain_acl.yml", ACCOUNTS)
    tools = write(site.root / "tools.yml", "accessKey: replica\nsecretKey: 12345678\n")
    namesrv = site.namesrv(aclEnable=True, aclFile=accounts)
    secured: dict[str, Any] = {"aclEnable": True, "aclFile": accounts, "aclToolsFile": tools}
    master = site.broker(OURS, namesrv.addr, **secured)
    slave = site.slave(OURS, master, namesrv.addr, **secured)
    n = ("-n", namesrv.addr)
    kv = ("updateKvConfig", *n, "-s", "space", "-k", "key", "-v", "value")
    topic = ("updateTopic", *n, "-b", master.addr, "-t", "Allowed", "-r", "4", "-w", "4")

    as_account(site, None)
    assert "No accessKey is configured" in java_admin.run(*kv)
    assert "No accessKey is configured" in java_admin.run(*topic)
    as_account(site, "application")
    assert "Need admin permission for request code=100" in java_admin.run(*kv)
    as_account(site, "stranger")
    assert "No acl config for stranger" in java_admin.run(*topic)

    as_account(site, "operator")
    assert "create or update kv config to namespace success" in java_admin.run(*kv)
    assert "success" in java_admin.run(*topic)
    as_account(site, "application")
    sent = java_admin.run("sendMessage", *n, "-t", "Allowed", "-p", "hello", "-k", "key-1")
    assert "SEND_OK" in sent, sent
    message_id = sent.split()[-1]
    until(
        "the message is found by its key",
        lambda: message_id in java_admin.run("queryMsgByKey", *n, "-t", "Allowed", "-k", "key-1"),
    )
    refused = mqadmin(site.root, "sendMessage", *n, "-t", "BenchmarkTest", "-p", "hello")
    assert "No default permission for topic BenchmarkTest" in refused

    with master.probe() as probe, pytest.raises(Refused, match="No accessKey is configured"):
        probe.topics()
    until(
        "the slave, which signs, has the topic", lambda: "Allowed" in (slave.store / "config/topics.json").read_text()
    )

    accounts.write_text(ACCOUNTS + "globalWhiteRemoteAddresses:\n- 127.0.0.*\n")

    def everybody() -> bool:
        with master.probe() as probe:
            try:
                return "Allowed" in probe.topics()
            except Refused:
                return False

    until("the changed accounts count", everybody)


@pytest.mark.real
def test_unusable_accounts(site: Site) -> None:
    """A start with accounts that cannot be used ends at once, with one line that names the file."""
    accounts = write(site.root / "plain_acl.yml", "accounts: [{accessKey: x, secretKey: y}]")
    for process in (
        site.namesrv(start=False, aclEnable=True, aclFile=accounts),
        site.broker(OURS, "127.0.0.1:1", start=False, aclEnable=True, aclFile=accounts),
    ):
        process.start(wait=False)
        until(f"{process.name} has ended", lambda process=process: not process.alive)  # type: ignore[misc]
        text = process.text()
        assert "cannot start" in text and "plain_acl.yml" in text and "more than 6" in text
        assert "Traceback" not in text
