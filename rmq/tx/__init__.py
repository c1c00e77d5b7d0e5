"""
The client on Twisted.

Read in this order:

* `host`: the reactor below

What always holds: everything runs in the reactor's thread.
"""
