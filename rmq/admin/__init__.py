"""
``rmq-admin``: requests to NameServers and brokers that Apache's ``mqadmin`` does not have.

* `command`: the frame of a sub-command: name, arguments, result
* `main`: the command line: arguments in, text or JSON and an exit status out
* `commands`: one module for each sub-command

A new sub-command is a decorated coroutine in a module of ``rmq.admin.commands`` and that module's name in
``rmq.admin.main.MODULES``. Its result is a value with a text; the connection to servers is an argument.

What always holds: exit status 0 for no problem, 2 for a difference or a missing entry, 3 when a server did not answer.
A wrong argument or a server without an answer gives one line, never a traceback.
"""
