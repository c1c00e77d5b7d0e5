"""The HTTP port of real processes, asked as curl and Prometheus ask."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.peers import HOST, Process, Site, broker_values, until, write_properties

pytestmark = pytest.mark.real

RUN = "from twisted.scripts.twistd import run; run()"
WITHOUT_EXTRA = f"import sys; sys.modules['prometheus_client'] = None; {RUN}"


def get(port: int, path: str, *, method: str = "GET", accept: str = "*/*") -> tuple[int, str]:
    """Return status and body of one request."""
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", method=method, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(port: int) -> dict[str, float]:
    """Return all series with their values; every line must be one, or a comment."""
    status, text = get(port, "/metrics")
    assert status == 200
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            matched = re.fullmatch(r"(\w+(?:\{.*\})?) (\S+)", line)
            assert matched is not None, line
            found[matched[1]] = float(matched[2])
    return found


def series(port: int, name: str, **labels: str) -> float:
    """Return the one series with these labels among others; a LookupError when it is not there (yet)."""
    found = [
        value
        for key, value in metrics(port).items()
        if key.partition("{")[0] == name and all(f'{label}="{text}"' in key for label, text in labels.items())
    ]
    if len(found) != 1:
        raise LookupError(f"{name} {labels}: {found}")
    return found[0]


def command(plugin: str, conf: Path, *options: str, program: str = RUN) -> list[str]:
    return [sys.executable, "-c", program, "--nodaemon", "--pidfile=", plugin, "-c", str(conf), *options]


def start_namesrv(site: Site, http_port: int) -> Process:
    folder = site.root / "http-namesrv"
    folder.mkdir(parents=True)
    port = free_port()
    values = {"listenPort": port, "bindAddress": HOST, "kvConfigPath": folder / "kvConfig.json"}
    conf = write_properties(folder / "namesrv.conf", values)
    return site.command("http-namesrv", command("rmq-namesrv", conf, "--http", str(http_port)), port)


def start_broker(site: Site, name: str, namesrv: str, http_port: int, **config: object) -> Process:
    folder = site.root / name
    folder.mkdir(parents=True)
    port = free_port()
    values: Mapping[str, object] = {**broker_values(port, namesrv, folder / "store"), **config}
    conf = write_properties(folder / "broker.conf", values)
    return site.command(name, command("rmq-broker", conf, "--http", f"{HOST}:{http_port}"), port)


def test_a_group_and_its_nameserver(site: Site) -> None:
    """Metrics, pages and health of a NameServer, a SYNC_MASTER and its slave, while messages go through them."""
    at_namesrv, at_master, at_slave = free_port(), free_port(), free_port()
    namesrv = start_namesrv(site, at_namesrv)
    master = start_broker(site, "http-master", namesrv.addr, at_master, brokerRole="SYNC_MASTER")
    slave = start_broker(site, "http-slave", namesrv.addr, at_slave, brokerRole="SLAVE", brokerId=1)
    for port in (at_namesrv, at_master, at_slave):
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/nothing")[0] == 404
        assert get(port, "/", method="POST")[0] == 405

    until("both are registered", lambda: series(at_namesrv, "rocketmq_namesrv_active_brokers") == 2)
    until("the slave is in sync", lambda: series(at_master, "rocketmq_store_ha_in_sync_slaves") == 1)
    with master.probe() as probe:
        for number in range(20):
            assert probe.send_message("HttpTopic", 0, b"%d" % number).code == 0
        probe.pull("HttpTopic", 0, 0)
        probe.commit_offset("probe-consumer", "HttpTopic", 0, 5)

    def counted() -> bool:
        return series(at_master, "rocketmq_messages_in_total", topic="HttpTopic") == 20

    until("the messages are counted", counted)
    lag = series(at_master, "rocketmq_consumer_lag_messages", consumer_group="probe-consumer", topic="HttpTopic")
    assert lag == 15
    assert series(at_master, "rocketmq_store_ha_ack_latency_millis_count") >= 1
    assert series(at_master, "rocketmq_rpc_latency_milliseconds_count", request_code="send_message_v2") >= 1
    assert series(at_slave, "rocketmq_store_ha_link_up") == 1
    until("the topic has a route", lambda: series(at_namesrv, "rocketmq_namesrv_topics") >= 1)
    for port in (at_namesrv, at_master, at_slave):
        assert metrics(port)["process_resident_memory_bytes"] > 1e6
        status, text = get(port, "/metrics", accept="application/openmetrics-text;version=1.0.0;q=0.9,*/*;q=0.1")
        assert status == 200 and text.endswith("# EOF\n")

    page = get(at_namesrv, "/")[1]
    assert "http-master" not in page and "broker-a" in page and master.addr in page and slave.addr in page
    assert master.addr in get(at_namesrv, "/topic?name=HttpTopic")[1]
    assert "No route" in get(at_namesrv, "/topic?name=Nowhere")[1]
    assert "SYNC_MASTER" in get(at_master, "/")[1]
    assert "transferring" in get(at_master, "/")[1]
    assert "HttpTopic" in get(at_master, "/groups")[1]

    slave.kill()
    until("the master has lost its slave", lambda: series(at_master, "rocketmq_store_ha_in_sync_slaves") == 0)
    until(
        "the NameServer tells how the slave went",
        lambda: series(at_namesrv, "rocketmq_namesrv_route_events_total", event="closed") == 1,
    )
    assert slave.addr in get(at_namesrv, "/")[1]


@pytest.mark.parametrize("option", ["--http", "--manhole"])
@pytest.mark.parametrize("plugin", ["rmq-namesrv", "rmq-broker"])
def test_port_in_use(tmp_path: Path, plugin: str, option: str) -> None:
    """An HTTP port or a manhole that is taken is one line and status 1, before the role itself has begun."""
    conf = write_properties(tmp_path / "role.conf", {"listenPort": free_port(), "storePathRootDir": tmp_path / "store"})
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(plugin, conf, option, str(port)), cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"{plugin} cannot start: Couldn't listen on 127.0.0.1:{port}: [Errno 98] Address already in use."
    ]
    assert "boot success" not in done.stdout
    assert not (tmp_path / "store").exists()


def test_without_the_extra(tmp_path: Path) -> None:
    """Without prometheus-client the process ends with the command that installs it."""
    conf = write_properties(tmp_path / "role.conf", {"listenPort": free_port()})
    done = subprocess.run(
        command("rmq-namesrv", conf, "--http", "0", program=WITHOUT_EXTRA),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "rmq-namesrv cannot start: --http needs the extra txrocketmq[metrics]: pip install 'txrocketmq[metrics]'"
    )


def test_wrong_option(tmp_path: Path) -> None:
    """A value that is no address is named, and the process does not start."""
    conf = write_properties(tmp_path / "role.conf", {"listenPort": free_port()})
    done = subprocess.run(
        command("rmq-broker", conf, "--http", "localhost"), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr == (
        "rmq-broker cannot start: --http 'localhost': [HOST:]PORT is expected, as in 8080 or 0.0.0.0:8080\n"
    )
    assert done.stdout == f"load config properties file OK, {conf}\n"
