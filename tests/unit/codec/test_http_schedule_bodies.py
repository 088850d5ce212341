"""Times in bodies of the HTTP door: numbers or texts, and never too early."""

from __future__ import annotations

import msgspec
import pytest

from penstock.codec.http.schedules import RescheduleRequest, due_ms_of, moment_ms


def read(text: str) -> RescheduleRequest:
    return msgspec.json.decode(text, type=RescheduleRequest)


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        ('{"delay_ms": 5}', 105),
        ('{"deliver_at": 500}', 500),
        ('{"deliver_at": "1970-01-01T00:00:00.5Z"}', 500),
        ('{"deliver_at": "1970-01-01T01:00:00.5+01:00"}', 500),
        ('{"delay_ms": 5, "deliver_at": 500}', 500),
        ('{"delay_ms": 500, "deliver_at": 5}', 600),
        ("{}", None),
    ],
)
def test_the_later_of_a_delay_and_a_time_counts(text: str, due_ms: int | None) -> None:
    assert read(text).due_ms(100) == due_ms


def test_a_part_of_a_millisecond_is_a_whole_one() -> None:
    moment = read('{"deliver_at": "1970-01-01T00:00:00.5001Z"}').deliver_at
    assert not isinstance(moment, msgspec.UnsetType)
    assert moment_ms(moment) == 501


@pytest.mark.parametrize(
    "text",
    [
        '{"deliver_at": "1970-01-01T00:00:00"}',
        '{"deliver_at": "tomorrow"}',
        '{"deliver_at": -1}',
        '{"deliver_at": null}',
        '{"delay_ms": 1.5}',
        '{"delay_ms": 9007199254740992}',
        '{"delay": 5}',
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(text)


def test_nothing_said_is_nothing() -> None:
    assert due_ms_of(100, None, None) is None
