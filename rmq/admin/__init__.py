"""
``rmq-admin``: the work of ``mqadmin`` without a JVM, on our servers and Apache's, and what ``mqadmin`` does not have.

Read in this order:

* `names`: nouns with their modules, and the names that mqadmin has for commands
* `command`: the frame of a command: name, arguments, result
* `overview`: the first page of help, which imports none of what follows
* `main`: the command line: arguments in; a table, JSON or csv and an exit status out
* `terminal`: the process: reactor, terminal, exit status
* `commands`: one module for each noun
* `lookups`: what many commands ask first, and changes that go to many servers
* `columns`: the columns of mqadmin that scripts cut
* `contexts`: clusters with a name
* `reading`, `sending`, `messages`: queues without a group, a producer of `rmq.client`, messages as they are printed

A new command is a decorated coroutine in a module of ``rmq.admin.commands``, which `names` lists, and a row of
docs/admin.md. Its result is a value with a text; the connection to servers is an argument.

What always holds: a change that cannot be undone is confirmed, or not sent. The exit status says what happened, as
docs/admin.md lists it. A wrong argument or a server without an answer gives one line, never a traceback. Only the
module of the called command is imported.
"""
