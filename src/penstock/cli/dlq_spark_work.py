"""`penstock dlq redrive --spark`: Spark picks, the node moves, piece by piece where very many were picked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from penstock.cli.dlq_work import COUNT_SECONDS_MAX, watch
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.output import print_json, say
from penstock.client import http_queues as letters
from penstock.client.http_client import HttpClient
from penstock.client.http_queues import Choice, LetterFilter
from penstock.domain.redrive import CHOICES_MAX
from penstock.pipeline.redrive_choice import ConditionError, choose, dead_letters
from penstock.pipeline.spark_session import SparkStartError, open_session

_EVERYTHING = "true"


class Selection(msgspec.Struct, frozen=True):
    http: str
    bootstrap: str
    topic: str
    where: str | None
    master: str | None
    is_by_spark: bool


class Moved(msgspec.Struct, frozen=True):
    topic: str
    chosen_count: int
    moved_count: int
    tasks: tuple[str, ...]


def redrive(
    selection: Selection, only: LetterFilter, *, target: str | None, rate: int, is_dry: bool, as_json: bool
) -> None:
    if not selection.is_by_spark:
        raise CommandError("--where is a condition in SQL, and Spark evaluates it: add --spark", exit_code=EXIT_USAGE)
    choices = _choose(selection)
    if is_dry:
        _count(selection, only, choices, as_json=as_json)
    else:
        _move(selection, only, choices, target=target, rate=rate, as_json=as_json)


def _choose(selection: Selection) -> list[Choice]:
    with HttpClient(selection.http) as client:
        # Before Spark is started for a topic that there is not.
        letters.show_dead_letters(client, selection.topic, LetterFilter(), count=1)
    try:
        spark = open_session(f"redrive {selection.topic}", master=selection.master)
    except SparkStartError as error:
        raise CommandError(str(error)) from error
    try:
        table = dead_letters(spark, selection.bootstrap, selection.topic)
        return list(choose(table, selection.where or _EVERYTHING))
    except ConditionError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from error
    finally:
        spark.stop()


def _count(selection: Selection, only: LetterFilter, choices: list[Choice], *, as_json: bool) -> None:
    pending = fitting = 0
    with HttpClient(selection.http, timeout_seconds=COUNT_SECONDS_MAX) as client:
        for piece in _pieces(choices) if choices else ():
            found = letters.count_redrive(client, selection.topic, only, piece)
            pending, fitting = found.pending_count, fitting + found.fitting_count
    if as_json:
        print_json({"topic": selection.topic, "chosen_count": _total(choices), "fitting_count": fitting})
    say(f"{fitting:,} of {pending:,} dead letters would move, nothing was moved")


def _move(
    selection: Selection, only: LetterFilter, choices: list[Choice], *, target: str | None, rate: int, as_json: bool
) -> None:
    tasks: list[str] = []
    moved = 0
    for piece in _pieces(choices):
        with HttpClient(selection.http) as client:
            task = letters.begin_redrive(client, selection.topic, only, target=target, rate=rate, offsets=piece)
            task = watch(selection.http, client, task)
        tasks.append(task.id)
        moved += task.moved_count
        if task.state == "failed":
            raise CommandError(f"{moved:,} moved, then: {task.reason}")
    if as_json:
        print_json(Moved(selection.topic, _total(choices), moved, tuple(tasks)))
    say(f"{moved:,} moved of {_total(choices):,} that Spark picked")


def _total(choices: Iterable[Choice]) -> int:
    """Those too that were redriven before and are still in the log."""
    return sum(last - first + 1 for _partition, first, last in choices)


def _pieces(choices: list[Choice]) -> Iterator[list[Choice]]:
    left = iter(choices)
    while piece := list(islice(left, CHOICES_MAX)):
        yield piece
