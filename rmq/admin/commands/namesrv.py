"""``rmq-admin namesrv`` and ``rmq-admin kv``: configuration and key-value table of NameServers."""

from __future__ import annotations

from rmq.admin import columns
from rmq.admin.command import NAMESRV, Call, NotFound, Outcome, command, subject, tabular
from rmq.admin.lookups import ask_all, ask_namesrv, change_each
from rmq.errors import Refused
from rmq.runtime.properties import decode_properties
from rmq.wire.api.kv import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    PUT_KV_CONFIG,
    KVConfigHeader,
    NamespaceHeader,
    PutKVConfigHeader,
)
from rmq.wire.api.routes import GET_NAMESRV_CONFIG, UPDATE_NAMESRV_CONFIG
from rmq.wire.codes import ResponseCode

NAMESPACE = subject("namespace", "-s", "--namespace", metavar="NAMESPACE")
KEY = subject("key", "-k", "--key", metavar="KEY")
VALUE = subject("value", "-v", "--value", metavar="VALUE")


@command("namesrv config", "show the configuration of NameServers", NAMESRV)
async def namesrv_config(call: Call) -> Outcome:
    """The configuration of all NameServers that answer."""
    answers, failures = await ask_all(call, call.options.namesrvAddr, GET_NAMESRV_CONFIG, None)
    tables = {addr: decode_properties(answer.body, addr) for addr, answer in answers}
    rows = [(addr, key, value) for addr, table in tables.items() for key, value in sorted(table.items())]
    mqadmin_text = columns.configurations(tables)
    return tabular(("namesrv", "key", "value"), rows, nothing="no key", mqadmin_text=mqadmin_text, failures=failures)


@command("namesrv set", "set a configuration key of NameServers, without a restart", NAMESRV, KEY, VALUE, changes=True)
async def namesrv_set(call: Call) -> Outcome:
    """Status 1 when one refuses it, 4 when nobody confirms it."""
    options = call.options
    what = f"{options.key}={options.value}"
    call.confirm(f"{what} is set on {', '.join(options.namesrvAddr)}", options.key)
    body, line = f"{what}\n".encode(), f"update name server config success!\n{options.key} : {options.value}"
    return await change_each(call, options.namesrvAddr, UPDATE_NAMESRV_CONFIG, None, body, what=what, mqadmin=line)


@command("kv list", "show the keys of a namespace", NAMESRV, NAMESPACE)
async def kv_list(call: Call) -> Outcome:
    """Status 2 when there is no such namespace."""
    name = call.options.namespace
    try:
        answer = await ask_namesrv(call, GET_KVLIST_BY_NAMESPACE, NamespaceHeader(namespace=name))
    except Refused as error:
        raise _absent(error, f"no namespace {name}") from None
    return tabular(("key", "value"), sorted(answer.body.table.items()), nothing="no key")


@command("kv get", "show the value of a key", NAMESRV, NAMESPACE, KEY)
async def kv_get(call: Call) -> Outcome:
    """Status 2 when there is no such key."""
    header = KVConfigHeader(namespace=call.options.namespace, key=call.options.key)
    try:
        value = (await ask_namesrv(call, GET_KV_CONFIG, header)).header.value
    except Refused as error:
        raise _absent(error, f"no key {header.key} in namespace {header.namespace}") from None
    return Outcome(text=value or "", data=value)


def _absent(error: Refused, text: str) -> Exception:
    return NotFound(text) if error.code == ResponseCode.QUERY_NOT_FOUND else error


@command("kv set", "set the value of a key on all NameServers", NAMESRV, NAMESPACE, KEY, VALUE, changes=True)
async def kv_set(call: Call) -> Outcome:
    """Status 1 when one refuses it."""
    options = call.options
    header = PutKVConfigHeader(namespace=options.namespace, key=options.key, value=options.value)
    what = f"{options.key}={options.value}"
    line = "create or update kv config to namespace success."
    return await change_each(call, options.namesrvAddr, PUT_KV_CONFIG, header, None, what=what, mqadmin=line)


@command("kv delete", "delete a key from all NameServers", NAMESRV, NAMESPACE, KEY, changes=True)
async def kv_delete(call: Call) -> Outcome:
    """Status 4 when nobody confirms it."""
    options = call.options
    call.confirm(f"key {options.key} of namespace {options.namespace} is deleted", options.key)
    header = KVConfigHeader(namespace=options.namespace, key=options.key)
    what, line = f"{options.key} is deleted", "delete kv config from namespace success."
    return await change_each(call, options.namesrvAddr, DELETE_KV_CONFIG, header, None, what=what, mqadmin=line)
