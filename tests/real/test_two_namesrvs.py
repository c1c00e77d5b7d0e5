"""
Two of our NameServers under a cluster of everybody's brokers and clients; each of the two is killed once (issue 4).

Masters and slaves of three kinds, clients for Java of both versions and one for Go, all told of both NameServers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.real.conftest import Clients
from tests.real.goclient import GoClient, built, has_go
from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, until
from tests.real.piped import PipedClient

KINDS = (OURS, APACHE_4, APACHE_5)
#: what every broker does at the latest this often (registerNameServerPeriod), and how late a busy machine may be
REGISTRATION_PERIOD_S, LATE_S = 30.0, 60.0
QUEUES = 4
#: messages that each client must send and receive in each situation
ENOUGH = 150


class Stream:
    """
    A client that sends to a topic of its own all the time and consumes it with a group of its own.

    ``sent`` and ``got`` are the keys so far; ``troubles`` are the sends that failed, though they may have succeeded
    when tried again.
    """

    def __init__(self, name: str, topic: str, client: PipedClient):
        self.name, self.topic, self.client = name, topic, client

    @property
    def troubles(self) -> list[Any]:
        return self.client.happened("trouble")

    def sent(self) -> set[str]:
        return {e["key"] for e in self.client.happened("sent")}

    def got(self) -> set[str]:
        return {e["key"] for e in self.client.happened("got")}

    def has_sent(self, count: int) -> bool:
        return len(self.sent()) >= count

    def has_got(self, keys: set[str]) -> bool:
        return keys <= self.got()

    def check(self, when: str) -> None:
        """Fail when any send has failed so far."""
        assert not self.troubles, f"{self.name}: sends failed {when}: {self.troubles[:3]}\n{self.client.tail()}"

    def stop(self) -> None:
        """Send no more; what is being sent comes to its end."""


class JavaStream(Stream):
    """Sends come in commands of a few messages, sync, async and in batches, each tried once."""

    def __init__(self, topic: str, client: JavaClient):
        super().__init__(f"Java {client.version}", topic, client)
        self._java = client
        self._stop = threading.Event()
        self._failed: list[str] = []
        client.consume(f"readers-{topic}", topic, "reader")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def troubles(self) -> list[Any]:
        return super().troubles + self._failed

    def got(self) -> set[str]:
        return {e["key"] for e in self._java.got("reader")}

    def _run(self) -> None:
        first, step = 0, 20
        while not self._stop.wait(0.2):
            command = self._java.begin_send(self.topic, "mixed", step, prefix=self.topic, first=first, attempts=1)
            try:
                done = self._java.finish(command, seconds=120)
            except AssertionError as error:
                self._failed.append(str(error))
                return
            if done["retried"] or done["lost"]:
                self._failed.append(f"messages {first} to {first + step - 1}: {done}")
            first += step

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(130)


class GoStream(Stream):
    def __init__(self, topic: str, client: GoClient):
        super().__init__("Go", topic, client)

    @property
    def troubles(self) -> list[Any]:
        """
        The sends that failed, but for those that Go never tried.

        It drops its route when it asks a NameServer that has heard of a 5.x slave and not yet of its master, and sends
        again after its next look-up; Apache's NameServer answers the same.
        """
        return [each for each in super().troubles if "route info not found" not in str(each)]


@attrs.frozen
class Cluster:
    namesrvs: list[Process]
    brokers: list[Broker]
    topics: tuple[str, ...]

    @property
    def namesrv_addr(self) -> str:
        return ";".join(namesrv.addr for namesrv in self.namesrvs)

    def has_all(self, namesrv: Process) -> bool:
        """Tell whether a NameServer knows every broker and, for every topic, every master with its queues."""
        wanted: dict[str, dict[str, str]] = {}
        for broker in self.brokers:
            wanted.setdefault(broker.broker_name, {})[str(broker.broker_id)] = broker.addr
        with namesrv.probe() as probe:
            found = probe.cluster()["brokerAddrTable"]
            if {name: data["brokerAddrs"] for name, data in found.items()} != wanted:
                return False
            return all(self._is_routed(probe.route(topic), wanted) for topic in self.topics)

    def _is_routed(self, route: dict[str, Any] | None, wanted: dict[str, dict[str, str]]) -> bool:
        if route is None:
            return False
        addrs = {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]}
        queues = {data["brokerName"]: data["writeQueueNums"] for data in route["queueDatas"]}
        return addrs == wanted and queues == dict.fromkeys(wanted, QUEUES)


def start_cluster(site: Site, topics: tuple[str, ...]) -> Cluster:
    """
    Start two NameServers of ours and a master and a slave of each kind, and make the topics on every master.

    The second NameServer runs on Twisted's epoll reactor.
    """
    namesrvs = [site.namesrv(OURS, "namesrv-1"), site.namesrv(OURS, "namesrv-2", twistd=("--reactor", "epoll"))]
    both = ";".join(namesrv.addr for namesrv in namesrvs)
    brokers = []
    for kind in KINDS:
        name = f"broker-{kind}"
        master = site.broker(kind, both, name, brokerName=name)
        with master.probe() as probe:
            for topic in topics:
                probe.create_topic(topic, QUEUES)
        brokers += [master, site.slave(kind, master, both, f"slave-{kind}")]
    cluster = Cluster(namesrvs, brokers, topics)
    for namesrv in namesrvs:
        until(f"{namesrv.name} knows everything", partial(cluster.has_all, namesrv), seconds=90)
    return cluster


@pytest.fixture
def go_client(tmp_path: Path) -> Iterator[Callable[[str, str, str], GoClient]]:
    """Start clients for Go: ``go_client(namesrv, topic, group)``."""
    clients: list[GoClient] = []

    def start(namesrv: str, topic: str, group: str) -> GoClient:
        clients.append(GoClient(namesrv, topic, group, tmp_path / f"client-go-{len(clients)}"))
        return clients[-1]

    yield start
    for one in clients:
        one.close()


@pytest.mark.real
def test_each_of_two_namesrvs_can_be_killed(
    site: Site, client: Clients, go_client: Callable[[str, str, str], GoClient]
) -> None:
    """
    While either NameServer is killed with -9, away and back again, no send of any client fails and all is consumed.

    A consumer that starts meanwhile finds its routes at the other; a NameServer that is back knows every route again
    within one registration period.
    """
    versions = {"FromJava4": APACHE_4, "FromJava5": APACHE_5}
    topics = (*versions, "FromGo")
    cluster = start_cluster(site, topics)
    streams: list[Stream] = []
    for topic, version in versions.items():
        streams.append(JavaStream(topic, client(version, cluster.namesrv_addr)))
    if has_go():  # without it test_the_go_client_can_be_built tells, or fails in CI
        streams.append(GoStream("FromGo", go_client(cluster.namesrv_addr, "FromGo", "readers-FromGo")))
    all_go_on(streams, "before anything happens")

    java = streams[0].client
    assert isinstance(java, JavaClient)
    for number, namesrv in enumerate(cluster.namesrvs, 1):
        namesrv.kill()
        all_go_on(streams, f"while {namesrv.name} is dead")
        late = f"late-{number}"
        java.consume(late, streams[0].topic, late)
        java.wait_for_count("a consumer that comes late is served", partial(received, java, late), ENOUGH)

        namesrv.start()
        back = time.monotonic()
        within = REGISTRATION_PERIOD_S + LATE_S
        until(f"{namesrv.name} knows everything again", partial(cluster.has_all, namesrv), seconds=within)
        print(f"{namesrv.name} knew every route {time.monotonic() - back:.1f} s after its restart")
        all_go_on(streams, f"after {namesrv.name} is back")

    for stream in streams:
        stream.stop()
        stream.check("in all")
        print(f"{stream.name}: {len(stream.sent())} messages sent, none failed")


def all_go_on(streams: list[Stream], when: str) -> None:
    """Each client sends ENOUGH more messages from now on, and its group receives all that it has sent."""
    wanted = [len(stream.sent()) + ENOUGH for stream in streams]
    for stream, count in zip(streams, wanted, strict=True):
        until(f"{stream.name} sends {when}", partial(stream.has_sent, count), seconds=60)
        until(f"{stream.name} has received all {when}", partial(stream.has_got, stream.sent()), seconds=90)
        stream.check(when)


def received(java: JavaClient, member: str) -> int:
    return len(java.got(member))


@pytest.mark.real
def test_the_go_client_can_be_built() -> None:
    """Where there is no Go this test is skipped by name, and fails in CI: the Go client then took no part above."""
    assert built().exists()
