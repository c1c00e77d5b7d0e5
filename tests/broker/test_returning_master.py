"""A master comes back with offsets that are older than what consumers committed at its slave (Apache 1094, 1440)."""

from __future__ import annotations

from typing import Any

from rmq.broker.offsets import OwnOffset
from rmq.remoting.responders import NoReply, Refuse, Reply, Request, responds_to
from rmq.wire import fastjson
from rmq.wire.api.offsets import (
    GET_MAX_OFFSET,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    OffsetReply,
    QueryConsumerOffsetHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.pulling import VIEW_MESSAGE_BY_ID, ViewMessageHeader
from rmq.wire.api.replication import GET_ALL_CONSUMER_OFFSET, AllConsumerOffset
from rmq.wire.codes import ResponseCode
from tests.broker.test_metadata_sync import MetadataSyncCase, usual_messages


class OffsetMaster:
    """A master's consumer offsets and messages, and nothing else; the other tables are refused."""

    def __init__(self, table: dict[str, dict[int, int]]) -> None:
        self.table = table
        self.messages = usual_messages()
        self.commits: list[tuple[str, str, int, int]] = []
        self.refuses: ResponseCode | None = None

    @responds_to(GET_ALL_CONSUMER_OFFSET)
    def offsets(self, request: Request[None, None]) -> Reply:
        return Reply(body=AllConsumerOffset(offset_table={key: dict(queues) for key, queues in self.table.items()}))

    @responds_to(VIEW_MESSAGE_BY_ID)
    def message(self, request: Request[ViewMessageHeader, None]) -> Reply:
        record = self.messages.records.get(request.header.offset)
        if record is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return Reply(body=record)

    @responds_to(GET_MAX_OFFSET)
    def newest(self, request: Request[QueueHeader, None]) -> Reply:
        return Reply(OffsetReply(offset=self.messages.max_offset(request.header.topic, request.header.queue_id)))

    @responds_to(QUERY_CONSUMER_OFFSET)
    def position(self, request: Request[QueryConsumerOffsetHeader, None]) -> Reply | NoReply:
        header = request.header
        offset = self.table.get(f"{header.topic}@{header.consumer_group}", {}).get(header.queue_id)
        if offset is None:
            raise Refuse(ResponseCode.QUERY_NOT_FOUND, "Not found")
        return Reply(OffsetReply(offset=offset))

    @responds_to(UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request[UpdateConsumerOffsetHeader, None]) -> Reply:
        header = request.header
        if self.refuses is not None:
            raise Refuse(self.refuses, "not now")
        self.commits.append((header.topic, header.consumer_group, header.queue_id, header.commit_offset))
        self.table.setdefault(f"{header.topic}@{header.consumer_group}", {})[header.queue_id] = header.commit_offset
        return Reply()


class ReturningMasterTests(MetadataSyncCase):
    def returning(self, table: dict[str, dict[int, int]]) -> OffsetMaster:
        self.return_master(master := OffsetMaster(table))
        return master

    def offsets_now(self) -> dict[str, dict[int, int]]:
        return self.offsets.snapshot()

    def test_offsets_do_not_run_backwards(self) -> None:
        """
        Apache issue 1094: consumed at the slave while the master was away for minutes; back, it must not undo that.

        The slave keeps what was committed at it, and the master is told, so that clients find it there too.
        """
        self.offsets.merge({"T@G": {0: 100, 1: 200}})
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 100, 1: 200}, "T@H": {0: 5}})
        self.net.run(4)
        self.assertEqual(self.offsets_now(), {"T@G": {0: 150, 1: 200}, "T@H": {0: 5}})
        self.assertEqual(master.commits, [("T", "G", 0, 150)])
        self.net.run(30)
        self.assertEqual(len(master.commits), 1, "what the master has by now is not told again")

    def test_then_the_master_rules_again(self) -> None:
        """Once the master has caught up, an operator who resets a group there resets it here, backwards too."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 100}})
        self.net.run(4)
        self.assertEqual(len(master.commits), 1)
        master.table["T@G"][0] = 20
        self.net.run(10)
        self.assertEqual(self.offsets_now(), {"T@G": {0: 20}})
        self.assertEqual(len(master.commits), 1)

    def test_a_master_that_is_ahead_wins(self) -> None:
        """What the master has beyond the slave's commits is taken over, and nothing is told."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 170}})
        self.net.run(14)
        self.assertEqual((self.offsets_now(), master.commits), ({"T@G": {0: 170}}, []))

    def test_a_restart_of_the_slave_forgets_nothing(self) -> None:
        """Committed at the slave, slave restarted, master back: still not backwards."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.persist()
        again = type(self.offsets)(self.disk, self.folder, self.net)
        again.load()
        again.load_own(is_slave=True)
        self.assertEqual(again.follow({"T@G": {0: 100}}), [OwnOffset("T", "G", 0, 150)])
        self.assertEqual(again.query("G", "T", 0), 150)
        promoted = type(self.offsets)(self.disk, self.folder, self.net)
        promoted.load()
        promoted.load_own(is_slave=False)
        demoted = type(self.offsets)(self.disk, self.folder, self.net)
        demoted.load()
        demoted.load_own(is_slave=True)
        self.assertEqual(demoted.query("G", "T", 0), 150)
        self.assertEqual(demoted.follow({"T@G": {0: 100}}), [], "a master's table is its own, and old marks are gone")

    def test_apaches_way(self) -> None:
        """With slaveOffsetsToMaster=false the master's older offsets win, as with Apache."""
        self.sync._offsets_to_master = False
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 100}})
        self.net.run(4)
        self.assertEqual((self.offsets_now(), master.commits), ({"T@G": {0: 100}}, []))

    def test_a_refusal_is_named_and_tried_again(self) -> None:
        """A master that refuses an offset is named with topic, group and queue; the next round tries again."""
        self.offsets.commit_at_slave("G", "T", 3, 150)
        master = self.returning({})
        master.refuses = ResponseCode.SYSTEM_ERROR
        self.net.run(4)
        self.assertIn("T@G queue 3 at 150", self.sync.failing["consumer offsets"])
        master.refuses = None
        self.net.run(10)
        self.assertNotIn("consumer offsets", self.sync.failing)
        self.assertEqual(master.commits, [("T", "G", 3, 150)])

    def test_what_the_master_does_not_know_any_more(self) -> None:
        """Offsets of a topic that was deleted at the master are forgotten, not told for ever."""
        self.offsets.commit_at_slave("G", "Gone", 0, 150)
        master = self.returning({})
        master.refuses = ResponseCode.TOPIC_NOT_EXIST
        self.net.run(4)
        self.assertNotIn("consumer offsets", self.sync.failing)
        self.assertEqual(self.offsets.follow({}), [])

    def test_roles_change_twice(self) -> None:
        """
        Apache issue 1440: an old master comes back as slave, is synchronised, becomes master again hours later.

        Its own old offsets were written by itself as a master, so they give way entirely, in memory and on disk, and
        what it serves as a master again is what the other one had.
        """
        self.offsets.commit("G", "T", 0, 10)
        self.offsets.commit("G", "T", 1, 11)
        self.persist()
        self.returning({"T@G": {0: 90_000, 1: 80_000}})
        self.net.run(4)
        again: Any = type(self.offsets)(self.disk, self.folder, self.net)
        again.load()
        self.assertEqual(again.snapshot(), {"T@G": {0: 90_000, 1: 80_000}})

    def test_a_deleted_group_is_not_given_back(self) -> None:
        """What the slave was told to forget is forgotten."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.offsets.remove_group("G")
        self.assertEqual(self.offsets.follow({}), [])

    def test_file(self) -> None:
        """The marks are a small file of ours beside Apache's, in the same form."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.persist()
        self.assertEqual(self.file("slaveConsumerOffset.json")["offsetTable"], {"T@G": {"0": 150}})
        self.assertEqual(
            fastjson.decode(self.disk.read_whole(f"{self.folder}/consumerOffset.json"), AllConsumerOffset).offset_table,
            {"T@G": {0: 150}},
        )
