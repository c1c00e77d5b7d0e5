"""``python -m rmq.admin`` and ``rmq-admin``."""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from rmq.admin.main import Result, parse, run
from rmq.runtime.platform import real_platform


def main() -> None:
    """Run the command line and end the process with its exit status."""
    options = parse(sys.argv[1:])
    results: list[Result] = []

    def ask(reactor: Any) -> Deferred[None]:
        return Deferred.fromCoroutine(run(real_platform(reactor), options)).addCallback(results.append)

    try:
        react(ask)
    except SystemExit as ended:
        if ended.code:
            raise
    result = results[0]
    if result.err:
        print(result.err, file=sys.stderr)
    try:
        if result.out:
            print(result.out, flush=True)
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stderr.close()
    sys.exit(result.status)


if __name__ == "__main__":
    main()
