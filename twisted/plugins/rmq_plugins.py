"""The plugins of `twistd`: the commands ``rmq-namesrv`` and ``rmq-broker``, and their fast reactor ``rmq-lean``."""

from twisted.application.reactors import Reactor
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

lean_reactor = Reactor(
    "rmq-lean",
    "rmq.runtime.leanreactor",
    "epoll(7) with TCP connections that send at once; the fast one for rmq-namesrv and rmq-broker (Linux).",
)
