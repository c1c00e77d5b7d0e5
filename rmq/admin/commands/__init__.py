"""
The sub-commands of ``rmq-admin``.

* `explain`: why a route exists or not, from the journal of our NameServers
* `routedump`: all routes of NameServers, as JSON for ``rmq-audit cluster``
* `routediff`: differences between NameServers
* `hastatus`: the replication status of brokers

What always holds: they only read, and work with Apache's servers as far as those know the requests.
"""
