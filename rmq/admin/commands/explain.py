"""``rmq-admin explain``: why a route exists or not, from the journal of our NameServers."""

from __future__ import annotations

from typing import Any

from rmq.admin.command import DIFFERENT, NAMESRV, OK, UNASKED, Call, Outcome, argument, command
from rmq.errors import BadAnswer, Refused, RequestFailed, RequestTimeout
from rmq.wire.api.explain import EXPLAIN_ROUTE, PRESENT, ExplainRouteHeader
from rmq.wire.codes import ResponseCode


@command(
    "route explain",
    "explain why NameServers know, or do not know, a topic or a broker",
    NAMESRV,
    argument("-t", "--topic", help="topic to explain"),
    argument("-b", "--brokerName", help="broker name to explain"),
    argument("--recent", type=int, default=20, metavar="N", help="without -t and -b: the last N events (default: 20)"),
)
async def explain(call: Call) -> Outcome:
    """
    Ask each NameServer; status 2 when one does not know the topic or broker, 3 when one cannot explain.

    Apache's NameServers cannot explain anything: 5.x refuses the request, 4.9 never answers it.
    """
    options = call.options
    header = ExplainRouteHeader(topic=options.topic, broker_name=options.brokerName, recent=options.recent)
    status = OK
    texts: list[str] = []
    found: dict[str, Any] = {}
    for addr in options.namesrvAddr:
        try:
            answer = (await call.invoke(addr, EXPLAIN_ROUTE, header, None)).body
        except RequestFailed as error:
            status = UNASKED
            found[addr] = {"error": _why(error)}
            texts.append(f"{addr}: {_why(error)}")
            continue
        found[addr] = answer
        texts.append(f"{addr}:\n{answer.text}")
        asked = options.topic is not None or options.brokerName is not None
        if asked and answer.state != PRESENT and status == OK:
            status = DIFFERENT
    return Outcome(status=status, text="\n\n".join(texts), data=found)


def _why(error: RequestFailed) -> str:
    if isinstance(error, Refused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return "cannot explain: it is no NameServer of rmq (it does not know request 9701)"
    if isinstance(error, RequestTimeout):
        return f"{error}; a NameServer of Apache 4.9 never answers this request"
    if isinstance(error, BadAnswer):
        return f"gave an answer that cannot be read: {error}"
    return str(error)
