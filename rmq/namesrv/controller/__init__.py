"""
The controller of 5.x: it decides which broker of a group is the master, so that a pair fails over by itself.

``groups`` is the pure table: brokers, master, SyncStateSet and their epochs; ``live`` knows who has been heard;
``service`` keeps the table on disk, elects, and notifies brokers; ``responders`` has one method per request code.
It serves on the NameServer's own port, with ``enableControllerInNamesrv=true``.

What always holds:

* Only a broker of the SyncStateSet is elected (unless ``enableElectUncleanMaster``), so no message is lost that its
  master acknowledged after the whole set had it.
* A change is on disk before it is answered, and before any broker is notified of it.
* The epoch of the master grows with each change of the master, that of the set with each change of the set: a request
  with an old one changes nothing.
"""
