"""
A broker whose role a controller decides (``enableControllerMode=true``): a pair that fails over by itself.

``link`` asks the controller, ``identity`` keeps the id that it gave, ``history`` cuts what a new master does not have,
``service`` is the whole: in each role it runs an ordinary broker, and ends that one before it takes another role.

What always holds:

* A message is answered with SEND_OK when each broker of the SyncStateSet has it, and consumers see it only then.
* A master waits for a broker before the controller can count it, and until the controller has surely stopped to.
* A broker that begins to be master, or has started again, does so in a new epoch, on disk before the first message.
* Before a broker follows a master, what its log has behind their common part is saved and cut.
"""
