"""`rmq.tx` with real sockets, under pytest-twisted; trial_tx.py has the same for trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import pytest_twisted
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from rmq.testing import Cluster
from rmq.tx import Client, Message, SendStatus
from tests.testing import bodies

F = TypeVar("F", bound=Callable[..., object])
driven: Callable[[F], F] = pytest_twisted.ensureDeferred


def the_reactor() -> Any:
    from twisted.internet import reactor

    return reactor


@driven
async def test_first_send_comes_soon() -> None:
    """The second cluster of a process is there in less than a second, on a machine that does other things, too."""
    await bodies.first_send_comes_soon(the_reactor())
    assert await bodies.first_send_comes_soon(the_reactor()) < 3


@driven
@pytest.mark.parametrize(
    "body",
    [
        bodies.retries_and_dead_letters,
        bodies.transactions_and_pulls,
        bodies.faults_in_process,
        bodies.what_is_delayed_now,
    ],
)
async def test_bodies(body: Any) -> None:
    """What the bodies say."""
    await body(the_reactor())


@driven
async def test_fixture(rmq: Cluster, rmq_tx_client: Client) -> None:
    """The client of the fixture talks to the servers of the session."""
    topic = rmq.topic()
    result = await rmq_tx_client.producer().send(Message(topic, b"hello"))
    assert result.status is SendStatus.OK
    assert [message.body for message in rmq.messages(topic)] == [b"hello"]


@driven
async def test_wait_of_the_fixture(rmq: Cluster, rmq_tx_client: Client) -> None:
    """The wait that blocks its thread says what to do in a coroutine, and waits in another thread."""
    topic, group = rmq.topic(), rmq.group()
    await deferLater(the_reactor(), 0)
    with pytest.raises(RuntimeError, match=r"await deferToThread\(rmq\.wait_consumed, group, topic\)"):
        rmq.wait_consumed(group, topic)
    with pytest.raises(RuntimeError, match=r"await deferToThread\(rmq\.wait_messages, topic\)"):
        rmq.wait_messages(topic)
    await deferToThread(rmq.wait_consumed, group, topic)


def test_wait_beside_the_reactor(rmq: Cluster) -> None:
    """A test that is not driven by the reactor may wait, although pytest-twisted has started it."""
    assert the_reactor().running
    rmq.wait_consumed(rmq.group(), rmq.topic())
