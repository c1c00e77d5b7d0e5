"""
An Apache RocketMQ compatible NameServer and broker with master-slave replication, on Twisted.

Where to begin: docs/architecture.md has the picture and four walks through the code, docs/glossary.md the words. Then
the packages, from bottom to top:

* `wire`: bytes of the protocol and of stored messages to values and back
* `runtime`: reactor, clock, disk, configuration, logs, HTTP port
* `remoting`: requests and replies over TCP, TLS, access control
* `namesrv`: the NameServer, which knows where topics are
* `store`: the message store; `ha`: its replication to slaves
* `broker`: topics, groups, sends and pulls on top of a store
* `admin`: the command ``rmq-admin``; `local`: the command ``rmq-local``
* `sim`: simulated machines, networks and disks for whole clusters in one process

What always holds: a package imports only packages below it (tests/test_architecture.py has the table). Time, disk,
network and random numbers are arguments, so the simulator runs the same code. A public name that mirrors one of
Apache's says so in a line ``Java: Class#method``.
"""

from __future__ import annotations

#: the name on the package index, where `rmq` means RabbitMQ
DISTRIBUTION = "txrocketmq"
__version__ = "0.1.0"
