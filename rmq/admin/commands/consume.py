"""``rmq-admin consume``: a member of a group, which prints messages or gives them to a program."""

from __future__ import annotations

from operator import attrgetter

import msgspec
from twisted.internet.defer import Deferred, TimeoutError

from rmq.admin.command import NAMESRV, Call, NotFound, argument, command, flag, positive, subject
from rmq.admin.commands.tail import Printer
from rmq.admin.lookups import ask_all, route_of
from rmq.admin.sending import client
from rmq.client.flows.orderly import push_consumer
from rmq.client.flows.push import DEFAULT_MAX_RECONSUME_TIMES, Delivery, PushConsumer
from rmq.client.settings import From, PushSettings
from rmq.client.types import Later, ReceivedMessage
from rmq.errors import LostQueue, Refused, RequestFailed
from rmq.wire.api.common import MASTER_ID
from rmq.wire.api.topics import GET_TOPIC_STATS_INFO, TopicHeader
from rmq.wire.codes import ResponseCode

#: a topic that brings nothing for so long is looked up
LOOK_S = 5.0


@command(
    "consume",
    "consume a topic as a member of a group: print each message, or have a program handle it",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    argument("-g", "--group", required=True, metavar="GROUP", help="the consumer group"),
    argument("--tags", default="*", metavar="EXPRESSION", help="only these tags: 'A || B' (all)"),
    argument("--from", dest="begin", choices=("begin", "end"), default="end", help="where a new group begins (end)"),
    argument("-c", "--count", type=positive, metavar="N", help="end after N messages"),
    argument(
        "--retries", type=int, default=-1, metavar="N", help="deliveries before the dead-letter queue (-1: 16); 0: none"
    ),
    argument(
        "--exec",
        dest="line",
        metavar="COMMAND",
        help="run this for each message, its body as input; status 0: consumed, others: delivered again",
    ),
    flag("--trace", help="write traces (brokers: traceTopicEnable=true), for `message trace`"),
    changes=True,
)
async def consume(call: Call) -> None:
    """
    Acknowledge what was printed, or what the program ended with 0 for; one message at a time.

    A topic that does not exist yet is waited for. Status 2 when it was there and was deleted.

    The program finds RMQ_TOPIC, RMQ_TAGS, RMQ_KEYS, RMQ_MESSAGE_ID and RMQ_RECONSUME_TIMES in its environment.
    """
    options = call.options
    if call.is_dry:
        call.plan("the brokers of the topic", "HEART_BEAT", {"group": options.group, "topic": options.topic})
        return
    begin = From.FIRST if options.begin == "begin" else From.LAST
    settings = PushSettings(consume_from=begin, max_reconsume_times=options.retries)
    printer = Printer(call, topic_of=attrgetter("topic"))  # as handlers get it: of a retry the one it was sent to
    left = options.count
    masters: set[str] = set()
    async with client(call, trace=options.trace) as instance:
        consumer = push_consumer(instance, options.group, {options.topic: options.tags}, None, settings)
        try:
            await _check_topic(call, masters)
            while left is None or left > 0:
                await _handle(call, printer, await _next(call, consumer, masters))
                left = None if left is None else left - 1
        finally:
            await consumer.close()


async def _next(call: Call, consumer: PushConsumer, masters: set[str]) -> Delivery:
    """Wait for a message; raises NotFound when the topic was there and was deleted. ``masters``: those that had it."""
    reactor = call.platform.reactor
    while True:
        waiting = Deferred.fromCoroutine(consumer.receive())
        try:
            return await waiting.addTimeout(LOOK_S, reactor)
        except TimeoutError:
            await _check_topic(call, masters)


async def _check_topic(call: Call, masters: set[str]) -> None:
    """
    Raise NotFound when no NameServer has a route of the topic any more, and each broker that had it says so.

    A route alone may be missing because a broker is away or a NameServer has started again.
    """
    topic = call.options.topic
    try:
        route = await route_of(call, topic)
        masters.update(data.broker_addrs[MASTER_ID] for data in route.broker_datas if MASTER_ID in data.broker_addrs)
    except NotFound:
        _, failures = await ask_all(call, masters, GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
        gone = [one for one in failures if isinstance(one, Refused) and one.code == ResponseCode.TOPIC_NOT_EXIST]
        if masters and len(gone) == len(masters):
            raise NotFound(f"topic {topic} does not exist any more at {', '.join(sorted(masters))}") from None
    except RequestFailed:
        pass


async def _handle(call: Call, printer: Printer, delivery: Delivery) -> None:
    try:
        async with delivery as message:
            if call.options.line is None:
                printer.show(message)
            elif status := await call.terminal.execute(call.options.line, message.body, _variables(message)):
                call.terminal.emit(_failed(call, message, status))
                raise Later
    except LostQueue:
        pass  # its new owner consumes the message


def _variables(message: ReceivedMessage) -> dict[str, str]:
    return {
        "RMQ_TOPIC": message.topic,
        "RMQ_TAGS": message.tags or "",
        "RMQ_KEYS": " ".join(message.keys),
        "RMQ_MESSAGE_ID": message.message_id,
        "RMQ_RECONSUME_TIMES": str(message.reconsume_times),
    }


def _failed(call: Call, message: ReceivedMessage, status: int) -> str:
    if call.options.output == "json":
        return msgspec.json.encode({"message_id": message.message_id, "exec_status": status}).decode()
    most = call.options.retries if call.options.retries >= 0 else DEFAULT_MAX_RECONSUME_TIMES
    next_ = "delivered again" if message.reconsume_times < most else "a dead letter now"
    return f"{message.message_id}: the command ended with {status}, the message is {next_}"
