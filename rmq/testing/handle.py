"""
The servers of a test as the test sees them: names, messages, faults. Written once for all faces.

A `Handle` asks through its links, one for each process; an answer that is a number is summed, a list joined. All but
``client`` and ``wait_consumed`` of the faces take a millisecond or so, and wait for nobody but the servers: asyncio
code may call them as they are.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

from rmq.client.core.routes import check_group, check_topic
from rmq.client.settings import ClientSettings
from rmq.client.types import ReceivedMessage
from rmq.wire.api.common import MessageQueue
from rmq.wire.record import decode_record

#: how long a server may take to start, to answer a command, and to stop
START_S, ANSWER_S, STOP_S = 30.0, 30.0, 15.0
#: between two looks of a wait
POLL_S = 0.02
#: Clients of the kit write offsets often, so that waits for them are short.
QUICK = ClientSettings(persist_offsets_s=0.1)
#: lines of the log, or of standard error, in an error
LOG_LINES = 30
#: also of slaves of a master
MAX_MASTERS = 16
ROLES = ("ASYNC_MASTER", "SYNC_MASTER")


class ServerFailed(Exception):
    """A server did not start, ended, or could not do what was asked; the text says why."""


def mistake_in(masters: object, slaves: object, role: object, config: object, port: object) -> str:
    """Return what is wrong with the arguments of a cluster, empty if nothing is."""
    if not _is_between(masters, 1, MAX_MASTERS):
        return f"masters={masters!r} is no whole number from 1 to {MAX_MASTERS}"
    if not _is_between(slaves, 0, MAX_MASTERS):
        return f"slaves={slaves!r} (of each master) is no whole number from 0 to {MAX_MASTERS}"
    if role not in ROLES:
        return f"role={role!r} is neither {' nor '.join(ROLES)}"
    if config is not None and not isinstance(config, Mapping):
        return f"config={config!r} is no mapping of keys of brokers: config={{'slaveTimeout': 1000}}"
    if wrong := [key for key in config or {} if not isinstance(key, str)]:
        return f"config={config!r}: the key {wrong[0]!r} is no text"
    if port is not None and not _is_between(port, 0, 65_535):
        return f"port={port!r} is no port number up to 65535, nor None (a free one)"
    return ""


def _is_between(number: object, least: int, most: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def texts_of(config: Mapping[str, object] | None) -> dict[str, str]:
    """Return the values of keys of brokers as a properties file has them."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (config or {}).items()}


def absent(topic: str, seconds: float) -> str:
    """Return the text of a wait for what a group does with a topic that no broker has."""
    return (
        f"topic {topic} does not exist after {seconds:g} s: no broker has it, so its name is wrong, or nothing was sent"
        " to it"
    )


class Link(Protocol):
    """A way to the servers."""

    def ask(self, command: str, **arguments: Any) -> Any:
        """Do a command and return its result; ServerFailed."""


class Absent(ServerFailed):
    """A server was stopped by the test, or is paused: it does what it is asked when it goes on, and nobody waits."""


class Fault:
    """
    Something that goes wrong until the end of its ``with`` block.

    ``count`` is how often it did, also after the end; what happened at a server that was stopped or killed since counts
    as far as it was asked for before.
    """

    def __init__(self, links: Callable[[], Sequence[Link]], command: str, arguments: dict[str, Any]) -> None:
        self._links = links
        self._numbers = {link: link.ask(command, **arguments) for link in links()}
        self._counts = dict.fromkeys(self._numbers, 0)
        self._ended = False

    @property
    def count(self) -> int:
        if not self._ended:
            self._ask("count", self._links())
        return sum(self._counts.values())

    def undo(self) -> None:
        """End it; may be called again."""
        if not self._ended:
            self._ask("undo", list(self._numbers))
            self._ended = True

    def _ask(self, command: str, links: Sequence[Link]) -> None:
        for link in links:
            if link in self._numbers:
                with suppress(Absent):
                    self._counts[link] = link.ask(command, fault=self._numbers[link])

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


class FaultMaker:
    """
    What can go wrong. Each call begins a `Fault`, which ends with its ``with`` block, or with the test.

    ``request`` is a name of `rmq.wire.codes.RequestCode` or a number. SEND_MESSAGE means all ways to send,
    PULL_MESSAGE for all ways to pull. ``times`` is how often it happens at most; ``topic`` and ``node`` (``namesrv``,
    ``broker-a``, ``broker-a-1``) restrict it.
    """

    def __init__(self, links: Callable[[], Sequence[Link]]) -> None:
        self._links = links

    def _begin(self, command: str, **arguments: Any) -> Fault:
        return Fault(self._links, command, {k: v for k, v in arguments.items() if v is not None})

    def refuse(
        self,
        request: str | int,
        code: str | int = "SYSTEM_BUSY",
        *,
        times: int | None = None,
        topic: str | None = None,
        node: str | None = None,
    ) -> Fault:
        """Answer with a response code, a name of `rmq.wire.codes.ResponseCode` or a number; nothing is done."""
        return self._begin("refuse", request=request, code=code, times=times, topic=topic, node=node)

    def drop_answers(
        self, request: str | int, *, times: int | None = None, topic: str | None = None, node: str | None = None
    ) -> Fault:
        """Do what is asked and do not answer: a message is stored, and its sender has a timeout."""
        return self._begin("drop_answers", request=request, times=times, topic=topic, node=node)

    def delay_answers(
        self,
        request: str | int,
        seconds: float,
        *,
        times: int | None = None,
        topic: str | None = None,
        node: str | None = None,
    ) -> Fault:
        """Do what is asked and answer so many seconds later."""
        return self._begin("delay_answers", request=request, seconds=seconds, times=times, topic=topic, node=node)

    def cut(
        self,
        request: str | int | None = None,
        *,
        connections_of: str | None = None,
        times: int | None = None,
        topic: str | None = None,
    ) -> Fault:
        """
        Close connections to brokers: after each such request is done, before its answer; without a request now.

        ``connections_of`` is the client id whose connections are closed now, None: all.
        """
        return self._begin("cut", request=request, connections_of=connections_of, times=times, topic=topic)

    def forget_route(self, topic: str) -> Fault:
        """The NameServer knows neither a topic nor TBW102, from which a send would create it: clients have no route."""
        return self._begin("forget_route", topic=topic)

    def hold_slave(self, *, times: int | None = None) -> Fault:
        """No slave acknowledges: a SYNC_MASTER answers FLUSH_SLAVE_TIMEOUT after ``slaveTimeout`` (1 s here)."""
        return self._begin("hold_slave", times=times)

    def full_disk(self, node: str | None = None) -> Fault:
        """The disk of a broker (None: of all) is full, so messages are refused; counts the sends that came."""
        return self._begin("full_disk", node=node)

    def steal_queues(self, group: str) -> Fault:
        """Other members join a group and get all its queues, at once; at the end the queues come back."""
        return self._begin("steal_queues", group=group)


class Handle:
    """What all faces have; ``namesrv`` is the address for clients."""

    def __init__(self, links: Callable[[], Sequence[Link]], namesrv: str) -> None:
        self._links = links
        self.namesrv = namesrv
        self.faults = FaultMaker(links)
        self._token = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    def name(self, name: str) -> str:
        """Return a name that no other test has: ``name`` with something behind."""
        return f"{name}-{self._token}-{next(self._numbers)}"

    def _topic_name(self, name: str) -> str:
        """Return a new name of a topic; ConfigurationError, as clients raise it, for one that no topic can have."""
        full = self.name(name)
        check_topic(full)
        return full

    def _topic(self, name: str, queues: int) -> str:
        full = self._topic_name(name)
        self._each("topic", name=full, queues=queues)
        return full

    def group(self, name: str = "group") -> str:
        """Return the name of a group that no other test has; ConfigurationError for one that no group can have."""
        full = self.name(name)
        check_group(full)
        return full

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages of a topic, by broker, queue and offset; those that were sent back have own topics."""
        return [_received(found) for part in self._each("messages", topic=topic) for found in part]

    def unconsumed(self, group: str, topic: str) -> int:
        """Return how many messages of a topic a group has not acknowledged; retries of the group count, too."""
        return sum(self._each("unconsumed", group=group, topic=topic))

    def redeliver(self, group: str, message: ReceivedMessage) -> int:
        """
        Have the members of a group get a message again, and all behind it in its queue.

        Returns the number of members. The group must run; it is what an operator's reset of offsets does.
        """
        queue = message.queue
        where = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        return sum(self._each("redeliver", group=group, offset=message.queue_offset, **where))

    def undo_faults(self) -> None:
        """End all faults."""
        self._each("undo_all")

    def _each(self, command: str, **arguments: Any) -> list[Any]:
        return [link.ask(command, **arguments) for link in self._links()]

    def _is_consumed(self, group: str, topic: str) -> bool:
        # Once more at the end: the first message may have created the topic between the two questions.
        return not self.unconsumed(group, topic) and self._has_topic(topic) and not self.unconsumed(group, topic)

    def _has_topic(self, topic: str) -> bool:
        return any(self._each("has_topic", topic=topic))

    def _not_consumed(self, group: str, topic: str, seconds: float) -> TimeoutError:
        if not self._has_topic(topic):
            return TimeoutError(absent(topic, seconds))
        left = self.unconsumed(group, topic)
        return TimeoutError(f"group {group} has not acknowledged {left} messages of topic {topic} after {seconds:g} s")

    def _not_sent(self, topic: str, count: int, seconds: float) -> TimeoutError:
        there = len(self.messages(topic))
        return TimeoutError(f"topic {topic} has {there} messages, not {count}, after {seconds:g} s")


def _received(found: Mapping[str, Any]) -> ReceivedMessage:
    record = decode_record(b64decode(found["record"]))
    queue = MessageQueue(topic=record.topic, broker_name=found["broker"], queue_id=record.queue_id)
    return ReceivedMessage(record, queue)


class ServerProcess:
    """
    One process of :mod:`rmq.testing.server`, ended by its standard input.

    A child that the test forks has no part in it: it could keep standard input open, and so the servers alive.
    """

    _of_test: ClassVar[WeakSet[ServerProcess]] = WeakSet()

    def __init__(self, arguments: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._unread = b""
        #: of the last command
        self._number = 0
        self.pauses = 0
        self._keeps_folder = "--keep" in arguments
        self._forked = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - until the process ends
        self._process = subprocess.Popen(
            # -P: files of the user's folder, token.py for example, are no modules of the servers.
            [sys.executable, "-P", "-m", "rmq.testing.server", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # Ctrl-C is for the test.
            start_new_session=True,
        )
        self._of_test.add(self)
        self.ready: dict[str, Any] = {}
        started = False
        try:
            self.ready = self._answer(START_S, None)
            started = True
        finally:
            if not started:
                self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """The path of its log."""
        return str(self.ready["log"])

    def ask(self, command: str, **arguments: Any) -> Any:
        if self._forked:
            raise ServerFailed("this process was forked by the test: only the test itself may ask its servers")
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            if stdin.closed:
                raise Absent("the server was stopped by the test")
            # A question may be interrupted at any place, by Ctrl-C or a timeout of the test. Its answer, or the rest of
            # it, comes later then. What is unread is older than this question.
            self._number += 1
            self._unread = b""
            # The first line feed ends a line that was half written.
            line = b"\n" + json.dumps({"do": command, **arguments, "id": self._number}).encode() + b"\n"
            try:
                stdin.write(line)
                stdin.flush()
            except BrokenPipeError as error:
                raise ServerFailed(f"the server has ended{self._last_lines()}") from error
            if self.pauses:
                raise Absent("the server is paused")
            return self._answer(ANSWER_S, self._number).get("result")

    def _answer(self, seconds: float, number: int | None) -> dict[str, Any]:
        """Return the answer to a command by its number, None: the ready line; skip what is left of older answers."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer: dict[str, Any] = json.loads(self._read_line(deadline, seconds))
            except ValueError:
                continue
            if answer.get("id") != number:
                continue
            if "error" in answer:
                raise ServerFailed(answer["error"])
            return answer

    def _read_line(self, deadline: float, seconds: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._unread:
            readable, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise ServerFailed(f"the server does not answer within {seconds:g} s{self._last_lines()}")
            data = os.read(stdout.fileno(), 65536)
            if not data:
                raise ServerFailed(f"the server has ended{self._last_lines()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_lines(self) -> str:
        """Return the end of what the server wrote to standard error, and of its log."""
        found: list[tuple[str, bytes]] = []
        with suppress(ValueError):  # closed
            # pread, because the server writes at the position that is common to both
            errors = self._stderr.fileno()
            found.append(("standard error", os.pread(errors, os.fstat(errors).st_size, 0)))
        with suppress(KeyError, OSError), open(self.log, "rb") as file:
            found.append(("log", file.read()))
        return "".join(
            f"; the end of its {name}:\n" + "\n".join(data.decode("utf-8", "replace").splitlines()[-LOG_LINES:])
            for name, data in found
            if data
        )

    @classmethod
    def forked(cls) -> None:
        """In a forked child: put nothing in place of the pipes, so that only the test holds them."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for process in cls._of_test:
            process._forked = True
            for pipe in (process._process.stdin, process._process.stdout):
                if pipe is not None and not pipe.closed:
                    # Not closed: the file object would later close whatever has its number then.
                    os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it do nothing in the block, and in those around."""
        self.pauses += 1
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.pauses -= 1
            if not self.pauses:
                self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.kill()
        self.close()

    def stop(self) -> None:
        """End it in order; its folder stays."""
        self._process.terminate()
        # a paused one hears of the end when it goes on
        self.signal(signal.SIGCONT)
        self._process.wait(STOP_S)
        self.close()

    def close(self) -> None:
        """End it, and remove its folder; may be called again."""
        process = self._process
        self.signal(signal.SIGCONT)
        if process.stdin is not None and not process.stdin.closed:
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        if process.stdout is not None:
            # A server that writes a long answer which nobody reads would not end.
            process.stdout.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if self.ready and not self._keeps_folder:
                shutil.rmtree(self.ready["dir"], ignore_errors=True)
        self._stderr.close()


os.register_at_fork(after_in_child=ServerProcess.forked)


def arguments_of(
    masters: int,
    slaves: int,
    role: str,
    config: Mapping[str, object] | None,
    port: int | None,
    *,
    keep: bool = False,
    log_level: str,
) -> list[str]:
    """Return the command line of the server, without ``port``; ServerFailed for an argument that is wrong."""
    if mistake := mistake_in(masters, slaves, role, config, port):
        raise ServerFailed(mistake)
    arguments = ["--masters", str(masters), "--slaves", str(slaves), "--role", role, "--log-level", str(log_level)]
    for key, value in texts_of(config).items():
        arguments += ["--config", f"{key}={value}"]
    return arguments + ["--keep"] * keep


def _port(port: int | None) -> list[str]:
    return [] if port is None else ["--port", str(port)]


class OneProcess:
    """All servers in one process; ``port`` is the NameServer's, None: a free one."""

    def __init__(self, arguments: Sequence[str], port: int | None) -> None:
        self.process = ServerProcess([*arguments, *_port(port)])
        self.namesrv = str(self.process.ready["namesrv"])

    @property
    def dir(self) -> str:
        return str(self.process.ready["dir"])

    def links(self) -> Sequence[Link]:
        return [self.process]

    def logs(self) -> list[str]:
        return [self.process.log]

    def close(self) -> None:
        self.process.close()


class Isolated:
    """
    One process for each server: ``namesrv``, masters ``broker-a``, ``broker-b``, slaves ``broker-a-1`` and so on.

    Signals are real here. ``port`` is the NameServer's, None: a free one. The folder and the ports of a server stay the
    same when it starts again.
    """

    def __init__(self, arguments: Sequence[str], *, masters: int, slaves: int, keep: bool, port: int | None) -> None:
        self._keep = keep
        self.dir = tempfile.mkdtemp(prefix="rmq-testing-")
        self._arguments = {"namesrv": [*arguments, "--only", "namesrv", *_port(port)]}
        self._running: dict[str, ServerProcess] = {}
        started = False
        try:
            self.start("namesrv")
            self.namesrv = str(self._running["namesrv"].ready["namesrv"])
            for number in range(masters):
                for broker_id in range(slaves + 1):
                    name = f"broker-{chr(ord('a') + number)}" + (f"-{broker_id}" if broker_id else "")
                    self._arguments[name] = [*arguments, "--only", name, "--namesrv", self.namesrv]
                    self.start(name)
            started = True
        finally:
            if not started:
                self.close()

    @property
    def nodes(self) -> list[str]:
        """The names of all servers."""
        return list(self._arguments)

    def pid(self, node: str) -> int:
        """Return the process id of a running server."""
        return self._find(node).pid

    def _find(self, node: str) -> ServerProcess:
        """Return a running server; ServerFailed."""
        self._check(node)
        if node not in self._running:
            raise ServerFailed(f"{node} does not run")
        return self._running[node]

    def _check(self, node: str) -> None:
        if node not in self._arguments:
            raise ServerFailed(f"there is no server {node!r}, but {', '.join(self._arguments)}")

    def links(self) -> Sequence[Link]:
        return [process for process in self._running.values() if not process.pauses]

    def logs(self) -> list[str]:
        return [os.path.join(self.dir, f"{node}.log") for node in self._arguments]

    def start(self, node: str) -> None:
        """Start a server that does not run, where it was before."""
        if node in self._running:
            raise ServerFailed(f"{node} runs already")
        self._check(node)
        arguments = self._arguments[node]
        process = ServerProcess([*arguments, "--dir", self.dir, *["--keep"] * self._keep])
        self._running[node] = process
        if "--port" not in arguments:
            brokers = process.ready["brokers"]
            address = brokers[0]["address"] if brokers else process.ready["namesrv"]
            self._arguments[node] = [*arguments, "--port", str(address).rpartition(":")[2]]

    def kill(self, node: str) -> None:
        """End a server with SIGKILL."""
        self._find(node).kill()
        del self._running[node]

    def stop(self, node: str) -> None:
        """End a server in order, also a paused one."""
        self._find(node).stop()
        del self._running[node]

    def restart(self, node: str) -> None:
        """Stop a server in order and start it again."""
        self.stop(node)
        self.start(node)

    def pause(self, node: str) -> AbstractContextManager[None]:
        """Let a server do nothing in the block (SIGSTOP), without closing its connections."""
        return self._find(node).paused()

    def close(self) -> None:
        for process in reversed(list(self._running.values())):
            process.close()
        self._running.clear()
        if not self._keep:
            shutil.rmtree(self.dir, ignore_errors=True)
