"""Where a broker listens: `HOST:PORT`, several separated by commas, IPv6 in brackets."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.net.errors import ClientError

PORT_DEFAULT: Final = 9092


class AddressInvalidError(ClientError):
    """The text is no address."""


class Address(msgspec.Struct, frozen=True, order=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """A bootstrap list; at least one address."""
    addresses = tuple(parse_address(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise AddressInvalidError("the bootstrap address is empty, expected HOST:PORT")
    return addresses


def parse_address(text: str) -> Address:
    host, port_text = _split(text)
    if not port_text:
        return Address(host, PORT_DEFAULT)
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise AddressInvalidError(f"{text!r} is no address: {port_text!r} is no port between 1 and 65535")
    return Address(host, int(port_text))


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise AddressInvalidError(f"{text!r} is no address, expected [HOST]:PORT")
        return host, rest[1:]
    host, _, port_text = text.partition(":")
    if not host or ":" in port_text:
        raise AddressInvalidError(f"{text!r} is no address, expected HOST:PORT (IPv6 as [HOST]:PORT)")
    return host, port_text
