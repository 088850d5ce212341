"""Where a node's metadata are, and how it gets in: `sqlite:PATH`, or `etcd:URL,URL[/PREFIX]`.

    etcd:http://a:2379,http://b:2379,http://c:2379/penstock-one

Every member that may be asked, then what all keys begin with, so that several clusters can share one etcd.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

SQLITE: Final = "sqlite"
ETCD: Final = "etcd"
CLIENT_PORT_DEFAULT: Final = 2379
_PORT_MAX: Final = 65535

# Never shown, wherever a setting is told of.
Secret = Annotated[str, msgspec.Meta(extra={"is_secret": True})]


class LocationInvalidError(Exception):
    """The text says no place where metadata could be."""


class MetadataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to get into etcd; nothing of it matters to SQLite."""

    user: str = ""
    password: Secret = ""
    # PEM files, for https: who is believed, and who this node is.
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    # Versions that are known to lose changes of a watch. For development, where no other can be had.
    allow_old_etcd: bool = False

    def __repr__(self) -> str:
        return f"MetadataConfig(user={self.user!r}, …)"

    def check(self) -> str | None:
        """Why these settings cannot be meant; None if all is well."""
        if bool(self.user) != bool(self.password):
            return "user and password: one of them is missing"
        if bool(self.cert_file) != bool(self.key_file):
            return "cert_file and key_file: one of them is missing"
        return None


class EtcdMember(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


class SqliteLocation(msgspec.Struct, frozen=True):
    path: str


class EtcdLocation(msgspec.Struct, frozen=True):
    members: tuple[EtcdMember, ...]
    # Before every key: empty, or a slash and a name.
    prefix: str = ""


def parse_location(text: str) -> SqliteLocation | EtcdLocation:
    """Raises LocationInvalidError with one sentence."""
    kind, _, rest = text.partition(":")
    if kind == SQLITE and rest:
        return SqliteLocation(rest)
    if kind == ETCD and rest:
        return _parse_etcd(rest)
    raise LocationInvalidError(f"{text!r} is neither sqlite:PATH nor etcd:URL,URL[/PREFIX]")


def _parse_etcd(text: str) -> EtcdLocation:
    urls = [url.strip() for url in text.split(",")]
    members = tuple(_parse_member(url, is_last=place == len(urls) - 1) for place, url in enumerate(urls))
    prefix = urlsplit(urls[-1]).path.rstrip("/")
    if not prefix.isascii():
        raise LocationInvalidError(f"the prefix {prefix!r} of etcd's keys may hold ASCII only")
    if len({member.is_tls for member in members}) > 1:
        raise LocationInvalidError("etcd's addresses are http:// and https:// at once")
    return EtcdLocation(members, prefix)


def _parse_member(url: str, *, is_last: bool) -> EtcdMember:
    wrong = LocationInvalidError(f"{url!r} is no address of an etcd member, expected http://HOST:PORT")
    try:
        parts = urlsplit(url)
        port = CLIENT_PORT_DEFAULT if parts.port is None else parts.port
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not 0 < port <= _PORT_MAX:
        raise wrong
    if parts.username is not None:
        # Not quoted: it would be in a log.
        raise LocationInvalidError("etcd's user and password are settings of [metadata], not a part of its address")
    if parts.query or parts.fragment or (parts.path.rstrip("/") and not is_last):
        raise wrong
    return EtcdMember(parts.hostname, port, parts.scheme == "https")
