"""The commands of rmq-admin against a NameServer, a master and a slave, all simulated."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

import rmq
from rmq.admin.command import Terminal
from rmq.admin.main import Result, parse, run
from rmq.errors import Refused, RequestFailed, RequestTimeout
from rmq.remoting.client import RemotingClient
from rmq.sim.cluster import Cluster
from rmq.sim.node import Node, platform_for
from rmq.sim.world import World
from rmq.wire import fastjson
from rmq.wire.api.clients import ConsumerData, HeartbeatData, ProducerData
from rmq.wire.api.common import SubscriptionData, TopicConfig
from rmq.wire.codes import RequestCode
from rmq.wire.exchange import Response
from tests.admin import schema
from tests.admin.test_names import ended
from tests.broker.harness import RawClient, connect, send_ext
from tests.sim.support import ASYNC_FLUSH, ASYNC_MASTER, options


class ClusterCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.world = World(1)
        self.cluster = Cluster(self.world, options(ASYNC_MASTER, ASYNC_FLUSH, slaves=1))
        self.cluster.start_servers()
        self.machine = Node(self.world, self.cluster.net, "admin")
        self.machine.start()
        (self.namesrv,) = self.cluster.namesrv_addrs
        (master,) = self.cluster.masters
        self.broker = master.addr
        self.questions: list[str] = []
        self.emitted: list[str] = []
        self.warned: list[str] = []
        self.executed: list[tuple[str, bytes, Mapping[str, str]]] = []
        self.exec_statuses: list[int] = []
        for _ in range(30):
            self.world.run_for(1)
            if self.admin("cluster", "list", "-o", "csv").out.count("\n") == 2:
                return
        self.fail("master and slave did not register")

    def admin(self, *arguments: str, typed: str | None = None, lines: Sequence[bytes] = ()) -> Result:
        """
        Run a command.

        ``typed``: what a person answers when a change is to be confirmed, None: no terminal; ``lines``: standard input.
        """

        options = parse(arguments if "-n" in arguments else [*arguments, "-n", self.namesrv])
        asked = run(platform_for(self.machine), options, self.terminal(typed, lines))
        before = len(self.emitted)
        result = self.world.settle(Deferred.fromCoroutine(asked))
        if options.output == "json":
            self.check_json(options, result.out, self.emitted[before:])
        return result

    def check_json(self, options: argparse.Namespace, out: str, emitted: Sequence[str]) -> None:
        """Compare what a command printed with docs/admin-schema.json."""
        name = options.command
        of_lines = "dry run" if getattr(options, "dry_run", False) else name
        found = [one for line in emitted for one in schema.mistakes(of_lines, json.loads(line))]
        if out:
            whole = json.loads(out)
            parts = whole if name in schema.BY_LINES else [whole]
            found += [one for part in parts for one in schema.mistakes(name, part)]
        self.assertEqual(found, [])

    def terminal(self, typed: str | None = None, lines: Sequence[bytes] = ()) -> Terminal:
        def ask(text: str, name: str) -> bool:
            self.questions.append(text)
            return typed == name

        def execute(line: str, data: bytes, variables: Mapping[str, str]) -> Deferred[int]:
            self.executed.append((line, data, variables))
            return succeed(self.exec_statuses.pop(0) if self.exec_statuses else 0)

        left = [*lines, b""]
        return Terminal(
            emit=self.emitted.append,
            warn=self.warned.append,
            ask=ask,
            read_line=lambda: succeed(left.pop(0)),
            execute=execute,
        )

    def text(self, *arguments: str) -> str:
        """Run a command that succeeds; return what it prints."""
        result = self.admin(*arguments)
        self.assertEqual((result.status, result.err), (0, ""), arguments)
        return result.out

    def data(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--output", "json"))

    def fails(self, status: int, *arguments: str) -> str:
        """Run a command that ends with ``status``; return its line on standard error."""
        result = self.admin(*arguments)
        self.assertEqual((result.status, result.out), (status, ""), result)
        self.assertNotIn("\n", result.err)
        return result.err

    def connect(self) -> RawClient:
        host, _, port = self.broker.partition(":")
        return connect(self.world, self.machine, host, int(port))

    def send(self, topic: str, messages: int) -> None:
        client = self.connect()
        for n in range(messages):
            self.assertEqual(client.ask(310, send_ext(topic, queue_id=n % 2), b"body").code, 0)

    def join(self, group: str, topic: str) -> RawClient:
        """Connect a member of a group."""
        client = self.connect()
        subscribed = [SubscriptionData(topic=topic), SubscriptionData(topic=f"%RETRY%{group}")]
        data = ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=subscribed,
        )
        body = fastjson.encode(HeartbeatData(client_id="10.0.0.9@1", consumer_data_set=[data], producer_data_set=[]))
        self.assertEqual(client.ask(RequestCode.HEART_BEAT, {}, body).code, 0)
        self.world.run_for(1)  # its retry topic is registered
        return client

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        client = self.connect()
        for queue_id, offset in enumerate(offsets):
            header = {
                "consumerGroup": group,
                "topic": topic,
                "queueId": str(queue_id),
                "commitOffset": str(offset),
            }
            self.assertEqual(client.ask(15, header).code, 0)


class FailedBrokerTests(ClusterCase):
    """A broker that does not answer hides nothing of what the others and the NameServer answer."""

    def setUp(self) -> None:
        super().setUp()
        self.slave = self.cluster.members[1].addr
        self.unanswered = 0
        self.text("topic", "create", "orders", "--queues", "2")
        self.send("orders", 3)
        self.join("G", "orders")
        self.commit("G", "orders", 0, 0)

    def silence(self, *addrs: str, error: type[RequestTimeout] | None = RequestTimeout) -> None:
        """Let brokers answer no request of the commands; with ``error`` None refuse each."""
        asked = RemotingClient.invoke

        def invoke(client: RemotingClient, addr: str, contract: Any, *more: Any, **settings: Any) -> Deferred[Any]:
            if addr not in addrs:
                return asked(client, addr, contract, *more, **settings)
            if error is None:
                return fail(Refused(3, "not supported", addr, request_code=contract.code))
            self.unanswered += 1
            return fail(error(addr, f"{addr} did not answer request {contract.code} within 99.{self.unanswered} ms"))

        self.patch(RemotingClient, "invoke", invoke)

    def partly(self, status: int, *arguments: str) -> str:
        """Run a command that ends with ``status``, a line on standard error for the slave, and output."""
        result = self.admin(*arguments)
        self.assertEqual(result.status, status, result)
        self.assertRegex(result.err, rf"^rmq-admin: {self.slave} [^\n]*$")
        return result.out

    def test_list_of_a_cluster(self) -> None:
        """What the NameServer knows is there; the broker without an answer has no figures."""
        self.silence(self.slave)
        rows = json.loads(self.partly(3, "cluster", "list", "-o", "json"))
        self.assertEqual([(row["id"], row["address"]) for row in rows], [(0, self.broker), (1, self.slave)])
        self.assertIsNotNone(rows[0]["version"])
        self.assertEqual((rows[0]["rmq"], rows[1]["rmq"]), (rmq.__version__, None))
        self.assertEqual((rows[1]["version"], rows[1]["in_per_second"], rows[1]["out_per_second"]), (None, None, None))
        rows = json.loads(self.partly(3, "cluster", "list", "--totals", "-o", "json"))
        self.assertEqual((rows[0]["in_today"], rows[1]["in_today"]), (3, None))
        _, _, line = self.partly(3, "clusterList").splitlines()
        self.assertEqual(line.split(), ["sim", "broker-a", "1", self.slave, *("0.00(,ms)",) * 2, "0.00", "0.0000"])
        _, _, line = self.partly(3, "clusterList", "-m").splitlines()
        self.assertEqual(line.split(), ["sim", "broker-a", "0", "0", "0", "0"])

    def test_questions_to_several(self) -> None:
        """Tables have the rows of the brokers that answer; a refusal of some is status 1."""
        both = ("-b", f"{self.slave};{self.broker}")
        commands = (("ha", "status"), ("broker", "show"), ("broker", "config"), ("group", "lag"), ("producer", "list"))
        whole = {command: self.admin(*command, "-b", self.broker, "-o", "json") for command in commands}
        self.silence(self.slave)
        for command in commands:
            self.assertEqual(self.partly(3, *command, *both, "-o", "json").count("\n"), whole[command].out.count("\n"))
        self.assertEqual(self.partly(3, "broker", "show", "-b", self.slave), "")
        self.assertEqual(self.partly(3, "broker", "config", "--diff", *both), "")
        self.assertEqual(self.partly(3, "group", "config", "G", "-b", self.slave), "")
        self.silence(self.slave, error=None)
        self.assertIn(f"{self.broker}: master", self.partly(1, "ha", "status", *both))

    def test_topics(self) -> None:
        """Topics are those of the NameServer, whatever brokers answer; figures are left out."""
        self.silence(self.broker)
        self.slave = self.broker
        self.assertIn({"topic": "orders"}, json.loads(self.partly(3, "topic", "list", "-o", "json")))
        listed = json.loads(self.partly(3, "topic", "list", "--groups", "-o", "json"))
        self.assertIn({"topic": "orders", "groups": ""}, listed)
        self.assertEqual(self.partly(3, "topic", "stats"), "")

    def test_groups(self) -> None:
        """Groups are those of the NameServer, without figures where a broker does not answer; one line for them all."""
        self.join("H", "orders")
        self.silence(self.broker)
        self.slave = self.broker
        row, _ = json.loads(self.partly(3, "group", "list", "-o", "json"))
        self.assertEqual((row["group"], row["members"], row["lag"]), ("G", None, None))
        _, line, _ = self.partly(3, "consumerProgress").splitlines()
        self.assertEqual(line.split(), ["G", "0", "OFFLINE", "0", "0"])

    def test_watch(self) -> None:
        """--watch goes on, and says each time which broker failed."""
        self.silence(self.slave)
        parsed = parse(["cluster", "list", "--watch", "2", "-n", self.namesrv])
        asked = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_for(5)
        self.assertEqual(len(self.emitted), 3)
        said = [f"rmq-admin: {self.slave} did not answer request 28 within 99.{n} ms" for n in (1, 2, 3)]
        self.assertEqual(self.warned, said)
        asked.cancel()
        self.world.run_for(1)
        self.failureResultOf(asked)


class WatchTests(ClusterCase):
    def test_a_topic_that_comes_back(self) -> None:
        """After the first table a failure is a line on standard error, and --watch goes on; before, it is the end."""
        parsed = parse(["topic", "show", "orders", "--watch", "2", "-o", "csv", "-n", self.namesrv])
        self.assertEqual(self.run_to_its_end(parsed), 2)
        self.text("topic", "create", "orders", "--queues", "1")
        asked = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_for(1)
        self.text("topic", "delete", "orders", "--yes")
        self.world.run_for(4)
        self.text("topic", "create", "orders", "--queues", "1")
        shown = len(self.emitted)
        self.world.run_for(4)
        self.assertGreater(len(self.emitted), shown)
        self.assertIn("has no route of topic orders", self.warned[0])
        self.assertNotIn("", self.emitted)
        asked.cancel()
        self.world.run_for(1)
        self.failureResultOf(asked)

    def run_to_its_end(self, parsed: argparse.Namespace) -> int:
        asked = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        return self.world.settle(asked).status


class SilentNamesrvTests(ClusterCase):
    def test_asked_last(self) -> None:
        """A NameServer that did not answer costs its timeout once, and changes still go to it."""
        away = "10.0.0.99:9876"
        self.text("topic", "create", "orders")
        asked: list[str] = []
        invoke = RemotingClient.invoke

        def watched(client: RemotingClient, addr: str, *more: Any, **settings: Any) -> Deferred[Any]:
            asked.append(addr)
            if addr == away:
                return fail(RequestTimeout(addr, f"{addr} did not answer"))
            return invoke(client, addr, *more, **settings)

        self.patch(RemotingClient, "invoke", watched)
        servers = f"{away};{self.namesrv}"
        self.text("topic", "stats", "-n", servers)
        self.assertEqual((asked[0], asked.count(away)), (away, 1))
        self.assertGreater(asked.count(self.namesrv), 2)
        asked.clear()
        result = self.admin("kv", "set", "NS", "k", "v", "-n", servers)
        self.assertEqual((result.status, asked), (3, [away, self.namesrv]))

    def test_one_answer(self) -> None:
        """No broker is registered at the NameServer that answered, not at the one that did not."""
        for member in self.cluster.members:
            member.node.kill()
        self.world.run_until(lambda: self.admin("cluster", "list").status == 2, 300, "the end of the registrations")
        said = self.fails(2, "cluster", "list", "-n", f"10.0.0.99:9876;{self.namesrv}")
        self.assertEqual(said, f"rmq-admin: no broker is registered at {self.namesrv}")


class UnansweredChangeTests(ClusterCase):
    def test_timeout(self) -> None:
        """A change without an answer may have been made, and its line says so; a refused one was not."""
        self.text("topic", "create", "orders")
        self.join("G", "orders").transport.loseConnection()  # type: ignore[union-attr]
        self.world.run_for(5)
        failure: RequestFailed = RequestTimeout(self.broker, f"{self.broker} did not answer")
        changes = (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        )
        asked = RemotingClient.invoke

        def invoke(client: RemotingClient, addr: str, contract: Any, *more: Any, **settings: Any) -> Deferred[Any]:
            return fail(failure) if contract.code in changes else asked(client, addr, contract, *more, **settings)

        self.patch(RemotingClient, "invoke", invoke)
        created = self.admin("topic", "create", "T")
        self.assertEqual(created.status, 3)
        self.assertIn(f"{self.broker} did not answer; the change may have been made", created.out)
        failure = RequestTimeout(self.broker, f"{self.broker} did not answer")
        said = self.fails(3, "group", "reset", "G", "orders", "--to", "begin", "--yes")
        self.assertTrue(said.endswith("the change may have been made"), said)
        failure = Refused(1, "no", self.broker)
        self.assertNotIn("may have been made", self.admin("topic", "create", "T").out)


class NoBrokerTests(ClusterCase):
    """Without a broker the answer is never that there is nothing: status 2, and a line that says so."""

    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders")
        for member in self.cluster.members:
            member.node.kill()
        self.world.run_until(lambda: self.admin("cluster", "list").status == 2, 300, "the end of the registrations")

    def test_questions(self) -> None:
        """Lists, figures, checks and changes alike."""
        said = f"rmq-admin: no broker is registered at {self.namesrv}"
        for line in (
            "cluster list", "topic list", "topic list --all", "topic stats", "group list", "group lag", "dlq list",
            "ha status", "ha status -c sim", "broker show", "broker config", "producer list", "cluster ping",
            "topic create T", "topic delete orders --yes", "group delete G --yes", "broker set maxMessageSize 1 --yes",
        ):  # fmt: skip
            with self.subTest(line=line):
                self.assertEqual(self.fails(2, *line.split()), said)

    def test_monitor(self) -> None:
        """`monitor` has a line for it: nothing is known of any group."""
        self.emitted.clear()
        (one,) = json.loads(self.admin("monitor", "--once", "-o", "json").out)
        self.assertEqual((one["group"], one["problem"]), (None, f"no broker is registered at {self.namesrv}"))

    def test_mqadmin(self) -> None:
        """mqadmin prints the titles of its tables, and no topic."""
        for name in ("clusterList", "consumerProgress"):
            self.assertRegex(self.text(name), "^#[^\n]*$")
        self.assertEqual(self.text("topicList"), "")


class SystemTopicTests(ClusterCase):
    def test_of_a_store_that_comes_from_5x(self) -> None:
        """Topics that only 5.x has are system topics as well: the list has them with --all only."""
        master = self.cluster.masters[0].broker
        for name in ("rmq_sys_wheel_timer", "orders"):
            config = TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
            master.topics.create(config)
            master.registration.topic_updated(config)
        self.world.run_for(1)
        self.assertEqual(self.data("topic", "list"), [{"topic": "orders"}])
        self.assertIn({"topic": "rmq_sys_wheel_timer"}, self.data("topic", "list", "--all"))


class TopicTests(ClusterCase):
    def test_replication(self) -> None:
        """`ha status` without an address asks the masters of the cluster, under its old name as well."""
        self.world.run_until(lambda: self.cluster.masters[0].broker.ha.status().in_sync_slaves, 30, "the slave")
        for name, lines in (
            (("ha", "status"), (f"{self.broker}: master\n", "    slave ")),
            (("haStatus",), (f"\n#MasterAddr\t{self.broker}\n#MasterCommitLogMaxOffset\t", "\n#SlaveNum\t1\n")),
        ):
            found = self.admin(*name, "--maxLag", "1000000")
            self.assertEqual((found.status, found.err), (0, ""))
            for line in lines:
                self.assertIn(line, found.out)

    def test_life_of_a_topic(self) -> None:
        """Created, altered, seen with its messages, made read-only, deleted."""
        self.assertEqual(self.data("topic", "list"), [])
        self.text("topic", "create", "orders", "--queues", "2")
        self.assertEqual(self.data("topic", "list"), [{"topic": "orders"}])
        (row,) = self.data("topic", "route", "orders")
        self.assertEqual((row["broker"], row["read_queues"], row["perm"]), ("broker-a", 2, "RW-"))
        self.assertIn(f"0={self.broker} 1=", row["addresses"])
        self.send("orders", 3)
        shown = self.data("topic", "show", "orders")
        self.assertEqual([(row["queue"], row["max_offset"], row["messages"]) for row in shown], [(0, 2, 2), (1, 1, 1)])
        self.assertRegex(shown[0]["last_message"], r"^\d{4}-\d\d-\d\dT.*Z$")
        self.text("topic", "perm", "orders", "r", "--yes")
        (row,) = self.data("topic", "route", "orders")
        self.assertEqual((row["read_queues"], row["perm"]), (2, "R--"))
        self.text("topic", "delete", "orders", "--yes")
        self.assertIn("no route of topic orders", self.fails(2, "topic", "show", "orders"))
        self.assertEqual(self.data("topic", "list"), [])

    def test_figures_without_a_route(self) -> None:
        """A topic without a route, which was deleted meanwhile, hides no other from `topic stats`."""
        self.text("topic", "create", "orders")
        self.text("topic", "create", "gone")
        asked = RemotingClient.invoke

        def invoke(client: RemotingClient, addr: str, contract: Any, header: Any, *more: Any, **settings: Any) -> Any:
            if contract.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and header.topic == "gone":
                return fail(Refused(17, "no route", addr, request_code=contract.code))
            return asked(client, addr, contract, header, *more, **settings)

        self.patch(RemotingClient, "invoke", invoke)
        topics = {row["topic"] for row in self.data("topic", "stats")}
        self.assertIn("orders", topics)
        self.assertNotIn("gone", topics)

    def test_names_of_mqadmin(self) -> None:
        """mqadmin's command lines do the same, print system topics too, and never ask."""
        self.text("updateTopic", "-c", "sim", "-t", "orders", "-r", "2", "-w", "3")
        self.assertIn("orders", self.text("topicList").splitlines())
        self.assertIn("TBW102", self.text("topicList").splitlines())
        self.text("deleteTopic", "-c", "sim", "-t", "orders")
        self.assertNotIn("orders", self.text("topicList").splitlines())
        self.assertEqual(self.questions, [])

    def test_refused(self) -> None:
        """A broker that refuses: status 1, with its remark beside its address."""
        result = self.admin("topic", "create", "TBW102")
        self.assertEqual(result.status, 1)
        self.assertIn(self.broker, result.out)
        self.assertIn("conflict with system topic", result.out)

    def test_confirmation(self) -> None:
        """Nothing is deleted until its name is typed; without a terminal the status is 4."""
        self.text("topic", "create", "orders", "--queues", "2")
        self.assertIn("not confirmed", self.fails(4, "topic", "delete", "orders"))
        self.assertEqual(self.admin("topic", "delete", "orders", typed="order").status, 4)
        self.assertEqual(self.data("topic", "list"), [{"topic": "orders"}])
        self.assertEqual(self.admin("topic", "delete", "orders", typed="orders").status, 0)
        self.assertEqual(self.data("topic", "list"), [])
        self.assertEqual(self.questions[0], f"topic orders and its messages are deleted from {self.broker}")

    def test_delete_what_is_not_there(self) -> None:
        """A topic that no server has: status 2, nothing is sent; mqadmin deletes without looking."""
        for more in (("--yes",), ("--dry-run",), ()):
            self.assertEqual(self.fails(2, "topic", "delete", "nosuch", *more), "rmq-admin: there is no topic nosuch")
        self.assertIn("delete topic [nosuch]", self.text("deleteTopic", "-c", "sim", "-t", "nosuch"))
        self.assertIn("there is no topic nosuch", self.fails(2, "topic", "stats", "nosuch"))

    def test_delete_what_only_some_have(self) -> None:
        """A topic that only a broker has, or only a NameServer, is deleted."""
        self.text("topic", "create", "orders")
        (row,) = [one for one in self.data("cluster", "list") if one["id"] == 0]
        asked = RemotingClient.invoke
        for lost in (row["address"], self.namesrv):

            def invoke(
                client: RemotingClient, addr: str, contract: Any, *more: Any, lost: str = lost, **settings: Any
            ) -> Deferred[Any]:
                looks = (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC)
                if addr == lost and contract.code in looks:
                    return fail(Refused(17, "no topic", addr))
                return asked(client, addr, contract, *more, **settings)

            self.patch(RemotingClient, "invoke", invoke)
            self.assertIn("orders is deleted", self.text("topic", "delete", "orders", "--yes"))
            self.text("topic", "create", "orders")

    def test_unknown_cluster(self) -> None:
        """A cluster that is not there: status 2, and those that are."""
        self.assertIn("no cluster Other; clusters known: sim", self.fails(2, "cluster", "list", "-c", "Other"))
        self.assertIn("no cluster Other; clusters known: sim", self.fails(2, "topic", "create", "T", "-c", "Other"))


MQADMIN_CLONE = ("cloneGroupOffset", "-s", "nosuch", "-d", "H", "-t", "orders", "-o", "true")


class GroupTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "2")
        self.send("orders", 5)

    def test_lag(self) -> None:
        """Lag in each queue and in all; --maxLag makes it an exit status."""
        self.join("G", "orders")
        self.commit("G", "orders", 1, 2)
        rows = self.data("group", "show", "G")
        found = {
            (row["topic"], row["queue"]): (row["broker_offset"], row["consumer_offset"], row["lag"]) for row in rows
        }
        self.assertEqual(found["orders", 0], (3, 1, 2))
        self.assertEqual(found["orders", 1], (2, 2, 0))
        (row,) = self.data("group", "list")
        self.assertEqual((row["group"], row["members"], row["model"], row["lag"]), ("G", 1, "CLUSTERING", 2))
        self.assertEqual(self.admin("group", "show", "G", "--maxLag", "1").status, 2)
        self.assertEqual(self.admin("group", "show", "G", "--maxLag", "2").status, 0)
        (member,) = self.data("group", "members", "G")
        self.assertEqual((member["client_id"], member["language"]), ("10.0.0.9@1", "JAVA"))
        self.assertIn("orders: *", member["subscriptions"])

    def test_a_refusal_is_no_answer(self) -> None:
        """A broker that refuses to say who the members are, for example for want of an account: status 1."""
        self.join("G", "orders")
        refused = Refused(1, "no account", self.broker)
        asked = RemotingClient.invoke

        def invoke(client: RemotingClient, addr: str, contract: Any, *more: Any, **settings: Any) -> Deferred[Any]:
            if contract.code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
                return fail(refused)
            return asked(client, addr, contract, *more, **settings)

        self.patch(RemotingClient, "invoke", invoke)
        self.assertIn("no account", self.fails(1, "group", "members", "G"))
        listed = self.admin("group", "list")
        self.assertEqual(listed.status, 1)
        self.assertIn("no account", listed.err)

    def test_unknown(self) -> None:
        """A group that never consumed: status 2."""
        self.assertIn("no group H", self.fails(2, "group", "show", "H"))
        self.assertEqual(self.text("group", "list"), "no group has consumed yet")

    def reset(self, *arguments: str) -> dict[int, tuple[int, int]]:
        rows = self.data("group", "reset", "G", "orders", "--yes", *arguments)
        return {row["queue"]: (row["old_offset"], row["new_offset"]) for row in rows}

    def positions(self) -> dict[int, int]:
        rows = self.data("group", "show", "G")
        return {row["queue"]: row["consumer_offset"] for row in rows if row["topic"] == "orders"}

    def test_reset_without_members(self) -> None:
        """Offsets are written: to the begin, the end, a time; not forward without --force."""
        self.join("G", "orders").transport.loseConnection()  # type: ignore[union-attr]
        self.world.run_for(5)
        self.commit("G", "orders", 1, 2)
        self.assertEqual(self.reset("--to", "begin"), {0: (1, 0), 1: (2, 0)})
        self.assertEqual(self.positions(), {0: 0, 1: 0})
        self.assertEqual(self.reset("--to", "end", "--force", "false"), {})
        self.assertEqual(self.reset("--to", "end"), {0: (0, 3), 1: (0, 2)})
        self.assertEqual(self.positions(), {0: 3, 1: 2})
        self.assertEqual(self.reset("--to", "2001-01-01T00:00"), {0: (3, 0), 1: (2, 0)})
        self.assertEqual(self.admin("group", "skip", "G", "orders", typed="G").status, 0)
        self.assertEqual(self.positions(), {0: 3, 1: 2})

    def test_reset_of_members(self) -> None:
        """Members that are online get the new offsets from their broker (220); the old ones are shown, to go back."""
        member = self.join("G", "orders")
        self.commit("G", "orders", 3, 2)
        self.assertEqual(self.reset("--to", "begin"), {0: (3, 0), 1: (2, 0)})
        self.world.run_until(lambda: member.requests(220), 5, "the reset at the member")

    def test_reset_of_a_group_that_never_consumed(self) -> None:
        """Its offsets are written, so that it begins there."""
        self.text("group", "create", "G")
        self.assertEqual(self.reset("--to", "end"), {0: (0, 3), 1: (0, 2)})
        self.join("G", "orders")
        self.assertEqual(self.positions(), {0: 3, 1: 2})

    def test_reset_of_no_group(self) -> None:
        """A group that no broker has, perhaps a name with a mistake: status 2, nothing is written."""
        mqadmin = ("-g", "nosuch", "-t", "orders")
        for arguments in (
            ("group", "reset", "nosuch", "orders", "--to", "begin", "--yes"),
            ("group", "reset", "nosuch", "orders", "--to", "1", "--queue", "broker-a:0", "--yes"),
            ("group", "skip", "nosuch", "orders", "--yes"),
            ("resetOffsetByTime", *mqadmin, "-s", "now"),
            ("skipAccumulatedMessage", *mqadmin),
        ):
            self.assertIn("there is no group nosuch", self.fails(2, *arguments))
        self.assertEqual(self.cluster.masters[0].broker.offsets.positions("nosuch", "orders"), {})

    def test_reset_to_nonsense(self) -> None:
        """A time that is none: wrong use, before anything is asked."""
        self.assertIn("2026-01-31T12:00", self.fails(64, "group", "reset", "G", "orders", "--to", "soon"))

    def test_reset_of_a_queue(self) -> None:
        """One queue, to an offset too, which stays within the queue; not while members would write theirs again."""
        member = self.join("G", "orders")
        self.commit("G", "orders", 1, 2)
        arguments = ("group", "reset", "G", "orders", "--yes", "--queue", "broker-a:0")
        self.assertIn("has members at broker broker-a", self.fails(64, *arguments, "--to", "2"))
        assert member.transport is not None
        member.transport.loseConnection()
        self.world.run_for(5)
        self.assertEqual(self.reset("--queue", "broker-a:0", "--to", "2"), {0: (1, 2)})
        self.assertEqual(self.positions(), {0: 2, 1: 2})
        self.assertEqual(self.reset("--queue", "broker-a:1", "--to", "begin"), {1: (2, 0)})
        self.assertEqual(
            self.reset("--queue", "broker-a:0", "--queue", "broker-a:1", "--to", "99"), {0: (2, 3), 1: (0, 2)}
        )
        said = self.fails(64, "group", "reset", "G", "orders", "--yes", "--queue", "broker-a:7", "--to", "end")
        self.assertIn("no queue broker-a:7; queues: broker-a:0, broker-a:1", said)
        self.fails(4, "group", "reset", "G", "orders", "--queue", "broker-a:0", "--to", "1")

    def test_reset_of_a_queue_by_the_broker(self) -> None:
        """A broker of 5.x that resets by itself is asked to, also while members are online."""
        member = self.join("G", "orders")
        self.commit("G", "orders", 3, 2)
        asked = RemotingClient.invoke

        def invoke(client: RemotingClient, addr: str, contract: Any, *more: Any, **settings: Any) -> Deferred[Any]:
            if contract.code == RequestCode.GET_BROKER_CONFIG:
                return succeed(Response(None, b"useServerSideResetOffset=true\n", 0, None, {}))
            return asked(client, addr, contract, *more, **settings)

        self.patch(RemotingClient, "invoke", invoke)
        self.assertEqual(self.reset("--queue", "broker-a:0", "--to", "1"), {0: (3, 1)})
        self.world.run_until(lambda: member.requests(220), 5, "the reset at the member")
        (pushed,) = member.requests(220)
        self.assertIn(b'"queueId":0', pushed.body or b"")
        self.assertNotIn(b'"queueId":1', pushed.body or b"")

    def test_clone(self) -> None:
        """A group takes over the offsets of another; not while its members would write theirs again."""
        self.join("G", "orders")
        self.commit("G", "orders", 1, 2)
        member = self.join("H", "orders")
        clone = ("group", "clone", "G", "H", "orders", "--yes")
        self.assertIn("H has members at broker broker-a", self.fails(64, *clone))
        assert member.transport is not None
        member.transport.loseConnection()
        self.world.run_for(5)
        self.text(*clone)
        rows = self.data("group", "show", "H")
        self.assertEqual([row["consumer_offset"] for row in rows if row["topic"] == "orders"], [1, 2])

    def test_clone_of_nothing(self) -> None:
        """A source without an offset in the topic, perhaps a name with a mistake: status 2, nothing is sent."""
        for name in (("group", "clone", "nosuch", "H", "orders", "--yes"), MQADMIN_CLONE):
            self.assertIn("group nosuch has no offset in topic orders", self.fails(2, *name))

    def test_create_and_delete(self) -> None:
        """A created group is there for its members, a deleted one is not."""
        self.text("group", "create", "G", "--retryMaxTimes", "3")
        groups = self.cluster.masters[0].broker.groups
        created = groups.get("G")
        assert created is not None
        self.assertEqual((created.retry_max_times, created.consume_broadcast_enable), (3, True))
        more = ("-m", "true", "-i", "1", "-w", "2", "-a", "false")
        self.text("updateSubGroup", "-c", "sim", "-g", "G", *more)
        altered = groups.get("G")
        assert altered is not None
        self.assertEqual((altered.consume_from_min_enable, altered.broker_id), (True, 1))
        self.assertEqual(
            (altered.which_broker_when_consume_slowly, altered.notify_consumer_ids_changed_enable), (2, False)
        )
        self.assertFalse(altered.consume_broadcast_enable)  # mqadmin's default
        self.text("group", "delete", "G", "--yes")
        self.assertIsNone(groups.get("G"))

    def test_delete_with_its_topics(self) -> None:
        """A group is deleted with its retries and dead letters and is listed no longer; not where a broker is named."""
        for name, more in (("group", ("delete", "G", "--yes")), ("deleteSubGroup", ("-c", "sim", "-g", "G"))):
            self.join("G", "orders").transport.loseConnection()  # type: ignore[union-attr]
            self.text("topic", "create", "%DLQ%G", "--queues", "1")
            self.world.run_for(5)
            self.text("group", "delete", "G", "--yes", "-b", self.broker)
            self.assertLessEqual({"%RETRY%G", "%DLQ%G"}, set(self.text("topic", "list", "--all").split()))
            self.text(name, *more)
            self.world.run_for(5)
            self.assertNotIn("G", self.text("topic", "list", "--all").replace("%", " ").split())
            self.assertEqual(self.text("group", "list"), "no group has consumed yet")

    def test_options_of_5x(self) -> None:
        """One topic of a group, one queue of a reset, and what only brokers of 5.x know of a topic or a group."""
        self.join("G", "orders").transport.loseConnection()  # type: ignore[union-attr]
        self.world.run_for(5)
        self.commit("G", "orders", 1, 2)
        shown = self.text("consumerProgress", "-g", "G", "-t", "orders")
        self.assertEqual([line.split()[0] for line in shown.splitlines()[1:3]], ["orders", "orders"])
        self.assertIn("no offset in topic others", self.fails(2, "consumerProgress", "-g", "G", "-t", "others"))
        reset = ("resetOffsetByTime", "-g", "G", "-t", "orders", "-s", "-1", "-q", "1", "-o", "0")
        self.assertIn("-q 1 needs -b", self.fails(64, *reset))
        self.text(*reset, "-b", self.broker)
        self.assertEqual(self.positions(), {0: 1, 1: 0})
        self.emitted.clear()
        for changed in (
            ("updateTopic", "-c", "sim", "-t", "T", "-a", "+message.type=FIFO"),
            ("updateSubGroup", "-c", "sim", "-g", "G", "-o", "true", "-p", '{"type":"EXPONENTIAL"}'),
            ("updateSubGroup", "-c", "sim", "-g", "G", "--attributes", "+a=b,-c"),
            ("updateSubGroup", "-c", "sim", "-g", "G"),
        ):
            self.admin(*changed, "--dry-run")
        topic, ordered, attributes, plain = self.emitted
        self.assertIn("attributes=+message.type=FIFO", topic)
        self.assertIn("consumeMessageOrderly=True groupRetryPolicy={'type': 'EXPONENTIAL'}", ordered)
        self.assertIn("attributes={'+a': 'b', '-c': ''}", attributes)
        self.assertNotIn("attributes", plain)
        self.assertIn("+KEY=VALUE or -KEY", ended("updateSubGroup", "-g", "G", "--attributes", "a=b")[1])

    def test_delete_what_is_not_there(self) -> None:
        """A group that no broker has, nor its offsets: status 2, nothing is sent; mqadmin deletes without looking."""
        for more in (("--yes",), ("--dry-run",), ()):
            self.assertIn("there is no group nosuch", self.fails(2, "group", "delete", "nosuch", *more))
        self.assertIn("group [nosuch]", self.text("deleteSubGroup", "-c", "sim", "-g", "nosuch"))

    def test_delete_offsets_only(self) -> None:
        """A group of which a broker has nothing but offsets is deleted with them."""
        self.commit("H", "orders", 1, 2)
        broker = self.cluster.masters[0].broker
        broker.groups.delete("H")
        self.text("group", "delete", "H", "--removeOffset", "true", "--yes")
        self.assertIn("there is no group H", self.fails(2, "group", "delete", "H", "--yes"))


class ServerTests(ClusterCase):
    def test_configuration(self) -> None:
        """A key is set and seen; keys that differ between brokers are found with --diff."""
        self.text("broker", "set", "maxMessageSize", "1000", "-b", self.broker, "--yes")
        rows = self.data("broker", "config", "-b", self.broker)
        self.assertEqual([row["value"] for row in rows if row["key"] == "maxMessageSize"], ["1000"])
        slave = self.cluster.members[1].addr
        result = self.admin("broker", "config", "--diff", "-b", f"{self.broker};{slave}")
        self.assertEqual(result.status, 2)
        self.assertIn("maxMessageSize", result.out)
        self.assertNotIn("listenPort", result.out)
        self.text("namesrv", "set", "orderMessageEnable", "true", "--yes")
        rows = self.data("namesrv", "config")
        self.assertEqual([row["value"] for row in rows if row["key"] == "orderMessageEnable"], ["true"])

    def test_figures(self) -> None:
        """Runtime figures of a broker, as mqadmin's brokerStatus asks for them."""
        figures = {row["figure"] for row in self.data("broker", "show")}
        self.assertLessEqual({"putTps", "msgPutTotalTodayNow", "commitLogMaxOffset"}, figures)
        self.assertEqual({row["figure"] for row in self.data("brokerStatus", "-b", self.broker)}, figures)

    def test_drain(self) -> None:
        """Producers leave a drained broker name, and come back."""
        self.text("topic", "create", "orders", "--queues", "2")
        self.text("broker", "drain", "broker-a", "--yes")
        self.assertEqual(self.data("topic", "route", "orders")[0]["perm"], "R--")
        self.text("broker", "undrain", "broker-a")
        self.assertEqual(self.data("topic", "route", "orders")[0]["perm"], "RW-")
        for name in (("broker", "drain"), ("broker", "undrain"), ("wipeWritePerm", "-b"), ("addWritePerm", "-b")):
            self.assertEqual(self.fails(2, *name, "brokera"), "rmq-admin: no broker brokera; brokers known: broker-a")

    def test_keys_and_values(self) -> None:
        """The NameServers' table: set, read, listed, deleted."""
        self.text("kv", "set", "NS", "k", "v w")
        self.assertEqual(self.text("kv", "get", "NS", "k"), "v w")
        self.assertEqual(self.data("kv", "list", "NS"), [{"key": "k", "value": "v w"}])
        self.text("kv", "delete", "NS", "k", "--yes")
        self.assertIn("no key k in namespace NS", self.fails(2, "kv", "get", "NS", "k"))
        self.assertIn("no namespace OTHER", self.fails(2, "kv", "list", "OTHER"))

    def test_csv(self) -> None:
        """The first line of csv names the columns."""
        self.text("kv", "set", "NS", "k", 'a "quoted", value')
        rows = list(csv.reader(io.StringIO(self.text("kv", "list", "NS", "-o", "csv"))))
        self.assertEqual(rows, [["key", "value"], ["k", 'a "quoted", value']])
        self.assertIn("no table", self.fails(64, "route", "dump", "-o", "csv"))

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.text(*arguments, "-o", "csv"))))

    def test_csv_of_a_message(self) -> None:
        """Its fields in one line; what it does not have is empty."""
        self.text("topic", "create", "orders", "--queues", "1")
        self.admin("produce", "orders", "-m", 'a, "b"', "-k", "k1")
        (row,) = self.rows("message", "at", "orders", "broker-a", "0", "0")
        self.assertEqual((row["tags"], row["keys"], row["offset"], row["body"]), ("", "k1", "0", 'a, "b"'))
        self.assertEqual(self.rows("message", "show", row["offset_message_id"])[0]["body"], row["body"])

    def test_csv_of_replication(self) -> None:
        """A line for each slave of a master, and for a slave."""
        self.world.run_until(lambda: self.cluster.masters[0].broker.ha.status().in_sync_slaves, 30, "the slave")
        slave = self.cluster.members[1].addr
        of_master, of_slave = self.rows("ha", "status", "-b", f"{self.broker};{slave}")
        self.assertEqual((of_master["role"], of_master["in_sync"], of_master["lag_bytes"]), ("master", "true", "0"))
        self.assertEqual((of_slave["role"], of_slave["connected"], of_slave["in_sync"]), ("slave", "true", ""))

    def test_watch(self) -> None:
        """With --watch a command runs again until it is stopped."""
        parsed = parse(["topic", "list", "--watch", "2", "-n", self.namesrv])
        asked = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_for(7)
        self.assertEqual(self.emitted, ["no topic"] * 4)
        self.text("topic", "create", "orders")
        self.world.run_for(2)
        self.assertEqual(self.emitted[-1], "TOPIC\norders")
        asked.cancel()
        self.world.run_for(1)
        self.failureResultOf(asked)

    def test_unreachable_namesrv(self) -> None:
        """The next NameServer answers for one that cannot be reached; when none can, the status is 3."""
        away = "10.0.0.99:9876"
        self.assertEqual(self.text("topic", "list", "-n", f"{away};{self.namesrv}"), "no topic")
        self.assertIn(away, self.fails(3, "topic", "list", "-n", away))


class MessageTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "2")

    def lines(self, *arguments: str, lines: Sequence[bytes] = ()) -> list[str]:
        """Run a command that succeeds; return what it printed line by line."""
        self.emitted.clear()
        result = self.admin(*arguments, lines=lines)
        self.assertEqual((result.status, result.out, result.err), (0, "", ""))
        return list(self.emitted)

    def tail(self, topic: str, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.lines("tail", topic, "--exit", "-o", "json", *arguments)]

    def test_produce_and_tail(self) -> None:
        """What was produced is there: body, tag, keys, properties; one line for each message."""
        more = ("-k", "k1", "-k", "k2", "-c", "A", "-P", "colour=red")
        (line,) = self.lines("produce", "orders", "-m", "Grüße", "--queue", "broker-a:1", *more, "-o", "json")
        sent = json.loads(line)
        self.assertEqual((sent["broker"], sent["queue"], sent["offset"], sent["status"]), ("broker-a", 1, 0, "OK"))
        (seen,) = self.tail("orders", "--from", "begin")
        self.assertEqual(seen["body"], "Grüße")
        self.assertEqual((seen["tags"], seen["keys"], seen["properties"]["colour"]), ("A", ["k1", "k2"], "red"))
        self.assertEqual(seen["message_id"], sent["message_id"])
        (line,) = self.lines("tail", "orders", "--exit", "--from", "begin")
        self.assertRegex(line, r"^broker-a:1 0 \S+Z tags=A keys=k1 k2 Grüße$")

    def test_arguments_that_are_no_utf8(self) -> None:
        """The bytes of the command line are the body, which Python has as surrogates."""
        self.lines("produce", "orders", "-m", os.fsdecode(b"\xff\xfe"))
        (seen,) = self.tail("orders", "--from", "begin")
        self.assertEqual(seen["body_base64"], "//4=")

    def test_lines_and_copies(self) -> None:
        """Each line of standard input is a message; what tail prints as JSON can be produced elsewhere."""
        self.lines("produce", "orders", "-c", "A", lines=[b"one\n", b"\xff\x00\n", b"three"])
        bodies = {row.get("body") or row["body_base64"] for row in self.tail("orders", "--from", "begin")}
        self.assertEqual(bodies, {"one", "/wA=", "three"})
        printed = [line.encode() for line in self.lines("tail", "orders", "--exit", "--from", "begin", "-o", "json")]
        self.text("topic", "create", "copy", "--queues", "1")
        self.lines("produce", "copy", "--ndjson", lines=printed)
        copies = self.tail("copy", "--from", "begin")
        self.assertEqual({row.get("body") or row["body_base64"] for row in copies}, bodies)
        self.assertEqual({row["tags"] for row in copies}, {"A"})
        self.assertIn("line 1", self.fails_with(b"not json\n", "produce", "copy", "--ndjson"))

    def fails_with(self, line: bytes, *arguments: str) -> str:
        result = self.admin(*arguments, lines=[line])
        self.assertEqual(result.status, 64, result)
        return result.err

    def test_parts_of_a_topic(self) -> None:
        """From the last messages, from a time, of one queue, with a tag, a number of them."""
        for n, tag in enumerate("ABABA"):
            self.lines("produce", "orders", "-m", f"{n}", "-c", tag, "--queue", f"broker-a:{n % 2}")
        self.assertEqual([row["body"] for row in self.tail("orders", "--from", "-1", "-q", "broker-a:0")], ["4"])
        self.assertEqual({row["body"] for row in self.tail("orders", "--from", "begin", "--tags", "B")}, {"1", "3"})
        self.assertEqual(len(self.tail("orders", "--from", "begin", "--count", "3")), 3)
        self.assertEqual(len(self.tail("orders", "--from", "2001-01-01T00:00")), 5)
        self.assertEqual(self.tail("orders"), [])
        self.assertIn("broker-a:0, broker-a:1", self.fails(64, "tail", "orders", "-q", "broker-a:7"))
        self.assertIn("2026-01-31", self.fails(64, "tail", "orders", "--from", "soon"))

    def test_where_it_ends(self) -> None:
        """--to is written like --from; what is there now and before it is printed, without --exit too."""
        for n in range(5):
            self.lines("produce", "orders", "-m", f"{n}", "--queue", "broker-a:0")

        def bodies(*arguments: str) -> list[str]:
            printed = self.lines("tail", "orders", "--from", "begin", "-o", "json", *arguments)
            return [json.loads(line)["body"] for line in printed]

        self.assertEqual(bodies("--to", "2"), ["0", "1"])
        self.assertEqual(bodies("--to", "-1"), ["0", "1", "2", "3"])
        self.assertEqual(bodies("--to", "end"), ["0", "1", "2", "3", "4"])
        self.assertEqual(bodies("--to", "2001-01-01T00:00"), [])
        self.assertIn("--to soon: begin, end", self.fails(64, "tail", "orders", "--to", "soon"))

    def test_forms(self) -> None:
        """Lines in a format of one's own; bodies as base64, hexadecimal or not at all."""
        more = ("-k", "k1", "-k", "k2", "-c", "A", "-P", "colour=red")
        self.lines("produce", "orders", "-m", "one", "--queue", "broker-a:1", *more)
        begin = ("tail", "orders", "--from", "begin", "--exit")
        self.assertEqual(
            self.lines(*begin, "-F", r"%t %q %o\t%k|%g %b/%B %p %%"),
            ["orders broker-a:1 0\tk1 k2|A one/3 colour=red %"],
        )
        (line,) = self.lines(*begin, "-F", "%i %d", "--show", "none")
        self.assertRegex(line, r"^[0-9A-F]{32} \S+Z$")
        self.assertEqual(self.lines(*begin, "-F", "%b", "--show", "hex"), ["hex:6f6e65"])
        (line,) = self.lines(*begin, "--show", "base64")
        self.assertTrue(line.endswith("keys=k1 k2 base64:b25l"), line)
        (line,) = self.lines(*begin, "--show", "none")
        self.assertTrue(line.endswith("keys=k1 k2"), line)
        (row,) = self.tail("orders", "--from", "begin", "--show", "hex")
        self.assertEqual((row["body_hex"], "body" in row), ("6f6e65", False))
        self.assertIn("%x in 'a %x' is none of %t", ended("tail", "orders", "-F", "a %x")[1])
        self.assertIn("either --format or -o json", self.fails(64, *begin, "-F", "%b", "-o", "json"))

    def test_grep(self) -> None:
        """Only bodies with a match are printed, and counted."""
        for text in ("order 1", "refund 2", "order 3"):
            self.lines("produce", "orders", "-m", text, "--queue", "broker-a:0")
        begin = ("tail", "orders", "--from", "begin", "--exit", "-F", "%b")
        self.assertEqual(self.lines(*begin, "--grep", r"^order \d"), ["order 1", "order 3"])
        self.assertEqual(self.lines(*begin, "--grep", "2|3", "--count", "1"), ["refund 2"])
        self.assertIn("no regular expression", ended("tail", "orders", "--grep", "(")[1])

    def test_rate_and_batch(self) -> None:
        """So many messages a second; so many in one request, a line for each all the same."""
        began = self.world.now_s
        self.lines("produce", "orders", "--rate", "2", lines=[b"a", b"b", b"c", b"d", b"e"])
        self.assertTrue(2 <= self.world.now_s - began < 3, self.world.now_s - began)
        sent = self.lines("produce", "orders", "--batch", "2", "--queue", "broker-a:0", lines=[b"f", b"g", b"h"])
        self.assertEqual([line.split()[1] for line in sent], ["broker-a:0"] * 3)
        offsets = [int(line.split()[2]) for line in sent]
        self.assertEqual(offsets, list(range(offsets[0], offsets[0] + 3)))
        seen = self.lines("tail", "orders", "-q", "broker-a:0", "--from", "-3", "--exit", "-F", "%o %i %b")
        self.assertEqual(
            seen, [f"{n} {line.split()[0]} {body}" for n, line, body in zip(offsets, sent, "fgh", strict=True)]
        )
        self.assertIn("--batch", self.fails(64, "produce", "orders", "-m", "x", "--batch", "2", "--delay", "1"))
        self.assertIn("no number of messages", ended("produce", "orders", "--rate", "0")[1])

    def test_delay(self) -> None:
        """A level is a number from 1 to 18; a time is none, and the levels are said."""
        for text in ("0", "19", "40", "10s", "-1"):
            status, said = ended("produce", "orders", "-m", "x", f"--delay={text}")
            self.assertEqual(status, 64)
            self.assertIn("no delay level: 1 to 18 are by default 1s 5s 10s", said)
        self.lines("produce", "orders", "-m", "late", "--delay", "2")
        self.assertEqual(self.tail("orders", "--from", "begin"), [])
        self.world.run_for(8)
        (row,) = self.tail("orders", "--from", "begin")
        self.assertEqual(row["body"], "late")

    def test_letters_of_mqadmin(self) -> None:
        """sendMessage has a queue in two options; its -m is no body."""
        sent = (
            "sendMessage",
            "-t",
            "orders",
            "-p",
            "x",
            "-k",
            "k1 k2",
            "-c",
            "A",
            "-b",
            "broker-a",
            "-i",
            "1",
            "-m",
            "true",
        )
        titles, line = self.lines(*sent)
        self.assertEqual(titles, "#Broker Name                      #QID  #Send Result            #MsgId")
        self.assertRegex(line, "^broker-a {24}  1     SEND_OK                 [0-9A-F]{32}$")
        self.assertEqual(self.tail("orders", "--from", "begin")[0]["keys"], ["k1", "k2"])

    def test_follow(self) -> None:
        """Without --exit new messages are printed as they come, until --count."""
        self.emitted.clear()
        parsed = parse(["tail", "orders", "--count", "2", "-n", self.namesrv])
        done = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_for(3)
        self.assertEqual(self.emitted, [])
        self.send("orders", 2)
        result = self.world.settle(done)
        self.assertEqual((result.status, len(self.emitted)), (0, 2))

    def following(self, *arguments: str) -> Deferred[Result]:
        """Begin a `tail` of orders that prints bodies as they come."""
        self.emitted.clear()
        self.warned.clear()
        parsed = parse(["tail", "orders", "-F", "%q %o", *arguments, "-n", self.namesrv])
        return Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))

    def test_follow_across_a_restart(self) -> None:
        """A broker that restarts does not end a `tail`: it says so once, and goes on where it was."""
        done = self.following("--count", "4")
        self.world.run_for(3)
        self.send("orders", 2)
        self.world.run_for(2)
        self.assertEqual(sorted(self.emitted), ["broker-a:0 0", "broker-a:1 0"])
        for member in self.cluster.members:
            member.node.kill()
        self.world.run_for(20)
        self.assertNoResult(done)
        (text,) = self.warned
        self.assertIn("broker broker-a does not answer, it is asked again every 1 s", text)
        for member in self.cluster.members:
            member.node.start()
        self.world.run_for(10)
        self.assertEqual(self.warned[1:], [f"rmq-admin: broker broker-a answers again, at {self.broker}"])
        self.send("orders", 2)
        self.assertEqual(self.world.settle(done).status, 0)
        self.assertEqual(sorted(self.emitted), ["broker-a:0 0", "broker-a:0 1", "broker-a:1 0", "broker-a:1 1"])

    def test_follow_to_another_broker(self) -> None:
        """Where the route names another broker of that name, `tail` goes on there, at the same offsets."""
        master, slave = self.cluster.members
        self.world.run_for(70)  # the slave takes topics over once a minute
        done = self.following("--count", "4")
        self.world.run_for(3)
        self.send("orders", 2)
        self.world.run_for(2)
        master.node.kill()
        self.world.run_for(130)  # a NameServer may believe so long that it is there
        self.assertEqual(self.warned[1:], [f"rmq-admin: broker broker-a answers again, at {slave.addr}"])
        master.node.start()
        self.world.run_for(10)
        self.send("orders", 2)
        self.assertEqual(self.world.settle(done).status, 0)
        self.assertEqual(sorted(self.emitted), ["broker-a:0 0", "broker-a:0 1", "broker-a:1 0", "broker-a:1 1"])

    def test_follow_past_a_slave_without_the_topic(self) -> None:
        """A slave that does not have a new topic yet does not end a `tail`: it goes on when the master is back."""
        done = self.following("--count", "2")
        self.world.run_for(3)
        self.cluster.members[0].node.kill()
        self.world.run_for(20)
        self.assertNoResult(done)
        self.cluster.members[0].node.start()
        self.world.run_for(10)
        self.assertEqual(self.warned[1:], [f"rmq-admin: broker broker-a answers again, at {self.broker}"])
        self.send("orders", 2)
        self.assertEqual(self.world.settle(done).status, 0)

    def test_follow_ends(self) -> None:
        """A broker that never answered ends a `tail`, and so does one that has no such topic any more."""
        done = self.following()
        self.world.run_for(2)
        self.text("topic", "delete", "orders", "--yes")
        result = self.world.settle(done)
        self.assertEqual((result.status, self.warned), (2, []), result)
        self.assertIn(f"topic orders does not exist any more at broker broker-a, {self.broker}", result.err)
        self.text("topic", "create", "orders", "--queues", "2")
        for member in self.cluster.members:
            member.node.crash()
        self.assertEqual(self.world.settle(self.following()).status, 3)
        self.assertEqual(self.warned, [])

    def test_follow_of_a_topic_deleted_meanwhile(self) -> None:
        """A `tail` whose broker is back without the topic ends: the master says so, and it is not a slave."""
        master, _ = self.cluster.members
        done = self.following()
        self.world.run_for(2)
        self.cluster.net.partition(self.machine, master.node)
        self.world.run_for(20)
        self.assertNoResult(done)
        there, self.machine = self.machine, Node(self.world, self.cluster.net, "elsewhere")
        self.machine.start()
        self.text("topic", "delete", "orders", "--yes")
        self.machine = there
        self.cluster.net.heal()
        result = self.world.settle(done)
        self.assertEqual((result.status, result.out), (2, ""))
        self.assertIn(f"topic orders does not exist any more at broker broker-a, {self.broker}", result.err)
        self.assertEqual(len(self.warned), 1)

    def test_consume_a_topic_deleted_meanwhile(self) -> None:
        """A `consume` waits for a topic, through restarts of servers too, and ends when the topic is deleted."""
        parsed = parse(["consume", "later", "-g", "G", "--from", "begin", "-n", self.namesrv])
        done = Deferred.fromCoroutine(run(platform_for(self.machine), parsed, self.terminal()))
        self.world.run_for(20)
        self.assertNoResult(done)
        self.text("topic", "create", "later", "--queues", "1")
        self.emitted.clear()
        self.send("later", 1)
        self.world.run_for(10)
        self.assertEqual(len(self.emitted), 1)
        (namesrv,) = self.cluster.name_servers
        for node in (namesrv, *(member.node for member in self.cluster.members)):
            node.kill()
        self.world.run_for(20)
        namesrv.start()
        self.world.run_for(20)
        for member in self.cluster.members:
            member.node.start()
        self.world.run_for(40)
        self.assertNoResult(done)
        self.text("topic", "delete", "later", "--yes")
        result = self.world.settle(done)
        self.assertEqual((result.status, result.out), (2, ""))
        self.assertEqual(result.err, f"rmq-admin: topic later does not exist any more at {self.broker}")

    def test_find_and_show(self) -> None:
        """A message is found by key, by the producer's id and by the broker's."""
        (line,) = self.lines("produce", "orders", "-m", "x", "-k", "order-1", "-o", "json")
        sent = json.loads(line)
        self.world.run_for(2)
        (row,) = self.data("message", "find", "orders", "order-1")
        self.assertEqual((row["message_id"], row["offset"]), (sent["message_id"], sent["offset"]))
        self.assertIn("no message with key order-2", self.fails(2, "message", "find", "orders", "order-2"))
        (by_producer,) = self.data("message", "show", sent["message_id"], "-t", "orders")
        (by_broker,) = self.data("message", "show", sent["offset_message_id"])
        self.assertEqual((by_producer["body"], by_broker["body"]), ("x", "x"))
        for one in (sent["message_id"], sent["offset_message_id"]):  # mqadmin 5.x wants the topic with both
            (found,) = self.data("queryMsgById", "-t", "orders", "-i", one)
            self.assertEqual(found, by_producer)
        self.text("topic", "create", "others")
        self.assertIn(
            "topic others has no message", self.fails(2, "message", "show", sent["offset_message_id"], "-t", "others")
        )
        self.assertIn("needs its topic", self.fails(64, "message", "show", sent["message_id"]))
        decode = parse(["message", "decode", sent["offset_message_id"]])
        asked = Deferred.fromCoroutine(run(platform_for(self.machine), decode, self.terminal()))
        self.assertIn(self.broker, self.world.settle(asked).out)
        nowhere = sent["offset_message_id"][:-16] + f"{10**9:016X}"
        self.assertIn("no message at offset", self.fails(2, "message", "show", nowhere))

    def test_dead_letters(self) -> None:
        """Messages that a group gave up are listed, shown, and delivered again to that group only."""
        self.assertEqual(self.text("dlq", "list"), "no group has given a message up")
        self.lines("produce", "orders", "-m", "bad", "-k", "k", "--queue", "broker-a:0")
        member = self.join("G", "orders")
        back = {"offset": "0", "group": "G", "delayLevel": "-1", "originTopic": "orders", "maxReconsumeTimes": "16"}
        self.assertEqual(member.ask(36, back).code, 0)
        self.world.run_for(2)
        (row,) = self.data("dlq", "list")
        self.assertEqual((row["group"], row["messages"]), ("G", 1))
        (line,) = self.lines("dlq", "show", "G", "-o", "json")
        letter = json.loads(line)
        self.assertEqual((letter["topic"], letter["origin_topic"], letter["body"]), ("%DLQ%G", "orders", "bad"))
        (shown,) = self.data("message", "show", letter["offset_message_id"])
        self.assertEqual((shown["topic"], shown["origin_topic"]), ("%DLQ%G", "orders"))
        self.assertEqual(self.lines("tail", "%DLQ%G", "--from", "begin", "--exit", "-F", "%t"), ["%DLQ%G"])
        self.assertRegex(self.text("queryMsgById", "-i", letter["offset_message_id"]), "Topic: +%DLQ%G\n")
        (line,) = self.lines("dlq", "show", "G")
        self.assertIn(f" id={letter['message_id']} origin_topic=orders ", line)
        self.fails(64, "dlq", "resend", "G")
        self.assertIn("1 dead letter is delivered to group G again", self.fails(4, "dlq", "resend", "G", "--all"))
        self.fails(2, "dlq", "resend", "G", "--id", "nothing", "--yes")
        (again,) = self.data("dlq", "resend", "G", "--id", letter["message_id"], "--yes")
        self.assertEqual((again["topic"], again["status"]), ("orders", "OK"))
        (copy,) = self.tail("%RETRY%G", "--from", "begin")
        self.assertEqual(
            (copy["topic"], copy["origin_topic"], copy["body"], copy["keys"], copy["reconsume_times"]),
            ("%RETRY%G", "orders", "bad", ["k"], 0),
        )
        self.assertIn("has given no message up", self.fails(2, "dlq", "show", "H"))
        self.text("group", "create", "G", "--retryMaxTimes", "0")
        (again,) = self.data("dlq", "resend", "G", "--all", "--yes")
        self.assertEqual(len(self.tail("%RETRY%G", "--from", "begin")), 2)
        self.assertEqual(len(self.lines("dlq", "show", "G", "-o", "json")), 1)

    def test_refused_send(self) -> None:
        """A topic without write permission: status 1 or 2, nothing is printed."""
        self.text("topic", "perm", "orders", "r", "--yes")
        result = self.admin("produce", "orders", "-m", "x")
        self.assertNotEqual(result.status, 0)
        self.assertIn("orders", result.err)


class MqadminTextTests(ClusterCase):
    """What scripts for mqadmin look for is printed under its names, letter by letter as 4.9.7 prints it."""

    def setUp(self) -> None:
        super().setUp()
        zone = os.environ.get("TZ")
        os.environ["TZ"] = "UTC"
        time.tzset()
        self.addCleanup(time.tzset)
        self.addCleanup(os.environ.pop, "TZ") if zone is None else self.addCleanup(os.environ.__setitem__, "TZ", zone)
        self.text("topic", "create", "orders", "--queues", "2")
        self.send("orders", 3)

    def test_changes(self) -> None:
        """A change that all servers took has the lines with `success`; when one refuses it there is none."""
        topics = {one["topic"] for one in self.data("topic", "list", "--all")} | {"T"}
        on, group = ("-c", "sim"), "subscription group [G] from broker"
        kv, ordered = "kv config", ("-t", "T", "-o", "true")
        for expected, *arguments in (
            (f"create topic to {self.broker} success.\n{TOPIC}", "updateTopic", *on, "-t", "T"),
            (f"create topic to {self.broker} success.\nset cluster {ORDERED}", "updateTopic", *on, *ordered),
            (
                f"set broker orderConf. isOrder=true, orderConf=[broker-a:8]create topic to {self.broker} success.\n"
                + ORDERED.partition("]")[2],
                *("updateTopic", "-b", self.broker, *ordered),
            ),
            (f"update topic perm from 6 to 4 in {self.broker} success.", "updateTopicPerm", *on, "-t", "T", "-p", "4"),
            (f"create subscription group to {self.broker} success.\n{G_ADDED}", "updateSubGroup", *on, "-g", "G"),
            (f"delete {group} [{self.broker}] success.", "deleteSubGroup", "-b", self.broker, "-g", "G"),
            (f"update broker config success, {self.broker}", "updateBrokerConfig", *on, "-k", "nosuch", "-v", "1"),
            (f"create or update {kv} to namespace success.", "updateKvConfig", "-s", "NS", "-k", "k", "-v", "v"),
            (f"delete {kv} from namespace success.", "deleteKvConfig", "-s", "NS", "-k", "k"),
            (
                "update orderConf success. topic=[T], orderConf=[broker-a:2]",
                *("updateOrderConf", "-t", "T", "-m", "put", "-v", "broker-a:2"),
            ),
            ("get orderConf success. topic=[T], orderConf=[broker-a:2] ", "updateOrderConf", "-t", "T", "-m", "get"),
            ("delete orderConf success. topic=[T]", "updateOrderConf", "-t", "T", "-m", "delete"),
            (
                f"wipe write perm of broker[broker-a] in name server[{self.namesrv}] OK, {len(topics)}",
                *("wipeWritePerm", "-b", "broker-a"),
            ),
            (
                f"add write perm of broker[broker-a] in name server[{self.namesrv}] OK, {len(topics)}",
                *("addWritePerm", "-b", "broker-a"),
            ),
            ("success", "cleanExpiredCQ"),
            (
                "delete topic [T] from cluster [sim] success.\ndelete topic [T] from NameServer success.",
                *("deleteTopic", *on, "-t", "T"),
            ),
        ):
            self.assertEqual(self.text(*arguments), expected)
        slave = self.cluster.members[1].addr
        refused = self.admin("updateTopic", "-b", f"{self.broker};{slave}", "-t", "T")
        self.assertEqual(refused.status, 1)
        self.assertNotIn("success", refused.out)

    def test_tables(self) -> None:
        """Figures, offsets, keys and members in the columns that scripts cut."""
        titles, first, _ = self.text("topicStatus", "-t", "orders").splitlines()
        self.assertEqual(titles, TOPIC_STATUS)
        self.assertRegex(first, r"^broker-a {24}  0     0 {19}  2 {19}    2026-01-01 00:00:0\d,\d{3}$")
        titles, row = self.text("statsAll", "-t", "orders").splitlines()
        self.assertEqual((titles.split()[3], row.split()[-1], len(row)), ("#Accumulation", "NO_CONSUMER", 197))
        self.assertIn(f"{'commitLogMinOffset':32}: 0", self.text("brokerStatus", "-b", self.broker).splitlines())
        named = f"{self.broker:24} {'commitLogMinOffset':32}: 0"
        self.assertIn(named, self.text("brokerStatus", "-c", "sim").splitlines())
        config = self.text("getBrokerConfig", "-b", self.broker).splitlines()
        self.assertEqual(config[0], f"============{self.broker}============")
        self.assertIn(f"{'brokerName':50}=  broker-a", config)
        slave = self.cluster.members[1].addr
        config = [line for line in self.text("getBrokerConfig", "-c", "sim").splitlines() if line.startswith("=")]
        of_slave = f"My Master: {self.broker}=====Slave: {slave}"
        self.assertEqual(config, [f"============{name}============" for name in (f"Master: {self.broker}", of_slave)])
        config = self.text("getNamesrvConfig").splitlines()
        self.assertEqual(config[0], f"============{self.namesrv}============")
        self.assertIn(f"{'orderMessageEnable':50}=  false", config)
        self.join("G", "orders")
        lines = self.text("consumerConnection", "-g", "G").splitlines()
        self.assertEqual(lines[0], f"{'#ClientId':36} {'#ClientAddr':22} {'#Language':10} #Version")
        self.assertEqual(lines[3], "Below is subscription:")
        self.assertIn(f"{'orders':20} *", lines)
        self.assertEqual(lines[-1], "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET")
        self.text("group", "create", "H")
        self.assertEqual(self.text("skipAccumulatedMessage", "-g", "H", "-t", "orders").splitlines(), SKIPPED)

    def test_resets(self) -> None:
        """The offsets of a group without members have other columns than those that members were given."""
        self.commit("H", "orders", 1, 1)
        where = ("-g", "H", "-t", "orders")
        first, titles, *rows = self.text("resetOffsetByTime", *where, "-s", "begin", "-f", "false").splitlines()
        given = "topic[orders], force[false], timestamp(string)[begin], timestamp(long)[0]"
        self.assertEqual(first, f"rollback consumer offset by specified consumerGroup[H], {given}")
        self.assertEqual(titles, SKIPPED[0])
        self.assertEqual([row.split() for row in rows], [["broker-a", "0", *"2100"], ["broker-a", "1", *"1100"]])
        _, _, *rows = self.text("resetOffsetByTime", *where, "-s", "now", "-f", "false").splitlines()
        self.assertEqual([row.split() for row in rows], [["broker-a", "0", *"2020"], ["broker-a", "1", *"1010"]])
        self.join("G", "orders")
        self.commit("G", "orders", 1, 1)
        first, titles, row, _ = self.text("resetOffsetByTime", "-g", "G", "-t", "orders", "-s", "now").splitlines()
        given = "topic[orders], force[true], timestamp(string)[now], timestamp(long)[-1]"
        self.assertEqual(first, f"rollback consumer offset by specified group[G], {given}")
        self.assertEqual(titles, f"{'#brokerName':40}  {'#queueId':40}  {'#offset':40}")
        self.assertEqual(row.split(), ["broker-a", "0", "2"])

    def test_clients(self) -> None:
        """Producers, and what a group is configured to do, at all brokers that know it."""
        client = self.connect()
        data = HeartbeatData(client_id="c", consumer_data_set=[], producer_data_set=[ProducerData(group_name="P")])
        self.assertEqual(client.ask(RequestCode.HEART_BEAT, {}, fastjson.encode(data)).code, 0)
        line = self.text("producerConnection", "-g", "P", "-t", "orders")
        self.assertRegex(line, r"^0001  c {32}\S+:\d+ +\S+ +V\S+$")
        line = self.text("producer", "-b", self.broker)
        shown = r"clientId=c,remoteIP=/\S+:\d+, language=\w+, version=\d+, lastUpdateTimestamp=\d+"
        self.assertRegex(line, rf"^producer group \(P\) instance : {shown}$")
        self.text("group", "create", "G")
        title, *lines = self.text("getConsumerConfig", "-g", "G").splitlines()
        self.assertEqual(title, f"{'=' * 29}sim:broker-a{'=' * 29}")
        self.assertEqual(
            (lines[0], lines[-1]), (f"{'groupName':40}=  G", f"{'notifyConsumerIdsChangedEnable':40}=  true")
        )

    def test_times(self) -> None:
        """Messages that were sent to see how long it takes: a line for each broker, or for each message."""
        titles, row = self.text("clusterRT", "-a", "2").splitlines()
        self.assertEqual(titles, f"{'#Cluster Name':24}  {'#Broker Name':24}  #RT   #successCount  #failCount")
        self.assertRegex(row, r"^sim {21}  broker-a {16}  \d\.\d\d      2 {15}  0 {15}$")
        titles, *rows, mean = self.text("checkMsgSendRT", "-t", "orders", "-a", "3").splitlines()
        self.assertEqual((len(rows), titles), (3, f"{'#Broker Name':32}  #QID  {'#Send Result':20}    #RT"))
        self.assertRegex(rows[0], r"^broker-a {24}  [01]     true {16}    \d+$")
        self.assertRegex(mean, r"^Avg RT: \d+\.\d\d$")
        (line,) = self.text("sendMsgStatus", "-b", "broker-a", "-c", "1").splitlines()
        queue = r"MessageQueue \[topic=broker-a, brokerName=broker-a, queueId=\d\], queueOffset=\d"
        result = rf"SendResult \[sendStatus=SEND_OK, msgId=\w+, offsetMsgId=\w+, messageQueue={queue}\]"
        self.assertRegex(line, f"^rt=\\d+ms, SendResult={result}$")

    def test_queues(self) -> None:
        """The units of a queue's index, and who would get which queue."""
        at = '{"brokerName":"broker-a","queueId":%d,"topic":"orders"}'
        result = f'{{"result":{{"a":[{at % 0}],"b":[{at % 1}]}}}}'
        self.assertEqual(self.text("allocateMQ", "-t", "orders", "-i", "a,b"), result)
        lines = self.text("queryCq", "-t", "orders", "-q", "0", "-i", "1").splitlines()
        self.assertEqual(lines[:4], ["Queue data: ", "max: 2, min: 0", "=" * 38, "idx: 1"])
        self.assertRegex(
            lines[4],
            r"^ConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=0, extendDataJson='null', bitMap='null', "
            r"eval=false, msg='null'\}$",
        )
        self.join("G", "orders")
        lines = self.text("queryCq", "-t", "orders", "-q", "0", "-i", "0", "-g", "G").splitlines()
        self.assertEqual(lines[:2], ["Subscription data: ", "{"])
        self.assertIn('\t"topic":"orders"', lines)

    def test_messages(self) -> None:
        """A message by its key and by its id."""
        self.admin("produce", "orders", "-m", "x", "-k", "k1", "-c", "A")
        self.world.run_for(2)
        (row,) = self.data("message", "find", "orders", "k1")
        found = self.text("queryMsgByKey", "-t", "orders", "-k", "k1").splitlines()
        self.assertEqual(found[0], f"{'#Message ID':50} #QID {'#Offset':>40}")
        self.assertEqual(found[1], f"{row['message_id']:50} {row['queue']:4} {row['offset']:40}")
        lines = self.text("queryMsgByUniqueKey", "-t", "orders", "-i", row["message_id"]).splitlines()
        for line in ("Tags:                [A]", "Keys:                [k1]", "System Flag:         0"):
            self.assertIn(line, lines)


TOPIC_STATUS = "#Broker Name                      #QID  #Min Offset           #Max Offset             #Last Updated"
SKIPPED = [
    "  ".join(f"{word:20}" for word in line.split())
    for line in (
        "#brokerName #queueId #brokerOffset #consumerOffset #timestampOffset #rollbackOffset",
        "broker-a 0 2 0 2 2",
        "broker-a 1 1 0 1 1",
    )
]
TOPIC = (
    "TopicConfig [topicName=T, readQueueNums=8, writeQueueNums=8, perm=RW-, topicFilterType=SINGLE_TAG, "
    "topicSysFlag=0, order=false]"
)
ORDERED = f"orderConf. isOrder=true, orderConf=[broker-a:8]{TOPIC.replace('false', 'true')}"
G_ADDED = (
    "SubscriptionGroupConfig [groupName=G, consumeEnable=true, consumeFromMinEnable=false, "
    "consumeBroadcastEnable=false, retryQueueNums=1, retryMaxTimes=16, brokerId=0, whichBrokerWhenConsumeSlowly=1, "
    "notifyConsumerIdsChangedEnable=true]"
)
