"""
The commands of ``rmq-admin``, one module for each noun.

* `topic`, `group`, `cluster`, `broker`, `namesrv` (configuration, and the noun "kv"): what mqadmin does every day
* `produce`, `tail`, `message`: send, read and find messages
* `dlq`: dead letters, and their delivery to the group that gave them up
* `explain`: why a route exists or not, from the journal of our NameServers
* `routedump`: all routes of NameServers, as JSON for ``rmq-audit cluster``
* `routediff`: differences between NameServers
* `hastatus`: the replication status of brokers

Begin with `topic`: it has a list, a look at servers, a change of many servers and a deletion that is confirmed.

What always holds: commands work with Apache's servers as far as those know the requests. They keep no state.
"""
