"""``rmq-admin acl``: accounts and trusted addresses of brokers (plain_acl.yml)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rmq.admin.command import (
    CLUSTER,
    HIDDEN,
    NAMESRV,
    ONE_BROKER,
    Call,
    Outcome,
    WrongUse,
    argument,
    command,
    merged,
    subject,
    tabular,
)
from rmq.admin.lookups import ask_all, change_each, members
from rmq.admin.times import time_text
from rmq.errors import RequestFailed
from rmq.runtime.disk.error import DiskError
from rmq.wire.api.acl import (
    DELETE_ACL_CONFIG,
    GET_BROKER_CLUSTER_ACL_CONFIG,
    GET_BROKER_CLUSTER_ACL_INFO,
    UPDATE_AND_CREATE_ACL_CONFIG,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    CreateAccessConfigHeader,
    DeleteAccessConfigHeader,
    GlobalWhiteAddrsHeader,
    PlainAccessConfig,
)
from rmq.wire.api.common import DataVersion

ACCOUNT = subject("accessKey", "-a", "--accessKey", metavar="ACCESS_KEY")
PERM = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB")


@command("acl version", "show when the accounts of brokers changed last", NAMESRV, CLUSTER, ONE_BROKER)
async def acl_version(call: Call) -> Outcome:
    """Status 1 when a broker has no access control."""
    rows = []
    answers, failures = await ask_all(call, await members(call), GET_BROKER_CLUSTER_ACL_INFO, None)
    for addr, answer in answers:
        header = answer.header
        version = msgspec.json.decode(header.version, type=DataVersion)
        rows.append((header.cluster_name, header.broker_name, addr, version.counter, time_text(version.timestamp)))
    columns = ("cluster", "broker", "address", "version", "changed")
    return tabular(columns, rows, nothing="no broker", failures=failures)


@command(
    "acl show",
    "show the accounts and the trusted addresses of brokers",
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    argument("--show-secrets", action="store_true", help="secret keys too"),
)
async def acl_show(call: Call) -> Outcome:
    """Status 1 when a broker has no access control."""
    rows: list[tuple[object, ...]] = []
    answers, failures = await ask_all(call, await members(call), GET_BROKER_CLUSTER_ACL_CONFIG, None)
    for addr, answer in answers:
        rows += [(addr, None, one, *[None] * 6) for one in answer.body.global_white_addrs]
        rows += [(addr, *_described(one, call.options.show_secrets)) for one in answer.body.plain_access_configs]
    columns = (
        "broker", "access_key", "white_address", "secret_key", "admin", "default_topic_perm", "default_group_perm",
        "topic_perms", "group_perms",
    )  # fmt: skip
    return tabular(columns, rows, nothing="no account and no trusted address", failures=failures)


def _described(one: PlainAccessConfig, show_secrets: bool) -> Sequence[object]:
    return (
        one.access_key,
        one.white_remote_address,
        one.secret_key if show_secrets or one.secret_key is None else HIDDEN,
        one.admin,
        one.default_topic_perm,
        one.default_group_perm,
        ",".join(one.topic_perms or ()),
        ",".join(one.group_perms or ()),
    )


@command(
    "acl set",
    "create an account, or alter it, on all brokers of a cluster; what is not given stays as it is",
    NAMESRV,
    ACCOUNT,
    CLUSTER,
    ONE_BROKER,
    argument(
        "-s",
        "--secretKey",
        metavar="KEY",
        help="7 characters or more, visible in the process list; needed for a new account, and where a broker does not "
        "show its accounts",
    ),
    argument("--secret-file", metavar="FILE", help="a file with the secret key"),
    argument("-w", "--whiteRemoteAddress", metavar="PATTERN", help="no password from here, for example 10.0.0.*"),
    argument("-i", "--defaultTopicPerm", choices=PERM, help="for topics that --topicPerms does not name"),
    argument("-u", "--defaultGroupPerm", choices=PERM, help="for groups that --groupPerms does not name"),
    argument("-t", "--topicPerms", metavar="TOPIC=PERM,...", help="DENY, PUB, SUB or PUB|SUB for each topic"),
    argument("-g", "--groupPerms", metavar="GROUP=PERM,...", help="the same for groups"),
    argument(
        "-m",
        "--admin",
        choices=("true", "false"),
        help="the right to administer; a new account has it with true only. When the command is called "
        "updateAclConfig, an account loses it without -m true",
    ),
    changes=True,
)
async def acl_set(call: Call) -> Outcome:
    """
    Status 1 when a broker refuses it, 4 when nobody confirms it, 64 without a secret key that is needed.

    Each request replaces the admin flag and must have the secret key, so the account is read from each broker first.
    What else it has is sent too: Apache's 4.9.7 forgets in memory what a request leaves out, until it has read its file
    again.

    Java: PlainPermissionManager#updateAccessConfig
    """
    options = call.options
    brokers = await members(call)
    given = CreateAccessConfigHeader(
        access_key=options.accessKey,
        secret_key=_secret(call),
        white_remote_address=options.whiteRemoteAddress,
        admin=options.admin == "true",
        default_topic_perm=options.defaultTopicPerm,
        default_group_perm=options.defaultGroupPerm,
        topic_perms=options.topicPerms,
        group_perms=options.groupPerms,
    )
    headers = {addr: given if options.as_mqadmin else await _completed(call, addr, given) for addr in brokers}
    without = [addr for addr, header in headers.items() if header.secret_key is None]
    if without:
        why = "mqadmin needs it" if options.as_mqadmin else f"{', '.join(without)} shows none for {options.accessKey}"
        raise WrongUse(f"--secretKey or --secret-file is needed: {why}")
    call.confirm(f"account {options.accessKey} is set on {', '.join(brokers)}", options.accessKey)
    what = f"account {options.accessKey} is set"
    line = "create or update plain access config to {addr} success."
    return merged(
        [
            await change_each(call, [addr], UPDATE_AND_CREATE_ACL_CONFIG, header, None, what=what, mqadmin=line)
            for addr, header in headers.items()
        ]
    )


async def _completed(call: Call, addr: str, given: CreateAccessConfigHeader) -> CreateAccessConfigHeader:
    """
    Return ``given`` with what the broker has of the account where an option was left out.

    Raises RequestFailed when the broker does not show its accounts and the secret key or the admin flag is not given.
    """
    is_whole = given.secret_key is not None and call.options.admin is not None
    try:
        found = (await call.invoke(addr, GET_BROKER_CLUSTER_ACL_CONFIG, None, None)).body.plain_access_configs
    except RequestFailed as error:
        if is_whole:
            return given
        error.args = (f"what the account has is not known, so --secretKey and --admin are needed: {error}",)
        raise
    account = next((one for one in found if one.access_key == given.access_key), None)
    return given if account is None else kept(given, account, keep_admin=call.options.admin is None)


def kept(given: CreateAccessConfigHeader, account: PlainAccessConfig, *, keep_admin: bool) -> CreateAccessConfigHeader:
    """Return ``given`` with the values of ``account`` where it has none."""
    return CreateAccessConfigHeader(
        access_key=given.access_key,
        secret_key=given.secret_key or account.secret_key,
        white_remote_address=given.white_remote_address or account.white_remote_address,
        admin=account.admin if keep_admin else given.admin,
        default_topic_perm=given.default_topic_perm or account.default_topic_perm,
        default_group_perm=given.default_group_perm or account.default_group_perm,
        topic_perms=given.topic_perms or ",".join(account.topic_perms or ()) or None,
        group_perms=given.group_perms or ",".join(account.group_perms or ()) or None,
    )


def _secret(call: Call) -> str | None:
    options = call.options
    if options.secret_file is None:
        return options.secretKey  # type: ignore[no-any-return]
    if options.secretKey is not None:
        raise WrongUse("either --secretKey or --secret-file")
    try:
        return call.platform.disk.read_whole(options.secret_file).decode().strip()
    except (FileNotFoundError, DiskError, UnicodeDecodeError) as error:
        raise WrongUse(f"--secret-file {options.secret_file}: {error}") from None


@command(
    "acl delete",
    "delete an account from all brokers of a cluster",
    NAMESRV,
    ACCOUNT,
    CLUSTER,
    ONE_BROKER,
    changes=True,
)
async def acl_delete(call: Call) -> Outcome:
    """Status 4 when nobody confirms it."""
    name = call.options.accessKey
    brokers = await members(call)
    call.confirm(f"account {name} is deleted from {', '.join(brokers)}", name)
    header = DeleteAccessConfigHeader(access_key=name)
    what, line = f"account {name} is deleted", "delete plain access config account from {addr} success."
    return await change_each(call, brokers, DELETE_ACL_CONFIG, header, None, what=what, mqadmin=line)


@command(
    "acl whitelist",
    "replace the addresses that need no account, on all brokers of a cluster",
    NAMESRV,
    subject("addresses", "-g", "--globalWhiteRemoteAddresses", metavar="PATTERN,..."),
    CLUSTER,
    ONE_BROKER,
    argument("-p", "--aclFileFullPath", metavar="PATH", help="the broker's file, where it has several"),
    changes=True,
)
async def acl_whitelist(call: Call) -> Outcome:
    """Status 4 when nobody confirms it."""
    options = call.options
    brokers = await members(call)
    what = f"addresses without account: {options.addresses}"
    call.confirm(f"{what} on {', '.join(brokers)}", options.addresses)
    header = GlobalWhiteAddrsHeader(
        global_white_addrs=options.addresses, acl_file_full_path=options.aclFileFullPath or ""
    )
    line = "update global white remote addresses to {addr} success."
    return await change_each(call, brokers, UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header, None, what=what, mqadmin=line)
