"""`rmq-local` before it starts anything; what it starts is tried in tests/real."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from rmq import local
from rmq.broker import registration
from rmq.local import BootFailure, Cluster, Role, cluster, main, parser

FAILED = "registration at NameServer 10.0.0.1:9876 failed, tried again every 5 s: no route to host"
REGISTERED = "registered at NameServer 10.0.0.1:9876 as broker-a (10.0.0.2:10911, id 0)"


class FolderTests(SynchronousTestCase):
    def refused(self, folder: str) -> str:
        """Return what is written on standard error; nothing else is, and the status is 1."""
        with redirect_stderr(StringIO()) as complaint, redirect_stdout(StringIO()) as output:
            self.assertEqual(main(["--dir", folder]), 1)
        self.assertEqual(output.getvalue(), "")
        return complaint.getvalue()

    def test_a_folder_that_cannot_be_made(self) -> None:
        """It is one line that names the folder and the reason, no traceback."""
        blocked = os.path.abspath(self.mktemp())
        with open(blocked, "w", encoding="utf-8"):
            pass
        folder = os.path.join(blocked, "data")
        text = self.refused(folder)
        self.assertTrue(text.startswith(f"rmq-local: --dir {folder}: {blocked}"), text)
        self.assertTrue(text.endswith(": Not a directory\n"), text)
        self.assertEqual(text.count("\n"), 1)

    def test_a_property_file_that_cannot_be_written(self) -> None:
        """The same for what it writes there."""
        folder = os.path.abspath(self.mktemp())
        os.makedirs(folder)
        with open(os.path.join(folder, "conf"), "w", encoding="utf-8"):
            pass
        text = self.refused(folder)
        self.assertTrue(text.startswith(f"rmq-local: --dir {folder}: {folder}/conf: "), text)
        self.assertEqual(text.count("\n"), 1)

    def test_half_a_property_file(self) -> None:
        """A file for which there was no room is not there: the next start would take it for the user's own."""
        folder = os.path.abspath(self.mktemp())

        def fill(path: Path, text: str, encoding: str) -> None:
            with open(path, "w", encoding=encoding) as file:
                file.write(text[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(Path, "write_text", fill)
        text = self.refused(folder)
        self.assertIn(f"{folder}/conf/namesrv.properties: No space left on device", text)
        self.assertEqual(os.listdir(f"{folder}/conf"), [])


class LogTests(SynchronousTestCase):
    def test_own_form(self) -> None:
        """The logs are the role's, which rotate and show control characters as escapes, not those of `twistd`."""
        folder = os.path.abspath(self.mktemp())
        for role in cluster(parser().parse_args(["--dir", folder])).roles:
            words = role.command
            self.assertEqual(words[words.index("--logFile") + 1], f"{folder}/logs/{role.name}.log")
            self.assertLess(words.index(role.arguments[0]), words.index("--logFile"))
            self.assertNotIn("--logfile", "".join(words))


class MastersTests(SynchronousTestCase):
    def test_further_masters(self) -> None:
        """Each has a name, a store and ports of its own, and is a master; only the first has a slave."""
        folder = os.path.abspath(self.mktemp())
        made = cluster(parser().parse_args(["--dir", folder, "--masters", "3"]))
        self.assertEqual(
            [role.name for role in made.roles], ["namesrv", "broker-a", "broker-a-s", "broker-b", "broker-c"]
        )
        for name, broker_name, broker_id, role in (
            ("broker-a", "broker-a", 0, "ASYNC_MASTER"),
            ("broker-a-s", "broker-a", 1, "SLAVE"),
            ("broker-c", "broker-c", 0, "ASYNC_MASTER"),
        ):
            lines = Path(folder, "conf", f"{name}.properties").read_text("utf-8").splitlines()
            for line in (f"brokerName={broker_name}", f"brokerId={broker_id}", f"brokerRole={role}"):
                self.assertIn(line, lines)
        ports = [role.arguments[role.arguments.index("--listenPort") + 1] for role in made.roles]
        self.assertEqual(ports, ["9876", "10911", "10921", "10931", "10951"])
        self.assertIn("further masters: broker-b, broker-c", made.next_steps)


class FailoverTests(SynchronousTestCase):
    def test_a_pair_with_a_controller(self) -> None:
        """The NameServer is the controller of the first two brokers, not of further masters."""
        folder = os.path.abspath(self.mktemp())
        made = cluster(parser().parse_args(["--dir", folder, "--masters", "2", "--failover", "--namesrv-port", "99"]))
        elected = ["--enableControllerMode=true", "--controllerAddr=127.0.0.1:99"]
        namesrv, one, two, further = (role.arguments for role in made.roles)
        self.assertEqual(
            namesrv[-2:], ["--enableControllerInNamesrv=true", f"--controllerStorePath={folder}/namesrv/controller"]
        )
        self.assertEqual((one[-2:], two[-2:]), (elected, elected))
        self.assertNotIn(elected[0], further)


class AddressTests(SynchronousTestCase):
    def test_where_roles_meet(self) -> None:
        """Clients dial --host, which may be an address of another machine; the roles dial where they listen."""
        for options, address in (
            (["--host", "192.0.2.1"], "192.0.2.1"),
            (["--host", "192.0.2.1", "--bind", "127.0.0.1"], "127.0.0.1"),
            (["--host", "192.0.2.1", "--bind", "0.0.0.0"], "127.0.0.1"),
        ):
            made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp()), *options]))
            for arguments in (role.arguments for role in made.roles[1:]):
                said = dict(pairwise(arguments))
                self.assertEqual((said["-n"], said["--brokerIP2"]), (f"{address}:9876", address))
                self.assertEqual(said["--brokerIP1"], "192.0.2.1")

    def test_ipv6(self) -> None:
        """With or without brackets given, addresses are printed with them, as rmq-admin and clients take them."""
        for given in ("::1", "[::1]"):
            made = cluster(
                parser().parse_args(["--dir", os.path.abspath(self.mktemp()), "--host", given, "--bind", given])
            )
            self.assertIn("Ready. NameServer [::1]:9876, master [::1]:10911, slave [::1]:10921.", made.next_steps)
            self.assertIn("set its name server address to [::1]:9876\n", made.next_steps)
            self.assertIn("rmq-admin cluster list -n '[::1]:9876'\n", made.next_steps)
            self.assertEqual(made.for_clients, ("::1", 9876))
            self.assertIn("[::1]:9880", made.roles[0].command)
            said = dict(pairwise(made.roles[1].arguments))
            self.assertEqual((said["-n"], said["--brokerIP1"], said["--bindAddress"]), ("[::1]:9876", "::1", "::1"))

    def test_what_cannot_be_dialled(self) -> None:
        """An address to listen on is none for clients: it is refused, and so is none."""
        for address in ("0.0.0.0", "::", ""):
            with redirect_stderr(StringIO()) as complaint, self.assertRaises(SystemExit):
                parser().parse_args(["--host", address])
            self.assertIn(f"{address!r} is no address that clients can dial; --bind says", complaint.getvalue())

    def test_an_address_of_elsewhere(self) -> None:
        """When clients on this machine cannot use the address, a line says so, with host and port, and why."""
        made = cluster(
            parser().parse_args(["--dir", os.path.abspath(self.mktemp()), "--host", "shop", "--bind", "::1"])
        )
        dialled: list[tuple[str, int]] = []

        def refused(address: tuple[str, int], timeout: float) -> None:
            dialled.append(address)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

        self.patch(socket, "create_connection", refused)
        with redirect_stderr(StringIO()) as complaint:
            made._try_address()
        self.assertEqual(dialled, [("shop", 9876)])
        self.assertIn("shop:9876 cannot be reached from this machine (Connection refused)", complaint.getvalue())


class BootTests(SynchronousTestCase):
    def test_a_role_that_cannot_start(self) -> None:
        """It ends all, with how it ended and the log of this run, and nothing says that it would start again."""
        made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp())]))
        role = made.roles[0]
        role.log.write_text("a line of another run\n")
        self.patch(Role, "command", [sys.executable, "-c", "print('why'); raise SystemExit(3)"])
        with redirect_stdout(StringIO()) as output:
            failure = self.assertRaises(BootFailure, made._boot, role)
        self.assertEqual((output.getvalue(), str(failure)), ("why\n", "namesrv ended with status 3 and did not start"))
        with open(role.log, "a", encoding="utf-8") as log:
            log.write("a line of this run\n")
        self.assertEqual(role.log_tail(), f"; the end of {role.log}:\na line of this run")


class RegistrationTests(SynchronousTestCase):
    def broker(self) -> tuple[Cluster, Role]:
        made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp())]))
        return made, made.roles[1]

    def log(self, role: Role, *texts: str) -> None:
        with open(role.log, "a", encoding="utf-8") as log:
            log.writelines(
                f"2026-11-30 12:49:40.423 INFO rmq.broker.registration.Registration {text}\n" for text in texts
            )

    def test_a_broker_in_no_route(self) -> None:
        """Its last line of this run counts: a broker that could not register gives host, port and reason."""
        _, role = self.broker()
        self.assertIsNone(role.unregistered())
        self.log(role, FAILED)
        role.log_begin = role.log.stat().st_size
        self.assertIsNone(role.unregistered())
        self.log(role, FAILED)
        text = "broker-a cannot register at NameServer 10.0.0.1:9876, so clients do not find it: no route to host"
        self.assertEqual(role.unregistered(), text)
        self.log(role, REGISTERED, "unregistered at NameServer 10.0.0.1:9876")
        self.assertIsNone(role.unregistered())

    def test_not_ready(self) -> None:
        """It ends the start, after a while, in place of the line that says Ready."""
        made, role = self.broker()
        made._wait_registered()
        self.log(role, FAILED)
        self.patch(local, "REGISTER_DEADLINE_S", -1.0)
        self.assertIn("10.0.0.1:9876", str(self.assertRaises(BootFailure, made._wait_registered)))

    def test_the_lines_of_a_broker(self) -> None:
        """These are what brokers log."""
        source = Path(str(registration.__file__)).read_text("utf-8")
        for text in (
            "registered at NameServer {addr} as ",
            "registration at NameServer {addr} failed, tried again every ",
        ):
            self.assertIn(text, source)


class FakeProbe:
    """Answers when the test has it answer."""

    answers: ClassVar[bool] = True

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    def answered(self) -> bool:
        return self.answers

    def close(self) -> None:
        pass


class FakeProcess:
    pid = 4711

    def poll(self) -> None:
        return None


class SignsOfLifeTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(local, "Probe", FakeProbe)
        self.patch(FakeProbe, "answers", True)
        self.made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp())]))
        self.role = self.made.roles[1]
        process: Any = FakeProcess()
        self.role.process = process
        self.role.is_up = True
        self.now = 1000.0

    def said_in(self, seconds: int) -> str:
        """Return what is printed while so much time passes."""
        with redirect_stdout(StringIO()) as output:
            for _ in range(seconds * 2):
                self.now += 0.5
                self.made._check(self.now)
        return output.getvalue()

    def test_a_process_that_hangs(self) -> None:
        """One line says which one, since when, and what to do, and one that it answers again."""
        self.assertEqual(self.said_in(60), "")
        self.assertEqual(self.role.address, ("127.0.0.1", 10911))
        self.patch(FakeProbe, "answers", False)
        text = self.said_in(60)
        self.assertRegex(
            text, r"^broker-a \(process 4711\) has not answered since \d\d:\d\d:\d\d; see /.*broker-a.log, "
        )
        self.assertTrue(text.endswith("`kill -9 4711` has it started again\n"), text)
        self.assertEqual(text.count("\n"), 1)
        self.patch(FakeProbe, "answers", True)
        self.assertRegex(self.said_in(20), r"^broker-a answers again, after \d+ s\n$")

    def test_one_that_is_stopped(self) -> None:
        """After kill -STOP it says how the process goes on."""
        self.patch(local, "_is_stopped", lambda pid: pid == 4711)
        self.patch(FakeProbe, "answers", False)
        self.assertIn("it is stopped; `kill -CONT 4711` lets it go on, `kill -9 4711` has", self.said_in(30))

    def test_when_this_process_was_stopped(self) -> None:
        """After Ctrl-Z and fg nobody is suspected: rmq-local itself has not looked."""
        self.patch(FakeProbe, "answers", False)
        self.assertEqual(self.said_in(8), "")
        self.now += 3600
        self.assertEqual(self.said_in(9), "")

    def test_a_start_that_lasts(self) -> None:
        """A role that was started again and is not up after a minute is one line, with its log."""
        self.role.is_up = False
        self.role.started_at = self.now
        self.patch(FakeProbe, "answers", False)
        self.assertEqual(self.said_in(59), "")
        text = self.said_in(60)
        self.assertIn("broker-a is not up 60 s after its start; see /", text)
        self.assertEqual(text.count("\n"), 1)


class ConfigTests(SynchronousTestCase):
    def test_keys_of_brokers(self) -> None:
        """They reach every broker, and no NameServer, as options, which go before the property files."""
        options = ["--dir", os.path.abspath(self.mktemp()), "--config", "messageDelayLevel=1s 2s"]
        namesrv, *brokers = cluster(parser().parse_args([*options, "--config", "enablePropertyFilter=true"])).roles
        for role in brokers:
            self.assertEqual(role.arguments[-2:], ["--messageDelayLevel=1s 2s", "--enablePropertyFilter=true"])
        self.assertFalse([word for word in namesrv.arguments if "=" in word])

    def test_refused(self) -> None:
        """A key without value, and one that differs from broker to broker, are refused with a line that says why."""
        for text, why in (
            ("aclEnable", "aclEnable: KEY=VALUE is expected"),
            ("brokerRole=SLAVE", "brokerRole is set by --role"),
            ("listenPort=1", "listenPort is set by --broker-port and --slave-port"),
        ):
            with redirect_stderr(StringIO()) as complaint, self.assertRaises(SystemExit):
                parser().parse_args(["--config", text])
            self.assertIn(f"argument --config: {why}\n", complaint.getvalue())


class CommandTests(SynchronousTestCase):
    def test_roles_look_for_no_plugins(self) -> None:
        """Roles run as the scripts do; twistd's search would complain of a folder that may not be written."""
        made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp()), "--masters", "2"]))
        for role in made.roles:
            self.assertEqual(role.command[1:4], ["-m", "rmq.runtime.launch", role.arguments[0]])

    def test_the_command_that_kills_a_master(self) -> None:
        """The pattern that is printed fits the first master, and no other role."""
        made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp()), "--masters", "2"]))
        printed = re.search("pkill -9 -f '(.*)'", made.next_steps)
        assert printed
        fitting = [role.name for role in made.roles if re.search(printed[1], " ".join(role.command))]
        self.assertEqual(fitting, ["broker-a"])


class StatusPageTests(SynchronousTestCase):
    def started(self, *options: str, metrics: bool = True) -> tuple[list[int | None], str]:
        """Return the ports of the status pages of all roles, and what is printed once they run."""
        real = importlib.util.find_spec
        self.patch(importlib.util, "find_spec", lambda name: real("os" if metrics else "no-such-module"))
        made = cluster(parser().parse_args(["--dir", os.path.abspath(self.mktemp()), *options]))
        return [role.http_port for role in made.roles], made.next_steps

    def test_by_default(self) -> None:
        """All three roles serve status pages on loopback, and the addresses are printed."""
        ports, text = self.started()
        self.assertEqual(ports, [9880, 9881, 9882])
        for address in ("9880/ (namesrv)", "9881/ (broker-a)", "9882/ (broker-a-s)"):
            self.assertIn(f"http://127.0.0.1:{address}", text)

    def test_other_ports(self) -> None:
        """A second cluster with another NameServer port has other status pages; --http-port says which."""
        self.assertEqual(self.started("--namesrv-port", "19876")[0], [19880, 19881, 19882])
        self.assertEqual(self.started("--http-port", "8000")[0], [8000, 8001, 8002])

    def test_switched_off(self) -> None:
        """--http-port 0: no status pages."""
        ports, text = self.started("--http-port", "0")
        self.assertEqual(ports, [None, None, None])
        self.assertIn("status pages are off (--http-port 0)", text)

    def test_without_the_extra(self) -> None:
        """Without prometheus-client the cluster starts all the same and says what to install."""
        ports, text = self.started(metrics=False)
        self.assertEqual(ports, [None, None, None])
        self.assertIn("pip install 'txrocketmq[metrics]'", text)
