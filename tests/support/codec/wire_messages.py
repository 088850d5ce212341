"""Random messages of any class and version, made from the declarations, for tests of the wire codec.

A message holds only what its version can carry, so that decoding what was encoded gives an equal one back.
Numbers lean to their limits, strings to the lengths at which a varint grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

from penstock.codec.kafka import APIS, ErrorCode, Message, Request, Response
from penstock.codec.kafka.schema import Array, Blob, Field, Kind, Nested, Scalar, Text, fields_of

MessageT = TypeVar("MessageT", bound=Message)

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
_ERROR_CODES = tuple(int(code) for code in ErrorCode)
_LETTERS = "abcdefghijklmnopqrstuvwxyz.-_ABCXYZ0189é漢😀"
# Milliseconds up to the year 2999: an oracle turns such fields into dates.
_TIMESTAMP_MAX = 32_472_144_000_000
_TIMESTAMP_NAMES = ("timestamp", "_ms", "_time")


def every_body() -> Iterator[tuple[type[Request] | type[Response], int]]:
    """Every request and response class with each of its versions."""
    for api in APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            yield api.request, version
            yield api.response, version


MakeValue = Callable[[Kind, int, Random], Any]


def random_message(
    message_class: type[MessageT],
    version: int,
    random: Random,
    make: MakeValue | None = None,
    *,
    is_private_told: bool = True,
) -> MessageT:
    """`make` says what values there are, also inside of others; any there can be, without it. `is_private_told`: also
    what only our nodes say, in messages of Kafka's."""
    if make is None and not is_private_told:
        make = _public_value
    values = {
        field.name: _random_field(field, version, random, make)
        for field in fields_of(message_class)
        if version in field.versions and (is_private_told or not field.is_private)
    }
    return message_class(**values)


def _random_field(field: Field, version: int, random: Random, make: MakeValue | None) -> Any:
    if version in field.nullable and random.random() < 0.25:
        return None
    if field.is_tagged(version) and random.random() < 0.5:
        return field.default
    if field.name == "error_code" or field.name.endswith("_error_code"):
        return random.choice(_ERROR_CODES)
    if isinstance(field.kind, Scalar) and field.kind.format == "q" and field.name.endswith(_TIMESTAMP_NAMES):
        return random.randrange(_TIMESTAMP_MAX)
    return (make or random_value)(field.kind, version, random)


def random_value(kind: Kind, version: int, random: Random, make: MakeValue | None = None) -> Any:
    match kind:
        case Scalar(character, _):
            return _random_scalar(character, random)
        case Text():
            return "".join(random.choices(_LETTERS, k=_random_length(random)))
        case Blob():
            return random.randbytes(_random_length(random))
        case Nested(message_class):
            return random_message(message_class, version, random, make)
        case Array(element):
            count = random.choice((0, 1, 1, 2, 3))
            return tuple((make or random_value)(element, version, random) for _ in range(count))


def _public_value(kind: Kind, version: int, random: Random) -> Any:
    if isinstance(kind, Nested):
        return random_message(kind.message_class, version, random, is_private_told=False)
    return random_value(kind, version, random, _public_value)


def _random_scalar(character: str, random: Random) -> Any:
    if character == "?":
        return random.random() < 0.5
    if character == "16s":
        return random.randbytes(16)
    if character == "d":
        return random.uniform(-1e9, 1e9)
    if character in "HI":
        return random.randrange(1 << (16 if character == "H" else 32))
    limit = 1 << (_BITS[character] - 1)
    return random.choice((0, 1, -1, limit - 1, -limit, random.randrange(-limit, limit)))


def _random_length(random: Random) -> int:
    return random.choice((0, 1, 7, 30, 126, 127, 128, 300))
