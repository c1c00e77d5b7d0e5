"""docs/admin-schema.json describes what every command prints with ``-o json``."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.command import COMMANDS
from rmq.admin.main import whole_parser
from tests.admin import schema
from tests.admin.test_contexts import CHANGES, ContextCase

#: a command line of each command that asks; `ClusterCase.admin` compares what it prints with the schema
QUESTIONS: list[tuple[str, ...]] = [
    ("topic", "list", "--groups"),
    ("topic", "show", "orders"),
    ("topic", "route", "orders"),
    ("topic", "order", "orders", "get"),
    ("topic", "clusters", "orders"),
    ("topic", "stats"),
    ("topic", "allocate", "orders", "--members", "a,b"),
    ("group", "list"),
    ("group", "list", "-g", "G"),
    ("group", "show", "G"),
    ("group", "members", "G"),
    ("group", "config", "G"),
    ("group", "lag"),
    ("monitor", "--once", "--lag", "0"),
    ("producer", "list"),
    ("tail", "orders", "--from", "begin", "--exit"),
    ("message", "at", "orders", "broker-a", "0", "0"),
    ("message", "index", "orders", "0", "0"),
    ("message", "find", "orders", "k"),
    ("cluster", "list"),
    ("cluster", "list", "--totals"),
    ("broker", "show"),
    ("broker", "config"),
    ("namesrv", "config"),
    ("kv", "list", "NS"),
    ("kv", "get", "NS", "k"),
    ("export", "metadata"),
    ("export", "configs"),
    ("export", "metrics"),
    ("route", "explain", "-t", "orders"),
    ("route", "dump"),
    ("dlq", "list"),
    ("completion", "names", "topics"),
    ("consume", "orders", "-g", "G2", "--from", "begin", "--count", "1"),
]


class SchemaTests(SynchronousTestCase):
    def test_every_command_is_described(self) -> None:
        """One description for each command; two more for messages and for --dry-run."""
        whole_parser()  # imports all commands
        self.assertEqual(set(schema.DEFINED) - {"message", "dry run"}, set(COMMANDS))

    def test_differences_are_found(self) -> None:
        """A missing field, one that is not described, another type, also deep inside: each is found."""
        good = {"broker": "b", "queue": 1, "old_offset": None, "new_offset": 2}
        self.assertEqual(schema.mistakes("group reset", [good]), [])
        for bad in ({**good, "queue": "1"}, {**good, "more": 1}, {**good, "new_offset": True}, {"broker": "b"}, [good]):
            self.assertNotEqual(schema.mistakes("group reset", [good, bad]), [], bad)
        self.assertEqual(schema.mistakes("kv get", 1), ["kv get: 1 is no string or null"])
        self.assertNotEqual(schema.mistakes("message show", [{"group": "G"}]), [])


class OutputTests(ContextCase):
    def test_outputs(self) -> None:
        """What commands print on a cluster with messages, members and keys is as described; none prints nothing."""
        self.text("topic", "create", "orders", "--queues", "2")
        self.admin("produce", "orders", "-m", "x", "-k", "k", "--queue", "broker-a:0")
        self.text("kv", "set", "NS", "k", "v")
        self.text("kv", "set", "ORDER_TOPIC_CONFIG", "orders", "broker-a:2")
        self.join("G", "orders")
        self.commit("G", "orders", 0, 0)
        for arguments in QUESTIONS:
            self.printed([*arguments, "-o", "json"])
        for arguments in CHANGES:
            self.printed([*arguments, "--dry-run", "-o", "json"])
        unsafe = {("topic", "delete"), ("topic", "perm"), ("broker", "drain"), ("consume", "orders"), ("acl", "set")}
        for arguments in CHANGES:
            if arguments[:2] not in unsafe and arguments[0] != "acl" and "clean" not in arguments[1]:
                self.printed([*arguments, "--yes", "-o", "json"])

    def printed(self, arguments: list[str]) -> None:
        self.emitted.clear()
        result = self.admin(*arguments)
        self.assertIn(result.status, (0, 2), (arguments, result))
        self.assertTrue(self.emitted or json.loads(result.out) is not None, arguments)
