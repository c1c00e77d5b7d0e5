"""
The message store of a broker, with Apache's files.

Read in this order:

* `layout`, `config`, `messages`: file names and formats, keys, values
* `store`: the whole store as a broker sees it
* `commitlog`: the log and its segments; `appender`: from a message to a record in it
* `groupcommit`: when a put is answered: fsync, quorum, deadline
* `dispatch`: from the log into queues and index
* `consumequeue`, `queues`, `queueext`, `queuefiles`: queues; `index`, `indexfile`: keys
* `reader`: messages by queue offset, time, key and physical offset
* `scan`: records of a log past damage, with a policy for each user; `cut`: bytes that are saved before a truncation
* `recovery`: the start; `abortfile`, `checkpoint`, `checkpointer`: what the next start may rely on
* `retention`, `openfiles`, `health`: deletion, limits, status
* `check`: ``python -m rmq.store.check``, the rules of a stopped store

What always holds:

* The log is the truth: queues and index can be made again from it, and never have anything that it lacks.
* A put is in the log's file before it is answered. A failed fsync ends all writes.
* With SYNC_FLUSH consumers see only messages that are fsynced.
* Damage is logged with its offset, and nothing is truncated that is not saved, unless it is only a torn record.
"""
