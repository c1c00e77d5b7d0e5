"""
The names of commands: nouns with their modules, and the names that mqadmin has for them.

Kept apart from the commands, so that a module is imported only when one of its commands is called.
"""

from __future__ import annotations

#: noun -> (modules in rmq.admin.commands, help); a noun without verbs is a command itself
NOUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "topic": (("topic",), "topics: list, show, route, create, alter, perm, delete"),
    "group": (("group",), "consumer groups: list, show, members, create, reset, skip, clone, delete"),
    "produce": (("produce",), "send messages: -m TEXT, -f FILE, or the lines of standard input"),
    "tail": (("tail",), "print the messages of a topic, without joining a group"),
    "message": (("message",), "messages: show by id, find by key, decode an id"),
    "dlq": (("dlq",), "dead-letter queues: list, show, resend"),
    "cluster": (("cluster",), "clusters: list"),
    "broker": (("broker",), "brokers: show, config, set, drain, undrain"),
    "namesrv": (("namesrv",), "NameServers: config, set"),
    "kv": (("namesrv",), "the key-value table of NameServers: list, get, set, delete"),
    "route": (("explain", "routediff", "routedump"), "what NameServers know: explain, diff, dump"),
    "ha": (("hastatus",), "replication: status"),
    "context": (("context",), "clusters with a name, for this user: add, list, show, use, remove"),
    "config": (("config",), "property files of servers: check"),
}

#: name in mqadmin, or of rmq-admin before it had nouns -> command
ALIASES: dict[str, str] = {
    "addWritePerm": "broker undrain",
    "brokerStatus": "broker show",
    "cloneGroupOffset": "group clone",
    "clusterList": "cluster list",
    "consumerConnection": "group members",
    "consumerProgress": "group list",
    "deleteKvConfig": "kv delete",
    "deleteSubGroup": "group delete",
    "deleteTopic": "topic delete",
    "explain": "route explain",
    "getBrokerConfig": "broker config",
    "getNamesrvConfig": "namesrv config",
    "haStatus": "ha status",
    "queryMsgById": "message show",
    "queryMsgByKey": "message find",
    "queryMsgByUniqueKey": "message show",
    "resetOffsetByTime": "group reset",
    "routeDiff": "route diff",
    "routeDump": "route dump",
    "sendMessage": "produce",
    "skipAccumulatedMessage": "group skip",
    "topicList": "topic list",
    "topicRoute": "topic route",
    "topicStatus": "topic show",
    "updateBrokerConfig": "broker set",
    "updateKvConfig": "kv set",
    "updateNamesrvConfig": "namesrv set",
    "updateSubGroup": "group create",
    "updateTopic": "topic create",
    "updateTopicPerm": "topic perm",
    "wipeWritePerm": "broker drain",
}
