"""
The broker: it stores messages of producers and serves them to consumers.

Read in this order:

* `config`: Apache's keys (`config5x`: keys of 5.x); `settings`: the configuration of a running broker
* `service`: the parts of a broker, and the order of start and stop; `tap`: its command line
* `topics`, `groups`, `offsets`, `tables`: the JSON tables below ``config/``
* `responders`: one answer for each request code; `refusals`: response codes and remarks
* `sessions`, `locks`, `filters`: connected clients, ordered consumption, subscriptions
* `longpoll`: pulls that wait; `delays`: delayed messages; `transactions`: half messages and their checks
* `lanes`, `pulllane`, `consumerlanes`, `waitinglanes`, `questionlanes`: fast paths of what is repeated
* `registration`: NameServers; `metadata_sync`, `offset_push`: tables between master and slave
* `dump`: consistency dumps for the audit; `stats`, `http`: counters, metrics, status pages

What always holds:

* A send is answered after the record is in its file; `flushDiskType` and `brokerRole` may require more.
* A change of a table is on disk before it is answered. Consumer offsets are saved every few seconds.
* Expiry and deadlines use the steady clock, time stamps the wall clock.
* A fast path for a request code gives the same bytes as its responder, or declines.
"""
