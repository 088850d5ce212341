"""Named schedules of a partition: every time once, whatever was missed, and after restarts."""

from __future__ import annotations

import pytest

from penstock.domain.schedule.commands import DefineCron, DeleteCron, Done, FireCrons, Refused, ScheduleProblem
from penstock.domain.schedule.cron_book import GRACE_MS
from penstock.domain.schedule.records import CronFired, Missed, Scheduled
from support.schedule.desk import ScheduleDesk

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def desk() -> ScheduleDesk:
    desk = ScheduleDesk()
    # A minute has just begun.
    desk.now_ms -= desk.now_ms % HOUR
    return desk


def define(desk: ScheduleDesk, expression: str = "* * * * *", missed: Missed = Missed.ONCE, zone: str = "UTC") -> None:
    assert desk.submit(DefineCron(desk.end, "nightly", expression, zone, missed)) == Done()


def fired_count(desk: ScheduleDesk) -> int:
    return sum(isinstance(record, Scheduled) for record in desk.records())


def test_schedule_makes_a_message_at_each_of_its_times(desk: ScheduleDesk) -> None:
    define(desk, "*/5 * * * *")
    assert desk.schedule.next_due_ms("nightly", desk.now_ms) == desk.now_ms + 5 * MINUTE
    released = desk.pass_time(16 * MINUTE)
    assert [len(sources) for sources in released] == [1, 1, 1]
    times = [record.due_ms for record in desk.records() if isinstance(record, Scheduled)]
    assert [due_ms % HOUR // MINUTE for due_ms in times] == [5, 10, 15]


def test_schedule_follows_its_time_zone(desk: ScheduleDesk) -> None:
    define(desk, "0 7 * * *", zone="Europe/Berlin")
    due_ms = desk.schedule.next_due_ms("nightly", desk.now_ms)
    # In November Berlin is an hour ahead.
    assert due_ms is not None
    assert due_ms % (24 * HOUR) == 6 * HOUR


def test_message_and_time_are_written_together_and_the_message_first(desk: ScheduleDesk) -> None:
    define(desk)
    desk.now_ms += MINUTE
    assert desk.decide(FireCrons(desk.end)).records == (
        Scheduled(1, desk.now_ms, desk.now_ms, cron="nightly"),
        CronFired("nightly", desk.now_ms, desk.now_ms),
    )
    assert desk.decide(FireCrons(desk.end)).records == ()


@pytest.mark.parametrize("row_count", [2, 3])
def test_time_is_fired_once_wherever_the_crash_comes(desk: ScheduleDesk, row_count: int) -> None:
    define(desk)
    desk.now_ms += MINUTE
    desk.submit(FireCrons(desk.end))
    del desk.rows[row_count:]
    desk.restart()
    assert desk.decide(FireCrons(desk.end)).records == ()
    assert desk.pass_time(0) == [(1,)]


def test_clock_that_is_put_back_fires_nothing_again(desk: ScheduleDesk) -> None:
    define(desk)
    desk.pass_time(5 * MINUTE)
    before = fired_count(desk)
    desk.now_ms -= 3 * MINUTE
    desk.pass_time(3 * MINUTE)
    assert fired_count(desk) == before
    desk.pass_time(MINUTE)
    assert fired_count(desk) == before + 1


@pytest.mark.parametrize(
    ("missed", "minutes"),
    [(Missed.SKIP, [9, 10]), (Missed.ONCE, [8, 9, 10]), (Missed.ALL, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])],
)
def test_missed_times_are_treated_as_the_schedule_says(desk: ScheduleDesk, missed: Missed, minutes: list[int]) -> None:
    assert GRACE_MS == MINUTE
    define(desk, missed=missed)
    desk.checkpoint()
    desk.now_ms += 10 * MINUTE
    desk.restart()
    start_ms = desk.now_ms - 10 * MINUTE
    desk.submit(FireCrons(desk.end))
    dues = [record.due_ms - start_ms for record in desk.records() if isinstance(record, Scheduled)]
    assert [due_ms // MINUTE for due_ms in dues] == minutes


def test_schedule_that_skips_waits_for_its_next_time(desk: ScheduleDesk) -> None:
    define(desk, "0 * * * *", Missed.SKIP)
    desk.now_ms += 90 * MINUTE
    assert desk.decide(FireCrons(desk.end)).records == ()
    assert desk.schedule.next_deadline_ms(desk.now_ms) == desk.now_ms + 30 * MINUTE


def test_many_missed_times_are_made_up_for_in_turns(desk: ScheduleDesk) -> None:
    define(desk, missed=Missed.ALL)
    desk.now_ms += 250 * MINUTE
    counts = [len(desk.decide(FireCrons(desk.end)).records) // 2 for _turn in range(4)]
    assert counts == [100, 100, 50, 0]


def test_deleted_schedule_is_silent_and_what_it_made_is_released(desk: ScheduleDesk) -> None:
    define(desk)
    desk.now_ms += MINUTE
    desk.submit(FireCrons(desk.end))
    assert desk.submit(DeleteCron("nightly")) == Done()
    assert desk.pass_time(HOUR) == [(1,)]
    assert desk.submit(DeleteCron("nightly")) == Refused(ScheduleProblem.NO_SUCH_CRON, "nightly")
    assert desk.schedule.crons() == []


def test_new_definition_takes_the_place_of_the_old_one(desk: ScheduleDesk) -> None:
    define(desk)
    desk.pass_time(2 * MINUTE)
    define(desk, "*/30 * * * *")
    (cron,) = desk.schedule.crons()
    assert (cron.expression, cron.fired_ms) == ("*/30 * * * *", desk.now_ms)
    assert desk.schedule.next_due_ms("nightly", desk.now_ms) == desk.now_ms + 28 * MINUTE


@pytest.mark.parametrize(
    ("expression", "zone", "problem"),
    [
        ("61 * * * *", "UTC", ScheduleProblem.BAD_EXPRESSION),
        ("* * * * *", "Mars/Olympus", ScheduleProblem.UNKNOWN_ZONE),
        ("* * */20 * 1L", "UTC", ScheduleProblem.NEVER_DUE),
    ],
)
def test_definition_that_makes_no_sense_is_refused(
    desk: ScheduleDesk, expression: str, zone: str, problem: ScheduleProblem
) -> None:
    reply = desk.submit(DefineCron(desk.end, "nightly", expression, zone))
    assert isinstance(reply, Refused)
    assert reply.problem is problem
    assert desk.schedule.crons() == []
