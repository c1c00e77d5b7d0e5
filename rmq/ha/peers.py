"""Who may connect to the HA port: the networks of ``haAllowedPeers``."""

from __future__ import annotations

import ipaddress


class AllowedPeers:
    """
    Networks in CIDR notation or single addresses, separated by ``;`` or ``,``; an empty text admits everybody.

    A ValueError names an item that is neither.
    """

    def __init__(self, text: str = "") -> None:
        items = [item.strip() for item in text.replace(",", ";").split(";")]
        self._networks = []
        for item in filter(None, items):
            try:
                self._networks.append(ipaddress.ip_network(item))
            except ValueError as error:
                raise ValueError(
                    f"haAllowedPeers: {item!r} is no network (such as 10.1.0.0/16) or address: {error}"
                ) from None

    def __str__(self) -> str:
        return ", ".join(map(str, self._networks)) or "everybody"

    def admits(self, host: str) -> bool:
        """Tell whether a peer at ``host``, an IP address, may connect; IPv4 in IPv6 clothes counts as IPv4."""
        if not self._networks:
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address.version == network.version and address in network for network in self._networks)
