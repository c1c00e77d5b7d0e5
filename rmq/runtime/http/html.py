"""Small HTML pages that also read well in a terminal browser. Text is escaped unless it is :class:`Markup` already."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

import attrs

from rmq.runtime.properties import without_secrets

_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
nav a { margin-right: 1.1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top;
  overflow-wrap: break-word; max-width: 32rem; font-variant-numeric: tabular-nums; }
th { font-weight: 600; } table.facts th { width: 16rem; }
.wide { overflow-x: auto; } .note { color: #777; } .whole { white-space: nowrap; } table + table { margin-top: .6rem; }
.bad { color: #c22; font-weight: 600; } .good { color: #2a7d2a; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; white-space: pre-wrap; }
input, button { font: inherit; }
"""


#: longest text of one element; peers choose names, which may have megabytes
MAX_TEXT_CHARS = 500


class Markup(str):
    """Text that is HTML and goes into a page as it is."""

    __slots__ = ()


Text = str | int | float | None


@attrs.frozen
class Section:
    """A heading and what stands below it."""

    title: str
    body: Markup


def esc(value: Text) -> Markup:
    """Return text as HTML; whole numbers get separators of thousands, None is a dash."""
    if isinstance(value, Markup):
        return value
    if value is None or value == "":
        return Markup("-")
    if isinstance(value, int) and not isinstance(value, bool):
        return Markup(f"{value:,}")
    text = str(value)
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS] + "…"
    return Markup(html.escape(text))


def tagged(kind: str, value: Text) -> Markup:
    """Return text in a span of class ``kind``: ``bad``, ``good``, ``note``, or ``whole`` for no line breaks."""
    return Markup(f'<span class="{kind}">{esc(value)}</span>')


def link(path: str, text: Text, **query: str) -> Markup:
    """Return a link to ``path`` with ``query``."""
    values = {name: value[:MAX_TEXT_CHARS] for name, value in query.items()}
    target = f"{path}?{urlencode(values, errors='replace')}" if values else path
    return Markup(f'<a href="{html.escape(target)}">{esc(text)}</a>')


def joined(parts: Iterable[Text], between: str = ", ") -> Markup:
    """Return parts in a row."""
    return Markup(html.escape(between).join(esc(part) for part in parts) or "-")


def paragraph(*parts: Text) -> Markup:
    """Return a paragraph; empty parts are left out."""
    return Markup(f"<p>{''.join(esc(part) for part in parts if part not in (None, ''))}</p>\n")


def preformatted(text: str) -> Markup:
    return Markup(f"<pre>{html.escape(text)}</pre>\n")


def settings(properties: str) -> Markup:
    """Return a properties text with the values of passwords and secret keys left out."""
    return preformatted(without_secrets(properties))


def table(head: Sequence[str], rows: Iterable[Sequence[Text]], *, nothing: str = "none") -> Markup:
    """Return a table, or the text ``nothing`` when it has no rows."""
    body = "".join(f"<tr>{''.join(f'<td>{esc(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    if not body:
        return paragraph(tagged("note", nothing))
    top = "".join(f"<th>{esc(cell)}</th>" for cell in head)
    return Markup(f'<div class="wide"><table>\n<tr>{top}</tr>\n{body}</table></div>\n')


def facts(entries: Iterable[tuple[str, Text]]) -> Markup:
    """Return names and values as a table of two columns."""
    rows = "".join(f"<tr><th>{esc(name)}</th><td>{esc(value)}</td></tr>\n" for name, value in entries)
    return Markup(f'<table class="facts">\n{rows}</table>\n')


def form(path: str, name: str, label: str, value: str = "") -> Markup:
    """Return a form of one field that asks ``path`` with it."""
    return Markup(
        f'<form action="{html.escape(path)}" method="get"><p><label>{esc(label)} '
        f'<input name="{html.escape(name)}" value="{html.escape(value)}" size="40"></label> '
        "<button>Show</button></p></form>\n"
    )


def page(title: str, navigation: Mapping[str, str], sections: Iterable[Section], *, at_ms: int) -> str:
    """Return a whole page; ``navigation`` maps paths to names, ``at_ms`` is the time that it shows."""
    links = " ".join(link(path, name) for path, name in navigation.items())
    body = "".join(f"<h2>{esc(section.title)}</h2>\n{section.body}" for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>\n<style>\n{_STYLE}</style></head>\n<body>\n"
        f'<h1>{html.escape(title)}</h1>\n<p class="note">as of {time_text(at_ms)}</p>\n<nav>{links}</nav>\n'
        f"{body}</body></html>\n"
    )


def time_text(at_ms: int) -> str:
    """Return a time as ``2026-11-21 10:00:00.123 UTC``; as a number if it is out of range, because peers send times."""
    try:
        when = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
    return f"{when:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03} UTC"


def span_text(ms: float) -> str:
    """Return a span of time for people: ``350 ms``, ``12.3 s``, ``4 min 10 s``, ``3 h 5 min``, ``2 d 4 h``."""
    if ms < 0:
        return f"-{span_text(-ms)}"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = int(ms / 1000)
    if seconds < 60:
        return f"{ms / 1000:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def size_text(size_bytes: float) -> str:
    """Return a size for people: ``12 B``, ``3.4 MiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
