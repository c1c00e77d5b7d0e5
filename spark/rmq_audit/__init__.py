"""
The consistency audit of RocketMQ stores: proves that a master and its slave hold the same bytes, and that the consume
queues, index files, tables and acknowledged sends of a store agree with its commit log.

Spark is only a distributed ``map``: workers read files and return digests, counts and places; the driver compares them
and judges, in plain Python. The folders say where code runs:

* ``worker/``: what a worker runs. Only this folder is sent to Spark's executors.
* ``engine/``: how tasks get to workers: in this process, in a pool of processes, or on Spark.
* ``driver/``: what is compared with what, and the verdict.
* ``report/``: the result as text, JSON, HTML, JUnit XML, Prometheus metrics and Parquet.
* ``cli/``: the command line ``rmq-audit`` and its rounds (``watch``).

Read in this order: ``driver/audit.py`` (`compare` and `check`), ``worker/scan.py``, ``driver/scan.py``,
``driver/log.py``, ``driver/replicas.py``, ``driver/findings.py``; then the other checks.

What always holds:

* Nothing is written into a store.
* Imports point one way: ``cli``, ``report``, ``driver``, ``engine``, ``worker``; ``worker`` imports only the modules of
  rmq that read formats. tests/test_architecture.py checks it.
* A check that needs workers is a driver file and a worker file of the same name.
* What was not read or not compared is a finding (AU-COVER): it never counts as equal.
"""
