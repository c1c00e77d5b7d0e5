"""Each fault shows a program that does not expect it, and does no harm to one that does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from rmq.blocking import Client, Message, PushSettings, ReceivedMessage, SendResult, SendStatus
from rmq.client.settings import From
from rmq.errors import LostQueue, NoRoute, NotDelivered
from rmq.testing import Cluster, ServerFailed, cluster

DEADLINE_S = 30.0
FIRST = PushSettings(consume_from=From.FIRST)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def synced() -> Iterator[Cluster]:
    with cluster(slaves=1, role="SYNC_MASTER", config={"slaveTimeout": 300}) as running:
        yield running


class Account:
    """A program whose balance is changed by messages; a careful one counts each message once."""

    def __init__(self, *, careful: bool) -> None:
        self.balance = 0
        self.deliveries = 0
        self._careful = careful
        self._seen: set[str] = set()

    def __call__(self, message: ReceivedMessage) -> None:
        self.deliveries += 1
        if self._careful and message.keys[0] in self._seen:
            return
        self._seen.add(message.keys[0])
        self.balance += int(message.body)


def insist(send: Callable[[], SendResult]) -> SendResult:
    """Send until it is certain that the message is safe, as a careful program does."""
    for _ in range(20):
        try:
            result = send()
        except (NotDelivered, NoRoute):
            time.sleep(0.05)
            continue
        if result.status is SendStatus.OK:
            return result
    raise AssertionError("not sent")


def test_refuse(rmq: Cluster, rmq_client: Client) -> None:
    """A broker that is busy for a moment loses the message of a program that does not send it again."""
    topic, producer = rmq.topic(), rmq_client.producer()
    with (
        rmq.faults.refuse("SEND_MESSAGE", "SYSTEM_BUSY", times=1) as fault,
        pytest.raises(NotDelivered, match="refused by a test"),
    ):
        producer.send(Message(topic, b"careless"))
    assert fault.count == 1 and rmq.messages(topic) == []
    with rmq.faults.refuse("SEND_MESSAGE", "SYSTEM_BUSY", times=2, topic=topic) as fault:
        producer.send(Message(rmq.topic(), b"another topic"))
        insist(lambda: producer.send(Message(topic, b"careful")))
        assert fault.count == 2
    assert [message.body for message in rmq.messages(topic)] == [b"careful"]


def test_drop_answers(rmq: Cluster, rmq_client: Client) -> None:
    """A message whose answer is lost is stored; who sends it again has it twice, and must know it by its key."""
    for careful in (False, True):
        topic, group, account = rmq.topic(), rmq.group(), Account(careful=careful)
        with rmq.faults.drop_answers("SEND_MESSAGE", times=1) as fault:
            payment = Message(topic, b"100", keys=("payment-1",))
            with pytest.raises(NotDelivered) as failed:
                rmq_client.producer().send(payment, timeout_s=0.3)
            assert failed.value.may_be_stored
            rmq_client.producer().send(payment)
            assert fault.count == 1
        rmq_client.push_consumer(group, {topic: "*"}, handler=account, settings=FIRST).start()
        rmq.wait_consumed(group, topic)
        assert account.deliveries == 2
        assert account.balance == (100 if careful else 200)


def test_delay_answers(rmq: Cluster, rmq_client: Client) -> None:
    """A slow broker is no failure for a program that waits long enough."""
    topic, producer = rmq.topic(), rmq_client.producer()
    with rmq.faults.delay_answers("SEND_MESSAGE", 0.5) as fault:
        with pytest.raises(NotDelivered):
            producer.send(Message(topic, b"careless"), timeout_s=0.2)
        assert producer.send(Message(topic, b"careful"), timeout_s=20).status is SendStatus.OK
        assert fault.count == 2


def test_cut_before_the_answer(rmq: Cluster, rmq_client: Client) -> None:
    """The client sends again after a lost connection, so the message may be there twice, with one message id."""
    topic = rmq.topic()
    with rmq.faults.cut("SEND_MESSAGE", times=1) as fault:
        insist(lambda: rmq_client.producer().send(Message(topic, b"paid", keys=("payment-1",))))
    assert fault.count == 1
    assert [message.body for message in rmq.messages(topic)] == [b"paid", b"paid"]
    assert {message.keys for message in rmq.messages(topic)} == {("payment-1",)}


def test_cut_now(rmq: Cluster, rmq_client: Client) -> None:
    """A consumer whose connection is lost goes on by itself; other clients notice nothing."""
    topic, group, account = rmq.topic(), rmq.group(), Account(careful=True)
    consumer = rmq_client.push_consumer(group, {topic: "*"}, handler=account, settings=FIRST)
    consumer.start()
    until(lambda: len(consumer.assignment()) >= 4, "queues")
    assert rmq.faults.cut(connections_of="nobody").count == 0
    assert rmq.faults.cut(connections_of=rmq_client.client_id).count >= 1
    with rmq.client() as other:
        other.producer().send(Message(topic, b"1", keys=("k",)))
    rmq.wait_consumed(group, topic)
    assert account.balance == 1


def test_forget_route(rmq: Cluster) -> None:
    """A NameServer that has just started knows no topics: NoRoute, until brokers have registered."""
    topic = rmq.topic()
    fault = rmq.faults.forget_route(topic)
    with rmq.client() as client:
        with pytest.raises(NoRoute):
            client.producer().send(Message(topic, b"careless"))
        tries = []

        def send() -> SendResult:
            tries.append(1)
            if len(tries) == 3:
                fault.undo()
            return client.producer().send(Message(topic, b"careful"))

        insist(send)
    assert fault.count >= 3 and len(tries) == 3
    assert [message.body for message in rmq.messages(topic)] == [b"careful"]


def test_hold_slave(synced: Cluster) -> None:
    """A message that no slave has may be lost with the master: its status says so, to those who look."""
    topic = synced.topic()
    with synced.client() as client:
        with synced.faults.hold_slave(times=1) as fault:
            result = client.producer().send(Message(topic, b"careless"))
            assert result.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert fault.count == 1
        with synced.faults.hold_slave(times=1):
            assert insist(lambda: client.producer().send(Message(topic, b"careful"))).status is SendStatus.OK


def test_full_disk(rmq: Cluster, rmq_client: Client) -> None:
    """A broker whose disk is full refuses messages, and takes them again when there is room."""
    topic, producer = rmq.topic(), rmq_client.producer()
    fault = rmq.faults.full_disk("broker-a")
    with pytest.raises(NotDelivered):
        producer.send(Message(topic, b"careless"), timeout_s=1)
    assert fault.count >= 1
    fault.undo()
    insist(lambda: producer.send(Message(topic, b"careful")))
    assert [message.body for message in rmq.messages(topic)] == [b"careful"]


def test_two_of_a_kind(synced: Cluster) -> None:
    """The end of one fault does not end another of its kind."""
    topic = synced.topic()
    with synced.client() as client:
        producer = client.producer()
        with synced.faults.hold_slave():
            with synced.faults.hold_slave():
                pass
            assert producer.send(Message(topic, b"held")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        with synced.faults.full_disk("broker-a"):
            with synced.faults.full_disk():
                pass
            with pytest.raises(NotDelivered):
                producer.send(Message(topic, b"no room"), timeout_s=0.5)
        assert producer.send(Message(topic, b"room")).status is SendStatus.OK


def test_a_full_disk_counts_with_another_fault(rmq: Cluster, rmq_client: Client) -> None:
    """A full disk counts the sends that came, and another fault has its effect, whichever began first."""
    topic, faults = rmq.topic(), rmq.faults
    with faults.full_disk() as before, faults.drop_answers("SEND_MESSAGE") as dropped, faults.full_disk() as after:
        with pytest.raises(NotDelivered, match="did not answer"):
            rmq_client.producer().send(Message(topic, b"x"), timeout_s=0.3)
        assert before.count == dropped.count == after.count >= 1


def test_what_is_not_there(rmq: Cluster) -> None:
    """A fault of something that is not there would hide a mistake in the test: it is refused, with what there is."""
    faults, no_node = rmq.faults, "there is no server 'broker-z', but namesrv, broker-a"
    for wrong in (
        faults.full_disk,
        partial(faults.refuse, "SEND_MESSAGE"),
        partial(faults.drop_answers, "SEND_MESSAGE"),
    ):
        with pytest.raises(ServerFailed, match=no_node):
            wrong(node="broker-z")
    with pytest.raises(ServerFailed, match="there is no slave"):
        faults.hold_slave()
    with pytest.raises(ServerFailed, match="namesrv has no store whose disk could be full; brokers: broker-a"):
        faults.full_disk(node="namesrv")
    with pytest.raises(ServerFailed, match="times is a whole number above 0, not 0"):
        faults.refuse("SEND_MESSAGE", times=0)
    for seconds in (-1.0, "1"):
        with pytest.raises(ServerFailed, match=f"seconds is a number, not {seconds!r}"):
            faults.delay_answers("SEND_MESSAGE", seconds)  # type: ignore[arg-type]
    with pytest.raises(ServerFailed, match="queues is a whole number above 0, not 0"):
        rmq.topic(queues=0)
    with pytest.raises(ServerFailed, match="either a request or connections_of"):
        faults.cut("SEND_MESSAGE", connections_of="nobody")


def test_steal_queues(rmq: Cluster, rmq_client: Client) -> None:
    """Who loses a queue while a message is in hand cannot acknowledge it, and gets it again with the queue."""
    topic, group, careless, careful = rmq.topic(), rmq.group(), Account(careful=False), Account(careful=True)
    rmq_client.producer().send(Message(topic, b"5", keys=("k",)))
    consumer = rmq_client.push_consumer(group, {topic: "*"}, settings=FIRST)
    with pytest.raises(LostQueue), consumer.receive(timeout_s=DEADLINE_S) as message:
        careless(message)
        careful(message)
        fault = rmq.faults.steal_queues(group)
        until(lambda: not consumer.assignment(), "no queues")
    assert fault.count >= 1
    fault.undo()
    until(lambda: len(consumer.assignment()) >= 4, "queues")
    with consumer.receive(timeout_s=DEADLINE_S) as message:
        careless(message)
        careful(message)
    rmq.wait_consumed(group, topic)
    assert (careless.balance, careful.balance) == (10, 5)


def test_redeliver(rmq: Cluster, rmq_client: Client) -> None:
    """An operator who sets offsets back makes the members of a group consume again."""
    topic, group, careless, careful = rmq.topic(queues=1), rmq.group(), Account(careful=False), Account(careful=True)

    def handle(message: ReceivedMessage) -> None:
        careful(message)
        careless(message)

    for number in range(3):
        rmq_client.producer().send(Message(topic, b"1", keys=(str(number),)))
    rmq_client.push_consumer(group, {topic: "*"}, handler=handle, settings=FIRST).start()
    rmq.wait_consumed(group, topic)
    assert rmq.redeliver(group, rmq.messages(topic)[1]) == 1
    until(lambda: careless.balance == 5, "two messages again")
    rmq.wait_consumed(group, topic)
    assert careful.balance == 3


def test_faults_end_before_the_client(rmq: Cluster, rmq_client: Client) -> None:
    """A fault that lasts to the end of a test does not disturb the close of its client."""
    topic, group = rmq.topic(), rmq.group()
    rmq_client.producer().send(Message(topic, b"1", keys=("k",)))
    account = Account(careful=True)
    rmq.faults.refuse("UPDATE_CONSUMER_OFFSET", "SYSTEM_ERROR")
    rmq_client.push_consumer(group, {topic: "*"}, handler=account, settings=FIRST).start()
    until(lambda: account.balance, "the message")


def test_faults_end_with_their_block(rmq: Cluster, rmq_client: Client) -> None:
    """After its block a fault is no more, and its count stays; a wrong name is refused."""
    topic = rmq.topic()
    with rmq.faults.refuse("SEND_MESSAGE", 14) as fault:
        pass
    assert rmq_client.producer().send(Message(topic, b"x")).status is SendStatus.OK
    assert fault.count == 0
    with pytest.raises(ServerFailed, match="there is no response code"):
        rmq.faults.refuse("SEND_MESSAGE", "NONSENSE")
    fault = rmq.faults.refuse("SEND_MESSAGE", 14, times=1)
    rmq_client.producer().send(Message(topic, b"x"))
    rmq.undo_faults()
    assert fault.count == 1
    assert rmq_client.producer().send(Message(topic, b"x")).status is SendStatus.OK
