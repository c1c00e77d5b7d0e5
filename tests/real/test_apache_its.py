"""Apache's own integration tests (`rocketmq-test`), unmodified, against our NameServer and two of our brokers."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.javaclient import SOURCE, compiled
from tests.real.peers import APACHE_4, Site, apache_tests, until
from tests.real.test_http import metrics, start_broker, start_namesrv

PACKAGE = "org/apache/rocketmq/test/"

#: what is no test, or cannot run without a broker inside its JVM
LEFT_OUT = {
    "base.dledger.DLedgerProduceAndConsumeIT": "starts a broker with DLedger, another replication, in its JVM",
    "client.consumer.broadcast.BaseBroadCastIT": "has no test: others are made of it",
    "client.consumer.broadcast.order.OrderMsgBroadCastIT": "its only test is ignored by Apache",
}

#: Most tests wait for a consumer to be balanced (every 20 s); four JVMs wait at the same time.
JVMS = 4
#: for all of them, and for those that are run a second time
DEADLINE_S = 300.0

_LOG4J = """log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c{1} - %m%n
"""
_LOGBACK = """<configuration><appender name="console" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d{HH:mm:ss.SSS} %level %logger{0} - %m%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="console"/></root></configuration>
"""
#: a client's log about an answer with code 3
_NOT_SUPPORTED = re.compile(r"CODE: 3 |request type \d+ not supported")
_ENDED = re.compile(r"(PASSED|FAILED) (\w+)\.(\w+) in \d+ ms")


def problems(console: str, classes: Iterable[str]) -> dict[str, str]:
    """Return what went wrong by class; the lines in front of the end of a test are those of the test."""
    wrong: dict[str, str] = {}
    ended = set()
    refused: list[str] = []
    for line in console.splitlines():
        if _NOT_SUPPORTED.search(line):
            refused.append(line)
        elif (end := _ENDED.fullmatch(line)) is not None:
            how, name, test = end.groups()
            ended.add(name)
            if how == "FAILED" or refused:
                wrong[name] = f"{name}.{test}: {how}, refused as not supported: {refused[:3]}"
            refused = []
    report = console[console.rfind("There w") :][:4000]
    return {
        one: f"{wrong.get(name, 'no test ended')}\n{report}"
        for one in classes
        if (name := one.rpartition(".")[2]) in wrong or name not in ended
    }


def integration_tests(jar: Path) -> list[str]:
    """Return the classes that Apache names integration tests, without their common package."""
    with zipfile.ZipFile(jar) as archive:
        paths = [
            path for path in archive.namelist() if path.startswith(PACKAGE) and re.fullmatch(r"[^$]*IT\.class", path)
        ]
    return sorted(path.removeprefix(PACKAGE).removesuffix(".class").replace("/", ".") for path in paths)


def start(folder: Path, namesrv_port: int, classes: Sequence[str]) -> subprocess.Popen[bytes]:
    """Run test classes one after the other in a JVM."""
    folder.mkdir(parents=True)
    (folder / "log4j.properties").write_text(_LOG4J)
    (folder / "logback.xml").write_text(_LOGBACK)
    ours = compiled(APACHE_4, SOURCE.with_name("IntegrationTestBase.java"), apache_tests)
    flags = ["-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
    flags += [f"-Duser.home={folder}", f"-Dlog4j.configuration=file:{folder}/log4j.properties"]
    flags += ["-Drocketmq.client.logUseSlf4j=true", f"-Dlogback.configurationFile={folder}/logback.xml"]
    flags += [f"-Drmq.namesrv.port={namesrv_port}", "-Drmq.brokers=broker-a,broker-b"]
    classpath = f"{ours}{os.pathsep}{apache_tests(APACHE_4)}/*"
    command = ["java", *flags, "-cp", classpath, "org.apache.rocketmq.test.base.IntegrationTestBase", *classes]
    with (folder / "console.log").open("wb") as console:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)


def run(folder: Path, namesrv_port: int, groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Run each group of classes in a JVM of its own, all at the same time; return what went wrong by class."""
    deadline = time.monotonic() + DEADLINE_S
    running = [start(folder / f"{number}", namesrv_port, group) for number, group in enumerate(groups)]
    try:
        for jvm in running:
            with contextlib.suppress(subprocess.TimeoutExpired):  # then some class has not ended
                jvm.wait(deadline - time.monotonic())
    finally:
        for jvm in running:
            jvm.kill()
            jvm.wait()
    wrong: dict[str, str] = {}
    for number, group in enumerate(groups):
        wrong |= problems((folder / f"{number}" / "console.log").read_text("utf-8", "replace"), group)
    return wrong


def refused_as_not_supported(http_port: int) -> dict[str, float]:
    """Return the series of requests, one-way ones too, that a process of ours has answered with code 3."""
    return {
        key: value
        for key, value in metrics(http_port).items()
        if "_refusals_total{" in key and 'request_code_not_supported"' in key
    }


@pytest.mark.real
def test_apaches_integration_tests_pass(site: Site, tmp_path: Path) -> None:
    """
    Every class passes that needs no broker inside its JVM, and no request is refused as not supported.

    Some tests catch every exception and then compare an empty list with an empty list.
    """
    names = integration_tests(next(apache_tests(APACHE_4).glob("rocketmq-test-*-tests.jar")))
    assert LEFT_OUT.keys() <= set(names)
    names = [name for name in names if name not in LEFT_OUT]
    assert len(names) > 40
    at_namesrv, *at_brokers = ports = [free_port() for _ in range(3)]
    namesrv = start_namesrv(site, at_namesrv)
    for name, port in zip(("broker-a", "broker-b"), at_brokers, strict=True):
        # Half messages become old enough (6 s) and are checked within the 45 s that TransactionalMsgIT waits here; with
        # Apache's 60 s between two rounds it is a matter of chance.
        conf = {"enablePropertyFilter": True, "transactionCheckInterval": 5_000}
        start_broker(site, name, namesrv.addr, port, brokerName=name, **conf)
    until("both are registered", lambda: metrics(at_namesrv).get("rocketmq_namesrv_active_brokers") == 2)
    wrong = run(tmp_path / "first", namesrv.port, [names[n::JVMS] for n in range(JVMS)])
    if wrong:
        # Where others use the processors, Apache's clients do not wait long enough for an answer, or ask where a queue
        # ends after their test has sent to it; so once more, alone.
        wrong = run(tmp_path / "again", namesrv.port, [sorted(wrong)])
    assert not wrong, "\n".join(wrong.values())
    assert [refused_as_not_supported(port) for port in ports] == [{}, {}, {}]


def test_problems_are_seen() -> None:
    """A failed test, a refused request behind a test that passes, and a class without a test are problems."""
    console = """12:00:00.000 INFO RocketmqClient - all is well

PASSED FineIT.testOne in 5 ms
12:00:00.001 WARN RocketmqClient - CODE: 3  DESC:  request type 37 not supported

PASSED RefusedIT.testOne in 5 ms
PASSED RefusedIT.testTwo in 5 ms
FAILED WrongIT.testOne in 5 ms
"""
    found = problems(console, ["a.FineIT", "a.RefusedIT", "b.WrongIT", "b.AbsentIT"])
    assert sorted(found) == ["a.RefusedIT", "b.AbsentIT", "b.WrongIT"]
