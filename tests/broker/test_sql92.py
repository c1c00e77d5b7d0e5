"""SQL92 expressions: what they mean, by the answers of Apache's own compiler."""

from __future__ import annotations

import json
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.filters import SubscriptionError
from rmq.broker.sql92 import MAX_LENGTH, MAX_OPERATORS, compile_sql92
from rmq.wire.record import encode_properties

GOLDEN = Path(__file__).parent.parent / "golden" / "sql92-5.3.3.jsonl"


def selects(expression: str, **properties: str) -> bool:
    return compile_sql92(expression)(encode_properties(properties))


class Sql92Tests(SynchronousTestCase):
    def test_apaches_answers(self) -> None:
        """Recorded from 5.3.3: expressions with messages' properties, and which messages they select."""
        wrong = []
        for line in GOLDEN.read_text("utf-8").splitlines():
            row = json.loads(line)
            try:
                compiled = compile_sql92(row["expression"])
            except SubscriptionError:
                found = None
            else:
                found = [compiled(encode_properties(message)) for message in row.get("messages", ())]
            if found != row.get("selected"):
                wrong.append(f"{row['expression']}: {found} instead of {row.get('selected')}")
        self.assertEqual(wrong, [])

    def test_unknown_is_neither_true_nor_false(self) -> None:
        """A property that a message does not have makes a comparison unknown, and NOT leaves it so."""
        self.assertFalse(selects("a > 3"))
        self.assertFalse(selects("NOT (a > 3)"))
        self.assertTrue(selects("a > 3 OR b = 'x'", b="x"))
        self.assertFalse(selects("NOT (a > 3 AND b = 'x')", b="x"))
        self.assertTrue(selects("NOT (a > 3 AND b = 'x')", b="y"))
        self.assertTrue(selects("a IS NULL AND b IS NOT NULL", b="x"))

    def test_a_value_that_is_no_number(self) -> None:
        """Such a message is not selected, even when another side of OR is true behind it, as in Apache."""
        self.assertFalse(selects("a > 3 OR b = 'x'", a="many", b="x"))
        self.assertTrue(selects("b = 'x' OR a > 3", a="many", b="x"))
        self.assertFalse(selects("a = 3", a="3.0"))
        self.assertFalse(selects("a > 3", a="2147483648"))
        self.assertTrue(selects("a > 2147483647.5", a="2147483648"))
        self.assertTrue(selects("a > 2147483648", a="2147483649"))
        self.assertFalse(selects("a > 1", a=" 2"))
        self.assertTrue(selects("a > 1.0", a=" 2 "))

    def test_numbers_of_java(self) -> None:
        """They compare as Java's Double does: NaN is above all, 0.0 above -0.0; hexadecimal numbers count."""
        self.assertTrue(selects("a > 1e300", a="NaN"))
        self.assertTrue(selects("a = b", a="NaN", b="NaN"))
        self.assertTrue(selects("a >= b", a="NaN", b="NaN"))
        self.assertTrue(selects("a > b", a="0.0", b="-0.0"))
        self.assertTrue(selects("a > 7.5", a="0x1p3"))
        self.assertTrue(selects("a < 0.5", a="-0x1p99999"))
        self.assertTrue(selects("a > 9e99", a="Infinity"))

    def test_rest_of_an_expression(self) -> None:
        """As in Apache an expression ends where it cannot go on; the rest is remembered, for a warning."""
        compiled = compile_sql92("a = 1 b = 2")
        self.assertEqual((compiled.ignored, compiled("a\x011")), ("b = 2", True))
        self.assertEqual(compile_sql92("a = 1").ignored, "")

    def test_properties_as_stored(self) -> None:
        """The last of equal names counts, an empty value is none, and a name is not found inside another."""
        self.assertTrue(compile_sql92("a = 'y'")("a\x01x\x02a\x01y"))
        self.assertTrue(compile_sql92("a IS NULL")("aa\x01x\x02ba\x01y\x02a\x01\x02"))
        self.assertTrue(compile_sql92("TAGS IN ('t', 'u') AND a$_1 = 'it''s'")("TAGS\x01t\x02a$_1\x01it's\x02"))

    def test_limits(self) -> None:
        """Whatever has more operators or characters than a pull can bear is refused; parentheses are free."""
        wide = [f"a = {number}" for number in range(MAX_OPERATORS)]
        alternatives = " OR ".join(wide[: MAX_OPERATORS // 2])
        self.assertTrue(selects(alternatives, a=str(MAX_OPERATORS // 2 - 1)))
        self.assertFalse(selects(alternatives, a=str(MAX_OPERATORS)))
        nots = MAX_OPERATORS // 2 - 1
        for deep in ("(" * 5000 + "a = 1" + ")" * 5000, "NOT (" * nots + "NOT (a = 1)" + ")" * nots):
            self.assertTrue(selects(deep, a="1"))
        for large in (
            " OR ".join(wide),
            "NOT (" * MAX_OPERATORS + "a = 1" + ")" * MAX_OPERATORS,
            f"a = '{'x' * MAX_LENGTH}'",
        ):
            error = self.assertRaises(SubscriptionError, compile_sql92, large)
            self.assertIn("an expression has at most", str(error))

    def test_mistakes(self) -> None:
        """The text is Apache's: it names the place and what might stand there."""
        for expression, text in {
            "a > ": 'ParseException: Encountered "<EOF>" at line 1, column 4.\nWas expecting one of:\n    "NOT" ...',
            "a = AND b = 1": 'ParseException: Encountered " "AND" "AND "" at line 1, column 5.',
            "a IN 'x'": 'ParseException: Encountered " <STRING_LITERAL> "\\\'x\\\' "" at line 1, column 6.',
            "a = ;": "TokenMgrError: Lexical error at line 1, column 5.",
            "5": "ParseException: Expression will not result in a boolean value: 5",
            "a > 'x'": "RuntimeException: Value ''x'' cannot be compared.",
            "a BETWEEN 9 AND 1": "left value(9) must less than or equal to right value(1)",
            "5 IN ('x')": "Expected a property for In expression, got: 5",
            "a = 9223372036854775808": 'NumberFormatException: For input string: "9223372036854775808"',
        }.items():
            error = self.assertRaises(SubscriptionError, compile_sql92, expression)
            self.assertIn(text, str(error))
