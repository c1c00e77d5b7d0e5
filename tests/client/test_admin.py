"""Administration with a client: topics, groups, offsets and messages of a broker in simulated time."""

from __future__ import annotations

from typing import Any

from rmq.client.flows.admin import Admin, admin
from rmq.client.types import Message
from rmq.errors import ClosedClient, ConfigurationError, NotFound, RequestTimeout, Unreachable
from rmq.wire.api.common import MessageQueue
from tests.client.cluster import Inbox, consumer, producer
from tests.client.test_flows import FlowCase


class AdminTests(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = self.sim.client()
        self.admin: Admin = admin(self.client)

    def missing(self, coroutine: object, words: str, kind: type[Exception] = NotFound) -> None:
        error = self.assertRaises(kind, self.sim.run, coroutine)
        self.assertIn(words, str(error))

    def test_topics(self) -> None:
        """A topic is created with its queues, listed, altered and deleted."""
        self.sim.run(self.admin.create_topic("orders", queues=3))
        self.sim.pass_s(1)
        self.assertIn("orders", self.sim.run(self.admin.topics()))
        self.assertEqual([queue.queue_id for queue in self.sim.run(self.admin.topic_offsets("orders"))], [0, 1, 2])
        self.sim.run(self.admin.create_topic("orders", queues=5, perm=4))
        self.sim.pass_s(1)
        (queues,) = self.sim.run(self.admin.route("orders")).queue_datas
        self.assertEqual((queues.read_queue_nums, queues.write_queue_nums, queues.perm), (5, 5, 4))
        self.sim.run(self.admin.delete_topic("orders"))
        self.assertNotIn("orders", self.sim.run(self.admin.topics()))
        self.missing(self.admin.delete_topic("orders"), "there is no topic orders")
        self.missing(self.admin.topic_offsets("orders"), "no route of topic orders")
        self.missing(self.admin.create_topic("no name"), "no name", ConfigurationError)
        self.missing(self.admin.create_topic("orders", queues=0), "1 queue or more", ConfigurationError)
        self.missing(self.admin.create_topic("orders", perm=7), "perm 2, 4 or 6, not 8 and 7", ConfigurationError)
        self.missing(self.admin.create_topic("orders", cluster="other"), "no cluster other; clusters known: Default")

    def test_groups(self) -> None:
        """A group is listed with its members, offsets and lag."""
        self.make_topic(queues=1)
        inbox = Inbox()
        other = self.sim.client()
        self.sim.run(consumer(other, inbox).start())
        self.sim.run(producer(self.client).send(Message("T", b"x")))
        self.until(lambda: inbox.got)
        self.sim.pass_s(10)
        self.assertEqual(self.sim.run(self.admin.groups()), ["CG"])
        members = self.sim.run(self.admin.members("CG"))
        assert members is not None
        self.assertEqual([one.client_id for one in members.connection_set], [other.client_id])
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        progress = self.sim.run(self.admin.progress("CG", "T"))
        self.assertEqual((progress.offsets[queue].consumer_offset, progress.lag), (1, 0))
        self.sim.run(other.close())
        self.sim.run(producer(self.client).send_batch([Message("T", b"a"), Message("T", b"b")]))
        self.assertEqual(self.sim.run(self.admin.progress("CG", "T")).lag, 2)
        self.assertEqual(self.sim.run(self.admin.members("CG")), None)
        self.missing(self.admin.progress("other"), "no group other")

    def test_messages(self) -> None:
        """A message is found by its key and by both its ids."""
        self.make_topic(queues=1)
        sent = self.sim.run(producer(self.client).send(Message("T", b"x", keys=("k",))))
        self.sim.pass_s(2)
        (found,) = self.sim.run(self.admin.find_messages("T", "k"))
        self.assertEqual((found.body, found.message_id, found.queue), (b"x", sent.message_id, sent.queue))
        self.assertEqual(self.sim.run(self.admin.message(sent.message_id, "T")).body, b"x")
        self.assertEqual(self.sim.run(self.admin.message(sent.offset_message_id)).body, b"x")
        self.assertEqual(self.sim.run(self.admin.find_messages("T", "other")), [])
        self.missing(self.admin.message("0" * 32, "T"), "topic T has no message 000")
        self.missing(self.admin.message("nonsense"), "nonsense is no id", ConfigurationError)

    def test_no_name_server_answers(self) -> None:
        """The error names each NameServer with its own reason, and has the kind of the last one's."""

        async def silent(addr: str, *_: object, **__: object) -> Any:
            raise (RequestTimeout if addr == "a:1" else Unreachable)(addr, f"{addr} is unwell")

        asking = Admin(silent, ["a:1", "b:2"])
        for _ in range(2):
            error = self.assertRaises(Unreachable, self.sim.run, asking.topics())
            self.assertEqual(str(error), "a:1 is unwell; b:2 is unwell")

    def test_closed(self) -> None:
        """After the close of the client nothing is asked."""
        self.sim.run(self.client.close())
        self.missing(self.admin.topics(), "closed", ClosedClient)
