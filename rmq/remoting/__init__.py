"""
RocketMQ's remoting protocol on Twisted: requests, replies and one-way requests in both directions of a connection.

Read in this order:

* `responders`: the table from request code to method, and Refuse
* `channel`: one connection for the rest of the program
* `protocol`: bytes to frames, frames to responders or to pending requests
* `server`: a listening port; `client`: requests to other servers
* `limits`: bounds of connections and held bytes
* `access`: TLS, access control and limits of a process together; `tls`: TLS and plain on one port
* `acl`, `aclconfig`, `addresses`: Apache's accounts and signatures
* `stats`, `statsview`: counts and durations by request code

What always holds:

* Every request gets exactly one reply, except one-way requests. Unknown codes get code 3.
* All replies to the requests of one read leave in one write, as far as they are ready.
* A peer that violates the protocol loses its own connection only. A peer that does not read is closed at a limit.
* Every own request has a deadline; a lost connection fails its pending requests at once.
"""
