"""
Write docs/compatibility.md from the code: ``python docs/make_compatibility.py``.

A test fails when it is out of date. The tables come from the responder tables of a NameServer and a broker that are
built, but not started, in the simulator.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from twisted.application.service import Service

from rmq.broker.config import BrokerSetup
from rmq.broker.responders.refused import REFUSED, WITHOUT_CONTROLLER
from rmq.broker.service import build_broker
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup
from rmq.namesrv.service import build_namesrv
from rmq.remoting.responders import ResponderTable
from rmq.sim.net import SimNet
from rmq.sim.node import Node, platform_for
from rmq.sim.world import World
from rmq.wire.codes import RequestCode

PATH = Path(__file__).resolve().parent / "compatibility.md"

HEAD = """\
# Compatibility: every request code

Generated from the code by `python docs/make_compatibility.py`. A code that is in neither table of a role is unknown to
it; both roles answer unknown codes with code 3 (REQUEST_CODE_NOT_SUPPORTED), never with silence.

Peers that the tests in `tests/real` run against: Java clients, brokers, slaves and `mqadmin` 4.9.7 and 5.3.3, clients
for Go (rocketmq-client-go 2.1.2) and Node.js (ali-ons 3.12.0), and the library for C++ and Python (`librocketmq.so` of
rocketmq-python-cvs 2.1.0.3, which is 64-bit Linux only; it sends, consumes, retries, delays, broadcasts, signs and
keeps order).
"""

#: what codes of 5.x need that this broker does not have
FAMILIES: dict[str, Collection[int]] = {
    "controller mode": range(1001, 1014),
    "auth of 5.x": range(3001, 3011),
    "pop consumption": (402,),
    "timer messages": (60, 61, 370),
    "RocksDB": (354, 355),
    "static topics": (513,),
    "broker container": (902, 903),
    "slaves that act as master": (905, 906, 908),
    "cold data": range(2001, 2005),
}

TAIL = """\
## Different on purpose

- 36: Apache draws the queue of a retry from `retryQueueNums` alone; where the retry topic has fewer queues, because the
  number was raised later, the retries are in queues that cannot be pulled. Ours go to queues that the topic has.
- 36: a group whose `%RETRY%` topic would be longer than 127 bytes is refused with code 1; Apache answers 0 and never
  delivers. The consumer keeps the message and tries it again itself.
- 37: only half messages can be committed; Apache commits any message that the offset names. 323: only half messages and
  discarded ones can be checked again.
- Half messages that a check stores again keep their `flag`, which Apache loses. Within their
  `CHECK_IMMUNITY_TIME_IN_SECONDS` this does not count as a check: Apache discards a message with a long one before its
  producer was ever asked. The end of the original settles its copy; Apache checks the copy nevertheless, and its
  producer commits twice. Nothing is discarded before all op messages were read; Apache discards a settled message that
  is older than `fileReservedTime` by its producer's clock, if its op message comes late in the queue.
- 10, 310: a message with one of 5.x's times (`TIMER_DELAY_MS`, `TIMER_DELAY_SEC`, `TIMER_DELIVER_MS`, which
  `setDelayTimeMs`, `setDelayTimeSec` and `setDeliverTimeMs` of its clients write) and without a delay level is refused
  with code 1, as by 5.3.3 with `timerWheelEnable=false`. 4.9.7 acknowledges it and delivers it at once.
- 10, 310: a queue or a topic's name that cannot be is refused with code 1, as in 4.9.7; 5.3.3 has code 29. 5.3.3's
  answer to each send has a `transactionId`, 4.9.7's and ours have none.
- A message that makes a topic is answered when the NameServers have confirmed it, 0.5 s later at the latest. 5.3.3
  waits, too; 4.9.7 answers at once, and who asks for the route next may get code 17.
- Dead letters of ordered consumers are stored at once, without `DELAY`. 4.9.7 delays them like another retry, 5.3.3
  stores them at once with `DELAY=-1`.
- 400: a push consumer of 5.x with `setClientRebalance(false)` asks the broker for its queues. That is refused with the
  rest of POP; the client logs a warning and consumes nothing. Its default, true, works.
- A send whose sysFlag says "half message" and that has no `TRAN_MSG` is refused with code 13. Apache acknowledges it
  and never delivers.
- A message that does not fit into a file of the commit log (`mappedFileSizeCommitLog`) is refused with code 13. Apache
  acknowledges and loses it.
- 10, 310, 320: a property `DELAY` that is no number is refused with code 1 and a text that names it; Apache's text is a
  stack trace.
- 11: with `maxMsgNums` below zero a pull brings a message, as in 5.3.3; 4.9.7 answers code 1 and a stack trace.
- 17: numbers of queues below zero are refused with code 1; Apache makes such a topic.
- 29: without `boundaryType`, which only 5.x sends, the answer is the message nearest to the time, after the last one
  that one, as in 4.9.7; 5.3.3 answers as with LOWER, after the last one the queue's end.
- 33: an offset within a record is refused with code 1 and the text for an offset without a message; Apache's text is a
  stack trace.
- Delayed messages that the store can never accept (topic too long, larger than a `maxMessageSize` that was lowered) are
  skipped with an error in the log; in Apache all later messages of their delay level wait for ever.
- Light message queues (`enableLmq`, `enableMultiDispatch`): INNER_MULTI_DISPATCH of a delayed or half message counts
  when the message is delivered to its topic; 4.9.7 dispatches it both times. A name that cannot be a folder is refused
  with code 13. `maxLmqConsumeQueueNum` is a limit; 4.9.7 never checks it. Slaves get the offsets of light groups, too.
  While there is no `lmqConsumerOffset.json`, `consumerOffset.json` is read; 4.9.7 forgets all offsets when `enableLmq`
  is switched on. With `enableMultiDispatch` sends and recovery run without their compiled fast paths.
- Consumer offsets of topics that are neither known, nor stored, nor subscribed to are removed every ten minutes. 4.9.7
  keeps them for ever; its `scanUnsubscribedTopic`, which nothing calls, would also remove those of a group that is
  offline while all that it has consumed expires, and the group would miss messages.
- Consumers of 5.3.3 write traces only about messages that have the property MSG_REGION. As in 4.9.7 the broker adds it
  to its answers, not to messages; 5.3.3's broker adds it to both.
- 40: changes of a group within 50 ms after a notification cause one more notification, at their end.
- SQL92 filters (`enablePropertyFilter=true`) have the grammar of 5.x, and at most 500 operators. An expression that
  cannot be compiled is refused with code 23 by pulls (4.9.7 delivers everything where the pull brings the expression,
  and answers 27 where it relies on the heartbeat) and by heartbeats, whose other groups count nevertheless; 46 answers
  as Apache does. A pull that waits is not woken by messages that its filter does not accept. The bit maps of
  `enableCalcFilterBitMap` are neither written nor used: filters look at the messages.
- SYSTEM_BUSY: Apache refuses what has waited too long in the queue of a pool of threads; here the loop of the reactor
  is too late, three times in a row. Codes, keys and texts are Apache's. Sends that are stored and wait for the disk are
  never refused (PCBUSY_CLEAN_QUEUE): their answer says what became of them. What bounds waiting work is listed in
  security.md.
- 105, 106: broker groups have `enableActingMaster`, as in 5.3.3; 4.9.7's lack it.
- 28: the figures of 5.x are there too. `remainHowManyDataToFlush` is in bytes: Apache's exporter drops the unit, and
  takes Apache's "3.1 KiB" for 3.1. `commitLogDirCapacity` is what processes without root's rights may use, as in
  `commitLogDiskRatio`; Apache's has the blocks reserved for root, too. `getMessageEntireTimeMax` is always 0. Times of
  sends (`putLatency99`, `putMessageDistributeTime`) are measured from the request to its answer, Apache's from the lock
  of its store; until the first minute has ended they are zeros.
- 26: the keys of 5.x and our own are there too; numbers of threads have no effect. 25 refuses what 4.9.8 refuses, and
  more (security.md).
- 50 to 54: an admin's signature is needed, also from a white address; every account will do in 4.9.7. With
  `aclEnable=false` they are refused (209, 210, 211, and 1), where Apache answers with the text of a
  NullPointerException, or not at all. 53 writes files with accounts only.
- 201: the groups that every broker has count as one change of the table's version; Apache begins with 0.
- 318: the two paths are refused with the text of 4.9.7, other keys of the list with that of 5.x.
- 222: C++ members of a group get 220 in the form that they read, whatever the tool is written in; Apache goes by the
  tool's language.
- 303: the times as text are in UTC.
- 306: files of queues are deleted as soon as the commit log begins behind their last message, so nothing is left to do.
  Apache deletes a queue without messages as a whole and numbers its next message 0; a group that has consumed the old
  ones then misses new ones.
- 308: `filterGroups` are left out of the answer; Apache also deletes all their offsets.
- 321: a queue in which nothing was ever stored is refused with code 1. In Apache it exists once a client has asked for
  its offsets, until the next start; the answer, code 0 without a body, is one that `mqadmin queryCq` cannot read.

## Apache's dashboard

The requests of rocketmq-dashboard 2.1.0 (cluster, topics, groups, members, messages, dead letters, traces; sending,
creating, resetting, deleting; direct consumption) have the same answers about our cluster as about Apache 5.3.3, in
their status and fields, for Java and Python members alike, but for what follows for `mqadmin` 5.3.3; compared by hand
on 28 November 2026. Its pages about ACLs need codes of 5.x, which ours refuses, and say so. About Apache 4.9.7 it can
neither show the state of a topic nor send, for want of code 351.

## What `mqadmin` 5.3.3 prints about ours and not about Apache 5.3.3

All its sub-commands print the same about both, but for what follows; `tests/real/test_broker_admin.py` compares them.
`exportMetadataInRocksDB` and `dumpCompactionLog` read local files and ask no server; `startMonitoring` prints nothing.

- A stored record of 5.3.3 is longer: it has a separator behind the last property, and the broker adds `MSG_REGION` and
  `TRACE_ON` and keeps `WAIT`. Offsets in the commit log and lengths are larger accordingly.
- `topicList`, `statsAll`: 5.3.3 registers the topics of transactions, and has those of POP, timer messages and broker
  members. Its code 300 answers the topic of an online subscription as if it were a group's name.
- `topicStatus`: 5.3.3 shows queues that can be read but not written; 4.9 and ours do not.
- `updateTopic`: a bad name is refused with code 1, as in 4.9; 5.3.3 has code 29 for it.
- `updateTopic -a`, `updateSubGroup --attributes`: ours takes no notice of attributes, as 4.9; 5.3.3 checks and stores
  them.
- `cloneGroupOffset`: ours takes offsets of a group without a configuration, as 4.9; 5.3.3 refuses them with code 26.
- `resetOffsetByTime`, `skipAccumulatedMessage`: ours answers 206 about a group that is offline, as 4.9. The tool then
  sets the offsets itself and prints another table; 5.3.3 sets them in the broker. With one queue (`-b -q -o`) the tool
  only prints the 206.
- `brokerStatus`, `getBrokerConfig`, `exportConfigs`: ours has the keys and the defaults of 4.9, its own keys and few of
  5.x. `updateBrokerConfig`: ours names the key that it refuses.
- Refused with code 3, which the tool prints: `setConsumeMode`, `exportPopRecord` (POP); `updateStaticTopic` (static
  topics); `addBroker`, `removeBroker` (broker containers); `resetMasterFlushOffset` (slaves that act as master);
  without `enableControllerInNamesrv=true` `getSyncStateSet`, `getControllerMetaData`, `getControllerConfig`,
  `updateControllerConfig`, `electMaster`, `cleanBrokerMetadata`, and without `enableControllerMode=true`
  `getBrokerEpoch` (with them they are answered, see failover.md); `getColdDataFlowCtrInfo`,
  `updateColdDataFlowCtrGroupConfig`,
  `removeColdDataFlowCtrGroupConfig`, `setCommitLogReadAheadMode` (cold data); `createUser`, `updateUser`, `deleteUser`,
  `getUser`, `listUser`, `copyUser`, `createAcl`, `updateAcl`, `deleteAcl`, `getAcl`, `listAcl`, `copyAcl` (accounts of
  5.x); `rocksDBConfigToJson`, `checkRocksdbCqWriteProgress` (RocksDB).
"""


def tables() -> tuple[ResponderTable, ResponderTable, ResponderTable]:
    """Return what a NameServer, one that is a controller too, and a broker answer."""
    world = World(0)
    node = Node(world, SimNet(world), "docs")
    node.start(lambda _: Service())
    platform = platform_for(node)
    namesrv = build_namesrv(platform, NamesrvSetup())
    with_controller = NamesrvSetup(namesrv=NamesrvConfig(enable_controller_in_namesrv=True))
    controller = build_namesrv(platform, with_controller)
    broker = build_broker(platform, BrokerSetup(), host_address="10.0.0.1", host_name="docs")
    return namesrv.responders, controller.responders, broker.responders


def name_of(code: int) -> str:
    return RequestCode(code).name


def family(code: int) -> str:
    """Return what a code is for that Apache's 4.9 broker refuses too."""
    why = next((name for name, codes in FAMILIES.items() if code in codes), "unused, or only in 5.x")
    return f"{why}; as Apache 4.9"


def listing(title: str, rows: list[tuple[int, str]], reason_title: str | None = None) -> str:
    lines = [f"## {title}", ""]
    if reason_title is None:
        lines += ["| code | name |", "|---|---|", *(f"| {code} | {name_of(code)} |" for code, _ in rows)]
    else:
        lines += [f"| code | name | {reason_title} |", "|---|---|---|"]
        lines += [f"| {code} | {name_of(code)} | {why} |" for code, why in rows]
    return "\n".join(lines) + "\n"


def text() -> str:
    """Return the whole document."""
    namesrv, controller, broker = tables()
    more = controller.codes() - namesrv.codes()
    answered = [
        listing("NameServer: answered", [(code, "") for code in sorted(namesrv.codes())]),
        listing("NameServer with enableControllerInNamesrv=true: answered too", [(code, "") for code in sorted(more)]),
        listing("Broker: answered", [(code, "") for code in sorted(broker.codes())]),
        listing(
            "Broker with enableControllerMode=true: answered too", [(code, "") for code in sorted(WITHOUT_CONTROLLER)]
        ),
    ]
    refused = sorted((int(code), why or family(int(code))) for code, why in {**REFUSED, **WITHOUT_CONTROLLER}.items())
    return "\n".join([HEAD, *answered, listing("Broker: refused with code 3", refused, "why"), TAIL])


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
