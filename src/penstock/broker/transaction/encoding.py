"""The records of `__transaction_state`, as keys and values.

    transactional id ──► its metadata, whole; a tombstone forgets it
    nil              ──► the epoch of the partition's coordinator, raised with every load

The last record of a key is all there is to know of it, so the topic is compacted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.transaction.state import TransactionMetadata, TransactionRecord

Entry = tuple[bytes, bytes | None]

_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(str | None).decode
_decode_metadata = msgspec.msgpack.Decoder(TransactionMetadata).decode
_decode_epoch = msgspec.msgpack.Decoder(int).decode
# No transactional id is encoded like this, not even an empty one.
_EPOCH_KEY: Final = _encode(None)


def encode_record(record: TransactionRecord) -> Entry:
    value = None if record.metadata is None else _encode(record.metadata)
    return _encode(record.transactional_id), value


def encode_epoch(coordinator_epoch: int) -> Entry:
    return _EPOCH_KEY, _encode(coordinator_epoch)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | int:
    """A record, or a coordinator's epoch. `msgspec.DecodeError`: it is neither."""
    transactional_id = _decode_key(key)
    if transactional_id is None:
        return _decode_epoch(value or b"")
    return TransactionRecord(transactional_id, None if value is None else _decode_metadata(value))
