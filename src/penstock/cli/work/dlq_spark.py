"""`penstock dlq redrive --spark`: Spark picks, the node moves, piece by piece where very many were picked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.http_door import http_door
from penstock.cli.output import counted, print_json, say
from penstock.cli.work.dlq import COUNT_SECONDS_MAX, watch
from penstock.client.http import queues as letters
from penstock.client.http.client import HttpClient
from penstock.client.http.queues import Choice, LetterFilter
from penstock.codec.http.dead_letters import Redrive
from penstock.domain.queue.redrive import CHOICES_MAX
from penstock.pipeline.replay.redrive_choice import ConditionError, SparkFailedError, choose, dead_letters
from penstock.pipeline.session.spark import SparkStartError, open_session

_EVERYTHING = "true"


class Selection(msgspec.Struct, frozen=True):
    http: str
    bootstrap: str
    topic: str
    where: str | None
    master: str | None
    is_by_spark: bool


class Choices:
    """Runs of neighbouring letters, in little room: of ten million letters every other one may fit."""

    def __init__(self, found: Iterable[Choice], piece_max: int = CHOICES_MAX) -> None:
        self._piece_max = piece_max
        self._numbers = array("q")
        for choice in found:
            self._numbers.extend(choice)

    def letter_count(self) -> int:
        """Those too that were redriven before and are still in the log."""
        return sum(self._numbers[2::3]) - sum(self._numbers[1::3]) + len(self._numbers) // 3

    @property
    def piece_count(self) -> int:
        return -(-len(self._numbers) // (3 * self._piece_max))

    def pieces(self) -> Iterator[list[Choice]]:
        """As many as one task takes."""
        step = 3 * self._piece_max
        for start in range(0, len(self._numbers), step):
            numbers = self._numbers[start : start + step]
            yield list(zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True))


class Means(NamedTuple):
    """Whoever picks, and whoever waits for the end of what was picked."""

    pick: Callable[[Selection], Choices]
    watch: Callable[[str, HttpClient, Redrive], Redrive]


class Moved(msgspec.Struct, frozen=True):
    topic: str
    chosen_count: int
    moved_count: int
    tasks: tuple[str, ...]
    # Of the last task; the others are completed.
    state: str


def redrive(
    selection: Selection,
    only: LetterFilter,
    *,
    target: str | None,
    rate: int,
    is_dry: bool,
    is_awaited: bool,
    as_json: bool,
    means: Means | None = None,
) -> None:
    if not selection.is_by_spark:
        raise CommandError("--where is a condition in SQL, and Spark evaluates it: add --spark", exit_code=EXIT_USAGE)
    if selection.where is not None and not selection.where.strip():
        # A variable of a script that was never set: all of them are not what is meant.
        raise CommandError("--where has no condition; without it all dead letters are meant", exit_code=EXIT_USAGE)
    means = means or Means(_pick, watch)
    choices = _choose(selection, means)
    if is_dry:
        _count(selection, only, choices, as_json=as_json)
    else:
        _move(
            selection,
            only,
            choices,
            target=target,
            rate=rate,
            is_awaited=is_awaited,
            as_json=as_json,
            watch=means.watch,
        )


def _choose(selection: Selection, means: Means) -> Choices:
    with http_door(selection.http) as client:
        # Before Spark is started for a topic that there is not.
        letters.show_dead_letters(client, selection.topic, LetterFilter(), count=1)
    return means.pick(selection)


def _pick(selection: Selection) -> Choices:
    try:
        spark = open_session(f"redrive {selection.topic}", master=selection.master)
    except SparkStartError as error:
        raise CommandError(str(error)) from error
    try:
        table = dead_letters(spark, selection.bootstrap, selection.topic)
        return Choices(choose(table, selection.where or _EVERYTHING))
    except ConditionError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from error
    except SparkFailedError as error:
        raise CommandError(str(error)) from error
    finally:
        spark.stop()


def _count(selection: Selection, only: LetterFilter, choices: Choices, *, as_json: bool) -> None:
    fitting = 0
    with http_door(selection.http, timeout_seconds=COUNT_SECONDS_MAX) as client:
        # Also where nothing was picked.
        found = letters.list_dead_letters(client)
        pending = next((each.pending_count for each in found if each.topic == selection.topic), 0)
        for piece in choices.pieces():
            fitting += letters.count_redrive(client, selection.topic, only, piece).fitting_count
    if as_json:
        counts = {"chosen_count": choices.letter_count(), "pending_count": pending, "fitting_count": fitting}
        print_json({"topic": selection.topic, **counts})
    say(f"{fitting:,} of {counted(pending, 'dead letter')} would move, nothing was moved")


def _move(
    selection: Selection,
    only: LetterFilter,
    choices: Choices,
    *,
    target: str | None,
    rate: int,
    is_awaited: bool,
    as_json: bool,
    watch: Callable[[str, HttpClient, Redrive], Redrive],
) -> None:
    """One task after the other; in the background only the last of them."""
    tasks: list[Redrive] = []
    left = choices.piece_count
    for piece in choices.pieces():
        left -= 1
        with http_door(selection.http) as client:
            task = letters.begin_redrive(client, selection.topic, only, target=target, rate=rate, offsets=piece)
            if is_awaited or left:
                task = watch(selection.http, client, task)
        tasks.append(task)
        # Whoever cancels one of them does not want the next.
        if task.ended_ms and task.state != "completed":
            break
    state = tasks[-1].state if tasks else "completed"
    moved, total = sum(task.moved_count for task in tasks), choices.letter_count()
    if as_json:
        print_json(Moved(selection.topic, total, moved, tuple(task.id for task in tasks), state))
    if state == "failed":
        raise CommandError(f"{moved:,} moved, then: {tasks[-1].reason}")
    if state == "running":
        say(f"redrive {tasks[-1].id} has begun with {total:,} that Spark picked")
        return
    say(f"{moved:,} moved of {total:,} that Spark picked" + ("" if state == "completed" else f" ({state})"))
