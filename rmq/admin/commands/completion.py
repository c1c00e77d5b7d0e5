"""``rmq-admin completion``: what a shell needs to complete commands, options and the names of a cluster."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator

from twisted.internet.defer import Deferred, TimeoutError

from rmq.admin.command import NAMESRV, Call, Outcome, WrongUse, argument, command, tabular
from rmq.admin.contexts import Contexts
from rmq.admin.lookups import DLQ_PREFIX, RETRY_PREFIX, ask_namesrv, cluster_info
from rmq.errors import RequestFailed
from rmq.wire.api.routes import GET_ALL_TOPIC_LIST_FROM_NAMESERVER

#: how long TAB waits for names
NAMES_TIMEOUT_S = 1.0

#: a shell gets no name with other characters, whatever a server says
NAME = re.compile(r"[A-Za-z0-9_.:%|\[\]-]+")

#: metavar of an argument -> the names that it takes
_KINDS = {
    "TOPIC": "topics",
    "GROUP": "groups",
    "FROM": "groups",
    "TO": "groups",
    "CLUSTER": "clusters",
    "BROKER_NAME": "brokers",
    "CONTEXT": "contexts",
}
_ADDRESSES = "addresses"

#: runs `completion names`: bash with the word, the others choose by themselves; all with the line, for its options
_FUNCTIONS = {
    "bash": '_rmq_admin_names_{0}() {{ rmq-admin completion names {0} -- "$1" "$COMP_LINE" 2>/dev/null </dev/null; }}',
    "zsh": (
        "_rmq_admin_names_{0}() {{ local -a found; found=("
        '${{(f)"$(rmq-admin completion names {0} -- "" "${{(j: :)words}}" 2>/dev/null </dev/null)"}}); '
        'compadd "$@" -a found; }}'
    ),
    "fish": (
        'function _rmq_admin_names_{0}; rmq-admin completion names {0} -- "" (commandline -cp | string collect) '
        "2>/dev/null </dev/null; end"
    ),
}


@command("completion bash", 'print the completion for bash: eval "$(rmq-admin completion bash)"')
async def completion_bash(call: Call) -> Outcome:
    return _script("bash")


@command("completion zsh", 'print the completion for zsh: eval "$(rmq-admin completion zsh)"')
async def completion_zsh(call: Call) -> Outcome:
    return _script("zsh")


@command("completion fish", "print the completion for fish: rmq-admin completion fish | source")
async def completion_fish(call: Call) -> Outcome:
    return _script("fish")


def _script(shell: str) -> Outcome:
    try:
        # Lazy import: an extra, and the names do without.
        import shtab
    except ImportError:
        raise WrongUse("it needs an extra: pip install 'txrocketmq[completion]'") from None
    # Lazy import: the command line imports this module when it is called.
    from rmq.admin.main import whole_parser

    parser = whole_parser()
    for action in _actions(parser):
        kind = _kind_of(action)
        if kind is not None:
            action.complete = {  # type: ignore[attr-defined]
                "bash": f"_rmq_admin_names_{kind}",
                "zsh": f"_rmq_admin_names_{kind}",
                "fish": f"(_rmq_admin_names_{kind})",
                "preamble": {name: text.format(kind) for name, text in _FUNCTIONS.items()},
            }
        elif action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        if isinstance(action.metavar, str) and ":" in action.metavar:
            action.metavar = action.dest  # zsh takes what comes after a colon for an action
    script = shtab.complete(parser, shell)
    return Outcome(text=script, data=script)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Return the arguments of a parser and of those below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _kind_of(action: argparse.Action) -> str | None:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if "-b" in action.option_strings and metavar.startswith("HOST:PORT"):
        return _ADDRESSES
    return _KINDS.get(metavar)


@command(
    "completion names",
    "print the names of a kind that begin with a word, for completion; nothing when no server answers within a second",
    NAMESRV,
    argument("kind", choices=(*sorted({*_KINDS.values(), _ADDRESSES}),)),
    argument("word", nargs="?", default="", metavar="WORD", help="how they begin"),
    argument("typed", nargs="?", metavar="LINE", help="a command line: options in it say which servers to ask"),
)
async def completion_names(call: Call) -> Outcome:
    """What goes wrong is no matter for a person who is typing another command: then there are no names."""
    asked = Deferred.fromCoroutine(_names(call)).addTimeout(NAMES_TIMEOUT_S, call.platform.reactor)
    try:
        found = await asked
    except (RequestFailed, TimeoutError):
        found = ()
    names = sorted({name for name in found if name.startswith(call.options.word) and NAME.fullmatch(name)})
    outcome = tabular(("name",), [(name,) for name in names], nothing="")
    return Outcome(text="\n".join(names), data=outcome.data, table=outcome.table)


async def _names(call: Call) -> Iterable[str]:
    kind = call.options.kind
    if kind == "contexts":
        return Contexts.of(os.environ).names()
    if kind in ("topics", "groups"):
        topics = (await ask_namesrv(call, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)).body.topic_list
        of_groups = (RETRY_PREFIX, DLQ_PREFIX)
        if kind == "topics":
            return [name for name in topics if not name.startswith(of_groups)]
        return [name.partition("%")[2].partition("%")[2] for name in topics if name.startswith(of_groups)]
    info = await cluster_info(call)
    if kind == "clusters":
        return info.cluster_addr_table
    if kind == "brokers":
        return info.broker_addr_table
    return [addr for broker in info.broker_addr_table.values() for addr in broker.broker_addrs.values()]
