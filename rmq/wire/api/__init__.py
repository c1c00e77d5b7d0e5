"""
Every request code as a `Contract`: the classes of its header, body, reply and reply body.

One module for each subject:

* `common`: classes that several modules share, master id, permission bits
* `routes`, `register_body`: registration and routes; `kv`: key-value configuration of NameServers
* `sending`, `pulling`, `offsets`: producers and consumers; `clients`: heartbeats and locks
* `transactions`: the end of transactions, and the question for it
* `topics`: topics and groups; `admin`: configuration and statistics of a broker
* `replication`: tables for slaves, status of replication
* `explain`: rmq's own request 9701

What always holds: a code is declared once. Both ends use the contract, so mypy checks them against each other. Member
names are those of Apache's Java classes, in snake_case here and camelCase on the wire.
"""
