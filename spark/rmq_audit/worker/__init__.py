"""
What workers run: functions from a task to an answer, and what they need to read stores.

Only this folder, and the modules of rmq that it imports (``rmq.wire.record``, ``rmq.wire.loosejson``,
``rmq.wire.compiled``, ``rmq.store.layout``), is sent to Spark's executors. It imports nothing of the other folders.

Read in this order:

* ``work.py``: `Work`, the declaration of a kind of work.
* ``location.py``, ``files.py``, ``lentwindow.py``, ``objectstore.py``: where stores are, how ranges of them are read.
* ``records.py``, ``kernel.py`` (and its compiled form ``_kernel.pyx``), ``properties.py``,
  ``frames.py``: from bytes to records, one by one and as columns.
* ``scan.py``: one pass over a part of a log; most of an audit is this.
* The other checks, each with the driver file of the same name: ``replicas.py``, ``queues.py``, ``indexes.py``,
  ``acked.py``, ``duplicates.py``, ``recordindex.py``.

What always holds:

* A task and its answer are small values: paths, offsets, digests, counts; never a message body.
* An answer depends on its task and on the files that the task names, on nothing else; so it may be remembered.
* A file that cannot be read is the member ``error`` of an answer, not an exception.
* Files are read by ranges and never mapped: a mapping of a file that shrinks would kill the process.
* The compiled kernel and the numpy kernel give the same answers.
"""
