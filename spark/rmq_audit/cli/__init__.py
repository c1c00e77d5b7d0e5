"""
The command line ``rmq-audit``: ``compare``, ``check``, ``cluster`` and ``watch``.

Read in this order:

* ``commands.py``: options, and what each command does with them.
* ``running.py``: progress on standard error, and the state (``--state``, ``--resume``) of a run.
* ``watch.py``: audits in rounds, each compared with the one before.

What always holds:

* A mistake of the operator is one line on standard error and exit status 64, never a stack trace.
* Results that cannot be written are found before the long part.
* The exit status is the verdict's, even if nobody reads the output.
* The names of options, exit statuses and members of the JSON do not change.
"""
