"""Acknowledgements of share groups as settlements: one for each run of offsets with the same fate."""

from __future__ import annotations

from penstock.codec.kafka.messages.share_acknowledge import AcknowledgementBatch
from penstock.domain.queue.commands import Act, Settlement
from penstock.gateways.kafka.handlers.share.acknowledge import read_acknowledgements


def test_one_type_stands_for_all_offsets() -> None:
    items = read_acknowledgements([AcknowledgementBatch(5, 1_000_000, (1,))], may_renew=False)
    assert items == [Settlement(5, 1_000_000, Act.ACCEPT)]


def test_types_of_each_offset_become_runs() -> None:
    batches = [AcknowledgementBatch(0, 4, (1, 1, 2, 0, 0)), AcknowledgementBatch(7, 7, (3,))]
    assert read_acknowledgements(batches, may_renew=False) == [
        Settlement(0, 1, Act.ACCEPT),
        Settlement(2, 2, Act.RELEASE),
        Settlement(3, 4, Act.GAP),
        Settlement(7, 7, Act.REJECT),
    ]


def test_renewals_must_be_announced() -> None:
    batches = [AcknowledgementBatch(0, 0, (4,))]
    assert read_acknowledgements(batches, may_renew=True) == [Settlement(0, 0, Act.RENEW)]
    assert isinstance(read_acknowledgements(batches, may_renew=False), str)


def test_our_own_act_of_moving_is_not_for_clients() -> None:
    assert isinstance(read_acknowledgements([AcknowledgementBatch(0, 0, (5,))], may_renew=True), str)


def test_overlapping_batches_are_refused() -> None:
    batches = [AcknowledgementBatch(0, 4, (1,)), AcknowledgementBatch(4, 5, (1,))]
    assert isinstance(read_acknowledgements(batches, may_renew=False), str)
