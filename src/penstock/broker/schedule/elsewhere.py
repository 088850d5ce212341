"""Delayed messages wherever their partitions are led, as doors look at them and change them one by one.

A message's id names its partition. A page is made of the pages of all leaders; one that is missing is no page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.broker.partition.outcome import Refusal
from penstock.broker.relay.asking import Relay, Unanswered
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import ChangeOutcome, DueCursor, NotScheduled, PendingMessage, PendingPage
from penstock.broker.topic.served_topic import ServedTopic
from penstock.domain.queue.receipt import read_scheduled_id
from penstock.domain.replication.exchange import ForwardKind
from penstock.domain.schedule.commands import Done, Refused, ScheduleProblem
from penstock.domain.security.caller import Caller


class PendingMessages:
    """`relay`: None, if this node talks to no other."""

    def __init__(self, schedules: NodeSchedules, relay: Callable[[], Relay | None]) -> None:
        self._schedules = schedules
        self._relay = relay

    async def show(self, message_id: str, *, by: Caller | None = None) -> PendingMessage | NotScheduled | None:
        found = await self._schedules.show(message_id)
        if not _is_away(found):
            return found
        answer = await self._ask(ForwardKind.PENDING, message_id, _Show(message_id), by)
        return found if answer is None else answer if isinstance(answer, NotScheduled) else _read_shown(answer)

    async def cancel(self, message_id: str, *, by: Caller | None = None) -> ChangeOutcome:
        return await self._change(await self._schedules.cancel(message_id), _Change(message_id), by)

    async def reschedule(self, message_id: str, due_ms: int, *, by: Caller | None = None) -> ChangeOutcome:
        outcome = await self._schedules.reschedule(message_id, due_ms)
        return await self._change(outcome, _Change(message_id, due_ms), by)

    async def _change(self, outcome: ChangeOutcome, change: _Change, by: Caller | None) -> ChangeOutcome:
        if not _is_away(outcome):
            return outcome
        answer = await self._ask(ForwardKind.PENDING_CHANGE, change.message_id, change, by)
        return outcome if answer is None else answer if isinstance(answer, NotScheduled) else _read_changed(answer)

    async def _ask(
        self, kind: ForwardKind, message_id: str, body: msgspec.Struct, by: Caller | None
    ) -> bytes | NotScheduled | None:
        """None: there is nobody to ask."""
        relay, place = self._relay(), read_scheduled_id(message_id)
        if relay is None or place is None:
            return None
        written = _ENCODER.encode(body)
        (answer,) = await relay.spread(kind, place.topic_id, [place.partition], lambda _indexes: written, by=by)
        return _not_scheduled(answer.body) if isinstance(answer.body, Unanswered) else answer.body

    async def list_due(
        self, topic: ServedTopic, after: DueCursor | None, limit: int, *, by: Caller | None = None
    ) -> PendingPage | NotScheduled:
        """All partitions together, in the order of due times."""
        relay = self._relay()
        if relay is None or topic.is_whole:
            return await self._schedules.list_due(topic, after, limit)
        written = _ENCODER.encode(_Page(after, limit))
        indexes = range(topic.partition_count)
        answers = await relay.spread(ForwardKind.PENDING_PAGE, topic.topic_id, indexes, lambda _indexes: written, by=by)
        pages: list[PendingPage] = []
        for answer in answers:
            page = _not_scheduled(answer.body) if isinstance(answer.body, Unanswered) else _read_page(answer.body)
            if isinstance(page, NotScheduled):
                return page
            pages.append(page)
        return merge_pages(pages, limit)


def merge_pages(pages: Sequence[PendingPage], limit: int) -> PendingPage:
    messages = sorted((message for page in pages for message in page.messages), key=_cursor_of)
    # What is behind the end of a page that goes on is not known yet.
    known_until = min((page.next for page in pages if page.next is not None), default=None)
    known = [each for each in messages if known_until is None or _cursor_of(each) <= known_until]
    if len(known) > limit:
        return PendingPage(known[:limit], _cursor_of(known[limit - 1]))
    return PendingPage(known, known_until)


def _cursor_of(message: PendingMessage) -> DueCursor:
    return DueCursor(message.due_ms, message.partition, message.position)


def _is_away(outcome: object) -> bool:
    return isinstance(outcome, NotScheduled) and outcome.refusal is Refusal.NOT_LEADER


def _not_scheduled(answer: Unanswered) -> NotScheduled:
    return NotScheduled(Refusal.TIMED_OUT if answer.is_unsure else Refusal.NOT_LEADER, answer.reason)


# In bytes


class _Show(msgspec.Struct, frozen=True, array_like=True):
    message_id: str


class _Change(msgspec.Struct, frozen=True, array_like=True):
    message_id: str
    # None: it is cancelled.
    due_ms: int | None = None


class _Page(msgspec.Struct, frozen=True, array_like=True):
    after: DueCursor | None
    limit: int


class _Shown(msgspec.Struct, frozen=True, array_like=True):
    message: PendingMessage | None = None
    refusal: NotScheduled | None = None


class _Changed(msgspec.Struct, frozen=True, array_like=True):
    problem: ScheduleProblem | None = None
    detail: str = ""
    refusal: NotScheduled | None = None


class _Paged(msgspec.Struct, frozen=True, array_like=True):
    page: PendingPage | None = None
    refusal: NotScheduled | None = None


_ENCODER: Final = msgspec.msgpack.Encoder()
_SHOWN: Final[msgspec.msgpack.Decoder[_Shown]] = msgspec.msgpack.Decoder(_Shown)
_CHANGED: Final[msgspec.msgpack.Decoder[_Changed]] = msgspec.msgpack.Decoder(_Changed)
_PAGED: Final[msgspec.msgpack.Decoder[_Paged]] = msgspec.msgpack.Decoder(_Paged)
SHOWS: Final[msgspec.msgpack.Decoder[_Show]] = msgspec.msgpack.Decoder(_Show)
CHANGES: Final[msgspec.msgpack.Decoder[_Change]] = msgspec.msgpack.Decoder(_Change)
PAGES: Final[msgspec.msgpack.Decoder[_Page]] = msgspec.msgpack.Decoder(_Page)


def encode_shown(shown: PendingMessage | NotScheduled | None) -> bytes:
    return _ENCODER.encode(_Shown(refusal=shown) if isinstance(shown, NotScheduled) else _Shown(shown))


def _read_shown(data: bytes) -> PendingMessage | NotScheduled | None:
    shown = _SHOWN.decode(data)
    return shown.refusal or shown.message


def encode_changed(outcome: ChangeOutcome) -> bytes:
    if isinstance(outcome, NotScheduled):
        return _ENCODER.encode(_Changed(refusal=outcome))
    return _ENCODER.encode(_Changed(outcome.problem, outcome.detail) if isinstance(outcome, Refused) else _Changed())


def _read_changed(data: bytes) -> ChangeOutcome:
    changed = _CHANGED.decode(data)
    if changed.refusal is not None:
        return changed.refusal
    return Done() if changed.problem is None else Refused(changed.problem, changed.detail)


def encode_page(page: PendingPage | NotScheduled) -> bytes:
    return _ENCODER.encode(_Paged(refusal=page) if isinstance(page, NotScheduled) else _Paged(page))


def _read_page(data: bytes) -> PendingPage | NotScheduled:
    paged = _PAGED.decode(data)
    return paged.refusal or paged.page or PendingPage([], None)
