from __future__ import annotations

import msgspec
import pytest

from penstock.domain.group.machine import Group
from penstock.domain.group.records import (
    ClassicForm,
    ClassicGroupStored,
    ClassicMemberStored,
    CurrentStored,
    EpochStored,
    GenerationStored,
    GroupRecord,
    MemberState,
    MemberStored,
    OffsetStored,
    Removed,
    TargetEpochStored,
    TargetStored,
    pending_producer,
)
from penstock.domain.group.values import GroupConfig
from support.group.world import SimTopics

PARTITIONS = ((b"t" * 16, 0), (b"t" * 16, 3))
MEMBER = ClassicMemberStored("m", "instance", "client", "host", 1, 2, (("range", b"x"),), b"y", is_behind=True)
RECORDS: list[GroupRecord] = [
    ClassicGroupStored(3, "consumer", "range", "m", 5, (MEMBER,)),
    GenerationStored(4),
    EpochStored(7, b"digest", 9),
    MemberStored("m", None, "rack", "c", "h", 5, ("t",), "t.*", "uniform", ClassicForm(6, (("range", b""),))),
    TargetEpochStored(7),
    TargetStored("m", PARTITIONS),
    CurrentStored("m", 7, 6, MemberState.UNREVOKED, PARTITIONS[:1], PARTITIONS[1:]),
    OffsetStored("t", 1, 42, 3, "text", 8, 9, b"i" * 16),
    OffsetStored("t", 1, 42, 3, "text", 8, 9, b"i" * 16, 12, 3),
    OffsetStored("t", 1, 42, 3, "text", 8, 9, b"i" * 16, 13, 3),
    Removed(("member", "m", -1)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_comes_back_from_bytes_as_it_was(record: GroupRecord) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=GroupRecord)
    assert decoded == record


def test_keys_tell_records_apart() -> None:
    keys = [record.key for record in RECORDS if not isinstance(record, Removed)]
    assert len(set(keys)) == len(keys)


def test_key_says_whose_transaction_an_offset_waits_for() -> None:
    assert [pending_producer(record.key) for record in RECORDS if isinstance(record, OffsetStored)] == [None, 12, 13]


def test_tombstone_of_something_unknown_is_ignored() -> None:
    group = Group(GroupConfig(), SimTopics())
    for record in RECORDS:
        group.apply(Removed(record.key))
    assert not group.exists
