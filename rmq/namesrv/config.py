"""
Configuration of a NameServer: the keys of Apache's NamesrvConfig (4.9 and 5.x) and NettyServerConfig.

Keys that size Java's threads and buffers are accepted, because files in use hold them, and have no effect here.
"""

from __future__ import annotations

import os
import re
from typing import Any

import attrs

from rmq.remoting.access import AccessSetup
from rmq.runtime.config import ConfigError

_NO_THREADS = "sizes a thread pool in Apache; one thread does everything here"
_UNSUPPORTED = "no effect: not supported"
#: keys of Apache's controllers that mean nothing to one that decides alone
_CONTROLLER_KEYS = """
controllerDLegerGroup controllerDLegerSelfId controllerType controllerThreadPoolNums mappedFileSize isProcessReadEvent
controllerRequestThreadPoolQueueCapacity electMasterMaxRetryCount scanInactiveMasterInterval jRaftControllerRPCAddr
jRaftElectionTimeoutMs jRaftGroupId jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs
"""


def _key(default: Any, doc: str, **metadata: Any) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, **metadata})


def _home_file(*names: str) -> str:
    return os.path.join(os.path.expanduser("~"), *names)


def _default_kv_config_path() -> str:
    return _home_file("namesrv", "kvConfig.json")


def _default_config_store_path() -> str:
    return _home_file("namesrv", "namesrv.properties")


def _path(factory: Any, doc: str) -> Any:
    return attrs.field(factory=factory, metadata={"doc": doc, "local": True})


@attrs.frozen(kw_only=True, eq=False, repr=False)  # unused methods would cost each start a millisecond
class NamesrvConfig:
    """
    Configuration of the NameServer itself.

    Java: NamesrvConfig
    """

    rocketmq_home: str | None = _key(
        None,
        "as a broker's: where the accounts are without aclFile; default: ROCKETMQ_HOME in the environment",
        local=True,
    )
    kv_config_path: str = _path(_default_kv_config_path, "file of the key-value table")
    config_store_path: str = _path(
        _default_config_store_path, "file that updateNamesrvConfig writes; with -c it is the file read at start"
    )
    product_env_name: str = _key("center", _UNSUPPORTED)
    cluster_test: bool = _key(
        False, "this is a test environment: ask the NameServers given with -n (or NAMESRV_ADDR) for unknown topics"
    )
    order_message_enable: bool = _key(False, "put ORDER_TOPIC_CONFIG into routes")
    config_black_list: str = _key(
        "configBlackList;configStorePath;kvConfigPath",
        "more keys that updateNamesrvConfig must not change, separated by `;`",
        local=True,
    )
    config_white_list: str = _key(
        "",
        "keys that updateNamesrvConfig may change although docs/security.md lists them, separated by `;`",
        local=True,
    )
    return_order_topic_config_to_broker: bool = _key(True, "answer registrations with ORDER_TOPIC_CONFIG")
    client_request_thread_pool_nums: int = _key(8, _NO_THREADS)
    default_thread_pool_nums: int = _key(16, _NO_THREADS)
    client_request_thread_pool_queue_capacity: int = _key(50000, _NO_THREADS)
    default_thread_pool_queue_capacity: int = _key(10000, _NO_THREADS)
    # Apache: 10 s, fixed, in 4.9; 5 s in 5.x.
    scan_not_active_broker_interval: int = _key(
        10000, "milliseconds between two scans for silent brokers", range=(1, None)
    )
    un_register_broker_queue_capacity: int = _key(
        3000, "sizes a queue in Apache; brokers are unregistered at once here", key="unRegisterBrokerQueueCapacity"
    )
    support_acting_master: bool = _key(
        False, "show the first slave of a 5.x group without master as its master, for reading"
    )
    notify_min_broker_id_changed: bool = _key(
        False, "notify the brokers of a group (905) when its smallest broker id changes"
    )
    enable_controller_in_namesrv: bool = _key(
        False, "be the controller that elects the masters of groups with enableControllerMode", local=True
    )
    need_wait_for_service: bool = _key(False, "refuse route look-ups for waitSecondsForService after the start")
    delete_topic_with_broker_registration: bool = _key(
        False, "delete topics of a broker that its registration lacks; not with 4.9 brokers, they register parts"
    )
    enable_all_topic_list: bool = _key(True, "answer the list of all topics (206)")
    enable_topic_list: bool = _key(True, "answer the lists of a cluster's and of unit topics (224, 311, 312, 313)")
    wait_seconds_for_service: int = _key(45, "seconds, see needWaitForService", range=(0, None))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NettyServerConfig:
    """
    The listening side.

    Java: NettyServerConfig
    """

    listen_port: int = _key(9876, "port to listen at", range=(0, 65535), local=True)
    bind_address: str = _key("0.0.0.0", "address to listen at", local=True)
    server_worker_threads: int = _key(8, _NO_THREADS)
    server_callback_executor_threads: int = _key(0, _NO_THREADS)
    server_selector_threads: int = _key(3, _NO_THREADS)
    server_oneway_semaphore_value: int = _key(256, "limits requests of the server in Apache; it sends none here")
    server_async_semaphore_value: int = _key(64, "limits requests of the server in Apache; it sends none here")
    server_channel_max_idle_time_seconds: int = _key(
        120,
        "seconds without a byte in either direction after which a connection is closed",
        range=(1, None),
        local=True,
    )
    server_socket_snd_buf_size: int = _key(0, "no effect: the system chooses")
    server_socket_rcv_buf_size: int = _key(0, "no effect: the system chooses")
    write_buffer_high_water_mark: int = _key(0, "no effect")
    write_buffer_low_water_mark: int = _key(0, "no effect")
    server_socket_backlog: int = _key(1024, "no effect: Twisted's backlog is used")
    server_pooled_byte_buf_allocator_enable: bool = _key(True, "no effect")
    server_netty_worker_group_enable: bool = _key(True, "no effect")
    use_epoll_native_selector: bool = _key(False, "no effect: Twisted's reactor decides")
    enable_shutdown_gracefully: bool = _key(False, "no effect")
    shutdown_wait_time_seconds: int = _key(30, "no effect")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ControllerConfig:
    """
    The controller, with enableControllerInNamesrv=true.

    Java: ControllerConfig
    """

    #: what a warning calls keys of 5.x
    FOREIGN_KEYS = frozenset(_CONTROLLER_KEYS.split())

    controller_d_leger_peers: str = _key(
        "",
        "the quorum of Apache's controllers; no effect with one of them, several end the start: one decides alone here",
        key="controllerDLegerPeers",
        local=True,
    )
    j_raft_init_conf: str = _key("", "as controllerDLegerPeers, of jRaft", key="jRaftInitConf", local=True)
    controller_store_path: str = _path(
        lambda: _home_file("namesrv", "controller"),
        "directory of the controller's state; two controllers must not share it",
    )
    enable_elect_unclean_master: bool = _key(
        False, "elect a broker outside of the SyncStateSet when none of it lives: acknowledged messages may be lost"
    )
    notify_broker_role_changed: bool = _key(
        True, "notify the brokers of a group of a new master; else they find it when they ask, every 5 s"
    )


#: In the order in which Apache prints them.
CONFIG_CLASSES: tuple[type, ...] = (NamesrvConfig, NettyServerConfig, ControllerConfig)


def check_controller(namesrv: NamesrvConfig, controller: ControllerConfig) -> None:
    """
    Raise ConfigError for a controller that is to be one of several.

    There is no quorum here: each would elect masters by itself, and a group could get two.
    """
    if not namesrv.enable_controller_in_namesrv:
        return
    for key, text in (
        ("controllerDLegerPeers", controller.controller_d_leger_peers),
        ("jRaftInitConf", controller.j_raft_init_conf),
    ):
        peers = [peer for peer in re.split("[;,]", text) if peer.strip()]
        if len(peers) > 1:
            raise ConfigError(
                f"{key}={text}: {len(peers)} controllers, but controllers form no quorum here: set "
                f"enableControllerInNamesrv=true in one NameServer only, without {key}, and name just that one in "
                "controllerAddr of the brokers"
            )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NamesrvSetup:
    """
    The arguments of :func:`rmq.namesrv.service.build_namesrv`.

    ``extra`` are unknown keys of the configuration file; they are shown and kept. ``production_addrs`` are the
    NameServers (``host:port``) that clusterTest asks.
    """

    namesrv: NamesrvConfig = attrs.field(factory=NamesrvConfig)
    netty: NettyServerConfig = attrs.field(factory=NettyServerConfig)
    controller: ControllerConfig = attrs.field(factory=ControllerConfig)
    extra: dict[str, str] = attrs.field(factory=dict)
    production_addrs: tuple[str, ...] = ()
    access: AccessSetup = attrs.field(factory=AccessSetup)
