"""``python -m rmq.admin`` and ``rmq-admin``."""

from __future__ import annotations

import signal
import sys

from rmq.admin.overview import overview


def main() -> None:
    """Run the command line and end the process with its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported; `terminal` sets its own
    if sys.argv[1:] in (["-h"], ["--help"]):
        overview().parse_args(sys.argv[1:])
    # Lazy import: all that follows needs Twisted, which takes longer than to print this help.
    from rmq.admin.terminal import main

    main()


if __name__ == "__main__":
    main()
