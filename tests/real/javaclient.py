"""An unmodified Java client of a given RocketMQ version, driven through a pipe (see java/Client.java)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.real.peers import CACHE, jars, require_apache

SOURCE = Path(__file__).parent / "java" / "Client.java"
Event = dict[str, Any]

TAGS = ("TagA", "TagB", "标签", "Tag-C")


def compiled(version: str) -> Path:
    """Return the folder of the client's classes for ``version``; compiled once per source text, in the cache."""
    require_apache(version)
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    target = CACHE / version / f"client-{digest}"
    if not target.exists():
        scratch = CACHE / version / f"client-{digest}.{os.getpid()}"
        command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars(version)}/*", "-d"]
        command += [str(scratch), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"javac for {version}:\n{done.stdout}{done.stderr}"
        try:
            scratch.rename(target)
        except OSError:  # another run was faster
            shutil.rmtree(scratch, ignore_errors=True)
    return target


class JavaClient:
    """
    One client process; every event it prints stays in ``events``.

    Commands may overlap: ``begin`` returns an id for ``finish``. AssertionError carries the end of the client's log.
    """

    def __init__(self, version: str, namesrv: str, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.version, self.log = version, folder / "client.log"
        flags = ["-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        flags += ["-Dfile.encoding=UTF-8", f"-Duser.home={folder}"]
        classpath = f"{compiled(version)}{os.pathsep}{jars(version)}/*"
        self._log = self.log.open("ab")
        self._process = subprocess.Popen(
            ["java", *flags, "-cp", classpath, "Client", namesrv],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._ended = False
        self._next_id = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # a library printed something
                self._log.write(line)
                continue
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def begin(self, do: str, **arguments: object) -> int:
        """Give the client a command and return its id."""
        self._next_id += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": self._next_id, "do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return self._next_id

    def finish(self, command: int, *, seconds: float = 120.0) -> Event:
        """Wait for the end of a command and return its last event; a failed one raises."""

        def ending() -> Event | None:
            return next((e for e in self.events if e.get("id") == command), None)

        event = self.wait(f"the end of command {command}", ending, seconds=seconds)
        assert event["event"] == "done", f"client {self.version}: {event}\n{self.tail()}"
        return event

    def call(self, do: str, *, seconds: float = 120.0, **arguments: object) -> Event:
        return self.finish(self.begin(do, **arguments), seconds=seconds)

    def wait(self, what: str, condition: Callable[[], Event | None], *, seconds: float = 60.0) -> Event:
        """Wait until ``condition`` (asked after every event) returns something."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := condition()):
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    why = "it ended" if self._ended else f"not within {seconds:.0f} s"
                    raise AssertionError(f"client {self.version}, {what}: {why}\n{self.tail()}")
                self._changed.wait(left)
            return found

    def wait_for_count(self, what: str, count: Callable[[], int], wanted: int, *, seconds: float = 60.0) -> None:
        """Wait until ``count`` reaches ``wanted``; the error says how far it came."""
        try:
            self.wait(what, lambda: {"count": count()} if count() >= wanted else None, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{count()} of {wanted}: {error}") from None

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
    ) -> int:
        """
        Send ``count`` messages ``how``: "sync", "async", "oneway", "batch", or "mixed" (the acknowledged ways in turn).

        Message number i has the key ``prefix-i``. What fails is repeated up to ``attempts`` times.
        """
        return self.begin(
            "send", topic=topic, how=how, count=count, prefix=prefix, first=first, sizes=list(sizes), tags=list(tags),
            attempts=attempts, timeoutMs=timeout_ms,
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

    def consume(self, group: str, topic: str, member: str, expression: str = "*") -> None:
        """Start a push consumer; what it receives appears as "got" events of ``member``."""
        self.call("consume", group=group, topic=topic, member=member, expression=expression)

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

    # -- the end

    def tail(self, lines: int = 30) -> str:
        self._log.flush()
        text = self.log.read_text("utf-8", "replace").splitlines()[-lines:]
        trouble = [json.dumps(e) for e in self.events if e.get("event") in ("trouble", "failed")][-5:]
        return "\n".join([f"..... {self.log}", *text, *trouble])

    def close(self) -> None:
        """End the client: its stdin is closed, it shuts its producers and consumers down; killed when it lingers."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(10)
        self._log.close()


def content(event: Event) -> tuple[str, str, int, str]:
    """Return what must survive the journey: key, tag, body length and body hash."""
    return event["key"], event["tag"], event["size"], event["hash"]
