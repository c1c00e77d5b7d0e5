"""Where the lean reactor may do otherwise than Twisted's epoll reactor, and how results of the two are compared."""

from __future__ import annotations

from collections.abc import Mapping

PASSED, FAILED, SKIPPED, KNOWN_BAD = "passed", "failed", "skipped", "known bad (todo)"

#: tests that are skipped with any reactor: (module, class of ReactorBuilder tests, method) -> why
SKIPPED_TESTS: dict[tuple[str, str, str], str] = {
    ("twisted.internet.test.test_fdset", "ReactorFDSetTestsBuilder", "test_lostFileDescriptor"): (
        "no epoll reactor can pass it, since the kernel forgets a closed descriptor; Twisted skips it for the class"
        " named EPollReactor and for no subclass of it"
    ),
}

_NO_PREFIX = "reading without callWithLogger is what lean means: there is no system prefix while a protocol reads"

#: end of a test's name -> why the lean reactor's outcome may be another one than that of Twisted's epoll reactor
MAY_DIFFER: dict[str, str] = {
    "TCP4ClientTestsBuilder_ReactorTests.test_logPrefix": _NO_PREFIX,
    "TCP6ClientTestsBuilder_ReactorTests.test_logPrefix": _NO_PREFIX,
    "SSLClientTestsMixin_ReactorTests.test_logPrefix": _NO_PREFIX,
    "StartTLSClientTestsMixin_ReactorTests.test_logPrefix": _NO_PREFIX,
}


def differences(stock: Mapping[str, str], lean: Mapping[str, str]) -> list[str]:
    """
    Return a line for each test whose outcome with the lean reactor is another one than with the stock reactor.

    Both map test names to outcomes. What fails with both is no difference; what only one of them ran is one, whatever
    its name; otherwise tests in MAY_DIFFER are left out.
    """
    lines = []
    for name in sorted(stock.keys() | lean.keys()):
        before, after = stock.get(name, "not run"), lean.get(name, "not run")
        if before == after or (_may_differ(name) and "not run" not in (before, after)):
            continue
        lines.append(f"{name}: {before} with the stock reactor, {after} with rmq-lean")
    return lines


def permitted(stock: Mapping[str, str], lean: Mapping[str, str]) -> list[str]:
    """Return a line for each test that does differ and may, with the reason."""
    return [
        f"{name}: {stock[name]} with the stock reactor, {lean[name]} with rmq-lean: {why}"
        for name in sorted(stock.keys() & lean.keys())
        if stock[name] != lean[name] and (why := _may_differ(name))
    ]


def _may_differ(name: str) -> str | None:
    return next((why for end, why in MAY_DIFFER.items() if name.endswith(f".{end}")), None)
