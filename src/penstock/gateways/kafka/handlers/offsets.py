"""ListOffsets and OffsetForLeaderEpoch: where something is in a partition."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Executor
from typing import Final

from penstock.base.long_work import Steps
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.codec.kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import READ_CODES

READ_COMMITTED: Final = 1

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# Of ours: the first place that is damaged. Its first offset is the answer, the offset after it stands where others say
# a timestamp, and this number where they say an epoch: who takes it for a moment does not. -1: there is none.
# Not -1000, -1001 or from -2000 down, by which librdkafka means something else.
DAMAGED: Final = -1999
# Clients know it from here on; older ones ask again after another error.
END_UNKNOWN_FROM: Final = 5
END_UNKNOWN: Final = READ_CODES[ReadProblem.END_UNKNOWN]
# The version that brought each: an older client that says so means something else, or nothing.
SPECIAL_FROM: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


class OffsetsHandler:
    def __init__(self, broker: Broker, admission: Admission, readers: Executor) -> None:
        self._broker = broker
        self._admission = admission
        self._readers = readers

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        is_committed_only = request.isolation_level == READ_COMMITTED
        topics = []
        pace = context.pace()
        for topic in request.topics:
            partitions = []
            counts = Counter(wanted.partition_index for wanted in topic.partitions)
            for wanted in {wanted.partition_index: wanted for wanted in topic.partitions}.values():
                shell = self._find(topic.name, wanted.partition_index, context, epoch=wanted.current_leader_epoch)
                if counts[wanted.partition_index] > 1:
                    partitions.append(_failed(wanted, ErrorCode.INVALID_REQUEST))
                elif context.api_version < SPECIAL_FROM.get(wanted.timestamp, 0):
                    partitions.append(_failed(wanted, ErrorCode.UNSUPPORTED_VERSION))
                elif isinstance(shell, ErrorCode):
                    partitions.append(_failed(wanted, shell))
                else:
                    end = shell.last_stable_offset if is_committed_only else shell.readable_end
                    partitions.append(await self._locate(shell, wanted, end, context.api_version))
                await pace.rest_if_due()
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    def _find(self, name: str, index: int, context: RequestContext, *, epoch: int) -> PartitionShell | ErrorCode:
        if not self._admission.may(context.caller, Operation.DESCRIBE, access.topic(name)):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = self._broker.find(name, index)
        return READ_CODES[found.read_problem(epoch)] if isinstance(found, NotHere) else found

    async def _locate(
        self, shell: PartitionShell, wanted: ListOffsetsPartition, end: int, api_version: int
    ) -> ListOffsetsPartitionResponse:
        """`end`: as far as whoever asks may read."""
        problem = shell.check_epoch(wanted.current_leader_epoch)
        if problem is not None:
            return _failed(wanted, READ_CODES[problem])
        epoch = shell.role.epoch
        # Where the log ends is not known, and so is not which record is the youngest.
        is_end_asked = wanted.timestamp in (LATEST, MAX_TIMESTAMP) or wanted.timestamp >= 0
        if is_end_asked and shell.check_end() is not None:
            return _failed(wanted, END_UNKNOWN if api_version >= END_UNKNOWN_FROM else ErrorCode.LEADER_NOT_AVAILABLE)
        if not shell.may_look:
            return _failed(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        match wanted.timestamp:
            case _ if wanted.timestamp == LATEST:
                return ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, end, epoch)
            case _ if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
                return ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, shell.log_start, epoch)
            case _ if wanted.timestamp == DAMAGED:
                damage = shell.log.damage
                found = (-1, -1) if damage is None else (damage.offset_end, damage.offset)
                return ListOffsetsPartitionResponse(wanted.partition_index, 0, *found, DAMAGED)
            case _ if wanted.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
                # Nothing is tiered inside the log: the archive is a table of its own.
                return ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, -1, -1)
            case _ if wanted.timestamp < 0 and wanted.timestamp != MAX_TIMESTAMP:
                return _failed(wanted, ErrorCode.UNSUPPORTED_VERSION)
        return await self._locate_by_time(shell, wanted, end)

    async def _locate_by_time(
        self, shell: PartitionShell, wanted: ListOffsetsPartition, end: int
    ) -> ListOffsetsPartitionResponse:
        """Looks into one batch, which may have to be read and decompressed: in a thread."""
        loop = asyncio.get_running_loop()
        if wanted.timestamp == MAX_TIMESTAMP:
            found = await loop.run_in_executor(self._readers, shell.offset_of_max_timestamp)
        else:
            found = await loop.run_in_executor(self._readers, shell.offset_for_timestamp, wanted.timestamp)
        if isinstance(found, ReadProblem):
            return _failed(wanted, READ_CODES[found])
        if not shell.may_look:
            return _failed(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if found is None or found.offset >= end:
            # -1 says that no record is that young, or none that may be read yet; it is not an error.
            return ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, -1, -1)
        return ListOffsetsPartitionResponse(
            wanted.partition_index, 0, found.timestamp_ms, found.offset, found.leader_epoch
        )

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> Steps[OffsetForLeaderEpochResponse]:
        topics = []
        for topic in request.topics:
            partitions = []
            for wanted in topic.partitions:
                partitions.append(self._epoch_end(topic.topic, wanted, context))
                yield
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _epoch_end(self, name: str, wanted: OffsetForLeaderPartition, context: RequestContext) -> EpochEndOffset:
        shell = self._find(name, wanted.partition, context, epoch=wanted.current_leader_epoch)
        if isinstance(shell, ErrorCode):
            return EpochEndOffset(error_code=shell, partition=wanted.partition)
        problem = shell.check_epoch(wanted.current_leader_epoch)
        if problem is None and not shell.may_look:
            problem = ReadProblem.NOT_LEADER
        if problem is not None:
            return EpochEndOffset(error_code=READ_CODES[problem], partition=wanted.partition)
        epoch, end_offset = shell.epoch_end(wanted.leader_epoch)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


def _failed(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)
