"""Who gets in, and what a process says about itself when it knocks elsewhere: TLS, accounts and limits together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from twisted.application.service import MultiService

from rmq.remoting.aclconfig import AclConfig
from rmq.remoting.limits import RemotingLimits, Seats
from rmq.remoting.responders import ResponderTable
from rmq.runtime.config import ConfigError, config_fields, format_value
from rmq.runtime.openlimit import sockets_of
from rmq.runtime.platform import Platform
from rmq.runtime.tls import ClientTls, ServerTls
from rmq.runtime.tlsconfig import TlsConfig, resolve_tls

if TYPE_CHECKING:
    from rmq.remoting.acl import Acl
    from rmq.wire.command import RemotingCommand

#: in the order of AccessSetup's fields
ACCESS_CLASSES: tuple[type, ...] = (TlsConfig, AclConfig, RemotingLimits)


def _keys() -> frozenset[str]:
    kinds: tuple[Any, ...] = ACCESS_CLASSES
    return frozenset(field.key for kind in kinds for field in config_fields(kind))


#: Never changed over the network, whatever configWhiteList says: who may change them can let himself in.
NEVER = _keys() | {"configBlackList", "configWhiteList"}


def local_keys(classes: Sequence[type]) -> frozenset[str]:
    """
    Return the keys of ``classes`` that a request changes only where ``configWhiteList`` names them.

    They say where the process listens and is found, whom it connects to, who may use it, which role it has, where its
    files are and which form they have; each is declared with ``local``.
    """
    fields = (field for cls in classes for field in config_fields(cls) if field.local)
    return frozenset(name for field in fields for name in (field.key, *field.aliases))


def check_white_list(white_list: str, classes: Sequence[type]) -> None:
    """Raise ConfigError for a ``configWhiteList`` that names anything but keys that it can allow."""
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
    """Return Apache's words, and which keys they are about."""
    return f"Can not update config in black list. Only the configuration file changes {', '.join(keys)}"


def _listed(text: str) -> set[str]:
    return {key.strip() for key in text.split(";") if key.strip()}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AccessSetup:
    """The configuration of it, as loaded."""

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
        Return the keys that are not as by default.

        Who writes a configuration file anew has to keep them; they hold passwords and are not for the wire.
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
    The parts made from an :class:`AccessSetup`; starts before the ports, so that they know certificates and accounts.

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
            # Accounts and what reads requests for them are not needed where nobody asks who asks.
            from rmq.remoting.acl import acl_of, signer_of

            self.acl = acl_of(setup.acl, rocketmq_home, disk, clock, admin_codes)
            self.sign = signer_of(setup.acl, disk)
        self.tls.setServiceParent(self)
        if self.acl is not None:
            self.acl.setServiceParent(self)

    def guard(self, responders: ResponderTable, codes: Collection[int] | None = None) -> None:
        """Have requests of ``codes`` (default: all) checked, if access control is on."""
        if self.acl is not None:
            responders.guard_with(self.acl.check, codes)

    def startService(self) -> None:
        try:
            if self.client_tls is not None:
                self.client_tls.load()
            super().startService()
        except ConfigError:
            self.stopService()
            raise
