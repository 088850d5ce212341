"""The MD5 sums that SQS clients check: of the body, and of the attributes in AWS's canonical form.

A checksum against damage on the way, which is what clients use it for, and no protection against anybody.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Final

from penstock.codec.sqs.messages import AttributeValue

_LENGTH: Final = struct.Struct(">I")
_STRING: Final = b"\x01"
_BINARY: Final = b"\x02"


def digest_of_body(body: str) -> str:
    return _md5(body.encode())


def digest_of_attributes(attributes: Mapping[str, AttributeValue]) -> str | None:
    """None without attributes: such a reply says nothing about them."""
    if not attributes:
        return None
    parts: list[bytes] = []
    for name in sorted(attributes):
        value = attributes[name]
        _add(parts, name.encode())
        _add(parts, value.data_type.encode())
        # What follows is told by the first half of the type: "Number.int" is sent as a string.
        if value.data_type.partition(".")[0] == "Binary":
            parts.append(_BINARY)
            _add(parts, value.binary_value or b"")
        else:
            parts.append(_STRING)
            _add(parts, (value.string_value or "").encode())
    return _md5(b"".join(parts))


def _add(parts: list[bytes], piece: bytes) -> None:
    parts.append(_LENGTH.pack(len(piece)))
    parts.append(piece)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
