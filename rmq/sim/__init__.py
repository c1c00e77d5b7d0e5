"""
Whole clusters of the real code in one process, on simulated machines: ``python -m rmq.sim --seed 1``.

Read in this order:

* `world`: simulated time, one seed, one trace
* `node`: a machine and its process; `net`, `transport`: the network; `disk`, `inode`: disks that lose power
* `cluster`: NameServers and brokers on such machines
* `workload`: producers, some with transactions, and consumers, all over `rmq.client`; `readers`: who looks at copies;
  `history`: what they sent and received
* `faults`: what may fail, and plans of it; `scenario`: one run from start to verdict
* `checkers`, `lookups`: the invariants, one function each

What always holds: the same seed gives the same run and the same digest of its trace. The product's code is unchanged;
only its arguments are simulated. What a fault may lose is one table in `checkers`; everything else is a violation.
"""
