"""
The client: producers and consumers, written once for asyncio and Twisted.

Users import `rmq.aio`, `rmq.tx` or `rmq.blocking`, and docs/client.md shows how. Those add a loop, a reactor or a
thread below, and names; the rest is here.

Read in this order:

* `types`, `settings`: what users give and get
* `core`: what is decided, without waiting
* `host`: the framework below, as a protocol
* `flows`: coroutines that ask brokers: the client, producers, consumers
* `observers`: what a client tells of its work; `prometheus` and `otel` make metrics of it

What always holds: nothing here imports asyncio or Twisted. Clocks, chance, threads, files and connections are those of
the host. Who waits for an answer has a deadline. Log lines go to `logging`, below `rmq.client`.
"""
