"""The audit in rounds: only what stands still is judged, what changed is told, and a signal ends it cleanly."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rmq_audit.cli.watch import Clock, Stopped, Watch, read_ends, stopping_by_signals
from rmq_audit.driver.audit import Options
from rmq_audit.driver.clusterconfig import config_of, read_config
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker.location import InputError

from tests.needs import imports
from tests.spark.support import result_of
from tests.spark.synthetic import Pair, make_store
from tests.spark.test_command import CommandCase

EVERY_S = 300.0


class WatchCase(CommandCase):
    """A pair whose brokers run: :meth:`show` makes its logs end where the test says."""

    @pytest.fixture(autouse=True)
    def _make_pair(self, tmp_path: Path) -> None:
        self.whole = Pair(tmp_path / "whole", make_store(51, 300))
        for root in (self.whole.master, self.whole.slave):
            shutil.rmtree(root / "index")
        self.master, self.slave = tmp_path / "master", tmp_path / "slave"
        self.stored = self.whole.made.stored
        self.state = tmp_path / "state"
        self.state.mkdir()
        self.said: list[str] = []
        self.now_s = 0.0
        #: what happens at each wait: first that between look and judgement, then those between rounds
        self.meanwhile: list[Callable[[], object]] = []

    def show(
        self, root: Path, messages: int, *, torn_bytes: int = 0, ruin: Callable[[Pair], object] | None = None
    ) -> None:
        """Make a log end behind so many messages, with so many bytes of the next one behind that."""
        origin = self.whole.master if root is self.master else self.whole.slave
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        end = self.stored[messages].phy
        self.whole.cut(root, end)
        if torn_bytes:
            self.whole.write(root, end, self.whole.read(origin, end, torn_bytes))
        if ruin is not None:
            ruin(self.whole)

    def both(self, messages: int) -> None:
        self.show(self.master, messages)
        self.show(self.slave, messages)

    def grow(self, master: tuple[int, int], slave: tuple[int, int]) -> None:
        """Let both logs end behind so many messages, and so many bytes of the next."""
        self.show(self.master, master[0], torn_bytes=master[1])
        self.show(self.slave, slave[0], torn_bytes=slave[1])

    def watch(self, config: Any = None, **more: Any) -> Watch:
        def wait(seconds: float) -> None:
            self.now_s += seconds
            if self.meanwhile:
                self.meanwhile.pop(0)()

        numbers = iter(range(1000))
        clock = Clock(now_s=lambda: self.now_s, wait=wait, date=lambda: f"date-{self.now_s:.0f}", epoch_s=lambda: 1.0)
        return Watch(
            config or config_of(str(self.master), str(self.slave), 1 << 30),
            lambda: contextlib.nullcontext(LocalEngine(1)),
            Options(chunk_bytes=4096, split_bytes=16384),
            folder=str(self.state),
            clock=clock,
            say=self.said.append,
            new_id=lambda: f"run-{next(numbers)}",
            **more,
        )

    def last(self) -> dict[str, Any]:
        return result_of(self.state / "last.json")

    def causes(self) -> list[tuple[str, str]]:
        return [(one["invariant"], one["state"]) for one in self.last()["findings"] if one["derived_from"] is None]


class MovingTests(WatchCase):
    def test_a_pair_that_grows(self) -> None:
        """
        Logs grow, the slave lags, ends are torn, units are late: nothing is said of it round after round, and all that
        stood still in the previous round is compared.
        """
        self.show(self.master, 100, torn_bytes=60)
        self.show(self.slave, 80, torn_bytes=33)
        self.meanwhile = [
            lambda: self.grow((130, 5), (101, 99)),
            lambda: self.grow((180, 1), (140, 0)),
            lambda: self.grow((290, 0), (290, 0)),
            lambda: None,
        ]
        watch = self.watch()
        for compared_to in (80, 80, 140, 290):
            self.assertEqual(watch.round(), 0, self.said)
            self.assertEqual([one for one in self.causes() if one[0] != "RP-LAG"], [])
            (pair,) = self.last()["pairs"]
            self.assertEqual(pair["compared"]["phy_to"], self.stored[compared_to].phy)
            if self.meanwhile:
                self.meanwhile.pop(0)()

    def test_a_slave_that_was_empty(self) -> None:
        """A slave that gets its first messages between two looks is not ahead of where its master ended before."""
        for root in (self.whole.master, self.whole.slave):
            (root / "config" / "consumerOffset.json").unlink()  # of the whole log
        self.show(self.master, 100)
        (self.slave / "commitlog").mkdir(parents=True)
        self.meanwhile = [lambda: self.grow((200, 0), (190, 0)), lambda: None]
        watch = self.watch()
        for messages in (250, 290):
            watch.round()
            self.assertNotIn("RP-AHEAD", [invariant for invariant, _ in self.causes()])
            self.assertIn(self.last()["exit_status"], (0, 1), self.said)
            self.grow((messages, 0), (messages - 10, 0))

    def test_what_moves_while_it_is_read(self) -> None:
        """Records that arrive in the middle of a round belong to the next one, on either side."""
        messages = [100]
        self.both(messages[0])

        class Busy(LocalEngine):
            def run(inner, work: Any, tasks: Sequence[Any]) -> list[Any]:
                if work.name == "scan":
                    messages.append(min(messages[-1] + 40, 290))
                    self.show(self.master, messages[-1], torn_bytes=7)
                    self.show(self.slave, messages[-1], torn_bytes=40)
                return super().run(work, tasks)

        watch = self.watch()
        watch._engine = lambda: contextlib.nullcontext(Busy(1))
        self.assertEqual((watch.round(), self.causes()), (0, [("RP-LAG", "new")]))
        self.assertGreater(messages[-1], 200)

    def test_damage_behind_the_end_waits_for_its_round(self) -> None:
        """A record that differs is no finding while it is new, and is one in the next round."""
        self.both(100)
        watch = self.watch()
        watch.round()
        victim = self.stored[120]
        self.show(self.master, 150)
        self.show(self.slave, 150, ruin=lambda pair: pair.flip(self.slave, victim.body_at))
        self.assertEqual((watch.round(), self.causes()), (0, []))
        self.assertEqual((watch.round(), self.causes()), (2, [("RP-DIFF", "new")]))
        self.assertEqual((watch.round(), self.causes()), (2, [("RP-DIFF", "persisting")]))
        self.show(self.slave, 150)
        self.assertEqual((watch.round(), self.causes()), (0, []))
        self.assertEqual([one["invariant"] for one in self.last()["resolved"] if not one["derived_from"]], ["RP-DIFF"])
        told = "\n".join(self.said)
        self.assertEqual(told.count("new: master: ERROR RP-DIFF on slave"), 1)
        self.assertIn("resolved: master: ERROR RP-DIFF", told)

    def test_a_log_that_lost_its_end(self) -> None:
        """When a log ends before the place where it ended in the previous round, that is said, with both places."""
        self.both(150)
        junit = self.state.parent / "junit.xml"
        watch = self.watch(outputs={"--junit": str(junit)})
        watch.round()
        (rule,) = (one for one in self.last()["invariants"] if one["invariant"] == "CL-BACK")
        self.assertEqual((rule["state"], "first round" in rule["why"]), ("skipped", True))
        self.show(self.slave, 110)
        self.assertEqual(watch.round(), 1)
        suites = ElementTree.parse(junit).getroot()
        told = [case for suite in suites for case in suite if str(case.get("name")).startswith("CL-BACK")]
        self.assertEqual([case.find("system-out") is not None for case in told], [True])
        self.assertEqual({kind for kind, _ in self.causes()}, {"CL-BACK", "RP-LAG"})
        one = next(one for one in self.last()["findings"] if one["invariant"] == "CL-BACK")
        self.assertEqual(
            (one["replica"], one["expected"], one["actual"]),
            ("slave", str(self.stored[150].phy), str(self.stored[110].phy)),
        )
        self.assertEqual(watch.round(), 0)

    def test_a_consumer_that_goes_back(self) -> None:
        """Consumer offsets that are lower than in the previous round are told, once a group and topic."""
        self.both(100)
        watch = self.watch()
        watch.round()
        path = self.master / "config" / "consumerOffset.json"
        path.write_text(path.read_text().replace("0:", "0:0,7:", 1))
        self.assertEqual(watch.round(), 1)
        self.assertIn("CO-BACK", {kind for kind, _ in self.causes()})

    def test_dumps_state_their_ends(self) -> None:
        """Of dumps everything up to the end of their manifests is judged at once; nothing has to stand still."""
        self.both(120)
        for root in (self.master, self.slave):
            shutil.rmtree(root / "config")
            (root / "manifest.json").write_text(json.dumps({"maxPhyOffset": self.stored[120].phy}))
        self.whole.flip(self.slave, self.stored[119].body_at)
        self.assertEqual((self.watch().round(), self.causes()), (2, [("RP-DIFF", "new")]))
        self.assertEqual((self.now_s, read_ends(str(self.state / "ends.json"))), (0.0, {}))

    def test_sends_behind_the_end(self) -> None:
        """Acknowledged sends are looked for as far as the log is judged."""
        self.both(100)
        rows = [
            {"msgId": one.message_id, "brokerName": "b", "topic": one.topic, "queueId": one.queue_id}
            | {"queueOffset": one.queue_offset, "physicalOffset": one.phy}
            for one in self.stored[:120]
        ]
        rows[50]["msgId"] = "7F0000010000AAAAAAAAAAAAAAAAAAAA"
        table, config = self.folder / "acked.jsonl", self.folder / "c.toml"
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config.write_text('acked = ["acked.jsonl"]\n[[broker]]\nname = "b"\nmaster = "master"\nslaves = ["slave"]\n')
        watch = self.watch(read_config(str(config)))
        self.assertEqual((watch.round(), self.causes()), (2, [("AK-LOST", "new")]))
        (lost,) = self.last()["findings"]
        self.assertEqual(lost["count"], 1)


class RunTests(WatchCase):
    def test_rounds_and_state(self) -> None:
        """So many rounds, so far apart; another watch on the same folder knows what the first one saw."""
        self.both(100)
        self.whole.flip(self.slave, self.stored[50].body_at)
        self.assertEqual(self.watch().run(EVERY_S, 3), 2)
        self.assertEqual((self.now_s, len([line for line in self.said if line.startswith("round")])), (2 * EVERY_S, 3))
        self.watch().run(EVERY_S, 1)
        self.assertEqual(self.causes(), [("RP-DIFF", "persisting")])

    def test_no_room_for_results(self) -> None:
        """A result that cannot be written is named after its round, and the rounds go on."""
        self.both(100)
        watch = self.watch(outputs={"--json": str(self.folder / "none" / "a.json")})
        (self.state / "ends.json.tmp").mkdir()
        self.assertEqual(watch.run(EVERY_S, 2), 0)
        told = [line for line in self.said if line.startswith("  not written: ")]
        self.assertEqual((len(told), sum("ends.json" in line for line in told)), (4, 2), self.said)
        self.assertEqual(self.last()["verdict"], "CONSISTENT")

    def test_a_stop_ends_with_the_last_rounds_status(self) -> None:
        """Stopped between rounds or in the middle of one, the status is that of the last whole round; of none, 3."""

        def stop() -> None:
            raise Stopped

        self.both(100)
        self.meanwhile = [stop]
        self.assertEqual(self.watch().run(EVERY_S), 3)
        self.assertFalse((self.state / "last.json").exists())
        self.whole.flip(self.slave, self.stored[50].body_at)
        self.meanwhile = [lambda: None, lambda: None, stop]
        self.assertEqual(self.watch().run(EVERY_S), 2)
        self.assertIn("stopped after 2 rounds (exit status 2)", self.said[-1])

    def test_a_round_that_cannot_be_done(self) -> None:
        """A table that is half written costs one round; a store that is gone is said, and comes back."""
        self.both(100)
        table, config = self.folder / "acked.jsonl", self.folder / "c.toml"
        config.write_text('acked = ["acked.jsonl"]\n[[broker]]\nname = "b"\nmaster = "master"\nslaves = ["slave"]\n')
        table.write_text('{"msgId": "A')
        watch = self.watch(read_config(str(config)))
        self.assertEqual(watch.round(), 3)
        self.assertIn(f"round 1  date-0  not done: {table}", self.said[-1])
        table.write_text("")
        self.slave.rename(self.folder / "away")
        self.assertEqual((watch.round(), self.causes()), (3, [("AU-COVER", "new")]))
        (self.folder / "away").rename(self.slave)
        self.assertEqual((watch.round(), self.causes()), (0, []))

    def test_outputs_after_each_round(self) -> None:
        """Files for others are written after every round."""
        self.both(60)
        path = self.folder / "audit.prom"
        watch = self.watch(outputs={"--prometheus": str(path)})
        for number in range(2):
            watch.round()
            self.assertIn('rmq_audit_cluster_exit_status{cluster="-"} 0', path.read_text(), number)
            path.unlink()


class MistakeTests(WatchCase):
    def test_wrong_use(self) -> None:
        """Wrong times, a folder that cannot be, a state that is none, a slave beside a configuration: one line, 64."""
        self.both(50)
        config = self.folder / "c.toml"
        config.write_text('[[broker]]\nname = "b"\nmaster = "master"\n')

        def watch(*arguments: object) -> tuple[int, str, str]:
            return self.run_here("watch", *arguments, "--engine", "local", "--workers", "1", "--rounds", "1")

        for every in ("5", "0s", "soon"):
            self.assertEqual(watch(self.master, "--state", self.state, "--every", every)[0], 64)
        self.assertEqual(watch(self.master)[0], 64)
        self.assert_refused(watch(config, self.slave, "--state", self.state), "is a configuration")
        self.assert_refused(watch(self.master, self.master, "--state", self.state), "as master and as slave")
        self.assert_refused(watch(self.folder / "none", "--state", self.state), "no such directory")
        self.assert_refused(watch(self.master, "--state", config), "--state", str(config))
        (self.state / "ends.json").write_text("[1]")
        self.assert_refused(watch(self.master, "--state", self.state), "ends.json: is not a state")
        self.assertRaises(InputError, read_ends, str(self.state / "ends.json"))

    def test_a_signal_that_another_thread_takes(self) -> None:
        """A signal ends a wait at once whichever thread the system gives it to; other ones do not shorten it."""
        stays = threading.Event()
        other = threading.Thread(target=stays.wait, daemon=True)
        other.start()
        assert other.ident is not None
        ident = other.ident
        late = threading.Timer(0.3, lambda: signal.pthread_kill(ident, signal.SIGTERM))
        heard: list[int] = []
        usual = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
        try:
            with stopping_by_signals() as wait:
                signal.pthread_kill(ident, signal.SIGUSR1)
                wait(0.05)
                self.assertEqual(heard, [signal.SIGUSR1])
                late.start()
                began = time.monotonic()
                self.assertRaises(Stopped, wait, 600)
                self.assertLess(time.monotonic() - began, 300)
        finally:
            signal.signal(signal.SIGUSR1, usual)
            stays.set()

    def test_signals_end_the_process(self) -> None:
        """SIGTERM and SIGINT to ``rmq-audit watch`` between rounds: the last round's status, no stack trace."""
        self.both(100)
        self.whole.flip(self.slave, self.stored[50].body_at)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.assertEqual(self.stopped_by(number), 2)

    def stopped_by(self, number: signal.Signals) -> int:
        """Start a watch, send it a signal behind its first round, and return its exit status."""
        command = [sys.executable, "-m", "rmq_audit", "watch", self.master, self.slave, "--engine", "local"]
        process = subprocess.Popen(
            [*map(str, command), "--workers", "1", "--state", str(self.state), "--every", "1h", "--allow-lag", "1G"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **imports()},
        )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            self.assertTrue(process.stdout.readline().startswith("round 1"))
            process.send_signal(number)
            rest, errors = process.stdout.read(), process.stderr.read()
            status = process.wait(60)
        self.assertIn(f"stopped after 1 rounds (exit status {status})", rest.splitlines()[-1])
        self.assertEqual(errors, "")
        return status
