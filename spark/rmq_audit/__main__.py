"""``rmq-audit``, ``python -m rmq_audit``, and the file that spark-submit is given."""

from __future__ import annotations

import os
import sys
import traceback

#: the help where the packages that the real one needs are missing
WITHOUT_EXTRAS = """\
usage: rmq-audit [-h] COMMAND ...

Check that the stores of RocketMQ brokers are complete and that their replicas agree: compare two stores, check one,
audit a whole cluster, or watch it.

This needs extra packages: pip install 'txrocketmq[audit-local]' on one machine, 'txrocketmq[audit]' for Spark. With
them this text names all options."""


def main() -> None:
    """Run the command line; the process exits with its status."""
    _find_packages()
    try:
        from rmq_audit.cli.commands import EXIT_CRASH, EXIT_USAGE
        from rmq_audit.cli.commands import main as run
    except ImportError as error:
        if sys.argv[1:] in (["-h"], ["--help"]):
            print(WITHOUT_EXTRAS)
            sys.exit(0)
        print(
            f"rmq-audit: {error}; the audit needs its extra packages: pip install 'txrocketmq[audit-local]', or "
            "'txrocketmq[audit]' for Spark",
            file=sys.stderr,
        )
        sys.exit(64)
    try:
        status = run(sys.argv[1:])
    except BrokenPipeError:
        status = EXIT_USAGE
    except Exception:  # noqa: BLE001 (an escaping exception would exit with 1, which means "warnings")
        traceback.print_exc()
        print(
            "rmq-audit: this is a defect of the audit, not of your stores; please report it with the lines above",
            file=sys.stderr,
        )
        status = EXIT_CRASH
    sys.exit(status)


def _find_packages() -> None:
    """As a script (spark-submit), look for packages beside this folder and above it, and not inside it."""
    if __package__:
        return
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    beside = os.path.dirname(here)
    checkout = os.path.dirname(beside)
    sys.path[:0] = [beside, *([checkout] if os.path.isdir(os.path.join(checkout, "rmq")) else [])]


if __name__ == "__main__":
    main()
