"""What the client sends, beside what Java's 4.9.7 client was seen to send in the same situations."""

from __future__ import annotations

from collections.abc import Iterator

from rmq.client.flows.instance import Instance
from rmq.client.flows.litepull import pull_consumer
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.settings import From, ProducerSettings, PullSettings
from rmq.client.types import Later, Message, ReceivedMessage
from rmq.wire.api.common import MessageQueue
from rmq.wire.command import RemotingCommand, decode_command
from rmq.wire.frames import FrameDecoder
from tests.client.cluster import Inbox, consumer, producer
from tests.client.test_flows import FlowCase
from tests.wire.golden import frames

JAVA = ("client-4.9.7_produce", "client-4.9.7_push", "client-4.9.7_binary-header", "client-4.9.7_transactions")
#: requests about a queue or a record of a broker: 5.x names that broker in them, and so does Java's 4.9.7
ABOUT_A_BROKER = {11, 14, 15, 29, 30, 31, 37, 310, 320}
#: what a request has in some situations only
SOMETIMES = {"subscription", "l", "transactionId", "ReqT"}

Keys = dict[int, set[frozenset[str]]]


def keys_of(commands: Iterator[RemotingCommand]) -> Keys:
    """Return the sets of keys that requests of each code have."""
    found: Keys = {}
    for command in commands:
        found.setdefault(command.code, set()).add(frozenset(command.ext_fields) - SOMETIMES)
    return found


def of_java() -> Iterator[RemotingCommand]:
    for conversation in JAVA:
        for frame in frames(conversation):
            (whole,) = FrameDecoder().receive(frame.data)
            command = decode_command(whole)
            if frame.from_client and not command.is_response:
                yield command


class RequestTests(FlowCase):
    def test_keys_equal_java(self) -> None:
        """Requests have the same keys as Java's: sends, pulls, offsets, transactions; each names its broker."""
        sent: list[RemotingCommand] = []
        prepare = Instance._prepare

        def noting(instance: Instance, command: RemotingCommand) -> None:
            prepare(instance, command)
            sent.append(command)

        self.patch(Instance, "_prepare", noting)
        self.make_topic(queues=1)
        client = self.sim.client()
        sender = producer(client)
        self.sim.run(sender.send(Message("T", b"x")))
        self.sim.run(sender.send_batch([Message("T", b"a"), Message("T", b"b")]))
        made = transaction_producer(client, "TG", lambda message: Outcome.COMMIT, ProducerSettings())
        result = self.sim.run(made.begin(Message("T", b"x")))
        self.sim.run(made.end(result, Outcome.COMMIT))

        def fail_once(message: ReceivedMessage) -> None:
            if not message.reconsume_times:
                raise Later(delay_level=1)

        inbox = Inbox(fail_once)
        self.sim.run(consumer(client, inbox).start())
        self.until(lambda: len(inbox.got) == 8)
        self.sim.pass_s(10)
        puller = self.sim.run(pull_consumer(client, "Pull", {"T": "*"}, PullSettings(consume_from=From.FIRST)))
        self.sim.run(puller.getmany(timeout_s=30))
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        self.sim.run(puller.seek_to_begin(queue))
        self.sim.run(puller.seek_to_end(queue))
        self.sim.run(puller.seek_to_time(queue, client.host.wall_ms()))
        ours, javas = keys_of(iter(sent)), keys_of(of_java())
        for code in ABOUT_A_BROKER:
            self.assertLessEqual(ours[code], javas.get(code, ours[code]), code)
            self.assertTrue(all({"bname", "n"} & keys for keys in ours[code]), code)
        self.assertTrue(all("bname" in keys for keys in ours[36]))
