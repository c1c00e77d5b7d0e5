"""
What programs send by mistake or at the limits is answered by our broker as by Apache's 4.9.7: code, remark and fields.

A bare client asks both the same. Differences that we mean are in INTENDED, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.real.peers import APACHE_4, OURS, STAND_IN, Broker, Site
from tests.real.probe import PULL, SEND, Answer, decode_records, properties_text, pull_fields, send_fields

Request = tuple[int, Mapping[str, object], bytes]

LIMIT = 4 << 20
LONGEST_PROPERTIES = 32767
NOTHING = 10**12


def topic(name: str, queues: int = 4, perm: int = 6) -> Request:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
    return 17, fields | {"perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}, b""


def send(name: str = "Edge", body: bytes = b"x", *, queue: int = 0, **properties: str) -> Request:
    return SEND, send_fields(name, queue, properties_text(**properties)), body


def pull(name: str = "Edge", queue: int = 0, offset: int = 0, **more: object) -> Request:
    return PULL, pull_fields(name, queue, offset) | more, b""


def of_queue(code: int, name: str = "Edge", queue: int = 0, **more: object) -> Request:
    return code, {"topic": name, "queueId": queue, **more}, b""


#: its member is in the group as long as its connection is open
HEARTBEAT = 34


def heartbeat(topic: str, version: int, *, group: str = "g", client: str = "c1", model: str = "CLUSTERING") -> Request:
    subscription = {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": version}
    subscription |= {"tagsSet": [], "codeSet": [], "classFilterMode": False}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model, "unitMode": False}
    consumer |= {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}
    return (
        HEARTBEAT,
        {},
        json.dumps({"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer]}).encode(),
    )


def lock(code: int, client: str) -> Request:
    queue = {"topic": "Edge", "brokerName": "broker-a", "queueId": 0}
    return code, {}, json.dumps({"consumerGroup": "g", "clientId": client, "mqSet": [queue]}).encode()


def group(name: str) -> Request:
    return 200, {}, json.dumps({"groupName": name}).encode()


def back(offset: int, name: str) -> Request:
    fields = {"offset": offset, "group": name, "delayLevel": 0, "originMsgId": "x", "originTopic": "Edge"}
    return 36, fields | {"unitMode": False, "maxReconsumeTimes": 16}, b""


ILLEGAL = {
    "blank": "",
    "space": "a b",
    "dot": "a.b",
    "slash": "a/b",
    "chinese": "主题",
    "long": "t" * 128,
    "huge": "t" * 256,
}
MANY: dict[str, Any] = {f"k{number}": f"v{number}" for number in range(1000)}
SYSTEM = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT")
POP = {"consumerGroup": "g", "topic": "Edge", "queueId": -1, "maxMsgNums": 1, "invisibleTime": 1000, "pollTime": 1}
OF_GROUP = {"consumerGroup": "g", "topic": "Edge", "queueId": 0}

#: in this order: some change what later ones find
STEPS: dict[str, Request] = {
    "topic": topic("Edge"),
    "topic, longest name": topic("t" * 127),
    **{f"topic, {what} name": topic(name) for what, name in ILLEGAL.items()},
    "topic, name with all legal characters": topic("%a|b-c_d"),
    "topic of the system": topic("SCHEDULE_TOPIC_XXXX"),
    "topic, no queues": topic("None", 0),
    "topic, queues below zero": topic("Below", -1),
    "topic, odd permission": topic("Odd", 4, 9),
    "topic, 2000 queues": topic("Many", 2000),
    "send, longest name": send("t" * 127),
    **{f"send, {what} name": send(name) for what, name in ILLEGAL.items()},
    **{f"send to {name}": send(name) for name in SYSTEM},
    "send to a retry topic of nobody": send("%RETRY%nobody"),
    "send to dead letters of nobody": send("%DLQ%nobody"),
    "send, empty body": send(body=b""),
    "send, longest body": send(body=b"x" * LIMIT),
    "send, a byte more": send(body=b"x" * (LIMIT + 1)),
    "send, longest properties": send(a="p" * (LONGEST_PROPERTIES - 2)),
    "send, too long properties": send(a="p" * (LONGEST_PROPERTIES - 1)),
    "send, far too long properties": send(a="p" * 60_000),
    "send, 1000 properties": send("Edge", **MANY),
    "send, properties that are not ASCII": send(body="体".encode(), KEYS="键 ключ", TAGS="标签", Σ="ß"),
    "send, queue that is not there": send(queue=9),
    "send, delay below zero": send(DELAY="-1"),
    "send, delay that is no number": send(DELAY="abc"),
    "send, delay beyond the last": send(DELAY="99"),
    "pull": pull(),
    "pull, queue that is not there": pull(queue=9),
    "pull, offset below zero": pull(offset=-5),
    "pull, offset beyond the end": pull(offset=500),
    "pull, topic that is not there": pull("Nowhere"),
    "pull, no messages": pull(maxMsgNums=0),
    "pull, messages below zero": pull(maxMsgNums=-1),
    "pull, unknown filter": pull(expressionType="XX"),
    "pull, 100 tags": pull(subscription=" || ".join(f"t{number}" for number in range(100))),
    "pull, empty subscription": pull(subscription=""),
    "pull, group that is not online": pull(sysFlag=0),
    "heartbeat": heartbeat("Edge", 1),
    "heartbeat, same group with another topic": heartbeat("Other", 2, client="c2"),
    "pull of a topic that another member dropped": pull(sysFlag=0, consumerGroup="g", subVersion=1),
    "pull, newer than the heartbeat": pull(sysFlag=0, consumerGroup="g", subVersion=99),
    "heartbeat, now broadcasting": heartbeat("Edge", 3, model="BROADCASTING"),
    "pull, broadcasting": pull(sysFlag=0, consumerGroup="g", subVersion=3),
    "heartbeat, illegal group": heartbeat("Edge", 1, group="bad group"),
    "commit below zero": (15, OF_GROUP | {"commitOffset": -1}, b""),
    "commit beyond the end": (15, OF_GROUP | {"commitOffset": 10**9}, b""),
    "commit, topic that is not there": (15, OF_GROUP | {"topic": "Nowhere", "commitOffset": 5}, b""),
    "offset": (14, OF_GROUP, b""),
    "offset of a new group": (14, OF_GROUP | {"consumerGroup": "new"}, b""),
    "offset of a new group, queue that is not there": (14, OF_GROUP | {"consumerGroup": "new", "queueId": 9}, b""),
    "offset of a new group, topic that is not there": (
        14,
        OF_GROUP | {"consumerGroup": "new", "topic": "Nowhere"},
        b"",
    ),
    "end, topic that is not there": of_queue(30, "Nowhere"),
    "end, queue that is not there": of_queue(30, queue=9),
    "begin, topic that is not there": of_queue(31, "Nowhere"),
    "by time": of_queue(29, timestamp=0),
    "by time below zero": of_queue(29, timestamp=-1),
    "by time that comes": of_queue(29, timestamp=4_102_444_800_000),
    "by time, topic that is not there": of_queue(29, "Nowhere", timestamp=0),
    "oldest, topic that is not there": of_queue(32, "Nowhere"),
    "view beyond the end": (33, {"offset": NOTHING}, b""),
    "view within a record": (33, {"offset": 7}, b""),
    "lock": lock(41, "c1"),
    "lock of another": lock(41, "c2"),
    "unlock of another": lock(42, "c2"),
    "lock of another again": lock(41, "c2"),
    "retry beyond the end": back(NOTHING, "g"),
    "retry of nobody": back(0, "nobody"),
    "fewer queues": topic("Edge", 2),
    "pull from a queue that went": pull(queue=3),
    "send to a queue that went": send(queue=3),
    "read-only": topic("Edge", 2, 4),
    "send to a read-only topic": send(),
    "write-only": topic("Edge", 2, 2),
    "pull from a write-only topic": pull(),
    "group, illegal name": group("bad group"),
    "group, empty name": group(""),
    "group, long name": group("g" * 300),
    "no group to delete": (207, {"groupName": "none", "cleanOffset": False}, b""),
    "delete": (215, {"topic": "Edge"}, b""),
    "delete again": (215, {"topic": "Edge"}, b""),
    "delete, blank": (215, {"topic": ""}, b""),
    "delete a topic of the system": (215, {"topic": "SCHEDULE_TOPIC_XXXX"}, b""),
    "pull from what was deleted": pull(),
    "end of what was deleted": of_queue(30),
    "pop": (200050, POP | {"bornTime": 1, "initMode": 0}, b""),
}

#: name of a step -> (our code, what our remark begins with, why)
INTENDED = {
    "topic, queues below zero": (1, "readQueueNums=-1 is not between 0 and 65536", "Apache makes such a topic"),
    "send, delay that is no number": (1, "the property DELAY is no number: 'abc'", "Apache shows a stack trace"),
    "pull, messages below zero": (0, "FOUND", "4.9.7 shows a stack trace; 5.3.3 answers as we do"),
    "view within a record": (1, "can not find message by the offset, 7", "Apache shows a stack trace"),
    "pop": (3, " request type 200050 not supported: pop consumption is not supported", "it says what is not"),
}


def asked(broker: Broker, request: Request, members: ExitStack) -> Answer:
    """Ask over a connection of its own; that of a heartbeat stays open, or its member would be gone some time later."""
    with ExitStack() as once:
        probe = (members if request[0] == HEARTBEAT else once).enter_context(broker.probe(timeout=60.0))
        answer = probe.ask(*request)
        for _ in range(9):
            # nothing matched so far; ours ends a look where the units are that its file does not have yet
            if request[0] != PULL or answer.code != 20 or answer.ext["nextBeginOffset"] == answer.ext["maxOffset"]:
                break
            answer = probe.ask(PULL, {**request[1], "queueOffset": answer.ext["nextBeginOffset"]}, b"")
        return answer


def described(answer: Answer, code: int) -> dict[str, Any]:
    """Return what must be equal; places in the log and ports of the asking differ."""
    remark = re.sub(r"127\.0\.0\.1:\d+", "PEER", answer.remark or "")
    shown: dict[str, Any] = {"code": answer.code, "remark": remark.replace("not set any response code", "")}
    shown["ext"] = {name: value for name, value in answer.ext.items() if name not in ("msgId", "transactionId")}
    if code == PULL:
        shown["messages"] = [record.body for record in decode_records(answer.body)] if answer.code == 0 else []
    elif code != 33:
        shown["body"] = answer.body
    return shown


@pytest.mark.real
@pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: the intended differences are ours")
def test_edges(site: Site) -> None:
    """Names, sizes, queues, offsets and permissions at and beyond their limits are answered as Apache does."""
    brokers = []
    for kind in (APACHE_4, OURS):
        namesrv = site.namesrv(kind, f"{kind}-namesrv")
        # a message that is longer than a file would be acknowledged and lost by Apache
        sizes: dict[str, Any] = {"mappedFileSizeCommitLog": 4 * LIMIT, "messageDelayLevel": "1h 2h"}
        brokers.append(site.broker(kind, namesrv.addr, kind, transactionCheckInterval=3_600_000, **sizes))
    wrong = []
    with ExitStack() as members:
        for name, request in STEPS.items():
            apache, ours = (described(asked(broker, request, members), request[0]) for broker in brokers)
            if name in INTENDED:
                code, remark, _ = INTENDED[name]
                good = ours != apache and ours["code"] == code and ours["remark"].startswith(remark)
            else:
                good = ours == apache
            if not good:
                wrong += [name, f"  Apache {str(apache)[:400]}", f"  ours   {str(ours)[:400]}"]
    assert not wrong, "\n".join(wrong)
