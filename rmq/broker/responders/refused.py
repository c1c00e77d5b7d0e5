"""
Every known request code that the broker does not answer.

The remark of the refusal (code 3) has the reason. Codes that Apache's 4.9 broker refuses too have none, so that
their remark is Apache's to the letter.
"""

from __future__ import annotations

from rmq.wire.codes import RequestCode

_NAMESRV = "a NameServer answers this"
_CLIENT = "a client answers this"
_POP = "pop consumption is not supported"
_FIVE = ""

REFUSED: dict[RequestCode, str] = {
    # refused by Apache's 4.9 broker, too: unused constants
    RequestCode.QUERY_BROKER_OFFSET: "",
    RequestCode.GET_TOPIC_CONFIG_LIST: "",
    RequestCode.GET_TOPIC_NAME_LIST: "",
    RequestCode.TRIGGER_DELETE_FILES: "",
    RequestCode.SUSPEND_CONSUMER: "",
    RequestCode.RESUME_CONSUMER: "",
    RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER: "",
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER: "",
    RequestCode.ADJUST_CONSUMER_THREAD_POOL: "",
    RequestCode.WHO_CONSUME_THE_MESSAGE: "",
    RequestCode.REGISTER_FILTER_SERVER: "",
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS: "",
    # answered by NameServers and clients
    RequestCode.CHECK_TRANSACTION_STATE: _CLIENT,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _CLIENT,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _CLIENT,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: _CLIENT,
    RequestCode.PUT_KV_CONFIG: _NAMESRV,
    RequestCode.GET_KV_CONFIG: _NAMESRV,
    RequestCode.DELETE_KV_CONFIG: _NAMESRV,
    RequestCode.REGISTER_BROKER: _NAMESRV,
    RequestCode.UNREGISTER_BROKER: _NAMESRV,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _NAMESRV,
    RequestCode.GET_BROKER_CLUSTER_INFO: _NAMESRV,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _NAMESRV,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _NAMESRV,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _NAMESRV,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _NAMESRV,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _NAMESRV,
    RequestCode.GET_TOPICS_BY_CLUSTER: _NAMESRV,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _NAMESRV,
    RequestCode.GET_UNIT_TOPIC_LIST: _NAMESRV,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _NAMESRV,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG: _NAMESRV,
    RequestCode.GET_NAMESRV_CONFIG: _NAMESRV,
    RequestCode.QUERY_DATA_VERSION: _NAMESRV,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _NAMESRV,
    RequestCode.GET_BROKER_MEMBER_GROUP: _NAMESRV,
    RequestCode.BROKER_HEARTBEAT: _NAMESRV,
    RequestCode.EXPLAIN_ROUTE: _NAMESRV,
    # 5.x
    RequestCode.GET_CLIENT_CONFIG: _FIVE,
    RequestCode.GET_TIMER_CHECK_POINT: _FIVE,
    RequestCode.GET_TIMER_METRICS: _FIVE,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _FIVE,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _FIVE,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _FIVE,
    RequestCode.RECALL_MESSAGE: _FIVE,
    RequestCode.QUERY_ASSIGNMENT: _POP,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _POP,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _FIVE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _FIVE,
    RequestCode.ADD_BROKER: _FIVE,
    RequestCode.REMOVE_BROKER: _FIVE,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _FIVE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _FIVE,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _FIVE,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: _FIVE,
    RequestCode.CONTROLLER_ELECT_MASTER: _FIVE,
    RequestCode.CONTROLLER_REGISTER_BROKER: _FIVE,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: _FIVE,
    RequestCode.CONTROLLER_GET_METADATA_INFO: _FIVE,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: _FIVE,
    RequestCode.UPDATE_CONTROLLER_CONFIG: _FIVE,
    RequestCode.GET_CONTROLLER_CONFIG: _FIVE,
    RequestCode.CLEAN_BROKER_DATA: _FIVE,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: _FIVE,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: _FIVE,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _FIVE,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _FIVE,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _FIVE,
    RequestCode.SET_COMMITLOG_READ_MODE: _FIVE,
    RequestCode.AUTH_CREATE_USER: _FIVE,
    RequestCode.AUTH_UPDATE_USER: _FIVE,
    RequestCode.AUTH_DELETE_USER: _FIVE,
    RequestCode.AUTH_GET_USER: _FIVE,
    RequestCode.AUTH_LIST_USER: _FIVE,
    RequestCode.AUTH_CREATE_ACL: _FIVE,
    RequestCode.AUTH_UPDATE_ACL: _FIVE,
    RequestCode.AUTH_DELETE_ACL: _FIVE,
    RequestCode.AUTH_GET_ACL: _FIVE,
    RequestCode.AUTH_LIST_ACL: _FIVE,
    RequestCode.POP_MESSAGE: _POP,
    RequestCode.ACK_MESSAGE: _POP,
    RequestCode.PEEK_MESSAGE: _POP,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    RequestCode.NOTIFICATION: _POP,
    RequestCode.POLLING_INFO: _POP,
    RequestCode.POP_ROLLBACK: _POP,
    RequestCode.BATCH_ACK_MESSAGE: _POP,
}

#: refused beside these where no controller elects the master
WITHOUT_CONTROLLER: dict[RequestCode, str] = {
    RequestCode.GET_BROKER_EPOCH_CACHE: _FIVE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _FIVE,
}
