"""
The coroutines of the client.

They wait for brokers and decide little: decisions are in `rmq.client.core`.

Read in this order:

* `instance`: the client: connections, routes, heartbeats, close
* `producer`: sends
* `member`: a member of a consumer group: rebalance, pulls, offsets; `push`: handlers, retries, dead letters
* `orderly`: one message of a queue after the other; `litepull`: messages on request
* `tracing`: message traces; `spans`: spans of an observer
* `transactions`: messages that are seen when a transaction is committed
* `closing`: the close of a client or consumer, which goes on when its caller is cancelled
* `usercode`: calls of what users wrote

What always holds: a coroutine that runs for long is started by the host, named, and ended by the close. A failed
request to a server is an ordinary event: it is logged, and tried again after a pause.
"""
