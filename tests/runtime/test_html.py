"""The small pieces of HTML pages."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.http.html import (
    Section,
    esc,
    facts,
    form,
    joined,
    link,
    page,
    paragraph,
    settings,
    size_text,
    span_text,
    table,
    tagged,
    time_text,
)

EVIL = "<b>\"'&\x00\ud800"


class EscapeTests(SynchronousTestCase):
    def test_everything_is_escaped_once(self) -> None:
        """Each piece escapes text, and what is markup already goes in as it is."""
        for made in (
            esc(EVIL),
            tagged("bad", EVIL),
            link("/x", EVIL, name="<&>"),
            joined([EVIL, 1]),
            table([EVIL], [[EVIL]]),
            facts([(EVIL, EVIL)]),
            form("/x", "name", EVIL, EVIL),
            page(EVIL, {"/": EVIL}, [Section(EVIL, esc(EVIL))], at_ms=0),
        ):
            self.assertNotIn("<b>", made)
            self.assertNotIn("&amp;lt;", made)
            self.assertIn("&lt;b&gt;", made)

    def test_links_quote_their_query(self) -> None:
        """A name with signs of its own reaches the page that it leads to."""
        self.assertEqual(link("/t", "x", name='a&b="c" d'), '<a href="/t?name=a%26b%3D%22c%22+d">x</a>')

    def test_numbers(self) -> None:
        """Whole numbers are grouped, nothing is a dash."""
        self.assertEqual([esc(1234567), esc(0), esc(None), esc(""), esc(1.5)], ["1,234,567", "0", "-", "-", "1.5"])

    def test_secrets_of_a_configuration(self) -> None:
        """Values of passwords and secret keys stay where they are."""
        text = "listenPort=1\ntls.key.Password=geheim\nadminSecretKey=x=y\naccessTokenFile=\n"
        self.assertEqual(
            settings(text),
            "<pre>listenPort=1\ntls.key.Password=(not shown)\nadminSecretKey=(not shown)\naccessTokenFile=\n</pre>\n",
        )

    def test_long_text(self) -> None:
        """A name of a megabyte is cut off."""
        self.assertEqual(esc("x" * 1_000_000), "x" * 500 + "…")

    def test_paragraph(self) -> None:
        """Empty parts of a paragraph are nothing, not a dash."""
        self.assertEqual(paragraph("a", "", None, 1), "<p>a1</p>\n")

    def test_empty_table(self) -> None:
        """A table without rows says so."""
        self.assertIn("nobody", table(["A"], [], nothing="nobody"))
        self.assertNotIn("<table", table(["A"], []))


class TextTests(SynchronousTestCase):
    def test_times(self) -> None:
        """Times are UTC, to the millisecond."""
        self.assertEqual(time_text(1_800_000_000_007), "2027-01-15 08:00:00.007 UTC")

    def test_spans(self) -> None:
        """Spans have one or two units."""
        cases = {
            0: "0 ms",
            999: "999 ms",
            1_000: "1.0 s",
            59_900: "59.9 s",
            61_000: "1 min 1 s",
            3_600_000: "1 h 0 min",
            90_000_000: "1 d 1 h",
            -5_000: "-5.0 s",
        }
        self.assertEqual({ms: span_text(ms) for ms in cases}, cases)

    def test_sizes(self) -> None:
        """Sizes are in powers of 1024."""
        cases = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 3 << 40: "3.0 TiB", 3 << 30: "3.0 GiB"}
        self.assertEqual({size: size_text(size) for size in cases}, cases)

    def test_times_beyond_all_years(self) -> None:
        """Peers send times, too: what no calendar has is shown as a number."""
        for at_ms in (2**63 - 1, -(2**63), 253_402_300_800_000, -62_135_596_800_001):
            self.assertEqual(time_text(at_ms), f"{at_ms} ms")
        self.assertEqual(time_text(253_402_300_799_000), "9999-12-31 23:59:59.000 UTC")


class LinkTests(SynchronousTestCase):
    def test_hostile_names(self) -> None:
        """A name of a megabyte and one that UTF-8 cannot write make links, too."""
        self.assertEqual(link("/t", "x", name="n" * 1_000_000), f'<a href="/t?name={"n" * 500}">x</a>')
        self.assertEqual(link("/t", "x", name="\ud800"), '<a href="/t?name=%3F">x</a>')
