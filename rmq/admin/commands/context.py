"""``rmq-admin context``: clusters with a name; asks no server."""

from __future__ import annotations

import contextlib
import os

from rmq.admin.command import DIFFERENT, OK, Call, Outcome, addresses, argument, command, tabular
from rmq.admin.contexts import Context, ContextError, Contexts

NEW = argument("name", metavar="NAME")
NAME = argument("name", metavar="CONTEXT")


def _contexts() -> Contexts:
    return Contexts.of(os.environ)


@command(
    "context add",
    "write a context, or replace it: options that commands then take from it",
    NEW,
    argument("-n", "--namesrvAddr", dest="namesrv", required=True, type=addresses, metavar="HOST:PORT[;...]"),
    argument("-c", "--clusterName", metavar="CLUSTER", help="the cluster that commands mean without -c"),
    argument("--read-only", action="store_true", help="refuse every command that changes something"),
)
async def context_add(call: Call) -> Outcome:
    """``--tlsConfig``, ``--aclTools`` and ``--timeout`` of this command line belong to the context."""
    options = call.options
    context = Context(
        namesrv=";".join(options.namesrv),
        cluster=options.clusterName,
        tls_config=_absolute(options.given["tlsConfig"]),
        acl_tools=_absolute(options.given["aclTools"]),
        timeout=options.given["timeout"],
        read_only=options.read_only,
    )
    contexts = _contexts()
    before = None
    with contextlib.suppress(ContextError):
        before = contexts.load(options.name)
    contexts.save(options.name, context)
    if len(contexts.names()) == 1:
        contexts.use(options.name)
    in_use = contexts.in_use() == options.name
    text = f"context {options.name}: {context.namesrv}{', in use' if in_use else ''}"
    if before is not None and before != context:
        text += f"; it was {before.namesrv}{', read-only' if before.read_only else ''}"
    return Outcome(text=text, data={"name": options.name, "in_use": in_use, **_described(context)})


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _described(context: Context) -> dict[str, object]:
    return {name: getattr(context, name) for name in Context.__struct_fields__}


@command("context list", "list the contexts; * is the one in use")
async def context_list(call: Call) -> Outcome:
    """Status 2 when the file of one cannot be used; the others are listed."""
    contexts = _contexts()
    in_use = contexts.in_use()
    rows, status = [], OK
    for name in contexts.names():
        try:
            context = contexts.load(name)
        except ContextError as error:
            call.terminal.warn(f"rmq-admin: {error}")
            status = DIFFERENT
            continue
        rows.append((name, "*" if name == in_use else "", context.namesrv, context.cluster, context.read_only))
    columns = ("name", "in_use", "namesrv", "cluster", "read_only")
    nothing = "no context; make one with: rmq-admin context add NAME -n HOST:PORT"
    return tabular(columns, rows, nothing=nothing, status=status)


@command("context show", "show what a context says", NAME)
async def context_show(call: Call) -> Outcome:
    described = _described(_contexts().load(call.options.name))
    return tabular(("key", "value"), described.items(), nothing="")


@command("context use", "take this context from now on", NAME)
async def context_use(call: Call) -> Outcome:
    _contexts().use(call.options.name)
    return Outcome(text=f"context {call.options.name} is in use", data={"name": call.options.name})


@command("context remove", "remove a context; the files that it names stay", NAME)
async def context_remove(call: Call) -> Outcome:
    _contexts().remove(call.options.name)
    return Outcome(text=f"context {call.options.name} is removed", data={"name": call.options.name})
