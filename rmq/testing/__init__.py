"""
Servers for the tests of programs that use RocketMQ: a NameServer and brokers in a process that is ready in a second.

    from rmq.testing import cluster

    with cluster() as mq, mq.client() as client:
        client.producer().send(Message(mq.topic("orders"), b"hello"))

docs/testing-kit.md has examples. This package is the face for programs without a loop; `aio` is that for asyncio, `tx`
that for Twisted, with the servers in the reactor of the test. `plugin` has fixtures for pytest.

Read in this order:

* `blocking`: what is imported from here
* `handle`: names, messages and faults, for all faces; the processes
* `aio`, `tx`: the other faces
* `server`: the process, and `control`, its HTTP port for other languages; `servers`: what runs in it
* `faults`: what goes wrong on purpose
* `external`: a cluster that runs elsewhere
* `simulation`: servers and clients in simulated time
* `plugin`: for pytest; `strategies`: messages for hypothesis

What always holds: ports are free ones, files are temporary, and nothing is left after the end of the program, however
it ends. Nothing outside of this package imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq.testing.blocking import Cluster, IsolatedCluster, cluster, isolated_cluster
    from rmq.testing.handle import Fault, ServerFailed

__all__ = ["Cluster", "Fault", "IsolatedCluster", "ServerFailed", "cluster", "isolated_cluster"]


def __getattr__(name: str) -> Any:
    """Import at the first use: pytest imports this package in each run, for the plugin."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("rmq.testing.blocking"), name)
