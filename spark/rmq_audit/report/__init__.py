"""
The result for people and programs.

Read in this order:

* ``pair.py``: the summary for a terminal and the JSON of a pair or store; ``cluster.py``: the same of a cluster.
* ``rules.py``: for each kind of finding whether it was checked, and the reason if not.
* ``pictures.py`` (what is drawn, in bounded numbers), ``charts.py`` (SVG), ``html.py`` (the page).
* ``outputs.py``: JUnit XML and Prometheus metrics; ``parquet.py``: findings as a table; ``files.py``: writing files.

What always holds:

* Reports read a result and judge nothing.
* Lists have a limit, and what is left out is counted.
* Text of a store (topics, groups, bodies) is escaped for HTML, XML and Prometheus.
* A file is complete or absent: it is written under another name and then renamed.
"""
