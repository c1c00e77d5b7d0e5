"""
The seams to the operating system: everything that a NameServer or broker needs from outside, as arguments.

Read in this order:

* `platform`: reactor, disk, random numbers and connections as one value
* `clock`: steady and wall time, Periodic, DeadlineTimer
* `disk`: files with the semantics of fsync
* `properties`, `config`: properties files and configuration classes
* `tap`: the command line that both roles share; `logs`: text and JSON logs
* `http`: metrics, status pages, health; `histogram`: counted durations
* `tls`: certificates and contexts
* `leanreactor`: the fast reactor ``rmq-lean``
* `manhole`, `prompt`: a Python prompt into the running process

What always holds: only this package, the `tap` and `__main__` modules and `rmq.local` touch the reactor, clocks, random
numbers, threads and files directly. Extras (TLS, HTTP, manhole) are imported when they are configured, not before.
"""
