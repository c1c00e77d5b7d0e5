"""The control port: what tests in other languages ask of the servers, by HTTP."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.blocking import Client, Message
from rmq.errors import NotDelivered
from tests.needs import missing
from tests.ports import free_port
from tests.testing.test_examples import blocks_of

DEADLINE_S = 60.0
SERVER = [sys.executable, "-m", "rmq.testing.server"]


@pytest.fixture(scope="module")
def ready() -> Iterator[dict[str, Any]]:
    """The ready line of servers with a control port."""
    process = subprocess.Popen(
        [*SERVER, "--control-port", "0", "--topic", "orders"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    yield json.loads(process.stdout.readline())
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0


def ask(url: str, command: object) -> tuple[int, dict[str, Any]]:
    """POST a command; return the status and the answer."""
    try:
        with urllib.request.urlopen(url, json.dumps(command).encode(), timeout=DEADLINE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_commands(ready: dict[str, Any]) -> None:
    """A POST is a command as on standard input: faults, messages, waits; an error has status 400, and its text."""
    url = ready["control"]
    status, answer = ask(url, {"do": "refuse", "request": "SEND_MESSAGE", "times": 1, "id": 7})
    assert (status, answer["id"]) == (200, 7)
    with Client(ready["namesrv"]) as client:
        producer = client.producer()
        with pytest.raises(NotDelivered, match="refused by a test"):
            producer.send(Message("orders", b"refused"), timeout_s=0.5)
        assert ask(url, {"do": "count", "fault": answer["result"]}) == (200, {"result": 1})
        producer.send(Message("orders", b"hello"))
    assert len(ask(url, {"do": "wait_messages", "topic": "orders"})[1]["result"]) == 1
    status, answer = ask(url, {"do": "wait_consumed", "group": "g", "topic": "orders", "timeout_s": 0.05})
    assert status == 400 and "not after 0.05 s: group g has acknowledged all" in answer["error"]
    status, answer = ask(url, {"do": "wait_consumed", "group": "g", "topic": "typo", "timeout_s": 0.05})
    assert status == 400 and "topic typo does not exist after 0.05 s" in answer["error"]
    for topic, is_there in (("orders", True), ("typo", False)):
        assert ask(url, {"do": "has_topic", "topic": topic}) == (200, {"result": is_there})
    assert ask(url, {"do": "empty"}) == (200, {"result": None})
    assert ask(url, {"do": "wait_consumed", "group": "g", "topic": "orders"}) == (200, {"result": None})
    for wrong, text in (({"do": "nonsense"}, "no command 'nonsense'"), ({}, "no command None"), ([], "TypeError")):
        status, answer = ask(url, wrong)
        assert status == 400 and text in answer["error"]
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(url, timeout=DEADLINE_S)


def test_a_test_that_does_not_wait(ready: dict[str, Any]) -> None:
    """A request whose connection is lost before its answer does no harm to the next ones."""
    host, port = ready["control"].removeprefix("http://").split(":")
    lost, kept = (http.client.HTTPConnection(host, int(port), timeout=DEADLINE_S) for _ in range(2))
    lost.request("POST", "/", json.dumps({"do": "wait_messages", "topic": "nothing", "timeout_s": 0.3}))
    kept.request("POST", "/", json.dumps({"do": "wait_messages", "topic": "nothing", "timeout_s": 0.4}))
    lost.close()
    assert kept.getresponse().status == 400
    assert "Traceback" not in Path(ready["log"]).read_text()


def test_a_port_that_is_taken() -> None:
    """The line of the error has the option, and why the port cannot be had."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([*SERVER, "--control-port", port], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert f"--control-port {port}: " in error and "in use" in error


def test_the_example(tmp_path: Path) -> None:
    """The example of docs/testing-kit.md for curl gives the answers that are printed there."""
    if shutil.which("curl") is None:
        missing("no curl on PATH")
    (script,) = (text for text in blocks_of("docs/testing-kit.md", "sh") if "RMQ_CONTROL" in text)
    (tmp_path / "example.sh").write_text(script)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [*SERVER, "--port", str(free_port()), "--topic", "orders", "--", "sh", "-eu", "example.sh"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers == [line.partition("# ")[2] for line in script.splitlines() if "# {" in line]
