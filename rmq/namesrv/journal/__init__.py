"""
The journal of the NameServer: it remembers why routes changed and explains them.

Reading order:

1. ``events``: what the route table emits, an event with its causes as values (``Why`` and facts)
2. ``reasons``: the words for causes, in one table
3. ``eventlog``: the bounded memory; it keeps events as they are sent (``RouteEventData``)
4. ``explain``: joins route table and event log to an explanation with hints
5. ``journal``: the object that the service holds, and the responder of request code 9701

What always holds:

* The route table does not depend on its listener: recording an event changes no route.
* Every part of the log is bounded in number and in bytes, whatever peers send.
* The time of the last evicted event is known, so "never seen" is said only when it is certain.
"""
