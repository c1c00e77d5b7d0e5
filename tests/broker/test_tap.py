"""The command line of a broker."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import tap
from rmq.broker.config import CONFIG_CLASSES
from rmq.broker.tap import Options, setup_of
from rmq.remoting.access import ACCESS_CLASSES
from rmq.runtime.config import parse_properties
from rmq.runtime.platform import first_address
from rmq.store.config import BrokerRole
from tests.broker.harness import OneBroker


def unknown(host: str) -> str:
    raise OSError("Name or service not known")


class OptionsTests(SynchronousTestCase):
    def setUp(self) -> None:
        before = os.environ.pop("NAMESRV_ADDR", None)
        if before is not None:
            self.addCleanup(os.environ.__setitem__, "NAMESRV_ADDR", before)

    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def test_home(self) -> None:
        """rocketmqHome is ROCKETMQ_HOME's value until a file or an option says it."""
        before = os.environ.get("ROCKETMQ_HOME")
        os.environ["ROCKETMQ_HOME"] = "/opt/rocketmq"
        if before is None:
            self.addCleanup(os.environ.pop, "ROCKETMQ_HOME")
        else:
            self.addCleanup(os.environ.__setitem__, "ROCKETMQ_HOME", before)
        self.assertEqual(setup_of(self.parse()).broker.rocketmq_home, "/opt/rocketmq")
        self.assertEqual(setup_of(self.parse("--rocketmqHome", "/other")).broker.rocketmq_home, "/other")

    def wrong(self, *arguments: str) -> str:
        """Return the line that is printed before the process ends with 1."""
        with redirect_stdout(StringIO()):
            return str(self.assertRaises(SystemExit, self.parse, *arguments).code)

    def file(self, text: str) -> str:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "broker.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_defaults(self) -> None:
        """Without options it is an ASYNC_MASTER at 0.0.0.0:10911."""
        setup = setup_of(self.parse())
        self.assertEqual((setup.server.bind_address, setup.server.listen_port), ("0.0.0.0", 10911))
        self.assertIs(setup.store.broker_role, BrokerRole.ASYNC_MASTER)
        self.assertEqual(setup.namesrv_addrs, [])

    def test_keys_as_options(self) -> None:
        """Keys of broker, listener and store are options; -n names the NameServers."""
        setup = setup_of(
            self.parse("-n", "127.0.0.1:1;127.0.0.1:2", "--brokerRole", "SLAVE", "--brokerId", "1", "--listenPort", "5")
        )
        self.assertEqual(setup.namesrv_addrs, ["127.0.0.1:1", "127.0.0.1:2"])
        self.assertEqual((setup.store.broker_role, setup.broker.broker_id), (BrokerRole.SLAVE, 1))
        self.assertEqual(setup.server.listen_port, 5)

    def test_one_file_feeds_all(self) -> None:
        """Apache's broker.conf loads unchanged; options on the command line win."""
        path = self.file(
            "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\ndeleteWhen=04\nfileReservedTime=48\n"
            "brokerRole=ASYNC_MASTER\nflushDiskType=ASYNC_FLUSH\nlistenPort=10921\n"
        )
        with redirect_stdout(StringIO()) as output:
            options = self.parse("-c", path, "--brokerName", "broker-b")
        self.assertIn(f"load config properties file OK, {path}", output.getvalue())
        setup = setup_of(options)
        self.assertEqual(
            (setup.name, setup.store.file_reserved_time, setup.server.listen_port), ("broker-b", 48, 10921)
        )
        self.assertEqual((options.unknown, options.config_file), ({}, path))

    def test_environment_that_is_wrong(self) -> None:
        """A variable that names no NameServer is told by its name, unless something else counts."""
        os.environ["NAMESRV_ADDR"] = "zzz"
        self.addCleanup(os.environ.pop, "NAMESRV_ADDR")
        self.assertIn("environment variable NAMESRV_ADDR: namesrvAddr='zzz'", self.wrong())
        self.assertEqual(setup_of(self.parse("-n", "127.0.0.1:8")).namesrv_addrs, ["127.0.0.1:8"])

    def test_environment(self) -> None:
        """NAMESRV_ADDR of the environment counts unless something else is said."""
        os.environ["NAMESRV_ADDR"] = "127.0.0.1:7"
        self.addCleanup(os.environ.pop, "NAMESRV_ADDR")
        self.assertEqual(setup_of(self.parse()).namesrv_addrs, ["127.0.0.1:7"])
        self.assertEqual(setup_of(self.parse("-n", "127.0.0.1:8")).namesrv_addrs, ["127.0.0.1:8"])

    def test_print(self) -> None:
        """-p prints every key, -m the important ones; both as properties, and both end the process with 0."""
        printed = {}
        for flag in ("-p", "-m"):
            with redirect_stdout(StringIO()) as output:
                error = self.assertRaises(SystemExit, self.parse, flag, "--brokerName", "b")
            self.assertEqual(error.code, 0)
            printed[flag] = parse_properties(output.getvalue(), flag)
        self.assertEqual((printed["-p"]["brokerName"], printed["-m"]["brokerName"]), ("b", "b"))
        self.assertIn("brokerRole", printed["-m"])
        self.assertIn("fileReservedTime", printed["-p"])
        self.assertNotIn("fileReservedTime", printed["-m"])

    def test_print_what_will_count(self) -> None:
        """What a broker makes of its host and of other keys is what -p prints, and -m too."""
        for flag in ("-p", "-m"):
            arguments = (flag, "--listenPort", "20001", "--brokerIP1", "10.0.0.1", "--aclEnable", "true")
            with redirect_stdout(StringIO()) as output:
                self.assertRaises(SystemExit, self.parse, *arguments)
            printed = parse_properties(output.getvalue(), flag)
            self.assertEqual((printed["brokerIP2"], printed["brokerId"]), ("10.0.0.1", "0"))
            self.assertEqual(printed["brokerName"], socket.gethostname())
        with redirect_stdout(StringIO()) as output:
            self.assertRaises(SystemExit, self.parse, "-p", "--listenPort", "20001")
        self.assertEqual(parse_properties(output.getvalue(), "-p")["haListenPort"], "20002")

    def test_print_refuses_what_the_start_refuses(self) -> None:
        """-p ends with 1 for values that fit their keys and cannot work."""
        self.patch(tap, "address_of", unknown)
        for arguments in (("--brokerRole", "SLAVE"), ("--brokerIP1", "foo_bar"), ("--haMasterAddress", "foo")):
            self.assertIn(f"command line {arguments[0]}: {arguments[0][2:]}=", self.wrong("-p", *arguments))

    def test_resolved_configs_are_whole(self) -> None:
        """Options hold the configs of all classes, in order, and a setup made of them is the resolved one."""
        options = self.parse("--brokerRole", "SLAVE", "--brokerId", "2", "--useTLS", "true", "--listenPort", "20001")
        classes = (*CONFIG_CLASSES, *ACCESS_CLASSES)
        self.assertEqual(tuple(type(config) for config in options.configs), classes)
        setup = setup_of(options)
        self.assertEqual((setup.broker.broker_id, setup.store.ha_listen_port), (2, 20002))
        self.assertTrue(setup.access.tls.enable)

    def test_a_slave_that_would_be_a_master(self) -> None:
        """A number above 0 without brokerRole=SLAVE is told at the start, with the file that gave it."""
        path = self.file("brokerId=1\nbrokreRole=SLAVE\n")
        with capturedLogs() as events, redirect_stdout(StringIO()):
            self.assertEqual(setup_of(self.parse("-c", path)).broker.broker_id, 0)
        self.assertEqual(
            [event["doubt"] for event in events if "doubt" in event],
            [f"{path}: brokerId=1 counts as 0, because brokerRole=ASYNC_MASTER; a slave needs brokerRole=SLAVE"],
        )
        with capturedLogs() as events:
            self.parse("--brokerId", "1", "--brokerRole", "SLAVE")
            self.parse("--brokerId", "0")
        self.assertEqual([event for event in events if "doubt" in event], [])

    def test_an_address_without_port(self) -> None:
        """An address at which nothing listens is a warning at the start, with the option that gave it."""
        with capturedLogs() as events:
            self.parse("--brokerIP1", "::1")
        (doubt,) = [event["doubt"] for event in events if "doubt" in event]
        self.assertTrue(doubt.startswith("command line --brokerIP1: brokerIP1: nothing listens at ::1"), doubt)

    def test_exporter_of_5x(self) -> None:
        """A 5.x broker's keys for Prometheus open the same port as --http, which counts more."""
        self.assertIsNone(self.parse()["http"])
        self.assertIsNone(self.parse("--metricsExporterType", "DISABLE")["http"])
        prom = ("--metricsExporterType", "PROM", "--brokerIP1", "10.0.0.1")
        self.assertEqual(self.parse(*prom)["http"], "10.0.0.1:5557")
        given = ("--metricsPromExporterHost", "0.0.0.0", "--metricsPromExporterPort", "9000")
        self.assertEqual(self.parse("--metricsExporterType=2", *given)["http"], "0.0.0.0:9000")
        self.assertEqual(self.parse(*prom, "--http", "8080")["http"], "8080")
        for arguments, text in (
            (("--metricsExporterType", "PROMETHEUS"), "OTLP_GRPC"),
            ((*prom, "--metricsPromExporterPort", "high"), "metricsPromExporterPort='high'"),
        ):
            self.assertIn(text, str(self.assertRaises(SystemExit, self.parse, *arguments)))

    def test_exporters_that_are_not_there(self) -> None:
        """Another exporter of Apache is answered as not supported, and changes nothing else."""
        with capturedLogs() as events:
            self.assertIsNone(self.parse("--metricsExporterType", "LOG")["http"])
        self.assertEqual([event["kind"] for event in events if "kind" in event], ["LOG"])

    def test_name_servers_by_dns(self) -> None:
        """5.x's look-up of all addresses of one name is answered as not supported."""
        with capturedLogs() as events:
            self.parse("--fetchNameSrvAddrByDnsLookup", "true", "-n", "namesrv:9876")
        (doubt,) = [text for text in map(formatEvent, events) if "fetchNameSrvAddrByDnsLookup" in text]
        self.assertIn("name each NameServer there", doubt)

    def test_bad_values(self) -> None:
        """A bad value or option is named, and ends the process."""
        for arguments, text in (
            (("--listenPort", "seventy"), "listenPort"),
            (("--brokerRole", "MASTER"), "SYNC_MASTER"),
            (("--flashDiskType", "SYNC_FLUSH"), "flushDiskType"),
            (("-n", "nowhere"), "nowhere"),
            (("-c", "/does/not/exist.conf"), "/does/not/exist.conf"),
        ):
            error = self.assertRaises(SystemExit, self.parse, *arguments)
            self.assertIn(text, str(error))

    def test_bad_values_of_a_file(self) -> None:
        """Whoever checks it, a bad value of a file is one line that names the file and the key."""
        for entry in (
            "haMasterAddress=foo", "haAllowedPeers=everybody", "deleteWhen=zz", "messageDelayLevel=foo",
            "brokerIP1=foo_bar", "brokerIP2=foo_bar", "tls.server.mode=foo", "namesrvAddr=foo", "brokerRole=SLAVE",
            "enableControllerMode=true", "metricsExporterType=foo", "listenPort=foo", "aclEnable=foo",
        ):  # fmt: skip
            path = self.file(f"{entry}\n")
            text = self.wrong("-c", path)
            self.assertTrue(text.startswith(f"rmq-broker cannot start: {path}: {entry.partition('=')[0]}"), text)
            self.assertNotIn("\n", text)

    def test_help_tells_of_dumps(self) -> None:
        """The help says how a dump is asked for and where it goes."""
        text = str(self.parse())
        self.assertIn("SIGUSR1", text)
        self.assertIn("--dumpDir", text)


class SignalTests(SynchronousTestCase):
    def test_sigusr1(self) -> None:
        """A signal makes the running broker dump itself; a broker that has stopped says that there is no dump."""
        before = signal.getsignal(signal.SIGUSR1)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        said: list[str] = []
        self.patch(tap, "_say", said.append)
        one = OneBroker(service=tap.TwistdBroker)
        broker = one.service
        assert isinstance(broker, tap.TwistdBroker)
        os.kill(os.getpid(), signal.SIGUSR1)
        one.world.run_until(lambda: said, 10)
        (name,) = one.node.disk.list_dir("/store-dumps")
        self.assertEqual(said, [f"dump /store-dumps/{name}"])
        one.end()
        refused: list[bool] = []
        self.patch(tap, "_no_dump", lambda: refused.append(True))
        broker._dump()
        self.assertEqual(refused, [True])
        self.assertEqual(one.node.disk.list_dir("/store-dumps"), [name])

    def test_before_there_is_a_broker(self) -> None:
        """One that waits for its controller does not end because of the signal: it says that there is no dump."""
        before = signal.getsignal(signal.SIGUSR1)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        asked: list[Callable[[], object]] = []

        class Reactor:
            callFromThread = staticmethod(asked.append)

        self.patch(tap, "the_reactor", Reactor)
        self.patch(tap, "real_platform", lambda reactor: None)
        self.patch(tap, "build_broker", lambda *args, **kwargs: self.fail("no broker is needed"))
        options = Options()
        options.parseOptions([])
        self.assertRaises(self.failureException, tap.makeService, options)
        os.kill(os.getpid(), signal.SIGUSR1)
        error = StringIO()
        self.patch(sys, "__stderr__", error)
        (call,) = asked
        with capturedLogs() as heard:
            call()
        self.assertIn("no dump is made", str(formatEvent(heard[0])))
        self.assertEqual(error.getvalue(), "dump failed: the broker does not run\n")


class AddressTests(SynchronousTestCase):
    def test_first_address(self) -> None:
        """There always is an address."""
        self.assertEqual(ipaddress.ip_address(first_address()).version, 4)
