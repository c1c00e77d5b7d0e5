"""
The answers of a broker, one method for each request code.

A responder is a class with methods marked by ``@responds_to(CONTRACT)``; `rmq.broker.service` builds all of them.

* `sending`: 10, 310, 320; `sendback`: 36 (retries)
* `transactions`: 37, and 323, which has a half message checked again
* `pulling`: 11, 361, answered at once or when a message arrives
* `queries`: single messages by key or offset, units of a queue
* `clients`: heartbeats, members, ordered locks
* `offsets`: committed offsets, ranges of queues, consumer lag
* `topics`: topics and groups; `admin`: configuration and statistics
* `replication`: tables for slaves, status of replication
* `refused`: known codes that are refused, each with its reason

What always holds: a method returns a `Reply` (or its Deferred), or raises `Refuse` with Apache's code and remark. It
never writes to a connection itself. Any other exception is a bug and is answered with code 1.
"""
