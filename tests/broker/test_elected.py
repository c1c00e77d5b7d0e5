"""What a broker whose role a controller decides keeps in its store, and which configuration it refuses."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import BrokerSetup, resolve, second_master
from rmq.broker.elected.history import History
from rmq.broker.elected.identity import Identity, IdentityFile
from rmq.errors import Refused, RequestFailed
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.files import DiskError
from rmq.runtime.disk.statefile import StateFileError
from rmq.store import layout
from rmq.store.abortfile import AbortFile
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.store.epochs import Epoch
from rmq.store.messages import StoreError
from rmq.wire.api.controller import SyncStateSet
from tests.broker.harness import setup_of
from tests.needs import need_extra
from tests.sim.failover import Pair
from tests.store.support import ROOT, SYNC, Box, all_records, log_events

MASTER = "10.0.0.2:10911"
SEGMENT = 16384
CONTROLLED = {"enableControllerMode": "true", "controllerAddr": "10.0.0.3:9876"}


def resolved(**values: str) -> BrokerSetup:
    return resolve(setup_of(CONTROLLED | values), host_address="10.0.0.1", host_name="box")


class ConfigTests(SynchronousTestCase):
    def refusal(self, **values: str) -> str:
        return str(self.assertRaises(ConfigError, resolved, **values))

    def test_controller_addr(self) -> None:
        """The address of the controller is needed, and each of several is checked."""
        self.assertEqual(self.refusal(controllerAddr=""), "enableControllerMode=true needs controllerAddr")
        for addr in ("10.0.0.3", "10.0.0.3:x", "10.0.0.3:9876;10.0.0.4", "10.0.0.3:9876;"):
            self.assertTrue(self.refusal(controllerAddr=addr).startswith(f"controllerAddr={addr}: "), addr)
        resolved(controllerAddr="10.0.0.3:9876; 10.0.0.4:9876")
        resolve(setup_of({"controllerAddr": "nonsense"}), host_address="10.0.0.1", host_name="box")

    def test_ha_master_address(self) -> None:
        """The controller names the master: a file that names one too is refused."""
        self.assertTrue(self.refusal(haMasterAddress="10.0.0.2:10912").startswith("haMasterAddress: "))

    def test_transfer_of_what_is_flushed(self) -> None:
        """haTransferFlushedOnly is for pairs without a controller."""
        self.assertTrue(self.refusal(haTransferFlushedOnly="true").startswith("haTransferFlushedOnly=true "))

    def test_a_heartbeat_timeout_that_is_too_short(self) -> None:
        """Heartbeats come each second: below 2 s every pause would elect another master."""
        self.assertIn("controllerHeartBeatTimeoutMills", self.refusal(controllerHeartBeatTimeoutMills="1999"))
        resolved(controllerHeartBeatTimeoutMills="2000")

    def test_role_and_id_are_not_used(self) -> None:
        """Whatever role and id a file names, it is accepted without a warning: the controller decides both."""
        for role in BrokerRole:
            for broker_id in ("0", "1"):
                setup = resolved(brokerRole=role.name, brokerId=broker_id)
                self.assertIsNone(second_master(setup))
        self.assertIsNone(second_master(setup_of(CONTROLLED | {"brokerId": "1"})))

    def test_sends_wait_for_the_set(self) -> None:
        """allAckInSyncStateSet is true with a controller and false without, whatever the file says."""
        for value in ("true", "false"):
            self.assertTrue(resolved(allAckInSyncStateSet=value).store.all_ack_in_sync_state_set)
            without = resolve(setup_of({"allAckInSyncStateSet": value}), host_address="10.0.0.1", host_name="box")
            self.assertFalse(without.store.all_ack_in_sync_state_set)

    def test_acknowledgements_after_fsyncs(self) -> None:
        """With SYNC_FLUSH a slave acknowledges what is on its disk; else as the file says."""
        self.assertTrue(resolved(flushDiskType="SYNC_FLUSH").store.ha_ack_after_flush)
        self.assertFalse(resolved().store.ha_ack_after_flush)
        self.assertTrue(resolved(haAckAfterFlush="true").store.ha_ack_after_flush)


class IdentityTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.box.node.start()
        self.disk = self.box.disk
        self.file = self.identity_file()

    def identity_file(self, **values: str) -> IdentityFile:
        return IdentityFile(self.disk, resolved(brokerName="pair", brokerClusterName="C", **values))

    def write(self, name: str, text: str) -> None:
        self.disk.make_dirs(ROOT)
        self.disk.write_atomic(f"{ROOT}/{name}", text.encode())

    def test_a_new_broker(self) -> None:
        """It has no id and has applied for none."""
        self.assertEqual((self.file.load(), self.file.load_applied()), (None, None))

    def test_it_applies(self) -> None:
        """What it applies for is kept with its check code: after a restart the same one is used again."""
        self.file.save_applied(Identity(2, "10.0.0.1:10911;17"))
        self.assertEqual(self.disk.read_whole(f"{ROOT}/brokerIdentity-temp"), b"C#pair#2#10.0.0.1:10911;17")
        self.assertEqual(self.file.load_applied(), Identity(2, "10.0.0.1:10911;17"))
        self.assertIsNone(self.file.load())

    def test_it_has_an_id(self) -> None:
        """The id is kept in Apache's format, and what was applied for is gone."""
        self.file.save_applied(Identity(2, "10.0.0.1:10911;17"))
        self.file.save(Identity(2, "10.0.0.1:10911;17"))
        self.assertEqual(self.disk.read_whole(f"{ROOT}/brokerIdentity"), b"C#pair#2")
        self.assertEqual((self.file.load(), self.file.load_applied()), (Identity(2), None))

    def test_another_broker_has_that_id(self) -> None:
        """What was applied for is forgotten, also when there is no such file."""
        self.file.save_applied(Identity(2, "10.0.0.1:10911;17"))
        for _ in range(2):
            self.file.forget_applied()
            self.assertIsNone(self.file.load_applied())

    def test_a_power_failure(self) -> None:
        """Both files are durable once they are saved."""
        self.file.save_applied(Identity(2, "a:1;17"))
        self.box.crash()
        self.box.node.start()
        self.assertEqual(self.identity_file().load_applied(), Identity(2, "a:1;17"))
        self.file.save(Identity(2))
        self.box.crash()
        self.box.node.start()
        self.assertEqual(self.identity_file().load(), Identity(2))

    def test_damage(self) -> None:
        """A file that is no identity stops the start with its path."""
        for text in ("", "C#pair", "C#pair#2#x", "C#pair#", "C#pair#two", "C#pair#-2", "C#pair#\u0662", "\0" * 9):
            self.write("brokerIdentity", text)
            error = str(self.assertRaises(StateFileError, self.file.load))
            self.assertTrue(error.startswith(f"{ROOT}/brokerIdentity is damaged"), error)
        for text in ("C#pair#2", "C#pair#2#x#y", "C#pair#x#y"):
            self.write("brokerIdentity-temp", text)
            self.assertRaises(StateFileError, self.file.load_applied)

    def test_another_group_or_cluster(self) -> None:
        """A store of another broker is not used: the start stops with both names."""
        for text in ("C#other#2", "D#pair#2"):
            self.write("brokerIdentity", text)
            error = str(self.assertRaises(StateFileError, self.file.load))
            self.assertIn("this store belongs to a broker of the group", error)
        self.write("brokerIdentity-temp", "C#other#2#x")
        self.assertRaises(StateFileError, self.file.load_applied)


class HistoryCase(SynchronousTestCase):
    """A store with messages on a simulated disk, closed, and its history."""

    box: Box

    def fill(self, count: int = 40, **config: Any) -> list[int]:
        """Make a store with messages, closed; return where each record ends."""
        self.box = Box(**config)
        self.box.open()
        ends = [result.next_offset for result in self.box.put_many(count)]
        self.box.stop()
        self.box.node.start()
        return ends

    def history(self, epochs: list[Epoch] | None = None) -> History:
        """Return the loaded history, with these epochs on disk."""
        if epochs is not None:
            text = "\n".join([str(len(epochs)), *(f"{epoch.number}-{epoch.start}" for epoch in epochs)])
            self.box.disk.make_dirs(ROOT)
            self.box.disk.write_atomic(f"{ROOT}/epochFileCheckpoint", text.encode())
        history = History(self.box.disk, self.box.config)
        history.load()
        return history

    def log(self) -> bytes:
        """Return the bytes of the commit log, with the zeros behind it."""
        folder = layout.commit_log_dir(ROOT)
        return b"".join(self.box.disk.read_whole(f"{folder}/{name}") for name in sorted(self.box.disk.list_dir(folder)))

    def cuts(self) -> dict[str, bytes]:
        folder = f"{ROOT}/cut"
        disk = self.box.disk
        if not disk.is_dir(folder):
            return {}
        return {name: disk.read_whole(f"{folder}/{name}") for name in sorted(disk.list_dir(folder))}

    def bodies(self) -> set[bytes]:
        """Open the store and return the bodies that its queues have."""
        self.box.node.kill()
        store = self.box.open(broker_role=BrokerRole.SLAVE)
        found = {record.body for records in all_records(store).values() for record in records}
        self.end_offset = store.end_offset
        self.box.stop()
        self.box.node.start()
        return found


class EpochTests(HistoryCase):
    def test_a_new_store(self) -> None:
        """It has no epoch; the last one counts as 0."""
        self.box = Box()
        self.box.node.start()
        history = self.history()
        self.assertEqual((history.epochs, history.last_epoch), ([], 0))

    def test_a_damaged_table(self) -> None:
        """It stops the start."""
        self.fill(1)
        self.box.disk.write_atomic(f"{ROOT}/epochFileCheckpoint", b"2\n1-0\n")
        self.assertRaises(StateFileError, History(self.box.disk, self.box.config).load)

    def test_it_becomes_master(self) -> None:
        """A new epoch begins with the end of the log, and is on disk at once."""
        self.fill(1)
        history = self.history([Epoch(1, 0)])
        history.begin(4, 500)
        self.assertEqual((history.epochs, history.last_epoch), ([Epoch(1, 0), Epoch(4, 500)], 4))
        self.box.crash()
        self.box.node.start()
        self.assertEqual(self.history().epochs, history.epochs)

    def test_it_cannot_be_kept(self) -> None:
        """When the table cannot be written the epoch has not begun."""
        self.fill(1)
        history = self.history([Epoch(1, 0)])
        self.box.disk.fail_writes = 1
        self.assertRaises(DiskError, history.begin, 4, 500)
        self.assertEqual(history.last_epoch, 1)
        self.assertEqual(self.history().last_epoch, 1)


class FollowTests(HistoryCase):
    def test_all_is_common(self) -> None:
        """A store that has nothing of its own keeps its log and takes over the table, which may have newer epochs."""
        ends = self.fill()
        before = self.log()
        for theirs in ([Epoch(1, 0)], [Epoch(1, 0), Epoch(2, ends[-1])], [Epoch(1, 0), Epoch(2, ends[-1] + 999)]):
            history = self.history([Epoch(1, 0)])
            history.follow(theirs, MASTER)
            self.assertEqual((history.epochs, self.history().epochs), (theirs, theirs))
            self.assertEqual((self.log(), self.cuts()), (before, {}))

    def test_what_the_master_lacks(self) -> None:
        """It is saved to the byte, then cut; the log line names the file, the master and the size."""
        ends = self.fill()
        keep, log, events = ends[24], self.log(), log_events(self)
        history = self.history([Epoch(1, 0), Epoch(2, ends[29])])
        theirs = [Epoch(1, 0), Epoch(3, keep)]
        history.follow(theirs, MASTER)
        (name,) = self.cuts()
        self.assertEqual((name, self.cuts()[name]), (f"{keep:020d}", log[keep : ends[-1]]))
        self.assertEqual((self.log()[:keep], self.log()[keep:].strip(b"\0")), (log[:keep], b""))
        (line,) = [event for event in events if "cut, saved in" in str(event.get("log_format"))]
        figures = (line["count"], line["keep"], line["master"], line["path"])
        self.assertEqual(figures, (ends[-1] - keep, keep, MASTER, f"{ROOT}/cut/{name}"))
        self.assertEqual((history.epochs, self.history().epochs), (theirs, theirs))
        self.assertEqual(self.bodies(), {b"body %d" % number for number in range(25)})
        self.assertEqual(self.end_offset, keep)

    def test_what_this_one_wrote_itself(self) -> None:
        """Where this store's own epoch begins earlier than the master's next one, that is where it is cut."""
        ends = self.fill()
        self.history([Epoch(1, 0), Epoch(2, ends[9])]).follow([Epoch(1, 0), Epoch(3, ends[29])], MASTER)
        self.assertEqual(self.bodies(), {b"body %d" % number for number in range(10)})

    def test_across_files(self) -> None:
        """Files behind the common part are gone, and what they had is saved too."""
        ends = self.fill(300)
        log = self.log()
        self.assertGreater(ends[-1], 3 * SEGMENT)
        self.history([Epoch(1, 0)]).follow([Epoch(1, 0), Epoch(2, ends[9])], MASTER)
        self.assertEqual(list(self.cuts().values()), [log[ends[9] : ends[-1]]])
        self.assertEqual(self.bodies(), {b"body %d" % number for number in range(10)})

    def test_all_of_it(self) -> None:
        """A store with epochs that has no byte in common is cut completely, and saved."""
        ends = self.fill()
        log = self.log()
        self.history([Epoch(1, 0)]).follow([Epoch(2, 0)], MASTER)
        self.assertEqual(self.cuts(), {f"{0:020d}": log[: ends[-1]]})
        self.assertEqual(self.bodies(), set())

    def test_an_empty_store(self) -> None:
        """A new broker has nothing to cut: it takes over the table."""
        self.box = Box()
        self.box.node.start()
        history = self.history()
        history.follow([Epoch(1, 0), Epoch(2, 500)], MASTER)
        self.assertEqual(self.history().epochs, [Epoch(1, 0), Epoch(2, 500)])
        self.assertEqual(self.cuts(), {})

    def refused(self, history: History, theirs: list[Epoch], kind: type[Exception] = StoreError) -> str:
        """Check that the broker must not follow this master, and that nothing has changed; return the text."""
        log, mine = self.log(), list(history.epochs)
        error = self.assertRaises(kind, history.follow, theirs, MASTER)
        self.assertEqual((self.log(), history.epochs, self.history().epochs), (log, mine, mine))
        return str(error)

    def test_a_store_from_before(self) -> None:
        """A store with messages that no elected master wrote agrees with a new group in nothing: it stays as it is."""
        self.fill()
        text = self.refused(self.history(), [Epoch(1, 0)])
        self.assertIn(f"agrees with that of the new master {MASTER} only up to 0: move this store away", text)
        self.assertEqual(self.cuts(), {})

    def test_a_slave_from_before(self) -> None:
        """The slave of a pair whose master became the first elected one agrees up to its first epoch."""
        ends = self.fill()
        self.history().follow([Epoch(1, ends[29])], MASTER)
        self.assertEqual(self.bodies(), {b"body %d" % number for number in range(30)})

    def test_behind_the_first_file(self) -> None:
        """A log that begins behind the common part cannot be cut there: it stays as it is."""
        ends = self.fill(300)
        folder = layout.commit_log_dir(ROOT)
        self.box.disk.delete(f"{folder}/{0:020d}")
        history = self.history([Epoch(1, 0)])
        text = self.refused(history, [Epoch(1, 0), Epoch(2, ends[9])])
        self.assertIn(
            f"begins at {SEGMENT}, and agrees with that of the new master {MASTER} only up to {ends[9]}", text
        )
        self.assertEqual(self.cuts(), {})

    def test_the_controller_has_lost_its_state(self) -> None:
        """A master with older epochs only is not followed."""
        self.fill()
        text = self.refused(self.history([Epoch(1, 0), Epoch(5, 100)]), [Epoch(1, 0), Epoch(4, 100)])
        self.assertTrue(text.startswith(f"{ROOT}/epochFileCheckpoint: this store has epoch 5"), text)

    def test_a_store_in_use(self) -> None:
        """While another process holds the lock nothing is cut."""
        ends = self.fill()
        lock = self.box.disk.lock(layout.lock_path(ROOT))
        history = self.history([Epoch(1, 0)])
        self.refused(history, [Epoch(1, 0), Epoch(2, ends[9])], DiskError)
        lock.release()
        history.follow([Epoch(1, 0), Epoch(2, ends[9])], MASTER)
        self.box.disk.lock(layout.lock_path(ROOT)).release()

    def test_it_cannot_be_saved(self) -> None:
        """Without a complete copy nothing is cut."""
        ends = self.fill()
        history, theirs = self.history([Epoch(1, 0)]), [Epoch(1, 0), Epoch(2, ends[9])]
        self.box.disk.write_fails = lambda path: path.startswith(f"{ROOT}/cut/")
        self.refused(history, theirs, DiskError)
        self.box.disk.recover()
        history.follow(theirs, MASTER)
        self.assertEqual(self.bodies(), {b"body %d" % number for number in range(10)})

    def test_the_table_cannot_be_written(self) -> None:
        """The log is cut, the old table stays; the next try finds nothing more to cut."""
        ends = self.fill()
        history, theirs = self.history([Epoch(1, 0)]), [Epoch(1, 0), Epoch(2, ends[9])]
        self.box.disk.write_fails = lambda path: "epochFile" in path
        self.assertRaises(DiskError, history.follow, theirs, MASTER)
        self.assertEqual((history.epochs, self.history().epochs), ([Epoch(1, 0)], [Epoch(1, 0)]))
        self.box.disk.recover()
        self.box.crash()
        self.box.node.start()
        again = self.history()
        again.follow(theirs, MASTER)
        self.assertEqual((self.history().epochs, len(self.cuts())), (theirs, 1))
        self.assertEqual(self.bodies(), {b"body %d" % number for number in range(10)})


class PowerTests(HistoryCase):
    """Whether a power failure may have taken what this broker had acknowledged."""

    def after(self, end: str, **config: Any) -> bool:
        """End a store with messages so, and ask at the next start."""
        self.box = Box(**config)
        self.box.open()
        self.box.put_many(5)
        getattr(self.box, end)()
        self.box.node.start()
        return self.history().may_lack_messages()

    def test_how_it_ended(self) -> None:
        """After a stop and a kill everything is there; after a power failure not surely."""
        self.assertEqual([self.after(end) for end in ("stop", "kill", "crash")], [False, False, True])

    def test_sync_flush(self) -> None:
        """With SYNC_FLUSH what was acknowledged was on disk."""
        self.assertEqual([self.after(end, **SYNC) for end in ("stop", "kill", "crash")], [False] * 3)

    def test_the_log_was_removed(self) -> None:
        """A broker that has its id, but whose log was removed, has nothing of what it acknowledged."""
        for config in ({}, SYNC):
            self.fill(**config)
            folder = layout.commit_log_dir(ROOT)
            history = self.history([Epoch(1, 0)])
            self.assertFalse(history.may_lack_messages())
            for name in self.box.disk.list_dir(folder):
                self.box.disk.delete(f"{folder}/{name}")
            self.assertTrue(history.may_lack_messages())

    def test_without_a_store(self) -> None:
        """So does one whose store was removed but for the id; a new one is in no set."""
        self.box = Box()
        self.box.node.start()
        self.assertTrue(self.history().may_lack_messages())

    def test_an_emptied_slave_is_not_elected(self) -> None:
        """
        A slave comes back without its log, the master has not noticed that it was away, and dies.

        The slave does not become master by what its former process had acknowledged.
        """
        pair = Pair(1)
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        master = pair.master()
        assert master is not None
        (slave,) = [node for node in pair.brokers if node is not master]
        sent = pair.send(master)
        pair.world.run_for(1)
        self.assertEqual(sent.code, 0)
        pair.net.partition(slave, master)  # the end of its connection does not arrive, and it gets nothing again
        slave.kill()
        folder = layout.commit_log_dir(ROOT)
        for name in slave.disk.list_dir(folder):
            slave.disk.delete(f"{folder}/{name}")
        slave.start()
        pair.world.run_for(3)
        master.kill()
        pair.world.run_for(20)
        self.assertIsNone(pair.master())
        pair.rest()
        pair.check()

    def test_a_failed_fsync(self) -> None:
        """The kernel may have dropped what it could not write."""
        self.fill()
        AbortFile(self.box.disk, ROOT).mark_sync_failed()
        self.assertTrue(self.history().may_lack_messages())

    def test_unknown(self) -> None:
        """A store that Apache's broker did not close says nothing about power: it counts as lost."""
        self.fill()
        AbortFile(self.box.disk, ROOT).create_empty()
        self.assertTrue(self.history().may_lack_messages())

    def test_two_failures(self) -> None:
        """Killed, and then a power failure before the next start."""
        self.box = Box(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
        self.box.open()
        self.box.put_many(5)
        self.box.kill()
        self.box.crash()
        self.box.node.start()
        self.assertTrue(self.history().may_lack_messages())


class LateRequestTests(SynchronousTestCase):
    def test_a_request_arrives_after_the_next_one(self) -> None:
        """
        A master asks the controller to count a slave, gets no answer and asks again; the first request arrives then.

        The second one is refused, but the controller counts the slave: no send is answered with SEND_OK without it.
        """
        pair = Pair(1)
        pair.world.run_until(pair.master, 60, "a master")
        master, group = pair.master(), pair.group()
        assert master is not None and group is not None
        self.assertEqual(len(group.sync_state_set), 1)
        elected = pair.elected(master)
        assert elected is not None
        real, refused = elected._link.alter, list[int]()
        late, arrived = list[tuple[Any, ...]](), list[SyncStateSet]()

        async def alter(*args: Any) -> SyncStateSet:
            if not late:
                late.append(args)
                raise RequestFailed("the controller", "no answer")
            if not arrived:
                arrived.append(await real(*late[0]))
            try:
                return await real(*args)
            except Refused as error:
                refused.append(error.code)
                raise

        self.patch(elected._link, "alter", alter)
        pair.world.run_until(lambda: refused, 60, "the refusal of the second request")
        group = pair.group()
        assert group is not None
        self.assertEqual((refused, len(group.sync_state_set)), ([2013], 2))
        pair.net.partition(*pair.brokers)
        sent = pair.send(master)
        pair.world.run_for(0.3)
        self.assertNotEqual(sent.code, 0)
        pair.net.heal()
        pair.world.run_for(5)
        sent = pair.send(master)
        pair.world.run_for(1)
        self.assertEqual(sent.code, 0)


class FaceTests(SynchronousTestCase):
    def test_the_present_role(self) -> None:
        """The HTTP port shows the broker of the present role; without one it is not well, and has no metrics of it."""
        need_extra("metrics")
        from rmq.broker.http.face import elected_face

        pair = Pair(1)
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        first = pair.master()
        assert first is not None
        other = next(node for node in pair.brokers if node is not first)
        faces = {}
        for node in pair.brokers:
            elected = pair.elected(node)
            assert elected is not None
            faces[node] = elected_face(elected)

        def shown(node: Any) -> tuple[bool, int, str | None]:
            face = faces[node]
            metrics = [metric.name for metric in face.collectors[0].collect()]
            pieces = [family for family, _ in face.collectors[0].in_slices()]
            assert len(metrics) == len(pieces)
            return "SLAVE" in face.pages["/"]({}), len(metrics), face.health()

        self.assertEqual([shown(node)[::2] for node in (first, other)], [(False, None), (True, None)])
        pair.controller.kill()
        pair.net.partition(first, other)
        pair.world.run_until(lambda: pair.broker_of(first) is None, 60, "the end of its role")
        is_slave, metrics, health = shown(first)
        self.assertEqual((is_slave, metrics), (False, 0))
        self.assertIn("has no role", health or "")
        pair.rest()
        self.assertEqual({shown(node)[::2] for node in pair.brokers}, {(False, None), (True, None)})
