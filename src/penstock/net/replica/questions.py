"""Barrier, DescribeReplica and Forward in bytes, both ways: what the one side writes the other reads back."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.internal import barrier as barrier_wire
from penstock.codec.kafka.internal import describe_replica as describe_wire
from penstock.codec.kafka.internal.barrier import BarrierRequest, BarrierResponse
from penstock.codec.kafka.internal.describe_replica import DescribeReplicaRequest, DescribeReplicaResponse
from penstock.codec.kafka.internal.forward import ForwardRequest, ForwardResponse
from penstock.domain.replication.exchange import (
    NO_EPOCH,
    NO_NODE,
    Barrier,
    DescribeReplica,
    EpochStart,
    Forward,
    Forwarded,
    KnownLeader,
    LogBarrier,
    LogName,
    LogPassed,
    RangeChecksum,
    ReplicaDescription,
)
from penstock.net.replica.problems import code_of, leader_of, problem_of

# Barrier


def write_barrier(barrier: Barrier) -> BarrierRequest:
    logs = [barrier_wire.BarrierLog(each.log.topic_id, each.log.partition, each.leader_epoch) for each in barrier.logs]
    return BarrierRequest(timeout_ms=barrier.timeout_ms, logs=logs)


def read_barrier(request: BarrierRequest) -> Barrier:
    logs = [LogBarrier(LogName(each.topic_id, each.partition), each.leader_epoch) for each in request.logs]
    return Barrier(logs, request.timeout_ms)


def write_passed(passed: Sequence[LogPassed]) -> BarrierResponse:
    return BarrierResponse(
        logs=[
            barrier_wire.BarrierOutcome(
                each.log.topic_id, each.log.partition, code_of(each.problem), each.high_watermark, *_told(each.leader)
            )
            for each in passed
        ]
    )


def read_passed(response: BarrierResponse) -> list[LogPassed]:
    return [
        LogPassed(
            log=LogName(each.topic_id, each.partition),
            problem=problem_of(each.error_code),
            high_watermark=each.high_watermark,
            leader=leader_of(each.leader_id, each.leader_epoch),
        )
        for each in response.logs
    ]


# DescribeReplica


def write_describe(asked: DescribeReplica) -> DescribeReplicaRequest:
    log = asked.log
    return DescribeReplicaRequest(log.topic_id, log.partition, asked.from_offset, asked.to_offset, asked.step_offsets)


def read_describe(request: DescribeReplicaRequest) -> DescribeReplica:
    return DescribeReplica(
        log=LogName(request.topic_id, request.partition),
        from_offset=request.from_offset,
        to_offset=request.to_offset,
        step_offsets=request.step_offsets,
    )


def write_description(found: ReplicaDescription) -> DescribeReplicaResponse:
    return DescribeReplicaResponse(
        error_code=code_of(found.problem),
        error_message=found.detail,
        log_start=found.log_start,
        log_end=found.log_end,
        durable_end=found.durable_end,
        high_watermark=found.high_watermark,
        epochs=[describe_wire.EpochStart(each.epoch, each.start_offset) for each in found.epochs],
        checksums=[
            describe_wire.RangeChecksum(each.from_offset, each.to_offset, each.checksum) for each in found.checksums
        ],
    )


def read_description(response: DescribeReplicaResponse) -> ReplicaDescription:
    return ReplicaDescription(
        problem=problem_of(response.error_code),
        detail=response.error_message,
        log_start=response.log_start,
        log_end=response.log_end,
        durable_end=response.durable_end,
        high_watermark=response.high_watermark,
        epochs=[EpochStart(each.epoch, each.start_offset) for each in response.epochs],
        checksums=[RangeChecksum(each.from_offset, each.to_offset, each.checksum) for each in response.checksums],
    )


# Forward


def write_forward(forward: Forward) -> ForwardRequest:
    return ForwardRequest(
        kind=forward.kind,
        topic_id=forward.log.topic_id,
        partition=forward.log.partition,
        leader_epoch=forward.leader_epoch,
        timeout_ms=forward.timeout_ms,
        body=forward.body,
    )


def read_forward(request: ForwardRequest) -> Forward:
    return Forward(
        kind=request.kind,
        log=LogName(request.topic_id, request.partition),
        leader_epoch=request.leader_epoch,
        timeout_ms=request.timeout_ms,
        body=request.body,
    )


def write_forwarded(forwarded: Forwarded) -> ForwardResponse:
    leader_id, leader_epoch = _told(forwarded.leader)
    return ForwardResponse(
        error_code=code_of(forwarded.problem),
        error_message=forwarded.detail,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        body=forwarded.body,
    )


def read_forwarded(response: ForwardResponse) -> Forwarded:
    return Forwarded(
        problem=problem_of(response.error_code),
        detail=response.error_message,
        leader=leader_of(response.leader_id, response.leader_epoch),
        body=response.body,
    )


def _told(leader: KnownLeader | None) -> tuple[int, int]:
    return (NO_NODE, NO_EPOCH) if leader is None else (leader.node_id, leader.epoch)
