"""TLS, access control and resource limits of listeners and clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from twisted.application.service import MultiService

from rmq.remoting.aclconfig import AclConfig
from rmq.remoting.limits import RemotingLimits, Seats
from rmq.remoting.responders import ResponderTable
from rmq.runtime.config import ConfigError, config_fields, format_value
from rmq.runtime.disk.openlimit import sockets_of
from rmq.runtime.platform import Platform
from rmq.runtime.tls.config import TlsConfig, resolve_tls
from rmq.runtime.tls.context import ClientTls, ServerTls

if TYPE_CHECKING:
    from rmq.remoting.acl import Acl
    from rmq.wire.command import RemotingCommand

#: in the order of AccessSetup's fields
ACCESS_CLASSES: tuple[type, ...] = (TlsConfig, AclConfig, RemotingLimits)


def _keys() -> frozenset[str]:
    kinds: tuple[Any, ...] = ACCESS_CLASSES
    return frozenset(field.key for kind in kinds for field in config_fields(kind))


#: Never changed over the network, even if configWhiteList has them: a change would give access to the process.
NEVER = _keys() | {"configBlackList", "configWhiteList"}


def local_keys(classes: Sequence[type]) -> frozenset[str]:
    """
    Return the keys of ``classes`` that a request may change only if ``configWhiteList`` names them.

    These are addresses, access control, the role, paths and file formats; each is declared with ``local``.
    """
    fields = (field for cls in classes for field in config_fields(cls) if field.local)
    return frozenset(name for field in fields for name in (field.key, *field.aliases))


def check_white_list(white_list: str, classes: Sequence[type]) -> None:
    """Raise ConfigError for a ``configWhiteList`` with keys that it cannot allow."""
    for key in sorted(_listed(white_list) - (local_keys(classes) - NEVER)):
        why = "never changed over the network" if key in NEVER else "no key that needs to be allowed"
        raise ConfigError(f"configWhiteList={white_list!r} is wrong: {key} is {why}")


def refused_keys(changes: Collection[str], classes: Sequence[type], *, black_list: str, white_list: str) -> list[str]:
    """
    Return the keys of ``changes`` that no request may change.

    Java: AdminBrokerProcessor#validateBlackListConfigExist, which knows a black list only
    """
    local = local_keys(classes) - _listed(white_list)
    return sorted((NEVER | local | _listed(black_list)) & set(changes))


def refusal_remark(keys: Collection[str]) -> str:
    """Return Apache's remark with the refused keys."""
    return f"Can not update config in black list. Only the configuration file changes {', '.join(keys)}"


def _listed(text: str) -> set[str]:
    return {key.strip() for key in text.split(";") if key.strip()}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AccessSetup:
    """The loaded configuration of TLS, access control and limits."""

    tls: TlsConfig = attrs.field(factory=TlsConfig)
    acl: AclConfig = attrs.field(factory=AclConfig)
    limits: RemotingLimits = attrs.field(factory=RemotingLimits)

    @classmethod
    def of(cls, configs: Collection[Any]) -> AccessSetup:
        """Return the setup of loaded configs, one for each of ACCESS_CLASSES, in order."""
        tls, acl, limits = configs
        return cls(tls=tls, acl=acl, limits=limits)

    def changed(self) -> Mapping[str, str]:
        """
        Return the keys with other values than the default.

        A rewritten configuration file has to keep them. They hold passwords and must not be sent to clients.
        """
        parts: tuple[Any, ...] = (self.tls, self.acl, self.limits)
        return {
            field.key: format_value(getattr(config, field.name))
            for config in parts
            for field in config_fields(config.__class__)
            if getattr(config, field.name) != field.default
        }


class Access(MultiService):
    """
    The parts made from an :class:`AccessSetup`; starts before the ports, so that certificates and accounts are loaded.

    Making one raises ConfigError for a setup that cannot work, starting it for files that cannot be used.
    """

    def __init__(
        self, platform: Platform, setup: AccessSetup, *, rocketmq_home: str | None, admin_codes: Collection[int]
    ) -> None:
        super().__init__()
        clock, disk = platform.reactor, platform.disk
        terms = resolve_tls(setup.tls, disk)
        self.limits = setup.limits
        most = platform.max_open_files
        self.seats = Seats(None if most is None else sockets_of(most))
        self.tls = ServerTls(disk, clock, terms)
        self.client_tls = ClientTls(disk, clock, terms) if terms.dial else None
        self.acl: Acl | None = None
        self.sign: Callable[[RemotingCommand], None] | None = None
        if setup.acl.acl_enable or setup.acl.acl_tools_file is not None:
            # Lazy import: needed with aclEnable only.
            from rmq.remoting.acl import acl_of, signer_of

            self.acl = acl_of(setup.acl, rocketmq_home, disk, clock, admin_codes)
            self.sign = signer_of(setup.acl, disk)
        self.tls.setServiceParent(self)
        if self.acl is not None:
            self.acl.setServiceParent(self)

    def guard(self, responders: ResponderTable, codes: Collection[int] | None = None) -> None:
        """Check requests of ``codes`` (default: all), if access control is on."""
        if self.acl is not None:
            responders.guard_with(self.acl.check, codes, admitted=self.acl.admitted)

    def startService(self) -> None:
        try:
            if self.client_tls is not None:
                self.client_tls.load()
            super().startService()
        except ConfigError:
            self.stopService()
            raise
