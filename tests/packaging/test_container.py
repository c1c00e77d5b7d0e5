"""The entry of the container image, and the files that use it."""

from __future__ import annotations

import io
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq import container
from rmq.broker.config import CONFIG_CLASSES
from rmq.broker.tap import Options
from rmq.container import NotUsable, command
from rmq.runtime.config import config_fields
from tests.needs import need_extra

FOLDER = Path(__file__).resolve().parents[2] / "packaging"


def resolve(name: str) -> str:
    """Know one host."""
    if name == "host.containers.internal":
        return "10.88.0.1"
    raise OSError(name)


def made(*arguments: str, **environment: str) -> list[str]:
    return command(arguments, environment, first="10.0.0.7", resolve=resolve)


def options_of(words: list[str]) -> dict[str, str]:
    """Return option -> value of a broker's or NameServer's command, the last one of equal ones."""
    assert words[1:3] == ["--nodaemon", "--pidfile="]
    return dict(zip(words[3::2], words[4::2], strict=True))


class CommandTests(SynchronousTestCase):
    def refused(self, *arguments: str, **environment: str) -> str:
        return str(self.assertRaises(NotUsable, made, *arguments, **environment))

    def test_keys_come_from_the_environment(self) -> None:
        """RMQ_KEY_<key> is the key as an option; options behind the role win; everything is below /data."""
        words = made(
            "namesrv", "--listenPort", "1", RMQ_KEY_listenPort="2", RMQ_KEY_orderMessageEnable="true", HOME="/"
        )
        self.assertEqual(words[0], "rmq-namesrv")
        self.assertEqual(
            options_of(words),
            {"--http": "0.0.0.0:9880", "--kvConfigPath": "/data/namesrv/kvConfig.json"}
            | {"--orderMessageEnable": "true", "--listenPort": "1"},
        )
        self.assertEqual(options_of(made("broker", RMQ_BROKER_IP1="auto"))["--storePathRootDir"], "/data/store")
        where = ["rmq-local", "--dir", "/data/local", "--bind", "0.0.0.0"]
        self.assertEqual(made("local", "--masters", "2"), [*where, "--masters", "2"])
        self.assertEqual(made("local", RMQ_BROKER_IP1="auto"), [*where, "--host", "10.0.0.7"])
        self.assertEqual(made("admin", "topic", "list"), ["rmq-admin", "topic", "list"])

    def test_a_broker_needs_an_address(self) -> None:
        """Without one it refuses, and says which address would have been registered and what to set."""
        text = self.refused("broker", RMQ_KEY_listenPort="10921")
        for part in ("10.0.0.7:10921", "RMQ_BROKER_IP1", "auto", "host", "-p 10921:10921"):
            self.assertIn(part, text)

    def test_addresses(self) -> None:
        """An address as it is, auto, host, a name; or the key itself."""
        for text, address in (("192.0.2.1", "192.0.2.1"), ("::1", "::1"), ("auto", "10.0.0.7"), ("host", "10.88.0.1")):
            self.assertEqual(options_of(made("broker", RMQ_BROKER_IP1=text))["--brokerIP1"], address)
        self.assertEqual(options_of(made("broker", RMQ_KEY_brokerIP1="192.0.2.1"))["--brokerIP1"], "192.0.2.1")
        self.assertEqual(options_of(made("broker", "--brokerIP1", "192.0.2.2"))["--brokerIP1"], "192.0.2.2")

        def unknown(name: str) -> str:
            raise OSError(name)

        error = self.assertRaises(
            NotUsable, command, ["broker"], {"RMQ_BROKER_IP1": "host"}, first="10.0.0.7", resolve=unknown
        )
        self.assertIn("host-gateway", str(error))

    def test_a_name_is_registered_as_one(self) -> None:
        """Its address inside the network of containers is of no use to clients outside, and certificates have names."""
        for role, option in (("broker", "--brokerIP1"), ("local", "--host")):
            words = made(role, RMQ_BROKER_IP1="host.containers.internal")
            self.assertEqual(words[words.index(option) + 1], "host.containers.internal")

    def test_wrong_use(self) -> None:
        """An unknown role, and keys for a role that has none, are refused."""
        self.assertIn("usage: rmq-container namesrv|broker", self.refused())
        self.assertIn("usage: rmq-container namesrv|broker", self.refused("brokr"))
        self.assertIn("RMQ_KEY_brokerName is for namesrv and broker", self.refused("local", RMQ_KEY_brokerName="a"))

    def test_a_broker_takes_what_is_made(self) -> None:
        """The options of the broker read the made command."""
        options = Options()
        with redirect_stdout(io.StringIO()) as out:
            words = made("broker", "-p", RMQ_BROKER_IP1="auto", RMQ_KEY_brokerName="b")[3:]
            words.remove("--http")
            words.remove("0.0.0.0:9880")
            self.assertEqual(self.assertRaises(SystemExit, options.parseOptions, words).code, 0)
        self.assertIn("brokerIP1=10.0.0.7\n", out.getvalue())
        self.assertIn("brokerName=b\n", out.getvalue())


class MainTests(SynchronousTestCase):
    def test_help(self) -> None:
        """--help says what the variables mean, and is no wrong use."""
        self.patch(sys, "argv", ["rmq-container", "--help"])
        with redirect_stdout(io.StringIO()) as out:
            container.main()
        for part in ("usage: rmq-container namesrv|broker", "RMQ_KEY_<key>", "RMQ_BROKER_IP1", "port 9880"):
            self.assertIn(part, out.getvalue())


class HealthTests(SynchronousTestCase):
    def test_nothing_listens(self) -> None:
        """A port without a server is not healthy."""
        with redirect_stderr(io.StringIO()) as err:
            self.assertEqual(container.health(1), 1)
        self.assertIn("rmq-container health:", err.getvalue())


class FileTests(SynchronousTestCase):
    """The container file and the examples name scripts, keys and ports that exist."""

    def test_container_file(self) -> None:
        """Its entry is the script, its ports and folders are those of the entry, and it runs as nobody special."""
        text = (FOLDER / "Containerfile").read_text("utf-8")
        lines = dict(re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE))
        self.assertEqual(lines["ENTRYPOINT"], '["rmq-container"]')
        self.assertEqual((lines["USER"], lines["VOLUME"], lines["STOPSIGNAL"]), ("10001", container.DATA, "SIGTERM"))
        self.assertEqual(lines["EXPOSE"].split()[:2], ["9876", f"{container.HTTP_PORT}-{container.HTTP_PORT + 2}"])
        self.assertIn('CMD ["rmq-container", "health"]', lines["HEALTHCHECK"])

    def environment_is_known(self, environment: dict[str, str]) -> None:
        keys = {field.key for cls in CONFIG_CLASSES for field in config_fields(cls)}
        for name in environment:
            self.assertTrue(name == "RMQ_BROKER_IP1" or name.removeprefix("RMQ_KEY_") in keys, name)

    def test_compose_file(self) -> None:
        """Every service becomes a command; the ports that are published are those of the broker."""
        need_extra("acl")
        import yaml

        content = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
        self.assertEqual(set(content["services"]), {"namesrv", "master", "slave"})
        for service in content["services"].values():
            environment = {**service.get("environment", {})}
            self.environment_is_known(environment)
            if environment:
                self.assertTrue(environment["RMQ_BROKER_IP1"].startswith("${ADDRESS:?"))
                environment["RMQ_BROKER_IP1"] = "192.0.2.10"
            words = made(*service["command"], **environment)
            port = int(environment.get("RMQ_KEY_listenPort", 10911 if environment else 9876))
            ports = [port - 2, port, port + 1] if environment else [port]
            self.assertEqual(service["ports"], [f"{each}:{each}" for each in ports])
            self.assertTrue(service["volumes"][0].endswith(":/data"))
            self.assertIn(words[0], ("rmq-namesrv", "rmq-broker"))
            self.assertTrue(service["read_only"])

    def test_kubernetes_file(self) -> None:
        """Each pod's probe and ports fit its role, and the environment has keys that exist."""
        need_extra("acl")
        import yaml

        documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8")))
        sets = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "StatefulSet"}
        services = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
        self.assertEqual(sets.keys(), services.keys())
        for name, spec in sets.items():
            (pod,) = spec["template"]["spec"]["containers"]
            self.assertEqual(spec["template"]["metadata"]["labels"], services[name]["selector"])
            self.assertEqual(pod["readinessProbe"]["httpGet"], {"path": "/healthz", "port": container.HTTP_PORT})
            self.assertIn(services[name]["ports"][0]["port"], [port["containerPort"] for port in pod["ports"]])
            self.assertEqual(pod["volumeMounts"][0]["mountPath"], container.DATA)
            environment = {entry["name"]: entry.get("value", "192.0.2.1") for entry in pod.get("env", [])}
            environment.pop("POD", None)
            self.environment_is_known(environment)
            if "command" not in pod:
                self.assertEqual(made(*pod["args"], **environment)[0], name)

    def test_roles_of_the_pods(self) -> None:
        """The script in the example makes the first pod the master and the second its slave."""
        need_extra("acl")
        import subprocess

        import yaml

        documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8")))
        (script,) = documents[-1]["spec"]["template"]["spec"]["containers"][0]["args"]
        said = script.replace("exec rmq-container", "echo")
        for pod, words in (
            ("rmq-broker-a-0", "broker --brokerRole SYNC_MASTER"),
            ("rmq-broker-a-1", "broker --brokerRole SLAVE --brokerId 1"),
        ):
            done = subprocess.run(["sh", "-c", said], env={"POD": pod}, capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.strip(), words)
            options = Options()
            with redirect_stdout(io.StringIO()):
                given = [*shlex.split(words)[1:], "--brokerIP1", "192.0.2.1", "-m"]
                self.assertEqual(self.assertRaises(SystemExit, options.parseOptions, given).code, 0)
