"""Control batches: the markers with which a coordinator ends a transaction in each of its partitions.

A marker is a record batch v2 with the transactional and the control bit set, without a sequence, of one record:

    key      version int16 (0), type int16 (0 abort, 1 commit)
    value    version int16 (0), coordinator epoch int32

The producer in the header is the one whose transaction ends. Fields that a later version adds behind these are passed
over, as Kafka does. Other types, and control batches that compaction has emptied, are nobody's end.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from penstock.codec.batch.header import HEADER_BYTES, BatchBytes, BatchProblem, read_header
from penstock.codec.batch.records import Record, build_batch, read_records

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class EndMarker(msgspec.Struct, frozen=True):
    is_commit: bool
    coordinator_epoch: int


def may_be_marker(data: BatchBytes) -> bool:
    """Whether bytes that have rotted may have been one, or several batches among which was one. False: their length
    fits one batch, and no marker."""
    size = len(data)
    if size < HEADER_BYTES or size == MARKER_BYTES:
        return True
    header = read_header(data)
    return isinstance(header, BatchProblem) or header.size_bytes != size


def build_marker(
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    kind = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
    record = Record(
        _VALUE.pack(_VERSION, marker.coordinator_epoch), key=_KEY.pack(_VERSION, kind), timestamp_ms=timestamp_ms
    )
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: BatchBytes, position: int = 0) -> EndMarker | BatchProblem | None:
    """The marker in the control batch at `position`; None if it is not the end of a transaction."""
    header = read_header(batch, position)
    if isinstance(header, BatchProblem):
        return header
    if not header.is_control:
        return BatchProblem(f"the batch at offset {header.base_offset} is not a control batch")
    records = read_records(batch, position)
    if isinstance(records, BatchProblem):
        return records
    if not records:
        return None
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _KEY.size:
        return BatchProblem(f"control record at offset {records[0].offset} has a key of {len(key)} bytes")
    _version, kind = _KEY.unpack_from(key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if len(value) < _VALUE.size:
        return BatchProblem(f"marker at offset {records[0].offset} has a value of {len(value)} bytes")
    _version, coordinator_epoch = _VALUE.unpack_from(value)
    return EndMarker(kind == ControlType.COMMIT, coordinator_epoch)


# All of the same size: fixed fields, and a record with nothing in it that grows.
MARKER_BYTES: Final = len(
    build_marker(EndMarker(is_commit=True, coordinator_epoch=0), producer_id=0, producer_epoch=0, timestamp_ms=0)
)
