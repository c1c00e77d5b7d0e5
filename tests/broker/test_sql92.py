"""SQL92 expressions: what they mean, by the answers of Apache's own compiler; and their programs for compiled pulls."""

from __future__ import annotations

import json
import random
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import sql92
from rmq.broker.filters import SubscriptionError
from rmq.broker.sql92 import MAX_LENGTH, MAX_OPERATORS, compile_sql92
from rmq.store import layout, reader
from rmq.wire.record import encode_properties, encode_record
from tests.expressions import WORDS_OF_5, Generator
from tests.needs import need_compiled
from tests.seeds import SEED

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


class KeptExpressionsTests(SynchronousTestCase):
    def test_bounds(self) -> None:
        """Expressions are compiled once while they are used; what is kept of them is bounded by their length."""
        self.patch(sql92, "MAX_KEPT", 20)
        kept = sql92.KeptExpressions()
        first, second = kept("a = 1111"), kept("b = 2222")
        self.assertIs(kept("a = 1111"), first)
        kept("c = 3333")
        self.assertIs(kept("a = 1111"), first)
        self.assertIsNot(kept("b = 2222"), second)
        self.assertIsNot(kept("d = 1 OR d = 2 OR d = 3"), kept("d = 1 OR d = 2 OR d = 3"))
        self.assertRaises(SubscriptionError, kept, "a = ")
        self.assertLessEqual(sum(map(len, kept._kept)), 20)


class ProgramTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._pick")
        self.asked = 0

    def selected(self, expression: str, messages: list[bytes]) -> tuple[list[bool], list[bool]]:
        """Return which messages the compiled loop takes, and which the filter itself."""
        compiled = compile_sql92(expression)
        units, window, places = b"", b"", []
        for number, properties in enumerate(messages):
            record = encode_record(
                topic=b"T",
                queue_id=0,
                body=b"x" * (number % 3),
                properties=properties,
                born_timestamp=0,
                store_timestamp=0,
                born_host=(bytes(16 if number % 2 else 4), 1),
                store_host=(bytes(4), 1),
            )
            units += layout.CQ_UNIT.pack(len(window), len(record), 0)
            places.append(record)
            window += record

        def asked(properties: str) -> bool:
            self.asked += 1
            return compiled(properties)

        limits = (1000, 1 << 20, 1000, 1 << 20)
        found = reader._compiled.pick(
            units,
            0,
            len(messages),
            window,
            0,
            0,
            len(messages),
            len(window),
            1 << 20,
            limits,
            1000,
            None,
            asked,
            compiled.program,
        )
        assert found is not None
        records, taken, rest = found[0], [], found[0]
        for record in places:
            taken.append(rest.startswith(record))
            rest = rest[len(record) :] if taken[-1] else rest
        self.assertEqual((rest, sum(taken)), (b"", found[2]), f"{expression} {records!r}")
        return taken, [compiled(properties.decode("utf-8", "replace")) for properties in messages]

    def test_same_as_the_filter(self) -> None:
        """Programs and filters select the same messages; most of those of usual expressions need no call."""
        rng = random.Random(SEED)
        generator = Generator(rng, WORDS_OF_5)
        programs = 0
        for _ in range(3000):
            expression = generator.expression()
            try:
                programs += compile_sql92(expression).program is not None
            except SubscriptionError:
                continue
            messages = [encode_properties(generator.message()).encode() for _ in range(6)]
            messages = [self.spoilt(rng, each) for each in messages]
            taken, expected = self.selected(expression, messages)
            self.assertEqual(taken, expected, f"seed {SEED}: {expression} {messages}")
        self.assertGreater(programs, 200)

    def spoilt(self, rng: random.Random, properties: bytes) -> bytes:
        """Return properties as some client or no client writes them."""
        kind = rng.randrange(12)
        if kind == 0:
            return properties + b"\x02a\x01\x02"
        if kind == 1:
            return b"a\x017\x02" + properties
        if kind == 2 and properties:
            at = rng.randrange(len(properties))
            return properties[:at] + rng.choice((b"\x01", b"\x02", b"\xff", b"a\x01")) + properties[at:]
        if kind == 3:
            return properties.replace(b"\x02", b"\x02\x02")
        if kind == 4:  # more than the compiled loop keeps the places of
            many = b"".join(b"x%d\x01%d\x02" % (number, number) for number in range(rng.choice((29, 31, 32, 33, 70))))
            return rng.choice(
                (many + properties, properties + b"\x02" + many, properties + b"\x02" + many + properties)
            )
        return properties

    def test_usual_expressions_need_no_call(self) -> None:
        """The filter itself is asked about nothing where properties are plain numbers and texts."""
        messages = [
            encode_properties({"a": str(number), "price": f"{number}.25", "region": "north"}).encode()
            for number in range(20)
        ]
        for expression, count in {
            "a BETWEEN 3 AND 7": 5,
            "a > 3 AND region = 'north' AND price < 10.5": 7,
            "NOT (a = 1) AND (region IN ('south', 'north') OR b IS NULL)": 19,
            "region NOT IN ('north') OR region CONTAINS 'rt' AND a NOT BETWEEN 0 AND 18": 1,
            "region STARTSWITH 'no' AND region ENDSWITH 'th' AND b IS NULL AND TRUE": 20,
            "b > 3 OR b = 'x' OR b IN ('x')": 0,
        }.items():
            taken, expected = self.selected(expression, messages)
            self.assertEqual((taken, sum(taken), self.asked), (expected, count, 0), expression)

    def test_unusual_values(self) -> None:
        """The filter is asked about digits of other scripts, long numbers, empty values and the like."""
        for value in (
            "٣",
            "1" * 19,
            "",
            "1e3",
            "0.0",
            "NaN",
            "000000000000000000000000000001",
            "1.0000000000000000001",
        ):
            messages = [b"", f"a\x01{value}".encode(), f"a\x01{value}\x02b\x01c".encode()]
            for expression in ("a = 3", "a > 1.5", "a IS NULL", "a <> 0.5 OR a IS NOT NULL", "a = 1111111111111111111"):
                taken, expected = self.selected(expression, messages)
                self.assertEqual(taken, expected, f"{expression} {value}")
        self.assertGreater(self.asked, 20)
