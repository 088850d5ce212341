"""What a log may be, kept as a plain list: the other half of the storage simulation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from penstock.codec.batch.header import BatchHeader, read_header


class InvariantBroken(AssertionError):  # noqa: N818  the name of what happened
    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


def expect(holds: bool, invariant: str, detail: object = "") -> None:
    if not holds:
        raise InvariantBroken(invariant, str(detail))


class Storage:
    """The modules under test: the real ones, or copies with a bug planted in one of them."""

    def __init__(self, load: Callable[[str], ModuleType] = importlib.import_module, package: str = "penstock") -> None:
        self.log_store = load(f"{package}.storage.store")
        self.config = load(f"{package}.storage.config")
        self.errors = load(f"{package}.storage.errors")
        self.check = load(f"{package}.storage.repair.check")
        self.repair = load(f"{package}.storage.repair.rewrite")
        self.read_plan = load(f"{package}.storage.log.read_plan")
        self.sequence = load(f"{package}.domain.log.producer_sequence")
        self.log_anew = load(f"{package}.storage.commit.log_anew")
        self.set_aside = load(f"{package}.storage.log.set_aside")
        self.sync_ways = load(f"{package}.storage.commit.sync_ways")


class ModelBatch:
    __slots__ = ("base", "coordinator_epoch", "data", "header", "is_commit", "next", "records")

    def __init__(self, data: bytes, records: list[tuple[int, int]]) -> None:
        header = read_header(data)
        assert isinstance(header, BatchHeader)
        self.header = header
        self.data = data
        self.base = header.base_offset
        self.next = header.next_offset
        # Offset and timestamp of each.
        self.records = records
        # None: not a marker.
        self.is_commit: bool | None = None
        self.coordinator_epoch = -1


class ModelLog:
    """What was appended to one log, and how much of it was promised."""

    def __init__(self) -> None:
        self.batches: list[ModelBatch] = []
        self.acked_end = 0
        # The start may be anywhere between: a deletion that was not answered may or may not have happened.
        self.start_min = 0
        self.start_max = 0
        # Producers are known from here on: what is below was deleted before their state had to be rebuilt.
        self.producers_from = 0
        # A truncation below the saved producers makes recovery read them from what is left of the log.
        self.may_forget_producers = False
        # Leader epochs below are forgotten with the records, also if the deletion fails in the end.
        self.epochs_from = 0
        self.flipped: int | None = None
        self.sequences: dict[int, int] = {}
        # The last stable offset that was seen; forgotten where what was readable may be lost.
        self.stable_end = 0
        self.stable_moment: tuple[int, ...] = ()
        # What was deleted from here on had not been promised.
        self.lost_from = 0
        # Batches of appends that failed.
        self.refused: list[ModelBatch] = []

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else self.start_max

    def cut_end(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.next <= end]
        self.acked_end = min(self.acked_end, end)
