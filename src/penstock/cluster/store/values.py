"""How values stand in the metadata store: JSON, so that an operator can read them with any tool."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.base.typed_values import read_json
from penstock.cluster.store.protocol import StoreDamagedError

V = TypeVar("V")


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def decode(key: str, value: bytes, value_type: type[V]) -> V:
    try:
        return read_json(value, value_type)
    except msgspec.DecodeError as error:
        raise StoreDamagedError(f"metadata key {key} holds a value that cannot be read: {error}") from error
