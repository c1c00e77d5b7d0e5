"""Parts of Apache's clients that few programs use: traces, lite pull, light message queues."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from tests.real.javaclient import SOURCE, compiled
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, jars, mqadmin, until
from tests.real.probe import PULL, decode_records, pull_fields

COUNT = 12
NUMBERS = [str(number) for number in range(COUNT)]


def run(version: str, namesrv: str, part: str, topic: str, *more: str) -> dict[str, list[str]]:
    """Run java/Families.java; return what it printed, by kind."""
    classes = compiled(version, SOURCE.with_name("Families.java"))
    command = ["java", "-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
    command += ["-cp", f"{classes}{os.pathsep}{jars(version)}/*", "Families", namesrv, part, topic, str(COUNT), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        kind, _, value = line.partition(" ")
        found[kind].append(value)
    assert len(found["sent"]) == COUNT
    return found


def start(site: Site, kind: str = OURS, **config: Any) -> tuple[Process, Broker]:
    namesrv = site.namesrv()
    broker = site.broker(kind, namesrv.addr, **config)
    with broker.probe() as probe:
        probe.create_topic("Topic", 2)
    return namesrv, broker


@pytest.mark.real
@pytest.mark.parametrize(
    ("version", "kinds"), [(APACHE_4, ["Pub", "SubBefore", "SubAfter"]), (APACHE_5, ["Pub"])], ids=["4.9.7", "5.3.3"]
)
def test_traces(version: str, kinds: list[str], site: Site) -> None:
    """
    With traceTopicEnable a client's traces of sends and consumptions are stored, and mqadmin finds them.

    5.3.3's consumers trace only messages that have the property MSG_REGION, which 4.9.7's broker and ours do not add.
    """
    namesrv, _ = start(site, traceTopicEnable=True)
    found = run(version, namesrv.addr, "trace", "Topic", str(len(kinds)))
    assert sorted(found["got"], key=int) == NUMBERS

    traces = [trace.split("\x01") for trace in found["trace"]]
    for kind in kinds:
        assert {word for trace in traces if trace[0] == kind for word in trace} >= set(found["sent"]), kind
    shown = mqadmin(site.root, "queryMsgTraceById", "-n", namesrv.addr, "-i", found["sent"][0])
    assert shown.count("success") == (2 if "SubAfter" in kinds else 1), shown
    assert "tracing-producers" in shown and ("tracing-consumers" in shown) == ("SubAfter" in kinds), shown


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_lite_pull(version: str, site: Site) -> None:
    """A lite consumer that is given queues goes on where the one before committed; others assign themselves all."""
    namesrv, _ = start(site)
    found = run(version, namesrv.addr, "lite-pull", "Topic")
    assert len(found["first"]) >= COUNT // 2
    assert sorted(found["first"] + found["second"], key=int) == NUMBERS
    assert sorted(found["assigned"], key=int) == NUMBERS
    assert sum(map(int, found["committed"])) == COUNT


@pytest.mark.real
@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_light_message_queues(version: str, site: Site) -> None:
    """A message that names two light queues wakes who waits there, and each has all messages in order."""
    namesrv, _ = start(site, enableLmq=True, enableMultiDispatch=True)
    found = run(version, namesrv.addr, "lmq", "Topic")
    assert found["woken"] == ["FOUND", "FOUND"]
    assert found["range"] == [f"0-{COUNT}"] * 2
    assert found["%LMQ%one"] == found["%LMQ%two"] == NUMBERS


@pytest.mark.real
def test_light_queues_change_hands(site: Site) -> None:
    """
    Apache's broker and ours go on in each other's stores: the same light queues, files and numbers.

    With enableConsumeQueueExt each also filters by the tags that the other wrote into extension files.
    """
    on: dict[str, Any] = {"enableLmq": True, "enableMultiDispatch": True}
    on |= {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1 << 16}
    namesrv, broker = start(site, APACHE_4, **on)
    sent = 0
    for turn, kind in enumerate((OURS, APACHE_4, OURS)):
        with broker.probe() as probe:
            for number in range(sent, sent + 5):
                further = {"INNER_MULTI_DISPATCH": "%LMQ%one,%LMQ%two" if number % 2 else "%LMQ%one"}
                tag = "odd" if number % 2 else "even"
                assert probe.send_message("Topic", 0, b"%d" % number, TAGS=tag, **further).code == 0
            sent += 5
            probe.commit_offset("%LMQ%group", "%LMQ%one", 0, sent)
        until("the queues are complete", partial(has_all, broker, sent), seconds=20)
        broker.stop()
        assert any((broker.store / "consumequeue_ext" / "Topic" / "0").iterdir())
        broker = site.broker(kind, namesrv.addr, f"turn-{turn}", store=broker.store, **on)
        until("the queues are complete", partial(has_all, broker, sent), seconds=20)


def has_all(broker: Broker, sent: int) -> bool:
    """Tell whether each queue has its messages, with and without a filter, and the light group its offset."""
    every, odd = list(range(sent)), list(range(1, sent, 2))
    with broker.probe() as probe:

        def bodies(topic: str, tags: str = "*") -> list[int]:
            answer = probe.ask(PULL, pull_fields(topic, 0, 0) | {"subscription": tags})
            return [int(record.body) for record in decode_records(answer.body)]

        found = [bodies(name, tags) for tags in ("*", "odd") for name in ("Topic", "%LMQ%one", "%LMQ%two")]
        return (
            found == [every, every, odd, odd, odd, odd] and probe.committed_offset("%LMQ%group", "%LMQ%one", 0) == sent
        )
