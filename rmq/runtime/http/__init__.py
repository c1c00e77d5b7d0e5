"""
The HTTP port of a process: metrics for Prometheus, status pages for people, a health check for machines.

Read in this order:

* `service`: the port; `face`: what a role serves there
* `site`: the twisted.web side; `quiet`: without Twisted's access log
* `html`: small pages; text is escaped unless it is Markup
* `metrics`: metric families, and the text of a scrape

What a NameServer or a broker shows is in `rmq.namesrv` (`metrics`, `pages`) and in `rmq.broker.http`.

What always holds: it only reads. Nothing is imported unless a port is configured. A scrape is made in slices of a few
milliseconds, and series, connections and lengths have limits.
"""
