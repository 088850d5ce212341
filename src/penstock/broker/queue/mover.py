"""Messages on their way from a queue to another topic, exactly once, whatever crashes: dead letters, and redrives.

    dying ─► MoveIntended (journal) ─► one batch in the target, with a producer's sequence ─► MoveDone (journal)

The rules: `domain/queue/dead_letter`; here are the reads, the appends and the patience. One task for each queue of a
partition runs while there is anything to move, and tries again after a while whatever failed: a message that is dying
stays so until its copy is in the target.

What died goes to the queue's dead-letter topic. What was told to move has its place written down with that decision;
if there is no such place any more, or it refuses the message, the message goes home: to the end of the partition that
it lies in, as it is, for whoever decides anew.

The target may be led by any node (`landing`). A leader that does not answer, or is no leader any more, is asked again
with the same sequence, or whoever leads then, until the batch is there or this node no longer leads the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.landing import Away, Landed, MoveLine, land, land_elsewhere
from penstock.broker.queue.shell import QueueShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.codec.batch.records import Headers, Record, StoredRecord, build_batch
from penstock.domain.queue.commands import BeginMove, Done, DropMove, FinishMove
from penstock.domain.queue.dead_letter import MOVE_COUNT_MAX, DeadLetter, Origin, headers_of
from penstock.domain.queue.receipt import MessageId, write_message_id
from penstock.domain.queue.records import Move
from penstock.domain.queue.redrive import deadly_headers, living_headers, read_place
from penstock.domain.queue.values import Cause, Range, count_of
from penstock.domain.replication.exchange import LogName

log = get_logger("dead letters")

RETRY_MS_MIN: Final = 100
RETRY_MS_MAX: Final = 10_000
# Of a target without a leader that answers: there is another soon.
AWAY_RETRY_MS_MAX: Final = 1_000
# Names the message's first place, whatever copies were made since.
MESSAGE_ID_HEADER: Final = "penstock-message-id"
# The size of a value that did not fit into its letter, in bytes.
LEFT_OUT_HEADER: Final = "penstock-dead-letter-left-out-bytes"
# What a target will refuse for ever: nothing is wrong with the target.
_FINAL_REFUSALS: Final = frozenset({Refusal.INVALID, Refusal.TOO_LARGE, Refusal.BAD_TIMESTAMP, Refusal.CORRUPT})

FindTarget = Callable[[str, str], Awaitable[ServedTopic | None]]
# The queues of a partition under one leadership, and one of them by its group.
Moving = tuple[QueueShell, str]


class QueueMover:
    def __init__(
        self,
        broker: Broker,
        producer_ids: ProducerIds,
        *,
        find_target: FindTarget,
        is_gone: Callable[[bytes], bool],
        copies: Callable[[str, str], bool],
        tasks: TaskSupervisor,
    ) -> None:
        self._broker = broker
        self._producer_ids = producer_ids
        # Topic and group of the queue; the topic its dead letters go to, created if need be.
        self._find_target = find_target
        # Whether there is no topic of that id any more: one that is not served may be there all the same. By what this
        # node has heard in the order in which it heard that it leads the source: so it has heard of every topic that
        # an intent of an earlier leader names.
        self._is_gone = is_gone
        # Topic and group: whether its letters hold the messages, or say only where they lie.
        self._copies = copies
        self._tasks = tasks
        self._running: set[Moving] = set()
        # Of queues whose last batch was too large for the target: how many messages the next one may hold.
        self._counts_max: dict[Moving, int] = {}
        # Those whose last batch the target did not follow: its producer cannot go on there.
        self._stranded: set[Moving] = set()
        # Offsets of messages that the place they were sent to does not take: they go home. Forgotten by a restart,
        # and learned again.
        self._unwelcome: dict[Moving, set[int]] = {}
        # Those with a message that the target does not take as it is, because of its size: it goes without its value.
        self._bare: set[Moving] = set()
        # None: this node talks to no other.
        self.line: MoveLine | None = None
        # What the next batch waits for, where the last attempt did not bring it there.
        self._waits: dict[Moving, str] = {}
        # Dead letters since the start, by topic and group.
        self.buried_counts: dict[tuple[str, str], int] = {}
        # And those that were told to move, and went home.
        self.returned_counts: dict[tuple[str, str], int] = {}

    def wake(self, shell: QueueShell, group: str) -> None:
        """There is something to move. Called when what says so is durable."""
        if (shell, group) not in self._running and not self._broker.is_stopping:
            self._running.add((shell, group))
            self._tasks.start(f"dead letters of {shell.partition.topic}/{group}", self._run(shell, group))

    async def _run(self, shell: QueueShell, group: str) -> None:
        retry_ms = RETRY_MS_MIN
        try:
            while shell.is_loaded and not self._broker.is_stopping and _has_work(shell, group):
                outcome = await self._try_step(shell, group)
                if outcome is True:
                    retry_ms = RETRY_MS_MIN
                    self._waits.pop((shell, group), None)
                    continue
                self._tell(shell, group, outcome.why if isinstance(outcome, Away) else "")
                retry_ms = min(retry_ms, AWAY_RETRY_MS_MAX if isinstance(outcome, Away) else RETRY_MS_MAX)
                await asyncio.sleep(retry_ms / 1000)
                retry_ms *= 2
        finally:
            self._running.discard((shell, group))
            self._waits.pop((shell, group), None)
            if not shell.is_loaded:
                self._forget((shell, group))

    def _forget(self, moving: Moving) -> None:
        """Another leadership has another shell, and learns its troubles anew."""
        self._counts_max.pop(moving, None)
        self._unwelcome.pop(moving, None)
        self._stranded.discard(moving)
        self._bare.discard(moving)

    def _tell(self, shell: QueueShell, group: str, why: str) -> None:
        """Once for each reason: it is tried again and again."""
        if why and self._waits.get((shell, group)) != why:
            self._waits[shell, group] = why
            log.warning("dead letters wait", topic=shell.partition.topic, group=group, why=why)

    def waits_for(self, shell: QueueShell, group: str) -> str:
        """What keeps messages of the queue from their target just now; empty: nothing that is known."""
        return self._waits.get((shell, group), "")

    async def _try_step(self, shell: QueueShell, group: str) -> bool | Away:
        """One batch further; anything but True: try again later."""
        try:
            return await self._step(shell, group)
        except StoreUnavailableError as error:
            # No producer id, or no topic for the letters, until it is back: nobody else would begin anew.
            self._tell(shell, group, str(error))
            return False

    async def _step(self, shell: QueueShell, group: str) -> bool | Away:
        queue = shell.queue(group)
        move = queue.pending_move() if queue is not None else None
        if move is None:
            return await self._intend(shell, group)
        # The intent must be durable before its batch is: it may have been decided on a moment ago.
        if not await shell.is_durable():
            return False
        return await self._carry_out(shell, group, move)

    async def _intend(self, shell: QueueShell, group: str) -> bool:
        queue = shell.queue(group)
        letters = queue.dying(self._counts_max.get((shell, group), MOVE_COUNT_MAX)) if queue is not None else []
        if queue is None or not letters:
            return queue is not None
        target = await self._target_of(shell, group, letters[0])
        if target is None:
            return False
        topic_id, partition = target
        last = queue.last_move()
        # The producer that wrote the last batch goes on, if it wrote there: its sequence does the rest.
        if (
            last is None
            or (shell, group) in self._stranded
            or (last.target_topic_id, last.target_partition) != (topic_id, partition)
        ):
            producer_id = await self._producer_ids.take()
        else:
            producer_id = last.producer_id
        wanted = [
            letter for letter in letters if self._road(shell, group, letter) == self._road(shell, group, letters[0])
        ]
        sources: tuple[Range, ...] = tuple((letter.first, letter.last) for letter in wanted)
        reply = shell.decide(group, BeginMove(topic_id, partition, producer_id, 0, sources))
        self._stranded.discard((shell, group))
        return isinstance(reply, Done)

    def _road(self, shell: QueueShell, group: str, letter: DeadLetter) -> tuple[bool, str]:
        """Letters with the same one go to the same place."""
        if letter.failure.cause is not Cause.MOVED:
            return False, ""
        unwelcome = self._unwelcome.get((shell, group))
        is_unwelcome = unwelcome is not None and letter.first in unwelcome
        return True, "" if is_unwelcome else letter.failure.text

    async def _target_of(self, shell: QueueShell, group: str, letter: DeadLetter) -> tuple[bytes, int] | None:
        """Topic id and partition; None: not to be had now."""
        is_told, road = self._road(shell, group, letter)
        if not is_told:
            target = await self._find_target(shell.partition.topic, group)
            return None if target is None else (target.topic_id, shell.partition.index % target.partition_count)
        place = read_place(road)
        topic = None if place is None else self._broker.topic(place.topic)
        if place is None or topic is None or not topic.has_partition(place.partition):
            return _home_of(shell)
        return topic.topic_id, place.partition

    async def _carry_out(self, shell: QueueShell, group: str, move: Move) -> bool | Away:
        target = self._broker.topic_by_id(move.target_topic_id)
        found = None if target is None else target.find(move.target_partition)
        if found is None or (isinstance(found, NotHere) and found.is_unknown):
            if not self._is_gone(move.target_topic_id):
                return False  # its logs could not be opened; what they hold may be there again
            # Its topic is gone, and with it whatever of the batch may have been there.
            return isinstance(shell.decide(group, DropMove(move.batch)), Done)
        batch = await self._build(shell, group, move)
        if batch is None:
            return False
        outcome = await self._land(found, move, batch)
        if isinstance(outcome, Landed):
            return await self._finish(shell, group, move, outcome)
        if isinstance(outcome, AppendRefused) and self._must_drop(shell, group, move, outcome.refusal):
            # Refused, so not there now; and as the last batch of its producer, never there before.
            return isinstance(shell.decide(group, DropMove(move.batch)), Done)
        if isinstance(outcome, AppendRefused):
            self._tell(shell, group, outcome.reason)
        return outcome if isinstance(outcome, Away) else False

    async def _land(
        self, target: PartitionShell | NotHere, move: Move, batch: bytearray
    ) -> Landed | AppendRefused | Away:
        if isinstance(target, PartitionShell):
            return await land(target, target.leadership, batch)
        log_name = LogName(move.target_topic_id, move.target_partition)
        return await land_elsewhere(self.line, target, log_name, batch)

    async def _finish(self, shell: QueueShell, group: str, move: Move, landed: Landed) -> bool:
        is_burial = _is_burial(shell, group, move)
        reply = await shell.submit(group, FinishMove(move.batch, landed.base_offset))
        self._forget_trouble(shell, group, move)
        is_home = (move.target_topic_id, move.target_partition) == _home_of(shell)
        if isinstance(reply, Done) and (is_burial or is_home):
            name = shell.partition.topic, group
            counts = self.buried_counts if is_burial else self.returned_counts
            counts[name] = counts.get(name, 0) + count_of(move.sources)
        return isinstance(reply, Done)

    def _forget_trouble(self, shell: QueueShell, group: str, move: Move) -> None:
        """One message was too large, not all of them: batches grow again."""
        count_max = self._counts_max.pop((shell, group), MOVE_COUNT_MAX) * 2
        if count_max < MOVE_COUNT_MAX:
            self._counts_max[shell, group] = count_max
        self._bare.discard((shell, group))
        unwelcome = self._unwelcome.get((shell, group))
        if unwelcome is not None:
            unwelcome.difference_update(offset for first, last in move.sources for offset in range(first, last + 1))
            if not unwelcome:
                del self._unwelcome[shell, group]

    def _must_drop(self, shell: QueueShell, group: str, move: Move, refusal: Refusal) -> bool:
        """The batch as it is will never be taken: another one is made of its messages."""
        count = count_of(move.sources)
        if refusal is Refusal.TOO_LARGE and count > 1:
            self._counts_max[shell, group] = max(count // 2, 1)
        elif refusal in _FINAL_REFUSALS and self._was_told(shell, group, move):
            offsets = {offset for first, last in move.sources for offset in range(first, last + 1)}
            self._unwelcome.setdefault((shell, group), set()).update(offsets)
            log.warning("messages go home", topic=shell.partition.topic, group=group, why=refusal.value, count=count)
        elif refusal not in (Refusal.OUT_OF_ORDER_SEQUENCE, Refusal.PRODUCER_FENCED):
            if refusal is Refusal.TOO_LARGE:
                self._bare.add((shell, group))
            return False
        self._stranded.add((shell, group))
        return True

    def _was_told(self, shell: QueueShell, group: str, move: Move) -> bool:
        """Whether its messages were told where to go, and did not stay at home for it already."""
        queue = shell.queue(group)
        letters = queue.letters_of(move) if queue is not None else []
        is_away = (move.target_topic_id, move.target_partition) != _home_of(shell)
        return is_away and bool(letters) and letters[0].failure.cause is Cause.MOVED

    async def _build(self, shell: QueueShell, group: str, move: Move) -> bytearray | None:
        """One record for each source, in order; one that the log has lost is there without its value."""
        queue = shell.queue(group)
        if queue is None:
            return None
        origin = Origin(shell.partition.topic, shell.partition.index, group)
        records: list[Record] = []
        for letter in queue.letters_of(move):
            found = await shell.reader.messages(letter.first, letter.last, is_committed_only=False)
            if isinstance(found, ReadProblem) and found is not ReadProblem.OUT_OF_RANGE:
                return None
            by_offset = {} if isinstance(found, ReadProblem) else {record.offset: record for record in found}
            for offset in range(letter.first, letter.last + 1):
                record = by_offset.get(offset)
                if letter.failure.cause is Cause.MOVED:
                    is_home = (move.target_topic_id, move.target_partition) == _home_of(shell)
                    records.append(_moved(shell, letter, offset, record, is_home=is_home))
                elif (shell, group) in self._bare or not self._copies(origin.topic, group):
                    records.append(_bare(shell, letter, origin, offset, record))
                else:
                    records.append(_dead(shell, letter, origin, offset, record))
        return build_batch(
            records, producer_id=move.producer_id, producer_epoch=move.producer_epoch, base_sequence=move.base_sequence
        )


def _dead(shell: QueueShell, letter: DeadLetter, origin: Origin, offset: int, record: StoredRecord | None) -> Record:
    own = () if record is None else deadly_headers(record.headers)
    headers = (*own, *headers_of(letter, origin, offset=offset))
    return _copy(shell, offset, record, letter.failure.last_ms, headers)


def _bare(shell: QueueShell, letter: DeadLetter, origin: Origin, offset: int, record: StoredRecord | None) -> Record:
    """With the headers of a letter it is more than the target takes. They say where the message lies; the rest of it
    stays there, for better than that all letters behind it wait for ever."""
    size_bytes = len(record.value or b"") if record is not None else 0
    headers = (*headers_of(letter, origin, offset=offset), (LEFT_OUT_HEADER, b"%d" % size_bytes))
    return _copy(shell, offset, None, letter.failure.last_ms, headers)


def _moved(shell: QueueShell, letter: DeadLetter, offset: int, record: StoredRecord | None, *, is_home: bool) -> Record:
    if record is not None and is_home:
        return Record(value=record.value, key=record.key, timestamp_ms=letter.failure.last_ms, headers=record.headers)
    own = () if record is None else living_headers(record.headers)
    return _copy(shell, offset, record, letter.failure.last_ms, own)


def _copy(shell: QueueShell, offset: int, record: StoredRecord | None, timestamp_ms: int, headers: Headers) -> Record:
    if all(name != MESSAGE_ID_HEADER for name, _ in headers):
        first_place = MessageId(shell.partition.log.home.topic_id, shell.partition.index, offset)
        headers = (*headers, (MESSAGE_ID_HEADER, write_message_id(first_place).encode()))
    if record is None:
        return Record(value=None, timestamp_ms=timestamp_ms, headers=headers)
    return Record(value=record.value, key=record.key, timestamp_ms=timestamp_ms, headers=headers)


def _home_of(shell: QueueShell) -> tuple[bytes, int]:
    return shell.partition.log.home.topic_id, shell.partition.index


def _is_burial(shell: QueueShell, group: str, move: Move) -> bool:
    queue = shell.queue(group)
    letters = queue.letters_of(move) if queue is not None else []
    return bool(letters) and letters[0].failure.cause is not Cause.MOVED


def _has_work(shell: QueueShell, group: str) -> bool:
    queue = shell.queue(group)
    return queue is not None and (queue.pending_move() is not None or bool(queue.dying(1)))
