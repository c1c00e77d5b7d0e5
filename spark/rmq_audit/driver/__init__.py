"""
What is compared with what, and what follows from it: everything that judges, in plain Python on the driver.

Read in this order:

* ``inventory.py``: the files of a store; ``findings.py``: kinds of findings, causes and consequences, the verdict.
* ``audit.py``: one pair or one store from begin to end: `compare` and `check`.
* ``scan.py`` and ``log.py``: the splits of a log, and what a side holds after they are scanned.
* ``replicas.py``: master against slave. ``queues.py``, ``indexes.py``, ``acked.py``, ``duplicates.py``,
  ``recordindex.py``: checks with a part in ``worker/`` under the same name.
* ``consumers.py``, ``configs.py``, ``epochs.py``: small tables that the driver reads itself.
* ``clusterconfig.py``, ``cluster.py``, ``routes.py``, ``ends.py``: many brokers, routes, and logs that still grow.
* ``coverage.py``: what was read and compared. ``previous.py``: new, persisting and resolved findings.

What always holds:

* `findings.judge` alone gives a verdict and an exit status.
* A check returns findings and does not print. The order of findings does not depend on the order of answers.
* What the bytes of both sides do not decide has the blame ``undecided``.
* Ends of a store that is being written are not judged.
"""
