"""``rmq-admin dlq``: dead-letter queues; a message is there because a group gave it up."""

from __future__ import annotations

import attrs

from rmq.admin.command import NAMESRV, Call, NotFound, Outcome, WrongUse, argument, command, subject, tabular
from rmq.admin.commands.tail import Printer
from rmq.admin.lookups import DLQ_PREFIX, RETRY_PREFIX, ask_namesrv, check_registered, cluster_info
from rmq.admin.messages import own_properties
from rmq.admin.reading import queues_of, read
from rmq.admin.sending import GROUP as SENDER
from rmq.admin.sending import client, plan_send, settings_of
from rmq.admin.times import time_text
from rmq.client.core import outgoing
from rmq.client.flows.producer import Producer
from rmq.client.types import Message, ReceivedMessage
from rmq.wire.api.routes import GET_ALL_TOPIC_LIST_FROM_NAMESERVER
from rmq.wire.record import PROPERTY_RETRY_TOPIC

GROUP = subject("group", "-g", "--groupName", metavar="GROUP")


@command("dlq list", "list the groups that gave messages up, with how many there are", NAMESRV)
async def dlq_list(call: Call) -> Outcome:
    """Ask the brokers of each dead-letter topic."""
    topics = (await ask_namesrv(call, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)).body.topic_list
    letters = sorted(topic for topic in topics if topic.startswith(DLQ_PREFIX))
    if not letters:
        check_registered(call, await cluster_info(call))
    rows = []
    for topic in letters:
        found = (await queues_of(call, topic)).values()
        count = sum(at.max_offset - at.min_offset for _, at in found)
        last_ms = max((at.last_update_timestamp for _, at in found), default=0)
        rows.append((topic.removeprefix(DLQ_PREFIX), count, time_text(last_ms)))
    return tabular(("group", "messages", "last_message"), rows, nothing="no group has given a message up")


@command("dlq show", "print the messages that a group gave up", NAMESRV, GROUP)
async def dlq_show(call: Call) -> None:
    """One line each, with ``-o json`` one object. Status 2 when the group has no dead-letter topic."""
    printer = Printer(call, with_ids=True)
    for message in await _messages(call):
        printer.show(message)


async def _messages(call: Call) -> list[ReceivedMessage]:
    """Return all that is there, the oldest first; raises NotFound."""
    topic = DLQ_PREFIX + call.options.group
    try:
        queues = await queues_of(call, topic)
    except NotFound:
        raise NotFound(f"group {call.options.group} has given no message up: no route of {topic}") from None
    found = [
        message
        for queue, (addr, at) in queues.items()
        async for message in read(call, queue, addr, at.min_offset, at.max_offset)
    ]
    return sorted(found, key=lambda message: message.stored_ms)


@command(
    "dlq resend",
    "deliver messages again to the group that gave them up, and to no other",
    NAMESRV,
    GROUP,
    argument(
        "--id",
        action="append",
        dest="ids",
        metavar="ID",
        help="only this message, by an id of dlq show; may be given several times",
    ),
    argument("--all", action="store_true", help="all messages that are there"),
    changes=True,
)
async def dlq_resend(call: Call) -> Outcome:
    """
    Send copies to the retry topic of the group, under new ids; the dead letters stay. Status 4: not confirmed.

    The group gets a copy as a message of the original topic, tried for the first time.
    """
    options = call.options
    if bool(options.ids) == options.all:
        raise WrongUse("either --id ID or --all")
    found = await _messages(call)
    chosen = [
        message
        for message in found
        if options.all or {message.message_id, message.offset_message_id} & set(options.ids)
    ]
    if not chosen:
        raise NotFound(f"the dead-letter queue of group {options.group} has no such message")
    count = "1 dead letter is" if len(chosen) == 1 else f"{len(chosen)} dead letters are"
    call.confirm(f"{count} delivered to group {options.group} again", options.group)
    copies = [
        Message(
            RETRY_PREFIX + options.group,
            message.body,
            tags=message.tags,
            keys=message.keys,
            properties={
                **own_properties(message.properties),
                # of a message in a retry topic: where it was sent first
                **{name: text for name, text in message.properties.items() if name == PROPERTY_RETRY_TOPIC},
            },
            flag=message.record.flag,
        )
        for message in chosen
    ]
    rows: list[tuple[str, ...]] = []
    if call.is_dry:
        for copy in copies:
            plan_send(call, copy)
        return tabular((), rows, nothing="")
    async with client(call) as instance:
        settings = settings_of(call)
        sender = Producer(instance, SENDER, settings)
        for message, copy in zip(chosen, copies, strict=True):
            out = outgoing.single(copy, instance.unique_id(), settings, None)
            # A broker puts what has no try left among the dead letters again: also if the group's retryMaxTimes is 0.
            result = await sender.deliver(attrs.evolve(out, max_reconsume_times=1))
            rows.append((message.message_id, message.origin_topic, result.message_id, result.status.name))
    return tabular(("dead_letter", "topic", "sent_as", "status"), rows, nothing="")
