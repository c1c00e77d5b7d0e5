"""``rmq-admin config check``: property files, read with the servers' own code, then compared with each other."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import attrs

from rmq.admin.command import DIFFERENT, OK, Call, Outcome, WrongUse, argument, command, tabular
from rmq.broker.config import CONFIG_CLASSES as BROKER_CLASSES
from rmq.broker.config import BrokerSetup, resolve, second_master, unreachable
from rmq.namesrv.config import CONFIG_CLASSES as NAMESRV_CLASSES
from rmq.namesrv.config import check_controller
from rmq.remoting.access import ACCESS_CLASSES, AccessSetup
from rmq.remoting.acl import parse_credentials, parse_rules
from rmq.runtime.config import (
    ConfigError,
    ConfigField,
    about_unknown,
    config_fields,
    format_value,
    load,
    refuse_brackets,
)
from rmq.runtime.disk.error import DiskError
from rmq.runtime.disk.files import Disk
from rmq.runtime.properties import decode_text, numbered_entries
from rmq.runtime.tap import COMPLAINT, CONFIGURATION, NAMESRV_KEY, check_addresses
from rmq.runtime.tls.config import TlsConfig, resolve_tls
from rmq.store.config import BrokerRole

#: the host of a file that names none; a documentation address, no server has it
NO_HOST = "192.0.2.0"

#: a key that only files of another process of Apache's have, and what such a file is
FOREIGN_FILES = {
    "brokerConfigPaths": "a file of Apache's BrokerContainer, which does not exist here: start one rmq-broker with "
    "each of the files that it names, and check those",
    **dict.fromkeys(
        ("controllerDLegerGroup", "controllerDLegerSelfId", "controllerType", "jRaftGroupId", "jRaftServerId"),
        "a file of Apache's controller as a process of its own; here the controller runs in a NameServer, "
        "with enableControllerInNamesrv=true in its file",
    ),
}
IN_NAMESRV = "enableControllerInNamesrv"

#: what a host name may be; with digits only behind the last dot it would be an address
HOST_NAME = re.compile(r"(?:[\w-]{1,63}\.)*(?!\d+\.?$)[\w-]{1,63}\.?")

#: keys with a file that holds a secret
SECRET_FILES = ("tls.server.keyPath", "tls.client.keyPath", "aclFile", "aclToolsFile")
OTHER_FILES = (
    "tls.config.file", "tls.server.certPath", "tls.client.certPath", "tls.server.trustCertPath",
    "tls.client.trustCertPath",
)  # fmt: skip


@attrs.frozen
class Finding:
    """A mistake: file, line (0: the whole file), key and why; a row of the output."""

    file: str
    line: int
    key: str
    why: str


@attrs.define(eq=False)
class Source:
    """A file as it was read: its entries, and what is wrong with it."""

    path: str
    values: dict[str, str] = attrs.field(factory=dict)
    lines: dict[str, int] = attrs.field(factory=dict)
    findings: list[Finding] = attrs.field(factory=list)

    def find(self, key: str, why: str) -> None:
        """Add a finding; of a key that is not in the file, one about the whole file."""
        finding = Finding(self.path, self.lines.get(key, 0), key, why)
        if finding not in self.findings:
            self.findings.append(finding)

    def find_error(self, error: Exception) -> str | None:
        """Add an error of the servers' code, and return the key that it is about."""
        found = COMPLAINT.fullmatch(str(error))
        key = found["key"] if found is not None and found["key"] in self.values else None
        self.find(key or "", found["text"] if found is not None else str(error))
        return key


@attrs.frozen(eq=False)
class Broker:
    """A broker's file that loads."""

    source: Source
    setup: BrokerSetup

    @property
    def group(self) -> str:
        return self.setup.broker.broker_name or ""

    @property
    def ports(self) -> dict[int, str]:
        port = self.setup.server.listen_port
        return {
            port - 2: "its VIP port, listenPort - 2",
            port: "listenPort",
            port + 1: "its HA port, listenPort + 1",
        }

    @property
    def host(self) -> str | None:
        return host_of(self.source.values)


@attrs.frozen(eq=False)
class Namesrv:
    """A NameServer's file that loads."""

    source: Source
    listen_port: int

    @property
    def ports(self) -> dict[int, str]:
        return {self.listen_port: "listenPort"}

    @property
    def host(self) -> str | None:
        return host_of(self.source.values)


@command(
    "config check",
    "check property files of servers: each as its server would read it, and all of them together",
    argument(
        "files", nargs="+", metavar="FILE", help="of a broker or NameServer, tls.properties, plain_acl.yml, tools.yml"
    ),
)
async def config_check(call: Call) -> Outcome:
    """Read the files; no server is asked. Status 2 when something is found."""
    disk = call.platform.disk
    sources: list[Source] = []
    brokers: list[Broker] = []
    namesrvs: list[Namesrv] = []
    for path in call.options.files:
        try:
            data = disk.read_whole(path)
        except FileNotFoundError as error:
            raise WrongUse(f"{path}: no such file") from error
        except DiskError as error:
            raise WrongUse(str(error)) from error
        source = Source(path)
        sources.append(source)
        if path.endswith((".yml", ".yaml")):
            check_accounts(source, data)
            continue
        if not _read_entries(source, data) or _is_foreign(source):
            continue
        kind = kind_of(source)
        if kind is TlsConfig:
            check_tls(source, disk)
        elif kind is Broker:
            brokers += check_broker(source, disk)
        else:
            namesrvs += check_namesrv(source, disk)
    check_together(brokers, namesrvs)
    findings = [finding for source in sources for finding in source.findings]
    return tabular(
        ("file", "line", "key", "why"),
        [(one.file, one.line, one.key, one.why) for one in findings],
        nothing=f"nothing found in {len(sources)} files",
        status=DIFFERENT if findings else OK,
    )


def host_of(values: Mapping[str, str]) -> str | None:
    """
    Return what identifies the machine of a server, if its file does: an address, or "this" beside 127.0.0.1.

    Servers that dial their NameServers at a loopback address are on one machine with them.
    """
    for key in ("brokerIP1", "bindAddress"):
        address = values.get(key, "")
        if address and not _is_loopback(address) and not _is_any(address):
            return address
    addresses = [part.rpartition(":")[0] for part in values.get(NAMESRV_KEY, "").split(";") if part.strip()]
    if any(map(_is_loopback, [*addresses, values.get("brokerIP1", "")])):
        return "this"
    return None


def kind_of(source: Source) -> type:
    """Return whose file it is: that of the kind which knows most of its keys, in doubt what its name says."""
    if source.values and all(key.startswith("tls.") for key in source.values):
        return TlsConfig
    unknown = {
        kind: len(source.values.keys() - _fields((*classes, *ACCESS_CLASSES)).keys())
        for kind, classes in ((Broker, BROKER_CLASSES), (Namesrv, NAMESRV_CLASSES))
    }
    if unknown[Broker] == unknown[Namesrv]:
        return Namesrv if "namesrv" in os.path.basename(source.path).lower() else Broker
    return min(unknown, key=lambda kind: unknown[kind])


# one file


def _read_entries(source: Source, data: bytes) -> bool:
    try:
        for line, key, value in numbered_entries(decode_text(data), CONFIGURATION):
            if source.values.get(key, value) != value:
                source.lines[key] = line
                source.find(key, f"a second value, {value!r}; the first, {source.values[key]!r}, does not count")
            source.values[key], source.lines[key] = value, line
    except ConfigError as error:
        source.find("", str(error).removeprefix(f"{CONFIGURATION}, "))
        return False
    return True


def _is_foreign(source: Source) -> bool:
    """Add what a file is that no server here reads; its keys are not looked at then."""
    if source.values.get(IN_NAMESRV, "").strip().lower() == "true":
        return False
    for key, what in FOREIGN_FILES.items():
        if key in source.values:
            source.find(key, what)
            return True
    return False


def check_accounts(source: Source, data: bytes) -> None:
    """Check a file of accounts, or of one account."""
    try:
        if b"accounts:" in data or b"globalWhiteRemoteAddresses:" in data:
            parse_rules({source.path: data})
        else:
            parse_credentials(data, source.path)
    except ConfigError as error:
        source.find("", str(error).removeprefix(f"{source.path}: "))


def check_tls(source: Source, disk: Disk) -> None:
    """Check a file for tls.config.file."""
    configs = _loaded(source, (TlsConfig,))
    if configs is not None:
        _check_terms(source, configs[0], disk)


def check_namesrv(source: Source, disk: Disk) -> list[Namesrv]:
    """Check a NameServer's file by itself; return it if it can be compared with others."""
    configs = _loaded(source, (*NAMESRV_CLASSES, *ACCESS_CLASSES))
    if configs is None:
        return []
    namesrv, netty, controller, *access = configs
    try:
        check_controller(namesrv, controller)
    except ConfigError as error:
        source.find_error(error)
    _check_terms(source, access[0], disk)
    try:
        refuse_brackets("bindAddress", netty.bind_address)
    except ConfigError as error:
        source.find_error(error)
    return [Namesrv(source, netty.listen_port)]


def check_broker(source: Source, disk: Disk) -> list[Broker]:
    """Check a broker's file by itself; return it if it can be compared with others."""
    configs = _loaded(source, (*BROKER_CLASSES, *ACCESS_CLASSES))
    if configs is None:
        return []
    broker, server, client, store, extra, *access = configs
    given = BrokerSetup(
        broker=broker, server=server, client=client, store=store, extra=extra, access=AccessSetup.of(access)
    )
    try:
        if broker.namesrv_addr:
            check_addresses(broker.namesrv_addr, CONFIGURATION)
        setup = resolve(given, host_address=NO_HOST, host_name="")
    except ConfigError as error:
        source.find_error(error)
        return []
    if doubt := second_master(given):
        source.find("brokerId", doubt)
    for key, text in unreachable(given):
        source.find(key, text)
    for key, why in store.unsupported():
        source.find(key, f"has no effect: {why}")
    _check_terms(source, access[0], disk)
    hosts = [addr.rpartition(":")[0] for addr in setup.namesrv_addrs]
    for key, address in (("brokerIP1", broker.broker_ip1), ("brokerIP2", broker.broker_ip2)):
        if address and not _is_host(address):
            source.find(key, f"{address} is no IP address, and cannot be a host name")
        if address and _is_loopback(address) and hosts and not any(map(_is_loopback, hosts)):
            source.find(
                key, f"{address} would be registered at NameServers of other machines: clients there cannot dial it"
            )
    return [Broker(source, setup)]


def _is_host(text: str) -> bool:
    """Tell whether a text can be a host; whether the name is known is not looked up here."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return HOST_NAME.fullmatch(text) is not None
    return True


def _loaded(source: Source, classes: Sequence[type]) -> tuple[Any, ...] | None:
    """Return the instances of ``classes``; None after values that do not load."""
    fields = _fields(classes)
    values = dict(source.values)
    is_wrong = False
    while True:
        try:
            loaded = load(classes, values, CONFIGURATION)
            break
        except ConfigError as error:
            is_wrong = True
            key = source.find_error(error)
            if key not in values:
                return None
            # There may be more.
            del values[key]
    for key in loaded.unknown:
        source.find(key, f"unknown key{about_unknown(key, classes)}")
    for alias, key in loaded.legacy.items():
        source.find(alias, f"an old spelling of {key}")
    for key, text in values.items():
        if key in fields and is_without_effect(fields[key]) and text != format_value(fields[key].default):
            source.find(key, f"has no effect here ({fields[key].doc})")
    return None if is_wrong else loaded.configs


def is_without_effect(field: ConfigField) -> bool:
    """Tell whether a key exists only because files in use have it."""
    return "no effect" in field.doc or " in Apache; " in field.doc


def _fields(classes: Iterable[type]) -> dict[str, ConfigField]:
    return {name: field for cls in classes for field in config_fields(cls) for name in (field.key, *field.aliases)}


def _check_terms(source: Source, tls: TlsConfig, disk: Disk) -> None:
    """Check TLS as the start would, then the files that are named: they are there, and secret ones are secret."""
    try:
        resolve_tls(attrs.evolve(tls, config_file=None) if not _is_here(tls.config_file) else tls, disk)
    except ConfigError as error:
        source.find_error(error)
    for key in (*SECRET_FILES, *OTHER_FILES):
        path = source.values.get(key)
        if not path or not _is_here(path):
            continue
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            source.find(key, f"{path}: {error.strerror}")
            continue
        if key in SECRET_FILES and mode & stat.S_IRWXO:
            source.find(key, f"{path} is open to all users (mode {stat.S_IMODE(mode):o}): chmod 600")


def _is_here(path: str | None) -> bool:
    """Tell whether a path is one of this machine: its folder exists. Files are also checked where no server runs."""
    return path is not None and os.path.isdir(os.path.dirname(path) or ".")


# all files


def check_together(brokers: Sequence[Broker], namesrvs: Sequence[Namesrv]) -> None:
    """Add what is wrong between files."""
    for group in sorted({broker.group for broker in brokers} - {""}):
        check_group([broker for broker in brokers if broker.group == group], alone=len(brokers) == 1)
    servers: list[Namesrv | Broker] = [*namesrvs, *brokers]
    for one, other in combinations(servers, 2):
        if one.host is not None and one.host == other.host:
            check_neighbours(one, other)
    _check_equal(
        brokers,
        lambda broker: broker.setup.broker.broker_cluster_name,
        lambda broker: ";".join(sorted(broker.setup.namesrv_addrs)),
        NAMESRV_KEY,
        "the cluster {group} has other NameServers in {path}: {value}",
    )


def check_group(group: Sequence[Broker], *, alone: bool) -> None:
    """Check the members of one group; ``alone``: the only file, so that the other members cannot be known."""
    masters = [broker for broker in group if not broker.setup.is_slave]
    slaves = [broker for broker in group if broker.setup.is_slave]
    elected = [broker for broker in group if broker.setup.broker.enable_controller_mode]
    for broker in () if elected else masters[1:]:
        broker.source.find("brokerName", f"{broker.group} has a master in {masters[0].source.path} already")
    ids = Counter(broker.setup.broker.broker_id for broker in slaves)
    for broker in slaves:
        broker_id = broker.setup.broker.broker_id
        if ids[broker_id] > 1:
            broker.source.find("brokerId", f"{broker_id} is the id of {ids[broker_id]} slaves of {broker.group}")
    for key, value, why in (
        (
            "brokerClusterName",
            lambda b: b.setup.broker.broker_cluster_name,
            "{path} has {value}",
        ),
        (
            "enableControllerMode",
            lambda b: format_value(b.setup.broker.enable_controller_mode),
            "{path} has {value}",
        ),
        ("controllerAddr", lambda b: b.setup.broker.controller_addr, "{path} has {value}"),
        ("mappedFileSizeCommitLog", lambda b: b.setup.store.mapped_file_size_commit_log, "{path} has {value}"),
        ("haTlsEnable", lambda b: format_value(b.setup.store.ha_tls_enable), "{path} has {value}"),
    ):
        text = f"must be equal in the group {{group}}: {why}"
        _check_equal(group, lambda broker: broker.group, cast("Callable[[Broker], object]", value), key, text)
    if alone:
        return
    if elected:
        if len(group) == 1:
            group[0].source.find("enableControllerMode", f"{group[0].group} has no other broker that could take over")
        return
    for broker in masters:
        store = broker.setup.store
        if store.broker_role is BrokerRole.SYNC_MASTER and not slaves:
            broker.source.find(
                "brokerRole", f"SYNC_MASTER, but {broker.group} has no slave: no send is answered SEND_OK"
            )
        elif store.in_sync_replicas > 1 + len(slaves):
            members = 1 + len(slaves)
            broker.source.find("inSyncReplicas", f"{store.in_sync_replicas}, but {broker.group} has {members} members")
    if not masters:
        slaves[0].source.find("brokerName", f"{slaves[0].group} has no master in these files")


def check_neighbours(one: Broker | Namesrv, other: Broker | Namesrv) -> None:
    """Check two servers of one machine: their ports, and their folders."""
    for port, what in other.ports.items():
        if port in one.ports:
            other.source.find("listenPort", f"{port} ({what}) collides with {one.source.path} ({one.ports[port]})")
            break
    if isinstance(one, Broker) and isinstance(other, Broker):
        mine, others = one.setup.store.store_path_root_dir, other.setup.store.store_path_root_dir
        if os.path.normpath(mine) == os.path.normpath(others):
            other.source.find("storePathRootDir", f"{others} is the store of {one.source.path} too")


def _check_equal(
    brokers: Sequence[Broker],
    group_of: Callable[[Broker], str],
    value_of: Callable[[Broker], object],
    key: str,
    why: str,
) -> None:
    """Add a finding to each broker whose value differs from that of the first of its group."""
    firsts: dict[str, Broker] = {}
    for broker in brokers:
        first = firsts.setdefault(group_of(broker), broker)
        if value_of(first) != value_of(broker):
            broker.source.find(key, why.format(group=group_of(broker), path=first.source.path, value=value_of(first)))


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_any(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip().strip("[]"))
    except ValueError:
        return None
