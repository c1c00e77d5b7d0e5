"""The servers of the kit: ready soon, at ports of their own, gone whatever happens to the test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

import pytest
from twisted.internet import reactor

from rmq.blocking import Client, From, Message, PushSettings, ReceivedMessage, SendStatus
from rmq.errors import ConfigurationError, NotDelivered
from rmq.runtime.disk.files import DiskUsage, RealDisk
from rmq.testing import Cluster, IsolatedCluster, ServerFailed, aio, cluster, isolated_cluster
from rmq.testing.aio import cluster as aio_cluster
from rmq.testing.server import layout_of, parser, topics_of
from rmq.testing.servers import FillableDisk, Layout, ServersError
from rmq.testing.simulation import Simulation
from rmq.testing.tx import InProcess
from tests.ports import free_port

DEADLINE_S = 60.0
SERVER = [sys.executable, "-m", "rmq.testing.server"]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return state(pid) != "Z"


def state(pid: int) -> str:
    """Return the state of a process as ps shows it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_disk_that_others_fill_is_not_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broker deletes what nobody has read above 85 %, and refuses messages above 90: not on a developer's disk."""
    free = 5 << 30
    monkeypatch.setattr(RealDisk, "usage", lambda disk, path: DiskUsage(100 << 30, free))
    disk = FillableDisk(reactor)
    try:
        assert disk.usage(str(tmp_path)).used_ratio == 0
        disk.full = True
        assert disk.usage(str(tmp_path)).used_ratio == 1
        disk.full, free = False, 1 << 20
        assert disk.usage(str(tmp_path)).used_ratio == 1
    finally:
        disk.close()


def test_lines_for_any_language(tmp_path: Path) -> None:
    """
    The process is used by lines alone: one says that it is ready, and where; each command has one answer; it ends, and
    removes its files, when its standard input does.
    """
    process = subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["ready"] is True and ready["pid"] == process.pid
    (broker,) = ready["brokers"]
    assert (broker["node"], broker["name"], broker["id"]) == ("broker-a", "broker-a", 0)
    assert Path(ready["log"]).exists() and Path(ready["dir"]).is_dir()

    def ask(**command: object) -> object:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        return answer.get("result", answer)

    assert ask(do="topic", name="orders", queues=2) is None
    with Client(ready["namesrv"]) as client:
        assert len(client.producer().queues("orders")) == 2
        assert client.producer().send(Message("orders", b"hello")).queue.broker_name == broker["name"]
    assert len(ask(do="messages", topic="orders")) == 1  # type: ignore[arg-type]
    assert "there is no command" in str(ask(do="nonsense"))
    assert "there is no request" in str(ask(do="refuse", request="NONSENSE"))
    assert "unexpected keyword" in str(ask(do="topic", nonsense=1))
    assert "'a b' is no name of a topic: 1 to 127" in str(ask(do="topic", name="a b"))
    for command in ({"do": "undo_all"}, {"do": "nonsense"}):
        process.stdin.write(json.dumps({**command, "id": 7}) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 7
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0
    assert not Path(ready["dir"]).exists()
    with pytest.raises(ConnectionError), Client(ready["namesrv"]):
        pass


def test_names_that_a_client_refuses(rmq: Cluster, rmq_client: Client) -> None:
    """A topic or group that no client could use is refused when it is named, with the text of the client."""
    for wrong in ("a b", "orders.new", "x" * 127):
        with pytest.raises(ConfigurationError, match="is no name of a topic") as refused:
            rmq.topic(wrong)
        name = str(refused.value).split("'")[1]
        with pytest.raises(ConfigurationError) as same:
            rmq_client.producer().send(Message(name, b"x"))
        assert str(same.value) == str(refused.value)
        assert name.startswith(wrong) and name not in rmq_client.admin().topics()
    with pytest.raises(ConfigurationError, match="is no name of a group"):
        rmq.group("a b")


def test_a_program_with_servers(tmp_path: Path) -> None:
    """
    The process runs a program for as long as that takes, when its servers and topics are there, and has its exit
    status; the folder that was asked for stays.
    """
    port = free_port()
    source = (
        "import os, sys\n"
        "from rmq.blocking import Client\n"
        "with Client() as client:\n"
        "    print(os.environ['NAMESRV_ADDR'], len(client.producer().queues('orders')))\n"
        "assert os.environ['RMQ_CONTROL'].startswith('http://127.0.0.1:')\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "program.py").write_text(source)
    command = [*SERVER, "--port", str(port), "--topic", "orders:2", "--topic", "bills", "--dir", str(tmp_path / "rmq")]
    program = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run([*command, "--", *program], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"127.0.0.1:{port} 2\n", 3), done
    assert (tmp_path / "rmq" / "server.log").exists()


def test_the_end_of_servers_ends_their_program() -> None:
    """A signal to the servers ends their program, too, and the status is that of a shell."""
    program = [sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"]
    servers = subprocess.Popen([*SERVER, "--", *program], stdout=subprocess.PIPE, text=True)
    assert servers.stdout is not None and servers.stdout.readline() == "1\n"
    servers.terminate()
    assert servers.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_a_program_that_cannot_be_run() -> None:
    """The line of the error says what cannot be run, and why."""
    done = subprocess.run([*SERVER, "--", "/no/such/program"], capture_output=True, text=True)
    assert done.returncode == 1 and "/no/such/program cannot be run: No such file" in json.loads(done.stdout)["error"]


def test_wrong_key() -> None:
    """A key that no broker has is not ignored."""
    with pytest.raises(ServerFailed, match="no broker knows nonsense"), cluster(config={"nonsense": 1}):
        pass


def test_wrong_layouts() -> None:
    """Servers that cannot be are refused with the argument."""
    for wrong, text in ((Layout(role="SLAVE"), "SYNC_MASTER"), (Layout(masters=0), "masters=0")):
        with pytest.raises(ServersError, match=text):
            wrong.check()
    with pytest.raises(ServersError, match="KEY=VALUE"):
        layout_of(parser().parse_args(["--config", "nonsense"]))
    with pytest.raises(ServersError, match="NAME:QUEUES"):
        topics_of(parser().parse_args(["--topic", "orders:many"]))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"config": "a=b"}, "config='a=b' is no mapping"),
    ({"config": {1: 2}}, "config={1: 2}: the key 1 is no text"),
    ({"port": "x"}, "port='x' is no port number"),
    ({"port": 99_999}, "port=99999 is no port number"),
    ({"masters": "x"}, "masters='x' is no whole number from 1 to 16"),
    ({"masters": True}, "masters=True"),
    ({"slaves": -1}, "slaves=-1 "),
    ({"role": None}, "role=None is neither ASYNC_MASTER nor SYNC_MASTER"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_wrong_arguments(wrong: dict[str, Any], text: str) -> None:
    """A wrong argument of a cluster is named, with what it accepts, before anything starts, by each face."""

    async def in_asyncio() -> None:
        async with aio_cluster(**wrong):
            pass

    for face in (cluster, isolated_cluster):
        with pytest.raises(ServerFailed, match=f"^{re.escape(text)}"), face(**wrong):
            pass
    with pytest.raises(ServerFailed, match=f"^{re.escape(text)}"):
        asyncio.run(in_asyncio())
    with pytest.raises(ServersError, match=f"^{re.escape(text)}"):
        InProcess(reactor, **wrong)
    if "port" not in wrong:
        with pytest.raises(ServersError, match=f"^{re.escape(text)}"):
            Simulation(1, **wrong)


def test_refused_arguments_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that are refused leave nothing, whatever face refuses them."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerFailed, match="SYNC_MASTER"), cluster(role="SLAVE"):
        pass
    with pytest.raises(ServerFailed, match="log level 'nonsense'"), cluster(log_level="nonsense"):
        pass
    with pytest.raises(ServersError, match="SYNC_MASTER"):
        InProcess(reactor, role="SLAVE")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_after_kill() -> None:
    """A test that is killed with -9 leaves no process and no file; paused servers end, too."""
    source = (
        "import signal, sys\n"
        "from rmq.testing import cluster, isolated_cluster\n"
        "with cluster() as one, isolated_cluster() as many, many.pause('broker-a'):\n"
        "    print(one.dir, many.dir, many.pid('namesrv'), many.pid('broker-a'), flush=True)\n"
        "    signal.pause()\n"
    )
    test = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert test.stdout is not None
    folder, other, *pids = test.stdout.readline().split()
    assert all(alive(int(pid)) for pid in pids) and len(pids) == 2
    test.send_signal(signal.SIGKILL)
    test.wait()
    for pid in map(int, pids):
        until(lambda pid=pid: not alive(pid), f"the end of {pid}")  # type: ignore[misc]
    assert not Path(folder).exists() and not Path(other).exists()


def test_many_at_once() -> None:
    """Clusters that start at the same time have ports and stores of their own."""
    processes = [subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    ready = []
    for process in processes:
        assert process.stdout is not None
        ready.append(json.loads(process.stdout.readline()))
    assert len({one["namesrv"] for one in ready}) == len({one["brokers"][0]["address"] for one in ready}) == 3
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_slaves() -> None:
    """A SYNC_MASTER with a slave is ready when the slave is: the first message is on both."""
    with cluster(slaves=1, role="SYNC_MASTER", config={"messageDelayLevel": "1s 1h"}) as mq, mq.client() as client:
        topic = mq.topic()
        assert client.producer().send(Message(topic, b"on both")).status is SendStatus.OK
        client.producer().send(Message(topic, b"in an hour", delay_level=2))
        assert [message.body for message in mq.messages(topic)] == [b"on both"]
        mq.deliver_delayed_now()
        assert sorted(message.body for message in mq.messages(topic)) == [b"in an hour", b"on both"]
        client.producer().send(Message(topic, b"in an hour again", delay_level=2))
        assert len(mq.messages(topic)) == 2


def test_names_and_waits(rmq: Cluster) -> None:
    """Names are new with each call; a wait ends when the group has acknowledged all, or says how much is left."""
    topic, other = rmq.topic("orders"), rmq.topic("orders")
    assert topic != other and topic.startswith("orders-") and rmq.group() != rmq.group()
    with rmq.client() as client:
        for number in range(5):
            client.producer().send(Message(topic, b"%d" % number))
        group = rmq.group()
        with pytest.raises(TimeoutError, match="5 messages"):
            rmq.wait_consumed(group, topic, timeout_s=0.1)
        got: list[bytes] = []

        def handle(message: object) -> None:
            got.append(message.body)  # type: ignore[attr-defined]

        client.push_consumer(group, {topic: "*"}, handler=handle).start()
        rmq.wait_consumed(group, topic)
        assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]


def test_wait_for_a_broadcast(rmq: Cluster, rmq_client: Client) -> None:
    """What a group that broadcasts has consumed is not known to brokers: a wait for it fails at once."""
    topic, group = rmq.topic(), rmq.group()
    settings = PushSettings(broadcast=True)
    rmq_client.push_consumer(group, {topic: "*"}, handler=lambda message: None, settings=settings).start()
    with pytest.raises(ServerFailed, match=f"group {group} is broadcast"):
        rmq.wait_consumed(group, topic)


def test_topics_that_do_not_exist(rmq: Cluster) -> None:
    """A wait for a group and a topic that does not exist waits for the topic, and says that it never came."""
    group, later = rmq.group(), rmq.name("created-by-the-first-send")
    with pytest.raises(TimeoutError, match=r"topic typo does not exist after 0\.1 s: no broker has it"):
        rmq.wait_consumed(group, "typo", timeout_s=0.1)
    got: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    with rmq.client() as client:
        # of a topic that never comes, which the wait does not name
        subscribed = {later: "*", rmq.name("never"): "*"}
        client.push_consumer(group, subscribed, handler=handle, settings=PushSettings(consume_from=From.FIRST)).start()

        def send() -> None:
            time.sleep(0.3)
            client.producer().send(Message(later, b"first"))

        with ThreadPoolExecutor(1) as thread:
            sent = thread.submit(send)
            rmq.wait_consumed(group, later, timeout_s=DEADLINE_S)
            assert got == [b"first"]
            sent.result()


def test_emptied_topics(rmq: Cluster) -> None:
    """Of an emptied topic nobody gets what it had, a group that was behind gets what comes next, at once."""
    topic, other, group = rmq.topic(queues=1), rmq.topic(queues=1), rmq.group()
    with rmq.client() as client:
        producer = client.producer()
        for body in (b"1", b"2", b"3"):
            producer.send(Message(topic, body))
        producer.send(Message(other, b"stays"))
        rmq.empty(topic)
        assert rmq.messages(topic) == [] and rmq.unconsumed(group, topic) == 0
        assert [message.body for message in rmq.messages(other)] == [b"stays"]
        producer.send(Message(topic, b"new"))
        assert rmq.unconsumed(group, topic) == 1
        got: list[bytes] = []

        def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        settings = PushSettings(consume_from=From.FIRST)
        client.push_consumer(group, {topic: "*"}, handler=handle, settings=settings).start()
        rmq.wait_consumed(group, topic)
        assert got == [b"new"]
        producer.send(Message(other, b"in an hour", delay_level=17))
        rmq.empty()
        rmq.deliver_delayed_now()
        assert rmq.messages(other) == []


def test_the_port_of_a_cluster() -> None:
    """Programs that were not started by the test find servers whose NameServer has the port that the test names."""
    port = free_port()
    for servers in (cluster, isolated_cluster):
        with servers(port=port) as mq:
            assert mq.namesrv == f"127.0.0.1:{port}" and mq.topic()


def test_types() -> None:
    """A checker of types knows what the methods of each face return."""
    for face in (Cluster, IsolatedCluster, aio.Cluster):
        assert get_type_hints(face.topic)["return"] is str
        for method in (face.deliver_delayed_now, face.empty):
            assert get_type_hints(method)["return"] is NoneType


def test_isolated() -> None:
    """Servers in processes of their own are paused, killed and started again; what was stored is there again."""
    with isolated_cluster() as mq, mq.client() as client:
        assert mq.nodes == ["namesrv", "broker-a"]
        topic = mq.topic(queues=1)
        producer = client.producer()
        producer.send(Message(topic, b"before"))
        with mq.pause("broker-a"), pytest.raises(NotDelivered):
            producer.send(Message(topic, b"while it is paused"), timeout_s=0.5)
        producer.send(Message(topic, b"after the pause"))
        mq.kill("broker-a")
        with pytest.raises(NotDelivered):
            producer.send(Message(topic, b"lost"), timeout_s=0.5)
        mq.start("broker-a")
        producer.send(Message(topic, b"after the kill"))
        mq.restart("namesrv")
        bodies = [message.body for message in mq.messages(topic)]
        assert {b"before", b"after the pause", b"after the kill"} <= set(bodies) and b"lost" not in bodies


def test_faults_of_servers_that_pause_or_die(rmq_isolated: IsolatedCluster) -> None:
    """A fault that ends while a server is paused ends there when it goes on; that of a dead one is no more."""
    mq = rmq_isolated
    topic = mq.topic(queues=1)
    with mq.client() as client:
        fault = mq.faults.refuse("SEND_MESSAGE", "SYSTEM_ERROR")
        with pytest.raises(NotDelivered):
            client.producer().send(Message(topic, b"refused"))
        count = fault.count
        with mq.pause("broker-a"):
            assert fault.count == count >= 1
            fault.undo()
        assert fault.count == count
        client.producer().send(Message(topic, b"sent"))
        with mq.faults.refuse("SEND_MESSAGE") as fault:
            mq.kill("broker-a")
            assert fault.count == 0
            mq.start("broker-a")
            client.producer().send(Message(topic, b"after the kill"))
        assert fault.count == 0
    assert [message.body for message in mq.messages(topic)] == [b"sent", b"after the kill"]


def test_pauses(rmq_isolated: IsolatedCluster) -> None:
    """Pauses of a server may overlap; a paused server can be stopped."""
    mq = rmq_isolated
    pid = mq.pid("broker-a")
    with mq.pause("broker-a"):
        with mq.pause("broker-a"):
            pass
        until(lambda: state(pid) == "T", "the pause goes on")
        mq.stop("broker-a")
        assert not alive(pid)
        mq.start("broker-a")
        assert mq.topic()
    assert mq.topic()


def test_names_of_servers(rmq_isolated: IsolatedCluster) -> None:
    """A server that is not there is refused with the names of those that are."""
    for wrong in (rmq_isolated.kill, rmq_isolated.stop, rmq_isolated.start, rmq_isolated.pause, rmq_isolated.pid):
        with pytest.raises(ServerFailed, match="no server 'broker-z', but namesrv, broker-a"):
            wrong("broker-z")
    rmq_isolated.kill("broker-a")
    with pytest.raises(ServerFailed, match="broker-a does not run"):
        rmq_isolated.kill("broker-a")


def test_the_folder_of_a_later_try(rmq_isolated: IsolatedCluster) -> None:
    """A broker whose first ports were taken has its files in another folder, and finds them when it starts again."""
    topic = rmq_isolated.topic(queues=1)
    with rmq_isolated.client() as client:
        client.producer().send(Message(topic, b"kept"))
    rmq_isolated.kill("broker-a")
    folder = Path(rmq_isolated.dir)
    (folder / "broker-a").rename(folder / "broker-a.3")
    rmq_isolated.start("broker-a")
    assert [message.body for message in rmq_isolated.messages(topic)] == [b"kept"]


def test_servers_import_no_kit() -> None:
    """What runs in production imports nothing of the kit."""
    source = (
        "import sys, rmq.broker.tap, rmq.namesrv.tap, rmq.local, rmq.admin.__main__, rmq.aio, rmq.tx, rmq.blocking\n"
        "sys.exit(str([name for name in sys.modules if name.startswith('rmq.testing')]))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stderr.strip() == "[]"
