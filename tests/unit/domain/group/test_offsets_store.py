from __future__ import annotations

from penstock.domain.group.commands import (
    DONE,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DeleteOffsets,
    EndTransaction,
    ExpireOffsets,
    FetchedOffset,
    FetchOffsets,
    ForgetTopics,
    Leave,
    LeavingMember,
    OffsetsFetched,
    OffsetsNamed,
    OffsetsWritten,
    OffsetToCommit,
    PartitionName,
)
from penstock.domain.group.records import GroupRecord, OffsetStored, Removed
from penstock.domain.group.values import GroupConfig, GroupError
from support.group.world_desk import Desk

HOUR_MS = 3_600_000
RETENTION_MS = 7 * 24 * HOUR_MS


def commit(desk: Desk, offset: int, *, topic: str = "orders", partition: int = 0, **others: object) -> None:
    given = (OffsetToCommit(topic, partition, offset),)
    reply = desk.ask(CommitOffsets(given, **others))  # type: ignore[arg-type]
    assert isinstance(reply, OffsetsWritten), reply


def commit_in_transaction(desk: Desk, offset: int, *, producer_id: int = 1, epoch: int = 0) -> None:
    given = (OffsetToCommit("orders", 0, offset),)
    assert isinstance(desk.ask(CommitTransactionOffsets(producer_id, epoch, given)), OffsetsWritten)


def end(desk: Desk, *, is_committed: bool, producer_id: int = 1, epoch: int = 0, version: int = 1) -> None:
    assert desk.ask(EndTransaction(producer_id, epoch, is_committed, version)) == DONE


def compact(log: list[GroupRecord]) -> list[GroupRecord]:
    last = {record.key: index for index, record in enumerate(log)}
    kept = (record for index, record in enumerate(log) if last[record.key] == index)
    return [record for record in kept if not isinstance(record, Removed)]


def fetch(desk: Desk, **others: object) -> FetchedOffset:
    reply = desk.ask(FetchOffsets((PartitionName("orders", 0),), **others))  # type: ignore[arg-type]
    assert isinstance(reply, OffsetsFetched)
    return reply.partitions[0]


def test_commit_is_read_back() -> None:
    desk = Desk()
    desk.ask(CommitOffsets((OffsetToCommit("orders", 0, 42, leader_epoch=3, metadata="here"),)))
    assert fetch(desk) == FetchedOffset("orders", 0, 42, 3, "here")
    desk.restart()
    assert fetch(desk) == FetchedOffset("orders", 0, 42, 3, "here")


def test_unknown_group_has_no_offsets_and_that_is_no_error() -> None:
    desk = Desk()
    assert fetch(desk) == FetchedOffset("orders", 0, -1, -1, "")
    assert desk.ask(FetchOffsets(None)) == OffsetsNamed(())
    assert not desk.group.exists


def test_whoever_asks_for_everything_is_told_what_there_is() -> None:
    desk = Desk()
    for topic, partition in (("b", 1), ("a", 2), ("b", 0)):
        commit(desk, 1, topic=topic, partition=partition)
    reply = desk.ask(FetchOffsets(None))
    assert isinstance(reply, OffsetsNamed)
    assert sorted(reply.places) == [("a", 2), ("b", 0), ("b", 1)]


def test_generation_of_a_group_that_does_not_exist_is_refused() -> None:
    desk = Desk()
    offsets = (OffsetToCommit("orders", 0, 1),)
    assert desk.refusal(CommitOffsets(offsets, "a", 3)) is GroupError.GROUP_ID_NOT_FOUND
    assert desk.refusal(CommitOffsets(offsets, "a", 3, knows_epochs=False)) is GroupError.ILLEGAL_GENERATION


def test_text_that_is_too_long_is_refused_and_the_rest_is_kept() -> None:
    desk = Desk(GroupConfig(offset_metadata_bytes_max=8))
    long, short = (
        OffsetToCommit("orders", 0, 1, metadata="\N{SNOWMAN}" * 3),
        OffsetToCommit("orders", 1, 1, metadata="x" * 8),
    )
    reply = desk.ask(CommitOffsets((long, short)))
    assert isinstance(reply, OffsetsWritten)
    assert [each.error for each in reply.partitions] == [GroupError.OFFSET_METADATA_TOO_LARGE, None]
    assert len(desk.group.offsets) == 1


def test_topic_that_was_created_again_inherits_nothing() -> None:
    desk = Desk()
    old_id, new_id = b"1" * 16, b"2" * 16
    desk.ask(CommitOffsets((OffsetToCommit("orders", 0, 42, topic_id=old_id),)))
    same = desk.ask(FetchOffsets((PartitionName("orders", 0, old_id),)))
    other = desk.ask(FetchOffsets((PartitionName("orders", 0, new_id),)))
    assert isinstance(same, OffsetsFetched)
    assert isinstance(other, OffsetsFetched)
    assert (same.partitions[0].offset, other.partitions[0].offset) == (42, -1)


def test_offset_of_a_transaction_counts_once_it_commits() -> None:
    desk = Desk()
    commit(desk, 5)
    commit_in_transaction(desk, 9)
    assert fetch(desk).offset == 5
    end(desk, is_committed=True)
    assert fetch(desk).offset == 9
    desk.restart()
    assert fetch(desk).offset == 9


def test_offset_of_an_aborted_transaction_never_was() -> None:
    desk = Desk()
    commit(desk, 5)
    commit_in_transaction(desk, 9)
    end(desk, is_committed=False)
    assert fetch(desk, requires_stable=True).offset == 5


def test_reader_that_wants_stable_offsets_waits_for_the_transaction() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9)
    assert fetch(desk, requires_stable=True).error is GroupError.UNSTABLE_OFFSET_COMMIT
    # It is told of what is about to come, and others are not.
    assert desk.ask(FetchOffsets(None, requires_stable=True)) == OffsetsNamed((("orders", 0),))
    assert desk.ask(FetchOffsets(None)) == OffsetsNamed(())
    desk.restart()
    assert fetch(desk, requires_stable=True).error is GroupError.UNSTABLE_OFFSET_COMMIT
    end(desk, is_committed=True)
    assert fetch(desk, requires_stable=True).offset == 9


def test_what_was_committed_after_a_transactions_offset_stays() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9)
    commit(desk, 12)
    end(desk, is_committed=True)
    assert fetch(desk).offset == 12


def test_two_transactions_are_told_apart() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9, producer_id=1)
    commit_in_transaction(desk, 11, producer_id=2)
    end(desk, is_committed=True, producer_id=2)
    end(desk, is_committed=True, producer_id=1)
    assert fetch(desk).offset == 11, "by the order in the log"
    assert desk.group.offsets.producers() == []


def test_order_in_the_log_counts_whichever_transaction_commits_first() -> None:
    desk = Desk()
    for producer_id, offset in ((1, 9), (2, 11), (3, 13)):
        commit_in_transaction(desk, offset, producer_id=producer_id)
    end(desk, is_committed=True, producer_id=2)
    assert fetch(desk).offset == 11
    desk.log = compact(desk.log)
    desk.restart()
    end(desk, is_committed=True, producer_id=1)
    assert fetch(desk).offset == 11
    end(desk, is_committed=True, producer_id=3)
    assert fetch(desk).offset == 13


def test_end_that_is_said_again_changes_nothing() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9)
    end(desk, is_committed=True)
    commit(desk, 12)
    end(desk, is_committed=True)
    assert desk.records == ()
    assert fetch(desk).offset == 12


def test_marker_of_version_two_that_comes_late_leaves_the_next_transaction_alone() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9, epoch=4)
    end(desk, is_committed=True, epoch=5, version=2)
    commit_in_transaction(desk, 11, epoch=5)
    end(desk, is_committed=True, epoch=5, version=2)
    assert fetch(desk, requires_stable=True).error is GroupError.UNSTABLE_OFFSET_COMMIT
    end(desk, is_committed=True, epoch=6, version=2)
    assert fetch(desk, requires_stable=True).offset == 11


def test_producer_that_was_replaced_commits_nothing() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9, epoch=4)
    offsets = (OffsetToCommit("orders", 1, 1),)
    assert desk.refusal(CommitTransactionOffsets(1, 3, offsets)) is GroupError.INVALID_PRODUCER_EPOCH
    assert desk.refusal(CommitTransactionOffsets(1, 5, offsets)) is GroupError.COORDINATOR_NOT_AVAILABLE
    end(desk, is_committed=False, epoch=5)
    assert isinstance(desk.ask(CommitTransactionOffsets(1, 5, offsets)), OffsetsWritten)


def test_waiting_offset_survives_compaction_beside_the_committed_one() -> None:
    desk = Desk()
    commit(desk, 5)
    commit_in_transaction(desk, 9)
    desk.log = compact(desk.log)
    desk.restart()
    assert fetch(desk).offset == 5
    end(desk, is_committed=False)
    assert fetch(desk).offset == 5


def test_delete_takes_what_waits_along() -> None:
    desk = Desk()
    commit(desk, 5)
    commit_in_transaction(desk, 9)
    desk.ask(DeleteOffsets((PartitionName("orders", 0),)))
    end(desk, is_committed=True)
    assert desk.group.offsets.is_empty
    desk.restart()
    assert desk.group.offsets.is_empty


def test_group_that_is_deleted_takes_what_waits_along() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9)
    assert desk.ask(DeleteGroup()) == DONE
    end(desk, is_committed=True)
    assert not desk.group.exists


def test_snapshot_keeps_the_order_where_a_transaction_is_open() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9)
    commit(desk, 12)
    commit(desk, 1, partition=1)
    desk.log = desk.group.snapshot()
    desk.restart()
    end(desk, is_committed=True)
    assert fetch(desk).offset == 12


def test_empty_group_keeps_its_offsets_for_the_retention() -> None:
    desk = Desk()
    generation = desk.settle("a")
    commit(desk, 5, member_id="a", generation=generation)
    desk.now_ms += RETENTION_MS
    desk.ask(Leave((LeavingMember("a"),)))
    desk.now_ms += RETENTION_MS - 1
    desk.ask(ExpireOffsets())
    assert desk.records == (), "counted from when the last member left"
    desk.now_ms += 1
    desk.ask(ExpireOffsets())
    assert not desk.group.exists, "and then nothing is left of the group"
    desk.restart()
    assert not desk.group.exists


def test_group_with_members_keeps_offsets_of_topics_it_reads() -> None:
    desk = Desk()
    generation = desk.settle("a")
    commit(desk, 5, member_id="a", generation=generation)
    commit(desk, 5, topic="left", member_id="a", generation=generation)
    desk.now_ms += RETENTION_MS
    desk.ask(ExpireOffsets())
    assert list(desk.group.offsets.as_dict()) == [("orders", 0)]


def test_consumer_group_counts_from_its_last_member_too() -> None:
    desk = Desk(orders=1)
    desk.enter("a")
    commit(desk, 5, member_id="a", generation=1)
    desk.now_ms += RETENTION_MS
    desk.ask(ExpireOffsets())
    assert len(desk.group.offsets) == 1
    desk.beat("a", -1)
    desk.now_ms += RETENTION_MS - 1
    desk.ask(ExpireOffsets())
    assert len(desk.group.offsets) == 1
    desk.now_ms += 1
    desk.ask(ExpireOffsets())
    assert not desk.group.exists


def test_commit_without_a_group_lives_for_the_retention() -> None:
    desk = Desk()
    commit(desk, 5)
    desk.now_ms += RETENTION_MS
    commit(desk, 6, partition=1)
    desk.ask(ExpireOffsets())
    assert list(desk.group.offsets.as_dict()) == [("orders", 1)]


def test_client_that_asks_for_its_own_retention_gets_it() -> None:
    desk = Desk()
    commit(desk, 5, retention_ms=HOUR_MS)
    desk.now_ms += HOUR_MS
    desk.ask(ExpireOffsets())
    assert not desk.group.exists


def test_offset_that_waits_for_a_transaction_does_not_expire() -> None:
    desk = Desk()
    commit(desk, 5)
    commit_in_transaction(desk, 9)
    desk.now_ms += 2 * RETENTION_MS
    desk.ask(ExpireOffsets())
    assert desk.records == ()


def test_offsets_can_be_deleted_unless_somebody_reads_them() -> None:
    desk = Desk()
    generation = desk.settle("a")
    commit(desk, 5, member_id="a", generation=generation)
    commit(desk, 5, topic="left", member_id="a", generation=generation)
    reply = desk.ask(DeleteOffsets((PartitionName("orders", 0), PartitionName("left", 0), PartitionName("none", 0))))
    assert isinstance(reply, OffsetsWritten)
    assert [each.error for each in reply.partitions] == [GroupError.GROUP_SUBSCRIBED_TO_TOPIC, None, None]
    assert list(desk.group.offsets.as_dict()) == [("orders", 0)]


def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted() -> None:
    desk = Desk()
    assert desk.refusal(DeleteOffsets((PartitionName("orders", 0),))) is GroupError.GROUP_ID_NOT_FOUND


def test_topic_that_is_gone_takes_its_offsets_with_it() -> None:
    desk = Desk()
    commit(desk, 5)
    commit(desk, 5, topic="other")
    commit_in_transaction(desk, 9)
    desk.ask(ForgetTopics(("orders",)))
    end(desk, is_committed=True)
    assert list(desk.group.offsets.as_dict()) == [("other", 0)]


def test_only_an_empty_group_can_be_deleted() -> None:
    desk = Desk()
    assert desk.refusal(DeleteGroup()) is GroupError.GROUP_ID_NOT_FOUND
    generation = desk.settle("a")
    commit(desk, 5, member_id="a", generation=generation)
    assert desk.refusal(DeleteGroup()) is GroupError.NON_EMPTY_GROUP
    desk.ask(Leave((LeavingMember("a"),)))
    assert desk.ask(DeleteGroup()) == DONE
    assert not desk.group.exists
    desk.restart()
    assert not desk.group.exists


def test_offset_record_says_when_and_by_whom() -> None:
    desk = Desk()
    commit_in_transaction(desk, 9, producer_id=77)
    (record,) = desk.records
    assert isinstance(record, OffsetStored)
    assert (record.committed_ms, record.producer_id, record.key) == (desk.now_ms, 77, ("pending 77", "orders", 0))


def test_group_outlives_its_last_offset() -> None:
    """As with Kafka: an operator that deletes a group's offsets can still describe and delete the group."""
    for command in (DeleteOffsets((PartitionName("orders", 0),)), ForgetTopics(("orders",))):
        desk = Desk(orders=1)
        commit(desk, 5)
        desk.ask(command)
        assert desk.group.exists
        assert desk.group.is_empty
        desk.restart()
        assert desk.group.exists
        assert desk.ask(DeleteGroup()) == DONE
        assert not desk.group.exists


def test_group_without_offsets_and_members_expires_with_the_next_sweep() -> None:
    desk = Desk(orders=1)
    commit(desk, 5)
    desk.ask(ForgetTopics(("orders",)))
    desk.ask(ExpireOffsets())
    assert not desk.group.exists


def test_group_outlives_its_last_offset_once() -> None:
    desk = Desk(orders=1)
    commit(desk, 5)
    commit(desk, 6, topic="left")
    desk.ask(DeleteOffsets((PartitionName("orders", 0),)))
    assert [type(record) for record in desk.records] == [Removed], "there is another offset"
    desk.ask(DeleteOffsets((PartitionName("left", 0),)))
    commit(desk, 7)
    desk.ask(DeleteOffsets((PartitionName("orders", 0),)))
    assert [type(record) for record in desk.records] == [Removed], "it is known to be empty"
