"""
Bytes to values and back: the remoting protocol, and messages as they are stored.

Read in this order:

* `frames`: how commands are cut from a stream; `command`: requests and responses
* `codes`: request codes, response codes, versions
* `extfields`: custom headers; `fastjson`, `loosejson`: JSON bodies in fastjson's dialect
* `contract`: one declaration for each request code; `api`: all of them
* `exchange`: a request and its answer by a contract; `correlator`: pending requests; `signing`: accounts
* `record`: the stored message, message ids, properties, batches
* `compiled`: the choice of compiled modules

What always holds: nothing here imports Twisted or does I/O. Writing is strict and gives Apache's bytes; reading is
tolerant, as Apache's peers in many languages need it. Bad input raises an error of the module that names the place.
"""
