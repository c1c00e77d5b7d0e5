"""Properties files, read as Java reads them."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.properties import ConfigError, decode_properties, format_properties, parse_properties

#: text -> entries, each as java.util.Properties loads it
CASES: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("\n\n  \t\n", {}),
    ("a=b", {"a": "b"}),
    ("a = b \n", {"a": "b "}),
    ("a:b\nc : d\n", {"a": "b", "c": "d"}),
    ("a b\n", {"a": "b"}),
    ("a\tb c\n", {"a": "b c"}),
    ("a==b\n", {"a": "=b"}),
    ("a=:b\n", {"a": ":b"}),
    ("a   =   b\n", {"a": "b"}),
    ("  a=b\n", {"a": "b"}),
    ("a\n", {"a": ""}),
    ("a=\n", {"a": ""}),
    ("a=1\na=2\n", {"a": "2"}),
    ("# comment\n! comment\na=b # no comment\n", {"a": "b # no comment"}),
    ("  # comment \\\na=b\n", {"a": "b"}),
    ("a=b\\\n   c\\\n   d\n", {"a": "bcd"}),
    ("a=b\\\n# no comment\n", {"a": "b# no comment"}),
    ("a=b\\\n\nc=d\n", {"a": "b", "c": "d"}),
    ("a=b\\\\\nc=d\n", {"a": "b\\", "c": "d"}),
    ("a=b\\\\\\\nc=d\n", {"a": "b\\c=d"}),
    ("a=b\\", {"a": "b"}),
    ("a\\\n  b=c\n", {"ab": "c"}),
    ("a\\=b\\:c\\ d=e\n", {"a=b:c d": "e"}),
    ('a=\\t\\n\\r\\f\\\\\\x\\"\n', {"a": '\t\n\r\f\\x"'}),
    ("a=\\u00e9\\u4e2D\n", {"a": "\u00e9\u4e2d"}),
    ("a=\\ud83d\\ude00\n", {"a": "\U0001f600"}),
    ("a=b\r\nc=d\re=f\n", {"a": "b", "c": "d", "e": "f"}),
    ("a=b\\\r\n  c\n", {"a": "bc"}),
    ("path=C:\\\\store\n", {"path": "C:\\store"}),
    ("namesrvAddr=a:1;b:2\n", {"namesrvAddr": "a:1;b:2"}),
    ("a=\u2028x\n", {"a": "\u2028x"}),
    ("messageDelayLevel=1s 5s 10s\n", {"messageDelayLevel": "1s 5s 10s"}),
]


class ParseTests(SynchronousTestCase):
    def test_as_java_reads_it(self) -> None:
        """Separators, comments, continuation lines and escapes mean what they mean in Java."""
        for text, entries in CASES:
            self.assertEqual(parse_properties(text, "test"), entries, repr(text))

    def test_broken_escape_names_source_and_line(self) -> None:
        """A \\u without four hexadecimal digits is an error with file and line."""
        for broken in ("\\u12", "\\u12g4", "\\u", "\\u+123"):
            error = self.assertRaises(ConfigError, parse_properties, f"ok=1\n\nkey={broken}\n", "etc/x.properties")
            self.assertIn("etc/x.properties, line 3", str(error))

    def test_value_without_key(self) -> None:
        """A line that begins with a separator is an error with file and line, where Java makes a key of nothing."""
        for line in ("=value", " : value", "="):
            self.assertIn("x, line 2", str(self.assertRaises(ConfigError, parse_properties, f"a=b\n{line}\n", "x")))

    def test_line_of_a_continued_entry(self) -> None:
        """The line that is named is the one where the entry begins."""
        error = self.assertRaises(ConfigError, parse_properties, "a=1\nb=\\\n\\\n\\u1\n", "x")
        self.assertIn("line 2", str(error))

    def test_binary_file(self) -> None:
        """A file that is no text is refused instead of giving strange keys."""
        error = self.assertRaises(ConfigError, decode_properties, b"PK\x03\x04\0\0\0", "x.zip")
        self.assertIn("x.zip, line 1", str(error))

    def test_encodings(self) -> None:
        """UTF-8 (with or without its mark) is read as such, anything else as ISO-8859-1, as Java does."""
        self.assertEqual(decode_properties("a=\u4e2d".encode(), "x"), {"a": "\u4e2d"})
        self.assertEqual(decode_properties("a=\u4e2d".encode("utf-8-sig"), "x"), {"a": "\u4e2d"})
        self.assertEqual(decode_properties(b"a=\xe9", "x"), {"a": "\u00e9"})

    def test_garbage(self) -> None:
        """Whatever the bytes, the answer is entries or a ConfigError with a line."""
        seed = 20261121
        rng = Random(seed)
        alphabet = "ab=: \\\n\r\tu0#!\0\u00e9"
        for _ in range(3000):
            text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(25)))
            try:
                entries = parse_properties(text, "garbage")
            except ConfigError as error:
                self.assertIn("garbage, line ", str(error), f"seed {seed}, text {text!r}")
            else:
                self.assertNotIn("", entries, f"seed {seed}, text {text!r}")


class FormatTests(SynchronousTestCase):
    def test_plain_values_stay_plain(self) -> None:
        """Addresses, paths and level lists are written as people write them."""
        entries = {"namesrvAddr": "a:1;b=2", "path": "/x/y", "messageDelayLevel": "1s 5s", "none": ""}
        self.assertEqual(format_properties(entries), "namesrvAddr=a:1;b=2\npath=/x/y\nmessageDelayLevel=1s 5s\nnone=\n")

    @settings(derandomize=True, database=None, deadline=None)
    @given(
        st.dictionaries(
            st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
            st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")),
        )
    )
    def test_reads_back(self, entries: dict[str, str]) -> None:
        """Whatever is written is read back the same."""
        self.assertEqual(parse_properties(format_properties(entries), "test"), entries)
