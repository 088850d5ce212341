"""What was asked of `penstock consume`, as its words stand, and what they mean: a plan to read, or a snapshot.

Here it is decided which options go together; whoever carries a plan out need not look at it again.
"""

from __future__ import annotations

from datetime import tzinfo

import msgspec

from penstock.base.clock import SystemClock
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.moments import AtTime, Earliest, Latest, Start
from penstock.cli.option_values import duration_ms, moment_ms, start_of
from penstock.cli.record_format import RowShape
from penstock.cli.work.consume.snapshot import SnapshotPlan, snapshot
from penstock.cli.work.consume.work import ConsumePlan, Window, consume


class ConsumeRequest(msgspec.Struct, frozen=True):
    topic: str
    start: str | None = None
    at: str | None = None
    between: tuple[str, str] | None = None
    late_max: str | None = None
    is_snapshot: bool = False
    until_offset: int | None = None
    partitions: tuple[int, ...] = ()
    count: int | None = None
    last: int | None = None
    is_following: bool = False
    is_tail: bool = False
    is_read_committed: bool = False
    skips_damaged: bool = False


def carry_out(bootstrap: str, request: ConsumeRequest, shape: RowShape) -> None:
    plan = plan_of(request, now_ms=SystemClock().now_ms())
    if isinstance(plan, SnapshotPlan):
        snapshot(bootstrap, plan, shape)
    else:
        consume(bootstrap, plan, shape)


def plan_of(request: ConsumeRequest, *, now_ms: int, zone: tzinfo | None = None) -> ConsumePlan | SnapshotPlan:
    _check_together(request)
    if request.is_snapshot:
        return SnapshotPlan(
            topic=request.topic,
            moment_ms=None if request.at is None else moment_ms(request.at, "--at", now_ms=now_ms, zone=zone),
            until_offset=request.until_offset,
            partitions=request.partitions,
            count=request.count,
            is_read_committed=request.is_read_committed,
        )
    return ConsumePlan(
        topic=request.topic,
        start=_start(request, now_ms=now_ms, zone=zone),
        last=request.last,
        window=_window(request, now_ms=now_ms, zone=zone),
        partitions=request.partitions,
        count=request.count,
        is_following=request.is_following or request.is_tail,
        is_merged=request.at is not None or request.between is not None,
        is_read_committed=request.is_read_committed,
        skips_damaged=request.skips_damaged,
    )


def _check_together(request: ConsumeRequest) -> None:
    starts = {
        "--from": request.start is not None,
        "--at": request.at is not None,
        "--between": request.between is not None,
        "--last": request.last is not None,
        "--tail": request.is_tail,
    }
    given = [option for option, is_given in starts.items() if is_given]
    if len(given) > 1:
        raise CommandError(f"{' and '.join(given)} exclude each other", exit_code=EXIT_USAGE)
    if request.between is not None and request.is_following:
        raise CommandError("--between ends by itself: it excludes --follow", exit_code=EXIT_USAGE)
    if request.late_max is not None and request.between is None:
        raise CommandError("--late-max goes with --between only", exit_code=EXIT_USAGE)
    if request.until_offset is not None and not request.is_snapshot:
        raise CommandError("--until-offset goes with --snapshot only", exit_code=EXIT_USAGE)
    if request.is_snapshot:
        _check_snapshot(request, given)


def _check_snapshot(request: ConsumeRequest, given: list[str]) -> None:
    others = [option for option in given if option != "--at"] + (["--follow"] if request.is_following else [])
    if others:
        raise CommandError(f"--snapshot excludes {' and '.join(others)}", exit_code=EXIT_USAGE)
    if request.at is not None and request.until_offset is not None:
        raise CommandError("--at and --until-offset exclude each other", exit_code=EXIT_USAGE)


def _start(request: ConsumeRequest, *, now_ms: int, zone: tzinfo | None) -> Start:
    if request.is_tail:
        return Latest()
    if request.at is not None:
        return AtTime(moment_ms(request.at, "--at", now_ms=now_ms, zone=zone))
    if request.start is None:
        return Earliest()
    return start_of(request.start, "--from", now_ms=now_ms, zone=zone)


def _window(request: ConsumeRequest, *, now_ms: int, zone: tzinfo | None) -> Window | None:
    if request.between is None:
        return None
    since_ms, before_ms = (moment_ms(text, "--between", now_ms=now_ms, zone=zone) for text in request.between)
    if before_ms <= since_ms:
        first, second = request.between
        raise CommandError(f"--between: {second!r} is not after {first!r}", exit_code=EXIT_USAGE)
    late_ms_max = None if request.late_max is None else duration_ms(request.late_max, "--late-max")
    return Window(since_ms=since_ms, before_ms=before_ms, late_ms_max=late_ms_max)
