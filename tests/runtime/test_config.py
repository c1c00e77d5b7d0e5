"""Config classes: keys, types, errors, and the way back to text."""

from __future__ import annotations

import enum
from typing import Optional

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.config import (
    ConfigError,
    camel,
    config_fields,
    did_you_mean,
    load,
    parse_properties,
    to_properties,
    update,
)


class Role(enum.Enum):
    ASYNC_MASTER = "a"
    SYNC_MASTER = "b"
    SLAVE = "c"


def _short(instance: object, attribute: object, value: str) -> None:
    if len(value) > 8:
        raise ValueError(f"brokerName {value!r} is longer than 8")


@attrs.frozen(kw_only=True)
class BrokerKeys:
    broker_name: str = attrs.field(default="broker-a", validator=_short)
    broker_role: Role = Role.ASYNC_MASTER
    broker_ip1: str | None = attrs.field(default=None, metadata={"key": "brokerIP1", "aliases": ("brokerIP",)})
    listen_port: int = attrs.field(default=10911, metadata={"range": (1, 65535), "doc": "remoting port"})
    enabled: bool = False
    ratio: float = 0.75
    limit: int | None = None


@attrs.frozen(kw_only=True)
class ServerKeys:
    listen_port: int = attrs.field(default=8888, metadata={"range": (1, None)})
    idle_seconds: int = attrs.field(default=120, metadata={"range": (None, 3600)})
    tags: Optional[str] = attrs.field(factory=lambda: "x")  # noqa: UP045, the old spelling must work as well


@attrs.frozen(kw_only=True)
class NeedsName:
    broker_name: str


class LoadTests(SynchronousTestCase):
    def test_defaults(self) -> None:
        """Without values every class is its defaults."""
        self.assertEqual(load([BrokerKeys, ServerKeys], {}, "x").configs, (BrokerKeys(), ServerKeys()))

    def test_every_type(self) -> None:
        """Text becomes bool, int, float, str, enum member and None."""
        text = (
            "brokerName=b\nbrokerRole=SLAVE\nbrokerIP1=10.0.0.1\nlistenPort= 7 \n"
            "enabled=TRUE\nratio=0.5\nlimit=-3\nidleSeconds=+5\ntags=\n"
        )
        (broker, server) = load([BrokerKeys, ServerKeys], parse_properties(text, "x"), "x").configs
        self.assertEqual(
            broker,
            BrokerKeys(
                broker_name="b",
                broker_role=Role.SLAVE,
                broker_ip1="10.0.0.1",
                listen_port=7,
                enabled=True,
                ratio=0.5,
                limit=-3,
            ),
        )
        self.assertEqual(server, ServerKeys(listen_port=7, idle_seconds=5, tags=None))

    def test_empty_text_is_none_only_where_none_may_be(self) -> None:
        """An empty value empties an optional key; elsewhere it is the empty text or an error."""
        (broker,) = load([BrokerKeys], {"limit": "", "brokerIP1": "", "brokerName": ""}, "x").configs
        self.assertEqual((broker.limit, broker.broker_ip1, broker.broker_name), (None, None, ""))
        self.assertRaises(ConfigError, load, [BrokerKeys], {"listenPort": ""}, "x")

    def test_unknown_keys_are_kept(self) -> None:
        """What no class knows is handed back, in order, and changes nothing."""
        loaded = load([BrokerKeys], {"zzz": "1", "listenPort": "5", "aaa": "2"}, "x")
        self.assertEqual(list(loaded.unknown.items()), [("zzz", "1"), ("aaa", "2")])

    def test_legacy_spelling(self) -> None:
        """An old spelling works and is told; the proper one wins over it."""
        loaded = load([BrokerKeys], {"brokerIP": "old"}, "x")
        self.assertEqual(loaded.configs[0].broker_ip1, "old")
        self.assertEqual((loaded.legacy, loaded.unknown), ({"brokerIP": "brokerIP1"}, {}))
        both = load([BrokerKeys], {"brokerIP": "old", "brokerIP1": "new"}, "x")
        self.assertEqual(both.configs[0].broker_ip1, "new")

    def test_bad_values_name_source_key_and_text(self) -> None:
        """A value that does not fit says where it stands, which key, what it is and what is expected."""
        cases = [
            ("listenPort", "many", "whole number from 1 to 65535"),
            ("listenPort", "1.0", "whole number"),
            ("listenPort", "1_0", "whole number"),
            ("listenPort", "\u0661", "whole number"),
            ("listenPort", "0", "out of range"),
            ("listenPort", "65536", "out of range"),
            ("enabled", "yes", "true or false"),
            ("ratio", "half", "a number"),
            ("ratio", "nan", "a number"),
            ("brokerRole", "MASTER", "one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
            ("limit", "x", "or nothing"),
        ]
        for key, text, expected in cases:
            error = self.assertRaises(ConfigError, load, [BrokerKeys], {key: text}, "etc/b.properties")
            for part in ("etc/b.properties", key, repr(text), expected):
                self.assertIn(part, str(error))

    def test_one_sided_ranges(self) -> None:
        """A range may be open at either end."""
        self.assertIn("at least 1", str(self.assertRaises(ConfigError, load, [ServerKeys], {"listenPort": "0"}, "x")))
        error = self.assertRaises(ConfigError, load, [ServerKeys], {"idleSeconds": "3601"}, "x")
        self.assertIn("at most 3600", str(error))

    def test_source_of_each_key(self) -> None:
        """Where values come from several places the error names the right one."""
        values = {"listenPort": "1", "enabled": "perhaps"}
        error = self.assertRaises(ConfigError, load, [BrokerKeys], values, "x", sources={"enabled": "command line"})
        self.assertIn("command line: enabled", str(error))

    def test_validators_are_heard(self) -> None:
        """What an attrs validator refuses is a ConfigError with the source."""
        error = self.assertRaises(ConfigError, load, [BrokerKeys], {"brokerName": "much-too-long"}, "etc/b")
        self.assertIn("etc/b: brokerName 'much-too-long'", str(error))

    def test_key_without_default(self) -> None:
        """A key that must be given and is not is named."""
        self.assertIn("brokerName", str(self.assertRaises(ConfigError, load, [NeedsName], {}, "x")))
        self.assertEqual(load([NeedsName], {"brokerName": "b"}, "x").configs, (NeedsName(broker_name="b"),))

    def test_impossible_type(self) -> None:
        """A config class with a type that no text can stand for is a mistake of ours, found at once."""

        @attrs.frozen
        class Wrong:
            names: list[int] = attrs.field(factory=list)

        self.assertIn("names", str(self.assertRaises(TypeError, config_fields, Wrong)))


class UpdateTests(SynchronousTestCase):
    def test_changes_only_what_is_given(self) -> None:
        """An update leaves the other keys, and keys of other classes, alone."""
        config = BrokerKeys(limit=3, broker_name="b")
        changed = update(config, {"listenPort": "5", "idleSeconds": "7"})
        self.assertEqual(changed, attrs.evolve(config, listen_port=5))
        self.assertIs(update(config, {"idleSeconds": "7"}), config)

    def test_bad_update_changes_nothing(self) -> None:
        """A value that does not fit refuses the whole update, validators included."""
        self.assertRaises(ConfigError, update, BrokerKeys(), {"enabled": "true", "listenPort": "x"})
        self.assertRaises(ConfigError, update, BrokerKeys(), {"brokerName": "much-too-long"})


class SuggestionTests(SynchronousTestCase):
    def test_did_you_mean(self) -> None:
        """Typing errors and wrong capitals find their key; other words find none."""
        for typed, meant in [
            ("listenport", "listenPort"),
            ("listnPort", "listenPort"),
            ("brokerip1", "brokerIP1"),
            ("idleSecond", "idleSeconds"),
            ("somethingElse", None),
            ("", None),
        ]:
            self.assertEqual(did_you_mean(typed, [BrokerKeys, ServerKeys]), meant, typed)


class TextTests(SynchronousTestCase):
    def test_to_properties(self) -> None:
        """All keys in the order of declaration, each once, in Java's spelling of values; extra keys last."""
        text = to_properties(BrokerKeys(enabled=True), ServerKeys(), extra={"other": "1", "limit": "ignored"})
        self.assertEqual(
            text,
            "brokerName=broker-a\nbrokerRole=ASYNC_MASTER\nbrokerIP1=\nlistenPort=10911\nenabled=true\nratio=0.75\n"
            "limit=\nidleSeconds=120\ntags=x\nother=1\n",
        )

    def test_round_trip(self) -> None:
        """What is printed loads again as the same configuration."""
        broker = BrokerKeys(broker_name=" \\=#\n", broker_role=Role.SLAVE, limit=0, ratio=1e-9)
        loaded = load([BrokerKeys], parse_properties(to_properties(broker), "x"), "x")
        self.assertEqual((loaded.configs, loaded.unknown), ((broker,), {}))

    def test_camel(self) -> None:
        """Keys derive from field names as Java spells them."""
        for name, key in [("listen_port", "listenPort"), ("a", "a"), ("enable_5x_mode", "enable5xMode")]:
            self.assertEqual(camel(name), key)
