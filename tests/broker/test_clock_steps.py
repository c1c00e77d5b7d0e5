"""A broker whose wall clock is set by ten minutes, there and back, while clients are at work."""

from __future__ import annotations

import json

from rmq.broker.sessions import MEMBER_EXPIRY_MS
from rmq.runtime.clock import now_ms
from tests.broker.harness import OneBrokerCase, RawClient, heartbeat, pull_ext, send_ext

STEP_S = 600.0
#: with the bit that lets a pull wait
SUSPEND = 6


class ClockStepTests(OneBrokerCase):
    def step(self, seconds: float) -> None:
        self.one.node.step_clock(seconds)

    def beat(self, client: RawClient, name: str) -> None:
        self.assertEqual(client.ask(34, None, heartbeat(name, "CG", "T", producer="PG")).code, 0)

    def ids(self) -> list[str]:
        answer = self.one.connect().ask(38, {"consumerGroup": "CG"})
        return list(json.loads(answer.body or b"{}").get("consumerIdList", []))

    def test_members_stay(self) -> None:
        """Neither a step forward nor one back ends the connection of a client that sends its heartbeats."""
        for step_s in (STEP_S, -2 * STEP_S):
            self.beat(self.client, "c1")
            self.step(step_s)
            self.one.world.run_for(25)
            self.assertEqual((self.ids(), self.client.closed), (["c1"], False))

    def test_silence_is_told_after_a_step_back(self) -> None:
        """A client without heartbeats is dropped after its two minutes, although the clock went back meanwhile."""
        self.beat(self.client, "c1")
        self.step(-STEP_S)
        self.one.world.run_for(MEMBER_EXPIRY_MS / 1000 + 11)
        self.assertEqual((self.ids(), self.client.closed), ([], True))

    def test_heartbeats_are_shown_in_the_time_of_now(self) -> None:
        """What an operator is told of a member's last heartbeat fits the clock as it is set now."""
        self.beat(self.client, "c1")
        self.one.world.run_for(10)
        self.step(STEP_S)
        answer = self.client.ask(328)
        told_ms = json.loads(answer.body or b"")["data"]["PG"][0]["lastUpdateTimestamp"]
        self.assertLess(abs(now_ms(self.one.service.clock) - 10_000 - told_ms), 1000)

    def lock(self, client_id: str) -> list[object]:
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        body = json.dumps({"consumerGroup": "CG", "clientId": client_id, "mqSet": [queue]}).encode()
        return list(json.loads(self.client.ask(41, None, body).body or b"")["lockOKMQSet"])

    def test_locks_stay(self) -> None:
        """A step forward takes no queue from the client that consumes it in order; a step back does not prolong it."""
        self.assertEqual(len(self.lock("c1")), 1)
        self.step(STEP_S)
        self.one.world.run_for(15)
        self.assertEqual((len(self.lock("c2")), len(self.lock("c1"))), (0, 1))
        self.step(-2 * STEP_S)
        self.one.world.run_for(61)
        self.assertEqual(len(self.lock("c2")), 1)

    def test_delayed_messages_come_in_time(self) -> None:
        """A delayed message, and so a retry, comes after its delay, not ten minutes early or late."""
        for number, step_s in enumerate((STEP_S, -2 * STEP_S)):
            self.assertEqual(self.client.ask(310, send_ext(props="DELAY\x012")).code, 0)
            self.one.world.run_for(1)
            self.step(step_s)
            self.one.world.run_for(3)
            self.assertEqual(self.one.service.store.max_offset("T", 0), number)
            self.one.world.run_for(2)
            self.assertEqual(self.one.service.store.max_offset("T", 0), number + 1)

    def test_figures_of_the_runtime(self) -> None:
        """Neither the time since the start nor rates jump with the wall clock; the start is told in the time of now."""
        self.assertEqual(self.client.ask(310, send_ext()).code, 0)
        self.one.world.run_for(70)
        self.step(-STEP_S)
        for _ in range(30):
            self.assertEqual(self.client.ask(310, send_ext()).code, 0)
        self.one.world.run_for(30)
        table = json.loads(self.client.ask(28).body or b"")["table"]
        self.assertIn("0 hours, 1 minutes, 4", table["runtime"])
        self.assertLess(abs(now_ms(self.one.service.clock) - 100_000 - int(table["bootTimestamp"])), 1000)
        minute = float(table["putTps"].split()[1])
        self.assertAlmostEqual(minute, 0.5, delta=0.02)
        stats = json.loads(self.client.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}).body or b"")
        self.assertEqual(stats["statsMinute"]["sum"], 30)

    def test_pulls_wait_as_long_as_they_asked_for(self) -> None:
        """A waiting pull is not answered by a step forward, and not held for ten minutes by a step back."""
        self.assertEqual(self.client.ask(310, send_ext()).code, 0)
        for step_s in (STEP_S, -2 * STEP_S):
            opaque = self.client.post(11, pull_ext(sys_flag=SUSPEND, offset=1))
            self.one.world.run_for(1)
            self.step(step_s)
            self.one.world.run_for(10)
            self.assertIsNone(self.client.answer(opaque))
            self.one.world.run_for(6)
            answer = self.client.answer(opaque)
            assert answer is not None
            self.assertEqual(answer.code, 19)
