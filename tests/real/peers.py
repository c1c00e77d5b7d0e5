"""
Real processes on loopback: Apache's NameServer and Broker, ours, and Apache's command line tool.

A *kind* names whose software a process runs: ``"ours"``, or a version of Apache RocketMQ. Apache's released jars are
fetched with Maven once per version and kept below ``ROCKETMQ_PEERS`` (default ``~/.cache/rocketmq-peers``), outside
the repository. With ``RMQ_REAL_OURS=4.9.7`` in the environment that version stands in wherever a test says ``"ours"``:
so the tests themselves are tested.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from tests.needs import missing
from tests.ports import free_port
from tests.real.probe import Probe

T = TypeVar("T")

OURS = "ours"
APACHE_4 = "4.9.7"  # the newest 4.x whose broker is published
APACHE_5 = "5.3.3"
STAND_IN = os.environ.get("RMQ_REAL_OURS", OURS)

HOST = "127.0.0.1"
CACHE = Path(os.environ.get("ROCKETMQ_PEERS") or Path.home() / ".cache" / "rocketmq-peers")
MAVEN_DEADLINE_S = 600.0
BOOT_DEADLINE_S = 90.0
STOP_DEADLINE_S = 40.0
POLL_S = 0.05

_ARTIFACTS = ("namesrv", "broker", "tools", "client", "common", "remoting", "store")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>rmq.tests</groupId><artifactId>peers</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>
{dependencies}
</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "<classifier>{classifier}</classifier></dependency>"
)
_APACHE = "org.apache.rocketmq"

# Apache 4.9 reaches into the JDK to unmap its files; a JDK of today opens these doors only when asked.
_JVM_FLAGS = [
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.nio", "java.util", "jdk.internal.ref", "sun.nio.ch")
    ),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]


@attrs.frozen
class Java:
    """
    How Apache's processes are run: flags beside the necessary ones, and heaps in MiB.

    ``is_spared`` servers do not prepare for TLS, where no test configures it, and 5.x flushes its timers seldom.
    """

    flags: tuple[str, ...]
    namesrv_heap: int
    broker_heap: int
    is_spared: bool = False

    def server_flags(self) -> list[str]:
        """Return the flags of a NameServer or broker."""
        has_tls = not self.is_spared or "-Dtls." in os.environ.get("JAVA_TOOL_OPTIONS", "")
        return [*self.flags, *([] if has_tls else [_NO_TLS])]


#: quick to start and small; a benchmark wants other flags
TEST_JAVA = Java(("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"), namesrv_heap=96, broker_heap=256, is_spared=True)

#: Where nothing is configured Apache's servers make an RSA key for each of their ports: 3 s of CPU time for a
#: NameServer, 5 s for a broker. Plain peers do not notice whether a server takes TLS too.
_NO_TLS = "-Dtls.server.mode=disabled"
#: A broker 5.x writes its 38 MB of timers each second, which takes a quarter of a core; a stop writes them, too.
_5_X = {"timerFlushIntervalMs": 60_000}

_LOGBACK = """<configuration>
<appender name="file" class="{prefix}ch.qos.logback.core.FileAppender"><file>{file}</file>
<encoder><pattern>%d{{HH:mm:ss.SSS}} %level %logger{{0}} - %m%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="file"/></root></configuration>
"""


# ---- what the machine must have ----------------------------------------------------------------------------------


def require_apache(version: str) -> None:
    """Make sure that ``version`` can run here, or skip (fail in CI) and say what is missing."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            missing(f"no {tool} on PATH: Apache RocketMQ and its clients need a JDK (17)")
    if not _is_complete(version) and shutil.which("mvn") is None:
        missing(f"Apache RocketMQ {version} is not in {CACHE} and there is no mvn on PATH to fetch it")
    jars(version)


def _is_complete(version: str) -> bool:
    return (CACHE / version / "lib" / ".complete").exists()


def jars(version: str) -> Path:
    """Return the folder that holds every jar of ``version``; the first call on a machine fetches them."""
    return _folder_of(version, "lib", [(_APACHE, f"rocketmq-{artifact}", version, "") for artifact in _ARTIFACTS])


def apache_tests(version: str) -> Path:
    """Return the folder that holds Apache's integration tests of ``version`` and all that they need; see `jars`."""
    tests = (_APACHE, "rocketmq-test", version)
    assertj = ("org.assertj", "assertj-core", "2.6.0", "")
    return _folder_of(version, "test-lib", [(*tests, ""), (*tests, "tests"), assertj])


def _folder_of(version: str, name: str, artifacts: Iterable[tuple[str, str, str, str]]) -> Path:
    folder = CACHE / version
    lib = folder / name
    if (lib / ".complete").exists():
        return lib
    lib.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (lib / ".complete").exists():
            _fetch(version, artifacts, folder / "pom.xml", lib)
            (lib / ".complete").touch()
    return lib


def _fetch(version: str, artifacts: Iterable[tuple[str, str, str, str]], pom: Path, lib: Path) -> None:
    dependencies = (
        _DEPENDENCY.format(group=group, artifact=artifact, version=version, classifier=classifier)
        for group, artifact, version, classifier in artifacts
    )
    pom.write_text(_POM.format(dependencies="\n".join(dependencies)))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_DEADLINE_S)
    except subprocess.TimeoutExpired:
        missing(f"Maven did not fetch Apache RocketMQ {version} within {MAVEN_DEADLINE_S:.0f} s")
        raise
    if done.returncode != 0:
        missing(f"Maven could not fetch Apache RocketMQ {version}: {(done.stdout + done.stderr)[-800:]}")


# ---- waiting -------------------------------------------------------------------------------------------


def until(what: str, condition: Callable[[], T | None], *, seconds: float = 60.0) -> T:
    """Return the first true value of ``condition``; AssertionError naming ``what`` when there is none in time."""
    deadline = time.monotonic() + seconds
    trouble: object = None
    while True:
        try:
            value = condition()
            if value:
                return value
            trouble = value
        except (OSError, LookupError, ValueError) as error:
            trouble = repr(error)
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what} (last: {trouble})")
        time.sleep(POLL_S)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1).close()
    except OSError:
        return False
    return True


# ---- processes ---------------------------------------------------------------------------------------------------


class Process:
    """
    One process with its folder and its console log; after ``kill`` or ``stop`` the same command can ``start`` again.

    ``logs`` are the files to show when a test fails; the console log, which every start appends to, is the first.
    """

    def __init__(self, name: str, kind: str, command: Sequence[str], folder: Path, port: int, logs: Sequence[Path]):
        self.name, self.kind, self.command, self.folder, self.port = name, kind, list(command), folder, port
        self.addr = f"{HOST}:{port}"
        self.console = folder / "console.log"
        self.logs = [self.console, *logs]
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._running is not None, f"{self.name} was never started"
        return self._running.pid

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def start(self, *, wait: bool = True) -> Process:
        """Start the command and wait until its port accepts connections."""
        assert not self.alive, f"{self.name} runs already"
        with self.console.open("ab") as out:
            out.write(f"--- start at {time.strftime('%H:%M:%S')}: {' '.join(self.command[-6:])}\n".encode())
            out.flush()
            self._running = subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        if wait:
            until(f"{self.name} listens on {self.addr}", self._listens_or_died, seconds=BOOT_DEADLINE_S)
        return self

    def _listens_or_died(self) -> bool:
        if not self.alive:
            status = self._running and self._running.returncode
            raise AssertionError(f"{self.name} ended with status {status}:\n{self.tail()}")
        return is_listening(self.port)

    def suspend(self) -> None:
        """Freeze the process (SIGSTOP): its sockets stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        until(f"every thread of {self.name} has stopped", lambda: set(self._thread_states()) == {"T"}, seconds=10)

    def _thread_states(self) -> list[str]:
        states = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                states.append((task / "stat").read_text().rpartition(") ")[2][0])
        return states

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process as a power cut of the process would: SIGKILL."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def stop(self) -> int:
        """Ask the process to end (SIGTERM) and return its exit status; what does not end in time is killed."""
        if self._running is None:
            return 0
        if self.alive:
            self._running.send_signal(signal.SIGCONT)
            self._running.terminate()
            try:
                self._running.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._running.kill()
        return self._running.wait()

    def text(self) -> str:
        """Return all that the process logged so far, all files in a row."""
        return "".join(path.read_text("utf-8", "replace") for path in self.logs if path.exists())

    def tail(self, lines: int = 25) -> str:
        """Return the last lines of each log, under the file's name."""
        parts = []
        for path in self.logs:
            if path.exists():
                parts.append(f"..... {path}")
                parts += [line[:400] for line in path.read_text("utf-8", "replace").splitlines()[-lines:]]
        return "\n".join(parts)

    def probe(self, *, timeout: float = 15.0) -> Probe:
        return Probe(self.port, timeout=timeout)


class Broker(Process):
    """A broker process and where it keeps what."""

    def __init__(self, *args: Any, values: Mapping[str, object], store: Path):
        super().__init__(*args)
        self.values, self.store = dict(values), store
        self.broker_name, self.broker_id = str(values["brokerName"]), int(str(values["brokerId"]))
        self.commitlog = store / "commitlog"
        self.ha_port = self.port + 1

    def runtime(self) -> dict[str, str]:
        """Return what the broker says of itself (code 28); right after its start Apache's cannot."""

        def told() -> dict[str, str]:
            with self.probe() as probe:
                return probe.runtime_info()

        return until(f"{self.name} says how it runs", told)

    def end_offset(self) -> int:
        return int(self.runtime()["commitLogMaxOffset"])


class Site:
    """
    All processes of one test, in folders below ``root``; ``close`` ends them, newest first.

    From the first one on SIGTERM is a SystemExit, so that who calls ``close`` at the end does so then, too.
    """

    def __init__(self, root: Path, java: Java = TEST_JAVA):
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self.root = root
        self.java = java
        self.processes: list[Process] = []

    # -- starting

    def namesrv(
        self, kind: str = OURS, name: str = "namesrv", *, start: bool = True, twistd: Sequence[str] = (), **config: Any
    ) -> Process:
        """
        Start a NameServer of ``kind``; ``config`` are further keys of its properties file.

        ``twistd`` are options of twistd itself, where it is ours.
        """
        kind = _resolved(kind)
        folder, port = self._folder(name), free_port()
        values = {"listenPort": port, "bindAddress": HOST, "kvConfigPath": folder / "kvConfig.json", **config}
        conf = write_properties(folder / "namesrv.conf", values)
        if kind == OURS:
            command, logs = _twistd("rmq-namesrv", conf, twistd)
        else:
            main = "org.apache.rocketmq.namesrv.NamesrvStartup"
            flags = self.java.server_flags()
            command, logs = java_command(kind, folder, main, ["-c", str(conf)], flags, self.java.namesrv_heap)
        return self._add(Process(f"{name} ({kind})", kind, command, folder, port, logs), start)

    def broker(
        self,
        kind: str,
        namesrv: str,
        name: str = "broker-a",
        *,
        store: Path | None = None,
        start: bool = True,
        twistd: Sequence[str] = (),
        **config: Any,
    ) -> Broker:
        """
        Start a broker of ``kind`` that registers at ``namesrv`` ("host:port"), with small files.

        ``name`` is the folder; ``store`` the store directory (default: in the folder); ``config`` overrides keys;
        ``twistd`` are options of twistd itself, where it is ours.
        """
        kind = _resolved(kind)
        folder, port = self._folder(name), free_port()
        store = store or folder / "store"
        seldom = _5_X if kind == APACHE_5 and self.java.is_spared else {}
        values = broker_values(port, namesrv, store) | seldom | config
        conf = write_properties(folder / "broker.conf", values)
        if kind == OURS:
            command, logs = _twistd("rmq-broker", conf, twistd)
        else:
            flags = [
                *self.java.server_flags(),
                "-XX:MaxDirectMemorySize=256m",
                "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98",
                "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97",
            ]
            main = "org.apache.rocketmq.broker.BrokerStartup"
            command, logs = java_command(kind, folder, main, ["-c", str(conf)], flags, self.java.broker_heap)
        broker = Broker(f"{name} ({kind})", kind, command, folder, port, logs, values=values, store=store)
        self._add(broker, start)
        if start:
            self.wait_registered(broker, namesrv)
        if start and kind != OURS:  # Apache's answers 28 with an exception until its statistics have a first second
            until(f"{broker.name} tells of itself", broker.runtime)
        return broker

    def slave(self, kind: str, master: Broker, namesrv: str, name: str = "slave", **config: Any) -> Broker:
        """Start a slave of ``master`` with the master's file sizes."""
        same = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
        sizes = {key: master.values[key] for key in same}
        values = {"brokerName": master.broker_name, "brokerId": 1, "brokerRole": "SLAVE", **sizes, **config}
        values.setdefault("slaveReadEnable", True)  # without it a 5.x slave refuses every pull
        return self.broker(kind, namesrv, name, **values)

    def command(self, name: str, command: Sequence[str], port: int) -> Process:
        """Start any other command, ready when ``port`` listens."""
        return self._add(Process(name, OURS, command, self._folder(name), port, []), start=True)

    def wait_registered(self, broker: Broker, namesrv: str) -> None:
        """Wait until ``namesrv`` has the broker in its cluster table."""

        def registered() -> bool:
            with Probe(int(namesrv.rpartition(":")[2])) as probe:
                table = probe.cluster()["brokerAddrTable"].get(broker.broker_name, {"brokerAddrs": {}})
                return bool(table["brokerAddrs"].get(str(broker.broker_id)) == broker.addr)

        until(f"{broker.name} is registered at {namesrv}", registered)

    # -- ending

    def close(self) -> None:
        """End all processes, ours by asking them to; Apache's take 5 s to stop by themselves and nothing is learnt."""
        for process in reversed(self.processes):
            if process.kind == OURS:
                process.stop()
            else:
                process.kill()

    def forget_stores(self) -> None:
        """Remove store directories (large) and keep logs and properties (small)."""
        for process in self.processes:
            if isinstance(process, Broker):
                shutil.rmtree(process.store, ignore_errors=True)

    def report(self) -> str:
        return "\n\n".join(f"===== {process.name}\n{process.tail()}" for process in self.processes)

    # -- inside

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    P = TypeVar("P", bound=Process)

    def _add(self, process: P, start: bool) -> P:
        self.processes.append(process)
        if start:
            process.start()
        return process


def _resolved(kind: str) -> str:
    kind = STAND_IN if kind == OURS else kind
    if kind != OURS:
        require_apache(kind)
    return kind


def broker_values(port: int, namesrv: str, store: Path) -> dict[str, object]:
    """Return the properties of a broker that suits a test: small files, loopback, patience on a busy machine."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "namesrvAddr": namesrv,
        "listenPort": port,
        "haListenPort": port + 1,
        "bindAddress": HOST,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 4 << 20,
        "mappedFileSizeConsumeQueue": 20 * 5000,
        "maxHashSlotNum": 20_000,
        "maxIndexNum": 50_000,
        "diskMaxUsedSpaceRatio": 95,
        "autoCreateTopicEnable": True,
        "autoCreateSubscriptionGroup": True,
        # Apache refuses good sends with "broker busy" when a loaded machine makes them wait 200 ms.
        "brokerFastFailureEnable": False,
        "waitTimeMillsInSendQueue": 10_000,
        "osPageCacheBusyTimeOutMills": 10_000,
        "warmMapedFileEnable": False,
    }


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    lines = (f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in values.items())
    path.write_text("".join(lines))
    return path


def _twistd(plugin: str, conf: Path, options: Sequence[str] = ()) -> tuple[list[str], list[Path]]:
    """Return the command that runs one of our plugins, with bytecode as pip installs it; it logs to the console."""
    run = "from twisted.scripts.twistd import run; run()"
    installed = ["env", "-u", "PYTHONDONTWRITEBYTECODE", "-u", "PYTHONPYCACHEPREFIX"]
    return [*installed, sys.executable, "-c", run, "--nodaemon", "--pidfile=", *options, plugin, "-c", str(conf)], []


def java_command(
    version: str,
    folder: Path,
    main: str,
    arguments: Iterable[str],
    flags: Iterable[str],
    heap_mb: int,
    *,
    classpath: str = "",
) -> tuple[list[str], list[Path]]:
    """Return the command that runs ``main`` of ``version``, and the log files it will write."""
    conf = folder / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    logs = []
    for role in ("namesrv", "broker", "tools"):
        logs.append(folder / f"{role}.log")
        (conf / f"logback_{role}.xml").write_text(_LOGBACK.format(prefix="", file=logs[-1]))
    logs.append(folder / "rocketmq.log")  # 5.x carries a logback of its own under another package
    shaded = conf / "rmq.logback.xml"
    shaded.write_text(_LOGBACK.format(prefix="org.apache.rocketmq.logging.", file=logs[-1]))
    command = [
        "java",
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        *_JVM_FLAGS,
        *flags,
        f"-Duser.home={folder}",
        f"-Drocketmq.home.dir={conf.parent}",
        f"-Drmq.logback.configurationFile={shaded}",
        "-cp",
        classpath or f"{jars(version)}/*",
        main,
        *arguments,
    ]
    return command, logs


def mqadmin(root: Path, *arguments: str, version: str = APACHE_4, seconds: float = 120.0) -> str:
    """Run one sub-command of Apache's ``mqadmin`` and return all it printed, both streams; it must end with 0."""
    require_apache(version)
    folder = root / "mqadmin"
    folder.mkdir(parents=True, exist_ok=True)
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    command, _ = java_command(version, folder, main, arguments, TEST_JAVA.flags, heap_mb=64)
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=folder)
        output = done.stdout + done.stderr
        with (folder / "console.log").open("a") as log:
            log.write(f"--- mqadmin {' '.join(arguments)}\n{output}\n")
        # on a full machine a JVM that has just started may not get an answer within its own limit of 3 s
        if "RemotingTimeoutException" not in output:
            break
    assert done.returncode == 0, f"mqadmin {' '.join(arguments)} ended with {done.returncode}:\n{output}"
    return output
