"""Configuration of the store and of replication.  Java: MessageStoreConfig"""

from __future__ import annotations

import enum
import os
from typing import Any

import attrs

from rmq.store import layout


class BrokerRole(enum.Enum):
    """What a broker is in its group."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(enum.Enum):
    """When a producer gets its answer: after the sync, or after the write."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


def _bytes(default: int, doc: str, lowest: int, highest: int = (1 << 31) - 1, *, local: bool = False) -> int:
    value: int = attrs.field(default=default, metadata={"doc": doc, "range": (lowest, highest), "local": local})
    return value


def _millis(default: int, doc: str, lowest: int = 1) -> int:
    value: int = attrs.field(default=default, metadata={"doc": doc, "range": (lowest, None)})
    return value


def _count(default: int, doc: str, lowest: int = 0, highest: int | None = None, *, local: bool = False) -> int:
    value: int = attrs.field(default=default, metadata={"doc": doc, "range": (lowest, highest), "local": local})
    return value


def _local(default: Any, doc: str = "", **metadata: Any) -> Any:
    """A key that no request changes over the network: where files are, which form they have, who replicates."""
    return attrs.field(default=default, metadata={"doc": doc, "local": True, **metadata})


@attrs.frozen(kw_only=True)
class StoreConfig:
    """
    The keys that Apache 4.9 and 5.x share, with their defaults; sizes are bytes, times milliseconds unless said.

    Keys below "accepted" change nothing here: they belong to mechanisms of the Java broker that this store does not
    need or does not have. ``MessageStore.load`` names those that are set to something it cannot honour.
    """

    store_path_root_dir: str = _local(
        os.path.join(os.path.expanduser("~"), "store"), "root of the store", important=True
    )
    store_path_commit_log: str | None = _local(
        None, "folder of the commit log, <root>/commitlog when empty", important=True
    )
    mapped_file_size_commit_log: int = _bytes(
        1 << 30, "length of a commit log file; equal on master and slave", 4096, local=True
    )
    mapped_file_size_consume_queue: int = _bytes(300_000 * 20, "length of a consume queue file", 20, local=True)
    enable_consume_queue_ext: bool = _local(
        False, "keep tagsCode and store time of each unit in extension files, as 4.x can"
    )
    mapped_file_size_consume_queue_ext: int = _bytes(48 << 20, "length of an extension file", 64, local=True)
    broker_role: BrokerRole = attrs.field(default=BrokerRole.ASYNC_MASTER, metadata={"important": True, "local": True})
    flush_disk_type: FlushDiskType = attrs.field(default=FlushDiskType.ASYNC_FLUSH, metadata={"important": True})

    # writing
    max_message_size: int = _bytes(4 << 20, "longest message body", 10)
    sync_flush_timeout: int = _millis(5000, "how long a producer waits for the sync")
    slave_timeout: int = _millis(3000, "how long a producer waits for a slave")
    os_page_cache_busy_time_out_mills: int = _millis(
        1000, "an fsync that takes longer, with 256 MiB waiting, refuses sends with SYSTEM_BUSY"
    )
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    # flushing
    flush_interval_commit_log: int = _millis(500, "pause between syncs with ASYNC_FLUSH")
    flush_commit_log_least_pages: int = _count(4, "dirty pages of 4 KiB that make a sync worth it")
    flush_commit_log_thorough_interval: int = _millis(10_000, "after so long any dirty byte is synced", 0)
    flush_interval_consume_queue: int = _millis(1000, "pause between writes of consume queues and index")
    flush_consume_queue_thorough_interval: int = _millis(60_000, "pause between syncs of them and the checkpoint", 0)

    # index
    message_index_enable: bool = True
    max_hash_slot_num: int = _count(5_000_000, "slots of an index file", 1, 500_000_000, local=True)
    max_index_num: int = _count(5_000_000 * 4, "entries of an index file", 2, 107_000_000, local=True)
    max_msgs_num_batch: int = _count(64, "most messages of one query", 1)
    message_index_safe: bool = False

    # reading
    max_transfer_bytes_on_message_in_memory: int = _bytes(262_144, "size of a pull of recent messages", 1)
    max_transfer_count_on_message_in_memory: int = _count(32, "messages of a pull of recent ones", 1)
    max_transfer_bytes_on_message_in_disk: int = _bytes(65_536, "size of a pull of old messages", 1)
    max_transfer_count_on_message_in_disk: int = _count(8, "messages of a pull of old ones", 1)
    access_message_in_memory_max_ratio: int = _count(40, "percent of the memory whose amount of log is recent", 0, 100)
    max_filter_message_size: int = _count(16_000, "bytes of consume queue that one pull may scan", 20)
    offset_check_in_slave: bool = False
    default_query_max_num: int = _count(32, "messages of a query that names no number", 1)

    # recovery
    check_crc_on_recover: bool = attrs.field(default=True, metadata={"key": "checkCRCOnRecover"})

    # cleaning
    clean_resource_interval: int = _millis(10_000, "pause between looks for expired files")
    delete_when: str = attrs.field(default="04", metadata={"doc": "hours of the day, separated by `;`"})
    file_reserved_time: int = _count(72, "hours that a full commit log file stays")
    disk_max_used_space_ratio: int = _count(75, "percent used from which expired files go at any hour")
    disk_space_warning_level_ratio: int = _count(90, "percent used from which nothing is written")
    disk_space_clean_forcibly_ratio: int = _count(85, "percent used from which files go before their time")
    clean_file_forcibly_enable: bool = True
    delete_file_batch_max: int = _count(10, "commit log files deleted in one go", 1)

    # replication
    ha_listen_port: int = _count(10_912, "replication port; the broker takes listenPort + 1", 0, 65_535, local=True)
    ha_send_heartbeat_interval: int = _millis(5000, "pause after which an idle master or slave says something")
    ha_housekeeping_interval: int = _millis(20_000, "silence after which a replication connection is closed")
    ha_transfer_batch_size: int = _bytes(32_768, "most bytes of one replication frame", 1)
    ha_master_address: str | None = _local(None)
    ha_transfer_flushed_only: bool = attrs.field(
        default=False, metadata={"doc": "send slaves only what is on this master's disk"}
    )
    ha_ack_after_flush: bool = attrs.field(
        default=False, metadata={"doc": "a slave acknowledges what is on its disk, not what it has written"}
    )
    ha_tls_enable: bool = _local(False, "TLS between our own brokers on the HA port, with the certificates of tls.*")
    ha_allowed_peers: str = _local("", "networks (CIDR) and addresses that may use the HA port; empty: everybody")
    ha_slave_fallbehind_max: int = _count(1 << 28, "bytes that a slave may lag and still count for SYNC_MASTER")
    in_sync_replicas: int = _count(
        1, "brokers that have a message before a SYNC_MASTER answers; see the documentation", 1
    )
    all_ack_in_sync_state_set: bool = _local(
        False, "with enableControllerMode always true: a send is answered when each broker of the SyncStateSet has it"
    )
    ha_max_time_slave_not_catchup: int = _millis(
        15_000, "with enableControllerMode: a slave that has lagged for so long leaves the SyncStateSet"
    )
    duplication_enable: bool = _local(False)

    # delayed messages
    flush_delay_offset_interval: int = _millis(10_000, "pause between writes of delayOffset.json")

    # accepted
    store_path_dledger_commit_log: str | None = _local(None, key="storePathDLedgerCommitLog")
    read_only_commit_log_store_paths: str | None = _local(None)
    bit_map_length_consume_queue_ext: int = _local(64)
    commit_interval_commit_log: int = 200
    use_reentrant_lock_when_put_message: bool = True
    flush_commit_log_timed: bool = True
    delete_commit_log_files_interval: int = 100
    delete_consume_queue_files_interval: int = 100
    destroy_maped_file_interval_forcibly: int = 120_000
    redelete_hanged_file_interval: int = 120_000
    put_msg_index_hight_water: int = 600_000
    commit_commit_log_least_pages: int = 4
    flush_least_pages_when_warm_maped_file: int = 4096
    flush_consume_queue_least_pages: int = 2
    commit_commit_log_thorough_interval: int = 200
    warm_maped_file_enable: bool = False
    debug_lock_enable: bool = False
    disk_fall_recorded: bool = True
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    enable_d_leger_commit_log: bool = _local(False, key="enableDLegerCommitLog")
    d_leger_group: str | None = _local(None)
    d_leger_peers: str | None = _local(None)
    d_leger_self_id: str | None = _local(None)
    preferred_leader_id: str | None = _local(None)
    enable_batch_push: bool = False
    enable_schedule_message_stats: bool = True
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000
    enable_schedule_async_deliver: bool = False
    schedule_async_deliver_max_pending_limit: int = 2000
    schedule_async_deliver_max_resend_num2_blocked: int = 3
    timer_wheel_enable: bool = False
    store_type: str = _local("default")

    @property
    def commit_log_dir(self) -> str:
        """The folder of the commit log."""
        return self.store_path_commit_log or layout.commit_log_dir(self.store_path_root_dir)

    @property
    def consume_queue_file_bytes(self) -> int:
        """The true length of consume queue files."""
        return layout.consume_queue_file_bytes(self.mapped_file_size_consume_queue)

    @property
    def hides_unconfirmed(self) -> bool:
        """Whether nobody may see a message before it is on disk, or on the slaves that count."""
        return self.is_sync_flush or self.all_ack_in_sync_state_set

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    def unsupported(self) -> list[tuple[str, str]]:
        """Return (key, what happens instead) for every setting that this store cannot honour."""
        found = []
        if "," in self.commit_log_dir:
            found.append(("storePathCommitLog", "several folders are not supported"))
        if self.read_only_commit_log_store_paths:
            found.append(("readOnlyCommitLogStorePaths", "the commit log has one folder"))
        if self.transient_store_pool_enable:
            found.append(("transientStorePoolEnable", "messages go straight to the file, so there is nothing to pool"))
        if self.enable_d_leger_commit_log:
            found.append(("enableDLegerCommitLog", "the classic commit log is used"))
        if self.duplication_enable:
            found.append(("duplicationEnable", "it is treated as false"))
        return found
