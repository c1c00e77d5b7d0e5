"""
The names of commands: nouns with their modules, and the names that mqadmin has for them.

Kept apart from the commands, so that a module is imported only when one of its commands is called.
"""

from __future__ import annotations

#: noun -> (modules in rmq.admin.commands, help); a noun without verbs is a command itself
NOUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "topic": (
        ("topic", "ping"),
        "topics: list, show, route, create, perm, order, stats, clusters, allocate, ping, delete",
    ),
    "group": (
        ("group",),
        "consumer groups: list, show, members, status, config, lag, create, reset, skip, clone, delete",
    ),
    "producer": (("producer",), "producers: list, members of a group"),
    "produce": (("produce",), "send messages: -m TEXT, -f FILE, or the lines of standard input"),
    "consume": (("consume",), "consume a topic as a member of a group, or have a program do it"),
    "tail": (("tail",), "print the messages of a topic, without joining a group"),
    "message": (("message",), "messages: show by id, find by key, trace, at an offset, index of a queue, decode an id"),
    "dlq": (("dlq",), "dead-letter queues: list, show, resend"),
    "cluster": (("cluster", "ping"), "clusters: list, ping"),
    "broker": (
        ("broker", "ping"),
        "show, config, set, drain, undrain, ping, clean-topics, clean-queues, clean-log",
    ),
    "namesrv": (("namesrv",), "NameServers: config, set"),
    "kv": (("namesrv",), "the key-value table of NameServers: list, get, set, delete"),
    "acl": (("acl",), "accounts of brokers: version, show, set, delete, whitelist"),
    "export": (("export",), "a cluster as JSON: metadata, configs, metrics"),
    "monitor": (("monitor",), "print a line for each group that is behind, again and again"),
    "route": (("explain", "routediff", "routedump"), "what NameServers know: explain, diff, dump"),
    "ha": (("hastatus",), "replication: status"),
    "controller": (("controller",), "groups whose masters a controller elects: show, elect, forget"),
    "context": (("context",), "clusters with a name, for this user: add, list, show, use, remove"),
    "completion": (("completion",), "completion of shells: bash, zsh, fish; the names that it offers: names"),
    "config": (("config",), "property files of servers: check"),
}

#: name in mqadmin, or of rmq-admin before it had nouns -> command
ALIASES: dict[str, str] = {
    "addWritePerm": "broker undrain",
    "allocateMQ": "topic allocate",
    "brokerConsumeStats": "group lag",
    "brokerStatus": "broker show",
    "checkMsgSendRT": "topic ping",
    "cleanExpiredCQ": "broker clean-queues",
    "cleanUnusedTopic": "broker clean-topics",
    "cloneGroupOffset": "group clone",
    "clusterAclConfigVersion": "acl version",
    "clusterList": "cluster list",
    "clusterRT": "cluster ping",
    "consumerConnection": "group members",
    "consumerProgress": "group list",
    "consumerStatus": "group status",
    "deleteAclConfig": "acl delete",
    "deleteExpiredCommitLog": "broker clean-log",
    "deleteKvConfig": "kv delete",
    "deleteSubGroup": "group delete",
    "deleteTopic": "topic delete",
    "explain": "route explain",
    "exportConfigs": "export configs",
    "exportMetadata": "export metadata",
    "exportMetrics": "export metrics",
    "getAclConfig": "acl show",
    "getBrokerConfig": "broker config",
    "getConsumerConfig": "group config",
    "getNamesrvConfig": "namesrv config",
    "haStatus": "ha status",
    "producer": "producer list",
    "producerConnection": "producer members",
    "queryCq": "message index",
    "queryMsgById": "message show",
    "queryMsgByKey": "message find",
    "queryMsgByOffset": "message at",
    "queryMsgByUniqueKey": "message show",
    "queryMsgTraceById": "message trace",
    "resetOffsetByTime": "group reset",
    "routeDiff": "route diff",
    "routeDump": "route dump",
    "sendMessage": "produce",
    "sendMsgStatus": "broker ping",
    "skipAccumulatedMessage": "group skip",
    "startMonitoring": "monitor",
    "statsAll": "topic stats",
    "topicClusterList": "topic clusters",
    "topicList": "topic list",
    "topicRoute": "topic route",
    "topicStatus": "topic show",
    "updateAclConfig": "acl set",
    "updateBrokerConfig": "broker set",
    "updateGlobalWhiteAddr": "acl whitelist",
    "updateKvConfig": "kv set",
    "updateNamesrvConfig": "namesrv set",
    "updateOrderConf": "topic order",
    "updateSubGroup": "group create",
    "updateTopic": "topic create",
    "updateTopicPerm": "topic perm",
    "wipeWritePerm": "broker drain",
}

#: name in mqadmin that is no alias, since its letters contradict others -> what does its work
INSTEAD: dict[str, str] = {
    "consumeMessage": "tail TOPIC --from WHERE --count N --exit",
    "printMsg": "tail TOPIC --from begin --exit",
    "printMsgByQueue": "tail TOPIC -q BROKER:ID --from begin --exit",
}

_CONTROLLER = "it is for 5.x's controllers: see rmq-admin controller show, controller elect, controller forget"
_ACTING = "it is for slaves of 5.x that act as master; there are none here"
_ACL_2 = "it is for ACL 2.0 of 5.x; accounts of plain_acl.yml are: rmq-admin acl show, acl set, acl delete"
_STATIC = "it is for static topics of 5.x, which no broker here has"
_COLD = "it is for reads of cold data in brokers of 5.x"
_ROCKSDB = "it is for stores of 5.x in RocksDB"
_CONTAINER = "it is for broker containers of 5.x"
_ONE_BY_ONE = "it sends many at once; rmq-admin {} takes one at a time"

#: name in mqadmin 5.3.3 that is neither -> why
NOT_HERE: dict[str, str] = {
    **dict.fromkeys(
        ("cleanBrokerMetadata", "electMaster", "getBrokerEpoch", "getControllerConfig", "getControllerMetaData",
         "getSyncStateSet", "updateControllerConfig"),
        _CONTROLLER,
    ),
    "resetMasterFlushOffset": _ACTING,
    **dict.fromkeys(
        ("copyAcl", "copyUser", "createAcl", "createUser", "deleteAcl", "deleteUser", "getAcl", "getUser", "listAcl",
         "listUser", "updateAcl", "updateUser"),
        _ACL_2,
    ),
    **dict.fromkeys(("remappingStaticTopic", "updateStaticTopic"), _STATIC),
    **dict.fromkeys(
        ("getColdDataFlowCtrInfo", "removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode",
         "updateColdDataFlowCtrGroupConfig"),
        _COLD,
    ),
    **dict.fromkeys(("checkRocksdbCqWriteProgress", "exportMetadataInRocksDB", "rocksDBConfigToJson"), _ROCKSDB),
    **dict.fromkeys(("addBroker", "removeBroker"), _CONTAINER),
    "dumpCompactionLog": "it reads files of compaction topics, which 5.x has",
    "exportPopRecord": "it is for pop consumption, which 5.x has",
    "setConsumeMode": "it is for pop consumption, which 5.x has",
    "updateSubGroupList": _ONE_BY_ONE.format("group create"),
    "updateTopicList": _ONE_BY_ONE.format("topic create"),
}  # fmt: skip
