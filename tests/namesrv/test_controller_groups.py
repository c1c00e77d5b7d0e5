"""The rules by which a controller's groups change."""

from __future__ import annotations

from unittest import TestCase

import attrs

from rmq.namesrv.controller.groups import Group, Member, choose_master
from rmq.namesrv.controller.live import CLOSED_TIMEOUT_MS, DEFAULT_TIMEOUT_MS, FRESH_MS, Hearing
from rmq.remoting.responders import Refuse
from rmq.wire.codes import ResponseCode


def group() -> Group:
    """Three brokers; 1 is master in epoch 4, 1 and 2 are in the set."""
    return Group(
        cluster_name="c",
        broker_name="g",
        members={n: Member(address=f"10.0.0.{n}:10911", check_code=str(n)) for n in (1, 2, 3)},
        master_id=1,
        master_epoch=4,
        sync_state_set=frozenset({1, 2}),
        sync_state_set_epoch=7,
    )


class GroupTests(TestCase):
    def refused(
        self, wanted: set[int], code: int, *, master_id: int = 1, master_epoch: int = 4, epoch: int = 7
    ) -> None:
        with self.assertRaises(Refuse) as caught:
            group().with_set(wanted, master_id=master_id, master_epoch=master_epoch, set_epoch=epoch)
        self.assertEqual(caught.exception.code, code)

    def test_each_fence_holds_alone(self) -> None:
        """One wrong field is enough: another master, another epoch of it, another epoch of the set."""
        self.refused({1, 2, 3}, ResponseCode.CONTROLLER_INVALID_MASTER, master_id=2)
        self.refused({1, 2, 3}, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, master_epoch=3)
        self.refused({1, 2, 3}, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, master_epoch=5)
        self.refused({1, 2, 3}, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, epoch=6)
        self.refused({1, 2, 3}, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, epoch=8)
        self.refused({1, 2, 4}, ResponseCode.CONTROLLER_INVALID_REPLICAS)
        self.refused({2}, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
        self.refused({1, 2}, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)

    def test_each_change_of_the_set_and_of_the_master_has_its_epoch(self) -> None:
        changed = group().with_set({1, 3}, master_id=1, master_epoch=4, set_epoch=7)
        self.assertEqual((changed.sync_state_set, changed.sync_state_set_epoch), (frozenset({1, 3}), 8))
        elected = group().with_master(2)
        self.assertEqual((elected.master_id, elected.master_epoch), (2, 5))
        self.assertEqual((elected.sync_state_set, elected.sync_state_set_epoch), (frozenset({2}), 8))
        headless = group().without_master()
        self.assertEqual((headless.master_id, headless.master_epoch), (None, 5))

    def test_a_broker_that_may_lack_messages_leaves_the_set(self) -> None:
        """And one that was not in it makes requests to count it void."""
        after = group().after_restart(2, may_lack_messages=True)
        self.assertEqual((after.sync_state_set, after.sync_state_set_epoch, after.master_id), (frozenset({1}), 8, 1))
        after = group().after_restart(3, may_lack_messages=True)
        self.assertEqual((after.sync_state_set, after.sync_state_set_epoch), (frozenset({1, 2}), 8))
        self.assertEqual(group().after_restart(2, may_lack_messages=False), group())
        alone = attrs.evolve(group(), sync_state_set=frozenset({1})).after_restart(1, may_lack_messages=True)
        self.assertEqual((alone.sync_state_set, alone.master_id, alone.master_epoch), (frozenset({1}), None, 5))

    def test_a_request_from_before_a_cleaning_is_void(self) -> None:
        """A forgotten broker that takes its id again is not counted by a request from before."""
        cleaned = group().without_members([3])
        assert cleaned is not None
        self.assertEqual((cleaned.master_id, cleaned.sync_state_set), (1, frozenset({1, 2})))
        again = cleaned.with_member(3, "other")
        with self.assertRaises(Refuse) as caught:
            again.with_set({1, 2, 3}, master_id=1, master_epoch=4, set_epoch=7)
        self.assertEqual(caught.exception.code, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH)
        headless = group().without_members([1])
        assert headless is not None
        self.assertEqual((headless.master_id, headless.master_epoch), (None, 5))
        self.assertEqual((headless.sync_state_set, headless.sync_state_set_epoch), (frozenset({2}), 8))
        self.assertIsNone(group().without_members([1, 2, 3]))

    def test_nobody_outside_of_the_set_is_elected(self) -> None:
        headless = group().without_master()
        outside = {3: (9, 9, 0)}
        self.assertIsNone(choose_master(headless, outside, wanted=None, unclean=False))
        self.assertIsNone(choose_master(headless, outside, wanted=3, unclean=False))
        self.assertEqual(choose_master(headless, outside, wanted=None, unclean=True), 3)
        self.assertEqual(choose_master(headless, {1: (4, 10, 0), 2: (4, 11, 0)}, wanted=None, unclean=True), 2)


class HearingTests(TestCase):
    def test_a_candidate_was_heard_a_moment_ago(self) -> None:
        """A silent one is not lost yet, but may be dead."""
        hearing, key = Hearing(), ("g", 1)
        channel = object()

        def hear(now_ms: int) -> None:
            hearing.hear(key, channel, now_ms, timeout_ms=None, epoch=1, end_offset=2, priority=3)

        hear(0)
        self.assertEqual(hearing.candidates("g", [1, 2], FRESH_MS - 1), {1: (1, 2, 3)})
        self.assertEqual(hearing.candidates("g", [1, 2], FRESH_MS), {})
        self.assertFalse(hearing.is_lost(key, DEFAULT_TIMEOUT_MS - 1))
        self.assertTrue(hearing.is_lost(key, DEFAULT_TIMEOUT_MS))
        hear(20_000)
        self.assertEqual(hearing.closed(channel, 20_001), [key])
        self.assertEqual(hearing.candidates("g", [1], 20_002), {})
        self.assertFalse(hearing.is_lost(key, 20_000 + CLOSED_TIMEOUT_MS))
        self.assertTrue(hearing.is_lost(key, 20_001 + CLOSED_TIMEOUT_MS))
