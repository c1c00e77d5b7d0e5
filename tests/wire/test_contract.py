"""Tests of the one declaration per request code."""

from __future__ import annotations

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.contract import contract, declared


class AskHeader(msgspec.Struct, rename="camel", kw_only=True):
    topic_name: str


class AskReply(msgspec.Struct, rename="camel", kw_only=True):
    count: int


class AskBody(msgspec.Struct):
    names: list[str]


ASK = contract(90_001, AskHeader, body=AskBody, reply=AskReply, reply_body=bytes, answers=(19, 20))
BARE = contract(90_002)


class ContractTests(SynchronousTestCase):
    def test_all_parts(self) -> None:
        """A contract holds the classes that were declared; 0 is always an answer."""
        self.assertEqual((ASK.code, ASK.header, ASK.body), (90_001, AskHeader, AskBody))
        self.assertEqual((ASK.reply, ASK.reply_body, ASK.answers), (AskReply, bytes, {0, 19, 20}))

    def test_no_parts(self) -> None:
        """A request may carry nothing and be answered with nothing."""
        self.assertEqual((BARE.header, BARE.body, BARE.reply, BARE.reply_body), (None, None, None, None))
        self.assertEqual(BARE.answers, {0})

    def test_declared_once(self) -> None:
        """A code that is declared twice is found at import, and the first declaration stays."""
        error = self.assertRaises(ValueError, contract, 90_001)
        self.assertIn("90001", str(error))
        self.assertIs(declared()[90_001], ASK)

    def test_classes_that_are_no_headers(self) -> None:
        """A header that cannot go into extFields is found at import, and leaves no declaration."""
        error = self.assertRaises(TypeError, contract, 90_003, AskBody)
        self.assertIn("AskBody.names", str(error))
        self.assertRaises(TypeError, contract, 90_003, dict)
        self.assertRaises(TypeError, contract, 90_003, reply=AskBody)
        self.assertNotIn(90_003, declared())

    def test_the_table_is_a_copy(self) -> None:
        """Nobody can change the declarations by the table that they get."""
        declared().clear()
        self.assertIn(90_001, declared())
