"""Transactions: half messages nobody sees, their end, and the checks of those that nobody ended."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, cast

import attrs
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.transactions import FLUSH_LOOK_S, MOST_REST_S, OP_PAGE, SLICE, Round, Terms, TransactionChecks, Verdict
from rmq.runtime.clock import now_ms
from rmq.sim.cluster import Cluster, Member
from rmq.sim.inode import CrashOdds
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store.messages import GetResult, Message, PutResult, PutStatus
from rmq.store.store import MessageStore
from rmq.wire.command import RemotingCommand
from rmq.wire.record import (
    MAGIC_V1,
    TIMER_PROPERTIES,
    TRANSACTION_MASK,
    Record,
    decode_offset_msg_id,
    decode_record,
    decode_records,
    encode_properties,
)
from tests.broker.harness import OneBrokerCase, RawClient, connect, heartbeat, pull_ext, send_ext
from tests.sim.support import ASYNC_FLUSH, SYNC_MASTER, options

HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "CID_RMQ_SYS_TRANS"
#: the first check comes so soon, and the next ones
INTERVAL_S = 5


class TransactionCase(OneBrokerCase):
    values = {"transactionTimeOut": "1000", "transactionCheckInterval": str(INTERVAL_S * 1000)}

    @property
    def now(self) -> int:
        return now_ms(self.one.service.clock)

    def heartbeat(self, client: RawClient, group: str = "PG") -> None:
        body = json.loads(heartbeat("p", "", producer=group))
        body["consumerDataSet"] = []
        client.ask(34, body=json.dumps(body).encode())

    def ask_half(self, key: str = "K1", body: bytes = b"x", **props: str) -> RemotingCommand:
        pairs = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": key, "TAGS": "a", "WAIT": "true", **props}
        ext = send_ext(queue_id=1, props=encode_properties(pairs), f="4", g=str(self.now), h="7")
        return self.client.ask(310, ext, body)

    def half(self, key: str = "K1", body: bytes = b"x", **props: str) -> dict[str, str]:
        """Send a half message and return where its end has to point."""
        answer = self.ask_half(key, body, **props)
        self.assertEqual((answer.code, answer.ext_fields["queueId"]), (0, "1"), answer.remark)
        _, phy_offset = decode_offset_msg_id(answer.ext_fields["msgId"])
        return {
            "producerGroup": "PG",
            "tranStateTableOffset": answer.ext_fields["queueOffset"],
            "commitLogOffset": str(phy_offset),
            "msgId": key,
        }

    def end_it(self, place: dict[str, str], state: int, **more: str) -> RemotingCommand:
        return self.client.ask(37, {**place, "commitOrRollback": str(state), "fromTransactionCheck": "false", **more})

    def stored(self, topic: str = "T", queue_id: int = 1) -> list[Record]:
        """What a consumer of a queue gets."""
        records: list[Record] = []
        while True:
            answer = self.client.ask(11, pull_ext(topic, queue_id=queue_id, offset=len(records)))
            if not answer.body:
                return records
            records += decode_records(answer.body)

    def op_messages(self) -> list[Record]:
        return self.in_store(OP)

    def in_store(self, topic: str) -> list[Record]:
        """Messages of a topic that has no configuration (yet), as in Apache, so that no client can pull them."""
        store = self.one.service.store
        found: list[bytes] = []
        while more := store.get(topic, 0, len(found), 32).messages:
            found += more
        return [decode_record(data) for data in found]

    def offsets(self) -> tuple[int | None, int | None]:
        query = self.one.service.offsets.query
        return query(GROUP, HALF, 0), query(GROUP, OP, 0)


class EndTests(TransactionCase):
    def test_commit(self) -> None:
        """A half message is invisible until its commit, and then in its topic, as Apache stores it."""
        place = self.half(body=b"hello", own="mine")
        self.assertEqual(self.stored(), [])
        (half,) = self.in_store(HALF)
        pairs = half.property_map
        self.assertEqual((pairs["REAL_TOPIC"], pairs["REAL_QID"], pairs["WAIT"]), ("T", "1", "true"))
        self.assertEqual((half.sys_flag & TRANSACTION_MASK, half.flag, half.body), (0, 7, b"hello"))
        self.assertEqual(self.end_it(place, COMMIT).code, 0)
        (record,) = self.stored()
        self.assertEqual((record.body, record.flag, record.queue_offset), (b"hello", 7, 0))
        self.assertEqual(record.sys_flag & TRANSACTION_MASK, COMMIT)
        self.assertEqual(record.prepared_transaction_offset, half.phy_offset)
        self.assertEqual((record.born_timestamp, record.born_host), (half.born_timestamp, half.born_host))
        self.assertEqual(record.properties, half.properties)
        (op,) = self.op_messages()
        self.assertEqual((op.body, op.property_map), (b"0", {"WAIT": "true", "TAGS": "d"}))
        self.assertEqual((op.born_host, op.sys_flag), (op.store_host, 0))

    def test_rollback(self) -> None:
        """After a rollback nobody gets the message, and nobody is asked about it."""
        self.heartbeat(self.client)
        place = self.half()
        self.assertEqual(self.end_it(place, ROLLBACK).code, 0)
        self.one.world.run_for(3 * INTERVAL_S)
        self.assertEqual((self.stored(), self.client.requests(39)), ([], []))
        self.assertEqual([op.body for op in self.op_messages()], [b"0"])
        self.assertEqual(self.offsets(), (1, 1))

    def test_unknown(self) -> None:
        """An unknown state gets no answer and changes nothing; a state that does not exist is refused."""
        place = self.half()
        opaque = self.client.post(37, {**place, "commitOrRollback": "0"})
        self.one.world.run_for(1)
        self.assertIsNone(self.client.answer(opaque))
        answer = self.end_it(place, 4)
        self.assertEqual((answer.code, answer.remark), (1, "commitOrRollback field wrong"))
        self.assertEqual((self.stored(), self.op_messages()), ([], []))

    def test_refusals(self) -> None:
        """Each mismatch with the half message is refused with Apache's text."""
        place = self.half()
        commit = self.half("K2")
        self.assertEqual(self.end_it(commit, COMMIT).code, 0)
        (committed,) = self.stored()
        for state in (COMMIT, ROLLBACK):
            for wrong, remark in (
                ({"commitLogOffset": "99999999"}, "Find prepared transaction message failed"),
                ({"commitLogOffset": str(committed.phy_offset)}, "Find prepared transaction message failed"),
                ({"producerGroup": "Other"}, "The producer group wrong"),
                ({"tranStateTableOffset": "5"}, "The transaction state table offset wrong"),
            ):
                answer = self.end_it({**place, **wrong}, state)
                self.assertEqual((answer.code, answer.remark), (1, remark))
        self.assertEqual((len(self.stored()), len(self.op_messages())), (1, 1))

    def test_delay(self) -> None:
        """A delay counts from the commit on; the delayed message has lost TRAN_MSG, as in Apache."""
        place = self.half(DELAY="2")
        self.one.world.run_for(10)
        self.assertEqual(self.stored("SCHEDULE_TOPIC_XXXX", 1), [])
        self.end_it(place, COMMIT)
        (parked,) = self.stored("SCHEDULE_TOPIC_XXXX", 1)
        self.assertNotIn("TRAN_MSG", parked.property_map)
        self.assertEqual((parked.property_map["REAL_TOPIC"], parked.property_map["REAL_QID"]), ("T", "1"))
        self.one.world.run_for(5.5)
        (record,) = self.stored()
        self.assertEqual((record.body, record.sys_flag & TRANSACTION_MASK), (b"x", COMMIT))

    def test_times_of_5_x(self) -> None:
        """A half message with a time that only 5.x's timer can keep is refused like any other, by the fast path too."""
        for key in ("K1", "K2", "K3"):
            self.half(key)
        for name in TIMER_PROPERTIES:
            answer = self.ask_half("K4", b"x", **{name: "0"})
            self.assertEqual(answer.code, 1, name)
            self.assertIn(f"timerWheelEnable is false: {name}", answer.remark or "")

    def test_a_retry_is_no_transaction(self) -> None:
        """Clients before 4.6.1 send their own retries with TRAN_MSG and a delay: ordinary delayed messages."""
        ext = send_ext(queue_id=1, props=encode_properties({"TRAN_MSG": "true", "DELAY": "1"}), j="1")
        self.assertEqual(self.client.ask(310, ext, b"again").code, 0)
        self.one.world.run_for(2)
        self.assertEqual([record.body for record in self.stored()], [b"again"])
        self.assertEqual(self.in_store(HALF), [])

    def test_half_by_sys_flag_only(self) -> None:
        """A message that only its sysFlag calls half is refused: Apache acknowledges it, and nobody ever gets it."""
        for flag in ("4", "12"):
            answer = self.client.ask(310, send_ext(f=flag), b"x")
            self.assertEqual(answer.code, 13)
        self.assertEqual(self.one.service.store.end_offset, 0)

    def test_a_store_that_takes_nothing(self) -> None:
        """A commit that cannot be stored is refused with Apache's texts, and the transaction stays open."""
        place = self.half()
        results = [
            (PutStatus.SERVICE_NOT_AVAILABLE, 14, "Service not available now."),
            (PutStatus.CREATE_MAPPED_FILE_FAILED, 1, "Create mapped file failed."),
            (PutStatus.OS_PAGE_CACHE_BUSY, 1, "OS page cache busy, please try another machine"),
            (PutStatus.UNKNOWN_ERROR, 1, "UNKNOWN_ERROR"),
            (
                PutStatus.MESSAGE_ILLEGAL,
                13,
                "The message is illegal, maybe msg body or properties length not matched. msg body length limit "
                "4194304B, msg properties length limit 32KB.",
            ),
        ]
        for status, code, remark in results:
            patch = self.patch(self.one.service.store, "put", lambda _, status=status: PutResult(status))
            answer = self.end_it(place, COMMIT)
            patch.restore()
            self.assertEqual((answer.code, answer.remark), (code, remark))
        self.assertEqual(self.op_messages(), [])
        self.assertEqual(self.end_it(place, COMMIT).code, 0)

    def test_stored_but_late(self) -> None:
        """A commit that is stored, but on no slave or not on disk in time, has happened."""
        place = self.half()
        put = self.one.service.store.put

        def late(message: Message) -> PutResult:
            result = put(message)
            assert isinstance(result, PutResult)
            return attrs.evolve(result, status=PutStatus.FLUSH_SLAVE_TIMEOUT)

        self.patch(self.one.service.store, "put", late)
        self.assertEqual(self.end_it(place, COMMIT).code, 0)
        self.assertEqual((len(self.stored()), len(self.op_messages())), (1, 1))


class RejectingTests(TransactionCase):
    values = {"rejectTransactionMessage": "true"}

    def test_reject(self) -> None:
        """rejectTransactionMessage refuses half messages in Apache's words; others are sent as ever."""
        answer = self.ask_half()
        self.assertEqual(answer.code, 16)
        self.assertRegex(answer.remark or "", r"^the broker\[.+\] sending transaction message is forbidden$")
        self.assertEqual(self.client.ask(310, send_ext(), b"x").code, 0)


class CheckCase(TransactionCase):
    def setUp(self) -> None:
        super().setUp()
        self.heartbeat(self.client)

    def checks(self) -> list[tuple[dict[str, str], Record]]:
        """What the broker has asked so far."""
        return [(dict(request.ext_fields), decode_record(request.body or b"")) for request in self.client.requests(39)]

    def place(self, check: dict[str, str]) -> dict[str, str]:
        keys = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        return {"producerGroup": "PG", **{key: check[key] for key in keys}}


class CheckTests(CheckCase):
    def test_check(self) -> None:
        """A producer is asked about a message without an end; its answer commits the copy that the question names."""
        place = self.half(body=b"open")
        self.assertEqual(place["tranStateTableOffset"], "0")
        self.one.world.run_for(INTERVAL_S + 1)
        ((check, asked),) = self.checks()
        first, copy = self.in_store(HALF)
        self.assertEqual(check["tranStateTableOffset"], "1")
        self.assertEqual(check["commitLogOffset"], str(copy.phy_offset))
        self.assertEqual((check["msgId"], check["transactionId"]), ("K1", "K1"))
        self.assertEqual(check["offsetMsgId"], copy.offset_msg_id)
        self.assertEqual((asked.topic, asked.queue_id, asked.body), ("T", 1, b"open"))
        self.assertEqual((asked.queue_offset, asked.phy_offset), (1, copy.phy_offset))
        self.assertEqual(asked.store_timestamp, first.store_timestamp)
        self.assertEqual(asked.property_map["WAIT"], "false")
        self.assertEqual(asked.property_map["TRANSACTION_CHECK_TIMES"], "1")
        self.assertEqual(copy.property_map, {**first.property_map, "TRANSACTION_CHECK_TIMES": "1"})
        self.assertEqual((copy.flag, copy.born_timestamp), (7, first.born_timestamp))
        self.assertEqual(self.offsets(), (1, 0))
        self.assertEqual(self.end_it(self.place(check), COMMIT, fromTransactionCheck="true").code, 0)
        self.assertEqual([record.body for record in self.stored()], [b"open"])
        self.one.world.run_for(3 * INTERVAL_S)
        self.assertEqual(len(self.checks()), 1)
        self.assertEqual(self.offsets(), (2, 1))

    def test_topics(self) -> None:
        """The first round registers the topic of half messages, as Apache does, also without any transaction."""
        self.assertNotIn(HALF, self.one.service.topics)
        self.one.world.run_for(INTERVAL_S + 1)
        topic = self.one.service.topics.get(HALF)
        assert topic is not None
        self.assertEqual((topic.read_queue_nums, topic.write_queue_nums, topic.perm), (1, 1, 6))
        self.assertNotIn(OP, self.one.service.topics)
        self.assertNotIn(DISCARDED, self.one.service.topics)

    def test_clean_unused_topics(self) -> None:
        """Cleaning topics without configuration (316) leaves half and op messages alone: no end is forgotten."""
        self.end_it(self.half("K1"), ROLLBACK)
        self.half("K2")
        self.assertEqual(self.client.ask(316).code, 0)
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual([check["msgId"] for check, _ in self.checks()], ["K2"])

    def test_young(self) -> None:
        """A message younger than transactionTimeOut is left alone, and so are those behind it."""
        self.one.world.run_for(INTERVAL_S - 0.5)
        self.half()
        self.one.world.run_for(1)
        self.assertEqual(self.checks(), [])
        self.one.world.run_for(INTERVAL_S)
        self.assertEqual(len(self.checks()), 1)

    def test_some_ended(self) -> None:
        """Among many that ended, only those without an end are checked, also beyond a page of op messages."""
        places = [self.half(f"K{number}") for number in range(OP_PAGE * 3)]
        for number, place in enumerate(places):
            if number % 40:
                self.end_it(place, COMMIT if number % 2 else ROLLBACK)
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual([check["msgId"] for check, _ in self.checks()], ["K0", "K40", "K80"])
        self.assertEqual(self.offsets(), (OP_PAGE * 3, OP_PAGE * 3 - 3))

    def test_ends_while_asked(self) -> None:
        """An op message that comes after the walk has passed its half message moves the offset of op messages on."""
        place = self.half()
        self.one.world.run_for(INTERVAL_S + 1)
        ((check, _),) = self.checks()
        self.end_it(place, ROLLBACK)
        self.end_it(self.place(check), ROLLBACK)
        self.one.world.run_for(INTERVAL_S)
        self.assertEqual((len(self.checks()), self.offsets()), (1, (2, 2)))

    def test_another_member(self) -> None:
        """Members of the group are asked in turn; one whose connection is closed is not asked."""
        other = self.one.connect()
        self.heartbeat(other)
        for number in range(4):
            self.half(f"K{number}")
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual((len(self.checks()), len(other.requests(39))), (2, 2))
        assert other.transport is not None
        other.transport.loseConnection()
        self.one.world.run_for(INTERVAL_S)
        self.assertEqual((len(self.checks()), len(other.requests(39))), (6, 2))

    def test_nobody_to_ask(self) -> None:
        """Without a producer of the group the message waits, checked again in each round."""
        self.client.ask(
            310, send_ext(props="TRAN_MSG\x01true\x02PGROUP\x01Away\x02UNIQ_KEY\x01K", g=str(self.now)), b"x"
        )
        self.one.world.run_for(2 * INTERVAL_S + 1)
        self.assertEqual((self.checks(), self.one.service.checks.counts.unasked), ([], 2))
        self.assertEqual(self.in_store(HALF)[-1].property_map["TRANSACTION_CHECK_TIMES"], "2")

    def test_immunity(self) -> None:
        """Within its own immunity time a message is stored again, not asked about; the first offset stays known."""
        self.half(CHECK_IMMUNITY_TIME_IN_SECONDS="12")
        self.one.world.run_for(2 * INTERVAL_S + 1)
        self.assertEqual(self.checks(), [])
        copies = [record.property_map.get("TRAN_PREPARED_QUEUE_OFFSET") for record in self.in_store(HALF)]
        self.assertEqual(copies, [None, "0", "0"])
        self.one.world.run_for(INTERVAL_S)
        ((_, asked),) = self.checks()
        self.assertEqual(asked.property_map["TRANSACTION_CHECK_TIMES"], "1")

    def test_immunity_and_an_end(self) -> None:
        """The end of the original settles its copy: no question comes, and so no second commit."""
        place = self.half(CHECK_IMMUNITY_TIME_IN_SECONDS="12")
        self.one.world.run_for(INTERVAL_S + 1)
        self.end_it(place, COMMIT)
        self.one.world.run_for(5 * INTERVAL_S)
        self.assertEqual((self.checks(), len(self.stored())), ([], 1))
        self.assertEqual(len(self.in_store(HALF)), 2)
        self.assertEqual(self.offsets(), (2, 1))

    def test_immunity_that_is_no_number(self) -> None:
        """It means transactionTimeOut, and so does -1."""
        self.half("K1", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
        self.half("K2", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual([check["msgId"] for check, _ in self.checks()], ["K1", "K2"])

    def test_old(self) -> None:
        """A message older than fileReservedTime is moved to the topic of discarded ones; 323 has it checked again."""
        self.half()
        self.one.node.step_clock(73 * 3600)
        self.one.world.run_for(INTERVAL_S + 1)
        self.flushLoggedErrors()
        self.assertEqual(self.checks(), [])
        (discarded,) = self.stored(DISCARDED, 0)
        self.assertEqual(discarded.property_map["TRANSACTION_CHECK_TIMES"], "1")
        self.assertEqual(self.offsets(), (1, 0))

    def test_old_and_settled(self) -> None:
        """Messages of a producer whose clock is days behind are not discarded when their transactions have ended."""
        for number in range(2 * OP_PAGE):
            self.end_it(self.half(f"K{number}"), COMMIT)
        self.one.node.step_clock(73 * 3600)
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertNotIn(DISCARDED, self.one.service.topics)
        self.assertEqual(self.offsets(), (2 * OP_PAGE, 2 * OP_PAGE))

    def test_wait_for_the_disk(self) -> None:
        """The offset passes a half message only when its copy is on disk: a power failure loses no transaction."""
        self.half()
        self.one.world.run_for(INTERVAL_S - 0.5)
        self.one.node.disk.sync_s = (3.0, 3.0)
        self.one.world.run_for(1)
        self.assertEqual((len(self.checks()), self.offsets()), (1, (None, None)))
        self.one.node.disk.odds = CrashOdds(kept=0, torn=0, garbage=0)
        self.one.node.crash()
        self.one.node.disk.sync_s = (0.001, 0.001)
        self.one.start()
        self.client = self.one.connect()
        self.heartbeat(self.client)
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual([check["msgId"] for check, _ in self.checks()], ["K1"])


class BusyClock(Clock):
    """A clock that goes on while work is done, and remembers (seconds worked, seconds of the rest behind it)."""

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.rightNow = now_s
        self._since_s = now_s
        self.rests: list[tuple[float, float]] = []

    def work(self, seconds: float) -> None:
        self.rightNow += seconds

    def callLater(self, delay: float, *args: Any, **kwargs: Any) -> IDelayedCall:
        self.rests.append((self.rightNow - self._since_s, delay))
        self._since_s = self.rightNow + delay
        return super().callLater(delay, *args, **kwargs)


class CostlyStore:
    """A store whose reads take time."""

    def __init__(self, store: MessageStore, clock: BusyClock, message_s: float) -> None:
        self._store, self._clock, self._message_s = store, clock, message_s

    def get(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> GetResult:
        found = self._store.get(topic, queue_id, queue_offset, max_count)
        self._clock.work(self._message_s * len(found.messages))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class RestTests(CheckCase):
    MESSAGE_S = 0.0001

    def rests(self) -> list[tuple[float, float]]:
        """Run one round whose reads take time; return what it worked and how long it rested, each time."""
        service = self.one.service
        service.store.flush_soon()
        self.one.world.run_for(1.5)
        clock = BusyClock(self.now / 1000 + INTERVAL_S)
        store = cast(MessageStore, CostlyStore(service.store, clock, self.MESSAGE_S))
        checks = TransactionChecks(service.settings, clock, store, service.offsets, service.topics, service.producers)
        done = ensureDeferred(checks.run())
        while not done.called:
            # without any it waits for the disk
            rest_s = min((call.getTime() - clock.seconds() for call in clock.getDelayedCalls()), default=0.001)
            self.one.world.run_for(rest_s)
            clock.advance(rest_s)
        self.successResultOf(done)
        return [(worked, rested) for worked, rested in clock.rests if rested != FLUSH_LOOK_S]

    def test_half_messages(self) -> None:
        """Others have as much time as a round, after each few half messages."""
        for number in range(4 * SLICE):
            self.half(f"K{number}")
        worked, rested = zip(*self.rests(), strict=True)
        self.assertGreaterEqual(len(worked), 4)
        self.assertLessEqual(max(worked), SLICE * self.MESSAGE_S * 1.01)
        self.assertEqual([round(seconds, 6) for seconds in rested], [round(seconds, 6) for seconds in worked])

    def test_op_messages(self) -> None:
        """And after each page of op messages, of which there are many behind an open half message."""
        self.half("open")
        for number in range(8 * OP_PAGE):
            self.end_it(self.half(f"K{number}"), ROLLBACK)
        worked, rested = zip(*self.rests(), strict=True)
        self.assertGreaterEqual(len(worked), 8)
        self.assertLessEqual(max(worked), (2 * OP_PAGE + SLICE) * self.MESSAGE_S * 1.01)
        self.assertTrue(
            all(abs(rest - min(work, MOST_REST_S)) < 1e-6 for work, rest in zip(worked, rested, strict=True))
        )

    def test_long_work(self) -> None:
        """A disk that needs seconds for a read does not hold a round up for as long again."""
        self.MESSAGE_S = 1.0
        for number in range(SLICE):
            self.half(f"K{number}")
        self.assertIn(MOST_REST_S, [rested for _, rested in self.rests()])


class MaxTests(CheckCase):
    """Checked twice, then discarded."""

    values = {**CheckCase.values, "transactionCheckMax": "2"}

    def test_discard(self) -> None:
        """After transactionCheckMax checks a message is moved to the discard topic; 323 starts from the beginning."""
        self.half(body=b"forgotten")
        self.one.world.run_for(6 * INTERVAL_S)
        self.assertEqual(len(self.checks()), 2)
        (discarded,) = self.stored(DISCARDED, 0)
        self.assertEqual((discarded.body, discarded.property_map["TRANSACTION_CHECK_TIMES"]), (b"forgotten", "2"))
        self.assertEqual((self.offsets(), self.one.service.checks.counts.discarded), ((3, 0), 1))
        self.assertEqual(self.client.ask(323, {"msgId": discarded.offset_msg_id}).code, 0)
        self.assertEqual(self.in_store(HALF)[-1].property_map["TRANSACTION_CHECK_TIMES"], "0")
        self.one.world.run_for(INTERVAL_S)
        self.assertEqual(len(self.checks()), 3)

    def test_resume_nothing(self) -> None:
        """323 refuses what is no half message in Apache's words."""
        self.client.ask(310, send_ext(queue_id=1), b"x")
        (ordinary,) = self.stored()
        for ext in ({}, {"msgId": "x"}, {"msgId": "0" * 32}, {"msgId": ordinary.offset_msg_id}):
            answer = self.client.ask(323, ext)
            remark = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
            self.assertEqual((answer.code, answer.remark), (1, remark))


class RestartTests(CheckCase):
    def restart(self) -> None:
        self.one.start()
        self.client = self.one.connect()
        self.heartbeat(self.client)

    def test_stop(self) -> None:
        """After a stop and a start the open transactions are checked, and the ended ones are not."""
        self.end_it(self.half("K1"), COMMIT)
        self.half("K2")
        self.one.world.run_for(INTERVAL_S + 1)
        self.one.stop()
        self.restart()
        self.assertEqual(self.offsets(), (2, 1))
        self.one.world.run_for(INTERVAL_S + 1)
        ((check, _),) = self.checks()
        self.assertEqual((check["msgId"], check["tranStateTableOffset"]), ("K2", "3"))

    def test_kill(self) -> None:
        """So they are after a kill: a round saves how far it has come, so that it asks nothing twice."""
        self.end_it(self.half("K1"), COMMIT)
        self.half("K2")
        self.one.world.run_for(INTERVAL_S + 0.5)
        self.assertEqual(len(self.checks()), 1)
        self.one.node.kill()
        self.restart()
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual([check["msgId"] for check, _ in self.checks()], ["K2"])
        self.assertEqual(len(self.in_store(HALF)), 4)

    def test_stop_in_a_round(self) -> None:
        """A stop ends a round within a turn of the reactor; what it did is kept, and nothing is asked twice."""
        keys = [f"K{number}" for number in range(3 * SLICE)]
        for key in keys:
            self.half(key)
        counts = self.one.service.checks.counts
        self.one.world.run_until(lambda: counts.checked, 2 * INTERVAL_S, "the first question")
        self.one.stop()
        self.restart()
        self.assertEqual(self.offsets(), (SLICE, 0))
        self.one.world.run_for(INTERVAL_S + 1)
        asked = [check["msgId"] for check, _ in self.checks()]
        self.assertEqual(asked, keys[SLICE:] + keys[:SLICE])

    def test_offsets_beyond_the_end(self) -> None:
        """Offsets that a power failure left behind the ends of their queues do not skip what is stored later."""
        self.one.service.offsets.commit(GROUP, HALF, 0, 9)
        self.one.service.offsets.commit(GROUP, OP, 0, 9)
        self.one.stop()
        self.restart()
        self.assertEqual(self.offsets(), (0, 0))
        self.end_it(self.half("K1"), COMMIT)
        self.half("K2")
        self.one.world.run_for(INTERVAL_S + 1)
        self.assertEqual([check["msgId"] for check, _ in self.checks()], ["K2"])


class SlaveTests(TransactionCase):
    values = {**TransactionCase.values, "brokerRole": "SLAVE", "brokerId": "1"}

    def test_slave(self) -> None:
        """A slave ends no transaction (code 11, as in Apache) and checks none."""
        answer = self.client.ask(
            37,
            {
                "producerGroup": "PG",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "msgId": "K",
                "commitOrRollback": "8",
            },
        )
        self.assertEqual((answer.code, answer.remark), (11, None))
        self.one.world.run_for(2 * INTERVAL_S)
        self.assertNotIn(HALF, self.one.service.topics)


class PromotionTests(SynchronousTestCase):
    """The slave of a lost master continues with its transactions once it is the master."""

    def setUp(self) -> None:
        self.world = World(1)
        self.cluster = Cluster(self.world, options(SYNC_MASTER, ASYNC_FLUSH, slaves=1))
        self.cluster.start_servers()
        self.world.run_for(5)
        self.world.run_until(lambda: self.cluster.members[0].broker.ha.status().slaves, 120, "the slave")
        self.clients = Node(self.world, self.cluster.net, "client")
        self.clients.start()

    def connect(self, member: Member) -> RawClient:
        client = connect(self.world, self.clients, member.node.address)
        body = {"clientID": "p", "consumerDataSet": [], "producerDataSet": [{"groupName": "PG"}]}
        client.ask(34, body=json.dumps(body).encode())
        return client

    def end_checked(self, client: RawClient, key: str, state: int) -> None:
        (check,) = (one for one in client.requests(39) if one.ext_fields["msgId"] == key)
        fields = {name: check.ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId")}
        client.ask(37, {**fields, "producerGroup": "PG", "commitOrRollback": str(state)})

    def test_promoted(self) -> None:
        """What was open is checked again, what had ended is not: not by the end of the original, nor of its copy."""
        master, slave = self.cluster.members
        client = self.connect(master)
        for key in ("K1", "K2"):
            pairs = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": key}
            born = str(now_ms(master.broker.clock))
            self.assertEqual(client.ask(310, send_ext(props=encode_properties(pairs), f="4", g=born), b"x").code, 0)
        self.world.run_until(lambda: len(client.requests(39)) >= 2, 20, "the questions")
        self.end_checked(client, "K1", COMMIT)
        self.world.run_for(25)
        master.node.crash()
        self.world.settle(slave.node.stop())
        promoted = Member(slave.group, 0, slave.node)
        slave.node.start(partial(self.cluster._build_broker, promoted))
        self.world.run_for(1)
        client = self.connect(promoted)
        self.world.run_for(12)
        self.assertEqual({check.ext_fields["msgId"] for check in client.requests(39)}, {"K2"})
        last = client.requests(39)[-1].ext_fields
        fields = {name: last[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId")}
        self.assertEqual(client.ask(37, {**fields, "producerGroup": "PG", "commitOrRollback": "8"}).code, 0)
        keys: list[str] = []
        while body := client.ask(11, pull_ext(offset=len(keys))).body:
            keys += [record.property_map["UNIQ_KEY"] for record in decode_records(body)]
        self.assertEqual(keys, ["K1", "K2"])
        self.world.settle(slave.node.stop())


# ---- the core ----

TERMS = Terms(time_out_ms=1000, check_max=15, reserved_ms=3_600_000)
HOST = (b"\x7f\0\0\1", 1)


def record(queue_offset: int, born: int, stored: int, pairs: dict[str, str] | None = None, body: bytes = b"") -> Record:
    return Record(
        size=0,
        magic=MAGIC_V1,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=queue_offset,
        phy_offset=0,
        sys_flag=0,
        born_timestamp=born,
        born_host=HOST,
        store_timestamp=stored,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=HALF,
        properties=encode_properties(pairs or {}).encode(),
    )


def op(queue_offset: int, body: bytes, tag: str = "d") -> Record:
    return record(queue_offset, 0, 0, {"TAGS": tag}, body)


class RoundTests(SynchronousTestCase):
    """The decisions of one walk, at the edges."""

    def round(self, half_offset: int = 0, op_offset: int = 0) -> Round:
        found = Round(TERMS, half_offset, op_offset, half_end=20)
        found.ops_at_end = True
        return found

    def verdict(self, born: int, stored: int, now: int = 100_000, own: str | None = None) -> Verdict:
        pairs = {} if own is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": own}
        return self.round().judge(record(0, born, stored, pairs), now)[0]

    def test_ages(self) -> None:
        """transactionTimeOut exactly is not over; a message from the future is checked; so are limits of age."""
        self.assertEqual(self.verdict(99_001, 99_001), Verdict.LATER)
        self.assertEqual(self.verdict(99_000, 99_000), Verdict.LATER)
        self.assertEqual(self.verdict(98_999, 98_999), Verdict.CHECK)
        self.assertEqual(self.verdict(100_001, 99_000), Verdict.CHECK)
        self.assertEqual(self.verdict(0, 0, now=3_600_000), Verdict.CHECK)
        self.assertEqual(self.verdict(0, 0, now=3_600_001), Verdict.DISCARD)

    def test_end(self) -> None:
        """What is stored after the begin of a walk is for the next one, whatever the clocks say."""
        found = self.round(half_offset=19)
        self.assertEqual(found.judge(record(19, 0, 200_000), 100_000)[0], Verdict.CHECK)
        found.half_offset = 20
        self.assertEqual(found.judge(record(20, 0, 0), 100_000)[0], Verdict.LATER)

    def test_times(self) -> None:
        """A message that was checked 15 times is discarded; a number that is none counts from the beginning."""
        for times, verdict, then in (
            ("14", Verdict.CHECK, "15"),
            ("15", Verdict.DISCARD, "15"),
            ("99", Verdict.DISCARD, "99"),
            ("x", Verdict.CHECK, "0"),
        ):
            found, pairs = self.round().judge(record(0, 0, 0, {"TRANSACTION_CHECK_TIMES": times}), 100_000)
            self.assertEqual((found, pairs["TRANSACTION_CHECK_TIMES"]), (verdict, then))

    def test_immunity(self) -> None:
        """A message is immune up to its own time, whatever transactionTimeOut is."""
        self.assertEqual(self.verdict(90_001, 90_001, own="10"), Verdict.IMMUNE)
        self.assertEqual(self.verdict(90_000, 90_000, own="10"), Verdict.LATER)
        self.assertEqual(self.verdict(89_999, 89_999, own="10"), Verdict.CHECK)
        self.assertEqual(self.verdict(99_999, 99_999, own="0"), Verdict.CHECK)

    def test_nothing_is_checked_before_all_op_messages_are_read(self) -> None:
        """Only with every op message read a missing one means something."""
        found = self.round()
        found.ops_at_end = False
        self.assertEqual(found.judge(record(0, 0, 0), 100_000)[0], Verdict.READ_ON)
        self.assertEqual(
            found.judge(record(0, 99_000, 0, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"}), 100_000)[0], Verdict.READ_ON
        )
        self.assertEqual(found.judge(record(0, 99_500, 99_500), 100_000)[0], Verdict.LATER)
        for old in (record(0, 0, 0), record(0, 3_600_000, 0, {"TRANSACTION_CHECK_TIMES": "15"})):
            self.assertEqual(found.judge(old, 3_600_001)[0], Verdict.READ_ON)

    def test_settled_ones_are_passed(self) -> None:
        """A walk goes on at the first half message without an op message, or behind the last one that has one."""
        found = self.round(half_offset=10)
        found.settle([op(0, b"10,11,13,9,15")], half_end=20)
        for at, then in ((10, 12), (12, 12), (13, 14), (15, 16), (16, 16), (19, 19)):
            found.half_offset = at
            found.pass_settled()
            self.assertEqual((at, found.half_offset), (at, then))

    def test_op_messages(self) -> None:
        """Op messages of 4.9 name one half message, those of 5.x several; others settle nothing and are passed."""
        found = self.round(half_offset=10)
        ops = [
            op(0, b"9"),
            op(1, b"11,12,"),
            op(2, b"13", tag="e"),
            op(3, b"x"),
            op(4, b"-1"),
            op(5, b"99"),
            op(6, b"10"),
        ]
        found.settle(ops, half_end=20)
        settled = [offset for offset in range(5, 101) if found.is_settled(offset)]
        self.assertEqual((settled, found.next_op), ([9, 10, 11, 12], 7))
        self.assertEqual(found.op_offset, 1)
        found.half_offset = 12
        self.assertEqual(found.op_offset, 1)
        found.half_offset = 13
        self.assertEqual(found.op_offset, 7)

    def test_settled(self) -> None:
        """A settled message is passed however old it is."""
        found = self.round()
        found.settle([op(0, b"0")], half_end=1)
        self.assertEqual(found.judge(record(0, 0, 0, {"TRANSACTION_CHECK_TIMES": "99"}), 100_000)[0], Verdict.SETTLED)

    def test_lost_op_messages(self) -> None:
        """Where op messages expired, the walk goes on with those that are there."""
        found = self.round(op_offset=3)
        found.skip_ops(7)
        self.assertEqual((found.op_offset, found.next_op), (7, 7))
        found.settle([op(7, b"0")], half_end=1)
        found.half_offset = 1
        self.assertEqual(found.op_offset, 8)
