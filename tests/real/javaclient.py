"""An unmodified Java client of a given RocketMQ version, driven through a pipe (see java/Client.java)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.real.peers import CACHE, TEST_JAVA, jars, java_command, require_apache
from tests.real.piped import Event, PipedClient

SOURCE = Path(__file__).parent / "java" / "Client.java"
ADMIN_SOURCE = SOURCE.with_name("Admin.java")

TAGS = ("TagA", "TagB", "标签", "Tag-C")


def compiled(version: str, source: Path = SOURCE, find_jars: Callable[[str], Path] = jars) -> Path:
    """Return the folder of a program's classes for ``version``; compiled once per source text, in the cache."""
    require_apache(version)
    name = f"{source.stem.lower()}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    target = CACHE / version / name
    if not target.exists():
        scratch = CACHE / version / f"{name}.{os.getpid()}"
        command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{find_jars(version)}/*", "-d"]
        command += [str(scratch), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"javac for {version}:\n{done.stdout}{done.stderr}"
        try:
            scratch.rename(target)
        except OSError:  # another run was faster
            shutil.rmtree(scratch, ignore_errors=True)
    return target


class JavaClient(PipedClient):
    """One client process. Commands may overlap: ``begin`` returns an id for ``finish``."""

    def __init__(self, version: str, namesrv: str, folder: Path):
        flags = ["-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        flags += ["-Dfile.encoding=UTF-8", f"-Duser.home={folder}"]
        classpath = f"{compiled(version)}{os.pathsep}{jars(version)}/*"
        super().__init__(f"client {version}", ["java", *flags, "-cp", classpath, "Client", namesrv], folder)
        self.version = version

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the commands

    def begin_send(
        self,
        topic: str,
        how: str,
        count: int,
        *,
        prefix: str,
        first: int = 0,
        sizes: tuple[int, int] = (40, 400),
        tags: Sequence[str] = TAGS,
        attempts: int = 60,
        timeout_ms: int = 5000,
        in_turn: bool = False,
    ) -> int:
        """
        Send ``count`` messages ``how``: "sync", "async", "oneway", "batch", or "mixed" (the acknowledged ways in turn).

        Message number i has the key ``prefix-i``. What fails is repeated up to ``attempts`` times. With "sync" and
        ``in_turn`` message number i goes to queue i, also when one before it failed.
        """
        return self.begin(
            "send", topic=topic, how=how, count=count, prefix=prefix, first=first, sizes=list(sizes), tags=list(tags),
            attempts=attempts, timeoutMs=timeout_ms, inTurn=in_turn,
        )  # fmt: skip

    def send(
        self, topic: str, how: str, count: int, *, prefix: str, seconds: float = 180.0, **more: Any
    ) -> list[Event]:
        """Send, wait, and return the "sent" events of this prefix; a message lost for good is an error."""
        done = self.finish(self.begin_send(topic, how, count, prefix=prefix, **more), seconds=seconds)
        assert done["ok"] == count and not done["lost"], f"client {self.version} {how}: {done}\n{self.tail()}"
        return self.sent(prefix)

    def sent(self, prefix: str) -> list[Event]:
        return [e for e in list(self.events) if e.get("event") == "sent" and e["key"].startswith(prefix + "-")]

    def got(self, *members: str) -> list[Event]:
        return [e for e in list(self.events) if e.get("event") == "got" and (not members or e["member"] in members)]

    def transact(self, group: str, topic: str, count: int, *, prefix: str, local: str, **answers: str) -> list[Event]:
        """
        Begin ``count`` transactions as a member of a producer group and return what became of the half messages.

        ``local`` is the state that the producer knows when it has sent one. The other properties are what members of
        the group answer when a broker asks, each by the property that :meth:`answer` names (at first ``checked``).
        """
        self.call(
            "transact", group=group, topic=topic, count=count, prefix=prefix, properties={"local": local, **answers}
        )
        return [e for e in self.happened("transaction") if e["key"].startswith(prefix + "-")]

    def answer(self, group: str, *, by: str) -> None:
        """Be a member of a producer group, which answers by a property of the message."""
        self.call("answer", group=group, by=by)

    def consume(self, group: str, topic: str, member: str, expression: str = "*", **more: Any) -> None:
        """Start a push consumer, of tags or ``sql``; what it receives appears as "got" events of ``member``."""
        self.call("consume", group=group, topic=topic, member=member, expression=expression, **more)

    def leave(self, member: str) -> None:
        """Stop a push consumer; it commits its offsets on the way out."""
        self.call("leave", member=member)

    def read(self, topic: str, *, seconds: float = 180.0) -> list[Event]:
        """Return every message of every queue of ``topic``, pulled from minimum to maximum."""
        start = len(self.events)
        self.call("read", topic=topic, seconds=seconds)
        return [e for e in self.events[start:] if e.get("event") == "read"]

    def offsets(self, topic: str, group: str) -> dict[str, tuple[int, int, int]]:
        """Return queue id -> (minimum, maximum, offset committed by ``group``)."""
        queues = self.call("offsets", topic=topic, group=group)["queues"]
        return {queue: tuple(values) for queue, values in queues.items()}

    def query(self, topic: str, **by: Any) -> list[Event]:
        """Return the messages found by ``key=`` or ``msgId=`` (an offset message id)."""
        found: list[Event] = self.call("query", topic=topic, **by)["found"]
        return found


class JavaAdmin(PipedClient):
    """
    Apache's mqadmin of a version that stays up between its commands (see java/Admin.java).

    sendMessage can run once: Apache's command object keeps the producer that it has shut down.
    """

    def __init__(self, version: str, folder: Path):
        classpath = os.pathsep.join([str(compiled(version, ADMIN_SOURCE)), f"{jars(version)}/*"])
        command, _ = java_command(version, folder, "Admin", [], TEST_JAVA.flags, heap_mb=64, classpath=classpath)
        super().__init__(f"mqadmin {version}", command, folder)

    def run(self, *arguments: str, seconds: float = 60.0) -> str:
        """Run one sub-command and return all that it printed."""
        self._commands += 1
        self.write_line(arguments)

        def output() -> Event | None:
            found = self.happened("output")
            return found[self._commands - 1] if len(found) >= self._commands else None

        return str(self.wait(" ".join(arguments), output, seconds=seconds)["text"])


def content(event: Event) -> tuple[str, str, int, str]:
    """Return what must survive the journey: key, tag, body length and body hash."""
    return event["key"], event["tag"], event["size"], event["hash"]
