"""What an operator reads."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import shutil
import sys
import tempfile
from typing import Any

from twisted.logger import LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha import follower, hub
from rmq.remoting import client, server
from rmq.runtime import logs
from rmq.runtime.config import ConfigError
from rmq.runtime.http.quiet import QuietSite
from rmq.runtime.logs import (
    MAX_QUIET_KEYS,
    LogThrottle,
    Rotation,
    TextLines,
    default_path,
    json_line,
    make_observer,
    parse_rotation,
    repeats,
)


def event(text: str = "broker {name} is gone", **fields: Any) -> dict[str, Any]:
    whole = {"log_format": text, "log_level": LogLevel.warn, "log_namespace": "rmq.namesrv", "log_time": 1.0625}
    return {**whole, **fields}


class TextLinesTests(SynchronousTestCase):
    def test_one_line(self) -> None:
        """Time to the millisecond, level, name space, text."""
        line = str(TextLines().format(event(name="a")))
        self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.062 WARN rmq\.namesrv broker a is gone\n$")

    def test_time_moves_on(self) -> None:
        """Events of other seconds get other times, also when time goes back."""
        lines = TextLines()
        times = [str(lines.format(event(name="a", log_time=when)))[:23] for when in (5.0, 6.5, 5.0)]
        self.assertEqual(times[0], times[2])
        self.assertEqual((times[0][-6:], times[1][-6:]), ("05.000", "06.500"))

    def test_nobody_can_forge_a_line(self) -> None:
        """Text with line ends, from whoever, stays recognisable as one event."""
        line = TextLines().format(event(name="x\n2026-11-21 10:00:00.000 INFO rmq all is well"))
        self.assertEqual([part[:1] for part in str(line).splitlines()][1:], ["\t"])

    def test_traceback(self) -> None:
        """A failure brings its traceback."""
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            line = str(TextLines().format(event("unexpected", log_failure=Failure())))
        self.assertIn("RuntimeError: broken", line)

    def test_empty(self) -> None:
        """An event without text is no line."""
        self.assertIsNone(TextLines().format({"log_level": LogLevel.info}))

    def test_event_without_level_or_namespace(self) -> None:
        """Foreign events still become lines."""
        self.assertIn(" INFO - hello\n", str(TextLines().format({"log_format": "hello", "log_time": 1.0})))


class JsonLineTests(SynchronousTestCase):
    def test_fields(self) -> None:
        """One object a line, with the text and the fields it was made of."""
        line = str(json_line(event(name="a", offset=5, peer=object, message=1)))
        self.assertEqual(line.count("\n"), 1)
        value = json.loads(line)
        self.assertEqual(value["offset"], 5)
        self.assertEqual(
            {key: value[key] for key in ("time", "level", "namespace", "message", "name")},
            {
                "time": 1.0625,
                "level": "warn",
                "namespace": "rmq.namesrv",
                "message": "broker a is gone",
                "name": "a",
            },
        )
        self.assertIsInstance(value["peer"], str)

    def test_empty(self) -> None:
        """An event without text is no line."""
        self.assertIsNone(json_line({"log_level": LogLevel.info}))


class ObserverTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="rmq-logs-")
        self.addCleanup(shutil.rmtree, self.root)

    def read(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_file(self) -> None:
        """Events go to the file, whose folder is made."""
        path = f"{self.root}/logs/broker.log"
        make_observer(path=path, json=False, level="info")(event(name="a"))
        self.assertIn("broker a is gone", self.read(path))

    def test_a_crash_goes_to_the_present_file(self) -> None:
        """What Python says when it dies of a signal goes to the log, after a rotation to the new file."""
        places: list[str] = []
        self.patch(faulthandler, "enable", lambda file: places.append(os.readlink(f"/proc/self/fd/{file.fileno()}")))
        self.patch(faulthandler, "disable", lambda: places.append("nowhere"))
        file = logs.RoleLogFile.fromFullPath(f"{self.root}/a.log")
        file.write("x\n")
        file.rotate()
        file.close()
        self.assertEqual(places, [f"{self.root}/a.log", f"{self.root}/a.log", "nowhere"])

    def test_console(self) -> None:
        """None and - mean standard output."""
        for path in (None, "-"):
            out = io.StringIO()
            self.patch(sys, "stdout", out)
            make_observer(path=path, json=True, level="info")(event(name="a"))
            self.assertIn('"message": "broker a is gone"', out.getvalue())

    def test_levels(self) -> None:
        """Levels below the asked one are left out; a name space may have its own."""
        path = f"{self.root}/a.log"
        observer = make_observer(path=path, json=False, level="WARN, rmq.store=debug")
        observer(event("info", log_level=LogLevel.info))
        observer(event("warn", log_level=LogLevel.warn))
        observer(event("store", log_level=LogLevel.debug, log_namespace="rmq.store.groupcommit"))
        self.assertEqual([line.split()[-1] for line in self.read(path).splitlines()], ["warn", "store"])

    def test_wrong_level(self) -> None:
        """A level that does not exist is named, with those that do."""
        for level in ("loud", "rmq=loud", ""):
            error = self.assertRaises(ConfigError, make_observer, path=None, json=False, level=level)
            self.assertIn("critical", str(error))

    def test_impossible_file(self) -> None:
        """A log file that cannot be opened is an error with its path."""
        error = self.assertRaises(ConfigError, make_observer, path=self.root, json=False, level="info")
        self.assertIn(self.root, str(error))

    def test_rotation(self) -> None:
        """A full file makes room for a new one, and old ones are limited."""
        rotation = Rotation(size_bytes=100, old_files=3)
        observer = make_observer(path=f"{self.root}/a.log", json=False, level="info", rotation=rotation)
        for number in range(60):
            observer(event("event {number} with some text", number=number))
        names = sorted(os.listdir(self.root))
        self.assertEqual(names, ["a.log", *(f"a.log.{number}" for number in range(1, 4))])
        self.assertIn("event 59", self.read(f"{self.root}/a.log"))

    def test_another_program_rotates(self) -> None:
        """A file that was moved, deleted or truncated (logrotate, rm) is made again at the next line."""
        path = f"{self.root}/a.log"
        observer = make_observer(path=path, json=False, level="info", rotation=Rotation(size_bytes=10_000))
        observer(event("first"))
        os.rename(path, f"{self.root}/moved")
        observer(event("second"))
        os.unlink(path)
        observer(event("third"))
        os.truncate(path, 0)
        observer(event("fourth"))
        self.assertEqual([line.split()[-1] for line in self.read(f"{self.root}/moved").splitlines()], ["first"])
        self.assertEqual([line.split()[-1] for line in self.read(path).splitlines()], ["fourth"])

    def test_the_folder_is_gone(self) -> None:
        """Without its folder the log goes on in the file that is open, and is there again with the folder."""
        folder = f"{self.root}/logs"
        observer = make_observer(path=f"{folder}/a.log", json=False, level="info")
        observer(event("first"))
        os.rename(folder, f"{self.root}/away")
        observer(event("second"))
        os.mkdir(folder)
        observer(event("third"))
        lines = self.read(f"{self.root}/away/a.log").splitlines()
        self.assertEqual([line.split()[-1] for line in lines], ["first", "second"])
        self.assertIn("third", self.read(f"{folder}/a.log"))

    def test_folder_that_cannot_be_written(self) -> None:
        """A file in a folder without room for rotated files is refused at once, not after the first 100 MB."""
        with open(f"{self.root}/a.log", "w", encoding="utf-8"):
            pass
        self.patch(os, "access", lambda path, mode: path != self.root)
        error = self.assertRaises(ConfigError, make_observer, path=f"{self.root}/a.log", json=False, level="info")
        self.assertEqual(
            str(error), f"log file {self.root}/a.log: its directory is not writable, so the file could not be rotated"
        )


class PlaceTests(SynchronousTestCase):
    def test_default(self) -> None:
        """Where users of Apache look first, or in the folder that was given."""
        self.patch(os, "environ", {**os.environ, "HOME": "/home/me"})
        self.assertEqual(default_path("namesrv.log"), "/home/me/logs/rocketmqlogs/namesrv.log")
        self.assertEqual(default_path("broker.log", "/var/log/rmq"), "/var/log/rmq/broker.log")

    def test_rotation_options(self) -> None:
        """Sizes are bytes or have a factor; without options five files of 100 MB are kept."""
        self.assertEqual(parse_rotation(None, None), Rotation(size_bytes=100_000_000, old_files=5))
        self.assertEqual(parse_rotation("10M", "20"), Rotation(size_bytes=10_000_000, old_files=20))
        self.assertEqual(
            [parse_rotation(size, None).size_bytes for size in ("20k", "20000", "1G")], [20000, 20000, 10**9]
        )

    def test_wrong_rotation(self) -> None:
        """Nonsense names the option."""
        for size in ("", "M", "ten", "10 MB", "-1", "9k", "1.5M"):
            self.assertIn("--logFileSize", str(self.assertRaises(ConfigError, parse_rotation, size, None)))
        for count in ("", "0", "x", "1001", "-1"):
            self.assertIn("--logFileCount", str(self.assertRaises(ConfigError, parse_rotation, None, count)))


class ControlTests(SynchronousTestCase):
    def test_control_characters(self) -> None:
        """Whatever else begins a line, moves the cursor or cannot be written is shown as its escape; a tab stays."""
        name = "x\r2026 INFO rmq all\x0bis\x1b[2Kwell\x85\u2028\ud800\ttab ü"
        line = str(TextLines().format(event(name=name)))
        self.assertEqual(len(line.splitlines()), 1)
        self.assertIn("x\\r2026 INFO rmq all\\x0bis\\x1b[2Kwell\\x85\\u2028\\ud800\ttab ü is gone", line)


class LogThrottleTests(SynchronousTestCase):
    def test_repeats(self) -> None:
        """A line says how many like it were suppressed; the first one does not speak of none."""
        self.assertEqual((repeats(0), repeats(3)), ("", " (3 identical messages suppressed)"))

    def test_once_a_minute(self) -> None:
        """The same line is written once a minute, with how many were suppressed; another key is not affected."""
        throttle = LogThrottle()
        self.assertEqual(throttle.admit("x", 0), 0)
        self.assertIsNone(throttle.admit("x", 1))
        self.assertIsNone(throttle.admit("x", 59_999))
        self.assertEqual(throttle.admit("y", 5), 0)
        self.assertEqual(throttle.admit("x", 60_000), 2)

    def test_bounded(self) -> None:
        """Many different keys take no memory; the newest are remembered."""
        throttle = LogThrottle()
        for number in range(10 * MAX_QUIET_KEYS):
            throttle.admit(number, number)
        self.assertIsNone(throttle.admit(10 * MAX_QUIET_KEYS - 1, 10 * MAX_QUIET_KEYS))
        self.assertEqual(throttle.admit(0, 10 * MAX_QUIET_KEYS), 0)
        self.assertEqual(len(throttle._written), MAX_QUIET_KEYS)


class QuietFactoryTests(SynchronousTestCase):
    def test_no_line_per_factory(self) -> None:
        """Twisted logs the start and the stop of each factory that is noisy: two lines for every dial of a peer."""
        for factory in (server._Connections, client._Outgoing, hub.MasterHub, follower._Attempts, QuietSite):
            self.assertFalse(factory.noisy, factory)
