"""A staged batch in another producer's name: its records as they were, its header that producer's."""

from __future__ import annotations

import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, check_batch, patch
from penstock.codec.batch.records import read_records
from penstock.codec.batch.rewrite import sign_transactional
from penstock.codec.columns.frame import build_batches_from_columns


@pytest.mark.parametrize("codec", list(Codec))
def test_only_the_name_changes(codec: Codec) -> None:
    (batch,) = build_batches_from_columns([b"a", None], [b"1", b"2"], 77, codec=codec, producer_id=5, producer_epoch=1)
    header = check_batch(batch)
    assert isinstance(header, BatchHeader)
    patch(batch, 0, header, base_offset=1234, leader_epoch=9)
    payload = bytes(batch[61:])
    signed = sign_transactional(batch, producer_id=8, producer_epoch=3, base_sequence=40)
    found = check_batch(signed)
    assert isinstance(found, BatchHeader), found
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (8, 3, 40)
    assert (found.base_offset, found.leader_epoch, found.is_transactional, found.codec) == (0, -1, True, codec)
    assert signed[61:] == payload
    records = read_records(signed)
    assert isinstance(records, list | tuple)
    assert [(record.key, record.value) for record in records] == [(b"a", b"1"), (None, b"2")]
