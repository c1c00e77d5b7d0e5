"""Windows that share one buffer, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.frames import Frames
from rmq_audit.worker.lentwindow import LentWindow, split_window
from rmq_audit.worker.location import ReadError
from twisted.trial.unittest import SynchronousTestCase


class _Mapping(bytes):
    """Bytes of which the last must not be searched, for a search may look at one byte more."""

    def find(self, *where: Any) -> int:
        _, _, end = where
        assert end < len(self), f"the last of {len(self)} bytes is searched, too"
        return super().find(*where)


class LentWindowTests(SynchronousTestCase):
    path: Path

    @pytest.fixture(autouse=True)
    def _take_folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "segment"
        self.data = bytes(range(256)) * 5000
        self.path.write_bytes(self.data)

    def window(self, begin: int, end: int, size: int | None = None) -> LentWindow:
        return LentWindow(self.file(size), 7_000_000 + begin, 7_000_000 + end)

    def file(self, size: int | None = None) -> LogFile:
        held = size or len(self.data)
        return LogFile(path=str(self.path), start=7_000_000, size_bytes=held, limit=7_000_000 + held)

    def test_the_same_bytes_as_any_window(self) -> None:
        """Whatever was in the buffer before, a window holds the bytes of its place, also when it grows."""
        for begin, end in ((0, 1_000_000), (300, 900), (1_279_000, 1_280_000), (5, 400_000), (0, 1)):
            lent = self.window(begin, end)
            plain = Window(self.file(), 7_000_000 + begin, 7_000_000 + end)
            for further in (0, 10_000, 900_000, 10_000_000):
                reach = min(7_000_000 + end + further, 7_000_000 + len(self.data))
                self.assertEqual((lent.reach(reach), plain.reach(reach)), (True, True))
                self.assertEqual((lent.data[:], lent.end, lent.read_bytes), (plain.data, plain.end, plain.read_bytes))
                self.assertEqual(lent.data.find(b"\x07\x08", 3), plain.data.find(b"\x07\x08", 3))
            self.assertFalse(lent.reach(7_000_001 + len(self.data)))
            lent.release()

    def test_the_buffer_is_handed_on(self) -> None:
        """Two windows in turn have one buffer; two at a time have two, and a forgotten view keeps its bytes."""
        first = self.window(0, 500_000)
        buffer = first.data
        first.release()
        second, third = self.window(256, 500_256), self.window(1, 2)
        self.assertIs(second.data, buffer)
        self.assertIsNot(third.data, buffer)
        view = memoryview(second.data)
        second.release()
        fourth = self.window(0, 100)
        self.assertIsNot(fourth.data, buffer)
        self.assertEqual((bytes(view[:4]), fourth.data[:4]), (bytes(range(4)), bytes(range(4))))

    def test_no_search_to_the_last_byte(self) -> None:
        """CPython until 3.11.4 looks after the end of a mapping that is searched whole, and dies of it."""
        window = self.window(0, len(self.data))
        window.data = _Mapping(window.data[:])
        frames = Frames(window)
        self.assertEqual(frames.search(window.base, window.end), None)
        self.assertEqual(frames.search(window.end - 1, window.end), None)

    def test_files_that_cannot_be_read(self) -> None:
        """A file that is shorter than was said, or gone, is told with its path and the place."""
        error = self.assertRaises(ReadError, self.window, 1_000_000, 1_290_000, 1_300_000)
        self.assertEqual(str(error), f"{self.path}: shrank while it was read: ends at byte 1280000")
        self.path.unlink()
        error = self.assertRaises(ReadError, self.window, 10, 20)
        self.assertEqual(str(error), f"{self.path}: cannot be read at byte 10: No such file or directory")

    def test_released_on_every_way_out(self) -> None:
        """An error inside gives the buffer back all the same."""
        place = self.file(), 7_000_000, 7_000_100
        with split_window(*place) as window:
            first = window.data
        with self.assertRaises(ZeroDivisionError), split_window(*place) as window:
            self.assertIs(window.data, first)
            raise ZeroDivisionError
        with split_window(*place) as window:
            self.assertIs(window.data, first)
