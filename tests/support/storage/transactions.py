"""Transactions in the storage simulation: batches and markers to append, and what a plain list says of them.

Kept apart from the code under test: no line of it is used to come to what it must come to.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from penstock.codec.batch.control import EndMarker, build_marker, read_marker
from penstock.codec.batch.header import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, walk_headers
from penstock.codec.batch.records import Record, build_batch
from support.storage.model import ModelBatch, ModelLog, expect

PRODUCERS: Final = (20, 21, 22)
STABLE: Final = "the last stable offset is below what is undecided"


class Transaction:
    def __init__(self, producer: int, first_offset: int) -> None:
        self.producer = producer
        self.first_offset = first_offset
        self.offsets: list[int] = []
        self.marker: ModelBatch | None = None

    @property
    def marker_offset(self) -> int | None:
        return self.marker.base if self.marker is not None else None

    @property
    def is_aborted(self) -> bool:
        return self.marker is not None and self.marker.is_commit is False


class Replay:
    """What batches, from an offset on, say of transactions."""

    def __init__(self, batches: list[ModelBatch], from_offset: int) -> None:
        self.transactions: list[Transaction] = []
        self.ongoing: dict[int, Transaction] = {}
        # By producer: (epoch, coordinator's epoch, marker's offset), as ProducerTransaction has them.
        self.states: dict[int, tuple[int, int, int]] = {}
        for batch in batches:
            if batch.base >= from_offset:
                self._take(batch)

    def _take(self, batch: ModelBatch) -> None:
        header = batch.header
        producer, epoch = header.producer_id, header.producer_epoch
        if batch.is_commit is not None:
            transaction = self.ongoing.pop(producer, None)
            if transaction is not None:
                transaction.marker = batch
            self.states[producer] = (epoch, batch.coordinator_epoch, batch.base)
        elif header.attributes & ATTRIBUTE_TRANSACTIONAL:
            if producer not in self.ongoing:
                self.ongoing[producer] = Transaction(producer, batch.base)
                self.transactions.append(self.ongoing[producer])
            self.ongoing[producer].offsets.append(batch.base)
            self.states[producer] = (epoch, *self.states.get(producer, (0, -1, -1))[1:])

    def producers(self) -> dict[int, tuple[int, int, int, int]]:
        return {
            producer: (state[0], self.ongoing[producer].first_offset if producer in self.ongoing else -1, *state[1:])
            for producer, state in sorted(self.states.items())
        }

    def aborted(self, log_start: int) -> list[tuple[int, int, int]]:
        """(producer, first offset, marker's offset), in the order of the markers."""
        found = [
            (each.producer, each.first_offset, each.marker_offset)
            for each in self.transactions
            if each.is_aborted and each.marker_offset is not None and each.marker_offset >= log_start
        ]
        return sorted(found, key=lambda entry: entry[2])

    def stable_end(self, log_start: int, readable_end: int) -> int:
        undecided = [
            max(each.first_offset, log_start)
            for each in self.transactions
            if each.marker_offset is None or each.marker_offset >= readable_end
        ]
        return min([readable_end, *undecided])


def make_batches(
    random: Random, batches: list[ModelBatch], *, base: int, leader_epoch: int, now_ms: int
) -> list[ModelBatch]:
    """For one append: batches of transactions and markers, in any mixture. `batches` are those before them."""
    made: list[ModelBatch] = []
    for _ in range(random.choice((1, 1, 2, 3))):
        replay = Replay([*batches, *made], 0)
        producer = random.choice(PRODUCERS)
        # A marker may also come to a partition that its transaction never wrote to.
        if random.random() < (0.6 if producer in replay.ongoing else 0.1):
            made.append(_make_marker(random, replay, producer, base, leader_epoch, now_ms))
        else:
            made.append(_make_data(random, replay, producer, base, leader_epoch, now_ms))
        base = made[-1].next
    return made


def _make_data(random: Random, replay: Replay, producer: int, base: int, leader_epoch: int, now_ms: int) -> ModelBatch:
    count = random.choice((1, 1, 3))
    records = [Record(random.randbytes(random.choice((5, 200))), timestamp_ms=now_ms) for _ in range(count)]
    data = build_batch(
        records,
        base_offset=base,
        leader_epoch=leader_epoch,
        producer_id=producer,
        producer_epoch=replay.states.get(producer, (0, 0, 0))[0],
        # Positions of groups come without one.
        base_sequence=random.choice((-1, base, base)),
        is_transactional=True,
    )
    return ModelBatch(bytes(data), [(base + place, now_ms) for place in range(count)])


def _make_marker(
    random: Random, replay: Replay, producer: int, base: int, leader_epoch: int, now_ms: int
) -> ModelBatch:
    epoch, coordinator_epoch, _ = replay.states.get(producer, (0, 0, 0))
    marker = EndMarker(random.random() < 0.5, max(coordinator_epoch, 0) + random.choice((0, 0, 1)))
    data = build_marker(
        marker,
        producer_id=producer,
        # The second version of the protocol: each transaction has an epoch of its own.
        producer_epoch=epoch + random.choice((0, 1)),
        timestamp_ms=now_ms,
        base_offset=base,
        leader_epoch=leader_epoch,
    )
    batch = ModelBatch(bytes(data), [(base, now_ms)])
    batch.is_commit, batch.coordinator_epoch = marker.is_commit, marker.coordinator_epoch
    return batch


def stored_batches(data: bytes) -> list[ModelBatch]:
    """As they stand in a file."""
    batches = []
    for position, header in walk_headers(data):
        batch = ModelBatch(data[position : position + header.size_bytes], [])
        if header.attributes & ATTRIBUTE_CONTROL:
            marker = read_marker(batch.data)
            assert isinstance(marker, EndMarker)
            batch.is_commit, batch.coordinator_epoch = marker.is_commit, marker.coordinator_epoch
        batches.append(batch)
    return batches


# --- what must hold --------------------------------------------------------------------------------------------------


def differences(log: Any, batches: list[ModelBatch], from_offset: int) -> tuple[object, object] | None:
    """What the log knows, and what it should; None: the same."""
    replay = Replay(batches, from_offset)
    known = {
        producer: (state.producer_epoch, state.first_offset, state.coordinator_epoch, state.marker_offset)
        for producer, state in log.transactions.producers.items()
    }
    # Below the start they stay as long as the segment does.
    aborted = [
        (each.producer_id, each.first_offset, each.last_offset)
        for each in log.transactions.aborted.entries()
        if each.last_offset >= log.log_start
    ]
    found = (known, aborted, dict(log.transactions.ongoing))
    ongoing = {producer: each.first_offset for producer, each in replay.ongoing.items()}
    wanted = (replay.producers(), replay.aborted(log.log_start), ongoing)
    return None if found == wanted else (found, wanted)


def check_stable_end(log: Any, model: ModelLog) -> None:
    """At any moment at which something has changed."""
    moment = (log.generation, log.log_start, log.readable_end, log.log_end)
    if moment == model.stable_moment:
        return
    model.stable_moment = moment
    first_offset = log.segments[0].base_offset if log.segments else log.log_start
    gone = [entry for entry in log.transactions.aborted.entries() if entry.last_offset < first_offset]
    expect(not gone, "what is gone leaves the aborted index", (log, gone))
    replay = Replay(model.batches, model.producers_from)
    wanted = replay.stable_end(log.log_start, log.readable_end)
    expect(log.last_stable_offset == wanted, STABLE, (log, log.last_stable_offset, wanted))
    went_on = log.last_stable_offset >= model.stable_end
    expect(went_on, "the last stable offset never goes back", (log, log.last_stable_offset, model.stable_end))
    model.stable_end = log.last_stable_offset


def check_answer(log: Any, model: ModelLog, data: bytes) -> None:
    """A reader of committed records, as clients do it: with each answer it is told of aborted transactions by their
    first offsets, and waits for the markers."""
    headers = [header for _, header in walk_headers(data)]
    told = log.transactions.aborted.between(headers[0].base_offset, headers[-1].next_offset)
    aborted = {
        offset
        for transaction in Replay(model.batches, 0).transactions
        if transaction.is_aborted
        for offset in transaction.offsets
    }
    left_out: set[int] = set()
    for header in headers:
        while told and told[0].first_offset <= header.last_offset:
            left_out.add(told.pop(0).producer_id)
        if header.attributes & ATTRIBUTE_CONTROL:
            left_out.discard(header.producer_id)
        elif header.record_count:
            is_seen = not (header.attributes & ATTRIBUTE_TRANSACTIONAL and header.producer_id in left_out)
            is_right = is_seen == (header.base_offset not in aborted)
            expect(is_right, "a reader of committed records sees them and no others", (header, left_out))
