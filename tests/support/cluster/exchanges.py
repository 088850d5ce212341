"""One of everything that nodes say to each other, each field with a value that no default has."""

from __future__ import annotations

from typing import Final

from penstock.domain.replication.exchange import (
    Barrier,
    DescribeReplica,
    EpochEnd,
    EpochStart,
    Forward,
    Forwarded,
    KnownLeader,
    LogBarrier,
    LogFetch,
    LogFetched,
    LogName,
    LogPassed,
    NodePlace,
    RangeChecksum,
    ReplicaDescription,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaProblem,
)

DATA: Final = LogName(b"the data's topic", 7)
SCHEDULE: Final = LogName(b"its schedule's__", 7)

FETCH: Final = ReplicaFetch(
    node_id=3,
    life=77,
    session_id=11,
    session_epoch=12,
    wait_ms=500,
    bytes_min=1,
    bytes_max=8 << 20,
    logs=[
        LogFetch(log=DATA, leader_epoch=5, offset=900, last_epoch=4, log_start=10, bytes_max=1 << 20),
        LogFetch(
            log=SCHEDULE, leader_epoch=5, offset=0, last_epoch=-1, log_start=0, bytes_max=1 << 20, high_watermark=0
        ),
    ],
    forgotten=[LogName(DATA.topic_id, 8), LogName(DATA.topic_id, 9)],
)
FETCHED: Final = ReplicaFetched(
    session_id=11,
    logs=[
        LogFetched(log=DATA, high_watermark=950, log_start=20, tombstone_horizon=15, records=b"batches"),
        LogFetched(log=LogName(DATA.topic_id, 8), high_watermark=3, log_start=0, diverging=EpochEnd(4, 2)),
        LogFetched(log=SCHEDULE, problem=ReplicaProblem.NOT_LEADER, leader=KnownLeader(2, 6)),
    ],
    places=[NodePlace(2, "10.0.0.2", 19_092)],
)
BARRIER: Final = Barrier([LogBarrier(DATA, 5), LogBarrier(SCHEDULE, 6)], timeout_ms=3_000)
PASSED: Final = [
    LogPassed(log=DATA, high_watermark=950),
    LogPassed(log=SCHEDULE, problem=ReplicaProblem.FENCED_EPOCH, leader=KnownLeader(2, 7)),
]
DESCRIBE: Final = DescribeReplica(log=DATA, from_offset=0, to_offset=25_000, step_offsets=10_000)
DESCRIPTION: Final = ReplicaDescription(
    log_start=1,
    log_end=30_000,
    durable_end=29_000,
    high_watermark=28_000,
    epochs=[EpochStart(0, 1), EpochStart(5, 900)],
    checksums=[RangeChecksum(0, 10_000, 0xFFFFFFFF), RangeChecksum(10_000, 20_000, 1)],
)
FORWARD: Final = Forward(kind=4, log=DATA, leader_epoch=5, timeout_ms=2_000, body=b"\x00\xffwork")
FORWARDED: Final = Forwarded(body=b"done")
NOT_FORWARDED: Final = Forwarded(
    problem=ReplicaProblem.NOT_LEADER, detail="orders-7 is led by node 2", leader=KnownLeader(2, 6)
)
