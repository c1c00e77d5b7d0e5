"""
What the client decides, without waiting for anything.

The coroutines of `rmq.client.flows` ask brokers and wait; what an answer means, and which queue, message or offset is
next, is decided here by functions and small classes that tests call directly.

Read in this order:

* `allocate`: which member of a group gets which queue
* `routes`: the queues of a route, and the broker to ask; `subscription`: tags and SQL92
* `outgoing`: a message as it is sent, and which failures are retried; `codec`: compressed bodies; `msgid`: unique ids
* `processqueue`: the messages of one queue in hand, and the offset to commit

What always holds: no clock, no chance, no I/O; allocations, hashes and formats equal Java's.
"""
