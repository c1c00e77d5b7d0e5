"""What a process imports before it serves: a plain one nothing that only TLS, accounts, metrics and the like need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.needs import imports
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent

#: packages whose import a plain start must not pay for; importlib.metadata is for --version
HEAVY = (
    "OpenSSL",
    "automat",
    "cryptography",
    "service_identity",
    "twisted.protocols.tls",
    "twisted.internet.ssl",
    "twisted.internet.endpoints",
    "twisted.internet.udp",
    "twisted.internet.unix",
    "twisted.application.internet",
    "twisted.conch",
    "twisted.cred.portal",
    "twisted.web",
    "prometheus_client",
    "yaml",
    "importlib.metadata",
    "numpy",
    "rmq.sim",
    "rmq.admin",
    "rmq.remoting.acl",
    "rmq.runtime.http.html",
    "rmq.runtime.http.service",
    "rmq.runtime.manhole",
    "rmq.runtime.http.metrics",
    "rmq.runtime.prompt",
)
#: what a NameServer has no use for
OF_BROKERS = (
    "rmq.broker",
    "rmq.store",
    "rmq.ha",
    "rmq.namesrv.journal.explain",
    "rmq.namesrv.pages",
    "rmq.namesrv.metrics",
)

#: Runs a role as `twistd --nodaemon` does, up to the moment when its port listens.
RUN = """
import json, sys
from twisted.application import app
from twisted.scripts import _twistd_unix as unix

class Runner(unix.UnixApplicationRunner):
    def startReactor(self, reactor, oldstdout, oldstderr):
        from twisted.internet import reactor
        reactor.callWhenRunning(lambda: (seen(), reactor.stop()))
        super().startReactor(reactor, oldstdout, oldstderr)

def seen():
    print(json.dumps(sorted(sys.modules)), file=sys.__stdout__, flush=True)

def run(config):
    unix.checkPID(config["pidfile"])
    Runner(config).run()

app.run(run, unix.ServerOptions)
"""


def modules_of(role: str, folder: Path, *arguments: str, twistd: tuple[str, ...] = ()) -> list[str]:
    """Return what a process of ``role`` has imported when it listens."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--nodaemon", "--pidfile=", *twistd, role, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**os.environ, **imports(), "HOME": str(folder)},
    )
    lists = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lists, done.stdout + done.stderr
    found: list[str] = json.loads(lists[-1])
    return found


def heavy(modules: list[str], names: tuple[str, ...]) -> list[str]:
    return [module for module in modules if any(module == name or module.startswith(name + ".") for name in names)]


class ImportsTests(SynchronousTestCase):
    def namesrv(self, *arguments: str, twistd: tuple[str, ...] = ()) -> list[str]:
        """Return the modules of a NameServer that were not there in a process that only runs `twistd`."""
        folder = Path(self.mktemp()).absolute()
        return modules_of("rmq-namesrv", folder, "--listenPort", "0", *arguments, twistd=twistd)

    def test_plain_namesrv(self) -> None:
        """Neither TLS nor anything else that was not asked for is imported, and not much at all."""
        modules = self.namesrv()
        self.assertEqual(heavy(modules, HEAVY + OF_BROKERS), [])
        own = [module for module in modules if module.startswith("rmq")]
        self.assertLessEqual(len(own), 77, own)
        self.assertLessEqual(len(modules), 520, modules)

    def test_plain_broker(self) -> None:
        """A broker imports nothing that was not asked for either, up to its first dial."""
        folder = Path(self.mktemp()).absolute()
        store = str(folder / "store")
        modules = modules_of("rmq-broker", folder, "--listenPort", str(free_port()), "--storePathRootDir", store)
        self.assertEqual(heavy(modules, HEAVY), [])

    def test_what_is_asked_for(self) -> None:
        """The list above can find something: metrics and accounts are imported when they are configured."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        accounts = folder / "acl.yml"
        accounts.write_text("accounts: []\n")
        modules = self.namesrv("--http", "0", "--aclEnable", "true", "--aclFile", str(accounts))
        found = heavy(modules, HEAVY)
        for name in ("yaml", "prometheus_client", "rmq.remoting.acl", "rmq.runtime.http.service"):
            self.assertIn(name, found)
