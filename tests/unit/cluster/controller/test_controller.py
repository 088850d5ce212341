"""Several nodes, one store: who is the controller, and what becomes of partitions when nodes come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from penstock.cluster.catalog.nodes import ControllerRecord
from penstock.cluster.controller.seat import SeatLostError
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.membership import MemberRecord
from penstock.domain.replication.state import NO_LEADER, PartitionState
from support.cluster.members import BOOT, KEYS, TTL_MS, FakeDirectory, MemberWorld


@pytest.fixture
async def world() -> AsyncIterator[MemberWorld]:
    world = await MemberWorld.open()
    yield world
    await world.close()


async def controller_of(world: MemberWorld) -> int | None:
    entry = await world.store.get(KEYS.controller)
    return None if entry is None else decode(entry.key, entry.value, ControllerRecord).node_id


# The seat


async def test_first_node_is_the_controller_and_admits_itself(world: MemberWorld) -> None:
    (node,) = await world.start(1)
    assert await controller_of(world) == 1
    await world.settle()
    assert node.is_admitted
    assert await world.member(1) == MemberRecord(directory_id="directory-1", admitted_epoch=node.life, boot_id=BOOT)


async def test_others_are_admitted_by_the_controller_alone(world: MemberWorld) -> None:
    first, second = await world.start(1, 2)
    await world.hear()
    await second.controller.turn()
    assert await world.member(2) is None
    await first.controller.turn()
    member = await world.member(2)
    assert member is not None
    assert member.admitted_epoch == second.life
    await world.hear()
    assert first.nodes.is_admitted(2)


async def test_node_that_has_not_asked_is_not_admitted(world: MemberWorld) -> None:
    await world.form(1)
    world.directories[2] = FakeDirectory(2, "directory-2")
    world.directories[2].is_full = True
    (second,) = await world.start(2)
    await world.settle()
    assert await world.member(2) is None
    # It asks when its directory has the epoch.
    world.directories[2].is_full = False
    await second.registry.look()
    await world.settle()
    assert second.is_admitted
    assert world.directories[2].on_disk.epochs == (second.life,)


async def test_lowest_id_takes_a_free_seat_at_once_and_any_other_a_second_later(world: MemberWorld) -> None:
    _, second, third = await world.form(1, 2, 3)
    await third.controller.turn()
    await world.expire(1)
    assert await controller_of(world) is None
    for node in (second, third):
        node.controller._tick_at_ms = world.clock.monotonic_ms() + 1000
    await third.controller.turn()
    assert await controller_of(world) is None, "it is left to node 2"
    world.clock.advance_ms(1000)
    await third.controller.turn()
    assert await controller_of(world) == 3, "which does not answer"


async def test_controller_that_was_paused_writes_nothing_more(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1))
    # Node 1 hears nothing from now on, and is replaced.
    first.store.hold()
    del world.living[1]
    await world.pass_time(TTL_MS + 1)
    world.clock.advance_ms(1000)
    await world.settle()
    assert await controller_of(world) == 2
    assert first.seat.is_held, "as it believes"
    revision = (await world.store.range(KEYS.root)).revision
    result = await first.seat.txn((), {KEYS.partition(topic_id, 0): encode("nonsense")})
    assert not result.ok
    assert (await world.store.range(KEYS.root)).revision == revision
    first.store.release()
    world.living[1] = first
    await world.hear()
    with pytest.raises(SeatLostError):
        await first.seat.txn(())


async def test_tick_is_written_once_a_second_if_anybody_can_hear_it(world: MemberWorld) -> None:
    first, second = await world.form(1, 2)
    for _ in range(3):
        world.clock.advance_ms(1000)
        await first.controller.turn()
        await first.controller.turn()
    entry = await world.store.get(KEYS.tick)
    assert entry is not None
    assert decode(entry.key, entry.value, int) == world.clock.now_ms()
    await world.expire(second.node_id)
    world.clock.advance_ms(1000)
    await first.controller.turn()
    assert (await world.store.get(KEYS.tick)) == entry


# Elections


async def test_next_in_sync_replica_leads_when_the_leader_is_dead(world: MemberWorld) -> None:
    first, second, _ = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1), world.place(2, 1))
    await world.expire(3)
    await world.settle()
    elected = PartitionState(leader=2, life=second.life, epoch=1, replicas=(3, 2, 1), in_sync=(1, 2))
    assert await world.state(topic_id, 0) == elected
    assert await world.state(topic_id, 1) is None, "node 3 had no part in it"
    assert second.topics.state(topic_id, 0) == first.topics.state(topic_id, 0)


async def test_sixty_partitions_a_step_those_without_a_leader_first(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    follower_lost = await world.put_topic("a", world.place(2, 3, 1, count=50))
    leader_lost = await world.put_topic("b", world.place(3, 2, 1, count=80))
    await world.expire(3)
    first.store.puts_of_txns.clear()
    await world.settle()
    assert first.store.puts_of_txns == [60, 60, 10]
    revisions = {
        KEYS.partition_of(entry.key): entry.mod_revision for entry in (await world.store.range(KEYS.partitions)).entries
    }
    urgent = [revisions[leader_lost, index] for index in range(80)]
    others = [revisions[follower_lost, index] for index in range(50)]
    assert max(urgent) <= min(others)


async def test_leaderships_of_an_earlier_life_end_however_fast_the_node_is_back(world: MemberWorld) -> None:
    _, second, _ = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(2, 3))
    await world.kill(2)
    await world.start(2)
    await world.settle()
    back = world.living[2]
    assert back.life != second.life
    state = await world.state(topic_id)
    assert state is not None
    assert state.epoch > 0
    assert (state.leader, state.life) in {(2, back.life), (3, world.living[3].life)}


async def test_partition_of_one_replica_keeps_its_seat_without_a_key(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(2, count=5))
    await world.expire(2)
    await world.settle()
    await world.start(2)
    await world.settle()
    assert [await world.state(topic_id, index) for index in range(5)] == [None] * 5


async def test_set_stays_when_nobody_is_left(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(2, 3))
    await world.expire(2)
    await world.settle()
    await world.expire(3)
    await world.settle()
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.in_sync) == (NO_LEADER, (3,))


async def test_new_controller_looks_at_everything_that_happened_before_it(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(1, 2, 3))
    # The controller dies with the leader: nobody was there to see it.
    await world.expire(1)
    world.clock.advance_ms(1000)
    await world.settle()
    assert await controller_of(world) == 2
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.life, state.in_sync) == (2, world.living[2].life, (2, 3))


async def test_election_of_unknown_outcome_is_not_repeated(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1))
    await world.expire(3)
    first.store.unknown_count = 1
    await world.settle()
    assert first.store.unknown_count == 0
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.epoch) == (2, 1), "one election, not two"
    assert first.store.puts_of_txns == [1]


async def test_election_that_meets_a_change_of_the_leader_is_decided_anew(world: MemberWorld) -> None:
    first, _, third = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1))
    await world.expire(3)
    shrunk = PartitionState(leader=3, life=third.life, epoch=0, replicas=(3, 2, 1), in_sync=(1, 3))

    async def change() -> None:
        await world.put_state(topic_id, 0, shrunk)

    first.store.before_txn = change
    await first.controller.turn()
    await world.settle()
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.epoch, state.in_sync) == (1, 1, (1,)), "node 2 was not in sync any more"


# Trust


async def test_wiped_disk_leaves_every_set_before_it_is_admitted(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1), world.place(2, 3, 1))
    await world.kill(2)
    world.directories[2] = FakeDirectory(2, "another-disk")
    # Its key is held from another place until its TTL is over.
    await world.pass_time(TTL_MS - 1)
    await world.pass_time(2)
    await world.start(2)
    await world.settle()
    back = world.living[2]
    assert back.is_admitted
    for index in (0, 1):
        state = await world.state(topic_id, index)
        assert state is not None
        assert (state.leader, state.in_sync) == (3, (1, 3))
        entry = await world.store.get(KEYS.partition(topic_id, index))
        admitted = await world.store.get(KEYS.member(2))
        assert entry is not None
        assert admitted is not None
        assert entry.mod_revision < admitted.mod_revision


async def test_nobody_is_admitted_while_a_set_counts_on_it_too_much(world: MemberWorld) -> None:
    first, _, third = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1))
    await world.kill(2)
    world.directories[2] = FakeDirectory(2, "another-disk")
    await world.pass_time(TTL_MS - 1)
    await world.pass_time(2)
    await world.start(2)
    await world.hear()
    first.controller._tick_at_ms = world.clock.monotonic_ms() + 1000
    # Its leader changes the set at the very moment, so that the controller's first attempt fails.
    shrunk = PartitionState(leader=3, life=third.life, epoch=0, replicas=(3, 2, 1), in_sync=(2, 3))

    async def change() -> None:
        await world.put_state(topic_id, 0, shrunk)

    first.store.before_txn = change
    await world.settle()
    entry, admitted = await world.store.get(KEYS.partition(topic_id, 0)), await world.store.get(KEYS.member(2))
    state = await world.state(topic_id)
    assert entry is not None
    assert admitted is not None
    assert state is not None
    assert state.in_sync == (3,)
    assert entry.mod_revision < admitted.mod_revision
    assert world.living[2].is_admitted


async def test_same_directory_in_the_same_boot_keeps_its_place(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1), durability="interval")
    await world.kill(2)
    await world.start(2)
    await world.settle()
    assert await world.state(topic_id) is None
    assert world.living[2].is_admitted


async def test_node_that_lost_its_session_begins_another_life_and_keeps_its_trust(world: MemberWorld) -> None:
    """It has not stopped, so its directory knows the life that was admitted: what it leads alone goes on."""
    _, second = await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(2))
    life, session = second.life, second.registry.session
    assert session is not None
    await session.close()
    await second.registry.look()
    await world.settle()
    assert second.life != life
    assert second.is_admitted
    assert await world.state(topic_id) is None, "nobody took anything from it"


@pytest.mark.parametrize(("durability", "is_unsure"), [("interval", True), ("fsync", False)])
async def test_power_cut_costs_what_was_in_memory_alone(
    world: MemberWorld, durability: str, *, is_unsure: bool
) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1), durability=durability)
    await world.kill(2)
    world.directories[2].boot_id = "boot-2"
    await world.start(2)
    await world.settle()
    assert world.living[2].is_admitted
    state = await world.state(topic_id)
    assert (state is not None and 2 not in state.in_sync) == is_unsure


async def test_clean_stop_before_a_power_cut_costs_nothing(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1), durability="interval")
    await world.kill(2)
    world.directories[2].boot_id = "boot-2"
    await world.start(2, was_clean=True)
    await world.settle()
    assert await world.state(topic_id) is None


async def test_removed_member_is_not_admitted(world: MemberWorld) -> None:
    await world.form(1, 2)
    await world.kill(2)
    await world.store.txn(puts={KEYS.member(2): encode(MemberRecord(directory_id="directory-2", is_removed=True))})
    await world.start(2)
    await world.settle()
    assert not world.living[2].is_admitted


# Leaving


async def test_what_a_draining_node_leads_moves_to_others(world: MemberWorld) -> None:
    _, second, third = await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(2, 3, 1), world.place(2))
    await second.drain()
    await world.hear()
    await world.settle()
    state = await world.state(topic_id, 0)
    assert state is not None
    assert (state.leader, state.life, state.epoch) == (3, third.life, 1)
    assert await world.state(topic_id, 1) is None, "nobody else has it"


async def test_keys_of_deleted_topics_are_swept(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(2, 3, count=130))
    await world.expire(2)
    await world.settle()
    assert len((await world.store.range(KEYS.partitions)).entries) == 130
    await world.store.txn(deletes=[KEYS.topic("orders")])
    await world.hear()
    await world.settle()
    assert (await world.store.range(KEYS.partitions)).entries == ()
    assert topic_id


# Refused connections


async def test_refused_node_is_taken_for_dead_once_in_a_while(world: MemberWorld) -> None:
    first, second, third = await world.form(1, 2, 3)
    first.refused = {"host-3:9093"}
    assert second.refusals.falls_to(3) == 1
    assert not await second.refusals.report_refused(3), "it is the controller's matter"
    assert not await first.refusals.report_refused(2), "which tries by itself"
    assert await first.refusals.report_refused(3)
    await world.hear()
    assert first.nodes.node(3) is None
    # It finds its key gone and begins another life, in which it is left in peace for a while.
    before = third.life
    with capture_logs() as events:
        await third.registry.look()
        await world.settle()
    assert third.life != before
    # Nothing of what it had is doubted: the life before left it, a moment ago.
    assert [event["trust"] for event in events if event["event"] == "node admitted"] == ["full"]
    assert first.nodes.is_admitted(3)
    assert not await first.refusals.report_refused(3)
    world.clock.advance_ms(3000)
    await world.pass_time(3000)
    for _ in range(10):
        await world.pass_time(3000)
    assert await first.refusals.report_refused(3)


async def test_node_that_dies_again_soon_is_taken_for_dead_again(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    first.refused = {"host-3:9093"}
    for _ in range(2):
        await world.kill(3)
        assert await first.refusals.report_refused(3)
        await world.hear()
        # A process of its own, and not the old one in another life: the verdict was right.
        world.clock.advance_ms(1)
        (third,) = await world.start(3)
        await world.settle()
        await third.serve()
        await world.hear()


async def test_lowest_living_id_ends_a_controller_that_refuses(world: MemberWorld) -> None:
    first, second, third = await world.form(1, 2, 3)
    for node in (second, third):
        node.refused = {"host-1:9093"}
    assert third.refusals.falls_to(1) == 2
    assert not await third.refusals.report_refused(1)
    await world.kill(1)
    assert await second.refusals.report_refused(1)
    await world.hear()
    assert await controller_of(world) is None
    await world.settle()
    assert await controller_of(world) == 2
    assert first.node_id == 1
