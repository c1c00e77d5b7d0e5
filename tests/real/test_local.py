"""What rmq-local says of its processes while they run."""

from __future__ import annotations

import os
import signal

import pytest

from tests.real.peers import OURS, STAND_IN, Site, until
from tests.real.test_clients import LocalCluster, master_pid

pytestmark = [pytest.mark.real, pytest.mark.skipif(STAND_IN != OURS, reason="of rmq-local")]


def test_a_master_that_hangs(site: Site) -> None:
    """After kill -STOP a line says which process does not answer and what to do; after kill -CONT, that it answers."""
    local = LocalCluster(site)
    pid = master_pid(local.process, local.master_port)
    os.kill(pid, signal.SIGSTOP)
    until("the line", lambda: f"broker-a (process {pid}) has not answered since" in local.process.console.read_text())
    assert f"it is stopped; `kill -CONT {pid}` lets it go on" in local.process.console.read_text()
    os.kill(pid, signal.SIGCONT)
    until("it answers", lambda: "broker-a answers again, after" in local.process.console.read_text())
    said = local.process.console.read_text()
    assert said.count("has not answered") == 1, said


def test_ctrl_c_while_a_process_is_stopped(site: Site) -> None:
    """The stop is clean: a process that was stopped with a signal goes on, and ends in order."""
    local = LocalCluster(site)
    os.kill(master_pid(local.process, local.master_port), signal.SIGSTOP)
    local.process.stop()
    assert "does not stop" not in local.process.console.read_text()
    assert not (local.store / "abort").exists()
