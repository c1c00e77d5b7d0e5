"""``python -m rmq``: what this package is, and where it was imported from; other distributions have an ``rmq`` too."""

from __future__ import annotations

import os

import rmq

TEXT = """\
{distribution} {version}: a client, NameServer and broker for Apache RocketMQ (not RabbitMQ)
imported from {folder}

rmq-local                 a NameServer, a master and a slave on this machine
rmq-admin                 topics, groups, messages and brokers from the command line
rmq-namesrv, rmq-broker   one server each, with the options of twistd
rmq-audit                 compares the stores of replicas
rmq.aio, rmq.tx, rmq.blocking   the client for asyncio, Twisted and threads"""


def text() -> str:
    return TEXT.format(
        distribution=rmq.DISTRIBUTION, version=rmq.__version__, folder=os.path.dirname(os.path.abspath(rmq.__file__))
    )


if __name__ == "__main__":
    print(text())
