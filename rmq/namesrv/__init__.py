"""
The NameServer: it knows which broker has which topic, and answers clients that ask for a route.

Brokers register here every 30 s with all their topics; clients look up the route of a topic. All state but the
key-value table is in memory and comes back with the registrations after a start.

Reading order:

1. ``topology`` (groups, topics, clusters; answers look-ups), ``live`` (broker processes and their connections)
2. ``routes``: ``RouteTable`` holds both and has one method per change: registration, unregister request, heartbeat,
   closed connection, expiry, admin request. It emits the events of ``journal.events``.
3. ``responders``: one method per request code. ``turns`` spreads large registrations over reactor turns, ``lanes`` and
   ``_lanes.pyx`` are the fast path of look-ups, ``clustertest`` asks production's NameServers.
4. ``journal``: event log, words for causes, explanations.
5. ``service`` wires all of it; ``config``, ``settings``, ``kvconfig`` and ``tap`` are configuration, its changes, the
   key-value table and the command line.
6. ``metrics``, ``pages`` and ``prompt``: Prometheus, HTTP pages, manhole; imported only on demand.

What always holds:

* An address is in a group exactly while the broker that registered it is live: each address in a route has a
  ``LiveBroker``, and a group without addresses does not exist.
* A request over an older connection than the broker's own, and the end of an older connection, change nothing: they are
  FENCED events.
* ``Topology.version`` changes with every change that a look-up can see; all caches depend on this alone.
* A lane's reply equals the responder's byte for byte. A property test compares them.
* Silence and durations are measured on the steady clock; the wall clock is only shown.
* The events alone describe the routes: brokers and topics follow from them (tests/namesrv/histories.py).
"""
