"""
TLS: configuration, certificates and contexts.

Read in this order:

* `config`: Apache's keys, and the terms that result from them
* `certificates`: keys and certificates from files, and the self-signed one of the test mode
* `context`: contexts for listening and connecting, which follow changed files
* `late`: Twisted's reactor without pyOpenSSL until TLS is used

docs/security.md shows the recipes; the replication port has the same contexts under keys of its own.

What always holds: a configuration that cannot work stops the start with the key or file. New files that are broken
change nothing: the certificate loaded before stays in use. Without TLS pyOpenSSL is not imported.
"""
