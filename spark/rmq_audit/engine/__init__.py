"""
How tasks get to workers and answers come back.

Read in this order:

* ``engines.py``: the interface `Engine`, and `LocalEngine`, which works in this process or in a pool of processes.
* ``spark.py``: the same on Spark; ``bundle.py``: the zip with ``worker/`` that Spark's executors import.
* ``state.py``: an engine around another one that remembers answers between runs (``--state``).

What always holds:

* Answers come in the order of the tasks, whichever worker is first.
* Engines know nothing of logs: they call `Work.do` and add up `Work.cost`.
* An engine that cannot work raises EngineError with one line for the operator.
* A remembered answer is used only if the task, the code in ``worker/`` and the identity of each file are the same.
"""
