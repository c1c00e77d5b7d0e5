"""What `rmq-admin config check` finds in property files, and that it finds nothing in the samples."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.command import Terminal
from rmq.admin.main import Result, parse, run
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from tests.needs import need_extra

ETC = Path(__file__).resolve().parents[2] / "etc"

MASTER = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerRole=SYNC_MASTER
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
brokerIP1=10.0.0.3
listenPort=10911
storePathRootDir=/store/a
mappedFileSizeCommitLog=1048576
"""
SLAVE = (
    MASTER.replace("SYNC_MASTER", "SLAVE")
    .replace("brokerId=0", "brokerId=1")
    .replace("10911", "10921")
    .replace("/store/a", "/store/b")
    .replace("10.0.0.1:9876;10.0.0.2:9876", "10.0.0.2:9876;10.0.0.1:9876")
)
NAMESRV = "bindAddress=10.0.0.1\nlistenPort=9876\n"


class ConfigCheckCase(SynchronousTestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="rmq-config-check-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        clock = Clock()
        self.platform = Platform(
            reactor=clock, disk=RealDisk(clock), rng=random.Random(1), endpoint_factory=dial_by_name
        )

    def check(self, *arguments: str) -> Result:
        options = parse(["config", "check", *arguments])
        checked: Result = self.successResultOf(Deferred.fromCoroutine(run(self.platform, options, Terminal())))
        return checked

    def found(self, **files: str) -> list[tuple[str, int, str, str]]:
        """Return file, line, key and reason of each finding in files of these names and contents."""
        paths = []
        for name, text in files.items():
            path = self.folder / f"{name}.properties"
            path.write_text(text, encoding="utf-8")
            paths.append(str(path))
        result = self.check(*paths, "-o", "json")
        rows: list[dict[str, Any]] = json.loads(result.out)
        self.assertEqual(result.status, 2 if rows else 0)
        return [(Path(row["file"]).stem, row["line"], row["key"], row["why"]) for row in rows]


class SampleTests(ConfigCheckCase):
    def test_nothing_in_the_samples(self) -> None:
        """Each sample alone, and the two clusters that they make, are without finding."""
        need_extra("acl")
        names = [path.name for path in [*ETC.glob("*.properties"), ETC / "plain_acl.yml", ETC / "tools.yml"]]
        self.assertGreaterEqual(len(names), 7)
        clusters = [
            ["namesrv.properties", master, "broker-slave.properties"]
            for master in ("broker-master.properties", "broker-sync-master.properties")
        ]
        for group in [*([name] for name in names), *clusters]:
            result = self.check(*(str(ETC / name) for name in group))
            self.assertEqual(result, Result(0, out=f"nothing found in {len(group)} files"))

    def test_the_planted_cluster_is_sound(self) -> None:
        """So that each mistake below is the only one; the order of NameServers does not count."""
        self.assertEqual(self.found(master=MASTER, slave=SLAVE, namesrv=NAMESRV), [])


class OneFileTests(ConfigCheckCase):
    def finds_in_master(self, line: int, key: str, why: str, *changes: tuple[str, str], added: str = "") -> None:
        text = MASTER
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        ((_, at, of, because),) = self.found(master=text + added, slave=SLAVE)
        self.assertEqual((at, of), (line, key))
        self.assertIn(why, because)

    def test_values(self) -> None:
        """A value that the server refuses; all of them, not only the first."""
        self.finds_in_master(10, "flushDiskType", "one of SYNC_FLUSH, ASYNC_FLUSH", added="flushDiskType=sync\n")
        findings = self.found(master=MASTER.replace("10911", "ten") + "brokerPermission=9\n")
        self.assertEqual(
            [finding[:3] for finding in findings], [("master", 10, "brokerPermission"), ("master", 7, "listenPort")]
        )

    def test_brackets(self) -> None:
        """An address to listen at in brackets, of a broker and of a NameServer."""
        added = "bindAddress=[::1]\n"
        why = "leave the brackets out: bindAddress=::1"
        self.finds_in_master(10, "bindAddress", why, added=added)
        ((name, line, key, because),) = self.found(namesrv="listenPort=9876\n" + added)
        self.assertEqual((name, line, key), ("namesrv", 2, "bindAddress"))
        self.assertIn(why, because)

    def test_syntax(self) -> None:
        r"""A file that is no properties file."""
        ((_, _, _, why),) = self.found(master="a=\\u12\n")
        self.assertIn("line 1", why)

    def test_unknown_key(self) -> None:
        """A key that is misspelled."""
        self.finds_in_master(10, "brokerPermision", "did you mean brokerPermission?", added="brokerPermision=6\n")

    def test_key_twice(self) -> None:
        """A key with two values."""
        ((_, line, key, why),) = self.found(a=MASTER + "fileReservedTime=48\n\nfileReservedTime=24\n", slave=SLAVE)
        self.assertEqual(
            (line, key, why), (12, "fileReservedTime", "a second value, '24'; the first, '48', does not count")
        )

    def test_key_without_effect(self) -> None:
        """A key that exists for files in use only, and a switch that this store cannot honour."""
        self.finds_in_master(10, "sendMessageThreadPoolNums", "has no effect", added="sendMessageThreadPoolNums=64\n")
        self.assertEqual(self.found(master=MASTER + "sendMessageThreadPoolNums=4\n", slave=SLAVE), [])
        self.finds_in_master(10, "transientStorePoolEnable", "no", added="transientStorePoolEnable=true\n")
        ((_, _, key, _),) = self.found(namesrv=NAMESRV + "defaultThreadPoolNums=64\n")
        self.assertEqual(key, "defaultThreadPoolNums")

    def test_address(self) -> None:
        """A loopback address for NameServers elsewhere; one that nobody can dial."""
        self.finds_in_master(
            6, "brokerIP1", "127.0.0.1 would be registered", ("brokerIP1=10.0.0.3", "brokerIP1=127.0.0.1")
        )
        self.finds_in_master(
            6, "brokerIP1", "no address that can be dialled", ("brokerIP1=10.0.0.3", "brokerIP1=0.0.0.0")
        )
        for host in ("10.0.0.300", "10.0.0.3:10911", "10.0.0", "a b", "a,b", "http://broker", "a..b", "10.0.0.3."):
            self.finds_in_master(
                6, "brokerIP1", "no IP address, and cannot be", ("brokerIP1=10.0.0.3", f"brokerIP1={host}")
            )
        for host in ("broker_1", "broker-1.example.", "4a.example", "10.0.0.3.example"):
            self.assertEqual(self.found(master=MASTER.replace("brokerIP1=10.0.0.3", f"brokerIP1={host}")), [])
        ((_, line, key, _),) = self.found(master=MASTER.replace(";10.0.0.2:9876", ",10.0.0.2:9876"))
        self.assertEqual((line, key), (5, "namesrvAddr"))

    def test_files_of_other_processes(self) -> None:
        """Files of Apache's BrokerContainer and of its controller are one finding that says what they are."""
        container = "listenPort=10811\nbrokerConfigPaths=/etc/a.conf:/etc/b.conf\n"
        ((_, line, key, why),) = self.found(container=container)
        self.assertEqual((line, key), (2, "brokerConfigPaths"))
        self.assertIn("BrokerContainer", why)
        dledger = "controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:9878\ncontrollerDLegerSelfId=n0\n"
        jraft = "controllerType=jRaft\njRaftGroupId=g\njRaftServerId=127.0.0.1:9880\njRaftInitConf=127.0.0.1:9880\n"
        for text in (dledger, jraft):
            ((_, line, _, why),) = self.found(controller=text)
            self.assertEqual(line, 1)
            self.assertIn("enableControllerInNamesrv=true", why)
        rows = self.found(namesrv=f"enableControllerInNamesrv=true\nlistenPort=9876\n{dledger}")
        self.assertTrue(rows)
        self.assertFalse([why for *_, why in rows if "process of its own" in why])

    def test_role(self) -> None:
        """An id that does not fit the role, as the server's start says it."""
        self.finds_in_master(3, "brokerId", "counts as 0", ("brokerId=0", "brokerId=1"))
        ((_, line, key, why),) = self.found(slave=SLAVE.replace("brokerId=1", "brokerId=0"))
        self.assertEqual((line, key), (4, "brokerRole"))
        self.assertIn("needs a brokerId above 0", why)

    def test_files_with_secrets(self) -> None:
        """A file of accounts that all users can read, and one that is missing; others' files are not checked."""
        accounts = self.folder / "plain_acl.yml"
        accounts.write_text("accounts: []\n")
        accounts.chmod(0o644)
        added = f"aclEnable=true\naclFile={accounts}\n"
        self.finds_in_master(11, "aclFile", "open to all users (mode 644): chmod 600", added=added)
        accounts.chmod(0o600)
        self.assertEqual(self.found(master=MASTER + added, slave=SLAVE), [])
        missing = f"tls.server.keyPath={self.folder}/key.pem\ntls.server.certPath=/other/machine/cert.pem\n"
        self.finds_in_master(10, "tls.server.keyPath", "No such file", added=missing)

    def test_tls_terms(self) -> None:
        """Keys of TLS that contradict each other, in a server's file and in one of their own."""
        self.finds_in_master(10, "tls.server.authClient", "needs", added="tls.server.authClient=true\n")
        ((_, line, key, _),) = self.found(tls="tls.server.mode=enforcing\ntls.server.keyPath=/x/y\n")
        self.assertEqual((line, key), (0, ""))

    def test_files_of_accounts(self) -> None:
        """An account that the server refuses."""
        need_extra("acl")
        path = self.folder / "plain_acl.yml"
        path.write_text("accounts:\n  - accessKey: a\n    secretKey: b\n")
        result = self.check(str(path))
        self.assertEqual(result.status, 2)
        self.assertIn("more than 6 characters", result.out)

    def test_no_file(self) -> None:
        """A file that is not there is wrong use."""
        self.assertEqual(self.check("/nowhere/broker.properties").status, 64)


class TogetherTests(ConfigCheckCase):
    def finds_in_slave(self, line: int, key: str, why: str, *changes: tuple[str, str], added: str = "") -> None:
        text = SLAVE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        ((name, at, of, because),) = self.found(master=MASTER, slave=text + added)
        self.assertEqual((name, at, of), ("slave", line, key))
        self.assertIn(why, because)

    def test_group(self) -> None:
        """Members of a group that differ in what must be equal."""
        self.finds_in_slave(9, "mappedFileSizeCommitLog", "has 1048576", ("=1048576", "=2097152"))
        self.finds_in_slave(1, "brokerClusterName", "must be equal", ("=DefaultCluster", "=Other"))
        self.finds_in_slave(10, "haTlsEnable", "has false", added="haTlsEnable=true\n")

    def test_ids(self) -> None:
        """Two masters of one group; two slaves of one id."""
        other = SLAVE.replace("brokerRole=SLAVE", "brokerRole=ASYNC_MASTER").replace("brokerId=1", "brokerId=0")
        findings = self.found(master=MASTER, other=other, slave=SLAVE.replace("10.0.0.3", "10.0.0.4"))
        self.assertEqual([finding[:3] for finding in findings], [("other", 2, "brokerName")])
        findings = self.found(master=MASTER, one=SLAVE, two=SLAVE.replace("10.0.0.3", "10.0.0.4"))
        self.assertEqual([finding[:3] for finding in findings], [("one", 3, "brokerId"), ("two", 3, "brokerId")])

    def test_missing_members(self) -> None:
        """A SYNC_MASTER without slave, a slave without master, a quorum larger than the group; not for one file."""
        elsewhere = [("broker-a", "broker-b"), ("10.0.0.3", "10.0.0.4")]
        other = MASTER.replace("SYNC_MASTER", "ASYNC_MASTER")
        for old, new in elsewhere:
            other = other.replace(old, new)
        self.assertEqual([f[:3] for f in self.found(master=MASTER, other=other)], [("master", 4, "brokerRole")])
        self.assertEqual([f[:3] for f in self.found(slave=SLAVE, other=other)], [("slave", 2, "brokerName")])
        self.assertEqual(self.found(master=MASTER), [])
        findings = self.found(master=MASTER + "inSyncReplicas=3\n", slave=SLAVE)
        self.assertEqual([finding[:3] for finding in findings], [("master", 10, "inSyncReplicas")])

    def test_elected_group(self) -> None:
        """Brokers that a controller gives their roles differ in addresses only; one alone has nobody to take over."""
        keys = "enableControllerMode=true\ncontrollerAddr=10.0.0.1:9876\n"
        one = MASTER.replace("brokerId=0\nbrokerRole=SYNC_MASTER\n", keys)
        two = one.replace("10.0.0.3", "10.0.0.4")
        self.assertEqual(self.found(one=one, two=two), [])
        other = MASTER.replace("broker-a", "broker-b").replace("SYNC_MASTER", "ASYNC_MASTER").replace("0.0.3", "0.0.5")
        self.assertEqual([f[:3] for f in self.found(one=one, other=other)], [("one", 3, "enableControllerMode")])
        elsewhere = two.replace("10.0.0.1:9876\nnamesrv", "10.0.0.2:9876\nnamesrv")
        self.assertEqual([f[:3] for f in self.found(one=one, two=elsewhere)], [("two", 4, "controllerAddr")])
        plain = SLAVE.replace("10.0.0.3", "10.0.0.4")
        findings = {finding[:3] for finding in self.found(one=one, two=plain)}
        self.assertIn(("two", 0, "enableControllerMode"), findings)

    def test_a_quorum_of_controllers(self) -> None:
        """
        A file for one of several controllers of Apache's, also one with NameServers in it, is a NameServer's.

        It does not start, and its other keys are called those of 5.x instead of misspelled ones.
        """
        text = (
            "namesrvAddr=10.0.0.1:9000;10.0.0.2:9000\nenableControllerInNamesrv=true\ncontrollerDLegerGroup=group1\n"
            "controllerDLegerPeers=n0-10.0.0.1:9878;n1-10.0.0.2:9878\ncontrollerDLegerSelfId=n0\n"
        )
        found = {line: (key, why) for _, line, key, why in self.found(n0=text)}
        self.assertEqual(
            {line: key for line, (key, _) in found.items() if line in (3, 4, 5)},
            {3: "controllerDLegerGroup", 4: "controllerDLegerPeers", 5: "controllerDLegerSelfId"},
        )
        self.assertIn("2 controllers, but controllers form no quorum here", found[4][1])
        self.assertEqual(found[5][1], "unknown key: of RocketMQ 5.x, no effect here")
        self.assertNotIn(2, found)

    def test_one_machine(self) -> None:
        """Ports of neighbours that collide, and a store that two brokers would share."""
        self.finds_in_slave(7, "listenPort", "10912 (listenPort) collides with", ("10921", "10912"))
        self.finds_in_slave(8, "storePathRootDir", "/store/a/ is the store of", ("/store/b", "/store/a/"))
        findings = self.found(namesrv=NAMESRV.replace("9876", "10909"), master=MASTER.replace("10.0.0.3", "10.0.0.1"))
        self.assertEqual([finding[:3] for finding in findings], [("master", 7, "listenPort")])

    def test_name_servers(self) -> None:
        """Brokers of one cluster with different NameServers."""
        self.finds_in_slave(5, "namesrvAddr", "has other NameServers in", (";10.0.0.1:9876", ""))

    def test_text(self) -> None:
        """Text has a line for each finding below the names of the columns, and csv the same."""
        (self.folder / "a.properties").write_text("brokerNmae=a\n")
        path = str(self.folder / "a.properties")
        result = self.check(path)
        self.assertEqual((result.status, len(result.out.splitlines())), (2, 2))
        self.assertTrue(result.out.splitlines()[0].startswith("FILE"))
        self.assertTrue(self.check(path, "-o", "csv").out.startswith("file,line,key,why\n"))
