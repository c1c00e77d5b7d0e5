"""
Make the store of an old master fit to follow the new one: ``python -m rmq.ha.rejoin STORE --master NEW [--yes]``.

Read :mod:`~rmq.ha.rejoin.divergence` first: where two copies of a log diverge, and what only the old master has.
:mod:`~rmq.ha.rejoin.remote_log` reads single records of a running broker, :mod:`~rmq.ha.rejoin.__main__` is the
command. How damage is skipped and how bytes are saved before they are cut is in `rmq.store.scan` and `rmq.store.cut`.

What always holds: the store is stopped and locked meanwhile; without ``--yes`` nothing is changed; nothing is cut that
is not in STORE/cut, synced and compared with the log.
"""
