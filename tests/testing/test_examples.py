"""The examples of README and docs/testing-kit.md run as they are printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: tox -e kit runs them
pytestmark = pytest.mark.campaign

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("rmq.testing.plugin", "pytest_asyncio.plugin", "pytest_twisted")
#: trial with a folder to import from, also where Python is not to look in the current one
TRIAL = "import sys; sys.path.insert(0, sys.argv.pop(1)); from twisted.scripts.trial import run; run()"


def blocks_of(name: str, language: str = "python") -> list[str]:
    """Return the blocks of a document in a language."""
    text = (ROOT / name).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def examples(name: str) -> list[str]:
    """Return the Python blocks of a document that are tests."""
    return [block for block in blocks_of(name) if re.search(r"^\s*(async )?def test_|^Test\w+ =", block, re.MULTILINE)]


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder without configuration; return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pytest_of(*plugins: str) -> list[str]:
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", *(part for name in plugins for part in ("-p", name))]


def test_readme(tmp_path: Path) -> None:
    """The README's test needs pytest alone."""
    (example,) = examples("README.md")
    assert len(example.strip().splitlines()) <= 18
    (tmp_path / "test_readme.py").write_text(example)
    assert "1 passed" in run(tmp_path, *pytest_of(PLUGINS[0]))


def test_documents(tmp_path: Path) -> None:
    """Those of docs/testing-kit.md run with the plugins that they name, and the one for trial with trial."""
    pytest.importorskip("pytest_asyncio")
    trial = [text for text in examples("docs/testing-kit.md") if "twisted.trial" in text]
    elsewhere = ("twisted.trial", "SERVICE =")  # the latter: tests/real/test_kit_other_languages.py
    others = [text for text in examples("docs/testing-kit.md") if not any(part in text for part in elsewhere)]
    assert len(trial) == 1 and len(others) == 10
    for number, text in enumerate(others):
        (tmp_path / f"test_{number}.py").write_text(text)
    assert "13 passed" in run(tmp_path, *pytest_of(*PLUGINS))
    (tmp_path / "trial_example.py").write_text(trial[0])
    assert "PASSED" in run(tmp_path, "-c", TRIAL, str(tmp_path), "trial_example")


def test_state_machine_finds_a_bug(tmp_path: Path) -> None:
    """The state machine of docs/testing-kit.md fails when the program books a payment as often as its message comes."""
    (text,) = (text for text in examples("docs/testing-kit.md") if "RuleBasedStateMachine" in text)
    broken = text.replace("if message.keys[0] not in self._booked:", "if True:")
    quick = broken.replace("deadline=None", "deadline=None, derandomize=True, phases=[Phase.generate]")
    quick = quick.replace("import settings\n", "import Phase, settings\n")
    assert quick.count("Phase") == 2 and broken != text
    (tmp_path / "test_broken.py").write_text(quick)
    with pytest.raises(AssertionError, match=r"nothing_is_booked_twice|all_is_booked"):
        run(tmp_path, *pytest_of(PLUGINS[0]))


def test_trial_beside_pytest_twisted(tmp_path: Path) -> None:
    """
    A test case of trial that fails because pytest-twisted has started the reactor says so, and how to run it.

    Without pytest-twisted it passes, after test functions too.
    """
    (tmp_path / "test_it.py").write_text(
        "from twisted.internet import reactor\n"
        "from twisted.internet.task import deferLater\n"
        "from twisted.trial.unittest import TestCase\n"
        "def test_before():\n    pass\n"
        "class Tests(TestCase):\n    def test_waits(self):\n        return deferLater(reactor, 0.01)\n"
    )
    with pytest.raises(AssertionError, match="starts it itself, and does not wait"):
        run(tmp_path, *pytest_of(PLUGINS[0], "pytest_twisted"))
    assert "2 passed" in run(tmp_path, *pytest_of(PLUGINS[0]))


def test_a_failed_test_shows_the_log(tmp_path: Path) -> None:
    """The report of a failed test has what the servers logged meanwhile."""
    (tmp_path / "test_it.py").write_text("def test_it(rmq):\n    rmq.topic('planted')\n    assert False\n")
    with pytest.raises(AssertionError, match=r"log of the servers: server\.log") as failed:
        run(tmp_path, *pytest_of(PLUGINS[0]))
    assert "planted-" in str(failed.value).partition("log of the servers")[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("slave=1", r"@pytest\.mark\.rmq\(slave=1\): it accepts masters, slaves, role, config, keep, log_level, port"),
        ("2", r"@pytest\.mark\.rmq\(2\): it accepts masters"),
        ("config='a=b'", r"@pytest\.mark\.rmq: config='a=b' is no mapping"),
        ("slaves='1'", r"@pytest\.mark\.rmq: slaves='1' .* is no whole number"),
    ],
)
def test_wrong_marker(tmp_path: Path, arguments: str, text: str) -> None:
    """A wrong argument of the marker is named, with what it accepts."""
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.rmq({arguments})\ndef test_it(rmq_isolated):\n    pass\n"
    )
    with pytest.raises(AssertionError, match=f"UsageError: {text}"):
        run(tmp_path, *pytest_of(PLUGINS[0]))


def test_marker_without_servers_of_its_own(tmp_path: Path) -> None:
    """The marker on a test that does not use rmq_isolated is an error; one of a module is for those that do."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.rmq(masters=1)\n"
        "def test_without_servers():\n    pass\n"
        "def test_by_name(request):\n    request.getfixturevalue('rmq_isolated')\n"
        "@pytest.fixture\ndef mq(rmq_isolated):\n    return rmq_isolated\n"
        "@pytest.mark.rmq(config={'flushDiskType': 'SYNC_FLUSH'})\ndef test_through_a_fixture(mq):\n    pass\n"
        "@pytest.mark.rmq(slaves=1)\ndef test_marked():\n    pass\n"
        "def test_shared(rmq_client):\n    pass\n"
    )
    with pytest.raises(AssertionError) as failed:
        run(tmp_path, *pytest_of(PLUGINS[0]))
    text = str(failed.value)
    assert "3 passed, 2 errors" in text
    chooses = "UsageError: @pytest.mark.rmq chooses the servers of the fixture rmq_isolated; this test "
    assert f"{chooses}does not use it" in text
    assert f"{chooses}uses rmq_cluster, rmq, rmq_client, the servers of all tests" in text


def test_plugin_imports_pytest_only(tmp_path: Path) -> None:
    """A run that uses no fixture of the kit imports nothing of rmq but the plugin, and no Twisted."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    names = {name for name in sys.modules if name.startswith(('rmq', 'twisted', 'msgspec', 'attr'))}\n"
        "    assert names == {'rmq', 'rmq.testing', 'rmq.testing.plugin'}, names\n"
    )
    assert "1 passed" in run(tmp_path, *pytest_of(PLUGINS[0]))


def test_running_cluster(tmp_path: Path) -> None:
    """With --rmq-address tests use a cluster that runs; what they cannot do there says so."""
    from rmq.testing import cluster

    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "from rmq.blocking import Message\n"
        "from rmq.testing import ServerFailed\n"
        "def test_it(rmq, rmq_client):\n"
        "    topic, group = rmq.topic(queues=2), rmq.group()\n"
        "    assert len(rmq_client.producer().queues(topic)) == 2\n"
        "    rmq_client.producer().send(Message(topic, b'x'))\n"
        "    assert rmq.unconsumed(group, topic) == 1\n"
        "    rmq_client.push_consumer(group, {topic: '*'}, handler=print).start()\n"
        "    rmq.wait_consumed(group, topic)\n"
        "    with pytest.raises(TimeoutError, match='topic typo does not exist'):\n"
        "        rmq.wait_consumed(group, 'typo', timeout_s=0.01)\n"
        "    with pytest.raises(ServerFailed, match='rmq-address'):\n"
        "        rmq.faults.full_disk()\n"
    )
    with cluster() as mq:
        assert "1 passed" in run(tmp_path, *pytest_of(PLUGINS[0]), "--rmq-address", mq.namesrv)
