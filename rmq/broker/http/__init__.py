"""
The HTTP port of a broker: metrics, status pages and health; imported lazily, because prometheus_client is an extra.

Read in this order:

* `face`: what the port serves
* `metrics`: every metric, read from live objects at a scrape
* `pages`: the status pages
* `consumer_lag`: messages that groups have not consumed yet
* `exporter`: the keys of 5.x that open the same port

A new metric is a method of `metrics` and a row of docs/metrics.md, which a test compares.

What always holds: everything here only reads; only `face` imports `metrics` and `pages`. A scrape stops the reactor
for a few milliseconds at most.
"""
