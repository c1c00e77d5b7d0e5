"""
Replication of the commit log from a master to its slaves, on a TCP port of its own.

A slave dials its master, reports the offset up to which it holds the log, and gets the bytes from there on; each report
acknowledges what it holds. The wire format is Apache's, so either side may be an Apache broker of 4.9 or 5.x.

Read in this order:

* `stream`: the bytes of both directions; `session`: limits, actions, and why a connection ends
* `master`, `slave`: one connection of each side as a machine without sockets, timers and files
* `acks`: what each slave has acknowledged, the quorum, and the puts that wait for it
* `hub`: the master's connections; `follower`: the slave's one connection; `output`: how frames leave
* `service`: all of it as a service of a broker; `status`: what metrics, pages and commands show
* `rejoin`: ``python -m rmq.ha.rejoin``, an old master after a failover: divergence, truncation

What always holds:

* A report counts only while its connection lives, and only for bytes that this master can have sent.
* A pending put is completed exactly once: when a quorum holds it, at its deadline, when too few slaves are left, or at
  the stop.
* A slave appends only bytes that continue its log, and compares what it already has: it never overwrites.
* Whatever ends a connection, the slave dials again after a pause.

docs/replication.md has the guarantees with their tests, the options, and what to do after a failover.
"""
