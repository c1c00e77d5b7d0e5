"""The scripts rmq-namesrv and rmq-broker: whose option is whose, and that no plugins are looked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import twisted.plugin
from twisted.application.service import ServiceMaker
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

import rmq
import rmq.__main__
from rmq.runtime import launch
from rmq.runtime.tap import RmqOptions
from tests.needs import imports
from twisted.plugins import rmq_plugins


class SplitTests(SynchronousTestCase):
    def test_long_options_of_twistd_are_its_own(self) -> None:
        """With their values, in both spellings, wherever they are; all other arguments are the role's, in order."""
        given = ["-c", "x", "--nodaemon", "--pidfile=", "--logfile", "-", "-n", "a:1", "--listenPort=1", "--reactor"]
        twistd, role = launch.split(given)
        self.assertEqual(twistd, ["--nodaemon", "--pidfile=", "--logfile", "-", "--reactor"])
        self.assertEqual(role, ["-c", "x", "-n", "a:1", "--listenPort=1"])

    def test_no_name_means_two_things(self) -> None:
        """No option of a role, and no configuration key, has the name of an option of `twistd` that is taken."""
        taken = {name.rstrip("=") for name in launch.twistd_options()}
        self.assertLessEqual({"nodaemon", "pidfile", "logfile", "reactor", "uid", "umask", "rundir", "syslog"}, taken)
        for maker in (rmq_plugins.namesrv, rmq_plugins.broker):
            options = maker.options()
            assert isinstance(options, RmqOptions)
            names = {name.rstrip("=") for name in options.longOpt}
            self.assertIn("listenPort", names)
            self.assertEqual(names & taken, set())


class ParseTests(SynchronousTestCase):
    def setUp(self) -> None:
        def no_search(package: object) -> None:
            raise AssertionError(f"plugins are looked for in {package}")

        self.patch(twisted.plugin, "getCache", no_search)
        self.folder = tempfile.mkdtemp(prefix="rmq-launch-")
        self.addCleanup(shutil.rmtree, self.folder)

    def test_both_parse(self) -> None:
        """`twistd`'s options and the role's are read without a search for plugins."""
        given = ["--nodaemon", "--pidfile=", "--listenPort", "19876", "--kvConfigPath", os.path.join(self.folder, "kv")]
        config = launch.parse(rmq_plugins.namesrv, given)
        self.assertEqual((config["nodaemon"], config["pidfile"], config.subCommand), (1, "", "rmq-namesrv"))
        _, netty, *_ = config.subOptions.configs
        self.assertEqual(netty.listen_port, 19876)
        self.assertEqual(list(config.loadedPlugins), ["rmq-namesrv"])
        self.assertIs(config.loadedPlugins["rmq-namesrv"], rmq_plugins.namesrv)

    def test_reactors_of_twisted_are_found_by_name(self) -> None:
        """--reactor installs ours and Twisted's at once, and explains one that cannot run here."""
        installed = []
        self.patch(rmq_plugins.lean_reactor.__class__, "install", lambda reactor: installed.append(reactor.moduleName))
        for name in ("rmq-lean", "epoll", "poll", "asyncio"):
            config = launch.parse(rmq_plugins.namesrv, ["--nodaemon", "--reactor", name])
            self.assertEqual(config["reactor"], name)
        self.assertEqual(
            installed,
            ["rmq.runtime.leanreactor"] + [f"twisted.internet.{name}reactor" for name in ("epoll", "poll", "asyncio")],
        )

        def cannot(reactor: object) -> None:
            raise ImportError("no such system call")

        self.patch(rmq_plugins.lean_reactor.__class__, "install", cannot)
        error = self.assertRaises(UsageError, launch.parse, rmq_plugins.namesrv, ["--reactor=rmq-lean"])
        self.assertEqual(str(error), "the reactor rmq-lean cannot be used here: no such system call")

    def test_wrong_options(self) -> None:
        """A wrong option ends the process with one line."""
        broken = ServiceMaker("broken", "nowhere", "", "rmq-namesrv")
        for maker, given, text in (
            (broken, ["--umask", "x"], "rmq-namesrv cannot start: "),
            (rmq_plugins.namesrv, ["--listenPort", "many"], "rmq-namesrv cannot start: command line --listenPort: "),
        ):
            ended = self.assertRaises(SystemExit, launch.launch, maker, given)
            self.assertIn(text, str(ended.code))
            self.assertEqual(str(ended.code).count("\n"), 0)

    def test_help(self) -> None:
        """--help has the role's options and keys, and the names of those of `twistd`."""
        text = launch.help_text(rmq_plugins.broker)
        for part in ("Usage: rmq-broker [options]", "--listenPort", "--namesrvAddr VALUE", "--pidfile VALUE"):
            self.assertIn(part, text)
        self.assertNotIn("--python", text)


class InstalledTests(SynchronousTestCase):
    def test_a_script_looks_for_no_plugins(self) -> None:
        """The script reads keys and prints them, and needs no dropin.cache for it."""
        code = "import twisted.plugin; del twisted.plugin.getCache; from rmq.runtime.launch import broker; broker()"
        done = subprocess.run(
            [sys.executable, "-c", code, "--nodaemon", "-p", "--listenPort", "20911"],
            env={**os.environ, **imports()},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        self.assertIn("listenPort=20911\n", done.stdout)

    def test_as_a_module(self) -> None:
        """`python -m rmq.runtime.launch SCRIPT` is the script; rmq-local starts its roles so."""
        for name in ("rmq-namesrv", "rmq-broker"):
            done = subprocess.run(
                [sys.executable, "-m", "rmq.runtime.launch", name, "--version"],
                env={**os.environ, **imports()},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            self.assertTrue(done.stdout.startswith("rmq "), done.stdout)

    def test_python_m_rmq(self) -> None:
        """`python -m rmq` names distribution, version and folder."""
        text = rmq.__main__.text()
        self.assertTrue(text.startswith(f"txrocketmq {rmq.__version__}: "), text)
        self.assertIn(f"imported from {Path(rmq.__file__).parent}\n", text)
        self.assertRaises(AttributeError, getattr, rmq, "__no_such_name__")
