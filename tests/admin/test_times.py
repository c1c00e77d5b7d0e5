"""Times as commands read them."""

from __future__ import annotations

import os
import time
from unittest import TestCase

from rmq.admin.times import parse_time


class TimeTests(TestCase):
    def setUp(self) -> None:
        zone = os.environ.get("TZ")
        self.addCleanup(self.use_zone, zone)
        self.use_zone("Asia/Shanghai")

    def use_zone(self, zone: str | None) -> None:
        os.environ.pop("TZ", None)
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()

    def test_zones(self) -> None:
        """Without a zone it is UTC on every machine; mqadmin's form with a # is local time, as mqadmin reads it."""
        noon_utc_ms = 1_769_860_800_000
        for text in (
            "2026-01-31T12:00",
            "2026-01-31T13:00+01:00",
            str(noon_utc_ms),
            "2026-01-31#20:00:00:000",
        ):
            self.assertEqual(parse_time(text), noon_utc_ms, text)
        self.assertEqual(parse_time("2026-01-31#20:00:00:007"), noon_utc_ms + 7)

    def test_nonsense(self) -> None:
        """What is no time is a ValueError."""
        for text in ("soon", "2026-01-31#", "2026-01-31#20:00", "-1", ""):
            with self.assertRaises(ValueError, msg=text):
                parse_time(text)
