"""The pages of the site: which links they keep."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


class LinkTests(SynchronousTestCase):
    def test_links(self) -> None:
        """A link inside of docs/ stays one, from the README too; one that leaves docs/ becomes its text."""
        spec = importlib.util.spec_from_file_location("site_pages", PACKAGING / "site_pages.py")
        assert spec is not None and spec.loader is not None
        pages = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pages)
        for folder, link, made in (
            ("docs", "[a](admin.md#times)", "[a](admin.md#times)"),
            ("docs", "[a](../README.md)", "[a](index.md)"),
            ("docs", "[a](../tests/real/README.md)", "a"),
            ("docs", "[a](make_metrics.py)", "a"),
            ("docs", "[a](https://example.org/x.md) [b](#c)", "[a](https://example.org/x.md) [b](#c)"),
            ("", "| [docs/admin.md](docs/admin.md) | x |", "| [docs/admin.md](admin.md) | x |"),
            ("", "[b](bench/README.md)", "b"),
        ):
            self.assertEqual(pages.in_docs(link, folder=folder), made)
