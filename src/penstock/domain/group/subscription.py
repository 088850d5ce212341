"""What ordinary consumers put into the opaque bytes of the classic protocol: a subscription in, an assignment out.

Most of a classic group never looks inside. Three rules must: offsets of topics that nobody reads may expire, offsets
of topics that somebody reads may not be deleted, and a group that changes its protocol while it has members takes over
who reads what. The form is Kafka's "consumer" embedded protocol, versions 0-3:

    subscription  version, topics, user data, (1+) owned partitions, (2+) generation, (3+) rack
    assignment    version, partitions, user data

The bytes come from clients: whatever does not parse is None, and no length is believed beyond what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from penstock.domain.group.values import Assignment, Partition, TopicFacts

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

# (topic name, partition numbers)
NamedPartitions = tuple[tuple[str, tuple[int, ...]], ...]


class Subscription(msgspec.Struct, frozen=True):
    version: int
    topics: tuple[str, ...]
    # None if the member speaks version 0, which cannot say.
    owned: NamedPartitions | None = None
    generation: int = -1
    rack_id: str | None = None


class _MalformedError(Exception):
    """Caught below: never leaves this module."""


class _Reader:
    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes:
        end = self._position + count
        if count < 0 or end > len(self._data):
            raise _MalformedError
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def text(self) -> str:
        return self._decode(self.take(self.int16()))

    def nullable_text(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._decode(self.take(length))

    def skip_nullable_bytes(self) -> None:
        length = self.int32()
        if length != -1:
            self.take(length)

    def count(self, bytes_min: int) -> int:
        count = self.int32()
        if count < 0 or count * bytes_min > len(self._data) - self._position:
            raise _MalformedError
        return count

    def partitions(self) -> NamedPartitions:
        found = []
        for _ in range(self.count(bytes_min=6)):
            topic = self.text()
            found.append((topic, tuple(self.int32() for _ in range(self.count(bytes_min=4)))))
        return tuple(found)

    @staticmethod
    def _decode(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise _MalformedError from error


def read_subscription(data: bytes) -> Subscription | None:
    reader = _Reader(data)
    try:
        version = reader.int16()
        if version < 0:
            return None
        topics = tuple(reader.text() for _ in range(reader.count(bytes_min=2)))
        reader.skip_nullable_bytes()
        owned = reader.partitions() if version >= 1 else None
        generation = reader.int32() if version >= 2 else -1
        rack_id = reader.nullable_text() if version >= 3 else None
    except _MalformedError:
        return None
    return Subscription(version, topics, owned, generation, rack_id)


def read_assignment(data: bytes) -> NamedPartitions | None:
    """No bytes at all is no partitions: a member that the leader forgot gets that."""
    if not data:
        return ()
    reader = _Reader(data)
    try:
        version = reader.int16()
        partitions = reader.partitions()
        reader.skip_nullable_bytes()
    except _MalformedError:
        return None
    return partitions if version >= 0 else None


def write_subscription(
    topics: Iterable[str], *, version: int = 3, owned: NamedPartitions = (), generation: int = -1
) -> bytes:
    named = tuple(topics)
    parts = [_INT16.pack(version), _INT32.pack(len(named)), *map(_text, named), _INT32.pack(-1)]
    if version >= 1:
        parts.append(_partitions(owned))
    if version >= 2:
        parts.append(_INT32.pack(generation))
    if version >= 3:
        parts.append(_INT16.pack(-1))
    return b"".join(parts)


def write_assignment(partitions: NamedPartitions, *, version: int) -> bytes:
    return b"".join((_INT16.pack(version), _partitions(partitions), _INT32.pack(-1)))


def _partitions(partitions: NamedPartitions) -> bytes:
    parts = [_INT32.pack(len(partitions))]
    for topic, numbers in partitions:
        parts += [_text(topic), _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)]
    return b"".join(parts)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def gave_up_something(metadata: bytes, assignment: bytes) -> bool:
    """The member held, when it joined, what it was not assigned. A cooperative assignor then gives that to nobody until
    the member has let go and joined again.
    """
    subscription, assigned = read_subscription(metadata), read_assignment(assignment)
    if subscription is None or not subscription.owned or assigned is None:
        return False
    kept = {(topic, number) for topic, numbers in assigned for number in numbers}
    return any((topic, number) not in kept for topic, numbers in subscription.owned for number in numbers)


def partitions_by_id(named: NamedPartitions, topics: TopicFacts) -> Assignment:
    """Topics that are gone are left out."""
    found: dict[Partition, None] = {}
    for name, numbers in named:
        fact = topics.find(name)
        if fact is not None:
            found.update(dict.fromkeys((fact.topic_id, number) for number in numbers))
    return tuple(sorted(found))


def partitions_by_name(assigned: Assignment, topics: TopicFacts) -> NamedPartitions:
    numbers: dict[str, list[int]] = {}
    for topic_id, number in assigned:
        name = topics.name_of(topic_id)
        if name is not None:
            numbers.setdefault(name, []).append(number)
    return tuple((name, tuple(sorted(numbers[name]))) for name in sorted(numbers))
