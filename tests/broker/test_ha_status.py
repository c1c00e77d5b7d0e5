"""Code 907: what mqadmin's haStatus prints, from what replication knows."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.responders.replication import runtime_info
from rmq.ha.master import MasterState
from rmq.ha.session import CloseKind
from rmq.ha.status import ACK_LATENCY_MS, HAStatus, LinkStatus, SlaveStatus
from rmq.runtime.histogram import Histogram
from rmq.wire import fastjson
from rmq.wire.api.replication import HARuntimeInfo

SLAVE = SlaveStatus(
    addr="10.0.0.2:41000",
    state=MasterState.TRANSFER,
    connected_ms=1_700_000_000_000,
    request_offset=100,
    ack_offset=900,
    next_offset=1000,
    lag_bytes=124,
    lag_seconds=1.23456,
    in_sync=True,
    sent_bytes=900,
    bytes_per_second=2048,
    ack_latency_ms=0.98765,
)
LINK = LinkStatus(
    master_addr="10.0.0.1:10912",
    connected=True,
    connected_ms=5,
    frames=7,
    last_read_ms=1_700_000_001_000,
    last_write_ms=1_700_000_002_000,
    bytes_per_second=4096,
    refused=2,
    last_error="offset mismatch",
)


def status(**changes: Any) -> HAStatus:
    values = HAStatus(
        is_slave=False,
        end_offset=1024,
        slaves=(SLAVE, attrs.evolve(SLAVE, addr="10.0.0.3:41000", in_sync=False, lag_bytes=700)),
        waiting_connections=1,
        refused=3,
        refusals={CloseKind.AHEAD: 3},
        last_refusal="10.0.0.4:1: slave ahead of its master: both offsets",
        pending_puts=4,
        timeouts=5,
        ack_latency_ms=Histogram(ACK_LATENCY_MS),
        link=None,
    )
    return attrs.evolve(values, **changes)


class RuntimeInfoTests(SynchronousTestCase):
    def test_a_master_tells_of_its_slaves(self) -> None:
        """Names and meanings are Apache's; lag in seconds, latency and refusals stand beside them."""
        info = runtime_info(status())
        self.assertEqual(
            (info.master, info.master_commit_log_max_offset, info.in_sync_slave_nums, len(info.ha_connection_info)),
            (True, 1024, 1, 2),
        )
        text = fastjson.encode(info).decode()
        for words in (
            '"master":true',
            '"masterCommitLogMaxOffset":1024',
            '"inSyncSlaveNums":1',
            '"addr":"10.0.0.2:41000"',
            '"slaveAckOffset":900',
            '"diff":124',
            '"inSync":true',
            '"transferredByteInSecond":2048',
            '"transferFromWhere":1000',
            '"lagSeconds":1.235',
            '"ackLatencyMillis":0.988',
            '"refused":3',
            '"pendingPuts":4',
        ):
            self.assertIn(words, text)

    def test_a_slave_tells_of_its_master(self) -> None:
        """The address, where its log ends, and when it heard and spoke last."""
        info = runtime_info(status(is_slave=True, slaves=(), link=LINK))
        self.assertFalse(info.master)
        client = fastjson.decode(fastjson.encode(info), HARuntimeInfo).ha_client_runtime_info
        self.assertEqual(
            (client.master_addr, client.max_offset, client.last_read_timestamp, client.last_write_timestamp),
            ("10.0.0.1:10912", 1024, 1_700_000_001_000, 1_700_000_002_000),
        )
        self.assertEqual((client.activated, client.last_error, client.refused), (True, "offset mismatch", 2))

    def test_a_slave_without_a_master(self) -> None:
        """mqadmin prints an empty address, not an exception."""
        lost = attrs.evolve(LINK, master_addr=None, connected=False)
        self.assertEqual(runtime_info(status(is_slave=True, link=lost)).ha_client_runtime_info.master_addr, "")
        self.assertEqual(runtime_info(status(is_slave=True)).ha_client_runtime_info.max_offset, 1024)

    def test_lag_of_all(self) -> None:
        """The largest lag is the one that metrics show; without slaves there is none."""
        self.assertEqual((status().max_lag_bytes, status(slaves=()).max_lag_bytes), (700, 0))
