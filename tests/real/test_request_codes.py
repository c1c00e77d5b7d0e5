"""
Every request code of 4.9.7 and 5.3.3 is answered by our servers, or refused with code 3 by a remark that names it.

The codes are the constants of Apache's own jars; Apache's servers of that version are asked the same. The requests
have no fields, so what is served is mostly refused as a bad request: with another code than 3.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from docs.make_compatibility import tables
from rmq.broker.responders.refused import REFUSED, WITHOUT_CONTROLLER
from tests.real.campaigns import campaign_only
from tests.real.peers import APACHE_4, APACHE_5, OURS, STAND_IN, Process, Site, jars
from tests.real.probe import Answer

NOT_SUPPORTED = 3
CLASSES = {
    APACHE_4: ("common", "org.apache.rocketmq.common.protocol.RequestCode"),
    APACHE_5: ("remoting", "org.apache.rocketmq.remoting.protocol.RequestCode"),
}
#: Apache's servers leave codes without an answer, 4.9.7's NameServer all that it does not know
OUR_WAIT_S, APACHES_WAIT_S, AT_ONCE = 60.0, 5.0, 32


def request_codes(version: str) -> dict[int, str]:
    """Return the constants of Apache's class RequestCode of ``version``."""
    artifact, name = CLASSES[version]
    command = ["javap", "-constants", "-cp", str(jars(version) / f"rocketmq-{artifact}-{version}.jar"), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {int(code): name for name, code in re.findall(r"static final int (\w+) = (\d+);", done.stdout)}


def ask(server: Process, wait_s: float, code: int) -> Answer | None:
    """Return the answer to a request without fields; None when the connection is closed or silent."""
    with server.probe(timeout=wait_s) as probe:
        try:
            return probe.ask(code, {}, b"{}")
        except (ConnectionError, TimeoutError):
            return None


def ask_all(server: Process, wait_s: float, codes: Iterable[int]) -> dict[int, Answer | None]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(codes, pool.map(partial(ask, server, wait_s), codes), strict=True))


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the refusals are ours")
@pytest.mark.parametrize("version", [campaign_only(APACHE_4), APACHE_5])
def test_every_code_is_answered_or_refused_by_number(version: str, site: Site) -> None:
    """What Apache's server of a version serves is served by ours, or is in docs/compatibility.md as refused."""
    codes = request_codes(version)
    assert len(codes) > 90
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr, name="ours")
    apache_namesrv = site.namesrv(version, "apache-namesrv")
    apache = site.broker(version, apache_namesrv.addr, name="apache")
    of_namesrv, _, of_broker = tables()
    served = [of_namesrv.codes(), of_broker.codes()]
    refused_by_broker = frozenset(map(int, (*REFUSED, *WITHOUT_CONTROLLER)))
    wrong = []
    for role, (ours, theirs, refused) in enumerate(
        ((namesrv, apache_namesrv, frozenset[int]()), (broker, apache, refused_by_broker))
    ):
        answers, their_answers = ask_all(ours, OUR_WAIT_S, codes), ask_all(theirs, APACHES_WAIT_S, codes)
        for code, name in codes.items():
            answer, their_answer = answers[code], their_answers[code]
            if answer is None:
                wrong.append(f"{ours.name} does not answer {code} {name}")
            elif answer.code == NOT_SUPPORTED:
                if not (answer.remark or "").startswith(f" request type {code} not supported"):
                    wrong.append(f"{ours.name} refuses {code} {name} with {answer.remark!r}")
                if code in served[role]:
                    wrong.append(f"{ours.name} refuses {code} {name}, which is documented as answered")
                if code not in refused and their_answer is not None and their_answer.code != NOT_SUPPORTED:
                    wrong.append(f"{theirs.name} serves {code} {name}, {ours.name} does not, and it is not listed")
            elif code not in served[role]:
                wrong.append(f"{ours.name} answers {code} {name} with {answer.code}; it is not documented")
    assert not wrong, "\n".join(wrong)
