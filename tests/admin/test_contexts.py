"""Contexts: clusters with a name; what beats what; a read-only context; ``--dry-run``."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.command import COMMANDS
from rmq.admin.contexts import Context, ContextError, Contexts
from rmq.admin.main import parse, whole_parser
from rmq.remoting.client import RemotingClient
from rmq.wire.codes import RequestCode
from tests.admin.test_names import ended
from tests.admin.test_on_a_cluster import ClusterCase


class ContextCase(ClusterCase):
    """A cluster, and a user without contexts and without variables of RocketMQ."""

    def setUp(self) -> None:
        self.home = Path(self.mktemp())
        environ = {"XDG_CONFIG_HOME": str(self.home), "PATH": os.environ["PATH"]}
        self.patch(os, "environ", environ)
        self.environ = environ
        super().setUp()


class PrecedenceTests(ContextCase):
    def options(self, *arguments: str) -> tuple[Any, ...]:
        found = parse(arguments)
        return found.namesrvAddr, found.timeout

    def test_what_beats_what(self) -> None:
        """Options, then a context that the command line names, the environment, the context in use, the defaults."""
        asked = ("topic", "list")
        self.assertEqual(self.options(*asked), (["127.0.0.1:9876"], 5.0))
        contexts = Contexts.of(self.environ)
        contexts.save("a", Context(namesrv="a:1;b:1", timeout=2.5))
        contexts.save("b", Context(namesrv="b:2"))
        contexts.use("a")
        self.assertEqual(self.options(*asked), (["a:1", "b:1"], 2.5))
        self.assertEqual(self.options(*asked, "--timeout", "1"), (["a:1", "b:1"], 1.0))
        self.environ["RMQ_CONTEXT"] = "b"
        self.assertEqual(self.options(*asked), (["b:2"], 5.0))
        self.environ["NAMESRV_ADDR"] = "env:3"
        self.assertEqual(self.options(*asked), (["env:3"], 5.0))
        self.assertEqual(self.options(*asked, "--context", "a"), (["a:1", "b:1"], 2.5))
        self.assertEqual(self.options(*asked, "--context", "a", "-n", "opt:4"), (["opt:4"], 2.5))

    def test_cluster_and_files(self) -> None:
        """The cluster, the account and TLS are those of the context, where no option says otherwise."""
        Contexts.of(self.environ).save("a", Context(namesrv="a:1", cluster="C", tls_config="/t", acl_tools="/y"))
        found = parse(["topic", "create", "T", "--context", "a"])
        self.assertEqual((found.clusterName, found.tlsConfig, found.aclTools), ("C", "/t", "/y"))
        found = parse(["topic", "create", "T", "--context", "a", "-c", "D", "--aclTools", "/z"])
        self.assertEqual((found.clusterName, found.aclTools), ("D", "/z"))

    def test_unknown_context(self) -> None:
        """Wrong use, and the contexts that there are."""
        Contexts.of(self.environ).save("a", Context(namesrv="a:1"))
        status, text = ended("topic", "list", "--context", "b")
        self.assertEqual(status, 64)
        self.assertIn("no context b; contexts: a", text)

    def test_broken_file(self) -> None:
        """A file that is no context is named, with the field."""
        contexts = Contexts.of(self.environ)
        contexts.save("a", Context(namesrv="a:1"))
        (path,) = self.home.rglob("a.json")
        path.write_text('{"namesrv": "a:1", "read_olny": true}')
        status, text = ended("topic", "list", "--context", "a")
        self.assertEqual(status, 64)
        self.assertIn("a.json: Object contains unknown field `read_olny`", text)

    def test_broken_file_of_the_context_in_use(self) -> None:
        """It fails a command with its name and what to do; one that says which servers to ask goes on, and warns."""
        contexts = Contexts.of(self.environ)
        contexts.save("a", Context(namesrv="a:1", read_only=True))
        contexts.use("a")
        (path,) = self.home.rglob("a.json")
        path.write_text("{broken")
        text = f"context a: {path}: JSON is malformed: "
        mend = "correct it, or remove it with: rmq-admin context remove a\n"
        for arguments in (("topic", "list"), ("topic", "list", "-n", self.namesrv, "--context", "a")):
            status, found = ended(*arguments)
            self.assertEqual((status, found.count("\n")), (64, 1), found)  # no usage
            self.assertTrue(found.startswith(f"rmq-admin: {text}") and found.endswith(mend), found)
        warning = f"rmq-admin: warning: going on without the context in use: {text}"
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            self.assertEqual(self.text("topic", "list"), "no topic")  # with -n
        self.assertTrue(out.getvalue().startswith(warning) and out.getvalue().endswith(mend), out.getvalue())
        self.assertEqual(out.getvalue().count("\n"), 1)
        with contextlib.redirect_stderr(out):
            refused = self.fails(1, "topic", "create", "T")
            self.environ["NAMESRV_ADDR"] = "env:3"
            self.assertEqual(self.options("topic", "list"), (["env:3"], 5.0))
        self.assertIn("context a cannot be read, so it may be read-only, topic create is refused", refused)
        with contextlib.redirect_stderr(out):
            self.text("topic", "create", "T", "--dry-run")
        contexts.remove("a")
        self.text("topic", "create", "T")

    def test_the_home_of_another_user(self) -> None:
        """Where the context in use cannot be looked up, the line names the variables (here: a loop of links)."""
        self.home.mkdir(exist_ok=True)
        folder = self.home / "rmq"
        folder.symlink_to("rmq")
        status, text = ended("topic", "list", "-n", "a:1")
        self.assertEqual(status, 64)
        self.assertIn(f"{folder}/context: Too many levels of symbolic links; is HOME, or XDG_CONFIG_HOME, this", text)


class ContextCommandTests(ContextCase):
    def test_life_of_a_context(self) -> None:
        """Added, the first one in use; listed, shown, changed for another, removed."""
        self.text("context", "add", "prod", "-n", "h:1", "--read-only", "--timeout", "2")
        self.text("context", "add", "dev", "-n", self.namesrv, "-c", "sim")
        rows = self.data("context", "list")
        self.assertEqual([(row["name"], row["in_use"], row["read_only"]) for row in rows],
                         [("dev", "", False), ("prod", "*", True)])  # fmt: skip
        shown = {row["key"]: row["value"] for row in self.data("context", "show", "prod")}
        self.assertEqual(shown["timeout"], 2.0)
        self.text("context", "use", "dev")
        self.assertEqual(parse(["topic", "list"]).namesrvAddr, [self.namesrv])
        self.text("context", "remove", "dev")
        self.assertEqual(parse(["topic", "list"]).namesrvAddr, ["127.0.0.1:9876"])
        self.assertIn("no context dev; contexts: prod", self.fails(2, "context", "use", "dev"))
        self.assertIn("letters, digits", self.fails(2, "context", "show", "../prod"))
        self.text("context", "remove", "prod")
        self.assertIn("no context", self.text("context", "list"))

    def test_a_broken_one_among_others(self) -> None:
        """The others are listed, with status 2 and a line that names the file; it can be removed, or written again."""
        self.text("context", "add", "dev", "-n", self.namesrv)
        self.text("context", "add", "prod", "-n", "h:1")
        (path,) = self.home.rglob("prod.json")
        path.write_text("{broken")
        result = self.admin("context", "list", "-o", "csv")
        self.assertEqual((result.status, result.out.splitlines()[1:]), (2, [f"dev,*,{self.namesrv},,false"]))
        self.assertIn(f"{path}: JSON is malformed", self.warned[0])
        self.text("context", "remove", "prod")
        self.assertEqual([row["name"] for row in self.data("context", "list")], ["dev"])

    def test_one_that_is_replaced(self) -> None:
        """It says what there was, above all that it was read-only."""
        self.text("context", "add", "prod", "-n", "h:1", "--read-only")
        self.assertEqual(self.text("context", "add", "prod", "-n", "h:1", "--read-only"), "context prod: h:1, in use")
        self.assertEqual(
            self.text("context", "add", "prod", "-n", "h:2"), "context prod: h:2, in use; it was h:1, read-only"
        )

    def test_folder_is_private(self) -> None:
        """Nobody else reads which clusters a user has."""
        self.text("context", "add", "prod", "-n", "h:1")
        self.assertEqual(stat.S_IMODE((self.home / "rmq" / "contexts").stat().st_mode), 0o700)

    def admin(self, *arguments: str, **more: Any) -> Any:
        """Context commands have no NameServer to ask."""
        return super().admin(*arguments, **more) if "context" not in arguments else self.ask(*arguments)

    def ask(self, *arguments: str) -> Any:
        from twisted.internet.defer import Deferred

        from rmq.admin.main import run
        from rmq.sim.node import platform_for

        asked = run(platform_for(self.machine), parse(arguments), self.terminal())
        return self.world.settle(Deferred.fromCoroutine(asked))

    def test_names(self) -> None:
        """What could leave the folder is no name."""
        for name in ("", ".x", "a/b", "a b", "x" * 65):
            with self.assertRaises(ContextError):
                Contexts.of(self.environ).load(name)


#: a command line of each command that changes something
CHANGES: list[tuple[str, ...]] = [
    ("topic", "create", "T2"),
    ("topic", "perm", "orders", "r"),
    ("topic", "delete", "orders"),
    ("group", "create", "G"),
    ("group", "reset", "G", "orders", "--to", "begin"),
    ("group", "skip", "G", "orders"),
    ("group", "clone", "G", "H", "orders"),
    ("group", "delete", "G"),
    ("produce", "orders", "-m", "x"),
    ("broker", "set", "maxMessageSize", "1000"),
    ("broker", "drain", "broker-a"),
    ("broker", "undrain", "broker-a"),
    ("namesrv", "set", "orderMessageEnable", "true"),
    ("kv", "set", "NS", "k", "v"),
    ("kv", "delete", "NS", "k"),
    ("topic", "order", "orders", "set", "--conf", "broker-a:2"),
    ("topic", "ping", "orders"),
    ("cluster", "ping"),
    ("broker", "ping", "broker-a"),
    ("broker", "clean-topics"),
    ("broker", "clean-queues"),
    ("broker", "clean-log"),
    ("consume", "orders", "-g", "G"),
    ("acl", "set", "alice", "-s", "secret-of-alice", "-m", "false"),
    ("acl", "delete", "alice"),
    ("acl", "whitelist", "10.0.0.*"),
]

#: those of them that ask for no confirmation: they add something, or send messages and take them
UNASKED = {
    ("topic", "create"),
    ("group", "create"),
    ("produce", "orders"),
    ("broker", "undrain"),
    ("kv", "set"),
    ("topic", "ping"),
    ("cluster", "ping"),
    ("broker", "ping"),
    ("consume", "orders"),
}

#: requests that change nothing; everything else that a command sends has to go through `Call.change`
ASKING = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
}


class ChangeTests(ContextCase):
    def setUp(self) -> None:
        super().setUp()
        self.text("topic", "create", "orders", "--queues", "2")
        self.text("group", "create", "G")
        self.text("group", "reset", "G", "orders", "--to", "end", "--yes")

    def test_all_are_here(self) -> None:
        """
        The list above has every command that changes something.

        `dlq resend`, `message show` need messages, `controller` needs one: see test_controller.
        """
        whole_parser()  # imports all commands
        listed = {name for name in COMMANDS if any(" ".join(one).startswith(name) for one in CHANGES)}
        changing = {name for name, one in COMMANDS.items() if one.changes}
        self.assertEqual(listed, changing - {"dlq resend", "message show", "controller elect", "controller forget"})

    def requests(self) -> list[int]:
        """Return a list of the codes of all requests from now on."""
        sent: list[int] = []
        invoke = RemotingClient.invoke

        def watched(client: RemotingClient, addr: str, contract: Any, *more: Any, **settings: Any) -> Any:
            sent.append(contract.code)
            return invoke(client, addr, contract, *more, **settings)

        self.patch(RemotingClient, "invoke", watched)
        return sent

    def test_no_terminal(self) -> None:
        """Without a terminal and --yes each that asks for a confirmation ends with 4, and has sent only questions."""
        sent = self.requests()
        for arguments in CHANGES:
            if arguments[:2] not in UNASKED:
                self.assertEqual(self.admin(*arguments).status, 4, arguments)
        self.assertLessEqual(set(sent), ASKING)
        self.assertEqual(self.data("topic", "list"), [{"topic": "orders"}])

    def test_dry_run(self) -> None:
        """--dry-run prints the requests, asks for no confirmation and sends only questions."""
        sent = self.requests()
        for arguments in CHANGES:
            self.emitted.clear()
            result = self.admin(*arguments, "--dry-run")
            self.assertEqual((result.status, result.out, result.err), (0, "", ""), arguments)
            self.assertRegex(self.emitted[0], "^would send [A-Z_0-9]+ to ", arguments)
        self.assertEqual(self.questions, [])
        self.assertLessEqual(set(sent), ASKING)
        self.assertEqual(self.data("topic", "list"), [{"topic": "orders"}])

    def test_what_a_reset_would_do(self) -> None:
        """Without members the offsets are those that would be written."""
        self.send("orders", 3)
        self.emitted.clear()
        self.admin("group", "reset", "G", "orders", "--to", "end", "--dry-run")
        self.assertEqual([line.rpartition(" ")[2] for line in self.emitted], ["commitOffset=2", "commitOffset=1"])

    def test_read_only(self) -> None:
        """A read-only context refuses every change and answers every question; --dry-run is a question."""
        Contexts.of(self.environ).save("prod", Context(namesrv=self.namesrv, read_only=True))
        for arguments in CHANGES:
            self.assertIn("context prod is read-only", self.fails(1, *arguments, "--yes", "--context", "prod"))
        self.assertEqual(self.data("topic", "list", "--context", "prod"), [{"topic": "orders"}])
        self.assertEqual(self.admin("topic", "delete", "orders", "--dry-run", "--context", "prod").status, 0)
        self.assertIn(
            "has no order configuration", self.fails(2, "topic", "order", "orders", "get", "--context", "prod")
        )
        self.fails(1, "message", "show", "X", "--resend", "--yes", "--context", "prod")
        self.fails(64, "message", "show", "X", "--context", "prod")


class UnchangingTests(SynchronousTestCase):
    def test_questions_have_no_yes(self) -> None:
        """A command that changes nothing has neither --yes nor --dry-run."""
        for option in ("--yes", "--dry-run"):
            self.assertEqual(ended("topic", "list", option)[0], 64)
