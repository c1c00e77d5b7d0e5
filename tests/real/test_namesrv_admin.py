"""
``mqadmin`` 4.9.7 and 5.3.3 ask Apache's NameServer of their version and ours the same, and print the same.

The same brokers, Apache's and ours, are registered at both. What must differ (addresses, folders) is given one name
first, and what Java's HashMap puts in any order is sorted. Differences that we mean are named in INTENDED.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

import attrs
import pytest

from tests.real.campaigns import campaign_only
from tests.real.javaclient import JavaAdmin
from tests.real.peers import APACHE_4, APACHE_5, OURS, STAND_IN, Process, Site, until
from tests.real.probe import fastjson

TOPIC = "Orders"
QUEUES = 4

#: topics that each NameServer loses with deleteTopic: the brokers lose them too, so each side has its own
DOOMED = {"apache": "DoomedA", "ours": "DoomedO"}


def as_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def as_sorted_lines(text: str) -> list[str]:
    return sorted(as_lines(text))


def as_cluster(text: str) -> list[str]:
    """Keep cluster, broker, id, address and version of each row; the rest is the load of the moment."""
    return [" ".join(line.split()[:5]) for line in as_lines(text)]


def as_route(text: str) -> list[str]:
    """Bring the lists of a printed route into order; what is no route stays as it is."""
    if not text.lstrip().startswith("{"):
        return as_failure(text)
    route = fastjson(text.encode())
    for name in ("brokerDatas", "queueDatas"):
        route[name].sort(key=lambda data: str(data["brokerName"]))
    return json.dumps(route, indent=1).splitlines()


def as_failure(text: str) -> list[str]:
    """Keep what was thrown and why; the frames of Java's stack are the same tool's, and 5.x has its FAQ elsewhere."""
    text = re.sub(r"See https?://rocketmq\.apache\.org/\S+ for", "See FAQ for", text)
    return [line for line in as_lines(text) if not re.match(r"\s+(at |\.\.\. )", line)]


@attrs.frozen
class Step:
    """
    A sub-command with its arguments; ``reads`` orders the output.

    ``{doomed}`` becomes the side's own topic, ``{broker}`` and ``{folder}`` those of the side.
    """

    command: str
    arguments: str = ""
    reads: Callable[[str], list[str]] = as_failure

    @property
    def name(self) -> str:
        return f"{self.command} {self.arguments}".strip()


STEPS = [
    Step("clusterList", reads=as_cluster),
    Step("topicList", reads=as_sorted_lines),
    Step("topicList", "-c", reads=as_sorted_lines),
    Step("topicRoute", f"-t {TOPIC}", reads=as_route),
    Step("topicRoute", "-t TBW102", reads=as_route),
    Step("topicRoute", "-t NoSuchTopic"),
    Step("topicClusterList", f"-t {TOPIC}", reads=as_sorted_lines),
    Step("topicClusterList", "-t NoSuchTopic"),
    Step("updateKvConfig", "-s space -k key -v value"),
    Step("updateKvConfig", "-s space -k key -v other"),
    Step("deleteKvConfig", "-s space -k key"),
    Step("deleteKvConfig", "-s space -k nothing"),
    Step("deleteKvConfig", "-s nowhere -k nothing"),
    Step("getNamesrvConfig", reads=as_sorted_lines),
    Step("updateNamesrvConfig", "-k clusterTest -v true"),
    Step("updateNamesrvConfig", "-k noSuchKey -v 1"),
    Step("updateNamesrvConfig", "-k kvConfigPath -v /tmp/elsewhere"),
    Step("getNamesrvConfig", reads=as_sorted_lines),
    Step("updateNamesrvConfig", "-k clusterTest -v false"),
    Step("wipeWritePerm", "-b broker-a"),
    Step("topicRoute", f"-t {TOPIC}", reads=as_route),
    Step("addWritePerm", "-b broker-a"),
    Step("topicRoute", f"-t {TOPIC}", reads=as_route),
    Step("wipeWritePerm", "-b nobody"),
    Step("addWritePerm", "-b nobody"),
    Step("updateOrderConf", f"-t {TOPIC} -m put -v broker-a:4"),
    Step("updateOrderConf", f"-t {TOPIC} -m get"),
    Step("updateOrderConf", f"-t {TOPIC} -m delete"),
    Step("updateOrderConf", f"-t {TOPIC} -m get"),
    Step("deleteTopic", "-c DefaultCluster -t {doomed}"),
    Step("topicRoute", "-t {doomed}"),
]


def lacks_nothing(apache: list[str], ours: list[str]) -> bool:
    """Tell whether ours prints all of Apache's keys with the same values, but for 5.x's 5 s."""
    return {line for line in apache if not line.startswith("scanNotActiveBrokerInterval ")} <= set(ours)


def is_told_by_path(apache: list[str], ours: list[str]) -> bool:
    """Tell whether both refuse, ours for the path as 4.9.7 does, 5.3.3 by its list."""
    return [
        line.replace("Can not update config in black list.", "Can not update config path") for line in apache
    ] == ours


#: name of a step -> (what holds instead of equality, why)
INTENDED: dict[str, tuple[Callable[[list[str], list[str]], bool], str]] = {
    "getNamesrvConfig": (
        lacks_nothing,
        "ours also has the keys of 5.x and its own, and 4.9's 10 s between scans",
    ),
    "updateNamesrvConfig -k kvConfigPath -v /tmp/elsewhere": (
        is_told_by_path,
        "ours has the text of 4.9.7 for the two paths, 5.3.3 that of its configBlackList",
    ),
}


@attrs.frozen
class Side:
    """One of the two NameServers, and what must be renamed in the output about it."""

    name: str
    namesrv: Process

    def ask(self, admin: JavaAdmin, step: Step) -> list[str]:
        doomed = DOOMED[self.name]
        arguments = step.arguments.format(doomed=doomed).split()
        text = admin.run(step.command, *arguments, "-n", self.namesrv.addr)
        text = text.replace(str(self.namesrv.folder), "FOLDER").replace(self.namesrv.addr, "NAMESRV")
        text = re.sub(rf"\b{self.namesrv.port}\b", "PORT", text)
        for other in DOOMED.values():
            # the other side's own topic is in this side's lists as long as it lives
            text = text.replace(other, "DOOMED" if other == doomed else "SPARED")
        return step.reads(text)


def has_all(namesrv: Process, brokers: int) -> bool:
    with namesrv.probe() as probe:
        if len(probe.cluster()["brokerAddrTable"]) != brokers:
            return False
        routes = [probe.route(topic) for topic in (TOPIC, *DOOMED.values())]
    return all(route is not None and len(route["queueDatas"]) == brokers for route in routes)


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the intended differences are ours")
@pytest.mark.parametrize("kind", [APACHE_4, campaign_only(APACHE_5)])
def test_mqadmin_prints_the_same_about_both(kind: str, site: Site) -> None:
    """Every NameServer command of mqadmin, 4.9 and 5.x, prints the same about ours and Apache's, but for INTENDED."""
    sides = [
        Side("apache", site.namesrv(kind, "apache")),
        Side("ours", site.namesrv(OURS, "ours", rocketmqHome=site.root / "ours" / "home")),
    ]
    both = ";".join(side.namesrv.addr for side in sides)
    brokers = [site.broker(kind, both, "broker-a"), site.broker(OURS, both, "broker-b", brokerName="broker-b")]
    for broker in brokers:
        with broker.probe() as probe:
            for topic in (TOPIC, *DOOMED.values()):
                probe.create_topic(topic, QUEUES)
    for side in sides:
        until(f"{side.namesrv.name} knows all", partial(has_all, side.namesrv, len(brokers)), seconds=60)

    admin = JavaAdmin(kind, site.root / "admin")
    try:
        # One side after the other: deleteTopic takes the topic from the brokers, which tell both NameServers.
        apache, ours = ([side.ask(admin, step) for step in STEPS[:-2]] for side in sides)
        for step in STEPS[-2:]:
            for side, printed in zip(sides, (apache, ours), strict=True):
                printed.append(side.ask(admin, step))
        wrong = []
        for step, left, right in zip(STEPS, apache, ours, strict=True):
            try:
                assert_same(step, left, right)
            except AssertionError as error:
                wrong.append(str(error))
        assert not wrong, "\n".join(wrong)

        # the comparison is no liar: one wiped permission is seen
        until("a wiped permission is seen", partial(finds_a_wiped_permission, admin, sides), seconds=60)
    finally:
        admin.close()


def finds_a_wiped_permission(admin: JavaAdmin, sides: list[Side]) -> bool:
    """
    Take broker-a's permission at ours only, and tell whether the comparison sees it.

    The broker deleted a topic shortly before: its next registration, up to 30 s later, brings the permission back.
    """
    admin.run("wipeWritePerm", "-b", "broker-a", "-n", sides[1].namesrv.addr)
    route = Step("topicRoute", f"-t {TOPIC}", reads=as_route)
    apache, ours = (side.ask(admin, route) for side in sides)
    try:
        assert_same(route, apache, ours)
    except AssertionError:
        return True
    return False


def assert_same(step: Step, apache: list[str], ours: list[str]) -> None:
    assert apache and ours, f"mqadmin {step.name} printed nothing"
    holds, why = INTENDED.get(step.name, (list.__eq__, "nothing"))
    assert holds(apache, ours), (
        f"mqadmin {step.name} (intended: {why})\n--- Apache\n" + "\n".join(apache) + "\n--- ours\n" + "\n".join(ours)
    )
