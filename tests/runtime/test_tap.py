"""The command line of both roles, on a small stand-in configuration."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import attrs
from twisted.application.service import Application, IServiceCollection, MultiService, Service
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import ILogObserver, LogLevel, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

import rmq
from rmq.runtime import logs
from rmq.runtime.http.face import Face
from rmq.runtime.http.service import HttpService
from rmq.runtime.signals import MEANINGLESS, STOPPING
from rmq.runtime.tap import RmqOptions, StartError, TopService, check_addresses

ADDR_VARIABLE = "RMQ_TEST_NAMESRV_ADDR"


def _short(config: object, field: object, value: str) -> None:
    if len(value) > 8:
        raise ValueError(f"zone={value!r} is too long")


@attrs.frozen(kw_only=True)
class RoleKeys:
    listen_port: int = attrs.field(default=8888, metadata={"range": (1, 65535), "doc": "port of the remoting server"})
    broker_name: str = attrs.field(default="broker-a", metadata={"important": True})
    broker_ip1: str | None = attrs.field(default=None, metadata={"key": "brokerIP1", "aliases": ("brokerIP",)})
    namesrv_addr: str | None = attrs.field(default=None, metadata={"important": True})


@attrs.frozen(kw_only=True)
class GuardKeys:
    acl_enable: bool = attrs.field(default=False, metadata={"local": True})
    key_password: str = attrs.field(default="", metadata={"key": "tls.keyPassword", "local": True})


@attrs.frozen(kw_only=True)
class StoreKeys:
    enabled: bool = False
    listen_port: int = 1
    zone: str = attrs.field(
        default="a", validator=_short, metadata={"doc": "a sentence that is long enough to be wrapped " * 3}
    )


@attrs.frozen(kw_only=True)
class OtherKeys:
    enabled: bool = False


class Options(RmqOptions):
    role_name = "rmq-role"
    log_name = "role.log"

    def __init__(self) -> None:
        super().__init__((RoleKeys, StoreKeys), {"listenPort": "9876"}, {"namesrvAddr": ADDR_VARIABLE})


class OtherOptions(RmqOptions):
    def __init__(self) -> None:
        super().__init__((OtherKeys,))


def complaint(error: BaseException) -> str:
    """Return what comes behind the beginning that all lines have; without it, or with two lines, this fails."""
    assert isinstance(error, SystemExit)
    beginning, _, text = str(error.code).partition(" cannot start: ")
    assert (beginning, text.count("\n")) == ("rmq-role", 0), error.code
    return text


class GuardedOptions(RmqOptions):
    role_name = "rmq-role"

    def __init__(self) -> None:
        super().__init__((GuardKeys, OtherKeys))


class TapCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="rmq-tap-")
        self.addCleanup(shutil.rmtree, self.root)
        self.out, self.err = io.StringIO(), io.StringIO()
        self.patch(sys, "stdout", self.out)
        self.patch(sys, "stderr", self.err)
        self.events = EventLoggingObserver()
        globalLogPublisher.addObserver(self.events)
        self.addCleanup(globalLogPublisher.removeObserver, self.events)
        for name in (*STOPPING, *MEANINGLESS, "SIGQUIT"):
            number = signal.Signals[name]
            self.addCleanup(signal.signal, number, signal.getsignal(number))

    def file(self, text: str) -> str:
        path = f"{self.root}/role.properties"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(arguments)
        return options

    def wrong(self, *arguments: str) -> str:
        """Return what Python prints on standard error, one line, before the process ends with 1."""
        return complaint(self.assertRaises(SystemExit, self.parse, *arguments))

    def exits(self, *arguments: str) -> str:
        """Return what is printed before the process ends with status 0."""
        self.assertEqual(self.assertRaises(SystemExit, self.parse, *arguments).code, 0)
        return self.out.getvalue()

    def warnings(self) -> list[str]:
        return [str(event["log_format"]).format(**event) for event in self.events if "source" in event]


class PrecedenceTests(TapCase):
    def test_nothing_given(self) -> None:
        """Without arguments the role's own defaults stand above those of the classes, for all that share the key."""
        options = self.parse()
        self.assertEqual(options.configs, (RoleKeys(listen_port=9876), StoreKeys(listen_port=9876)))
        self.assertEqual((options.unknown, options.config_file), ({}, None))

    def test_file_beats_defaults(self) -> None:
        """The file given with -c or --configFile counts more than defaults; the path is remembered, absolute."""
        path = self.file("listenPort=5\nbrokerName = x\n")
        for arguments in (["-c", path], ["--configFile", path], [f"--configFile={path}"]):
            options = self.parse(*arguments)
            self.assertEqual(options.configs[0], RoleKeys(listen_port=5, broker_name="x"))
            self.assertEqual(options.config_file, os.path.abspath(path))
        self.assertIn(f"load config properties file OK, {path}\n", self.out.getvalue())

    def test_command_line_beats_file(self) -> None:
        """Keys work as --key value and as --key=value, and beat the file; the last one counts."""
        path = self.file("listenPort=5\nbrokerIP=old\n")
        for arguments in (["--listenPort", "7"], ["--listenPort=7"], ["--listenPort=6", "--listenPort", "7"]):
            options = self.parse("-c", path, *arguments)
            self.assertEqual(options.configs, (RoleKeys(listen_port=7, broker_ip1="old"), StoreKeys(listen_port=7)))

    def test_command_line_beats_old_spelling_in_file(self) -> None:
        """An old spelling in the file does not survive the proper key on the command line."""
        options = self.parse("-c", self.file("brokerIP=old\n"), "--brokerIP1", "new")
        self.assertEqual(options.configs[0].broker_ip1, "new")

    def test_namesrv_addr(self) -> None:
        """-n and --namesrvAddr set the key of a role that has it; one that has none accepts them."""
        for arguments in (["-n", "a:1;b:2"], ["--namesrvAddr=a:1;b:2"]):
            self.assertEqual(self.parse(*arguments).configs[0].namesrv_addr, "a:1;b:2")
        other = OtherOptions()
        other.parseOptions(["-n", "a:1"])
        self.assertEqual((other.configs, other.unknown), ((OtherKeys(),), {}))


class PrintingTests(TapCase):
    def test_print_all(self) -> None:
        """-p prints every key with its effective value and exits with 0."""
        printed = self.exits("-p", "-c", self.file("enabled=true\n"), "--brokerName", "x", "-n", "a:1")
        self.assertEqual(
            printed, "listenPort=9876\nbrokerName=x\nbrokerIP1=\nnamesrvAddr=a:1\nenabled=true\nzone=" + "a\n"
        )

    def test_print_all_warns_on_stderr(self) -> None:
        """Keys that nobody knows are told on standard error, beside the printed configuration."""
        self.exits("-p", "-c", self.file("listnPort=1\n"))
        self.assertIn("listnPort; did you mean listenPort?", self.err.getvalue())
        self.assertNotIn("listnPort", self.out.getvalue())

    def test_passwords_are_not_printed(self) -> None:
        """What -p prints is read over shoulders and attached to reports; a password that is not set is empty."""
        for given, printed in (([], ""), (["--tls.keyPassword", "geheim"], "(not shown)")):
            self.out.truncate(0)
            self.out.seek(0)
            self.assertRaises(SystemExit, GuardedOptions().parseOptions, ["-p", *given])
            self.assertEqual(self.out.getvalue(), f"aclEnable=false\ntls.keyPassword={printed}\nenabled=false\n")

    def test_print_important(self) -> None:
        """-m prints the important keys only."""
        self.assertEqual(self.exits("-m"), "brokerName=broker-a\nnamesrvAddr=\n")

    def test_help(self) -> None:
        """-h and --help show every ordinary option and every key once, with meaning and default, in 100 columns."""
        text = self.exits("-h")
        self.out.truncate(0)
        self.out.seek(0)
        self.assertEqual(text, self.exits("--help"))
        for part in (
            "-c, --configFile",
            "-p, --printConfigItem",
            "-n, --namesrvAddr",
            "--manhole",
            "--logFile",
            "port of the remoting server (default: 9876)",
            "(default: none)",
            "Keys of RoleKeys",
            "Keys of StoreKeys",
        ):
            self.assertIn(part, text)
        self.assertEqual([text.count(f"--{key} ") for key in ("listenPort", "namesrvAddr", "zone")], [1, 1, 1])
        self.assertLessEqual(max(len(line) for line in text.splitlines()), 100)

    def test_version(self) -> None:
        """--version names both versions."""
        self.assertRegex(self.exits("--version"), r"^rmq .*, Twisted \d")


class WrongInputTests(TapCase):
    def test_wrong_values(self) -> None:
        """A value that does not fit names the option, or the file and key, and what is expected."""
        self.assertIn("--listenPort: listenPort='many'", self.wrong("--listenPort", "many"))
        path = self.file("enabled=ja\n")
        text = self.wrong("-c", path)
        for part in (path, "enabled='ja'", "true or false"):
            self.assertIn(part, text)

    def test_unknown_option(self) -> None:
        """An unknown option is named, with the one that was probably meant."""
        self.assertIn("--listnPort not recognized; did you mean --listenPort?", self.wrong("--listnPort", "1"))
        self.assertIn("--completelyElse not recognized", self.wrong("--completelyElse", "1"))

    def test_missing_value(self) -> None:
        """An option without its value is named."""
        self.assertIn("--listenPort requires argument", self.wrong("--listenPort"))

    def test_stray_argument(self) -> None:
        """Words that are no option are refused, not ignored."""
        self.assertIn("'start'", self.wrong("start"))

    def test_missing_file(self) -> None:
        """A configuration file that cannot be read is named."""
        self.assertIn(f"{self.root}/none", self.wrong("-c", f"{self.root}/none"))
        self.assertIn(self.root, self.wrong("-c", self.root))

    def test_broken_file(self) -> None:
        """A broken file is an error with file and line."""
        path = self.file("a=1\nb=\\u1\n")
        self.assertIn(f"{path}, line 2", self.wrong("-c", path))

    def test_wrong_addresses(self) -> None:
        """NameServer addresses are host:port joined by semicolons; anything else is refused by name."""
        for text in ("a", "a:", ":1", "a:0", "a:65536", "a:1;;b:2", "a:1,b:2", "http://a:1", "", ";"):
            self.assertIn("--namesrvAddr", self.wrong("-n", text), text)
        for text in ("a:1", "a:1;b:2", "a:1; b:65535", "a:1;", "[::1]:9876"):
            check_addresses(text, "test")
        other = OtherOptions()
        self.assertRaises(SystemExit, other.parseOptions, ["-n", "a"])

    def test_wrong_addresses_from_elsewhere(self) -> None:
        """The address that will count is looked at, wherever it is from, and the complaint says from where."""
        path = self.file("namesrvAddr=a:1,b:2\n")
        self.assertEqual(
            self.wrong("-c", path),
            f"{path}: namesrvAddr='a:1,b:2': 'a:1,b:2' is no host:port (join several by ';')",
        )
        self.assertEqual(self.parse("-c", path, "-n", "c:3").configs[0].namesrv_addr, "c:3")
        self.patch(os, "environ", {**os.environ, ADDR_VARIABLE: "zzz"})
        self.assertIn(f"environment variable {ADDR_VARIABLE}: namesrvAddr='zzz'", self.wrong())
        self.assertEqual(self.parse("-c", self.file("namesrvAddr=d:4\n")).configs[0].namesrv_addr, "d:4")
        self.assertIsNone(self.parse("-c", self.file("namesrvAddr=\n")).configs[0].namesrv_addr)

    def test_what_a_class_refuses(self) -> None:
        """What a config class objects to, which knows no files, is told with the file or option too."""
        self.assertEqual(self.wrong("--zone", "far away!"), "command line --zone: zone='far away!' is too long")
        path = self.file("zone=far away!\n")
        self.assertEqual(self.wrong("-c", path), f"{path}: zone='far away!' is too long")

    def test_sources_of_complaints(self) -> None:
        """A complaint gets its source where it begins with a key that was given, and stays as it is elsewhere."""
        path = self.file("zone=x\n")
        options = self.parse("-c", path)
        for text in ("zone=x is bad", "zone: x is bad"):
            self.assertEqual(options.with_source(text), f"{path}: {text}")
        for text in ("enabled=false is bad", "zones=x", "zone is bad", f"{path}: zone=x is bad", "no key at all", ""):
            self.assertEqual(options.with_source(text), text)

    def test_wrong_manhole_and_log(self) -> None:
        """Nonsense for the manhole or the log is found before anything starts."""
        self.assertIn("manhole 'x'", self.wrong("--manhole", "x"))
        self.assertIn("'loud'", self.wrong("--logLevel", "loud"))
        blocked = self.file("")
        self.assertIn(blocked, self.wrong("--logFile", f"{blocked}/x.log"))
        self.assertIn(blocked, self.wrong("--logDir", f"{blocked}/logs"))
        self.assertIn("--logFileSize 'big'", self.wrong("--logFileSize", "big"))
        self.assertIn("--logFileCount '0'", self.wrong("--logFileCount", "0"))

    def test_wrong_http(self) -> None:
        """Nonsense for the HTTP port is found before anything starts."""
        for text in ("x", "", ":80", "80:", "host:65536", "a b:1", "http://h:1", "1,2"):
            self.assertIn(f"--http {text!r}", self.wrong("--http", text), text)

    def test_one_line(self) -> None:
        """
        A mistake is one line on standard error and status 1, as every other reason not to start.

        A UsageError would make `twistd` print all its options and the role's before it, on standard output.
        """
        error = self.assertRaises(SystemExit, self.parse, "--nonsense")
        self.assertEqual(error.code, "rmq-role cannot start: option --nonsense not recognized")
        self.assertNotIsInstance(error, Exception)
        self.assertEqual((self.out.getvalue(), self.err.getvalue()), ("", ""))

    def test_unknown_keys_are_logged(self) -> None:
        """Keys of the file that nobody knows are logged once, with file and suggestion, and kept."""
        path = self.file("listnPort=1\nqqq=2\n")
        options = self.parse("-c", path)
        self.assertEqual(options.unknown, {"listnPort": "1", "qqq": "2"})
        self.assertEqual(
            self.warnings(), [f"{path}: unknown key listnPort; did you mean listenPort?", f"{path}: unknown key qqq"]
        )

    def test_misspelled_protection(self) -> None:
        """A key of access, addresses or paths that is nearly right stops the start, in another case or a letter off."""
        for key, name in (
            ("aclenable", "aclEnable"),
            ("aclEnabled", "aclEnable"),
            ("tls.keypassword", "tls.keyPassword"),
        ):
            path = self.file(f"{key}=true\n")
            error = self.assertRaises(SystemExit, GuardedOptions().parseOptions, ["-c", path])
            self.assertEqual(complaint(error), f"{path}: unknown key {key}: {name} is its name")
        options = GuardedOptions()
        options.parseOptions(["-c", self.file("Enabled=true\nrackAware=true\n")])
        self.assertEqual(options.unknown, {"Enabled": "true", "rackAware": "true"})

    def test_old_spelling_is_logged(self) -> None:
        """An old spelling is logged with the one to use."""
        self.parse("-c", self.file("brokerIP=x\n"))
        self.assertEqual(len(self.warnings()), 1)
        self.assertIn("brokerIP is an old spelling of brokerIP1", self.warnings()[0])

    def test_default_for_a_key_that_is_none(self) -> None:
        """A role cannot have defaults for keys that do not exist."""
        self.assertRaises(AssertionError, RmqOptions, (OtherKeys,), {"listenPort": "1"})


class TopServiceTests(TapCase):
    def test_plain(self) -> None:
        """Without log options the log goes to standard output, and what a peer sends moves no cursor there."""
        out = io.StringIO()
        self.patch(sys, "stdout", out)
        application = Application("rmq")
        role = MultiService()
        self.parse().top_service(role, dict).setServiceParent(application)
        observer = application.getComponent(ILogObserver)
        event = {"log_format": "{name}", "log_level": LogLevel.info, "log_time": 1.0, "log_namespace": "n"}
        observer({**event, "name": "a\r\x1b[2Jb"})
        self.assertEqual(out.getvalue().rpartition(" ")[2], "a\\r\\x1b[2Jb\n")
        (top,) = IServiceCollection(application)
        self.assertEqual(list(top), [role])

    def test_log_options(self) -> None:
        """With --logFile the log of the application goes there, and nowhere else."""
        application = Application("rmq")
        path = f"{self.root}/logs/role.log"
        self.parse("--logFile", path, "--logJson").top_service(MultiService(), dict).setServiceParent(application)
        observer = application.getComponent(ILogObserver)
        observer({"log_format": "hello", "log_level": LogLevel.info, "log_time": 1.0, "log_namespace": "n"})
        with open(path, encoding="utf-8") as file:
            self.assertIn('"message": "hello"', file.read())

    def test_http(self) -> None:
        """--http adds a service that starts before the role's, so that a port that is taken is found first."""
        role = MultiService()
        top = self.parse("--http", "0.0.0.0:0").top_service(role, dict, face=nothing_to_show)
        first, second = top
        assert isinstance(first, HttpService)
        self.assertEqual((str(first.address), second), ("0.0.0.0:0", role))

    def test_http_without_prometheus_client(self) -> None:
        """Without the extra the process ends with the command that installs it."""

        def face() -> Face:
            raise ImportError("No module named 'prometheus_client'")

        options = self.parse("--http", "0")
        error = self.assertRaises(SystemExit, options.top_service, MultiService(), dict, face=face)
        self.assertEqual(
            str(error.code),
            "rmq-role cannot start: --http needs the extra txrocketmq[metrics]: pip install 'txrocketmq[metrics]' "
            "(No module named 'prometheus_client')",
        )

    def test_http_costs_nothing_when_off(self) -> None:
        """Without --http neither twisted.web nor prometheus_client is imported."""
        program = (
            "import sys, rmq.namesrv.tap as n, rmq.broker.tap as b; n.Options().parseOptions([]);"
            "b.Options().parseOptions([]);"
            "print(sorted(m for m in sys.modules if m in ('twisted.web.http', 'prometheus_client')))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(done.stdout, "[]\n")

    def test_manhole(self) -> None:
        """--manhole adds a service that starts before the role's, so that a port that is taken is found first."""
        role = MultiService()
        top = self.parse("--manhole", "0").top_service(role, lambda: {"broker": self})
        self.assertEqual(list(top), [top.getServiceNamed("manhole"), role])

    def test_impossible_manhole(self) -> None:
        """A manhole whose keys cannot be read ends the process with a message."""
        options = self.parse("--manhole", f"ssh:0:{self.root}/none")
        error = self.assertRaises(SystemExit, options.top_service, MultiService(), dict)
        self.assertIn(f"{self.root}/none", str(error.code))


def nothing_to_show() -> Face:
    return Face(collectors=(), pages={}, health=lambda: None)


def twistd_options(told: Mapping[str, object]) -> Any:
    return {"nodaemon": 0, "logfile": None, "syslog": 0, "logger": None, **told}


class FailingRole(Service):
    def startService(self) -> None:
        raise OSError("no such disk")


class StartErrorTests(TapCase):
    def start(self, top: MultiService) -> StartError:
        self.patch(sys, "__stderr__", self.err)
        error = self.assertRaises(StartError, top.startService)
        assert isinstance(error, StartError)
        return error

    def test_foreground(self) -> None:
        """An expected error of a start is one line on standard error, and the process ends with 1."""
        top = self.parse().top_service(FailingRole(), dict, start_errors=(OSError,))
        error = self.start(top)
        self.assertEqual((self.err.getvalue(), error.code), ("rmq-role cannot start: no such disk\n", 1))

    def test_foreground_with_a_log_file(self) -> None:
        """Where the log is a file it has the line too: who looks there later finds why the process ended."""
        found: list[str] = []
        for arguments in ([], ["--logFile", "-"], ["--logFile", f"{self.root}/role.log"]):
            top = self.parse(*arguments).top_service(FailingRole(), dict, start_errors=(OSError,))
            self.start(top)
            texts = [event["text"] for event in self.events if "text" in event]
            self.assertEqual(len(texts), len(found) + ("role.log" in str(arguments)), arguments)
            found = texts
        self.assertEqual(found, ["rmq-role cannot start: no such disk"])

    def test_background(self) -> None:
        """A background process has no standard error: the line is in its log, and twistd shows it."""
        top = TopService("rmq-role", None, (OSError,), is_daemon=True)
        FailingRole().setServiceParent(top)
        error = self.start(top)
        self.assertEqual(self.err.getvalue(), "")
        self.assertIsInstance(error, Exception)  # what twistd reports to the terminal
        self.assertEqual(str(error), "rmq-role cannot start: no such disk")
        texts = [str(event["log_format"]).format(**event) for event in self.events if "text" in event]
        self.assertEqual(texts, [str(error)])

    def test_version(self) -> None:
        """The log of a start names version and folder: during an upgrade both are to be known of each process."""
        TopService("rmq-role", None, is_daemon=True).startService()
        texts = [str(event["log_format"]).format(**event) for event in self.events if "folder" in event]
        folder = os.path.dirname(os.path.abspath(rmq.__file__))
        self.assertEqual(len(texts), 1)
        self.assertTrue(texts[0].startswith(f"rmq-role is rmq {rmq.__version__} from {folder}, with Python 3."), texts)

    def raise_each(self, *names: str) -> list[str]:
        """Start, raise each signal, and return the lines that the log has of them."""
        asked: list[int] = []
        numbers = [signal.Signals[name] for name in names]
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        TopService("rmq-role", None, is_daemon=True).startService()
        before = len(list(self.events))
        for number in numbers:
            signal.raise_signal(number)
        texts = [str(event["log_format"]).format(**event) for event in list(self.events)[before:]]
        stops = [text for text in texts if "stops this process as SIGTERM does" in text]
        self.assertEqual(len(stops), len(asked))
        return texts

    def test_signals_that_stop(self) -> None:
        """What would kill a server stops it as SIGTERM does, with a line in the log: terminals, limits, timers."""
        texts = self.raise_each("SIGHUP", "SIGXCPU", "SIGPWR", "SIGALRM")
        self.assertEqual(texts[0], "Received SIGHUP, which stops this process as SIGTERM does")
        self.assertEqual(len([text for text in texts if "SIGTERM" in text]), 4)

    def test_signals_without_meaning(self) -> None:
        """SIGUSR1 and SIGUSR2, for which a server has no use, are a line in the log; they ended it."""
        texts = self.raise_each("SIGUSR1", "SIGUSR2")
        self.assertEqual(texts, [f"Received SIGUSR{n}, which has no meaning here: ignored" for n in (1, 2)])

    def test_threads(self) -> None:
        """`kill -3`, which shows the threads of a JVM, writes those of this process into the log and ends nothing."""
        (text,) = self.raise_each("SIGQUIT")
        self.assertTrue(text.startswith("Received SIGQUIT: this process goes on; its threads are\n"), text)
        self.assertIn("thread MainThread:", text)
        self.assertIn("in raise_each\n", text)

    def test_ignored_signals(self) -> None:
        """A signal that is ignored, as SIGHUP is under nohup, or has a handler, stays so."""
        asked: list[int] = []
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
        TopService("rmq-role", None, is_daemon=True).startService()
        self.assertIs(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)
        signal.raise_signal(signal.SIGUSR1)
        self.assertEqual(asked, [signal.SIGUSR1])

    def test_unexpected(self) -> None:
        """Anything else keeps its traceback."""
        top = self.parse().top_service(FailingRole(), dict, start_errors=(ValueError,))
        self.assertRaises(OSError, top.startService)


class LogPlaceTests(TapCase):
    """Where the log goes, by what twistd and the role were told."""

    def place(self, twistd: Mapping[str, object], *arguments: str) -> str | None:
        """Return the path of the role's own log file; None when twistd decides."""
        self.out.truncate(0)
        self.out.seek(0)
        options = Options()
        options.parent = twistd_options(twistd)
        made: list[str | None] = []

        def make_observer(*, path: str | None, **_: object) -> object:
            made.append(path)
            return object()

        self.patch(logs, "make_observer", make_observer)
        options.parseOptions(arguments)
        return made[0] if made else None

    def refused(self, twistd: Mapping[str, object], *arguments: str) -> str:
        return complaint(self.assertRaises(SystemExit, self.place, twistd, *arguments))

    def test_background(self) -> None:
        """In the background there is a file where Apache's users look for it, and its path is told."""
        self.patch(os, "environ", {**os.environ, "HOME": self.root})
        path = f"{self.root}/logs/rocketmqlogs/role.log"
        self.assertEqual(self.place({}), path)
        self.assertEqual(self.out.getvalue(), f"the log goes to {path}\n")
        self.assertEqual(self.place({}, "--logJson"), path)

    def test_background_with_own_place(self) -> None:
        """A file or a folder of one's own wins."""
        self.assertEqual(self.place({}, "--logDir", self.root), f"{self.root}/role.log")
        self.assertEqual(self.place({}, "--logFile", f"{self.root}/x"), f"{self.root}/x")
        self.assertEqual(self.place({}, "--logFile", f"{self.root}/x", "--logDir", "/y"), f"{self.root}/x")

    def test_operator_told_twistd(self) -> None:
        """What twistd itself was told wins over the default; options of the role only change what is written there."""
        cases: tuple[Mapping[str, object], ...]
        cases = ({"logfile": "t.log"}, {"syslog": 1}, {"logger": "a.b"}, {"logfile": "-", "nodaemon": 1})
        for told in cases:
            self.assertIsNone(self.place(told), told)
        self.assertEqual(self.place({"logfile": "t.log"}, "--logJson"), "t.log")
        self.assertIn("--logFile and twistd's --logfile", self.refused({"logfile": "t.log"}, "--logFile", "x"))
        self.assertIn("--logDir and twistd's --logfile", self.refused({"logfile": "t.log"}, "--logDir", "x"))
        self.assertIn("--logJson has no effect with twistd's --syslog", self.refused({"syslog": 1}, "--logJson"))

    def test_foreground(self) -> None:
        """In the foreground the log goes to the console, unless an option names another place."""
        self.assertIsNone(self.place({"nodaemon": 1}))
        self.assertEqual(self.out.getvalue(), "")
        self.assertEqual(self.place({"nodaemon": 1}, "--logDir", self.root), f"{self.root}/role.log")

    def test_console_in_the_background(self) -> None:
        """A background process has no console."""
        self.assertIn("twistd --nodaemon", self.refused({}, "--logFile", "-"))

    def test_printing_the_configuration_opens_no_log(self) -> None:
        """-p of a process that would go to the background leaves no file behind."""
        self.patch(os, "environ", {**os.environ, "HOME": self.root})
        options = Options()
        options.parent = twistd_options({})
        self.assertRaises(SystemExit, options.parseOptions, ["-p"])
        self.assertEqual(os.listdir(self.root), [])
