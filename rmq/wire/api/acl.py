"""The administration of access control: accounts and addresses of plain_acl.yml (50 to 54)."""

from __future__ import annotations

import msgspec

from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract


class CreateAccessConfigHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    An account; None leaves what the file says. ``topic_perms`` and ``group_perms`` are ``name=perm,name=perm``.

    Java: CreateAccessConfigRequestHeader
    """

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessConfigHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: DeleteAccessConfigRequestHeader"""

    access_key: str


class GlobalWhiteAddrsHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    ``acl_file_full_path``: empty or None for the default file.

    Java: UpdateGlobalWhiteAddrsConfigRequestHeader
    """

    global_white_addrs: str | None = None
    acl_file_full_path: str | None = None


class BrokerAclVersionReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    ``version``: that of the default file, a DataVersion in JSON; ``all_acl_file_version``: path -> DataVersion.

    Java: GetBrokerAclConfigResponseHeader
    """

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


class PlainAccessConfig(msgspec.Struct, rename="camel", kw_only=True):
    """An account as a file has it.  Java: PlainAccessConfig"""

    access_key: str
    admin: bool = False
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] | None = None
    secret_key: str | None = None
    topic_perms: list[str] | None = None
    white_remote_address: str | None = None


class BrokerAclConfig(msgspec.Struct, rename="camel", kw_only=True):
    """All white addresses and accounts.  Java: GetBrokerClusterAclConfigResponseBody"""

    global_white_addrs: list[str] = []
    plain_access_configs: list[PlainAccessConfig] = []


UPDATE_AND_CREATE_ACL_CONFIG = contract(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, CreateAccessConfigHeader)
DELETE_ACL_CONFIG = contract(RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigHeader)
GET_BROKER_CLUSTER_ACL_INFO = contract(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, reply=BrokerAclVersionReply)
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = contract(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, GlobalWhiteAddrsHeader)
GET_BROKER_CLUSTER_ACL_CONFIG = contract(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, reply_body=BrokerAclConfig)
