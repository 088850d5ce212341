"""The committed offsets of one group: written, read, deleted, expired. Who may do what is the group's business.

    committed    one value per (topic, partition)
    pending      offsets of transactions that have not ended, by producer; their end writes those that count and removes
                 them all

When a transaction commits, its offset counts only if nothing was committed for that partition after it: the later one
of the two in the log wins, not the one whose transaction ended later. So every applied offset gets a running number;
it is not kept, because a replay gives the same order again, of a compacted log too. Where offsets of several
transactions wait, the first that commits is written after the others although it came before them: they are written
once more, behind it, and the order is as it was.

A reader that asks for stable offsets is refused those of partitions with a pending offset: what it would read may be
about to change, and it would process the same input again (KIP-447).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import msgspec

from penstock.domain.group.commands import (
    FetchedOffset,
    OffsetToCommit,
    Outbox,
    PartitionName,
    PartitionOutcome,
)
from penstock.domain.group.records import (
    NEVER_MS,
    NO_EPOCH,
    NO_PRODUCER,
    GroupRecord,
    OffsetStored,
    RecordKey,
    Removed,
    offset_key,
    pending_key,
)
from penstock.domain.group.values import NO_TOPIC_ID, GroupError

_Place = tuple[str, int]

# Offsets of a transaction that are ended in one decision, two records each: two milliseconds with their encoding.
ENDED_AT_ONCE_MAX: Final = 200


class OffsetStore:
    __slots__ = ("_applied_count", "_committed", "_orders", "_pending")

    def __init__(self) -> None:
        self._committed: dict[_Place, OffsetStored] = {}
        # Of committed and pending offsets that share a partition, only while a transaction is open there.
        self._pending: dict[int, dict[_Place, tuple[int, OffsetStored]]] = {}
        self._orders: dict[_Place, int] = {}
        self._applied_count = 0

    # ------------------------------------------------------------------ what is kept

    def apply(self, record: OffsetStored) -> None:
        place = (record.topic, record.partition)
        if record.producer_id != NO_PRODUCER:
            self._applied_count += 1
            self._pending.setdefault(record.producer_id, {})[place] = (self._applied_count, record)
            return
        self._committed[place] = record
        if self._pending:
            self._applied_count += 1
            self._orders[place] = self._applied_count

    def apply_removal(self, topic: str, partition: int) -> None:
        place = (topic, partition)
        self._committed.pop(place, None)
        self._orders.pop(place, None)

    def apply_pending_removal(self, producer_id: int, topic: str, partition: int) -> None:
        offsets = self._pending.get(producer_id)
        if offsets is None:
            return
        offsets.pop((topic, partition), None)
        if not offsets:
            del self._pending[producer_id]
            if not self._pending:
                self._orders.clear()

    def snapshot(self) -> list[OffsetStored]:
        """In an order that tells again what came first where a transaction is open."""
        numbered = [(self._orders.get(place, 0), place, stored) for place, stored in self._committed.items()]
        for offsets in self._pending.values():
            numbered += [(order, place, stored) for place, (order, stored) in offsets.items()]
        # No two offsets of a place have the same number, so the records themselves are never compared.
        return [stored for _order, _place, stored in sorted(numbered, key=lambda entry: entry[:2])]

    # ------------------------------------------------------------------ reading

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self._pending

    def is_empty_after(self, records: Iterable[GroupRecord]) -> bool:
        """Whether nothing is left once these have been applied."""
        gone: set[RecordKey] = set()
        for record in records:
            if not isinstance(record, Removed):
                return False
            gone.add(record.key)
        waiting = sum(len(offsets) for offsets in self._pending.values())
        # Only what is there is ever removed.
        return len(gone) == len(self._committed) + waiting

    @property
    def has_open_transactions(self) -> bool:
        return bool(self._pending)

    def producers(self) -> list[int]:
        return sorted(self._pending)

    def has_pending(self, producer_id: int) -> bool:
        return producer_id in self._pending

    def topic_names(self) -> set[str]:
        waiting = {topic for offsets in self._pending.values() for topic, _partition in offsets}
        return {topic for topic, _partition in self._committed} | waiting

    def get(self, topic: str, partition: int) -> OffsetStored | None:
        return self._committed.get((topic, partition))

    def __len__(self) -> int:
        return len(self._committed)

    def as_dict(self) -> dict[_Place, OffsetStored]:
        return dict(self._committed)

    def pending_as_dict(self) -> dict[int, dict[_Place, OffsetStored]]:
        return {
            producer_id: {place: offset for place, (_order, offset) in self._pending[producer_id].items()}
            for producer_id in sorted(self._pending)
        }

    def places(self, *, with_pending: bool) -> tuple[_Place, ...]:
        """Everything that is kept, without a look at any of it: there may be tens of thousands."""
        if not with_pending:
            return tuple(self._committed)
        waiting = {place: None for offsets in self._pending.values() for place in offsets}
        return (*self._committed, *(place for place in waiting if place not in self._committed))

    def fetch(self, partitions: Iterable[PartitionName], *, requires_stable: bool) -> list[FetchedOffset]:
        return [self._fetch_one(wanted, requires_stable=requires_stable) for wanted in partitions]

    def _fetch_one(self, wanted: PartitionName, *, requires_stable: bool) -> FetchedOffset:
        place = (wanted.topic, wanted.partition)
        if requires_stable and any(place in offsets for offsets in self._pending.values()):
            return FetchedOffset(wanted.topic, wanted.partition, error=GroupError.UNSTABLE_OFFSET_COMMIT)
        stored = self._committed.get(place)
        if stored is None or not _is_same_topic(stored.topic_id, wanted.topic_id):
            return FetchedOffset(wanted.topic, wanted.partition)
        return FetchedOffset(wanted.topic, wanted.partition, stored.offset, stored.leader_epoch, stored.metadata)

    def _unstable(self) -> frozenset[_Place]:
        return frozenset(place for offsets in self._pending.values() for place in offsets)

    # ------------------------------------------------------------------ deciding

    def decide_commit(
        self,
        offsets: Iterable[OffsetToCommit],
        *,
        metadata_bytes_max: int,
        expires_ms: int,
        now_ms: int,
        out: Outbox,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = NO_EPOCH,
    ) -> list[PartitionOutcome]:
        outcomes = []
        for given in offsets:
            error = None
            # Characters first: most texts are short and need not be encoded to be measured.
            if len(given.metadata) * 4 > metadata_bytes_max and len(given.metadata.encode()) > metadata_bytes_max:
                error = GroupError.OFFSET_METADATA_TOO_LARGE
            else:
                out.records.append(
                    OffsetStored(
                        given.topic,
                        given.partition,
                        given.offset,
                        given.leader_epoch,
                        given.metadata,
                        now_ms,
                        expires_ms,
                        given.topic_id,
                        producer_id,
                        producer_epoch,
                    )
                )
            outcomes.append(PartitionOutcome(given.topic, given.partition, error))
        return outcomes

    def transaction_problem(self, producer_id: int, producer_epoch: int) -> GroupError | None:
        """The transaction's coordinator knows better and is asked first; this holds whatever it says."""
        offsets = self._pending.get(producer_id)
        if offsets is None:
            return None
        # One is as good as another: no two epochs wait together, by this very rule.
        _order, waiting = next(iter(offsets.values()))
        if waiting.producer_epoch > producer_epoch:
            return GroupError.INVALID_PRODUCER_EPOCH
        # An earlier transaction has not ended here yet, and its end must not decide about this one too. Every client
        # tries again at this answer.
        return GroupError.COORDINATOR_NOT_AVAILABLE if waiting.producer_epoch < producer_epoch else None

    def ending_portions(self, producer_id: int) -> int:
        """How often `decide_transaction_end` is to be asked until nothing is left."""
        return -(-len(self._pending.get(producer_id, ())) // ENDED_AT_ONCE_MAX)

    def decide_transaction_end(self, producer_id: int, *, last_epoch: int, is_commit: bool, out: Outbox) -> None:
        """Offsets of epochs up to `last_epoch`: those of a later one belong to a transaction that goes on. No more than
        ENDED_AT_ONCE_MAX, the first that came: it is asked again until nothing is left."""
        for place, (order, waiting) in islice(self._pending.get(producer_id, {}).items(), ENDED_AT_ONCE_MAX):
            if waiting.producer_epoch > last_epoch:
                # No two epochs wait together.
                return
            if is_commit and order > self._orders.get(place, 0):
                out.records.append(msgspec.structs.replace(waiting, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH))
                out.records += self._pending_after(place, order)
            out.records.append(Removed(waiting.key))

    def _pending_after(self, place: _Place, order: int) -> list[OffsetStored]:
        """What waits for other transactions and was written after this one, in its order."""
        found = [offsets[place] for offsets in self._pending.values() if place in offsets]
        return [waiting for number, waiting in sorted(found, key=lambda entry: entry[0]) if number > order]

    def decide_delete(
        self, partitions: Iterable[PartitionName], *, is_read: Callable[[str], bool], out: Outbox
    ) -> list[PartitionOutcome]:
        """Offsets of topics that a member reads stay: it would start over in the middle of its work."""
        outcomes = []
        for named in partitions:
            place = (named.topic, named.partition)
            if is_read(named.topic):
                error = GroupError.GROUP_SUBSCRIBED_TO_TOPIC
                outcomes.append(PartitionOutcome(named.topic, named.partition, error))
                continue
            self._remove(place, out)
            outcomes.append(PartitionOutcome(named.topic, named.partition))
        return outcomes

    def decide_forget(self, topics: Iterable[str], out: Outbox) -> None:
        gone = frozenset(topics)
        waiting = {place for place in self._unstable() if place[0] in gone}
        for place in sorted({place for place in self._committed if place[0] in gone} | waiting):
            self._remove(place, out)

    def decide_forget_all(self, out: Outbox) -> None:
        for place in sorted(self._committed.keys() | self._unstable()):
            self._remove(place, out)

    def _remove(self, place: _Place, out: Outbox) -> None:
        """With what waits for a transaction there: its end must not bring back what is gone."""
        if place in self._committed:
            out.records.append(Removed(offset_key(*place)))
        out.records += [
            Removed(pending_key(producer_id, *place))
            for producer_id in sorted(self._pending)
            if place in self._pending[producer_id]
        ]

    def decide_expiry(
        self,
        *,
        retention_ms: int,
        quiet_since_ms: int,
        is_read: Callable[[str], bool],
        now_ms: int,
        out: Outbox,
    ) -> bool:
        """`quiet_since_ms` is when the group lost its last member: nothing of it is older than that (KIP-211).

        True if nothing is left.
        """
        unstable = self._unstable()
        gone = sorted(
            place
            for place, stored in self._committed.items()
            if _is_expired(stored, retention_ms, quiet_since_ms, now_ms)
            and place not in unstable
            and not is_read(stored.topic)
        )
        out.records += [Removed(offset_key(*place)) for place in gone]
        return len(gone) == len(self._committed) and not self._pending


def _is_expired(stored: OffsetStored, retention_ms: int, quiet_since_ms: int, now_ms: int) -> bool:
    if stored.expires_ms != NEVER_MS:
        return now_ms >= stored.expires_ms
    return now_ms - max(stored.committed_ms, quiet_since_ms) >= retention_ms


def _is_same_topic(stored_id: bytes, wanted_id: bytes) -> bool:
    """Old clients do not say which topic of that name they mean."""
    return NO_TOPIC_ID in (stored_id, wanted_id) or stored_id == wanted_id
