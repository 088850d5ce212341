"""What a decision may cost, in processor time, with room for a busy machine: measured is a tenth of these bounds."""

from __future__ import annotations

import time

from penstock.domain.group.commands import LEAVE_EPOCH, ConsumerHeartbeat
from penstock.domain.group.values import Assignment
from support.group.world_desk import Desk

MEMBERS = 100
PARTITIONS = 300
REBALANCE_MS_MAX = 10.0
HEARTBEAT_US_MAX = 50.0
HEARTBEATS = 2_000


def test_hundred_members_share_three_hundred_partitions_within_milliseconds() -> None:
    desk = Desk(orders=PARTITIONS)
    epochs: dict[str, int] = {}
    held: dict[str, Assignment] = {}
    for number in range(MEMBERS):
        reply = desk.enter(f"m{number:03}")
        epochs[reply.member_id], held[reply.member_id] = reply.member_epoch, reply.assignment or ()
    # First the surplus is given up, then that is confirmed, then it is taken.
    for _ in range(4):
        for member_id, epoch in list(epochs.items()):
            reply = desk.beat(member_id, epoch, held[member_id])
            epochs[member_id] = reply.member_epoch
            held[member_id] = held[member_id] if reply.assignment is None else reply.assignment
    assert sorted(len(partitions) for partitions in held.values()) == [PARTITIONS // MEMBERS] * MEMBERS

    desk.beat("m000", LEAVE_EPOCH)
    begun_s = time.thread_time()
    desk.beat("m001", epochs["m001"])
    rebalance_ms = (time.thread_time() - begun_s) * 1e3
    assert rebalance_ms < REBALANCE_MS_MAX, f"{rebalance_ms:.1f} ms"

    settled = desk.group.consumer
    assert settled is not None
    command = ConsumerHeartbeat("m001", settled.current("m001").epoch)
    begun_s = time.thread_time()
    for _ in range(HEARTBEATS):
        desk.group.decide(command, desk.now_ms)
    heartbeat_us = (time.thread_time() - begun_s) / HEARTBEATS * 1e6
    assert heartbeat_us < HEARTBEAT_US_MAX, f"{heartbeat_us:.1f} µs"
