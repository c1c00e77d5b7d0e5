"""Broker keys that only RocketMQ 5.x knows: a properties file of a 5.x broker loads, and these have no effect."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class BrokerConfig5x:
    """
    Every value is kept as text, None when absent.

    Java: BrokerConfig, BrokerIdentity of 5.3.3
    """

    recover_concurrently: str | None = None
    lite_pull_message_thread_pool_nums: str | None = None
    ack_message_thread_pool_nums: str | None = None
    load_balance_processor_thread_pool_nums: str | None = None
    recover_thread_pool_nums: str | None = None
    fetch_name_srv_addr_by_dns_lookup: str | None = None
    lite_pull_thread_pool_queue_capacity: str | None = None
    ack_thread_pool_queue_capacity: str | None = None
    admin_broker_thread_pool_queue_capacity: str | None = None
    load_balance_thread_pool_queue_capacity: str | None = None
    commercial_size_per_msg: str | None = None
    account_stats_enable: str | None = None
    account_stats_print_zero_values: str | None = None
    max_stats_idle_time_in_minutes: str | None = None
    send_heartbeat_timeout_millis: str | None = None
    wait_time_mills_in_lite_pull_queue: str | None = None
    wait_time_mills_in_ack_queue: str | None = None
    wait_time_mills_in_admin_broker_queue: str | None = None
    reject_pull_consumer_enable: str | None = None
    update_name_server_addr_period: str | None = None
    broker_heartbeat_interval: str | None = None
    broker_not_active_timeout_millis: str | None = None
    enable_net_work_flow_control: str | None = None
    enable_broadcast_offset_store: str | None = None
    broadcast_offset_expire_second: str | None = None
    broadcast_offset_expire_max_second: str | None = None
    pop_polling_size: str | None = None
    pop_polling_map_size: str | None = None
    max_pop_polling_size: str | None = None
    revive_queue_num: str | None = None
    revive_interval: str | None = None
    revive_max_slow: str | None = None
    revive_scan_time: str | None = None
    enable_skip_long_awaiting_ack: str | None = None
    revive_ack_wait_ms: str | None = None
    enable_pop_log: str | None = None
    enable_pop_buffer_merge: str | None = None
    pop_ck_stay_buffer_time: str | None = None
    pop_ck_stay_buffer_time_out: str | None = None
    pop_ck_max_buffer_size: str | None = None
    pop_ck_offset_max_queue_size: str | None = None
    enable_pop_batch_ack: str | None = None
    pop_long_polling_force_notify_interval: str | None = None
    enable_notify_before_pop_calculate_lag: str | None = None
    enable_notify_after_pop_order_lock_release: str | None = None
    init_pop_offset_by_check_msg_in_mem: str | None = None
    retrieve_message_from_pop_retry_topic_v1: str | None = None
    enable_retry_topic_v2: str | None = None
    pop_from_retry_probability: str | None = None
    pop_consumer_fs_service_init: str | None = attrs.field(default=None, metadata={"key": "popConsumerFSServiceInit"})
    pop_consumer_kv_service_log: str | None = attrs.field(default=None, metadata={"key": "popConsumerKVServiceLog"})
    pop_consumer_kv_service_init: str | None = attrs.field(default=None, metadata={"key": "popConsumerKVServiceInit"})
    pop_consumer_kv_service_enable: str | None = attrs.field(
        default=None, metadata={"key": "popConsumerKVServiceEnable"}
    )
    pop_revive_max_return_size_per_read: str | None = None
    pop_revive_max_attempt_times: str | None = None
    real_time_notify_consumer_change: str | None = None
    lite_pull_message_enable: str | None = None
    sync_broker_member_group_period: str | None = None
    load_balance_poll_name_server_interval: str | None = None
    clean_offline_broker_interval: str | None = None
    server_load_balancer_enable: str | None = None
    default_message_request_mode: str | None = None
    default_pop_share_queue_num: str | None = None
    transaction_metric_flush_interval: str | None = None
    transaction_op_msg_max_size: str | None = None
    transaction_op_batch_interval: str | None = None
    forward_timeout: str | None = None
    enable_slave_acting_master: str | None = None
    enable_remote_escape: str | None = None
    skip_pre_online: str | None = None
    async_send_enable: str | None = None
    use_server_side_reset_offset: str | None = None
    consumer_offset_update_version_step: str | None = None
    delay_offset_update_version_step: str | None = None
    lock_in_strict_mode: str | None = None
    compatible_with_old_name_srv: str | None = None
    enable_controller_mode: str | None = None
    controller_addr: str | None = None
    fetch_controller_addr_by_dns_lookup: str | None = None
    sync_broker_metadata_period: str | None = None
    check_sync_state_set_period: str | None = None
    sync_controller_metadata_period: str | None = None
    controller_heart_beat_timeout_mills: str | None = None
    validate_system_topic_when_update_topic: str | None = None
    broker_election_priority: str | None = None
    use_static_subscription: str | None = None
    metrics_exporter_type: str | None = None
    metrics_otel_cardinality_limit: str | None = None
    metrics_grpc_exporter_target: str | None = None
    metrics_grpc_exporter_header: str | None = None
    metric_grpc_exporter_time_out_in_mills: str | None = None
    metric_grpc_exporter_interval_in_mills: str | None = None
    metric_logging_exporter_interval_in_mills: str | None = None
    metrics_prom_exporter_port: str | None = None
    metrics_prom_exporter_host: str | None = None
    metrics_label: str | None = None
    metrics_in_delta: str | None = None
    channel_expired_timeout: str | None = None
    subscription_expired_timeout: str | None = None
    estimate_accumulation: str | None = None
    cold_ctr_strategy_enable: str | None = None
    use_pid_cold_ctr_strategy: str | None = attrs.field(default=None, metadata={"key": "usePIDColdCtrStrategy"})
    cg_cold_read_threshold: str | None = None
    global_cold_read_threshold: str | None = None
    fetch_namesrv_addr_interval: str | None = None
    pop_response_return_actual_retry_topic: str | None = None
    enable_single_topic_register: str | None = None
    enable_mixed_message_type: str | None = None
    enable_split_registration: str | None = None
    pop_inflight_message_threshold: str | None = None
    enable_pop_message_threshold: str | None = None
    enable_fast_channel_event_process: str | None = None
    print_channel_groups: str | None = None
    print_channel_groups_min_num: str | None = None
    split_registration_size: str | None = None
    skip_when_ck_re_put_reach_max_times: str | None = attrs.field(
        default=None, metadata={"key": "skipWhenCKRePutReachMaxTimes"}
    )
    append_ack_async: str | None = None
    append_ck_async: str | None = None
    clear_retry_topic_when_delete_topic: str | None = None
    enable_lmq_stats: str | None = None
    config_manager_version: str | None = None
    allow_recall_when_broker_not_writeable: str | None = None
    recall_message_enable: str | None = None
    enable_register_producer: str | None = None
    enable_create_sys_group: str | None = None
