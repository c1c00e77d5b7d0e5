"""The NameServer's key-value table, one level of namespaces deep: 100, 101, 102, 219."""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import KVTable
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract

#: Topics whose queues are consumed in order -> ``broker-a:8;broker-b:8``. Java: NamesrvUtil
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class PutKVConfigHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A value to set. A missing namespace or key has its own refusal, hence the defaults.

    Java: PutKVConfigRequestHeader
    """

    namespace: str | None = None
    key: str | None = None
    value: str


class KVConfigHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One entry.

    Java: GetKVConfigRequestHeader, DeleteKVConfigRequestHeader
    """

    namespace: str
    key: str


class GetKVConfigReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    The value of an entry.

    Java: GetKVConfigResponseHeader
    """

    value: str | None = None


class NamespaceHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One namespace.

    Java: GetKVListByNamespaceRequestHeader
    """

    namespace: str


PUT_KV_CONFIG = contract(RequestCode.PUT_KV_CONFIG, header=PutKVConfigHeader)
GET_KV_CONFIG = contract(RequestCode.GET_KV_CONFIG, header=KVConfigHeader, reply=GetKVConfigReply)
DELETE_KV_CONFIG = contract(RequestCode.DELETE_KV_CONFIG, header=KVConfigHeader)
GET_KVLIST_BY_NAMESPACE = contract(RequestCode.GET_KVLIST_BY_NAMESPACE, header=NamespaceHeader, reply_body=KVTable)
