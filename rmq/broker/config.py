"""
The broker's configuration: Apache's BrokerConfig, NettyServerConfig and NettyClientConfig, and how they fit together.

One properties file feeds them and the store's config; see :func:`resolve` for what depends on what.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import attrs

from rmq.broker.config5x import BrokerConfig5x
from rmq.ha.service import AllowedPeers
from rmq.remoting.access import AccessSetup, check_white_list
from rmq.runtime.config import ConfigError, refuse_brackets
from rmq.runtime.platform import join_addr, split_addr
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.dispatch import delay_levels
from rmq.store.messages import StoreError
from rmq.store.retention import hours_of


def _key(
    default: Any,
    doc: str = "",
    *,
    key: str | None = None,
    low: int | None = None,
    high: int | None = None,
    important: bool = False,
    local: bool = False,
) -> Any:
    metadata: dict[str, Any] = {"doc": doc, "range": (low, high), "important": important, "local": local}
    if key is not None:
        metadata["key"] = key
    return attrs.field(default=default, metadata=metadata)


def _unused(default: Any, *, local: bool = False) -> Any:
    """A key that existing files have and that has no effect here; ``local`` if it is local in Apache."""
    return _key(default, "no effect", local=local)


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """
    Times in milliseconds, sizes in bytes. Numbers of threads and most queue capacities are accepted and have no effect.

    Java: BrokerConfig of 4.9.8
    """

    rocketmq_home: str | None = _key(
        None,
        "conf/plain_acl.yml and conf/acl below it hold the accounts when aclFile is not given; default: ROCKETMQ_HOME "
        "in the environment",
        local=True,
    )
    namesrv_addr: str | None = _key(None, "NameServers, host:port;host:port", important=True, local=True)
    broker_ip1: str | None = _key(
        None,
        "address or host name that clients use; default: this host's first address",
        key="brokerIP1",
        important=True,
        local=True,
    )
    broker_ip2: str | None = _key(
        None, "address or host name that slaves use; default: brokerIP1's", key="brokerIP2", important=True, local=True
    )
    broker_name: str | None = _key(None, "name of the replica group; default: host name", important=True, local=True)
    broker_cluster_name: str = _key("DefaultCluster", "name of the cluster", important=True, local=True)
    broker_id: int = _key(0, "0: master, above: slave", low=0, important=True, local=True)
    broker_permission: int = _key(6, "4 read, 2 write, 6 both", low=0, high=7)
    default_topic_queue_nums: int = _key(8, "queues of TBW102, the template of automatic topics", low=0)
    auto_create_topic_enable: bool = _key(True, "a send may create its topic", important=True)
    cluster_topic_enable: bool = _key(True, "the topic named like the cluster may be read and written")
    broker_topic_enable: bool = _key(True, "the topic named like the broker may be read and written")
    auto_create_subscription_group: bool = _key(True, "a consumer may create its group", important=True)
    message_store_plug_in: str = _unused("", local=True)
    msg_trace_topic_name: str = _key("RMQ_SYS_TRACE_TOPIC", "where clients send message traces")
    trace_topic_enable: bool = _key(False, "keep message traces in msgTraceTopicName")
    send_message_thread_pool_nums: int = _unused(4)
    put_message_future_thread_pool_nums: int = _unused(4)
    pull_message_thread_pool_nums: int = _unused(24)
    process_reply_message_thread_pool_nums: int = _unused(24)
    query_message_thread_pool_nums: int = _unused(12)
    admin_broker_thread_pool_nums: int = _unused(16)
    client_manage_thread_pool_nums: int = _unused(32)
    consumer_manage_thread_pool_nums: int = _unused(32)
    heartbeat_thread_pool_nums: int = _unused(4)
    end_transaction_thread_pool_nums: int = _unused(16)
    flush_consumer_offset_interval: int = _key(5000, "how often consumer offsets are persisted", low=100)
    flush_consumer_offset_history_interval: int = _unused(60_000)
    reject_transaction_message: bool = _key(False, "refuse half messages, the first phase of transactions")
    fetch_namesrv_addr_by_address_server: bool = _unused(False, local=True)
    send_thread_pool_queue_capacity: int = _key(
        10_000, "sends that may wait for an fsync; further ones are refused with SYSTEM_BUSY", low=1
    )
    put_thread_pool_queue_capacity: int = _unused(10_000)
    pull_thread_pool_queue_capacity: int = _unused(100_000)
    reply_thread_pool_queue_capacity: int = _key(
        10_000, "replies (324, 325) that may wait to be stored and pushed; further ones are refused", low=1
    )
    query_thread_pool_queue_capacity: int = _unused(20_000)
    client_manager_thread_pool_queue_capacity: int = _unused(1_000_000)
    consumer_manager_thread_pool_queue_capacity: int = _unused(1_000_000)
    heartbeat_thread_pool_queue_capacity: int = _unused(50_000)
    end_transaction_pool_queue_capacity: int = _key(
        100_000, "ends of transactions that may wait for an fsync; further ones are refused with SYSTEM_BUSY", low=1
    )
    filter_server_nums: int = _unused(0, local=True)
    long_polling_enable: bool = _key(True, "hold pulls that find nothing as long as the client asks for")
    short_polling_time_mills: int = _key(1000, "how long pulls are held without long polling", low=1)
    notify_consumer_ids_changed_enable: bool = _key(True, "notify consumers when their group changes")
    high_speed_mode: bool = _unused(False)
    commercial_enable: bool = _unused(True)
    commercial_timer_count: int = _unused(1)
    commercial_trans_count: int = _unused(1)
    commercial_big_count: int = _unused(1)
    commercial_base_count: int = _unused(1)
    transfer_msg_by_heap: bool = _unused(True)
    max_delay_time: int = _unused(40)
    region_id: str = _key("DefaultRegion", "MSG_REGION of every answer to a send")
    register_broker_timeout_mills: int = _key(6000, "timeout of a request to a NameServer", low=1)
    slave_offsets_to_master: bool = _key(
        True,
        "a slave keeps what consumers committed at it while its master was away and tells the master when it is back; "
        "false, as Apache: the master's older offsets win",
    )
    slave_read_enable: bool = _key(False, "let consumers with a large lag read from the slave")
    disable_consume_if_consumer_read_slowly: bool = _unused(False)
    consumer_fallbehind_threshold: int = _unused(17_179_869_184)
    broker_fast_failure_enable: bool = _key(True, "refuse requests with SYSTEM_BUSY while the loop is late")
    wait_time_mills_in_send_queue: int = _key(200, "how late the loop may be before sends are refused", low=1)
    wait_time_mills_in_pull_queue: int = _key(5000, "how late the loop may be before pulls are refused", low=1)
    wait_time_mills_in_heartbeat_queue: int = _key(
        31_000, "how late the loop may be before heartbeats are refused", low=1
    )
    wait_time_mills_in_transaction_queue: int = _key(
        3000, "how late the loop may be before ends of transactions are refused", low=1
    )
    start_accept_send_request_time_stamp: int = _key(0, "epoch ms before which sends are refused")
    trace_on: bool = _key(True, "TRACE_ON of every answer to a send")
    enable_calc_filter_bit_map: bool = _unused(False)
    expect_consumer_num_use_filter: int = _key(32, "groups that the bits in consumerFilter.json are made for")
    max_error_rate_of_bloom_filter: int = _key(20, "percent of groups that these bits may confuse with another")
    filter_data_clean_time_span: int = _key(86_400_000, "ms for which an offline group's SQL92 filter is kept")
    filter_support_retry: bool = _unused(False)
    enable_property_filter: bool = _key(False, "let consumers filter by SQL92 expressions")
    compressed_register: bool = _key(False, "zlib registration bodies")
    force_register: bool = _key(
        True, "register at every period even when nothing changed; slaves always do", important=True
    )
    register_name_server_period: int = _key(30_000, "clamped to 10000..60000", important=True)
    transaction_time_out: int = _key(6000, "age in ms from which half messages are checked", low=0, important=True)
    transaction_check_max: int = _key(15, "half messages checked so often are discarded", low=1, important=True)
    transaction_check_interval: int = _key(60_000, "how often half messages are checked", low=1, important=True)
    acl_enable: bool = _key(False, "authenticate requests by the accounts of aclFile", local=True)
    store_reply_message_enable: bool = _key(True, "store replies (324, 325) too, not only push them to the requester")
    enable_detail_stat: bool = _unused(True)
    auto_delete_unused_stats: bool = _unused(False)
    isolate_log_enable: bool = _unused(False)
    config_black_list: str = _key(
        "configBlackList;brokerConfigPath",
        "more keys that updateBrokerConfig must not change, separated by `;`",
        local=True,
    )
    config_white_list: str = _key(
        "", "keys that updateBrokerConfig may change although docs/security.md lists them, separated by `;`", local=True
    )
    broker_config_path: str | None = _key(None, "no effect: updateBrokerConfig rewrites the file of -c", local=True)
    enable_controller_mode: bool = _key(
        False, "a controller elects the master: brokerRole and brokerId are not used (docs/failover.md)", local=True
    )
    controller_addr: str = _key("", "the controller, host:port", local=True)
    controller_heart_beat_timeout_mills: int = _key(
        10_000, "silence after which the controller gives up this broker", low=2000
    )
    broker_election_priority: int = _key(
        2**31 - 1, "of brokers with equally long logs the one with the smallest becomes master", local=True
    )
    dump_dir: str | None = _key(
        None, "where SIGUSR1 writes consistency dumps; default: <storePathRootDir>-dumps", local=True
    )


@attrs.frozen(kw_only=True)
class NettyServerConfig:
    """
    Where the broker listens; the other keys have no effect.

    Java: NettyServerConfig
    """

    listen_port: int = _key(
        10911,
        "clients; listenPort - 2 is the VIP port, listenPort + 1 the HA port",
        low=3,
        high=65534,
        important=True,
        local=True,
    )
    bind_address: str = _key("0.0.0.0", "local address to listen on", local=True)
    server_worker_threads: int = _unused(8)
    server_callback_executor_threads: int = _unused(0)
    server_selector_threads: int = _unused(3)
    server_oneway_semaphore_value: int = _unused(256)
    server_async_semaphore_value: int = _unused(64)
    server_channel_max_idle_time_seconds: int = _key(
        120, "idle connections are closed after this time", low=1, local=True
    )
    server_socket_snd_buf_size: int = _unused(0)
    server_socket_rcv_buf_size: int = _unused(0)
    write_buffer_high_water_mark: int = _unused(0)
    write_buffer_low_water_mark: int = _unused(0)
    server_socket_backlog: int = _unused(1024)
    server_pooled_byte_buf_allocator_enable: bool = _unused(True)
    server_netty_worker_group_enable: bool = _unused(True)
    use_epoll_native_selector: bool = _unused(False)


@attrs.frozen(kw_only=True)
class NettyClientConfig:
    """
    Accepted and listed because mqadmin's exportConfigs and exportMetrics read them; no effect.

    Java: NettyClientConfig
    """

    client_worker_threads: int = _unused(4)
    client_callback_executor_threads: int = _unused(4)
    client_oneway_semaphore_value: int = _unused(65_535)
    client_async_semaphore_value: int = _unused(65_535)
    connect_timeout_millis: int = _unused(3000)
    channel_not_active_interval: int = _unused(60_000)
    client_channel_max_idle_time_seconds: int = _unused(120)
    client_socket_snd_buf_size: int = _unused(0)
    client_socket_rcv_buf_size: int = _unused(0)
    client_pooled_byte_buf_allocator_enable: bool = _unused(False)
    client_close_socket_if_timeout: bool = _unused(True)
    use_tls: bool = _key(
        False, "connect to NameServers and the master with TLS, as tls.enable", key="useTLS", local=True
    )


#: What one properties file is loaded into, in this order.
CONFIG_CLASSES = (BrokerConfig, NettyServerConfig, NettyClientConfig, StoreConfig, BrokerConfig5x)


@attrs.frozen(kw_only=True)
class BrokerSetup:
    """The whole configuration of a broker. Without arguments: an ASYNC_MASTER with Apache's defaults."""

    broker: BrokerConfig = attrs.field(factory=BrokerConfig)
    server: NettyServerConfig = attrs.field(factory=NettyServerConfig)
    client: NettyClientConfig = attrs.field(factory=NettyClientConfig)
    store: StoreConfig = attrs.field(factory=StoreConfig)
    extra: BrokerConfig5x = attrs.field(factory=BrokerConfig5x)
    access: AccessSetup = attrs.field(factory=AccessSetup)
    #: the IP address of brokerIP1, which may be a name; from :func:`resolve`
    store_address: str = "127.0.0.1"

    @property
    def is_slave(self) -> bool:
        return self.store.broker_role is BrokerRole.SLAVE

    @property
    def address(self) -> str:
        """``brokerIP1:listenPort`` (IPv6 in brackets), by which clients and NameServers know this broker."""
        return join_addr(self.broker.broker_ip1 or "", self.server.listen_port)

    @property
    def store_host(self) -> tuple[bytes, int]:
        """The IP address and port, as they are in the records and message ids of this broker."""
        return _packed(self.store_address), self.server.listen_port

    @property
    def ha_address(self) -> str:
        """``brokerIP2:haListenPort``, where slaves get the commit log."""
        return join_addr(self.broker.broker_ip2 or "", self.store.ha_listen_port)

    @property
    def name(self) -> str:
        """The broker name; never empty after :func:`resolve`."""
        assert self.broker.broker_name is not None
        return self.broker.broker_name

    @property
    def namesrv_addrs(self) -> list[str]:
        """The NameServers, without blanks and empty items."""
        items = (self.broker.namesrv_addr or "").split(";")
        return [item.strip() for item in items if item.strip()]

    @property
    def dump_dir(self) -> str:
        return self.broker.dump_dir or self.store.store_path_root_dir.rstrip("/") + "-dumps"


@lru_cache(maxsize=8)
def _packed(address: str) -> bytes:
    """Each message that no lane takes needs it, and ipaddress takes 5 us for it."""
    return ipaddress.ip_address(address).packed


def resolve(
    setup: BrokerSetup, *, host_address: str, host_name: str, look_up: Callable[[str], str] = str
) -> BrokerSetup:
    """
    Fill in values that depend on the host or on other keys, and refuse what cannot work.

    A master's brokerId becomes 0, haListenPort becomes listenPort + 1. ``look_up`` returns the IP address of a host
    name or raises an OSError; without it names are taken unseen, and a setup with one cannot run. Raises ConfigError,
    whose text begins with the wrong key.
    Java: BrokerStartup#createBrokerController
    """
    broker, store = setup.broker, setup.store
    _refuse_unsupported(setup)
    _check_texts(store)
    # Apache's default mode has no SyncStateSet either, and ignores the key.
    store = attrs.evolve(store, all_ack_in_sync_state_set=broker.enable_controller_mode)
    if broker.enable_controller_mode:
        store = _controlled(broker, store)
    check_white_list(broker.config_white_list, CONFIG_CLASSES)
    if store.broker_role is BrokerRole.SLAVE:
        if broker.broker_id <= 0:
            raise ConfigError(f"brokerRole=SLAVE needs a brokerId above 0, brokerId={broker.broker_id} is a master's")
        broker_id = broker.broker_id
    else:
        broker_id = 0
    ip1 = broker.broker_ip1 or host_address
    store_address = _ip_of("brokerIP1", ip1, look_up)
    refuse_brackets("bindAddress", setup.server.bind_address)
    if broker.broker_ip2:
        _ip_of("brokerIP2", broker.broker_ip2, look_up)
    ha_listen_port = setup.server.listen_port + 1
    if store.broker_role is BrokerRole.SLAVE and store.ha_master_address:
        host, port = split_addr(store.ha_master_address)
        if port == ha_listen_port and host in (ip1, broker.broker_ip2, "localhost", "127.0.0.1", "::1"):
            raise ConfigError(f"haMasterAddress={store.ha_master_address} is the HA port of this slave itself")
    broker = attrs.evolve(
        broker,
        broker_id=broker_id,
        broker_name=broker.broker_name or host_name,
        broker_ip1=ip1,
        broker_ip2=broker.broker_ip2 or ip1,
    )
    store = attrs.evolve(store, ha_listen_port=ha_listen_port)
    return attrs.evolve(setup, broker=broker, store=store, access=_access(setup), store_address=store_address)


def _controlled(broker: BrokerConfig, store: StoreConfig) -> StoreConfig:
    """Return the configuration of the store of a broker whose role a controller decides."""
    if not broker.controller_addr:
        raise ConfigError("enableControllerMode=true needs controllerAddr")
    for addr in broker.controller_addr.split(";"):
        try:
            split_addr(addr.strip())
        except ValueError as error:
            raise ConfigError(f"controllerAddr={broker.controller_addr}: {error}") from None
    if store.ha_master_address:
        raise ConfigError("haMasterAddress: with enableControllerMode=true the controller names the master")
    if store.ha_transfer_flushed_only:
        raise ConfigError("haTransferFlushedOnly=true cannot be used with enableControllerMode=true")
    # Each role sets its own. With SYNC_FLUSH what a broker has acknowledged in either is on its disk: a power failure
    # changes nothing.
    store = attrs.evolve(store, broker_role=BrokerRole.SYNC_MASTER)
    return attrs.evolve(store, ha_ack_after_flush=store.ha_ack_after_flush or store.is_sync_flush)


def second_master(setup: BrokerSetup) -> str | None:
    """
    Return a warning when ``setup`` was probably meant to be a slave's; None otherwise.

    Apache treats such a broker as a master, and so do we; but two masters of one name replace each other's routes.
    """
    broker_id, role = setup.broker.broker_id, setup.store.broker_role
    if role is BrokerRole.SLAVE or broker_id == 0 or setup.broker.enable_controller_mode:
        return None
    return f"brokerId={broker_id} counts as 0, because brokerRole={role.name}; a slave needs brokerRole=SLAVE"


def unreachable(setup: BrokerSetup) -> list[tuple[str, str]]:
    """Return (key, warning) for each address of ``setup`` at which no client can reach the broker."""
    bind = setup.server.bind_address
    listens_on_ipv4_only = bind and ":" not in bind
    found = []
    for key, address in (("brokerIP1", setup.broker.broker_ip1), ("brokerIP2", setup.broker.broker_ip2)):
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:  # a name, or none given
            continue
        if ip.is_unspecified:
            found.append((key, f"{address} is no address that can be dialled"))
        elif ip.version == 6 and listens_on_ipv4_only:
            found.append((key, f"nothing listens at {address}, because bindAddress={bind} is IPv4; try bindAddress=::"))
    return found


def _access(setup: BrokerSetup) -> AccessSetup:
    """Return the access setup, completed by BrokerConfig and NettyClientConfig."""
    access = setup.access
    if setup.broker.acl_enable:
        access = attrs.evolve(access, acl=attrs.evolve(access.acl, acl_enable=True))
    if setup.client.use_tls and access.tls.enable is None:
        access = attrs.evolve(access, tls=attrs.evolve(access.tls, enable=True))
    return access


def _check_texts(store: StoreConfig) -> None:
    """Parse the keys that have a syntax of their own, so that mistakes stop the start."""
    try:
        hours_of(store.delete_when)
        delay_levels(store.message_delay_level)
        AllowedPeers(store.ha_allowed_peers)
    except (StoreError, ValueError) as error:
        raise ConfigError(str(error)) from None
    if store.ha_master_address:
        try:
            split_addr(store.ha_master_address)
        except ValueError:
            raise ConfigError(
                f"haMasterAddress={store.ha_master_address!r} is wrong, host:port of the master's HA port is expected"
            ) from None


def _ip_of(key: str, host: str, look_up: Callable[[str], str]) -> str:
    """Return the IP address of ``host``; a ConfigError when it is neither one nor a name that is known."""
    refuse_brackets(key, host)
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return look_up(host)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{key}={host!r} is no IP address, and no name that this host knows: {error}") from None


def _refuse_unsupported(setup: BrokerSetup) -> None:
    """A start that skipped these would give up what the operator relies on."""
    if setup.store.enable_d_leger_commit_log:
        raise ConfigError("enableDLegerCommitLog=true is not supported; use brokerRole")
    if setup.store.store_type != "default":
        raise ConfigError(
            f"storeType={setup.store.store_type} is not supported: a store in RocksDB cannot be read here"
        )
    if setup.broker.fetch_namesrv_addr_by_address_server and not setup.namesrv_addrs:
        raise ConfigError("fetchNamesrvAddrByAddressServer=true is not supported: set namesrvAddr")
