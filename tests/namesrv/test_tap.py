"""The command line of a NameServer."""

from __future__ import annotations

import os

from twisted.application.service import IService
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.tap import Options, makeService, setup_of


class OptionsTests(SynchronousTestCase):
    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def test_defaults(self) -> None:
        """Without options it listens at 0.0.0.0:9876."""
        setup = setup_of(self.parse())
        self.assertEqual((setup.netty.bind_address, setup.netty.listen_port), ("0.0.0.0", 9876))

    def test_keys_as_options(self) -> None:
        """Every key of both classes is an option."""
        setup = setup_of(self.parse("--listenPort", "9877", "--kvConfigPath", "/x/kv.json", "-n", "127.0.0.1:1"))
        self.assertEqual((setup.netty.listen_port, setup.namesrv.kv_config_path), (9877, "/x/kv.json"))

    def test_production_name_servers(self) -> None:
        """-n, or else NAMESRV_ADDR, names the NameServers that clusterTest asks."""
        self.assertEqual(setup_of(self.parse("-n", "a:1;b:2;")).production_addrs, ("a:1", "b:2"))
        self.patch(os, "environ", {**os.environ, "NAMESRV_ADDR": "c:3"})
        self.assertEqual(setup_of(self.parse()).production_addrs, ("c:3",))
        self.assertEqual(setup_of(self.parse("-n", "a:1")).production_addrs, ("a:1",))

    def test_file(self) -> None:
        """Apache's file is read; it becomes the one that updates are written to; unknown keys are kept."""
        path = os.path.abspath(self.mktemp())
        with open(path, "w", encoding="utf-8") as file:
            file.write("listenPort=9878\nserverWorkerThreads=4\nconfigStorePath=/elsewhere\nown.key=1\n")
        setup = setup_of(self.parse("-c", path, "--listenPort", "9879"))
        self.assertEqual((setup.netty.listen_port, setup.netty.server_worker_threads), (9879, 4))
        self.assertEqual(setup.namesrv.config_store_path, path)
        self.assertEqual(setup.extra, {"own.key": "1"})

    def test_bad_value(self) -> None:
        """A bad value ends the process and names the option."""
        error = self.assertRaises(SystemExit, self.parse, "--listenPort", "seventy")
        self.assertIn("listenPort", str(error))
        self.assertRaises(SystemExit, self.parse, "--listenPort", "70000")
        # every connection would be closed at once, or the silent brokers looked for without a pause
        for key in ("--serverChannelMaxIdleTimeSeconds", "--scanNotActiveBrokerInterval"):
            self.assertRaises(SystemExit, self.parse, key, "0")

    def test_a_quorum_of_controllers(self) -> None:
        """
        A file for one of several controllers of Apache's stops the start: here each would elect masters by itself.

        One alone is a controller here too, and a NameServer that is none may name them.
        """
        three = "n0-127.0.0.1:9878;n1-127.0.0.1:9868;n2-127.0.0.1:9858"
        on = "--enableControllerInNamesrv=true"
        for key, peers in (("controllerDLegerPeers", three), ("jRaftInitConf", "a:9878,b:9868")):
            error = self.assertRaises(SystemExit, self.parse, on, f"--{key}", peers)
            self.assertIn(f"command line --{key}: {key}={peers}: {len(peers.split(':')) - 1} controllers", str(error))
            self.assertFalse(setup_of(self.parse(f"--{key}", peers)).namesrv.enable_controller_in_namesrv)
        one = setup_of(self.parse(on, "--controllerDLegerPeers", "n0-127.0.0.1:9878"))
        self.assertTrue(one.namesrv.enable_controller_in_namesrv)

    def test_service(self) -> None:
        """`twistd rmq-namesrv` gets a service to run; what the configuration forbids is one line on the screen."""
        folder = os.path.abspath(self.mktemp())
        self.assertTrue(IService.providedBy(makeService(self.parse("--kvConfigPath", f"{folder}/kv.json"))))
        options = self.parse("--configWhiteList", "noSuchKey")
        self.assertIn("noSuchKey", str(self.assertRaises(SystemExit, makeService, options)))

    def test_brackets(self) -> None:
        """An address in brackets is refused with what to write instead, as a broker does."""
        for host in ("[::1]", "[::1]:9876"):
            error = self.assertRaises(SystemExit, makeService, self.parse("--bindAddress", host))
            self.assertIn("rmq-namesrv cannot start: ", str(error))
            self.assertIn("leave the brackets out: bindAddress=::1", str(error))
