"""
Access control with Apache's accounts and signatures.

Accounts come from files in the form of Apache's ``plain_acl.yml``, which may change while they are in use. PyYAML
(extra ``acl``) is imported when the first one is read.

Java: PlainAccessValidator, PlainPermissionManager, PlainPermissionChecker
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import msgspec
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.remoting.aclconfig import ACCOUNT_CODES, AclConfig
from rmq.remoting.addresses import AddressPattern
from rmq.remoting.channel import Channel
from rmq.remoting.responders import Refuse
from rmq.runtime.clock import Periodic, now_ms, steady_ms
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.disk.files import Disk
from rmq.runtime.logs import LogThrottle, repeats
from rmq.wire import fastjson
from rmq.wire.api.clients import HeartbeatData
from rmq.wire.api.common import DataVersion
from rmq.wire.api.pulling import UNIQUE_KEY_QUERY
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand, decode_command
from rmq.wire.compiled import load
from rmq.wire.frames import ProtocolError, whole_frame
from rmq.wire.signing import ACCESS_KEY, SIGNATURE, Credentials, signature, signature_of

_compiled: Any = load("rmq.remoting._fastpath")

#: accessKey and secretKey must be longer, as in Apache
MIN_KEY_CHARS = 6
#: how often the files are checked
REFRESH_S = 5.0
#: most extFields of a signed request; a million took 4 s to sort, and Java's clients send up to 30
MAX_SIGNED_FIELDS = 1000
#: extFields that decide which permissions a request needs, but for a heartbeat; see :func:`needed_perms`
RESOURCE_FIELDS = (b"b", b"consumerGroup", b"group", b"topic")
#: most sets of RESOURCE_FIELDS that are remembered as permitted, and the longest of them in bytes
MAX_PERMITTED, MAX_PERMITTED_BYTES = 10_000, 1024
#: longest text of a logged refusal: peers choose names, and may choose megabytes
MAX_LOGGED_CHARS = 512

DENY, PUB, SUB = 0, 4, 8
_PERMS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
DEFAULT_FILE = "plain_acl.yml"
#: an account of this process or of mqadmin, not of those that may connect
TOOLS_FILE = "tools.yml"
RETRY_PREFIX = "%RETRY%"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: prefix of the reason in Apache's brokers of 4.9
REMARK_PREFIX = "org.apache.rocketmq.acl.common.AclException: "

# files


class _AccountEntry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    access_key: str | int
    secret_key: str | int
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class _AclEntries(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    global_white_remote_addresses: list[str] | None = None
    accounts: list[_AccountEntry] | None = None
    data_version: list[DataVersion] | None = None


class _ToolsEntries(msgspec.Struct, rename="camel"):
    access_key: str | int
    secret_key: str | int
    security_token: str | None = None


@attrs.frozen(kw_only=True)
class Account:
    """One account. ``perms`` holds topics, and groups as the names of their retry topics."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    white: AddressPattern
    admin: bool
    default_topic_perm: int
    default_group_perm: int
    perms: Mapping[str, int]


@attrs.frozen(kw_only=True)
class AclRules:
    """The rules of a set of files."""

    white: tuple[AddressPattern, ...] = ()
    accounts: Mapping[str, Account] = attrs.field(factory=dict)
    #: what each file says, by path
    entries: Mapping[str, _AclEntries] = attrs.field(factory=dict, repr=False, eq=False)
    #: (request code, accessKey, RESOURCE_FIELDS) -> secretKey, where the account has the permissions
    _permitted: dict[tuple[int, bytes, bytes], bytes] = attrs.field(factory=dict, init=False, repr=False, eq=False)

    @property
    def admins(self) -> int:
        """The number of accounts with ``admin``."""
        return sum(account.admin for account in self.accounts.values())

    def problem(self, command: RemotingCommand, host: str, admin_codes: Collection[int]) -> str | None:
        """
        Return Apache's remark if ``host`` may not send this request; None if it may.

        A request that reads or changes accounts (ACCOUNT_CODES) needs an admin's signature also from a white address.
        Java: PlainPermissionManager#validate
        """
        is_free = command.code not in ACCOUNT_CODES
        if self.white and is_free and any(pattern.matches(host) for pattern in self.white):
            return None
        fields = command.ext_fields
        access_key = fields.get(ACCESS_KEY)
        if not access_key:
            return "No accessKey is configured"
        account = self.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key}"
        if is_free and account.white.matches(host):
            return None
        if len(fields) > MAX_SIGNED_FIELDS or not _is_signed(command, account.secret_key):
            return f"Check signature failed for accessKey={access_key}"
        return _right_problem(account, command, admin_codes)

    def admitted(self, data: bytes, position: int, code: int, peer: str, admin_codes: Collection[int]) -> int:
        """
        Return where the request at ``position`` of ``data`` ends if :meth:`problem` has none with it.

        Else, and when it is not whole or has another code than ``code``, return ``position``. A request like one
        before it is only read by compiled code and compared with its signature, whatever else its header has: lanes
        decline what is no good header.
        """
        secret = plain = None
        if _compiled is not None and code != RequestCode.HEART_BEAT:
            plain = _compiled.read_signed(data, position, code, RESOURCE_FIELDS)
        if plain is not None:
            stop: int
            stop, access_key, given, content, resources = plain
            secret = self._permitted.get((code, access_key, resources))
            if secret is not None and hmac.compare_digest(given, signature_of(content, secret)):
                return stop
        whole = whole_frame(data, position)
        if whole is None:
            return position
        try:
            command = decode_command(whole[0])
            if command.code != code or self.problem(command, peer.rpartition(":")[0], admin_codes) is not None:
                return position
        except (fastjson.JsonError, ProtocolError):
            return position
        if plain is not None and secret is None and len(resources) <= MAX_PERMITTED_BYTES:
            account = self.accounts.get(access_key.decode())
            if account is not None and _right_problem(account, command, admin_codes) is None:
                if len(self._permitted) >= MAX_PERMITTED:
                    self._permitted.clear()
                self._permitted[code, access_key, resources] = account.secret_key.encode()
        return whole[1]


def _right_problem(account: Account, command: RemotingCommand, admin_codes: Collection[int]) -> str | None:
    if command.code in admin_codes and not account.admin:
        return f"Need admin permission for request code={command.code}, but accessKey={account.access_key} is not"
    return _perm_problem(account, needed_perms(command))


def _is_signed(command: RemotingCommand, secret_key: str) -> bool:
    """
    Return whether the request was signed with ``secret_key``.

    Java's clients sign UNIQUE_KEY_QUERY since 4.9.4 and did not before; no right depends on it, so both are good.
    Java: PlainAccessValidator#parse, which refuses what the newer ones sign; DefaultAuthenticationContextBuilder#build
    """
    fields = command.ext_fields
    # Bytes, because compare_digest accepts only ASCII text, and the peer may send any.
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(given, signature(fields, command.body, secret_key).encode()):
        return True
    if UNIQUE_KEY_QUERY not in fields:
        return False
    others = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return hmac.compare_digest(given, signature(others, command.body, secret_key).encode())


def _perm_problem(account: Account, needed: Mapping[str, int]) -> str | None:
    if needed == {TRACE_TOPIC: PUB} or (account.admin and not account.perms):
        return None
    for resource, perm in needed.items():
        is_group = resource.startswith(RETRY_PREFIX)
        default = account.default_group_perm if is_group else account.default_topic_perm
        owned = account.perms.get(resource, default)
        if owned & perm != perm:
            name = f"group {resource.removeprefix(RETRY_PREFIX)}" if is_group else f"topic {resource}"
            return f"No default permission for {name}"
    return None


def needed_perms(command: RemotingCommand) -> dict[str, int]:
    """
    Return topic -> PUB or SUB, and retry topic of a group -> SUB, that a request to a Broker needs.

    Differs from Apache: a batch (320) and a lite pull (361) need what a send and a pull need; a send needs every
    topic that it names, in long or short keys, because a Broker takes either; a send to a retry topic needs the group
    of that topic, whatever group it names as its own.

    Java: PlainAccessResource#parse, PlainAccessValidator#parse
    """
    fields = command.ext_fields
    needed: dict[str, int] = {}

    def need(resource: str, perm: int) -> None:
        needed[resource] = needed.get(resource, 0) | perm

    def group(name: str | None) -> None:
        need(RETRY_PREFIX + (name or "").removeprefix(RETRY_PREFIX), SUB)

    def topic(name: str | None, perm: int) -> None:
        if name is not None and name.startswith(RETRY_PREFIX):
            group(name)
        else:
            need(name or "", perm)

    match command.code:
        case (
            RequestCode.SEND_MESSAGE
            | RequestCode.SEND_MESSAGE_V2
            | RequestCode.SEND_BATCH_MESSAGE
            | RequestCode.SEND_REPLY_MESSAGE
            | RequestCode.SEND_REPLY_MESSAGE_V2
        ):
            # The code does not decide which keys count: a request with both needs both permissions.
            if "topic" in fields:
                topic(fields["topic"], PUB)
            if "b" in fields or "topic" not in fields:
                topic(fields.get("b"), PUB)
        case RequestCode.CONSUMER_SEND_MSG_BACK:
            group(fields.get("group"))
        case RequestCode.PULL_MESSAGE | RequestCode.LITE_PULL_MESSAGE | RequestCode.UPDATE_CONSUMER_OFFSET:
            topic(fields.get("topic"), SUB)
            group(fields.get("consumerGroup"))
        case RequestCode.QUERY_MESSAGE:
            topic(fields.get("topic"), SUB)
        case RequestCode.UNREGISTER_CLIENT:
            if fields.get("consumerGroup"):
                group(fields.get("consumerGroup"))
        case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            group(fields.get("consumerGroup"))
        case RequestCode.HEART_BEAT:
            for data in fastjson.decode(command.body or b"{}", HeartbeatData).consumer_data_set or ():
                group(data.group_name)
                for subscription in data.subscription_data_set or ():
                    topic(subscription.topic, SUB)
    return needed


def parse_rules(files: Mapping[str, bytes]) -> AclRules:
    """Return the rules of files in the form of plain_acl.yml (path -> content); raises ConfigError naming the file."""
    white: list[AddressPattern] = []
    accounts: dict[str, Account] = {}
    entries: dict[str, _AclEntries] = {}
    for path, data in files.items():
        entries[path] = _read_yaml(data, _AclEntries, path)
        try:
            white += [AddressPattern.parse(text) for text in entries[path].global_white_remote_addresses or ()]
            for entry in entries[path].accounts or ():
                account = _account(entry)
                if account.access_key in accounts:
                    raise ValueError(f"the accessKey {account.access_key} is defined twice")
                accounts[account.access_key] = account
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
    return AclRules(white=tuple(white), accounts=accounts, entries=entries)


def parse_credentials(data: bytes, path: str) -> Credentials:
    """Return the account of a file in the form of tools.yml; raises ConfigError."""
    entries = _read_yaml(data, _ToolsEntries, path)
    return Credentials(
        access_key=str(entries.access_key),
        secret_key=str(entries.secret_key),
        security_token=entries.security_token,
    )


def _read_yaml(data: bytes, kind: type[Any], path: str) -> Any:
    try:
        if not data.strip():
            return kind()
        return msgspec.yaml.decode(data, type=kind)
    except ImportError as error:
        raise ConfigError(f"{path}: reading it needs PyYAML (pip install 'txrocketmq[acl]')") from error
    except (msgspec.MsgspecError, TypeError) as error:
        text = " ".join(str(error).replace('in "<byte string>", ', "").split())  # PyYAML writes several lines
        raise ConfigError(f"{path}: {text}") from error


def _account(entry: _AccountEntry) -> Account:
    access_key, secret_key = str(entry.access_key), str(entry.secret_key)
    if len(access_key) <= MIN_KEY_CHARS or len(secret_key) <= MIN_KEY_CHARS:
        raise ValueError(f"accessKey and secretKey of {access_key!r} must have more than {MIN_KEY_CHARS} characters")
    perms = dict(_resource(text) for text in entry.topic_perms or ())
    perms |= {RETRY_PREFIX + name: perm for name, perm in (_resource(text) for text in entry.group_perms or ())}
    return Account(
        access_key=access_key,
        secret_key=secret_key,
        white=AddressPattern.parse(entry.white_remote_address or ""),
        admin=entry.admin,
        default_topic_perm=_perm(entry.default_topic_perm or "DENY"),
        default_group_perm=_perm(entry.default_group_perm or "DENY"),
        perms=perms,
    )


def _resource(text: str) -> tuple[str, int]:
    name, equals, perm = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r} is no permission of the form name=PUB|SUB")
    return name.strip(), _perm(perm)


def _perm(text: str) -> int:
    try:
        return _PERMS[text.strip()]
    except KeyError:
        raise ValueError(f"{text!r} is no permission; one of {', '.join(_PERMS)} is expected") from None


# files in use


class Acl(Service):
    """
    The accounts of ``path`` (a file, or a folder of ``*.yml`` and ``*.yaml``) and of ``folder``, if it exists, in use.

    While the service runs, the files are read again every REFRESH_S; broken ones are logged and change nothing.
    """

    _log = Logger()

    def __init__(
        self, disk: Disk, clock: IReactorTime, path: str, admin_codes: Collection[int], *, folder: str | None = None
    ) -> None:
        self.rules = AclRules()
        self._disk = disk
        self._clock = clock
        self._path = path
        self._folder = folder
        self._admin_codes = admin_codes
        self._files: dict[str, bytes] = {}
        self._loaded_ms = 0
        self._trouble = ""
        self._throttle = LogThrottle()
        self._refresh = Periodic(clock, REFRESH_S, self.refresh, name=f"refresh of {path}")

    @property
    def default_file(self) -> str:
        """The file of new accounts."""
        return os.path.join(self._path, DEFAULT_FILE) if self._disk.is_dir(self._path) else self._path

    @property
    def versions(self) -> dict[str, DataVersion]:
        """The data version of each file by its path; of one that says none, the time when it was read."""
        return {
            path: entries.data_version[0] if entries.data_version else DataVersion(timestamp=self._loaded_ms)
            for path, entries in self.rules.entries.items()
            if self._files[path].strip()
        }

    def edit(self, path: str, change: Callable[[dict[str, Any]], object]) -> None:
        """
        Apply ``change`` to the content of a file, raise its version, write it and use it; all or nothing.

        The file is read first, so changes made with an editor stay, but for comments. Raises ConfigError if the
        files would be unusable then or have no admin, or cannot be written. What ``change`` raises changes nothing.
        """
        # Lazy import: PyYAML is an extra.
        import yaml

        files = self._read()
        before = parse_rules(files)
        content = yaml.safe_load(files.get(path, b"")) or {}
        change(content)
        version = (content.get("dataVersion") or [{}])[0]
        content["dataVersion"] = [{"counter": int(version.get("counter", 0)) + 1, "timestamp": now_ms(self._clock)}]
        files[path] = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
        if parse_rules(files).admins == 0 < before.admins:
            raise ConfigError("no account with admin: true would be left, and only the file could be changed then")
        try:
            self._disk.write_atomic(path, files[path])
        except DiskError as error:
            raise ConfigError(str(error)) from error
        self._take(files)

    def startService(self) -> None:
        """Raises ConfigError, naming the file, when the accounts cannot be read."""
        self._take(self._read())
        super().startService()
        self._refresh.start()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return self._refresh.stop()

    def refresh(self) -> None:
        """Read the files again and use them if they have changed and are valid."""
        try:
            files = self._read()
            if files != self._files:
                self._check_emptied(files)
                self._take(files)
        except ConfigError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._log.error("access control: {error}; the accounts read before stay in use", error=error)
            return
        self._trouble = ""

    def _check_emptied(self, files: Mapping[str, bytes]) -> None:
        """Raise ConfigError for a file that became empty: it is probably being rewritten."""
        for path, data in files.items():
            if not data.strip() and self._files.get(path, b"").strip():
                raise ConfigError(f"{path}: it is empty now; a file without accounts says accounts: []")

    def check(self, command: RemotingCommand, channel: Channel) -> None:
        """Raise Refuse (NO_PERMISSION) unless this request is allowed."""
        host = channel.peer.rpartition(":")[0]
        problem = self.rules.problem(command, host, self._admin_codes)
        if problem is None:
            return
        self._log_refusal(f"{host}, request {command.code}: {problem}")
        raise Refuse(ResponseCode.NO_PERMISSION, REMARK_PREFIX + problem)

    def admitted(self, data: bytes, position: int, code: int, channel: Channel) -> int:
        """Return where the request at ``position`` ends if it is allowed; else ``position``, and check() says why."""
        return self.rules.admitted(data, position, code, channel.peer, self._admin_codes)

    def _log_refusal(self, text: str) -> None:
        text = text[:MAX_LOGGED_CHARS]
        suppressed = self._throttle.admit(text, steady_ms(self._clock))
        if suppressed is not None:
            self._log.warn(
                "access control refuses {text}{repeats}",
                text=text,
                suppressed=suppressed,
                repeats=repeats(suppressed),
            )

    def _read(self) -> dict[str, bytes]:
        disk = self._disk
        try:
            paths = self._list(self._folder) if self._folder is not None and disk.is_dir(self._folder) else []
            if disk.is_dir(self._path):
                paths += self._list(self._path)
            elif not paths or disk.exists(self._path):
                paths.append(self._path)
            return {path: disk.read_whole(path) for path in paths}
        except DiskError as error:
            raise ConfigError(f"aclFile: {error}") from error

    def _list(self, folder: str) -> list[str]:
        """Return the files of accounts in ``folder`` and below.  Java: PlainPermissionManager#getAllAclFiles"""
        found: list[str] = []
        for name in sorted(self._disk.list_dir(folder)):
            path = os.path.join(folder, name)
            if self._disk.is_dir(path):
                found += self._list(path)
            elif name.endswith((".yml", ".yaml")) and name != TOOLS_FILE:
                found.append(path)
        return found

    def _take(self, files: dict[str, bytes]) -> None:
        rules = parse_rules(files)
        self.rules, self._files, self._loaded_ms = rules, files, now_ms(self._clock)
        self._log.info(
            "access control: {count} accounts of {path} are in use, {admins} of them admins",
            count=len(rules.accounts),
            path=self._path,
            admins=rules.admins,
        )


def acl_of(
    config: AclConfig, rocketmq_home: str | None, disk: Disk, clock: IReactorTime, admin_codes: Collection[int]
) -> Acl | None:
    """Return the service for ``config``, None without aclEnable; raises ConfigError when no file is named."""
    if not config.acl_enable:
        return None
    if config.acl_file is not None:
        return Acl(disk, clock, config.acl_file, admin_codes)
    if not rocketmq_home:
        raise ConfigError(
            "aclEnable=true needs aclFile, the file with the accounts (or rocketmqHome, or ROCKETMQ_HOME in the "
            "environment)"
        )
    conf = os.path.join(rocketmq_home, "conf")
    return Acl(disk, clock, os.path.join(conf, DEFAULT_FILE), admin_codes, folder=os.path.join(conf, "acl"))


class OwnAccount:
    """
    The account of a file in the form of tools.yml, with which this process signs its requests.

    The file is read again for each request, so that a new key counts at once; a broken file is logged and changes
    nothing. Making one raises ConfigError.
    """

    _log = Logger()

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._data: bytes | None = None
        self._credentials: Credentials
        self._trouble = ""
        self._read()

    def sign(self, command: RemotingCommand) -> None:
        trouble = ""
        try:
            self._read()
        except ConfigError as error:
            trouble = str(error)
            if trouble != self._trouble:
                self._log.error("{error}; requests are signed with the account read before", error=error)
        self._trouble = trouble
        self._credentials.sign(command)

    def _read(self) -> None:
        try:
            data = self._disk.read_whole(self._path)
        except DiskError as error:
            raise ConfigError(f"aclToolsFile: {error}") from error
        if data != self._data:
            self._credentials = parse_credentials(data, self._path)
            self._data = data


def signer_of(config: AclConfig, disk: Disk) -> Callable[[RemotingCommand], None] | None:
    """Return the signer of our own requests, None without aclToolsFile; raises ConfigError."""
    return None if config.acl_tools_file is None else OwnAccount(disk, config.acl_tools_file).sign
