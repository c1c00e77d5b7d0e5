"""The controller over the wire: what Apache's brokers and tools may ask it, and whom it makes master."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import msgspec
from prometheus_client import generate_latest
from twisted.internet.error import ConnectionDone, ConnectionRefusedError, DNSLookupError, NoRouteError, TimeoutError
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.controller.groups import Group, choose_master
from rmq.namesrv.controller.live import CLOSED_TIMEOUT_MS, DEFAULT_TIMEOUT_MS
from rmq.namesrv.controller.service import PROBE_AFTER_S
from rmq.namesrv.metrics import NamesrvCollector, namesrv_face
from rmq.remoting.channel import Channel
from rmq.runtime.disk.files import DiskError, RealDisk, SyncFailed
from rmq.runtime.disk.statefile import StateFileError
from rmq.wire import fastjson
from rmq.wire.api.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_REGISTER_BROKER,
    GET_CONTROLLER_CONFIG,
    NOTIFY_BROKER_ROLE_CHANGED,
    UPDATE_CONTROLLER_CONFIG,
)
from rmq.wire.api.routes import BROKER_HEARTBEAT
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from tests.namesrv.talk import Talk
from tests.namesrv.test_pages import text_of

GROUP = {"clusterName": "C", "brokerName": "pair"}


def address(broker_id: int) -> str:
    return f"10.0.0.{broker_id}:10911"


class ControllerCase(SynchronousTestCase):
    """A NameServer that is a controller and has listened for long enough to believe that a silent broker is lost."""

    def setUp(self) -> None:
        self.patch(os, "fsync", lambda fd: None)
        self.talk = Talk.started(self.mktemp(), enable_controller_in_namesrv=True)
        self.pass_s(DEFAULT_TIMEOUT_MS / 1000 + 1)
        #: the brokers that say each half second that they live
        self.alive: list[int] = []
        self.channels: dict[int, Channel] = {}

    # time

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.talk.reactor.advance(0.5)

    def live_s(self, seconds: float, *ids: int, **changes: str) -> None:
        """Let time pass while these brokers live."""
        for _ in range(round(seconds * 2)):
            for broker_id in ids:
                self.beat(broker_id, **changes)
            self.talk.reactor.advance(0.5)

    # questions of brokers; each returns the answer

    def next_id(self) -> RemotingCommand:
        return self.talk.ask(CONTROLLER_GET_NEXT_BROKER_ID, GROUP)

    def apply(self, broker_id: int, code: str | None = None, **changes: str) -> RemotingCommand:
        fields = {"appliedBrokerId": str(broker_id), "registerCheckCode": code or f"{address(broker_id)};17"}
        return self.talk.ask(CONTROLLER_APPLY_BROKER_ID, {**GROUP, **fields, **changes})

    def register(self, broker_id: int, **changes: str) -> RemotingCommand:
        fields = {"brokerId": str(broker_id), "brokerAddress": address(broker_id)}
        return self.talk.ask(CONTROLLER_REGISTER_BROKER, {**GROUP, **fields, **changes})

    def beat(self, broker_id: int, **changes: str) -> RemotingCommand:
        channel = self.channels.setdefault(broker_id, self.talk.connect())
        fields = {"brokerId": str(broker_id), "brokerAddr": address(broker_id)}
        return self.talk.ask(BROKER_HEARTBEAT, {**GROUP, **fields, **changes}, channel=channel)

    def elect(self, broker_id: int | None, **changes: str) -> RemotingCommand:
        fields = {} if broker_id is None else {"brokerId": str(broker_id)}
        return self.talk.ask(CONTROLLER_ELECT_MASTER, {**GROUP, **fields, **changes})

    def force(self, broker_id: int) -> RemotingCommand:
        return self.elect(broker_id, designateElect="true")

    def alter(self, *ids: int, master: int = 1, epoch: int = 1, set_epoch: int = 1, name: str = "pair") -> Any:
        fields = {"brokerName": name, "masterBrokerId": str(master), "masterEpoch": str(epoch)}
        body = json.dumps({"syncStateSet": list(ids), "syncStateSetEpoch": set_epoch}).encode()
        return self.talk.ask(CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)

    def replica_info(self) -> RemotingCommand:
        return self.talk.ask(CONTROLLER_GET_REPLICA_INFO, {"brokerName": "pair"})

    def clean(self, ids: str = "", **changes: str) -> RemotingCommand:
        fields = {**GROUP, **({"brokerControllerIdsToClean": ids} if ids else {}), **changes}
        return self.talk.ask(CLEAN_BROKER_DATA, fields)

    def set_config(self, text: str) -> None:
        self.assertEqual(self.talk.ask(UPDATE_CONTROLLER_CONFIG, None, text.encode()).code, 0)

    # states

    @property
    def group(self) -> Group:
        controller = self.talk.service.controller
        assert controller is not None
        group = controller.group("pair")
        assert group is not None
        return group

    def state(self) -> tuple[int | None, int, list[int], int]:
        """Return master, its epoch, SyncStateSet, its epoch."""
        group = self.group
        return group.master_id, group.master_epoch, sorted(group.sync_state_set), group.sync_state_set_epoch

    def whole(self, *others: int) -> None:
        """Make a group: broker 1 is master in epoch 1, all are in the SyncStateSet and live."""
        for broker_id in (1, *others):
            self.assertEqual(self.apply(broker_id).code, 0)
            self.register(broker_id)
            self.beat(broker_id)
        self.assertEqual(self.elect(1).code, 0)
        self.notices()
        if others:
            self.assertEqual(self.alter(1, *others).code, 0)

    def refused(self, answer: RemotingCommand, code: ResponseCode) -> str:
        """Check the code of a refusal; return its remark."""
        self.assertEqual(answer.code, code, answer.remark)
        return answer.remark or ""

    def fields(self, answer: RemotingCommand) -> dict[str, str]:
        self.assertEqual(answer.code, 0, answer.remark)
        return dict(answer.ext_fields)

    def body(self, answer: RemotingCommand) -> Any:
        return fastjson.decode(answer.body or b"null", Any)

    def notices(self) -> dict[str, RemotingCommand]:
        """Return the notices since the last call, by the address to which they were sent."""
        found: dict[str, RemotingCommand] = {}
        dialled, self.talk.reactor.tcpClients[:] = list(self.talk.reactor.tcpClients), []
        for host, port, factory, *_ in dialled:
            protocol, transport = factory.buildProtocol(None), StringTransport()
            assert protocol is not None
            protocol.makeConnection(transport)
            (found[f"{host}:{port}"],) = decode_commands(transport.value())
            protocol.connectionLost(Failure(ConnectionDone()))
        return found

    def restart(self) -> None:
        """End this NameServer and begin another one on its files."""
        self.successResultOf(self.talk.service.stopService())
        self.talk.restart().startService()
        self.channels.clear()


class OffTests(SynchronousTestCase):
    def test_without_the_key(self) -> None:
        """Without enableControllerInNamesrv a NameServer answers no controller's code, and keeps no state."""
        talk = Talk.started(self.mktemp())
        for contract in (CONTROLLER_GET_METADATA_INFO, CONTROLLER_GET_NEXT_BROKER_ID, CONTROLLER_ELECT_MASTER):
            self.assertEqual(talk.ask(contract, GROUP).code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        self.assertFalse(talk.disk.exists(talk.path("controller")))


class MetadataTests(ControllerCase):
    def test_it_is_the_leader(self) -> None:
        """1005: there is one controller, it leads, at the address at which it was asked."""
        fields = self.fields(self.talk.ask(CONTROLLER_GET_METADATA_INFO))
        own = f"{self.talk.channel.local_ip}:9876"
        self.assertEqual((fields["controllerLeaderAddress"], fields["isLeader"]), (own, "true"))
        self.assertEqual(fields["peers"], f"{fields['controllerLeaderId']}:{own}")
        self.assertTrue(fields["group"])


class IdTests(ControllerCase):
    def test_ids_count_from_one(self) -> None:
        """1012: an unknown group begins with 1, then comes the next one; asking takes none."""
        self.assertEqual(self.fields(self.next_id()), {**GROUP, "nextBrokerId": "1"})
        self.assertEqual(self.fields(self.next_id())["nextBrokerId"], "1")
        self.apply(1)
        self.assertEqual(self.fields(self.next_id())["nextBrokerId"], "2")
        self.apply(2)
        self.assertEqual(self.fields(self.next_id())["nextBrokerId"], "3")

    def test_a_broker_takes_an_id(self) -> None:
        """1013: the address before the `;` of the check code is where the broker is; it has no role yet."""
        self.assertEqual(self.fields(self.apply(1, "10.9.9.9:1;5")), GROUP)
        self.assertEqual(self.group.address(1), "10.9.9.9:1")
        self.assertEqual(self.state(), (None, 0, [], 0))

    def test_the_same_broker_asks_again(self) -> None:
        """An answer may be lost: the same check code gets the same id, and only one broker is known."""
        self.apply(1)
        self.assertEqual(self.apply(1).code, 0)
        self.assertEqual(list(self.group.members), [1])

    def test_an_id_that_another_broker_has(self) -> None:
        """Two new brokers that were offered one id: the second one is refused."""
        self.apply(1)
        remark = self.refused(self.apply(1, f"{address(1)};18"), ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        self.assertEqual(remark, "Fail to apply brokerId: 1 in broker-set: pair")

    def test_an_unknown_group_begins_with_one(self) -> None:
        """A broker with a higher id belongs to a controller that is not this one."""
        remark = self.refused(self.apply(2), ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        self.assertIn("hasn't been registered in controller, but broker try to apply brokerId: 2", remark)
        self.assertIsNone(self.talk.service.controller.group("pair") if self.talk.service.controller else 1)

    def test_a_group_belongs_to_one_cluster(self) -> None:
        """A broker of another cluster with the same brokerName is refused, by both names."""
        self.apply(1)
        remark = self.refused(self.apply(2, clusterName="D"), ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        self.assertIn("belongs to the cluster C, not to D", remark)
        self.assertEqual(list(self.group.members), [1])


class RegisterTests(ControllerCase):
    def test_unknown(self) -> None:
        """1003: an unknown group, and an unknown broker of a known one, must apply for an id first."""
        code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        self.assertIn("Broker-set: pair hasn't", self.refused(self.register(1), code))
        self.apply(1)
        self.assertIn("BrokerId: 2 hasn't been registered", self.refused(self.register(2), code))

    def test_without_a_master(self) -> None:
        """The answer names no master, and there is nobody in the set."""
        self.apply(1)
        answer = self.register(1)
        self.assertEqual(self.fields(answer), GROUP)
        self.assertEqual(self.body(answer), {"syncStateSet": [], "syncStateSetEpoch": 0})

    def test_with_a_master(self) -> None:
        """The answer has the master that lives, both epochs and the set; no role changes by it."""
        self.whole(2)
        before = self.state()
        answer = self.register(2)
        expected = {"masterBrokerId": "1", "masterAddress": address(1), "masterEpoch": "1", "syncStateSetEpoch": "2"}
        self.assertEqual(self.fields(answer), {**GROUP, **expected})
        self.assertEqual(self.body(answer), {"syncStateSet": [1, 2], "syncStateSetEpoch": 2})
        self.assertEqual(self.state(), before)

    def test_with_a_lost_master(self) -> None:
        """A master that is lost is none, also before the next scan."""
        self.whole()
        self.talk.reactor.advance(0.25)
        self.beat(1, heartbeatTimeoutMills="2000")
        self.pass_s(1.5)
        self.assertEqual(self.fields(self.register(1))["masterBrokerId"], "1")
        for _ in range(2):
            self.talk.reactor.advance(0.25)
        self.assertNotIn("masterBrokerId", self.fields(self.register(1)))
        self.assertEqual(self.group.master_id, 1)

    def test_a_new_address(self) -> None:
        """A broker that moved is known by its new address, on disk too."""
        self.whole()
        self.register(1, brokerAddress="10.8.8.8:2")
        self.restart()
        self.assertEqual(self.fields(self.replica_info())["masterAddress"], "10.8.8.8:2")

    def test_two_with_one_identity(self) -> None:
        """The copy of a slave's store is not in the SyncStateSet, and the slave's heartbeats are refused."""
        self.whole(2)
        with capturedLogs() as logged:
            self.register(2, brokerAddress="10.8.8.8:2", mayLackMessages="false")
        self.assertEqual(self.state(), (1, 1, [1], 3))
        self.assertIn("two with one store", " ".join(event["log_format"] for event in logged if "log_format" in event))
        answer = self.beat(2)
        self.assertEqual(answer.code, ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        self.assertIn("id 2 of pair has registered at 10.8.8.8:2, not at 10.0.0.2:10911", answer.remark or "")
        self.assertEqual(self.beat(2, brokerAddr="10.8.8.8:2").code, 0)

    def test_one_that_moved(self) -> None:
        """A broker that is not heard any more may register elsewhere, and is what it was."""
        self.whole(2)
        self.live_s(DEFAULT_TIMEOUT_MS / 1000 + 1, 1)
        before = self.state()
        self.register(2, brokerAddress="10.8.8.8:2", mayLackMessages="false")
        self.assertEqual(self.state(), before)

    def test_a_master_of_ours_runs_again(self) -> None:
        """A master that says that its process began is no longer one: only a new epoch may go on."""
        self.whole(2)
        fields = self.fields(self.register(1, mayLackMessages="false"))
        self.assertNotIn("masterBrokerId", fields)
        self.assertEqual(self.state(), (None, 2, [1, 2], 2))

    def test_a_slave_of_ours_runs_again(self) -> None:
        """A slave that lost nothing changes nothing."""
        self.whole(2)
        self.register(2, mayLackMessages="false")
        self.assertEqual(self.state(), (1, 1, [1, 2], 2))

    def test_messages_may_be_lost(self) -> None:
        """A broker that may lack messages leaves the SyncStateSet, as slave and as master."""
        self.whole(2, 3)
        self.register(3, mayLackMessages="true")
        self.assertEqual(self.state(), (1, 1, [1, 2], 3))
        self.register(1, mayLackMessages="true")
        self.assertEqual(self.state(), (None, 2, [2], 4))

    def test_messages_of_the_only_one_may_be_lost(self) -> None:
        """Alone in the SyncStateSet it stays there: nobody has more than it."""
        self.whole()
        self.register(1, mayLackMessages="true")
        self.assertEqual(self.state(), (None, 2, [1], 2))

    def test_messages_of_one_outside_may_be_lost(self) -> None:
        """The epoch of the set grows: the master cannot add the broker for what it held before."""
        self.whole()
        self.apply(2)
        self.beat(2)
        self.register(2, mayLackMessages="true")
        self.assertEqual(self.state(), (1, 1, [1], 2))
        self.refused(self.alter(1, 2), ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH)


class ReplicaInfoTests(ControllerCase):
    def test_unknown(self) -> None:
        """1004: an unknown group."""
        self.refused(self.replica_info(), ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)

    def test_without_a_master(self) -> None:
        """The epoch and the set are there, nothing else."""
        self.whole()
        self.register(1, mayLackMessages="false")
        answer = self.replica_info()
        self.assertEqual(self.fields(answer), {"masterEpoch": "2"})
        self.assertEqual(self.body(answer), {"syncStateSet": [1], "syncStateSetEpoch": 1})

    def test_with_a_master(self) -> None:
        """Who is master, where, in which epoch, and the SyncStateSet in order."""
        self.whole(3, 2)
        answer = self.replica_info()
        expected = {"masterBrokerId": "1", "masterAddress": address(1), "masterEpoch": "1"}
        self.assertEqual(self.fields(answer), expected)
        self.assertEqual(self.body(answer), {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": 2})


class AlterTests(ControllerCase):
    def test_a_slave_joins_and_leaves(self) -> None:
        """1001: the answer has the new set and its epoch; the master's epoch stays."""
        self.whole(2)
        answer = self.alter(1, set_epoch=2)
        self.assertEqual(self.fields(answer), {"newSyncStateSetEpoch": "3"})
        self.assertEqual(self.body(answer), {"syncStateSet": [1], "syncStateSetEpoch": 3})
        self.assertEqual(self.state(), (1, 1, [1], 3))

    def test_refusals(self) -> None:
        """Every refusal has Apache's code and remark, and changes nothing."""
        self.whole(2)
        self.apply(3)
        before, remark = self.state(), "Rejecting alter syncStateSet request because"
        refusals = [
            (self.alter(1, 2, set_epoch=2), 2013, "The newSyncStateSet is equal with oldSyncStateSet"),
            (self.alter(1, master=2, set_epoch=2), 2002, f"{remark} the current leader is:{{1}}, not {{2}}"),
            (self.alter(1, epoch=2, set_epoch=2), 2000, f"{remark} the current master epoch is:{{1}}, not {{2}}"),
            (self.alter(1, set_epoch=1), 2001, f"{remark} the current syncStateSet epoch is:{{2}}, not {{1}}"),
            (self.alter(1, 2, 4, set_epoch=2), 2003, f"{remark} the replicas {{4}} don't exist"),
            (self.alter(1, 3, set_epoch=2), 2006, f"{remark} the replicas {{3}} don't alive"),
            (self.alter(2, set_epoch=2), 2013, f"{remark} the newSyncStateSet don't contains origin leader {{1}}"),
            (self.alter(1, name="other"), 2013, "Broker metadata is not existed"),
        ]
        for answer, code, text in refusals:
            with self.subTest(text):
                self.assertEqual(answer.code, code)
                self.assertTrue((answer.remark or "").startswith(text), answer.remark)
        self.assertEqual(self.state(), before)

    def test_the_order_of_the_refusals(self) -> None:
        """With several reasons Apache names the first of: same set, master, epoch of it, epoch of the set, unknown."""
        self.whole(2)
        self.assertEqual(self.alter(1, 2, master=2).code, 2013)
        self.assertEqual(self.alter(1, 9, master=2, epoch=9, set_epoch=9).code, 2002)
        self.assertEqual(self.alter(1, 9, epoch=9, set_epoch=9).code, 2000)
        self.assertEqual(self.alter(1, 9, set_epoch=9).code, 2001)
        self.assertEqual(self.alter(9, set_epoch=2).code, 2003)

    def test_without_a_master(self) -> None:
        """A broker that is master no longer changes no set."""
        self.whole(2)
        self.register(1, mayLackMessages="false")
        remark = self.refused(self.alter(1, epoch=2, set_epoch=2), ResponseCode.CONTROLLER_INVALID_MASTER)
        self.assertIn("is:{None}, not {1}", remark)

    def test_a_slave_that_fell_silent(self) -> None:
        """A broker that is not heard cannot join, but one that is not heard may leave."""
        self.whole(2)
        self.live_s(11, 1)
        self.assertEqual(self.alter(1, set_epoch=2).code, 0)
        self.refused(self.alter(1, 2, set_epoch=3), ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)
        self.beat(2)
        self.assertEqual(self.alter(1, 2, set_epoch=3).code, 0)


class ElectTests(ControllerCase):
    def test_unknown(self) -> None:
        """1002: an unknown group, and an unknown broker as the first master of a known one."""
        code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        self.refused(self.elect(1), code)
        self.apply(1)
        self.refused(self.elect(2), code)
        self.assertEqual(self.state(), (None, 0, [], 0))

    def test_the_first_that_asks_is_the_first_master(self) -> None:
        """A group that never had a master gets the broker that asks, whatever the others have."""
        for broker_id in (1, 2):
            self.apply(broker_id)
        self.beat(1, maxOffset="5000")
        answer = self.elect(2)
        expected = {"masterBrokerId": "2", "masterAddress": address(2), "masterEpoch": "1", "syncStateSetEpoch": "1"}
        self.assertEqual(self.fields(answer), expected)
        members = {"brokerAddrs": {"1": address(1), "2": address(2)}, "brokerName": "pair", "cluster": "C"}
        self.assertEqual(self.body(answer), {"brokerMemberGroup": members, "syncStateSet": [2]})
        self.assertEqual(self.state(), (2, 1, [2], 1))

    def test_no_first_master_by_the_scan_or_by_a_tool(self) -> None:
        """A group that never had a master gets none by a tool, nor by time."""
        self.apply(1)
        self.beat(1)
        self.refused(self.force(1), ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
        self.set_config("enableElectUncleanMaster=true")
        self.live_s(5, 1)
        self.assertEqual(self.state(), (None, 0, [], 0))

    def test_the_master_lives(self) -> None:
        """While there is a master another broker gets its address with code 2011, and nothing changes."""
        self.whole(2)
        before = self.state()
        for answer in (self.elect(2), self.elect(1), self.force(1)):
            self.refused(answer, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
            self.assertIn("The old master 1 is still alive", answer.remark or "")
            expected = {
                "masterBrokerId": "1",
                "masterAddress": address(1),
                "masterEpoch": "1",
                "syncStateSetEpoch": "2",
            }
            self.assertEqual(dict(answer.ext_fields), expected)
            self.assertEqual(self.body(answer)["syncStateSet"], [1, 2])
        self.assertEqual(self.state(), before)
        self.assertEqual(self.notices(), {})

    def test_a_tool_wants_another_one(self) -> None:
        """A broker of the SyncStateSet that lives becomes master although the other one lives; alone in the set."""
        self.whole(2)
        self.assertEqual(self.fields(self.force(2))["masterBrokerId"], "2")
        self.assertEqual(self.state(), (2, 2, [2], 3))

    def test_a_tool_wants_one_outside_of_the_set(self) -> None:
        """A broker outside of the SyncStateSet, an unknown and a silent one do not become master: the old one stays."""
        self.whole(2)
        self.apply(3)
        self.beat(3)
        for broker_id in (3, 9):
            self.refused(self.force(broker_id), ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
        self.live_s(11, 1)
        self.refused(self.force(2), ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
        self.assertEqual(self.state(), (1, 1, [1, 2], 2))

    def test_nobody_may(self) -> None:
        """When nobody of the SyncStateSet lives the group stays without a master, in the epoch without one."""
        self.whole(2)
        self.assertEqual(self.alter(1, set_epoch=2).code, 0)
        self.live_s(12, 2)
        self.assertEqual(self.state(), (None, 2, [1], 3))
        self.refused(self.elect(2), ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
        self.live_s(5, 2)
        self.assertEqual(self.state(), (None, 2, [1], 3))

    def test_the_only_one_comes_back(self) -> None:
        """A master that was lost alone becomes master again, in a new epoch, when it lives."""
        self.whole()
        self.pass_s(12)
        self.assertEqual(self.state(), (None, 2, [1], 1))
        self.live_s(1, 1)
        self.assertEqual(self.state(), (1, 3, [1], 2))


class ChoiceTests(ControllerCase):
    """Which of several brokers becomes master."""

    def setUp(self) -> None:
        super().setUp()
        self.whole(2, 3, 4)

    def chosen(self, beats: dict[int, tuple[int, int, int]]) -> int | None:
        """Lose the master while these live, with epoch, end of the log and priority; return the next one."""
        names = ("epoch", "maxOffset", "electionPriority")
        self.live_and_lose(
            {broker_id: dict(zip(names, map(str, values), strict=True)) for broker_id, values in beats.items()}
        )
        return self.group.master_id

    def test_newest_epoch(self) -> None:
        """The newest epoch of the log comes first."""
        self.assertEqual(self.chosen({2: (1, 9000, 1), 3: (2, 10, 9), 4: (1, 8000, 1)}), 3)

    def test_longest_log(self) -> None:
        """Of one epoch the longest log."""
        self.assertEqual(self.chosen({2: (1, 10, 1), 3: (1, 11, 9), 4: (1, 9, 1)}), 3)

    def test_smallest_priority(self) -> None:
        """Of equally good brokers the one with the smallest brokerElectionPriority."""
        self.assertEqual(self.chosen({2: (1, 10, 7), 3: (1, 10, 6), 4: (1, 10, 8)}), 3)

    def test_a_broker_that_names_no_priority(self) -> None:
        """It comes after one that names the last but one."""
        self.live_and_lose({2: {}, 3: {"electionPriority": "2147483646"}, 4: {}})
        self.assertEqual(self.group.master_id, 3)

    def test_a_broker_that_names_no_epoch(self) -> None:
        """It comes after one with the first epoch."""
        self.live_and_lose({2: {"epoch": ""}, 3: {"epoch": "0", "maxOffset": "1"}})
        self.assertEqual(self.group.master_id, 3)

    def test_a_broker_that_names_no_offset(self) -> None:
        """It comes after one with an empty log."""
        self.live_and_lose({2: {"maxOffset": ""}, 3: {"maxOffset": "0"}})
        self.assertEqual(self.group.master_id, 3)

    def live_and_lose(self, beats: dict[int, dict[str, str]]) -> None:
        """Lose the master while these live with an epoch and an offset, but for these changes; empty: not there."""
        for _ in range(24):
            for broker_id, changes in beats.items():
                fields = {"epoch": "1", "maxOffset": "10", **changes}
                self.beat(broker_id, **{key: value for key, value in fields.items() if value})
            self.talk.reactor.advance(0.5)

    def test_the_master_stays(self) -> None:
        """A master that lives stays, whatever others have."""
        candidates = {1: (1, 10, 9), 2: (1, 99, 1)}
        self.assertEqual(choose_master(self.group, candidates, wanted=None, unclean=False), 1)

    def test_only_of_the_set(self) -> None:
        """A better broker outside of the SyncStateSet is not chosen."""
        self.assertEqual(self.alter(1, 2, set_epoch=2).code, 0)
        self.assertEqual(self.chosen({2: (1, 10, 9), 3: (1, 5000, 1)}), 2)

    def test_unclean(self) -> None:
        """With enableElectUncleanMaster one outside of the set is chosen, but only if nobody in it lives."""
        self.set_config("enableElectUncleanMaster=true")
        self.assertEqual(self.alter(1, 2, set_epoch=2).code, 0)
        self.assertEqual(self.chosen({2: (1, 10, 9), 3: (1, 5000, 1)}), 2)
        self.channels.clear()
        self.assertEqual(self.chosen({3: (1, 5000, 1), 4: (1, 5001, 1)}), 4)
        self.assertEqual(self.state(), (4, 3, [4], 5))


class HeartbeatTests(ControllerCase):
    def lost_after(self, **changes: str) -> float:
        """Return how long after its last heartbeat the master is replaced."""
        self.whole(2)
        self.beat(1, **changes)
        for tenths in range(1, 400):
            self.beat(2)
            self.talk.reactor.advance(0.1)
            if self.group.master_id == 2:
                return tenths / 10
        raise AssertionError("the master was not replaced")

    def test_its_own_timeout(self) -> None:
        """A broker says itself after which silence it is lost; the scan comes each second."""
        self.assertBetween(self.lost_after(heartbeatTimeoutMills="4000"), 4.0, 5.0)

    def test_the_usual_timeout(self) -> None:
        """Without a timeout it is lost after 10 s."""
        self.assertBetween(self.lost_after(), 10.0, 11.0)

    def test_a_senseless_timeout(self) -> None:
        """One that is not above 0 counts as none."""
        self.assertBetween(self.lost_after(heartbeatTimeoutMills="0"), 10.0, 11.0)

    def assertBetween(self, value: float, low: float, high: float) -> None:
        self.assertTrue(low <= round(value, 3) <= high + 0.101, value)

    def close(self, broker_id: int) -> None:
        controller = self.talk.service.controller
        assert controller is not None
        controller.channel_closed(self.channels.pop(broker_id))

    def test_a_closed_connection(self) -> None:
        """A master whose connection closed is lost after 2.5 s without another heartbeat, not before."""
        self.whole(2)
        self.talk.reactor.advance(0.25)
        self.beat(2)
        self.close(1)
        self.live_s(CLOSED_TIMEOUT_MS / 1000 - 0.5, 2)
        self.assertEqual(self.group.master_id, 1)
        self.live_s(2, 2)
        self.assertEqual(self.group.master_id, 2)

    def test_a_new_connection_in_time(self) -> None:
        """A master that is heard by another connection soon after stays master."""
        self.whole(2)
        self.close(1)
        self.live_s(1, 2)
        self.live_s(5, 1, 2)
        self.assertEqual(self.group.master_id, 1)

    def test_an_old_connection(self) -> None:
        """The end of a connection by which a broker is heard no longer does not matter."""
        self.whole(2)
        old = self.channels.pop(1)
        self.beat(1)
        controller = self.talk.service.controller
        assert controller is not None
        controller.channel_closed(old)
        self.live_s(4, 2)
        self.assertEqual(self.group.master_id, 1)

    def test_a_closed_connection_does_not_prolong(self) -> None:
        """A broker that would be lost sooner is not heard longer because its connection closes."""
        self.whole(2)
        self.beat(1, heartbeatTimeoutMills="1000")
        self.close(1)
        self.live_s(2, 2)
        self.assertEqual(self.group.master_id, 2)

    def probed(self) -> tuple[str, Any]:
        """Return which address the controller tries after a connection closed, and the factory of that attempt."""
        self.talk.reactor.advance(PROBE_AFTER_S - 0.01)
        self.assertEqual(self.talk.reactor.tcpClients, [])
        self.talk.reactor.advance(0.01)
        ((host, port, factory, *_),) = self.talk.reactor.tcpClients
        self.talk.reactor.tcpClients.clear()
        return f"{host}:{port}", factory

    def test_a_port_that_refuses(self) -> None:
        """A master whose connection closed and whose port refuses connections is replaced at once."""
        self.whole(2)
        self.close(1)
        addr, factory = self.probed()
        self.assertEqual((addr, self.group.master_id), (address(1), 1))
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))
        self.assertEqual(self.state(), (2, 2, [2], 3))
        self.assertFalse(self.lives(1))
        self.assertEqual(list(self.notices()), [address(2)])

    def test_a_port_that_does_not_refuse(self) -> None:
        """A port that accepts, or does not answer, proves nothing: 2.5 s pass as without the attempt."""
        for error in (None, TimeoutError(), NoRouteError(), DNSLookupError()):
            with self.subTest(error=error):
                self.setUp()
                self.whole(2)
                self.close(1)
                _, factory = self.probed()
                if error is not None:
                    factory.clientConnectionFailed(None, Failure(error))
                else:
                    protocol, transport = factory.buildProtocol(None), StringTransport()
                    protocol.makeConnection(transport)
                    self.assertTrue(transport.disconnecting)
                    protocol.connectionLost(Failure(ConnectionDone()))
                self.live_s(1.5, 2)
                self.assertEqual(self.group.master_id, 1)
                self.live_s(2.5, 2)
                self.assertEqual(self.group.master_id, 2)

    def test_a_refusal_that_comes_late(self) -> None:
        """A master that is heard again before its port refuses, or that is none any more, is not replaced."""
        self.whole(2)
        self.close(1)
        _, factory = self.probed()
        self.beat(1)
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))
        self.assertEqual(self.group.master_id, 1)
        self.assertTrue(self.lives(1))
        self.close(1)
        self.beat(1)
        self.talk.reactor.advance(PROBE_AFTER_S)
        self.assertEqual(self.talk.reactor.tcpClients, [])
        self.close(1)
        _, factory = self.probed()
        self.assertEqual(self.force(2).code, 0)
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))
        self.assertEqual(self.state()[:2], (2, 2))

    def test_the_end_of_a_slave(self) -> None:
        """Only a master is tried."""
        self.whole(2)
        self.close(2)
        self.talk.reactor.advance(PROBE_AFTER_S)
        self.assertEqual(self.talk.reactor.tcpClients, [])

    def test_brokers_that_end_together(self) -> None:
        """Nobody is elected who would be alone in the SyncStateSet, and dead."""
        self.whole(2)
        self.close(1)
        self.talk.reactor.advance(PROBE_AFTER_S / 2)
        self.close(2)
        self.talk.reactor.advance(PROBE_AFTER_S / 2)
        factory: Any = self.talk.reactor.tcpClients[0][2]
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))
        self.assertEqual(self.state()[0::2], (None, [1, 2]))

    def test_a_refusal_soon_after_the_start(self) -> None:
        """A controller that has just started is patient with who is silent, not with who is gone."""
        self.whole(2)
        self.restart()
        self.live_s(1, 1, 2)
        self.close(1)
        _, factory = self.probed()
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))
        self.assertEqual(self.group.master_id, 2)
        self.beat(1)
        self.assertTrue(self.lives(1))

    def lives(self, broker_id: int) -> bool:
        controller = self.talk.service.controller
        assert controller is not None
        return controller.lives("pair", broker_id)

    def test_a_stop_while_a_port_is_tried(self) -> None:
        """Neither the pause nor the attempt outlives the NameServer, and no error is logged."""
        for pause_s in (0.0, PROBE_AFTER_S):
            self.setUp()
            self.whole(2)
            self.close(1)
            self.talk.reactor.advance(pause_s)
            with capturedLogs() as events:
                self.successResultOf(self.talk.service.stopService())
            self.assertEqual([event for event in events if "log_failure" in event], [])
            self.talk.reactor.advance(60)
            self.assertEqual(self.talk.reactor.getDelayedCalls(), [])

    def test_a_real_connection(self) -> None:
        """The NameServer notices the end of a connection that carried a heartbeat."""
        self.whole(2)
        _, factory, *_ = self.talk.reactor.tcpServers[0]
        transport = StringTransport()
        protocol = factory.buildProtocol(transport.getPeer())
        assert protocol is not None
        protocol.makeConnection(transport)
        fields = {**GROUP, "brokerId": "1", "brokerAddr": address(1)}
        protocol.dataReceived(encode_command(RemotingCommand(BROKER_HEARTBEAT.code, 1, ext_fields=fields)))
        (answer,) = decode_commands(transport.value())
        self.assertEqual(answer.code, 0)
        protocol.connectionLost(Failure(ConnectionDone()))
        self.live_s(4, 2)
        self.assertEqual(self.group.master_id, 2)

    def test_brokers_without_an_id(self) -> None:
        """Heartbeats of an unknown group, of an unknown id, and without an id are answered and count for nothing."""
        self.apply(1)
        for changes in ({"brokerName": "other"}, {"brokerId": "7"}):
            self.assertEqual(self.beat(1, **changes).code, 0)
        fields = {**GROUP, "brokerAddr": address(1)}
        self.assertEqual(self.talk.ask(BROKER_HEARTBEAT, fields).code, 0)
        controller = self.talk.service.controller
        assert controller is not None
        lives = [controller.lives(name, one) for name, one in (("pair", 1), ("pair", 7), ("other", 1), ("pair", None))]
        self.assertEqual(lives, [False] * 4)


class ScanTests(ControllerCase):
    def test_a_late_scan_elects_nobody(self) -> None:
        """A controller that was stopped waits 10 s for heartbeats that it did not read, then elects."""
        self.whole(2)
        with capturedLogs() as logs:
            self.talk.reactor.advance(60)
        (line,) = [one for one in logs if "the controller was stopped" in one["log_format"]]
        self.assertEqual(line["late_s"], 59.0)
        self.live_s(9, 2)
        self.assertEqual(self.state(), (1, 1, [1, 2], 2))
        self.live_s(3, 2)
        self.assertEqual(self.state()[:2], (2, 2))

    def test_a_scan_that_is_a_little_late(self) -> None:
        """A scan one second late is none of these."""
        self.whole(2)
        self.live_s(9, 2)
        self.talk.reactor.advance(2)
        self.beat(2)
        self.talk.reactor.advance(1)
        self.assertEqual(self.group.master_id, 2)

    def test_the_others_are_heard_again(self) -> None:
        """After a late scan a slave that was heard before is not lost at once."""
        self.whole(2)
        self.talk.reactor.advance(60)
        self.assertTrue(self.talk.service.controller and self.talk.service.controller.lives("pair", 2))


class DiskTests(ControllerCase):
    def test_restart(self) -> None:
        """All is there after a restart: ids, check codes, addresses, master, set, and both epochs."""
        self.whole(2)
        self.apply(3, "10.0.0.3:10911;99")
        before = self.group
        self.restart()
        self.assertEqual(self.group, before)
        self.assertEqual(self.apply(3, "10.0.0.3:10911;99").code, 0)
        self.refused(self.apply(3, "10.0.0.3:10911;98"), ResponseCode.CONTROLLER_BROKER_ID_INVALID)

    def test_several_groups(self) -> None:
        """Groups of other names are kept beside it."""
        self.whole()
        self.apply(1, brokerName="other")
        self.restart()
        table = self.body(self.talk.ask(CONTROLLER_GET_SYNC_STATE_DATA, None, b'["pair","other"]'))
        self.assertEqual(sorted(table["replicasInfoTable"]), ["other", "pair"])

    def test_patience_after_a_restart(self) -> None:
        """A controller that has just begun elects nobody for 10 s; a master that is heard in this time stays."""
        self.whole(2)
        self.restart()
        self.live_s(9, 2)
        self.refused(self.elect(2), ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        self.assertEqual(self.group.master_id, 1)
        self.live_s(20, 1, 2)
        self.assertEqual(self.state(), (1, 1, [1, 2], 2))

    def test_a_master_that_is_not_heard_after_a_restart(self) -> None:
        """When the 10 s are over, another one becomes master."""
        self.whole(2)
        self.restart()
        self.live_s(12, 2)
        self.assertEqual(self.state(), (2, 2, [2], 3))

    def test_a_disk_that_fails(self) -> None:
        """When a change cannot be written it is refused with code 1, and there is none: neither here nor on disk."""
        self.whole(2)
        before = self.group
        path = self.talk.path("controller")

        def fails(disk: RealDisk, where: str, data: bytes, *, keep_backup: bool = False) -> None:
            self.assertTrue(where.startswith(path), where)
            raise failing(where, "No space left on device")

        failing: type[DiskError] = DiskError
        broken = self.patch(RealDisk, "write_atomic", fails)
        self.assertEqual(self.apply(1).code, 0)  # nothing changes, so nothing is written
        changes = {
            "1013": lambda: self.apply(3),
            "1003": lambda: self.register(2, brokerAddress="10.8.8.8:1"),
            "1002": lambda: self.force(2),
            "1001": lambda: self.alter(1, set_epoch=2),
            "1011": lambda: self.clean("2", isCleanLivingBroker="true"),
        }
        for (name, change), failing in itertools.product(changes.items(), (SyncFailed, DiskError)):
            with self.subTest(name):
                kept = "may be found at the next start" if failing is SyncFailed else "nothing was changed"
                self.assertIn(kept, self.refused(change(), ResponseCode.SYSTEM_ERROR))
                self.assertEqual(self.group, before)
        self.assertEqual(self.notices(), {})
        self.live_s(12, 2)
        self.assertEqual(self.group, before)
        broken.restore()
        self.live_s(1, 2)
        self.assertEqual(self.state(), (2, 2, [2], 3))
        self.assertEqual(sorted(self.notices()), [address(2)])

    def start_with(self, **contents: bytes | None) -> str:
        """Start with other files in the state's directory (None: without); return why that was refused."""
        self.successResultOf(self.talk.service.stopService())
        for name, content in contents.items():
            path = self.talk.path(f"controller/replicas.json{'.bak' if name == 'bak' else ''}")
            if content is None:
                os.unlink(path)
            else:
                with open(path, "wb") as file:
                    file.write(content)
        return str(self.assertRaises(StateFileError, self.talk.restart().startService))

    def test_a_damaged_file(self) -> None:
        """A state that cannot be read stops the start: without it another broker would become master."""
        self.whole()
        for content in (b"", b"{", b'{"groups":[{"brokerName":1}]}', bytes(100)):
            self.assertIn("replicas.json: ", self.start_with(state=content))

    def test_no_older_state(self) -> None:
        """The backup of a damaged or missing file is not used: one of its SyncStateSet may lack messages by now."""
        self.whole(2)
        self.alter(1, set_epoch=2)
        with open(self.talk.path("controller/replicas.json.bak"), encoding="utf-8") as file:
            self.assertEqual(msgspec.json.decode(file.read())["groups"][0]["syncStateSet"], [1, 2])
        self.assertIn("is older", self.start_with(state=b"{"))
        self.assertIn("is missing", self.start_with(state=None))


class NoticeTests(ControllerCase):
    def test_a_new_master(self) -> None:
        """Every broker of the group that lives gets a one-way notice of the new master, both epochs and the set."""
        self.whole(2, 3)
        self.live_s(11, 2, 1)
        self.force(2)
        notices = self.notices()
        self.assertEqual(sorted(notices), [address(1), address(2)])
        fields = {"masterBrokerId": "2", "masterAddress": address(2), "masterEpoch": "2", "syncStateSetEpoch": "3"}
        for notice in notices.values():
            self.assertEqual((notice.code, notice.is_oneway), (NOTIFY_BROKER_ROLE_CHANGED.code, True))
            self.assertEqual(dict(notice.ext_fields), fields)
            self.assertEqual(self.body(notice), {"syncStateSet": [2], "syncStateSetEpoch": 3})

    def test_switched_off(self) -> None:
        """Without notifyBrokerRoleChanged brokers find the master themselves."""
        self.whole(2)
        self.set_config("notifyBrokerRoleChanged=false")
        self.assertEqual(self.force(2).code, 0)
        self.assertEqual(self.notices(), {})

    def test_on_disk_first(self) -> None:
        """Whoever is notified of a master finds it in the state file."""
        self.whole(2)
        written: list[str] = []
        write = RealDisk.write_atomic

        def noted(disk: RealDisk, path: str, data: bytes, *, keep_backup: bool = False) -> None:
            self.assertEqual(self.talk.reactor.tcpClients, [])
            write(disk, path, data, keep_backup=keep_backup)
            written.append(path)

        self.patch(RealDisk, "write_atomic", noted)
        self.force(2)
        self.assertEqual(written, [self.talk.path("controller/replicas.json")])
        self.assertEqual(len(self.notices()), 2)


class ToolTests(ControllerCase):
    def test_sync_state_data(self) -> None:
        """1006: for each known group of the list the master, the brokers in and outside of the set, and who lives."""
        self.whole(2)
        self.apply(3)
        self.live_s(11, 1)
        answer = self.talk.ask(CONTROLLER_GET_SYNC_STATE_DATA, None, b'["pair","unknown"]')

        def replica(broker_id: int, *, alive: bool) -> dict[str, object]:
            where = {"brokerName": "pair", "brokerId": broker_id, "brokerAddress": address(broker_id)}
            return {**where, "alive": alive}

        info = {
            "masterBrokerId": 1,
            "masterAddress": address(1),
            "masterEpoch": 1,
            "syncStateSetEpoch": 2,
            "inSyncReplicas": [replica(1, alive=True), replica(2, alive=False)],
            "notInSyncReplicas": [replica(3, alive=False)],
        }
        self.assertEqual(self.body(answer), {"replicasInfoTable": {"pair": info}})

    def test_no_list(self) -> None:
        """An empty body or list asks for all groups; one that is no list of names is refused."""
        self.whole(2)
        for nothing in (None, b"[]"):  # all of them
            everything = self.body(self.talk.ask(CONTROLLER_GET_SYNC_STATE_DATA, None, nothing))
            self.assertEqual(list(everything["replicasInfoTable"]), ["pair"])
        answer = self.talk.ask(CONTROLLER_GET_SYNC_STATE_DATA, None, b'{"pair":1}')
        self.assertIn("list of names", self.refused(answer, ResponseCode.SYSTEM_ERROR))

    def test_configuration(self) -> None:
        """1009 and 1010: a tool reads the controller's keys and changes some, for the next start too."""
        self.set_config("enableElectUncleanMaster=true")
        text = (self.talk.ask(GET_CONTROLLER_CONFIG).body or b"").decode()
        self.assertIn("enableElectUncleanMaster=true\n", text)
        self.assertIn(f"controllerStorePath={self.talk.path('controller')}\n", text)
        with open(self.talk.path("namesrv.properties"), encoding="utf-8") as file:
            self.assertIn("enableElectUncleanMaster=true\n", file.read())

    def test_configuration_that_is_refused(self) -> None:
        """A bad value and the path of the state are not changed over the network."""
        before = self.talk.ask(GET_CONTROLLER_CONFIG).body
        for text, code in (("notifyBrokerRoleChanged=perhaps", 1), ("controllerStorePath=/tmp/other", 16)):
            self.assertEqual(self.talk.ask(UPDATE_CONTROLLER_CONFIG, None, text.encode()).code, code)
        self.assertEqual(self.talk.ask(GET_CONTROLLER_CONFIG).body, before)


class CleanTests(ControllerCase):
    CODE = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA

    def test_refusals(self) -> None:
        """1011: an unknown group, no id, a broker that lives, and a whole group that has a master."""
        self.assertIn("not existed", self.refused(self.clean("1"), self.CODE))
        self.whole(2)
        before = self.group
        self.assertIn("no list of ids", self.refused(self.clean("1;x"), self.CODE))
        self.assertIn("[pair,  2] is still alive", self.refused(self.clean("2"), self.CODE))
        self.assertIn("pair is still alive", self.refused(self.clean(), self.CODE))
        self.assertEqual(self.group, before)

    def test_one_that_is_gone(self) -> None:
        """A broker that is not heard is forgotten, also from the SyncStateSet; the others stay."""
        self.whole(2, 3)
        self.live_s(11, 1, 3)
        self.assertEqual(self.clean("2").code, 0)
        self.assertEqual((sorted(self.group.members), self.state()), ([1, 3], (1, 1, [1, 3], 3)))
        self.refused(self.register(2), ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        self.restart()
        self.assertEqual(sorted(self.group.members), [1, 3])

    def test_its_id_is_not_given_again(self) -> None:
        """A forgotten broker may come back: its id is no other broker's by then, also after a restart."""
        self.whole(2, 3)
        self.clean("3", isCleanLivingBroker="true")
        self.restart()
        self.assertEqual(self.fields(self.next_id())["nextBrokerId"], "4")
        self.refused(self.register(3), ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        self.apply(4)
        self.assertEqual(self.fields(self.next_id())["nextBrokerId"], "5")

    def test_old_requests_after_it(self) -> None:
        """The set has changed, so its epoch has: a request of the master from before changes nothing."""
        self.whole(2, 3)
        self.live_s(11, 1, 3)
        self.clean("2")
        self.refused(self.alter(1, set_epoch=2), ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH)

    def test_one_outside_of_the_set(self) -> None:
        """Forgetting it begins an epoch of the set: a request to count it may be on its way."""
        self.whole(2)
        self.apply(3)
        *before, set_epoch = self.state()
        self.assertEqual(self.clean("3").code, 0)
        self.assertEqual(self.state(), (*before, set_epoch + 1))

    def test_the_master(self) -> None:
        """A master that lives is forgotten if the tool insists; the next scan makes another one master."""
        self.whole(2)
        self.assertEqual(self.clean("1", isCleanLivingBroker="true").code, 0)
        self.assertEqual(self.state(), (None, 2, [2], 3))
        self.live_s(1, 1, 2)
        self.assertEqual(self.state(), (2, 3, [2], 4))

    def test_the_whole_group(self) -> None:
        """Without ids, or with all of them, the group is forgotten, and begins again."""
        for ids in ("", "1;2"):
            self.whole(2)
            self.assertEqual(self.clean(ids, isCleanLivingBroker="true").code, 0)
            self.refused(self.replica_info(), ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
            self.assertEqual(self.fields(self.next_id())["nextBrokerId"], "1")

    def test_a_group_without_a_master(self) -> None:
        """It may be forgotten without insisting."""
        self.apply(1)
        self.assertEqual(self.clean().code, 0)
        self.refused(self.replica_info(), ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)

    def test_it_is_not_heard_any_more(self) -> None:
        """A forgotten broker that takes its id again has not been heard yet."""
        self.whole(2)
        self.clean("2", isCleanLivingBroker="true")
        self.apply(2)
        self.refused(self.alter(1, 2, set_epoch=3), ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)


class WatchTests(ControllerCase):
    """What an operator sees of the groups: metrics and the status page."""

    def scraped(self) -> dict[str, str]:
        text = generate_latest(NamesrvCollector(self.talk.service)).decode()
        lines = [line for line in text.splitlines() if line.startswith("rocketmq_controller")]
        return {name.partition("_controller_")[2]: value for name, _, value in (line.rpartition(" ") for line in lines)}

    def page(self) -> str:
        return text_of(namesrv_face(self.talk.service).pages["/"]({}))

    def test_nothing(self) -> None:
        """A controller without groups says so; a NameServer that is none does not speak of it."""
        self.assertEqual(self.scraped(), {})
        self.assertIn("Elected masters no broker has registered at this controller", self.page())
        plain = Talk(self.mktemp())
        self.assertNotIn("Elected masters", text_of(namesrv_face(plain.service).pages["/"]({})))
        self.assertNotIn(b"rocketmq_controller_has_master{", generate_latest(NamesrvCollector(plain.service)))

    def test_a_pair(self) -> None:
        """Master, SyncStateSet, who lives, epochs; then a lost master that nobody can replace."""
        for broker_id in (1, 2):
            self.apply(broker_id)
            self.register(broker_id)
        self.live_s(1, 1, 2)
        self.elect(1)
        labels = 'broker_name="pair",cluster="C"'
        expected = {
            f"has_master{{{labels}}}": "1.0",
            f'brokers{{{labels},state="registered"}}': "2.0",
            f'brokers{{{labels},state="alive"}}': "2.0",
            f'brokers{{{labels},state="in_sync"}}': "1.0",
            f"master_epoch{{{labels}}}": "1.0",
            f"elections_total{{{labels}}}": "1.0",
        }
        self.assertEqual(self.scraped(), expected)
        page = self.page()
        self.assertIn("C pair 1 10.0.0.1:10911 master alive 1 1", page)
        self.assertIn("C pair 2 10.0.0.2:10911 not in sync alive 1 1", page)
        self.live_s(DEFAULT_TIMEOUT_MS / 1000 + 2, 2)
        expected[f"has_master{{{labels}}}"] = "0.0"
        expected[f'brokers{{{labels},state="alive"}}'] = "1.0"
        expected[f"master_epoch{{{labels}}}"] = "2.0"
        self.assertEqual(self.scraped(), expected)
        page = self.page()
        self.assertIn("C pair 1 10.0.0.1:10911 in sync not heard 2", page)
        self.assertIn("no master: nobody of the SyncStateSet lives", page)
