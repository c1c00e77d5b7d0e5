"""Tests of the numbers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.codes import MQ_VERSION, LanguageCode, RequestCode, ResponseCode, named, version_desc


class CodesTests(SynchronousTestCase):
    def test_known_numbers(self) -> None:
        """The codes that every client uses have Apache's numbers."""
        self.assertEqual(RequestCode.SEND_MESSAGE_V2, 310)
        self.assertEqual(RequestCode.PULL_MESSAGE, 11)
        self.assertEqual(RequestCode.GET_ROUTEINFO_BY_TOPIC, 105)
        self.assertEqual(RequestCode.POP_MESSAGE, 200050)
        self.assertEqual(ResponseCode.TOPIC_NOT_EXIST, 17)
        self.assertEqual(ResponseCode.FLUSH_SLAVE_TIMEOUT, 12)
        self.assertEqual(LanguageCode.NODE_JS, 13)

    def test_names(self) -> None:
        """A request code has its name beside it, an unknown one none."""
        self.assertEqual((named(907), named(92_002)), ("907 (GET_BROKER_HA_STATUS)", "92002"))

    def test_names_are_unique(self) -> None:
        """No number has two names, so that a log line names one thing."""
        self.assertEqual(len(RequestCode.__members__), len(set(RequestCode)))
        self.assertEqual(len(ResponseCode.__members__), len(set(ResponseCode)))


class VersionTests(SynchronousTestCase):
    def test_released_versions(self) -> None:
        """Every version that clients and brokers in use send has Apache's name."""
        expected = {
            28: "V3_0_7_SNAPSHOT",
            37: "V3_0_11",
            62: "V3_1_8_SNAPSHOT",
            121: "V3_4_9",
            213: "V4_0_0",
            232: "V4_1_0_SNAPSHOT",
            233: "V4_1_0",
            253: "V4_2_0",
            313: "V4_5_0",
            317: "V4_5_2",
            333: "V4_6_0",
            355: "V4_7_1",
            373: "V4_8_0",
            399: "V4_9_3",
            401: "V4_9_4",
            407: "V4_9_7",
            409: "V4_9_8",
            412: "V5_0_0_SNAPSHOT",
            413: "V5_0_0",
            441: "V5_1_4",
            477: "V5_3_2",
            479: "V5_3_3",
        }
        self.assertEqual({version: version_desc(version) for version in expected}, expected)

    def test_ours(self) -> None:
        """We call ourselves 4.9.8."""
        self.assertEqual(version_desc(MQ_VERSION), "V4_9_8")

    def test_out_of_range(self) -> None:
        """Any number has a name."""
        self.assertEqual(version_desc(612), "HIGHER_VERSION")
        self.assertEqual(version_desc(2**31), "HIGHER_VERSION")
        self.assertEqual(version_desc(611), "V5_9_9")
        self.assertEqual(version_desc(0), "V3_0_0")
        self.assertEqual(version_desc(-5), "V3_0_0")

    def test_no_two_versions_share_a_name(self) -> None:
        """Names tell versions apart from 3.0.1 on."""
        names = [version_desc(version) for version in range(16, 613)]
        self.assertEqual(len(set(names)), len(names))
