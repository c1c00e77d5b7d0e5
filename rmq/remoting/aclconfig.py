"""
The configuration keys of access control, and the request codes for admins only.

Java: Permission
"""

from __future__ import annotations

from typing import Any

import attrs

from rmq.wire.codes import RequestCode

#: These read or change accounts. They need an admin's signature, also from a white address; any account will do in
#: Apache's broker of 4.9, and a white address needs none.
ACCOUNT_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    }
)
#: Only admins may send these to a broker.  Java: Permission#ADMIN_CODE
BROKER_ADMIN_CODES = ACCOUNT_CODES | frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
)
#: Only admins may send these to a NameServer; other codes are not checked there. Requests of brokers and clients stay
#: open, also 217, which brokers of 5.x send. An explanation has the addresses of all registered brokers, and only
#: operators need it.
NAMESRV_ADMIN_CODES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.EXPLAIN_ROUTE,
    }
)


def _check_unset(config: object, field: attrs.Attribute[Any], value: bool) -> None:
    """Without this a broker whose file comes from 5.x would serve everybody."""
    if value:
        raise ValueError(
            f"{field.metadata['key']}=true is wrong: there are no accounts of 5.x here, and everybody would be served; "
            "use aclEnable=true with aclFile in its place"
        )


def _key(default: bool | None, doc: str) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, "local": True})


def _refused_key(key: str) -> Any:
    doc = "5.x only: true ends the start, because accounts are those of aclFile"
    return attrs.field(default=False, metadata={"key": key, "doc": doc, "local": True}, validator=_check_unset)


@attrs.frozen(kw_only=True)
class AclConfig:
    """
    Keys of access control. Apache has a fixed location of the file.

    The last two are those of 5.x that protect a broker there. Java: AuthConfig
    """

    acl_enable: bool = _key(False, "authenticate requests by the accounts of aclFile")
    acl_file: str | None = _key(
        None,
        "accounts in the form of plain_acl.yml, a file or a folder of *.yml; "
        "without it conf/plain_acl.yml and conf/acl/*.yml below rocketmqHome",
    )
    acl_tools_file: str | None = _key(
        None, "accessKey and secretKey with which this process signs its own requests, as tools.yml"
    )
    authentication_enabled: bool = _refused_key("authenticationEnabled")
    authorization_enabled: bool = _refused_key("authorizationEnabled")
