"""Two codecs that nobody here wrote agree with ours, byte for byte, over random messages of every version.

Ours encodes; the oracle decodes that and encodes it again; the bytes must be equal; ours decodes the oracle's
bytes and must get the first message back. Equal bytes do not prove equal names, so the names of all fields
are compared as well.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import pkgutil
import re
from functools import cache
from random import Random
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import kafka.protocol
import pytest
from kafka.protocol.api_message import ApiMessage
from kio.serial import entity_reader, entity_writer

from penstock.codec.kafka import APIS, ApiVersionsResponse, Message, decode, encode
from penstock.codec.kafka.schema import Array, Nested, fields_of
from support.codec.wire_messages import every_body, random_message

MESSAGES_PER_VERSION = 16

# A version's fields in the order of their declaration, each with the fields of its parts.
Names = tuple[tuple[str, "Names"], ...]

# Nobody else knows what our nodes say to each other.
KAFKA_APIS = [api for api in APIS.values() if not api.is_internal]
EVERY_API = pytest.mark.parametrize("api", KAFKA_APIS, ids=lambda api: api.name)


def bodies(api_key: int) -> list[tuple[Any, int]]:
    return [(body, version) for body, version in every_body() if body.api_key == api_key]


def kio_class(body: type[Message], version: int) -> Any | None:
    stem, direction = re.fullmatch(r"(.*)(Request|Response)", body.__name__).groups()
    folder = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()
    try:
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{direction.lower()}")
    except ModuleNotFoundError:
        return None
    return getattr(module, body.__name__)


@cache
def kafka_python_classes() -> dict[str, Any]:
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)
    # Versioned wrappers (`ProduceRequest_v9`) are subclasses of subclasses and not wanted.
    return {found.__name__: found for found in ApiMessage.__subclasses__()}


def names_of(message_class: type[Message], version: int) -> Names:
    names = []
    for field in fields_of(message_class):
        if version in field.versions and not field.is_private:
            kind = field.kind.element if isinstance(field.kind, Array) else field.kind
            inner = names_of(kind.message_class, version) if isinstance(kind, Nested) else ()
            names.append((field.name, inner))
    return tuple(names)


def kio_names_of(entity_class: Any) -> Names:
    names = []
    hints = get_type_hints(entity_class)
    for declared in dataclasses.fields(entity_class):
        hint = hints[declared.name]
        if get_origin(hint) in (Union, UnionType):
            hint = next(member for member in get_args(hint) if member is not type(None))
        if get_origin(hint) is tuple:
            hint = get_args(hint)[0]
        names.append((declared.name, kio_names_of(hint) if dataclasses.is_dataclass(hint) else ()))
    return tuple(names)


def kafka_python_names_of(struct: Any, version: int) -> Names:
    names = []
    for field in struct.fields.values():
        if field.for_version_q(version):
            has_parts = field.is_struct() or field.is_struct_array()
            names.append((field.name, kafka_python_names_of(field, version) if has_parts else ()))
    return tuple(names)


def renamed(names: Names, pattern: str, replacement: str) -> Names:
    return tuple((re.sub(pattern, replacement, name), renamed(inner, pattern, replacement)) for name, inner in names)


@EVERY_API
def test_kio_writes_the_same_bytes(api: Any) -> None:
    compared = 0
    for body, version in bodies(api.key):
        oracle = kio_class(body, version)
        if oracle is None:
            assert (api.name, version) in {("Produce", 0), ("Produce", 1), ("Produce", 2)}
            continue
        read, write = entity_reader(oracle), entity_writer(oracle)
        random = Random(f"kio {body.__name__} {version}")
        for _ in range(MESSAGES_PER_VERSION):
            message = random_message(body, version, random, is_private_told=False)
            ours = encode(message, version)
            entity, _ = read(ours, 0)
            theirs = io.BytesIO()
            write(theirs, entity)
            assert theirs.getvalue() == ours, (body.__name__, version, message)
            assert decode(body, version, theirs.getvalue()) == message
            compared += 1
    assert compared >= 2 * MESSAGES_PER_VERSION


@EVERY_API
def test_kafka_python_writes_the_same_bytes(api: Any) -> None:
    for body, version in bodies(api.key):
        oracle = kafka_python_classes().get(body.__name__)
        if oracle is None:
            assert re.search("Share|Streams|DelegationToken|RaftVoter|^ConsumerGroup|^UnregisterBroker", api.name)
            continue
        random = Random(f"kafka-python {body.__name__} {version}")
        for _ in range(MESSAGES_PER_VERSION):
            message = random_message(body, version, random, is_private_told=False)
            if body is ApiVersionsResponse:
                # It takes an ApiVersions error as the sign of an answer in version 0, whatever was asked for.
                message = ApiVersionsResponse(0, *list(struct_values(message))[1:])
            ours = encode(message, version)
            entity = oracle.decode(ours, version=version)
            entity._header = None
            assert bytes(entity.encode(version=version)) == ours, (body.__name__, version, message)
            assert decode(body, version, ours) == message


def struct_values(message: Message) -> list[Any]:
    return [getattr(message, field.name) for field in fields_of(type(message))]


@EVERY_API
def test_kio_has_the_same_names(api: Any) -> None:
    for body, version in bodies(api.key):
        oracle = kio_class(body, version)
        if oracle is not None:
            # It turns milliseconds into time spans and drops the unit from the name.
            names = renamed(names_of(body, version), "_ms$", "")
            assert names == kio_names_of(oracle), (body.__name__, version)


@EVERY_API
def test_kafka_python_has_the_same_names(api: Any) -> None:
    for body, version in bodies(api.key):
        oracle = kafka_python_classes().get(body.__name__)
        if oracle is not None:
            # It turns these bits into sets and mostly drops what they are for from the name.
            pattern = "(cluster|topic)_(?=authorized_operations$)"
            theirs = kafka_python_names_of(oracle._struct, version)
            assert renamed(names_of(body, version), pattern, "") == renamed(theirs, pattern, "")
