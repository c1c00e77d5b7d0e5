"""``rmq-admin monitor``: groups that are behind, looked for again and again."""

from __future__ import annotations

import msgspec
from twisted.internet.task import deferLater

from rmq.admin.command import DIFFERENT, NAMESRV, OK, Call, Outcome, argument, command, seconds
from rmq.admin.commands.group import connection_of, groups_of, offsets_of
from rmq.admin.times import time_text
from rmq.client.flows.admin import lag_of
from rmq.errors import NotFound, RequestFailed


@command(
    "monitor",
    "print a line for each group that is behind, or that has messages and no member",
    NAMESRV,
    argument("--lag", type=int, default=100_000, metavar="N", help="messages behind (100000)"),
    argument(
        "--undone-time", type=float, default=600.0, metavar="SECONDS", help="the last consumed message is so old (600)"
    ),
    argument("--every", type=seconds, default=60.0, metavar="SECONDS", help="between two looks (60)"),
    argument("--once", action="store_true", help="look once; status 2 when there is something"),
    argument("--exec", dest="line", metavar="COMMAND", help="run this for each line, the line as input in JSON"),
)
async def monitor(call: Call) -> Outcome | None:
    """
    With ``-o json`` one object a line.

    A server that does not answer gives a line too, and so does a NameServer without brokers; it is asked again.
    """
    options = call.options
    while True:
        found = await _look(call)
        for one in found:
            await _report(call, one)
        if options.once:
            return Outcome(status=DIFFERENT if found else OK, text="" if found else "no group is behind", data=found)
        await deferLater(call.platform.reactor, options.every)


async def _look(call: Call) -> list[dict[str, object]]:
    now_ms = call.now_ms
    found = []
    try:
        groups = await groups_of(call)
    except (RequestFailed, NotFound) as error:
        return [_problem(now_ms, None, str(error))]
    for group in groups:
        try:
            found += await _problems_of(call, group, now_ms)
        except (RequestFailed, NotFound) as error:
            found.append(_problem(now_ms, group, str(error)))
    return found


async def _problems_of(call: Call, group: str, now_ms: int) -> list[dict[str, object]]:
    options = call.options
    table, _ = await offsets_of(call, group)
    behind = {queue: at for queue, at in table.items() if lag_of(at)}
    lag = sum(map(lag_of, behind.values()))
    oldest_ms = min((at.last_timestamp for at in behind.values() if at.last_timestamp > 0), default=now_ms)
    undone_s = max(0.0, (now_ms - oldest_ms) / 1000)
    found = []
    if lag > options.lag:
        found.append(_problem(now_ms, group, f"lag {lag} messages, above {options.lag}", lag, undone_s))
    if undone_s > options.undone_time:
        text = f"last consumed message stored {undone_s:.0f} s ago, above {options.undone_time:g} s"
        found.append(_problem(now_ms, group, text, lag, undone_s))
    if lag and await connection_of(call, group) is None:
        found.append(_problem(now_ms, group, f"lag {lag} messages, and no member online", lag, undone_s))
    return found


def _problem(
    now_ms: int, group: str | None, text: str, lag: int | None = None, undone_s: float | None = None
) -> dict[str, object]:
    return {"time": time_text(now_ms), "group": group, "problem": text, "lag": lag, "undone_seconds": undone_s}


async def _report(call: Call, one: dict[str, object]) -> None:
    line = msgspec.json.encode(one)
    if call.options.output == "json":
        if not call.options.once:
            call.terminal.emit(line.decode())
    else:
        call.terminal.emit(f"{one['time']} {one['group'] or '-'}: {one['problem']}")
    if call.options.line is not None:
        await call.terminal.execute(call.options.line, line, {"RMQ_GROUP": str(one["group"] or "")})
