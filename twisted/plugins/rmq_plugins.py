"""What `twistd` finds of rmq: the two commands ``rmq-namesrv`` and ``rmq-broker``."""

from twisted.application.service import ServiceMaker

namesrv = ServiceMaker(
    "rmq NameServer",
    "rmq.namesrv.tap",
    "An Apache RocketMQ compatible NameServer.",
    "rmq-namesrv",
)

broker = ServiceMaker(
    "rmq Broker",
    "rmq.broker.tap",
    "An Apache RocketMQ compatible Broker (ASYNC_MASTER, SYNC_MASTER or SLAVE).",
    "rmq-broker",
)
