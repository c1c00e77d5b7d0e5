"""A client program of another language behind a pipe: each line that it prints is an event."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class PipedClient:
    """
    One client process; every event it prints stays in ``events``. It ends when its stdin does.

    AssertionError carries the end of the client's log.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, folder / "client.log"
        self._log = self.log.open("ab")
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self.events: list[Event] = []
        self._commands = 0
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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

    def write_line(self, value: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    # -- commands, of programs that take {"id": n, "do": command, ...}; they may overlap

    def begin(self, do: str, **arguments: object) -> int:
        """Give the client a command and return its id."""
        self._commands += 1
        self.write_line({"id": self._commands, "do": do, **arguments})
        return self._commands

    def finish(self, command: int, *, seconds: float = 120.0) -> Event:
        """Wait for the end of a command and return its last event; a failed one raises."""

        def ending() -> Event | None:
            return next((e for e in self.events if e.get("id") == command), None)

        event = self.wait(f"the end of command {command}", ending, seconds=seconds)
        assert event["event"] == "done", f"{self.name}: {event}\n{self.tail()}"
        return event

    def call(self, do: str, *, seconds: float = 120.0, **arguments: object) -> Event:
        return self.finish(self.begin(do, **arguments), seconds=seconds)

    # -- events

    def wait(self, what: str, condition: Callable[[], Event | None], *, seconds: float = 60.0) -> Event:
        """Wait until ``condition`` (asked after every event) returns something."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := condition()):
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    why = "it ended" if self._ended else f"not within {seconds:.0f} s"
                    raise AssertionError(f"{self.name}, {what}: {why}\n{self.tail()}")
                self._changed.wait(left)
            return found

    def wait_for_count(self, what: str, count: Callable[[], int], wanted: int, *, seconds: float = 60.0) -> None:
        """Wait until ``count`` reaches ``wanted``; the error says how far it came."""
        try:
            self.wait(what, lambda: {"count": count()} if count() >= wanted else None, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{count()} of {wanted}: {error}") from None

    def happened(self, kind: str) -> list[Event]:
        """Return the events of a kind so far, in their order."""
        return [e for e in list(self.events) if e.get("event") == kind]

    def tail(self, lines: int = 30) -> str:
        self._log.flush()
        text = self.log.read_text("utf-8", "replace").splitlines()[-lines:]
        trouble = [json.dumps(e) for e in self.events if e.get("event") in ("trouble", "failed")][-5:]
        return "\n".join([f"..... {self.log}", *text, *trouble])

    def kill(self) -> None:
        """End the process without a goodbye to anybody."""
        self._process.kill()
        self._process.wait()

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
