"""
Accounts changed with ``mqadmin`` 4.9.7 at an Apache broker and at ours, both started with Apache's layout of files.

Both print the same, and their files say the same afterwards. Differences that we mean are tested one by one.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from tests.real.javaclient import JavaAdmin
from tests.real.peers import APACHE_4, OURS, STAND_IN, Broker, Process, Site
from tests.real.test_acl import write
from tests.real.test_namesrv_admin import as_failure

PLAIN = """globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: operator
  secretKey: '12345678'
  admin: true
- accessKey: application
  secretKey: '12345678'
  topicPerms:
  - Allowed=PUB|SUB
"""
TEAM = """accounts:
- accessKey: teamaccount
  secretKey: '12345678'
  admin: false
"""

STEPS = [
    "clusterAclConfigVersion -b {broker}",
    "getAclConfig -b {broker}",
    "updateAclConfig -b {broker} -a newaccount -s 87654321 -w 192.168.0.* -i PUB -u SUB -t topicA=DENY,topicB=PUB|SUB "
    "-g groupA=SUB -m false",
    "getAclConfig -b {broker}",
    "updateAclConfig -b {broker} -a newaccount -s 99999999 -t topicC=SUB",
    "updateAclConfig -b {broker} -a teamaccount -s abcdefgh -u PUB -m true",
    "updateAclConfig -c DefaultCluster -a secondadmin -s 12345678 -m true",
    "getAclConfig -b {broker}",
    "clusterAclConfigVersion -c DefaultCluster",
    "updateAclConfig -b {broker} -a short -s 12345678",
    "updateAclConfig -b {broker} -a newaccount -s short",
    "updateAclConfig -b {broker} -a newaccount -s 12345678 -t topicA",
    "updateAclConfig -b {broker} -a newaccount -s 12345678 -g groupA=PUB=SUB",
    "updateAclConfig -b {broker} -a newaccount -s 12345678 -t topicA=ALL",
    "updateAclConfig -b {broker} -a newaccount -s 12345678 -w 300.1.1.1",
    "deleteAclConfig -b {broker} -a newaccount",
    "deleteAclConfig -b {broker} -a newaccount",
    "deleteAclConfig -c DefaultCluster -a nobodyatall",
    "updateGlobalWhiteAddr -b {broker} -g 10.10.103.*,192.168.1.1",
    "updateGlobalWhiteAddr -b {broker} -g 192.168.2.1 -p {conf}/acl/team.yml",
    "updateGlobalWhiteAddr -b {broker} -g 192.168.2.1 -p /etc/plain_acl.yml",
    "updateGlobalWhiteAddr -b {broker} -g 192.168.2.1 -p {conf}/acl/none.yml",
    "getAclConfig -b {broker}",
    "clusterAclConfigVersion -b {broker}",
    "getAclConfig -c nowhere",
]


@attrs.frozen
class Side:
    """A NameServer, a broker with accounts, and an mqadmin."""

    namesrv: Process
    broker: Broker
    admin: JavaAdmin

    @property
    def conf(self) -> Path:
        return self.broker.folder / "home" / "conf"

    def sign_as(self, name: str) -> None:
        write(self.admin_conf / "tools.yml", f"accessKey: {name}\nsecretKey: '12345678'\n")

    @property
    def admin_conf(self) -> Path:
        return self.broker.folder / "admin" / "home" / "conf"

    def ask(self, step: str) -> list[str]:
        arguments = step.format(broker=self.broker.addr, conf=self.conf).split()
        text = self.admin.run(*arguments, "-n", self.namesrv.addr)
        text = text.replace(str(self.conf), "CONF").replace(self.broker.addr, "BROKER").replace(self.namesrv.addr, "NS")
        text = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
        text = re.sub(r"(?<=PlainAccessConfig@)[0-9a-f]+", "HASH", text)
        return sorted(" ".join(line.split()) for line in as_failure(text))  # Java's maps have no order

    def files(self) -> dict[str, Any]:
        """Return what the files say, without the times of their versions."""
        found = {}
        for path in (self.conf / "plain_acl.yml", self.conf / "acl" / "team.yml"):
            content = yaml.safe_load(path.read_text())
            content["dataVersion"][0].pop("timestamp")
            found[path.name] = content
        return found


def side(site: Site, kind: str, name: str) -> Side:
    namesrv = site.namesrv(kind, f"{name}-namesrv")
    broker = site.broker(kind, namesrv.addr, f"{name}-broker", start=False, aclEnable=True)
    conf = broker.folder / "home" / "conf"
    write(conf / "plain_acl.yml", PLAIN)
    write(conf / "acl" / "team.yml", TEAM)
    write(conf / "tools.yml", "accessKey: operator\nsecretKey: '12345678'\n")
    broker.start()
    site.wait_registered(broker, namesrv.addr)
    return Side(namesrv, broker, JavaAdmin(APACHE_4, broker.folder / "admin"))


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the differences tested here are ours")
def test_accounts_are_changed_as_apache_changes_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of mqadmin about accounts does the same at both brokers, from ROCKETMQ_HOME alone."""
    monkeypatch.setenv("ROCKETMQ_HOME", str(site.root / "ours-broker" / "home"))
    sides = [side(site, APACHE_4, "apache"), side(site, OURS, "ours")]
    apache, ours = sides
    try:

        def answers(one: Side) -> list[list[str]]:
            one.sign_as("operator")
            return [one.ask(step) for step in STEPS]

        with ThreadPoolExecutor(2) as pool:
            for step, left, right in zip(STEPS, *pool.map(answers, sides), strict=True):
                assert left and left == right, f"mqadmin {step}\n--- Apache\n{left}\n--- ours\n{right}"
        assert apache.files() == ours.files()
        assert ours.files()["plain_acl.yml"]["dataVersion"] == [{"counter": 5}]

        # the new admin may do what admins may, and the others may not
        for one in sides:
            one.sign_as("secondadmin")
            assert "success" in "".join(one.ask("updateTopic -b {broker} -t Allowed -r 4 -w 4"))
            one.sign_as("application")
            assert "Need admin permission" in "".join(one.ask("updateTopic -b {broker} -t Other -r 4 -w 4"))

        # Apache lets every account make itself an admin (and a white address needs no account): ours does not
        own = "updateAclConfig -b {broker} -a application -s 12345678 -m true"
        assert "Need admin permission for request code=50" in "".join(ours.ask(own))
        assert "Need admin permission for request code=54" in "".join(ours.ask("getAclConfig -b {broker}"))
        assert "success" in "".join(apache.ask(own))
        # Apache writes addresses that its next start cannot read
        ours.sign_as("operator")
        assert "CODE: 211" in "".join(ours.ask("updateGlobalWhiteAddr -b {broker} -g everywhere"))
    finally:
        for one in sides:
            one.admin.close()
