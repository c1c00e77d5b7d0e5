"""``rmq-admin`` as a process: arguments, exit statuses, one line for what goes wrong."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from pathlib import Path

from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from rmq.admin.main import parse
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup, NettyServerConfig
from rmq.namesrv.service import build_namesrv
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from tests.admin.test_names import ended

ROOT = Path(__file__).resolve().parent.parent.parent


def rmq_admin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rmq.admin", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


class UsageTests(SynchronousTestCase):
    def test_wrong_use(self) -> None:
        """Status 64 and one line of what is wrong."""
        for arguments, part in (
            (("topic", "create"), "required: TOPIC"),
            (("routeDiff", "-n", "x"), "no address of the form host:port"),
            (("routeDiff", "-n", "127.0.0.1:1"), "two NameServers"),
            (("explain", "-n", "127.0.0.1:1", "--timeout", "0"), "no number of seconds"),
            (("explain", "-n", "127.0.0.1:1", "--aclTools", "/nowhere/tools.yml"), "/nowhere/tools.yml"),
            (("explain", "-n", "127.0.0.1:1", "--tlsConfig", "/nowhere/tls.properties"), "/nowhere/tls.properties"),
        ):
            done = rmq_admin(*arguments)
            self.assertEqual((arguments, done.returncode, done.stdout), (arguments, 64, ""))
            self.assertIn(part, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_numbers(self) -> None:
        """Pauses of no time, or below it, and counts of nothing are refused when they are given."""
        for arguments, number in (
            (("monitor", "--every"), "-1"),
            (("monitor", "--every"), "nan"),
            (("monitor", "--every"), "0"),
            (("cluster", "list", "--interval"), "-1"),
            (("haStatus", "-i"), "0"),
            (("clusterRT", "-i"), "-1"),
            (("message", "find", "orders", "k", "--max"), "0"),
            (("message", "trace", "k", "--max"), "-1"),
        ):
            status, text = ended(*arguments, number)
            self.assertEqual(status, 64, arguments)
            self.assertRegex(text, f"'{number}' is no number (of seconds )?above 0")

    def test_nothing(self) -> None:
        """Without a command: the commands, and status 64."""
        for arguments in ((), ("-n", "127.0.0.1:1")):
            done = rmq_admin(*arguments)
            self.assertEqual((done.returncode, done.stdout), (64, ""))
            self.assertIn("\n    topic ", done.stderr)

    def test_options_before(self) -> None:
        """Options that all commands have may stand before the command, and mean the same there."""
        behind = parse(["topic", "list", "-n", "127.0.0.1:1", "-o", "json", "--timeout=7", "--aclTools", "/t"])
        before = parse(["-n", "127.0.0.1:1", "-o", "json", "--timeout=7", "--aclTools", "/t", "topic", "list"])
        self.assertEqual(vars(before), vars(behind))
        self.assertEqual((before.timeout, before.namesrvAddr), (7, ["127.0.0.1:1"]))

    def test_unreachable(self) -> None:
        """Nobody listens: status 3, the address is named."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            addr = f"127.0.0.1:{free.getsockname()[1]}"
            done = rmq_admin("haStatus", "-b", addr)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn(addr, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)


class AnswerTests(TestCase):
    async def test_json_of_a_namesrv(self) -> None:
        """Over a real socket: what a NameServer says of itself, as JSON."""
        from twisted.internet import reactor

        folder = Path(self.mktemp())
        disk = RealDisk(reactor)
        self.addCleanup(disk.close)
        platform = Platform(reactor=reactor, disk=disk, rng=random.Random(0), endpoint_factory=dial_by_name)
        setup = NamesrvSetup(
            namesrv=NamesrvConfig(
                kv_config_path=str(folder / "kv.json"), config_store_path=str(folder / "namesrv.properties")
            ),
            netty=NettyServerConfig(bind_address="127.0.0.1", listen_port=0),
        )
        service = build_namesrv(platform, setup)
        service.startService()
        self.addCleanup(service.stopService)
        addr = f"127.0.0.1:{service.server.port}"
        done: subprocess.CompletedProcess[str] = await deferToThread(
            rmq_admin, "explain", "-n", addr, "-t", "nowhere", "--json"
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(json.loads(done.stdout)[addr]["state"], "NEVER_SEEN")
