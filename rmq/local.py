"""
``rmq-local``: a NameServer, a master and a slave on this machine, in the foreground; more masters if asked for.

Each role is its own `twistd` process, so that one can be killed to try a failover; a role that dies is started
again. This file starts, watches and stops processes and uses nothing else of the product.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import errno
import importlib.util
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import attrs

BOOT_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
#: how long a broker that could not register may try again
REGISTER_DEADLINE_S = 10.0
DIAL_DEADLINE_S = 2.0
RESTART_DELAY_S = 1.0
#: a role that dies this often within a minute is not started again
MAX_DEATHS_PER_MINUTE = 5
#: how often a role is asked for a sign of life, and how long it may take
PROBE_EVERY_S = 5.0
SILENT_AFTER_S = 10.0
#: rmq-local itself did not run for so long: what it waits for may be there all the same
ASLEEP_AFTER_S = 3.0

SEGMENT_MIB = 64
#: the status pages of the NameServer are at its port + 4, those of master, slave and further masters at the next ports
HTTP_PORT_STEP = 4
#: from the port of one master to that of the next
MASTER_PORT_STEP = 20
MAX_MASTERS = 16

_PR_SET_PDEATHSIG = 1

BOOT_LINE_PARTS = "boot success."
#: what a broker logs of each change of its registration: the address, and the error if there is one
REGISTRATION = re.compile(r"\b(?:registered|registration) at NameServer (\S+) (?:as |failed, [^:]*: (.*))")

BROKER_PROPERTIES = """\
# {what}.
brokerClusterName=DefaultCluster
brokerName={broker_name}
brokerId={broker_id}
brokerRole={role}
flushDiskType=ASYNC_FLUSH
# Master and slave need the same segment size. {segment_mib} MiB keeps a laptop's disk free; Apache's default is 1 GiB.
mappedFileSizeCommitLog={segment_bytes}
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
"""


ALL_ADDRESSES = "0.0.0.0"
#: keys that differ from broker to broker, with the option that sets them
OWN_KEYS = {
    "listenPort": "--broker-port and --slave-port",
    "storePathRootDir": "--dir",
    "brokerIP1": "--host",
    "brokerIP2": "--host",
    "bindAddress": "--bind",
    "namesrvAddr": "--namesrv-port",
    "brokerRole": "--role",
    "brokerName": "rmq-local",
    "brokerId": "rmq-local",
}


class BootFailure(Exception):
    """A role did not start; the text has its name, the reason and the path of its log."""


class Probe:
    """
    One connection that asks a process for a sign of life.

    It says at once that it sends nothing, so a server closes it: no request, no account, no TLS is needed. The
    system accepts connections for a process that hangs, and never closes them. A refused one counts as answered:
    the process does not listen yet, or no more, and its own lines say why.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket: socket.socket | None = None
        self._address: Any = None
        with contextlib.suppress(OSError):
            family, kind, protocol, _, self._address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setblocking(False)
        self._connected = False

    def answered(self) -> bool:
        """Go on as far as that needs no wait."""
        if self._socket is None:
            return True
        try:
            if not self._connected:
                error = self._socket.connect_ex(self._address)
                if error in (errno.EINPROGRESS, errno.EALREADY):
                    return False
                if error not in (0, errno.EISCONN):
                    return True
                self._connected = True
                self._socket.shutdown(socket.SHUT_WR)
            return self._socket.recv(4096) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


@attrs.define
class Role:
    """One role: how its `twistd` process is started, and the running process."""

    name: str
    arguments: list[str]
    log: Path
    #: host and port at which it listens, as seen from here
    address: tuple[str, int]
    #: port of its status pages; None: none
    http_port: int | None
    #: address that they listen on
    http_host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None
    deaths: collections.deque[float] = attrs.field(factory=collections.deque)
    restart_at: float | None = None
    unread: bytearray = attrs.field(factory=bytearray)
    #: bytes that the log had at the start
    log_begin: int = 0
    started_at: float = 0.0
    #: whether this process has printed its boot line, and whether it was said that it has not
    is_up: bool = False
    is_late: bool = False
    probe: Probe | None = None
    asked_at: float = 0.0
    #: whether it was said that it does not answer
    is_silent: bool = False

    def start(self) -> None:
        """Start the process in its own session: Ctrl-C reaches only rmq-local, which stops the roles in order."""
        self.unread.clear()
        self.restart_at = None
        self.started_at = time.monotonic()
        self.is_up = self.is_late = False
        self.forget_probe()
        self.log_begin = self.log.stat().st_size if self.log.exists() else 0
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: signal_when_parent_ends(signal.SIGTERM),
        )

    @property
    def command(self) -> list[str]:
        """The scripts themselves may be in another folder than the interpreter."""
        command = [sys.executable, "-m", "rmq.runtime.launch", *self.arguments]
        command += ["--nodaemon", "--pidfile=", "--logFile", str(self.log)]
        if self.http_port is not None:
            command += ["--http", _addr(self.http_host, self.http_port)]
        return command

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def forget_probe(self) -> None:
        if self.probe is not None:
            self.probe.close()
        self.probe = None
        self.is_silent = False

    def check(self, now: float) -> str | None:
        """Return what the user has to know of a process that runs: that it hangs, or does so no more, or is late."""
        if not self.is_up:
            if self.is_late or now < self.started_at + BOOT_DEADLINE_S:
                return None
            self.is_late = True
            return f"{self.name} is not up {BOOT_DEADLINE_S:.0f} s after its start; see {self.log}"
        if self.probe is None:
            if now >= self.asked_at + PROBE_EVERY_S:
                self.asked_at = now
                self.probe = Probe(*self.address)
            return None
        if self.probe.answered():
            text = f"{self.name} answers again, after {now - self.asked_at:.0f} s" if self.is_silent else None
            self.forget_probe()
            return text
        if self.is_silent or now < self.asked_at + SILENT_AFTER_S:
            return None
        self.is_silent = True
        assert self.process is not None
        pid, since = self.process.pid, time.strftime("%H:%M:%S", time.localtime(time.time() - (now - self.asked_at)))
        text = f"{self.name} (process {pid}) has not answered since {since}"
        if _is_stopped(pid):
            return f"{text}: it is stopped; `kill -CONT {pid}` lets it go on, `kill -9 {pid}` has it started again"
        return f"{text}; see {self.log}, `kill -9 {pid}` has it started again"

    def lines(self) -> Iterator[str]:
        """Read what the process printed since the last call, a line at a time."""
        assert self.process is not None and self.process.stdout is not None
        self.unread += os.read(self.process.stdout.fileno(), 65536)
        while (end := self.unread.find(b"\n")) >= 0:
            line = bytes(self.unread[:end])
            del self.unread[: end + 1]
            yield line.decode("utf-8", "replace")

    def unregistered(self) -> str | None:
        """Return why a broker is in no route, with the NameServer's address; None where its log does not say so."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(self.log_begin)
            found = REGISTRATION.findall(log.read().decode("utf-8", "replace"))
            if found and found[-1][1]:
                return "{} cannot register at NameServer {}, so clients do not find it: {}".format(
                    self.name, *found[-1]
                )
        return None

    def log_tail(self) -> str:
        """Return the last lines of this run with the path of the log; nothing of a run that has logged nothing."""
        try:
            with open(self.log, "rb") as log:
                log.seek(self.log_begin)
                lines = log.read().decode("utf-8", "replace").splitlines()[-15:]
        except OSError:
            return ""
        return "\n".join([f"; the end of {self.log}:", *lines]) if lines else ""


def _is_stopped(pid: int) -> bool:
    """Linux: whether a signal such as SIGSTOP, or a debugger, holds a process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in "Tt"
    return False


def _signal(number: int) -> str:
    """Return the number of a signal, with its name if it has one."""
    with contextlib.suppress(ValueError):
        return f"{number} ({signal.Signals(number).name})"
    return str(number)


def signal_when_parent_ends(signum: int) -> None:
    """Linux: have this process get a signal when its parent ends, also after kill -9."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)


@attrs.define
class Cluster:
    """The roles in the order of their start; stopped in the reverse order."""

    roles: list[Role]
    next_steps: str
    #: host and port of the NameServer for clients
    for_clients: tuple[str, int]
    selector: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)
    stopping: bool = False
    #: when the roles were looked at last
    watched_at: float = 0.0
    #: the role whose first start is awaited, and how it ended if it did
    booting: Role | None = None
    boot_end: str = ""

    def run(self) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP, or until a role fails too often; return the exit status."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._asked_to_stop)  # SIGINT too where a script's `&` has it ignored
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, self._asked_to_stop)
        status = 0
        try:
            for role in self.roles:
                if not self.stopping:
                    self._boot(role)
            self._wait_registered()
            if not self.stopping:
                _say(self.next_steps)
                self._try_address()
            while not self.stopping:
                self._watch()
        except BootFailure as failure:
            _say(str(failure), stream=sys.stderr)
            status = 1
        finally:
            self._stop()
        return status

    def _asked_to_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopping = True

    def _boot(self, role: Role) -> None:
        """Start ``role`` and wait for its boot line, which is printed."""
        self.booting = role
        role.start()
        self._register(role)
        deadline = time.monotonic() + BOOT_DEADLINE_S
        while not self.stopping:
            for ready in self._ready():
                for line in self._output(ready):
                    _say(line)
                    if ready is role and BOOT_LINE_PARTS in line:
                        self.booting = None
                        return
            if not role.alive and self.boot_end:
                raise BootFailure(f"{role.name} {self.boot_end} and did not start{role.log_tail()}")
            if time.monotonic() > deadline:
                raise BootFailure(f"{role.name} is not up after {BOOT_DEADLINE_S:.0f} s; see {role.log}")

    def _wait_registered(self) -> None:
        """Raise BootFailure when a broker could not register, and cannot soon."""
        deadline = time.monotonic() + REGISTER_DEADLINE_S
        while not self.stopping and (reasons := [text for role in self.roles if (text := role.unregistered())]):
            if time.monotonic() > deadline:
                raise BootFailure("\n".join(reasons))
            self._watch()

    def _try_address(self) -> None:
        """Say so when the address that clients are to dial does not work here: elsewhere it may."""
        host, port = self.for_clients
        try:
            socket.create_connection((host, port), DIAL_DEADLINE_S).close()
        except OSError as error:
            text = f"{_addr(host, port)} cannot be reached from this machine ({error.strerror or error}):"
            _say(f"rmq-local: {text} clients here need another --host, the address that they dial", stream=sys.stderr)

    def _watch(self) -> None:
        for role in self._ready():
            for line in self._output(role):
                _say(line)
        now = time.monotonic()
        for role in self.roles:
            if role.restart_at is not None and now >= role.restart_at:
                role.start()
                self._register(role)
        self._check(now)

    def _check(self, now: float) -> None:
        asleep = now > self.watched_at + ASLEEP_AFTER_S
        self.watched_at = now
        for role in self.roles:
            if asleep and not role.is_silent:
                role.forget_probe()
            if role.alive and (text := role.check(now)) is not None:
                _say(text)

    def _register(self, role: Role) -> None:
        assert role.process is not None and role.process.stdout is not None
        self.selector.register(role.process.stdout, selectors.EVENT_READ, role)

    def _ready(self) -> list[Role]:
        return [key.data for key, _ in self.selector.select(0.5)]

    def _output(self, role: Role) -> list[str]:
        """Return the lines that ``role`` printed; at the end of its output handle its end."""
        assert role.process is not None and role.process.stdout is not None
        before = len(role.unread)
        lines = list(role.lines())
        if lines or len(role.unread) > before:
            role.is_up = role.is_up or any(BOOT_LINE_PARTS in line for line in lines)
            return lines
        self.selector.unregister(role.process.stdout)
        role.process.stdout.close()
        self._died(role, role.process.wait())
        return []

    def _died(self, role: Role, status: int) -> None:
        if self.stopping:
            return
        role.forget_probe()
        how = f"was killed by signal {_signal(-status)}" if status < 0 else f"ended with status {status}"
        if role is self.booting:  # which ends the start of all
            self.boot_end = how
            return
        now = time.monotonic()
        role.deaths.append(now)
        while role.deaths[0] < now - 60:
            role.deaths.popleft()
        if len(role.deaths) > MAX_DEATHS_PER_MINUTE:
            raise BootFailure(f"{role.name} {how} and fails too often{role.log_tail()}")
        _say(f"{role.name} {how}; it starts again in {RESTART_DELAY_S:.0f} s")
        role.restart_at = now + RESTART_DELAY_S

    def _stop(self) -> None:
        """Stop the roles, the last one first, each with SIGTERM and after a while with SIGKILL."""
        for role in reversed(self.roles):
            if role.process is None or not role.alive:
                continue
            role.process.terminate()
            role.process.send_signal(signal.SIGCONT)  # one that is stopped would not see it
            try:
                role.process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                _say(f"{role.name} does not stop; killing it (its store recovers at the next start)", stream=sys.stderr)
                role.process.kill()
                role.process.wait()
        _say("stopped")


def _say(text: str, stream: TextIO | None = None) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, file=stream or sys.stdout, flush=True)


def _write_once(path: Path, text: str) -> Path:
    """Write ``path`` unless it exists: changes of the user stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Half a file would count as the user's own.
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
        temporary.replace(path)
    return path


def _broker(options: argparse.Namespace, root: Path, name: str, port: int, role: str, what: str, page: int) -> Role:
    """Return a master, or the slave of one: its name ends in "-s". ``page`` is the number of its status pages."""
    broker_name = name.removesuffix("-s")
    conf = _write_once(
        root / "conf" / f"{name}.properties",
        BROKER_PROPERTIES.format(
            what=what,
            broker_name=broker_name,
            broker_id=int(name != broker_name),
            role=role,
            segment_bytes=SEGMENT_MIB << 20,
            segment_mib=SEGMENT_MIB,
        ),
    )
    arguments = ["rmq-broker", "-c", str(conf), "-n", _addr(_inside(options), options.namesrv_port)]
    arguments += ["--listenPort", str(port), "--storePathRootDir", str(root / name)]
    arguments += ["--brokerIP1", options.host, "--brokerIP2", _inside(options), *_bound(options)]
    arguments += [f"--{key}={value}" for key, value in options.config]
    return _role(options, root, name, arguments, page)


def _role(options: argparse.Namespace, root: Path, name: str, arguments: list[str], page: int) -> Role:
    log, http_host = root / "logs" / f"{name}.log", options.bind or "127.0.0.1"
    port = int(arguments[arguments.index("--listenPort") + 1])
    return Role(
        name=name,
        arguments=arguments,
        log=log,
        address=(_inside(options), port),
        http_port=_http_port(options, page),
        http_host=http_host,
    )


def _bound(options: argparse.Namespace) -> list[str]:
    return ["--bindAddress", options.bind or options.host]


def _inside(options: argparse.Namespace) -> str:
    """Return the address at which the roles reach each other."""
    return "127.0.0.1" if options.bind == ALL_ADDRESSES else options.bind or options.host


def cluster(options: argparse.Namespace) -> Cluster:
    """Return the cluster of the command line; writes the property files of a new one."""
    root = Path(options.dir).absolute()
    (root / "logs").mkdir(parents=True, exist_ok=True)
    conf = _write_once(
        root / "conf" / "namesrv.properties", "# Keys of Apache's NamesrvConfig and NettyServerConfig.\n"
    )
    arguments = ["rmq-namesrv", "-c", str(conf), "--listenPort", str(options.namesrv_port)]
    arguments += [*_bound(options), "--kvConfigPath", str(root / "namesrv" / "kvConfig.json")]
    if options.failover:
        arguments += ["--enableControllerInNamesrv=true", f"--controllerStorePath={root / 'namesrv' / 'controller'}"]
    namesrv = _role(options, root, "namesrv", arguments, 0)
    master = _broker(options, root, "broker-a", options.broker_port, options.role, "The master of broker-a", 1)
    slave = _broker(options, root, "broker-a-s", options.slave_port, "SLAVE", "The slave of broker-a", 2)
    for role in (master, slave) if options.failover else ():
        addr = _addr(_inside(options), options.namesrv_port)
        role.arguments += ["--enableControllerMode=true", f"--controllerAddr={addr}"]
    roles = [namesrv, master, slave]
    for number in range(1, options.masters):
        name = f"broker-{chr(ord('a') + number)}"
        port = options.broker_port + number * MASTER_PORT_STEP
        roles.append(_broker(options, root, name, port, "ASYNC_MASTER", f"The master of {name}", number + 2))
    return Cluster(
        roles=roles, next_steps=_next_steps(options, root, roles), for_clients=(options.host, options.namesrv_port)
    )


def _http_port(options: argparse.Namespace, index: int) -> int | None:
    """Return the port of the status pages of the role with this index; None without --http-port or the extra."""
    first = options.namesrv_port + HTTP_PORT_STEP if options.http_port is None else options.http_port
    if not first or importlib.util.find_spec("prometheus_client") is None:
        return None
    return int(first) + index


NEXT_STEPS = """
Ready. NameServer {namesrv}, master {master}, slave {slave}{more}.

  use it         any RocketMQ 4.x or 5.x remoting client: set its name server address to {namesrv}
  look at it     {pages}
                 rmq-admin cluster list -n {quoted}
  break it       pkill -9 -f 'rmq-broker.*broker-a.properties'   (the master starts again by itself)
  prove it       {audit}
  its files      {dir}/conf, {dir}/logs, stores {dir}/broker-a and {dir}/broker-a-s
  stop it        Ctrl-C
"""


def _next_steps(options: argparse.Namespace, root: Path, roles: Sequence[Role]) -> str:
    pages = "\n                 ".join(
        f"http://127.0.0.1:{role.http_port}/ ({role.name})" for role in roles if role.http_port
    )
    if not pages and options.http_port != 0:
        pages = f"status pages: {_shortest(sys.executable)} -m pip install 'txrocketmq[metrics]', then start again"
    return NEXT_STEPS.format(
        pages=pages or "status pages are off (--http-port 0)",
        namesrv=_addr(options.host, options.namesrv_port),
        # a shell takes brackets for a pattern of file names
        quoted=shlex.quote(_addr(options.host, options.namesrv_port)),
        master=_addr(options.host, options.broker_port),
        slave=_addr(options.host, options.slave_port),
        more=", further masters: " + ", ".join(role.name for role in roles[3:]) if roles[3:] else "",
        dir=os.path.relpath(root),
        audit=_audit_command(os.path.relpath(root)),
    )


def _audit_command(folder: str) -> str:
    """
    Return the command that compares the two stores, and how to install it where it is missing.

    An asynchronous slave of a busy master always has a small replication lag: less than a segment counts as equal.
    """
    program = os.path.join(os.path.dirname(sys.executable), "rmq-audit")
    text = f"{shlex.quote(_shortest(program))} compare {shlex.quote(folder + '/broker-a')} "
    text += f"{shlex.quote(folder + '/broker-a-s')} --engine local --allow-lag {SEGMENT_MIB}M"
    if importlib.util.find_spec("xxhash") is None or importlib.util.find_spec("numpy") is None:
        text += f"\n                 (first: {_shortest(sys.executable)} -m pip install 'txrocketmq[audit-local]')"
    return text


def _shortest(path: str) -> str:
    """Return a path for the user: relative if it is inside the current folder."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _addr(host: str, port: int) -> str:
    """Return ``host:port``, ``[host]:port`` with IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bare(text: str) -> str:
    """Return an address without the brackets that may be around IPv6."""
    return text.removeprefix("[").removesuffix("]")


def _host(text: str) -> str:
    """Return an address that clients can dial."""
    text = _bare(text)
    if text in (ALL_ADDRESSES, "::", ""):
        raise argparse.ArgumentTypeError(f"{text!r} is no address that clients can dial; --bind says where to listen")
    return text


def _pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE; keys that rmq-local sets are refused."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: KEY=VALUE is expected")
    if key in OWN_KEYS:
        raise argparse.ArgumentTypeError(f"{key} is set by {OWN_KEYS[key]}")
    return key, value


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rmq-local",
        description="Run a NameServer, a master and a slave on this machine, in the foreground, until Ctrl-C.",
    )
    parser.add_argument(
        "--dir", default="rmq-data", help="folder of stores, logs and property files (default: %(default)s)"
    )
    parser.add_argument(
        "--host", type=_host, default="127.0.0.1", help="address to register, which clients dial (default: %(default)s)"
    )
    parser.add_argument(
        "--bind",
        type=_bare,
        metavar="ADDRESS",
        help=f"address to listen on, for status pages too; {ALL_ADDRESSES}: all of them (default: that of --host; the"
        " pages 127.0.0.1)",
    )
    parser.add_argument("--namesrv-port", type=int, default=9876, help="default: %(default)s")
    parser.add_argument(
        "--broker-port", type=int, default=10911, help="master; also uses port - 2 and port + 1 (default: %(default)s)"
    )
    parser.add_argument(
        "--slave-port", type=int, default=10921, help="slave; also uses port - 2 and port + 1 (default: %(default)s)"
    )
    parser.add_argument(
        "--masters",
        type=int,
        default=1,
        choices=range(1, MAX_MASTERS + 1),
        metavar="N",
        help=f"masters, one process each, which share the topics; all but the first are without slave, at"
        f" --broker-port + {MASTER_PORT_STEP}, + {2 * MASTER_PORT_STEP}, … (default: %(default)s)",
    )
    parser.add_argument(
        "--http-port",
        type=int,
        help="status pages and /metrics: NameServer; master at port + 1, slave at port + 2, more masters"
        " behind it; 0 for none"
        f" (default: --namesrv-port + {HTTP_PORT_STEP}; needs the extra txrocketmq[metrics])",
    )
    parser.add_argument(
        "--role",
        default="ASYNC_MASTER",
        choices=["ASYNC_MASTER", "SYNC_MASTER"],
        help="brokerRole of a new master; written once to DIR/conf (default: %(default)s)",
    )
    parser.add_argument(
        "--failover",
        action="store_true",
        help="the NameServer is a controller, which elects the master of the first two brokers, for this run; not for a"
        " folder in which they have messages without it",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="a key of all brokers, for this run; goes before the same key in DIR/conf; may be given several times",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        roles = cluster(options)
    except OSError as error:
        _say(f"rmq-local: --dir {options.dir}: {error.filename}: {error.strerror}", stream=sys.stderr)
        return 1
    return roles.run()


if __name__ == "__main__":
    raise SystemExit(main())
