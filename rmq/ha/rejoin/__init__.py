"""
Make the store of an old master fit to follow the new one: ``python -m rmq.ha.rejoin STORE --master NEW [--yes]``.

An old master that returns may have messages at its end that no slave had. Its log diverges there from that of the
promoted slave, and replication refuses it until the divergence is cut.

Read in this order:

* `divergence`: where two copies of a log diverge, and what only the old master has
* `remote_log`: single records of a running broker
* ``__main__``: the command

How damage is skipped and how bytes are saved before they are cut is in `rmq.store.scan` and `rmq.store.cut`.

What always holds: the store is stopped and locked meanwhile; without ``--yes`` nothing is changed; nothing is cut that
is not in STORE/cut, synced and compared with the log.
"""
