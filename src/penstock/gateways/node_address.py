"""Where doors listen, and which address a client is told to connect to.

    advertised is set            that one
    listens on one address       that one
    listens on every address     the one that this client's connection came in by: it has just been reached there

A wildcard (0.0.0.0, ::) is never told: to a client on another machine it means that machine itself.
"""

from __future__ import annotations

import ipaddress

import msgspec

from penstock.base.config_error import ConfigError


class NodeAddress(msgspec.Struct, frozen=True):
    """Who and where this node is. An empty host: wherever the client came in."""

    node_id: int
    host: str
    port: int
    cluster_id: str

    def told_to(self, local: tuple[str, int] | None) -> NodeAddress:
        """As a client is told whose connection ends at `local` on this side; None: it has none, or none any more."""
        if self.host or local is None:
            return self
        return msgspec.structs.replace(self, host=reachable_host(local[0]), port=local[1])


def is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def host_to_tell(listened_on: str, advertised: str | None) -> str:
    """Empty where each client is told another one."""
    if advertised is not None:
        return advertised
    return "" if is_wildcard(listened_on) else listened_on


def reachable_host(host: str) -> str:
    """The address of a socket as another machine writes it: without our own interface's name, and an IPv4 address that
    came in by an IPv6 socket as IPv4."""
    plain = host.partition("%")[0]
    try:
        mapped = ipaddress.IPv6Address(plain).ipv4_mapped
    except ValueError:
        return plain
    return plain if mapped is None else str(mapped)


def join_address(host: str, port: int) -> str:
    """`HOST:PORT`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str, what: str) -> tuple[str, int]:
    """`HOST:PORT`, where port 0 picks a free one."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{what}: {address!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def advertised_address(address: str) -> tuple[str, int] | None:
    """None where nothing is said: then it depends on what is listened on."""
    if not address:
        return None
    host, port = split_address(address, "kafka advertised")
    if is_wildcard(host) or address.startswith(":") or not port:
        raise ConfigError(
            f"kafka advertised: {address!r} is not an address that a client could connect to; give the name or address "
            "by which clients reach this machine, and the port"
        )
    return host, port
