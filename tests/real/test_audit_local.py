"""What README promises: the command that rmq-local prints proves that its slave is right, while messages flow."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.load import Load
from tests.real.peers import Broker, Process, Site, broker_values, until

TOPIC, QUEUES = "orders", 4


def prove_it(local: Process) -> list[str]:
    """Return the command that rmq-local says to type."""
    until("rmq-local says what to type", lambda: "prove it" in local.text())
    line = next(line for line in local.text().splitlines() if line.strip().startswith("prove it"))
    return shlex.split(line.strip().removeprefix("prove it"))


def run(command: list[str], folder: Path) -> str:
    """Run the command in another process, as a second terminal would, and return what it printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"status {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.real
def test_one_command_proves_the_running_cluster(site: Site, tmp_path: Path) -> None:
    """In a new folder: the printed command says CONSISTENT, with status 0, of an idle cluster and under load."""
    namesrv, master, slave = free_port(), free_port(), free_port()
    ports = ["--namesrv-port", str(namesrv), "--broker-port", str(master), "--slave-port", str(slave)]
    ports += ["--http-port", "0"]
    local = site.command("rmq-local", [sys.executable, "-m", "rmq.local", *ports], slave)
    command = prove_it(local)
    assert command[:2] == [str(Path(sys.executable).parent / "rmq-audit"), "compare"], command
    values = broker_values(master, f"127.0.0.1:{namesrv}", local.folder / "rmq-data" / "broker-a")
    store = Path(str(values["storePathRootDir"]))
    broker = Broker("master", "ours", [], local.folder, master, [], values=values, store=store)
    empty = run(command, local.folder)
    assert "CONSISTENT" in empty
    with broker.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    with Load(broker, TOPIC, QUEUES) as load:
        load.wait_for(500)
        for _ in range(3):
            load.wait_for_more(50)
            busy = run(command, local.folder)
            assert busy.startswith("CONSISTENT"), busy
            assert re.search(r"(?<!\d)0 records", busy) is None, busy
    assert not load.failures
    idle = run(command, local.folder)
    assert idle.startswith("CONSISTENT"), idle
    assert local.alive
