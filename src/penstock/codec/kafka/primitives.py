"""What the compiled functions call outside the common case: long varints, tagged sections, refusals.

A varint here is unsigned, seven bits a byte, low bits first, at most 32 bits in five bytes. Padding with
empty high groups is accepted, as Kafka itself does; a sixth byte or a 33rd bit is not.
"""

from __future__ import annotations

from typing import Final, NoReturn

import msgspec

from penstock.codec.kafka.schema import BytesLike

# The fifth byte holds bits 28 to 31.
VARINT_LAST_BYTE_MAX: Final = 0x0F
# No part of any message has more than five; unbounded, 100 MB of tags would be skipped for half a minute.
TAGS_MAX: Final = 1000


class Malformed(msgspec.Struct, frozen=True):
    """Why some bytes are not the message that they claim to be."""

    reason: str


class OverBound(Malformed, frozen=True):
    """They may well be the message, but it names more than its API takes at a time."""


class MalformedError(Exception):
    """Carries a refusal out of a compiled function; `decode` turns it into a value, nobody else sees it."""


class OverBoundError(MalformedError):
    """The same for a message that names too much."""


def read_varint(data: BytesLike, position: int) -> tuple[int, int]:
    """The value and the position behind it."""
    return finish_varint(data, position + 1, data[position])


def finish_varint(data: BytesLike, position: int, first: int) -> tuple[int, int]:
    """The same, when the first byte has been read already and `position` is behind it."""
    if first < 0x80:
        return first, position
    second = data[position]
    position += 1
    value = (first & 0x7F) | (second & 0x7F) << 7
    # Two bytes are by far the most frequent here: the length of a small batch.
    if second < 0x80:
        return value, position
    byte, shift = second, 14
    while byte & 0x80:
        byte = data[position]
        position += 1
        if shift == 28 and byte > VARINT_LAST_BYTE_MAX:
            raise MalformedError(f"varint before byte {position} has more than 32 bits")
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, position


def write_varint(value: int) -> bytes:
    assert 0 <= value < 1 << 32
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Most lengths fit one byte, and fetching it here costs less than building it.
VARINTS: Final = tuple(write_varint(value) for value in range(0x80))


def skip_tags(data: BytesLike, position: int, count: int) -> int:
    """Steps over `count` tagged fields, none of which is known."""
    check_tags(count)
    previous = -1
    for _ in range(count):
        previous, position, end = read_tag(data, position, previous)
        position = end
    return position


def read_tag(data: BytesLike, position: int, previous: int) -> tuple[int, int, int]:
    """A tag, where its value starts and where it ends. Tags ascend, so none can come twice."""
    tag, position = read_varint(data, position)
    size, position = read_varint(data, position)
    if tag <= previous:
        raise MalformedError(f"tag {tag} after tag {previous}")
    if size > len(data) - position:
        raise MalformedError(f"tag {tag} of {size} bytes, but {len(data) - position} remain")
    return tag, position, position + size


def check_tags(count: int) -> None:
    if count > TAGS_MAX:
        raise MalformedError(f"{count} tagged fields, at most {TAGS_MAX} are read")


def refuse_count(count: int, remaining_bytes: int) -> NoReturn:
    raise MalformedError(f"array of {count} elements, but {remaining_bytes} bytes remain")


def refuse_elements(elements_max: int) -> NoReturn:
    raise OverBoundError(f"more than {elements_max} elements in all arrays together")


def refuse_length(name: str, length: int) -> NoReturn:
    raise MalformedError(f"{name} has length {length}")


def refuse_end(position: int, size_bytes: int) -> NoReturn:
    if position > size_bytes:
        raise MalformedError(f"message needs {position - size_bytes} bytes more than the frame has")
    raise MalformedError(f"{size_bytes - position} bytes behind the message")
