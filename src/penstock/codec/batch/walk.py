"""Where the records of a batch begin, without looking into them: a tenth of the work of decoding them.

Whoever wants ten messages of ten thousand walks once, and decodes ten (`parse_some`).
"""

from __future__ import annotations

from array import array

import msgspec

from penstock.codec.batch.header import BatchBytes, BatchHeader, BatchProblem
from penstock.codec.batch.records import StoredRecord, parse_record, parse_records, read_payload, read_records
from penstock.codec.batch.varint import ONE_BYTE_VALUES, VarintError, read_varint


def record_starts(header: BatchHeader, payload: bytes) -> array[int] | None:
    """The position of each record, and at the end the position after the last. None: they do not fill the payload."""
    starts = array("I")
    position = 0
    try:
        for _ in range(header.record_count):
            starts.append(position)
            first, second = payload[position], payload[position + 1]
            # Nearly all sizes take one byte or two.
            if first < 0x80:
                size = ONE_BYTE_VALUES[first]
                position += 1
            elif second < 0x80:
                rest = first & 0x7F | second << 7
                size = (rest >> 1) ^ -(rest & 1)
                position += 2
            else:
                size, position = read_varint(payload, position)
            if size < 0:
                return None
            position += size
    except (IndexError, OverflowError, VarintError):
        return None
    if position != len(payload):
        return None
    starts.append(position)
    return starts


def parse_some(
    header: BatchHeader, payload: bytes, starts: array[int], first: int, last: int
) -> list[StoredRecord] | BatchProblem:
    """The records from the one numbered `first` to the one numbered `last`, counted from 0."""
    some = msgspec.structs.replace(header, record_count=last - first + 1)
    return parse_records(some, payload[starts[first] : starts[last + 1]])


def record_at(batch: BatchBytes, header: BatchHeader, offset: int) -> StoredRecord | BatchProblem | None:
    """The record of that offset; None: the batch has a hole there. Those before it are passed over."""
    if header.record_count <= header.last_offset_delta:
        # Holes: which number it has is not known.
        records = read_records(batch)
        if isinstance(records, BatchProblem):
            return records
        return next((record for record in records if record.offset == offset), None)
    payload = read_payload(batch, 0, header)
    if isinstance(payload, BatchProblem):
        return payload
    whole = bytes(payload)
    position = 0
    try:
        for _ in range(offset - header.base_offset):
            size, position = read_varint(whole, position)
            position += size
        return parse_record(header, whole, position)
    except (IndexError, VarintError):
        return BatchProblem(f"the record of offset {offset} goes on past the {len(whole)} bytes of its batch")
