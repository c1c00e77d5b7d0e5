"""A site of twisted.web that logs nothing of its own."""

from __future__ import annotations

from typing import Any

from twisted.web.server import Site


class QuietSite(Site):
    """A site without access log, and so without Twisted's timer of one second for it."""

    noisy = False

    def startFactory(self) -> None:
        """Nothing to open."""

    def stopFactory(self) -> None:
        """Nothing to close."""

    def log(self, request: Any) -> None:
        """Requests are not logged."""
