"""What hypothesis draws is a message that our own client, our broker and our reader leave as it was."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.blocking import Client, Message
from rmq.client.core.outgoing import single
from rmq.client.settings import ProducerSettings
from rmq.testing import Cluster
from rmq.testing.strategies import messages


@given(messages("orders", delayed=True))
@settings(max_examples=300, deadline=None)
def test_every_message_may_be_sent(message: Message) -> None:
    """The checks of the client pass."""
    assert single(message, "7F00", ProducerSettings(), None).topic == "orders"


def test_comes_back_as_it_was(rmq: Cluster, rmq_client: Client) -> None:
    """Body, tag, keys and properties are those that were sent."""
    topic = rmq.topic(queues=1)
    producer = rmq_client.producer()
    sent: list[Message] = []

    @given(st.lists(messages(topic), min_size=1, max_size=5))
    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    def send(some: list[Message]) -> None:
        for message in some:
            producer.send(message)
            sent.append(message)

    send()
    stored = rmq.messages(topic)
    assert [(one.body, one.tags, one.keys) for one in stored] == [(one.body, one.tags, one.keys) for one in sent]
    for before, after in zip(sent, stored, strict=True):
        assert before.properties.items() <= after.properties.items()
