from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.domain.replication.election import choose
from penstock.domain.replication.membership import (
    DirectoryRecord,
    MemberRecord,
    Trust,
    Verdict,
    distrust,
    epochs_to_keep,
    judge,
)
from penstock.domain.replication.state import NO_LEADER, PartitionState

MEMBER = MemberRecord(directory_id="d1", admitted_epoch=7, boot_id="b1")
DIRECTORY = DirectoryRecord(directory_id="d1", cluster_id="c", node_id=3, epochs=(4, 7), boot_id="b1")
STATE = PartitionState(leader=1, life=5, epoch=2, replicas=(1, 2, 3), in_sync=(1, 2, 3))


def verdict(
    member: MemberRecord | None = MEMBER, directory: DirectoryRecord = DIRECTORY, boot_id: str = "b1"
) -> Verdict:
    return judge(member, directory, node_id=3, cluster_id="c", boot_id=boot_id)


def test_same_directory_and_same_boot_are_fully_trusted() -> None:
    assert verdict() == Verdict(Trust.FULL)


def test_clean_stop_survives_another_boot() -> None:
    assert verdict(directory=replace(DIRECTORY, is_stopped_cleanly=True), boot_id="b2") == Verdict(Trust.FULL)


def test_unclean_end_and_another_boot_lose_the_memory() -> None:
    found = verdict(boot_id="b2")
    assert found.trust is Trust.MEMORY_LOST
    assert "node 3" in (found.reason or "")


@pytest.mark.parametrize(
    ("member", "directory", "sentence"),
    [
        (MEMBER, replace(DIRECTORY, directory_id="d2"), "was last admitted with d1: the disk was wiped or replaced"),
        (MEMBER, replace(DIRECTORY, epochs=(2, 4)), "last admitted in its life 7, of which its data directory knows"),
        (MEMBER, replace(DIRECTORY, cluster_id="other"), "is of the cluster other, not of c"),
        (MEMBER, replace(DIRECTORY, node_id=4), "is that of node 4, not of node 3"),
        (None, DIRECTORY, "never been a member"),
        (replace(MEMBER, is_removed=True), DIRECTORY, "was removed"),
    ],
)
def test_what_is_not_the_admitted_directory_is_trusted_with_nothing(
    member: MemberRecord | None, directory: DirectoryRecord, sentence: str
) -> None:
    stopped = replace(directory, is_stopped_cleanly=True)
    found = verdict(member, stopped)
    assert found.trust is Trust.NOTHING
    assert sentence in (found.reason or "")


def test_copy_that_ran_takes_the_trust_from_the_original() -> None:
    copied = epochs_to_keep(MEMBER, DIRECTORY, 9)
    admitted = replace(MEMBER, admitted_epoch=9)
    assert (
        judge(admitted, replace(DIRECTORY, epochs=copied), node_id=3, cluster_id="c", boot_id="b1").trust is Trust.FULL
    )
    assert verdict(admitted, DIRECTORY).trust is Trust.NOTHING


def test_dying_before_admission_costs_no_trust_however_often() -> None:
    directory = DIRECTORY
    for epoch in (8, 9, 10, 11):
        assert verdict(directory=directory).trust is Trust.FULL
        directory = replace(directory, epochs=epochs_to_keep(MEMBER, directory, epoch))
    # Admitted, and dead before it has heard of that.
    assert verdict(replace(MEMBER, admitted_epoch=11), directory).trust is Trust.FULL


def test_directory_that_is_not_trusted_keeps_its_new_epoch_alone() -> None:
    assert epochs_to_keep(replace(MEMBER, admitted_epoch=99), DIRECTORY, 100) == (100,)
    assert epochs_to_keep(None, DIRECTORY, 100) == (100,)


def test_full_trust_changes_nothing() -> None:
    assert distrust(STATE, 3, Trust.FULL, is_synced=False) is None


def test_wiped_node_leaves_every_set() -> None:
    after = distrust(replace(STATE, in_sync=(1, 3), eligible=(2,)), 3, Trust.NOTHING, is_synced=True)
    assert after is not None
    assert (after.in_sync, after.eligible) == ((1,), (2,))
    after = distrust(replace(STATE, in_sync=(1,), eligible=(3,)), 3, Trust.NOTHING, is_synced=True)
    assert after is not None
    assert (after.in_sync, after.eligible) == ((1,), ())


def test_who_is_in_no_set_changes_nothing() -> None:
    assert distrust(replace(STATE, in_sync=(1, 2)), 3, Trust.NOTHING, is_synced=False) is None


def test_eligible_are_the_set_when_its_last_member_is_wiped() -> None:
    after = distrust(replace(STATE, in_sync=(3,), eligible=(1, 2)), 3, Trust.NOTHING, is_synced=True)
    assert after is not None
    assert (after.in_sync, after.eligible) == ((1, 2), ())


def test_partition_whose_last_holder_is_wiped_has_no_leader() -> None:
    alone = replace(STATE, leader=3, in_sync=(3,), replicas=(3,))
    after = distrust(alone, 3, Trust.NOTHING, is_synced=True)
    assert after is not None
    assert after.in_sync == ()
    chosen = choose(after, {}, minimum=1)
    assert chosen is not None
    assert chosen.leader == NO_LEADER


def test_lost_memory_makes_a_member_unsure_unless_everything_was_synced() -> None:
    after = distrust(STATE, 3, Trust.MEMORY_LOST, is_synced=False)
    assert after is not None
    assert (after.in_sync, after.unsure) == ((1, 2, 3), (3,))
    assert distrust(after, 3, Trust.MEMORY_LOST, is_synced=False) is None
    assert distrust(STATE, 3, Trust.MEMORY_LOST, is_synced=True) is None


def test_single_replica_judges_its_memory_by_itself() -> None:
    alone = replace(STATE, leader=3, in_sync=(3,), replicas=(3,))
    assert distrust(alone, 3, Trust.MEMORY_LOST, is_synced=False) is None
