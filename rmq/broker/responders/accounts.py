"""
The accounts and white addresses of access control, changed and shown over the network.

Who may ask is decided before: only an admin with a signature (`rmq.remoting.aclconfig.ACCOUNT_CODES`).

Java: AdminBrokerProcessor, PlainPermissionManager
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from rmq.remoting.addresses import AddressPattern
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.config import ConfigError
from rmq.wire import fastjson
from rmq.wire.api.acl import (
    DELETE_ACL_CONFIG,
    GET_BROKER_CLUSTER_ACL_CONFIG,
    GET_BROKER_CLUSTER_ACL_INFO,
    UPDATE_AND_CREATE_ACL_CONFIG,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    BrokerAclConfig,
    BrokerAclVersionReply,
    CreateAccessConfigHeader,
    DeleteAccessConfigHeader,
    GlobalWhiteAddrsHeader,
    PlainAccessConfig,
)
from rmq.wire.api.common import DataVersion
from rmq.wire.codes import ResponseCode

if TYPE_CHECKING:
    from rmq.remoting.acl import Acl

#: accessKey and secretKey must be longer.  Java: AclConstants
MIN_KEY_CHARS = 6
_PERMS = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB")


class AccountResponder:
    """``acl`` is None without aclEnable: then nothing can be changed, and there is nothing to show."""

    _log = Logger()

    def __init__(self, acl: Acl | None, *, cluster: str, broker_name: str, broker_addr: str) -> None:
        self._acl = acl
        self._cluster = cluster
        self._broker_name = broker_name
        self._broker_addr = broker_addr

    @responds_to(UPDATE_AND_CREATE_ACL_CONFIG)
    def update_account(self, request: Request[CreateAccessConfigHeader, None]) -> None:
        """
        Create an account in the default file, or change it where it is; what the request leaves out stays, but for
        ``admin``.

        Java: PlainPermissionManager#updateAccessConfig
        """
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        acl = self._in_use(failed)
        key = request.header.access_key
        fields = _account_fields(request.header)

        def put(content: dict[str, Any]) -> None:
            accounts = content.get("accounts") or []
            nothing: dict[str, Any] = {}
            known = next((account for account in accounts if str(account["accessKey"]) == key), nothing)
            content["accounts"] = [account for account in accounts if account is not known] + [known | fields]

        self._edit(acl, self._file_of(acl, key) or acl.default_file, put, failed)
        self._log.info("{peer} changed the account {key}", peer=request.channel.peer, key=key)

    @responds_to(DELETE_ACL_CONFIG)
    def delete_account(self, request: Request[DeleteAccessConfigHeader, None]) -> None:
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        acl = self._in_use(failed)
        key = request.header.access_key
        path = self._file_of(acl, key)
        if path is None:
            raise Refuse(failed, f"The accesskey[{key}] corresponding to accessConfig has been deleted failed.")

        def remove(content: dict[str, Any]) -> None:
            content["accounts"] = [
                account for account in content.get("accounts") or [] if str(account["accessKey"]) != key
            ]

        self._edit(acl, path, remove, failed)
        self._log.info("{peer} deleted the account {key}", peer=request.channel.peer, key=key)

    @responds_to(UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def update_white_addresses(self, request: Request[GlobalWhiteAddrsHeader, None]) -> None:
        """
        Replace the white addresses of one file in use.

        Java: PlainPermissionManager#updateGlobalWhiteAddrsConfig, which writes any file below its home
        """
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        acl = self._in_use(failed)
        addresses = request.header.global_white_addrs
        path = request.header.acl_file_full_path or acl.default_file
        if addresses is None or path not in {*acl.rules.entries, acl.default_file}:
            shown = "null" if addresses is None else addresses
            raise Refuse(failed, f"The globalWhiteAddresses[{shown}] has been updated failed.")

        def replace(content: dict[str, Any]) -> None:
            content["globalWhiteRemoteAddresses"] = addresses.split(",")

        self._edit(acl, path, replace, failed)
        self._log.info("{peer} set the white addresses {addresses}", peer=request.channel.peer, addresses=addresses)

    @responds_to(GET_BROKER_CLUSTER_ACL_INFO)
    def versions(self, request: Request[None, None]) -> Reply:
        acl = self._in_use(ResponseCode.SYSTEM_ERROR)
        versions = acl.versions
        return Reply(
            BrokerAclVersionReply(
                version=fastjson.encode(versions.get(acl.default_file, DataVersion())).decode(),
                all_acl_file_version=fastjson.encode(versions).decode(),
                broker_name=self._broker_name,
                broker_addr=self._broker_addr,
                cluster_name=self._cluster,
            )
        )

    @responds_to(GET_BROKER_CLUSTER_ACL_CONFIG)
    def config(self, request: Request[None, None]) -> Reply:
        """Java: PlainPermissionManager#getAllAclConfig"""
        entries = self._in_use(ResponseCode.SYSTEM_ERROR).rules.entries.values()
        accounts = [
            PlainAccessConfig(
                access_key=str(account.access_key),
                admin=account.admin,
                default_group_perm=account.default_group_perm,
                default_topic_perm=account.default_topic_perm,
                group_perms=account.group_perms,
                secret_key=str(account.secret_key),
                topic_perms=account.topic_perms,
                white_remote_address=account.white_remote_address,
            )
            for entry in entries
            for account in entry.accounts or ()
        ]
        white = [address for entry in entries for address in entry.global_white_remote_addresses or ()]
        return Reply(body=BrokerAclConfig(global_white_addrs=white, plain_access_configs=accounts))

    def _in_use(self, code: ResponseCode) -> Acl:
        if self._acl is None:
            raise Refuse(code, "access control is off (aclEnable=false): there are no accounts")
        return self._acl

    def _file_of(self, acl: Acl, key: str) -> str | None:
        """Return the file with the account ``key``."""
        for path, entries in acl.rules.entries.items():
            if any(str(account.access_key) == key for account in entries.accounts or ()):
                return path
        return None

    def _edit(self, acl: Acl, path: str, change: Callable[[dict[str, Any]], None], code: ResponseCode) -> None:
        try:
            acl.edit(path, change)
        except ConfigError as error:
            raise Refuse(code, str(error)) from None


def _account_fields(header: CreateAccessConfigHeader) -> dict[str, Any]:
    """Return what the file will say, in Apache's order; Refuse with Apache's text for what it does not take."""
    key, secret = header.access_key, header.secret_key
    if secret is None or len(key) <= MIN_KEY_CHARS or len(secret) <= MIN_KEY_CHARS:
        shown = "null" if secret is None else secret
        raise _refused(f"The accessKey={key} and secretKey={shown} cannot be null and length should longer than 6")
    fields: dict[str, Any] = {"accessKey": key, "secretKey": secret}
    if header.white_remote_address is not None:
        try:
            AddressPattern.parse(header.white_remote_address)
        except ValueError:
            raise _refused(f"Netaddress examine Exception netaddress is {header.white_remote_address}") from None
        fields["whiteRemoteAddress"] = header.white_remote_address
    fields["admin"] = header.admin
    if header.default_topic_perm:
        fields["defaultTopicPerm"] = header.default_topic_perm
    if header.default_group_perm:
        fields["defaultGroupPerm"] = header.default_group_perm
    for name, text in (("topicPerms", header.topic_perms), ("groupPerms", header.group_perms)):
        if text is not None:
            fields[name] = [_checked(resource) for resource in text.split(",")]
    return fields


def _checked(resource: str) -> str:
    """Java: Permission#checkResourcePerms"""
    parts = [part for part in resource.split("=") if part]
    if len(parts) != 2:
        raise _refused(
            f"Parse Resource format error for {resource}.\n"
            "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
        )
    if parts[1].strip() not in _PERMS:
        raise _refused(
            f"Parse resource permission error for {resource}.\n"
            "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
        )
    return resource


def _refused(text: str) -> Refuse:
    return Refuse(ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, text)
