"""What one lane of a follower follows, as its leader remembers it from fetch to fetch: only what changes is told.

    the follower names a log     its position is taken, and compared with what is there
    the leader's log grows       it is in `_data` until it is given
    its watermark moves          it is in `_news` until it is told, if nothing else is to be said of it before

So a fetch looks at what has changed and at nothing else, however many logs there are.

Rules:
- A log that was given is not looked at again until the follower has named it: what it holds then is known by that.
  One that it does not name has not been taken, and is given again.
- Logs take turns: what a reply had no room for is first in the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.broker.replication.group import LedLog
from penstock.domain.replication.exchange import NO_OFFSET, LogFetch, LogFetched, LogName, ReplicaProblem

# Of a follower that has not proved anything yet, by the monotonic clock.
NEVER_MS: Final = -(2**62)


@dataclass(slots=True)
class Position:
    """Where the follower stands in one log, as it said itself."""

    log: LedLog
    wanted: LogFetch
    # Given, and not named since.
    is_given: bool = False
    told_watermark: int = NO_OFFSET
    told_start: int = NO_OFFSET

    @property
    def has_data(self) -> bool:
        return not self.is_given and self.log.log_end > self.wanted.offset

    @property
    def has_news(self) -> bool:
        return self.told_watermark != self.log.watermark or self.told_start != self.log.log_start


class FeedSession:
    """A `Subscriber` of every log that it follows."""

    def __init__(self, session_id: int, node_id: int, life: int) -> None:
        self.id = session_id
        self.node_id = node_id
        self.life = life
        # Of the next fetch.
        self.epoch = 1
        self.asked_ms = 0
        # When the follower surely followed: see `begin_fetch`.
        self.followed_ms = NEVER_MS
        self._answered_ms = NEVER_MS
        self._positions: dict[LogName, Position] = {}
        self._given: dict[LogName, None] = {}
        self._data: dict[LogName, None] = {}
        self._news: dict[LogName, None] = {}
        # To be told at once, and once.
        self._refused: list[LogFetched] = []
        self._wake: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    def follows(self, name: LogName) -> bool:
        return name in self._positions

    # What the follower says

    def begin_fetch(self, named: Iterable[LogName], now_ms: int) -> None:
        """What was given and is not named now has not been taken.

        The follower has made this fetch after it had our last answer, so when that left it followed still what it does
        not take out now. When the fetch came here says less: one that was sent to a paused process is read when that
        wakes, however long ago its sender has turned to another leader.
        """
        self.asked_ms = now_ms
        self.followed_ms = self._answered_ms
        given, self._given = self._given, {}
        taken = set(named)
        for name in given:
            position = self._positions.get(name)
            if position is not None and name not in taken:
                position.is_given = False
                self._look_at(position)

    def place(self, log: LedLog, wanted: LogFetch) -> None:
        """Its log agrees with ours up to the offset."""
        position = Position(log, wanted)
        before = self._positions.get(wanted.log)
        if before is not None and before.log is log:
            position.told_watermark, position.told_start = before.told_watermark, before.told_start
        elif before is not None:
            before.log.subscribers.pop(self, None)
        self._positions[wanted.log] = position
        log.subscribers[self] = None
        self._look_at(position)

    def refuse(self, answer: LogFetched) -> None:
        """It is not followed until it is named again."""
        self.forget(answer.log)
        self._refused.append(answer)
        self._ring()

    def ask_again(self, log: LedLog) -> None:
        self.refuse(LogFetched(log=log.name, problem=ReplicaProblem.TIMED_OUT))

    def forget(self, name: LogName) -> None:
        position = self._positions.pop(name, None)
        if position is not None:
            position.log.subscribers.pop(self, None)
        for each in (self._given, self._data, self._news):
            each.pop(name, None)

    def close(self) -> None:
        for name in list(self._positions):
            self.forget(name)
        self._ring()

    # What logs say

    def on_data(self, log: LedLog) -> None:
        position = self._positions.get(log.name)
        if position is not None and position.has_data:
            self._data[log.name] = None
            self._ring()

    def on_news(self, log: LedLog) -> None:
        if log.name in self._positions:
            self._news[log.name] = None
            self._ring()

    def on_end(self, log: LedLog) -> None:
        position = self._positions.get(log.name)
        if position is not None and position.log is log:
            self.refuse(LogFetched(log=log.name, problem=ReplicaProblem.NOT_LEADER))

    def _look_at(self, position: Position) -> None:
        if position.has_data:
            self._data[position.wanted.log] = None
        if position.has_news:
            self._news[position.wanted.log] = None

    # What is to be told

    def end_fetch(self, now_ms: int) -> None:
        """It is answered: before the answer leaves."""
        self._answered_ms = now_ms

    @property
    def has_data(self) -> bool:
        """Or a refusal: something that does not wait."""
        return bool(self._data or self._refused)

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def take_refused(self) -> list[LogFetched]:
        refused, self._refused = self._refused, []
        return refused

    def next_data(self) -> Position | None:
        """Whose turn it is; it is given by `give`, or comes last the next time."""
        for name in list(self._data):
            del self._data[name]
            position = self._positions.get(name)
            if position is not None and position.has_data:
                return position
        return None

    def put_back(self, position: Position) -> None:
        """There was no room for it."""
        self._data[position.wanted.log] = None

    def give(self, position: Position) -> None:
        position.is_given = True
        self._given[position.wanted.log] = None

    def take_news(self) -> list[Position]:
        """Of what is not told with its data anyway."""
        news, self._news = self._news, {}
        return [self._positions[name] for name in news if name in self._positions and self._positions[name].has_news]

    # Waiting

    async def wait(self, timeout_s: float) -> None:
        """Until a log has something to tell, or the time is up."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        alarm = loop.call_later(timeout_s, self._ring)
        try:
            await self._wake
        finally:
            alarm.cancel()
            self._wake = None

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
