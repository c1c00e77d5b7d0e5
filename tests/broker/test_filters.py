"""Subscriptions: expressions, hash codes, and which index units they match."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.filters import SubscriptionError, completed, is_tag_type, parse_subscription, tag_matcher
from rmq.wire.api.common import SubscriptionData

#: Java's "TagA".hashCode() and "TAGA".hashCode()
TAG_A, TAG_UPPER = 2598919, 2567175


class ParseTests(SynchronousTestCase):
    def test_everything(self) -> None:
        """Nothing, an empty text and * select every message."""
        for text in (None, "", "*"):
            subscription = parse_subscription("T", text, None)
            self.assertEqual((subscription.sub_string, subscription.code_set), ("*", set()))
            self.assertIsNone(tag_matcher(subscription))

    def test_tags(self) -> None:
        """Tags are separated by || and trimmed; each is known by its Java hash code."""
        subscription = parse_subscription("T", " TagA || TAGA ||TagA|| ", "TAG")
        self.assertEqual((subscription.tags_set, subscription.code_set), ({"TagA", "TAGA"}, {TAG_A, TAG_UPPER}))

    def test_only_separators(self) -> None:
        """|| alone selects nothing and is refused, as in Apache."""
        self.assertRaises(SubscriptionError, parse_subscription, "T", "||", None)

    def test_sql_keeps_its_text(self) -> None:
        """SQL92 is told from tags, and needs an expression."""
        self.assertFalse(is_tag_type(parse_subscription("T", "a > 3", "SQL92").expression_type))
        self.assertRaises(SubscriptionError, parse_subscription, "T", None, "SQL92")


class MatchTests(SynchronousTestCase):
    def test_by_hash_code(self) -> None:
        """An index unit matches when its tags code is one of the subscription's."""
        matches = tag_matcher(parse_subscription("T", "TagA", None))
        assert matches is not None
        self.assertTrue(matches(TAG_A))
        self.assertFalse(matches(TAG_UPPER))
        self.assertFalse(matches(0))

    def test_class_filter_mode(self) -> None:
        """Class filters are applied elsewhere: every unit matches."""
        self.assertIsNone(tag_matcher(SubscriptionData(topic="T", sub_string="x", class_filter_mode=True)))

    def test_clients_that_send_no_codes(self) -> None:
        """Python's heartbeat has the expression only; its messages are found all the same."""
        self.assertEqual(completed(SubscriptionData(topic="T", sub_string="TagA||TAGA")).code_set, {TAG_A, TAG_UPPER})
        self.assertEqual(completed(SubscriptionData(topic="T", sub_string="x", tags_set={"TagA"})).code_set, {TAG_A})
        everything = SubscriptionData(topic="T", sub_string="*")
        self.assertIs(completed(everything), everything)
        sql = SubscriptionData(topic="T", sub_string="a > 3", expression_type="SQL92")
        self.assertIs(completed(sql), sql)
