"""
``rmq-admin``: questions to NameServers and brokers that Apache's ``mqadmin`` does not know.

A new sub-command is a decorated coroutine in a module of ``rmq.admin.commands`` and that module's name in
``rmq.admin.main.MODULES``. What it finds out is a value with a text; how it reaches servers is given to it.
"""
