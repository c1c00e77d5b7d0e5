"""A pair of brokers whose master a controller elects: ours or Apache's 5.3.3."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.ports import free_port
from tests.real.peers import OURS, Broker, Process, Site, until
from tests.real.probe import Probe, fastjson

TOPIC = "Elected"
QUEUES = 4
NAME = "elected"


class Elected:
    """A NameServer that is the controller too, and two brokers in controller mode."""

    def __init__(self, site: Site, controller: str, brokers: str, *, prefix: str = "", **config: Any) -> None:
        """``config`` are further keys of the brokers' properties; names of processes begin with ``prefix``."""
        self.site = site
        dledger = free_port()
        self.namesrv: Process = site.namesrv(
            controller,
            f"{prefix}namesrv",
            enableControllerInNamesrv=True,
            controllerStorePath=site.root / f"{prefix}controller",
            controllerDLegerGroup="controllers",
            controllerDLegerPeers=f"n0-127.0.0.1:{dledger}",
            controllerDLegerSelfId="n0",
        )
        self.controller = self.namesrv.addr if controller == OURS else f"127.0.0.1:{dledger}"
        self.brokers = [self._broker(brokers, f"{prefix}broker-{number}", config) for number in (1, 2)]
        # One after the other: the first one becomes master.
        for broker in self.brokers:
            broker.start()
            until(f"{broker.name} is registered", partial(self.has, broker), seconds=90)
        self.master, self.slave = self.brokers
        self.wait_for(self.master)

    def _broker(self, kind: str, name: str, config: dict[str, Any]) -> Broker:
        return self.site.broker(
            kind,
            self.namesrv.addr,
            name,
            start=False,
            brokerName=NAME,
            enableControllerMode=True,
            controllerAddr=self.controller,
            allAckInSyncStateSet=True,
            brokerRole="SYNC_MASTER",
            slaveReadEnable=True,
            **config,
        )

    def addrs(self) -> dict[str, str]:
        """Return the addresses of the group by broker id, as the NameServer has them."""
        with Probe(int(self.namesrv.addr.rpartition(":")[2])) as probe:
            table = probe.cluster()["brokerAddrTable"].get(NAME, {"brokerAddrs": {}})
        return {str(broker_id): str(addr) for broker_id, addr in table["brokerAddrs"].items()}

    def has(self, broker: Broker) -> bool:
        return broker.addr in self.addrs().values()

    def wait_for(self, master: Broker) -> None:
        until(f"{master.name} is master", lambda: self.addrs().get("0") == master.addr, seconds=90)

    def in_sync(self) -> set[str]:
        """Return the addresses of the SyncStateSet, as the controller has them (1006)."""
        with Probe(int(self.controller.rpartition(":")[2])) as probe:
            table = fastjson(probe.must(1006, body=json.dumps([NAME]).encode()).body)["replicasInfoTable"]
        replicas = table.get(NAME, {"inSyncReplicas": []})["inSyncReplicas"]
        return {replica["brokerAddress"] for replica in replicas}

    def wait_whole(self) -> None:
        until("both are in the SyncStateSet", lambda: len(self.in_sync()) == 2, seconds=120)

    def send(self, broker: Broker, first: int, count: int) -> None:
        with broker.probe() as probe:
            for number in range(first, first + count):
                answer = probe.send_message(TOPIC, number % QUEUES, b"%d " % number * 30, KEYS=f"k{number}")
                assert answer.code == 0, answer

    def read(self, broker: Broker) -> set[int]:
        """Return the numbers of the messages that a broker has."""
        with broker.probe() as probe:
            records = [record for queue in range(QUEUES) for record in probe.read_queue(TOPIC, queue)]
        return {int(bytes(record.body).split()[0]) for record in records}
