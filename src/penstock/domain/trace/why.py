"""Why a message has not been delivered yet, one plain sentence per queue or group, and what would change it.

Pure: the shell says how things stand with the message (`QueueSituation`, `GroupSituation`), and here is decided which
of them matters. The order of the questions is that in which a message meets its obstacles.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec

from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.machine import MessageView
from penstock.domain.queue.values import Cause, HoldKind, Ordering, QueueConfig
from penstock.domain.trace.events import Kind, Place, PlaceFacts, PlaceState, TraceEvent, TransactionState
from penstock.domain.trace.words import cause_words, duration, moment, sentence_of


class Standing(StrEnum):
    """Shown to programs: never renamed."""

    DELAYED = "delayed"
    CANCELLED = "cancelled"
    IN_TRANSACTION = "in-transaction"
    BEHIND_TRANSACTION = "behind-transaction"
    ABORTED = "aborted"
    NO_MESSAGE = "no-message"
    UNREADABLE = "unreadable"
    DELETED = "deleted"
    NOT_DURABLE = "not-durable"
    LEASED = "leased"
    BACKING_OFF = "backing-off"
    READY = "ready"
    KEY_ORDER = "key-order"
    DYING = "dying"
    PAUSED = "paused"
    QUEUE_FULL = "queue-full"
    KEYS_FULL = "keys-full"
    NO_CONSUMER = "no-consumer"
    NOT_THERE_YET = "not-there-yet"
    OUTLIVED = "outlived"
    ACKED = "acked"
    DEAD_LETTERED = "dead-lettered"
    REDRIVEN = "redriven"
    SKIPPED = "skipped"
    FINISHED = "finished"
    PASSED = "passed"
    NOBODY_READS = "nobody-reads"


class Reason(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    place: Place
    standing: Standing
    sentence: str
    group: str = ""
    kind: Literal["queue", "share group", "consumer group", "schedule", "topic"] = "queue"
    # Whether it was delivered or came to an end: there is nothing to wait for.
    is_over: bool = False
    # When that changes by itself.
    until_ms: int | None = None
    # The message that it waits for.
    blocked_by: Place | None = None


class WhyAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()


class QueueSituation(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands to one message."""

    group: str
    facts: PlaceFacts
    config: QueueConfig
    now_ms: int
    is_share_group: bool = False
    is_committed_only: bool = True
    view: MessageView | None = None
    # Of the message's lane: what is below has been looked at.
    cursor: int = 0
    log_start: int = 0
    readable_end: int = 0
    last_stable_offset: int = 0
    # First offset and producer of the transaction that holds readers of committed messages up.
    first_open: tuple[int, int] | None = None
    is_paused: bool = False
    in_flight_count: int = 0
    blocked_count: int = 0
    blocked_by: int | None = None
    # Who waits for messages, who holds some, and (share groups) who is a member.
    waiting_count: int = 0
    holding_count: int = 0
    member_count: int = 0
    # The last thing that the journal tells of it.
    last_event: TraceEvent | None = None
    # What keeps its dead letters from where they go, if anything does.
    move_waits_for: str = ""


_OVER: Final = {
    Kind.ACKED: Standing.ACKED,
    Kind.DEAD_LETTERED: Standing.DEAD_LETTERED,
    Kind.REDRIVEN: Standing.REDRIVEN,
    Kind.SKIPPED: Standing.SKIPPED,
    Kind.OPENED: Standing.SKIPPED,
    Kind.OUTLIVED: Standing.OUTLIVED,
}


def queue_reason(situation: QueueSituation) -> Reason:
    if situation.view is not None:
        return _in_flight(situation, situation.view)
    if situation.facts.place.offset < situation.cursor:
        return _finished(situation)
    return _unreadable(situation) or _unseen(situation)


def _reason(
    situation: QueueSituation,
    standing: Standing,
    sentence: str,
    *,
    is_over: bool = False,
    until_ms: int | None = None,
    blocked_by: Place | None = None,
) -> Reason:
    return Reason(
        place=situation.facts.place,
        standing=standing,
        sentence=sentence,
        group=situation.group,
        kind="share group" if situation.is_share_group else "queue",
        is_over=is_over,
        until_ms=until_ms,
        blocked_by=blocked_by,
    )


def _in_flight(situation: QueueSituation, view: MessageView) -> Reason:
    now_ms = situation.now_ms
    match view.kind:
        case HoldKind.LEASED:
            left = duration(max(view.until_ms - now_ms, 0))
            return _reason(
                situation,
                Standing.LEASED,
                f"delivered: {view.consumer or 'a consumer'} has it until {moment(view.until_ms)} (attempt "
                f"{view.delivery_count}); an ack ends it, and without one it comes back in {left}",
                until_ms=view.until_ms,
            )
        case HoldKind.BLOCKED:
            return _behind_key(situation)
        case HoldKind.DYING:
            return _dying(situation, view)
        case HoldKind.WAITING:
            return _waiting(situation, view)


def _dying(situation: QueueSituation, view: MessageView) -> Reason:
    why = "" if view.failure is None else f" because it was {cause_words(view.failure.cause.value)}"
    is_told = view.failure is not None and view.failure.cause is Cause.MOVED
    whither = "to the topic that it was told to go to" if is_told else "to the dead letters"
    trouble = f": {situation.move_waits_for}" if situation.move_waits_for else ""
    return _reason(
        situation,
        Standing.DYING,
        f"not delivered any more{why}: it is on its way {whither}, and waits until it is taken there{trouble}",
    )


def _behind_key(situation: QueueSituation) -> Reason:
    place = situation.facts.place
    blocker = None if situation.blocked_by is None else Place(place.topic, place.partition, situation.blocked_by)
    waits = "an earlier message of its key" if blocker is None else f"{blocker}, which has the same key"
    return _reason(
        situation,
        Standing.KEY_ORDER,
        f"waits for {waits}: the queue keeps the order of keys, and delivers this one when that one is acked or "
        "becomes a dead letter",
        blocked_by=blocker,
    )


def _waiting(situation: QueueSituation, view: MessageView) -> Reason:
    failed = "" if view.failure is None else f": {cause_words(view.failure.cause.value)}{_quoted(view.failure.text)}"
    if view.until_ms > situation.now_ms:
        left = duration(view.until_ms - situation.now_ms)
        return _reason(
            situation,
            Standing.BACKING_OFF,
            f"backs off until {moment(view.until_ms)} (another {left}) after attempt {view.delivery_count}{failed}",
            until_ms=view.until_ms,
        )
    if situation.is_paused:
        return _paused(situation)
    since = f"came back after attempt {view.delivery_count}{failed}" if view.delivery_count else "its turn has come"
    if not _has_consumers(situation):
        return _no_consumer(situation, f"{since}, and may be delivered at once, but ")
    return _reason(situation, Standing.READY, f"{since}: the next consumer that asks for messages gets it")


def _quoted(text: str) -> str:
    return f' ("{text}")' if text else ""


def _finished(situation: QueueSituation) -> Reason:
    event = situation.last_event
    if event is not None and event.kind in _OVER:
        when = "" if event.at_ms is None else f" at {moment(event.at_ms)}"
        return _reason(situation, _OVER[event.kind], f"{sentence_of(event)}{when}", is_over=True)
    if situation.facts.transaction is TransactionState.ABORTED and situation.is_committed_only:
        return _aborted(situation)
    if situation.facts.state is PlaceState.UNREADABLE:
        return _not_to_be_read(situation)
    if situation.facts.state is not PlaceState.STORED and situation.facts.state is not PlaceState.DELETED:
        return _no_message(situation)
    if _is_outlived(situation):
        return _reason(situation, Standing.OUTLIVED, "its time to live ended before anybody asked for it", is_over=True)
    if event is not None:
        when = "" if event.at_ms is None else f" at {moment(event.at_ms)}"
        return _reason(situation, Standing.FINISHED, f"{sentence_of(event)}{when}", is_over=True)
    return _reason(
        situation,
        Standing.FINISHED,
        "finished, or passed over, longer ago than the journal of the queue reaches",
        is_over=True,
    )


def _unreadable(situation: QueueSituation) -> Reason | None:
    """What keeps it from everybody who reads the log as this queue does."""
    facts = situation.facts
    offset = facts.place.offset
    if offset < situation.log_start or facts.state is PlaceState.DELETED:
        sentence = "the log lost it, by retention or because somebody deleted it, before the queue got to it"
        return _reason(situation, Standing.DELETED, sentence, is_over=True)
    if facts.state in (PlaceState.HOLE, PlaceState.CONTROL):
        return _no_message(situation)
    if facts.state is PlaceState.UNREADABLE:
        return _not_to_be_read(situation)
    if situation.is_committed_only:
        if facts.transaction is TransactionState.ABORTED:
            return _aborted(situation)
        if facts.transaction is TransactionState.OPEN:
            whose = "" if facts.producer is None else f" of producer {facts.producer.id}"
            sentence = f"its transaction{whose} has not ended: it is delivered when that is committed"
            return _reason(situation, Standing.IN_TRANSACTION, sentence)
        if offset >= situation.last_stable_offset and situation.first_open is not None:
            first, producer_id = situation.first_open
            sentence = (
                f"an open transaction of producer {producer_id}, begun at offset {first}, holds it up: readers of "
                "committed messages go on when that has ended"
            )
            return _reason(situation, Standing.BEHIND_TRANSACTION, sentence)
    if offset >= situation.readable_end:
        return _reason(situation, Standing.NOT_DURABLE, "it is not on disk yet")
    return None


def _unseen(situation: QueueSituation) -> Reason:
    config = situation.config
    if _is_outlived(situation):
        sentence = "its time to live has ended: the queue will pass it over when it gets there"
        return _reason(situation, Standing.OUTLIVED, sentence, is_over=True)
    if situation.is_paused:
        return _paused(situation)
    if situation.in_flight_count >= config.in_flight_max:
        sentence = (
            f"the queue has {situation.in_flight_count:,} messages in flight, and {config.in_flight_max:,} are "
            "allowed: it goes on when some of them are acked"
        )
        return _reason(situation, Standing.QUEUE_FULL, sentence)
    if config.ordering is Ordering.KEY and situation.blocked_count >= config.key_lookahead_max:
        sentence = (
            f"{situation.blocked_count:,} messages wait for earlier ones of their keys, and the queue looks no "
            "further ahead: it goes on when some of those are acked"
        )
        return _reason(situation, Standing.KEYS_FULL, sentence)
    ahead = _ahead(situation)
    if not _has_consumers(situation):
        return _no_consumer(situation, f"{ahead}, and ")
    return _reason(situation, Standing.NOT_THERE_YET, f"{ahead}: consumers are at work, and will get there")


def _ahead(situation: QueueSituation) -> str:
    facts = situation.facts
    count = facts.place.offset - situation.cursor
    before = "it is the next one" if not count else f"the queue has not got there: {count:,} offsets are before it"
    lane = DEFAULT_LANE if facts.lane is None else facts.lane
    if lane < DEFAULT_LANE:
        return f"{before}, and with priority {lane} nearly everything else goes first"
    return before if lane == DEFAULT_LANE else f"{before} (priority {lane})"


def _has_consumers(situation: QueueSituation) -> bool:
    return bool(situation.waiting_count or situation.holding_count or situation.member_count)


def _no_consumer(situation: QueueSituation, before: str) -> Reason:
    who = "no member is connected" if situation.is_share_group else "nobody asks for messages"
    sentence = f"{before}{who}: it is delivered when a consumer comes"
    return _reason(situation, Standing.NO_CONSUMER, sentence)


def _paused(situation: QueueSituation) -> Reason:
    return _reason(situation, Standing.PAUSED, "the queue is paused: it delivers again when it is resumed")


def _aborted(situation: QueueSituation) -> Reason:
    sentence = "its transaction was aborted: readers of committed messages never get it"
    return _reason(situation, Standing.ABORTED, sentence, is_over=True)


def _no_message(situation: QueueSituation) -> Reason:
    sentence = "there is no message at that offset: compacted away, the slot of a delayed one, or a marker"
    return _reason(situation, Standing.NO_MESSAGE, sentence, is_over=True)


def _not_to_be_read(situation: QueueSituation) -> Reason:
    sentence = (
        "its batch cannot be read, so nobody gets it: the log is damaged there, or a producer wrote nonsense; of such "
        "nonsense one dead letter, with the offset of the first message, stands for all of them"
    )
    return _reason(situation, Standing.UNREADABLE, sentence, is_over=True)


def _is_outlived(situation: QueueSituation) -> bool:
    facts = situation.facts
    if facts.ttl_ms is None or facts.timestamp_ms is None:
        return False
    return facts.timestamp_ms + facts.ttl_ms <= situation.now_ms


# --- consumer groups -------------------------------------------------------------------------------------------------


class GroupSituation(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    facts: PlaceFacts
    # None: it reads the topic, and has not committed anything.
    position: int | None
    # Producer id and position, of transactions that have not ended.
    pending: tuple[tuple[int, int], ...] = ()
    member_count: int = 0
    # Who has the partition now, if that can be told.
    owner: str = ""
    last_stable_offset: int = 0
    log_start: int = 0
    first_open: tuple[int, int] | None = None
    last_event: TraceEvent | None = None


def group_reason(situation: GroupSituation) -> Reason:
    """A group has no word for one message: only that its position is behind it."""
    facts, position = situation.facts, situation.position
    offset = facts.place.offset
    if position is not None and position > offset:
        event = situation.last_event
        when = f" at {moment(event.at_ms)}" if event is not None and event.at_ms is not None else ""
        sentence = f"passed{when}: the group's committed position is {position}"
        return _of_group(situation, Standing.PASSED, sentence, is_over=True)
    if offset < situation.log_start:
        sentence = "the log lost it before the group's committed position got there"
        return _of_group(situation, Standing.DELETED, sentence, is_over=True)
    if facts.state is PlaceState.UNREADABLE:
        sentence = (
            "its batch cannot be read: the log is damaged there, or a producer wrote nonsense; consumers stop there "
            "until the group's position is set behind it"
        )
        return _of_group(situation, Standing.UNREADABLE, sentence)
    for producer_id, pending in situation.pending:
        if pending > offset:
            sentence = f"read: position {pending} counts when the transaction of producer {producer_id} is committed"
            return _of_group(situation, Standing.IN_TRANSACTION, sentence)
    before = _distance(position, offset)
    if not situation.member_count:
        sentence = f"{before}, and no member is connected: it goes on when one joins"
        return _of_group(situation, Standing.NO_CONSUMER, sentence)
    held_up = ""
    if offset >= situation.last_stable_offset and situation.first_open is not None:
        first, producer_id = situation.first_open
        whose = f"the transaction of producer {producer_id}, begun at offset {first}"
        held_up = f"; members that read committed messages wait for {whose}"
    owner = f"{situation.owner} has the partition" if situation.owner else _members(situation.member_count)
    sentence = f"{before}; {owner}, and what it has read counts when it commits{held_up}"
    return _of_group(situation, Standing.NOT_THERE_YET, sentence)


def _distance(position: int | None, offset: int) -> str:
    if position is None:
        return "the group has not committed any position yet"
    return (
        "it is the next one" if position == offset else f"the group has not got there: {offset - position:,} before it"
    )


def _members(count: int) -> str:
    return "one member is there" if count == 1 else f"{count} members are there"


def _of_group(situation: GroupSituation, standing: Standing, sentence: str, *, is_over: bool = False) -> Reason:
    return Reason(
        place=situation.facts.place,
        standing=standing,
        sentence=sentence,
        group=situation.group,
        kind="consumer group",
        is_over=is_over,
    )


def nobody_reads(facts: PlaceFacts) -> Reason:
    sentence = "no queue, share group or consumer group reads this topic: make a queue, or have a group subscribe"
    return Reason(place=facts.place, standing=Standing.NOBODY_READS, sentence=sentence, kind="topic")


# --- the schedule ----------------------------------------------------------------------------------------------------


def schedule_reason(facts: PlaceFacts, events: list[TraceEvent], now_ms: int) -> Reason | None:
    """None: it has been released, and what became of it then is told of its place in the topic."""
    due_ms = next((event.until_ms for event in reversed(events) if event.until_ms is not None), None)
    if facts.state is PlaceState.RELEASED:
        return None
    if facts.state is PlaceState.CANCELLED:
        at_ms = next((event.at_ms for event in events if event.kind is Kind.CANCELLED), None)
        when = "" if at_ms is None else f" at {moment(at_ms)}"
        return _of_schedule(facts, Standing.CANCELLED, f"cancelled{when}: nobody will get it", is_over=True)
    if facts.transaction is TransactionState.ABORTED:
        sentence = "its transaction was aborted, so it was never scheduled: nobody will get it"
        return _of_schedule(facts, Standing.ABORTED, sentence, is_over=True)
    if facts.transaction is TransactionState.OPEN:
        whose = "" if facts.producer is None else f" of producer {facts.producer.id}"
        sentence = f"its transaction{whose} has not ended: it is scheduled when that is committed"
        return _of_schedule(facts, Standing.IN_TRANSACTION, sentence)
    if facts.state is not PlaceState.PENDING or due_ms is None:
        sentence = "released or cancelled longer ago than the schedule's log reaches"
        return _of_schedule(facts, Standing.FINISHED, sentence, is_over=True)
    if due_ms <= now_ms:
        sentence = f"due since {moment(due_ms)}, and about to be released"
        return _of_schedule(facts, Standing.DELAYED, sentence, until_ms=due_ms)
    sentence = (
        f"delayed until {moment(due_ms)} (another {duration(due_ms - now_ms)}): nobody gets it before, unless it is "
        "given another time"
    )
    return _of_schedule(facts, Standing.DELAYED, sentence, until_ms=due_ms)


def _of_schedule(
    facts: PlaceFacts, standing: Standing, sentence: str, *, is_over: bool = False, until_ms: int | None = None
) -> Reason:
    return Reason(
        place=facts.place, standing=standing, sentence=sentence, kind="schedule", is_over=is_over, until_ms=until_ms
    )
