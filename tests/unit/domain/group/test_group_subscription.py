from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor

from penstock.domain.group.subscription import (
    Subscription,
    gave_up_something,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)


def test_subscription_of_a_real_client_is_read() -> None:
    metadata = RangePartitionAssignor().metadata({"orders", "payments"})
    read = read_subscription(bytes(metadata.encode()))
    assert read is not None
    assert sorted(read.topics) == ["orders", "payments"]


def test_every_version_is_read() -> None:
    owned = (("orders", (0, 2)),)
    for version in range(5):
        read = read_subscription(write_subscription(("orders",), version=version, owned=owned, generation=4))
        assert read == Subscription(
            version, ("orders",), owned if version >= 1 else None, 4 if version >= 2 else -1, None
        )


def test_assignment_comes_back() -> None:
    partitions = (("orders", (0, 2)), ("payments", ()))
    assert read_assignment(write_assignment(partitions, version=1)) == partitions
    assert read_assignment(b"") == ()


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_subscription(data)
    read_assignment(data)


def test_length_that_is_not_there_is_not_believed() -> None:
    assert read_subscription(b"\x00\x01\x7f\xff\xff\xff") is None
    assert read_assignment(b"\x00\x01\x7f\xff\xff\xff") is None
    good = write_subscription(("orders",))
    assert all(read_subscription(good[:cut]) is None for cut in range(len(good)))


def test_member_that_was_assigned_less_than_it_held_has_something_to_give_up() -> None:
    metadata = write_subscription(("orders",), owned=(("orders", (0, 1)),))
    assert gave_up_something(metadata, write_assignment((("orders", (0,)),), version=3))
    assert not gave_up_something(metadata, write_assignment((("orders", (0, 1, 2)),), version=3))
    assert not gave_up_something(b"?", b"")
