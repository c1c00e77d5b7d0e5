"""TLS with Apache's clients, brokers and tools on the other side."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.needs import missing
from tests.real.conftest import Clients
from tests.real.peers import APACHE_4, APACHE_5, HOST, OURS, Process, Site, mqadmin, until
from tests.real.probe import Probe, text
from tests.remoting.certificates import Authority

#: what makes any Java process take part; each test adds what it needs
TLS = "-Dtls.enable=true"


@attrs.frozen
class Certificates:
    """A folder with ``ca.pem``, ``server.pem`` and ``server.key``."""

    folder: Path
    authority: Authority

    def issue(self, name: str, *, file: str = "server") -> None:
        pem = self.authority.issue(name, [HOST])
        self.path(f"{file}.pem").write_bytes(pem.certificate)
        self.path(f"{file}.key").write_bytes(pem.key)

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def served(self) -> dict[str, Any]:
        """Keys of a process that shows the certificate, and verifies those of others."""
        return {
            "tls.server.certPath": self.path("server.pem"),
            "tls.server.keyPath": self.path("server.key"),
            "tls.client.authServer": True,
            "tls.client.trustCertPath": self.path("ca.pem"),
        }

    @property
    def java(self) -> str:
        """Flags of a Java client that verifies."""
        trust = self.path("ca.pem")
        return (
            f"{TLS} -Dtls.test.mode.enable=false -Dtls.client.authServer=true -Dtls.client.trustCertPath={trust} "
            f"-Dtls.config.file={self.path('none')}"
        )

    @property
    def mutual(self) -> dict[str, Any]:
        """Keys of a process that wants a certificate of everybody, and shows its own to everybody."""
        return {
            **self.served,
            "tls.server.mode": "enforcing",
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": True,
            "tls.server.trustCertPath": self.path("ca.pem"),
            "tls.client.certPath": self.path("server.pem"),
            "tls.client.keyPath": self.path("server.key"),
        }

    def as_flags(self, values: dict[str, Any]) -> str:
        """Return keys as a Java process takes them."""
        flags = (f"-D{key}={text(value)}" for key, value in values.items())
        return " ".join((TLS, "-Dtls.test.mode.enable=false", f"-Dtls.config.file={self.path('none')}", *flags))

    def context(self, *, file: str | None = None) -> ssl.SSLContext:
        """Return what verifies servers, and shows them the certificate of ``file``."""
        context = ssl.create_default_context(cafile=str(self.path("ca.pem")))
        if file is not None:
            context.load_cert_chain(self.path(f"{file}.pem"), self.path(f"{file}.key"))
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    folder = tmp_path / "certificates"
    folder.mkdir()
    made = Certificates(folder, Authority())
    made.path("ca.pem").write_bytes(made.authority.pem)
    made.issue("first")
    return made


def subject(process: Process, context: ssl.SSLContext) -> str:
    """Connect with TLS and return the name in the certificate that is shown."""
    with socket.create_connection((HOST, process.port), 30) as plain:
        shown = context.wrap_socket(plain, server_hostname=HOST).getpeercert()
    assert shown is not None
    names = dict(entry[0] for entry in shown["subject"])  # type: ignore[misc]
    return str(names["commonName"])


def over_tls(process: Process, context: ssl.SSLContext) -> Probe:
    """A probe whose connection is a TLS connection."""
    probe = process.probe()
    probe.socket = context.wrap_socket(probe.socket, server_hostname=HOST)
    return probe


@pytest.mark.real
@pytest.mark.parametrize(("version", "twistd"), [(APACHE_4, ("--reactor", "epoll")), (APACHE_5, ())])
def test_java_clients(
    site: Site,
    client: Clients,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    twistd: tuple[str, ...],
) -> None:
    """A Java client that verifies produces and consumes over TLS, while plain peers use the same ports."""
    namesrv = site.namesrv(twistd=twistd, **certificates.served)
    broker = site.broker(OURS, namesrv.addr, twistd=twistd, **certificates.served, useTLS=True)

    monkeypatch.setenv("JAVA_TOOL_OPTIONS", certificates.java)
    java = client(version, namesrv.addr)
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    java.consume("secured", "Secured", "one")
    sent = {event["key"] for event in java.send("Secured", "mixed", 60, prefix="tls", sizes=(40, 200_000))}
    java.wait_for_count("received", lambda: len({e["key"] for e in java.got("one")} & sent), len(sent))

    with broker.probe() as probe:
        records = [record for queue in probe.read_topic("Secured", 8).values() for record in queue]
        assert {record.key for record in records} == sent
    assert "Unhandled" not in broker.text() + namesrv.text()


@pytest.mark.real
def test_enforcing(site: Site, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tls.server.mode=enforcing everybody speaks TLS, slave and mqadmin too, and plain peers are turned away."""
    values: dict[str, Any] = {"tls.server.mode": "enforcing", **certificates.served}
    namesrv = site.namesrv(**values)
    master = site.broker(OURS, namesrv.addr, start=False, **values)
    slave = site.slave(OURS, master, namesrv.addr, start=False, **values)
    master.start()
    slave.start()
    context = certificates.context()

    def registered() -> bool:
        with over_tls(namesrv, context) as probe:
            addrs = probe.cluster()["brokerAddrTable"].get("broker-a", {"brokerAddrs": {}})["brokerAddrs"]
        return bool(addrs == {"0": master.addr, "1": slave.addr})

    until("master and slave are registered", registered)
    with over_tls(master, context) as probe:
        probe.create_topic("Secured", 4)
        probe.send_message("Secured", 1, b"hello", KEYS="k1")

    def synchronised() -> bool:
        with over_tls(slave, context) as probe:
            return "Secured" in probe.topics()

    until("the slave has the master's topics", synchronised)

    for process in (namesrv, master):
        with process.probe() as probe:
            probe.send(105, {"topic": "Secured"})
            assert probe.at_end(30)
        assert "tls.server.mode=enforcing" in process.text()

    monkeypatch.setenv("JAVA_TOOL_OPTIONS", certificates.java)
    listed = mqadmin(site.root, "clusterList", "-n", namesrv.addr)
    assert master.addr in listed and slave.addr in listed


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "version"), [(OURS, APACHE_4), (OURS, APACHE_5), (APACHE_4, APACHE_4)], ids=["4.9.7", "5.3.3", "apache"]
)
def test_mutual(
    site: Site,
    client: Clients,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    version: str,
) -> None:
    """
    Where certificates of clients are required, a Java client with one is served, and one without is not.

    Our broker shows its certificate to Apache's NameServer as well as to ours, and so does an Apache broker to ours.
    """
    certificates.issue("client", file="client")
    certificates.issue("stranger", file="stranger")
    stranger = Authority().issue("stranger", [HOST])
    certificates.path("stranger.pem").write_bytes(stranger.certificate)
    certificates.path("stranger.key").write_bytes(stranger.key)
    values = certificates.mutual
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", certificates.as_flags(values))
    namesrv = site.namesrv(kind, **({} if kind != OURS else values))
    brokers = [
        site.broker(OURS, namesrv.addr, "broker-a", start=False, **values),
        site.broker(APACHE_4, namesrv.addr, "broker-b", start=False, brokerName="broker-b"),
    ]
    for broker in brokers:
        broker.start()
    known = certificates.context(file="client")

    def registered() -> bool:
        with over_tls(namesrv, known) as probe:
            return set(probe.cluster()["brokerAddrTable"]) == {"broker-a", "broker-b"}

    until("both brokers are registered", registered)
    for broker in brokers:
        with over_tls(broker, known) as probe:
            probe.create_topic("Mutual", 2)
    until("the topic is in the route", lambda: len((route(namesrv, known) or {"queueDatas": []})["queueDatas"]) == 2)

    for refused in (None, "stranger"):
        with pytest.raises(OSError), over_tls(brokers[0], certificates.context(file=refused)) as probe:
            probe.topics()

    shown = {
        "tls.client.certPath": certificates.path("client.pem"),
        "tls.client.keyPath": certificates.path("client.key"),
    }
    verifies = {"tls.client.authServer": True, "tls.client.trustCertPath": certificates.path("ca.pem")}
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", certificates.as_flags(verifies | shown))
    java = client(version, namesrv.addr)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", certificates.as_flags(verifies))
    listed = mqadmin(site.root, "clusterList", "-n", namesrv.addr)
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    assert brokers[0].addr not in listed and "Exception" in listed
    java.consume("mutual", "Mutual", "one")
    sent = {event["key"] for event in java.send("Mutual", "sync", 20, prefix="mutual")}
    java.wait_for_count("received", lambda: len({e["key"] for e in java.got("one")} & sent), len(sent))


def route(namesrv: Process, context: ssl.SSLContext) -> dict[str, Any] | None:
    with over_tls(namesrv, context) as probe:
        return probe.route("Mutual")


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_apache_broker(site: Site, client: Clients, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Apache's broker in test mode registers over TLS at our NameServer in test mode, with nothing configured here."""
    namesrv = site.namesrv()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{TLS} -Dtls.config.file={site.root / 'none'}")
    broker = site.broker(version, namesrv.addr)
    assert "TLS in test mode" in namesrv.text()
    java = client(version, namesrv.addr)
    java.send("Secured", "sync", 20, prefix="tls")
    with broker.probe() as probe:
        assert sum(probe.max_offset("Secured", queue) for queue in range(8)) == 20


@pytest.mark.real
def test_new_certificate(site: Site, certificates: Certificates) -> None:
    """A certificate that is replaced is shown without a restart; a broken one changes nothing but the log."""
    namesrv = site.namesrv(**certificates.served)
    context = certificates.context()
    assert subject(namesrv, context) == "first"
    certificates.path("server.pem").write_text("broken")
    until("the broken file is reported", lambda: "stays in use" in namesrv.text())
    assert subject(namesrv, context) == "first"
    certificates.issue("second")
    until("the new certificate is shown", lambda: subject(namesrv, context) == "second")


@pytest.mark.real
def test_unusable_certificate(site: Site, certificates: Certificates) -> None:
    """A start with a certificate that cannot be used ends at once, with one line that names the file."""
    certificates.path("server.key").write_text("broken")
    for process in (
        site.namesrv(start=False, **certificates.served),
        site.broker(OURS, f"{HOST}:1", start=False, **certificates.served),
    ):
        process.start(wait=False)
        until(f"{process.name} has ended", lambda process=process: not process.alive)  # type: ignore[misc]
        text = process.text()
        assert "cannot start" in text and "server.key" in text
        assert "Traceback" not in text


@pytest.mark.real
def test_recipe(site: Site) -> None:
    """The commands and keys of docs/security.md make a NameServer that a client can verify."""
    if shutil.which("openssl") is None:
        missing("no openssl on PATH")
    text = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text("utf-8")
    commands = text.split("```sh\n", 1)[1].split("```", 1)[0]
    folder = site.root / "recipe"
    folder.mkdir()
    subprocess.run(["bash", "-e", "-c", commands], cwd=folder, check=True, capture_output=True, timeout=120)
    keys = text.split("```properties\n", 1)[1].split("```", 1)[0].replace("/etc/rocketmq", str(folder))
    config: dict[str, Any] = {"tls.config.file": folder / "tls.properties"}
    namesrv = site.namesrv(start=False, **config)
    (folder / "tls.properties").write_text(keys)
    namesrv.start()
    assert subject(namesrv, ssl.create_default_context(cafile=str(folder / "ca.pem"))) == "broker-a"
